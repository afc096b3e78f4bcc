"""An Iceberg table of a topic, by PyIceberg: data files first, then one snapshot with them and the
offsets after them. A kill in between leaves files that no snapshot names, and nothing comes twice.

Whoever commits meanwhile is asked for the offsets again: PyIceberg's own retries would add the
files behind another's.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pystore import errors
from pystore.cli.verbs import usage
from pystore.settings import without_password
from spark_ext.jobs import bodies
from spark_ext.options import ReadOptions
from spark_ext.schema import ColumnLayout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from spark_ext.plan import Part

__all__ = ["COLUMNS", "TableWork", "TopicTable", "WrittenFiles", "catalog_of", "write_files"]

#: Of a snapshot: offsets as a stream's checkpoint has them (stream.py); and of the table, for when
#: the snapshot is expired.
OFFSETS = "rocketmq.offsets"
#: Of a snapshot: which commit it is, by which a commit whose answer was lost is found again.
COMMIT = "rocketmq.commit"
#: Of the table: what it is of, and what bodies are.
TOPIC, BODIES = "rocketmq.topic", "rocketmq.bodies"
#: What a table has of each message beside its body.
COLUMNS = ColumnLayout(
    ("brokerName", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "tags", "keys",
     "properties", "body"),
    (False, False, False, False, False, True, True, False, False),
    "map",
)  # fmt: skip
#: Their DDL, as Arrow types. body: null where the column `value` holds all of it.
_TYPES = {
    "brokerName": "string", "queueId": "int32", "queueOffset": "int64", "tags": "string",
    "keys": "string", "body": "binary",
}  # fmt: skip
_REQUIRED = ("brokerName", "queueId", "queueOffset", "storeTimestamp")
_DAY_US = 86_400_000_000
#: Files of one task that are open at once; each is of a day.
_OPEN_FILES = 16
_COMMITS = 5


class TableWork(NamedTuple):
    """What every task is given. metadata, io: of the table. avro: a parsed schema, for bodies in
    Avro; value: the Arrow type of the column, None where bodies stay bytes."""

    options: ReadOptions
    metadata: TableMetadata
    io: FileIO
    value: pa.StructType | None
    avro: Any = None


class WrittenFiles(NamedTuple):
    """What a task has written. files: pickled DataFiles. kept: messages whose bytes stand in the
    column `body`, though there is a column `value`. more: the type that would hold all."""

    files: list[bytes]
    messages: int
    kept: int
    more: pa.StructType | None


def catalog_of(name: str, properties: Mapping[str, str]) -> Catalog:
    """Opens a catalogue, by PyIceberg's own configuration and these properties. Raises:
    BadArgument, StoreIOError."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as missing:
        raise usage(
            f"tables need PyIceberg, which cannot be imported ({missing})",
            "pip install 'rocketmq-pystore[iceberg]'",
        ) from None
    try:
        return load_catalog(name, **properties)
    except Exception as failed:  # noqa: BLE001 - each kind of catalogue has errors of its own
        # What a database says of a folder that is missing names no path.
        given = {key: properties.get(key) for key in ("uri", "warehouse")}
        places = [f"{key}={without_password(value)}" for key, value in given.items() if value]
        raise _failed(f"catalogue {name} ({', '.join(places) or 'no uri'})", failed) from None


def _failed(what: str, failed: Exception) -> errors.StoreIOError:
    error = errors.StoreIOError(f"{what}: {type(failed).__name__}: {failed}")
    error.next_step = "see https://py.iceberg.apache.org/configuration/ for what catalogues need"
    return error


class TopicTable:
    """The table, made when it is missing. topic: what it is of. bodies: what the topic's bodies are
    (``bytes``, ``json``, ``avro``); empty: as the table says."""

    def __init__(self, catalog: Catalog, name: str, topic: str, bodies: str) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        wanted = {TOPIC: topic, BODIES: bodies or "bytes"}
        try:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            try:
                self.table: Table = catalog.load_table(name)
            except NoSuchTableError:
                self.table = _made(catalog, name, wanted)
        except Exception as failed:  # noqa: BLE001 - each kind of catalogue has errors of its own
            raise _failed(f"table {name}", failed) from None
        there = self.table.properties
        for key in (TOPIC, BODIES) if bodies else (TOPIC,):
            if there.get(key) != wanted[key]:
                raise usage(
                    f"the table {name} is another one: its {key} is {there.get(key)!r}, not"
                    f" {wanted[key]!r}",
                    "name another table",
                )

    @property
    def bodies(self) -> str:
        """What the topic's bodies are."""
        return self.table.properties[BODIES]

    @property
    def value(self) -> pa.StructType | None:
        """The type of the column `value`; None where bodies stay bytes."""
        schema = self.table.schema().as_arrow()
        return _bare(schema.field("value").type) if "value" in schema.names else None

    def offsets(self) -> dict[str, Any] | None:
        """Returns where the table ends: what its newest snapshot of ours says, or, when all of them
        are expired, the table; None of a table without one, and of one that was rolled back to
        before the first."""
        metadata = self.table.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            kept = _property(snapshot)
            if kept is not None:
                return _offsets(kept)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)
        expired = not any(map(_property, metadata.snapshots))
        kept = self.table.properties.get(OFFSETS) if expired else None
        return None if kept is None else _offsets(kept)

    def widen(self, value: pa.StructType) -> None:
        """Adds fields to the column `value`."""
        if value == self.value:
            return
        import pyarrow as pa

        with self.table.update_schema() as update:
            update.union_by_name(pa.schema([pa.field("value", value)]))
        self.table.refresh()

    def append(self, files: Sequence[bytes], since: Any, until: Mapping[str, Any]) -> None:
        """Makes a snapshot with these files and offsets, if the table still ends at `since`.

        Raises: StoreLocked where another job has gone on with it, StoreIOError."""
        from pyiceberg.exceptions import CommitFailedException

        text, mine = json.dumps(until), uuid.uuid4().hex
        found = [pickle.loads(each) for each in files]
        for _ in range(_COMMITS):
            if self.offsets() != since:
                break
            try:
                self._commit(found, {OFFSETS: text, COMMIT: mine})
                return
            except CommitFailedException:
                self.table.refresh()
            except Exception as failed:  # noqa: BLE001 - each catalogue has errors of its own
                self.table.refresh()
                if not self._has(mine):  # else the answer was lost, and not the commit
                    raise _failed("the commit", failed) from None
                return
        error = errors.StoreLocked("another job keeps this table", ".".join(self.table.name()))
        error.next_step = "let one job keep it; what this one has written is in no snapshot"
        raise error

    def _commit(self, files: Sequence[Any], properties: Mapping[str, str]) -> None:
        # Of this object alone: a retry would not look at the offsets.
        there = {**self.table.metadata.properties, "commit.retry.num-retries": "0"}
        self.table.metadata = self.table.metadata.model_copy(update={"properties": there})
        with self.table.transaction() as work:
            work.set_properties({OFFSETS: properties[OFFSETS]})
            update = work.update_snapshot(snapshot_properties=dict(properties))
            with update.fast_append() as append:
                for each in files:
                    append.append_data_file(each)

    def _has(self, commit: str) -> bool:
        return any(_property(each, COMMIT) == commit for each in self.table.metadata.snapshots)


def _property(snapshot: Snapshot, name: str = OFFSETS) -> str | None:
    """Returns a property of a snapshot; None of one that another program made."""
    kept: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return kept.get(name)


def _offsets(text: str) -> dict[str, Any]:
    from spark_ext.stream import decode

    offset: dict[str, Any] = json.loads(text)
    decode(offset, f"the table's property {OFFSETS}")
    return offset


def _made(catalog: Catalog, name: str, properties: Mapping[str, str]) -> Table:
    import pyarrow as pa
    from pyiceberg.transforms import DayTransform

    stamp, pairs = pa.timestamp("us", "UTC"), pa.map_(pa.string(), pa.string())
    kinds = _TYPES | {"storeTimestamp": stamp, "bornTimestamp": stamp, "properties": pairs}
    schema = pa.schema(
        [pa.field(name, _arrow_type(kinds[name]), name not in _REQUIRED) for name in COLUMNS.names]
    )
    with (
        catalog.create_table_transaction(name, schema, properties=dict(properties)) as work,
        work.update_spec() as update,
    ):
        update.add_field("storeTimestamp", DayTransform(), "day")
    return catalog.load_table(name)


def _arrow_type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    return pa.type_for_alias(kind) if isinstance(kind, str) else kind


def _bare(kind: pa.DataType) -> pa.DataType:
    """Returns a type as bodies.py makes it: without the numbers of fields, with short texts."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _bare(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_bare(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_type), _bare(kind.item_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


# ---- what a task does ----


def write_files(work: TableWork, part: Part) -> WrittenFiles:
    """Writes the messages of a part as data files, one a day."""
    import pyarrow as pa

    from spark_ext.batch import read_part

    days = _DayFiles(work)
    count = kept = 0
    more = work.value
    try:
        for batch in read_part(part, COLUMNS, work.options):
            table = pa.table(batch)
            if work.value is not None:
                found = _parsed(work, table.column("body").to_pylist())
                more = bodies.merged(more, found.more)
                table = _with_value(table, found)
                kept += found.kept.true_count
            count += len(table)
            days.write(table)
        return WrittenFiles(days.close(), count, kept, more)
    finally:
        days.drop()


def _parsed(work: TableWork, data: Sequence[bytes | None]) -> bodies.ParsedBodies:
    assert work.value is not None
    if work.avro is not None:
        return bodies.parse_avro(data, work.avro, work.value)
    return bodies.parse_json(data, work.value)


def _with_value(table: pa.Table, found: bodies.ParsedBodies) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    body = table.column("body").combine_chunks()
    left = pc.if_else(found.kept, body, pa.scalar(None, body.type))
    at = table.column_names.index("body")
    return table.set_column(at, "body", left).append_column("value", found.values)


class _DayFiles:
    """The files that a task is writing: one a day, few of them open at once."""

    def __init__(self, work: TableWork) -> None:
        from pyiceberg.schema import sanitize_column_names
        from pyiceberg.table.locations import load_location_provider

        self._work = work
        self._places = load_location_provider(work.metadata.location, work.metadata.properties)
        self._schema = sanitize_column_names(work.metadata.schema())
        self._arrow = self._schema.as_arrow()
        self._open: OrderedDict[int, tuple[str, Any, Any, list[Any]]] = OrderedDict()
        self._done: list[bytes] = []

    def write(self, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        stamps = table.column("storeTimestamp").cast(pa.int64())
        days = pc.floor(pc.divide(stamps.cast(pa.float64()), float(_DAY_US))).cast(pa.int64())
        for day in pc.unique(days).to_pylist():
            mine = table if pc.all(pc.equal(days, day)).as_py() else table.filter(
                pc.equal(days, day))  # fmt: skip
            arrays = [
                _as(mine.column(name).combine_chunks(), field.type)
                if name in mine.column_names
                else pa.nulls(len(mine), field.type)
                for name, field in zip(
                    self._work.metadata.schema().as_arrow().names, self._arrow, strict=True
                )
            ]
            self._writer(day).write_table(pa.Table.from_arrays(arrays, schema=self._arrow))

    def _writer(self, day: int) -> Any:
        from pyarrow import parquet

        if day in self._open:
            self._open.move_to_end(day)
            return self._open[day][2]
        if len(self._open) >= _OPEN_FILES:
            self._finish(*self._open.popitem(last=False))
        place = self._places.new_data_location(f"{uuid.uuid4().hex}.parquet")
        stream = self._work.io.new_output(place).create()
        about: list[Any] = []
        writer = parquet.ParquetWriter(
            stream, self._arrow, compression="zstd", metadata_collector=about
        )
        self._open[day] = place, stream, writer, about
        return writer

    def _finish(self, day: int, file: tuple[str, Any, Any, list[Any]]) -> None:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        place, stream, writer, about = file
        writer.close()
        stream.close()
        metadata = self._work.metadata
        statistics = data_file_statistics_from_parquet_metadata(
            about[0],
            compute_statistics_plan(self._schema, metadata.properties),
            parquet_path_to_id_mapping(self._schema),
        )
        made = DataFile.from_args(
            content=DataFileContent.DATA, file_path=place, file_format=FileFormat.PARQUET,
            partition=Record(day), spec_id=metadata.default_spec_id, sort_order_id=None,
            equality_ids=None, key_metadata=None,
            file_size_in_bytes=len(self._work.io.new_input(place)),
            **statistics.to_serialized_dict(),
        )  # fmt: skip
        self._done.append(pickle.dumps(made))

    def close(self) -> list[bytes]:
        """Ends all files; returns them as the table takes them."""
        while self._open:
            self._finish(*self._open.popitem(last=False))
        return self._done

    def drop(self) -> None:
        """Lets go of what was not ended: the task failed."""
        for _, stream, _, _ in self._open.values():
            stream.close()
        self._open.clear()


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns values with a type that differs from theirs in names and numbers of fields alone."""
    import pyarrow as pa

    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = [_as(array.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        offsets = array.offsets.cast(pa.int64()) if made is pa.LargeListArray else array.offsets
        inner = _as(array.values, kind.value_type)
        return made.from_arrays(offsets, inner, kind, mask=array.is_null())
    return array.cast(kind)
