"""Batches near the size of a segment of the commit log: what is acknowledged can be read, what does
not fit into a segment is refused.

Apache's broker acknowledges what does not fit, and drops it: its second attempt, in the next
segment, is counted as a success whatever it ended with (`make judge` shows it).
"""

from __future__ import annotations

import random

import launch
import pytest
from waiting import BOUND_S

from broker import Consumer, Message, Producer
from broker.client import SendFailed

SEGMENT = 1 << 20
KIB = (16, 100, 300, 512, 700, 900)
RECORD = 1024
#: More than fits, by a little and by far; bytes of one body, or messages of a batch.
TOO_LARGE = (SEGMENT - 100, SEGMENT, 2 * SEGMENT)
TOO_MANY = (1000, 2000)


def batch(rng: random.Random, count: int) -> list[Message]:
    return [Message("ends", rng.randbytes(RECORD)) for _ in range(count)]


def send_all(producer: Producer, rng: random.Random) -> tuple[set[bytes], set[bytes], list[int]]:
    """Acknowledged bodies; among them those that fit into no segment; codes of refusals."""
    acknowledged, too_large, codes = set(), set(), []
    for kib in rng.sample(KIB * 2, 2 * len(KIB)):
        messages = batch(rng, kib * 1024 // (RECORD + 150))
        producer.send_batch(messages)
        acknowledged.update(m.body for m in messages)
    large = [[Message("ends", rng.randbytes(size))] for size in TOO_LARGE]
    for messages in [*large, *(batch(rng, count) for count in TOO_MANY)]:
        try:
            producer.send_batch(messages) if len(messages) > 1 else producer.send(messages[0])
            acknowledged.update(m.body for m in messages)
            too_large.update(m.body for m in messages)
        except SendFailed as refused:
            codes.append(refused.attempts[-1].error.code)
    return acknowledged, too_large, codes


def read_all(namesrv: str) -> list[bytes]:
    with Consumer("ends-reader", namesrv=namesrv, auto_commit_s=0) as consumer:
        queues = consumer.queues("ends")
        consumer.assign({queue: consumer.min_offset(queue) for queue in queues})
        count = sum(consumer.max_offset(queue) - consumer.min_offset(queue) for queue in queues)
        found: list[bytes] = []
        while len(found) < count:
            messages = consumer.poll(timeout_s=5)
            found += [m.body for m in messages]
            consumer.ack(*messages)
        return found


@pytest.mark.parametrize(
    "make", ["ours", pytest.param("java", marks=[pytest.mark.long, pytest.mark.java])]
)
def test_what_fits_into_no_segment_is_not_acknowledged(make, tmp_path, request, rng):
    if make == "java":
        request.getfixturevalue("reference")
    settings = {"mappedFileSizeCommitLog": SEGMENT, "maxMessageSize": 4 << 20}
    with launch.running(make, tmp_path / "peer", settings) as peer:
        with Producer(
            "ends",
            peer.namesrv,
            compress_over=0,
            batch_max=4 << 20,
            retries=0,
            send_timeout_s=BOUND_S,
        ) as producer:  # fmt: skip
            acknowledged, too_large, codes = send_all(producer, rng)
        peer.kill()
        peer.restart()
        peer.wait_ready()
        found = read_all(peer.namesrv)
    assert len(found) == len(set(found))
    assert acknowledged - set(found) == too_large
    if make == "ours":
        assert codes == [13] * (len(TOO_LARGE) + len(TOO_MANY))
        assert set(found) == acknowledged
    else:
        assert too_large, "Apache's broker refuses them now: say so in docs/internals/wire.md"
