"""Every page in a real browser, in light, in dark and on a phone: nothing is wider than the page,
cut off, or too small to read. With PYSTORE_SCREENS=FOLDER, as `make screens` has it, the pictures
are kept, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chrome import Browser
from pages import Visitor, visiting, visiting_server
from waiting import until

import pystore
from broker import Admin, Broker, Consumer, Message, Producer
from broker.web import cached, cluster_overview
from broker.web.cluster_server import ClusterServer

LOOKS = {"light": (False, 1200), "dark": (True, 1200), "phone": (False, 390)}
LONG = "a-rather-long-name-of-a-topic-that-no-phone-shows-in-one-line-" + "x" * 50
#: What a page must not have: text that is wider than its element, an element that is wider than
#: the page, and letters of less than twelve pixels.
FAULTS = """
const wide = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > wide) found.push('the page is wider than the window');
for (const each of document.querySelectorAll('main *, header *')) {
  if (each.closest('svg, .skip, select')) continue;
  const box = each.getBoundingClientRect(), style = getComputedStyle(each);
  if (!box.width) continue;
  const name = each.tagName + ' ' + each.textContent.trim().slice(0, 40);
  const scrolls = each.closest('pre, .hex') || (wide > 500 && each.closest('.wide'));
  if (box.right > wide + 1 && !scrolls) found.push('cut off: ' + name);
  if (each.scrollWidth > each.clientWidth + 1 && style.overflowX == 'hidden')
    found.push('hidden: ' + name);
  if (each.childElementCount == 0 && each.textContent.trim() && parseFloat(style.fontSize) < 12)
    found.push('small: ' + name);
  if (wide < 500 && each.tagName == 'TH' && each.closest('.cards') && box.height)
    found.push('a table that is not cards: ' + name);
}
return found;
"""


def looked_at(browser: Browser, visitor: Visitor, pages: dict[str, str], kind: str) -> None:
    """Opens each in each look, some with what they ask, and compares what it finds with nothing."""
    kept = os.environ.get("PYSTORE_SCREENS")
    browser.open(visitor.server.address)
    base = str(browser.run("return location.origin"))
    faults: dict[str, Any] = {}
    for look, (dark, width) in LOOKS.items():
        for name, path in pages.items():
            browser.look(dark=dark, width=width, height=800)
            browser.open(base + path)
            until(browser.path, "the page")
            if name.endswith("-asked"):
                browser.run("document.querySelector('button[value=look]').click()")
                until(lambda: "Write mode." in browser.text(), "the question")
            if found := browser.run(FAULTS):
                faults[f"{name}, {look}"] = found
            if kept:
                height = int(browser.run("return document.documentElement.scrollHeight"))
                browser.look(dark=dark, width=width, height=min(max(height, 300), 2600))
                Path(kept).mkdir(parents=True, exist_ok=True)
                (Path(kept) / f"{kind}-{name}-{look}.png").write_bytes(browser.picture())
    browser.as_usual()
    assert not faults
    assert not [line for line in browser.log() if "/nothing" not in line]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Messages of several topics, long names, a group that is behind and one with dead letters."""
    with Broker(
        tmp_path / "store", listenPort=0, with_namesrv=True, drain_s=0.1, brokerName="broker-a",
        mappedFileSizeCommitLog=16 << 20, traceTopicEnable=True,
    ) as made:  # fmt: skip
        names = made.namesrv_address
        with Admin(names) as admin:
            for topic in ("orders", "payments", LONG):
                admin.create_topic(topic, queues=4)
            for group in ("billing", "search-index", "group-of-" + LONG):
                admin.create_group(group)
        with Producer("shop", names) as producer:
            for number in range(60):
                body = b'{"order": %d, "amount": "%d.95", "paid": true}' % (number, number)
                producer.send(Message("orders", body, keys=f"order-{number}", tags="paid"))
            producer.send(Message(LONG, b"x" * 300, keys="k" * 90, tags="t" * 60))
        with Consumer("billing", "orders", namesrv=names, start="first") as consumer:
            seen = 0
            while seen < 60:
                for message in consumer.poll(30):
                    seen += 1
                    if seen <= 3:
                        consumer.nack(message, -1)
                    else:
                        consumer.ack(message)
            consumer.commit()
        until(lambda: made.store.range("%DLQ%billing", 0)[1] == 3)
        with Admin(names) as admin:
            admin.reset_offsets("search-index", "orders", "first")
            admin.reset_offsets("group-of-" + LONG, LONG, "first")
        yield made


@pytest.mark.long
def test_pages_of_a_cluster_are_whole_and_legible(
    browser: Browser, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "_FRESH_S", 0.05)
    monkeypatch.setattr(cluster_overview, "_STEP_S", 0.05)
    address = f"127.0.0.1:{broker.port}"
    at = next(q for q in broker.store.queues("orders") if len(q))
    place = f"topic=orders&broker=broker-a&queue={at.queue}&offset=0"
    pages = {
        "overview": "/", "topics": "/topics", "topics-all": "/topics?kind=all",
        "topic": "/topic?name=orders", "topic-long": f"/topic?name={LONG}", "groups": "/groups",
        "group": "/group?name=billing", "clients": "/clients", "users": "/users",
        "topic-filtered": "/topic?name=orders&tag=paid&text=order&live=1",
        "queue": f"/topic?name=orders&queue={at.queue}", "send": "/send?topic=orders",
        "topic-form": "/topic-form?name=orders", "group-form": "/group-form",
        "trace": "/trace?id=x", "figures": f"/broker?address={address}&kind=figures",
        "find": "/find?topic=orders&key=order-7",
        "message": f"/message?{place}", "dead": "/dead", "rates": "/rates?still=1",
        "doctor": "/doctor", "broker": f"/broker?address={address}&q=file",
        "redrive": "/redrive?group=billing", "reset": "/reset?group=billing&topic=orders",
        "setting": f"/setting?address={address}&name=fileReservedTime", "refused": "/nothing",
    }  # fmt: skip
    asked = ("redrive", "reset", "setting", "send", "topic-form")
    pages |= {f"{name}-asked": pages[name] for name in asked}
    make = lambda: ClusterServer(broker.namesrv_address, "127.0.0.1", 0, write=True)  # noqa: E731
    with visiting_server(make) as visitor, Producer("shop", broker.namesrv_address) as producer:

        def drawn() -> bool:
            producer.send(Message("orders", b"more", keys="more"))
            page = visitor.get("/")
            return page.body.count(b"<polyline") == 4 and b'class="finding' in page.body

        until(drawn, "lines, and what the doctor finds")
        looked_at(browser, visitor, pages, "cluster")


@pytest.mark.long
def test_pages_of_a_folder_are_whole_and_legible(
    browser: Browser, tmp_path: Path, golden: Any
) -> None:
    pages = {
        "overview": "/", "topics": "/topics", "topics-all": "/topics?kind=all",
        "topic": "/topic?name=golden1_normal", "groups": "/groups",
        "group": "/group?name=golden1-group", "find": "/find", "message": "/message?at=0",
        "dead": "/dead", "waiting": "/waiting", "verify": "/verify", "map": "/map", "log": "/log",
        "doctor": "/doctor",
    }  # fmt: skip
    with visiting(golden("normal-exit")) as visitor:
        visitor.server.target = "/data/rocketmq/store"
        with pystore.Reader(visitor.server.path) as reader:  # type: ignore[attr-defined]
            topic = next(name for name in reader.topics() if name[0] not in "%SRCTO")
        pages["topic"] = f"/topic?name={topic}"
        visitor.get("/verify", run=1)
        until(lambda: "Check again" in visitor.get("/verify").text, "the check")
        until(lambda: "Refresh" not in visitor.get("/").headers, "what the page counts")
        looked_at(browser, visitor, pages, "folder")
