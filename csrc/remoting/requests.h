/* What serves the requests of a connection, and what is parked for it. */
#ifndef PS_REMOTING_REQUESTS_H
#define PS_REMOTING_REQUESTS_H

#include "waits/parked.h"

/* pull.c, offsets.c: 1 served, 0 for the broker to serve */
int ps_core_pull(ps_conn *conn, const ps_command *request);
int ps_core_update_offset(ps_conn *conn, const ps_command *request);
/* 1: answered (an_out), 0: it waits on, or an error code, after which its connection is done. */
int ps_pull_resume(ps_core *c, ps_parked *ready);

/* next.c */
void ps_parked_drop_all(ps_conn *conn);
/* The next pull of the pair is answered at once, and whoever pops tries again. */
void ps_parked_wake(ps_core *c, ps_pair *p, int32_t queue_id);

#endif
