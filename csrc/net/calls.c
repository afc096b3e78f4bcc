/* A link that speaks HTTP/2: what is read becomes calls of gRPC (http2/), which go to Python, and
 * what Python replies is written once for all that it has replied to. docs/internals/grpc.md */
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/reactor.h"

#define READ_MAX (64 << 10) /* of one turn */

static const ps_h2_functions *functions_of(const ps_link *link) {
    return link->lk_net->nt_conf.h2;
}

/* It was read from when its first bytes were there. */
static bool open_calls(ps_link *link) {
    int least = 1;
    setsockopt(link->lk_fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    link->lk_called_ms = ps_monotonic_ms();
    link->lk_h2 = functions_of(link)->make(link->lk_net->nt_conf.h2_conf);
    return link->lk_h2 != NULL;
}

/* ---- to Python ---- */

static void delegate_event(ps_link *link, const ps_h2_event *event) {
    ps_link_delegate(link, event, NULL);
}

/* One too many learns so by the call that it makes, and begins no further one. */
static void refuse_events(ps_link *link) {
    const ps_h2_functions *h2 = functions_of(link);
    ps_h2_event event;
    bool asked = false;
    while (h2->next(link->lk_h2, &event)) {
        if (event.kind != PS_H2_CALL && event.kind != PS_H2_ASK) continue;
        h2->finish(link->lk_h2, event.stream, PS_GRPC_UNAVAILABLE,
                   "the server has too many connections");
        asked = true;
    }
    if (asked) h2->go_away(link->lk_h2);
}

static void delegate_events(ps_link *link) {
    ps_h2_event event;
    if (link->lk_over) {
        refuse_events(link);
        return;
    }
    while (link->lk_fd >= 0 && functions_of(link)->next(link->lk_h2, &event)) {
        if (event.kind == PS_H2_CALL) {
            link->lk_called_ms = ps_monotonic_ms();
            if (ps_calls_serve(link, &event)) continue;
        }
        if (event.kind == PS_H2_RESET && ps_calls_reset(link, event.stream)) continue;
        delegate_event(link, &event);
    }
}

/* ---- to the client ---- */

/* Replies wait in the session while the client does not read. */
static void write_calls(ps_link *link) {
    const ps_h2_functions *h2 = functions_of(link);
    bool closing = link->lk_closing_ms > 0;
    const uint8_t *data;
    int64_t len;
    while (link->lk_fd >= 0 &&
           (closing || link->lk_out.len - link->lk_out_from < link->lk_net->nt_conf.write_high) &&
           (len = h2->pull(link->lk_h2, &data)) > 0)
        ps_link_send(link, data, len);
    if (link->lk_fd < 0) return;
    delegate_events(link); /* replies were sent */
    if (link->lk_fd < 0) return;
    link->lk_part = h2->held(link->lk_h2);
    ps_link_weigh(link);
    if (!closing && h2->done(link->lk_h2)) ps_link_begin_close(link);
}

static void read_calls(ps_link *link) {
    uint8_t *room = link->lk_net->nt_room;
    ps_core *core = link->lk_net->nt_core;
    int64_t size = core != NULL ? ps_core_room(core, &room) : PS_NET_ROOM;
    int64_t got = ps_link_receive(link, room, size < READ_MAX ? size : READ_MAX);
    if (got <= 0) return;
    bool fine = functions_of(link)->feed(link->lk_h2, room, got);
    delegate_events(link);
    if (link->lk_fd < 0) return;
    if (fine)
        write_calls(link);
    else
        ps_link_begin_close(link);
    if (link->lk_fd >= 0) ps_link_watch(link);
}

static void mark_dirty(ps_link *link) {
    if (link->lk_dirty) return;
    link->lk_dirty = true;
    link->lk_next_dirty = link->lk_net->nt_dirty;
    link->lk_net->nt_dirty = link;
}

static void write_dirty(ps_net *net) {
    while (net->nt_dirty != NULL) {
        ps_link *link = net->nt_dirty;
        net->nt_dirty = link->lk_next_dirty;
        link->lk_dirty = false;
        if (link->lk_fd < 0) continue;
        write_calls(link);
        if (link->lk_fd >= 0) ps_link_watch(link);
    }
}

/* ---- what Python asks ---- */

/* Whoever wants to be told when little waits is told at once unless the session tells it later. */
static void send_reply(ps_link *link, const ps_net_ask *ask) {
    const ps_h2_functions *h2 = functions_of(link);
    h2->send(link->lk_h2, ask->stream, ask->data, ask->len, ask->on);
    if (!ask->tell) return;
    write_calls(link);
    if (link->lk_fd < 0 || !h2->drained(link->lk_h2, ask->stream)) return;
    ps_h2_event event = {.kind = PS_H2_DRAINED, .stream = ask->stream};
    delegate_event(link, &event);
}

static void do_ask(const ps_net_ask *ask) {
    ps_link *link = ask->link;
    if (ask->kind == PS_ASK_CLIENT) {
        free(link->lk_client);
        link->lk_client = (char *)ask->data;
        link->lk_attempts = ask->on;
        link->lk_fifo = ask->fifo;
        link->lk_settings = ask->len;
        link->lk_request_ms = ask->tell;
        link->lk_clients++;
        return;
    }
    if (link->lk_fd >= 0 && link->lk_h2 != NULL) {
        const ps_h2_functions *h2 = functions_of(link);
        if (ask->kind == PS_ASK_REPLY)
            send_reply(link, ask);
        else if (ask->kind == PS_ASK_FINISH)
            h2->finish(link->lk_h2, ask->stream, ask->tell, (const char *)ask->data);
        else if (ask->kind == PS_ASK_ADMIT)
            h2->admit(link->lk_h2, ask->stream);
        else if (ask->kind == PS_ASK_SERVED)
            h2->taken(link->lk_h2, ask->stream, ask->len);
        else
            h2->go_away(link->lk_h2);
        mark_dirty(link);
    }
    free(ask->data);
}

static bool take_popped(ps_link *link, int32_t stream, ps_pop_found *found) {
    if (link->lk_h2 == NULL || !ps_calls_popped(link, stream, found)) return false;
    mark_dirty(link);
    return true;
}

static void take_safe(ps_link *link, int32_t stream, int32_t outcome) {
    if (link->lk_h2 == NULL) return;
    ps_calls_safe(link, stream, outcome);
    mark_dirty(link);
}

/* ---- time ---- */

/* Idle is who makes no call, whatever else it sends. */
static void sweep_calls(ps_link *link, int64_t now) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    const ps_h2_functions *h2 = functions_of(link);
    int64_t most = link->lk_over ? conf->opening_ms : conf->idle_ms;
    if (link->lk_closing_ms > 0) return;
    if (link->lk_h2 == NULL || !h2->greeted(link->lk_h2)) {
        int64_t since = link->lk_h2 == NULL ? link->lk_seen_ms : link->lk_called_ms;
        if (conf->opening_ms > 0 && now - since > conf->opening_ms)
            ps_link_end(link, "handshake timed out");
        return;
    }
    if (h2->calls(link->lk_h2) > 0) {
        link->lk_called_ms = now;
    } else if (most > 0 && now - link->lk_called_ms > most) {
        h2->go_away(link->lk_h2);
        ps_link_begin_close(link);
    }
}

const ps_link_protocol ps_calls = {
    .open = open_calls,
    .read = read_calls,
    .write = write_calls,
    .ask = do_ask,
    .asked = write_dirty,
    .sweep = sweep_calls,
    .popped = take_popped,
    .safe = take_safe,
    .ended = ps_calls_drop,
};
