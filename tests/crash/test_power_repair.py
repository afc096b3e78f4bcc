"""Power failures amid `repair`, `rebuild` and `repair --undo`: at every call, cut, and look again.

Whatever is left, another undo ends with the store as it was before the repair, to the byte, and
another repair with a sound one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.repair import Repair, repair, undo
from pystore.repair.manifest import DATA
from tests.museum.damage import records, write

sys.path.insert(0, str(Path(__file__).parent))
import power

CHILD = Path(__file__).with_name("repair_child.py")
#: `make crash` cuts at every call, and makes two images of each cut.
WHOLE = "PS_POWER_IMAGES" in os.environ
CUTS, IMAGES = (1 << 30, 2) if WHOLE else (5, 1)
SEGMENT = 16 << 10
SIZES = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 16,
    "maxIndexNum": 128,
}

Tree = dict[str, bytes]


def make(root: Path) -> None:
    """A store of six segments, with damage that needs a step of every kind."""
    with pystore.open(root, **SIZES) as store:
        store.metadata.topics.put(pystore.TopicConfig("t", 2, 2))
        for i in range(420):
            store.put("t", b"m%03d" % i * 20, keys=f"k{i}", queue=i % 2)
        store.metadata.offsets.commit("g", "t", 0, 7)
    log = [r for r in records(root) if r.physical < SEGMENT or r.physical >= 2 * SEGMENT]
    files = sorted((root / "commitlog").iterdir())
    assert len(files) >= 5
    write(log[10].file, log[10].at, b"\x7f")  # patch, rebuild
    rival, queue = log[20], root / f"consumequeue/t/{log[20].queue}/{0:020d}"
    write(rival.file, rival.at + 20, (rival.queue_offset + 1).to_bytes(8, "big"))  # keep
    write(queue, rival.queue_offset * 20, bytes(20))
    files[1].unlink()  # create
    write(files[2], SEGMENT, b"more" * 300)  # resize, of what is too long
    os.truncate(files[3], SEGMENT // 2)  # resize
    write(files[-1], SEGMENT - 9, b"x")  # zero
    (root / "config/topics.json").write_text("{")
    (root / "config/topics.json.bak").write_text('{"topicConfigTable":{}}')  # replace
    (root / "config/consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:99999}}}')
    (root / "config/subscriptionGroup.json").write_text("{")  # move
    (root / "checkpoint").unlink()
    write(next((root / "index").iterdir()), 40, b"\xff" * 64)


def tree(root: Path) -> Tree:
    """Every file but those of repairs, and the lock."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and name != "lock" and not name.startswith("repair-"):
            found[name] = path.read_bytes()
    return found


class Lives:
    """Lives of processes that repair, each with a copy of a store as its disk."""

    def __init__(self, shim: Path, tmp: Path) -> None:
        self.root, self.kept = tmp / "disk", tmp / "kept"
        command, pipe = [sys.executable, "-u", str(CHILD)], subprocess.PIPE
        self.child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"LD_PRELOAD": str(shim)},
            cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def run(self, what: str, store: Path, seed: int, cut: int) -> int:
        """How many calls a life had that was not cut; 0: it was."""
        shutil.copytree(store, self.root)
        self.kept.mkdir()
        given = {"what": what, "store": str(self.root), "kept": str(self.kept), "seed": seed,
                 "cut": cut}  # fmt: skip
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print(json.dumps(given), file=self.child.stdin, flush=True)
        answer = self.child.stdout.readline().split()
        assert answer[0] in ("cut", "done"), answer
        return int(answer[1]) if answer[0] == "done" else 0

    def disk(self) -> power.Disk:
        """What the last life left."""
        return power.Disk.of(self.root, self.kept)

    def forget(self) -> None:
        shutil.rmtree(self.root)
        shutil.rmtree(self.kept)


@pytest.fixture
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    tmp = tmp_path_factory.mktemp("lives")
    shim = power.build(tmp)
    if shim is None:
        pytest.skip("needs Linux and a C compiler")
    made = Lives(shim, tmp)
    with made.child:
        yield made


def name_inodes(root: Path, numbers: dict[int, int]) -> None:
    """Has manifests name the numbers that files have now: an image and a copy are of other files,
    and a store that was merely moved is not."""
    for manifest in root.glob("repair-*/manifest.json"):
        data: Any = json.loads(manifest.read_bytes())
        for action in data["actions"]:
            inodes = action["data"].get("inodes", {})
            for name, inode in inodes.items():
                inodes[name] = numbers.get(inode, inode)
        manifest.write_text(json.dumps(data))


def check_repaired(done: Repair) -> None:
    """Two records claim one queue offset: that stays."""
    assert done.after is not None
    assert {f.kind for f in done.after.errors} == {"same-offset"}, done.after.findings


def differing(one: Tree, other: Tree) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def check_finished(image: Path) -> None:
    """Another repair ends what was begun."""
    copy = image.with_name("copy")
    shutil.copytree(image, copy)
    files = {p.lstat().st_ino: copy / p.relative_to(image) for p in image.rglob("*")}
    name_inodes(copy, {number: path.lstat().st_ino for number, path in files.items()})
    check_repaired(repair(copy))
    shutil.rmtree(copy)


def check_undone(image: Path, before: Tree) -> None:
    """The store as it was is there, or another undo ends with it."""
    with contextlib.suppress(pystore.NotFound):
        undo(image)
    after = tree(image)
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()


@pytest.mark.parametrize("what", ["repair", "rebuild", "undo"])
def test_a_power_failure_amid(what: str, lives: Lives, tmp_path: Path, seed: int):
    rng = random.Random(seed)
    store, image = tmp_path / "store", tmp_path / "image"
    make(store)
    if what == "rebuild":
        repair(store)
        shutil.rmtree(next(store.glob("repair-*")))
    before = tree(store)
    if what == "undo":
        done = repair(store)
        check_repaired(done)
        assert {action.do for action in done.actions} == set(DATA)
    calls = lives.run(what, store, seed, 0)
    lives.forget()
    assert calls > 20
    for cut in sorted(rng.sample(range(1, calls + 1), min(CUTS, calls))):
        print("cut before call", cut, "of", calls)
        lives.run(what, store, seed, cut)
        for _ in range(IMAGES):
            name_inodes(image, lives.disk().image(image, rng))
            if rng.random() < 0.5:
                check_finished(image)
            check_undone(image, before)
            shutil.rmtree(image)
        lives.forget()
