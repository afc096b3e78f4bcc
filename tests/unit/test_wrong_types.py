"""Arguments of wrong types to every call of the store: a named error that says which, and what to
pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.errors import BadArgument, ReadOnly, StoreError

#: What a call with right arguments may have.
RIGHT: dict[str, Any] = {
    "topic": "t", "body": b"x", "bodies": [b"x"], "queue": 0, "offset": 0, "key": "k",
    "message_id": "7F00000100002A9F0000000000000000", "timestamp": 0, "level": 1,
}  # fmt: skip
CALLS = [
    (cls, name)
    for cls, names in (
        (pystore.Store, ("put", "put_many", "delete_topic", "batch")),
        (pystore.Reader, ("read", "query", "message", "message_by_id", "units", "offset_at",
                          "range", "queues", "log")),
    )
    for name in names
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arguments") / "store"
    with pystore.open(path) as store:
        store.put("t", b"x")
    return path


@pytest.fixture(scope="module")
def handles(folder: Path) -> Iterator[dict[type, Any]]:
    with pystore.open(folder) as store, pystore.Reader(folder) as reader:
        yield {pystore.Store: store, pystore.Reader: reader}


@pytest.mark.parametrize(("cls", "name"), CALLS, ids=lambda each: getattr(each, "__name__", each))
def test_a_wrong_argument_is_named(handles: dict[type, Any], cls: type, name: str) -> None:
    call = getattr(handles[cls], name)
    parameters = [
        each.name
        for each in inspect.signature(call).parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD and (each.default is each.empty)
    ] or ["topic" if name == "queues" else "offset"]
    for wrong in parameters:
        given = {each: RIGHT[each] for each in parameters} | {wrong: object()}
        with pytest.raises(StoreError) as failed:
            call(**given)
        assert "object" in failed.value.text, (name, wrong)
        assert failed.value.next_step


@pytest.mark.parametrize("made", [pystore.open, pystore.Reader])
@pytest.mark.parametrize("path", [None, 3, [b"x"]])
def test_a_path_of_a_wrong_type_is_named(made: Any, path: object) -> None:
    with pytest.raises(BadArgument, match=r"path is (NoneType|int|list)"):
        made(path)


def test_a_reader_says_that_it_does_not_write(folder: Path) -> None:
    with pystore.Reader(folder) as reader:
        with pytest.raises(ReadOnly, match=r"put\(\).*pystore.open"):
            reader.put("t", b"x")
        assert not hasattr(reader, "put")
        with pytest.raises(AttributeError, match="nosuch"):
            reader.nosuch  # noqa: B018
