"""Inputs that once broke the codec: each has its test here, and all get one verdict from the codec
and from its twin."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from broker.wire import codec
from broker.wire.command import Command

HERE = Path(__file__).parent
COMMANDS = HERE / "museum" / "command"


def twin():
    """tests/wire/reference_codec.py, which lies in another folder of tests."""
    path = HERE.parent / "wire" / "reference_codec.py"
    spec = importlib.util.spec_from_file_location("museum_twin", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(decode, data: bytes) -> Command | None:
    try:
        return decode(data)
    except codec.BadFrame:
        return None


@pytest.mark.parametrize("path", sorted(COMMANDS.iterdir()), ids=lambda path: path.name)
def test_both_codecs_give_one_verdict(path):
    data = path.read_bytes()
    assert verdict(codec.decode, data) == verdict(twin().decode, data)


def test_every_input_has_a_test_of_its_name():
    assert [p.name for p in COMMANDS.iterdir() if f"test_{p.name}" not in globals()] == []


def test_empty_frame():
    """It is refused, and does not show what was decoded before it."""
    codec.decode(codec.encode(Command(7, {"a": "secret"})))
    with pytest.raises(codec.BadFrame):
        codec.decode((COMMANDS / "empty_frame").read_bytes())
