"""TLS inside a connection, so that the first bytes may be looked at before it begins.

The loop's own TLS (start_tls) wants to begin on an untouched socket, and a server that speaks both
TLS and plain text on one port has read the first byte by then. So the records go through memory:
what the socket brings into one, what it is to carry out of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from broker.remoting.selfsigned import self_signed
from pystore.configuration.problems import mistyped
from pystore.configuration.rows import Setting, convert, read_conf, rows_of, setting_field
from pystore.errors import BadArgument
from pystore.native import ffi, lib, raise_error

if TYPE_CHECKING:
    from broker.remoting.connection import Connection, Parts

__all__ = ["MODES", "TABLE", "TlsIntake", "TlsSettings", "client_context"]

MODES = ("disabled", "permissive", "enforcing")
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
READ_BYTES = 64 << 10


def _tls(name: str, default: Any, meaning: str, **more: Any) -> Any:
    return setting_field(name, default, meaning, used_by="tls", at_start=True, **more)


#: Upstream's (TlsSystemConfig), and what is done in their place.
_FIXED = {
    "tls.ciphers": "OpenSSL chooses the ciphers",
    "tls.protocols": "TLS 1.2 and 1.3 are spoken",
}


def _check_name(name: str) -> None:
    """Checks a name that is not a setting of TLS. Raises: BadArgument if it is meant to be one:
    what it asks for would silently not be done."""
    if not name.startswith("tls.") or name == "tls.config.file":
        return
    if name in _FIXED:
        raise BadArgument(f"'{name}' cannot be set: {_FIXED[name]}. Take the line out")
    meant = mistyped(name, TABLE)
    nearest = f"; the nearest name is '{meant}'" if meant else ""
    raise BadArgument(f"'{name}' is not a setting{nearest}")


@dataclass(slots=True)
class TlsSettings:
    """The TLS of a server, and that of what it asks others, under upstream's names
    (TlsSystemConfig).

    Without a certificate, test_mode makes one that nobody has signed, at the first handshake."""

    mode: str = _tls(
        "tls.server.mode",
        "permissive",
        "both are accepted; `enforcing`: only TLS; `disabled`: only plain text",
        choices=MODES,
    )
    need_client_auth: str = _tls(
        "tls.server.need.client.auth",
        "none",
        "`optional` or `require`: clients are asked for a certificate",
        choices=(*_CLIENT_AUTH,),
    )
    cert_path: str = _tls("tls.server.certPath", "", "the server's certificate, PEM", unit="path")
    key_path: str = _tls("tls.server.keyPath", "", "its key, PEM", unit="path")
    key_password: str = _tls("tls.server.keyPassword", "", "password of the key", is_secret=True)
    trust_cert_path: str = _tls(
        "tls.server.trustCertPath",
        "",
        "the authorities that must have signed a client's certificate",
        unit="path",
    )
    auth_client: bool = _tls("tls.server.authClient", False, "the same as `require`")
    test_mode: bool = _tls(
        "tls.test.mode.enable", True, "without a certificate a self-signed one is made"
    )
    enable: bool | None = _tls(
        "tls.enable",
        None,
        "outgoing connections use TLS; default: true when `tls.server.mode` is `enforcing`",
        type="boolean",
    )
    client_cert_path: str = _tls(
        "tls.client.certPath", "", "our certificate on outgoing connections", unit="path"
    )
    client_key_path: str = _tls("tls.client.keyPath", "", "its key", unit="path")
    client_key_password: str = _tls(
        "tls.client.keyPassword", "", "password of that key", is_secret=True
    )
    auth_server: bool = _tls(
        "tls.client.authServer", False, "the certificates of servers are verified"
    )
    client_trust_cert_path: str = _tls(
        "tls.client.trustCertPath",
        "",
        "the authorities for those; default: the system's",
        unit="path",
    )
    verify_host: bool = _tls(
        "tls.client.verifyHost",
        True,
        "such a certificate is for the address that is asked (not a setting of Apache's)",
    )
    #: The server's context, and the same for network threads (``ps_tls *``).
    _made: tuple[ssl.SSLContext, Any] | None = field(default=None, repr=False, compare=False)
    #: Called, on any thread, after the context was made again.
    listeners: list[Callable[[], None]] = field(default_factory=list, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, (attribute, row) in TABLE.items():
            value = getattr(self, attribute)
            if row.choices and value not in row.choices:
                raise BadArgument(f"{name} = {value!r}: it is not one of {', '.join(row.choices)}")
        if bool(self.cert_path) != bool(self.key_path):
            raise BadArgument("set both tls.server.certPath and tls.server.keyPath")
        if self.mode == "enforcing" and not self.cert_path and not self.test_mode:
            raise BadArgument("tls.server.mode is enforcing, but tls.server.certPath is not set")
        if self.cert_path:
            self.server_context()  # unreadable files are reported at the start
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise BadArgument("set both tls.client.certPath and tls.client.keyPath")

    @classmethod
    def from_names(cls, given: Mapping[str, str]) -> TlsSettings:
        """Returns the settings of a file; names that are not of TLS are passed over. Raises:
        BadArgument, for a mistyped name as well."""
        found: dict[str, Any] = {}
        for name, text in given.items():
            if name not in TABLE:
                _check_name(name)
                continue
            attribute, row = TABLE[name]
            try:
                found[attribute] = convert(row, text.lower() if row.choices else text)
            except ValueError as bad:
                said = "***" if row.is_secret else repr(text)
                raise BadArgument(f"{name} = {said}: {bad}") from None
        return cls(**found)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TlsSettings:
        """Reads a properties file, as upstream's tls.config.file. Raises: BadArgument."""
        entries, _ = read_conf(Path(path))
        return cls.from_names({name: text for name, (_, text) in entries.items()})

    def client_context(self, use: bool | None = None) -> ssl.SSLContext | None:
        """Returns the context for what we ask others, or None for plain text. `use` takes the place
        of tls.enable, if given.

        Raises: BadArgument when a file cannot be used."""
        wished = use if use is not None else self.enable
        if not (wished if wished is not None else self.mode == "enforcing"):
            return None
        return client_context(
            self.client_trust_cert_path,
            self.client_cert_path,
            self.client_key_path,
            self.client_key_password,
            verify=self.auth_server,
            verify_host=self.verify_host,
        )

    def server_context(self) -> ssl.SSLContext:
        """Returns the context of the server, which is made once. Raises: BadArgument when a file
        cannot be used."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made[0]

    @property
    def is_ready(self) -> bool:
        """Returns whether the context of the server was made: a certificate of our own takes some
        40 ms, which no event loop has."""
        return self._made is not None

    def prepare(self) -> None:
        """Makes the context of the server, on a thread; what is wrong with it, server_context()
        says."""
        with contextlib.suppress(BadArgument):
            self.server_context()

    @property
    def files(self) -> tuple[str, ...]:
        """Returns the paths of what the server's context is made of; without a certificate of its
        own it is made of none."""
        paths = (self.cert_path, self.key_path, self.trust_cert_path)
        return tuple(filter(None, paths)) if self.cert_path and self.mode != "disabled" else ()

    def read_again(self) -> None:
        """Makes the server's context of the files as they are now; connections that are there go on
        with what they have. Blocks.

        Raises: BadArgument when a file cannot be used: everything stays as it was."""
        if not self.files:
            return
        self._made = self._make()
        for each in list(self.listeners):
            each()

    @property
    def of_threads(self) -> Any:
        """Returns the same for network threads (``ps_tls *``), once the context was made; None
        before. Whoever uses it keeps it: read_again() makes another one."""
        return self._made[1] if self._made is not None else None

    def _make(self) -> tuple[ssl.SSLContext, Any]:
        error = ffi.new("ps_error *")
        if lib.ps_tls_check(error):
            raise_error(error[0])
        if self.cert_path:
            return self._make_of(self.cert_path, self.key_path, self.key_password)
        if not self.test_mode:
            raise BadArgument("a client uses TLS, but tls.server.certPath is not set")
        with _self_signed_files() as path:
            return self._make_of(path, path, "")

    def _make_of(self, cert: str, key: str, password: str) -> tuple[ssl.SSLContext, Any]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        _load(context, cert, key, password)
        want = _CLIENT_AUTH[self.need_client_auth]
        if self.auth_client and want is ssl.CERT_NONE:
            want = ssl.CERT_REQUIRED
        if want is not ssl.CERT_NONE:
            _trust(context, self.trust_cert_path, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = want
        return context, _context_of_threads(context, cert, key, password, self.trust_cert_path)


#: (attribute, row) by name.
TABLE: dict[str, tuple[str, Setting]] = rows_of(TlsSettings)


def _load(context: ssl.SSLContext, cert: str, key: str, password: str) -> None:
    try:
        # A callable: without one OpenSSL would ask at the terminal.
        context.load_cert_chain(cert, key, password=lambda: password)
    except (OSError, ssl.SSLError) as failed:
        raise BadArgument(f"the certificate and its key cannot be used ({failed})", cert) from None


@contextlib.contextmanager
def _self_signed_files() -> Iterator[str]:
    """Yields the path of a certificate that nobody has signed, and its key."""
    cert, key = self_signed("rocketmq-pystore test")
    with tempfile.TemporaryDirectory(prefix="pystore-tls-") as folder:
        path = Path(folder) / "both.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + cert)
        yield str(path)


def _context_of_threads(
    context: ssl.SSLContext, cert: str, key: str, password: str, trust: str
) -> Any:
    """Returns what network threads need to speak TLS as `context` does. Raises: BadArgument."""
    asks = {
        ssl.CERT_NONE: lib.PS_TLS_NO_CLIENT,
        ssl.CERT_OPTIONAL: lib.PS_TLS_CLIENT_MAY,
        ssl.CERT_REQUIRED: lib.PS_TLS_CLIENT_REQUIRED,
    }
    old = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    texts = [ffi.new("char[]", os.fsencode(text)) for text in (cert, key, password)]
    trusted = ffi.new("char[]", os.fsencode(trust)) if trust else ffi.NULL
    ciphers = ffi.new("char[]", ":".join(old).encode())
    conf, error = ffi.new("ps_tls_conf *"), ffi.new("ps_error *")
    conf.cert, conf.key, conf.password = texts
    conf.verify, conf.trust, conf.ciphers = asks[context.verify_mode], trusted, ciphers
    made = lib.ps_tls_new(conf, error)
    if made == ffi.NULL:
        raise_error(error[0])
    return ffi.gc(made, lib.ps_tls_free)


def _trust(context: ssl.SSLContext, path: str, whom: ssl.Purpose) -> None:
    try:
        if path:
            context.load_verify_locations(path)
        else:
            context.load_default_certs(whom)
    except (OSError, ssl.SSLError) as failed:
        raise BadArgument(f"the trusted certificates cannot be read ({failed})", path) from None


def client_context(
    trust_cert_path: str = "",
    cert_path: str = "",
    key_path: str = "",
    key_password: str = "",
    *,
    verify: bool | None = None,
    verify_host: bool = True,
) -> ssl.SSLContext:
    """Returns the TLS of a client. The server's certificate must be signed by `trust_cert_path`.
    `verify` says whether it is looked at; None means if that path is given. Upstream's clients do
    not look by default (tls.client.authServer). With `verify_host` a certificate that is looked at
    must be for the address that was asked; else whoever has one of the same issuer passes for a
    broker.

    Raises: BadArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if verify if verify is not None else trust_cert_path:
        _trust(context, trust_cert_path, ssl.Purpose.SERVER_AUTH)
        context.check_hostname = verify_host
    else:
        context.verify_mode = ssl.CERT_NONE
    if cert_path:
        _load(context, cert_path, key_path or cert_path, key_password)
    return context


def _why(failed: ssl.SSLError) -> str:
    if isinstance(failed, ssl.SSLCertVerificationError):
        hint = ""
        if "match" in failed.verify_message:  # a name or an address
            hint = "; use an address that the certificate names, or set tls.client.verifyHost=false"
        return f"{failed.reason}: {failed.verify_message}{hint}"
    return str(failed.reason)


class TlsIntake:
    """The intake of a connection that speaks TLS, on either side."""

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        server_side: bool,
        opened: Callable[[], None] | None = None,
        host: str | None = None,
    ) -> None:
        """Begins TLS. opened: is called when the handshake is done, or can no longer be. host: the
        one that a client asked for."""
        self._connection = connection
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=host
        )
        self._opened = opened
        self._ready = False
        self._early: Parts = []
        self._room = connection.scratch
        self.done: asyncio.Future[None] | None = None

    def start(self) -> asyncio.Future[None]:
        """Speaks first, as a client does. The future is done with the handshake."""
        self.done = asyncio.get_running_loop().create_future()
        self._shake()
        return self.done

    def buffer(self, hint: int) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        if count:
            self._in.write(self._room[:count])
        self._advance()

    def take(self, data: memoryview) -> None:
        """Takes bytes that somebody else has read."""
        self._in.write(data)
        self._advance()

    def _advance(self) -> None:
        if not self._ready and not self._shake():
            return
        connection = self._connection
        try:
            while not connection.paused and not connection.closed:
                room = connection.room(READ_BYTES)
                count = cast(int, self._tls.read(len(room), room))
                if not count:
                    break
                connection.fed(count)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            connection.close()
        except ssl.SSLError as failed:
            connection.abort("TLS error", str(failed))
        self._carry()

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._carry()
            return False
        except ssl.SSLError as failed:
            self._carry()  # the alert that says why
            self._fail(ConnectionError(f"no TLS with {self._connection}: {_why(failed)}"))
            self._connection.abort("the TLS handshake failed", str(failed))
            return False
        self._ready = True
        self._carry()
        if self._opened is not None:
            self._opened()
        if self.done is not None and not self.done.done():
            self.done.set_result(None)
        self._connection.opened()
        early, self._early = self._early, []
        if early:
            self.write(early)
        return True

    def write(self, parts: Parts) -> None:
        if not self._ready:
            self._early.extend(parts)
            return
        try:
            for part in parts:
                view = memoryview(part)
                while len(view):
                    view = view[self._tls.write(view) :]
        except ssl.SSLError as failed:
            self._connection.abort("TLS error", str(failed))
        self._carry()

    def finish(self) -> None:
        """Says that the end is meant, so that the other side can tell it from a connection that was
        cut."""
        if self._ready:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._carry()

    def _carry(self) -> None:
        made = self._out.read()
        if made:
            self._connection.write_out([made])

    def _fail(self, error: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)

    def closed(self) -> None:
        if self._opened is not None:
            self._opened()
        self._fail(ConnectionError(f"{self._connection} closed during the TLS handshake"))
