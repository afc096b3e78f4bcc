/* Segments of the cold tier under the sanitizers: the excerpt of a segment is the queue that it was
 * made of; no flipped bit and no unit that leads astray costs memory, or passes for a message. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "flat/flat.h"
#include "format/record.h"
#include "queues/consumequeue.h"
#include "small_store.h"

#define MESSAGES 1200 /* of a queue more keys, and more bytes, than one sum is of */
#define OF_A_QUEUE (MESSAGES / QUEUES)
#define BASE 1000

static char root[256];

static ps_store *open_store(void) {
    ps_conf c;
    ps_conf_init(&c);
    c.root = root;
    ps_error e = {0};
    ps_report report = {0};
    ps_store *s = ps_reader_open(&c, NULL, &report, NULL, &e);
    CHECK(s != NULL);
    return s;
}

/* The segment of queue 1; its bytes are the caller's. */
static uint8_t *make_segment(ps_flat *f) {
    ps_error e = {0};
    ps_store *s = open_store();
    ps_read_options o = {.max_messages = MESSAGES};
    ps_batch *b = ps_read(s, ps_topic_open(s, "topic-a", 7, 0, &e), 1, 0, &o, &e);
    ps_batch_info i;
    ps_batch_get(b, &i);
    CHECK_EQ(0, ps_flat_measure(&i, f));
    uint8_t *bytes = malloc((size_t)f->size);
    CHECK_EQ(0, ps_flat_write(&i, BASE, bytes, f));
    ps_batch_free(b);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    return bytes;
}

static ps_excerpt excerpt_of(const uint8_t *bytes, const ps_flat *f) {
    return (ps_excerpt){.records = bytes, .len = f->records, .base = BASE,
                        .units = bytes + f->records, .count = f->count, .first = f->first,
                        .topic = "topic-a", .topic_len = 7, .queue_id = 1,
                        .checks = PS_CHECK_SUMS};
}

/* How many messages it gives; the others must be counted as damaged. */
static int32_t messages_of(ps_excerpt *x) {
    ps_error e = {0};
    ps_read_options o = {.max_messages = MESSAGES};
    ps_batch *b = ps_excerpt_read(x, x->first, x->count, &o, &e);
    ps_batch_info i;
    ps_batch_get(b, &i);
    CHECK_EQ(x->count, i.count + i.damaged);
    int32_t count = i.count;
    ps_batch_free(b);
    return count;
}

/* Checks the sum of the keys before it; returns what follows it. */
static const uint8_t *past_sum(const uint8_t *sum, int32_t first, int32_t count) {
    uint8_t of[12 + PS_FLAT_KEYS * PS_FLAT_KEY];
    size_t size = (size_t)count * PS_FLAT_KEY;
    be64_put(of, BASE);
    be32_put(of + 8, (uint32_t)first);
    memcpy(of + 12, sum - size, size);
    CHECK_EQ(ps_flat_crc(0, of, (int64_t)(12 + size)), be32_get(sum));
    return sum + PS_FLAT_SUM;
}

static void test_a_segment_is_its_queue(void) {
    ps_flat f;
    uint8_t *bytes = make_segment(&f);
    CHECK_EQ(OF_A_QUEUE, f.count);
    CHECK_EQ(OF_A_QUEUE * 3, f.keys); /* k1, k2 and abc */
    CHECK(f.time_min > 0 && f.time_min <= f.time_max);
    ps_excerpt x = excerpt_of(bytes, &f);
    CHECK_EQ(OF_A_QUEUE, messages_of(&x));
    const uint8_t *key = bytes + f.records + f.count * 20, *tail = bytes + f.size - PS_FLAT_TAIL;
    uint64_t before = 0;
    for (int32_t i = 0; i < f.keys; i++, key += PS_FLAT_KEY) {
        if (i > 0 && i % PS_FLAT_KEYS == 0) key = past_sum(key, i - PS_FLAT_KEYS, PS_FLAT_KEYS);
        CHECK(be64_get(key) > before);
        before = be64_get(key);
    }
    int32_t rest = (f.keys - 1) % PS_FLAT_KEYS + 1;
    CHECK(f.keys > PS_FLAT_KEYS);
    const uint8_t *sum = past_sum(key, f.keys - rest, rest);
    CHECK_EQ(f.crc, ps_flat_join(ps_flat_joined(sum, f.records),
                                 ps_flat_crc(0, bytes + f.records, f.size - f.records),
                                 f.size - f.records));
    int64_t blocks = 0;
    for (int64_t at = 0; at < f.records; at += PS_FLAT_BLOCK, sum += PS_FLAT_SUM, blocks++) {
        int64_t left = f.records - at;
        CHECK_EQ(ps_flat_crc(0, bytes + at, left < PS_FLAT_BLOCK ? left : PS_FLAT_BLOCK),
                 be32_get(sum));
    }
    CHECK(blocks > 1 && sum == tail);
    CHECK_EQ(BASE, (int64_t)be64_get(tail));
    CHECK_EQ(PS_MAGIC_BLANK, be32_get(tail + 32));
    CHECK_EQ(f.crc, ps_flat_crc(0, bytes, f.size));
    free(bytes);
}

static void test_damage_is_counted(void) {
    ps_flat f;
    uint8_t *bytes = make_segment(&f);
    ps_excerpt x = excerpt_of(bytes, &f);
    uint8_t *unit = bytes + f.records;
    const int64_t places[] = {0, BASE - 1, BASE + f.records, INT64_MAX, INT64_MIN, -1};
    const int32_t sizes[] = {0, -1, 1, INT32_MAX, INT32_MIN};
    uint8_t old[20];
    memcpy(old, unit, sizeof old);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        be64_put(unit, (uint64_t)places[i]);
        CHECK_EQ(OF_A_QUEUE - 1, messages_of(&x));
    }
    /* A base so low that the way from there to a unit has no number. */
    for (int64_t base = INT64_MIN; base < 0; base /= 2) {
        ps_excerpt low = x;
        low.base = base;
        CHECK_EQ(0, messages_of(&low));
    }
    memcpy(unit, old, sizeof old);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        be32_put(unit + 8, (uint32_t)sizes[i]);
        CHECK_EQ(OF_A_QUEUE - 1, messages_of(&x));
    }
    memcpy(unit, old, sizeof old);
    bytes[f.records / 2 + 40] ^= 1; /* in a body or what tells of one */
    CHECK(messages_of(&x) >= OF_A_QUEUE - 1);
    x.len = f.records / 2;
    CHECK(messages_of(&x) < OF_A_QUEUE);
    x.queue_id = 2;
    CHECK_EQ(0, messages_of(&x));
    free(bytes);
}

/* A byte that no sum of a record covers is looked at by its block's, once. */
static void test_blocks_have_sums(void) {
    ps_flat f;
    uint8_t *bytes = make_segment(&f);
    ps_excerpt x = excerpt_of(bytes, &f);
    x.block = PS_FLAT_BLOCK;
    x.sums = bytes + f.size - PS_FLAT_TAIL -
             (f.records + PS_FLAT_BLOCK - 1) / PS_FLAT_BLOCK * PS_FLAT_SUM;
    CHECK_EQ(OF_A_QUEUE, messages_of(&x));
    CHECK_EQ(f.records, x.right);
    int32_t whole = 0;
    ps_unit u = {0};
    for (; u.physical + u.size - BASE <= PS_FLAT_BLOCK; whole++)
        ps_unit_get(x.units + (int64_t)whole * PS_UNIT, &u);
    ps_unit_get(x.units + (int64_t)whole * PS_UNIT, &u); /* all of it is in the second block */
    bytes[u.physical - BASE + PS_AT_BORN_TIMESTAMP] ^= 1;
    CHECK_EQ(OF_A_QUEUE, messages_of(&x));
    x.right = 0;
    CHECK_EQ(whole - 1, messages_of(&x));
    CHECK_EQ(PS_FLAT_BLOCK, x.right);
    free(bytes);
}

/* A batch of a file has a reference on it; of one that is cut off there is none. */
static void test_a_mapped_segment(void) {
    ps_flat f;
    ps_error e = {0};
    char path[300];
    ps_segment_view view;
    ps_batch_info i;
    uint8_t *bytes = make_segment(&f);
    snprintf(path, sizeof path, "%s/segment", root);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK_EQ(f.size, pwrite(fd, bytes, (size_t)f.size, 0));
    ps_mapfile *file = ps_file_map(fd, path, BASE, f.size, &view, &e);
    CHECK(file != NULL && view.base == BASE);
    ps_excerpt x = excerpt_of(view.map, &f);
    x.units = bytes + f.records;
    x.file = file;
    /* The second half, as units call it. */
    ps_unit middle;
    int32_t skipped = f.count / 2;
    ps_unit_get(x.units + skipped * PS_UNIT, &middle);
    x.records += middle.physical - BASE;
    x.len -= middle.physical - BASE;
    x.base = middle.physical;
    x.units += skipped * PS_UNIT;
    x.count -= skipped;
    x.first += skipped;
    ps_read_options all = {.max_messages = MESSAGES};
    ps_batch *b = ps_excerpt_read(&x, x.first, x.count, &all, &e);
    ps_mapfile_unref(file);
    ps_batch_get(b, &i);
    CHECK(i.count == x.count && i.damaged == 0);
    CHECK_EQ(0, memcmp(view.map + i.views[0].start, bytes + (middle.physical - BASE),
                       (size_t)middle.size));
    CHECK_EQ(middle.physical, i.views[0].physical_offset);
    CHECK_EQ(0, ftruncate(fd, 0));
    CHECK(ps_excerpt_read(&x, x.first, 1, NULL, &e) == NULL && e.code == PS_E_FILE_SIZE);
    CHECK_EQ(PS_E_FILE_SIZE, ps_batch_whole(b, &e));
    CHECK(strstr(e.where, "/segment") != NULL);
    ps_batch_free(b);
    close(fd);
    free(bytes);
}

static ps_unit_choice choice_of(const uint8_t *units, int32_t count, const ps_read_options *o) {
    ps_unit_choice c;
    ps_units_choose(units, count, o, &c);
    return c;
}

static void test_units_are_chosen_within_limits(void) {
    ps_flat f;
    uint8_t *bytes = make_segment(&f), *units = bytes + f.records;
    ps_unit second;
    ps_unit_get(units + PS_UNIT, &second);
    ps_unit_choice c = choice_of(units, f.count, NULL);
    CHECK(c.first == 0 && c.last == f.count - 1 && c.looked == f.count);
    CHECK(c.low == BASE && c.high == BASE + f.records);
    ps_read_options two = {.max_messages = 2}, bytes_of_one = {.max_messages = 9, .max_bytes = 1};
    c = choice_of(units, f.count, &two);
    CHECK(c.last == 1 && c.looked == 2 && c.high == second.physical + second.size);
    c = choice_of(units, f.count, &bytes_of_one);
    CHECK(c.last == 0 && c.looked == 1 && c.high == second.physical);
    const int32_t other = 1;
    ps_read_options tagged = {.max_messages = 9, .tag_hashes = &other, .tag_count = 1};
    c = choice_of(units, f.count, &tagged);
    CHECK(c.first == -1 && c.looked == f.count && c.low == 0 && c.high == 0);
    be32_put(units + 8, PS_UNIT_NONE);
    c = choice_of(units, f.count, &two);
    CHECK(c.first == 1 && c.last == 2 && c.low == second.physical);
    free(bytes);
}

static void test_units_that_lie_lead_nowhere(void) {
    uint8_t units[3 * PS_UNIT];
    const ps_unit lies[] = {{INT64_MAX - 5, 100, 0}, {-7, 100, 0}, {50, -3, 0}};
    for (int i = 0; i < 3; i++) ps_unit_put(units + i * PS_UNIT, &lies[i]);
    ps_unit_choice c = choice_of(units, 3, NULL);
    CHECK(c.first == 0 && c.last == 2 && c.low == 0 && c.high == 0);
}

static void test_a_moved_record_has_its_sum(void) {
    uint8_t record[400];
    const char *why;
    ps_record r;
    ps_draft d = {.body = (const uint8_t *)"body", .body_len = 4, .topic = (const uint8_t *)"t",
                  .topic_len = 1, .prop_crc = true,
                  .born_host = (const uint8_t *)"\x7f\0\0\1\0\0\0\1", .born_host_len = 8,
                  .store_host = (const uint8_t *)"\x7f\0\0\1\0\0\0\1", .store_host_len = 8};
    CHECK_EQ(0, ps_draft_measure(&d, 1 << 20, &why));
    ps_draft_write(&d, record, 7, 123456, 1);
    CHECK_EQ(0, ps_record_move(record, d.size, 42));
    CHECK_EQ(PS_REC_OK, ps_record_check(record, d.size, 42, PS_CHECK_SUMS, &r));
    CHECK_EQ(-1, ps_record_move(record, d.size - 1, 42));
}

int main(void) {
    check_begin();
    char *folder = check_folder();
    snprintf(root, sizeof root, "%s", folder);
    free(folder);
    small_store_make(root, 32 << 10, 400, "topic-a", MESSAGES, 400);
    test_a_segment_is_its_queue();
    test_damage_is_counted();
    test_blocks_have_sums();
    test_a_mapped_segment();
    test_units_are_chosen_within_limits();
    test_units_that_lie_lead_nowhere();
    test_a_moved_record_has_its_sum();
    check_remove(root);
    return check_end("test_flat");
}
