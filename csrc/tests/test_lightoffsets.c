/* Offsets of groups in light queues against an array of them: committed, forgotten, reset, taken in
 * rounds, in any order; and what a million of them would take. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "tables/lightoffsets.h"

enum { STEPS = 20000, GROUPS = 3, QUEUES = 12, TAKEN = 5, MANY = 20000 };

static int64_t offsets[GROUPS][QUEUES];
static bool changed[GROUPS][QUEUES], resets[GROUPS][QUEUES];

static const char *group_of(int g) {
    static const char *names[GROUPS] = {"g", "h", "hh"};
    return names[g];
}

/* Lite topics of two topics, a light queue of no topic, and one whose name ends with a "$". */
static int32_t queue_of(int q, char to[48]) {
    if (q == 0) return snprintf(to, 48, "%%LMQ%%alone");
    if (q == 1) return snprintf(to, 48, "%%LMQ%%$L$");
    return snprintf(to, 48, "%%LMQ%%$%s$n%d", q % 2 ? "L" : "LL", q);
}

static void commit_one(int g, int q, int64_t to) {
    char queue[48];
    ps_error e = {0};
    const char *group = group_of(g);
    int32_t len = queue_of(q, queue);
    int code = ps_core_commit(kit_core, group, (int32_t)strlen(group), queue, len, 0, to, &e);
    CHECK_EQ(resets[g][q], code);
    if (resets[g][q]) return;
    changed[g][q] = changed[g][q] || offsets[g][q] != to;
    offsets[g][q] = to;
}

static void reset_one(int g, int q, int64_t to) {
    char queue[48];
    ps_error e = {0};
    const char *group = group_of(g);
    int32_t len = queue_of(q, queue);
    CHECK_EQ(0, ps_core_reset(kit_core, group, (int32_t)strlen(group), queue, len, 0, to, &e));
    changed[g][q] = changed[g][q] || offsets[g][q] != to;
    offsets[g][q] = to;
    resets[g][q] = true;
}

/* Of a group, of a queue, of both, or (-1) of any. */
static void forget(int g, int q) {
    char queue[48];
    const char *group = g >= 0 ? group_of(g) : NULL;
    int32_t len = q >= 0 ? queue_of(q, queue) : 0;
    ps_core_forget_offsets(kit_core, group, group != NULL ? (int32_t)strlen(group) : 0,
                           q >= 0 ? queue : NULL, len);
    for (int i = 0; i < GROUPS; i++)
        for (int j = 0; j < QUEUES; j++)
            if ((g < 0 || g == i) && (q < 0 || q == j)) {
                offsets[i][j] = -1;
                resets[i][j] = changed[i][j] = false;
            }
}

static int find_group(const char *name, int32_t len) {
    int g = 0;
    while (g < GROUPS && (strlen(group_of(g)) != (size_t)len || memcmp(group_of(g), name, len)))
        g++;
    CHECK(g < GROUPS);
    return g;
}

static int find_queue(const char *name, int32_t len) {
    char queue[48];
    int q = 0;
    while (q < QUEUES && (queue_of(q, queue) != len || memcmp(queue, name, (size_t)len))) q++;
    CHECK(q < QUEUES);
    return q;
}

/* Each that has changed comes once, as it is now. */
static void take_all(void) {
    ps_offset_row rows[TAKEN];
    int32_t begin = 1;
    int64_t n;
    while ((n = ps_core_take_offsets(kit_core, begin, rows, TAKEN)) > 0) {
        begin = 0;
        for (int64_t i = 0; i < n; i++) {
            int g = find_group(rows[i].group, rows[i].group_len);
            int q = find_queue(rows[i].topic, rows[i].topic_len);
            CHECK_EQ(offsets[g][q], rows[i].offset);
            CHECK(changed[g][q]);
            changed[g][q] = false;
        }
    }
    for (int g = 0; g < GROUPS; g++)
        for (int q = 0; q < QUEUES; q++) CHECK(!changed[g][q]);
}

/* What is asked for all at once is what is asked for one by one. */
static void check_all(void) {
    static uint8_t blocks[GROUPS * QUEUES * 96];
    int64_t size = ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 0, blocks, sizeof blocks);
    int32_t seen = 0, head[3], wanted = 0;
    char queue[48];
    CHECK(size <= (int64_t)sizeof blocks);
    CHECK_EQ(0, ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 2, blocks, 0));
    for (const uint8_t *at = blocks; at < blocks + size; seen++) {
        int64_t offset;
        memcpy(head, at, sizeof head);
        CHECK_EQ(1, head[2]);
        const char *names = (const char *)at + sizeof head;
        int g = find_group(names, head[0]), q = find_queue(names + head[0], head[1]);
        memcpy(&offset, names + head[0] + head[1] + 4, 8);
        CHECK_EQ(offsets[g][q], offset);
        at += sizeof head + head[0] + head[1] + PS_OFFSET_ROW_BYTES;
    }
    for (int g = 0; g < GROUPS; g++)
        for (int q = 0; q < QUEUES; q++) {
            const char *group = group_of(g);
            int32_t len = queue_of(q, queue);
            wanted += offsets[g][q] >= 0;
            CHECK_EQ(offsets[g][q], ps_core_offset(kit_core, group, (int32_t)strlen(group), queue,
                                                   len, 0));
        }
    CHECK_EQ(wanted, seen);
    CHECK_EQ(wanted, kit_core->co_tables.tc_marks.ms_count);
}

static void test_offsets_are_those_that_were_committed(void) {
    for (int step = 0; step < STEPS; step++) {
        int g = (int)check_below(GROUPS), q = (int)check_below(QUEUES);
        switch (check_below(40)) {
        case 0:
            forget(-1, q);
            break;
        case 1:
            forget(g, -1);
            break;
        case 2:
        case 3:
            forget(g, q);
            break;
        case 4:
            reset_one(g, q, (int64_t)check_below(4));
            break;
        case 5:
        case 6:
            take_all();
            break;
        case 7:
            check_all();
            break;
        default:
            commit_one(g, q, (int64_t)check_below(4));
        }
    }
    forget(-1, -1);
    take_all();
    CHECK_EQ(0, kit_core->co_tables.tc_light.ot_rows.pl_count);
    CHECK_EQ(0, kit_core->co_tables.tc_light.ot_by_name.count);
    CHECK_EQ(0, kit_core->co_tables.tc_light_count);
}

/* Pages, buckets, and a place among the changed ones. */
static void test_an_offset_takes_few_bytes(void) {
    const ps_light_offsets *t = &kit_core->co_tables.tc_light;
    char queue[48];
    ps_error e = {0};
    for (int i = 0; i < MANY; i++) {
        int32_t len = snprintf(queue, sizeof queue, "%%LMQ%%$L$session-%06d", i);
        CHECK_EQ(0, ps_core_commit(kit_core, "g", 1, queue, len, 0, i, &e));
    }
    int64_t pages = (int64_t)t->ot_rows.pl_page_count * (PS_POOL_GRAIN << PS_POOL_PAGE_BITS);
    int64_t table = ((int64_t)t->ot_rows.pl_bucket_room + t->ot_changed_room) * 4;
    CHECK((pages + table) / MANY <= 70);
}

/* Blocks of two pairs, cut anywhere, are read as far as they go; the rest is an error, and a
 * negative offset is counted. */
static void test_offsets_are_loaded_in_one_call(void) {
    uint8_t all[256];
    int64_t len = 0, first = 0;
    for (int i = 0; i < 2; i++) {
        const char *queue = i == 0 ? "%LMQ%$L$loaded" : "plain";
        int32_t head[3] = {4, (int32_t)strlen(queue), 2};
        first = len;
        memcpy(all + len, head, sizeof head);
        len += sizeof head;
        memcpy(all + len, "load", 4);
        memcpy(all + len + 4, queue, strlen(queue));
        len += 4 + head[1];
        for (int32_t q = 0; q < 2; q++, len += PS_OFFSET_ROW_BYTES) {
            int64_t offset = q == 0 ? 70 + i : -5;
            memcpy(all + len, &q, sizeof q);
            memcpy(all + len + 4, &offset, sizeof offset);
        }
    }
    for (int64_t cut = 0; cut <= len; cut++) {
        ps_error e = {0};
        uint8_t *exact = malloc((size_t)cut + 1);
        memcpy(exact, all, (size_t)cut);
        int64_t refused = cut == 0 ? 0 : cut == first ? 1 : cut == len ? 2 : PS_E_ARGUMENT;
        uint8_t *at = exact + 1; /* the end of what was given is the end of its memory */
        memmove(at, exact, (size_t)cut);
        CHECK_EQ(refused, ps_core_load_offsets(kit_core, at, cut, &e));
        CHECK(refused == 0 || e.text[0] != 0);
        free(exact);
    }
    CHECK_EQ(70, ps_core_offset(kit_core, "load", 4, "%LMQ%$L$loaded", 14, 0));
    CHECK_EQ(71, ps_core_offset(kit_core, "load", 4, "plain", 5, 0));
    CHECK_EQ(-1, ps_core_offset(kit_core, "load", 4, "plain", 5, 1));
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 10);
    memset(offsets, 0xff, sizeof offsets);
    test_offsets_are_those_that_were_committed();
    test_an_offset_takes_few_bytes();
    test_offsets_are_loaded_in_one_call();
    kit_close();
    check_remove(base);
    free(base);
    return check_end("test_lightoffsets");
}
