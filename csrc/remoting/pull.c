/* Pulls, and the ones that wait for messages. A pull is served here when its pair of group and
 * topic is published; every refusal is the broker's. A pull that finds nothing new is held: the
 * dispatcher announces new units of its queue (arrivals.c), what does not match its filter is
 * passed over, and a heap of deadlines ends it in time.
 * docs/internals/wire.md#pull, docs/internals/services.md#holding-pulls; upstream
 * PullMessageProcessor, PullRequestHoldService. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remoting/core.h"

#define SYS_COMMIT 1
#define SYS_SUSPEND 2
#define SYS_SUBSCRIPTION 4
#define SYS_CLASS_FILTER 8

#define MAX_MESSAGES 65536 /* of one pull; the transfer limits are far below */
/* Units of no interest that a held pull walks before others have their turn, and turns of one call:
 * the event loop has more to do. */
#define PASSED_OVER_MAX 4096
#define ROUNDS_MAX 64
/* A client waits 30 s at most; a deadline must not overflow. */
#define SUSPEND_MAX_MS (3600 * 1000)

/* ---- the request ---- */

typedef struct request {
    ps_slice group, topic, subscription, type;
    int64_t queue_id, offset, max, flags, commit, suspend_ms, sub_version;
} request;

static void read_field(const ps_field *f, request *r, bool *good) {
    const struct {
        const char *name;
        ps_slice *text;
        int64_t *number;
    } known[] = {{"consumerGroup", &r->group, NULL},
                 {"topic", &r->topic, NULL},
                 {"queueId", NULL, &r->queue_id},
                 {"queueOffset", NULL, &r->offset},
                 {"maxMsgNums", NULL, &r->max},
                 {"sysFlag", NULL, &r->flags},
                 {"commitOffset", NULL, &r->commit},
                 {"suspendTimeoutMillis", NULL, &r->suspend_ms},
                 {"subscription", &r->subscription, NULL},
                 {"subVersion", NULL, &r->sub_version},
                 {"expressionType", &r->type, NULL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!ps_slice_is(f->name, known[i].name)) continue;
        if (known[i].text != NULL)
            *known[i].text = f->value;
        else if (f->value.len > 0 && !ps_slice_number(f->value, known[i].number))
            *good = false;
        return;
    }
}

static bool read_request(const ps_command *command, request *r) {
    bool good = true;
    *r =
        (request){.queue_id = -1, .offset = INT64_MIN, .max = INT64_MIN, .flags = -1, .commit = -1};
    for (int32_t i = 0; i < command->field_count && good; i++)
        read_field(&command->fields[i], r, &good);
    bool there = r->max != INT64_MIN;
    /* The pull consumer of the Go client asks for 0. Upstream counts only once it has a message
     * (DefaultMessageStore.isTheBatchFull), so whoever asks for less than one gets one. */
    if (r->max < 1) r->max = 1;
    return good && there && r->group.data != NULL && r->topic.data != NULL && r->queue_id >= 0 &&
           r->offset != INT64_MIN && r->flags >= 0;
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
    if (f == NULL || (f->fl_sql != NULL) != sql || f->fl_text_len != r->subscription.len ||
        memcmp(f->fl_hashes + f->fl_tag_count, r->subscription.data, (size_t)r->subscription.len) !=
            0) {
        f = ps_filter_of_text(r->subscription.data, r->subscription.len, sql);
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
    ps_topic_entry *topic;
    ps_filter *filter;
    int32_t queue_id, opaque, serialize, max;
    int64_t offset;
} pull;

static int append_records(ps_core *c, const ps_batch_info *b) {
    uint8_t *to = ps_buffer_room(&c->co_out, b->bytes);
    if (to == NULL) return PS_E_NO_MEMORY;
    for (int32_t i = 0; i < b->count; i++) {
        const ps_view *v = &b->views[i];
        memcpy(to, b->segments[v->segment].map + v->start, (size_t)v->size);
        to += v->size;
    }
    c->co_out.len += b->bytes;
    return 0;
}

static int answer(ps_core *c, const pull *p, int32_t code, const char *remark,
                  const ps_batch_info *b, int64_t next) {
    char number[3][24];
    ps_command reply;
    reply.serialize = p->serialize;
    reply.code = code;
    reply.opaque = p->opaque;
    reply.remark = ps_slice_of(remark);
    reply.fields[0] = (ps_field){ps_slice_of("suggestWhichBrokerId"), ps_slice_of("0")};
    reply.fields[1] = (ps_field){ps_slice_of("groupSysFlag"), ps_slice_of("0")};
    reply.fields[2] =
        (ps_field){ps_slice_of("nextBeginOffset"), ps_slice_of_number(next, number[0])};
    reply.fields[3] =
        (ps_field){ps_slice_of("maxOffset"), ps_slice_of_number(b->max_offset, number[1])};
    reply.fields[4] =
        (ps_field){ps_slice_of("minOffset"), ps_slice_of_number(b->min_offset, number[2])};
    reply.fields[5] = (ps_field){ps_slice_of("topicSysFlag"), ps_slice_of("0")};
    reply.field_count = 6;
    int64_t from = c->co_out.len, bytes = code == PS_CODE_SUCCESS ? b->bytes : 0;
    int rc = ps_core_answer(c, &reply, bytes);
    if (rc == 0 && bytes > 0) rc = append_records(c, b);
    if (rc < 0) { /* half an answer would make the rest of the connection unreadable */
        c->co_out.len = from;
        return rc;
    }
    c->co_pulled = (ps_pulled){p->opaque, code, bytes > 0 ? b->count : 0, bytes};
    if (bytes == 0) c->co_totals.misses++;
    if (bytes > 0) {
        p->pair->pr_gets += b->count;
        p->pair->pr_bytes += bytes;
        c->co_totals.gets += b->count;
        c->co_totals.found++;
        c->co_totals.get_bytes += bytes;
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
                                        "NO_MESSAGE_IN_QUEUE"};
    return status >= 0 && status < (int32_t)(sizeof names / sizeof *names) ? names[status] : "";
}

static ps_batch *read_at(ps_core *c, const pull *p, int64_t offset) {
    ps_read_options o = {.max_messages = p->max, .transfer_limits = 1};
    if (p->filter != NULL) {
        o.tag_count = p->filter->fl_tag_count;
        o.tag_hashes = p->filter->fl_hashes;
        o.sql = p->filter->fl_sql;
    }
    return ps_read(c->co_store, p->topic->te_topic, p->queue_id, offset, &o, NULL);
}

/* A reset that the group has not been told of. 1: answered; 0: there is none. */
static int answer_reset(ps_core *c, const pull *p) {
    ps_mark *m = ps_pair_mark(p->pair, p->queue_id, false);
    ps_batch_info b = {0};
    if (m == NULL || m->mk_reset < 0) return 0;
    ps_queue_range(c->co_store, p->topic->te_topic, p->queue_id, &b.min_offset, &b.max_offset);
    int64_t target = m->mk_reset;
    m->mk_reset = -1;
    int rc = answer(c, p, PS_CODE_PULL_OFFSET_MOVED, "OFFSET_RESET", &b, target);
    return rc < 0 ? rc : 1;
}

/* ---- the heap of deadlines ---- */

static bool before(const ps_hold *a, const ps_hold *b) {
    return a->hd_deadline < b->hd_deadline;
}

static void place(ps_core *c, ps_hold *h, int32_t i) {
    c->co_heap[i] = h;
    h->hd_heap = i;
}

static void sift(ps_core *c, ps_hold *h, int32_t i) {
    for (int32_t up = (i - 1) / 2; i > 0 && before(h, c->co_heap[up]); up = (i - 1) / 2) {
        place(c, c->co_heap[up], i);
        i = up;
    }
    for (int32_t down = 2 * i + 1; down < c->co_heap_count; down = 2 * i + 1) {
        if (down + 1 < c->co_heap_count && before(c->co_heap[down + 1], c->co_heap[down])) down++;
        if (!before(c->co_heap[down], h)) break;
        place(c, c->co_heap[down], i);
        i = down;
    }
    place(c, h, i);
}

static bool heap_add(ps_core *c, ps_hold *h) {
    if (c->co_heap_count == c->co_heap_room) {
        int32_t room = c->co_heap_room ? c->co_heap_room * 2 : 64;
        ps_hold **heap = realloc(c->co_heap, (size_t)room * sizeof *heap);
        if (heap == NULL) return false;
        c->co_heap = heap;
        c->co_heap_room = room;
    }
    sift(c, h, c->co_heap_count++);
    return true;
}

static void heap_remove(ps_core *c, ps_hold *h) {
    int32_t i = h->hd_heap;
    ps_hold *last = c->co_heap[--c->co_heap_count];
    if (last != h) sift(c, last, i);
}

/* ---- holding ---- */

static void unlink_hold(ps_core *c, ps_hold *h) {
    if (c->co_ready_end == &h->hd_next) c->co_ready_end = h->hd_link;
    *h->hd_link = h->hd_next;
    if (h->hd_next != NULL) h->hd_next->hd_link = h->hd_link;
    h->hd_next = NULL;
}

static void push_hold(ps_hold **list, ps_hold *h) {
    h->hd_next = *list;
    h->hd_link = list;
    if (h->hd_next != NULL) h->hd_next->hd_link = &h->hd_next;
    *list = h;
}

/* To the end of the ready ones: first come, first served. */
static void make_ready(ps_core *c, ps_hold *h) {
    h->hd_ready = true;
    h->hd_next = NULL;
    h->hd_link = c->co_ready_end;
    *c->co_ready_end = h;
    c->co_ready_end = &h->hd_next;
}

/* Waits in its queue from now on, unless news came meanwhile, or its time is over: then it only
 * lets others have their turn. */
static void park(ps_core *c, ps_hold *h) {
    h->hd_ready = false;
    if (ps_arrivals_watch(h->hd_queue, h->hd_offset) || h->hd_last)
        make_ready(c, h);
    else
        push_hold(&h->hd_queue->cq_holds, h);
}

static void free_hold(ps_core *c, ps_hold *h) {
    unlink_hold(c, h);
    heap_remove(c, h);
    *h->hd_conn_link = h->hd_conn_next;
    if (h->hd_conn_next != NULL) h->hd_conn_next->hd_conn_link = h->hd_conn_link;
    h->hd_pair->pr_holds--;
    ps_filter_unref(h->hd_filter);
    free(h);
}

void ps_core_drop_holds(ps_conn *n) {
    while (n->cn_holds != NULL) free_hold(n->cn_core, n->cn_holds);
}

/* Holds it; false when it has to be answered at once. */
static bool hold(ps_conn *n, const pull *p, int64_t suspend_ms) {
    ps_core *c = n->cn_core;
    if (c->co_heap_count >= c->co_holds_max) return false;
    int64_t wait_ms = !c->co_hold                   ? c->co_hold_short_ms
                      : suspend_ms < SUSPEND_MAX_MS ? suspend_ms
                                                    : SUSPEND_MAX_MS;
    ps_queue *q = ps_topic_queue_get(p->topic->te_topic, p->queue_id);
    ps_hold *h = q != NULL ? calloc(1, sizeof *h) : NULL;
    if (h == NULL) return false;
    *h = (ps_hold){.hd_conn = n,
                   .hd_pair = p->pair,
                   .hd_topic = p->topic,
                   .hd_queue = q,
                   .hd_opaque = p->opaque,
                   .hd_serialize = p->serialize,
                   .hd_max = p->max,
                   .hd_first = p->offset,
                   .hd_offset = p->offset,
                   .hd_deadline = ps_monotonic_ms() + wait_ms};
    if (!heap_add(c, h)) {
        free(h);
        return false;
    }
    h->hd_pair->pr_holds++;
    h->hd_filter = ps_filter_ref(p->filter);
    h->hd_conn_next = n->cn_holds;
    h->hd_conn_link = &n->cn_holds;
    if (h->hd_conn_next != NULL) h->hd_conn_next->hd_conn_link = &h->hd_conn_next;
    n->cn_holds = h;
    c->co_holding = true;
    park(c, h);
    return true;
}

/* ---- a new pull ---- */

static int serve(ps_conn *n, const pull *p, const request *r) {
    ps_core *c = n->cn_core;
    ps_batch_info b;
    int rc = answer_reset(c, p);
    if (rc != 0) return rc;
    if ((r->flags & SYS_COMMIT) && r->commit >= 0) ps_pair_commit(p->pair, p->queue_id, r->commit);
    ps_batch *batch = read_at(c, p, p->offset);
    if (batch == NULL) return 0;
    ps_batch_get(batch, &b);
    int32_t code = code_of(b.status, p->offset);
    bool held = is_empty(b.status, p->offset) && (r->flags & SYS_SUSPEND) && r->suspend_ms > 0 &&
                hold(n, p, r->suspend_ms);
    if (!held) rc = answer(c, p, code, name_of(b.status), &b, b.next_offset);
    ps_batch_free(batch);
    return rc < 0 ? rc : 1;
}

int ps_core_pull(ps_conn *n, const ps_command *command) {
    ps_core *c = n->cn_core;
    request r;
    if (!read_request(command, &r)) return 0;
    pull p = {.pair = ps_core_find_pair(c, r.group.data, r.group.len, r.topic.data, r.topic.len),
              .topic = ps_core_find_topic(c, r.topic.data, r.topic.len),
              .queue_id = (int32_t)(r.queue_id <= INT32_MAX ? r.queue_id : -1),
              .opaque = command->opaque,
              .serialize = command->serialize,
              .max = (int32_t)(r.max < MAX_MESSAGES ? r.max : MAX_MESSAGES),
              .offset = r.offset};
    if (p.pair == NULL || p.pair->pr_flags == 0 || p.topic == NULL || !p.topic->te_live ||
        !(p.topic->te_perm & PS_PERM_READ) || r.queue_id >= p.topic->te_read_queues ||
        (r.flags & SYS_CLASS_FILTER) || !choose_filter(p.pair, &r, &p.filter))
        return 0;
    c->co_totals.pulls++;
    return serve(n, &p, &r);
}

/* ---- held pulls that go on ---- */

static pull pull_of(const ps_hold *h) {
    return (pull){.pair = h->hd_pair,
                  .topic = h->hd_topic,
                  .filter = h->hd_filter,
                  .queue_id = h->hd_queue->cq_id,
                  .opaque = h->hd_opaque,
                  .serialize = h->hd_serialize,
                  .max = h->hd_max,
                  .offset = h->hd_first};
}

/* When its time is up: reports the offset after the skipped messages, so that they are not read
 * again. */
static int answer_last(ps_core *c, ps_hold *h, const ps_batch_info *b) {
    pull p = pull_of(h);
    if (h->hd_offset > h->hd_first)
        return answer(c, &p, PS_CODE_PULL_RETRY_IMMEDIATELY, name_of(PS_GET_NO_MATCHED_MESSAGE), b,
                      h->hd_offset);
    return answer(c, &p, code_of(b->status, h->hd_first), name_of(b->status), b, b->next_offset);
}

/* 1: answered (co_out), 0: it waits on, or an error code, after which its connection is done. */
static int go_on(ps_core *c, ps_hold *h) {
    pull p = pull_of(h);
    ps_batch_info b;
    int rc = answer_reset(c, &p);
    if (rc != 0) return rc;
    for (int64_t passed = 0;;) {
        ps_batch *batch = read_at(c, &p, h->hd_offset);
        if (batch == NULL) return PS_E_CLOSED;
        ps_batch_get(batch, &b);
        bool empty = is_empty(b.status, h->hd_offset);
        bool passes = b.status == PS_GET_NO_MATCHED_MESSAGE && b.next_offset > h->hd_offset;
        bool answered = empty ? h->hd_last : !passes;
        if (empty && answered)
            rc = answer_last(c, h, &b);
        else if (answered)
            rc = answer(c, &p, code_of(b.status, h->hd_offset), name_of(b.status), &b,
                        b.next_offset);
        ps_batch_free(batch);
        if (answered) return rc < 0 ? rc : 1;
        if (empty) return 0;
        passed += b.next_offset - h->hd_offset;
        h->hd_offset = b.next_offset;
        if (passed >= PASSED_OVER_MAX) return 0;
    }
}

static void take_arrivals(ps_core *c) {
    for (ps_queue *q = ps_arrivals_take(&c->co_store->st_arrivals), *next; q != NULL; q = next) {
        next = q->cq_arrived_next;
        ps_arrivals_done(q);
        if (q->cq_topic == c->co_schedule && q->cq_id < 64) c->co_levels |= 1ull << q->cq_id;
        for (ps_hold *h = q->cq_holds; h != NULL; h = q->cq_holds) {
            unlink_hold(c, h);
            make_ready(c, h);
        }
    }
}

static void end_overdue(ps_core *c, bool all) {
    int64_t now = ps_monotonic_ms();
    for (int32_t i = 0; all && i < c->co_heap_count; i++) c->co_heap[i]->hd_deadline = 0;
    /* With equal deadlines any order is a heap; each is taken from it when it is answered. */
    while (c->co_heap_count > 0 && c->co_heap[0]->hd_deadline <= now) {
        ps_hold *h = c->co_heap[0];
        h->hd_last = true;
        h->hd_deadline = INT64_MAX;
        sift(c, h, 0);
        if (h->hd_ready) continue;
        unlink_hold(c, h);
        make_ready(c, h);
    }
}

int64_t ps_core_deadline_in(const ps_core *c) {
    if (c->co_heap_count == 0 || c->co_heap[0]->hd_deadline == INT64_MAX) return -1;
    int64_t left = c->co_heap[0]->hd_deadline - ps_monotonic_ms();
    return left > 0 ? left : 0;
}

static void look_around(ps_core *c) {
    uint64_t count;
    /* Read first: what is announced after it makes the descriptor readable again. */
    if (read(c->co_event_fd, &count, sizeof count) < 0) count = 0;
    take_arrivals(c);
    end_overdue(c, false);
}

int ps_core_next(ps_core *c, int32_t all, ps_step *out, int64_t *next_ms) {
    bool looked = false;
    c->co_out.len = 0;
    if (all) end_overdue(c, true);
    *next_ms = 0;
    for (int rounds = 0;; rounds++) {
        /* After those that were ready before, and before every 0: an arrival may have been
         * announced to nobody (see look_for_news). */
        if (c->co_ready == NULL && !looked) {
            look_around(c);
            looked = true;
        }
        if (c->co_ready == NULL) break;
        if (rounds >= ROUNDS_MAX) return 0;
        ps_hold *h = c->co_ready;
        int64_t conn_id = h->hd_conn->cn_id;
        int rc = go_on(c, h);
        if (rc == 0) {
            unlink_hold(c, h);
            park(c, h);
            continue;
        }
        free_hold(c, h);
        *out = (ps_step){.out = c->co_out.data, .out_len = c->co_out.len, .conn_id = conn_id};
        return 1;
    }
    *next_ms = ps_core_deadline_in(c);
    return 0;
}

void ps_core_take_pulled(ps_core *c, ps_pulled *out) {
    *out = c->co_pulled;
    c->co_pulled.code = -1;
}

int ps_core_watch_level(ps_core *c, int32_t level, int64_t offset, ps_error *e) {
    ps_queue *q = level > 0 && level <= 64 ? ps_topic_queue_get(c->co_schedule, level - 1) : NULL;
    if (q == NULL) return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "delay level %d", level);
    return ps_arrivals_watch(q, offset);
}

uint64_t ps_core_levels(ps_core *c) {
    uint64_t levels = c->co_levels;
    c->co_levels = 0;
    return levels;
}

void ps_core_wake_pair(ps_core *c, ps_pair *p, int32_t queue_id) {
    for (int32_t i = 0; i < c->co_heap_count; i++) {
        ps_hold *h = c->co_heap[i];
        if (h->hd_pair != p || h->hd_queue->cq_id != queue_id || h->hd_ready) continue;
        unlink_hold(c, h);
        make_ready(c, h);
    }
    uint64_t one = 1;
    if (c->co_ready != NULL && write(c->co_event_fd, &one, sizeof one) < 0) return;
}
