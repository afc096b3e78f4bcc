/* See threads.h. */
#define _GNU_SOURCE
#include "base/threads.h"

#include <signal.h>

int ps_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(out, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) pthread_setname_np(*out, name);
    return code;
}
