/* POP_LITE_MESSAGE: messages of a client's lite topics, and who waits for some. What is out is an
 * ordered batch of its light queue (pop/poporder.h). A request is the broker's until it has found
 * one of the group right. docs/internals/lite.md#consuming; upstream PopLiteMessageProcessor. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "core/lock.h"
#include "format/handle.h"
#include "format/property.h"
#include "lite/litetable.h"
#include "pop/pop.h"
#include "store/lights.h"
#include "tables/lightoffsets.h"
#include "tables/tables.h"

#define POP_MAX 32
#define LATE_MS 500          /* a request that is so late is not served */
#define POLL_MAX_MS 120000
#define BYTES_ENOUGH (1 << 20) /* of records that an answer has, but for one message */
#define READ_ROOM (64 << 10)
#define NUMBER_MAX 24
#define NOTHING "NO_MESSAGE_IN_QUEUE"
#define TAKE_OVER_MAX 64 /* events of idle clients that one pop looks at */
#define COUNT_MAX 64 /* bytes that orderCountInfo has of a message */

typedef struct request {
    ps_slice client, group, topic, attempt;
    int64_t most, invisible_ms, poll_ms, born_ms;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r = (request){.most = -1, .invisible_ms = -1, .poll_ms = INT64_MIN};
    const ps_member members[] = {
        {"clientId", &r->client, NULL},  {"consumerGroup", &r->group, NULL},
        {"topic", &r->topic, NULL},      {"maxMsgNum", NULL, &r->most},
        {"bornTime", NULL, &r->born_ms}, {"invisibleTime", NULL, &r->invisible_ms},
        {"pollTime", NULL, &r->poll_ms}, {"attemptId", &r->attempt, NULL}};
    return ps_command_read(command, members, sizeof members / sizeof *members) &&
           r->client.len > 0 && r->group.len > 0 && r->topic.len > 0 && r->most >= 1 &&
           r->most <= POP_MAX && r->invisible_ms >= 1 && r->invisible_ms < INT32_MAX * 1000LL &&
           r->poll_ms != INT64_MIN;
}

/* ---- what is handed out ---- */

typedef struct taking { /* one pop under way */
    ps_core *core;
    lite_client *client;
    ps_slice attempt;
    int64_t pop_ms, invisible_ms;
    int32_t left, count; /* messages that may still be handed out, and those that are */
    ps_error *e;
} taking;

/* Of one queue: the batch that was out before, and the next one. */
typedef struct light_batch {
    ps_pair *pair; /* NULL: nothing is out */
    ps_slice queue;
    ps_order_row old; /* count 0: none was out */
    bool same;        /* that was of this attempt */
    ps_order_row row;
    int32_t found;    /* messages that are handed out */
} light_batch;

static int32_t place_in(const ps_order_row *old, int64_t offset) {
    for (int32_t i = 0; i < old->count; i++)
        if (old->offsets[i] == offset) return i;
    return -1;
}

/* How often it was popped before; the same attempt gets it once more, and that does not count. */
static int32_t times_of(const light_batch *b, int32_t place) {
    int32_t times = place < 0 ? 0 : b->old.times[place] + !b->same;
    return times > 0 ? times : 0;
}

/* What the client is told of it. */
static bool put_count(ps_buffer *b, int64_t offset, int32_t times) {
    uint8_t *begin = ps_buffer_room(b, COUNT_MAX), *to = begin;
    if (to == NULL) return false;
    if (b->len > 0) *to++ = ';';
    *to++ = '0';
    if (times > 0) {
        to = ps_number_put(ps_text_put(to, " qo0%"), offset);
        *to++ = ' ';
        to = ps_number_put(to, times);
    }
    b->len += to - begin;
    return true;
}

/* Takes what was read: what is acknowledged or damaged is passed over, and its bytes go. */
static bool take_records(taking *t, light_batch *b, const ps_light_record *rows, int32_t count,
                         int64_t *next) {
    ps_lite *l = t->core->co_lite;
    const uint8_t *from = l->rg_records.data + l->rg_records.len;
    for (int32_t i = 0; i < count; from += rows[i++].size) {
        if (b->found == t->left || b->row.count == PS_ORDER_MAX ||
            (b->found > 0 && l->rg_records.len + rows[i].size > BYTES_ENOUGH))
            return true;
        int32_t old = place_in(&b->old, rows[i].offset), times = times_of(b, old);
        bool gone = rows[i].size == 0 || (old >= 0 && b->old.acked >> old & 1);
        *next = rows[i].offset + 1;
        b->row.offsets[b->row.count] = rows[i].offset;
        b->row.visible_ms[b->row.count] = -1;
        b->row.times[b->row.count] = times;
        if (gone) {
            b->row.acked |= UINT64_C(1) << b->row.count;
        } else {
            if (!put_count(&l->rg_counts, rows[i].offset, times)) return true;
            memmove(l->rg_records.data + l->rg_records.len, from, (size_t)rows[i].size);
            l->rg_records.len += rows[i].size;
            b->found++;
        }
        b->row.count++;
    }
    return false;
}

/* Reads the next messages of the queue: 0, or an error. */
static int read_batch(taking *t, light_batch *b, int64_t *next) {
    ps_lite *l = t->core->co_lite;
    ps_light_record rows[PS_ORDER_MAX];
    int64_t room = READ_ROOM, need = 0;
    for (bool full = false; !full && b->found < t->left && b->row.count < PS_ORDER_MAX;) {
        int32_t most = t->left - b->found + b->old.count;
        if (most > PS_ORDER_MAX - b->row.count) most = PS_ORDER_MAX - b->row.count;
        uint8_t *to = ps_buffer_room(&l->rg_records, room);
        if (to == NULL) return ps_no_memory(t->e, NULL, "no memory for what is popped");
        int32_t n = ps_lights_read(t->core->co_store, (const char *)b->queue.data, b->queue.len,
                                   *next, rows, most, to, l->rg_records.room - l->rg_records.len,
                                   &need, t->e);
        if (n < 0) return n;
        if (n == 0 && need == 0) return 0;
        if (n == 0)
            room = need;
        else
            full = take_records(t, b, rows, n, next);
    }
    return 0;
}

/* Where the group reads on: a new one at the first message while the queue still has it, else at
 * the last. */
static int64_t begin_at(int64_t was, int64_t low, int64_t high) {
    int64_t at = was >= 0 ? was : low == 0 || high == 0 ? 0 : high - 1;
    if (at < low) at = low;
    return at > high ? high : at;
}

/* What a smaller batch than the old one leaves of it after its last message: those that wait for
 * the next pop, and those that are acknowledged, which they stay; as far as there is room. */
static void hold_back(light_batch *b, int64_t pop_ms) {
    ps_order_row *row = &b->row;
    int64_t last = row->offsets[row->count - 1];
    int32_t end = b->old.count;
    while (end > 0 && !(b->old.acked >> (end - 1) & 1)) end--;
    for (int32_t i = 0; i < end && row->count < PS_ORDER_MAX; i++) {
        bool acked = b->old.acked >> i & 1;
        if (b->old.offsets[i] <= last) continue;
        row->offsets[row->count] = b->old.offsets[i];
        row->times[row->count] = b->old.times[i];
        row->visible_ms[row->count] = acked ? -1 : pop_ms;
        row->acked |= (uint64_t)acked << row->count;
        row->count++;
    }
}

/* The batch is out from now on. */
static int put_batch(taking *t, light_batch *b) {
    const lite_group *g = t->client->lc_group;
    hold_back(b, t->pop_ms);
    b->row.key = (ps_check_point_key){.topic = (const char *)b->queue.data,
                                      .group = g->lg_name,
                                      .topic_len = b->queue.len,
                                      .group_len = g->lg_len,
                                      .pop_ms = t->pop_ms};
    b->row.attempt = (const char *)t->attempt.data;
    b->row.attempt_len = t->attempt.len;
    b->row.invisible_ms = t->invisible_ms;
    b->row.used_ms = t->pop_ms;
    int code = ps_core_order_put(t->core, &b->row, 1, t->e);
    if (code < 0) return code;
    b->pair = ps_core_find_pair(t->core, (const uint8_t *)g->lg_name, g->lg_len, b->queue.data,
                                b->queue.len);
    ps_lite_due(t->core, b->pair, t->pop_ms + t->invisible_ms);
    return 0;
}

/* The batch that is out; whether it keeps the next one back. */
static bool is_blocked(taking *t, light_batch *b) {
    const lite_group *g = t->client->lc_group;
    const ps_check_point_key key = {.topic = (const char *)b->queue.data,
                                    .group = g->lg_name,
                                    .topic_len = b->queue.len,
                                    .group_len = g->lg_len};
    const ps_order *o = ps_lite_order(b->pair);
    int64_t until = ps_order_blocked_ms(o, t->attempt, t->pop_ms);
    if (until > 0) ps_lite_due(t->core, b->pair, until);
    b->old.count = 0;
    if (until == 0 && o != NULL) {
        ps_core_order_get(t->core, &key, &b->old);
        b->same =
            t->attempt.len > 0 && ps_lite_is(b->old.attempt, b->old.attempt_len, t->attempt);
    }
    return until > 0;
}

/* Hands out the next batch of one queue: 1, 0: nothing, 2: nothing, but there is more, or an
 * error, after which nothing has changed. */
static int take_of(taking *t, ps_slice queue) {
    ps_core *c = t->core;
    ps_lite *l = c->co_lite;
    const lite_group *g = t->client->lc_group;
    light_batch b = {.queue = queue, .row = {.count = 0}};
    int64_t low, high, next, records = l->rg_records.len, counts = l->rg_counts.len;
    if (!ps_lights_range(c->co_store, (const char *)queue.data, queue.len, &low, &high)) return 0;
    const char *name = (const char *)queue.data;
    int64_t was = ps_light_offset_get(c, ps_slice_from(g->lg_name, g->lg_len), queue);
    if (was < 0 && !ps_core_may_commit(c, g->lg_name, g->lg_len, name, queue.len, 0))
        return ps_offsets_refused(c, t->e);
    b.pair = ps_core_find_pair(c, (const uint8_t *)g->lg_name, g->lg_len, queue.data, queue.len);
    if (is_blocked(t, &b)) return 0;
    next = begin_at(was, low, high);
    if (next != was &&
        ps_core_commit(c, g->lg_name, g->lg_len, name, queue.len, 0, next, t->e) < 0)
        return PS_E_NO_MEMORY;
    if (next >= high) return 0;
    int code = read_batch(t, &b, &next);
    if (code == 0 && b.found > 0) code = put_batch(t, &b);
    if (code < 0) {
        l->rg_records.len = records;
        l->rg_counts.len = counts;
        return code;
    }
    t->left -= b.found;
    t->count += b.found;
    if (b.found > 0) return 1;
    if (b.row.count == 0) return 0;
    ps_core_commit(c, g->lg_name, g->lg_len, name, queue.len, 0, next, NULL);
    if (b.pair != NULL) ps_order_reset(c, b.pair, 0); /* all are damaged or acknowledged */
    return next < high ? 2 : 0;
}

/* Of the topic, as upstream counts them: a series a lite topic would be a million. */
static void count_out(const taking *t) {
    const lite_client *c = t->client;
    const lite_group *g = c->lc_group;
    ps_pair *pair = ps_core_pair_of(t->core, g->lg_name, g->lg_len, c->lc_names + c->lc_id_len,
                                    c->lc_parent_len);
    if (pair == NULL) return;
    pair->pr_out[PS_WAY_POPPED].messages += t->count;
    pair->pr_out[PS_WAY_POPPED].bytes += t->core->co_lite->rg_records.len;
}

/* Hands out messages of the queues whose events the client has. */
static int take_own(taking *t) {
    ps_lite *l = t->core->co_lite;
    int code = 0;
    for (int32_t n = t->client->lc_event_count; code >= 0 && n > 0 && t->left > 0; n--) {
        ps_ref sub = t->client->lc_events;
        char name[UINT8_MAX];
        if (l->rg_records.len >= BYTES_ENOUGH) break;
        ps_lite_event_drop(l, sub);
        code = take_of(t, ps_lite_sub_queue(l, ps_lite_sub_at(l, sub), name));
        if (code < 0 || code == 2)
            ps_lite_event_add(l, sub); /* it comes again, after others */
        else if (!ps_lite_sub_at(l, sub)->ls_listed)
            ps_lite_drop_sub(l, sub);
    }
    return code;
}

/* The same; when there is nothing, of those that idle clients of the group have. An error: of
 * none. */
static int take_events(taking *t) {
    ps_core *c = t->core;
    lite_client *client = t->client;
    int32_t left = TAKE_OVER_MAX;
    c->co_lite->rg_records.len = c->co_lite->rg_counts.len = 0;
    t->pop_ms = client->lc_accessed_ms = ps_timer_now(c->co_store);
    ps_lite_refill(c, client);
    int code = take_own(t);
    while (code >= 0 && t->count == 0 && client->lc_events == 0 &&
           ps_lite_take_over(c, client, t->left, &left) > 0)
        code = take_own(t);
    if (t->count > 0) count_out(t);
    return code < 0 && t->count == 0 ? code : 0;
}

/* ---- answers ---- */

/* With what was found; else with this code. */
static int put_answer(ps_core *c, int32_t opaque, int32_t serialize, const taking *t, int32_t code,
                      const char *remark) {
    ps_lite *l = c->co_lite;
    char numbers[3][NUMBER_MAX];
    ps_command reply;
    bool some = t->count > 0;
    int64_t from = ps_mine(c)->ca_answer.an_out.len, size = some ? l->rg_records.len : 0;
    const ps_slice counts = some ? (ps_slice){l->rg_counts.data, (int32_t)l->rg_counts.len}
                                 : ps_slice_of("");
    const ps_field fields[] = {
        {ps_slice_of("popTime"), ps_slice_of_number(t->pop_ms, numbers[0])},
        {ps_slice_of("invisibleTime"), ps_slice_of_number(t->invisible_ms, numbers[1])},
        {ps_slice_of("reviveQid"), ps_slice_of_number(PS_ORDER_QUEUE, numbers[2])},
        {ps_slice_of("orderCountInfo"), counts}};
    reply.serialize = serialize;
    reply.opaque = opaque;
    reply.code = some ? PS_CODE_SUCCESS : code;
    reply.remark = ps_slice_of(some ? "FOUND" : remark);
    reply.field_count = (int32_t)(sizeof fields / sizeof *fields);
    memcpy(reply.fields, fields, sizeof fields);
    uint8_t *to = NULL;
    if (ps_core_answer(c, &reply, size) == 0)
        to = ps_buffer_room(&ps_mine(c)->ca_answer.an_out, size);
    if (to == NULL) { /* half an answer would make the rest of the connection unreadable */
        ps_mine(c)->ca_answer.an_out.len = from;
        return PS_E_NO_MEMORY;
    }
    ps_bytes_put(to, l->rg_records.data, size);
    ps_mine(c)->ca_answer.an_out.len += size;
    return 0;
}

/* ---- waiting ---- */

static void list_poll(ps_core *core, lite_poll *w) {
    lite_client *c = w->lp_client;
    w->lp_next = NULL;
    w->lp_link = c->lc_polls_end;
    *c->lc_polls_end = w;
    c->lc_polls_end = &w->lp_next;
    c->lc_poll_count++;
    c->lc_group->lg_polls++;
    core->co_lite->rg_sums.polls++;
    if (ps_lights_wait(core->co_store, 1)) ps_eventfd_tell(core->co_event_fd);
    ps_lite_list_idle(c);
    /* One that came before this waited has woken nobody; one whose queue has more after damaged
     * messages is looked at again, after others had their turn. */
    if (c->lc_events != 0 || ps_lite_may_refill(c)) {
        ps_lite_wake(core, c);
    } else if (c->lc_wild) { /* who waits is asked before the others */
        ps_lite_unlist_wild(c);
        ps_lite_list_wild(core->co_lite, c);
    }
}

void ps_lite_poll_free(ps_parked *p) {
    lite_poll *w = (lite_poll *)p;
    ps_core *core = p->pk_conn->cn_core;
    lite_client *c = w->lp_client;
    ps_lite_unlist(p);
    c->lc_woken--;
    if (core->co_pop != NULL) core->co_pop->po_waiting[0]--;
    ps_parked_free(p);
    if (c->lc_gone) ps_eventfd_tell(core->co_event_fd); /* it can be freed */
    if (c->lc_events == 0) return;
    ps_lite_list_idle(c);
    ps_lite_wake(core, c); /* what came for it is for another one of the client */
    ps_lite_share(core, c);
    ps_eventfd_tell(core->co_event_fd);
}

static bool is_full(const ps_core *core, const lite_client *c) {
    const ps_pop_state *x = core->co_pop;
    return x != NULL && (c->lc_poll_count >= x->po_rules.at_place_max ||
                         x->po_waiting[0] >= x->po_rules.waiting_max);
}

/* False: it may not wait. */
static bool wait_for_events(ps_conn *n, const ps_command *command, const request *r,
                            lite_client *c, int64_t left_ms) {
    ps_core *core = n->cn_core;
    const lite_group *g = c->lc_group;
    ps_pair *pair = ps_core_pair_of(core, g->lg_name, g->lg_len, (const char *)r->topic.data,
                                    r->topic.len);
    lite_poll *w = pair == NULL || is_full(core, c)
                       ? NULL
                       : malloc(sizeof *w + (size_t)r->attempt.len);
    if (w == NULL) return false;
    *w = (lite_poll){.lp_parked = {.pk_conn = n,
                                   .pk_pair = pair,
                                   .pk_opaque = command->opaque,
                                   .pk_serialize = command->serialize,
                                   .pk_request = PS_REQUEST_POP_LITE_MESSAGE,
                                   .pk_began_ns = ps_monotonic_ns(),
                                   .pk_deadline = ps_monotonic_ms() + left_ms,
                                   .pk_pops = true,
                                   .pk_lite = true},
                     .lp_client = c,
                     .lp_most = (int32_t)r->most,
                     .lp_attempt_len = r->attempt.len,
                     .lp_invisible_ms = r->invisible_ms};
    if (r->attempt.len > 0) memcpy(w->lp_attempt, r->attempt.data, (size_t)r->attempt.len);
    if (!ps_parked_keep(core, &w->lp_parked)) {
        free(w);
        return false;
    }
    if (core->co_pop != NULL) core->co_pop->po_waiting[0]++;
    list_poll(core, w);
    ps_mine(core)->ca_work.wk_parked_one = true;
    ps_mine(core)->ca_rpcs.rp_answered = PS_RPC_NONE;
    return true;
}

int ps_lite_resume(ps_core *c, ps_parked *p, ps_step *out) {
    lite_poll *w = (lite_poll *)p;
    ps_error e = {0};
    int code = 0;
    taking t = {.core = c,
                .client = w->lp_client,
                .attempt = ps_slice_from(w->lp_attempt, w->lp_attempt_len),
                .invisible_ms = w->lp_invisible_ms,
                .left = w->lp_most,
                .e = &e};
    bool waits = !w->lp_client->lc_gone && c->co_lite->rg_on && ps_pop_hands_out(c);
    *out = (ps_step){.conn_id = p->pk_conn->cn_id};
    ps_parked_unlink(c, p);
    p->pk_ready = false;
    t.pop_ms = ps_timer_now(c->co_store);
    if (waits) code = take_events(&t);
    if (waits && code == 0 && t.count == 0 && !p->pk_last) {
        w->lp_client->lc_woken--;
        list_poll(c, w);
        return 0;
    }
    int32_t with = code < 0 ? PS_CODE_SYSTEM_ERROR : PS_CODE_POLLING_TIMEOUT;
    if (put_answer(c, p->pk_opaque, p->pk_serialize, &t, with, code < 0 ? e.text : NOTHING) < 0)
        ps_mine(c)->ca_answer.an_out.len = 0;
    ps_rpc_waited(c, p->pk_request, t.count > 0 ? PS_CODE_SUCCESS : with, PS_RPC_HELD,
                  p->pk_began_ns);
    ps_lite_poll_free(p);
    out->out = ps_mine(c)->ca_answer.an_out.data;
    out->out_len = ps_mine(c)->ca_answer.an_out.len;
    return 1;
}

/* ---- requests ---- */

/* Whether the client may have given up by now. */
static bool is_late(const request *r, int64_t now_ms) {
    uint64_t born = r->born_ms != 0 ? (uint64_t)r->born_ms : (uint64_t)now_ms;
    return (int64_t)((uint64_t)now_ms - born - (uint64_t)r->poll_ms) > LATE_MS;
}

static int64_t time_left(const request *r, int64_t now_ms) {
    int64_t poll = r->poll_ms < POLL_MAX_MS ? r->poll_ms : POLL_MAX_MS;
    int64_t born = r->born_ms != 0 && r->born_ms < now_ms ? r->born_ms : now_ms;
    return poll > 0 ? born + poll - now_ms : -1;
}

/* Whether the broker has found requests of this group right, by the rules of now. */
static bool is_known(const ps_core *c, const lite_group *g, ps_slice topic) {
    return g->lg_checked == c->co_tables.tc_rules &&
           ps_lite_is(g->lg_parent, g->lg_parent_len, topic);
}

static void know_group(const ps_core *c, lite_group *g, ps_slice topic) {
    if (topic.len > (int32_t)sizeof g->lg_parent) return;
    g->lg_checked = c->co_tables.tc_rules;
    g->lg_parent_len = (uint8_t)topic.len;
    memcpy(g->lg_parent, topic.data, (size_t)topic.len);
}

int ps_core_lite_pop(ps_conn *n, const ps_command *command, bool checked, ps_error *e) {
    ps_core *core = n->cn_core;
    ps_lite *l = core->co_lite;
    int64_t now_ms = ps_now_ms();
    ps_error mine = {0};
    request r;
    if (l == NULL || !l->rg_on || (command->flag & PS_FLAG_ONEWAY) || !read_request(command, &r))
        return 0;
    lite_client *c = ps_lite_find(l, r.group, r.client);
    if (c == NULL) return 0;
    if (checked)
        know_group(core, c->lc_group, r.topic);
    else if (!ps_pop_hands_out(core) || !is_known(core, c->lc_group, r.topic) ||
             is_late(&r, now_ms))
        return 0;
    taking t = {.core = core,
                .client = c,
                .attempt = r.attempt,
                .invisible_ms = r.invisible_ms,
                .left = (int32_t)r.most,
                .e = e != NULL ? e : &mine};
    if (ps_lights_untaken(core->co_store)) ps_lite_look(core);
    int code = take_events(&t);
    if (code < 0) return checked ? code : 0;
    int64_t left = time_left(&r, now_ms);
    bool waits = t.count == 0 && left > 0;
    if (waits && wait_for_events(n, command, &r, c, left)) return 1;
    int32_t with = waits ? PS_CODE_POLLING_FULL : PS_CODE_POLLING_TIMEOUT;
    ps_mine(core)->ca_rpcs.rp_answered = t.count > 0 ? PS_CODE_SUCCESS : with;
    code = put_answer(core, command->opaque, command->serialize, &t, with,
                      waits ? "polling full" : NOTHING);
    return code < 0 ? code : 1;
}

bool ps_lite_knows(const ps_core *core, ps_slice group, ps_slice topic) {
    const ps_lite *l = core->co_lite;
    const lite_group *g = l != NULL && l->rg_on ? ps_lite_group(l, group) : NULL;
    return g != NULL && is_known(core, g, topic);
}
