"""Every example runs, and says what it says; the shop keeps its promises when parts of it die."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import launch
import pytest
from ports import free_port
from waiting import until

from broker import Admin, Broker, Consumer, LocalState, Message, Producer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES / "shop"))

from order_service import TOPIC, OrderService  # noqa: E402
from product_service import ProductService  # noqa: E402


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory):
    with Broker(
        tmp_path_factory.mktemp("s") / "store", listenPort=0, with_namesrv=True, drain_s=0.1,
        mappedFileSizeCommitLog=4 << 20,
    ) as broker:  # fmt: skip
        yield broker.namesrv_address


def start(file, namesrv, *words):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / file), *words],
        env=os.environ | {"NAMESRV_ADDR": namesrv, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


SAYS = {
    "produce_and_consume.py": "fruit ['order-17'] 12 apples\n",
    "order_consumer.py": "".join(f"order-{n} created paid shipped\n" for n in range(5)),
    "reminder.py": "after 1 s: the order is not paid yet\n",
    "request_reply.py": "12 left of apples\n",
    "agents/ten_lines.py": "it\nis\ndone\n",
    "transaction.py": (
        "rolled back: UNIQUE constraint failed: orders.id\n"
        "delivered: order 17\ndelivered: order 18\n"
    ),
}


@pytest.mark.parametrize("file", SAYS)
def test_an_example_says_what_it_promises(file, namesrv):
    done = start(file, namesrv)
    out, _ = done.communicate(timeout=300)
    if file == "reminder.py":  # however slow the machine is
        out = "after 1 s:" + out.partition(":")[2]
    if file == "transaction.py":
        out = "".join(sorted(out.splitlines(True), key=lambda line: (line[0] != "r", line)))
    assert (done.returncode, out) == (0, SAYS[file])


def test_an_answer_is_whole_when_worker_and_supervisor_are_killed_amid_it(namesrv, tmp_path):
    with Admin(namesrv) as admin:
        admin.create_topic("sessions", attributes={"message.type": "LITE"})
        admin.create_group("supervisors", attributes={"lite.bind.topic": "sessions"})
        admin.create_topic("tasks")
    words = [f"word-{n}" for n in range(40)]
    work = "agents/worker.py", namesrv, str(tmp_path / "made")
    ask = "agents/supervisor.py", namesrv, str(tmp_path / "got"), "s-1", "r-1", " ".join(words)
    running = [start(*work), start(*ask)]
    try:
        supervisor = running[1].stdout
        first = [supervisor.readline() for _ in range(3)]
        running[0].kill()
        running.append(start(*work))
        first += [supervisor.readline() for _ in range(10)]
        running[1].kill()
        running.append(start(*ask))
        out, _ = running[-1].communicate(timeout=300)
    finally:
        for each in running:
            each.kill()
            each.communicate()
    assert out.split() == ["you", "asked:", *words]
    assert "".join(first) == "".join(f"{word}\n" for word in out.split()[:13])


def test_the_service_finishes_and_stops(namesrv):
    with Producer("p", namesrv) as producer:
        producer.send(Message("jobs", b"one"))
        producer.send(Message("jobs", b"two", tags="slow-start"))
    service = start("service.py", namesrv)
    lines = [service.stdout.readline() for _ in range(3)]
    service.send_signal(signal.SIGTERM)
    rest, _ = service.communicate(timeout=300)
    assert sorted(lines) == ["ready\n", "worked on one\n", "worked on two\n"]
    assert (service.returncode, rest) == (0, "stopped\n")


def test_the_web_application_publishes(namesrv, monkeypatch):
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import web

    with testclient.TestClient(web.app) as client:
        told = client.post("/orders/17?amount=3")
    assert told.status_code == 200
    assert len(told.json()["message_id"]) == 32


# ---- the shop: the scenarios of two services that must agree ----


class Postgres:
    """A server of PostgreSQL in a folder of its own. Raises: FileNotFoundError, ImportError."""

    def __init__(self, folder):
        import psycopg

        self._connect = psycopg.connect
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            raise FileNotFoundError("PostgreSQL's server is not installed (Debian: postgresql)")
        # It refuses to run as root; Debian's package brings a user for it.
        self._user = {"user": "postgres"} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "postgres")
        data = str(folder / "data")
        words = [str(programs[-1].with_name("initdb")), "-D", data, "-U", "shop", "-A", "trust"]
        quiet = {"stdout": subprocess.DEVNULL, "cwd": folder}
        subprocess.run([*words, "--no-sync"], check=True, **quiet, **self._user)
        self.port, self._numbers = free_port(), itertools.count()
        words = [str(programs[-1]), "-D", data, "-p", str(self.port), "-h", "127.0.0.1", "-k", ""]
        self.process = subprocess.Popen(
            [*words, "-F"], stderr=subprocess.DEVNULL, **quiet, **self._user
        )

    def _address(self, name):
        return f"postgresql://shop@127.0.0.1:{self.port}/{name}"

    def make(self, count):
        """So many new databases."""

        def connected():
            with contextlib.suppress(Exception):
                return self._connect(self._address("postgres"), autocommit=True)

        names = [f"shop{next(self._numbers)}" for _ in range(count)]
        with until(connected, "PostgreSQL") as connection:
            for name in names:
                connection.execute(f"CREATE DATABASE {name}")
        return [self._address(name) for name in names]


@pytest.fixture(scope="module")
def postgres():
    folder = Path(tempfile.mkdtemp(prefix="shop-postgres-"))
    try:
        server = Postgres(folder)
    except (ImportError, FileNotFoundError, LookupError) as missing:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no PostgreSQL here: {missing}")
    yield server
    server.process.send_signal(signal.SIGQUIT)
    server.process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class Shop:
    """A broker whose clock a test sets on, and the two services over two databases."""

    def __init__(self, folder, databases):
        self.order_database, self.product_database = databases
        self.ahead_ms = 0
        self.broker = Broker(
            folder / "store", listenPort=0, with_namesrv=True, drain_s=0.1,
            now_ms=lambda: time.time_ns() // 1_000_000 + self.ahead_ms,
            mappedFileSizeCommitLog=4 << 20, messageDelayLevel="1s 1s 1s 1s 1s",
        )  # fmt: skip

    def orders(self, **options):
        return OrderService(self.order_database, self.namesrv, **options)

    def products(self):
        return ProductService(self.product_database, self.namesrv, max_retries=1)

    @property
    def namesrv(self):
        return self.broker.namesrv_address

    def later(self, seconds=30):
        """The broker checks its open transactions, as if this time had passed."""
        self.ahead_ms += seconds * 1000

        async def check():
            transactions = self.broker.services.transactions
            transactions.configure()
            await transactions.check()

        self.broker.run(check())

    @property
    def open(self):
        async def count():
            return self.broker.services.transactions.halves.state().open

        return self.broker.run(count())


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(tmp_path, request):
    databases = [str(tmp_path / f"{name}.db") for name in ("orders", "products")]
    if request.param == "postgresql":
        databases = request.getfixturevalue("postgres").make(2)
    made = Shop(tmp_path, databases)
    with made.broker:
        made.broker.create_topic(TOPIC, 1)
        yield made


def test_what_is_ordered_leaves_the_stock_once(shop):
    with shop.orders() as orders, shop.products() as products:
        products.fill("apples", 10)
        placed = [orders.place("apples", n) for n in (1, 2, 3)]
        until(lambda: products.stock("apples") == 4)
        # The same orders come again, as after a crash between commit and acknowledgement.
        with shop.broker.producer() as producer:
            for n, order in enumerate(placed, 1):
                body = b'{"order": "%s", "product": "apples", "quantity": %d}'
                producer.send(Message(TOPIC, body % (order.encode(), n)))
        until(lambda: products.repeats == 3)
        assert products.stock("apples") == 4


def test_what_the_database_refuses_is_never_delivered(shop, monkeypatch):
    with shop.orders() as orders, shop.products() as products:
        products.fill("apples", 10)
        with monkeypatch.context() as patch:

            def refuse(*_):
                raise sqlite3.OperationalError("disk full")

            patch.setattr(orders, "store", refuse)
            with pytest.raises(sqlite3.OperationalError):
                orders.place("apples", 5)
        orders.place("apples", 1)
        until(lambda: products.stock("apples") == 9)
        assert shop.open == 0


def test_a_check_commits_what_the_log_has(shop, monkeypatch):
    with shop.orders() as orders, shop.products() as products:
        products.fill("apples", 10)

        async def lose(tx, state, remark=None):
            """The end of the transaction never reaches the broker."""

        with monkeypatch.context() as patch:
            patch.setattr(orders.producer._twin, "end", lose)
            orders.place("apples", 4)
        assert shop.open == 1
        shop.later()
        until(lambda: products.stock("apples") == 6)
        assert shop.open == 0


DYING = """
import os, sys
from order_service import OrderService
service = OrderService(sys.argv[1])
kept = service.store
def store(connection, *order):
    if sys.argv[2] == "after":
        kept(connection, *order)
        connection.commit()
    os.kill(os.getpid(), 9)
service.store = store
with service:
    service.place("apples", 3)
"""


@pytest.mark.parametrize(("when", "left"), [("before", 10), ("after", 7)])
def test_another_instance_answers_for_one_that_was_killed(shop, when, left):
    with shop.products() as products:
        products.fill("apples", 10)
        folder = str(EXAMPLES / "shop")
        done = subprocess.run(
            [sys.executable, "-c", DYING, shop.order_database, when],
            env=os.environ | {"NAMESRV_ADDR": shop.namesrv, "PYTHONPATH": f"{ROOT}:{folder}"},
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL
        assert shop.open == 1
        with shop.orders(grace_s=0) as other:
            other.place("apples", 0)  # so that the broker knows it
            until(lambda: [shop.later(), shop.open == 0][1], pause_s=0.2)
        until(lambda: products.stock("apples") == left)


def test_a_young_order_without_a_log_is_not_decided(shop):
    with shop.orders() as orders:
        orders.producer._runner.run(orders.producer._twin.begin(Message(TOPIC, b"{}", keys="x")))
        shop.later()
        shop.later()
        assert shop.open == 1


def test_an_order_that_nobody_decides_is_put_aside(shop):
    """Asked 15 times in vain, the broker keeps a copy and asks no more."""
    with shop.orders() as orders, shop.products() as products:
        products.fill("apples", 10)
        asked = []
        kept = orders.producer._function
        orders.producer._function = lambda message: (asked.append(message), kept(message))[1]
        body = b'{"order": "x", "product": "apples", "quantity": 3}'
        orders.producer._runner.run(orders.producer._twin.begin(Message(TOPIC, body, keys="x")))
        for count in range(1, 16):
            shop.later()
            until(lambda n=count: len(asked) == n)
            assert shop.open == 1
        shop.later()
        until(lambda: shop.open == 0)
        shop.later()
        with shop.broker.consumer("undertaker", start="first") as reader:
            reader.assign(reader.queues("TRANS_CHECK_MAX_TIME_TOPIC"))
            (aside,) = reader.poll(60)
        assert aside.body == body
        assert (len(asked), products.stock("apples")) == (15, 10)


def test_orders_are_asked_for_no_sooner_and_no_oftener_than_set(tmp_path):
    """With a second for both; the seeds have 60 and 30."""
    settings = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
    asked = []
    with (
        Broker(tmp_path / "s", listenPort=0, with_namesrv=True, drain_s=0.1, **settings) as broker,
        OrderService(str(tmp_path / "orders.db"), broker.namesrv_address) as orders,
    ):
        kept = orders.producer._function

        def check(message):
            asked.append(time.monotonic())
            return kept(message)

        orders.producer._function = check
        began = time.monotonic()
        orders.producer._runner.run(orders.producer._twin.begin(Message(TOPIC, b"{}", keys="x")))
        until(lambda: len(asked) >= 3)
    # Rounds are a second apart at least; how long one takes to reach us varies.
    for n, at in enumerate(asked, 1):
        assert at - began > 0.99 * n


def test_a_broker_killed_between_commit_and_op_changes_the_stock_once(tmp_path):
    """Decisions are written to the op topic a minute later here, so the kill comes before."""
    settings = {
        "transactionOpBatchInterval": 60_000, "transactionTimeOut": 1000,
        "transactionCheckInterval": 1000,
    }  # fmt: skip
    with (
        launch.name_server("ours", tmp_path / "names") as namesrv,
        launch.running("ours", tmp_path / "peer", settings, namesrv=namesrv) as peer,
        OrderService(str(tmp_path / "orders.db"), namesrv) as orders,
    ):
        service = ProductService(str(tmp_path / "products.db"), namesrv)
        service.fill("apples", 10)
        first = orders.place("apples", 3)
        with service as products:
            until(lambda: products.stock("apples") == 7)
            peer.kill()
            peer.restart()
            peer.wait_ready()
            second = orders.place("apples", 1)
            until(lambda: products.stock("apples") == 6)
        with Consumer("audit", namesrv=namesrv, start="first") as reader:
            reader.assign(reader.queues(TOPIC))
            seen = Counter()
            while not {first, second} <= seen.keys():  # from several queues, in any order
                for message in reader.poll(1.0):
                    seen[message.keys[0]] += 1
                    reader.ack(message)
        assert set(seen) == {first, second}
        assert seen[first] <= 2


def test_a_stock_that_is_too_small_makes_a_dead_letter(shop):
    with shop.orders() as orders, shop.products() as products:
        products.fill("apples", 1)
        orders.place("apples", 5)
        with shop.broker.consumer("undertaker", start="first") as reader:
            until(lambda: _readable(reader))
            (letter,) = reader.poll(60)
        assert b'"quantity": 5' in letter.body
        assert products.stock("apples") == 1


def _readable(reader):
    try:
        reader.assign(reader.queues("%DLQ%product-service"))
    except Exception:
        return False
    return True


def test_local_state_has_upstreams_numbers():
    assert [s.value for s in LocalState] == [0, 8, 12]
