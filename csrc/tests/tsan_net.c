/* A network thread beside what plays Python, for the thread sanitizer: four clients send, pull,
 * hold pulls and ask what only Python serves, connections come and go, while Python makes and
 * withdraws topics and subscriptions, reads counters and commits offsets. Every request is
 * answered once. PS_ROUNDS: rounds of each client. */
#define _GNU_SOURCE
#include <pthread.h>

#include "net_kit.h"

enum { CLIENTS = 4 };

static int64_t rounds = 300;
static atomic_int clients_left;

/* ---- clients ---- */

static void ask_python(net_client *c, int32_t opaque) {
    kit_frame f;
    kit_begin(&f, opaque & 1, 999, opaque);
    net_say(c, &f, NULL, 0);
}

/* An offset of the group, and what lasts no longer than its topic. */
static void ask_rest(net_client *c, int32_t opaque) {
    kit_frame f;
    kit_begin(&f, opaque & 1, 15, opaque);
    kit_text(&f, "consumerGroup", "G");
    kit_text(&f, "topic", "T");
    kit_number(&f, "queueId", opaque % 4);
    kit_number(&f, "commitOffset", opaque);
    net_say(c, &f, NULL, 0);
    kit_send(&f, opaque & 1, opaque + 1, "passing", 0, UNIQ);
    net_say(c, &f, "body", 4);
}

static void *work(void *arg) {
    int32_t opaque = (int32_t)(intptr_t)arg;
    net_client c = net_connect();
    for (int64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < 8; k++) net_send(&c, opaque++, "body", 4);
        net_pull(&c, opaque++, i, 0);
        net_pull(&c, opaque++, i * 8, 1 + i % 3); /* held now and then */
        ask_python(&c, opaque++);
        ask_rest(&c, opaque);
        opaque += 2;
        for (int k = 0; k < 13; k++)
            if (!CHECK(net_read(&c, NULL, NULL) >= 0)) i = rounds;
        if (i % 16 == 15) {
            if (i % 32 == 31) ask_python(&c, opaque++);
            net_reset(&c);
            c = net_connect();
        }
    }
    net_leave(&c);
    atomic_fetch_sub(&clients_left, 1);
    return NULL;
}

/* ---- Python's part, beside its events ---- */

static void change_tables(int turn) {
    static ps_offset_row rows[64];
    ps_core_totals totals;
    ps_error e = {0};
    if (turn % 2)
        ps_core_forget_topic(kit_core, "passing", 7);
    else
        kit_topic("passing", 1, HOT);
    kit_subscribe("G", "T", turn % 3 ? "" : "TagA\0", turn % 3 ? 0 : 1, turn);
    kit_subscribe("leaving", "T", "", 0, turn);
    if (turn % 4 == 3) ps_core_forget_group(kit_core, "leaving", 7);
    CHECK(ps_core_commit(kit_core, "G", 1, "T", 1, turn % 4, turn, &e) >= 0);
    ps_core_offsets(kit_core, 1, rows, 64);
    ps_core_get_totals(kit_core, &totals);
    if (turn % 5 == 0) ps_net_look(net, turn % 10 == 0);
}

static void *be_python(void *arg) {
    ps_net_event rows[16];
    for (int turn = 0; atomic_load(&clients_left) > 0; turn++) {
        struct pollfd p = {ps_net_event_fd(net), POLLIN, 0};
        if (poll(&p, 1, 1) > 0) {
            int64_t count = ps_net_events(net, rows, 16);
            for (int64_t i = 0; i < count; i++) net_take(&rows[i]);
        }
        change_tables(turn);
    }
    return arg;
}

int main(void) {
    check_begin();
    pthread_t clients[CLIENTS];
    char *base = check_folder();
    if (getenv("PS_ROUNDS") != NULL) rounds = strtoll(getenv("PS_ROUNDS"), NULL, 10);
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf store = kit_conf();
    ps_net_conf conf = net_conf();
    kit_open(&store, 1000);
    kit_topic("T", 4, HOT);
    kit_subscribe("G", "T", "", 0, 0);
    atomic_store(&clients_left, CLIENTS);
    net_start_as(&conf, be_python);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&clients[i], NULL, work, (void *)(intptr_t)(i << 24));
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i], NULL);
    net_stop();
    CHECK(net_frames >= CLIENTS * rounds);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("tsan_net");
}
