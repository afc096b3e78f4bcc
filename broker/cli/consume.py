"""``pystore consume``: messages from a broker over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import client_errors, no_settings, print_message
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of, tls_of
from pystore.cli.verbs import Session, usage
from pystore.format.names import TOOLS_GROUP

if TYPE_CHECKING:
    from broker.client.consumer import AsyncConsumer
    from broker.client.message import MessageQueue

__all__ = ["run"]


def run(
    s: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    namesrv: Annotated[
        str | None,
        typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Default: NAMESRV_ADDR."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Consumer group: shares the queues, commits. Default: none, just read."),
    ] = None,
    tags: Annotated[str, typer.Option(help="Tags wanted, as 'a || b'; * for all.")] = "*",
    sql: Annotated[str | None, typer.Option(help="SQL92 expression over properties.")] = None,
    start: Annotated[
        str,
        typer.Option("--from", help="first, last, or ms since 1970. A group: if it is new."),
    ] = "first",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Read messages from a broker and print them; with --json, one object a line.

    Without --follow it stops when nothing more waits. Exit code 1: there was nothing.

    Any broker of the remoting protocol will do; there is no STORE. Members are topic, tags,
    keys, properties, broker, queue, queue_offset, msg_id, born_ts, attempt, and body, or
    body_base64 when it is not UTF-8.

    \b
    Examples:
      pystore consume orders -n 127.0.0.1:9876
      pystore consume orders --group billing --follow --json
      pystore consume orders --from last -f --tags 'paid || open'
    """
    no_settings(s)
    import asyncio

    from broker.client.consumer import AsyncConsumer
    from broker.client.subscription import Sql

    begin: Any = start
    if start not in ("first", "last"):
        if not (start.isascii() and start.isdigit()):
            raise usage(f"--from '{start}' is not first, last or ms since 1970", "see --help")
        begin = int(start)
    if group is None and (sql is not None or tags != "*"):
        raise usage("--tags and --sql need a --group", "add --group NAME")
    expression = Sql(sql) if sql is not None else tags
    with client_errors("consume"):
        consumer = AsyncConsumer(
            group or TOOLS_GROUP,
            {topic: expression} if group is not None else (),
            namesrv=namesrv,
            start=begin,
            auto_commit_s=5.0 if group is not None else 0,
            credentials=credentials_of(credentials),
            tls=tls_of(trust),
        )
        return asyncio.run(_consume(s, consumer, topic, begin, group is not None, count, follow))


async def _consume(
    s: Session, consumer: AsyncConsumer, topic: str, start: str | int, grouped: bool,
    count: int | None, follow: bool,
) -> int:  # fmt: skip
    printed = 0
    async with consumer:
        if not grouped:
            queues = await consumer.queues(topic)
            await consumer.assign({queue: await _begin(consumer, queue, start) for queue in queues})
        ends = {queue: await consumer.max_offset(queue) for queue in consumer.assignment}
        while count is None or printed < count:
            left = 1024 if count is None else count - printed
            found = await consumer.poll(1.0, left)
            for message in found:
                print_message(s, message)
            consumer.ack(*found)
            s.out.flush()
            printed += len(found)
            if not follow and not found and _reached(consumer, ends):
                break
        if grouped:
            await consumer.commit()
    return 0 if printed or follow else 1


async def _begin(consumer: AsyncConsumer, queue: MessageQueue, start: str | int) -> int:
    if isinstance(start, int):
        return await consumer.offset_at(queue, start)
    return await (consumer.min_offset(queue) if start == "first" else consumer.max_offset(queue))


def _reached(consumer: AsyncConsumer, ends: dict[Any, int]) -> bool:
    """Says whether every queue that is still ours has come to where it ended at the start."""
    return all(
        consumer.position(queue) >= end
        for queue, end in ends.items()
        if queue in consumer.assignment
    )
