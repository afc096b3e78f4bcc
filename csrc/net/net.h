/* Network threads of a broker: they accept connections, read and write them, and have the core
 * (remoting/) serve what it can, without Python and its lock. What needs Python is delegated as
 * events, and comes back as bytes to write. docs/locking.md, docs/adr/008-network-threads.md.
 *
 * One thread owns a connection, a *link*, for life. The first of a port accepts them all, and gives
 * each to the thread that has the fewest; what is limited in all is limited for all threads of the
 * port together. A connection begins with a PROXY header or without one, then speaks TLS or plain
 * text, if the port has what it speaks. */
#ifndef PS_NET_H
#define PS_NET_H

#include "core/remoting.h"

/* cdef begin */
#define PS_THREADS_MAX 16
typedef struct ps_net ps_net;   /* one thread, its links, and what it has to tell Python */
typedef struct ps_link ps_link; /* one connection */
typedef struct ps_net_budget ps_net_budget;
struct ps_h2_functions;         /* http2/http2.h */
struct ps_h2_conf;
struct ps_h2_limits; /* messaging/message.h */
struct ps_h2_names;  /* messaging/names.h */
struct ps_pop_found; /* pop/popcheckpoint.h */
typedef struct ps_tls ps_tls; /* what a server shows of itself by TLS, and asks of clients */

#define PS_TLS_NO_CLIENT 0       /* no certificate is asked of clients */
#define PS_TLS_CLIENT_MAY 1      /* one that is shown must be trusted */
#define PS_TLS_CLIENT_REQUIRED 2

typedef struct ps_tls_conf {
    const char *cert, *key; /* paths of PEM files; the chain's first is the server's own */
    const char *password;   /* of the key; empty: it has none */
    int32_t verify;         /* PS_TLS_ */
    const char *trust;      /* path of the certificates that sign clients'; NULL: the system's */
    const char *ciphers;    /* up to TLS 1.2, in OpenSSL's words; NULL: OpenSSL's own choice */
} ps_tls_conf;

typedef struct ps_net_run { /* addresses, one after the other; both ends are of it */
    int32_t width;          /* 4 or 16 */
    uint8_t low[16], high[16];
} ps_net_run;

typedef struct ps_net_receives { /* what clients may ask of a receive; ms */
    int64_t invisible_min_ms, invisible_max_ms;
    int64_t invisible_ms; /* of a message whose time Python renews */
    int64_t poll_min_ms, poll_max_ms; /* how long a client must be ready to wait, and may */
    int32_t renews; /* clients may ask for that */
} ps_net_receives;

typedef struct ps_net_conf {
    int32_t number;      /* of the thread, from 1 on: the caller that it is to the core */
    int32_t delegated;   /* PS_DELEGATE_: what of its connections is handed on */
    int32_t links_max;   /* of all threads of the port; some more are there to be refused */
    int32_t queued_max;  /* frames of a link that wait for Python; then it is not read from */
    int64_t queued_bytes; /* the same in bytes */
    int64_t frame_max;    /* bytes of a frame, where there is no core that knows */
    int64_t write_high, write_low; /* unsent bytes: above high nothing is read until low */
    int64_t unsent_max;  /* then the link is closed */
    struct ps_net_budget *budget; /* of what its links hold, and others; it outlives the thread */
    int64_t idle_ms;     /* 0: never */
    int64_t linger_ms;   /* for the peer to read what is unsent when we close */
    /* For a PROXY header and what follows it, a TLS handshake, the first bytes of HTTP/2, and for
     * who is refused to say what; 0: for ever. */
    int64_t opening_ms;
    int32_t tls_only;    /* plain text is refused */
    int32_t proxies_len;
    const ps_net_run *proxies; /* whose PROXY headers are believed; they outlive it */
    /* Its connections speak HTTP/2, with calls of gRPC: by these functions, as the conf says, which
     * both outlive it. NULL: frames of the remoting protocol. */
    const struct ps_h2_functions *h2;
    const struct ps_h2_conf *h2_conf;
    /* Calls that the thread serves itself: places of methods in h2_conf, -1: Python serves it. And
     * what plain messages are, which outlives it. */
    int32_t send_method, ack_method, receive_method, end_method;
    const struct ps_h2_limits *sends;
    ps_net_receives receives; /* until ps_net_receive */
    /* Replies that outlive it: nothing was found, or nobody more may wait. */
    const uint8_t *nothing, *full;
    int32_t nothing_len, full_len;
    /* The status, as the first field of a reply, of calls whose records are not safe: the disk or
     * slaves were too slow; anything else. */
    const uint8_t *late_disk, *late_slaves, *unsafe;
    int32_t late_disk_len, late_slaves_len, unsafe_len;
    /* Of zlib, for small bodies that are compressed; NULL: Python inflates them. */
    int (*inflate_init)(void *stream, int window_bits, const char *version, int stream_size);
    int (*inflate)(void *stream, int flush);
    int (*inflate_end)(void *stream);
    const char *zlib_version;
    const struct ps_h2_names *hidden; /* properties that are not shown; it outlives the thread */
} ps_net_conf;

#define PS_NET_OPENED 1   /* a link is there. data: addresses and ports of the peer, or of whom that
                             speaks for, and of us. number 1: it is one too many, and all that it
                             asks comes here to be refused */
#define PS_NET_FRAME 2    /* data: a whole frame that Python is to serve */
#define PS_NET_CLOSED 3   /* the link has ended. data: why, if we ended it, then a colon and what of
                             its peer was wrong. Then ps_link_forget */
#define PS_NET_UNOPENED 4 /* a connection has ended that was not opened yet. data: address and port
                             of its peer, why, what of it was wrong; a line feed between them */
#define PS_NET_ANSWERS 5  /* data: of connection `value`, which is not ours */
#define PS_NET_WAITED 6   /* the wait `value`, which Python began, is over; number: its outcome */
#define PS_NET_POP_DUE 7  /* value: see ps_step */
#define PS_NET_NEWS 8     /* watched queues got messages: ps_core_take_level_news, _timers, _news */
#define PS_NET_PULLED 9   /* pulled: a pull of the link, or of connection `value`, was answered */
#define PS_NET_UNREAD 10  /* value 1: unsent bytes are above write_high; 0: below write_low again */
#define PS_NET_RESTING 11 /* number: errno. Connections are not accepted for half a second */
#define PS_NET_ACKED 13   /* data: group, topic, handles that were acknowledged, a line each */
#define PS_NET_CALL 12    /* call: an event of HTTP/2. data: headers, then the request */
#define PS_NET_POPPED 15  /* call.found: what a request of Python's has waited for, number `value`
                             of ps_conn_pop_wait; number 1: a call that is gone has, and it is to
                             be given back. data: group, line feed, topic */
#define PS_NET_HELD 14    /* data: client, group and topic, then deliveries before and a handle for
                             each message that it was handed out and that Python is to renew; a line
                             each */
#define PS_NET_TLS_WANTED 16 /* a client wants TLS: see ps_net_speak_tls */

typedef struct ps_net_call { /* see ps_h2_event */
    int32_t kind, stream, method;
    int64_t timeout_ns, headers_len;
    /* Of ReceiveMessage, what was popped for it, which is Python's to hand out (and to free, which
     * ps_net_events does not do); NULL: nothing was. */
    struct ps_pop_found *found;
} ps_net_call;

typedef struct ps_net_event {
    int32_t kind, number;
    ps_link *link; /* NULL: none of ours */
    int64_t link_id; /* which no other link has, be it at the same address later; 0: none */
    const uint8_t *data;
    int64_t len, value;
    ps_pulled pulled;
    ps_net_call call;
} ps_net_event;

/* Listens on the bound socket, which stays the caller's, with a thread of its own; -1: on none. The
 * core must outlive it. core NULL: all that is read goes to Python, for which a thread would only
 * be one more to wake, so it has none: its sockets are read in ps_net_events, and what Python asks
 * of it is done at once, all by one thread. first: accepts for it; NULL: it is the first itself. A
 * port has PS_THREADS_MAX at most. Errors: PS_E_NO_MEMORY, PS_E_IO, PS_E_ARGUMENT. */
ps_net *ps_net_start(ps_core *core, const ps_net_conf *conf, int listen_fd, ps_net *first,
                     ps_error *error);
/* PS_E_ARGUMENT: there is no OpenSSL 3, and TLS is refused. */
int ps_tls_check(ps_error *error);
/* Errors: as ps_tls_check; PS_E_ARGUMENT: a file cannot be used; PS_E_NO_MEMORY. */
ps_tls *ps_tls_new(const ps_tls_conf *conf, ps_error *error);
void ps_tls_free(ps_tls *tls); /* NULL does nothing. Connections keep what they use of it. */
/* From now on the port speaks TLS as this says, with whoever begins with it; NULL: it refuses them,
 * and `refusal` is why, as in PS_NET_UNOPENED. Before that they wait, and PS_NET_TLS_WANTED comes
 * once. Of the first thread, for all; it is used until the next call, or until they end. */
void ps_net_speak_tls(ps_net *net, ps_tls *tls, const char *refusal);
/* No further connections are accepted; the socket may be closed. */
void ps_net_deafen(ps_net *net);
/* Ends the thread, the first of a port before the others; the events that are left can still be
 * taken. */
void ps_net_stop(ps_net *net);
/* After all of the port were stopped, the first of them last: ends its links. No link may be used
 * any more. */
void ps_net_free(ps_net *net);
/* Readable: call ps_net_events. */
int ps_net_event_fd(ps_net *net);
/* Takes up to `room` events; what they point at is good until the next call; 0: none is left. Those
 * of a link are in order. Links that come and go wait behind what others ask, a few at a time. */
int64_t ps_net_events(ps_net *net, ps_net_event *out, int64_t room);
/* What ps_core_next has for a link goes to its thread. 0: there is none, or no memory. */
int ps_net_give(ps_core *core, const ps_step *step);
/* The core has something to do for pulls that are held; all 1: every one is answered. */
void ps_net_look(ps_net *net, int32_t all);
int64_t ps_net_turns(ps_net *net); /* reads of its links, since the start */
int32_t ps_net_links(ps_net *net); /* but for those that are too many */
/* Calls that wait for messages here; Python does not know them. */
int64_t ps_net_waiting(ps_net *net);
/* Bytes that connections may hold together, of any ports: parts of frames, frames that wait for
 * Python, what Python holds for them, answers that are not read. Over it a thread that holds more
 * than its share ends its largest links. NULL: no memory. */
ps_net_budget *ps_net_budget_new(int64_t max);
void ps_net_budget_free(ps_net_budget *budget);
void ps_net_budget_limit(ps_net_budget *budget, int64_t max);
int64_t ps_net_budget_held(ps_net_budget *budget); /* by all */

ps_conn *ps_link_conn(ps_link *link);
void ps_link_know(ps_link *link); /* access control lets its client in */
void ps_link_hold(ps_link *link, int64_t more); /* Python holds so many bytes more for it */
/* Returns ps_link_unsent. */
int64_t ps_link_write(ps_link *link, const uint8_t *data, int64_t len);
int64_t ps_link_unsent(ps_link *link);
/* Nothing is read from it until it is on again. */
void ps_link_reading(ps_link *link, int32_t on);
/* now 0: what is unsent is written first. */
void ps_link_close(ps_link *link, int32_t now);
/* From now on PS_NET_ACKED comes. */
void ps_net_renewing(ps_net *net);
/* For links that speak HTTP/2, what the functions of http2/http2.h by these names do. tell 1: with
 * PS_H2_DRAINED as soon as little of the call waits to be sent, be it at once. */
void ps_link_reply(ps_link *link, int32_t stream, const uint8_t *data, int64_t len, int32_t last,
                   int32_t tell);
void ps_link_finish_call(ps_link *link, int32_t stream, int32_t status, const char *text);
void ps_link_admit(ps_link *link, int32_t stream);
void ps_link_taken(ps_link *link, int32_t stream, int64_t len);
void ps_link_go_away(ps_link *link);
/* This client may send over it (in UTF-8), until another one may: its calls are served without
 * Python. attempts: of a message, for a consumer that may receive by itself, too, until
 * ps_net_settled; 0: it may not. fifo: its group is ordered. request_ms: its time for a request. */
void ps_link_client(ps_link *link, const char *client, int32_t attempts, int32_t fifo,
                    int32_t request_ms);
/* Clients may have other settings than before. */
void ps_net_settled(ps_net *net);
/* The thread serves receives as these say, of clients that are named after this: ps_net_settled has
 * the others come to Python. Errors: PS_E_NO_MEMORY. */
int ps_net_receive(ps_net *net, const ps_net_receives *receives, ps_error *error);
/* After PS_NET_CLOSED: Python does not know it any more. */
void ps_link_forget(ps_link *link);
/* cdef end */

#endif
