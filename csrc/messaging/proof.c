#define _GNU_SOURCE
/* See proof.h. `MQv2-HMAC-SHA1 Credential=KEY/REGION, SignedHeaders=x-mq-date-time, Signature=HEX`.
 * Upstream: AuthenticationHeader. */
#include "messaging/proof.h"

#include <string.h>

#define ALGORITHM "MQv2-HMAC-SHA1 "

static ps_h2_text trim_blanks(const char *from, const char *end) {
    while (from < end && *from == ' ') from++;
    while (from < end && end[-1] == ' ') end--;
    return (ps_h2_text){from, (int32_t)(end - from)};
}

static bool is_name(ps_h2_text text, const char *name) {
    return (size_t)text.len == strlen(name) && memcmp(text.data, name, (size_t)text.len) == 0;
}

bool ps_h2_proof_read(const char *text, ps_h2_text *key, ps_h2_text *signature) {
    const char *at = text + sizeof ALGORITHM - 1, *next;
    *key = *signature = (ps_h2_text){0};
    if (strncmp(text, ALGORITHM, sizeof ALGORITHM - 1) != 0) return false;
    for (bool more = true; more; at = next + 1) {
        next = strchrnul(at, ',');
        more = *next == ',';
        const char *equals = memchr(at, '=', (size_t)(next - at));
        if (equals == NULL) return false;
        ps_h2_text name = trim_blanks(at, equals), value = trim_blanks(equals + 1, next);
        if (is_name(name, "Credential"))
            *key = value;
        else if (is_name(name, "Signature"))
            *signature = value;
    }
    const char *slash = key->len > 0 ? memchr(key->data, '/', (size_t)key->len) : NULL;
    if (slash != NULL) key->len = (int32_t)(slash - key->data);
    return key->len > 0 && signature->len > 0;
}
