/* What a pull or a pop wants: tags by hash, or an SQL92 expression. Counted, since a parked pull
 * keeps the one that it came with. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "tables/tables.h"

ps_filter *ps_filter_ref(ps_filter *f) {
    if (f != NULL) f->ft_refs++;
    return f;
}

void ps_filter_unref(ps_filter *f) {
    if (f == NULL || --f->ft_refs > 0) return;
    ps_sql92_free(f->ft_sql);
    free(f);
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* In order, since ps_read looks for one among many by halves. */
static void sort_hashes(ps_filter *f) {
    qsort(f->ft_hashes, (size_t)f->ft_tag_count, sizeof f->ft_hashes[0], by_number);
}

static ps_filter *new_filter(int32_t count, int32_t text_len, int32_t tags_len) {
    ps_filter *f = malloc(sizeof *f + (size_t)count * sizeof f->ft_hashes[0] + (size_t)text_len +
                          (size_t)tags_len);
    if (f != NULL) *f = (ps_filter){NULL, 1, count, text_len, tags_len};
    return f;
}

ps_filter *ps_filter_of_tags(const char *tags, int32_t tags_len, int32_t count) {
    ps_filter *f = new_filter(count, 0, 0);
    int32_t n = 0, at = 0;
    for (; f != NULL && n < count && at < tags_len; n++) {
        int32_t len = (int32_t)strnlen(tags + at, (size_t)(tags_len - at));
        f->ft_hashes[n] = ps_java_hash(0, (const uint8_t *)tags + at, len);
        at += len + 1;
    }
    if (f == NULL) return NULL;
    f->ft_tag_count = n;
    sort_hashes(f);
    return f;
}

static bool next_tag(const uint8_t *text, int32_t len, int32_t *at, ps_slice *out) {
    while (*at <= len) {
        int32_t from = *at, to = from;
        while (to < len && !(text[to] == '|' && to + 1 < len && text[to + 1] == '|')) to++;
        *at = to < len ? to + 2 : len + 1;
        while (from < to && text[from] <= ' ') from++;
        while (to > from && text[to - 1] <= ' ') to--;
        if (to > from) {
            *out = (ps_slice){text + from, to - from};
            return true;
        }
    }
    return false;
}

ps_filter *ps_filter_of_sql(const char *text, int32_t len, ps_error *e) {
    ps_sql92 *sql = ps_sql92_compile(text, len, e);
    if (sql != NULL && ps_sql92_work(sql, PS_PROPERTIES_MAX) > PS_SQL92_WORK_MAX) {
        ps_sql92_free(sql);
        sql = NULL;
        ps_fail(e, PS_E_EXPRESSION_ILLEGAL, 0, -1, NULL,
                "the expression costs too much: use fewer CONTAINS");
    }
    ps_filter *f = sql != NULL ? new_filter(0, len, 0) : NULL;
    if (f == NULL) {
        ps_sql92_free(sql);
        return NULL;
    }
    f->ft_sql = sql;
    memcpy(f->ft_hashes, text, (size_t)len);
    return f;
}

ps_filter *ps_filter_of_text(const uint8_t *text, int32_t len, bool sql, ps_error *e) {
    ps_slice tag;
    int32_t count = 0, at = 0, tags_len = 0;
    if (sql) return ps_filter_of_sql((const char *)text, len, e);
    for (; next_tag(text, len, &at, &tag); count++) tags_len += tag.len + 1;
    if (count == 1 && (at = 0, next_tag(text, len, &at, &tag)) && ps_slice_is(tag, "*"))
        count = tags_len = 0;
    ps_filter *f = new_filter(count, len, tags_len);
    if (f == NULL) return NULL;
    uint8_t *to = (uint8_t *)(f->ft_hashes + count);
    if (len > 0) memcpy(to, text, (size_t)len);
    to += len;
    at = 0;
    for (int32_t i = 0; i < count && next_tag(text, len, &at, &tag); i++) {
        f->ft_hashes[i] = ps_java_hash(0, tag.data, tag.len);
        memcpy(to, tag.data, (size_t)tag.len);
        to += tag.len;
        *to++ = 0;
    }
    sort_hashes(f);
    return f;
}

bool ps_filter_is(const ps_filter *f, const uint8_t *text, int32_t len, bool sql) {
    return f != NULL && (f->ft_sql != NULL) == sql && f->ft_text_len == len &&
           memcmp(f->ft_hashes + f->ft_tag_count, text, (size_t)len) == 0;
}
