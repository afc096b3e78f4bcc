"""What the verbs that are clients share: no settings of a store, and the names of errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pystore.cli.verbs import Session, usage
from pystore.errors import NotFound

__all__ = ["client_errors", "no_settings"]


def no_settings(s: Session) -> None:
    """Raises: BadArgument for settings, which only a broker or a store has."""
    if s.conf is not None or s.sets:
        given = ", ".join(s.sets) or str(s.conf)
        raise usage(
            f"a client has no settings of --conf or --set: {given}", "leave it out, see --help"
        )


@contextlib.contextmanager
def client_errors(verb: str) -> Iterator[None]:
    """The client's errors as those that exit codes are made of. Raises: BadArgument, NotFound,
    ConnectionError."""
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
