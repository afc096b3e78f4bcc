"""The columns: which there are, which a query asks for, and how C must lay them out for Spark.

Spark compares the Arrow schema of the first batch with its own: names, order, types, nullability.
So what the query asked for goes to C as it is (``ColumnLayout``), and what C cannot give is refused
here, with the column's name, before a job starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_ext.errors import BadSchema, nearest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "DEFAULT", "OF_TIMERS", "ColumnLayout", "ddl", "layout"]

#: Every column, its type as Spark writes it, and whether it may be null. ``properties`` may also be
#: a string (JSON, as the connector of RocketMQ Externals gave it).
COLUMNS: dict[str, tuple[str, bool]] = {
    "topic": ("string", False),
    "brokerName": ("string", False),
    "queueId": ("int", False),
    "queueOffset": ("bigint", False),
    "body": ("binary", False),
    "tags": ("string", True),
    "keys": ("string", True),
    "properties": ("map<string,string>", False),
    "flag": ("int", False),
    "bornTimestamp": ("timestamp", False),
    "storeTimestamp": ("timestamp", False),
    "sysFlag": ("int", False),
    "bornHost": ("string", False),
    "storeHost": ("string", False),
    "reconsumeTimes": ("int", False),
    "bodyCRC": ("int", False),
    "storeSize": ("int", False),
    "commitLogOffset": ("bigint", False),
    "msgId": ("string", False),
    "preparedTransactionOffset": ("bigint", False),
    "envelope": ("binary", False),
    "liteTopic": ("string", True),
}

#: Of messages that wait for their time alone (option timers=pending).
OF_TIMERS: dict[str, tuple[str, bool]] = {"deliverTime": ("timestamp", False)}

#: The nine columns of the connector of RocketMQ Externals, with tags and keys.
DEFAULT = (
    "topic", "brokerName", "queueId", "queueOffset", "body", "tags", "keys", "properties",
    "flag", "bornTimestamp", "storeTimestamp",
)  # fmt: skip


class ColumnLayout(NamedTuple):
    """What C needs to know of the columns: names in order, which of them Spark calls nullable,
    ``map`` or ``json``."""

    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    properties: str


def ddl(columns: Sequence[str] | None, properties: str, *, timers: bool = False) -> str:
    """Returns the schema of a load without ``.schema(...)``, as DDL.

    columns: option ``columns``. properties: option ``includeProperties``; ``none`` leaves the
    column out of the default ones. timers: option timers=pending.
    """
    asked = tuple(columns) if columns else DEFAULT + (tuple(OF_TIMERS) if timers else ())
    if not columns and properties == "none":
        asked = tuple(name for name in asked if name != "properties")
    parts = []
    for name in asked:
        kind, may_be_null = _column(name, timers)
        if name == "properties" and properties == "json":
            kind = "string"
        parts.append(f"{name} {kind}{'' if may_be_null else ' NOT NULL'}")
    return ", ".join(parts)


def layout(schema: StructType, *, timers: bool = False) -> ColumnLayout:
    """Returns the layout of a schema that Spark will check the batches against. timers: option
    timers=pending. Raises: BadSchema."""
    from pyspark.sql.types import MapType

    names, nullable, properties = [], [], "map"
    for field in schema.fields:
        kind, may_be_null = _column(field.name, timers)
        got = field.dataType.simpleString()
        if field.name == "properties" and got == "string":
            properties = "json"
        elif got != kind:
            other = " or string" if field.name == "properties" else ""
            raise BadSchema(
                f"column '{field.name}' is {kind}{other}, not {got}; cast it after loading"
            )
        elif isinstance(field.dataType, MapType) and not field.dataType.valueContainsNull:
            raise BadSchema("column 'properties' is a map whose values Spark treats as nullable")
        if may_be_null and not field.nullable:
            raise BadSchema(f"column '{field.name}' can be null: leave NOT NULL out of the schema")
        names.append(field.name)
        nullable.append(bool(field.nullable))
    if not names:
        raise BadSchema("the schema has no columns; name at least one, e.g. 'queueOffset long'")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadSchema(f"column '{min(twice)}' is given twice")
    return ColumnLayout(tuple(names), tuple(nullable), properties)


def _column(name: str, timers: bool) -> tuple[str, bool]:
    """Returns the type of a column, and whether it may be null. Raises: BadSchema for one that is
    not there."""
    if name in OF_TIMERS and not timers:
        raise BadSchema(f"column '{name}' goes with option timers=pending")
    known = COLUMNS | OF_TIMERS if timers else COLUMNS
    if name not in known:
        raise BadSchema(
            f"unknown column '{name}'{nearest(name, known)} The columns are: {', '.join(known)}"
        )
    return known[name]
