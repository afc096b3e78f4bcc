/* Idempotent produce: sends of repeated keys against a plain list of what was stored last, with the
 * table rebuilt from the log in between; halves, delays, batches, and answers that wait for the
 * disk. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "transactions/halves.h"
#include "sends/dedup.h"

#define ONCE (PS_PERM_READ | PS_PERM_WRITE), PS_SEND_HOT | PS_SEND_ONCE

enum { WINDOW = 500, KEYS = 900, SENDS = 12000 };

static void remember(int64_t window, const char *key) {
    ps_error e = {0};
    CHECK_EQ(0, ps_core_dedup_set(kit_core, window, key, &e));
    CHECK_EQ(0, ps_core_dedup_build(kit_core, &e));
}

static void open_dedup(int64_t window, const char *key, int32_t sync) {
    ps_conf conf = kit_conf();
    conf.commitlog_file_size = 256 << 10;
    conf.sync_flush = sync;
    sync ? kit_open_slow(&conf, 10) : kit_open(&conf, 10);
    kit_topic("T", 4, ONCE);
    kit_topic("U", 4, ONCE);
    kit_topic("plain", 4, HOT);
    kit_topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, PS_PERM_READ | PS_PERM_WRITE, 0);
    remember(window, key);
}

static int64_t repeats(void) {
    ps_dedup_state state;
    ps_core_dedup_get_state(kit_core, &state);
    return state.repeats;
}

/* Sends one message and says whether it was a repeat. */
static bool send_text(ps_conn *n, const char *topic, int32_t queue, const char *properties) {
    kit_frame f;
    int64_t before = repeats();
    kit_clear();
    kit_send(&f, 0, 1, topic, queue, properties);
    kit_ask(n, &f, "body", 4);
    CHECK(kit_answer_count + kit_wait_count == 1 && kit_handed_count == 0);
    if (kit_answer_count > 0) CHECK_EQ(0, kit_last()->code);
    return repeats() > before;
}

static bool send_key(ps_conn *n, const char *topic, int32_t queue, int key, const char *more) {
    char text[200];
    snprintf(text, sizeof text, "UNIQ_KEY\1key%d\2%s", key, more);
    return send_text(n, topic, queue, text);
}

/* ---- against a model ---- */

typedef struct stored { /* by age */
    int key;
    int64_t queue, offset, physical;
} stored;

static int64_t physical_of(ps_slice id) {
    char text[17] = {0};
    memcpy(text, id.data + id.len - 16, 16);
    return (int64_t)strtoull(text, NULL, 16);
}

static void test_repeats_are_those_of_the_window(void) {
    static stored all[SENDS];
    int64_t count = 0;
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    for (int i = 0; i < SENDS && check_failures == 0; i++) {
        int key = (int)check_below(KEYS);
        int64_t at = count - 1, queue = check_below(4);
        while (at >= 0 && at >= count - WINDOW && all[at].key != key) at--;
        bool wanted = at >= 0 && at >= count - WINDOW;
        if (check_below(1500) == 0) remember(WINDOW, "UNIQ_KEY");
        CHECK_EQ(wanted, send_key(n, "T", (int32_t)queue, key, ""));
        const ps_command *c = kit_last();
        stored s = {key, kit_field(c, "queueId"), kit_field(c, "queueOffset"),
                    physical_of(ps_command_field(c, "msgId"))};
        if (wanted)
            CHECK(s.queue == all[at].queue && s.offset == all[at].offset &&
                  s.physical == all[at].physical);
        else
            all[count++] = s;
    }
    int64_t sum = 0;
    for (int q = 0; q < 4; q++) sum += kit_queue_end("T", q);
    CHECK_EQ(count, sum);
    ps_conn_free(n);
    kit_close();
}

static void test_topic_is_part_of_the_key(void) {
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    CHECK(!send_key(n, "T", 0, 1, ""));
    CHECK(!send_key(n, "U", 0, 1, ""));
    CHECK(send_key(n, "T", 1, 1, "") && send_key(n, "U", 1, 1, ""));
    CHECK(!send_key(n, "plain", 0, 1, "") && !send_key(n, "plain", 0, 1, ""));
    ps_conn_free(n);
    kit_close();
}

static void test_business_keys(void) {
    open_dedup(WINDOW, "KEYS", 0);
    ps_conn *n = kit_conn(1);
    CHECK(!send_text(n, "T", 0, "UNIQ_KEY\1a\2KEYS\1order 1\2"));
    CHECK(send_text(n, "T", 0, "UNIQ_KEY\1b\2KEYS\1order 1\2"));
    CHECK(kit_field_is(kit_last(), "transactionId", "b"));
    CHECK(!send_text(n, "T", 0, "UNIQ_KEY\1c\2KEYS\1order\2"));
    CHECK(!send_text(n, "T", 0, "UNIQ_KEY\1d\2") && !send_text(n, "T", 0, "UNIQ_KEY\1d\2"));
    ps_conn_free(n);
    kit_close();
}

/* Another message under the same hash is another message: entries point into the log. */
static void test_the_log_is_believed(void) {
    ps_first first;
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    send_key(n, "T", 0, 1, "");
    int64_t place = physical_of(ps_command_field(kit_last(), "msgId"));
    ps_core_dedup_add(kit_core, "T", 1, "other", 5, place);
    ps_core_dedup_add(kit_core, "T", 1, "beyond", 6, 1 << 30);
    ps_core_dedup_add(kit_core, "T", 1, "within", 6, place + 1);
    CHECK_EQ(0, ps_core_dedup_find(kit_core, "T", 1, "other", 5, &first));
    CHECK_EQ(0, ps_core_dedup_find(kit_core, "T", 1, "beyond", 6, &first));
    CHECK_EQ(0, ps_core_dedup_find(kit_core, "T", 1, "within", 6, &first));
    CHECK_EQ(1, ps_core_dedup_find(kit_core, "T", 1, "key1", 4, &first));
    CHECK_EQ(place, first.physical_offset);
    ps_conn_free(n);
    kit_close();
}

/* ---- kinds of messages ---- */

#define HALF "TRAN_MSG\1true\2PGROUP\1makers\2"

static void decide(int64_t offset, int32_t decision) {
    ps_put_result put;
    ps_error e = {0};
    CHECK_EQ(0, ps_core_tx_decide(kit_core, offset, decision, &put, &e));
}

static void test_halves(void) {
    ps_error e = {0};
    ps_tx_conf conf = {.on = 1, .op_bytes = 4096, .timeout_ms = 6000, .broker = "b"};
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    CHECK_EQ(0, ps_core_tx_set(kit_core, &conf, &e));
    ps_conn *n = kit_conn(1);
    CHECK(!send_key(n, "T", 2, 1, HALF));
    CHECK(send_key(n, "T", 2, 1, HALF)); /* open: the same half */
    CHECK(kit_field(kit_last(), "queueOffset") == 0 && kit_field(kit_last(), "queueId") == 2);
    remember(WINDOW, "UNIQ_KEY");
    CHECK(send_key(n, "T", 2, 1, HALF));
    decide(0, PS_TX_COMMIT);
    CHECK(send_key(n, "T", 2, 1, HALF)); /* committed: still the same */
    remember(WINDOW, "UNIQ_KEY");
    CHECK(send_key(n, "T", 2, 1, HALF));
    CHECK(!send_key(n, "T", 2, 2, HALF));
    decide(1, PS_TX_ROLLBACK);
    CHECK(!send_key(n, "T", 2, 2, HALF)); /* rolled back: another attempt */
    CHECK(send_key(n, "T", 2, 2, HALF));
    CHECK_EQ(2, kit_field(kit_last(), "queueOffset"));
    decide(2, PS_TX_ROLLBACK);
    remember(WINDOW, "UNIQ_KEY");
    CHECK(!send_key(n, "T", 2, 2, HALF));
    ps_conn_free(n);
    kit_close();
}

/* A key that is tried again and again takes one entry, however often. */
static void test_what_is_gone_leaves_no_chain(void) {
    ps_error e = {0};
    ps_dedup_state state;
    ps_tx_conf conf = {.on = 1, .op_bytes = 4096, .timeout_ms = 6000, .broker = "b"};
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    CHECK_EQ(0, ps_core_tx_set(kit_core, &conf, &e));
    ps_conn *n = kit_conn(1);
    for (int i = 0; i < 2 * WINDOW; i++) {
        CHECK(!send_key(n, "T", 0, 1, HALF));
        decide(i, PS_TX_ROLLBACK);
    }
    ps_core_dedup_get_state(kit_core, &state);
    CHECK_EQ(1, state.remembered);
    ps_conn_free(n);
    kit_close();
}

static void test_delayed(void) {
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    CHECK(!send_key(n, "T", 3, 1, "DELAY\0012\2"));
    CHECK(send_key(n, "T", 3, 1, "DELAY\0012\2"));
    CHECK(kit_field(kit_last(), "queueId") == 3 && kit_field(kit_last(), "queueOffset") == 0);
    remember(WINDOW, "UNIQ_KEY");
    CHECK(send_key(n, "T", 3, 1, "DELAY\0012\2"));
    CHECK_EQ(1, kit_queue_end("SCHEDULE_TOPIC_XXXX", 1));
    ps_conn_free(n);
    kit_close();
}

static int64_t add_item(uint8_t *to, int key) {
    char text[40];
    int32_t len = snprintf(text, sizeof text, "UNIQ_KEY\1key%d\2", key);
    memset(to, 0, 20);
    be32_put(to, (uint32_t)(23 + len));
    be32_put(to + 16, 1);
    to[20] = 'b';
    be16_put(to + 21, (uint16_t)len);
    memcpy(to + 23, text, (size_t)len);
    return 23 + len;
}

/* Sends the messages of these keys, up to 0, as one batch; whether it was a repeat. */
static bool send_batch(ps_conn *n, const int *keys) {
    uint8_t body[1024];
    kit_frame f;
    int64_t len = 0, before = repeats();
    for (int i = 0; keys[i] != 0; i++) len += add_item(body + len, keys[i]);
    kit_clear();
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    kit_replace(&f, "m", "true");
    kit_ask(n, &f, body, len);
    CHECK_EQ(0, kit_last()->code);
    return repeats() > before;
}

static void test_batches(void) {
    static const int first[] = {1, 2, 3, 0}, more[] = {2, 3, 4, 0}, one[] = {3, 0};
    open_dedup(WINDOW, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    CHECK(!send_batch(n, first));
    CHECK(send_batch(n, first));
    CHECK_EQ(0, kit_field(kit_last(), "queueOffset"));
    CHECK_EQ(3 * 33 - 1, ps_command_field(kit_last(), "msgId").len);
    CHECK_EQ(3, kit_queue_end("T", 0));
    CHECK(send_key(n, "T", 0, 2, "")); /* each of its messages is known by itself */
    CHECK(send_batch(n, one));
    CHECK(!send_batch(n, more)); /* one of them is new: stored whole, as it is never torn */
    CHECK_EQ(6, kit_queue_end("T", 0));
    remember(WINDOW, "UNIQ_KEY");
    CHECK(send_batch(n, more));
    ps_conn_free(n);
    kit_close();
}

/* ---- durability ---- */

static void test_repeat_waits_for_the_disk_as_the_first_does(void) {
    open_dedup(WINDOW, "UNIQ_KEY", 1);
    kit_hold_disk(true);
    ps_conn *n = kit_conn(1), *other = kit_conn(2);
    CHECK(!send_key(n, "T", 0, 1, ""));
    CHECK_EQ(1, kit_wait_count);
    CHECK(send_key(other, "T", 0, 1, ""));
    CHECK_EQ(1, kit_wait_count);
    CHECK_EQ(0, kit_answer_count);
    const ps_safe *safe = &kit_store->st_safe;
    CHECK_EQ(2, ps_core_waiting(kit_core));
    CHECK_EQ(safe->sf_lowest->wt_position, safe->sf_highest->wt_position);
    CHECK(send_key(n, "T", 0, 1, "WAIT\1false\2"));
    CHECK(kit_wait_count == 0 && kit_answer_count == 1);
    kit_hold_disk(false);
    kit_settle();
    CHECK_EQ(3, kit_answer_count);
    ps_conn_free(other);
    ps_conn_free(n);
    kit_close();
}

static void test_limits(void) {
    ps_error e = {0};
    ps_dedup_state state;
    open_dedup(0, "UNIQ_KEY", 0);
    ps_conn *n = kit_conn(1);
    CHECK(!send_key(n, "T", 0, 1, "") && !send_key(n, "T", 0, 1, ""));
    CHECK_EQ(2, kit_queue_end("T", 0));
    ps_core_dedup_get_state(kit_core, &state);
    CHECK(state.window == 0 && state.bytes == 0);
    CHECK_EQ(PS_E_ARGUMENT, ps_core_dedup_set(kit_core, -1, "UNIQ_KEY", &e));
    CHECK_EQ(PS_E_ARGUMENT, ps_core_dedup_set(kit_core, PS_DEDUP_MAX + 1, "UNIQ_KEY", &e));
    CHECK_EQ(PS_E_ARGUMENT, ps_core_dedup_set(kit_core, 1, "", &e));
    remember(1, "UNIQ_KEY"); /* the last one alone */
    CHECK(send_key(n, "T", 0, 1, "") && !send_key(n, "T", 0, 2, ""));
    CHECK(!send_key(n, "T", 0, 1, ""));
    ps_core_dedup_get_state(kit_core, &state);
    CHECK_EQ(1, state.remembered);
    ps_conn_free(n);
    kit_close();
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    test_repeats_are_those_of_the_window();
    test_topic_is_part_of_the_key();
    test_business_keys();
    test_the_log_is_believed();
    test_halves();
    test_what_is_gone_leaves_no_chain();
    test_delayed();
    test_batches();
    test_repeat_waits_for_the_disk_as_the_first_does();
    test_limits();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_dedup");
}
