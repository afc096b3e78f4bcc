"""A certificate that nobody has signed, for tests: upstream's servers make one too when none is
configured (tls.test.mode.enable). Whoever accepts it knows nothing about the server.

An ECDSA key on the curve P-256 and an X.509 version 3 certificate in DER (RFC 5480, 5915, 5280),
with nothing but integers: neither a library nor a program is needed, and it takes milliseconds. The
arithmetic is not hardened against timing; the key lives as long as the process and guards nothing.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import textwrap
import time

__all__ = ["self_signed"]

# The curve P-256 (FIPS 186-4, D.1.2.3): y^2 = x^3 - 3x + B over the integers modulo P.
P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
GX = 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296
GY = 0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5

DAYS = 3650

_EC_PUBLIC_KEY = "1.2.840.10045.2.1"
_PRIME256V1 = "1.2.840.10045.3.1.7"
_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_COMMON_NAME = "2.5.4.3"
_ALTERNATIVE_NAME = "2.5.29.17"

Point = tuple[int, int] | None


def _add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    (x1, y1), (x2, y2) = a, b
    if x1 == x2:
        if (y1 + y2) % P == 0:
            return None
        slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, P) % P
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, P) % P
    x = (slope * slope - x1 - x2) % P
    return x, (slope * (x1 - x) - y1) % P


def _multiply(k: int) -> tuple[int, int]:
    """k times the generator; k is not a multiple of N."""
    total: Point = None
    power: Point = (GX, GY)
    while k:
        if k & 1:
            total = _add(total, power)
        power = _add(power, power)
        k >>= 1
    assert total is not None
    return total


def _sign(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        k = secrets.randbelow(N - 1) + 1
        r = _multiply(k)[0] % N
        s = pow(k, -1, N) * (digest + r * secret) % N
        if r and s:
            return _sequence(_integer(r), _integer(s))


# ---- DER ----


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 128 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tagged(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tagged(0x03, b"\0" + content)


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray((40 * first + second,))
    for number in rest:
        digits = [number & 127]
        while number := number >> 7:
            digits.append(128 | number & 127)
        content += bytes(reversed(digits))
    return _tagged(0x06, bytes(content))


def _time(seconds: float) -> bytes:
    return _tagged(0x17, time.strftime("%y%m%d%H%M%SZ", time.gmtime(seconds)).encode())


def _pem(label: str, der: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def self_signed(name: str) -> tuple[str, str]:
    """A fresh certificate and its key, both PEM. name: the common name of owner and issuer."""
    secret = secrets.randbelow(N - 1) + 1
    x, y = _multiply(secret)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    algorithm = _sequence(_oid(_ECDSA_SHA256))
    owner = _sequence(_tagged(0x31, _sequence(_oid(_COMMON_NAME), _tagged(0x0C, name.encode()))))
    local = _tagged(0x82, b"localhost") + _tagged(0x87, bytes((127, 0, 0, 1)))
    alternative = _sequence(_oid(_ALTERNATIVE_NAME), _tagged(0x04, _sequence(local)))
    now = time.time()
    body = _sequence(
        _tagged(0xA0, _integer(2)),
        _integer(secrets.randbits(63) | 1),
        algorithm,
        owner,
        _sequence(_time(now - 86400), _time(now + DAYS * 86400)),
        owner,
        _sequence(_sequence(_oid(_EC_PUBLIC_KEY), _oid(_PRIME256V1)), _bits(public)),
        _tagged(0xA3, _sequence(alternative)),
    )
    cert = _sequence(body, algorithm, _bits(_sign(secret, body)))
    key = _sequence(
        _integer(1),
        _tagged(0x04, secret.to_bytes(32, "big")),
        _tagged(0xA0, _oid(_PRIME256V1)),
        _tagged(0xA1, _bits(public)),
    )
    return _pem("CERTIFICATE", cert), _pem("EC PRIVATE KEY", key)
