"""Receipt handles, and their renewal for clients that do not renew; the clock is set."""

from __future__ import annotations

import asyncio

import pytest

from broker.grpc.receipts import Receipt
from broker.grpc.renewal import Lost, Renewals
from broker.grpc.settings import ProxySettings
from broker.wire.receipts import Handle

MINUTE = 60_000


class Deliveries:
    """What renewals work on: each change is written down, with the clock at that time."""

    def __init__(self):
        self.now, self.changes, self.errors = 1_000_000, [], []
        self.renewals = Renewals(
            lambda: self.now, self.extend, lambda attempts: 7_000, ProxySettings()
        )

    async def extend(self, held, invisible_ms):
        if self.errors:
            raise self.errors.pop()
        self.changes.append((self.now, invisible_ms))
        return held.receipt.renewed(self.now, invisible_ms)

    def hold(self, client="c", offset=3):
        receipt = Receipt(Handle(0, self.now, MINUTE, 5, "0", "b", 2, offset), 4096 + offset)
        self.renewals.hold(client, "g", "T", receipt, 1)
        return receipt.text

    def newest(self, given):
        return asyncio.run(self.renewals.newest("g", "T", given))

    def pass_ms(self, ms, step=5_000):
        end = self.now + ms
        while self.now < end:
            self.now = min(end, self.now + step)
            asyncio.run(self.renewals.tick())


def test_a_message_is_renewed_ten_seconds_before_it_is_visible_longer_each_time():
    d = Deliveries()
    given = d.hold()
    begin = d.now
    d.pass_ms(45_000)
    assert d.changes == []
    d.pass_ms(10 * MINUTE)
    # 60 s at first; then 1, 3, 5 and 10 minutes.
    assert [(at - begin, ms // MINUTE) for at, ms in d.changes] == [
        (50_000, 1), (100_000, 3), (270_000, 5), (560_000, 10),
    ]  # fmt: skip
    newest = d.newest(given)
    assert newest.handle.start == newest.handle.offset == 3
    assert newest.handle.pop_ms == d.changes[-1][0] and newest.physical == 4099


def test_after_three_hours_a_message_comes_back():
    d = Deliveries()
    given = d.hold()
    d.pass_ms(5 * 60 * MINUTE)
    assert d.changes[-1][1] == 7_000
    assert 3 * 60 * MINUTE <= d.changes[-1][0] - 1_000_000 < 4 * 60 * MINUTE
    assert d.newest(given) is None and len(d.renewals) == 0


def test_an_acknowledged_message_is_renewed_no_more():
    d = Deliveries()
    d.renewals.release("g", "T", d.hold())
    d.pass_ms(3 * MINUTE)
    assert d.changes == []


def test_a_renewal_is_of_one_topic():
    """The same handle under another topic of the group is that of another message."""
    d = Deliveries()
    given = d.hold()
    d.renewals.release("g", "U", given)
    assert asyncio.run(d.renewals.newest("g", "U", given)) is None
    assert d.newest(given) is not None


def test_a_failed_renewal_is_tried_three_times():
    d = Deliveries()
    given = d.hold()
    d.errors = [OSError("no"), OSError("no")]
    d.pass_ms(58_000, step=1_000)
    assert len(d.changes) == 1 and d.newest(given) is not None
    d.errors = [OSError("no")] * 3
    d.pass_ms(58_000, step=1_000)
    assert d.errors == [] and len(d.renewals) == 0


def test_a_delivery_that_is_over_is_forgotten():
    d = Deliveries()
    d.hold()
    d.errors = [Lost()]
    d.pass_ms(51_000)
    assert len(d.renewals) == 0 and d.changes == []


async def renewing(d):
    """A renewal that has begun, and what lets it go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    extend = d.extend

    async def slow(held, invisible_ms):
        begun.set()
        await go_on.wait()
        return await extend(held, invisible_ms)

    d.renewals._extend = slow
    d.now += 55_000
    tick = asyncio.ensure_future(d.renewals.tick())
    await begun.wait()
    return tick, go_on


async def test_an_acknowledgement_during_a_renewal_waits_for_the_new_handle():
    d = Deliveries()
    given = d.hold()
    tick, go_on = await renewing(d)
    newest = asyncio.ensure_future(d.renewals.newest("g", "T", given))
    await asyncio.sleep(0)
    assert not newest.done()
    go_on.set()
    assert (await newest).handle.pop_ms == d.now
    await tick


async def test_a_client_that_goes_during_a_renewal_gives_back_the_new_handle():
    """By the old one the message would stay invisible for the whole step."""
    d = Deliveries()
    d.hold()
    tick, go_on = await renewing(d)
    gone = asyncio.ensure_future(d.renewals.gone("c"))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(tick, gone)
    assert d.changes == [(d.now, MINUTE), (d.now, 1_000)] and len(d.renewals) == 0


async def test_what_ended_before_its_turn_is_not_renewed():
    """Of many that are due at once, only some are asked for at a time."""
    d = Deliveries()
    given = [d.hold(offset=each) for each in range(100)]
    tick, go_on = await renewing(d)
    d.renewals.release("g", "T", given[-1])
    go_on.set()
    await tick
    assert len(d.changes) == 99


def test_what_a_client_held_is_visible_a_second_after_it_is_gone():
    d = Deliveries()
    given = [d.hold(offset=3), d.hold(offset=4), d.hold("other", offset=5)]
    asyncio.run(d.renewals.gone("c"))
    assert d.changes == [(d.now, 1_000)] * 2
    assert [d.newest(each) is None for each in given] == [True, True, False]


def test_handles_have_nine_parts_and_ten_are_read():
    nine = "0 1795300097369 15000 5 1 broker-a 0 7 8669372"
    receipt = Receipt.parse(nine)
    assert receipt.text == nine and receipt.physical == 8669372
    assert receipt.topic_of("g", "T") == "%RETRY%g_T"
    # Apache's proxy in local mode puts a 0 before the offset of the log once it changed a handle.
    changed = Receipt.parse("0 1795300097369 15000 5 1 broker-a 0 7 0 8669372")
    assert changed == receipt
    assert Receipt.parse("0 1 15000 5 0 broker-a 0 7").physical == -1
    again = receipt.renewed(1795300099999, 3000)
    assert again.text == "7 1795300099999 3000 5 1 broker-a 0 7 8669372"


def test_a_changed_delivery_of_an_ordered_group_keeps_its_batch():
    receipt = Receipt.parse("4 100 15000 999 0 b 0 7 1")
    assert receipt.renewed(100, 30_000).text == "4 100 30000 999 0 b 0 7 1"


@pytest.mark.parametrize(
    "bad", ["", "0 1 2", "a 1 15000 5 0 b 0 7 1", "0 1 15000 5 9 b 0 7 1", "1 " * 600]
)
def test_a_malformed_handle_says_what_is_wrong(bad):
    with pytest.raises(ValueError, match="receipt handle"):
        Receipt.parse(bad)
