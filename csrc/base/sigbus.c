/* The handler of SIGBUS. See sigbus.h. */
#define _GNU_SOURCE
#include "base/sigbus.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "pystore.h"

static struct {
    atomic_int gd_state; /* 0 not installed, 1 about to be, 2 installed */
    uintptr_t gd_page;
    struct sigaction gd_before;
} guard;

static _Thread_local struct {
    ps_sigbus_ours gt_ours;
    void *gt_arg;
} mine;

void ps_sigbus_enter(ps_sigbus_ours ours, void *arg) {
    mine.gt_arg = arg;
    mine.gt_ours = ours;
}

void ps_sigbus_leave(void) {
    mine.gt_ours = NULL;
}

/* mmap is no listed async-signal-safe function, but a bare system call on Linux, and the signal
 * comes of a load of our own, never in the midst of malloc. It is not of the I/O table, since no
 * file is touched. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    int kept = errno;
    void *page = (void *)((uintptr_t)info->si_addr & ~(guard.gd_page - 1));
    (void)number;
    (void)context;
    if (mine.gt_ours != NULL && mine.gt_ours(mine.gt_arg, info->si_addr) &&
        mmap(page, guard.gd_page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            MAP_FAILED) {
        errno = kept;
        return;
    }
    /* The load is tried again, and the signal then goes to who had it before. */
    sigaction(SIGBUS, &guard.gd_before, NULL);
    errno = kept;
}

int ps_sigbus_install(ps_error *e) {
    int fresh = 0;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (!atomic_compare_exchange_strong(&guard.gd_state, &fresh, 1)) return 0;
    guard.gd_page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &guard.gd_before) < 0) {
        atomic_store(&guard.gd_state, 0);
        return ps_fail(e, PS_E_IO, errno, -1, NULL, "cannot install the SIGBUS handler");
    }
    atomic_store(&guard.gd_state, 2);
    return 0;
}
