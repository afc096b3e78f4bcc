"""Phrases that readers stumble over stay out of documents, messages and comments.

docs/glossary.md fixes the terms. A phrase is refused when it reads as translated, or when it is a
private word for something that has a standard name. Add one here after removing it everywhere.
"""

from __future__ import annotations

import re

import pytest
from parsed import ROOT, files, name_of

SUFFIXES = {".py", ".c", ".h", ".def", ".md", ".java", ".go"}
#: Where the phrases are quoted.
QUOTED = {"tests/tidy/test_words.py", "docs/glossary.md"}

#: Phrase, as a regular expression: what to write.
WORDS = {
    r"frames? that (is|are) none": "malformed frame",
    r"(expression|address|filter|setting|host|body|header|name|value)s? that (is|are) none": (
        "malformed, invalid or unknown"
    ),
    r"what is none\b": "an invalid value",
    r"\bis none of (?!these|them|those|that|this)": "is not one of, is not a",
    r"that is none of (ours|the store)": "that is not ours, unexpected",
    r"(?<!\b[Tt]here )\bis no (?!longer\b|more\b)": "is not a",
    r"\b(are|were) no (numbers|texts|files|folders)\b": "are not",
    r"has no beginning any more": "frame boundaries are lost",
    r"not there any more": "no longer exists",
    r"read on behind": "continue after",
    r"\b(at or|go(es)? on|begins?|lies?|stands?|points?) behind\b": "after, beyond",
    r"\bbehind (it|the end|the checkpoint|the last)\b": "after, beyond",
    r"\bone behind (the other|another)\b": "one after the other",
    r"furthest wish|\bwishes\b": "highest requested offset; requested, send attributes",
    r"\b(made|[Oo]pened|read|written|looked at|built|begins?|divided) anew\b": "again, rebuilt",
    r"(?<!to )\b(is|are|was|were) given up\b": "discarded",
    r"\bgives? up (a|the|those|that) (half|halves|transaction|message)": "discard",
    r"[Aa] duty (of the broker|that fails)": "a periodic job",
    r"\bit is told\b": "it is reported, notified",
    r"without a word\b": "silently",
    r"\bsend (them|it|clients) away\b": "disconnect",
    r"\b[Ss]tops to (pull|read|serve|send|write)\b": "stops pulling, reading",
    r"\binvisibility\b": "invisible time",
    r"\bthat cannot be(?= ?[,.;:|\")])": "that is out of range, invalid",
    r"\bnobody that is known\b": "unknown",
}
BANNED = {re.compile(phrase): instead for phrase, instead in WORDS.items()}
#: Any of them. Each begins where a word does: to look there alone takes less than half of the time.
ANY = re.compile(rf"\b(?:{'|'.join(WORDS)})")


def found_in(text: str) -> list[tuple[int, str, str]]:
    """(line, phrase, what to write) of each banned phrase, also over the end of a line."""
    joined = re.sub(r"\n([ \t]*(#:?|\*|//|\")?[ \t]*)", lambda m: " " * len(m[0]), text)
    collapsed = re.sub(r" {2,}", " ", joined)
    hits: list[tuple[int, str, str]] = []
    if not ANY.search(collapsed):
        return hits
    for pattern, instead in BANNED.items():
        for match in pattern.finditer(collapsed):
            at = text.find(match[0])
            line = text.count("\n", 0, at) + 1 if at >= 0 else 0
            hits.append((line, match[0], instead))
    return hits


def test_no_banned_phrases() -> None:
    places = []
    for path in files():
        name = name_of(path)
        if path.suffix not in SUFFIXES or name in QUOTED:
            continue
        for line, phrase, instead in found_in(path.read_text(encoding="utf-8")):
            places.append(f"{name}:{line} '{phrase}': write '{instead}' (docs/glossary.md)")
    if places:
        pytest.fail("\n".join(places), pytrace=False)


@pytest.mark.parametrize(
    "text",
    [
        "a frame that is none",
        "/* Continues at or behind the end. */",
        "# what lies\n    # behind it",
        '"""Opened anew."""',
        "the half is given up",
        "this is no folder",
        "a copy that cannot be written is no\n    # reason",
    ],
)
def test_the_checker_finds(text: str) -> None:
    assert found_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "find_pending(store, anew=True)",
        "queues may lag behind the log",
        "leaves nothing behind",
        "None when there is none of them",
        "a rewrite",
        "there is no topic, and it is no longer read",
    ],
)
def test_the_checker_leaves_alone(text: str) -> None:
    assert not found_in(text)


#: Texts of errors that leave open what they are about: of C, and of MemoryError in Python.
VAGUE = re.compile(r'"(no memory(?: for it)?|it is [^"]*)"')
#: Rooms whose texts nobody else reads.
VAGUE_ROOMS = ("csrc/tests",)


def test_errors_name_what_they_are_about() -> None:
    """No "no memory" without of what, no "it" that nobody knows."""
    places = []
    for path in sorted((ROOT / "csrc").rglob("*.c")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(VAGUE_ROOMS):
            continue
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), path.read_text("utf-8"),
                      flags=re.S)  # fmt: skip
        for match in VAGUE.finditer(text):
            places.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}")
    assert not places, "\n".join(places)


def test_vague_texts_are_found() -> None:
    assert VAGUE.search('"no memory"') and VAGUE.search('"it is closed"')
    assert not VAGUE.search('"no memory for a scan"') and not VAGUE.search('"items are missing"')
