/* The header of a send and the properties that the broker acts on, read here and nowhere
 * else. docs/internals/wire.md#sending; numbers as the header's type says, booleans as Java's
 * Boolean.parseBoolean (the word true in any case; upstream Message.isWaitStoreMsgOK, SendMessage-
 * Processor), levels as ps_delay_asked. */
#include <string.h>

#include "format/messagetype.h"
#include "format/multi.h"
#include "transactions/halves.h"
#include "sends/sends.h"

#define LETTERS 13 /* a to m; n, the name of the broker, is not looked at */

/* Long names by letter: version 1 of the header. */
static const char *const NAMES[LETTERS] = {
    "producerGroup", "topic",         "defaultTopic",   "defaultTopicQueueNums", "queueId",
    "sysFlag",       "bornTimestamp", "flag",           "properties",            "reconsumeTimes",
    "unitMode",      "maxReconsumeTimes", "batch"};

static int place_of(ps_slice name, bool long_names) {
    if (!long_names) {
        int place = name.len == 1 ? *name.data - 'a' : -1;
        return place < LETTERS ? place : -1;
    }
    for (int i = 0; i < LETTERS; i++)
        if (ps_slice_is(name, NAMES[i])) return i;
    return -1;
}

static void read_int32(const ps_slice *values, char letter, int32_t *out, ps_send *s) {
    ps_slice value = values[letter - 'a'];
    int64_t number;
    if (value.len == 0) return;
    if (ps_slice_number(value, &number) && number >= INT32_MIN && number <= INT32_MAX)
        *out = (int32_t)number;
    else if (s->bad == 0)
        s->bad = letter;
}

void ps_send_read(const ps_command *command, ps_send *out) {
    ps_slice values[LETTERS] = {{NULL, 0}};
    bool long_names =
        command->code == PS_REQUEST_SEND_MESSAGE || command->code == PS_REQUEST_SEND_REPLY_MESSAGE;
    for (int32_t i = 0; i < command->field_count; i++) {
        int place = place_of(command->fields[i].name, long_names);
        if (place >= 0) values[place] = command->fields[i].value;
    }
    *out = (ps_send){.code = command->code, .max_reconsume_times = -1};
    if (values['e' - 'a'].len == 0) out->bad = 'e';
    read_int32(values, 'd', &out->template_queues, out);
    read_int32(values, 'e', &out->queue_id, out);
    read_int32(values, 'f', &out->sys_flag, out);
    ps_slice born = values['g' - 'a'];
    if (born.len > 0 && !ps_slice_number(born, &out->born_timestamp) && out->bad == 0)
        out->bad = 'g';
    read_int32(values, 'h', &out->flag, out);
    read_int32(values, 'j', &out->reconsume_times, out);
    read_int32(values, 'l', &out->max_reconsume_times, out);
    out->unit_mode = ps_slice_true(values['k' - 'a']);
    out->batch = ps_slice_true(values['m' - 'a']) &&
                 command->code != PS_REQUEST_SEND_REPLY_MESSAGE &&
                 command->code != PS_REQUEST_SEND_REPLY_MESSAGE_V2;
    if (values['b' - 'a'].len > 0) out->topic = values['b' - 'a'];
    out->body_len = command->body.len;
    ps_send_read_properties(values['i' - 'a'], out);
    if (out->sys_flag & PS_SYS_INNER_BATCH) out->asks |= PS_ASKS_INNER;
}

static bool name_is(const ps_property *p, const char *name, int32_t len) {
    return p->name_len == len && memcmp(p->name, name, (size_t)len) == 0;
}
#define NAME_IS(p, text) name_is(p, text, (int32_t)sizeof(text) - 1)

/* One with T, C, P, I or M in front. */
static void read_rarer(const ps_property *p, ps_slice value, ps_send *out) {
    switch (p->name[0]) {
    case 'T':
        if (NAME_IS(p, "TRAN_MSG")) {
            out->asks &= ~PS_ASKS_TRANSACTION;
            if (ps_slice_true(value)) out->asks |= PS_ASKS_TRANSACTION;
        }
        if (p->name_len > 6 && memcmp(p->name, "TIMER_", 6) == 0) out->asks |= PS_ASKS_TIME;
        if (NAME_IS(p, "TRACE_ON")) out->restamped = 1;
        break;
    case 'C':
        if (NAME_IS(p, "CHECK_IMMUNITY_TIME_IN_SECONDS"))
            out->immunity_s = ps_tx_immunity(value.data, value.len);
        if (NAME_IS(p, "CLUSTER")) out->restamped = 1;
        break;
    case 'P':
        if (NAME_IS(p, "PGROUP")) out->group = value;
        if (NAME_IS(p, "POP_CK")) out->pop = 1;
        break;
    case 'I':
        if (NAME_IS(p, PS_PROPERTY_MULTI_DISPATCH)) {
            out->asks |= PS_ASKS_QUEUES;
            out->queues = 1;
        }
        if (NAME_IS(p, "INNER_NUM")) out->asks |= PS_ASKS_INNER;
        break;
    default:
        if (NAME_IS(p, "MSG_REGION")) out->restamped = 1;
        break;
    }
}

/* Of properties with one name the last one counts, as in Java's map. */
void ps_send_read_properties(ps_slice properties, ps_send *out) {
    ps_property p;
    int32_t at = 0;
    out->properties = properties;
    out->wait = 1;
    out->immunity_s = PS_IMMUNITY_NONE;
    out->priority = -1;
    while (ps_property_next(properties.data, properties.len, &at, &p)) {
        ps_slice value = {p.value, p.value_len};
        switch (p.name[0]) {
        case 'U':
            if (NAME_IS(&p, "UNIQ_KEY")) out->uniq = value;
            break;
        case 'W':
            if (NAME_IS(&p, "WAIT")) out->wait = ps_slice_true(value);
            break;
        case 'D':
            if (!NAME_IS(&p, "DELAY")) break;
            out->level = ps_delay_asked(p.value, p.value_len);
            out->asks |= PS_ASKS_DELAY;
            break;
        case '_':
            if (NAME_IS(&p, "__SHARDINGKEY")) out->asks |= PS_ASKS_ORDER;
            if (NAME_IS(&p, "__STARTDELIVERTIME")) out->asks |= PS_ASKS_DELAY;
            if (NAME_IS(&p, PS_PROPERTY_LITE_TOPIC)) {
                out->asks |= PS_ASKS_QUEUES;
                out->lite = value;
            }
            if (NAME_IS(&p, PS_PROPERTY_PRIORITY))
                out->priority = ps_priority_of(value.data, value.len);
            break;
        case 'T':
        case 'C':
        case 'P':
        case 'I':
        case 'M':
            read_rarer(&p, value, out);
            break;
        default:
            break;
        }
    }
}

int ps_send_is_half(int32_t asks, int32_t reconsume_times, int32_t level) {
    return (asks & PS_ASKS_TRANSACTION) && !(reconsume_times > 0 && level > 0);
}
