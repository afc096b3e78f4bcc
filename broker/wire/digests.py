"""SHA-1 for the C core: the functions of the cryptographic library that the interpreter itself has
loaded, so that nothing else is linked."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from pystore.native import ffi, lib

__all__ = ["digest_functions", "signer_of"]

#: Member of ps_digest_functions: OpenSSL's name.
_NAMES = {
    "init": "SHA1_Init",
    "update": "SHA1_Update",
    "final": "SHA1_Final",
    "differ": "CRYPTO_memcmp",
}


def digest_functions() -> Any | None:
    """Returns ``ps_digest_functions *``, or None when this interpreter does not show them, as one
    that was linked statically, or whose library leaves out what OpenSSL 3 calls deprecated: Python
    then checks every signature."""
    try:
        module = importlib.import_module("_hashlib")
        library = ctypes.CDLL(getattr(module, "__file__", None))
        made = ffi.new("ps_digest_functions *")
        for member, name in _NAMES.items():
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            setattr(made, member, ffi.cast(ffi.typeof(getattr(made, member)), address))
    except (ImportError, OSError, AttributeError):
        return None
    return made


def signer_of(secret: str) -> Any | None:
    """Returns the ``ps_signer *`` of a secret, or None where digest_functions() is None. It signs
    as broker.access.signature does, for one thread at a time."""
    functions, given = digest_functions(), secret.encode()
    if functions is None:
        return None
    made = lib.ps_signer_make(functions, given, len(given))
    return ffi.gc(made, lib.ps_signer_free) if made != ffi.NULL else None
