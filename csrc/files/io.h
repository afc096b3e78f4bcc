/* Every system call that touches a file goes through this table, so that a test can make call
 * number n fail. Functions behave as their POSIX namesakes: -1 and errno on failure. */
#ifndef PS_IO_H
#define PS_IO_H

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

/* Unless storeFileMode says otherwise: messages are not for every user of the machine. */
#define PS_FILE_MODE 0640
/* Whoever reads the files may enter the folders. */
#define PS_FOLDER_MODE(file_mode) ((file_mode) | ((file_mode) & 0444) >> 2)

typedef struct ps_io ps_io;
struct ps_io {
    int (*open)(ps_io *io, const char *path, int flags, mode_t mode);
    int (*close)(ps_io *io, int fd);
    ssize_t (*pread)(ps_io *io, int fd, void *buf, size_t len, off_t at);
    ssize_t (*pwrite)(ps_io *io, int fd, const void *buf, size_t len, off_t at);
    int (*fsync)(ps_io *io, int fd);
    int (*fdatasync)(ps_io *io, int fd);
    int (*ftruncate)(ps_io *io, int fd, off_t len);
    int (*fallocate)(ps_io *io, int fd, int mode, off_t at, off_t len);
    /* MAP_SHARED; MAP_FAILED on failure */
    void *(*mmap)(ps_io *io, size_t len, int prot, int fd, off_t at);
    int (*munmap)(ps_io *io, void *addr, size_t len);
    int (*msync)(ps_io *io, void *addr, size_t len); /* MS_SYNC */
    int (*rename)(ps_io *io, const char *from, const char *to);
    int (*unlink)(ps_io *io, const char *path);
    int (*mkdir)(ps_io *io, const char *path, mode_t mode);
    int (*rmdir)(ps_io *io, const char *path);
    int (*fstat)(ps_io *io, int fd, struct stat *st);
    int (*statvfs)(ps_io *io, const char *path, struct statvfs *st);
    int (*stat)(ps_io *io, const char *path, struct stat *st);  /* of what a link leads to */
    int (*lstat)(ps_io *io, const char *path, struct stat *st); /* of the link itself */
    int (*access)(ps_io *io, const char *path, int mode);
    off_t (*lseek)(ps_io *io, int fd, off_t at, int whence);
    DIR *(*opendir)(ps_io *io, const char *path);
    /* NULL at the end with errno 0, or on failure with errno set */
    struct dirent *(*readdir)(ps_io *io, DIR *folder);
    int (*closedir)(ps_io *io, DIR *folder);
    int (*lock)(ps_io *io, int fd, int command, struct flock *lock); /* fcntl of a lock */
    int (*flock)(ps_io *io, int fd, int operation);
    int (*syncfs)(ps_io *io, int fd);
    /* posix_fadvise, which returns its errno */
    int (*advise)(ps_io *io, int fd, off_t at, off_t len, int advice);
    /* of every file and folder that is made; the umask may take more away */
    mode_t file_mode, folder_mode;
};

/* The operating system's own calls, and PS_FILE_MODE. One constant table; nothing to free. */
ps_io *ps_io_system(void);
/* The same with another mode, which is 0600 and any of 0066. As constant: mapped files outlive
 * their store, and use it until the last view of them goes. */
ps_io *ps_io_system_of(mode_t file_mode);

/* Up to len bytes from the start of a file: how many, or -1 and errno. */
ssize_t ps_read_head(ps_io *io, int fd, void *buf, size_t len);
/* All of them to the start of a file: 0, or -1 and errno. */
int ps_write_head(ps_io *io, int fd, const void *bytes, size_t len);

#endif
