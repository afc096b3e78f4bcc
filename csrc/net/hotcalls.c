/* Calls of gRPC that the network thread serves itself. What is rare or wrong in one makes it
 * Python's, whose rules say what to do (broker/grpc/); and so are the first calls of a client,
 * which register it. docs/internals/grpc.md#network-thread */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/property.h"
#include "format/record.h"
#include "messaging/ack.h"
#include "messaging/delivery.h"
#include "messaging/ending.h"
#include "messaging/message.h"
#include "messaging/proof.h"
#include "messaging/receive.h"
#include "net/reactor.h"
#include "tables/access.h"
#include "transactions/transaction.h"

/* Of two headers of one name the later one counts. NULL: there is none. */
static const char *header_of(const ps_h2_event *call, const char *name) {
    const char *found = NULL;
    for (int32_t i = 0; i < call->header_count; i++)
        if (strcmp(call->headers[i].name, name) == 0) found = call->headers[i].value;
    return found;
}

/* Of the client that Python has let in last. */
static bool is_clients(const ps_link *link, const ps_h2_event *call) {
    const char *id = header_of(call, "x-mq-client-id");
    return id != NULL && link->lk_client != NULL && strcmp(id, link->lk_client) == 0;
}

/* What its headers say of who calls; NULL: nothing that the core could check. */
static const ps_proof *proof_of(const ps_h2_event *call, ps_proof *p) {
    const char *given = header_of(call, "authorization"), *date;
    ps_h2_text key, signature;
    if (given == NULL || (date = header_of(call, "x-mq-date-time")) == NULL ||
        !ps_h2_proof_read(given, &key, &signature))
        return NULL;
    *p = (ps_proof){key.data, date, signature.data, key.len, (int32_t)strlen(date), signature.len};
    return p;
}

/* ---- calls that wait ---- */

typedef struct ps_waiting_call {
    struct ps_waiting_call *next;
    int64_t began_ns;
    int64_t clients;     /* lk_clients when it began */
    bool replies;        /* for the log to be safe: call.data is its reply */
    ps_pop_found *found; /* for the same, of ReceiveMessage; else NULL */
    ps_h2_event call;    /* its headers as a block alone */
    uint8_t bytes[];
} ps_waiting_call;

static ps_waiting_call *keep_call(ps_link *link, const ps_h2_event *call) {
    int64_t head = call->header_block_len;
    ps_waiting_call *w = malloc(sizeof *w + (size_t)(head + call->len));
    if (w == NULL) return NULL;
    *w = (ps_waiting_call){.next = link->lk_waiting,
                           .began_ns = ps_monotonic_ns(),
                           .clients = link->lk_clients,
                           .call = *call};
    if (head > 0) w->call.header_block = memcpy(w->bytes, call->header_block, (size_t)head);
    if (call->len > 0) w->call.data = memcpy(w->bytes + head, call->data, (size_t)call->len);
    w->call.headers = NULL;
    w->call.header_count = 0;
    link->lk_waiting = w;
    link->lk_net->nt_waiting++;
    return w;
}

static ps_waiting_call *take_call(ps_link *link, int32_t stream) {
    ps_waiting_call **at = &link->lk_waiting, *w;
    while (*at != NULL && (*at)->call.stream != stream) at = &(*at)->next;
    if ((w = *at) == NULL) return NULL;
    *at = w->next;
    link->lk_net->nt_waiting--;
    return w;
}

/* The reply goes now, or once the log is safe up to `end`. puts: messages that the call has put. */
static void reply_once_safe(ps_link *link, const ps_h2_event *call, int64_t end, int64_t puts,
                            const uint8_t *reply, int64_t len) {
    int waits = ps_conn_wait(link->lk_conn, end, call->stream, puts);
    if (waits == 0) {
        link->lk_net->nt_conf.h2->send(link->lk_h2, call->stream, reply, len, true);
        return;
    }
    const ps_h2_event kept = {
        .kind = call->kind, .stream = call->stream, .method = call->method, .data = reply,
        .len = len};
    ps_waiting_call *w = waits > 0 ? keep_call(link, &kept) : NULL;
    if (w != NULL)
        w->replies = true;
    else
        ps_link_end(link, "no memory for its answers");
}

/* ---- compressed bodies ---- */

#define DEFLATED_MAX (8 << 10)  /* bytes of one that is inflated here, before */
#define INFLATED_MAX (32 << 10) /* and after */
#define ZLIB_STREAM_END 1
#define ZLIB_FINISH 4

enum { ZLIB = 15, GZIP = 31 }; /* window bits, by which zlib tells its two formats apart */

/* z_stream, which has been the same since 1996. */
typedef struct zlib_stream {
    const uint8_t *next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned avail_out;
    unsigned long total_out;
    void *rest[5];
    int data_type;
    unsigned long more[2];
} zlib_stream;

/* Inflates into INFLATED_MAX bytes. False: it is larger, or damaged, and Python's affair. */
static bool inflate_small(const ps_net_conf *conf, const uint8_t *from, int64_t from_len,
                          int format, uint8_t *to, int64_t *len) {
    zlib_stream z = {.next_in = from, .avail_in = (unsigned)from_len, .next_out = to,
                     .avail_out = INFLATED_MAX};
    if (conf->inflate_init == NULL || from_len > DEFLATED_MAX ||
        conf->inflate_init(&z, format, conf->zlib_version, sizeof z) != 0)
        return false;
    bool whole = conf->inflate(&z, ZLIB_FINISH) == ZLIB_STREAM_END;
    *len = (int64_t)z.total_out;
    conf->inflate_end(&z);
    return whole;
}

/* ---- SendMessage ---- */

/* The jump consistent hash of pystore/format/javahash.py (bucket_of). */
static int32_t queue_of_key(ps_h2_text key, int32_t count) {
    uint64_t state = (uint64_t)(int64_t)ps_java_hash(0, (const uint8_t *)key.data, key.len);
    int64_t found = 0;
    for (;;) {
        state = 2862933555777941757u * state + 1;
        double fraction = (double)((state >> 33) + 1) / (double)(1u << 31);
        double follows = (double)(found + 1) / fraction;
        if (!(follows >= 0 && follows < count)) return (int32_t)found;
        found = (int64_t)follows;
    }
}

/* The reply for a message that was stored there. */
static int64_t reply_of(const ps_link *link, const ps_h2_message *m, const ps_plain_place *at,
                        uint8_t to[PS_H2_REPLY_MAX]) {
    char id[PS_H2_TRANSACTION_ROOM(PS_H2_ID_MAX, PS_H2_BROKER_MAX)];
    ps_h2_text transaction = m->id;
    if (m->kind == PS_TYPE_TRANSACTION)
        transaction = (ps_h2_text){
            id, ps_h2_transaction_id(m->id, at->offset, at->physical,
                                     link->lk_net->nt_core->co_settings.se_broker, id)};
    return ps_h2_message_reply(m->id, transaction, (ps_h2_text){at->recall, at->recall_len},
                               at->offset, to);
}

static bool serve_send(ps_link *link, const ps_h2_event *call) {
    ps_net *net = link->lk_net;
    const ps_net_conf *conf = &net->nt_conf;
    ps_h2_text host = {link->lk_host, (int32_t)strlen(link->lk_host)};
    ps_h2_message m;
    int32_t queues;
    ps_plain_place at;
    uint8_t reply[PS_H2_REPLY_MAX], inflated[INFLATED_MAX];
    ps_proof proof;
    if (!ps_h2_message_read(call->data, call->len, conf->sends, host, &m)) return false;
    if (m.id.len > PS_H2_ID_MAX || strlen(net->nt_core->co_settings.se_broker) > PS_H2_BROKER_MAX)
        return false;
    if (m.zipped && (!inflate_small(conf, m.body, m.body_len, GZIP, inflated, &m.body_len) ||
                     m.body_len > conf->sends->body_max))
        return false;
    if (m.zipped) m.body = inflated;
    int32_t kinds = ps_core_kinds(net->nt_core, m.topic.data, m.topic.len, &queues);
    if (kinds <= 0 || !(kinds >> m.kind & 1) || queues == 0) return false;
    int32_t queue = m.key.len > 0 ? queue_of_key(m.key, queues)
                                    : (int32_t)(net->nt_turn++ % (uint32_t)queues);
    ps_plain_put put = {m.topic.data, m.topic.len, queue, (const uint8_t *)m.properties, m.body,
                        m.properties_len, m.body_len, m.born_ms};
    if (!ps_conn_put(link->lk_conn, proof_of(call, &proof), &put, &at)) return false;
    reply_once_safe(link, call, at.end, 1, reply, reply_of(link, &m, &at, reply));
    return true;
}

/* ---- EndTransaction ---- */

static bool serve_ending(ps_link *link, const ps_h2_event *call) {
    ps_h2_ending e;
    ps_proof proof;
    uint8_t reply[PS_PROTO_OK_MAX];
    if (!ps_h2_ending_read(call->data, call->len, &e)) return false;
    const ps_slice topic = {(const uint8_t *)e.topic.data, e.topic.len};
    const ps_ending end = {.group = topic, .topic = topic, .offset = e.offset,
                           .physical = e.physical, .from_check = e.from_check,
                           .decision = e.commits ? PS_TX_COMMIT : PS_TX_ROLLBACK};
    if (!ps_conn_end(link->lk_conn, proof_of(call, &proof), &end)) return false;
    link->lk_net->nt_conf.h2->send(link->lk_h2, call->stream, reply,
                                   ps_proto_put_ok(reply, 1) - reply, true);
    return true;
}

/* Python learns which handles need not be renewed any more. */
static void tell_acks(ps_link *link, const ps_h2_acks *acks) {
    ps_buffer names = {0};
    int64_t room = acks->group.len + 1 + acks->topic.len;
    for (int32_t i = 0; i < acks->count; i++) room += 1 + acks->each[i].handle.len;
    uint8_t *at = ps_buffer_room(&names, room);
    if (at == NULL) return; /* Python finds out when it wants to renew them */
    memcpy(at, acks->group.data, (size_t)acks->group.len);
    at += acks->group.len;
    *at++ = '\n';
    memcpy(at, acks->topic.data, (size_t)acks->topic.len);
    at += acks->topic.len;
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
    ps_proof proof;
    int64_t end;
    if (!ps_h2_acks_read(call->data, call->len, &acks)) return false;
    for (int32_t i = 0; i < acks.count; i++) handles[i] = acks.each[i].read;
    if (!ps_conn_ack(link->lk_conn, proof_of(call, &proof), acks.group.data, acks.group.len,
                     acks.topic.data, acks.topic.len, handles, acks.count, &end))
        return false;
    uint8_t *reply = malloc((size_t)ps_h2_acks_room(&acks));
    if (reply == NULL) {
        ps_link_end(link, "no memory for its answers");
        return true;
    }
    reply_once_safe(link, call, end, 0, reply, ps_h2_acks_reply(&acks, reply));
    free(reply);
    if (net->nt_renews) tell_acks(link, &acks);
    return true;
}

/* ---- ReceiveMessage ---- */

#define HANDLE_ROOM 256 /* beside the broker's name */
#define NS_A_MS 1000000
#define REQUEST_MAX 1024 /* bytes: a request that waits is kept */

/* What is handed out, before it is sent: replies one after the other, and where each ends. */
typedef struct handing {
    const ps_h2_receive *r;
    const ps_pop_found *found;
    const char *broker;
    ps_buffer replies, ends, held; /* held: for Python, which renews them */
} handing;

static int32_t name_delivery(const handing *h, const ps_pop_batch *b, const ps_view *v, char *to,
                             int64_t room) {
    const ps_pop_found *found = h->found;
    return snprintf(to, (size_t)room, "%lld %lld %lld %d %d %s %d %lld %lld", (long long)b->start,
                    (long long)found->pop_ms, (long long)found->invisible_ms, found->revive_queue,
                    b->kind, h->broker, b->queue_id, (long long)v->queue_offset,
                    (long long)v->physical_offset);
}

static bool note_held(handing *h, int32_t times, const char *handle, int32_t len) {
    char head[32];
    int size = snprintf(head, sizeof head, "\n%d ", times);
    return ps_buffer_add(&h->held, head, size) && ps_buffer_add(&h->held, handle, len);
}

/* Inflates the body of a record that is compressed. */
static bool inflate_body(const ps_link *link, const uint8_t *map, const ps_view *v, uint8_t *to,
                         ps_h2_delivery *d) {
    int32_t kind = (v->sys_flag & PS_SYS_COMPRESSION_MASK) >> PS_SYS_COMPRESSION_SHIFT;
    d->body = to;
    return (kind == 0 || kind == PS_COMPRESSION_ZLIB) &&
           inflate_small(&link->lk_net->nt_conf, map + v->body_start, v->body_end - v->body_start,
                         ZLIB, to, &d->body_len);
}

/* times: how often it was handed out before. False: Python shows it: what it was handed out too
 * often for, or what is not inflated here. */
static bool show_message(handing *h, ps_link *link, const ps_pop_batch *b,
                         const ps_batch_info *info, const ps_view *v, int32_t times) {
    char handle[HANDLE_ROOM + PS_TOPIC_MAX];
    int32_t len = name_delivery(h, b, v, handle, sizeof handle);
    const uint8_t *map = info->segments[v->segment].map, *record = map + v->start;
    uint8_t inflated[INFLATED_MAX];
    ps_h2_delivery d = {.topic = h->r->topic.data,
                              .topic_len = h->r->topic.len,
                              .receipt = handle,
                              .receipt_len = len,
                              .attempt = times + 1,
                              .encoding = PS_H2_IDENTITY};
    if (times >= link->lk_attempts || len >= (int32_t)sizeof handle) return false;
    if (v->sys_flag & PS_SYS_COMPRESSED && !inflate_body(link, map, v, inflated, &d)) return false;
    int64_t room = ps_h2_delivery_room(v->size, &d), from = h->replies.len;
    uint8_t *to = ps_buffer_room(&h->replies, room);
    int64_t size = to == NULL ? 0
                              : ps_h2_delivery_write(record, v->size,
                                                     link->lk_net->nt_conf.hidden, &d, to, room);
    if (size == 0) return false;
    memmove(to, to + room - size, (size_t)size);
    h->replies.len = from + size;
    return ps_buffer_add(&h->ends, &h->replies.len, sizeof h->replies.len) &&
           (!h->r->renews || note_held(h, times, handle, len));
}

static bool show_all(handing *h, ps_link *link) {
    const ps_pop_found *found = h->found;
    for (int32_t i = 0, at = 0; i < found->count; i++) {
        ps_batch_info info;
        ps_batch_get(found->all[i].batch, &info);
        for (int32_t k = 0; k < info.count; k++, at++) {
            const ps_view *v = &info.views[k];
            int32_t times = found->ordered ? found->times[at] : v->reconsume_times;
            if (!show_message(h, link, &found->all[i], &info, v, times)) return false;
        }
    }
    return true;
}

static void send_all(const handing *h, ps_link *link, int32_t stream) {
    const ps_h2_functions *h2 = link->lk_net->nt_conf.h2;
    const int64_t *ends = (const int64_t *)h->ends.data;
    uint8_t small[PS_H2_RECEIVED_MAX + PS_PROTO_OK_MAX];
    int64_t from = 0;
    h2->send(link->lk_h2, stream, small, ps_proto_put_ok(small, 1) - small, false);
    for (size_t i = 0; i < (size_t)h->ends.len / sizeof *ends; from = ends[i++])
        h2->send(link->lk_h2, stream, h->replies.data + from, ends[i] - from, false);
    h2->send(link->lk_h2, stream, small, ps_h2_receive_end(ps_now_ms(), small), true);
    if (h->held.len == 0) return;
    link->lk_net->nt_renews = true;
    ps_net_tell(link->lk_net, &(ps_net_event){.kind = PS_NET_HELD, .data = h->held.data,
                                              .len = h->held.len});
}

/* What was found is sent, or is Python's to show. */
static void hand_out(ps_link *link, const ps_h2_event *call, ps_h2_receive *r,
                     ps_pop_found *found) {
    handing h = {.r = r, .found = found, .broker = link->lk_net->nt_core->co_settings.se_broker};
    const ps_h2_text names[] = {
        {link->lk_client, (int32_t)strlen(link->lk_client)}, r->group, r->topic};
    bool fine = true;
    for (int i = 0; r->renews && i < 3; i++)
        fine = fine && (i == 0 || ps_buffer_add(&h.held, "\n", 1)) &&
               ps_buffer_add(&h.held, names[i].data, names[i].len);
    if (fine && show_all(&h, link)) {
        send_all(&h, link, call->stream);
        ps_pop_found_free(found);
        free(found);
    } else {
        ps_link_delegate(link, call, found);
    }
    ps_buffer_free(&h.replies);
    ps_buffer_free(&h.ends);
    ps_buffer_free(&h.held);
}

/* Whether it is plain, and what it asks for. */
static bool read_receive(const ps_link *link, const ps_h2_event *call, ps_h2_receive *r) {
    const ps_net_receives *own = &link->lk_net->nt_conf.receives;
    if (!ps_h2_receive_read(call->data, call->len, r)) return false;
    r->renews = r->renews && own->renews;
    if (r->renews) r->invisible_ms = own->invisible_ms;
    return r->renews || (r->invisible_ms >= own->invisible_min_ms &&
                         r->invisible_ms <= own->invisible_max_ms);
}

/* Its client is gone: what was found for it is visible again soon. */
static void drop_call(ps_link *link, ps_waiting_call *w) {
    ps_h2_receive r;
    if (w->found == NULL) {
        if (!w->replies) ps_conn_pop_leave(link->lk_conn, w->call.stream);
    } else if (ps_h2_receive_read(w->call.data, w->call.len, &r)) {
        char names[REQUEST_MAX];
        int len = snprintf(names, sizeof names, "%.*s\n%.*s", (int)r.group.len, r.group.data,
                           (int)r.topic.len, r.topic.data);
        ps_net_tell_popped(link->lk_net, w->found, ps_conn_id(link->lk_conn), 1,
                           (const uint8_t *)names, len);
    }
    free(w);
}

bool ps_calls_reset(ps_link *link, int32_t stream) {
    ps_waiting_call *w = take_call(link, stream);
    if (w != NULL) drop_call(link, w);
    return w != NULL;
}

void ps_calls_drop(ps_link *link) {
    while (link->lk_waiting != NULL)
        drop_call(link, take_call(link, link->lk_waiting->call.stream));
}

/* How long it may wait, as broker/grpc/receiving.py (poll_ms) has it. */
static int64_t wait_of(const ps_link *link, const ps_h2_event *call, const ps_h2_receive *r) {
    const ps_net_receives *own = &link->lk_net->nt_conf.receives;
    int64_t left = call->timeout_ns >= 0 ? call->timeout_ns / NS_A_MS : -1, wait = r->poll_ms;
    if (wait < 0) wait = left < 0 ? own->poll_max_ms : left - link->lk_request_ms / 2;
    if (wait < own->poll_min_ms) wait = own->poll_min_ms;
    if (wait > own->poll_max_ms) wait = own->poll_max_ms;
    return (left < 0 || wait <= left ? wait : left) - PS_POP_MARGIN_MS;
}

/* Whether what was found waits for its check points to be safe. */
static bool keep_until_safe(ps_link *link, const ps_h2_event *call, ps_pop_found *found) {
    int waits = ps_conn_wait(link->lk_conn, found->end, call->stream, 0);
    if (waits == 0) return false;
    ps_waiting_call *w = waits > 0 ? keep_call(link, call) : NULL;
    if (w != NULL)
        w->found = found;
    else
        ps_link_delegate(link, call, found); /* Python waits for the same */
    return true;
}

static bool serve_receive(ps_link *link, const ps_h2_event *call) {
    ps_net *net = link->lk_net;
    const ps_net_conf *conf = &net->nt_conf;
    ps_h2_receive r;
    ps_proof proof;
    int64_t due_ms;
    if (call->len > REQUEST_MAX || link->lk_attempts < 1 ||
        link->lk_settings != net->nt_settings ||
        (call->timeout_ns >= 0 && call->timeout_ns / NS_A_MS < conf->receives.poll_min_ms) ||
        !read_receive(link, call, &r))
        return false;
    int32_t most = r.batch < PS_CHECK_POINT_MAX ? r.batch : PS_CHECK_POINT_MAX;
    const ps_plain_pop ask = {r.topic.data, r.group.data, r.filter.data, r.topic.len, r.group.len,
                              r.filter.len, r.sql, most, r.invisible_ms, link->lk_fifo,
                              r.attempt.len, r.attempt.data};
    ps_pop_found *found = malloc(sizeof *found);
    int what = found == NULL ? PS_POP_DELEGATED
                             : ps_conn_pop(link->lk_conn, proof_of(call, &proof), &ask,
                                           wait_of(link, call, &r), call->stream, found, &due_ms);
    if (what != PS_POP_FOUND) free(found);
    if (what == PS_POP_WAITS && keep_call(link, call) == NULL) {
        ps_conn_pop_leave(link->lk_conn, call->stream);
        return false;
    }
    if (what != PS_POP_FOUND) return what == PS_POP_WAITS;
    if (due_ms > 0) ps_net_tell(net, &(ps_net_event){.kind = PS_NET_POP_DUE, .value = due_ms});
    if (!keep_until_safe(link, call, found)) hand_out(link, call, &r, found);
    return true;
}

static void send_nothing(ps_link *link, int32_t stream, bool full) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    uint8_t end[PS_H2_RECEIVED_MAX];
    conf->h2->send(link->lk_h2, stream, full ? conf->full : conf->nothing,
                   full ? conf->full_len : conf->nothing_len, false);
    conf->h2->send(link->lk_h2, stream, end, ps_h2_receive_end(ps_now_ms(), end), true);
}

/* It may be another client by now. */
static void hand_out_waited(ps_link *link, const ps_waiting_call *w, ps_pop_found *found) {
    ps_h2_receive r;
    if (w->clients != link->lk_clients || link->lk_settings != link->lk_net->nt_settings ||
        !read_receive(link, &w->call, &r))
        ps_link_delegate(link, &w->call, found);
    else
        hand_out(link, &w->call, &r, found);
}

bool ps_calls_popped(ps_link *link, int32_t stream, ps_pop_found *found) {
    ps_waiting_call *w = take_call(link, stream);
    if (w == NULL) return false;
    int64_t now = ps_monotonic_ns();
    if (w->call.timeout_ns >= 0) w->call.timeout_ns -= now - w->began_ns;
    if (w->call.timeout_ns < -1) w->call.timeout_ns = 0;
    if (found->count == 0) {
        send_nothing(link, stream, found->full);
        free(found);
    } else if (!keep_until_safe(link, &w->call, found)) {
        hand_out_waited(link, w, found);
    }
    free(w);
    return true;
}

/* The status alone; a send's entry has it as well. */
static void send_failure(ps_link *link, const ps_h2_event *call, int32_t outcome) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    bool disk = outcome == PS_FLUSH_DISK_TIMEOUT, slaves = outcome == PS_FLUSH_SLAVE_TIMEOUT;
    const uint8_t *status = disk ? conf->late_disk : slaves ? conf->late_slaves : conf->unsafe;
    int32_t len = disk ? conf->late_disk_len : slaves ? conf->late_slaves_len : conf->unsafe_len;
    uint8_t reply[2 * PS_H2_REPLY_MAX];
    uint8_t *at = ps_bytes_put(reply, status, len);
    if (call->method == conf->send_method) at = ps_proto_put_bytes(at, 2, status, len);
    conf->h2->send(link->lk_h2, call->stream, reply, at - reply, true);
}

void ps_calls_safe(ps_link *link, int32_t stream, int32_t outcome) {
    ps_waiting_call *w = take_call(link, stream);
    if (w == NULL) return;
    if (outcome != 0) {
        send_failure(link, &w->call, outcome);
        if (w->found != NULL) ps_pop_found_free(w->found);
        free(w->found);
    } else if (w->found != NULL) {
        hand_out_waited(link, w, w->found);
    } else {
        link->lk_net->nt_conf.h2->send(link->lk_h2, stream, w->call.data, w->call.len, true);
    }
    free(w);
}

bool ps_calls_serve(ps_link *link, const ps_h2_event *call) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    if (conf->sends == NULL || !is_clients(link, call)) return false;
    if (call->method == conf->send_method) return serve_send(link, call);
    if (call->method == conf->receive_method) return serve_receive(link, call);
    if (call->method == conf->end_method) return serve_ending(link, call);
    return call->method == conf->ack_method && serve_ack(link, call);
}
