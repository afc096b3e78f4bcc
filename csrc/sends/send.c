/* Messages that are put: one way for all of them, whoever decided. The tables decide a send whose
 * topic is published as hot, whose queue exists, and whose properties ask for nothing but a delay
 * level, a time or a transaction; every other one is delegated, and comes back with the broker's
 * decision (decision.h). From there on both take the same steps: resolve what the decision leaves
 * as asked, answer a repeat, compose and place, put, remember, answer.
 * docs/internals/wire.md#sending; upstream SendMessageProcessor. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/litename.h"
#include "format/messagetype.h"
#include "format/multi.h"
#include "format/property.h"
#include "sends/dedup.h"
#include "transactions/halves.h"
#include "core/lock.h"
#include "sends/sends.h"
#include "tables/tables.h"

/* Messages of a batch: each takes the event loop half a microsecond. What Java's client fills 4 MiB
 * with has 57,000, since each gets an id. */
#define BATCH_MAX 65536
#define TEMPLATE_QUEUES 4 /* nobody asks for a topic to be made */

#define LIGHT_ROOM (PS_TOPIC_MAX + PS_LITE_NAME_MAX + 64)

/* A message under way: what was asked, what was decided, and what becomes of it. */
typedef struct putting {
    ps_core *c;
    const ps_send *s;
    const ps_decision *d;
    ps_slice body, stamp;
    const uint8_t *host;
    int32_t host_len;
    /* resolved */
    ps_slice name;         /* of the topic it is meant for */
    ps_topic *topic;       /* the same */
    ps_topic_entry *entry; /* the same; NULL: it is not published */
    int32_t queue_id;      /* in that topic */
    int32_t level;
    bool half, wait, once, timed;
    bool again; /* it was stored before, and is counted no more */
    char light[LIGHT_ROOM]; /* the property that names its lite topic's queue */
    int32_t light_len;
    bool unranked; /* it asks for a priority, which messages of its type do not have */
    int64_t out_ms; /* TIMER_OUT_MS, when it is timed */
    ps_slice key, uniq;
    /* done */
    int32_t count;           /* of messages that were put or are repeated */
    int32_t answer_queue_id; /* as asked, or that of the message that is repeated */
    int64_t queue_offset, physical, end, bytes;
    const int64_t *places; /* physical offsets, `count` of them */
    ps_slice handle;       /* by which a timer is recalled; none: it is not one */
} putting;

static ps_text text_of(ps_slice s) {
    return (ps_text){s.data, s.len};
}

/* ---- what the decision leaves as asked ---- */

static int32_t choose_queue(ps_core *c, const ps_topic_entry *t) {
    bool any = t != NULL && t->te_write_queues > 0;
    return any ? (int32_t)(ps_core_random(c) % (uint64_t)t->te_write_queues) : 0;
}

/* The UNIQ_KEY that is answered: the one that is stored. */
static ps_slice uniq_of(const ps_send *s, const ps_decision *d) {
    ps_property p;
    if (d->add_len > 0 &&
        ps_property_find((const uint8_t *)d->add, d->add_len, "UNIQ_KEY", 8, &p))
        return (ps_slice){p.value, p.value_len};
    return s->uniq;
}

/* A level takes precedence over a delivery time; a half waits for its decision first, but an
 * invalid time is refused now. */
static int resolve_time(putting *p, ps_error *e) {
    const ps_send *s = p->s;
    if (!(s->asks & PS_ASKS_TIME) || p->level > 0) return 0;
    int asked =
        ps_timer_asked(p->c->co_store, s->properties.data, s->properties.len, &p->out_ms, e);
    if (asked > 0 && s->batch)
        return ps_fail(e, PS_E_TIMER_ILLEGAL, 0, -1, NULL, "a batch cannot be delayed");
    p->timed = asked > 0 && !p->half;
    return asked < 0 ? asked : 0;
}

/* A message of its own sends goes to the queue of its level, whichever was asked for and whatever
 * type its topic has; upstream SendMessageProcessor.sendMessage. */
static void resolve_priority(putting *p) {
    const ps_send *s = p->s;
    if (s->priority < 0 || s->batch || p->again) return;
    p->unranked = ps_message_type(s->properties.data, s->properties.len) != PS_TYPE_PRIORITY;
    int32_t queues = p->entry != NULL ? p->entry->te_write_queues : 0;
    if (p->unranked || queues < 1) return;
    p->queue_id = p->answer_queue_id = s->priority < queues ? s->priority : queues - 1;
}

/* Whether it is of a lite topic of this topic. */
static bool is_lite(const ps_send *s, const ps_topic_entry *t) {
    return s->lite.len > 0 && t != NULL && (t->te_flags & PS_TOPIC_LITE);
}

/* Names the light queue, whatever the message says of it. Upstream looks neither at the name nor at
 * the type of the topic. */
static int resolve_lite(putting *p, ps_error *e) {
    const ps_slice name = p->s->lite;
    if (p->again || !is_lite(p->s, p->entry)) return 0;
    if (ps_lite_name_problem(name.data, name.len, PS_LITE_NAME_MAX) != 0)
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       PS_PROPERTY_LITE_TOPIC " is not a valid name of a lite topic");
    uint8_t *to = ps_property_begin((uint8_t *)p->light, PS_PROPERTY_MULTI_DISPATCH,
                                    sizeof PS_PROPERTY_MULTI_DISPATCH - 1);
    to = ps_lite_queue_put(to, p->name.data, p->name.len, name.data, name.len);
    to = ps_property_end(to);
    p->light_len = (int32_t)(to - (uint8_t *)p->light);
    return 0;
}

static int resolve_decision(putting *p, ps_error *e) {
    const ps_send *s = p->s;
    const ps_decision *d = p->d;
    p->name = d->topic != NULL ? ps_slice_from(d->topic, d->topic_len) : s->topic;
    if (p->entry == NULL) p->entry = ps_core_find_topic(p->c, p->name.data, p->name.len);
    p->topic = p->entry != NULL ? p->entry->te_topic
                                : ps_topic_open(p->c->co_store, (const char *)p->name.data,
                                                p->name.len, 1, e);
    if (p->topic == NULL) return PS_E_TOPIC_ILLEGAL;
    if (p->body.len == 0) return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL, "the body is empty");
    p->queue_id = d->queue_id == PS_AS_ASKED ? s->queue_id : d->queue_id;
    if (p->queue_id < 0) p->queue_id = choose_queue(p->c, p->entry);
    p->level = ps_delay_level(&p->c->co_store->st_levels,
                              d->level == PS_AS_ASKED ? s->level : d->level);
    p->half = d->role == PS_AS_ASKED ? ps_send_is_half(s->asks, s->reconsume_times, p->level)
                                     : d->role == PS_ROLE_HALF;
    p->wait = d->wait == PS_AS_ASKED ? s->wait : d->wait;
    p->uniq = uniq_of(s, d);
    p->once = p->c->co_dedup != NULL && p->entry != NULL && (p->entry->te_flags & PS_SEND_ONCE);
    if (d->key != NULL)
        p->key = ps_slice_from(d->key, d->key_len);
    else if (p->once && !s->batch)
        p->key = ps_dedup_key(p->c, d->add, d->add_len, s->properties);
    /* The answer names the queue that was asked for, also when the message goes elsewhere. */
    p->answer_queue_id = s->queue_id >= 0 ? s->queue_id : p->queue_id;
    resolve_priority(p);
    int code = resolve_lite(p, e);
    return code < 0 ? code : resolve_time(p, e);
}

/* ---- repeats ---- */

static void take_first(putting *p, const ps_first *first) {
    int64_t end = first->physical_offset + first->size;
    if (p->count++ == 0) {
        p->answer_queue_id = first->queue_id;
        p->queue_offset = first->queue_offset;
        p->physical = first->physical_offset;
    }
    if (end > p->end) p->end = end;
}

/* Whether the message is there already: it gets the place of the first one. */
static bool is_repeat(putting *p) {
    ps_first first;
    if (p->key.len == 0 || !ps_core_dedup_find(p->c, (const char *)p->name.data, p->name.len,
                                               (const char *)p->key.data, p->key.len, &first))
        return false;
    take_first(p, &first);
    p->places = &p->physical;
    return true;
}

/* The same for a batch of `count`, whose places go to `places`. 1, 0, or an error. */
static int is_repeated_batch(putting *p, int64_t *places, int64_t count) {
    ps_first *firsts = malloc((size_t)count * sizeof *firsts);
    if (firsts == NULL) return PS_E_NO_MEMORY;
    int32_t found = ps_core_dedup_find_batch(p->c, (const char *)p->name.data, p->name.len,
                                            p->body.data, p->body.len, firsts, (int32_t)count);
    for (int32_t i = 0; i < found; i++) {
        places[i] = firsts[i].physical_offset;
        take_first(p, &firsts[i]);
    }
    p->places = places;
    free(firsts);
    return found > 0;
}

/* ---- composing ---- */

/* The properties as stored, into ca_send.sd_props. */
static int compose_properties(putting *p, ps_error *e) {
    ps_buffer *b = &ps_mine(p->c)->ca_send.sd_props;
    ps_placement placed = {.properties = text_of(p->s->properties),
                           .drop = {(const uint8_t *)p->d->drop, p->d->drop_len},
                           .add = {(const uint8_t *)p->d->add, p->d->add_len},
                           .light = {(const uint8_t *)p->light, p->light_len},
                           .relit = p->light_len > 0 && p->s->queues,
                           .stamp = text_of(p->stamp),
                           .restamped = p->s->restamped && p->stamp.len > 0,
                           .pop = p->s->pop,
                           .unranked = p->unranked,
                           .topic = text_of(p->name),
                           .queue_id = p->queue_id,
                           .level = p->half ? 0 : p->level,
                           .half = p->half,
                           .timed = p->timed,
                           .out_ms = p->out_ms,
                           .uniq = text_of(p->uniq)};
    b->len = 0;
    uint8_t *to = ps_buffer_room(b, ps_place_room(&placed));
    if (to == NULL) return ps_no_memory(e, NULL, "no memory to compose the properties");
    b->len = ps_place_properties(&placed, to);
    return 0;
}

static void draft_message(const putting *p, ps_message *m) {
    const ps_send *s = p->s;
    *m = (ps_message){.body = p->body.data,
                      .body_len = p->body.len,
                      .properties = ps_mine(p->c)->ca_send.sd_props.data,
                      .properties_len = ps_mine(p->c)->ca_send.sd_props.len,
                      .queue_id = p->queue_id,
                      .flag = s->flag,
                      .sys_flag = s->sys_flag,
                      .reconsume_times = s->reconsume_times,
                      .born_timestamp = s->born_timestamp,
                      .born_host_len = p->host_len};
    memcpy(m->born_host, p->host, (size_t)p->host_len);
}

/* ---- putting ---- */

/* As upstream calls it; the order is upstream's, too (BrokerMetricsManager.getMessageType). What
 * was stored before is counted no more. */
static int32_t kind_of(const putting *p) {
    int32_t asks = p->s->asks;
    if (p->again) return PS_KIND_AGAIN;
    if (asks & PS_ASKS_TRANSACTION) return PS_KIND_TRANSACTION;
    if (asks & PS_ASKS_ORDER) return PS_KIND_FIFO;
    return asks & (PS_ASKS_DELAY | PS_ASKS_TIME) ? PS_KIND_DELAY : PS_KIND_NORMAL;
}

static void count_put(const putting *p, ps_topic_entry *entry) {
    ps_topic_entry *to = p->entry;
    ps_count_put(p->c, entry, kind_of(p), p->count, p->bytes);
    /* Who reads lite topics does not get it; several threads may count at once. */
    if (to != NULL && (to->te_flags & PS_TOPIC_LITE) && p->s->lite.len == 0 && !p->again)
        __atomic_fetch_add(&to->te_plain, p->count, __ATOMIC_RELAXED);
}

/* Where the message waits, or goes at once: it is counted there, as upstream does. */
static ps_topic *place_message(putting *p, ps_message *m, ps_topic_entry **entry) {
    ps_core *c = p->c;
    ps_topic *to = p->topic;
    *entry = p->entry;
    if (p->half) {
        to = c->co_tx->tx_half;
        m->queue_id = 0;
        m->sys_flag &= ~PS_SYS_TX_MASK;
    } else if (p->level > 0) {
        to = c->co_watched.wq_schedule;
        m->queue_id = p->level - 1;
    } else if (p->timed) {
        to = c->co_watched.wq_timer;
        m->queue_id = 0;
    }
    if (to != p->topic) {
        ps_topic_entry *found =
            ps_core_find_topic(c, (const uint8_t *)to->tp_name, to->tp_len);
        if (found != NULL) *entry = found;
    }
    return to;
}

static int put_one(putting *p, ps_error *e) {
    ps_core *c = p->c;
    ps_topic_entry *counted;
    ps_put_result put;
    ps_message m;
    if (p->half && !ps_halves_reserve(c->co_tx, p->s->group, p->name))
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a half message names its producer group in PGROUP, with at most %d bytes",
                       PS_TOPIC_MAX);
    int code = compose_properties(p, e);
    if (code < 0) return code;
    draft_message(p, &m);
    ps_topic *to = place_message(p, &m, &counted);
    put.error.code = 0;
    code = ps_put_message(c->co_store, to, &m, &put);
    if (code < 0) {
        *e = put.error;
        return code;
    }
    p->count = 1;
    p->queue_offset = put.queue_offset;
    p->physical = put.physical_offset;
    p->places = &p->physical;
    p->bytes = put.size;
    p->end = put.physical_offset + put.size;
    if (p->timed && !ps_sent_handle(c, p->name, p->out_ms, p->uniq, &p->handle))
        return ps_no_memory(e, NULL, "no memory for a handle");
    if (p->half) ps_tx_stored(c, &put, p->s->group, p->name, p->s->immunity_s);
    if (p->key.len > 0)
        ps_core_dedup_add(c, (const char *)p->name.data, p->name.len, (const char *)p->key.data,
                          p->key.len, p->physical);
    count_put(p, counted);
    return 0;
}

/* Messages of a batch; 0: it is malformed. */
static int64_t count_items(ps_slice body) {
    ps_batch_item item = {0};
    int64_t at = 0, count = 0;
    int more;
    while ((more = ps_batch_item_next(body.data, body.len, &at, &item)) > 0) count++;
    return more < 0 ? 0 : count;
}

static int put_batch(putting *p, ps_error *e) {
    ps_core *c = p->c;
    ps_put_result put;
    ps_message m;
    int64_t stored = 0, count = count_items(p->body);
    if (p->level > 0 || (p->s->asks & PS_ASKS_TRANSACTION))
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a batch cannot be delayed or transactional");
    if (count > BATCH_MAX)
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a batch of %lld messages, %d are allowed", (long long)count, BATCH_MAX);
    ps_buffer *room = &ps_mine(c)->ca_send.sd_places;
    room->len = 0;
    int64_t *places = (int64_t *)ps_buffer_room(room, (count + 1) * (int64_t)sizeof *places);
    if (places == NULL) return ps_no_memory(e, NULL, "no memory for the places of a batch");
    int code = p->once && count > 0 ? is_repeated_batch(p, places, count) : 0;
    if (code != 0)
        return code < 0 ? ps_fail(e, code, ENOMEM, -1, NULL, "no memory for the places of a batch")
                        : 0;
    if ((code = compose_properties(p, e)) < 0) return code;
    draft_message(p, &m);
    put.error.code = 0;
    code = ps_put_client_batch(c->co_store, p->topic, &m, &stored, places, &put);
    if (code < 0) {
        *e = put.error;
        return code;
    }
    p->count = (int32_t)stored;
    p->places = places;
    p->queue_offset = put.queue_offset - stored + 1;
    p->physical = places[0];
    p->end = put.physical_offset + put.size;
    p->bytes = p->end - places[0];
    if (p->once)
        ps_core_dedup_add_batch(c, (const char *)p->name.data, p->name.len, p->body.data,
                                p->body.len, places, stored);
    count_put(p, p->entry);
    return 0;
}

/* Puts it, or finds it there: 0 or an error. Java's consumers unpack a record that says it holds a
 * batch, and stop at one that does not; upstream refuses it, too (HookUtils.checkInnerBatch). */
static int carry_out(putting *p, ps_error *e) {
    int code = resolve_decision(p, e);
    if (code < 0) return code;
    if ((p->s->asks & PS_ASKS_INNER) && !p->again)
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a topic of this store keeps no batches in one record: leave INNER_NUM and"
                       " bit 7 of sysFlag out");
    if (p->wait && (code = ps_safe_refuse(&p->c->co_store->st_safe, e)) < 0) return code;
    if (p->s->batch) return put_batch(p, e);
    return is_repeat(p) ? 0 : put_one(p, e);
}

/* ---- sends ---- */

static putting putting_of_frame(ps_conn *n, const ps_send *s, const ps_decision *d,
                                const ps_command *command) {
    ps_core *c = n->cn_core;
    return (putting){.c = c,
                     .s = s,
                     .d = d,
                     .body = command->body,
                     .stamp = ps_slice_from(c->co_settings.se_extra, c->co_settings.se_extra_len),
                     .host = n->cn_host,
                     .host_len = n->cn_host_len};
}

/* A reply is answered without an id, as upstream's is. */
static ps_answer answer_of(const putting *p, const ps_command *command) {
    bool reply = command->code == PS_REQUEST_SEND_REPLY_MESSAGE ||
                 command->code == PS_REQUEST_SEND_REPLY_MESSAGE_V2;
    const ps_decision *d = p->d;
    return (ps_answer){.opaque = command->opaque,
                       .serialize = command->serialize,
                       .code = d->code,
                       .queue_id = d->logical ? d->logical_queue : p->answer_queue_id,
                       .count = p->count,
                       .queue_offset = d->logical == PS_LOGICAL_QUEUE
                                           ? -1
                                           : p->queue_offset + d->logical_delta,
                       .physical = p->places,
                       .uniq = reply ? (ps_slice){0} : p->uniq,
                       .handle = p->handle,
                       .remark = {d->remark_len > 0 ? (const uint8_t *)d->remark : NULL,
                                  d->remark_len},
                       .end = p->end};
}

/* 1, or an error. */
static int finish_put(ps_conn *n, const putting *p, const ps_command *command) {
    ps_answer a = answer_of(p, command);
    if (command->flag & PS_FLAG_ONEWAY) return 1;
    return ps_sent_answer(n, &a, p->wait, p->bytes > 0) < 0 ? PS_E_NO_MEMORY : 1;
}

static const ps_decision AS_ASKED = {.put = 1,
                                     .queue_id = PS_AS_ASKED,
                                     .level = PS_AS_ASKED,
                                     .role = PS_AS_ASKED,
                                     .wait = PS_AS_ASKED};

/* Whether the tables hold all that a decision on it needs. Then it is: as asked. */
static bool is_decided(const putting *p) {
    const ps_send *s = p->s;
    const ps_topic_entry *t = p->entry;
    if (s->bad != 0 || t == NULL || !(t->te_flags & PS_SEND_HOT) ||
        !(t->te_perm & PS_PERM_WRITE) || t->te_write_queues == 0)
        return false;
    int32_t queues =
        t->te_read_queues > t->te_write_queues ? t->te_read_queues : t->te_write_queues;
    if (s->queue_id >= queues) return false;
    if ((s->asks & PS_ASKS_QUEUES) &&
        (s->batch || !is_lite(s, t) ||
         ps_lite_name_problem(s->lite.data, s->lite.len, PS_LITE_NAME_MAX) != 0))
        return false;
    if (s->batch) return true;
    if (s->uniq.len == 0) return false;
    return ps_send_is_half(s->asks, s->reconsume_times, s->level) ? p->c->co_tx->tx_conf.on
                                        : (s->sys_flag & PS_SYS_TX_MASK) == 0;
}

/* Whether it changes tables: those of halves, or of what is not to be repeated. */
static bool wants_alone(const putting *p) {
    const ps_send *s = p->s;
    return ps_send_is_half(s->asks, s->reconsume_times, s->level) ||
           (p->entry->te_flags & PS_SEND_ONCE);
}

int ps_core_send(ps_conn *n, const ps_command *command) {
    ps_send s;
    ps_error e;
    ps_send_read(command, &s);
    putting p = putting_of_frame(n, &s, &AS_ASKED, command);
    p.entry = ps_core_find_topic(p.c, s.topic.data, s.topic.len);
    if (!is_decided(&p)) return 0;
    if (!ps_is_alone(p.c) && wants_alone(&p)) {
        ps_be_alone(p.c);
        p.entry = ps_core_find_topic(p.c, s.topic.data, s.topic.len);
        if (!is_decided(&p)) return 0;
    }
    uint64_t random = ps_mine(p.c)->ca_random;
    if (carry_out(&p, &e) == 0) return finish_put(n, &p, command);
    __atomic_fetch_add(&p.c->co_counters.cc_totals.put_failures, 1, __ATOMIC_RELAXED);
    /* The broker tries once more, the same queue, and says why not. */
    ps_mine(p.c)->ca_random = random;
    return 0;
}

int ps_core_put(ps_conn *n, const ps_plain_put *put, ps_plain_place *out) {
    ps_core *c = n->cn_core;
    ps_send s = {.code = PS_REQUEST_SEND_MESSAGE_V2,
                 .topic = ps_slice_from(put->topic, put->topic_len),
                 .queue_id = put->queue_id,
                 .template_queues = TEMPLATE_QUEUES,
                 .max_reconsume_times = -1,
                 .born_timestamp = put->born_ms,
                 .body_len = put->body_len};
    ps_error e;
    ps_command command = {.body = {put->body, (int32_t)put->body_len}};
    ps_send_read_properties((ps_slice){put->properties, put->properties_len}, &s);
    putting p = putting_of_frame(n, &s, &AS_ASKED, &command);
    p.entry = ps_core_find_topic(c, s.topic.data, s.topic.len);
    if (!is_decided(&p)) return 0;
    if (carry_out(&p, &e) < 0) {
        c->co_counters.cc_totals.put_failures++;
        return 0;
    }
    *out = (ps_plain_place){p.queue_offset, p.physical, p.end, (const char *)p.handle.data,
                            p.handle.len};
    if (ps_safe_must_wait(&c->co_store->st_safe, p.end)) ps_mine(c)->ca_work.wk_puts_waiting++;
    return 1;
}

/* ---- decisions of the broker ---- */

static int open_send(ps_conn *n, const uint8_t *frame, int64_t len, ps_error *e) {
    ps_core *c = n->cn_core;
    ps_call *call = ps_mine(c);
    ps_call_send *open = &call->ca_send;
    int64_t wanted;
    open->sd_frame = NULL;
    if (open->sd_command == NULL &&
        (open->sd_command = malloc(sizeof *open->sd_command)) == NULL)
        return ps_no_memory(e, NULL, "no memory for a send");
    int64_t took =
        ps_command_decode(frame, len, c->co_settings.se_frame_max, call->ca_scratch,
                          open->sd_command, &wanted, e);
    if (took < 0) return (int)took;
    if (took != len)
        return ps_fail(e, PS_E_FRAME, 0, -1, NULL, "%lld bytes are not one whole frame",
                       (long long)len);
    ps_send_read(open->sd_command, &open->sd_send);
    open->sd_frame = frame;
    return 0;
}

int ps_conn_read_send(ps_conn *n, const uint8_t *frame, int64_t len, ps_send *out, ps_error *e) {
    PS_CORE_HELD(n->cn_core);
    int code = open_send(n, frame, len, e);
    if (code == 0) *out = ps_mine(n->cn_core)->ca_send.sd_send;
    return code;
}

static int refuse_send(ps_conn *n, const ps_command *command, const ps_decision *d, ps_sent *sent) {
    putting p = {.d = d};
    ps_answer a = answer_of(&p, command);
    *sent = (ps_sent){.code = d->code, .queue_offset = -1, .physical_offset = -1};
    if (command->flag & PS_FLAG_ONEWAY) return 0;
    return ps_sent_refuse(n->cn_core, &a) < 0 ? PS_E_NO_MEMORY : 0;
}

static int describe_sent(const putting *p, ps_sent *sent, ps_error *e) {
    ps_answer a = {.count = p->count, .physical = p->places};
    ps_slice ids;
    if (!ps_sent_ids(p->c, &a, &ids)) return ps_no_memory(e, NULL, "no memory for the message ids");
    *sent = (ps_sent){.code = p->d->code,
                      .count = p->count,
                      .queue_id = p->answer_queue_id,
                      .half = p->half,
                      .queue_offset = p->queue_offset,
                      .physical_offset = p->physical,
                      .end = p->end,
                      .bytes = p->bytes,
                      .ids = (const char *)ids.data,
                      .ids_len = ids.len};
    return 0;
}

int ps_core_decide(ps_conn *n, const uint8_t *frame, int64_t len, const ps_decision *d,
                   ps_sent *sent, ps_error *e) {
    ps_core *c = n->cn_core;
    ps_call *call = ps_mine(c);
    int code = call->ca_send.sd_frame == frame ? 0 : open_send(n, frame, len, e);
    if (code < 0) return code;
    const ps_command *command = call->ca_send.sd_command;
    call->ca_rpcs.rp_request = command->code;
    call->ca_rpcs.rp_answered = PS_CODE_SUCCESS;
    putting p = putting_of_frame(n, &call->ca_send.sd_send, d, command);
    if (!d->put) return refuse_send(n, command, d, sent);
    if (call->ca_send.sd_send.bad != 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "field %c of the send cannot be read",
                       (char)call->ca_send.sd_send.bad);
    code = carry_out(&p, e);
    if (code < 0) {
        /* A send that the tables decide has failed before, and was counted then. */
        p.entry = ps_core_find_topic(c, p.s->topic.data, p.s->topic.len);
        bool tried = !ps_conn_delegates(n, command->code) && is_decided(&p);
        c->co_counters.cc_totals.put_failures += !tried;
        return code;
    }
    code = finish_put(n, &p, command);
    return code < 0 ? code : describe_sent(&p, sent, e);
}

/* ---- messages that are put again ---- */

/* What a stored record asks for: what it asked for as a send, but that the broker has stamped it,
 * and that it goes where it was to go in the end. */
static void read_record(const ps_record *r, int32_t more_tries, ps_send *s) {
    ps_text topic = {r->topic, r->topic_len};
    int32_t queue_id = r->queue_id;
    *s = (ps_send){.born_timestamp = r->born_timestamp,
                   .sys_flag = r->sys_flag & ~PS_SYS_TX_MASK,
                   .flag = r->flag,
                   .reconsume_times = r->reconsume_times + more_tries,
                   .body_len = r->body_len};
    ps_real_place(r->properties, r->properties_len, &topic, &queue_id);
    s->topic = (ps_slice){topic.data, (int32_t)topic.len};
    s->queue_id = queue_id;
    ps_send_read_properties((ps_slice){r->properties, r->properties_len}, s);
}

int ps_core_put_again(ps_core *c, int64_t physical, int32_t more_tries, const ps_decision *d,
                      ps_sent *sent, ps_error *e) {
    PS_CORE_HELD(c);
    int64_t avail, end;
    ps_mapfile *mf = NULL;
    ps_record r;
    ps_send s;
    if (ps_enter(c->co_store) < 0) return ps_refuse_closed(c->co_store, e);
    end = atomic_load_explicit(&c->co_store->st_log.lg_end, memory_order_acquire);
    const uint8_t *at = NULL;
    if (physical < PS_TIER_PLACE) {
        at = ps_log_at(&c->co_store->st_log, physical, end, &avail, &mf);
    } else if ((mf = ps_tier_at(&c->co_store->st_tier, physical)) != NULL) {
        at = mf->mf_map + (physical - mf->mf_base);
        avail = mf->mf_size - (physical - mf->mf_base);
    }
    int code = 0;
    ps_mine(c)->ca_send.sd_frame = NULL;
    if (at == NULL || ps_record_decode(at, avail, &r) != PS_REC_OK ||
        r.physical_offset != physical) {
        code = ps_fail(e, PS_E_NOT_FOUND, 0, physical, NULL,
                       "no whole record lies at %lld of the log", (long long)physical);
    } else {
        read_record(&r, more_tries, &s);
        putting p = {.c = c,
                     .s = &s,
                     .d = d,
                     .again = true,
                     .body = {r.body, r.body_len},
                     .host = r.born_host,
                     .host_len = r.born_host_len};
        code = carry_out(&p, e);
        if (code == 0) code = describe_sent(&p, sent, e);
        if (code < 0) c->co_counters.cc_totals.put_failures++;
    }
    ps_mapfile_unref(mf);
    ps_leave(c->co_store);
    return code;
}
