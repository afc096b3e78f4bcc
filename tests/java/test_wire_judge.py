"""Frames through Apache's own codec and back: it reads what we wrote, we write what it wrote."""

from __future__ import annotations

import random
import struct
import unicodedata

import pytest

from broker.wire import codec
from broker.wire.command import BINARY, JSON, Command

pytestmark = [pytest.mark.java]


def frame(header: bytes, kind: int = JSON) -> bytes:
    return struct.pack(">iI", 4 + len(header), kind << 24 | len(header)) + header


@pytest.fixture
def again(reference, tmp_path):
    """again(frames): each as Java writes what it read, or None where it refused."""

    def ask(frames: list[bytes]) -> list[bytes | None]:
        listed = tmp_path / "frames"
        listed.write_text("".join(f"{one.hex()}\n" for one in frames), encoding="ascii")
        lines = reference.run("wire-judge", listed).stdout.splitlines()
        said = [line[2:] for line in lines if line.startswith("= ")]
        assert len(said) == len(frames)
        return [None if one == "refused" else bytes.fromhex(one) for one in said]

    return ask


def text(rng: random.Random, most: int) -> str:
    """Of any characters, those that some writer escapes more often."""
    often = '\x00\x01\x02\n\r\t\b\f"\\/\x7f\x80\x9f\xa0\u2028\u2029\ufeff\ufffe注😀az09'
    made = []
    for _ in range(rng.randrange(most + 1)):
        one = chr(rng.randrange(rng.choice([0x100, 0x10000, 0x110000])))
        made.append(
            rng.choice(often) if unicodedata.category(one) == "Cs" or rng.random() < 0.5 else one
        )
    return "".join(made)


def commands(rng: random.Random, count: int) -> list[Command]:
    made = []
    for _ in range(count):
        kind = rng.choice([JSON, BINARY])
        number = (1 << 15) if kind == BINARY else (1 << 31)
        ext = {"n" + text(rng, 6): text(rng, 40) for _ in range(rng.randrange(8))}
        made.append(
            Command(
                code=rng.randrange(-number, number),
                ext={k: v for k, v in ext.items() if v or kind == JSON},
                body=rng.randbytes(rng.choice([0, 7])),
                remark=rng.choice([None, "r" + text(rng, 20)]),
                opaque=rng.randrange(-(1 << 31), 1 << 31),
                flag=rng.randrange(4),
                language=rng.randrange(14),
                version=rng.randrange(-number, number),
                serialize=kind,
            )
        )
    return made


def test_java_reads_what_we_write_and_we_write_what_java_wrote(again, rng):
    """Every field survives, and each frame of Java's comes out of our codec byte by byte."""
    sent = commands(rng, 600)
    for command, theirs in zip(sent, again([codec.encode(c) for c in sent]), strict=True):
        assert theirs is not None, command
        assert codec.decode(theirs) == command
        # Where the header had no fields Java may leave them out, which a Command cannot say.
        if command.ext:
            assert codec.encode(codec.decode(theirs)) == theirs


#: Headers that both refuse, or that both understand alike.
HEADERS = [
    "", "null", "[]", "{}", '{"code":5}x', '{"code":99999999999}', '{"opaque":2147483648}',
    '{"opaque":-2147483648}', '{"code":"05"}', '{"code":null}', '{"language":"GO"}',
    '{"remark":5}', '{"remark":true}', '{"remark":""}', '{"extFields":null}', '{"extFields":[]}',
    '{"extFields":"x"}', '{"extFields":{"a":1,"b":1.50,"c":true,"d":null,"e":-0,"g":"","h":false}}',
    '{"extFields":{"a":"1","a":"2"}}', '{"extFields":{"a":"1","a":null}}', '{"code":1,"code":2}',
    '{"extFields":{"a":"1"},"extFields":{"b":"2"}}', '{"remark":"a","remark":null}',
    '{"remark":"\\ud800"}', '{"remark":"\\udc00\\ud800"}', '{"remark":"\\uD83D\\uDE00"}',
    '{"remark":"\\q"}', '{"remark":"\\u12G4"}', '{"remark":"a\tb\x01c"}', '{"c\\u006fde":5}',
    '{"code" : 5 , "flag":\n\t7}', '{"x":{"a":[1,{"b":null}],"c":"}"},"code":3}', '{"code" 3}',
    '{"code":3,"x":nul}', '{"code":3,"flag":}', '{"code":3}{"code":4}', '{"code":"x"}',
]  # fmt: skip


def test_odd_headers_mean_the_same_to_both(again):
    sent = [frame(header.encode()) for header in HEADERS]
    sent += [frame(b'{"remark":"a\xff\xc0b"}'), frame(b'{"remark":"a\xe4\xb8"}')]
    for data, theirs in zip(sent, again(sent), strict=True):
        try:
            ours = codec.decode(data)
        except codec.BadFrame:
            assert theirs is None, data
            continue
        assert theirs is not None, data
        got = codec.decode(theirs)
        if b"opaque" not in data:
            got.opaque = ours.opaque  # Java counts up where a frame has none
        assert got == ours, data
