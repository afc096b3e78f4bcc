/* Names that the store and the broker give a meaning to: the one table for C, and for Python by way
 * of cffi (pystore/format/names.py). Upstream: common/.../topic/TopicValidator, common/.../MixAll,
 * store/.../timer/TimerMessageStore.TIMER_TOPIC, common/.../pop/PopAckConstants.REVIVE_TOPIC.
 *
 *   PS_SCHEDULE_TOPIC      messages with a delay level; queue level - 1
 *   PS_TIMER_TOPIC         messages that wait for a time
 *   PS_HALF_TOPIC          halves of transactions
 *   PS_OP_TOPIC            which halves are decided
 *   PS_DISCARD_TOPIC       halves whose producer never decided
 *   PS_RETRY_PREFIX        what a group gets once more
 *   PS_DLQ_PREFIX          what a group has given up
 *   PS_LMQ_PREFIX          light queues, such as those of lite topics
 *   PS_SYSTEM_PREFIX       topics of the broker's own, beside those above
 *   PS_REVIVE_PREFIX       check points of POP; the cluster's name follows
 *   PS_SYSTEM_GROUP_PREFIX groups of the broker's own
 *   PS_FILLER_TOPIC        of records that close over damage: no queue leads to them
 *   PS_FILLER_TOPIC_SHORT  of one that has no room for that name */
#ifndef PS_NAMES_H
#define PS_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PS_SCHEDULE_TOPIC "SCHEDULE_TOPIC_XXXX"
#define PS_TIMER_TOPIC "rmq_sys_wheel_timer"
#define PS_HALF_TOPIC "RMQ_SYS_TRANS_HALF_TOPIC"
#define PS_OP_TOPIC "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#define PS_DISCARD_TOPIC "TRANS_CHECK_MAX_TIME_TOPIC"
#define PS_RETRY_PREFIX "%RETRY%"
#define PS_DLQ_PREFIX "%DLQ%"
#define PS_LMQ_PREFIX "%LMQ%"
#define PS_SYSTEM_PREFIX "rmq_sys_"
#define PS_REVIVE_PREFIX "rmq_sys_REVIVE_LOG_"
#define PS_SYSTEM_GROUP_PREFIX "CID_RMQ_SYS_"
#define PS_FILLER_TOPIC "RMQ_SYS_DAMAGED"
#define PS_FILLER_TOPIC_SHORT "-"

#if 0 /* How cffi reads the texts above. */
/* cdef begin */
static char *const PS_SCHEDULE_TOPIC;
static char *const PS_TIMER_TOPIC;
static char *const PS_HALF_TOPIC;
static char *const PS_OP_TOPIC;
static char *const PS_DISCARD_TOPIC;
static char *const PS_RETRY_PREFIX;
static char *const PS_DLQ_PREFIX;
static char *const PS_LMQ_PREFIX;
static char *const PS_SYSTEM_PREFIX;
static char *const PS_REVIVE_PREFIX;
static char *const PS_SYSTEM_GROUP_PREFIX;
static char *const PS_FILLER_TOPIC;
static char *const PS_FILLER_TOPIC_SHORT;
/* cdef end */
#endif

/* Whether bytes are this literal, or begin with it. */
#define PS_IS(data, len, literal)                                                                  \
    ((len) == (int64_t)sizeof literal - 1 && memcmp(data, literal, sizeof literal - 1) == 0)
#define PS_BEGINS(data, len, literal)                                                              \
    ((len) >= (int64_t)sizeof literal - 1 && memcmp(data, literal, sizeof literal - 1) == 0)

#endif
