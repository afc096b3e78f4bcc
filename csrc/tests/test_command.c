/* Frames and command headers: what Java makes of each form, hostile bytes of every kind, round
 * trips, damage at random. What a decoder is given ends at a page that may not be touched, and so
 * do the buffers that it and the encoder write to. */
#define _GNU_SOURCE
#include <stdarg.h>

#include "wire.h"

#define TEXT(text) ((ps_slice){(const uint8_t *)(text), sizeof(text) - 1})

static uint8_t frame[WIRE_ROOM];

/* Writes a text at `to`, where the caller knows that there is room; gives its length. */
static int put(char *to, const char *text, ...) __attribute__((format(printf, 2, 3)));
static int put(char *to, const char *text, ...) {
    va_list args;
    va_start(args, text);
    int len = vsnprintf(to, 256, text, args);
    va_end(args);
    return len;
}

static bool is(ps_slice got, const char *text) {
    return got.data != NULL && (size_t)got.len == strlen(text) &&
           memcmp(got.data, text, strlen(text)) == 0;
}

/* Decodes a header of that kind, body "body". */
static int64_t decode(int kind, const void *header, int64_t len, ps_command *out) {
    int64_t wanted, size = wire_frame(frame, kind, header, len, "body", 4);
    ps_error e = {0};
    int64_t got = wire_decode(frame, size, out, &wanted, &e);
    if (got > 0) CHECK(got == size && is(out->body, "body"));
    CHECK_EQ(got, wire_try(frame, size));
    return got;
}

static int64_t decode_json(const char *header, ps_command *out) {
    return decode(PS_SERIALIZE_JSON, header, (int64_t)strlen(header), out);
}

/* ---- JSON, decoding ---- */

static void test_json_members(void) {
    static ps_command c;
    CHECK(
        decode_json("{\"code\":310,\"extFields\":{\"a\":\"x\",\"b\":\"\"},\"flag\":2,\"language\":"
                    "\"GO\",\"opaque\":-7,\"remark\":\"r\",\"serializeTypeCurrentRPC\":\"JSON\","
                    "\"version\":479}",
                    &c) > 0);
    CHECK(c.serialize == 0 && c.code == 310 && c.flag == 2 && c.language == 9 && c.opaque == -7);
    CHECK(c.version == 479 && c.field_count == 2 && is(c.remark, "r") && c.no_fields == 0);
    CHECK(is(ps_command_field(&c, "a"), "x") && is(ps_command_field(&c, "b"), ""));
    CHECK(ps_command_field(&c, "c").data == NULL);

    CHECK(decode_json("\t{ \"version\" :\r\n 1 ,\"nobody\":{\"a\":[1,{\"}\":null}],\"c\":\"]\"},"
                      "\"c\\u006fde\":\"5\",\"x\":[],\"y\":{},\"z\":-1.5e+3,\"extFields\":null} \n",
                      &c) > 0);
    CHECK(c.code == 5 && c.version == 1 && c.field_count == 0 && c.no_fields == 1);
    CHECK(c.remark.data == NULL && c.language == 0 && c.opaque == 0);

    CHECK(decode_json("{}", &c) > 0);
    CHECK(c.code == 0 && c.language == 0 && c.version == 0 && c.no_fields == 1);
    CHECK(decode_json("{\"extFields\":{}}", &c) > 0);
    CHECK(c.field_count == 0 && c.no_fields == 0);
    CHECK(decode_json("{\"code\":null,\"language\":\"COBOL\",\"remark\":null}", &c) > 0);
    CHECK(c.code == 0 && c.language == 7 && c.remark.data == NULL);
    CHECK(decode_json("{\"language\":{\"a\":1}}", &c) > 0 && c.language == 7);
    CHECK(decode_json("{\"remark\":\"\"}", &c) > 0 && is(c.remark, ""));
    CHECK(decode_json("{\"remark\":17}", &c) > 0 && is(c.remark, "17"));
    CHECK(decode_json("{\"opaque\":-2147483648}", &c) > 0 && c.opaque == INT32_MIN);
}

static void test_json_fields(void) {
    static ps_command c;
    CHECK(decode_json("{\"extFields\":{\"a\":1,\"b\":1.50,\"c\":true,\"d\":null,\"e\":-0,\"f\":1e3,"
                      "\"g\":false,\"\":\"v\"}}",
                      &c) > 0);
    CHECK(is(ps_command_field(&c, "a"), "1") && is(ps_command_field(&c, "b"), "1.50"));
    CHECK(is(ps_command_field(&c, "c"), "true") && is(ps_command_field(&c, "g"), "false"));
    CHECK(is(ps_command_field(&c, "e"), "-0") && is(ps_command_field(&c, "f"), "1e3"));
    CHECK(is(ps_command_field(&c, ""), "v") && ps_command_field(&c, "d").data == NULL);
    CHECK_EQ(7, c.field_count);

    /* The last one counts, also when it is null. */
    CHECK(decode_json("{\"extFields\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"}}", &c) > 0);
    CHECK(c.field_count == 3 && is(ps_command_field(&c, "a"), "3"));
    CHECK(decode_json("{\"extFields\":{\"a\":\"1\",\"b\":\"2\",\"a\":null}}", &c) > 0);
    CHECK(c.field_count == 1 && ps_command_field(&c, "a").data == NULL);
    CHECK(decode_json("{\"extFields\":{\"a\":\"1\"},\"extFields\":{\"b\":\"2\"}}", &c) > 0);
    CHECK(c.field_count == 1 && is(ps_command_field(&c, "b"), "2"));
    CHECK(decode_json("{\"code\":1,\"code\":2}", &c) > 0 && c.code == 2);
}

static void test_json_escapes(void) {
    static ps_command c;
    static const struct {
        const char *written, *text;
    } cases[] = {
        {"\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t"},
        {"a\\u0001b\\u0002", "a\001b\002"},
        {"\\u00e4\\u00E4", "\xC3\xA4\xC3\xA4"},
        {"\\u6ce8", "\xE6\xB3\xA8"},
        {"\\uD83D\\uDE00", "\xF0\x9F\x98\x80"},
        {"\\uDBFF\\uDFFF", "\xF4\x8F\xBF\xBF"},
        /* Half a pair is what Java stores for it. */
        {"\\ud800", "?"},
        {"\\udc00\\ud800", "??"},
        {"\\ud83d\\ud83d\\ude00", "?\xF0\x9F\x98\x80"},
        {"\\ud83dx\\ude00", "?x?"},
        {"\\ud83d\\n", "?\n"},
        {"raw \t\001 controls", "raw \t\001 controls"},
        {"\xE6\xB3\xA8 \xF0\x9F\x98\x80 \xC2\x80", "\xE6\xB3\xA8 \xF0\x9F\x98\x80 \xC2\x80"},
        {"sixteen bytes and then\\nmore of them, so that blocks meet\\u0001 escapes and ends",
         "sixteen bytes and then\nmore of them, so that blocks meet\001 escapes and ends"},
    };
    char header[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(header, sizeof header, "{\"remark\":\"%s\",\"version\":479}", cases[i].written);
        CHECK(decode_json(header, &c) > 0);
        CHECK(is(c.remark, cases[i].text));
        snprintf(header, sizeof header, "{\"remark\":\"%s\"}", cases[i].written);
        CHECK(decode_json(header, &c) > 0);
        CHECK(is(c.remark, cases[i].text));
        snprintf(header, sizeof header, "{\"extFields\":{\"%s\":\"\"}}", cases[i].written);
        CHECK(decode_json(header, &c) > 0);
        CHECK(c.field_count == 1 && is(c.fields[0].name, cases[i].text));
    }
    CHECK(decode_json("{\"remark\":\"\\u0000x\"}", &c) > 0);
    CHECK(c.remark.len == 2 && memcmp(c.remark.data, "\0x", 2) == 0);
}

static const char *const JSON_REFUSED[] = {
    "",
    " ",
    "null",
    "[]",
    "5",
    "{",
    "{\"",
    "{\"code",
    "{\"code\"",
    "{\"code\":",
    "{\"code\":5",
    "{\"code\":5,",
    "{\"code\":5,}",
    "{\"code\":5}x",
    "{\"code\":5}}",
    "{\"code\" 5}",
    "{,}",
    "{\"code\":5,,\"flag\":1}",
    "{code:5}",
    "{'code':5}",
    "/**/{}",
    "{\"code\":}",
    "\xEF\xBB\xBF{}",
    /* numbers */
    "{\"code\":5.0}",
    "{\"code\":1e1}",
    "{\"code\":true}",
    "{\"code\":05}",
    "{\"code\":+5}",
    "{\"code\":-}",
    "{\"code\":2147483648}",
    "{\"code\":-2147483649}",
    "{\"code\":\"\"}",
    "{\"code\":99999999999999999999}",
    "{\"code\":\"x\"}",
    "{\"code\":{}}",
    "{\"code\":nul}",
    "{\"x\":1.}",
    "{\"x\":.5}",
    "{\"x\":1e}",
    "{\"x\":1e+}",
    "{\"x\":NaN}",
    "{\"x\":Infinity}",
    "{\"x\":00}",
    "{\"x\":tru}",
    "{\"x\":truex}",
    "{\"x\":-}",
    /* texts */
    "{\"remark\":\"}",
    "{\"remark\":\"\\\"}",
    "{\"remark\":\"\\q\"}",
    "{\"remark\":\"\\u12G4\"}",
    "{\"remark\":\"\\u12",
    "{\"remark\":\"\\ud800\\u12\"}",
    "{\"remark\":\"\\",
    "{\"remark\":\"\\x41\"}",
    "{\"remark\":{}}",
    "{\"remark\":[]}",
    "{\"remark\":\"\xFF\"}",
    "{\"remark\":\"\xE6\xB3\"}",
    "{\"remark\":\"\xED\xA0\x80\"}",
    "{\"remark\":\"\xC0\x80\"}",
    "{\"remark\":\"\\n\xFF\"}",
    "{\"x\":\"\xFF\"}",
    "{\"\xFF\":1}",
    /* fields */
    "{\"extFields\":[]}",
    "{\"extFields\":\"x\"}",
    "{\"extFields\":{\"a\":{}}}",
    "{\"extFields\":{\"a\":[]}}",
    "{\"extFields\":{\"a\":\"1\",}}",
    "{\"extFields\":{\"a\"}}",
    "{\"extFields\":{\"a\":\"1\"]}",
    "{\"extFields\":{a:1}}",
    "{\"extFields\":{\"a\":\"1\"}",
    /* what is skipped is looked at as well */
    "{\"x\":[1,]}",
    "{\"x\":[1}]}",
    "{\"x\":{\"a\":1]}}",
    "{\"x\":{\"a\"}}",
    "{\"x\":{1:2}}",
    "{\"x\":[}",
    "{\"x\":[\"\\q\"]}",
    "{\"x\":[1 2]}",
};

static void test_json_refused(void) {
    static ps_command c;
    for (size_t i = 0; i < sizeof JSON_REFUSED / sizeof *JSON_REFUSED; i++)
        if (!CHECK_EQ(PS_E_FRAME, decode_json(JSON_REFUSED[i], &c)))
            printf("  %s\n", JSON_REFUSED[i]);
    /* A NUL ends nothing and is not a blank. */
    CHECK_EQ(PS_E_FRAME, decode(0, "{}\0", 3, &c));
    CHECK_EQ(PS_E_FRAME, decode(0, "\0{}", 3, &c));
    CHECK_EQ(PS_E_FRAME, decode(0, "{\0}", 3, &c));
}

/* ---- JSON, encoding ---- */

static void expect_encoded(const ps_command *c, const char *header) {
    uint8_t *out;
    int64_t size = wire_encode(c, 3, &out), len = (int64_t)strlen(header);
    if (!CHECK_EQ(8 + len, size)) return;
    CHECK_EQ(4 + len + 3, be32_get(out));
    CHECK_EQ(len, be32_get(out + 4));
    if (!CHECK(memcmp(out + 8, header, (size_t)len) == 0)) printf("  %.*s\n", (int)len, out + 8);
}

static void test_json_written_as_java_does(void) {
    static ps_command c = {.code = 17, .version = 479, .opaque = 4, .flag = 1, .no_fields = 1};
    expect_encoded(&c, "{\"code\":17,\"flag\":1,\"language\":\"JAVA\",\"opaque\":4,"
                       "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
    c.no_fields = 0;
    c.language = 99;
    c.remark = TEXT("");
    expect_encoded(&c, "{\"code\":17,\"extFields\":{},\"flag\":1,\"language\":\"OTHER\","
                       "\"opaque\":4,\"remark\":\"\",\"serializeTypeCurrentRPC\":\"JSON\","
                       "\"version\":479}");
    c.code = INT32_MIN;
    c.opaque = INT32_MAX;
    c.version = c.flag = -1;
    c.language = 13;
    c.field_count = 3;
    c.fields[0] = (ps_field){TEXT("k"), {NULL, 0}};
    c.fields[1] = (ps_field){TEXT("k"), TEXT("")};
    c.fields[2] = (ps_field){TEXT("\""), TEXT("v")};
    c.remark = (ps_slice){NULL, 0};
    expect_encoded(&c,
                   "{\"code\":-2147483648,\"extFields\":{\"k\":\"\",\"\\\"\":\"v\"},\"flag\":-1,"
                   "\"language\":\"NODE_JS\",\"opaque\":2147483647,"
                   "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":-1}");
}

/* What RemotingCommand.encodeHeader of 5.3.3 wrote for these characters, observed. */
static void test_escapes_written_as_java_does(void) {
    static ps_command c = {.no_fields = 1};
    char controls[32], wanted[1024];
    for (int i = 0; i < 32; i++) controls[i] = (char)i;
#define REMARK(text)                                                                               \
    "{\"code\":0,\"flag\":0,\"language\":\"JAVA\",\"opaque\":0,\"remark\":\"" text                 \
    "\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":0}"
    c.remark = (ps_slice){(uint8_t *)controls, 32};
    expect_encoded(&c, REMARK("\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n"
                              "\\u000B\\f\\r\\u000E\\u000F\\u0010\\u0011\\u0012\\u0013\\u0014"
                              "\\u0015\\u0016\\u0017\\u0018\\u0019\\u001A\\u001B\\u001C\\u001D"
                              "\\u001E\\u001F"));
    c.remark = TEXT(" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\x7F");
    expect_encoded(&c, REMARK(" !\\\"#$%&'()*+,-./:;<=>?@[\\\\]^_`{|}~\\u007F"));
    c.remark = TEXT("\xC2\x80 \xC2\x9F \xC2\xA0 \xC3\x80 \xE2\x80\xA8\xE2\x80\xA9 \xE2\x80\xA7");
    expect_encoded(&c, REMARK("\\u0080 \\u009F \xC2\xA0 \xC3\x80 \\u2028\\u2029 \xE2\x80\xA7"));
    c.remark = TEXT("\xEF\xBB\xBF \xE2\x81\xA8 \xF0\x9F\x98\x80");
    expect_encoded(&c, REMARK("\xEF\xBB\xBF \xE2\x81\xA8 \xF0\x9F\x98\x80"));
    /* No text, but nothing is read beyond it either. */
    c.remark = (ps_slice){memcpy(wire_in_end - 1, "\xC2", 1), 1};
    expect_encoded(&c, REMARK("\xC2"));
    c.remark = (ps_slice){memcpy(wire_in_end - 2, "\xE2\x80", 2), 2};
    expect_encoded(&c, REMARK("\xE2\x80"));
    /* An escape at each place of a block. */
    for (int i = 0; i < 40; i++) {
        uint8_t text[40];
        memset(text, 'x', sizeof text);
        text[i] = '\n';
        c.remark = (ps_slice){text, 40};
        snprintf(wanted, sizeof wanted, REMARK("%.*s\\n%.*s"), i, (char *)text, 39 - i,
                 (char *)text + i + 1);
        expect_encoded(&c, wanted);
    }
#undef REMARK
}

/* ---- binary ---- */

static int64_t decode_hex(const char *hex, ps_command *out) {
    uint8_t header[256];
    return decode(PS_SERIALIZE_ROCKETMQ, header, check_unhex(hex, header), out);
}

#define FIXED "0136 09 01df 00000005 00000002 "

static void test_binary(void) {
    static ps_command c;
    CHECK(decode_hex(FIXED "00000002 6f6b 00000010 0001 61 00000002 7879 0000 00000001 7a", &c) >
          0);
    CHECK(c.serialize == 1 && c.code == 310 && c.language == 9 && c.version == 479);
    CHECK(c.opaque == 5 && c.flag == 2 && is(c.remark, "ok") && c.field_count == 2);
    CHECK(is(ps_command_field(&c, "a"), "xy") && is(ps_command_field(&c, ""), "z"));
    CHECK(decode_hex("fffe ff ffff ffffffff ffffffff 00000000 00000000", &c) > 0);
    CHECK(c.code == -2 && c.language == 255 && c.version == -1 && c.opaque == -1 && c.flag == -1);
    CHECK(c.remark.data == NULL && c.field_count == 0);

    /* The last one counts, and a value without length is none. */
    CHECK(decode_hex(FIXED "00000000 00000010 0001 61 00000001 78 0001 61 00000001 79", &c) > 0);
    CHECK(c.field_count == 2 && is(ps_command_field(&c, "a"), "y"));
    CHECK(decode_hex(FIXED "00000000 0000000f 0001 61 00000001 78 0001 61 00000000", &c) > 0);
    CHECK_EQ(0, c.field_count);
    /* Nothing after the fields is read. */
    CHECK(decode_hex(FIXED "00000000 00000000 ffff", &c) > 0 && c.field_count == 0);
    /* Beyond ASCII each text is looked at by itself, lengths are not. */
    CHECK(decode_hex(FIXED "00000000 0000000a 0001 61 00000003 e6b3a8", &c) > 0);
    CHECK(is(ps_command_field(&c, "a"), "\xE6\xB3\xA8"));
}

static void test_binary_refused(void) {
    static const char *const CASES[] = {
        "",
        "00",
        FIXED "00000000 000000",
        FIXED "ffffffff 00000000",
        FIXED "00000001 00000000",
        FIXED "7fffffff 00000000",
        FIXED "00000000 ffffffff",
        FIXED "00000000 00000001",
        FIXED "00000000 7fffffff",
        FIXED "00000001 ff 00000000",
        FIXED "00000000 00000001 00",
        FIXED "00000000 00000002 0000",
        FIXED "00000000 00000006 0001 61 000000",
        FIXED "00000000 00000006 0001 00000000",
        FIXED "00000000 00000007 ffff 61 00000000",
        FIXED "00000000 00000007 7fff 61 00000000",
        FIXED "00000000 00000007 0001 61 ffffffff",
        FIXED "00000000 00000007 0001 61 00000001",
        FIXED "00000000 00000007 0001 61 00000001 78",
        FIXED "00000000 00000007 0001 61 7fffffff",
        FIXED "00000000 00000008 0001 61 00000001 ff",
        FIXED "00000000 00000008 0001 ff 00000001 61",
        /* One character whose halves lie in name and value is none. */
        FIXED "00000000 00000008 0001 c3 00000001 a4",
    };
    static ps_command c;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (!CHECK_EQ(PS_E_FRAME, decode_hex(CASES[i], &c))) printf("  %s\n", CASES[i]);
}

static void test_binary_written(void) {
    static ps_command c = {.serialize = 1, .code = 310, .language = 9, .version = 479};
    uint8_t wanted[256], *out;
    c.opaque = 5;
    c.flag = 2;
    c.field_count = 3;
    c.fields[0] = (ps_field){TEXT("a"), TEXT("xy")};
    c.fields[1] = (ps_field){TEXT("gone"), {NULL, 0}};
    c.fields[2] = (ps_field){TEXT("e"), TEXT("")};
    int64_t len = check_unhex("0000002b 01000025" FIXED
                              "00000000 00000010 0001 61 00000002 7879 0001 65 "
                              "00000000",
                              wanted);
    CHECK_EQ(len, wire_encode(&c, 2, &out));
    CHECK(memcmp(out, wanted, (size_t)len) == 0);

    c.code = 200050;
    CHECK_EQ(PS_E_FRAME, wire_encode(&c, 0, &out));
    c.code = 0;
    c.version = 40000;
    CHECK_EQ(PS_E_FRAME, wire_encode(&c, 0, &out));
    c.version = 0;
    c.language = 256;
    CHECK_EQ(PS_E_FRAME, wire_encode(&c, 0, &out));
    c.language = 255;
    c.fields[1] = (ps_field){{frame, INT16_MAX + 1}, TEXT("v")};
    CHECK_EQ(PS_E_FRAME, wire_encode(&c, 0, &out));
    c.fields[1].name.len--;
    CHECK(wire_encode(&c, 0, &out) > 0);
    c.serialize = 2;
    CHECK_EQ(PS_E_FRAME, wire_encode(&c, 0, &out));
}

/* ---- frames and limits ---- */

static void test_lengths_that_lie(void) {
    static ps_command c;
    ps_error e = {0};
    int64_t wanted;
    uint8_t head[8];
    static const struct {
        uint32_t total, word;
        int64_t limit, result; /* what eight bytes alone give */
    } cases[] = {
        {0xFFFFFFFF, 0, 1 << 24, PS_E_FRAME},
        {0x80000000, 0, 1 << 24, PS_E_FRAME},
        {0, 0, 1 << 24, PS_E_FRAME},
        {3, 0, 1 << 24, PS_E_FRAME},
        {0x7FFFFFFF, 0, 1 << 24, PS_E_FRAME},
        {0x7FFFFFFF, 2, 1LL << 40, 0},
        {(1 << 24) - 4, 2, 1 << 24, 0},
        {(1 << 24) - 3, 2, 1 << 24, PS_E_FRAME},
        {100, 97, 1 << 24, PS_E_FRAME},
        {100, 96, 1 << 24, 0},
        {100, 0x02000002, 1 << 24, PS_E_FRAME},
        {100, 0xFF000002, 1 << 24, PS_E_FRAME},
        {1 << 23, PS_HEADER_MAX, 1 << 24, 0},
        {1 << 23, PS_HEADER_MAX + 1, 1 << 24, PS_E_FRAME},
        {1 << 23, 0x01000000 | (PS_HEADER_MAX + 1), 1 << 24, PS_E_FRAME},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        be32_put(head, cases[i].total);
        be32_put(head + 4, cases[i].word);
        int64_t got = ps_command_decode(head, 8, cases[i].limit, frame, &c, &wanted, &e);
        if (!CHECK_EQ(cases[i].result, got)) printf("  case %d\n", (int)i);
        if (got == 0) CHECK_EQ(4 + (int64_t)cases[i].total, wanted);
    }
    /* A whole frame without header. */
    be32_put(head, 4);
    be32_put(head + 4, 0);
    CHECK_EQ(PS_E_FRAME, ps_command_decode(head, 8, 1 << 24, frame, &c, &wanted, &e));
    CHECK_EQ(0, ps_command_decode(head, 0, 1 << 24, frame, &c, &wanted, &e));
    CHECK_EQ(0, wanted);
    CHECK_EQ(0, ps_command_decode(head, 3, 1 << 24, frame, &c, &wanted, NULL));
}

/* extFields of so many fields; gives the length. */
static int64_t many_fields(char *to, int count, const char *value) {
    char *p = to + put(to, "{\"extFields\":{");
    for (int i = 0; i < count; i++) p += put(p, "%s\"f%d\":%s", i > 0 ? "," : "", i, value);
    p += put(p, "}}");
    return p - to;
}

static void test_numbers_of_fields(void) {
    static char header[64 << 10];
    static uint8_t binary[64 << 10];
    static ps_command c;
    static const char *const VALUES[] = {"\"v\"", "5", "null"};
    for (int i = 0; i < 3; i++) {
        CHECK(decode(0, header, many_fields(header, PS_FIELDS_MAX, VALUES[i]), &c) > 0);
        CHECK_EQ(i == 2 ? 0 : PS_FIELDS_MAX, c.field_count);
        CHECK_EQ(PS_E_FRAME,
                 decode(0, header, many_fields(header, PS_FIELDS_MAX + 1, VALUES[i]), &c));
        CHECK_EQ(PS_E_FRAME, decode(0, header, many_fields(header, 4000, VALUES[i]), &c));
    }
    for (int extra = 0; extra < 2; extra++) {
        int64_t count = PS_FIELDS_MAX + extra, len = check_unhex(FIXED "00000000", binary);
        be32_put(binary + len, (uint32_t)(count * 8));
        len += 4;
        for (int i = 0; i < count; i++) len += check_unhex("0001 61 00000001 78", binary + len);
        CHECK((decode(1, binary, len, &c) > 0) == (extra == 0));
    }
    c.field_count = PS_FIELDS_MAX + 1;
    CHECK_EQ(PS_E_FRAME, ps_command_encode(&c, 0, binary, sizeof binary, NULL));
    c.field_count = -1;
    CHECK_EQ(PS_E_FRAME, ps_command_encode(&c, 0, binary, sizeof binary, NULL));
}

static void test_depth(void) {
    static char header[PS_HEADER_MAX];
    static ps_command c;
    for (int objects = 0; objects < 2; objects++) {
        for (int depth = 31; depth <= 34; depth++) {
            char *p = header + put(header, "{\"x\":");
            for (int i = 0; i < depth; i++) p += put(p, "%s", objects ? "{\"a\":" : "[");
            p += put(p, "1");
            for (int i = 0; i < depth; i++) *p++ = objects ? '}' : ']';
            *p++ = '}';
            CHECK((decode(0, header, p - header, &c) > 0) == (depth <= 32));
        }
    }
    memset(header, '[', sizeof header);
    memcpy(header, "{\"x\":", 5);
    CHECK_EQ(PS_E_FRAME, decode(0, header, sizeof header, &c));
    memset(header, '{', sizeof header);
    CHECK_EQ(PS_E_FRAME, decode(0, header, sizeof header, &c));
}

/* The largest header, of bytes that all grow when they are written again. */
static void test_largest_headers(void) {
    static uint8_t header[PS_HEADER_MAX];
    static ps_command c;
    uint8_t *out;
    memset(header, 0x7F, sizeof header);
    memcpy(header, "{\"remark\":\"", 11);
    memcpy(header + sizeof header - 2, "\"}", 2);
    CHECK(decode(0, header, sizeof header, &c) > 0);
    CHECK_EQ(PS_HEADER_MAX - 13, c.remark.len);
    CHECK(ps_command_encode(&c, 0, wire_out_end, 0, NULL) > 5 * PS_HEADER_MAX);

    static ps_command big = {.serialize = 1};
    big.remark = (ps_slice){header, PS_HEADER_MAX - 21};
    CHECK_EQ(PS_HEADER_MAX + 8, wire_encode(&big, 0, &out));
    CHECK_EQ(PS_E_FRAME,
             ps_command_encode(&big, INT32_MAX - PS_HEADER_MAX - 3, out, PS_HEADER_MAX + 8, NULL));
    CHECK(ps_command_encode(&big, INT32_MAX - PS_HEADER_MAX - 4, out, PS_HEADER_MAX + 8, NULL) > 0);
    CHECK_EQ(PS_E_FRAME, ps_command_encode(&big, -1, out, PS_HEADER_MAX + 8, NULL));
    big.remark.len++;
    CHECK_EQ(PS_HEADER_MAX + 9, wire_encode(&big, 0, &out));
    big.remark.len = 0xFFFFFF - 21;
    CHECK_EQ(0xFFFFFF + 8, ps_command_encode(&big, 0, wire_out_end, 0, NULL));
    big.remark.len++;
    CHECK_EQ(PS_E_FRAME, ps_command_encode(&big, 0, wire_out_end, 0, NULL));
}

/* Nulls drop what has their name: the work that takes is bounded, since fields that were dropped
 * count, and those of an extFields that another one replaced. */
static void test_dropped_fields_count(void) {
    static char header[4096];
    static ps_command c;
    for (int extra = 0; extra < 2; extra++) {
        char *p = header + put(header, "{\"code\":1");
        for (int object = 0; object < 2; object++) {
            p += put(p, ",\"extFields\":{");
            for (int i = 0; i < 64; i++) p += put(p, "\"a%d\":1,", i);
            for (int i = 0; i < 63; i++) p += put(p, "\"b\":null,");
            p += put(p, "\"a0\":null}");
        }
        p += put(p, ",\"extFields\":{%s}}", extra != 0 ? "\"a\":1" : "");
        CHECK((decode(0, header, p - header, &c) > 0) == (extra == 0));
    }
}

/* ---- at random ---- */

static ps_slice random_text(uint8_t **room, int64_t most, bool empty) {
    static const char *const PARTS[] = {
        "a",
        "7",
        "key",
        "%RETRY%group",
        "\001",
        "\002",
        "\"",
        "\\",
        "\n",
        "\x1F",
        "\x7F",
        "/",
        "\xC2\x80",
        "\xC2\x9F",
        "\xC3\xBC",
        "\xE2\x80\xA8",
        "\xE2\x80\xA9",
        "\xE2\x82\xAC",
        "\xE6\xB3\xA8",
        "\xF0\x9F\x98\x80",
        "FD00000000000000000000000000000245595FFD2B27",
    };
    uint8_t *start = *room;
    int64_t count = check_below(most) + (empty ? 0 : 1);
    while (count-- > 0) {
        const char *part = PARTS[check_below(sizeof PARTS / sizeof *PARTS)];
        memcpy(*room, part, strlen(part));
        *room += strlen(part);
        if (check_below(40) == 0) *(*room)++ = 0;
    }
    return (ps_slice){start, (int32_t)(*room - start)};
}

static void random_command(ps_command *c) {
    static uint8_t texts[1 << 20];
    uint8_t *room = texts;
    *c = (ps_command){.serialize = (int32_t)check_below(2), .code = (int16_t)check_random()};
    c->language = (int32_t)check_below(14);
    c->version = (int16_t)check_random();
    c->opaque = (int32_t)check_random();
    c->flag = (int32_t)check_random();
    if (check_below(2) == 0) c->remark = random_text(&room, 20, c->serialize == 0);
    c->field_count = (int32_t)check_below(check_below(20) == 0 ? PS_FIELDS_MAX + 1 : 20);
    for (int32_t i = 0; i < c->field_count; i++) {
        c->fields[i].name = random_text(&room, 4, true);
        c->fields[i].value = random_text(&room, check_below(8) == 0 ? 60 : 6, c->serialize == 0);
    }
}

static void test_round_trips(void) {
    static ps_command c, got;
    static ps_packed packed;
    static uint8_t scratch[1 << 20], texts[1 << 20], again[1 << 20];
    ps_error e = {0};
    for (int round = 0; round < 3000; round++) {
        uint8_t *out;
        int64_t wanted;
        random_command(&c);
        int64_t size = wire_encode(&c, 0, &out);
        if (!CHECK(size > 0)) continue;
        CHECK_EQ(size, ps_command_decode(out, size, 1 << 24, scratch, &got, &wanted, &e));
        CHECK(wire_same_command(&c, &got) && c.language == got.language);
        CHECK_EQ(size, wire_try(out, size));
        /* The packed form says the same. */
        size = wire_encode(&c, 0, &out);
        CHECK_EQ(size, ps_packed_decode(out, size, 1 << 24, scratch, texts, &packed, &e));
        if (c.field_count == 0 && c.serialize == 0) continue;
        CHECK_EQ(size, ps_packed_encode(&packed, texts, 0, again, sizeof again, &e));
        CHECK(memcmp(again, out, (size_t)size) == 0);
    }
}

/* Every beginning of a frame wants more; that of a JSON header, made a frame, is refused. */
static void test_cut_at_every_byte(void) {
    static ps_command c;
    static uint8_t whole[1 << 20], cut[1 << 20];
    for (int round = 0; round < 40; round++) {
        uint8_t *out;
        int64_t wanted;
        random_command(&c);
        int64_t size = wire_encode(&c, 0, &out);
        if (size > 20000) continue;
        memcpy(whole, out, (size_t)size);
        for (int64_t len = 0; len < size; len++) {
            ps_error e = {0};
            CHECK_EQ(0, wire_decode(whole, len, &c, &wanted, &e));
            CHECK_EQ(len < 4 ? 0 : size, wanted);
            if (len < 8 || whole[4] == 1) continue;
            int64_t made = wire_frame(cut, whole[4], whole + 8, len - 8, NULL, 0);
            CHECK_EQ(PS_E_FRAME, wire_try(cut, made));
        }
    }
}

static void test_damage(void) {
    static ps_command c;
    static uint8_t bytes[1 << 20];
    static const char MARKS[] = "\"\\{}[],:u0n\xFF\x80\xC2\xE2";
    for (int round = 0; round < 20000; round++) {
        uint8_t *out;
        random_command(&c);
        if (c.field_count > 20) c.field_count = 20;
        int64_t size = wire_encode(&c, 0, &out);
        memcpy(bytes, out, (size_t)size);
        /* Mostly after the lengths, which are checked first. */
        int64_t from = check_below(10) == 0 ? 0 : 8;
        for (int64_t hits = 1 + check_below(3); hits > 0; hits--)
            bytes[from + check_below(size - from)] =
                check_below(2) == 0 ? (uint8_t)check_random() : (uint8_t)MARKS[check_below(15)];
        if (check_below(4) == 0)
            size = wire_frame(bytes, bytes[4] & 1, out + 8, check_below(size - 8), NULL, 0);
        wire_try(bytes, size);
    }
}

static void test_packed_texts_that_do_not_add_up(void) {
    static ps_packed p;
    uint8_t out[1024], *texts = wire_in_end - 8;
    memcpy(texts, "a\0b\0c\0d\0", 8);
    p.text_len = 8;
    p.field_count = 2;
    CHECK(ps_packed_encode(&p, texts, 0, out, sizeof out, NULL) > 8);
    p.field_count = 1;
    CHECK_EQ(PS_E_ARGUMENT, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
    p.field_count = 3;
    CHECK_EQ(PS_E_ARGUMENT, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
    p.field_count = 2;
    p.text_len = 7;
    CHECK_EQ(PS_E_ARGUMENT, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
    p.text_len = 8;
    p.nul = 1; /* the ends are all 0 */
    CHECK_EQ(PS_E_ARGUMENT, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
    p.ends[0] = 1, p.ends[1] = 3, p.ends[2] = 5, p.ends[3] = 8;
    CHECK_EQ(PS_E_ARGUMENT, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
    p.ends[3] = 7;
    CHECK(ps_packed_encode(&p, texts, 0, out, sizeof out, NULL) > 8);
    p.field_count = PS_FIELDS_MAX + 1;
    CHECK_EQ(PS_E_FRAME, ps_packed_encode(&p, texts, 0, out, sizeof out, NULL));
}

int main(void) {
    check_begin();
    wire_begin();
    test_json_members();
    test_json_fields();
    test_json_escapes();
    test_json_refused();
    test_json_written_as_java_does();
    test_escapes_written_as_java_does();
    test_binary();
    test_binary_refused();
    test_binary_written();
    test_lengths_that_lie();
    test_numbers_of_fields();
    test_depth();
    test_largest_headers();
    test_dropped_fields_count();
    test_round_trips();
    test_cut_at_every_byte();
    test_damage();
    test_packed_texts_that_do_not_add_up();
    return check_end("test_command");
}
