/* Filling in the report of an opening (ps_report in pystore.h). */
#ifndef PS_REPORT_H
#define PS_REPORT_H

#include "pystore.h"

/* Adds one item, or counts it as dropped when the report is full. r NULL: no report is kept. */
void ps_report_add(ps_report *r, int action, int64_t from, int64_t to, int64_t records,
                   const char *what, const char *why);
/* Takes back the items of this action that begin there. */
void ps_report_withdraw(ps_report *r, int action, int64_t from);

#endif
