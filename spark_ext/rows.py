"""Rows as messages: what a task does to a frame's batches before they wait in a spool.

Everything that can be refused is refused here, in the task, with the row's number; so that the
commit, which cannot be undone, has little left to fail on. All of it is done a column at a
time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pystore.format.javahash import java_hash
from pystore.format.properties import NAME_END, PROPERTY_END, pair
from spark_ext.errors import BadSchema, SinkError, nearest
from spark_ext.options import QUEUE_ID_MAX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "IGNORED", "SPOOL", "Stamper", "check_schema"]

#: The columns of a write: types that Spark may give them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>", "string"),
    "queueId": ("int",),
    "shardingKey": ("string",),
    "delayLevel": ("int",),
    "flag": ("int",),
    "bornTimestamp": ("timestamp", "bigint"),
    "deliverTime": ("timestamp", "bigint"),
}

#: Columns of a read that say where a message lay; a copy of it lies elsewhere.
IGNORED = (
    "brokerName", "queueOffset", "storeTimestamp", "sysFlag", "bornHost", "storeHost",
    "reconsumeTimes", "bodyCRC", "storeSize", "commitLogOffset", "msgId",
    "preparedTransactionOffset", "envelope",
)  # fmt: skip

#: A spool's columns. queue -1: in turn. shard: hash of the sharding key, null without. born: ms.
#: deliver: ms, null: at once.
SPOOL = (
    "topic", "body", "properties", "queue", "shard", "level", "flag", "born", "row", "deliver",
)  # fmt: skip

TOPIC = r"^[%|a-zA-Z0-9_-]+$"
TOPIC_MAX = 127
PROPERTIES_MAX = 32767 - 512  # what delays and brokers add must fit too
BODY_MAX = 4 << 20
CONTROL = f"[{NAME_END}{PROPERTY_END}]"
#: Written from columns of their own, or about the copy that was read.
OWN_NAMES = (
    "TAGS", "KEYS", "SPARK_JOB", "SPARK_BATCH", "SPARK_PARTITION", "SPARK_ROW", "SPARK_ATTEMPT",
)  # fmt: skip


def check_schema(schema: StructType, topic: str, *, timers: bool = False) -> None:
    """Refuses a frame that is not a table of messages. timers: whether somebody delivers them.
    Raises: BadSchema."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name in IGNORED:
            continue
        if name == "deliverTime" and not timers:
            raise BadSchema(
                "column 'deliverTime' needs a broker, which delivers it: name one by option"
                " nameServer; a store takes many rows at once, and no timers among them"
            )
        if name not in COLUMNS:
            raise BadSchema(
                f"the sink has no column '{name}'{nearest(name, COLUMNS)} It takes:"
                f" {', '.join(COLUMNS)}; drop the others, or put them into the body"
            )
        if kind not in COLUMNS[name]:
            raise BadSchema(f"column '{name}' must be {' or '.join(COLUMNS[name])}, not {kind}")
    if "body" not in found:
        raise BadSchema(
            "the sink needs a column 'body', e.g. df.selectExpr('to_json(struct(*)) AS body')"
        )
    if "topic" not in found and not topic:
        raise BadSchema("name the topic: a column 'topic' or option topic")


class Stamper:
    """Turns batches of one task into batches of its spool."""

    def __init__(
        self,
        topic: str,
        tags: str,
        job: str,
        batch: int,
        partition: int,
        *,
        empty_bodies: bool = True,
    ) -> None:
        """Makes the converter. empty_bodies: whether they are allowed; stores take them, brokers do
        not."""
        self.topic = topic
        self.empty_bodies = empty_bodies
        self.tags = tags
        self.partition = partition
        self.rows = 0
        self.stamp = (
            pair("SPARK_JOB", job) + pair("SPARK_BATCH", batch)
            + pair("SPARK_PARTITION", partition) + "SPARK_ROW" + NAME_END
        )  # fmt: skip

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Makes the messages of a batch. Raises: SinkError naming the row that cannot be one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        n = batch.num_rows
        have = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        body = self._body(have["body"])
        topic = self._topics(have.get("topic"), n)
        level = _or(have.get("delayLevel"), 0, n, pa.int32())
        self._refuse(_negative(level), "delayLevel is negative")
        queue = _or(have.get("queueId"), -1, n, pa.int32())
        if "queueId" in have:
            self._refuse(_negative(have["queueId"]), "queueId is negative")
            over = pc.fill_null(pc.greater(have["queueId"], QUEUE_ID_MAX), False)
            self._refuse(over, f"queueId is over {QUEUE_ID_MAX}")
        properties = self._properties(have, level, n)
        deliver = _ms(have.get("deliverTime"), n)
        both = pc.and_(pc.is_valid(deliver), pc.greater(level, 0))
        self._refuse(both, "deliverTime and delayLevel are both given")
        self._refuse(_negative(deliver), "deliverTime is before 1970")
        columns = {
            "topic": topic,
            "body": body,
            "properties": properties,
            "queue": queue,
            "shard": _shards(have.get("shardingKey"), n),
            "level": level,
            "flag": _or(have.get("flag"), 0, n, pa.int32()),
            "born": _ms(have.get("bornTimestamp"), n),
            "row": pa.array(range(self.rows, self.rows + n), pa.int64()),
            "deliver": deliver,
        }
        self.rows += n
        return pa.RecordBatch.from_arrays([columns[name] for name in SPOOL], SPOOL)

    # ---- columns ----

    def _body(self, body: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._refuse(pc.is_null(body), "body is null")
        body = body.cast(pa.binary())
        if not self.empty_bodies:
            empty = pc.equal(pc.binary_length(body), 0)
            self._refuse(empty, "body is empty, which brokers refuse")
        long = pc.greater(pc.binary_length(body), BODY_MAX)
        self._refuse(long, f"body is longer than {BODY_MAX} bytes")
        return body

    def _topics(self, topic: Any, n: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        topic = pa.repeat(self.topic, n) if topic is None else topic.cast(pa.string())
        if self.topic:
            topic = pc.fill_null(topic, self.topic)
        self._refuse(pc.is_null(topic), "topic is null, and there is no option topic")
        bad = pc.invert(pc.match_substring_regex(topic, TOPIC))
        self._refuse(bad, "topic has a character other than letters, digits and % | _ -")
        long = pc.greater(pc.binary_length(topic), TOPIC_MAX)
        self._refuse(long, f"topic is longer than {TOPIC_MAX} bytes")
        return topic

    def _properties(self, have: dict[str, Any], level: Any, n: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        tags = have.get("tags")
        if tags is None and self.tags:
            tags = pa.repeat(self.tags, n)
        keys = have.get("keys")
        if keys is not None and pa.types.is_list(keys.type):
            keys = pc.binary_join(keys, " ")
        parts = [self._entries(have["properties"])] if "properties" in have else []
        parts += [self._one("TAGS", tags)] if tags is not None else []
        parts += [self._one("KEYS", keys)] if keys is not None else []
        parts += [self._one("__SHARDINGKEY", have["shardingKey"])] if "shardingKey" in have else []
        row = pa.array(range(self.rows, self.rows + n), pa.int64()).cast(pa.string())
        whole = pc.binary_join_element_wise(*parts, self.stamp, row, "\x02", "")
        long = pc.greater(pc.binary_length(whole), PROPERTIES_MAX)
        self._refuse(long, f"the properties are longer than {PROPERTIES_MAX} bytes")
        return whole.cast(pa.binary())

    def _one(self, name: str, values: Any) -> Any:
        """Returns ``NAME 0x01 VALUE 0x02`` where there is a value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = values.cast(pa.string())
        self._refuse(pc.match_substring_regex(values, CONTROL), f"{name} contains 0x01 or 0x02")
        entry = pc.binary_join_element_wise(name + NAME_END, values, PROPERTY_END, "")
        empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), True)
        return pc.if_else(empty, "", entry)

    def _entries(self, properties: Any) -> Any:
        """Encodes the properties of each row, without those that have columns of their own."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_string(properties.type) or pa.types.is_large_string(properties.type):
            properties = self._of_json(properties)
        keys, values = properties.keys.cast(pa.string()), properties.items.cast(pa.string())
        bad = pc.or_(
            pc.match_substring_regex(keys, CONTROL),
            pc.fill_null(pc.match_substring_regex(values, CONTROL), False),
        )
        if pc.any(bad).as_py():
            raise SinkError("a property contains a separator (0x01 or 0x02)")
        entries = pc.binary_join_element_wise(keys, "\x01", values, "\x02", "")
        drop = pc.or_(
            pc.is_in(keys, pa.array(OWN_NAMES)),
            pc.fill_null(pc.equal(pc.binary_length(values), 0), True),
        )
        entries = pc.if_else(drop, "", entries)
        lists = pa.ListArray.from_arrays(_offsets(properties), entries)
        return pc.fill_null(pc.binary_join(lists, ""), "")

    def _of_json(self, texts: Any) -> Any:
        import pyarrow as pa

        rows = []
        for i, text in enumerate(texts.to_pylist()):
            try:
                rows.append(
                    {} if not text else {str(k): str(v) for k, v in json.loads(text).items()}
                )
            except (ValueError, AttributeError):
                raise SinkError(
                    f"row {self.rows + i} of partition {self.partition}: properties is not a"
                    " JSON object"
                ) from None
        return pa.array([list(r.items()) for r in rows], pa.map_(pa.string(), pa.string()))

    def _refuse(self, bad: Any, why: str) -> None:
        import pyarrow.compute as pc

        at = pc.index(bad, True).as_py()
        if at >= 0:
            raise SinkError(f"row {self.rows + at} of partition {self.partition}: {why}")


def _offsets(column: Any) -> Any:
    """Returns the offsets of a map column, counted from its own first entry."""
    import pyarrow.compute as pc

    offsets = column.offsets
    return pc.subtract(offsets, offsets[0]) if len(offsets) and offsets[0].as_py() else offsets


def _negative(values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.less(values, 0), False)


def _or(values: Any, default: int, n: int, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if values is None:
        return pa.repeat(pa.scalar(default, kind), n)
    return pc.fill_null(values.cast(kind), pa.scalar(default, kind))


def _ms(values: Any, n: int) -> Any:
    """Returns milliseconds of a timestamp in us, or of a number that is ms already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values is None:
        return pa.nulls(n, pa.int64())
    if pa.types.is_timestamp(values.type):
        return pc.divide(values.cast(pa.int64()), 1000)
    return values.cast(pa.int64())


def _shards(keys: Any, n: int) -> Any:
    import pyarrow as pa

    if keys is None:
        return pa.nulls(n, pa.int32())
    coded = keys.cast(pa.string()).dictionary_encode()
    hashes = pa.array([java_hash(k) for k in coded.dictionary.to_pylist()], pa.int32())
    return hashes.take(coded.indices)
