/* The first bytes of a connection: a proxy's header if there is one, then TLS or plain text, then
 * what the port speaks. docs/internals/wire.md#connections. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/reactor.h"

#define TLS_HANDSHAKE 0x16
#define HOST_TEXT (INET6_ADDRSTRLEN + 8) /* address, space, port */

/* ---- who it is ---- */

/* An IPv4 address that IPv6 carries is an IPv4 one. */
static int32_t host_of(const struct sockaddr_storage *from, uint8_t *host) {
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        memcpy(host, &in->sin_addr, 4);
        be32_put(host + 4, ntohs(in->sin_port));
        return 8;
    }
    const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
    if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
        memcpy(host, in->sin6_addr.s6_addr + 12, 4);
        be32_put(host + 4, ntohs(in->sin6_port));
        return 8;
    }
    memcpy(host, &in->sin6_addr, 16);
    be32_put(host + 16, ntohs(in->sin6_port));
    return 20;
}

static int put_address(int family, const void *address, int port, char *to, size_t room) {
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(family, address, text, sizeof text);
    return snprintf(to, room, "%s %d", text, port);
}

static int put_sockaddr(const struct sockaddr_storage *from, char *to, size_t room) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
    if (from->ss_family == AF_INET)
        return put_address(AF_INET, &in->sin_addr, ntohs(in->sin_port), to, room);
    return put_address(AF_INET6, &six->sin6_addr, ntohs(six->sin6_port), to, room);
}

static bool peer_of(int fd, struct sockaddr_storage *peer) {
    socklen_t len = sizeof *peer;
    return getpeername(fd, (struct sockaddr *)peer, &len) == 0;
}

/* For whom it speaks, as the core has hosts; *size: of the same as text, address and port with a
 * space between. -1: its peer has gone. */
static int32_t source_of(const ps_link *link, uint8_t *host, char *text, size_t room, int *size) {
    const ps_proxyheader *header = link->lk_header;
    struct sockaddr_storage peer = {0};
    if (header != NULL && header->px_whole && header->px_host_len > 0) {
        int32_t width = header->px_host_len - 4;
        memcpy(host, header->px_host, sizeof header->px_host);
        *size = put_address(width == 4 ? AF_INET : AF_INET6, host, (int)be32_get(host + width),
                            text, room);
        return header->px_host_len;
    }
    bool there = peer_of(link->lk_fd, &peer);
    *size = put_sockaddr(&peer, text, room);
    return there ? host_of(&peer, host) : -1;
}

/* ---- who is refused ---- */

static void tell_refused(ps_net *net, const char *peer, const char *why, const char *detail) {
    char text[HOST_TEXT + sizeof net->nt_tls_refusal + 64];
    int size = snprintf(text, sizeof text, "%s\n%s\n%s", peer, why, detail);
    if (size >= (int)sizeof text) size = (int)sizeof text - 1;
    ps_net_tell(net, &(ps_net_event){.kind = PS_NET_UNOPENED, .data = (const uint8_t *)text,
                                     .len = size});
}

void ps_net_refuse(ps_net *net, int fd, const char *why, const char *detail) {
    char text[HOST_TEXT];
    struct sockaddr_storage peer = {0};
    if (peer_of(fd, &peer)) {
        put_sockaddr(&peer, text, sizeof text);
        tell_refused(net, text, why, detail);
    }
    close(fd);
}

void ps_link_refuse(ps_link *link, const char *why, const char *detail) {
    uint8_t host[20];
    char text[HOST_TEXT];
    int size;
    source_of(link, host, text, sizeof text, &size);
    tell_refused(link->lk_net, text, why, detail);
    ps_link_end(link, NULL);
}

/* ---- it is one of ours, for life ---- */

static bool open_link(ps_link *link) {
    ps_net *net = link->lk_net;
    struct sockaddr_storage local = {0};
    socklen_t local_len = sizeof local;
    uint8_t host[20];
    char text[2 * HOST_TEXT];
    int size;
    ps_error e = {0};
    int32_t host_len = source_of(link, host, text, sizeof text, &size);
    if (host_len < 0 || getsockname(link->lk_fd, (struct sockaddr *)&local, &local_len) < 0)
        return false;
    if (net->nt_core != NULL) {
        link->lk_conn = ps_conn_new(net->nt_core, link->lk_id, host, host_len, &e);
        if (link->lk_conn == NULL) return false;
        int32_t delegated = link->lk_over ? PS_DELEGATE_ALL : net->nt_conf.delegated;
        if (delegated != 0) ps_conn_delegate(link->lk_conn, delegated);
    }
    link->lk_open = true;
    snprintf(link->lk_host, sizeof link->lk_host, "%.*s", (int)strcspn(text, " "), text);
    text[size++] = ' ';
    size += put_sockaddr(&local, text + size, sizeof text - (size_t)size);
    link->lk_told = ps_net_tell(
        net, &(ps_net_event){.kind = PS_NET_OPENED, .link = link, .number = link->lk_over,
                             .data = (const uint8_t *)text, .len = size});
    return link->lk_told;
}

/* Whether it is open, and is to be read now. */
static bool open_or_end(ps_link *link) {
    const ps_link_protocol *protocol = link->lk_net->nt_protocol;
    if (open_link(link) && (protocol == NULL || protocol->open == NULL || protocol->open(link)))
        return true;
    ps_link_end(link, "no memory for the connection");
    return false;
}

/* ---- TLS ---- */

/* Its handshake goes on. Whether it is to be read now. */
static bool shake_hands(ps_link *link) {
    const char *why;
    int done = ps_tls_shake(link->lk_tls, &why);
    if (done > 0) return open_or_end(link);
    if (done == 0)
        ps_link_watch(link);
    else if (why == NULL)
        ps_link_end(link, NULL);
    else
        ps_link_refuse(link, "the TLS handshake failed", why);
    return false;
}

static void await_bytes(ps_link *link, int least) {
    setsockopt(link->lk_fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

/* Whether it is to be read now. Until Python has said whether there is a certificate, which it may
 * have to make, it waits. */
static bool begin_tls(ps_link *link) {
    ps_net *net = link->lk_net, *port = net->nt_first;
    char refusal[sizeof port->nt_tls_refusal];
    if (!port->nt_tls_settled) {
        link->lk_held |= PS_HELD_TLS;
        if (!atomic_exchange(&port->nt_tls_asked, true))
            ps_net_tell(net, &(ps_net_event){.kind = PS_NET_TLS_WANTED});
        ps_link_watch(link);
        return false;
    }
    pthread_mutex_lock(&port->nt_tls_lock);
    bool spoken = port->nt_tls != NULL;
    if (spoken) link->lk_tls = ps_tls_begin(port->nt_tls, link->lk_fd);
    snprintf(refusal, sizeof refusal, "%s", port->nt_tls_refusal);
    pthread_mutex_unlock(&port->nt_tls_lock);
    if (!spoken) {
        ps_link_refuse(link, refusal, "");
        return false;
    }
    if (link->lk_tls == NULL) {
        ps_link_end(link, "no memory for TLS");
        return false;
    }
    await_bytes(link, 1);
    link->lk_seen_ms = ps_monotonic_ms();
    return shake_hands(link);
}

/* ---- a proxy's header ---- */

/* Whether a header of its peer is believed. */
static bool is_trusted(const ps_link *link) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    struct sockaddr_storage peer = {0};
    uint8_t host[20];
    if (!peer_of(link->lk_fd, &peer)) return false;
    size_t width = (size_t)host_of(&peer, host) - 4;
    for (int32_t i = 0; i < conf->proxies_len; i++) {
        const ps_net_run *run = &conf->proxies[i];
        if ((size_t)run->width == width && memcmp(host, run->low, width) >= 0 &&
            memcmp(host, run->high, width) <= 0)
            return true;
    }
    return false;
}

/* Whether it is whole, and believed. */
static bool take_header(ps_link *link) {
    ps_proxyheader *header = link->lk_header;
    uint8_t data[512];
    ps_error e = {0};
    ssize_t count = recv(link->lk_fd, data, sizeof data, MSG_PEEK);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
        ps_link_end(link, NULL);
        return false;
    }
    int64_t used = ps_proxyheader_take(header, data, count, &e);
    if (used < 0) {
        ps_link_refuse(link, "malformed frame", e.text);
        return false;
    }
    /* What follows it stays unread: it may be TLS, which reads the socket itself. */
    (void)!recv(link->lk_fd, data, (size_t)used, 0);
    if (!header->px_whole) return false;
    if (!is_trusted(link)) {
        header->px_host_len = 0;
        ps_link_refuse(link, "PROXY header refused: the peer is not in trustedProxies", "");
        return false;
    }
    await_bytes(link, link->lk_net->nt_conf.h2 != NULL ? PS_H2_FIRST : 1);
    return true;
}

static bool begin_header(ps_link *link) {
    link->lk_header = calloc(1, sizeof *link->lk_header);
    if (link->lk_header == NULL) {
        ps_link_end(link, "no memory for the connection");
        return false;
    }
    link->lk_seen_ms = ps_monotonic_ms();
    await_bytes(link, 1);
    return take_header(link);
}

/* HTTP/2 begins with a line of text, as a header may. One that follows another is none. */
static bool begins_header(const ps_link *link, const uint8_t *first) {
    return link->lk_header == NULL && ps_proxyheader_begins(first[0]) &&
           (link->lk_net->nt_conf.h2 == NULL || memcmp(first, "PRI", PS_H2_FIRST) != 0);
}

/* ---- the first bytes ---- */

/* Whether the peer sends nothing more. */
static bool is_half_closed(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Whether they are there; if not, the link may have ended. */
static bool peek_first(ps_link *link, uint8_t *first) {
    ssize_t wanted = link->lk_net->nt_conf.h2 != NULL ? PS_H2_FIRST : 1;
    ssize_t count = recv(link->lk_fd, first, (size_t)wanted, MSG_PEEK);
    if (count == wanted) return true;
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    /* Short of memory the kernel wakes for fewer bytes than SO_RCVLOWAT asks for. */
    if (count <= 0 || is_half_closed(link->lk_fd)) ps_link_end(link, NULL);
    return false;
}

bool ps_link_begin(ps_link *link) {
    uint8_t first[PS_H2_FIRST];
    const ps_proxyheader *header = link->lk_header;
    if (link->lk_tls != NULL) return shake_hands(link);
    if (header != NULL && !header->px_whole && !take_header(link)) return false;
    if (!peek_first(link, first)) return false;
    if (begins_header(link, first) && (!begin_header(link) || !peek_first(link, first)))
        return false;
    if (first[0] == TLS_HANDSHAKE) return begin_tls(link);
    if (!link->lk_net->nt_conf.tls_only) return open_or_end(link);
    ps_link_refuse(link, "plain text refused: tls.server.mode is enforcing", "");
    return false;
}
