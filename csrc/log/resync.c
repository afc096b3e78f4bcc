/* Looking past damage. See resync.h. */
#define _GNU_SOURCE /* SEEK_DATA */
#include "log/resync.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

#define AT_MAGIC 4
#define AT_PHYSICAL 28

/* The three bytes that both magics of a record begin with. */
static const uint8_t magic_head[3] = {0xDA, 0xA3, 0x20};

bool ps_log_next_data(const ps_mapfile *mf, int64_t from, int64_t *data, int64_t *end) {
    int64_t size = mf->mf_size;
    if (from >= size) return false;
    *data = from;
    *end = size;
    if (mf->mf_fd < 0) return true;
    int64_t at = mf->mf_io->lseek(mf->mf_io, mf->mf_fd, from, SEEK_DATA);
    if (at < 0) return errno != ENXIO;
    int64_t hole = mf->mf_io->lseek(mf->mf_io, mf->mf_fd, at, SEEK_HOLE);
    if (at >= size) return false;
    if (hole <= at) return true;
    *data = at;
    *end = hole < size ? hole : size;
    return true;
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
    const int checks = PS_CHECK_BODY_CRC | PS_CHECK_PROP_IF;
    int64_t data, end;
    while (ps_log_next_data(mf, from, &data, &end)) {
        /* A record may begin some bytes before the part, in a hole. */
        int64_t at = data - AT_MAGIC > from ? data - AT_MAGIC : from;
        for (; at + PS_RECORD_FIXED <= end; at++) {
            const uint8_t *hit = find_magic_head(mf->mf_map + at + AT_MAGIC, end - at - AT_MAGIC);
            if (hit == NULL) break;
            at = hit - mf->mf_map - AT_MAGIC;
            if (at + PS_RECORD_FIXED > mf->mf_size) break;
            int64_t place = mf->mf_base + at;
            if ((int64_t)be64_get(mf->mf_map + at + AT_PHYSICAL) != place) continue;
            if (ps_record_check(mf->mf_map + at, mf->mf_size - at, place, checks, out) ==
                    PS_REC_OK &&
                out->store_timestamp >= stamp)
                return at;
        }
        from = end;
    }
    return -1;
}
