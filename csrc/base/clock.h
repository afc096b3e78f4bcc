/* The two clocks. Whatever is stored or compared with something stored goes by the wall clock;
 * whatever waits or measures goes by the monotonic one, since somebody may set the wall clock at
 * any time. Condition variables wait on the clock they were made with: ps_cond_init is the only
 * way to make one. */
#ifndef PS_CLOCK_H
#define PS_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

int64_t ps_now_ms(void);       /* wall clock, since 1970: for timestamps */
int64_t ps_monotonic_ms(void); /* since some fixed point: for intervals and deadlines */
int64_t ps_monotonic_ns(void);

/* A condition variable whose timed waits go by the monotonic clock. */
void ps_cond_init(pthread_cond_t *cond);
/* `ns` from now, as ps_cond_init's variables want it. */
struct timespec ps_monotonic_in(int64_t ns);

#endif
