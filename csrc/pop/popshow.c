/* What was popped as remoting clients read it: three lists and the records, those of a retry topic
 * under the name of the topic itself, with their handle. docs/internals/pop.md#handles,
 * docs/internals/format.md#record; upstream ExtraInfoUtil, MessageDecoder.encode. */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "format/property.h"
#include "pop/pop.h"
#include "core/lock.h"
#include "sends/sends.h"

#define ELEMENT_MAX 64 /* bytes that an element of the lists takes, beside its offsets */
#define NUMBER_MAX 24
#define HANDLE "POP_CK"

/* ---- lists ---- */

typedef struct shown_lists { /* startOffsetInfo, msgOffsetInfo, orderCountInfo */
    ps_slice starts, offsets, counts;
} shown_lists;

/* What two lists begin an element with: the kind of the topic and the queue. */
static uint8_t *put_place(uint8_t *to, const ps_pop_batch *b, bool first) {
    if (!first) *to++ = ';';
    to = ps_number_put(to, b->kind);
    *to++ = ' ';
    to = ps_number_put(to, b->queue_id);
    *to++ = ' ';
    return to;
}

/* Room for a handle. */
static int64_t handle_room(const ps_core *c) {
    return 8 * NUMBER_MAX + (int64_t)strlen(c->co_settings.se_broker);
}

/* How often messages of an ordered batch were popped before: each that was, and the least. */
static uint8_t *put_counts(uint8_t *to, const ps_pop_batch *b, const int32_t *times, bool first) {
    ps_batch_info info;
    ps_batch_get(b->batch, &info);
    int32_t least = INT32_MAX;
    for (int32_t k = 0; k < info.count; k++) {
        if (times[k] < least) least = times[k];
        if (times[k] == 0) continue;
        if (!first) *to++ = ';';
        first = false;
        to = ps_bytes_put(ps_number_put(to, b->kind), " qo", 3);
        to = ps_number_put(to, b->queue_id);
        *to++ = '%';
        to = ps_number_put(to, info.views[k].queue_offset);
        *to++ = ' ';
        to = ps_number_put(to, times[k]);
    }
    return ps_number_put(put_place(to, b, first), least);
}

static int put_lists(ps_core *c, const ps_pop_found *found, shown_lists *out) {
    ps_buffer *b = &ps_mine(c)->ca_pop.cp_text;
    b->len = 0;
    /* A handle, too, so that the lists stay where they are. */
    uint8_t *from =
        ps_buffer_room(b, PS_CHECK_POINT_MAX * (4 * ELEMENT_MAX + 2 * NUMBER_MAX) + handle_room(c));
    uint8_t *to = from;
    if (to == NULL) return PS_E_NO_MEMORY;
    for (int32_t i = 0; i < found->count; i++)
        to = ps_number_put(put_place(to, &found->all[i], i == 0), found->all[i].start);
    out->starts = (ps_slice){from, (int32_t)(to - from)};
    from = to;
    const int32_t *times = found->times;
    for (int32_t i = 0; found->ordered && i < found->count; i++) {
        ps_batch_info info;
        ps_batch_get(found->all[i].batch, &info);
        to = put_counts(to, &found->all[i], times, i == 0);
        times += info.count;
    }
    out->counts = (ps_slice){from, (int32_t)(to - from)};
    from = to;
    for (int32_t i = 0; i < found->count; i++) {
        ps_batch_info info;
        ps_batch_get(found->all[i].batch, &info);
        to = put_place(to, &found->all[i], i == 0);
        for (int32_t k = 0; k < info.count; k++) {
            if (k > 0) *to++ = ',';
            to = ps_number_put(to, info.views[k].queue_offset);
        }
    }
    out->offsets = (ps_slice){from, (int32_t)(to - from)};
    b->len = to - b->data;
    return 0;
}

/* ---- records ---- */

static bool is_shown_as_stored(const ps_core *c, const ps_pop_batch *b) {
    return b->kind == 0 || c->co_pop->po_rules.retry_as_stored;
}

/* The handle of one message; room for 7 numbers and the name of the broker. */
static int32_t put_handle(const ps_core *c, const ps_pop_found *found, const ps_pop_batch *b,
                          int64_t offset, uint8_t *to) {
    const int64_t before[] = {b->start, found->pop_ms, found->invisible_ms, found->revive_queue,
                              b->kind};
    uint8_t *begin = to;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        to = ps_number_put(to, before[i]);
        *to++ = ' ';
    }
    to = ps_bytes_put(to, c->co_settings.se_broker, (int64_t)strlen(c->co_settings.se_broker));
    *to++ = ' ';
    to = ps_number_put(to, b->queue_id);
    *to++ = ' ';
    return (int32_t)(ps_number_put(to, offset) - begin);
}

static bool is_handle(const ps_property *p) {
    return p->name_len == (int32_t)strlen(HANDLE) &&
           memcmp(p->name, HANDLE, (size_t)p->name_len) == 0;
}

/* The properties but for POP_CK, then that. `to` NULL: only how long they are. */
static int64_t put_properties(const uint8_t *props, int32_t len, const uint8_t *handle,
                              int32_t handle_len, uint8_t *to) {
    int64_t all = (int64_t)strlen(HANDLE) + handle_len + PS_PROPERTY_FIXED;
    ps_property p;
    for (int32_t at = 0; ps_property_next(props, len, &at, &p);) {
        if (is_handle(&p)) continue;
        all += p.name_len + p.value_len + PS_PROPERTY_FIXED;
        if (to == NULL) continue;
        to = ps_property_copy(to, &p);
    }
    if (to != NULL) ps_property_put(to, HANDLE, handle, handle_len);
    return all;
}

typedef struct shown_as { /* whose record it is, and under which name it goes */
    const ps_core *c;
    const ps_pop_found *found;
    const char *topic;
    int32_t topic_len;
    uint8_t *handle; /* room for one */
} shown_as;

/* The record with this topic and POP_CK; everything else is as it is stored. `to` NULL: only how
 * long it is. Properties that would be too long for their field stay as they are. */
static int64_t put_record(const shown_as *s, const ps_pop_batch *b, const ps_batch_info *info,
                          int32_t i, uint8_t *to) {
    const ps_view *v = &info->views[i];
    const uint8_t *record = info->segments[v->segment].map + v->start;
    const uint8_t *props = record + v->properties_start;
    int64_t body_end = v->body_end - v->start;
    bool wide = s->topic_len > PS_TOPIC_MAX_V1;
    int32_t handle_len = put_handle(s->c, s->found, b, v->queue_offset, s->handle);
    int64_t len = put_properties(props, v->properties_len, s->handle, handle_len, NULL);
    bool fits = len <= UINT16_MAX;
    if (!fits) len = v->properties_len;
    int64_t size = body_end + (wide ? 2 : 1) + s->topic_len + 2 + len;
    if (to == NULL) return size;
    uint8_t *begin = to;
    to = ps_bytes_put(to, record, body_end);
    be32_put(begin + PS_AT_SIZE, (uint32_t)size);
    be32_put(begin + PS_AT_MAGIC, wide ? PS_MAGIC_V2 : PS_MAGIC_V1);
    if (wide) *to++ = (uint8_t)(s->topic_len >> 8);
    *to++ = (uint8_t)s->topic_len;
    to = ps_bytes_put(to, s->topic, s->topic_len);
    be16_put(to, (uint16_t)len);
    to += 2;
    if (fits)
        put_properties(props, v->properties_len, s->handle, handle_len, to);
    else
        ps_bytes_put(to, props, len);
    return size;
}

/* All of them into `to`, or, when that is NULL, only how long they are. -1: no memory. */
static int64_t put_records(ps_core *c, const ps_pop_found *found, const char *topic,
                           int32_t topic_len, uint8_t *to) {
    shown_as s = {c, found, topic, topic_len,
                  ps_buffer_room(&ps_mine(c)->ca_pop.cp_text, handle_room(c))};
    int64_t all = 0;
    if (s.handle == NULL) return -1;
    for (int32_t i = 0; i < found->count; i++) {
        const ps_pop_batch *b = &found->all[i];
        ps_batch_info info;
        ps_batch_get(b->batch, &info);
        if (is_shown_as_stored(c, b)) {
            if (to != NULL) ps_batch_records(&info, to + all);
            all += info.bytes;
            continue;
        }
        for (int32_t k = 0; k < info.count; k++)
            all += put_record(&s, b, &info, k, to != NULL ? to + all : NULL);
    }
    return all;
}

/* ---- answers ---- */

int ps_pop_answer(const ps_pop_asker *who, const ps_pop_found *found, ps_slice topic) {
    ps_core *c = who->conn->cn_core;
    char numbers[4][24];
    ps_command reply;
    shown_lists shown;
    int64_t from = ps_mine(c)->ca_answer.an_out.len, size;
    bool some = found->count > 0;
    if (put_lists(c, found, &shown) < 0) return PS_E_NO_MEMORY;
    size = some ? put_records(c, found, NULL, topic.len, NULL) : 0;
    const ps_field fields[] = {
        {ps_slice_of("popTime"), ps_slice_of_number(found->pop_ms, numbers[0])},
        {ps_slice_of("invisibleTime"), ps_slice_of_number(found->invisible_ms, numbers[1])},
        {ps_slice_of("reviveQid"), ps_slice_of_number(found->revive_queue, numbers[2])},
        {ps_slice_of("restNum"), ps_slice_of_number(found->rest, numbers[3])},
        {ps_slice_of("startOffsetInfo"), shown.starts},
        {ps_slice_of("msgOffsetInfo"), shown.offsets},
        {ps_slice_of("orderCountInfo"), shown.counts}}; /* the last one of ordered groups alone */
    reply.serialize = who->serialize;
    reply.code = some           ? PS_CODE_SUCCESS
                 : found->full ? PS_CODE_POLLING_FULL
                                : PS_CODE_POLLING_TIMEOUT;
    reply.opaque = who->opaque;
    reply.remark = ps_slice_of(some ? "FOUND" : "NO_MESSAGE_IN_QUEUE");
    reply.field_count = (int32_t)(sizeof fields / sizeof *fields) - !found->ordered;
    memcpy(reply.fields, fields, sizeof fields);
    int code = size < 0 ? PS_E_NO_MEMORY : ps_core_answer(c, &reply, size);
    uint8_t *to = code == 0 ? ps_buffer_room(&ps_mine(c)->ca_answer.an_out, size) : NULL;
    if (to == NULL) { /* half an answer would make the rest of the connection unreadable */
        ps_mine(c)->ca_answer.an_out.len = from;
        return PS_E_NO_MEMORY;
    }
    if (some) put_records(c, found, (const char *)topic.data, topic.len, to);
    ps_mine(c)->ca_answer.an_out.len += size;
    const ps_answer a = {
        .serialize = who->serialize, .opaque = who->opaque, .end = found->end, .bare = true};
    return ps_sent_frame(who->conn, &a, from);
}

int ps_pop_answer_look(const ps_pop_asker *who, const ps_pop_found *found) {
    ps_command reply = {.serialize = who->serialize,
                        .opaque = who->opaque,
                        .remark = ps_slice_of("not set any response code"), /* upstream's word */
                        .field_count = 2};
    reply.fields[0] = (ps_field){ps_slice_of("hasMsg"),
                                 ps_slice_of(found->messages > 0 ? "true" : "false")};
    reply.fields[1] =
        (ps_field){ps_slice_of("pollingFull"), ps_slice_of(found->full ? "true" : "false")};
    return ps_core_answer(who->conn->cn_core, &reply, 0);
}
