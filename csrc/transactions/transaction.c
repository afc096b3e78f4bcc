/* The moments of a transaction. A half is stored by send.c and enters the table here; its decision
 * (END_TRANSACTION) puts the final message, queues the op and takes it out, in one step that
 * nothing can come between. checks.c asks producers, outcomes.c finds decisions in the log.
 *
 * Policy. The first decision counts: the same one again does nothing, another one is refused. What
 * is refused, or would have to wait for the disk, is passed to the broker, which writes the answer.
 * A rollback has its op written with the call that decided it; a commit need not, since its final
 * message says which half it is of (preparedTransactionOffset), and recovery looks for it. A half
 * is never put back while it waits, as upstream does: what it would say, the table knows. One whose
 * topic was deleted meanwhile is not committed: it is rolled back, or discarded in the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "format/property.h"
#include "transactions/halves.h"
#include "core/lock.h"
#include "tables/tables.h"

#define OP_PROPERTIES PS_PROPERTY("WAIT", "true") PS_PROPERTY("TAGS", "d")
#define OPS_MAX (1 << 20) /* bytes of ops that could not be written; then decisions are refused */
#define OP_TEXT 24

static int64_t now_of(const ps_tx *x) {
    return x->tx_conf.now_ms > 0 ? x->tx_conf.now_ms : ps_now_ms();
}

static int64_t monotonic_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool slice_is(ps_slice s, const char *text, int32_t len) {
    return s.len == len && memcmp(s.data, text, (size_t)len) == 0;
}

/* ---- life ---- */

int ps_tx_make(ps_core *c, ps_error *e) {
    static const char *const names[] = {PS_HALF_TOPIC, PS_OP_TOPIC, PS_DISCARD_TOPIC};
    ps_tx *x = c->co_tx = calloc(1, sizeof *x);
    if (x == NULL) return ps_no_memory(e, NULL, "no memory for the transactions");
    ps_topic **topics[] = {&x->tx_half, &x->tx_op, &x->tx_discard};
    x->tx_core = c;
    x->tx_state.uncovered = -1;
    for (int i = 0; i < 3; i++) {
        *topics[i] = ps_topic_open(c->co_store, names[i], (int32_t)strlen(names[i]), 1, e);
        if (*topics[i] == NULL) return e != NULL && e->code < 0 ? e->code : PS_E_NO_MEMORY;
    }
    return 0;
}

void ps_tx_free(ps_core *c) {
    if (c->co_tx == NULL) return;
    ps_halves_free(c->co_tx);
    free(c->co_tx->tx_broker);
    free(c->co_tx);
}

int ps_core_tx_set(ps_core *c, const ps_tx_conf *conf, ps_error *e) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    char *broker = strdup(conf->broker != NULL ? conf->broker : "");
    if (broker == NULL) return ps_no_memory(e, NULL, "no memory for the name of the broker");
    free(x->tx_broker);
    x->tx_broker = broker;
    x->tx_conf = *conf;
    x->tx_conf.broker = broker;
    return 0;
}

/* ---- a half comes in ---- */

void ps_tx_stored(ps_core *c, const ps_put_result *put, ps_slice group, ps_slice topic,
                  int32_t immunity_s) {
    ps_half_row row = {.offset = put->queue_offset,
                       .physical = put->physical_offset,
                       .root = put->queue_offset,
                       .root_physical = put->physical_offset,
                       .store_ms = put->store_timestamp,
                       .immunity_s = immunity_s,
                       .group_len = group.len,
                       .topic_len = topic.len,
                       .group = (const char *)group.data,
                       .topic = (const char *)topic.data};
    ps_halves_add(c->co_tx, &row, 0);
    c->co_tx->tx_state.halves++;
}

int ps_core_tx_add(ps_core *c, const ps_half_row *row, int32_t saved, ps_error *e) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    ps_slice group = {(const uint8_t *)row->group, row->group_len};
    ps_slice topic = {(const uint8_t *)row->topic, row->topic_len};
    if (row->offset < 0 || row->root < 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, row->offset, NULL,
                       "the offset of a half message is negative");
    if (ps_halves_find(x, row->offset) != 0) return 1;
    if (!ps_halves_reserve(x, group, topic))
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, row->physical, NULL,
                       "limit of %lld open transactions reached", (long long)x->tx_state.open);
    ps_halves_add(x, row, saved ? PS_HALF_SAVED : 0);
    return 0;
}

int32_t ps_tx_immunity(const uint8_t *text, int32_t len) {
    ps_slice s = {text, len};
    int64_t value = -1;
    if (!ps_slice_number(s, &value) || value < 0) return PS_IMMUNITY_DEFAULT;
    return (int32_t)(value < INT32_MAX ? value : INT32_MAX);
}

int64_t ps_tx_immunity_ms(const ps_tx *x, const ps_half *h) {
    return h->hf_immunity_s >= 0 ? (int64_t)h->hf_immunity_s * 1000 : x->tx_conf.timeout_ms;
}

/* ---- records ---- */

bool ps_tx_record(ps_core *c, const ps_half *h, ps_record *r, ps_mapfile **mf) {
    if (ps_log_has(&c->co_store->st_log, h->hf_physical, r, mf) && r->queue_offset == h->hf_offset)
        return true;
    ps_mapfile_unref(*mf);
    *mf = NULL;
    return false;
}

bool ps_tx_with_checks(ps_core *c, const ps_record *r, int32_t checks) {
    uint8_t added[48];
    uint8_t *end = ps_property_put_number(added, "TRANSACTION_CHECK_TIMES", checks);
    ps_placement p = {.properties = {r->properties, r->properties_len},
                      .add = {added, end - added}};
    ps_mine(c)->ca_send.sd_props.len = 0;
    uint8_t *to = ps_buffer_room(&ps_mine(c)->ca_send.sd_props, ps_place_room(&p));
    if (to == NULL) return false;
    ps_mine(c)->ca_send.sd_props.len = ps_place_properties(&p, to);
    if (ps_mine(c)->ca_send.sd_props.len > PS_PROPERTIES_MAX) { /* too full for it: as they are */
        memcpy(to, r->properties, (size_t)r->properties_len);
        ps_mine(c)->ca_send.sd_props.len = r->properties_len;
    }
    return true;
}

static void message_of(const ps_record *r, int64_t prepared, ps_message *m) {
    *m = (ps_message){.body = r->body,
                      .body_len = r->body_len,
                      .properties = r->properties,
                      .properties_len = r->properties_len,
                      .flag = r->flag,
                      .sys_flag = r->sys_flag & ~PS_SYS_TX_MASK,
                      .reconsume_times = r->reconsume_times,
                      .born_timestamp = r->born_timestamp,
                      .prepared_transaction_offset = prepared,
                      .born_host_len = r->born_host_len};
    memcpy(m->born_host, r->born_host, (size_t)r->born_host_len);
}

/* Where the final message goes: to its topic and queue, or, delayed, by the way that every delayed
 * message takes (ps_put_message). */
static int final_place(ps_core *c, const ps_record *r, ps_topic **topic, ps_message *m,
                       ps_error *e) {
    ps_property delay;
    ps_text name;
    if (!ps_real_place(r->properties, r->properties_len, &name, &m->queue_id))
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, r->physical_offset, NULL,
                       "the half message has no real topic or queue");
    if (ps_property_find(r->properties, r->properties_len, "DELAY", 5, &delay))
        m->delay_level = ps_delay_asked(delay.value, delay.value_len);
    m->timed = m->delay_level == 0;
    *topic = ps_topic_open(c->co_store, (const char *)name.data, (int32_t)name.len, 1, e);
    return *topic != NULL ? 0 : PS_E_TOPIC_ILLEGAL;
}

static int64_t first_place(ps_tx *x, const ps_half *h) {
    ps_half_row row;
    ps_halves_row(x, h, &row);
    return row.root_physical;
}

static int put_final(ps_core *c, const ps_half *h, const ps_record *r, ps_put_result *put) {
    ps_topic *topic = NULL;
    ps_message m;
    message_of(r, h->hf_physical, &m);
    m.sys_flag |= PS_SYS_TX_COMMIT;
    int code = final_place(c, r, &topic, &m, &put->error);
    if (code == 0 && ps_topic_is_past(topic, first_place(c->co_tx, h)))
        code = ps_fail(&put->error, PS_E_MESSAGE_ILLEGAL, 0, r->physical_offset, NULL,
                       "topic %s was deleted after the half message came", topic->tp_name);
    if (code == 0) code = ps_put_message(c->co_store, topic, &m, put);
    if (code < 0) return code;
    const uint8_t *name = (const uint8_t *)h->hf_topic->tn_text;
    ps_count_put(c, ps_core_find_topic(c, name, h->hf_topic->tn_len), PS_KIND_AGAIN, 1,
                 put->size);
    return 0;
}

/* The number of checks goes along: whoever looks at the copy wants to know it. */
static int put_discarded(ps_core *c, const ps_half *h, const ps_record *r, ps_put_result *put) {
    ps_message m;
    message_of(r, h->hf_physical, &m);
    if (!ps_tx_with_checks(c, r, h->hf_checks))
        return ps_no_memory(&put->error, NULL, "no memory for a copy of the half message");
    m.properties = ps_mine(c)->ca_send.sd_props.data;
    m.properties_len = ps_mine(c)->ca_send.sd_props.len;
    return ps_put_message(c->co_store, c->co_tx->tx_discard, &m, put);
}

/* ---- ops ---- */

/* The first whole offsets of the queued text, `most` bytes or the one that goes beyond. */
static int64_t op_length(const ps_buffer *b, int64_t most) {
    int64_t len = b->len < most ? b->len : most;
    while (len < b->len && b->data[len - 1] != ',') len++;
    return len;
}

int ps_core_tx_write_ops(ps_core *c, ps_error *e) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    ps_buffer *b = &x->tx_ops;
    int64_t most = x->tx_conf.op_bytes > 0 ? x->tx_conf.op_bytes : 4096;
    x->tx_ops_now = false;
    while (b->len > 0) {
        ps_put_result put;
        int64_t len = op_length(b, most);
        ps_message m = {.body = b->data,
                        .body_len = len,
                        .properties = OP_PROPERTIES,
                        .properties_len = sizeof OP_PROPERTIES - 1};
        put.error.code = 0;
        int code = ps_put_message(c->co_store, x->tx_op, &m, &put);
        if (code < 0) {
            if (e != NULL) *e = put.error;
            return code;
        }
        memmove(b->data, b->data + len, (size_t)(b->len - len));
        b->len -= len;
        ps_core_tx_op_seen(c, put.queue_offset, x->tx_ops_largest);
    }
    x->tx_state.ops_since_ms = 0;
    x->tx_state.uncovered = -1;
    x->tx_ops_largest = -1;
    return 0;
}

/* Room for the two offsets that a decision may write; too much that cannot be written is a reason
 * to decide nothing more. */
static int reserve_op(ps_core *c, ps_error *e) {
    ps_tx *x = c->co_tx;
    int code = 0;
    if (x->tx_ops.len > OPS_MAX && (code = ps_core_tx_write_ops(c, e)) < 0) return code;
    if (ps_buffer_room(&x->tx_ops, 2 * OP_TEXT) != NULL && ps_halves_remember(x)) return 0;
    return ps_no_memory(e, NULL, "no memory for a decision");
}

static void queue_one(ps_tx *x, int64_t offset) {
    char number[24];
    ps_slice text = ps_slice_of_number(offset, number);
    if (x->tx_ops.len == 0) x->tx_state.ops_since_ms = monotonic_ms();
    ps_buffer_add(&x->tx_ops, text.data, text.len);
    ps_buffer_add(&x->tx_ops, ",", 1);
    if (offset > x->tx_ops_largest) x->tx_ops_largest = offset;
}

static void queue_op(ps_tx *x, const ps_half *h) {
    queue_one(x, h->hf_offset);
    if (h->hf_root != h->hf_offset) queue_one(x, h->hf_root);
    if (x->tx_ops.len >= x->tx_conf.op_bytes) x->tx_ops_now = true;
}

void ps_tx_finish_call(ps_core *c) {
    if (c->co_tx->tx_ops_now) ps_core_tx_write_ops(c, NULL); /* failed: the next tick retries */
}

/* ---- decisions ---- */

static void count_decision(ps_tx_state *s, int32_t decision) {
    if (decision == PS_TX_COMMIT) s->commits++;
    if (decision == PS_TX_ROLLBACK) s->rollbacks++;
    if (decision == PS_TX_DISCARD) s->discards++;
    if (decision == PS_TX_LOST) s->lost++;
}

/* By topic, as upstream's metrics are. */
static void tally_decision(ps_core *c, const ps_half *h, const ps_record *r, int32_t decision) {
    static const int64_t bounds_s[PS_TX_LATENCIES - 1] = {5, 60, 600, 3600, 43200, 86400};
    ps_topic_entry *t =
        ps_core_find_topic(c, (const uint8_t *)h->hf_topic->tn_text, h->hf_topic->tn_len);
    if (t == NULL || (decision != PS_TX_COMMIT && decision != PS_TX_ROLLBACK)) return;
    if (t->te_tx == NULL && (t->te_tx = calloc(1, sizeof *t->te_tx)) == NULL) return;
    t->te_tx->rollbacks += decision == PS_TX_ROLLBACK;
    if (decision != PS_TX_COMMIT) return;
    int64_t now = now_of(c->co_tx), born = r->born_timestamp; /* which a client says */
    int64_t age_s = born < 0 ? now / 1000 : born > now ? 0 : (now - born) / 1000;
    int bucket = 0;
    while (bucket < PS_TX_LATENCIES - 1 && age_s > bounds_s[bucket]) bucket++;
    t->te_tx->commits++;
    t->te_tx->latency_s += age_s;
    t->te_tx->latencies[bucket]++;
}

int64_t ps_core_tx_tallies(ps_core *c, ps_tx_tally *out, int64_t room) {
    PS_CORE_HELD(c);
    int64_t n = 0;
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        if (t->te_tx == NULL) continue;
        if (n < room) {
            out[n] = *t->te_tx;
            out[n].topic = t->te_name;
            out[n].topic_len = t->te_len;
        }
        n++;
    }
    return n;
}

/* r: the half's record, NULL for PS_TX_LOST. */
static int decide_half(ps_core *c, uint32_t place, const ps_record *r, int32_t decision,
                       ps_put_result *put) {
    ps_tx *x = c->co_tx;
    ps_half *h = ps_halves_at(x, place);
    int code = decision == PS_TX_COMMIT ? ps_safe_refuse(&c->co_store->st_safe, &put->error) : 0;
    if (code == 0) code = reserve_op(c, &put->error);
    if (code == 0 && decision == PS_TX_COMMIT) code = put_final(c, h, r, put);
    if (code == 0 && decision == PS_TX_DISCARD) code = put_discarded(c, h, r, put);
    if (code < 0) return code;
    if (decision == PS_TX_COMMIT && x->tx_state.uncovered < 0)
        x->tx_state.uncovered = put->physical_offset;
    if (decision != PS_TX_COMMIT) x->tx_ops_now = true;
    queue_op(x, h);
    count_decision(&x->tx_state, decision);
    tally_decision(c, h, r, decision);
    ps_halves_drop(x, place, decision);
    return 0;
}

int ps_core_tx_decide(ps_core *c, int64_t offset, int32_t decision, ps_put_result *out,
                      ps_error *e) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    uint32_t at = ps_halves_find(x, offset);
    ps_mapfile *mf = NULL;
    ps_record r;
    *out = (ps_put_result){.physical_offset = -1};
    if (at == 0)
        return ps_fail(e, PS_E_NOT_FOUND, 0, -1, NULL, "no open half message at %lld",
                       (long long)offset);
    if (ps_enter(c->co_store) < 0) return ps_refuse_closed(c->co_store, e);
    int code = 0;
    if (decision != PS_TX_LOST && !ps_tx_record(c, ps_halves_at(x, at), &r, &mf))
        code = ps_fail(&out->error, PS_E_NOT_FOUND, 0, ps_halves_at(x, at)->hf_physical, NULL,
                       "cannot read the half message at %lld", (long long)offset);
    if (code == 0) code = decide_half(c, at, &r, decision, out);
    ps_mapfile_unref(mf);
    ps_leave(c->co_store);
    ps_tx_finish_call(c);
    if (code < 0 && e != NULL) *e = out->error;
    return code;
}

int ps_core_tx_settled(ps_core *c, int64_t offset, int32_t decision, int32_t op) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    uint32_t at = ps_halves_find(x, offset);
    if (at != 0) {
        if (op && reserve_op(c, NULL) == 0) queue_op(x, ps_halves_at(x, at));
        ps_halves_drop(x, at, decision);
    } else if (op && reserve_op(c, NULL) == 0) {
        queue_one(x, offset);
    }
    return at != 0;
}

/* ---- END_TRANSACTION ---- */

static bool read_ending(const ps_command *command, ps_ending *out) {
    bool good = true;
    *out = (ps_ending){.offset = -1, .physical = -1, .decision = -1};
    for (int32_t i = 0; i < command->field_count && good; i++) {
        const ps_field *f = &command->fields[i];
        if (ps_slice_is(f->name, "producerGroup"))
            out->group = f->value;
        else if (ps_slice_is(f->name, "topic"))
            out->topic = f->value;
        else if (ps_slice_is(f->name, "tranStateTableOffset"))
            good = ps_slice_number(f->value, &out->offset);
        else if (ps_slice_is(f->name, "commitLogOffset"))
            good = ps_slice_number(f->value, &out->physical);
        else if (ps_slice_is(f->name, "commitOrRollback"))
            good = ps_slice_number(f->value, &out->decision);
        else if (ps_slice_is(f->name, "fromTransactionCheck"))
            out->from_check = ps_slice_true(f->value);
    }
    return good;
}

/* Whether it is about this half, by its newest copy or its first. */
static bool is_about(ps_tx *x, const ps_half *h, const ps_ending *end) {
    ps_half_row row;
    ps_halves_row(x, h, &row);
    if (end->offset == row.offset ? end->physical != row.physical
                                  : end->physical != row.root_physical)
        return false;
    bool topic = end->topic.len == 0 || slice_is(end->topic, row.topic, row.topic_len) ||
                 slice_is(end->topic, PS_HALF_TOPIC, sizeof PS_HALF_TOPIC - 1);
    return topic && slice_is(end->group, row.group, row.group_len);
}

static bool is_late(ps_tx *x, const ps_half *h) {
    if (h->hf_immunity_s == PS_IMMUNITY_NONE) return false;
    int64_t most = ps_tx_immunity_ms(x, h);
    if (most < x->tx_conf.timeout_ms) most = x->tx_conf.timeout_ms;
    return now_of(x) - h->hf_store_ms > most;
}

bool ps_core_end(ps_core *c, const ps_ending *end, bool answered) {
    ps_tx *x = c->co_tx;
    ps_mapfile *mf;
    ps_put_result put;
    ps_record r;
    if (!x->tx_conf.on || end->group.data == NULL || end->offset < 0 || end->physical < 0 ||
        (end->decision != PS_TX_COMMIT && end->decision != PS_TX_ROLLBACK) || !ps_core_leads(c))
        return false;
    uint32_t at = ps_halves_find(x, end->offset);
    if (at == 0 || (answered && ps_safe_must_wait(&c->co_store->st_safe, PS_SAFE_NEXT)))
        return false;
    const ps_half *h = ps_halves_at(x, at);
    if (!is_about(x, h, end) || (!end->from_check && is_late(x, h))) return false;
    if (!ps_tx_record(c, h, &r, &mf)) return false;
    put.error.code = 0;
    int code = decide_half(c, at, &r, (int32_t)end->decision, &put);
    ps_mapfile_unref(mf);
    return code >= 0;
}

int ps_core_end_transaction(ps_conn *n, const ps_command *request) {
    ps_ending end;
    bool oneway = request->flag & PS_FLAG_ONEWAY;
    if (!read_ending(request, &end) || !ps_core_end(n->cn_core, &end, !oneway)) return 0;
    if (oneway) return 1;
    ps_command answer = {.serialize = request->serialize, .opaque = request->opaque};
    return ps_core_answer(n->cn_core, &answer, 0) < 0 ? PS_E_NO_MEMORY : 1;
}

void ps_core_tx_get_state(ps_core *c, ps_tx_state *out) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    *out = x->tx_state;
    out->half_progress = ps_halves_progress(x);
    out->op_progress = ps_halves_op_progress(x);
    out->ops_queued = x->tx_ops.len;
}
