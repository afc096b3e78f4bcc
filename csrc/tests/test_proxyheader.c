/* PROXY headers: what they name, and which are refused. fuzz_proxyheader.c cuts them anywhere. */
#define _GNU_SOURCE
#include "check.h"
#include "net/proxyheader.h"

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"

/* Of a whole header with something after it, cut at every byte: its length, or an error. */
static int64_t take_cut(ps_proxyheader *p, const void *data, int64_t len) {
    int64_t took = 0;
    for (int64_t cut = 0; cut <= len; cut++) {
        ps_error e = {0};
        memset(p, 0, sizeof *p);
        int64_t first = ps_proxyheader_take(p, data, cut, &e);
        if (first >= 0 && !p->px_whole) {
            CHECK_EQ(cut, first);
            int64_t rest = ps_proxyheader_take(p, (const uint8_t *)data + cut, len - cut, &e);
            first = rest < 0 ? rest : first + rest;
        }
        if (first < 0) CHECK(strncmp(e.text, "PROXY header: ", 14) == 0);
        if (cut > 0) CHECK_EQ(took, first);
        took = first;
    }
    return took;
}

static void test_it_names_its_source(void) {
    static const uint8_t four[8] = {10, 1, 2, 3, 0, 0, 0x12, 0x67};
    static const uint8_t six[20] = {0x20, 1, 0x0d, 0xb8, [15] = 7, 0, 0, 0x12, 0x67};
#define AFTER "\0\0\0after"
#define ADDRESS6 "\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\7"
#define MAPPED "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\1\2\3"
#define PORTS "\x12\x67\x26\x94"
#define HEADER(text) text AFTER, sizeof text - 1, sizeof text AFTER - 1
    static const struct {
        const char *data;
        int64_t size, len;
        const uint8_t *host;
        int32_t host_len;
    } all[] = {
        {HEADER("PROXY TCP4 10.1.2.3 127.0.0.1 4711 9876\r\n"), four, 8},
        {HEADER("PROXY TCP6 2001:db8::7 ::1 4711 9876\r\n"), six, 20},
        {HEADER("PROXY TCP6 ::ffff:10.1.2.3 ::1 4711 9876\r\n"), four, 8},
        {HEADER("PROXY UNKNOWN\r\n"), NULL, 0},
        {HEADER("PROXY UNKNOWN a b  c\r\n"), NULL, 0},
        {HEADER(SIGNATURE "\x21\x11\0\x0c\x0a\1\2\3\x7f\0\0\1" PORTS), four, 8},
        {HEADER(SIGNATURE "\x21\x21\0\x24" ADDRESS6 ADDRESS6 PORTS), six, 20},
        {HEADER(SIGNATURE "\x21\x21\0\x24" MAPPED ADDRESS6 PORTS), four, 8},
        {HEADER(SIGNATURE "\x21\x12\0\x12\x0a\1\2\3\x7f\0\0\1" PORTS "\4\0\3abc"), four, 8},
        {HEADER(SIGNATURE "\x20\x11\0\x0c\x0a\1\2\3\x7f\0\0\1" PORTS), NULL, 0},
        {HEADER(SIGNATURE "\x20\0\0\0"), NULL, 0},
        {HEADER(SIGNATURE "\x21\x31\0\4abcd"), NULL, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ps_proxyheader p;
        CHECK_EQ(all[i].size, take_cut(&p, all[i].data, all[i].len));
        CHECK(p.px_whole && p.px_host_len == all[i].host_len);
        if (all[i].host != NULL) CHECK(memcmp(p.px_host, all[i].host, (size_t)p.px_host_len) == 0);
    }
}

static void test_the_longest_fits(void) {
    static uint8_t header[16 + 4096 + 1] = SIGNATURE "\x21\x11\x10\0";
    static char line[108] = "PROXY UNKNOWN ";
    ps_proxyheader p;
    CHECK_EQ(sizeof header - 1, take_cut(&p, header, sizeof header));
    memset(line + 14, 'x', 91);
    memcpy(line + 105, "\r\n", 2);
    CHECK_EQ(107, take_cut(&p, line, 108));
}

static void test_others_are_refused(void) {
#define BAD(text) {text, sizeof text - 1}
#define SPACES "                                                                               "
    static const struct {
        const char *data;
        int64_t len;
    } all[] = {
        BAD("PROXY " SPACES "                        \r\n"), /* its end is one byte too late */
        BAD("PROXY TCP4 10.1.2.3\r\n"),
        BAD("PROXY TCP4 10.1.2.3 127.0.0.1 1 2 3\r\n"),
        BAD("PROXY  TCP4 10.1.2.3 127.0.0.1 1 2\r\n"),
        BAD("PROXY UDP4 10.1.2.3 127.0.0.1 1 2\r\n"),
        BAD("PROXY TCP4 10.1.2.300 127.0.0.1 1 2\r\n"),
        BAD("PROXY TCP4 ::1 ::1 1 2\r\n"),
        BAD("PROXY TCP6 10.1.2.3 ::1 1 2\r\n"),
        BAD("PROXY TCP4 10.1.2.3 127.0.0.1 65536 2\r\n"),
        BAD("PROXY TCP4 10.1.2.3 127.0.0.1 +1 2\r\n"),
        BAD("PROXY TCP4 10.1.2.3 127.0.0.1  2\r\n"),
        BAD("PROXY TCP4 10.1.2.3\0 127.0.0.1 1 2\r\n"),
        BAD("PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n"),
        BAD("PROXY x\r\n"),
        BAD("POST / HTTP/1.1\r\n"),
        BAD("\r\n\r\n\r\n"),
        BAD(SIGNATURE "\x31\x11\0\x0c            "),
        BAD(SIGNATURE "\x22\x11\0\x0c            "),
        BAD(SIGNATURE "\x21\x11\0\x04    "),
        BAD(SIGNATURE "\x21\x11\xff\xff"),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ps_proxyheader p;
        CHECKF(take_cut(&p, all[i].data, all[i].len) == PS_E_FRAME, "%zu", i);
        CHECK(!p.px_whole || p.px_host_len == 0);
    }
}

int main(void) {
    check_begin();
    test_it_names_its_source();
    test_the_longest_fits();
    test_others_are_refused();
    return check_end("test_proxyheader");
}
