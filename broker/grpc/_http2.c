/* csrc/http2 and csrc/messaging as Python sees them. What each call costs is counted in
 * microseconds, which is why it is written by hand.
 *
 * Interface: the type Service, for network threads; the type Sends for plain sends, the type
 * Deliveries for messages that are handed out, count_fields for any request. What they do says
 * broker/grpc/_http2.pyi. The limited API of CPython 3.11, as the core. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "messaging/delivery.h"
#include "http2/http2.h"
#include "messaging/message.h"
#include "messaging/proto.h"

/* ---- sets of names ---- */

/* names: of bytes, which the set points into. A tuple that keeps them, NULL: with an error. */
static PyObject *names_take(ps_h2_names *all, PyObject *names) {
    Py_ssize_t count = PyTuple_Size(names);
    PyObject *kept = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count && kept != NULL; i++) {
        char *name;
        Py_ssize_t len;
        PyObject *bytes = PyTuple_GetItem(names, i);
        if (PyBytes_AsStringAndSize(bytes, &name, &len) < 0) {
            Py_CLEAR(kept);
        } else if (!ps_h2_names_add(all, name, len)) {
            PyErr_Format(PyExc_ValueError, "at most %d names fit", PS_H2_NAMES_MAX);
            Py_CLEAR(kept);
        } else {
            Py_INCREF(bytes);
            PyTuple_SetItem(kept, i, bytes);
        }
    }
    return kept;
}

/* ---- Service: what all connections have in common ---- */

typedef struct service {
    PyObject_HEAD
    PyObject *paths; /* a tuple of bytes, which the methods point into */
    PyObject *headers; /* the same of `kept` */
    ps_h2_conf conf;
    ps_h2_method *methods;
    ps_h2_times *times;
    ps_h2_names kept;
} service;

static int service_methods(service *s, PyObject *given) {
    Py_ssize_t count = PyTuple_Size(given);
    s->paths = PyTuple_New(count);
    s->methods = PyMem_Calloc((size_t)count + 1, sizeof *s->methods);
    s->times = PyMem_Calloc((size_t)count + 1, sizeof *s->times);
    if (s->paths == NULL || s->methods == NULL || s->times == NULL) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *path;
        if (!PyArg_ParseTuple(PyTuple_GetItem(given, i),
                              "Sp;a method is a path, and whether requests stream", &path,
                              &s->methods[i].streams_in))
            return -1;
        Py_INCREF(path);
        PyTuple_SetItem(s->paths, i, path);
        s->methods[i].path = PyBytes_AsString(path);
    }
    s->conf.methods = s->methods;
    s->conf.times = s->times;
    s->conf.method_count = (int32_t)count;
    return 0;
}

static PyObject *service_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"methods", "streams_max", "headers_max", "message_max", "ask_from",
                            "held_max", "headers", NULL};
    PyObject *methods, *kept;
    int streams, headers;
    long long message, ask, held;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!iiLLLO!", names, &PyTuple_Type, &methods,
                                     &streams, &headers, &message, &ask, &held, &PyTuple_Type,
                                     &kept))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    service *s = (service *)alloc(type, 0);
    if (s == NULL) return NULL;
    s->conf = (ps_h2_conf){.streams_max = streams, .headers_max = headers,
                           .message_max = message, .ask_from = ask, .held_max = held,
                           .headers = &s->kept};
    s->headers = names_take(&s->kept, kept);
    if (s->headers == NULL || service_methods(s, methods) < 0) Py_CLEAR(s);
    return (PyObject *)s;
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void service_dealloc(PyObject *self) {
    service *s = (service *)self;
    Py_CLEAR(s->paths);
    Py_CLEAR(s->headers);
    PyMem_Free(s->methods);
    PyMem_Free(s->times);
    free_object(self);
}

/* times() -> of each method, counts by bucket and the seconds in all. */
static PyObject *service_times(PyObject *self, PyObject *nothing) {
    (void)nothing;
    service *s = (service *)self;
    PyObject *made = PyList_New(0);
    for (int32_t i = 0; i < s->conf.method_count && made != NULL; i++) {
        ps_h2_times *t = &s->times[i];
        PyObject *counts = PyList_New(0), *one = NULL;
        for (int32_t k = 0; k < PS_H2_BUCKETS && counts != NULL; k++) {
            int64_t calls = __atomic_load_n(&t->buckets[k], __ATOMIC_RELAXED);
            PyObject *count = PyLong_FromLongLong(calls);
            if (count == NULL || PyList_Append(counts, count) < 0) Py_CLEAR(counts);
            Py_XDECREF(count);
        }
        double sum_s = (double)__atomic_load_n(&t->sum_ns, __ATOMIC_RELAXED) / 1e9;
        if (counts != NULL) one = Py_BuildValue("(Nd)", counts, sum_s);
        if (one == NULL || PyList_Append(made, one) < 0) Py_CLEAR(made);
        Py_XDECREF(one);
    }
    return made;
}

typedef struct module_state {
    PyTypeObject *service, *sends, *deliveries;
} module_state;

/* ---- plain messages ---- */

typedef struct sends {
    PyObject_HEAD
    PyObject *names; /* which limits.reserved points into */
    ps_h2_limits limits;
} sends;

static PyObject *sends_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"reserved", "body_min", "body_max", "texts_max", "user_max",
                            "group_max", "lite_max", "recovery_max_s", "delay_max_ms", NULL};
    PyObject *reserved;
    long long least, body, texts, recovery, delay;
    int user, group, lite;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!LLLiiiLL", names, &PyTuple_Type, &reserved,
                                     &least, &body, &texts, &user, &group, &lite,
                                     &recovery, &delay))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    sends *s = (sends *)alloc(type, 0);
    if (s == NULL) return NULL;
    s->limits.body_min = least;
    s->limits.body_max = body;
    s->limits.texts_max = texts;
    s->limits.user_max = user;
    s->limits.group_max = group;
    s->limits.lite_max = lite;
    s->limits.recovery_max_s = recovery;
    s->limits.delay_max_ms = delay;
    s->names = names_take(&s->limits.reserved, reserved);
    if (s->names == NULL) Py_CLEAR(s);
    return (PyObject *)s;
}

static PyObject *sends_address(PyObject *self, void *nothing) {
    (void)nothing;
    return PyLong_FromVoidPtr(&((sends *)self)->limits);
}

static PyGetSetDef sends_getset[] = {
    {"address", sends_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void sends_dealloc(PyObject *self) {
    Py_CLEAR(((sends *)self)->names);
    free_object(self);
}

/* read(request, host): see the .pyi. */
static PyObject *sends_read(PyObject *self, PyObject *args) {
    const char *data;
    Py_ssize_t len, host_len;
    ps_h2_text host;
    ps_h2_message m;
    if (!PyArg_ParseTuple(args, "y#s#", &data, &len, &host.data, &host_len)) return NULL;
    host.len = host_len <= PS_PROPERTIES_MAX ? (int32_t)host_len : 0;
    if (host.len == 0 ||
        !ps_h2_message_read((const uint8_t *)data, len, &((sends *)self)->limits, host, &m))
        Py_RETURN_NONE;
    return Py_BuildValue("(s#s#y#y#Lis#N)", m.topic.data, (Py_ssize_t)m.topic.len, m.id.data,
                         (Py_ssize_t)m.id.len, m.properties, (Py_ssize_t)m.properties_len,
                         (const char *)m.body, (Py_ssize_t)m.body_len, (long long)m.born_ms,
                         (int)m.kind, m.key.len > 0 ? m.key.data : "",
                         (Py_ssize_t)m.key.len, PyBool_FromLong(m.zipped));
}

/* ---- messages that are handed out ---- */

typedef struct deliveries {
    PyObject_HEAD
    PyObject *names; /* which `hidden` points into */
    ps_h2_names hidden;
} deliveries;

static PyObject *deliveries_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"hidden", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!", names, &PyTuple_Type, &given))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    deliveries *d = (deliveries *)alloc(type, 0);
    if (d == NULL) return NULL;
    d->names = names_take(&d->hidden, given);
    if (d->names == NULL) Py_CLEAR(d);
    return (PyObject *)d;
}

static PyObject *deliveries_address(PyObject *self, void *nothing) {
    (void)nothing;
    return PyLong_FromVoidPtr(&((deliveries *)self)->hidden);
}

static PyGetSetDef deliveries_getset[] = {
    {"address", deliveries_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void deliveries_dealloc(PyObject *self) {
    Py_CLEAR(((deliveries *)self)->names);
    free_object(self);
}

static PyObject *composed(const deliveries *owner, const Py_buffer *record,
                          const ps_h2_delivery *d) {
    int64_t room = ps_h2_delivery_room(record->len, d);
    uint8_t *bytes = PyMem_Malloc((size_t)room);
    if (bytes == NULL) return PyErr_NoMemory();
    int64_t size =
        ps_h2_delivery_write(record->buf, record->len, &owner->hidden, d, bytes, room);
    PyObject *made;
    if (size > 0) {
        made = PyBytes_FromStringAndSize((const char *)bytes + room - size, (Py_ssize_t)size);
    } else {
        made = PyErr_Format(PyExc_ValueError, "%zd bytes are not a record", record->len);
    }
    PyMem_Free(bytes);
    return made;
}

/* message(record, topic, receipt, attempt, encoding, body): see the .pyi. */
static PyObject *deliveries_message(PyObject *self, PyObject *args) {
    Py_buffer record;
    ps_h2_delivery d;
    Py_ssize_t topic_len, receipt_len, body_len;
    int attempt, encoding;
    const char *body;
    if (!PyArg_ParseTuple(args, "y*s#s#iiz#", &record, &d.topic, &topic_len, &d.receipt,
                          &receipt_len, &attempt, &encoding, &body, &body_len))
        return NULL;
    d.body = (const uint8_t *)body;
    d.body_len = body != NULL ? body_len : 0;
    d.encoding = encoding;
    d.topic_len = topic_len;
    d.receipt_len = receipt_len;
    d.attempt = attempt;
    PyObject *made = composed((deliveries *)self, &record, &d);
    PyBuffer_Release(&record);
    return made;
}

/* ---- requests ---- */

/* count_fields(request, shapes, kind, most): see the .pyi. */
static PyObject *count_fields(PyObject *module, PyObject *args) {
    (void)module;
    const char *data, *shapes;
    Py_ssize_t len, size;
    int kind;
    long long most;
    if (!PyArg_ParseTuple(args, "y#y#iL", &data, &len, &shapes, &size, &kind, &most)) return NULL;
    return PyLong_FromLongLong(ps_proto_count((const uint8_t *)data, len,
                                              (const int32_t *)(const void *)shapes, kind, most));
}

/* ---- the module ---- */

/* net_functions() -> address of ps_h2_all. */
static PyObject *net_functions(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    return PyLong_FromVoidPtr((void *)(uintptr_t)&ps_h2_all);
}

static PyMethodDef functions[] = {
    {"count_fields", count_fields, METH_VARARGS, NULL},
    {"net_functions", net_functions, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *service_address(PyObject *self, void *nothing) {
    (void)nothing;
    return PyLong_FromVoidPtr(&((service *)self)->conf);
}

static PyGetSetDef service_getset[] = {
    {"address", service_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef sends_methods[] = {
    {"read", sends_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sends_slots[] = {
    {Py_tp_new, sends_new},
    {Py_tp_getset, sends_getset},
    {Py_tp_dealloc, sends_dealloc},
    {Py_tp_methods, sends_methods},
    {0, NULL},
};

static PyMethodDef deliveries_methods[] = {
    {"message", deliveries_message, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot deliveries_slots[] = {
    {Py_tp_new, deliveries_new},
    {Py_tp_getset, deliveries_getset},
    {Py_tp_dealloc, deliveries_dealloc},
    {Py_tp_methods, deliveries_methods},
    {0, NULL},
};

static PyMethodDef service_def[] = {
    {"times", service_times, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot service_slots[] = {
    {Py_tp_new, service_new},
    {Py_tp_getset, service_getset},
    {Py_tp_methods, service_def},
    {Py_tp_dealloc, service_dealloc},
    {0, NULL},
};

static PyType_Spec service_spec = {"broker.grpc._http2.Service", sizeof(service), 0,
                                   Py_TPFLAGS_DEFAULT, service_slots};
static PyType_Spec sends_spec = {"broker.grpc._http2.Sends", sizeof(sends), 0, Py_TPFLAGS_DEFAULT,
                                 sends_slots};
static PyType_Spec deliveries_spec = {"broker.grpc._http2.Deliveries", sizeof(deliveries), 0,
                                      Py_TPFLAGS_DEFAULT, deliveries_slots};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *made = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (made != NULL && PyModule_AddType(module, made) < 0) Py_CLEAR(made);
    return made;
}

static int exec_module(PyObject *module) {
    module_state *m = PyModule_GetState(module);
    m->service = add_type(module, &service_spec);
    m->sends = m->service != NULL ? add_type(module, &sends_spec) : NULL;
    m->deliveries = m->sends != NULL ? add_type(module, &deliveries_spec) : NULL;
    return m->deliveries != NULL ? 0 : -1;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *m = PyModule_GetState(module);
    Py_VISIT(m->service);
    Py_VISIT(m->sends);
    Py_VISIT(m->deliveries);
    return 0;
}

static int clear(PyObject *module) {
    module_state *m = PyModule_GetState(module);
    Py_CLEAR(m->service);
    Py_CLEAR(m->sends);
    Py_CLEAR(m->deliveries);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, exec_module},
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "broker.grpc._http2", NULL, sizeof(module_state), functions,
    module_slots,
    traverse, clear, NULL,
};

PyMODINIT_FUNC PyInit__http2(void) { return PyModuleDef_Init(&module_def); }
