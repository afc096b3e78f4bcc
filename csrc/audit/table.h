/* What an audit knows: the queues that are there, the index files, the segments. Private to
 * csrc/audit/. */
#ifndef PS_AUDIT_TABLE_H
#define PS_AUDIT_TABLE_H

#include <stdatomic.h>

#include "audit/audit.h"
#include "audit/runs.h"
#include "audit/window.h"
#include "base/chains.h"
#include "format/record.h"

/* One queue folder. Written by ps_audit_queue, then only its counters change. */
typedef struct au_queue {
    ps_chain qu_chain;
    int64_t qu_max;           /* after the last unit that the files hold */
    int64_t qu_units;         /* that point into the log */
    int64_t qu_end;           /* end of the furthest record that a unit points to, -1 none */
    _Atomic int64_t qu_matched;
    int64_t qu_first;         /* first byte of the first file */
    int32_t qu_id;
    int32_t qu_topic_len;
    uint8_t qu_topic[];
} au_queue;

/* Records of a topic that belong to a life that was deleted. */
typedef struct au_forgotten {
    struct au_forgotten *fo_next;
    int64_t fo_below;
    int32_t fo_topic_len;
    uint8_t fo_topic[];
} au_forgotten;

/* One index file: how far it is sound, and what its sound entries cover. */
typedef struct au_index {
    char *xi_path;
    int32_t xi_slots;
    int32_t xi_keep;                /* entries 1 to xi_keep - 1 are sound */
    int64_t xi_end;                 /* place of the last of them; -1 none */
} au_index;

typedef struct au_segment {
    char *sg_path;
    int64_t sg_base, sg_size;
} au_segment;

/* A light queue, gone or not, but for those whose names went with them. */
typedef struct au_light {
    uint32_t number;
    int64_t name_at; /* in li_names */
    int64_t last;    /* slot of its last unit so far, -1: none */
    int64_t next;    /* and the offset after it */
    uint8_t len;
} au_light;

/* The files of light queues, as far as they are sound. */
typedef struct au_lights {
    bool li_on;
    uint8_t *li_names; /* the file of that name */
    au_light *li_numbers; /* ascending */
    uint32_t li_number_count, li_number_room;
    int64_t li_given; /* numbers below are given out */
    int64_t li_first, li_end; /* slots [first, end) */
    int64_t li_covered;       /* all records below have their units */
    int64_t li_units;
} au_lights;

struct ps_audit {
    ps_io *au_io;
    char *au_root;
    ps_audit_conf au_conf; /* root above */
    ps_levels au_levels;
    int au_checks;           /* for ps_record_check */
    int64_t au_dispatched;   /* end of the furthest record that any queue holds, -1 none */
    int64_t au_indexed;      /* place of the last record that the index holds, -1 none */
    ps_chains au_queues;
    bool au_lmq; /* one of them is of light messages */
    au_forgotten *au_gone;
    au_index *au_indexes;
    int32_t au_index_count;
    au_segment *au_segments; /* by base */
    int32_t au_segment_count;
    au_rivals au_rivals;
    au_lights au_lights;
};

/* The queue, NULL when its folder is not there. */
au_queue *au_queue_find(ps_audit *a, const uint8_t *topic, int32_t topic_len, int32_t id);
au_queue *au_queue_add(ps_audit *a, const uint8_t *topic, int32_t topic_len, int32_t id);
/* Whether a record belongs to a life of its topic that was deleted. */
bool au_gone(const ps_audit *a, const ps_record *r);
/* The segment that holds `physical`, NULL: none. */
const au_segment *au_segment_at(const ps_audit *a, int64_t physical);

void au_lights_free(au_lights *l);

/* Adds a finding and returns it, to be filled further; NULL when there are too many. Lengths and
 * offsets that do not apply are given as -1. */
ps_finding *au_find(ps_findings *f, int32_t kind, int64_t from, int64_t to, int64_t count,
                    int64_t physical, int64_t value);
/* The same for a queue. */
ps_finding *au_find_queue(ps_findings *f, int32_t kind, const uint8_t *topic, int32_t topic_len,
                          int32_t queue_id, int64_t from, int64_t to, int64_t physical,
                          int64_t value);

#endif
