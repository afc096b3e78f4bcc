"""Power failures amid `repair`, `rebuild` and `repair --undo`: at every call, cut, and look again.

Whatever is left, an undo that is begun again ends at the store as it was before the repair, to the
byte, and a repair that is begun again at a sound one. Nothing of what stands in the side folder is
missing where the store needs it.
"""

from __future__ import annotations

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
from tests.museum.damage import records

sys.path.insert(0, str(Path(__file__).parent))
import power

CHILD = Path(__file__).with_name("repair_child.py")
#: Calls at which the power fails, of each kind of life; `make crash` cuts at every one.
CUTS = 6 if "PS_POWER_IMAGES" not in os.environ else 1 << 30
#: Images of each cut, in `make crash`.
IMAGES = 1 if "PS_POWER_IMAGES" not in os.environ else 3
SEGMENT = 16 << 10
SIZES = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 16,
    "maxIndexNum": 128,
}

Tree = dict[str, bytes]


def write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


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
        self.tmp = tmp
        self.count = 0
        command, pipe = [sys.executable, "-u", str(CHILD)], subprocess.PIPE
        self.child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"LD_PRELOAD": str(shim)},
            cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def run(self, what: str, store: Path, seed: int, cut: int) -> tuple[power.Disk, int | None]:
        """The disk after it, and the number of calls of a life that was not cut."""
        self.count += 1
        root, kept = self.tmp / f"disk-{self.count}", self.tmp / f"kept-{self.count}"
        shutil.copytree(store, root)
        kept.mkdir()
        given = {"what": what, "store": str(root), "kept": str(kept), "seed": seed, "cut": cut}
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print(json.dumps(given), file=self.child.stdin, flush=True)
        answer = self.child.stdout.readline().split()
        assert answer[0] in ("cut", "done"), answer
        return power.Disk.of(root, kept), int(answer[1]) if answer[0] == "done" else None

    def forget(self) -> None:
        for name in ("disk", "kept"):
            shutil.rmtree(self.tmp / f"{name}-{self.count}")


@pytest.fixture
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    tmp = tmp_path_factory.mktemp("lives")
    shim = power.build(tmp)
    if shim is None:
        pytest.skip("needs Linux and a C compiler")
    made = Lives(shim, tmp)
    with made.child:
        yield made


def image_of(disk: power.Disk, to: Path, rng: random.Random) -> Path:
    """An image on which files are as they were numbered: a manifest names inodes."""
    numbers = disk.image(to, rng)
    for manifest in to.glob("repair-*/manifest.json"):
        data: Any = json.loads(manifest.read_bytes())
        for action in data["actions"]:
            inodes = action["data"].get("inodes", {})
            for name, inode in inodes.items():
                inodes[name] = numbers.get(inode, inode)
        manifest.write_text(json.dumps(data))
    return to


def check_repaired(done: Repair) -> None:
    """Two records claim one queue offset: that stays."""
    assert done.after is not None
    assert {f.kind for f in done.after.errors} == {"same-offset"}, done.after.findings


def differing(one: Tree, other: Tree) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def check(image: Path, before: Tree, rng: random.Random, *, goes_back: bool) -> str:
    """What the power left is the store before, or is brought to an end by whatever runs next."""
    if rng.random() < 0.5:
        shutil.copytree(image, again := image.with_name("again"))
        keep_inodes(image, again)
        done = repair(again)
        check_repaired(done)
        shutil.rmtree(again)
    try:
        undo(image)
        how = "finished"
    except pystore.NotFound:
        how = "there"
    assert differing(tree(image), before) == [], (how, goes_back)
    return how


def keep_inodes(image: Path, copy: Path) -> None:
    numbers = {path.lstat().st_ino: copy / path.relative_to(image) for path in image.rglob("*")}
    for manifest in copy.glob("repair-*/manifest.json"):
        data: Any = json.loads(manifest.read_bytes())
        for action in data["actions"]:
            inodes = action["data"].get("inodes", {})
            for name, inode in inodes.items():
                if inode in numbers:
                    inodes[name] = numbers[inode].lstat().st_ino
        manifest.write_text(json.dumps(data))


@pytest.mark.parametrize("what", ["repair", "undo"])
def test_a_power_failure_amid(what: str, lives: Lives, tmp_path: Path):
    seed = int(os.environ.get("PS_SEED") or random.randrange(1 << 30))
    print("PS_SEED", seed)
    rng = random.Random(seed)
    store = tmp_path / "store"
    make(store)
    before = tree(store)
    if what == "undo":
        done = repair(store)
        assert {a.do for a in done.actions} == {
            "patch", "zero", "resize", "create", "move", "replace", "keep", "rebuild"
        }, [(a.do, a.what) for a in done.actions]  # fmt: skip
        check_repaired(done)
    _, calls = lives.run(what, store, seed, 0)
    lives.forget()
    assert calls is not None
    print(calls, "calls")
    seen = set()
    for cut in sorted(rng.sample(range(1, calls + 1), min(CUTS, calls))):
        disk, ended = lives.run(what, store, seed, cut)
        for number in range(IMAGES):
            dice = random.Random(seed * 1_000_003 + cut * 101 + number)
            image = image_of(disk, tmp_path / "image", dice)
            try:
                seen.add(check(image, before, dice, goes_back=what == "undo"))
            except BaseException:
                print("PS_SEED", seed, "cut", cut, "image", number, "ended", ended)
                raise
            shutil.rmtree(image)
        lives.forget()
    print(seen)
