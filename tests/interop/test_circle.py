"""A folder goes from Apache's broker to ours and back: what each finds of what the other left.

Both are asked in plain requests, so that nothing is retried or hidden by a client.
"""

from __future__ import annotations

import json
import re
import struct
import time
from contextlib import contextmanager
from pathlib import Path

import launch
import pytest

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

TOPIC, GROUP = "circle", "circle-readers"
SETTINGS = launch.SETTINGS | {
    "messageDelayLevel": "1s 25s 2h",
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 6000,
}
SHORT, MIDDLE, LONG = 1, 2, 3
MIDDLE_S = 25
#: After the fixed part of a record whose hosts are IPv4: the length of the body.
BODY_AT = 84


class Broker:
    """A running broker, asked one request a connection."""

    def __init__(self, peer: launch.Peer) -> None:
        self.peer = peer

    def ask(self, code: int, body: bytes = b"", **ext: object) -> tuple[int, dict, bytes]:
        return launch.ask(self.peer.broker, code, {k: str(v) for k, v in ext.items()}, body)

    def make_topic(self, name: str) -> None:
        code, ext, _ = self.ask(
            17, topic=name, defaultTopic="TBW102", readQueueNums=3, writeQueueNums=3, perm=6,
            topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip
        assert code == 0, ext

    def queues_of(self, name: str) -> int:
        code, _, body = self.ask(351, topic=name)
        assert code == 0
        return json.loads(body)["readQueueNums"]

    def send(self, body: str, **properties: object) -> None:
        given = "".join(f"{k}\x01{v}\x02" for k, v in properties.items())
        code, ext, _ = self.ask(
            310, body.encode(), a="circle-makers", b=TOPIC, c="TBW102", d=4, e=0, f=0,
            g=int(time.time() * 1000), h=0, i=given, j=0, k="false", m="false",
        )  # fmt: skip
        assert code == 0, ext

    def bodies(self, offset: int = 0) -> list[str]:
        """Everything in queue 0 from there on."""
        found: list[str] = []
        while True:
            code, ext, records = self.ask(
                11, consumerGroup=GROUP, topic=TOPIC, queueId=0, queueOffset=offset + len(found),
                maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subVersion=0,
                subscription="*", expressionType="TAG",
            )  # fmt: skip
            if code != 0:
                assert code == 19, ext
                return found
            at = 0
            while at < len(records):
                (length,) = struct.unpack_from(">i", records, at + BODY_AT)
                start = at + BODY_AT + 4
                found.append(records[start : start + length].decode())
                at += struct.unpack_from(">i", records, at)[0]

    def commit(self, offset: int) -> None:
        code, ext, _ = self.ask(
            15, consumerGroup=GROUP, topic=TOPIC, queueId=0, commitOffset=offset
        )
        assert code == 0, ext

    def committed(self) -> int:
        code, ext, _ = self.ask(
            14, consumerGroup=GROUP, topic=TOPIC, queueId=0, setZeroIfNotFound="false"
        )
        assert code == 0, ext
        return int(ext["offset"])

    def wait_for(self, body: str) -> float:
        """When it was there, in seconds since 1970."""
        launch.wait(body, lambda: body in self.bodies())
        return time.time()


@contextmanager
def over(make: str, folder: Path, names: str):
    """A broker of that make over the folder; stopped cleanly, its traces looked at."""
    peer = launch.MAKES[make](folder, SETTINGS, "5.3.3", names)
    peer.broker_server.start()
    try:
        peer.wait_ready()
        assert (folder / "store/abort").exists()
        yield Broker(peer)
    finally:
        peer.stop()
    assert not (folder / "store/abort").exists(), peer.broker_server.said()
    assert (folder / "store/checkpoint").stat().st_size == 4096


def test_circle(reference, tmp_path):
    folder = tmp_path / "peer"
    with launch.name_server("ours", tmp_path / "names") as names:
        with over("java", folder, names) as java:
            java.make_topic(TOPIC)
            for i in range(20):
                java.send(f"java {i}", UNIQ_KEY=f"{i:032X}", KEYS=f"k{i}")
            java.send("short", DELAY=SHORT)
            java.send("for a timer", TIMER_DELAY_SEC=8)
            java.wait_for("short")
            java.commit(7)
            java.send("of java, two hours", DELAY=LONG)
            sent = time.time()
            java.send("of java, later", DELAY=MIDDLE)
        said = [f"java {i}" for i in range(20)] + ["short"]

        with over("ours", folder, names) as ours:
            assert ours.queues_of(TOPIC) == 3
            assert ours.committed() == 7
            found = ours.bodies()
            # A timer that has run out is Java's to deliver, before or after.
            assert [b for b in found if b != "for a timer"][:21] == said
            assert ours.wait_for("of java, later") >= sent + MIDDLE_S
            ours.send("ours")
            ours.commit(13)
            ours.make_topic("made-here")
            sent = time.time()
            ours.send("of ours, later", DELAY=MIDDLE)

        with over("java", folder, names) as java:
            assert java.queues_of(TOPIC) == java.queues_of("made-here") == 3
            assert java.committed() == 13
            assert java.wait_for("of ours, later") >= sent + MIDDLE_S
            java.wait_for("for a timer")
            found = java.bodies()

    wanted = [*said, "of java, later", "ours", "of ours, later", "for a timer"]
    assert sorted(found) == sorted(wanted)
    # Java writes numbers as keys.
    kept = (folder / "store/config/delayOffset.json").read_text().partition('"offsetTable"')[2]
    delays = {int(level): int(offset) for level, offset in re.findall(r'(\d+)"?:(\d+)', kept)}
    assert (delays[SHORT], delays[MIDDLE], delays.get(LONG, 0)) == (1, 2, 0)
