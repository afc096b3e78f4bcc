"""The browser that the tests of pages share."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from chrome import Browser
from ports import free_port


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if shutil.which("chromedriver") is None:
        pytest.skip("there is no chromedriver")
    port = free_port()
    words = ["chromedriver", f"--port={port}", "--silent"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        made = Browser(port)
        yield made
        made.close()
        driver.terminate()
