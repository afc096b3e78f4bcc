"""Sends spread over many connections and topics. By hand: the official client keeps to one
connection a broker, whatever its threads.

A fixed number of requests is on its way at any time, each sent in a call of its own, the answer to
one setting off the next on the next connection. The client is Python on the same machine, so that
its rate says nothing alone; the rates of two spreads, by the same client, can be compared.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from itertools import cycle

from benches.brokers import send_frame

#: Requests on their way, as many as the threads of the other rows.
ON_THEIR_WAY = 64


def load(
    wires: Sequence[socket.socket],
    topics: Sequence[str],
    warm: float,
    seconds: float,
    cpu_s: Callable[[], float],
) -> dict[str, float]:
    """What Peer.load says of the official client, over `seconds`, after `warm` that do not count.

    Every wire is used in turn, and so is every topic. cpu_s: processor time of the broker so far.
    Raises: ConnectionError when the broker closes a wire. A message that it refuses, as Apache's do
    when they are flooded, is an error and no message.
    """
    keys = range(max(len(topics), 1000))
    frames = cycle([send_frame(topic, f"{i:032X}") for i, topic in zip(keys, cycle(topics))])
    turn = cycle(wires)
    by_fd = {wire.fileno(): wire for wire in wires}
    left: dict[int, bytes] = {}
    with select.epoll() as poll:
        for wire in wires:
            poll.register(wire, select.EPOLLIN)
        for _ in range(ON_THEIR_WAY):
            next(turn).sendall(next(frames))
        began = end = used = 0.0
        count = errors = 0
        while not end or time.monotonic() < end:
            if not end and began and time.monotonic() >= began + warm:
                end, count, errors, used = time.monotonic() + seconds, 0, 0, cpu_s()
            began = began or time.monotonic()
            for fd, _ in poll.poll(1):
                stored, refused, left[fd] = _answers(by_fd[fd], left.get(fd, b""))
                count, errors = count + stored, errors + refused
                for _ in range(stored + refused):
                    next(turn).sendall(next(frames))
        used, on_their_way = cpu_s() - used, ON_THEIR_WAY
        while on_their_way:
            for fd, _ in poll.poll(1):
                stored, refused, left[fd] = _answers(by_fd[fd], left.get(fd, b""))
                on_their_way -= stored + refused
    return {"per_s": count / seconds, "messages": count, "errors": errors, "broker_cpu_s": used}


def _answers(wire: socket.socket, left: bytes) -> tuple[int, int, bytes]:
    """How many answers said that a message is stored, how many not; the beginning of the next."""
    got = wire.recv(1 << 16)
    if not got:
        raise ConnectionError("the broker closed a connection")
    data, at, stored, refused = left + got, 0, 0, 0
    while len(data) - at >= 4:
        size = struct.unpack_from(">i", data, at)[0]
        if len(data) - at < 4 + size:
            break
        good = b'"code":0' in data[at : at + 4 + size]
        stored, refused, at = stored + good, refused + (not good), at + 4 + size
    return stored, refused, data[at:]
