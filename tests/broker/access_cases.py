"""Plays the recorded cases of access control: each is one raw frame, and what RocketMQ answered."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import lzma
import re
import socket
import struct
from pathlib import Path

__all__ = ["cases", "play", "setup_of", "text_of_refusal"]

FILE = Path(__file__).resolve().parents[1] / "golden" / "acl-cases.jsonl.xz"
_REFUSALS = re.compile(
    r"has no permission to access|check signature failed|not found\.|is disabled"
    r"|username cannot be null|authorization context error|subject cannot be null|super user can"
)


def _lines():
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def setup_of(server):
    return next(line for line in _lines() if line.get("setup") == server)


def cases(server):
    return [line for line in _lines() if line.get("server") == server]


def _signature(ext, body, secret, skip=""):
    names = sorted(name for name in ext if name not in ("Signature", skip))
    content = "".join(ext[name] for name in names).encode() + body
    return base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha1).digest()).decode()


def _signed(case):
    """Fields and body as the case wants them."""
    ext, body = case.get("ext"), case.get("body", "").encode()
    if "body64" in case:
        body = base64.b64decode(case["body64"])
    if "key" not in case:
        return ext, body
    how = case.get("sign", "")
    ext = dict(ext or {}) | {"AccessKey": case["key"]}
    if how == "token":
        ext["SecurityToken"] = "token-1"
    skip = how.removeprefix("skip:") if how.startswith("skip:") else ""
    good = _signature(ext, body, case["secret"], skip)
    if how.startswith("raw:"):
        ext["Signature"] = how.removeprefix("raw:")
    elif how == "bad":
        ext["Signature"] = ("B" if good[0] == "A" else "A") + good[1:]
    elif how == "lower":
        ext["Signature"] = good.lower()
    elif how != "none":
        ext["Signature"] = good
    return ext, body + b"!" if how == "body" else body


def frame(case):
    ext, body = _signed(case)
    version = case.get("version", 495 if case["server"].startswith("5") else 420)
    flag, language = case.get("flag", 0), case.get("language", "JAVA")
    if case.get("binary"):
        fields = b"".join(
            struct.pack(">h", len(k.encode())) + k.encode()
            + struct.pack(">i", len(v.encode())) + v.encode()
            for k, v in (ext or {}).items()
        )  # fmt: skip
        head = struct.pack(">hBhiiii", case["code"], 0, version, 1, flag, 0, len(fields)) + fields
        kind = 1
    else:
        shown = {"code": case["code"], "language": language, "version": version, "opaque": 1,
                 "flag": flag, "serializeTypeCurrentRPC": "JSON"}  # fmt: skip
        head = json.dumps(shown | ({"extFields": ext} if ext is not None else {})).encode()
        kind = 0
    return struct.pack(">iI", 4 + len(head) + len(body), kind << 24 | len(head)) + head + body


def play(port, case, timeout=300.0):
    """Code and remark of the answer, and its body."""
    source = (case["source"], 0) if case.get("source") else None
    with socket.create_connection(("127.0.0.1", port), timeout, source) as sock:
        return play_on(sock, case)


def play_on(sock, case):
    """The same on a connection that is there."""
    sock.sendall(frame(case))
    file = sock.makefile("rb")
    while True:
        (size,) = struct.unpack(">i", file.read(4))
        flag, answer = _read(file.read(size))
        if flag & 1:  # not a request of the broker's own
            return answer


def _read(data):
    """Flag, then code, remark and body."""
    (mark,) = struct.unpack(">I", data[:4])
    head, body = data[4 : 4 + (mark & 0xFFFFFF)], data[4 + (mark & 0xFFFFFF) :]
    if mark >> 24 == 0:
        shown = json.loads(head)
        return shown.get("flag", 0), (shown["code"], shown.get("remark") or "", body)
    code, _, _, _, flag, length = struct.unpack_from(">hBhiii", head)
    return flag, (code, head[17 : 17 + length].decode(), body)


def text_of_refusal(code, remark):
    """Why access control refused; None when it let the request through."""
    found = re.search(r"AclException: (.*?)(, org\.apache\.\S+)?$", remark, re.DOTALL)
    if code == 1 and found:
        return found[1]
    return remark if code == 16 and _REFUSALS.search(remark) else None
