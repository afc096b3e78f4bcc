/* Fuzzes the command codec. LLVMFuzzerTestOneInput is the whole test, for libFuzzer (build with
 * PS_LIBFUZZER and clang's -fsanitize=fuzzer) or for the driver below, which needs gcc alone:
 *
 *   fuzz_command [FILE...]
 *
 * runs the files and the museum, then changes frames at random for PS_FUZZ_SECONDS (2). FILE holds
 * frames, one after the other; those of the museum (PS_FUZZ_MUSEUM, tests/fuzz/museum/command) are
 * single inputs as they once were found. PS_SEED repeats a run; the input that ends one is written
 * to PS_FUZZ_FIND (build/fuzz-find). */
#define _GNU_SOURCE
#include "wire.h"

enum { INPUT_MAX = PS_HEADER_MAX + 4096 };
#define FUZZ_MUSEUM "tests/fuzz/museum/command"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (wire_in_end == NULL) wire_begin();
    if (size > INPUT_MAX) return 0;
    wire_try(data, (int64_t)size);
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

static void add_own_frames(void) {
    static const char *const HEADERS[] = {
        "{\"code\":310,\"extFields\":{\"a\":\"group\",\"b\":\"topic\",\"i\":"
        "\"KEYS\\u0001k\\u0002\","
        "\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":5,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        "{\"remark\":\"\\ud83d\\ude00 \xE6\xB3\xA8\\n\",\"x\":[1,{\"y\":[-1.5e3,true,null]}]}",
        " { \"extFields\" : { \"a\" : null , \"a\" : 1 } , \"language\" : \"GO\" } ",
    };
    uint8_t frame[1024], *out;
    static ps_command c;
    for (size_t i = 0; i < sizeof HEADERS / sizeof *HEADERS; i++) {
        int64_t len = wire_frame(frame, 0, HEADERS[i], (int64_t)strlen(HEADERS[i]), "body", 4),
                gone;
        add_frame(frame, len);
        if (wire_decode(frame, len, &c, &gone, NULL) <= 0) continue;
        c.serialize = PS_SERIALIZE_ROCKETMQ;
        len = wire_encode(&c, 0, &out);
        if (len > 0) add_frame(out, len);
    }
}

int main(int argc, char **argv) {
    wire_begin();
    return fuzz_main("fuzz_command", argc, argv, add_own_frames);
}
#endif
