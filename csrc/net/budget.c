/* What connections of several ports, and Python, may hold together. */
#include <stdlib.h>

#include "net/reactor.h"

ps_net_budget *ps_net_budget_new(int64_t max) {
    ps_net_budget *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->max = max;
    made->sharers = 1;
    return made;
}

void ps_net_budget_free(ps_net_budget *budget) {
    free(budget);
}

void ps_net_budget_limit(ps_net_budget *budget, int64_t max) {
    budget->max = max;
}

int64_t ps_net_budget_hold(ps_net_budget *budget, int64_t more) {
    return atomic_fetch_add(&budget->held, more) + more;
}
