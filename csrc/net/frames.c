/* A link of a port without a core: what is read is cut into frames, which all go to Python. A link
 * that has no part of a frame left over, which is almost every one at any time, has no buffer. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/reactor.h"

/* Doubled as bytes come, so that a false length reserves nothing. */
static int64_t room_of(ps_link *link, uint8_t **at) {
    ps_buffer *in = &link->lk_in;
    if (in->len == 0) {
        *at = link->lk_net->nt_room;
        return PS_NET_ROOM;
    }
    int64_t more = link->lk_wanted - in->len;
    if (more > in->len + PS_NET_ROOM) more = in->len + PS_NET_ROOM;
    if (more < PS_NET_ROOM) more = PS_NET_ROOM;
    *at = ps_buffer_room(in, more);
    return *at != NULL ? in->room - in->len : -1;
}

/* Returns how far it got; PS_E_FRAME: what follows is not one. */
static int64_t cut_frames(ps_link *link, const uint8_t *data, int64_t len, ps_error *e) {
    int64_t used = 0;
    link->lk_wanted = 0;
    while (len - used >= 4) {
        int64_t size = ps_frame_size(data + used, link->lk_net->nt_conf.frame_max, e);
        if (size < 0) return size;
        if (size > len - used) {
            link->lk_wanted = size;
            break;
        }
        if (!ps_link_delegate_frame(link, data + used, size)) break;
        used += size;
    }
    return used;
}

static bool keep_rest(ps_link *link, const uint8_t *from, int64_t left) {
    ps_buffer *in = &link->lk_in;
    if (left == 0) {
        ps_buffer_free(in);
        return true;
    }
    if (in->len == 0 && ps_buffer_room(in, left) == NULL) return false;
    memmove(in->data, from, (size_t)left);
    in->len = left;
    return true;
}

static void read_frames(ps_link *link) {
    uint8_t *room;
    ps_error e = {0};
    int64_t size = room_of(link, &room), kept = link->lk_in.len;
    int64_t got = size > 0 ? ps_link_receive(link, room, size) : -1;
    if (size < 0) ps_link_end(link, "no memory for its requests");
    if (got <= 0) return;
    link->lk_seen_ms = ps_monotonic_ms();
    link->lk_net->nt_turns++;
    const uint8_t *data = room - kept;
    int64_t used = cut_frames(link, data, kept + got, &e);
    if (used < 0)
        ps_link_end_malformed(link, &e);
    else if (link->lk_fd >= 0 && !keep_rest(link, data + used, kept + got - used))
        ps_link_end(link, "no memory for its requests");
    if (link->lk_fd < 0) return;
    link->lk_part = link->lk_in.room;
    ps_link_weigh(link);
    ps_link_watch(link);
}

const ps_link_protocol ps_frames = {.read = read_frames};
