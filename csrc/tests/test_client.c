/* A client's frames: a send from its unchanging part is the frame that the codec makes of all its
 * fields, a batch is read back item by item, answers cut anywhere are whole again, and damage is
 * refused. Buffers end at a page that may not be touched. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "wire/client.h"
#include "toy.h"
#include "wire.h"

#define TEXT(text) ((ps_slice){(const uint8_t *)(text), sizeof(text) - 1})
#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1

enum { ROWS = 8 };

static void test_send_has_all_fields(void) {
    static ps_command c = {.serialize = PS_SERIALIZE_ROCKETMQ, .code = 310, .version = 479,
                           .field_count = 2, .fields = {{TEXT("a"), TEXT("group")},
                                                        {TEXT("e"), TEXT("3")}}};
    static ps_command got;
    uint8_t base[256];
    ps_error e = {0};
    int64_t wanted, base_len = ps_command_encode(&c, 0, base, sizeof base, &e);
    CHECK(base_len > 0);
    int64_t need = ps_client_send(base, base_len, 7, 1, -2147483647 - 1, 1234567890123,
                                  BYTES("K\1v\2"), BYTES("body"), NULL, wire_out_end, 0, &e);
    uint8_t *out = wire_out_end - need;
    int64_t size = ps_client_send(base, base_len, 7, 1, -2147483647 - 1, 1234567890123,
                                  BYTES("K\1v\2"), BYTES("body"), NULL, out, need, &e);
    CHECK(size > base_len && size <= need);
    CHECK_EQ(size, wire_decode(out, size, &got, &wanted, &e));
    CHECK(got.code == 310 && got.opaque == 7 && got.field_count == 6 && got.body.len == 4);
    CHECK(wire_same(ps_command_field(&got, "a"), TEXT("group")));
    CHECK(wire_same(ps_command_field(&got, "f"), TEXT("1")));
    CHECK(wire_same(ps_command_field(&got, "g"), TEXT("1234567890123")));
    CHECK(wire_same(ps_command_field(&got, "h"), TEXT("-2147483648")));
    CHECK(wire_same(ps_command_field(&got, "i"), TEXT("K\1v\2")));
    CHECK(wire_same(got.body, TEXT("body")));
    base[4] = PS_SERIALIZE_JSON;
    CHECK_EQ(PS_E_FRAME,
             ps_client_send(base, base_len, 7, 0, 0, 0, base, 0, base, 0, NULL, out, need, &e));
    CHECK_EQ(PS_E_FRAME,
             ps_client_send(base, 20, 7, 0, 0, 0, base, 0, base, 0, NULL, out, need, &e));
}

/* A signed send carries the signature over its other fields and its body; a name
 * that stands twice cannot be signed. */
static void test_send_is_signed(void) {
    static ps_command c = {.serialize = PS_SERIALIZE_ROCKETMQ, .code = 310, .version = 479,
                           .field_count = 2, .fields = {{TEXT("n"), TEXT("broker-a")},
                                                        {TEXT("AccessKey"), TEXT("user")}}};
    static ps_command got;
    uint8_t base[256];
    char text[PS_SIGNATURE_LEN];
    ps_error e = {0};
    ps_signer *signer = ps_signer_make(&toy_digest, "secret", 6);
    CHECK(signer != NULL);
    int64_t wanted, base_len = ps_command_encode(&c, 0, base, sizeof base, &e);
    int64_t need = ps_client_send(base, base_len, 7, 0, 0, 1234567890123, BYTES("K\1v\2"),
                                  BYTES("body"), signer, wire_out_end, 0, &e);
    uint8_t *out = wire_out_end - need;
    int64_t size = ps_client_send(base, base_len, 7, 0, 0, 1234567890123, BYTES("K\1v\2"),
                                  BYTES("body"), signer, out, need, &e);
    CHECK_EQ(size, wire_decode(out, size, &got, &wanted, &e));
    CHECK(got.field_count == 7 && wire_same(got.body, TEXT("body")));
    ps_slice given = ps_command_field(&got, "Signature");
    CHECK(ps_signer_sign(signer, got.fields, got.field_count, got.body, text));
    CHECK(wire_same(given, (ps_slice){(const uint8_t *)text, PS_SIGNATURE_LEN}));
    CHECK(ps_signer_sign(signer, got.fields, got.field_count, TEXT("bodz"), text));
    CHECK(!wire_same(given, (ps_slice){(const uint8_t *)text, PS_SIGNATURE_LEN}));
    c.fields[0].name = TEXT("f"); /* twice then */
    base_len = ps_command_encode(&c, 0, base, sizeof base, &e);
    CHECK_EQ(PS_E_FRAME, ps_client_send(base, base_len, 7, 0, 0, 0, BYTES("K\1v\2"),
                                        BYTES("body"), signer, out, need, &e));
    ps_signer_free(signer);
}

static void test_batch_items(void) {
    int32_t bodies[] = {1, 3}, flags[] = {5, -1}, props[] = {0, 2};
    ps_error e = {0};
    int64_t room = 2 * 22 + 4 + 2;
    uint8_t *out = wire_out_end - room;
    CHECK_EQ(room, ps_client_batch((const uint8_t *)"abcd", bodies, flags, (const uint8_t *)"xy",
                                   props, 2, out, room, &e));
    CHECK(be32_get(out) == 23 && be32_get(out + 12) == 5 && out[20] == 'a');
    out += 23;
    CHECK(be32_get(out) == 27 && be32_get(out + 12) == 0xFFFFFFFF && be32_get(out + 16) == 3);
    CHECK(memcmp(out + 20, "bcd\0\2xy", 7) == 0);
    CHECK_EQ(PS_E_ARGUMENT, ps_client_batch((const uint8_t *)"abcd", bodies, flags,
                                            (const uint8_t *)"xy", props, 2, out, room - 1, &e));
    props[1] = -1;
    CHECK_EQ(PS_E_ARGUMENT, ps_client_batch((const uint8_t *)"abcd", bodies, flags,
                                            (const uint8_t *)"xy", props, 2, out - 23, room, &e));
}

/* A record that holds two messages, between two that are one each. */
static void test_batches_are_unpacked(void) {
    int32_t bodies[] = {1, 3}, flags[] = {5, -1}, props[] = {0, 7};
    uint8_t *in = wire_in_end - (2 * 22 + 4 + 7);
    ps_fields rows[3] = {{.queue_offset = 6}, {.queue_offset = 7, .sys_flag = 0xD0},
                         {.queue_offset = 9, .sys_flag = 0x80}}, out[4];
    ps_error e = {0};
    rows[1].body_end = ps_client_batch((const uint8_t *)"abcd", bodies, flags,
                                       (const uint8_t *)"TAGS\1t\2", props, 2, in, 55, &e);
    CHECK_EQ(55, rows[1].body_end);
    CHECK_EQ(1, ps_client_batches(rows, 3));
    CHECK_EQ(4, ps_client_unpack(in, rows, 3, NULL, 0));
    CHECK_EQ(4, ps_client_unpack(in, rows, 3, out, 4));
    for (int i = 0; i < 4; i++) CHECK_EQ(6 + i, out[i].queue_offset);
    CHECK(out[1].flag == 5 && in[out[1].body_at] == 'a' && out[1].tags_len == -1);
    CHECK(out[2].flag == -1 && out[2].body_end - out[2].body_at == 3 && out[2].sys_flag == 0x10);
    CHECK(in[out[2].tags_at] == 't' && out[2].tags_len == 1 && out[2].properties_len == 7);
    rows[1].sys_flag |= 1;
    CHECK_EQ(-1, ps_client_unpack(in, rows, 3, out, 4));
    rows[1].sys_flag = 0xC0;
    rows[1].body_end--;
    CHECK_EQ(-1, ps_client_unpack(in, rows, 3, out, 4));
}

static int64_t answer(uint8_t *to, int kind, int32_t opaque, const char *ids) {
    static ps_command c;
    c = (ps_command){.serialize = kind, .flag = PS_FLAG_RESPONSE, .opaque = opaque,
                     .field_count = 4,
                     .fields = {{TEXT("queueId"), TEXT("2")},
                                {TEXT("msgId"), {(const uint8_t *)ids, (int32_t)strlen(ids)}},
                                {TEXT("queueOffset"), TEXT("41")},
                                {TEXT("transactionId"), TEXT("TX")}}};
    return ps_command_encode(&c, 0, to, 512, NULL);
}

/* Two answers of sends and a pull's, in pieces of any size: the same rows. */
static void test_answers_cut_anywhere(void) {
    static ps_command other = {.flag = PS_FLAG_RESPONSE, .opaque = 9, .no_fields = 1};
    uint8_t all[2048], scratch[1024];
    ps_answered rows[ROWS];
    ps_error e = {0};
    int64_t one = answer(all, PS_SERIALIZE_ROCKETMQ, 5, "ID");
    int64_t two = one + answer(all + one, PS_SERIALIZE_JSON, 6, "ID,ID");
    int64_t end = two + ps_command_encode(&other, 0, all + two, 512, &e);
    for (int64_t cut = 0; cut <= end; cut++) {
        int64_t used, wanted;
        uint8_t *in = wire_in_end - cut;
        memcpy(in, all, (size_t)cut);
        int32_t count =
            ps_client_answers(in, cut, 1 << 20, scratch, rows, ROWS, &used, &wanted, &e);
        CHECK_EQ((cut >= one) + (cut >= two) + (cut >= end), count);
        CHECK_EQ(cut >= end ? end : cut >= two ? two : cut >= one ? one : 0, used);
        CHECK(wanted == 0 || used + wanted > cut);
        if (count > 0) CHECK(rows[0].sent && rows[0].opaque == 5 && rows[0].queue_offset == 41);
        if (count > 1)
            CHECK(rows[1].sent && rows[1].queue_id == 2 && rows[1].ids_len == 5 &&
                  memcmp(in + rows[1].ids_at, "ID,ID", 5) == 0 &&
                  memcmp(in + rows[1].tx_at, "TX", 2) == 0);
        if (count > 2) CHECK(!rows[2].sent && rows[2].opaque == 9 && rows[2].at == two);
    }
    memset(all, 0xFF, 8);
    int64_t used, wanted;
    CHECK_EQ(PS_E_FRAME,
             ps_client_answers(all, end, 1 << 20, scratch, rows, ROWS, &used, &wanted, &e));
}

/* Bytes at random are no records, and nothing beyond them is read. */
static void test_records_of_any_bytes(void) {
    ps_fields rows[ROWS];
    for (int round = 0; round < 20000; round++) {
        int64_t used, len = (int64_t)(check_random() % 300);
        uint8_t *in = wire_in_end - len;
        for (int64_t i = 0; i < len; i++) in[i] = (uint8_t)check_random();
        if (len >= 8) {
            be32_put(in, (uint32_t)len);
            be32_put(in + 4, 0xDAA320A7u);
        }
        int32_t count = ps_fields_read(in, 0, len, 0, rows, ROWS, &used);
        CHECK(count >= 0 && used <= len && (count > 0 || used == 0));
    }
}

int main(void) {
    check_begin();
    wire_begin();
    test_send_has_all_fields();
    test_send_is_signed();
    test_batch_items();
    test_batches_are_unpacked();
    test_answers_cut_anywhere();
    test_records_of_any_bytes();
    return check_end("test_client");
}
