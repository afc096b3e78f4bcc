/* Timers that wait: see pending.h. A small log-structured merge tree whose deletions come in order.
 *
 * state, big-endian; a run file holds entries alone, in this machine's byte order, which the sum of
 * state's head tells apart:
 *
 *   offset width meaning
 *        0       the head of a note (files/notes.h)
 *        8   i64 pd_from    16 i64 pd_next    24 i64 pd_delivered    32 i64 end of the log
 *       40   i64 number of the next run
 *       48   i64 runs, then each: i64 number, i64 entries, i64 cursor, i64 CRC-32 of its bytes
 *            then the caller's notes, to the end of the file */
#define _GNU_SOURCE
#include "timers/pending.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/crc.h"
#include "base/grow.h"
#include "files/mapfile.h"
#include "files/notes.h"
#include "files/replace.h"

#define STATE "state"
#define HEAD 56
#define ROW 32
#define STATE_MAX (HEAD + ROW * PS_PENDING_RUNS + PS_PENDING_NOTES_MAX)
#define CHUNK 8192 /* entries that are written at once */
#define MERGED 8   /* runs that become one */
#define MERGE_AT 16 /* when there are so many */
/* The clock was set back by more than this: the heap is written out, so that times before the old
 * one can be told from delivered ones. Within it a timer counts as due when the last one was. */
#define SET_BACK_MS 1000

static bool is_before(const ps_pending_entry *a, const ps_pending_entry *b) {
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->id < b->id;
}

static int compare_entries(const void *a, const void *b) {
    return is_before(a, b) ? -1 : is_before(b, a);
}

static bool is_timer(const ps_pending_entry *e) {
    return e->id & 1;
}

/* ---- the heap ---- */

static void sift_up(ps_pending_entry *h, int64_t at) {
    ps_pending_entry e = h[at];
    for (; at > 0 && is_before(&e, &h[(at - 1) / 2]); at = (at - 1) / 2) h[at] = h[(at - 1) / 2];
    h[at] = e;
}

/* Puts the entry after the last one into the first one's place. */
static void sift_down(ps_pending_entry *h, int64_t count) {
    ps_pending_entry e = h[count];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_before(&h[child + 1], &h[child])) child++;
        if (!is_before(&h[child], &e)) break;
        h[at] = h[child];
    }
    h[at] = e;
}

/* ---- runs ---- */

static int run_path(char out[PATH_MAX], const char *folder, int64_t number, ps_error *e) {
    char name[32];
    snprintf(name, sizeof name, "%020lld", (long long)number);
    return ps_path_in(out, folder, name, e);
}

static int map_run(ps_pending *p, ps_run *r, ps_error *e) {
    char path[PATH_MAX];
    struct stat st;
    int code = run_path(path, p->pd_folder, r->rn_number, e);
    if (code < 0) return code;
    int fd = p->pd_io->open(p->pd_io, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    const int64_t entry = sizeof *r->rn_map;
    void *map = MAP_FAILED;
    if (fd >= 0 && p->pd_io->fstat(p->pd_io, fd, &st) == 0) {
        /* A damaged count times the size of an entry may be the file's size by overflow. */
        if (S_ISREG(st.st_mode) && st.st_size % entry == 0 && st.st_size / entry == r->rn_count)
            map = p->pd_io->mmap(p->pd_io, (size_t)st.st_size, PROT_READ, fd, 0);
        else errno = EINVAL;
    }
    int err = errno;
    if (fd >= 0) p->pd_io->close(p->pd_io, fd);
    if (map == MAP_FAILED)
        return ps_fail(e, ps_errno_code(err), err, -1, path, "cannot map the run of timers");
    r->rn_map = map;
    return 0;
}

static void unmap_run(ps_pending *p, int32_t i) {
    ps_run *r = &p->pd_runs[i];
    if (r->rn_map != NULL)
        p->pd_io->munmap(p->pd_io, (void *)r->rn_map, (size_t)r->rn_count * sizeof *r->rn_map);
    *r = p->pd_runs[--p->pd_run_count];
}

/* A run being written. */
typedef struct writing {
    ps_pending *p;
    int fd;
    char path[PATH_MAX];
    ps_run run;
    ps_pending_entry *chunk;
    int64_t filled;
} writing;

static int flush_chunk(writing *w, ps_error *e) {
    const uint8_t *bytes = (const uint8_t *)w->chunk;
    int64_t len = w->filled * (int64_t)sizeof *w->chunk;
    int64_t at = w->run.rn_count * (int64_t)sizeof *w->chunk;
    w->run.rn_crc = ps_crc32(w->run.rn_crc, bytes, (size_t)len);
    w->run.rn_count += w->filled;
    for (int64_t i = 0; i < w->filled; i++) w->run.rn_cancels |= !is_timer(&w->chunk[i]);
    w->filled = 0;
    for (int64_t done = 0; done < len;) {
        ssize_t n =
            w->p->pd_io->pwrite(w->p->pd_io, w->fd, bytes + done, (size_t)(len - done), at + done);
        if (n <= 0)
            return ps_fail(e, ps_errno_code(errno), errno, -1, w->path,
                           "cannot write the run of timers");
        done += n;
    }
    return 0;
}

/* A cancelled timer and its cancellation follow each other, and both end here. */
static int write_entry(writing *w, const ps_pending_entry *x, ps_error *e) {
    if (w->filled > 0 && is_timer(x)) {
        ps_pending_entry *last = &w->chunk[w->filled - 1];
        if (last->due_ms == x->due_ms && last->id == (x->id & ~1LL)) {
            w->filled--;
            return 0;
        }
    }
    /* The last one stays here for the next one to be compared with. */
    if (w->filled == CHUNK) {
        ps_pending_entry last = w->chunk[--w->filled];
        int code = flush_chunk(w, e);
        if (code < 0) return code;
        w->chunk[w->filled++] = last;
    }
    w->chunk[w->filled++] = *x;
    return 0;
}

static int begin_run(ps_pending *p, writing *w, ps_error *e) {
    *w = (writing){.p = p, .fd = -1, .run = {.rn_number = p->pd_next_run}};
    int code = run_path(w->path, p->pd_folder, w->run.rn_number, e);
    if (code < 0 || (code = ps_make_folders(p->pd_io, p->pd_folder, true, e)) < 0) return code;
    w->chunk = malloc(CHUNK * sizeof *w->chunk);
    if (w->chunk == NULL) return ps_no_memory(e, NULL, "no memory for a run of timers");
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    w->fd = p->pd_io->open(p->pd_io, w->path, flags, p->pd_io->file_mode);
    if (w->fd < 0) {
        int err = errno;
        free(w->chunk);
        return ps_fail(e, ps_errno_code(err), err, -1, w->path,
                       "cannot make a file for a run of timers");
    }
    p->pd_next_run++;
    return 0;
}

/* Maps the run that was written, unless `code` says that writing failed. An empty one is deleted,
 * as one that failed. */
static int end_run(ps_pending *p, writing *w, int code, ps_error *e) {
    if (code == 0 && w->filled > 0) code = flush_chunk(w, e);
    if (w->fd >= 0) p->pd_io->close(p->pd_io, w->fd);
    free(w->chunk);
    if (code == 0 && w->run.rn_count > 0) code = map_run(p, &w->run, e);
    if ((code < 0 || w->run.rn_count == 0) && w->fd >= 0) p->pd_io->unlink(p->pd_io, w->path);
    return code;
}

/* ---- merging ---- */

/* Sources are read here with cursors of their own; delivery goes on from the runs themselves. */
typedef struct ps_merge {
    writing mg_to;
    ps_run mg_from[MERGED];
    int64_t mg_left; /* entries to copy */
} ps_merge;

static int64_t left_in(const ps_run *r) {
    return r->rn_count - r->rn_at;
}

static int by_size(const void *a, const void *b) {
    int64_t x = left_in(a), y = left_in(b);
    return x < y ? -1 : x > y;
}

static int begin_merge(ps_pending *p, ps_error *e) {
    ps_merge *m = calloc(1, sizeof *m);
    if (m == NULL) return ps_no_memory(e, NULL, "no memory for a merge");
    int code = begin_run(p, &m->mg_to, e);
    if (code < 0) {
        free(m);
        return code;
    }
    qsort(p->pd_runs, (size_t)p->pd_run_count, sizeof *p->pd_runs, by_size);
    for (int i = 0; i < MERGED; i++) {
        p->pd_runs[i].rn_merging = true;
        m->mg_from[i] = p->pd_runs[i];
        m->mg_left += left_in(&p->pd_runs[i]);
    }
    p->pd_merge = m;
    return 0;
}

/* Without one in progress nothing happens. */
static void abandon_merge(ps_pending *p) {
    ps_merge *m = p->pd_merge;
    if (m == NULL) return;
    end_run(p, &m->mg_to, PS_E_ARGUMENT, NULL);
    for (int32_t i = 0; i < p->pd_run_count; i++) p->pd_runs[i].rn_merging = false;
    p->pd_merge = NULL;
    free(m);
}

/* The first entry not before x. */
static int64_t place_of(const ps_run *r, const ps_pending_entry *x) {
    int64_t low = 0, high = r->rn_count;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (is_before(&r->rn_map[mid], x))
            low = mid + 1;
        else high = mid;
    }
    return low;
}

/* The merged run takes the place of its sources. What they have delivered meanwhile lies before the
 * first entry that any of them has left. */
static int end_merge(ps_pending *p, ps_error *e) {
    ps_merge *m = p->pd_merge;
    const ps_pending_entry *first = NULL;
    int code = end_run(p, &m->mg_to, 0, e);
    for (int32_t i = p->pd_run_count - 1; i >= 0; i--) {
        ps_run *r = &p->pd_runs[i];
        if (!r->rn_merging) continue;
        r->rn_merging = false;
        if (left_in(r) > 0 && (first == NULL || is_before(&r->rn_map[r->rn_at], first)))
            first = &r->rn_map[r->rn_at];
    }
    ps_run made = m->mg_to.run;
    if (code == 0 && made.rn_map != NULL)
        made.rn_at = first == NULL ? made.rn_count : place_of(&made, first);
    p->pd_merge = NULL;
    if (code == 0) {
        for (int i = 0; i < MERGED; i++)
            for (int32_t k = p->pd_run_count - 1; k >= 0; k--)
                if (p->pd_runs[k].rn_number == m->mg_from[i].rn_number) unmap_run(p, k);
        if (made.rn_map != NULL) p->pd_runs[p->pd_run_count++] = made;
    }
    free(m);
    return code;
}

/* So many entries more. One that fails is abandoned: its sources are still there. */
static int merge_some(ps_pending *p, int64_t most, ps_error *e) {
    ps_merge *m = p->pd_merge;
    int code = 0;
    for (; code == 0 && most > 0; most--) {
        ps_run *best = NULL;
        for (ps_run *r = m->mg_from; r < m->mg_from + MERGED; r++)
            if (left_in(r) > 0 &&
                (best == NULL || is_before(&r->rn_map[r->rn_at], &best->rn_map[best->rn_at])))
                best = r;
        if (best == NULL) return end_merge(p, e);
        code = write_entry(&m->mg_to, &best->rn_map[best->rn_at++], e);
        m->mg_left--;
    }
    if (code < 0) abandon_merge(p);
    return code;
}

/* What a new timer does for the merge, so that it is done when the table of runs is full. A merge
 * that fails keeps no timer out: it is tried again when there is a run more. */
static void share_merge(ps_pending *p) {
    if (p->pd_merge == NULL) return;
    int64_t free_runs = PS_PENDING_RUNS - 1 - p->pd_run_count;
    int64_t pushes = (free_runs > 0 ? free_runs * p->pd_room : 0) + p->pd_room - p->pd_count + 1;
    int64_t share = p->pd_merge->mg_left / pushes + 1;
    if (merge_some(p, share, NULL) < 0) p->pd_merge_at = p->pd_run_count + 1;
}

/* Makes room for one run more. */
static int finish_merge(ps_pending *p, ps_error *e) {
    int code = p->pd_merge != NULL ? 0 : begin_merge(p, e);
    while (code == 0 && p->pd_merge != NULL) code = merge_some(p, INT64_MAX, e);
    return code;
}

static int write_heap(ps_pending *p, ps_error *e) {
    writing w;
    if (p->pd_count == 0) return 0;
    int code = p->pd_run_count < PS_PENDING_RUNS ? 0 : finish_merge(p, e);
    if (code == 0) code = begin_run(p, &w, e);
    if (code < 0) return code;
    qsort(p->pd_heap, (size_t)p->pd_count, sizeof *p->pd_heap,
          compare_entries); /* sorted is a heap, too */
    for (int64_t i = 0; code == 0 && i < p->pd_count; i++)
        code = write_entry(&w, &p->pd_heap[i], e);
    code = end_run(p, &w, code, e);
    if (code < 0) return code;
    if (w.run.rn_count > 0) p->pd_runs[p->pd_run_count++] = w.run;
    p->pd_count = 0;
    if (p->pd_merge == NULL && p->pd_run_count >= p->pd_merge_at) {
        bool begun = begin_merge(p, NULL) == 0;
        p->pd_merge_at = begun ? MERGE_AT : p->pd_run_count + 1;
    }
    return 0;
}

/* Everything that waits is in runs afterwards. */
static int empty_heap(ps_pending *p, ps_error *e) {
    int code = write_heap(p, e);
    if (code < 0) return code;
    p->pd_from = p->pd_next;
    p->pd_delivered = INT64_MIN;
    p->pd_settled = false;
    return 0;
}

/* ---- opening ---- */

static void count_run(ps_pending *p, ps_run *r) {
    for (int64_t i = r->rn_at; i < r->rn_count; i++) p->pd_live += is_timer(&r->rn_map[i]) ? 1 : -1;
    for (int64_t i = r->rn_at; i < r->rn_count && !r->rn_cancels; i++)
        r->rn_cancels = !is_timer(&r->rn_map[i]);
}

static bool load_runs(ps_pending *p, const uint8_t *rows, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *row = rows + i * ROW;
        ps_run r = {(int64_t)be64_get(row), (int64_t)be64_get(row + 8),
                    (int64_t)be64_get(row + 16), (uint32_t)be64_get(row + 24), false, false,
                    NULL};
        if (r.rn_count <= 0 || r.rn_at < 0 || r.rn_at > r.rn_count || map_run(p, &r, NULL) < 0)
            return false;
        p->pd_runs[p->pd_run_count++] = r;
        size_t size = (size_t)r.rn_count * sizeof *r.rn_map;
        if (ps_crc32(0, r.rn_map, size) != r.rn_crc) return false;
        count_run(p, &p->pd_runs[p->pd_run_count - 1]);
    }
    return true;
}

static bool load_notes(ps_pending *p, const uint8_t *notes, int64_t len) {
    if (len == 0) return true;
    p->pd_notes = malloc((size_t)len);
    if (p->pd_notes == NULL) return false;
    memcpy(p->pd_notes, notes, (size_t)len);
    p->pd_notes_len = len;
    return true;
}

static bool load_state(ps_pending *p, const uint8_t *b, int64_t len) {
    if (len < HEAD || !ps_note_good(b, len, PS_NOTE_TIMERS))
        return false;
    int64_t runs = (int64_t)be64_get(b + 48);
    if (runs < 0 || runs > PS_PENDING_RUNS || len < HEAD + runs * ROW) return false;
    p->pd_from = (int64_t)be64_get(b + 8);
    p->pd_seen = (int64_t)be64_get(b + 16);
    p->pd_delivered = (int64_t)be64_get(b + 24);
    p->pd_log_end = (int64_t)be64_get(b + 32);
    p->pd_next_run = (int64_t)be64_get(b + 40);
    p->pd_next = p->pd_from;
    return load_runs(p, b + HEAD, runs) &&
           load_notes(p, b + HEAD + runs * ROW, len - HEAD - runs * ROW);
}

/* Whether the file is there, whole, and its sums agree. */
static bool read_state(ps_pending *p, const char *path) {
    struct stat st;
    uint8_t *bytes = NULL;
    int fd = p->pd_io->open(p->pd_io, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0) return false;
    if (p->pd_io->fstat(p->pd_io, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
        st.st_size <= STATE_MAX)
        bytes = malloc((size_t)st.st_size);
    bool good = bytes != NULL &&
                ps_read_head(p->pd_io, fd, bytes, (size_t)st.st_size) == st.st_size &&
                load_state(p, bytes, st.st_size);
    p->pd_io->close(p->pd_io, fd);
    free(bytes);
    return good;
}

void ps_pending_restart(ps_pending *p, int64_t from) {
    abandon_merge(p);
    while (p->pd_run_count > 0) unmap_run(p, 0);
    p->pd_count = p->pd_live = p->pd_seen = p->pd_log_end = 0;
    p->pd_from = p->pd_next = from;
    p->pd_delivered = INT64_MIN;
    p->pd_settled = false;
    p->pd_merge_at = MERGE_AT;
    free(p->pd_notes);
    p->pd_notes = NULL;
    p->pd_notes_len = 0;
}

int ps_pending_open(ps_pending *p, ps_io *io, const char *folder, bool readonly, ps_error *e) {
    char path[PATH_MAX];
    *p = (ps_pending){.pd_io = io,
                      .pd_readonly = readonly,
                      .pd_merge_at = MERGE_AT,
                      .pd_delivered = INT64_MIN};
    p->pd_folder = strdup(folder);
    p->pd_room = PS_PENDING_HEAP;
    p->pd_heap = malloc((size_t)p->pd_room * sizeof *p->pd_heap);
    if (p->pd_folder == NULL || p->pd_heap == NULL)
        return ps_no_memory(e, NULL, "no memory for the timers");
    int code = ps_path_in(path, folder, STATE, e);
    if (code < 0) return code;
    if (read_state(p, path)) return 1;
    int64_t next_run = p->pd_next_run; /* so that no file of an earlier life is met */
    ps_pending_restart(p, 0);
    p->pd_next_run = next_run;
    return 0;
}

void ps_pending_close(ps_pending *p) {
    abandon_merge(p);
    while (p->pd_run_count > 0) unmap_run(p, 0);
    free(p->pd_heap);
    free(p->pd_folder);
    free(p->pd_notes);
    *p = (ps_pending){0};
}

/* ---- changes ---- */

static int push_entry(ps_pending *p, ps_pending_entry x, ps_error *e) {
    share_merge(p);
    if (p->pd_count == p->pd_room && !p->pd_readonly) {
        int code = empty_heap(p, e);
        if (code < 0) return code;
    }
    if (!PS_GROW(p->pd_heap, p->pd_room, p->pd_count + 1, PS_PENDING_HEAP))
        return ps_no_memory(e, NULL, "no memory for the timers that wait");
    p->pd_heap[p->pd_count++] = x;
    sift_up(p->pd_heap, p->pd_count - 1);
    return 0;
}

int ps_pending_add(ps_pending *p, int64_t due_ms, int64_t id, ps_error *e) {
    int64_t offset = ps_pending_offset(id);
    int code = 0;
    if (due_ms <= p->pd_delivered) {
        if (offset < p->pd_seen) { /* read again after a restart: it was delivered before */
            p->pd_next = offset + 1;
            return 0;
        }
        if (p->pd_delivered - due_ms > SET_BACK_MS && !p->pd_readonly) code = empty_heap(p, e);
        else due_ms = p->pd_delivered;
    }
    if (code == 0) code = push_entry(p, (ps_pending_entry){due_ms, id}, e);
    if (code < 0) return code;
    p->pd_next = offset + 1;
    p->pd_live++;
    return 0;
}

int ps_pending_cancel(ps_pending *p, ps_pending_entry entry, ps_error *e) {
    entry.id &= ~1LL;
    int code = push_entry(p, entry, e);
    if (code == 0) p->pd_live--;
    return code;
}

/* The source of the first entry: a run, -1: the heap, -2: there is none. */
static int first_source(const ps_pending *p, const ps_pending_entry **out) {
    int source = -2;
    *out = NULL;
    if (p->pd_count > 0) {
        *out = &p->pd_heap[0];
        source = -1;
    }
    for (int32_t i = 0; i < p->pd_run_count; i++) {
        const ps_run *r = &p->pd_runs[i];
        if (r->rn_at == r->rn_count) continue;
        if (*out == NULL || is_before(&r->rn_map[r->rn_at], *out)) {
            *out = &r->rn_map[r->rn_at];
            source = i;
        }
    }
    return source;
}

static void drop_source(ps_pending *p, int source) {
    if (source == -1) {
        if (--p->pd_count > 0) sift_down(p->pd_heap, p->pd_count);
    } else if (++p->pd_runs[source].rn_at == p->pd_runs[source].rn_count &&
               !p->pd_runs[source].rn_merging) {
        unmap_run(p, source);
    }
}

bool ps_pending_first(ps_pending *p, ps_pending_entry *out) {
    const ps_pending_entry *e;
    int source;
    while ((source = first_source(p, &e)) > -2) {
        *out = *e;
        if (is_timer(out)) return true;
        drop_source(p, source);
        source = first_source(p, &e); /* the one that it takes away follows it */
        if (source > -2 && e->due_ms == out->due_ms && e->id == (out->id | 1))
            drop_source(p, source);
    }
    return false;
}

void ps_pending_pop(ps_pending *p) {
    const ps_pending_entry *e;
    int source = first_source(p, &e);
    if (source == -2) return;
    if (e->due_ms > p->pd_delivered) p->pd_delivered = e->due_ms;
    drop_source(p, source);
    p->pd_live--;
}

/* ---- looking ---- */

typedef struct finding {
    int64_t from_ms, to_ms, hash, count, room;
    ps_pending_entry *out;
} finding;

static void look_at(finding *f, const ps_pending_entry *e) {
    if (e->due_ms <= f->from_ms || e->due_ms > f->to_ms) return;
    if (f->hash == PS_PENDING_ALL_MARKED ? !(ps_pending_hash(e->id) & PS_PENDING_MARKED)
                                         : f->hash != PS_PENDING_ANY &&
                                               ps_pending_hash(e->id) != (uint32_t)f->hash)
        return;
    if (f->count < f->room) f->out[f->count] = *e;
    f->count++;
}

static int64_t bisect_run(const ps_run *r, int64_t after_ms) {
    int64_t low = r->rn_at, high = r->rn_count;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (r->rn_map[mid].due_ms <= after_ms) low = mid + 1;
        else high = mid;
    }
    return low;
}

int64_t ps_pending_find(ps_pending *p, int64_t from_ms, int64_t to_ms, int64_t hash,
                        ps_pending_entry *out, int64_t room) {
    finding f = {from_ms, to_ms, hash, 0, room, out};
    for (int64_t i = 0; i < p->pd_count; i++) look_at(&f, &p->pd_heap[i]);
    for (int32_t i = 0; i < p->pd_run_count; i++) {
        const ps_run *r = &p->pd_runs[i];
        for (int64_t at = bisect_run(r, from_ms); at < r->rn_count && r->rn_map[at].due_ms <= to_ms;
             at++)
            look_at(&f, &r->rn_map[at]);
    }
    if (f.count > room) return -1;
    qsort(out, (size_t)f.count, sizeof *out, compare_entries);
    int64_t kept = 0;
    for (int64_t i = 0; i < f.count; i++) {
        if (!is_timer(&out[i])) {
            i += i + 1 < f.count && out[i + 1].due_ms == out[i].due_ms &&
                 out[i + 1].id == (out[i].id | 1);
            continue;
        }
        out[kept++] = out[i];
    }
    return kept;
}

static int64_t count_of(const ps_pending_entry *e, int64_t n, int64_t from_ms, int64_t to_ms) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (e[i].due_ms > from_ms && e[i].due_ms <= to_ms) count += is_timer(&e[i]) ? 1 : -1;
    return count;
}

int64_t ps_pending_count(const ps_pending *p, int64_t from_ms, int64_t to_ms) {
    int64_t count = count_of(p->pd_heap, p->pd_count, from_ms, to_ms);
    for (int32_t i = 0; i < p->pd_run_count; i++) {
        const ps_run *r = &p->pd_runs[i];
        int64_t low = bisect_run(r, from_ms), high = bisect_run(r, to_ms);
        if (high <= low) continue;
        count += r->rn_cancels ? count_of(r->rn_map + low, high - low, from_ms, to_ms) : high - low;
    }
    return count;
}

static void take_before(const ps_pending_entry *e, int64_t n, int64_t offset,
                        ps_pending_entry *out, int64_t room, int64_t *count) {
    for (int64_t i = 0; i < n && *count < room; i++)
        if (is_timer(&e[i]) && ps_pending_offset(e[i].id) < offset) out[(*count)++] = e[i];
}

int64_t ps_pending_before(ps_pending *p, int64_t offset, ps_pending_entry *out, int64_t room) {
    int64_t count = 0;
    take_before(p->pd_heap, p->pd_count, offset, out, room, &count);
    for (int32_t i = 0; i < p->pd_run_count; i++) {
        const ps_run *r = &p->pd_runs[i];
        take_before(r->rn_map + r->rn_at, left_in(r), offset, out, room, &count);
    }
    return count;
}

/* ---- what survives ---- */

int ps_pending_capture(ps_pending *p, int64_t log_end, const uint8_t *notes, int64_t notes_len,
                       ps_pending_state *out, ps_error *e) {
    ps_pending_entry first;
    *out = (ps_pending_state){NULL, 0, -1};
    int code = 0;
    if (notes_len > PS_PENDING_NOTES_MAX) notes_len = 0;
    /* The next start looks for deliveries after log_end alone: what was delivered before must be in
     * no part of the queue that it reads again. */
    bool late = ps_pending_first(p, &first) && first.due_ms <= p->pd_delivered;
    if (late || p->pd_settled) code = empty_heap(p, e);
    if (code < 0) return code;
    uint8_t *b = malloc(HEAD + ROW * PS_PENDING_RUNS + (size_t)notes_len);
    if (b == NULL) return ps_no_memory(e, NULL, "no memory for the state");
    int64_t rows = 0;
    for (int32_t i = 0; i < p->pd_run_count; i++) {
        const ps_run *r = &p->pd_runs[i];
        int64_t row[] = {r->rn_number, r->rn_count, r->rn_at, r->rn_crc};
        if (left_in(r) == 0) continue; /* the source of a merge, wholly delivered */
        for (int k = 0; k < 4; k++) be64_put(b + HEAD + ROW * rows + 8 * k, (uint64_t)row[k]);
        rows++;
    }
    int64_t head[] = {p->pd_from, p->pd_next, p->pd_delivered, log_end, p->pd_next_run, rows};
    for (int i = 0; i < 6; i++) be64_put(b + 8 + 8 * i, (uint64_t)head[i]);
    if (notes_len > 0) memcpy(b + HEAD + ROW * rows, notes, (size_t)notes_len);
    *out = (ps_pending_state){b, HEAD + ROW * rows + notes_len,
                              p->pd_merge != NULL ? p->pd_merge->mg_to.run.rn_number : -1};
    ps_note_seal(b, out->len, PS_NOTE_TIMERS);
    return 0;
}

static int64_t runs_of(const ps_pending_state *s) {
    return (int64_t)be64_get(s->bytes + 48);
}

static int64_t run_at(const ps_pending_state *s, int64_t i) {
    return (int64_t)be64_get(s->bytes + HEAD + ROW * i);
}

static bool names_run(const ps_pending_state *s, int64_t number) {
    if (number >= (int64_t)be64_get(s->bytes + 40)) return true; /* made since */
    if (number == s->writing) return true;
    for (int64_t i = 0; i < runs_of(s); i++)
        if (run_at(s, i) == number) return true;
    return false;
}

static int sync_run(ps_io *io, const char *folder, int64_t number, ps_error *e) {
    char path[PATH_MAX];
    int code = run_path(path, folder, number, e);
    if (code < 0) return code;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0 || io->fdatasync(io, fd) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path,
                       "cannot sync the run of timers");
    if (fd >= 0) io->close(io, fd);
    return code;
}

int ps_pending_save(ps_io *io, const char *folder, const ps_pending_state *s, ps_error *e) {
    ps_listing files;
    char path[PATH_MAX];
    int code = ps_make_folders(io, folder, true, e);
    for (int64_t i = 0; code == 0 && i < runs_of(s); i++)
        code = sync_run(io, folder, run_at(s, i), e);
    if (code == 0) code = ps_replace_file(io, folder, STATE, s->bytes, s->len, e);
    if (code < 0 || (code = ps_list_folder(io, folder, false, &files, e)) < 0) return code;
    for (int32_t i = 0; i < files.count; i++)
        if (!names_run(s, files.items[i].number) &&
            run_path(path, folder, files.items[i].number, e) == 0)
            io->unlink(io, path);
    ps_listing_free(&files);
    return 0;
}
