/* SQL92 message filters (MessageSelector.bySql): an expression compiled once, matched against the
 * encoded properties of many messages. The language is upstream's to the letter, its oddities too;
 * the head of sql92.c lists them. */
#ifndef PS_SQL92_H
#define PS_SQL92_H

#include "pystore.h"

/* cdef begin */
#define PS_SQL92_TEXT_MAX 65536 /* bytes of an expression */
#define PS_SQL92_NAMES_MAX 128  /* different properties that it may name */
#define PS_SQL92_DEPTH_MAX 128  /* brackets, signs and NOTs within one another */

#define PS_SQL92_TRUE 1
#define PS_SQL92_FALSE 0
#define PS_SQL92_NULL -1
#define PS_SQL92_ERROR -2 /* upstream's evaluation throws, and it takes that for no match */

/* Compiles len bytes of UTF-8. NULL: *error names the position, in characters from 1, and what was
 * expected there. */
ps_sql92 *ps_sql92_compile(const char *text, int32_t len, ps_error *error);
/* Whoever uses the expression still, a scan for one, keeps it until then. NULL is fine. */
void ps_sql92_free(ps_sql92 *sql);

/* Where upstream stops reading, as bytes from the start, or -1 when it reads all: after a complete
 * expression it ignores whatever begins with a token that cannot continue it. */
int32_t ps_sql92_unread(const ps_sql92 *sql);

/* The verdict, PS_SQL92_, on encoded properties: NAME 0x01 VALUE 0x02 ... Any number of threads may
 * ask at once; nothing is allocated. */
int ps_sql92_evaluate(const ps_sql92 *sql, const uint8_t *properties, int32_t len);
/* What one evaluation may cost, in bytes looked at: each CONTAINS may search all properties. */
int64_t ps_sql92_work(const ps_sql92 *sql, int32_t properties_len);
/* 1: the verdict is true, 0: it is anything else. */
int ps_sql92_match(const ps_sql92 *sql, const uint8_t *properties, int32_t len);

#define PS_SQL92_WORK_MAX 4194304 /* of one evaluation for a pull, and of one turn of pulls */
/* cdef end */

/* One more user of the expression, which ends with ps_sql92_free. */
ps_sql92 *ps_sql92_ref(ps_sql92 *sql);

#endif
