"""Log lines as JSON, levels by part while a broker runs, and which request a line belongs to."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from popping import popping

from broker.loop.log_lines import JsonLines, TextLines, apply_levels, served_request
from broker.wire.codes import RequestCode as Code
from pystore.errors import BadArgument
from pystore.settings import load, log_levels


def record(text="said %s", *args, level=logging.WARNING, **more):
    made = logging.LogRecord("broker.x", level, __file__, 1, text, args or ("so",), None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.fixture(autouse=True)
def levels_go_back():
    yield
    apply_levels("")


def test_a_json_line_is_one_object_whatever_was_said():
    line = JsonLines().format(record("%s", 'a "quote"\n\x1b[31m and \udcff'))
    assert "\n" not in line and line.isascii()
    said = json.loads(line)
    assert said["message"] == 'a "quote"\n\x1b[31m and \udcff'
    assert (said["level"], said["logger"]) == ("WARNING", "broker.x")
    assert said["time"].endswith("+00:00")


def test_a_traceback_is_in_the_line():
    line = JsonLines().format(record(exc_text="  | ValueError: no"))
    assert json.loads(line)["error"] == "  | ValueError: no"


def test_a_line_names_the_request_that_is_served():
    token = served_request.set((("10.0.0.7", 5), 17, 310))
    try:
        said = json.loads(JsonLines().format(record()))
        text = TextLines().format(record())
    finally:
        served_request.reset(token)
    assert (said["connection"], said["opaque"], said["code"]) == ("10.0.0.7:5", 17, 310)
    assert text.endswith("WARNING broker.x said so [10.0.0.7:5 #17 code 310]")
    assert "connection" not in json.loads(JsonLines().format(record()))


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines = []

    def emit(self, record):
        self.lines.append(json.loads(self.format(record)))


async def test_lines_of_a_broker_name_their_requests_also_after_a_wait(tmp_path):
    kept = Kept()
    logger = logging.getLogger("broker.of.test")
    logger.setLevel("INFO")
    logger.addHandler(kept)

    async def later(peer, command):
        import asyncio

        await asyncio.sleep(0)
        logger.info("served")
        return command.reply()

    async with popping(tmp_path / "store") as popper:
        handlers = popper.broker._listeners.main._shared.handlers
        handlers[int(Code.GET_BROKER_RUNTIME_INFO)] = later
        assert (await popper.ask(Code.GET_BROKER_RUNTIME_INFO)).code == 0
    (line,) = kept.lines
    assert line["code"] == Code.GET_BROKER_RUNTIME_INFO
    assert line["opaque"] > 0 and line["connection"].startswith("127.0.0.1:")


async def test_levels_change_while_a_broker_runs(tmp_path):
    async with popping(tmp_path / "store", logLevels="broker.remoting=ERROR") as popper:
        assert logging.getLogger("broker.remoting").level == logging.ERROR
        body = b"logLevels=broker.access=DEBUG,pystore=INFO"
        answer = await popper.ask(Code.UPDATE_BROKER_CONFIG, body)
        assert answer.code == 0, answer.remark
        assert logging.getLogger("broker.access").level == logging.DEBUG
        assert logging.getLogger("pystore").level == logging.INFO
        assert logging.getLogger("broker.remoting").level == logging.NOTSET
        refused = await popper.ask(Code.UPDATE_BROKER_CONFIG, b"logLevels=broker.access=LOUD")
        assert refused.code != 0 and "LOUD" in refused.remark
        assert logging.getLogger("broker.access").level == logging.DEBUG


@pytest.mark.parametrize("text", ["broker", "broker=", "broker=LOUD", "root=INFO", "=INFO"])
def test_levels_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError):
        log_levels(text)
    with pytest.raises(BadArgument, match="logLevels"):
        load(None, {"logLevels": text})


def test_a_server_logs_json_to_a_file(tmp_path):
    path = tmp_path / "names.log"
    done = subprocess.run(
        [
            sys.executable, "-c",
            "import logging, pathlib\n"
            "from broker.cli.loglevel import LogFormat, LogLevel, LogOptions\n"
            f"LogOptions(LogLevel.INFO, LogFormat.JSON, pathlib.Path({str(path)!r})).begin()\n"
            "logging.getLogger('broker.x').info('ready')\n"
            "handler = logging.getLogger().handlers[0]\n"
            "print(type(handler).__name__, handler.maxBytes, handler.backupCount)",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["RotatingFileHandler", str(100 << 20), "5"]
    assert json.loads(path.read_text())["message"] == "ready"
