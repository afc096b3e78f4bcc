"""``pystore send``: messages to a broker over the network."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import client_errors, delay_of, no_settings
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of, tls_of
from pystore.cli.verbs import Session, named_values, usage

if TYPE_CHECKING:
    from broker.client.message import Message, SendResult
    from broker.client.producer import AsyncProducer

__all__ = ["run"]


_Body = Annotated[
    str | None,
    typer.Argument(metavar="BODY", show_default=False, help="The body. Default: lines of stdin."),
]
_Namesrv = Annotated[
    str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Default: NAMESRV_ADDR.")
]


def run(
    s: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.")],
    body: _Body = None,
    namesrv: _Namesrv = None,
    tags: Annotated[str | None, typer.Option(help="Tag of the message.")] = None,
    keys: Annotated[str | None, typer.Option(help="Keys, separated by spaces.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Set a property. Repeatable."),
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, help="Delay level, 1 to 18; 0: none.")
    ] = 0,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="Deliver in 90s, 15m, 2h, 3d, or at a time."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Messages of one SHARD go to one queue, in order.")
    ] = None,
    group: Annotated[str, typer.Option(help="Producer group.")] = "pystore-send",
    lines: Annotated[
        bool,
        typer.Option("--json-lines", help="Each line of stdin is an object: body, tags, keys ..."),
    ] = False,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, help="Messages under way at once.")
    ] = 64,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Send messages to a broker, and print where each was stored.

    Without BODY, each line of stdin is a message. With --json-lines each line is an object with
    the members body (text) or body_base64, tags, keys, properties, delay_level, delay, shard,
    topic; those that are missing come from the options. `pystore consume --json` writes such lines.

    Any broker of the remoting protocol will do; there is no STORE. Exit code 0: all were
    acknowledged.

    \b
    Examples:
      pystore send orders 'hello' -n 127.0.0.1:9876 --tags paid --keys order-17
      pystore send reminders 'renew' --delay 2h
      cat orders.txt | pystore send orders
      pystore consume orders --json | pystore send copy --json-lines
    """
    no_settings(s)
    import asyncio

    from broker.client.message import Message
    from broker.client.producer import AsyncProducer

    given = {
        "topic": topic, "tags": tags, "keys": keys or "",
        "properties": named_values(property_ or (), "--property", "region=eu"),
        "delay_level": delay_level, "delay": delay, "shard": shard,
    }  # fmt: skip

    def messages() -> Iterator[tuple[Message, str | None]]:
        for fields in _inputs(body, lines, given):
            chosen = fields.pop("shard")
            if fields["delay"] is not None:
                fields["delay"] = delay_of(str(fields["delay"]), "--delay")
            yield Message(**fields), chosen

    with client_errors("send"):
        producer = AsyncProducer(
            group,
            namesrv,
            max_in_flight=in_flight,
            tls=tls_of(trust),
            credentials=credentials_of(credentials),
        )
        return asyncio.run(_send(s, producer, messages()))


async def _send(
    s: Session, producer: AsyncProducer, messages: Iterator[tuple[Message, str | None]]
) -> int:
    import asyncio
    from collections import deque

    waiting: deque[asyncio.Future[SendResult]] = deque()
    async with producer:
        while (found := await asyncio.to_thread(next, messages, None)) is not None:
            message, shard = found
            if shard is None:
                waiting.append(await producer.submit(message))
            else:
                _print(s, await producer.send(message, key=shard))
            while waiting and waiting[0].done():
                _print(s, waiting.popleft().result())
        for future in waiting:
            _print(s, await future)
    return 0


def _inputs(body: str | None, lines: bool, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Makes the fields of each message. Raises: BadArgument for a line that is not as
    documented."""
    if body is not None:
        yield {**given, "body": body.encode("utf-8", "surrogateescape")}
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        line = line.rstrip(b"\n")
        if not line:
            continue
        if not lines:
            yield {**given, "body": line}
            continue
        try:
            found = json.loads(line)
            made = {name: found[name] for name in given if found.get(name) is not None}
            made["body"] = (
                base64.b64decode(found["body_base64"], validate=True)
                if "body_base64" in found
                else found["body"].encode()
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as bad:
            raise usage(
                f"line {number} is not a message: {type(bad).__name__} {bad}",
                'write for example {"body": "hello", "tags": "paid"}',
            ) from None
        yield {**given, **made}


def _print(s: Session, result: SendResult) -> None:
    topic = result.queue.topic
    record = {
        "at": "send",
        "status": result.status.name,
        "topic": topic,
        "broker": result.queue.broker,
        "queue": result.queue.queue,
        "queue_offset": result.queue_offset,
        "msg_id": result.message_id,
        "offset_msg_id": result.offset_message_id,
        "recall_handle": result.recall_handle,
    }
    s.out.record(
        record,
        lambda: (
            f"{result.status.name}  {topic}/{result.queue.queue}@{result.queue_offset}"
            f"  {result.queue.broker}  {result.message_id}"
        ),
    )
