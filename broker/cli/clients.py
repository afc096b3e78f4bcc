"""What the verbs that are clients share: no settings of a store, and the names of errors."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from pystore.cli.verbs import Session, When, parse_time, shown, usage, with_step
from pystore.errors import NotFound

if TYPE_CHECKING:
    from broker.client.message import ReceivedMessage

__all__ = [
    "UNITS_S", "DryRun", "client_errors", "delay_of", "message_facts", "message_line",
    "no_settings", "print_message",
]  # fmt: skip

#: Of a time ahead: 90s, 15m, 2h, 3d.
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and print the plan; change nothing.")
]


def delay_of(text: str, option: str) -> timedelta | datetime:
    """Reads a time ahead of now, as ``90s`` or ``+2h``, or a moment: ms since 1970 or ISO 8601.
    Raises: BadArgument."""
    ahead = re.fullmatch(r"\+?([0-9]{1,8})([smhd])", text)
    if ahead is not None:
        return timedelta(seconds=int(ahead[1]) * UNITS_S[ahead[2]])
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=parse_time(text, option))
    except OverflowError:
        raise usage(f"{option} {text} lies after the year 9999", "name an earlier time") from None


def no_settings(s: Session) -> None:
    """Refuses `--set`. Raises: BadArgument for settings, which only a broker or a store has."""
    if s.conf is not None or s.sets:
        given = ", ".join(s.sets) or str(s.conf)
        raise usage(
            f"a client has no settings of --conf or --set: {given}", "leave it out, see --help"
        )


@contextlib.contextmanager
def client_errors(verb: str) -> Iterator[None]:
    """Turns the client's errors into those that exit codes are made of. Raises: BadArgument,
    NotFound, ConnectionError."""
    from broker.client.errors import (
        BrokerRefused,
        ClientError,
        InvalidMessage,
        Misuse,
        NoRoute,
        RequestTimeout,
        Unreachable,
    )

    try:
        yield
    except Misuse as wrong:
        raise usage(str(wrong), f"see pystore {verb} --help") from None
    except InvalidMessage as wrong:
        raise usage(str(wrong), "nothing of this message or for this group was sent") from None
    except NoRoute as missing:
        error = NotFound(str(missing))
        error.next_step = "see `pystore admin topic list`"
        raise error from None
    except BrokerRefused as refused:
        step = "check --credentials" if refused.denied else "the log of that server may say more"
        raise with_step(ConnectionError(str(refused)), step) from refused
    except (Unreachable, RequestTimeout) as failed:
        raise ConnectionError(str(failed)) from failed
    except ClientError as failed:
        raise with_step(ConnectionError(str(failed)), "see docs/client.md, Errors") from failed


def message_facts(message: ReceivedMessage) -> dict[str, object]:
    """Returns a message as JSON shows it: the user's properties, and the body as text or Base64."""
    from broker.client.sending import PROTOCOL_PROPERTIES

    given = message.properties.items()
    record: dict[str, object] = {
        "topic": message.topic,
        "tags": message.tags,
        "keys": message.keys,
        "properties": {name: value for name, value in given if name not in PROTOCOL_PROPERTIES},
        "broker": message.queue.broker,
        "queue": message.queue.queue,
        "queue_offset": message.queue_offset,
        "msg_id": message.message_id,
        "born_ts": When(message.born_timestamp),
        "attempt": message.attempt,
    }
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record


def message_line(message: ReceivedMessage) -> str:
    """Returns a message as a line of text, without control characters."""
    body = message.body[:200].decode("utf-8", "backslashreplace")
    return shown(
        f"{message.topic}/{message.queue.queue}@{message.queue_offset}"
        f"  {message.tags or '-'}  {' '.join(message.keys) or '-'}  {body}"
    )


def print_message(s: Session, message: ReceivedMessage) -> None:
    s.out.record(message_facts(message), lambda: message_line(message))
