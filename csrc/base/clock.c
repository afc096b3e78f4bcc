/* See clock.h. */
#define _GNU_SOURCE
#include "base/clock.h"

#define NS_PER_S 1000000000LL

int64_t ps_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t ps_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t ps_monotonic_ms(void) {
    return ps_monotonic_ns() / 1000000;
}

void ps_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec ps_monotonic_in(int64_t ns) {
    int64_t at = ps_monotonic_ns() + ns;
    return (struct timespec){.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
}
