/* SQL92 message filters: the machine that runs the code of sql92code.h over the properties of one
 * message. It holds no state between two messages, so any number of threads may run it at once.
 * What upstream's classes do with a pair of types is in compare(). */
#define _GNU_SOURCE
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "format/javanum.h"
#include "format/record.h"
#include "filter/sql92code.h"

#define NAMES_FEW 8 /* of so many, comparing each is cheaper than looking for lengths */

typedef enum value_type { V_NULL, V_FALSE, V_TRUE, V_INT, V_LONG, V_DOUBLE, V_TEXT } value_type;

typedef struct value {
    value_type type;
    int32_t len; /* of text */
    union {
        int64_t number;
        double real;
        const uint8_t *text;
    };
} value;

static inline bool is_truth(value_type t) {
    return t == V_FALSE || t == V_TRUE;
}

/* Reads text as a number of the type; false: it is not one. */
static bool text_number(const value *text, value_type type, value *out) {
    out->type = type;
    if (type == V_DOUBLE) return ps_java_double(text->text, text->len, &out->real);
    return type == V_INT
               ? ps_java_integer(text->text, text->len, INT32_MIN, INT32_MAX, &out->number)
               : ps_java_integer(text->text, text->len, INT64_MIN, INT64_MAX, &out->number);
}

static bool is_true_text(const value *v) {
    static const char word[] = "TRUE";
    int32_t n = 0;
    while (n < 4 && n < v->len && ps_sql92_upper(v->text[n]) == (uint8_t)word[n]) n++;
    return n == 4 && v->len == 4;
}

static int number_compare(const value *a, const value *b) {
    if (a->type != V_DOUBLE && b->type != V_DOUBLE)
        return (a->number > b->number) - (a->number < b->number);
    return ps_java_double_compare(a->type == V_DOUBLE ? a->real : (double)a->number,
                                  b->type == V_DOUBLE ? b->real : (double)b->number);
}

/* Order of two values that are not null; false where upstream throws. Text has an order only as
 * numbers, and where that is not asked for it is merely equal or not. */
static bool compare_values(const value *a, const value *b, bool ordered, int *out) {
    value x, y;
    if (a->type == V_TEXT && b->type == V_TEXT) {
        if (!ordered) {
            *out = ps_sql92_text_order(a->text, a->len, b->text, b->len);
            return true;
        }
        if (!text_number(a, V_DOUBLE, &x) || !text_number(b, V_DOUBLE, &y)) return false;
        *out = number_compare(&x, &y);
    } else if (is_truth(a->type)) {
        if (b->type == V_TEXT) return false;
        *out = is_truth(b->type) ? (int)a->type - (int)b->type : -1;
    } else if (is_truth(b->type)) {
        *out = a->type != V_TEXT ? -1 : (int)is_true_text(a) - (b->type == V_TRUE);
    } else if (a->type == V_TEXT) {
        if (!text_number(a, b->type, &x)) return false;
        *out = number_compare(&x, b);
    } else if (b->type == V_TEXT) {
        if (!text_number(b, a->type, &y)) return false;
        *out = number_compare(a, &y);
    } else {
        *out = number_compare(a, b);
    }
    return true;
}

static value_type truth_of(bool b) {
    return b ? V_TRUE : V_FALSE;
}

/* a `op` b into a; false where upstream throws. */
static bool order_values(ps_sql92_op op, value *a, const value *b) {
    int n;
    if (a->type == V_NULL || b->type == V_NULL) {
        a->type = V_NULL;
        return true;
    }
    if (!compare_values(a, b, true, &n)) return false;
    a->type = truth_of(op == PS_OP_GREATER         ? n > 0
                       : op == PS_OP_GREATER_EQUAL ? n >= 0
                       : op == PS_OP_LESS          ? n < 0
                                                   : n <= 0);
    return true;
}

static bool equal_values(value *a, const value *b) {
    int n = 0;
    if (a->type == V_NULL) {
        a->type = b->type == V_NULL ? V_TRUE : V_NULL;
    } else if (b->type == V_NULL) {
        a->type = V_FALSE;
    } else {
        if (!compare_values(a, b, false, &n)) return false;
        a->type = truth_of(n == 0);
    }
    return true;
}

/* a AND b, or a OR b, when a alone does not decide. */
static value_type logic_of(value_type a, value_type b, bool is_or) {
    value_type decides = is_or ? V_TRUE : V_FALSE;
    if (a == decides || b == decides) return decides;
    return a == V_NULL || b == V_NULL ? V_NULL : truth_of(!is_or);
}

static void negate_value(value *v) {
    if (v->type == V_DOUBLE)
        v->real = -v->real;
    else if (v->type == V_INT || v->type == V_LONG)
        v->number = -v->number;
    else
        v->type = V_NULL;
}

static bool is_listed(const ps_sql92 *sql, const ps_sql92_instruction *in, const value *v) {
    int32_t low = 0, high = in->to;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        const ps_sql92_span *item = &sql->items[in->text.at + mid];
        int n = ps_sql92_text_order(sql->pool + item->at, item->len, v->text, v->len);
        if (n == 0) return true;
        if (n < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

static bool has_part(const ps_sql92 *sql, const ps_sql92_instruction *in, const value *v) {
    const uint8_t *part = sql->pool + in->text.at;
    size_t len = (size_t)in->text.len;
    if (in->text.len > v->len) return false;
    if (in->op == PS_OP_STARTS) return memcmp(v->text, part, len) == 0;
    if (in->op == PS_OP_ENDS) return memcmp(v->text + v->len - len, part, len) == 0;
    return memmem(v->text, (size_t)v->len, part, len) != NULL;
}

/* IN and its like: null makes IN null and the others false. */
static void text_test(const ps_sql92 *sql, const ps_sql92_instruction *in, value *v) {
    if (v->type != V_TEXT)
        v->type = in->op == PS_OP_IN ? V_NULL : V_FALSE;
    else
        v->type = truth_of((in->op == PS_OP_IN ? is_listed(sql, in, v) : has_part(sql, in, v)) !=
                           in->not);
}

/* Replaces the lower bound by its verdict; 1 when that decides, -1 where upstream throws. */
static int between_low(const ps_sql92_instruction *in, const value *v, value *low) {
    value verdict = *v;
    if (!order_values(in->not ? PS_OP_LESS : PS_OP_GREATER_EQUAL, &verdict, low)) return -1;
    low->type = verdict.type;
    return verdict.type == truth_of(in->not);
}

/* The upper bound, and with it the verdict, in place of the value. */
static bool between_high(const ps_sql92_instruction *in, value *v, value_type low,
                         const value *high) {
    if (!order_values(in->not ? PS_OP_GREATER : PS_OP_LESS_EQUAL, v, high)) return false;
    v->type = logic_of(low, v->type, in->not);
    return true;
}

/* Bit i is set where p[i] separates two properties, for the first 16 of `left` bytes. */
static inline uint32_t separator_mask(const uint8_t *p, int32_t left) {
    uint32_t mask = 0;
#ifdef __SSE2__
    if (left >= 16) {
        __m128i part = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i hits = _mm_cmpeq_epi8(part, _mm_set1_epi8(PS_PROPERTY_SEPARATOR));
        return (uint32_t)_mm_movemask_epi8(hits);
    }
#endif
    for (int32_t i = 0; i < 16 && i < left; i++)
        mask |= (uint32_t)(p[i] == PS_PROPERTY_SEPARATOR) << i;
    return mask;
}

/* One property: as in ps_property_find, a name counts when its value has at least a byte. */
static inline void property_take(const ps_sql92 *sql, const uint8_t *p, int32_t len, value *slots) {
    if (sql->name_count > NAMES_FEW) {
        const uint8_t *split = memchr(p, PS_NAME_SEPARATOR, (size_t)len);
        if (split == NULL || !(sql->name_lengths >> ((split - p) & 63) & 1)) return;
    }
    for (int32_t i = 0; i < sql->name_count; i++) {
        int32_t n = sql->names[i].len;
        const uint8_t *name = sql->pool + sql->names[i].at;
        /* A name holds no separator, so that equal bytes before one are the whole name. */
        if (len <= n + 1 || p[n] != PS_NAME_SEPARATOR || p[0] != name[0] ||
            memcmp(p, name, (size_t)n) != 0)
            continue;
        slots[i] = (value){.type = V_TEXT, .len = len - n - 1, .text = p + n + 1};
        return;
    }
}

/* One pass for all properties that the expression names; the last of equal names stays. */
static void properties_get(const ps_sql92 *sql, const uint8_t *p, int32_t len, value *slots) {
    int32_t from = 0;
    for (int32_t i = 0; i < sql->name_count; i++) slots[i].type = V_NULL;
    for (int32_t at = 0; at < len; at += 16) {
        for (uint32_t mask = separator_mask(p + at, len - at); mask != 0; mask &= mask - 1) {
            int32_t end = at + __builtin_ctz(mask);
            property_take(sql, p + from, end - from, slots);
            from = end + 1;
        }
    }
    if (from < len) property_take(sql, p + from, len - from, slots);
}

/* The value that an instruction below PS_OP_NEGATE pushes. */
static inline value pushed_value(const ps_sql92 *sql, const ps_sql92_instruction *in,
                                 const value *slots) {
    switch ((ps_sql92_op)in->op) {
    case PS_OP_PROPERTY:
        return slots[in->to];
    case PS_OP_INT:
        return (value){.type = V_INT, .number = in->number};
    case PS_OP_LONG:
        return (value){.type = V_LONG, .number = in->number};
    case PS_OP_DOUBLE:
        return (value){.type = V_DOUBLE, .real = in->real};
    case PS_OP_TEXT:
        return (value){.type = V_TEXT, .len = in->text.len, .text = sql->pool + in->text.at};
    case PS_OP_TRUE:
        return (value){.type = V_TRUE};
    case PS_OP_FALSE:
        return (value){.type = V_FALSE};
    default:
        return (value){.type = V_NULL};
    }
}

/* Runs one instruction on the stack, whose top is `top`; the instruction that follows, or -1 where
 * upstream throws. */
static inline int32_t run_instruction(const ps_sql92 *sql, int32_t at, const value *slots,
                                      value **stack) {
    const ps_sql92_instruction *in = &sql->code[at];
    value *top = *stack;
    int low;
    switch ((ps_sql92_op)in->op) { /* tidy: long, one case an instruction */
    case PS_OP_NEGATE:
        negate_value(top);
        break;
    case PS_OP_CAST:
        top->type = top->type == V_NULL ? V_NULL : V_FALSE;
        break;
    case PS_OP_NOT:
        if (top->type != V_NULL) top->type = truth_of(top->type == V_FALSE);
        break;
    case PS_OP_IS_NULL:
        top->type = truth_of(top->type == V_NULL);
        break;
    case PS_OP_IN:
    case PS_OP_CONTAINS:
    case PS_OP_STARTS:
    case PS_OP_ENDS:
        text_test(sql, in, top);
        break;
    case PS_OP_EQUAL:
        top--;
        if (!equal_values(top, top + 1)) return -1;
        break;
    case PS_OP_GREATER:
    case PS_OP_GREATER_EQUAL:
    case PS_OP_LESS:
    case PS_OP_LESS_EQUAL:
        top--;
        if (!order_values((ps_sql92_op)in->op, top, top + 1)) return -1;
        break;
    case PS_OP_AND:
    case PS_OP_OR:
        top--;
        top->type = logic_of(top->type, top[1].type, in->op == PS_OP_OR);
        break;
    case PS_OP_JUMP_TRUE:
        return top->type == V_TRUE ? in->to : at + 1;
    case PS_OP_JUMP_FALSE:
        return top->type == V_FALSE ? in->to : at + 1;
    case PS_OP_JUMP_NULL:
        return top->type == V_NULL ? in->to : at + 1;
    case PS_OP_LOW:
        if ((low = between_low(in, top - 1, top)) < 0) return -1;
        if (low == 0) break;
        top--;
        top->type = top[1].type;
        *stack = top;
        return in->to;
    case PS_OP_HIGH:
        top -= 2;
        if (!between_high(in, top, top[1].type, top + 2)) return -1;
        break;
    default:
        *++top = pushed_value(sql, in, slots);
    }
    *stack = top;
    return at + 1;
}

int ps_sql92_evaluate(const ps_sql92 *sql, const uint8_t *properties, int32_t len) {
    value slots[PS_SQL92_NAMES_MAX], stack[PS_SQL92_STACK_MAX + 1], *top = stack;
    properties_get(sql, properties, len, slots);
    for (int32_t at = 0; at < sql->code_count;) {
        at = run_instruction(sql, at, slots, &top);
        if (at < 0) return PS_SQL92_ERROR;
    }
    return top->type == V_NULL ? PS_SQL92_NULL : top->type == V_TRUE;
}

int64_t ps_sql92_work(const ps_sql92 *sql, int32_t properties_len) {
    return 16 * (int64_t)sql->code_count + (1 + (int64_t)sql->searches) * properties_len;
}

int ps_sql92_match(const ps_sql92 *sql, const uint8_t *properties, int32_t len) {
    return ps_sql92_evaluate(sql, properties, len) == PS_SQL92_TRUE;
}
