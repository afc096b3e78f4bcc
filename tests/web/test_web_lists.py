"""Groups, dead letters, bytes of a damaged log, and signing in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Visitor, visiting
from waiting import until

import pystore
from broker.client.credentials import Credentials
from broker.web import page_server

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "museum"))
import damage

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 512, "maxIndexNum": 1024, "maxMessageSize": 16 << 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, unpack_golden: Any) -> Iterator[Visitor]:
    with visiting(unpack_golden("normal-exit", tmp_path_factory.mktemp("java"))) as made:
        yield made


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A body that is torn, a hole, and a segment that is gone: it cannot be opened."""
    folder = tmp_path_factory.mktemp("broken") / "store"
    with pystore.open(folder, **SMALL) as store:
        for number in range(400):
            store.put("orders", b"%05d" % number * 200, tags="paid", keys=f"order-{number}")
    found = list(damage.records(folder))
    damage.flip(found[20].file, found[20].at + 300)
    damage.write(found[100].file, found[100].at, bytes(4 * found[100].size))
    damage.segments(folder)[4].unlink()
    return folder


def test_groups_with_what_waits_for_them(java: Visitor) -> None:
    rows = java.get("/groups").rows()
    assert ["golden1-group", "1", "0", "", "24"] in rows
    assert not any("CID_RMQ_SYS_TRANS" in row for row in rows), "it is a broker's own"
    assert ["CID_RMQ_SYS_TRANS", "2", "49", "", "0"] in java.get("/groups", kind="system").rows()
    group = java.get("/group", name="golden1-group")
    assert group.status == 200 and "Retries" in group.text
    assert java.get("/group", name="absent").status == 404
    assert next(r for r in java.get("/groups", q="GOLDEN1-R").rows() if r)[0] == "golden1-retry"


def test_dead_letters_by_group(java: Visitor) -> None:
    page = java.get("/dead")
    assert ["golden1-group", "24"] in [row[:2] for row in page.rows()]
    assert "/topic?name=%25DLQ%25golden1-group" in page.body.decode()


@pytest.fixture
def checked(broken: Path) -> Iterator[Visitor]:
    with visiting(broken) as visitor:
        assert visitor.get("/verify", run=1).status == 303
        until(lambda: "Check again" in visitor.get("/verify").text)
        yield visitor


def test_a_store_that_cannot_be_opened_is_checked_all_the_same(checked: Visitor) -> None:
    page = checked.get("/")
    assert page.status == 200 and "cannot be opened" in page.text
    text = checked.get("/verify").text
    for kind in ("damaged-record", "log-hole", "missing-segment"):
        assert kind in text


def test_the_map_draws_every_segment_and_what_is_wrong(checked: Visitor, broken: Path) -> None:
    page = checked.get("/map").body.decode()
    audit = pystore.audit.verify(broken)
    for finding in audit.findings:
        if finding.kind in ("damaged-record", "log-hole"):
            assert f'"/log?at={finding.start}"' in page
    assert page.count("<svg") == len(damage.segments(broken)) + 1  # the one that is gone
    assert page.count('class="missing" x=') == 1
    assert 'rect class="error"' in page


def test_the_next_whole_record_after_damage_is_found(checked: Visitor, broken: Path) -> None:
    audit = pystore.audit.verify(broken)
    hole = next(f for f in audit.findings if f.kind == "log-hole")
    assert "Nothing but zeros" in checked.get("/log", at=hole.start).text
    found = checked.get("/log", at=hole.start, seek=1)
    assert found.headers["Location"] == f"/log?at={hole.end}"
    torn = next(f for f in audit.findings if f.kind == "damaged-record")
    assert "does not fit its checksum" in checked.get("/log", at=torn.start).text
    assert "A whole record begins here" in checked.get("/log", at=hole.end).text
    assert "No whole record" in checked.get("/log", at=(hole.end or 0) + 1).text
    assert "No file" in checked.get("/log", at=1 << 40).text


def test_a_blank_record_is_named(checked: Visitor, broken: Path) -> None:
    first = damage.segments(broken)[0]
    end = max(r.physical + r.size for r in damage.records(broken) if r.file == first)
    assert "blank record" in checked.get("/log", at=end).text


def test_pages_leave_the_folder_as_it_is(golden: Callable[[str], Path]) -> None:
    store = golden("killed")

    def state() -> dict[str, tuple[Any, ...]]:
        return {
            str(path): (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            for path in sorted([store, *store.rglob("*")])
            for facts in [path.lstat()]
        }

    before = state()
    with visiting(store) as visitor:
        for path in ("/topic?name=golden2_burst", "/groups", "/dead", "/map", "/log?at=1&seek=1",
                     "/verify?run=1"):  # fmt: skip
            assert visitor.get(path).status in (200, 303), path
        until(lambda: "Check again" in visitor.get("/verify").text)
        for path in ("/", "/doctor"):  # what they look at in the background, too
            until(lambda path=path: "Refresh" not in visitor.get(path).headers, path)
    assert state() == before


def test_user_and_secret_let_in_where_there_are_credentials(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "_PAUSE_S", 0.0)
    with visiting(broken, Credentials("ops", "s3cret\u00e4")) as visitor:
        secret, visitor.token = visitor.server.token, None
        assert secret not in visitor.server.address
        assert visitor.get("/", token=secret).status == 403, "nobody was told this secret"
        for user, given in (("ops", "wrong"), ("", ""), ("other", "s3cret\u00e4")):
            assert visitor.post("/sign-in", user=user, secret=given).status == 403
        answer = visitor.post("/sign-in", user="ops", secret="s3cret\u00e4")
        assert answer.status == 303
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        assert visitor.get("/find", headers={"Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_form_of_another_site_is_refused(broken: Path, headers: dict[str, str]) -> None:
    with visiting(broken, Credentials("ops", "s3cret")) as visitor:
        answer = visitor.post("/sign-in", headers, user="ops", secret="s3cret")
        assert answer.status == 403 and "Set-Cookie" not in answer.headers
