"""The pages as a visitor sees them, by the browser; their pictures are those of docs/web.md.

With PYSTORE_PICTURES=1 the pictures in docs/pictures are made again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import Browser
from pages import visiting, visiting_server
from waiting import until

import pystore
from broker import Admin, Broker, Consumer, Message, Producer
from broker.web import cached, cluster_facts, cluster_overview
from broker.web.cluster_server import ClusterServer

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "museum"))
import damage

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pictures"


@pytest.fixture
def pictures(tmp_path: Path, browser: Browser) -> Iterator[Path]:
    yield DOCS if os.environ.get("PYSTORE_PICTURES") else tmp_path
    browser.as_usual()


def taken(browser: Browser, file: Path) -> None:
    """Nothing may be wider than the page, nothing refused by its policy, and something is drawn."""
    wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(wider) <= 0
    assert not browser.log()
    file.write_bytes(browser.picture())
    assert file.stat().st_size > 5000


def test_a_damaged_store(browser: Browser, pictures: Path, tmp_path: Path) -> None:
    """From the page that says it cannot be opened to the damaged bytes, on a desk and a phone."""
    folder = tmp_path / "store"
    with pystore.open(
        folder, mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=6000,
        maxMessageSize=16 << 10,
    ) as store:  # fmt: skip
        for number in range(400):
            store.put("orders", b'{"apples": %d, "note": "%s"}' % (number, b"x" * 900))
    found = list(damage.records(folder))
    damage.flip(found[20].file, found[20].at + 300)
    damage.write(found[100].file, found[100].at, bytes(9 * found[100].size))
    damage.segments(folder)[4].unlink()
    with visiting(folder) as visitor:
        visitor.server.target = "/data/rocketmq/store"
        browser.look(height=640)
        browser.open(visitor.server.address)
        base = str(browser.run("return location.origin"))
        assert "cannot be opened" in browser.text()
        browser.open(f"{base}/verify?run=1")
        until(lambda: "Check again" in browser.text())
        browser.open(f"{base}/map")
        assert browser.run("return document.querySelectorAll('rect.missing').length") == 1
        taken(browser, pictures / "web-map.png")
        browser.look(dark=True, width=390, height=700)
        browser.open(f"{base}/map")
        taken(browser, pictures / "web-map-phone.png")
        browser.look(height=640)
        browser.run("document.querySelector('rect.error').parentNode.dispatchEvent("
                    "new MouseEvent('click', {bubbles: true, cancelable: true}))")  # fmt: skip
        until(lambda: "/log" in browser.path())
        taken(browser, pictures / "web-log.png")


def test_a_record_field_by_field(browser: Browser, pictures: Path, golden: object) -> None:
    with visiting(golden("normal-exit")) as visitor:  # type: ignore[operator]
        visitor.server.target = "/data/rocketmq/store"
        browser.look(dark=True, height=900)
        browser.open(visitor.server.address)
        base = str(browser.run("return location.origin"))
        browser.open(f"{base}/message?at=0")
        browser.run("document.querySelector('table:last-of-type').scrollIntoView();"
                    "document.querySelectorAll('h2')[2].scrollIntoView()")  # fmt: skip
        taken(browser, pictures / "web-record.png")
        browser.look(height=640)
        browser.open(f"{base}/groups")
        taken(browser, pictures / "web-groups.png")
        until(lambda: "Refresh" not in visitor.get("/").headers, "what the page counts")
        browser.look(height=900)
        browser.open(f"{base}/")
        taken(browser, pictures / "web-store.png")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Broker]:
    """Three dead letters of a group."""
    with Broker(
        tmp_path / "store", listenPort=0, with_namesrv=True, drain_s=0.1, brokerName="broker-a",
        mappedFileSizeCommitLog=16 << 20,
    ) as made:  # fmt: skip
        names = made.namesrv_address
        with Producer("shop", names) as producer:
            for number in range(3):
                producer.send(Message("orders", b"%d apples" % number, keys=f"order-{number}"))
        with Consumer("billing", "orders", namesrv=names, start="first") as consumer:
            dead = 0
            while dead < 3:
                for message in consumer.poll(30):
                    consumer.nack(message, -1)
                    dead += 1
        until(lambda: made.store.range("%DLQ%billing", 0)[1] == 3)
        yield made


def test_dead_letters_are_redriven_by_a_person(
    browser: Browser, pictures: Path, running: Broker
) -> None:
    """From the list to the form; first a look, then the button that sends."""
    address = running.namesrv_address
    make = lambda: ClusterServer(address, "127.0.0.1", 0, write=True)  # noqa: E731
    with visiting_server(make) as visitor:
        browser.look(height=560)
        browser.open(visitor.server.address)
        base = str(browser.run("return location.origin"))
        browser.open(f"{base}/dead")
        browser.run("[...document.links].find(a => a.textContent == 'redrive').click()")
        until(lambda: "/redrive" in browser.path())
        browser.run("document.querySelector('button[value=look]').click()")
        until(lambda: "3 would be sent" in browser.text())
        assert running.store.range("%RETRY%billing", 0)[1] == 0
        taken(browser, pictures / "web-redrive.png")
        browser.run("document.querySelector('button[value=send]').click()")
        until(lambda: "3 sent" in browser.text())
        assert running.store.range("%RETRY%billing", 0)[1] == 3


def test_offsets_and_settings_are_changed_by_a_person(
    browser: Browser, pictures: Path, running: Broker
) -> None:
    """From the group to the form that moves it, and from the broker to a setting; each says what
    it has done."""
    make = lambda: ClusterServer(running.namesrv_address, "127.0.0.1", 0, write=True)  # noqa: E731

    def follow(text: str, path: str) -> None:
        browser.run(f"[...document.links].find(a => a.textContent == '{text}').click()")
        until(lambda: browser.path() == path)

    def says(text: str) -> None:
        until(lambda: text in browser.text())

    with visiting_server(make) as visitor:
        browser.look(height=700)
        browser.open(visitor.server.address)
        base = str(browser.run("return location.origin"))
        browser.open(f"{base}/group?name=billing")
        mover = ("[...document.links].find(a => a.textContent == 'move'"
                 " && a.href.includes('topic=orders'))")  # fmt: skip
        until(lambda: browser.run(f"return Boolean({mover})"), "that its lag was counted")
        browser.run(f"{mover}.click()")
        until(lambda: browser.path() == "/reset")
        browser.run("document.querySelector('input[value=first]').click();"
                    "document.querySelector('button[value=look]').click()")  # fmt: skip
        says("would be moved")
        taken(browser, pictures / "web-reset.png")
        browser.run("document.querySelector('button[value=move]').click()")
        says("were moved")
        browser.open(f"{base}/")
        follow("broker-a", "/broker")
        browser.open(str(browser.run("return location.href")) + "&q=fileReservedTime")
        follow("change", "/setting")
        browser.run("document.querySelector('input[name=value]').value = '48';"
                    "document.querySelector('button[value=look]').click()")  # fmt: skip
        says("will have 48 instead of")
        browser.run("document.querySelector('button[value=change]').click()")
        says("has taken 48")
        taken(browser, pictures / "web-setting.png")
    with Admin(running.namesrv_address) as admin:
        assert all(lag.committed == 0 for lag in admin.lag("billing", "orders"))
        assert admin.configuration(f"127.0.0.1:{running.port}")["fileReservedTime"] == "48"


def test_rates_are_drawn(
    browser: Browser, pictures: Path, running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_facts, "_STEP_S", 0.05)
    monkeypatch.setattr(cached, "_FRESH_S", 0.05)
    monkeypatch.setattr(cluster_overview, "_STEP_S", 0.05)
    make = lambda: ClusterServer(running.namesrv_address, "127.0.0.1", 0)  # noqa: E731
    with visiting_server(make) as visitor, Producer("shop", running.namesrv_address) as producer:
        browser.look(height=900)
        browser.open(visitor.server.address)
        until(lambda: visitor.get("/").body.count(b"<polyline") == 4, "two looks at the rates")
        until(lambda: b'class="finding ' in visitor.get("/").body, "what the doctor finds")
        browser.open(str(browser.run("return location.origin")) + "/")
        taken(browser, pictures / "web-cluster.png")
        browser.look(height=640)
        base = str(browser.run("return location.origin"))

        def drawn() -> bool:
            for _ in range(50):
                producer.send(Message("orders", b"more"))
            browser.open(f"{base}/rates?still=1")
            points = "return document.querySelector('polyline.came').points.numberOfItems"
            return int(browser.run(points)) > 3

        until(drawn)
        taken(browser, pictures / "web-rates.png")
        for number in range(20):
            body = b'{"order": %d, "amount": "%d.95"}' % (number, 7 * number)
            producer.send(Message("orders", body, keys=f"order-{number}", tags="paid"))
        browser.look(height=760)
        browser.open(f"{base}/topic?name=orders&tag=paid&text=order")
        until(lambda: "20 messages" in browser.text(), "the messages")
        taken(browser, pictures / "web-topic.png")
