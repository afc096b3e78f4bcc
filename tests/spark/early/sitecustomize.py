"""Connects a Python process of a stream to Spark before it imports anything.

Spark waits ten seconds for such a process, and no setting changes that. PySpark connects after its
imports, which take longer than that on a busy machine: the query ends with "Python worker failed to
connect back". Python runs this file at its start wherever the folder is on PYTHONPATH.
"""

import os
import socket
import sys


def _connect() -> None:
    """Opens the connection that PySpark asks for later, and hands it over then."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    address = path or ("127.0.0.1", int(port or 0))
    early = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    early.connect(address)
    real = socket.socket.connect

    def connect(self: socket.socket, to: object) -> None:
        if to != address:
            return real(self, to)  # type: ignore[arg-type]
        socket.socket.connect = real  # type: ignore[method-assign]
        os.dup2(early.fileno(), self.fileno(), inheritable=False)
        early.close()
        return None

    socket.socket.connect = connect  # type: ignore[assignment,method-assign]


def _is_awaited() -> bool:
    """Only these are told a port or a path; what they start inherits it, as no module of it."""
    told = {"PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"} & os.environ.keys()
    flag, module = ["", "", *sys.orig_argv][-2:]
    return bool(told) and flag == "-m" and module.startswith("pyspark.")


if _is_awaited():
    _connect()
