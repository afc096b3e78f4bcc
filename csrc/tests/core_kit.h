/* What the tests of the protocol core share: a small store with a core over it, frames as clients
 * send them, and everything that a step brought about, copied. */
#ifndef PS_CORE_KIT_H
#define PS_CORE_KIT_H

#include <poll.h>

#include "base/bytes.h"
#include "check.h"
#include "base/error.h"
#include "faulty_io.h"
#include "core/core.h"

#define KIT_TOLD_MS 60000 /* for an eventfd that must be told */
#define UNIQ "UNIQ_KEY\1FD0123456789\2"
#define EXTRA "MSG_REGION\1DefaultRegion\2TRACE_ON\1true\2CLUSTER\1DefaultCluster\2"
#define HOT (PS_PERM_READ | PS_PERM_WRITE), PS_SEND_HOT

enum { KIT_ANSWERS = 4096, KIT_ROOM = 20 << 20 };

typedef struct kit_answer {
    int64_t conn;
    ps_command *command; /* its texts point after it */
} kit_answer;

/* Since the last kit_clear. */
static kit_answer kit_answers[KIT_ANSWERS];
static int kit_answer_count;
static uint8_t *kit_handed; /* frames for the broker, back to back */
static int64_t kit_handed_len;
static int kit_handed_count;
static int64_t kit_wait; /* the number of the last wait */
static int kit_wait_count, kit_outcome;
static bool kit_news, kit_more;
static int64_t kit_look_in_ms;

static char kit_root[4200];
static ps_io *kit_io;      /* NULL: the system's */
static int kit_close_code; /* what closing the store will answer */
static ps_store *kit_store;
static ps_core *kit_core;

static CHECK_UNUSED void kit_clear(void) {
    for (int i = 0; i < kit_answer_count; i++) free(kit_answers[i].command);
    kit_answer_count = kit_handed_count = kit_wait_count = 0;
    kit_handed_len = 0;
    kit_news = kit_more = false;
    kit_look_in_ms = -1;
}

static CHECK_UNUSED ps_conf kit_conf(void) {
    ps_conf conf;
    ps_conf_init(&conf);
    conf.root = kit_root;
    conf.commitlog_file_size = 1 << 20;
    conf.consumequeue_file_size = 2000;
    conf.index_slots = 64;
    conf.index_entries = 1024;
    conf.flush_interval_ms = 5;
    return conf;
}

static CHECK_UNUSED void kit_open(const ps_conf *conf, int32_t parked_max) {
    ps_core_conf core = {.cluster = "DefaultCluster",
                         .region = "DefaultRegion",
                         .trace_on = 1,
                         .frame_max = 16 << 20,
                         .long_polling = 1,
                         .short_polling_ms = 1000,
                         .parked_max = parked_max,
                         .broker = "broker-a"};
    ps_error e = {0};
    kit_store = ps_store_open(conf, kit_io, NULL, NULL, &e);
    kit_core = kit_store != NULL ? ps_core_new(kit_store, &core, &e) : NULL;
    if (kit_core == NULL) {
        printf("%s %s\n", e.text, e.where);
        exit(2);
    }
    if (kit_handed == NULL) kit_handed = malloc(KIT_ROOM);
}

/* From now on no sync of the log ends, until it is let go. */
static CHECK_UNUSED void kit_hold_disk(bool held) {
    ps_io_faulty_slow(kit_io, 1u << PS_IO_FDATASYNC, held ? 600000 : 0);
}

/* A store whose disk may be held. Its log has a file, which no put has to make any more. */
static CHECK_UNUSED void kit_open_slow(const ps_conf *conf, int32_t parked_max) {
    ps_error e = {0};
    ps_put_result put;
    kit_io = ps_io_faulty_new();
    kit_open(conf, parked_max);
    ps_topic *first = ps_topic_open(kit_store, "first", 5, 1, &e);
    CHECK_EQ(0, ps_put(first, 0, 0, "x", 1, NULL, 0, 1, &put));
}

static CHECK_UNUSED void kit_close(void) {
    ps_error e = {0};
    if (kit_io != NULL) kit_hold_disk(false);
    kit_clear();
    ps_core_free(kit_core);
    kit_core = NULL;
    CHECK_EQ(kit_close_code, ps_store_close(kit_store, &e));
    kit_close_code = 0;
    ps_store_free(kit_store);
    check_remove(kit_root);
    if (kit_io != NULL) ps_io_faulty_free(kit_io);
    kit_io = NULL;
}

static CHECK_UNUSED void kit_topic(const char *name, int32_t queues, int32_t perm, int32_t flags) {
    ps_error e = {0};
    CHECK_EQ(0,
             ps_core_topic(kit_core, name, (int32_t)strlen(name), queues, queues, perm, flags, &e));
}

/* tags: each ended by 0x00. */
static CHECK_UNUSED void kit_subscribe(const char *group, const char *topic, const char *tags,
                                       int32_t tag_count, int64_t version) {
    ps_error e = {0};
    int32_t len = 0;
    for (int32_t i = 0; i < tag_count; i++) len += (int32_t)strlen(tags + len) + 1;
    CHECK_EQ(0, ps_core_subscription(kit_core, group, (int32_t)strlen(group), topic,
                                     (int32_t)strlen(topic), PS_SUB_GROUP | PS_SUB_OWN | PS_SUB_SQL,
                                     tags, len, tag_count, NULL, 0, version, &e));
}

static CHECK_UNUSED ps_conn *kit_conn(int64_t id) {
    static const uint8_t host[8] = {10, 0, 0, 1, 0, 0, 0x30, 0x39};
    ps_error e = {0};
    ps_conn *n = ps_conn_new(kit_core, id, host, sizeof host, &e);
    CHECK(n != NULL);
    return n;
}

/* ---- frames ---- */

typedef struct kit_frame {
    ps_command command;
    char numbers[16][24];
    int number_count;
} kit_frame;

static CHECK_UNUSED void kit_begin(kit_frame *f, int kind, int32_t code, int32_t opaque) {
    f->command = (ps_command){.serialize = kind, .code = code, .opaque = opaque, .version = 479};
    f->number_count = 0;
}

static CHECK_UNUSED void kit_text(kit_frame *f, const char *name, const char *value) {
    if (value == NULL) return;
    f->command.fields[f->command.field_count++] = (ps_field){ps_slice_of(name), ps_slice_of(value)};
}

static CHECK_UNUSED void kit_number(kit_frame *f, const char *name, int64_t value) {
    char *to = f->numbers[f->number_count++];
    snprintf(to, sizeof f->numbers[0], "%" PRId64, value);
    kit_text(f, name, to);
}

/* The value of that field from now on; NULL: it is not there. */
static CHECK_UNUSED void kit_replace(kit_frame *f, const char *name, const char *value) {
    int32_t kept = 0;
    for (int32_t i = 0; i < f->command.field_count; i++)
        if (!ps_slice_is(f->command.fields[i].name, name))
            f->command.fields[kept++] = f->command.fields[i];
    f->command.field_count = kept;
    kit_text(f, name, value);
}

static CHECK_UNUSED int64_t kit_encode(const kit_frame *f, const void *body, int64_t body_len,
                                       uint8_t *to, int64_t room) {
    ps_error e = {0};
    int64_t size = ps_command_encode(&f->command, body_len, to, room, &e);
    CHECK(size > 0 && size + body_len <= room);
    if (body_len > 0) memcpy(to + size, body, (size_t)body_len);
    return size + body_len;
}

/* A SEND_MESSAGE_V2 as Java's client makes it. */
static CHECK_UNUSED void kit_send(kit_frame *f, int kind, int32_t opaque, const char *topic,
                                  int32_t queue, const char *properties) {
    kit_begin(f, kind, 310, opaque);
    kit_text(f, "a", "producers");
    kit_text(f, "b", topic);
    kit_text(f, "c", "TBW102");
    kit_text(f, "d", "4");
    kit_number(f, "e", queue);
    kit_text(f, "f", "0");
    kit_text(f, "g", "1700000000000");
    kit_text(f, "h", "7");
    kit_text(f, "i", properties);
    kit_text(f, "j", "0");
    kit_text(f, "m", "false");
}

static CHECK_UNUSED void kit_pull(kit_frame *f, int32_t opaque, const char *group,
                                  const char *topic, int32_t queue, int64_t offset, int32_t flags,
                                  int64_t suspend_ms) {
    kit_begin(f, opaque & 1, 11, opaque);
    kit_text(f, "consumerGroup", group);
    kit_text(f, "topic", topic);
    kit_number(f, "queueId", queue);
    kit_number(f, "queueOffset", offset);
    kit_text(f, "maxMsgNums", "32");
    kit_number(f, "sysFlag", flags);
    kit_text(f, "commitOffset", "0");
    kit_number(f, "suspendTimeoutMillis", suspend_ms);
    kit_text(f, "subVersion", "0");
}

/* ---- steps ---- */

static CHECK_UNUSED void kit_take_answers(const ps_step *step) {
    int64_t at = 0, wanted;
    while (at < step->out_len) {
        int64_t left = step->out_len - at;
        int64_t total = left >= 4 ? (int64_t)be32_get(step->out + at) + 4 : left + 1;
        if (!CHECK(total <= left) || !CHECK(kit_answer_count < KIT_ANSWERS)) return;
        uint8_t *block = malloc(sizeof(ps_command) + 2 * (size_t)total);
        uint8_t *copy = block + sizeof(ps_command);
        memcpy(copy, step->out + at, (size_t)total);
        ps_error e = {0};
        ps_command *c = (ps_command *)block;
        CHECK_EQ(total, ps_command_decode(copy, total, 1 << 30, copy + total, c, &wanted, &e));
        CHECK_EQ(PS_FLAG_RESPONSE, c->flag);
        kit_answers[kit_answer_count++] = (kit_answer){step->conn_id, c};
        at += total;
    }
}

static CHECK_UNUSED void kit_take(const ps_step *step) {
    kit_take_answers(step);
    for (int32_t i = 0; i < step->frame_count; i++) {
        if (!CHECK(kit_handed_len + step->frames[i].len <= KIT_ROOM)) return;
        memcpy(kit_handed + kit_handed_len, step->frames[i].data, (size_t)step->frames[i].len);
        kit_handed_len += step->frames[i].len;
        kit_handed_count++;
    }
    if (step->wait != 0) {
        kit_wait = step->wait;
        kit_wait_count++;
    }
    kit_news = kit_news || step->news;
    kit_more = step->more;
    kit_look_in_ms = step->look_in_ms;
}

/* Gives the bytes to the connection as a reader would: as many at once as there is room for. */
static CHECK_UNUSED int kit_feed(ps_conn *n, const uint8_t *data, int64_t len) {
    int code = 0;
    for (int64_t at = 0; (at < len || kit_more) && code == 0;) {
        ps_error e = {0};
        ps_step step;
        uint8_t *to;
        int64_t took = 0;
        if (!kit_more) {
            int64_t room = ps_conn_room(n, &to, &e);
            if (!CHECK(room > 0)) return e.code;
            took = room < len - at ? room : len - at;
            memcpy(to, data + at, (size_t)took);
        }
        code = ps_conn_received(n, took, &step, &e);
        CHECK_EQ(code, e.code);
        at += took;
        kit_take(&step);
    }
    return code;
}

static CHECK_UNUSED int kit_ask(ps_conn *n, const kit_frame *f, const void *body,
                                int64_t body_len) {
    static uint8_t frame[1 << 20];
    return kit_feed(n, frame, kit_encode(f, body, body_len, frame, sizeof frame));
}

/* Answers what held pulls have; returns when to come again. */
static CHECK_UNUSED int64_t kit_pump(bool all) {
    int64_t next_ms;
    int answered;
    do {
        ps_step step;
        answered = ps_core_next(kit_core, all, &step, &next_ms);
        if (answered > 0) kit_take_answers(&step);
        if (answered > 0 && step.wait != 0) {
            kit_wait = step.wait;
            kit_outcome = step.outcome;
        }
        all = false;
    } while (answered > 0 || next_ms == 0);
    return next_ms;
}

/* Answers as long as something waits, whenever the eventfd or the first deadline says so. */
static CHECK_UNUSED void kit_settle(void) {
    int64_t next_ms = kit_pump(false);
    while (ps_core_waiting(kit_core) > 0) {
        struct pollfd fd = {.fd = ps_core_event_fd(kit_core), .events = POLLIN};
        /* Without a deadline, what still waited was over after the core had looked: the eventfd
         * says so. */
        int told = poll(&fd, 1, next_ms < 0 ? KIT_TOLD_MS : (int)next_ms);
        if (told < 0 || !CHECK(told > 0 || next_ms >= 0)) return;
        next_ms = kit_pump(false);
    }
}

static CHECK_UNUSED ps_command *kit_last(void) {
    static ps_command none = {.code = -1};
    return kit_answer_count > 0 ? kit_answers[kit_answer_count - 1].command : &none;
}

static CHECK_UNUSED bool kit_field_is(const ps_command *c, const char *name, const char *value) {
    return ps_slice_is(ps_command_field(c, name), value);
}

static CHECK_UNUSED int64_t kit_field(const ps_command *c, const char *name) {
    int64_t value = INT64_MIN;
    ps_slice_number(ps_command_field(c, name), &value);
    return value;
}

static CHECK_UNUSED int64_t kit_queue_end(const char *topic, int32_t queue) {
    ps_error e = {0};
    int64_t min = -1, max = -1;
    ps_dispatch_catch_up(kit_store, &e);
    ps_topic *t = ps_topic_open(kit_store, topic, (int32_t)strlen(topic), 0, &e);
    if (t != NULL) ps_queue_range(kit_store, t, queue, &min, &max);
    return max;
}

/* Sends one message and has it stored; topic NULL: ends the connection that does so. */
static CHECK_UNUSED void kit_put(const char *topic, int32_t queue, const char *properties) {
    static ps_conn *n;
    kit_frame f;
    if (topic == NULL) {
        ps_conn_free(n);
        n = NULL;
        return;
    }
    if (n == NULL) n = kit_conn(1000);
    kit_send(&f, 0, 0, topic, queue, properties);
    kit_ask(n, &f, "body", 4);
    CHECK_EQ(0, kit_last()->code);
}

#endif
