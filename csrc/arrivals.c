/* Tells one listener which of the queues it watches got new units, so that a broker need not poll
 * for the pulls it holds. Upstream: MessageArrivingListener, PullRequestHoldService.
 *
 * A listener sets cq_watched, then looks at cq_max once more: what comes later is announced. The
 * dispatcher pushes the queue on a list, once however many units come, and after its round writes
 * to the listener's eventfd. Taking the list is one exchange, so no lock is needed: only the
 * dispatcher, under its lock, adds. */
#define _GNU_SOURCE
#include <unistd.h>

#include "store.h"

void ps_arrivals_to(ps_store *s, int fd) {
    atomic_store(&s->st_arrival_fd, fd);
}

void ps_arrivals_add(ps_store *s, ps_queue *q) {
    if (atomic_exchange(&q->cq_arrived, true)) return;
    ps_queue *head = atomic_load(&s->st_arrivals);
    do {
        q->cq_arrived_next = head;
    } while (!atomic_compare_exchange_weak(&s->st_arrivals, &head, q));
}

void ps_arrivals_tell(ps_store *s) {
    int fd = atomic_load(&s->st_arrival_fd);
    uint64_t one = 1;
    if (fd < 0 || atomic_load(&s->st_arrivals) == NULL) return;
    /* It fails only when the counter is full: then the listener has been told already. */
    if (write(fd, &one, sizeof one) < 0) return;
}

ps_queue *ps_arrivals_take(ps_store *s) {
    if (atomic_load_explicit(&s->st_arrivals, memory_order_relaxed) == NULL) return NULL;
    return atomic_exchange(&s->st_arrivals, NULL);
}

void ps_arrivals_done(ps_queue *q) {
    atomic_store(&q->cq_watched, false);
    atomic_store(&q->cq_arrived, false);
}
