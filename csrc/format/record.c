/* Records of the commit log: decoding, encoding, hashes. See record.h and layout.h; upstream: also
 * common/.../topic/TopicValidator. */
#include "format/record.h"

#include "base/bytes.h"
#include "base/crc.h"
#include "base/error.h"
#include "format/property.h"
#include "format/utf8.h"

#ifdef PS_DEBUG
#include <assert.h>
#define ps_check(x) assert(x)
#else
#define ps_check(x) ((void)0) /* The library never aborts; the C tests define PS_DEBUG. */
#endif

enum {
    SIZE_SLACK = 65536, /* a record may be this much larger than maxMessageSize */
    SIGN_MASK = 0x7FFFFFFF,
    CRC_DIGITS = 10
};

static const char CRC_NAME[] = "__CRC32#";
#define TEXT_LEN(s) ((int32_t)sizeof(s) - 1)

/* ---- decoding ---- */

ps_rec_outcome ps_record_decode(const uint8_t *p, int64_t avail, ps_record *out) {
    if (avail < PS_HEAD_LEN) return PS_REC_SHORT;
    int32_t size = (int32_t)be32_get(p + PS_AT_SIZE);
    uint32_t magic = be32_get(p + PS_AT_MAGIC);
    out->start = p;
    out->size = size;
    out->magic = magic;
    int32_t v2 = magic == PS_MAGIC_V2;
    if (!v2 && magic != PS_MAGIC_V1) {
        /* A blank is known by its magic alone: how far it says to reach is not ours to read. */
        if (magic == PS_MAGIC_BLANK) return PS_REC_BLANK;
        return (size | (int32_t)magic) == 0 ? PS_REC_END : PS_REC_MAGIC;
    }
    if (size > avail) return PS_REC_SHORT;
    if (size < PS_RECORD_FIXED) return PS_REC_SIZE;
    ps_fence_once_valid();
    int32_t sys_flag = (int32_t)be32_get(p + PS_AT_SYS_FLAG);
    int32_t born_len = ps_born_host_len(sys_flag);
    int32_t store_len = ps_store_host_len(sys_flag);
    int32_t left = size - PS_RECORD_FIXED - v2 - (born_len - PS_HOST_V4) - (store_len - PS_HOST_V4);
    if (left < 0) return PS_REC_SIZE;
    const uint8_t *middle = p + PS_AT_BORN_HOST + born_len;
    const uint8_t *late = middle + PS_MIDDLE_STORE_HOST + store_len;

    /* `left` is what body, topic and properties share; each takes its part, nothing may remain. */
    int32_t body_len = (int32_t)be32_get(late + PS_LATE_BODY_LEN);
    if (body_len < 0 || body_len > left) return PS_REC_SIZE;
    left -= body_len;
    const uint8_t *topic = late + PS_LATE_BODY + body_len;
    int32_t topic_len = v2 ? (int16_t)be16_get(topic) : (int8_t)topic[0];
    topic += 1 + v2;
    if (topic_len < 0 || topic_len > left) return PS_REC_SIZE;
    left -= topic_len;
    const uint8_t *properties = topic + topic_len;
    int32_t properties_len = (int16_t)be16_get(properties);
    if (properties_len != left) return PS_REC_SIZE;
    ps_check(properties + 2 + properties_len == p + size);

    out->body_crc = (int32_t)be32_get(p + PS_AT_BODY_CRC);
    out->queue_id = (int32_t)be32_get(p + PS_AT_QUEUE_ID);
    out->flag = (int32_t)be32_get(p + PS_AT_FLAG);
    out->queue_offset = (int64_t)be64_get(p + PS_AT_QUEUE_OFFSET);
    out->physical_offset = (int64_t)be64_get(p + PS_AT_PHYSICAL_OFFSET);
    out->sys_flag = sys_flag;
    out->born_timestamp = (int64_t)be64_get(p + PS_AT_BORN_TIMESTAMP);
    out->born_host = p + PS_AT_BORN_HOST;
    out->born_host_len = born_len;
    out->store_timestamp = (int64_t)be64_get(middle + PS_MIDDLE_STORE_TIMESTAMP);
    out->store_host = middle + PS_MIDDLE_STORE_HOST;
    out->store_host_len = store_len;
    out->reconsume_times = (int32_t)be32_get(late + PS_LATE_RECONSUME_TIMES);
    out->prepared_transaction_offset = (int64_t)be64_get(late + PS_LATE_PREPARED_OFFSET);
    out->body = late + PS_LATE_BODY;
    out->body_len = body_len;
    out->topic = topic;
    out->topic_len = topic_len;
    out->properties = properties + 2;
    out->properties_len = properties_len;
    return PS_REC_OK;
}

static void crc_digits_put(uint8_t *p, uint32_t value) {
    for (int i = 0; i < CRC_DIGITS; i++) {
        p[i] = (uint8_t)('0' + value % 10);
        value /= 10;
    }
}

/* Where the properties CRC stands in the record, or NULL when the record carries none. */
static const uint8_t *prop_crc_find(const ps_record *r) {
    if (r->properties_len < PS_PROP_CRC_LEN) return NULL;
    const uint8_t *at = r->start + r->size - PS_PROP_CRC_LEN;
    bool whole = r->properties_len == PS_PROP_CRC_LEN || at[-1] == PS_PROPERTY_SEPARATOR;
    bool named = memcmp(at, CRC_NAME, TEXT_LEN(CRC_NAME)) == 0;
    bool ended = at[TEXT_LEN(CRC_NAME)] == PS_NAME_SEPARATOR;
    return whole && named && ended && at[PS_PROP_CRC_LEN - 1] == PS_PROPERTY_SEPARATOR ? at : NULL;
}

static bool prop_crc_good(const ps_record *r, const uint8_t *at) {
    uint8_t digits[CRC_DIGITS];
    crc_digits_put(digits, ps_crc32(0, r->start, (size_t)(at - r->start)) & SIGN_MASK);
    return memcmp(at + TEXT_LEN(CRC_NAME) + 1, digits, CRC_DIGITS) == 0;
}

ps_rec_outcome ps_record_check(const uint8_t *p, int64_t avail, int64_t place, int checks,
                               ps_record *out) {
    ps_rec_outcome o = ps_record_decode(p, avail, out);
    if (o != PS_REC_OK) return o;
    if (checks & (PS_CHECK_PROP_CRC | PS_CHECK_PROP_IF)) {
        const uint8_t *at = prop_crc_find(out);
        if (at == NULL && checks & PS_CHECK_PROP_CRC) return PS_REC_CRC;
        if (at != NULL && !prop_crc_good(out, at)) return PS_REC_CRC;
    }
    /* Upstream does not look at the sum of an empty body, so neither may we refuse one for it. */
    if (checks & PS_CHECK_BODY_CRC && !(checks & PS_CHECK_PROP_CRC) && out->body_len > 0) {
        uint32_t crc = ps_crc32(0, out->body, (size_t)out->body_len) & SIGN_MASK;
        if ((int32_t)crc != out->body_crc) return PS_REC_CRC;
    }
    if (place != -1 && out->physical_offset != place) return PS_REC_PLACE;
    return PS_REC_OK;
}

const char *ps_rec_outcome_name(ps_rec_outcome o) {
    switch (o) {
    case PS_REC_OK: return "ok";
    case PS_REC_BLANK: return "blank";
    case PS_REC_END: return "end";
    case PS_REC_SHORT: return "short";
    case PS_REC_MAGIC: return "bad magic";
    case PS_REC_SIZE: return "bad size";
    case PS_REC_CRC: return "bad crc";
    case PS_REC_PLACE: return "bad place";
    }
    return "unknown";
}

/* ---- properties ---- */

bool ps_property_next(const uint8_t *props, int32_t len, int32_t *at, ps_property *out) {
    while (*at < len) {
        const uint8_t *name = props + *at;
        int32_t room = len - *at;
        const uint8_t *end = memchr(name, PS_PROPERTY_SEPARATOR, (size_t)room);
        int32_t part = end != NULL ? (int32_t)(end - name) : room;
        *at += end != NULL ? part + 1 : part;
        const uint8_t *split = memchr(name, PS_NAME_SEPARATOR, (size_t)part);
        /* Like upstream's parser, drop what has no name or no value. */
        if (split == NULL || split == name || split == name + part - 1) continue;
        out->name = name;
        out->name_len = (int32_t)(split - name);
        out->value = split + 1;
        out->value_len = part - out->name_len - 1;
        return true;
    }
    return false;
}

bool ps_property_find(const uint8_t *props, int32_t len, const char *name, int32_t name_len,
                      ps_property *out) {
    bool found = false;
    for (int32_t at = 0; at < len;) {
        const uint8_t *start = props + at;
        int32_t room = len - at;
        const uint8_t *end = memchr(start, PS_PROPERTY_SEPARATOR, (size_t)room);
        int32_t part = end != NULL ? (int32_t)(end - start) : room;
        at += part + 1;
        /* A name holds no separator, so that equal bytes before one are the whole name. */
        if (part > name_len + 1 && start[name_len] == PS_NAME_SEPARATOR && name_len > 0 &&
            memcmp(start, name, (size_t)name_len) == 0) {
            out->name = start;
            out->name_len = name_len;
            out->value = start + name_len + 1;
            out->value_len = part - name_len - 1;
            found = true;
        }
    }
    return found;
}

/* ---- hashes ---- */

#define POWER_2 (31u * 31u)
#define POWER_4 (POWER_2 * POWER_2)

int32_t ps_java_hash(int32_t h, const uint8_t *utf8, int64_t len) {
    uint32_t u = (uint32_t)h;
    const uint8_t *p = utf8, *end = utf8 + len;
    while (p < end) {
        /* Four characters a step keep only one multiplication on the chain from h to h. */
        while (end - p >= 4 && !(be32_get(p) & 0x80808080u)) {
            u = u * POWER_4 + (p[0] * (POWER_2 * 31u) + p[1] * POWER_2 + p[2] * 31u + p[3]);
            p += 4;
        }
        while (p < end && *p < 0x80) u = u * 31u + *p++;
        if (p == end) break;
        bool good;
        int64_t size = ps_utf8_step(p, end, &good);
        uint32_t code = good ? ps_utf8_code(p, size) : 0xFFFD;
        p += size;
        if (code >= 0x10000) {
            u = u * 31u + (0xD7C0 + (code >> 10));
            code = 0xDC00 + (code & 0x3FF);
        }
        u = u * 31u + code;
    }
    return (int32_t)u;
}

int32_t ps_key_hash(int32_t java_hash) {
    if (java_hash >= 0) return java_hash;
    return java_hash == INT32_MIN ? 0 : -java_hash;
}

/* Java's Integer.parseInt of ASCII digits; false when it would throw. */
static bool int_parse(const uint8_t *p, int32_t len, int32_t *out) {
    bool minus = len > 0 && p[0] == '-';
    int32_t at = minus || (len > 0 && p[0] == '+');
    int64_t value = 0;
    if (at == len) return false;
    for (; at < len; at++) {
        if (p[at] < '0' || p[at] > '9') return false;
        value = value * 10 + (p[at] - '0');
        if (value > (int64_t)INT32_MAX + minus) return false;
    }
    *out = (int32_t)(minus ? -value : value);
    return true;
}

bool ps_record_has_unit(const ps_record *r) {
    int tx = r->sys_flag & PS_SYS_TX_MASK;
    return tx == PS_SYS_TX_NONE || tx == PS_SYS_TX_COMMIT;
}

bool ps_record_names_queue(const ps_record *r) {
    size_t len = (size_t)r->topic_len;
    return r->queue_id >= 0 && r->queue_id <= PS_QUEUE_ID_MAX && len > 0 && r->topic[0] != '.' &&
           memchr(r->topic, '/', len) == NULL && memchr(r->topic, 0, len) == NULL;
}

/* A level that is not a number makes upstream throw; here it means no delay, so that the message
 * stays reachable. */
int32_t ps_delay_asked(const uint8_t *text, int32_t len) {
    int32_t level = 0;
    return int_parse(text, len, &level) && level > 0 ? level : 0;
}

int32_t ps_delay_level(const ps_levels *levels, int32_t asked) {
    return asked < levels->count ? asked : levels->count;
}

int64_t ps_record_tags_code(const ps_record *r, const ps_levels *levels) {
    ps_property found;
    if (levels != NULL && PS_IS(r->topic, r->topic_len, PS_SCHEDULE_TOPIC) &&
        ps_property_find(r->properties, r->properties_len, "DELAY", 5, &found)) {
        int32_t level = ps_delay_level(levels, ps_delay_asked(found.value, found.value_len));
        /* A hostile timestamp may wrap, as it does in Java. */
        if (level > 0) {
            return (int64_t)((uint64_t)r->store_timestamp + (uint64_t)levels->delay_ms[level - 1]);
        }
    }
    if (!ps_property_find(r->properties, r->properties_len, "TAGS", 4, &found)) return 0;
    return ps_java_hash(0, found.value, found.value_len);
}

/* ---- encoding ---- */

static int refuse_record(const char **why, int code, const char *text) {
    if (why != NULL) *why = text;
    return code;
}

static bool has_separator(const uint8_t *p, int64_t len) {
    uint8_t found = 0;
    for (int64_t i = 0; i < len; i++) found |= (uint8_t)(p[i] - 1) < 2;
    return found;
}

#define EACH_BYTE 0x0101010101010101u

/* High bit of each byte of w that equals c, exactly (no borrow runs between bytes). */
static inline uint64_t bytes_equal(uint64_t w, uint64_t c) {
    uint64_t x = w ^ (c * EACH_BYTE);
    return ~(((x & 0x7F * EACH_BYTE) + 0x7F * EACH_BYTE) | x) & 0x80 * EACH_BYTE;
}

/* Whether separators alternate from 0x01 on and no name is empty; a value may be, as upstream's
 * encoder writes those too. Eight bytes a step, and then only the separators among them. */
static bool properties_good(const uint8_t *p, int64_t len) {
    uint8_t expected = PS_NAME_SEPARATOR;
    int64_t after = 0; /* where the part after the last separator starts */
    for (int64_t at = 0; at < len; at += 8) {
        uint64_t w = 0;
        if (len - at >= 8) {
            memcpy(&w, p + at, 8);
        } else {
            memcpy(&w, p + at, (size_t)(len - at));
        }
        uint64_t hits = bytes_equal(w, PS_NAME_SEPARATOR) | bytes_equal(w, PS_PROPERTY_SEPARATOR);
        for (; hits != 0; hits &= hits - 1) {
            int64_t place = at + (__builtin_ctzll(hits) >> 3);
            if (p[place] != expected) return false;
            if (expected == PS_NAME_SEPARATOR && place == after) return false;
            expected ^= PS_NAME_SEPARATOR ^ PS_PROPERTY_SEPARATOR;
            after = place + 1;
        }
    }
    return expected == PS_PROPERTY_SEPARATOR || after == len;
}

/* The length that already encoded properties have in the record, where they always end in 0x02. */
static inline int32_t encoded_len(const uint8_t *p, int64_t len) {
    return len == 0 ? 0 : (int32_t)len + (p[len - 1] != PS_PROPERTY_SEPARATOR);
}

/* Sets properties_total. */
static int properties_measure(ps_draft *d, const char **why) {
    if (d->tags == NULL) d->tags_len = 0;
    if (d->keys == NULL) d->keys_len = 0;
    if (d->properties == NULL) d->properties_len = 0;
    if (d->extra == NULL) d->extra_len = 0;
    if ((d->tags_len | d->keys_len | d->properties_len | d->extra_len) < 0) {
        return refuse_record(why, PS_E_ARGUMENT, "a length is negative");
    }
    /* Each alone first: the sum below cannot overflow then, and no pass over huge input is made. */
    if (d->tags_len > PS_PROPERTIES_MAX || d->keys_len > PS_PROPERTIES_MAX ||
        d->properties_len > PS_PROPERTIES_MAX || d->extra_len > PS_PROPERTIES_MAX) {
        return refuse_record(why, PS_E_PROPERTIES_SIZE_EXCEEDED,
                             "the properties exceed 32767 bytes");
    }
    int32_t total = encoded_len(d->properties, d->properties_len);
    total += encoded_len(d->extra, d->extra_len);
    if (d->tags_len > 0) total += TEXT_LEN("TAGS") + PS_PROPERTY_FIXED + (int32_t)d->tags_len;
    if (d->keys_len > 0) total += TEXT_LEN("KEYS") + PS_PROPERTY_FIXED + (int32_t)d->keys_len;
    if (d->prop_crc) total += PS_PROP_CRC_LEN;
    if (total > PS_PROPERTIES_MAX) {
        return refuse_record(why, PS_E_PROPERTIES_SIZE_EXCEEDED,
                             "the properties exceed 32767 bytes");
    }
    if (has_separator(d->tags, d->tags_len) || has_separator(d->keys, d->keys_len)) {
        return refuse_record(why, PS_E_PROPERTIES_ILLEGAL,
                             "tags or keys contain a separator (0x01 or 0x02)");
    }
    if (!properties_good(d->properties, d->properties_len) ||
        !properties_good(d->extra, d->extra_len)) {
        return refuse_record(why, PS_E_PROPERTIES_ILLEGAL,
                             "the encoded properties are not a sequence of NAME 0x01 VALUE 0x02");
    }
    d->properties_total = total;
    return 0;
}

int ps_draft_measure(ps_draft *d, int64_t max_message_size, const char **why) {
    if (d->body == NULL) return refuse_record(why, PS_E_MESSAGE_ILLEGAL, "the message has no body");
    if (d->body_len < 0) return refuse_record(why, PS_E_ARGUMENT, "a length is negative");
    if (d->body_len > max_message_size) {
        return refuse_record(why, PS_E_MESSAGE_ILLEGAL, "the body is longer than maxMessageSize");
    }
    if (d->topic == NULL || d->topic_len <= 0) {
        return refuse_record(why, PS_E_TOPIC_ILLEGAL, "the topic is empty");
    }
    if (d->topic_len > (d->long_topic_v2 ? PS_TOPIC_MAX : PS_TOPIC_MAX_V1)) {
        return refuse_record(why, PS_E_TOPIC_ILLEGAL, "the topic is too long for a record");
    }
    if ((d->born_host_len != PS_HOST_V4 && d->born_host_len != PS_HOST_V6) ||
        (d->store_host_len != PS_HOST_V4 && d->store_host_len != PS_HOST_V6)) {
        return refuse_record(why, PS_E_ARGUMENT, "a host address is neither 8 nor 20 bytes long");
    }
    int code = properties_measure(d, why);
    if (code != 0) return code;
    d->v2 = d->topic_len > PS_TOPIC_MAX_V1;
    int64_t size = PS_RECORD_FIXED + d->v2 + d->body_len + d->topic_len + d->properties_total;
    size += d->born_host_len - PS_HOST_V4 + d->store_host_len - PS_HOST_V4;
    if (size - SIZE_SLACK > max_message_size || size > INT32_MAX) {
        return refuse_record(why, PS_E_MESSAGE_ILLEGAL,
                             "the record is longer than maxMessageSize + 65536");
    }
    d->size = (int32_t)size;
    d->body_crc = 0;
    if (d->body_len > 0) {
        d->body_crc = (int32_t)(ps_crc32(0, d->body, (size_t)d->body_len) & SIGN_MASK);
    }
    return 0;
}

static inline uint8_t *host_put(uint8_t *w, const uint8_t *host, int32_t len) {
    if (len == PS_HOST_V4) {
        memcpy(w, host, PS_HOST_V4);
    } else {
        memcpy(w, host, PS_HOST_V6);
    }
    return w + len;
}

static void prop_crc_put(uint8_t *p, int32_t size, const uint8_t head[PS_HEAD_LEN]) {
    uint8_t *w = p + size - PS_PROP_CRC_LEN;
    uint32_t crc = ps_crc32(0, head, PS_HEAD_LEN);
    crc = ps_crc32(crc, p + PS_HEAD_LEN, (size_t)(size - PS_HEAD_LEN - PS_PROP_CRC_LEN));
    w = ps_property_begin(w, CRC_NAME, TEXT_LEN(CRC_NAME));
    crc_digits_put(w, crc & SIGN_MASK);
    ps_property_end(w + CRC_DIGITS);
}

int ps_record_move(uint8_t *p, int64_t size, int64_t place) {
    ps_record r;
    if (ps_record_decode(p, size, &r) != PS_REC_OK || r.size != size) return -1;
    bool summed = prop_crc_find(&r) != NULL;
    be64_put(p + PS_AT_PHYSICAL_OFFSET, (uint64_t)place);
    if (summed) prop_crc_put(p, r.size, p);
    return 0;
}

void ps_draft_write(const ps_draft *d, uint8_t *p, int64_t queue_offset, int64_t physical_offset,
                    int64_t store_timestamp) {
    int32_t sys_flag = d->sys_flag & ~(PS_SYS_BORN_V6 | PS_SYS_STORE_V6);
    if (d->born_host_len == PS_HOST_V6) sys_flag |= PS_SYS_BORN_V6;
    if (d->store_host_len == PS_HOST_V6) sys_flag |= PS_SYS_STORE_V6;
    uint8_t head[PS_HEAD_LEN];
    be32_put(head + PS_AT_SIZE, (uint32_t)d->size);
    be32_put(head + PS_AT_MAGIC, d->v2 ? PS_MAGIC_V2 : PS_MAGIC_V1);
    be32_put(p + PS_AT_BODY_CRC, (uint32_t)d->body_crc);
    be32_put(p + PS_AT_QUEUE_ID, (uint32_t)d->queue_id);
    be32_put(p + PS_AT_FLAG, (uint32_t)d->flag);
    be64_put(p + PS_AT_QUEUE_OFFSET, (uint64_t)queue_offset);
    be64_put(p + PS_AT_PHYSICAL_OFFSET, (uint64_t)physical_offset);
    be32_put(p + PS_AT_SYS_FLAG, (uint32_t)sys_flag);
    be64_put(p + PS_AT_BORN_TIMESTAMP, (uint64_t)d->born_timestamp);
    uint8_t *w = host_put(p + PS_AT_BORN_HOST, d->born_host, d->born_host_len);
    be64_put(w + PS_MIDDLE_STORE_TIMESTAMP, (uint64_t)store_timestamp);
    w = host_put(w + PS_MIDDLE_STORE_HOST, d->store_host, d->store_host_len);
    be32_put(w + PS_LATE_RECONSUME_TIMES, (uint32_t)d->reconsume_times);
    be64_put(w + PS_LATE_PREPARED_OFFSET, (uint64_t)d->prepared_transaction_offset);
    be32_put(w + PS_LATE_BODY_LEN, (uint32_t)d->body_len);
    w = ps_bytes_put(w + PS_LATE_BODY, d->body, d->body_len);
    if (d->v2) *w++ = (uint8_t)(d->topic_len >> 8);
    *w++ = (uint8_t)d->topic_len;
    w = ps_bytes_put(w, d->topic, d->topic_len);
    be16_put(w, (uint16_t)d->properties_total);
    w += 2;
    if (d->tags_len > 0) w = ps_property_put(w, "TAGS", d->tags, d->tags_len);
    if (d->keys_len > 0) w = ps_property_put(w, "KEYS", d->keys, d->keys_len);
    w = ps_properties_copy(w, d->properties, d->properties_len);
    w = ps_properties_copy(w, d->extra, d->extra_len);
    ps_check(w + (d->prop_crc ? PS_PROP_CRC_LEN : 0) == p + d->size);
    if (d->prop_crc) prop_crc_put(p, d->size, head);
    /* Size and magic come last: another process that follows the end of the log through its own
     * mapping sees nothing written here until all of the record is. */
    ps_fence_before_valid();
    memcpy(p, head, PS_HEAD_LEN);
}

void ps_blank_write(uint8_t *p, int32_t remaining) {
    be32_put(p + PS_AT_SIZE, (uint32_t)remaining);
    be32_put(p + PS_AT_MAGIC, PS_MAGIC_BLANK);
}

/* ---- a client's batch ---- */

int ps_batch_item_next(const uint8_t *payload, int64_t len, int64_t *at, ps_batch_item *out) {
    if (*at == len) return 0;
    if (*at < 0 || len - *at < PS_ITEM_FIXED) return PS_E_MESSAGE_ILLEGAL;
    const uint8_t *p = payload + *at;
    int64_t left = len - *at - PS_ITEM_FIXED;
    int32_t body_len = (int32_t)be32_get(p + PS_ITEM_BODY_LEN);
    if (body_len < 0 || body_len > left) return PS_E_MESSAGE_ILLEGAL;
    left -= body_len;
    const uint8_t *properties = p + PS_ITEM_BODY + body_len;
    int32_t properties_len = (int16_t)be16_get(properties);
    if (properties_len < 0 || properties_len > left) return PS_E_MESSAGE_ILLEGAL;
    out->flag = (int32_t)be32_get(p + PS_ITEM_FLAG);
    out->body = p + PS_ITEM_BODY;
    out->body_len = body_len;
    out->properties = properties + 2;
    out->properties_len = properties_len;
    *at += PS_ITEM_FIXED + (int64_t)body_len + properties_len;
    return 1;
}

/* ---- names and ids ---- */

static bool topic_char(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '%' ||
           c == '|' || c == '_' || c == '-';
}

int ps_topic_check(const uint8_t *topic, int64_t len, const char **why) {
    if (topic == NULL || len <= 0)
        return refuse_record(why, PS_E_TOPIC_ILLEGAL, "the topic is empty");
    if (len > PS_TOPIC_MAX) {
        return refuse_record(why, PS_E_TOPIC_ILLEGAL, "the topic is longer than 255 bytes");
    }
    bool retry = len > TEXT_LEN(PS_RETRY_PREFIX) && PS_BEGINS(topic, len, PS_RETRY_PREFIX);
    if (len > PS_TOPIC_MAX_V1 && !retry) {
        return refuse_record(why, PS_E_TOPIC_ILLEGAL, "the topic is longer than 127 bytes");
    }
    for (int64_t i = 0; i < len; i++) {
        /* The plus sign divides group and topic in retry topics of POP (KeyBuilder, version 2). */
        if (!topic_char(topic[i]) && !(retry && topic[i] == '+')) {
            return refuse_record(
                why, PS_E_TOPIC_ILLEGAL,
                "the topic has a character other than letters, digits and % | _ -");
        }
    }
    return 0;
}

static char *hex_put(char *w, const uint8_t *p, int32_t len) {
    static const char digits[] = "0123456789ABCDEF";
    for (int32_t i = 0; i < len; i++) {
        *w++ = digits[p[i] >> 4];
        *w++ = digits[p[i] & 15];
    }
    return w;
}

int ps_offset_msg_id(const uint8_t *store_host, int32_t store_host_len, int64_t physical_offset,
                     char out[57]) {
    uint8_t place[8];
    be64_put(place, (uint64_t)physical_offset);
    int32_t host_len = store_host_len == PS_HOST_V6 ? PS_HOST_V6 : PS_HOST_V4;
    char *w = hex_put(out, store_host, host_len);
    w = hex_put(w, place, (int32_t)sizeof place);
    *w = 0;
    return (int)(w - out);
}
