/* ACK_MESSAGE of a message of a lite topic, when the tables say all of it; every refusal is the
 * broker's. docs/internals/lite.md#consuming; upstream AckMessageProcessor. */
#include <string.h>

#include "core/lock.h"
#include "format/handle.h"
#include "format/litename.h"
#include "format/multi.h"
#include "lite/litetable.h"
#include "pop/pop.h"
#include "pop/poporder.h"
#include "sends/sends.h"
#include "store/lights.h"

#define QUEUE_ROOM (PS_TOPIC_MAX + PS_LITE_NAME_MAX + 16)

typedef struct request {
    ps_slice group, topic, handle, lite;
    int64_t queue_id, offset;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.queue_id = -1, .offset = -1};
    const ps_member members[] = {{"consumerGroup", &r->group, NULL},
                                 {"topic", &r->topic, NULL},
                                 {"extraInfo", &r->handle, NULL},
                                 {"liteTopic", &r->lite, NULL},
                                 {"queueId", NULL, &r->queue_id},
                                 {"offset", NULL, &r->offset}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->group.len > 0 && r->topic.len > 0 && r->topic.len <= PS_TOPIC_MAX &&
           r->queue_id == 0 && r->offset >= 0 &&
           ps_lite_name_problem(r->lite.data, r->lite.len, PS_LITE_NAME_MAX) == 0;
}

int ps_core_lite_ack(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    char queue[QUEUE_ROOM];
    int64_t low, high;
    ps_handle h;
    request r;
    if (c->co_lite == NULL || !ps_pop_hands_out(c) || !read_request(command, &r) ||
        !ps_lite_knows(c, r.group, r.topic) ||
        !ps_handle_read((const char *)r.handle.data, r.handle.len, &h) ||
        h.revive_queue != PS_ORDER_QUEUE)
        return 0;
    int32_t len = (int32_t)((char *)ps_lite_queue_put((uint8_t *)queue, r.topic.data, r.topic.len,
                                                      r.lite.data, r.lite.len) -
                            queue);
    if (!ps_lights_range(c->co_store, queue, len, &low, &high) || r.offset >= high) return 0;
    const ps_check_point_key key = {.topic = queue,
                                    .group = (const char *)r.group.data,
                                    .topic_len = len,
                                    .group_len = r.group.len,
                                    .pop_ms = h.pop_ms};
    int outcome = ps_core_order_ack(c, &key, &r.offset, 1);
    if (outcome == PS_ORDER_UNKNOWN) return 0;
    if (outcome == PS_ORDER_DONE)
        ps_lite_settle(c, (const char *)r.group.data, r.group.len, queue, len);
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    int64_t end = ps_core_order_end(c);
    const ps_answer a = {
        .serialize = command->serialize, .opaque = command->opaque, .end = end, .bare = true};
    int code = ps_sent_answer(n, &a, end > 0, false);
    return code < 0 ? code : 1;
}
