"""The table of verbs: the only place that names them all. A new verb is a module and a row here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from pystore.cli.bench import run as bench
from pystore.cli.dump import run as dump
from pystore.cli.export import run as export
from pystore.cli.get import run as get
from pystore.cli.import_ import run as import_
from pystore.cli.info import run as info
from pystore.cli.put import run as put
from pystore.cli.query import run as query
from pystore.cli.tail import run as tail

__all__ = ["VERBS", "Verb"]


@dataclass(frozen=True, slots=True)
class Verb:
    """name: as typed; two words are a verb of a group. run: its function; the first argument is the
    Session, the others become options, the docstring becomes the help; or its module as text (with
    :NAME unless it is called run), for packages that pystore must not import. writes: whether it
    changes the store. store_needed: whether STORE must be given. server: it runs until it is told
    to stop, has no STORE, and its settings are its own."""

    name: str
    run: Callable[..., int | None] | str
    writes: bool = False
    store_needed: bool = True
    server: bool = False

    def function(self) -> Callable[..., int | None]:
        """run itself, imported by now."""
        if isinstance(self.run, str):
            module, _, name = self.run.partition(":")
            found: Callable[..., int | None] = getattr(
                importlib.import_module(module), name or "run"
            )
            return found
        return self.run


VERBS: tuple[Verb, ...] = (
    Verb("info", info),
    Verb("dump", dump),
    Verb("get", get),
    Verb("query", query),
    Verb("tail", tail),
    Verb("put", put, writes=True),
    Verb("export", export),
    Verb("import", import_, writes=True),
    Verb("bench", bench, writes=True, store_needed=False),
    Verb("tx ls", "broker.cli.tx:ls"),
    Verb("tx show", "broker.cli.tx:show"),
    Verb("tx commit", "broker.cli.tx:commit", writes=True),
    Verb("tx rollback", "broker.cli.tx:rollback", writes=True),
    Verb("tx resume", "broker.cli.tx:resume", writes=True),
    Verb("tx stats", "broker.cli.tx:stats"),
    Verb("broker", "broker.cli.broker", server=True),
    Verb("namesrv", "broker.cli.namesrv", server=True),
)
