/* Tells one listener which of the queues it watches got new units, so that a broker need not poll
 * for the pulls it holds. Upstream: MessageArrivingListener, PullRequestHoldService.
 *
 * A listener sets cq_watched, then looks at cq_max once more: what comes later is announced. The
 * dispatcher does it the other way round: it moves cq_max, then looks at cq_watched. Plain stores
 * and loads would let both miss the other's, since a processor may load before its own store is
 * seen. So each access to cq_watched reads and writes at once: the later of the two sees what the
 * earlier one did before.
 *
 * The dispatcher pushes the queue on a list, once however many units come, and after its round
 * writes to the listener's eventfd. Taking the list is one exchange, so no lock is needed: only the
 * dispatcher, under its lock, adds. */
#define _GNU_SOURCE

#include "base/threads.h"
#include "queues/arrivals.h"

void ps_arrivals_listen_locked(ps_arrivals *a, int fd) {
    a->ar_listened = fd >= 0;
    atomic_store(&a->ar_fd, fd);
}

void ps_arrivals_to(ps_arrivals *a, int fd) {
    atomic_store(&a->ar_fd, fd);
}

bool ps_arrivals_watch(ps_queue *q, int64_t offset) {
    atomic_exchange(&q->cq_watched, true);
    return atomic_load(&q->cq_max) > offset;
}

bool ps_arrivals_watched(ps_queue *q) {
    bool nobody = false;
    return !atomic_compare_exchange_strong(&q->cq_watched, &nobody, false);
}

void ps_arrivals_add(ps_arrivals *a, ps_queue *q) {
    if (atomic_exchange(&q->cq_arrived, true)) return;
    ps_queue *head = atomic_load(&a->ar_list);
    do {
        q->cq_arrived_next = head;
    } while (!atomic_compare_exchange_weak(&a->ar_list, &head, q));
}

void ps_arrivals_tell(ps_arrivals *a) {
    int fd = atomic_load(&a->ar_fd);
    if (fd >= 0 && atomic_load(&a->ar_list) != NULL) ps_eventfd_tell(fd);
}

ps_queue *ps_arrivals_take(ps_arrivals *a) {
    if (atomic_load_explicit(&a->ar_list, memory_order_relaxed) == NULL) return NULL;
    return atomic_exchange(&a->ar_list, NULL);
}

void ps_arrivals_done(ps_queue *q) {
    atomic_exchange(&q->cq_watched, false);
    atomic_store(&q->cq_arrived, false);
}
