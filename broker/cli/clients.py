"""What the verbs that are clients share: no settings of a store, and the names of errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pystore.cli.verbs import Session, parse_time, usage
from pystore.errors import NotFound

__all__ = ["UNITS_S", "client_errors", "delay_of", "no_settings"]

#: Of a time ahead: 90s, 15m, 2h, 3d.
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
    """Raises: BadArgument for settings, which only a broker or a store has."""
    if s.conf is not None or s.sets:
        given = ", ".join(s.sets) or str(s.conf)
        raise usage(
            f"a client has no settings of --conf or --set: {given}", "leave it out, see --help"
        )


@contextlib.contextmanager
def client_errors(verb: str) -> Iterator[None]:
    """Turns the client's errors into those that exit codes are made of. Raises: BadArgument,
    NotFound, ConnectionError."""
    from broker.client.errors import ClientError, InvalidMessage, Misuse, NoRoute

    try:
        yield
    except Misuse as wrong:
        raise usage(str(wrong), f"see pystore {verb} --help") from None
    except InvalidMessage as wrong:
        raise usage(str(wrong), "nothing of this message or for this group was sent") from None
    except NoRoute as missing:
        raise NotFound(str(missing)) from None
    except ClientError as failed:
        raise ConnectionError(str(failed)) from failed
