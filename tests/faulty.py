"""Tables of system calls that fail on purpose: csrc/tests/faulty_io.h, which `make build` compiles.

A table is an untyped pointer, as the core takes it for its `ps_io *`. None is freed: views of a
store may outlive the test.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

__all__ = ["faulty"]

_ffi = FFI()
_ffi.cdef("""
    void *ps_io_faulty_new(void);
    void ps_io_faulty_set(void *io, uint32_t mask, int64_t countdown, int err, int forever);
    void ps_io_faulty_slow(void *io, uint32_t mask, int32_t ms);
    void ps_io_faulty_within(void *io, const char *part);
    int64_t ps_io_faulty_calls(void *io, uint32_t mask);
    int64_t ps_io_faulty_struck(void *io);
""")
faulty = _ffi.dlopen(str(Path(__file__).resolve().parents[1] / "build" / "faulty_io.so"))
