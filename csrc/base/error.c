/* The record of one failure. Formatting happens only here, on the way out of a call that failed. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ps_errno_code(int err) {
    if (err == EACCES || err == EPERM || err == EROFS) return PS_E_FORBIDDEN;
    if (err == ENOSPC || err == EDQUOT) return PS_E_DISK_FULL;
    return PS_E_IO;
}

int ps_fail(ps_error *e, int code, int sys_errno, int64_t offset, const char *where,
            const char *text, ...) {
    if (e == NULL) return code;
    e->code = code;
    e->sys_errno = sys_errno;
    e->offset = offset;
    e->pid = 0;
    e->where[0] = 0;
    e->text[0] = 0;
    /* Only what is used of the two buffers is touched: their ends are not part of the value. */
    if (where != NULL) {
        size_t len = strnlen(where, sizeof e->where - 1);
        memcpy(e->where, where, len);
        e->where[len] = 0;
    }
    if (text != NULL) {
        va_list args;
        va_start(args, text);
        vsnprintf(e->text, sizeof e->text, text, args);
        va_end(args);
    }
    return code;
}

int ps_no_memory(ps_error *e, const char *where, const char *text) {
    return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, where, "%s", text);
}
