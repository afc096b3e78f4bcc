/* Calls of gRPC that the network thread serves itself. What is rare or wrong in one makes it
 * Python's, whose rules say what to do (broker/grpc/); and so are the first calls of a client,
 * which register it. docs/internals/grpc.md#network-thread */
#include <stdlib.h>
#include <string.h>

#include "format/record.h"
#include "messaging/ack.h"
#include "messaging/message.h"
#include "net/reactor.h"

/* Of the client that Python has let in last. Of two headers the later one counts. */
static bool is_clients(const ps_link *link, const ps_h2_event *call) {
    static const char name[] = "x-mq-client-id";
    const ps_h2_header *found = NULL;
    for (int32_t i = 0; i < call->header_count; i++)
        if (strcmp(call->headers[i].name, name) == 0) found = &call->headers[i];
    return found != NULL && link->lk_client != NULL && strcmp(found->value, link->lk_client) == 0;
}

/* The jump consistent hash of broker/grpc/sending.py (queue_for). */
static int32_t queue_of_group(ps_h2_text group, int32_t count) {
    uint64_t state = (uint64_t)(int64_t)ps_java_hash(0, (const uint8_t *)group.data, group.len);
    int64_t found = 0;
    for (;;) {
        state = 2862933555777941757u * state + 1;
        double fraction = (double)((state >> 33) + 1) / (double)(1u << 31);
        double follows = (double)(found + 1) / fraction;
        if (!(follows >= 0 && follows < count)) return (int32_t)found;
        found = (int64_t)follows;
    }
}

static bool serve_send(ps_link *link, const ps_h2_event *call) {
    ps_net *net = link->lk_net;
    const ps_net_conf *conf = &net->nt_conf;
    ps_h2_text host = {link->lk_host, (int32_t)strlen(link->lk_host)};
    ps_h2_message m;
    int32_t queues;
    int64_t offset;
    uint8_t reply[PS_H2_REPLY_MAX];
    if (!ps_h2_message_read(call->data, call->len, conf->sends, host, &m)) return false;
    if (m.zipped || (m.kind != PS_H2_NORMAL && m.kind != PS_H2_FIFO) || m.id.len > PS_H2_ID_MAX)
        return false;
    int32_t kinds = ps_core_kinds(net->nt_core, m.topic.data, m.topic.len, &queues);
    if (kinds <= 0 || !(kinds >> m.kind & 1) || queues == 0) return false;
    int32_t queue = m.group.len > 0 ? queue_of_group(m.group, queues)
                                    : (int32_t)(net->nt_turn++ % (uint32_t)queues);
    ps_plain_put put = {m.topic.data, m.topic.len, queue, (const uint8_t *)m.properties, m.body,
                        m.properties_len, m.body_len, m.born_ms};
    if (!ps_conn_put(link->lk_conn, &put, &offset)) return false;
    int64_t len = ps_h2_message_reply(m.id, m.id, offset, reply);
    conf->h2->send(link->lk_h2, call->stream, reply, len, true);
    return true;
}

/* Python learns which handles need not be renewed any more. */
static void tell_acks(ps_link *link, const ps_h2_acks *acks) {
    ps_buffer names = {0};
    int64_t room = acks->group.len;
    for (int32_t i = 0; i < acks->count; i++) room += 1 + acks->each[i].handle.len;
    uint8_t *at = ps_buffer_room(&names, room);
    if (at == NULL) return; /* Python finds out when it wants to renew them */
    memcpy(at, acks->group.data, (size_t)acks->group.len);
    at += acks->group.len;
    for (int32_t i = 0; i < acks->count; i++) {
        const ps_h2_text *handle = &acks->each[i].handle;
        *at++ = '\n';
        memcpy(at, handle->data, (size_t)handle->len);
        at += handle->len;
    }
    ps_net_tell(link->lk_net, &(ps_net_event){.kind = PS_NET_ACKED, .data = names.data,
                                              .len = room});
    ps_buffer_free(&names);
}

static bool serve_ack(ps_link *link, const ps_h2_event *call) {
    ps_net *net = link->lk_net;
    ps_h2_acks acks;
    ps_handle handles[PS_H2_ACKS_MAX];
    if (!ps_h2_acks_read(call->data, call->len, &acks)) return false;
    for (int32_t i = 0; i < acks.count; i++) handles[i] = acks.each[i].read;
    if (!ps_conn_ack(link->lk_conn, acks.group.data, acks.group.len, acks.topic.data,
                     acks.topic.len, handles, acks.count))
        return false;
    uint8_t *reply = malloc((size_t)ps_h2_acks_room(&acks));
    if (reply == NULL) {
        ps_link_end(link, "no memory for its answers");
        return true;
    }
    net->nt_conf.h2->send(link->lk_h2, call->stream, reply, ps_h2_acks_reply(&acks, reply), true);
    free(reply);
    if (net->nt_renews) tell_acks(link, &acks);
    return true;
}

bool ps_calls_serve(ps_link *link, const ps_h2_event *call) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    if (conf->sends == NULL || !is_clients(link, call)) return false;
    if (call->method == conf->send_method) return serve_send(link, call);
    return call->method == conf->ack_method && serve_ack(link, call);
}
