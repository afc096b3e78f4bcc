/* Lite topics against a count of what a group has still to get: clients that subscribe, wait,
 * acknowledge, leave, and lose their connections, in any order. Each message comes once, and in
 * order. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "format/offsetblock.h"
#include "lite/litetable.h"
#include "pop/poporder.h"
#include "store/lights.h"
#include "tables/lags.h"
#include "tables/lightrows.h"

enum { STEPS = 4000, CLIENTS = 4, NAMES = 6, HOUR = 3600000 };
enum { OTHERS = 4, ALL = NAMES + OTHERS }; /* lite topics that nobody subscribes to, and that go */

static ps_conn *conns[CLIENTS];
static bool polls[CLIENTS];
static bool joined[CLIENTS];
static int64_t sent[ALL], acked[NAMES];
static int answers_seen;

static ps_lite_who who(int i) {
    static char ids[CLIENTS][8];
    snprintf(ids[i], sizeof ids[i], "c%d", i);
    return (ps_lite_who){"g", ids[i], 1, (int32_t)strlen(ids[i])};
}

static int32_t queue_of(int name, char to[32]) {
    return snprintf(to, 32, "%%LMQ%%$L$n%d", name);
}

/* ---- what the broker asks ---- */

static void join(int i) {
    ps_error e = {0};
    ps_lite_who w = who(i);
    CHECK(ps_lite_join(kit_core, &w, "L", 1, 100, &e) >= 0);
    joined[i] = true;
}

static void subscribe(int i, int name) {
    char queue[32];
    uint8_t names[64];
    ps_error e = {0};
    ps_lite_who w = who(i);
    int32_t len = queue_of(name, queue), head = name % 2 == 0 ? 0 : sizeof "%LMQ%$L$" - 1, at = 0;
    names[0] = (uint8_t)(len - head);
    memcpy(names + 1, queue + head, (size_t)(len - head));
    if (head == 0) {
        CHECK(ps_lite_add(kit_core, &w, names, len + 1, &e) >= 0);
    } else {
        CHECK(ps_lite_add_below(kit_core, &w, "L", 1, names, len - head + 1, &at, &e) >= 0);
        CHECK_EQ(len - head + 1, at);
    }
}

/* A call takes some of many names, and refuses one that is too long, or is cut off. */
static void test_many_below(void) {
    static uint8_t names[5000 * 7];
    uint8_t one[256] = {255};
    ps_lite_who w = {"many", "m", 4, 1};
    ps_lite_row row;
    ps_error e = {0};
    int32_t at = 0, made = 0, calls = 0;
    CHECK(ps_lite_join(kit_core, &w, "L", 1, 100, &e) >= 0);
    for (int i = 0; i < 5000; i++) {
        names[7 * i] = 6;
        for (int digit = 5, left = i; digit >= 0; digit--, left /= 10)
            names[7 * i + 1 + digit] = (uint8_t)('0' + left % 10);
    }
    for (; at < (int32_t)sizeof names; calls++)
        made += ps_lite_add_below(kit_core, &w, "L", 1, names, sizeof names, &at, &e);
    CHECK(calls > 1 && ps_lite_get(kit_core, &w, &row));
    CHECK_EQ(5000, made);
    CHECK_EQ(5000, row.queues);
    at = 0;
    memset(one + 1, 'x', sizeof one - 1);
    CHECK_EQ(PS_E_ARGUMENT, ps_lite_add_below(kit_core, &w, "L", 1, one, sizeof one, &at, &e));
    one[0] = 4;
    CHECK_EQ(PS_E_ARGUMENT, ps_lite_add_below(kit_core, &w, "L", 1, one, 4, &at, &e));
    ps_lite_leave(kit_core, &w);
}

static void unsubscribe(int i, int name) {
    char queue[32];
    ps_lite_who w = who(i);
    int32_t len = queue_of(name, queue);
    if (ps_lite_remove(kit_core, &w, queue, len)) ps_lite_give(kit_core, "g", 1, queue, len);
}

/* ---- requests ---- */

static void begin_pop(kit_frame *f, int i, int64_t poll_ms, int64_t most) {
    kit_begin(f, 0, 200070, 1000 + i); /* a binary header has no room for the code */
    kit_text(f, "clientId", who(i).id);
    kit_text(f, "consumerGroup", "g");
    kit_text(f, "topic", "L");
    kit_number(f, "maxMsgNum", most);
    kit_number(f, "invisibleTime", HOUR);
    kit_number(f, "pollTime", poll_ms);
}

/* As after the broker has found it right. */
static void pop_checked(int i, int64_t poll_ms) {
    static uint8_t frame[4096];
    kit_frame f;
    ps_step step;
    ps_error e = {0};
    begin_pop(&f, i, poll_ms, 1 + check_below(4));
    int64_t len = kit_encode(&f, NULL, 0, frame, sizeof frame);
    CHECK_EQ(1, ps_conn_serve_pop(conns[i], frame, len, &step, &e));
    polls[i] = true;
    kit_take(&step);
}

static void pop(int i, int64_t poll_ms) {
    kit_frame f;
    int handed = kit_handed_count;
    begin_pop(&f, i, poll_ms, 1 + check_below(4));
    kit_ask(conns[i], &f, NULL, 0);
    CHECK_EQ(handed, kit_handed_count);
    polls[i] = true;
}

static void send_to(int name) {
    char properties[96];
    kit_frame f;
    snprintf(properties, sizeof properties, UNIQ "__LITE_TOPIC\1n%d\2", name);
    kit_send(&f, 0, 1, "L", 0, properties);
    static ps_conn *n;
    if (n == NULL) n = kit_conn(99);
    if (name < 0) {
        ps_conn_free(n);
        n = NULL;
        return;
    }
    kit_ask(n, &f, "x", 1);
    sent[name]++;
}

static void ack(int i, int name, int64_t offset, int64_t pop_ms) {
    char handle[128], lite[8];
    kit_frame f;
    int handed = kit_handed_count;
    snprintf(lite, sizeof lite, "n%d", name);
    snprintf(handle, sizeof handle, "0 %" PRId64 " %d 999 0 b 0 %" PRId64, pop_ms, HOUR, offset);
    kit_begin(&f, 0, 200051, 77);
    kit_text(&f, "consumerGroup", "g");
    kit_text(&f, "topic", "L");
    kit_text(&f, "liteTopic", lite);
    kit_text(&f, "queueId", "0");
    kit_number(&f, "offset", offset);
    kit_text(&f, "extraInfo", handle);
    kit_ask(conns[i], &f, NULL, 0);
    CHECK_EQ(handed, kit_handed_count);
}

/* ---- what came ---- */

static void take_record(int i, const uint8_t *record, int64_t pop_ms) {
    ps_record r;
    ps_property p;
    CHECK_EQ(PS_REC_OK, ps_record_decode(record, be32_get(record), &r));
    CHECK(ps_property_find(r.properties, r.properties_len, "__LITE_TOPIC", 12, &p));
    int name = p.value[1] - '0';
    CHECK(ps_property_find(r.properties, r.properties_len, "INNER_MULTI_QUEUE_OFFSET", 24, &p));
    char digits[24] = {0};
    memcpy(digits, p.value, (size_t)p.value_len);
    CHECK_EQ(acked[name], strtoll(digits, NULL, 10)); /* once, and in order */
    ack(i, name, acked[name], pop_ms);
    acked[name]++;
}

static void take_answers(void) {
    kit_pump(false);
    for (; answers_seen < kit_answer_count; answers_seen++) {
        static uint8_t body[1 << 20];
        const ps_command *c = kit_answers[answers_seen].command;
        int i = (int)c->opaque - 1000;
        if (i < 0 || i >= CLIENTS) {
            CHECK_EQ(0, c->code);
            continue;
        }
        polls[i] = false;
        CHECK(c->code == 0 || c->code == 210);
        int64_t len = c->body.len, pop_ms = kit_field(c, "popTime");
        memcpy(body, c->body.data, (size_t)len);
        for (int64_t at = 0; at < len; at += be32_get(body + at)) take_record(i, body + at, pop_ms);
        kit_pump(false);
    }
    if (kit_answer_count > KIT_ANSWERS / 2) {
        kit_clear();
        answers_seen = 0;
    }
}

static int64_t left(void) {
    int64_t all = 0;
    for (int i = 0; i < NAMES; i++) all += sent[i] - acked[i];
    return all;
}

/* ---- how far the group is behind ---- */

static int64_t lag_of(const char *group, const char *queue, int32_t len) {
    int64_t at = ps_core_offset(kit_core, group, 1, queue, len, 0);
    int64_t left = at < 0 ? 0 : ps_lights_end(kit_store, queue, len) - at;
    return left > 0 ? left : 0;
}

static int more_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* `most`: what a walk finds, in descending order. */
static void check_top(const char *group, const int64_t most[ALL], int64_t queues) {
    ps_lag_queue top[ALL];
    ps_error e = {0};
    int32_t room = (int32_t)check_below(ALL + 1);
    int32_t count = ps_lag_top(kit_core, group, 1, top, room, &e);
    CHECK_EQ(room < queues ? room : queues, count);
    for (int32_t i = 0; i < count; i++) {
        CHECK_EQ(most[i], top[i].messages);
        CHECK_EQ(most[i], lag_of(group, top[i].name, top[i].len));
        for (int32_t j = 0; j < i; j++)
            CHECK(top[i].len != top[j].len ||
                  memcmp(top[i].name, top[j].name, (size_t)top[i].len) != 0);
    }
}

/* What is kept is what a walk finds. */
static void check_lag(const char *group) {
    int64_t messages = 0, queues = 0, most[ALL];
    ps_lag_row row;
    while (!ps_lite_look_now(kit_core)) {
    }
    for (int name = 0; name < ALL; name++) {
        char queue[32];
        int32_t len = queue_of(name, queue);
        most[name] = lag_of(group, queue, len);
        messages += most[name];
        queues += most[name] > 0;
    }
    qsort(most, ALL, sizeof *most, more_first);
    CHECK_EQ(1, ps_lag_get(kit_core, group, 1, &row));
    CHECK_EQ(messages, row.messages);
    CHECK_EQ(queues, row.queues);
    CHECK_EQ(2, ps_lag_list(kit_core, &row, 1));
    check_top(group, most, queues);
}

static void check_count(void) {
    static ps_light_row rows[2 * ALL];
    int64_t walked = ps_lights_list(kit_store, 0, rows, 2 * ALL);
    CHECK_EQ(walked, ps_lights_below(kit_store, "%LMQ%$L$", 8));
    CHECK_EQ(0, ps_lights_below(kit_store, "%LMQ%$L", 7));
}

/* As a start does, or a commit: what the group is behind is counted when somebody asks. */
static void load_offset(const char *queue, int32_t len, int64_t offset) {
    uint8_t block[128];
    ps_error e = {0};
    int32_t head[] = {1, len, 1};
    uint8_t *to = mempcpy(mempcpy(block, head, sizeof head), "h", 1);
    to = ps_offset_row_put(mempcpy(to, queue, (size_t)len), 0, offset);
    CHECK_EQ(0, ps_core_load_offsets(kit_core, block, to - block, &e));
}

/* A group that only commits: anywhere, and also to what is not there. */
static void move_other_group(void) {
    char queue[32];
    ps_error e = {0};
    int name = (int)check_below(ALL);
    int32_t len = queue_of(name, queue);
    int64_t to = (int64_t)check_below((uint64_t)sent[name] + 3);
    switch (check_below(9)) {
    case 0:
        ps_core_forget_offsets(kit_core, "h", 1, queue, len);
        break;
    case 1:
        CHECK_EQ(0, ps_core_reset(kit_core, "h", 1, queue, len, 0, to, &e));
        break;
    case 2:
        CHECK_EQ(0, ps_lag_bind(kit_core, "h", 1, "", 0, &e));
        CHECK_EQ(0, ps_lag_bind(kit_core, "h", 1, "L", 1, &e));
        break;
    case 3:
        load_offset(queue, len, to);
        break;
    default:
        CHECK(ps_core_commit(kit_core, "h", 1, queue, len, 0, to, &e) >= 0);
    }
}

static void check_bound(const char *parent, int64_t messages) {
    ps_error e = {0};
    ps_lag_row row;
    CHECK_EQ(0, ps_lag_bind(kit_core, "g", 1, parent, (int32_t)strlen(parent), &e));
    CHECK_EQ(*parent != 0, ps_lag_get(kit_core, "g", 1, &row));
    if (*parent != 0) CHECK_EQ(messages, row.messages);
}

static void test_lag_follows_groups_offsets_and_queues(void) {
    char queue[32];
    ps_error e = {0};
    int32_t len = queue_of(0, queue);
    CHECK_EQ(0, ps_core_commit(kit_core, "g", 1, queue, len, 0, sent[0] - 3, &e));
    check_bound("L", 3);
    check_bound("other", 0);
    check_bound("", 0);
    check_bound("L", 3);
    ps_core_forget_offsets(kit_core, "g", 1, queue, len);
    check_bound("L", 0);
    CHECK_EQ(0, ps_core_commit(kit_core, "g", 1, queue, len, 0, sent[0] - 2, &e));
    check_bound("L", 2);
    CHECK_EQ(0, ps_lite_delete(kit_core, queue, len, (const uint8_t *)"\1g", 2, 1, &e));
    CHECK_EQ(sent[0] - 2, ps_core_offset(kit_core, "g", 1, queue, len, 0));
    CHECK_EQ(1, ps_lite_delete(kit_core, queue, len, (const uint8_t *)"\1g", 2, 0, &e));
    CHECK_EQ(-1, ps_core_offset(kit_core, "g", 1, queue, len, 0));
    check_bound("L", 0);
}

/* ---- steps ---- */

static void close_one(int i) {
    ps_conn_free(conns[i]);
    conns[i] = kit_conn(i + 1);
    polls[i] = false;
}

static void leave(int i) {
    ps_lite_who w = who(i);
    ps_lite_leave(kit_core, &w);
    joined[i] = false;
}

static void send_or_delete(int name) {
    char queue[32];
    ps_error e = {0};
    int32_t len = queue_of(name, queue);
    if (check_below(4) > 0) {
        send_to(name);
    } else {
        int gone = ps_lite_delete(kit_core, queue, len, (const uint8_t *)"\1h", 2, 0, &e);
        CHECK_EQ(sent[name] > 0, gone);
        sent[name] = 0;
    }
}

static void step(void) {
    int i = (int)check_below(CLIENTS), name = (int)check_below(NAMES);
    switch (check_below(13)) {
    case 0:
        if (!joined[i]) join(i);
        subscribe(i, name);
        break;
    case 1:
        unsubscribe(i, name);
        break;
    case 2:
        if (check_below(8) == 0 && joined[i] && i > 0) leave(i); /* a group is known by the first */
        break;
    case 3:
        if (check_below(4) == 0) close_one(i);
        break;
    case 4:
    case 5:
    case 6:
        if (!polls[i] && joined[i]) pop(i, check_below(3) == 0 ? 0 : HOUR);
        break;
    case 7:
    case 8:
        move_other_group();
        break;
    case 9:
        send_or_delete(NAMES + (int)check_below(OTHERS));
        break;
    default:
        send_to(name);
        break;
    }
    take_answers();
}

static void test_each_message_comes_once_and_in_order(void) {
    join(0);
    pop_checked(0, 0);
    take_answers();
    for (int n = 0; n < STEPS; n++) {
        step();
        check_lag("g");
        check_lag("h");
        check_count();
    }
    for (int i = 0; i < CLIENTS; i++) {
        if (!joined[i]) join(i);
        for (int name = 0; name < NAMES; name++) subscribe(i, name);
    }
    for (int i = 0; i < CLIENTS; i++) {
        ps_lite_who w = who(i);
        ps_lite_dispatch(kit_core, &w);
    }
    for (int tries = 0; left() > 0 && tries < 4 * STEPS; tries++) {
        for (int i = 0; i < CLIENTS; i++)
            if (!polls[i]) pop(i, HOUR);
        take_answers();
    }
    CHECK_EQ(0, left());
}

/* Whoever chooses names cannot know which share a chain: these have one hash by FNV-1a. */
static void test_names_of_one_hash_do_not_share_a_chain(void) {
    const char *names[] = {"%LMQ%$lite$g4phj2lhj2lh", "%LMQ%$lite$g4phj2lhvCxa",
                           "%LMQ%$lite$C-tavCxavCxa"};
    uint32_t same = 0, first = ps_hash_of(names[0], (int32_t)strlen(names[0]));
    for (int i = 1; i < 3; i++) same += first == ps_hash_of(names[i], (int32_t)strlen(names[i]));
    CHECK_EQ(0, same);
    ps_hash_key[0] += 2;
    CHECK(first != ps_hash_of(names[0], (int32_t)strlen(names[0])));
    ps_hash_key[0] -= 2;
}

/* A pop of one message by a client of another group, as after the broker has found it right. */
static void ask_as(ps_conn *n, const ps_lite_who *w, int64_t poll_ms, int64_t invisible_ms) {
    kit_frame f;
    ps_step step;
    ps_error e = {0};
    static uint8_t frame[4096];
    kit_clear();
    answers_seen = 0;
    kit_begin(&f, 0, 200070, 2000);
    kit_text(&f, "clientId", w->id);
    kit_text(&f, "consumerGroup", w->group);
    kit_text(&f, "topic", "L");
    kit_number(&f, "maxMsgNum", 1);
    kit_number(&f, "invisibleTime", invisible_ms);
    kit_number(&f, "pollTime", poll_ms);
    int64_t len = kit_encode(&f, NULL, 0, frame, sizeof frame);
    CHECK_EQ(1, ps_conn_serve_pop(n, frame, len, &step, &e));
    kit_take(&step);
}

/* The same without waiting: whether there was one. */
static bool ask_now(ps_conn *n, const ps_lite_who *w, int64_t invisible_ms) {
    ask_as(n, w, 0, invisible_ms);
    CHECK_EQ(1, kit_answer_count);
    return kit_answers[0].command->code == 0;
}

/* Which lite topics came to a pop of the group that reads all. */
static int pop_all(ps_conn *n, bool found[ALL]) {
    const ps_lite_who w = {"w", "w0", 1, 2};
    int count = 0;
    ask_now(n, &w, HOUR);
    const ps_command *c = kit_answers[0].command;
    for (int64_t at = 0; at < c->body.len; at += be32_get(c->body.data + at), count++) {
        ps_record r;
        ps_property p;
        CHECK_EQ(PS_REC_OK, ps_record_decode(c->body.data + at, be32_get(c->body.data + at), &r));
        CHECK(ps_property_find(r.properties, r.properties_len, "__LITE_TOPIC", 12, &p));
        found[p.value[1] - '0'] = true;
    }
    return count;
}

/* Others of the group that never ask keep nothing from it. */
static void test_who_asks_gets_what_waits_for_a_wildcard_group(void) {
    bool found[ALL] = {false};
    ps_error e = {0};
    for (int i = 0; i < CLIENTS; i++) {
        const char *ids[CLIENTS] = {"w0", "w1", "w2", "w3"};
        const ps_lite_who w = {"w", ids[i], 1, 2};
        CHECK(ps_lite_join(kit_core, &w, "L", 1, 100, &e) >= 0);
        CHECK(ps_lite_add_wild(kit_core, &w) >= 0);
    }
    for (int tries = 0; tries < 2 * ALL; tries++) pop_all(conns[0], found);
    for (int name = 0; name < ALL; name++) CHECK_EQ(sent[name] > 0, found[name]);
    kit_clear();
}

/* ---- events of clients that do not ask ---- */

enum { MANY = 100 }; /* more than a pop looks at */

/* One of a group of three. */
static ps_lite_who idler(const char *id) {
    return (ps_lite_who){"idle", id, 4, 2};
}

static void put_idle(const char *lite) {
    char properties[96];
    kit_frame f;
    snprintf(properties, sizeof properties, UNIQ "__LITE_TOPIC\1%s\2", lite);
    kit_send(&f, 0, 1, "L", 0, properties);
    kit_ask(conns[2], &f, "x", 1);
    ps_dispatch_catch_up(kit_store, NULL);
}

static void send_idle(const char *lite) {
    put_idle(lite);
    while (!ps_lite_look_now(kit_core)) {
    }
}

static void subscribe_idle(const ps_lite_who *w, const char *lite) {
    uint8_t names[64];
    ps_error e = {0};
    int32_t at = 0;
    names[0] = (uint8_t)strlen(lite);
    memcpy(names + 1, lite, names[0]);
    CHECK(ps_lite_add_below(kit_core, w, "L", 1, names, 1 + names[0], &at, &e) >= 0);
}

static int32_t events_of(const ps_lite_who *w) {
    ps_lite_row row = {0};
    CHECK_EQ(1, ps_lite_get(kit_core, w, &row));
    return row.events;
}

static void join_idlers(void) {
    static const char *ids[] = {"i0", "i1", "i2"};
    ps_error e = {0};
    for (int i = 0; i < 3; i++) {
        const ps_lite_who w = idler(ids[i]);
        CHECK(ps_lite_join(kit_core, &w, "L", 1, 2 * MANY, &e) >= 0);
    }
}

static void leave_idlers(void) {
    static const char *ids[] = {"i0", "i1", "i2"};
    for (int i = 0; i < 3; i++) {
        const ps_lite_who w = idler(ids[i]);
        ps_lite_leave(kit_core, &w);
    }
    kit_pump(false);
    kit_clear();
}

static void test_who_subscribes_has_the_event_of_an_idle_client(void) {
    const ps_lite_who a = idler("i0"), b = idler("i1");
    join_idlers();
    subscribe_idle(&a, "s1");
    send_idle("s1");
    CHECK_EQ(1, events_of(&a));
    subscribe_idle(&b, "s1");
    CHECK_EQ(0, events_of(&a));
    CHECK_EQ(1, events_of(&b));
    CHECK(ask_now(conns[1], &b, HOUR));
    leave_idlers();
}

/* Who asks without waiting, too. */
static void test_who_asks_has_the_event_of_an_idle_client(void) {
    const ps_lite_who a = idler("i0"), b = idler("i1");
    join_idlers();
    subscribe_idle(&a, "s2");
    subscribe_idle(&b, "s2");
    send_idle("s2");
    bool of_b = events_of(&b) > 0;
    CHECK_EQ(1, events_of(&a) + events_of(&b));
    CHECK(ask_now(conns[1], of_b ? &a : &b, HOUR));
    CHECK_EQ(0, events_of(&a) + events_of(&b));
    leave_idlers();
}

/* One that waited, and whose connection is gone before it is answered, has it. */
static void give_and_close(const ps_lite_who *w, const char *lite) {
    ask_as(conns[0], w, HOUR, HOUR);
    CHECK_EQ(0, kit_answer_count);
    send_idle(lite);
    CHECK_EQ(1, events_of(w));
    close_one(0);
}

static void test_who_waits_has_the_event_of_a_client_that_loses_its_connection(void) {
    const ps_lite_who a = idler("i0"), b = idler("i1");
    join_idlers();
    subscribe_idle(&a, "s3");
    subscribe_idle(&b, "s3");
    ask_as(conns[0], &a, HOUR, HOUR);
    send_idle("s3");
    CHECK_EQ(1, events_of(&a));
    ask_as(conns[1], &b, HOUR, HOUR);
    CHECK_EQ(0, kit_answer_count);
    close_one(0);
    kit_pump(false);
    CHECK_EQ(1, kit_answer_count);
    CHECK_EQ(2, kit_answers[0].conn);
    CHECK_EQ(0, kit_answers[0].command->code);
    leave_idlers();
}

/* Those that it does not read cost a pop the same, however many there are, and hide no other. */
static void test_a_pop_looks_at_some_events_of_idle_clients_and_the_next_one_goes_on(void) {
    const ps_lite_who a = idler("i0"), b = idler("i1"), other = idler("i2");
    join_idlers();
    for (int i = 0; i < MANY; i++) {
        char lite[16];
        snprintf(lite, sizeof lite, "many%d", i);
        subscribe_idle(&other, lite);
        send_idle(lite);
    }
    CHECK_EQ(MANY, events_of(&other));
    subscribe_idle(&a, "s4");
    subscribe_idle(&b, "s4");
    give_and_close(&a, "s4");
    CHECK(!ask_now(conns[1], &b, HOUR));
    CHECK(ask_now(conns[1], &b, HOUR));
    CHECK_EQ(MANY, events_of(&other));
    leave_idlers();
}

/* Of a group that reads all, without a walk over all light queues. */
static void test_who_asks_has_the_event_of_an_idle_client_of_a_wildcard_group(void) {
    const ps_lite_who a = {"all", "a0", 3, 2}, b = {"all", "a1", 3, 2};
    bool found = true;
    ps_error e = {0};
    CHECK(ps_lite_join(kit_core, &a, "L", 1, 100, &e) >= 0);
    CHECK(ps_lite_join(kit_core, &b, "L", 1, 100, &e) >= 0);
    CHECK(ps_lite_add_wild(kit_core, &a) >= 0);
    CHECK(ps_lite_add_wild(kit_core, &b) >= 0);
    for (int i = 0; found || i < 2; i++) found = ask_now(conns[1], &a, HOUR);
    for (int i = 0; i < 2; i++) CHECK(!ask_now(conns[1], &b, HOUR));
    give_and_close(&a, "s5");
    CHECK(ask_now(conns[1], &b, HOUR));
    ps_lite_leave(kit_core, &a);
    ps_lite_leave(kit_core, &b);
    kit_pump(false);
    kit_clear();
}

static void test_who_waits_is_looked_at_when_a_batch_comes_back(void) {
    const ps_lite_who a = idler("i0"), b = idler("i1");
    join_idlers();
    subscribe_idle(&a, "s6");
    subscribe_idle(&b, "s6");
    send_idle("s6");
    CHECK(ask_now(conns[1], &a, 5000));
    ask_as(conns[0], &b, HOUR, HOUR);
    CHECK(kit_look_in_ms >= 0 && kit_look_in_ms <= 5000);
    leave_idlers();
}

/* Nobody waits, so nobody was woken by it. */
static void test_who_asks_hears_of_what_has_just_been_put(void) {
    const ps_lite_who a = idler("i0");
    join_idlers();
    subscribe_idle(&a, "s7");
    put_idle("s7");
    CHECK(ask_now(conns[1], &a, HOUR));
    leave_idlers();
}

/* From when it leaves, whatever is still to be freed of it. */
static void test_who_has_left_subscribes_to_nothing(void) {
    char queue[32];
    ps_lite_totals before, after;
    ps_lite_row rows[CLIENTS + 1];
    int32_t len = queue_of(0, queue);
    if (!joined[1]) join(1);
    subscribe(1, 0);
    const ps_lite_who one = who(1);
    CHECK_EQ(1, ps_lite_get(kit_core, &one, &rows[0]));
    int64_t had = rows[0].queues;
    int32_t all = ps_lite_subscribers(kit_core, queue, len, "g", 1, rows, CLIENTS + 1);
    ps_lite_counts(kit_core, &before);
    leave(1);
    ps_lite_counts(kit_core, &after);
    CHECK_EQ(before.pairs - had, after.pairs);
    CHECK_EQ(before.leaving + had, after.leaving);
    CHECK(after.changes > before.changes);
    CHECK_EQ(all - 1, ps_lite_subscribers(kit_core, queue, len, "g", 1, rows, CLIENTS + 1));
    while (after.leaving > 0) {
        int64_t changes = after.changes;
        take_answers();
        ps_lite_look_now(kit_core);
        ps_lite_counts(kit_core, &after);
        CHECK_EQ(before.pairs - had, after.pairs);
        CHECK_EQ(changes, after.changes);
    }
    join(1);
}

/* Names of a client of its own, from `low` to before `high`, one after the other. */
static void subscribe_many(const ps_lite_who *w, int low, int high) {
    uint8_t names[4096];
    ps_error e = {0};
    int32_t len = 0;
    for (int i = low; i < high; i++) {
        char queue[32];
        names[len] = (uint8_t)snprintf(queue, sizeof queue, "%%LMQ%%$L$m%03d", i);
        memcpy(names + len + 1, queue, names[len]);
        len += 1 + names[len];
    }
    CHECK(ps_lite_add(kit_core, w, names, len, &e) >= 0);
}

/* Notes the names of one piece; false: there are no more. */
static bool take_names(const ps_lite_who *w, bool begin, int seen[100]) {
    uint8_t piece[UINT8_MAX + 1];
    int32_t len = ps_lite_names(kit_core, w, begin, piece, sizeof piece);
    for (int32_t at = 0; at < len; at += 1 + piece[at])
        seen[100 * (piece[at + piece[at] - 2] - '0') + 10 * (piece[at + piece[at] - 1] - '0') +
             piece[at + piece[at]] - '0']++;
    return len > 0;
}

/* What is taken up, again or anew, and given up meanwhile; and a client that does so for ever. */
static void test_names_by_the_piece_are_all_of_them(void) {
    const ps_lite_who w = {"g", "many", 1, 4};
    int seen[100] = {0};
    ps_error e = {0};
    ps_lite_totals before, after;
    CHECK(ps_lite_join(kit_core, &w, "L", 1, 100, &e) >= 0);
    subscribe_many(&w, 0, 90);
    CHECK(take_names(&w, true, seen));
    subscribe_many(&w, 95, 100);
    CHECK_EQ(1, ps_lite_remove(kit_core, &w, "%LMQ%$L$m089", 12));
    for (int i = 80; i < 89; i++) subscribe_many(&w, i, i + 1);
    subscribe_many(&w, 20, 40);
    while (take_names(&w, false, seen)) {
    }
    for (int i = 0; i < 100; i++) CHECK_EQ(i < 89 || i >= 95, seen[i] > 0);
    ps_lite_counts(kit_core, &before);
    int pieces = 1;
    for (take_names(&w, true, seen); take_names(&w, false, seen); pieces++) {
        ps_lite_begin_set(kit_core, &w);
        subscribe_many(&w, 0, 94);
        CHECK(pieces < 100);
    }
    ps_lite_counts(kit_core, &after);
    CHECK(after.changes > before.changes);
    CHECK_EQ(3, ps_lite_end_set(kit_core, &w, 3));
    while (ps_lite_end_set(kit_core, &w, 3) > 0) {
    }
    memset(seen, 0, sizeof seen);
    for (bool begin = true; take_names(&w, begin, seen); begin = false) {
    }
    for (int i = 0; i < 100; i++) CHECK_EQ(i < 94, seen[i]);
    ps_lite_leave(kit_core, &w);
}

/* Of any number of sets that have begun and not ended; and when old pairs come after new ones. */
static void test_what_is_not_of_the_last_set_goes(void) {
    const ps_lite_who w = {"g", "sets", 1, 4};
    ps_error e = {0};
    for (int sets = 1; sets < 100; sets++) {
        int seen[100] = {0};
        CHECK(ps_lite_join(kit_core, &w, "L", 1, 100, &e) >= 0);
        subscribe_many(&w, 0, 50);
        for (int i = 0; i < sets; i++) {
            ps_lite_begin_set(kit_core, &w);
            subscribe_many(&w, 40, 60);
        }
        lite_client *c = ps_lite_find_who(kit_core, &w);
        if (sets % 2 == 0)
            for (int i = 0; i < 10; i++) ps_lite_list_sub(kit_core->co_lite, c->lc_subs);
        for (int calls = 0; ps_lite_end_set(kit_core, &w, 7) == 7; calls++)
            if (!CHECK(calls < 100)) return;
        for (bool begin = true; take_names(&w, begin, seen); begin = false) {
        }
        for (int i = 0; i < 100; i++) CHECK_EQ(i >= 40 && i < 60, seen[i] > 0);
        if (sets % 3 == 0) ps_lite_leave(kit_core, &w); /* else with the pairs of before */
    }
    ps_lite_leave(kit_core, &w);
}

/* A number is given again when nothing of its client is left, and to one client at a time. */
static void test_clients_that_come_and_go_have_numbers_of_their_own(void) {
    enum { HERE = 150, ROUNDS = 40 };
    ps_lite *l = kit_core->co_lite;
    uint32_t most = 0;
    ps_error e = {0};
    for (int round = 0; round < ROUNDS; round++) {
        char ids[HERE][16];
        for (int i = 0; i < HERE; i++) {
            ps_lite_who w = {"g", ids[i], 1, snprintf(ids[i], 16, "%d-%d", round, i)};
            CHECK_EQ(1, ps_lite_join(kit_core, &w, "L", 1, 100, &e));
            subscribe_many(&w, i % 90, i % 90 + 2);
        }
        for (int i = 0; i < HERE; i++) {
            ps_lite_who w = {"g", ids[i], 1, (int32_t)strlen(ids[i])};
            lite_client *c = ps_lite_find_who(kit_core, &w);
            CHECK(l->rg_numbered[c->lc_number] == c);
            CHECK(ps_lite_client_of(l, ps_lite_sub_at(l, c->lc_subs)) == c);
            ps_lite_leave(kit_core, &w);
        }
        for (int i = 0; i < 100 && l->rg_gone != NULL; i++) ps_lite_look_now(kit_core);
        CHECK(l->rg_gone == NULL);
        if (round == 0) most = l->rg_number_count;
    }
    CHECK_EQ(most, l->rg_number_count);
}

/* What a row has no bits for counts as the most that it can say, and right once it is less. */
static void test_a_lag_that_a_row_cannot_say_is_looked_up(void) {
    const char *queue = "%LMQ%$L$far";
    const int64_t end = 4 * PS_BEHIND_MAX;
    const int64_t behind[] = {end, 5, PS_BEHIND_MAX + 1, PS_BEHIND_MAX, PS_BEHIND_MAX - 1,
                              1LL << 33, PS_BEHIND_MAX + 2, 0, end};
    ps_light *light = &kit_store->st_light;
    ps_lag_row before, now;
    ps_error e = {0};
    pthread_mutex_lock(&light->lt_lock);
    ps_light_queue *q = ps_light_get_locked(light, queue, 11);
    q->lq_max = q->lq_next = end;
    pthread_mutex_unlock(&light->lt_lock);
    CHECK_EQ(1, ps_lag_get(kit_core, "h", 1, &before));
    for (int i = 0; i < (int)(sizeof behind / sizeof *behind); i++) {
        CHECK_EQ(0, ps_core_commit(kit_core, "h", 1, queue, 11, 0, end - behind[i], &e));
        CHECK_EQ(1, ps_lag_get(kit_core, "h", 1, &now));
        CHECK_EQ(behind[i] < PS_BEHIND_MAX ? behind[i] : PS_BEHIND_MAX,
                 now.messages - before.messages);
    }
    CHECK_EQ(1, ps_light_remove(light, queue, 11, 0, &e));
    ps_lag_end(kit_core, ps_slice_from(queue, 11));
    ps_core_forget_offsets(kit_core, "h", 1, queue, 11);
    CHECK_EQ(1, ps_lag_get(kit_core, "h", 1, &now));
    CHECK_EQ(before.messages, now.messages);
}

static void test_all_are_answered_at_the_end(void) {
    for (int i = 0; i < CLIENTS; i++)
        if (!polls[i]) pop(i, HOUR);
    take_answers();
    ps_lite_end(kit_core);
    take_answers();
    for (int i = 0; i < CLIENTS; i++) CHECK(!polls[i]);
}

int main(void) {
    ps_error e = {0};
    const ps_pop_rules rules = {
        .on = 1, .revive_queues = 1, .name_max = 127, .at_place_max = 100, .waiting_max = 100};
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 10);
    kit_topic("L", 1, PS_PERM_READ | PS_PERM_WRITE, PS_SEND_HOT | PS_TOPIC_LITE);
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    CHECK_EQ(0, ps_lag_bind(kit_core, "g", 1, "L", 1, &e));
    CHECK_EQ(0, ps_lag_bind(kit_core, "h", 1, "L", 1, &e));
    CHECK_EQ(0, ps_lights_begin(kit_store, &e));
    CHECK_EQ(0, ps_lite_begin(kit_core, &e));
    for (int i = 0; i < CLIENTS; i++) conns[i] = kit_conn(i + 1);
    test_names_of_one_hash_do_not_share_a_chain();
    test_each_message_comes_once_and_in_order();
    test_who_asks_gets_what_waits_for_a_wildcard_group();
    test_who_subscribes_has_the_event_of_an_idle_client();
    test_who_asks_has_the_event_of_an_idle_client();
    test_who_waits_has_the_event_of_a_client_that_loses_its_connection();
    test_a_pop_looks_at_some_events_of_idle_clients_and_the_next_one_goes_on();
    test_who_asks_has_the_event_of_an_idle_client_of_a_wildcard_group();
    test_who_waits_is_looked_at_when_a_batch_comes_back();
    test_who_asks_hears_of_what_has_just_been_put();
    test_who_has_left_subscribes_to_nothing();
    test_names_by_the_piece_are_all_of_them();
    test_what_is_not_of_the_last_set_goes();
    test_clients_that_come_and_go_have_numbers_of_their_own();
    test_a_lag_that_a_row_cannot_say_is_looked_up();
    test_many_below();
    test_all_are_answered_at_the_end();
    test_lag_follows_groups_offsets_and_queues();
    for (int i = 0; i < CLIENTS; i++) ps_conn_free(conns[i]);
    send_to(-1);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_lite");
}
