/* What a scan must look at: columns, filters and range, settled once when it is opened, so that the
 * loops of scan.c ask only flags. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "format/record.h"
#include "scan/scan.h"
#include "filter/sql92.h"

#define BATCH_ROWS 8192
#define BATCH_ROWS_MAX (1 << 24)
#define BATCH_BYTES (4LL << 20)
/* Offsets in a batch have 32 bits, and JSON escapes can make six bytes of one. */
#define BATCH_BYTES_MAX (256LL << 20)
#define BROKER_NAME_MAX 32767

/* ---- names ---- */

static int by_name(const void *a, const void *b) {
    const name *y = b;
    return name_order(a, y->nm_text, y->nm_len);
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Splits `count` names joined by 0x00. */
static int names_split(names *ns, const char *what, const char *text, int32_t len, int32_t count,
                       ps_error *e) {
    int32_t at = 0, found = 0;
    if (text == NULL || count == 0) return 0;
    if (count < 0 || len < 0 || count > len + 1)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "%s: %d names cannot take %d bytes", what,
                       count, len);
    ns->ns_text = malloc((size_t)len + 1);
    ns->ns_items = malloc((size_t)count * sizeof *ns->ns_items);
    if (ns->ns_text == NULL || ns->ns_items == NULL)
        return ps_no_memory(e, NULL, "no memory for the scan");
    memcpy(ns->ns_text, text, (size_t)len);
    ns->ns_text[len] = 0;
    for (; at <= len && found < count; found++) {
        int32_t n = (int32_t)strlen(ns->ns_text + at);
        ns->ns_items[found] = (name){.nm_text = ns->ns_text + at, .nm_len = n};
        at += n + 1;
    }
    if (found != count || at != len + 1)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "%s: not %d names joined by 0x00", what,
                       count);
    ns->ns_count = count;
    qsort(ns->ns_items, (size_t)count, sizeof *ns->ns_items, by_name);
    return 0;
}

/* ---- the plan ---- */

int ps_scanner_check(const ps_store *s, const ps_scan *spec, ps_error *e) {
    if (spec->column_count < 0 || spec->column_count > PS_COLUMNS_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "column_count %d is not between 0 and %d",
                       spec->column_count, PS_COLUMNS_MAX);
    for (int32_t i = 0; i < spec->column_count; i++)
        if (spec->columns[i] < 0 || spec->columns[i] >= PS_COL_COUNT)
            return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                           "there is no column %d: columns go from 0 to %d", spec->columns[i],
                           PS_COL_COUNT - 1);
    if (spec->from_at < 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "from_at %lld is negative",
                       (long long)spec->from_at);
    if (spec->batch_rows < 0 || spec->batch_bytes < 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "batch_rows %d or batch_bytes %lld is negative", spec->batch_rows,
                       (long long)spec->batch_bytes);
    if (spec->broker_name_len < 0 || spec->broker_name_len > BROKER_NAME_MAX ||
        (spec->broker_name_len > 0 && spec->broker_name == NULL))
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "broker_name_len %d is not between 0 and %d",
                       spec->broker_name_len, BROKER_NAME_MAX);
    if ((spec->more == NULL) != (s != NULL) || (spec->more != NULL && spec->topic != NULL))
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "a scan reads either a store or records without store and topic");
    if (spec->topic != NULL && spec->topic->tp_store != s)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "the topic belongs to another store");
    return 0;
}

/* What the columns need of a row, and how many bytes a row takes besides its strings. */
static void columns_plan(scanner *sn) {
    const ps_scan *spec = &sn->sn_spec;
    bool log = spec->topic == NULL;
    for (int32_t i = 0; i < spec->column_count; i++) {
        int32_t kind = spec->columns[i], bytes = 8;
        bool unit = kind == PS_COL_BROKER_NAME || kind == PS_COL_QUEUE_OFFSET ||
                    kind == PS_COL_STORE_SIZE || kind == PS_COL_COMMIT_LOG_OFFSET ||
                    (!log && (kind == PS_COL_TOPIC || kind == PS_COL_QUEUE_ID));
        sn->sn_layout.ly_columns[i] = kind;
        sn->sn_layout.ly_nullable[i] = spec->nullable[i] != 0;
        sn->sn_record |= !unit;
        switch (kind) {
        case PS_COL_BODY:
            sn->sn_body_columns++;
            break;
        case PS_COL_TOPIC:
            bytes += log ? 0 : spec->topic->tp_len;
            sn->sn_topic_columns += log;
            sn->sn_tail |= log;
            break;
        case PS_COL_BROKER_NAME:
            bytes += spec->broker_name_len;
            break;
        case PS_COL_PROPERTIES:
        case PS_COL_PROPERTIES_JSON:
            sn->sn_property_columns++;
            sn->sn_tail = true;
            break;
        case PS_COL_ENVELOPE:
            bytes += 120;
            sn->sn_property_columns++;
            sn->sn_topic_columns++;
            sn->sn_tail = true;
            break;
        case PS_COL_MSG_ID:
            bytes += 32; /* fall through */
        case PS_COL_TAGS:
        case PS_COL_KEYS:
        case PS_COL_LITE_TOPIC:
            sn->sn_find = true;
            break;
        case PS_COL_BORN_HOST:
        case PS_COL_STORE_HOST:
            bytes += 24;
            break;
        default:
            break;
        }
        sn->sn_fixed_bytes += bytes;
    }
    sn->sn_body = sn->sn_body_columns > 0;
    sn->sn_inflate = sn->sn_body && spec->inflate != NULL;
}

/* The log keeps the messages of a topic that was deleted and made again, whoever deleted it: those
 * of now begin with the first one of its queues. A first unit that is damaged says nothing. */
static int64_t first_of_queue(ps_store *s, ps_queue *q, int64_t end) {
    int64_t min = atomic_load(&q->cq_min);
    ps_unit first;
    if (ps_queue_peek(q, min, &first, NULL) <= 0) return end;
    return ps_recover_confirms(s, q, min, &first) ? first.physical
                                                  : atomic_load(&q->cq_topic->tp_gone_below);
}

/* What is not in the queues yet comes after all that is. */
static int lives_plan(scanner *sn, ps_error *e) {
    ps_store *s = sn->sn_store;
    ps_queue **queues;
    int64_t end = atomic_load(&s->st_dispatcher.ds_end);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    if (queues == NULL)
        return ps_no_memory(e, NULL, "no memory for the scan");
    for (int32_t i = 0; i < sn->sn_topics.ns_count; i++) {
        name *nm = &sn->sn_topics.ns_items[i];
        const ps_topic *t = ps_topic_find(&s->st_topics, nm->nm_text, nm->nm_len);
        nm->nm_from = t != NULL ? end : 0;
        for (int32_t k = 0; t != NULL && k < n; k++) {
            int64_t first = queues[k]->cq_topic == t ? first_of_queue(s, queues[k], end) : end;
            if (first < nm->nm_from) nm->nm_from = first;
        }
    }
    free(queues);
    return 0;
}

static int filters_plan(scanner *sn, ps_error *e) {
    const ps_scan *spec = &sn->sn_spec;
    int code = names_split(&sn->sn_tags, "tags", spec->tags, spec->tags_len, spec->tag_count, e);
    if (code == 0 && spec->topic == NULL)
        code = names_split(&sn->sn_topics, "topics", spec->topics, spec->topics_len,
                           spec->topic_count, e);
    if (code == 0 && sn->sn_topics.ns_count > 0 && sn->sn_store != NULL) code = lives_plan(sn, e);
    if (code < 0) return code;
    int32_t count = sn->sn_tags.ns_count;
    if (count > 0) {
        sn->sn_tag_hashes = malloc((size_t)count * sizeof *sn->sn_tag_hashes);
        if (sn->sn_tag_hashes == NULL) return ps_no_memory(e, NULL, "no memory for the scan");
        for (int32_t i = 0; i < count; i++)
            sn->sn_tag_hashes[i] = ps_java_hash(0, (const uint8_t *)sn->sn_tags.ns_items[i].nm_text,
                                                sn->sn_tags.ns_items[i].nm_len);
        qsort(sn->sn_tag_hashes, (size_t)count, sizeof *sn->sn_tag_hashes, by_number);
    }
    sn->sn_hashed = count > 0 && spec->topic != NULL && !spec->topic->tp_schedule;
    sn->sn_timed = spec->store_time_min != 0 || spec->store_time_max != INT64_MAX;
    if (spec->sql != NULL) sn->sn_sql = ps_sql92_ref(spec->sql);
    sn->sn_find |= count > 0;
    sn->sn_tail |= sn->sn_find || sn->sn_topics.ns_count > 0 || sn->sn_sql != NULL;
    sn->sn_record |= sn->sn_tail || sn->sn_timed || spec->check_crc;
    /* A log scan finds the next record by this one's size, so that it always checks all of it. */
    if (spec->topic == NULL) sn->sn_record = sn->sn_tail = true;
    sn->sn_filter = sn->sn_find || sn->sn_sql != NULL || spec->topic == NULL;
    return 0;
}

/* The range as it is now. Queues first: what their units point to is then below the end of the
 * log. */
static int range_plan(scanner *sn, ps_error *e) {
    const ps_scan *spec = &sn->sn_spec;
    ps_store *s = sn->sn_store;
    int64_t end = INT64_MAX;
    if (spec->more != NULL) return 0;
    if (spec->topic != NULL) {
        sn->sn_queue = spec->queue_id < 0 || spec->queue_id > PS_QUEUE_ID_MAX
                           ? NULL
                           : ps_topic_queue(spec->topic, spec->queue_id);
        if (sn->sn_queue == NULL)
            return ps_fail(e, PS_E_NOT_FOUND, 0, -1, NULL, "topic %s has no queue %d",
                           spec->topic->tp_name, spec->queue_id);
        end = atomic_load_explicit(&sn->sn_queue->cq_max, memory_order_acquire);
    }
    sn->sn_log_end = atomic_load_explicit(&s->st_log.lg_end, memory_order_acquire);
    sn->sn_log_min = atomic_load(&s->st_log.lg_min);
    if (spec->topic == NULL) end = sn->sn_log_end;
    sn->sn_at = spec->from_at;
    sn->sn_before = -1;
    sn->sn_end = spec->to_at < end ? spec->to_at : end;
    return 0;
}

int ps_scanner_plan(scanner *sn, ps_error *e) {
    const ps_scan *spec = &sn->sn_spec;
    ps_arrow_layout *ly = &sn->sn_layout;
    int32_t rows = spec->batch_rows ? spec->batch_rows : BATCH_ROWS;
    int64_t bytes = spec->batch_bytes ? spec->batch_bytes : BATCH_BYTES;
    columns_plan(sn);
    int code = filters_plan(sn, e);
    if (code == 0) code = range_plan(sn, e);
    if (code < 0) return code;
    ly->ly_count = spec->column_count;
    ly->ly_rows = rows < BATCH_ROWS_MAX ? rows : BATCH_ROWS_MAX;
    ly->ly_bytes = bytes < BATCH_BYTES_MAX ? bytes : BATCH_BYTES_MAX;
    ly->ly_queue_id = spec->queue_id;
    ly->ly_topic = sn->sn_topic != NULL ? sn->sn_topic->tp_name : NULL;
    ly->ly_topic_len = sn->sn_topic != NULL ? sn->sn_topic->tp_len : 0;
    ly->ly_broker_name = spec->broker_name != NULL ? spec->broker_name : "";
    ly->ly_broker_name_len = spec->broker_name_len;
    sn->sn_pool = ps_arrow_pool_new(ly);
    ly->ly_topic = ly->ly_broker_name = NULL; /* the pool has its own; the caller's may go */
    if (sn->sn_pool == NULL) return ps_no_memory(e, NULL, "no memory for the scan");
    return 0;
}
