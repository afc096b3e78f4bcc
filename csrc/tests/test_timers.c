/* The set of pending timers against a plain list: additions, cancellations and deliveries at
 * random, with a heap so small that runs are written and merged all the time; kills, with the merge
 * in progress and its file left; disks that are full; damaged state. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>

#include "check.h"
#include "faulty_io.h"
#include "timers/pending.h"

enum { TIMERS = 40000, ALIVE_MOST = 1500, HEAP = 32 };

typedef struct said {
    ps_pending_entry entry;
    bool alive;
} said;

static said list[TIMERS]; /* by queue offset */
static int64_t count, alive, delivered;
static ps_pending pending;
static ps_io *io;
static char *folder;

static void open_set(int wanted) {
    ps_error e = {0};
    CHECK_EQ(wanted, ps_pending_open(&pending, io, folder, false, &e));
    pending.pd_room = HEAP;
}

/* A process that is killed deletes nothing. */
static void kill_set(void) {
    ps_io_faulty_set(io, 1u << PS_IO_UNLINK, 1, EIO, 1);
    ps_pending_close(&pending);
    ps_io_faulty_set(io, 0, 0, 0, 0);
}

static void save_set(void) {
    ps_pending_state state;
    ps_error e = {0};
    CHECK_EQ(0, ps_pending_capture(&pending, 0, NULL, 0, &state, &e));
    CHECK_EQ(0, ps_pending_save(io, folder, &state, &e));
    free(state.bytes);
}

static void add_one(void) {
    ps_error e = {0};
    ps_pending_entry x = {delivered + 1 + check_below(5000), 0};
    x.id = ps_pending_id(count, (uint32_t)check_below(50));
    if (count == TIMERS || alive == ALIVE_MOST) return;
    if (ps_pending_add(&pending, x.due_ms, x.id, &e) < 0) return; /* the disk is full */
    list[count++] = (said){x, true};
    alive++;
}

static void cancel_one(void) {
    ps_error e = {0};
    if (alive == 0) return;
    int64_t i = check_below(count);
    while (!list[i].alive) i = (i + 1) % count;
    if (ps_pending_cancel(&pending, list[i].entry, &e) < 0) return;
    list[i].alive = false;
    alive--;
}

static int64_t first_of_list(void) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (list[i].alive &&
            (best < 0 || list[i].entry.due_ms < list[best].entry.due_ms))
            best = i;
    return best;
}

static void pop_one(void) {
    ps_pending_entry first;
    int64_t wanted = first_of_list();
    bool some = ps_pending_first(&pending, &first);
    CHECK_EQ(wanted >= 0, some);
    if (!some || wanted < 0) return;
    CHECK_EQ(list[wanted].entry.due_ms, first.due_ms);
    CHECK_EQ(list[wanted].entry.id, first.id);
    ps_pending_pop(&pending);
    delivered = first.due_ms;
    list[wanted].alive = false;
    alive--;
}

static void look(void) {
    static ps_pending_entry found[TIMERS];
    int64_t from = delivered + check_below(5000), to = from + check_below(5000), wanted = 0;
    int64_t hash = check_below(50), of_hash = 0;
    for (int64_t i = 0; i < count; i++) {
        const ps_pending_entry *x = &list[i].entry;
        bool in = list[i].alive && x->due_ms > from && x->due_ms <= to;
        wanted += in;
        of_hash += in && ps_pending_hash(x->id) == hash;
    }
    CHECK_EQ(wanted, ps_pending_count(&pending, from, to));
    CHECK_EQ(wanted, ps_pending_find(&pending, from, to, -1, found, TIMERS));
    CHECK_EQ(of_hash, ps_pending_find(&pending, from, to, hash, found, TIMERS));
    CHECK_EQ(alive, pending.pd_live);
    CHECK_EQ(alive, ps_pending_count(&pending, INT64_MIN, INT64_MAX));
}

/* As store/timers.c recovers: the queue from the first offset that is in no run, then what was
 * delivered or cancelled since. */
static void recover(void) {
    static ps_pending_entry found[TIMERS];
    ps_error e = {0};
    for (int64_t i = pending.pd_next; i < count; i++)
        CHECK_EQ(0, ps_pending_add(&pending, list[i].entry.due_ms, list[i].entry.id, &e));
    int64_t n = ps_pending_find(&pending, INT64_MIN, INT64_MAX, -1, found, TIMERS);
    for (int64_t i = 0; i < n; i++)
        if (!list[ps_pending_offset(found[i].id)].alive)
            CHECK_EQ(0, ps_pending_cancel(&pending, found[i], &e));
}

static void begin(void) {
    count = alive = delivered = 0;
    folder = check_folder();
    io = ps_io_faulty_new();
    open_set(0);
}

static void end(void) {
    ps_pending_close(&pending);
    ps_io_faulty_free(io);
    check_remove(folder);
    free(folder);
}

static void act(int64_t adds) {
    int64_t dice = check_below(100);
    if (dice < adds) add_one();
    else if (dice < adds + 10) cancel_one();
    else pop_one();
}

static void test_like_a_plain_list(void) {
    int merges = 0;
    begin();
    for (int i = 0; i < 30000 && check_failures == 0; i++) {
        bool merging = pending.pd_merge != NULL;
        act(55);
        merges += merging && pending.pd_merge == NULL;
        if (i % 200 == 0) look();
    }
    CHECK(merges > 3);
    while (alive > 0 && check_failures == 0) pop_one();
    CHECK_EQ(0, pending.pd_live);
    end();
}

static void test_killed_at_any_moment(void) {
    int merging = 0;
    begin();
    for (int round = 0; round < 120 && check_failures == 0; round++) {
        int64_t more = check_below(300);
        for (int64_t i = check_below(300); i > 0; i--) act(60);
        save_set();
        for (int64_t i = 0; i < more; i++) act(60);
        merging += pending.pd_merge != NULL;
        kill_set();
        open_set(1);
        recover();
        look();
    }
    CHECK(merging > 10);
    end();
}

static void test_a_full_disk_loses_nothing(void) {
    begin();
    for (int round = 0; round < 60 && check_failures == 0; round++) {
        ps_io_faulty_set(io, 1u << PS_IO_PWRITE | 1u << PS_IO_OPEN | 1u << PS_IO_MMAP,
                         1 + check_below(6), ENOSPC, (int)check_below(2));
        for (int i = 0; i < 200; i++) act(60);
        ps_io_faulty_set(io, 0, 0, 0, 0);
        for (int i = 0; i < 200; i++) act(60);
        look();
    }
    end();
}

/* The heap is written out, so that what is earlier than the last delivery waits for its time. */
static void test_a_clock_that_was_set_back(void) {
    ps_error e = {0};
    ps_pending_entry first;
    begin();
    CHECK_EQ(0, ps_pending_add(&pending, 100000, ps_pending_id(0, 1), &e));
    CHECK(ps_pending_first(&pending, &first));
    ps_pending_pop(&pending);
    CHECK_EQ(0, ps_pending_add(&pending, 500, ps_pending_id(1, 1), &e));
    CHECK_EQ(0, ps_pending_add(&pending, 700, ps_pending_id(2, 1), &e));
    CHECK(ps_pending_first(&pending, &first));
    CHECK_EQ(500, first.due_ms);
    save_set();
    kill_set();
    open_set(1);
    for (int64_t i = pending.pd_next; i < 3; i++)
        CHECK_EQ(0, ps_pending_add(&pending, i == 1 ? 500 : 700, ps_pending_id(i, 1), &e));
    CHECK_EQ(2, pending.pd_live);
    end();
}

static void flip_a_byte(const char *name) {
    char path[4300];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, 20) == 1);
    byte ^= 0x40;
    CHECK(pwrite(fd, &byte, 1, 20) == 1);
    close(fd);
}

static void test_damage_is_not_believed(void) {
    char first[32];
    for (int what = 0; what < 2 && check_failures == 0; what++) {
        begin();
        for (int i = 0; i < 3 * HEAP; i++) add_one();
        save_set();
        snprintf(first, sizeof first, "%020lld", (long long)pending.pd_runs[0].rn_number);
        ps_pending_close(&pending);
        flip_a_byte(what == 0 ? "state" : first);
        open_set(0);
        CHECK_EQ(0, pending.pd_live);
        recover();
        look();
        end();
    }
}

int main(void) {
    check_begin();
    test_like_a_plain_list();
    test_killed_at_any_moment();
    test_a_full_disk_loses_nothing();
    test_a_clock_that_was_set_back();
    test_damage_is_not_believed();
    return check_end("test_timers");
}
