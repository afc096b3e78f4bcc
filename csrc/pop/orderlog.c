/* What ordered batches look like in their file, which is upstream's config/consumerOrderInfo.json,
 * and in the journal of what has changed since it was saved, which is ours: a line a change, for a
 * process that is killed. Its first line names the file by its CRC-32, and so does one before each
 * save: lines after it count for the file that is being written, too. A line goes to the page
 * cache, and nobody waits for the disk. Python reads both (broker/services/pop/order.py).
 * docs/internals/pop.md#order */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/crc.h"
#include "core/lock.h"
#include "format/property.h"
#include "wire/json.h"
#include "pop/pop.h"
#include "pop/orders.h"

#define NUMBER_MAX 24
#define TAG "order"     /* of records of changes */
#define WORDS_MAX 256   /* bytes of a line's names, numbers and offsets aside */

/* ---- writing JSON ---- */

typedef struct writer {
    uint8_t *at;
    bool quotes; /* keys that are numbers have quotes; fastjson writes them bare */
} writer;

static void put_text(writer *w, const char *text) {
    w->at = ps_text_put(w->at, text);
}

static void put_number(writer *w, const char *name, int64_t value) {
    w->at = ps_number_put(ps_text_put(w->at, name), value);
}

static void put_escaped(writer *w, const void *text, int64_t len) {
    w->at = ps_json_write(w->at, text, len);
}

static void put_quoted(writer *w, const char *name, const void *text, int64_t len) {
    put_text(w, name);
    *w->at++ = '"';
    put_escaped(w, text, len);
    *w->at++ = '"';
}

/* A key that is a number, and its colon. */
static void put_key(writer *w, int64_t key) {
    const char *quote = w->quotes ? "\"" : "";
    put_number(w, quote, key);
    put_text(w, quote);
    *w->at++ = ':';
}

static void put_times(writer *w, const ps_order *o) {
    const char *before = "";
    put_text(w, ",\"oc\":{");
    for (int32_t i = 0; i < o->or_count; i++) {
        if (o->or_all[i].om_times == 0) continue;
        put_text(w, before);
        put_key(w, o->or_all[i].om_offset);
        put_number(w, "", o->or_all[i].om_times);
        before = ",";
    }
    *w->at++ = '}';
}

/* Nothing without one, as upstream leaves out what is null. */
static void put_visible(writer *w, const ps_order *o) {
    const char *before = ",\"ot\":{";
    for (int32_t i = 0; o->or_changed && i < o->or_count; i++) {
        if (o->or_all[i].om_visible_ms < 0) continue;
        put_text(w, before);
        put_key(w, o->or_all[i].om_offset);
        put_number(w, "", o->or_all[i].om_visible_ms);
        before = ",";
    }
    if (o->or_changed) *w->at++ = '}';
}

static void put_batch(writer *w, const ps_order *o) {
    ps_slice attempt = ps_order_attempt(o);
    int64_t first = o->or_all[0].om_offset;
    *w->at++ = '{';
    if (attempt.len > 0) {
        put_quoted(w, "\"a\":", attempt.data, attempt.len);
        *w->at++ = ',';
    }
    put_number(w, "\"cm\":", (int64_t)o->or_acked);
    put_number(w, ",\"i\":", o->or_invisible_ms);
    put_number(w, ",\"l\":", o->or_used_ms);
    put_number(w, ",\"o\":[", first);
    for (int32_t i = 1; i < o->or_count; i++) put_number(w, ",", o->or_all[i].om_offset - first);
    *w->at++ = ']';
    put_times(w, o);
    put_visible(w, o);
    put_number(w, ",\"popTime\":", o->or_pop_ms);
    *w->at++ = '}';
}

/* Bytes that a line, or a batch in the file, has at most. */
static int64_t room_of(const ps_pair *pair, const ps_order *o) {
    int64_t room = WORDS_MAX + 2 + 8 * NUMBER_MAX +
                   ps_json_measure((const uint8_t *)pair->pr_names,
                                   pair->pr_group_len + pair->pr_topic_len);
    if (o == NULL) return room;
    ps_slice attempt = ps_order_attempt(o);
    return room + (int64_t)o->or_count * (5 * NUMBER_MAX + 16) +
           ps_json_measure(attempt.data, attempt.len);
}

/* ---- the journal ---- */

static bool write_at(ps_core *c, int fd, const uint8_t *data, int64_t len, int64_t at) {
    ps_io *io = c->co_store->st_io;
    while (len > 0) {
        ssize_t done = io->pwrite(io, fd, data, (size_t)len, at);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;
        if (done <= 0) return false;
        data += done;
        len -= done;
        at += done;
    }
    return true;
}

static void close_journal(ps_core *c, ps_order_log *l) {
    if (l->ol_fd >= 0) c->co_store->st_io->close(c->co_store->st_io, l->ol_fd);
    l->ol_fd = -1;
}

static void append_line(ps_core *c, ps_order_log *l, const uint8_t *line, int64_t len) {
    if (l->ol_fd < 0) return;
    if (write_at(c, l->ol_fd, line, len, l->ol_at)) {
        l->ol_at += len;
        return;
    }
    l->ol_failed = errno != 0 ? errno : EIO;
    close_journal(c, l);
}

/* What changes while a file is saved is for the journal after it, too. Without memory for it, there
 * is not a journal: as after a failed write. */
static void keep_line(ps_core *c, ps_order_log *l, const uint8_t *line, int64_t len) {
    if (!l->ol_saving || ps_buffer_add(&l->ol_since, line, len)) return;
    l->ol_failed = ENOMEM;
    close_journal(c, l);
}

/* All in one queue, so that they are in order. */
static void put_record(ps_core *c, ps_order_log *l, const uint8_t *line, int64_t len) {
    uint8_t properties[sizeof TAG + 8];
    const uint8_t *end =
        ps_property_put(properties, "TAGS", TAG, (int64_t)sizeof TAG - 1);
    const ps_message m = {.body = line,
                          .body_len = len,
                          .properties = properties,
                          .properties_len = end - properties};
    ps_put_result put;
    put.error.code = 0;
    if (!l->ol_records || c->co_pop->po_revive == NULL) return;
    if (ps_put_message(c->co_store, c->co_pop->po_revive, &m, &put) < 0)
        l->ol_failed = put.error.sys_errno != 0 ? put.error.sys_errno : EIO;
    else
        l->ol_end = put.physical_offset + put.size;
}

void ps_core_order_records(ps_core *c, int32_t on) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    if (l != NULL) l->ol_records = on != 0;
}

int64_t ps_core_order_end(ps_core *c) {
    PS_CORE_HELD(c);
    const ps_order_log *l = c->co_pop != NULL ? ps_order_log_of(c) : NULL;
    return l != NULL ? l->ol_end : 0;
}

void ps_order_note(ps_core *c, const ps_pair *pair, int32_t queue_id, const ps_order *o,
                   int64_t next) {
    ps_order_log *l = ps_order_log_of(c);
    ps_buffer *b = &ps_mine(c)->ca_pop.cp_text;
    if (l == NULL) return;
    l->ol_changes++;
    if (l->ol_fd < 0 && !l->ol_saving && !l->ol_records) return;
    b->len = 0;
    writer w = {ps_buffer_room(b, room_of(pair, o)), true};
    if (w.at == NULL) {
        l->ol_failed = ENOMEM;
        close_journal(c, l);
        return;
    }
    put_quoted(&w, "{\"topic\":", pair->pr_names + pair->pr_group_len, pair->pr_topic_len);
    put_quoted(&w, ",\"group\":", pair->pr_names, pair->pr_group_len);
    put_number(&w, ",\"queue\":", queue_id);
    if (o != NULL) {
        put_number(&w, ",\"next\":", next);
        put_text(&w, ",\"batch\":");
        put_batch(&w, o);
    }
    put_text(&w, "}\n");
    append_line(c, l, b->data, w.at - b->data);
    keep_line(c, l, b->data, w.at - b->data);
    put_record(c, l, b->data, w.at - b->data - 1);
}

static int64_t put_head(uint8_t *to, uint32_t crc) {
    writer w = {to, true};
    put_number(&w, "{\"file\":", crc);
    put_text(&w, "}\n");
    return w.at - to;
}

int ps_core_order_journal(ps_core *c, const char *path, uint32_t crc, const uint8_t *lines,
                          int64_t len, ps_error *e) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    ps_io *io = c->co_store->st_io;
    char made[PATH_MAX];
    uint8_t head[NUMBER_MAX + 16];
    if (l == NULL) return ps_no_memory(e, path, "no memory for POP");
    if (snprintf(made, sizeof made, "%s.tmp", path) >= PATH_MAX)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, path, "the path is too long");
    int fd = io->open(io, made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                      io->file_mode);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, made, "cannot create the journal");
    int64_t first = put_head(head, crc), since = l->ol_saving ? l->ol_since.len : 0;
    bool written = write_at(c, fd, head, first, 0) && write_at(c, fd, lines, len, first) &&
                   write_at(c, fd, l->ol_since.data, since, first + len);
    if (!written || io->rename(io, made, path) < 0) {
        int code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot begin the journal");
        io->close(io, fd);
        io->unlink(io, made);
        return code;
    }
    close_journal(c, l);
    ps_buffer_free(&l->ol_since);
    l->ol_saving = false;
    l->ol_failed = 0;
    l->ol_fd = fd;
    l->ol_at = first + len + since;
    return 0;
}

void ps_core_order_journal_end(ps_core *c) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    if (l == NULL) return;
    close_journal(c, l);
    ps_buffer_free(&l->ol_since);
    l->ol_saving = false;
}

int ps_core_order_failed(ps_core *c) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    int failed = l != NULL ? l->ol_failed : 0;
    if (l != NULL) l->ol_failed = 0;
    return failed;
}

/* ---- the file ---- */

int64_t ps_core_order_changes(ps_core *c) {
    PS_CORE_HELD(c);
    const ps_order_log *l = ps_order_log_of(c);
    return l != NULL ? l->ol_changes : 0;
}

/* A batch, and before the first one of a pair its name. */
static void put_row(writer *w, const ps_order *o, const ps_pair *before) {
    const ps_pair *pair = o->or_pair;
    if (pair != before) {
        put_text(w, before != NULL ? "},\"" : "\"");
        put_escaped(w, pair->pr_names + pair->pr_group_len, pair->pr_topic_len);
        *w->at++ = '@';
        put_escaped(w, pair->pr_names, pair->pr_group_len);
        put_text(w, "\":{");
    } else {
        *w->at++ = ',';
    }
    put_key(w, o->or_queue);
    put_batch(w, o);
}

int64_t ps_core_order_text(ps_core *c, int32_t saving, const uint8_t **text) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    ps_buffer *b = &ps_mine(c)->ca_pop.cp_text;
    const ps_pair *before = NULL;
    int64_t room = WORDS_MAX;
    uint8_t head[NUMBER_MAX + 16];
    if (l == NULL) return PS_E_NO_MEMORY;
    for (const ps_order *o = l->ol_all; o != NULL; o = o->or_next) room += room_of(o->or_pair, o);
    b->len = 0;
    writer w = {ps_buffer_room(b, room), false};
    if (w.at == NULL) return PS_E_NO_MEMORY;
    put_text(&w, "{\"table\":{");
    for (const ps_order *o = l->ol_all; o != NULL; before = o->or_pair, o = o->or_next)
        put_row(&w, o, before);
    put_text(&w, before != NULL ? "}}}" : "}}");
    *text = b->data;
    int64_t len = w.at - b->data;
    if (!saving) return len;
    append_line(c, l, head, put_head(head, ps_crc32(0, b->data, (size_t)len)));
    l->ol_saving = true;
    l->ol_since.len = 0;
    return len;
}
