/* Repeats beside the dispatcher's thread, for the thread sanitizer: whether a message is still
 * there is asked while its queue is being written. */
#define _GNU_SOURCE
#include <pthread.h>

#include "core_kit.h"
#include "sends/dedup.h"

enum { WINDOW = 200, KEYS = 300, SENDS = 20000 };

static atomic_bool stop;

static void *put_more(void *arg) {
    ps_error e = {0};
    ps_topic *t = ps_topic_open(kit_store, "T", 1, 1, &e);
    for (int i = 0; !atomic_load(&stop); i++) {
        ps_put_result out;
        CHECK_EQ(0, ps_put(t, i % 4, 0, "body", 4, "TAGS\1A\2", 7, 0, &out));
        ps_dispatch_catch_up(kit_store, NULL);
    }
    return arg;
}

int main(void) {
    check_begin();
    char *base = check_folder(), text[64];
    int64_t stored = 0;
    ps_dedup_state state;
    ps_error e = {0};
    pthread_t other;
    kit_frame f;
    ps_conf conf = kit_conf();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    kit_open(&conf, 10);
    kit_topic("T", 4, PS_PERM_READ | PS_PERM_WRITE, PS_SEND_HOT | PS_SEND_ONCE);
    CHECK_EQ(0, ps_core_dedup_set(kit_core, WINDOW, "UNIQ_KEY", &e));
    ps_conn *n = kit_conn(1);
    pthread_create(&other, NULL, put_more, NULL);
    for (int i = 0; i < SENDS; i++) {
        snprintf(text, sizeof text, "UNIQ_KEY\1key%d\2", (int)check_below(KEYS));
        kit_clear();
        kit_send(&f, 0, 1, "T", i % 4, text);
        kit_ask(n, &f, "body", 4);
        CHECK_EQ(0, kit_last()->code);
    }
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    ps_core_dedup_get_state(kit_core, &state);
    ps_sample all;
    ps_core_sample(kit_core, NULL, 0, &all);
    stored = all.puts;
    CHECK_EQ(SENDS, stored + state.repeats);
    CHECK(state.repeats > SENDS / 3 && state.remembered == WINDOW);
    ps_conn_free(n);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("tsan_dedup");
}
