/* The code of a compiled filter: a small stack machine, whose operations are those of the language.
 * sql92.c writes it, sql92run.c runs it. A value is null, false, true, a number of 32 bits, of 64
 * bits or a double, or text that borrows from the properties or from the pool. */
#ifndef PS_SQL92CODE_H
#define PS_SQL92CODE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "filter/sql92.h"

#define PS_SQL92_STACK_MAX 512 /* values of the machine */

typedef enum ps_sql92_op {
    PS_OP_PROPERTY, /* push the property of slot `to` */
    PS_OP_INT,      /* push `number`, of 32 bits */
    PS_OP_LONG,
    PS_OP_DOUBLE,
    PS_OP_TEXT,
    PS_OP_TRUE,
    PS_OP_FALSE,
    PS_OP_NULL,
    PS_OP_NEGATE,
    PS_OP_CAST, /* a property as a truth value */
    PS_OP_NOT,
    PS_OP_IS_NULL,
    PS_OP_IN, /* `to` strings from list entry text.at on */
    PS_OP_CONTAINS,
    PS_OP_STARTS,
    PS_OP_ENDS,
    PS_OP_EQUAL, /* pop two, push one; so do the next five */
    PS_OP_GREATER,
    PS_OP_GREATER_EQUAL,
    PS_OP_LESS,
    PS_OP_LESS_EQUAL,
    PS_OP_AND,
    PS_OP_OR,
    PS_OP_JUMP_TRUE, /* to instruction `to` when the top is that, and leave it */
    PS_OP_JUMP_FALSE,
    PS_OP_JUMP_NULL,
    PS_OP_LOW,  /* value, low: value, verdict; or the verdict alone and a jump when it decides */
    PS_OP_HIGH, /* value, verdict, high: verdict */
} ps_sql92_op;

typedef struct ps_sql92_span {
    int32_t at, len; /* in the pool */
} ps_sql92_span;

typedef struct ps_sql92_instruction {
    uint8_t op;
    bool not; /* of IN, CONTAINS, STARTS, ENDS, LOW and HIGH */
    int32_t to;
    union {
        int64_t number;
        double real;
        ps_sql92_span text;
    };
} ps_sql92_instruction;

struct ps_sql92 {
    int32_t refs;
    int32_t unread;
    ps_sql92_instruction *code;
    int32_t code_count;
    int32_t searches; /* CONTAINS among them */
    ps_sql92_span *items; /* of the IN lists, each in order */
    int32_t item_count;
    ps_sql92_span *names; /* of the properties */
    int32_t name_count;
    uint64_t name_lengths; /* bit n mod 64 is set when a name has n bytes */
    uint8_t *pool;
    int32_t pool_len;
};

static inline uint8_t ps_sql92_upper(uint8_t c) {
    return c >= 'a' && c <= 'z' ? (uint8_t)(c - 32) : c;
}
/* Order of two texts: by length, then by bytes. */
static inline int ps_sql92_text_order(const uint8_t *a, int32_t a_len, const uint8_t *b,
                                      int32_t b_len) {
    if (a_len != b_len) return a_len < b_len ? -1 : 1;
    return memcmp(a, b, (size_t)a_len);
}

#endif
