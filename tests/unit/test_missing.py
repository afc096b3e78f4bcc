"""A missing topic or queue: the error names the nearest topic, or the queues that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pystore


@pytest.fixture
def store(tmp_path: Path, small: dict[str, Any]) -> Any:
    with pystore.open(tmp_path / "store", **small) as opened:
        for queue in range(4):
            opened.put("orders", b"x", queue=queue)
        opened.put("Payments", b"x", queue=0)
        yield opened


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("order", "the store has no topic 'order'; did you mean 'orders'?"),
        ("payment", "the store has no topic 'payment'; did you mean 'Payments'?"),
        ("qqq", "the store has no topic 'qqq'"),
        ("o" * 5000, f"the store has no topic '{'o' * 260}'"),
    ],
)
def test_a_missing_topic_names_the_nearest(store: Any, topic: str, text: str) -> None:
    for call in (
        lambda: store.offset_at(topic, 0, 0),
        lambda: store.units(topic, 0, 0, 1),
        lambda: store.arrow(topic),
        lambda: store.delete_topic(topic),
    ):
        with pytest.raises(pystore.NotFound) as caught:
            call()
        assert caught.value.text == text


def test_a_missing_queue_names_those_there_are(store: Any) -> None:
    with pytest.raises(pystore.NotFound) as caught:
        store.arrow("orders", 9)
    assert caught.value.text == "the store has no queue orders/9; queues of this topic: 0 to 3"
    with pytest.raises(pystore.NotFound, match="queues of this topic: 0 "):
        store.arrow("Payments", 1)
