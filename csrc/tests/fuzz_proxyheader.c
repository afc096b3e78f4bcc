/* Fuzzes the reader of PROXY headers: however a header is cut, the same comes of it, within its
 * bounds. The first bytes of an input say where it is cut. How to use it: fuzz_command.c. */
#define _GNU_SOURCE
#include "check.h"
#include "net/proxyheader.h"

enum { INPUT_MAX = 8192, HARNESS = 8, HEADER_MAX = 16 + 4096 };
#define FUZZ_MUSEUM "tests/fuzz/museum/proxyheader"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bytes of the header; -1: it is refused. Fresh memory, so that no byte beyond is looked at. */
static int64_t take(ps_proxyheader *p, const uint8_t *data, int64_t len, const uint8_t *cuts) {
    int64_t used = 0;
    ps_error e = {0};
    for (int turn = 0; used < len && !p->px_whole; turn++) {
        int64_t some = cuts == NULL ? len : cuts[turn % HARNESS] % 32 + 1;
        if (some > len - used) some = len - used;
        uint8_t *copy = malloc((size_t)some);
        memcpy(copy, data + used, (size_t)some);
        int64_t took = ps_proxyheader_take(p, copy, some, &e);
        free(copy);
        if (took < 0) {
            CHECK(e.text[0] != 0);
            return -1;
        }
        CHECK(p->px_whole ? took > 0 && took <= some : took == some);
        used += took;
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_proxyheader once = {0}, cut = {0};
    if (size < HARNESS || size > INPUT_MAX) return 0;
    int64_t len = (int64_t)size - HARNESS;
    int64_t used = take(&once, data + HARNESS, len, NULL);
    CHECK_EQ(used, take(&cut, data + HARNESS, len, data));
    CHECK(used <= HEADER_MAX);
    CHECK(memcmp(&once, &cut, sizeof once) == 0);
    CHECK(once.px_len <= PS_PROXY_HEAD && once.px_rest >= 0);
    CHECK(once.px_host_len == 0 || once.px_host_len == 8 || once.px_host_len == 20);
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

static void add_header(const void *header, int64_t len) {
    uint8_t input[600] = {1, 2, 3, 5, 8, 13, 21, 31};
    memcpy(input + HARNESS, header, (size_t)len);
    add_frame(input, HARNESS + len);
}

static void add_headers(void) {
    static const char *const lines[] = {
        "PROXY TCP4 10.1.2.3 127.0.0.1 4711 9876\r\n",
        "PROXY TCP6 2001:db8::7 ::1 4711 9876\r\n",
        "PROXY TCP6 ::ffff:10.1.2.3 ::1 65535 1\r\n",
        "PROXY UNKNOWN\r\n",
        "PROXY UNKNOWN what follows is not looked at\r\n",
    };
    static const uint8_t heads[][4] = {
        {0x21, 0x11, 0, 12}, {0x21, 0x21, 0, 36}, {0x20, 0, 0, 0},
        {0x21, 0x31, 0, 216}, {0x21, 0x11, 1, 44}, {0x21, 0x11, 16, 0},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        add_header(lines[i], (int64_t)strlen(lines[i]));
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        uint8_t header[400] = "\r\n\r\n\0\r\nQUIT\n";
        memcpy(header + 12, heads[i], sizeof heads[i]);
        for (int k = 16; k < 400; k++) header[k] = (uint8_t)k;
        add_header(header, sizeof header);
    }
}

int main(int argc, char **argv) {
    fuzz_in_place = true;
    return fuzz_main("fuzz_proxyheader", argc, argv, add_headers);
}
#endif
