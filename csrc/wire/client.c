/* See client.h. What is encoded here once a message is what clients do a hundred thousand times a
 * second; everything else of theirs goes through packed.h. */
#include "wire/client.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc.h"
#include "base/error.h"
#include "format/record.h"

enum {
    AT_HEADER_WORD = 4,
    AT_OPAQUE = 8 + 5,
    AT_REMARK_LEN = 8 + 13,
    AT_FIELDS_LEN = 8 + 17, /* of a header without remark */
    AT_FIELDS = 8 + 21,
    BASE_MIN = AT_FIELDS,
    CHANGING_MAX = 4 * (7 + PS_DIGITS_MAX), /* fields f, g, h, i but for the bytes of i */
    SIGNED_MAX = 2 + 9 + 4 + PS_SIGNATURE_LEN,
    HEADER_MAX = 0xFFFFFF,
};

/* ---- sends ---- */

static uint8_t *field_put(uint8_t *to, char name, const void *value, int32_t len) {
    be16_put(to, 1);
    to[2] = (uint8_t)name;
    be32_put(to + 3, (uint32_t)len);
    memcpy(to + 7, value, (size_t)len);
    return to + 7 + len;
}

static uint8_t *number_put(uint8_t *to, char name, int64_t number) {
    char digits[PS_DIGITS_MAX], *end = digits + PS_DIGITS_MAX;
    const char *begin = ps_digits_before(end, number);
    return field_put(to, name, begin, (int32_t)(end - begin));
}

/* Appends the signature over the fields in [fields, end). NULL: they cannot be signed. */
static uint8_t *signature_put(ps_signer *signer, const uint8_t *fields, uint8_t *end,
                              ps_slice body) {
    static const char name[] = "Signature";
    ps_field found[PS_FIELDS_MAX];
    char text[PS_SIGNATURE_LEN];
    int32_t count = 0;
    for (const uint8_t *at = fields; at < end; count++) {
        if (count == PS_FIELDS_MAX || end - at < 6) return NULL;
        ps_slice *n = &found[count].name, *v = &found[count].value;
        *n = (ps_slice){at + 2, be16_get(at)};
        if (end - at < 6 + n->len) return NULL;
        at += 2 + n->len;
        *v = (ps_slice){at + 4, (int32_t)be32_get(at)};
        at += 4;
        if (v->len < 0 || v->len > end - at) return NULL;
        at += v->len;
    }
    if (!ps_signer_sign(signer, found, count, body, text)) return NULL;
    be16_put(end, sizeof name - 1);
    memcpy(end + 2, name, sizeof name - 1);
    end += 2 + sizeof name - 1;
    be32_put(end, PS_SIGNATURE_LEN);
    memcpy(end + 4, text, PS_SIGNATURE_LEN);
    return end + 4 + PS_SIGNATURE_LEN;
}

int64_t ps_client_send(const uint8_t *base, int64_t base_len, int32_t opaque, int32_t sys_flag,
                       int32_t flag, int64_t born_ms, const uint8_t *properties,
                       int32_t properties_len, const uint8_t *body, int64_t body_len,
                       ps_signer *signer, uint8_t *out, int64_t room, ps_error *error) {
    if (base_len < BASE_MIN || base[AT_HEADER_WORD] != PS_SERIALIZE_ROCKETMQ ||
        be32_get(base + AT_REMARK_LEN) != 0)
        return ps_fail(error, PS_E_FRAME, 0, -1, NULL, "not a request with a binary header");
    if (properties_len < 0 || body_len < 0 || body_len > INT32_MAX - HEADER_MAX ||
        base_len + properties_len > HEADER_MAX - CHANGING_MAX - SIGNED_MAX)
        return ps_fail(error, PS_E_FRAME, 0, -1, NULL, "header too large, bytes: %lld",
                       (long long)(base_len + properties_len));
    int64_t most = base_len + CHANGING_MAX + SIGNED_MAX + properties_len + body_len;
    if (most > room) return most;
    memcpy(out, base, (size_t)base_len);
    uint8_t *to = out + base_len;
    to = number_put(to, 'f', sys_flag);
    to = number_put(to, 'g', born_ms);
    to = number_put(to, 'h', flag);
    to = field_put(to, 'i', properties, properties_len);
    if (signer != NULL)
        to = signature_put(signer, out + AT_FIELDS, to, (ps_slice){body, (int32_t)body_len});
    if (to == NULL) return ps_fail(error, PS_E_FRAME, 0, -1, NULL, "fields cannot be signed");
    uint32_t header = (uint32_t)(to - out - 8);
    be32_put(out, header + 4 + (uint32_t)body_len);
    be32_put(out + AT_HEADER_WORD, header | (uint32_t)PS_SERIALIZE_ROCKETMQ << 24);
    be32_put(out + AT_OPAQUE, (uint32_t)opaque);
    be32_put(out + AT_FIELDS_LEN, header - 21);
    memcpy(to, body, (size_t)body_len);
    return to + body_len - out;
}

int64_t ps_client_batch(const uint8_t *bodies, const int32_t *body_lens, const int32_t *flags,
                        const uint8_t *properties, const int32_t *properties_lens, int32_t count,
                        uint8_t *out, int64_t room, ps_error *error) {
    uint8_t *to = out, *end = out + room;
    for (int32_t i = 0; i < count; i++) {
        int64_t body = body_lens[i], props = properties_lens[i];
        if (body < 0 || props < 0 || props > PS_PROPERTIES_MAX ||
            end - to < ps_batch_item_size(body, props))
            return ps_fail(error, PS_E_ARGUMENT, 0, -1, NULL,
                           "inconsistent lengths in item %d of a batch", i);
        to = ps_batch_item_put(to, flags[i], bodies, body, props);
        memcpy(to, properties, (size_t)props);
        bodies += body;
        properties += props;
        to += props;
    }
    return to - out;
}

/* ---- answers ---- */

static bool number_read(ps_slice text, int64_t *out) {
    uint64_t value = 0;
    if (text.data == NULL || text.len < 1 || text.len > 18) return false;
    for (int32_t i = 0; i < text.len; i++) {
        uint32_t digit = (uint32_t)text.data[i] - '0';
        if (digit > 9) return false;
        value = value * 10 + digit;
    }
    *out = (int64_t)value;
    return true;
}

/* Whether the text stands in [in, in + len): one with escapes was written elsewhere. */
static bool place_of(ps_slice text, const uint8_t *in, int64_t len, int64_t *at, int64_t *size) {
    *at = *size = 0;
    if (text.data == NULL || text.data < in || text.data >= in + len) return text.data == NULL;
    *at = text.data - in;
    *size = text.len;
    return true;
}

static void read_sent(const ps_command *c, const uint8_t *in, int64_t len, ps_answered *out) {
    int64_t queue;
    ps_slice ids = ps_command_field(c, "msgId");
    /* What is recalled by a handle is for whoever reads the whole command. */
    out->sent = ids.data != NULL && ps_command_field(c, "recallHandle").data == NULL &&
                number_read(ps_command_field(c, "queueId"), &queue) && queue <= INT32_MAX &&
                number_read(ps_command_field(c, "queueOffset"), &out->queue_offset) &&
                place_of(ids, in, len, &out->ids_at, &out->ids_len) &&
                place_of(ps_command_field(c, "transactionId"), in, len, &out->tx_at, &out->tx_len);
    if (out->sent) out->queue_id = (int32_t)queue;
}

int32_t ps_client_answers(const uint8_t *in, int64_t len, int64_t frame_max, uint8_t *scratch,
                          ps_answered *out, int32_t room, int64_t *used, int64_t *wanted,
                          ps_error *error) {
    ps_command c;
    int32_t count = 0;
    *used = *wanted = 0;
    while (count < room && *used < len) {
        int64_t took = ps_command_decode(in + *used, len - *used, frame_max, scratch, &c, wanted,
                                         error);
        if (took < 0) return (int32_t)took;
        if (took == 0) break;
        bool answer = c.flag & PS_FLAG_RESPONSE;
        out[count] = (ps_answered){.opaque = answer ? c.opaque : 0, .code = c.code, .at = *used,
                                   .size = took};
        if (answer && c.body.len == 0) read_sent(&c, in, len, &out[count]);
        count++;
        *used += took;
        *wanted = 0;
    }
    return count;
}

/* ---- records ---- */

int32_t ps_client_other_topic(const uint8_t *in, const ps_fields *rows, int32_t count,
                              const char *topic, int32_t topic_len) {
    int32_t i = 0;
    while (i < count && rows[i].topic_len == topic_len &&
           memcmp(in + rows[i].topic_at, topic, (size_t)topic_len) == 0)
        i++;
    return i;
}

/* ---- several messages in a record ---- */

static bool holds_batch(const ps_fields *row) {
    const int32_t both = PS_SYS_INNER_BATCH | PS_SYS_NEED_UNWRAP;
    return (row->sys_flag & both) == both;
}

int32_t ps_client_batches(const ps_fields *rows, int32_t count) {
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++) found += holds_batch(&rows[i]);
    return found;
}

/* What the record says holds for each message but what its item says. */
static ps_fields row_of_item(const uint8_t *in, const ps_fields *batch, int64_t number,
                             const ps_batch_item *item) {
    ps_fields row = *batch;
    ps_property tags;
    bool tagged = ps_property_find(item->properties, item->properties_len, "TAGS", 4, &tags);
    row.sys_flag &= ~(PS_SYS_INNER_BATCH | PS_SYS_NEED_UNWRAP);
    row.queue_offset += number;
    row.flag = item->flag;
    row.body_at = item->body - in;
    row.body_end = row.body_at + item->body_len;
    row.body_crc = (int32_t)(ps_crc32(0, item->body, (size_t)item->body_len) & 0x7FFFFFFF);
    row.properties_at = item->properties - in;
    row.properties_len = item->properties_len;
    row.tags_at = tagged ? tags.value - in : 0;
    row.tags_len = tagged ? tags.value_len : -1;
    return row;
}

int32_t ps_client_unpack(const uint8_t *in, const ps_fields *rows, int32_t count, ps_fields *out,
                         int32_t room) {
    int32_t made = 0;
    for (int32_t i = 0; i < count; i++) {
        const ps_fields *row = &rows[i];
        if (!holds_batch(row)) {
            if (made < room) out[made] = *row;
            made++;
            continue;
        }
        if ((row->sys_flag & PS_SYS_COMPRESSED) != 0) return -1;
        ps_batch_item item;
        int64_t at = 0, number = 0, len = row->body_end - row->body_at;
        int more;
        while ((more = ps_batch_item_next(in + row->body_at, len, &at, &item)) > 0) {
            if (made < room) out[made] = row_of_item(in, row, number, &item);
            number++;
            made++;
        }
        if (more < 0) return -1;
    }
    return made;
}
