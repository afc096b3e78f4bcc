"""The examples of official RocketMQ 5 clients, unchanged, at our service in local and in cluster
mode, and, as a control, at Apache's proxy: Java's as they stand in the client's jar, Go's as they
stand in its module. They ask foobar.com:8080 or hold blanks to fill in; the name is mapped to this
machine, blanks are filled."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import golang
import launch
import pytest
from proxies import proxy
from waiting import until

from broker import Admin, Broker, Consumer, Message, NameServer, Producer
from broker.testing import SETTINGS
from broker.wire.codes import RequestCode

pytestmark = pytest.mark.long

#: Where Java's examples ask.
HOST, PORT = "foobar.com", 8080
TAG = "yourMessageTagA"
#: Of each topic.
_QUEUES = 4
#: Topics of the examples: those of Java by their own names.
TOPICS = {
    "yourNormalTopic": "NORMAL", "yourFifoTopic": "FIFO", "yourDelayTopic": "DELAY",
    "yourTransactionTopic": "TRANSACTION", "yourTopic": "NORMAL",
    "go-normal": "NORMAL", "go-fifo": "FIFO", "go-delay": "DELAY", "go-transaction": "TRANSACTION",
    "topic-delay-new": "DELAY", "go-simple": "NORMAL", "go-push": "NORMAL", "go-async": "NORMAL",
    "go-lite": "LITE",
}  # fmt: skip
#: The group of that topic, and the lite topic that Go's example reads.
LITE_GROUP, LITE_READ = "go-lite-g", "00900"


class Service:
    """A broker whose gRPC port examples ask. open_batches: that it handed out, where it can be
    asked for them."""

    def __init__(
        self, broker: str, namesrv: str, open_batches: Callable[[], int] = lambda: 0
    ) -> None:
        self.broker, self.namesrv, self.open_batches = broker, namesrv, open_batches

    def taken(self, topic: str, count: int = 1) -> list[Any]:
        """What a consumer of the remoting protocol gets."""
        group = f"readers-of-{topic}"
        with Consumer(group, topic, namesrv=self.namesrv, start="first") as consumer:
            messages = iter(consumer)
            return [next(messages) for _ in range(count)]

    def send(self, topic: str, count: int) -> None:
        with Producer("senders", namesrv=self.namesrv) as producer:
            for number in range(count):
                producer.send(Message(topic, b"%d" % number, tags=TAG))

    def is_consumed(self, group: str, topic: str, count: int) -> bool:
        """Handed out and acknowledged."""
        offsets = 0
        for queue in range(_QUEUES):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            code, ext, _ = launch.ask(self.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)
            offsets += int(ext["offset"]) if code == 0 else 0
        return offsets >= count and not self.open_batches()


@pytest.fixture(
    scope="module", params=["local", "cluster", pytest.param("apache", marks=pytest.mark.java)]
)
def service(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", PORT))
        except OSError:
            pytest.skip(f"port {PORT}, which the examples ask, is taken")
    folder = tmp_path_factory.mktemp(request.param)
    make = _of_apache if request.param == "apache" else _ours
    with make(folder, request.param) as made:
        yield made


@contextmanager
def _ours(folder: Path, mode: str) -> Iterator[Service]:
    with ExitStack() as undo:
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        given = {**SETTINGS, "listenPort": 0, "namesrvAddr": names.address, "drain_s": 0.2}
        given |= {"recallMessageEnable": True, "transactionTimeOut": 1}
        if mode == "local":
            given["grpc_port"] = PORT
        broker = undo.enter_context(Broker(folder / "store", **given))
        for name, kind in TOPICS.items():
            broker.create_topic(name, queues=_QUEUES, message_type=kind)
        broker.create_group(LITE_GROUP, lite_of="go-lite")
        if mode == "cluster":
            undo.enter_context(proxy("ours", names.address, folder / "proxy", grpcServerPort=PORT))
        pop = broker.services.pop
        assert pop is not None
        yield Service(broker.address, names.address, lambda: len(pop.points))


@contextmanager
def _of_apache(folder: Path, mode: str) -> Iterator[Service]:
    """Its broker, name server and proxy."""
    settings = {"recallMessageEnable": "true", "transactionTimeOut": 1000}
    settings |= {"enableLmq": "true", "enableMultiDispatch": "true"}
    with launch.running("java", folder / "java", settings, "5.5.0") as peer:
        for name, kind in TOPICS.items():
            fields = {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(_QUEUES),
                "writeQueueNums": str(_QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false", "attributes": f"+message.type={kind}",
            }  # fmt: skip
            code, _, body = launch.ask(peer.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert code == 0, body
        with Admin(peer.namesrv) as admin:
            admin.create_group(LITE_GROUP, attributes={"lite.bind.topic": "go-lite"})
        with proxy("java", peer.namesrv, folder / "proxy", version="5.5.0", grpcServerPort=PORT):
            yield Service(peer.broker, peer.namesrv)


@contextmanager
def running(words: Sequence[str | Path], folder: Path, *, tries: int = 1) -> Iterator[Path]:
    """A program that runs until the test has seen what it wants; the file of what it says. tries:
    how often it is begun where it ends with an error: Java's examples give a machine that is busy
    three seconds for their first call."""
    said, ended = folder / "said", threading.Event()

    def run() -> None:
        for _ in range(tries):
            with said.open("ab") as out:
                process = subprocess.Popen(
                    words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder,
                    env={**os.environ, "HOME": str(folder)},
                )  # fmt: skip
            while process.poll() is None and not ended.wait(0.05):
                pass
            process.kill()
            if process.wait() == 0 or ended.is_set():
                return

    said.touch()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield said
    except BaseException:
        sys.stderr.write(said.read_text("utf-8", "replace")[-3000:])
        raise
    finally:
        ended.set()
        thread.join()


# ---- Java ----


@pytest.fixture(scope="module")
def jars(reference: Any) -> Path:
    reference.run("grpc", "-", "-", check=False, timeout=reference.setup_s)
    cache = Path(os.environ.get("RMQ_HOME", Path.home() / ".cache" / "rocketmq-reference"))
    (found, *_) = sorted(cache.glob("grpc-5.1.0-*/lib"))
    return found


@contextmanager
def java(jars: Path, folder: Path, name: str) -> Iterator[Path]:
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 {HOST}\n")
    words = [
        "java", "-Xmx256m", f"-Djdk.net.hosts.file={hosts}", f"-Duser.home={folder}",
        "-cp", f"{jars}/*", f"org.apache.rocketmq.client.java.example.{name}",
    ]  # fmt: skip
    with running(words, folder, tries=20) as said:
        yield said


@pytest.mark.java
@pytest.mark.parametrize("kind", ["Normal", "Fifo", "Delay", "Transaction"])
def test_producers_of_java(service: Service, jars: Path, tmp_path: Path, kind: str) -> None:
    with java(jars, tmp_path, f"Producer{kind}MessageExample"):
        (found,) = service.taken(f"your{kind}Topic")
    assert found.body.decode().endswith("message for Apache RocketMQ")
    assert found.tags == TAG


@pytest.mark.java
@pytest.mark.parametrize("kind", ["Simple", "Push"])
def test_consumers_of_java(service: Service, jars: Path, tmp_path: Path, kind: str) -> None:
    """Both are of one group: the second gets what was sent since."""
    count = {"Simple": 5, "Push": 10}[kind]
    service.send("yourTopic", 5)
    with java(jars, tmp_path, f"{kind}ConsumerExample"):
        until(
            lambda: service.is_consumed("yourConsumerGroup", "yourTopic", count), "acknowledgements"
        )


# ---- Go ----

GO = {
    "producer/normal": "go-normal", "producer/fifo": "go-fifo", "producer/delay": "go-delay",
    "producer/async": "go-async",
    "producer/transaction": "go-transaction", "producer/delay_recall": "topic-delay-new",
    "consumer/simple_consumer": "go-simple", "consumer/push_consumer": "go-push",
    "producer/lite": "go-lite", "consumer/lite_push_consumer": "go-lite",
}  # fmt: skip


@pytest.fixture(scope="module")
def gophers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the examples as programs, built within the module that they are part of."""
    tree = golang.module(tmp_path_factory.mktemp("module"))
    made = tmp_path_factory.mktemp("programs")
    for name, topic in GO.items():
        source = tree / "example" / name / "main.go"
        blanks = {"Topic": topic, "Endpoint": f"127.0.0.1:{PORT}", "ConsumerGroup": f"{topic}-g"}
        text = source.read_text()
        for blank, value in blanks.items():
            # One example has its writer's own address instead of a blank.
            text = re.sub(rf'({blank}\s+= )"[^"]+"', rf'\g<1>"{value}"', text)
        source.write_text(text)
        golang.build(tree, f"example/{name}", made / name.replace("/", "-"))
    return made


@contextmanager
def go(gophers: Path, folder: Path, name: str) -> Iterator[Path]:
    with running([gophers / name.replace("/", "-")], folder) as said:
        yield said


@pytest.mark.parametrize("kind", ["normal", "async", "fifo", "delay", "transaction"])
def test_producers_of_go(service: Service, gophers: Path, tmp_path: Path, kind: str) -> None:
    with go(gophers, tmp_path, f"producer/{kind}"):
        found = service.taken(f"go-{kind}", 10)
    bodies = [each.body.decode() for each in found]
    assert sorted(bodies) == [f"this is a message : {number}" for number in range(10)]
    if kind == "fifo":
        assert bodies == sorted(bodies) and len({each.queue for each in found}) == 1


def test_a_recall_of_go(service: Service, gophers: Path, tmp_path: Path) -> None:
    with go(gophers, tmp_path, "producer/delay_recall") as said:
        until(lambda: "Test Complete" in said.read_text(), "its end")
        assert "Message recalled successfully" in said.read_text()


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_consumers_of_go(service: Service, gophers: Path, tmp_path: Path, kind: str) -> None:
    topic = f"go-{kind}"
    service.send(topic, 5)
    with go(gophers, tmp_path, f"consumer/{kind}_consumer"):
        until(lambda: service.is_consumed(f"{topic}-g", topic, 5), "acknowledgements")


def test_lite_topics_of_go(service: Service, gophers: Path, tmp_path: Path) -> None:
    """Its producer sends to three in turn, a message a second; its consumer reads one of them."""
    sends, reads = tmp_path / "producer", tmp_path / "consumer"
    for each in (sends, reads):
        each.mkdir()
    with (
        go(gophers, reads, "consumer/lite_push_consumer") as said,
        go(gophers, sends, "producer/lite"),
    ):
        until(lambda: said.read_text().count("received message:") >= 2, "messages")
    lines = [each for each in said.read_text().splitlines() if "received message:" in each]
    assert all(f" go-lite {LITE_READ} " in each for each in lines), lines
