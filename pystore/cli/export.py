"""``pystore export``: messages as JSON lines, metadata as upstream's config files."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from pystore.cli._output import compact
from pystore.cli._records import message_record
from pystore.cli._session import Session
from pystore.cli._values import Size, parse_time, usage
from pystore.cli.cold import cold_of
from pystore.files import whole_file
from pystore.meta.configfiles import RAW_FILES, SECTIONS
from pystore.store._messages import Batch
from pystore.store._reading import Reader

if TYPE_CHECKING:
    from pystore.cold.reader import ColdReader

__all__ = ["run"]

_BATCH = 1024
#: An export is for whoever may read what its user writes, less the umask.
_FOR_ALL = 0o666


def run(
    s: Session,
    messages: Annotated[
        str | None,
        typer.Option(
            "--messages", metavar="FILE|-", help="Write messages to this file; -: stdout."
        ),
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option("--metadata", metavar="DIR", help="Write config/*.json to this directory."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only messages of this topic.")] = None,
    begin: Annotated[
        str | None, typer.Option(help="Stored at or after: ms or ISO 8601 (default zone UTC).")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Stored at or before.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.")
    ] = False,
) -> int | None:
    """Export messages as JSON lines, in log order, and metadata as config/*.json.

    A message has the fields of a dump's msg line plus its body as stored: "body", with
    "body_encoding" utf-8 or base64. Files are written atomically; one that is there is replaced
    only with --overwrite. A damaged record stops the export with exit code 5 and leaves no file.

    Beside them stand msg_id and offset_msg_id.

    \b
    Examples:
      pystore export STORE --messages orders.jsonl --topic orders
      pystore export STORE --messages - --begin 2026-11-21 | gzip > today.jsonl.gz
      pystore export STORE --metadata ./config --messages all.jsonl
    """
    if messages is None and metadata is None:
        raise usage(
            "nothing to export: pass --messages FILE|-, --metadata DIR, or both", "see --help"
        )
    low = 0 if begin is None else parse_time(begin, "--begin")
    high = (1 << 63) - 1 if end is None else parse_time(end, "--end")
    if not overwrite:
        _check_targets(messages, metadata)
    facts: dict[str, object] = {}
    count = None
    with s.reader() as reader:
        if metadata is not None:
            facts["metadata"] = str(metadata)
            facts["config files"] = reader.metadata.export_json(metadata)
        if messages is not None:
            with _target(messages) as out:
                count, size = _write(s, reader, out, topic, low, high)
            facts |= {"messages": messages, "count": count, "bytes": Size(size)}
    if messages != "-":  # stdout holds the messages alone
        s.out.facts("exported", facts)
    return 1 if count == 0 else 0


def _check_targets(messages: str | None, metadata: Path | None) -> None:
    """Checks the files that are to be written. Raises: BadArgument for a file that the export would
    replace."""
    targets = [] if messages in (None, "-") else [Path(str(messages))]
    if metadata is not None:
        targets += [metadata / s.file for s in SECTIONS.values()]
        targets += [metadata / file for file in RAW_FILES]
    for path in targets:
        if path.is_file():
            raise usage(f"{path} exists already", "name a new place, or pass --overwrite")


@contextmanager
def _target(messages: str) -> Iterator[IO[str]]:
    """Opens stdout, or a file that gets its name when it is whole and on the disk."""
    if messages == "-":
        yield sys.stdout
        return
    with whole_file(Path(messages), mode=_FOR_ALL) as file:
        out = io.TextIOWrapper(file, encoding="ascii", write_through=True)
        yield out
        out.detach()


def _write(
    s: Session, reader: Reader, out: IO[str], topic: str | None, low: int, high: int
) -> tuple[int, int]:
    """Returns (messages, bytes of JSON). Raises: RecordDamaged."""
    count = size = 0
    with s.progress("exporting") as bar:
        cold = cold_of(reader)
        for batch, done, total in _log(reader) if cold is None else _tier(cold, topic, low, high):
            lines = [
                compact(message_record(m, stored=True))
                for m in batch
                if low <= m.store_timestamp <= high and topic in (None, m.topic)
            ]
            if lines:
                text = "\n".join(lines) + "\n"
                out.write(text)
                count += len(lines)
                size += len(text)
            bar.update(done, total)
    return count, size


def _log(reader: Reader) -> Iterator[tuple[Batch, int, int]]:
    """Yields the batches of the log, bytes done, and bytes in all. Raises: RecordDamaged."""
    info = reader.info()
    for batch in reader._log_batches(max_messages=_BATCH):
        yield batch, batch.next_offset - info.log_min, info.log_max - info.log_min
        if batch.next_offset >= info.log_max:
            return


def _tier(
    reader: ColdReader, topic: str | None, low: int, high: int
) -> Iterator[tuple[Batch, int, int]]:
    """Yields the batches of a tier, queue by queue, messages done, and messages in all."""
    total = sum(len(queue) for queue in reader.queues(topic))
    done = 0
    for batch in reader.batches(topic=topic, time_min=low, time_max=high):
        done += len(batch)
        yield batch, done, total
