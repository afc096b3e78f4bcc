/* Finding the queues on the disk: consumequeue/TOPIC/QUEUE_ID/. Names that are no number, and
 * folders of topics that cannot be, are left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

static int queue_id_of(const char *name) {
    char *end;
    long id = strtol(name, &end, 10);
    return *name < '0' || *name > '9' || *end != 0 || id > PS_QUEUE_ID_MAX ? -1 : (int)id;
}

static int adopt_size(ps_store *s, const char *folder, bool *adopted, ps_error *e) {
    ps_listing l;
    int code = ps_list_folder(s->st_io, folder, false, &l, e);
    if (code == 0 && l.count > 0 && !*adopted && s->st_conf.adopt_sizes && l.items[0].size > 0 &&
        l.items[0].size % PS_UNIT == 0) {
        s->st_conf.consumequeue_file_size = l.items[0].size;
        *adopted = true;
    }
    ps_listing_free(&l);
    return code;
}

static int load_topic(ps_store *s, const char *folder, const char *name, bool linear, bool *adopted,
                      ps_error *e) {
    char path[PATH_MAX];
    struct dirent *d;
    int code = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return errno == ENOTDIR || errno == ENOENT
                   ? 0
                   : ps_fail(e, ps_errno_code(errno), errno, -1, folder,
                             "cannot list the directory");
    while (code == 0 && (d = readdir(dir)) != NULL) {
        int id = queue_id_of(d->d_name);
        ps_queue *q;
        if (id < 0) continue;
        ps_topic *t = ps_topic_get(s, name, (int32_t)strlen(name));
        if (t == NULL || ps_topic_queue(t, id) != NULL) continue;
        snprintf(path, sizeof path, "%.*s/%.16s", PATH_MAX - 32, folder, d->d_name);
        code = adopt_size(s, path, adopted, e);
        if (code == 0) code = ps_queue_open(s, t, id, path, linear, &q, e);
        if (code == 0 && (code = ps_topic_queue_add_locked(s, t, q)) < 0) ps_queue_free(q);
    }
    closedir(dir);
    return code;
}

int ps_queues_load(ps_store *s, bool linear, ps_report *r, ps_progress *progress, ps_error *e) {
    char root[PATH_MAX], path[PATH_MAX];
    struct dirent *d;
    bool adopted = false;
    int code = 0;
    (void)r;
    snprintf(root, sizeof root, "%s/consumequeue", s->st_root);
    DIR *dir = opendir(root);
    if (dir == NULL) return 0;
    while (code == 0 && (d = readdir(dir)) != NULL) {
        if (d->d_name[0] == '.' || strlen(d->d_name) > PS_TOPIC_MAX) continue;
        if (progress != NULL && progress->stop)
            code =
                ps_fail(e, PS_E_INTERRUPTED, 0, -1, s->st_root, "interrupted while opening queues");
        snprintf(path, sizeof path, "%.*s/%.255s", PATH_MAX - 300, root, d->d_name);
        if (code == 0) code = load_topic(s, path, d->d_name, linear, &adopted, e);
    }
    closedir(dir);
    return code;
}

int ps_queues_refresh(ps_store *s, ps_error *e) {
    int code = 0;
    pthread_rwlock_wrlock(&s->st_topic_lock);
    for (int32_t i = 0; i < atomic_load(&s->st_queue_count) && code == 0; i++)
        code = ps_queue_refresh_locked(s, s->st_queues[i], e);
    pthread_rwlock_unlock(&s->st_topic_lock);
    return code;
}
