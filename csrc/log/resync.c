/* Looking past damage. See resync.h. */
#define _GNU_SOURCE /* SEEK_DATA */
#include "log/resync.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "log/commitlog.h"

#define PLACED PS_AT_SYS_FLAG    /* bytes of a record up to and with its own place */
#define LOOK (1 << 20)           /* bytes that are searched for records that tell their places */
#define BASES_MAX 64             /* different ones that are counted */
#define SURE 8                   /* records that agree on one base */

/* The three bytes that both magics of a record begin with. */
static const uint8_t magic_head[3] = {0xDA, 0xA3, 0x20};

static bool next_data(const ps_mapfile *mf, int fd, int64_t from, int64_t *data, int64_t *end) {
    int64_t at = mf->mf_io->lseek(mf->mf_io, fd, from, SEEK_DATA);
    if (at < 0) return errno != ENXIO;
    int64_t hole = mf->mf_io->lseek(mf->mf_io, fd, at, SEEK_HOLE);
    if (at >= mf->mf_size) return false;
    if (hole <= at) return true;
    *data = at;
    *end = hole < mf->mf_size ? hole : mf->mf_size;
    return true;
}

bool ps_log_next_data(const ps_mapfile *mf, int64_t from, int64_t *data, int64_t *end) {
    int fd = mf->mf_fd;
    if (from >= mf->mf_size) return false;
    *data = from;
    *end = mf->mf_size;
    /* Readers keep no descriptor. Without one, the zeros of room made ahead, up to a gibibyte, are
     * brought into memory to be looked at. */
    if (fd < 0) {
        fd = mf->mf_io->open(mf->mf_io, mf->mf_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
        if (fd < 0) return true;
    }
    bool found = next_data(mf, fd, from, data, end);
    if (mf->mf_fd < 0) mf->mf_io->close(mf->mf_io, fd);
    return found;
}

/* The first of them in [p, p + n), NULL when there is none. Most of what is searched is the zeros
 * of room made ahead, which memchr passes a vector at a time and memmem byte by byte. */
static const uint8_t *find_magic_head(const uint8_t *p, int64_t n) {
    const uint8_t *end = p + n - (int64_t)sizeof magic_head;
    while (p <= end && (p = memchr(p, magic_head[0], (size_t)(end + 1 - p))) != NULL) {
        if (memcmp(p, magic_head, sizeof magic_head) == 0) return p;
        p++;
    }
    return NULL;
}

int64_t ps_log_next_whole(const ps_mapfile *mf, int64_t from, int64_t stamp, ps_record *out) {
    const int checks = PS_CHECK_SUMS;
    int64_t data, end;
    if (stamp > ps_now_ms() + PS_STAMP_AHEAD_MS) stamp = 0;
    while (ps_log_next_data(mf, from, &data, &end)) {
        /* A record may begin some bytes before the part, in a hole. */
        int64_t at = data - PS_AT_MAGIC > from ? data - PS_AT_MAGIC : from;
        for (; at + PS_RECORD_FIXED <= end; at++) {
            const uint8_t *hit =
                find_magic_head(mf->mf_map + at + PS_AT_MAGIC, end - at - PS_AT_MAGIC);
            if (hit == NULL) break;
            at = hit - mf->mf_map - PS_AT_MAGIC;
            if (at + PS_RECORD_FIXED > mf->mf_size) break;
            int64_t place = mf->mf_base + at;
            if ((int64_t)be64_get(mf->mf_map + at + PS_AT_PHYSICAL_OFFSET) != place) continue;
            if (ps_record_check(mf->mf_map + at, mf->mf_size - at, place, checks, out) ==
                    PS_REC_OK &&
                out->store_timestamp >= stamp)
                return at;
        }
        from = end;
    }
    return -1;
}

bool ps_log_blank_hides(const ps_mapfile *mf, int64_t at) {
    int64_t stamp = 0;
    ps_record r;
    if (ps_log_next_whole(mf, at + PS_RECORD_SPARE, 0, &r) < 0) return false;
    for (int64_t i = 0; i < at; i += r.size) {
        if (ps_record_check(mf->mf_map + i, at - i, mf->mf_base + i, 0, &r) != PS_REC_OK) break;
        stamp = r.store_timestamp;
    }
    return ps_log_next_whole(mf, at + PS_RECORD_SPARE, stamp, &r) >= 0;
}

/* ---- where a segment belongs ---- */

/* Where the record there says that it stands, -1 when it cannot be a record. */
static int64_t place_at(const uint8_t *p) {
    uint32_t magic = be32_get(p + PS_AT_MAGIC);
    if (magic != PS_MAGIC_V1 && magic != PS_MAGIC_V2) return -1;
    if ((int32_t)be32_get(p + PS_AT_SIZE) < PS_RECORD_FIXED) return -1;
    return (int64_t)be64_get(p + PS_AT_PHYSICAL_OFFSET);
}

/* The base that most of the records in n bytes of a segment's start speak for, -1 none. *votes: how
 * many do, SURE at most. */
static int64_t most_named(const uint8_t *p, int64_t n, int64_t size, int32_t *votes) {
    struct {
        int64_t base;
        int32_t count;
    } seen[BASES_MAX];
    int32_t known = 0, most = 0;
    for (int64_t at = 0; at + PLACED <= n;) {
        int64_t place = place_at(p + at);
        if (place < 0) {
            const uint8_t *hit =
                find_magic_head(p + at + PS_AT_MAGIC + 1, n - at - PS_AT_MAGIC - 1);
            if (hit == NULL) break;
            at = hit - p - PS_AT_MAGIC;
            continue;
        }
        if (place >= at && (place - at) % size == 0) {
            int32_t i = 0;
            while (i < known && seen[i].base != place - at) i++;
            if (i == known && known < BASES_MAX) {
                seen[known].base = place - at;
                seen[known++].count = 0;
            }
            if (i < known && ++seen[i].count > seen[most].count) most = i;
            if (seen[most].count >= SURE) break;
        }
        int64_t total = be32_get(p + at + PS_AT_SIZE);
        at += total <= n - at ? total : 1;
    }
    *votes = known > 0 ? seen[most].count : 0;
    return known > 0 ? seen[most].base : -1;
}

static int64_t base_of_file(ps_io *io, int fd, int64_t size, int64_t named, const char *path,
                            int32_t *votes, ps_error *e) {
    uint8_t head[PLACED], *bytes = NULL;
    struct stat st;
    if (io->fstat(io, fd, &st) < 0)
        return ps_fail(e, PS_E_IO, errno, -1, path, "cannot look at the segment");
    if (!S_ISREG(st.st_mode)) return ps_fail(e, PS_E_IO, 0, -1, path, "not a regular file");
    ssize_t n = io->pread(io, fd, head, sizeof head, 0);
    *votes = SURE;
    if (n == (ssize_t)sizeof head && named >= 0 && place_at(head) == named) return named;
    if (n >= 0 && (bytes = malloc(LOOK)) == NULL)
        return ps_no_memory(e, path, "no memory to look for a record in the segment");
    if (n >= 0) n = io->pread(io, fd, bytes, LOOK, 0);
    int64_t base = n < 0 ? ps_fail(e, PS_E_IO, errno, -1, path, "cannot read the segment")
                         : most_named(bytes, n, size, votes);
    free(bytes);
    return n < 0 || base >= 0 ? base
                              : ps_fail(e, PS_E_NOT_FOUND, 0, -1, path,
                                        "no record in the segment says where it belongs");
}

static int64_t base_of(ps_io *io, const char *path, int64_t size, int64_t named, int32_t *votes,
                       ps_error *e) {
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    int fd = io->open(io, path, flags | O_NOATIME, 0);
    if (fd < 0 && errno == EPERM) fd = io->open(io, path, flags, 0);
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot open the segment");
    int64_t base = base_of_file(io, fd, size > 0 ? size : 1, named, path, votes, e);
    io->close(io, fd);
    return base;
}

int64_t ps_log_base_of(ps_io *io, const char *path, int64_t size, ps_error *e) {
    int32_t votes;
    return base_of(io != NULL ? io : ps_io_system(), path, size, -1, &votes, e);
}

int32_t ps_log_misnamed(ps_io *io, const char *const *paths, const int64_t *bases, int32_t count,
                        int64_t size, int32_t from, int64_t *belongs) {
    int32_t votes, none;
    if (io == NULL) io = ps_io_system();
    for (int32_t i = from; i < count; i++) {
        *belongs = base_of(io, paths[i], size, bases[i], &votes, NULL);
        if (*belongs < 0 || *belongs == bases[i]) continue;
        int32_t other = 0;
        while (other < count && bases[other] != *belongs) other++;
        /* One record alone may say so for a flipped bit. */
        if (other == count && votes < 2) continue;
        if (other < count && base_of(io, paths[other], size, *belongs, &none, NULL) == *belongs)
            continue;
        return i;
    }
    return -1;
}
