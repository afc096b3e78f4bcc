/* What the files of this room share. */
#ifndef PS_REACTOR_H
#define PS_REACTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "http2/http2.h"
#include "net/net.h"
#include "net/proxyheader.h"
#include "net/tls.h"
#include "core/core.h"
#include "pop/popcheckpoint.h"

/* Why nothing is read from a link: bits of lk_held. */
#define PS_HELD_UNREAD 1 /* its peer does not read */
#define PS_HELD_QUEUED 2 /* so much waits for Python */
#define PS_HELD_PYTHON 4 /* Python wants it so */
#define PS_HELD_CLOSING 8
#define PS_HELD_TLS 16 /* it wants TLS, and whether we have it is not known yet */

#define PS_OVER_MAX 64 /* connections over the limit that are told so; others are just closed */

#define PS_NET_ROOM (64 << 10) /* of one read, on a port without a core */

#define PS_H2_FIRST 3 /* bytes that tell HTTP/2 from TLS and a PROXY header */

struct ps_link {
    ps_net *lk_net;
    ps_conn *lk_conn; /* NULL: the port has no core, or its first byte is still to come */
    ps_h2 *lk_h2;     /* NULL: it speaks the remoting protocol */
    ps_tls_link *lk_tls; /* NULL: plain text */
    ps_proxyheader *lk_header; /* NULL: it began with none */
    int lk_fd;        /* -1: closed */
    int32_t lk_slot;
    int64_t lk_id;
    uint32_t lk_events; /* that epoll watches */
    int32_t lk_held;
    bool lk_over;  /* it is one too many: all that it asks is refused */
    bool lk_open;  /* its first bytes are known to be ours */
    bool lk_told;  /* Python knows it */
    atomic_bool lk_known; /* access control lets its client in, where there is no core that knows */
    bool lk_heavy; /* its last turn took long: others come first */
    bool lk_more;  /* whole frames wait in the core */
    bool lk_ready; /* in the list of those whose turn comes */
    ps_link *lk_next;
    ps_buffer lk_out; /* what the socket did not take; from lk_out_from on */
    int64_t lk_out_from;
    int64_t lk_part;    /* bytes of a frame that is not whole */
    ps_buffer lk_in;    /* that frame, and how long it is: frames.c. The core keeps its own */
    int64_t lk_wanted;
    int64_t lk_weight;  /* that count for it in nt_unfinished, beside lk_asked */
    int64_t lk_seen_ms; /* last used */
    int64_t lk_closing_ms; /* when it ends whatever is unsent; 0: it is not closing */
    int64_t lk_called_ms;  /* HTTP/2: when a call of it began last, or was in progress */
    char *lk_client; /* HTTP/2: the client that may send; NULL: none */
    int32_t lk_attempts; /* of a message that it receives; 0: it receives nothing by itself */
    bool lk_fifo;        /* in order */
    int64_t lk_settings; /* nt_settings when it was so */
    int64_t lk_request_ms; /* the client's time for a request */
    int64_t lk_clients;    /* how often Python has named one */
    struct ps_waiting_call *lk_waiting; /* calls that wait for messages: hotcalls.c */
    char lk_host[64]; /* address of its peer, or of whom that speaks for */
    bool lk_dirty;         /* HTTP/2: in the list of those that Python has replied to */
    ps_link *lk_next_dirty;
    _Atomic int64_t lk_unsent; /* with what still is on its way from Python */
    atomic_bool lk_awaited; /* Python writes no more until little of that is left */
    _Atomic int64_t lk_queued, lk_queued_bytes; /* frames that wait for Python */
    int64_t lk_rare; /* its events in nt_rare */
    _Atomic int64_t lk_asked; /* bytes that Python holds for it; written under nt_lock */
    bool lk_ended;            /* Python may not know that yet; the same */
};

/* What Python asks for, and other threads. */
typedef struct ps_net_ask {
    enum { PS_ASK_WRITE, PS_ASK_READING, PS_ASK_CLOSE, PS_ASK_FORGET, PS_ASK_LOOK, PS_ASK_DEAF,
           PS_ASK_TAKEN, PS_ASK_TLS, PS_ASK_RECEIVES,
           /* From other threads of the port: a connection, an answer, a look at the budget. */
           PS_ASK_JOIN, PS_ASK_ANSWER, PS_ASK_POPPED, PS_ASK_SAFE, PS_ASK_WEIGH,
           /* Of HTTP/2. */
           PS_ASK_REPLY, PS_ASK_FINISH, PS_ASK_ADMIT, PS_ASK_SERVED, PS_ASK_GO_AWAY,
           PS_ASK_CLIENT } kind;
    int32_t on; /* of PS_ASK_JOIN: its descriptor; of PS_ASK_SAFE: the outcome */
    bool fifo;  /* of PS_ASK_CLIENT */
    int64_t conn_id;
    int32_t stream, tell; /* of calls; tell: the status, when one is finished; of PS_ASK_JOIN: it is
                             one too many */
    ps_link *link;
    uint8_t *data;
    int64_t len;
    struct ps_pop_found *found; /* of PS_ASK_POPPED */
} ps_net_ask;

typedef struct ps_queue_of { /* a growing array */
    void *items;
    int64_t count, room;
} ps_queue_of;

struct ps_net_budget {
    _Atomic int64_t held, max;
    _Atomic int32_t sharers; /* network threads */
};

struct ps_net {
    ps_net *nt_first; /* that accepts for it, or itself */
    ps_net *nt_all[PS_THREADS_MAX]; /* of the first alone: all of the port, itself at 0 */
    _Atomic int32_t nt_all_count;
    ps_core *nt_core; /* NULL: it has no thread, and turns where Python takes its events */
    const struct ps_net_at_once *nt_at_once; /* then; else NULL */
    uint8_t *nt_room; /* to read into, where there is no core that has some */
    ps_net_conf nt_conf;
    pthread_t nt_thread;
    int nt_epoll, nt_listen, nt_wake; /* nt_wake: eventfd, Python asks for something */
    int nt_told;                      /* eventfd: there are events */
    int nt_timer;                     /* timerfd of sweeps, where no thread waits; -1: none */
    bool nt_ticks;                    /* it runs */
    atomic_bool nt_stopping;
    ps_link **nt_links; /* by slot; NULL: free */
    int32_t nt_slots, nt_free; /* nt_free: no slot below it is free */
    _Atomic int32_t nt_count; /* links that it has, or that were given to it */
    _Atomic int32_t nt_over; /* of the first alone: links of the port that are too many */
    ps_tls *nt_tls; /* NULL: TLS is refused, once that is settled */
    char nt_tls_refusal[512]; /* why */
    pthread_mutex_t nt_tls_lock; /* of these two, which may change at any time */
    atomic_bool nt_tls_settled, nt_tls_asked;
    int64_t nt_serial;
    _Atomic int64_t nt_waiting; /* calls that wait for messages: hotcalls.c */
    _Atomic int64_t nt_turns; /* reads of links, since the start */
    ps_link *nt_ready, **nt_ready_end;
    ps_link *nt_dirty;
    const struct ps_link_protocol *nt_protocol; /* NULL: of remoting */
    _Atomic int64_t nt_settings; /* how often those of clients have changed */
    atomic_bool nt_renews; /* Python wants to hear of acknowledged handles */
    uint32_t nt_turn; /* of the queues that messages go to */
    bool nt_look, nt_look_all;
    bool nt_resting; /* nothing is accepted: there is no descriptor left */
    int64_t nt_look_ms; /* when to look at held pulls next; -1: when told */
    int64_t nt_swept_ms;
    int64_t nt_over_ms; /* since when the budget is exceeded by others, it may be; 0: it is not */
    _Atomic int64_t nt_unfinished; /* of its own links */
    pthread_mutex_t nt_lock;  /* of the three queues */
    ps_queue_of nt_asks;      /* ps_net_ask, from Python and from other threads */
    ps_queue_of nt_doing;     /* those that are done now; its thread's alone */
    ps_queue_of nt_events;    /* ps_net_event, to Python */
    ps_queue_of nt_rare; /* the same of links that come and go, from nt_rare_from on: queue.c */
    int64_t nt_rare_from;
    ps_queue_of nt_taken;     /* those that Python has now; its thread's alone */
    int64_t nt_given;         /* how many of them it was given */
    bool nt_quiet;            /* events were added since Python was told last; its thread's */
};

/* queue.c */
bool ps_net_tell(ps_net *net, const ps_net_event *event); /* copies data; false: no memory */
/* Python has waited for it, or a call that is gone: then it gives it back. found: see
 * ps_net_call; names: group, line feed, topic. */
void ps_net_tell_popped(ps_net *net, struct ps_pop_found *found, int64_t conn_id, int64_t number,
                        const uint8_t *names, int64_t len);
/* The same. found: see ps_net_call. */
bool ps_net_tell_call(ps_link *link, const ps_h2_event *event, struct ps_pop_found *found);
void ps_net_told(ps_net *net); /* Python is woken, if there is something for it */
bool ps_net_ask_for(ps_net *net, const ps_net_ask *ask); /* false: no memory, its data is freed */
int64_t ps_net_take_asks(ps_net *net, ps_queue_of *out);
void ps_net_free_events(ps_queue_of *q, int64_t from);

/* link.c */
/* NULL: no memory. It was counted before. over: it is one too many. */
ps_link *ps_link_make(ps_net *net, int fd, bool over);
void ps_link_count(ps_net *net, bool over, int32_t more); /* links that it has, or those over */
void ps_link_free(ps_link *link);           /* after it was ended */
void ps_link_end(ps_link *link, const char *why); /* why NULL: its peer did */
void ps_link_watch(ps_link *link);                /* what epoll waits for */
/* Up to `room` bytes of what came. 0: there are none now; -1: the link has ended. */
int64_t ps_link_receive(ps_link *link, uint8_t *to, int64_t room);
void ps_link_send(ps_link *link, const uint8_t *data, int64_t len);
void ps_link_flush(ps_link *link);
void ps_link_written(ps_link *link, int64_t len); /* what Python wrote is sent, or in lk_out */
void ps_link_send_pieces(ps_link *link, const ps_step *step); /* its answers, and pieces of files */
/* Nothing else would wake it for what was read from its socket already. */
void ps_link_go_on(ps_link *link);
void ps_link_enqueue(ps_link *link);  /* its turn comes */
/* This no longer holds it up. What was read before goes on, since nothing else may wake it. */
void ps_link_release(ps_link *link, int32_t why);
void ps_link_keep_budget(ps_net *net); /* ends those that hold most, if all hold too much */
/* budget.c */
void ps_net_hold(ps_net *net, int64_t more);
void ps_link_let_go(ps_link *link); /* what Python holds for it counts no more: it has ended */
void ps_link_weigh(ps_link *link);     /* what it holds has changed */
void ps_link_queue(ps_link *link, int64_t len); /* so many bytes more of it wait for Python */
/* A call goes to Python. found: see ps_net_call. */
void ps_link_delegate(ps_link *link, const ps_h2_event *event, struct ps_pop_found *found);
bool ps_link_delegate_frame(ps_link *link, const uint8_t *frame, int64_t len); /* false: it ended */
void ps_link_end_malformed(ps_link *link, const ps_error *error);
void ps_link_begin_close(ps_link *link); /* what is unsent is written first */

/* turn.c */
void ps_link_readable(ps_link *link); /* one read, or what was held back, and what comes of it */

/* opening.c */
/* Looks at the first bytes of a link that is not open. Whether it is now, and is to be read. */
bool ps_link_begin(ps_link *link);
/* Refuses one that was not opened yet; Python hears of it all the same. */
void ps_link_refuse(ps_link *link, const char *why, const char *detail);
/* Refuses a descriptor of which no link was made. */
void ps_net_refuse(ps_net *net, int fd, const char *why, const char *detail);

/* What the queues call where no thread waits for them: reactor.c. */
typedef struct ps_net_at_once {
    void (*turn)(ps_net *net);
    void (*ask)(ps_net *net, const ps_net_ask *ask); /* between two turns */
    void (*write)(ps_link *link, const uint8_t *data, int64_t len); /* the same, uncopied */
} ps_net_at_once;

/* How links are read that the core does not read: those of HTTP/2, and of ports without a core,
 * for which `read` is enough. */
typedef struct ps_link_protocol {
    bool (*open)(ps_link *link); /* false: no memory */
    void (*read)(ps_link *link);
    void (*write)(ps_link *link); /* as much as its peer reads */
    void (*ask)(const ps_net_ask *ask);
    void (*asked)(ps_net *net); /* after all that Python asked for together */
    void (*sweep)(ps_link *link, int64_t now);
    void (*ended)(ps_link *link);
    /* found: what a call has waited for, which is its own then. False: there is no such call. */
    bool (*popped)(ps_link *link, int32_t stream, struct ps_pop_found *found);
    /* A ps_conn_wait of a call is over. */
    void (*safe)(ps_link *link, int32_t stream, int32_t outcome);
} ps_link_protocol;

extern const ps_link_protocol ps_calls;  /* calls.c */
extern const ps_link_protocol ps_frames; /* frames.c */
/* hotcalls.c: whether it was served, without Python. */
bool ps_calls_serve(ps_link *link, const ps_h2_event *call);
bool ps_calls_popped(ps_link *link, int32_t stream, struct ps_pop_found *found);
void ps_calls_safe(ps_link *link, int32_t stream, int32_t outcome);
bool ps_calls_reset(ps_link *link, int32_t stream); /* false: it waits for nothing here */
void ps_calls_drop(ps_link *link);                  /* all that wait */

#endif
