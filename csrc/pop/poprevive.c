/* What nobody acknowledged in time comes back: a copy in the retry topic of its group, and the
 * record that acknowledges it. Python says when, whether, and through which topic.
 * docs/internals/pop.md#coming-back; upstream PopReviveService.reviveMsgFromCk. */
#include <string.h>

#include "format/property.h"
#include "core/lock.h"
#include "pop/pop.h"
#include "tables/tables.h"

#define FIRST_POP "1ST_POP_TIME"
#define FIRST_POP_LEN ((int32_t)sizeof FIRST_POP - 1)
#define NUMBER_MAX 24
#define BYTES_ENOUGH (1 << 20) /* that one check point puts before the clock is looked at */

/* Properties of a delivery, which a copy must not have: it would wait once more, or name a handle
 * that is over. */
static const char DROPPED[] = PS_PROPERTY_NAME("POP_CK") PS_PROPERTY_NAME("TIMER_DELAY_SEC")
    PS_PROPERTY_NAME("TIMER_DELAY_MS") PS_PROPERTY_NAME("TIMER_DELIVER_MS");

typedef struct turn {
    ps_core *c;
    const ps_revive_ask *ask;
    ps_revived *out;
    int64_t ends_ns;
    ps_error *e;
} turn;

/* ---- one message ---- */

/* When it was popped for the first time, as a property, into ca_pop.cp_text. NULL: no memory. */
static uint8_t *put_first_pop(ps_core *c, const ps_check_point *p, const ps_view *v,
                              const uint8_t *properties, int64_t *len) {
    ps_buffer *b = &ps_mine(c)->ca_pop.cp_text;
    ps_property said;
    bool again = v->reconsume_times != 0 && ps_property_find(properties, v->properties_len,
                                                             FIRST_POP, FIRST_POP_LEN, &said);
    b->len = 0;
    uint8_t *from = ps_buffer_room(b, FIRST_POP_LEN + NUMBER_MAX + (again ? said.value_len : 0));
    if (from == NULL) return NULL;
    uint8_t *to = again ? ps_property_put(from, FIRST_POP, said.value, said.value_len)
                        : ps_property_put_number(from, FIRST_POP, p->pp_pop_ms);
    *len = to - from;
    return from;
}

/* 1, or an error. *bytes: more by what was put. */
static int put_copy(const turn *t, const ps_check_point *p, const ps_batch_info *found,
                    int64_t *bytes) {
    const ps_view *v = found->views;
    const uint8_t *record = found->segments[v->segment].map + v->start;
    int64_t len = 0;
    const uint8_t *first = put_first_pop(t->c, p, v, record + v->properties_start, &len);
    if (first == NULL)
        return ps_no_memory(t->e, NULL, "no memory for the copy of a message that comes back");
    ps_decision d = {.put = 1,
                     .topic = t->ask->target,
                     .topic_len = t->ask->target_len,
                     .role = PS_ROLE_PLAIN,
                     .key = "", /* it repeats nothing */
                     .drop = DROPPED,
                     .drop_len = (int32_t)sizeof DROPPED - 1,
                     .add = (const char *)first,
                     .add_len = (int32_t)len};
    ps_sent sent;
    int code = ps_core_put_again(t->c, v->physical_offset, 1, &d, &sent, t->e);
    if (code == PS_E_MESSAGE_ILLEGAL || code == PS_E_PROPERTIES_SIZE_EXCEEDED) {
        /* It was legal until the property came on top. */
        d.add_len = 0;
        code = ps_core_put_again(t->c, v->physical_offset, 1, &d, &sent, t->e);
    }
    if (code < 0) return code;
    *bytes += sent.bytes;
    t->out->end = sent.end;
    return 1;
}

#define IN_TIER 2 /* it is asked for there, and comes later */

/* 1; 0: it is gone, or has nowhere to go; IN_TIER; or an error. */
static int copy_message(const turn *t, const ps_check_point *p, int64_t offset, int64_t *bytes) {
    const ps_pair *pair = p->pp_pair;
    ps_store *s = t->c->co_store;
    ps_error none = {0};
    ps_topic *topic =
        ps_topic_open(s, pair->pr_names + pair->pr_group_len, pair->pr_topic_len, 0, &none);
    const ps_read_options one = {.max_messages = 1};
    ps_batch_info found;
    if (topic == NULL && none.code != PS_E_NOT_FOUND) {
        *t->e = none; /* a store that closes has it still */
        return none.code;
    }
    if (t->ask->target_len == 0 || topic == NULL) return 0;
    ps_batch *b = ps_read(s, topic, p->pp_queue, offset, &one, t->e);
    if (b == NULL) return t->e->code < 0 ? t->e->code : PS_E_NO_MEMORY;
    ps_batch_get(b, &found);
    if (found.damaged > 0) {
        t->out->damaged_queue = p->pp_queue;
        t->out->damaged_offset = offset;
    }
    bool is_there = found.count > 0 && found.views[0].queue_offset == offset;
    bool in_tier = found.status == PS_GET_IN_TIER || found.status == PS_GET_TIER_BUSY;
    int code = is_there ? put_copy(t, p, &found, bytes) : in_tier ? IN_TIER : 0;
    ps_batch_free(b);
    return code;
}

/* ---- one check point ---- */

/* Those whose copy is in the log do not come back again, whether or not that could be said there.
 * 0, or an error. */
static int mark_returned(const turn *t, ps_check_point *p, const ps_check_point_row *row,
                         const int64_t *offsets, int32_t count) {
    int64_t end;
    if (count == 0) return 0;
    int code = ps_core_check_point_put_ack(t->c, row, offsets, count, &end, t->e);
    uint32_t bits = ps_check_point_bits(p, offsets, count);
    if (__builtin_popcount(bits) == ps_check_point_open(p)) t->out->ended++;
    ps_check_point_close(t->c, p, bits);
    return code < 0 ? code : 0;
}

/* All of it, unless that is much. 0, or an error: what is left of it is tried again later. */
static int bring_back(const turn *t, ps_check_point *p) {
    int64_t done[PS_CHECK_POINT_MAX], bytes = 0;
    int32_t count = 0;
    int code = 0;
    ps_check_point_row row;
    ps_check_point_row_of(p, &row);
    for (int32_t i = 0; i < row.count && bytes < BYTES_ENOUGH; i++) {
        if (row.acked >> i & 1) continue;
        code = copy_message(t, p, row.offsets[i], &bytes);
        if (code < 0 || code == IN_TIER) break;
        t->out->copies += code;
        t->out->gone += code == 0;
        done[count++] = row.offsets[i];
    }
    if (code < 0 || code == IN_TIER)
        ps_core_check_point_postpone(t->c, &row.key, t->ask->again_ms);
    int marked = mark_returned(t, p, &row, done, count);
    return code < 0 ? code : marked;
}

int ps_core_revive(ps_core *c, const ps_revive_ask *ask, ps_revived *out, ps_error *e) {
    PS_CORE_HELD(c);
    const turn t = {c, ask, out, ps_monotonic_ns() + ask->turn_ns, e};
    const ps_pair *pair = ps_core_find_pair(c, (const uint8_t *)ask->group, ask->group_len,
                                            (const uint8_t *)ask->topic, ask->topic_len);
    *out = (ps_revived){.damaged_queue = -1};
    int code = 0;
    ps_check_point *p = ps_check_point_first(c);
    while (code == 0 && p != NULL && p->pp_pair == pair && p->pp_due_ms <= ask->now_ms) {
        code = bring_back(&t, p);
        p = ps_monotonic_ns() < t.ends_ns ? ps_check_point_first(c) : NULL;
    }
    return code;
}
