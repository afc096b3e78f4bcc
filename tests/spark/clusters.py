"""A standalone cluster: a master and two workers, each a process with a folder of its own, and a
network namespace of its own where this user may make them.

Executors get the packages of this project with the job, as an archive: the Python that they start
has the libraries alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import BOUND_S, until

from tests.spark.conftest import LOG4J
from tests.spark.networks import HERE, Host, hosts

__all__ = ["BRIEF", "PROGRAM", "Cluster", "run_cluster"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("cluster_job.py")
PACKAGES = ("pystore", "broker", "spark_ext", "pyspark_rocketmq")
MASTER = "org.apache.spark.deploy.master.Master"
#: Of virtual machines that live for seconds: what they save is their own compiler.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKER = "org.apache.spark.deploy.worker.Worker"


class Cluster:
    """url: of the master. workers: their folders. folder: what drivers run in. host: of drivers.
    hosts: of the master and the workers, by name; no_network: why all of them are this one."""

    def __init__(self, folder: Path, host: Host, hosts: dict[str, Host], no_network: str) -> None:
        self.folder, self.host, self.hosts, self.no_network = folder, host, hosts, no_network
        self.workers = [folder / "worker-1", folder / "worker-2"]
        self.url = f"spark://{hosts['master'].address}:{free_port()}"
        # Executors run in WORKER/APPLICATION/NUMBER: from there and from here, ../../ is a folder
        # that may hold the store, or may not.
        self.driver = folder / "driver" / "application" / "0"
        self.driver.mkdir(parents=True)
        (folder / "conf").mkdir()
        (folder / "conf" / "log4j2.properties").write_text(LOG4J)
        found = find_spec("pyspark")
        assert found is not None and found.submodule_search_locations
        self.home = Path(found.submodule_search_locations[0])
        self._python = folder / "python"
        self._python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        self._python.chmod(0o755)
        self.libraries = sysconfig.get_path("purelib")
        self.site = folder / "site"
        for name in PACKAGES:
            skip = shutil.ignore_patterns("__pycache__", "*.c")
            shutil.copytree(ROOT / name, self.site / name, ignore=skip)
        shutil.make_archive(str(self.site), "zip", self.site)

    def environment(self, host: Host) -> dict[str, str]:
        kept = {n: os.environ[n] for n in ("PATH", "JAVA_HOME", "LANG") if n in os.environ}
        return kept | {
            "HOME": str(self.folder),
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_NO_DAEMONIZE": "1",
            "JAVA_TOOL_OPTIONS": BRIEF,
        }

    def start(self, name: str, kind: str, *words: str) -> subprocess.Popen[bytes]:
        """A master or a worker, on the host of that name."""
        host = self.hosts[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*host.inside, self.home / "bin" / "spark-class", kind, "--host", host.address,
                 "--webui-port", "0", *words],
                env=self.environment(host), cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip

    def submit(self, *words: object, **more: str) -> subprocess.Popen[bytes]:
        """`spark-submit` of the program beside this file, as docs/spark.md has it."""
        settings = {
            "spark.executorEnv.PYTHONPATH": f"site:{self.libraries}",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{BOUND_S:.0f}s",
        } | more
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        line = [self.home / "bin" / "spark-submit", "--master", self.url, *conf,
                "--archives", f"{self.site}.zip#site", PROGRAM, *words]  # fmt: skip
        environment = self.environment(self.host) | {
            "PYSPARK_PYTHON": str(self._python),
            "PYTHONPATH": f"{self.site}:{self.libraries}",
        }
        # Of one job at a time: spark-submit passes on what the script prints, and its errors.
        with (self.folder / "driver.log").open("wb") as log:
            return subprocess.Popen(
                list(map(str, line)), env=environment, cwd=self.driver, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def run(self, *words: object, bound_s: float = BOUND_S, **more: str) -> dict[str, Any]:
        """A job to its end; what it printed last."""
        with self.submit(*words, **more) as job, stopped(job):
            assert job.wait(bound_s) == 0, self.log()
        (said,) = [line for line in self.log().splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(said)
        return found

    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def executors(self, worker: Path) -> list[int]:
        """The virtual machines that run tasks in a worker's folder."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                here = (folder / "cwd").readlink().is_relative_to(worker)
                if here and b"CoarseGrainedExecutorBackend" in words:
                    found.append(int(folder.name))
        return found


@contextlib.contextmanager
def stopped(process: subprocess.Popen[Any], *, group: bool = True) -> Iterator[None]:
    """Nothing of it is left after the block."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.terminate()
        process.wait()


@contextlib.contextmanager
def run_cluster(folder: Path) -> Iterator[Cluster]:
    names = ("master", "worker-1", "worker-2")
    with contextlib.ExitStack() as stack:
        try:
            host, found = stack.enter_context(hosts(*names))
            why = ""
        except OSError as failed:
            host, found, why = HERE, dict.fromkeys(names, HERE), str(failed)
        cluster = Cluster(folder, host, found, why)
        master = cluster.start("master", MASTER, "--port", cluster.url.rpartition(":")[2])
        stack.enter_context(stopped(master, group=False))
        for work in cluster.workers:
            work.mkdir()
            worker = cluster.start(
                work.name, WORKER,
                "--cores", "1", "--memory", "700m", "--work-dir", str(work), cluster.url,
            )  # fmt: skip
            stack.enter_context(stopped(worker, group=False))
        yield cluster
        # A worker that is told to stop ends its executors.
        until(lambda: not any(map(cluster.executors, cluster.workers)))
