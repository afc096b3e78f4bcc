"""Every public name of the client and the embedded broker has an example in its docstring that runs
as it stands there, where NAMESRV_ADDR names a broker; what a client shows is what its page names.
"""

from __future__ import annotations

import doctest
import re
from collections import defaultdict
from pathlib import Path

import pytest

import broker
import broker.client
import pystore
from broker import (
    AsyncConsumer,
    AsyncLiteConsumer,
    AsyncProducer,
    AsyncTransactionProducer,
    Broker,
    Consumer,
    LiteConsumer,
    LocalState,
    Message,
    OffsetOption,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionProducer,
)

NAMES = sorted({*broker.__all__, *broker.client.__all__})


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory):
    settings = {"messageDelayLevel": "1s 2s 3s", "enablePropertyFilter": True}
    folder = tmp_path_factory.mktemp("store")
    with Broker(folder, listenPort=0, with_namesrv=True, drain_s=0.1, **settings) as made:
        yield made.namesrv_address


@pytest.mark.parametrize("name", NAMES)
def test_its_example_runs(name, namesrv, tmp_path, monkeypatch):
    value = getattr(broker, name, None) or getattr(broker.client, name)
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(value.__doc__ or "", {}, name, None, None)
    assert found.examples, f"{name} has no example in its docstring"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert result.failed == 0, "".join(said)


DOCS = Path(__file__).resolve().parents[2] / "docs"


def named_on(page: str) -> dict[str, set[str]]:
    """What the section "Methods" of a page names: `` - `Class`, `Class`: `name`, `name` ``."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition("\n## Methods\n")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = defaultdict(set)
    for item in re.split(r"\n- ", section)[1:]:
        classes, _, names = item.partition(":")
        for each in re.findall(r"`(\w+)`", classes):
            found[each] |= set(re.findall(r"`(\w+)`", names))
    return found


def shown(value: object) -> set[str]:
    """What a completion shows of it."""
    return {name for name in dir(value) if not name.startswith("_")}


def _check(message: ReceivedMessage) -> LocalState:
    return LocalState.UNKNOWN


def test_the_page_names_what_the_clients_show() -> None:
    names = "127.0.0.1:1"
    clients = [
        Producer("p", names), AsyncProducer("p", names), Consumer("g", "t", names),
        AsyncConsumer("g", "t", names), TransactionProducer("p", names, check=_check),
        AsyncTransactionProducer("p", names, check=_check), LiteConsumer("g", "t", names),
        AsyncLiteConsumer("g", "t", names),
    ]  # fmt: skip
    half = Transaction(Message("t", b"x"), None)  # type: ignore[arg-type]
    page = named_on("client.md")
    for of_all, kind in (("Producer", "Transaction"), ("AsyncProducer", "AsyncTransaction")):
        page[f"{kind}Producer"] |= page[of_all]
    assert {type(each).__name__: shown(each) for each in (*clients, half)} | {
        "ReceivedMessage": shown(ReceivedMessage),
        "OffsetOption": shown(OffsetOption),
    } == page


def test_the_page_names_what_a_store_shows(tmp_path: Path) -> None:
    with pystore.open(tmp_path / "s") as store, pystore.Reader(tmp_path / "s") as reader:
        found = {type(each).__name__: shown(each) for each in (store, reader, store.metadata)}
    assert found == named_on("reference.md")
