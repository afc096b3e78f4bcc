"""The codec in C beside the one in Python: they agree on everything, damage included."""

from __future__ import annotations

import json
import lzma
import random
import string
import struct
import threading
from pathlib import Path

import pytest
import reference_codec

from broker.wire import codec
from broker.wire.command import BINARY, JSON, Command

WIRE = Path(__file__).parents[1] / "golden" / "wire-5.3.3.jsonl.xz"
KINDS = pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])


def frame(header: bytes, kind: int = JSON, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def verdict(decode, data: bytes) -> Command | str:
    try:
        return decode(data)
    except codec.BadFrame:
        return "bad"


def assert_agreed(data: bytes) -> Command | str:
    ours, twin = verdict(codec.decode, data), verdict(reference_codec.decode, data)
    assert ours == twin, data
    return ours


def text(rng: random.Random, most: int = 12) -> str:
    alphabet = string.ascii_letters + '\x00\x01\x02\n"\\/\x7f\x80\x9fäé\u2028\u2029注€\ufeff😀'
    return "".join(rng.choices(alphabet, k=rng.randrange(most + 1)))


def command(rng: random.Random, kind: int) -> Command:
    number = (1 << 15) if kind == BINARY else (1 << 31)
    ext = {text(rng): text(rng, 60) for _ in range(rng.choice([0, 1, 5, 13, 200]))}
    return Command(
        code=rng.randrange(-number, number),
        ext={name: value for name, value in ext.items() if kind == JSON or value},
        body=rng.randbytes(rng.choice([0, 0, 1, 1000])),
        remark=rng.choice([None, "x" + text(rng, 40)]),
        opaque=rng.randrange(-(1 << 31), 1 << 31),
        flag=rng.randrange(4),
        language=rng.randrange(14),
        version=rng.randrange(-number, number),
        serialize=kind,
    )


@KINDS
def test_what_is_written_is_read(kind, rng):
    for _ in range(500):
        made = command(rng, kind)
        data = codec.encode(made)
        assert data == reference_codec.encode(made)
        assert codec.decode(data) == made
        assert reference_codec.decode(data) == made
        assert codec.frame_size(data) == len(data)


@KINDS
def test_damaged_frames_get_the_same_verdict(kind, rng):
    marks = b'"\\{}[],:0u\x00\xff\x80\xc2'
    seen = {"bad": 0, "good": 0}
    for _ in range(3000):
        made = command(rng, kind)
        made.ext = dict(list(made.ext.items())[:6])
        data = bytearray(codec.encode(made))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(8 if rng.random() < 0.9 else 0, len(data))
            data[at] = rng.choice(marks) if rng.random() < 0.5 else rng.randrange(256)
        seen["bad" if assert_agreed(bytes(data)) == "bad" else "good"] += 1
    assert min(seen.values()) > 100


def test_damaged_frames_of_real_clients_get_the_same_verdict(rng):
    with lzma.open(WIRE, "rt", encoding="utf-8") as lines:
        frames = [bytes.fromhex(line["hex"]) for line in map(json.loads, lines) if line["whole"]]
    for _ in range(3000):
        data = bytearray(rng.choice(frames)[:2000])
        cut = rng.randrange(8, len(data) + 1)
        (word,) = struct.unpack_from(">I", data, 4)
        if rng.random() < 0.3:
            data = bytearray(frame(bytes(data[8:cut]), word >> 24))
        if len(data) > 8:
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        assert_agreed(bytes(data))


NUMBERS = ["0", "-0", "7", "-13", "310", "1.5", "1e3", "-2E-7", "2147483647", "2147483648"]
NUMBERS += ["05", "1.", ".5", "+1"]


def json_value(rng: random.Random, depth: int = 0) -> str:
    """Text that is nearly always JSON, with blanks wherever they may be."""
    blank = rng.choice(["", "", " ", "\n\t", "\r"])
    choice = rng.randrange(5 if depth > 4 else 8)
    if choice == 0:
        made = rng.choice(NUMBERS)
    elif choice == 1:
        made = rng.choice(["true", "false", "null", "nul", "NaN", "Infinity", "True"])
    elif choice <= 4:
        made = json_string(rng)
    elif choice == 5:
        made = f"[{','.join(json_value(rng, depth + 1) for _ in range(rng.randrange(4)))}]"
    else:
        made = json_object(rng, depth + 1)
    return blank + made + blank


def json_string(rng: random.Random) -> str:
    parts = ["a", "code", " ", "注", "😀", "\x01", "\\n", "\\u0041", "\\u0000", "\\ud83d\\ude00"]
    rare = [
        "\\ud83d",
        "\\ude00",
        "\\u12",
        "\\q",
        "\\",
        "\x00",
        "\\b\\f\\r\\t",
        '\\"\\\\\\/',
        "\x7f",
    ]
    chosen = (rng.choice(rare if rng.random() < 0.05 else parts) for _ in range(6))
    return f'"{"".join(chosen)}"'


def json_object(rng: random.Random, depth: int) -> str:
    members = []
    for _ in range(rng.randrange(5)):
        name = rng.choice([*NAMES, *NAMES, "x"])
        key = f'"{name}"' if rng.random() < 0.9 else json_string(rng)
        if name == "extFields" and rng.random() < 0.9:
            pairs = (f"{json_string(rng)}:{json_value(rng, 5)}" for _ in range(rng.randrange(4)))
            value = f"{{{','.join(pairs)}}}"
        elif name in NAMES[:4] and rng.random() < 0.7:
            value = rng.choice(["5", '"5"', "null", "-1", '"007"'])
        elif name in ("remark", "language") and rng.random() < 0.7:
            value = rng.choice(["null", '"GO"', '"JAVA"', '"COBOL"', "9", json_string(rng)])
        else:
            value = json_value(rng, depth)
        members.append(f"{key}:{value}")
    return f"{{{','.join(members)}}}"


NAMES = ["code", "flag", "opaque", "version", "remark", "language", "extFields"]


def test_any_json_gets_the_same_verdict(rng):
    """Members of every name and kind, repeated, nested, nearly right."""
    seen = {"bad": 0, "good": 0}
    for _ in range(5000):
        header = json_object(rng, 0).encode()
        seen["bad" if assert_agreed(frame(header)) == "bad" else "good"] += 1
    assert min(seen.values()) > 500


@pytest.mark.parametrize("depth", [31, 32, 33, 500, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_nesting_has_a_limit(depth, brackets):
    open_, close = ('{"a":' if brackets == "{}" else "["), brackets[1]
    header = f'{{"x":{open_ * depth}1{close * depth}}}'.encode()
    assert (assert_agreed(frame(header)) != "bad") == (depth <= 32)


@KINDS
def test_a_command_has_at_most_256_fields(kind):
    made = Command(1, {f"name{i}": "v" for i in range(256)}, serialize=kind)
    assert codec.decode(codec.encode(made)) == made
    made.ext["one more"] = "v"
    with pytest.raises(codec.BadFrame, match="256"):
        codec.encode(made)


def test_half_a_surrogate_pair_becomes_a_question_mark():
    """As Java's String.getBytes writes it; nothing fails for it."""
    for kind in (JSON, BINARY):
        made = Command(1, {"a\ud800": "\udc00b"}, remark="\ud83d", serialize=kind)
        got = codec.decode(codec.encode(made))
        assert (got.ext, got.remark) == ({"a?": "?b"}, "?")
        assert codec.encode(made) == reference_codec.encode(made)
    assert codec.decode(frame(b'{"remark":"\\ud800x"}')).remark == "?x"


def test_texts_with_nuls_keep_their_borders():
    for ext in ({"\0": "\0"}, {"a": "\0b", "c\0": "d"}, {"\0\0": "a", "b": "\0"}, {"a": "b\0"}):
        for kind in (JSON, BINARY):
            made = Command(1, ext, remark="r\0", serialize=kind)
            assert codec.decode(codec.encode(made)) == made


@KINDS
def test_headers_of_up_to_a_mebibyte(kind):
    made = Command(1, {"注": "注" * 100_000, "b": "\x01" * 100_000}, b"body", serialize=kind)
    data = codec.encode(made)
    assert len(data) > 400_000
    assert codec.decode(data) == made


@KINDS
def test_a_longer_header_is_written_but_not_read(kind):
    """The answer to a large batch names every message, and its messages are stored by then."""
    made = Command(1, {"more": "x" * (1 << 20)}, b"body", serialize=kind)
    with pytest.raises(codec.BadFrame, match="header too large"):
        codec.decode(codec.encode(made))


@KINDS
def test_a_header_that_its_length_cannot_hold_is_refused(kind):
    with pytest.raises(codec.BadFrame):
        codec.encode(Command(1, {"more": "x" * (1 << 24)}, serialize=kind))


def test_what_a_binary_header_cannot_hold_is_refused():
    for bad in (
        Command(200_050, serialize=BINARY),
        Command(1, version=1 << 15, serialize=BINARY),
        Command(1, language=256, serialize=BINARY),
        Command(1, {"n" * 32_768: "v"}, serialize=BINARY),
    ):
        with pytest.raises(codec.BadFrame):
            codec.encode(bad)
        with pytest.raises(codec.BadFrame):
            reference_codec.encode(bad)
        bad.serialize = JSON
        assert codec.decode(codec.encode(bad)).code == bad.code


@KINDS
def test_numbers_of_more_than_32_bits_are_refused(kind):
    for name in ("code", "opaque", "flag", "version", "language"):
        for number in (1 << 31, -(1 << 31) - 1):
            made = Command(1, serialize=kind)
            setattr(made, name, number)
            with pytest.raises(codec.BadFrame):
                codec.encode(made)


def test_any_buffer_is_a_frame():
    """The body is a copy: the buffer may be reused at once."""
    made = Command(1, {"a": "b"}, b"body", "remark")
    data = bytearray(codec.encode(made))
    for buffer in (bytes(data), data, memoryview(data), memoryview(bytes(data))):
        assert codec.decode(buffer) == made
    got = codec.decode(memoryview(data))
    data[:] = bytes(len(data))
    assert got == made
    data.clear()  # nothing holds it any more
    for body in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert codec.decode(codec.encode(Command(1, body=body))).body == b"x"


def test_only_whole_frames_are_decoded():
    data = codec.encode(Command(1, {"a": "b"}, b"body"))
    for wrong in (b"", data[:3], data[:8], data[:-1], data + b"x", data + data):
        with pytest.raises(codec.BadFrame):
            codec.decode(wrong)


@pytest.mark.parametrize("total", [-(1 << 31), -1, 0, 3, (16 << 20) - 3, (1 << 31) - 1])
def test_sizes_that_no_frame_has_are_refused(total):
    with pytest.raises(codec.BadFrame):
        codec.frame_size(struct.pack(">i", total))


def test_a_size_needs_four_bytes():
    assert [codec.frame_size(b"\0\0\0\x08"[:n]) for n in range(5)] == [0, 0, 0, 0, 12]
    assert codec.frame_size(struct.pack(">i", (16 << 20) - 4)) == 16 << 20


def test_an_error_says_what_was_wrong():
    with pytest.raises(codec.BadFrame, match=r"byte 11.*32-bit integer"):
        codec.decode(frame(b'{"code":1.5}'))
    with pytest.raises(codec.BadFrame, match="exceeds the header"):
        codec.decode(frame(bytes(13) + b"\0\0\1\0" + bytes(4), BINARY))


def test_threads_do_not_meet_in_the_codec(rng):
    made = [command(rng, kind) for kind in (JSON, BINARY) for _ in range(20)]
    data = [codec.encode(one) for one in made]
    wrong = []

    def work(start: int) -> None:
        for i in range(2000):
            at = (start + i) % len(made)
            if codec.decode(data[at]) != made[at] or codec.encode(made[at]) != data[at]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
