/* The turn of a link: what is read goes through the core, or the protocol of its port, and what
 * comes of it to the socket or to Python. */
#include "base/clock.h"
#include "net/reactor.h"

/* A turn that took so long, or brought so much, is followed by those of others: who sends one
 * message at a time does not wait for all who send as fast as they can. */
#define HEAVY_NS 200000
#define HEAVY_BYTES (8 << 10)

/* What a step has brought about beside answers. */
static void take_rare(ps_link *link, const ps_step *step) {
    ps_net *net = link->lk_net;
    if (step->pop_due_ms > 0)
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_POP_DUE, .value = step->pop_due_ms});
    if (step->news) net->nt_look = true;
    if (step->look_in_ms >= 0) {
        int64_t at = ps_monotonic_ms() + step->look_in_ms;
        if (net->nt_look_ms < 0 || at < net->nt_look_ms) net->nt_look_ms = at;
    }
    link->lk_part = step->part ? ps_conn_unfinished(link->lk_conn) : 0;
    for (int32_t i = 0; i < step->frame_count; i++)
        if (!ps_link_delegate_frame(link, step->frames[i].data, step->frames[i].len)) return;
}

/* Bytes into the room that the core gave, or none when it goes on with what it kept. */
static bool read_some(ps_link *link, int64_t *count, ps_error *e) {
    uint8_t *room;
    *count = 0;
    if (link->lk_more) return true;
    int64_t size = ps_conn_room(link->lk_conn, &room, e);
    if (size < 0) {
        ps_link_end(link, "no memory for its requests");
        return false;
    }
    *count = ps_link_receive(link, room, size);
    return *count > 0;
}

void ps_link_readable(ps_link *link) {
    ps_step step;
    ps_error e = {0};
    int64_t count, began = ps_monotonic_ns();
    if (link->lk_fd < 0 || link->lk_held != 0) return;
    if (!link->lk_open && !ps_link_begin(link)) return;
    if (link->lk_net->nt_protocol != NULL) {
        link->lk_net->nt_protocol->read(link);
        link->lk_heavy = ps_monotonic_ns() - began > HEAVY_NS;
        if (link->lk_fd >= 0) ps_link_go_on(link);
        ps_link_keep_budget(link->lk_net);
        return;
    }
    if (!read_some(link, &count, &e)) return;
    link->lk_seen_ms = began / 1000000;
    link->lk_net->nt_turns++;
    int code = ps_conn_received(link->lk_conn, count, &step, &e);
    link->lk_more = step.more;
    if (step.rare || link->lk_part > 0) take_rare(link, &step);
    if (step.piece_count > 0)
        ps_link_send_pieces(link, &step);
    else if (step.out_len > 0)
        ps_link_send(link, step.out, step.out_len);
    if (code < 0) ps_link_end_malformed(link, &e);
    if (link->lk_fd < 0) return;
    ps_link_weigh(link);
    link->lk_heavy =
        step.more || count >= HEAVY_BYTES || ps_monotonic_ns() - began > HEAVY_NS;
    ps_link_go_on(link);
    ps_link_watch(link);
    ps_link_keep_budget(link->lk_net);
}
