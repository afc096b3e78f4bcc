"""The museum: no damage hides an undamaged message, and none is silent.

`make test` shows some by chance, of our stores; `make museum` shows all, of Apache's, too.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import storeview

import pystore
from pystore.audit import verify
from pystore.cli import main
from pystore.repair import repair
from tests.museum import damage, kinds

ALL = kinds.all_kinds()
OURS = [kind for kind in ALL if kind.store.startswith("ours")]
SHOWN = int(os.environ.get("PS_MUSEUM", "40"))
KEYS = 60


def chosen() -> list[kinds.Kind]:
    """Some by chance; a name that failed repeats with `make museum`."""
    if len(ALL) <= SHOWN:
        return ALL
    return random.Random(os.environ["PS_SEED"]).sample(OURS, SHOWN)


@pytest.fixture(scope="module")
def samples(tmp_path_factory, unpack_golden):
    """Sound stores by name, made when asked for."""
    made: dict[str, kinds.Sample] = {}

    def of(store: str) -> kinds.Sample:
        name = "ours" if store.startswith("ours") else store
        if name not in made:
            into = tmp_path_factory.mktemp(name)
            if name == "ours":
                made[name] = kinds.make_ours(into / "store")
            else:
                made[name] = kinds.Sample(unpack_golden(name, into), "").read()
                made[name].topic = longest(made[name])
        return made[name]

    return of


def longest(sample: kinds.Sample) -> str:
    """The topic of which queues 1 and 2 hold most messages."""
    held = Counter((w.topic, w.queue) for w in sample.whole)
    return max({w.topic for w in sample.whole}, key=lambda t: min(held[t, 1], held[t, 2]))


def damaged(kind: kinds.Kind, sample: kinds.Sample, root: Path) -> set[int]:
    """Makes the damaged copy; the places of the records that were touched."""
    shutil.copytree(sample.root, root, symlinks=True)
    touched = kind.do(sample, root) or set()
    if kind.store == "ours crashed":
        damage.crash(root)
    return touched


def stamps(root: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    for path in sorted(root.rglob("*")):
        s = path.lstat()
        read = 0 if path.is_symlink() else s.st_atime_ns  # a link's is renewed by a look at it
        found[str(path)] = (s.st_size, s.st_mtime_ns, s.st_ctime_ns, read, s.st_ino)
    return found


def lacks(store: pystore.Store, sample: kinds.Sample, touched: set[int]) -> list[object]:
    """What is undamaged and is not delivered by its queue, or not found by its key."""
    there = storeview.delivered(store)
    least = store.info().log_min
    lost: list[object] = []
    sound = [w for w in sample.whole if w.physical not in touched and w.physical >= least]
    for (topic, queue), got in there.items():
        order = [m for m in got if m[1] not in touched]
        assert order == sorted(order), (topic, queue)
    places = {key: set(got) for key, got in there.items()}
    lost += [w for w in sound if (w.offset, w.physical) not in places.get((w.topic, w.queue), ())]
    keyed = [w for w in sound if w.keys]
    for w in keyed[:: max(1, len(keyed) // KEYS)]:
        for key in w.keys:
            if w.physical not in [m.physical_offset for m in store.query(w.topic, key)]:
                lost.append((key, w))
    return lost


def after_open(root: Path, sample: kinds.Sample, touched: set[int]) -> list[object] | str:
    """What an open leaves out; the name of the error of one that refuses."""
    try:
        with pystore.open(root) as store:
            return lacks(store, sample, touched)
    except pystore.StoreError as e:
        return type(e).__name__


@pytest.mark.random
@pytest.mark.parametrize("kind", chosen(), ids=lambda k: f"{k.store}: {k.name}")
def test_nothing_whole_is_hidden(kind: kinds.Kind, samples, tmp_path: Path):
    sample = samples(kind.store)
    root = tmp_path / "store"
    touched = damaged(kind, sample, root)
    before = stamps(root)
    seen = verify(root)
    assert stamps(root) == before  # no tool makes it worse
    if kind.what == "first segment gone":
        touched |= {w.physical for w in sample.whole if w.physical < seen.log_min}
    lost = after_open(root, sample, touched)
    # After a crash the open mends what is called no damage.
    if seen.state == "crashed" and seen.sound and isinstance(lost, list):
        assert lost == [], seen.findings
    # The ends of derived files may be missing: the open makes them.
    assert seen.findings or kind.what in kinds.QUIET or (seen.state == "crashed" and not lost)
    if lost:
        done = repair(root)
        assert done.after is not None
        left = {f.kind for f in done.after.errors}
        if kind.what in kinds.GENERATION:
            left -= {"same-offset"}  # who restored the segment has to look at both
        again = after_open(root, sample, touched)
        assert left == set(), done.after.findings
        assert again == [], (lost, done.actions)


LOOKS = (
    ("dump",), ("repair", "--dry-run"), ("rebuild", "--dry-run"),
    ("carve", "OUT", "--dry-run"), ("put", kinds.TOPIC, "body", "--dry-run"),
)  # fmt: skip


def unread(found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Without the times of the last access: these commands map files, as every reader does."""
    return {path: (*stamp[:3], stamp[4]) for path, stamp in found.items()}


@pytest.mark.random
@pytest.mark.parametrize("kind", chosen()[::8], ids=lambda k: f"{k.store}: {k.name}")
def test_a_look_changes_nothing(kind: kinds.Kind, samples, tmp_path: Path, capsys):
    root, out = tmp_path / "store", tmp_path / "out"
    damaged(kind, samples(kind.store), root)
    before = unread(stamps(root))
    for command, *rest in LOOKS:
        main([command, str(root), *(str(out) if one == "OUT" else one for one in rest)])
        assert unread(stamps(root)) == before, command
    assert not out.exists()
    assert "Traceback" not in capsys.readouterr().err


def test_there_are_200_kinds():
    assert len({(k.store, k.name) for k in ALL}) == len(ALL) >= 200
