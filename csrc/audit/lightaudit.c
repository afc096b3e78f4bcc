/* Files of light queues: first by themselves, as far as they are sound, then each of their units
 * and each record of a segment against each other. Of a queue's list, the way back is checked; the
 * further leaps only as far as they lead back. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/lightaudit.h"
#include "base/bytes.h"
#include "base/grow.h"
#include "format/multi.h"
#include "light/light.h"

#define GROUP_MOST 64 /* units of one record that are compared one by one */

/* ---- names ---- */

static void light_path(const ps_audit *a, int64_t base, char path[PATH_MAX]) {
    if (base < 0)
        snprintf(path, PATH_MAX, "%s/" PS_LIGHT_FOLDER "/names", a->au_root);
    else
        snprintf(path, PATH_MAX, "%s/" PS_LIGHT_FOLDER "/%020" PRId64, a->au_root, base);
}

/* False: such an entry may not stand here. */
static bool take_name(au_lights *l, const uint8_t *p, int64_t len, int64_t at) {
    int64_t number = be32_get(p + 6);
    if (p[4] != LG_NAME_NEW && number < l->li_given) return true;
    if (p[4] == LG_NAME_NEXT || number < l->li_given || number == UINT32_MAX) return false;
    l->li_given = number + 1;
    if (p[4] != LG_NAME_NEW) return true;
    if (!PS_GROW(l->li_numbers, l->li_number_room, l->li_number_count + 1, 64)) return false;
    l->li_numbers[l->li_number_count++] = (au_light){.number = (uint32_t)number,
                                                     .name_at = at + LG_NAME_HEAD,
                                                     .len = (uint8_t)(len - LG_NAME_HEAD),
                                                     .last = -1};
    return true;
}

/* NULL: the number was left out, since its queue is gone. */
static au_light *find_light(const au_lights *l, uint32_t number) {
    uint32_t low = 0, high = l->li_number_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (l->li_numbers[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low < l->li_number_count && l->li_numbers[low].number == number ? &l->li_numbers[low]
                                                                           : NULL;
}

static int read_names(ps_audit *a, ps_findings *out, ps_error *e) {
    au_lights *l = &a->au_lights;
    char path[PATH_MAX];
    ps_window file;
    int64_t count, at = 0, len;
    light_path(a, -1, path);
    int code = ps_window_open(&file, a->au_io, path, e);
    if (code == PS_E_NOT_FOUND) return 0;
    if (code < 0) return code;
    const uint8_t *all = file.wd_size > 0 ? ps_window_get(&file, 0, file.wd_size, &count) : NULL;
    if (all != NULL && count > file.wd_size) count = file.wd_size;
    if (all != NULL && (l->li_names = malloc((size_t)count)) != NULL) {
        memcpy(l->li_names, all, (size_t)count);
        while ((len = lg_name_len(l->li_names + at, count - at)) > 0 &&
               take_name(l, l->li_names + at, len, at))
            at += len;
    }
    if (at < file.wd_size) au_find(out, PS_FIND_LIGHT_NAMES, at, file.wd_size, -1, -1, 0);
    ps_window_close(&file);
    return 0;
}

/* ---- slots ---- */

/* What is wrong with a slot by itself and after those before it: 0, or a LightFault. */
static int slot_fault(const ps_audit *a, const uint8_t *p, int64_t at, lg_slot *s) {
    const au_lights *l = &a->au_lights;
    bool head = at == l->li_first && at > 0;
    if (!lg_slot_get(p, s)) return AU_LIGHT_SUM;
    if (head && (s->kind != LG_MARK || s->physical >= a->au_conf.log_min)) return AU_LIGHT_HEAD;
    if (s->physical < l->li_covered) return AU_LIGHT_ORDER;
    if (s->physical > a->au_conf.log_end) return AU_LIGHT_BEYOND;
    if (s->kind == LG_MARK) return 0;
    if (s->physical + s->size > a->au_conf.log_end) return AU_LIGHT_BEYOND;
    if (s->number >= l->li_given) return AU_LIGHT_NO_NAME;
    return s->before >= at || s->jump > s->before ? AU_LIGHT_ORDER : 0;
}

static void find_units(ps_findings *out, int64_t at, int64_t physical, int fault) {
    ps_finding *open = out->count > 0 ? &out->items[out->count - 1] : NULL;
    if (open != NULL && open->kind == PS_FIND_LIGHT_UNITS && open->to_at == at &&
        open->value == fault) {
        open->to_at++;
        open->count++;
        return;
    }
    au_find(out, PS_FIND_LIGHT_UNITS, at, at + 1, 1, physical, fault);
}

/* A queue's units form one list, but where it began again, or an open could not see the one before:
 * its file was gone. */
static void check_list(ps_audit *a, const lg_slot *s, int64_t at, ps_findings *out) {
    au_lights *l = &a->au_lights;
    au_light *q = find_light(l, s->number);
    if (q == NULL) return;
    bool begins = s->before < 0 && (q->last < l->li_first || s->offset < q->next);
    bool gone = s->before >= 0 && s->before < l->li_first;
    if (s->before != q->last && !begins && !gone) find_units(out, at, s->physical, AU_LIGHT_LIST);
    q->last = at;
    q->next = s->offset + 1;
}

/* The slots of one file; false: the rest is not sound. */
static bool walk_file(ps_audit *a, ps_window *file, int64_t base, bool last, ps_findings *out) {
    au_lights *l = &a->au_lights;
    int64_t count, end = base + file->wd_size / PS_LIGHT_SLOT;
    int fault = 0;
    for (int64_t at = base; at < end && at < base + PS_LIGHT_FILE_SLOTS; at++) {
        lg_slot s;
        const uint8_t *p =
            ps_window_get(file, (at - base) * PS_LIGHT_SLOT, PS_LIGHT_SLOT, &count);
        fault = p == NULL || count < PS_LIGHT_SLOT ? AU_LIGHT_SUM : slot_fault(a, p, at, &s);
        if (fault != 0) break;
        if (s.kind == LG_UNIT) check_list(a, &s, at, out);
        l->li_units += s.kind == LG_UNIT;
        l->li_covered = s.physical;
        l->li_end = at + 1;
    }
    if (fault == 0 && file->wd_size % PS_LIGHT_SLOT != 0) fault = AU_LIGHT_SUM;
    if (fault == 0 && !last && l->li_end < base + PS_LIGHT_FILE_SLOTS) fault = AU_LIGHT_GAP;
    if (fault == AU_LIGHT_SUM && end == l->li_end) end++; /* a part of one */
    if (fault != 0)
        au_find(out, PS_FIND_LIGHT_DAMAGED, l->li_end, end > l->li_end ? end : l->li_end + 1,
                end - l->li_end, -1, fault);
    return fault == 0;
}

static int read_slots(ps_audit *a, const int64_t *bases, int32_t count, ps_findings *out,
                      ps_error *e) {
    au_lights *l = &a->au_lights;
    char path[PATH_MAX];
    ps_window file;
    for (; count > 0 && bases[0] % PS_LIGHT_FILE_SLOTS != 0; count--) bases++;
    l->li_first = l->li_end = count > 0 ? bases[0] : 0;
    for (int32_t i = 0; i < count; i++) {
        if (bases[i] % PS_LIGHT_FILE_SLOTS != 0) continue; /* no open looks at it */
        if (bases[i] != l->li_end) {
            au_find(out, PS_FIND_LIGHT_DAMAGED, l->li_end, bases[i], bases[i] - l->li_end, -1,
                    AU_LIGHT_GAP);
            return 0;
        }
        light_path(a, bases[i], path);
        int code = ps_window_open(&file, a->au_io, path, e);
        if (code == PS_E_NOT_FOUND) return 0; /* retention took it just now */
        if (code < 0) return code;
        bool sound = walk_file(a, &file, bases[i], i == count - 1, out);
        ps_window_close(&file);
        if (!sound) return 0;
    }
    return 0;
}

int ps_audit_light(ps_audit *a, const int64_t *bases, int32_t count, ps_audit_light_facts *facts,
                   ps_findings *out, ps_error *e) {
    au_lights *l = &a->au_lights;
    au_lights_free(l);
    int code = read_names(a, out, e);
    if (code == 0) code = read_slots(a, bases, count, out, e);
    l->li_on = code == 0;
    *facts = (ps_audit_light_facts){l->li_number_count, l->li_units, l->li_covered};
    return code;
}

/* ---- a segment ---- */

static bool read_slot(au_light_row *w, int64_t at, lg_slot *s) {
    int64_t base = at - at % PS_LIGHT_FILE_SLOTS, count;
    char path[PATH_MAX];
    if (at < w->lr_audit->au_lights.li_first || at >= w->lr_audit->au_lights.li_end) return false;
    if (!w->lr_open || w->lr_base != base) {
        if (w->lr_open) ps_window_close(&w->lr_file);
        light_path(w->lr_audit, base, path);
        w->lr_open = ps_window_open(&w->lr_file, w->lr_audit->au_io, path, NULL) == 0;
        w->lr_base = base;
    }
    const uint8_t *p = w->lr_open ? ps_window_get(&w->lr_file, (at - base) * PS_LIGHT_SLOT,
                                                  PS_LIGHT_SLOT, &count)
                                  : NULL;
    return p != NULL && count >= PS_LIGHT_SLOT && lg_slot_get(p, s);
}

void au_light_row_seek(au_light_row *w, ps_audit *a, int64_t physical) {
    *w = (au_light_row){.lr_audit = a};
    int64_t low = a->au_lights.li_first, high = a->au_lights.li_end;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        lg_slot s;
        if (!read_slot(w, mid, &s)) break; /* retention took it just now */
        if (s.physical < physical)
            low = mid + 1;
        else
            high = mid;
    }
    w->lr_at = low;
}

void au_light_row_skip(au_light_row *w, int64_t before, ps_findings *out) {
    lg_slot s;
    while (read_slot(w, w->lr_at, &s) && s.physical < before) {
        if (s.kind == LG_UNIT) find_units(out, w->lr_at, s.physical, AU_LIGHT_NO_RECORD);
        w->lr_at++;
    }
}

static bool names_queue(const au_lights *l, const lg_slot *s, const ps_record *as) {
    const au_light *q = find_light(l, s->number);
    return s->offset == as->queue_offset && s->size == as->size &&
           (q == NULL ||
            (q->len == as->topic_len &&
             memcmp(l->li_names + q->name_at, as->topic, (size_t)as->topic_len) == 0));
}

static void find_missing(ps_findings *out, const ps_record *as) {
    ps_finding *x = au_find_queue(out, PS_FIND_LIGHT_MISSING, as->topic, as->topic_len, -1,
                                  as->physical_offset, as->physical_offset + as->size,
                                  as->physical_offset, as->queue_offset);
    if (x != NULL) x->count = 1;
}

/* The units of one record, and the queues that it names. */
void au_light_row_record(au_light_row *w, const ps_record *r, ps_findings *out) {
    const au_lights *l = &w->lr_audit->au_lights;
    lg_slot found[GROUP_MOST];
    bool named[GROUP_MOST] = {0};
    int64_t first = w->lr_at;
    int32_t count = 0;
    ps_multi m;
    if (!l->li_on) return;
    au_light_row_skip(w, r->physical_offset, out);
    for (first = w->lr_at; count < GROUP_MOST && read_slot(w, w->lr_at, &found[count]) &&
                           found[count].physical == r->physical_offset;
         w->lr_at++)
        count++;
    bool lies_below = r->physical_offset < l->li_covered;
    if (ps_record_has_unit(r) && ps_multi_of(r, &m))
        while (ps_multi_next(&m)) {
            int32_t i = 0;
            while (i < count && (found[i].kind != LG_UNIT || !names_queue(l, &found[i], &m.mu_as)))
                i++;
            if (i < count)
                named[i] = true;
            else if (lies_below && count < GROUP_MOST)
                find_missing(out, &m.mu_as);
        }
    for (int32_t i = 0; i < count; i++)
        if (!named[i] && found[i].kind == LG_UNIT)
            find_units(out, first + i, found[i].physical, AU_LIGHT_NO_RECORD);
}

void au_light_row_close(au_light_row *w) {
    if (w->lr_open) ps_window_close(&w->lr_file);
    w->lr_open = false;
}
