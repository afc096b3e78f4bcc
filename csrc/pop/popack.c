/* ACK_MESSAGE of one message, when the tables say all of it; every refusal is the broker's.
 * docs/internals/pop.md#acknowledging; upstream AckMessageProcessor. */
#include <string.h>

#include "format/handle.h"
#include "tables/access.h"
#include "core/lock.h"
#include "pop/pop.h"
#include "sends/sends.h"
#include "tables/tables.h"

bool ps_ack_read(const ps_command *command, ps_ack_request *r) {
    *r = (ps_ack_request){.queue_id = -1, .offset = -1};
    const ps_member members[] = {{"consumerGroup", &r->group, NULL},
                                 {"topic", &r->topic, NULL},
                                 {"extraInfo", &r->handle, NULL},
                                 {"liteTopic", &r->lite, NULL},
                                 {"queueId", NULL, &r->queue_id},
                                 {"offset", NULL, &r->offset}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0 && r->handle.len > 0 && r->queue_id >= 0 &&
           r->offset >= 0;
}

/* Whether records of acknowledgements can be put. Timers may be off. */
static bool can_put(const ps_core *c) {
    return ps_pop_can_put(c) && c->co_store->st_timer_rules.on;
}

/* Whether the topic holds that message, or held it. */
static bool is_there(ps_core *c, const ps_ack_request *r) {
    const ps_topic_entry *t = ps_core_find_topic(c, r->topic.data, r->topic.len);
    int64_t low, high;
    return t != NULL && r->queue_id < t->te_read_queues &&
           ps_queue_span(c->co_store, t->te_topic, (int32_t)r->queue_id, &low, &high) == 0 &&
           r->offset >= low && r->offset <= high;
}

static ps_check_point_key key_of(const ps_ack_request *r, const ps_handle *h) {
    return (ps_check_point_key){.topic = (const char *)r->topic.data,
                                .group = (const char *)r->group.data,
                                .topic_len = r->topic.len,
                                .group_len = r->group.len,
                                .queue_id = (int32_t)r->queue_id,
                                .start = h->start,
                                .pop_ms = h->pop_ms};
}

int ps_ack_answer(ps_conn *n, const ps_command *command, int64_t end) {
    const ps_answer a = {
        .serialize = command->serialize, .opaque = command->opaque, .end = end, .bare = true};
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    int code = ps_sent_answer(n, &a, end > 0, false);
    return code < 0 ? code : 1;
}

int ps_core_ack(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    ps_handle h;
    ps_ack_request r;
    int64_t end;
    if (!can_put(c) || !ps_ack_read(command, &r) || r.lite.len > 0 ||
        !ps_handle_read((const char *)r.handle.data, r.handle.len, &h) || !is_there(c, &r))
        return 0;
    const ps_check_point_key key = key_of(&r, &h);
    if (h.revive_queue == PS_ORDER_QUEUE) {
        int what = ps_core_order_ack(c, &key, &r.offset, 1);
        /* By the place in the log the broker finds the lite topic that an old client leaves out. */
        return what == PS_ORDER_UNKNOWN || (what == PS_ORDER_STALE && h.physical >= 0)
                   ? 0
                   : ps_ack_answer(n, command, ps_core_order_end(c));
    }
    if (ps_core_check_point_ack(c, &key, &r.offset, 1, &end, NULL) < 0) return 0;
    return ps_ack_answer(n, command, end);
}

/* ---- acknowledgements of gRPC clients ---- */

/* What one handle of the call acknowledges; it may be a message of the group's retry topic, whose
 * name goes to `name`. False: there is no such topic. */
static bool request_of(const ps_ack_request *call, const ps_handle *h, char name[PS_RETRY_ROOM],
                       ps_ack_request *r) {
    *r = (ps_ack_request){.group = call->group, .topic = call->topic, .queue_id = h->queue,
                          .offset = h->offset};
    if (h->retry == '0') return true;
    r->topic.data = (const uint8_t *)name;
    r->topic.len = ps_retry_topic(call->group, call->topic, h->retry == '2', name);
    return r->topic.len <= PS_TOPIC_MAX;
}

static bool is_open(ps_core *c, const ps_ack_request *r, const ps_handle *h) {
    if (h->queue > PS_QUEUE_ID_MAX || h->pop_ms + h->invisible_ms <= ps_now_ms() ||
        !is_there(c, r))
        return false;
    ps_check_point_key key = key_of(r, h);
    if (h->revive_queue == PS_ORDER_QUEUE) return ps_order_has(c, &key, r->offset);
    const ps_check_point *p = ps_check_point_of(c, &key);
    return p != NULL && ps_check_point_bits(p, &r->offset, 1) != 0;
}

int ps_conn_ack(ps_conn *n, const ps_proof *proof, const char *group, int32_t group_len,
                const char *topic, int32_t topic_len, const ps_handle *handles, int32_t count,
                int64_t *end) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    const ps_ack_request call = {.group = {(const uint8_t *)group, group_len},
                                 .topic = {(const uint8_t *)topic, topic_len}};
    char name[PS_RETRY_ROOM];
    ps_ack_request r;
    int64_t last;
    *end = 0;
    if (!ps_access_lets_call(n, proof, PS_REQUEST_ACK_MESSAGE, PS_REQUEST_PULL_MESSAGE, call.topic,
                             call.group) ||
        group_len > PS_TOPIC_MAX || topic_len > PS_TOPIC_MAX ||
        ps_conn_delegates(n, PS_REQUEST_ACK_MESSAGE) || !can_put(c))
        return 0;
    for (int32_t i = 0; i < count; i++)
        if (!request_of(&call, &handles[i], name, &r) || !is_open(c, &r, &handles[i])) return 0;
    for (int32_t i = 0; i < count; i++) {
        request_of(&call, &handles[i], name, &r);
        ps_check_point_key key = key_of(&r, &handles[i]);
        if (handles[i].revive_queue == PS_ORDER_QUEUE) {
            ps_core_order_ack(c, &key, &r.offset, 1);
            last = ps_core_order_end(c);
        } else if (ps_core_check_point_ack(c, &key, &r.offset, 1, &last, NULL) < 0) {
            return 0;
        }
        if (last > *end) *end = last;
    }
    return 1;
}
