"""Upstream's configuration JSON: both forms read, the strict one written, the torn one refused."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystore.files.javajson import MAX_DEPTH, dumps, loads

TEXTS = st.text(st.characters(exclude_categories=()))  # lone surrogates too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.sampled_from(["{0:1", ",2:", '{"3":', "\\", '"', "{4:5}"]),
    lambda inner: st.lists(inner)
    | st.dictionaries(TEXTS | st.integers().map(str) | st.just("{1:2,3:"), inner),
    max_leaves=30,
)  # fmt: skip


def unquoted(value):
    """The value as upstream writes it: integer keys without quotes."""
    if isinstance(value, dict):
        members = []
        for key, each in value.items():
            name = key if re.fullmatch(r"-?[0-9]+", key, re.ASCII) else json.dumps(key)
            members.append(f"{name} :\n\t{unquoted(each)}")
        return "{" + ", ".join(members) + "\n}"
    if isinstance(value, list):
        return "[" + ",".join(map(unquoted, value)) + "]"
    return json.dumps(value)


@given(VALUES)
def test_what_is_written_is_read_back(value):
    """Any JSON value, whatever its texts look like."""
    assert loads(dumps(value)) == value


@given(VALUES)
def test_unquoted_integer_keys_are_read(value):
    """Upstream's form means the same as the strict one, and no text is touched."""
    assert loads(unquoted(value)) == value


@given(VALUES)
def test_what_is_written_is_strict(value):
    """Any parser takes it: 5.5.0 was reported to refuse unquoted keys."""
    assert json.loads(dumps(value)) == value


@given(st.binary() | st.text().map(lambda text: text.encode()))
def test_any_bytes_are_read_or_refused(data):
    """Nothing but a value or a ValueError comes of hostile bytes."""
    try:
        value = loads(data)
    except ValueError:
        return
    assert loads(dumps(value)) == value


def test_a_file_of_upstream_is_read():
    """The layout of consumerOffset.json, as a 5.3.3 broker wrote it."""
    text = '{\n\t"offsetTable":{\n\t\t"t@g":{0:23,1:22,-2:3\n\t\t},"{7:8}":{}\n\t}\n}'
    assert loads(text) == {"offsetTable": {"t@g": {"0": 23, "1": 22, "-2": 3}, "{7:8}": {}}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b'{"a":1', "line 1"),
        (b'{"a":\n{0:5,1', "line 2"),
        (b'{"a":1}}', "Extra data"),
        (b'{"a":1}\n"b":2}', "line 2: Extra data"),
        (b'{"a":1}\0\0', "Extra data"),
        (b"\0" * 100, "line 1"),
        (b'{"a":"\xff"}', "byte 6 is not valid UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a\\', "line 1"),
        (b"{0x1:2}", "line 1"),
        (b"{1.5:2}", "line 1"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "deeper"),
        (b"[" * MAX_DEPTH + b"[1]" + b"]" * MAX_DEPTH, "deeper"),
    ],
)
def test_a_torn_file_is_refused(data, why):
    """The reason says what is wrong, and in which line."""
    with pytest.raises(ValueError, match=re.escape(why)):
        loads(data)


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_file_cut_anywhere_is_refused(cut):
    """No beginning of a file passes for a whole one."""
    whole = dumps({"offsetTable": {"t@g": {0: 23, 1: 22}}, "version": {"counter": 1}})
    assert cut < len(whole)
    with pytest.raises(ValueError):
        loads(whole[:cut])


def test_a_text_without_an_end_is_refused_in_linear_time():
    """A megabyte of escaped quotes is one pass, not a million."""
    start = time.process_time()
    with pytest.raises(ValueError):
        loads('{1:"' + '\\"' * 500_000)
    assert time.process_time() - start < 60  # a pass a quote would take days


def test_the_layout_is_upstreams():
    """Tabs, no space after colons, sorted keys, quoted integers in the order of their numbers."""
    value = {"b": {10: 1, 9: 2, -1: 3}, "a": [], "名": {"x": None}, "c": [True]}
    assert dumps(value).decode() == (
        '{\n\t"a":[],\n\t"b":{\n\t\t"-1":3,\n\t\t"9":2,\n\t\t"10":1\n\t},\n'
        '\t"c":[\n\t\ttrue\n\t],\n\t"名":{\n\t\t"x":null\n\t}\n}'
    )


def test_the_last_of_equal_keys_wins():
    """As upstream's parser has it."""
    assert loads('{"a":{1:1},"a":{1:2,1:3}}') == {"a": {"1": 3}}
