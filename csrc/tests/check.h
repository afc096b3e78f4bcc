/* What every C test here uses: claims that are counted, a seed that is printed with each failed
 * one, and a folder that is gone afterwards. The seed is PS_SEED, or the one of tests/seed. */
#ifndef PS_CHECK_H
#define PS_CHECK_H

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHECK_UNUSED __attribute__((unused))

static int check_failures;
static uint64_t check_state, check_seed =
#include "../../tests/seed"
    ;

static CHECK_UNUSED bool check_that(bool claim, const char *file, int line, const char *text) {
    if (!claim) {
        check_failures++;
        printf("%s:%d: not so: %s (PS_SEED=%" PRIu64 ")\n", file, line, text, check_seed);
    }
    return claim;
}

static CHECK_UNUSED bool check_equal(int64_t wanted, int64_t got, const char *file, int line,
                                     const char *text) {
    if (wanted != got) {
        check_failures++;
        printf("%s:%d: %s is %" PRId64 ", not %" PRId64 " (PS_SEED=%" PRIu64 ")\n", file, line,
               text, got, wanted, check_seed);
    }
    return wanted == got;
}

/* The first two give whether the claim held, so that a test can stop where going on makes no sense;
 * CHECKF prints more when it did not, as printf would. */
#define CHECK(claim) check_that((claim), __FILE__, __LINE__, #claim)
#define CHECK_EQ(wanted, got)                                                                      \
    check_equal((int64_t)(wanted), (int64_t)(got), __FILE__, __LINE__, #got)
#define CHECKF(claim, ...)                                                                         \
    do {                                                                                           \
        if (!CHECK(claim)) {                                                                       \
            printf(__VA_ARGS__);                                                                   \
            putchar('\n');                                                                         \
        }                                                                                          \
    } while (0)

/* Only a hang reaches it: nothing here is judged by how long it took. */
enum { CHECK_BOUND_MS = 300000 };

static CHECK_UNUSED int64_t check_clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until it is so. */
#define CHECK_UNTIL(claim)                                                                         \
    do {                                                                                           \
        bool so_;                                                                                  \
        int64_t end_ms_ = check_clock_ms() + CHECK_BOUND_MS;                                       \
        while (!(so_ = (claim)) && check_clock_ms() < end_ms_) usleep(200);                        \
        check_that(so_, __FILE__, __LINE__, #claim);                                               \
    } while (0)

static CHECK_UNUSED uint64_t check_random(void) {
    check_state ^= check_state << 13;
    check_state ^= check_state >> 7;
    check_state ^= check_state << 17;
    return check_state;
}

static CHECK_UNUSED int64_t check_below(int64_t limit) {
    return (int64_t)(check_random() % (uint64_t)limit);
}

/* Bytes of their hexadecimal digits, with blanks wherever a byte begins; how many. */
static CHECK_UNUSED int64_t check_unhex(const char *hex, uint8_t *out) {
    int64_t len = 0;
    for (unsigned byte; *hex != 0; hex += 2) {
        while (*hex == ' ') hex++;
        if (sscanf(hex, "%2x", &byte) != 1) break;
        out[len++] = (uint8_t)byte;
    }
    return len;
}

static CHECK_UNUSED void check_begin(void) {
    const char *given = getenv("PS_SEED");
    if (given != NULL) check_seed = strtoull(given, NULL, 10);
    check_state = check_seed != 0 ? check_seed : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
}

static CHECK_UNUSED int check_end(const char *name) {
    printf("%s: %s (PS_SEED=%" PRIu64 ")\n", name, check_failures == 0 ? "ok" : "FAILED",
           check_seed);
    return check_failures == 0 ? 0 : 1;
}

static CHECK_UNUSED int check_remove_one(const char *path, const struct stat *st, int kind,
                                         struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static CHECK_UNUSED void check_remove(const char *folder) {
    nftw(folder, check_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new folder; remove it with check_remove and free it. */
static CHECK_UNUSED char *check_folder(void) {
    const char *root = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/pystore-test-XXXXXX", root != NULL ? root : "/tmp");
    if (mkdtemp(path) == NULL) {
        perror(path);
        exit(2);
    }
    return strdup(path);
}

#endif
