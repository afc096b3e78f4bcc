/* Files of our own in a store's root, which upstream does not look at. Each begins with
 *
 *   offset width name            meaning
 *        0   i32 -               magic: PS_NOTE_ of its kind
 *        4   i32 -               CRC-32 of all that follows
 *        8       PS_NOTE_HEAD    what its kind holds
 *
 * Written and read here for C, and for Python by way of cffi (pystore/files/notes.py). */
#ifndef PS_NOTES_H
#define PS_NOTES_H

#include <stdint.h>

/* cdef begin */
#define PS_NOTE_HEAD 8
#define PS_NOTE_TOMBSTONES 0x50534431 /* "PSD1", deletedTopics: csrc/store/tombstones.c */
#define PS_NOTE_ENDS 0x50534531       /* "PSE1", queueEnds: csrc/store/ends.c */
#define PS_NOTE_TIMERS 0x50535432     /* "PST2", timers/state: csrc/timers/pending.c */
#define PS_NOTE_TIMERS_OLD 0x50535431 /* "PST1", which is not read any more */

/* 1: the bytes are a note of this kind, whole. */
int32_t ps_note_good(const uint8_t *p, int64_t len, uint32_t magic);
/* Writes the head of a note whose other bytes are there. */
void ps_note_seal(uint8_t *p, int64_t len, uint32_t magic);

/* One entry of deletedTopics: i64 below, i32 length of the topic's name, then the name. */
#define PS_TOMBSTONE_FIXED 12
typedef struct ps_tombstone {
    int64_t below; /* what lies before it in the log belongs to the topic's earlier life */
    int64_t name_at; /* byte of the note */
    int32_t name_len;
} ps_tombstone;

/* The entry at *at, PS_NOTE_HEAD at first: 1 and *at moved on, 0 at the end, -1 when malformed. */
int32_t ps_tombstone_next(const uint8_t *p, int64_t len, int64_t *at, ps_tombstone *out);
/* Writes one; returns its bytes. */
int64_t ps_tombstone_put(uint8_t *to, int64_t below, const char *name, int32_t len);

/* Where the entries of queueEnds begin. One is: i64 first, i64 end, i64 physical, i32 queue id,
 * i32 length of the topic's name, then the name. */
#define PS_NOTED_ENDS 48
#define PS_NOTED_END_FIXED 32
typedef struct ps_noted_end {
    int64_t first;    /* offset of the queue's first file */
    int64_t end;      /* offset up to which its units are on the disk */
    int64_t physical; /* end of the last record of those, -1 unknown */
    int64_t name_at;  /* byte of the note */
    int32_t queue, name_len;
} ps_noted_end;

/* The entry at *at, PS_NOTED_ENDS at first: as ps_tombstone_next. */
int32_t ps_noted_end_next(const uint8_t *p, int64_t len, int64_t *at, ps_noted_end *out);
/* Writes one, but for name_at, which it does not look at; returns its bytes. */
int64_t ps_noted_end_put(uint8_t *to, const ps_noted_end *end, const char *name);
/* cdef end */

#endif
