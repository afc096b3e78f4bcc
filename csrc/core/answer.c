/* The frames of answers, and the records in them. */
#include "core/core.h"

int ps_core_frame(ps_core *c, const ps_command *command, int64_t body_len) {
    ps_buffer *out = &ps_mine(c)->ca_answer.an_out;
    int64_t room = 1024, size;
    for (;;) {
        uint8_t *to = ps_buffer_room(out, room + body_len);
        if (to == NULL) return PS_E_NO_MEMORY;
        size = ps_command_encode(command, body_len, to, out->room - out->len, NULL);
        if (size < 0) return (int)size;
        if (size <= out->room - out->len) break;
        room = size;
    }
    out->len += size;
    return 0;
}

int ps_core_answer(ps_core *c, ps_command *answer, int64_t body_len) {
    ps_mine(c)->ca_rpcs.rp_answered = answer->code;
    answer->flag = PS_FLAG_RESPONSE;
    answer->language = 0; /* JAVA: some tools know no other */
    answer->version = PS_PROTOCOL_VERSION;
    return ps_core_frame(c, answer, body_len);
}

int ps_core_append_records(ps_core *c, const ps_batch_info *b) {
    uint8_t *to = ps_buffer_room(&ps_mine(c)->ca_answer.an_out, b->bytes);
    if (to == NULL) return PS_E_NO_MEMORY;
    ps_batch_records(b, to);
    ps_mine(c)->ca_answer.an_out.len += b->bytes;
    return 0;
}
