"""A command of the remoting protocol, as Python sees it (docs/internals/wire.md#frames)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BINARY", "JSON", "ONEWAY", "RESPONSE", "VERSION", "Command", "Refused", "header_format"]

JSON, BINARY = 0, 1
_BINARY_MAX = 0x7FFF
RESPONSE, ONEWAY = 1, 2
#: MQVersion.V5_3_3. Clients look at the one of a heartbeat's answer
#: (docs/internals/wire.md#versions).
VERSION = 479
#: LanguageCode.JAVA, as upstream's brokers answer: some tools know no other.
LANGUAGE = 0

Body = bytes | bytearray | memoryview


def header_format(code: int) -> int:
    """Returns BINARY, or JSON for a code beyond the 16 bits with sign of a binary header."""
    return BINARY if code <= _BINARY_MAX else JSON


class Refused(Exception):
    """Raised for a request that is answered with an error: code (ResponseCode) and remark.

    A processor raises it anywhere; whoever called the processor makes the answer of it."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


@dataclass(slots=True)
class Command:
    """One frame: a request, or the answer to one.

    `code` is a request code, or the response code of an answer. `ext` has the fields of the header,
    all as text, and `body` the bytes after it. `opaque` ties an answer to its request. `serialize`
    says whether the header is JSON or BINARY. `raw` is the whole frame as it came, kept for
    requests that the core may serve itself."""

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: Body = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = LANGUAGE
    version: int = VERSION
    serialize: int = JSON
    raw: bytes | None = None
    #: The body's value, for a long one that was read beside the event loop.
    value: Any = None
    #: When it was decoded, in monotonic seconds, and of an answer, when its request was; 0: it was
    #: made here.
    came: float = field(default=0.0, compare=False, repr=False)
    #: Of an answer: the code of its request; -1: it is not one.
    asked: int = field(default=-1, compare=False, repr=False)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: Body = b"",
    ) -> Command:
        """Returns the answer to this request, with the same opaque and the same encoding of the
        header.

        The values of `ext` become text, booleans true and false; those that are None are left
        out."""
        return Command(
            code=int(code),
            ext=texts(ext) if ext else {},
            body=body,
            remark=remark,
            opaque=self.opaque,
            flag=RESPONSE,
            serialize=self.serialize,
            came=self.came,
            asked=self.code,
        )

    # ---- fields of a request, checked ----

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a field, or `default` when it is absent or empty. Raises: Refused when that is
        None."""
        found = self.ext.get(name)
        if found:
            return found
        if default is None:
            raise Refused(1, f"request {self.code} lacks the field {name}")
        return default

    def number(self, name: str, default: int | None = None) -> int:
        """Returns a field as an integer. Raises: Refused when it is absent without default, or not
        an integer."""
        found = self.text(name, None if default is None else "")
        if not found:
            assert default is not None
            return default
        try:
            value = int(found)
        except ValueError:
            value = 1 << 63
        if not -(1 << 63) <= value < 1 << 63:
            raise Refused(
                1, f"the field {name} of request {self.code} is not a number: {found:.40}"
            )
        return value

    def flag_of(self, name: str, default: bool = False) -> bool:
        """Returns a field as a boolean, as Java reads it: true for the word true in any case, else
        false."""
        found = self.ext.get(name)
        return default if not found else found.lower() == "true"


def texts(ext: Mapping[str, object]) -> dict[str, str]:
    """Returns values as the wire has them: decimal numbers, true and false; None is left out."""
    made = {}
    for name, value in ext.items():
        if value is None:
            continue
        if isinstance(value, bool):
            made[name] = "true" if value else "false"
        else:
            made[name] = str(value)
    return made
