"""The frames that official clients, mqadmin, name server and broker exchanged: all are understood,
and written again they are the same bytes."""

from __future__ import annotations

import json
import lzma
import struct
from pathlib import Path

import pytest
import reference_codec

from broker.wire import codec
from broker.wire.command import JSON
from pystore.native import ffi, lib

WIRE = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"


@pytest.fixture(scope="module")
def records():
    with lzma.open(WIRE, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


@pytest.fixture(scope="module")
def frames(records):
    return [bytes.fromhex(record["hex"]) for record in records if record["whole"]]


def rewritten(frame: bytes) -> bytes:
    """The frame through ps_command_decode and ps_command_encode."""
    command, wanted, error = ffi.new("ps_command *"), ffi.new("int64_t *"), ffi.new("ps_error *")
    raw = ffi.from_buffer("uint8_t[]", frame)
    scratch, out = ffi.new("uint8_t[]", len(frame)), ffi.new("uint8_t[]", 6 * len(frame) + 256)
    took = lib.ps_command_decode(raw, len(frame), 1 << 24, scratch, command, wanted, error)
    assert took == wanted[0] == len(frame)
    body = bytes(ffi.buffer(command.body.data, command.body.len))
    size = lib.ps_command_encode(command, len(body), out, len(out), error)
    assert 0 < size <= len(out)
    return bytes(ffi.buffer(out, size)) + body


def test_there_are_frames_of_both_kinds(frames):
    kinds = [frame[4] for frame in frames]
    assert (kinds.count(0), kinds.count(1)) == (1385, 236)


def test_each_frame_says_what_was_noted_when_it_passed(records):
    """Code, flag, opaque and the length of the body are those in the record beside the frame."""
    for record in records:
        if record["whole"]:
            got = codec.decode(bytes.fromhex(record["hex"]))
            noted = [record[name] for name in ("code", "flag", "opaque", "body_len", "type")]
            kind = "JSON" if got.serialize == JSON else "ROCKETMQ"
            assert [got.code, got.flag, got.opaque, len(got.body), kind] == noted


def test_frames_that_were_not_kept_whole_have_readable_headers(records):
    """Their headers are whole: with the length set right each is a frame of its own."""
    cut = [bytes.fromhex(record["hex"]) for record in records if not record["whole"]]
    assert len(cut) == 13
    for data in cut:
        frame = struct.pack(">i", len(data) - 4) + data[4:]
        assert codec.decode(frame) == reference_codec.decode(frame)
        with pytest.raises(codec.BadFrame):
            codec.decode(data)


def test_c_writes_every_frame_as_java_wrote_it(frames):
    """Decoded and encoded again, all 1,621 whole frames are equal to the byte."""
    assert [frame.hex() for frame in frames if rewritten(frame) != frame] == []


def test_python_writes_every_frame_as_java_wrote_it_but_for_absent_fields(frames):
    """A Command cannot tell no extFields from empty ones. It always writes some, as Java's own
    clients do for requests whose header is empty; in 418 answers Java wrote none."""
    without = 0
    for frame in frames:
        got = codec.encode(codec.decode(frame))
        if got != frame:
            without += 1
            (word,) = struct.unpack_from(">I", frame, 4)
            assert word >> 24 == JSON and b'"extFields"' not in frame[8 : 8 + word]
            assert got[8:].replace(b'"extFields":{},', b"", 1) == frame[8:]
    assert without == 418


def test_the_twin_sees_the_same(frames):
    for frame in frames:
        command = reference_codec.decode(frame)
        assert codec.decode(frame) == command
        assert codec.encode(command) == reference_codec.encode(command)
