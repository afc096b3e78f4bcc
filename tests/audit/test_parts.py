"""An audit in parts finds what one process finds, wherever the parts are done, in any order."""

from __future__ import annotations

import functools
import pickle
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pystore import errors
from pystore.audit import Audit, verify
from pystore.audit.parts import AuditContext, AuditPart, PartFindings, SpreadAudit, audit_part
from tests.museum import damage, kinds

SHOWN = 12


def spread(rng: random.Random, most: int) -> Callable[..., SpreadAudit]:
    """Parts done by chance, each by what a process elsewhere would be sent."""

    def run(shared: AuditContext, parts: Sequence[AuditPart]) -> Iterable[PartFindings]:
        sent = [pickle.dumps((shared, part)) for part in parts]
        order = list(range(len(sent)))
        rng.shuffle(order)
        found = {i: audit_part(*pickle.loads(sent[i])) for i in order}
        return [found[i] for i in range(len(sent))]

    return functools.partial(SpreadAudit, run=run, most=most)


def seen(audit: Audit) -> dict[str, Any]:
    """All of it but the time that it took."""
    found = asdict(audit) | {"seconds": 0}
    found["findings"] = sorted(map(repr, found["findings"]))
    return found


def check_equal(root: Path, rng: random.Random, **more: Any) -> Audit:
    whole = verify(root, **more)
    for most in (1, 2, 7):
        assert seen(verify(root, core=spread(rng, most), **more)) == seen(whole)
    return whole


@pytest.mark.parametrize("name", ["normal-exit", "killed"])
def test_stores_of_javas_broker(golden, rng, name):
    assert check_equal(golden(name), rng, deep=True).records > 0


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> kinds.Sample:
    return kinds.make_ours(tmp_path_factory.mktemp("parts") / "store")


def test_damaged_stores_of_the_museum(ours, rng, tmp_path):
    """Damage of every kind of file, by chance."""
    every = [kind for kind in kinds.all_kinds() if kind.store.startswith("ours")]
    found = 0
    for number, kind in enumerate(rng.sample(every, SHOWN)):
        root = tmp_path / str(number)
        shutil.copytree(ours.root, root, symlinks=True)
        kind.do(ours, root)
        if kind.store == "ours crashed":
            damage.crash(root)
        print(kind.store, kind.name)
        found += len(check_equal(root, rng).findings)
        shutil.rmtree(root)
    assert found > 0


def test_another_store_at_the_path_is_refused(ours, rng, tmp_path):
    """As an executor on a host where the path leads elsewhere would meet it."""

    def run(shared: AuditContext, parts: Sequence[AuditPart]) -> Iterable[PartFindings]:
        shared.witness = bytes(len(shared.witness))
        return [audit_part(shared, part) for part in parts]

    with pytest.raises(errors.NotAStore, match=r"on host .*: not the store"):
        verify(ours.root, core=functools.partial(SpreadAudit, run=run, most=2))
