/* UPDATE_CONSUMER_OFFSET of a group that is subscribed, when the tables say all of it; every
 * refusal is the broker's. docs/internals/wire.md#offsets; upstream ConsumerManageProcessor. */
#include <string.h>

#include "remoting/core.h"

/* Its offsets say how far the broker itself has come: upstream MixAll.isSysConsumerGroup. */
#define SYSTEM_GROUP "CID_RMQ_SYS_"

typedef struct request {
    ps_slice group, topic;
    int64_t queue_id, offset;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = -1, .offset = -1};
    for (int32_t i = 0; i < command->field_count; i++) {
        const ps_field *f = &command->fields[i];
        int64_t *number = ps_slice_is(f->name, "queueId")        ? &r->queue_id
                          : ps_slice_is(f->name, "commitOffset") ? &r->offset
                                                                 : NULL;
        if (ps_slice_is(f->name, "consumerGroup")) r->group = f->value;
        if (ps_slice_is(f->name, "topic")) r->topic = f->value;
        if (number != NULL && !ps_slice_number(f->value, number)) return false;
    }
    return r->group.len > 0 && r->topic.len > 0 && r->queue_id >= 0 && r->offset >= 0;
}

static bool is_ours(ps_slice group) {
    int32_t len = (int32_t)strlen(SYSTEM_GROUP);
    return group.len >= len && memcmp(group.data, SYSTEM_GROUP, (size_t)len) == 0;
}

int ps_core_update_offset(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r;
    if (!read_request(command, &r) || is_ours(r.group)) return 0;
    ps_pair *p = ps_core_find_pair(c, r.group.data, r.group.len, r.topic.data, r.topic.len);
    const ps_topic_entry *t = ps_core_find_topic(c, r.topic.data, r.topic.len);
    if (p == NULL || p->pr_flags == 0 || t == NULL || !t->te_live ||
        (r.queue_id >= t->te_read_queues && r.queue_id >= t->te_write_queues) ||
        ps_pair_mark(p, (int32_t)r.queue_id, true) == NULL)
        return 0;
    ps_pair_commit(p, (int32_t)r.queue_id, r.offset);
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    ps_command answer = {.serialize = command->serialize, .opaque = command->opaque};
    return ps_core_answer(c, &answer, 0) < 0 ? PS_E_NO_MEMORY : 1;
}
