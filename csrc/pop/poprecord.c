/* Records of check points and acknowledgements, as upstream writes them but for the order of their
 * properties: JSON without blanks, members by name, then a timer. docs/internals/pop.md#records;
 * upstream PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "format/property.h"
#include "wire/json.h"
#include "pop/pop.h"
#include "core/lock.h"

#define NUMBER_MAX 24
#define WORDS_MAX 256 /* bytes of what stands in every record, numbers and offsets aside */

int ps_core_pop_set(ps_core *c, const char *revive_topic, int32_t len, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pop_state *x = ps_pop_state_of(c);
    if (x == NULL) return ps_no_memory(e, NULL, "no memory for POP");
    x->po_revive = ps_topic_open(c->co_store, revive_topic, len, 1, e);
    return x->po_revive != NULL ? 0 : e->code;
}

void ps_core_pop_journal(ps_core *c, int fd) {
    PS_CORE_HELD(c);
    ps_pop_state *x = c->co_pop;
    if (x == NULL) return;
    x->po_aside = fd >= 0;
    x->po_journal_fd = fd;
}

int64_t ps_core_pop_end(const ps_core *c) {
    return c->co_pop != NULL ? c->co_pop->po_end : 0;
}

/* ---- writing ---- */

static uint8_t *put_named(uint8_t *to, const char *name, int64_t value) {
    return ps_number_put(ps_text_put(to, name), value);
}

static uint8_t *put_quoted(uint8_t *to, const char *name, const char *text, int64_t len) {
    to = ps_text_put(to, name);
    *to++ = '"';
    to = ps_json_write(to, (const uint8_t *)text, len);
    *to++ = '"';
    return to;
}

/* Bytes that a record may need; each text stands in it twice, once perhaps escaped. */
static int64_t room_of(const ps_core *c, const ps_check_point_row *r) {
    int64_t broker = (int64_t)strlen(c->co_settings.se_broker);
    return WORDS_MAX + NUMBER_MAX * (PS_CHECK_POINT_MAX + 16) +
           ps_json_measure((const uint8_t *)r->key.topic, r->key.topic_len) + r->key.topic_len +
           ps_json_measure((const uint8_t *)r->key.group, r->key.group_len) + r->key.group_len +
           ps_json_measure((const uint8_t *)c->co_settings.se_broker, broker) + broker;
}

/* UNIQ_KEY; at: the offset that it names. */
static uint8_t *put_unique(const ps_core *c, uint8_t *to, const ps_check_point_row *r, int64_t at,
                           const char *tag) {
    memcpy(to, r->key.topic, (size_t)r->key.topic_len);
    to = put_named(to + r->key.topic_len, "@", r->key.queue_id);
    to = ps_text_put(put_named(to, "@", at), "@");
    memcpy(to, r->key.group, (size_t)r->key.group_len);
    to = put_named(to + r->key.group_len, "@", r->key.pop_ms);
    to = ps_text_put(ps_text_put(to, "@"), c->co_settings.se_broker);
    return ps_text_put(ps_text_put(to, "@"), tag);
}

typedef struct record {
    uint8_t *body, *properties, *end; /* one after the other */
    int64_t deliver_ms;
    const char *tag;
} record;

/* After the body, the properties. */
static void put_properties(const ps_core *c, record *x, const ps_check_point_row *r, int64_t at) {
    uint8_t *to = ps_property_put_number(x->properties, "TIMER_DELIVER_MS", x->deliver_ms);
    to = ps_property_begin(to, "UNIQ_KEY", 8);
    to = put_unique(c, to, r, at, strcmp(x->tag, "ck") == 0 ? "ck" : "ack");
    x->end = ps_property_put(ps_property_end(to), "TAGS", x->tag, (int64_t)strlen(x->tag));
}

/* The line takes the place of the properties, for which there is room. A torn line is one that was
 * never answered: it ends where the next one begins. */
static int put_aside(const ps_pop_state *pops, record *x, int32_t revive_queue, int64_t *end,
                     ps_error *e) {
    char head[3 * NUMBER_MAX];
    uint8_t *to = ps_text_put((uint8_t *)head, x->tag);
    to = ps_number_put(ps_text_put(to, " "), revive_queue);
    to = ps_text_put(ps_number_put(ps_text_put(to, " "), x->deliver_ms), " ");
    int64_t head_len = to - (uint8_t *)head, body_len = x->properties - x->body;
    memmove(x->body + head_len, x->body, (size_t)body_len);
    memcpy(x->body, head, (size_t)head_len);
    x->body[head_len + body_len] = '\n';
    int64_t len = head_len + body_len + 1;
    int64_t wrote = write(pops->po_journal_fd, x->body, (size_t)len);
    if (wrote != len) {
        int err = wrote < 0 ? errno : ENOSPC;
        if (wrote > 0 && write(pops->po_journal_fd, "\n", 1) < 0) err = errno;
        return ps_fail(e, ps_errno_code(err), err, -1, NULL,
                       "cannot write what was popped while the master is away");
    }
    *end = PS_POP_ASIDE;
    return 0;
}

static int put_record(ps_core *c, record *x, int32_t revive_queue, int64_t *end, ps_error *e) {
    ps_pop_state *pops = c->co_pop;
    ps_put_result put;
    if (pops->po_aside) return put_aside(pops, x, revive_queue, end, e);
    const ps_message m = {.body = x->body,
                          .body_len = x->properties - x->body,
                          .properties = x->properties,
                          .properties_len = x->end - x->properties,
                          .queue_id = revive_queue,
                          .timed = 1};
    put.error.code = 0;
    int code = ps_put_message(c->co_store, pops->po_revive, &m, &put);
    if (code < 0) {
        if (e != NULL) *e = put.error;
        return code;
    }
    *end = pops->po_end = put.physical_offset + put.size;
    return 0;
}

/* Room for the body; NULL: no memory, or nowhere to put it. */
static uint8_t *begin_body(ps_core *c, const ps_check_point_row *r, ps_error *e) {
    ps_pop_state *x = c->co_pop;
    if (x == NULL || x->po_revive == NULL) {
        ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "POP has no revive topic");
        return NULL;
    }
    ps_mine(c)->ca_pop.cp_text.len = 0;
    uint8_t *to = ps_buffer_room(&ps_mine(c)->ca_pop.cp_text, room_of(c, r));
    if (to == NULL) ps_no_memory(e, NULL, "no memory for a check point");
    return to;
}

static int code_of(const ps_error *e) {
    return e != NULL && e->code < 0 ? e->code : PS_E_NO_MEMORY;
}

/* ---- the two ---- */

static int put_check_point(ps_core *c, const ps_check_point_row *r, int64_t *end, ps_error *e) {
    int64_t back_ms = r->key.pop_ms + r->invisible_ms;
    record x = {.body = begin_body(c, r, e), .deliver_ms = back_ms - PS_POP_LEAD_MS, .tag = "ck"};
    if (x.body == NULL) return code_of(e);
    const char *broker = c->co_settings.se_broker;
    uint8_t *to = put_quoted(x.body, "{\"bm\":0,\"bn\":", broker, strlen(broker));
    to = ps_text_put(put_quoted(to, ",\"c\":", r->key.group, r->key.group_len), ",\"d\":");
    for (int32_t i = 0; i < r->count; i++)
        to = put_named(to, i > 0 ? "," : "[", r->offsets[i] - r->key.start);
    to = put_named(put_named(to, "],\"it\":", r->invisible_ms), ",\"n\":", r->count);
    to = put_named(put_named(to, ",\"pt\":", r->key.pop_ms), ",\"q\":", r->key.queue_id);
    to = put_named(put_named(to, ",\"reviveTime\":", back_ms), ",\"ro\":0,\"so\":", r->key.start);
    to = put_quoted(to, ",\"t\":", r->key.topic, r->key.topic_len);
    *to++ = '}';
    x.properties = to;
    put_properties(c, &x, r, r->key.start);
    return put_record(c, &x, r->revive_queue, end, e);
}

int ps_core_check_point_open(ps_core *c, const ps_check_point_row *r, int64_t *end, ps_error *e) {
    PS_CORE_HELD(c);
    int code = ps_core_check_point_add(c, r, e);
    if (code != 0) return code;
    code = put_check_point(c, r, end, e);
    if (code < 0) ps_core_check_point_end(c, &r->key, r->offsets, r->count);
    return code;
}

int ps_core_check_point_put_ack(ps_core *c, const ps_check_point_row *r, const int64_t *offsets,
                                int32_t count, int64_t *end, ps_error *e) {
    PS_CORE_HELD(c);
    bool several = count > 1;
    if (count < 1 || count > PS_CHECK_POINT_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "%d offsets to acknowledge: from 1 to %d are allowed", count,
                       PS_CHECK_POINT_MAX);
    record x = {.body = begin_body(c, r, e),
                .deliver_ms = r->key.pop_ms + r->invisible_ms,
                .tag = several ? "bAck" : "ack"};
    if (x.body == NULL) return code_of(e);
    int64_t at = several ? -1 : offsets[0];
    uint8_t *to = put_named(x.body, "{\"ao\":", at);
    for (int32_t i = 0; several && i < count; i++)
        to = put_named(to, i > 0 ? "," : ",\"aol\":[", offsets[i]);
    to = put_quoted(ps_text_put(to, several ? "]" : ""), ",\"bn\":", c->co_settings.se_broker,
                    strlen(c->co_settings.se_broker));
    to = put_quoted(to, ",\"c\":", r->key.group, r->key.group_len);
    to = put_named(put_named(to, ",\"pt\":", r->key.pop_ms), ",\"q\":", r->key.queue_id);
    to = put_named(to, ",\"so\":", r->key.start);
    to = put_quoted(to, ",\"t\":", r->key.topic, r->key.topic_len);
    *to++ = '}';
    x.properties = to;
    put_properties(c, &x, r, at);
    return put_record(c, &x, r->revive_queue, end, e);
}

int ps_core_check_point_ack(ps_core *c, const ps_check_point_key *key, const int64_t *offsets,
                            int32_t count, int64_t *end, ps_error *e) {
    PS_CORE_HELD(c);
    ps_check_point *p = ps_check_point_of(c, key);
    uint32_t bits = p != NULL ? ps_check_point_bits(p, offsets, count) : 0;
    int64_t wanted[PS_CHECK_POINT_MAX];
    ps_check_point_row row;
    int32_t n = 0;
    *end = 0;
    if (bits == 0) return 0;
    ps_check_point_row_of(p, &row);
    for (int32_t i = 0; i < row.count; i++)
        if (bits >> i & 1) wanted[n++] = row.offsets[i];
    int code = ps_core_check_point_put_ack(c, &row, wanted, n, end, e);
    if (code < 0) return code;
    ps_check_point_close(c, p, bits);
    return n;
}
