/* Network threads beside what plays Python, for the thread sanitizer: four clients send, pull, hold
 * pulls, pop and acknowledge, end transactions and ask what only Python serves; connections come
 * and go. Meanwhile Python makes and withdraws topics and subscriptions, reads counters and commits
 * offsets; then the same with access control, whose grants it gives and takes. Every request is
 * answered once. PS_ROUNDS: rounds of each client; PS_SECONDS: instead of rounds; PS_THREADS: of
 * the port. */
#define _GNU_SOURCE
#include <pthread.h>

#include "net_kit.h"
#include "tables/access.h"
#include "pop/popcheckpoint.h"
#include "transactions/transaction.h"
#include "toy.h"

enum { CLIENTS = 4 };

#define SECRET "a-secret"
#define REVIVE "rmq_sys_REVIVE_LOG_c"

static int64_t rounds = 150, seconds;
static int64_t ends_ms;
static atomic_int clients_left;
static bool guarded; /* requests are signed */

/* ---- clients ---- */

static void say(net_client *c, kit_frame *f, const char *body) {
    char text[PS_SIGNATURE_LEN + 1] = "";
    if (guarded) {
        ps_signer *signer = ps_signer_make(&toy_digest, SECRET, sizeof SECRET - 1);
        kit_text(f, "AccessKey", "K");
        CHECK(ps_signer_sign(signer, f->command.fields, f->command.field_count,
                             ps_slice_of(body), text));
        kit_text(f, "Signature", text);
        ps_signer_free(signer);
    }
    net_say(c, f, body, (int64_t)strlen(body));
}

static void say_send(net_client *c, int32_t opaque, const char *topic, const char *properties,
                     const char *sys_flag) {
    kit_frame f;
    kit_send(&f, opaque & 1, opaque, topic, opaque & 3, properties);
    kit_replace(&f, "f", sys_flag);
    say(c, &f, "body");
}

static void say_pull(net_client *c, int32_t opaque, int64_t offset, int64_t hold_ms) {
    kit_frame f;
    kit_pull(&f, opaque, "G", "T", 0, offset, hold_ms > 0 ? 2 : 0, hold_ms);
    say(c, &f, "");
}

static void ask_python(net_client *c, int32_t opaque) {
    kit_frame f;
    kit_begin(&f, opaque & 1, 999, opaque);
    net_say(c, &f, NULL, 0);
}

/* An offset of the group, and what lasts no longer than its topic. */
static void ask_rest(net_client *c, int32_t opaque) {
    kit_frame f;
    kit_begin(&f, opaque & 1, 15, opaque);
    kit_text(&f, "consumerGroup", "G");
    kit_text(&f, "topic", "T");
    kit_number(&f, "queueId", opaque % 4);
    kit_number(&f, "commitOffset", opaque);
    say(c, &f, "");
    say_send(c, opaque + 1, "passing", UNIQ, "0");
}

/* A half, and its end. */
static bool decide_one(net_client *c, int32_t opaque) {
    ps_command half;
    kit_frame f;
    char id[33] = "";
    say_send(c, opaque, "T", "UNIQ_KEY\1U\2TRAN_MSG\1true\2PGROUP\1makers\2", "4");
    if (!net_take_answer(c, &half)) return false;
    ps_slice msg_id = ps_command_field(&half, "msgId");
    if (half.code != 0 || msg_id.len < 16) return true; /* it went to Python */
    memcpy(id, msg_id.data + msg_id.len - 16, 16);
    kit_begin(&f, opaque & 1, 37, opaque);
    kit_text(&f, "producerGroup", "makers");
    kit_number(&f, "tranStateTableOffset", kit_field(&half, "queueOffset"));
    kit_number(&f, "commitLogOffset", strtoll(id, NULL, 16));
    kit_number(&f, "commitOrRollback", opaque % 3 ? 8 : 12);
    kit_text(&f, "fromTransactionCheck", "false");
    kit_text(&f, "msgId", "x");
    say(c, &f, "");
    return net_read(c, NULL, NULL) >= 0;
}

/* Of one queue; what it brings is acknowledged, but for some. */
static bool pop_some(net_client *c, int32_t opaque) {
    kit_frame f;
    ps_command got;
    int queue = opaque & 3, kind, number, used = 0;
    long long start, offset;
    char texts[2][1024] = {"", ""}, handle[200];
    kit_begin(&f, 0, 200050, opaque);
    kit_text(&f, "consumerGroup", "poppers");
    kit_text(&f, "topic", "T");
    kit_number(&f, "queueId", queue);
    kit_number(&f, "maxMsgNums", 8);
    kit_number(&f, "invisibleTime", 60000);
    kit_number(&f, "pollTime", 0);
    kit_number(&f, "bornTime", ps_now_ms() + 60000);
    kit_text(&f, "exp", "*");
    kit_text(&f, "order", "false");
    say(c, &f, "");
    if (!net_take_answer(c, &got)) return false;
    ps_slice starts = ps_command_field(&got, "startOffsetInfo");
    ps_slice offsets = ps_command_field(&got, "msgOffsetInfo");
    if (got.code != 0 || starts.len == 0 || starts.len > 1000 || offsets.len > 1000) return true;
    memcpy(texts[0], starts.data, (size_t)starts.len);
    memcpy(texts[1], offsets.data, (size_t)offsets.len);
    if (!CHECK_EQ(3, sscanf(texts[0], "%d %d %lld", &kind, &number, &start)) ||
        !CHECK_EQ(2, sscanf(texts[1], "%d %d %n", &kind, &number, &used)))
        return true;
    int64_t pop_ms = kit_field(&got, "popTime"), revive = kit_field(&got, "reviveQid");
    int said = 0;
    for (char *at = texts[1] + used; sscanf(at, "%lld", &offset) == 1;) {
        snprintf(handle, sizeof handle, "%lld %lld 60000 %lld 0 broker-a %d %lld", start,
                 (long long)pop_ms, (long long)revive, queue, offset);
        kit_begin(&f, 0, 200051, opaque + said);
        kit_text(&f, "consumerGroup", "poppers");
        kit_text(&f, "topic", "T");
        kit_number(&f, "queueId", queue);
        kit_number(&f, "offset", offset);
        kit_text(&f, "extraInfo", handle);
        if (opaque % 5 == 0 && said == 0) break; /* these come back in an hour */
        say(c, &f, "");
        said++;
        while (*at != 0 && *at != ',') at++;
        if (*at++ == 0) break;
    }
    for (; said > 0; said--)
        if (net_read(c, NULL, NULL) < 0) return false;
    return true;
}

static bool go_on(int64_t round) {
    return seconds > 0 ? ps_monotonic_ms() < ends_ms : round < rounds;
}

/* Every other connection begins with a header. */
static net_client join_port(int64_t round) {
    net_client c = net_connect();
    if (round / 16 % 2) net_write(&c, NET_HEADER, (int64_t)strlen(NET_HEADER));
    return c;
}

static void *work(void *arg) {
    int32_t opaque = (int32_t)(intptr_t)arg;
    net_client c = join_port(opaque >> 20);
    for (int64_t i = 0; go_on(i); i++) {
        for (int k = 0; k < 8; k++) say_send(&c, opaque++, "T", UNIQ, "0");
        say_pull(&c, opaque++, i, 0);
        say_pull(&c, opaque++, i * 8, 1 + i % 3); /* held now and then */
        ask_python(&c, opaque++);
        ask_rest(&c, opaque);
        opaque += 2;
        bool alive = true;
        for (int k = 0; k < 13; k++) alive = CHECK(net_read(&c, NULL, NULL) >= 0) && alive;
        if (!alive || !CHECK(decide_one(&c, opaque++)) || !CHECK(pop_some(&c, opaque++))) break;
        if (i % 16 == 15) {
            if (i % 32 == 31) ask_python(&c, opaque++);
            net_reset(&c);
            c = join_port(i);
        }
    }
    net_leave(&c);
    atomic_fetch_sub(&clients_left, 1);
    return NULL;
}

/* ---- Python's part, beside its events ---- */

static int64_t came_back;

static void grant_all(void) {
    static const uint8_t here[4] = {127, 0, 0, 1};
    static const struct {
        int32_t code;
        const char *topic, *group;
    } all[] = {{310, "T", ""}, {310, "passing", ""}, {11, "T", "G"}, {200050, "T", "poppers"},
               {200051, "T", "poppers"}};
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++)
        ps_core_grant(kit_core, "K", 1, SECRET, sizeof SECRET - 1, i % 2 ? net_source : here, 4,
                      all[i / 2].code, all[i / 2].topic, (int32_t)strlen(all[i / 2].topic),
                      all[i / 2].group, (int32_t)strlen(all[i / 2].group), "", 0);
}

static void change_tables(int turn) {
    static ps_offset_row rows[64];
    ps_core_totals totals;
    ps_sample all;
    ps_error e = {0};
    if (turn % 2)
        ps_core_forget_topic(kit_core, "passing", 7);
    else
        kit_topic("passing", 4, HOT);
    kit_subscribe("G", "T", turn % 3 ? "" : "TagA\0", turn % 3 ? 0 : 1, turn);
    kit_subscribe("leaving", "T", "", 0, turn);
    if (turn % 4 == 3) ps_core_forget_group(kit_core, "leaving", 7);
    CHECK(ps_core_commit(kit_core, "G", 1, "T", 1, turn % 4, turn, &e) >= 0);
    ps_core_take_offsets(kit_core, 1, rows, 64);
    ps_core_get_totals(kit_core, &totals);
    ps_core_sample(kit_core, NULL, 0, &all);
    if (guarded && turn % 8 == 7) ps_core_revoke(kit_core);
    if (guarded) grant_all();
    if (turn % 5 == 0) ps_net_look(net, turn % 10 == 0);
}

/* Some of what nobody has acknowledged yet, as if its time was over. Nobody pops the copies. */
static void bring_back(void) {
    static const char target[] = PS_RETRY_PREFIX "poppers_T";
    const ps_revive_ask ask = {.topic = "T",
                               .group = "poppers",
                               .target = target,
                               .topic_len = 1,
                               .group_len = 7,
                               .target_len = (int32_t)sizeof target - 1,
                               .now_ms = INT64_MAX,
                               .again_ms = INT64_MAX,
                               .turn_ns = 100000};
    ps_revived out;
    ps_error e = {0};
    CHECK_EQ(0, ps_core_revive(kit_core, &ask, &out, &e));
    came_back += out.copies;
    ps_core_pop_wake(kit_core, "poppers", 7, "T", 1);
}

static void *be_python(void *arg) {
    for (int turn = 0; atomic_load(&clients_left) > 0; turn++) {
        net_take_some(1);
        change_tables(turn);
        if (turn % 4 == 0) bring_back();
    }
    return arg;
}

/* ---- a run ---- */

static void open_store(void) {
    const ps_pop_rules rules = {.on = 1,
                                .revive_queues = 1,
                                .retry_v1 = 1,
                                .name_max = 127,
                                .invisible_max_ms = 86400000,
                                .in_flight_max = -1,
                                .open_max = 100000,
                                .bytes_max = 1 << 30,
                                .young_bytes = -1,
                                .filter_work = PS_SQL92_WORK_MAX,
                                .filter_ms = 10};
    const ps_tx_conf tx = {.on = 1, .op_bytes = 64, .timeout_ms = 6000, .broker = "b"};
    ps_conf store = kit_conf();
    ps_error e = {0};
    kit_open(&store, 1000);
    CHECK_EQ(0, ps_core_tx_set(kit_core, &tx, &e));
    kit_topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, PS_PERM_READ | PS_PERM_WRITE, 0);
    kit_topic("T", 4, HOT);
    kit_subscribe("G", "T", "", 0, 0);
    kit_subscribe("poppers", "T", "", 0, 0);
    CHECK_EQ(0, ps_core_pop_set(kit_core, REVIVE, (int32_t)strlen(REVIVE), &e));
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    if (!guarded) return;
    CHECK_EQ(0, ps_core_check_access(kit_core, &toy_digest, &e));
    grant_all();
}

/* Something of each kind was served by the core. */
static void check_served(void) {
    ps_core_totals totals;
    ps_core_get_totals(kit_core, &totals);
    ps_sample all;
    ps_core_sample(kit_core, NULL, 0, &all);
    CHECK(all.puts > 0 && totals.found > 0 && totals.held == 0);
    CHECK(came_back > 0);
    if (guarded)
        CHECK(ps_core_let_in(kit_core) > 0);
    else
        CHECK(ps_core_tx_tallies(kit_core, NULL, 0) > 0);
}

static void run(bool with_access) {
    pthread_t clients[CLIENTS];
    ps_net_conf conf = net_conf();
    guarded = with_access;
    open_store();
    atomic_store(&clients_left, CLIENTS);
    ends_ms = ps_monotonic_ms() + seconds * 500; /* two runs */
    net_start_as(&conf, be_python);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&clients[i], NULL, work, (void *)(intptr_t)(i << 24));
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i], NULL);
    net_stop();
    CHECK(net_frames > 0);
    check_served();
    kit_close();
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    net_threads = getenv("PS_THREADS") != NULL ? atoi(getenv("PS_THREADS")) : 3;
    if (getenv("PS_ROUNDS") != NULL) rounds = strtoll(getenv("PS_ROUNDS"), NULL, 10);
    if (getenv("PS_SECONDS") != NULL) seconds = strtoll(getenv("PS_SECONDS"), NULL, 10);
    run(false);
    run(true);
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("tsan_net");
}
