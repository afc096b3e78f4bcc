/* Every implementation of the CRC gives the same values as the definition, bit by bit, at any
 * length and alignment, and reads no byte beside those it was given. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/crc.h"
#include "check.h"

static uint32_t by_definition(uint32_t crc, const uint8_t *p, size_t len) {
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* `len` bytes between two pages that may not be touched: right after the first or right before the
 * second. */
typedef struct island {
    uint8_t *map;
    size_t page, room;
} island;

static island island_make(size_t room) {
    island i = {NULL, (size_t)sysconf(_SC_PAGESIZE), 0};
    i.room = (room + i.page - 1) / i.page * i.page;
    i.map = mmap(NULL, i.room + 2 * i.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (i.map == MAP_FAILED || mprotect(i.map + i.page, i.room, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    return i;
}

static uint8_t *island_start(const island *i) {
    return i->map + i->page;
}

static uint8_t *island_end(const island *i) {
    return i->map + i->page + i->room;
}

static void test_known_value(const char *name) {
    uint32_t crc;
    ps_crc32_by(name, 0, "123456789", 9, &crc);
    CHECKF(crc == 0xCBF43926u, "%s gave %08x for the check string", name, crc);
    ps_crc32_by(name, 0, NULL, 0, &crc);
    CHECKF(crc == 0, "%s gave %08x for nothing", name, crc);
}

static void test_sum_of_a_column(void) {
    const int32_t offsets[] = {0, 9, 9, 10};
    const uint8_t *data = (const uint8_t *)"123456789a";
    uint64_t want = 0xCBF43926u + (uint64_t)ps_crc32(0, "a", 1);
    CHECKF(ps_crc32_sum(data, offsets, 3, UINT32_MAX) == want, "three values, one of them empty");
    CHECKF(ps_crc32_sum(data, offsets, 1, 0x7FFFFFFF) == 0x4BF43926u, "masked");
    CHECKF(ps_crc32_sum(NULL, offsets, 0, UINT32_MAX) == 0, "no values");
}

static void test_each_length(const char *name, const island *land) {
    for (size_t len = 0; len <= 2000; len++) {
        uint32_t start = check_random() % 4 == 0 ? 0 : (uint32_t)check_random();
        uint8_t *places[3] = {island_start(land), island_end(land) - len,
                              island_start(land) + check_random() % 1000};
        for (int k = 0; k < 3; k++) {
            uint32_t crc, want = by_definition(start, places[k], len);
            ps_crc32_by(name, start, places[k], len, &crc);
            CHECKF(crc == want, "%s, %zu bytes, place %d: %08x, not %08x", name, len, k, crc, want);
        }
    }
}

static void test_long_and_split(const char *name, const uint8_t *data, size_t room) {
    for (int round = 0; round < 60; round++) {
        size_t from = check_random() % 4096, len = check_random() % (room - from);
        size_t cut = len ? check_random() % len : 0;
        uint32_t whole, first, second, plain, alone;
        ps_crc32_by("plain", 0, data + from, len, &plain);
        ps_crc32_by(name, 0, data + from, len, &whole);
        ps_crc32_by(name, 0, data + from, cut, &first);
        ps_crc32_by(name, first, data + from + cut, len - cut, &second);
        CHECKF(whole == plain, "%s, %zu bytes: %08x, plain %08x", name, len, whole, plain);
        CHECKF(second == whole, "%s, %zu bytes cut at %zu", name, len, cut);
        ps_crc32_by(name, 0, data + from + cut, len - cut, &alone);
        CHECKF(ps_crc32_join(first, alone, len - cut) == whole, "%zu joined at %zu", len, cut);
    }
}

static void test_choice(const uint8_t *data) {
    uint32_t crc;
    CHECKF(ps_crc32_by("abacus", 0, data, 9, &crc) == -1, "an unknown name must be refused");
    CHECKF(ps_crc32_by(ps_crc32_name(), 7, data, 300, &crc) == 0, "%s", ps_crc32_name());
    CHECKF(crc == ps_crc32(7, data, 300), "%s is not what ps_crc32 uses", ps_crc32_name());
}

int main(void) {
    const char *names[] = {"plain", "pclmul", "vpclmul", "armv8"};
    const size_t room = 1 << 20;
    check_begin();
    island land = island_make(8192);
    uint8_t *data = malloc(room);
    if (data == NULL) return 2;
    for (size_t i = 0; i < room; i++) data[i] = (uint8_t)check_random();
    for (uint8_t *p = island_start(&land); p < island_end(&land); p++) *p = (uint8_t)check_random();
    test_choice(data);
    test_sum_of_a_column();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t crc;
        if (ps_crc32_by(names[i], 0, data, 0, &crc) != 0) {
            printf("%s: this processor lacks it\n", names[i]);
            continue;
        }
        test_known_value(names[i]);
        test_each_length(names[i], &land);
        test_long_and_split(names[i], data, room);
        printf("%s: tried\n", names[i]);
    }
    free(data);
    return check_end("test_crc");
}
