/* Nanoseconds a frame, decoding and encoding, in C: the request of a send and the answer to it, in
 * both header encodings.
 *
 *   command [ROUNDS]
 *
 * One JSON line for each; ns is that of the best round, ns_median that of the middle one. A round
 * is ROUND_FRAMES frames, the same one over and over: everything is in the cache, as it is for a
 * frame that was just received. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire/command.h"

enum { ROUND_FRAMES = 200000, ROUNDS_MAX = 101, ROOM = 4096 };

#define TEXT(text) {(const uint8_t *)(text), sizeof(text) - 1}

static const ps_field REQUEST[] = {
    {TEXT("a"), TEXT("golden5-producer")},
    {TEXT("b"), TEXT("golden5_plain")},
    {TEXT("c"), TEXT("TBW102")},
    {TEXT("d"), TEXT("4")},
    {TEXT("e"), TEXT("0")},
    {TEXT("f"), TEXT("0")},
    {TEXT("g"), TEXT("1795233975092")},
    {TEXT("h"), TEXT("0")},
    {TEXT("i"), TEXT("UNIQ_KEY\001FD00000000000000000000000000000245595FFD2B2767E0A3330000\002"
                     "WAIT\001true\002TAGS\001BBBB\002")},
    {TEXT("j"), TEXT("0")},
    {TEXT("k"), TEXT("false")},
    {TEXT("m"), TEXT("false")},
    {TEXT("n"), TEXT("broker-a")},
};
static const ps_field ANSWER[] = {
    {TEXT("queueId"), TEXT("0")},
    {TEXT("TRACE_ON"), TEXT("true")},
    {TEXT("MSG_REGION"), TEXT("DefaultRegion")},
    {TEXT("msgId"), TEXT("C000020200002A9F0000000000001234")},
    {TEXT("queueOffset"), TEXT("17")},
};

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *what, int kind, const char *way, int64_t size, double *ns,
                   int rounds) {
    qsort(ns, (size_t)rounds, sizeof *ns, by_size);
    printf("{\"frame\": \"%s\", \"header\": \"%s\", \"way\": \"%s\", \"bytes\": %lld, "
           "\"ns\": %.1f, \"ns_median\": %.1f}\n",
           what, kind == PS_SERIALIZE_JSON ? "JSON" : "ROCKETMQ", way, (long long)size, ns[0],
           ns[rounds / 2]);
}

static int bench(const char *what, ps_command *command, int64_t body_len, int rounds) {
    static uint8_t frame[ROOM], scratch[ROOM], out[ROOM];
    static ps_command got;
    double ns[ROUNDS_MAX];
    int64_t wanted, sum = 0;
    int64_t head = ps_command_encode(command, body_len, frame, ROOM, NULL), size = head + body_len;
    for (int r = 0; r < rounds; r++) {
        double start = now_ns();
        for (int i = 0; i < ROUND_FRAMES; i++)
            sum += ps_command_decode(frame, size, 1 << 24, scratch, &got, &wanted, NULL);
        ns[r] = (now_ns() - start) / ROUND_FRAMES;
    }
    report(what, command->serialize, "decode", head, ns, rounds);
    for (int r = 0; r < rounds; r++) {
        double start = now_ns();
        for (int i = 0; i < ROUND_FRAMES; i++)
            sum += ps_command_encode(command, body_len, out, ROOM, NULL);
        ns[r] = (now_ns() - start) / ROUND_FRAMES;
    }
    report(what, command->serialize, "encode", head, ns, rounds);
    return sum == (int64_t)rounds * ROUND_FRAMES * (size + head) ? 0 : 1;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 11, failed = 0;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    static ps_command c;
    for (int kind = PS_SERIALIZE_JSON; kind <= PS_SERIALIZE_ROCKETMQ; kind++) {
        c = (ps_command){.serialize = kind, .version = 479, .opaque = 12345};
        c.code = 310;
        c.field_count = sizeof REQUEST / sizeof *REQUEST;
        memcpy(c.fields, REQUEST, sizeof REQUEST);
        failed |= bench("send request", &c, 128, rounds);
        c.code = 0;
        c.flag = PS_FLAG_RESPONSE;
        c.field_count = sizeof ANSWER / sizeof *ANSWER;
        memcpy(c.fields, ANSWER, sizeof ANSWER);
        failed |= bench("send answer", &c, 0, rounds);
    }
    if (failed) fprintf(stderr, "a frame was not decoded or encoded\n");
    return failed;
}
