/* The last record that a reader has shown, by which it knows the log again. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "store/store.h"

void ps_reader_mark(ps_store *s, int64_t start) {
    s->st_mark_at = start;
    if (start >= 0 &&
        ps_segments_peek(&s->st_log.lg_files, start, s->st_mark, sizeof s->st_mark, NULL) <= 0)
        s->st_mark_at = -1;
}

/* A slave cuts off what its master does not have, and takes other records in its place: of its
 * queues, too, offsets that were shown are given once more. */
int ps_reader_check_mark(ps_store *s, int64_t *first, ps_error *e) {
    uint8_t now[sizeof s->st_mark];
    ps_error why = {0};
    int64_t at = s->st_mark_at;
    if (at < 0 || (*first != INT64_MAX && at < *first)) return 0; /* retention has it */
    int code = ps_segments_read(&s->st_log.lg_files, at, now, sizeof now, &why);
    if (code > 0 && memcmp(now, s->st_mark, sizeof now) == 0) return 0;
    if (code < 0 && why.sys_errno != ENOENT) {
        *e = why;
        return code;
    }
    if (code < 0) code = ps_log_refresh(&s->st_log, first, e); /* retention may have it just now */
    if (code < 0) return code;
    if (*first != INT64_MAX && at < *first) return 0;
    return ps_fail(e, PS_E_CUT_BACK, 0, at, s->st_root,
                   "the log was cut back: the record at %lld, which was there, is another one, or"
                   " none", (long long)at);
}
