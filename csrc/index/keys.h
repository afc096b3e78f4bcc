/* The keys under which a record is indexed, and their hashes: UNIQ_KEY, and each word of KEYS, with
 * the topic before it ("topic#key"). After them, where the index has tags, those of the record as
 * one ("topic#T#tags"), as upstream writes from 5.5.0 on. Upstream: IndexService.buildIndex,
 * buildKey. */
#ifndef PS_KEYS_H
#define PS_KEYS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "format/property.h"
#include "format/record.h"

#define IX_UNIQUE_NAME PS_PROPERTY_NAME("UNIQ_KEY")
#define IX_UNIQUE_LEN 9
#define IX_KEYS_NAME PS_PROPERTY_NAME("KEYS")
#define IX_KEYS_LEN 5

/* The keys of one record: UNIQ_KEY, then the words of KEYS, then the tags. */
typedef struct ix_keys {
    const uint8_t *unique, *words, *tags;
    int32_t unique_len, words_len, tags_len;
} ix_keys;

/* Both properties in one pass, and one search for a separator each: this runs for every record. A
 * name ends at the first separator, so that equal bytes up to one are the whole name. The last of
 * equal names wins and an empty value counts as absent, as in upstream's parser. */
static inline bool ix_keys_of(const ps_record *r, ix_keys *out) {
    const uint8_t *p = r->properties, *end = p + r->properties_len;
    *out = (ix_keys){0};
    while (end - p > IX_KEYS_LEN) {
        const uint8_t *stop = memchr(p, PS_PROPERTY_SEPARATOR, (size_t)(end - p));
        if (stop == NULL) stop = end;
        if (stop - p > IX_UNIQUE_LEN && memcmp(p, IX_UNIQUE_NAME, IX_UNIQUE_LEN) == 0) {
            out->unique = p + IX_UNIQUE_LEN;
            out->unique_len = (int32_t)(stop - out->unique);
        } else if (stop - p > IX_KEYS_LEN && memcmp(p, IX_KEYS_NAME, IX_KEYS_LEN) == 0) {
            out->words = p + IX_KEYS_LEN;
            out->words_len = (int32_t)(stop - out->words);
        }
        p = stop < end ? stop + 1 : end;
    }
    return out->unique_len > 0 || out->words_len > 0;
}

/* The keys under which a record is indexed: none of one that was rolled back. tags: its tags, too.
 * False: there are none. */
static inline bool ix_record_keys(const ps_record *r, bool tags, ix_keys *out) {
    ps_property p;
    if ((r->sys_flag & PS_SYS_TX_MASK) == PS_SYS_TX_ROLLBACK) return false;
    bool any = ix_keys_of(r, out);
    if (!tags || !ps_property_find(r->properties, r->properties_len, "TAGS", 4, &p)) return any;
    out->tags = p.value;
    out->tags_len = p.value_len;
    return true;
}

/* Takes the next of UNIQ_KEY and KEYS off; false when there are no more. */
static inline bool ix_word_next(ix_keys *k, const uint8_t **key, int32_t *len) {
    if (k->unique_len > 0) {
        *key = k->unique;
        *len = k->unique_len;
        k->unique_len = 0;
        return true;
    }
    while (k->words_len > 0) {
        const uint8_t *end = memchr(k->words, ' ', (size_t)k->words_len);
        *key = k->words;
        *len = end != NULL ? (int32_t)(end - k->words) : k->words_len;
        int32_t taken = end != NULL ? *len + 1 : *len;
        k->words += taken;
        k->words_len -= taken;
        if (*len > 0) return true;
    }
    return false;
}


static inline int32_t ix_key_hash(int32_t topic_hash, const uint8_t *key, int32_t len) {
    return ps_key_hash(ps_java_hash(topic_hash, key, len));
}

/* The hash of the record's tags as one, or of those that are asked for. */
static inline int32_t ix_tags_hash(int32_t topic_hash, const uint8_t *tags, int32_t len) {
    return ix_key_hash(ps_java_hash(topic_hash, (const uint8_t *)"T#", 2), tags, len);
}

/* Takes the next key off, by its hash; false when there are no more. */
static inline bool ix_key_next(ix_keys *k, int32_t topic_hash, int32_t *hash) {
    const uint8_t *key;
    int32_t len;
    if (ix_word_next(k, &key, &len)) {
        *hash = ix_key_hash(topic_hash, key, len);
        return true;
    }
    if (k->tags_len == 0) return false;
    *hash = ix_tags_hash(topic_hash, k->tags, k->tags_len);
    k->tags_len = 0;
    return true;
}

static inline int32_t ix_keys_count(ix_keys k) {
    const uint8_t *key;
    int32_t len, count = k.tags_len > 0;
    while (ix_word_next(&k, &key, &len)) count++;
    return count;
}

static inline int32_t ix_topic_hash(const uint8_t *topic, int32_t len) {
    return ps_java_hash(ps_java_hash(0, topic, len), (const uint8_t *)"#", 1);
}

/* The topic last seen, and its hash: records of one topic often follow each other. */
typedef struct ix_topic {
    int32_t to_len, to_hash;
    uint8_t to_name[PS_TOPIC_MAX];
} ix_topic;

static inline int32_t ix_topic_hash_cached(ix_topic *t, const ps_record *r) {
    if (r->topic_len == t->to_len && memcmp(r->topic, t->to_name, (size_t)t->to_len) == 0)
        return t->to_hash;
    int32_t hash = ix_topic_hash(r->topic, r->topic_len);
    if (r->topic_len <= PS_TOPIC_MAX) {
        memcpy(t->to_name, r->topic, (size_t)r->topic_len);
        t->to_len = r->topic_len;
        t->to_hash = hash;
    }
    return hash;
}

/* Whether an entry of the record with this hash is that of its tags: 1; 0, it is not; -1, the
 * record has none. */
static inline int ix_tells_of_tags(const ps_record *r, int32_t hash) {
    ps_property p;
    if (!ps_property_find(r->properties, r->properties_len, "TAGS", 4, &p)) return -1;
    return hash == ix_tags_hash(ix_topic_hash(r->topic, r->topic_len), p.value, p.value_len);
}

#endif
