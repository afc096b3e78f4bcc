"""Bodies as columns: JSON and Avro become one Arrow struct a message, for a table of a topic.

Nothing is lost: of a body that does not fit into its column, the bytes are kept beside it.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_ext.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParsedBodies", "avro_type", "merged", "parse_avro", "parse_json", "storable"]

#: What a body is in, so that two bodies are two rows whatever they hold: nothing within a body can
#: end its own wrapping and begin another.
_OPEN, _CLOSE = b'{"v":', b"}\n"


class ParsedBodies(NamedTuple):
    """values: a struct a message, null where the body does not fit. kept: whether its bytes are
    needed beside it. more: the type with what the column does not have."""

    values: pa.StructArray
    kept: pa.BooleanArray
    more: pa.StructType


def storable(kind: pa.DataType) -> pa.DataType | None:
    """Returns a type as a table has it; None for one without a value, as of fields that were always
    null."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        fields = [(f.name, storable(f.type)) for f in kind]
        known = [(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(known) if known else None
    if pa.types.is_list(kind):
        inner = storable(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("us")
    return kind


# ---- JSON ----


def parse_json(bodies: Sequence[bytes | None], known: pa.StructType) -> ParsedBodies:
    """Returns JSON objects as structs of a known type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces: list[tuple[Any, int]] = []  # a struct array, or None for another body
    _parse(bodies, known, pieces)
    values, kept, more = [], [], known
    for array, count in pieces:
        if array is None:
            values.append(pa.nulls(count, known))
            kept.append(pa.repeat(True, count))
            continue
        values.append(_known(array, known))
        extras = _extras(array, known)
        kept.append(array.is_null() if extras is None else pc.or_(extras, array.is_null()))
        found = storable(array.type)
        more = more if found is None else merged(more, found)
    if not values:
        return ParsedBodies(pa.nulls(0, known), pa.array([], pa.bool_()), known)
    return ParsedBodies(pa.concat_arrays(values), pa.concat_arrays(kept), more)


def _parse(
    bodies: Sequence[bytes | None], known: pa.StructType, pieces: list[tuple[Any, int]]
) -> None:
    """Appends the structs of bodies; halves are tried where all of them together are refused."""
    import pyarrow as pa
    from pyarrow import json as reader

    data = b"".join(_OPEN + (body or b"null") + _CLOSE for body in bodies)
    try:
        table = reader.read_json(
            io.BytesIO(data),
            reader.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1 << 16)),
            reader.ParseOptions(
                explicit_schema=pa.schema([("v", known)]) if known.num_fields else None,
                newlines_in_values=True,
            ),
        )
        if table.column_names == ["v"] and len(table) == len(bodies):
            values = table.column("v").combine_chunks()
            if pa.types.is_struct(values.type):
                pieces.append((values, len(bodies)))
                return
    except pa.ArrowException:
        pass
    if len(bodies) < 2:
        pieces.append((None, len(bodies)))
        return
    middle = len(bodies) // 2
    _parse(bodies[:middle], known, pieces)
    _parse(bodies[middle:], known, pieces)


def _known(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the part of values that a type has."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        there = {field.name: i for i, field in enumerate(array.type)}
        parts = [
            _known(array.field(there[f.name]), f.type)
            if f.name in there
            else pa.nulls(len(array), f.type)
            for f in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        inner = _known(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, inner, kind, mask=array.is_null())
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    return array.cast(kind)


def _extras(array: pa.Array, kind: pa.DataType) -> pa.BooleanArray | None:
    """Says of which values a type does not have all; None: it has all of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        there = {field.name: field.type for field in kind}
        parts = [
            _extras(array.field(i), there[field.name])
            if field.name in there
            else array.field(i).is_valid()
            for i, field in enumerate(array.type)
        ]
        found = [part for part in parts if part is not None]
        return functools.reduce(pc.or_, found) if found else None
    if pa.types.is_list(array.type) and pa.types.is_list(kind):
        inner = _extras(array.values, kind.value_type)
        return None if inner is None else array.is_valid()
    return None


def merged(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Returns a type with the fields of another added; what both have stays as it is in `a`."""
    import pyarrow as pa

    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {f.name: f.type for f in a}
        for f in b:
            fields[f.name] = merged(fields[f.name], f.type) if f.name in fields else f.type
        return pa.struct(list(fields.items()))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(merged(a.value_type, b.value_type))
    return a


# ---- Avro ----

_PLAIN = {
    "boolean": "bool", "int": "int32", "long": "int64", "float": "float32", "double": "float64",
    "bytes": "binary", "string": "string", "enum": "string",
}  # fmt: skip


def avro_type(schema: Any) -> pa.DataType:
    """Returns the Arrow type of an Avro schema, as fastavro has parsed it or as JSON. Raises:
    BadOption for what a table cannot hold: unions of several types, types that hold themselves."""
    import pyarrow as pa

    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise BadOption(
                f"a union of {len(kinds)} types cannot be a column: {json.dumps(kinds):.80}"
            )
        return avro_type(kinds[0])
    name = schema if isinstance(schema, str) else schema["type"]
    about: dict[str, Any] = {} if isinstance(schema, str) else schema
    logical = about.get("logicalType", "")
    if logical.startswith("timestamp-"):
        return pa.timestamp("us", "UTC")
    if logical.startswith("local-timestamp-"):
        return pa.timestamp("us")
    if logical == "date":
        return pa.date32()
    if logical.startswith("time-"):
        return pa.time64("us")
    if logical == "decimal":
        return pa.decimal128(about["precision"], about.get("scale", 0))
    if logical == "uuid":
        return pa.string()
    if name in ("record", "error"):
        return pa.struct([(f["name"], avro_type(f["type"])) for f in about["fields"]])
    if name == "array":
        return pa.list_(avro_type(about["items"]))
    if name == "map":
        return pa.map_(pa.string(), avro_type(about["values"]))
    if name == "fixed":
        return pa.binary(about["size"])
    if name in _PLAIN:
        return pa.type_for_alias(_PLAIN[name])
    if not isinstance(name, str):
        return avro_type(name)
    raise BadOption(
        f"a table cannot hold the Avro type {name!r}: it names itself or another record"
    )


def parse_avro(bodies: Sequence[bytes | None], schema: Any, known: pa.StructType) -> ParsedBodies:
    """Returns Avro bodies, each one datum without a header, as structs."""
    import fastavro
    import pyarrow as pa

    read = fastavro.schemaless_reader
    found: list[Any] = []
    for body in bodies:
        data = io.BytesIO(body or b"")
        try:
            value = _shown(read(data, schema, None))
            found.append(value if data.tell() == len(body or b"") else None)
        except Exception:  # noqa: BLE001 - whatever a body may hold; its bytes are kept
            found.append(None)
    values = pa.array(found, known)
    return ParsedBodies(values, values.is_null(), known)


def _shown(value: Any) -> Any:
    """Returns a value as Arrow takes it."""
    import uuid

    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else value
