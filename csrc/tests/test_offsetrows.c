/* Consumer offsets out of leaf pages, under the sanitizers: what sound pages say, and that no
 * damaged byte of them makes a walk read elsewhere, go on for ever or end silently. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "audit/audit.h"
#include "base/bytes.h"
#include "base/error.h"
#include "check.h"
#include "format/offsetblock.h"

#define SIZE 512
#define PAIRS 3
#define ROWS 4 /* of a pair */

enum { PAIR_PAGE, ROW_PAGE, LONG_PAGE, PAGES };

static uint8_t pages[PAGES * SIZE];
static int fd;

/* Adds an entry to a page; size: of the value, which follows in the page unless `big`. */
static void add_node(uint8_t *page, const void *key, int32_t key_len, const void *value,
                     int32_t size, bool big) {
    int32_t lower = page[12] | page[13] << 8, upper = page[14] | page[15] << 8;
    int32_t inside = big ? 8 : size;
    upper -= 8 + key_len + inside;
    uint8_t *node = page + upper;
    const uint8_t head[8] = {(uint8_t)size, (uint8_t)(size >> 8), 0, 0, big, 0, (uint8_t)key_len};
    memcpy(node, head, 8);
    memcpy(node + 8, key, (size_t)key_len);
    memcpy(node + 8 + key_len, value, (size_t)inside);
    page[lower] = (uint8_t)upper;
    page[lower + 1] = (uint8_t)(upper >> 8);
    lower += 2;
    page[12] = (uint8_t)lower;
    page[13] = (uint8_t)(lower >> 8);
    page[14] = (uint8_t)upper;
    page[15] = (uint8_t)(upper >> 8);
}

/* Pairs `topic@group`, one of a light queue, one whose name has a page of its own. */
static void make_pages(void) {
    static const char *names[PAIRS] = {"t@g", "%LMQ%$t$a@g", "long@\"g\n"};
    uint64_t place = LONG_PAGE;
    memset(pages, 0, sizeof pages);
    for (int i = 0; i < 2; i++) {
        pages[i * SIZE + 12] = 16;
        pages[i * SIZE + 15] = SIZE >> 8;
    }
    memcpy(pages + LONG_PAGE * SIZE + 16, names[2], strlen(names[2]));
    for (int i = 0; i < PAIRS; i++) {
        uint8_t key[20], value[8];
        memset(key, i, 16);
        bool big = i == 2;
        add_node(pages + PAIR_PAGE * SIZE, key, 16, big ? (void *)&place : names[i],
                 (int32_t)strlen(names[i]), big);
        for (int q = 0; q < ROWS && i != 1; q++) {
            be32_put(key + 16, (uint32_t)q);
            be64_put(value, (uint64_t)(100 * i + q));
            add_node(pages + ROW_PAGE * SIZE, key, 20, value, 8, false);
        }
    }
}

static ps_audit_offsets *begin(ps_error *e) {
    static const int64_t pairs[] = {PAIR_PAGE}, rows[] = {ROW_PAGE};
    CHECK_EQ(sizeof pages, pwrite(fd, pages, sizeof pages, 0));
    return ps_audit_offsets_begin(fd, SIZE, pairs, 1, rows, 1, e);
}

static void test_blocks(void) {
    ps_error e = {0};
    ps_audit_offsets *o = begin(&e);
    int64_t len, offset;
    const uint8_t *at = ps_audit_offsets_next(o, &len, &e), *end = at + len;
    ps_offset_block b;
    CHECK(ps_offset_block_get(at, end, &b));
    CHECK(b.group_len == 1 && b.topic_len == 1 && b.topic[0] == 't' && b.count == ROWS);
    CHECK(ps_offset_block_get(b.end, end, &b)); /* a pair without offsets has no block */
    CHECK(b.topic_len == 4 && memcmp(b.topic, "long", 4) == 0 && b.count == ROWS && b.end == end);
    CHECK(ps_offset_row_get(b.rows + PS_OFFSET_ROW_BYTES, &offset) == 1 && offset == 201);
    CHECK(ps_audit_offsets_next(o, &len, &e) != NULL && len == 0);
    ps_audit_offsets_free(o);
}

static void test_members(void) {
    static const char light[] = ",\n\t\t\"%LMQ%$t$a@g\":{}";
    static const char text[] = ",\n\t\t\"long@\\\"g\\n\":{\n\t\t\t\"0\":200,";
    for (int32_t of_light = 0; of_light < 2; of_light++) {
        ps_error e = {0};
        ps_audit_offsets *o = begin(&e);
        int64_t len;
        const char *got = (const char *)ps_audit_offsets_members(o, of_light, 1, &len, &e);
        if (of_light)
            CHECK(len == (int64_t)strlen(light) && memcmp(got, light, strlen(light)) == 0);
        else
            CHECK(memmem(got, (size_t)len, text, strlen(text)) != NULL &&
                  memmem(got, (size_t)len, "LMQ", 3) == NULL);
        CHECK(!ps_audit_offsets_half(o));
        ps_audit_offsets_free(o);
    }
}

/* An error with a code, or an end. */
static void walk(bool text) {
    ps_error e = {0};
    ps_audit_offsets *o = begin(&e);
    int64_t len = 1;
    while (o != NULL && len > 0)
        if ((text ? ps_audit_offsets_members(o, 0, 0, &len, &e)
                  : ps_audit_offsets_next(o, &len, &e)) == NULL)
            len = -1;
    if (o == NULL || len < 0) CHECK(e.code == PS_E_DAMAGED || e.code == PS_E_NO_MEMORY);
    if (o != NULL) ps_audit_offsets_free(o);
}

static void test_damaged_pages(void) {
    for (int round = 0; round < 1000; round++) {
        make_pages();
        for (uint64_t n = check_random() % 3 + 1; n > 0; n--) {
            uint64_t page = check_random() % 2 * SIZE;
            uint64_t at = check_random() % 2 ? check_random() % 40 : check_random() % SIZE;
            pages[page + at] = (uint8_t)check_random();
        }
        walk(round % 2);
    }
}

int main(void) {
    check_begin();
    fd = memfd_create("pages", MFD_CLOEXEC);
    make_pages();
    test_blocks();
    test_members();
    test_damaged_pages();
    close(fd);
    return check_end("test_offsetrows");
}
