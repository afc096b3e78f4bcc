/* A search over rows of which items say nothing, or say what their neighbours deny. */
#define _GNU_SOURCE
#include "base/bisect.h"
#include "base/error.h"
#include "check.h"

#define COUNT 40

/* A row of COUNT items: '<' comes before the place, '>' does not, '?' says nothing. */
static int side_in(void *arg, int64_t at, ps_error *e) {
    const char *row = arg;
    (void)e;
    return row[at] == '<' ? PS_SIDE_BEFORE : row[at] == '>' ? PS_SIDE_AFTER : PS_SIDE_UNKNOWN;
}

static int side_fails(void *arg, int64_t at, ps_error *e) {
    (void)arg;
    (void)at;
    return ps_fail(e, PS_E_IO, 0, -1, NULL, "a file that cannot be read");
}

static void make_row(char *row, int64_t before) {
    for (int64_t i = 0; i < COUNT; i++) row[i] = i < before ? '<' : '>';
}

static int64_t found_in(char *row) {
    return ps_bisect(side_in, row, 0, COUNT, NULL);
}

static void test_a_sound_row(void) {
    char row[COUNT];
    for (int64_t before = 0; before <= COUNT; before++) {
        make_row(row, before);
        CHECK_EQ(before, found_in(row));
    }
}

/* Wherever the run stands, the result is the place, or the beginning of a run that ends there. */
static void test_a_run_that_says_nothing_hides_nothing(void) {
    char row[COUNT];
    for (int64_t before = 0; before <= COUNT; before++)
        for (int64_t from = 0; from < COUNT; from++)
            for (int64_t len = 1; len < 9 && from + len <= COUNT; len++) {
                make_row(row, before);
                for (int64_t i = from; i < from + len; i++) row[i] = '?';
                bool meets = from <= before && before <= from + len;
                CHECK_EQ(meets ? from : before, found_in(row));
            }
}

static void test_one_odd_item_hides_nothing(void) {
    char row[COUNT];
    for (int64_t before = 0; before <= COUNT; before++)
        for (int64_t odd = 0; odd < COUNT; odd++) {
            make_row(row, before);
            row[odd] = '<';
            CHECK(found_in(row) <= before + (odd == before));
        }
}

static void test_a_failure_ends_the_search(void) {
    ps_error e = {0};
    CHECK_EQ(PS_E_IO, ps_bisect(side_fails, NULL, 0, COUNT, &e));
    CHECK_EQ(PS_E_IO, e.code);
}

int main(void) {
    check_begin();
    test_a_sound_row();
    test_a_run_that_says_nothing_hides_nothing();
    test_one_odd_item_hides_nothing();
    test_a_failure_ends_the_search();
    return check_end("test_bisect");
}
