/* Index files: layout, answers, cuts, damage, faults, and queries while another thread writes. */
#define _GNU_SOURCE
#include "index/index.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "check.h"
#include "faulty_io.h"

#define ALWAYS INT64_MIN, INT64_MAX
#define ROOM 256

static char *base; /* every test works in a folder of its own below */

/* ---- records and folders ---- */

typedef struct made {
    ps_record r;
    char topic[64], properties[600];
} made;

static const ps_record *make(made *m, int64_t physical, int64_t time, const char *topic,
                             const char *unique, const char *keys) {
    int len = 0;
    memset(m, 0, sizeof *m);
    snprintf(m->topic, sizeof m->topic, "%s", topic);
    if (unique != NULL)
        len = snprintf(m->properties, sizeof m->properties, "UNIQ_KEY\x01%s\x02", unique);
    len += snprintf(m->properties + len, 32, "TAGS\x01some\x02");
    if (keys != NULL)
        len += snprintf(m->properties + len, 500, "KEYS\x01%s\x02", keys);
    m->r.topic = (const uint8_t *)m->topic;
    m->r.topic_len = (int32_t)strlen(m->topic);
    m->r.properties = (const uint8_t *)m->properties;
    m->r.properties_len = len;
    m->r.physical_offset = physical;
    m->r.store_timestamp = time;
    return &m->r;
}

static int put(ps_index *ix, int64_t physical, int64_t time, const char *topic, const char *unique,
               const char *keys) {
    made m;
    ps_error e = {0};
    int code = ps_index_put(ix, make(&m, physical, time, topic, unique, keys), &e);
    CHECK(code >= 0 || e.code == code);
    return code;
}

static char *folder(const char *name) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", base, name);
    check_remove(path);
    return path;
}

/* One for all, so that thousands of damaged files share a folder. */
static ps_aside *aside(void) {
    static ps_aside kept;
    if (kept.as_io == NULL) ps_aside_init(&kept, ps_io_system(), base);
    return &kept;
}

static ps_index *open_as(ps_io *io, const char *path, int32_t slots, int32_t entries, bool adopt,
                         bool read_only) {
    ps_index *ix = NULL;
    ps_error e = {0};
    int32_t skipped = 0;
    if (!CHECK_EQ(0, ps_index_open(io, path, slots, entries, adopt, read_only, NULL, aside(),
                                   &skipped, &ix, &e)))
        exit(1);
    CHECK_EQ(0, skipped);
    return ix;
}

static ps_index *open_ix(const char *path, int32_t slots, int32_t entries) {
    return open_as(ps_io_system(), path, slots, entries, false, false);
}

static int32_t ask(ps_index *ix, const char *topic, const char *key, int64_t begin, int64_t end,
                   int64_t out[ROOM]) {
    int64_t skip = 0;
    return ps_index_query(ix, topic, (int32_t)strlen(topic), key, (int32_t)strlen(key), false,
                          begin, end, &skip, out, ROOM, NULL);
}

/* How many answers name `physical`. */
static int32_t answers_with(ps_index *ix, const char *topic, const char *key, int64_t physical) {
    int64_t out[ROOM];
    int32_t n = ask(ix, topic, key, ALWAYS, out), hits = 0;
    for (int32_t i = 0; i < n; i++)
        hits += out[i] == physical;
    return hits;
}

typedef struct image {
    char name[16][32];
    uint8_t *bytes[16];
    int64_t size[16];
    int32_t count;
} image;

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *d) { return d->d_name[0] != '.'; }

static image image_of(const char *path) {
    image im = {.count = 0};
    struct dirent **list;
    char file[4600];
    int n = scandir(path, &list, visible, by_name);
    for (int i = 0; i < n; i++) {
        struct stat st;
        snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
        FILE *f = fopen(file, "rb");
        if (f == NULL || fstat(fileno(f), &st) != 0 || im.count == 16)
            exit(2);
        im.bytes[im.count] = malloc((size_t)st.st_size + 1);
        im.size[im.count] = (int64_t)fread(im.bytes[im.count], 1, (size_t)st.st_size, f);
        snprintf(im.name[im.count++], sizeof im.name[0], "%.31s", list[i]->d_name);
        fclose(f);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return im;
}

static image image_without_empty(const char *path) {
    image all = image_of(path), im = {.count = 0};
    for (int32_t i = 0; i < all.count; i++) {
        if (all.size[i] == 0) {
            free(all.bytes[i]);
            continue;
        }
        im.bytes[im.count] = all.bytes[i];
        im.size[im.count++] = all.size[i];
    }
    return im;
}

static void image_put(const image *im, const char *path) {
    char file[4600];
    check_remove(path);
    mkdir(path, 0755);
    for (int32_t i = 0; i < im->count; i++) {
        snprintf(file, sizeof file, "%s/%s", path, im->name[i]);
        FILE *f = fopen(file, "wb");
        if (f == NULL || fwrite(im->bytes[i], 1, (size_t)im->size[i], f) != (size_t)im->size[i])
            exit(2);
        fclose(f);
    }
}

static void image_free(image *im) {
    for (int32_t i = 0; i < im->count; i++)
        free(im->bytes[i]);
    im->count = 0;
}

/* Names of files rebuilt differ; bytes must not. */
static bool images_equal(const image *a, const image *b) {
    if (a->count != b->count)
        return false;
    for (int32_t i = 0; i < a->count; i++)
        if (a->size[i] != b->size[i] || memcmp(a->bytes[i], b->bytes[i], (size_t)a->size[i]) != 0)
            return false;
    return true;
}

/* ---- layout ---- */

static void bytes_are_those_of_upstream(void) {
    const char *path = folder("layout");
    const int64_t t = 1700000000123;
    ps_index *ix = open_ix(path, 5, 4);
    CHECK_EQ(-1, ps_index_end(ix));
    CHECK_EQ(0, ps_index_timestamp(ix));
    CHECK_EQ(0, ps_index_files(ix));
    CHECK_EQ(1, put(ix, 1000, t, "OrderTopic", NULL, "K1001"));
    CHECK_EQ(2, put(ix, 2000, t + 2500, "OrderTopic", "K1001", " other  "));
    CHECK_EQ(1, put(ix, 3000, t + 4600, "OrderTopic", "K1001", NULL));
    CHECK_EQ(2, ps_index_files(ix));
    CHECK_EQ(4, ps_index_used(ix));
    CHECK_EQ(3000, ps_index_end(ix));
    CHECK_EQ(0, ps_index_flush(ix, NULL));
    CHECK_EQ(t + 4600, ps_index_timestamp(ix));
    ps_index_close(ix);
    image im = image_of(path);
    if (!CHECK_EQ(2, im.count) || !CHECK_EQ(40 + 5 * 4 + 4 * 20, im.size[0]))
        exit(1);
    CHECK(strlen(im.name[0]) == 17 && strlen(im.name[1]) == 17);
    CHECK(strcmp(im.name[0], im.name[1]) < 0);
    const uint8_t *p = im.bytes[0], *entry = p + 40 + 20 + 20;
    int32_t other = ps_key_hash(ps_java_hash(0, (const uint8_t *)"OrderTopic#other", 16));
    CHECK_EQ(t, be64_get(p));
    CHECK_EQ(t + 2500, be64_get(p + 8));
    CHECK_EQ(1000, be64_get(p + 16));
    CHECK_EQ(2000, be64_get(p + 24));
    CHECK_EQ(other % 5 == 1448203977 % 5 ? 1 : 2, be32_get(p + 32));
    CHECK_EQ(4, be32_get(p + 36));
    CHECK_EQ(1448203977, be32_get(entry)); /* OrderTopic#K1001 */
    CHECK_EQ(1000, be64_get(entry + 4));
    CHECK_EQ(0, be32_get(entry + 12));
    CHECK_EQ(0, be32_get(entry + 16));
    CHECK_EQ(1448203977, be32_get(entry + 20));
    CHECK_EQ(2000, be64_get(entry + 24));
    CHECK_EQ(2, be32_get(entry + 32));
    CHECK_EQ(1, be32_get(entry + 36));
    CHECK_EQ(other, be32_get(entry + 40));
    CHECK_EQ(3203977, 1448203977 % 5000000);
    /* The second file: timeDiff counts from the end of the first, then begin is its own. */
    p = im.bytes[1];
    CHECK_EQ(t + 4600, be64_get(p));
    CHECK_EQ(t + 4600, be64_get(p + 8));
    CHECK_EQ(3000, be64_get(p + 16));
    CHECK_EQ(2, be32_get(p + 36));
    CHECK_EQ(2, be32_get(p + 40 + 20 + 20 + 12));
    image_free(&im);
}

static void what_is_indexed_and_what_not(void) {
    ps_index *ix = open_ix(folder("what"), 16, 100);
    made m;
    ps_error e;
    make(&m, 10, 1, "T", "uniq", "key");
    m.r.sys_flag = PS_SYS_TX_ROLLBACK;
    CHECK_EQ(0, ps_index_put(ix, &m.r, &e));
    CHECK_EQ(0, ps_index_files(ix)); /* nothing to write: no file */
    CHECK_EQ(0, put(ix, 20, 1, "T", NULL, NULL));
    CHECK_EQ(0, put(ix, 20, 1, "T", NULL, "   "));
    CHECK_EQ(0, ps_index_files(ix));
    make(&m, 30, 1, "T", "uniq", "key");
    m.r.sys_flag = PS_SYS_TX_PREPARED;
    CHECK_EQ(2, ps_index_put(ix, &m.r, &e));
    m.r.sys_flag = PS_SYS_TX_COMMIT;
    m.r.physical_offset = 40;
    CHECK_EQ(2, ps_index_put(ix, &m.r, &e));
    make(&m, 50, 1, "T", "first", "old words");
    m.r.properties_len += snprintf(m.properties + m.r.properties_len, 64,
                                   "UNIQ_KEY\x01second\x02KEYS\x01new");
    CHECK_EQ(2, ps_index_put(ix, &m.r, &e));
    CHECK_EQ(0, answers_with(ix, "T", "first", 50));
    CHECK_EQ(0, answers_with(ix, "T", "words", 50));
    CHECK_EQ(1, answers_with(ix, "T", "second", 50));
    CHECK_EQ(1, answers_with(ix, "T", "new", 50));
    CHECK_EQ(0, answers_with(ix, "U", "new", 50));
    /* After the end is a duplicate; the end itself is completed, never doubled. */
    CHECK_EQ(0, put(ix, 40, 1, "T", "uniq", "late"));
    CHECK_EQ(0, ps_index_put(ix, &m.r, &e));
    CHECK_EQ(6, ps_index_used(ix));
    /* Two topics that share a key text. */
    CHECK_EQ(1, put(ix, 60, 1, "U", "second", NULL));
    CHECK_EQ(1, answers_with(ix, "T", "second", 50) + answers_with(ix, "T", "second", 60));
    ps_index_close(ix);
}

static void equal_hashes_are_all_answered(void) {
    ps_index *ix = open_ix(folder("collide"), 7, 100);
    int64_t out[ROOM];
    CHECK_EQ(1, put(ix, 100, 1000, "T", "AaAa", NULL));
    CHECK_EQ(1, put(ix, 200, 1000, "T", "BBBB", NULL));
    CHECK_EQ(1, put(ix, 300, 1000, "T", "AaBB", NULL));
    CHECK_EQ(1, put(ix, 400, 1000, "T", "else", NULL));
    CHECK_EQ(2, put(ix, 500, 1000, "T", "BBAa", "AaAa"));
    CHECK_EQ(5, ask(ix, "T", "BBBB", ALWAYS, out));
    CHECK(out[0] == 500 && out[1] == 500 && out[2] == 300 && out[3] == 200 && out[4] == 100);
    CHECK_EQ(1, ask(ix, "T", "else", ALWAYS, out));
    CHECK_EQ(0, ask(ix, "T", "nobody", ALWAYS, out));
    ps_index_close(ix);
}

/* ---- answers ---- */

static void name_of(char out[32], int64_t n) { snprintf(out, 32, "key-%" PRId64, n * 7919); }

static void every_key_of_ten_thousand_is_found(void) {
    const char *path = folder("many");
    char key[32], word[64];
    ps_index *ix = open_ix(path, 512, 1024);
    for (int64_t n = 0; n < 5000; n++) {
        name_of(key, n);
        snprintf(word, sizeof word, "word-%" PRId64, n % 100);
        CHECK_EQ(2, put(ix, n * 300, 1700000000000 + n * 10, n % 3 ? "A" : "B", key, word));
        if (n % 1000 == 999) {
            CHECK_EQ(0, ps_index_flush(ix, NULL));
            ps_index_close(ix);
            ix = open_ix(path, 512, 1024);
        }
    }
    CHECK_EQ(10000, ps_index_used(ix));
    CHECK_EQ((10000 + 1022) / 1023, ps_index_files(ix));
    for (int64_t n = 0; n < 5000; n++) {
        name_of(key, n);
        CHECK_EQ(1, answers_with(ix, n % 3 ? "A" : "B", key, n * 300));
        CHECK_EQ(0, answers_with(ix, n % 3 ? "B" : "A", key, n * 300));
    }
    int64_t out[ROOM];
    int32_t found = ask(ix, "A", "word-7", ALWAYS, out);
    for (int32_t i = 1; i < found; i++)
        CHECK(out[i] < out[i - 1]); /* newest first, across files */
    found += ask(ix, "B", "word-7", ALWAYS, out);
    CHECK_EQ(50, found);
    image im = image_of(path);
    for (int32_t i = 1; i < im.count; i++)
        CHECK(strcmp(im.name[i - 1], im.name[i]) < 0 && strlen(im.name[i]) == 17);
    image_free(&im);
    ps_index_close(ix);
}

static void answers_can_be_asked_for_in_pieces(void) {
    ps_index *ix = open_ix(folder("pages"), 3, 20);
    int64_t all[ROOM], piece[ROOM], skip = 0, n = 0;
    for (int64_t i = 0; i < 100; i++)
        put(ix, i * 10, 1000 + i, "T", i % 3 ? "same" : "other", NULL);
    int32_t total = ask(ix, "T", "same", ALWAYS, all);
    CHECK_EQ(66, total);
    for (int32_t got = 1; got > 0; n += got) {
        got = ps_index_query(ix, "T", 1, "same", 4, false, ALWAYS, &skip, piece,
                             1 + (int32_t)(n % 7), NULL);
        CHECK_EQ(n + got, skip);
        for (int32_t i = 0; i < got; i++)
            CHECK_EQ(all[n + i], piece[i]);
    }
    CHECK_EQ(total, n);
    skip = 3;
    CHECK_EQ(0, ps_index_query(ix, "T", 1, "same", 4, false, ALWAYS, &skip, piece, 0, NULL));
    CHECK_EQ(3, skip);
    ps_index_close(ix);
}

/* Nothing stored within the range is missing, and nothing is more than a second outside of it. */
static void time_ranges_lose_nothing(void) {
    ps_index *ix = open_ix(folder("times"), 8, 30);
    int64_t times[200], out[ROOM], t = 1700000000000;
    for (int n = 0; n < 200; n++) {
        t += check_below(n % 50 == 0 ? 100000 : 700);
        times[n] = t;
        put(ix, n * 10, t, "T", "same", NULL);
    }
    for (int round = 0; round < 2000; round++) {
        int64_t begin = times[check_below(200)] + check_below(3) - 1;
        int64_t end = begin + check_below(4) * check_below(5000);
        int32_t found = ask(ix, "T", "same", begin, end, out);
        bool there[200] = {false};
        for (int32_t i = 0; i < found; i++) {
            int64_t stored = times[out[i] / 10];
            there[out[i] / 10] = true;
            CHECK(stored >= begin - 999 && stored <= end + 999);
        }
        for (int n = 0; n < 200; n++)
            CHECK(there[n] || times[n] < begin || times[n] > end);
    }
    ps_index_close(ix);
}

static void first_after_is_cautious_by_a_second(void) {
    ps_index *ix = open_ix(folder("after"), 8, 30);
    int64_t times[100], t = 1700000000000;
    CHECK_EQ(-1, ps_index_first_after(ix, 0));
    for (int n = 0; n < 100; n++) {
        times[n] = t;
        put(ix, n * 10, t, "T", "one", "two");
        t += 1 + check_below(900);
    }
    CHECK_EQ(0, ps_index_first_after(ix, 0));
    CHECK_EQ(0, ps_index_first_after(ix, INT64_MIN));
    CHECK_EQ(-1, ps_index_first_after(ix, times[99] + 1));
    CHECK_EQ(-1, ps_index_first_after(ix, INT64_MAX));
    for (int n = 0; n < 100; n++) {
        int64_t from = ps_index_first_after(ix, times[n]);
        CHECK(from >= 0 && from <= n * 10 && times[from / 10] > times[n] - 1000);
    }
    ps_index_close(ix);
}

/* ---- recovery ---- */

enum { RECORDS = 120, SLOTS = 7, ENTRIES = 32 };

/* A few keys or none, some shared, so that chains are long and records straddle files. */
static const ps_record *record_of(made *m, int64_t n) {
    char unique[32], keys[64];
    name_of(unique, n);
    snprintf(keys, sizeof keys, "w%" PRId64 " x%" PRId64, n % 5, n % 11);
    return make(m, n * 100, 1700000000000 + n * 731, n % 4 == 3 ? "U" : "T",
                n % 7 == 0 ? NULL : unique, n % 3 == 0 ? keys : n % 3 == 1 ? "alone" : NULL);
}

static void put_from(ps_index *ix, int64_t physical) {
    made m;
    ps_error e;
    for (int64_t n = 0; n < RECORDS; n++)
        if (record_of(&m, n)->physical_offset >= physical)
            CHECK(ps_index_put(ix, &m.r, &e) >= 0);
}

/* Every key of every record below `physical` is found at its place, each once. */
static void check_answers(ps_index *ix, int64_t physical, bool exact) {
    made m;
    char key[64];
    for (int64_t n = 0; n < RECORDS; n++) {
        bool there = record_of(&m, n)->physical_offset < physical;
        ps_property p;
        int32_t at = 0, hits;
        while (ps_property_next(m.r.properties, m.r.properties_len, &at, &p)) {
            char *word, *rest = key;
            if (p.name[0] == 'T')
                continue;
            snprintf(key, sizeof key, "%.*s", (int)p.value_len, (const char *)p.value);
            while ((word = strsep(&rest, " ")) != NULL) {
                hits = answers_with(ix, m.topic, word, m.r.physical_offset);
                CHECK(hits == there || (!exact && hits > 0 && there));
            }
        }
    }
}

static image whole_index(void) {
    const char *path = folder("whole");
    ps_index *ix = open_ix(path, SLOTS, ENTRIES);
    put_from(ix, 0);
    check_answers(ix, INT64_MAX, true);
    CHECK(ps_index_files(ix) >= 5);
    ps_index_close(ix);
    return image_of(path);
}

static void a_sound_index_is_left_alone(const image *whole) {
    const char *path = folder("sound");
    int64_t cut = -1;
    image_put(whole, path);
    ps_index *ix = open_ix(path, SLOTS, ENTRIES);
    CHECK_EQ(0, ps_index_cut(ix, INT64_MAX, NULL, &cut, NULL));
    CHECK_EQ(0, cut);
    put_from(ix, ps_index_end(ix));
    ps_index_close(ix);
    image now = image_of(path);
    CHECK(images_equal(whole, &now));
    image_free(&now);
}

/* Cut anywhere, put again from ps_index_end: the same answers, and the same bytes. */
static void cut_and_put_again_gives_the_same_bytes(const image *whole) {
    const char *path = folder("cut");
    for (int64_t physical = 0; physical <= RECORDS * 100 + 50; physical += 50) {
        int64_t cut = -1;
        ps_error e = {0};
        image_put(whole, path);
        ps_index *ix = open_ix(path, SLOTS, ENTRIES);
        int64_t used = ps_index_used(ix);
        CHECK_EQ(0, ps_index_cut(ix, physical, NULL, &cut, &e));
        CHECK_EQ(used, ps_index_used(ix) + cut);
        CHECK(ps_index_end(ix) < physical);
        CHECK(physical > 0 || ps_index_files(ix) == 0);
        check_answers(ix, physical, true);
        put_from(ix, ps_index_end(ix));
        check_answers(ix, INT64_MAX, true);
        ps_index_close(ix);
        image now = image_of(path);
        CHECK(images_equal(whole, &now));
        image_free(&now);
    }
}

/* A crash keeps the first k entries of the last file, parting the keys of a record: header, slots
 * and entries are as they were then, or newer than the header. */
static void parted_records_are_completed(const image *whole) {
    const char *path = folder("parted");
    for (int torn = 0; torn < 3; torn++) {
        for (int32_t k = 2; k < ENTRIES; k++) {
            int64_t cut = -1;
            image im = *whole;
            im.count = 3;
            image_put(&im, path);
            image copy = image_of(path);
            uint8_t *p = copy.bytes[2], *entries = p + 40 + SLOTS * 4;
            if (torn < 2) /* the count may also say more than was written, or less */
                be32_put(p + 36, (uint32_t)k);
            if (torn != 1)
                memset(entries + k * 20, 0, (size_t)(ENTRIES - k) * 20);
            image_put(&copy, path);
            ps_index *ix = open_ix(path, SLOTS, ENTRIES);
            CHECK_EQ(0, ps_index_cut(ix, INT64_MAX, NULL, &cut, NULL));
            put_from(ix, ps_index_end(ix));
            check_answers(ix, INT64_MAX, true);
            ps_index_close(ix);
            image now = image_of(path);
            CHECK(images_equal(whole, &now));
            image_free(&now);
            image_free(&copy);
        }
    }
}

/* Lost slots, and slots that point beyond the end or in circles, are made again from the entries.
 * */
static void slots_are_mended(const image *whole) {
    const char *path = folder("slots");
    for (int round = 0; round < 200; round++) {
        int64_t cut = -1;
        image_put(whole, path);
        image copy = image_of(path);
        int32_t file = (int32_t)check_below(copy.count);
        for (int i = 0; i < 3; i++)
            be32_put(copy.bytes[file] + 40 + check_below(SLOTS) * 4, (uint32_t)check_below(40) - 3);
        image_put(&copy, path);
        ps_index *ix = open_ix(path, SLOTS, ENTRIES);
        CHECK_EQ(0, ps_index_cut(ix, INT64_MAX, NULL, &cut, NULL));
        CHECK_EQ(0, cut);
        check_answers(ix, INT64_MAX, true);
        ps_index_close(ix);
        image now = image_of(path);
        CHECK(images_equal(whole, &now));
        image_free(&now);
        image_free(&copy);
    }
}

/* A crash right after the birth of a file leaves it unused; the next one may be put after it. */
static void unused_files_are_no_gap(const image *whole) {
    const char *path = folder("unused");
    char file[4600];
    int64_t cut = -1;
    for (int32_t i = 0; i < whole->count; i++) {
        image_put(whole, path);
        snprintf(file, sizeof file, "%s/%s5", path, whole->name[i]);
        if (i < whole->count - 1)
            snprintf(file, sizeof file, "%s/%017lld", path, atoll(whole->name[i]) + 1);
        if (access(file, F_OK) == 0)
            continue; /* born one ms apart */
        int fd = open(file, O_CREAT | O_WRONLY, 0644);
        CHECK(fd >= 0 && ftruncate(fd, whole->size[i]) == 0 && close(fd) == 0);
        ps_index *ix = open_ix(path, SLOTS, ENTRIES);
        CHECK_EQ(whole->count + 1, ps_index_files(ix));
        check_answers(ix, INT64_MAX, true);
        CHECK_EQ(0, ps_index_cut(ix, INT64_MAX, NULL, &cut, NULL));
        CHECK_EQ(0, cut);
        put_from(ix, ps_index_end(ix));
        ps_index_close(ix);
        image now = image_of(path);
        CHECK(images_equal(whole, &now));
        image_free(&now);
    }
}

static void use_all(const char *path, bool adopt, bool read_only, bool cut) {
    ps_index *ix = NULL;
    ps_error e = {0};
    int32_t skipped;
    int64_t taken, out[ROOM];
    made m;
    ps_io *io = ps_io_system();
    if (ps_index_open(io, path, SLOTS, ENTRIES, adopt, read_only, NULL, aside(), &skipped, &ix,
                      &e) < 0)
        return;
    if (cut && !read_only)
        CHECK_EQ(0, ps_index_cut(ix, RECORDS * 100, NULL, &taken, &e));
    for (int64_t n = 0; n < RECORDS; n += 3) {
        char key[32];
        name_of(key, n);
        ask(ix, n % 4 == 3 ? "U" : "T", key, ALWAYS, out);
        ask(ix, "T", "alone", 1700000000000 + n * 731, 1700000000000 + n * 800, out);
    }
    ps_index_first_after(ix, 1700000000000 + check_below(RECORDS * 731));
    ps_index_refresh(ix, &e);
    CHECK(ps_index_used(ix) >= 0 && ps_index_timestamp(ix) < INT64_MAX);
    if (!read_only) {
        int64_t end = ps_index_end(ix);
        put_from(ix, end);
        if (cut) {
            make(&m, RECORDS * 100 + 7, 1700000000000 + RECORDS * 731, "T", "behind", "all");
            CHECK_EQ(2, ps_index_put(ix, &m.r, &e));
            CHECK_EQ(1, answers_with(ix, "T", "behind", RECORDS * 100 + 7));
        }
        CHECK_EQ(0, ps_index_flush(ix, &e));
        ps_index_delete_before(ix, check_below(RECORDS * 100), false, &e);
    }
    ps_index_close(ix);
}

static void damage_neither_crashes_nor_hangs(const image *whole) {
    const char *path = folder("damage");
    for (int round = 0; round < 1500; round++) {
        image_put(whole, path);
        image copy = image_of(path);
        int flips = 1 + (int)check_below(30);
        for (int i = 0; i < flips; i++) {
            int32_t file = (int32_t)check_below(copy.count);
            /* Half of the flips hit the header and the slots, which are few bytes but tell most. */
            int64_t place = check_below(check_below(2) ? copy.size[file] : 40 + SLOTS * 4);
            if (check_below(2))
                copy.bytes[file][place] ^= (uint8_t)(1 << check_below(8));
            else
                copy.bytes[file][place] = (uint8_t)check_random();
        }
        if (check_below(10) == 0)
            copy.size[check_below(copy.count)] = check_below(700);
        image_put(&copy, path);
        use_all(path, check_below(2), true, false);
        use_all(path, check_below(2), false, check_below(2));
        image_free(&copy);
    }
}

/* ---- files of other sizes ---- */

static void layouts_are_found_out(void) {
    static const int32_t pairs[][2] = {
        {512, 1024}, {500, 2000}, {97, 4001}, {1, 2000}, {3000, 700}};
    ps_io *io = ps_io_system();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *path = folder("adopt");
        int32_t slots = pairs[i][0], entries = pairs[i][1], skipped = 0;
        char key[32];
        ps_index *ix = open_ix(path, slots, entries);
        for (int64_t n = 0; n < entries + 100; n++) {
            name_of(key, n);
            CHECK_EQ(1, put(ix, n * 10, 1000000 + n * 10, "T", key, NULL));
        }
        CHECK_EQ(2, ps_index_files(ix));
        ps_index_close(ix);
        ix = open_as(io, path, 5000000, 20000000, true, true);
        CHECK_EQ(slots, ps_index_slots(ix));
        CHECK_EQ(entries, ps_index_entries(ix));
        CHECK_EQ(2, ps_index_files(ix));
        for (int64_t n = 0; n < entries + 100; n += 13) {
            name_of(key, n);
            CHECK_EQ(1, answers_with(ix, "T", key, n * 10));
        }
        ps_index_close(ix);
        int code = ps_index_open(io, path, 5000000, 20000000, false, true, NULL, NULL, &skipped,
                                 &ix, NULL);
        CHECK_EQ(0, code);
        CHECK_EQ(2, skipped);
        CHECK_EQ(0, ps_index_files(ix));
        CHECK_EQ(5000000, ps_index_slots(ix));
        ps_index_close(ix);
    }
}

static void odd_files_are_left_out(void) {
    const char *path = folder("odd");
    char file[4600];
    ps_index *ix = open_ix(path, 10, 20);
    CHECK_EQ(1, put(ix, 10, 1000, "T", "key", NULL));
    ps_index_close(ix);
    static const char *const names[] = {"99990101005959999", "notes.txt", "12345",
                                        "123456789012345678901"};
    const uint8_t bytes[100] = {1, 2, 3};
    ps_io *io = ps_io_system();
    for (int i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        FILE *f = fopen(file, "wb");
        fwrite(bytes, 1, (size_t)i * 30, f);
        fclose(f);
    }
    int32_t skipped = 0;
    CHECK_EQ(0, ps_index_open(io, path, 10, 20, true, false, NULL, aside(), &skipped, &ix, NULL));
    CHECK_EQ(2, skipped); /* names that are not numbers are not even counted */
    CHECK_EQ(1, ps_index_files(ix));
    /* New names sort after all that is there, whatever the clock says. */
    for (int64_t n = 2; n < 60; n++)
        CHECK_EQ(1, put(ix, n * 10, 1000, "T", "key", NULL));
    ps_index_close(ix);
    CHECK_EQ(0, ps_index_open(io, path, 10, 20, true, true, NULL, aside(), &skipped, &ix, NULL));
    CHECK_EQ(4, ps_index_files(ix));
    snprintf(file, sizeof file, "%s/99990101010000000", path); /* one ms later is a time, too */
    CHECK_EQ(0, access(file, F_OK));
    int64_t out[ROOM];
    CHECK_EQ(59, ask(ix, "T", "key", ALWAYS, out));
    for (int i = 1; i < 59; i++)
        CHECK(out[i] < out[i - 1]);
    ps_index_close(ix);
    ps_error e = {0};
    CHECK_EQ(PS_E_ARGUMENT, ps_index_open(io, path, 0, 20, true, true, NULL, NULL, &skipped,
                                          &ix, &e));
    CHECK_EQ(PS_E_ARGUMENT, ps_index_open(io, path, 10, 1, true, true, NULL, NULL, &skipped,
                                          &ix, &e));
}

/* ---- faults ---- */

static void a_full_disk_changes_nothing(void) {
    const char *path = folder("full");
    const uint32_t reserve = 1u << PS_IO_FALLOCATE;
    ps_io *io = ps_io_faulty_new();
    ps_error e;
    made m;
    int64_t n, made_calls;
    /* At the birth of the first file; twice, since slots and entries are reserved apart. */
    ps_index *ix = open_as(io, path, 64, 200000, false, false);
    for (int call = 1; call <= 2; call++) {
        ps_io_faulty_set(io, reserve, call, ENOSPC, 0);
        CHECK_EQ(PS_E_DISK_FULL, put(ix, 10, 1000, "T", "key", NULL));
        image now = image_of(path);
        CHECK_EQ(0, now.count);
        CHECK_EQ(0, ps_index_files(ix));
        CHECK_EQ(-1, ps_index_end(ix));
    }
    CHECK_EQ(1, put(ix, 10, 1000, "T", "key", NULL));
    /* At the next window of entries. */
    made_calls = ps_io_faulty_calls(io, reserve);
    for (n = 2; ps_io_faulty_calls(io, reserve) == made_calls && n < 100000; n++) {
        ps_io_faulty_set(io, reserve, 1, ENOSPC, 0);
        make(&m, n * 10, 1000 + n, "T", "key", "and more words");
        int code = ps_index_put(ix, &m.r, &e);
        if (code == 4)
            continue;
        CHECK_EQ(PS_E_DISK_FULL, code);
        CHECK_EQ(ENOSPC, e.sys_errno);
        CHECK_EQ((n - 1) * 10, ps_index_end(ix));
        CHECK_EQ(1 + (n - 2) * 4, ps_index_used(ix));
        CHECK_EQ(0, answers_with(ix, "T", "more", n * 10));
        CHECK_EQ(4, ps_index_put(ix, &m.r, &e));
        CHECK_EQ(1, answers_with(ix, "T", "more", n * 10));
    }
    CHECK(n * 80 > 1 << 20);
    ps_index_close(ix);
    ps_io_faulty_free(io);
}

/* When a record needs a second file and there is no room for it, the next try goes on where it
 * stopped. */
static void a_record_parted_by_a_full_disk_is_completed(void) {
    const char *path = folder("parting");
    ps_io *io = ps_io_faulty_new();
    ps_index *ix = open_as(io, path, 16, 10, false, false);
    for (int64_t n = 0; n < 7; n++)
        CHECK_EQ(1, put(ix, n * 10, 1000, "T", "key", NULL));
    ps_io_faulty_set(io, 1u << PS_IO_FALLOCATE, 1, ENOSPC, 0);
    CHECK_EQ(PS_E_DISK_FULL, put(ix, 100, 1000, "T", "a", "b c d e"));
    CHECK_EQ(1, ps_index_files(ix));
    CHECK_EQ(3, put(ix, 100, 1000, "T", "a", "b c d e"));
    for (const char *key = "abcde"; *key != 0; key++)
        CHECK_EQ(1, answers_with(ix, "T", (char[2]){*key, 0}, 100));
    ps_index_close(ix);
    ps_io_faulty_free(io);
}

/* Each call fails in turn, once or for good; what a reopen finds is whole, and can be completed. A
 * file that could be made but neither sized nor deleted stays behind, empty. */
static void every_fault_leaves_an_index_that_can_be_completed(const image *whole) {
    const char *path = folder("faults");
    const uint32_t all = (1u << PS_IO_CALLS) - 1;
    for (int forever = 0; forever < 2; forever++) {
        bool fault = true;
        for (int n = 1; fault && n < 500; n++) {
            ps_index *ix = NULL;
            ps_error e = {0};
            ps_io *io = ps_io_faulty_new();
            int64_t cut = 0;
            int32_t skipped;
            made m;
            check_remove(path);
            ps_io_faulty_set(io, all, n, n % 2 ? EIO : ENOSPC, forever);
            int code = ps_index_open(io, path, SLOTS, ENTRIES, false, false, NULL, aside(),
                                     &skipped, &ix, &e);
            for (int64_t i = 0; i < RECORDS && code == 0; i++) {
                code = ps_index_put(ix, record_of(&m, i), &e);
                code = code > 0 ? 0 : code;
                if (code == 0 && i % 10 == 9)
                    code = ps_index_flush(ix, &e);
            }
            CHECK(code == 0 || e.code == code);
            ps_index_close(ix);
            fault = ps_io_faulty_calls(io, all) >= n;
            ps_io_faulty_free(io);
            io = ps_io_system();
            CHECK_EQ(0, ps_index_open(io, path, SLOTS, ENTRIES, false, false, NULL, aside(),
                                      &skipped, &ix, &e));
            CHECK(skipped <= forever);
            CHECK_EQ(0, ps_index_cut(ix, INT64_MAX, NULL, &cut, &e));
            put_from(ix, ps_index_end(ix));
            check_answers(ix, INT64_MAX, true);
            ps_index_close(ix);
            image now = image_without_empty(path);
            CHECK(images_equal(whole, &now));
            image_free(&now);
        }
        CHECK(!fault);
    }
}

static void a_failed_sync_is_for_good(void) {
    ps_io *io = ps_io_faulty_new();
    ps_index *ix = open_as(io, folder("sync"), 16, 10, false, false);
    ps_error e = {0};
    made m;
    CHECK_EQ(1, put(ix, 10, 1000, "T", "key", NULL));
    CHECK_EQ(0, ps_index_timestamp(ix));
    CHECK_EQ(0, ps_index_flush(ix, &e));
    CHECK_EQ(1000, ps_index_timestamp(ix));
    CHECK_EQ(1, ps_io_faulty_calls(io, 1u << PS_IO_MSYNC));
    CHECK_EQ(0, ps_index_flush(ix, &e)); /* nothing new: no call */
    CHECK_EQ(1, ps_io_faulty_calls(io, 1u << PS_IO_MSYNC));
    CHECK_EQ(1, put(ix, 20, 2000, "T", "key", NULL));
    ps_io_faulty_set(io, 1u << PS_IO_MSYNC, 1, EIO, 0);
    CHECK_EQ(PS_E_FLUSH_FAILED, ps_index_flush(ix, &e));
    CHECK_EQ(EIO, e.sys_errno);
    CHECK_EQ(PS_E_FLUSH_FAILED, ps_index_flush(ix, &e));
    CHECK_EQ(1000, ps_index_timestamp(ix));
    CHECK_EQ(PS_E_FLUSH_FAILED, ps_index_put(ix, make(&m, 30, 3000, "T", "key", NULL), &e));
    CHECK_EQ(20, ps_index_end(ix));
    ps_index_close(ix);
    ps_io_faulty_free(io);
}

/* ---- deleting, reading along ---- */

static void old_files_are_deleted(const image *whole) {
    const char *path = folder("old");
    ps_error e;
    image_put(whole, path);
    ps_index *ix = open_ix(path, SLOTS, ENTRIES);
    int32_t files = ps_index_files(ix);
    int64_t end = be64_get(whole->bytes[1] + 24);
    CHECK_EQ(0, ps_index_delete_before(ix, 0, false, &e));
    CHECK_EQ(1, ps_index_delete_before(ix, end, true, &e));
    CHECK_EQ(2, ps_index_delete_before(ix, end + 1, true, &e));
    CHECK_EQ(files, ps_index_files(ix));
    CHECK_EQ(2, ps_index_delete_before(ix, end + 1, false, &e));
    CHECK_EQ(files - 2, ps_index_files(ix));
    CHECK_EQ(files - 3, ps_index_delete_before(ix, INT64_MAX, true, &e));
    CHECK_EQ(files - 3, ps_index_delete_before(ix, INT64_MAX, false, &e));
    CHECK_EQ(1, ps_index_files(ix));
    CHECK_EQ(be64_get(whole->bytes[whole->count - 1] + 24), ps_index_end(ix));
    ps_index_close(ix);
    image now = image_of(path);
    CHECK_EQ(1, now.count);
    CHECK(strcmp(now.name[0], whole->name[whole->count - 1]) == 0);
    image_free(&now);
}

static void a_reader_follows_a_writer(void) {
    const char *path = folder("along");
    int64_t cut;
    ps_error e = {0};
    made m;
    ps_index *reader = open_as(ps_io_system(), path, 16, 50, true, true);
    CHECK_EQ(0, ps_index_files(reader));
    CHECK(access(path, F_OK) < 0); /* reading makes nothing */
    ps_index *writer = open_ix(path, 8, 40);
    for (int64_t n = 0; n < 300; n++) {
        CHECK_EQ(1, put(writer, n * 10, 1000000 + n, "T", "same", NULL));
        if (n % 10 == 0)
            CHECK_EQ(0, ps_index_refresh(reader, &e));
        if (n % 39 > 10) /* within one file a reader needs no refresh */
            CHECK_EQ(1, answers_with(reader, "T", "same", n * 10));
    }
    CHECK_EQ(ps_index_end(writer), ps_index_end(reader));
    CHECK_EQ(1000299, ps_index_timestamp(reader));
    CHECK_EQ(3, ps_index_delete_before(writer, 39 * 10 * 3, false, &e));
    CHECK_EQ(0, ps_index_refresh(reader, &e));
    CHECK_EQ(ps_index_files(writer), ps_index_files(reader));
    CHECK_EQ(PS_E_READ_ONLY, ps_index_put(reader, make(&m, 1, 1, "T", "k", NULL), &e));
    CHECK_EQ(PS_E_READ_ONLY, ps_index_cut(reader, 0, NULL, &cut, &e));
    CHECK_EQ(0, ps_index_flush(reader, &e));
    CHECK_EQ(0, ps_index_refresh(writer, &e));
    ps_index_close(reader);
    ps_index_close(writer);
}

/* ---- threads ---- */

static _Atomic int64_t written;
static _Atomic bool stop;

/* Whatever was put before the question is answered; nothing is made up. */
static void *query_thread(void *arg) {
    ps_index *ix = arg;
    uint64_t state = 88172645463325252u;
    int64_t bad = 0, out[ROOM];
    char key[32];
    while (!atomic_load(&stop)) {
        int64_t count = atomic_load(&written);
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        if (count == 0)
            continue;
        int64_t n = count - 1 - (int64_t)(state % (uint64_t)(count < 200 ? count : 200));
        name_of(key, n);
        int32_t found = ask(ix, "T", key, ALWAYS, out), hits = 0;
        for (int32_t i = 0; i < found; i++)
            hits += out[i] == n * 10;
        /* A thread that rested for 1,800 puts asks for a key that retention may have taken. */
        bad += hits != 1 && n >= atomic_load(&written) - 2000;
        found = ask(ix, "T", "same", ALWAYS, out);
        for (int32_t i = 1; i < found; i++)
            bad += out[i] >= out[i - 1];
        bad += found == 0 || out[0] < (count - 1) * 10;
    }
    return (void *)(intptr_t)bad;
}

static void *keep_thread(void *arg) {
    ps_index *ix = arg;
    int64_t bad = 0;
    while (!atomic_load(&stop)) {
        bad += ps_index_flush(ix, NULL) < 0;
        bad += ps_index_delete_before(ix, (atomic_load(&written) - 2000) * 10, false, NULL) < 0;
        bad += ps_index_used(ix) < 0 || ps_index_files(ix) < 0 || ps_index_timestamp(ix) < 0;
    }
    return (void *)(intptr_t)bad;
}

static void queries_go_on_while_a_thread_puts(void) {
    ps_index *ix = open_ix(folder("threads"), 64, 500);
    pthread_t threads[3];
    char key[32];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, i < 2 ? query_thread : keep_thread, ix);
    for (int64_t n = 0; n < 20000; n++) {
        name_of(key, n);
        CHECK_EQ(2, put(ix, n * 10, 1000000 + n, "T", key, "same"));
        atomic_store(&written, n + 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        CHECK_EQ(0, (intptr_t)bad);
    }
    CHECK_EQ(0, ps_index_flush(ix, NULL));
    CHECK_EQ(1000000 + 19999, ps_index_timestamp(ix));
    ps_index_close(ix);
}

int main(void) {
    check_begin();
    base = check_folder();
    bytes_are_those_of_upstream();
    what_is_indexed_and_what_not();
    equal_hashes_are_all_answered();
    every_key_of_ten_thousand_is_found();
    answers_can_be_asked_for_in_pieces();
    time_ranges_lose_nothing();
    first_after_is_cautious_by_a_second();
    image whole = whole_index();
    a_sound_index_is_left_alone(&whole);
    cut_and_put_again_gives_the_same_bytes(&whole);
    parted_records_are_completed(&whole);
    slots_are_mended(&whole);
    unused_files_are_no_gap(&whole);
    damage_neither_crashes_nor_hangs(&whole);
    layouts_are_found_out();
    odd_files_are_left_out();
    a_full_disk_changes_nothing();
    a_record_parted_by_a_full_disk_is_completed();
    every_fault_leaves_an_index_that_can_be_completed(&whole);
    a_failed_sync_is_for_good();
    old_files_are_deleted(&whole);
    a_reader_follows_a_writer();
    queries_go_on_while_a_thread_puts();
    image_free(&whole);
    check_remove(base);
    free(base);
    return check_end("index");
}
