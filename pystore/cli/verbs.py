"""What a verb of the command line is, and what a verb of another package may use.

A package adds verbs by an entry point of the group ``pystore.verbs``. Its name is the verb's first
word, its value one :class:`Verb` or a sequence of them, all beginning with that word::

    [project.entry-points."pystore.verbs"]
    shovel = "shovels.cli:VERBS"

    VERBS = (Verb("shovel", run),)

    def run(s: Session, topic: Annotated[str, typer.Argument()]) -> int | None:
        with s.reader() as reader:
            s.out.facts("topic", {"queues": len(reader.queues(topic))})

``usage`` makes the error for an invalid argument, ``with_step`` gives one of the network its next
step; ``named_values`` reads each NAME=VALUE; ``parse_time`` reads a time, ``iso`` writes one,
``When`` is one in ms that is shown as a date, ``Size`` a number of bytes, which ``human_size``
writes; ``shown`` is a value as text, safe for a terminal, as ``printable`` makes it; ``hex_dump``
shows bytes; ``message_record`` and ``message_lines`` show a message as JSON and as text;
``show_balance`` shows what went in beside what came out;
``holder_of`` says which process writes to a store, ``aligned`` makes lines of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pystore.cli._balance import show_balance
from pystore.cli._output import aligned
from pystore.cli._records import hex_dump, message_lines, message_record
from pystore.cli._session import Session, holder_of
from pystore.cli._values import (
    Size,
    When,
    human_size,
    iso,
    named_values,
    parse_time,
    printable,
    shown,
    usage,
    with_step,
)

__all__ = [
    "Session",
    "Size",
    "Verb",
    "When",
    "aligned",
    "hex_dump",
    "holder_of",
    "human_size",
    "iso",
    "message_lines",
    "message_record",
    "named_values",
    "parse_time",
    "printable",
    "show_balance",
    "shown",
    "usage",
    "with_step",
]


@dataclass(frozen=True, slots=True)
class Verb:
    """name: as typed; two words are a verb of a group, three one of a group within a group. run:
    its function; the first argument is the Session, the others become options, the docstring
    becomes the help; it returns the exit code, None for 0. It is imported for every run of the
    program, so what is heavy is imported inside it. writes: whether it changes the store.
    store_needed: whether STORE must be given. server: it runs until a signal stops it, or asks a
    server; it has no STORE, and its settings are its own. tiers: whether STORE may be a cold tier.
    group: what the group of a two-word name is for, of three words as ``outer | inner``; the first
    verb of the group says it."""

    name: str
    run: Callable[..., int | None]
    writes: bool = False
    store_needed: bool = True
    server: bool = False
    tiers: bool = False
    group: str = ""
