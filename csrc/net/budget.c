/* What connections of several ports may hold together. */
#include <stdlib.h>

#include "net/reactor.h"

ps_net_budget *ps_net_budget_new(int64_t max) {
    ps_net_budget *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->max = max;
    return made;
}

void ps_net_budget_free(ps_net_budget *budget) {
    free(budget);
}

void ps_net_budget_limit(ps_net_budget *budget, int64_t max) {
    budget->max = max;
}

int64_t ps_net_budget_held(ps_net_budget *budget) {
    return budget->held;
}

void ps_net_hold(ps_net *net, int64_t more) {
    net->nt_unfinished += more;
    net->nt_conf.budget->held += more;
}

void ps_link_hold(ps_link *link, int64_t more) {
    ps_net *net = link->lk_net;
    pthread_mutex_lock(&net->nt_lock);
    if (!link->lk_ended) {
        link->lk_asked += more;
        ps_net_hold(net, more);
    }
    pthread_mutex_unlock(&net->nt_lock);
}

void ps_link_let_go(ps_link *link) {
    pthread_mutex_lock(&link->lk_net->nt_lock);
    ps_net_hold(link->lk_net, -link->lk_asked);
    link->lk_asked = 0;
    link->lk_ended = true;
    pthread_mutex_unlock(&link->lk_net->nt_lock);
}
