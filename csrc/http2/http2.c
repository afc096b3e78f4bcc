/* A connection: nghttp2's session, its callbacks, and the events that are handed out. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"
#include "http2/call.h"

#define WINDOW (1 << 20)
#define PULL_MAX (256 << 10)
#define CALL_BYTES 512 /* a call without headers or messages, here and in nghttp2 */
/* Calls that clients cancel, or have us reset (CVE-2023-44487, CVE-2025-8671): so many at once,
 * and so many a ms. SETTINGS count as well, and for each hundred calls in progress once more: the
 * window of each is changed. */
#define RESETS_MAX 2000.0
#define RESETS_A_MS 0.5
#define CALLS_A_RESET 100

/* ---- events ---- */

/* The headers of a call as they are handed out. */
static bool list_headers(ps_h2 *h, ps_h2_call *c, ps_h2_event *out) {
    if (!PS_GROW(h->header_list, h->header_room, c->header_count, c->header_count)) return false;
    const char *at = (const char *)c->headers.data;
    for (int32_t i = 0; i < c->header_count; i++) {
        ps_h2_header *each = &h->header_list[i];
        each->name = at;
        each->name_len = (int32_t)strlen(at);
        each->value = at += each->name_len + 1;
        each->value_len = (int32_t)strlen(at);
        at += each->value_len + 1;
    }
    out->headers = h->header_list;
    out->header_count = c->header_count;
    out->header_block = c->headers.data;
    out->header_block_len = c->headers.len;
    return true;
}

static void drop_given(ps_h2 *h) {
    ps_h2_release(&h->given);
    ps_h2_unref(h->given_call);
    h->given_call = NULL;
}

/* Whether anybody is to hear of it: a call that is over is not begun, and its rest is nothing. */
static bool event_matters(const ps_h2_queued *event) {
    return !event->call->closed || (event->kind == PS_H2_RESET && event->call->told);
}

bool ps_h2_next(ps_h2 *h, ps_h2_event *out) {
    drop_given(h);
    while (h->event_from < h->event_count) {
        ps_h2_queued event = h->events[h->event_from++];
        h->given = event.data;
        h->given_call = event.call;
        if (event_matters(&event)) {
            *out = (ps_h2_event){.kind = event.kind,
                                 .stream = event.call->id,
                                 .method = event.call->method,
                                 .timeout_ns = event.call->timeout_ns,
                                 .data = event.data.data,
                                 .len = event.data.len};
            bool with_headers = event.kind == PS_H2_CALL || event.kind == PS_H2_ASK;
            if (!with_headers || list_headers(h, event.call, out)) return true;
            h->failed = true;
        }
        if (event.kind == PS_H2_CALL) event.call->told = false;
        drop_given(h);
    }
    return false;
}

/* ---- callbacks ---- */

#define FATAL NGHTTP2_ERR_CALLBACK_FAILURE

static ps_h2_call *call_of(nghttp2_session *session, int32_t stream) {
    return nghttp2_session_get_stream_user_data(session, stream);
}

static bool is_request(const nghttp2_frame *frame) {
    return frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    ps_h2 *h = user;
    if (!is_request(frame)) return 0;
    ps_h2_call *c = calloc(1, sizeof *c);
    if (c == NULL) return FATAL;
    *c = (ps_h2_call){.id = frame->hd.stream_id, .refs = 1, .method = -1, .timeout_ns = -1,
                      .wanted = -1, .held = CALL_BYTES};
    if (nghttp2_session_set_stream_user_data(session, c->id, c) != 0) {
        free(c);
        return FATAL;
    }
    h->calls++;
    h->held += CALL_BYTES;
    c->link = &h->open;
    c->next = h->open;
    if (c->next != NULL) c->next->link = &c->next;
    h->open = c;
    return 0;
}

/* Trailers of a request say nothing, but are looked at. */
static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user) {
    (void)flags;
    ps_h2_call *c = call_of(session, frame->hd.stream_id);
    if (c == NULL) return 0;
    bool fine = is_request(frame) ? ps_h2_call_header(user, c, name, name_len, value, value_len)
                                  : ps_h2_call_weigh(user, c, name_len, value_len);
    return fine ? 0 : FATAL;
}

/* Whether so much was asked of us for nothing that the client means harm. */
static bool is_harmful(ps_h2 *h, double resets) {
    int64_t now = ps_monotonic_ms();
    h->resets_left += (double)(now - h->resets_ms) * RESETS_A_MS;
    h->resets_ms = now;
    if (h->resets_left > RESETS_MAX) h->resets_left = RESETS_MAX;
    h->resets_left -= resets;
    return h->resets_left < 0;
}

static void calm_client(ps_h2 *h) {
    nghttp2_session_terminate_session(h->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

static void on_settings(ps_h2 *h, const nghttp2_frame *frame) {
    h->greeted = true;
    if (frame->hd.flags & NGHTTP2_FLAG_ACK) return;
    if (is_harmful(h, 1 + h->calls / CALLS_A_RESET)) calm_client(h);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    ps_h2 *h = user;
    if (frame->hd.type == NGHTTP2_SETTINGS) on_settings(h, frame);
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    ps_h2_call *c = call_of(session, frame->hd.stream_id);
    if (c == NULL) return 0;
    if (is_request(frame) && !ps_h2_call_begin(h, c)) return FATAL;
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) && !ps_h2_call_end(h, c)) return FATAL;
    return 0;
}

/* The window of the connection is for all calls and given back at once; that of a stream of
 * requests waits until those that came are served, and that of a long one until it is admitted. */
static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                   size_t len, void *user) {
    (void)flags;
    ps_h2_call *c = call_of(session, stream);
    nghttp2_session_consume_connection(session, len);
    if (c == NULL) return 0;
    bool wait = c->queued > 0;
    if (!ps_h2_call_data(user, c, data, (int64_t)len)) return FATAL;
    if (wait || c->waits)
        c->kept += (int64_t)len;
    else
        nghttp2_session_consume_stream(session, stream, len);
    return 0;
}

static void leave_call(ps_h2_call *c) {
    *c->link = c->next;
    if (c->next != NULL) c->next->link = c->link;
}

static int on_close(nghttp2_session *session, int32_t stream, uint32_t error, void *user) {
    (void)error;
    ps_h2 *h = user;
    ps_h2_call *c = call_of(session, stream);
    if (c == NULL) return 0;
    nghttp2_session_set_stream_user_data(session, stream, NULL);
    leave_call(c);
    h->calls--;
    h->held -= c->held;
    c->closed = true;
    bool pushed = c->last || !c->told || ps_h2_push(h, PS_H2_RESET, c, NULL);
    bool harmful = error != NGHTTP2_NO_ERROR && is_harmful(h, 1);
    ps_h2_unref(c);
    if (harmful) calm_client(h);
    return pushed ? 0 : FATAL;
}

/* A client that still sends after its answer is told that nobody listens. */
static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)user;
    int32_t stream = frame->hd.stream_id;
    if (frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) &&
        nghttp2_session_get_stream_remote_close(session, stream) == 0)
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_NO_ERROR);
    return 0;
}

/* ---- the connection ---- */

static bool make_session(ps_h2 *h) {
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    bool made = nghttp2_session_callbacks_new(&callbacks) == 0 && nghttp2_option_new(&option) == 0;
    if (made) {
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation(option, 1);
        made = nghttp2_session_server_new2(&h->session, callbacks, h, option) == 0;
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return made;
}

static bool send_greeting(ps_h2 *h) {
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)h->conf->streams_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)h->conf->headers_max},
    };
    return nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings,
                                   sizeof settings / sizeof *settings) == 0 &&
           nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, WINDOW) == 0;
}

ps_h2 *ps_h2_new(const ps_h2_conf *conf) {
    ps_h2 *h = calloc(1, sizeof *h);
    if (h == NULL) return NULL;
    h->conf = conf;
    h->resets_left = RESETS_MAX;
    h->resets_ms = h->excess_ms = ps_monotonic_ms();
    h->excess_left = PS_H2_EXCESS_MAX;
    if (make_session(h) && send_greeting(h)) return h;
    ps_h2_free(h);
    return NULL;
}

void ps_h2_free(ps_h2 *h) {
    if (h == NULL) return;
    drop_given(h);
    for (int32_t i = h->event_from; i < h->event_count; i++) {
        ps_h2_release(&h->events[i].data);
        ps_h2_unref(h->events[i].call);
    }
    h->event_from = h->event_count = 0;
    nghttp2_session_del(h->session); /* it tells nobody of the streams that were open */
    while (h->open != NULL) {
        ps_h2_call *c = h->open;
        leave_call(c);
        ps_h2_unref(c);
    }
    free(h->events);
    free(h->header_list);
    ps_h2_release(&h->out);
    free(h);
}

bool ps_h2_feed(ps_h2 *h, const uint8_t *data, int64_t len) {
    if (!h->failed) {
        ssize_t took = nghttp2_session_mem_recv(h->session, data, (size_t)len);
        h->failed = took < 0 || took != len;
    }
    return !h->failed;
}

/* What was kept of the window of a stream, if nothing holds it any more. */
static void give_back(ps_h2 *h, ps_h2_call *c) {
    if (c->queued > 0 || c->waits || c->kept == 0) return;
    nghttp2_session_consume_stream(h->session, c->id, (size_t)c->kept);
    c->kept = 0;
}

void ps_h2_taken(ps_h2 *h, int32_t stream, int64_t len) {
    ps_h2_call *c = call_of(h->session, stream);
    if (c == NULL || c->queued == 0) return;
    c->held -= len + PS_H2_PREFIX;
    h->held -= len + PS_H2_PREFIX;
    c->queued--;
    give_back(h, c);
}

void ps_h2_admit(ps_h2 *h, int32_t stream) {
    ps_h2_call *c = call_of(h->session, stream);
    if (c == NULL) return;
    c->waits = false;
    give_back(h, c);
}

int64_t ps_h2_pull(ps_h2 *h, const uint8_t **data) {
    const uint8_t *part;
    ssize_t len;
    if (h->out.room > 2 * PULL_MAX) ps_h2_release(&h->out);
    h->out.len = 0;
    while (h->out.len < PULL_MAX && (len = nghttp2_session_mem_send(h->session, &part)) != 0) {
        if (len < 0 || !ps_h2_append(&h->out, part, len)) {
            h->failed = true;
            break;
        }
    }
    *data = h->out.data;
    return h->out.len;
}

void ps_h2_go_away(ps_h2 *h) {
    int32_t last = nghttp2_session_get_last_proc_stream_id(h->session);
    nghttp2_submit_goaway(h->session, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR, NULL, 0);
}

bool ps_h2_greeted(const ps_h2 *h) { return h->greeted; }

bool ps_h2_done(const ps_h2 *h) {
    return h->failed ||
           (!nghttp2_session_want_read(h->session) && !nghttp2_session_want_write(h->session));
}

int32_t ps_h2_calls(const ps_h2 *h) { return h->calls; }

int64_t ps_h2_held(const ps_h2 *h) { return h->held; }

const ps_h2_functions ps_h2_all = {
    .make = ps_h2_new,
    .release = ps_h2_free,
    .feed = ps_h2_feed,
    .next = ps_h2_next,
    .admit = ps_h2_admit,
    .taken = ps_h2_taken,
    .send = ps_h2_send,
    .drained = ps_h2_drained,
    .finish = ps_h2_finish,
    .pull = ps_h2_pull,
    .go_away = ps_h2_go_away,
    .greeted = ps_h2_greeted,
    .done = ps_h2_done,
    .calls = ps_h2_calls,
    .held = ps_h2_held,
};
