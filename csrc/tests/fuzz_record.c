/* Fuzzes the readers of a record: its frame, its sums, its properties, its keys. Driver and
 * settings: fuzz_command.c. An input is eight bytes that nobody reads, which the driver fills in as
 * the head of a frame, then the bytes of the log; the museum is tests/fuzz/museum/record. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "format/multi.h"
#include "format/record.h"
#include "index/keys.h"

enum { INPUT_MAX = 64 << 10, HEAD = 8 };
#define FUZZ_MUSEUM "tests/fuzz/museum/record"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t whole;

static bool within(const ps_record *r, const uint8_t *from, int64_t len) {
    return len >= 0 && from >= r->start && from + len <= r->start + r->size;
}

/* What a decoded record points to lies in it, and its properties can be walked. */
static void check_record(const ps_record *r, int64_t len) {
    ps_property each, found;
    int32_t at = 0, before = -1;
    ix_keys keys;
    CHECK(r->size >= PS_RECORD_FIXED && r->size <= len);
    CHECK(within(r, r->body, r->body_len) && within(r, r->topic, r->topic_len));
    CHECK(within(r, r->properties, r->properties_len));
    CHECK(within(r, r->born_host, r->born_host_len) && within(r, r->store_host, r->store_host_len));
    while (ps_property_next(r->properties, r->properties_len, &at, &each)) {
        CHECK(at > before && at <= r->properties_len + 1);
        CHECK(within(r, each.name, each.name_len) && within(r, each.value, each.value_len));
        CHECK(ps_property_find(r->properties, r->properties_len, (const char *)each.name,
                               each.name_len, &found));
        before = at;
    }
    ps_multi m;
    if (ps_multi_of(r, &m))
        while (ps_multi_next(&m))
            CHECK(within(r, m.mu_as.topic, m.mu_as.topic_len) && m.mu_as.queue_offset >= 0);
    if (ix_keys_of(r, &keys))
        CHECK((keys.unique == NULL || within(r, keys.unique, keys.unique_len)) &&
              (keys.words == NULL || within(r, keys.words, keys.words_len)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_record r;
    int64_t len = (int64_t)size - HEAD;
    if (len <= 0 || len > INPUT_MAX) return 0;
    uint8_t *exact = malloc((size_t)len); /* a byte too far is seen */
    memcpy(exact, data + HEAD, (size_t)len);
    ps_rec_outcome o = ps_record_decode(exact, len, &r);
    CHECK(o <= PS_REC_PLACE && ps_rec_outcome_name(o) != NULL);
    if (o == PS_REC_OK) check_record(&r, len);
    whole += o == PS_REC_OK;
    for (int checks = 0; checks < 8; checks++) {
        ps_rec_outcome strict = ps_record_check(exact, len, checks & 1 ? 0 : -1, checks, &r);
        CHECK(o == PS_REC_OK || strict == o);
    }
    free(exact);
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

/* Records as the store writes them. */
static void add_records(void) {
    static const char *const properties[] = {
        "UNIQ_KEY\1A\2", "UNIQ_KEY\1A\2KEYS\1k1 k2 k3\2TAGS\1a\2", "TAGS\1a\2__CRC32#\0010\2",
        "INNER_MULTI_DISPATCH\1%LMQ%a,b,%LMQ%c\2INNER_MULTI_QUEUE_OFFSET\0011,2,3\2",
        "a\1b\2c\1d\2e\1\2\1f\2UNIQ_KEY\1B"};
    static uint8_t log[1 << 20], frame[GROWTH];
    char *folder = check_folder(), path[4400];
    ps_conf conf;
    ps_record r;
    int64_t len = 0;
    snprintf(kit_root, sizeof kit_root, "%s/store", folder);
    conf = kit_conf();
    conf.append_prop_crc = 1;
    kit_open(&conf, 10);
    kit_topic("T", 4, PS_PERM_READ | PS_PERM_WRITE, PS_SEND_HOT);
    for (int i = 0; i < 16; i++) kit_put("T", i % 4, properties[i % 4]);
    kit_put(NULL, 0, NULL);
    snprintf(path, sizeof path, "%s/commitlog/%020d", kit_root, 0);
    CHECK(read_file(path, log, sizeof log, &len));
    for (int64_t at = 0; ps_record_decode(log + at, len - at, &r) == PS_REC_OK; at += r.size) {
        if (r.size > (int64_t)sizeof frame - HEAD) continue;
        memset(frame, 0, HEAD);
        memcpy(frame + HEAD, log + at, (size_t)r.size);
        add_frame(frame, HEAD + r.size);
    }
    kit_close();
    check_remove(folder);
    free(folder);
    free(kit_handed);
}

int main(int argc, char **argv) {
    int code = fuzz_main("fuzz_record", argc, argv, add_records);
    printf("%" PRId64 " inputs decoded\n", whole);
    return code;
}
#endif
