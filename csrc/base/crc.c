/* CRC-32/ISO-HDLC, four ways.
 *
 * P(x) = x^32 + 0x04C11DB7. Bytes are taken least significant bit first, so a register loaded from
 * memory holds the polynomial mirrored: bit i of 128 is the coefficient of x^(127-i), and a
 * carry-less product of two 64-bit halves a and b is x * A * B. A constant that multiplies by x^m
 * is therefore X(m) = mirror64(x^(m-1) mod P).
 *
 * Folding: a block of 128 bits that stands j blocks before another weighs x^(128 j) times as much,
 * so its halves times X(128 j + 64) and X(128 j) may be added to the later block. All blocks that
 * remain at the end are folded onto the last at once, each by its own distance: the products do not
 * wait for one another, which is what makes short messages fast.
 *
 * Upstream: common/.../UtilAll.crc32 (java.util.zip.CRC32). */
#include "base/crc.h"

#include <stdatomic.h>
#include <string.h>

#include "base/bytes.h"

typedef uint32_t (*crc_function)(uint32_t crc, const uint8_t *p, size_t len);

/* ---- plain: eight bytes a step through eight tables ----
 *
 * SLICE[k][n] is the remainder of byte n followed by k zero bytes. It is linear in n, so that eight
 * values a table, those of the single bits, make the rest at compile time. */
#define BIT(n, b, v) ((n) >> (b) & 1 ? (v) : 0u)
#define ENTRY(n, a, b, c, d, e, f, g, h)                                                       \
    (BIT(n, 0, a) ^ BIT(n, 1, b) ^ BIT(n, 2, c) ^ BIT(n, 3, d) ^ BIT(n, 4, e) ^ BIT(n, 5, f) ^ \
     BIT(n, 6, g) ^ BIT(n, 7, h))
#define ENTRIES_4(n, ...)                                                            \
    ENTRY(n, __VA_ARGS__), ENTRY(n + 1, __VA_ARGS__), ENTRY(n + 2, __VA_ARGS__),     \
        ENTRY(n + 3, __VA_ARGS__)
#define ENTRIES_16(n, ...)                                                           \
    ENTRIES_4(n, __VA_ARGS__), ENTRIES_4(n + 4, __VA_ARGS__),                        \
        ENTRIES_4(n + 8, __VA_ARGS__), ENTRIES_4(n + 12, __VA_ARGS__)
#define ENTRIES_64(n, ...)                                                           \
    ENTRIES_16(n, __VA_ARGS__), ENTRIES_16(n + 16, __VA_ARGS__),                     \
        ENTRIES_16(n + 32, __VA_ARGS__), ENTRIES_16(n + 48, __VA_ARGS__)
#define TABLE(...)                                                                   \
    {                                                                                \
        ENTRIES_64(0, __VA_ARGS__), ENTRIES_64(64, __VA_ARGS__),                     \
            ENTRIES_64(128, __VA_ARGS__), ENTRIES_64(192, __VA_ARGS__)               \
    }

static const uint32_t SLICE[8][256] = {
    TABLE(0x77073096u, 0xEE0E612Cu, 0x076DC419u, 0x0EDB8832u, 0x1DB71064u, 0x3B6E20C8u, 0x76DC4190u,
          0xEDB88320u),
    TABLE(0x191B3141u, 0x32366282u, 0x646CC504u, 0xC8D98A08u, 0x4AC21251u, 0x958424A2u, 0xF0794F05u,
          0x3B83984Bu),
    TABLE(0x01C26A37u, 0x0384D46Eu, 0x0709A8DCu, 0x0E1351B8u, 0x1C26A370u, 0x384D46E0u, 0x709A8DC0u,
          0xE1351B80u),
    TABLE(0xB8BC6765u, 0xAA09C88Bu, 0x8F629757u, 0xC5B428EFu, 0x5019579Fu, 0xA032AF3Eu, 0x9B14583Du,
          0xED59B63Bu),
    TABLE(0x3D6029B0u, 0x7AC05360u, 0xF580A6C0u, 0x30704BC1u, 0x60E09782u, 0xC1C12F04u, 0x58F35849u,
          0xB1E6B092u),
    TABLE(0xCB5CD3A5u, 0x4DC8A10Bu, 0x9B914216u, 0xEC53826Du, 0x03D6029Bu, 0x07AC0536u, 0x0F580A6Cu,
          0x1EB014D8u),
    TABLE(0xA6770BB4u, 0x979F1129u, 0xF44F2413u, 0x33EF4E67u, 0x67DE9CCEu, 0xCFBD399Cu, 0x440B7579u,
          0x8816EAF2u),
    TABLE(0xCCAA009Eu, 0x4225077Du, 0x844A0EFAu, 0xD3E51BB5u, 0x7CBB312Bu, 0xF9766256u, 0x299DC2EDu,
          0x533B85DAu),
};

static uint32_t crc_plain(uint32_t crc, const uint8_t *p, size_t len) {
    uint32_t c = ~crc;
    for (; len >= 8; len -= 8, p += 8) {
        c ^= __builtin_bswap32(be32_get(p));
        c = SLICE[7][c & 255] ^ SLICE[6][c >> 8 & 255] ^ SLICE[5][c >> 16 & 255] ^
            SLICE[4][c >> 24] ^ SLICE[3][p[4]] ^ SLICE[2][p[5]] ^ SLICE[1][p[6]] ^ SLICE[0][p[7]];
    }
    for (; len > 0; len--, p++) c = SLICE[0][(c ^ *p) & 255] ^ c >> 8;
    return ~c;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define WITH_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define WITH_VPCLMUL \
    __attribute__((target("pclmul,sse4.1,avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq")))
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 16, WIDE = 64, FOLD_MAX = 20 };

/* FOLD[FOLD_MAX - j] moves a block on by j blocks: X(128 j + 64) for its first half, X(128 j) for
 * its second. They descend so that one load has the constants for neighbouring blocks. Moving on by
 * 0 blocks is X(0), made of 1/x mod P = P >> 1: it changes the bits but not the remainder. */
static const uint64_t FOLD[FOLD_MAX + 1][2] __attribute__((aligned(64))) = {
    {0xC2D4D8B300000000u, 0xF8D22C1A00000000u}, {0xC0586E2800000000u, 0x2032BFB500000000u},
    {0xCBD5B26D00000000u, 0x104538CE00000000u}, {0xFCDA35EC00000000u, 0xED5B10CC00000000u},
    {0x7CC8E1E700000000u, 0x03F9F86300000000u}, {0x27D0443C00000000u, 0xC4D49C3900000000u},
    {0x8F739CB400000000u, 0xD63A56A600000000u}, {0x733FFA0B00000000u, 0x523D48C400000000u},
    {0x67F7947600000000u, 0xC56D949600000000u}, {0xDEB15A1F00000000u, 0xF09A54AC00000000u},
    {0x199560DB00000000u, 0x1D5DCE4400000000u}, {0x72D2649A00000000u, 0x6DD804D900000000u},
    {0x7D657A1000000000u, 0x7406FA9500000000u}, {0x019866E800000000u, 0xC64AC0B800000000u},
    {0x759FC69D00000000u, 0x101A233100000000u}, {0x5A03A0CF00000000u, 0x8E42B13E00000000u},
    {0x653D982200000000u, 0xCAD38E8F00000000u}, {0x69CCFC0D00000000u, 0x2A28386200000000u},
    {0x9570D49500000000u, 0x01B5FD1D00000000u}, {0x65673B4600000000u, 0x9BA54C6F00000000u},
    {0xB8BC676500000000u, 0xDB71064100000000u},
};

/* The constants for a block followed by `behind` blocks; those of the next blocks follow. */
INLINE const uint64_t *fold_by(size_t behind) {
    return &FOLD[FOLD_MAX][0] - 2 * behind;
}

/* Turning the 128 bits V = H x^64 + L that are left into V x^32 mod P, by Barrett's method:
 * T = H (x^96 mod P) + L x^32 is congruent and has 96 bits, its upper 64 are U; the quotient is
 * q = U MU / x^64 with MU = floor(x^96 / P), whose own x^64 is the addition of U below; the rest is
 * the low 32 bits of T + q P. The constants are placed so that only one product needs a shift. */
#define X96 0xCCAA009Eu         /* mirror32(x^95 mod P) */
#define MU 0x5A72D812FB808B20u  /* mirror64(floor(x^96 / P) - x^64) */
#define POLY 0x1DB710640u       /* mirror32(P - x^32), one bit up */

WITH_PCLMUL INLINE uint32_t reduce(__m128i v) {
    const __m128i first = _mm_set_epi64x((int64_t)MU, X96), second = _mm_set_epi64x(0, POLY);
    __m128i t = _mm_xor_si128(_mm_clmulepi64_si128(v, first, 0x00), _mm_srli_si128(v, 8));
    __m128i q = _mm_clmulepi64_si128(t, first, 0x10);
    q = _mm_xor_si128(_mm_add_epi64(q, q), t);
    q = _mm_xor_si128(_mm_clmulepi64_si128(q, second, 0x00), t);
    return (uint32_t)_mm_extract_epi32(q, 2);
}

WITH_PCLMUL INLINE __m128i block_get(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

WITH_PCLMUL INLINE __m128i block_fold(__m128i v, const uint64_t *by) {
    const __m128i k = _mm_load_si128((const __m128i *)by);
    return _mm_xor_si128(_mm_clmulepi64_si128(v, k, 0x00), _mm_clmulepi64_si128(v, k, 0x11));
}

/* Adds the 1 to 15 bytes before `end` to v, which stands for all that comes before them; at least
 * 16 bytes may be read before `end`. The 16 bytes of v and the new ones are cut into a first part
 * as long as the new ones and a last part of 16 bytes, and the first is folded onto the last. */
WITH_PCLMUL INLINE __m128i bytes_fold(__m128i v, const uint8_t *end, size_t len) {
    static const uint8_t places[3 * BLOCK] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    __m128i up = block_get(places + len), down = block_get(places + BLOCK + len);
    __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(v, down), block_get(end - BLOCK), down);
    return _mm_xor_si128(block_fold(_mm_shuffle_epi8(v, up), fold_by(1)), last);
}

WITH_PCLMUL INLINE __m128i xor3(__m128i a, __m128i b, __m128i c) {
    return _mm_xor_si128(_mm_xor_si128(a, b), c);
}

/* Four blocks a step; moves *p and *len on and returns one block that stands for all it took. */
WITH_PCLMUL INLINE __m128i blocks_fold(__m128i v0, const uint8_t **p, size_t *len) {
    const uint64_t *by = fold_by(4);
    const uint8_t *at = *p;
    size_t left = *len;
    __m128i v1 = block_get(at), v2 = block_get(at + BLOCK), v3 = block_get(at + 2 * BLOCK);
    at += 3 * BLOCK;
    left -= 3 * BLOCK;
    for (; left >= 4 * BLOCK; left -= 4 * BLOCK, at += 4 * BLOCK) {
        v0 = _mm_xor_si128(block_fold(v0, by), block_get(at));
        v1 = _mm_xor_si128(block_fold(v1, by), block_get(at + BLOCK));
        v2 = _mm_xor_si128(block_fold(v2, by), block_get(at + 2 * BLOCK));
        v3 = _mm_xor_si128(block_fold(v3, by), block_get(at + 3 * BLOCK));
    }
    *p = at;
    *len = left;
    v0 = xor3(block_fold(v0, fold_by(3)), block_fold(v1, fold_by(2)), v3);
    return _mm_xor_si128(v0, block_fold(v2, fold_by(1)));
}

WITH_PCLMUL static uint32_t crc_pclmul(uint32_t crc, const uint8_t *p, size_t len) {
    if (len < BLOCK) return crc_plain(crc, p, len);
    __m128i v = _mm_xor_si128(block_get(p), _mm_cvtsi32_si128((int)~crc));
    p += BLOCK;
    len -= BLOCK;
    if (len >= FOLD_MAX * BLOCK) v = blocks_fold(v, &p, &len);
    const uint64_t *by = fold_by(len / BLOCK);
    __m128i sum = block_fold(v, by);
    for (; len >= BLOCK; len -= BLOCK, p += BLOCK) {
        by += 2;
        sum = _mm_xor_si128(sum, block_fold(block_get(p), by));
    }
    if (len > 0) sum = bytes_fold(sum, p + len, len);
    return ~reduce(sum);
}

/* ---- the same with four blocks a register ---- */

WITH_VPCLMUL INLINE __m512i wide_get(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

WITH_VPCLMUL INLINE __m512i wide_fold(__m512i v, __m512i k, __m512i add) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(v, k, 0x00),
                                     _mm512_clmulepi64_epi128(v, k, 0x11), add, 0x96);
}

WITH_VPCLMUL INLINE __m512i wide_by(size_t behind) {
    return _mm512_broadcast_i64x2(_mm_load_si128((const __m128i *)fold_by(behind)));
}

WITH_VPCLMUL INLINE __m512i wides_fold(__m512i v0, const uint8_t **p, size_t *len) {
    const __m512i by = wide_by(16), none = _mm512_setzero_si512();
    const uint8_t *at = *p;
    size_t left = *len;
    __m512i v1 = wide_get(at), v2 = wide_get(at + WIDE), v3 = wide_get(at + 2 * WIDE);
    at += 3 * WIDE;
    left -= 3 * WIDE;
    for (; left >= 4 * WIDE; left -= 4 * WIDE, at += 4 * WIDE) {
        v0 = wide_fold(v0, by, wide_get(at));
        v1 = wide_fold(v1, by, wide_get(at + WIDE));
        v2 = wide_fold(v2, by, wide_get(at + 2 * WIDE));
        v3 = wide_fold(v3, by, wide_get(at + 3 * WIDE));
    }
    *p = at;
    *len = left;
    v0 = wide_fold(v0, wide_by(12), wide_fold(v1, wide_by(8), none));
    return _mm512_xor_si512(v0, wide_fold(v2, wide_by(4), v3));
}

WITH_VPCLMUL static uint32_t crc_vpclmul(uint32_t crc, const uint8_t *p, size_t len) {
    if (len < WIDE) return crc_pclmul(crc, p, len);
    __m512i v = _mm512_xor_si512(wide_get(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    p += WIDE;
    len -= WIDE;
    if (len >= 4 * WIDE) v = wides_fold(v, &p, &len);
    const uint64_t *by = fold_by(3 + len / BLOCK);
    __m512i sum = wide_fold(v, _mm512_loadu_si512(by), _mm512_setzero_si512());
    for (; len >= WIDE; len -= WIDE, p += WIDE) {
        by += 8;
        sum = wide_fold(wide_get(p), _mm512_loadu_si512(by), sum);
    }
    if (len >= BLOCK) {
        by += 8;
        size_t blocks = len / BLOCK;
        __mmask8 some = (__mmask8)((1u << 2 * blocks) - 1);
        sum = wide_fold(_mm512_maskz_loadu_epi64(some, p), _mm512_maskz_loadu_epi64(some, by), sum);
        len -= BLOCK * blocks;
        p += BLOCK * blocks;
    }
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    __m128i last = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    if (len > 0) last = bytes_fold(last, p + len, len);
    return ~reduce(last);
}

static bool has_pclmul(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

static bool has_vpclmul(void) {
    return has_pclmul() && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#endif

#if defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

__attribute__((target("+crc")))
static uint32_t crc_armv8(uint32_t crc, const uint8_t *p, size_t len) {
    uint32_t c = ~crc;
    for (; len >= 8; len -= 8, p += 8) c = __crc32d(c, __builtin_bswap64(be64_get(p)));
    for (; len > 0; len--, p++) c = __crc32b(c, *p);
    return ~c;
}

static bool has_armv8(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & 1ul << 7; /* HWCAP_CRC32 */
#else
    return true; /* Every 64-bit ARM of the other systems has these instructions. */
#endif
}
#endif

/* ---- the choice ---- */

typedef struct crc_way {
    const char *name;
    crc_function function;
    bool (*has)(void);
} crc_way;

static bool has_plain(void) {
    return true;
}

/* The best first. */
static const crc_way WAYS[] = {
#if defined(__x86_64__)
    {"vpclmul", crc_vpclmul, has_vpclmul},
    {"pclmul", crc_pclmul, has_pclmul},
#endif
#if defined(__aarch64__)
    {"armv8", crc_armv8, has_armv8},
#endif
    {"plain", crc_plain, has_plain},
};

static const crc_way *way_choose(void) {
    const crc_way *way = WAYS;
    while (!way->has()) way++;
    return way;
}

static uint32_t crc_first(uint32_t crc, const uint8_t *p, size_t len);

/* Threads that race here store the same value. */
static _Atomic(crc_function) chosen = crc_first;

static uint32_t crc_first(uint32_t crc, const uint8_t *p, size_t len) {
    crc_function f = way_choose()->function;
    atomic_store_explicit(&chosen, f, memory_order_relaxed);
    return f(crc, p, len);
}

uint32_t ps_crc32(uint32_t crc, const void *data, size_t len) {
    return atomic_load_explicit(&chosen, memory_order_relaxed)(crc, data, len);
}

/* ---- two sums as one ---- */

#define MIRRORED 0xEDB88320u /* P(x), without x^32 */
#define ONE (1u << 31)       /* the polynomial 1: bit 31 is the coefficient of x^0 */

/* The product of two polynomials, mod P. */
static uint32_t crc_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        if (a & ONE) product ^= b;
        b = b & 1 ? b >> 1 ^ MIRRORED : b >> 1;
    }
    return product;
}

/* Bytes that follow move a remainder up by x^8 each. What a CRC begins and ends with, all ones, is
 * in both of the second run's ends, and cancels itself. */
uint32_t ps_crc32_mover(uint64_t len) {
    uint32_t mover = ONE, power = ONE >> 8;
    for (; len != 0; len >>= 1) {
        if (len & 1) mover = crc_times(mover, power);
        power = crc_times(power, power);
    }
    return mover;
}

uint32_t ps_crc32_moved(uint32_t first, uint32_t second, uint32_t mover) {
    return crc_times(mover, first) ^ second;
}

uint32_t ps_crc32_join(uint32_t first, uint32_t second, uint64_t len) {
    return ps_crc32_moved(first, second, ps_crc32_mover(len));
}

bool ps_crc32_right(const uint8_t *data, int64_t len, const uint8_t *sums, int64_t block,
                    int64_t to, int64_t *right) {
    while (*right < to) {
        int64_t left = len - *right, size = left < block ? left : block;
        const uint8_t *sum = sums + *right / block * (int64_t)sizeof(uint32_t);
        if (ps_crc32(0, data + *right, (size_t)size) != be32_get(sum)) return false;
        *right += size;
    }
    return true;
}

uint64_t ps_crc32_sum(const uint8_t *data, const int32_t *offsets, int64_t count, uint32_t mask) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += ps_crc32(0, data + offsets[i], (size_t)(offsets[i + 1] - offsets[i])) & mask;
    return sum;
}

int ps_crc32_by(const char *name, uint32_t crc, const void *data, size_t len, uint32_t *out) {
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        if (strcmp(WAYS[i].name, name) == 0 && WAYS[i].has()) {
            *out = WAYS[i].function(crc, data, len);
            return 0;
        }
    }
    return -1;
}

const char *ps_crc32_name(void) {
    return way_choose()->name;
}
