/* Finding the queues on the disk: consumequeue/TOPIC/QUEUE_ID/. Names that are not numbers, and
 * folders of topics with invalid names, are left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/record.h"
#include "base/grow.h"
#include "base/report.h"
#include "queues/folders.h"

static int queue_id_of(const char *name) {
    char *end;
    long id = strtol(name, &end, 10);
    return *name < '0' || *name > '9' || *end != 0 || id > PS_QUEUE_ID_MAX ? -1 : (int)id;
}

#define SIZES_MAX 16 /* lengths of files that are told apart */

/* The folder of one queue, as found. */
typedef struct found_queue {
    ps_topic *topic;
    int id;
    ps_listing files;
} found_queue;

typedef struct found_queues {
    found_queue *items;
    int32_t count, room;
} found_queues;

static void found_free(found_queues *f) {
    for (int32_t i = 0; i < f->count; i++) ps_listing_free(&f->items[i].files);
    free(f->items);
}

static void folder_of(const ps_topics *tt, const found_queue *f, char *path, size_t room) {
    snprintf(path, room, "%s/consumequeue/%s/%d", tt->tt_shared.qs_root, f->topic->tp_name, f->id);
}

static int found_add(ps_topics *tt, found_queues *f, ps_topic *t, int id, ps_error *e) {
    char path[PATH_MAX];
    if (!PS_GROW(f->items, f->room, f->count + 1, 64))
        return ps_no_memory(e, NULL, "no memory for the list of queues");
    found_queue *q = &f->items[f->count];
    *q = (found_queue){.topic = t, .id = id};
    folder_of(tt, q, path, sizeof path);
    int code = ps_list_folder(tt->tt_shared.qs_io, path, !tt->tt_shared.qs_readonly, &q->files, e);
    if (code == 0) f->count++;
    return code;
}

static int list_topic(ps_topics *tt, const char *folder, const char *name, found_queues *f,
                      ps_error *e) {
    ps_io *io = tt->tt_shared.qs_io;
    struct dirent *d;
    int code = 0;
    DIR *dir = io->opendir(io, folder);
    if (dir == NULL)
        return errno == ENOTDIR || errno == ENOENT ? 0
                                                   : ps_fail(e, ps_errno_code(errno), errno, -1,
                                                             folder, "cannot list the directory");
    while (code == 0 && (d = io->readdir(io, dir)) != NULL) {
        int id = queue_id_of(d->d_name);
        if (id < 0) continue;
        ps_topic *t = ps_topic_get(tt, name, (int32_t)strlen(name));
        if (t == NULL) code = ps_no_memory(e, folder, "no memory for a topic");
        if (t != NULL && ps_topic_queue(t, id) == NULL) code = found_add(tt, f, t, id, e);
        errno = 0;
    }
    if (code == 0 && errno != 0) code = ps_list_failed(folder, e);
    io->closedir(io, dir);
    return code;
}

static int list_topics(ps_topics *tt, found_queues *f, ps_progress *progress, ps_error *e) {
    char root[PATH_MAX], path[PATH_MAX];
    ps_io *io = tt->tt_shared.qs_io;
    struct dirent *d;
    int code = 0;
    snprintf(root, sizeof root, "%s/consumequeue", tt->tt_shared.qs_root);
    DIR *dir = io->opendir(io, root);
    if (dir == NULL && errno == ENOENT) return 0;
    if (dir == NULL)
        return ps_fail(e, ps_errno_code(errno), errno, -1, root, "cannot list the directory");
    while (code == 0 && (d = io->readdir(io, dir)) != NULL) {
        if (d->d_name[0] == '.' || strlen(d->d_name) > PS_TOPIC_MAX) continue;
        if (progress != NULL && progress->stop)
            code = ps_fail(e, PS_E_INTERRUPTED, 0, -1, tt->tt_shared.qs_root,
                           "interrupted while opening queues");
        snprintf(path, sizeof path, "%.*s/%.255s", PATH_MAX - 300, root, d->d_name);
        if (code == 0) code = list_topic(tt, path, d->d_name, f, e);
        errno = 0;
    }
    if (code == 0 && errno != 0) code = ps_list_failed(root, e);
    io->closedir(io, dir);
    return code;
}

/* The length that most files have is the store's; a few others are leftovers of a crash. */
static void adopt_size(ps_topics *tt, const found_queues *f) {
    struct {
        int64_t size, files;
    } sizes[SIZES_MAX] = {{tt->tt_shared.qs_file_size, 0}};
    int32_t known = 1, best = 0;
    for (int32_t i = 0; i < f->count; i++) {
        for (int32_t k = 0; k < f->items[i].files.count; k++) {
            int64_t size = f->items[i].files.items[k].size;
            int32_t at = 0;
            if (size <= 0 || size % PS_UNIT != 0) continue;
            while (at < known && sizes[at].size != size) at++;
            if (at == SIZES_MAX) continue;
            if (at == known) sizes[known++].size = size;
            sizes[at].files++;
        }
    }
    for (int32_t i = 1; i < known; i++)
        if (sizes[i].files > sizes[best].files) best = i;
    tt->tt_shared.qs_file_size = sizes[best].size;
}

/* All folders are listed before the first queue is opened: the length of its files is then known
 * even for a queue that has none. */
int ps_queues_load(ps_topics *tt, bool deep, ps_report *r, ps_progress *progress, ps_error *e) {
    char path[PATH_MAX], what[300];
    found_queues found = {0};
    int code = list_topics(tt, &found, progress, e);
    if (code == 0 && tt->tt_shared.qs_adopt_sizes && atomic_load(&tt->tt_queue_count) == 0)
        adopt_size(tt, &found);
    for (int32_t i = 0; code == 0 && i < found.count; i++) {
        found_queue *f = &found.items[i];
        ps_queue *q;
        folder_of(tt, f, path, sizeof path);
        code = ps_queue_open(&tt->tt_shared, f->topic, f->topic->tp_name, f->id, path, &f->files,
                             deep, &q, e);
        /* Nobody knows what a crashed writer had synced. */
        if (code == 0) atomic_store(&q->cq_relisted, deep);
        if (code == 0 && (code = ps_topic_queue_add_locked(f->topic, q)) < 0) ps_queue_free(q);
        if (code < 0 || !q->cq_hole) continue;
        snprintf(what, sizeof what, "consumequeue/%s/%d", f->topic->tp_name, f->id);
        ps_report_add(r, PS_ACTION_SKIPPED, atomic_load(&q->cq_max), -1, -1, what,
                      "units are missing or unsound from this offset on");
    }
    found_free(&found);
    return code;
}

int ps_queues_refresh(ps_topics *tt, ps_error *e) {
    int code = 0;
    pthread_rwlock_wrlock(&tt->tt_shared.qs_lock);
    for (int32_t i = 0; i < atomic_load(&tt->tt_queue_count) && code == 0; i++)
        code = ps_queue_refresh_locked(tt->tt_queues[i], e);
    pthread_rwlock_unlock(&tt->tt_shared.qs_lock);
    return code;
}

/* ---- their entries on the disk ---- */

/* A topic that was deleted took its folders with it. */
static int sync_if_there(ps_io *io, const char *path, ps_error *e) {
    ps_error why = {0};
    int code = ps_sync_folder(io, path, &why);
    if (code < 0 && why.sys_errno == ENOENT) return 0;
    if (code < 0 && e != NULL) *e = why;
    return code;
}

static int sync_folders_of(ps_topics *tt, const ps_queue *q, ps_error *e) {
    char path[PATH_MAX];
    int topic = snprintf(path, sizeof path - 16, "%s/consumequeue/%s", tt->tt_shared.qs_root,
                         q->cq_name);
    snprintf(path + topic, sizeof path - (size_t)topic, "/%d", q->cq_id);
    int code = sync_if_there(tt->tt_shared.qs_io, path, e);
    path[topic] = 0;
    return code < 0 ? code : sync_if_there(tt->tt_shared.qs_io, path, e);
}

/* The whole file system, where many folders would take longer one by one. */
static int sync_all(ps_topics *tt, const char *root, ps_error *e) {
    ps_io *io = tt->tt_shared.qs_io;
    int fd = io->open(io, root, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, root,
                               "cannot open the directory");
    int code = ps_sync_disk(io, fd, root, e);
    io->close(io, fd);
    return code;
}

int ps_queues_sync_folders(ps_topics *tt, ps_error *e) {
    char root[PATH_MAX];
    ps_queue **queues;
    int32_t n = ps_queues_snapshot(tt, &queues), changed = 0;
    /* Those to be synced to the front: the mark goes first, so that what comes meanwhile sets it
     * again. */
    for (int32_t i = 0; i < n; i++)
        if (atomic_exchange(&queues[i]->cq_relisted, false)) queues[changed++] = queues[i];
    snprintf(root, sizeof root, "%s/consumequeue", tt->tt_shared.qs_root);
    int code = changed > PS_SYNC_ONE_BY_ONE ? sync_all(tt, root, e) : 0;
    for (int32_t i = 0; i < changed && changed <= PS_SYNC_ONE_BY_ONE && code == 0; i++)
        code = sync_folders_of(tt, queues[i], e);
    if (code == 0 && changed > 0) code = ps_sync_folder(tt->tt_shared.qs_io, root, e);
    for (int32_t i = 0; i < changed && code < 0; i++) atomic_store(&queues[i]->cq_relisted, true);
    free(queues);
    return code;
}
