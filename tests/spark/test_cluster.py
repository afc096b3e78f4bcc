"""A standalone cluster with two workers: batch, stream and sink where executors are processes of
their own, come with nothing but libraries, and die."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from storeview import derived
from waiting import BOUND_S, until

import pystore
from broker import Broker
from broker.testing import SETTINGS
from tests.spark.clusters import Cluster, run_cluster, stopped
from tests.spark.conftest import TooLate
from tests.spark.test_job_faults import JOBS, told
from tests.spark.test_job_faults import words as job_words
from tests.spark.test_jobs import dump
from tests.spark.test_sink import SMALL, bodies, leftovers
from tests.spark.test_spark_kill import writing

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROWS = 30_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    with run_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def fill(path: Path, name: str, queues: int = 4, count: int = 500) -> list[str]:
    """A store of `queues` queues; its bodies."""
    made = [f"{name}-{q}-{i}" for q in range(queues) for i in range(count)]
    with pystore.open(path, **SMALL) as store:
        for q in range(queues):
            some = made[q * count : (q + 1) * count]
            store.put_many("t", [body.encode() for body in some], queue=q)
    return made


def test_a_worker_without_the_store_pulls_and_two_brokers_are_one_frame(cluster, tmp_path):
    """The store of broker-a is at the same place for the driver and the first worker alone."""
    a, b = tmp_path / "a", tmp_path / "b"
    texts = fill(a, "a", 2) + fill(b, "b", 2)
    own = cluster.host.address
    settings = SETTINGS | {"brokerName": "broker-a", "brokerIP1": own, "bindAddress": own}
    with Broker(a, listenPort=0, with_namesrv=True, **settings) as broker:
        for seen in (cluster.folder / "driver", cluster.workers[0]):
            (seen / "a").symlink_to(a)
        options = {
            "fallback": "pull",
            "nameServer": broker.namesrv_address,
            "topic": "t",
            "maxRecordsPerPartition": 500,
        }
        given = {"path": ["../../a", str(b)], "options": options}
        # A task that cannot pull must not be saved by the host that sees the store.
        found = cluster.run("read", json.dumps(given), **{"spark.task.maxFailures": "1"})
    assert found["bodies"] == sorted(texts)
    assert found["brokers"] == ["broker-a", "broker-b"]
    folders, packages = zip(*(each.split() for each in found["where"]), strict=True)
    for worker in cluster.workers:
        assert any(Path(each).is_relative_to(worker) for each in folders), folders
    # What was shipped with the job, not what this machine has installed.
    assert all("/site/pystore/" in each for each in packages)
    assert all(Path(p).is_relative_to(f) for f, p in zip(folders, packages, strict=True))


def test_executors_have_networks_of_their_own(cluster, tmp_path):
    """Addresses of their own, and loopbacks that lead nowhere else."""
    if cluster.no_network:
        pytest.skip(f"no network namespaces here: {cluster.no_network}")
    fill(tmp_path / "store", "s")
    given = {"path": str(tmp_path / "store"), "options": {"maxRecordsPerPartition": 250}}
    found = cluster.run("networks", json.dumps(given))
    own = str(Path("/proc/self/ns/net").readlink())
    networks = {network for network, _ in found["networks"]}
    assert len(networks) == 2 and own not in networks
    assert {address for _, address in found["networks"]} == {
        cluster.hosts[name].address for name in ("worker-1", "worker-2")
    }


def test_an_executor_killed_in_a_write_leaves_each_row_once(cluster, store_path):
    options = {"storeConf": json.dumps(SMALL), "jobId": "load"}
    given = {"path": str(store_path), "rows": ROWS, "halt_ms": 3000, "options": options}
    with cluster.submit("save", json.dumps(given)) as job, stopped(job):
        worker = until(lambda: writing(store_path) or job.poll() is not None)
        if worker is True:
            raise TooLate(cluster.log())
        victims = [pid for each in cluster.workers for pid in cluster.executors(each)]
        (victim,) = [pid for pid in victims if _is_above(pid, worker)]
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 0, cluster.log()
    assert bodies(store_path) == [f"{i:08d}" for i in range(ROWS)]
    assert not leftovers(store_path)


def test_jobs_outlive_an_executor(cluster, tmp_path, busy, capfd):
    """Each job calmly, and with an executor killed while its tasks run: the same report, the same
    store."""
    store, broken = busy(tmp_path / "store"), tmp_path / "broken"
    shutil.copytree(store, broken)
    for file in broken.glob("index/*"):
        file.unlink()
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    given: list[tuple[list[str], bool]] = []
    for out in (calm, killed):
        out.mkdir()
        shutil.copytree(broken, out / "rebuild")
        for name in JOBS:
            words = job_words(name, out / "rebuild" if name == "rebuild" else store, out)
            # It restores what was archived just before.
            words = [str(out / "archive") if each.endswith("/source") else each for each in words]
            given.append(([name, *words], out is killed))
    found = cluster.run("jobs", json.dumps({"jobs": given}), bound_s=4 * BOUND_S)
    reports = found["reports"]
    assert [each["code"] for each in reports] == [0] * len(given), reports
    half = len(JOBS)
    if not all(each["hit"] for each in reports[half:]):
        raise TooLate("a job ended before any of its tasks was seen to run")
    assert told([r["said"] for r in reports[half:]]) == told([r["said"] for r in reports[:half]])
    assert dump(killed / "restore", capfd) == dump(store, capfd)
    assert derived(killed / "rebuild") == derived(calm / "rebuild")


def _is_above(pid: int, child: int) -> bool:
    """Whether a process is an ancestor of another one."""
    while child > 1 and child != pid:
        child = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    return child == pid


def _count(path: Path) -> int:
    """Messages of a store that may not be there yet."""
    try:
        return len(bodies(path))
    except pystore.StoreError:
        return 0


def test_a_stream_whose_driver_is_killed_goes_on_and_writes_each_message_once(cluster, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    texts = fill(source, "s", count=2000)
    sink = {"storeConf": json.dumps(SMALL), "checkpointLocation": str(tmp_path / "checkpoint")}
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 400}
    given = {"path": str(source), "options": options, "sink": sink, "into": str(copy)}
    with cluster.submit("stream", json.dumps(given)) as job, stopped(job):
        until(lambda: job.poll() is not None or _count(copy) > 800, pause_s=0.05)
        if job.poll() is not None:
            raise TooLate(cluster.log())
        os.killpg(job.pid, signal.SIGKILL)
    done = _count(copy)
    assert 800 < done < len(texts)
    found = cluster.run("stream", json.dumps(given))
    assert 0 < sum(found["batches"]) <= len(texts) - done + 400
    assert bodies(copy) == sorted(texts)
