/* The set of pending timers belongs to one thread, its saving to another: runs are written, merged
 * and delivered while an older state is saved and files that it does not name are deleted. */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"
#include "timers/pending.h"

enum { TIMERS = 30000, HEAP = 64, ROUND = 500 };

static char *folder;

typedef struct saving {
    ps_pending_state state;
    int code;
} saving;

static void *save(void *of) {
    saving *s = of;
    ps_error e = {0};
    s->code = ps_pending_save(ps_io_system(), folder, &s->state, &e);
    if (s->code < 0) printf("save: %s %s\n", e.text, e.where);
    return NULL;
}

static void some(ps_pending *p, int64_t from) {
    ps_error e = {0};
    ps_pending_entry first;
    for (int64_t i = from; i < from + ROUND; i++) {
        CHECK_EQ(0, ps_pending_add(p, i + check_below(20000), ps_pending_id(i, 1), &e));
        if (i % 3 == 0 && ps_pending_first(p, &first)) ps_pending_pop(p);
    }
}

int main(void) {
    ps_pending p;
    ps_error e = {0};
    check_begin();
    folder = check_folder();
    CHECK_EQ(0, ps_pending_open(&p, ps_io_system(), folder, false, &e));
    p.pd_room = HEAP;
    for (int64_t i = 0; i < TIMERS && check_failures == 0; i += ROUND) {
        saving s;
        pthread_t thread;
        CHECK_EQ(0, ps_pending_capture(&p, 0, NULL, 0, &s.state, &e));
        CHECK_EQ(0, pthread_create(&thread, NULL, save, &s));
        some(&p, i);
        pthread_join(thread, NULL);
        CHECK_EQ(0, s.code);
        free(s.state.bytes);
    }
    ps_pending_close(&p);
    CHECK_EQ(1, ps_pending_open(&p, ps_io_system(), folder, false, &e));
    CHECK(p.pd_live > 0);
    ps_pending_close(&p);
    check_remove(folder);
    free(folder);
    return check_end("tsan_timers");
}
