"""The table of verbs: those of this package by name, those of others by their entry points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from pystore.cli.bench import run as bench
from pystore.cli.carve import run as carve
from pystore.cli.cold import VERBS as COLD
from pystore.cli.diff import run as diff
from pystore.cli.dump import run as dump
from pystore.cli.export import run as export
from pystore.cli.get import run as get
from pystore.cli.import_ import run as import_
from pystore.cli.info import run as info
from pystore.cli.put import run as put
from pystore.cli.query import run as query
from pystore.cli.repair import rebuild
from pystore.cli.repair import run as repair
from pystore.cli.salvage import run as salvage
from pystore.cli.tail import run as tail
from pystore.cli.verbs import Verb
from pystore.cli.verify import run as verify
from pystore.errors import BadArgument
from pystore.files.packages import shadowed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "all_verbs", "broken", "verbs_of"]

#: Entry points of this group add verbs (pystore/cli/verbs.py).
GROUP = "pystore.verbs"

_OWN: tuple[Verb, ...] = (
    Verb("info", info, tiers=True),
    Verb("dump", dump),
    Verb("get", get),
    Verb("query", query, tiers=True),
    Verb("tail", tail, tiers=True),
    Verb("verify", verify, tiers=True),
    Verb("repair", repair, writes=True),
    Verb("rebuild", rebuild, writes=True),
    Verb("salvage", salvage, tiers=True),
    Verb("carve", carve),
    Verb("diff", diff),
    Verb("put", put, writes=True),
    Verb("export", export, tiers=True),
    Verb("import", import_, writes=True),
    Verb("bench", bench, writes=True, store_needed=False),
    *COLD,
)

#: What stands in the way of verbs that other packages bring, by the verb's first word.
broken: dict[str, BadArgument] = {}


@cache
def all_verbs() -> tuple[Verb, ...]:
    """Returns own verbs first, then the others in the order of their first words."""
    from importlib.metadata import entry_points

    others = _loaded(entry_points(group=GROUP))
    return (*_OWN, *sorted(others, key=lambda verb: verb.name.split()[0]))


def verbs_of(word: str) -> tuple[Verb, ...]:
    """Returns those that begin with that word; of the others nothing is imported. Empty: there are
    none, or they cannot be imported."""
    own = tuple(verb for verb in _OWN if verb.name.split()[0] == word)
    if own:
        return own
    from importlib.metadata import entry_points

    return tuple(_loaded(entry_points(group=GROUP, name=word)))


def _loaded(entries: Iterable[EntryPoint]) -> Iterator[Verb]:
    """Imports verbs. Those that fail must not keep the others from working: see `broken`."""
    for entry in entries:
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 another package's module may fail in any way
            broken[entry.name] = _why(entry, error)
            continue
        yield from (found,) if isinstance(found, Verb) else found


def _why(entry: EntryPoint, error: Exception) -> BadArgument:
    package = entry.module.partition(".")[0]
    said = shadowed(package)
    if said is None:
        said = BadArgument(f"{entry.value} cannot be imported: {type(error).__name__}: {error}")
        said.next_step = f"repair or reinstall the package '{package}'"
    return said
