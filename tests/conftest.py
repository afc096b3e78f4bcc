"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis.internal.conjecture import providers as hypothesis_providers
from waiting import BOUND_S

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)

# Java machines of tests live for seconds: the second compiler would spend more time than its code
# saves, a parallel collector takes cores from the tests beside it, and to verify the classes of
# libraries is a tenth of a start. Together it is more than a third of their time.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
os.environ["JDK_JAVA_OPTIONS"] = f"{_SHORT_LIVED} {os.environ.get('JDK_JAVA_OPTIONS', '')}".strip()

# Hundreds of processes that tests start import the same modules: each of them is compiled once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# ---- copies of stores ----


def _copy_data(source: Any, target: Any) -> None:
    """Copies what a file has. An index file of 420 MB, a timer log of 100 and each file of a queue
    are holes but for some pages, which shutil would write out: gigabytes in a run."""
    read, write = source.fileno(), target.fileno()
    size, at = os.fstat(read).st_size, 0
    os.ftruncate(write, size)
    while at < size:
        try:
            at = os.lseek(read, at, os.SEEK_DATA)
        except OSError:  # nothing but a hole comes
            return
        end = os.lseek(read, at, os.SEEK_HOLE)
        os.lseek(write, at, os.SEEK_SET)
        while at < end:
            at += os.sendfile(write, read, at, end - at)


if sys.platform == "linux":
    shutil._fastcopy_sendfile = _copy_data  # type: ignore[attr-defined]

# ---- what random tests start from ----

HERE = Path(__file__).resolve().parent
# Of processes that tests start, too. check.h reads the same file for the C tests.
os.environ["PS_SEED"] = os.environ.get("PS_SEED") or (HERE / "seed").read_text().strip()

# Whether a property holds does not depend on how fast the machine makes its examples, nor on what
# earlier runs have found, nor on constants in whatever modules the worker has loaded so far.
hypothesis_settings.register_profile(
    "suite", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("suite")
hypothesis_providers.is_local_module_file = lambda file: False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.hypothesis_seed = os.environ["PS_SEED"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.line(f"random tests: repeat with PS_SEED={os.environ['PS_SEED']}")


@pytest.fixture(scope="session")
def seed() -> int:
    """What a random test starts from: PS_SEED, or the number that stands in tests/seed."""
    return int(os.environ["PS_SEED"])


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers from the seed."""
    return random.Random(seed)


def _mark_random(item: pytest.Item) -> None:
    """`make seeds` runs those that draw from the seed."""
    draws = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if draws or "seed" in getattr(item, "fixturenames", ()):
        item.add_marker("random")


# Tests may be run once more with brokers of several network threads.
if "PS_SELECTOR_THREADS" in os.environ:
    from broker import listeners

    listeners.THREADS = int(os.environ["PS_SELECTOR_THREADS"])

# Loops and fakes of the broker's tests serve those of other rooms, too, also when they run alone.
sys.path.append(str(HERE / "broker"))

# ---- what tests before have caused ----


#: Loggers of lines that are written once a minute, by how many modules there were.
_quiet: dict[int, list[Any]] = {}


@pytest.fixture(autouse=True)
def every_line_is_written() -> None:
    """Lines of the log that are written once a minute: a test before has not used them up."""
    limited = sys.modules.get("broker.loop.rate_limited_log")
    if limited is None:
        return
    if (count := len(sys.modules)) not in _quiet:  # else nothing was loaded since the test before
        _quiet.clear()
        _quiet[count] = [
            each
            for name, module in list(sys.modules.items())
            if name.startswith("broker.")
            for each in (getattr(module, "quiet", None), getattr(module, "_quiet", None))
            if isinstance(each, limited.RateLimitedLogger)
        ]
    for each in _quiet[count]:
        each._kinds.clear()


# ---- the order of tests, and who runs them ----

#: Files that last longest, first: with workers side by side they are what the others wait for.
LONGEST = (
    "spark/",
    "docs/test_docs.py",
    "java/test_interop.py",
    "interop/test_mqadmin.py",
    "interop/test_clients.py",
    "audit/test_repair.py",
    "unit/test_cli.py",
    "campaign/",
    "crash/test_faults.py",
    "interop/",
    "broker/test_transactions.py",
    "java/",
    "tidy/",
    "crash/",
)
#: Files of spark/ that use no session, or processes of their own.
SPARK_ALONE = (
    "test_cluster", "test_connect", "test_file_modes", "test_first_contact",
    "test_option_behaviour", "test_options",
    "test_remote", "test_wheel",
)  # fmt: skip


def _rank(item: pytest.Item) -> int:
    name = item.path.relative_to(HERE).as_posix()
    return next((i for i, begin in enumerate(LONGEST) if name.startswith(begin)), len(LONGEST))


def _order_seed() -> int | None:
    given = os.environ.get("PS_ORDER_SEED")
    return int(given) if given else None


def pytest_report_header() -> str | None:
    seed = _order_seed()
    return None if seed is None else f"random order: repeat with PS_ORDER_SEED={seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; with PS_ORDER_SEED files, and the tests of each file, in random order."""
    for item in items:
        _mark_random(item)
    seed = _order_seed()
    if seed is None:
        items.sort(key=_rank)
        return
    rng = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    names = list(files)
    rng.shuffle(names)
    for name in names:
        rng.shuffle(files[name])
    items[:] = [item for name in names for item in files[name]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The garbage collector rests meanwhile: modules and thousands of tests stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """It leaves alone what there is now, through which it would go each time that a test asks for
    it, or makes many objects. What of it is garbage takes little memory, and a third of a second of
    each worker to find."""
    gc.freeze()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutine functions run on a loop of their own (tests/broker/loops.py)."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from loops import run

    names = pyfuncitem._fixtureinfo.argnames
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With workers side by side: a file is one worker's, and so are those that share Spark. Pages
    of the documents run in processes of their own, so each goes where there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "::test_page_runs[" in nodeid:
                return nodeid
            if "[spark " in nodeid:  # verbs that start a session, or use the one that is there
                return "tests/spark"
            if file.startswith("tests/tidy/"):  # which parse each file of the product once
                return "tests/tidy"
            stem = Path(file).stem
            shares = file.startswith("tests/spark/") and stem not in SPARK_ALONE
            return "tests/spark" if shares else file

        def remove_node(self, node: Any) -> str | None:
            """A test that ended its worker has failed, and its file goes on after it. The scheduler
            of xdist would begin with that test again, worker after worker."""
            units = self.assigned_work[node]
            running = (test for unit in units.values() for test, done in unit.items() if not done)
            crashed = next(running, None)
            if crashed is None:
                ended: str | None = super().remove_node(node)
                return ended
            del self.assigned_work[node]
            for scope, unit in units.items():
                left = {test: False for test, done in unit.items() if not done and test != crashed}
                if left:
                    self.workqueue[scope] = left
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def no_duckdb_here() -> Iterator[None]:
    """The verdict is the last that a person sees: DuckDB, loaded beside what else a test run loads,
    writes sixty lines about leaks after it. Tests run it in a process of its own."""
    yield
    assert "_duckdb" not in sys.modules, "a test imported DuckDB into the process of the tests"


# ---- what most tests want ----


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on the disk that the tree is on, wherever other folders of tests lie."""
    build = HERE.parent / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        yield Path(folder)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a test's store goes; nothing is there yet."""
    return tmp_path / "store"


@pytest.fixture
def small() -> dict[str, Any]:
    """Settings of a store whose files fill up fast; a record must fit into 1 MiB."""
    return {
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 6000,
        "maxHashSlotNum": 512,
        "maxIndexNum": 1024,
    }


# ---- stores written by the Java broker ----


def _lines(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


@pytest.fixture(scope="session")
def unpack_golden() -> Callable[[str, Path], Path]:
    """unpack_golden(NAME, FOLDER) is a copy of that golden store, in a folder that is there; timer
    files, mere zeros, are left out."""

    def unpack(name: str, into: Path) -> Path:
        leave_out = ["--exclude=store/timerlog", "--exclude=store/timerwheel"]
        archive = HERE / "golden" / f"{name}.tar.xz"
        subprocess.run(["tar", "-C", into, "-xJf", archive, *leave_out], check=True)
        return into / "store"

    return unpack


@pytest.fixture
def golden(tmp_path: Path, unpack_golden: Callable[[str, Path], Path]) -> Callable[[str], Path]:
    """golden(NAME) is a fresh copy of that golden store."""
    count = iter(range(1000))

    def extract(name: str) -> Path:
        into = tmp_path / f"golden-{next(count)}"
        into.mkdir()
        return unpack_golden(name, into)

    return extract


@pytest.fixture(scope="session")
def golden_records() -> Callable[[str], list[dict[str, Any]]]:
    """golden_records(NAME): what Java sees in that store, a dict a line of records.jsonl."""
    return lambda name: _lines(HERE / "golden" / f"{name}.records.jsonl.xz")


@pytest.fixture(scope="session")
def golden_ledger() -> Callable[[str], list[dict[str, Any]]]:
    """golden_ledger(NAME): what the clients that filled that store were told."""
    return lambda name: _lines(HERE / "golden" / f"{name}.ledger.jsonl.xz")


# ---- the real RocketMQ ----


class ReferenceFailed(Exception):
    """The reference ended with an error; says the end of what it printed."""


class Reference:
    """The script tests/reference/reference: Apache RocketMQ itself, started from Python."""

    script = HERE / "reference" / "reference"
    #: Seconds for Maven to fetch what it must: less than a test may last.
    setup_s = 540.0

    def job(self, *args: Any, **options: Any) -> DumpJob:
        return DumpJob(*args, **options)

    def run(
        self, *args: object, timeout: float = BOUND_S, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one verb; its output is text. Raises: ReferenceFailed, TimeoutExpired."""
        done = subprocess.run(
            [str(self.script), *map(str, args)],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise ReferenceFailed(f"{args[0]}: exit {done.returncode}\n{done.stderr[-3000:]}")
        return done

    def dumps(self, folder: Path, jobs: list[DumpJob]) -> list[list[dict[str, Any]]]:
        """What Apache's own store sees in some stores, which it recovers and so changes.

        One process serves all. folder: for its notes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for i, job in enumerate(jobs):
            parts = [str(job.store), str(folder / f"{i}.jsonl")]
            parts += [f"{name}={_java_value(value)}" for name, value in job.settings.items()]
            if job.keys:
                (folder / f"{i}.keys").write_text(
                    "".join(f"{topic}#{key}\n" for topic, key in job.keys), encoding="utf-8"
                )
                parts.append(f"keysFile={folder / f'{i}.keys'}")
            lines.append("\t".join(parts) + "\n")
        (folder / "list").write_text("".join(lines), encoding="utf-8")
        self.run("dump-list", folder / "list")
        found = []
        for i in range(len(jobs)):
            with (folder / f"{i}.jsonl").open(encoding="utf-8") as text:
                found.append([json.loads(line) for line in text])
        return found


@dataclass
class DumpJob:
    """A store to dump with Apache's own code: its settings, and (topic, key) pairs to ask."""

    store: Path
    settings: dict[str, Any]
    keys: list[tuple[str, str]] = field(default_factory=list)


def _java_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The reference RocketMQ, fetched once into the user's cache; skips where that fails."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    made = Reference()
    try:
        made.run("setup", timeout=made.setup_s)
    except (ReferenceFailed, subprocess.TimeoutExpired) as failed:
        pytest.skip(f"the reference RocketMQ cannot be set up: {str(failed)[-300:]}")
    yield made
