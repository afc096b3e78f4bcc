/* POP_MESSAGE: walked by popwalk.c, shown by popshow.c; what finds
 * nothing waits in popwait.c. A request that the tables do not know is delegated, and comes back
 * once the broker has found it right. So does each NOTIFICATION, which takes nothing.
 * docs/internals/pop.md#the-pop; upstream PopMessageProcessor,
 * NotificationProcessor. */
#include <stddef.h>
#include <string.h>

#include "pop/popwait.h"
#include "tables/access.h"
#include "core/lock.h"
#include "tables/tables.h"

#define LATE_MS 500           /* a request that is so late is not served: its client has given up */
#define POLL_MAX_MS (1 << 30) /* who asks for more waits so long */

typedef struct request {
    ps_slice group, topic, kind, filter, order, attempt;
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
        {"order", &r->order, NULL},         {"attemptId", &r->attempt, NULL}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0;
}

/* Whether the client may have given up by now. The ends of the type wrap around, as upstream's do,
 * and are not late. */
static bool is_late(const request *r) {
    uint64_t now = (uint64_t)ps_now_ms(), born = r->born_ms != 0 ? (uint64_t)r->born_ms : now;
    return (int64_t)(now - born - (uint64_t)r->poll_ms) > LATE_MS;
}

static bool is_allowed(const ps_pop_rules *rules, const request *r) {
    const int64_t retry_len = (int64_t)sizeof PS_RETRY_PREFIX - 1;
    bool numbers = r->most >= 1 && r->most <= PS_CHECK_POINT_MAX && r->invisible_ms >= 1 &&
                   r->invisible_ms < rules->invisible_max_ms;
    return numbers && (retry_len + r->group.len + 1 + r->topic.len <= rules->name_max ||
                       PS_BEGINS(r->topic.data, r->topic.len, PS_RETRY_PREFIX));
}

/* Tags need no check. */
static bool read_filter(const request *r, ps_pop_ask *ask) {
    ps_slice text = r->filter;
    ask->sql = ps_slice_is(r->kind, "SQL92");
    if (!ask->sql && r->kind.len > 0 && !ps_slice_is(r->kind, "TAG")) return false;
    while (!ask->sql && text.len > 0 && *text.data == ' ') text.data++, text.len--;
    while (!ask->sql && text.len > 0 && text.data[text.len - 1] == ' ') text.len--;
    if (!ask->sql && (text.len == 0 || ps_slice_is(text, "*"))) return true;
    ask->filter = (const char *)r->filter.data;
    ask->filter_len = r->filter.len;
    return true;
}

/* What a request asks for. False: the broker looks at it; checked: it has, and found it right. Of
 * others the group is subscribed, and an SQL92 filter is known, since it was checked before. */
static bool read_ask(ps_core *c, const request *r, bool checked, ps_pop_ask *ask) {
    const ps_pop_state *x = c->co_pop;
    *ask = (ps_pop_ask){.topic = (const char *)r->topic.data,
                        .group = (const char *)r->group.data,
                        .topic_len = r->topic.len,
                        .group_len = r->group.len,
                        .queue_id = r->queue_id < 0 ? -1 : (int32_t)r->queue_id,
                        .most = (int32_t)r->most,
                        .from_min = r->mode == 0,
                        .ordered = ps_slice_true(r->order),
                        .invisible_ms = r->invisible_ms};
    if (ask->ordered && r->attempt.len > 0) {
        ask->attempt = (const char *)r->attempt.data;
        ask->attempt_len = r->attempt.len;
    }
    if (!ps_pop_can_put(c) || !x->po_rules.on || !is_allowed(&x->po_rules, r) ||
        !read_filter(r, ask))
        return false;
    const ps_topic_entry *t = ps_core_find_topic(c, r->topic.data, r->topic.len);
    if (t == NULL || !(t->te_perm & PS_PERM_READ) || r->queue_id < INT32_MIN ||
        r->queue_id >= t->te_read_queues)
        return false;
    if (checked) return true;
    const ps_pair *pair =
        ps_core_find_pair(c, r->group.data, r->group.len, r->topic.data, r->topic.len);
    return !is_late(r) && pair != NULL && pair->pr_flags != 0 &&
           !PS_BEGINS(r->topic.data, r->topic.len, PS_RETRY_PREFIX) &&
           (!ask->sql || ps_filter_is(pair->pr_own, r->filter.data, r->filter.len, true));
}

/* ---- serving ---- */

/* So long a request may wait, whose answer leaves a little before its client gives up; its clock
 * may be wrong by any amount. Below 0: it may not. An end that no time has is over, as upstream's
 * is. */
static int64_t time_left(const ps_pop_rules *rules, const request *r) {
    int64_t now = ps_now_ms(), born = r->born_ms != 0 && r->born_ms < now ? r->born_ms : now, end;
    if (r->poll_ms <= 0 || rules->waiting_max < 0 ||
        __builtin_add_overflow(born, r->poll_ms, &end) || end < now)
        return -1;
    int64_t left = end - PS_POP_MARGIN_MS - now;
    return left < POLL_MAX_MS ? left : POLL_MAX_MS;
}

static int serve_pop(ps_conn *n, const ps_command *command, bool checked, ps_error *e) {
    ps_core *c = n->cn_core;
    request r;
    ps_pop_ask ask;
    ps_pop_found found;
    int64_t due_ms;
    if ((command->flag & PS_FLAG_ONEWAY) || !read_request(command, &r) ||
        !read_ask(c, &r, checked, &ask))
        return 0;
    const ps_pop_asker who = {.conn = n, .opaque = command->opaque,
                              .serialize = command->serialize};
    int code = ps_pop_take(c, &ask, &found, &due_ms, e);
    if (code < 0) return checked ? code : 0;
    int64_t left = time_left(&c->co_pop->po_rules, &r);
    if (found.count == 0 && !found.full && left >= 0) {
        if (ps_pop_wait(&who, &ask, left, &found)) return 1;
        found.full = 1;
    }
    code = ps_pop_answer(&who, &found, r.topic);
    ps_pop_found_free(&found);
    if (due_ms > 0) ps_mine(c)->ca_pop.cp_due_ms = due_ms;
    return code < 0 ? code : 1;
}

int ps_core_pop(ps_conn *n, const ps_command *command) {
    return serve_pop(n, command, false, NULL);
}

/* Whether there is something to pop, as soon as there is: of a request that was found right. Its
 * times may be of any size. 0: a field is malformed. */
static int serve_look(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r = {.queue_id = INT64_MIN};
    const ps_member members[] = {
        {"consumerGroup", &r.group, NULL}, {"topic", &r.topic, NULL},
        {"queueId", NULL, &r.queue_id},    {"bornTime", NULL, &r.born_ms},
        {"pollTime", NULL, &r.poll_ms},    {"order", &r.order, NULL},
        {"attemptId", &r.attempt, NULL}};
    ps_pop_found found;
    if ((command->flag & PS_FLAG_ONEWAY) || c->co_pop == NULL ||
        !ps_command_read(command, members, sizeof members / sizeof *members) || r.group.len < 1 ||
        r.group.len > PS_TOPIC_MAX || r.topic.len < 1 || r.topic.len > PS_TOPIC_MAX ||
        r.queue_id < INT32_MIN || r.queue_id > PS_QUEUE_ID_MAX)
        return 0;
    ps_pop_ask ask = {.topic = (const char *)r.topic.data,
                      .group = (const char *)r.group.data,
                      .topic_len = r.topic.len,
                      .group_len = r.group.len,
                      .queue_id = r.queue_id < 0 ? -1 : (int32_t)r.queue_id,
                      .ordered = ps_slice_true(r.order),
                      .looks = 1};
    if (ask.ordered && r.attempt.len > 0) {
        ask.attempt = (const char *)r.attempt.data;
        ask.attempt_len = r.attempt.len;
    }
    const ps_pop_asker who = {.conn = n, .opaque = command->opaque,
                              .serialize = command->serialize};
    if (!ps_pop_look(c, &ask, &found)) return PS_E_NO_MEMORY;
    int64_t left = time_left(&c->co_pop->po_rules, &r);
    if (found.messages == 0 && left >= 0) {
        if (ps_pop_wait(&who, &ask, left, &found)) return 1;
        found.full = 1;
    }
    int code = ps_pop_answer_look(&who, &found);
    return code < 0 ? code : 1;
}

int ps_core_pop_checked(ps_conn *n, const ps_command *command, ps_error *e) {
    if (command->code == PS_REQUEST_NOTIFICATION) return serve_look(n, command);
    return serve_pop(n, command, true, e);
}

int ps_conn_pop(ps_conn *n, const ps_proof *proof, const ps_plain_pop *p, int64_t wait_ms,
                int64_t number, ps_pop_found *found, int64_t *due_ms) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    ps_pop_ask ask;
    const request r = {.group = {(const uint8_t *)p->group, p->group_len},
                       .topic = {(const uint8_t *)p->topic, p->topic_len},
                       .kind = ps_slice_of(p->sql ? "SQL92" : "TAG"),
                       .filter = {(const uint8_t *)p->filter, p->filter_len},
                       .order = ps_slice_of(p->ordered ? "true" : ""),
                       .attempt = {(const uint8_t *)p->attempt, p->attempt_len},
                       .queue_id = -1,
                       .most = p->most,
                       .invisible_ms = p->invisible_ms,
                       .mode = 1};
    if (!ps_access_lets_call(n, proof, PS_REQUEST_POP_MESSAGE, PS_REQUEST_PULL_MESSAGE, r.topic,
                             r.group) ||
        ps_conn_delegates(n, PS_REQUEST_POP_MESSAGE) || !read_ask(c, &r, false, &ask) ||
        c->co_pop->po_rules.waiting_max < 0)
        return PS_POP_DELEGATED;
    int code = ps_conn_pop_wait(n, &ask, wait_ms, number, found, due_ms, NULL);
    if (code == 0) return PS_POP_WAITS;
    return code == 1 && found->count > 0 ? PS_POP_FOUND : PS_POP_DELEGATED;
}

int ps_core_pop_rules(ps_core *c, const ps_pop_rules *rules, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pop_state *x = ps_pop_state_of(c);
    if (rules->revive_queues < 1 || rules->name_max > PS_TOPIC_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "%d revive queues and names of %d bytes for POP: at least 1, and at most %d",
                       rules->revive_queues, rules->name_max, PS_TOPIC_MAX);
    if (x == NULL) return ps_no_memory(e, NULL, "no memory for POP");
    x->po_rules = *rules;
    return 0;
}
