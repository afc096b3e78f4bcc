"""What the verbs of `pystore admin` share: whom they ask, and how times are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from broker.cli.clients import client_errors, delay_of, no_settings
from broker.cli.signing import CredentialsFile, TrustFile, credentials_of, tls_of
from pystore.cli.verbs import Session, parse_time, usage

__all__ = ["Group", "Topic", "admin_verb", "ms_of"]

_LAST_MS = (1 << 63) - 1

_Namesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv", "-n", metavar="HOST:PORT", help="Name servers. Default: NAMESRV_ADDR."
    ),
]
_Broker = Annotated[
    str | None,
    typer.Option("--broker", "-b", metavar="HOST:PORT", help="Ask this broker alone instead."),
]
_Cluster = Annotated[str | None, typer.Option(help="Only brokers of this cluster.")]

#: A completion must not keep anybody waiting.
_COMPLETION_S = 1.0


def _topics_that_begin(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the topics that a name server, or the broker, knows; nothing when it does not
    answer."""
    from broker.client.admin import Admin

    said = ctx.params
    try:
        with Admin(
            said.get("namesrv"), broker=said.get("broker"), request_timeout_s=_COMPLETION_S,
            credentials=credentials_of(said.get("credentials")), tls=tls_of(said.get("trust")),
        ) as admin:  # fmt: skip
            return [name for name in admin.topic_names() if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 whatever it is, the shell shows nothing of it
        return []


Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of a topic.", autocompletion=_topics_that_begin),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of a consumer group.")]


def admin_verb(work: Callable[..., int | None]) -> Callable[..., int | None]:
    """Makes a verb of a function that takes the session and an Admin: it gets the options that say
    whom to ask."""
    hints = get_type_hints(work, {**work.__globals__, "Admin": object}, include_extras=True)
    own = list(inspect.signature(work).parameters.values())[2:]

    def run(s: Session, **given: Any) -> int | None:
        from broker.client.admin import Admin

        no_settings(s)
        whom = {name: given.pop(name) for name in ("namesrv", "broker", "cluster")}
        credentials, trust = given.pop("credentials"), given.pop("trust")
        with client_errors("admin"):
            admin = Admin(
                whom["namesrv"], broker=whom["broker"], cluster=whom["cluster"],
                credentials=credentials_of(credentials), tls=tls_of(trust),
            )  # fmt: skip
            with admin:
                return work(s, admin, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    shared: dict[str, Any] = {
        "namesrv": _Namesrv, "broker": _Broker, "cluster": _Cluster,
        "credentials": CredentialsFile, "trust": TrustFile,
    }  # fmt: skip
    parameters = [
        inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Session),
        *(p.replace(kind=keyword, annotation=hints[p.name]) for p in own),
        *(inspect.Parameter(n, keyword, annotation=a, default=None) for n, a in shared.items()),
    ]
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def ms_of(text: str | None, option: str, default: int = _LAST_MS) -> int:
    """Reads a time: ms since 1970, ISO 8601, or a span back from now as 2h. Raises: BadArgument."""
    import re
    import time
    from datetime import timedelta

    if text is None:
        return default
    if re.fullmatch(r"[0-9]{1,8}[smhd]", text):
        back = delay_of(text, option)
        assert isinstance(back, timedelta)
        return max(0, time.time_ns() // 1_000_000 - int(back.total_seconds() * 1000))
    if text.startswith("+"):
        raise usage(f"{option} {text} lies ahead of now", "name a time that is over, as 2h")
    return parse_time(text, option)
