/* Between commands and their packed form; see packed.h. */
#include "wire/packed.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"

/* Appends a text and its NUL. These fit: in a header each text has more around it than one byte. */
static void text_add(ps_packed *out, int32_t *count, uint8_t *texts, ps_slice text) {
    memcpy(texts + out->text_len, text.data, (size_t)text.len);
    out->text_len += text.len;
    out->ends[(*count)++] = out->text_len;
    texts[out->text_len++] = 0;
}

int64_t ps_packed_decode(const uint8_t *in, int64_t avail, int64_t frame_max, uint8_t *scratch,
                         uint8_t *texts, ps_packed *out, ps_error *error) {
    ps_command c;
    int64_t wanted;
    int64_t size = ps_command_decode(in, avail, frame_max, scratch, &c, &wanted, error);
    if (size <= 0) return size;
    out->serialize = c.serialize;
    out->code = c.code;
    out->language = c.language;
    out->version = c.version;
    out->opaque = c.opaque;
    out->flag = c.flag;
    out->header_len = (int32_t)(size - 8 - c.body.len);
    out->has_remark = c.remark.data != NULL;
    out->field_count = c.field_count;
    out->text_len = 0;
    int32_t count = 0, nuls = 0;
    if (out->has_remark) text_add(out, &count, texts, c.remark);
    for (int32_t i = 0; i < c.field_count; i++) {
        text_add(out, &count, texts, c.fields[i].name);
        text_add(out, &count, texts, c.fields[i].value);
    }
    for (int32_t i = 0; i < out->text_len; i++) nuls += texts[i] == 0;
    out->nul = nuls != count;
    return size;
}

/* The next text, which begins at *at; false when there is none. */
static bool text_next(const ps_packed *packed, const uint8_t *texts, int32_t *at, int32_t *index,
                      ps_slice *out) {
    int32_t end, room = packed->text_len - *at;
    if (room <= 0) return false;
    if (packed->nul != 0) {
        end = packed->ends[*index];
    } else {
        const uint8_t *found = memchr(texts + *at, 0, (size_t)room);
        end = found == NULL ? -1 : (int32_t)(found - texts);
    }
    if (end < *at || end >= packed->text_len) return false;
    *out = (ps_slice){texts + *at, end - *at};
    *at = end + 1;
    ++*index;
    return true;
}

int64_t ps_packed_encode(const ps_packed *packed, const uint8_t *texts, int64_t body_len,
                         uint8_t *out, int64_t room, ps_error *error) {
    ps_command c;
    int32_t at = 0, index = 0, count = packed->field_count;
    if (count < 0 || count > PS_FIELDS_MAX)
        return ps_fail(error, PS_E_FRAME, 0, -1, NULL, "a command has at most %d fields, not %d",
                       PS_FIELDS_MAX, count);
    c.serialize = packed->serialize;
    c.code = packed->code;
    c.language = packed->language;
    c.version = packed->version;
    c.opaque = packed->opaque;
    c.flag = packed->flag;
    c.field_count = count;
    c.no_fields = 0;
    c.remark = (ps_slice){NULL, 0};
    bool whole = packed->has_remark == 0 || text_next(packed, texts, &at, &index, &c.remark);
    for (int32_t i = 0; whole && i < count; i++)
        whole = text_next(packed, texts, &at, &index, &c.fields[i].name) &&
                text_next(packed, texts, &at, &index, &c.fields[i].value);
    if (!whole || at != packed->text_len)
        return ps_fail(error, PS_E_ARGUMENT, 0, -1, NULL, "inconsistent lengths of packed strings");
    return ps_command_encode(&c, body_len, out, room, error);
}
