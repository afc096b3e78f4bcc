/* UPDATE_CONSUMER_OFFSET of a group that is subscribed, when the tables say all of it; every
 * refusal is the broker's. And resets. docs/internals/wire.md#offsets; upstream
 * ConsumerManageProcessor. */
#include "format/names.h"
#include "core/lock.h"
#include "waits/parked.h"
#include "pop/poporder.h"
#include "remoting/requests.h"
#include "tables/tables.h"

typedef struct request {
    ps_slice group, topic;
    int64_t queue_id, offset;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = -1, .offset = -1};
    const ps_member members[] = {{"consumerGroup", &r->group, NULL},
                                 {"topic", &r->topic, NULL},
                                 {"queueId", NULL, &r->queue_id},
                                 {"commitOffset", NULL, &r->offset}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0 && r->queue_id >= 0 && r->offset >= 0;
}

int ps_core_update_offset(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r;
    if (!read_request(command, &r) ||
        PS_BEGINS(r.group.data, r.group.len, PS_SYSTEM_GROUP_PREFIX)) /* how far we have come */
        return 0;
    ps_pair *p = ps_core_find_pair(c, r.group.data, r.group.len, r.topic.data, r.topic.len);
    const ps_topic_entry *t = ps_core_find_topic(c, r.topic.data, r.topic.len);
    if (p == NULL || p->pr_flags == 0 || t == NULL ||
        (r.queue_id >= t->te_read_queues && r.queue_id >= t->te_write_queues) ||
        ps_topic_translates(t, command) ||
        ps_pair_mark_asked(p, (int32_t)r.queue_id) == NULL)
        return 0;
    ps_pair_commit(p, (int32_t)r.queue_id, r.offset);
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    ps_command answer = {.serialize = command->serialize, .opaque = command->opaque};
    return ps_core_answer(c, &answer, 0) < 0 ? PS_E_NO_MEMORY : 1;
}

int ps_core_reset(ps_core *c, const char *group, int32_t group_len, const char *topic,
                  int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pair *p = NULL;
    if (offset < 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, offset, NULL, "offset %lld is negative",
                       (long long)offset);
    int code = ps_pair_hold(c, group, group_len, topic, topic_len, queue_id, &p, e);
    if (code < 0) return code;
    ps_mark *m = ps_pair_mark(p, queue_id, false);
    m->mk_reset = -1;
    ps_pair_commit(p, queue_id, offset);
    m->mk_reset = offset;
    m->mk_pulled = -1;
    ps_order_reset(c, p, queue_id);
    ps_parked_wake(c, p, queue_id);
    ps_pair_let_go(c, p);
    return 0;
}
