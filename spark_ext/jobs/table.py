"""``pystore spark table``: an Iceberg table of a topic, kept up to date by each run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from pystore.cli.verbs import named_values, usage
from pystore.cold.objects import address_of, is_address
from spark_ext.jobs.frame import Job, job, main
from spark_ext.jobs.iceberg import COLUMNS, TableWork, TopicTable, catalog_of, write_files
from spark_ext.jobs.spread import on_executors

if TYPE_CHECKING:
    from spark_ext.options import ReadOptions
    from spark_ext.plan import Part
    from spark_ext.stream import StreamReader

__all__ = ["run"]

#: So few parts are written by the driver: starting tasks takes longer.
_ALONE_PARTS = 2
_PART_BYTES = "64m"
#: Messages of each part that are looked at for fields which the table does not have.
_SAMPLE_ROWS = 2000
_SAMPLED_PARTS = 4


@job("table")
def run(
    j: Job,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Its table, as NAMESPACE.NAME; made if missing.")
    ],
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="Catalogue, of PyIceberg's configuration.")
    ] = "default",
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="One of the catalogue. Repeatable."),
    ] = None,
    tier: Annotated[
        str | None, typer.Option(metavar="TIER", help="The store's cold tier: begin there.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json-bodies", help="Bodies are JSON objects: the column `value`.")
    ] = False,
    avro: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Bodies are Avro of this schema: the column `value`."),
    ] = None,
    commit_mb: Annotated[
        int, typer.Option("--commit-mb", min=1, help="A snapshot holds about so much of the log.")
    ] = 1024,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Look again so long after each run."),
    ] = None,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="Go on although messages were deleted meanwhile.")
    ] = False,
) -> int | None:
    """Keep an Iceberg table of a topic: add what is new, each message once.

    A run ends at what was there when it began. Each snapshot says up to which offsets the table
    goes, and the next run goes on there; one that is killed leaves files that no snapshot names.
    The table is partitioned by the day of storeTimestamp. Bodies stay bytes, or become the column
    `value`; of what does not fit there, the bytes stay in `body`. The store may be in use.

    JSON: one object with table. See docs/spark-jobs.md.

    \b
    Examples:
      pystore spark table STORE orders shop.orders --catalog lake
      pystore spark table STORE orders shop.orders --json-bodies --tier s3://bucket/cold --every 60
    """
    if json_ and avro is not None:
        raise usage("--json-bodies and --avro exclude each other", "see --help")
    if "." not in table:
        raise usage(f"{table} has no namespace", "name it as shop.orders")
    with j.reader():
        pass  # what is not a store is refused before anything is made
    chosen = named_values(property_ or (), "--property", "uri=sqlite:///c.db")
    kind = "json" if json_ else "avro" if avro is not None else ""
    opened = TopicTable(catalog_of(catalog, chosen), table, topic, kind)
    keeper = _Keeper(j, opened, _options(j, topic, tier, commit_mb, allow_gap), _schema(avro))
    try:
        keeper.run()
        while every is not None:
            time.sleep(every)
            keeper.run()
    except KeyboardInterrupt:
        pass
    j.report.facts(
        "table",
        {"table": table, "new messages": keeper.messages, "files": keeper.files,
         "snapshots": keeper.snapshots, "bodies kept as bytes": keeper.kept},
    )  # fmt: skip
    return 0


def _schema(path: Path | None) -> Any:
    """Returns a parsed Avro schema. Raises: BadArgument."""
    if path is None:
        return None
    try:
        import fastavro

        return fastavro.parse_schema(json.loads(path.read_text("utf-8")))
    except ImportError as missing:
        raise usage(f"{missing}", "pip install 'rocketmq-pystore[iceberg]'") from None
    except Exception as failed:  # noqa: BLE001 - fastavro's errors have no root of their own
        raise usage(f"--avro {path}: {failed}", "give an Avro schema as JSON") from None


def _options(j: Job, topic: str, tier: str | None, commit_mb: int, allow_gap: bool) -> ReadOptions:
    from spark_ext.options import parse_read

    given: dict[str, object] = {
        "path": j.path.absolute(), **j.session.sets, "topic": topic, "includeProperties": "map",
        "startingOffsets": "earliest", "maxBytesPerTrigger": commit_mb << 20,
        "maxBytesPerPartition": _PART_BYTES, "failOnDataLoss": str(not allow_gap).lower(),
    }  # fmt: skip
    if tier is not None:
        given["tier"] = address_of(tier) if is_address(tier) else Path(tier).absolute()
    if j.session.conf is not None:
        given["conf"] = j.session.conf
    return parse_read({name: str(value) for name, value in given.items()}, streaming=True)


class _Keeper:
    """One table over the runs of one job."""

    def __init__(self, j: Job, table: TopicTable, options: ReadOptions, avro: Any) -> None:
        self._job = j
        self._table = table
        self._options = options
        self._avro = avro
        self.messages = self.files = self.snapshots = self.kept = 0
        if table.bodies == "avro" and avro is None:
            raise usage("the table's bodies are Avro, whose schema is not given", "pass --avro")

    def run(self) -> None:
        """Adds what the topic had when it began. Raises: StoreLocked, StoreIOError, SourceError."""
        from spark_ext.stream import StreamReader, decode

        reader = StreamReader(self._options, COLUMNS)
        self._table.table.refresh()
        since = self._table.offsets()
        start = since or reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        while True:
            end = _as_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
            if decode(end) == decode(start):
                return
            parts = cast("list[Part]", list(reader.partitions(start, end)))
            self._add(reader, parts, since, end)
            since = start = end

    def _add(self, reader: StreamReader, parts: list[Part], since: Any, end: Any) -> None:
        self._widen(reader, parts)
        table = self._table.table
        work = TableWork(self._options, table.metadata, table.io, self._table.value, self._avro)
        if len(parts) <= _ALONE_PARTS:
            done = [write_files(work, part) for part in parts]
        else:
            done = on_executors(self._job, write_files, work, parts, "writing the table")
        self._table.append([file for each in done for file in each.files], since, end)
        self.messages += sum(each.messages for each in done)
        self.files += sum(len(each.files) for each in done)
        self.kept += sum(each.kept for each in done)
        self.snapshots += 1
        if self._table.bodies == "json":
            for each in done:
                self._table.widen(each.more)  # for the next messages with these fields

    def _widen(self, reader: StreamReader, parts: list[Part]) -> None:
        """Gives the column `value` the fields that the first messages of some parts have."""
        import pyarrow as pa

        from spark_ext.jobs import bodies

        known = self._table.value or pa.struct([])
        if self._table.bodies == "avro":
            known = bodies.merged(known, bodies.avro_type(self._avro))
        elif self._table.bodies == "json":
            for part in parts[:: max(1, len(parts) // _SAMPLED_PARTS)]:
                first = next(iter(reader.read(part)), None)
                if first is not None:
                    data = first.column("body").to_pylist()[:_SAMPLE_ROWS]
                    known = bodies.parse_json(data, known).more
        else:
            return
        if known.num_fields:
            self._table.widen(known)
        elif self._table.value is None:
            raise usage(
                "none of the first bodies is a JSON object with a field", "leave --json-bodies out"
            )


def _as_json(offset: Any) -> Any:
    """Returns an offset as the table will give it back."""
    return json.loads(json.dumps(offset))


if __name__ == "__main__":
    main("table")
