/* Surviving a mapped file that another process cuts off while it is read.
 *
 * A load beyond the new end of such a file is a SIGBUS, which ends the process. With the handler of
 * ps_sigbus_install, a thread that has said what it reads (ps_sigbus_enter) gets a page of zeros
 * there instead, and the scan is notified; it then fails with the file's name.
 *
 * The handler is the one thing of this library that a whole process shares. It is installed only
 * when asked for, and hands on whatever is not ours to who had the signal before. */
#ifndef PS_GUARD_H
#define PS_GUARD_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the thread reads a mapping that holds `at`. Called inside a signal handler: it may look
 * at memory and store flags, nothing else. */
typedef bool (*ps_sigbus_ours)(void *arg, const uint8_t *at);

/* From here to ps_sigbus_leave this thread's loads may be answered with zeros. Not nested. */
void ps_sigbus_enter(ps_sigbus_ours ours, void *arg);
void ps_sigbus_leave(void);

#endif
