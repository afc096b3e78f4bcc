/* Threads of the core's own, and how they are woken. */
#ifndef PS_THREADS_H
#define PS_THREADS_H

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

/* Starts a thread that takes no signals, which are for the threads of the program. name: at most 15
 * characters, as `top -H` shows it. Returns 0 or an errno. */
int ps_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);

/* Makes an eventfd readable. It fails only when the counter is full: it is readable then. */
static inline void ps_eventfd_tell(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) return;
}

#endif
