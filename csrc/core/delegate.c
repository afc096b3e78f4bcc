/* Which requests are the broker's although the tables know all of them: hooks want to see them, or
 * a setting refuses them. docs/internals/send-path.md. */
#include "base/clock.h"
#include "core/core.h"
#include "core/lock.h"

void ps_core_delegate(ps_core *c, int32_t what) {
    PS_CORE_HELD(c);
    c->co_delegated.dg_what |= what;
}

void ps_core_admit(ps_core *c, int64_t sends_from_ms, int32_t lite_pulls) {
    PS_CORE_HELD(c);
    c->co_delegated.dg_sends_from_ms = sends_from_ms;
    c->co_delegated.dg_no_lite = !lite_pulls;
}

bool ps_core_delegates(ps_core *c, int32_t what) {
    PS_CORE_HELD(c);
    return (c->co_delegated.dg_what & what) == what;
}

void ps_conn_delegate(ps_conn *n, int32_t what) {
    PS_CORE_HELD(n->cn_core);
    n->cn_delegated |= what;
}

bool ps_conn_delegates(const ps_conn *n, int32_t code) {
    const ps_core_delegated *d = &n->cn_core->co_delegated;
    int32_t what = d->dg_what | n->cn_delegated;
    switch (code) {
    case PS_REQUEST_LITE_PULL_MESSAGE:
        return d->dg_no_lite || (what & PS_DELEGATE_PULLS);
    case PS_REQUEST_PULL_MESSAGE:
        return what & PS_DELEGATE_PULLS;
    case PS_REQUEST_SEND_MESSAGE:
    case PS_REQUEST_SEND_MESSAGE_V2:
    case PS_REQUEST_SEND_BATCH_MESSAGE:
        return (what & PS_DELEGATE_SENDS) ||
               (d->dg_sends_from_ms > 0 && ps_now_ms() < d->dg_sends_from_ms);
    case PS_REQUEST_POP_MESSAGE:
    case PS_REQUEST_POP_LITE_MESSAGE:
    case PS_REQUEST_ACK_MESSAGE:
        return what & PS_DELEGATE_POPS;
    default:
        return what == PS_DELEGATE_ALL;
    }
}
