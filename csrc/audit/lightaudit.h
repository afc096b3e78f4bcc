/* Light queues beside the walk through a segment. Private to csrc/audit/. */
#ifndef PS_LIGHTAUDIT_H
#define PS_LIGHTAUDIT_H

#include "audit/table.h"
#include "light/slot.h"

/* LightFault of audit/findings.def. */
enum {
    AU_LIGHT_SUM = 1,
    AU_LIGHT_NO_NAME,
    AU_LIGHT_ORDER,
    AU_LIGHT_BEYOND,
    AU_LIGHT_GAP,
    AU_LIGHT_HEAD,
    AU_LIGHT_LIST,
    AU_LIGHT_NO_RECORD,
};

/* The slots of all files as one row. */
typedef struct au_light_row {
    ps_audit *lr_audit;
    ps_window lr_file;
    int64_t lr_base; /* first slot of the file that is open */
    bool lr_open;
    int64_t lr_at; /* next slot */
} au_light_row;

/* Puts the row at the first slot of a record at or after `physical`. */
void au_light_row_seek(au_light_row *w, ps_audit *a, int64_t physical);
/* The next whole record of the segment. */
void au_light_row_record(au_light_row *w, const ps_record *r, ps_findings *out);
/* No record stands before this place any more. */
void au_light_row_skip(au_light_row *w, int64_t before, ps_findings *out);
void au_light_row_close(au_light_row *w);

#endif
