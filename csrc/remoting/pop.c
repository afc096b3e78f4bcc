/* POP_MESSAGE that finds messages, when the tables say that it may: its group is subscribed, and
 * not ordered. It is checked here, walked by popwalk.c and shown by popshow.c; what finds nothing,
 * is ordered or wrong is handed on, and the broker asks the same two.
 * docs/internals/pop.md#the-pop; upstream PopMessageProcessor. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "remoting/pops.h"
#include "remoting/guard.h"

#define LATE_MS 500           /* a request that is so late is not served: its client has given up */
#define POLL_MAX_MS (1 << 30) /* sums of times must not overflow */
#define TIME_MAX_MS (INT64_C(1) << 53)

typedef struct request {
    ps_slice group, topic, kind, filter, order;
    int64_t queue_id, most, invisible_ms, born_ms, poll_ms, mode;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = INT64_MIN};
    const ps_member members[] = {
        {"consumerGroup", &r->group, NULL}, {"topic", &r->topic, NULL},
        {"queueId", NULL, &r->queue_id},    {"maxMsgNums", NULL, &r->most},
        {"bornTime", NULL, &r->born_ms},    {"invisibleTime", NULL, &r->invisible_ms},
        {"pollTime", NULL, &r->poll_ms},    {"initMode", NULL, &r->mode},
        {"expType", &r->kind, NULL},        {"exp", &r->filter, NULL},
        {"order", &r->order, NULL}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0 &&
           (r->order.len == 0 || ps_slice_is(r->order, "false"));
}

static bool is_allowed(const ps_pop_rules *rules, const request *r) {
    int64_t now = ps_now_ms(), born = r->born_ms != 0 ? r->born_ms : now;
    const int64_t retry_len = (int64_t)sizeof PS_RETRY_PREFIX - 1;
    return r->most >= 1 && r->most <= PS_POPPED_MAX && r->invisible_ms >= 1 &&
           r->invisible_ms < rules->invisible_max_ms && born >= 0 && born < TIME_MAX_MS &&
           r->poll_ms >= 0 && r->poll_ms < POLL_MAX_MS && now - born - r->poll_ms <= LATE_MS &&
           retry_len + r->group.len + 1 + r->topic.len <= rules->name_max &&
           !PS_BEGINS(r->topic.data, r->topic.len, PS_RETRY_PREFIX);
}

/* An SQL92 filter that was checked before is known by its text; tags need no check. */
static bool read_filter(const ps_pair *pair, const request *r, ps_pop_ask *ask) {
    ask->sql = ps_slice_is(r->kind, "SQL92");
    if (!ask->sql && r->kind.len > 0 && !ps_slice_is(r->kind, "TAG")) return false;
    if (!ask->sql && (r->filter.len == 0 || ps_slice_is(r->filter, "*"))) return true;
    ask->filter = (const char *)r->filter.data;
    ask->filter_len = r->filter.len;
    return !ask->sql || ps_filter_is(pair->pr_own, r->filter.data, r->filter.len, true);
}

static int answer_pop(ps_conn *n, const ps_command *command, const ps_pop_found *found,
                      ps_slice topic) {
    ps_core *c = n->cn_core;
    char numbers[4][24];
    ps_command reply;
    ps_pop_shown shown;
    int64_t from = ps_mine(c)->co_out.len, size;
    if (ps_pop_lists(c, found, &shown) < 0) return PS_E_NO_MEMORY;
    size = ps_pop_records_len(c, found, topic.len);
    const ps_field fields[] = {
        {ps_slice_of("popTime"), ps_slice_of_number(found->pop_ms, numbers[0])},
        {ps_slice_of("invisibleTime"), ps_slice_of_number(found->invisible_ms, numbers[1])},
        {ps_slice_of("reviveQid"), ps_slice_of_number(found->revive_queue, numbers[2])},
        {ps_slice_of("restNum"), ps_slice_of_number(found->rest, numbers[3])},
        {ps_slice_of("startOffsetInfo"), {(const uint8_t *)shown.starts, shown.starts_len}},
        {ps_slice_of("msgOffsetInfo"), {(const uint8_t *)shown.offsets, shown.offsets_len}}};
    reply.serialize = command->serialize;
    reply.code = PS_CODE_SUCCESS;
    reply.opaque = command->opaque;
    reply.remark = ps_slice_of("FOUND");
    reply.field_count = (int32_t)(sizeof fields / sizeof *fields);
    memcpy(reply.fields, fields, sizeof fields);
    int code = size < 0 ? PS_E_NO_MEMORY : ps_core_answer(c, &reply, size);
    uint8_t *to = code == 0 ? ps_buffer_room(&ps_mine(c)->co_out, size) : NULL;
    if (to == NULL) { /* half an answer would make the rest of the connection unreadable */
        ps_mine(c)->co_out.len = from;
        return PS_E_NO_MEMORY;
    }
    ps_pop_records(c, found, (const char *)topic.data, topic.len, to);
    ps_mine(c)->co_out.len += size;
    const ps_answer a = {.serialize = command->serialize,
                         .opaque = command->opaque,
                         .end = found->end,
                         .bare = true};
    return ps_sent_frame(n, &a, from);
}

/* Takes what is there. False: there is nothing, or the tables do not say that it may. *due_ms: when
 * what was taken ends, if that is before all others; else 0. */
static bool find_popped(ps_core *c, const request *r, ps_pop_found *found, int64_t *due_ms) {
    const ps_pops *x = c->co_pops;
    if (x == NULL || x->po_revive == NULL || !x->po_rules.on || !is_allowed(&x->po_rules, r))
        return false;
    const ps_pair *pair =
        ps_core_find_pair(c, r->group.data, r->group.len, r->topic.data, r->topic.len);
    const ps_topic_entry *t = ps_core_find_topic(c, r->topic.data, r->topic.len);
    ps_pop_ask ask = {.topic = (const char *)r->topic.data,
                      .group = (const char *)r->group.data,
                      .topic_len = r->topic.len,
                      .group_len = r->group.len,
                      .most = (int32_t)r->most,
                      .from_min = r->mode == 0,
                      .invisible_ms = r->invisible_ms};
    if (pair == NULL || pair->pr_flags == 0 || t == NULL ||
        !(t->te_perm & PS_PERM_READ) || r->queue_id < -1 || r->queue_id >= t->te_read_queues ||
        !read_filter(pair, r, &ask))
        return false;
    ask.queue_id = (int32_t)r->queue_id;
    int64_t due = ps_core_popped_due(c), ends;
    if (ps_core_pop_walk(c, &ask, found, NULL) < 0 || found->count == 0) return false;
    ends = found->pop_ms + found->invisible_ms;
    *due_ms = due < 0 || ends < due ? ends : 0;
    return true;
}

int ps_core_pop(ps_conn *n, const ps_command *command) {
    request r;
    ps_pop_found found;
    int64_t due_ms;
    if ((command->flag & PS_FLAG_ONEWAY) || !read_request(command, &r) ||
        !find_popped(n->cn_core, &r, &found, &due_ms))
        return 0;
    int code = answer_pop(n, command, &found, r.topic);
    ps_pop_found_free(&found);
    if (due_ms > 0) ps_mine(n->cn_core)->co_pop_due = due_ms;
    return code < 0 ? code : 1;
}

int ps_conn_pop(ps_conn *n, const ps_plain_pop *p, ps_pop_found *found, int64_t *due_ms) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    const request r = {.group = {(const uint8_t *)p->group, p->group_len},
                       .topic = {(const uint8_t *)p->topic, p->topic_len},
                       .kind = ps_slice_of(p->sql ? "SQL92" : "TAG"),
                       .filter = {(const uint8_t *)p->filter, p->filter_len},
                       .queue_id = -1,
                       .most = p->most,
                       .invisible_ms = p->invisible_ms,
                       .mode = 1};
    return c->co_access == NULL && !((c->co_up | n->cn_up) & PS_UP_POPS) &&
           !ps_safe_must_wait(&c->co_store->st_safe, PS_SAFE_NEXT) &&
           find_popped(c, &r, found, due_ms);
}

int ps_core_pop_rules(ps_core *c, const ps_pop_rules *rules, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pops *x = ps_pops_of(c);
    if (rules->revive_queues < 1 || rules->name_max > PS_TOPIC_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "%d revive queues and names of %d bytes for POP: at least 1, and at most %d",
                       rules->revive_queues, rules->name_max, PS_TOPIC_MAX);
    if (x == NULL) return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for POP");
    x->po_rules = *rules;
    return 0;
}
