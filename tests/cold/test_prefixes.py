"""Thirty brokers' tiers in one object store: who asks for one of them looks at nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cli import main
from pystore.cold import objects
from pystore.cold.failures import NotATier
from pystore.cold.places import broker_folder
from pystore.cold.push import push
from pystore.cold.tier import new_tier
from pystore.cold.upkeep import collect, remove, verify

BROKERS = 30
CLUSTER = "c1"


class Noting:
    """obstore, whose requests are noted: what they name of the object store."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "get_range", "head", "put", "list", "delete"):
            return found

        def call(store: Any, key: str, *rest: Any, **more: Any) -> Any:
            self.asked.append(key)
            return found(store, key, *rest, **more)

        return call


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    made: Any = objects.RemoteObjects
    noting = Noting(pytest.importorskip("obstore"))
    monkeypatch.setattr(objects, "RemoteObjects", lambda _, *rest: made(noting, *rest))
    return noting


@pytest.fixture
def root(filled: Path, noting: Noting, tmp_path: Path) -> Iterator[str]:
    root = f"memory:///{tmp_path.name}/cold"
    with pystore.Reader(filled) as reader:
        for number in range(BROKERS):
            push(reader, new_tier(root, CLUSTER, f"broker-{number:02}"), topics=["orders"])
    noting.asked.clear()
    return root


def ask_reader(address: str) -> None:
    with pystore.Reader(address) as reader:
        reader.info()
        assert reader.queues()
        assert len(reader.read("orders", 0, 0)) > 0
        assert len(reader.query("orders", "order-0")) == 1
        assert sum(1 for _ in reader.messages()) == 450
        reader.offset_at("orders", 0, 0)
        reader.refresh()


def ask_upkeep(address: str) -> None:
    above, _, broker = address.rpartition("/")
    tier = new_tier(above.rpartition("/")[0], CLUSTER, broker)
    assert verify(tier).wrong == []
    assert remove(tier, "orders", 0) == 1
    assert collect(tier, grace_s=-1)[0] > 0


def said_by(*words: str) -> Any:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*words, "--json"]) == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize(
    "ask",
    [
        ask_reader,
        ask_upkeep,
        lambda address: said_by("info", address),
        lambda address: said_by("cold", "ls", address),
        lambda address: said_by("cold", "verify", address),
    ],
    ids=["reader", "upkeep", "info", "ls", "verify"],
)
def test_who_names_a_broker_asks_for_nothing_of_others(
    root: str, noting: Noting, ask: Callable[[str], object]
):
    below = broker_folder(CLUSTER, "broker-07")
    ask(f"{root}/{below}")
    assert noting.asked
    assert all(key.startswith(f"cold/{below}/") for key in noting.asked)


def test_a_root_is_told_from_a_tier_by_a_listing_a_broker(root: str, noting: Noting):
    rows = said_by("cold", "ls", root)["brokers"]
    assert [row["broker"] for row in rows] == [f"broker-{n:02}" for n in range(BROKERS)]
    assert len(noting.asked) <= BROKERS + 10
    with pytest.raises(NotATier, match="30 brokers' tiers"):
        pystore.Reader(root)
