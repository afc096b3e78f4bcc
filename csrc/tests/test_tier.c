/* Queues that go on in a cold tier, under the sanitizers: what reads say and want, what is lent,
 * and how pulls wait for it. The tier is a segment of the queue itself. docs/cold.md. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "core_kit.h"
#include "core/lock.h"
#include "flat/flat.h"
#include "format/record.h"
#include "tables/tables.h"
#include "waits/parked.h"

#define MESSAGES 3000
#define BASE 777

static ps_topic *topic;
static ps_flat flat;
static uint8_t *segment; /* of queue 0 */
static int64_t low;      /* its first local message */

static ps_batch *read_with(ps_read_options o, int64_t offset, ps_batch_info *out) {
    ps_error e = {0};
    ps_batch *b = ps_read(kit_store, topic, 0, offset, &o, &e);
    CHECK(b != NULL);
    ps_batch_get(b, out);
    return b;
}

static int32_t status_at(int64_t offset) {
    ps_batch_info i;
    ps_batch_free(read_with((ps_read_options){0}, offset, &i));
    return i.status;
}

static int take_want(ps_tier_want *w) {
    return ps_tier_wants(kit_store, w);
}

static void drop_wants(void) {
    ps_tier_want w;
    while (take_want(&w)) continue;
}

static const uint8_t *unit_at(int64_t offset) {
    return segment + flat.records + offset * PS_UNIT;
}

/* Units [first, first + count) of the segment, and the bytes [from, to) of the queue's log. */
static int lend(int64_t first, int32_t count, int64_t from, int64_t to, int anyway) {
    ps_error e = {0};
    const ps_excerpt x = {.records = segment + (from - BASE),
                          .len = to - from,
                          .base = from,
                          .units = unit_at(first),
                          .count = count,
                          .first = first,
                          .topic = "T",
                          .topic_len = 1,
                          .checks = PS_CHECK_SUMS};
    return ps_tier_lend(kit_store, topic, &x, PS_TIER_PLACE, anyway, &e);
}

static void lend_want(const ps_tier_want *w) {
    int64_t rest = MESSAGES - w->offset;
    if (w->high == 0)
        CHECK_EQ(0, lend(w->offset, (int32_t)rest, BASE, BASE, 0));
    else
        CHECK_EQ(0, lend(w->offset, w->count, w->low - PS_TIER_PLACE, w->high - PS_TIER_PLACE, 0));
}

static void begins(int64_t first, int64_t end) {
    ps_error e = {0};
    CHECK_EQ(0, ps_tier_begins(kit_store, topic, 0, first, end, &e));
    drop_wants();
}

/* A queue whose older files are gone, and the segment that was made of it before. */
static void open_store(void) {
    ps_conf conf = kit_conf();
    conf.commitlog_file_size = 1 << 16;
    ps_error e = {0};
    ps_retention_report gone;
    ps_batch_info i;
    kit_open(&conf, 1000);
    kit_topic("T", 1, HOT);
    kit_subscribe("G", "T", "", 0, 0);
    for (int n = 0; n < MESSAGES; n++) kit_put("T", 0, n % 100 == 7 ? UNIQ "TAGS\1rare\2" : UNIQ);
    topic = ps_topic_open(kit_store, "T", 1, 0, &e);
    kit_queue_end("T", 0);
    ps_batch *b = read_with((ps_read_options){.max_messages = MESSAGES}, 0, &i);
    CHECK_EQ(0, ps_flat_measure(&i, &flat));
    segment = malloc((size_t)flat.size);
    CHECK_EQ(0, ps_flat_write(&i, BASE, segment, &flat));
    ps_batch_free(b);
    CHECK_EQ(0, ps_store_flush(kit_store, &e));
    CHECK_EQ(0, ps_store_clean(kit_store, ps_now_ms(), 1, 1, 0, &gone, &e));
    CHECK_EQ(0, ps_queue_range(kit_store, topic, 0, &low, &i.max_offset));
    CHECK(low > 100 && low < MESSAGES);
}

static void close_store(void) {
    free(segment);
    kit_put(NULL, 0, NULL);
    kit_close();
}

/* ---- reads ---- */

static void test_units_then_records_are_wanted(void) {
    ps_tier_want w;
    ps_batch_info i;
    int64_t min, max;
    CHECK_EQ(PS_GET_OFFSET_TOO_SMALL, status_at(5));
    begins(2, MESSAGES);
    CHECK_EQ(0, ps_queue_span(kit_store, topic, 0, &min, &max));
    CHECK(min == 2 && max == MESSAGES);
    CHECK_EQ(0, ps_queue_range(kit_store, topic, 0, &min, &max));
    CHECK_EQ(low, min);
    CHECK_EQ(PS_GET_OFFSET_TOO_SMALL, status_at(1));
    CHECK_EQ(0, take_want(&w));
    CHECK_EQ(PS_GET_IN_TIER, status_at(5));
    CHECK_EQ(PS_GET_IN_TIER, status_at(5));
    CHECK(take_want(&w) && w.offset == 5 && w.high == 0 && w.topic_len == 1);
    CHECK_EQ(0, take_want(&w)); /* the same is wanted once */
    lend_want(&w);
    CHECK_EQ(PS_GET_IN_TIER, status_at(5));
    CHECK(take_want(&w) && w.offset == 5 && w.count == 32);
    CHECK_EQ(be64_get(unit_at(5)), (uint64_t)(w.low - PS_TIER_PLACE));
    CHECK_EQ(be64_get(unit_at(37)), (uint64_t)(w.high - PS_TIER_PLACE));
    lend_want(&w);
    ps_batch *b = read_with((ps_read_options){0}, 5, &i);
    CHECK(i.status == PS_GET_FOUND && i.count == 32 && i.next_offset == 37 && i.min_offset == 2);
    CHECK_EQ(5, i.views[0].queue_offset);
    CHECK_EQ(w.low, i.views[0].physical_offset);
    ps_batch_free(b);
    b = read_with((ps_read_options){.max_messages = 1}, low, &i); /* what is here is read here */
    CHECK(i.count == 1 && i.views[0].physical_offset < PS_TIER_PLACE && i.min_offset == 2);
    ps_batch_free(b);
}

static void test_filters_fetch_what_passes(void) {
    static const int32_t rare[] = {3493026}; /* javaHash("rare") */
    static const int32_t none[] = {1};
    const ps_read_options of_rare = {.tag_count = 1, .tag_hashes = rare, .max_messages = 1};
    const ps_read_options of_none = {.tag_count = 1, .tag_hashes = none};
    ps_tier_want w;
    ps_batch_info i;
    begins(0, 0);
    begins(0, MESSAGES);
    CHECK_EQ(0, lend(0, MESSAGES, BASE, BASE, 0));
    ps_batch_free(read_with(of_none, 0, &i));
    CHECK(i.status == PS_GET_NO_MATCHED_MESSAGE && i.next_offset == 800 && !take_want(&w));
    ps_batch_free(read_with(of_rare, 0, &i));
    CHECK(i.status == PS_GET_NO_MATCHED_MESSAGE && i.next_offset == 7);
    CHECK(take_want(&w) && w.offset == 7 && w.count == 1);
    lend_want(&w);
    ps_batch_free(read_with(of_rare, 7, &i));
    CHECK(i.status == PS_GET_FOUND && i.count == 1 && i.next_offset == 8);
}

static void test_holes_are_passed(void) {
    ps_error e = {0};
    ps_batch_info i;
    begins(0, 0);
    begins(0, MESSAGES);
    CHECK_EQ(0, ps_tier_hole(kit_store, topic, 0, 10, 20, &e));
    ps_batch_free(read_with((ps_read_options){0}, 12, &i));
    CHECK(i.status == PS_GET_MESSAGE_WAS_REMOVING && i.next_offset == 20);
    begins(0, 50); /* between the tier and what is here there is nothing */
    ps_batch_free(read_with((ps_read_options){0}, 60, &i));
    CHECK(i.status == PS_GET_MESSAGE_WAS_REMOVING && i.next_offset == low);
}

static void test_too_many_wants_are_named(void) {
    ps_tier_want w;
    begins(0, 0);
    begins(0, MESSAGES);
    for (int n = 0; n < PS_TIER_WANTS && n < low - 1; n++)
        CHECK_EQ(PS_GET_IN_TIER, status_at(n));
    if (low > PS_TIER_WANTS) CHECK_EQ(PS_GET_TIER_BUSY, status_at(PS_TIER_WANTS));
    CHECK(take_want(&w) && w.offset == 0);
    CHECK_EQ(PS_GET_IN_TIER, status_at(low - 1));
    drop_wants();
}

static void test_damage_is_not_lent(void) {
    ps_batch_info i;
    int64_t from = (int64_t)be64_get(unit_at(40)), to = (int64_t)be64_get(unit_at(43));
    uint8_t *body = segment + (int64_t)be64_get(unit_at(41)) - BASE + 88;
    begins(0, 0);
    begins(0, MESSAGES);
    *body ^= 1;
    CHECK_EQ(1, lend(40, 3, from, to, 0));
    CHECK_EQ(PS_GET_IN_TIER, status_at(40));
    CHECK_EQ(1, lend(40, 3, from, to, 1));
    *body ^= 1;
    ps_batch_free(read_with((ps_read_options){.max_messages = 2}, 40, &i));
    CHECK(i.count == 2 && i.damaged == 1 && i.first_damaged == 41 && i.next_offset == 43);
    begins(0, 0);
    drop_wants();
}

/* Whatever bits a stranger flips, a batch holds what its CRC says, and nothing is read outside. */
static void test_flipped_bits(void) {
    int64_t from = (int64_t)be64_get(unit_at(0)), to = (int64_t)be64_get(unit_at(20));
    uint8_t *copy = malloc((size_t)flat.size);
    memcpy(copy, segment, (size_t)flat.size);
    for (int round = 0; round < 2000; round++) {
        uint64_t at = check_random() % (uint64_t)(to - from + 20 * PS_UNIT);
        uint8_t *bit = at < (uint64_t)(to - from) ? segment + at
                                                  : segment + flat.records + at - (to - from);
        ps_batch_info i;
        begins(0, 0);
        begins(0, MESSAGES);
        *bit ^= (uint8_t)(1 << check_random() % 8);
        int damaged = lend(0, 20, from, to, 1);
        CHECK(damaged >= 0 && damaged <= 2);
        ps_batch *b = read_with((ps_read_options){.max_messages = 20}, 0, &i);
        CHECK(i.count >= 18 || i.status == PS_GET_IN_TIER || i.next_offset > 0);
        for (int32_t n = 0; n < i.count; n++)
            CHECK(i.views[n].queue_offset >= 0 && i.views[n].queue_offset < 20);
        ps_batch_free(b);
        memcpy(segment, copy, (size_t)flat.size);
    }
    free(copy);
}

static void test_what_is_lent_is_bounded(void) {
    ps_batch_info i;
    int64_t from = (int64_t)be64_get(unit_at(0)), to = (int64_t)be64_get(unit_at(32));
    begins(0, 0);
    begins(0, MESSAGES);
    ps_tier_set(kit_store, PS_TIER_NOT_IN_DISK, 2 * (to - from), -1);
    CHECK_EQ(0, lend(0, 32, from, to, 0));
    ps_batch *b = read_with((ps_read_options){0}, 0, &i);
    CHECK_EQ(32, i.count);
    for (int64_t n = 32; n < 320; n += 32)
        CHECK_EQ(0, lend(n, 32, (int64_t)be64_get(unit_at(n)), (int64_t)be64_get(unit_at(n + 32)),
                         0));
    CHECK_EQ(PS_GET_IN_TIER, status_at(0));
    const ps_view *v = &i.views[31]; /* a batch keeps what it shows */
    CHECK_EQ(31, be64_get(i.segments[v->segment].map + v->start + PS_AT_QUEUE_OFFSET));
    ps_batch_free(b);
    ps_tier_set(kit_store, PS_TIER_NOT_IN_DISK, 64 << 20, -1);
    drop_wants();
}

static void test_places(void) {
    ps_error e = {0};
    int64_t at = (int64_t)be64_get(unit_at(3));
    begins(0, 0);
    begins(0, MESSAGES);
    CHECK(ps_message_at(kit_store, PS_TIER_PLACE + at, &e) == NULL && e.code == PS_E_NOT_FOUND);
    CHECK_EQ(0, lend(3, 1, at, (int64_t)be64_get(unit_at(4)), 0));
    ps_batch *b = ps_message_at(kit_store, PS_TIER_PLACE + at, &e);
    CHECK(b != NULL);
    ps_batch_free(b);
    CHECK(ps_message_at(kit_store, PS_TIER_PLACE + at + 1, &e) == NULL);
    CHECK(ps_message_at(kit_store, INT64_MAX, &e) == NULL && e.code == PS_E_NOT_FOUND);
}

/* FORCE reads there what is here, too, but for a while after a failure. */
static void test_levels(void) {
    begins(0, 0);
    begins(0, MESSAGES);
    CHECK_EQ(PS_GET_FOUND, status_at(low));
    ps_tier_set(kit_store, PS_TIER_FORCE, 64 << 20, -1);
    CHECK_EQ(PS_GET_IN_TIER, status_at(low));
    ps_tier_failed(kit_store, "away", CHECK_BOUND_MS);
    CHECK_EQ(PS_GET_FOUND, status_at(low));
    CHECK_EQ(PS_GET_IN_TIER, status_at(0));
    ps_tier_failed(kit_store, "", -1);
    ps_tier_set(kit_store, PS_TIER_NOT_IN_DISK, 64 << 20, -1);
    drop_wants();
}

/* ---- pulls ---- */

/* The answer to a pull; code -2: it is held, and its time is over when kit_pump(true) says so. */
static ps_command *pull(ps_conn *n, int64_t offset, int32_t flags) {
    static ps_command held = {.code = -2};
    kit_frame f;
    kit_clear();
    kit_pull(&f, 3, "G", "T", 0, offset, flags, 15000);
    CHECK_EQ(0, kit_ask(n, &f, NULL, 0));
    CHECK_EQ(0, kit_handed_count);
    if (kit_answer_count > 0) return kit_last();
    CHECK_EQ(1, kit_core->co_parking.pg_count);
    ps_parked_until(kit_core, kit_core->co_parking.pg_heap[0], INT64_MAX);
    return &held;
}

static void test_pulls_wait_for_what_is_lent(void) {
    ps_tier_want w;
    begins(0, 0);
    begins(0, MESSAGES);
    ps_conn *n = kit_conn(1);
    for (int waits = 0; waits < 2; waits++) {
        int64_t offset = 20 + 40 * waits; /* whether or not it would wait for news */
        CHECK_EQ(-2, pull(n, offset, waits ? 2 : 0)->code);
        kit_put("T", 0, UNIQ); /* news are not what it waits for */
        kit_clear();
        kit_pump(false);
        CHECK_EQ(0, kit_answer_count);
        while (kit_answer_count == 0 && CHECK(take_want(&w))) {
            lend_want(&w);
            kit_pump(false);
        }
        CHECK_EQ(0, kit_last()->code);
        CHECK_EQ(offset + 32, kit_field(kit_last(), "nextBeginOffset"));
        CHECK_EQ(0, kit_field(kit_last(), "minOffset"));
        CHECK(kit_last()->body.len > 0);
    }
    drop_wants();
    ps_conn_free(n);
}

static void test_a_tier_that_is_away_is_named(void) {
    begins(0, 0);
    begins(0, MESSAGES);
    ps_conn *n = kit_conn(1);
    ps_tier_failed(kit_store, "no route to host", 0);
    CHECK_EQ(-2, pull(n, 20, 2)->code);
    kit_pump(true); /* its time is over */
    CHECK_EQ(PS_CODE_SYSTEM_BUSY, kit_last()->code);
    CHECK_EQ(20, kit_field(kit_last(), "nextBeginOffset"));
    CHECK(memmem(kit_last()->remark.data, (size_t)kit_last()->remark.len, "no route to host", 16));
    for (int i = 0; i < PS_TIER_WANTS; i++) status_at(i);
    CHECK_EQ(PS_CODE_SYSTEM_BUSY, pull(n, PS_TIER_WANTS + 1, 2)->code);
    CHECK(memmem(kit_last()->remark.data, (size_t)kit_last()->remark.len, "too many", 8));
    drop_wants();
    ps_conn_free(n);
}

static void test_what_is_not_known_yet_is_not_gone(void) {
    begins(0, 0);
    ps_conn *n = kit_conn(1);
    ps_tier_known(kit_store, 0);
    CHECK_EQ(PS_CODE_SYSTEM_BUSY, pull(n, 5, 2)->code);
    CHECK_EQ(5, kit_field(kit_last(), "nextBeginOffset"));
    CHECK_EQ(0, pull(n, low, 2)->code);
    ps_tier_known(kit_store, 1);
    CHECK_EQ(21, pull(n, 5, 2)->code);
    ps_conn_free(n);
}

/* As it is not jumped over once the tier has it. */
static void test_what_is_damaged_here_may_be_there(void) {
    ps_error e = {0};
    ps_batch_info i;
    char path[5000], magic[4];
    begins(0, 0);
    ps_batch *b = read_with((ps_read_options){.max_messages = 1}, low + 3, &i);
    int64_t at = i.views[0].physical_offset;
    ps_batch_free(b);
    snprintf(path, sizeof path, "%s/commitlog/%020" PRId64, kit_root, at - at % (1 << 16));
    int fd = open(path, O_RDWR);
    CHECK_EQ(4, pread(fd, magic, 4, at % (1 << 16) + PS_AT_MAGIC));
    CHECK_EQ(4, pwrite(fd, "junk", 4, at % (1 << 16) + PS_AT_MAGIC));
    ps_tier_known(kit_store, 0);
    ps_batch_free(read_with((ps_read_options){.max_messages = 9}, low, &i));
    CHECK(i.count == 3 && i.next_offset == low + 3 && i.damaged == 0);
    CHECK_EQ(PS_GET_TIER_BUSY, status_at(low + 3));
    ps_conn *n = kit_conn(1);
    CHECK_EQ(PS_CODE_SYSTEM_BUSY, pull(n, low + 3, 2)->code);
    CHECK_EQ(low + 3, kit_field(kit_last(), "nextBeginOffset"));
    ps_conn_free(n);
    CHECK_EQ(0, ps_tier_begins(kit_store, topic, 0, 0, MESSAGES, &e));
    CHECK_EQ(PS_GET_IN_TIER, status_at(low + 3));
    ps_tier_known(kit_store, 1);
    begins(0, 0);
    ps_batch_free(read_with((ps_read_options){.max_messages = 9}, low, &i));
    CHECK(i.count == 9 && i.damaged == 1 && i.first_damaged == low + 3);
    CHECK_EQ(4, pwrite(fd, magic, 4, at % (1 << 16) + PS_AT_MAGIC));
    close(fd);
}

static void test_a_deleted_topic_has_nothing_there(void) {
    ps_error e = {0};
    begins(0, MESSAGES);
    CHECK_EQ(0, lend(0, 10, BASE, BASE, 0));
    CHECK_EQ(0, ps_topic_delete(kit_store, topic, &e));
    CHECK_EQ(0, lend(0, 10, BASE, BASE + 4096, 1)); /* it was on its way */
    CHECK(ps_message_at(kit_store, PS_TIER_PLACE + BASE, &e) == NULL);
    CHECK_EQ(PS_GET_NO_MESSAGE_IN_QUEUE, status_at(0));
    kit_put("T", 0, UNIQ);
    kit_queue_end("T", 0);
    CHECK_EQ(PS_GET_FOUND, status_at(0));
    ps_batch_info i;
    ps_batch_free(read_with((ps_read_options){0}, 0, &i));
    CHECK(i.min_offset == 0 && i.max_offset == 1);
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    open_store();
    test_units_then_records_are_wanted();
    test_filters_fetch_what_passes();
    test_holes_are_passed();
    test_too_many_wants_are_named();
    test_damage_is_not_lent();
    test_flipped_bits();
    test_what_is_lent_is_bounded();
    test_places();
    test_levels();
    test_pulls_wait_for_what_is_lent();
    test_a_tier_that_is_away_is_named();
    test_what_is_not_known_yet_is_not_gone();
    test_what_is_damaged_here_may_be_there();
    test_a_deleted_topic_has_nothing_there();
    close_store();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_tier");
}
