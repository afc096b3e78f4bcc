/* The properties of a stored message. What the broker itself says of a message replaces what a
 * client, or an earlier life of the message, said under the same name: upstream keeps properties in
 * a map, so that a name stands once in its records. A plain message whose client said none of that
 * is copied as it came. */
#include "store/placement.h"

#include <string.h>

#include "format/messagetype.h"
#include "format/property.h"

/* Names, separators and numbers that a placement adds, at most. */
#define ADDED_MAX 128

bool ps_text_is(const uint8_t *data, int64_t len, const char *text) {
    return len == (int64_t)strlen(text) && memcmp(data, text, (size_t)len) == 0;
}

static bool is_one_of(const ps_property *p, const char *const *names) {
    for (; *names != NULL; names++)
        if (ps_text_is(p->name, p->name_len, *names)) return true;
    return false;
}

/* Whether a list of names, or of encoded properties, has one of this name. */
static bool is_named_in(const ps_property *p, ps_text list, uint8_t end) {
    for (int64_t at = 0; at < list.len;) {
        const uint8_t *from = list.data + at;
        const uint8_t *separator = memchr(from, PS_NAME_SEPARATOR, (size_t)(list.len - at));
        if (separator == NULL) return false;
        if (separator - from == p->name_len && memcmp(from, p->name, (size_t)p->name_len) == 0)
            return true;
        const uint8_t *next = memchr(separator, end, (size_t)(list.data + list.len - separator));
        if (next == NULL) return false;
        at = next + 1 - list.data;
    }
    return false;
}

/* A half says these by itself; a message that was a half or was checked before may still bring
 * them. */
static const char *const OF_HALVES[] = {
    "REAL_TOPIC", "REAL_QID", "__transactionId__", "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET", NULL};
/* A level comes before a time of its own, upstream HookUtils.handleScheduleMessage. */
static const char *const OF_DELAYED[] = {
    "DELAY", "REAL_TOPIC", "REAL_QID", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
    NULL};
/* A record with TIMER_ROLL_TIMES takes the place of another one: only the broker may say so. */
static const char *const OF_TIMED[] = {"REAL_TOPIC", "REAL_QID", "TIMER_ROLL_TIMES", NULL};

static bool waits_elsewhere(const ps_placement *p) {
    return p->half || p->level > 0 || p->timed;
}

static bool is_dropped(const ps_placement *p, const ps_property *each) {
    return is_named_in(each, p->drop, PS_NAME_SEPARATOR) ||
           is_named_in(each, p->add, PS_PROPERTY_SEPARATOR) ||
           (p->relit && is_named_in(each, p->light, PS_PROPERTY_SEPARATOR)) ||
           (p->restamped && is_named_in(each, p->stamp, PS_PROPERTY_SEPARATOR)) ||
           (p->pop && ps_text_is(each->name, each->name_len, "POP_CK")) ||
           (p->unranked && ps_text_is(each->name, each->name_len, PS_PROPERTY_PRIORITY)) ||
           (p->half && is_one_of(each, OF_HALVES)) ||
           (!p->half && p->level > 0 && is_one_of(each, OF_DELAYED)) ||
           (!p->half && p->timed && is_one_of(each, OF_TIMED));
}

static uint8_t *put_kept(const ps_placement *p, uint8_t *to) {
    ps_property each;
    int32_t at = 0;
    while (ps_property_next(p->properties.data, (int32_t)p->properties.len, &at, &each)) {
        if (is_dropped(p, &each)) continue;
        to = ps_property_copy(to, &each);
    }
    return to;
}

int64_t ps_place_room(const ps_placement *p) {
    return p->properties.len + 1 + p->add.len + p->light.len + p->stamp.len + p->topic.len +
           p->uniq.len + ADDED_MAX;
}

int64_t ps_place_properties(const ps_placement *p, uint8_t *to) {
    uint8_t *start = to;
    bool plain =
        p->drop.len == 0 && p->add.len == 0 && !p->relit && !p->restamped && !p->pop &&
        !p->unranked;
    if (plain && !waits_elsewhere(p)) {
        to = ps_bytes_put(to, p->properties.data, p->properties.len);
        bool more = p->light.len > 0 || p->stamp.len > 0;
        if (to > start && to[-1] != PS_PROPERTY_SEPARATOR && more)
            to = ps_property_end(to);
    } else {
        to = put_kept(p, to);
    }
    to = ps_bytes_put(to, p->add.data, p->add.len);
    to = ps_bytes_put(to, p->light.data, p->light.len);
    to = ps_bytes_put(to, p->stamp.data, p->stamp.len);
    if (p->half && p->uniq.len > 0)
        to = ps_property_put(to, "__transactionId__", p->uniq.data, p->uniq.len);
    if (!p->half && p->level > 0)
        to = ps_property_put_number(to, "DELAY", p->level);
    if (!p->half && p->timed) to = ps_property_put_number(to, "TIMER_OUT_MS", p->out_ms);
    if (waits_elsewhere(p)) {
        to = ps_property_put(to, "REAL_TOPIC", p->topic.data, p->topic.len);
        to = ps_property_put_number(to, "REAL_QID", p->queue_id);
    }
    return to - start;
}

bool ps_real_place_said(const ps_property *name, const ps_property *queue, ps_text *topic,
                        int32_t *queue_id) {
    int64_t id = 0;
    for (int32_t i = 0; i < queue->value_len; i++) {
        if (queue->value[i] < '0' || queue->value[i] > '9') return false;
        id = id * 10 + (queue->value[i] - '0');
        if (id > PS_QUEUE_ID_MAX) return false;
    }
    *topic = (ps_text){name->value, name->value_len};
    *queue_id = (int32_t)id;
    return name->value_len > 0 && queue->value_len > 0;
}

bool ps_real_place(const uint8_t *properties, int32_t len, ps_text *topic, int32_t *queue_id) {
    ps_property name, queue;
    return ps_property_find(properties, len, "REAL_TOPIC", 10, &name) &&
           ps_property_find(properties, len, "REAL_QID", 8, &queue) &&
           ps_real_place_said(&name, &queue, topic, queue_id);
}
