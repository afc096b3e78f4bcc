/* Queues of light messages. See multi.h. */
#include "format/multi.h"

#include <string.h>

#include "format/property.h"

#define DIGITS_MAX 18 /* of PS_MULTI_OFFSET_MAX */

bool ps_name_is_lmq(const uint8_t *topic, int32_t len) {
    return len > PS_LMQ_PREFIX_LEN && memcmp(topic, PS_LMQ_PREFIX, PS_LMQ_PREFIX_LEN) == 0;
}

uint8_t *ps_lite_queue_put(uint8_t *to, const uint8_t *topic, int32_t topic_len,
                           const uint8_t *name, int32_t len) {
    to = ps_bytes_put(to, PS_LMQ_PREFIX "$", sizeof PS_LMQ_PREFIX);
    to = ps_bytes_put(to, topic, topic_len);
    *to++ = '$';
    return ps_bytes_put(to, name, len);
}

bool ps_multi_takes(const uint8_t *topic, int32_t len) {
    return !PS_BEGINS(topic, len, PS_RETRY_PREFIX) && !PS_BEGINS(topic, len, PS_DLQ_PREFIX) &&
           !PS_BEGINS(topic, len, PS_SYSTEM_PREFIX) && !PS_IS(topic, len, PS_SCHEDULE_TOPIC) &&
           !PS_IS(topic, len, PS_HALF_TOPIC);
}

/* Empty parts at the end do not count, as with Java's String.split. */
static int32_t count_commas(const uint8_t *at, const uint8_t *end) {
    int32_t n = 0;
    while (end > at && end[-1] == ',') end--;
    while ((at = memchr(at, ',', (size_t)(end - at))) != NULL) {
        at++;
        n++;
    }
    return n;
}

bool ps_multi_of(const ps_record *r, ps_multi *out) {
    static const char names[] = PS_PROPERTY_MULTI_DISPATCH, offsets[] = "INNER_MULTI_QUEUE_OFFSET";
    ps_property p;
    if (r->properties_len == 0 || !ps_multi_takes(r->topic, r->topic_len)) return false;
    if (!ps_property_find(r->properties, r->properties_len, names, sizeof names - 1, &p))
        return false;
    out->mu_name = p.value;
    out->mu_names_end = p.value + p.value_len;
    if (!ps_property_find(r->properties, r->properties_len, offsets, sizeof offsets - 1, &p))
        return false;
    out->mu_offset = p.value;
    out->mu_offsets_end = p.value + p.value_len;
    out->mu_as = *r;
    out->mu_as.queue_id = 0;
    out->mu_skipped = count_commas(out->mu_name, out->mu_names_end) !=
                      count_commas(out->mu_offset, out->mu_offsets_end);
    if (out->mu_skipped) out->mu_name = out->mu_names_end;
    return true;
}

/* The part up to the next ',', and *at after it. */
static const uint8_t *part_end(const uint8_t **at, const uint8_t *end) {
    const uint8_t *stop = memchr(*at, ',', (size_t)(end - *at));
    if (stop == NULL) stop = end;
    *at = stop < end ? stop + 1 : end;
    return stop;
}

bool ps_multi_next(ps_multi *m) {
    while (m->mu_name < m->mu_names_end && m->mu_offset < m->mu_offsets_end) {
        const uint8_t *name = m->mu_name, *digit = m->mu_offset;
        const uint8_t *name_end = part_end(&m->mu_name, m->mu_names_end);
        const uint8_t *digits_end = part_end(&m->mu_offset, m->mu_offsets_end);
        int64_t offset = 0;
        m->mu_as.topic = name;
        m->mu_as.topic_len = (int32_t)(name_end - name);
        if (!ps_name_is_lmq(name, m->mu_as.topic_len) || m->mu_as.topic_len > PS_TOPIC_MAX ||
            !ps_record_names_queue(&m->mu_as)) {
            m->mu_skipped++;
            continue;
        }
        if (digit == digits_end || digits_end - digit > DIGITS_MAX) return false;
        for (; digit < digits_end; digit++) {
            if (*digit < '0' || *digit > '9') return false;
            offset = offset * 10 + (*digit - '0');
        }
        m->mu_as.queue_offset = offset;
        return true;
    }
    return false;
}
