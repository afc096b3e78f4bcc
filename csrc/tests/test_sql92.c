/* SQL92 filters: what upstream says to some expressions, every limit, and hostile bytes. Thousands
 * of random ones are compared with upstream by tests/java/test_sql_judge.py. */
#define _GNU_SOURCE
#include "check.h"
#include "base/error.h"
#include "format/javanum.h"
#include "filter/sql92.h"

#include <math.h>

typedef struct fact {
    const char *sql;
    const char *properties; /* NAME=VALUE, joined by ';' */
    int verdict;
} fact;

enum { T = PS_SQL92_TRUE, F = PS_SQL92_FALSE, N = PS_SQL92_NULL, E = PS_SQL92_ERROR };

/* Each was told by Apache RocketMQ 5.3.3. */
static const fact facts[] = {
    {"a > 3", "a=5", T},
    {"a > 3", "a=3", F},
    {"a > 3", "", N},
    {"a > 3", "a=3.5", E},
    {"a > 3.0", "a=3.5", T},
    {"a > 3", "a=3000000000", E},
    {"a > 2147483648", "a=3000000000", T},
    {"a > -2147483648", "a=-2147483647", T},
    {"a > 3 AND region = 'EU'", "a=4;region=EU", T},
    {"a > 3 and region = 'EU'", "a=4;region=US", F},
    {"a > 3 AND b = 1", "b=1", N},
    {"a > 3 AND b = 1", "b=2", F},
    {"a > 3 OR b = 1", "b=1", T},
    {"a > 3 OR b = 1", "a=x;b=1", E},
    {"b = 1 OR a > 3", "a=x;b=1", T},
    {"NOT a = 1", "a=1", F},
    {"NOT (a = 1)", "a=2", T},
    {"NOT (a = 1)", "", N},
    {"a", "a=true", F},
    {"NOT a", "a=true", T},
    {"a = TRUE", "a=tRuE", T},
    {"TRUE = a", "a=true", E},
    {"a = b", "", T},
    {"3 = a", "", F},
    {"a = 3", "", N},
    {"a <> 3", "a=4", T},
    {"a = '3'", "a=3.0", F},
    {"a = 3.0", "a=3", T},
    {"a < b", "a=2;b=10", T},
    {"a < b", "a=x;b=10", E},
    {"a BETWEEN 2 AND 4", "a=4", T},
    {"a BETWEEN 2 AND 4", "a=5", F},
    {"a NOT BETWEEN 2 AND 4", "a=5", T},
    {"a NOT BETWEEN 4 AND 2", "a=3", T},
    {"a BETWEEN -1 AND -5", "a=-3", F},
    {"a BETWEEN 1 AND -(TRUE = b)", "a=0;b=x", F},
    {"a BETWEEN 1 AND -(TRUE = b)", "a=2;b=x", E},
    {"a IN ('x', 'it''s', 'z')", "a=it's", T},
    {"a NOT IN ('x', 'y')", "a=z", T},
    {"a NOT IN ('x', 'y')", "", N},
    {"a IS NULL", "", T},
    {"a IS NOT NULL", "a=0", T},
    {"a CONTAINS 'bc'", "a=abcd", T},
    {"a NOT CONTAINS 'bc'", "a=abcd", F},
    {"a NOT CONTAINS 'bc'", "", F},
    {"a CONTAINS ''", "a=abcd", F},
    {"(TRUE = a) CONTAINS ''", "a=abcd", F},
    {"a STARTSWITH 'ab'", "a=abcd", T},
    {"a ENDSWITH 'cd'", "a=abcd", T},
    {"a NOT ENDSWITH 'cd'", "a=cd", F},
    {"a = 1 b = 2", "a=1;b=3", T},
    {"a LIKE 'x%'", "a=xy", F},
    {"a = 0x1F", "a=0", T},
    {"a = 007", "a=0", T},
    {"a IS NULL < 3", "", T},
    {"-- a line\na /* or */ = 1", "a=1", T},
    {"a = --1", "a=1", T},
    {"$a = 1", "$a=1", T},
    {"a = 1", "A=1", N},
    {"a = 1", "a=1;a=2", F},
    {"a = 1", "a=2;a=1;a=", T},
    {"a = 3", "a=\xD9\xA3", T}, /* an Arabic three */
    {"a > 1.5", "a=NaN", T},
    {"a = 8.0", "a= 0x1p3 ", T},
    {"'x' CONTAINS 'x'", "", T},
    {"+a = 1", "a=+1", T},
    {"-a IS NULL", "a=1", T},
    {"NULL", "", N},
    {"(a = 1) = 1", "a=1", F},
    {"(a = 1) = b", "a=1;b=1", E},
};

typedef struct mistake {
    const char *sql;
    const char *text; /* part of the message */
} mistake;

static const mistake mistakes[] = {
    {"", "position 1: expected a property, a literal, NOT or '(', but the expression ends"},
    {"a = ", "position 5: expected"},
    {"a > 'x'", "position 5: expected a number or a property"},
    {"a >= TRUE", "position 6: expected a number"},
    {"(a = 1) > 1", "position 1: expected a number"},
    {"1", "position 1: expected a condition"},
    {"-a", "position 1: expected a condition"},
    {"a AND 5", "position 7: expected a condition"},
    {"NOT 'x'", "position 5: expected a condition"},
    {"a = NULL", "position 5: nothing is equal to NULL"},
    {"TRUE = 'x'", "position 8: expected TRUE, FALSE"},
    {"a = 0.0", "position 5: expected a decimal"},
    {"a = 1e400", "position 5: expected a decimal"},
    {"a = 9223372036854775808", "position 5: expected an integer"},
    {"a BETWEEN 5 AND 3", "position 17: expected an upper bound"},
    {"a BETWEEN 5 OR 3", "position 13: expected AND, not OR"},
    {"a IN ()", "position 7: expected a string, not )"},
    {"a IN (1)", "position 7: expected a string, not 1"},
    {"a IN ('x'", "position 10: expected ')', but the expression ends"},
    {"NOT a IN ('x')", "position 1: expected a property before IN"},
    {"'gr\xC3\xBCn' IN ('x')", "position 1: expected a property before IN"},
    {"'gr\xC3\xBCn' = !", "position 10: unexpected character"},
    {"a NOT 3", "position 7: expected BETWEEN, IN"},
    {"a IS 3", "position 6: expected NULL, not 3"},
    {"a = 'x", "position 5: unterminated string"},
    {"a.b = 1", "position 2: unexpected character"},
    {"(a = 1", "position 7: expected ')'"},
    {"a /* = 1", "position 3: unexpected character"},
    {"a = 1 \x80", "unexpected character"},
};

static int32_t encode(const char *text, uint8_t *out) {
    int32_t len = (int32_t)strlen(text);
    bool name = true;
    for (int32_t i = 0; i < len; i++) {
        out[i] = (uint8_t)text[i];
        if (name && text[i] == '=')
            out[i] = 1, name = false;
        else if (text[i] == ';')
            out[i] = 2, name = true;
    }
    return len;
}

/* Compiles a copy that ends where its memory does, so that the sanitizer sees every step beyond. */
static ps_sql92 *compile(const char *text, int32_t len, ps_error *e) {
    char *copy = malloc((size_t)len + (len == 0));
    if (len > 0) memcpy(copy, text, (size_t)len);
    ps_sql92 *sql = ps_sql92_compile(copy, len, e);
    free(copy);
    return sql;
}

static int evaluate(const ps_sql92 *sql, const uint8_t *properties, int32_t len) {
    uint8_t *copy = malloc((size_t)len + (len == 0));
    if (len > 0) memcpy(copy, properties, (size_t)len);
    int verdict = ps_sql92_evaluate(sql, copy, len);
    CHECK_EQ(verdict == T, ps_sql92_match(sql, copy, len));
    free(copy);
    return verdict;
}

static void test_facts(void) {
    uint8_t properties[256];
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const fact *f = &facts[i];
        ps_error e = {0};
        ps_sql92 *sql = compile(f->sql, (int32_t)strlen(f->sql), &e);
        if (!CHECK(sql != NULL)) {
            printf("  %s: %s\n", f->sql, e.text);
            continue;
        }
        if (!CHECK_EQ(f->verdict, evaluate(sql, properties, encode(f->properties, properties))))
            printf("  %s on %s\n", f->sql, f->properties);
        ps_sql92_free(sql);
    }
}

static void test_mistakes(void) {
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        const mistake *m = &mistakes[i];
        ps_error e = {0};
        ps_sql92 *sql = compile(m->sql, (int32_t)strlen(m->sql), &e);
        CHECK_EQ(PS_E_EXPRESSION_ILLEGAL, e.code);
        if (!CHECK(sql == NULL && strstr(e.text, m->text) != NULL))
            printf("  %s: %s\n", m->sql, e.text);
        ps_sql92_free(sql);
    }
}

static void test_unread(void) {
    static const struct {
        const char *sql;
        int32_t unread;
    } cases[] = {{"a = 1", -1},  {"a = 1 /* all */ ", -1}, {"a LIKE 'x'", 2},    {"a = 1 b = 2", 6},
                 {"a = 007", 5}, {"(a = 1))", 7},          {"a IS NULL < 3", 10}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ps_sql92 *sql = compile(cases[i].sql, (int32_t)strlen(cases[i].sql), NULL);
        if (CHECK(sql != NULL)) CHECK_EQ(cases[i].unread, ps_sql92_unread(sql));
        ps_sql92_free(sql);
    }
}

/* `before` n times, `middle`, `after` n times. */
static char *wrapped(const char *before, const char *middle, const char *after, int32_t n) {
    size_t b = strlen(before), m = strlen(middle), a = strlen(after);
    char *text = malloc((b + a) * (size_t)n + m + 1), *p = text;
    for (int32_t i = 0; i < n; i++, p += b) memcpy(p, before, b);
    memcpy(p, middle, m);
    p += m;
    for (int32_t i = 0; i < n; i++, p += a) memcpy(p, after, a);
    *p = 0;
    return text;
}

/* The verdict on a=1, or PS_E_ of the refusal. */
static int verdict_of(char *text) {
    ps_error e = {0};
    ps_sql92 *sql = compile(text, (int32_t)strlen(text), &e);
    int verdict = sql != NULL ? evaluate(sql,
                                         (const uint8_t *)"a\1"
                                                          "1\2",
                                         4)
                              : e.code;
    ps_sql92_free(sql);
    free(text);
    return verdict;
}

static void test_limits(void) {
    enum { DEEP = PS_SQL92_DEPTH_MAX - 1, REFUSED = PS_E_EXPRESSION_ILLEGAL };
    CHECK_EQ(T, verdict_of(wrapped("(", "a = 1", ")", DEEP)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("(", "a = 1", ")", DEEP + 1)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("(", "a = 1", ")", 30000)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("(", "", "", PS_SQL92_TEXT_MAX)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("NOT ", "a = 1", "", 10000)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("-", "a = 1", "", 10000)));
    CHECK_EQ(F, verdict_of(wrapped("b IS NOT NULL OR a = 2 AND a = (", "a = 1", ")", 120)));
    CHECK_EQ(T, verdict_of(wrapped("a = 2 OR ", "a = 1", "", 7000)));
    CHECK_EQ(F, verdict_of(wrapped("", "a = 1", " AND a = 2", 5000)));
    CHECK_EQ(T, verdict_of(wrapped("", "a = 1", " ", PS_SQL92_TEXT_MAX - 5)));
    CHECK_EQ(REFUSED, verdict_of(wrapped("", "a = 1", " ", PS_SQL92_TEXT_MAX - 4)));
    CHECK(ps_sql92_compile(NULL, -1, NULL) == NULL);
    ps_sql92_free(NULL);
}

static void test_many_names(void) {
    for (int32_t names = PS_SQL92_NAMES_MAX; names <= PS_SQL92_NAMES_MAX + 1; names++) {
        char text[8192], *p = text;
        for (int32_t i = 0; i < names; i++) p += snprintf(p, 32, "%sn%d = 1", i ? " OR " : "", i);
        ps_error e = {0};
        ps_sql92 *sql = compile(text, (int32_t)(p - text), &e);
        CHECK_EQ(names <= PS_SQL92_NAMES_MAX, sql != NULL);
        if (sql != NULL)
            CHECK_EQ(T, evaluate(sql,
                                 (const uint8_t *)"n127\1"
                                                  "1",
                                 6));
        ps_sql92_free(sql);
    }
}

/* With many names a property is found in another way: the last of equal ones counts there too. */
static void test_among_many_names(void) {
    for (int32_t round = 0; round < 500; round++) {
        int32_t values[40], names = 1 + (int32_t)check_below(40);
        char text[1024], properties[512], *p = text, *q = properties;
        bool any = false;
        for (int32_t i = 0; i < names; i++) {
            p += snprintf(p, 32, "%sn%d = '1'", i ? " OR " : "", i * 7);
            values[i] = -1;
        }
        for (int64_t n = check_below(40); n > 0; n--) {
            int32_t i = (int32_t)check_below(40), v = (int32_t)check_below(3);
            q += snprintf(q, 16, "n%d\001%d\002", i * 7, v);
            if (i < names) values[i] = v;
        }
        for (int32_t i = 0; i < names; i++) any |= values[i] == 1;
        ps_sql92 *sql = compile(text, (int32_t)(p - text), NULL);
        if (!CHECK(sql != NULL)) return;
        int verdict = evaluate(sql, (const uint8_t *)properties, (int32_t)(q - properties));
        CHECK_EQ(any, verdict == T);
        ps_sql92_free(sql);
    }
}

static void test_long_list(void) {
    static char text[PS_SQL92_TEXT_MAX];
    char *p = text + snprintf(text, 16, "a IN ('x'");
    for (int32_t i = 0; i < 6000; i++) p += snprintf(p, 16, ",'%d'", (i * 7919) % 6000);
    *p++ = ')';
    ps_sql92 *sql = compile(text, (int32_t)(p - text), NULL);
    for (int32_t i = -1; sql != NULL && i <= 6000; i++) {
        char one[32];
        int32_t len = snprintf(one, sizeof one, "a\1%d", i);
        CHECK_EQ(i >= 0 && i < 6000, evaluate(sql, (const uint8_t *)one, len));
    }
    CHECK(sql != NULL);
    ps_sql92_free(sql);
}

static void test_users(void) {
    ps_sql92 *sql = compile("a = 1", 5, NULL);
    ps_sql92 *same = ps_sql92_ref(sql);
    ps_sql92_free(sql);
    CHECK_EQ(T, evaluate(same,
                         (const uint8_t *)"a\1"
                                          "1",
                         3));
    ps_sql92_free(same);
}

/* ---- numbers ---- */

static bool text_double(const char *text, double *out) {
    return ps_java_double((const uint8_t *)text, (int32_t)strlen(text), out);
}

static void test_doubles_come_back(void) {
    for (int i = 0; i < 20000; i++) {
        union {
            uint64_t bits;
            double value;
        } x = {.bits = check_random()};
        char text[64];
        double back = 0;
        if (!isfinite(x.value)) continue;
        snprintf(text, sizeof text, "%.17g", x.value);
        CHECK(text_double(text, &back) && back == x.value);
        snprintf(text, sizeof text, "%a", x.value);
        CHECK(text_double(text, &back) && back == x.value);
        snprintf(text, sizeof text, "%" PRId64, (int64_t)x.bits >> (i % 64));
        CHECK(text_double(text, &back) && back == (double)((int64_t)x.bits >> (i % 64)));
    }
}

static void test_integers(void) {
    static const char *const good[] = {"0", "-0", "+7", "-2147483648", "2147483647", "000012"};
    static const int64_t values[] = {0, 0, 7, INT32_MIN, INT32_MAX, 12};
    static const char *const bad[] = {
        "",   "+",   "-",   "2147483648", "-2147483649", " 1",
        "1.", "1e1", "0x1", "--1",        "\xD9",        "99999999999999999999"};
    int64_t value;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const uint8_t *p = (const uint8_t *)good[i];
        CHECK(ps_java_integer(p, (int32_t)strlen(good[i]), INT32_MIN, INT32_MAX, &value));
        CHECK_EQ(values[i], value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const uint8_t *p = (const uint8_t *)bad[i];
        CHECK(!ps_java_integer(p, (int32_t)strlen(bad[i]), INT32_MIN, INT32_MAX, &value));
    }
    CHECK(
        ps_java_integer((const uint8_t *)"-9223372036854775808", 20, INT64_MIN, INT64_MAX, &value));
    CHECK_EQ(INT64_MIN, value);
}

/* ---- hostile bytes ---- */

static const char *const tokens[] = {
    "a",    "b",     "$c",   "1",   "0",   "2.5", ".5",         "1e3",      "'x'",      "''",
    "TRUE", "FALSE", "NULL", "NOT", "AND", "OR",  "BETWEEN",    "IN",       "IS",       "CONTAINS",
    "=",    "<>",    "<",    "<=",  ">",   ">=",  "STARTSWITH", "ENDSWITH", "(",        ")",
    ",",    "+",     "-",    "--",  "/*",  "*/",  "'",          "\n",       "99999999", "\xC3",
};

static int32_t soup(uint8_t *out, int32_t most) {
    int32_t len = 0;
    if (check_below(3) == 0) {
        for (int32_t n = (int32_t)check_below(40); len < n && len < most; len++)
            out[len] = (uint8_t)check_random();
        return len;
    }
    for (int64_t n = check_below(24); n > 0; n--) {
        const char *token = tokens[check_below(sizeof tokens / sizeof tokens[0])];
        int32_t size = (int32_t)strlen(token);
        if (len + size + 1 > most) break;
        memcpy(out + len, token, (size_t)size);
        len += size;
        if (check_below(8) > 0) out[len++] = ' ';
    }
    return len;
}

/* Properties with everything in them that an end or a number may be misread at. */
static int32_t random_properties(uint8_t *out, int32_t most) {
    static const uint8_t likely[] = "ab$c\1\1\1\2\2\2"
                                    "0123456789.eExXpPNI+-fdL \xD9\xA3\xEF\xBC";
    int32_t len = (int32_t)check_below(most);
    for (int32_t i = 0; i < len; i++)
        out[i] =
            check_below(20) == 0 ? (uint8_t)check_random() : likely[check_below(sizeof likely - 1)];
    return len;
}

static void test_hostile(void) {
    uint8_t text[256], properties[64];
    int32_t legal = 0;
    for (int i = 0; i < 60000; i++) {
        ps_error e = {0};
        int32_t len = soup(text, sizeof text);
        ps_sql92 *sql = compile((const char *)text, len, &e);
        if (sql == NULL) {
            CHECK_EQ(PS_E_EXPRESSION_ILLEGAL, e.code);
            CHECK(e.text[0] != 0);
            continue;
        }
        legal++;
        CHECK(ps_sql92_unread(sql) >= -1 && ps_sql92_unread(sql) < len);
        for (int k = 0; k < 4; k++) {
            int verdict = evaluate(sql, properties, random_properties(properties, 64));
            CHECK(verdict >= E && verdict <= T);
        }
        ps_sql92_free(sql);
    }
    CHECK(legal > 1000);
}

/* Random text as a number: read to its end and no further. */
static void test_hostile_numbers(void) {
    uint8_t text[64];
    double real;
    int64_t whole;
    for (int i = 0; i < 100000; i++) {
        int32_t len = random_properties(text, 24);
        uint8_t *copy = malloc((size_t)len + (len == 0));
        memcpy(copy, text, (size_t)len);
        ps_java_double(copy, len, &real);
        if (ps_java_integer(copy, len, INT32_MIN, INT32_MAX, &whole))
            CHECK(whole >= INT32_MIN && whole <= INT32_MAX);
        free(copy);
    }
}

int main(void) {
    check_begin();
    test_facts();
    test_mistakes();
    test_unread();
    test_limits();
    test_many_names();
    test_among_many_names();
    test_long_list();
    test_users();
    test_doubles_come_back();
    test_integers();
    test_hostile();
    test_hostile_numbers();
    return check_end("test_sql92");
}
