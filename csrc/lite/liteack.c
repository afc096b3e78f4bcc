/* ACK_MESSAGE of a message of a lite topic, when the tables say all of it; every refusal is the
 * broker's. docs/internals/lite.md#consuming; upstream AckMessageProcessor. */
#include "core/lock.h"
#include "format/handle.h"
#include "format/litename.h"
#include "format/multi.h"
#include "lite/litetable.h"
#include "pop/pop.h"
#include "pop/poporder.h"
#include "store/lights.h"

#define QUEUE_ROOM (PS_TOPIC_MAX + PS_LITE_NAME_MAX + 16)

static bool read_request(const ps_command *command, ps_ack_request *r) {
    return ps_ack_read(command, r) && r->topic.len <= PS_TOPIC_MAX && r->queue_id == 0 &&
           ps_lite_name_problem(r->lite.data, r->lite.len, PS_LITE_NAME_MAX) == 0;
}

int ps_core_lite_ack(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    char queue[QUEUE_ROOM];
    int64_t low, high;
    ps_handle h;
    ps_ack_request r;
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
    return ps_ack_answer(n, command, ps_core_order_end(c));
}
