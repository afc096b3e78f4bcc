/* See replace.h. */
#define _GNU_SOURCE
#include "files/replace.h"

#include <errno.h>
#include <stdio.h>

#include "files/mapfile.h"

#define SUFFIX ".tmp"

int ps_path_in(char out[PATH_MAX], const char *folder, const char *name, ps_error *e) {
    int len = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    if (len < 0 || len >= PATH_MAX)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, folder, "the path is too long");
    return 0;
}

int ps_replace_file(ps_io *io, const char *folder, const char *name, const void *bytes, int64_t len,
                    ps_error *e) {
    char path[PATH_MAX], made[PATH_MAX + sizeof SUFFIX];
    int code = ps_path_in(path, folder, name, e);
    if (code < 0) return code;
    snprintf(made, sizeof made, "%s" SUFFIX, path);
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
    int fd = io->open(io, made, flags, io->file_mode);
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, made, "cannot create the file");
    if (ps_write_head(io, fd, bytes, (size_t)len) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, made, "cannot write the file");
    else if (io->fsync(io, fd) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, made, "cannot sync the file");
    io->close(io, fd);
    if (code == 0 && io->rename(io, made, path) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot rename the file");
    return code < 0 ? code : ps_sync_folder(io, folder, e);
}
