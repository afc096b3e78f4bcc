/* Consume queues. See consumequeue.h.
 *
 *   A queue is a row of files under consumequeue/TOPIC/QUEUE_ID/, each a row of units without
 *   header. Unit of queue offset q: byte q * 20 of the row.
 *
 *   offset  width  meaning
 *   0       8      physical offset of the record
 *   8       4      its totalSize; 0 where nothing was written, 0x7FFFFFFF in a pre-filled unit
 *   12      8      tags code: hash of TAGS, or the deliver time in SCHEDULE_TOPIC_XXXX
 *
 * Upstream: ConsumeQueue. Rules of appending, pre-filling, cutting:
 * docs/internals/format.md#consume-queue. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bisect.h"
#include "base/bytes.h"
#include "base/grow.h"
#include "files/aside.h"
#include "format/record.h"
#include "queues/claims.h"

#define RESERVE_WINDOW (256 * 1024)
#define MANY_UNITS 1024 /* so many are worth reading ahead for */
#define CHECK_UNITS 4096 /* read at once when every unit is looked at */

int64_t ps_unit_end(const ps_unit *u) {
    int64_t end;
    return __builtin_add_overflow(u->physical, (int64_t)u->size, &end) ? INT64_MAX : end;
}

int64_t ps_queue_most(int32_t name_len, int64_t bytes) {
    return bytes / (PS_RECORD_FIXED + name_len);
}

static bool unit_valid(const uint8_t *p) {
    return (int64_t)be64_get(p + PS_UNIT_AT_PHYSICAL) >= 0 &&
           (int32_t)be32_get(p + PS_UNIT_AT_SIZE) > 0;
}

static void queue_folder(const ps_queue *q, char *out, size_t room) {
    snprintf(out, room, "%s/consumequeue/%s/%d", q->cq_shared->qs_root, q->cq_name, q->cq_id);
}

ps_queue *ps_queue_new(ps_queues_shared *shared, struct ps_topic *topic, const char *name,
                       int32_t id) {
    ps_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    q->cq_shared = shared;
    q->cq_topic = topic;
    q->cq_name = name;
    q->cq_name_len = (int32_t)strlen(name);
    q->cq_id = id;
    q->cq_was = shared->qs_before != NULL ? INT64_MAX : 0;
    ps_segments_init(&q->cq_files, shared->qs_io, shared->qs_file_size,
                     PS_MAP_SPARING | (shared->qs_readonly ? 0 : PS_MAP_WRITE));
    q->cq_files.ss_mappings = shared->qs_mappings;
    atomic_init(&q->cq_max_physical, -1);
    q->cq_first_start = q->cq_last_start = q->cq_beyond = -1;
    return q;
}

void ps_queue_free(ps_queue *q) {
    if (q == NULL) return;
    ps_queue_release(q);
    free(q->cq_tail);
    free(q->cq_old);
    free(q);
}

/* ---- the files that are written to ---- */

static void hold_none(ps_queue *q) {
    ps_queues_shared *shared = q->cq_shared;
    ps_mapfile *mf = atomic_exchange(&q->cq_last, NULL);
    if (mf == NULL) return;
    ps_queue *moved = shared->qs_held[--shared->qs_held_count];
    shared->qs_held[q->cq_held_slot] = moved;
    moved->cq_held_slot = q->cq_held_slot;
    ps_mapfile_unref(mf);
}

/* Lets one go that got no unit since the hand passed it last. */
static void hold_one_less(ps_queues_shared *shared) {
    for (;;) {
        if (shared->qs_held_hand >= shared->qs_held_count) shared->qs_held_hand = 0;
        ps_queue *q = shared->qs_held[shared->qs_held_hand];
        int64_t max = atomic_load_explicit(&q->cq_max, memory_order_relaxed);
        if (q->cq_held_max == max) {
            hold_none(q);
            return;
        }
        q->cq_held_max = max;
        shared->qs_held_hand++;
    }
}

/* Takes over the caller's reference. */
static int hold_file(ps_queue *q, ps_mapfile *mf) {
    ps_queues_shared *shared = q->cq_shared;
    int32_t most = shared->qs_mappings != NULL ? shared->qs_mappings->mp_max / 2 : INT32_MAX;
    hold_none(q);
    if (shared->qs_held_count >= most && most > 0) hold_one_less(shared);
    if (!PS_GROW(shared->qs_held, shared->qs_held_room, shared->qs_held_count + 1, 64)) {
        ps_mapfile_unref(mf);
        return PS_E_NO_MEMORY;
    }
    q->cq_held_slot = shared->qs_held_count;
    q->cq_held_max = -1;
    shared->qs_held[shared->qs_held_count++] = q;
    atomic_store(&q->cq_last, mf);
    return 0;
}

void ps_queue_release(ps_queue *q) {
    hold_none(q);
    ps_segments_free(&q->cq_files);
}

void ps_queues_shared_free(ps_queues_shared *shared) {
    free(shared->qs_held);
    shared->qs_held = NULL;
    shared->qs_held_room = 0;
}

/* Sets the write position of a file: what was discarded is written, and synced, again. */
static void set_wrote(ps_mapfile *mf, int64_t end) {
    atomic_store(&mf->mf_wrote, end);
    if (atomic_load(&mf->mf_flushed) > end) atomic_store(&mf->mf_flushed, end);
}

/* ---- opening ---- */

/* Publishes the end of what can be read. */
static void publish_end(ps_queue *q, int64_t end_byte, int64_t max_physical) {
    hold_none(q);
    atomic_store(&q->cq_max_physical, max_physical);
    atomic_store_explicit(&q->cq_max, end_byte / PS_UNIT, memory_order_release);
    atomic_store(&q->cq_flushed, end_byte / PS_UNIT);
}

/* While nobody puts: the next message goes there, too. */
static void queue_set_end(ps_queue *q, int64_t end_byte, int64_t max_physical) {
    publish_end(q, end_byte, max_physical);
    q->cq_next = end_byte / PS_UNIT;
}

static int64_t unit_end(const uint8_t *p) {
    ps_unit u;
    ps_unit_get(p, &u);
    return u.size == PS_UNIT_NONE ? -1 : ps_unit_end(&u);
}

/* A queue's file while it is looked at: read, not mapped, since thousands are opened in a row. */
typedef struct unit_file {
    ps_io *io;
    const char *path;
    int fd;
    int64_t units;
} unit_file;

static int unit_file_open(ps_queue *q, int32_t i, unit_file *f, ps_error *e) {
    f->io = q->cq_files.ss_io;
    f->path = q->cq_files.ss_items[i].sg_path;
    f->units = q->cq_files.ss_file_size / PS_UNIT;
    f->fd = f->io->open(f->io, f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (f->fd >= 0) return 0;
    return ps_fail(e, ps_errno_code(errno), errno, -1, f->path, "cannot open the file");
}

/* Units [from, from + count) into buf; fewer when the file ends before. */
static int64_t unit_file_read(const unit_file *f, int64_t from, int64_t count, uint8_t *buf,
                              ps_error *e) {
    ssize_t n = f->io->pread(f->io, f->fd, buf, (size_t)(count * PS_UNIT), from * PS_UNIT);
    if (n >= 0) return n / PS_UNIT;
    return ps_fail(e, ps_errno_code(errno), errno, -1, f->path, "cannot read the file");
}

/* How far the queue was found sound. */
typedef struct sound {
    int64_t units; /* of the file looked at */
    int64_t physical_end, last_start;
    int64_t lost;  /* deep: the record that units without one name at its end, -1: it has one */
    bool more;     /* something stands after them in the file */
    bool prefills; /* the queue may begin with pre-filled units: the log's beginning was deleted */
} sound;

/* Whether there may be such a unit, as far as one alone can tell. */
static bool unit_possible(const sound *s, const ps_unit *u) {
    if (u->physical < 0 || u->size <= 0) return false;
    return u->size != PS_UNIT_NONE || u->physical > 0 || s->prefills;
}

/* How many of `count` units are sound as far as units alone can tell: each points to a record,
 * records ascend and do not overlap, units of lost messages name the record that follows them, and
 * pre-filled ones stand at the queue's beginning. */
static int64_t count_sound(const uint8_t *units, int64_t count, sound *out) {
    ps_unit u;
    for (int64_t i = 0; i < count; i++) {
        ps_unit_get(units + i * PS_UNIT, &u);
        if (!unit_possible(out, &u)) return i;
        if (u.size == PS_UNIT_NONE) {
            bool prefill = u.physical == 0 && out->physical_end < 0 && out->lost < 0;
            if (prefill) continue;
            if (u.physical == 0 || u.physical < out->physical_end) return i;
            if (out->lost >= 0 && u.physical != out->lost) return i;
            out->lost = u.physical;
            continue;
        }
        if (u.physical < out->physical_end || ps_unit_end(&u) == INT64_MAX) return i;
        if (out->lost >= 0 && u.physical != out->lost) return i;
        out->lost = -1;
        out->last_start = u.physical;
        out->physical_end = ps_unit_end(&u);
    }
    return count;
}

/* Whether the file holds anything from unit `from` on; holes are not read. */
static int anything_after(const unit_file *f, int64_t from, uint8_t *buf, ps_error *e) {
    while (from < f->units) {
        off_t data = f->io->lseek(f->io, f->fd, from * PS_UNIT, SEEK_DATA);
        if (data < 0 && errno == ENXIO) return 0;
        if (data > from * PS_UNIT) from = data / PS_UNIT;
        int64_t n = unit_file_read(f, from, CHECK_UNITS, buf, e);
        if (n <= 0) return (int)n;
        if (!all_zero(buf, n * PS_UNIT)) return 1;
        from += n;
    }
    return 0;
}

static int check_deep(const unit_file *f, sound *out, ps_error *e) {
    uint8_t *buf = malloc(CHECK_UNITS * PS_UNIT);
    int code = buf == NULL ? ps_no_memory(e, f->path, "no memory to check the queue file") : 0;
    out->units = 0;
    while (code == 0 && out->units < f->units) {
        int64_t want = f->units - out->units < CHECK_UNITS ? f->units - out->units : CHECK_UNITS;
        int64_t n = unit_file_read(f, out->units, want, buf, e);
        int64_t good = n > 0 ? count_sound(buf, n, out) : 0;
        out->units += good;
        code = n < 0 ? (int)n : 0;
        if (n <= 0 || good < n) break;
    }
    if (code == 0) code = anything_after(f, out->units, buf, e);
    out->more = code > 0;
    free(buf);
    return code < 0 ? code : 0;
}

/* The unit before which all are taken to be sound; 1 when it is. */
static int look_at(const unit_file *f, int64_t i, sound *out, ps_error *e) {
    uint8_t p[PS_UNIT];
    ps_unit u;
    int64_t n = unit_file_read(f, i, 1, p, e);
    if (n <= 0) return (int)n;
    ps_unit_get(p, &u);
    if (!unit_possible(out, &u)) return 0;
    if (u.size != PS_UNIT_NONE) {
        out->last_start = u.physical;
        out->physical_end = ps_unit_end(&u);
    }
    return 1;
}

/* The first unit at or after i that may be one, or is damage; f->units when there is none. It looks
 * past some pages of zeros: where the rest of a file is not a hole, it can be megabytes of them. */
static int64_t next_possible(const unit_file *f, int64_t i, const sound *s, uint8_t *buf,
                             ps_error *e) {
    int64_t last = i + CHECK_UNITS < f->units ? i + CHECK_UNITS : f->units;
    off_t data = f->io->lseek(f->io, f->fd, i * PS_UNIT, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return f->units;
    if (data > i * PS_UNIT) i = data / PS_UNIT;
    int64_t n = i < last ? unit_file_read(f, i, last - i, buf, e) : 0;
    if (n < 0) return n;
    for (int64_t k = 0; k < n; k++) {
        ps_unit u;
        ps_unit_get(buf + k * PS_UNIT, &u);
        if (unit_possible(s, &u) || u.physical < 0 || u.size < 0) return i + k;
    }
    return f->units;
}

/* Whether units follow the end that bisection found: then it is not the end. A writer may have put
 * them meanwhile, in their order. 1, 0 or an error code. */
static int check_beyond(const unit_file *f, sound *out, ps_error *e) {
    if (out->units >= f->units) return 0;
    uint8_t *buf = malloc(CHECK_UNITS * PS_UNIT);
    if (buf == NULL) return ps_no_memory(e, f->path, "no memory to check the queue file");
    sound kept = *out;
    int64_t next = next_possible(f, out->units, out, buf, e);
    free(buf);
    if (next < 0) return (int)next;
    if (next >= f->units) return 0;
    int there = look_at(f, out->units, &kept, e);
    return there < 0 ? there : there == 0;
}

/* The end of the last file by bisection. */
static int check_last(const unit_file *f, sound *out, ps_error *e) {
    int64_t low = 0, high = f->units;
    sound kept = *out;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        int code = look_at(f, mid, &kept, e);
        if (code < 0) return code;
        if (code > 0) {
            low = mid + 1;
            out->physical_end = kept.physical_end;
            out->last_start = kept.last_start;
        } else {
            high = mid;
        }
    }
    out->units = low;
    int more = check_beyond(f, out, e);
    out->more = more > 0;
    return more < 0 ? more : 0;
}

/* A full file: its first and its last unit. 0 and *out->units == f->units when they are sound. */
static int check_ends(const unit_file *f, sound *out, ps_error *e) {
    int64_t before = out->physical_end;
    sound first = *out;
    out->units = 0;
    int code = look_at(f, 0, &first, e);
    if (code > 0 && first.physical_end < before) code = 0;
    if (code > 0) code = look_at(f, f->units - 1, out, e);
    if (code > 0) out->units = f->units;
    out->more = false;
    return code < 0 ? code : 0;
}

/* Units do not ascend, or point past the log: which of them are wrong, the log says. Steps back
 * over those at the end that are; `before` is how far the files before this one are sound. */
static int step_back(ps_queue *q, const unit_file *f, int64_t base, const sound *before, sound *out,
                     ps_error *e) {
    uint8_t p[PS_UNIT];
    ps_unit u;
    bool stepped = false;
    while (out->units > 0) {
        int64_t n = unit_file_read(f, out->units - 1, 1, p, e);
        if (n <= 0) return (int)n;
        ps_unit_get(p, &u);
        if (stepped && u.size != PS_UNIT_NONE) {
            out->last_start = u.physical;
            out->physical_end = ps_unit_end(&u);
            stepped = false;
        }
        const ps_queues_shared *shared = q->cq_shared;
        if (shared->qs_confirms(shared->qs_confirms_arg, q, base / PS_UNIT + out->units - 1, &u))
            break;
        out->units--;
        stepped = true;
    }
    if (stepped) {
        out->last_start = before->last_start;
        out->physical_end = before->physical_end;
    }
    return 0;
}

/* Looks at the files in their order until one is not sound to its end. */
static int queue_find_end(ps_queue *q, bool deep, ps_error *e) {
    int32_t n = q->cq_files.ss_count;
    int64_t size = q->cq_files.ss_file_size, end = n ? q->cq_files.ss_items[0].sg_base : 0;
    sound at = {.physical_end = -1, .last_start = -1, .lost = -1}, first;
    int code = 0;
    at.prefills = atomic_load(q->cq_shared->qs_log_min) > 0;
    first = at;
    for (int32_t i = 0; i < n && code == 0; i++) {
        int64_t base = q->cq_files.ss_items[i].sg_base;
        unit_file f;
        if (base != end || base % size != 0) {
            q->cq_hole = true;
            break;
        }
        if ((code = unit_file_open(q, i, &f, e)) < 0) break;
        sound before = at;
        bool begins = i > 0 || (code = look_at(&f, 0, &first, e)) > 0;
        code = code > 0 ? 0 : code;
        if (code == 0 && !deep) code = i < n - 1 ? check_ends(&f, &at, e) : check_last(&f, &at, e);
        bool odd = at.units > 0 && !begins; /* bisection has not looked at the first unit */
        if (code == 0 && (deep || odd || (i < n - 1 && at.units < f.units))) {
            at = before;
            code = check_deep(&f, &at, e);
        }
        int64_t units = at.units;
        bool unsound = at.more || at.physical_end > q->cq_shared->qs_log_limit;
        if (at.last_start >= q->cq_shared->qs_log_limit) q->cq_beyond = at.last_start;
        bool unnamed = at.lost >= 0 && (i == n - 1 || units < f.units);
        if (code == 0 && (unsound || unnamed)) code = step_back(q, &f, base, &before, &at, e);
        f.io->close(f.io, f.fd);
        end = base + at.units * PS_UNIT;
        q->cq_hole = q->cq_hole || unsound || at.units < units ||
                     (i < n - 2 && at.units < f.units);
        if (at.units < f.units) break;
    }
    if (code < 0) return code;
    q->cq_hole = q->cq_hole || (n > 0 && q->cq_files.ss_items[n - 1].sg_base > end);
    q->cq_last_start = at.last_start;
    q->cq_first_start = first.last_start;
    queue_set_end(q, end, at.physical_end);
    return 0;
}

/* Files of another length than the store's are ignored: they are derived, and the log holds what
 * they held. */
static int queue_list(ps_queue *q, const char *folder, const ps_listing *l, ps_error *e) {
    const ps_queues_shared *shared = q->cq_shared;
    char path[PATH_MAX];
    int64_t size = q->cq_files.ss_file_size;
    for (int32_t i = 0; i < l->count; i++) {
        snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 80, folder, l->items[i].name);
        if (l->items[i].size == 0 && i == l->count - 1) {
            if (!shared->qs_readonly) shared->qs_io->unlink(shared->qs_io, path);
            continue;
        }
        if (l->items[i].size != size && !shared->qs_adopt_sizes)
            return ps_fail(e, PS_E_FILE_SIZE, 0, -1, path, "the file has %lld bytes, not %lld",
                           (long long)l->items[i].size, (long long)size);
        if (l->items[i].size != size) {
            q->cq_hole = true;
            continue;
        }
        if (ps_segments_add(&q->cq_files, l->items[i].number, path, NULL) < 0)
            return ps_no_memory(e, path, "no memory for a queue file");
    }
    return 0;
}

int ps_queue_open(ps_queues_shared *shared, struct ps_topic *topic, const char *name, int32_t id,
                  const char *folder, const ps_listing *files, bool deep, ps_queue **out,
                  ps_error *e) {
    ps_queue *q = ps_queue_new(shared, topic, name, id);
    if (q == NULL) return ps_no_memory(e, folder, "no memory for the queue");
    int code = queue_list(q, folder, files, e);
    if (code == 0) code = queue_find_end(q, deep, e);
    if (code < 0) {
        ps_queue_free(q);
        return code;
    }
    if (q->cq_files.ss_count > 0)
        atomic_store(&q->cq_min, q->cq_files.ss_items[0].sg_base / PS_UNIT);
    /* While the log has its first segment every queue begins at 0. */
    if (atomic_load(shared->qs_log_min) == 0 && atomic_load(&q->cq_min) > 0)
        ps_queue_restart(q);
    *out = q;
    return 0;
}

void ps_queue_restart(ps_queue *q) {
    queue_set_end(q, 0, -1);
    atomic_store(&q->cq_min, 0);
    q->cq_first_start = q->cq_last_start = -1;
    q->cq_hole = true;
}

void ps_queue_end_at(ps_queue *q, int64_t offset) {
    uint8_t p[PS_UNIT];
    if (offset * PS_UNIT <= q->cq_files.ss_items[0].sg_base ||
        ps_segments_peek(&q->cq_files, (offset - 1) * PS_UNIT, p, PS_UNIT, NULL) <= 0) {
        ps_queue_restart(q);
        return;
    }
    queue_set_end(q, offset * PS_UNIT, unit_end(p));
    q->cq_hole = true;
}

/* ---- mending ---- */

/* Files that the sound part does not need, and files of another length, go aside. */
static int move_files(ps_queue *q, const char *folder, ps_aside *aside, ps_error *e) {
    char path[PATH_MAX];
    ps_listing l;
    int64_t end = atomic_load(&q->cq_max) * PS_UNIT, size = q->cq_files.ss_file_size;
    bool empty = atomic_load(&q->cq_max_physical) < 0;
    int code = ps_list_folder(q->cq_shared->qs_io, folder, false, &l, e);
    for (int32_t i = 0; code == 0 && i < l.count; i++) {
        bool odd = l.items[i].size != size || l.items[i].number % size != 0;
        if (!odd && !empty && l.items[i].number < end) continue;
        snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 80, folder, l.items[i].name);
        code = ps_aside_move(aside, path, "units of the queue are missing before it", e);
    }
    ps_listing_free(&l);
    while (code == 0 && ps_segments_count(&q->cq_files) > 0 &&
           (empty || ps_segments_base(&q->cq_files, -1) >= end))
        ps_segments_forget(&q->cq_files, -1);
    return code;
}

int ps_queue_mend(ps_queue *q, ps_aside *aside, ps_error *e) {
    char folder[PATH_MAX];
    queue_folder(q, folder, sizeof folder - 80);
    int code = move_files(q, folder, aside, e);
    if (code < 0) return code;
    if (ps_segments_count(&q->cq_files) == 0) {
        publish_end(q, 0, -1);
        atomic_store(&q->cq_min, 0);
        return 0;
    }
    int64_t end = atomic_load(&q->cq_max) * PS_UNIT;
    ps_mapfile *mf = ps_segments_find(&q->cq_files, end - PS_UNIT, e);
    if (mf == NULL) return e->code;
    int64_t at = end - mf->mf_base, rest = mf->mf_size - at;
    if (!all_zero(mf->mf_map + at, rest)) {
        code = ps_aside_bytes(aside, mf->mf_path, at, mf->mf_map + at, rest,
                              "units that follow an unsound one", e);
        if (code == 0) code = ps_mapfile_zero(mf, at, rest, true, e);
    }
    ps_mapfile_unref(mf);
    return code;
}

/* ---- appending ---- */

static int queue_add_file(ps_queue *q, int64_t base, ps_mapfile **out, ps_error *e) {
    char folder[PATH_MAX], path[PATH_MAX];
    queue_folder(q, folder, sizeof folder - 32);
    snprintf(path, sizeof path, "%.*s/%020" PRId64, PATH_MAX - 32, folder, base);
    atomic_store(&q->cq_relisted, true);
    const ps_places *places = q->cq_shared->qs_places;
    int code = places != NULL ? ps_places_folder(places, folder, false, e)
                              : ps_make_folders(q->cq_shared->qs_io, folder, false, e);
    if (code == 0) code = ps_segments_make(&q->cq_files, base, path, out, e);
    return code;
}

/* The part of a file before the first unit, when the queue starts in its middle since what was
 * before is deleted: units that look valid and point nowhere. */
static int queue_prefill(ps_queue *q, ps_mapfile *mf, int64_t upto, ps_error *e) {
    const ps_unit none = {0, PS_UNIT_NONE, 0};
    int code = ps_mapfile_reserve(mf, upto + PS_UNIT, RESERVE_WINDOW, e);
    if (code < 0) return code;
    for (int64_t at = 0; at < upto; at += PS_UNIT) ps_unit_put(mf->mf_map + at, &none);
    atomic_store(&mf->mf_wrote, upto);
    int64_t first = (mf->mf_base + upto) / PS_UNIT;
    atomic_store(&q->cq_min, first);
    atomic_store(&q->cq_max, first);
    return 0;
}

/* The file that takes the unit at byte `at`, made when it is not there. A queue's last file is
 * mapped when its first unit is written. */
static int queue_file_for(ps_queue *q, int64_t at, ps_mapfile **out, ps_error *e) {
    int64_t size = q->cq_files.ss_file_size;
    bool first = ps_segments_count(&q->cq_files) == 0;
    ps_error why = {0};
    hold_none(q);
    ps_mapfile *mf = first ? NULL : ps_segments_find(&q->cq_files, at, &why);
    int code = why.code;
    if (mf != NULL) {
        set_wrote(mf, at - mf->mf_base);
    } else if (code < 0) {
        if (e != NULL) *e = why;
    } else {
        code = queue_add_file(q, at - at % size, &mf, e);
        if (code < 0) return code;
        if (first && at % size != 0) code = queue_prefill(q, mf, at % size, e);
        if (code == 0 && first) atomic_store(&q->cq_min, at / PS_UNIT);
        if (code < 0) ps_mapfile_unref(mf);
    }
    if (code == 0 && hold_file(q, mf) < 0) return ps_no_memory(e, NULL, "no memory for the queue");
    *out = mf;
    return code;
}

static int append_unit(ps_queue *q, int64_t offset, const ps_unit *unit, ps_error *e) {
    int64_t at = offset * PS_UNIT;
    ps_mapfile *mf = atomic_load_explicit(&q->cq_last, memory_order_relaxed);
    if (mf == NULL || at - mf->mf_base >= mf->mf_size) {
        int code = queue_file_for(q, at, &mf, e);
        if (code < 0) return code;
    }
    at -= mf->mf_base;
    if (at + PS_UNIT > atomic_load_explicit(&mf->mf_reserved, memory_order_relaxed)) {
        int code = ps_mapfile_reserve(mf, at + PS_UNIT, RESERVE_WINDOW, e);
        if (code < 0) return code;
    }
    ps_unit_put(mf->mf_map + at, unit);
    atomic_store_explicit(&mf->mf_wrote, at + PS_UNIT, memory_order_release);
    if (unit->size != PS_UNIT_NONE)
        atomic_store_explicit(&q->cq_max_physical, unit->physical + unit->size,
                              memory_order_relaxed);
    atomic_store_explicit(&q->cq_max, offset + 1, memory_order_release);
    return 1;
}

int ps_queue_begin(ps_queue *q, int64_t offset, ps_error *e) {
    const ps_unit none = {0, PS_UNIT_NONE, 0};
    int code = append_unit(q, offset - 1, &none, e);
    if (code < 0) return code;
    atomic_store(&q->cq_min, offset);
    return 0;
}

/* Units of messages that the log has lost: they keep the later ones at their offsets. */
static int fill_gap(ps_queue *q, int64_t upto, int64_t physical, ps_error *e) {
    const ps_unit lost = {physical, PS_UNIT_NONE, 0};
    int code = 1;
    for (int64_t at = atomic_load(&q->cq_max); at < upto && code > 0; at++)
        code = append_unit(q, at, &lost, e);
    return code;
}

bool ps_offset_possible(int32_t name_len, int64_t offset, int64_t physical, int64_t max,
                        int64_t before) {
    if (offset < 0 || offset > ps_queue_most(name_len, physical)) return false;
    return max == 0 || before < 0 || offset - max <= ps_queue_most(name_len, physical - before);
}

/* Whether the queue's record before, which was passed over, has the offset before this one. A
 * damaged record claims one that its next does not go on from. */
static bool goes_on(const ps_queue *q, int64_t offset, const ps_unit *unit) {
    return q->cq_doubted.size > 0 && q->cq_doubted_at + 1 == offset &&
           q->cq_doubted.physical < unit->physical;
}

/* Whether a record that leaves a gap after `max` is believed. Where the segment of the record
 * before is of another generation, there may be less room than messages are missing: then the unit
 * that stood here says so, or the next record does. */
static bool gap_is_believed(ps_queue *q, int64_t offset, const ps_unit *unit, int64_t max) {
    int64_t before = atomic_load(&q->cq_max_physical);
    if (goes_on(q, offset, unit) ||
        ps_offset_possible(q->cq_name_len, offset, unit->physical, max, before))
        return true;
    if (!ps_offset_possible(q->cq_name_len, offset, unit->physical, 0, -1)) return false;
    if (ps_unit_was_there(q, offset, unit)) return true;
    q->cq_doubted = *unit;
    q->cq_doubted_at = offset;
    return false;
}

/* Writes what comes before a unit that leaves a gap. */
static int fill_before(ps_queue *q, int64_t offset, const ps_unit *unit, bool two, ps_error *e) {
    if (!two) return fill_gap(q, offset, unit->physical, e);
    int code = fill_gap(q, q->cq_doubted_at, q->cq_doubted.physical, e);
    return code < 0 ? code : append_unit(q, q->cq_doubted_at, &q->cq_doubted, e);
}

/* Whether the queue ends with a record that comes after this one in the log, as a pass that fills a
 * hole may meet it: units ascend. A unit that no record confirms does not count. */
static bool is_behind(ps_queue *q, int64_t max, const ps_unit *unit) {
    if (unit->physical >= atomic_load_explicit(&q->cq_max_physical, memory_order_relaxed))
        return false;
    return q->cq_tail_count > 0 || ps_unit_is_of_another(q, max - 1, unit->physical);
}

/* Whether a record that would take the queue from `max` to `offset` is at odds with what stood
 * there before the recovery: the offsets before its own may have been of records that retention has
 * deleted since, so that the queue begins after them. */
static bool is_rival(ps_queue *q, int64_t max, int64_t offset, int64_t physical) {
    int64_t end = offset < q->cq_was ? offset : q->cq_was;
    int64_t log_min = atomic_load(q->cq_shared->qs_log_min);
    for (int64_t at = max; at < end; at++)
        if (ps_unit_was_of_another(q, at, physical, log_min)) return true;
    return offset < q->cq_was && ps_unit_was_of_another(q, offset, physical, 0);
}

int ps_queue_append(ps_queue *q, int64_t offset, const ps_unit *unit, ps_error *e) {
    int64_t max = atomic_load_explicit(&q->cq_max, memory_order_relaxed);
    if (offset < max) {
        if (offset < 0) return PS_UNIT_IMPLAUSIBLE;
        bool rival = q->cq_shared->qs_strict && ps_unit_is_of_another(q, offset, unit->physical);
        return rival ? PS_UNIT_RIVAL : 0;
    }
    if (__builtin_expect(is_behind(q, max, unit), 0)) return PS_UNIT_RIVAL;
    bool gap = __builtin_expect(offset > max, 0);
    bool empty = gap && max == 0 && ps_segments_count(&q->cq_files) == 0;
    if (gap) {
        if (!gap_is_believed(q, offset, unit, max)) return PS_UNIT_IMPLAUSIBLE;
        if (q->cq_shared->qs_strict && (!empty || q->cq_shared->qs_log_before)) {
            q->cq_hole = true;
            return 0;
        }
    }
    if (__builtin_expect(max < q->cq_was, 0) && is_rival(q, max, offset, unit->physical))
        return PS_UNIT_RIVAL;
    bool two = gap && goes_on(q, offset, unit);
    if (gap) {
        /* Only where the log's beginning was deleted may a queue begin in its middle. */
        bool begins = empty && atomic_load(q->cq_shared->qs_log_min) > 0;
        int code = begins ? 0 : fill_before(q, offset, unit, two, e);
        if (code < 0) return code;
    }
    int code = append_unit(q, offset, unit, e);
    return code > 0 && two ? PS_UNIT_TWO : code;
}

/* ---- reading ---- */

bool ps_queue_is_of(const ps_queue *q, const ps_record *r) {
    return r->queue_id == q->cq_id && r->topic_len == q->cq_name_len &&
           memcmp(r->topic, q->cq_name, (size_t)q->cq_name_len) == 0;
}

ps_mapfile *ps_queue_run(ps_queue *q, int64_t offset, const uint8_t **units, int64_t *count) {
    int64_t max = atomic_load_explicit(&q->cq_max, memory_order_acquire);
    *count = 0;
    *units = NULL;
    if (offset < 0 || offset >= max) return NULL;
    ps_mapfile *mf = ps_segments_find(&q->cq_files, offset * PS_UNIT, NULL);
    if (mf == NULL) return NULL;
    int64_t tail = atomic_load(&q->cq_tail_count) > 0 ? atomic_load(&q->cq_tail_from) : max;
    if (max > tail) max = tail;
    int64_t at = offset * PS_UNIT - mf->mf_base, end = max * PS_UNIT - mf->mf_base;
    if (end > mf->mf_size) end = mf->mf_size;
    if (end <= at) {
        ps_mapfile_unref(mf);
        return NULL;
    }
    *units = mf->mf_map + at;
    *count = (end - at) / PS_UNIT;
    return mf;
}

void ps_queue_reads_on(ps_mapfile *mf, int64_t count) {
    if (count >= MANY_UNITS && !mf->mf_writable) ps_mapfile_spare(mf, false, 0);
}

bool ps_queue_unit(ps_queue *q, int64_t offset, ps_unit *out) {
    const uint8_t *p;
    int64_t count;
    ps_mapfile *mf = ps_queue_run(q, offset, &p, &count);
    if (mf != NULL) {
        ps_unit_get(p, out);
        bool whole = ps_mapfile_whole(mf, NULL) == 0;
        ps_mapfile_unref(mf);
        return whole;
    }
    if (atomic_load(&q->cq_tail_count) == 0) return false;
    pthread_rwlock_rdlock(&q->cq_shared->qs_lock);
    int64_t i = offset - atomic_load(&q->cq_tail_from);
    bool there = i >= 0 && i < atomic_load(&q->cq_tail_count);
    if (there) *out = q->cq_tail[i];
    pthread_rwlock_unlock(&q->cq_shared->qs_lock);
    return there;
}

int ps_queue_peek(ps_queue *q, int64_t offset, ps_unit *out, ps_error *e) {
    uint8_t p[PS_UNIT];
    int64_t max = atomic_load_explicit(&q->cq_max, memory_order_acquire);
    if (offset < 0 || offset >= max) return 0;
    if (atomic_load(&q->cq_tail_count) > 0 && offset >= atomic_load(&q->cq_tail_from))
        return ps_queue_unit(q, offset, out);
    int code = ps_segments_peek(&q->cq_files, offset * PS_UNIT, p, PS_UNIT, e);
    if (code > 0) ps_unit_get(p, out);
    return code;
}

/* A place of the log that units of a queue are compared with. */
typedef struct place_sought {
    ps_queue *queue;
    int64_t physical;
    bool refuses; /* a file that is gone is an error, too */
} place_sought;

static bool is_prefilled(const ps_unit *u) {
    return u->size == PS_UNIT_NONE && u->physical == 0;
}

static bool is_possible(const ps_unit *u) {
    return u->physical >= 0 && u->size > 0;
}

static int side_of_start(void *arg, int64_t at, ps_error *e) {
    const place_sought *p = arg;
    ps_error why = {0};
    ps_unit u;
    int found = ps_queue_peek(p->queue, at, &u, &why);
    /* A file that cannot be opened now is not one that is gone. */
    if (found < 0 && (p->refuses || why.sys_errno != ENOENT)) {
        if (e != NULL) *e = why;
        return why.code;
    }
    if (found <= 0 || is_prefilled(&u)) return PS_SIDE_BEFORE;
    if (!is_possible(&u)) return PS_SIDE_UNKNOWN;
    return u.physical < p->physical ? PS_SIDE_BEFORE : PS_SIDE_AFTER;
}

int ps_queue_correct_min(ps_queue *q, int64_t physical, ps_error *e) {
    place_sought p = {q, physical, e != NULL};
    int64_t min = atomic_load(&q->cq_min), max = atomic_load(&q->cq_max);
    int64_t first = min < max ? ps_bisect(side_of_start, &p, min, max, e) : min;
    if (first < 0) return (int)first;
    atomic_store(&q->cq_min, first);
    return 0;
}

/* ---- cutting and deleting ---- */

static int side_of_end(void *arg, int64_t at, ps_error *e) {
    const place_sought *p = arg;
    ps_unit u;
    (void)e;
    if (ps_queue_peek(p->queue, at, &u, NULL) <= 0) return PS_SIDE_AFTER;
    if (is_prefilled(&u)) return PS_SIDE_BEFORE;
    if (!is_possible(&u)) return PS_SIDE_UNKNOWN;
    bool before = u.size == PS_UNIT_NONE ? u.physical < p->physical
                                         : ps_unit_end(&u) <= p->physical;
    return before ? PS_SIDE_BEFORE : PS_SIDE_AFTER;
}

/* First offset at or above the queue's first file whose unit does not point below `physical`. */
static int64_t first_at_or_behind(ps_queue *q, int64_t physical) {
    place_sought p = {q, physical, false};
    int64_t low = q->cq_files.ss_items[0].sg_base / PS_UNIT, high = atomic_load(&q->cq_max);
    return low < high ? ps_bisect(side_of_end, &p, low, high, NULL) : low;
}

/* Deletes the files that start at or after byte `end`. */
static int drop_files(ps_queue *q, int64_t end, ps_error *e) {
    while (q->cq_files.ss_count > 0 && ps_segments_base(&q->cq_files, -1) >= end) {
        atomic_store(&q->cq_relisted, true);
        int code = ps_segments_delete(&q->cq_files, -1, e);
        if (code < 0) return code;
    }
    return 0;
}

/* Takes away the units [keep, was). */
static int discard_units(ps_queue *q, int64_t keep, int64_t was, ps_error *e) {
    int64_t max_physical = -1, end = keep * PS_UNIT;
    int code = drop_files(q, end, e);
    if (code < 0) return code;
    if (q->cq_files.ss_count > 0) {
        int64_t base = ps_segments_base(&q->cq_files, -1);
        ps_mapfile *last = ps_segments_find(&q->cq_files, base, e);
        if (last == NULL) return PS_E_IO;
        int64_t dirty = was * PS_UNIT - base;
        dirty = dirty < last->mf_size ? dirty : last->mf_size;
        code = ps_mapfile_zero(last, end - base, dirty - (end - base), false, e);
        max_physical = unit_end(last->mf_map + end - base - PS_UNIT);
        if (code == 0) {
            set_wrote(last, end - base);
            atomic_store(&last->mf_flushed, 0);
        }
        ps_mapfile_unref(last);
        if (code < 0) return code;
        queue_set_end(q, end, max_physical);
    } else {
        queue_set_end(q, 0, -1);
    }
    if (atomic_load(&q->cq_min) > atomic_load(&q->cq_max))
        atomic_store(&q->cq_min, atomic_load(&q->cq_max));
    return 0;
}

/* The first offset that is cut at `physical`; cq_max: none is. */
static int64_t cut_from(ps_queue *q, int64_t physical) {
    int64_t max = atomic_load(&q->cq_max), ends = atomic_load(&q->cq_max_physical);
    if (q->cq_files.ss_count == 0 || (ends >= 0 && ends <= physical)) return max;
    return first_at_or_behind(q, physical);
}

int64_t ps_queue_cut(ps_queue *q, int64_t physical, ps_error *e) {
    int64_t was = atomic_load(&q->cq_max), keep = cut_from(q, physical);
    if (keep >= was) return 0; /* of one that begins again its files may begin later */
    int code = discard_units(q, keep, was, e);
    return code < 0 ? code : was - keep;
}

int64_t ps_queue_rewind(ps_queue *q, int64_t physical, ps_error *e) {
    int64_t was = atomic_load(&q->cq_max), keep = cut_from(q, physical);
    uint8_t p[PS_UNIT];
    if (keep >= was) return 0;
    /* A queue that is to begin in its middle is made from its first file on. */
    if (keep == q->cq_files.ss_items[0].sg_base / PS_UNIT && keep > 0)
        return ps_queue_cut(q, physical, e);
    int found = keep == 0 ? 0 : ps_segments_peek(&q->cq_files, (keep - 1) * PS_UNIT, p, PS_UNIT, e);
    if (found < 0) return found;
    q->cq_was = was;
    queue_set_end(q, keep * PS_UNIT, found > 0 ? unit_end(p) : -1);
    if (atomic_load(&q->cq_min) > keep) atomic_store(&q->cq_min, keep);
    return was - keep;
}

int ps_queue_settle(ps_queue *q, ps_error *e) {
    int64_t keep = atomic_load(&q->cq_max), was = q->cq_was;
    q->cq_was = 0;
    return keep < was && was != INT64_MAX ? discard_units(q, keep, was, e) : 0;
}

bool ps_queue_begins_before(ps_queue *q, int64_t physical) {
    ps_unit u;
    int64_t max = atomic_load(&q->cq_max);
    if (q->cq_first_start >= 0 && max > 0) return q->cq_first_start < physical;
    int64_t first = q->cq_files.ss_count > 0 ? first_at_or_behind(q, 0) : atomic_load(&q->cq_min);
    for (; first < max; first++) {
        /* A reader finds the files of a topic that the writer has deleted gone. */
        if (ps_queue_peek(q, first, &u, NULL) <= 0) return q->cq_shared->qs_readonly;
        if (is_possible(&u)) return u.physical < physical;
    }
    return false;
}

int ps_queue_clear(ps_queue *q, ps_error *e) {
    char folder[PATH_MAX];
    int code = drop_files(q, 0, e);
    if (code < 0) return code;
    publish_end(q, 0, -1);
    q->cq_first_start = q->cq_last_start = -1;
    q->cq_doubted.size = 0;
    atomic_store(&q->cq_min, 0);
    queue_folder(q, folder, sizeof folder);
    q->cq_shared->qs_io->rmdir(q->cq_shared->qs_io,
                               folder); /* it may hold what is not ours, and then it stays */
    return 0;
}

void ps_queue_forget_locked(ps_queue *q) {
    while (ps_segments_count(&q->cq_files) > 0) ps_segments_forget_first(&q->cq_files);
    q->cq_tail_count = 0;
    publish_end(q, 0, -1);
    q->cq_first_start = q->cq_last_start = -1;
    atomic_store(&q->cq_min, 0);
}

int32_t ps_queue_delete_before(ps_queue *q, int64_t physical, bool dry_run, ps_error *e) {
    int32_t gone = 0, at = 0;
    while (ps_segments_count(&q->cq_files) - at > 1) {
        ps_unit u;
        int64_t base = ps_segments_base(&q->cq_files, at);
        int64_t last = (base + q->cq_files.ss_file_size) / PS_UNIT - 1;
        if (ps_queue_peek(q, last, &u, NULL) <= 0 || u.physical >= physical) break;
        atomic_store(&q->cq_relisted, true);
        if (dry_run)
            at++;
        else if (ps_segments_delete(&q->cq_files, 0, e) < 0)
            return e != NULL ? e->code : PS_E_IO;
        gone++;
    }
    return gone;
}

/* ---- flushing, refreshing ---- */

int ps_queue_flush(ps_queue *q, int least_pages, ps_error *e) {
    int64_t at = atomic_load(&q->cq_flushed) * PS_UNIT;
    int64_t end = atomic_load_explicit(&q->cq_max, memory_order_acquire) * PS_UNIT;
    if (end - at < (least_pages ? (int64_t)least_pages * 4096 : 1)) return 0;
    int32_t n = ps_segments_count(&q->cq_files);
    for (int32_t i = 0; i < n; i++) {
        int64_t base = ps_segments_base(&q->cq_files, i);
        if (base < 0 || base + q->cq_files.ss_file_size <= at) continue;
        int code = ps_segments_flush(&q->cq_files, i, e);
        if (code < 0) return code;
    }
    atomic_store(&q->cq_flushed, end / PS_UNIT);
    return 0;
}

static bool known_file(ps_queue *q, int64_t base) {
    int32_t n = ps_segments_count(&q->cq_files);
    for (int32_t i = 0; i < n; i++)
        if (ps_segments_base(&q->cq_files, i) == base) return true;
    return false;
}

/* Files that appeared since the last look. A file still being made has another size: left for
 * later. Returns where the first file that is there begins, -1 without one. */
static int64_t list_newer(ps_queue *q) {
    char folder[PATH_MAX], path[PATH_MAX];
    ps_listing l;
    int64_t first = -1;
    queue_folder(q, folder, sizeof folder - 32);
    if (ps_list_folder(q->cq_shared->qs_io, folder, false, &l, NULL) < 0) return -1;
    if (l.count > 0 && q->cq_files.ss_count == 0 && q->cq_shared->qs_adopt_sizes &&
        l.items[0].size > 0 && l.items[0].size % PS_UNIT == 0)
        q->cq_files.ss_file_size = l.items[0].size;
    for (int32_t i = 0; i < l.count; i++) {
        if (l.items[i].size != q->cq_files.ss_file_size) continue;
        if (first < 0 || l.items[i].number < first) first = l.items[i].number;
        if (known_file(q, l.items[i].number)) continue;
        snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 80, folder, l.items[i].name);
        ps_segments_add(&q->cq_files, l.items[i].number, path, NULL);
    }
    ps_listing_free(&l);
    return first;
}

/* What was before `offset` is deleted: the reader's view begins there. */
static void begin_at(ps_queue *q, int64_t offset) {
    q->cq_tail_count = 0;
    atomic_store(&q->cq_min, offset);
    atomic_store(&q->cq_max, offset);
}

/* Units that the files hold by now are no longer needed from memory. */
static void tail_drop_below(ps_queue *q, int64_t offset) {
    int64_t covered = offset - q->cq_tail_from;
    if (q->cq_tail_count == 0 || covered <= 0) return;
    if (covered >= q->cq_tail_count) {
        q->cq_tail_count = 0;
        return;
    }
    memmove(q->cq_tail, q->cq_tail + covered,
            (size_t)(q->cq_tail_count - covered) * sizeof *q->cq_tail);
    q->cq_tail_count -= (int32_t)covered;
    q->cq_tail_from = offset;
}

/* A queue that got nothing new is not worth a mapping where these are scarce. */
static bool may_hold_more(ps_queue *q, int64_t offset) {
    uint8_t p[PS_UNIT];
    if (!ps_mappings_crowded(q->cq_shared->qs_mappings)) return true;
    return ps_segments_peek(&q->cq_files, offset * PS_UNIT, p, PS_UNIT, NULL) <= 0 || unit_valid(p);
}

int ps_queue_refresh_locked(ps_queue *q, ps_error *e) {
    if (q->cq_hole || q->cq_sealed) return 0;
    bool listed = q->cq_tail_count == 0 && ps_segments_count(&q->cq_files) == 0;
    if (listed) {
        int64_t first = list_newer(q);
        if (first / PS_UNIT > atomic_load(&q->cq_max)) begin_at(q, first / PS_UNIT);
    }
    int64_t max = atomic_load(&q->cq_max);
    int64_t from = q->cq_tail_count > 0 ? q->cq_tail_from : max;
    int64_t at = from, max_physical = atomic_load(&q->cq_max_physical);
    for (;;) {
        if (!may_hold_more(q, at)) break;
        ps_mapfile *mf = ps_segments_find(&q->cq_files, at * PS_UNIT, e);
        if (mf == NULL) {
            if (listed) break;
            int64_t first = list_newer(q);
            if (first / PS_UNIT > at) {
                from = at = first / PS_UNIT;
                begin_at(q, at);
            }
            listed = true;
            continue;
        }
        int64_t i = at * PS_UNIT - mf->mf_base;
        while (i < mf->mf_size && unit_valid(mf->mf_map + i) &&
               (int64_t)be64_get(mf->mf_map + i) < q->cq_shared->qs_log_limit) {
            max_physical = unit_end(mf->mf_map + i);
            i += PS_UNIT;
        }
        at = (mf->mf_base + i) / PS_UNIT;
        bool full = i >= mf->mf_size;
        ps_mapfile_unref(mf);
        if (!full) break;
        listed = false;
    }
    if (at <= from) return 0;
    tail_drop_below(q, at);
    if (q->cq_tail_count == 0) atomic_store(&q->cq_max_physical, max_physical);
    if (at > atomic_load(&q->cq_max)) atomic_store_explicit(&q->cq_max, at, memory_order_release);
    return 0;
}

static int tail_push(ps_queue *q, int64_t offset, const ps_unit *unit) {
    if (!PS_GROW(q->cq_tail, q->cq_tail_room, q->cq_tail_count + 1, 16)) return PS_E_NO_MEMORY;
    if (q->cq_tail_count == 0) atomic_store(&q->cq_tail_from, offset);
    q->cq_tail[q->cq_tail_count++] = *unit;
    if (unit->size != PS_UNIT_NONE) atomic_store(&q->cq_max_physical, ps_unit_end(unit));
    atomic_store_explicit(&q->cq_max, offset + 1, memory_order_release);
    return 1;
}

/* The unit, and before it those of what the log has lost. */
static int tail_fill(ps_queue *q, int64_t offset, const ps_unit *unit) {
    const ps_unit lost = {unit->physical, PS_UNIT_NONE, 0};
    for (int64_t max = atomic_load(&q->cq_max); max < offset; max++)
        if (tail_push(q, max, &lost) < 0) return PS_E_NO_MEMORY;
    return tail_push(q, offset, unit);
}

int ps_queue_tail_add_locked(ps_queue *q, int64_t offset, const ps_unit *unit) {
    int64_t max = atomic_load(&q->cq_max);
    if (offset < max) {
        if (offset < 0) return PS_UNIT_IMPLAUSIBLE;
        int64_t i = q->cq_tail_count > 0 ? offset - q->cq_tail_from : -1;
        bool rival = q->cq_shared->qs_strict &&
                     (i >= 0 ? q->cq_tail[i].physical != unit->physical &&
                                   q->cq_tail[i].size != PS_UNIT_NONE
                             : ps_unit_is_of_another(q, offset, unit->physical));
        return rival ? PS_UNIT_RIVAL : 0;
    }
    if (is_behind(q, max, unit)) return PS_UNIT_RIVAL;
    bool empty = max == 0 && q->cq_tail_count == 0;
    if (offset > max && !gap_is_believed(q, offset, unit, max)) return PS_UNIT_IMPLAUSIBLE;
    if (offset > max && q->cq_shared->qs_strict && (!empty || q->cq_shared->qs_log_before)) {
        q->cq_hole = true;
        return 0;
    }
    if (empty && atomic_load(q->cq_shared->qs_log_min) > 0) {
        atomic_store(&q->cq_min, offset); /* the queue's older part was deleted */
        atomic_store(&q->cq_max, offset);
        max = offset;
    }
    bool two = offset > max && goes_on(q, offset, unit);
    if (two && tail_fill(q, q->cq_doubted_at, &q->cq_doubted) < 0) return PS_E_NO_MEMORY;
    int code = tail_fill(q, offset, unit);
    return code > 0 && two ? PS_UNIT_TWO : code;
}
