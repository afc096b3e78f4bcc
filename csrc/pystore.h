/* The public interface of the C core: Apache RocketMQ's message store.
 *
 * Caveats, before the first function:
 *  - A handle belongs to the process that opened it. After fork the child must not use it: its
 *    threads are not there. One process writes a store at a time; any number may read it
 *    (ps_reader_open).
 *  - Handles are thread-safe: any thread may call any function at any time, ps_store_close
 *    included. A call that meets a closed store answers PS_E_CLOSED. Free the handle only after the
 *    last call.
 *  - Bytes that a ps_batch points to stay mapped until ps_batch_free, even when the store is closed
 *    or the segment was deleted.
 *  - Everything read from disk is hostile: no length is believed before it is checked.
 *  - The library keeps no globals (but for the handler of SIGBUS that the first opening installs,
 *    and the table of what is mapped), prints nothing, never aborts, and knows nothing of Python.
 *
 * Between the two marks below only what cffi's parser reads: plain declarations, no preprocessor
 * but `#define NAME integer`. pystore/native/_build.py takes them from here, so they
 * stand once. */
#ifndef PYSTORE_H
#define PYSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */
#define PS_ABI 9 /* raised whenever a struct or a function below changes its meaning */

typedef struct ps_store ps_store; /* a store opened for writing or for reading */
/* a topic of an open store; lives as long as the store's handle */
typedef struct ps_topic ps_topic;
typedef struct ps_batch ps_batch; /* messages read, with references on their mappings */
typedef struct ps_mapfile ps_mapfile; /* a mapped file, with counted references */
typedef struct ps_io ps_io;
typedef struct ps_sql92 ps_sql92; /* a compiled message filter: sql92.h */

typedef struct ps_error {
    int32_t code;      /* PS_E_ value, 0 when nothing failed */
    int32_t sys_errno; /* errno of the system call that failed, or 0 */
    int64_t offset;    /* physical offset concerned, or -1 */
    int64_t pid;       /* process that holds the lock, or 0 */
    char where[512];   /* path concerned, or empty */
    char text[256];    /* what was wrong */
} ps_error;

/* A topic of the configuration, and how many queues it may have. */
typedef struct ps_topic_row {
    const char *name;
    int32_t len;
    int32_t queues;
} ps_topic_row;

/* ---- settings; times in ms, sizes in bytes. ps_conf_init fills in upstream's defaults ---- */
typedef struct ps_conf {
    const char *root;                /* storePathRootDir */
    const char *commitlog_dirs;      /* storePathCommitLog, comma list; NULL: root/commitlog */
    int64_t commitlog_file_size;     /* mappedFileSizeCommitLog */
    int64_t consumequeue_file_size;  /* mappedFileSizeConsumeQueue; rounded up to whole units */
    int32_t index_slots;             /* maxHashSlotNum */
    int32_t index_entries;           /* maxIndexNum */
    int32_t adopt_sizes;             /* take sizes from existing files instead of failing */
    int32_t keep_log;                /* recovery leaves the log to the byte; nothing may be put */
    const char *queues_before;       /* the folder of the queues that are made again here, whose
                                        units say whose an offset is; NULL: none */
    int32_t compare_queues;          /* with the log, where ps_queues_are_noted says 0 */
    /* Sorted by the bytes of their names: messages of other topics than these, and than those that
     * have queues, are then taken for those of deleted ones. Count 0: every message belongs in a
     * queue. */
    const ps_topic_row *topics;
    int32_t topic_count;
    int32_t sync_flush;              /* flushDiskType = SYNC_FLUSH */
    int32_t flush_interval_ms;       /* flushIntervalCommitLog */
    int32_t flush_least_pages;       /* flushCommitLogLeastPages */
    int32_t flush_thorough_ms;       /* flushCommitLogThoroughInterval */
    int32_t queue_flush_interval_ms; /* flushIntervalConsumeQueue */
    int32_t queue_flush_least_pages; /* flushConsumeQueueLeastPages */
    int32_t queue_flush_thorough_ms; /* flushConsumeQueueThoroughInterval */
    int32_t sync_flush_timeout_ms;   /* syncFlushTimeout */
    int64_t max_message_size;        /* maxMessageSize */
    int32_t append_prop_crc;         /* enabledAppendPropCRC */
    int32_t force_verify_prop_crc;   /* forceVerifyPropCRC */
    int32_t check_crc_on_recover;    /* checkCRCOnRecover */
    int32_t check_crc_on_read;       /* checkCRCOnRead */
    int32_t message_index_enable;    /* messageIndexEnable */
    int32_t index_tags;              /* indexTagsEnable */
    int32_t long_topic_v2;           /* autoMessageVersionOnTopicLen */
    int32_t clean_interval_ms;       /* cleanResourceInterval; 0: no cleaning by itself */
    int32_t file_reserved_hours;     /* fileReservedTime */
    uint32_t delete_when_hours;      /* deleteWhen as a mask: bit h for local hour h */
    int32_t disk_max_used_ratio;     /* diskMaxUsedSpaceRatio, percent */
    int32_t disk_clean_ratio;        /* diskSpaceCleanForciblyRatio, percent */
    int32_t disk_warning_ratio;      /* diskSpaceWarningLevelRatio, percent */
    int32_t clean_forcibly;          /* cleanFileForciblyEnable */
    int32_t delete_batch_max;        /* deleteFileBatchMax */
    int32_t max_messages_in_memory;  /* maxTransferCountOnMessageInMemory */
    int32_t max_bytes_in_memory;     /* maxTransferBytesOnMessageInMemory */
    int32_t max_messages_in_disk;    /* maxTransferCountOnMessageInDisk */
    int32_t max_bytes_in_disk;       /* maxTransferBytesOnMessageInDisk */
    int32_t memory_ratio;            /* accessMessageInMemoryMaxRatio, percent of RAM */
    /* brokerIP1 and listenPort as on disk: 4 or 16 bytes, i32 port */
    uint8_t store_host[20];
    int32_t store_host_len; /* 8 or 20 */
    int32_t level_count;    /* messageDelayLevel */
    int64_t level_delay_ms[64];
    int32_t timer_enable;       /* timerWheelEnable */
    int32_t timer_precision_ms; /* timerPrecisionMs */
    int64_t timer_max_delay_s;  /* timerMaxDelaySec */
    /* blocks of a new segment are reserved this far ahead, bytes */
    int32_t reserve_window;
    /* mappedFilesMax: segments, queue files and index files that are mapped at once */
    int32_t mapped_files_max;
    /* storeFileMode: of what is made, folders with x wherever it has r */
    int32_t file_mode;
    /* 0: no threads of its own; tests and tools drive it by hand */
    int32_t background;
} ps_conf;

void ps_conf_init(ps_conf *conf);

/* ---- recovery report ---- */
#define PS_RECOVERED_NEW 0      /* an empty store was made */
#define PS_RECOVERED_NORMAL 1   /* the last writer closed it */
#define PS_RECOVERED_ABNORMAL 2 /* an abort file was there */
#define PS_RECOVERED_READ 3     /* opened read-only: nothing was changed */

#define PS_ACTION_KEPT 0
#define PS_ACTION_CUT 1
#define PS_ACTION_SKIPPED 2
#define PS_ACTION_REBUILT 3
#define PS_ACTION_REMOVED 4

typedef struct ps_report_item {
    int32_t action;  /* PS_ACTION_ */
    int64_t from_at; /* byte range [from_at, to_at) of the file or of the log */
    int64_t to_at;
    int64_t records; /* records, units or entries in it; -1 unknown */
    char what[256];  /* file or queue, relative to the root */
    char why[128];
} ps_report_item;

typedef struct ps_report {
    int32_t mode;    /* PS_RECOVERED_ */
    int64_t log_min; /* physical offsets */
    int64_t log_max;
    int64_t scanned_from;
    int64_t scanned_bytes;
    int64_t records;         /* records checked */
    int64_t units_written;   /* consume queue units written from the log */
    int64_t units_cut;       /* consume queue units discarded */
    int64_t entries_written; /* index entries written from the log */
    int64_t entries_cut;
    int64_t bytes_cut; /* bytes taken off the end of the log that were not zero */
    double seconds;
    int32_t item_count;    /* items filled in */
    int32_t items_dropped; /* items that found no room */
    ps_report_item items[64];
} ps_report;

/* Shared with a thread that watches: it reads the numbers and may set `stop` to interrupt. */
typedef struct ps_progress {
    volatile int32_t phase; /* 0 opening, 1 queues, 2 index, 3 log, 4 done */
    volatile int32_t stop;
    volatile int64_t done; /* bytes */
    volatile int64_t total;
} ps_progress;

/* ---- opening and closing ---- */
/* Opens conf->root for writing: makes it when missing or empty, takes its lock, recovers it. On
 * failure NULL, *error says why, and nothing stored has changed. io NULL: the system's. report,
 * progress may be NULL. conf may be freed afterwards. */
ps_store *ps_store_open(const ps_conf *conf, ps_io *io, ps_report *report, ps_progress *progress,
                        ps_error *error);
/* Whether the store has a note of how far its queues reached that is as new as its checkpoint: 1
 * or 0. Without it an open compares the queues with the log. */
int32_t ps_queues_are_noted(const char *root);
/* Opens a live, stopped or crashed store without lock and without writing. */
ps_store *ps_reader_open(const ps_conf *conf, ps_io *io, ps_report *report, ps_progress *progress,
                         ps_error *error);
/* Flushes, removes the abort file, stops the threads. Idempotent. Waits for calls under way in
 * others. */
int ps_store_close(ps_store *store, ps_error *error);
/* Ends as a crash would: threads stop, nothing is flushed, abort stays. For tests. */
void ps_store_abandon(ps_store *store);
/* closes first when needed; a handle of the parent after fork: use ps_store_forget */
void ps_store_free(ps_store *store);
/* after fork, in the child: drops nothing the parent needs */
void ps_store_forget(ps_store *store);

/* ---- facts ---- */
typedef struct ps_info {
    int64_t log_min, log_max; /* physical offsets */
    int64_t log_flushed;      /* everything below is on the disk */
    int64_t dispatched;       /* everything below is in queues and index */
    int64_t commitlog_file_size;
    int64_t consumequeue_file_size;
    int32_t index_slots, index_entries;
    int32_t log_files, index_files, topics, queues;
    int64_t index_used; /* entries in all index files */
    int32_t writable, disk_full, sync_flush;
    int32_t flush_errno;         /* sticky: errno of the sync that failed, or 0 */
    int64_t fsyncs;              /* syncs of the commit log since open */
    int64_t sync_ns, sync_max_ns; /* how long they took, and the longest */
    int64_t puts;                /* messages put since open */
    int64_t damaged_reads;       /* damaged messages that reads passed over since open */
    int64_t store_timestamp_min; /* of the first record, -1 when empty */
    int64_t store_timestamp_max; /* of the last record put or found at open, -1 when empty */
    int64_t checkpoint[5];       /* as on disk, docs/internals/format.md#checkpoint */
    int32_t abort_present, background;
} ps_info;
/* Waits for no lock that is held over a sync. PS_E_CLOSED. */
int ps_store_info(ps_store *store, ps_info *out);
/* Whether puts are refused, or the dispatcher waits, for lack of disk space: 1 or 0. It takes no
 * lock and touches no file, so an event loop may ask. PS_E_CLOSED. */
int ps_store_disk_full(ps_store *store);

/* How much of the commit log is mapped, and how much of that is in memory, in bytes: estimated from
 * 256 windows of 256 KiB at most. It reads nothing and takes a millisecond at most: no work for an
 * event loop. PS_E_CLOSED. */
int ps_store_log_resident(ps_store *store, int64_t *mapped, int64_t *resident);

typedef struct ps_queue_info {
    const char *topic; /* lives as long as the store's handle */
    int32_t topic_len;
    int32_t queue_id;
    int64_t min_offset, max_offset;
    int64_t max_physical; /* end of the last record indexed, -1 none */
} ps_queue_info;
/* Writes up to `room` queues sorted by topic bytes, then queue id; returns how many there are. */
int32_t ps_store_queues(ps_store *store, ps_queue_info *out, int32_t room);

/* Re-reads file ends of a reader (another process may have written); a no-op for a writer, whose
 * dispatcher is caught up instead. Returns 0 or an error code. */
int ps_store_refresh(ps_store *store, ps_error *error);
/* A reader: which of its refreshes it shows, while one more would find nothing; 0 when it may find
 * something. A writer: 0. It looks at the files of the log, at what stands at its end, and whether
 * topics were deleted; so it costs the same however many queues there are. PS_E_CLOSED. */
int64_t ps_store_view(ps_store *store);

/* ---- topics ---- */
/* The topic of that name; make 0: NULL when the store has no queue of it. Name checked when make is
 * 1. */
ps_topic *ps_topic_open(ps_store *store, const char *name, int32_t len, int32_t make,
                        ps_error *error);
/* Deletes the topic's queues: what was put is found by offset, id and key until retention takes it,
 * and by queue no more; what is put next counts from 0. The handle stays good. After a crash in
 * between the queues are there or gone, never half. An error of the disk while files go: the store
 * must be opened again. */
int ps_topic_delete(ps_store *store, ps_topic *topic, ps_error *error);
/* A store that follows: the master deleted the topic where its log ended at `below`. Units of
 * records below go, and those after it count from 0. Returns 1 done, 0 the log has not come so far
 * yet; PS_E_ARGUMENT: it follows nobody, or `below` lies amid a record. */
int ps_topic_follow_deletion(ps_store *store, ps_topic *topic, int64_t below, ps_error *error);
/* min and max offset of a queue; PS_E_NOT_FOUND when there is none. */
int ps_queue_range(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t *min_offset,
                   int64_t *max_offset);

/* ---- putting ---- */
#define PS_PUT_OK 0
#define PS_FLUSH_DISK_TIMEOUT 1 /* stored, sync flush late */
#define PS_FLUSH_SLAVE_TIMEOUT 2 /* stored, too few slaves have it in time */

typedef struct ps_put_result {
    int32_t status; /* PS_PUT_OK or PS_FLUSH_.._TIMEOUT when the call returned 0 */
    int32_t size;   /* totalSize of the record */
    int32_t queue_id;
    int32_t store_host_len;
    int64_t queue_offset;
    int64_t physical_offset;
    int64_t store_timestamp; /* ms */
    uint8_t store_host[20];  /* as on disk: with the physical offset, the offsetMsgId */
    ps_error error;          /* set when the call returned an error code */
} ps_put_result;

/* The usual message, plain arguments so that the call costs little: properties are encoded
 * (NAME 0x01 VALUE 0x02 ...), wait 0 is WAIT=false. Returns 0 or an error code; nothing is stored
 * then, except after PS_E_FLUSH_FAILED, where the message is in the log but not known to be on the
 * disk. */
int ps_put(ps_topic *topic, int32_t queue_id, int32_t flag, const void *body, int64_t body_len,
           const void *properties, int64_t properties_len, int32_t wait, ps_put_result *out);

/* Everything that a message may carry. Zero means the default everywhere; hosts are as on disk. */
typedef struct ps_message {
    const void *body;
    int64_t body_len;
    const void *properties;
    int64_t properties_len;
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int64_t born_timestamp; /* ms; 0: now */
    int64_t prepared_transaction_offset;
    uint8_t born_host[20];
    int32_t born_host_len; /* 0: the store host */
    int32_t wait;
    int32_t delay_level; /* 0: none; else it waits in SCHEDULE_TOPIC_XXXX; clipped to the last */
    int32_t timed;       /* 1: it waits until the time that its TIMER_ properties ask for */
} ps_message;
int ps_put_message(ps_store *store, ps_topic *topic, const ps_message *message, ps_put_result *out);

/* A column of byte strings: value i is data[offsets[i] .. offsets[i+1]); one of the offset arrays
 * is set. */
typedef struct ps_column {
    const void *data;
    const int32_t *offsets32;
    const int64_t *offsets64;
} ps_column;

typedef struct ps_put_many {
    int64_t count;
    ps_column bodies;
    ps_column tags; /* data NULL and offsets NULL: none; an empty value: no TAGS */
    ps_column keys;
    ps_column properties; /* encoded */
    const void *common;   /* encoded properties of every message */
    int64_t common_len;
    const int32_t *queue_ids; /* one a message, or NULL: round robin over the next two */
    int32_t queue_first, queue_count;
    const int64_t *born_timestamps; /* ms, or NULL: now */
    const int32_t *flags;           /* one a message, or NULL: the next */
    int32_t flag, sys_flag, reconsume_times;
    uint8_t born_host[20];
    int32_t born_host_len;
    int32_t wait;
    /* 1: all or nothing, within one file, one queue: a client's batch */
    int32_t together;
    int64_t *physical_offsets; /* out, count values, or NULL */
    int64_t *queue_offsets;    /* out, count values, or NULL */
} ps_put_many;
/* All messages are checked before the first is stored. Returns 0 or an error code; *stored says how
 * many are in the log. out describes the last one stored; out->error.offset the message that was
 * refused. */
int ps_put_many_messages(ps_store *store, ps_topic *topic, const ps_put_many *many, int64_t *stored,
                         ps_put_result *out);

/* The body of a client's batch (docs/internals/format.md#batch), split and stored together.
 * physical_offsets: out, a value an item, or NULL. */
int ps_put_client_batch(ps_store *store, ps_topic *topic, const ps_message *message, int64_t *count,
                        int64_t *physical_offsets, ps_put_result *out);

/* ---- delays ---- */
typedef struct ps_due {
    int64_t next_offset;        /* where the level goes on */
    int64_t next_ms;            /* when the unit there is due; -1: there is none */
    int64_t delivered, skipped; /* skipped: without readable record or destination */
    int64_t end;                /* physical, of the last one delivered; 0: none */
} ps_due;
/* Puts messages of delay level `level` (queue level - 1 of SCHEDULE_TOPIC_XXXX), from queue offset
 * `from` on, to their topics, as far as they are due at now_ms (0: the clock), at most `most`. An
 * error code: out->next_offset could not be delivered. */
int ps_deliver_due(ps_store *store, int32_t level, int64_t from, int64_t now_ms, int32_t most,
                   ps_due *out, ps_error *error);

/* ---- timers: messages of rmq_sys_wheel_timer. One object a store; a mutex guards it ---- */
typedef struct ps_timers ps_timers;
typedef struct ps_timer_round {
    int64_t next_ms;                        /* when the first is due; -1: none waits */
    int64_t next_offset;                    /* of the topic's queue: read up to here */
    int64_t delivered, skipped, recalled;   /* skipped: without readable record or destination */
    int64_t pending;                        /* that wait */
    int64_t late_ms;                        /* of the one that was delivered latest */
    int64_t end;                            /* physical, of the last one delivered; 0: none */
    int32_t more;                           /* 1: there is more to do now */
    int32_t waits;                          /* 1: the disk is behind; try in some ms */
    int32_t next_is_pop;                    /* 1: the first goes to a revive topic */
} ps_timer_round;
typedef struct ps_timer_row {
    int64_t due_ms, out_ms, queue_offset, physical; /* -1: its record cannot be read */
    int32_t size, topic_hash; /* of the record; Java's hash of the real topic */
} ps_timer_row;

#define PS_TIMER_DELAYS 7
typedef struct ps_timer_tally {
    const char *topic; /* ends with 0x00; good as long as the store */
    uint32_t topic_hash;
    int64_t waiting;
    int64_t read, delivered;         /* since the start */
    int64_t delays[PS_TIMER_DELAYS]; /* of those read: asked for up to 60, 600, 3600, 43200, 86400,
                                      * 259200 s ahead, and more */
    int64_t delay_ms;                /* their sum */
} ps_timer_tally;

typedef struct ps_timers_progress {
    int64_t read, records;     /* of the topic's queue, after the saved state */
    int64_t searched, log_end; /* physical: of the log, for deliveries since */
} ps_timers_progress;

/* Loads the state of the folder `timers`: what waits is known once ps_timers_recover returns 0. A
 * store of readers may be asked, too; it delivers nothing. Close it before the store. */
ps_timers *ps_timers_open(ps_store *store, ps_error *error);
/* Reads on: the topic's queue, then, in the log, what was delivered since the state was saved. 1:
 * there is more to read; 0; or an error. */
int ps_timers_recover(ps_timers *timers, ps_timers_progress *out, ps_error *error);
/* In a store that follows another, the next calls of ps_timers_recover read what came since,
 * deliveries of timers among it. */
void ps_timers_read_on(ps_timers *timers);
void ps_timers_close(ps_timers *timers);
/* Reads new timers and delivers those that are due at now_ms (0: the clock), at most `most`. */
int ps_timers_run(ps_timers *timers, int64_t now_ms, int32_t most, ps_timer_round *out,
                  ps_error *error);
/* Those with from_ms < time <= to_ms in order of time and arrival: how many there are; `room` of
 * them at most are written. pop: 1, those alone that go to a revive topic of POP. */
int64_t ps_timers_list(ps_timers *timers, int64_t from_ms, int64_t to_ms, int32_t pop,
                       ps_timer_row *out, int64_t room, ps_error *error);
/* Timers of each topic: how many topics there are; `room` of them at most are written. */
int64_t ps_timers_tallies(ps_timers *timers, ps_timer_tally *out, int64_t room);
/* The one with this real topic, UNIQ_KEY and TIMER_OUT_MS: 1, 0, or an error. */
int ps_timers_find(ps_timers *timers, const char *topic, int32_t topic_len, const char *key,
                   int32_t key_len, int64_t out_ms, ps_timer_row *out, ps_error *error);
/* Puts timers again whose record was stored before before_ms, at most `most`, so that they outlive
 * retention: how many, or an error. */
int64_t ps_timers_roll(ps_timers *timers, int64_t before_ms, int32_t most, ps_error *error);
/* What survives a crash: taken here, and written in any thread once the log is on the disk up to
 * *log_end. */
typedef struct ps_timers_state ps_timers_state;
ps_timers_state *ps_timers_capture(ps_timers *timers, int64_t *log_end, ps_error *error);
int ps_timers_save(ps_store *store, ps_timers_state *state, ps_error *error); /* frees it */
/* The clock of timers goes by so many ms ahead of the machine's: for tests. */
void ps_timers_shift_clock(ps_store *store, int64_t ms);

/* 1: what rests on records up to `physical`, the end of the last, may not be acknowledged yet
 * (SYNC_FLUSH); 0: it may, or rests on none (physical 0). */
int32_t ps_must_wait(const ps_store *store, int64_t physical);
/* Waits until every byte below `physical` is on the disk: 0, PS_FLUSH_DISK_TIMEOUT after
 * timeout_ms, or an error. */
int ps_wait_flushed(ps_store *store, int64_t physical, int32_t timeout_ms, ps_error *error);

/* ---- following a master (csrc/store/follow.c) ---- */

/* From now on the store takes no messages, but the bytes of a master's log from the returned place
 * on, the end of its own. */
int64_t ps_follow_begin(ps_store *store);
/* Takes the next bytes of that log, which may end within a record. PS_E_ARGUMENT when `at` is not
 * where the last ones ended, unless the log is empty; PS_E_DAMAGED when they are no records. */
int ps_follow_append(ps_store *store, int64_t at, const void *data, int64_t len, ps_error *error);
/* Before the log of a store that follows has begun: a queue goes on at `offset`, since the master's
 * has had that many messages, and all of them lie before its log. PS_E_ARGUMENT: it has begun. */
int ps_follow_queue(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t offset,
                    ps_error *error);
/* Forgets the half record at the end: what comes next begins with it. */
void ps_follow_pause(ps_store *store);
/* Where the last record begins that a queue shows; -1: there is none. */
int64_t ps_last_record(ps_store *store);
/* Where the last whole record begins that ends at or before `place`, which a peer names and which
 * may lie anywhere in the log; -1: there is none. *border: where a record or a blank ends there. */
int64_t ps_record_before(ps_store *store, int64_t place, int64_t *border);
/* Whether the log has these bytes at `at`. */
int32_t ps_has_bytes(ps_store *store, int64_t at, const void *data, int64_t len);
/* Takes messages again, after those of the log, which all count as confirmed: 1; 0: it does not
 * follow, and nothing happens. */
int ps_follow_end(ps_store *store, ps_error *error);
/* SYNC_MASTER: answers wait until slaves have their records, at most timeout_ms; or do not. */
void ps_want_copies(ps_store *store, int32_t on, int32_t timeout_ms);
/* From now on readers, the store's own among them, see no record before enough slaves have it. */
void ps_hide_unconfirmed(ps_store *store);
/* The end of what they see. */
int64_t ps_confirmed(ps_store *store);
/* Whether everything below `position` is on this disk, and, where slaves are waited for, with
 * enough of them: no change of master takes it back. */
int32_t ps_settled(ps_store *store, int64_t position);
/* Whether too few slaves are near (minInSyncReplicas), so that what waits for them is refused. */
int32_t ps_lacks_replicas(ps_store *store);
int ps_store_flush(ps_store *store, ps_error *error); /* log, queues, index, checkpoint */

/* ---- reading ---- */
#define PS_GET_FOUND 0
#define PS_GET_NO_MATCHED_MESSAGE 1
#define PS_GET_MESSAGE_WAS_REMOVING 2
#define PS_GET_OFFSET_FOUND_NULL 3
#define PS_GET_OFFSET_OVERFLOW_BADLY 4
#define PS_GET_OFFSET_OVERFLOW_ONE 5
#define PS_GET_OFFSET_TOO_SMALL 6
#define PS_GET_NO_MATCHED_LOGIC_QUEUE 7
#define PS_GET_NO_MESSAGE_IN_QUEUE 8
#define PS_GET_IN_TIER 9   /* ours: it is asked for, and comes (ps_tier_begins) */
#define PS_GET_TIER_BUSY 10 /* ours: too much is asked for already */

/* One message of a batch; positions are counted from the start of its segment's mapping. */
typedef struct ps_view {
    int32_t segment; /* index into the batch's segments */
    int32_t size;    /* totalSize */
    int64_t start;   /* of the record */
    int64_t body_start;
    int64_t body_end;
    int64_t physical_offset;
    int64_t queue_offset;
    int64_t store_timestamp;
    int64_t tags_code;              /* of the unit; 0 when read from the log */
    int32_t topic_start, topic_len; /* counted from the record's start */
    int32_t properties_start, properties_len;
    int32_t sys_flag;
    int32_t reconsume_times;
} ps_view;

typedef struct ps_segment_view {
    const uint8_t *map;
    int64_t size;
    int64_t base; /* physical offset of the first byte */
} ps_segment_view;

typedef struct ps_batch_info {
    int32_t status; /* PS_GET_ */
    int32_t count;
    int32_t segment_count;
    int64_t next_offset; /* next queue offset, or next physical offset of a log read */
    int64_t min_offset, max_offset;
    int64_t bytes; /* of the records */
    int32_t suggest_slave;
    int32_t compressed; /* messages whose body is compressed */
    /* log reads: why it ended, 0 not at the end, else ps_rec_outcome; -1 end of log */
    int32_t outcome;
    /* units passed over since the record they lead to is damaged, is of another queue or offset, or
     * is not there though its segment is; and the queue offset of the first */
    int32_t damaged;
    int64_t first_damaged;
    const ps_view *views;
    const ps_segment_view *segments;
    /* the same positions as plain columns, for one pass without structs */
    const int64_t *body_starts;
    const int64_t *body_ends;
} ps_batch_info;

typedef struct ps_read_options {
    int32_t max_messages; /* at most; 0: 32 */
    int64_t max_bytes;    /* of the records; 0: 128 MiB */
    /* 1: the broker's limits, too (docs/internals/format.md#reading-a-queue) */
    int32_t transfer_limits;
    int32_t tag_count;         /* 0: every tag */
    const int32_t *tag_hashes; /* javaHash of each tag, in ascending order */
    /* the tags, each ended by 0x00: TAGS itself must be one of them; NULL: hash only */
    const char *tag_texts;
    int32_t tag_texts_len;
    /* log reads: verify the CRCs of bodies, and of properties where a record has one */
    int32_t check_crc;
    /* reads of a queue: what the properties must say; NULL: anything */
    const ps_sql92 *sql;
    /* reads of a queue: 1: it ends before what is not in memory (ps_batch_cold) */
    int32_t in_memory;
    /* what sql may cost yet (ps_sql92_work): once it is used up the read ends before the next
     * message that sql would have to look at. NULL: any */
    int64_t *work_left;
} ps_read_options;

/* docs/internals/format.md#reading-a-queue. options NULL: the defaults. NULL only on failure
 * (closed, no memory); "nothing there" is a status. topic may be NULL. */
ps_batch *ps_read(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t offset,
                  const ps_read_options *options, ps_error *error);
/* Records of the log as they lie, blanks stepped over, from a record's start. */
ps_batch *ps_log_read(ps_store *store, int64_t physical, const ps_read_options *options,
                      ps_error *error);
/* The one record at a physical offset; NULL with PS_E_NOT_FOUND or PS_E_DAMAGED. */
ps_batch *ps_message_at(ps_store *store, int64_t physical, ps_error *error);
/* Through the index, newest files first, at most `max` messages (0: all), each holding the key
 * itself in UNIQ_KEY or KEYS, or, with `tags`, as its TAGS, and stored within [begin, end];
 * ascending physical offsets. */
ps_batch *ps_query(ps_store *store, const char *topic, int32_t topic_len, const char *key,
                   int32_t key_len, int32_t tags, int64_t begin, int64_t end, int32_t max,
                   ps_error *error);
/* An excerpt of a queue that is not in a store: bytes of records, and the units that lead into
 * them, as the cold tier keeps both. */
typedef struct ps_excerpt {
    const uint8_t *records;
    int64_t len;
    int64_t base; /* what units call the first byte */
    ps_mapfile *file; /* where records lie, its bytes called as units call them, or NULL */
    const uint8_t *units;
    int32_t count;
    int64_t first; /* queue offset of the first unit */
    const char *topic; /* of all records, as queue_id is */
    int32_t topic_len;
    int32_t queue_id;
    int32_t checks; /* PS_CHECK_ of csrc/format/record.h */
    /* As those of ps_given: a record is looked at by these, too, before it is read. right: bytes of
     * records that were, 0 at first. */
    const uint8_t *sums;
    int64_t block;
    int64_t right;
} ps_excerpt;
/* What a read takes of units that follow each other. */
typedef struct ps_unit_choice {
    int32_t first, last; /* of those that it takes; -1: it takes none */
    int32_t looked;      /* how many it has looked at */
    int64_t low, high;   /* bytes of the queue's log that it takes; equal: no unit leads anywhere */
} ps_unit_choice;
/* Chooses units by their tags codes and sizes, as far as the limits of the options go; NULL: all
 * that lead to a record. */
void ps_units_choose(const uint8_t *units, int32_t count, const ps_read_options *options,
                     ps_unit_choice *out);
/* The messages of an excerpt from a queue offset in it on, of so many units at most, as ps_read
 * gives those of a queue; the batch points into its bytes, which must stay until it is freed. A
 * record that is not what its unit says, or is of another queue or offset, is passed over and
 * counted (damaged), as is what lies in a block that has another sum, and what lies after it.
 * min_offset and max_offset are those of the excerpt. Of a file the batch has a reference, and its
 * bytes need not stay. NULL: PS_E_NO_MEMORY, or PS_E_FILE_SIZE, as of ps_batch_whole. */
ps_batch *ps_excerpt_read(ps_excerpt *excerpt, int64_t offset, int32_t units,
                          const ps_read_options *options, ps_error *error);
void ps_batch_get(const ps_batch *batch, ps_batch_info *out);
/* PS_E_FILE_SIZE when another process has cut off a file that the batch points into, else 0. */
int ps_batch_whole(const ps_batch *batch, ps_error *error);
/* Copies the records, one after the other, `bytes` of them. */
void ps_batch_records(const ps_batch_info *info, uint8_t *to);
void ps_batch_free(ps_batch *batch);

/* Units [offset, offset + room) of a queue into the arrays (each may be NULL); returns how many, or
 * PS_E_NOT_FOUND, PS_E_FILE_SIZE, PS_E_CLOSED. */
int32_t ps_queue_units(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t offset,
                       int32_t room, int64_t *physical, int32_t *sizes, int64_t *tags_codes,
                       ps_error *error);
/* Queue offset at a store time in ms: upper 0 the first unit at or after it, 1 the last at or
 * before it; or PS_E_NOT_FOUND, PS_E_FILE_SIZE, PS_E_CLOSED. */
int64_t ps_offset_at(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t timestamp,
                     int32_t upper, ps_error *error);
/* Waits until the queue holds `offset`: 1, or 0 after timeout_ms, or an error code. */
int ps_wait_message(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t offset,
                    int32_t timeout_ms);

/* ---- the cold tier below the local messages ---- */
/* tieredStorageLevel, as upstream has it: which reads go there although the message is here. */
#define PS_TIER_DISABLE 0
#define PS_TIER_NOT_IN_DISK 1
#define PS_TIER_NOT_IN_MEM 2
#define PS_TIER_FORCE 3
/* Physical offsets from here on are places in the tier: no log is so long. */
#define PS_TIER_PLACE 4611686018427387904
#define PS_TIER_WANTS 256
#define PS_TIER_WHY 256

typedef struct ps_tier_want { /* what a read lacks */
    const char *topic;        /* for as long as the store */
    int32_t topic_len, queue_id;
    int64_t offset;    /* of the queue */
    int64_t low, high; /* high > 0: records within these bytes of the queue's log; 0: units */
    int32_t count;     /* of the units that lead there, from offset on */
    int32_t reads_on;  /* 1: what lies before it was lent lately */
} ps_tier_want;

/* What of the tier is used, and how many bytes are lent at most. fd: an eventfd that is told of
 * wants, -1 none. */
void ps_tier_set(ps_store *store, int32_t level, int64_t room, int fd);
/* Whether it is known what the tier has; at first it is. While it is not, nothing says that older
 * messages, or those that are damaged here, are gone: reads of them say PS_GET_TIER_BUSY. */
void ps_tier_known(ps_store *store, int32_t known);
/* Offsets [first, end) of the queue are in the tier from now on; first == end: none are. Reads
 * below the local messages, and of what is damaged here, go there. PS_E_NO_MEMORY, PS_E_CLOSED. */
int ps_tier_begins(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t first, int64_t end,
                   ps_error *error);
/* min and max offset of a queue, the tier's included; PS_E_NOT_FOUND when there is none. */
int ps_queue_span(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t *min_offset,
                  int64_t *max_offset);
/* Takes the oldest want: 1, or 0: there is none. */
int ps_tier_wants(ps_store *store, ps_tier_want *out);
/* Lends units of a queue, and the records that they lead to, unless len is 0; all of it is copied.
 * place: what is added to places in the queue's log, from PS_TIER_PLACE on. Returns how many
 * records are damaged: then nothing is lent, or, anyway, readers pass over them; PS_E_NO_MEMORY,
 * PS_E_CLOSED. */
int ps_tier_lend(ps_store *store, ps_topic *topic, const ps_excerpt *excerpt, int64_t place,
                 int32_t anyway, ps_error *error);
/* The tier has nothing of offsets [first, end). */
int ps_tier_hole(ps_store *store, ps_topic *topic, int32_t queue_id, int64_t first, int64_t end,
                 ps_error *error);
/* What was wanted does not come yet: why, for answers. What is here is read here for so long. */
void ps_tier_failed(ps_store *store, const char *why, int64_t for_ms);
/* Whoever waits for something of the queue asks for it again. */
void ps_tier_again(ps_store *store, ps_topic *topic, int32_t queue_id);

/* Pid of the process that holds the lock of the store at `root`, 0 when none does, -1 when one does
 * that nobody names. Opens nothing for writing. io NULL: the system's. */
int64_t ps_lock_holder(ps_io *io, const char *root);
/* First byte of a segment of `size` bytes in the log, by what the records at its start say of their
 * own places; PS_E_NOT_FOUND when none does. PS_E_IO, PS_E_FORBIDDEN, PS_E_NO_MEMORY. io NULL: the
 * system's. */
int64_t ps_log_base_of(ps_io *io, const char *path, int64_t size, ps_error *error);
/* Number, from `from` on, of a segment whose records belong at another place of the log (*belongs)
 * than its name says, -1: none. What another segment has in its right place is a copy in the wrong
 * one, which is damage; so is a file that cannot be read. bases: as the names say. */
int32_t ps_log_misnamed(ps_io *io, const char *const *paths, const int64_t *bases, int32_t count,
                        int64_t size, int32_t from, int64_t *belongs);

/* ---- retention ---- */
typedef struct ps_retention_report {
    int32_t log_files, queue_files, index_files; /* deleted */
    int64_t bytes;
    int64_t log_min;
    int32_t disk_percent;
    int32_t disk_full;
    int32_t why; /* 0 nothing to do, 1 hour, 2 ratio, 3 forced by ratio, 4 asked for */
} ps_retention_report;
/* One round of retention (docs/internals/format.md#retention) as of now_ms (0: the clock). manual
 * 1: expired files at any hour; immediate 1: the oldest ones although not expired. dry_run 1: only
 * counts. */
int ps_store_clean(ps_store *store, int64_t now_ms, int32_t manual, int32_t immediate,
                   int32_t dry_run, ps_retention_report *out, ps_error *error);
/* on 0: retention runs only when it is asked to, until it is on again, as it is at first. */
void ps_store_clean_by_itself(ps_store *store, int32_t on);
/* A cold tier has every message below `end` that it is to have, so that a segment may go which ends
 * there; lets_go 1: others, too, where the disk is fuller than diskSpaceCleanForciblyRatio.
 * INT64_MAX, as at first: there is no tier. */
void ps_store_out_to(ps_store *store, int64_t end, int32_t lets_go);
/* From the next round on retention follows these rules; of the rest of conf nothing is taken. */
int ps_store_retain(ps_store *store, const ps_conf *rules, ps_error *error);

/* ---- Arrow ---- */
#define PS_COL_TOPIC 0                        /* utf8 */
#define PS_COL_BROKER_NAME 1                  /* utf8 */
#define PS_COL_QUEUE_ID 2                     /* int32 */
#define PS_COL_QUEUE_OFFSET 3                 /* int64 */
#define PS_COL_BODY 4                         /* binary */
#define PS_COL_TAGS 5                         /* utf8, nullable */
#define PS_COL_KEYS 6                         /* utf8, nullable */
#define PS_COL_PROPERTIES 7                   /* map<utf8, utf8> */
#define PS_COL_PROPERTIES_JSON 8              /* utf8 */
#define PS_COL_FLAG 9                         /* int32 */
#define PS_COL_BORN_TIMESTAMP 10              /* timestamp us, UTC */
#define PS_COL_STORE_TIMESTAMP 11             /* timestamp us, UTC */
#define PS_COL_SYS_FLAG 12                    /* int32 */
#define PS_COL_BORN_HOST 13                   /* utf8, address:port */
#define PS_COL_STORE_HOST 14                  /* utf8 */
#define PS_COL_RECONSUME_TIMES 15             /* int32 */
#define PS_COL_BODY_CRC 16                    /* int32 */
#define PS_COL_STORE_SIZE 17                  /* int32 */
#define PS_COL_COMMIT_LOG_OFFSET 18           /* int64 */
#define PS_COL_MSG_ID 19                      /* utf8 */
#define PS_COL_PREPARED_TRANSACTION_OFFSET 20 /* int64 */
#define PS_COL_ENVELOPE 21                   /* binary, the record without its body */
#define PS_COL_LITE_TOPIC 22                 /* utf8, nullable */
#define PS_COL_COUNT 23

/* Inflates a compressed body: writes up to `room` bytes to out, returns the full length (call again
 * with more room when it is larger), or -1 when the bytes are bad. type: bits 8 to 10 of
 * sysFlag. */
typedef int64_t (*ps_inflate)(void *arg, int32_t type, const uint8_t *in, int64_t len, uint8_t *out,
                              int64_t room);

/* Records that are given: whole ones, one after the other and of any queues. */
typedef struct ps_given {
    const uint8_t *records;
    ps_mapfile *file; /* where they lie, if that is of ps_file_map */
    /* The CRC-32 of each `block` bytes of them, and of the rest, big-endian: a row's bytes are
     * looked at by these before it is read. NULL: they are believed. name: theirs, for errors. */
    const uint8_t *sums;
    int64_t block;
    const char *name;
} ps_given;

/* Gives the next records, which stay where they are until it is called again, in *out, which is
 * zeros. Returns their bytes; 0: there are no more; -1: they do not come, for the reason that it
 * writes to `why`, with a zero byte. out NULL: the stream was released, and this call is the
 * last. */
typedef int64_t (*ps_more_records)(void *arg, ps_given *out, char *why, int64_t room);

typedef struct ps_scan {
    int32_t column_count;
    int32_t columns[32];  /* PS_COL_ */
    int32_t nullable[32]; /* whether the schema says so */
    ps_topic *topic;      /* a queue range; NULL: a log range */
    int32_t queue_id;
    int64_t from_at, to_at; /* queue offsets, or physical offsets; [from_at, to_at) */
    int64_t store_time_min, store_time_max; /* ms, both inclusive; 0 and INT64_MAX: all */
    /* tags joined by 0x00, verified as text after the hash; NULL: all */
    const char *tags;
    int32_t tags_len;
    int32_t tag_count;
    ps_sql92 *sql;      /* what the properties must say; the stream keeps it; NULL: anything */
    const char *topics; /* log range: topic names joined by 0x00, NULL: all */
    int32_t topics_len;
    int32_t topic_count;
    int32_t queue_filter;   /* log range: this queue id alone, -1: all */
    int32_t batch_rows;     /* 0: 8192 */
    int64_t batch_bytes;    /* 0: 4 MiB */
    int32_t committed_only; /* log range: 1 leaves out prepared and rolled back records */
    int32_t check_crc;
    int32_t skip_damaged; /* 1: step over what cannot be read, and count it */
    const char *broker_name;
    int32_t broker_name_len;
    ps_inflate inflate; /* NULL: compressed bodies stay as they are */
    void *inflate_arg;
    /* Gives records in the place of the log: then there is not a store, topic or range. */
    ps_more_records more;
    void *more_arg;
} ps_scan;

typedef struct ps_scan_stats {
    int64_t rows, bytes, skipped, batches;
    int64_t first_skipped; /* physical offset, -1 none */
    int32_t refs;          /* kept by the two calls below */
} ps_scan_stats;
ps_scan_stats *ps_scan_stats_new(void); /* NULL: no memory */
void ps_scan_stats_free(ps_scan_stats *stats);

/* Fills *stream (struct ArrowArrayStream of the Arrow C stream interface). The spec is copied. The
 * stream holds its own references on the store (NULL with more) and on stats, so they may be
 * freed before it;
 * reading a closed store fails. stats may be NULL; it is written as the stream is read. */
int ps_scan_open(ps_store *store, const ps_scan *scan, void *arrow_array_stream,
                 ps_scan_stats *stats, ps_error *error);

/* Installs a handler for the process, once; opening a store does it. From then on a file that
 * another process cuts off while it is mapped is an error that names it (PS_E_FILE_SIZE), where the
 * process would die of SIGBUS. Bytes of a batch that is read already are zeros after the cut
 * (ps_batch_whole). A signal that is not of such a file goes to who had the signal before. */
int ps_sigbus_install(ps_error *error);
/* A byte that lives as long as the process: not 0 once any mapped file was found to be cut off. So
 * long, ps_batch_whole need not be asked. */
const uint8_t *ps_sigbus_met(void);

/* Maps the first `size` bytes of an open file for reading, at least one, for tools; fd may be
 * closed afterwards. base: what the first byte is called. When another process cuts the file off,
 * zeros stand for what is gone. path names it in errors. NULL: PS_E_IO, PS_E_NO_MEMORY. */
ps_mapfile *ps_file_map(int fd, const char *path, int64_t base, int64_t size, ps_segment_view *out,
                        ps_error *error);
/* All of it will be read: the system then reads and keeps it in large pages, where it has such,
 * which cost a fraction of the processor time that small ones do. */
void ps_mapfile_read_whole(const ps_mapfile *file);
/* Whether all of it is in memory, most likely, so that reading it waits for no disk: a page of each
 * 256 KiB is looked for. */
int ps_mapfile_at_hand(const ps_mapfile *file);
/* Drops a reference, and with the last one the mapping. */
void ps_mapfile_unref(ps_mapfile *file);

/* ---- codec, for tools and tests ---- */
uint32_t ps_crc32(uint32_t crc, const void *data, size_t len);
const char *ps_crc32_name(void);
/* The sum of the CRCs, each masked, of `count` values: value i is data[offsets[i], offsets[i + 1]),
 * as a binary column of Arrow has them. */
uint64_t ps_crc32_sum(const uint8_t *data, const int32_t *offsets, int64_t count, uint32_t mask);
int32_t ps_java_hash(int32_t h, const uint8_t *utf8, int64_t len);
int32_t ps_key_hash(int32_t java_hash);

/* ---- checks at import ---- */
int32_t ps_abi(void);
int64_t ps_struct_size(int32_t which); /* 0 conf, 1 report, 2 info, 3 view, 4 put_result, 5 scan */
/* cdef end */

#endif
