"""The pictures of docs/spark-jobs.md: those that `make pictures` makes, each of them shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.pictures import FOLDER, PICTURES

PAGE = FOLDER.parent / "spark-jobs.md"


def test_the_page_shows_what_make_pictures_makes():
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w-]+)\.svg\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(PICTURES)
    assert sorted(p.name for p in FOLDER.glob("*.svg")) == sorted(f"{n}.svg" for n in PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_of_no_machine(name):
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>") and len(text) < 60_000
    for place in ("/tmp", "/work", "/home", "/root", str(Path.home()), str(FOLDER.parents[1])):
        assert place not in text
