/* SQL92 message filters: the parser, which emits the code of sql92code.h as it goes.
 *
 *   expression  term OR term ...             AND binds tighter than OR, all associate left
 *   term        equality AND equality ...
 *   equality    comparison, then any of      = comparison   <> comparison   IS [NOT] NULL
 *   comparison  unary, then any of           > >= < <= unary   [NOT] BETWEEN unary AND unary
 *                                            [NOT] IN ('a', ...)   [NOT] CONTAINS 'a'
 *                                            [NOT] STARTSWITH 'a'   [NOT] ENDSWITH 'a'
 *   unary       + unary   - unary   NOT unary   literal   property   ( expression )
 *
 * Upstream: filter/.../SelectorParser.jj and the classes in filter/.../expression; in the broker
 * ExpressionMessageFilter and MessageEvaluationContext. What is surprising there is the same here:
 *  - Reading ends where a complete expression cannot go on; the rest is ignored when it begins with
 *    a token: "a = 1 b" is "a = 1", "a LIKE 'x'" is "a", "a = 007" is "a = 0" and "a = 0x10" too.
 *  - NOT, + and - bind tightest: "NOT a = 1" is "(NOT a) = 1", which never holds.
 *  - A property is text. As a truth value it is false ("true" as well), and null when missing.
 *  - Text beside an integer is read as an integer, beside a decimal as a decimal, and where it is
 *    neither the evaluation ends in an error, whatever stood beside it: "a > 3" for a = 3.5. Only
 *    what AND and OR leave out is not evaluated. An integer of 32 bits wants text of 32 bits.
 *  - "a = b" holds when both are missing; "3 = a" is false and "a = 3" null when a is.
 *  - The literals 0.0 and 1e400 are errors, and so is NULL beside = or <>.
 *  - < <= > >= and BETWEEN take numbers and properties, IN takes a property and strings.
 *  - Comments are -- to the end of a line, which there must be, and C's.
 * There are also limits (sql92.h), which upstream's stack and memory set. Bytes that are not UTF-8
 * equal only the same bytes. */
#include "filter/sql92.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/grow.h"
#include "format/javanum.h"
#include "filter/sql92code.h"

#define WORD_MAX 10 /* letters of the longest keyword */

/* ---- tokens ---- */

typedef enum token {
    T_END,
    T_NAME,
    T_TEXT,
    T_INTEGER,
    T_REAL,
    T_EQUAL,
    T_NOT_EQUAL,
    T_GREATER,
    T_GREATER_EQUAL,
    T_LESS,
    T_LESS_EQUAL,
    T_OPEN,
    T_COMMA,
    T_CLOSE,
    T_PLUS,
    T_MINUS,
    T_NOT, /* from here on in the order of `words` */
    T_AND,
    T_OR,
    T_BETWEEN,
    T_IN,
    T_TRUE,
    T_FALSE,
    T_NULL,
    T_IS,
    T_CONTAINS,
    T_STARTSWITH,
    T_ENDSWITH,
} token;

static const char words[][WORD_MAX + 1] = {"NOT", "AND",      "OR",         "BETWEEN",
                                           "IN",  "TRUE",     "FALSE",      "NULL",
                                           "IS",  "CONTAINS", "STARTSWITH", "ENDSWITH"};

/* What a token is called in a message. */
static const char *const names_of[] = {
    "the end", "a property", "a string", "an integer", "a decimal", "'='",        "'<>'",
    "'>'",     "'>='",       "'<'",      "'<='",       "'('",       "','",        "')'",
    "'+'",     "'-'",        "NOT",      "AND",        "OR",        "BETWEEN",    "IN",
    "TRUE",    "FALSE",      "NULL",     "IS",         "CONTAINS",  "STARTSWITH", "ENDSWITH",
};

typedef struct parser {
    ps_sql92 *sql;
    const uint8_t *text;
    int32_t len;
    token kind;    /* of the token that is looked at */
    int32_t start; /* where it begins, and at: ends */
    int32_t at;
    int32_t depth; /* of nested unary expressions */
    int32_t stack; /* values on the machine's stack here */
    int32_t code_room, item_room, name_room;
    ps_sql92_instruction spare; /* receives what is emitted after a failure */
    ps_error *error;
    int failed; /* the code of the first failure; everything ends soon after it */
} parser;

/* Positions are given in characters, as an editor counts them. */
static int32_t position_of(const parser *p, int32_t at) {
    int32_t n = 1;
    for (int32_t i = 0; i < at; i++) n += (p->text[i] & 0xC0) != 0x80;
    return n;
}

static void refuse_at(parser *p, int32_t at, const char *text) {
    if (p->failed < 0) return;
    p->failed = ps_fail(p->error, PS_E_EXPRESSION_ILLEGAL, 0, -1, NULL, "position %d: %s",
                        position_of(p, at), text);
    p->kind = T_END;
}

static void refuse_token(parser *p, const char *what) {
    if (p->failed < 0) return;
    int32_t len = p->at - p->start < 40 ? p->at - p->start : 40;
    if (p->kind == T_END)
        p->failed = ps_fail(p->error, PS_E_EXPRESSION_ILLEGAL, 0, -1, NULL,
                            "position %d: expected %s, but the expression ends",
                            position_of(p, p->start), what);
    else
        p->failed = ps_fail(p->error, PS_E_EXPRESSION_ILLEGAL, 0, -1, NULL,
                            "position %d: expected %s, not %.*s", position_of(p, p->start), what,
                            len, (const char *)p->text + p->start);
    p->kind = T_END;
}

static void no_memory(parser *p) {
    if (p->failed < 0) return;
    p->failed = ps_no_memory(p->error, NULL, "no memory for the expression");
    p->kind = T_END;
}

/* ---- tokens: the longest that fits wins, as everywhere ---- */

static bool is_letter(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

static bool is_digit(uint8_t c) {
    return c >= '0' && c <= '9';
}

/* The byte there, 0 beyond the end. */
static uint8_t peek_byte(const parser *p, int32_t at) {
    return at < p->len ? p->text[at] : 0;
}

/* End of the comment that begins there, or `at` when none does. */
static int32_t comment_end(const parser *p, int32_t at) {
    int32_t i = at + 2;
    if (peek_byte(p, at) == '-' && peek_byte(p, at + 1) == '-') {
        while (i < p->len && p->text[i] != '\n' && p->text[i] != '\r') i++;
        return i < p->len ? i + 1
                          : at; /* the last line has no end, so two minus signs stand there */
    }
    if (peek_byte(p, at) == '/' && peek_byte(p, at + 1) == '*')
        for (; i + 1 < p->len; i++)
            if (p->text[i] == '*' && p->text[i + 1] == '/') return i + 2;
    return at;
}

static void skip_blanks(parser *p) {
    for (;;) {
        uint8_t c = peek_byte(p, p->at);
        int32_t end = comment_end(p, p->at);
        if (end > p->at)
            p->at = end;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f')
            p->at++;
        else
            return;
    }
}

static int32_t digits_end(const parser *p, int32_t at) {
    while (is_digit(peek_byte(p, at))) at++;
    return at;
}

/* End of an exponent that begins there, or `at` when there is none. */
static int32_t exponent_end(const parser *p, int32_t at) {
    if (ps_sql92_upper(peek_byte(p, at)) != 'E') return at;
    int32_t first = at + 1 + (peek_byte(p, at + 1) == '+' || peek_byte(p, at + 1) == '-');
    int32_t end = digits_end(p, first);
    return end > first ? end : at;
}

/* A number: 0 stands for itself alone unless a point or an exponent follows its digits. */
static token number_token(parser *p) {
    int32_t whole = digits_end(p, p->start);
    int32_t end = peek_byte(p, whole) == '.' ? digits_end(p, whole + 1) : whole;
    end = exponent_end(p, end);
    if (end > whole) {
        p->at = end;
        return T_REAL;
    }
    if (peek_byte(p, p->start) == '0') whole = p->start + 1;
    p->at = whole + (peek_byte(p, p->start) != '0' && ps_sql92_upper(peek_byte(p, whole)) == 'L');
    return T_INTEGER;
}

static token word_token(parser *p) {
    while (is_letter(peek_byte(p, p->at)) || is_digit(peek_byte(p, p->at))) p->at++;
    size_t len = (size_t)(p->at - p->start);
    for (size_t i = 0; len <= WORD_MAX && i < sizeof words / sizeof words[0]; i++) {
        size_t n = 0;
        while (n < len && (uint8_t)words[i][n] == ps_sql92_upper(p->text[(size_t)p->start + n]))
            n++;
        if (n == len && words[i][n] == 0) return (token)(T_NOT + i);
    }
    return T_NAME;
}

/* Two quotes inside a string stand for one. Where the end is missing, upstream's string ends before
 * the last two of them, and the next token cannot be read. */
static token text_token(parser *p) {
    int32_t end = -1;
    for (int32_t i = p->start + 1; i < p->len; i++) {
        if (p->text[i] != '\'') continue;
        end = i + 1;
        if (peek_byte(p, end) != '\'') break;
        i = end;
    }
    if (end < 0) {
        refuse_at(p, p->start, "unterminated string: expected '");
        return T_END;
    }
    p->at = end;
    return T_TEXT;
}

static token mark_token(parser *p, uint8_t c) {
    uint8_t next = peek_byte(p, p->at);
    switch (c) {
    case '=':
        return T_EQUAL;
    case '(':
        return T_OPEN;
    case ',':
        return T_COMMA;
    case ')':
        return T_CLOSE;
    case '+':
        return T_PLUS;
    case '-':
        return T_MINUS;
    case '>':
        p->at += next == '=';
        return next == '=' ? T_GREATER_EQUAL : T_GREATER;
    case '<':
        p->at += next == '=' || next == '>';
        return next == '=' ? T_LESS_EQUAL : next == '>' ? T_NOT_EQUAL : T_LESS;
    default:
        refuse_at(p, p->start, "unexpected character");
    }
    return T_END;
}

/* Looks at the next token. */
static void next_token(parser *p) {
    if (p->failed < 0) return;
    skip_blanks(p);
    p->start = p->at;
    if (p->at >= p->len) {
        p->kind = T_END;
        return;
    }
    uint8_t c = p->text[p->at++];
    token kind;
    if (is_letter(c))
        kind = word_token(p);
    else if (is_digit(c) || (c == '.' && is_digit(peek_byte(p, p->at))))
        kind = number_token(p);
    else
        kind = c == '\'' ? text_token(p) : mark_token(p, c);
    p->kind = kind;
}

static void expect_token(parser *p, token kind) {
    if (p->kind == kind)
        next_token(p);
    else
        refuse_token(p, names_of[kind]);
}

/* ---- code ---- */

/* Appends an instruction that leaves `effect` more values on the stack. */
static ps_sql92_instruction *emit_op(parser *p, ps_sql92_op op, int32_t effect) {
    ps_sql92 *sql = p->sql;
    if (p->failed < 0) return &p->spare;
    if (!PS_GROW(sql->code, p->code_room, sql->code_count + 1, 16)) {
        no_memory(p);
        return &p->spare;
    }
    p->stack += effect;
    if (p->stack > PS_SQL92_STACK_MAX) refuse_at(p, p->start, "nested too deeply");
    ps_sql92_instruction *in = &sql->code[sql->code_count++];
    *in = (ps_sql92_instruction){.op = (uint8_t)op};
    return in;
}

/* A jump whose target is not known yet; where it stands. */
static int32_t emit_jump(parser *p, ps_sql92_op op) {
    emit_op(p, op, 0);
    return p->sql->code_count - 1;
}

static void land_jump(parser *p, int32_t jump) {
    if (p->failed == 0) p->sql->code[jump].to = p->sql->code_count;
}

/* The string that is looked at, without its quotes, in the pool. */
static ps_sql92_span take_text(parser *p) {
    ps_sql92 *sql = p->sql;
    ps_sql92_span s = {sql->pool_len, 0};
    if (p->kind != T_TEXT) refuse_token(p, names_of[T_TEXT]);
    if (p->failed < 0) return s;
    for (int32_t i = p->start + 1; i < p->at - 1; i++) {
        sql->pool[sql->pool_len++] = p->text[i];
        i += p->text[i] == '\'';
    }
    s.len = sql->pool_len - s.at;
    next_token(p);
    return s;
}

/* The slot of the property that is looked at. */
static int32_t take_name(parser *p) {
    ps_sql92 *sql = p->sql;
    int32_t len = p->at - p->start, i = 0;
    for (; i < sql->name_count; i++)
        if (sql->names[i].len == len &&
            memcmp(sql->pool + sql->names[i].at, p->text + p->start, (size_t)len) == 0)
            break;
    if (i == sql->name_count) {
        if (i == PS_SQL92_NAMES_MAX) refuse_at(p, p->start, "expected no more than 128 properties");
        if (!PS_GROW(sql->names, p->name_room, i + 1, 16)) no_memory(p);
        if (p->failed < 0) return 0;
        memcpy(sql->pool + sql->pool_len, p->text + p->start, (size_t)len);
        sql->names[sql->name_count++] = (ps_sql92_span){sql->pool_len, len};
        sql->name_lengths |= 1ull << (len & 63);
        sql->pool_len += len;
    }
    next_token(p);
    return i;
}

/* ---- the parser ---- */

typedef enum role {
    R_CONSTANT, /* a number or a string */
    R_TRUTH_CONSTANT,
    R_PROPERTY,
    R_TRUTH,
    R_NEGATED
} role;

typedef struct operand {
    role role;
    int32_t start; /* in the text */
    int32_t code;  /* its first ps_sql92_instruction */
} operand;

enum { LEVEL_NONE, LEVEL_OR, LEVEL_AND, LEVEL_EQUALITY, LEVEL_COMPARISON, LEVEL_UNARY };

static void parse_binary(parser *p, int level, operand *out);

/* Where a condition is wanted, a property is one too. */
static void as_truth(parser *p, operand *o) {
    if (o->role == R_PROPERTY)
        emit_op(p, PS_OP_CAST, 0);
    else if (o->role != R_TRUTH && o->role != R_TRUTH_CONSTANT)
        refuse_at(p, o->start, "expected a condition, not a value");
    o->role = R_TRUTH;
}

static bool is_op(const parser *p, const operand *o, ps_sql92_op op) {
    return p->failed == 0 && p->sql->code[o->code].op == op;
}

static bool is_constant(const operand *o) {
    return o->role == R_CONSTANT || o->role == R_TRUTH_CONSTANT;
}

static void want_number(parser *p, const operand *o) {
    if (o->role == R_TRUTH || o->role == R_TRUTH_CONSTANT ||
        (o->role == R_CONSTANT && is_op(p, o, PS_OP_TEXT)))
        refuse_at(p, o->start, "expected a number or a property to compare by size");
}

static void parse_integer(parser *p) {
    int32_t len = p->at - p->start;
    int64_t value;
    if (ps_sql92_upper(p->text[p->at - 1]) == 'L') len--;
    if (!ps_java_integer(p->text + p->start, len, INT64_MIN, INT64_MAX, &value)) {
        refuse_at(p, p->start, "expected an integer of at most 64 bits");
        return;
    }
    emit_op(p, value <= INT32_MAX ? PS_OP_INT : PS_OP_LONG, 1)->number = value;
    next_token(p);
}

static void parse_real(parser *p) {
    double value;
    if (!ps_java_double(p->text + p->start, p->at - p->start, &value) || isinf(value) ||
        value == 0) {
        refuse_at(p, p->start, "expected a decimal from 4.9E-324 to 1.7976931348623157E308");
        return;
    }
    emit_op(p, PS_OP_DOUBLE, 1)->real = value;
    next_token(p);
}

static void parse_negation(parser *p, operand *o) {
    ps_sql92_instruction *in = p->failed < 0 ? &p->spare : &p->sql->code[o->code];
    if (p->failed == 0 && o->code == p->sql->code_count - 1 && in->op == PS_OP_DOUBLE)
        in->real = -in->real;
    else if (p->failed == 0 && o->code == p->sql->code_count - 1 &&
             (in->op == PS_OP_INT || in->op == PS_OP_LONG))
        in->number = -in->number;
    else
        emit_op(p, PS_OP_NEGATE, 0);
    o->role = R_NEGATED;
}

static void parse_operand(parser *p, operand *o) {
    token kind = p->kind;
    if (kind == T_TEXT) {
        o->role = R_CONSTANT;
        ps_sql92_span text = take_text(p);
        emit_op(p, PS_OP_TEXT, 1)->text = text;
    } else if (kind == T_NAME) {
        o->role = R_PROPERTY;
        int32_t slot = take_name(p);
        emit_op(p, PS_OP_PROPERTY, 1)->to = slot;
    } else if (kind == T_INTEGER) {
        o->role = R_CONSTANT;
        parse_integer(p);
    } else if (kind == T_REAL) {
        o->role = R_CONSTANT;
        parse_real(p);
    } else if (kind == T_TRUE || kind == T_FALSE || kind == T_NULL) {
        o->role = R_TRUTH_CONSTANT;
        emit_op(p, kind == T_TRUE ? PS_OP_TRUE : kind == T_FALSE ? PS_OP_FALSE : PS_OP_NULL, 1);
        next_token(p);
    } else if (kind == T_OPEN) {
        next_token(p);
        parse_binary(p, LEVEL_OR, o);
        expect_token(p, T_CLOSE);
    } else {
        refuse_token(p, "a property, a literal, NOT or '('");
    }
}

static void parse_unary(parser *p, operand *o) {
    int32_t start = p->start;
    token kind = p->kind;
    o->role = R_CONSTANT;
    o->code = p->sql->code_count;
    if (++p->depth > PS_SQL92_DEPTH_MAX) refuse_at(p, start, "nested too deeply");
    if (p->failed == 0 && (kind == T_PLUS || kind == T_MINUS || kind == T_NOT)) {
        next_token(p);
        parse_unary(p, o);
        if (kind == T_MINUS) parse_negation(p, o);
        if (kind == T_NOT) {
            as_truth(p, o);
            emit_op(p, PS_OP_NOT, 0);
        }
    } else if (p->failed == 0) {
        parse_operand(p, o);
    }
    o->start = start;
    p->depth--;
}

/* AND and OR leave out their right side when the left one decides. */
static void parse_logic(parser *p, operand *left, int level) {
    operand right;
    bool is_or = level == LEVEL_OR;
    as_truth(p, left);
    int32_t jump = emit_jump(p, is_or ? PS_OP_JUMP_TRUE : PS_OP_JUMP_FALSE);
    next_token(p);
    parse_binary(p, level + 1, &right);
    as_truth(p, &right);
    emit_op(p, is_or ? PS_OP_OR : PS_OP_AND, -1);
    land_jump(p, jump);
}

static void parse_is_null(parser *p) {
    next_token(p);
    bool not = p->kind == T_NOT;
    if (not) next_token(p);
    expect_token(p, T_NULL);
    emit_op(p, PS_OP_IS_NULL, 0);
    if (not) emit_op(p, PS_OP_NOT, 0);
}

static void parse_equality(parser *p, operand *left) {
    operand right;
    bool not = p->kind == T_NOT_EQUAL;
    next_token(p);
    parse_binary(p, LEVEL_COMPARISON, &right);
    if (is_op(p, left, PS_OP_NULL) && left->role == R_TRUTH_CONSTANT)
        refuse_at(p, left->start, "nothing is equal to NULL: expected IS NULL");
    if (is_op(p, &right, PS_OP_NULL) && right.role == R_TRUTH_CONSTANT)
        refuse_at(p, right.start, "nothing is equal to NULL: expected IS NULL");
    if (left->role == R_TRUTH_CONSTANT && right.role == R_CONSTANT)
        refuse_at(p, right.start, "expected TRUE, FALSE, a property or a condition");
    emit_op(p, PS_OP_EQUAL, -1);
    if (not) emit_op(p, PS_OP_NOT, 0);
}

/* A right side that can fail is left out when the left one is null; other ones are as cheap. */
static int32_t jump_null(parser *p) {
    bool simple = p->kind == T_NAME || p->kind == T_INTEGER || p->kind == T_REAL;
    return simple ? -1 : emit_jump(p, PS_OP_JUMP_NULL);
}

static void parse_order(parser *p, operand *left) {
    static const ps_sql92_op ops[] = {PS_OP_GREATER, PS_OP_GREATER_EQUAL, PS_OP_LESS,
                                      PS_OP_LESS_EQUAL};
    operand right;
    ps_sql92_op op = ops[p->kind - T_GREATER];
    next_token(p);
    int32_t jump = jump_null(p);
    parse_unary(p, &right);
    want_number(p, left);
    want_number(p, &right);
    emit_op(p, op, -1);
    if (jump >= 0) land_jump(p, jump);
}

static double constant_of(const parser *p, const operand *o) {
    const ps_sql92_instruction *in = &p->sql->code[o->code];
    return in->op == PS_OP_DOUBLE ? in->real : (double)in->number;
}

static void check_bounds(parser *p, const operand *low, const operand *high) {
    if (p->failed < 0 || !is_constant(low) || !is_constant(high)) return;
    const ps_sql92_instruction *l = &p->sql->code[low->code], *h = &p->sql->code[high->code];
    bool real = l->op == PS_OP_DOUBLE || h->op == PS_OP_DOUBLE;
    if (real ? constant_of(p, high) < constant_of(p, low) : h->number < l->number)
        refuse_at(p, high->start, "expected an upper bound that is not below the lower one");
}

static void parse_between(parser *p, operand *left, bool not) {
    operand low, high;
    next_token(p);
    int32_t jump = emit_jump(p, PS_OP_JUMP_NULL);
    parse_unary(p, &low);
    expect_token(p, T_AND);
    ps_sql92_instruction *in = emit_op(p, PS_OP_LOW, 0);
    int32_t decided = p->sql->code_count - 1;
    in->not = not;
    parse_unary(p, &high);
    want_number(p, left);
    want_number(p, &low);
    want_number(p, &high);
    if (!not) check_bounds(p, &low, &high);
    emit_op(p, PS_OP_HIGH, -2)->not = not;
    land_jump(p, jump);
    land_jump(p, decided);
}

/* Puts the items in order, by a heap: qsort would need the pool beside them. */
static void items_sort(const uint8_t *pool, ps_sql92_span *items, int32_t count) {
    for (int32_t n = count, from = count / 2; n > 1;) {
        ps_sql92_span moved;
        if (from > 0) {
            moved = items[--from];
        } else {
            moved = items[--n];
            items[n] = items[0];
        }
        int32_t i = from;
        for (int32_t child; (child = 2 * i + 1) < n; i = child) {
            ps_sql92_span *c = &items[child];
            if (child + 1 < n &&
                ps_sql92_text_order(pool + c[0].at, c[0].len, pool + c[1].at, c[1].len) < 0)
                child++;
            c = &items[child];
            if (ps_sql92_text_order(pool + moved.at, moved.len, pool + c->at, c->len) >= 0) break;
            items[i] = *c;
        }
        items[i] = moved;
    }
}

static void parse_in(parser *p, operand *left, bool not) {
    ps_sql92 *sql = p->sql;
    int32_t first = sql->item_count;
    if (left->role != R_PROPERTY) refuse_at(p, left->start, "expected a property before IN");
    next_token(p);
    expect_token(p, T_OPEN);
    for (bool more = true; more && p->failed == 0;) {
        ps_sql92_span text = take_text(p);
        if (!PS_GROW(sql->items, p->item_room, sql->item_count + 1, 16)) no_memory(p);
        if (p->failed == 0) sql->items[sql->item_count++] = text;
        more = p->kind == T_COMMA;
        if (more) next_token(p);
    }
    expect_token(p, T_CLOSE);
    if (p->failed < 0) return;
    items_sort(sql->pool, sql->items + first, sql->item_count - first);
    ps_sql92_instruction *in = emit_op(p, PS_OP_IN, 0);
    in->not = not;
    in->text.at = first;
    in->to = sql->item_count - first;
}

static void parse_part(parser *p, operand *left, bool not) {
    ps_sql92_op op = p->kind == T_CONTAINS     ? PS_OP_CONTAINS
                     : p->kind == T_STARTSWITH ? PS_OP_STARTS
                                               : PS_OP_ENDS;
    next_token(p);
    ps_sql92_span text = take_text(p);
    if (p->failed < 0) return;
    if (text.len == 0) { /* false whatever stands before it, which is not even evaluated */
        p->sql->code_count = left->code;
        emit_op(p, PS_OP_FALSE, 0);
        return;
    }
    ps_sql92_instruction *in = emit_op(p, op, 0);
    in->not = not;
    in->text = text;
}

static void parse_comparison(parser *p, operand *left) {
    bool not = p->kind == T_NOT;
    if (not) next_token(p);
    if (!not && p->kind >= T_GREATER && p->kind <= T_LESS_EQUAL)
        parse_order(p, left);
    else if (p->kind == T_BETWEEN)
        parse_between(p, left, not);
    else if (p->kind == T_IN)
        parse_in(p, left, not);
    else if (p->kind >= T_CONTAINS && p->kind <= T_ENDSWITH)
        parse_part(p, left, not);
    else
        refuse_token(p, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH");
}

/* The level of the operator that is looked at. */
static int level_of(token kind) {
    switch (kind) {
    case T_OR:
        return LEVEL_OR;
    case T_AND:
        return LEVEL_AND;
    case T_EQUAL:
    case T_NOT_EQUAL:
    case T_IS:
        return LEVEL_EQUALITY;
    case T_GREATER:
    case T_GREATER_EQUAL:
    case T_LESS:
    case T_LESS_EQUAL:
    case T_NOT:
    case T_BETWEEN:
    case T_IN:
    case T_CONTAINS:
    case T_STARTSWITH:
    case T_ENDSWITH:
        return LEVEL_COMPARISON;
    default:
        return LEVEL_NONE;
    }
}

/* Operators of `level` and above. After one only its equals and those below can follow: nothing
 * compares with what IS NULL made. */
static void parse_binary(parser *p, int level, operand *out) {
    int most = LEVEL_COMPARISON;
    parse_unary(p, out);
    while (p->failed == 0) {
        int found = level_of(p->kind);
        if (found == LEVEL_NONE || found < level || found > most) return;
        if (found == LEVEL_OR || found == LEVEL_AND)
            parse_logic(p, out, found);
        else if (p->kind == T_IS)
            parse_is_null(p);
        else if (found == LEVEL_EQUALITY)
            parse_equality(p, out);
        else
            parse_comparison(p, out);
        out->role = R_TRUTH;
        most = found;
    }
}

/* A jump to another one of its kind goes where that one goes: chains of OR take one step. Counts
 * the searches meanwhile. */
static void finish_code(ps_sql92 *sql) {
    for (int32_t i = sql->code_count - 1; i >= 0; i--) {
        ps_sql92_instruction *in = &sql->code[i];
        sql->searches += in->op == PS_OP_CONTAINS;
        if (in->op < PS_OP_JUMP_TRUE || in->op > PS_OP_JUMP_NULL) continue;
        while (in->to < sql->code_count && sql->code[in->to].op == in->op)
            in->to = sql->code[in->to].to;
    }
}

ps_sql92 *ps_sql92_compile(const char *text, int32_t len, ps_error *e) {
    if (len < 0 || len > PS_SQL92_TEXT_MAX) {
        ps_fail(e, PS_E_EXPRESSION_ILLEGAL, 0, -1, NULL, "%d bytes, more than %d", len,
                PS_SQL92_TEXT_MAX);
        return NULL;
    }
    ps_sql92 *sql = calloc(1, sizeof *sql);
    if (sql != NULL) sql->pool = malloc((size_t)len + 1);
    if (sql == NULL || sql->pool == NULL) {
        ps_no_memory(e, NULL, "no memory for the expression");
        free(sql);
        return NULL;
    }
    parser p = {.sql = sql, .text = (const uint8_t *)text, .len = len, .error = e};
    operand all;
    sql->refs = 1;
    next_token(&p);
    parse_binary(&p, LEVEL_OR, &all);
    as_truth(&p, &all);
    if (p.failed < 0) {
        ps_sql92_free(sql);
        return NULL;
    }
    sql->unread = p.kind == T_END ? -1 : p.start;
    finish_code(sql);
    return sql;
}

ps_sql92 *ps_sql92_ref(ps_sql92 *sql) {
    __atomic_fetch_add(&sql->refs, 1, __ATOMIC_RELAXED);
    return sql;
}

void ps_sql92_free(ps_sql92 *sql) {
    if (sql == NULL || __atomic_sub_fetch(&sql->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    free(sql->code);
    free(sql->items);
    free(sql->names);
    free(sql->pool);
    free(sql);
}

int32_t ps_sql92_unread(const ps_sql92 *sql) {
    return sql->unread;
}
