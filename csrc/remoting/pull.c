/* Pulls. One is served here when its pair of group and topic is published; every refusal is the
 * broker's. A pull that finds nothing new is parked (parked.h); when it is ready again, what does
 * not match its filter is passed over. docs/internals/wire.md#pull; upstream
 * PullMessageProcessor. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/lock.h"
#include "remoting/requests.h"
#include "tables/tables.h"
#include "waits/coldpull.h"

#define SYS_COMMIT 1
#define SYS_SUSPEND 2
#define SYS_SUBSCRIPTION 4

#define MAX_MESSAGES 65536 /* of one pull; the transfer limits are far below */
/* Units of no interest that a held pull walks before others have their turn. */
#define PASSED_OVER_MAX 4096
#define WORK_REFILL_MS 50
/* A client waits 30 s at most; a deadline must not overflow. */
#define SUSPEND_MAX_MS (3600 * 1000)
/* So long a pull waits for the tier that does not wait for news: its client does for 10 s. */
#define TIER_WAIT_MS 5000

/* ---- the request ---- */

typedef struct request {
    ps_slice group, topic, offset_text, subscription, type;
    ps_slice lite; /* of a lite topic, which the broker refuses */
    int64_t queue_id, offset, max, flags, commit, suspend_ms, sub_version;
} request;

static bool read_request(const ps_command *command, request *r) {
    *r =
        (request){.queue_id = -1, .max = INT64_MIN, .flags = INT64_MIN, .commit = -1};
    const ps_member members[] = {{"consumerGroup", &r->group, NULL},
                                 {"topic", &r->topic, NULL},
                                 {"queueId", NULL, &r->queue_id},
                                 {"queueOffset", &r->offset_text, NULL},
                                 {"maxMsgNums", NULL, &r->max},
                                 {"sysFlag", NULL, &r->flags},
                                 {"commitOffset", NULL, &r->commit},
                                 {"suspendTimeoutMillis", NULL, &r->suspend_ms},
                                 {"subscription", &r->subscription, NULL},
                                 {"subVersion", NULL, &r->sub_version},
                                 {"expressionType", &r->type, NULL},
                                 {"liteTopic", &r->lite, NULL}};
    bool good = ps_command_read(command, members, sizeof members / sizeof *members);
    bool there = r->max != INT64_MIN;
    /* The pull consumer of the Go client asks for 0. Upstream counts only once it has a message
     * (DefaultMessageStore.isTheBatchFull), so whoever asks for less than one gets one. */
    if (r->max < 1) r->max = 1;
    return good && there && r->lite.len == 0 && r->group.data != NULL && r->topic.data != NULL &&
           r->queue_id >= 0 && ps_slice_number(r->offset_text, &r->offset) && r->flags != INT64_MIN;
}

/* The filter of this pull; false when that is for the broker to say. NULL: every message. */
static bool choose_filter(ps_pair *p, const request *r, ps_filter **out) {
    *out = NULL;
    if (!(r->flags & SYS_SUBSCRIPTION)) {
        *out = p->pr_filter;
        return (p->pr_flags & PS_SUB_GROUP) && r->sub_version <= p->pr_sub_version;
    }
    bool sql = ps_slice_is(r->type, "SQL92");
    if (!(p->pr_flags & (sql ? PS_SUB_SQL : PS_SUB_OWN)) ||
        (!sql && r->type.len > 0 && !ps_slice_is(r->type, "TAG")))
        return false;
    if (!sql && (r->subscription.len == 0 || ps_slice_is(r->subscription, "*"))) return true;
    ps_filter *f = p->pr_own;
    if (!ps_filter_is(f, r->subscription.data, r->subscription.len, sql)) {
        f = ps_filter_of_text(r->subscription.data, r->subscription.len, sql, NULL);
        if (f == NULL) return false;
        ps_filter_unref(p->pr_own);
        p->pr_own = f;
    }
    *out = f;
    return true;
}

/* ---- the answer ---- */

/* A pull as both a new and a held one have it. */
typedef struct pull {
    ps_pair *pair;
    ps_topic *topic;
    ps_filter *filter;
    int32_t queue_id, opaque, serialize, max;
    int64_t offset;
} pull;

static int answer_pull(ps_core *c, const pull *p, int32_t code, const char *remark,
                       const ps_batch_info *b, int64_t next) {
    char number[3][24];
    ps_command reply;
    reply.serialize = p->serialize;
    reply.code = code;
    reply.opaque = p->opaque;
    reply.remark = ps_slice_of(remark);
    const char *broker = c->co_settings.se_slave_reads && b->suggest_slave ? "1" : "0";
    reply.fields[0] = (ps_field){ps_slice_of("suggestWhichBrokerId"), ps_slice_of(broker)};
    reply.fields[1] = (ps_field){ps_slice_of("groupSysFlag"), ps_slice_of("0")};
    reply.fields[2] =
        (ps_field){ps_slice_of("nextBeginOffset"), ps_slice_of_number(next, number[0])};
    reply.fields[3] =
        (ps_field){ps_slice_of("maxOffset"), ps_slice_of_number(b->max_offset, number[1])};
    reply.fields[4] =
        (ps_field){ps_slice_of("minOffset"), ps_slice_of_number(b->min_offset, number[2])};
    reply.fields[5] = (ps_field){ps_slice_of("topicSysFlag"), ps_slice_of("0")};
    reply.field_count = 6;
    int64_t from = ps_mine(c)->ca_answer.an_out.len, bytes = code == PS_CODE_SUCCESS ? b->bytes : 0;
    int rc = ps_core_answer(c, &reply, bytes);
    if (rc == 0 && bytes > 0)
        rc = ps_zerocopy_fits(c, b) ? ps_zerocopy_add(c, b) : ps_core_append_records(c, b);
    if (rc < 0) { /* half an answer would make the rest of the connection unreadable */
        ps_mine(c)->ca_answer.an_out.len = from;
        return rc;
    }
    ps_pair_pulled(p->pair, p->queue_id, next);
    ps_mine(c)->ca_work.wk_pulled = (ps_pulled){p->opaque, code, bytes > 0 ? b->count : 0, bytes};
    if (bytes == 0) {
        c->co_counters.cc_totals.misses++;
    } else {
        p->pair->pr_out[PS_WAY_PULLED].messages += b->count;
        p->pair->pr_out[PS_WAY_PULLED].bytes += bytes;
        c->co_counters.cc_totals.found++;
    }
    return 0;
}

/* The code of each outcome of the store (docs/internals/wire.md#outcome-of-a-pull). */
static int32_t code_of(int32_t status, int64_t offset) {
    switch (status) {
    case PS_GET_FOUND:
        return PS_CODE_SUCCESS;
    case PS_GET_NO_MATCHED_MESSAGE:
    case PS_GET_MESSAGE_WAS_REMOVING:
        return PS_CODE_PULL_RETRY_IMMEDIATELY;
    case PS_GET_NO_MATCHED_LOGIC_QUEUE:
    case PS_GET_NO_MESSAGE_IN_QUEUE:
        return offset == 0 ? PS_CODE_PULL_NOT_FOUND : PS_CODE_PULL_OFFSET_MOVED;
    case PS_GET_OFFSET_OVERFLOW_ONE:
    case PS_GET_OFFSET_FOUND_NULL:
        return PS_CODE_PULL_NOT_FOUND;
    case PS_GET_IN_TIER:
    case PS_GET_TIER_BUSY: /* every client asks for the same offset again, and says why */
        return PS_CODE_SYSTEM_BUSY;
    default:
        return PS_CODE_PULL_OFFSET_MOVED;
    }
}

/* Nothing there yet, and something may come: such a pull is worth holding. */
static bool is_empty(int32_t status, int64_t offset) {
    return status == PS_GET_OFFSET_OVERFLOW_ONE ||
           (offset == 0 &&
            (status == PS_GET_NO_MATCHED_LOGIC_QUEUE || status == PS_GET_NO_MESSAGE_IN_QUEUE));
}

static const char *name_of(int32_t status) {
    static const char *const names[] = {"FOUND",
                                        "NO_MATCHED_MESSAGE",
                                        "MESSAGE_WAS_REMOVING",
                                        "OFFSET_FOUND_NULL",
                                        "OFFSET_OVERFLOW_BADLY",
                                        "OFFSET_OVERFLOW_ONE",
                                        "OFFSET_TOO_SMALL",
                                        "NO_MATCHED_LOGIC_QUEUE",
                                        "NO_MESSAGE_IN_QUEUE",
                                        "IN_TIER",
                                        "TIER_BUSY"};
    return status >= 0 && status < (int32_t)(sizeof names / sizeof *names) ? names[status] : "";
}

/* Filters take half of the event loop's time at most, however many pulls ask: the budget refills
 * with time. A pull that comes too early is answered without messages, to be retried. */
static int64_t *work_left(ps_core *c) {
    ps_core_budget *b = &c->co_budget;
    int64_t now = ps_monotonic_ms(), passed = now - b->fb_ms;
    b->fb_ms = now;
    if (passed >= WORK_REFILL_MS || passed < 0)
        b->fb_left = PS_SQL92_WORK_MAX;
    else
        b->fb_left += PS_SQL92_WORK_MAX / WORK_REFILL_MS * passed;
    if (b->fb_left > PS_SQL92_WORK_MAX) b->fb_left = PS_SQL92_WORK_MAX;
    return &b->fb_left;
}

/* in_memory: as of ps_read_options. */
static ps_batch *read_at(ps_core *c, const pull *p, int64_t offset, bool in_memory) {
    ps_read_options o = {.max_messages = p->max, .transfer_limits = 1, .in_memory = in_memory};
    if (p->filter != NULL) {
        o.tag_count = p->filter->ft_tag_count;
        o.tag_hashes = p->filter->ft_hashes;
        o.sql = p->filter->ft_sql;
        if (o.sql != NULL) o.work_left = work_left(c);
    }
    return ps_read(c->co_store, p->topic, p->queue_id, offset, &o, NULL);
}

/* The tier is slow or away, or too many ask for something of it. */
static int answer_busy(ps_core *c, const pull *p, const ps_batch_info *b) {
    char remark[2 * PS_TIER_WHY], why[PS_TIER_WHY];
    ps_tier_why(&c->co_store->st_tier, why);
    snprintf(remark, sizeof remark, "%s: the offset may be in the cold tier, %s%s%s",
             name_of(b->status),
             b->status == PS_GET_IN_TIER          ? "which has not answered in time"
             : c->co_store->st_tier.unknown       ? "which was not looked at yet"
                                                  : "and too many reads wait for that",
             *why ? ": " : "", why);
    return answer_pull(c, p, PS_CODE_SYSTEM_BUSY, remark, b, b->next_offset);
}

/* Answers with what was found. A slave does not know how far the queue goes: who asks for a place
 * that is not here shall ask the master, and not give up its own (upstream: PullMessageProcessor,
 * offsetCheckInSlave). */
static int answer_found(ps_core *c, const pull *p, int64_t offset, const ps_batch_info *b) {
    int32_t code = code_of(b->status, offset);
    if (code == PS_CODE_SYSTEM_BUSY) return answer_busy(c, p, b);
    if (c->co_settings.se_slave && code == PS_CODE_PULL_OFFSET_MOVED)
        return answer_pull(c, p, PS_CODE_PULL_RETRY_IMMEDIATELY, name_of(b->status), b, offset);
    return answer_pull(c, p, code, name_of(b->status), b, b->next_offset);
}

/* Answers with a reset that the group does not know of yet. 1: answered; 0: there is none. */
static int answer_reset(ps_core *c, const pull *p) {
    ps_mark *m = ps_pair_mark(p->pair, p->queue_id, false);
    ps_batch_info b = {0};
    if (m == NULL || m->mk_reset < 0) return 0;
    ps_queue_span(c->co_store, p->topic, p->queue_id, &b.min_offset, &b.max_offset);
    int64_t target = m->mk_reset;
    m->mk_reset = -1;
    int rc = answer_pull(c, p, PS_CODE_PULL_OFFSET_MOVED, "OFFSET_RESET", &b, target);
    return rc < 0 ? rc : 1;
}

static bool park_cold(ps_core *c, const ps_parked *like, ps_cold *cold) {
    ps_parked *h = ps_parked_new(like);
    if (h == NULL) return false;
    if (ps_cold_wait(c, h, cold)) return true;
    ps_parked_free(h);
    return false;
}

static bool waits_for_news(const request *r) {
    return (r->flags & SYS_SUSPEND) && r->suspend_ms > 0;
}

/* Parks it; false when it has to be answered at once. cold: what it waits for; NULL: news of its
 * queue, or of the tier (lends of ps_parked). */
static bool park_pull(ps_conn *n, const pull *p, const request *r, int64_t passed_to,
                      ps_cold *cold, int64_t lends) {
    ps_core *c = n->cn_core;
    const ps_core_settings *s = &c->co_settings;
    int64_t suspend_ms = waits_for_news(r) ? r->suspend_ms : 0;
    int64_t wait_ms = lends >= 0 && suspend_ms < TIER_WAIT_MS ? TIER_WAIT_MS
                      : !s->se_long_polling         ? s->se_short_polling_ms
                      : suspend_ms < SUSPEND_MAX_MS ? suspend_ms
                                                    : SUSPEND_MAX_MS;
    ps_queue *q = ps_topic_queue_get(p->topic, p->queue_id);
    if (q == NULL) return false;
    const ps_parked like = {.pk_conn = n,
                            .pk_pair = p->pair,
                            .pk_topic = p->topic,
                            .pk_queue = q,
                            .pk_filter = p->filter,
                            .pk_opaque = p->opaque,
                            .pk_serialize = p->serialize,
                            .pk_max = p->max,
                            .pk_request = ps_mine(c)->ca_rpcs.rp_request,
                            .pk_began_ns = ps_mine(c)->ca_work.wk_began_ns,
                            .pk_first = p->offset,
                            .pk_offset = passed_to,
                            .pk_lends = lends,
                            .pk_deadline = ps_monotonic_ms() + 1 + wait_ms}; /* one has begun */
    if (cold == NULL ? !ps_parked_add(&like) : !park_cold(c, &like, cold)) return false;
    ps_mine(c)->ca_work.wk_parked_one = true;
    ps_mine(c)->ca_rpcs.rp_answered = PS_RPC_NONE;
    return true;
}

/* ---- a new pull ---- */

static int serve_pull(ps_conn *n, const pull *p, const request *r) {
    ps_core *c = n->cn_core;
    ps_batch_info b;
    int rc = answer_reset(c, p);
    if (rc != 0) return rc;
    if ((r->flags & SYS_COMMIT) && r->commit >= 0 &&
        ps_pair_mark_asked(p->pair, p->queue_id) != NULL)
        ps_pair_commit(p->pair, p->queue_id, r->commit);
    int64_t lends = atomic_load(&c->co_store->st_tier.lends);
    ps_batch *batch = read_at(c, p, p->offset, true);
    if (batch == NULL) return 0;
    ps_batch_get(batch, &b);
    int64_t pieces = ps_mine(c)->ca_answer.an_pieces.len;
    ps_cold cold;
    bool held = false;
    if (is_empty(b.status, p->offset) && waits_for_news(r)) {
        held = park_pull(n, p, r, p->offset, NULL, -1);
    } else if (b.status == PS_GET_IN_TIER) {
        held = park_pull(n, p, r, p->offset, NULL, lends);
    } else if (b.count == 0 && ps_batch_cold(batch, &cold)) {
        held = park_pull(n, p, r, b.next_offset, &cold, -1);
        ps_cold_let_go(&cold);
        if (!held) {
            ps_batch_free(batch);
            if ((batch = read_at(c, p, p->offset, false)) == NULL) return 0;
            ps_batch_get(batch, &b);
        }
    }
    if (held)
        ps_pair_pulled(p->pair, p->queue_id, p->offset);
    else
        rc = answer_found(c, p, p->offset, &b);
    if (ps_mine(c)->ca_answer.an_pieces.len > pieces)
        ps_zerocopy_keep(c, batch);
    else
        ps_batch_free(batch);
    return rc < 0 ? rc : 1;
}

int ps_core_pull(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r;
    if (!read_request(command, &r)) return 0;
    const ps_topic_entry *t = ps_core_find_topic(c, r.topic.data, r.topic.len);
    pull p = {.pair = ps_core_find_pair(c, r.group.data, r.group.len, r.topic.data, r.topic.len),
              .topic = t != NULL ? t->te_topic : NULL,
              .queue_id = (int32_t)(r.queue_id <= INT32_MAX ? r.queue_id : -1),
              .opaque = command->opaque,
              .serialize = command->serialize,
              .max = (int32_t)(r.max < MAX_MESSAGES ? r.max : MAX_MESSAGES),
              .offset = r.offset};
    if (p.pair == NULL || p.pair->pr_flags == 0 || t == NULL || !(t->te_perm & PS_PERM_READ) ||
        r.queue_id >= t->te_read_queues || ps_topic_translates(t, command) ||
        !choose_filter(p.pair, &r, &p.filter))
        return 0;
    c->co_counters.cc_totals.pulls++;
    ps_mine(c)->ca_work.wk_looked++;
    return serve_pull(n, &p, &r);
}

/* ---- parked pulls that are resumed ---- */

static pull pull_of(const ps_parked *h) {
    return (pull){.pair = h->pk_pair,
                  .topic = h->pk_topic,
                  .filter = h->pk_filter,
                  .queue_id = h->pk_queue->cq_id,
                  .opaque = h->pk_opaque,
                  .serialize = h->pk_serialize,
                  .max = h->pk_max,
                  .offset = h->pk_first};
}

/* When it expires: its answer says what was passed over, so that nobody looks at it again. */
static int answer_last(ps_core *c, ps_parked *h, const ps_batch_info *b) {
    pull p = pull_of(h);
    if (h->pk_offset > h->pk_first)
        return answer_pull(c, &p, PS_CODE_PULL_RETRY_IMMEDIATELY,
                           name_of(PS_GET_NO_MATCHED_MESSAGE), b, h->pk_offset);
    return answer_found(c, &p, h->pk_first, b);
}

/* Has it wait for what it needs next and is not in memory. False: it cannot, and is to be read all
 * the same. */
static bool wait_for_disk(ps_core *c, ps_parked *h, ps_cold *cold, int64_t next) {
    h->pk_offset = next;
    bool waits = ps_cold_wait(c, h, cold);
    if (!waits) h->pk_trips = PS_COLD_TRIPS;
    ps_cold_let_go(cold);
    return waits;
}

int ps_pull_resume(ps_core *c, ps_parked *h) {
    pull p = pull_of(h);
    ps_batch_info b;
    ps_cold cold;
    bool from_tier = h->pk_lends >= 0;
    int rc = answer_reset(c, &p);
    if (rc != 0) return rc;
    for (int64_t passed = 0;;) {
        int64_t lends = atomic_load(&c->co_store->st_tier.lends);
        ps_batch *batch = read_at(c, &p, h->pk_offset, h->pk_trips < PS_COLD_TRIPS);
        if (batch == NULL) return PS_E_CLOSED;
        ps_batch_get(batch, &b);
        if (b.count == 0 && ps_batch_cold(batch, &cold)) {
            ps_batch_free(batch);
            if (wait_for_disk(c, h, &cold, b.next_offset)) return 0;
            continue;
        }
        bool in_tier = b.status == PS_GET_IN_TIER;
        bool empty = in_tier || is_empty(b.status, h->pk_offset);
        h->pk_lends = in_tier ? lends : -1;
        bool passes = b.status == PS_GET_NO_MATCHED_MESSAGE && b.next_offset > h->pk_offset;
        /* One that has only waited for the disk or the tier is answered as a new one would be. */
        bool answered = empty ? h->pk_last : !passes || h->pk_trips > 0 || from_tier;
        if (empty) h->pk_trips = 0;
        if (empty && answered)
            rc = answer_last(c, h, &b);
        else if (answered)
            rc = answer_found(c, &p, h->pk_offset, &b);
        ps_batch_free(batch);
        if (answered) return rc < 0 ? rc : 1;
        if (empty) return 0;
        passed += b.next_offset - h->pk_offset;
        h->pk_offset = b.next_offset;
        if (passed >= PASSED_OVER_MAX) return 0;
    }
}

void ps_core_take_pulled(ps_core *c, ps_pulled *out) {
    PS_CORE_HELD(c);
    *out = ps_mine(c)->ca_work.wk_pulled;
    ps_mine(c)->ca_work.wk_pulled.code = -1;
}
