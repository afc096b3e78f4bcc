/* Scans as Arrow streams: every column against the record it came from, projections, filters, batch
 * sizes, damage of every kind, lifetimes, threads. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>

#include "scan/arrow.h"
#include "base/bytes.h"
#include "base/crc.h"
#include "files/mapfile.h"
#include "format/utf8.h"
#include "check.h"
#include "base/error.h"
#include "filter/sql92.h"
#include "format/record.h"

#define LOG_FILE 65536
#define QUEUE_FILE 2000
#define QUEUES 3
#define SEEN_MAX 4096

static char *base; /* every test works in a folder of its own below */

/* ---- stores ---- */

static char *folder(const char *name) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", base, name);
    return strdup(path);
}

static ps_store *open_store(const char *root, bool read_only) {
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    conf.root = root;
    conf.commitlog_file_size = LOG_FILE;
    conf.consumequeue_file_size = QUEUE_FILE;
    conf.index_slots = 64;
    conf.index_entries = 4096;
    conf.message_index_enable = 0;
    conf.background = 0;
    ps_store *s = read_only ? ps_reader_open(&conf, NULL, NULL, NULL, &e)
                            : ps_store_open(&conf, NULL, NULL, NULL, &e);
    if (s == NULL) printf("%s: %s %s\n", root, e.text, e.where);
    return s;
}

static ps_topic *topic_of(ps_store *s, const char *name) {
    ps_error e = {0};
    ps_topic *t = ps_topic_open(s, name, (int32_t)strlen(name), 1, &e);
    if (t == NULL) printf("%s: %s\n", name, e.text);
    return t;
}

static void catch_up(ps_store *s) {
    ps_error e = {0};
    CHECK_EQ(0, ps_store_refresh(s, &e));
}

typedef struct text {
    const char *bytes;
    int64_t len;
} text;

#define TEXT(s) ((text){(s), (int64_t)sizeof(s) - 1})

/* Properties as clients send them, and as only a broken one would. */
static const text property_sets[] = {
    TEXT(""),
    TEXT("TAGS\001TagA\002"),
    TEXT("TAGS\001TagB\002KEYS\001order-1 customer-7\002__LITE_TOPIC\001session-42\002"),
    TEXT("KEYS\001k\002UNIQ_"
         "KEY\001FD00000000000000000000000000AB12\002WAIT\001true\002TAGS\001AaAa\002"),
    TEXT("TAGS\001BBBB"),
    TEXT("TAGS\001\xE6\xA0\x87\xE7\xAD\xBE\002KEYS\001\xF0\x9F\x9A\x80 "
         "b\002\xE6\xB3\xA8\001\xC3\xBC\002"),
    TEXT("TAGS\001old\002UNIQ_KEY\001first\002a\0011\002TAGS\001TagA\002UNIQ_"
         "KEY\001second\002a\0012\002"),
    TEXT("quote\"\\\001tab\tline\nbell\007\"\\\177/"
         "\002TAGS\001\xFF\xC3(\xED\xA0\x80\xF0\x9F\002KEYS\001\x80\002"),
    TEXT("TAG\001no\002TAGSX\001no\002XTAGS\001no\002KEYSTAGS\001no\002TAGS\001\002UNIQ_"
         "KEY\001\002"),
    TEXT(
        "CLUSTER\001DefaultCluster\002MSG_REGION\001DefaultRegion\002TRACE_"
        "ON\001true\002WAIT\001true\002"
        "UNIQ_KEY\001FD000000000000000000000000000002689B30946E0967AA27C50000\002TAGS\001TagA\002"),
    TEXT("p1\001v\002p2\001v\002p3\001v\002p4\001v\002p5\001v\002p6\001v\002p7\001v\002p8\001v\002p"
         "9\001v\002"
         "pa\001v\002pb\001v\002pc\001v\002pd\001v\002pe\001v\002pf\001v\002pg\001v\002ph\001v\002p"
         "i\001v\002"
         "pj\001v\002pk\001v\002pl\001v\002pm\001v\002pn\001v\002po\001v\002pp\001v\002p1\001last"
         "\002TAGS\001T\002"),
};
#define PROPERTY_SETS ((int64_t)(sizeof property_sets / sizeof property_sets[0]))

static const uint8_t hosts[4][20] = {
    {10, 0, 0, 1, 0, 0, 0x9C, 0x40},
    {255, 254, 1, 0, 0, 0, 0x2A, 0x9F},
    {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0xAB, 0xCD, 0, 0, 0, 1, 0, 0, 0x2A, 0x9F},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 168, 0, 7, 0, 0, 0, 80},
};
static const char *const host_texts[4] = {"10.0.0.1:40000", "255.254.1.0:10911",
                                          "fe80:0:0:0:0:abcd:0:1:10911", "192.168.0.7:80"};

static void put(ps_store *s, ps_topic *t, const ps_message *m) {
    ps_put_result r;
    int code = ps_put_message(s, t, m, &r);
    if (code != 0) printf("put: %d %s\n", code, r.error.text);
    CHECK_EQ(0, code);
}

static void put_random(ps_store *s, ps_topic *t, int32_t queue) {
    uint8_t body[1500];
    const text *p = &property_sets[check_below(PROPERTY_SETS)];
    int64_t host = check_below(4);
    ps_message m = {.body = body,
                    .body_len = check_below(check_below(4) ? 300 : 1500),
                    .properties = p->bytes,
                    .properties_len = p->len,
                    .queue_id = queue,
                    .flag = (int32_t)check_random(),
                    .reconsume_times = (int32_t)check_below(17),
                    .born_timestamp = 1700000000000 + check_below(1000000),
                    .prepared_transaction_offset = check_below(1 << 30),
                    .born_host_len = host < 2 ? 8 : 20};
    memcpy(m.born_host, hosts[host], sizeof m.born_host);
    for (int64_t i = 0; i < m.body_len; i++) body[i] = (uint8_t)check_random();
    put(s, t, &m);
}

/* A store with a few segments of three topics. */
static void fill(const char *root, int64_t messages) {
    ps_store *s = open_store(root, false);
    const char *names[] = {"plain", "other", "RMQ_SYS_TRANS_HALF_TOPIC"};
    for (int64_t i = 0; i < messages; i++)
        put_random(s, topic_of(s, names[check_below(8) ? 0 : check_below(3)]),
                   (int32_t)check_below(QUEUES));
    catch_up(s);
    ps_error e = {0};
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
}

/* ---- streams ---- */

static ps_scan spec_of(ps_topic *topic, int32_t queue, int32_t count, const int32_t *columns) {
    ps_scan scan = {.column_count = count,
                    .topic = topic,
                    .queue_id = queue,
                    .to_at = INT64_MAX,
                    .store_time_max = INT64_MAX,
                    .queue_filter = -1,
                    .broker_name = "broker-a",
                    .broker_name_len = 8};
    for (int32_t i = 0; i < count; i++) {
        scan.columns[i] = columns[i];
        scan.nullable[i] = columns[i] == PS_COL_TAGS || columns[i] == PS_COL_KEYS ||
                           columns[i] == PS_COL_LITE_TOPIC;
    }
    return scan;
}

static ps_scan spec_all(ps_topic *topic, int32_t queue) {
    int32_t columns[PS_COL_COUNT];
    for (int32_t i = 0; i < PS_COL_COUNT; i++) columns[i] = i;
    return spec_of(topic, queue, PS_COL_COUNT, columns);
}

static bool stream_open(ps_store *s, const ps_scan *scan, struct ArrowArrayStream *stream,
                        ps_scan_stats *stats) {
    ps_error e = {0};
    if (CHECK_EQ(0, ps_scan_open(s, scan, stream, stats, &e))) return true;
    printf("scan: %s\n", e.text);
    return false;
}

/* Reads to the end and drops what comes; rows, or -1 when the stream failed. */
static int64_t count_rows(ps_store *s, const ps_scan *scan, ps_scan_stats *stats, char *why) {
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    int64_t rows = 0;
    int code = 0;
    if (!stream_open(s, scan, &stream, stats)) return -1;
    for (;;) {
        code = stream.get_next(&stream, &batch);
        if (code != 0 || batch.release == NULL) break;
        CHECK(batch.length > 0);
        rows += batch.length;
        batch.release(&batch);
    }
    if (code != 0) {
        const char *text = stream.get_last_error(&stream);
        CHECK(code == EIO || code == ENOMEM || code == EBADF);
        CHECK(batch.release == NULL);
        CHECK(text != NULL && strlen(text) > 10);
        CHECK_EQ(code, stream.get_next(&stream, &batch)); /* it goes on failing */
        if (why != NULL) snprintf(why, 800, "%s", text != NULL ? text : "");
    }
    stream.release(&stream);
    CHECK(stream.release == NULL);
    return code == 0 ? rows : -1;
}

/* Value of a utf8 or binary column; NULL for a null. */
static const char *value(const struct ArrowArray *a, int64_t i, int64_t *len) {
    const uint8_t *validity = a->buffers[0];
    const int32_t *ends = a->buffers[1];
    *len = ends[i + 1] - ends[i];
    if (validity != NULL && !(validity[i >> 3] >> (i & 7) & 1)) return NULL;
    return (const char *)a->buffers[2] + ends[i];
}

static bool value_is(const struct ArrowArray *a, int64_t i, const void *bytes, int64_t len) {
    int64_t got_len;
    const char *got = value(a, i, &got_len);
    if (bytes == NULL || got == NULL) return bytes == NULL && got == NULL && got_len == 0;
    bool same = got_len == len && memcmp(got, bytes, (size_t)len) == 0;
    if (!same)
        printf("row %lld: '%.*s', not '%.*s'\n", (long long)i, (int)got_len, got, (int)len,
               (const char *)bytes);
    return same;
}

/* ---- what a value must be, by the slow and simple way ---- */

/* Java's replacement of ill-formed bytes; tables of well-formed sequences as in the standard. */
static int64_t mended(char *to, const uint8_t *p, int64_t len) {
    int64_t n = 0, i = 0;
    while (i < len) {
        uint8_t b = p[i];
        int64_t want = b < 0x80                ? 1
                       : b >= 0xC2 && b < 0xE0 ? 2
                       : b >= 0xE0 && b < 0xF0 ? 3
                       : b >= 0xF0 && b < 0xF5 ? 4
                                               : 0,
                have = 1;
        while (want > 0 && have < want && i + have < len && (p[i + have] & 0xC0) == 0x80) {
            uint8_t c = p[i + have];
            bool low =
                (b == 0xE0 && c < 0xA0) || (b == 0xF0 && c < 0x90) || (b == 0xF4 && c > 0x8F);
            if (have == 1 && low) break;
            have++;
        }
        bool surrogate = b == 0xED && have > 1 && p[i + 1] >= 0xA0;
        if (want == have && !surrogate)
            memcpy(to + n, p + i, (size_t)have);
        else
            memcpy(to + n, "\xEF\xBF\xBD", 3);
        n += want == have && !surrogate ? have : 3;
        i += have;
    }
    return n;
}

typedef struct pair {
    char name[256], value[256];
    int64_t name_len, value_len;
    const uint8_t *raw;
    int32_t raw_len;
} pair;

/* Properties in record order, each name at the place of its last value. */
static int pairs_of(const ps_record *r, pair *out) {
    ps_property p;
    int count = 0;
    for (int32_t at = 0; ps_property_next(r->properties, r->properties_len, &at, &p);) {
        int i = 0;
        while (i < count &&
               (out[i].raw_len != p.name_len || memcmp(out[i].raw, p.name, (size_t)p.name_len)))
            i++;
        if (i < count) memmove(out + i, out + i + 1, (size_t)(--count - i) * sizeof *out);
        pair *q = &out[count++];
        q->raw = p.name;
        q->raw_len = p.name_len;
        q->name_len = mended(q->name, p.name, p.name_len);
        q->value_len = mended(q->value, p.value, p.value_len);
    }
    return count;
}

static int64_t json_text(char *to, const char *p, int64_t len) {
    int64_t n = 0;
    to[n++] = '"';
    for (int64_t i = 0; i < len; i++) {
        const char *short_ones = "\"\\\b\f\n\r\t", *names = "\"\\bfnrt";
        const char *found = p[i] ? strchr(short_ones, p[i]) : NULL;
        if (found != NULL) {
            to[n++] = '\\';
            to[n++] = names[found - short_ones];
        } else if ((uint8_t)p[i] < 0x20) {
            n += snprintf(to + n, 8, "\\u%04x", p[i]);
        } else {
            to[n++] = p[i];
        }
    }
    to[n++] = '"';
    return n;
}

static bool check_map(const struct ArrowArray *a, int64_t i, const pair *pairs, int count) {
    const int32_t *ends = a->buffers[1];
    const struct ArrowArray *keys = a->children[0]->children[0],
                            *values = a->children[0]->children[1];
    bool good = CHECK_EQ(count, ends[i + 1] - ends[i]);
    for (int k = 0; good && k < count; k++) {
        good = CHECK(value_is(keys, ends[i] + k, pairs[k].name, pairs[k].name_len)) &&
               CHECK(value_is(values, ends[i] + k, pairs[k].value, pairs[k].value_len));
    }
    return good;
}

static bool check_json(const struct ArrowArray *a, int64_t i, const pair *pairs, int count) {
    char json[16384];
    int64_t n = 0;
    json[n++] = '{';
    for (int k = 0; k < count; k++) {
        if (k > 0) json[n++] = ',';
        n += json_text(json + n, pairs[k].name, pairs[k].name_len);
        json[n++] = ':';
        n += json_text(json + n, pairs[k].value, pairs[k].value_len);
    }
    json[n++] = '}';
    return CHECK(value_is(a, i, json, n));
}

static bool check_property(const struct ArrowArray *a, int64_t i, const ps_record *r,
                           const char *name, bool nullable) {
    char text[1024];
    ps_property p;
    if (!ps_property_find(r->properties, r->properties_len, name, (int32_t)strlen(name), &p))
        return CHECK(value_is(a, i, nullable ? NULL : "", 0));
    return CHECK(value_is(a, i, text, mended(text, p.value, p.value_len)));
}

static bool check_host(const struct ArrowArray *a, int64_t i, const uint8_t *host, int32_t len) {
    for (int k = 0; k < 4; k++)
        if (len == (k < 2 ? 8 : 20) && memcmp(host, hosts[k], (size_t)len) == 0)
            return CHECK(value_is(a, i, host_texts[k], (int64_t)strlen(host_texts[k])));
    return CHECK(value_is(a, i, "127.0.0.1:10911", 15));
}

static bool check_id(const struct ArrowArray *a, int64_t i, const ps_record *r) {
    char id[57];
    ps_property p;
    if (ps_property_find(r->properties, r->properties_len, "UNIQ_KEY", 8, &p))
        return CHECK(value_is(a, i, p.value, p.value_len));
    int n = ps_offset_msg_id(r->store_host, r->store_host_len, r->physical_offset, id);
    return CHECK(value_is(a, i, id, n));
}

static bool check_envelope(const struct ArrowArray *a, int64_t i, const ps_record *r) {
    static uint8_t whole[1 << 20];
    const uint8_t *start = r->body - 88 - (r->born_host_len - 8) - (r->store_host_len - 8);
    int32_t head = (int32_t)(r->body - start), tail = r->size - head - r->body_len;
    if (!CHECK(head + tail <= (int32_t)sizeof whole)) return false;
    memcpy(whole, start, (size_t)head);
    memcpy(whole + head, r->body + r->body_len, (size_t)tail);
    return CHECK(value_is(a, i, whole, head + tail));
}

static bool check_number(const struct ArrowArray *a, int64_t i, int32_t kind, const ps_record *r) {
    const int32_t *v32 = a->buffers[1];
    const int64_t *v64 = a->buffers[1];
    CHECK(a->null_count == 0 && a->buffers[0] == NULL && a->n_buffers == 2);
    switch (kind) {
    case PS_COL_QUEUE_ID:
        return CHECK_EQ(r->queue_id, v32[i]);
    case PS_COL_FLAG:
        return CHECK_EQ(r->flag, v32[i]);
    case PS_COL_SYS_FLAG:
        return CHECK_EQ(r->sys_flag, v32[i]);
    case PS_COL_RECONSUME_TIMES:
        return CHECK_EQ(r->reconsume_times, v32[i]);
    case PS_COL_BODY_CRC:
        return CHECK_EQ(r->body_crc, v32[i]);
    case PS_COL_STORE_SIZE:
        return CHECK_EQ(r->size, v32[i]);
    case PS_COL_QUEUE_OFFSET:
        return CHECK_EQ(r->queue_offset, v64[i]);
    case PS_COL_BORN_TIMESTAMP:
        return CHECK_EQ(r->born_timestamp * 1000, v64[i]);
    case PS_COL_STORE_TIMESTAMP:
        return CHECK_EQ(r->store_timestamp * 1000, v64[i]);
    case PS_COL_COMMIT_LOG_OFFSET:
        return CHECK_EQ(r->physical_offset, v64[i]);
    default:
        return CHECK_EQ(r->prepared_transaction_offset, v64[i]);
    }
}

static bool check_value(const struct ArrowArray *a, int64_t i, int32_t kind, bool nullable,
                        const ps_record *r) {
    pair pairs[64];
    switch (kind) {
    case PS_COL_TOPIC:
        return CHECK(value_is(a, i, r->topic, r->topic_len));
    case PS_COL_BROKER_NAME:
        return CHECK(value_is(a, i, "broker-a", 8));
    case PS_COL_BODY:
        return CHECK(value_is(a, i, r->body, r->body_len));
    case PS_COL_TAGS:
        return check_property(a, i, r, "TAGS", nullable);
    case PS_COL_KEYS:
        return check_property(a, i, r, "KEYS", nullable);
    case PS_COL_LITE_TOPIC:
        return check_property(a, i, r, "__LITE_TOPIC", nullable);
    case PS_COL_PROPERTIES:
        return check_map(a, i, pairs, pairs_of(r, pairs));
    case PS_COL_PROPERTIES_JSON:
        return check_json(a, i, pairs, pairs_of(r, pairs));
    case PS_COL_BORN_HOST:
        return check_host(a, i, r->born_host, r->born_host_len);
    case PS_COL_STORE_HOST:
        return check_host(a, i, r->store_host, r->store_host_len);
    case PS_COL_MSG_ID:
        return check_id(a, i, r);
    case PS_COL_ENVELOPE:
        return check_envelope(a, i, r);
    default:
        return check_number(a, i, kind, r);
    }
}

/* ---- records as the other reading calls see them ---- */

typedef struct seen {
    ps_record records[SEEN_MAX];
    int32_t count;
    ps_batch *batches[SEEN_MAX];
    int32_t batch_count;
} seen;

static const ps_read_options usual;

static void seen_add(seen *all, ps_batch *b, ps_batch_info *info) {
    ps_batch_get(b, info);
    all->batches[all->batch_count++] = b;
    for (int32_t i = 0; i < info->count && all->count < SEEN_MAX; i++) {
        const ps_view *v = &info->views[i];
        const uint8_t *p = info->segments[v->segment].map + v->start;
        CHECK_EQ(PS_REC_OK, ps_record_decode(p, v->size, &all->records[all->count++]));
    }
}

static void seen_queue(seen *all, ps_store *s, ps_topic *t, int32_t queue) {
    ps_error e = {0};
    ps_batch_info info = {0};
    int64_t at = 0, end = 0;
    all->count = all->batch_count = 0;
    if (ps_queue_range(s, t, queue, &at, &end) < 0) return;
    while (at < end) {
        ps_batch *b = ps_read(s, t, queue, at, &usual, &e);
        if (!CHECK(b != NULL)) return;
        seen_add(all, b, &info);
        if (!CHECK(info.next_offset > at)) return;
        at = info.next_offset;
    }
}

static void seen_log(seen *all, ps_store *s) {
    ps_error e = {0};
    ps_info facts;
    ps_batch_info info = {0};
    all->count = all->batch_count = 0;
    CHECK_EQ(0, ps_store_info(s, &facts));
    for (int64_t at = facts.log_min; at < facts.log_max; at = info.next_offset) {
        ps_batch *b = ps_log_read(s, at, &usual, &e);
        if (!CHECK(b != NULL)) return;
        seen_add(all, b, &info);
        if (info.next_offset <= at) return;
    }
}

static void seen_free(seen *all) {
    for (int32_t i = 0; i < all->batch_count; i++) ps_batch_free(all->batches[i]);
    free(all);
}

/* Whether the stream gives exactly these records, in this order, in batches within their limits. */
static void check_stream(ps_store *s, const ps_scan *scan, const ps_record *const *wanted,
                         int32_t count) {
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    ps_scan_stats *stats = ps_scan_stats_new();
    int32_t at = 0;
    int64_t batches = 0, bytes = 0;
    if (!stream_open(s, scan, &stream, stats)) return;
    for (;; batches++) {
        int code = stream.get_next(&stream, &batch);
        if (!CHECK_EQ(0, code) || batch.release == NULL) {
            if (code != 0) printf("%s\n", stream.get_last_error(&stream));
            break;
        }
        CHECK(batch.length > 0 && at + batch.length <= count);
        CHECK(batch.length <= (scan->batch_rows ? scan->batch_rows : 8192));
        CHECK_EQ(scan->column_count, batch.n_children);
        CHECK(batch.null_count == 0 && batch.n_buffers == 1 && batch.buffers[0] == NULL);
        bool good = at + batch.length <= count;
        for (int64_t i = 0; good && i < batch.length; i++, at++) {
            bytes += wanted[at]->size;
            for (int32_t c = 0; good && c < scan->column_count; c++) {
                CHECK_EQ(batch.length, batch.children[c]->length);
                good = check_value(batch.children[c], i, scan->columns[c], scan->nullable[c],
                                   wanted[at]);
            }
        }
        batch.release(&batch);
        if (!good) break;
    }
    CHECK_EQ(count, at);
    CHECK_EQ(count, stats->rows);
    CHECK_EQ(batches, stats->batches);
    CHECK_EQ(bytes, stats->bytes);
    CHECK_EQ(0, stats->skipped);
    CHECK_EQ(-1, stats->first_skipped);
    stream.release(&stream);
    ps_scan_stats_free(stats);
}

/* ---- the tests ---- */

static void check_field(const struct ArrowSchema *f, const char *name, const char *format,
                        bool nullable, int64_t children) {
    CHECK_EQ(0, strcmp(name, f->name));
    CHECK_EQ(0, strcmp(format, f->format));
    CHECK_EQ(nullable ? ARROW_FLAG_NULLABLE : 0, f->flags);
    CHECK_EQ(children, f->n_children);
    CHECK(f->metadata == NULL && f->dictionary == NULL && f->release != NULL);
}

static const char *const fields[PS_COL_COUNT][2] = {{"topic", "u"},
                                                    {"brokerName", "u"},
                                                    {"queueId", "i"},
                                                    {"queueOffset", "l"},
                                                    {"body", "z"},
                                                    {"tags", "u"},
                                                    {"keys", "u"},
                                                    {"properties", "+m"},
                                                    {"properties", "u"},
                                                    {"flag", "i"},
                                                    {"bornTimestamp", "tsu:UTC"},
                                                    {"storeTimestamp", "tsu:UTC"},
                                                    {"sysFlag", "i"},
                                                    {"bornHost", "u"},
                                                    {"storeHost", "u"},
                                                    {"reconsumeTimes", "i"},
                                                    {"bodyCRC", "i"},
                                                    {"storeSize", "i"},
                                                    {"commitLogOffset", "l"},
                                                    {"msgId", "u"},
                                                    {"preparedTransactionOffset", "l"},
                                                    {"envelope", "z"},
                                                    {"liteTopic", "u"}};

static void test_schema(ps_store *s) {
    struct ArrowArrayStream stream;
    struct ArrowSchema schema, moved;
    ps_scan scan = spec_all(NULL, 0);
    for (int32_t i = 0; i < PS_COL_COUNT; i++) scan.nullable[i] = i % 3 == 0;
    if (!stream_open(s, &scan, &stream, NULL)) return;
    for (int twice = 0; twice < 2; twice++) {
        CHECK_EQ(0, stream.get_schema(&stream, &schema));
        check_field(&schema, "", "+s", false, PS_COL_COUNT);
        for (int32_t i = 0; i < PS_COL_COUNT; i++)
            check_field(schema.children[i], fields[i][0], fields[i][1], i % 3 == 0,
                        i == PS_COL_PROPERTIES);
        const struct ArrowSchema *map = schema.children[PS_COL_PROPERTIES];
        check_field(map->children[0], "entries", "+s", false, 2);
        check_field(map->children[0]->children[0], "key", "u", false, 0);
        check_field(map->children[0]->children[1], "value", "u", true, 0);
        moved = *schema.children[PS_COL_PROPERTIES];
        schema.children[PS_COL_PROPERTIES]->release = NULL;
        schema.release(&schema);
        CHECK(schema.release == NULL);
        check_field(moved.children[0]->children[1], "value", "u", true, 0);
        moved.release(&moved);
    }
    stream.release(&stream);
}

/* Random projections, limits and nullability over every queue and over the log. */
static void test_columns(ps_store *s) {
    const char *names[] = {"plain", "other", "RMQ_SYS_TRANS_HALF_TOPIC"};
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    for (int round = 0; round < 40; round++) {
        ps_topic *t = round % 4 ? topic_of(s, names[check_below(3)]) : NULL;
        int32_t queue = (int32_t)check_below(QUEUES), columns[PS_COLUMNS_MAX];
        int32_t count = round < 8 ? PS_COL_COUNT : (int32_t)check_below(6);
        for (int32_t i = 0; i < count; i++)
            columns[i] = round < 8 ? i : (int32_t)check_below(PS_COL_COUNT);
        ps_scan scan = spec_of(t, queue, count, columns);
        scan.batch_rows = check_below(2) ? 0 : (int32_t)(1 + check_below(100));
        scan.batch_bytes = check_below(2) ? 0 : 1 + check_below(10000);
        scan.check_crc = check_below(2) == 0;
        for (int32_t i = 0; i < count; i++) scan.nullable[i] = check_below(2) == 0;
        all->count = 0;
        if (t != NULL)
            seen_queue(all, s, t, queue);
        else
            seen_log(all, s);
        for (int32_t i = 0; i < all->count; i++) wanted[i] = &all->records[i];
        int64_t low, high;
        if (t == NULL || ps_queue_range(s, t, queue, &low, &high) == 0)
            check_stream(s, &scan, wanted, all->count);
        for (; all->batch_count > 0; all->batch_count--)
            ps_batch_free(all->batches[all->batch_count - 1]);
    }
    free(wanted);
    seen_free(all);
}

static bool has_tag(const ps_record *r, const char *tag) {
    ps_property p;
    return ps_property_find(r->properties, r->properties_len, "TAGS", 4, &p) &&
           p.value_len == (int32_t)strlen(tag) && memcmp(p.value, tag, (size_t)p.value_len) == 0;
}

static bool in_topic(const ps_record *r, const char *topic) {
    return r->topic_len == (int32_t)strlen(topic) &&
           memcmp(r->topic, topic, (size_t)r->topic_len) == 0;
}

typedef struct asked {
    const char *tags[2], *topics[2];
    int64_t from, to; /* store times */
    int32_t queue;
    bool committed;
    ps_sql92 *sql;
} asked;

static bool fits(const ps_record *r, const asked *a, bool log) {
    int32_t type = r->sys_flag & PS_SYS_TX_MASK;
    bool system =
        in_topic(r, "RMQ_SYS_TRANS_HALF_TOPIC") || in_topic(r, "RMQ_SYS_TRANS_OP_HALF_TOPIC");
    if (a->tags[0] != NULL && !has_tag(r, a->tags[0]) &&
        (a->tags[1] == NULL || !has_tag(r, a->tags[1])))
        return false;
    if (r->store_timestamp < a->from || r->store_timestamp > a->to) return false;
    if (a->sql != NULL && !ps_sql92_match(a->sql, r->properties, r->properties_len)) return false;
    if (!log) return true;
    if (a->queue >= 0 && r->queue_id != a->queue) return false;
    if (a->committed && (type == 0x4 || type == 0xC || (system && a->topics[0] == NULL)))
        return false;
    return a->topics[0] == NULL || in_topic(r, a->topics[0]) ||
           (a->topics[1] != NULL && in_topic(r, a->topics[1]));
}

static int32_t joined(const char *const names[2], char *to, int32_t *count) {
    int32_t n = 0;
    *count = 0;
    for (int i = 0; i < 2 && names[i] != NULL; i++) {
        if (i > 0) to[n++] = 0;
        memcpy(to + n, names[i], strlen(names[i]));
        n += (int32_t)strlen(names[i]);
        ++*count;
    }
    return n;
}

static void check_filter(ps_store *s, ps_topic *t, const asked *a, seen *all,
                         const ps_record **wanted) {
    const int32_t columns[2][3] = {
        {PS_COL_TAGS, PS_COL_TOPIC, PS_COL_BODY},
        {PS_COL_QUEUE_OFFSET, PS_COL_STORE_SIZE, PS_COL_COMMIT_LOG_OFFSET}};
    char tags[512], topics[512];
    int32_t count = 0;
    ps_scan scan = spec_of(t, 1, 3, columns[check_below(2)]);
    scan.tags_len = joined(a->tags, tags, &scan.tag_count);
    scan.tags = scan.tag_count ? tags : NULL;
    scan.topics_len = joined(a->topics, topics, &scan.topic_count);
    scan.topics = scan.topic_count ? topics : NULL;
    scan.store_time_min = a->from;
    scan.store_time_max = a->to;
    scan.queue_filter = a->queue;
    scan.committed_only = a->committed;
    scan.sql = a->sql;
    for (int32_t i = 0; i < all->count; i++)
        if (fits(&all->records[i], a, t == NULL)) wanted[count++] = &all->records[i];
    check_stream(s, &scan, wanted, count);
}

static ps_sql92 *sql_of(const char *text) {
    ps_error e = {0};
    ps_sql92 *sql = ps_sql92_compile(text, (int32_t)strlen(text), &e);
    if (!CHECK(sql != NULL)) printf("%s: %s\n", text, e.text);
    return sql;
}

static void test_filters(ps_store *s) {
    const char *sqls[] = {"TAGS IS NULL", "TAGS IN ('TagA', 'AaAa') AND KEYS IS NULL", "a > 1",
                          "p1 = 'last' OR UNIQ_KEY STARTSWITH 'FD'", "FALSE"};
    const char *tags[] = {"TagA", "AaAa", "BBBB", "\xE6\xA0\x87\xE7\xAD\xBE", "none", "T"};
    const char *topics[] = {"plain", "other", "RMQ_SYS_TRANS_HALF_TOPIC", "absent"};
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    for (int round = 0; round < 60; round++) {
        ps_topic *t = check_below(2) ? topic_of(s, "plain") : NULL;
        if (t != NULL)
            seen_queue(all, s, t, 1);
        else
            seen_log(all, s);
        int64_t first = all->count ? all->records[0].store_timestamp : 0;
        int64_t last = all->count ? all->records[all->count - 1].store_timestamp : 0;
        asked a = {.to = INT64_MAX, .queue = -1};
        for (int i = 0; i < 2 && check_below(3) == 0; i++) a.tags[i] = tags[check_below(6)];
        for (int i = 0; i < 2 && check_below(2) == 0; i++) a.topics[i] = topics[check_below(4)];
        if (check_below(3) == 0) {
            a.from = first + check_below(last - first + 2);
            a.to = a.from + check_below(last - first + 1);
        }
        a.queue = check_below(3) ? -1 : (int32_t)check_below(QUEUES);
        a.committed = check_below(2) == 0;
        if (check_below(3) == 0) a.sql = sql_of(sqls[check_below(5)]);
        check_filter(s, t, &a, all, wanted);
        ps_sql92_free(a.sql);
        for (; all->batch_count > 0; all->batch_count--)
            ps_batch_free(all->batches[all->batch_count - 1]);
    }
    free(wanted);
    seen_free(all);
}

static void test_ranges(ps_store *s) {
    const int32_t columns[] = {PS_COL_QUEUE_OFFSET, PS_COL_TAGS};
    ps_topic *t = topic_of(s, "plain");
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    for (int round = 0; round < 40; round++) {
        bool log = round % 2;
        ps_scan scan = spec_of(log ? NULL : t, 0, 2, columns);
        if (log)
            seen_log(all, s);
        else
            seen_queue(all, s, t, 0);
        int32_t from = (int32_t)check_below(all->count),
                to = from + (int32_t)check_below(all->count - from + 1);
        for (int32_t i = from; i < to; i++) wanted[i - from] = &all->records[i];
        scan.from_at = log ? all->records[from].physical_offset : all->records[from].queue_offset;
        scan.to_at = to == all->count ? INT64_MAX
                     : log            ? all->records[to].physical_offset
                                      : all->records[to].queue_offset;
        check_stream(s, &scan, wanted, to - from);
        for (; all->batch_count > 0; all->batch_count--)
            ps_batch_free(all->batches[all->batch_count - 1]);
    }
    free(wanted);
    seen_free(all);
}

/* Records that are given in two pieces; each lies where no other has lain. */
typedef struct given {
    const uint8_t *records;
    int64_t size, first; /* first: bytes of the first piece */
    int64_t at, flip; /* flip: a byte that comes wrong */
    uint8_t *held;
    int32_t fails, releases;
    ps_mapfile *file; /* that each piece is said to lie in */
    int64_t block;    /* bytes that have a sum */
    uint8_t *sums;
} given;

/* The sums of each block of `len` bytes. */
static uint8_t *sums_of(const uint8_t *p, int64_t len, int64_t block) {
    uint8_t *sums = malloc((size_t)(len / block + 1) * 4);
    for (int64_t at = 0; at < len; at += block)
        be32_put(sums + at / block * 4,
                 ps_crc32(0, p + at, (size_t)(len - at < block ? len - at : block)));
    return sums;
}

static int64_t more_of(void *arg, ps_given *out, char *why, int64_t room) {
    given *g = arg;
    free(g->held);
    free(g->sums);
    g->held = g->sums = NULL;
    int64_t len = (g->at < g->first ? g->first : g->size) - g->at;
    if (out == NULL) {
        g->at = 0;
        g->releases++;
        return 0;
    }
    if (g->fails && g->at > 0) {
        snprintf(why, (size_t)room, "the second piece is away");
        return -1;
    }
    if (len == 0) return 0;
    out->records = g->held = malloc((size_t)len); /* ends where the last record does */
    memcpy(g->held, g->records + g->at, (size_t)len);
    out->file = g->file;
    out->name = "the piece";
    out->block = g->block;
    if (g->block > 0) out->sums = g->sums = sums_of(g->held, len, g->block);
    if (g->flip >= g->at && g->flip < g->at + len) g->held[g->flip - g->at] ^= 4;
    g->at += len;
    return len;
}

/* What is refused, and with which code; nothing is left behind. */
static void test_arguments(ps_store *s, ps_store *other) {
    struct ArrowArrayStream stream;
    ps_scan good = spec_all(topic_of(s, "plain"), 0), bad;
    ps_error e = {0};
#define REFUSED(code, change)                                                                      \
    do {                                                                                           \
        bad = good;                                                                                \
        change;                                                                                    \
        CHECK_EQ(code, ps_scan_open(s, &bad, &stream, NULL, &e));                                  \
        CHECK(e.text[0] != 0 && stream.release == NULL);                                           \
    } while (0)
    REFUSED(PS_E_ARGUMENT, bad.column_count = 33);
    REFUSED(PS_E_ARGUMENT, bad.column_count = -1);
    REFUSED(PS_E_ARGUMENT, bad.columns[1] = PS_COL_COUNT);
    REFUSED(PS_E_ARGUMENT, bad.columns[1] = -1);
    REFUSED(PS_E_ARGUMENT, bad.from_at = -1);
    REFUSED(PS_E_ARGUMENT, bad.batch_rows = -1);
    REFUSED(PS_E_ARGUMENT, bad.batch_bytes = -1);
    REFUSED(PS_E_ARGUMENT, bad.broker_name_len = 1 << 20);
    REFUSED(PS_E_ARGUMENT, (bad.tags = "a\0b", bad.tags_len = 3, bad.tag_count = 3));
    REFUSED(PS_E_ARGUMENT, (bad.tags = "a\0b", bad.tags_len = 3, bad.tag_count = 1));
    REFUSED(PS_E_ARGUMENT, (bad.tags = "a", bad.tags_len = 1, bad.tag_count = -1));
    REFUSED(PS_E_ARGUMENT,
            (bad.topic = NULL, bad.topics = "a", bad.topics_len = -1, bad.topic_count = 1));
    REFUSED(PS_E_ARGUMENT, bad.topic = topic_of(other, "plain"));
    REFUSED(PS_E_ARGUMENT, (bad.more = more_of, bad.topic = NULL));
    REFUSED(PS_E_NOT_FOUND, bad.queue_id = 999);
    REFUSED(PS_E_NOT_FOUND, bad.queue_id = -1);
    REFUSED(PS_E_NOT_FOUND, bad.queue_id = 70000);
#undef REFUSED
    good.from_at = 1 << 20;
    CHECK_EQ(0, count_rows(s, &good, NULL, NULL));
    good.from_at = 5;
    good.to_at = 5;
    CHECK_EQ(0, count_rows(s, &good, NULL, NULL));
    good.to_at = -7;
    CHECK_EQ(0, count_rows(s, &good, NULL, NULL));
}

/* Every batch outlives the stream, the store and its siblings; children can be moved out of it. */
static void test_lifetimes(const char *root) {
    struct ArrowArrayStream stream;
    struct ArrowArray batches[64], child = {0};
    ps_scan_stats *stats = ps_scan_stats_new();
    ps_store *s = open_store(root, true);
    ps_scan scan = spec_all(topic_of(s, "plain"), 0);
    int32_t count = 0;
    scan.batch_rows = 7;
    scan.sql = sql_of("TRUE");
    bool open = stream_open(s, &scan, &stream, stats);
    ps_sql92_free(scan.sql); /* the stream has its own reference */
    if (!open) return;
    while (count < 64 && stream.get_next(&stream, &batches[count]) == 0 &&
           batches[count].release != NULL) {
        if (count % 3 == 2) {
            batches[count].release(&batches[count]); /* the next one may use its buffers */
            batches[count].release = NULL;
        }
        count++;
    }
    CHECK(count > 10);
    ps_store_free(s);
    ps_scan_stats_free(stats);
    child = *batches[0].children[PS_COL_PROPERTIES]->children[0]->children[1];
    batches[0].children[PS_COL_PROPERTIES]->children[0]->children[1]->release = NULL;
    batches[0].release(&batches[0]);
    batches[0].release = NULL;
    int64_t len;
    for (int64_t i = 0; i < child.length; i++) CHECK(value(&child, i, &len) != NULL);
    CHECK_EQ(EBADF, stream.get_next(&stream, &batches[0]));
    CHECK(strstr(stream.get_last_error(&stream), "closed") != NULL);
    stream.release(&stream);
    child.release(&child);
    for (int32_t i = 1; i < count; i++)
        if (batches[i].release != NULL) batches[i].release(&batches[i]);
}

static int64_t records_before(const ps_record *const *records, int32_t count) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < count; i++) bytes += records[i]->size;
    return bytes;
}

/* Records that have sums make the same rows, and where a byte comes wrong, those rows of them alone
 * that end before its block, whatever the byte is of. */
static void test_given_sums(ps_scan *scan, given *source, const ps_record **wanted, int32_t count) {
    char why[800];
    const int64_t blocks[] = {1, 61, 1000, 1 << 17};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        source->block = blocks[i];
        check_stream(NULL, scan, wanted, count);
    }
    for (int round = 0; round < 40; round++) {
        struct ArrowArrayStream stream;
        struct ArrowArray batch;
        int64_t rows = 0, len;
        source->block = 1 + check_below(3000);
        source->flip = check_below(source->size);
        CHECK_EQ(-1, count_rows(NULL, scan, NULL, why));
        CHECK(strstr(why, "another CRC than their segment says: the piece") != NULL);
        if (!stream_open(NULL, scan, &stream, NULL)) return;
        while (stream.get_next(&stream, &batch) == 0 && batch.release != NULL) {
            for (int64_t k = 0; k < batch.length && rows < count; k++, rows++) {
                const char *body = value(batch.children[PS_COL_BODY], k, &len);
                CHECK(len == wanted[rows]->body_len && memcmp(body, wanted[rows]->body, len) == 0);
            }
            batch.release(&batch);
        }
        CHECK(rows < count && records_before(wanted, (int32_t)rows) <= source->flip);
        stream.release(&stream);
    }
    source->block = 0;
    source->flip = -1;
}

/* Records that are given, without a store, make the rows that the log makes of them. */
static void test_given(ps_store *s) {
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    int64_t size = 0, at = 0;
    seen_log(all, s);
    for (int32_t i = 0; i < all->count; i++) size += all->records[i].size;
    uint8_t *records = malloc((size_t)size);
    for (int32_t i = 0; i < all->count; i++) {
        wanted[i] = &all->records[i];
        memcpy(records + at, wanted[i]->start, (size_t)wanted[i]->size);
        at += wanted[i]->size;
    }
    ps_scan scan = spec_all(NULL, 0), both = scan;
    given source = {.records = records, .size = size, .flip = -1,
                    .first = records_before(wanted, all->count / 2)};
    scan.more = more_of;
    scan.more_arg = &source;
    check_stream(NULL, &scan, wanted, all->count);
    CHECK(source.releases > 0 && source.held == NULL);
    char why[800];
    source.fails = 1;
    CHECK_EQ(-1, count_rows(NULL, &scan, NULL, why));
    CHECK(strstr(why, "the second piece is away") != NULL);
    source.fails = 0;
    /* Of a file that is cut off meanwhile nothing is given. */
    int fd = open("/proc/self/exe", O_RDONLY);
    ps_segment_view view;
    ps_error cut;
    source.file = ps_file_map(fd, "the segment", 0, 1, &view, &cut);
    close(fd);
    CHECK_EQ(all->count, count_rows(NULL, &scan, NULL, NULL));
    atomic_store(&source.file->mf_cut, true);
    CHECK_EQ(-1, count_rows(NULL, &scan, NULL, why));
    CHECK(strstr(why, "truncated while it was read: the segment") != NULL);
    ps_mapfile_unref(source.file);
    source.file = NULL;
    test_given_sums(&scan, &source, wanted, all->count);
    /* A damaged body is counted and stepped over, a record that is cut off ends the rows. */
    records[wanted[3]->body - wanted[3]->start + records_before(wanted, 3)] ^= 1;
    scan.check_crc = 1;
    source.size--;
    CHECK_EQ(-1, count_rows(NULL, &scan, NULL, why));
    CHECK(strstr(why, "cannot be read: bad crc") != NULL);
    scan.skip_damaged = 1;
    CHECK_EQ(all->count - 2, count_rows(NULL, &scan, NULL, NULL));
    struct ArrowArrayStream stream;
    ps_error e = {0};
    CHECK_EQ(PS_E_ARGUMENT, ps_scan_open(NULL, &both, &stream, NULL, &e));
    for (; all->batch_count > 0; all->batch_count--)
        ps_batch_free(all->batches[all->batch_count - 1]);
    free(records);
    free(wanted);
    seen_free(all);
}

static void test_closed(const char *root) {
    struct ArrowArrayStream stream, late;
    struct ArrowArray batch;
    struct ArrowSchema schema;
    ps_error e = {0};
    ps_store *s = open_store(root, true);
    ps_scan scan = spec_all(NULL, 0);
    scan.batch_rows = 3;
    if (!stream_open(s, &scan, &stream, NULL)) return;
    CHECK_EQ(0, stream.get_next(&stream, &batch));
    CHECK_EQ(0, ps_store_close(s, &e));
    batch.release(&batch);
    CHECK_EQ(EBADF, stream.get_next(&stream, &batch));
    CHECK(batch.release == NULL);
    CHECK_EQ(0, stream.get_schema(&stream, &schema));
    schema.release(&schema);
    CHECK_EQ(PS_E_CLOSED, ps_scan_open(s, &scan, &late, NULL, &e));
    stream.release(&stream);
    ps_store_free(s);
}

/* ---- compressed bodies ---- */

/* "Zn" stands for n times 'z'; "?" is damaged; "M" asks for a little more each time; "G" is too
 * much. */
static int64_t fake_inflate(void *arg, int32_t type, const uint8_t *in, int64_t len, uint8_t *out,
                            int64_t room) {
    char text[32];
    ++*(int64_t *)arg;
    CHECK_EQ(3, type);
    snprintf(text, sizeof text, "%.*s", (int)(len < 31 ? len : 31), (const char *)in);
    if (text[0] == '?') return -1;
    if (text[0] == 'G') return (256LL << 20) + 1;
    int64_t n = atoll(text + 1);
    if (text[0] == 'M' && room < n) return room + 1;
    if (n <= room) memset(out, 'z', (size_t)n);
    return n;
}

static void put_compressed(ps_store *s, const char *body, int32_t sys_flag) {
    ps_message m = {.body = body, .body_len = (int64_t)strlen(body), .sys_flag = sys_flag};
    put(s, topic_of(s, "packed"), &m);
}

static void check_bodies(ps_store *s, ps_scan *scan, const int64_t *wanted, int32_t count) {
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    int32_t at = 0;
    if (!stream_open(s, scan, &stream, NULL)) return;
    while (stream.get_next(&stream, &batch) == 0 && batch.release != NULL) {
        for (int64_t i = 0; i < batch.length && at < count; i++, at++) {
            int64_t len;
            const char *body = value(batch.children[0], i, &len);
            CHECK_EQ(wanted[at], len);
            for (int64_t k = 0; k < len; k += 97) CHECK(body[k] == 'z');
        }
        batch.release(&batch);
    }
    CHECK_EQ(count, at);
    stream.release(&stream);
}

static void test_inflate(void) {
    const int32_t columns[] = {PS_COL_BODY, PS_COL_SYS_FLAG};
    const char *const bodies[] = {"Z0",  "Z10", "Z5000", "M200000", "Z3000000",
                                  "zzz", "Z7",  "Z8",    "M99999"};
    const int64_t sizes[] = {0, 10, 5000, 200000, 3000000, 3, 7, 8, 99999};
    const int32_t count = sizeof sizes / sizeof sizes[0];
    char *root = folder("packed");
    char why[800];
    int64_t calls = 0, once = 0;
    ps_store *s = open_store(root, false);
    for (int32_t i = 0; i < count; i++)
        put_compressed(s, bodies[i], bodies[i][0] == 'z' ? 0 : i % 2 ? 0x301 : 0x1);
    catch_up(s);
    for (int round = 0; round < 4; round++) {
        ps_scan scan = spec_of(round % 2 ? NULL : topic_of(s, "packed"), 0, 2, columns);
        scan.inflate = fake_inflate;
        scan.inflate_arg = &calls;
        scan.batch_bytes = round < 2 ? 0 : 1000000;
        calls = 0;
        check_bodies(s, &scan, sizes, count);
        if (round == 0) once = calls;
        CHECK_EQ(once, calls); /* a body that waits for the next batch is not inflated again */
        CHECK(calls < 32);
    }
    put_compressed(s, "?", 0x1);
    put_compressed(s, "G", 0x1);
    put_compressed(s, "Z5", 0x1);
    catch_up(s);
    for (int round = 0; round < 2; round++) {
        ps_scan_stats *stats = ps_scan_stats_new();
        ps_scan scan = spec_of(round % 2 ? NULL : topic_of(s, "packed"), 0, 2, columns);
        scan.inflate = fake_inflate;
        scan.inflate_arg = &calls;
        CHECK_EQ(-1, count_rows(s, &scan, stats, why));
        CHECK_EQ(count, stats->rows);
        CHECK(strstr(why, "inflate") != NULL);
        scan.skip_damaged = 1;
        CHECK_EQ(count + 1, count_rows(s, &scan, NULL, NULL));
        scan.skip_damaged = 0;
        scan.inflate = NULL;
        CHECK_EQ(count + 3, count_rows(s, &scan, NULL, NULL));
        scan.columns[0] = PS_COL_FLAG; /* nobody asks for bodies, so nobody inflates them */
        scan.inflate = fake_inflate;
        CHECK_EQ(count + 3, count_rows(s, &scan, NULL, NULL));
        ps_scan_stats_free(stats);
    }
    ps_store_free(s);
    free(root);
}

/* ---- damage ---- */

typedef struct mapped {
    uint8_t *bytes;
    int64_t size;
} mapped;

static mapped map_file(const char *root, const char *name) {
    char path[4400];
    struct stat st;
    mapped m = {0};
    snprintf(path, sizeof path, "%s/%s", root, name);
    int fd = open(path, O_RDWR);
    if (!CHECK(fd >= 0 && fstat(fd, &st) == 0)) exit(1);
    m.size = st.st_size;
    m.bytes = mmap(NULL, (size_t)m.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (!CHECK(m.bytes != MAP_FAILED)) exit(1);
    return m;
}

/* A scan of everything in every way: it may fail, but must end, and must not crash. */
static void survive(ps_store *s, int64_t rows_max) {
    for (int32_t way = 0; way < 8; way++) {
        ps_topic *t = way & 1 ? topic_of(s, "plain") : NULL;
        ps_scan scan = spec_all(t, (int32_t)check_below(QUEUES));
        ps_scan_stats *stats = ps_scan_stats_new();
        int64_t low, high;
        char why[800] = "";
        if (t != NULL && ps_queue_range(s, t, scan.queue_id, &low, &high) < 0) {
            ps_scan_stats_free(stats);
            continue;
        }
        scan.skip_damaged = way >> 1 & 1;
        scan.check_crc = way >> 2 & 1;
        scan.batch_rows = check_below(2) ? 0 : 5;
        if (check_below(4) == 0) scan.column_count = PS_COL_BODY; /* the columns before it */
        int64_t rows = count_rows(s, &scan, stats, why);
        CHECK(rows >= 0 ? why[0] == 0 : !scan.skip_damaged && strstr(why, "offset") != NULL);
        CHECK(rows <= rows_max && stats->rows <= rows_max);
        CHECK(stats->skipped == 0 ? stats->first_skipped == -1 : scan.skip_damaged);
        ps_scan_stats_free(stats);
    }
}

static void test_damage(const char *root, int64_t messages) {
    ps_store *s = open_store(root, true);
    mapped files[3] = {map_file(root, "commitlog/00000000000000000000"),
                       map_file(root, "commitlog/00000000000000065536"),
                       map_file(root, "consumequeue/plain/1/00000000000000000000")};
    ps_scan_stats *stats = ps_scan_stats_new();
    ps_scan scan = spec_all(NULL, 0);
    CHECK_EQ(messages, count_rows(s, &scan, stats, NULL));
    for (int round = 0; round < 120; round++) {
        mapped *m = &files[check_below(3)];
        uint8_t was[64];
        int64_t at = check_below(m->size - 64), n = 1 + check_below(round % 3 ? 4 : 60);
        memcpy(was, m->bytes + at, sizeof was);
        for (int64_t i = 0; i < n; i++)
            m->bytes[at + i] = check_below(3) ? (uint8_t)check_random() : check_below(2) ? 0 : 0xFF;
        survive(s, messages);
        memcpy(m->bytes + at, was, sizeof was);
    }
    CHECK_EQ(messages, count_rows(s, &scan, NULL, NULL));
    for (int i = 0; i < 3; i++) munmap(files[i].bytes, (size_t)files[i].size);
    ps_scan_stats_free(stats);
    ps_store_free(s);
}

/* The fields of one record, each set to what hurts most: lengths and flags that point out of it. */
static void test_hostile_fields(const char *root, int64_t messages) {
    static const uint32_t values[] = {
        0,      1,      7,       90,         91,         92,         0x7F,       0x80, 0x7FFF,
        0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF80, 0x30, 65536};
    ps_store *s = open_store(root, true);
    mapped log = map_file(root, "commitlog/00000000000000000000");
    seen *all = calloc(1, sizeof *all);
    seen_log(all, s);
    int32_t last = 0;
    while (last + 1 < all->count && all->records[last + 1].physical_offset < LOG_FILE) last++;
    for (int which = 0; which < 2; which++) {
        const ps_record *r = &all->records[which ? last : 3];
        int64_t start = r->physical_offset, late = r->body - 4 - r->start;
        int64_t places[] = {
            0, 4, 36, late, late + 4 + r->body_len, late + 4 + r->body_len + 1 + r->topic_len};
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            uint8_t was[8], *at = log.bytes + start + places[p];
            memcpy(was, at, sizeof was);
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                be32_put(at, values[v] << (p >= 4 ? 16 : 0));
                survive(s, messages);
                memcpy(at, was, sizeof was);
            }
        }
    }
    munmap(log.bytes, (size_t)log.size);
    seen_free(all);
    ps_store_free(s);
}

/* Units that point anywhere. */
static void test_hostile_units(const char *root, int64_t messages) {
    static const int64_t places[] = {
        0, 1, -1, INT64_MIN, INT64_MAX, LOG_FILE - 8, LOG_FILE - 91, LOG_FILE, 1 << 30};
    static const int32_t sizes[] = {0, 1, 90, 91, 200, 65536, INT32_MAX, INT32_MIN, -1};
    ps_store *s = open_store(root, true);
    mapped units = map_file(root, "consumequeue/plain/1/00000000000000000000");
    const int32_t in_unit[] = {PS_COL_QUEUE_OFFSET, PS_COL_COMMIT_LOG_OFFSET, PS_COL_STORE_SIZE};
    for (size_t i = 0; i < sizeof places / sizeof places[0] * (sizeof sizes / sizeof sizes[0]);
         i++) {
        uint8_t was[20], *at = units.bytes + 20 * check_below(90);
        memcpy(was, at, sizeof was);
        be64_put(at, (uint64_t)places[i % 9]);
        be32_put(at + 8, (uint32_t)sizes[i / 9]);
        survive(s, messages);
        ps_scan scan = spec_of(topic_of(s, "plain"), 1, 3, in_unit);
        count_rows(s, &scan, NULL, NULL);
        memcpy(at, was, sizeof was);
    }
    munmap(units.bytes, (size_t)units.size);
    ps_store_free(s);
}

/* Damage of a head costs one row, whatever the head says of its size. */
static void check_heads(ps_store *s, uint8_t *log, const ps_record *r, int64_t messages) {
    const int32_t columns[] = {PS_COL_QUEUE_OFFSET, PS_COL_BODY};
    ps_scan_stats *stats = ps_scan_stats_new();
    ps_scan scan = spec_of(NULL, 0, 2, columns);
    uint8_t *start = log + r->physical_offset, kept[8];
    uint32_t size = (uint32_t)r->size, rest = (uint32_t)(LOG_FILE - r->physical_offset);
    const uint32_t heads[][2] = {{size, 0x55555555}, {size + 4, r->magic}, {rest, PS_MAGIC_BLANK}};
    char why[800];
    memcpy(kept, start, sizeof kept);
    for (int i = 0; i < 3; i++) {
        be32_put(start, heads[i][0]);
        be32_put(start + 4, heads[i][1]);
        scan.skip_damaged = 1;
        CHECK_EQ(messages - 1, count_rows(s, &scan, stats, NULL));
        CHECK_EQ(1, stats->skipped);
        scan.skip_damaged = 0;
        CHECK_EQ(-1, count_rows(s, &scan, NULL, why));
    }
    CHECK(strstr(why, "whole records follow the blank") != NULL);
    memcpy(start, kept, sizeof kept);
    ps_scan_stats_free(stats);
}

/* One bad record: the rows before it come, the sentence names it; stepped over, all others come. */
static void test_damage_report(const char *root, int64_t messages) {
    const int32_t columns[] = {PS_COL_QUEUE_OFFSET, PS_COL_BODY};
    ps_store *s = open_store(root, true);
    mapped log = map_file(root, "commitlog/00000000000000000000");
    seen *all = calloc(1, sizeof *all);
    ps_scan_stats *stats = ps_scan_stats_new();
    char why[800], place[64], queue[64];
    seen_queue(all, s, topic_of(s, "plain"), 1);
    int32_t bad = 20, second;
    while (all->records[bad].body_len == 0) bad++;
    for (second = bad + 1; all->records[second].body_len == 0;) second++;
    const ps_record *r = &all->records[bad], *r2 = &all->records[second];
    uint8_t *byte = log.bytes + r->physical_offset + (r->body - r->start), was = *byte;
    snprintf(place, sizeof place, "physical offset %lld", (long long)r->physical_offset);
    CHECK(r2->physical_offset + r2->size < LOG_FILE);
    snprintf(queue, sizeof queue, "queue plain/1, offset %d:", bad);
    *byte ^= 0x10;
    ps_scan scan = spec_of(topic_of(s, "plain"), 1, 2, columns);
    CHECK_EQ(all->count, count_rows(s, &scan, NULL, NULL)); /* nobody asked for the sum */
    scan.check_crc = 1;
    CHECK_EQ(-1, count_rows(s, &scan, stats, why));
    CHECK_EQ(bad, stats->rows);
    CHECK(strstr(why, queue) != NULL && strstr(why, place) != NULL &&
          strstr(why, "bad crc") != NULL);
    scan.skip_damaged = 1;
    CHECK_EQ(all->count - 1, count_rows(s, &scan, stats, NULL));
    CHECK_EQ(1, stats->skipped);
    CHECK_EQ(r->physical_offset, stats->first_skipped);
    scan = spec_of(NULL, 0, 2, columns);
    scan.check_crc = 1;
    CHECK_EQ(-1, count_rows(s, &scan, NULL, why));
    CHECK(strstr(why, place) != NULL && strstr(why, "bad crc") != NULL);
    scan.skip_damaged = 1;
    CHECK_EQ(messages - 1, count_rows(s, &scan, NULL, NULL));
    uint8_t *later = log.bytes + r2->physical_offset + (r2->body - r2->start);
    *later ^= 1;
    CHECK_EQ(messages - 2, count_rows(s, &scan, stats, NULL));
    CHECK_EQ(2, stats->skipped);
    CHECK_EQ(r->physical_offset, stats->first_skipped);
    *later ^= 1;
    *byte = was;
    check_heads(s, log.bytes, r, messages);
    CHECK_EQ(messages, count_rows(s, &scan, NULL, NULL));
    int64_t blank = LOG_FILE - 4;
    while (blank > 0 && be32_get(log.bytes + blank) != PS_MAGIC_BLANK) blank--;
    be32_put(log.bytes + blank - 4, 7); /* how far the blank reaches is not believed */
    scan.skip_damaged = 0;
    CHECK_EQ(messages, count_rows(s, &scan, NULL, NULL));
    be32_put(log.bytes + blank - 4, (uint32_t)(LOG_FILE - blank + 4));
    munmap(log.bytes, (size_t)log.size);
    ps_scan_stats_free(stats);
    seen_free(all);
    ps_store_free(s);
}

/* A queue file that is gone is read from the log; a segment that is gone is reported, or stepped
 * over. */
static void test_missing(const char *root, int64_t messages) {
    char path[4400], why[800];
    const int32_t in_unit[] = {PS_COL_QUEUE_OFFSET, PS_COL_STORE_SIZE}, body[] = {PS_COL_BODY};
    snprintf(path, sizeof path, "%s/consumequeue/plain/1/00000000000000000000", root);
    CHECK_EQ(0, unlink(path));
    ps_store *s = open_store(root, true);
    if (!CHECK(s != NULL)) return;
    ps_scan_stats *stats = ps_scan_stats_new();
    int64_t low, high;
    ps_topic *t = topic_of(s, "plain");
    CHECK_EQ(0, ps_queue_range(s, t, 1, &low, &high));
    ps_scan scan = spec_of(t, 1, 2, in_unit);
    CHECK_EQ(0, low);
    CHECK_EQ(high, count_rows(s, &scan, stats, why)); /* the log has what the queue has lost */
    CHECK_EQ(0, stats->skipped);
    ps_store_free(s);
    snprintf(path, sizeof path, "%s/commitlog/00000000000000000000", root);
    CHECK_EQ(0, unlink(path));
    s = open_store(root, true);
    if (CHECK(s != NULL)) {
        scan = spec_of(NULL, 0, 1, body);
        CHECK_EQ(-1, count_rows(s, &scan, NULL, why));
        CHECK(strstr(why, "deleted") != NULL);
        scan.skip_damaged = 1;
        int64_t rows = count_rows(s, &scan, NULL, NULL);
        CHECK(rows > 0 && rows < messages);
        t = topic_of(s, "plain");
        CHECK_EQ(0, ps_queue_range(s, t, 0, &low, &high));
        CHECK(low > 0);
        scan = spec_of(t, 0, 2, in_unit); /* the units are there, what they point to is not */
        CHECK_EQ(-1, count_rows(s, &scan, NULL, NULL));
        scan.skip_damaged = 1;
        CHECK_EQ(high - low, count_rows(s, &scan, NULL, NULL));
        scan.columns[0] = PS_COL_BODY;
        CHECK_EQ(high - low, count_rows(s, &scan, NULL, NULL));
        ps_store_free(s);
    }
    ps_scan_stats_free(stats);
}

/* A record that reaches beyond the end of the log, and a unit that says it is there. */
static void test_beyond_end(const char *root) {
    const int32_t in_unit[] = {PS_COL_QUEUE_OFFSET}, in_record[] = {PS_COL_BODY};
    char name[64];
    ps_info facts;
    ps_store *s = open_store(root, true);
    ps_topic *t = topic_of(s, "plain");
    CHECK_EQ(0, ps_store_info(s, &facts));
    int64_t at = facts.log_max - 91, last = at / LOG_FILE * LOG_FILE, low, high;
    snprintf(name, sizeof name, "commitlog/%020" PRId64, last);
    mapped log = map_file(root, name),
           units = map_file(root, "consumequeue/plain/1/00000000000000000000");
    uint8_t was[200], unit[20], *p = log.bytes + (at - last);
    memcpy(was, p, sizeof was);
    memcpy(unit, units.bytes + 200, sizeof unit);
    memset(p, 0, sizeof was);
    be32_put(p, 200);
    be32_put(p + 4, PS_MAGIC_V1);
    be64_put(p + 28, (uint64_t)at);
    be32_put(p + 84, 109);
    be64_put(units.bytes + 200, (uint64_t)at);
    be32_put(units.bytes + 208, 200);
    CHECK_EQ(0, ps_queue_range(s, t, 1, &low, &high));
    for (int way = 0; way < 2; way++) {
        ps_scan scan = spec_of(t, 1, 1, way ? in_unit : in_record);
        CHECK_EQ(-1, count_rows(s, &scan, NULL, NULL));
        scan.skip_damaged = 1;
        int64_t rows = count_rows(s, &scan, NULL, NULL);
        CHECK(rows == high - 1 ||
              (way == 0 && rows == high - 2)); /* the log's last record is gone */
    }
    memcpy(p, was, sizeof was);
    memcpy(units.bytes + 200, unit, sizeof unit);
    munmap(log.bytes, (size_t)log.size);
    munmap(units.bytes, (size_t)units.size);
    ps_store_free(s);
}

/* Properties without their last separator, as some versions of upstream write them; and a unit
 * whose tags code is an address in the queue's extension, which tells nothing about the tag. */
static void test_upstream_forms(const char *root) {
    const int32_t columns[] = {PS_COL_TAGS, PS_COL_KEYS, PS_COL_MSG_ID, PS_COL_PROPERTIES};
    ps_store *s = open_store(root, true);
    ps_topic *t = topic_of(s, "plain");
    mapped log = map_file(root, "commitlog/00000000000000000000"),
           units = map_file(root, "consumequeue/plain/1/00000000000000000000");
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    int32_t count = 0;
    seen_queue(all, s, t, 1);
    for (int32_t i = 0; i < 60; i++) {
        const ps_record *r = &all->records[i];
        uint8_t *code = units.bytes + 20 * r->queue_offset + 12;
        if (r->properties_len > 0 && r->physical_offset + r->size < LOG_FILE)
            log.bytes[r->physical_offset + r->size - 1] = '!';
        be64_put(code, (uint64_t)INT64_MIN + 40 * (uint64_t)i);
    }
    ps_scan scan = spec_of(t, 1, 4, columns);
    for (int32_t i = 0; i < all->count; i++) wanted[i] = &all->records[i];
    check_stream(s, &scan, wanted, all->count);
    scan.tags = "TagA!";
    scan.tags_len = 5;
    scan.tag_count = 1;
    for (int32_t i = 0; i < all->count; i++)
        if (has_tag(&all->records[i], "TagA!")) wanted[count++] = &all->records[i];
    CHECK(count > 0);
    check_stream(s, &scan, wanted, count);
    munmap(log.bytes, (size_t)log.size);
    munmap(units.bytes, (size_t)units.size);
    free(wanted);
    seen_free(all);
    ps_store_free(s);
}

/* ---- unusual stores ---- */

/* A writer that crashed: its queues' files know nothing yet, so a reader keeps the units in
 * memory. */
static void test_tail(void) {
    char *root = folder("tail");
    ps_store *s = open_store(root, false);
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    for (int i = 0; i < 500; i++) {
        put_random(s, topic_of(s, "plain"), 0);
        if (i == 150) catch_up(s);
    }
    ps_store_abandon(s);
    ps_store *reader = open_store(root, true);
    ps_scan scan = spec_all(topic_of(reader, "plain"), 0);
    seen_queue(all, reader, scan.topic, 0);
    CHECK_EQ(500, all->count);
    for (int32_t i = 0; i < all->count; i++) wanted[i] = &all->records[i];
    check_stream(reader, &scan, wanted, all->count);
    scan.column_count = PS_COL_BODY;
    scan.columns[4] = PS_COL_STORE_SIZE;
    check_stream(reader, &scan, wanted, all->count);
    seen_free(all);
    free(wanted);
    ps_store_free(reader);
    ps_store_free(s);
    free(root);
}

/* Prepared and rolled back records have no unit; long topics are written in the second version. */
static void test_kinds(void) {
    const int32_t columns[] = {PS_COL_TOPIC, PS_COL_SYS_FLAG};
    char *root = folder("kinds"), name[256] = "%RETRY%";
    ps_store *s = open_store(root, false);
    seen *all = calloc(1, sizeof *all);
    const ps_record **wanted = calloc(SEEN_MAX, sizeof *wanted);
    memset(name + 7, 'g', 200);
    for (int32_t i = 0; i < 40; i++) {
        ps_message m = {.body = "b", .body_len = 1, .sys_flag = i % 4 << 2};
        put(s,
            topic_of(s, i % 5 == 4   ? name
                        : i % 5 == 3 ? "RMQ_SYS_TRANS_HALF_TOPIC"
                                     : "plain"),
            &m);
    }
    catch_up(s);
    for (int committed = 0; committed < 2; committed++) {
        asked a = {.to = INT64_MAX, .queue = -1, .committed = committed};
        seen_log(all, s);
        CHECK_EQ(40, all->count);
        check_filter(s, NULL, &a, all, wanted);
        a.topics[0] = "RMQ_SYS_TRANS_HALF_TOPIC";
        check_filter(s, NULL, &a, all, wanted);
        a.topics[1] = name;
        check_filter(s, NULL, &a, all, wanted);
        for (; all->batch_count > 0; all->batch_count--)
            ps_batch_free(all->batches[all->batch_count - 1]);
    }
    ps_scan scan = spec_of(topic_of(s, name), 0, 2, columns);
    seen_queue(all, s, scan.topic, 0);
    for (int32_t i = 0; i < all->count; i++) wanted[i] = &all->records[i];
    CHECK_EQ(4, all->count);
    check_stream(s, &scan, wanted, all->count);
    seen_free(all);
    free(wanted);
    ps_store_free(s);
    free(root);
}

/* The tags code of a delayed message is its deliver time: no tag may be filtered by it. */
static void test_schedule(void) {
    const int32_t columns[] = {PS_COL_TAGS};
    char *root = folder("schedule");
    ps_store *s = open_store(root, false);
    ps_topic *t = topic_of(s, "SCHEDULE_TOPIC_XXXX");
    for (int32_t i = 0; i < 20; i++) {
        const text *p = i % 2 ? &TEXT("TAGS\001TagA\002DELAY\0013\002")
                              : &TEXT("DELAY\0013\002TAGS\001TagB\002");
        ps_message m = {.body = "b",
                        .body_len = 1,
                        .queue_id = 2,
                        .properties = p->bytes,
                        .properties_len = p->len};
        put(s, t, &m);
    }
    catch_up(s);
    ps_scan scan = spec_of(t, 2, 1, columns);
    scan.tags = "TagA";
    scan.tags_len = 4;
    scan.tag_count = 1;
    CHECK_EQ(10, count_rows(s, &scan, NULL, NULL));
    ps_store_free(s);
    free(root);
}

/* A record with thousands of properties, all of the same few names, in both forms. */
static void test_many_properties(void) {
    const int32_t columns[] = {PS_COL_PROPERTIES, PS_COL_PROPERTIES_JSON, PS_COL_TAGS};
    char *root = folder("many"), *properties = malloc(32768), last[8][8];
    ps_store *s = open_store(root, false);
    int64_t n = 0;
    for (int i = 0; n < 32000; i++) {
        snprintf(last[i % 8], sizeof last[0], "%d", i);
        n += snprintf(properties + n, 32, "n%d\001%d\002", i % 8, i);
    }
    ps_message m = {.body = "b", .body_len = 1, .properties = properties, .properties_len = n};
    put(s, topic_of(s, "plain"), &m);
    catch_up(s);
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    ps_scan scan = spec_of(topic_of(s, "plain"), 0, 3, columns);
    if (stream_open(s, &scan, &stream, NULL) && CHECK_EQ(0, stream.get_next(&stream, &batch))) {
        const struct ArrowArray *entries = batch.children[0]->children[0];
        CHECK_EQ(8, entries->length);
        for (int64_t i = 0; i < entries->length; i++) {
            int64_t len;
            const char *name = value(entries->children[0], i, &len);
            CHECK(len == 2 && value_is(entries->children[1], i, last[name[1] - '0'],
                                       (int64_t)strlen(last[name[1] - '0'])));
        }
        CHECK(value_is(batch.children[2], 0, NULL, 0));
        batch.release(&batch);
    }
    stream.release(&stream);
    ps_store_free(s);
    free(properties);
    free(root);
}

static void test_utf8(void) {
    for (int round = 0; round < 20000; round++) {
        uint8_t raw[40], got[120];
        char want[120];
        int64_t n = check_below(40);
        for (int64_t i = 0; i < n; i++) {
            static const uint8_t likely[] = {'a',  0x80, 0xBF, 0xC2, 0xE0, 0xED,
                                             0xA0, 0x9F, 0xF0, 0xF4, 0x90, 0xC1};
            raw[i] = check_below(3) ? likely[check_below(12)] : (uint8_t)check_random();
        }
        int64_t len = mended(want, raw, n);
        CHECK_EQ(len, ps_utf8_mend(got, raw, n));
        CHECK_EQ(0, memcmp(want, got, (size_t)len));
        CHECK_EQ(len == n && memcmp(raw, got, (size_t)n) == 0, ps_utf8_valid(raw, n));
        CHECK(ps_utf8_valid(got, len));
        /* The mended text hashes like the original, so a filter by hash finds it too. */
        CHECK_EQ(ps_java_hash(0, raw, n), ps_java_hash(0, got, len));
    }
}

/* ---- threads ---- */

typedef struct handover {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct ArrowArray slots[8];
    int32_t count;
    bool done;
} handover;

static void *release_all(void *arg) {
    handover *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->done || h->count > 0) {
        if (h->count == 0) {
            pthread_cond_wait(&h->news, &h->lock);
            continue;
        }
        struct ArrowArray taken = h->slots[--h->count];
        pthread_mutex_unlock(&h->lock);
        taken.release(&taken);
        pthread_mutex_lock(&h->lock);
        pthread_cond_signal(&h->news);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Batches are read here and released elsewhere, while a writer appends and the queue grows. */
static void test_threads(void) {
    char *root = folder("threads");
    ps_store *s = open_store(root, false);
    handover h = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    struct ArrowArrayStream stream;
    ps_topic *t = topic_of(s, "plain");
    put_random(s, t, 0);
    catch_up(s);
    pthread_create(&thread, NULL, release_all, &h);
    for (int round = 0; round < 60; round++) {
        struct ArrowArray batch;
        int64_t rows = 0;
        ps_scan scan = spec_all(round % 2 ? t : NULL, 0);
        scan.batch_rows = 4;
        for (int i = 0; i < 10; i++) put_random(s, t, 0);
        catch_up(s);
        if (!stream_open(s, &scan, &stream, NULL)) break;
        while (stream.get_next(&stream, &batch) == 0 && batch.release != NULL) {
            rows += batch.length;
            pthread_mutex_lock(&h.lock);
            while (h.count == 8) pthread_cond_wait(&h.news, &h.lock);
            h.slots[h.count++] = batch;
            pthread_cond_signal(&h.news);
            pthread_mutex_unlock(&h.lock);
        }
        stream.release(&stream);
        CHECK_EQ(1 + 10 * (round + 1), rows);
    }
    pthread_mutex_lock(&h.lock);
    h.done = true;
    pthread_cond_broadcast(&h.news);
    pthread_mutex_unlock(&h.lock);
    pthread_join(thread, NULL);
    ps_store_free(s);
    free(root);
}

/* Another process cuts a mapped file off in the midst of a scan. */
static void check_cut(const char *root, const char *name, ps_scan *scan, ps_store *r) {
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    char path[4400], why[800];
    int code = 0;
    snprintf(path, sizeof path, "%s/%s", root, name);
    CHECK(count_rows(r, scan, NULL, why) > 100); /* all is mapped now */
    scan->batch_rows = 10;
    if (!stream_open(r, scan, &stream, NULL)) return;
    CHECK_EQ(0, stream.get_next(&stream, &batch));
    batch.release(&batch);
    CHECK_EQ(0, truncate(path, 0));
    while ((code = stream.get_next(&stream, &batch)) == 0 && batch.release != NULL)
        batch.release(&batch);
    CHECK_EQ(EIO, code);
    const char *text = stream.get_last_error(&stream);
    CHECK(text != NULL && strstr(text, "was truncated while it was read") && strstr(text, path));
    stream.release(&stream);
    scan->skip_damaged = 0; /* the zeros in its place are never taken for the file again */
    CHECK_EQ(-1, count_rows(r, scan, NULL, why));
}

static void test_cut(void) {
    const int32_t body[] = {PS_COL_BODY}, unit[] = {PS_COL_QUEUE_OFFSET};
    ps_error e = {0};
    CHECK_EQ(0, ps_sigbus_install(&e));
    CHECK_EQ(0, ps_sigbus_install(&e)); /* once is enough */
    for (int kind = 0; kind < 3; kind++) {
        char name[16];
        snprintf(name, sizeof name, "cut%d", kind);
        char *root = folder(name);
        fill(root, 3000);
        ps_store *r = open_store(root, true);
        ps_topic *t = topic_of(r, "plain");
        ps_scan scan = kind == 0   ? spec_of(NULL, 0, 1, body)
                       : kind == 1 ? spec_of(t, 1, 1, body)
                                   : spec_of(t, 1, 1, unit);
        scan.skip_damaged = kind == 1; /* stepping over damage does not step over this */
        check_cut(root,
                  kind < 2 ? "commitlog/00000000000000065536"
                           : "consumequeue/plain/1/00000000000000010000",
                  &scan, r);
        ps_store_free(r);
        free(root);
    }
}

int main(void) {
    check_begin();
    base = check_folder();
    char *root = folder("main"), *other_root = folder("other");
    const int64_t messages = 900;
    fill(root, messages);
    ps_store *s = open_store(root, true), *other = open_store(other_root, false);
    test_schema(s);
    test_columns(s);
    test_filters(s);
    test_ranges(s);
    test_arguments(s, other);
    test_given(s);
    ps_store_free(s);
    ps_store_free(other);
    test_lifetimes(root);
    test_closed(root);
    test_inflate();
    test_utf8();
    test_tail();
    test_kinds();
    test_schedule();
    test_many_properties();
    test_threads();
    test_damage(root, messages);
    test_hostile_fields(root, messages);
    test_hostile_units(root, messages);
    test_damage_report(root, messages);
    test_beyond_end(root);
    test_upstream_forms(root);
    test_missing(root, messages);
    test_cut();
    check_remove(base);
    free(root);
    free(other_root);
    free(base);
    return check_end("test_scan");
}
