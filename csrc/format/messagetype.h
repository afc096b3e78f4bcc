/* The type of a message, which its properties say. */
#ifndef PS_MESSAGETYPE_H
#define PS_MESSAGETYPE_H

#include <stdint.h>

/* By the numbers of gRPC's MessageType. */
enum {
    PS_TYPE_NORMAL = 1,
    PS_TYPE_FIFO = 2,
    PS_TYPE_DELAY = 3,
    PS_TYPE_TRANSACTION = 4,
    PS_TYPE_LITE = 5,
    PS_TYPE_PRIORITY = 6
};

/* Has the broker put the message into the queue of its level; upstream MessageConst. */
#define PS_PROPERTY_PRIORITY "_SYS_MSG_PRIORITY_"
/* The lite topic that a message is for. */
#define PS_PROPERTY_LITE_TOPIC "__LITE_TOPIC"

/* The first type that the properties ask for, in upstream's order, which makes the types exclude
 * one another: transaction, delay, order, priority, lite topic
 * (TopicMessageType.parseFromMessageProperty). */
int ps_message_type(const uint8_t *properties, int32_t len);
/* The priority that such a value asks for; -1: it is negative or not an int
 * (Message.getPriority). */
int32_t ps_priority_of(const uint8_t *value, int32_t len);

#endif
