"""Light queues of a store of RocketMQ 5.5.0 that was killed: as Java's own store sees them."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.audit import verify
from pystore.cli import main
from pystore.repair import rebuild, repair

HERE = Path(__file__).parent
Units = dict[str, list[tuple[int, int]]]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    subprocess.run(["tar", "-C", tmp_path, "-xJf", HERE / "lite-killed.tar.xz"], check=True)
    return tmp_path / "lite-killed"


def java_sees() -> Units:
    """Offset and place of each unit, by light queue."""
    found: Units = defaultdict(list)
    with lzma.open(HERE / "lite-killed.records.jsonl.xz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        if "offset" in row and row["topic"].startswith("%LMQ%"):
            found[row["topic"]].append((row["offset"], row["phy"]))
    return found


def we_see(store: pystore.Store) -> Units:
    return {
        each.name: [(m.offset, m.physical_offset) for m in store.lights.read(each.name, 0, 64)]
        for each in store.lights.some(0)[0]
    }


def test_light_queues_are_as_java_sees_them_and_stay_so(killed: Path):
    wanted = java_sees()
    assert len(wanted) == 44
    assert verify(killed, deep=True).findings == []
    with pystore.open(killed) as store:
        assert not store.lights.is_on  # nobody has asked for them
        store.lights.begin()
        assert we_see(store) == wanted
        assert store.lights.skipped == 2  # ca,cb and d/e, which Java skips too
        assert {store.metadata.topics.get(name) for name in wanted} == {None}
    assert verify(killed, deep=True).findings == []
    with pystore.open(killed) as store:
        assert we_see(store) == wanted


def test_light_queues_are_written_as_javas_files(killed: Path):
    """Byte for byte what Java's own files held, which are deleted before."""
    java = {path.parent.parent.name: path.read_bytes()
            for path in (killed / "consumequeue").glob("%LMQ%*/0/*")}  # fmt: skip
    assert len(java) == 44
    for name in java:
        shutil.rmtree(killed / "consumequeue" / name)
    offsets = killed / "config" / "lmqConsumerOffset.json"
    offsets.unlink()
    with pystore.open(killed) as store:
        store.lights.begin()
        store.metadata.offsets.commit("new", "L3_lite", 0, 1)
    assert not list((killed / "consumequeue").glob("%LMQ%*"))
    assert rebuild(killed, light_files=True).good
    assert offsets_in(offsets)["L3_lite@new"] == {"0": 1}
    assert java == {path.parent.parent.name: path.read_bytes()
                    for path in (killed / "consumequeue").glob("%LMQ%*/0/*")}  # fmt: skip
    assert verify(killed, deep=True).findings == []
    with pystore.open(killed) as store:
        assert we_see(store) == java_sees()


def without_folder(store: Path, *names: str) -> dict[str, bytes]:
    """Takes folders of light queues away; returns their bytes."""
    folders = {name: store / "consumequeue" / name for name in names}
    held = {name: (folder / "0" / f"{0:020}").read_bytes() for name, folder in folders.items()}
    for folder in folders.values():
        shutil.rmtree(folder)
    return held


def said_of(store: Path) -> dict[str | None, str]:
    return {f.topic: f.kind for f in verify(store).findings}


@pytest.mark.parametrize("mend", ["open", "repair"])
def test_a_light_queue_without_its_folder_is_made_again_if_a_group_reads_it(
    killed: Path, mend: str
):  # fmt: skip
    """The others, which nobody can tell from deleted ones, are named."""
    read = {pair.partition("@")[0]
            for pair in offsets_in(killed / "config" / "lmqConsumerOffset.json")}  # fmt: skip
    names = java_sees()
    kept, other = next(n for n in names if n in read), next(n for n in names if n not in read)
    held = without_folder(killed, kept, other)
    assert said_of(killed) == {kept: "missing-units", None: "light-no-folder"}
    if mend == "repair":
        repair(killed)
    with pystore.Reader(killed) as reader:
        found = [m.physical_offset for m in reader.read(kept, 0, 0)]
    assert found == [at for _, at in java_sees()[kept]]
    with pystore.open(killed):
        pass
    assert (killed / "consumequeue" / kept / "0" / f"{0:020}").read_bytes() == held[kept]
    assert said_of(killed) == {None: "light-no-folder"}


def test_a_light_queue_that_our_last_close_noted_is_made_again(killed: Path):
    with pystore.open(killed):
        pass
    (killed / "config" / "lmqConsumerOffset.json").unlink()
    shutil.rmtree(killed / "meta")
    held = without_folder(killed, name := next(iter(java_sees())))
    assert said_of(killed) == {name: "missing-units"}
    assert repair(killed).good
    assert (killed / "consumequeue" / name / "0" / f"{0:020}").read_bytes() == held[name]


def offsets_in(file: Path) -> dict[str, dict[str, int]]:
    """The table of a file of offsets, whose numbers Java does not quote where they are keys."""
    quoted = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', file.read_text())
    return json.loads(quoted)["offsetTable"]


def test_d8_offsets_of_both_files_are_taken_and_both_are_written(killed: Path):
    """A Java broker with enableLmq has them all in lmqConsumerOffset.json."""
    config = killed / "config"
    wanted = offsets_in(config / "lmqConsumerOffset.json")
    assert "%LMQ%$L3_lite$nolite@L3_raw" in wanted
    assert not (config / "consumerOffset.json").exists()
    old = {"offsetTable": {"t@old": {"0": 7}, "%LMQ%$L3_lite$nolite@L3_raw": {"0": 99}}}
    (config / "consumerOffset.json").write_text(json.dumps(old))
    os.utime(config / "consumerOffset.json", (1, 1))
    with pystore.open(killed) as store:
        ends = {(q.topic, q.queue) for q in store.queues()}
        for pair, queues in wanted.items():
            topic, _, group = pair.partition("@")
            for queue, offset in queues.items():
                if (topic, int(queue)) in ends:
                    assert store.metadata.offsets.get(group, topic, int(queue)) == offset
        store.metadata.offsets.commit("new", "L3_lite", 0, 1)
        said = store.metadata.offsets.get("old", "t", 0)
    assert said == 0  # the queue is not there: its next message has offset 0
    plain = offsets_in(config / "consumerOffset.json")
    assert plain == offsets_in(config / "lmqConsumerOffset.json")
    assert plain["L3_lite@new"] == {"0": 1}
    with pystore.open(killed) as store:
        assert store.metadata.offsets.get("new", "L3_lite", 0) == 1


def test_a_store_of_java_is_looked_into_without_taking_it_over(killed: Path, capsys):
    """`info`, `tail --lite` and `query` know the lite topics that Java has folders of."""

    def said(*words: object) -> list[dict[str, Any]]:
        assert main([*map(str, words), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    wanted = java_sees()
    (info,) = said("info", killed)
    assert info["store"]["light_queues"] == 44
    rows = {f"%LMQ%${r['topic']}${r['lite_topic']}": r["max"] for r in info["lite topics"]}
    assert rows == {name: units[-1][0] + 1 for name, units in wanted.items()}
    tail = said("tail", killed, "L3_lite", "--lite", "ra", "--from", "earliest")
    assert [m["phy"] for m in tail] == [at for _, at in wanted["%LMQ%$L3_lite$ra"]]
    (found,) = said("query", killed, "L3_lite", tail[1]["props"]["UNIQ_KEY"])
    assert (found["phy"], found["props"]["__LITE_TOPIC"]) == (tail[1]["phy"], "ra")
    assert not (killed / "lightqueue").exists()
