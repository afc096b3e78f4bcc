"""Each verb that makes or mends a store compares what came out with what went in, by itself, as a
user types it: no setting is given.

`make test` takes a few of the museum's kinds by chance, `make museum` all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.audit import verify
from pystore.cli import main
from pystore.repair.census import Balance, Census, Contents, found_in
from tests.museum import kinds
from tests.museum.test_kinds import chosen, damaged, samples

__all__ = ["samples"]  # a fixture
GOLDEN = ("normal-exit", "killed", "killed-pop", "queue-ext", "timer")
#: Exit codes of a verb that made a store, or that says what kept it from that.
NAMED = (0, 3, 5, 6)
FEW = None if "PS_MUSEUM" in os.environ else 5


def as_a_user(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    """The exit code, and what the verb says of the records, and of its findings."""
    capsys.readouterr()
    code = main([*map(str, arguments), "--json"])
    out = capsys.readouterr().out
    said = json.loads(out) if out.strip() else {}
    return code, {**said.get("records", {}), "findings": said.get("findings")}


def stands(folder: Path) -> Census:
    """The records of a folder's segments, as they stand."""
    return Census.of((path, int(path.name)) for path in sorted(folder.iterdir()))


def same(one: Any, other: Any) -> bool:
    return bool((one.records, one.checksum) == (other.records, other.checksum))


@pytest.mark.parametrize("below", ["", "commitlog"])
@pytest.mark.parametrize("name", GOLDEN)
def test_salvage_takes_every_record_of_a_golden_store(
    name: str, below: str, golden, tmp_path: Path, capsys
):
    root = golden(name)
    code, told = as_a_user(capsys, "salvage", root / below, tmp_path / "out")
    assert code == 0
    assert same(stands(tmp_path / "out" / "commitlog"), stands(root / "commitlog"))
    assert told["records_in"] == told["records_out"] == stands(root / "commitlog").records


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("verb", ["rebuild", "repair"])
def test_a_mended_golden_store_has_every_record(verb: str, name: str, golden, capsys):
    root = golden(name)
    before = stands(root / "commitlog")
    code, told = as_a_user(capsys, verb, root, *(["--yes"] if verb == "repair" else []))
    assert code == 0
    assert same(stands(root / "commitlog"), before)
    if verb == "rebuild":
        assert told["checksum_in"] == told["checksum_out"] == f"{before.checksum:016x}"


@pytest.mark.parametrize("name", GOLDEN)
def test_carve_and_import_give_the_messages_of_a_golden_store(
    name: str, golden, tmp_path: Path, capsys
):
    root, lines = golden(name), tmp_path / "messages.jsonl"
    assert main(["export", str(root), "--messages", str(lines)]) == 0
    for verb in (("carve", root, tmp_path / "carve"),
                 ("import", tmp_path / "import", "--messages", lines, "--create")):  # fmt: skip
        code, told = as_a_user(capsys, *verb)
        assert code == 0
        made = Contents.of(tmp_path / verb[0] / "commitlog")
        assert same(made, Contents.of(root / "commitlog"))
        assert told["checksum_in"] == told["checksum_out"] == f"{made.checksum:016x}"


@pytest.mark.parametrize("kind", chosen()[:FEW], ids=lambda k: f"{k.store}: {k.name}")
def test_no_record_of_a_damaged_store_is_gone_without_a_word(
    kind: kinds.Kind, samples, tmp_path: Path, capsys
):
    """By repair, and by salvage of the folder and of its log alone: either the undamaged records
    are all there, or the exit code is 5."""
    sample, root = samples(kind.store), tmp_path / "store"
    touched = damaged(kind, sample, root)
    left = {found for _, found in read_anyhow(root)}
    for below in ("", "commitlog"):
        out = tmp_path / f"out{below}"
        code, told = as_a_user(capsys, "salvage", root / below, out)
        if not left:
            assert code == 3  # no file holds a record
            continue
        made = set(stands(out / "commitlog").places)
        lost = {w.physical for w in sample.whole if w.physical in left} - made - touched
        assert code == 5 or (code == 0 and not lost), (below, lost, told)
        assert code == 0 or told["differs_without_a_reason"] or told["findings"], told
    code, told = as_a_user(capsys, "repair", root, "--yes")
    if kind.what in kinds.GENERATION:  # of two records that claim one queue offset, one is in none
        assert code == 5 and {f.kind for f in verify(root).errors} == {"same-offset"}, told
    else:
        assert code == 0, told


def read_anyhow(root: Path) -> list[tuple[Path, int]]:
    """Whole records in whatever regular file there is, by their own places."""
    seen = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                seen += [(path, found.place) for found in found_in(file)]
    return seen


def test_a_second_file_for_a_place_ends_salvage_with_5(samples, tmp_path: Path, capsys):
    """Both are whole and differ: only one can be taken, and the other one is named."""
    sample, root = samples("ours closed"), tmp_path / "store"
    shutil.copytree(sample.root, root)
    first = sorted((root / "commitlog").iterdir())[0]
    data = bytearray(first.read_bytes())
    at = data.index(b"\1k1\2")
    data[at + 2 : at + 3] = b"z"  # a property, which no sum covers
    (root / "other").write_bytes(data)
    code, told = as_a_user(capsys, "salvage", root, tmp_path / "out")
    assert code == 5
    assert "1 of the" in told["differs_without_a_reason"]
    assert told["records_in"] == told["records_out"]


def test_a_copy_of_a_segment_needs_no_second_place(samples, tmp_path: Path, capsys):
    sample, root = samples("ours closed"), tmp_path / "store"
    shutil.copytree(sample.root, root)
    first = sorted((root / "commitlog").iterdir())[0]
    shutil.copyfile(first, root / "copy")
    assert as_a_user(capsys, "salvage", root, tmp_path / "out")[0] == 0


def test_a_record_that_a_repair_loses_ends_it_with_5(
    samples, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    """The comparison believes neither the plan nor the audit."""
    sample, root = samples("ours closed"), tmp_path / "store"
    shutil.copytree(sample.root, root)
    module = sys.modules["pystore.repair.repair"]
    real = module._carry_out

    def losing(path: Path, *given: Any) -> Any:
        done = real(path, *given)
        segment = sorted((path / "commitlog").iterdir())[0]
        data = bytearray(segment.read_bytes())
        data[data.index(b"m10") + 1] ^= 1
        segment.write_bytes(data)
        return done

    monkeypatch.setattr(module, "_carry_out", losing)
    code, told = as_a_user(capsys, "rebuild", root, "--checkpoint")
    assert code == 5
    assert told["records_in"] == told["records_out"] + 1
    assert "is no more as it was" in told["differs_without_a_reason"]


def test_messages_that_differ_have_other_checksums():
    one, other = Contents(), Contents()
    one.add(5)
    other.add(6)
    assert not Balance.between(one, other).good
    assert Balance.between(one, one).good
    assert Balance.between(one, other, ["asked for"]).good


def test_carve_ends_with_5_at_a_body_that_does_not_fit_its_crc(tmp_path: Path, capsys):
    with pystore.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 16) as store:
        at = store.put("orders", b"a body of many bytes").physical_offset
        store.put("orders", b"the next one")
    file = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[data.index(b"many")] ^= 1
    file.write_bytes(data)
    assert main(["carve", str(tmp_path / "store"), str(tmp_path / "out")]) == 5
    assert f"(at offset {at})" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", chosen()[:FEW], ids=lambda k: f"{k.store}: {k.name}")
def test_carve_import_and_rebuild_of_a_damaged_store_say_what_they_lack(
    kind: kinds.Kind, samples, tmp_path: Path, capsys
):
    """As a user types it: each ends with 0 and every undamaged message, or says why not."""
    sample, root = samples(kind.store), tmp_path / "store"
    touched = damaged(kind, sample, root)
    in_log = {found for path, found in read_anyhow(root) if path.parent.name == "commitlog"}
    sound = sum(w.physical in in_log - touched for w in sample.whole)
    lines = tmp_path / "messages.jsonl"
    code, told = as_a_user(capsys, "carve", root, tmp_path / "carve")
    assert code in NAMED or (code == 1 and sound == 0), told  # 1: there is no message to copy
    if code == 0:
        assert Contents.of(tmp_path / "carve" / "commitlog").records >= sound, told
    code = main(["export", str(root), "--messages", str(lines)])
    assert code in (1, *NAMED)
    if lines.exists() and lines.stat().st_size:
        capsys.readouterr()
        said = main(["import", str(tmp_path / "import"), "--messages", str(lines), "--create"])
        if said == 2:  # a topic, a queue or a property that no message may have
            assert "line " in capsys.readouterr().err
        else:
            assert said == 0
            assert code == 5 or Contents.of(tmp_path / "import" / "commitlog").records >= sound
    code, told = as_a_user(capsys, "rebuild", root)
    assert code in NAMED, told
