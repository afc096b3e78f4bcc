"""The settings of TLS, and what comes of them: a context for network threads (csrc/net/tls.c),
which own every accepted connection, and one of ``ssl`` for what we ask others."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.remoting.selfsigned import self_signed
from pystore.configuration.problems import mistyped
from pystore.configuration.rows import Setting, convert, read_conf, rows_of, setting_field
from pystore.errors import BadArgument
from pystore.native import ffi, lib, raise_error

__all__ = ["MODES", "TABLE", "TlsSettings", "client_context", "reason_of"]

MODES = ("disabled", "permissive", "enforcing")
_CLIENT_AUTH = {
    "none": lib.PS_TLS_NO_CLIENT,
    "optional": lib.PS_TLS_CLIENT_MAY,
    "require": lib.PS_TLS_CLIENT_REQUIRED,
}


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
    #: The context of the server (``ps_tls *``), once it was made; None before. Whoever uses it
    #: keeps it: read_again() makes another one.
    made: Any = field(default=None, repr=False, compare=False)
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
            self.prepare()  # unreadable files are reported at the start
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

    def prepare(self) -> None:
        """Makes the context of the server, once. A certificate of our own takes some 40 ms, which
        no event loop has. Raises: BadArgument when a file cannot be used."""
        with self._lock:
            if self.made is None:
                self.made = self._make()

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
        with self._lock:  # so that what was read last is what holds
            self.made = self._make()
        for each in list(self.listeners):
            each()

    def _make(self) -> Any:
        error = ffi.new("ps_error *")
        if lib.ps_tls_check(error):
            raise_error(error[0])
        if self.cert_path:
            return self._make_of(self.cert_path, self.key_path, self.key_password)
        if not self.test_mode:
            raise BadArgument("a client uses TLS, but tls.server.certPath is not set")
        with _self_signed_files() as path:
            return self._make_of(path, path, "")

    def _make_of(self, cert: str, key: str, password: str) -> Any:
        for path in {cert: 0, key: 0}:
            _check_readable(path, "the certificate and its key cannot be used")
        if self.trust_cert_path:
            _check_readable(self.trust_cert_path, "the trusted certificates cannot be read")
        verify = _CLIENT_AUTH[self.need_client_auth]
        if self.auth_client and verify == lib.PS_TLS_NO_CLIENT:
            verify = lib.PS_TLS_CLIENT_REQUIRED
        trust = os.fsencode(self.trust_cert_path)
        texts = [ffi.new("char[]", each) for each in (
            os.fsencode(cert), os.fsencode(key), os.fsencode(password), trust, _ciphers(),
        )]  # fmt: skip
        conf, error = ffi.new("ps_tls_conf *"), ffi.new("ps_error *")
        conf.cert, conf.key, conf.password, conf.trust, conf.ciphers = texts
        conf.verify = verify
        if not trust:
            conf.trust = ffi.NULL
        made = lib.ps_tls_new(conf, error)
        if made == ffi.NULL:
            raise_error(error[0])
        return ffi.gc(made, lib.ps_tls_free)


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


def _check_readable(path: str, what: str) -> None:
    """Checks that a file can be read: OpenSSL does not say why it cannot. Raises: BadArgument."""
    try:
        with open(path, "rb"):
            pass
    except OSError as failed:
        raise BadArgument(f"{what} ({failed.strerror})", path) from None


def _ciphers() -> bytes:
    """Returns the ciphers up to TLS 1.2 that Python has servers choose from."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).get_ciphers()
    return ":".join(each["name"] for each in found if each["protocol"] != "TLSv1.3").encode()


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


def reason_of(failed: ssl.SSLError) -> str:
    """Returns why TLS with a server has failed, and what to do where that is known."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        hint = ""
        if "match" in failed.verify_message:  # a name or an address
            hint = "; use an address that the certificate names, or set tls.client.verifyHost=false"
        return f"{failed.reason}: {failed.verify_message}{hint}"
    return str(failed.reason)
