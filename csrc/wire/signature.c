/* See signature.h. RFC 2104; upstream AclUtils.calSignature. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "wire/signature.h"

#define BLOCK 64
#define SUM 20
#define A_FEW 32 /* fields, which need no quicker way of sorting */

/* SHA_CTX has 96 bytes in every version of the library. */
typedef struct state {
    uint64_t words[16];
} state;

struct ps_signer {
    ps_digest_functions si_do;
    state si_inner, si_outer;
    int32_t si_count; /* fields of the last request; then their order */
    uint8_t si_order[A_FEW];
    bool si_bound; /* the last request; then its first value */
    ps_slice si_first;
};

/* A digest that has hashed the secret, each byte combined with `pad`. */
static bool hash_key(const ps_digest_functions *with, const uint8_t *key, uint8_t pad, state *out) {
    uint8_t block[BLOCK];
    for (int i = 0; i < BLOCK; i++) block[i] = key[i] ^ pad;
    bool good = with->init(out) && with->update(out, block, BLOCK);
    explicit_bzero(block, sizeof block);
    return good;
}

ps_signer *ps_signer_make(const ps_digest_functions *functions, const char *secret,
                          int32_t secret_len) {
    uint8_t padded[BLOCK] = {0};
    bool good = true;
    ps_signer *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->si_do = *functions;
    if (secret_len <= BLOCK)
        memcpy(padded, secret, (size_t)secret_len);
    else
        good = functions->init(&s->si_inner) &&
               functions->update(&s->si_inner, secret, (size_t)secret_len) &&
               functions->final(padded, &s->si_inner);
    good = good && hash_key(functions, padded, 0x36, &s->si_inner) &&
           hash_key(functions, padded, 0x5c, &s->si_outer);
    explicit_bzero(padded, sizeof padded);
    if (good) return s;
    ps_signer_free(s);
    return NULL;
}

void ps_signer_free(ps_signer *s) {
    if (s == NULL) return;
    explicit_bzero(s, sizeof *s);
    free(s);
}

/* Sends name their fields with single letters, so that the first byte mostly decides. */
static int compare_slices(const ps_slice *a, const ps_slice *b) {
    int32_t len = a->len < b->len ? a->len : b->len;
    if (len > 0 && *a->data != *b->data) return *a->data - *b->data;
    int order = len ? memcmp(a->data, b->data, (size_t)len) : 0;
    return order ? order : a->len - b->len;
}

static int compare_names(const void *one, const void *other) {
    const ps_field *a = *(const ps_field *const *)one, *b = *(const ps_field *const *)other;
    return compare_slices(&a->name, &b->name);
}

/* A few, as requests have them. False: two are equal. */
static bool insert_sorted(const ps_field **fields, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        const ps_field *moved = fields[i];
        int32_t at = i, order = -1;
        for (; at > 0 && (order = compare_slices(&fields[at - 1]->name, &moved->name)) > 0; at--)
            fields[at] = fields[at - 1];
        if (order == 0) return false;
        fields[at] = moved;
    }
    return true;
}

static bool sort_few(ps_signer *s, const ps_field *fields, int32_t count, const ps_field **out) {
    bool alike = count == s->si_count;
    for (int32_t i = 0; i < count; i++) out[i] = &fields[alike ? s->si_order[i] : i];
    if (!insert_sorted(out, count)) return false;
    for (int32_t i = 0; i < count; i++) s->si_order[i] = (uint8_t)(out[i] - fields);
    s->si_count = count;
    return true;
}

static bool sort_many(const ps_field *fields, int32_t count, const ps_field **out) {
    for (int32_t i = 0; i < count; i++) out[i] = &fields[i];
    qsort(out, (size_t)count, sizeof *out, compare_names);
    for (int32_t i = 1; i < count; i++)
        if (compare_slices(&out[i - 1]->name, &out[i]->name) == 0) return false;
    return true;
}

static bool sort_fields(ps_signer *s, const ps_field *fields, int32_t count,
                        const ps_field **out) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < fields[i].name.len; k++)
            if (fields[i].name.data[k] > 127) return false;
    return count <= A_FEW ? sort_few(s, fields, count, out) : sort_many(fields, count, out);
}

static void encode_base64(const uint8_t *sum, char *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t padded[21] = {0};
    memcpy(padded, sum, SUM);
    for (int i = 0; i < 7; i++) {
        uint32_t v = (uint32_t)padded[3 * i] << 16 | padded[3 * i + 1] << 8 | padded[3 * i + 2];
        for (int k = 0; k < 4; k++) out[4 * i + k] = digits[v >> (18 - 6 * k) & 63];
    }
    out[PS_SIGNATURE_LEN - 1] = '=';
}

/* What the digest is to take in, gathered: a call of the library costs as much as a block. */
typedef struct gathered {
    const ps_digest_functions *with;
    state work;
    bool good;
    size_t len;
    uint8_t data[1024];
} gathered;

static void gather_bytes(gathered *g, const uint8_t *data, size_t len) {
    if (g->len + len > sizeof g->data) {
        g->good = g->good && g->with->update(&g->work, g->data, g->len);
        g->len = 0;
    }
    if (len > sizeof g->data) {
        g->good = g->good && g->with->update(&g->work, data, len);
    } else if (len > 0) {
        memcpy(g->data + g->len, data, len);
        g->len += len;
    }
}

static void begin_digest(const ps_signer *s, gathered *g) {
    g->with = &s->si_do;
    g->work = s->si_inner;
    g->good = true;
    g->len = 0;
}

static bool finish_digest(const ps_signer *s, gathered *g, uint8_t sum[SUM]) {
    bool good = g->good && g->with->update(&g->work, g->data, g->len) &&
                g->with->final(sum, &g->work);
    g->work = s->si_outer;
    return good && g->with->update(&g->work, sum, SUM) && g->with->final(sum, &g->work);
}

/* The one field that is not signed. */
static bool is_signature(ps_slice name) {
    return name.len == 9 && memcmp(name.data, "Signature", 9) == 0;
}

/* The word that a binding begins with (broker/access/signature.py). Places in it; -1: it is not. */
static int32_t match_word(ps_slice part, int32_t at) {
    static const char word[] = "pystore-for ";
    const int32_t len = (int32_t)sizeof word - 1;
    for (int32_t i = 0; i < part.len && at < len; i++)
        if (part.data[i] != (uint8_t)word[at++]) return -1;
    return at;
}

static void look_at_begin(ps_signer *s, const ps_field *const *sorted, int32_t count,
                          ps_slice body) {
    int32_t at = 0, i = 0;
    s->si_first = (ps_slice){NULL, 0};
    for (; i < count && at >= 0; i++) {
        if (is_signature(sorted[i]->name)) continue;
        if (s->si_first.data == NULL) s->si_first = sorted[i]->value;
        int32_t next = match_word(sorted[i]->value, at);
        if (next == at && sorted[i]->value.len > 0) break; /* all of the word was there */
        at = next;
    }
    if (at >= 0) at = match_word(body, at);
    s->si_bound = at == (int32_t)sizeof "pystore-for " - 1;
}

bool ps_signer_is_bound(const ps_signer *s, ps_slice *first) {
    *first = s->si_first;
    return s->si_bound;
}

bool ps_signer_sign(ps_signer *s, const ps_field *fields, int32_t count, ps_slice body,
                    char *text) {
    const ps_field *sorted[PS_FIELDS_MAX];
    uint8_t sum[SUM];
    if (count > PS_FIELDS_MAX || !sort_fields(s, fields, count, sorted)) return false;
    look_at_begin(s, sorted, count, body);
    gathered g;
    begin_digest(s, &g);
    for (int32_t i = 0; i < count; i++)
        if (!is_signature(sorted[i]->name))
            gather_bytes(&g, sorted[i]->value.data, (size_t)sorted[i]->value.len);
    gather_bytes(&g, body.data, (size_t)body.len);
    bool good = finish_digest(s, &g, sum);
    if (good) encode_base64(sum, text);
    return good;
}

bool ps_signer_sign_text(ps_signer *s, ps_slice text, char *hex) {
    static const char digits[] = "0123456789abcdef";
    uint8_t sum[SUM];
    gathered g;
    begin_digest(s, &g);
    gather_bytes(&g, text.data, (size_t)text.len);
    bool good = finish_digest(s, &g, sum);
    for (int i = 0; good && i < SUM; i++) {
        hex[2 * i] = digits[sum[i] >> 4];
        hex[2 * i + 1] = digits[sum[i] & 15];
    }
    return good;
}
