/* The topics that the broker publishes to the core. Withdrawing one frees its row: parked pulls
 * point at the topic of the store, which stays. Upstream: TopicConfigManager. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "core/lock.h"
#include "tables/tables.h"

#define QUEUES_MAX (PS_QUEUE_ID_MAX + 1)

ps_topic_entry *ps_core_find_topic(ps_core *c, const uint8_t *name, int32_t len) {
    if (len <= 0) return NULL;
    ps_topic_entry *t = ps_chains_first(&c->co_tables.tc_topics, ps_hash_of(name, len));
    while (t != NULL && (t->te_len != len || memcmp(t->te_name, name, (size_t)len) != 0))
        t = ps_chains_next(t);
    return t;
}

bool ps_topic_translates(const ps_topic_entry *t, const ps_command *request) {
    return (t->te_flags & PS_TOPIC_MAPPED) &&
           !ps_slice_is(ps_command_field(request, "lo"), "false");
}

static ps_topic_entry *make_topic(ps_core *c, const char *name, int32_t len, ps_error *e) {
    ps_topic *topic = ps_topic_open(c->co_store, name, len, 1, e);
    if (topic == NULL) return NULL;
    ps_topic_entry *t =
        ps_chains_reserve(&c->co_tables.tc_topics) ? calloc(1, sizeof *t + (size_t)len + 1) : NULL;
    if (t == NULL) {
        ps_no_memory(e, NULL, "no memory for the table of topics");
        return NULL;
    }
    t->te_topic = topic;
    t->te_len = len;
    memcpy(t->te_name, name, (size_t)len);
    ps_chains_add(&c->co_tables.tc_topics, t, ps_hash_of(name, len));
    return t;
}

int ps_core_topic(ps_core *c, const char *name, int32_t len, int32_t read_queues,
                  int32_t write_queues, int32_t perm, int32_t flags, ps_error *e) {
    PS_CORE_HELD(c);
    if (len <= 0 || len > PS_TOPIC_MAX)
        return ps_fail(e, PS_E_TOPIC_ILLEGAL, 0, -1, NULL,
                       "the topic has %d bytes: from 1 to %d are allowed", len, PS_TOPIC_MAX);
    if (read_queues < 0 || read_queues > QUEUES_MAX || write_queues < 0 ||
        write_queues > QUEUES_MAX)
        return ps_fail(
            e, PS_E_ARGUMENT, 0, -1, NULL,
            "topic '%.*s' has %d queues to read and %d to write: from 0 to %d are allowed", len,
            name, read_queues, write_queues, QUEUES_MAX);
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)name, len);
    if (t == NULL && (t = make_topic(c, name, len, e)) == NULL)
        return e != NULL && e->code < 0 ? e->code : PS_E_TOPIC_ILLEGAL;
    c->co_tables.tc_rules++;
    t->te_read_queues = read_queues;
    t->te_write_queues = write_queues;
    t->te_perm = perm;
    t->te_flags = flags;
    t->te_kinds = 0;
    return 0;
}

int64_t ps_core_plain_sends(ps_core *c, const char *topic, int32_t topic_len) {
    PS_CORE_HELD(c);
    const ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)topic, topic_len);
    return t != NULL ? __atomic_load_n(&t->te_plain, __ATOMIC_RELAXED) : 0;
}

void ps_core_takes(ps_core *c, const char *topic, int32_t topic_len, int32_t kinds) {
    PS_CORE_HELD(c);
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)topic, topic_len);
    if (t != NULL) t->te_kinds = kinds;
}

int32_t ps_core_kinds(ps_core *c, const char *topic, int32_t topic_len, int32_t *queues) {
    PS_CORE_HELD(c);
    const ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)topic, topic_len);
    *queues = t != NULL && t->te_perm & PS_PERM_WRITE ? t->te_write_queues : 0;
    return t != NULL ? t->te_kinds : -1;
}

void ps_core_forget_topic(ps_core *c, const char *name, int32_t len) {
    PS_CORE_HELD(c);
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)name, len);
    if (t == NULL) return;
    ps_topic_count_end(c, t);
    ps_chains_remove(&c->co_tables.tc_topics, t);
    c->co_tables.tc_rules++;
    free(t->te_tx);
    ps_core_bury(c, t);
    c->co_tables.tc_withdrawn++;
}
