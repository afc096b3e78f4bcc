/* Grants, and signatures as clients make them: HMAC-SHA1 over the values of all fields but
 * Signature, sorted by name, then the body, in base64. RFC 2104; upstream AclUtils. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "remoting/access.h"
#include "remoting/core.h"
#include "remoting/hash.h"

#define BLOCK 64
#define SUM 20
#define TEXT 28 /* of a sum in base64 */
#define BUCKETS 4096
#define GRANTS_MAX 65536 /* then all are forgotten, and granted again as they are asked for */
#define CODE_SEND_MESSAGE 10
#define CODE_PULL_MESSAGE 11
#define CODE_SEND_MESSAGE_V2 310
#define CODE_SEND_BATCH_MESSAGE 320
#define CODE_LITE_PULL_MESSAGE 361

typedef struct signer { /* a key, and its secret as states of the digest */
    struct signer *sg_next;
    void *sg_inner, *sg_outer;
    int32_t sg_len;
    char sg_key[];
} signer;

typedef struct grant {
    struct grant *gr_next;
    signer *gr_signer;
    int32_t gr_code, gr_host_len, gr_topic_len, gr_group_len;
    uint32_t gr_hash;
    uint8_t gr_bytes[]; /* host, topic, group */
} grant;

struct ps_access {
    ps_digest_functions ac_do;
    void *ac_work;
    signer *ac_signers[BUCKETS];
    grant *ac_grants[BUCKETS];
    int32_t ac_count;
    int64_t ac_let_in;
};

/* What a request asks for. */
typedef struct asked {
    ps_slice key, signature, topic, group;
    const uint8_t *host;
    int32_t host_len, code;
} asked;

static bool same(ps_slice s, const void *data, int32_t len) {
    return s.len == len && (len == 0 || memcmp(s.data, data, (size_t)len) == 0);
}

/* ---- the tables ---- */

static void free_signer(const ps_access *a, signer *s) {
    if (s == NULL) return;
    if (s->sg_inner != NULL) a->ac_do.drop(s->sg_inner);
    if (s->sg_outer != NULL) a->ac_do.drop(s->sg_outer);
    free(s);
}

static void clear(ps_access *a) {
    for (int32_t i = 0; i < BUCKETS; i++) {
        for (grant *g = a->ac_grants[i], *next; g != NULL; g = next) {
            next = g->gr_next;
            free(g);
        }
        for (signer *s = a->ac_signers[i], *next; s != NULL; s = next) {
            next = s->sg_next;
            free_signer(a, s);
        }
        a->ac_grants[i] = NULL;
        a->ac_signers[i] = NULL;
    }
    a->ac_count = 0;
}

void ps_access_free(ps_access *a) {
    if (a == NULL) return;
    clear(a);
    if (a->ac_work != NULL) a->ac_do.drop(a->ac_work);
    free(a);
}

int ps_core_guard(ps_core *c, const ps_digest_functions *functions, ps_error *e) {
    ps_access *a = calloc(1, sizeof *a);
    if (a != NULL) {
        a->ac_do = *functions;
        a->ac_work = functions->make();
    }
    if (a == NULL || a->ac_work == NULL) {
        ps_access_free(a);
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for access control");
    }
    ps_access_free(c->co_access);
    c->co_access = a;
    return 0;
}

void ps_core_revoke(ps_core *c) {
    if (c->co_access != NULL) clear(c->co_access);
}

int64_t ps_core_let_in(const ps_core *c) {
    return c->co_access != NULL ? c->co_access->ac_let_in : 0;
}

/* ---- signatures ---- */

/* The state of a digest that has taken in the secret, each byte combined with `pad`. */
static void *keyed(const ps_access *a, const uint8_t *key, uint8_t pad) {
    uint8_t block[BLOCK];
    void *made = a->ac_do.make();
    for (int i = 0; i < BLOCK; i++) block[i] = key[i] ^ pad;
    if (made != NULL &&
        !(a->ac_do.init(made, a->ac_do.sha1, NULL) && a->ac_do.update(made, block, BLOCK))) {
        a->ac_do.drop(made);
        made = NULL;
    }
    explicit_bzero(block, sizeof block);
    return made;
}

static signer *make_signer(ps_access *a, const char *key, int32_t len, const char *secret,
                           int32_t secret_len) {
    uint8_t padded[BLOCK] = {0};
    unsigned out = 0;
    bool good = true;
    if (secret_len <= BLOCK)
        memcpy(padded, secret, (size_t)secret_len);
    else
        good = a->ac_do.init(a->ac_work, a->ac_do.sha1, NULL) &&
               a->ac_do.update(a->ac_work, secret, (size_t)secret_len) &&
               a->ac_do.final(a->ac_work, padded, &out);
    signer *s = good ? calloc(1, sizeof *s + (size_t)len + 1) : NULL;
    if (s != NULL) {
        s->sg_len = len;
        memcpy(s->sg_key, key, (size_t)len);
        s->sg_inner = keyed(a, padded, 0x36);
        s->sg_outer = keyed(a, padded, 0x5c);
        if (s->sg_inner == NULL || s->sg_outer == NULL) {
            free_signer(a, s);
            s = NULL;
        }
    }
    explicit_bzero(padded, sizeof padded);
    return s;
}

static signer *find_signer(ps_access *a, ps_slice key) {
    signer *s = a->ac_signers[ps_hash_of(key.data, key.len) % BUCKETS];
    while (s != NULL && !same(key, s->sg_key, s->sg_len)) s = s->sg_next;
    return s;
}

static int compare_names(const void *one, const void *other) {
    const ps_slice *a = *(const ps_slice *const *)one, *b = *(const ps_slice *const *)other;
    int32_t len = a->len < b->len ? a->len : b->len;
    int order = len ? memcmp(a->data, b->data, (size_t)len) : 0;
    return order ? order : a->len - b->len;
}

/* The fields in the order of their names. False: Python has to look, since a name stands twice or
 * holds more than ASCII, whose order in Java is another one. */
static bool sort_fields(const ps_command *r, const ps_field **out) {
    for (int32_t i = 0; i < r->field_count; i++) {
        out[i] = &r->fields[i];
        for (int32_t k = 0; k < r->fields[i].name.len; k++)
            if (r->fields[i].name.data[k] > 127) return false;
    }
    qsort(out, (size_t)r->field_count, sizeof *out, compare_names);
    for (int32_t i = 1; i < r->field_count; i++)
        if (compare_names(&out[i - 1], &out[i]) == 0) return false;
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
    out[TEXT - 1] = '=';
}

static bool is_signed(const ps_access *a, const signer *s, const ps_command *r, ps_slice given) {
    const ps_digest_functions *with = &a->ac_do;
    const ps_field *fields[PS_FIELDS_MAX];
    uint8_t sum[BLOCK];
    char text[TEXT];
    unsigned len = 0;
    if (given.len != TEXT || !sort_fields(r, fields)) return false;
    bool good = with->copy(a->ac_work, s->sg_inner);
    for (int32_t i = 0; i < r->field_count && good; i++)
        if (fields[i]->value.len > 0 && !ps_slice_is(fields[i]->name, "Signature"))
            good = with->update(a->ac_work, fields[i]->value.data, (size_t)fields[i]->value.len);
    if (good && r->body.len > 0)
        good = with->update(a->ac_work, r->body.data, (size_t)r->body.len);
    good = good && with->final(a->ac_work, sum, &len) && len == SUM &&
           with->copy(a->ac_work, s->sg_outer) && with->update(a->ac_work, sum, SUM) &&
           with->final(a->ac_work, sum, &len) && len == SUM;
    if (!good) return false;
    encode_base64(sum, text);
    return with->differ(text, given.data, TEXT) == 0;
}

/* ---- grants ---- */

/* False: it is not one of those that are granted. */
static bool read_asked(const ps_conn *n, const ps_command *r, asked *out) {
    const char *topic = "topic";
    *out = (asked){.code = r->code, .host = n->cn_host, .host_len = n->cn_host_len - 4};
    switch (r->code) {
    case CODE_SEND_MESSAGE_V2:
    case CODE_SEND_BATCH_MESSAGE:
        topic = "b";
        break;
    case CODE_PULL_MESSAGE:
    case CODE_LITE_PULL_MESSAGE:
        out->group = ps_command_field(r, "consumerGroup");
        break;
    case CODE_SEND_MESSAGE:
        break;
    default:
        return false;
    }
    out->topic = ps_command_field(r, topic);
    out->key = ps_command_field(r, "AccessKey");
    out->signature = ps_command_field(r, "Signature");
    return out->key.len > 0 && out->signature.len > 0 && out->topic.len > 0;
}

static uint32_t hash_asked(const asked *q) {
    uint32_t h = ps_hash_of(q->key.data, q->key.len);
    h = ps_hash_more(h, q->host, q->host_len);
    h = ps_hash_more(h, q->topic.data, q->topic.len);
    h = ps_hash_more(h, q->group.data, q->group.len);
    return (h ^ (uint32_t)q->code) * 16777619u;
}

static grant *find_grant(const ps_access *a, const asked *q, uint32_t hash) {
    for (grant *g = a->ac_grants[hash % BUCKETS]; g != NULL; g = g->gr_next) {
        const uint8_t *topic = g->gr_bytes + g->gr_host_len;
        if (g->gr_hash == hash && g->gr_code == q->code && g->gr_host_len == q->host_len &&
            memcmp(g->gr_bytes, q->host, (size_t)q->host_len) == 0 &&
            same(q->topic, topic, g->gr_topic_len) &&
            same(q->group, topic + g->gr_topic_len, g->gr_group_len) &&
            same(q->key, g->gr_signer->sg_key, g->gr_signer->sg_len))
            return g;
    }
    return NULL;
}

bool ps_access_granted(ps_conn *n, const ps_command *r) {
    ps_access *a = n->cn_core->co_access;
    asked q;
    if ((r->flag & PS_FLAG_RESPONSE) || !read_asked(n, r, &q)) return false;
    const grant *g = find_grant(a, &q, hash_asked(&q));
    if (g == NULL || !is_signed(a, g->gr_signer, r, q.signature)) return false;
    a->ac_let_in++;
    return true;
}

void ps_core_grant(ps_core *c, const char *key, int32_t key_len, const char *secret,
                   int32_t secret_len, const uint8_t *host, int32_t host_len, int32_t code,
                   const char *topic, int32_t topic_len, const char *group, int32_t group_len) {
    ps_access *a = c->co_access;
    if (a == NULL || key_len <= 0 || topic_len <= 0) return;
    asked q = {.key = {(const uint8_t *)key, key_len},
               .topic = {(const uint8_t *)topic, topic_len},
               .group = {(const uint8_t *)group, group_len},
               .host = host,
               .host_len = host_len,
               .code = code};
    uint32_t hash = hash_asked(&q);
    if (find_grant(a, &q, hash) != NULL) return;
    if (a->ac_count >= GRANTS_MAX) clear(a);
    signer *s = find_signer(a, q.key);
    if (s == NULL) {
        s = make_signer(a, key, key_len, secret, secret_len);
        if (s == NULL) return;
        signer **bucket = &a->ac_signers[ps_hash_of(q.key.data, q.key.len) % BUCKETS];
        s->sg_next = *bucket;
        *bucket = s;
    }
    grant *g = malloc(sizeof *g + (size_t)host_len + (size_t)topic_len + (size_t)group_len);
    if (g == NULL) return;
    *g = (grant){a->ac_grants[hash % BUCKETS], s, code, host_len, topic_len, group_len, hash};
    memcpy(g->gr_bytes, host, (size_t)host_len);
    memcpy(g->gr_bytes + host_len, topic, (size_t)topic_len);
    memcpy(g->gr_bytes + host_len + topic_len, group, (size_t)group_len);
    a->ac_grants[hash % BUCKETS] = g;
    a->ac_count++;
}
