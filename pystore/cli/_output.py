"""The one renderer: what a verb found goes through an :class:`Output`, which has two faces.

:class:`Text` is for people: tables with colours on a terminal, plain columns in a pipe.
:class:`Json` is for programs: streams of records are JSON lines, everything else is one object a
run. Neither face imports rich before a terminal needs it, since that costs more than most verbs.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from pystore.cli._values import When, iso, printable, shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Failure", "Json", "Output", "Text", "aligned", "compact"]

Row = Sequence[object]


def aligned(cells: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Returns a line for each row, columns below each other. right: columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def compact(value: object) -> str:
    """Writes JSON in ASCII without spaces."""
    return json.dumps(value, separators=(",", ":"))


class Failure:
    """What went wrong: one sentence, the next step, and the exit code that says so."""

    __slots__ = ("details", "exit", "kind", "next_step", "text")

    def __init__(
        self, kind: str, text: str, next_step: str, exit_code: int, **details: object
    ) -> None:
        self.kind = kind
        self.text = text
        self.next_step = next_step
        self.exit = exit_code
        self.details = details


class Output(ABC):
    """What verbs write to: results to stdout, remarks and errors to stderr."""

    json = False

    @abstractmethod
    def facts(self, name: str, facts: Mapping[str, object]) -> None:
        """Shows named values, as a block called `name`."""

    @abstractmethod
    def table(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Shows rows under columns, as a block called `name`."""

    @abstractmethod
    def objects(self, name: str, objects: Sequence[Mapping[str, object]]) -> None:
        """Writes nested values for programs; people get none of it."""

    @abstractmethod
    def record(self, record: Mapping[str, object], text: Callable[[], str]) -> None:
        """Writes one item of a stream; text makes its other face."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Writes a remark for people on stderr; programs do not get it."""

    @abstractmethod
    def error(self, failure: Failure) -> None:
        """Writes the end of a run that failed on stderr."""

    def plan(self, facts: Mapping[str, object]) -> None:
        """Shows what a changing verb would do."""
        self.facts("plan", facts)

    def lines(self, lines: Sequence[str]) -> None:
        """Writes many finished lines of this face at once."""
        if lines:
            self._out.write("\n".join(lines) + "\n")

    def data(self, raw: bytes | memoryview) -> None:
        """Writes bytes as they are."""
        out: Any = self._out
        out.flush()
        getattr(out, "buffer", out).write(raw)

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        """Writes what is still held back."""
        self.flush()

    @property
    def _out(self) -> IO[str]:
        return sys.stdout  # asked for each time: tests and callers exchange it


class Json(Output):
    """JSON lines for streams; facts and tables are members of one object, written at the end."""

    json = True

    def __init__(self) -> None:
        self._whole: dict[str, object] = {}

    def facts(self, name: str, facts: Mapping[str, object]) -> None:
        self._whole[name] = _members(facts)

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        self._whole[name] = [_members(dict(zip(columns, row, strict=True))) for row in rows]

    def objects(self, name: str, objects: Sequence[Mapping[str, object]]) -> None:
        self._whole[name] = list(objects)

    def record(self, record: Mapping[str, object], text: Callable[[], str]) -> None:
        self._out.write(compact(record) + "\n")

    def note(self, text: str) -> None:
        pass

    def error(self, failure: Failure) -> None:
        error = {
            "kind": failure.kind,
            "text": failure.text,
            "next_step": failure.next_step,
            "exit": failure.exit,
            **{k: v for k, v in failure.details.items() if v is not None},
        }
        sys.stderr.write(compact({"error": error}) + "\n")

    def end(self) -> None:
        whole, self._whole = self._whole, {}
        if whole:
            self._out.write(compact(whole) + "\n")
        self.flush()


def _members(facts: Mapping[str, object]) -> dict[str, object]:
    """Makes JSON members of facts; a time gets its date beside it."""
    members: dict[str, object] = {}
    for name, value in facts.items():
        key = name.replace(" ", "_")
        members[key] = value
        if isinstance(value, When) and value >= 0:
            members[f"{key}_iso"] = iso(value)
    return members


class Text(Output):
    """Tables and sentences. Nothing that comes from a store reaches the terminal unescaped."""

    def __init__(self) -> None:
        self._blocks = 0

    def facts(self, name: str, facts: Mapping[str, object]) -> None:
        self._block(name, (), [(key, value) for key, value in facts.items()])

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        self._block(name, columns, list(rows))

    def objects(self, name: str, objects: Sequence[Mapping[str, object]]) -> None:
        pass

    def _block(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if self._blocks:
            self._out.write("\n")
        self._blocks += 1
        if self._out.isatty():
            self._rich(name, columns, rows)
        else:
            self._plain(name, columns, rows)

    def _plain(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Prints columns in a pipe: nothing is cut to a width that nobody sees."""
        cells = [[shown(value) for value in row] for row in rows]
        if columns:
            cells.insert(0, list(columns))
        right = [
            i for i in range(len(cells[0]) if rows else 0)
            if all(isinstance(row[i], (int, float)) for row in rows)
        ]  # fmt: skip
        self._out.write(f"{name}\n")
        for line in aligned(cells, right):
            self._out.write(f"  {line}".rstrip() + "\n")

    def _rich(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text as Styled

        table = Table(
            title=Styled(name, "bold"), title_justify="left", box=box.SIMPLE_HEAD,
            show_header=bool(columns), pad_edge=False,
        )  # fmt: skip
        if not columns:
            table.add_column(style="cyan")
            table.add_column(overflow="fold")
        for i, column in enumerate(columns):
            number = bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Styled(shown(value)) for value in row))
        _console(self._out).print(table)

    def record(self, record: Mapping[str, object], text: Callable[[], str]) -> None:
        self._out.write(text() + "\n")

    def note(self, text: str) -> None:
        sys.stderr.write(printable(text) + "\n")

    def error(self, failure: Failure) -> None:
        sentence = failure.text + (f" \u2014 {failure.next_step}" if failure.next_step else "")
        rows: Any = failure.details.get("problems") or ()
        lines = [printable(sentence), *(printable(_about(row)) for row in rows)]
        if sys.stderr.isatty():
            from rich.text import Text as Styled

            line = Styled("error: ", "bold red") + Styled("\n  ".join(lines))
            _console(sys.stderr).print(line, soft_wrap=True)
        else:
            sys.stderr.write("error: " + "\n  ".join(lines) + "\n")


def _about(row: Mapping[str, str]) -> str:
    """Returns the text of one of many problems: where, what, and what mends it."""
    mend = f" \u2014 {row['mend']}" if row["mend"] else ""
    return f"{row['where']}: {row['text']}{mend}"


def _console(file: IO[str], **options: Any) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, **options)
