"""A certificate that nobody else has signed: for tests, where upstream's servers make one too
(tls.test.mode.enable), and for `pystore broker --secure`, whose clients are given it to trust."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from pystore.errors import BadArgument

__all__ = ["self_signed"]

DAYS = 3650
_LOCAL = ("localhost", "127.0.0.1")


def self_signed(name: str, hosts: Sequence[str] = _LOCAL) -> tuple[str, str]:
    """Returns a fresh certificate and its key (P-256), both as PEM. `name` is the common name of
    owner and issuer, and `hosts` are the names and addresses that it is for.

    Raises: BadArgument when the package cryptography is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise BadArgument(
            "a certificate is needed: set tls.server.certPath and tls.server.keyPath, or install"
            " rocketmq-pystore[tls], which makes one"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    owner = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    known: list[x509.GeneralName] = []
    for host in hosts:
        try:
            known.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            known.append(x509.DNSName(host))
    cert = (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(owner)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    written = key.private_bytes(
        pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return cert.public_bytes(pem).decode(), written.decode()
