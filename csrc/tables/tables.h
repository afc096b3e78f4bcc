/* Topics, pairs of group and topic, and filters, as the broker publishes them. */
#ifndef PS_TABLES_H
#define PS_TABLES_H

#include "core/core.h"

/* topictable.c, groups.c, pullfilter.c */
ps_topic_entry *ps_core_find_topic(ps_core *c, const uint8_t *name, int32_t len);
/* Whether the broker has to translate the numbers of a request: its topic is a static one, and no
 * broker has translated it before. docs/internals/static-topics.md */
bool ps_topic_translates(const ps_topic_entry *t, const ps_command *request);
ps_pair *ps_core_find_pair(ps_core *c, const uint8_t *group, int32_t group_len,
                           const uint8_t *topic, int32_t topic_len);
/* Made when there is none. NULL: no memory, or as many as there may be offsets. */
ps_pair *ps_core_pair_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                         int32_t topic_len);
/* All pairs, those of light queues last: the first for NULL. To forget pairs while walking, ask for
 * the next one before. */
ps_pair *ps_pairs_each(const ps_core *c, const ps_pair *p);
/* The offset that is committed there; -1: none. */
int64_t ps_pair_offset(ps_pair *p, int32_t queue_id);
void ps_pair_commit(ps_pair *p, int32_t queue_id, int64_t offset);
void ps_pair_pulled(ps_pair *p, int32_t queue_id, int64_t next);
ps_mark *ps_pair_mark(ps_pair *p, int32_t queue_id, bool make); /* NULL: none, or no memory */
/* The same for a client. NULL: no memory, or the broker has too many; then that is counted. */
ps_mark *ps_pair_mark_asked(ps_pair *p, int32_t queue_id);
/* PS_E_NO_MEMORY, with the reason: there may be no more. */
int ps_offsets_refused(const ps_core *c, ps_error *e);
/* Whether so many more may be made for clients; if not, that is counted. */
bool ps_pair_may_have(ps_pair *p, int32_t count);
/* Makes those marks of queues 0 to count - 1 that are missing; one after the other, in any order,
 * they would move each other count times. count: at most 65,535 queues. False: no memory. */
bool ps_pair_marks(ps_pair *p, int32_t count);
/* A check point needs the pair, and the mark of its queue, until it lets go of them. */
int ps_pair_hold(ps_core *c, const char *group, int32_t group_len, const char *topic,
                 int32_t topic_len, int32_t queue_id, ps_pair **out, ps_error *e);
void ps_pair_let_go(ps_core *c, ps_pair *p);
ps_filter *ps_filter_of_tags(const char *tags, int32_t tags_len, int32_t count);
/* NULL: no memory, or *e says what is wrong with the expression. */
ps_filter *ps_filter_of_sql(const char *text, int32_t len, ps_error *e);
/* A pull's own: A || B, or SQL92. NULL: no memory, or a malformed expression. */
ps_filter *ps_filter_of_text(const uint8_t *text, int32_t len, bool sql, ps_error *e);
/* Whether it was made of this text. */
bool ps_filter_is(const ps_filter *f, const uint8_t *text, int32_t len, bool sql);
ps_filter *ps_filter_ref(ps_filter *f);
void ps_filter_unref(ps_filter *f);

#endif
