/* Error codes and the record of one failure. Codes come from errors.def. */
#ifndef PS_ERROR_H
#define PS_ERROR_H

#include "pystore.h"

enum {
#define PS_ERROR(NAME, code, cls, bases, status, meaning, next) PS_E_##NAME = code,
#include "base/errors.def"
#undef PS_ERROR
};

/* The code of a failed system call on a file: no rights, no room, or PS_E_IO for anything else. */
int ps_errno_code(int err);

/* Fills *e (which may be NULL) and returns `code`, so that a caller can `return ps_fail(...)`.
 * `where` is a path or NULL; `sys_errno` 0 when no system call failed; text is printf-like. */
int ps_fail(ps_error *e, int code, int sys_errno, int64_t offset, const char *where,
            const char *text, ...) __attribute__((format(printf, 6, 7)));
/* PS_E_NO_MEMORY, which is returned. text: of what there was none for. */
int ps_no_memory(ps_error *e, const char *where, const char *text);

#endif
