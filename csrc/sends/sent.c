/* Answers of sends: at once, or when the log is safe. docs/internals/wire.md#sending. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/threads.h"
#include "core/core.h"
#include "core/lock.h"
#include "sends/sends.h"
#include "waits/parked.h"

/* What a pop or an acknowledgement is told that is not on the disk: the same as by the broker. */
#define NOT_IN_TIME "the record was not synced in time"
#define NO_SLAVE_IN_TIME "too few slaves have the record in time"

/* ---- answers that wait for the safe position (log/safe.h) ---- */

typedef struct deferred_item {
    ps_answer answer; /* its pointers are set when it is given */
    int64_t at;       /* of the physical offsets, in numbers */
    int64_t texts_at; /* of UNIQ_KEY, remark, handle and frame, in bytes */
    int32_t request;  /* code of what is answered */
} deferred_item;

/* Answers of one step; without any, a wait of the broker's own. */
struct ps_deferred {
    ps_wait df_wait; /* first, so that a ps_wait * of it is a ps_deferred * */
    int64_t df_id, df_conn_id, df_end, df_began_ns, df_count;
    int64_t df_number; /* of ps_conn_wait */
    int32_t df_caller; /* whose call it was (lock.h) */
    ps_buffer df_items, df_offsets, df_texts;
};

static void free_deferred(ps_deferred *h) {
    if (h == NULL) return;
    ps_buffer_free(&h->df_items);
    ps_buffer_free(&h->df_offsets);
    ps_buffer_free(&h->df_texts);
    free(h);
}

static void drop_deferred(ps_wait *w) {
    free_deferred((ps_deferred *)w);
}

void ps_deferred_drop_all(ps_core *c) {
    ps_waits_drop(&c->co_late.la_waits, drop_deferred);
    for (int32_t i = 0; i < c->co_lock.lo_callers; i++)
        if (c->co_lock.lo_calls[i] != NULL) free_deferred(c->co_lock.lo_calls[i]->ca_deferred);
}

static ps_deferred *deferred_new(ps_core *c, int64_t conn_id) {
    ps_deferred *h = calloc(1, sizeof *h);
    if (h == NULL) return NULL;
    h->df_id = ++c->co_late.la_last;
    h->df_conn_id = conn_id;
    h->df_began_ns = ps_mine(c)->ca_work.wk_began_ns;
    h->df_caller = ps_caller_now;
    return h;
}

static void begin_wait(ps_core *c, ps_deferred *h, ps_step *out) {
    out->wait = h->df_id;
    ps_waits_add(&c->co_late.la_waits, &h->df_wait, h->df_end);
    out->look_in_ms = ps_core_deadline_in(c);
}

void ps_deferred_begin(ps_core *c, ps_step *out) {
    ps_call *call = ps_mine(c);
    if (call->ca_deferred != NULL) begin_wait(c, call->ca_deferred, out);
    call->ca_deferred = NULL;
}

int ps_core_wait(ps_core *c, int64_t position, ps_step *out) {
    PS_CORE_HELD(c);
    ps_deferred *h = deferred_new(c, -1);
    if (h == NULL) return PS_E_NO_MEMORY;
    *out = (ps_step){.conn_id = -1};
    h->df_end = position;
    begin_wait(c, h, out);
    return 0;
}

int ps_conn_wait(ps_conn *n, int64_t position, int64_t number, int64_t puts) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    ps_step step;
    if (!ps_safe_must_wait(&c->co_store->st_safe, position)) return 0;
    ps_deferred *h = deferred_new(c, n->cn_id);
    if (h == NULL) return PS_E_NO_MEMORY;
    h->df_end = position;
    h->df_number = number;
    h->df_count = puts;
    begin_wait(c, h, &step);
    /* Whoever serves held pulls learns of the deadline; later ones are after it. */
    if (c->co_late.la_waits.wa_count == 1) ps_eventfd_tell(c->co_event_fd);
    return 1;
}

int32_t ps_core_waiting(const ps_core *c) {
    PS_CORE_HELD((ps_core *)c);
    return c->co_late.la_waits.wa_count;
}

static bool defer_answer(ps_core *c, int64_t conn_id, const ps_answer *a) {
    ps_call *call = ps_mine(c);
    if (call->ca_deferred == NULL) call->ca_deferred = deferred_new(c, conn_id);
    ps_deferred *h = call->ca_deferred;
    if (h == NULL) return false;
    deferred_item item = {*a, h->df_offsets.len / (int64_t)sizeof(int64_t), h->df_texts.len,
                          ps_mine(c)->ca_rpcs.rp_request};
    if (!ps_buffer_add(&h->df_offsets, a->physical, a->count * (int64_t)sizeof(int64_t)) ||
        !ps_buffer_add(&h->df_texts, a->uniq.data, a->uniq.len) ||
        !ps_buffer_add(&h->df_texts, a->remark.data, a->remark.len) ||
        !ps_buffer_add(&h->df_texts, a->handle.data, a->handle.len) ||
        !ps_buffer_add(&h->df_texts, a->frame.data, a->frame.len) ||
        !ps_buffer_add(&h->df_items, &item, sizeof item))
        return false;
    if (a->end > h->df_end) h->df_end = a->end;
    ps_mine(c)->ca_rpcs.rp_answered = PS_RPC_NONE;
    return true;
}

/* ---- the answer ---- */

bool ps_sent_ids(ps_core *c, const ps_answer *a, ps_slice *out) {
    ps_buffer *b = &ps_mine(c)->ca_send.sd_props;
    const ps_conf *conf = &c->co_store->st_conf;
    char id[57];
    b->len = 0;
    for (int32_t i = 0; i < a->count; i++) {
        int len = ps_offset_msg_id(conf->store_host, conf->store_host_len, a->physical[i], id);
        if ((i > 0 && !ps_buffer_add(b, ",", 1)) || !ps_buffer_add(b, id, len)) return false;
    }
    *out = (ps_slice){b->data, (int32_t)b->len};
    return true;
}

static void encode_base64(const uint8_t *from, int64_t len, uint8_t *to) {
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (int64_t i = 0; i < len; i += 3, to += 4) {
        uint32_t bits = (uint32_t)from[i] << 16;
        if (i + 1 < len) bits |= (uint32_t)from[i + 1] << 8;
        if (i + 2 < len) bits |= from[i + 2];
        to[0] = (uint8_t)digits[bits >> 18];
        to[1] = (uint8_t)digits[bits >> 12 & 63];
        to[2] = i + 1 < len ? (uint8_t)digits[bits >> 6 & 63] : '=';
        to[3] = i + 2 < len ? (uint8_t)digits[bits & 63] : '=';
    }
}

bool ps_sent_handle(ps_core *c, ps_slice topic, int64_t out_ms, ps_slice uniq, ps_slice *out) {
    char number[24];
    ps_slice time = ps_slice_of_number(out_ms + 1, number);
    ps_slice broker = ps_slice_of(c->co_settings.se_broker);
    ps_buffer *b = &ps_mine(c)->ca_send.sd_handle;
    *out = (ps_slice){NULL, 0};
    if (uniq.len == 0 || PS_BEGINS(topic.data, topic.len, PS_RETRY_PREFIX)) return true;
    b->len = 0;
    const ps_slice words[] = {ps_slice_of("v1"), topic, broker, time, uniq};
    for (int i = 0; i < 5; i++)
        if ((i > 0 && !ps_buffer_add(b, " ", 1)) || !ps_buffer_add(b, words[i].data, words[i].len))
            return false;
    int64_t len = b->len, encoded = (len + 2) / 3 * 4;
    if (ps_buffer_room(b, encoded) == NULL) return false;
    encode_base64(b->data, len, b->data + len);
    *out = (ps_slice){b->data + len, (int32_t)encoded};
    return true;
}

/* The fields that stand in every answer: clients read them unasked. */
static void add_common(ps_core *c, ps_command *reply) {
    const ps_core_settings *s = &c->co_settings;
    reply->fields[reply->field_count++] =
        (ps_field){ps_slice_of("TRACE_ON"), ps_slice_of(s->se_trace_on ? "true" : "false")};
    reply->fields[reply->field_count++] =
        (ps_field){ps_slice_of("MSG_REGION"), ps_slice_of(s->se_region)};
}

static int encode_bare(ps_core *c, const ps_answer *a) {
    ps_command reply = {.serialize = a->serialize, .code = a->code, .opaque = a->opaque};
    ps_buffer *out = &ps_mine(c)->ca_answer.an_out;
    if (a->code == 0 && a->frame.data != NULL)
        return ps_buffer_add(out, a->frame.data, a->frame.len) ? 0 : PS_E_NO_MEMORY;
    if (a->code == PS_CODE_FLUSH_DISK_TIMEOUT) reply.remark = ps_slice_of(NOT_IN_TIME);
    if (a->code == PS_CODE_FLUSH_SLAVE_TIMEOUT) reply.remark = ps_slice_of(NO_SLAVE_IN_TIME);
    if (a->frame.data != NULL) { /* clients read these from every answer to a pop */
        static const char *const names[] = {"popTime", "invisibleTime", "reviveQid", "restNum"};
        for (; reply.field_count < (int32_t)(sizeof names / sizeof *names); reply.field_count++)
            reply.fields[reply.field_count] =
                (ps_field){ps_slice_of(names[reply.field_count]), ps_slice_of("0")};
    }
    return ps_core_answer(c, &reply, 0);
}

static int encode_answer(ps_core *c, const ps_answer *a) {
    char queue[24], offset[24];
    ps_slice ids;
    ps_command reply;
    if (a->bare) return encode_bare(c, a);
    if (!ps_sent_ids(c, a, &ids)) return PS_E_NO_MEMORY;
    reply.serialize = a->serialize;
    reply.code = a->code;
    reply.opaque = a->opaque;
    reply.remark = a->remark;
    reply.fields[0] = (ps_field){ps_slice_of("queueId"), ps_slice_of_number(a->queue_id, queue)};
    reply.fields[1] = (ps_field){ps_slice_of("transactionId"), a->uniq};
    reply.fields[2] = (ps_field){ps_slice_of("msgId"), ids};
    reply.field_count = 3;
    add_common(c, &reply);
    reply.fields[reply.field_count++] =
        (ps_field){ps_slice_of("queueOffset"), ps_slice_of_number(a->queue_offset, offset)};
    if (a->handle.len > 0)
        reply.fields[reply.field_count++] = (ps_field){ps_slice_of("recallHandle"), a->handle};
    return ps_core_answer(c, &reply, 0);
}

int ps_sent_refuse(ps_core *c, const ps_answer *a) {
    ps_command reply;
    reply.serialize = a->serialize;
    reply.code = a->code;
    reply.opaque = a->opaque;
    reply.remark = a->remark;
    reply.field_count = 0;
    add_common(c, &reply);
    return ps_core_answer(c, &reply, 0);
}

int ps_sent_answer(ps_conn *n, const ps_answer *a, bool wait, bool put) {
    ps_core *c = n->cn_core;
    if (!wait || !ps_safe_must_wait(&c->co_store->st_safe, a->end)) return encode_answer(c, a);
    ps_be_alone(c);
    if (!defer_answer(c, n->cn_id, a)) return PS_E_NO_MEMORY;
    if (put) { /* a repeat was put before */
        ps_mine(c)->ca_deferred->df_count += a->count;
        ps_mine(c)->ca_work.wk_puts_waiting += a->count;
    }
    return 0;
}

int ps_sent_frame(ps_conn *n, const ps_answer *a, int64_t from) {
    ps_core *c = n->cn_core;
    ps_buffer *out = &ps_mine(c)->ca_answer.an_out;
    ps_answer waits = *a;
    if (!ps_safe_must_wait(&c->co_store->st_safe, a->end)) return 0;
    waits.frame = (ps_slice){out->data + from, (int32_t)(out->len - from)};
    out->len = from;
    return defer_answer(c, n->cn_id, &waits) ? 0 : PS_E_NO_MEMORY;
}

/* The code of answers that stood for success before the wait. */
static int32_t code_of(int32_t outcome) {
    if (outcome == PS_FLUSH_DISK_TIMEOUT) return PS_CODE_FLUSH_DISK_TIMEOUT;
    if (outcome == PS_FLUSH_SLAVE_TIMEOUT) return PS_CODE_FLUSH_SLAVE_TIMEOUT;
    return outcome == 0 ? PS_CODE_SUCCESS : PS_CODE_SERVICE_NOT_AVAILABLE;
}

bool ps_deferred_next(ps_core *c, ps_step *out) {
    ps_deferred *h = (ps_deferred *)ps_waits_next(&c->co_late.la_waits);
    if (h == NULL) return false;
    const deferred_item *items = (const deferred_item *)h->df_items.data;
    int32_t code = code_of(h->df_wait.wt_outcome);
    ps_mine(c)->ca_answer.an_out.len = 0;
    for (size_t i = 0; i < (size_t)h->df_items.len / sizeof *items; i++) {
        ps_answer a = items[i].answer;
        const uint8_t *texts = h->df_texts.data + items[i].texts_at;
        a.physical = (const int64_t *)h->df_offsets.data + items[i].at;
        if (a.uniq.data != NULL) a.uniq.data = texts;
        if (a.remark.data != NULL) a.remark.data = texts + a.uniq.len;
        if (a.handle.data != NULL) a.handle.data = texts + a.uniq.len + a.remark.len;
        if (a.frame.data != NULL) a.frame.data = texts + a.uniq.len + a.remark.len + a.handle.len;
        if (a.code == 0) a.code = code;
        encode_answer(c, &a);
        ps_rpc_waited(c, items[i].request, a.code, 0, h->df_began_ns);
    }
    *out = (ps_step){.out = ps_mine(c)->ca_answer.an_out.data,
                     .out_len = ps_mine(c)->ca_answer.an_out.len,
                     .conn_id = h->df_conn_id,
                     .wait = h->df_id,
                     .number = h->df_number,
                     .by_loop = h->df_caller == PS_CALLER_LOOP,
                     .outcome = h->df_wait.wt_outcome};
    if (h->df_count > 0) ps_times_put(c, h->df_began_ns, h->df_count);
    free_deferred(h);
    return true;
}
