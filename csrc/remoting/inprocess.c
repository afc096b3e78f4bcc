/* See inprocess.h. */
#include "remoting/inprocess.h"

#include "core/core.h"
#include "core/lock.h"

int ps_conn_send(ps_conn *n, const uint8_t *base, int64_t base_len, int32_t opaque,
                 int32_t sys_flag, int32_t flag, int64_t born_ms, const uint8_t *properties,
                 int32_t properties_len, const uint8_t *body, int64_t body_len, ps_signer *signer,
                 ps_answered *answer, ps_step *out, ps_error *e) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    uint8_t *room;
    int64_t used, wanted, most = ps_core_room(c, &room);
    answer->sent = 0;
    if (n->cn_in.len > 0 || (c->co_limits.li_first_max != 0 && !n->cn_known)) return 0;
    int64_t size = ps_client_send(base, base_len, opaque, sys_flag, flag, born_ms, properties,
                                  properties_len, body, body_len, signer, room, most, e);
    if (size < 0 || size > most) return size < 0 ? (int)size : 0;
    int code = ps_conn_received(n, size, out, e);
    if (code < 0) return code;
    if (out->out_len > 0)
        ps_client_answers(out->out, out->out_len, out->out_len, ps_mine(c)->ca_scratch, answer, 1,
                          &used, &wanted, e);
    return 1;
}
