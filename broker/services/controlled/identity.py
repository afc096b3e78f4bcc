"""``brokerIdentity``: the number that a controller gave this broker, in Java's format,
``cluster#name#number``; and ``brokerIdentity-temp`` with what was asked for and not yet
answered, ``cluster#name#number#code``. Upstream: BrokerIdentity, TempBrokerMetadata."""

from __future__ import annotations

from pathlib import Path

from pystore.files import write_whole

__all__ = ["Identity"]


class Identity:
    """At this path, of this mode."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path, self._mode = path, mode
        self._asked = path.with_name(path.name + "-temp")

    def read(self, cluster: str, name: str) -> int | None:
        """Returns the number, or None: there is none yet. Raises: ValueError for the file of
        another broker, OSError."""
        found = _read(self._path, 3)
        if found is None:
            return None
        if found[:2] != [cluster, name]:
            raise ValueError(f"{self._path} is of broker {found[1]} of cluster {found[0]}")
        return int(found[2])

    def asked(self, cluster: str, name: str) -> tuple[int, str] | None:
        """Returns number and code of a request whose answer is unknown. Raises: OSError,
        ValueError."""
        found = _read(self._asked, 4)
        return (int(found[2]), found[3]) if found and found[:2] == [cluster, name] else None

    def keep(self, cluster: str, name: str, number: int) -> None:
        """Keeps the number. Raises: OSError."""
        self._write(self._path, f"{cluster}#{name}#{number}")
        self.forget_asked()

    def keep_asked(self, cluster: str, name: str, number: int, code: str) -> None:
        """Keeps number and code before they are asked for. Raises: OSError."""
        self._write(self._asked, f"{cluster}#{name}#{number}#{code}")

    def forget_asked(self) -> None:
        """Forgets what was asked. Raises: OSError."""
        self._asked.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        write_whole(path, text.encode(), mode=self._mode)


def _read(path: Path, parts: int) -> list[str] | None:
    """Reads the file. Raises: OSError, ValueError."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    found = text.split("#")
    if len(found) != parts or not found[2].isdigit():
        raise ValueError(f"{path} holds {text[:80]!r}, not cluster#name#number")
    return found
