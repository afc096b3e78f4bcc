/* The counters of messages as Prometheus reads them: copied with the lock of the core held, some
 * hundred bytes a topic, and written as text without it. Ten thousand topics are a hundred thousand
 * samples, which Python would write for half a second. */
#include <stdlib.h>
#include <string.h>

#include "format/names.h"
#include "format/utf8.h"
#include "remoting/core.h"
#include "remoting/guard.h"

#define NAME_ROOM 64 /* of a family with its suffix, a bucket's bound and a number */

/* What was copied of one series; of puts, group_len is 0. */
typedef struct series {
    int32_t topic_at, topic_len, group_at, group_len;
    int32_t kind; /* of messages, or the way out */
    int32_t labels_at, labels_len;
    ps_inflow in; /* of what went out: messages and bytes alone */
} series;

typedef struct family {
    ps_buffer rows; /* of series */
    int64_t count, left_out;
    ps_inflow rest; /* of those that are left out */
} family;

struct ps_flows {
    family in, out, points;
    ps_buffer names, labels, text;
    int64_t most;
    bool failed; /* no memory */
};

/* ---- copying ---- */

static int32_t keep_name(ps_flows *t, const char *name, int32_t len) {
    uint8_t *to = ps_buffer_room(&t->names, len);
    if (to == NULL) {
        t->failed = true;
        return 0;
    }
    memcpy(to, name, (size_t)len);
    t->names.len += len;
    return (int32_t)(t->names.len - len);
}

static void add_inflow(ps_inflow *to, const ps_inflow *more) {
    to->messages += more->messages;
    to->bytes += more->bytes;
    to->size_sum += more->size_sum;
    for (int i = 0; i < PS_SIZES; i++) to->sizes[i] += more->sizes[i];
}

/* Room for one more series; NULL: it is counted with the rest, or there is no memory. */
static series *add_series(ps_flows *t, family *f, const ps_inflow *in) {
    if (f->count >= t->most) {
        f->left_out++;
        add_inflow(&f->rest, in);
        return NULL;
    }
    series *s = (series *)ps_buffer_room(&f->rows, sizeof *s);
    if (s == NULL) {
        t->failed = true;
        return NULL;
    }
    f->rows.len += sizeof *s;
    f->count++;
    *s = (series){.in = *in};
    return s;
}

/* What came from delay levels, each message by itself. */
static void add_delivered(ps_topic *topic, ps_inflow *in) {
    int64_t bytes = atomic_load_explicit(&topic->tp_level_bytes, memory_order_relaxed);
    in->bytes += bytes;
    in->size_sum += bytes;
    for (int i = 0; i < PS_SIZES; i++) {
        int64_t n = atomic_load_explicit(&topic->tp_level_sizes[i], memory_order_relaxed);
        in->sizes[i] += n;
        in->messages += n;
    }
}

static void copy_topic(ps_flows *t, const ps_topic_entry *e) {
    int32_t at = -1;
    if (PS_BEGINS(e->te_name, e->te_len, PS_RETRY_PREFIX) ||
        PS_BEGINS(e->te_name, e->te_len, PS_DLQ_PREFIX))
        return;
    for (int kind = 0; kind < PS_KINDS; kind++) {
        ps_inflow in = {0};
        if (e->te_in[kind] != NULL) in = *e->te_in[kind];
        if (kind == PS_KIND_DELAY) add_delivered(e->te_topic, &in);
        if (in.messages == 0) continue;
        series *s = add_series(t, &t->in, &in);
        if (s == NULL) continue;
        if (at < 0) at = keep_name(t, e->te_name, e->te_len);
        s->topic_at = at;
        s->topic_len = e->te_len;
        s->kind = kind;
    }
}

static void name_pair(series *s, int32_t at, const ps_pair *p, int kind) {
    s->group_at = at;
    s->group_len = p->pr_group_len;
    s->topic_at = at + p->pr_group_len;
    s->topic_len = p->pr_topic_len;
    s->kind = kind;
}

static void copy_pair(ps_flows *t, const ps_pair *p) {
    const char *topic = p->pr_names + p->pr_group_len;
    int32_t at = -1;
    for (int way = 0; way < PS_WAYS; way++) {
        ps_inflow out = {.messages = p->pr_out[way].messages, .bytes = p->pr_out[way].bytes};
        if (out.messages == 0 ||
            (way == PS_WAY_PULLED && (PS_BEGINS(topic, p->pr_topic_len, PS_RETRY_PREFIX) ||
                                      PS_BEGINS(topic, p->pr_topic_len, PS_DLQ_PREFIX))))
            continue;
        series *s = add_series(t, &t->out, &out);
        if (s == NULL) continue;
        if (at < 0) at = keep_name(t, p->pr_names, p->pr_group_len + p->pr_topic_len);
        name_pair(s, at, p, way);
    }
    const ps_inflow points = {.messages = p->pr_points};
    series *s = p->pr_points > 0 ? add_series(t, &t->points, &points) : NULL;
    if (s == NULL) return;
    if (at < 0) at = keep_name(t, p->pr_names, p->pr_group_len + p->pr_topic_len);
    name_pair(s, at, p, PS_WAYS);
}

ps_flows *ps_core_flows(ps_core *c, int64_t most) {
    PS_CORE_HELD(c);
    ps_flows *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->most = most;
    int64_t topics = c->co_topics.count < most ? c->co_topics.count : most;
    ps_buffer_room(&t->in.rows, topics * (int64_t)sizeof(series)); /* so that it grows once */
    for (ps_topic_entry *e = NULL; (e = ps_chains_each(&c->co_topics, e)) != NULL;)
        copy_topic(t, e);
    for (const ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) copy_pair(t, p);
    if (!t->failed) return t;
    ps_flows_free(t);
    return NULL;
}

void ps_flows_free(ps_flows *t) {
    if (t == NULL) return;
    ps_buffer_free(&t->in.rows);
    ps_buffer_free(&t->out.rows);
    ps_buffer_free(&t->points.rows);
    ps_buffer_free(&t->names);
    ps_buffer_free(&t->labels);
    ps_buffer_free(&t->text);
    free(t);
}

int64_t ps_flows_left_out(const ps_flows *t) {
    return t->in.left_out + t->out.left_out + t->points.left_out;
}

/* ---- labels ---- */

static void put_text(ps_buffer *b, const char *text) {
    size_t len = strlen(text);
    memcpy(b->data + b->len, text, len);
    b->len += (int64_t)len;
}

/* The value of a label: a backslash, a quote and a line feed are escaped, and what is no UTF-8 is
 * mended. Room for three times its bytes is there. */
static void put_value(ps_buffer *b, const uint8_t *text, int32_t len) {
    uint8_t *to = b->data + b->len;
    bool plain = true;
    for (int32_t i = 0; i < len; i++)
        plain = plain && text[i] != '\\' && text[i] != '"' && text[i] != '\n' && text[i] < 0x80;
    if (plain) {
        memcpy(to, text, (size_t)len);
        b->len += len;
        return;
    }
    for (const uint8_t *p = text, *end = text + len; p < end;) {
        bool good = true;
        int64_t step = *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
        if (*p == '\\' || *p == '"' || *p == '\n') *to++ = '\\';
        if (*p == '\n')
            *to++ = 'n';
        else if (!good)
            to = ps_utf8_put_replacement(to);
        else
            for (int64_t i = 0; i < step; i++) *to++ = p[i];
        p += step;
    }
    b->len = to - b->data;
}

static bool is_listed(const char *names, const uint8_t *name, int32_t len) {
    for (const char *end; (end = strchr(names, '\n')) != NULL; names = end + 1)
        if (end - names == len && memcmp(names, name, (size_t)len) == 0) return true;
    return false;
}

static bool is_system_group(const uint8_t *group, int32_t len) {
    static const char prefix[] = "cid_rmq_sys_";
    int32_t i = 0;
    for (; i < len && i < (int32_t)sizeof prefix - 1; i++)
        if ((group[i] >= 'A' && group[i] <= 'Z' ? group[i] | 32 : group[i]) != prefix[i])
            return false;
    return i == (int32_t)sizeof prefix - 1;
}

/* Whatever may be long was given room before. */
static bool write_labels(ps_flows *t, series *s, bool out, const char *common,
                         const char *systems) {
    static const char *const kinds[PS_KINDS] = {"normal", "fifo", "delay", "transaction"};
    static const char *const ways[PS_WAYS + 1] = {
        "", "\",is_retry=\"false", "\",is_retry=\"true",
        "\",put_status=\"PUT_OK\",revive_message_type=\"CK"};
    const uint8_t *topic = t->names.data + s->topic_at, *group = t->names.data + s->group_at;
    int64_t room = (int64_t)strlen(common) + 192 + 3 * (int64_t)(s->topic_len + s->group_len);
    ps_buffer *b = &t->labels;
    if (ps_buffer_room(b, room) == NULL) return false;
    bool system = is_listed(systems, topic, s->topic_len) ||
                  PS_BEGINS(topic, s->topic_len, PS_SYSTEM_PREFIX) ||
                  (out && is_system_group(group, s->group_len));
    s->labels_at = (int32_t)b->len;
    put_text(b, common);
    if (out) {
        put_text(b, ",consumer_group=\"");
        put_value(b, group, s->group_len);
        put_text(b, ways[s->kind]);
    } else {
        put_text(b, ",message_type=\"");
        put_text(b, kinds[s->kind]);
    }
    if (out && s->kind == PS_WAYS)
        put_text(b, "\",topic=\"");
    else
        put_text(b, system ? "\",is_system=\"true\",topic=\"" : "\",is_system=\"false\",topic=\"");
    put_value(b, topic, s->topic_len);
    put_text(b, "\"");
    s->labels_len = (int32_t)(b->len - s->labels_at);
    return true;
}

/* ---- text ---- */

static void put_number(ps_buffer *b, int64_t value) {
    char number[24];
    ps_slice digits = ps_slice_of_number(value, number);
    memcpy(b->data + b->len, digits.data, (size_t)digits.len);
    b->len += digits.len;
}

/* bound: of a bucket; NULL: it is none. */
static void write_sample(ps_buffer *b, const char *name, const uint8_t *labels, int32_t len,
                         const char *bound, int64_t value) {
    put_text(b, name);
    put_text(b, "{");
    memcpy(b->data + b->len, labels, (size_t)len);
    b->len += len;
    if (bound != NULL) {
        put_text(b, ",le=\"");
        put_text(b, bound);
        put_text(b, "\"");
    }
    put_text(b, "} ");
    put_number(b, value);
    put_text(b, "\n");
}

static void write_sizes(ps_buffer *b, const uint8_t *labels, int32_t len, const ps_inflow *in) {
    static const char *const bounds[PS_SIZES] = {"1024.0",    "4096.0",    "524288.0", "1048576.0",
                                                 "2097152.0", "4194304.0", "+Inf"};
    int64_t count = 0;
    for (int i = 0; i < PS_SIZES; i++)
        write_sample(b, "rocketmq_message_size_bucket", labels, len, bounds[i],
                     count += in->sizes[i]);
    write_sample(b, "rocketmq_message_size_count", labels, len, NULL, count);
    write_sample(b, "rocketmq_message_size_sum", labels, len, NULL, in->size_sum);
}

enum { MESSAGES, BYTES, SIZES };

static bool write_series(ps_buffer *b, const char *name, int what, const uint8_t *labels,
                         int32_t len, const ps_inflow *in) {
    int64_t samples = what == SIZES ? PS_SIZES + 2 : 1;
    if (ps_buffer_room(b, samples * (NAME_ROOM + 32 + len)) == NULL) return false;
    if (what == SIZES)
        write_sizes(b, labels, len, in);
    else
        write_sample(b, name, labels, len, NULL, what == BYTES ? in->bytes : in->messages);
    return true;
}

static bool write_family(ps_flows *t, const family *f, const char *name, int what,
                         const char *help, const char *common) {
    ps_buffer *b = &t->text;
    if (f->count + f->left_out == 0) return true;
    if (ps_buffer_room(b, (int64_t)(strlen(help) + 2 * strlen(name)) + 64) == NULL) return false;
    put_text(b, "# HELP ");
    put_text(b, name);
    put_text(b, " ");
    put_text(b, help);
    put_text(b, "\n# TYPE ");
    put_text(b, name);
    put_text(b, what == SIZES ? " histogram\n" : " counter\n");
    const series *rows = (const series *)f->rows.data;
    for (int64_t i = 0; i < f->count; i++)
        if (!write_series(b, name, what, t->labels.data + rows[i].labels_at, rows[i].labels_len,
                          &rows[i].in))
            return false;
    if (f->left_out == 0) return true;
    ps_buffer rest = {0};
    bool good = ps_buffer_room(&rest, (int64_t)strlen(common) + 64) != NULL;
    if (good) {
        put_text(&rest, common);
        put_text(&rest, ",otel_metric_overflow=\"true\"");
        good = write_series(b, name, what, rest.data, (int32_t)rest.len, &f->rest);
    }
    ps_buffer_free(&rest);
    return good;
}

static bool write_all_labels(ps_flows *t, const char *common, const char *systems) {
    family *all[] = {&t->in, &t->out, &t->points};
    for (int f = 0; f < 3; f++) {
        series *rows = (series *)all[f]->rows.data;
        for (int64_t i = 0; i < all[f]->count; i++)
            if (!write_labels(t, &rows[i], f > 0, common, systems)) return false;
    }
    return true;
}

int64_t ps_flows_text(ps_flows *t, const char *common, const char *systems, const char **out) {
    const struct {
        const family *of;
        const char *name, *help;
        int what;
    } all[] = {
        {&t->in, "rocketmq_messages_in_total", "Messages stored by sends.", MESSAGES},
        {&t->in, "rocketmq_throughput_in_total", "Bytes stored by sends.", BYTES},
        {&t->in, "rocketmq_message_size", "Bytes of a record, a mean for each send.", SIZES},
        {&t->out, "rocketmq_messages_out_total", "Messages handed out.", MESSAGES},
        {&t->out, "rocketmq_throughput_out_total", "Bytes handed out.", BYTES},
        {&t->points, "rocketmq_pop_revive_in_message_total", "Check points opened.", MESSAGES}};
    bool good = write_all_labels(t, common, systems);
    for (size_t i = 0; good && i < sizeof all / sizeof *all; i++)
        good = write_family(t, all[i].of, all[i].name, all[i].what, all[i].help, common);
    if (!good) return PS_E_NO_MEMORY;
    *out = (const char *)t->text.data;
    return t->text.len;
}
