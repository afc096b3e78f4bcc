/* Sends and ends of transactions without bytes between (remoting/inprocess.h): the same record,
 * answer and hand-over as of a frame that was read. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "tables/access.h"
#include "remoting/inprocess.h"
#include "transactions/transaction.h"
#include "toy.h"

static const char BODY[] = "12 apples";

typedef struct kit_direct {
    uint8_t base[512];
    int64_t base_len;
    ps_answered answer;
    ps_step step;
    ps_error error;
} kit_direct;

/* The part of a send that does not change. */
static void begin_direct(kit_direct *d, const char *topic, int32_t queue) {
    kit_frame f;
    memset(d, 0, sizeof *d);
    kit_begin(&f, 1, 310, 0);
    kit_text(&f, "a", "producers");
    kit_text(&f, "b", topic);
    kit_number(&f, "e", queue);
    d->base_len = kit_encode(&f, NULL, 0, d->base, sizeof d->base);
}

static int send_direct(kit_direct *d, ps_conn *n, const void *body, int64_t body_len) {
    return ps_conn_send(n, d->base, d->base_len, 77, 0, 5, 1700000000000, (const uint8_t *)UNIQ,
                        (int32_t)strlen(UNIQ), body, body_len, NULL, &d->answer, &d->step,
                        &d->error);
}

/* The stored record at the offset of a queue, but for what differs between any two: its places,
 * times and sum. */
static int64_t record_of(const char *topic, int32_t queue, int64_t offset, uint8_t *out) {
    ps_read_options o = {.max_messages = 1};
    ps_batch_info b;
    ps_error e = {0};
    ps_topic *t = ps_topic_open(kit_store, topic, (int32_t)strlen(topic), 0, &e);
    ps_batch *batch = t != NULL ? ps_read(kit_store, t, queue, offset, &o, &e) : NULL;
    if (!CHECK(batch != NULL)) return -1;
    ps_batch_get(batch, &b);
    if (!CHECK_EQ(1, b.count)) return -1;
    const ps_view *v = &b.views[0];
    int64_t size = v->size;
    memcpy(out, b.segments[v->segment].map + v->start, (size_t)size);
    memset(out + 20, 0, 16); /* queue and physical offset */
    memset(out + 56, 0, 8);  /* store timestamp */
    ps_batch_free(batch);
    return size;
}

static void test_stored_and_answered_as_a_frame(void) {
    static uint8_t one[1024], other[1024];
    ps_conn *n = kit_conn(1);
    kit_direct d;
    begin_direct(&d, "T", 2);
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    CHECK_EQ(1, d.answer.sent);
    CHECK_EQ(0, d.answer.code);
    CHECK_EQ(77, d.answer.opaque);
    CHECK_EQ(2, d.answer.queue_id);
    CHECK_EQ(0, d.answer.queue_offset);
    CHECK_EQ(32, d.answer.ids_len);
    CHECK(d.answer.tx_len == 12 && memcmp(d.step.out + d.answer.tx_at, "FD0123456789", 12) == 0);
    CHECK_EQ(0, d.step.rare);

    kit_frame f;
    kit_send(&f, 1, 78, "T", 2, UNIQ);
    kit_replace(&f, "h", "5");
    CHECK_EQ(0, kit_ask(n, &f, BODY, sizeof BODY - 1));
    CHECK_EQ(2, kit_queue_end("T", 2));
    int64_t size = record_of("T", 2, 0, one);
    CHECK(size > 0 && size == record_of("T", 2, 1, other) && memcmp(one, other, (size_t)size) == 0);
    ps_conn_free(n);
}

static void test_what_the_tables_leave_open_goes_to_the_broker(void) {
    ps_conn *n = kit_conn(1);
    kit_direct d;
    begin_direct(&d, "cold", 0);
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    CHECK_EQ(0, d.answer.sent);
    if (CHECK_EQ(1, d.step.frame_count)) {
        ps_command c;
        int64_t wanted;
        static uint8_t scratch[PS_HEADER_MAX];
        const ps_frame *frame = d.step.frames;
        CHECK_EQ(frame->len, ps_command_decode(frame->data, frame->len, 1 << 20, scratch, &c,
                                               &wanted, &d.error));
        CHECK_EQ(77, c.opaque);
        CHECK(kit_field_is(&c, "b", "cold") && c.body.len == sizeof BODY - 1);
    }
    CHECK_EQ(0, kit_queue_end("cold", 0) > 0);
    ps_conn_free(n);
}

static void test_what_must_go_through_the_connection(void) {
    static uint8_t large[300 << 10];
    uint8_t frame[1024];
    kit_frame f;
    ps_conn *n = kit_conn(1);
    kit_direct d;
    begin_direct(&d, "T", 1);
    CHECK_EQ(0, send_direct(&d, n, large, sizeof large));
    d.base[4] = 0; /* another kind of header */
    CHECK_EQ(PS_E_FRAME, send_direct(&d, n, BODY, sizeof BODY - 1));

    begin_direct(&d, "T", 1);
    kit_send(&f, 1, 78, "T", 1, UNIQ);
    int64_t len = kit_encode(&f, BODY, sizeof BODY - 1, frame, sizeof frame);
    CHECK_EQ(0, kit_feed(n, frame, len / 2)); /* its other half is still to come */
    CHECK_EQ(0, send_direct(&d, n, BODY, sizeof BODY - 1));
    CHECK_EQ(0, kit_feed(n, frame + len / 2, len - len / 2));
    CHECK_EQ(1, kit_queue_end("T", 1));
    CHECK_EQ(0, kit_more);
    ps_conn_room(n, &(uint8_t *){NULL}, &d.error);
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    ps_conn_free(n);
}

static void test_a_stranger_goes_through_the_connection(void) {
    ps_conn *n = kit_conn(1);
    kit_direct d;
    begin_direct(&d, "T", 3);
    ps_core_limit_first(kit_core, 100000);
    CHECK_EQ(0, send_direct(&d, n, BODY, sizeof BODY - 1));
    ps_conn_know(n);
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    ps_core_limit_first(kit_core, 0);
    CHECK_EQ(1, kit_queue_end("T", 3));
    ps_conn_free(n);
}

#define TEXT(t) ((ps_slice){(const uint8_t *)(t), (int32_t)strlen(t)})

/* What is wrong, and what others are to decide, goes through the connection. */
static void test_a_transaction_is_ended(void) {
    static const char half[] = "TRAN_MSG\1true\2PGROUP\1makers\2UNIQ_KEY\1u1\2";
    ps_tx_conf tx = {.on = 1, .op_bytes = 4096, .timeout_ms = 6000, .broker = "b"};
    ps_conn *n = kit_conn(1), *other = kit_conn(2);
    ps_half_row row;
    kit_direct d;
    CHECK_EQ(0, ps_core_tx_set(kit_core, &tx, &d.error));
    begin_direct(&d, "T", 1);
    CHECK_EQ(1, ps_conn_send(n, d.base, d.base_len, 5, 4, 0, 1700000000000, (const uint8_t *)half,
                             sizeof half - 1, (const uint8_t *)BODY, sizeof BODY - 1, NULL,
                             &d.answer, &d.step, &d.error));
    CHECK(d.answer.sent && ps_core_tx_find(kit_core, d.answer.queue_offset, &row));
    ps_ending good = {TEXT("makers"), TEXT("T"), row.offset, row.physical, PS_TX_COMMIT, 0};
    ps_ending bad[] = {good, good, good, good, good, good};
    bad[0].group = TEXT("others");
    bad[1].group = (ps_slice){NULL, 0};
    bad[2].topic = TEXT("cold");
    bad[3].offset++;
    bad[4].physical++;
    bad[5].decision = PS_TX_DISCARD;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(0, ps_conn_end(n, NULL, &bad[i]));
    ps_conn_delegate(other, PS_DELEGATE_ALL);
    CHECK_EQ(0, ps_conn_end(other, NULL, &good));
    int64_t before = kit_queue_end("T", 1);
    CHECK_EQ(1, ps_conn_end(n, NULL, &good));
    CHECK_EQ(1, kit_queue_end("T", 1) - before);
    CHECK_EQ(PS_TX_COMMIT, ps_core_tx_decided(kit_core, row.offset));
    CHECK_EQ(0, ps_conn_end(n, NULL, &good));
    ps_conn_free(n);
    ps_conn_free(other);
}

/* With access control on, of what nobody granted. */
static void test_what_is_not_granted_is_handed_on(void) {
    static const char half[] = "TRAN_MSG\1true\2PGROUP\1T\2UNIQ_KEY\1u1\2";
    ps_tx_conf tx = {.on = 1, .op_bytes = 4096, .timeout_ms = 6000, .broker = "b"};
    ps_conn *n = kit_conn(1), *trusted = kit_conn(3);
    ps_half_row row;
    kit_direct d;
    CHECK_EQ(0, ps_core_tx_set(kit_core, &tx, &d.error));
    begin_direct(&d, "T", 1);
    CHECK_EQ(1, ps_conn_send(n, d.base, d.base_len, 5, 4, 0, 1700000000000, (const uint8_t *)half,
                             sizeof half - 1, (const uint8_t *)BODY, sizeof BODY - 1, NULL,
                             &d.answer, &d.step, &d.error));
    CHECK(d.answer.sent && ps_core_tx_find(kit_core, d.answer.queue_offset, &row));
    ps_ending end = {TEXT("T"), TEXT("T"), row.offset, row.physical, PS_TX_COMMIT, 0};
    CHECK_EQ(0, ps_core_check_access(kit_core, &toy_digest, &d.error));
    CHECK_EQ(0, ps_conn_end(n, NULL, &end));
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    CHECK_EQ(1, d.step.frame_count);
    ps_conn_let_in(trusted);
    CHECK_EQ(1, send_direct(&d, trusted, BODY, sizeof BODY - 1));
    CHECK_EQ(1, d.answer.sent);
    CHECK(ps_core_tx_find(kit_core, row.offset, &row));
    ps_conn_free(n);
    ps_conn_free(trusted);
}

static void test_answered_when_the_disk_has_it(void) {
    ps_conf conf = kit_conf();
    conf.sync_flush = 1;
    kit_open_slow(&conf, 10);
    kit_hold_disk(true);
    kit_topic("T", 4, HOT);
    ps_conn *n = kit_conn(1);
    kit_direct d;
    begin_direct(&d, "T", 0);
    CHECK_EQ(1, send_direct(&d, n, BODY, sizeof BODY - 1));
    CHECK_EQ(0, d.answer.sent);
    CHECK_EQ(1, d.step.rare);
    CHECK(d.step.wait != 0);
    kit_hold_disk(false);
    kit_settle();
    CHECK_EQ(77, kit_last()->opaque);
    CHECK_EQ(0, kit_last()->code);
    ps_conn_free(n);
    kit_close();
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 1000);
    kit_topic("T", 4, HOT);
    kit_topic("cold", 4, PS_PERM_READ | PS_PERM_WRITE, 0);
    test_stored_and_answered_as_a_frame();
    test_what_the_tables_leave_open_goes_to_the_broker();
    test_what_must_go_through_the_connection();
    test_a_stranger_goes_through_the_connection();
    test_a_transaction_is_ended();
    test_what_is_not_granted_is_handed_on();
    kit_close();
    test_answered_when_the_disk_has_it();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_inprocess");
}
