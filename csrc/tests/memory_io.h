/* A file system in memory behind the table of io.h: for tests that open thousands of stores a
 * second. A file's bytes are one allocation that ends where the file does, so that a read past its
 * end is seen by the sanitizer; a mapping is those bytes. One thread; no permissions; links, pipes
 * and devices are tests of the real one. */
#ifndef PS_MEMORY_IO_H
#define PS_MEMORY_IO_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "files/io.h"

enum { MEMORY_FILES = 128, MEMORY_OPEN = 256, MEMORY_PATH = 160 };

typedef struct memory_bytes {
    int refs;     /* the file that has them, mappings, and what memory_keep() has kept */
    bool changed; /* since memory_restore(), maybe */
    int64_t size;
    uint8_t *data;
} memory_bytes;

typedef struct memory_file {
    char path[MEMORY_PATH]; /* empty: no file */
    uint32_t hash;          /* of the path */
    memory_bytes *bytes;    /* NULL: a folder */
    int opened;             /* descriptors; the place is not used again before they are closed */
} memory_file;

static memory_file memory_files[MEMORY_FILES];
static int memory_used; /* files from here on have never been made, or were cleared */
static int memory_opened[MEMORY_OPEN]; /* of descriptor n: number of the file, and one more */
static memory_bytes *memory_maps[MEMORY_OPEN];
static int memory_held; /* descriptors and mappings that there are */

static memory_bytes *memory_bytes_new(int64_t size) {
    memory_bytes *b = malloc(sizeof *b);
    *b = (memory_bytes){1, true, size, calloc(1, (size_t)size + (size == 0))};
    return b;
}

static void memory_bytes_drop(memory_bytes *b) {
    if (b == NULL || --b->refs > 0) return;
    free(b->data);
    free(b);
}

static uint32_t memory_hash(const char *path) {
    uint32_t hash = 1;
    while (*path != 0) hash = hash * 31 + (uint8_t)*path++;
    return hash;
}

static int memory_find(const char *path) {
    uint32_t hash = memory_hash(path);
    for (int i = 0; i < memory_used; i++)
        if (memory_files[i].hash == hash && strcmp(memory_files[i].path, path) == 0) return i;
    errno = ENOENT;
    return -1;
}

/* The name of file n; "": the file is gone, once its descriptors are closed. */
static void memory_name(int n, const char *path) {
    snprintf(memory_files[n].path, MEMORY_PATH, "%s", path);
    memory_files[n].hash = path[0] != 0 ? memory_hash(path) : 0;
}

static int memory_make(const char *path, memory_bytes *bytes) {
    for (int i = 0; i < MEMORY_FILES; i++) {
        if (memory_files[i].path[0] != 0 || memory_files[i].opened > 0) continue;
        if (strlen(path) >= MEMORY_PATH) break;
        memory_bytes_drop(memory_files[i].bytes);
        memory_name(i, path);
        memory_files[i].bytes = bytes;
        if (i >= memory_used) memory_used = i + 1;
        return i;
    }
    memory_bytes_drop(bytes);
    errno = ENOSPC;
    return -1;
}

/* The file of a descriptor. */
static memory_file *memory_of(int fd) {
    return &memory_files[memory_opened[fd] - 1];
}

static void memory_resize(memory_file *f, int64_t size) {
    memory_bytes *b = memory_bytes_new(size);
    memcpy(b->data, f->bytes->data, (size_t)(size < f->bytes->size ? size : f->bytes->size));
    memory_bytes_drop(f->bytes);
    f->bytes = b;
}

static int memory_open(ps_io *io, const char *path, int flags, mode_t mode) {
    int n = memory_find(path), fd = 1;
    (void)io, (void)mode;
    if (n >= 0 && (flags & O_EXCL) != 0) return errno = EEXIST, -1;
    if (n < 0 && (flags & O_CREAT) == 0) return -1;
    if (n < 0 && (n = memory_make(path, memory_bytes_new(0))) < 0) return -1;
    if ((flags & O_TRUNC) != 0) memory_resize(&memory_files[n], 0);
    while (fd < MEMORY_OPEN && memory_opened[fd] != 0) fd++;
    if (fd == MEMORY_OPEN) return errno = EMFILE, -1;
    memory_opened[fd] = n + 1;
    memory_files[n].opened++;
    memory_held++;
    return fd;
}

static int memory_close(ps_io *io, int fd) {
    (void)io;
    memory_of(fd)->opened--;
    memory_opened[fd] = 0;
    memory_held--;
    return 0;
}

static ssize_t memory_pread(ps_io *io, int fd, void *buf, size_t len, off_t at) {
    const memory_bytes *b = memory_of(fd)->bytes;
    (void)io;
    if (b == NULL) return errno = EISDIR, -1;
    if (at >= b->size) return 0;
    if ((int64_t)len > b->size - at) len = (size_t)(b->size - at);
    memcpy(buf, b->data + at, len);
    return (ssize_t)len;
}

static ssize_t memory_pwrite(ps_io *io, int fd, const void *buf, size_t len, off_t at) {
    memory_file *f = memory_of(fd);
    (void)io;
    if (f->bytes == NULL) return errno = EISDIR, -1;
    if (at + (int64_t)len > f->bytes->size) memory_resize(f, at + (int64_t)len);
    f->bytes->changed = true;
    memcpy(f->bytes->data + at, buf, len);
    return (ssize_t)len;
}

static int memory_sync(ps_io *io, int fd) {
    (void)io, (void)fd;
    return 0;
}

static int memory_ftruncate(ps_io *io, int fd, off_t len) {
    (void)io;
    if (len != memory_of(fd)->bytes->size) memory_resize(memory_of(fd), len);
    return 0;
}

static int memory_fallocate(ps_io *io, int fd, int mode, off_t at, off_t len) {
    (void)io, (void)fd, (void)mode, (void)at, (void)len;
    return 0;
}

static void *memory_mmap(ps_io *io, size_t len, int prot, int fd, off_t at) {
    memory_bytes *b = memory_of(fd)->bytes;
    int n = 0;
    (void)io, (void)at;
    while (n < MEMORY_OPEN && memory_maps[n] != NULL) n++;
    if (n == MEMORY_OPEN || b == NULL || (int64_t)len != b->size)
        return errno = ENOMEM, MAP_FAILED;
    memory_maps[n] = b;
    memory_held++;
    b->refs++;
    b->changed |= (prot & PROT_WRITE) != 0;
    return b->data;
}

static int memory_munmap(ps_io *io, void *addr, size_t len) {
    int n = 0;
    (void)io, (void)len;
    while (memory_maps[n] == NULL || memory_maps[n]->data != addr) n++;
    memory_bytes_drop(memory_maps[n]);
    memory_maps[n] = NULL;
    memory_held--;
    return 0;
}

static int memory_msync(ps_io *io, void *addr, size_t len) {
    (void)io, (void)addr, (void)len;
    return 0;
}

/* A folder takes along what is in it. */
static int memory_rename(ps_io *io, const char *from, const char *to) {
    size_t len = strlen(from);
    int n = memory_find(from), old = memory_find(to);
    (void)io;
    if (n < 0) return errno = ENOENT, -1;
    if (old >= 0) memory_name(old, "");
    for (int i = 0; i < memory_used; i++) {
        char path[2 * MEMORY_PATH];
        const char *rest = memory_files[i].path + len;
        if (strncmp(memory_files[i].path, from, len) != 0 || (*rest != 0 && *rest != '/')) continue;
        if (strlen(to) + strlen(rest) >= MEMORY_PATH) return errno = ENAMETOOLONG, -1;
        snprintf(path, sizeof path, "%s%s", to, rest);
        memory_name(i, path);
    }
    return 0;
}

static int memory_unlink(ps_io *io, const char *path) {
    int n = memory_find(path);
    (void)io;
    if (n >= 0) memory_name(n, "");
    return n < 0 ? -1 : 0;
}

static int memory_mkdir(ps_io *io, const char *path, mode_t mode) {
    (void)io, (void)mode;
    if (memory_find(path) >= 0) return errno = EEXIST, -1;
    return memory_make(path, NULL) < 0 ? -1 : 0;
}

static int memory_stat_of(const memory_file *f, struct stat *st) {
    *st = (struct stat){.st_mode = f->bytes != NULL ? S_IFREG | 0640 : S_IFDIR | 0750,
                        .st_size = f->bytes != NULL ? f->bytes->size : 0,
                        .st_ino = (ino_t)(f - memory_files) + 1};
    return 0;
}

static int memory_fstat(ps_io *io, int fd, struct stat *st) {
    (void)io;
    return memory_stat_of(memory_of(fd), st);
}

static int memory_stat(ps_io *io, const char *path, struct stat *st) {
    int n = memory_find(path);
    (void)io;
    return n < 0 ? -1 : memory_stat_of(&memory_files[n], st);
}

static int memory_statvfs(ps_io *io, const char *path, struct statvfs *st) {
    (void)io, (void)path;
    *st = (struct statvfs){.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 20,
                           .f_bfree = 1 << 20, .f_bavail = 1 << 20};
    return 0;
}

static int memory_access(ps_io *io, const char *path, int mode) {
    (void)io, (void)mode;
    return memory_find(path) < 0 ? -1 : 0;
}

/* No holes but the one at the end. */
static off_t memory_lseek(ps_io *io, int fd, off_t at, int whence) {
    const memory_bytes *b = memory_of(fd)->bytes;
    (void)io;
    if (b == NULL || at >= b->size) return errno = ENXIO, -1;
    return whence == SEEK_HOLE ? b->size : at;
}

typedef struct memory_folder {
    char path[MEMORY_PATH];
    int at;
    struct dirent entry;
} memory_folder;

static DIR *memory_opendir(ps_io *io, const char *path) {
    int n = memory_find(path);
    (void)io;
    if (n < 0) return NULL;
    if (memory_files[n].bytes != NULL) return errno = ENOTDIR, NULL;
    memory_folder *f = calloc(1, sizeof *f);
    snprintf(f->path, sizeof f->path, "%s", path);
    return (DIR *)(void *)f;
}

static struct dirent *memory_readdir(ps_io *io, DIR *folder) {
    memory_folder *f = (memory_folder *)(void *)folder;
    size_t len = strlen(f->path);
    (void)io;
    errno = 0;
    for (; f->at < memory_used; f->at++) {
        const char *path = memory_files[f->at].path;
        if (strncmp(path, f->path, len) != 0 || path[len] != '/') continue;
        if (strchr(path + len + 1, '/') != NULL) continue;
        snprintf(f->entry.d_name, sizeof f->entry.d_name, "%s", path + len + 1);
        f->entry.d_type = memory_files[f->at++].bytes != NULL ? DT_REG : DT_DIR;
        return &f->entry;
    }
    return NULL;
}

static int memory_closedir(ps_io *io, DIR *folder) {
    (void)io;
    free(folder);
    return 0;
}

static int memory_lock(ps_io *io, int fd, int command, struct flock *lock) {
    (void)io, (void)fd;
    if (command == F_GETLK) lock->l_type = F_UNLCK;
    return 0;
}

static int memory_flock(ps_io *io, int fd, int operation) {
    (void)io, (void)fd, (void)operation;
    return 0;
}

static int memory_advise(ps_io *io, int fd, off_t at, off_t len, int advice) {
    (void)io, (void)fd, (void)at, (void)len, (void)advice;
    return 0;
}

static ps_io memory_io = {
    .open = memory_open,
    .close = memory_close,
    .pread = memory_pread,
    .pwrite = memory_pwrite,
    .fsync = memory_sync,
    .fdatasync = memory_sync,
    .ftruncate = memory_ftruncate,
    .fallocate = memory_fallocate,
    .mmap = memory_mmap,
    .munmap = memory_munmap,
    .msync = memory_msync,
    .rename = memory_rename,
    .unlink = memory_unlink,
    .mkdir = memory_mkdir,
    .rmdir = memory_unlink,
    .fstat = memory_fstat,
    .statvfs = memory_statvfs,
    .stat = memory_stat,
    .lstat = memory_stat,
    .access = memory_access,
    .lseek = memory_lseek,
    .opendir = memory_opendir,
    .readdir = memory_readdir,
    .closedir = memory_closedir,
    .lock = memory_lock,
    .flock = memory_flock,
    .syncfs = memory_sync,
    .advise = memory_advise,
    .file_mode = PS_FILE_MODE,
    .folder_mode = PS_FOLDER_MODE(PS_FILE_MODE),
};

/* A file of these bytes; its folder is there. */
static void memory_put(const char *path, const uint8_t *data, int64_t len) {
    memory_bytes *b = memory_bytes_new(len);
    memcpy(b->data, data, (size_t)len);
    int n = memory_find(path);
    if (n >= 0) memory_name(n, "");
    memory_make(path, b);
}

/* ---- the same files again and again ---- */

typedef struct memory_kept {
    memory_file file;
    uint8_t *data; /* what its bytes were; NULL: a folder */
} memory_kept;

/* The files that there are, gaps left out, so that they can be had again; how many. */
static int memory_keep(memory_kept *kept, int room) {
    int count = 0;
    for (int i = 0; i < memory_used && count < room; i++) {
        memory_file f = memory_files[i];
        if (f.path[0] == 0) continue;
        kept[count] = (memory_kept){.file = f};
        if (f.bytes != NULL) {
            f.bytes->refs++;
            kept[count].data = malloc((size_t)f.bytes->size + 1);
            memcpy(kept[count].data, f.bytes->data, (size_t)f.bytes->size);
        }
        count++;
    }
    return count;
}

/* These files alone, as they were; nothing is open or mapped any more. What has not changed is left
 * as it is: a run over a store costs what it writes. */
static void memory_restore(const memory_kept *kept, int count) {
    int used = memory_used > count ? memory_used : count;
    for (int i = 0; i < used; i++) {
        memory_file *f = &memory_files[i];
        const memory_file *was = i < count ? &kept[i].file : &(memory_file){0};
        if (was->bytes != NULL && was->bytes->changed) {
            memcpy(was->bytes->data, kept[i].data, (size_t)was->bytes->size);
            was->bytes->changed = false;
        }
        if (was->bytes != NULL) was->bytes->refs++;
        memory_bytes_drop(f->bytes);
        *f = *was;
    }
    memory_used = count;
}

static void memory_forget(memory_kept *kept, int count) {
    memory_restore(NULL, 0);
    for (int i = 0; i < count; i++) {
        memory_bytes_drop(kept[i].file.bytes);
        free(kept[i].data);
    }
}

#endif
