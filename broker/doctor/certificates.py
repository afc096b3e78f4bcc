"""The certificate that a server shows by TLS: whether it has expired, and whom it names."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator

from broker.doctor.findings import Diagnosis, diagnosed
from broker.remoting.client import parse_address

__all__ = ["check_certificate"]

_CONNECT_S = 3.0
_DAY_S, _SOON_DAYS = 86_400.0, 14.0
#: Results of OpenSSL's verification: not valid yet, expired; another name, another address.
_DATES, _NAMES = (9, 10), (62, 64)


async def check_certificate(
    where: str, tls: ssl.SSLContext | None, *, only_dates: bool = False
) -> AsyncIterator[Diagnosis]:
    """Examines a certificate. tls: of the user, which may take any name; None: there is none. Whom
    it trusts does not matter here: the certificate itself is trusted, to see what else is wrong
    with it. only_dates: of a server that takes plain text as well, and whose clients may look at no
    name. Raises: OSError, TimeoutError."""
    host = parse_address(where)[0]
    shown, _ = await _shown(where, None, "")
    if not only_dates and (tls is None or tls.check_hostname):
        try:
            await _shown(where, shown, host)
        except ssl.SSLCertVerificationError as refused:
            if refused.verify_code in _NAMES:
                text = f"its certificate does not name {host}: {refused.verify_message}"
                yield diagnosed("certificate-name", where, text, host=host)
    try:
        _, until = await _shown(where, shown, "")
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code in _DATES:
            yield diagnosed("certificate-expired", where, refused.verify_message)
        return
    days = (until - time.time()) / _DAY_S
    if days < _SOON_DAYS:
        yield diagnosed("certificate-expires", where, f"its certificate expires in {days:.0f} days")


async def _shown(where: str, trusted: bytes | None, name: str) -> tuple[bytes, float]:
    """Connects. trusted: the certificate that is trusted alone; None: any is. name: that it must
    have; empty: any. Returns the certificate and, if it was looked at, when it expires. Raises:
    SSLCertVerificationError, OSError, TimeoutError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(name)
    context.set_alpn_protocols(["h2"])  # no service of gRPC answers without it
    if trusted is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=trusted)
    host, port = parse_address(where)
    async with asyncio.timeout(_CONNECT_S):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    seen = writer.get_extra_info("ssl_object")
    until = seen.getpeercert().get("notAfter")
    certificate = seen.getpeercert(binary_form=True)
    writer.transport.abort()
    return certificate, ssl.cert_time_to_seconds(until) if until else 0.0
