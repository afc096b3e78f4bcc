/* ACK_MESSAGE of one message, when the tables say all of it; every refusal is the broker's.
 * docs/internals/pop.md#acknowledging; upstream AckMessageProcessor. */
#include <string.h>

#include "format/handle.h"
#include "remoting/pops.h"

typedef struct request {
    ps_slice group, topic, handle;
    int64_t queue_id, offset;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = -1, .offset = -1};
    const ps_member members[] = {{"consumerGroup", &r->group, NULL},
                                 {"topic", &r->topic, NULL},
                                 {"extraInfo", &r->handle, NULL},
                                 {"queueId", NULL, &r->queue_id},
                                 {"offset", NULL, &r->offset}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0 && r->handle.len > 0 && r->queue_id >= 0 &&
           r->offset >= 0;
}

/* Whether the topic holds that message, or held it. */
static bool is_there(ps_core *c, const request *r) {
    const ps_topic_entry *t = ps_core_find_topic(c, r->topic.data, r->topic.len);
    int64_t low, high;
    return t != NULL && r->queue_id < t->te_read_queues &&
           ps_queue_range(c->co_store, t->te_topic, (int32_t)r->queue_id, &low, &high) == 0 &&
           r->offset >= low && r->offset <= high;
}

/* end: of the record, in the log; 0: none was put, and nobody waits for the disk. */
static int answer_ack(ps_conn *n, const ps_command *command, int64_t end) {
    const ps_answer a = {
        .serialize = command->serialize, .opaque = command->opaque, .end = end, .bare = true};
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    int code = ps_sent_answer(n, &a, end > 0, false);
    return code < 0 ? code : 1;
}

int ps_core_ack(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    ps_handle h;
    request r;
    int64_t end;
    /* Timers may be off. */
    if (c->co_pops == NULL || c->co_pops->po_revive == NULL || !c->co_store->st_timer_rules.on ||
        !read_request(command, &r) ||
        !ps_handle_read((const char *)r.handle.data, r.handle.len, &h) ||
        h.revive_queue == PS_ORDER_QUEUE || !is_there(c, &r))
        return 0;
    const ps_popped_key key = {.topic = (const char *)r.topic.data,
                               .group = (const char *)r.group.data,
                               .topic_len = r.topic.len,
                               .group_len = r.group.len,
                               .queue_id = (int32_t)r.queue_id,
                               .start = h.start,
                               .pop_ms = h.pop_ms};
    if (ps_core_popped_ack(c, &key, &r.offset, 1, &end, NULL) < 0) return 0;
    return answer_ack(n, command, end);
}
