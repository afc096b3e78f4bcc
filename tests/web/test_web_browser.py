"""`pystore web` in a real browser: Debian's chromium and its driver, where they are installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import Browser
from pages import visiting
from waiting import until

import pystore

_TAB, _ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("browser") / "store"
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    with pystore.open(
        path, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=6000,
        maxMessageSize=1 << 16,
    ) as made:  # fmt: skip
        made.put("evil", evil, queue=0, keys=evil[:60], tags=evil[:60], properties={"p": evil})
        for number in range(40):
            made.put("orders", f"{number} apples", queue=0, keys=f"k{number}")
    with visiting(path) as visitor:
        yield visitor.server.address


def test_a_person_goes_from_the_store_to_a_record(browser: Browser, address: str) -> None:
    browser.open(address)
    assert browser.run("return document.querySelector('h1').textContent") == "Store"
    assert "token" not in browser.run("return location.href"), "it is not left in the address"
    browser.run("[...document.links].find(a => a.textContent == 'Topics').click()")
    until(lambda: browser.path() == "/topics", "the topics")
    browser.run("[...document.links].find(a => a.textContent == 'orders').click()")
    until(lambda: "orders" in browser.run("return document.title"), "the topic")
    browser.run("document.querySelector('td a[href^=\"/message\"]').click()")
    until(lambda: "Message" in browser.run("return document.title"), "the message")
    assert "physicalOffset" in browser.text()
    styled = browser.run("return getComputedStyle(document.querySelector('pre')).maxHeight")
    assert styled != "none", "the stylesheet is let in by the policy"
    assert not browser.log(), "nothing was refused or failed"


def test_a_hostile_message_stays_text(browser: Browser, address: str) -> None:
    browser.open(address)
    base = browser.run("return location.origin")
    browser.open(f"{base}/topic?name=evil")
    assert browser.run("return document.title") != "owned"
    browser.open(f"{base}/message?at=0")
    assert "owned" in browser.run("return document.querySelector('pre').textContent")
    assert "Message at 0" in browser.run("return document.title")
    assert browser.run("return document.scripts.length + document.images.length") == 0


def test_it_works_by_the_keyboard_alone(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.open(browser.run("return location.origin") + "/topics")
    browser.keys(_TAB)
    assert browser.run("return document.activeElement.textContent") == "To the content"
    browser.run("document.querySelector('input[name=q]').focus()")
    browser.keys("ord" + _ENTER)
    until(lambda: "q=ord" in browser.run("return location.search"), "the search")
    assert browser.run("return document.querySelectorAll('tbody tr').length") == 1


def test_nothing_is_wider_than_a_phone(browser: Browser, address: str) -> None:
    browser.open(address)
    base = browser.run("return location.origin")
    browser.size(500, 900)  # the narrowest that this browser has
    try:
        for path in (
            "/", "/topics", "/topic?name=orders", "/message?at=0", "/find", "/verify", "/waiting",
        ):  # fmt: skip
            browser.open(base + path)
            too_wide = browser.run(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert too_wide <= 0, path
    finally:
        browser.size(1200, 900)


def test_a_check_ends_by_itself(browser: Browser, address: str, tmp_path: Path) -> None:
    browser.open(address)
    browser.open(browser.run("return location.origin") + "/verify?run=1")
    until(lambda: "Sound" in browser.text(), "the verdict")
    assert browser.run("return document.querySelectorAll('svg rect').length") == 1
    (tmp_path / "verify.png").write_bytes(browser.picture())
    assert (tmp_path / "verify.png").stat().st_size > 1000
