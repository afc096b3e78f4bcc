/* A store of many small files, closed cleanly: messages with a tag and three keys each, in turns
 * over three queues. */
#ifndef PS_SMALL_STORE_H
#define PS_SMALL_STORE_H

#include "check.h"
#include "store/store.h"

#define QUEUE_FILE 2000
#define QUEUES 3
#define SLOTS 64

/* Bodies have 0 to `body_most` - 1 bytes, of 400 at most. */
static void small_store_make(const char *root, int64_t segment, int32_t entries, const char *topic,
                             int messages, int body_most) {
    static const char props[] = "TAGS\1TagA\2KEYS\1k1 k2\2UNIQ_KEY\1abc\2";
    ps_conf c;
    ps_conf_init(&c);
    c.root = root;
    c.commitlog_file_size = segment;
    c.consumequeue_file_size = QUEUE_FILE;
    c.index_slots = SLOTS;
    c.index_entries = entries;
    c.clean_interval_ms = 0;
    ps_error e = {0};
    ps_report report = {0};
    ps_store *s = ps_store_open(&c, NULL, &report, NULL, &e);
    CHECK(s != NULL);
    ps_topic *t = ps_topic_open(s, topic, (int32_t)strlen(topic), 1, &e);
    char body[400] = {'b'};
    ps_put_result out;
    for (int i = 0; i < messages; i++)
        CHECK_EQ(0, ps_put(t, i % QUEUES, 0, body, i % body_most, props, sizeof props - 1, 1,
                           &out));
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
}

#endif
