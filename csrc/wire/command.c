/* Frames and command headers: the format, decoding, encoding.
 *
 *   frame         offset  width
 *   total              0  4     bytes after this field
 *   kind               4  1     of the header: 0 JSON, 1 ROCKETMQ (binary)
 *   header length      5  3
 *   header             8  ..
 *   body              ..  the rest of total
 *
 *   binary header offset  width
 *   code               0  2     signed
 *   language           2  1     LanguageCode
 *   version            3  2     signed
 *   opaque             5  4
 *   flag               9  4
 *   remark length     13  4     0: no remark
 *   remark            17  ..
 *   ext length        ..  4     bytes of what follows
 *   ext fields        ..  name length 2, name, value length 4, value; length 0: no value
 *
 *   JSON header: one object; code, flag, opaque, version are numbers, language the name of it,
 *   remark a text, extFields an object of texts. Names in the order of the alphabet.
 *
 * All numbers are big-endian, all texts UTF-8: a frame whose texts are not is refused, as upstream
 * refuses those with a JSON header. Upstream, module remoting: RemotingCommand (decode,
 * headerEncode), RocketMQSerializable, NettyDecoder, LanguageCode. */
#include "wire/command.h"

#include <string.h>

#include "format/utf8.h"
#include "base/bytes.h"
#include "base/error.h"
#include "wire/json.h"

enum {
    AT_HEADER_WORD = 4,
    AT_HEADER = 8,
    AT_BINARY_LANGUAGE = 2,
    AT_BINARY_VERSION = 3,
    AT_BINARY_OPAQUE = 5,
    AT_BINARY_FLAG = 9,
    AT_BINARY_REMARK_LEN = 13,
    AT_BINARY_REMARK = 17,
    BINARY_MIN = 21,
    /* A JSON header without its texts: names, marks and numbers of eleven characters. */
    JSON_FRAME_MAX = 192,
    LANGUAGE_JAVA = 0,
    LANGUAGE_OTHER = 7,
    /* What its length has room for. The answer to a batch of 4 MiB may name 70,000 ids, and comes
     * when the messages are stored: it must not be refused. */
    HEADER_ENCODED_MAX = 0xFFFFFF,
};

#define NAME(text) {(const uint8_t *)(text), sizeof(text) - 1}
static const ps_slice LANGUAGES[] = {
    NAME("JAVA"),   NAME("CPP"),  NAME("DOTNET"), NAME("PYTHON"),  NAME("DELPHI"),
    NAME("ERLANG"), NAME("RUBY"), NAME("OTHER"),  NAME("HTTP"),    NAME("GO"),
    NAME("PHP"),    NAME("OMS"),  NAME("RUST"),   NAME("NODE_JS"),
};
#define LANGUAGE_COUNT ((int32_t)(sizeof LANGUAGES / sizeof *LANGUAGES))

ps_slice ps_command_field(const ps_command *command, const char *name) {
    ps_slice wanted = {(const uint8_t *)name, (int32_t)strlen(name)};
    for (int32_t i = command->field_count - 1; i >= 0; i--)
        if (ps_slice_same(command->fields[i].name, wanted)) return command->fields[i].value;
    return (ps_slice){NULL, 0};
}

/* A field without value: it is absent, and so are those of its name before it. */
static void fields_drop(ps_command *c, ps_slice name) {
    int32_t kept = 0;
    for (int32_t i = 0; i < c->field_count; i++)
        if (!ps_slice_same(c->fields[i].name, name)) c->fields[kept++] = c->fields[i];
    c->field_count = kept;
}

/* ---- decoding a JSON header ---- */

static bool json_fields(ps_json *j, ps_command *c) {
    int byte = ps_json_peek(j);
    ps_slice null;
    if (byte == 'n') return ps_json_scalar(j, &null);
    if (!ps_json_take(j, '{', "extFields is not an object")) return false;
    c->no_fields = 0;
    c->field_count = 0;
    if (ps_json_peek(j) == '}') {
        j->at++;
        return true;
    }
    for (;;) {
        /* Those of an extFields before this one count too: dropping costs a look at each. */
        if (++j->fields > PS_FIELDS_MAX) return ps_json_fail(j, "too many fields");
        ps_field *field = &c->fields[c->field_count];
        if (!ps_json_key(j, &field->name)) return false;
        if (ps_json_peek(j) == '"') { /* nearly always, so it has a fast path */
            j->at++;
            if (!ps_json_text(j, &field->value)) return false;
        } else if (!ps_json_scalar(j, &field->value)) {
            return false;
        }
        if (field->value.data == NULL)
            fields_drop(c, field->name);
        else
            c->field_count++;
        byte = ps_json_peek(j);
        if (byte != ',' && byte != '}') return ps_json_fail(j, "expected a comma");
        j->at++;
        if (byte == '}') return true;
    }
}

/* Names that upstream does not know are OTHER. */
static bool json_language(ps_json *j, int32_t *out) {
    if (ps_json_peek(j) != '"') {
        ps_slice null = {NULL, 0};
        *out = ps_json_peek(j) == 'n' ? *out : LANGUAGE_OTHER;
        return *out == LANGUAGE_OTHER ? ps_json_skip(j) : ps_json_scalar(j, &null);
    }
    ps_slice name;
    j->at++;
    if (!ps_json_text(j, &name)) return false;
    for (*out = 0; *out < LANGUAGE_COUNT; ++*out)
        if (ps_slice_same(LANGUAGES[*out], name)) return true;
    *out = LANGUAGE_OTHER;
    return true;
}

static bool json_remark(ps_json *j, ps_slice *out) {
    ps_slice text;
    if (!ps_json_scalar(j, &text)) return false;
    if (text.data != NULL) *out = text;
    return true;
}

/* The value of the member `key`. Members that are null count as not there. */
static bool json_member(ps_json *j, ps_slice key, ps_command *c) {
#define IS(text) (memcmp(key.data, text, sizeof(text) - 1) == 0)
    switch (key.len) {
    case 4:
        if (IS("code")) return ps_json_int32(j, &c->code);
        if (IS("flag")) return ps_json_int32(j, &c->flag);
        break;
    case 6:
        if (IS("opaque")) return ps_json_int32(j, &c->opaque);
        if (IS("remark")) return json_remark(j, &c->remark);
        break;
    case 7:
        if (IS("version")) return ps_json_int32(j, &c->version);
        break;
    case 8:
        if (IS("language")) return json_language(j, &c->language);
        break;
    case 9:
        if (IS("extFields")) return json_fields(j, c);
        break;
    }
#undef IS
    return ps_json_skip(j);
}

static bool json_header(ps_json *j, ps_command *c) {
    c->code = c->version = c->opaque = c->flag = 0;
    c->language = LANGUAGE_JAVA;
    c->remark = (ps_slice){NULL, 0};
    c->no_fields = 1;
    c->field_count = 0;
    if (!ps_json_take(j, '{', "the header is not an object")) return false;
    for (int byte = ps_json_peek(j) == '}' ? '}' : ','; byte != '}'; j->at++) {
        ps_slice key;
        if (!ps_json_key(j, &key) || !json_member(j, key, c)) return false;
        byte = ps_json_peek(j);
        if (byte != ',' && byte != '}') return ps_json_fail(j, "expected a comma");
        if (byte == '}') break;
    }
    j->at++;
    ps_json_peek(j);
    return j->at == j->end || ps_json_fail(j, "unexpected bytes after the header object");
}

/* ---- decoding a binary header ---- */

static bool is_ascii(const uint8_t *p, const uint8_t *end) {
    uint64_t seen = 0, eight;
    for (; end - p >= 8; p += 8) {
        memcpy(&eight, p, sizeof eight);
        seen |= eight;
    }
    for (; p < end; p++) seen |= *p;
    return (seen & 0x8080808080808080u) == 0;
}

/* The fields between p and end; what was wrong, or NULL. Where no byte is beyond ASCII, lengths
 * included, no text has to be looked at alone. */
static const char *binary_fields(const uint8_t *p, const uint8_t *end, ps_command *c) {
    bool plain = is_ascii(p, end);
    for (int32_t seen = 0; p < end; seen++) {
        if (seen == PS_FIELDS_MAX) return "too many fields";
        ps_field *field = &c->fields[c->field_count];
        if (end - p < 2) return "a field is truncated";
        ps_slice name = {p + 2, (int16_t)be16_get(p)};
        if (name.len < 0 || end - p - 6 < name.len) return "a name exceeds the header";
        p = name.data + name.len;
        ps_slice value = {p + 4, (int32_t)be32_get(p)};
        p += 4;
        if (value.len < 0 || end - p < value.len) return "a value exceeds the header";
        p += value.len;
        if (!plain && !(ps_utf8_valid(name.data, name.len) && ps_utf8_valid(value.data, value.len)))
            return "a string is not valid UTF-8";
        if (value.len == 0) {
            fields_drop(c, name);
        } else {
            *field = (ps_field){name, value};
            c->field_count++;
        }
    }
    return NULL;
}

static const char *binary_header(const uint8_t *p, int32_t len, ps_command *c) {
    if (len < BINARY_MIN) return "shorter than the fixed part";
    c->code = (int16_t)be16_get(p);
    c->language = p[AT_BINARY_LANGUAGE];
    c->version = (int16_t)be16_get(p + AT_BINARY_VERSION);
    c->opaque = (int32_t)be32_get(p + AT_BINARY_OPAQUE);
    c->flag = (int32_t)be32_get(p + AT_BINARY_FLAG);
    c->field_count = 0;
    int32_t remark_len = (int32_t)be32_get(p + AT_BINARY_REMARK_LEN);
    if (remark_len < 0 || remark_len > len - BINARY_MIN)
        return "the remark exceeds the header";
    const uint8_t *remark = p + AT_BINARY_REMARK, *end = p + len;
    c->remark = (ps_slice){remark_len > 0 ? remark : NULL, remark_len};
    if (!ps_utf8_valid(remark, remark_len)) return "the remark is not valid UTF-8";
    p = remark + remark_len;
    int32_t ext_len = (int32_t)be32_get(p);
    p += 4;
    if (ext_len < 0 || ext_len > end - p) return "the fields exceed the header";
    /* Upstream reads nothing after the fields either. */
    const char *why = binary_fields(p, p + ext_len, c);
    c->no_fields = c->field_count == 0;
    return why;
}

/* ---- frames ---- */

static int refuse_command(ps_error *error, const char *what, int64_t number) {
    return ps_fail(error, PS_E_FRAME, 0, -1, NULL, "%s: %lld", what, (long long)number);
}

int64_t ps_frame_size(const uint8_t *in, int64_t frame_max, ps_error *error) {
    int64_t total = (int32_t)be32_get(in);
    if (total < 4) return refuse_command(error, "invalid frame length", total);
    if (total + 4 > frame_max) return refuse_command(error, "frame too large, bytes", total + 4);
    return total + 4;
}

int64_t ps_command_decode(const uint8_t *in, int64_t avail, int64_t frame_max, uint8_t *scratch,
                          ps_command *out, int64_t *wanted, ps_error *error) {
    *wanted = 0;
    if (avail < 4) return 0;
    int64_t size = ps_frame_size(in, frame_max, error), total = size - 4;
    if (size < 0) return size;
    *wanted = size;
    if (avail < AT_HEADER) return 0;
    int32_t kind = in[AT_HEADER_WORD];
    int32_t len = (int32_t)(be32_get(in + AT_HEADER_WORD) & 0xFFFFFF);
    if (kind != PS_SERIALIZE_JSON && kind != PS_SERIALIZE_ROCKETMQ)
        return refuse_command(error, "unknown header encoding", kind);
    if (len > total - 4) return refuse_command(error, "header longer than its frame, bytes", len);
    if (len > PS_HEADER_MAX) return refuse_command(error, "header too large, bytes", len);
    if (avail < total + 4) return 0;

    const uint8_t *header = in + AT_HEADER;
    out->serialize = kind;
    out->body = (ps_slice){header + len, (int32_t)(total - 4 - len)};
    if (kind == PS_SERIALIZE_JSON) {
        ps_json j = {header, header + len, scratch, NULL, 0};
        if (!json_header(&j, out))
            return ps_fail(error, PS_E_FRAME, 0, -1, NULL,
                           "malformed JSON header near byte %lld: %s",
                           (long long)(j.at - header), j.why);
    } else {
        const char *why = binary_header(header, len, out);
        if (why != NULL) return ps_fail(error, PS_E_FRAME, 0, -1, NULL,
                                        "malformed binary header: %s", why);
    }
    return total + 4;
}

/* ---- encoding ---- */

static uint8_t *text_put(uint8_t *to, ps_slice text) {
    *to++ = '"';
    to = ps_json_write(to, text.data, text.len);
    *to++ = '"';
    return to;
}

static uint8_t *json_put(uint8_t *to, const ps_command *c) {
    bool known = c->language >= 0 && c->language < LANGUAGE_COUNT;
    to = ps_number_put(ps_text_put(to, "{\"code\":"), c->code);
    if (c->field_count > 0 || !c->no_fields) {
        to = ps_text_put(to, ",\"extFields\":{");
        bool first = true;
        for (int32_t i = 0; i < c->field_count; i++) {
            const ps_field *f = &c->fields[i];
            if (f->value.data == NULL) continue;
            if (!first) *to++ = ',';
            first = false;
            to = text_put(to, f->name);
            *to++ = ':';
            to = text_put(to, f->value);
        }
        *to++ = '}';
    }
    to = ps_number_put(ps_text_put(to, ",\"flag\":"), c->flag);
    to = ps_text_put(to, ",\"language\":");
    to = text_put(to, LANGUAGES[known ? c->language : LANGUAGE_OTHER]);
    to = ps_number_put(ps_text_put(to, ",\"opaque\":"), c->opaque);
    if (c->remark.data != NULL) to = text_put(ps_text_put(to, ",\"remark\":"), c->remark);
    to = ps_text_put(to, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    to = ps_number_put(to, c->version);
    *to++ = '}';
    return to;
}

/* Most texts are short: two copies of a fixed size that may overlap cost less than a call. */
static inline uint8_t *bytes_put(uint8_t *to, ps_slice text) {
    const uint8_t *from = text.data;
    int32_t len = text.len;
    if (len > 16) {
        memcpy(to, from, (size_t)len);
    } else if (len >= 8) {
        memcpy(to, from, 8);
        memcpy(to + len - 8, from + len - 8, 8);
    } else if (len >= 4) {
        memcpy(to, from, 4);
        memcpy(to + len - 4, from + len - 4, 4);
    } else if (len > 0) {
        to[0] = from[0];
        to[len / 2] = from[len / 2];
        to[len - 1] = from[len - 1];
    }
    return to + len;
}

static uint8_t *binary_put(uint8_t *to, const ps_command *c) {
    be16_put(to, (uint16_t)c->code);
    to[AT_BINARY_LANGUAGE] = (uint8_t)c->language;
    be16_put(to + AT_BINARY_VERSION, (uint16_t)c->version);
    be32_put(to + AT_BINARY_OPAQUE, (uint32_t)c->opaque);
    be32_put(to + AT_BINARY_FLAG, (uint32_t)c->flag);
    be32_put(to + AT_BINARY_REMARK_LEN, (uint32_t)c->remark.len);
    uint8_t *ext = bytes_put(to + AT_BINARY_REMARK, c->remark);
    to = ext + 4;
    for (int32_t i = 0; i < c->field_count; i++) {
        const ps_field *f = &c->fields[i];
        if (f->value.data == NULL) continue;
        be16_put(to, (uint16_t)f->name.len);
        to = bytes_put(to + 2, f->name);
        be32_put(to, (uint32_t)f->value.len);
        to = bytes_put(to + 4, f->value);
    }
    be32_put(ext, (uint32_t)(to - ext - 4));
    return to;
}

/* Why the command has no binary form, or NULL. */
static const char *binary_check(const ps_command *c) {
    if (c->code != (int16_t)c->code) return "the code does not fit into a binary header";
    if (c->version != (int16_t)c->version) return "the version does not fit into a binary header";
    if (c->language != (uint8_t)c->language)
        return "the language does not fit into a binary header";
    for (int32_t i = 0; i < c->field_count; i++)
        if (c->fields[i].name.len > INT16_MAX) return "a name is too long for a binary header";
    return NULL;
}

/* Bytes of the header: enough of them for any text of these lengths, or exactly so many. */
static int64_t header_size(const ps_command *c, bool exact) {
    bool json = c->serialize == PS_SERIALIZE_JSON;
    int64_t size = json ? JSON_FRAME_MAX : BINARY_MIN;
    if (!json) exact = false;
#define TEXT(s) (exact ? ps_json_measure((s).data, (s).len) : json ? 6 * (int64_t)(s).len : (s).len)
    if (c->remark.data != NULL) size += TEXT(c->remark);
    for (int32_t i = 0; i < c->field_count; i++) {
        if (c->fields[i].value.data == NULL) continue;
        size += 6 + TEXT(c->fields[i].name) + TEXT(c->fields[i].value);
    }
#undef TEXT
    return size;
}

int64_t ps_command_encode(const ps_command *command, int64_t body_len, uint8_t *out, int64_t room,
                          ps_error *error) {
    const ps_command *c = command;
    bool json = c->serialize == PS_SERIALIZE_JSON;
    if (!json && c->serialize != PS_SERIALIZE_ROCKETMQ)
        return refuse_command(error, "unknown header encoding", c->serialize);
    if (c->field_count < 0 || c->field_count > PS_FIELDS_MAX)
        return refuse_command(error, "a command has at most 256 fields, not", c->field_count);
    const char *why = json ? NULL : binary_check(c);
    if (why != NULL) return refuse_command(error, why, c->code);

    int64_t size = header_size(c, false);
    if (AT_HEADER + size > room || size > HEADER_ENCODED_MAX) {
        size = header_size(c, true);
        if (size > HEADER_ENCODED_MAX)
            return refuse_command(error, "header too large, bytes", size);
        if (AT_HEADER + size > room) return AT_HEADER + size;
    }
    uint8_t *header = out + AT_HEADER;
    int64_t len = (json ? json_put(header, c) : binary_put(header, c)) - header;
    if (body_len < 0 || body_len > INT32_MAX - 4 - len)
        return refuse_command(error, "body too large for a frame, bytes", body_len);
    be32_put(out, (uint32_t)(4 + len + body_len));
    be32_put(out + AT_HEADER_WORD, (uint32_t)c->serialize << 24 | (uint32_t)len);
    return AT_HEADER + len;
}
