/* EndTransaction read out of its protobuf, and the id of a transaction, which says where its half
 * lies, so that it can be decided however long the local work took, after a restart and through any
 * other instance of the service. Requests that are not plain are for broker/grpc/transactions.py,
 * which has the rules; this one never refuses. docs/internals/grpc.md#transactions */
#ifndef PS_HTTP2_ENDING_H
#define PS_HTTP2_ENDING_H

#include "messaging/proto.h"

typedef struct ps_h2_ending { /* texts are borrowed */
    ps_h2_text topic;
    int64_t offset, physical; /* of the half: in the queue of halves, and in the log */
    bool commits;             /* false: it rolls back */
    bool from_check;          /* it answers a check */
} ps_h2_ending;

/* False: it is not plain. */
bool ps_h2_ending_read(const uint8_t *data, int64_t len, ps_h2_ending *out);

#define PS_H2_TRANSACTION_ROOM(id_len, broker_len) ((id_len) + 2 * (broker_len) + 40)
/* The id of the transaction whose half is the message `id`: its bytes. */
int32_t ps_h2_transaction_id(ps_h2_text id, int64_t offset, int64_t physical, const char *broker,
                             char *to);

#endif
