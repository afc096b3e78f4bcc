/* Surviving a mapped file that another process cuts off.
 *
 * A load or store beyond the new end of such a file is a SIGBUS, which ends the process. With the
 * handler of ps_sigbus_install, a mapping that is watched gets a page of zeros there instead and is
 * marked: whoever reads it fails with the file's name, and no sync of it succeeds again.
 *
 * Handler and table are the one thing of this library that a whole process shares. The handler is
 * installed when the first store is opened, and hands on whatever is not ours to who had the signal
 * before. */
#ifndef PS_SIGBUS_H
#define PS_SIGBUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Watches `len` bytes at `start` until ps_sigbus_unwatch of what it returns: a place in the table,
 * -1 when there is no memory for it (the mapping is then not watched). When the file turns out to
 * be cut, *cut becomes true and *err EIO, by a signal handler of the thread that met it. */
int32_t ps_sigbus_watch(const void *start, size_t len, bool writable, _Atomic bool *cut,
                        _Atomic int32_t *err);
void ps_sigbus_unwatch(int32_t place); /* before the mapping goes */

#endif
