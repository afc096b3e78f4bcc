"""The key-value configuration: namespaces of keys, kept in upstream's kvConfig.json.

Upstream overwrites the file in place; here it is replaced as a whole, with its last content beside
it as ``.bak``. Clients use one namespace: ORDER_TOPIC_CONFIG, the queues of ordered topics.
"""

from __future__ import annotations

import json
from pathlib import Path

from pystore.errors import BadArgument, RecordDamaged
from pystore.files import javajson, read_file, replace_file, sync_folder

__all__ = ["ORDER_TOPICS", "KvConfig", "save"]

#: All of it is written at each change, and answered at once.
CHARACTERS_MAX = 2 << 20
#: What a key or a namespace counts as, beside its characters.
ENTRY = 64

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]


class KvConfig:
    """The tables in memory. Whoever changes them saves them: dumped() on the loop, then save() of
    this module."""

    def __init__(self, path: Path | None) -> None:
        """Reads the file. path: None keeps them in memory alone. Raises: RecordDamaged, StoreError
        of a file."""
        self.path = path
        self.tables: Table = _load(path) if path is not None else {}
        #: Characters of all of it, and ENTRY for each key and namespace.
        self.size = sum(
            _size(namespace) + sum(_size(*item) for item in table.items())
            for namespace, table in self.tables.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self.tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keeps a value. Raises: BadArgument when all of it would be too large."""
        more = self._more(namespace, key, value)
        if more > 0 and self.size + more > CHARACTERS_MAX:
            self._drop_empty()
            more = self._more(namespace, key, value)
            if self.size + more > CHARACTERS_MAX:
                raise BadArgument(
                    f"the key-value configuration may have {CHARACTERS_MAX} characters, where each"
                    f" key and namespace counts as {ENTRY} more: delete some"
                )
        self.tables.setdefault(namespace, {})[key] = value
        self.size += more

    def _more(self, namespace: str, key: str, value: str) -> int:
        """Returns what the size grows by when the key gets this value."""
        table = self.tables.get(namespace)
        if table is None:
            return _size(namespace) + _size(key, value)
        old = table.get(key)
        return _size(key, value) if old is None else len(value) - len(old)

    def _drop_empty(self) -> None:
        """Forgets namespaces that were used and have no key any more."""
        for namespace in [name for name, table in self.tables.items() if not table]:
            del self.tables[namespace]
            self.size -= _size(namespace)

    def delete(self, namespace: str, key: str) -> None:
        value = self.tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self.size -= _size(key, value)

    def listed(self, namespace: str) -> bytes | None:
        """Returns ``{"table":{key:value}}``, or None when the namespace was never used."""
        table = self.tables.get(namespace)
        if table is None:
            return None
        return json.dumps({"table": table}, separators=(",", ":"), ensure_ascii=False).encode()

    def dumped(self) -> bytes:
        return json.dumps(
            {"configTable": self.tables}, separators=(",", ":"), ensure_ascii=False
        ).encode()


def save(path: Path, data: bytes) -> None:
    """Waits for the disk: call it in a thread. Raises: Forbidden, DiskFull, StoreIOError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, keep_old=True)
    sync_folder(path.parent)


def _size(*texts: str) -> int:
    return ENTRY + sum(map(len, texts))


def _load(path: Path) -> Table:
    """Reads the file, or its .bak when the file is torn, as upstream's writing leaves it."""
    trouble = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        data = read_file(candidate)
        if data is None:
            continue
        try:
            return _tables(javajson.loads(data))
        except ValueError as bad:
            trouble = trouble or RecordDamaged(
                f"the key-value configuration cannot be read ({bad})", str(candidate)
            )
    if trouble is not None:
        raise trouble
    return {}


def _tables(value: object) -> Table:
    tables = value.get("configTable") if isinstance(value, dict) else None
    if tables is None:
        return {}
    if not isinstance(tables, dict):
        raise ValueError("configTable is not an object")
    made: Table = {}
    for namespace, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ValueError(f"namespace {namespace:.40} does not map strings to strings")
        made[namespace] = dict(table)
    return made
