/* The reader of a proxy's header (proxyheader.h). Connections bring it in pieces of any length. */
#include <arpa/inet.h>
#include <string.h>

#include "base/bytes.h"
#include "net/proxyheader.h"

#define FIXED 16     /* bytes of version 2 before the addresses */
#define V2_MAX 4096  /* bytes behind those */
#define WORDS 6      /* of version 1 */

static const uint8_t V1[] = {'P', 'R', 'O', 'X', 'Y', ' '};
static const uint8_t V2[] = "\r\n\r\n\0\r\nQUIT\n"; /* but for the zero at its end */
#define V1_LEN ((int32_t)sizeof V1)
#define V2_LEN ((int32_t)sizeof V2 - 1)

static int bad_header(ps_error *e, const char *what, long long number) {
    return ps_fail(e, PS_E_FRAME, 0, -1, NULL, "PROXY header: %s: %lld", what, number);
}

bool ps_proxyheader_begins(uint8_t first) {
    return first == V1[0] || first == V2[0];
}

/* An IPv4 address that IPv6 carries is an IPv4 one. */
static void keep_source(ps_proxyheader *p, const uint8_t *address, int32_t width, uint16_t port) {
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    if (width == 16 && memcmp(address, mapped, sizeof mapped) == 0) {
        address += sizeof mapped;
        width = 4;
    }
    memcpy(p->px_host, address, (size_t)width);
    be32_put(p->px_host + width, port);
    p->px_host_len = width + 4;
}

/* ---- version 1 ---- */

/* -1: it is none. */
static int32_t port_of(const char *text) {
    int32_t port = 0;
    size_t len = strlen(text);
    if (len == 0 || len > 5 || strspn(text, "0123456789") != len) return -1;
    for (; *text != 0; text++) port = port * 10 + (*text - '0');
    return port <= UINT16_MAX ? port : -1;
}

/* line: without its end. */
static int read_line(ps_proxyheader *p, char *line, ps_error *e) {
    char *words[WORDS + 1], *next = line;
    uint8_t address[16];
    int32_t count = 0;
    for (; next != NULL && count <= WORDS; count++) {
        words[count] = next;
        next = strchr(next, ' ');
        if (next != NULL) *next++ = 0;
    }
    if (strcmp(words[1], "UNKNOWN") == 0) return 0;
    bool six = strcmp(words[1], "TCP6") == 0;
    if (count != WORDS || (!six && strcmp(words[1], "TCP4") != 0))
        return bad_header(e, "not the words of version 1, but", count);
    int32_t port = port_of(words[4]);
    if (inet_pton(six ? AF_INET6 : AF_INET, words[2], address) != 1)
        return bad_header(e, "no source address in version 1, whose words are", count);
    if (port < 0) return bad_header(e, "no source port in version 1, whose words are", count);
    keep_source(p, address, six ? 16 : 4, (uint16_t)port);
    return 0;
}

static int end_line(ps_proxyheader *p, ps_error *e) {
    char line[PS_PROXY_HEAD + 1];
    int32_t len = p->px_len - 2;
    memcpy(line, p->px_head, (size_t)len);
    line[len] = 0;
    if (strlen(line) != (size_t)len) return bad_header(e, "a zero byte in version 1, bytes", len);
    p->px_whole = true;
    return read_line(p, line, e);
}

/* ---- version 2 ---- */

/* Bytes of an address; 0: it names none that is an internet address. */
static int32_t width_of(const ps_proxyheader *p) {
    bool asks = (p->px_head[12] & 15) == 0; /* the proxy's own check */
    int32_t family = p->px_head[13] >> 4;
    return asks ? 0 : family == 1 ? 4 : family == 2 ? 16 : 0;
}

/* Up to the source's port. */
static int32_t wanted_of(const ps_proxyheader *p) {
    int32_t width = width_of(p);
    return FIXED + (width > 0 ? 2 * width + 2 : 0);
}

static int begin_rest(ps_proxyheader *p, ps_error *e) {
    int32_t kind = p->px_head[12], len = be16_get(p->px_head + 14), width = width_of(p);
    if (kind >> 4 != 2 || (kind & 15) > 1)
        return bad_header(e, "unknown version or command", kind);
    if (len > V2_MAX) return bad_header(e, "too long, bytes", len);
    if (width > 0 && len < 2 * width + 4)
        return bad_header(e, "shorter than its addresses, bytes", len);
    p->px_rest = FIXED + len - wanted_of(p);
    return 0;
}

/* The last byte that it wanted has come, but for the rest. */
static void end_addresses(ps_proxyheader *p) {
    int32_t width = width_of(p);
    if (width > 0)
        keep_source(p, p->px_head + FIXED, width, be16_get(p->px_head + FIXED + 2 * width));
    p->px_whole = p->px_rest == 0;
}

/* ---- either ---- */

static int take_byte(ps_proxyheader *p, uint8_t byte, ps_error *e) {
    p->px_head[p->px_len++] = byte;
    int32_t len = p->px_len;
    bool first = p->px_head[0] == V1[0];
    int32_t known = first ? V1_LEN : V2_LEN;
    if (memcmp(p->px_head, first ? V1 : V2, (size_t)(len < known ? len : known)) != 0)
        return bad_header(e, "neither version 1 nor 2, at byte", len);
    if (first) {
        if (len > 1 && byte == '\n' && p->px_head[len - 2] == '\r') return end_line(p, e);
        return len < PS_PROXY_HEAD ? 0 : bad_header(e, "version 1 does not end, bytes", len);
    }
    int code = len == FIXED ? begin_rest(p, e) : 0;
    if (code == 0 && len >= FIXED && len == wanted_of(p)) end_addresses(p);
    return code;
}

/* Whether the next byte is kept. */
static bool is_kept(const ps_proxyheader *p) {
    return p->px_len < FIXED || p->px_head[0] == V1[0] || p->px_len < wanted_of(p);
}

int64_t ps_proxyheader_take(ps_proxyheader *p, const uint8_t *data, int64_t len, ps_error *e) {
    int64_t used = 0;
    while (used < len && !p->px_whole) {
        if (is_kept(p)) {
            int code = take_byte(p, data[used++], e);
            if (code < 0) return code;
            continue;
        }
        int64_t some = len - used < p->px_rest ? len - used : p->px_rest;
        used += some;
        p->px_rest -= (int32_t)some;
        p->px_whole = p->px_rest == 0;
    }
    return used;
}
