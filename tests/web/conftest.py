"""The browser that the tests of pages share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from chrome import Browser
from ports import free_port


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromedriver") is None:
        pytest.skip("there is no chromedriver")
    port = free_port()
    words = ["chromedriver", f"--port={port}", "--silent"]
    # Its profiles lie where those of the tests go, and go with them.
    places = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("browser"))}
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(words, env=places, stdout=nowhere, stderr=nowhere) as driver:
        made = Browser(port)
        yield made
        made.close()
        driver.terminate()
