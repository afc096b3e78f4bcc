"""Names of lite topics, and of the light queues that hold their messages (upstream: LiteUtil)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from broker.services.names import TOPIC_MAX
from pystore.format.names import LIGHT_PREFIX
from pystore.native import ffi, lib

__all__ = [
    "CLIENT_MAX", "NAME_MAX", "lined_up", "name_problem", "parts_of", "queue_of", "queues_below",
    "subscription_problem", "topic_below",
]  # fmt: skip

#: Bytes of a lite topic's name, as upstream's proxy has it (maxLiteTopicSize).
NAME_MAX: int = lib.PS_LITE_NAME_MAX
#: Bytes of a client's id; official clients have some 60.
CLIENT_MAX = 255


#: Each length as a byte.
_LENGTHS = [bytes((length,)) for length in range(256)]


def lined_up(names: Iterable[str]) -> bytes:
    """Returns names, of 255 bytes at most, as the core takes them: each after its length."""
    raws = list(map(str.encode, names))
    lengths = map(_LENGTHS.__getitem__, map(len, raws))
    return b"".join(chain.from_iterable(zip(lengths, raws, strict=True)))


def queues_below(parent: str) -> str:
    """Returns what the queues of all lite topics of a topic begin with."""
    return f"{LIGHT_PREFIX}${parent}$"


def queue_of(parent: str, name: str) -> str:
    """Returns the light queue of a lite topic."""
    return queues_below(parent) + name


def parts_of(queue: str) -> tuple[str, str] | None:
    """Returns topic and lite topic of a light queue; None for one that is not a lite topic's."""
    parts = queue.split("$")
    if len(parts) != 3 or parts[0] != LIGHT_PREFIX or not parts[1] or not parts[2]:
        return None
    return parts[1], parts[2]


def topic_below(name: str) -> str:
    """Returns the topic that the queue of a lite topic is below; any other name itself."""
    parts = parts_of(name)
    return name if parts is None else parts[0]


def name_problem(name: str, most: int = NAME_MAX) -> str:
    """Returns what is wrong with the name of a lite topic, in the words of upstream's proxy, or
    "". `most`: its bytes."""
    raw = name.encode()
    return {
        lib.PS_LITE_BLANK: "lite topic cannot be the char sequence of whitespace",
        lib.PS_LITE_LONG: f"lite topic exceed the max size {most}",
        lib.PS_LITE_LETTERS: "lite topic can only contain alphanumeric characters, hyphens(-), and"
        " underscores(_)",
    }.get(lib.ps_lite_name_problem(raw, len(raw), most), "")


def subscription_problem(parent: str, names: Iterable[str]) -> str:
    """Returns what is wrong with a topic, or with the names of its lite topics, that a client
    subscribes to, or ""."""
    if len(parent.encode()) > TOPIC_MAX:
        return f"the topic has more than {TOPIC_MAX} bytes: {parent:.80}"
    raws = [name.encode() for name in names]
    lens = ffi.new("int32_t[]", list(map(len, raws)))
    sound = lib.ps_lite_names_sound(b"".join(raws), lens, len(raws), NAME_MAX)
    if sound == len(raws):
        return ""
    name = raws[sound].decode()
    return f"{name_problem(name)}: {name:.80}"
