"""Stores that were damaged and repaired, opened by Apache RocketMQ's own store."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import storeview

import pystore
from pystore.repair import repair

sys.path.insert(0, str(Path(__file__).parents[1] / "audit"))
from damages import CASES, Sample, poke, sample

__all__ = ["sample"]  # a fixture
pytestmark = [pytest.mark.java, pytest.mark.slow]

#: Damage of the log, of the queues and of the index; Java has to walk over the filler of the first.
NAMES = ["magic", "page of zeros", "early blank", "zero queue file", "queue gone", "index chain"]
GOLDEN = "a hole in a killed store of Java"


Judged = dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[tuple[str, str]]]]


@pytest.fixture(scope="module")
def judged(
    reference: Any, sample: Sample, tmp_path_factory: pytest.TempPathFactory,
    unpack_golden: Callable[[str, Path], Path],
) -> Iterator[Judged]:  # fmt: skip
    """What we see in each repaired store, what Java sees, and the keys that it was asked for."""
    tmp = tmp_path_factory.mktemp("repaired")
    damages = {name: damage for name, damage, _ in CASES}
    roots = {GOLDEN: unpack_golden("killed", tmp)}
    poke(roots[GOLDEN] / "commitlog" / f"{0:020d}", 100_000, bytes(5000))
    for name in NAMES:
        roots[name] = Path(shutil.copytree(sample.root, tmp / name.replace(" ", "-")))
        damages[name](sample, roots[name])
    jobs, ours = [], []
    for root in roots.values():
        done = repair(root)
        assert done.after is not None
        assert done.after.sound, done.after.findings
        with pystore.Reader(root) as reader:
            view = storeview.view(reader)
        keys = sorted({
            (line["topic"], key) for line in view if line["at"] == "msg"
            for key in storeview.keys_of(line["props"]) if line["sys_flag"] & 0xC == 0
        })[::97]  # fmt: skip
        ours.append((view, keys))
        jobs.append(reference.job(root, storeview.sizes_of(root), keys))
    dumps = reference.dumps(tmp / "java", jobs)
    yield {
        name: (view, dump, keys)
        for name, (view, keys), dump in zip(roots, ours, dumps, strict=True)
    }
    shutil.rmtree(tmp)


@pytest.mark.parametrize("name", [GOLDEN, *NAMES])
def test_java_sees_a_repaired_store_as_we_do(judged: Judged, name: str):
    """The same records and units, the filler among them, and every key leads to its messages."""
    ours, java, keys = judged[name]
    assert java[0]["loaded"] is True
    assert storeview.explain(ours, storeview.of_dump(java)) == ""
    found = {(k["topic"], k["key"]): k["found"] for k in java if k["at"] == "key"}
    assert len(found) == len(keys) > 10
    assert all(found.values())
