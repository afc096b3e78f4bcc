/* What the tests of the wire share: a decoder that is given every byte of its buffers and not one
 * more, and the claims that hold for whatever comes out of it. */
#ifndef PS_TEST_WIRE_H
#define PS_TEST_WIRE_H

#include <sys/mman.h>

#include "scan/arrow.h"
#include "base/bytes.h"
#include "check.h"
#include "base/error.h"
#include "wire/command.h"
#include "wire/packed.h"
#include "format/utf8.h"

enum { WIRE_ROOM = 4 << 20 };

/* WIRE_ROOM bytes end at each, and the byte there may be neither read nor written. */
static uint8_t *wire_in_end, *wire_scratch_end, *wire_out_end;

static uint8_t *wire_fence(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, WIRE_ROOM + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map, WIRE_ROOM, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    return map + WIRE_ROOM;
}

static CHECK_UNUSED void wire_begin(void) {
    wire_in_end = wire_fence();
    wire_scratch_end = wire_fence();
    wire_out_end = wire_fence();
}

/* Bytes of the header that the frame says it has, 0 when it is too short to say. */
static CHECK_UNUSED int64_t wire_header_len(const uint8_t *frame, int64_t len) {
    return len < 8 ? 0 : be32_get(frame + 4) & 0xFFFFFF;
}

/* Decodes a copy of the bytes with both buffers at a fence. */
static CHECK_UNUSED int64_t wire_decode(const uint8_t *frame, int64_t len, ps_command *out,
                                        int64_t *wanted, ps_error *error) {
    uint8_t *in = wire_in_end - len;
    int64_t header_len = wire_header_len(frame, len);
    memcpy(in, frame, (size_t)len);
    if (header_len > PS_HEADER_MAX) header_len = PS_HEADER_MAX;
    return ps_command_decode(in, len, 1 << 24, wire_scratch_end - header_len, out, wanted, error);
}

static CHECK_UNUSED bool wire_within(ps_slice s, const uint8_t *end, int64_t len) {
    return s.len >= 0 && s.data >= end - len && s.data + s.len <= end;
}

/* A text lies in the frame or in the scratch space, and is UTF-8. */
static CHECK_UNUSED bool wire_text_good(ps_slice s, int64_t len, int64_t header_len) {
    return (wire_within(s, wire_in_end, len) || wire_within(s, wire_scratch_end, header_len)) &&
           ps_utf8_valid(s.data, s.len);
}

static CHECK_UNUSED bool wire_same(ps_slice a, ps_slice b) {
    return (a.data == NULL) == (b.data == NULL) && a.len == b.len &&
           (a.data == NULL || memcmp(a.data, b.data, (size_t)a.len) == 0);
}

static CHECK_UNUSED bool wire_same_command(const ps_command *a, const ps_command *b) {
    bool same = a->serialize == b->serialize && a->code == b->code && a->version == b->version &&
                a->opaque == b->opaque && a->flag == b->flag && a->field_count == b->field_count &&
                wire_same(a->remark, b->remark);
    for (int32_t i = 0; same && i < a->field_count; i++)
        same = wire_same(a->fields[i].name, b->fields[i].name) &&
               wire_same(a->fields[i].value, b->fields[i].value);
    return same;
}

/* A header of these bytes and a body, as a frame. Returns its length. */
static CHECK_UNUSED int64_t wire_frame(uint8_t *to, int kind, const void *header,
                                       int64_t header_len, const void *body, int64_t body_len) {
    be32_put(to, (uint32_t)(4 + header_len + body_len));
    be32_put(to + 4, (uint32_t)kind << 24 | (uint32_t)header_len);
    memcpy(to + 8, header, (size_t)header_len);
    if (body_len > 0) memcpy(to + 8 + header_len, body, (size_t)body_len);
    return 8 + header_len + body_len;
}

/* Encodes into exactly the room that is asked for. Returns what ps_command_encode does. */
static CHECK_UNUSED int64_t wire_encode(const ps_command *c, int64_t body_len, uint8_t **out) {
    ps_error e = {0};
    int64_t need = ps_command_encode(c, body_len, wire_out_end, 0, &e), size;
    if (need < 0 || need > WIRE_ROOM) return need;
    *out = wire_out_end - need;
    size = ps_command_encode(c, body_len, *out, need, &e);
    CHECK(size > 8 && size <= need);
    return size;
}

/* Whatever bytes: an answer that fits the contract, and what was understood survives being written
 * and read again. */
static CHECK_UNUSED int64_t wire_try(const uint8_t *frame, int64_t len) {
    static ps_command c, again;
    static ps_packed packed;
    ps_error e = {0};
    int64_t wanted = -1, header_len = wire_header_len(frame, len);
    int64_t size = wire_decode(frame, len, &c, &wanted, &e);
    if (size < 0) {
        CHECK_EQ(PS_E_FRAME, size);
        CHECK_EQ(PS_E_FRAME, e.code);
        CHECK(e.text[0] != 0);
        return size;
    }
    CHECK(size == 0 ? len < 4 ? wanted == 0 : wanted > len : wanted == size && size <= len);
    if (size == 0) return 0;

    bool good = c.field_count >= 0 && c.field_count <= PS_FIELDS_MAX;
    CHECK(good);
    if (c.remark.data != NULL) good = good && wire_text_good(c.remark, len, header_len);
    for (int32_t i = 0; good && i < c.field_count; i++)
        good = wire_text_good(c.fields[i].name, len, header_len) &&
               wire_text_good(c.fields[i].value, len, header_len);
    CHECK(good);
    CHECK(wire_within(c.body, wire_in_end, len) && c.body.len == size - 8 - header_len);

    uint8_t *out, *texts = wire_out_end - header_len;
    CHECK_EQ(size, ps_packed_decode(wire_in_end - len, len, 1 << 24, wire_scratch_end - header_len,
                                    texts, &packed, &e));
    CHECK(packed.field_count == c.field_count && packed.text_len <= header_len);

    int64_t wrote = wire_encode(&c, 0, &out), gone;
    if (wrote - 8 > PS_HEADER_MAX) { /* escaped again it is longer than what is read */
        CHECK(header_len > PS_HEADER_MAX / 8);
        return size;
    }
    /* The scratch space still holds texts of the first command: the second gets another. */
    uint8_t *scratch = malloc((size_t)wrote);
    CHECK_EQ(wrote, ps_command_decode(out, wrote, 1 << 24, scratch, &again, &gone, &e));
    CHECK(wire_same_command(&c, &again));
    free(scratch);
    return size;
}

#endif
