"""The program: typer's app made from the table of verbs, exit codes, and the way errors end."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from pystore import __version__, errors
from pystore.cli._output import Failure, Json, Output, Text
from pystore.cli._session import Session, parse_settings
from pystore.cli._verbs import all_verbs, broken, verbs_of
from pystore.cli.verbs import Verb
from pystore.configuration.problems import BadSettings

__all__ = ["EXIT_CODES", "command_of", "exit_code_of", "main"]

OK, NOTHING, USAGE, NO_STORE, LOCKED, DAMAGED, TROUBLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

EXIT_CODES: dict[int, str] = {
    OK: "done",
    NOTHING: "nothing found, or the result is empty",
    USAGE: "bad usage or input; nothing was stored",
    NO_STORE: "the path does not exist, is not a store, or is from a newer version",
    LOCKED: "another process has the store open for writing",
    DAMAGED: "damaged data, or something wrong, was found; what could be read was shown",
    TROUBLE: "disk, operating system or permission error",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

_BY_ERROR: tuple[tuple[type[errors.StoreError], int], ...] = (
    (errors.NotFound, NOTHING),
    (errors.BadArgument, USAGE),
    (errors.MessageIllegal, USAGE),
    (errors.ExpressionIllegal, USAGE),
    (errors.NotAStore, NO_STORE),
    (errors.NewerLayout, NO_STORE),
    (errors.StoreLocked, LOCKED),
    (errors.RecordDamaged, DAMAGED),
    (errors.FileSizeMismatch, DAMAGED),
    (errors.StrayFile, DAMAGED),
    (errors.MissingSegment, DAMAGED),
    (errors.Interrupted, INTERRUPTED),
)

#: By name: most verbs run without the modules of the last two.
_NETWORK_KINDS = {"ConnectionError", "TimeoutError", "gaierror", "SSLError"}
_OF_THE_NETWORK = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENOTCONN, errno.ETIMEDOUT}
)

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {n:>3}  {why}" for n, why in EXIT_CODES.items())

#: typer's and click's root of "the command line is wrong"; its module depends on the version.
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

#: The error's own next step is for Python.
_WHEN_LOCKED = (
    "end that process, or look inside with info, dump, get, query, tail or export, which need no"
    " lock; to a broker that runs there, send by a client"
)

_Conf = Annotated[
    Path | None,
    typer.Option("--conf", metavar="FILE", help="Settings file (broker.conf)."),
]
_ServerConf = Annotated[
    Path | None,
    typer.Option("--conf", "-c", metavar="FILE", help="Settings file (Java properties)."),
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Set one setting; overrides --conf. Repeatable."
    ),
]
_AsJson = Annotated[
    bool, typer.Option("--json", help="Write JSON to stdout, errors as JSON to stderr.")
]


def exit_code_of(error: BaseException) -> int:
    """Returns the documented exit code of an exception."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return TROUBLE


def _step_of(error: OSError) -> str:
    """Returns what to do next: as who raised it says (with_step), else by where it comes from."""
    notes = getattr(error, "__notes__", ())
    if notes:
        return str(notes[0])
    if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
        return "choose another port or address, or end who has it: ss -ltnp"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    of_a_server = error.errno is None and not error.filename  # nobody's system call
    if of_a_server or error.errno in _OF_THE_NETWORK or kinds & _NETWORK_KINDS:
        return "check the address and what listens there: pystore doctor HOST:PORT"
    return "check the path, your rights on it and the room on its disk"


def _failure_of(error: BaseException) -> Failure:
    code = exit_code_of(error)
    if isinstance(error, OSError) and not isinstance(error, errors.StoreError):
        place = f": {os.fsdecode(error.filename)}" if error.filename else ""
        text = f"{error.strerror or error}{place}"
        return Failure(type(error).__name__, text, _step_of(error), code)
    if not isinstance(error, errors.StoreError):
        return Failure(type(error).__name__, str(error), "", code)
    if isinstance(error, BadSettings) and len(error.problems) > 1:
        rows = [
            {"name": each.name, "where": each.where, "text": each.text, "mend": each.mend}
            for each in error.problems
        ]
        text = f"{len(rows)} settings are refused"
        return Failure(type(error).__name__, text, error.next_step, code, problems=rows)
    if isinstance(error, errors.StoreLocked):
        error.next_step = _WHEN_LOCKED
    place = f": {error.where}" if error.where else ""
    at = f" (at offset {error.offset})" if error.offset is not None else ""
    return Failure(
        type(error).__name__, f"{error.text}{place}{at}", error.next_step, code,
        code=error.code, where=error.where, offset=error.offset, pid=error.pid,
    )  # fmt: skip


def _guarded(out: Output, work: Callable[[], int | None]) -> int:
    """Runs a verb; returns its exit code, whatever happens in it."""
    try:
        try:
            code = work() or OK
            out.end()
            return code
        except (errors.StoreError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError):
                raise
            code = exit_code_of(error)
            out.end()  # what was found before the trouble is still true
            if code != INTERRUPTED:
                out.error(_failure_of(error))
            return code
        except OverflowError as error:
            out.error(
                Failure("Usage", f"a number is too large: {error}", "give a smaller one", USAGE)
            )
            return USAGE
        except UnicodeEncodeError:
            # Bytes of the command line that are no UTF-8 came in as half characters.
            out.error(Failure("Usage", "an argument is not valid UTF-8", "use --body-file", USAGE))
            return USAGE
    except BrokenPipeError:
        # The reader of the pipe has seen enough (`| head`). What is still buffered must not fail
        # a second time when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _command(verb: Verb) -> Callable[..., None]:
    """Makes the function that typer sees: the options that every verb has, then the verb's own."""
    run = verb.run
    hints = get_type_hints(run, include_extras=True)
    own = list(inspect.signature(run).parameters.values())[1:]
    about = "Directory of the store (contains commitlog/)."
    if verb.tiers:
        about = "Directory of the store (contains commitlog/), or a cold tier: folder or address."
    if not verb.store_needed:
        about = "Directory for the store. Default: temporary, removed at the end."
    store: Any = Annotated[
        Path if verb.store_needed else Path | None,
        # readable: the store says itself what stands in its way, with its own exit code.
        typer.Argument(metavar="STORE", help=about, show_default=False, readable=False),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    nothing: Any = inspect.Parameter.empty if verb.store_needed else None
    parameters = [
        *(
            []
            if verb.server
            else [inspect.Parameter("store", keyword, annotation=store, default=nothing)]
        ),
        *(p.replace(kind=keyword, annotation=hints[p.name]) for p in own),
        inspect.Parameter(
            "conf", keyword, annotation=_ServerConf if verb.server else _Conf, default=None
        ),
        inspect.Parameter("set_", keyword, annotation=_Set, default=None),
        inspect.Parameter("as_json", keyword, annotation=_AsJson, default=False),
    ]

    def command(**given: Any) -> None:
        out: Output = Json() if given.pop("as_json") else Text()
        path, conf, sets = given.pop("store", None), given.pop("conf"), given.pop("set_") or []

        def work() -> int | None:
            named = path is not None
            session = Session(path or Path(), conf, parse_settings(sets), out, named)
            code = run(session, **given)
            return DAMAGED if session.damaged else code

        code = _guarded(out, work)
        if code:
            raise typer.Exit(code)

    command.__name__ = verb.name
    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _failing(error: errors.StoreError) -> Callable[[typer.Context], None]:
    """Makes the function in the place of a verb that could not be imported."""

    def command(ctx: typer.Context) -> None:
        def work() -> int:
            raise error

        raise typer.Exit(_guarded(Json() if "--json" in ctx.args else Text(), work))

    return command


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pystore {__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    # The options of the program itself, beside those for completion that typer adds.
    pass


def _make_app(verbs: Iterable[Verb]) -> typer.Typer:
    made = typer.Typer(
        help=(
            "Inspect, follow and fill an Apache RocketMQ message store.\n\n"
            "The store may be live, stopped or crashed, and may belong to a Java broker: commands"
            " that read take no lock and write nothing. put, import and bench write, and have"
            " --dry-run."
            "\n\n\b\nExamples:\n"
            "  pystore info /data/rocketmq/store\n"
            "  pystore tail /data/rocketmq/store orders --follow\n"
            "  pystore dump /data/rocketmq/store --json | head\n"
            "  pystore put ./store orders 'hello' --create"
        ),
        epilog=_EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help is quick, and keeps the lines of the examples
        pretty_exceptions_enable=False,
    )
    made.callback()(_program)
    groups: dict[str, typer.Typer] = {"": made}
    for verb in verbs:
        *words, name = verb.name.split()
        for depth in range(1, len(words) + 1):
            group = " ".join(words[:depth])
            if group not in groups:
                # The help of an outer group comes first: "outer | inner".
                said = verb.group.split(" | ")[depth - 1 :] or [""]
                groups[group] = typer.Typer(
                    help=said[0], no_args_is_help=True, rich_markup_mode=None
                )
                groups[" ".join(words[: depth - 1])].add_typer(groups[group], name=words[depth - 1])
        groups[" ".join(words)].command(name, epilog=_EPILOG)(_command(verb))
    for name, error in broken.items():
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        made.command(name, hidden=True, context_settings=anything)(_failing(error))
    return made


@functools.cache
def command_of(word: str = "") -> Any:
    """Returns click's command of the program with the verbs of that word alone, which is a part of
    the work of making them all; without such verbs, of the whole program."""
    found = verbs_of(word) if word else ()
    if word and not found:
        return command_of()
    return typer.main.get_command(_make_app(found or all_verbs()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns the exit code. arguments: None takes those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Text that the terminal's encoding has no letter for is shown escaped.
            stream.reconfigure(errors="backslashreplace")
    completes = "_PYSTORE_COMPLETE" in os.environ
    command = command_of(given[0] if given and not completes else "")
    try:
        result = command.main(args=given, prog_name="pystore", standalone_mode=False)
    except _ClickError as error:
        if "--json" in given and error.format_message():
            step = f"see pystore {' '.join(given[:1])} --help"
            Json().error(Failure("Usage", error.format_message(), step, USAGE))
        else:
            error.show()
        return USAGE
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return result if isinstance(result, int) else OK
