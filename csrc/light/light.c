/* See light.h; the format is in slot.h. What follows is how it is used.
 *
 * A queue's units form a list from the last one back. Each also points further back, by the rule of
 * skew-binary numbers (Myers, "An applicative random-access stack", 1983): finding an offset among
 * n takes about 2 log n steps, and a unit never changes. Upstream has a file, a mapping and a
 * descriptor a queue instead (LmqConsumeQueue), or keys in RocksDB. */
#define _GNU_SOURCE
#include "light/light.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/chains.h"
#include "base/crc.h"
#include "base/grow.h"
#include "files/mapfile.h"
#include "files/replace.h"
#include "light/slot.h"

#define NAMES_AHEAD (64 << 10)
#define NAMES_DEAD (1 << 20) /* fewer bytes that say nothing any more are left */
#define COVER_EVERY (64LL << 20) /* bytes of the log between two marks */
#define PIECE (64 << 10) /* of `names`, that is written at once */
#define LOAD_SLOTS 4096
#define NEAR_SLOTS 64 /* that are read together */
#define NEAR_BLOCKS 16

/* ---- files ---- */

static void path_of(const ps_light *l, int64_t base, char path[PATH_MAX]) {
    if (base < 0)
        snprintf(path, PATH_MAX, "%s/" PS_LIGHT_FOLDER "/names", l->lt_root);
    else
        snprintf(path, PATH_MAX, "%s/" PS_LIGHT_FOLDER "/%020lld", l->lt_root, (long long)base);
}

static int open_file(ps_light *l, int64_t base, int *fd, ps_error *e) {
    char path[PATH_MAX];
    path_of(l, base, path);
    *fd = l->lt_io->open(l->lt_io, path, (l->lt_readonly ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC,
                         l->lt_io->file_mode);
    return *fd >= 0 ? 0
                    : ps_fail(e, ps_errno_code(errno), errno, -1, path,
                              "cannot open a file of light queues");
}

static void close_file(ps_light *l, int *fd) {
    if (*fd >= 0) l->lt_io->close(l->lt_io, *fd);
    *fd = -1;
}

static int64_t base_of(int64_t at) {
    return at - at % PS_LIGHT_FILE_SLOTS;
}

/* The descriptor of the file with this slot; two are kept open. */
static int fd_of(ps_light *l, int64_t at, ps_error *e) {
    int64_t base = base_of(at);
    if (l->lt_fd >= 0 && l->lt_fd_base == base) return l->lt_fd;
    if (l->lt_old_fd >= 0 && l->lt_old_base == base) return l->lt_old_fd;
    close_file(l, &l->lt_old_fd);
    if (open_file(l, base, &l->lt_old_fd, e) < 0) return -1;
    l->lt_old_base = base;
    return l->lt_old_fd;
}

static int io_failed(const ps_light *l, int64_t base, const char *what, ps_error *e) {
    char path[PATH_MAX];
    int err = errno != 0 ? errno : EIO;
    path_of(l, base, path);
    return ps_fail(e, ps_errno_code(err), err, -1, path, "cannot %s a file of light queues", what);
}

static int write_all(ps_light *l, int fd, const uint8_t *from, int64_t len, int64_t at,
                     int64_t base, ps_error *e) {
    while (len > 0) {
        ssize_t n = l->lt_io->pwrite(l->lt_io, fd, from, (size_t)len, at);
        if (n <= 0) return io_failed(l, base, "write", e);
        from += n;
        len -= n;
        at += n;
    }
    return 0;
}

/* What it means comes to the files before what uses it. */
static int flush_names(ps_light *l, ps_error *e) {
    if (l->lt_readonly || l->lt_names_ahead == 0) return 0;
    if (l->lt_names_fd < 0) {
        if (open_file(l, -1, &l->lt_names_fd, e) < 0) return e->code;
        l->lt_is_made = true;
    }
    int code = write_all(l, l->lt_names_fd, l->lt_names, l->lt_names_ahead, l->lt_names_len, -1, e);
    if (code < 0) return code;
    l->lt_names_len += l->lt_names_ahead;
    l->lt_names_ahead = 0;
    return 0;
}

static int flush_slots(ps_light *l, ps_error *e) {
    int code = flush_names(l, e);
    if (l->lt_readonly) return 0;
    int32_t done = 0;
    while (code == 0 && done < l->lt_ahead_count) {
        int64_t base = base_of(l->lt_written), into = l->lt_written - base;
        int64_t n = l->lt_ahead_count - done;
        if (n > PS_LIGHT_FILE_SLOTS - into) n = PS_LIGHT_FILE_SLOTS - into;
        if (l->lt_fd >= 0 && l->lt_fd_base != base) close_file(l, &l->lt_fd);
        if (l->lt_fd < 0) {
            if (l->lt_old_fd >= 0 && l->lt_old_base == base) close_file(l, &l->lt_old_fd);
            if ((code = open_file(l, base, &l->lt_fd, e)) < 0) break;
            l->lt_fd_base = base;
            l->lt_is_made = true;
        }
        code = write_all(l, l->lt_fd, l->lt_ahead + (int64_t)done * PS_LIGHT_SLOT,
                         n * PS_LIGHT_SLOT, into * PS_LIGHT_SLOT, base, e);
        if (code == 0) {
            l->lt_written += n;
            done += (int32_t)n;
        }
    }
    if (done > 0) {
        l->lt_ahead_count -= done;
        memmove(l->lt_ahead, l->lt_ahead + (int64_t)done * PS_LIGHT_SLOT,
                (size_t)l->lt_ahead_count * PS_LIGHT_SLOT);
    }
    return code;
}

static bool grow_buffer(uint8_t **buffer, int32_t *room, int64_t need) {
    return need <= 1 << 30 && PS_GROW(*buffer, *room, need, 4096);
}

static int no_memory(ps_error *e) {
    return ps_no_memory(e, NULL, "no memory for a light queue");
}

static int64_t slot_count(const ps_light *l) {
    return l->lt_written + l->lt_ahead_count;
}

static int put_slot(ps_light *l, const lg_slot *s, ps_error *e) {
    if (!l->lt_readonly && l->lt_ahead_count >= PS_LIGHT_AHEAD && flush_slots(l, e) < 0)
        return e->code;
    int64_t need = (int64_t)(l->lt_ahead_count + 1) * PS_LIGHT_SLOT;
    if (!grow_buffer(&l->lt_ahead, &l->lt_ahead_room, need))
        return no_memory(e);
    lg_slot_put(l->lt_ahead + (int64_t)l->lt_ahead_count * PS_LIGHT_SLOT, s);
    l->lt_ahead_count++;
    l->lt_end = s->physical;
    return 0;
}

/* *at: its number. A file begins with a mark of what the one before it covers: a reader of the
 * files knows by it whether that one may be gone. */
static int add_slot(ps_light *l, const lg_slot *s, int64_t *at, ps_error *e) {
    const lg_slot mark = {.kind = LG_MARK, .physical = l->lt_end, .before = -1, .jump = -1};
    *at = slot_count(l);
    if (*at == 0 || *at % PS_LIGHT_FILE_SLOTS != 0) return put_slot(l, s, e);
    int code = put_slot(l, &mark, e);
    ++*at;
    return code < 0 ? code : put_slot(l, s, e);
}

static int read_raw(ps_light *l, int64_t at, int64_t count, uint8_t *to, ps_error *e) {
    int fd = fd_of(l, at, e);
    if (fd < 0) return e->code;
    errno = 0;
    if (l->lt_io->pread(l->lt_io, fd, to, (size_t)count * PS_LIGHT_SLOT,
                        (at - base_of(at)) * PS_LIGHT_SLOT) != count * PS_LIGHT_SLOT)
        return io_failed(l, base_of(at), "read", e);
    return 0;
}

static int take_raw(const ps_light *l, int64_t at, const uint8_t *raw, lg_slot *out, ps_error *e) {
    if (lg_slot_get(raw, out)) return 0;
    return ps_fail(e, PS_E_DAMAGED, 0, at, l->lt_root, "a unit of a light queue is damaged");
}

/* The unit in this slot; an error: its file is gone, or the unit is not sound. */
static int read_slot(ps_light *l, int64_t at, lg_slot *out, ps_error *e) {
    uint8_t raw[PS_LIGHT_SLOT];
    if (at >= l->lt_written)
        return take_raw(l, at, l->lt_ahead + (at - l->lt_written) * PS_LIGHT_SLOT, out, e);
    int code = read_raw(l, at, 1, raw, e);
    return code < 0 ? code : take_raw(l, at, raw, out, e);
}

typedef struct ps_light_near { /* slots that never change any more */
    struct {
        int64_t first;
        int64_t count;
        uint8_t slots[NEAR_SLOTS * PS_LIGHT_SLOT];
    } nr_blocks[NEAR_BLOCKS];
} ps_light_near;

/* The same for who goes through slots in about their order, as queues that get their messages in
 * turns do: the kernel is asked once for many. */
static int read_near(ps_light *l, int64_t at, lg_slot *out, ps_error *e) {
    if (l->lt_near == NULL) l->lt_near = calloc(1, sizeof *l->lt_near);
    if (at >= l->lt_written || l->lt_near == NULL) return read_slot(l, at, out, e);
    int64_t first = at - at % NEAR_SLOTS, block = first / NEAR_SLOTS % NEAR_BLOCKS;
    int64_t count = l->lt_near->nr_blocks[block].count;
    uint8_t *slots = l->lt_near->nr_blocks[block].slots;
    if (l->lt_near->nr_blocks[block].first != first || at - first >= count) {
        count = l->lt_written - first < NEAR_SLOTS ? l->lt_written - first : NEAR_SLOTS;
        l->lt_near->nr_blocks[block].count = 0;
        int code = read_raw(l, first, count, slots, e);
        if (code < 0) return code;
        l->lt_near->nr_blocks[block].first = first;
        l->lt_near->nr_blocks[block].count = count;
    }
    return take_raw(l, at, slots + (at - first) * PS_LIGHT_SLOT, out, e);
}

/* ---- the table ---- */

static ps_light_queue *queue_at(const ps_light *l, ps_ref ref) {
    return ref != 0 ? ps_pool_at(&l->lt_queues, ref) : NULL;
}

static ps_light_family *family_of(const ps_light *l, const ps_light_queue *q) {
    return ps_pool_at(&l->lt_families, q->lq_family);
}

static uint32_t hash_of_family(const void *owner, const void *entry) {
    const ps_light_family *f = entry;
    (void)owner;
    return ps_hash_of(f->lf_name, f->lf_len);
}

static uint32_t hash_in(ps_ref family, const void *name, int32_t len) {
    return ps_hash_more(family, name, len);
}

static uint32_t hash_of_queue(const void *owner, const void *entry) {
    const ps_light_queue *q = entry;
    (void)owner;
    return hash_in(q->lq_family, q->lq_name, q->lq_len);
}

/* Bytes of a name that are its family's. */
static int32_t family_len(const void *name, int32_t len) {
    const char *end = memrchr(name, '$', (size_t)len);
    return end != NULL ? (int32_t)(end - (const char *)name) + 1 : 0;
}

static bool is_family(const ps_light *l, ps_ref at, const void *name, int32_t len) {
    const ps_light_family *f = ps_pool_at(&l->lt_families, at);
    return f->lf_len == len && memcmp(f->lf_name, name, (size_t)len) == 0;
}

static ps_ref find_family(ps_light *l, const void *name, int32_t len) {
    if (l->lt_recent != 0 && is_family(l, l->lt_recent, name, len)) return l->lt_recent;
    ps_ref at = ps_pool_first(&l->lt_families, ps_hash_of(name, len));
    while (at != 0 && !is_family(l, at, name, len)) at = ps_pool_next(&l->lt_families, at);
    if (at != 0) l->lt_recent = at;
    return at;
}

/* Made when there is none. 0: no memory. */
static ps_ref get_family(ps_light *l, const void *name, int32_t len) {
    ps_ref at = find_family(l, name, len);
    if (at != 0) return at;
    at = ps_pool_add(&l->lt_families, sizeof(ps_light_family) + (size_t)len,
                     ps_hash_of(name, len));
    if (at == 0) return 0;
    ps_light_family *f = ps_pool_at(&l->lt_families, at);
    f->lf_len = (uint8_t)len;
    memcpy(f->lf_name, name, (size_t)len);
    return at;
}

static void drop_empty_family(ps_light *l, ps_ref ref) {
    const ps_light_family *f = ps_pool_at(&l->lt_families, ref);
    if (f->lf_count > 0) return;
    if (l->lt_recent == ref) l->lt_recent = 0;
    ps_pool_drop(&l->lt_families, ref);
}

int32_t ps_light_name(const ps_light *l, const ps_light_queue *q, void *to) {
    const ps_light_family *f = family_of(l, q);
    memcpy(to, f->lf_name, f->lf_len);
    memcpy((uint8_t *)to + f->lf_len, q->lq_name, q->lq_len);
    return f->lf_len + q->lq_len;
}

int32_t ps_light_name_len(const ps_light *l, const ps_light_queue *q) {
    return family_of(l, q)->lf_len + q->lq_len;
}

static ps_ref find_queue(ps_light *l, const void *name, int32_t len) {
    int32_t head = family_len(name, len), rest_len = len - head;
    const uint8_t *rest = (const uint8_t *)name + head;
    ps_ref family = find_family(l, name, head);
    ps_ref at = family != 0 ? ps_pool_first(&l->lt_queues, hash_in(family, rest, rest_len)) : 0;
    for (; at != 0; at = ps_pool_next(&l->lt_queues, at)) {
        const ps_light_queue *q = queue_at(l, at);
        if (q->lq_family == family && q->lq_len == rest_len &&
            memcmp(q->lq_name, rest, q->lq_len) == 0)
            break;
    }
    return at;
}

ps_light_queue *ps_light_find_locked(ps_light *l, const void *name, int32_t len) {
    return queue_at(l, find_queue(l, name, len));
}

void ps_light_fetch_locked(ps_light *l, const void *name, int32_t len, bool entry) {
    int32_t head = family_len(name, len);
    ps_ref family = find_family(l, name, head);
    if (family != 0)
        ps_pool_fetch(&l->lt_queues, hash_in(family, (const uint8_t *)name + head, len - head),
                      entry);
}

static ps_ref ref_numbered(const ps_light *l, uint32_t number) {
    const ps_light_page *page =
        number < l->lt_number_count ? l->lt_pages[number / PS_LIGHT_PAGE] : NULL;
    return page != NULL ? page->queues[number % PS_LIGHT_PAGE] : 0;
}

ps_light_queue *ps_light_numbered(const ps_light *l, uint32_t number) {
    return queue_at(l, ref_numbered(l, number));
}

ps_light_queue *ps_light_from(const ps_light *l, uint32_t number) {
    for (uint64_t at = number; at < l->lt_number_count; at++) {
        const ps_light_page *page = l->lt_pages[at / PS_LIGHT_PAGE];
        if (page == NULL)
            at |= PS_LIGHT_PAGE - 1;
        else if (page->queues[at % PS_LIGHT_PAGE] != 0)
            return queue_at(l, page->queues[at % PS_LIGHT_PAGE]);
    }
    return NULL;
}

/* ---- the order of a family ---- */

static void leave_order(ps_light *l, ps_light_queue *q) {
    ps_light_family *f = family_of(l, q);
    ps_light_queue *older = queue_at(l, q->lq_older), *newer = queue_at(l, q->lq_newer);
    if (!q->lq_ordered) return;
    *(older != NULL ? &older->lq_newer : &f->lf_oldest) = q->lq_newer;
    *(newer != NULL ? &newer->lq_older : &f->lf_newest) = q->lq_older;
    q->lq_ordered = false;
}

/* It has the newest record of all of them. */
static void order_last(ps_light *l, ps_light_queue *q, ps_ref ref) {
    ps_light_family *f = family_of(l, q);
    if (f->lf_newest == ref) return;
    leave_order(l, q);
    ps_light_queue *before = queue_at(l, f->lf_newest);
    q->lq_older = f->lf_newest;
    q->lq_newer = 0;
    *(before != NULL ? &before->lq_newer : &f->lf_oldest) = ref;
    f->lf_newest = ref;
    q->lq_ordered = true;
}

uint32_t ps_light_below_locked(ps_light *l, const void *family, int32_t len) {
    ps_ref at = find_family(l, family, len);
    return at != 0 ? ((const ps_light_family *)ps_pool_at(&l->lt_families, at))->lf_count : 0;
}

int32_t ps_light_expired_locked(ps_light *l, const void *family, int32_t len, int64_t now_ms,
                                int64_t age_ms, uint8_t *to, int32_t room,
                                ps_light_queue **unknown) {
    ps_ref at = find_family(l, family, len);
    int32_t used = 0;
    if (at == 0) return 0;
    const ps_light_family *f = ps_pool_at(&l->lt_families, at);
    ps_light_queue *q = queue_at(l, f->lf_oldest);
    for (; q != NULL; q = queue_at(l, q->lq_newer)) {
        if (q->lq_stamp == 0) {
            *unknown = q;
            return -1;
        }
        /* The clock was set back: what is behind this one waits no longer than for its age. */
        int64_t stamp = q->lq_stamp;
        if (stamp > now_ms) q->lq_stamp = ps_light_stamp(stamp = now_ms);
        if (now_ms - stamp <= age_ms || used + 1 + ps_light_name_len(l, q) > room) break;
        to[used] = (uint8_t)ps_light_name(l, q, to + used + 1);
        used += 1 + to[used];
    }
    return used;
}

/* Room for the number; numbers before it may be missing. */
static ps_light_page *page_of(ps_light *l, uint32_t number) {
    uint32_t at = number / PS_LIGHT_PAGE;
    uint32_t had = l->lt_page_count;
    if (!PS_GROW(l->lt_pages, l->lt_page_count, at + 1, 16)) return NULL;
    memset(l->lt_pages + had, 0, (size_t)(l->lt_page_count - had) * sizeof *l->lt_pages);
    if (l->lt_pages[at] == NULL) l->lt_pages[at] = calloc(1, sizeof **l->lt_pages);
    return l->lt_pages[at];
}

/* ---- what `names` says ---- */

/* Bytes that say what a queue is called. */
static int64_t name_bytes(const ps_light *l, const ps_light_queue *q) {
    return LG_NAME_HEAD + ps_light_name_len(l, q);
}

static void put_name(uint8_t *p, int kind, uint32_t number, const void *rest, int32_t len) {
    p[4] = (uint8_t)kind;
    p[5] = (uint8_t)len;
    be32_put(p + 6, number);
    memcpy(p + LG_NAME_HEAD, rest, (size_t)len);
    be32_put(p, ps_crc32(0, p + 4, (size_t)(LG_NAME_HEAD - 4 + len)));
}

static int note_name(ps_light *l, int kind, uint32_t number, const void *rest, int32_t len,
                     ps_error *e) {
    if (l->lt_readonly) return 0;
    if (l->lt_names_ahead >= NAMES_AHEAD && flush_names(l, e) < 0) return e->code;
    if (!grow_buffer(&l->lt_names, &l->lt_names_room,
                     (int64_t)l->lt_names_ahead + LG_NAME_HEAD + len))
        return no_memory(e);
    put_name(l->lt_names + l->lt_names_ahead, kind, number, rest, len);
    l->lt_names_ahead += LG_NAME_HEAD + len;
    if (kind != LG_NAME_NEW) l->lt_names_dead += LG_NAME_HEAD + len;
    return 0;
}

static void put_next(const ps_light_queue *q, uint8_t to[LG_NEXT_LEN]) {
    be64_put(to, (uint64_t)q->lq_max);
    be64_put(to + 8, (uint64_t)q->lq_stamp);
}

/* ---- queues that come and go ---- */

/* Of the next number, or of a later one. 0: no memory. */
static ps_ref add_queue(ps_light *l, uint32_t number, const void *name, int32_t len) {
    int32_t head = family_len(name, len);
    ps_light_page *page = number < UINT32_MAX ? page_of(l, number) : NULL;
    ps_ref family = page != NULL ? get_family(l, name, head) : 0;
    if (family == 0) return 0;
    const uint8_t *rest = (const uint8_t *)name + head;
    size_t size = offsetof(ps_light_queue, lq_name) + (size_t)(len - head);
    ps_ref ref = ps_pool_add(&l->lt_queues, size, hash_in(family, rest, len - head));
    if (ref == 0) {
        drop_empty_family(l, family);
        return 0;
    }
    ps_light_queue *q = queue_at(l, ref);
    q->lq_family = family;
    q->lq_last = -1;
    q->lq_number = number;
    q->lq_len = (uint8_t)(len - head);
    memcpy(q->lq_name, rest, q->lq_len);
    family_of(l, q)->lf_count++;
    page->queues[number % PS_LIGHT_PAGE] = ref;
    page->count++;
    l->lt_number_count = number + 1;
    return ref;
}

/* Made when missing. 0: no memory. */
static ps_ref get_queue(ps_light *l, const void *name, int32_t len) {
    ps_ref ref = find_queue(l, name, len);
    ps_error e;
    if (ref != 0 || len > PS_LIGHT_NAME_MAX) return ref;
    if (note_name(l, LG_NAME_NEW, l->lt_number_count, name, len, &e) < 0) return 0;
    ref = add_queue(l, l->lt_number_count, name, len);
    if (ref == 0 && !l->lt_readonly) l->lt_names_ahead -= LG_NAME_HEAD + len;
    return ref;
}

ps_light_queue *ps_light_get_locked(ps_light *l, const void *name, int32_t len) {
    return queue_at(l, get_queue(l, name, len));
}

static void drop_news(ps_light *l, const ps_light_queue *q, ps_ref ref) {
    ps_light_queue *before = queue_at(l, l->lt_news);
    if (!q->lq_has_news) return;
    if (l->lt_news == ref) {
        l->lt_news = q->lq_news;
        return;
    }
    while (before != NULL && before->lq_news != ref) before = queue_at(l, before->lq_news);
    if (before != NULL) before->lq_news = q->lq_news;
}

static void drop_queue(ps_light *l, ps_ref ref) {
    ps_light_queue *q = queue_at(l, ref);
    ps_ref family = q->lq_family;
    ps_light_page **page = &l->lt_pages[q->lq_number / PS_LIGHT_PAGE];
    drop_news(l, q, ref);
    leave_order(l, q);
    l->lt_names_dead += name_bytes(l, q);
    (*page)->queues[q->lq_number % PS_LIGHT_PAGE] = 0;
    if (--(*page)->count == 0) {
        free(*page);
        *page = NULL;
    }
    ps_pool_drop(&l->lt_queues, ref);
    ((ps_light_family *)ps_pool_at(&l->lt_families, family))->lf_count--;
    drop_empty_family(l, family);
}

/* ---- the list of a queue's units ---- */

/* Where the unit after the last may point further back: to where that points, when it and the one
 * there leap equally far; else to the last. Offsets stand for depths, from which gaps only keep a
 * leap from being longer; so does a leap over more slots than a queue can say. */
static int jump_after(ps_light *l, const ps_light_queue *q, int64_t *jump, ps_error *e) {
    lg_slot far;
    int64_t last = q->lq_last, before = last - q->lq_leap;
    *jump = last;
    if (before == last || before < l->lt_first) return 0;
    int code = read_near(l, before, &far, e);
    if (code < 0 || far.jump < l->lt_first) return code;
    int64_t leap = q->lq_max - 1 - far.offset;
    lg_slot further;
    code = read_near(l, far.jump, &further, e);
    if (code == 0 && leap == far.offset - further.offset) *jump = far.jump;
    return code;
}

static void tell_of(ps_light *l, ps_light_queue *q, ps_ref ref) {
    if (!l->lt_listened || q->lq_has_news) return;
    q->lq_has_news = true;
    q->lq_news = l->lt_news;
    l->lt_news = ref;
}

/* The unit in this slot is the queue's last one. */
static void set_last(ps_light *l, ps_light_queue *q, ps_ref ref, const lg_slot *s, int64_t at) {
    int64_t leap = s->jump >= 0 ? at - s->jump : 0;
    q->lq_last = at;
    q->lq_physical = (uint64_t)s->physical;
    q->lq_leap = leap <= UINT32_MAX ? (uint32_t)leap : 0;
    q->lq_max = s->offset + 1;
    order_last(l, q, ref);
}

static int append_locked(ps_light *l, const void *name, int32_t len, const ps_light_unit *u,
                         int64_t store_ms, ps_error *e) {
    lg_slot made = {.kind = LG_UNIT,
                    .physical = u->physical,
                    .size = u->size,
                    .tags_code = u->tags_code,
                    .offset = u->offset,
                    .before = -1,
                    .jump = -1};
    int code = 0;
    if (u->physical < l->lt_covered) return 0;
    ps_ref ref = get_queue(l, name, len);
    if (ref == 0) return no_memory(e);
    ps_light_queue *q = queue_at(l, ref);
    if (q->lq_last >= l->lt_first) {
        if (u->physical <= (int64_t)q->lq_physical) return 0;
        if (u->offset >= q->lq_max) {
            made.before = q->lq_last;
            if ((code = jump_after(l, q, &made.jump, e)) < 0) return code;
        }
    }
    made.number = q->lq_number;
    int64_t at;
    if ((code = add_slot(l, &made, &at, e)) < 0) return code;
    bool begins = u->offset < q->lq_max; /* no put of this store: it follows another */
    set_last(l, q, ref, &made, at);
    if (begins || q->lq_next < q->lq_max) q->lq_next = q->lq_max;
    q->lq_stamp = ps_light_stamp(store_ms);
    q->lq_noted = false;
    l->lt_units++;
    tell_of(l, q, ref);
    return 1;
}

int ps_light_append(ps_light *l, const void *name, int32_t len, const ps_light_unit *u,
                    int64_t store_ms, ps_error *e) {
    pthread_mutex_lock(&l->lt_lock);
    int code = append_locked(l, name, len, u, store_ms, e);
    pthread_mutex_unlock(&l->lt_lock);
    return code;
}

int ps_light_cover(ps_light *l, int64_t physical, bool now, ps_error *e) {
    const lg_slot mark = {.kind = LG_MARK, .physical = physical, .before = -1, .jump = -1};
    int64_t at;
    /* Who dispatches what names no light queue does not wait for those who do. */
    if (physical - l->lt_covered < (now ? 1 : COVER_EVERY)) return 0;
    pthread_mutex_lock(&l->lt_lock);
    int code = add_slot(l, &mark, &at, e);
    if (code == 0) l->lt_covered = physical;
    pthread_mutex_unlock(&l->lt_lock);
    return code;
}

/* ---- names that are needed no more ---- */

/* What has to be said of queues from *number to before `end`, of as many as there is room for: the
 * bytes; *number: where to go on. */
static int32_t put_names(const ps_light *l, uint32_t *number, uint32_t end, uint8_t *to) {
    uint8_t rest[PS_LIGHT_NAME_MAX];
    int32_t used = 0;
    const ps_light_queue *q;
    while ((q = ps_light_from(l, *number)) != NULL && q->lq_number < end &&
           used <= PIECE - 2 * LG_NAME_HEAD - PS_LIGHT_NAME_MAX - LG_NEXT_LEN) {
        int32_t len = ps_light_name(l, q, rest);
        put_name(to + used, LG_NAME_NEW, q->lq_number, rest, len);
        used += LG_NAME_HEAD + len;
        if (q->lq_noted || (q->lq_last < l->lt_first && q->lq_max > 0)) {
            put_next(q, rest);
            put_name(to + used, LG_NAME_NEXT, q->lq_number, rest, LG_NEXT_LEN);
            used += LG_NAME_HEAD + LG_NEXT_LEN;
        }
        *number = q->lq_number + 1;
    }
    if (q != NULL && q->lq_number < end) return used;
    if (*number < end) { /* no number is given twice */
        put_name(to + used, LG_NAME_GONE, end - 1, "", 0);
        used += LG_NAME_HEAD;
    }
    *number = end;
    return used;
}

typedef struct renewal { /* of `names` */
    char path[PATH_MAX];
    int fd;
    int64_t len;      /* of what it has */
    int64_t from;     /* in the old file: what is not taken over yet */
    int64_t was_dead; /* bytes of the old file, as it began */
    uint8_t *piece;
} renewal;

static int write_piece(ps_light *l, renewal *r, int64_t len, ps_error *e) {
    int code = write_all(l, r->fd, r->piece, len, r->len, -1, e);
    if (code == 0) r->len += len;
    return code;
}

/* The queues of now, in pieces: others go on between two of them. */
static int renew_queues(ps_light *l, renewal *r, ps_error *e) {
    uint32_t number = 0;
    pthread_mutex_lock(&l->lt_lock);
    uint32_t end = l->lt_number_count;
    int code = flush_names(l, e);
    r->from = l->lt_names_len;
    r->was_dead = l->lt_names_dead;
    pthread_mutex_unlock(&l->lt_lock);
    while (code == 0 && number < end) {
        pthread_mutex_lock(&l->lt_lock);
        int32_t len = put_names(l, &number, end, r->piece);
        pthread_mutex_unlock(&l->lt_lock);
        code = write_piece(l, r, len, e);
    }
    if (code == 0 && l->lt_io->fsync(l->lt_io, r->fd) < 0) code = io_failed(l, -1, "sync", e);
    return code;
}

/* What the old file got meanwhile. *left: there is more, perhaps. */
static int renew_some_rest(ps_light *l, renewal *r, bool *left, ps_error *e) {
    int code = flush_names(l, e);
    int64_t len = l->lt_names_len - r->from;
    *left = len > PIECE;
    if (*left) len = PIECE;
    if (code < 0 || len == 0) return code;
    if (l->lt_io->pread(l->lt_io, l->lt_names_fd, r->piece, (size_t)len, r->from) != len)
        return io_failed(l, -1, "read", e);
    r->from += len;
    return write_piece(l, r, len, e);
}

static int renew_rest(ps_light *l, renewal *r, ps_error *e) {
    char path[PATH_MAX];
    int code = 0;
    path_of(l, -1, path);
    for (bool left = true; left && code == 0;) {
        pthread_mutex_lock(&l->lt_lock);
        code = renew_some_rest(l, r, &left, e);
        if (code == 0 && !left && l->lt_io->rename(l->lt_io, r->path, path) < 0)
            code = io_failed(l, -1, "rename", e);
        if (code == 0 && !left) {
            close_file(l, &l->lt_names_fd);
            l->lt_names_fd = r->fd;
            l->lt_names_len = r->len;
            l->lt_names_dead -= r->was_dead;
            l->lt_names_synced = 0;
            r->fd = -1;
        }
        pthread_mutex_unlock(&l->lt_lock);
    }
    return code;
}

static bool needs_renewal(ps_light *l) {
    pthread_mutex_lock(&l->lt_lock);
    bool needs = !l->lt_readonly && l->lt_names_dead >= NAMES_DEAD &&
                 l->lt_names_dead >= (l->lt_names_len + l->lt_names_ahead) / 2;
    pthread_mutex_unlock(&l->lt_lock);
    return needs;
}

/* Writes `names` again, without queues that are gone, when most of it is of these. */
static int tidy_names(ps_light *l, ps_error *e) {
    renewal r = {.fd = -1};
    char folder[PATH_MAX];
    if (!needs_renewal(l)) return 0;
    int code = ps_path_in(folder, l->lt_root, PS_LIGHT_FOLDER, e);
    if (code == 0) code = ps_path_in(r.path, folder, "names.tmp", e);
    if (code < 0) return code;
    if ((r.piece = malloc(PIECE)) == NULL) return no_memory(e);
    r.fd = l->lt_io->open(l->lt_io, r.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
                          l->lt_io->file_mode);
    if (r.fd < 0) code = io_failed(l, -1, "create", e);
    if (code == 0) code = renew_queues(l, &r, e);
    if (code == 0) code = renew_rest(l, &r, e);
    if (code == 0) code = ps_sync_folder(l->lt_io, folder, e);
    close_file(l, &r.fd);
    free(r.piece);
    return code;
}

/* Brings a file to the disk. Others write to it meanwhile, and retention may delete it. */
static int sync_file(ps_light *l, int64_t base, ps_error *e) {
    char path[PATH_MAX];
    path_of(l, base, path);
    int fd = l->lt_io->open(l->lt_io, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0 && errno == ENOENT) return 0;
    if (fd < 0) return io_failed(l, base, "open", e);
    int code = l->lt_io->fdatasync(l->lt_io, fd) < 0 ? io_failed(l, base, "sync", e) : 0;
    l->lt_io->close(l->lt_io, fd);
    return code;
}

/* Without its names a file is gone. */
static int sync_folders(ps_light *l, ps_error *e) {
    char path[PATH_MAX];
    int code = ps_path_in(path, l->lt_root, PS_LIGHT_FOLDER, e);
    if (code == 0) code = ps_sync_folder(l->lt_io, path, e);
    return code == 0 ? ps_sync_folder(l->lt_io, l->lt_root, e) : code;
}

int ps_light_flush(ps_light *l, bool sync, ps_error *e) {
    int code = sync ? tidy_names(l, e) : 0;
    pthread_mutex_lock(&l->lt_lock);
    if (code == 0) code = flush_slots(l, e);
    int64_t names = l->lt_names_len, slots = l->lt_written;
    bool made = l->lt_is_made;
    if (sync && code == 0) l->lt_is_made = false;
    pthread_mutex_unlock(&l->lt_lock);
    if (!sync || code < 0) return code;
    if (made) code = sync_folders(l, e);
    if (code == 0 && names > l->lt_names_synced && (code = sync_file(l, -1, e)) == 0)
        l->lt_names_synced = names;
    for (int64_t base = base_of(l->lt_synced); code == 0 && base < slots;
         base += PS_LIGHT_FILE_SLOTS)
        code = sync_file(l, base, e);
    if (code == 0) {
        l->lt_synced = slots;
        return 0;
    }
    pthread_mutex_lock(&l->lt_lock);
    l->lt_is_made |= made;
    pthread_mutex_unlock(&l->lt_lock);
    return code;
}

/* ---- asking ---- */

/* The slot of the first unit, from the last one back, whose offset is `offset` or more and whose
 * record lies at `physical` or later; -1: none. */
static int64_t seek_unit(ps_light *l, const ps_light_queue *q, int64_t offset, int64_t physical,
                         lg_slot *out, ps_error *e) {
    int64_t at = q->lq_last;
    lg_slot s, far;
    if (at < l->lt_first || read_slot(l, at, &s, e) < 0 || s.offset < offset ||
        s.physical < physical)
        return -1;
    for (;;) {
        if (s.jump >= l->lt_first && read_slot(l, s.jump, &far, e) == 0 && far.offset >= offset &&
            far.physical >= physical) {
            at = s.jump;
            s = far;
        } else if (s.before >= l->lt_first && read_slot(l, s.before, &far, e) == 0 &&
                   far.offset >= offset && far.physical >= physical) {
            at = s.before;
            s = far;
        } else {
            break;
        }
    }
    *out = s;
    return at;
}

bool ps_light_range(ps_light *l, const void *name, int32_t len, int64_t log_min, int64_t *low,
                    int64_t *high) {
    ps_error e = {0};
    lg_slot first;
    pthread_mutex_lock(&l->lt_lock);
    ps_light_queue *q = ps_light_find_locked(l, name, len);
    *low = *high = 0;
    if (q != NULL) {
        *high = q->lq_max;
        *low = seek_unit(l, q, 0, log_min, &first, &e) >= 0 ? first.offset : q->lq_max;
    }
    pthread_mutex_unlock(&l->lt_lock);
    return q != NULL;
}

static int32_t units_locked(ps_light *l, const ps_light_queue *q, int64_t from, int64_t log_min,
                            ps_light_unit *out, int32_t room, ps_error *e) {
    lg_slot first, s;
    int64_t low = seek_unit(l, q, from, log_min, &first, e), at;
    if (low < 0) return e->code < 0 ? e->code : 0;
    /* The one to begin with, going back: the first whose offset is beyond what there is room for,
     * or else the last. */
    at = seek_unit(l, q, first.offset + room, log_min, &s, e);
    if (at >= 0)
        at = s.before;
    else
        at = q->lq_last;
    int32_t n = 0;
    for (; at >= low && n < room; at = s.before) {
        int code = read_slot(l, at, &s, e);
        if (code < 0) return code;
        n++;
        out[room - n] = (ps_light_unit){s.offset, s.physical, s.tags_code, s.size};
    }
    memmove(out, out + room - n, (size_t)n * sizeof *out);
    return n;
}

int32_t ps_light_units(ps_light *l, const void *name, int32_t len, int64_t from, int64_t log_min,
                       ps_light_unit *out, int32_t room, ps_error *e) {
    pthread_mutex_lock(&l->lt_lock);
    ps_light_queue *q = ps_light_find_locked(l, name, len);
    int32_t n = q != NULL ? units_locked(l, q, from, log_min, out, room, e) : 0;
    pthread_mutex_unlock(&l->lt_lock);
    return n;
}

/* ---- what goes ---- */

/* Whether nothing was put to it since. */
static bool is_older(const ps_light_queue *q, int64_t before_ms) {
    return q->lq_stamp != 0 && (int64_t)q->lq_stamp < before_ms && q->lq_next == q->lq_max;
}

int ps_light_remove(ps_light *l, const void *name, int32_t len, int64_t before_ms, ps_error *e) {
    pthread_mutex_lock(&l->lt_lock);
    ps_ref ref = find_queue(l, name, len);
    if (ref != 0 && before_ms != 0 && !is_older(queue_at(l, ref), before_ms)) ref = 0;
    int code = ref != 0 ? note_name(l, LG_NAME_GONE, queue_at(l, ref)->lq_number, "", 0, e) : 0;
    if (code == 0 && ref != 0) drop_queue(l, ref);
    pthread_mutex_unlock(&l->lt_lock);
    return code < 0 ? code : ref != 0;
}

/* A queue whose last record goes keeps its next offset, as groups have theirs, and its time, by
 * which it expires. */
static int keep_family(ps_light *l, const ps_light_family *f, int64_t log_min, int64_t oldest_ms,
                       ps_error *e) {
    uint8_t next[LG_NEXT_LEN];
    int code = 0;
    ps_light_queue *q = queue_at(l, f->lf_oldest);
    for (; q != NULL && (int64_t)q->lq_physical < log_min && code == 0;
         q = queue_at(l, q->lq_newer)) {
        if (q->lq_noted) continue;
        if (q->lq_stamp == 0) q->lq_stamp = ps_light_stamp(oldest_ms); /* at the youngest */
        put_next(q, next);
        code = note_name(l, LG_NAME_NEXT, q->lq_number, next, sizeof next, e);
        q->lq_noted = code == 0;
    }
    return code;
}

static int keep_next(ps_light *l, int64_t log_min, int64_t oldest_ms, ps_error *e) {
    int code = 0;
    for (ps_ref at = 0; code == 0 && (at = ps_pool_each(&l->lt_families, at)) != 0;)
        code = keep_family(l, ps_pool_at(&l->lt_families, at), log_min, oldest_ms, e);
    return code == 0 ? flush_names(l, e) : code;
}

/* Whether the first file is full, and all of its records are gone. */
static bool is_first_spent(ps_light *l, int64_t log_min) {
    int64_t next = l->lt_first + PS_LIGHT_FILE_SLOTS;
    ps_error e;
    lg_slot last = {0};
    return next <= l->lt_written && read_slot(l, next - 1, &last, &e) == 0 &&
           last.physical < log_min;
}

static int delete_first(ps_light *l, ps_error *e) {
    char path[PATH_MAX];
    if (l->lt_old_base == l->lt_first) close_file(l, &l->lt_old_fd);
    path_of(l, l->lt_first, path);
    l->lt_first += PS_LIGHT_FILE_SLOTS;
    if (l->lt_io->unlink(l->lt_io, path) == 0 || errno == ENOENT) return 0;
    return io_failed(l, l->lt_first - PS_LIGHT_FILE_SLOTS, "delete", e);
}

int ps_light_trim(ps_light *l, int64_t log_min, int64_t oldest_ms, ps_error *e) {
    if (l->lt_readonly) return 0;
    pthread_mutex_lock(&l->lt_lock);
    int code = keep_next(l, log_min, oldest_ms, e);
    bool spent = code == 0 && is_first_spent(l, log_min);
    int64_t names = l->lt_names_len;
    pthread_mutex_unlock(&l->lt_lock);
    /* Once the units are gone, nothing else says where their queues go on. Puts do not wait. */
    if (spent && (code = sync_file(l, -1, e)) == 0) l->lt_names_synced = names;
    while (spent && code == 0) {
        pthread_mutex_lock(&l->lt_lock);
        spent = is_first_spent(l, log_min);
        if (spent) code = delete_first(l, e);
        pthread_mutex_unlock(&l->lt_lock);
    }
    return code;
}

/* ---- loading ---- */

/* Until its units are known, lq_next says what was noted. */
static void take_next(ps_light *l, ps_ref ref, const uint8_t *p, int32_t len) {
    ps_light_queue *q = queue_at(l, ref);
    q->lq_next = q->lq_max = (int64_t)be64_get(p);
    q->lq_noted = len == LG_NEXT_LEN;
    q->lq_stamp = q->lq_noted ? ps_light_stamp((int64_t)be64_get(p + 8)) : 0;
    order_last(l, q, ref);
}

/* What a whole entry of `names` says. False: nothing, and it ends the file. */
static bool take_name(ps_light *l, const uint8_t *p) {
    uint32_t number = be32_get(p + 6);
    ps_ref ref = ref_numbered(l, number);
    switch (p[4]) {
    case LG_NAME_NEW:
        return number >= l->lt_number_count && number < UINT32_MAX &&
               add_queue(l, number, p + LG_NAME_HEAD, p[5]) != 0;
    case LG_NAME_GONE:
        if (number >= l->lt_number_count) { /* the last of those that were given out */
            if (number == UINT32_MAX || page_of(l, number) == NULL) return false;
            l->lt_number_count = number + 1;
        }
        if (ref != 0) drop_queue(l, ref);
        return true;
    case LG_NAME_NEXT:
        if (p[5] != LG_NEXT_LEN && p[5] != LG_NEXT_LEN_OLD) return false;
        if (ref != 0) take_next(l, ref, p + LG_NAME_HEAD, p[5]);
        return number < l->lt_number_count;
    default:
        return false;
    }
}

/* How many queues entries of `names` leave at most. */
static uint32_t names_left(const uint8_t *p, int64_t len) {
    int64_t n = 0;
    for (int64_t at = 0, said; (said = lg_name_said(p + at, len - at)) > 0; at += said)
        n += (p[at + 4] == LG_NAME_NEW) - (p[at + 4] == LG_NAME_GONE);
    return n > 0 ? (uint32_t)n : 0;
}

static int load_names(ps_light *l, ps_error *e) {
    char path[PATH_MAX];
    struct stat st;
    path_of(l, -1, path);
    if (l->lt_io->access(l->lt_io, path, F_OK) < 0) return 0;
    int code = open_file(l, -1, &l->lt_names_fd, e);
    if (code < 0) return code;
    if (l->lt_io->fstat(l->lt_io, l->lt_names_fd, &st) < 0) return io_failed(l, -1, "read", e);
    uint8_t *all = malloc((size_t)st.st_size + 1);
    int64_t len = 0, at = 0;
    if (all == NULL) return no_memory(e);
    while (len < st.st_size) {
        ssize_t n = l->lt_io->pread(l->lt_io, l->lt_names_fd, all + len,
                                    (size_t)(st.st_size - len), len);
        if (n <= 0) break;
        len += n;
    }
    ps_pool_reserve(&l->lt_queues, names_left(all, len));
    for (int64_t n; (n = lg_name_len(all + at, len - at)) > 0 && take_name(l, all + at);) at += n;
    free(all);
    l->lt_names_len = l->lt_names_dead = at;
    for (const ps_light_queue *q = ps_light_from(l, 0); q != NULL;
         q = ps_light_from(l, q->lq_number + 1))
        l->lt_names_dead -= name_bytes(l, q);
    if (!l->lt_readonly && at < st.st_size &&
        l->lt_io->ftruncate(l->lt_io, l->lt_names_fd, at) < 0)
        return io_failed(l, -1, "cut", e);
    return 0;
}

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The first slots of the files there, ascending. */
static int list_files(ps_light *l, int64_t **bases, int32_t *count, ps_error *e) {
    char path[PATH_MAX], *end;
    struct dirent *d;
    int32_t room = 0;
    int code = 0;
    *bases = NULL;
    *count = 0;
    snprintf(path, sizeof path, "%s/" PS_LIGHT_FOLDER, l->lt_root);
    DIR *dir = l->lt_io->opendir(l->lt_io, path);
    if (dir == NULL)
        return errno == ENOENT ? 0
                               : ps_fail(e, ps_errno_code(errno), errno, -1, path,
                                         "cannot list the directory");
    while (code == 0 && (d = l->lt_io->readdir(l->lt_io, dir)) != NULL) {
        if (strlen(d->d_name) != 20) continue;
        int64_t base = strtoll(d->d_name, &end, 10);
        if (*end != 0 || base < 0 || base % PS_LIGHT_FILE_SLOTS != 0) continue;
        if (PS_GROW(*bases, room, *count + 1, 16))
            (*bases)[(*count)++] = base;
        else
            code = no_memory(e);
    }
    l->lt_io->closedir(l->lt_io, dir);
    if (*count > 1) qsort(*bases, (size_t)*count, sizeof **bases, by_number);
    return code;
}

/* False: from this slot on nothing counts. */
static bool take_slot(ps_light *l, const uint8_t *raw, int64_t at, int64_t log_end) {
    lg_slot s;
    if (!lg_slot_get(raw, &s) || s.physical < l->lt_covered || s.physical > log_end) return false;
    if (s.kind == LG_UNIT) {
        if (s.physical + s.size > log_end || s.number >= l->lt_number_count || s.before >= at ||
            s.jump >= at)
            return false;
        ps_ref ref = ref_numbered(l, s.number);
        if (ref != 0) set_last(l, queue_at(l, ref), ref, &s, at);
    }
    l->lt_covered = l->lt_end = s.physical;
    return true;
}

/* Slots of one file; *whole: all that a file has are sound. */
static int load_file(ps_light *l, int64_t base, int64_t log_end, uint8_t *room, bool *whole,
                     ps_error *e) {
    int fd, code = open_file(l, base, &fd, e);
    if (code < 0) return code;
    int64_t at = base;
    *whole = true;
    while (*whole && at < base + PS_LIGHT_FILE_SLOTS) {
        ssize_t n = l->lt_io->pread(l->lt_io, fd, room, (size_t)LOAD_SLOTS * PS_LIGHT_SLOT,
                                    (at - base) * PS_LIGHT_SLOT);
        if (n < 0) code = io_failed(l, base, "read", e);
        if (n < PS_LIGHT_SLOT) *whole = false;
        for (int64_t i = 0; *whole && i < n / PS_LIGHT_SLOT; i++) {
            *whole = take_slot(l, room + i * PS_LIGHT_SLOT, at, log_end);
            at += *whole;
        }
    }
    l->lt_written = at;
    if (code == 0 && !*whole && !l->lt_readonly &&
        l->lt_io->ftruncate(l->lt_io, fd, (at - base) * PS_LIGHT_SLOT) < 0)
        code = io_failed(l, base, "cut", e);
    l->lt_io->close(l->lt_io, fd);
    return code;
}

/* Whether all that the log still has was in this file and those after it. */
static bool begins_well(ps_light *l, int64_t base, int64_t log_min) {
    uint8_t raw[PS_LIGHT_SLOT];
    ps_error e;
    lg_slot s;
    int fd;
    if (base == 0) return true;
    if (open_file(l, base, &fd, &e) < 0) return false;
    bool well = l->lt_io->pread(l->lt_io, fd, raw, sizeof raw, 0) == (ssize_t)sizeof raw &&
                lg_slot_get(raw, &s) && s.kind == LG_MARK && s.physical < log_min;
    l->lt_io->close(l->lt_io, fd);
    return well;
}

static int load_slots(ps_light *l, int64_t log_min, int64_t log_end, ps_error *e) {
    char path[PATH_MAX];
    int64_t *bases;
    int32_t count;
    bool whole = true;
    int code = list_files(l, &bases, &count, e);
    uint8_t *room = malloc((size_t)LOAD_SLOTS * PS_LIGHT_SLOT);
    if (code == 0 && room == NULL) code = no_memory(e);
    if (code == 0 && count > 0 && (whole = begins_well(l, bases[0], log_min)))
        l->lt_first = l->lt_written = bases[0];
    for (int32_t i = 0; i < count && code == 0; i++) {
        if (whole && bases[i] == l->lt_written) {
            code = load_file(l, bases[i], log_end, room, &whole, e);
        } else if (!l->lt_readonly) { /* after what is not sound: it is made again */
            path_of(l, bases[i], path);
            if (l->lt_io->unlink(l->lt_io, path) < 0) code = io_failed(l, bases[i], "delete", e);
        }
    }
    free(room);
    free(bases);
    return code;
}

void ps_light_settle_locked(ps_light *l) {
    for (ps_light_queue *q = ps_light_from(l, 0); q != NULL; q = ps_light_from(l, q->lq_number + 1))
        q->lq_next = q->lq_max;
}

typedef struct aged {
    int64_t stamp;
    ps_ref ref;
} aged;

static int by_age(const void *a, const void *b) {
    const aged *x = a, *y = b;
    return x->stamp < y->stamp ? -1 : x->stamp > y->stamp;
}

/* Those whose units are gone stand first in their families, in the order of `names`. */
static int order_by_age(ps_light *l, ps_light_family *f, ps_error *e) {
    int32_t count = 0;
    ps_ref at = f->lf_oldest;
    for (const ps_light_queue *q; (q = queue_at(l, at)) != NULL && q->lq_last < l->lt_first;
         at = q->lq_newer)
        count++;
    if (count < 2) return 0;
    aged *all = malloc((size_t)count * sizeof *all);
    if (all == NULL) return no_memory(e);
    at = f->lf_oldest;
    for (int32_t i = 0; i < count; i++, at = queue_at(l, at)->lq_newer)
        all[i] = (aged){queue_at(l, at)->lq_stamp, at};
    qsort(all, (size_t)count, sizeof *all, by_age);
    for (int32_t i = 0; i < count; i++) {
        ps_light_queue *q = queue_at(l, all[i].ref);
        q->lq_older = i > 0 ? all[i - 1].ref : 0;
        q->lq_newer = i + 1 < count ? all[i + 1].ref : at;
    }
    f->lf_oldest = all[0].ref;
    *(at != 0 ? &queue_at(l, at)->lq_older : &f->lf_newest) = all[count - 1].ref;
    free(all);
    return 0;
}

/* What `names` noted holds where no newer unit has come since. */
static int settle_noted(ps_light *l, int64_t log_min, ps_error *e) {
    int code = 0;
    for (ps_light_queue *q = ps_light_from(l, 0); q != NULL; q = ps_light_from(l, q->lq_number + 1))
        if (q->lq_next != q->lq_max || (int64_t)q->lq_physical >= log_min) {
            q->lq_noted = false;
            q->lq_stamp = 0;
        }
    for (ps_ref at = 0; code == 0 && (at = ps_pool_each(&l->lt_families, at)) != 0;)
        code = order_by_age(l, ps_pool_at(&l->lt_families, at), e);
    return code;
}

int ps_light_load(ps_light *l, ps_io *io, const char *root, bool readonly, int64_t log_min,
                  int64_t log_end, ps_error *e) {
    char path[PATH_MAX];
    int code = 0;
    *l = (ps_light){.lt_io = io,
                    .lt_root = root,
                    .lt_readonly = readonly,
                    .lt_queues = {.pl_hash = hash_of_queue},
                    .lt_families = {.pl_hash = hash_of_family},
                    .lt_fd = -1,
                    .lt_old_fd = -1,
                    .lt_names_fd = -1};
    pthread_mutex_init(&l->lt_lock, NULL);
    snprintf(path, sizeof path, "%s/" PS_LIGHT_FOLDER, root);
    if (!readonly && io->mkdir(io, path, io->folder_mode) < 0 && errno != EEXIST)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot make the directory");
    if (code == 0) code = load_names(l, e);
    if (code == 0) code = load_slots(l, log_min, log_end, e);
    if (code == 0) code = settle_noted(l, log_min, e);
    l->lt_synced = l->lt_written;
    l->lt_names_synced = l->lt_names_len;
    l->lt_is_made = !readonly;
    if (code == 0) code = tidy_names(l, e);
    ps_light_settle_locked(l);
    return code;
}

bool ps_light_before(ps_light *l, int64_t *at, ps_light_unit *out, const ps_light_queue **queue) {
    ps_error e;
    lg_slot s = {0};
    if (*at > slot_count(l)) *at = slot_count(l);
    while (--*at >= l->lt_first && read_slot(l, *at, &s, &e) == 0) {
        *queue = s.kind == LG_UNIT ? ps_light_numbered(l, s.number) : NULL;
        if (*queue == NULL) continue;
        *out = (ps_light_unit){s.offset, s.physical, s.tags_code, s.size};
        return true;
    }
    return false;
}

static void forget_queues(ps_light *l) {
    ps_pool_free(&l->lt_queues);
    ps_pool_free(&l->lt_families);
    for (uint32_t i = 0; i < l->lt_page_count; i++) free(l->lt_pages[i]);
    free(l->lt_pages);
    l->lt_pages = NULL;
    free(l->lt_near);
    l->lt_near = NULL;
    l->lt_recent = 0;
    l->lt_news = 0;
    l->lt_synced = l->lt_names_synced = 0;
    l->lt_number_count = l->lt_page_count = 0;
    l->lt_names_dead = 0;
    l->lt_ahead_count = l->lt_names_ahead = 0;
    close_file(l, &l->lt_fd);
    close_file(l, &l->lt_old_fd);
    close_file(l, &l->lt_names_fd);
}

int ps_light_reset(ps_light *l, ps_error *e) {
    char path[PATH_MAX];
    int64_t *bases;
    int32_t count;
    forget_queues(l);
    l->lt_first = l->lt_written = l->lt_covered = l->lt_end = l->lt_names_len = 0;
    int code = list_files(l, &bases, &count, e);
    for (int32_t i = -1; i < count && code == 0; i++) {
        path_of(l, i < 0 ? -1 : bases[i], path);
        if (!l->lt_readonly && l->lt_io->unlink(l->lt_io, path) < 0 && errno != ENOENT)
            code = io_failed(l, i < 0 ? -1 : bases[i], "delete", e);
    }
    free(bases);
    return code;
}

void ps_light_free(ps_light *l) {
    if (l->lt_io == NULL) return;
    forget_queues(l);
    free(l->lt_ahead);
    free(l->lt_names);
    pthread_mutex_destroy(&l->lt_lock);
    l->lt_io = NULL;
}
