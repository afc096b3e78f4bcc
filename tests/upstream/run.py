"""Runs what Apache tests RocketMQ with, before our broker (README.md)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from ports import free_port  # noqa: E402
from waiting import until  # noqa: E402

PYSTORE = Path(sys.executable).parent / "pystore"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rocketmq-upstream"
#: Clients on one protocol and one set of names, from the first with today's listeners on.
VERSIONS = (
    "4.3.0", "4.4.0", "4.5.2", "4.6.1", "4.7.1", "4.8.0", "4.9.8", "5.0.0", "5.1.4", "5.2.0",
    "5.3.3", "5.4.0", "5.5.0",
)  # fmt: skip
#: From this one on, what clients and brokers say to each other has another package.
_REMOTING_SINCE = (5, 1)
#: Tests of upstream's parts that are no broker, or a broker in their own process alone.
_NOT_OURS = ("container", "autoswitchrole", "dledger", "lmq", "schema")
#: Integration tests that fail, and why.
KNOWN = {
    "BatchSendIT.testBatchSend_SysInnerBatch": "topics of the type BatchCQ are refused",
    "LagCalculationIT.testEstimateLag": "it calls a method of a store in its own process",
    "OffsetNotFoundIT.testConsumeStopAndResume": "it needs a hook in a broker in its own process",
    "RecallWithTraceIT.testRecallTrace": "it recalls what was never sent: refused with 604",
    "SendAndRecallDelayMessageIT.testSendAndRecall_ukCollision": "as the one above",
}  # fmt: skip
_JVM = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")
]


def jars(pom: str, name: str) -> Path:
    """Returns the folder with what a pom.xml wants, from Maven Central."""
    folder = CACHE / name
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True)
        (folder / "ready").touch()
    return folder / "lib"


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def broker(folder: Path, *words: str) -> Iterator[tuple[int, int]]:
    """A broker with name server and gRPC: the ports of the two."""
    main, names, grpc = free_port(), free_port(), free_port()
    command = [
        str(PYSTORE), "broker", "--store", str(folder / "store"), "--port", str(main),
        "--with-namesrv", "--namesrv-port", str(names), "--grpc", "--grpc-port", str(grpc), *words,
    ]  # fmt: skip
    with (folder / "broker.log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for port in (main, names, grpc):
            until(lambda port=port: running.poll() is not None or _listens(port), "a broker")
        yield names, grpc
    finally:
        running.terminate()
        running.wait()


def integration(source: Path, only: list[str]) -> int:
    """The tests of upstream's module `test`, before name server and brokers of ours; Apache's proxy
    stands before them in ClusterGrpcIT. Returns how many surprised us."""
    lib = jars((HERE / "its" / "pom.xml").read_text(), "its")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        base = source / "test" / "src" / "test" / "java" / "org" / "apache" / "rocketmq" / "test"
        files = [
            path
            for path in (source / "test" / "src").rglob("*.java")
            if not set(_NOT_OURS) & set(path.parts)
            and path.name not in ("IntegrationTestBase.java", "LocalGrpcIT.java")
        ]
        files += (HERE / "its").glob("*.java")
        paths = f"{folder}:{lib}/*"
        command = ["javac", "-nowarn", "-cp", paths, "-d", made, *map(str, files)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        shutil.copytree(base.parents[4] / "resources", folder, dirs_exist_ok=True)
        tests = sorted(path for path in folder.rglob("*IT.class") if path.stem != "GrpcBaseIT")
        classes = [
            ".".join(path.relative_to(folder).with_suffix("").parts)
            for path in tests
            if not only or path.stem in only
        ]
        command = [
            "java", *_JVM, f"-Dpystore={PYSTORE}", f"-Dlogs={folder}", f"-Djava.io.tmpdir={folder}",
            "-cp", paths, "Runner", *classes,
        ]  # fmt: skip
        return _judged(command)


def _judged(command: list[str]) -> int:
    counts = dict.fromkeys(("PASSED", "FAILED", "IGNORED"), 0)
    surprises = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            verdict, _, rest = line.partition(" ")
            if verdict not in counts:
                continue
            counts[verdict] += 1
            name = rest.split()[0]
            is_known = (verdict == "FAILED") == (name in KNOWN)
            if verdict != "IGNORED" and not is_known:
                surprises += 1
                print(line.rstrip(), flush=True)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))
    return surprises + (run.returncode != 0)


def end_to_end(source: Path, only: list[str]) -> int:
    """The tests of rocketmq-e2e for the Java client of gRPC. They wait by the clock: a machine that
    has other work fails some."""
    with tempfile.TemporaryDirectory() as made, broker(Path(made)) as (names, grpc):
        project = Path(shutil.copytree(source / "java", Path(made) / "java"))
        for pom in project.rglob("pom.xml"):  # for Java 17
            text = pom.read_text().replace(" -XX:MaxPermSize=256m", "")
            pom.write_text(text.replace("1.18.8<", "1.18.30<"))
        conf = project / "e2e" / "src" / "test" / "resources" / "env" / "daily" / "daily.conf"
        text = conf.read_text().replace(":9876", f":{names}")
        conf.write_text(text.replace(":8081", f":{grpc}"))
        command = [
            "mvn",
            "-B",
            "-pl",
            "e2e",
            "test",
            *([f"-Dtest={','.join(only)}"] if only else []),
        ]
        with (Path(made) / "mvn.log").open("w+") as log:
            code = subprocess.run(command, cwd=project, stdout=log, check=False).returncode
            log.seek(0)
            said = [line for line in log if re.match(r"\[\w+\] +(Tests run:|\w+\.\w+:\d+)", line)]
        print("".join(line for line in said if "Time elapsed" not in line), end="")
    return code


def clients(versions: list[str]) -> int:
    """What applications do, with each of the official Java clients."""
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        settings = (
            "enablePropertyFilter=true",
            "transactionCheckInterval=3000",
            "transactionTimeOut=1000",
        )
        words = [word for each in settings for word in ("--set", each)]
        with broker(Path(made), *words) as (names, _):
            for version in versions or VERSIONS:
                failed += _client(version, names, Path(made) / version) != 0
    return failed


def _client(version: str, names: int, folder: Path) -> int:
    pom = (HERE / "clients" / "pom.xml").read_text().replace("VERSION", version)
    lib = jars(pom, f"client-{version}")
    folder.mkdir()
    text = (HERE / "clients" / "Versions.java").read_text()
    if tuple(map(int, version.split(".")))[:2] >= _REMOTING_SINCE:
        text = text.replace("common.protocol.heartbeat", "remoting.protocol.heartbeat")
    (folder / "Versions.java").write_text(text)
    paths = f"{folder}:{lib}/*"
    command = ["javac", "-nowarn", "-cp", paths, "-d", str(folder), str(folder / "Versions.java")]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    command = [
        "java",
        *_JVM,
        f"-Duser.home={folder}",
        "-cp",
        paths,
        "Versions",
        f"127.0.0.1:{names}",
        version,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stdout.splitlines()
    print("\n".join(line for line in lines if line.startswith(("FAILED", version))), flush=True)
    if found.returncode:  # what it threw, if it did
        print(found.stderr[-4000:], file=sys.stderr, flush=True)
    return found.returncode


def main(words: list[str]) -> int:
    match words:
        case ["its", source, *only]:
            return integration(Path(source), only)
        case ["e2e", source, *only]:
            return end_to_end(Path(source), only)
        case ["clients", *versions]:
            return clients(versions)
    print("usage: its SOURCE [CLASS ...] | e2e SOURCE [CLASS ...] | clients [VERSION ...]")
    return 2


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 99))
