/* Rounds of checks: which open halves their producers are asked about, with which frames, and which
 * are to be discarded (transactionCheckMax, fileReservedTime).
 * docs/internals/services.md#transactions; upstream TransactionalMessageServiceImpl.check,
 * AbstractTransactionalMessageCheckListener. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "transactions/halves.h"
#include "core/lock.h"

#define SKEW_MS 60000 /* stored so far ahead: the clock was set back, and is not waited for */

static bool find_property(const ps_record *r, const char *name, ps_slice *out) {
    ps_property p;
    bool found =
        ps_property_find(r->properties, r->properties_len, name, (int32_t)strlen(name), &p);
    *out = found ? (ps_slice){p.value, p.value_len} : (ps_slice){NULL, 0};
    return found;
}

/* The body of a check: the half's record as the message it is to become, and with the number of
 * this check (upstream AbstractTransactionalMessageCheckListener sends what needDiscard has counted
 * up). */
static bool draft_of(ps_core *c, const ps_record *r, int32_t checks, ps_draft *d) {
    ps_text name;
    const char *why;
    int32_t queue_id;
    if (!ps_real_place(r->properties, r->properties_len, &name, &queue_id) ||
        !ps_tx_with_checks(c, r, checks))
        return false;
    *d = (ps_draft){.body = r->body,
                    .body_len = r->body_len,
                    .topic = name.data,
                    .topic_len = (int32_t)name.len,
                    .properties = ps_mine(c)->ca_send.sd_props.data,
                    .properties_len = ps_mine(c)->ca_send.sd_props.len,
                    .queue_id = queue_id,
                    .flag = r->flag,
                    .sys_flag = r->sys_flag,
                    .reconsume_times = r->reconsume_times,
                    .born_timestamp = r->born_timestamp,
                    .prepared_transaction_offset = r->prepared_transaction_offset,
                    .born_host = r->born_host,
                    .born_host_len = r->born_host_len,
                    .store_host = r->store_host,
                    .store_host_len = r->store_host_len,
                    .long_topic_v2 = true};
    return ps_draft_measure(d, INT32_MAX, &why) == 0;
}

static int check_frame(ps_core *c, const ps_half *h, const ps_record *r) {
    char offset[24], physical[24], id[57];
    ps_command ask = {.serialize = PS_SERIALIZE_JSON,
                      .code = PS_REQUEST_CHECK_TRANSACTION_STATE,
                      .version = PS_PROTOCOL_VERSION,
                      .flag = PS_FLAG_ONEWAY};
    ps_slice uniq;
    ps_draft d;
    if (!draft_of(c, r, h->hf_checks + 1, &d)) return 0;
    find_property(r, "UNIQ_KEY", &uniq);
    int id_len = ps_offset_msg_id(r->store_host, r->store_host_len, h->hf_physical, id);
    ps_field fields[] = {
        {ps_slice_of("topic"), ps_slice_of(PS_HALF_TOPIC)},
        {ps_slice_of("tranStateTableOffset"), ps_slice_of_number(h->hf_offset, offset)},
        {ps_slice_of("commitLogOffset"), ps_slice_of_number(h->hf_physical, physical)},
        {ps_slice_of("msgId"), uniq},
        {ps_slice_of("transactionId"), uniq},
        {ps_slice_of("offsetMsgId"), {(const uint8_t *)id, id_len}},
        {ps_slice_of("bname"), ps_slice_of(c->co_tx->tx_broker)}};
    ask.field_count = (int32_t)(sizeof fields / sizeof *fields);
    memcpy(ask.fields, fields, sizeof fields);
    int code = ps_core_frame(c, &ask, d.size);
    if (code < 0) return code;
    uint8_t *to = ps_buffer_room(&ps_mine(c)->ca_answer.an_out, d.size);
    if (to == NULL) return PS_E_NO_MEMORY;
    ps_draft_write(&d, to, h->hf_offset, h->hf_physical, r->store_timestamp);
    ps_mine(c)->ca_answer.an_out.len += d.size;
    return 1;
}

typedef struct looking { /* a part of a round */
    ps_core *c;
    ps_tx_round *round;
    ps_tx_check *checks;
    int64_t *spent;
    ps_tx_name *group, *topic; /* of the last check */
} looking;

static void note_asked(looking *l, uint32_t place, int64_t from) {
    ps_half *h = ps_halves_at(l->c->co_tx, place);
    ps_tx_round *round = l->round;
    if (l->group != h->hf_group || l->topic != h->hf_topic) {
        l->group = h->hf_group;
        l->topic = h->hf_topic;
        l->checks[round->check_count++] = (ps_tx_check){.group = h->hf_group->tn_text,
                                                        .topic = h->hf_topic->tn_text,
                                                        .group_len = h->hf_group->tn_len,
                                                        .topic_len = h->hf_topic->tn_len,
                                                        .from_at = from};
    }
    ps_tx_check *run = &l->checks[round->check_count - 1];
    run->count++;
    run->to_at = ps_mine(l->c)->ca_answer.an_out.len;
    int64_t since = round->now_ms - h->hf_store_ms;
    h->hf_asked = (uint32_t)(since < 1 ? 1 : since < UINT32_MAX ? since : UINT32_MAX);
    if (h->hf_checks < UINT16_MAX) h->hf_checks++;
    round->asked++;
    l->c->co_tx->tx_state.checks++;
    ps_halves_touch(l->c->co_tx, place);
}

/* 0, or an error. A half whose record is gone is discarded: nobody could commit it. */
static int look_at(looking *l, uint32_t place) {
    ps_tx *x = l->c->co_tx;
    ps_tx_round *round = l->round;
    ps_half *h = ps_halves_at(x, place);
    int64_t age = round->now_ms - h->hf_store_ms, from = ps_mine(l->c)->ca_answer.an_out.len;
    ps_mapfile *mf;
    ps_record r;
    if ((h->hf_flags & (PS_HALF_USED | PS_HALF_ALIAS)) != PS_HALF_USED) return 0;
    if (h->hf_physical < atomic_load(&l->c->co_store->st_log.lg_min)) { /* its file is deleted */
        l->spent[round->spent_count++] = h->hf_offset;
        return 0;
    }
    /* Before its time of immunity is looked at, as upstream does: its file will go whatever the
     * producer asked for. */
    if (h->hf_checks >= round->check_max || age > round->reserved_ms) {
        l->spent[round->spent_count++] = h->hf_offset;
        return 0;
    }
    if ((h->hf_store_ms >= round->start_ms && age > -SKEW_MS) ||
        (age < ps_tx_immunity_ms(x, h) && age > -SKEW_MS))
        return 0;
    if (!h->hf_group->tn_live || h->hf_flags & PS_HALF_UNHEARD) {
        round->unheard++;
        return 0;
    }
    if (!ps_tx_record(l->c, h, &r, &mf)) {
        l->spent[round->spent_count++] = h->hf_offset;
        return 0;
    }
    int code = check_frame(l->c, h, &r);
    ps_mapfile_unref(mf);
    if (code > 0) note_asked(l, place, from);
    return code < 0 ? code : 0;
}

int ps_core_tx_round(ps_core *c, ps_tx_round *round, ps_tx_check *checks, int32_t check_room,
                     int64_t *spent, int32_t spent_room, ps_step *out, ps_error *e) {
    PS_CORE_HELD(c);
    ps_tx *x = c->co_tx;
    looking l = {c, round, checks, spent, NULL, NULL};
    uint32_t place = round->at > 0 ? (uint32_t)round->at : 1;
    int code = 0;
    round->check_count = round->spent_count = 0;
    ps_buffer *composed = &ps_mine(c)->ca_answer.an_out;
    composed->len = 0;
    if (ps_enter(c->co_store) < 0) return ps_refuse_closed(c->co_store, e);
    for (int32_t looked = 0;
         place < x->tx_places && looked < round->look_max && round->check_count < check_room &&
         round->spent_count < spent_room && composed->len < round->bytes_max && code == 0;
         place++, looked++)
        code = look_at(&l, place);
    ps_leave(c->co_store);
    round->at = place < x->tx_places ? (int64_t)place : -1;
    *out = (ps_step){.out = composed->data, .out_len = composed->len, .conn_id = -1};
    if (code < 0) return ps_fail(e, code, ENOMEM, -1, NULL, "cannot compose a check request");
    return 0;
}
