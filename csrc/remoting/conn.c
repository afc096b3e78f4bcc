/* The core itself, its connections, and how bytes pass through them: a read buffer is cut into
 * frames, each is answered here or passed to Python. Connections that have no part of a frame left
 * over, which is almost all of them at any time, share one read buffer: ten thousand idle ones cost
 * no memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/grow.h"
#include "base/threads.h"
#include "format/property.h"
#include "tables/access.h"
#include "transactions/halves.h"
#include "sends/dedup.h"
#include "lite/lite.h"
#include "pop/poporder.h"
#include "core/lock.h"
#include "remoting/requests.h"
#include "sends/sends.h"
#include "tables/heartbeats.h"
#include "tables/lags.h"
#include "tables/lightrows.h"
#include "tables/tables.h"
#include "waits/coldpull.h"

#define KEEP_ROOM (4 << 20) /* a larger output buffer goes back to the system */
/* So many bytes of answers, and the rest of what was read waits: a small pull can ask for much. */
#define OUT_ENOUGH (1 << 20)
#define LOOK 8           /* frames between two looks at the clock */
#define FRAMES_ENOUGH 64 /* to hand on, where the time of a call is limited; framer.py */

/* ---- the core ---- */

static bool encode_extra(ps_core_settings *s, const ps_core_conf *conf) {
    size_t room = strlen(conf->cluster) + strlen(conf->region) + 64;
    s->se_extra = malloc(room);
    s->se_region = strdup(conf->region);
    if (s->se_extra == NULL || s->se_region == NULL) return false;
    s->se_extra_len = snprintf(s->se_extra, room,
                               PS_PROPERTY("MSG_REGION", "%s") PS_PROPERTY("TRACE_ON", "%s")
                                   PS_PROPERTY("CLUSTER", "%s"),
                               conf->region, conf->trace_on ? "true" : "false", conf->cluster);
    return true;
}

ps_core *ps_core_new(ps_store *store, const ps_core_conf *conf, ps_error *e) {
    ps_core *c = calloc(1, sizeof *c);
    if (c == NULL) {
        ps_no_memory(e, NULL, "no memory for the core of the broker");
        return NULL;
    }
    ps_core_settings *s = &c->co_settings;
    ps_core_watched *w = &c->co_watched;
    c->co_store = ps_store_ref(store);
    s->se_trace_on = conf->trace_on != 0;
    s->se_frame_max = conf->frame_max;
    s->se_long_polling = conf->long_polling != 0;
    s->se_short_polling_ms = conf->short_polling_ms;
    s->se_parked_max = conf->parked_max;
    c->co_tables.tc_marks.ms_max = conf->offsets_max;
    c->co_tables.tc_marks.ms_changed_end = &c->co_tables.tc_marks.ms_changed;
    s->se_slave_reads = conf->slave_reads != 0;
    s->se_slave = conf->slave != 0;
    atomic_init(&c->co_delegated.dg_leads_until, INT64_MAX);
    uint64_t random = (conf->seed ? conf->seed : (uint64_t)ps_now_ms()) * 0x9E3779B97F4A7C15u | 1;
    c->co_parking.pg_ready_end = &c->co_parking.pg_ready;
    c->co_event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ps_waits_init(&c->co_late.la_waits, &store->st_safe, c->co_event_fd);
    bool made = ps_core_lock_make(c, random);
    s->se_broker = strdup(conf->broker != NULL ? conf->broker : "");
    made = made && encode_extra(s, conf) && s->se_broker != NULL;
    if (c->co_event_fd < 0)
        ps_fail(e, ps_errno_code(errno), errno, -1, NULL, "no eventfd");
    else if (!made)
        ps_no_memory(e, NULL, "no memory for the core of the broker");
    else
        w->wq_schedule =
            ps_topic_open(store, PS_SCHEDULE_TOPIC, (int32_t)strlen(PS_SCHEDULE_TOPIC), 1, e);
    if (w->wq_schedule != NULL)
        w->wq_timer = ps_topic_open(store, PS_TIMER_TOPIC, (int32_t)strlen(PS_TIMER_TOPIC), 1, e);
    if (w->wq_timer == NULL || ps_tx_make(c, e) < 0) {
        ps_core_free(c);
        return NULL;
    }
    ps_dispatch_listen(store, c->co_event_fd);
    return c;
}

static void free_tables(ps_core *c) {
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        free(t->te_tx);
        ps_inflows_free(t);
    }
    ps_chains_free(&c->co_tables.tc_topics, true);
    ps_lag_free(c);
    for (ps_pair *p = ps_pairs_each(c, NULL), *next; p != NULL; p = next) {
        next = ps_pairs_each(c, p);
        ps_filter_unref(p->pr_filter);
        ps_filter_unref(p->pr_own);
        free(p->pr_marks);
        free(p);
    }
    ps_chains_free(&c->co_tables.tc_pairs, false);
    ps_light_offsets_free(c);
    ps_buffer_free(&c->co_counters.cc_free_slots);
}

void ps_core_free(ps_core *c) {
    if (c == NULL) return;
    ps_dispatch_listen(c->co_store, -1);
    ps_deferred_drop_all(c);
    ps_cold_free(c);
    if (c->co_event_fd >= 0) close(c->co_event_fd);
    free_tables(c);
    ps_tx_free(c);
    ps_dedup_free(c);
    ps_lite_free(c);
    ps_orders_free(c);
    ps_pop_state_free(c->co_pop);
    ps_access_free(c->co_access);
    ps_core_lock_free(c);
    free(c->co_settings.se_broker);
    free(c->co_parking.pg_heap);
    free(c->co_settings.se_extra);
    free(c->co_settings.se_region);
    ps_store_unref(c->co_store);
    free(c);
}

int ps_core_event_fd(ps_core *c) {
    return c->co_event_fd;
}

/* ---- connections ---- */

ps_conn *ps_conn_new(ps_core *c, int64_t id, const uint8_t *host, int32_t host_len, ps_error *e) {
    PS_CORE_HELD(c);
    ps_conn *n = host_len == 8 || host_len == 20 ? calloc(1, sizeof *n) : NULL;
    if (n == NULL) {
        ps_fail(e, host_len == 8 || host_len == 20 ? PS_E_NO_MEMORY : PS_E_ARGUMENT, 0, -1, NULL,
                "no connection for a host of %d bytes", host_len);
        return NULL;
    }
    n->cn_core = c;
    n->cn_id = id;
    memcpy(n->cn_host, host, (size_t)host_len);
    n->cn_host_len = host_len;
    return n;
}

int64_t ps_conn_id(const ps_conn *n) {
    return n->cn_id;
}

void ps_conn_free(ps_conn *n) {
    if (n == NULL) return;
    PS_CORE_HELD(n->cn_core);
    ps_parked_drop_all(n);
    ps_buffer_free(&n->cn_in);
    free(n);
}

void ps_conn_end_waits(ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    ps_parked_drop_all(n);
}

/* Bytes that were consumed are let go only now: delegated frames pointed into them. */
static void drop_consumed(ps_conn *n) {
    int64_t left = n->cn_in.len - n->cn_from;
    if (left > 0 && n->cn_from > 0)
        memmove(n->cn_in.data, n->cn_in.data + n->cn_from, (size_t)left);
    n->cn_in.len = left;
    n->cn_from = 0;
    if (left == 0) ps_buffer_free(&n->cn_in);
}

int64_t ps_core_room(ps_core *c, uint8_t **at) {
    *at = ps_mine(c)->ca_in.data;
    return PS_READ_ROOM;
}

int64_t ps_conn_room(ps_conn *n, uint8_t **at, ps_error *e) {
    PS_CORE_SHARED(n->cn_core);
    drop_consumed(n);
    if (n->cn_in.len == 0) return ps_core_room(n->cn_core, at);
    /* Doubled as bytes come, so that a false length reserves nothing. */
    int64_t more = n->cn_wanted - n->cn_in.len;
    if (more > n->cn_in.len + PS_READ_ROOM) more = n->cn_in.len + PS_READ_ROOM;
    if (more < PS_READ_ROOM) more = PS_READ_ROOM;
    *at = ps_buffer_room(&n->cn_in, more);
    if (*at == NULL)
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for a frame of %lld bytes",
                       (long long)n->cn_wanted);
    return n->cn_in.room - n->cn_in.len;
}

static void begin_step(ps_core *c) {
    ps_call *call = ps_mine(c);
    call->ca_send.sd_frame = NULL;
    if (call->ca_answer.an_out.room > KEEP_ROOM) ps_buffer_free(&call->ca_answer.an_out);
    call->ca_answer.an_out.len = 0;
    if (call->ca_answer.an_piece_batches.len > 0) ps_core_written(c);
    call->ca_frames.fs_count = 0;
    call->ca_work.wk_put = call->ca_work.wk_parked_one = call->ca_work.wk_more = false;
    call->ca_pop.cp_due_ms = 0;
    ps_times_begin(c);
}

/* Held pulls are told of what was just put before the dispatcher's thread gets to it.
 * While its eventfd is away nothing is lost: the list is looked at after it is back. */
static bool look_for_news(ps_core *c) {
    if (c->co_parking.pg_count == 0) return false;
    ps_be_alone(c);
    if (ps_mine(c)->ca_work.wk_put) {
        ps_arrivals_to(&c->co_store->st_arrivals, -1);
        ps_dispatch_catch_up(c->co_store, NULL);
        ps_arrivals_to(&c->co_store->st_arrivals, c->co_event_fd);
    }
    return c->co_parking.pg_ready != NULL ||
           atomic_load(&c->co_store->st_arrivals.ar_list) != NULL || ps_lite_has_news(c);
}

static int64_t look_in(const ps_core *c) {
    return ps_sooner(ps_parked_deadline_in(c), ps_lite_due_in(c));
}

static void finish_step(ps_conn *n, ps_step *out) {
    ps_core *c = n->cn_core;
    const ps_call *call = ps_mine(c);
    ps_tx_finish_call(c);
    *out = (ps_step){.frame_count = call->ca_frames.fs_count,
                     .frames = call->ca_frames.fs_first,
                     .out = call->ca_answer.an_out.data,
                     .out_len = call->ca_answer.an_out.len,
                     .pieces = (const ps_piece *)call->ca_answer.an_pieces.data,
                     .piece_count = call->ca_answer.an_pieces.len / (int64_t)sizeof(ps_piece),
                     .conn_id = n->cn_id,
                     .news = look_for_news(c),
                     .look_in_ms = call->ca_work.wk_parked_one ? look_in(c) : -1,
                     .pop_due_ms = call->ca_pop.cp_due_ms,
                     .more = call->ca_work.wk_more,
                     .part = n->cn_in.data != NULL};
    ps_deferred_begin(c, out);
    ps_times_end(c);
    out->rare = out->frame_count > 0 || out->wait != 0 || out->news ||
                out->look_in_ms >= 0 || out->pop_due_ms > 0 || out->more || out->part;
}

static int delegate_frame(ps_core *c, const uint8_t *data, int64_t len) {
    ps_call *call = ps_mine(c);
    if (!PS_GROW(call->ca_frames.fs_first, call->ca_frames.fs_room, call->ca_frames.fs_count + 1,
                 64))
        return PS_E_NO_MEMORY;
    call->ca_frames.fs_first[call->ca_frames.fs_count++] = (ps_frame){data, len};
    return 0;
}

static int serve_frame(ps_conn *n, const ps_command *request) {
    int lite = request->code == PS_REQUEST_ACK_MESSAGE ? ps_core_lite_ack(n, request) : 0;
    if (lite != 0) return lite;
    switch (request->code) {
    case PS_REQUEST_SEND_MESSAGE:
    case PS_REQUEST_SEND_MESSAGE_V2:
    case PS_REQUEST_SEND_BATCH_MESSAGE:
        return ps_core_send(n, request);
    case PS_REQUEST_PULL_MESSAGE:
    case PS_REQUEST_LITE_PULL_MESSAGE:
        return ps_core_pull(n, request);
    case PS_REQUEST_UPDATE_CONSUMER_OFFSET:
        return ps_core_update_offset(n, request);
    case PS_REQUEST_HEART_BEAT:
        return ps_core_heartbeat(n, request);
    case PS_REQUEST_END_TRANSACTION:
        return ps_core_end_transaction(n, request);
    case PS_REQUEST_POP_MESSAGE:
        return ps_core_pop(n, request);
    case PS_REQUEST_POP_LITE_MESSAGE:
        return ps_core_lite_pop(n, request, false, NULL);
    case PS_REQUEST_ACK_MESSAGE:
        return ps_core_ack(n, request);
    default:
        return 0;
    }
}

/* checked: a pop, or a request that asks for the news of messages, that the broker has found right;
 * *e says why it failed. */
static int serve_counted(ps_conn *n, const ps_command *request, bool checked, ps_error *e) {
    ps_core *c = n->cn_core;
    if (request->flag & PS_FLAG_RESPONSE) return 0;
    ps_call *call = ps_mine(c);
    call->ca_rpcs.rp_request = request->code;
    call->ca_rpcs.rp_answered = PS_CODE_SUCCESS;
    int served = !checked ? serve_frame(n, request)
                 : request->code == PS_REQUEST_POP_LITE_MESSAGE
                     ? ps_core_lite_pop(n, request, true, e)
                     : ps_core_pop_checked(n, request, e);
    if (served > 0 && call->ca_rpcs.rp_answered != PS_RPC_NONE)
        ps_rpc_answered(c, request->code, call->ca_rpcs.rp_answered,
                        request->flag & PS_FLAG_ONEWAY ? PS_RPC_ONEWAY : 0);
    return served;
}

void ps_core_leads_until(ps_core *c, int64_t until_ms) {
    PS_CORE_HELD(c);
    atomic_store_explicit(&c->co_delegated.dg_leads_until, until_ms, memory_order_relaxed);
}

/* Whether Python decides it unseen. A heartbeat is served here only if all of it, the signature
 * among it, is what Python has let in by the rules of now: heartbeats.c. */
static bool is_pythons(ps_conn *n, const ps_command *request) {
    ps_core *c = n->cn_core;
    if (ps_conn_delegates(n, request->code)) return true;
    return c->co_access != NULL && !n->cn_let_in && request->code != PS_REQUEST_HEART_BEAT &&
           !ps_access_granted(n, request);
}

/* Refuses a frame by its length, if nobody knows yet who sends it. */
static int check_first(ps_conn *n, const uint8_t *data, int64_t len, ps_error *e) {
    ps_core *c = n->cn_core;
    if (n->cn_known || c->co_limits.li_first_max == 0 || len < 4) return 0;
    int64_t total = (int64_t)(int32_t)be32_get(data) + 4;
    if (total <= c->co_limits.li_first_max) return 0;
    ps_be_alone(c);
    c->co_limits.li_first_refused++;
    return ps_fail(e, PS_E_FRAME, 0, -1, NULL,
                   "a frame of %lld bytes before any signed request was let in: %lld are allowed",
                   (long long)total, (long long)c->co_limits.li_first_max);
}

static bool is_over(const ps_core *c) {
    const ps_call *call = ps_mine(c);
    int64_t turn_ns = c->co_limits.li_turn_ns;
    return turn_ns > 0 && (call->ca_frames.fs_count >= FRAMES_ENOUGH ||
                           ps_monotonic_ns() - call->ca_work.wk_began_ns >= turn_ns);
}

/* Whether it may be served while others share the core. */
static bool is_shared(const ps_conn *n, int32_t code) {
    return (n->cn_core->co_access == NULL || n->cn_let_in) &&
           (code == PS_REQUEST_SEND_MESSAGE || code == PS_REQUEST_SEND_MESSAGE_V2 ||
            code == PS_REQUEST_SEND_BATCH_MESSAGE);
}

void ps_core_turn(ps_core *c, int64_t ns) {
    PS_CORE_HELD(c);
    c->co_limits.li_turn_ns = ns;
}

/* Serves the whole frames of [data, data + len), unless the answers become too many; *used says how
 * far it got. */
static int cut_frames(ps_conn *n, const uint8_t *data, int64_t len, int64_t *used, ps_error *e) {
    ps_core *c = n->cn_core;
    ps_call *call = ps_mine(c);
    ps_command request;
    int code = 0;
    uint32_t count = 0;
    *used = 0;
    while (*used < len && code == 0) {
        if (call->ca_answer.an_out.len + call->ca_answer.an_piece_bytes >= OUT_ENOUGH ||
            (++count % LOOK == 0 && is_over(c))) {
            call->ca_work.wk_more = true;
            break;
        }
        if ((code = check_first(n, data + *used, len - *used, e)) < 0) return code;
        int64_t took = ps_command_decode(data + *used, len - *used, c->co_settings.se_frame_max,
                                         call->ca_scratch, &request, &n->cn_wanted, e);
        if (took <= 0) return (int)took;
        if (!is_shared(n, request.code)) ps_be_alone(c);
        code = is_pythons(n, &request) ? 0 : serve_counted(n, &request, false, NULL);
        if (code == 0) code = delegate_frame(c, data + *used, took);
        if (code > 0) code = 0;
        *used += took;
    }
    return code;
}

/* Moves what is left of the shared buffer into the connection's own. */
static int keep_rest(ps_conn *n, const uint8_t *left, int64_t len, ps_error *e) {
    uint8_t *to = ps_buffer_room(&n->cn_in, len);
    if (to == NULL) return ps_no_memory(e, NULL, "no memory for part of a frame");
    memcpy(to, left, (size_t)len);
    n->cn_in.len = len;
    return 0;
}

int64_t ps_conn_unfinished(const ps_conn *n) {
    PS_CORE_SHARED(n->cn_core);
    return n->cn_in.room;
}

int ps_conn_received(ps_conn *n, int64_t len, ps_step *out, ps_error *e) {
    PS_CORE_SHARED(n->cn_core);
    ps_core *c = n->cn_core;
    ps_call *call = ps_mine(c);
    const uint8_t *read = call->ca_in.data;
    bool own = n->cn_in.len > 0;
    int64_t used;
    int code;
    begin_step(c);
    call->ca_answer.an_zerocopy = ps_caller_now != PS_CALLER_LOOP;
    if (own) {
        n->cn_in.len += len;
        code = cut_frames(n, n->cn_in.data + n->cn_from, n->cn_in.len - n->cn_from, &used, e);
        n->cn_from += used;
    } else {
        code = cut_frames(n, read, len, &used, e);
        if (code == 0 && used < len) code = keep_rest(n, read + used, len - used, e);
    }
    call->ca_answer.an_zerocopy = false;
    finish_step(n, out);
    return code;
}

int ps_conn_keep(ps_conn *n, int64_t len, ps_step *out, ps_error *e) {
    PS_CORE_SHARED(n->cn_core);
    ps_core *c = n->cn_core;
    int code = 0;
    begin_step(c);
    if (n->cn_in.len > 0)
        n->cn_in.len += len;
    else if (len > 0)
        code = keep_rest(n, ps_mine(c)->ca_in.data, len, e);
    ps_mine(c)->ca_work.wk_more = true;
    finish_step(n, out);
    return code;
}

/* One whole frame. checked: the broker has found it right. */
static int serve_frame_again(ps_conn *n, const uint8_t *frame, int64_t len, bool checked,
                             ps_step *out, ps_error *e) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    ps_command request;
    int64_t wanted;
    begin_step(c);
    int64_t took = ps_command_decode(frame, len, c->co_settings.se_frame_max,
                                     ps_mine(c)->ca_scratch, &request, &wanted, e);
    int code = took > 0 ? serve_counted(n, &request, checked, e) : (int)took;
    finish_step(n, out);
    return code;
}

int ps_conn_serve(ps_conn *n, const uint8_t *frame, int64_t len, ps_step *out) {
    return serve_frame_again(n, frame, len, false, out, NULL) > 0;
}

int ps_conn_serve_pop(ps_conn *n, const uint8_t *frame, int64_t len, ps_step *out, ps_error *e) {
    return serve_frame_again(n, frame, len, true, out, e);
}

int ps_conn_put(ps_conn *n, const ps_proof *proof, const ps_plain_put *put, ps_plain_place *out) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    ps_step step;
    const ps_slice topic = {(const uint8_t *)put->topic, put->topic_len};
    if (!ps_access_lets_call(n, proof, PS_REQUEST_SEND_MESSAGE_V2, PS_REQUEST_SEND_MESSAGE_V2,
                             topic, (ps_slice){0}) ||
        ps_conn_delegates(n, PS_REQUEST_SEND_MESSAGE_V2) ||
        put->body_len > c->co_settings.se_frame_max)
        return 0;
    begin_step(c);
    int stored = ps_core_put(n, put, out);
    finish_step(n, &step);
    if (step.news) ps_eventfd_tell(c->co_event_fd); /* whoever serves held pulls */
    return stored;
}

/* The half's topic is that of the request, as ps_core_end sees to: a grant for it is enough. */
int ps_conn_end(ps_conn *n, const ps_proof *proof, const ps_ending *end) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    ps_step step;
    if (ps_conn_delegates(n, PS_REQUEST_END_TRANSACTION) || end->topic.len == 0 ||
        !ps_access_lets_call(n, proof, PS_REQUEST_END_TRANSACTION, PS_REQUEST_END_TRANSACTION,
                             end->topic, (ps_slice){0}))
        return 0;
    begin_step(c);
    bool ended = ps_core_end(c, end, true);
    finish_step(n, &step);
    if (step.news) ps_eventfd_tell(c->co_event_fd); /* whoever serves held pulls */
    return ended;
}

int ps_conn_decide(ps_conn *n, const uint8_t *frame, int64_t len, const ps_decision *decision,
                   ps_sent *sent, ps_step *out, ps_error *e) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    const uint8_t *open = ps_mine(c)->ca_send.sd_frame;
    begin_step(c);
    ps_mine(c)->ca_send.sd_frame = open; /* nothing came between reading it and deciding it */
    int code = ps_core_decide(n, frame, len, decision, sent, e);
    const ps_call *call = ps_mine(c);
    if (code == 0 && call->ca_rpcs.rp_answered != PS_RPC_NONE)
        ps_rpc_answered(c, call->ca_rpcs.rp_request, call->ca_rpcs.rp_answered,
                        call->ca_send.sd_command->flag & PS_FLAG_ONEWAY ? PS_RPC_ONEWAY : 0);
    ps_mine(c)->ca_send.sd_frame = NULL;
    finish_step(n, out);
    return code;
}
