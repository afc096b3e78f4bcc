/* Fuzzes who is let in: damaged frames that were signed, some of them signed again, beside a slow
 * decision that is written another way. Driver and settings: fuzz_command.c; the museum is
 * tests/fuzz/museum/command. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "tables/access.h"
#include "toy.h"

enum { INPUT_MAX = 64 << 10 };
#define FUZZ_MUSEUM "tests/fuzz/museum/command"
#define SECRET "a-secret"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *folder;
static ps_conn *conn;
static int64_t runs, let_in;

static void open_guarded(void) {
    static const uint8_t host[4] = {10, 0, 0, 1}; /* of kit_conn */
    ps_conf conf = kit_conf();
    ps_error e = {0};
    folder = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", folder);
    kit_open(&conf, 50);
    CHECK_EQ(0, ps_core_check_access(kit_core, &toy_digest, &e));
    for (int k = 0; k < 2; k++) { /* the same twice is one */
        ps_core_grant(kit_core, "K", 1, SECRET, 8, host, 4, 310, "T", 1, "", 0, "", 0);
        ps_core_grant(kit_core, "K", 1, SECRET, 8, host, 4, 11, "T", 1, "G", 1, "", 0);
    }
    conn = kit_conn(1);
}

/* ---- the slow way ---- */

static int compare_fields(const void *one, const void *other) {
    const ps_slice *a = &((const ps_field *)one)->name, *b = &((const ps_field *)other)->name;
    for (int32_t i = 0; i < a->len && i < b->len; i++)
        if (a->data[i] != b->data[i]) return a->data[i] < b->data[i] ? -1 : 1;
    return a->len - b->len;
}

static void toy_sum(const uint8_t *pad, const uint8_t *data, int64_t len, uint8_t *out) {
    toy t;
    toy_init(&t);
    toy_update(&t, pad, 64);
    toy_update(&t, data, (size_t)len);
    toy_final(out, &t);
}

/* False: the core leaves it to Python. */
static bool sign_slowly(const ps_command *c, char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static ps_field sorted[PS_FIELDS_MAX];
    static uint8_t all[2 * INPUT_MAX];
    uint8_t inner[64] = SECRET, outer[64] = SECRET, sum[24] = {0};
    int64_t len = 0;
    memcpy(sorted, c->fields, (size_t)c->field_count * sizeof *sorted);
    qsort(sorted, (size_t)c->field_count, sizeof *sorted, compare_fields);
    for (int32_t i = 0; i < c->field_count; i++) {
        const ps_field *f = &sorted[i];
        if (i > 0 && compare_fields(f, f - 1) == 0) return false;
        for (int32_t k = 0; k < f->name.len; k++)
            if (f->name.data[k] >= 0x80) return false;
        if (ps_slice_is(f->name, "Signature")) continue;
        if (f->value.len > 0) memcpy(all + len, f->value.data, (size_t)f->value.len);
        len += f->value.len;
    }
    if (c->body.len > 0) memcpy(all + len, c->body.data, (size_t)c->body.len);
    len += c->body.len;
    for (int i = 0; i < 64; i++) {
        inner[i] ^= 0x36;
        outer[i] ^= 0x5c;
    }
    toy_sum(inner, all, len, sum);
    toy_sum(outer, sum, 20, sum);
    for (int i = 0; i < 27; i++) {
        int bit = 6 * i, two = sum[bit / 8] << 8 | sum[bit / 8 + 1];
        text[i] = digits[two >> (10 - bit % 8) & 63];
    }
    text[27] = '=';
    return true;
}

static bool is_expected(const ps_command *c) {
    char text[PS_SIGNATURE_LEN];
    ps_slice given = ps_command_field(c, "Signature");
    bool named = c->code == 310 ? ps_slice_is(ps_command_field(c, "b"), "T")
                                : c->code == 11 && ps_slice_is(ps_command_field(c, "topic"), "T") &&
                                      ps_slice_is(ps_command_field(c, "consumerGroup"), "G");
    return named && !(c->flag & PS_FLAG_RESPONSE) && given.len == PS_SIGNATURE_LEN &&
           ps_slice_is(ps_command_field(c, "AccessKey"), "K") && sign_slowly(c, text) &&
           memcmp(given.data, text, sizeof text) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t scratch[PS_HEADER_MAX], copy[INPUT_MAX];
    static ps_command c;
    char text[PS_SIGNATURE_LEN];
    int64_t wanted;
    if (size > INPUT_MAX) return 0;
    if (folder == NULL) open_guarded();
    memcpy(copy, data, size);
    if (ps_command_decode(copy, (int64_t)size, INPUT_MAX, scratch, &c, &wanted, NULL) <= 0)
        return 0;
    ps_slice given = ps_command_field(&c, "Signature");
    if (++runs % 2 == 0 && given.len == PS_SIGNATURE_LEN && sign_slowly(&c, text))
        memcpy((uint8_t *)given.data, text, sizeof text); /* in copy or in scratch */
    bool granted = ps_access_granted(conn, &c);
    let_in += granted;
    CHECK_EQ(is_expected(&c), granted);
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

/* Sends and pulls of both encodings, with few fields and with more than are sorted by hand. */
static void add_signed(void) {
    static ps_command c;
    static uint8_t scratch[PS_HEADER_MAX];
    uint8_t frame[4096];
    for (int i = 0; i < 16; i++) {
        kit_frame f;
        char text[PS_SIGNATURE_LEN + 1] = "AAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        static char names[40][16];
        int64_t wanted;
        if (i & 1)
            kit_send(&f, i >> 1 & 1, i, "T", 0, "UNIQ_KEY\1A\2");
        else
            kit_pull(&f, i, "G", "T", 0, 0, 0, 0);
        kit_text(&f, "AccessKey", "K");
        kit_text(&f, "Signature", text);
        for (int k = 0; k < (i & 8 ? 40 : 0); k++) {
            snprintf(names[k], sizeof names[k], "x%02d", k * 7 % 40);
            ps_field *field = &f.command.fields[f.command.field_count++];
            *field = (ps_field){ps_slice_of(names[k]), ps_slice_of("v")};
        }
        int64_t len = kit_encode(&f, "body", i & 1 ? 4 : 0, frame, sizeof frame);
        CHECK(ps_command_decode(frame, len, INPUT_MAX, scratch, &c, &wanted, NULL) == len);
        CHECK(sign_slowly(&c, text));
        memcpy((uint8_t *)ps_command_field(&c, "Signature").data, text, PS_SIGNATURE_LEN);
        add_frame(frame, len);
    }
}

int main(int argc, char **argv) {
    int code = fuzz_main("fuzz_access", argc, argv, add_signed);
    printf("%" PRId64 " frames were let in\n", let_in);
    ps_conn_free(conn);
    kit_close();
    check_remove(folder);
    free(folder);
    free(kit_handed);
    return let_in > 0 ? code : 1;
}
#endif
