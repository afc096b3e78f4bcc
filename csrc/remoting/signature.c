/* See signature.h. RFC 2104; upstream AclUtils.calSignature. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "remoting/core.h"
#include "remoting/signature.h"

#define BLOCK 64
#define SUM 20
#define A_FEW 32 /* fields, which need no quicker way of sorting */

struct ps_signer {
    ps_digest_functions si_do;
    void *si_inner, *si_outer, *si_work;
};

/* A digest that has hashed the secret, each byte combined with `pad`. */
static void *keyed(const ps_digest_functions *with, const uint8_t *key, uint8_t pad) {
    uint8_t block[BLOCK];
    void *made = with->make();
    for (int i = 0; i < BLOCK; i++) block[i] = key[i] ^ pad;
    if (made != NULL && !(with->init(made, with->sha1, NULL) && with->update(made, block, BLOCK))) {
        with->drop(made);
        made = NULL;
    }
    explicit_bzero(block, sizeof block);
    return made;
}

ps_signer *ps_signer_make(const ps_digest_functions *functions, const char *secret,
                          int32_t secret_len) {
    uint8_t padded[BLOCK] = {0};
    unsigned out = 0;
    ps_signer *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->si_do = *functions;
    s->si_work = functions->make();
    bool good = s->si_work != NULL;
    if (secret_len <= BLOCK)
        memcpy(padded, secret, (size_t)secret_len);
    else
        good = good && functions->init(s->si_work, functions->sha1, NULL) &&
               functions->update(s->si_work, secret, (size_t)secret_len) &&
               functions->final(s->si_work, padded, &out);
    if (good) {
        s->si_inner = keyed(functions, padded, 0x36);
        s->si_outer = keyed(functions, padded, 0x5c);
    }
    explicit_bzero(padded, sizeof padded);
    if (s->si_inner != NULL && s->si_outer != NULL) return s;
    ps_signer_free(s);
    return NULL;
}

void ps_signer_free(ps_signer *s) {
    if (s == NULL) return;
    if (s->si_work != NULL) s->si_do.drop(s->si_work);
    if (s->si_inner != NULL) s->si_do.drop(s->si_inner);
    if (s->si_outer != NULL) s->si_do.drop(s->si_outer);
    free(s);
}

/* Sends name their fields with single letters, so that the first byte mostly decides. */
static int compare(const ps_slice *a, const ps_slice *b) {
    int32_t len = a->len < b->len ? a->len : b->len;
    if (len > 0 && *a->data != *b->data) return *a->data - *b->data;
    int order = len ? memcmp(a->data, b->data, (size_t)len) : 0;
    return order ? order : a->len - b->len;
}

static int compare_names(const void *one, const void *other) {
    const ps_field *a = *(const ps_field *const *)one, *b = *(const ps_field *const *)other;
    return compare(&a->name, &b->name);
}

/* A few, as requests have them. */
static void insert_sorted(const ps_field **fields, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        const ps_field *moved = fields[i];
        int32_t at = i;
        for (; at > 0 && compare(&fields[at - 1]->name, &moved->name) > 0; at--)
            fields[at] = fields[at - 1];
        fields[at] = moved;
    }
}

static bool sort_fields(const ps_field *fields, int32_t count, const ps_field **out) {
    for (int32_t i = 0; i < count; i++) {
        out[i] = &fields[i];
        for (int32_t k = 0; k < fields[i].name.len; k++)
            if (fields[i].name.data[k] > 127) return false;
    }
    if (count <= A_FEW)
        insert_sorted(out, count);
    else
        qsort(out, (size_t)count, sizeof *out, compare_names);
    for (int32_t i = 1; i < count; i++)
        if (compare(&out[i - 1]->name, &out[i]->name) == 0) return false;
    return true;
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
    ps_signer *by;
    bool good;
    size_t len;
    uint8_t data[1024];
} gathered;

static void take(gathered *g, const uint8_t *data, size_t len) {
    const ps_digest_functions *with = &g->by->si_do;
    if (g->len + len > sizeof g->data) {
        g->good = g->good && with->update(g->by->si_work, g->data, g->len);
        g->len = 0;
    }
    if (len > sizeof g->data) {
        g->good = g->good && with->update(g->by->si_work, data, len);
    } else if (len > 0) {
        memcpy(g->data + g->len, data, len);
        g->len += len;
    }
}

bool ps_signer_sign(ps_signer *s, const ps_field *fields, int32_t count, ps_slice body,
                    char *text) {
    const ps_digest_functions *with = &s->si_do;
    const ps_field *sorted[PS_FIELDS_MAX];
    uint8_t sum[BLOCK];
    unsigned len = 0;
    if (count > PS_FIELDS_MAX || !sort_fields(fields, count, sorted)) return false;
    gathered g;
    g.by = s;
    g.good = with->copy(s->si_work, s->si_inner);
    g.len = 0;
    for (int32_t i = 0; i < count; i++)
        if (!ps_slice_is(sorted[i]->name, "Signature"))
            take(&g, sorted[i]->value.data, (size_t)sorted[i]->value.len);
    take(&g, body.data, (size_t)body.len);
    bool good = g.good && with->update(s->si_work, g.data, g.len) &&
                with->final(s->si_work, sum, &len) && len == SUM &&
           with->copy(s->si_work, s->si_outer) && with->update(s->si_work, sum, SUM) &&
           with->final(s->si_work, sum, &len) && len == SUM;
    if (good) encode_base64(sum, text);
    return good;
}
