/* Light queues of an open store, as others see them: beginning to serve them, and asking. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "format/multi.h"
#include "format/offsetblock.h"
#include "log/commitlog.h"
#include "store/lights.h"

#define ROOM_NAMES (32 << 10) /* bytes of `names` that may wait before many queues go */

/* ---- beginning ---- */

/* Whether the record is this one of the queue: files are not believed over the log. */
static bool is_of_queue(const ps_record *r, const ps_light_unit *u, const char *name, int32_t len) {
    ps_multi m;
    if (r->size != u->size || !ps_multi_of(r, &m)) return false;
    while (ps_multi_next(&m))
        if (m.mu_as.queue_offset == u->offset && m.mu_as.topic_len == len &&
            memcmp(m.mu_as.topic, name, (size_t)len) == 0)
            return true;
    return false;
}

/* Whether the log has this unit of the queue. */
static bool is_in_log(ps_store *s, const ps_light_unit *u, const ps_light_queue *q) {
    char name[PS_LIGHT_NAME_MAX];
    ps_mapfile *mf;
    ps_record r;
    int32_t len = ps_light_name(&s->st_light, q, name);
    bool found = ps_log_has(&s->st_log, u->physical, &r, &mf) && is_of_queue(&r, u, name, len);
    ps_mapfile_unref(mf);
    return found;
}

/* Whether the log has what the files say last. */
static bool is_of_this_log(ps_store *s) {
    const ps_light_queue *q;
    ps_light_unit u;
    int64_t at = INT64_MAX;
    return !ps_light_before(&s->st_light, &at, &u, &q) ||
           u.physical < atomic_load(&s->st_log.lg_min) || is_in_log(s, &u, q);
}

/* The place of the first unit whose record the log has lost; `end`: there is none. Only damage that
 * this open has met can have taken one without taking all that follow. */
static int64_t first_lost(ps_store *s, int64_t end) {
    const ps_light_queue *q;
    ps_light_unit u;
    int64_t at = INT64_MAX, lost = end;
    while (ps_light_before(&s->st_light, &at, &u, &q) && u.physical >= s->st_light_doubt)
        if (!is_in_log(s, &u, q)) lost = u.physical;
    return lost;
}

/* Records of one file of the log; what is not a record ends it: recovery closed over what could
 * be closed over. */
static int scan_file(ps_store *s, ps_mapfile *mf, int64_t at, int64_t bound, ps_error *e) {
    int64_t stop = mf->mf_base + mf->mf_size;
    int code = 0;
    if (stop > bound) stop = bound;
    while (at < stop && code == 0) {
        ps_record r;
        if (ps_record_decode(mf->mf_map + (at - mf->mf_base), stop - at, &r) != PS_REC_OK ||
            r.physical_offset != at)
            break;
        if (ps_record_has_unit(&r)) code = ps_lights_dispatch(s, &r, e);
        at += r.size;
    }
    return code;
}

static int scan_log(ps_store *s, int64_t bound, ps_error *e) {
    int64_t at = s->st_light.lt_covered, min = atomic_load(&s->st_log.lg_min);
    int code = 0;
    if (at < min) at = min;
    while (at < bound && code == 0) {
        ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, at, e);
        if (mf == NULL) return 0;
        code = scan_file(s, mf, at, bound, e);
        at = mf->mf_base + mf->mf_size;
        ps_mapfile_unref(mf);
    }
    return code;
}

int ps_lights_follow_locked(ps_store *s, ps_error *e) {
    int64_t end = atomic_load(&s->st_dispatcher.ds_end);
    if (!atomic_load(&s->st_light_on)) return 0;
    int code = scan_log(s, end, e);
    return code < 0 ? code : ps_light_cover(&s->st_light, end, true, e);
}

static int begin_locked(ps_store *s, ps_error *e) {
    int64_t end = atomic_load(&s->st_dispatcher.ds_end);
    int64_t min = atomic_load(&s->st_log.lg_min);
    int code = ps_light_load(&s->st_light, s->st_io, s->st_root, s->st_readonly, min, end, e);
    int64_t lost = code == 0 ? first_lost(s, end) : end;
    if (lost < end) {
        ps_light_free(&s->st_light);
        code = ps_light_load(&s->st_light, s->st_io, s->st_root, s->st_readonly, min, lost, e);
    }
    if (code == 0 && !is_of_this_log(s)) code = ps_light_reset(&s->st_light, e);
    if (code == 0) code = scan_log(s, end, e);
    if (code < 0) {
        ps_light_free(&s->st_light);
        return code;
    }
    ps_light_settle_locked(&s->st_light);
    s->st_light.lt_listened = s->st_light_fd >= 0;
    atomic_store(&s->st_topics.tt_lmq, true);
    atomic_store(&s->st_light_on, true);
    return 0;
}

int ps_lights_begin(ps_store *s, ps_error *e) {
    int code = 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_dispatch_catch_up(s, NULL);
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    if (!atomic_load(&s->st_light_on)) code = begin_locked(s, e);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    ps_leave(s);
    return code;
}

/* ---- asking ---- */

/* 0 and in the store; what has been put is then there to be read. */
static bool enter_lights(ps_store *s) {
    if (ps_enter(s) < 0) return false;
    if (!atomic_load(&s->st_light_on)) {
        ps_leave(s);
        return false;
    }
    ps_dispatch_catch_up(s, NULL);
    return true;
}

int64_t ps_lights_count(ps_store *s) {
    ps_light *l = &s->st_light;
    if (!atomic_load(&s->st_light_on)) return -1;
    pthread_mutex_lock(&l->lt_lock);
    int64_t count = l->lt_queues.pl_count;
    pthread_mutex_unlock(&l->lt_lock);
    return count;
}

int64_t ps_lights_below(ps_store *s, const char *head, int32_t len) {
    if (!enter_lights(s)) return 0;
    pthread_mutex_lock(&s->st_light.lt_lock);
    int64_t count = ps_light_below_locked(&s->st_light, head, len);
    pthread_mutex_unlock(&s->st_light.lt_lock);
    ps_leave(s);
    return count;
}

int64_t ps_lights_skipped(ps_store *s) {
    return atomic_load(&s->st_light_on) ? s->st_light.lt_skipped : 0;
}

int32_t ps_lights_range(ps_store *s, const char *name, int32_t len, int64_t *low, int64_t *high) {
    *low = *high = 0;
    if (!enter_lights(s)) return 0;
    bool found =
        ps_light_range(&s->st_light, name, len, atomic_load(&s->st_log.lg_min), low, high);
    ps_leave(s);
    return found;
}

int64_t ps_lights_end(ps_store *s, const char *name, int32_t len) {
    if (!enter_lights(s)) return 0;
    pthread_mutex_lock(&s->st_light.lt_lock);
    const ps_light_queue *q = ps_light_find_locked(&s->st_light, name, len);
    int64_t end = q != NULL ? q->lq_max : 0;
    pthread_mutex_unlock(&s->st_light.lt_lock);
    ps_leave(s);
    return end;
}

/* Of queue 0, the only one that a light queue has. */
static bool is_within(ps_store *s, const ps_offset_block *b) {
    int64_t offset;
    if (b->count != 1 || ps_offset_row_get(b->rows, &offset) != 0) return false;
    const ps_light_queue *q = ps_name_is_lmq((const uint8_t *)b->topic, b->topic_len)
                                  ? ps_light_find_locked(&s->st_light, b->topic, b->topic_len)
                                  : NULL;
    return q != NULL && offset <= q->lq_max;
}

static void fetch_queues(ps_light *l, const ps_text *names, int32_t count) {
    for (int entry = 0; entry < 2; entry++)
        for (int32_t i = 0; i < count; i++)
            ps_light_fetch_locked(l, names[i].data, (int32_t)names[i].len, entry != 0);
}

void ps_lights_fetch(ps_store *s, const ps_text *names, int32_t count) {
    if (!atomic_load(&s->st_light_on)) return;
    pthread_mutex_lock(&s->st_light.lt_lock);
    fetch_queues(&s->st_light, names, count);
    pthread_mutex_unlock(&s->st_light.lt_lock);
}

/* The next blocks: how many. */
static int32_t blocks_at(const uint8_t *at, const uint8_t *end, ps_offset_block *out,
                         ps_text *topics) {
    int32_t n = 0;
    while (n < PS_POOL_AHEAD && at < end && ps_offset_block_get(at, end, &out[n])) {
        topics[n] = (ps_text){(const uint8_t *)out[n].topic, out[n].topic_len};
        at = out[n++].end;
    }
    return n;
}

int64_t ps_lights_beyond(ps_store *s, uint8_t *blocks, int64_t len) {
    uint8_t *to = blocks;
    const uint8_t *at = blocks, *end = blocks + len;
    ps_offset_block some[PS_POOL_AHEAD];
    ps_text topics[PS_POOL_AHEAD];
    if (!enter_lights(s)) return len;
    pthread_mutex_lock(&s->st_light.lt_lock);
    for (int32_t n; (n = blocks_at(at, end, some, topics)) > 0; at = some[n - 1].end) {
        fetch_queues(&s->st_light, topics, n);
        for (int32_t i = 0; i < n; i++) {
            if (is_within(s, &some[i])) continue;
            memmove(to, some[i].begin, (size_t)(some[i].end - some[i].begin));
            to += some[i].end - some[i].begin;
        }
    }
    pthread_mutex_unlock(&s->st_light.lt_lock);
    ps_leave(s);
    memmove(to, at, (size_t)(end - at));
    return to + (end - at) - blocks;
}

static int64_t store_ms_of(ps_store *s, int64_t physical) {
    ps_mapfile *mf;
    ps_record r;
    int64_t ms = ps_log_has(&s->st_log, physical, &r, &mf) ? r.store_timestamp : 0;
    ps_mapfile_unref(mf);
    return ms;
}

/* Looked up once after a restart. */
static int64_t last_ms(ps_store *s, const char *name, int32_t len) {
    ps_light *l = &s->st_light;
    ps_light_unit u;
    ps_error e = {0};
    pthread_mutex_lock(&l->lt_lock);
    ps_light_queue *q = ps_light_find_locked(l, name, len);
    int64_t ms = q != NULL ? (int64_t)q->lq_stamp : 0, last = q != NULL ? q->lq_max - 1 : -1;
    pthread_mutex_unlock(&l->lt_lock);
    if (ms != 0 || last < 0) return ms;
    if (ps_light_units(l, name, len, last, atomic_load(&s->st_log.lg_min), &u, 1, &e) != 1)
        return 0;
    ms = store_ms_of(s, u.physical);
    pthread_mutex_lock(&l->lt_lock);
    q = ps_light_find_locked(l, name, len);
    if (q != NULL && q->lq_stamp == 0) q->lq_stamp = ps_light_stamp(ms);
    pthread_mutex_unlock(&l->lt_lock);
    return ms;
}

int64_t ps_lights_last_ms(ps_store *s, const char *name, int32_t len) {
    if (!enter_lights(s)) return 0;
    int64_t ms = last_ms(s, name, len);
    ps_leave(s);
    return ms;
}

static int32_t read_units(ps_store *s, const char *name, int32_t len, const ps_light_unit *units,
                          int32_t count, ps_light_record *out, uint8_t *to, int64_t room,
                          int64_t *need) {
    int64_t used = 0;
    *need = 0;
    for (int32_t i = 0; i < count; i++) {
        ps_mapfile *mf;
        ps_record r;
        out[i] = (ps_light_record){units[i].offset, units[i].physical, 0, 0};
        bool found = ps_log_has(&s->st_log, units[i].physical, &r, &mf) &&
                     is_of_queue(&r, &units[i], name, len);
        if (found && used + r.size > room) {
            if (i == 0) *need = r.size;
            ps_mapfile_unref(mf);
            return i;
        }
        if (found) {
            memcpy(to + used, r.start, (size_t)r.size);
            out[i].size = r.size;
            out[i].store_ms = r.store_timestamp;
            used += r.size;
        }
        ps_mapfile_unref(mf);
    }
    return count;
}

int64_t ps_lights_ms_from(ps_store *s, const char *name, int32_t len, int64_t offset) {
    ps_light_unit u;
    ps_error e = {0};
    if (!enter_lights(s)) return 0;
    int64_t min = atomic_load(&s->st_log.lg_min);
    int32_t n = ps_light_units(&s->st_light, name, len, offset, min, &u, 1, &e);
    int64_t ms = n == 1 ? store_ms_of(s, u.physical) : 0;
    ps_leave(s);
    return ms;
}

#define READ_MAX 64

/* Those from an offset on, `count` of them or READ_MAX at most; the lights are entered. */
static int32_t find_units(ps_store *s, const char *name, int32_t len, int64_t from,
                          ps_light_unit units[READ_MAX], int32_t count, ps_error *e) {
    e->code = 0;
    return ps_light_units(&s->st_light, name, len, from, atomic_load(&s->st_log.lg_min), units,
                          count < READ_MAX ? count : READ_MAX, e);
}

int32_t ps_lights_read(ps_store *s, const char *name, int32_t len, int64_t from,
                       ps_light_record *out, int32_t count, uint8_t *to, int64_t room,
                       int64_t *need, ps_error *e) {
    ps_light_unit units[READ_MAX];
    *need = 0;
    if (!enter_lights(s)) return 0;
    int32_t n = find_units(s, name, len, from, units, count, e);
    if (n > 0) n = read_units(s, name, len, units, n, out, to, room, need);
    ps_leave(s);
    return n;
}

int32_t ps_lights_places(ps_store *s, const char *name, int32_t len, int64_t from,
                         ps_light_place *out, int32_t count, ps_error *e) {
    ps_light_unit units[READ_MAX];
    if (!enter_lights(s)) return 0;
    int32_t n = find_units(s, name, len, from, units, count, e);
    ps_leave(s);
    for (int32_t i = 0; i < n; i++)
        out[i] = (ps_light_place){units[i].offset, units[i].physical, units[i].tags_code,
                                  units[i].size};
    return n;
}

int32_t ps_lights_list(ps_store *s, uint32_t from, ps_light_row *out, int32_t room) {
    ps_light *l = &s->st_light;
    int32_t n = 0;
    if (!enter_lights(s)) return 0;
    pthread_mutex_lock(&l->lt_lock);
    for (const ps_light_queue *q; n < room && (q = ps_light_from(l, from)) != NULL; from++) {
        from = q->lq_number;
        out[n] = (ps_light_row){.number = from, .high = q->lq_max};
        out[n].len = ps_light_name(l, q, out[n].name);
        n++;
    }
    pthread_mutex_unlock(&l->lt_lock);
    for (int32_t i = 0; i < n; i++) {
        ps_light_range(l, out[i].name, out[i].len, atomic_load(&s->st_log.lg_min), &out[i].low,
                       &out[i].high);
        out[i].last_ms = last_ms(s, out[i].name, out[i].len);
    }
    ps_leave(s);
    return n;
}

int64_t ps_lights_next(ps_store *s, uint32_t from, char *name, int32_t *len) {
    ps_light *l = &s->st_light;
    *len = 0;
    if (!enter_lights(s)) return -1;
    pthread_mutex_lock(&l->lt_lock);
    const ps_light_queue *q = ps_light_from(l, from);
    if (q != NULL) *len = ps_light_name(l, q, name);
    int64_t next = q != NULL ? (int64_t)q->lq_number + 1 : -1;
    pthread_mutex_unlock(&l->lt_lock);
    ps_leave(s);
    return next;
}

/* Finds the time of a queue's last record, which is 0 so far: of the record; of the oldest one of
 * the log, where it has left that without a note; or, where there is none, now. */
static void find_time(ps_store *s, uint32_t number, int64_t physical, int64_t now_ms) {
    ps_light *l = &s->st_light;
    int64_t ms = store_ms_of(s, physical);
    if (ms == 0) ms = store_ms_of(s, atomic_load(&s->st_log.lg_min));
    if (ms == 0) ms = now_ms;
    pthread_mutex_lock(&l->lt_lock);
    ps_light_queue *q = ps_light_numbered(l, number);
    if (q != NULL && q->lq_stamp == 0) q->lq_stamp = ps_light_stamp(ms);
    pthread_mutex_unlock(&l->lt_lock);
}

int32_t ps_lights_expired(ps_store *s, const char *head, int32_t len, int64_t now_ms,
                          int64_t age_ms, uint8_t *to, int32_t room) {
    ps_light *l = &s->st_light;
    int32_t used = -1;
    if (!enter_lights(s)) return 0;
    while (used < 0) {
        ps_light_queue *unknown;
        uint32_t number = 0;
        int64_t physical = 0;
        pthread_mutex_lock(&l->lt_lock);
        used = ps_light_expired_locked(l, head, len, now_ms, age_ms, to, room, &unknown);
        if (used < 0) {
            number = unknown->lq_number;
            physical = (int64_t)unknown->lq_physical;
        }
        pthread_mutex_unlock(&l->lt_lock);
        if (used < 0) find_time(s, number, physical, now_ms);
    }
    ps_leave(s);
    return used;
}

int ps_lights_make_room(ps_store *s, ps_error *e) {
    ps_light *l = &s->st_light;
    if (!enter_lights(s)) return 0;
    pthread_mutex_lock(&l->lt_lock);
    bool full = l->lt_names_ahead > ROOM_NAMES || l->lt_ahead_count > PS_LIGHT_AHEAD / 2;
    pthread_mutex_unlock(&l->lt_lock);
    int code = full ? ps_light_flush(l, false, e) : 0;
    ps_leave(s);
    return code;
}

int32_t ps_lights_delete(ps_store *s, const char *name, int32_t len, int64_t before_ms,
                         ps_error *e) {
    int64_t end;
    if (s->st_readonly)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, s->st_root, "the store is open for reading only");
    if (!enter_lights(s)) return 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    pthread_mutex_lock(&s->st_log.lg_append_lock);
    int code = ps_light_remove(&s->st_light, name, len, before_ms, e);
    pthread_mutex_unlock(&s->st_log.lg_append_lock);
    end = atomic_load(&s->st_dispatcher.ds_end);
    /* Its last record would else be read again, and begin it anew. */
    if (code > 0 && ps_light_cover(&s->st_light, end, true, e) < 0) code = e->code;
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    ps_leave(s);
    return code;
}

int ps_lights_sync(ps_store *s, ps_error *e) {
    if (!atomic_load(&s->st_light_on)) return 0;
    pthread_mutex_lock(&s->st_keeper.kp_lock);
    int code = ps_light_flush(&s->st_light, true, e);
    pthread_mutex_unlock(&s->st_keeper.kp_lock);
    return code;
}

int ps_lights_trim(ps_store *s, int64_t log_min, ps_error *e) {
    if (!atomic_load(&s->st_light_on)) return 0;
    pthread_mutex_lock(&s->st_keeper.kp_lock);
    int code = ps_light_trim(&s->st_light, log_min, store_ms_of(s, log_min), e);
    pthread_mutex_unlock(&s->st_keeper.kp_lock);
    return code;
}

/* ---- news ---- */

void ps_lights_listen(ps_store *s, int32_t fd) {
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    s->st_light_fd = fd;
    if (atomic_load(&s->st_light_on)) {
        pthread_mutex_lock(&s->st_light.lt_lock);
        s->st_light.lt_listened = fd >= 0;
        atomic_store(&s->st_light.lt_told, s->st_light.lt_news != 0);
        if (fd >= 0 && s->st_light.lt_news != 0) ps_eventfd_tell(fd);
        pthread_mutex_unlock(&s->st_light.lt_lock);
    }
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
}

bool ps_lights_have_news(ps_store *s) {
    return atomic_load(&s->st_light_on) && atomic_load(&s->st_light.lt_told);
}

int32_t ps_lights_news(ps_store *s, uint8_t *to, int32_t room) {
    ps_light *l = &s->st_light;
    int32_t used = 0;
    if (ps_enter(s) < 0) return 0;
    if (atomic_load(&s->st_light_on)) {
        atomic_store(&l->lt_told, false); /* first: what comes from here on is told again */
        pthread_mutex_lock(&l->lt_lock);
        for (ps_light_queue *q; l->lt_news != 0; used += 1 + to[used]) {
            q = ps_pool_at(&l->lt_queues, l->lt_news);
            if (used + 1 + ps_light_name_len(l, q) > room) break;
            l->lt_news = q->lq_news;
            q->lq_has_news = false;
            to[used] = (uint8_t)ps_light_name(l, q, to + used + 1);
        }
        pthread_mutex_unlock(&l->lt_lock);
    }
    ps_leave(s);
    return used;
}
