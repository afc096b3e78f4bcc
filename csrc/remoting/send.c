/* Sends that need no decision: the topic is published as hot, the queue exists, and no property
 * asks for more than a delay level. Everything else (auto-creation, retry and dead-letter redirect,
 * transactions, timers, refusals with their codes) is the broker's. Spec remoting.md sections 2.1,
 * 8; upstream SendMessageProcessor, HookUtils.handleScheduleMessage. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "remoting/halves.h"
#include "remoting/dedup.h"

#define CODE_SEND_MESSAGE 10
#define REDIRECTED_FIELDS 96 /* bytes of the names and numbers that are added, at most */

/* ---- answers that wait for the disk ---- */

typedef struct held_item {
    int32_t opaque, serialize, queue_id, count;
    int64_t queue_offset;
    int64_t at;      /* of the physical offsets, in numbers */
    int64_t uniq_at; /* of the UNIQ_KEY, in bytes */
    int32_t uniq_len;
} held_item;

struct ps_held {
    int64_t he_conn_id, he_durable_at, he_began_ns, he_count;
    ps_buffer he_items, he_offsets, he_texts;
};

static void free_held(ps_held *h) {
    ps_buffer_free(&h->he_items);
    ps_buffer_free(&h->he_offsets);
    ps_buffer_free(&h->he_texts);
    free(h);
}

void ps_held_detach(ps_core *c, ps_step *out) {
    out->held = c->co_held;
    out->durable_at = c->co_held != NULL ? c->co_held->he_durable_at : 0;
    c->co_held = NULL;
}

/* What an answer is made of. */
typedef struct sent {
    int32_t opaque, serialize, queue_id, count;
    int64_t queue_offset;
    const int64_t *physical;
    ps_slice uniq;
    int64_t end; /* of the last record, in the log */
} sent;

static bool append(ps_buffer *b, const void *data, int64_t len) {
    uint8_t *to = ps_buffer_room(b, len);
    if (to == NULL) return false;
    if (len > 0) memcpy(to, data, (size_t)len);
    b->len += len;
    return true;
}

static bool hold_answer(ps_core *c, int64_t conn_id, const sent *a) {
    if (c->co_held == NULL) {
        c->co_held = calloc(1, sizeof *c->co_held);
        if (c->co_held == NULL) return false;
        c->co_held->he_conn_id = conn_id;
        c->co_held->he_began_ns = c->co_began_ns;
    }
    ps_held *h = c->co_held;
    held_item item = {a->opaque,       a->serialize,
                      a->queue_id,     a->count,
                      a->queue_offset, h->he_offsets.len / (int64_t)sizeof(int64_t),
                      h->he_texts.len, a->uniq.len};
    if (!append(&h->he_offsets, a->physical, a->count * (int64_t)sizeof(int64_t)) ||
        !append(&h->he_texts, a->uniq.data, a->uniq.len) ||
        !append(&h->he_items, &item, sizeof item))
        return false;
    if (a->end > h->he_durable_at) h->he_durable_at = a->end;
    return true;
}

/* ---- the answer ---- */

/* The offset message ids, joined by commas, into co_props (done with by now). */
static bool join_ids(ps_core *c, const sent *a, ps_slice *out) {
    const ps_conf *conf = &c->co_store->st_conf;
    char id[57];
    c->co_props.len = 0;
    for (int32_t i = 0; i < a->count; i++) {
        int len = ps_offset_msg_id(conf->store_host, conf->store_host_len, a->physical[i], id);
        if ((i > 0 && !append(&c->co_props, ",", 1)) || !append(&c->co_props, id, len))
            return false;
    }
    *out = (ps_slice){c->co_props.data, (int32_t)c->co_props.len};
    return true;
}

static int answer(ps_core *c, const sent *a, int32_t code) {
    char queue[24], offset[24];
    ps_slice ids;
    ps_command reply;
    if (!join_ids(c, a, &ids)) return PS_E_NO_MEMORY;
    reply.serialize = a->serialize;
    reply.code = code;
    reply.opaque = a->opaque;
    reply.remark = (ps_slice){NULL, 0};
    reply.fields[0] = (ps_field){ps_slice_of("queueId"), ps_slice_of_number(a->queue_id, queue)};
    reply.fields[1] = (ps_field){ps_slice_of("transactionId"), a->uniq};
    reply.fields[2] = (ps_field){ps_slice_of("msgId"), ids};
    reply.fields[3] =
        (ps_field){ps_slice_of("TRACE_ON"), ps_slice_of(c->co_trace_on ? "true" : "false")};
    reply.fields[4] = (ps_field){ps_slice_of("MSG_REGION"), ps_slice_of(c->co_region)};
    reply.fields[5] =
        (ps_field){ps_slice_of("queueOffset"), ps_slice_of_number(a->queue_offset, offset)};
    reply.field_count = 6;
    return ps_core_answer(c, &reply, 0);
}

void ps_held_end(ps_core *c, ps_held *h, int32_t code, ps_step *out) {
    const held_item *items = (const held_item *)h->he_items.data;
    if (out != NULL) c->co_out.len = 0;
    for (size_t i = 0; out != NULL && i < (size_t)h->he_items.len / sizeof *items; i++) {
        const held_item *it = &items[i];
        sent a = {.opaque = it->opaque,
                  .serialize = it->serialize,
                  .queue_id = it->queue_id,
                  .count = it->count,
                  .queue_offset = it->queue_offset,
                  .physical = (const int64_t *)h->he_offsets.data + it->at,
                  .uniq = {h->he_texts.data + it->uniq_at, it->uniq_len}};
        answer(c, &a, code);
    }
    if (out != NULL)
        *out = (ps_step){.out = c->co_out.data, .out_len = c->co_out.len, .conn_id = h->he_conn_id};
    if (out != NULL) ps_times_put(c, h->he_began_ns, h->he_count);
    free_held(h);
}

/* ---- the request ---- */

typedef struct request {
    ps_slice topic, properties;
    int64_t queue_id, sys_flag, flag, born, reconsume;
    bool batch;
    bool once;    /* the topic is one of those whose repeats are not stored */
    ps_slice key; /* by which its repeats are known; empty: by none */
} request;

static bool number_within(ps_slice s, int64_t low, int64_t high, int64_t *out) {
    return ps_slice_number(s, out) && *out >= low && *out <= high;
}

/* The letter of a field's long name, 0 when the core does not look at it. */
static char letter_of(ps_slice name) {
    static const struct {
        const char *name;
        char letter;
    } names[] = {{"topic", 'b'},         {"queueId", 'e'},        {"sysFlag", 'f'},
                 {"bornTimestamp", 'g'}, {"flag", 'h'},           {"properties", 'i'},
                 {"batch", 'm'},         {"reconsumeTimes", 'j'}, {NULL, 0}};
    int i = 0;
    while (names[i].name != NULL && !ps_slice_is(name, names[i].name)) i++;
    return names[i].letter;
}

static bool read_request(const ps_command *command, request *out) {
    bool long_names = command->code == CODE_SEND_MESSAGE, good = true;
    *out = (request){.queue_id = INT64_MIN, .born = INT64_MIN};
    for (int32_t i = 0; i < command->field_count && good; i++) {
        const ps_field *f = &command->fields[i];
        char letter = long_names ? letter_of(f->name) : f->name.len == 1 ? (char)*f->name.data : 0;
        switch (letter) {
        case 'b':
            out->topic = f->value;
            break;
        case 'e':
            good = number_within(f->value, INT32_MIN, INT32_MAX, &out->queue_id);
            break;
        case 'f':
            good = number_within(f->value, INT32_MIN, INT32_MAX, &out->sys_flag);
            break;
        case 'g':
            good = number_within(f->value, 0, INT64_MAX, &out->born);
            break;
        case 'h':
            good = number_within(f->value, INT32_MIN, INT32_MAX, &out->flag);
            break;
        case 'i':
            out->properties = f->value;
            break;
        case 'j':
            good = f->value.len == 0 || number_within(f->value, 0, INT32_MAX, &out->reconsume);
            break;
        case 'm':
            out->batch = ps_slice_true(f->value);
            break;
        default:
            break;
        }
    }
    return good && out->topic.data != NULL && out->queue_id != INT64_MIN && out->born > 0;
}

/* ---- properties ---- */

typedef struct wishes { /* what the properties ask for */
    ps_slice uniq, group;
    int64_t level;
    int32_t immunity_s;
    bool wait, half;
} wishes;

static bool name_is(const ps_property *p, const char *name, int32_t len) {
    return p->name_len == len && memcmp(p->name, name, (size_t)len) == 0;
}
#define NAME_IS(p, text) name_is(p, text, (int32_t)sizeof(text) - 1)

/* False when one of them is not for the core. */
static bool read_wishes(ps_slice properties, wishes *out) {
    ps_property p;
    int32_t at = 0;
    *out = (wishes){.wait = true, .immunity_s = PS_IMMUNITY_NONE};
    while (ps_property_next(properties.data, properties.len, &at, &p)) {
        ps_slice value = {p.value, p.value_len};
        switch (p.name[0]) {
        case 'U':
            if (NAME_IS(&p, "UNIQ_KEY")) out->uniq = value;
            break;
        case 'W':
            if (NAME_IS(&p, "WAIT")) out->wait = ps_slice_true(value);
            break;
        case 'D':
            if (NAME_IS(&p, "DELAY") && !number_within(value, INT32_MIN, INT32_MAX, &out->level))
                return false;
            break;
        case 'T':
            if (NAME_IS(&p, "TRAN_MSG")) out->half = ps_slice_true(value);
            if (p.name_len > 6 && memcmp(p.name, "TIMER_", 6) == 0) return false;
            break;
        case 'P':
            if (NAME_IS(&p, "POP_CK")) return false;
            if (NAME_IS(&p, "PGROUP")) out->group = value;
            break;
        case 'C':
            if (NAME_IS(&p, "CHECK_IMMUNITY_TIME_IN_SECONDS") && value.len > 0)
                out->immunity_s = ps_tx_immunity(value.data, value.len);
            break;
        case 'I':
            if (NAME_IS(&p, "INNER_MULTI_DISPATCH")) return false;
            break;
        default:
            break;
        }
    }
    return out->uniq.len > 0 && out->uniq.len <= PS_TOPIC_MAX;
}

static void add_property(ps_buffer *b, const char *name, ps_slice value) {
    append(b, name, (int64_t)strlen(name));
    append(b, "\1", 1);
    append(b, value.data, value.len);
    append(b, "\2", 1);
}

/* What the broker says of a half, and nobody else. */
static bool of_halves(const ps_property *p) {
    return NAME_IS(p, "REAL_TOPIC") || NAME_IS(p, "REAL_QID") || NAME_IS(p, "__transactionId__") ||
           NAME_IS(p, "TRANSACTION_CHECK_TIMES") || NAME_IS(p, "TRAN_PREPARED_QUEUE_OFFSET");
}

/* The properties of a half, into co_props: without what an earlier life of the message left. */
static bool compose_half(ps_core *c, const request *r, const wishes *w) {
    ps_buffer *b = &c->co_props;
    char number[24];
    ps_property p;
    int32_t at = 0;
    b->len = 0;
    if (ps_buffer_room(b, r->properties.len + r->topic.len + w->uniq.len + c->co_extra_len +
                              REDIRECTED_FIELDS) == NULL)
        return false;
    while (ps_property_next(r->properties.data, r->properties.len, &at, &p)) {
        if (of_halves(&p)) continue;
        append(b, p.name, p.name_len);
        append(b, "\1", 1);
        append(b, p.value, p.value_len);
        append(b, "\2", 1);
    }
    append(b, c->co_extra, c->co_extra_len);
    add_property(b, "__transactionId__", w->uniq);
    add_property(b, "REAL_TOPIC", r->topic);
    add_property(b, "REAL_QID", ps_slice_of_number(r->queue_id, number));
    return true;
}

/* The properties as stored, into co_props: those of the client without `drop`, the broker's, and
 * for a delayed message where it is to go. */
static bool compose(ps_core *c, const request *r, const char *drop, int64_t level) {
    ps_buffer *b = &c->co_props;
    char number[24];
    ps_property p;
    int32_t at = 0;
    b->len = 0;
    if (ps_buffer_room(b, r->properties.len + r->topic.len + c->co_extra_len + REDIRECTED_FIELDS) ==
        NULL)
        return false;
    if (drop == NULL && level == 0) {
        append(b, r->properties.data, r->properties.len);
        if (b->len > 0 && b->data[b->len - 1] != PS_PROPERTY_SEPARATOR) append(b, "\2", 1);
    } else {
        while (ps_property_next(r->properties.data, r->properties.len, &at, &p)) {
            if ((drop != NULL && name_is(&p, drop, (int32_t)strlen(drop))) ||
                (level > 0 && NAME_IS(&p, "DELAY")))
                continue;
            append(b, p.name, p.name_len);
            append(b, "\1", 1);
            append(b, p.value, p.value_len);
            append(b, "\2", 1);
        }
    }
    append(b, c->co_extra, c->co_extra_len);
    if (level > 0) {
        add_property(b, "DELAY", ps_slice_of_number(level, number));
        add_property(b, "REAL_TOPIC", r->topic);
        add_property(b, "REAL_QID", ps_slice_of_number(r->queue_id, number));
    }
    return true;
}

/* ---- putting ---- */

static void message_of(ps_conn *n, const ps_command *command, const request *r, bool wait,
                       ps_message *m) {
    *m = (ps_message){.body = command->body.data,
                      .body_len = command->body.len,
                      .properties = n->cn_core->co_props.data,
                      .properties_len = n->cn_core->co_props.len,
                      .queue_id = (int32_t)r->queue_id,
                      .flag = (int32_t)r->flag,
                      .sys_flag = (int32_t)r->sys_flag,
                      .reconsume_times = (int32_t)r->reconsume,
                      .born_timestamp = r->born,
                      .born_host_len = n->cn_host_len,
                      .wait = wait};
    memcpy(m->born_host, n->cn_host, sizeof m->born_host);
}

/* Answers now, or when the log is on the disk. */
static int answer_in_time(ps_conn *n, const sent *a, bool wait, bool oneway) {
    ps_core *c = n->cn_core;
    if (oneway) return 1;
    if (c->co_store->st_conf.sync_flush && wait)
        return hold_answer(c, n->cn_id, a) ? 1 : PS_E_NO_MEMORY;
    return answer(c, a, PS_CODE_SUCCESS) < 0 ? PS_E_NO_MEMORY : 1;
}

static int settle(ps_conn *n, ps_topic_entry *t, const sent *a, int64_t bytes, bool wait,
                  bool oneway) {
    ps_core *c = n->cn_core;
    c->co_put = true;
    t->te_puts += a->count;
    t->te_bytes += bytes;
    c->co_totals.puts += a->count;
    c->co_totals.put_bytes += bytes;
    int64_t waited = c->co_held != NULL ? c->co_held->he_items.len : 0;
    int code = answer_in_time(n, a, wait, oneway);
    if (c->co_held != NULL && c->co_held->he_items.len > waited) { /* a put, and no repeat, waits */
        c->co_held->he_count += a->count;
        c->co_puts_waiting += a->count;
    }
    return code;
}

/* ---- repeats ---- */

static void remember(ps_core *c, const request *r, int64_t physical) {
    if (r->key.len > 0)
        ps_core_dedup_add(c, (const char *)r->topic.data, r->topic.len, (const char *)r->key.data,
                         r->key.len, physical);
}

/* Answers a repeat with the place of the first one, once that is as safe as the repeat asks for. 0:
 * it is none. */
static int answer_repeat(ps_conn *n, const ps_command *command, request *r, const wishes *w) {
    ps_core *c = n->cn_core;
    ps_first first;
    r->key = ps_dedup_key(c, r->properties);
    if (r->key.len == 0 || !ps_core_dedup_find(c, (const char *)r->topic.data, r->topic.len,
                                              (const char *)r->key.data, r->key.len, &first))
        return 0;
    sent a = {.opaque = command->opaque,
              .serialize = command->serialize,
              .queue_id = first.queue_id,
              .count = 1,
              .queue_offset = first.queue_offset,
              .physical = &first.physical_offset,
              .uniq = w->uniq,
              .end = first.physical_offset + first.size};
    return answer_in_time(n, &a, w->wait, command->flag & PS_FLAG_ONEWAY);
}

/* The same for a batch of `count`; physical: room for so many. */
static int answer_repeated_batch(ps_conn *n, const ps_command *command, const request *r,
                                 const wishes *w, int64_t *physical, int64_t count) {
    ps_core *c = n->cn_core;
    ps_first *firsts = malloc((size_t)count * sizeof *firsts);
    if (firsts == NULL) return PS_E_NO_MEMORY;
    int32_t found =
        ps_core_dedup_find_batch(c, (const char *)r->topic.data, r->topic.len, command->body.data,
                                command->body.len, firsts, (int32_t)count);
    sent a = {.opaque = command->opaque,
              .serialize = command->serialize,
              .queue_id = found > 0 ? firsts[0].queue_id : 0,
              .count = found,
              .queue_offset = found > 0 ? firsts[0].queue_offset : 0,
              .physical = physical,
              .uniq = w->uniq};
    for (int32_t i = 0; i < found; i++) {
        int64_t end = firsts[i].physical_offset + firsts[i].size;
        physical[i] = firsts[i].physical_offset;
        if (end > a.end) a.end = end;
    }
    free(firsts);
    return found > 0 ? answer_in_time(n, &a, w->wait, command->flag & PS_FLAG_ONEWAY) : 0;
}

/* ---- the kinds of sends ---- */

static int send_one(ps_conn *n, const ps_command *command, ps_topic_entry *t, const request *r,
                    const wishes *w) {
    ps_core *c = n->cn_core;
    ps_topic *to = t->te_topic;
    ps_put_result put;
    ps_message m;
    int64_t levels = c->co_store->st_levels.count;
    int64_t level = w->level <= 0 ? 0 : w->level > levels ? levels : w->level;
    if (!compose(c, r, NULL, level)) return PS_E_NO_MEMORY;
    message_of(n, command, r, false, &m);
    if (level > 0) { /* and there it is counted, as upstream does */
        ps_topic_entry *schedule =
            ps_core_find_topic(c, (const uint8_t *)c->co_schedule->tp_name, c->co_schedule->tp_len);
        if (schedule != NULL) t = schedule;
        to = c->co_schedule;
        m.queue_id = (int32_t)level - 1;
    }
    put.error.code = 0;
    if (ps_put_message(c->co_store, to, &m, &put) < 0) {
        c->co_totals.put_failures++;
        return 0; /* the broker knows the answer to each failure */
    }
    remember(c, r, put.physical_offset);
    sent a = {.opaque = command->opaque,
              .serialize = command->serialize,
              .queue_id = (int32_t)r->queue_id,
              .count = 1,
              .queue_offset = put.queue_offset,
              .physical = &put.physical_offset,
              .uniq = w->uniq,
              .end = put.physical_offset + put.size};
    return settle(n, t, &a, put.size, w->wait, command->flag & PS_FLAG_ONEWAY);
}

/* A half: it goes to the half topic, and where it was meant to go once it is committed. The answer
 * names the half's place, by which its decision finds it, but the queue that was asked for. */
static int send_half(ps_conn *n, const ps_command *command, const request *r, const wishes *w) {
    ps_core *c = n->cn_core;
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)c->co_tx->tx_half->tp_name,
                                           c->co_tx->tx_half->tp_len);
    ps_put_result put;
    ps_message m;
    if (t == NULL || !ps_tx_ready(c, w->group, r->topic)) return 0;
    if (!compose_half(c, r, w)) return PS_E_NO_MEMORY;
    message_of(n, command, r, false, &m);
    m.queue_id = 0;
    m.sys_flag &= ~PS_SYS_TX_MASK;
    put.error.code = 0;
    if (ps_put_message(c->co_store, c->co_tx->tx_half, &m, &put) < 0) {
        c->co_totals.put_failures++;
        return 0;
    }
    ps_tx_stored(c, &put, w->group, r->topic, w->immunity_s);
    remember(c, r, put.physical_offset);
    sent a = {.opaque = command->opaque,
              .serialize = command->serialize,
              .queue_id = (int32_t)r->queue_id,
              .count = 1,
              .queue_offset = put.queue_offset,
              .physical = &put.physical_offset,
              .uniq = w->uniq,
              .end = put.physical_offset + put.size};
    return settle(n, t, &a, put.size, w->wait, command->flag & PS_FLAG_ONEWAY);
}

/* How many items, and whether each has its own UNIQ_KEY. -1: malformed. */
static int64_t count_items(ps_slice body, bool *all_unique) {
    ps_batch_item item = {0};
    ps_property p;
    int64_t at = 0, count = 0;
    int more;
    *all_unique = true;
    while ((more = ps_batch_item_next(body.data, body.len, &at, &item)) > 0) {
        count++;
        if (!ps_property_find(item.properties, item.properties_len, "UNIQ_KEY", 8, &p))
            *all_unique = false;
    }
    return more < 0 ? -1 : count;
}

/* Java's client puts an UNIQ_KEY of its own among the properties of the whole batch: stored, it
 * would hide the one of each message. */
static int send_batch(ps_conn *n, const ps_command *command, ps_topic_entry *t, const request *r,
                      const wishes *w) {
    ps_core *c = n->cn_core;
    ps_put_result put;
    ps_message m;
    bool all_unique;
    int64_t stored = 0, count = count_items(command->body, &all_unique);
    if (count <= 0 || w->level > 0 || t->te_len > PS_TOPIC_MAX_V1) return 0;
    int64_t *physical = malloc((size_t)count * sizeof *physical);
    if (physical == NULL || !compose(c, r, all_unique ? "UNIQ_KEY" : NULL, 0)) {
        free(physical);
        return PS_E_NO_MEMORY;
    }
    int code = r->once ? answer_repeated_batch(n, command, r, w, physical, count) : 0;
    if (code != 0) {
        free(physical);
        return code;
    }
    message_of(n, command, r, false, &m);
    put.error.code = 0;
    code = ps_put_client_batch(c->co_store, t->te_topic, &m, &stored, physical, &put);
    if (code == 0) {
        if (r->once)
            ps_core_dedup_add_batch(c, t->te_name, t->te_len, command->body.data, command->body.len,
                                   physical, stored);
        sent a = {.opaque = command->opaque,
                  .serialize = command->serialize,
                  .queue_id = (int32_t)r->queue_id,
                  .count = (int32_t)stored,
                  .queue_offset = put.queue_offset - stored + 1,
                  .physical = physical,
                  .uniq = w->uniq,
                  .end = put.physical_offset + put.size};
        code = settle(n, t, &a, put.physical_offset + put.size - physical[0], w->wait,
                      command->flag & PS_FLAG_ONEWAY);
    } else {
        c->co_totals.put_failures++;
        code = 0;
    }
    free(physical);
    return code;
}

static uint64_t next_random(ps_core *c) {
    c->co_random ^= c->co_random << 13;
    c->co_random ^= c->co_random >> 7;
    c->co_random ^= c->co_random << 17;
    return c->co_random;
}

int ps_core_send(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r;
    wishes w;
    if (!read_request(command, &r)) return 0;
    ps_topic_entry *t = ps_core_find_topic(c, r.topic.data, r.topic.len);
    if (t == NULL || !t->te_live || !(t->te_flags & PS_SEND_HOT) || !(t->te_perm & PS_PERM_WRITE) ||
        t->te_write_queues == 0)
        return 0;
    int32_t queues =
        t->te_read_queues > t->te_write_queues ? t->te_read_queues : t->te_write_queues;
    if (r.queue_id >= queues || command->body.len == 0) return 0;
    if (r.queue_id < 0) r.queue_id = (int64_t)(next_random(c) % (uint64_t)t->te_write_queues);
    if (!read_wishes(r.properties, &w)) return 0;
    /* Clients older than 4.6.1 let the property slip into their retries, which are delayed. */
    bool retried = r.reconsume > 0 && w.level > 0;
    bool half = w.half && !retried && !r.batch;
    if (!half && ((r.sys_flag & PS_SYS_TX_MASK) != 0 || (w.half && r.batch))) return 0;
    r.once = t->te_flags & PS_SEND_ONCE;
    int code = r.once && !r.batch ? answer_repeat(n, command, &r, &w) : 0;
    if (code != 0) return code;
    if (half) return send_half(n, command, &r, &w);
    return r.batch ? send_batch(n, command, t, &r, &w) : send_one(n, command, t, &r, &w);
}
