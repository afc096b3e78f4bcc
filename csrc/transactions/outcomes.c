/* Decisions as the log shows them: final messages of halves and copies of discarded ones. Recovery
 * looks for them, since a commit need not have its op on the disk. Needs no core. */
#define _GNU_SOURCE
#include "log/resync.h"
#include "transactions/halves.h"

static bool settles_halves(const ps_record *r, ps_tx_outcome *out) {
    bool commit = (r->sys_flag & PS_SYS_TX_MASK) == PS_SYS_TX_COMMIT;
    bool copy = ps_text_is(r->topic, r->topic_len, PS_DISCARD_TOPIC) &&
                r->prepared_transaction_offset > 0;
    *out = (ps_tx_outcome){r->prepared_transaction_offset, r->physical_offset,
                           commit ? PS_TX_COMMIT : PS_TX_DISCARD};
    return commit || copy;
}

int64_t ps_log_outcomes(ps_store *s, int64_t *from, int64_t to, ps_tx_outcome *out, int64_t room,
                        ps_error *e) {
    int64_t n = 0, avail, end = atomic_load_explicit(&s->st_log.lg_end, memory_order_acquire);
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    if (to > end) to = end;
    while (*from < to && n < room) {
        ps_mapfile *mf;
        ps_record r;
        const uint8_t *p = ps_log_at(&s->st_log, *from, end, &avail, &mf);
        int outcome = p != NULL ? (int)ps_record_decode(p, avail, &r) : PS_REC_SHORT;
        int64_t next = mf != NULL ? mf->mf_base + mf->mf_size : 0;
        if (outcome == PS_REC_OK) {
            next = *from + r.size;
            n += settles_halves(&r, &out[n]);
        } else if (outcome != PS_REC_BLANK && mf != NULL) { /* past the damage */
            int64_t at = ps_log_next_whole(mf, *from - mf->mf_base + 1, 0, &r);
            if (at >= 0) next = mf->mf_base + at;
        }
        ps_mapfile_unref(mf);
        if (mf == NULL) {
            n = ps_fail(e, PS_E_DAMAGED, 0, *from, NULL, "the log has no segment at %lld",
                        (long long)*from);
            break;
        }
        *from = next;
    }
    ps_leave(s);
    return n;
}
