"""The pictures of docs/spark-jobs.md: every job's report of a store that `pystore bench` makes.

    python tools/pictures.py [--messages 100000]

A broker adds to the store what the bench has not: transactions, delayed messages and timers; and
two groups have consumed a part. A damaged copy is what `verify` looks at. Each plot of a report
becomes a file of docs/pictures, named by the job and the table that it draws.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pystore
from broker import Broker, LocalState, Message, TransactionProducer
from pystore.cli import main as program

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: JOB-TABLE of every plot.
PICTURES = (
    "archive-partitions", "delays-by-hour", "delays-by-kind", "lag-groups", "lag-waiting-by-hour",
    "reconcile-by-content", "topics-by-hour", "topics-topics", "transactions-by-hour",
    "transactions-by-producer-group", "transactions-orphans", "verify-kinds",
)  # fmt: skip
_PLOT = re.compile(r"<h2>([^<]+)</h2>\n(<svg.*?</svg>)", re.DOTALL)
#: The topic of `pystore bench`, and that of what a broker stores beside it.
_BENCH, _TOPIC = "PystoreBench", "orders"


def add_traffic(store: Path) -> None:
    """Puts what a broker stores for transactions of two groups, delays and timers."""
    with Broker(store, listenPort=0, with_namesrv=True) as broker:
        for group, count in (("shop-tx", 400), ("refund-tx", 150)):
            names = broker.namesrv_address
            with TransactionProducer(group, names, check=lambda m: LocalState.UNKNOWN) as producer:
                for i in range(count):
                    with producer.transaction(Message(_TOPIC, b"%d" % i)) as tx:
                        if i % 10 == 9:
                            tx.rollback()
                        elif i % 25 == 24:
                            tx.leave_open()
        with broker.producer() as producer:
            for i in range(600):
                producer.send(Message(_TOPIC, b"later", delay_level=1 + i % 2))
                due = int(time.time() * 1000) + 500 + 5 * i
                producer.send(Message(_TOPIC, b"timer", deliver_at_ms=due))
        time.sleep(7)  # both levels and the timers are over by then


def consume_some(store: Path) -> None:
    """Commits for two groups, which stay behind."""
    with pystore.open(store) as opened:
        for topic in (_BENCH, _TOPIC):
            for queue in (info.queue for info in opened.queues(topic)):
                _, high = opened.range(topic, queue)
                for group, share in (("billing", 0.9), ("search", 0.6)):
                    opened.metadata.offsets.commit(group, topic, queue, int(high * share))


def damaged_copy(store: Path, copy: Path) -> Path:
    """Copies a store, with two records that cannot be read, and a queue file of zeros."""
    shutil.copytree(store, copy)
    with pystore.Reader(store) as reader:
        places = [m.physical_offset for m in reader.read(_BENCH, 0, 100)[:3]]
    log = min((copy / "commitlog").iterdir())
    with log.open("r+b") as file:
        for place in places[::2]:
            file.seek(place + 4)
            file.write(b"\xff" * 4)
    queue = min((copy / "consumequeue" / _TOPIC / "0").iterdir())
    with queue.open("r+b") as file:
        file.write(bytes(2000))
    return copy


def draw(folder: Path, job: str, *words: object, codes: tuple[int, ...] = (0,)) -> dict[str, str]:
    """Returns the plots of one job's report, by their names."""
    page = folder / f"{job}.html"
    code = program(["spark", job, *map(str, words), "--report", str(page)])
    if code not in codes:
        raise SystemExit(f"{job} ended with {code}")
    found = _PLOT.findall(page.read_text("utf-8"))
    return {f"{job}-{name.lower().replace(' ', '-')}": picture for name, picture in found}


def pictures(folder: Path, messages: int) -> dict[str, str]:
    store, archive = folder / "store", folder / "archive"
    if program(["bench", str(store), "--messages", str(messages)]):
        raise SystemExit("pystore bench failed")
    add_traffic(store)
    consume_some(store)
    found = draw(folder, "transactions", store, "--orphan-after", 0)
    for job in ("topics", "lag", "delays"):
        found |= draw(folder, job, store)
    found |= draw(folder, "archive", store, archive)
    found |= draw(folder, "reconcile", store, archive)
    found |= draw(folder, "restore", folder / "restored", archive)
    found |= draw(folder, "verify", damaged_copy(store, folder / "damaged"), codes=(5,))
    return found | draw(folder, "rebuild", folder / "restored")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tools/pictures.py")
    parser.add_argument("--messages", type=int, default=100_000)
    given = parser.parse_args()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory(prefix="pystore-pictures-") as made:
        found = pictures(Path(made), given.messages)
    spark.stop()
    if set(found) != set(PICTURES):
        raise SystemExit(f"other plots than listed: {sorted(set(found) ^ set(PICTURES))}")
    FOLDER.mkdir(exist_ok=True)
    for name, picture in found.items():
        (FOLDER / f"{name}.svg").write_text(picture + "\n", encoding="utf-8")
    print(f"wrote {len(found)} pictures")


if __name__ == "__main__":
    main()
