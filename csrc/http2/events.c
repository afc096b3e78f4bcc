/* Bytes that grow, calls that are referred to, and the queue of events. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "http2/call.h"

bool ps_h2_append(ps_h2_bytes *b, const void *data, int64_t len) {
    if (!PS_GROW(b->data, b->room, b->len + len, 64)) return false;
    if (len > 0) memcpy(b->data + b->len, data, (size_t)len);
    b->len += len;
    return true;
}

void ps_h2_release(ps_h2_bytes *b) {
    free(b->data);
    *b = (ps_h2_bytes){0};
}

void ps_h2_unref(ps_h2_call *c) {
    if (c == NULL || --c->refs > 0) return;
    ps_h2_release(&c->headers);
    ps_h2_release(&c->message);
    ps_h2_release(&c->out);
    free(c->text);
    free(c);
}

bool ps_h2_push(ps_h2 *h, int32_t kind, ps_h2_call *c, ps_h2_bytes *data) {
    if (h->event_from > 0 && h->event_from == h->event_count) h->event_from = h->event_count = 0;
    if (!PS_GROW(h->events, h->event_room, h->event_count + 1, 16)) return false;
    ps_h2_queued *event = &h->events[h->event_count++];
    *event = (ps_h2_queued){.kind = kind, .call = c};
    c->refs++;
    c->told |= kind == PS_H2_CALL;
    if (data != NULL) {
        event->data = *data;
        *data = (ps_h2_bytes){0};
    }
    return true;
}
