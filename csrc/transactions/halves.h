/* The table of open halves, and what is remembered of decided ones. Private to this room. */
#ifndef PS_HALVES_H
#define PS_HALVES_H

#include "core/core.h"
#include "transactions/transaction.h"

#define PS_HALF_SAVED 1   /* the metadata has it */
#define PS_HALF_CHANGED 2 /* but as it was before; it is in tx_changed */
#define PS_HALF_ALIAS 4   /* stands for another one: hf_next */
#define PS_HALF_COPIED 8  /* has an alias, at hf_root */
#define PS_HALF_USED 16
#define PS_HALF_UNHEARD 32 /* nobody of its group may be shown it */

typedef struct ps_tx_name { /* a group or a topic */
    ps_chain tn_chain;
    int32_t tn_len;
    int64_t tn_open;
    bool tn_live;
    char tn_text[];
} ps_tx_name;

typedef struct ps_half {
    int64_t hf_offset;   /* key */
    int64_t hf_physical; /* of the record at hf_offset */
    int64_t hf_root;
    int64_t hf_store_ms;
    ps_tx_name *hf_group, *hf_topic;
    int32_t hf_immunity_s;
    uint32_t hf_asked;         /* ms after hf_store_ms, 0: never */
    uint32_t hf_prev, hf_next; /* of all open ones, by offset */
    uint32_t hf_chain;         /* of its bucket, or of the free ones */
    uint16_t hf_checks, hf_flags;
} ps_half;

typedef struct ps_tx_span { /* an op record, or several after one another */
    int64_t ts_op, ts_largest;
} ps_tx_span;

#define PS_HALF_BLOCK 65536
#define PS_HALF_BLOCKS (PS_HALVES_MAX / PS_HALF_BLOCK)

struct ps_tx {
    ps_core *tx_core;
    /* the table; place 0 is nobody's */
    ps_half *tx_blocks[PS_HALF_BLOCKS];
    uint32_t tx_places, tx_free;
    uint32_t *tx_buckets;
    uint32_t tx_bucket_count;
    uint32_t tx_first, tx_last;
    ps_chains tx_names[2]; /* of ps_tx_name: groups, topics */
    int64_t *tx_decided; /* offset << 4 | decision, at offset % DECIDED */
    ps_buffer tx_changed, tx_gone;
    bool tx_forgot;

    /* ops */
    ps_buffer tx_ops; /* offsets, each followed by a comma */
    int64_t tx_ops_largest;
    bool tx_ops_now; /* they are to be written with this call */
    ps_tx_span *tx_spans;
    int32_t tx_span_from, tx_span_count;

    ps_topic *tx_half, *tx_op, *tx_discard;
    ps_tx_conf tx_conf;
    char *tx_broker;
    ps_tx_state tx_state;
};

ps_half *ps_halves_at(ps_tx *x, uint32_t place);
uint32_t ps_halves_find(ps_tx *x, int64_t offset); /* never an alias; 0: none */
/* Makes sure that the next ps_halves_add cannot fail. */
bool ps_halves_reserve(ps_tx *x, ps_slice group, ps_slice topic);
uint32_t ps_halves_add(ps_tx *x, const ps_half_row *row, int32_t flags);
void ps_halves_drop(ps_tx *x, uint32_t place, int32_t decision);
void ps_halves_row(ps_tx *x, const ps_half *h, ps_half_row *out);
void ps_halves_touch(ps_tx *x, uint32_t place); /* it has changed */
bool ps_halves_remember(ps_tx *x);              /* room for what is gone; false: no memory */
void ps_halves_free(ps_tx *x);
/* What the ops on the disk reach: CID_RMQ_SYS_TRANS may go on there. */
int64_t ps_halves_op_progress(ps_tx *x);
int64_t ps_halves_progress(ps_tx *x);

/* transaction.c, for send.c and conn.c */
void ps_tx_stored(ps_core *c, const ps_put_result *put, ps_slice group, ps_slice topic,
                  int32_t immunity_s);
int ps_core_end_transaction(ps_conn *n, const ps_command *request);
/* Whether it is carried out; answered: somebody waits for that, who must not before it is on the
 * disk. */
bool ps_core_end(ps_core *c, const ps_ending *end, bool answered);
void ps_tx_finish_call(ps_core *c);
int ps_tx_make(ps_core *c, ps_error *e);
void ps_tx_free(ps_core *c);

/* transaction.c, for checks.c */
/* How long the producer has before it is asked, in ms. */
int64_t ps_tx_immunity_ms(const ps_tx *x, const ps_half *h);
/* The half's record; *mf is to be dropped. False: it no longer exists. */
bool ps_tx_record(ps_core *c, const ps_half *h, ps_record *r, ps_mapfile **mf);
/* The properties with the number of checks among them, into ca_send.sd_props. */
bool ps_tx_with_checks(ps_core *c, const ps_record *r, int32_t checks);

#endif
