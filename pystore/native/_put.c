/* Store.put's way into C, by hand: one message a call, so the call itself is half of the cost.
 *
 * Through cffi each argument is converted and the result copied out of a struct; here the result is
 * one Python object that holds the numbers. The core is linked once, into pystore.native._core:
 * bind takes the address of its ps_put, the class of results, and the function that makes an
 * exception of an error. Everything else goes through pystore/native/__init__.py.
 *
 * The capsule of an Arrow stream is here, too: it often goes while an exception is on its way, and
 * only C can keep that.
 *
 * Interface: bind, put, the type Place and new_stream; _put.pyi has their types. The limited API of
 * CPython 3.11, as the core. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "pystore.h"

typedef int put_function(ps_topic *, int32_t, int32_t, const void *, int64_t, const void *, int64_t,
                         int32_t, ps_put_result *);

/* ---- where a message went ---- */

typedef struct place {
    PyObject_HEAD
    int32_t status, size, queue, host_len;
    int64_t queue_offset, physical_offset, store_timestamp;
    uint8_t host[sizeof((ps_put_result *)0)->store_host];
} place;

static void place_set(place *self, const ps_put_result *from) {
    self->status = from->status;
    self->size = from->size;
    self->queue = from->queue_id;
    self->host_len = from->store_host_len;
    self->queue_offset = from->queue_offset;
    self->physical_offset = from->physical_offset;
    self->store_timestamp = from->store_timestamp;
    memcpy(self->host, from->store_host, sizeof self->host);
}

static PyObject *place_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"status_code",     "size",
                            "queue",           "queue_offset",
                            "physical_offset", "store_timestamp",
                            "store_host",      NULL};
    ps_put_result from;
    long long queue_offset, physical_offset, store_timestamp;
    const char *host;
    Py_ssize_t host_len;
    memset(&from, 0, sizeof from);
    if (!PyArg_ParseTupleAndKeywords(args, named, "iiiLLLy#", names, &from.status, &from.size,
                                     &from.queue_id, &queue_offset, &physical_offset,
                                     &store_timestamp, &host, &host_len))
        return NULL;
    if (host_len > (Py_ssize_t)sizeof from.store_host)
        return PyErr_Format(PyExc_ValueError, "a store host has at most %zu bytes, not %zd",
                            sizeof from.store_host, host_len);
    from.queue_offset = queue_offset;
    from.physical_offset = physical_offset;
    from.store_timestamp = store_timestamp;
    from.store_host_len = (int32_t)host_len;
    memcpy(from.store_host, host, (size_t)host_len);
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self != NULL) place_set((place *)self, &from);
    return self;
}

static void place_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *place_host(PyObject *self, void *unused) {
    (void)unused;
    const place *p = (place *)self;
    return PyBytes_FromStringAndSize((const char *)p->host, p->host_len);
}

static PyMemberDef place_members[] = {
    {"status_code", T_INT, offsetof(place, status), READONLY, NULL},
    {"size", T_INT, offsetof(place, size), READONLY, NULL},
    {"queue", T_INT, offsetof(place, queue), READONLY, NULL},
    {"queue_offset", T_LONGLONG, offsetof(place, queue_offset), READONLY, NULL},
    {"physical_offset", T_LONGLONG, offsetof(place, physical_offset), READONLY, NULL},
    {"store_timestamp", T_LONGLONG, offsetof(place, store_timestamp), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef place_properties[] = {
    {"store_host", place_host, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot place_slots[] = {
    {Py_tp_new, place_new},
    {Py_tp_dealloc, place_free},
    {Py_tp_members, place_members},
    {Py_tp_getset, place_properties},
    {0, NULL},
};

/* A subclass with empty __slots__ adds only methods, and the garbage collector need not look at it:
 * numbers refer to nothing. */
static PyType_Spec place_spec = {
    .name = "pystore.native._put.Place",
    .basicsize = sizeof(place),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = place_slots,
};

/* ---- the module ---- */

typedef struct module_state {
    put_function *put;
    PyTypeObject *result; /* a subclass of Place */
    PyObject *make_error; /* errors.make */
} module_state;

static PyObject *raise_error(const module_state *m, const ps_error *e, int code) {
    PyObject *text = PyUnicode_DecodeUTF8(e->text, (Py_ssize_t)strlen(e->text), "backslashreplace");
    PyObject *where =
        PyUnicode_DecodeUTF8(e->where, (Py_ssize_t)strlen(e->where), "backslashreplace");
    PyObject *error = NULL;
    if (text != NULL && where != NULL)
        error = PyObject_CallFunction(m->make_error, "iOOLLi", e->code != 0 ? e->code : code, text,
                                      where, (long long)e->offset, (long long)e->pid, e->sys_errno);
    if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(where);
    Py_XDECREF(text);
    return NULL;
}

/* Raises OverflowError beyond int32, TypeError for what is not an integer. */
static int as_int32(PyObject *value, int32_t *out) {
    long long n = PyLong_AsLongLong(value);
    if (n == -1 && PyErr_Occurred()) return -1;
    if (n < INT32_MIN || n > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "integer %lld does not fit '32-bit int'", n);
        return -1;
    }
    *out = (int32_t)n;
    return 0;
}

/* put(topic: address of a ps_topic, queue, body: bytes[, properties: bytes, flag, wait]) */
static PyObject *put(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const module_state *m = PyModule_GetState(module);
    if ((count != 3 && count != 6) || m->put == NULL)
        return PyErr_Format(PyExc_TypeError, "put takes 3 or 6 arguments, after bind");
    ps_topic *topic = PyLong_AsVoidPtr(args[0]);
    if (topic == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no topic");
    int32_t queue, flag = 0, wait = 1;
    char *body, *properties = NULL;
    Py_ssize_t body_len, properties_len = 0;
    if (as_int32(args[1], &queue) < 0) return NULL;
    if (PyBytes_AsStringAndSize(args[2], &body, &body_len) < 0) return NULL;
    if (count == 6) {
        if (PyBytes_AsStringAndSize(args[3], &properties, &properties_len) < 0) return NULL;
        if (as_int32(args[4], &flag) < 0) return NULL;
        wait = PyObject_IsTrue(args[5]);
        if (wait < 0) return NULL;
    }
    ps_put_result out; /* not cleared whole: the error's texts alone are 768 bytes */
    int code;
    out.error.code = out.error.sys_errno = 0;
    out.error.offset = -1;
    out.error.pid = 0;
    out.error.where[0] = out.error.text[0] = 0;
    Py_BEGIN_ALLOW_THREADS;
    code = m->put(topic, queue, flag, body, body_len, properties, properties_len, wait, &out);
    Py_END_ALLOW_THREADS;
    if (code < 0) return raise_error(m, &out.error, code);
    PyObject *result = PyType_GenericAlloc(m->result, 0);
    if (result != NULL) place_set((place *)result, &out);
    return result;
}

static int module_visit(PyObject *module, visitproc visit, void *arg) {
    module_state *m = PyModule_GetState(module);
    Py_VISIT(m->result);
    Py_VISIT(m->make_error);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *m = PyModule_GetState(module);
    Py_CLEAR(m->result);
    Py_CLEAR(m->make_error);
    return 0;
}

/* bind(address of ps_put, class of results, errors.make): once, before the first put. */
static PyObject *bind(PyObject *module, PyObject *args) {
    module_state *m = PyModule_GetState(module);
    PyObject *address, *result, *make_error;
    if (!PyArg_ParseTuple(args, "OOO", &address, &result, &make_error)) return NULL;
    void *function = PyLong_AsVoidPtr(address);
    if (function == NULL && PyErr_Occurred()) return NULL;
    PyObject *base = PyObject_GetAttrString(module, "Place");
    int fits = base != NULL && PyType_Check(result)
                   ? PyType_IsSubtype((PyTypeObject *)result, (PyTypeObject *)base)
                   : 0;
    Py_XDECREF(base);
    if (!fits || function == NULL)
        return PyErr_Format(PyExc_TypeError, "bind takes a function's address and a kind of Place");
    m->put = (put_function *)function;
    Py_INCREF(result);
    Py_INCREF(make_error);
    module_clear(module);
    m->result = (PyTypeObject *)result;
    m->make_error = make_error;
    Py_RETURN_NONE;
}

static int module_make(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &place_spec, NULL);
    if (type == NULL) return -1;
    int rc = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return rc;
}

/* ---- the capsule of an Arrow stream ---- */

#define STREAM "arrow_array_stream"

/* struct ArrowArrayStream of the Arrow C stream interface. */
typedef struct stream {
    void *get_schema, *get_next, *get_last_error;
    void (*release)(struct stream *);
    void *private_data;
} stream;

/* Releases a stream that nobody took out of its capsule. What goes wrong with a stream is raised
 * while its capsule is let go of: that exception stays. */
static void stream_free(PyObject *capsule) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    stream *s = PyCapsule_GetPointer(capsule, STREAM);
    if (s->release != NULL) {
        Py_BEGIN_ALLOW_THREADS
        s->release(s);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(s);
    PyErr_Restore(type, value, trace);
}

static PyObject *new_stream(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    stream *s = PyMem_Calloc(1, sizeof *s);
    if (s == NULL) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(s, STREAM, stream_free);
    if (capsule == NULL) {
        PyMem_Free(s);
        return NULL;
    }
    return Py_BuildValue("(NN)", capsule, PyLong_FromVoidPtr(s));
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, NULL},
    {"bind", bind, METH_VARARGS, NULL},
    {"new_stream", new_stream, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_make}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pystore.native._put",
    .m_doc = "Store.put's way into C; see pystore/native/_put.c.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_visit,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__put(void) {
    return PyModuleDef_Init(&definition);
}
