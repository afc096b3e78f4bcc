/* The table of open halves: by half queue offset, and in the order of it, since the first open one
 * is as far as CID_RMQ_SYS_TRANS may go. Places lie in blocks that are never moved, so that a round
 * of checks may walk over them in parts. A half that Java has put back is known by two offsets: its
 * newest copy's, and that of the first one, for which an alias stands in the table. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "transactions/halves.h"
#include "core/lock.h"

#define FIRST_BUCKETS 1024
#define DECIDED (1 << 20) /* decisions remembered; some 30 s of full speed */
#define DECISION_BITS 4
#define SPANS_MAX 65536
#define ASKED_MAX UINT32_MAX

ps_half *ps_halves_at(ps_tx *x, uint32_t place) {
    return &x->tx_blocks[place / PS_HALF_BLOCK][place % PS_HALF_BLOCK];
}

static uint32_t bucket_of(const ps_tx *x, int64_t offset) {
    return (uint32_t)(((uint64_t)offset * 0x9E3779B97F4A7C15u) >> 32) & (x->tx_bucket_count - 1);
}

static uint32_t find_any(ps_tx *x, int64_t offset) {
    if (x->tx_bucket_count == 0) return 0;
    uint32_t at = x->tx_buckets[bucket_of(x, offset)];
    while (at != 0 && ps_halves_at(x, at)->hf_offset != offset) at = ps_halves_at(x, at)->hf_chain;
    return at;
}

uint32_t ps_halves_find(ps_tx *x, int64_t offset) {
    uint32_t at = find_any(x, offset);
    if (at != 0 && ps_halves_at(x, at)->hf_flags & PS_HALF_ALIAS) at = ps_halves_at(x, at)->hf_next;
    return at;
}

/* ---- names ---- */

static ps_tx_name *find_name(ps_tx *x, int kind, ps_slice text) {
    ps_tx_name *n = ps_chains_first(&x->tx_names[kind], ps_hash_of(text.data, text.len));
    while (n != NULL &&
           (n->tn_len != text.len || memcmp(n->tn_text, text.data, (size_t)text.len) != 0))
        n = ps_chains_next(n);
    return n;
}

/* Only those that no open half names may go; done when there is no room, before it is doubled. */
static void drop_idle_names(ps_tx *x, ps_chains *names) {
    for (ps_tx_name *n = ps_chains_each(names, NULL), *next; n != NULL; n = next) {
        next = ps_chains_each(names, n);
        if (n->tn_open > 0) continue;
        ps_chains_remove(names, n);
        ps_core_bury(x->tx_core, n);
    }
}

static bool reserve_name(ps_tx *x, ps_chains *names) {
    if (names->count < names->room) return true;
    drop_idle_names(x, names);
    return (names->room > 0 && names->count < names->room / 2) || ps_chains_reserve(names);
}

static ps_tx_name *name_of(ps_tx *x, int kind, ps_slice text) {
    ps_tx_name *n = find_name(x, kind, text);
    if (n != NULL) return n;
    if (!reserve_name(x, &x->tx_names[kind])) return NULL;
    n = calloc(1, sizeof *n + (size_t)text.len);
    if (n == NULL) return NULL;
    n->tn_len = text.len;
    memcpy(n->tn_text, text.data, (size_t)text.len);
    ps_chains_add(&x->tx_names[kind], n, ps_hash_of(text.data, text.len));
    return n;
}

/* ---- places ---- */

static bool reserve_place(ps_tx *x) {
    if (x->tx_free != 0) return true;
    uint32_t next = x->tx_places > 0 ? x->tx_places : 1;
    if (next >= PS_HALVES_MAX) return false;
    ps_half **block = &x->tx_blocks[next / PS_HALF_BLOCK];
    if (*block == NULL) *block = calloc(PS_HALF_BLOCK, sizeof **block);
    return *block != NULL;
}

static uint32_t take_place(ps_tx *x) {
    uint32_t at = x->tx_free;
    if (at != 0) {
        x->tx_free = ps_halves_at(x, at)->hf_chain;
    } else {
        at = x->tx_places > 0 ? x->tx_places : 1;
        x->tx_places = at + 1;
    }
    return at;
}

static bool reserve_bucket(ps_tx *x) {
    if (x->tx_state.open + 1 < x->tx_bucket_count) return true;
    uint32_t count = x->tx_bucket_count ? x->tx_bucket_count * 2 : FIRST_BUCKETS;
    uint32_t *buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) return x->tx_bucket_count > 0; /* longer chains will do */
    free(x->tx_buckets);
    x->tx_buckets = buckets;
    x->tx_bucket_count = count;
    for (uint32_t at = 1; at < x->tx_places; at++) {
        ps_half *h = ps_halves_at(x, at);
        if (!(h->hf_flags & PS_HALF_USED)) continue;
        uint32_t b = bucket_of(x, h->hf_offset);
        h->hf_chain = buckets[b];
        buckets[b] = at;
    }
    return true;
}

bool ps_halves_reserve(ps_tx *x, ps_slice group, ps_slice topic) {
    if (x->tx_decided == NULL) x->tx_decided = calloc(DECIDED, sizeof *x->tx_decided);
    return x->tx_decided != NULL && group.len > 0 && group.len <= PS_TOPIC_MAX && topic.len > 0 &&
           topic.len <= PS_TOPIC_MAX && reserve_place(x) && reserve_bucket(x) &&
           name_of(x, 0, group) != NULL && name_of(x, 1, topic) != NULL;
}

static uint32_t put_place(ps_tx *x, int64_t offset) {
    uint32_t at = take_place(x), b = bucket_of(x, offset);
    ps_half *h = ps_halves_at(x, at);
    *h = (ps_half){.hf_offset = offset, .hf_flags = PS_HALF_USED, .hf_chain = x->tx_buckets[b]};
    x->tx_buckets[b] = at;
    return at;
}

static void free_place(ps_tx *x, uint32_t at) {
    ps_half *h = ps_halves_at(x, at);
    uint32_t *link = &x->tx_buckets[bucket_of(x, h->hf_offset)];
    while (*link != at) link = &ps_halves_at(x, *link)->hf_chain;
    *link = h->hf_chain;
    h->hf_flags = 0;
    h->hf_chain = x->tx_free;
    x->tx_free = at;
}

/* ---- the open ones ---- */

/* After the last one with a smaller offset: nearly always the last of all. */
static void link_open(ps_tx *x, uint32_t at) {
    ps_half *h = ps_halves_at(x, at);
    uint32_t before = x->tx_last;
    while (before != 0 && ps_halves_at(x, before)->hf_offset > h->hf_offset)
        before = ps_halves_at(x, before)->hf_prev;
    uint32_t after = before != 0 ? ps_halves_at(x, before)->hf_next : x->tx_first;
    h->hf_prev = before;
    h->hf_next = after;
    *(before != 0 ? &ps_halves_at(x, before)->hf_next : &x->tx_first) = at;
    *(after != 0 ? &ps_halves_at(x, after)->hf_prev : &x->tx_last) = at;
}

static void unlink_open(ps_tx *x, const ps_half *h) {
    *(h->hf_prev != 0 ? &ps_halves_at(x, h->hf_prev)->hf_next : &x->tx_first) = h->hf_next;
    *(h->hf_next != 0 ? &ps_halves_at(x, h->hf_next)->hf_prev : &x->tx_last) = h->hf_prev;
}

uint32_t ps_halves_add(ps_tx *x, const ps_half_row *row, int32_t flags) {
    ps_slice group = {(const uint8_t *)row->group, row->group_len};
    ps_slice topic = {(const uint8_t *)row->topic, row->topic_len};
    uint32_t at = put_place(x, row->offset);
    ps_half *h = ps_halves_at(x, at);
    h->hf_physical = row->physical;
    h->hf_root = row->root;
    h->hf_store_ms = row->store_ms;
    h->hf_group = name_of(x, 0, group);
    h->hf_topic = name_of(x, 1, topic);
    h->hf_immunity_s = row->immunity_s;
    int64_t asked = row->asked_ms - row->store_ms;
    h->hf_asked = row->asked_ms <= 0 ? 0
                  : asked < 1        ? 1
                                     : (uint32_t)(asked < ASKED_MAX ? asked : ASKED_MAX);
    h->hf_checks = (uint16_t)(row->checks < UINT16_MAX ? row->checks : UINT16_MAX);
    h->hf_flags |= (uint16_t)flags;
    h->hf_group->tn_open++;
    h->hf_topic->tn_open++;
    link_open(x, at);
    if (h->hf_next != 0 && !(flags & PS_HALF_SAVED)) {
        h->hf_flags |= PS_HALF_SAVED; /* those that are new are looked for at the end of the list */
        ps_halves_touch(x, at);
    }
    if (row->root != row->offset && find_any(x, row->root) == 0 && reserve_place(x)) {
        ps_half *alias = ps_halves_at(x, put_place(x, row->root));
        alias->hf_flags |= PS_HALF_ALIAS;
        alias->hf_physical = row->root_physical;
        alias->hf_next = at;
        h->hf_flags |= PS_HALF_COPIED;
    }
    x->tx_state.open++;
    if (row->offset >= x->tx_state.half_next) x->tx_state.half_next = row->offset + 1;
    return at;
}

bool ps_halves_remember(ps_tx *x) {
    return ps_buffer_room(&x->tx_gone, (int64_t)sizeof(int64_t)) != NULL;
}

static void remember_decision(ps_tx *x, int64_t offset, int32_t decision) {
    x->tx_decided[offset & (DECIDED - 1)] = offset << DECISION_BITS | decision;
}

void ps_halves_drop(ps_tx *x, uint32_t at, int32_t decision) {
    ps_half *h = ps_halves_at(x, at);
    if (h->hf_flags & PS_HALF_SAVED &&
        !ps_buffer_add(&x->tx_gone, &h->hf_offset, sizeof h->hf_offset))
        x->tx_forgot = true;
    remember_decision(x, h->hf_offset, decision);
    if (h->hf_flags & PS_HALF_COPIED) {
        remember_decision(x, h->hf_root, decision);
        free_place(x, find_any(x, h->hf_root));
    }
    h->hf_group->tn_open--;
    h->hf_topic->tn_open--;
    unlink_open(x, h);
    free_place(x, at);
    x->tx_state.open--;
}

void ps_halves_row(ps_tx *x, const ps_half *h, ps_half_row *out) {
    bool copied = h->hf_flags & PS_HALF_COPIED;
    *out = (ps_half_row){.offset = h->hf_offset,
                         .physical = h->hf_physical,
                         .root = h->hf_root,
                         .root_physical =
                             copied ? ps_halves_at(x, find_any(x, h->hf_root))->hf_physical
                                    : h->hf_physical,
                         .store_ms = h->hf_store_ms,
                         .asked_ms = h->hf_asked ? h->hf_store_ms + h->hf_asked : 0,
                         .checks = h->hf_checks,
                         .immunity_s = h->hf_immunity_s,
                         .group_len = h->hf_group->tn_len,
                         .topic_len = h->hf_topic->tn_len,
                         .group = h->hf_group->tn_text,
                         .topic = h->hf_topic->tn_text};
}

/* ---- the interface: asking ---- */

int ps_core_tx_find(ps_core *c, int64_t offset, ps_half_row *out) {
    PS_CORE_HELD(c);
    uint32_t at = ps_halves_find(c->co_tx, offset);
    if (at != 0) ps_halves_row(c->co_tx, ps_halves_at(c->co_tx, at), out);
    return at != 0;
}

int32_t ps_core_tx_decided(ps_core *c, int64_t offset) {
    PS_CORE_HELD(c);
    const int64_t *all = c->co_tx->tx_decided;
    int64_t found = all != NULL && offset >= 0 ? all[offset & (DECIDED - 1)] : 0;
    bool same = found != 0 && found >> DECISION_BITS == offset;
    return same ? (int32_t)(found & ((1 << DECISION_BITS) - 1)) : PS_TX_FINISHED;
}

int64_t ps_core_tx_list(ps_core *c, int64_t *at, ps_half_row *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    int64_t n = 0;
    uint32_t place = *at > 0 ? (uint32_t)*at : 1;
    for (; place < x->tx_places && n < room; place++) {
        ps_half *h = ps_halves_at(x, place);
        if ((h->hf_flags & (PS_HALF_USED | PS_HALF_ALIAS)) != PS_HALF_USED) continue;
        ps_halves_row(x, h, &out[n++]);
    }
    *at = place < x->tx_places ? (int64_t)place : -1;
    return n;
}

int64_t ps_core_tx_counts(ps_core *c, int32_t topics, ps_tx_count *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    int kind = topics ? 1 : 0;
    int64_t n = 0;
    for (ps_tx_name *name = NULL; (name = ps_chains_each(&x->tx_names[kind], name)) != NULL;) {
        if (name->tn_open == 0) continue;
        if (n < room)
            out[n] = (ps_tx_count){name->tn_text, name->tn_len, name->tn_live, name->tn_open};
        n++;
    }
    return n;
}

void ps_core_tx_live(ps_core *c, const char *group, int32_t len, int32_t live) {
    PS_CORE_HELD(c);
    ps_tx_name *n = find_name(c->co_tx, 0, (ps_slice){(const uint8_t *)group, len});
    if (n != NULL) n->tn_live = live != 0;
}

void ps_core_tx_heard(ps_core *c, int64_t offset, int32_t heard) {
    PS_CORE_HELD(c);
    uint32_t at = ps_halves_find(c->co_tx, offset);
    if (at == 0) return;
    ps_half *h = ps_halves_at(c->co_tx, at);
    h->hf_flags = (uint16_t)(heard ? h->hf_flags & ~PS_HALF_UNHEARD
                                   : h->hf_flags | PS_HALF_UNHEARD);
}

int64_t ps_halves_progress(ps_tx *x) {
    return x->tx_first != 0 ? ps_halves_at(x, x->tx_first)->hf_offset : x->tx_state.half_next;
}

/* ---- ops on the disk ---- */

static ps_tx_span *span_at(ps_tx *x, int32_t i) {
    return &x->tx_spans[(x->tx_span_from + i) % SPANS_MAX];
}

/* Merges two neighbours into one, which is done when both are: less exact, but never too far. */
static void merge_spans(ps_tx *x) {
    int32_t n = x->tx_span_count / 2;
    for (int32_t i = 0; i < n; i++) {
        ps_tx_span first = *span_at(x, 2 * i), second = *span_at(x, 2 * i + 1);
        if (second.ts_largest > first.ts_largest) first.ts_largest = second.ts_largest;
        *span_at(x, i) = first;
    }
    x->tx_span_count = n;
}

void ps_core_tx_op_seen(ps_core *c, int64_t op_offset, int64_t largest) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    if (op_offset >= x->tx_state.op_next) x->tx_state.op_next = op_offset + 1;
    if (x->tx_spans == NULL) x->tx_spans = malloc(SPANS_MAX * sizeof *x->tx_spans);
    if (x->tx_spans == NULL) return; /* op_progress then stays at op_next: only Java reads it */
    if (x->tx_span_count == SPANS_MAX) merge_spans(x);
    *span_at(x, x->tx_span_count++) = (ps_tx_span){op_offset, largest};
}

void ps_core_tx_half_seen(ps_core *c, int64_t next) {
    PS_CORE_HELD(c);
    if (next > c->co_tx->tx_state.half_next) c->co_tx->tx_state.half_next = next;
}

int64_t ps_halves_op_progress(ps_tx *x) {
    int64_t halves = ps_halves_progress(x);
    while (x->tx_span_count > 0 && span_at(x, 0)->ts_largest < halves) {
        x->tx_span_from = (x->tx_span_from + 1) % SPANS_MAX;
        x->tx_span_count--;
    }
    return x->tx_span_count > 0 ? span_at(x, 0)->ts_op : x->tx_state.op_next;
}

/* ---- to the metadata ---- */

void ps_halves_touch(ps_tx *x, uint32_t at) {
    ps_half *h = ps_halves_at(x, at);
    if (!(h->hf_flags & PS_HALF_SAVED) || h->hf_flags & PS_HALF_CHANGED) return;
    if (ps_buffer_add(&x->tx_changed, &at, sizeof at))
        h->hf_flags |= PS_HALF_CHANGED;
    else
        x->tx_forgot = true;
}

int64_t ps_core_tx_take_changed(ps_core *c, ps_half_row *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    int64_t n = 0;
    while (x->tx_changed.len > 0 && n < room) {
        uint32_t at;
        x->tx_changed.len -= (int64_t)sizeof at;
        memcpy(&at, x->tx_changed.data + x->tx_changed.len, sizeof at);
        ps_half *h = ps_halves_at(x, at);
        if (!(h->hf_flags & PS_HALF_CHANGED)) continue;
        h->hf_flags &= (uint16_t)~PS_HALF_CHANGED;
        ps_halves_row(x, h, &out[n++]);
    }
    return n;
}

/* They lie at the end of the list: those before the last saved one are saved, too. */
int64_t ps_core_tx_take_new(ps_core *c, ps_half_row *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    int64_t n = 0;
    uint32_t at = x->tx_last;
    while (at != 0 && !(ps_halves_at(x, at)->hf_flags & PS_HALF_SAVED))
        at = ps_halves_at(x, at)->hf_prev;
    at = at != 0 ? ps_halves_at(x, at)->hf_next : x->tx_first;
    for (; at != 0 && n < room; at = ps_halves_at(x, at)->hf_next) {
        ps_half *h = ps_halves_at(x, at);
        if (h->hf_flags & PS_HALF_SAVED) continue;
        h->hf_flags |= PS_HALF_SAVED;
        ps_halves_row(x, h, &out[n++]);
    }
    return n;
}

int64_t ps_core_tx_take_gone(ps_core *c, int64_t *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    if (x->tx_forgot) return -1;
    int64_t have = x->tx_gone.len / (int64_t)sizeof *out, n = have < room ? have : room;
    x->tx_gone.len -= n * (int64_t)sizeof *out;
    if (n > 0) memcpy(out, x->tx_gone.data + x->tx_gone.len, (size_t)n * sizeof *out);
    if (x->tx_gone.len == 0) ps_buffer_free(&x->tx_gone);
    return n;
}

void ps_core_tx_untake(ps_core *c) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    for (uint32_t at = x->tx_first; at != 0; at = ps_halves_at(x, at)->hf_next)
        ps_halves_at(x, at)->hf_flags &= (uint16_t)~(PS_HALF_SAVED | PS_HALF_CHANGED);
    x->tx_changed.len = 0;
    ps_buffer_free(&x->tx_gone);
    x->tx_forgot = false;
}

void ps_halves_free(ps_tx *x) {
    for (int i = 0; i < PS_HALF_BLOCKS; i++) free(x->tx_blocks[i]);
    for (int kind = 0; kind < 2; kind++) ps_chains_free(&x->tx_names[kind], true);
    free(x->tx_buckets);
    free(x->tx_decided);
    free(x->tx_spans);
    ps_buffer_free(&x->tx_changed);
    ps_buffer_free(&x->tx_gone);
    ps_buffer_free(&x->tx_ops);
}
