/* POP_MESSAGE that finds messages, when the tables say all of it: an unfiltered request of a group
 * that is known, and has been at every queue of the topic. What is filtered, ordered, new, waits,
 * finds something in a retry topic or is refused is the broker's, which walks the queues by the
 * same rules (broker/services/pop/batches.py). docs/internals/pop.md#the-pop; upstream
 * PopMessageProcessor. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "remoting/pops.h"

#define LATE_MS 500           /* a request that is so late is not served: its client has given up */
#define POLL_MAX_MS (1 << 30) /* sums of times must not overflow */
#define TIME_MAX_MS (INT64_C(1) << 53)
#define RETRY "%RETRY%"
#define NAME_ROOM (2 * PS_TOPIC_MAX + 16)
#define ELEMENT_MAX 64 /* bytes that an element of the two lists takes, beside its offsets */
#define OFFSET_MAX 24

typedef struct request {
    ps_slice group, topic;
    int64_t queue_id, most, invisible_ms, born_ms, poll_ms;
} request;

typedef struct taken { /* a batch of one queue */
    int32_t queue_id;
    int64_t start;
    ps_batch *batch;
    ps_batch_info info;
} taken;

typedef struct walk {
    ps_core *c;
    const request *r;
    ps_pair *pair;
    ps_topic_entry *topic;
    int64_t pop_ms;
    int32_t revive_queue, count, messages;
    int64_t bytes, rest;
    bool stopped; /* no check point can be kept: nothing more is taken */
    taken all[PS_POPPED_MAX];
} walk;

/* ---- the request ---- */

/* The filter takes every message, and the group is not ordered. */
static bool is_plain(const ps_command *command) {
    ps_slice kind = ps_command_field(command, "expType"), text = ps_command_field(command, "exp");
    ps_slice order = ps_command_field(command, "order");
    return (kind.len == 0 || ps_slice_is(kind, "TAG")) &&
           (text.len == 0 || ps_slice_is(text, "*")) &&
           (order.len == 0 || ps_slice_is(order, "false"));
}

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = INT64_MIN};
    for (int32_t i = 0; i < command->field_count; i++) {
        const ps_field *f = &command->fields[i];
        ps_slice *text = ps_slice_is(f->name, "consumerGroup") ? &r->group
                         : ps_slice_is(f->name, "topic")       ? &r->topic
                                                               : NULL;
        int64_t *number = ps_slice_is(f->name, "queueId")         ? &r->queue_id
                          : ps_slice_is(f->name, "maxMsgNums")    ? &r->most
                          : ps_slice_is(f->name, "invisibleTime") ? &r->invisible_ms
                          : ps_slice_is(f->name, "bornTime")      ? &r->born_ms
                          : ps_slice_is(f->name, "pollTime")      ? &r->poll_ms
                                                                  : NULL;
        if (text != NULL) *text = f->value;
        if (number != NULL && !ps_slice_number(f->value, number)) return false;
    }
    return r->group.len > 0 && r->topic.len > 0 && is_plain(command);
}

static bool is_allowed(const ps_pop_rules *rules, const request *r) {
    int64_t now = ps_now_ms(), born = r->born_ms != 0 ? r->born_ms : now;
    const int64_t retry_len = (int64_t)strlen(RETRY);
    return r->most >= 1 && r->most <= PS_POPPED_MAX && r->invisible_ms >= 1 &&
           r->invisible_ms < rules->invisible_max_ms && born >= 0 && born < TIME_MAX_MS &&
           r->poll_ms >= 0 && r->poll_ms < POLL_MAX_MS && now - born - r->poll_ms <= LATE_MS &&
           retry_len + r->group.len + 1 + r->topic.len <= rules->name_max &&
           (r->topic.len < retry_len || memcmp(r->topic.data, RETRY, (size_t)retry_len) != 0);
}

/* ---- looking, before anything is taken ---- */

/* Whether the group knows where to go on in that queue; *rest: messages that are there. */
static bool is_known(ps_core *c, ps_pair *pair, const ps_topic_entry *t, int32_t queue_id,
                     int64_t *rest) {
    int64_t low, high;
    const ps_mark *m = ps_pair_mark(pair, queue_id, false);
    if (m == NULL || m->mk_offset < 0 || m->mk_reset >= 0) return false;
    ps_queue_range(c->co_store, t->te_topic, queue_id, &low, &high);
    *rest = high - m->mk_offset;
    return m->mk_offset >= low && m->mk_offset <= high;
}

/* Whether nothing comes from the retry topic whose name has this sign. */
static bool is_retry_empty(ps_core *c, const request *r, char sign) {
    uint8_t name[NAME_ROOM];
    int32_t len = (int32_t)strlen(RETRY);
    memcpy(name, RETRY, (size_t)len);
    memcpy(name + len, r->group.data, (size_t)r->group.len);
    len += r->group.len;
    name[len++] = (uint8_t)sign;
    memcpy(name + len, r->topic.data, (size_t)r->topic.len);
    len += r->topic.len;
    const ps_topic_entry *t = ps_core_find_topic(c, name, len);
    if (t == NULL || !t->te_live) return true;
    ps_pair *pair = ps_core_find_pair(c, r->group.data, r->group.len, name, len);
    int64_t rest;
    if (pair == NULL) return false;
    for (int32_t q = 0; q < t->te_read_queues; q++)
        if (!is_known(c, pair, t, q, &rest) || rest > 0) return false;
    return true;
}

/* Whether there is something to take, and nothing that the broker has to decide. */
static bool is_ours(const walk *w) {
    int64_t rest = 0, all = 0;
    int32_t from = w->r->queue_id < 0 ? 0 : (int32_t)w->r->queue_id;
    int32_t to = w->r->queue_id < 0 ? w->topic->te_read_queues : from + 1;
    for (int32_t q = from; q < to; q++) {
        if (!is_known(w->c, w->pair, w->topic, q, &rest)) return false;
        all += rest;
    }
    const ps_pop_rules *rules = &w->c->co_pops->po_rules;
    return all > 0 && (!rules->retry_v1 || is_retry_empty(w->c, w->r, '_')) &&
           (!rules->retry_v2 || is_retry_empty(w->c, w->r, '+'));
}

/* ---- taking ---- */

/* Its check point is in the log before anything is handed out. */
static bool keep_check_point(walk *w, const taken *t) {
    ps_popped_row row = {.key = {.topic = w->topic->te_name,
                                 .group = w->pair->pr_names,
                                 .topic_len = w->topic->te_len,
                                 .group_len = w->pair->pr_group_len,
                                 .queue_id = t->queue_id,
                                 .start = t->start,
                                 .pop_ms = w->pop_ms},
                         .revive_queue = w->revive_queue,
                         .count = t->info.count,
                         .invisible_ms = w->r->invisible_ms,
                         .due_ms = w->pop_ms + w->r->invisible_ms};
    int64_t end;
    for (int32_t i = 0; i < t->info.count; i++) row.offsets[i] = t->info.views[i].queue_offset;
    return ps_core_popped_count(w->c) < w->c->co_pops->po_rules.open_max &&
           ps_core_popped_open(w->c, &row, &end, NULL) == 0;
}

static void take_from(walk *w, int32_t queue_id) {
    const ps_pop_rules *rules = &w->c->co_pops->po_rules;
    const ps_mark *m = ps_pair_mark(w->pair, queue_id, false);
    int64_t low, high, need = w->r->most - w->messages;
    taken *t = &w->all[w->count];
    *t = (taken){.queue_id = queue_id, .start = m->mk_offset};
    ps_queue_range(w->c->co_store, w->topic->te_topic, queue_id, &low, &high);
    bool over = rules->in_flight_max >= 0 && m->mk_in_flight > rules->in_flight_max;
    if (w->stopped || over || need <= 0 || w->bytes >= rules->bytes_max || high <= t->start) {
        w->rest += high - t->start;
        return;
    }
    const ps_read_options o = {.max_messages = (int32_t)need, .transfer_limits = 1};
    t->batch = ps_read(w->c->co_store, w->topic->te_topic, queue_id, t->start, &o, NULL);
    if (t->batch != NULL) ps_batch_get(t->batch, &t->info);
    if (t->batch == NULL || t->info.count == 0 || !keep_check_point(w, t)) {
        w->stopped = w->stopped || t->batch == NULL || t->info.count > 0;
        w->rest += high - t->start;
        ps_batch_free(t->batch);
        return;
    }
    ps_pair_commit(w->pair, queue_id, t->info.next_offset);
    w->rest += t->info.max_offset - t->info.next_offset;
    w->messages += t->info.count;
    w->bytes += t->info.bytes;
    w->count++;
}

/* ---- the answer ---- */

static uint8_t *put_number(uint8_t *to, int64_t value) {
    char number[24];
    ps_slice text = ps_slice_of_number(value, number);
    memcpy(to, text.data, (size_t)text.len);
    return to + text.len;
}

/* What both lists begin an element with: the kind of the topic, which is its own, and the queue. */
static uint8_t *put_place(uint8_t *to, const taken *t, bool first) {
    if (!first) *to++ = ';';
    *to++ = '0';
    *to++ = ' ';
    to = put_number(to, t->queue_id);
    *to++ = ' ';
    return to;
}

/* startOffsetInfo and msgOffsetInfo. False: no memory. */
static bool put_lists(walk *w, ps_slice *starts, ps_slice *offsets) {
    ps_buffer *b = &w->c->co_pops->po_text;
    b->len = 0;
    uint8_t *to = ps_buffer_room(b, PS_POPPED_MAX * (2 * ELEMENT_MAX + OFFSET_MAX));
    if (to == NULL) return false;
    starts->data = to;
    for (int32_t i = 0; i < w->count; i++)
        to = put_number(put_place(to, &w->all[i], i == 0), w->all[i].start);
    starts->len = (int32_t)(to - starts->data);
    offsets->data = to;
    for (int32_t i = 0; i < w->count; i++) {
        to = put_place(to, &w->all[i], i == 0);
        for (int32_t k = 0; k < w->all[i].info.count; k++) {
            if (k > 0) *to++ = ',';
            to = put_number(to, w->all[i].info.views[k].queue_offset);
        }
    }
    offsets->len = (int32_t)(to - offsets->data);
    return true;
}

static int answer(walk *w, const ps_command *command) {
    ps_core *c = w->c;
    char numbers[4][24];
    ps_command reply;
    ps_slice starts, offsets;
    int64_t from = c->co_out.len;
    if (!put_lists(w, &starts, &offsets)) return PS_E_NO_MEMORY;
    const ps_field fields[] = {
        {ps_slice_of("popTime"), ps_slice_of_number(w->pop_ms, numbers[0])},
        {ps_slice_of("invisibleTime"), ps_slice_of_number(w->r->invisible_ms, numbers[1])},
        {ps_slice_of("reviveQid"), ps_slice_of_number(w->revive_queue, numbers[2])},
        {ps_slice_of("restNum"), ps_slice_of_number(w->rest, numbers[3])},
        {ps_slice_of("startOffsetInfo"), starts},
        {ps_slice_of("msgOffsetInfo"), offsets}};
    reply.serialize = command->serialize;
    reply.code = PS_CODE_SUCCESS;
    reply.opaque = command->opaque;
    reply.remark = ps_slice_of("FOUND");
    reply.field_count = (int32_t)(sizeof fields / sizeof *fields);
    memcpy(reply.fields, fields, sizeof fields);
    int code = ps_core_answer(c, &reply, w->bytes);
    for (int32_t i = 0; i < w->count && code == 0; i++)
        code = ps_core_append_records(c, &w->all[i].info);
    if (code < 0) { /* half an answer would make the rest of the connection unreadable */
        c->co_out.len = from;
        return code;
    }
    w->pair->pr_gets += w->messages;
    w->pair->pr_bytes += w->bytes;
    c->co_totals.gets += w->messages;
    c->co_totals.get_bytes += w->bytes;
    return 1;
}

static int serve(walk *w, const ps_command *command) {
    ps_pops *x = w->c->co_pops;
    const request *r = w->r;
    int32_t queues = w->topic->te_read_queues, first = 0, all = 1;
    int64_t due = ps_core_popped_due(w->c);
    if (r->queue_id < 0) {
        all = queues;
        first = (int32_t)(ps_core_random(w->c) % (uint64_t)queues);
    } else {
        first = (int32_t)r->queue_id;
    }
    w->pop_ms = ps_timer_now(w->c->co_store);
    w->revive_queue = (int32_t)(++x->po_pops % x->po_rules.revive_queues);
    for (int32_t i = 0; i < all; i++) take_from(w, (first + i) % queues);
    int code = w->count > 0 ? answer(w, command) : 0;
    for (int32_t i = 0; i < w->count; i++) ps_batch_free(w->all[i].batch);
    int64_t ends = w->pop_ms + r->invisible_ms;
    if (w->count > 0 && (due < 0 || ends < due)) w->c->co_pop_due = ends;
    return code;
}

int ps_core_pop(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    const ps_pops *x = c->co_pops;
    request r;
    if (x == NULL || x->po_revive == NULL || !x->po_rules.on || c->co_store->st_conf.sync_flush ||
        (command->flag & PS_FLAG_ONEWAY) || !read_request(command, &r) ||
        !is_allowed(&x->po_rules, &r))
        return 0;
    walk w;
    memset(&w, 0, offsetof(walk, all));
    w.c = c;
    w.r = &r;
    w.pair = ps_core_find_pair(c, r.group.data, r.group.len, r.topic.data, r.topic.len);
    w.topic = ps_core_find_topic(c, r.topic.data, r.topic.len);
    if (w.pair == NULL || w.pair->pr_flags == 0 || w.topic == NULL || !w.topic->te_live ||
        !(w.topic->te_perm & PS_PERM_READ) || r.queue_id < -1 ||
        r.queue_id >= w.topic->te_read_queues || !is_ours(&w))
        return 0;
    return serve(&w, command);
}

int ps_core_pop_rules(ps_core *c, const ps_pop_rules *rules, ps_error *e) {
    ps_pops *x = ps_pops_of(c);
    if (rules->revive_queues < 1 || rules->name_max > PS_TOPIC_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "rules of POP that cannot be");
    if (x == NULL) return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for POP");
    x->po_rules = *rules;
    return 0;
}
