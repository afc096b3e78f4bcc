/* The checkpoint, abort and lock files of a store root. */
#define _GNU_SOURCE
#include "files/checkpoint.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/bytes.h"
#include "check.h"
#include "faulty_io.h"

static char *root;

static const char *at(const char *name) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void spill(const char *name, const void *bytes, size_t len) {
    FILE *f = fopen(at(name), "wb");
    if (f == NULL || fwrite(bytes, 1, len, f) != len || fclose(f) != 0)
        exit(2);
}

static int64_t slurp(const char *name, void *bytes, size_t room) {
    FILE *f = fopen(at(name), "rb");
    if (f == NULL)
        return -1;
    int64_t n = (int64_t)fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

static bool same(const ps_checkpoint *a, const ps_checkpoint *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static const ps_checkpoint ZERO;
static const ps_checkpoint SOME = {1700000000123, 1700000000100, 1699999999999, 1 << 20, 4096};

/* ---- checkpoint ---- */

static void checkpoint_is_written_as_upstream_reads_it(ps_io *io) {
    uint8_t bytes[PS_CHECKPOINT_SIZE + 1];
    ps_checkpoint got = SOME;
    ps_error e = {0};
    CHECK_EQ(0, ps_checkpoint_read(io, root, &got, &e)); /* missing */
    CHECK(same(&got, &ZERO));
    CHECK_EQ(0, ps_checkpoint_write(io, root, &SOME, &e));
    CHECK_EQ(PS_CHECKPOINT_SIZE, slurp("checkpoint", bytes, sizeof bytes));
    CHECK_EQ(1700000000123, be64_get(bytes));
    CHECK_EQ(1700000000100, be64_get(bytes + 8));
    CHECK_EQ(1699999999999, be64_get(bytes + 16));
    CHECK_EQ(1 << 20, be64_get(bytes + 24));
    CHECK_EQ(4096, be64_get(bytes + 32));
    for (int i = 40; i < PS_CHECKPOINT_SIZE; i++)
        if (!CHECK_EQ(0, bytes[i]))
            break;
    CHECK_EQ(0, ps_checkpoint_read(io, root, &got, &e));
    CHECK(same(&got, &SOME));
}

static void short_or_long_checkpoints_are_mended(ps_io *io) {
    uint8_t bytes[8192];
    ps_checkpoint got;
    ps_error e = {0};
    memset(bytes, 0x11, sizeof bytes);
    for (size_t len = 0; len < 40; len += 13) {
        spill("checkpoint", bytes, len);
        got = SOME;
        CHECK_EQ(0, ps_checkpoint_read(io, root, &got, &e));
        CHECK(same(&got, &ZERO));
    }
    spill("checkpoint", bytes, 40);
    CHECK_EQ(0, ps_checkpoint_read(io, root, &got, &e));
    CHECK_EQ(0x1111111111111111, got.confirm_phy_offset);
    for (size_t len = 0; len <= sizeof bytes; len += 2048) {
        spill("checkpoint", bytes, len);
        CHECK_EQ(0, ps_checkpoint_write(io, root, &SOME, &e));
        CHECK_EQ(PS_CHECKPOINT_SIZE, slurp("checkpoint", bytes, sizeof bytes));
        CHECK_EQ(0, ps_checkpoint_read(io, root, &got, &e));
        CHECK(same(&got, &SOME));
        memset(bytes, 0x11, sizeof bytes);
    }
}

/* Each call fails in turn: the old values stay or the new ones are there, and the error says
 * which. */
static void checkpoint_survives_each_fault(void) {
    const uint32_t all = (1u << PS_IO_CALLS) - 1;
    const ps_checkpoint next = {5, 4, 3, 2, 1};
    bool fault = true;
    CHECK_EQ(0, ps_checkpoint_write(ps_io_system(), root, &SOME, NULL));
    for (int n = 1; fault && n < 100; n++) {
        ps_io *io = ps_io_faulty_new();
        ps_checkpoint got;
        ps_error e = {0};
        CHECK_EQ(0, ps_checkpoint_write(ps_io_system(), root, &SOME, NULL));
        ps_io_faulty_set(io, all & ~(1u << PS_IO_CLOSE), n, EIO, 0);
        int code = ps_checkpoint_write(io, root, &next, &e);
        fault = code < 0;
        CHECK(code == 0 || (e.code == code && e.sys_errno == EIO));
        CHECK_EQ(0, ps_checkpoint_read(ps_io_system(), root, &got, NULL));
        CHECK(same(&got, code == 0 ? &next : &SOME) || (code < 0 && same(&got, &next)));
        ps_io_faulty_set(io, 1u << PS_IO_PREAD, 1, EIO, 0);
        CHECK_EQ(PS_E_IO, ps_checkpoint_read(io, root, &got, &e));
        ps_io_faulty_free(io);
        CHECK(n > 1 || fault);
    }
    CHECK(!fault);
}

static void missing_rights_are_named(void) {
    static const int errors[] = {EACCES, EPERM};
    for (int i = 0; i < 2; i++) {
        ps_io *io = ps_io_faulty_new();
        ps_checkpoint got;
        ps_error e = {0};
        int fd;
        ps_io_faulty_set(io, 1u << PS_IO_OPEN | 1u << PS_IO_UNLINK, 1, errors[i], 1);
        CHECK_EQ(PS_E_FORBIDDEN, ps_checkpoint_read(io, root, &got, &e));
        CHECK(strcmp(e.where, at("checkpoint")) == 0);
        CHECK_EQ(PS_E_FORBIDDEN, ps_checkpoint_write(io, root, &SOME, &e));
        CHECK_EQ(PS_E_FORBIDDEN, ps_abort_create(io, root, &e));
        CHECK_EQ(PS_E_FORBIDDEN, ps_abort_remove(io, root, &e));
        CHECK_EQ(PS_E_FORBIDDEN, ps_lock_take(io, root, &fd, &e));
        CHECK_EQ(-1, fd);
        CHECK(strcmp(e.where, at("lock")) == 0);
        ps_io_faulty_free(io);
    }
}

/* ---- abort ---- */

static void abort_file_names_the_process(ps_io *io) {
    char text[64], wanted[64];
    ps_error e = {0};
    CHECK_EQ(0, ps_abort_present(io, root));
    spill("abort.bak", "1234", 4);
    CHECK_EQ(0, ps_abort_present(io, root));
    spill("abort", "99999999999999999999", 20);
    CHECK_EQ(1, ps_abort_present(io, root));
    CHECK_EQ(0, ps_abort_create(io, root, &e));
    CHECK_EQ(1, ps_abort_present(io, root));
    snprintf(wanted, sizeof wanted, "%d", getpid());
    CHECK_EQ(strlen(wanted), slurp("abort", text, sizeof text));
    CHECK(memcmp(text, wanted, strlen(wanted)) == 0);
    CHECK_EQ(0, ps_abort_remove(io, root, &e));
    CHECK_EQ(0, ps_abort_present(io, root));
    CHECK_EQ(0, ps_abort_remove(io, root, &e));
}

static void abort_file_is_synced_with_its_folder(void) {
    ps_io *io = ps_io_faulty_new();
    ps_error e = {0};
    CHECK_EQ(0, ps_abort_create(io, root, &e));
    CHECK_EQ(2, ps_io_faulty_calls(io, 1u << PS_IO_FSYNC));
    CHECK_EQ(0, ps_abort_remove(io, root, &e));
    CHECK_EQ(3, ps_io_faulty_calls(io, 1u << PS_IO_FSYNC));
    ps_io_faulty_set(io, 1u << PS_IO_FSYNC, 1, EIO, 0);
    CHECK_EQ(PS_E_FLUSH_FAILED, ps_abort_create(io, root, &e));
    ps_io_faulty_set(io, 1u << PS_IO_PWRITE, 1, ENOSPC, 0);
    CHECK_EQ(PS_E_DISK_FULL, ps_abort_create(io, root, &e));
    ps_io_faulty_free(io);
    CHECK_EQ(0, ps_abort_remove(ps_io_system(), root, &e));
}

/* ---- lock ---- */

static void lock_meets_a_second_open_here(ps_io *io) {
    char text[8] = {0};
    ps_error e = {0};
    int fd, other;
    CHECK_EQ(0, ps_lock_holder(io, root)); /* no lock file */
    CHECK(access(at("lock"), F_OK) < 0);
    CHECK_EQ(0, ps_lock_take(io, root, &fd, &e));
    CHECK_EQ(4, slurp("lock", text, sizeof text)); /* closing this must not drop the lock */
    CHECK(strcmp(text, "lock") == 0);
    CHECK_EQ(PS_E_LOCKED, ps_lock_take(io, root, &other, &e));
    CHECK_EQ(-1, other);
    CHECK_EQ(0, e.pid);
    CHECK_EQ(-1, ps_lock_holder(io, root));
    CHECK_EQ(0, ps_abort_create(io, root, &e));
    CHECK_EQ(PS_E_LOCKED, ps_lock_take(io, root, &other, &e));
    CHECK_EQ(getpid(), e.pid);
    CHECK_EQ(getpid(), ps_lock_holder(io, root));
    CHECK_EQ(PS_E_LOCKED, ps_lock_take(io, root, &other, NULL));
    ps_lock_release(io, fd);
    CHECK_EQ(0, ps_lock_holder(io, root)); /* free, although abort names a process */
    spill("lock", "something", 9);
    CHECK_EQ(0, ps_lock_take(io, root, &fd, &e));
    ps_lock_release(io, fd);
    CHECK_EQ(9, slurp("lock", (char[16]){0}, 16)); /* only a new file is written to */
    CHECK_EQ(0, ps_abort_remove(io, root, &e));
    ps_lock_release(io, -1);
}

/* A child that takes the lock in its own way, says so, and waits to be killed. */
static pid_t holder(bool as_java, bool abort_too) {
    int ready[2];
    char c;
    if (pipe(ready) != 0)
        exit(2);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = -1;
        struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (as_java) {
            fd = open(at("lock"), O_RDWR | O_CREAT, 0644);
            c = fcntl(fd, F_SETLK, &fl) == 0 ? 'y' : 'n';
        } else {
            c = ps_lock_take(ps_io_system(), root, &fd, NULL) == 0 ? 'y' : 'n';
        }
        if (abort_too)
            ps_abort_create(ps_io_system(), root, NULL);
        if (write(ready[1], &c, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    CHECK(read(ready[0], &c, 1) == 1 && c == 'y');
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void end_of(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void lock_meets_other_processes(ps_io *io) {
    for (int kind = 0; kind < 3; kind++) {
        bool as_java = kind == 0, abort_too = kind == 1;
        ps_error e = {0};
        int fd;
        pid_t pid = holder(as_java, abort_too);
        int64_t known = as_java || abort_too ? pid : 0;
        CHECK_EQ(PS_E_LOCKED, ps_lock_take(io, root, &fd, &e));
        CHECK_EQ(known, e.pid);
        CHECK_EQ(known > 0 ? known : -1, ps_lock_holder(io, root));
        end_of(pid);
        CHECK_EQ(0, ps_lock_holder(io, root));
        CHECK_EQ(0, ps_lock_take(io, root, &fd, &e));
        /* The abort file of the dead one does not say who holds the lock now. */
        CHECK_EQ(-1, ps_lock_holder(io, root));
        ps_lock_release(io, fd);
        CHECK_EQ(0, ps_abort_remove(io, root, &e));
    }
}

/* Java, for its part, must not get past our lock. */
static void java_meets_our_lock(ps_io *io) {
    int fd, status;
    CHECK_EQ(0, ps_lock_take(io, root, &fd, NULL));
    pid_t pid = fork();
    if (pid == 0) {
        struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        int other = open(at("lock"), O_RDWR);
        _exit(fcntl(other, F_SETLK, &fl) < 0 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    CHECK_EQ(0, status);
    ps_lock_release(io, fd);
}

static void release_frees_what_a_child_still_has_open(ps_io *io) {
    int fd;
    ps_error e = {0};
    CHECK_EQ(0, ps_lock_take(io, root, &fd, &e));
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    ps_lock_release(io, fd);
    CHECK_EQ(0, ps_lock_holder(io, root));
    CHECK_EQ(0, ps_lock_take(io, root, &fd, &e));
    ps_lock_release(io, fd);
    end_of(pid);
}

static void hostile_abort_text_names_nobody(ps_io *io) {
    static const char *const texts[] = {
        "", "0", "-1", "abc", "12x", "4294967296", "99999999999999999999", " 1", "\0\0\0\0"};
    int fd;
    CHECK_EQ(0, ps_lock_take(io, root, &fd, NULL));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        spill("abort", texts[i], i == 8 ? 4 : strlen(texts[i]));
        CHECK_EQ(-1, ps_lock_holder(io, root));
    }
    ps_lock_release(io, fd);
    unlink(at("abort"));
}

int main(void) {
    check_begin();
    ps_io *io = ps_io_system();
    root = check_folder();
    checkpoint_is_written_as_upstream_reads_it(io);
    short_or_long_checkpoints_are_mended(io);
    checkpoint_survives_each_fault();
    missing_rights_are_named();
    abort_file_names_the_process(io);
    abort_file_is_synced_with_its_folder();
    lock_meets_a_second_open_here(io);
    lock_meets_other_processes(io);
    java_meets_our_lock(io);
    release_frees_what_a_child_still_has_open(io);
    hostile_abort_text_names_nobody(io);
    check_remove(root);
    free(root);
    return check_end("checkpoint");
}
