/* Index files: hash slots and chained entries of 20 bytes. Format table: indexfile.h. Derived data:
 * never believed over the log, always rebuildable from it. docs/internals/format.md#index;
 * upstream IndexFile, IndexService. */
#ifndef PS_INDEX_H
#define PS_INDEX_H

#include "files/aside.h"
#include "files/mappings.h"
#include "format/record.h"

typedef struct ps_index ps_index;

/* Opens every index file of `folder` (made at the first put when missing). adopt: take slots from
 * files there rather than from the arguments, as far as header and file size tell them; read_only:
 * nothing is written. Files that are not whole are left out and counted in *skipped; those whose
 * bytes no slots and entries explain are moved to *aside, which a reader may leave NULL. mappings:
 * the clock that unmaps the files which nobody looks at; NULL: all stay mapped. */
int ps_index_open(ps_io *io, const char *folder, int32_t slots, int32_t entries, bool adopt,
                  bool read_only, ps_mappings *mappings, ps_aside *aside, int32_t *skipped,
                  ps_index **out, ps_error *e);
void ps_index_close(ps_index *ix);

/* Keeps, in all files, only entries whose phyOffset is below `physical` and whose place in the file
 * is sound (linear check: ascending phyOffset, entry numbers, hashes); rebuilds the slots of the
 * file that is cut and deletes later files. What goes for being unsound, and what follows it, is
 * kept in *aside, unless that is NULL. *cut: entries taken off. Returns 0; ps_index_end says where
 * the caller must start putting again. */
int ps_index_cut(ps_index *ix, int64_t physical, ps_aside *aside, int64_t *cut, ps_error *e);
/* From now on tags are put, too. */
void ps_index_set_tags(ps_index *ix);
/* Whether one of the last entries of a file is that of a record's tags: tells says so of an entry,
 * 1, or that it is not although the record has tags, 0, or that it has none, -1. */
bool ps_index_has_tags(ps_index *ix, int (*tells)(void *arg, int64_t physical, int32_t hash),
                       void *arg);
/* Whether ps_index_put makes an entry of this record, whatever its tags. */
bool ps_index_wants(const ps_record *r);
/* Places of the first and the last record in the file that comes after *file, oldest first (-1: in
 * the first one), which is then *file. Files that hold no entry are passed over. 1, 0 when there
 * are no more, or an error code. */
int ps_index_range(ps_index *ix, int64_t *file, int64_t *first, int64_t *last, ps_error *e);
/* The last phyOffset (start of a record) that is indexed, -1 when none. */
int64_t ps_index_end(ps_index *ix);
/* phyOffset of the first entry that may have been stored at or after `timestamp` ms by the entries'
 * own clock (header begin + timeDiff, whose lost second counts as later); -1 when there is none.
 * Used by recovery: entries before the checkpoint are on the disk, later ones may not be. */
int64_t ps_index_first_after(ps_index *ix, int64_t timestamp);

/* Indexes a record's UNIQ_KEY and KEYS, and its tags where they are put, as
 * docs/internals/format.md#index says (rolled back ones never). Skips duplicates; the record at
 * ps_index_end gets just those keys that are not there yet, so that putting may start with it.
 * Dispatcher only: not thread-safe against itself; safe against queries. Returns keys written, or
 * an error code: PS_E_DISK_FULL, PS_E_FLUSH_FAILED, PS_E_IO; the record can be put again after
 * one. */
int ps_index_put(ps_index *ix, const ps_record *r, ps_error *e);

/* Collects phyOffsets of entries with this key's hash (tags: the key is those of a record) and
 * times that overlap [begin, end] ms, newest file first, at most `room`; not verified against the
 * record. Returns how many (up to room), or an error code: PS_E_FILE_SIZE when another process has
 * cut off a file that had to be looked at, PS_E_NO_MEMORY, PS_E_IO. *skip: how many matches to skip
 * first, so that a caller that filters can ask on; updated. */
int32_t ps_index_query(ps_index *ix, const char *topic, int32_t topic_len, const char *key,
                       int32_t key_len, bool tags, int64_t begin, int64_t end, int64_t *skip,
                       int64_t *out, int32_t room, ps_error *e);

int ps_index_flush(ps_index *ix,
                   ps_error *e); /* syncs what changed; *_timestamp below is durable then */
/* endTimestamp of the last entry, 0 when none; a writer's: as of the last flush, or of opening. */
int64_t ps_index_timestamp(ps_index *ix);
/* Deletes files other than the last whose endPhyOffset is below `physical`; returns how many, or an
 * error. */
int32_t ps_index_delete_before(ps_index *ix, int64_t physical, bool dry_run, ps_error *e);
/* Re-reads headers and the folder: another process may have written (readers). */
int ps_index_refresh(ps_index *ix, ps_error *e);

int32_t ps_index_files(ps_index *ix);
int64_t ps_index_used(ps_index *ix); /* entries in all files */
int32_t ps_index_slots(ps_index *ix);
int32_t ps_index_entries(ps_index *ix);

#endif
