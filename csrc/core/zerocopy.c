/* Records of an answer that are not copied into it: it shows them where they lie, in the mapping
 * of the log, to a network thread that writes it at once. What its socket does not take is copied
 * then. Small records are copied as ever: to gather them costs the system more than the copy. */
#define _GNU_SOURCE
#include "core/core.h"

#define LEND_BYTES (16 << 10) /* of an answer, at least */
#define LEND_EACH 2048        /* of a record, on average */

bool ps_zerocopy_fits(const ps_core *c, const ps_batch_info *b) {
    return ps_mine(c)->ca_answer.an_zerocopy && b->bytes >= LEND_BYTES &&
           b->bytes / b->count >= LEND_EACH;
}

int ps_zerocopy_add(ps_core *c, const ps_batch_info *b) {
    ps_call_answer *answer = &ps_mine(c)->ca_answer;
    ps_piece *pieces =
        (ps_piece *)ps_buffer_room(&answer->an_pieces, b->count * (int64_t)sizeof *pieces);
    if (pieces == NULL ||
        ps_buffer_room(&answer->an_piece_batches, (int64_t)sizeof(ps_batch *)) == NULL)
        return PS_E_NO_MEMORY;
    for (int32_t i = 0; i < b->count; i++) {
        const ps_view *v = &b->views[i];
        pieces[i] =
            (ps_piece){answer->an_out.len, b->segments[v->segment].map + v->start, v->size};
    }
    answer->an_pieces.len += b->count * (int64_t)sizeof *pieces;
    answer->an_piece_bytes += b->bytes;
    return 0;
}

void ps_zerocopy_keep(ps_core *c, ps_batch *batch) {
    ps_buffer *lent = &ps_mine(c)->ca_answer.an_piece_batches;
    memcpy(lent->data + lent->len, &batch, sizeof batch); /* ps_zerocopy_add has made room */
    lent->len += (int64_t)sizeof batch;
}

bool ps_core_written(ps_core *c) {
    ps_call_answer *answer = &ps_mine(c)->ca_answer;
    ps_batch **lent = (ps_batch **)answer->an_piece_batches.data;
    bool whole = true;
    for (size_t i = 0; i < (size_t)answer->an_piece_batches.len / sizeof *lent; i++) {
        whole = whole && ps_batch_whole(lent[i], NULL) == 0;
        ps_batch_free(lent[i]);
    }
    answer->an_piece_batches.len = answer->an_pieces.len = answer->an_piece_bytes = 0;
    return whole;
}
