/* See litename.h. */
#include "format/litename.h"

int32_t ps_lite_name_problem(const uint8_t *name, int32_t len, int32_t most) {
    int32_t blanks = 0, legal = 0;
    for (int32_t i = 0; i < len; i++) {
        uint8_t c = name[i], low = c | 0x20;
        blanks += c <= ' ';
        legal += (low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    }
    if (len > most) return PS_LITE_LONG;
    if (blanks == len) return PS_LITE_BLANK;
    return legal == len ? 0 : PS_LITE_LETTERS;
}

int32_t ps_lite_names_sound(const uint8_t *names, const int32_t *lens, int32_t count,
                            int32_t most) {
    int32_t sound = 0;
    while (sound < count && ps_lite_name_problem(names, lens[sound], most) == 0)
        names += lens[sound++];
    return sound;
}
