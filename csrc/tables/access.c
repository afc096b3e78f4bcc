/* Grants, and the signatures of requests that ask for them. */
#include <stdlib.h>
#include <string.h>

#include "tables/access.h"
#include "core/core.h"
#include "core/lock.h"

#define BUCKETS 4096
#define GRANTS_MAX 65536 /* then all are forgotten, and granted again as they are asked for */

typedef struct signer { /* a key, and what signs with its secret */
    struct signer *sg_next;
    ps_signer *sg_signs;
    int32_t sg_len;
    char sg_key[];
} signer;

typedef struct grant {
    struct grant *gr_next;
    signer *gr_signer;
    int32_t gr_code, gr_host_len, gr_topic_len, gr_group_len, gr_binding_len;
    uint32_t gr_hash;
    uint8_t gr_bytes[]; /* host, topic, group, binding */
} grant;

struct ps_access {
    ps_digest_functions ac_do;
    signer *ac_signers[BUCKETS];
    grant *ac_grants[BUCKETS];
    int32_t ac_count;
    int64_t ac_let_in;
};

/* What a request asks for. */
typedef struct asked {
    ps_slice key, signature, topic, group, binding;
    const uint8_t *host;
    int32_t host_len, code;
} asked;

static bool is_text(ps_slice s, const void *data, int32_t len) {
    return s.len == len && (len == 0 || memcmp(s.data, data, (size_t)len) == 0);
}

/* ---- the tables ---- */

static void clear_access(ps_access *a) {
    for (int32_t i = 0; i < BUCKETS; i++) {
        for (grant *g = a->ac_grants[i], *next; g != NULL; g = next) {
            next = g->gr_next;
            free(g);
        }
        for (signer *s = a->ac_signers[i], *next; s != NULL; s = next) {
            next = s->sg_next;
            ps_signer_free(s->sg_signs);
            free(s);
        }
        a->ac_grants[i] = NULL;
        a->ac_signers[i] = NULL;
    }
    a->ac_count = 0;
}

void ps_access_free(ps_access *a) {
    if (a == NULL) return;
    clear_access(a);
    free(a);
}

int ps_core_check_access(ps_core *c, const ps_digest_functions *functions, ps_error *e) {
    PS_CORE_HELD(c);
    ps_access *a = calloc(1, sizeof *a);
    if (a == NULL) return ps_no_memory(e, NULL, "no memory for access control");
    a->ac_do = *functions;
    ps_access_free(c->co_access);
    c->co_access = a;
    return 0;
}

void ps_core_revoke(ps_core *c) {
    PS_CORE_HELD(c);
    if (c->co_access != NULL) clear_access(c->co_access);
    c->co_tables.tc_withdrawn++;
}

void ps_core_limit_first(ps_core *c, int64_t bytes) {
    PS_CORE_HELD(c);
    c->co_limits.li_first_max = bytes;
}

void ps_conn_know(ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    n->cn_known = true;
}

void ps_conn_let_in(ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    n->cn_known = n->cn_let_in = true;
}

int64_t ps_core_first_refused(const ps_core *c) {
    PS_CORE_HELD((ps_core *)c);
    return c->co_limits.li_first_refused;
}

bool ps_conn_known(const ps_conn *n) {
    PS_CORE_HELD(n->cn_core);
    return n->cn_known;
}

int64_t ps_core_let_in(const ps_core *c) {
    PS_CORE_HELD((ps_core *)c);
    return c->co_access != NULL ? c->co_access->ac_let_in : 0;
}

/* ---- signatures ---- */

static signer *make_signer(ps_access *a, const char *key, int32_t len, const char *secret,
                           int32_t secret_len) {
    signer *s = calloc(1, sizeof *s + (size_t)len + 1);
    if (s == NULL) return NULL;
    s->sg_len = len;
    memcpy(s->sg_key, key, (size_t)len);
    s->sg_signs = ps_signer_make(&a->ac_do, secret, secret_len);
    if (s->sg_signs == NULL) {
        free(s);
        return NULL;
    }
    return s;
}

static signer *find_signer(ps_access *a, ps_slice key) {
    signer *s = a->ac_signers[ps_hash_of(key.data, key.len) % BUCKETS];
    while (s != NULL && !is_text(key, s->sg_key, s->sg_len)) s = s->sg_next;
    return s;
}

/* A binding is believed where it is what is signed first, and nowhere else. */
static bool is_signed(const ps_access *a, const signer *s, const ps_command *r, const asked *q) {
    char text[PS_SIGNATURE_LEN];
    ps_slice first;
    if (q->signature.len != PS_SIGNATURE_LEN ||
        !ps_signer_sign(s->sg_signs, r->fields, r->field_count, r->body, text) ||
        a->ac_do.differ(text, q->signature.data, PS_SIGNATURE_LEN) != 0)
        return false;
    if (!ps_signer_is_bound(s->sg_signs, &first)) return q->binding.len == 0;
    return q->binding.len > 0 && first.data == q->binding.data;
}

/* Without its nonce, which is its last word. */
static ps_slice binding_of(const ps_command *r) {
    ps_slice found = ps_command_field(r, "!for");
    while (found.len > 0 && found.data[found.len - 1] != ' ') found.len--;
    if (found.len > 0) found.len--;
    return found;
}

/* ---- grants ---- */

/* False: it is not one of those that are granted. */
static bool read_asked(const ps_conn *n, const ps_command *r, asked *out) {
    const char *topic = "topic";
    *out = (asked){.code = r->code, .host = n->cn_host, .host_len = n->cn_host_len - 4};
    switch (r->code) {
    case PS_REQUEST_SEND_MESSAGE_V2:
    case PS_REQUEST_SEND_BATCH_MESSAGE:
        topic = "b";
        break;
    case PS_REQUEST_PULL_MESSAGE:
    case PS_REQUEST_LITE_PULL_MESSAGE:
    case PS_REQUEST_POP_MESSAGE:
    case PS_REQUEST_ACK_MESSAGE:
        out->group = ps_command_field(r, "consumerGroup");
        break;
    case PS_REQUEST_SEND_MESSAGE:
        break;
    default:
        return false;
    }
    out->topic = ps_command_field(r, topic);
    out->key = ps_command_field(r, "AccessKey");
    out->signature = ps_command_field(r, "Signature");
    out->binding = binding_of(r);
    return out->key.len > 0 && out->signature.len > 0 && out->topic.len > 0;
}

static uint32_t hash_asked(const asked *q) {
    uint32_t h = ps_hash_of(q->key.data, q->key.len);
    h = ps_hash_more(h, q->host, q->host_len);
    h = ps_hash_more(h, q->topic.data, q->topic.len);
    h = ps_hash_more(h, q->group.data, q->group.len);
    h = ps_hash_more(h, q->binding.data, q->binding.len);
    return (h ^ (uint32_t)q->code) * 16777619u;
}

static grant *find_grant(const ps_access *a, const asked *q, uint32_t hash) {
    for (grant *g = a->ac_grants[hash % BUCKETS]; g != NULL; g = g->gr_next) {
        const uint8_t *topic = g->gr_bytes + g->gr_host_len;
        const uint8_t *group = topic + g->gr_topic_len;
        if (g->gr_hash == hash && g->gr_code == q->code && g->gr_host_len == q->host_len &&
            memcmp(g->gr_bytes, q->host, (size_t)q->host_len) == 0 &&
            is_text(q->topic, topic, g->gr_topic_len) &&
            is_text(q->group, group, g->gr_group_len) &&
            is_text(q->binding, group + g->gr_group_len, g->gr_binding_len) &&
            is_text(q->key, g->gr_signer->sg_key, g->gr_signer->sg_len))
            return g;
    }
    return NULL;
}

bool ps_access_granted(ps_conn *n, const ps_command *r) {
    ps_access *a = n->cn_core->co_access;
    asked q;
    if ((r->flag & PS_FLAG_RESPONSE) || !read_asked(n, r, &q)) return false;
    const grant *g = find_grant(a, &q, hash_asked(&q));
    if (g == NULL || !is_signed(a, g->gr_signer, r, &q)) return false;
    a->ac_let_in++;
    n->cn_known = true;
    return true;
}

/* ---- calls of gRPC ---- */

/* Clients of some languages write capitals. */
static bool has_signed(const ps_access *a, const signer *s, const ps_proof *p) {
    char good[PS_SIGNATURE_HEX], given[PS_SIGNATURE_HEX];
    if (p->signature_len != PS_SIGNATURE_HEX ||
        !ps_signer_sign_text(s->sg_signs, (ps_slice){(const uint8_t *)p->date, p->date_len}, good))
        return false;
    for (int i = 0; i < PS_SIGNATURE_HEX; i++) {
        char each = p->signature[i];
        given[i] = (char)(each >= 'A' && each <= 'F' ? each + ('a' - 'A') : each);
    }
    return a->ac_do.differ(good, given, PS_SIGNATURE_HEX) == 0;
}

/* NULL: it is not granted. */
static const grant *find_proven(const ps_access *a, const ps_proof *p, asked *q) {
    q->key = (ps_slice){(const uint8_t *)p->key, p->key_len};
    return p->key_len > 0 && p->date_len > 0 ? find_grant(a, q, hash_asked(q)) : NULL;
}

bool ps_access_lets_call(ps_conn *n, const ps_proof *p, int32_t code, int32_t also,
                         ps_slice topic, ps_slice group) {
    ps_access *a = n->cn_core->co_access;
    asked q = {.topic = topic,
               .group = group,
               .host = n->cn_host,
               .host_len = n->cn_host_len - 4,
               .code = code};
    if (a == NULL) return true;
    const grant *g = p != NULL ? find_proven(a, p, &q) : NULL;
    q.code = also;
    if (g == NULL || find_proven(a, p, &q) == NULL || !has_signed(a, g->gr_signer, p)) return false;
    a->ac_let_in++;
    return true;
}

void ps_core_grant(ps_core *c, const char *key, int32_t key_len, const char *secret,
                   int32_t secret_len, const uint8_t *host, int32_t host_len, int32_t code,
                   const char *topic, int32_t topic_len, const char *group, int32_t group_len,
                   const char *binding, int32_t binding_len) {
    PS_CORE_HELD(c);
    ps_access *a = c->co_access;
    if (a == NULL || key_len <= 0 || topic_len <= 0) return;
    asked q = {.key = {(const uint8_t *)key, key_len},
               .topic = {(const uint8_t *)topic, topic_len},
               .group = {(const uint8_t *)group, group_len},
               .binding = {(const uint8_t *)binding, binding_len},
               .host = host,
               .host_len = host_len,
               .code = code};
    uint32_t hash = hash_asked(&q);
    if (find_grant(a, &q, hash) != NULL) return;
    if (a->ac_count >= GRANTS_MAX) clear_access(a);
    signer *s = find_signer(a, q.key);
    if (s == NULL) {
        s = make_signer(a, key, key_len, secret, secret_len);
        if (s == NULL) return;
        signer **bucket = &a->ac_signers[ps_hash_of(q.key.data, q.key.len) % BUCKETS];
        s->sg_next = *bucket;
        *bucket = s;
    }
    grant *g = malloc(sizeof *g + (size_t)host_len + (size_t)topic_len + (size_t)group_len +
                      (size_t)binding_len);
    if (g == NULL) return;
    *g = (grant){a->ac_grants[hash % BUCKETS], s, code, host_len, topic_len, group_len,
                 binding_len, hash};
    memcpy(g->gr_bytes, host, (size_t)host_len);
    memcpy(g->gr_bytes + host_len, topic, (size_t)topic_len);
    memcpy(g->gr_bytes + host_len + topic_len, group, (size_t)group_len);
    memcpy(g->gr_bytes + host_len + topic_len + group_len, binding, (size_t)binding_len);
    a->ac_grants[hash % BUCKETS] = g;
    a->ac_count++;
}
