"""No record says that it holds a batch: a consumer of Java's unpacks such a one, and stops where it
cannot, and Apache's recovery cuts the log off there. Its broker answers the same (HookUtils)."""

from __future__ import annotations

import struct

import pytest
from fakes import send_command
from loops import Wire

from broker import Broker
from broker.wire.command import Command

INNER = {"INNER_BASE": "x", "INNER_NUM": "y"}


def item(properties: dict[str, str]) -> bytes:
    """A message within a batch."""
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    rest = struct.pack(">iiii", 0, 0, 0, 1) + b"x" + struct.pack(">h", len(encoded)) + encoded
    return struct.pack(">i", 4 + len(rest)) + rest


CASES = {
    "a property": send_command("T", properties=INNER),
    "a flag": send_command("T", f=0x80),
    "all flags": send_command("T", f=-1),
    "a property of a batch": send_command("T", item({}), code=320, m=True, properties=INNER),
    "a property in a batch": send_command("T", item({}) + item(INNER), code=320, m=True),
    "a half message": send_command("T", properties=INNER | {"TRAN_MSG": "true", "PGROUP": "p"}),
    "a delayed message": send_command("T", properties=INNER | {"DELAY": "1"}),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_says_that_it_holds_a_batch_is_refused(tmp_path, small, name):
    asked = CASES[name]
    async with (
        Broker(tmp_path / "s", **(small | {"listenPort": 0})) as broker,
        await Wire.to(broker.port) as wire,
    ):
        assert (await wire.ask(send_command("T"))).code == 0
        end = broker.services.store.info().log_max
        answer = await wire.ask(Command(asked.code, dict(asked.ext), asked.body))
        assert answer.code == 13
        assert broker.services.store.info().log_max == end
