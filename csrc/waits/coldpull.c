/* See coldpull.h. The threads start with the first such pull, and read in the order in which pulls
 * came. docs/locking.md */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/threads.h"
#include "waits/coldpull.h"

#define THREADS 4 /* a disk serves several reads at once */

typedef struct reading {
    struct reading *next;
    ps_parked *parked; /* NULL: it does not wait any longer; only who holds the core looks */
    ps_cold cold;
} reading;

typedef struct readings { /* first come, first served */
    reading *first, **end;
} readings;

struct ps_cold_pulls {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    readings waiting, done;
    pthread_t threads[THREADS];
    int32_t count;
    int event_fd; /* the core's */
    bool stopping;
};

static void append_reading(readings *list, reading *r) {
    r->next = NULL;
    *list->end = r;
    list->end = &r->next;
}

/* NULL: none is there. */
static reading *take_reading(readings *list) {
    reading *r = list->first;
    if (r == NULL) return NULL;
    list->first = r->next;
    if (list->first == NULL) list->end = &list->first;
    return r;
}

static void *run_reader(void *arg) {
    ps_cold_pulls *all = arg;
    pthread_mutex_lock(&all->lock);
    while (!all->stopping) {
        reading *r = take_reading(&all->waiting);
        if (r == NULL) {
            pthread_cond_wait(&all->wake, &all->lock);
            continue;
        }
        pthread_mutex_unlock(&all->lock);
        ps_cold_read(&r->cold);
        ps_cold_let_go(&r->cold);
        pthread_mutex_lock(&all->lock);
        append_reading(&all->done, r);
        ps_eventfd_tell(all->event_fd);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static ps_cold_pulls *start_readers(int event_fd) {
    ps_cold_pulls *all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->wake, NULL);
    all->waiting.end = &all->waiting.first;
    all->done.end = &all->done.first;
    all->event_fd = event_fd;
    while (all->count < THREADS &&
           ps_thread_start(&all->threads[all->count], "rmq-cold", run_reader, all) == 0)
        all->count++;
    return all;
}

bool ps_cold_wait(ps_core *c, ps_parked *p, ps_cold *cold) {
    reading *r = malloc(sizeof *r);
    if (c->co_parking.pg_cold == NULL) c->co_parking.pg_cold = start_readers(c->co_event_fd);
    if (r == NULL || c->co_parking.pg_cold == NULL || c->co_parking.pg_cold->count == 0) {
        free(r);
        return false;
    }
    if (p->pk_link != NULL) ps_parked_unlink(c, p);
    p->pk_ready = false;
    p->pk_trips++;
    p->pk_reading = &r->parked;
    *r = (reading){.parked = p, .cold = *cold};
    cold->file = NULL;
    pthread_mutex_lock(&c->co_parking.pg_cold->lock);
    append_reading(&c->co_parking.pg_cold->waiting, r);
    pthread_cond_signal(&c->co_parking.pg_cold->wake);
    pthread_mutex_unlock(&c->co_parking.pg_cold->lock);
    return true;
}

void ps_cold_look(ps_core *c) {
    if (c->co_parking.pg_cold == NULL) return;
    pthread_mutex_lock(&c->co_parking.pg_cold->lock);
    reading *r = c->co_parking.pg_cold->done.first;
    c->co_parking.pg_cold->done = (readings){.end = &c->co_parking.pg_cold->done.first};
    pthread_mutex_unlock(&c->co_parking.pg_cold->lock);
    while (r != NULL) {
        reading *next = r->next;
        if (r->parked != NULL) {
            r->parked->pk_reading = NULL;
            ps_parked_ready(c, r->parked);
        }
        free(r);
        r = next;
    }
}

static void free_readings(readings *list) {
    for (reading *r = take_reading(list); r != NULL; r = take_reading(list)) {
        ps_cold_let_go(&r->cold);
        free(r);
    }
}

void ps_cold_free(ps_core *c) {
    ps_cold_pulls *all = c->co_parking.pg_cold;
    if (all == NULL) return;
    pthread_mutex_lock(&all->lock);
    all->stopping = true;
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
    for (int32_t i = 0; i < all->count; i++) pthread_join(all->threads[i], NULL);
    free_readings(&all->waiting);
    free_readings(&all->done);
    pthread_cond_destroy(&all->wake);
    pthread_mutex_destroy(&all->lock);
    free(all);
    c->co_parking.pg_cold = NULL;
}
