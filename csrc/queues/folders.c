/* Finding the queues on the disk: consumequeue/TOPIC/QUEUE_ID/. Names that are not numbers, and
 * folders of topics that cannot be, are left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/record.h"
#include "queues/folders.h"

static int queue_id_of(const char *name) {
    char *end;
    long id = strtol(name, &end, 10);
    return *name < '0' || *name > '9' || *end != 0 || id > PS_QUEUE_ID_MAX ? -1 : (int)id;
}

static int adopt_size(ps_topics *tt, const char *folder, bool *adopted, ps_error *e) {
    ps_listing l;
    int code = ps_list_folder(tt->tt_shared.qs_io, folder, false, &l, e);
    if (code == 0 && l.count > 0 && !*adopted && tt->tt_shared.qs_adopt_sizes &&
        l.items[0].size > 0 && l.items[0].size % PS_UNIT == 0) {
        tt->tt_shared.qs_file_size = l.items[0].size;
        *adopted = true;
    }
    ps_listing_free(&l);
    return code;
}

static int load_topic(ps_topics *tt, const char *folder, const char *name, bool linear,
                      bool *adopted, ps_error *e) {
    char path[PATH_MAX];
    struct dirent *d;
    int code = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return errno == ENOTDIR || errno == ENOENT ? 0
                                                   : ps_fail(e, ps_errno_code(errno), errno, -1,
                                                             folder, "cannot list the directory");
    while (code == 0 && (d = readdir(dir)) != NULL) {
        int id = queue_id_of(d->d_name);
        ps_queue *q;
        if (id < 0) continue;
        ps_topic *t = ps_topic_get(tt, name, (int32_t)strlen(name));
        if (t == NULL || ps_topic_queue(t, id) != NULL) continue;
        snprintf(path, sizeof path, "%.*s/%.16s", PATH_MAX - 32, folder, d->d_name);
        code = adopt_size(tt, path, adopted, e);
        if (code == 0) code = ps_queue_open(&tt->tt_shared, t, t->tp_name, id, path, linear, &q, e);
        if (code == 0 && (code = ps_topic_queue_add_locked(t, q)) < 0) ps_queue_free(q);
    }
    closedir(dir);
    return code;
}

int ps_queues_load(ps_topics *tt, bool linear, ps_progress *progress, ps_error *e) {
    char root[PATH_MAX], path[PATH_MAX];
    struct dirent *d;
    bool adopted = false;
    int code = 0;
    snprintf(root, sizeof root, "%s/consumequeue", tt->tt_shared.qs_root);
    DIR *dir = opendir(root);
    if (dir == NULL) return 0;
    while (code == 0 && (d = readdir(dir)) != NULL) {
        if (d->d_name[0] == '.' || strlen(d->d_name) > PS_TOPIC_MAX) continue;
        if (progress != NULL && progress->stop)
            code = ps_fail(e, PS_E_INTERRUPTED, 0, -1, tt->tt_shared.qs_root,
                           "interrupted while opening queues");
        snprintf(path, sizeof path, "%.*s/%.255s", PATH_MAX - 300, root, d->d_name);
        if (code == 0) code = load_topic(tt, path, d->d_name, linear, &adopted, e);
    }
    closedir(dir);
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
