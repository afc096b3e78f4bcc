"""One run: clients against three brokers under a controller, faults, and the history in a file. Run
by run.py in a network of its own: ``FOLDER CONTROLLER SECONDS SEED CLIENTS PLAN MAKE SIZES TIER``,
PLAN `random`, `kill`, `controller` or an issue's number, SIZES `LEAST-MOST` of bodies, `0-0`: names
alone, TIER `none`, `folder` or `s3`. Prints what happened as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cold"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from clients import Client, History, Look, read_whole
from controller_loss import lose_controller
from faults import Faults
from faulty_s3 import FaultyS3, faulty_s3
from s3_server import s3_server
from upstream_issues import SCENES
from waiting import BOUND_S, until_async
from world import CLUSTER, LIFE_MS, NAME, Host, World

from broker.services.controlled.controller import Controller
from broker.services.controlled.controller_address import controller_of
from broker.wire.codes import RequestCode

TOPIC, QUEUES, PAUSE_S = "orders", 8, 0.03
#: Of a tier that is an S3 one request in so many fails.
SELDOM = 20
#: What is out goes locally when thin_out() says so.
COLD = {
    "tieredUploadWaitMillis": 100, "tieredPutsPerHour": 100_000_000, "fileReservedTime": 0,
    "cleanResourceInterval": 0, "mappedFileSizeCommitLog": 16 << 10,
    "flushIntervalConsumeQueue": 50,
}  # fmt: skip


@contextlib.contextmanager
def tier_at(folder: Path, sort: str, seed: int) -> Iterator[tuple[dict[str, Any], FaultyS3 | None]]:
    """Yields settings of brokers, and the server of a tier that is an S3."""
    if sort != "s3":
        given = COLD | {"tieredStoreFilePath": folder / "cold"} if sort == "folder" else {}
        yield given, None
        return
    import boto3

    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    clients = Host(1).address
    subprocess.run(["ip", "address", "add", clients, "dev", "lo"], check=True)
    with s3_server() as behind:
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.close()
        with faulty_s3(behind, random.Random(seed), clients, SELDOM) as server:
            server.fails = True
            yield COLD | {"tieredStoreFilePath": "s3://bucket/cold"}, server


def controller_at(world: World) -> Controller:
    """For the harness: it looks, and moves."""
    return controller_of(
        world.controller_address, CLUSTER, NAME, world.folder / "none", 0o644, LIFE_MS,
        lambda *_: None, None,
    )  # fmt: skip


async def until_in_sync(look: Look, what: str, starting: World | None = None) -> None:
    """starting: its brokers may have given up waiting for a controller that starts, too."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        for each in starting.brokers if starting else ():
            each.start()
        record = await look.now()
        if record is not None and record.master is not None and len(record.in_sync) == 3:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"three in sync, {what}: {look.record}")


async def kill_once(faults: Faults, look: Look, seconds: float) -> None:
    """The master, in the middle."""
    await asyncio.sleep(seconds / 3)
    await look.now()
    faults.counts["kill"] += 1
    await faults.kill(0.5)
    await asyncio.sleep(seconds * 2 / 3)


async def work(world: World, plan: str, seconds: float, seed: int, count: int,
               sizes: tuple[int, int], s3: FaultyS3 | None) -> dict[str, object]:  # fmt: skip
    look = Look(controller_at(world))
    await until_in_sync(look, "at the beginning", world)
    brokers = [each.address for each in world.brokers]
    history = History(world.folder / "history.jsonl")
    clients = [Client(n, seed, history, look, brokers, TOPIC, QUEUES, sizes) for n in range(count)]
    await make_topic(look, clients[0])
    for address in brokers:
        await until_async(lambda address=address: knows_topic(address), f"the topic at {address}")
    faults, ending = Faults(world, look, seed), [False]
    busy = clients if plan not in SCENES else []
    # A disk takes what comes within some minutes.
    pause = PAUSE_S * (10 if sizes[1] else 1)
    running = [asyncio.ensure_future(each.run(lambda: ending[0], pause)) for each in busy]
    if plan in SCENES:
        await SCENES[plan](world, look, clients[0])
    elif plan == "kill":
        await kill_once(faults, look, seconds)
    elif plan == "controller":
        await lose_controller(world, faults, look, history, clients[0])
    else:
        end = time.monotonic() + seconds
        await faults.run(lambda: time.monotonic() > end, lambda: thin_out(world, look, clients[0]))
    faults.mend()
    if s3 is not None:
        s3.fails = False
        faults.counts.update(s3.faults)
    await until_in_sync(look, f"at the end; {faults.told[-3:]}")
    await thin_out(world, look, clients[0])
    ending[0] = True
    await asyncio.gather(*running)
    await read_all(clients[0], history, look, brokers)
    history.close()
    for each in clients:
        await each.close()
    return {"history": history.counts, "faults": dict(faults.counts), "told": faults.told,
            "epochs": look.record.epoch if look.record else 0}  # fmt: skip


async def thin_out(world: World, look: Look, client: Client) -> None:
    """Has brokers delete what is out, while nobody lacks any of it: else somebody would need a copy
    of the store."""
    if "tieredStoreFilePath" not in world.more:
        return
    await until_in_sync(look, "between two faults")
    for each in world.brokers:
        await client.clean(each.address)


async def make_topic(look: Look, client: Client) -> None:
    """At the master, which a busy machine may cost its lease meanwhile."""
    async with asyncio.timeout(BOUND_S):
        while not await client.make_topic(look.record.address if look.record else ""):
            await look.now()


def knows_topic(address: str) -> bool:
    """Says whether the topic has its queues there: else a later master would make it with fewer."""
    code, _, body = launch.ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
    return code == 0 and json.loads(body)["readQueueNums"] == QUEUES


async def read_all(client: Client, history: History, look: Look, brokers: list[str]) -> None:
    """Every queue, from each broker, once all of them have all."""
    record = await look.now()
    assert record is not None
    for queue in range(QUEUES):
        end = await client.end_of(record.address, queue)
        assert end is not None, "the master tells no end"
        for address in brokers:
            limit = time.monotonic() + 60
            while (await client.end_of(address, queue) or 0) < end and time.monotonic() < limit:
                await asyncio.sleep(0.1)
            await read_whole(client, history, address, queue, end)


def sound(store: Path, make: str) -> str:
    """What `pystore verify` finds; empty: nothing. A Java broker that was killed drops the index
    file that it wrote, and puts into the next one what its recovery reads of the log alone."""
    words = [str(launch.PYSTORE), "verify", str(store), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout:
        return done.stderr[-2000:]
    expected = {"missing-keys"} if make == "java" else set()
    found = json.loads(done.stdout)["findings"]
    wrong = [each for each in found if each["kind"] not in expected]
    return json.dumps({"store": str(store), "findings": wrong})[-2000:] if wrong else ""


def sound_tier(address: object) -> str:
    words = [str(launch.PYSTORE), "cold", "verify", str(address), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{done.returncode} {done.stdout} {done.stderr}"[-2000:]


def main() -> None:
    folder, controller, seconds, seed, count, plan, make, sizes, tier = sys.argv[1:10]
    least, most = map(int, sizes.split("-"))
    with contextlib.ExitStack() as stack:
        more, s3 = stack.enter_context(tier_at(Path(folder), tier, int(seed)))
        if most:  # a segment takes the largest message
            more |= {"mappedFileSizeCommitLog": 4 << 20}
        world = stack.enter_context(World(Path(folder), controller, make, more))
        try:
            out = asyncio.run(
                work(world, plan, float(seconds), int(seed), int(count), (least, most), s3)
            )
            out["exit"] = world.stop()
            out["verify"] = [
                sound(each.disk / "store", make)
                for each, make in zip(world.brokers, world.makes, strict=True)
            ]
            if "tieredStoreFilePath" in more:
                out["verify"].append(sound_tier(more["tieredStoreFilePath"]))
        except BaseException:
            for each in world.brokers:
                print(each.host.address, each.server.said(), file=sys.stderr)
            raise
    print(json.dumps(out))


if __name__ == "__main__":
    main()
