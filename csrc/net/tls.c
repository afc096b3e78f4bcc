/* TLS of links, by the OpenSSL 3 of the system (tls.h). docs/adr/008-network-threads.md */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "net/tls.h"

/* What OpenSSL's headers say, which a build may not have. */
#define FILE_PEM 1
#define VERIFY_PEER 1
#define VERIFY_REQUIRED 2
#define CTRL_MODE 33
#define CTRL_READ_AHEAD 41
#define CTRL_CACHE_MODE 44
#define CTRL_MIN_VERSION 123
#define MODE_PARTIAL_WRITE 1
#define MODE_MOVING_BUFFER 2
#define MODE_RELEASE_BUFFERS 16
#define OP_NO_RENEGOTIATION (UINT64_C(1) << 30)
#define OP_NO_COMPRESSION (UINT64_C(1) << 17)
#define OP_END_IS_END (UINT64_C(1) << 7) /* SSL_OP_IGNORE_UNEXPECTED_EOF: as of a plain socket */
#define TLS_1_2 0x0303
#define ERROR_SSL 1
#define ERROR_WANT_READ 2
#define ERROR_WANT_WRITE 3
#define ALPN_OK 0
#define ALPN_NONE 3
#define VERIFY_OK 0

#define LIBRARY "libssl.so.3"
#define READ_AHEAD (64 << 10) /* taken from the socket at once */
#define WRITE_MAX (1 << 30)   /* the library counts in int */

typedef int (*alpn_select)(void *ssl, const uint8_t **out, uint8_t *out_len, const uint8_t *in,
                           unsigned in_len, void *arg);
typedef int (*password_of)(char *to, int room, int writes, void *arg);

/* Each as its manual page has it, with void for types that we never look into. */
#define FUNCTIONS(F)                                                                             \
    F(const void *, TLS_server_method, (void))                                                   \
    F(void *, SSL_CTX_new, (const void *method))                                                 \
    F(void, SSL_CTX_free, (void *ctx))                                                           \
    F(long, SSL_CTX_ctrl, (void *ctx, int what, long value, void *more))                         \
    F(uint64_t, SSL_CTX_set_options, (void *ctx, uint64_t options))                              \
    F(int, SSL_CTX_set_cipher_list, (void *ctx, const char *names))                              \
    F(int, SSL_CTX_use_certificate_chain_file, (void *ctx, const char *path))                    \
    F(int, SSL_CTX_use_PrivateKey_file, (void *ctx, const char *path, int type))                 \
    F(int, SSL_CTX_check_private_key, (const void *ctx))                                         \
    F(void, SSL_CTX_set_default_passwd_cb, (void *ctx, password_of cb))                          \
    F(void, SSL_CTX_set_default_passwd_cb_userdata, (void *ctx, void *arg))                      \
    F(int, SSL_CTX_load_verify_locations, (void *ctx, const char *file, const char *folder))     \
    F(int, SSL_CTX_set_default_verify_paths, (void *ctx))                                        \
    F(void, SSL_CTX_set_verify, (void *ctx, int mode, void *cb))                                 \
    F(int, SSL_CTX_set_session_id_context, (void *ctx, const uint8_t *id, unsigned len))         \
    F(void, SSL_CTX_set_alpn_select_cb, (void *ctx, alpn_select cb, void *arg))                  \
    F(void, SSL_CTX_set_default_read_buffer_len, (void *ctx, size_t len))                        \
    F(void *, SSL_new, (void *ctx))                                                              \
    F(void, SSL_free, (void *ssl))                                                               \
    F(int, SSL_set_fd, (void *ssl, int fd))                                                      \
    F(int, SSL_accept, (void *ssl))                                                              \
    F(int, SSL_read, (void *ssl, void *to, int room))                                            \
    F(int, SSL_write, (void *ssl, const void *data, int len))                                    \
    F(int, SSL_shutdown, (void *ssl))                                                            \
    F(int, SSL_get_error, (const void *ssl, int code))                                           \
    F(long, SSL_get_verify_result, (const void *ssl))                                            \
    F(const char *, X509_verify_cert_error_string, (long code))                                  \
    F(unsigned long, ERR_get_error, (void))                                                      \
    F(void, ERR_clear_error, (void))                                                             \
    F(const char *, ERR_reason_error_string, (unsigned long code))

#define MEMBER(result, name, args) result (*name) args;
static struct {
    FUNCTIONS(MEMBER)
} lib;

#define NAMED(result, name, args) {#name, offsetof(__typeof__(lib), name)},
static const struct {
    const char *name;
    size_t at;
} named[] = {FUNCTIONS(NAMED)};

struct ps_tls {
    void *ctx;
};

struct ps_tls_link {
    void *ssl;
    bool open, more, wants_out;
};

/* ---- the library ---- */

static pthread_once_t loading = PTHREAD_ONCE_INIT;
static char missing[160] = "no OpenSSL was looked for"; /* empty: it is there */

/* It stays loaded: its own state of threads would outlive it. */
static void load_library(void) {
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(missing, sizeof missing, "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        void *found = dlsym(handle, named[i].name);
        if (found == NULL) {
            snprintf(missing, sizeof missing, "%s has no %s", LIBRARY, named[i].name);
            return;
        }
        memcpy((char *)&lib + named[i].at, &found, sizeof found);
    }
    missing[0] = '\0';
}

/* What went wrong last in this thread; a static text, or one of the thread. */
static const char *last_error(void) {
    unsigned long code = lib.ERR_get_error();
    const char *text = code != 0 ? lib.ERR_reason_error_string(code) : NULL;
    lib.ERR_clear_error();
    return text != NULL ? text : "an error that OpenSSL does not name";
}

/* ---- a server's context ---- */

/* arg: the password. */
static int give_password(char *to, int room, int writes, void *arg) {
    (void)writes;
    size_t len = strlen(arg);
    if (len > (size_t)room) return -1;
    memcpy(to, arg, len);
    return (int)len;
}

/* HTTP/2 for whoever offers it: clients of gRPC insist on the answer, those of remoting do not ask.
 */
static int select_h2(void *ssl, const uint8_t **out, uint8_t *out_len, const uint8_t *in,
                     unsigned in_len, void *arg) {
    (void)ssl, (void)arg;
    for (unsigned at = 0; at < in_len && at + 1 + in[at] <= in_len; at += 1 + in[at]) {
        if (in[at] != 2 || memcmp(in + at + 1, "h2", 2) != 0) continue;
        *out = in + at + 1;
        *out_len = 2;
        return ALPN_OK;
    }
    return ALPN_NONE;
}

static bool load_files(void *ctx, const ps_tls_conf *conf) {
    lib.SSL_CTX_set_default_passwd_cb(ctx, give_password);
    lib.SSL_CTX_set_default_passwd_cb_userdata(ctx, (void *)conf->password);
    bool fine = lib.SSL_CTX_use_certificate_chain_file(ctx, conf->cert) == 1 &&
                lib.SSL_CTX_use_PrivateKey_file(ctx, conf->key, FILE_PEM) == 1 &&
                lib.SSL_CTX_check_private_key(ctx) == 1;
    lib.SSL_CTX_set_default_passwd_cb_userdata(ctx, (void *)""); /* which may go */
    if (!fine || conf->verify == PS_TLS_NO_CLIENT) return fine;
    /* Without it a client that resumes its session is refused. */
    static const uint8_t id[] = "rocketmq";
    lib.SSL_CTX_set_session_id_context(ctx, id, sizeof id - 1);
    lib.SSL_CTX_set_verify(
        ctx, VERIFY_PEER | (conf->verify == PS_TLS_CLIENT_REQUIRED ? VERIFY_REQUIRED : 0), NULL);
    return (conf->trust != NULL ? lib.SSL_CTX_load_verify_locations(ctx, conf->trust, NULL)
                                : lib.SSL_CTX_set_default_verify_paths(ctx)) == 1;
}

static bool prepare_context(void *ctx, const ps_tls_conf *conf) {
    lib.SSL_CTX_set_options(ctx, OP_NO_RENEGOTIATION | OP_NO_COMPRESSION | OP_END_IS_END);
    lib.SSL_CTX_ctrl(ctx, CTRL_MODE,
                     MODE_PARTIAL_WRITE | MODE_MOVING_BUFFER | MODE_RELEASE_BUFFERS, NULL);
    lib.SSL_CTX_ctrl(ctx, CTRL_READ_AHEAD, 1, NULL);
    lib.SSL_CTX_ctrl(ctx, CTRL_CACHE_MODE, 0, NULL); /* tickets resume sessions, without room */
    lib.SSL_CTX_set_default_read_buffer_len(ctx, READ_AHEAD);
    lib.SSL_CTX_set_alpn_select_cb(ctx, select_h2, NULL);
    return lib.SSL_CTX_ctrl(ctx, CTRL_MIN_VERSION, TLS_1_2, NULL) == 1 &&
           (conf->ciphers == NULL || lib.SSL_CTX_set_cipher_list(ctx, conf->ciphers) == 1) &&
           load_files(ctx, conf);
}

int ps_tls_check(ps_error *e) {
    pthread_once(&loading, load_library);
    if (missing[0] == '\0') return 0;
    return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                   "TLS needs OpenSSL 3: install libssl3 (Debian, Ubuntu, Alpine) or openssl-libs"
                   " (Fedora, RHEL); %s", missing);
}

ps_tls *ps_tls_new(const ps_tls_conf *conf, ps_error *e) {
    if (ps_tls_check(e) < 0) return NULL;
    lib.ERR_clear_error();
    ps_tls *made = calloc(1, sizeof *made);
    if (made != NULL) made->ctx = lib.SSL_CTX_new(lib.TLS_server_method());
    if (made == NULL || made->ctx == NULL) {
        free(made);
        ps_no_memory(e, NULL, "no memory for TLS");
        return NULL;
    }
    if (prepare_context(made->ctx, conf)) return made;
    ps_fail(e, PS_E_ARGUMENT, 0, -1, conf->cert, "the certificate and its key cannot be used: %s",
            last_error());
    ps_tls_free(made);
    return NULL;
}

void ps_tls_free(ps_tls *tls) {
    if (tls == NULL) return;
    lib.SSL_CTX_free(tls->ctx); /* connections keep what they use of it */
    free(tls);
}

/* ---- a connection ---- */

ps_tls_link *ps_tls_begin(ps_tls *tls, int fd) {
    ps_tls_link *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    lib.ERR_clear_error();
    made->ssl = lib.SSL_new(tls->ctx);
    if (made->ssl != NULL && lib.SSL_set_fd(made->ssl, fd) == 1) return made;
    ps_tls_end(made);
    return NULL;
}

void ps_tls_end(ps_tls_link *t) {
    if (t == NULL) return;
    if (t->ssl != NULL) lib.SSL_free(t->ssl);
    free(t);
}

/* Whether it only waits for its peer; if not, *why is why it has ended, NULL: its peer did that. */
static bool only_waits(ps_tls_link *t, int code, const char **why) {
    int error = lib.SSL_get_error(t->ssl, code);
    *why = NULL;
    t->wants_out = error == ERROR_WANT_WRITE;
    if (error == ERROR_WANT_READ || error == ERROR_WANT_WRITE) return true;
    if (error == ERROR_SSL) *why = last_error();
    return false;
}

int ps_tls_shake(ps_tls_link *t, const char **why) {
    lib.ERR_clear_error();
    t->wants_out = false;
    int code = lib.SSL_accept(t->ssl);
    t->open = code == 1;
    if (t->open) return 1;
    if (only_waits(t, code, why)) return 0;
    long verified = lib.SSL_get_verify_result(t->ssl);
    if (*why != NULL && verified != VERIFY_OK)
        *why = lib.X509_verify_cert_error_string(verified);
    return -1;
}

int64_t ps_tls_read(ps_tls_link *t, uint8_t *to, int64_t room, const char **why) {
    int64_t len = 0;
    t->more = false;
    while (len < room) {
        int64_t left = room - len;
        lib.ERR_clear_error();
        int count = lib.SSL_read(t->ssl, to + len, left < WRITE_MAX ? (int)left : WRITE_MAX);
        if (count > 0) {
            len += count;
            continue;
        }
        bool waits = only_waits(t, count, why);
        t->wants_out = false; /* no handshake follows the first */
        /* What came before the end is served first; the next read finds the end again. */
        if (!waits && len == 0) return -1;
        t->more = !waits;
        return len;
    }
    t->more = true;
    return len;
}

int64_t ps_tls_write(ps_tls_link *t, const uint8_t *data, int64_t len) {
    int64_t done = 0;
    const char *why;
    while (done < len) {
        int64_t left = len - done;
        lib.ERR_clear_error();
        int count = lib.SSL_write(t->ssl, data + done, left < WRITE_MAX ? (int)left : WRITE_MAX);
        if (count > 0)
            done += count;
        else if (only_waits(t, count, &why))
            break;
        else
            return -1;
    }
    t->wants_out = false; /* the link knows that something is unsent */
    return done;
}

bool ps_tls_more(const ps_tls_link *t) {
    return t != NULL && t->more;
}

bool ps_tls_wants_out(const ps_tls_link *t) {
    return t != NULL && t->wants_out;
}

void ps_tls_finish(ps_tls_link *t) {
    if (t == NULL || !t->open) return;
    lib.ERR_clear_error();
    lib.SSL_shutdown(t->ssl);
    lib.ERR_clear_error();
}
