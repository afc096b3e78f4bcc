"""A real browser by WebDriver: Debian's chromium and its driver."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from waiting import BOUND_S, until

__all__ = ["Browser"]

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """Speaks WebDriver, as far as these tests need it."""

    def __init__(self, port: int) -> None:
        self._at = f"http://127.0.0.1:{port}"
        until(self._is_there, "the driver")
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--hide-scrollbars", "--window-size=1200,900"]  # fmt: skip
        wanted = {"goog:chromeOptions": {"args": words}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _is_there(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._at + path, data, method=method)
        with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def path(self) -> str:
        """Of the page, once all of it is there, with its forms; empty until then."""
        return self.run("return document.readyState == 'complete' && location.pathname") or ""

    def text(self) -> str:
        """What the page says, as `path` has it."""
        return self.run("return document.readyState == 'complete' && document.body.innerText") or ""

    def keys(self, text: str) -> None:
        """Keys as they come from a keyboard, to whatever has the focus."""
        active = self._ask("GET", f"{self._session}/element/active")[_ELEMENT]
        self._ask("POST", f"{self._session}/element/{active}/value", {"text": text})

    def log(self) -> list[str]:
        """What the console said, but of icons of pages before this one, which the browser asks for
        in its own time: their server may have ended."""
        said = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        own = urlsplit(self._ask("GET", f"{self._session}/url")).netloc
        texts = [each["message"] for each in said]
        return [text for text in texts if "/favicon.ico" not in text or own in text]

    def size(self, width: int, height: int) -> None:
        rect = {"width": width, "height": height}
        self._ask("POST", f"{self._session}/window/rect", rect)

    def picture(self) -> bytes:
        return base64.b64decode(self._ask("GET", f"{self._session}/screenshot"))

    def close(self) -> None:
        self._ask("DELETE", self._session)

    def look(self, *, dark: bool = False, width: int = 1200, height: int = 800) -> None:
        """Sets the size of the page, and the colours that the system asks for."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        for command, params in (
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", {"features": [scheme]}),
        ):
            self._ask(
                "POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params}
            )

    def as_usual(self) -> None:
        """Takes back what `look` has set."""
        for command in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
            self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": {}})
