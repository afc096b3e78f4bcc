"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


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


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a random test starts from; printed when it fails, PS_SEED repeats it."""
    given = os.environ.get("PS_SEED")
    number = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"{request.node.name}: repeat with PS_SEED={number}")
    return number


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers from the test's seed."""
    return random.Random(seed)


# ---- stores written by the Java broker ----


def _lines(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """golden(NAME) is a fresh copy of that golden store; timer files, mere zeros, are left out."""
    count = iter(range(1000))

    def extract(name: str) -> Path:
        into = tmp_path / f"golden-{next(count)}"
        into.mkdir()
        leave_out = ["--exclude=store/timerlog", "--exclude=store/timerwheel"]
        archive = HERE / "golden" / f"{name}.tar.xz"
        subprocess.run(["tar", "-C", into, "-xJf", archive, *leave_out], check=True)
        return into / "store"

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


class Reference:
    """The script tests/reference/reference: Apache RocketMQ itself, started from Python."""

    script = HERE / "reference" / "reference"

    def run(
        self, *args: object, timeout: float = 120, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one verb; its output is text. Raises: CalledProcessError, TimeoutExpired."""
        return subprocess.run(
            [str(self.script), *map(str, args)],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def dump(
        self,
        store: Path,
        sizes: dict[str, Any],
        *,
        keys: list[tuple[str, str]] | None = None,
        **java: str,
    ) -> list[dict[str, Any]]:
        """What Apache's own store sees in a folder, which it recovers and so changes.

        keys: (topic, key) pairs to look up in the index. java: system properties of StoreDump.
        """
        order = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue")
        order += ("maxHashSlotNum", "maxIndexNum")
        env = {"JAVA_DUMP": " ".join(f"-D{name}={value}" for name, value in java.items())}
        if keys is not None:
            ask = store.parent / "ask.keys"
            ask.write_text("".join(f"{t}#{k}\n" for t, k in keys), encoding="utf-8")
            env["JAVA_KEYS_FILE"] = str(ask)
        done = self.run("dump", store, *(sizes[name] for name in order), **env)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The reference RocketMQ, fetched once into the user's cache; skips where that cannot be."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    made = Reference()
    try:
        made.run("setup", timeout=600)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        pytest.skip(f"the reference RocketMQ cannot be set up: {str(failed.stderr)[-300:]}")
    yield made
