/* A digest for tests of signatures, in the place of the library's. */
#ifndef PS_TOY_H
#define PS_TOY_H

#include <string.h>

#include "wire/signature.h"

/* Not SHA-1, but it tells orders and lengths apart: tests look at what is signed. */
typedef struct toy {
    uint8_t sum[20];
    uint32_t count;
} toy;

static int toy_init(void *state) {
    memset(state, 0, sizeof(toy));
    return 1;
}

static int toy_update(void *state, const void *data, size_t len) {
    toy *t = state;
    for (size_t i = 0; i < len; i++, t->count++)
        t->sum[t->count % 20] =
            (uint8_t)(t->sum[t->count % 20] * 31u + ((const uint8_t *)data)[i] + t->count);
    return 1;
}

static int toy_final(uint8_t *sum, void *state) {
    memcpy(sum, ((toy *)state)->sum, 20);
    return 1;
}

static const ps_digest_functions toy_digest = {toy_init, toy_update, toy_final, memcmp};

#endif
