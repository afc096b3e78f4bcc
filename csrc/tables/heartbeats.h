/* Heartbeats that change nothing: heartbeats.c. */
#ifndef PS_HEARTBEATS_H
#define PS_HEARTBEATS_H

#include "core/core.h"

/* cdef begin */
/* The heartbeat with this number, which Python has served, would change nothing once more: its
 * repeats are answered here until ps_conn_forget_heartbeat, or until a topic or a grant is
 * withdrawn. says_changed: IS_SUB_CHANGE of their answers. Does nothing when another came
 * meanwhile. */
void ps_conn_keep_heartbeat(ps_conn *conn, int32_t opaque, int32_t says_changed);
void ps_conn_forget_heartbeat(ps_conn *conn);
/* Monotonic time of the last that was answered here; 0: none was. */
int64_t ps_conn_heartbeat_ms(const ps_conn *conn);
/* cdef end */

int ps_core_heartbeat(ps_conn *conn, const ps_command *request); /* 1 served, 0 for the broker */

#endif
