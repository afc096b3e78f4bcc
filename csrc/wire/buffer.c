/* See buffer.h. */
#include "wire/buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/grow.h"

#define LEAST_ROOM 4096

uint8_t *ps_buffer_room(ps_buffer *b, int64_t more) {
    return PS_GROW(b->data, b->room, b->len + more, LEAST_ROOM) ? b->data + b->len : NULL;
}

bool ps_buffer_add(ps_buffer *b, const void *data, int64_t len) {
    uint8_t *to = len > 0 ? ps_buffer_room(b, len) : NULL;
    if (to == NULL) return len == 0;
    memcpy(to, data, (size_t)len);
    b->len += len;
    return true;
}

void ps_buffer_free(ps_buffer *b) {
    free(b->data);
    *b = (ps_buffer){0};
}

ps_slice ps_slice_of_number(int64_t value, char *to) {
    char *end = to + 24, *begin = ps_digits_before(end, value);
    return (ps_slice){(const uint8_t *)begin, (int32_t)(end - begin)};
}

ps_slice ps_slice_of(const char *text) {
    return (ps_slice){(const uint8_t *)text, (int32_t)strlen(text)};
}

bool ps_slice_is(ps_slice s, const char *text) {
    return s.data != NULL && (size_t)s.len == strlen(text) &&
           memcmp(s.data, text, (size_t)s.len) == 0;
}

bool ps_slice_number(ps_slice s, int64_t *out) {
    bool minus = s.len > 0 && s.data[0] == '-';
    int32_t i = minus ? 1 : 0;
    uint64_t value = 0, most = (uint64_t)INT64_MAX + (minus ? 1 : 0);
    if (s.data == NULL || i >= s.len || s.len > 20) return false;
    for (; i < s.len; i++) {
        uint32_t digit = (uint32_t)s.data[i] - '0';
        if (digit > 9 || value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *out = minus ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

bool ps_command_read(const ps_command *command, const ps_member *members, int32_t count) {
    for (int32_t i = 0; i < command->field_count; i++) {
        const ps_field *f = &command->fields[i];
        int32_t k = 0;
        while (k < count && !ps_slice_is(f->name, members[k].name)) k++;
        if (k == count) continue;
        if (members[k].text != NULL)
            *members[k].text = f->value;
        else if (f->value.len > 0 && !ps_slice_number(f->value, members[k].number))
            return false;
    }
    return true;
}

bool ps_slice_true(ps_slice s) {
    static const char word[] = "true";
    if (s.data == NULL || s.len != 4) return false;
    for (int i = 0; i < 4; i++)
        if ((s.data[i] | 0x20) != word[i]) return false;
    return true;
}
