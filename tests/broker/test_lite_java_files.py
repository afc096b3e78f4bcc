"""lightFilesAtStop: a clean stop leaves light queues as a Java broker has them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from liting import GROUP, PARENT, lite_broker
from snapshots import snapshot
from waiting import until_async

from pystore.audit import verify
from pystore.repair import rebuild

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 200}  # of ten units
QUEUES = [f"%LMQ%${PARENT}${name}" for name in "abc"]


def light_files(store_path):
    """Bytes of each file of a light queue."""
    folder = store_path / "consumequeue"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("%LMQ%*/0/*")
    }  # fmt: skip


async def fill(lt):
    """Queues of one file, of three, and of one whose beginning is deleted."""
    await lt.send("c", *map(str, range(13)))
    for _ in range(2):
        lt.p.broker.store.put("T", bytes(700_000))
    await lt.send("c", *map(str, range(13, 16)), TAGS="t")
    await until_async(lambda: lt.p.broker.store.clean(immediate=True).log_min)
    await lt.add("a")
    await lt.send("a", "0", "1")
    await lt.send("b", *map(str, range(25)))
    answer = await lt.pop(poll=60_000)
    assert (await lt.ack("a", 0, answer)).code == 0


def ranges(lt):
    return [lt.lite.lights.range(name) for name in QUEUES]


async def test_a_clean_stop_leaves_what_the_verb_makes(store_path, tmp_path):
    async with lite_broker(store_path, lightFilesAtStop=True, **SMALL) as lt:
        await fill(lt)
        had = ranges(lt)
        assert had == [(0, 2), (0, 25), (13, 16)]
        assert light_files(store_path) == {}  # while it runs a lite topic has no file
    left = light_files(store_path)
    assert sorted(left) == [
        f"{queue}/0/{at:020}" for queue, at in zip(
            [QUEUES[0], *QUEUES[1:2] * 3, QUEUES[2]], [0, 0, 200, 400, 200], strict=True
        )
    ]  # fmt: skip
    text = (store_path / "config" / "lmqConsumerOffset.json").read_text()
    offsets = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))["offsetTable"]
    assert offsets[f"{QUEUES[0]}@{GROUP}"] == {"0": 1}
    assert verify(store_path, deep=True, **SMALL).findings == []

    by_verb = tmp_path / "verb"
    shutil.copytree(store_path, by_verb)
    for name in QUEUES:
        shutil.rmtree(by_verb / "consumequeue" / name)
    assert rebuild(by_verb, light_files=True, **SMALL).good
    assert left == light_files(by_verb)

    async with lite_broker(store_path, lightFilesAtStop=True, **SMALL) as lt:
        assert (light_files(store_path), ranges(lt)) == ({}, had)
        await lt.send("a", "2")
        lt.shift(60_001)
        await until_async(lambda: lt.lite.lights.range(QUEUES[0]) == (0, 3))
        assert await lt.some() == [("a", "1"), ("a", "2")]
        snapshot(store_path, tmp_path / "killed")
    assert len(light_files(store_path)[f"{QUEUES[0]}/0/{0:020}"].rstrip(b"\0")) > 40

    async with lite_broker(tmp_path / "killed", lightFilesAtStop=True, **SMALL) as lt:
        assert ranges(lt) == [(0, 3), *had[1:]]


@pytest.mark.parametrize("made", [True, False])
async def test_what_cannot_be_written_is_not_left_by_half(store_path, monkeypatch, caplog, made):
    """A Java broker would believe it. Without the setting nothing is written."""
    from pystore.repair import light_files as module

    def full(path, *_):
        if path.parent.parent.name == QUEUES[1]:
            raise OSError(28, "No space left on device")
        write(path, *_)

    write = module._write_file
    monkeypatch.setattr(module, "_write_file", full)
    async with lite_broker(store_path, lightFilesAtStop=made, **SMALL) as lt:
        await lt.send("a", "0")
        await lt.send("b", "0")
    assert light_files(store_path) == {}
    assert ("Java's files of light queues cannot be written" in caplog.text) == made
