"""What clients subscribe to, kept over a restart: config/liteSubscriptions.json, a file of ours.
Upstream forgets it, and has no delivery until each client has sent its whole set again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from broker.loop.safe_log import SafeLogger
from broker.services.lite.names import parts_of, subscription_problem
from broker.services.lite.registry import LiteClient
from broker.wire import mqjson
from broker.wire.jsonbody import BOOLEAN, TEXT, JsonMember, Shape, listed, required
from pystore import files
from pystore.store.light_queues import names_in

__all__ = ["KeptClient", "KeptSubscriptions", "clients_of"]

log = SafeLogger("broker.lite")

_CLIENT = Shape(
    group=required(TEXT),
    clientId=required(TEXT),
    topic=required(TEXT),
    wildcard=JsonMember(BOOLEAN, False),
    liteTopicSet=listed(TEXT),
)
_FILE = Shape(clients=listed(_CLIENT))


class KeptClient(NamedTuple):
    """A client of the file. `wild`: it reads all lite topics of `parent`, its topic; else those of
    `names`."""

    group: str
    client_id: str
    parent: str
    wild: bool
    names: list[str]


def clients_of(raw: bytes) -> list[KeptClient]:
    """Reads the clients of such a file, but for those whose names are wrong. Raises: ValueError for
    one that is malformed."""
    kept = list[KeptClient]()
    for r in _FILE.loads(raw)["clients"] if raw else ():
        names = list(r["liteTopicSet"])
        try:
            f"{r['group']}{r['clientId']}".encode()
            problem = subscription_problem(r["topic"], names)
        except UnicodeEncodeError as bad:
            problem = str(bad)
        if problem:
            log.warning("Subscriptions of %.80r are not taken over: %s", r["clientId"], problem)
            continue
        kept.append(KeptClient(r["group"], r["clientId"], r["topic"], r["wildcard"], names))
    return kept


class KeptSubscriptions:
    """The file."""

    def __init__(self, path: Path, file_mode: int) -> None:
        self._path, self._file_mode = path, file_mode

    def text(self) -> bytes:
        """Returns the file; empty: there is none. Raises: OSError."""
        return files.read_file(self._path) or b""

    def read(self) -> list[KeptClient]:
        """Returns the clients of the file. What cannot be read counts as none: clients come with
        their sets again."""
        try:
            return clients_of(self.text())
        except (OSError, ValueError) as bad:
            log.warning("Subscriptions to lite topics are not read: %s", bad)
            return []

    @staticmethod
    def _row(client: LiteClient, queues: Iterable[str]) -> bytes:
        return mqjson.dumps(
            {
                "group": client.group,
                "clientId": client.client_id,
                "topic": client.parent,
                "wildcard": client.wild,
                "liteTopicSet": [(parts_of(queue) or ("", queue))[1] for queue in queues],
            }
        )

    def write(self, clients: Iterable[tuple[LiteClient, bytes]]) -> None:
        """Replaces the file, on any thread. clients: each with what LiteRegistry.queues() said.
        Raises: OSError."""
        files.make_folders(self._path.parent, self._file_mode)
        rows = (self._row(client, names_in(queues)) for client, queues in clients)
        text = b'{"clients":[' + b",".join(rows) + b"]}"
        files.replace_file(self._path, text, keep_old=False, mode=self._file_mode)
