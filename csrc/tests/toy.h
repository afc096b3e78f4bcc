/* A digest for tests of signatures, in the place of the library's. */
#ifndef PS_TOY_H
#define PS_TOY_H

#include <stdlib.h>
#include <string.h>

#include "remoting/signature.h"

/* Not SHA-1, but it tells orders and lengths apart: tests look at what is signed. */
typedef struct toy {
    uint8_t sum[20];
    uint32_t count;
} toy;

static void *toy_make(void) {
    return calloc(1, sizeof(toy));
}

static int toy_copy(void *to, const void *from) {
    return memcpy(to, from, sizeof(toy)) == to;
}

static int toy_init(void *context, const void *type, void *engine) {
    memset(context, 0, sizeof(toy));
    return type == NULL && engine == NULL;
}

static int toy_update(void *context, const void *data, size_t len) {
    toy *t = context;
    for (size_t i = 0; i < len; i++, t->count++)
        t->sum[t->count % 20] =
            (uint8_t)(t->sum[t->count % 20] * 31u + ((const uint8_t *)data)[i] + t->count);
    return 1;
}

static int toy_final(void *context, uint8_t *out, unsigned *len) {
    memcpy(out, ((toy *)context)->sum, *len = 20);
    return 1;
}

static const ps_digest_functions toy_digest = {toy_make,   free,      toy_copy, toy_init,
                                               toy_update, toy_final, memcmp,   NULL};

#endif
