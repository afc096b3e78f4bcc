/* See timertally.h. */
#include "store/timertally.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/deliver.h"

/* Upstream's bounds of rocketmq_delay_message_latency, seconds. */
static const int64_t BOUNDS_S[PS_TIMER_DELAYS - 1] = {60, 600, 3600, 43200, 86400, 259200};

static int32_t *place_of(const ps_tallies *t, const ps_topic *topic) {
    uint32_t mask = 2 * (uint32_t)t->ta_room - 1, at = topic->tp_chain.hash & mask;
    while (t->ta_places[at] != 0 && t->ta_rows[t->ta_places[at] - 1].topic != topic->tp_name)
        at = (at + 1) & mask;
    return &t->ta_places[at];
}

static bool grow_tallies(ps_tallies *t) {
    int32_t room = t->ta_room == 0 ? 16 : 2 * t->ta_room;
    ps_timer_tally *rows = realloc(t->ta_rows, (size_t)room * sizeof *rows);
    if (rows != NULL) t->ta_rows = rows;
    int32_t *places = calloc(2 * (size_t)room, sizeof *places);
    if (rows == NULL || places == NULL) {
        free(places);
        return false;
    }
    uint32_t mask = 2 * (uint32_t)room - 1;
    for (int32_t i = 0; i < t->ta_count; i++) {
        uint32_t at = rows[i].topic_hash & mask;
        while (places[at] != 0) at = (at + 1) & mask;
        places[at] = i + 1;
    }
    free(t->ta_places);
    t->ta_places = places;
    t->ta_room = room;
    return true;
}

ps_timer_tally *ps_tally_of(ps_tallies *t, const ps_topic *topic) {
    if (t->ta_count == t->ta_room && !grow_tallies(t)) return NULL;
    int32_t *place = place_of(t, topic);
    if (*place == 0) {
        t->ta_rows[t->ta_count] =
            (ps_timer_tally){.topic = topic->tp_name, .topic_hash = topic->tp_chain.hash};
        *place = ++t->ta_count;
    }
    return &t->ta_rows[*place - 1];
}

void ps_tally_asked(ps_timer_tally *row, int64_t delay_ms) {
    int32_t i = 0;
    while (i < PS_TIMER_DELAYS - 1 && delay_ms > BOUNDS_S[i] * 1000) i++;
    row->read++;
    row->delays[i]++;
    row->delay_ms += delay_ms;
}

/* A row of the notes: i64 waiting, i32 length of the name, the name. */
#define ROW_HEAD 12

uint8_t *ps_tallies_save(const ps_tallies *t, int64_t live, int64_t *len) {
    int64_t room = 1;
    for (int32_t i = 0; i < t->ta_count; i++)
        room += ROW_HEAD + (int64_t)strlen(t->ta_rows[i].topic);
    uint8_t *made = malloc((size_t)room), *to = made;
    for (int32_t i = 0; made != NULL && live > 0 && i < t->ta_count; i++) {
        const ps_timer_tally *row = &t->ta_rows[i];
        size_t name = strlen(row->topic);
        if (row->waiting == 0) continue;
        be64_put(to, (uint64_t)row->waiting);
        be32_put(to + 8, (uint32_t)name);
        memcpy(to + ROW_HEAD, row->topic, name);
        to += ROW_HEAD + name;
    }
    *len = made != NULL ? to - made : 0;
    return made;
}

bool ps_tallies_load(ps_tallies *t, ps_store *s, const uint8_t *notes, int64_t len) {
    for (int64_t at = 0; at < len && !s->st_readonly;) {
        int64_t name = len - at < ROW_HEAD ? -1 : (int64_t)be32_get(notes + at + 8);
        if (name < 0 || name > len - at - ROW_HEAD) return false;
        ps_topic *topic = ps_deliver_topic(s, (ps_text){notes + at + ROW_HEAD, name});
        ps_timer_tally *row = topic != NULL ? ps_tally_of(t, topic) : NULL;
        if (row == NULL) return false;
        row->waiting = (int64_t)be64_get(notes + at);
        at += ROW_HEAD + name;
    }
    return true;
}

void ps_tallies_free(ps_tallies *t) {
    free(t->ta_rows);
    free(t->ta_places);
    *t = (ps_tallies){0};
}
