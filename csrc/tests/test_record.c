/* The record codec: the vectors of the format, round trips, and hostile bytes. Inputs to decoders
 * lie right before a page that may not be touched: a read of one byte too many ends the test. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc.h"
#include "base/error.h"
#include "format/record.h"
#include "check.h"

enum { MIB_4 = 4 << 20, ROOM = 1 << 17 };

static uint8_t *fence; /* ROOM bytes end here, and then no byte may be read or written */

#define TEXT(s) (const uint8_t *)(s), (int64_t)sizeof(s) - 1

static void fence_make(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, ROOM + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map, ROOM, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    fence = map + ROOM;
}

/* ---- vectors ---- */

static const char VECTOR[] =
    "0000006c daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000 "
    "0000018bcfe56800 0a00000100009c40 0000018bcfe5687b 0a00000200002a9f 00000000 0000000000000000 "
    "00000005 68656c6c6f 02 5431 000a 54414753 01 54616741 02";

static const uint8_t BORN[8] = {10, 0, 0, 1, 0, 0, 0x9C, 0x40};
static const uint8_t STORE[8] = {10, 0, 0, 2, 0, 0, 0x2A, 0x9F};

static ps_draft vector_draft(void) {
    ps_draft d = {0};
    d.body = (const uint8_t *)"hello";
    d.body_len = 5;
    d.topic = (const uint8_t *)"T1";
    d.topic_len = 2;
    d.tags = (const uint8_t *)"TagA";
    d.tags_len = 4;
    d.queue_id = 3;
    d.born_timestamp = 1700000000000;
    d.born_host = BORN;
    d.store_host = STORE;
    d.born_host_len = d.store_host_len = 8;
    d.long_topic_v2 = true;
    return d;
}

static void test_vector(void) {
    uint8_t want[128], got[128];
    const char *why = "";
    int64_t len = check_unhex(VECTOR, want);
    ps_draft d = vector_draft();
    CHECKF(len == 108, "%" PRId64, len);
    CHECKF(ps_draft_measure(&d, MIB_4, &why) == 0, "%s", why);
    CHECKF(d.size == 108 && !d.v2 && d.properties_total == 10, "size %d", d.size);
    ps_draft_write(&d, got, 7, 0, 1700000000123);
    CHECKF(memcmp(got, want, 108) == 0, "the record differs from the format's example");

    ps_record r;
    int all = PS_CHECK_BODY_CRC | PS_CHECK_PROP_IF;
    CHECKF(ps_record_check(want, 108, 0, all, &r) == PS_REC_OK, "the example must be valid");
    CHECKF(r.queue_id == 3 && r.queue_offset == 7 && r.physical_offset == 0, "place");
    CHECKF(r.born_timestamp == 1700000000000 && r.store_timestamp == 1700000000123, "times");
    CHECKF(r.topic_len == 2 && memcmp(r.topic, "T1", 2) == 0, "topic");
    CHECKF(r.body_len == 5 && memcmp(r.body, "hello", 5) == 0, "body");
    CHECKF(ps_record_tags_code(&r, NULL) == 0x27A807, "tags code");
    CHECKF(ps_record_check(want, 108, 1, all, &r) == PS_REC_PLACE, "it does not stand at 1");
    CHECKF(ps_record_check(want, 108, 0, PS_CHECK_PROP_CRC, &r) == PS_REC_CRC, "it has none");
    char id[57];
    CHECKF(ps_offset_msg_id(r.store_host, 8, 0, id) == 32, "length of the id");
    CHECKF(strcmp(id, "0A00000200002A9F0000000000000000") == 0, "%s", id);
    got[90] ^= 0x20;
    CHECKF(ps_record_check(got, 108, 0, all, &r) != PS_REC_OK, "a changed body must be seen");
    CHECKF(ps_record_check(got, 108, 0, 0, &r) == PS_REC_OK, "unless nobody asks");
}

static int32_t hash(const char *text) {
    return ps_java_hash(0, (const uint8_t *)text, (int64_t)strlen(text));
}

static void test_hashes(void) {
    CHECKF(hash("") == 0, "nothing");
    CHECKF(hash("TagA") == 2598919 && hash("TagB") == 2598920, "ASCII");
    CHECKF(hash("polygenelubricants") == INT32_MIN, "the smallest value");
    CHECKF(hash("\xE6\xA8\x99\xE7\xB1\xA4") == 873835, "three-byte characters");
    CHECKF(hash("\xF0\x9F\x98\x80") == 1772899, "a surrogate pair counts twice");
    CHECKF(ps_java_hash(hash("OrderTopic#"), TEXT("K1001")) == 1448203977, "it continues");
    CHECKF(ps_key_hash(hash("OrderTopic#K1001")) == 1448203977, "positive ones stay");
    CHECKF(ps_key_hash(INT32_MIN) == 0 && ps_key_hash(-5) == 5, "absolute value");
    /* What Java 17 makes of ill-formed bytes: the count of U+FFFD differs from case to case. */
    CHECKF(hash("\xED\xA0\x80") == 0xFFFD, "an encoded surrogate is one");
    CHECKF(hash("\xE0\x80\x80") == (int32_t)(0xFFFDu * (961 + 31 + 1)), "an overlong one is three");
    CHECKF(hash("\xE4\xB8") == 0xFFFD, "a cut character is one");
    CHECKF(hash("\xF0\x90\x80" "A") == (int32_t)(0xFFFDu * 31 + 'A'), "a broken off one too");
    CHECKF(hash("\xFF\xC0") == (int32_t)(0xFFFDu * 32), "bytes that are never right are one each");
}

/* ---- encoding ---- */

static void test_limits(void) {
    static uint8_t big[MIB_4 + 1];
    const char *why = NULL;
#define REFUSED(change, code)                                                                  \
    do {                                                                                       \
        ps_draft d = vector_draft();                                                           \
        change;                                                                                \
        why = NULL;                                                                            \
        int is = ps_draft_measure(&d, MIB_4, &why);                                            \
        CHECKF(is == (code), "got %d", is);                                                     \
        CHECKF((is == 0) == (why == NULL), "a refusal says why");                               \
    } while (0)
    uint8_t long_topic[300];
    memset(long_topic, 't', sizeof long_topic);
    REFUSED(d.body = NULL, PS_E_MESSAGE_ILLEGAL);
    REFUSED(d.body_len = 0, 0);
    REFUSED(d.body_len = -1, PS_E_ARGUMENT);
    REFUSED((d.body = big, d.body_len = MIB_4), 0);
    REFUSED((d.body = big, d.body_len = MIB_4 + 1), PS_E_MESSAGE_ILLEGAL);
    REFUSED(d.topic_len = 0, PS_E_TOPIC_ILLEGAL);
    REFUSED((d.topic = long_topic, d.topic_len = 128), 0);
    REFUSED((d.topic = long_topic, d.topic_len = 256), PS_E_TOPIC_ILLEGAL);
    REFUSED((d.topic = long_topic, d.topic_len = 128, d.long_topic_v2 = 0), PS_E_TOPIC_ILLEGAL);
    REFUSED(d.born_host_len = 7, PS_E_ARGUMENT);
    REFUSED(d.tags = (const uint8_t *)"a\001bc", PS_E_PROPERTIES_ILLEGAL);
    REFUSED((d.keys = (const uint8_t *)"ab\002", d.keys_len = 3), PS_E_PROPERTIES_ILLEGAL);
    REFUSED((d.tags = big, d.tags_len = 32767 - 6), 0);
    REFUSED((d.tags = big, d.tags_len = 32767 - 5), PS_E_PROPERTIES_SIZE_EXCEEDED);
    REFUSED((d.tags = big, d.tags_len = 32767 - 6, d.prop_crc = 1), PS_E_PROPERTIES_SIZE_EXCEEDED);
    REFUSED(d.keys_len = INT64_MAX, 0); /* keys is NULL: no keys at all */
    REFUSED((d.keys = big, d.keys_len = INT64_MAX), PS_E_PROPERTIES_SIZE_EXCEEDED);
#undef REFUSED
}

static void test_encoded_properties(void) {
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        {"a\001b\002", 0},
        {"a\001b", 0},
        {"a\001\002", 0},
        {"a\001", 0},
        {"a\001b\002c\001d\002", 0},
        {"\001b\002", PS_E_PROPERTIES_ILLEGAL},
        {"a", PS_E_PROPERTIES_ILLEGAL},
        {"a\002", PS_E_PROPERTIES_ILLEGAL},
        {"\002", PS_E_PROPERTIES_ILLEGAL},
        {"a\001b\002\002", PS_E_PROPERTIES_ILLEGAL},
        {"a\001b\001c\002", PS_E_PROPERTIES_ILLEGAL},
        {"a\001b\002c", PS_E_PROPERTIES_ILLEGAL},
        {"a\001b\002\001d\002", PS_E_PROPERTIES_ILLEGAL},
        {"long_name_1\001long value\002long_name_2\001another long value", 0},
        {"long_name_1\001long value\002long_name_2\001another \001long", PS_E_PROPERTIES_ILLEGAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why = "";
        size_t len = strlen(cases[i].text);
        ps_draft d = vector_draft();
        d.extra = memcpy(fence - len, cases[i].text, len);
        d.extra_len = (int64_t)len;
        int is = ps_draft_measure(&d, MIB_4, &why);
        CHECKF(is == cases[i].code, "case %zu: %d %s", i, is, why);
    }
}

static void test_composition(void) {
    uint8_t out[512];
    const char *why = "";
    static const char want[] = "TAGS\001TagA\002KEYS\001k1 k2\002a\001b\002c\001d\002";
    ps_draft d = vector_draft();
    d.keys = (const uint8_t *)"k1 k2";
    d.keys_len = 5;
    d.properties = (const uint8_t *)"a\001b";
    d.properties_len = 3;
    d.extra = (const uint8_t *)"c\001d\002";
    d.extra_len = 4;
    d.prop_crc = true;
    CHECKF(ps_draft_measure(&d, MIB_4, &why) == 0, "%s", why);
    ps_draft_write(&d, out, 1, 4096, 3);
    ps_record r;
    int32_t text_len = (int32_t)sizeof want - 1;
    CHECKF(ps_record_check(out, d.size, 4096, PS_CHECK_PROP_CRC, &r) == PS_REC_OK, "valid");
    CHECKF(r.properties_len == text_len + PS_PROP_CRC_LEN, "%d", r.properties_len);
    CHECKF(memcmp(r.properties, want, (size_t)text_len) == 0, "tags, keys, properties, extra");
    /* The digits as the format tells it: padded with zeros at the left, then turned around. */
    char digits[11], turned[11];
    uint32_t crc = ps_crc32(0, out, (size_t)d.size - 20) & 0x7FFFFFFF;
    snprintf(digits, sizeof digits, "%010" PRIu32, crc);
    for (int i = 0; i < 10; i++) turned[i] = digits[9 - i];
    const uint8_t *at = out + d.size - 20;
    CHECKF(memcmp(at, "__CRC32#\001", 9) == 0 && at[19] == 2, "name and separators");
    CHECKF(memcmp(at + 9, turned, 10) == 0, "%.10s, not %.10s", at + 9, turned);
    out[20] ^= 1; /* a field that the body CRC does not cover */
    CHECKF(ps_record_check(out, d.size, -1, PS_CHECK_BODY_CRC, &r) == PS_REC_OK, "not seen");
    CHECKF(ps_record_check(out, d.size, -1, PS_CHECK_PROP_IF, &r) == PS_REC_CRC, "seen");
}

/* ---- properties ---- */

static void test_property_parsing(void) {
    static const char text[] =
        "\002x\002=\001\002\001v\002k\001v\002k\001w\001z\002kk\001y\002k\001";
    int32_t len = (int32_t)sizeof text - 1, at = 0, count = 0;
    const uint8_t *props = memcpy(fence - len, text, (size_t)len);
    ps_property p;
    static const char *names[] = {"k", "k", "kk"}, *values[] = {"v", "w\001z", "y"};
    while (ps_property_next(props, len, &at, &p)) {
        CHECKF(count < 3, "upstream's parser drops the others");
        if (count == 3) break;
        CHECKF(p.name_len == (int32_t)strlen(names[count]) &&
                  memcmp(p.name, names[count], (size_t)p.name_len) == 0, "name %d", count);
        CHECKF(p.value_len == (int32_t)strlen(values[count]) &&
                  memcmp(p.value, values[count], (size_t)p.value_len) == 0, "value %d", count);
        count++;
    }
    CHECKF(count == 3, "%d", count);
    CHECKF(ps_property_find(props, len, "k", 1, &p) && p.value_len == 3, "the last of equal names");
    CHECKF(ps_property_find(props, len, "kk", 2, &p) && p.value[0] == 'y', "a name and its prefix");
    CHECKF(!ps_property_find(props, len, "=", 1, &p), "an empty value is none");
    CHECKF(!ps_property_find(props, len, "kkk", 3, &p), "nothing of that name");
    CHECKF(!ps_property_find(NULL, 0, "k", 1, &p), "no properties");
}

static int64_t schedule_code(const char *topic, const char *properties, const ps_levels *levels) {
    ps_record r = {0};
    r.topic = (const uint8_t *)topic;
    r.topic_len = (int32_t)strlen(topic);
    r.properties = (const uint8_t *)properties;
    r.properties_len = (int32_t)strlen(properties);
    r.store_timestamp = 1000000;
    return ps_record_tags_code(&r, levels);
}

static void test_tags_code(void) {
    ps_levels levels = {3, {1000, 5000, 10000}};
    const char *topic = "SCHEDULE_TOPIC_XXXX", *other = "SCHEDULE_TOPIC_XXX";
    const char *two = "TAGS\001TagA\002DELAY\0012\002";
    CHECKF(schedule_code(topic, two, &levels) == 1005000, "deliver time of level 2");
    CHECKF(schedule_code(topic, "DELAY\00199", &levels) == 1010000, "clamped to the last level");
    CHECKF(schedule_code(topic, "TAGS\001TagA\002DELAY\0010", &levels) == 2598919, "level 0: tag");
    CHECKF(schedule_code(topic, "TAGS\001TagA\002DELAY\001x", &levels) == 2598919, "no number");
    CHECKF(schedule_code(topic, "DELAY\0019999999999", &levels) == 0, "too large for Java's int");
    CHECKF(schedule_code(topic, "DELAY\001-2147483648", &levels) == 0, "negative");
    CHECKF(schedule_code(other, two, &levels) == 2598919, "any other topic: the tag");
    CHECKF(schedule_code(other, "TAGS\001\002", &levels) == 0, "empty tags");
    CHECKF(schedule_code(other, "TAGS\001polygenelubricants", NULL) == INT32_MIN, "sign-extended");
}

/* ---- random records ---- */

static void fill(uint8_t *p, int64_t len, bool separators) {
    for (int64_t i = 0; i < len; i++) {
        p[i] = (uint8_t)check_random();
        if (!separators && (p[i] == 1 || p[i] == 2)) p[i] = 'x';
    }
}

/* Writes a random record right before the fence and returns it. */
static uint8_t *random_record(ps_draft *d, int64_t *place) {
    static uint8_t body[4096], topic[255], tags[300], keys[300], hosts[40];
    const char *why = "";
    fill(body, sizeof body, true);
    fill(topic, sizeof topic, true);
    fill(tags, sizeof tags, false);
    fill(keys, sizeof keys, false);
    fill(hosts, sizeof hosts, true);
    *d = (ps_draft){0};
    d->body = body;
    d->body_len = check_below(check_random() % 3 ? 200 : (int64_t)sizeof body);
    d->topic = topic;
    d->topic_len = (int32_t)(1 + (check_random() % 4 ? check_random() % 40 : check_random() % 255));
    if (check_random() % 2) d->tags = tags;
    d->tags_len = (int64_t)(check_random() % sizeof tags);
    if (check_random() % 2) d->keys = keys;
    d->keys_len = (int64_t)(check_random() % sizeof keys);
    if (check_random() % 2) d->properties = (const uint8_t *)"UNIQ_KEY\001ABC\002WAIT\001true\002";
    d->properties_len = check_random() % 2 ? 13 : 23;
    if (check_random() % 2) d->extra = (const uint8_t *)"CLUSTER\001c";
    d->extra_len = 9;
    d->queue_id = (int32_t)check_random();
    d->flag = (int32_t)check_random();
    d->sys_flag = (int32_t)check_random();
    d->reconsume_times = (int32_t)check_random();
    d->born_timestamp = (int64_t)check_random();
    d->prepared_transaction_offset = (int64_t)check_random();
    d->born_host = hosts;
    d->store_host = hosts + 20;
    d->born_host_len = check_random() % 2 ? 8 : 20;
    d->store_host_len = check_random() % 2 ? 8 : 20;
    d->prop_crc = check_random() % 2;
    d->long_topic_v2 = true;
    *place = (int64_t)(check_random() >> 1);
    int code = ps_draft_measure(d, MIB_4, &why);
    CHECKF(code == 0, "%s", why);
    uint8_t *p = fence - d->size;
    ps_draft_write(d, p, *place + 1, *place, *place + 2);
    return p;
}

static void test_round_trips(void) {
    for (int round = 0; round < 3000; round++) {
        ps_draft d;
        ps_record r;
        ps_property found;
        int64_t place;
        uint8_t *p = random_record(&d, &place);
        int checks = PS_CHECK_BODY_CRC | (d.prop_crc ? PS_CHECK_PROP_CRC : PS_CHECK_PROP_IF);
        ps_rec_outcome o = ps_record_check(p, d.size, place, checks, &r);
        CHECKF(o == PS_REC_OK, "round %d: %s", round, ps_rec_outcome_name(o));
        if (o != PS_REC_OK) continue;
        int v6 = PS_SYS_BORN_V6 | PS_SYS_STORE_V6;
        CHECKF((r.sys_flag & ~v6) == (d.sys_flag & ~v6), "system flag");
        CHECKF((r.magic == PS_MAGIC_V2) == (d.topic_len > 127), "V2 for long topics alone");
        CHECKF(r.size == d.size && r.queue_offset == place + 1 && r.store_timestamp == place + 2 &&
                  r.queue_id == d.queue_id && r.flag == d.flag && r.body_crc == d.body_crc &&
                  r.born_timestamp == d.born_timestamp && r.reconsume_times == d.reconsume_times &&
                  r.prepared_transaction_offset == d.prepared_transaction_offset, "numbers");
        CHECKF(r.born_host_len == d.born_host_len && r.store_host_len == d.store_host_len &&
                  memcmp(r.born_host, d.born_host, (size_t)d.born_host_len) == 0 &&
                  memcmp(r.store_host, d.store_host, (size_t)d.store_host_len) == 0, "hosts");
        CHECKF(r.body_len == d.body_len && memcmp(r.body, d.body, (size_t)d.body_len) == 0, "body");
        CHECKF(r.topic_len == d.topic_len && memcmp(r.topic, d.topic, (size_t)d.topic_len) == 0,
              "topic");
        bool has = ps_property_find(r.properties, r.properties_len, "TAGS", 4, &found);
        CHECKF(has == (d.tags_len > 0), "tags");
        CHECKF(!has || (found.value_len == d.tags_len &&
                       memcmp(found.value, d.tags, (size_t)d.tags_len) == 0), "tags");
        CHECKF(ps_property_find(r.properties, r.properties_len, "CLUSTER", 7, &found) ==
                  (d.extra != NULL), "extra");
    }
}

/* Everything a decoded record points to must lie within it. */
static void inside(const ps_record *r, int64_t avail) {
    const uint8_t *end = r->start + r->size;
    ps_property found;
    int32_t at = 0;
    CHECKF(r->size <= avail, "size %d of %" PRId64, r->size, avail);
    CHECKF(r->body_len >= 0 && r->topic_len >= 0 && r->properties_len >= 0, "lengths");
    CHECKF(r->properties + r->properties_len == end, "properties end the record");
    CHECKF(r->body + r->body_len < r->topic && r->topic + r->topic_len < r->properties, "order");
    while (ps_property_next(r->properties, r->properties_len, &at, &found)) {
        CHECKF(found.value + found.value_len <= end, "a property");
    }
    ps_record_tags_code(r, NULL);
}

static void test_truncated(void) {
    for (int round = 0; round < 40; round++) {
        ps_draft d;
        ps_record r;
        int64_t place;
        uint8_t *whole = random_record(&d, &place);
        static uint8_t copy[ROOM];
        int32_t size = d.size;
        memcpy(copy, whole, (size_t)size);
        for (int32_t len = 0; len < size; len++) {
            uint8_t *p = memcpy(fence - len, copy, (size_t)len);
            CHECKF(ps_record_check(p, len, -1, PS_CHECK_BODY_CRC, &r) == PS_REC_SHORT, "%d", len);
            /* The same with a size that says it is all there. */
            if (len >= 4) be32_put(p, (uint32_t)len);
            ps_rec_outcome o = ps_record_check(p, len, -1, PS_CHECK_BODY_CRC, &r);
            CHECKF(o == (len < 8 ? PS_REC_SHORT : PS_REC_SIZE), "%d: %d", len, o);
            CHECKF(len < 8 || r.size == len, "%d", r.size);
        }
    }
}

static void test_flipped(void) {
    int accepted = 0;
    for (int round = 0; round < 60000; round++) {
        ps_draft d;
        ps_record r;
        int64_t place;
        static uint8_t copy[ROOM];
        if (round % 100 == 0) {
            const uint8_t *whole = random_record(&d, &place);
            memcpy(copy, whole, (size_t)d.size);
            be32_put(copy + ROOM - 4, (uint32_t)d.size);
        }
        int32_t size = (int32_t)be32_get(copy + ROOM - 4);
        uint8_t *p = memcpy(fence - size, copy, (size_t)size);
        int flips = 1 + (int)(check_random() % 3);
        for (int i = 0; i < flips; i++) {
            int64_t at = check_below(check_random() % 2 ? 92 : size);
            p[at] ^= (uint8_t)(1u << check_random() % 8);
        }
        for (int checks = 0; checks < 8; checks++) {
            if (ps_record_check(p, size, -1, checks, &r) != PS_REC_OK) continue;
            inside(&r, size);
            accepted++;
        }
    }
    CHECKF(accepted > 0, "some flips leave the sizes alone");
}

static void test_noise(void) {
    for (int round = 0; round < 200000; round++) {
        int32_t len = (int32_t)(check_random() % 300);
        uint8_t *p = fence - len;
        ps_record r;
        fill(p, len, true);
        if (len >= 40) {
            be32_put(p, (uint32_t)(check_random() % 2 ? len : (int32_t)check_random()));
            be32_put(p + 4, check_random() % 2 ? PS_MAGIC_V1 : PS_MAGIC_V2);
        }
        if (len >= 130 && check_random() % 2) { /* small lengths at the places where they stand */
            be32_put(p + 84, (uint32_t)check_random() % 60);
            be32_put(p + 96, (uint32_t)check_random() % 60);
        }
        if (ps_record_check(p, len, -1, PS_CHECK_PROP_IF, &r) == PS_REC_OK) inside(&r, len);
        for (int32_t at = 0; len > 0;) {
            ps_property found;
            if (!ps_property_next(p, len, &at, &found)) break;
            CHECKF(found.value + found.value_len <= p + len && found.name >= p, "bounds");
        }
        ps_java_hash(0, p, len);
    }
}

/* ---- blanks, kinds, batches, topics ---- */

static void test_kinds(void) {
    uint8_t zeros[128] = {0}, *p = fence - 8;
    ps_record r;
    ps_blank_write(p, 123456);
    CHECKF(ps_record_decode(p, 8, &r) == PS_REC_BLANK && r.size == 123456, "only 8 bytes are read");
    CHECKF(be32_get(p) == 123456 && be32_get(p + 4) == PS_MAGIC_BLANK, "the blank's bytes");
    CHECKF(ps_record_decode(zeros, 128, &r) == PS_REC_END, "zeros");
    CHECKF(ps_record_decode(zeros, 7, &r) == PS_REC_SHORT, "seven bytes say nothing");
    be32_put(zeros + 4, PS_MAGIC_V1);
    CHECKF(ps_record_decode(zeros, 128, &r) == PS_REC_SIZE && r.size == 0, "size 0 with a magic");
    be32_put(zeros, 0x80000000u);
    CHECKF(ps_record_decode(zeros, 128, &r) == PS_REC_SIZE && r.size == INT32_MIN, "negative");
    be32_put(zeros + 4, 0);
    CHECKF(ps_record_decode(zeros, 128, &r) == PS_REC_MAGIC, "no magic");
    for (int o = PS_REC_OK; o <= PS_REC_PLACE; o++) {
        CHECKF(strcmp(ps_rec_outcome_name((ps_rec_outcome)o), "unknown") != 0, "%d", o);
    }
    CHECKF(strcmp(ps_rec_outcome_name(PS_REC_CRC), "bad crc") == 0, "the header's example");
}

static int64_t item_put(uint8_t *p, int32_t flag, const char *body, const char *properties) {
    int32_t body_len = (int32_t)strlen(body), properties_len = (int32_t)strlen(properties);
    memset(p, 0xEE, 12); /* size, magic and CRC count for nothing */
    be32_put(p + 12, (uint32_t)flag);
    be32_put(p + 16, (uint32_t)body_len);
    memcpy(p + 20, body, (size_t)body_len);
    be16_put(p + 20 + body_len, (uint16_t)properties_len);
    memcpy(p + 22 + body_len, properties, (size_t)properties_len);
    return 22 + body_len + properties_len;
}

static void test_batch(void) {
    uint8_t two[256];
    ps_batch_item item;
    int64_t first = item_put(two, 5, "one", "k\001v\002");
    int64_t len = first + item_put(two + first, -6, "", "");
    for (int64_t cut = 0; cut <= len; cut++) {
        uint8_t *p = memcpy(fence - cut, two, (size_t)cut);
        int64_t at = 0;
        int count = 0, code;
        while ((code = ps_batch_item_next(p, cut, &at, &item)) == 1) count++;
        bool whole = cut == 0 || cut == first || cut == len;
        CHECKF(code == (whole ? 0 : PS_E_MESSAGE_ILLEGAL), "cut at %" PRId64 ": %d", cut, code);
        CHECKF(count == (cut >= first) + (cut >= len), "%d items", count);
    }
    int64_t at = 0;
    CHECKF(ps_batch_item_next(two, len, &at, &item) == 1 && at == first, "the first");
    CHECKF(item.flag == 5 && item.body_len == 3 && memcmp(item.body, "one", 3) == 0, "its body");
    CHECKF(item.properties_len == 4 && memcmp(item.properties, "k\001v\002", 4) == 0, "properties");
    CHECKF(ps_batch_item_next(two, len, &at, &item) == 1 && item.flag == -6, "the second");
    static const uint32_t lengths[] = {0xFFFFFFFFu, 0x80000000u, 0x7FFFFFFFu, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        at = 0;
        be32_put(two + 16, lengths[i]);
        CHECKF(ps_batch_item_next(two, len, &at, &item) == PS_E_MESSAGE_ILLEGAL, "%08x",
               lengths[i]);
        CHECKF(at == 0, "the place stays");
    }
}

static int topic_code(const char *prefix, int64_t len) {
    uint8_t name[300];
    const char *why = NULL;
    int64_t start = (int64_t)strlen(prefix);
    memset(name, 'a', sizeof name);
    memcpy(name, prefix, (size_t)start);
    int code = ps_topic_check(name, len, &why);
    CHECKF((code == 0) == (why == NULL), "a refusal says why");
    return code;
}

static void test_topics(void) {
    CHECKF(topic_code("", 1) == 0 && topic_code("", 127) == 0, "up to 127 bytes");
    CHECKF(topic_code("", 0) == PS_E_TOPIC_ILLEGAL, "empty");
    CHECKF(topic_code("", 128) == PS_E_TOPIC_ILLEGAL, "128 bytes");
    CHECKF(topic_code("%RETRY%", 255) == 0, "a retry topic of 255");
    CHECKF(topic_code("%RETRY%", 256) == PS_E_TOPIC_ILLEGAL, "and of 256");
    CHECKF(topic_code("%DLQ%", 128) == PS_E_TOPIC_ILLEGAL, "dead letters are no retry topic");
    CHECKF(topic_code("Az09_-|%", 8) == 0, "all kinds of characters");
    for (int c = 0; c < 256; c++) {
        uint8_t name[3] = {'a', (uint8_t)c, 'b'};
        bool good = c > 0 && c < 128 && strchr("%|_-0123456789", c) != NULL;
        good = good || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        CHECKF((ps_topic_check(name, 3, NULL) == 0) == good, "character %d", c);
    }
}

static void test_failure_record(void) {
    ps_error e;
    char path[1000];
    memset(&e, 0xAA, sizeof e);
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    CHECKF(ps_fail(NULL, PS_E_IO, 5, 1, "x", "%d", 1) == PS_E_IO, "no record is asked for");
    CHECKF(ps_fail(&e, PS_E_IO, 5, 77, path, "at %d of %s", 3, "it") == PS_E_IO, "the code");
    CHECKF(e.code == PS_E_IO && e.sys_errno == 5 && e.offset == 77 && e.pid == 0, "numbers");
    CHECKF(strlen(e.where) == sizeof e.where - 1, "a long path is cut");
    CHECKF(strcmp(e.text, "at 3 of it") == 0, "%s", e.text);
    ps_fail(&e, PS_E_ARGUMENT, 0, -1, NULL, "%s", path);
    CHECKF(e.where[0] == 0 && strlen(e.text) == sizeof e.text - 1, "no path, a long text is cut");
}

int main(void) {
    check_begin();
    fence_make();
    test_vector();
    test_hashes();
    test_limits();
    test_encoded_properties();
    test_composition();
    test_property_parsing();
    test_tags_code();
    test_round_trips();
    test_truncated();
    test_flipped();
    test_noise();
    test_kinds();
    test_batch();
    test_topics();
    test_failure_record();
    return check_end("test_record");
}
