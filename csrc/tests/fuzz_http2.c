/* Damaged conversations before csrc/http2: what a client wrote, with bytes changed, inserted, taken
 * away or repeated, in pieces; and damaged requests before message.c. Nothing but the sanitizers
 * judges, and that each ends.
 *
 * PS_FUZZ_RUNS inputs, for PS_FUZZ_SECONDS at most; PS_SEED repeats a run. */
#define _GNU_SOURCE
#include <time.h>

#include "format/record.h"
#include "messaging/ack.h"
#include "messaging/delivery.h"
#include "messaging/ending.h"
#include "messaging/message.h"
#include "messaging/receive.h"
#include "http2_client.h"

enum { INPUT_MAX = 1 << 16 };
static const int64_t NOW_MS = 1700000000000;

static uint8_t whole[INPUT_MAX], now[2 * INPUT_MAX];
static int64_t whole_len, now_len;

static int64_t setting(const char *name, int64_t otherwise) {
    const char *given = getenv(name);
    return given != NULL ? strtoll(given, NULL, 10) : otherwise;
}

/* Calls of every kind, one of them given up. */
static void record(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    static uint8_t body[4][6000];
    upload u[4];
    for (int i = 0; i < 4; i++) {
        size_t len = 0;
        while (len < 1000u * (unsigned)i + 10) len += message_put(body[i] + len, "some request");
        u[i] = (upload){body[i], i < 2 ? message_put(body[i], "only") : len};
    }
    client_call(c, UNARY, &u[0], "grpc-timeout", "5S");
    client_call(c, STREAM, &u[2], "authorization", "MQv2 abc");
    int32_t given_up = client_call(c, STREAM, &u[3], "x", "y");
    converse(c, h);
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, given_up, NGHTTP2_CANCEL);
    nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, NULL);
    client_call(c, UNARY, &u[1], "grpc-encoding", "identity");
    converse(c, h);
    whole_len = c->sent_len;
    memcpy(whole, c->sent, (size_t)whole_len);
    ps_h2_free(h);
    client_free(c);
}

static void damage(void) {
    int64_t preface = check_below(64) == 0 ? 0 : 24; /* else nothing after it is looked at */
    int64_t at = preface + check_below(now_len - preface), left = now_len - at;
    int64_t some = 1 + check_below(left < 40 ? left : 40);
    switch (check_below(5)) {
    case 0:
        now[at] ^= (uint8_t)(1 << check_below(8));
        break;
    case 1:
        now[at] = (uint8_t)check_random();
        break;
    case 2:
        memmove(now + at, now + at + some, (size_t)(left - some));
        now_len -= some;
        break;
    case 3: /* the same again */
        if (now_len + some > (int64_t)sizeof now) break;
        memmove(now + at + some, now + at, (size_t)left);
        now_len += some;
        break;
    default: { /* a piece from elsewhere */
        int64_t from = check_below(whole_len - some);
        memcpy(now + at, whole + from, (size_t)some);
    }
    }
}

static void feed_in_pieces(void) {
    ps_h2 *h = ps_h2_new(&client_conf);
    const uint8_t *out;
    int64_t at = 0;
    bool fine = true;
    while (at < now_len && fine && !ps_h2_done(h)) {
        int64_t part = 1 + check_below(check_below(4) == 0 ? 20 : 4000);
        if (part > now_len - at) part = now_len - at;
        fine = ps_h2_feed(h, now + at, part);
        at += part;
        if (check_below(4) != 0) serve(h);
        if (check_below(4) != 0) ps_h2_pull(h, &out);
    }
    serve(h);
    if (check_below(8) == 0) ps_h2_go_away(h);
    while (ps_h2_pull(h, &out) > 0) serve(h);
    ps_h2_free(h);
}

/* A SendMessage: topic T; a property of the user's; tag t, keys a and b, id, encoding, type, born
 * time and host, group, lite topic, recovery time; body. */
static const uint8_t REQUEST[] =
    "\x0a\x4b\x0a\x03\x12\x01T\x12\x06\x0a\x01u\x12\x01v\x1a\x34\x0a\x01t\x12\x01" "a\x12\x01" "b"
    "\x1a\x0a" "0123456789" "\x28\x01\x30\x04\x3a\x08\x08\x80\x8f\xd4\xa6\x06\x10\x05\x42\x02vm"
    "\x8a\x01\x01g\xaa\x01\x01l\x9a\x01\x02\x08\x05\x22\x06" "a body";

/* In memory of its own size, so that a byte too many is seen. */
static bool read_exact(const uint8_t *data, int64_t len) {
    static ps_h2_limits limits = {1, 1000, 1000, 8, 64, 64, 3600, 86400000, {0}};
    uint8_t *copy = malloc((size_t)len + 1), reply[PS_H2_REPLY_MAX];
    ps_h2_text host = {"192.0.2.1", 9};
    ps_h2_message m;
    CHECK(ps_h2_names_add(&limits.reserved, "UNIQ_KEY", 8));
    memmove(copy + 1, data, (size_t)len);
    bool plain = ps_h2_message_read(copy + 1, len, &limits, host, &m);
    if (plain && m.id.len <= PS_H2_ID_MAX)
        ps_h2_message_reply(m.id, m.id, (ps_h2_text){0}, check_below(1 << 30), reply);
    free(copy);
    return plain;
}

static void damage_request(void) {
    int64_t len = (int64_t)sizeof REQUEST - 1;
    uint8_t data[sizeof REQUEST];
    memcpy(data, REQUEST, sizeof data);
    for (int64_t count = 1 + check_below(4); count > 0; count--)
        data[check_below(len)] = (uint8_t)check_random();
    read_exact(data, check_below(4) == 0 ? check_below(len + 1) : len);
}

/* Two acknowledgements, with a handle of eight fields and one of nine. */
static const uint8_t ACK[] =
    "\x0a\x03\x12\x01g\x12\x03\x12\x01T\x1a\x18\x0a\x02" "01\x12\x12" "1 22 3 0 0 ab 1 17"
    "\x1a\x1b\x12\x19" "1 22 3 0 0 ab 1 18 123456";

static bool read_ack_exact(const uint8_t *data, int64_t len) {
    static ps_h2_acks acks;
    uint8_t *copy = malloc((size_t)len + 1);
    memmove(copy + 1, data, (size_t)len);
    bool plain = ps_h2_acks_read(copy + 1, len, &acks);
    if (plain) {
        int64_t room = ps_h2_acks_room(&acks);
        uint8_t *reply = malloc((size_t)room);
        CHECK(ps_h2_acks_reply(&acks, reply) <= room);
        free(reply);
    }
    free(copy);
    return plain;
}

/* A ReceiveMessage: group g, a queue of topic T with its broker, tags, 32 messages, invisible for
 * 30 seconds, renewed, a time to wait, an attempt. */
static const uint8_t RECEIVE[] =
    "\x0a\x03\x12\x01g\x12\x0c\x0a\x03\x12\x01T\x18\x03\x22\x03\x0a\x01" "b"
    "\x1a\x07\x08\x01\x12\x03" "a|b\x20\x20\x2a\x02\x08\x1e\x30\x01\x3a\x04\x08\x01\x10\x05"
    "\x42\x01x";

static bool read_receive_exact(const uint8_t *data, int64_t len, ps_h2_receive *out) {
    uint8_t *copy = malloc((size_t)len + 1), end[PS_H2_RECEIVED_MAX];
    memmove(copy + 1, data, (size_t)len);
    bool plain = ps_h2_receive_read(copy + 1, len, out);
    CHECK(ps_h2_receive_end(check_below(INT64_C(1) << 45), end) <= PS_H2_RECEIVED_MAX);
    free(copy);
    return plain;
}

static void damage_receive(void) {
    ps_h2_receive r;
    uint8_t data[sizeof RECEIVE];
    int64_t len = (int64_t)sizeof RECEIVE - 1;
    memcpy(data, RECEIVE, sizeof data);
    for (int64_t count = 1 + check_below(4); count > 0; count--)
        data[check_below(len)] = (uint8_t)check_random();
    bool plain = read_receive_exact(data, check_below(4) == 0 ? check_below(len + 1) : len, &r);
    CHECK(!plain || (r.batch > 0 && r.invisible_ms >= 0 && r.group.len > 0 && r.topic.len > 0));
}

/* An EndTransaction: topic T, ids of the message and of the transaction, as a check brought it. */
static const uint8_t ENDING[] =
    "\x0a\x03\x12\x01T\x12\x04" "01-A\x1a\x13" "01-A-1f-2a3c-6162-c" "\x20\x02\x28\x01";

static bool read_ending_exact(const uint8_t *data, int64_t len, ps_h2_ending *out) {
    uint8_t *copy = malloc((size_t)len + 1);
    memmove(copy + 1, data, (size_t)len);
    bool plain = ps_h2_ending_read(copy + 1, len, out);
    CHECK(!plain || (out->offset >= 0 && out->physical >= 0 && out->topic.len > 0));
    free(copy);
    return plain;
}

static void damage_ending(void) {
    ps_h2_ending e;
    uint8_t data[sizeof ENDING];
    int64_t len = (int64_t)sizeof ENDING - 1;
    memcpy(data, ENDING, sizeof data);
    for (int64_t count = 1 + check_below(4); count > 0; count--)
        data[check_below(len)] = (uint8_t)check_random();
    read_ending_exact(data, check_below(4) == 0 ? check_below(len + 1) : len, &e);
}

static void transactions_have_their_ids(void) {
    char id[PS_H2_TRANSACTION_ROOM(4, 2)];
    ps_h2_ending e;
    int32_t len = ps_h2_transaction_id((ps_h2_text){"01-A", 4}, 0x1f, 0x2a3c, "ab", id);
    CHECK(len == 17 && memcmp(id, "01-A-1f-2a3c-6162", 17) == 0);
    CHECK(read_ending_exact(ENDING, sizeof ENDING - 1, &e) && e.from_check && !e.commits);
    CHECK_EQ(0x1f, e.offset);
    CHECK_EQ(0x2a3c, e.physical);
}

static bool write_delivery(const uint8_t *record, int64_t len) {
    static ps_h2_names hidden;
    ps_h2_delivery d = {"T", 1, "1 2 3", 5, NULL, 0, 1 + (int32_t)check_below(1 << 20), 1};
    uint8_t *copy = malloc((size_t)len + 1);
    memmove(copy + 1, record, (size_t)len);
    CHECK(ps_h2_names_add(&hidden, "UNIQ_KEY", 8));
    int64_t room = ps_h2_delivery_room(len, &d);
    uint8_t *to = malloc((size_t)room);
    int64_t size = ps_h2_delivery_write(copy + 1, len, &hidden, &d, to, room);
    free(to);
    free(copy);
    return size > 0;
}

static int64_t put_property(uint8_t *to, const char *name) {
    size_t len = strlen(name), count = 1 + (size_t)check_below(4);
    memcpy(to, name, len);
    to[len] = PS_NAME_SEPARATOR;
    memset(to + len + 1, check_below(3) == 0 ? ' ' : '7', count);
    to[len + 1] = '1';
    to[len + 1 + count] = PS_PROPERTY_SEPARATOR;
    return (int64_t)(len + count + 2);
}

/* Short names and values, of which a reply has most bytes beside the record's. */
static int64_t record_write(uint8_t *to, bool damaged, int64_t time) {
    static uint8_t properties[PS_PROPERTIES_MAX];
    static const uint8_t host[8] = {127, 0, 0, 1};
    int64_t len = 0;
    const char *why;
    for (int64_t count = check_below(70); count > 0; count--) {
        static const char *const known[] = {"KEYS", "TAGS", "__SHARDINGKEY", "BORN_TIMESTAMP"};
        const char *name = known[check_below(4)];
        char own[3] = {(char)('!' + check_below(90)), (char)('!' + check_below(90)), 0};
        len += put_property(properties + len, check_below(3) == 0 ? name : own);
    }
    ps_draft d = {.body = REQUEST, .body_len = check_below(sizeof REQUEST), .topic = REQUEST + 6,
                  .topic_len = 1, .properties = properties, .properties_len = len,
                  .born_host = host, .born_host_len = 8, .store_host = host, .store_host_len = 8};
    CHECK(ps_draft_measure(&d, 1 << 20, &why) == 0);
    ps_draft_write(&d, to, check_below(1 << 30), check_below(1 << 30), time);
    for (int64_t count = damaged ? 1 + check_below(6) : 0; count > 0; count--)
        to[check_below(d.size)] = (uint8_t)check_random();
    return d.size;
}

static void good_ones_are_plain(void) {
    uint8_t bytes[4096];
    int count = 0;
    for (int i = 0; i < 200; i++)
        count += write_delivery(bytes, record_write(bytes, false, NOW_MS));
    CHECK(count == 200);
    CHECK(read_ack_exact(ACK, sizeof ACK - 1));
    ps_h2_receive r;
    CHECK(read_receive_exact(RECEIVE, sizeof RECEIVE - 1, &r));
    CHECK(r.batch == 32 && r.invisible_ms == 30000 && r.renews && !r.sql && r.filter.len == 3);
}

/* Of messages; and of a request, whose least nanoseconds take the place of the time it has. */
static void times_have_any_size(void) {
    static const int64_t times[] = {INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX};
    uint8_t bytes[4096], request[sizeof REQUEST];
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        CHECK(write_delivery(bytes, record_write(bytes, false, times[i])));
    memcpy(request, REQUEST, sizeof request);
    uint8_t *born = memmem(request, sizeof request, "\x3a\x08", 2);
    memcpy(born + 2, "\x08\x01\x10\x80\x80\x80\x80\x08", 8);
    CHECK(read_exact(request, sizeof request - 1));
}

static void damage_others(void) {
    uint8_t data[sizeof ACK], record[4096];
    int64_t len = (int64_t)sizeof ACK - 1;
    memcpy(data, ACK, sizeof data);
    for (int64_t count = 1 + check_below(4); count > 0; count--)
        data[check_below(len)] = (uint8_t)check_random();
    read_ack_exact(data, check_below(4) == 0 ? check_below(len + 1) : len);
    bool damaged = check_below(2) == 0;
    int64_t size = record_write(record, damaged, NOW_MS);
    write_delivery(record, damaged && check_below(4) == 0 ? check_below(size + 1) : size);
}

int main(void) {
    check_begin();
    record();
    good_ones_are_plain();
    transactions_have_their_ids();
    times_have_any_size();
    CHECK(read_exact(REQUEST, sizeof REQUEST - 1));
    int64_t runs = setting("PS_FUZZ_RUNS", 1000), seconds = setting("PS_FUZZ_SECONDS", 7200);
    time_t end = time(NULL) + seconds;
    for (int64_t cut = 0; cut <= whole_len; cut++) {
        memcpy(now, whole, (size_t)cut);
        now_len = cut;
        feed_in_pieces();
    }
    int64_t run = 0;
    for (; run < runs && time(NULL) < end; run++) {
        memcpy(now, whole, (size_t)whole_len);
        now_len = whole_len;
        for (int64_t count = 1 + check_below(5); count > 0 && now_len > 64; count--) damage();
        feed_in_pieces();
        for (int i = 0; i < 20; i++) damage_request();
        for (int i = 0; i < 20; i++) damage_others();
        for (int i = 0; i < 20; i++) damage_receive();
        for (int i = 0; i < 20; i++) damage_ending();
    }
    printf("%" PRId64 " inputs, and %" PRId64 " cut conversations\n", run, whole_len + 1);
    return check_end("http2");
}
