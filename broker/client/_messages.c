/* Messages by hand: a batch from Message objects, the results of its answer, the messages of a
 * pull, and sends to a broker in this process.
 *
 * In Python a message of a batch costs four times what everything else of its send does. Messages
 * that have something unusual about them are left to broker/client/sending.py, which also says what
 * is wrong with them: encode then returns None.
 *
 * Interface: bind, encode, results, received, send_plain, send_prepared and the type Received;
 * broker/client/_messages.pyi has their types. The core is linked once, into pystore.native._core:
 * bind takes the address of its ps_conn_send. The limited API of CPython 3.11, as the core. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#include "format/property.h"
#include "wire/client.h"
#include "remoting/inprocess.h"

#define AT_ONCE 30000 /* ids.py: keys of one call have one time, and differ by 16 bits */
#define KEY_TAIL 4    /* digits of that number */
#define KEY_MAX 64
/* Of a message that send_plain takes: longer tags and keys are for sending.py. */
#define PLAIN_PROPERTIES_MAX 2048

static const char *const field_names[] = {"topic",      "body",  "tags",          "keys",
                                          "properties", "flag",  "delay_level",   "deliver_at_ms",
                                          "delay",      "wait_stored", "priority",
                                          "lite_topic"};
enum {
    TOPIC, BODY, TAGS, KEYS, PROPERTIES, FLAG, DELAY_LEVEL, DELIVER_AT, DELAY, WAIT, PRIORITY,
    LITE_TOPIC, FIELDS
};

typedef int send_function(ps_conn *, const uint8_t *, int64_t, int32_t, int32_t, int32_t, int64_t,
                          const uint8_t *, int32_t, const uint8_t *, int64_t, ps_signer *,
                          ps_answered *, ps_step *, ps_error *);

typedef struct module_state {
    PyObject *message; /* the class Message */
    PyObject *result;  /* the class SendResult, a named tuple */
    PyObject *pulled;  /* the class ReceivedMessage, a kind of Received */
    PyObject *stored;  /* SendStatus.SEND_OK */
    send_function *send; /* ps_conn_send */
    /* Its slots, and how each is read: looking a name up in the class would be half of the work. */
    PyObject *slots[FIELDS];
    descrgetfunc get;
} module_state;

/* ---- one message ---- */

/* A message of a batch. The texts belong to the objects, which are held. */
typedef struct item {
    PyObject *body, *tags, *keys; /* tags and keys: NULL where there are none */
    const char *tags_text, *keys_text;
    Py_ssize_t body_len, tags_len, keys_len, properties_len;
    int32_t flag;
} item;

static void item_release(item *i) {
    Py_CLEAR(i->body);
    Py_CLEAR(i->tags);
    Py_CLEAR(i->keys);
}

/* A text of the protocol's properties. False: not such a text; no error is set. */
static bool text_of(PyObject *value, const char **text, Py_ssize_t *len) {
    *text = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, len) : NULL;
    if (*text == NULL) {
        PyErr_Clear(); /* a lone surrogate */
        return false;
    }
    return memchr(*text, 1, (size_t)*len) == NULL && memchr(*text, 2, (size_t)*len) == NULL;
}

/* Takes a field that is None, an empty text or an empty tuple, or a text. */
static bool take_text(PyObject *value, PyObject **held, const char **text, Py_ssize_t *len) {
    *len = 0;
    if (value == Py_None || (PyTuple_CheckExact(value) && PyTuple_Size(value) == 0)) return true;
    if (!text_of(value, text, len)) return false;
    if (*len == 0) return true;
    Py_INCREF(value);
    *held = value;
    return true;
}

static bool take_body(PyObject *value, Py_ssize_t most, item *out) {
    if (!PyBytes_CheckExact(value)) return false;
    out->body_len = PyBytes_Size(value);
    if (out->body_len < 1 || out->body_len > most) return false;
    Py_INCREF(value);
    out->body = value;
    return true;
}

static bool is_zero(PyObject *value) {
    return PyLong_CheckExact(value) && PyLong_AsLong(value) == 0;
}

static bool take_flag(PyObject *value, int32_t *out) {
    int overflow = 0;
    if (!PyLong_CheckExact(value)) return false;
    long long flag = PyLong_AsLongLongAndOverflow(value, &overflow);
    *out = (int32_t)flag;
    return overflow == 0 && flag >= INT32_MIN && flag <= INT32_MAX;
}

/* Whether the value of a field is one of the usual ones; what is needed of it goes into *out. */
static bool take_field(int field, PyObject *value, PyObject *topic, Py_ssize_t body_max,
                       item *out) {
    switch (field) {
    case TOPIC:
        return value == topic ||
               (PyUnicode_CheckExact(value) && PyUnicode_Compare(value, topic) == 0);
    case BODY:
        return take_body(value, body_max, out);
    case TAGS:
        return take_text(value, &out->tags, &out->tags_text, &out->tags_len);
    case KEYS:
        return take_text(value, &out->keys, &out->keys_text, &out->keys_len);
    case PROPERTIES:
        return PyDict_CheckExact(value) && PyDict_Size(value) == 0;
    case FLAG:
        return take_flag(value, &out->flag);
    case DELAY_LEVEL:
        return is_zero(value);
    case WAIT:
        return value == Py_True;
    default:
        return value == Py_None;
    }
}

/* Whether it is a usual one. *out holds references in any case. */
static bool item_take(const module_state *m, PyObject *message, PyObject *topic,
                      Py_ssize_t body_max, item *out) {
    memset(out, 0, sizeof *out);
    if ((PyObject *)Py_TYPE(message) != m->message) return false;
    for (int field = 0; field < FIELDS; field++) {
        PyObject *value = m->get(m->slots[field], message, m->message);
        bool usual = value != NULL && take_field(field, value, topic, body_max, out);
        Py_XDECREF(value);
        if (usual) continue;
        PyErr_Clear(); /* of a slot that was deleted, or a number beyond 64 bits */
        return false;
    }
    return true;
}

/* ---- a batch ---- */

typedef struct batch {
    item *items;
    Py_ssize_t count;
    int64_t bytes; /* of all, encoded */
    const char *key_start; /* of all keys but for their last four digits */
    Py_ssize_t key_len;    /* with them */
} batch;

static void batch_release(batch *b) {
    for (Py_ssize_t i = 0; i < b->count; i++) item_release(&b->items[i]);
    PyMem_Free(b->items);
}

static Py_ssize_t property_len(const char *name, Py_ssize_t len) {
    return len > 0 ? (Py_ssize_t)strlen(name) + len + PS_PROPERTY_FIXED : 0;
}

static Py_ssize_t properties_len(const batch *b, const item *i) {
    return property_len("UNIQ_KEY", b->key_len) + property_len("WAIT", 4) +
           property_len("TAGS", i->tags_len) + property_len("KEYS", i->keys_len);
}

/* In the order of sending.properties_of. */
static void put_properties(uint8_t *to, const item *i, const char *key, Py_ssize_t key_len) {
    to = ps_property_put(to, "UNIQ_KEY", key, key_len);
    to = ps_property_put(to, "WAIT", "true", 4);
    if (i->tags_len > 0) to = ps_property_put(to, "TAGS", i->tags_text, i->tags_len);
    if (i->keys_len > 0) ps_property_put(to, "KEYS", i->keys_text, i->keys_len);
}

/* Takes the messages from `from` on, at most AT_ONCE. 1: done; 0: one of them is unusual; -1: an
 * error is set. */
static int batch_gather(const module_state *m, PyObject *messages, Py_ssize_t from,
                        Py_ssize_t body_max, batch *b) {
    Py_ssize_t count = PyList_Size(messages) - from;
    if (count < 1) return 0;
    if (count > AT_ONCE) count = AT_ONCE;
    PyObject *first = PyList_GetItem(messages, from);
    if ((PyObject *)Py_TYPE(first) != m->message) return 0;
    PyObject *topic = m->get(m->slots[TOPIC], first, m->message);
    if (topic == NULL) return -1;
    b->items = PyMem_Malloc((size_t)count * sizeof *b->items);
    bool usual = b->items != NULL && PyUnicode_CheckExact(topic);
    if (b->items == NULL) PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < count && usual; n++) {
        item *i = &b->items[n];
        usual = item_take(m, PyList_GetItem(messages, from + n), topic, body_max, i);
        i->properties_len = properties_len(b, i);
        usual = usual && i->properties_len <= PS_PROPERTIES_MAX;
        b->count = n + 1; /* also of one that is unusual: it may hold references */
        b->bytes += ps_batch_item_size(i->body_len, i->properties_len);
    }
    Py_DECREF(topic);
    return b->items == NULL ? -1 : usual;
}

/* One part of at most `most` bytes, or of one message, from number *from on, which is moved. */
static PyObject *part_write(const batch *b, Py_ssize_t *from, int64_t most, PyObject *numbers) {
    static const char digits[] = "0123456789ABCDEF";
    char key[KEY_MAX];
    int64_t bytes = 0;
    Py_ssize_t start = *from, end = start;
    for (; end < b->count; end++) {
        const item *i = &b->items[end];
        int64_t more = ps_batch_item_size(i->body_len, i->properties_len);
        if (end > start && bytes + more > most) break;
        bytes += more;
    }
    *from = end;
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    PyObject *keys = PyList_New(end - start), *made = NULL;
    uint8_t *to = body != NULL ? (uint8_t *)PyBytes_AsString(body) : NULL;
    bool good = body != NULL && keys != NULL;
    memcpy(key, b->key_start, (size_t)(b->key_len - KEY_TAIL));
    for (Py_ssize_t n = start; n < end && good; n++) {
        const item *i = &b->items[n];
        PyObject *number = PyIter_Next(numbers), *text = NULL;
        unsigned long value = number != NULL ? PyLong_AsUnsignedLongMask(number) : 0;
        Py_XDECREF(number);
        for (int d = 0; d < KEY_TAIL; d++) key[b->key_len - 1 - d] = digits[value >> (4 * d) & 15];
        if (number != NULL) text = PyUnicode_FromStringAndSize(key, b->key_len);
        good = text != NULL && PyList_SetItem(keys, n - start, text) == 0;
        if (!good) break;
        uint8_t *properties = ps_batch_item_put(to, i->flag, PyBytes_AsString(i->body),
                                                i->body_len, i->properties_len);
        put_properties(properties, i, key, b->key_len);
        to = properties + i->properties_len;
    }
    if (good) made = PyTuple_Pack(2, body, keys);
    Py_XDECREF(body);
    Py_XDECREF(keys);
    return made;
}

/* As few parts as `most` bytes each allow, and these about equal. */
static PyObject *batch_write(const batch *b, int64_t most, PyObject *numbers) {
    int64_t parts = most > 0 ? (b->bytes + most - 1) / most : b->count;
    int64_t each = (b->bytes + parts - 1) / parts;
    PyObject *made = PyList_New(0);
    for (Py_ssize_t from = 0; from < b->count && made != NULL;) {
        PyObject *part = part_write(b, &from, each, numbers);
        if (part == NULL || PyList_Append(made, part) < 0) Py_CLEAR(made);
        Py_XDECREF(part);
    }
    return made;
}

/* encode(messages, from, body_max, bytes_max, key_start, numbers): see the .pyi. */
static PyObject *encode(PyObject *module, PyObject *args) {
    const module_state *m = PyModule_GetState(module);
    PyObject *messages, *numbers, *made = NULL;
    Py_ssize_t from, body_max;
    long long most;
    batch b = {0};
    if (!PyArg_ParseTuple(args, "O!nnLs#O", &PyList_Type, &messages, &from, &body_max, &most,
                          &b.key_start, &b.key_len, &numbers))
        return NULL;
    b.key_len += KEY_TAIL;
    if (from < 0 || b.key_len > KEY_MAX || m->message == NULL)
        return PyErr_Format(PyExc_ValueError, "encode: from is negative, keys are too long, or bind"
                                              " was not called");
    int code = batch_gather(m, messages, from, body_max, &b);
    if (code == 1) made = batch_write(&b, most, numbers);
    batch_release(&b);
    if (code == 0) Py_RETURN_NONE;
    return made;
}

/* ---- results ---- */

/* One SendResult; steals id. */
static PyObject *result_make(PyTypeObject *type, PyObject *status, PyObject *key, PyObject *id,
                             PyObject *queue, long long offset, PyObject *transaction) {
    PyObject *place = PyLong_FromLongLong(offset), *made = NULL;
    if (id != NULL && place != NULL) made = PyType_GenericAlloc(type, 7);
    if (made == NULL) {
        Py_XDECREF(id);
        Py_XDECREF(place);
        return NULL;
    }
    PyObject *const values[] = {status, key, id, queue, place, transaction, Py_None};
    for (int i = 0; i < 7; i++) {
        if (values[i] != id && values[i] != place) Py_INCREF(values[i]);
        PyTuple_SetItem(made, i, values[i]);
    }
    return made;
}

/* results(status, keys, ids, queue, first): see the .pyi. */
static PyObject *results(PyObject *module, PyObject *args) {
    const module_state *m = PyModule_GetState(module);
    PyObject *status, *keys, *queue;
    const char *ids;
    Py_ssize_t ids_len;
    long long first;
    if (!PyArg_ParseTuple(args, "OO!s#OL", &status, &PyList_Type, &keys, &ids, &ids_len, &queue,
                          &first))
        return NULL;
    if (m->result == NULL) return PyErr_Format(PyExc_ValueError, "bind was not called");
    Py_ssize_t count = PyList_Size(keys), commas = 0;
    for (Py_ssize_t i = 0; i < ids_len; i++) commas += ids[i] == ',';
    bool each = commas + 1 == count; /* else one for all: the first */
    PyObject *made = PyList_New(count);
    const char *id = ids, *end = ids + ids_len;
    for (Py_ssize_t n = 0; n < count && made != NULL; n++) {
        const char *stop = memchr(id, ',', (size_t)(end - id));
        if (stop == NULL) stop = end;
        PyObject *row =
            result_make((PyTypeObject *)m->result, status, PyList_GetItem(keys, n),
                        PyUnicode_FromStringAndSize(id, stop - id), queue, first + n, Py_None);
        if (row == NULL)
            Py_CLEAR(made);
        else
            PyList_SetItem(made, n, row);
        if (each && stop < end) id = stop + 1;
    }
    return made;
}

/* ---- sends to a broker in this process ---- */

/* What both kinds of them have: the first arguments of send_plain and send_prepared. */
typedef struct direct {
    ps_conn *conn;
    ps_step *step;
    ps_signer *signer;
    const char *base;
    Py_ssize_t base_len;
    int32_t opaque;
    ps_answered answer;
} direct;

enum { DIRECT_ARGS = 4 };

static int direct_take(PyObject *const *args, direct *out) {
    char *base;
    if (!PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != 2) {
        PyErr_Format(PyExc_TypeError, "not the addresses of a connection and of a step");
        return -1;
    }
    out->conn = PyLong_AsVoidPtr(PyTuple_GetItem(args[0], 0));
    out->step = PyLong_AsVoidPtr(PyTuple_GetItem(args[0], 1));
    out->signer = PyLong_AsVoidPtr(args[1]);
    out->opaque = (int32_t)PyLong_AsLong(args[3]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &base, &out->base_len) < 0) return -1;
    out->base = base;
    if (out->conn != NULL && out->step != NULL) return 0;
    PyErr_Format(PyExc_ValueError, "no connection");
    return -1;
}

/* As ps_conn_send, but that whatever could not be done is 0. */
static int direct_send(const module_state *m, direct *d, int32_t sys_flag, int32_t flag,
                       int64_t born_ms, const char *properties, Py_ssize_t properties_len,
                       const char *body, Py_ssize_t body_len) {
    ps_error error;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = m->send(d->conn, (const uint8_t *)d->base, d->base_len, d->opaque, sys_flag, flag,
                   born_ms, (const uint8_t *)properties, (int32_t)properties_len,
                   (const uint8_t *)body, body_len, d->signer, &d->answer, d->step, &error);
    Py_END_ALLOW_THREADS;
    return code > 0;
}

/* A text of the answer. */
static PyObject *answer_text(const direct *d, int64_t at, int64_t len) {
    return PyUnicode_FromStringAndSize((const char *)d->step->out + at, (Py_ssize_t)len);
}

/* The queue that the answer names, mostly the one that was asked for: new reference. */
static PyObject *answer_queue(const direct *d, PyObject *queue) {
    if (!PyTuple_Check(queue) || PyTuple_Size(queue) != 3)
        return PyErr_Format(PyExc_TypeError, "not a MessageQueue");
    if (PyLong_AsLong(PyTuple_GetItem(queue, 2)) == d->answer.queue_id) {
        Py_INCREF(queue);
        return queue;
    }
    return PyObject_CallFunction((PyObject *)Py_TYPE(queue), "OOi", PyTuple_GetItem(queue, 0),
                                 PyTuple_GetItem(queue, 1), (int)d->answer.queue_id);
}

static PyObject *direct_result(const module_state *m, const direct *d, PyObject *key,
                               PyObject *queue) {
    const ps_answered *a = &d->answer;
    PyObject *where = answer_queue(d, queue), *made = NULL;
    PyObject *transaction = answer_text(d, a->tx_at, a->tx_len);
    if (where != NULL && transaction != NULL)
        made = result_make((PyTypeObject *)m->result, m->stored, key,
                           answer_text(d, a->ids_at, a->ids_len), where, a->queue_offset,
                           a->tx_len > 0 ? transaction : Py_None);
    Py_XDECREF(transaction);
    Py_XDECREF(where);
    return made;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* send_plain(at, signer, base, opaque, message, topic, body_max, key, queue): see the
 * .pyi. */
static PyObject *send_plain(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const module_state *m = PyModule_GetState(module);
    uint8_t properties[PLAIN_PROPERTIES_MAX];
    batch b = {0};
    direct d;
    item i;
    if (count != DIRECT_ARGS + 5 || m->send == NULL || !PyUnicode_CheckExact(args[5]))
        return PyErr_Format(PyExc_TypeError, "send_plain takes 9 arguments, after bind");
    Py_ssize_t body_max = PyLong_AsSsize_t(args[6]);
    b.key_start = PyUnicode_AsUTF8AndSize(args[7], &b.key_len);
    if (direct_take(args, &d) < 0 || b.key_start == NULL || PyErr_Occurred()) return NULL;
    bool usual = item_take(m, args[4], args[5], body_max, &i);
    Py_ssize_t len = properties_len(&b, &i);
    bool sent = usual && len <= (Py_ssize_t)sizeof properties;
    if (sent) {
        put_properties(properties, &i, b.key_start, b.key_len);
        sent = direct_send(m, &d, 0, i.flag, now_ms(), (const char *)properties, len,
                           PyBytes_AsString(i.body), i.body_len);
    }
    item_release(&i);
    if (!sent) Py_RETURN_NONE;
    if (!d.answer.sent || d.answer.code != 0) Py_RETURN_FALSE;
    return direct_result(m, &d, args[7], args[8]);
}

/* send_prepared(at, signer, base, opaque, sys_flag, flag, born_ms, properties, body): see
 * the .pyi. */
static PyObject *send_prepared(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const module_state *m = PyModule_GetState(module);
    char *properties, *body;
    Py_ssize_t properties_len, body_len;
    direct d;
    if (count != DIRECT_ARGS + 5 || m->send == NULL)
        return PyErr_Format(PyExc_TypeError, "send_prepared takes 9 arguments, after bind");
    long sys_flag = PyLong_AsLong(args[4]), flag = PyLong_AsLong(args[5]);
    long long born_ms = PyLong_AsLongLong(args[6]);
    if (direct_take(args, &d) < 0 || PyErr_Occurred() ||
        PyBytes_AsStringAndSize(args[7], &properties, &properties_len) < 0 ||
        PyBytes_AsStringAndSize(args[8], &body, &body_len) < 0)
        return NULL;
    if (properties_len > PS_PROPERTIES_MAX ||
        !direct_send(m, &d, (int32_t)sys_flag, (int32_t)flag, born_ms, properties, properties_len,
                     body, body_len))
        Py_RETURN_NONE;
    const ps_answered *a = &d.answer;
    if (!a->sent || a->code != 0) Py_RETURN_FALSE;
    PyObject *ids = answer_text(&d, a->ids_at, a->ids_len);
    PyObject *transaction = answer_text(&d, a->tx_at, a->tx_len), *made = NULL;
    if (ids != NULL && transaction != NULL)
        made = Py_BuildValue("(iiLOO)", (int)a->code, (int)a->queue_id, (long long)a->queue_offset,
                             ids, transaction);
    Py_XDECREF(ids);
    Py_XDECREF(transaction);
    return made;
}

/* ---- messages of a pull ---- */

typedef struct message {
    PyObject_HEAD
    PyObject *data, *rows, *progress;
    PyObject *head, *properties, *body; /* NULL until somebody asks, None to Python */
    Py_ssize_t index;
    long long queue_offset;
} message;

static PyObject *message_make(PyTypeObject *type, PyObject *data, PyObject *rows, Py_ssize_t index,
                              long long queue_offset, PyObject *progress) {
    message *m = (message *)PyType_GenericAlloc(type, 0);
    if (m == NULL) return NULL;
    Py_INCREF(data);
    Py_INCREF(rows);
    Py_INCREF(progress);
    m->data = data;
    m->rows = rows;
    m->progress = progress;
    m->index = index;
    m->queue_offset = queue_offset;
    return (PyObject *)m;
}

static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"data", "rows", "index", "queue_offset", "progress", NULL};
    PyObject *data, *rows, *progress;
    Py_ssize_t index;
    long long queue_offset;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOnLO", names, &data, &rows, &index,
                                     &queue_offset, &progress))
        return NULL;
    return message_make(type, data, rows, index, queue_offset, progress);
}

static int message_visit(PyObject *self, visitproc visit, void *arg) {
    message *m = (message *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(m->data);
    Py_VISIT(m->rows);
    Py_VISIT(m->progress);
    Py_VISIT(m->head);
    Py_VISIT(m->properties);
    Py_VISIT(m->body);
    return 0;
}

static int message_clear(PyObject *self) {
    message *m = (message *)self;
    Py_CLEAR(m->data);
    Py_CLEAR(m->rows);
    Py_CLEAR(m->progress);
    Py_CLEAR(m->head);
    Py_CLEAR(m->properties);
    Py_CLEAR(m->body);
    return 0;
}

static void message_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    message_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef message_members[] = {
    {"_data", T_OBJECT_EX, offsetof(message, data), READONLY, NULL},
    {"_rows", T_OBJECT_EX, offsetof(message, rows), READONLY, NULL},
    {"_index", T_PYSSIZET, offsetof(message, index), READONLY, NULL},
    {"_head", T_OBJECT, offsetof(message, head), 0, NULL},
    {"_properties", T_OBJECT, offsetof(message, properties), 0, NULL},
    {"_body", T_OBJECT, offsetof(message, body), 0, NULL},
    {"progress", T_OBJECT_EX, offsetof(message, progress), 0, NULL},
    {"queue_offset", T_LONGLONG, offsetof(message, queue_offset), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_new, message_new},         {Py_tp_dealloc, message_free},
    {Py_tp_traverse, message_visit},  {Py_tp_clear, message_clear},
    {Py_tp_members, message_members}, {0, NULL},
};

static PyType_Spec message_spec = {
    .name = "broker.client._messages.Received",
    .basicsize = sizeof(message),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = message_slots,
};

/* received(data, rows, progress): see the .pyi. */
static PyObject *received(PyObject *module, PyObject *args) {
    const module_state *m = PyModule_GetState(module);
    PyObject *data, *rows, *progress;
    if (!PyArg_ParseTuple(args, "OO!O", &data, &PyBytes_Type, &rows, &progress)) return NULL;
    if (m->pulled == NULL) return PyErr_Format(PyExc_ValueError, "bind was not called");
    Py_ssize_t count = PyBytes_Size(rows) / (Py_ssize_t)sizeof(ps_fields);
    const char *row = PyBytes_AsString(rows);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t i = 0; i < count && made != NULL; i++, row += sizeof(ps_fields)) {
        int64_t offset;
        memcpy(&offset, row + offsetof(ps_fields, queue_offset), sizeof offset);
        PyObject *one =
            message_make((PyTypeObject *)m->pulled, data, rows, i, offset, progress);
        if (one == NULL)
            Py_CLEAR(made);
        else
            PyList_SetItem(made, i, one);
    }
    return made;
}

/* ---- the module ---- */

static int module_visit(PyObject *module, visitproc visit, void *arg) {
    module_state *m = PyModule_GetState(module);
    Py_VISIT(m->message);
    Py_VISIT(m->result);
    Py_VISIT(m->pulled);
    Py_VISIT(m->stored);
    for (int i = 0; i < FIELDS; i++) Py_VISIT(m->slots[i]);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *m = PyModule_GetState(module);
    Py_CLEAR(m->message);
    Py_CLEAR(m->result);
    Py_CLEAR(m->pulled);
    Py_CLEAR(m->stored);
    for (int i = 0; i < FIELDS; i++) Py_CLEAR(m->slots[i]);
    return 0;
}

/* bind(Message, SendResult, ReceivedMessage, SEND_OK, address of ps_conn_send): once, before
 * anything else. */
static PyObject *bind(PyObject *module, PyObject *args) {
    module_state *m = PyModule_GetState(module);
    PyObject *message, *result, *pulled, *stored, *address;
    if (!PyArg_ParseTuple(args, "O!O!O!OO", &PyType_Type, &message, &PyType_Type, &result,
                          &PyType_Type, &pulled, &stored, &address))
        return NULL;
    send_function *send = (send_function *)PyLong_AsVoidPtr(address);
    if (send == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no address");
    PyObject *base = PyObject_GetAttrString(module, "Received");
    bool fits = base != NULL && PyType_IsSubtype((PyTypeObject *)result, &PyTuple_Type) &&
                PyType_IsSubtype((PyTypeObject *)pulled, (PyTypeObject *)base);
    Py_XDECREF(base);
    if (!fits) return PyErr_Format(PyExc_TypeError, "bind takes a tuple and a kind of Received");
    module_clear(module);
    for (int i = 0; i < FIELDS; i++) {
        m->slots[i] = PyObject_GetAttrString(message, field_names[i]);
        if (m->slots[i] == NULL) return NULL;
        if (Py_TYPE(m->slots[i]) != Py_TYPE(m->slots[0]) ||
            PyType_GetSlot(Py_TYPE(m->slots[i]), Py_tp_descr_get) == NULL)
            return PyErr_Format(PyExc_TypeError, "%s is not a slot", field_names[i]);
    }
    m->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(m->slots[0]), Py_tp_descr_get);
    Py_INCREF(message);
    Py_INCREF(result);
    Py_INCREF(pulled);
    Py_INCREF(stored);
    m->message = message;
    m->result = result;
    m->pulled = pulled;
    m->stored = stored;
    m->send = send;
    Py_RETURN_NONE;
}

static int module_make(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &message_spec, NULL);
    if (type == NULL) return -1;
    int rc = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return rc;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_make}, {0, NULL}};

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, NULL},
    {"encode", encode, METH_VARARGS, NULL},
    {"results", results, METH_VARARGS, NULL},
    {"received", received, METH_VARARGS, NULL},
    {"send_plain", (PyCFunction)(void (*)(void))send_plain, METH_FASTCALL, NULL},
    {"send_prepared", (PyCFunction)(void (*)(void))send_prepared, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "broker.client._messages",
    .m_doc = "Many messages at once; see broker/client/_messages.c.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_visit,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__messages(void) {
    return PyModuleDef_Init(&definition);
}
