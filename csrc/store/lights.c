/* See lights.h. Upstream: LmqDispatch, MultiDispatchUtils. */
#define _GNU_SOURCE
#include "store/lights.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/threads.h"
#include "files/replace.h"
#include "format/multi.h"
#include "format/names.h"
#include "format/property.h"

#define OFFSETS "INNER_MULTI_QUEUE_OFFSET"
#define DIGITS_MAX 20
#define BUCKETS 128 /* of the map that upstream reads properties into */
#define PROPERTIES_FEW 64
#define SELDOM_MS 100 /* between two times that news are told that nobody waits for */

bool ps_has_light_files(const ps_store *s) {
    char path[PATH_MAX];
    return ps_path_in(path, s->st_root, PS_LIGHT_FOLDER, NULL) == 0 &&
           s->st_io->access(s->st_io, path, F_OK) == 0;
}

/* ---- what a message asks for ---- */

static int refuse_name(ps_text name, const char *why, ps_error *e) {
    return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                   PS_PROPERTY_MULTI_DISPATCH " names the light queue \"%.*s\": %s", (int)name.len,
                   name.data, why);
}

/* A lite topic's queue is %LMQ%$PARENT$NAME: upstream splits it by '$', and fails on more. */
static int check_name(ps_text name, ps_error *e) {
    int32_t dollars = 0;
    ps_text said = {name.data, name.len > 300 ? 300 : name.len};
    if (name.len > PS_TOPIC_MAX) return refuse_name(said, "the name is longer than 255 bytes", e);
    if (!ps_name_is_lmq(name.data, (int32_t)name.len))
        return refuse_name(said, "the name does not begin with " PS_LMQ_PREFIX, e);
    for (int64_t i = 0; i < name.len; i++) {
        uint8_t c = name.data[i];
        dollars += c == '$';
        if (c == '/' || c <= ' ' || c >= 0x7f)
            return refuse_name(said, "use neither '/' nor blanks nor other than ASCII letters", e);
    }
    if (dollars != 0 && (dollars != 2 || name.data[PS_LMQ_PREFIX_LEN] != '$' ||
                         name.data[PS_LMQ_PREFIX_LEN + 1] == '$' ||
                         name.data[name.len - 1] == '$'))
        return refuse_name(said, "a lite topic's queue is named %LMQ%$TOPIC$NAME", e);
    return 0;
}

static int split_names(const ps_property *p, ps_light_ask *out, ps_error *e) {
    const uint8_t *at = p->value, *end = p->value + p->value_len;
    out->count = 0;
    for (;;) {
        const uint8_t *stop = memchr(at, ',', (size_t)(end - at));
        ps_text name = {at, (stop != NULL ? stop : end) - at};
        if (out->count == PS_LIGHT_NAMES_MAX)
            return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                           PS_PROPERTY_MULTI_DISPATCH " names more than %d queues",
                           PS_LIGHT_NAMES_MAX);
        int code = check_name(name, e);
        if (code < 0) return code;
        for (int32_t i = 0; i < out->count; i++)
            if (out->names[i].len == name.len &&
                memcmp(out->names[i].data, name.data, (size_t)name.len) == 0)
                return refuse_name(name, "the queue is named twice", e);
        out->names[out->count++] = name;
        if (stop == NULL) return 0;
        at = stop + 1;
    }
}

/* Upstream writes the properties of such a message out of a Java map: by the hashes of the names,
 * then in the order in which they came. */
typedef struct placed_property {
    ps_property p;
    uint32_t bucket;
    int32_t order;
} placed_property;

static uint32_t bucket_of(const uint8_t *name, int32_t len) {
    uint32_t h = (uint32_t)ps_java_hash(0, name, len);
    return (h ^ h >> 16) & (BUCKETS - 1);
}

static int by_bucket(const void *a, const void *b) {
    const placed_property *x = a, *y = b;
    if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* A call of qsort() costs more than to put a handful in their places. */
static void sort_placed(placed_property *rows, int32_t count) {
    if (count > PROPERTIES_FEW) {
        qsort(rows, (size_t)count, sizeof *rows, by_bucket);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        const placed_property row = rows[i];
        int32_t at = i;
        for (; at > 0 && by_bucket(&rows[at - 1], &row) > 0; at--) rows[at] = rows[at - 1];
        rows[at] = row;
    }
}

/* Of equal names the place of the first and the value of the last count, as in the map. Equal ones
 * are in one bucket. */
static int32_t unite_equals(placed_property *rows, int32_t count) {
    int32_t kept = 0, bucket = 0;
    for (int32_t i = 0; i < count; i++) {
        if (kept == 0 || rows[i].bucket != rows[kept - 1].bucket) bucket = kept;
        int32_t same = bucket;
        while (same < kept && !ps_property_same_name(&rows[same].p, &rows[i].p)) same++;
        if (same == kept)
            rows[kept++] = rows[i];
        else
            rows[same].p = rows[i].p;
    }
    return kept;
}

/* That of the offsets has no value yet; no other has its name. */
static int32_t gather_properties(const ps_draft *d, placed_property *rows) {
    static const uint8_t offsets[] = OFFSETS;
    const int32_t len = (int32_t)sizeof offsets - 1;
    int32_t count = 0, at = 0;
    ps_property p;
    while (ps_property_next(d->properties, (int32_t)d->properties_len, &at, &p)) {
        if (ps_property_is(&p, "WAIT") || ps_property_is(&p, OFFSETS)) continue;
        rows[count] = (placed_property){p, bucket_of(p.name, p.name_len), count};
        count++;
    }
    rows[count] = (placed_property){{.name = offsets, .name_len = len}, bucket_of(offsets, len),
                                    count};
    count++;
    sort_placed(rows, count);
    return unite_equals(rows, count);
}

/* Writes them, with a gap of no digits where the offsets go. */
static int compose_properties(ps_draft *d, ps_light_ask *out, ps_error *e) {
    int64_t most = 2; /* properties: one has a separator at least */
    for (int64_t i = 0; i < d->properties_len; i++)
        most += d->properties[i] == PS_PROPERTY_SEPARATOR;
    placed_property few[PROPERTIES_FEW],
        *rows = most <= PROPERTIES_FEW ? few : malloc((size_t)most * sizeof *rows);
    out->room = (int32_t)d->properties_len + 64 + PS_LIGHT_NAMES_MAX * DIGITS_MAX;
    out->properties = malloc((size_t)out->room);
    if (rows == NULL || out->properties == NULL) {
        if (rows != few) free(rows);
        return ps_no_memory(e, NULL, "no memory for the properties");
    }
    uint8_t *to = out->properties;
    int32_t count = gather_properties(d, rows);
    for (int32_t i = 0; i < count; i++) {
        if (rows[i].p.value != NULL) {
            to = ps_property_copy(to, &rows[i].p);
            continue;
        }
        to = ps_property_begin(to, OFFSETS, sizeof OFFSETS - 1);
        out->before = (int32_t)(to - out->properties);
        to = ps_property_end(to);
    }
    out->after = (int32_t)(to - out->properties) - out->before;
    if (rows != few) free(rows);
    d->properties = out->properties;
    d->properties_len = out->before + out->after;
    return 0;
}

int ps_light_asked(ps_store *s, ps_draft *d, ps_light_ask *out, ps_error *e) {
    ps_property p;
    (void)s;
    out->properties = NULL;
    if (d->properties_len <= 0 || d->properties_len > PS_PROPERTIES_MAX ||
        !ps_multi_takes(d->topic, d->topic_len) ||
        !ps_property_find(d->properties, (int32_t)d->properties_len, PS_PROPERTY_MULTI_DISPATCH,
                          (int32_t)sizeof PS_PROPERTY_MULTI_DISPATCH - 1, &p))
        return 0;
    int tx = d->sys_flag & PS_SYS_TX_MASK;
    if (tx != PS_SYS_TX_NONE && tx != PS_SYS_TX_COMMIT) return 0;
    int code = split_names(&p, out, e);
    if (code == 0) code = compose_properties(d, out, e);
    return code < 0 ? code : 1;
}

/* A record that says a later offset than those that are read would be in none of its queues. */
static int find_queues(ps_store *s, ps_light_ask *a, ps_error *e) {
    for (int32_t i = 0; i < a->count; i++) {
        ps_light_queue *q =
            ps_light_get_locked(&s->st_light, a->names[i].data, (int32_t)a->names[i].len);
        if (q == NULL) return ps_no_memory(e, NULL, "no memory for a light queue");
        if (q->lq_next < 0 || q->lq_next > PS_MULTI_OFFSET_MAX)
            return refuse_name(a->names[i], "the queue has no offset left", e);
        a->queues[i] = q;
    }
    return 0;
}

/* Takes the next offset of each queue, and writes them down. */
static int take_offsets(ps_store *s, ps_light_ask *a, char *text, int32_t *len, ps_error *e) {
    char digits[PS_DIGITS_MAX], *end = digits + PS_DIGITS_MAX;
    pthread_mutex_lock(&s->st_light.lt_lock);
    int code = find_queues(s, a, e);
    for (int32_t i = 0; i < a->count && code == 0; i++) {
        const char *begin = ps_digits_before(end, a->queues[i]->lq_next++);
        if (i > 0) text[(*len)++] = ',';
        memcpy(text + *len, begin, (size_t)(end - begin));
        *len += (int32_t)(end - begin);
    }
    pthread_mutex_unlock(&s->st_light.lt_lock);
    return code;
}

int ps_light_place_locked(ps_store *s, ps_draft *d, ps_light_ask *a, ps_error *e) {
    char text[PS_LIGHT_NAMES_MAX * (DIGITS_MAX + 1)];
    int32_t len = 0;
    int code = take_offsets(s, a, text, &len, e);
    if (code < 0) return code;
    if (d->properties_total + len > PS_PROPERTIES_MAX) {
        ps_light_give_back_locked(s, a);
        return ps_fail(e, PS_E_PROPERTIES_SIZE_EXCEEDED, 0, -1, NULL,
                       "the properties exceed 32767 bytes");
    }
    uint8_t *gap = a->properties + a->before;
    memmove(gap + len, gap, (size_t)a->after);
    memcpy(gap, text, (size_t)len);
    d->properties_len += len;
    d->properties_total += len;
    d->size += len;
    return 0;
}

void ps_light_give_back_locked(ps_store *s, ps_light_ask *a) {
    pthread_mutex_lock(&s->st_light.lt_lock);
    for (int32_t i = 0; i < a->count; i++) a->queues[i]->lq_next--;
    pthread_mutex_unlock(&s->st_light.lt_lock);
}

/* ---- units ---- */

int ps_lights_dispatch(ps_store *s, const ps_record *r, ps_error *e) {
    ps_multi m;
    int code = 0;
    if (!ps_multi_of(r, &m)) return 0;
    ps_light_unit u = {.physical = r->physical_offset,
                       .tags_code = ps_record_tags_code(r, &s->st_levels),
                       .size = r->size};
    while (code >= 0 && ps_multi_next(&m)) {
        u.offset = m.mu_as.queue_offset;
        code = ps_light_append(&s->st_light, m.mu_as.topic, m.mu_as.topic_len, &u,
                               r->store_timestamp, e);
    }
    s->st_light.lt_skipped += m.mu_skipped;
    return code < 0 ? code : 0;
}

bool ps_lights_untaken(const ps_store *s) {
    return atomic_load(&s->st_light_on) && s->st_light.lt_news != 0;
}

bool ps_lights_wait(ps_store *s, int32_t more) {
    atomic_fetch_add(&s->st_light_waits, more);
    return ps_lights_untaken(s);
}

/* Once until they are taken. Under load, who listens would else be woken for each few messages. */
static void tell_news(ps_store *s, bool seldom) {
    if (s->st_light_fd < 0 || s->st_light.lt_news == 0 || atomic_load(&s->st_light.lt_told))
        return;
    int64_t now_ms = ps_monotonic_ms();
    if (seldom && atomic_load(&s->st_light_waits) == 0 && now_ms < s->st_light_told_ms + SELDOM_MS)
        return;
    s->st_light_told_ms = now_ms;
    atomic_store(&s->st_light.lt_told, true);
    ps_eventfd_tell(s->st_light_fd);
}

void ps_lights_tell_rest(ps_store *s) {
    if (!ps_lights_untaken(s) || atomic_load(&s->st_light.lt_told)) return;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    tell_news(s, false);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
}

int ps_lights_told(ps_store *s, ps_error *e) {
    if (!atomic_load_explicit(&s->st_light_on, memory_order_relaxed)) return 0;
    tell_news(s, true);
    return ps_light_cover(&s->st_light, atomic_load(&s->st_dispatcher.ds_end), false, e);
}

void ps_lights_lead_locked(ps_store *s) {
    ps_light *l = &s->st_light;
    if (!atomic_load(&s->st_light_on)) return;
    pthread_mutex_lock(&l->lt_lock);
    ps_light_settle_locked(l);
    pthread_mutex_unlock(&l->lt_lock);
}
