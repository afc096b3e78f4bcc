/* See fields.h. */
#include "format/fields.h"

#include <string.h>

#include "base/bytes.h"

int32_t ps_fields_read(const uint8_t *in, int64_t from, int64_t len, int32_t checks,
                       ps_fields *out, int32_t room, int64_t *used) {
    int32_t count = 0;
    *used = from;
    while (count < room && *used < len) {
        ps_record r;
        ps_property tags;
        if (ps_record_check(in + *used, len - *used, -1, checks, &r) != PS_REC_OK) break;
        bool tagged = ps_property_find(r.properties, r.properties_len, "TAGS", 4, &tags);
        out[count++] = (ps_fields){
            .queue_offset = r.queue_offset, .physical_offset = r.physical_offset,
            .born_ms = r.born_timestamp, .store_ms = r.store_timestamp,
            .prepared_offset = r.prepared_transaction_offset,
            .at = *used, .end = *used + r.size,
            .host_at = r.store_host - in, .host_len = r.store_host_len,
            .body_at = r.body - in, .body_end = r.body - in + r.body_len,
            .topic_at = r.topic - in, .topic_len = r.topic_len,
            .properties_at = r.properties - in, .properties_len = r.properties_len,
            .tags_at = tagged ? tags.value - in : 0, .tags_len = tagged ? tags.value_len : -1,
            .queue_id = r.queue_id, .flag = r.flag, .sys_flag = r.sys_flag,
            .reconsume_times = r.reconsume_times, .body_crc = r.body_crc, .magic = r.magic,
        };
        *used += r.size;
    }
    return count;
}

int32_t ps_fields_check(const uint8_t *in, int64_t len, int32_t checks, ps_fields *out) {
    int64_t used;
    return ps_fields_read(in, 0, len, checks, out, 1, &used) == 1 && used == len ? 0 : -1;
}

int64_t ps_fields_size(const uint8_t *in, int64_t len) {
    if (len < PS_HEAD_LEN) return -1;
    uint32_t magic = be32_get(in + PS_AT_MAGIC);
    int32_t size = (int32_t)be32_get(in + PS_AT_SIZE);
    bool known = magic == PS_MAGIC_V1 || magic == PS_MAGIC_V2;
    return known && size >= PS_RECORD_FIXED ? size : -1;
}

int64_t ps_fields_blank_size(const uint8_t *in, int64_t len) {
    if (len < PS_HEAD_LEN || be32_get(in + PS_AT_MAGIC) != PS_MAGIC_BLANK) return -1;
    return be32_get(in + PS_AT_SIZE);
}

int32_t ps_fields_body_at(const uint8_t *in, int64_t len) {
    if (len < PS_AT_BORN_TIMESTAMP) return -1;
    return ps_body_at((int32_t)be32_get(in + PS_AT_SYS_FLAG));
}

void ps_fields_frame(int32_t body_len, uint32_t body_crc, int64_t physical, int64_t time_ms,
                     const uint8_t *topic, int32_t topic_len, uint8_t *head, uint8_t *tail) {
    int32_t body_at = ps_body_at(0);
    uint8_t *middle = head + PS_AT_BORN_HOST + PS_HOST_V4;
    memset(head, 0, (size_t)body_at);
    be32_put(head + PS_AT_SIZE, (uint32_t)(PS_RECORD_FIXED + body_len + topic_len));
    be32_put(head + PS_AT_MAGIC, PS_MAGIC_V1);
    be32_put(head + PS_AT_BODY_CRC, body_crc & 0x7FFFFFFF);
    be64_put(head + PS_AT_PHYSICAL_OFFSET, (uint64_t)physical);
    be32_put(head + PS_AT_SYS_FLAG, PS_SYS_TX_ROLLBACK);
    be64_put(head + PS_AT_BORN_TIMESTAMP, (uint64_t)time_ms);
    be64_put(middle + PS_MIDDLE_STORE_TIMESTAMP, (uint64_t)time_ms);
    be32_put(head + body_at - PS_LATE_BODY + PS_LATE_BODY_LEN, (uint32_t)body_len);
    tail[0] = (uint8_t)topic_len;
    memcpy(tail + 1, topic, (size_t)topic_len);
    be16_put(tail + 1 + topic_len, 0);
}
