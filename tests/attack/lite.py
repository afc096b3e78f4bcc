"""Attacks by way of lite topics (RIP-83): what a stranger may have for the asking. The topic LITE
has them; where access is off, a stranger makes groups of his own."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

from broker.wire import codec
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from tests.attack.attacks import Target, many, read_away, write

__all__ = ["LITE", "LITE_ATTACKS"]

LITE = "lite"
#: What one request may name, and what a frame may have of it.
NAMES = 10_000


def _group(name: str, **attributes: str) -> bytes:
    said = {"+lite.bind.topic": LITE} | {f"+lite.sub.{k}": v for k, v in attributes.items()}
    body = json.dumps({"groupName": name, "consumeEnable": True, "attributes": said}).encode()
    return codec.encode(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))


def _row(action: str, client: str, names: Iterable[str], group: str = "lg") -> dict[str, object]:
    return {"action": action, "clientId": client, "group": group, "topic": LITE,
            "liteTopicSet": list(names)}  # fmt: skip


def _ctl(*rows: dict[str, object]) -> bytes:
    body = json.dumps({"subscriptionSet": rows}).encode()
    return codec.encode(Command(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body))


def _pop(client: str, group: str = "lg", poll: int = 0) -> bytes:
    return codec.encode(Command(RequestCode.POP_LITE_MESSAGE, {
        "clientId": client, "consumerGroup": group, "topic": LITE, "maxMsgNum": "32",
        "invisibleTime": "60000", "pollTime": str(poll),
    }))  # fmt: skip


def _send(name: str) -> bytes:
    return codec.encode(Command(310, {
        "a": "p", "b": LITE, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": f"__LITE_TOPIC\x01{name}\x02", "j": "0", "k": "false",
    }, b"x"))  # fmt: skip


def _talk(sock: socket.socket, asks: Iterable[bytes], together: int = 64) -> None:
    """Asks so many at a time, and reads the answers of those."""
    several = iter(asks)
    while batch := list(itertools.islice(several, together)):
        write([sock], b"".join(batch))
        for _ in batch:
            if not _answer(sock):
                return


def _answer(sock: socket.socket) -> bool:
    sock.settimeout(30)
    try:
        size = struct.unpack(">i", _exactly(sock, 4))[0]
        _exactly(sock, size)
    except (OSError, struct.error):
        return False
    return True


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left and (data := sock.recv(min(left, 1 << 16))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def lite_clients(target: Target) -> None:
    """Ever new client ids: with an empty set, by pops, with ids of a kilobyte; then a look at each,
    and pops of each that wait."""
    with target.connect("broker") as sock:
        _talk(sock, [_group("lg")])
        ids = (f"{'x' * 1000}{n}" for n in range(40_000))
        _talk(sock, (_pop(each) for each in ids))
        few = (
            _ctl(*(_row("PARTIAL_ADD", f"c{n}-{k}", []) for k in range(200))) for n in range(1000)
        )
        _talk(sock, few, 4)
        _talk(sock, (codec.encode(Command(200074)) for _ in range(3)))
        _talk(sock, (codec.encode(Command(200076, {"parentTopic": LITE, "liteTopic": "a"}))
                     for _ in range(3)))  # fmt: skip
        write([sock], b"".join(_pop(f"c0-{n}", poll=60_000) for n in range(20_000)))
        read_away(sock)
        _talk(sock, (_ctl(_row("COMPLETE_REMOVE", f"c0-{n}", [])) for n in range(100)), 1)


def lite_groups(target: Target) -> None:
    """Ever new groups, each with clients that subscribe to the same lite topics; then messages to
    these."""
    names = [f"n{k}" for k in range(8)]
    with target.connect("broker") as sock:
        for n in range(1200):
            rows = [_row("PARTIAL_ADD", f"c{k}", names, f"g{n}") for k in range(10)]
            _talk(sock, [_ctl(*rows)], 1)
        for _ in range(20):
            _talk(sock, (_send(name) for name in names))


def lite_names(target: Target) -> None:
    """One client with a million names, and others with the same; then all of them leave, one
    comes back with another set, and messages come to each."""
    with many(target, "broker", 2) as (sock, other):
        _talk(sock, [_group("lg")])
        for n in range(100):
            _talk(sock, [_ctl(_row("PARTIAL_ADD", "c", _names(n * NAMES, NAMES)))], 1)
        _talk(other, (_send(f"n{n}") for n in range(20_000)))
        _talk(sock, (_pop("c") for _ in range(100)))
        for _ in range(3):
            _talk(sock, [_ctl(_row("COMPLETE_ADD", "c", _names(500_000, NAMES)))], 1)
        _talk(sock, [_ctl(_row("PARTIAL_REMOVE", "c", _names(500_000, NAMES)))], 1)
        for n in range(9):
            _talk(sock, [_ctl(_row("PARTIAL_ADD", "c", _names(n * NAMES, NAMES)))], 1)
        _talk(sock, [_ctl(_row("COMPLETE_REMOVE", "c", []))], 1)


def lite_floods(target: Target) -> None:
    """Many clients add and remove the same names all the time."""
    names = [f"n{k}" for k in range(50)]
    with many(target, "broker", 20) as socks:
        for n in range(1800):
            sock = socks[n % len(socks)]
            write([sock], _ctl(_row("PARTIAL_ADD", f"c{n}", names)))
            if n % 100 == 99:
                for each in socks:
                    read_away(each, 0.02)
        write(socks[:1], b"".join(_send(name) for name in names * 20))
        for n in range(1800):
            action = ("PARTIAL_REMOVE", "COMPLETE_REMOVE")[n % 2]
            write([socks[n % len(socks)]], _ctl(_row(action, f"c{n}", names)))
        for each in socks:
            read_away(each, 0.2)


def lite_idlers(target: Target) -> None:
    """Clients that never poll, and messages for each of them; then a sweep takes place."""
    with many(target, "broker", 2) as (sock, other):
        _talk(sock, [_group("lg", **{"client.max.event.cnt": "1048576"})])
        for n in range(9):
            names = _names(n * NAMES, NAMES)
            _talk(sock, [_ctl(_row("PARTIAL_ADD", f"c{n}", names))], 1)
            _talk(other, (_send(name) for name in names))
        read_away(sock, 12)


def lite_wildcards(target: Target) -> None:
    """Groups that read every lite topic, with ever new clients, over very many of these."""
    with many(target, "broker", 2) as (sock, other):
        _talk(other, (_send(name) for name in _names(0, 60_000)))
        for g in range(40):
            _talk(sock, [_group(f"w{g}", wildcard="1")])
            rows = [_row("COMPLETE_ADD", f"c{k}", [], f"w{g}") for k in range(500)]
            _talk(sock, [_ctl(*rows)], 1)
        _talk(other, (_send(name) for name in _names(0, 2000)))
        _talk(sock, (_pop("c0", f"w{g}") for g in range(40)), 1)
        read_away(sock, 12)


def _names(begin: int, count: int) -> list[str]:
    return [f"n{n}" for n in range(begin, begin + count)]


# ---- names that a hash cannot tell apart ----

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
_PRIME, _MASK = 16777619, 0xFFFFFFFF


def alike(parent: str, blocks: int) -> Iterator[str]:
    """Yields names, two to the power of so many, whose queues have one hash by FNV-1a: each block
    of four letters leads from one state of it to the same other state in two ways."""
    state, pairs = _state(2166136261, f"%LMQ%${parent}$"), []
    for _ in range(blocks):
        seen: dict[int, str] = {}
        for word in map("".join, itertools.product(_LETTERS, repeat=4)):
            after = _state(state, word)
            if after in seen:
                break
            seen[after] = word
        pairs.append((seen[after], word))
        state = after
    return map("".join, itertools.product(*pairs))


def _state(before: int, text: str) -> int:
    for c in text.encode():
        before = (before ^ c) * _PRIME & _MASK
    return before


def lite_alike(target: Target) -> None:
    """Messages to lite topics whose names have one hash, and a client that subscribes to them."""
    names = list(alike(LITE, 15))
    with many(target, "broker", 2) as (sock, other):
        _talk(sock, [_group("lg")])
        for at in range(0, len(names), 5000):
            _talk(sock, [_ctl(_row("PARTIAL_ADD", "c", names[at : at + 5000]))], 1)
        _talk(other, (_send(name) for name in names))
        _talk(sock, (_pop("c") for _ in range(100)))


LITE_ATTACKS: dict[str, Callable[[Target], None]] = {
    made.__name__: made
    for made in (
        lite_clients, lite_groups, lite_names, lite_floods, lite_idlers, lite_wildcards, lite_alike,
    )
}  # fmt: skip
