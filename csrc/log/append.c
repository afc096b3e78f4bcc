/* See append.h. */
#define _GNU_SOURCE
#include <errno.h>

#include "log/append.h"

int ps_append_reserve_locked(ps_log *l, ps_mapfile *mf, int64_t upto, ps_error *e) {
    int code = ps_mapfile_reserve(mf, upto, l->lg_reserve_window, e);
    atomic_store(&l->lg_disk_full, code == PS_E_DISK_FULL);
    return code;
}

int ps_append_roll_locked(ps_log *l, ps_allocator *a, ps_error *e) {
    ps_mapfile *mf = l->lg_active, *next = NULL;
    int64_t end = atomic_load(&l->lg_end), size = l->lg_files.ss_file_size;
    int64_t base = mf != NULL ? mf->mf_base + mf->mf_size : end - end % size;
    int code = ps_allocator_next_file(a, base, &next, e);
    if (code == 0 && ps_segments_add(&l->lg_files, base, next->mf_path, next) < 0) {
        l->lg_io->unlink(l->lg_io, next->mf_path);
        ps_mapfile_unref(next);
        code = ps_fail(e, PS_E_NO_MEMORY, ENOMEM, base, NULL, "no memory for the next segment");
    }
    atomic_store(&l->lg_disk_full, code == PS_E_DISK_FULL);
    if (code < 0) return code;
    if (mf != NULL && atomic_load(&mf->mf_wrote) < mf->mf_size) {
        int64_t wrote = atomic_load(&mf->mf_wrote);
        ps_blank_write(mf->mf_map + wrote, (int32_t)(mf->mf_size - wrote));
        atomic_store_explicit(&mf->mf_wrote, mf->mf_size, memory_order_release);
        atomic_store_explicit(&l->lg_end, base, memory_order_release);
    }
    l->lg_active = next;
    ps_allocator_new_file(a);
    return 0;
}
