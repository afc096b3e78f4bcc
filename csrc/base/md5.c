/* See md5.h. The message in blocks of 64 bytes, little-endian; at its end 0x80, zeros, and its
 * length in bits. Four rounds of sixteen steps mix each block into four words. */
#include "base/md5.h"

#include <string.h>

#define BLOCK 64
#define LENGTH_AT 56

/* Step i adds floor(2^32 * |sin(i + 1)|) and turns left by so many bits. */
static const uint32_t SINES[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a,
    0xa8304613, 0xfd469501, 0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be,
    0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340,
    0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8,
    0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c,
    0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa,
    0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92,
    0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1,
    0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
static const uint8_t TURNS[4][4] = {
    {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

static inline uint32_t little_get(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void little_put(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* One step; the compiler unrolls the loops around it, so that round and i are constants. */
static inline uint32_t md5_step(int round, int i, const uint32_t w[16], const uint32_t s[4]) {
    uint32_t a = s[0], b = s[1], c = s[2], d = s[3], mixed;
    int at;
    switch (round) {
    case 0:
        mixed = d ^ (b & (c ^ d));
        at = i;
        break;
    case 1:
        mixed = c ^ (d & (b ^ c));
        at = 5 * i + 1;
        break;
    case 2:
        mixed = b ^ c ^ d;
        at = 3 * i + 5;
        break;
    default:
        mixed = c ^ (b | ~d);
        at = 7 * i;
    }
    uint32_t sum = a + mixed + w[at & 15] + SINES[16 * round + i];
    int turn = TURNS[round][i & 3];
    return b + (sum << turn | sum >> (32 - turn));
}

static void md5_mix_block(uint32_t state[4], const uint8_t *block) {
    uint32_t w[16], s[4];
    for (int i = 0; i < 16; i++) w[i] = little_get(block + 4 * i);
    memcpy(s, state, sizeof s);
#pragma GCC unroll 4
    for (int round = 0; round < 4; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            uint32_t b = md5_step(round, i, w, s);
            s[0] = s[3], s[3] = s[2], s[2] = s[1], s[1] = b;
        }
    }
    for (int i = 0; i < 4; i++) state[i] += s[i];
}

void ps_md5(const uint8_t *data, int64_t len, uint8_t out[PS_MD5_LEN]) {
    uint32_t state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    uint8_t last[2 * BLOCK] = {0};
    int64_t at = 0;
    for (; len - at >= BLOCK; at += BLOCK) md5_mix_block(state, data + at);
    int64_t rest = len - at, whole = rest < LENGTH_AT ? BLOCK : 2 * BLOCK;
    if (rest > 0) memcpy(last, data + at, (size_t)rest);
    last[rest] = 0x80;
    uint64_t bits = (uint64_t)len << 3;
    little_put(last + whole - 8, (uint32_t)bits);
    little_put(last + whole - 4, (uint32_t)(bits >> 32));
    for (int64_t i = 0; i < whole; i += BLOCK) md5_mix_block(state, last + i);
    for (int i = 0; i < 4; i++) little_put(out + 4 * i, state[i]);
}
