"""The public names of the package `broker`, and a module of the user's that has the same name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BOUND_S

import broker

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the interpreter with `path` before everything else."""
    places = [str(p) for p in (path, ROOT) if p is not None]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=BOUND_S,
        cwd=path, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip


def test_public_names_are_there():
    """Each name of __all__ can be imported from the package."""
    from broker import Broker, NameServer

    assert Broker.__module__ == "broker.broker"
    assert NameServer.__module__ == "broker.namesrv.server"
    for name in broker.__all__:
        assert getattr(broker, name) is not None
        assert name in dir(broker)


def test_errors_are_public_names_as_what_raises_them_is():
    """`except broker.SendFailed` is what programs write first."""
    from broker.client import errors

    for name in errors.__all__:
        made = getattr(errors, name)
        if isinstance(made, type) and issubclass(made, errors.ClientError):
            assert getattr(broker, name) is made
            assert name in broker.__all__


def test_import_alone_loads_nothing_heavy():
    """`import broker` imports no module of the broker until a name is asked for, but what looks for
    the name."""
    done = python("-c", "import sys, broker; print([m for m in sys.modules if 'broker.' in m])")
    assert done.stdout.strip() == "['broker.lazy']", done.stderr


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(broker, "Brokers")


# ---- a module of the user's that is called broker, too ----

PROGRAM = "import sys; from pystore.cli import main; sys.exit(main())"


@pytest.fixture
def shadowing(tmp_path: Path) -> Path:
    """A folder with a broker.py, as somebody has it who tries things out."""
    (tmp_path / "broker.py").write_text("URL = 'amqp://localhost'\n")
    return tmp_path


@pytest.mark.parametrize("verb", [["broker"], ["namesrv", "--port", "0"], ["tx", "ls", "x"]])
def test_command_line_names_what_shadows_the_package(shadowing: Path, verb: list[str]):
    """A verb of the broker fails with the path of that file; --json says the same."""
    done = python("-c", PROGRAM, *verb, path=shadowing)
    assert done.returncode == 2
    assert str(shadowing / "broker.py") in done.stderr
    assert "rename that file" in done.stderr
    assert "Traceback" not in done.stderr
    done = python("-c", PROGRAM, *verb, "--json", path=shadowing)
    assert json.loads(done.stderr)["error"]["where"] == str(shadowing / "broker.py")


def test_other_verbs_work_all_the_same(shadowing: Path):
    done = python("-c", PROGRAM, "put", "s", "t", "hello", "--create", path=shadowing)
    assert done.returncode == 0, done.stderr


def test_documented_fixture_names_what_shadows_the_package(shadowing: Path):
    """The fixture of docs/broker.md fails with the path of that file."""
    page = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "fixture" in b]
    (shadowing / "test_it.py").write_text(block + "\n\ndef test_it(broker):\n    pass\n")
    done = python("-m", "pytest", "-p", "no:cacheprovider", "test_it.py", path=shadowing)
    assert done.returncode != 0
    assert str(shadowing / "broker.py") in done.stdout


SOURCE = """
from spark_ext.source import RocketmqSource
RocketmqSource({"path": "nowhere", "fallback": "pull", "nameServer": "h:9876"}).streamReader(None)
"""


@pytest.mark.parametrize("name", ["broker", "pystore"])
def test_spark_source_names_what_shadows_a_package(tmp_path: Path, name: str):
    """The last line of the error, which is what Spark shows, has the path of that file."""
    (tmp_path / f"{name}.py").write_text("URL = 'amqp://localhost'\n")
    done = python("-c", SOURCE, path=tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert str(tmp_path / f"{name}.py") in last
    assert "rename that file" in last


def test_pytest_plugin_names_what_shadows_the_package(shadowing: Path):
    """Tests without a broker run; one that asks for it fails with the path of that file."""
    (shadowing / "test_it.py").write_text(
        "def test_other():\n    pass\n\ndef test_it(rocketmq_topic):\n    pass\n"
    )
    done = python("-m", "pytest", "-p", "no:cacheprovider", "test_it.py", path=shadowing)
    assert "1 passed, 1 error" in done.stdout
    assert str(shadowing / "broker.py") in done.stdout
    assert "rename that file" in done.stdout
