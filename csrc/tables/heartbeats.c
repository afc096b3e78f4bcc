/* Heartbeats that change nothing. Python serves a heartbeat, and says when the same once more would
 * change nothing; the core then answers its repeats, and keeps the time of the last. What the
 * heartbeat rests on may change: then Python says so, or a table of the core has (tc_withdrawn).
 * docs/internals/wire.md#heartbeats; upstream ClientManageProcessor. */
#include "tables/heartbeats.h"

#include "core/core.h"
#include "core/lock.h"

/* ---- what one says ---- */

static uint64_t mix_word(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static void add_word(ps_heartbeat_digest *d, uint64_t word) {
    d->low = mix_word(d->low, word);
    d->high = mix_word(d->high, word + d->low);
}

static void add_text(ps_heartbeat_digest *d, ps_slice text) {
    add_word(d, (uint64_t)text.len + 1);
    for (int32_t at = 0; at < text.len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, text.data + at, text.len - at < 8 ? (size_t)(text.len - at) : 8);
        add_word(d, word);
    }
}

/* All but its number: the signature, too. Whoever finds two of one digest has only kept his own
 * news from the broker. */
static ps_heartbeat_digest digest_of(const ps_command *r) {
    ps_heartbeat_digest d = {(uint64_t)(uint32_t)r->language << 32 | (uint32_t)r->version,
                             (uint64_t)(uint32_t)r->flag << 32 | (uint32_t)r->serialize};
    add_word(&d, (uint64_t)r->field_count);
    for (int32_t i = 0; i < r->field_count; i++) {
        add_text(&d, r->fields[i].name);
        add_text(&d, r->fields[i].value);
    }
    add_text(&d, r->body);
    return d;
}

static bool is_same(ps_heartbeat_digest a, ps_heartbeat_digest b) {
    return a.low == b.low && a.high == b.high;
}

/* ---- serving ---- */

int ps_core_heartbeat(ps_conn *n, const ps_command *r) {
    ps_core *c = n->cn_core;
    ps_heartbeat *b = &n->cn_heartbeat;
    ps_heartbeat_digest digest = digest_of(r);
    if (r->flag & PS_FLAG_ONEWAY) return 0;
    if (!b->stands || b->tables != c->co_tables.tc_withdrawn || !is_same(b->digest, digest)) {
        b->stands = false;
        b->asked = !(b->asked && b->opaque == r->opaque);
        b->opaque = r->opaque;
        b->digest = digest;
        return 0;
    }
    ps_command answer = {.serialize = r->serialize, .opaque = r->opaque, .field_count = 2};
    answer.fields[0] =
        (ps_field){ps_slice_of("IS_SUPPORT_HEART_BEAT_V2"), ps_slice_of("true")};
    answer.fields[1] = (ps_field){ps_slice_of("IS_SUB_CHANGE"),
                                  ps_slice_of(b->says_changed ? "true" : "false")};
    b->last_ms = ps_monotonic_ms();
    return ps_core_answer(c, &answer, 0) < 0 ? PS_E_NO_MEMORY : 1;
}

void ps_conn_keep_heartbeat(ps_conn *n, int32_t opaque, int32_t says_changed) {
    PS_CORE_HELD(n->cn_core);
    ps_heartbeat *b = &n->cn_heartbeat;
    if (!b->asked || b->opaque != opaque) return; /* another came meanwhile */
    b->asked = false;
    b->stands = true;
    b->says_changed = says_changed != 0;
    b->tables = n->cn_core->co_tables.tc_withdrawn;
}

void ps_conn_forget_heartbeat(ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    n->cn_heartbeat.stands = n->cn_heartbeat.asked = false;
}

int64_t ps_conn_heartbeat_ms(const ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    return n->cn_heartbeat.last_ms;
}
