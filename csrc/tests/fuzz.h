/* The driver of the fuzzers, for gcc alone: changes frames at random. The including file has
 * LLVMFuzzerTestOneInput, INPUT_MAX and FUZZ_MUSEUM; how to use it stands in fuzz_command.c. */
#ifndef PS_FUZZ_H
#define PS_FUZZ_H

#include <dirent.h>
#include <signal.h>
#include <sys/time.h>

#include "base/bytes.h"
#include "check.h"

#ifndef FUZZ_GROWTH
#define FUZZ_GROWTH 4096
#endif
enum { FRAMES_MAX = 4096, CHANGES_MAX = 6, GROWTH = FUZZ_GROWTH };

typedef struct input {
    uint8_t *data;
    int64_t len;
} input;

static input frames[FRAMES_MAX];
static int frame_count;
static uint8_t now[INPUT_MAX + 2 * GROWTH];
static int64_t now_len;
/* An input is a file of fixed places, after eight bytes of the harness: its bytes change where they
 * stand. Else it is a frame, which grows and shrinks, and gets its lengths again. */
static bool fuzz_in_place;
/* Among how many kinds of input a run is divided: each gets PS_FUZZ_RUNS. */
static int64_t fuzz_kinds = 1;

/* ---- what ends a run ---- */

void __sanitizer_set_death_callback(void (*)(void)) __attribute__((weak));

/* Undefined behaviour ends the process by a signal too, so that its input is kept. */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) {
    return "abort_on_error=1:print_stacktrace=1";
}

static const char *setting(const char *name, const char *otherwise) {
    const char *given = getenv(name);
    return given != NULL ? given : otherwise;
}

static void keep_find(void) {
    const char *path = setting("PS_FUZZ_FIND", "build/fuzz-find");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool kept = file >= 0 && write(file, now, (size_t)now_len) == now_len;
    printf("PS_SEED=%" PRIu64 ", %" PRId64 " bytes %s %s\n", check_seed, now_len,
           kept ? "kept in" : "lost, no", path);
    fflush(stdout);
}

static void on_signal(int number) {
    keep_find();
    signal(number, SIG_DFL);
    raise(number);
}

/* Limits processor time: on a busy machine a sound input may wait for long. 0: no limit. */
static void limit_time(time_t seconds) {
    struct itimerval limit = {.it_value = {.tv_sec = seconds}};
    setitimer(ITIMER_PROF, &limit, NULL);
}

/* ---- what there is to begin with ---- */

static void add_frame(const uint8_t *data, int64_t len) {
    if (frame_count == FRAMES_MAX || len < 8 || len > GROWTH) return;
    uint8_t *copy = malloc((size_t)len);
    memcpy(copy, data, (size_t)len);
    frames[frame_count++] = (input){copy, len};
}

static bool read_file(const char *path, uint8_t *to, int64_t room, int64_t *len) {
    int file = open(path, O_RDONLY);
    if (file < 0) return false;
    *len = read(file, to, (size_t)room);
    close(file);
    return *len >= 0;
}

static void add_file(const char *path) {
    static uint8_t all[8 << 20];
    int64_t len, at = 0;
    if (!read_file(path, all, sizeof all, &len)) {
        perror(path);
        exit(2);
    }
    while (len - at >= 4) {
        int64_t size = 4 + (int64_t)be32_get(all + at);
        if (size > len - at) break;
        add_frame(all + at, size);
        at += size;
    }
}

static int run_museum(void) {
    const char *folder = setting("PS_FUZZ_MUSEUM", FUZZ_MUSEUM);
    DIR *dir = opendir(folder);
    int count = 0;
    if (dir == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || !read_file(path, now, INPUT_MAX, &now_len)) continue;
        LLVMFuzzerTestOneInput(now, (size_t)now_len);
        add_frame(now, now_len);
        count++;
    }
    closedir(dir);
    return count;
}

/* ---- changes ---- */

/* Puts text in place of `gone` bytes at `at`. */
static void replace(int64_t at, int64_t gone, const uint8_t *text, int64_t len) {
    if (now_len - gone + len > (int64_t)sizeof now) return;
    memmove(now + at + len, now + at + gone, (size_t)(now_len - at - gone));
    memmove(now + at, text, (size_t)len);
    now_len += len - gone;
}

static const char *const WORDS[] = {
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\":\"b\",",
    "\"a\":null,",
    "null",
    "true",
    "-",
    "0",
    "1e9",
    "2147483648",
    "\\u",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\n",
    "\xC2\x80",
    "\xFF",
    "\xE2\x80\xA8",
    "\"extFields\":{",
    "\"code\":",
    "\"remark\":\"",
    "\"language\":\"",
    "[[[[",
    "{\"a\":{\"a\":",
    "                ",
    "xxxxxxxxxxxxxxx",
    "\xF0\x9F\x98\x80",
};
static const uint32_t NUMBERS[] = {
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 1 << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};

static void change(void) {
    uint8_t number[4];
    const input *other = &frames[check_below(frame_count)];
    int64_t from = now_len > 8 && check_below(16) != 0 ? 8 : 0;
    int64_t at = from + check_below(now_len - from + 1), left = now_len - at;
    int64_t some = left > 0 ? check_below(left < 32 ? left : 32) + 1 : 0;
    const char *word = WORDS[check_below(sizeof WORDS / sizeof *WORDS)];
    switch (check_below(8)) {
    case 0:
        if (left > 0) now[at] ^= (uint8_t)(1 << check_below(8));
        break;
    case 1:
        if (left > 0) now[at] = (uint8_t)check_random();
        break;
    case 2:
        replace(at, 0, (const uint8_t *)word, (int64_t)strlen(word));
        break;
    case 3:
        replace(at, some, (const uint8_t *)word, (int64_t)strlen(word));
        break;
    case 4:
        replace(at, some, number, 0);
        break;
    case 5:
        be32_put(number, NUMBERS[check_below(sizeof NUMBERS / sizeof *NUMBERS)]);
        some = 1 + check_below(4);
        replace(at, left < some ? left : some, number + 4 - some, some);
        break;
    case 6: { /* a piece of another frame */
        int64_t start = check_below(other->len), len = check_below(other->len - start) + 1;
        replace(at, check_below(2) == 0 ? some : 0, other->data + start, len);
        break;
    }
    default: /* the same again, now and then very often */
        for (int64_t times = check_below(50) == 0 ? 400 : 1; times > 0 && now_len < GROWTH; times--)
            replace(at, 0, now + at, some);
    }
}

/* Fields are numbers of four or eight bytes, at any multiple of two. */
static void change_in_place(void) {
    uint8_t number[8] = {0};
    int64_t from = now_len > 8 && check_below(32) != 0 ? 8 : 0;
    int64_t at = from + check_below(now_len - from), width = check_below(2) == 0 ? 4 : 8;
    int64_t some = 1 + check_below(64), left = now_len - at;
    const input *other = &frames[check_below(frame_count)];
    switch (check_below(8)) {
    case 0:
        now_len = check_below(16) == 0 ? at : now_len;
        break;
    case 1:
    case 2:
        now[at] ^= (uint8_t)(1 << check_below(8));
        break;
    case 3:
        now[at] = (uint8_t)check_random();
        break;
    case 4:
    case 5:
        at -= (at - from) % 2;
        be32_put(number + width - 4, NUMBERS[check_below(sizeof NUMBERS / sizeof *NUMBERS)]);
        memcpy(now + at, number, (size_t)(now_len - at < width ? now_len - at : width));
        break;
    case 6:
        memset(now + at, 0, (size_t)(left < some ? left : some));
        break;
    default: { /* a piece of it, or of another file, elsewhere */
        int64_t start = check_below(other->len), len = other->len - start;
        len = len < some ? len : some;
        memcpy(now + at, other->data + start, (size_t)(left < len ? left : len));
    }
    }
}

/* Makes the lengths right, which changes have made wrong, so that the header is looked at. */
static void mend(int64_t body_len) {
    if (now_len < 8) return;
    if (body_len > now_len - 8) body_len = now_len - 8;
    be32_put(now, (uint32_t)(now_len - 4));
    be32_put(now + 4, (uint32_t)(now[4] & 1) << 24 | (uint32_t)(now_len - 8 - body_len));
}

static void fuzz_one(void) {
    const input *begin = &frames[check_below(frame_count)];
    memcpy(now, begin->data, (size_t)begin->len);
    now_len = begin->len;
    int64_t body_len = now_len - 8 - (int64_t)(be32_get(now + 4) & 0xFFFFFF);
    for (int64_t count = 1 + check_below(CHANGES_MAX); count > 0; count--) {
        if (!fuzz_in_place)
            change();
        else if (now_len > 0)
            change_in_place();
    }
    if (!fuzz_in_place && check_below(16) != 0) mend(body_len > 0 ? body_len : 0);
    LLVMFuzzerTestOneInput(now, (size_t)now_len);
}

/* begin: after the frames of the files are there. */
static int fuzz_main(const char *name, int argc, char **argv, void (*begin)(void)) {
    check_begin();
    if (__sanitizer_set_death_callback != NULL) __sanitizer_set_death_callback(keep_find);
    signal(SIGPROF, on_signal); /* an input that takes seconds is a find too */
    signal(SIGABRT, on_signal);
    signal(SIGTRAP, on_signal);
    signal(SIGILL, on_signal);
    for (int i = 1; i < argc; i++) add_file(argv[i]);
    begin();
    int museum = run_museum();
    int64_t rounds = 0, most = fuzz_kinds * atoll(setting("PS_FUZZ_RUNS", "1000000000000"));
    time_t end = time(NULL) + atoll(setting("PS_FUZZ_SECONDS", "2"));
    while (time(NULL) < end && rounds < most) {
        limit_time(20);
        for (int i = 0; i < 500; i++, rounds++) fuzz_one();
        if (rounds % 1000000 == 0) {
            printf("%" PRId64 " inputs so far\n", rounds);
            fflush(stdout);
        }
    }
    limit_time(0);
    printf("%" PRId64 " inputs from %d frames, %d of the museum\n", rounds, frame_count, museum);
    for (int i = 0; i < frame_count; i++) free(frames[i].data);
    return check_end(name);
}

#endif
