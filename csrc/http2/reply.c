/* Replies: HEADERS, messages with their prefix, and the status in the trailers. A call that fails
 * before its first reply has the status in its HEADERS. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "http2/call.h"

#define TEXT_MAX 4096 /* of a status, encoded */
#define KEEP_ROOM (64 << 10)
#define LITTLE (64 << 10) /* waits: who was told to pause goes on */

#define FIXED(name, value) \
    {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1, \
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

static const nghttp2_nv begin_headers[] = {
    FIXED(":status", "200"),
    FIXED("content-type", "application/grpc"),
    FIXED("grpc-encoding", "identity"),
    FIXED("grpc-accept-encoding", "identity"),
};
#define BEGIN_COUNT (sizeof begin_headers / sizeof *begin_headers)

static ps_h2_call *call_of(ps_h2 *h, int32_t stream) {
    return nghttp2_session_get_stream_user_data(h->session, stream);
}

/* grpc-message: printable ASCII but for %, else percent-encoded. NULL: no memory. */
static char *percent_encoded(const char *text) {
    static const char digits[] = "0123456789ABCDEF";
    size_t len = strlen(text), at = 0;
    char *made = malloc((len < TEXT_MAX ? 3 * len : 3 * TEXT_MAX) + 1);
    if (made == NULL) return NULL;
    for (size_t i = 0; i < len && at + 3 <= TEXT_MAX; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c >= ' ' && c <= '~' && c != '%') {
            made[at++] = (char)c;
        } else {
            made[at++] = '%';
            made[at++] = digits[c >> 4];
            made[at++] = digits[c & 15];
        }
    }
    made[at] = '\0';
    return made;
}

/* grpc-status and grpc-message: how many. number: room for the digits. */
static size_t status_headers(const ps_h2_call *c, char number[3], nghttp2_nv out[2]) {
    size_t digits = 0;
    if (c->status > 9) number[digits++] = (char)('0' + c->status / 10 % 10);
    number[digits++] = (char)('0' + c->status % 10);
    out[0] = (nghttp2_nv){(uint8_t *)"grpc-status", (uint8_t *)number, 11, digits, 0};
    if (c->text == NULL) return 1;
    out[1] = (nghttp2_nv){(uint8_t *)"grpc-message", (uint8_t *)c->text, 12, strlen(c->text), 0};
    return 2;
}

static ssize_t read_out(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                        uint32_t *flags, nghttp2_data_source *source, void *user) {
    ps_h2_call *c = source->ptr;
    ps_h2_bytes *b = &c->out;
    int64_t left = b->len - c->out_from;
    if (left == 0 && !c->last) {
        c->stopped = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    int64_t part = left < (int64_t)room ? left : (int64_t)room;
    memcpy(to, b->data + c->out_from, (size_t)part);
    c->out_from += part;
    left -= part;
    c->held -= part;
    ((ps_h2 *)user)->held -= part;
    if (left == 0) {
        c->out_from = b->len = 0;
        if (b->room > KEEP_ROOM) ps_h2_release(b);
        if (c->last) {
            char number[3];
            nghttp2_nv trailers[2];
            size_t count = status_headers(c, number, trailers);
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            if (nghttp2_submit_trailer(session, stream, trailers, count) != 0)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    }
    if (c->is_much && left < LITTLE && !c->last) {
        c->is_much = false;
        if (!ps_h2_push(user, PS_H2_DRAINED, c, NULL))
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)part;
}

static bool begin_reply(ps_h2 *h, ps_h2_call *c) {
    nghttp2_data_provider source = {{.ptr = c}, read_out};
    c->answered = true;
    return nghttp2_submit_response(h->session, c->id, begin_headers, BEGIN_COUNT, &source) == 0;
}

/* What was added is to be sent, or the call cannot be answered: then it is reset. */
static void send_or_reset(ps_h2 *h, ps_h2_call *c, bool fine) {
    if (fine && !c->answered) fine = begin_reply(h, c);
    if (fine && c->stopped) {
        c->stopped = false;
        fine = nghttp2_session_resume_data(h->session, c->id) == 0;
    }
    if (fine) return;
    c->last = true;
    nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, c->id, NGHTTP2_INTERNAL_ERROR);
}

int64_t ps_h2_send(ps_h2 *h, int32_t stream, const uint8_t *data, int64_t len, bool last) {
    ps_h2_call *c = call_of(h, stream);
    uint8_t prefix[PS_H2_PREFIX] = {0};
    if (c == NULL || c->last) return -1;
    bool fine = len <= UINT32_MAX;
    be32_put(prefix + 1, (uint32_t)len);
    fine = fine && ps_h2_append(&c->out, prefix, PS_H2_PREFIX) && ps_h2_append(&c->out, data, len);
    c->last = last;
    if (last) ps_h2_call_answered(h, c);
    if (fine) {
        c->held += PS_H2_PREFIX + len;
        h->held += PS_H2_PREFIX + len;
    }
    send_or_reset(h, c, fine);
    int64_t waiting = c->out.len - c->out_from;
    if (!last && waiting >= PS_H2_MUCH) c->is_much = true;
    return waiting;
}

bool ps_h2_drained(ps_h2 *h, int32_t stream) {
    ps_h2_call *c = call_of(h, stream);
    if (c == NULL || c->last || c->out.len - c->out_from < LITTLE) return true;
    c->is_much = true;
    return false;
}

static void finish_call(ps_h2 *h, ps_h2_call *c, int32_t status, const char *text) {
    if (c->last) return;
    c->last = true;
    ps_h2_call_answered(h, c);
    c->status = status;
    c->text = text != NULL ? percent_encoded(text) : NULL;
    if (c->answered) {
        send_or_reset(h, c, true);
        return;
    }
    char number[3];
    nghttp2_nv headers[BEGIN_COUNT + 2];
    memcpy(headers, begin_headers, sizeof begin_headers);
    size_t count = BEGIN_COUNT + status_headers(c, number, headers + BEGIN_COUNT);
    c->answered = true;
    if (nghttp2_submit_response(h->session, c->id, headers, count, NULL) != 0)
        send_or_reset(h, c, false);
}

void ps_h2_finish(ps_h2 *h, int32_t stream, int32_t status, const char *text) {
    ps_h2_call *c = call_of(h, stream);
    if (c != NULL) finish_call(h, c, status, text);
}

void ps_h2_reply_fail(ps_h2 *h, ps_h2_call *c, int32_t status, const char *text) {
    c->refused = true;
    ps_h2_release(&c->message);
    finish_call(h, c, status, text);
}
