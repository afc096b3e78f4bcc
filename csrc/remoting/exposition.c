/* The counters of messages as Prometheus reads them: copied with the lock of the core held, some
 * hundred bytes a topic, and written as text without it. Ten thousand topics are a hundred thousand
 * samples, which Python would write for half a second. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "format/names.h"
#include "format/utf8.h"
#include "core/core.h"
#include "core/lock.h"
#include "remoting/exposition.h"

#define HEAD_MAX 64          /* of a family's name with its suffix, and a brace */
#define REST_MAX 48          /* of a bucket's bound, a number, and what is around them */
#define HUGE_PAGE (2 << 20)
#define SYSTEMS_MAX 64       /* names of system topics that are looked at */

/* What was copied of one series; of puts, group_len is 0. */
typedef struct series {
    int32_t topic_at, topic_len, group_at, group_len;
    int32_t kind; /* of messages, or the way out */
    int32_t labels_at, labels_len;
    ps_inflow in; /* of what went out: messages and bytes alone */
} series;

typedef struct family {
    ps_buffer rows; /* of series */
    ps_series_bound bound;
    ps_inflow rest; /* of those that are left out */
} family;

struct ps_flows {
    family in, out, points;
    ps_buffer names, labels;
    void *text;
    bool failed; /* no memory */
};

/* Where samples are written; there is room for all of them. */
typedef struct text {
    uint8_t *data;
    int64_t len;
} text;

/* ---- copying ---- */

static int32_t keep_name(ps_flows *t, const char *name, int32_t len) {
    if (!ps_buffer_add(&t->names, name, len)) {
        t->failed = true;
        return 0;
    }
    return (int32_t)(t->names.len - len);
}

int32_t ps_series_fits(ps_series_bound *b) {
    bool fits = b->shown < b->most;
    b->shown += fits;
    b->left_out += !fits;
    return fits;
}

/* Room for one more series; NULL: it is counted with the rest, or there is no memory. */
static series *add_series(ps_flows *t, family *f, const ps_inflow *in) {
    if (!ps_series_fits(&f->bound)) {
        ps_inflow_sum(&f->rest, in);
        return NULL;
    }
    series *s = (series *)ps_buffer_room(&f->rows, sizeof *s);
    if (s == NULL) {
        t->failed = true;
        return NULL;
    }
    f->rows.len += sizeof *s;
    *s = (series){.in = *in};
    return s;
}

static void copy_topic(ps_flows *t, const ps_topic_entry *e) {
    int32_t at = -1;
    if (PS_BEGINS(e->te_name, e->te_len, PS_RETRY_PREFIX) ||
        PS_BEGINS(e->te_name, e->te_len, PS_DLQ_PREFIX))
        return;
    for (int kind = 0; kind < PS_KIND_AGAIN; kind++) {
        ps_inflow in = {0};
        if (e->te_in[kind] != NULL) in = *e->te_in[kind];
        if (kind == PS_KIND_DELAY) ps_inflow_sum(&in, &e->te_topic->tp_delivered[PS_DELAY_LEVEL]);
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
    t->in.bound.most = t->out.bound.most = t->points.bound.most = most;
    int64_t topics = c->co_tables.tc_topics.count < most ? c->co_tables.tc_topics.count : most;
    ps_buffer_room(&t->in.rows, topics * (int64_t)sizeof(series)); /* so that it grows once */
    for (ps_topic_entry *e = NULL; (e = ps_chains_each(&c->co_tables.tc_topics, e)) != NULL;)
        copy_topic(t, e);
    for (const ps_pair *p = c->co_tables.tc_all_pairs; p != NULL; p = p->pr_all) copy_pair(t, p);
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
    free(t->text);
    free(t);
}

int64_t ps_flows_left_out(const ps_flows *t) {
    return t->in.bound.left_out + t->out.bound.left_out + t->points.bound.left_out;
}

/* ---- labels ---- */

static void put_text(ps_buffer *b, const char *text) {
    b->len = ps_text_put(b->data + b->len, text) - b->data;
}

/* The value of a label: a backslash, a quote and a line feed are escaped, and what is not UTF-8 is
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

typedef struct name_list {
    ps_slice names[SYSTEMS_MAX];
    int count;
} name_list;

static name_list list_names(const char *names) {
    name_list list = {.count = 0};
    for (const char *end; list.count < SYSTEMS_MAX && (end = strchr(names, '\n')) != NULL;
         names = end + 1)
        list.names[list.count++] = (ps_slice){(const uint8_t *)names, (int32_t)(end - names)};
    return list;
}

static bool is_listed(const name_list *list, const uint8_t *name, int32_t len) {
    for (int i = 0; i < list->count; i++)
        if (list->names[i].len == len && memcmp(list->names[i].data, name, (size_t)len) == 0)
            return true;
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

/* Those that are a series' own, after the common ones. Whatever may be long was given room
 * before. */
static bool write_labels(ps_flows *t, series *s, bool out, const name_list *systems) {
    static const char *const kinds[PS_KIND_AGAIN] = {"normal", "fifo", "delay", "transaction"};
    static const char *const ways[PS_WAYS + 1] = {
        "", "\",is_retry=\"false", "\",is_retry=\"true",
        "\",put_status=\"PUT_OK\",revive_message_type=\"CK"};
    const uint8_t *topic = t->names.data + s->topic_at, *group = t->names.data + s->group_at;
    int64_t room = 192 + 3 * (int64_t)(s->topic_len + s->group_len);
    ps_buffer *b = &t->labels;
    if (ps_buffer_room(b, room) == NULL) return false;
    bool system = is_listed(systems, topic, s->topic_len) ||
                  PS_BEGINS(topic, s->topic_len, PS_SYSTEM_PREFIX) ||
                  (out && is_system_group(group, s->group_len));
    s->labels_at = (int32_t)b->len;
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

/* What stands before the labels of a sample: its name, a brace and the common labels. */
typedef struct head {
    char *text;
    size_t len;
} head;

static bool make_head(head *h, const char *name, const char *suffix, const char *common) {
    size_t a = strlen(name), b = strlen(suffix), c = strlen(common);
    h->text = malloc(a + b + c + 1);
    if (h->text == NULL) return false;
    memcpy(h->text, name, a);
    memcpy(h->text + a, suffix, b);
    h->text[a + b] = '{';
    memcpy(h->text + a + b + 1, common, c);
    h->len = a + b + c + 1;
    return true;
}

/* tail: what stands between the labels and the value. */
static void write_sample(text *b, const head *h, ps_slice labels, ps_slice tail, int64_t value) {
    uint8_t *to = ps_bytes_put(b->data + b->len, h->text, (int64_t)h->len);
    to = ps_bytes_put(to, labels.data, labels.len);
    to = ps_bytes_put(to, tail.data, tail.len);
    to = ps_number_put(to, value);
    *to++ = '\n';
    b->len = to - b->data;
}

enum { MESSAGES, BYTES, SIZES };

typedef struct metric {
    const family *of;
    const char *name, *help;
    int what;
} metric;

#define TAIL(text) {(const uint8_t *)(text), (int32_t)sizeof(text) - 1}
static const ps_slice plain_tail = TAIL("} ");

static void write_sizes(text *b, const head heads[3], ps_slice labels, const ps_inflow *in) {
    static const ps_slice bounds[PS_SIZES] = {
        TAIL(",le=\"1024.0\"} "),    TAIL(",le=\"4096.0\"} "),    TAIL(",le=\"524288.0\"} "),
        TAIL(",le=\"1048576.0\"} "), TAIL(",le=\"2097152.0\"} "), TAIL(",le=\"4194304.0\"} "),
        TAIL(",le=\"+Inf\"} ")};
    int64_t count = 0;
    for (int i = 0; i < PS_SIZES; i++)
        write_sample(b, &heads[0], labels, bounds[i], count += in->sizes[i]);
    write_sample(b, &heads[1], labels, plain_tail, count);
    write_sample(b, &heads[2], labels, plain_tail, in->size_sum);
}

static void write_series(text *b, int what, const head heads[3], ps_slice labels,
                         const ps_inflow *in) {
    if (what == SIZES)
        write_sizes(b, heads, labels, in);
    else
        write_sample(b, &heads[0], labels, plain_tail, what == BYTES ? in->bytes : in->messages);
}

static void write_text(text *b, const char *words) {
    b->len = ps_text_put(b->data + b->len, words) - b->data;
}

static bool write_metric(const ps_flows *t, const metric *m, const char *common, text *b) {
    static const char *const suffixes[3] = {"_bucket", "_count", "_sum"};
    const series *rows = (const series *)m->of->rows.data;
    static const ps_slice rest = TAIL(",otel_metric_overflow=\"true\"");
    head heads[3] = {0};
    bool good = true;
    if (m->of->bound.shown + m->of->bound.left_out == 0) return true;
    for (int i = 0; i < (m->what == SIZES ? 3 : 1); i++)
        good = good && make_head(&heads[i], m->name, m->what == SIZES ? suffixes[i] : "", common);
    const char *lines[] = {"# HELP ", m->name, " ", m->help, "\n# TYPE ", m->name,
                           m->what == SIZES ? " histogram\n" : " counter\n"};
    for (size_t i = 0; good && i < sizeof lines / sizeof *lines; i++) write_text(b, lines[i]);
    for (int64_t i = 0; good && i < m->of->bound.shown; i++) {
        ps_slice labels = {t->labels.data + rows[i].labels_at, rows[i].labels_len};
        write_series(b, m->what, heads, labels, &rows[i].in);
    }
    if (good && m->of->bound.left_out > 0) write_series(b, m->what, heads, rest, &m->of->rest);
    for (int i = 0; i < 3; i++) free(heads[i].text);
    return good;
}

static bool write_all_labels(ps_flows *t, const char *systems) {
    const name_list list = list_names(systems);
    family *all[] = {&t->in, &t->out, &t->points};
    for (int f = 0; f < 3; f++) {
        series *rows = (series *)all[f]->rows.data;
        for (int64_t i = 0; i < all[f]->bound.shown; i++)
            if (!write_labels(t, &rows[i], f > 0, &list)) return false;
    }
    return true;
}

static int64_t most_bytes(const metric *m, int64_t common) {
    const series *rows = (const series *)m->of->rows.data;
    int64_t labels = 0, count = m->of->bound.shown + 1;
    for (int64_t i = 0; i < m->of->bound.shown; i++) labels += rows[i].labels_len;
    int64_t samples = m->what == SIZES ? PS_SIZES + 2 : 1;
    return 1024 + samples * (labels + count * (HEAD_MAX + REST_MAX + common));
}

/* Memory for the text. Tens of megabytes are had in huge pages: the faults of small ones would take
 * as long as the writing. */
static bool make_room(ps_flows *t, int64_t len, text *out) {
    if (posix_memalign(&t->text, len < HUGE_PAGE ? 64 : HUGE_PAGE, (size_t)len) != 0) {
        t->text = NULL;
        return false;
    }
    if (len >= HUGE_PAGE) madvise(t->text, (size_t)len, MADV_HUGEPAGE);
    *out = (text){t->text, 0};
    return true;
}

int64_t ps_flows_text(ps_flows *t, const char *common, const char *systems, const char **out) {
    const metric all[] = {
        {&t->in, "rocketmq_messages_in_total", "Messages stored by sends.", MESSAGES},
        {&t->in, "rocketmq_throughput_in_total", "Bytes stored by sends.", BYTES},
        {&t->in, "rocketmq_message_size", "Bytes of a record, a mean for each send.", SIZES},
        {&t->out, "rocketmq_messages_out_total", "Messages handed out.", MESSAGES},
        {&t->out, "rocketmq_throughput_out_total", "Bytes handed out.", BYTES},
        {&t->points, "rocketmq_pop_revive_in_message_total", "Check points opened.", MESSAGES}};
    text written = {0};
    int64_t most = 0;
    bool good = write_all_labels(t, systems);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        most += most_bytes(&all[i], (int64_t)strlen(common));
    good = good && make_room(t, most, &written);
    for (size_t i = 0; good && i < sizeof all / sizeof *all; i++)
        good = write_metric(t, &all[i], common, &written);
    if (!good) return PS_E_NO_MEMORY;
    *out = (const char *)written.data;
    return written.len;
}
