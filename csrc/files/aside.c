/* Keeping aside what is taken away. See aside.h. */
#define _GNU_SOURCE
#include "files/aside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "files/mapfile.h"

#define MANIFEST "manifest.jsonl"
#define COPY_BYTES (1 << 20)
#define LINE_MAX_BYTES (2 * PATH_MAX)
#define FOLDER_TRIES 1000

void ps_aside_init(ps_aside *a, ps_io *io, const char *root) {
    memset(a, 0, sizeof *a);
    a->as_io = io;
    a->as_root = root;
}

/* A folder of its own for each run, named by the time in UTC. */
static int make_folder(ps_aside *a, ps_error *e) {
    char base[PATH_MAX];
    struct timespec now;
    struct tm t;
    if (a->as_folder[0] != 0) return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    snprintf(base, sizeof base, "%.*s/aside", PATH_MAX - 60, a->as_root);
    int code = ps_make_folders(a->as_io, base, true, e);
    for (int i = 0; code == 0 && i < FOLDER_TRIES; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%04d%02d%02dT%02d%02d%02d-%03d", base, t.tm_year + 1900,
                 t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, i);
        if (a->as_io->mkdir(a->as_io, path, a->as_io->folder_mode) == 0) {
            snprintf(a->as_folder, sizeof a->as_folder, "%.*s", PATH_MAX - 1, path);
            code = ps_sync_folder(a->as_io, base, e);
            return code == 0 ? ps_sync_folder(a->as_io, a->as_root, e) : code;
        }
        if (errno != EEXIST) break;
    }
    return code < 0 ? code
                    : ps_fail(e, ps_errno_code(errno), errno, -1, base,
                              "cannot make a folder for what is taken away");
}

/* Text as it stands between the quotes of JSON; what does not fit is left out. */
static void json_text(const char *text, char *out, size_t room) {
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p != 0 && n + 8 < room; p++) {
        if (*p == '"' || *p == '\\' || *p < 0x20)
            n += (size_t)snprintf(out + n, room - n, "\\u%04x", *p);
        else
            out[n++] = (char)*p;
    }
    out[n] = 0;
}

static int write_whole(ps_aside *a, const char *name, int64_t at, const void *bytes, int64_t len,
                       ps_error *e) {
    char path[PATH_MAX + 64];
    int code = 0;
    snprintf(path, sizeof path, "%s/%s", a->as_folder, name);
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
    int fd = a->as_io->open(a->as_io, path, flags, a->as_io->file_mode);
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot make the file");
    for (int64_t done = 0; done < len && code == 0;) {
        ssize_t n = a->as_io->pwrite(a->as_io, fd, (const uint8_t *)bytes + done,
                                     (size_t)(len - done), at + done);
        if (n <= 0)
            code = ps_fail(e, ps_errno_code(n < 0 ? errno : EIO), n < 0 ? errno : EIO, -1, path,
                           "cannot keep a copy of what is to be taken away");
        else
            done += n;
    }
    if (code == 0 && a->as_io->fsync(a->as_io, fd) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "cannot sync the copy");
    a->as_io->close(a->as_io, fd);
    return code;
}

/* One row, synced together with the folder. */
static int append_row(ps_aside *a, const char *file, int64_t at, int64_t len, const char *kept,
                      const char *why, ps_error *e) {
    char name[LINE_MAX_BYTES / 2], reason[512], line[LINE_MAX_BYTES];
    json_text(file, name, sizeof name);
    json_text(why, reason, sizeof reason);
    int n = snprintf(line, sizeof line,
                     "{\"file\": \"%s\", \"at\": %" PRId64 ", \"length\": %" PRId64
                     ", \"kept\": \"%s\", \"why\": \"%s\"}\n",
                     name, at, len, kept, reason);
    if (n < 0 || n >= (int)sizeof line)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, file, "the path is too long");
    int code = write_whole(a, MANIFEST, a->as_written, line, n, e);
    if (code == 0) a->as_written += n;
    return code < 0 ? code : ps_sync_folder(a->as_io, a->as_folder, e);
}

/* The path as the manifest has it. */
static const char *relative_path(const ps_aside *a, const char *file) {
    size_t n = strlen(a->as_root);
    return strncmp(file, a->as_root, n) == 0 && file[n] == '/' ? file + n + 1 : file;
}

int ps_aside_bytes(ps_aside *a, const char *file, int64_t at, const uint8_t *bytes, int64_t len,
                   const char *why, ps_error *e) {
    char kept[24];
    if (len <= 0) return 0;
    int code = make_folder(a, e);
    snprintf(kept, sizeof kept, "%04" PRId32, a->as_count + 1);
    if (code == 0) code = write_whole(a, kept, 0, bytes, len, e);
    if (code == 0) code = append_row(a, relative_path(a, file), at, len, kept, why, e);
    if (code == 0) a->as_count++;
    return code;
}

/* A file of another file system, to which a link leads, cannot be renamed to here. */
static int move_over(ps_aside *a, const char *file, const char *name, ps_error *e) {
    ps_io *io = a->as_io;
    uint8_t *part = malloc(COPY_BYTES);
    int code = 0, fd = io->open(io, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    int64_t at = 0;
    ssize_t n = 1;
    if (part == NULL)
        code = ps_no_memory(e, file, "no memory for a copy of the file");
    else if (fd < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, file, "cannot open the file");
    while (code == 0 && (n = io->pread(io, fd, part, COPY_BYTES, at)) > 0) {
        code = write_whole(a, name, at, part, n, e);
        at += n;
    }
    if (n < 0) code = ps_fail(e, ps_errno_code(errno), errno, at, file, "cannot read the file");
    if (fd >= 0) io->close(io, fd);
    free(part);
    if (code == 0 && io->unlink(io, file) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, file, "cannot delete the file");
    return code;
}

int ps_aside_move(ps_aside *a, const char *file, const char *why, ps_error *e) {
    char to[PATH_MAX + 64], kept[24];
    int code = make_folder(a, e);
    snprintf(kept, sizeof kept, "%04" PRId32, a->as_count + 1);
    snprintf(to, sizeof to, "%s/%s", a->as_folder, kept);
    /* The row first: a move that a crash interrupts is then known, and one that did not happen says
     * so by the missing file. */
    if (code == 0) code = append_row(a, relative_path(a, file), -1, -1, kept, why, e);
    if (code < 0) return code;
    a->as_count++;
    int renamed = a->as_io->rename(a->as_io, file, to);
    if (renamed < 0 && errno == EXDEV) {
        if ((code = move_over(a, file, kept, e)) < 0) return code;
    } else if (renamed < 0 && errno != ENOENT)
        return ps_fail(e, ps_errno_code(errno), errno, -1, file, "cannot move the file aside");
    return ps_sync_folder(a->as_io, a->as_folder, e);
}
