/* The table of open halves against a plain array, and decisions over a real store. */
#define _GNU_SOURCE
#include "transactions/halves.h"
#include "check.h"

#define MOST 4000
#define PROPERTIES                                                                                 \
    "TRAN_MSG\1true\2PGROUP\1makers\2UNIQ_KEY\1u\2REAL_TOPIC\1orders\2REAL_QID\0011\2"

typedef struct model {
    int64_t count, gone, kept;
    bool open[MOST];
    int decided[MOST];
} model;

static ps_store *open_store(const char *root) {
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    conf.root = root;
    conf.commitlog_file_size = 1 << 20;
    conf.consumequeue_file_size = 6000;
    conf.clean_interval_ms = 0;
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, &e);
    CHECK(s != NULL);
    return s;
}

static void add(ps_store *s, ps_core *c, model *m) {
    ps_error e = {0};
    ps_put_result put = {0};
    char group[8], body[64] = {0};
    ps_message message = {.body = body,
                          .body_len = 1 + check_below(63),
                          .properties = PROPERTIES,
                          .properties_len = sizeof PROPERTIES - 1};
    ps_topic *half = ps_topic_open(s, "RMQ_SYS_TRANS_HALF_TOPIC", 24, 1, &e);
    CHECK_EQ(0, ps_put_message(s, half, &message, &put));
    CHECK_EQ(m->count, put.queue_offset);
    int len = snprintf(group, sizeof group, "g%d", (int)check_below(200));
    ps_half_row row = {.offset = put.queue_offset,
                       .physical = put.physical_offset,
                       .root = put.queue_offset,
                       .root_physical = put.physical_offset,
                       .store_ms = put.store_timestamp,
                       .immunity_s = PS_IMMUNITY_NONE,
                       .group_len = len,
                       .topic_len = 6,
                       .group = group,
                       .topic = "orders"};
    CHECK_EQ(0, ps_core_tx_add(c, &row, 0, &e));
    CHECK_EQ(1, ps_core_tx_add(c, &row, 0, &e));
    m->open[m->count++] = true;
}

static void decide(ps_core *c, model *m) {
    static const int how[] = {PS_TX_COMMIT, PS_TX_ROLLBACK, PS_TX_DISCARD, PS_TX_LOST};
    ps_put_result put;
    ps_error e = {0};
    int64_t offset = check_below(m->count);
    int decision = how[check_below(4)];
    int code = ps_core_tx_decide(c, offset, decision, &put, &e);
    CHECK_EQ(m->open[offset] ? 0 : PS_E_NOT_FOUND, code);
    if (m->open[offset]) m->decided[offset] = decision;
    m->open[offset] = false;
    CHECK_EQ(m->decided[offset], ps_core_tx_decided(c, offset));
}

static void compare(ps_core *c, const model *m) {
    ps_half_row rows[64];
    ps_tx_state state;
    int64_t at = 0, seen = 0, open = 0, first = m->count;
    for (int64_t i = m->count - 1; i >= 0; i--) {
        open += m->open[i];
        if (m->open[i]) first = i;
        CHECK_EQ(m->open[i], ps_core_tx_find(c, i, rows));
    }
    while (at >= 0) {
        int64_t n = ps_core_tx_list(c, &at, rows, 64);
        for (int64_t i = 0; i < n; i++) CHECK(m->open[rows[i].offset]);
        seen += n;
    }
    ps_core_tx_get_state(c, &state);
    CHECK_EQ(open, seen);
    CHECK_EQ(open, state.open);
    CHECK_EQ(first, state.half_progress);
}

/* What a keeper of rows has is what is open: new ones come, those that it had go. */
static void keep(ps_core *c, model *m, bool *kept) {
    ps_half_row rows[16];
    int64_t gone[16], n;
    while ((n = ps_core_tx_take_gone(c, gone, 16)) > 0)
        for (int64_t i = 0; i < n; i++) {
            CHECK(kept[gone[i]]);
            kept[gone[i]] = false;
        }
    while ((n = ps_core_tx_take_new(c, rows, 16)) > 0)
        for (int64_t i = 0; i < n; i++) {
            CHECK(!kept[rows[i].offset]);
            kept[rows[i].offset] = true;
        }
    for (int64_t i = 0; i < m->count; i++) CHECK_EQ(m->open[i], kept[i]);
}

static void rounds(ps_core *c, const model *m) {
    ps_tx_check checks[8];
    int64_t spent[8], open = 0;
    ps_error e = {0};
    ps_step out;
    for (int64_t i = 0; i < m->count; i++) open += m->open[i];
    for (int i = 0; i < 200; i += 2) {
        char group[8];
        int len = snprintf(group, sizeof group, "g%d", i);
        ps_core_tx_live(c, group, len, 1);
    }
    ps_tx_round round = {.now_ms = ps_now_ms() + 60000,
                         .start_ms = ps_now_ms() + 60000,
                         .reserved_ms = 1 << 30,
                         .check_max = 15,
                         .look_max = 100,
                         .bytes_max = 4096};
    while (round.at >= 0) {
        CHECK_EQ(0, ps_core_tx_round(c, &round, checks, 8, spent, 8, &out, &e));
        CHECK_EQ(0, round.spent_count);
        for (int32_t i = 0; i < round.check_count; i++)
            CHECK(checks[i].from_at < checks[i].to_at && checks[i].to_at <= out.out_len);
    }
    CHECK_EQ(open, round.asked + round.unheard);
}

int main(void) {
    static model m;
    static bool kept[MOST];
    check_begin();
    char *root = check_folder();
    ps_error e = {0};
    ps_store *s = open_store(root);
    ps_core_conf conf = {.cluster = "c", .region = "r", .frame_max = 1 << 20};
    ps_core *c = ps_core_new(s, &conf, &e);
    CHECK(c != NULL);
    ps_tx_conf tx = {.on = 1, .op_bytes = 100, .timeout_ms = 6000, .broker = "b"};
    CHECK_EQ(0, ps_core_tx_set(c, &tx, &e));
    while (m.count < MOST) {
        if (m.count == 0 || check_below(3) > 0)
            add(s, c, &m);
        else
            decide(c, &m);
        if (check_below(300) == 0) {
            compare(c, &m);
            keep(c, &m, kept);
        }
    }
    rounds(c, &m);
    ps_core_tx_untake(c);
    memset(kept, 0, sizeof kept);
    keep(c, &m, kept);
    CHECK_EQ(0, ps_core_tx_write_ops(c, &e));
    ps_core_free(c);
    ps_store_free(s);
    check_remove(root);
    free(root);
    return check_end("halves");
}
