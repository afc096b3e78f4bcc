"""``pystore get``: messages by their place or id."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pystore.cli._records import hex_dump, message_record, shown_body
from pystore.cli._session import Session
from pystore.cli._values import Size, When, usage
from pystore.errors import NotFound, RecordDamaged
from pystore.store._messages import Message
from pystore.store._reading import Reader

__all__ = ["run"]

_BATCH = 256


class Body(StrEnum):
    """How the body is shown."""

    auto = "auto"
    hex = "hex"
    raw = "raw"
    none = "none"


def run(
    s: Session,
    topic: Annotated[str | None, typer.Option(help="Topic of the queue.")] = None,
    queue: Annotated[int, typer.Option(min=0, max=65535, help="Queue id.")] = 0,
    offset: Annotated[int | None, typer.Option(min=0, help="Queue offset.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 1,
    tags: Annotated[str | None, typer.Option(help="Only these tags: 'A || B'.")] = None,
    sql: Annotated[
        str | None, typer.Option(help='Only messages matching this SQL92 filter: "a > 3".')
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="offsetMsgId, 32 or 56 hex digits.")
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", min=0, help="Log offset of the record, in bytes.")
    ] = None,
    body: Annotated[
        Body,
        typer.Option(help="auto: text or hex dump; raw: only the bytes, to stdout; none: nothing."),
    ] = Body.auto,
    hex_: Annotated[bool, typer.Option("--hex", help="The same as --body hex.")] = False,
) -> int | None:
    """Show messages by queue offset, offset message id or log offset.

    Shows all fields and the body, decompressed, as text if it is UTF-8.

    Say which by --topic, --queue and --offset, by --id, or by --at. JSON: a line a message, as
    in export, with the body inflated; a body that does not inflate comes as stored, with
    body_error, and the exit code is 5.

    \b
    Examples:
      pystore get STORE --topic orders --queue 3 --offset 41
      pystore get STORE --topic orders --queue 3 --offset 0 --count 10 --tags "paid || sent" --json
      pystore get STORE --id 0A00000200002A9F0000000000000000
      pystore get STORE --at 4096 --body raw > body.bin
    """
    ways = [way for way in (id_, at, offset) if way is not None]
    if len(ways) != 1 or (offset is not None) != (topic is not None):
        raise usage(
            "no message given: pass --topic T --queue Q --offset N, --id ID or --at N",
            "see pystore get --help",
        )
    if hex_:
        body = Body.hex
    with s.reader() as reader:
        if id_ is not None:
            found = [_by_id(reader, id_)]
        elif at is not None:
            found = [reader.message(at)]
        else:
            assert topic is not None and offset is not None
            found = _from_queue(reader, topic, queue, offset, count, tags, sql)
        for message in found:
            _show(s, message, body)
    return 0 if found else 1


def _by_id(reader: Reader, id_: str) -> Message:
    """Returns the message with an id. Raises: NotFound when the place holds a message of another
    id."""
    message = reader.message_by_id(id_)
    if message.offset_message_id != id_.upper():
        raise NotFound(
            f"the message there has the id {message.offset_message_id}, stored by another broker",
            offset=message.physical_offset,
        )
    return message


def _from_queue(
    reader: Reader,
    topic: str,
    queue: int,
    offset: int,
    count: int,
    tags: str | None,
    sql: str | None,
) -> list[Message]:
    low, high = reader.range(topic, queue)
    if not any(q.queue == queue for q in reader.queues(topic)):
        raise reader._missing(topic, queue)
    if not low <= offset < high:
        raise NotFound(f"queue {topic}/{queue} holds offsets {low} to {high - 1}, not {offset}")
    found: list[Message] = []
    while len(found) < count and offset < high:
        room = min(_BATCH, count - len(found))
        batch = reader.read(topic, queue, offset, max_messages=room, tags=tags, sql=sql)
        found.extend(batch)
        if batch.next_offset <= offset:
            break
        offset = batch.next_offset
    return found


def _show(s: Session, message: Message, body: Body) -> None:
    if body is Body.raw:
        s.out.data(message.body)
        return
    record = message_record(message)
    if "body_error" in record:
        s.damaged = True
    if s.out.json:
        if body is Body.none:
            record.pop("body"), record.pop("body_encoding")
        elif body is Body.hex:
            record["body"], record["body_encoding"] = bytes(_body(message)).hex(), "hex"
        s.out.record(record, str)
        return
    facts = {k: v for k, v in record.items() if k not in ("at", "body", "body_encoding", "props")}
    for name in ("born_ts", "store_ts"):
        facts[name] = When(int(str(facts[name])))
    for name in ("size", "body_len"):
        facts[name] = Size(int(str(facts[name])))
    properties = message.properties
    s.out.facts("message", facts | {f"property {k}": v for k, v in properties.items()})
    if body is not Body.none:
        content = _body(message)
        text = hex_dump(content) if body is Body.hex else shown_body(content)
        s.out.lines(["body", text])


def _body(message: Message) -> bytes | memoryview:
    """Returns the body inflated, or as it is stored when it does not inflate."""
    try:
        return message.body
    except RecordDamaged:
        return message.raw_body
