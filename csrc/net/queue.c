/* The queues between a network thread and Python: what is asked, and what is told. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/threads.h"
#include "net/reactor.h"
#include "tables/access.h"

#define RARE_AT_ONCE 16 /* links that come and go, with what they brought, behind all others */

/* NULL: no memory. */
static void *add_item(ps_queue_of *q, size_t size) {
    if (q->count == q->room) {
        int64_t room = q->room > 0 ? q->room * 2 : 64;
        void *items = realloc(q->items, (size_t)room * size);
        if (items == NULL) return NULL;
        q->items = items;
        q->room = room;
    }
    return (char *)q->items + (size_t)q->count++ * size;
}

/* ---- to Python ---- */

static bool comes_or_goes(const ps_net_event *e) {
    return e->kind == PS_NET_OPENED || e->kind == PS_NET_CLOSED || e->kind == PS_NET_UNOPENED;
}

/* Whether it waits with links that come and go, of which thousands may do so at once: who is there
 * already does not wait for them. What a link brings stays in order. */
static bool is_rare(const ps_net_event *e) {
    return comes_or_goes(e) || (e->link != NULL && e->link->lk_rare > 0);
}

/* data: becomes the event's. */
static bool add_event(ps_net *net, const ps_net_event *event, uint8_t *data) {
    pthread_mutex_lock(&net->nt_lock);
    bool rare = is_rare(event);
    ps_net_event *to = add_item(rare ? &net->nt_rare : &net->nt_events, sizeof *to);
    if (to != NULL) {
        *to = *event;
        to->data = data;
        to->link_id = event->link != NULL ? event->link->lk_id : 0;
        if (rare && event->link != NULL) event->link->lk_rare++;
    }
    pthread_mutex_unlock(&net->nt_lock);
    if (to == NULL) free(data);
    net->nt_quiet = false;
    return to != NULL;
}

bool ps_net_tell(ps_net *net, const ps_net_event *event) {
    uint8_t *data = NULL;
    if (event->len > 0) {
        data = malloc((size_t)event->len);
        if (data == NULL) return false;
        memcpy(data, event->data, (size_t)event->len);
    }
    return add_event(net, event, data);
}

bool ps_net_tell_call(ps_link *link, const ps_h2_event *event, ps_pop_found *found) {
    int64_t head = event->header_block != NULL ? event->header_block_len : 0;
    ps_net_event made = {.kind = PS_NET_CALL,
                         .link = link,
                         .len = head + event->len,
                         .call = {event->kind, event->stream, event->method, event->timeout_ns,
                                  head, found}};
    uint8_t *data = malloc((size_t)made.len + 1);
    if (data == NULL) return false;
    if (head > 0) memcpy(data, event->header_block, (size_t)head);
    if (event->len > 0) memcpy(data + head, event->data, (size_t)event->len);
    return add_event(link->lk_net, &made, data);
}

void ps_net_told(ps_net *net) {
    if (net->nt_quiet) return;
    net->nt_quiet = true;
    ps_eventfd_tell(net->nt_told);
}

void ps_net_free_events(ps_queue_of *q, int64_t from) {
    ps_net_event *all = q->items;
    for (int64_t i = from; i < q->count; i++) {
        free((void *)all[i].data);
        if (all[i].call.found != NULL) ps_pop_found_free(all[i].call.found);
        free(all[i].call.found);
    }
}

/* What was given is done with. */
static void drop_given(ps_net *net) {
    ps_net_event *all = net->nt_taken.items;
    for (int64_t i = 0; i < net->nt_given; i++) free((void *)all[i].data);
    net->nt_taken.count -= net->nt_given;
    if (net->nt_taken.count > 0)
        memmove(all, all + net->nt_given, (size_t)net->nt_taken.count * sizeof *all);
    net->nt_given = 0;
}

/* A link that waited until Python has taken its frames goes on. */
static void count_frame(ps_net *net, const ps_net_event *e) {
    ps_link *link = e->link;
    int64_t left = atomic_fetch_sub(&link->lk_queued, 1) - 1;
    int64_t bytes = atomic_fetch_sub(&link->lk_queued_bytes, e->len) - e->len;
    if (left == net->nt_conf.queued_max / 2 || (bytes < net->nt_conf.queued_bytes / 2 &&
                                                bytes + e->len >= net->nt_conf.queued_bytes / 2))
        ps_net_ask_for(net, &(ps_net_ask){.kind = PS_ASK_TAKEN, .link = link});
}

/* The first few of those that are rare; Python is woken for the rest. */
static void take_rare(ps_net *net) {
    ps_queue_of *q = &net->nt_rare;
    const ps_net_event *all = q->items;
    for (int i = 0; i < RARE_AT_ONCE && net->nt_rare_from < q->count;) {
        ps_net_event *to = add_item(&net->nt_taken, sizeof *to);
        if (to == NULL) break;
        *to = all[net->nt_rare_from++];
        i += comes_or_goes(to);
        if (to->link != NULL) to->link->lk_rare--;
    }
    if (net->nt_rare_from == q->count)
        q->count = net->nt_rare_from = 0;
    else
        ps_eventfd_tell(net->nt_told);
}

int64_t ps_net_events(ps_net *net, ps_net_event *out, int64_t room) {
    uint64_t count;
    drop_given(net);
    if (net->nt_taken.count == 0 && net->nt_at_once != NULL && !net->nt_stopping)
        net->nt_at_once->turn(net);
    if (net->nt_taken.count == 0) {
        if (net->nt_at_once == NULL && read(net->nt_told, &count, sizeof count) < 0) count = 0;
        pthread_mutex_lock(&net->nt_lock);
        ps_queue_of empty = net->nt_taken;
        net->nt_taken = net->nt_events;
        net->nt_events = empty;
        take_rare(net);
        pthread_mutex_unlock(&net->nt_lock);
    }
    net->nt_given = net->nt_taken.count < room ? net->nt_taken.count : room;
    if (net->nt_given > 0) memcpy(out, net->nt_taken.items, (size_t)net->nt_given * sizeof *out);
    for (int64_t i = 0; i < net->nt_given; i++)
        if (out[i].kind == PS_NET_FRAME || out[i].kind == PS_NET_CALL) count_frame(net, &out[i]);
    return net->nt_given;
}

/* ---- from Python ---- */

bool ps_net_ask_for(ps_net *net, const ps_net_ask *ask) {
    if (net->nt_at_once != NULL) {
        net->nt_at_once->ask(net, ask);
        return true;
    }
    pthread_mutex_lock(&net->nt_lock);
    bool first = net->nt_asks.count == 0;
    ps_net_ask *to = add_item(&net->nt_asks, sizeof *to);
    if (to != NULL) *to = *ask;
    pthread_mutex_unlock(&net->nt_lock);
    if (to == NULL) free(ask->data); /* without memory for a few words nothing else goes on, too */
    if (first) ps_eventfd_tell(net->nt_wake);
    return to != NULL;
}

int64_t ps_net_take_asks(ps_net *net, ps_queue_of *out) {
    pthread_mutex_lock(&net->nt_lock);
    ps_queue_of empty = *out;
    empty.count = 0;
    *out = net->nt_asks;
    net->nt_asks = empty;
    pthread_mutex_unlock(&net->nt_lock);
    return out->count;
}

void ps_net_look(ps_net *net, int32_t all) {
    ps_net_ask_for(net, &(ps_net_ask){.kind = PS_ASK_LOOK, .on = all});
}

void ps_net_deafen(ps_net *net) {
    ps_net_ask_for(net, &(ps_net_ask){.kind = PS_ASK_DEAF});
}

int64_t ps_link_write(ps_link *link, const uint8_t *data, int64_t len) {
    if (link->lk_net->nt_at_once != NULL) {
        link->lk_net->nt_at_once->write(link, data, len);
        return link->lk_unsent;
    }
    uint8_t *copy = len > 0 ? malloc((size_t)len) : NULL;
    if (copy == NULL) return link->lk_unsent;
    memcpy(copy, data, (size_t)len);
    if (atomic_fetch_add(&link->lk_unsent, len) + len > link->lk_net->nt_conf.write_high)
        link->lk_awaited = true;
    ps_net_ask_for(link->lk_net,
                   &(ps_net_ask){.kind = PS_ASK_WRITE, .link = link, .data = copy, .len = len});
    return link->lk_unsent;
}

void ps_link_reply(ps_link *link, int32_t stream, const uint8_t *data, int64_t len, int32_t last,
                   int32_t tell) {
    uint8_t *copy = malloc((size_t)len + 1);
    if (copy == NULL) return;
    if (len > 0) memcpy(copy, data, (size_t)len);
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_REPLY, .link = link, .on = last,
                                               .stream = stream, .tell = tell, .data = copy,
                                               .len = len});
}

void ps_link_finish_call(ps_link *link, int32_t stream, int32_t status, const char *text) {
    uint8_t *copy = text != NULL ? (uint8_t *)strdup(text) : NULL;
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_FINISH, .link = link,
                                               .stream = stream, .tell = status, .data = copy});
}

void ps_link_admit(ps_link *link, int32_t stream) {
    ps_net_ask_for(link->lk_net,
                   &(ps_net_ask){.kind = PS_ASK_ADMIT, .link = link, .stream = stream});
}

void ps_link_taken(ps_link *link, int32_t stream, int64_t len) {
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_SERVED, .link = link,
                                               .stream = stream, .len = len});
}

void ps_link_go_away(ps_link *link) {
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_GO_AWAY, .link = link});
}

void ps_net_renewing(ps_net *net) {
    net->nt_renews = true;
}

void ps_net_settled(ps_net *net) {
    atomic_fetch_add(&net->nt_settings, 1);
}

int ps_net_receive(ps_net *net, const ps_net_receives *receives, ps_error *error) {
    ps_net_receives *copy = malloc(sizeof *copy);
    if (copy != NULL) {
        *copy = *receives;
        if (ps_net_ask_for(net, &(ps_net_ask){.kind = PS_ASK_RECEIVES, .data = (uint8_t *)copy}))
            return 0;
    }
    ps_no_memory(error, NULL, "no memory for the limits of receives");
    return -1;
}

void ps_link_client(ps_link *link, const char *client, int32_t attempts, int32_t fifo,
                    int32_t request_ms) {
    uint8_t *copy = (uint8_t *)strdup(client);
    if (copy == NULL) return;
    ps_net_ask_for(link->lk_net,
                   &(ps_net_ask){.kind = PS_ASK_CLIENT, .link = link, .on = attempts,
                                 .fifo = fifo != 0, .tell = request_ms,
                                 .len = link->lk_net->nt_settings,
                                 .data = copy});
}

int64_t ps_net_waiting(ps_net *net) {
    return net->nt_waiting;
}

int64_t ps_link_unsent(ps_link *link) {
    return link->lk_unsent;
}

void ps_link_reading(ps_link *link, int32_t on) {
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_READING, .link = link, .on = on});
}

void ps_link_close(ps_link *link, int32_t now) {
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_CLOSE, .link = link, .on = now});
}

void ps_link_forget(ps_link *link) {
    ps_net_ask_for(link->lk_net, &(ps_net_ask){.kind = PS_ASK_FORGET, .link = link});
}

void ps_link_know(ps_link *link) {
    if (link->lk_conn != NULL)
        ps_conn_know(link->lk_conn);
    else
        link->lk_known = true;
}

ps_conn *ps_link_conn(ps_link *link) {
    return link->lk_conn;
}
