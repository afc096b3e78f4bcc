"""Derived files made in parts are those of one recovery, wherever the parts are done, in any
order, each of them once or twice."""

from __future__ import annotations

import pickle
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from storeview import derived

import pystore
from pystore import errors
from pystore.audit.parts import AuditPart
from pystore.format.names import HALF_TOPIC
from pystore.metadata import Metadata
from pystore.repair import rebuild
from pystore.repair.parts import DerivedPart, Deriving, Run, derive_part
from tests.museum import kinds


class Elsewhere:
    """Does parts by chance, some of them twice, each by what a process elsewhere would be sent."""

    def __init__(self, rng: random.Random, most: int) -> None:
        self.rng = rng
        self.run = Run(self._do, most)
        self.made: list[DerivedPart] = []

    @property
    def plain(self) -> bool:
        return bool(self.made) and all(each.plain for each in self.made)

    def _do(self, deriving: Deriving, parts: Sequence[AuditPart]) -> Iterable[DerivedPart]:
        sent = [pickle.dumps((deriving, part)) for part in parts]
        order = list(range(len(sent)))
        self.rng.shuffle(order)
        done: dict[int, DerivedPart] = {}
        for i in order + self.rng.choices(order, k=2):
            done[i] = derive_part(*pickle.loads(sent[i]))
        self.made += done.values()
        return [done[i] for i in range(len(sent))]


def check_equal(path: Path, rng: random.Random, **settings: Any) -> list[Elsewhere]:
    """Rebuilds copies of a store by one recovery and in parts."""
    alone = path.with_name(f"{path.name}-alone")
    shutil.copytree(path, alone)
    assert rebuild(alone, **settings).after.sound
    want, runs = derived(alone), []
    for most in (1, 2, 7):
        copy = path.with_name(f"{path.name}-{most}")
        shutil.copytree(path, copy)
        runs.append(Elsewhere(rng, most))
        done = rebuild(copy, parts=runs[-1].run, **settings)
        assert done.after.sound and derived(copy) == want
        assert sorted(each.name for each in (Path(done.side) / "made").iterdir()) == sorted(
            each.name for each in Path(rebuild_side(alone), "made").iterdir()
        )
        shutil.rmtree(copy)
    return runs


def rebuild_side(path: Path) -> Path:
    (side,) = path.glob("repair-*")
    return side


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_stores_of_javas_broker(golden, rng, name):
    check_equal(golden(name), rng)


def test_records_of_every_kind_over_files_of_every_kind(store_path, rng):
    """Keys that begin in one index file and end in the next, records without any, halves, rolled
    back ones, levels."""
    flags = (0, 0, 0, 4, 8, 12)
    with pystore.open(store_path, **kinds.SIZES) as store:
        for i in range(700):
            topic = rng.choice(("t", "%RETRY%g", HALF_TOPIC, "SCHEDULE_TOPIC_XXXX"))
            properties = {"DELAY": str(rng.randrange(1, 19)), "PGROUP": "g", "REAL_TOPIC": "t"}
            if rng.random() < 0.7:
                properties["UNIQ_KEY"] = f"u{i}"
            if rng.random() < 0.7:
                words = (f"k{rng.randrange(50)}" for _ in range(rng.randrange(9)))
                properties["KEYS"] = " ".join(words)
            store.put_message(
                topic=topic, queue=rng.randrange(4), body=rng.randbytes(rng.randrange(200)),
                sys_flag=rng.choice(flags), properties=properties, tags=rng.choice("ab"),
            )  # fmt: skip
    assert len(list(store_path.glob("index/*"))) > 4
    assert all(each.plain for each in check_equal(store_path, rng, **kinds.SIZES))


def test_a_log_whose_beginning_was_deleted(store_path, rng):
    """Queues begin in the middle of files, and the index at any of its keys."""
    kinds.make_ours(store_path)
    with pystore.open(store_path, **kinds.SIZES) as store:
        for i in range(400):
            store.put("t", b"more", queue=i % 3, keys=f"m{i} n{i}")
    for segment in sorted(store_path.glob("commitlog/*"))[:2]:
        segment.unlink()
    assert all(each.plain for each in check_equal(store_path, rng, **kinds.SIZES))


def test_a_log_that_is_not_plain_is_left_to_recovery(store_path, rng):
    """A topic was deleted and made again: its queues begin twice."""
    kinds.make_ours(store_path)
    with pystore.open(store_path, **kinds.SIZES) as store:
        store.delete_topic("t")
        store.put("t", b"again", queue=0)
    assert not any(each.plain for each in check_equal(store_path, rng, **kinds.SIZES))
    (store_path / "deletedTopics").unlink()
    runs = []
    for each in ("one", "two"):
        copy = store_path.with_name(each)
        shutil.copytree(store_path, copy)
        runs.append(Elsewhere(rng, 2))
        rebuild(copy, parts=None if each == "one" else runs[-1].run, **kinds.SIZES)
    assert derived(store_path.with_name("one")) == derived(store_path.with_name("two"))
    assert runs[1].made and not runs[1].plain


def test_a_part_of_a_run_that_is_gone_makes_nothing(store_path, rng, tmp_path):
    """What a killed driver leaves on its executors must not write into the next one's files."""
    kinds.make_ours(store_path)
    left: list[tuple[Deriving, AuditPart]] = []

    def do(deriving: Deriving, parts: Sequence[AuditPart]) -> Iterable[DerivedPart]:
        left.extend((deriving, part) for part in parts)
        return [derive_part(deriving, part) for part in parts]

    rebuild(store_path, parts=Run(do, 2), **kinds.SIZES)
    before = sorted(store_path.rglob("*"))
    for deriving, part in left:
        with pytest.raises(errors.NotAStore, match="on host"):
            derive_part(deriving, part)
    assert sorted(store_path.rglob("*")) == before


def test_a_rebuild_looks_after_no_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of its scratch store goes with it; 20,000 topics cost as much as the rest."""
    root, made = tmp_path / "store", []
    with pystore.open(root, mappedFileSizeCommitLog=1 << 20) as store:
        for number in range(20):
            store.put(f"topic{number}", b"one", queue=0)
    ensure = Metadata.ensure_topic
    monkeypatch.setattr(
        Metadata, "ensure_topic", lambda *given: (made.append(given[1]), ensure(*given))[1]
    )
    assert rebuild(root).good
    assert rebuild(root, parts=None).good
    assert not made
    with pystore.open(root) as store:
        assert store.range("topic7", 0) == (0, 1)


def test_one_recovery_makes_a_queue_whose_beginning_is_deleted(tmp_path: Path) -> None:
    """Its first file has units of messages that retention has deleted: none of them is a rival."""
    root = tmp_path / "store"
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 200}
    with pystore.open(root, **sizes) as store:
        for count, size in ((13, 1), (2, 700_000), (5, 1)):
            for _ in range(count):
                store.put("filler" if size > 1 else "t", bytes(size), queue=0)
        store.flush()
        store.clean(immediate=True)
        had = store.range("t", 0)
    assert had == (13, 18)
    assert rebuild(root, parts=None, **sizes).good
    with pystore.open(root, **sizes) as store:
        assert store.range("t", 0) == had
