"""The board and the alerts of the wheel, by Prometheus' own tools (Debian: `prometheus`)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml
from waiting import BOUND_S

import broker.metrics
from broker import Broker, Message, NameServer
from broker.metrics.table import BY_NAME

HERE = Path(broker.metrics.__file__).parent
ALERTS, BOARD = HERE / "alerts.yml", HERE / "board.json"
TOOL, SERVER = shutil.which("promtool"), shutil.which("prometheus")
with_promtool = pytest.mark.skipif(TOOL is None, reason="promtool is not installed")
_NAME = re.compile(r"\b((?:rocketmq|pystore)_\w+)")
_MACROS = {"$__rate_interval": "5m", '"$cluster"': '".*"', '"$broker"': '".*"'}


def queries():
    """Every query of the board, as Prometheus gets it."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for macro, value in _MACROS.items():
                query = query.replace(macro, value)
            yield query


def rules():
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from group["rules"]


def known(name):
    return name in BY_NAME or re.sub(r"_(bucket|sum|count)$", "", name) in BY_NAME


def test_board_and_alerts_ask_for_metrics_that_are_there():
    asked = [*queries(), *(rule["expr"] for rule in rules())]
    names = {name for query in asked for name in _NAME.findall(query)}
    assert len(asked) > 30 and not [name for name in names if not known(name)]


def test_labels_of_the_board_are_those_of_the_table():
    for query in queries():
        for name, labels in re.findall(r"\b((?:rocketmq|pystore)_\w+)\{([^}]*)\}", query):
            row = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
            used = set(re.findall(r"(\w+)=~?", labels)) - {"cluster", "node_id"}
            assert used <= set(row.labels), (name, used)


@with_promtool
def test_alerts_are_good_rules():
    done = subprocess.run([TOOL, "check", "rules", ALERTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_queries_of_the_board_are_good(tmp_path):
    made = [{"record": f"q{n}", "expr": query} for n, query in enumerate(queries())]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": made}]}))
    done = subprocess.run([TOOL, "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    text = (Path(__file__).parent / "alerts.test.yml").read_text()
    path = tmp_path / "test.yml"
    path.write_text(text.replace("RULES", str(ALERTS)))
    done = subprocess.run([TOOL, "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_promtool_finds_nothing_wrong_with_a_scrape(tmp_path):
    with Broker(
        tmp_path / "store", listenPort=0, metricsExporterType="PROM", metricsPromExporterPort=0
    ) as one:
        with one.producer() as producer:
            producer.send(Message("orders", b"12 apples"))
        page = urllib.request.urlopen(f"http://127.0.0.1:{one.metrics_port}/").read()
    done = subprocess.run([TOOL, "check", "metrics"], input=page, capture_output=True)
    # Upstream's names are upstream's: their style is not ours to choose. Ours must be good.
    said = [
        line for line in (done.stdout + done.stderr).decode().splitlines() if "pystore_" in line
    ]
    assert said == [], said


# ---- a real Prometheus ----


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Prometheus:
    """A server that scrapes some ports every second, with the alerts of the wheel in a hurry."""

    def __init__(self, folder, targets):
        self.port = free_port()
        hurried = re.sub(r"for: \d+m", "for: 1s", ALERTS.read_text())
        (folder / "alerts.yml").write_text(hurried.replace("/ 1000 > 60\n", "/ 1000 > 1\n"))
        conf = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "alerts.yml")],
            "scrape_configs": [{
                "job_name": "rocketmq",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in targets]}],
            }],
        }  # fmt: skip
        (folder / "prometheus.yml").write_text(yaml.safe_dump(conf))
        self._log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                SERVER, f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=subprocess.DEVNULL, stderr=self._log,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(BOUND_S)
        self._log.close()

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}") as answer:
            return json.load(answer)["data"]

    def value(self, query):
        found = self.ask("query?query=" + urllib.request.quote(query))["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self):
        return {
            alert["labels"]["alertname"]
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def until(self, holds, what, bound_s=BOUND_S):
        end = time.monotonic() + bound_s
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"waited {bound_s} s in vain for {what}: firing {self.firing()}")


@contextmanager
def started_broker(folder, port, *more, names=None):
    """names: its name server; None: one of its own."""
    named = ["-n", names] if names is not None else ["--with-namesrv", "--namesrv-port", "0"]
    command = [
        sys.executable, "-c", "import pystore.cli; pystore.cli.main()", "broker",
        "--store", str(folder / "store"), "--port", "0", *named, "--json",
        "--set", "metricsExporterType=PROM", "--set", f"metricsPromExporterPort={port}", *more,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(BOUND_S)
        process.stdout.close()


@pytest.mark.long
@pytest.mark.skipif(SERVER is None, reason="prometheus is not installed")
def test_a_real_prometheus_scrapes_and_its_alerts_fire(tmp_path):
    from broker.client import Consumer, Producer

    port = free_port()
    with started_broker(tmp_path, port) as (process, facts):
        names = facts["namesrv"]
        with Prometheus(tmp_path, [port]) as prometheus:
            with Producer("makers", names) as producer:
                for _ in range(50):
                    producer.send(Message("orders", b"12 apples"))
                count = 'rocketmq_messages_in_total{topic="orders"}'
                prometheus.until(lambda: prometheus.value(count) == 50, "what was sent")
                assert prometheus.value("up") == 1
                assert prometheus.firing() == set()
                # A consumer that takes one message and then goes, and comes back to take all.
                lag = "RocketMQConsumerLag"
                with Consumer("still", "orders", namesrv=names, start="first") as consumer:
                    next(iter(consumer))
                prometheus.until(lambda: lag in prometheus.firing(), "the alert of lag")
                with Consumer("still", "orders", namesrv=names, handler=lambda _: None):
                    prometheus.until(lambda: lag not in prometheus.firing(), "the alert's end")
            process.kill()
            process.wait(BOUND_S)
            prometheus.until(
                lambda: "RocketMQBrokerDown" in prometheus.firing(), "the alert of a dead broker"
            )


@pytest.mark.long
@pytest.mark.skipif(SERVER is None, reason="prometheus is not installed")
def test_the_alert_of_a_master_that_is_cut_off_fires_and_ends(tmp_path):
    """Its slave may act in its place, and its name server is gone; then it comes back."""
    port, at = free_port(), {"listenPort": free_port(), "supportActingMaster": True}
    settings = (
        "enableSlaveActingMaster=true", "brokerNotActiveTimeoutMillis=5000",
        "brokerRole=ASYNC_MASTER", "haListenPort=0",
    )  # fmt: skip
    acts = [word for setting in settings for word in ("--set", setting)]
    cut_off = "RocketMQMasterCutOff"
    with ExitStack() as stack:
        with NameServer.in_thread(**at) as names:
            address = f"127.0.0.1:{names.port}"
            stack.enter_context(started_broker(tmp_path, port, *acts, names=address))
            prometheus = stack.enter_context(Prometheus(tmp_path, [port]))
            is_cut_off = partial(prometheus.value, "pystore_ha_cut_off")
            prometheus.until(lambda: is_cut_off() == 0, "a master that is sure of itself")
        prometheus.until(lambda: cut_off in prometheus.firing(), "the alert of a cut-off master")
        with NameServer.in_thread(**at):
            prometheus.until(
                lambda: is_cut_off() == 0 and cut_off not in prometheus.firing(),
                "the end of the alert",
            )


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no file system of its own here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.skipif(SERVER is None, reason="prometheus is not installed")
def test_alerts_of_a_full_disk_and_of_a_lost_slave_fire(tmp_path, small_disk):
    small = ["--set", "mappedFileSizeCommitLog=1048576", "--set", "haListenPort=0"]
    master_port = free_port()
    settings = {"mappedFileSizeCommitLog": 1 << 20, "brokerName": "DEFAULT_BROKER"}
    small += ["--set", "brokerRole=ASYNC_MASTER"]
    with (
        started_broker(small_disk, master_port, *small) as (_, facts),
        Prometheus(tmp_path, [master_port]) as prometheus,
    ):
        with Broker(
            tmp_path / "slave", listenPort=0, namesrvAddr=facts["namesrv"], brokerRole="SLAVE",
            brokerId=1, bindAddress="127.0.0.1", **settings,
        ):  # fmt: skip
            in_sync = 'pystore_ha_slaves{state="in_sync"}'
            prometheus.until(lambda: prometheus.value(in_sync) == 1, "a slave in sync")
            assert "RocketMQNoSlaveInSync" not in prometheus.firing()
        prometheus.until(
            lambda: "RocketMQNoSlaveInSync" in prometheus.firing(), "the alert of a lost slave"
        )
        (small_disk / "ballast").write_bytes(bytes(58 << 20))
        prometheus.until(
            lambda: "RocketMQDiskFull" in prometheus.firing(), "the alert of a full disk"
        )
