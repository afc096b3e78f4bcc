/* The set of pending timers (csrc/timers), in C.
 *
 *   timers FOLDER [TIMERS]
 *
 * One JSON line: seconds to add so many timers with times spread evenly over a year, the longest
 * single addition in ms (it holds the event loop meanwhile; cpu: without what other processes took,
 * but with up to SAMPLED additions before it), seconds to save the state with a sync, to open it
 * again with all sums checked, and to take the first 100,000 in order; anonymous memory in bytes is
 * what the process has more than before. */
#define _GNU_SOURCE
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "timers/pending.h"

#define YEAR_MS (365LL * 24 * 3600 * 1000)
#define FIRST 100000
#define SAMPLED 256 /* additions between readings of the CPU clock, which is a system call */

static double clock_s(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void) {
    return clock_s(CLOCK_MONOTONIC);
}

static void need(int code, const ps_error *e) {
    if (code >= 0) return;
    fprintf(stderr, "timers: %s %s\n", e->text, e->where);
    exit(1);
}

static int64_t anonymous(void) {
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "RssAnon: %ld kB", &kb) == 1) break;
    if (f != NULL) fclose(f);
    return (int64_t)kb * 1024;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: timers FOLDER [TIMERS]\n"), 2;
    int64_t count = argc > 2 ? atoll(argv[2]) : 10000000, memory = anonymous();
    ps_io *io = ps_io_system();
    ps_pending p;
    ps_pending_state state;
    ps_pending_entry first;
    ps_error e = {0};
    uint64_t random = 88172645463325252ULL; /* xorshift64: the same times in each run */
    double longest = 0, longest_cpu = 0, cpu = 0;
    nftw(argv[1], remove_one, 16, FTW_DEPTH | FTW_PHYS);
    need(ps_pending_open(&p, io, argv[1], false, &e), &e);
    double began = now();
    for (int64_t i = 0; i < count; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        if (i % SAMPLED == 0) cpu = clock_s(CLOCK_THREAD_CPUTIME_ID);
        double before = now();
        need(ps_pending_add(&p, 1 + (int64_t)(random % YEAR_MS), ps_pending_id(i, 7), &e), &e);
        double took = now() - before;
        if (took > longest) longest = took;
        if (took < 0.0005) continue;
        double worked = clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu;
        if (worked > longest_cpu) longest_cpu = worked;
    }
    double added = now() - began;
    memory = anonymous() - memory;
    began = now();
    need(ps_pending_capture(&p, 0, NULL, 0, &state, &e), &e);
    need(ps_pending_save(io, argv[1], &state, &e), &e);
    double saved = now() - began;
    free(state.bytes);
    ps_pending_close(&p);
    began = now();
    int good = ps_pending_open(&p, io, argv[1], false, &e);
    need(good, &e);
    double opened = now() - began;
    began = now();
    int64_t taken = 0;
    for (; taken < FIRST && ps_pending_first(&p, &first); taken++) ps_pending_pop(&p);
    double popped = now() - began;
    printf("{\"bench\":\"c_timers\",\"timers\":%lld,\"add_s\":%.3f,\"longest_add_ms\":%.1f,"
           "\"longest_add_cpu_ms\":%.1f,\"anonymous_bytes\":%lld,\"save_s\":%.3f,"
           "\"open_s\":%.3f,\"state_good\":%d,\"taken\":%lld,\"take_s\":%.4f}\n",
           (long long)count, added, longest * 1e3, longest_cpu * 1e3, (long long)memory, saved,
           opened, good, (long long)taken, popped);
    ps_pending_close(&p);
    return 0;
}
