"""Makes docs/codes.md from the handler tables of the broker and of the name server.

python tools/gen_codes.py           writes it
python tools/gen_codes.py --check   changes nothing, exits 1 when it is stale

What is served and where comes from the tables; what differs from upstream stands in DIFFERS below.
"""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import generated
from upstream_codes import ONLY_4_9, SINCE_5_5, UPSTREAM_5_3

from broker.grpc.acking import Acking
from broker.grpc.clients import ClientMethods
from broker.grpc.lite import LiteMethods
from broker.grpc.receiving import Receiving
from broker.grpc.relay import Relay
from broker.grpc.routes import RouteMethods
from broker.grpc.schema import METHODS, SERVICE
from broker.grpc.sending import Sending
from broker.grpc.transactions import Ending
from broker.namesrv.kv import KvConfig
from broker.namesrv.processor import Processor
from broker.namesrv.routes import Routes
from broker.namesrv.settings import NamesrvSettings
from broker.processors import all_handlers
from broker.remoting.certificates import Certificates
from broker.remoting.tls import TlsSettings
from broker.services.context import Services
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.handlers import Handler
from pystore.settings import load

PAGE = generated.ROOT / "docs" / "codes.md"

#: The core of the broker answers what needs no decision: its rooms.
_CORE = generated.ROOT / "csrc"

#: Of the broker: what a caller could notice.
DIFFERS: dict[int, str] = {
    10: "a topic without the right to write is refused; timers: see [broker.md](broker.md)",
    310: "as 10",
    320: "as 10; no body of another layout is stored",
    25: "unknown names, invalid values and settings that only a start applies are refused by name",
    26: "settings without effect here are listed, too, sizes of thread pools as upstream works them"
    " out; `brokerIP2` is `brokerIP1` where it is not set, and `rocketmqHome` is missing where"
    " neither it nor `ROCKETMQ_HOME` is",
    12: "`indexLastUpdatePhyoffset` is where the index ends, not where its last message begins;"
    " `indexType` is 5.5.0's, and tags are there with `indexTagsEnable`",
    27: "the same as 329",
    28: "pools, page cache and timers are named with the values of an idle broker",
    314: "a group that is not there is made, or refused where groups are not made by themselves",
    907: "a master without slaves",
    306: "retention takes queues and log together; mappings of [static topics]"
    "(internals/static-topics.md) lose their empty parts at once",
    329: "runs retention once, by the rules of the settings",
    50: "for administrators: [internals/access.md](internals/access.md)",
    51: "as 50",
    53: "as 50",
    54: "as 50; secrets are not answered",
    3004: "passwords are answered sealed, and in clear to addresses of `passwordsFor` alone",
    3005: "passwords are not answered",
    370: "refused with 604 when no such message waits, which upstream does not look at",
    200051: "[internals/pop.md](internals/pop.md)",
    200053: "a delivery that is over is refused with 208",
}

#: Of the name server; docs/namesrv.md has the rest.
NAMES_DIFFER: dict[int, str] = {
    104: "takes effect before it is answered",
    105: "brokers in the order of their registration",
    106: "quoted keys for every caller",
    318: "a value of the wrong kind is refused with a reason",
    901: "quoted keys for every caller",
}

#: Requests that go from the broker to clients and name servers, or between name server and broker.
_SENT = {
    39: "to producers: what became of a transaction",
    40: "to consumers: others of their group came or went",
    220: "to consumers: go to these offsets (`useServerSideResetOffset=false`)",
    221: "to consumers, for 223: where are you",
    307: "to consumers, handed on",
    309: "to consumers, handed on",
    326: "to producers: the reply to their request",
    103: "to name servers",
    104: "to name servers, at a stop",
    105: "to name servers, for 400",
    322: "to name servers, when `forceRegister=false`",
    904: "to name servers, when `enableSlaveActingMaster=true`",
    905: "from name servers to brokers, with `notifyMinBrokerIdChanged`",
}

#: What upstream's other codes belong to, by first and last code.
FAMILIES: tuple[tuple[int, int, str], ...] = (
    (13, 13, "in upstream's list, served by no version"),
    (22, 23, "in upstream's list, served by no version"),
    (47, 47, "in upstream's list, served by no version"),
    (60, 61, "timers"),
    (209, 214, "in upstream's list, served by no version"),
    (301, 302, "filter servers, which 4.3 removed"),
    (354, 355, "queues and configuration in RocksDB"),
    (370, 370, "timers: recall one"),
    (902, 908, "replication"),
    (1001, 1013, "controller"),
    (2001, 2004, "cold data: throttling and read-ahead"),
    (200050, 200056, "POP"),
    (200070, 200079, "lite topics"),
    (200151, 200151, "POP"),
)


def family_of(code: int) -> str:
    """Returns the family of a code. Raises: SystemExit for a code that no family has."""
    for first, last, what in FAMILIES:
        if first <= code <= last:
            return what
    raise SystemExit(f"gen_codes.py: say in FAMILIES what code {code} belongs to")


def handlers_of_broker() -> Mapping[int, Handler]:
    """Returns the handlers; the tables need no running broker: only the settings are looked at when
    they are made."""
    services = SimpleNamespace(settings=load(None, {}))
    return all_handlers(cast(Services, services))


async def handlers_of_namesrv() -> Mapping[int, Handler]:
    settings = NamesrvSettings(None, {}, None)
    certificates = Certificates(TlsSettings())
    tables = Routes(lambda: 0), KvConfig(None)
    return Processor(settings, *tables, lambda changes: None, certificates).handlers()


def methods_of_grpc() -> dict[str, Handler]:
    """Returns the methods by name. A group's table names its methods without looking at anything
    else."""
    made: dict[str, Handler] = {}
    for group in (RouteMethods, Sending, Ending, ClientMethods, LiteMethods, Receiving, Acking):
        made.update(group.handlers(cast(Any, object.__new__(group))))
    return made


def grpc_lines(methods: Mapping[str, Handler]) -> list[str]:
    """Returns the section on gRPC."""
    lines = [
        "", f"## gRPC: {len(methods)} methods", "",
        f"Of `{SERVICE}`, on a port of its own ([grpc.md](grpc.md)). The others of its schema are",
        "answered as UNIMPLEMENTED, as Apache's proxy does.", "",
        "| method | served in |", "|---|---|",
    ]  # fmt: skip
    lines += [
        f"| `{name}` | [{shown(path_of(made))}][] |" for name, made in sorted(methods.items())
    ]
    absent = ", ".join(f"`{name}`" for name in sorted(set(METHODS) - set(methods)))
    return [*lines, "", f"Unimplemented: {absent}."]


def relay_lines() -> list[str]:
    """Returns the section on the proxy's port for clients of the remoting protocol."""
    codes = ", ".join(
        f"{int(code)} `{RequestCode(code).name}`"
        for code in sorted(Relay.handlers(cast(Any, object.__new__(Relay))))
    )
    return [
        "", "## Relayed by the proxy", "",
        "`pystore proxy` takes these of remoting clients ([grpc.md](grpc.md#remoting-clients)). It",
        "answers 105 itself and hands the rest to brokers:", "",
        *textwrap.wrap(f"{codes}.", 100),
    ]  # fmt: skip


def hot_codes() -> dict[int, str]:
    """Returns the codes that `serve_frame` of conn.c hands to a function of the core, with the file
    of that function. Raises: SystemExit when the switch is not there or a function is in no
    file."""
    numbers = dict(
        re.findall(
            r"#define (PS_REQUEST_\w+) (\d+)", (_CORE / "core" / "core.h").read_text("utf-8")
        )
    )
    switch = re.search(
        r"\nstatic int serve_frame\(.*?\n}\n",
        (_CORE / "remoting" / "conn.c").read_text("utf-8"),
        re.DOTALL,
    )
    found: dict[int, str] = {}
    groups = r"((?:\s*case PS_REQUEST_\w+:)+)\s*return (\w+)\("
    for cases, function in re.findall(groups, switch[0] if switch else ""):
        files = [
            path
            for path in sorted(_CORE.glob("*/*.c"))
            if re.search(rf"^int {function}\(", path.read_text("utf-8"), re.MULTILINE)
        ]
        if len(files) != 1:
            raise SystemExit(f"gen_codes.py: {function} of conn.c stands in {len(files)} files")
        for name in re.findall(r"PS_REQUEST_\w+", cases):
            found[int(numbers[name])] = files[0].relative_to(generated.ROOT).as_posix()
    if not found:
        raise SystemExit("gen_codes.py: conn.c has no serve_frame with codes in it")
    return found


def path_of(handler: Any) -> str:
    return f"{str(handler.__module__).replace('.', '/')}.py"


def shown(path: str) -> str:
    """Returns what a link to a file is called."""
    return path.removeprefix("broker/") if path.endswith(".py") else Path(path).name


def rows_of(
    handlers: Mapping[int, Handler], differs: Mapping[int, str], hot: Mapping[int, str]
) -> list[str]:
    """Returns a table that fits 80 columns, then the remarks on its codes. Links of the places
    stand at the end of the page."""
    unknown = set(differs) - set(map(int, handlers))
    if unknown:
        raise SystemExit(f"gen_codes.py speaks of codes that nobody serves: {sorted(unknown)}")
    lines = ["| code | name | served in |", "|---|---|---|"]
    for code, handler in sorted(handlers.items()):
        place = f"[{shown(path_of(handler))}][]"
        if code in hot:
            place = f"[{shown(hot[code])}][], {place}"
        lines.append(f"| {int(code)} | `{RequestCode(code).name}` | {place} |")
    lines += ["", "What differs from upstream:", ""]
    for code, what in sorted(differs.items()):
        remark = f"- {code} `{RequestCode(code).name}`: {what}"
        lines += textwrap.wrap(remark, 100, subsequent_indent="  ", break_long_words=False)
    return lines


def links_of(hot: Mapping[int, str], *tables: Mapping[Any, Handler]) -> list[str]:
    """Returns the definitions of the links that `rows_of` names."""
    paths = {path_of(handler) for table in tables for handler in table.values()}
    paths |= set(hot.values())
    return sorted(f"[{shown(path)}]: ../{path}" for path in paths)


def page_text() -> str:
    """Returns what docs/codes.md must hold."""
    broker, names = handlers_of_broker(), asyncio.run(handlers_of_namesrv())
    hot = hot_codes()
    answers = ", ".join(f"{each.value} `{each.name}`" for each in ResponseCode)
    lines = [
        "# Request codes",
        "",
        "Generated by `tools/gen_codes.py` from the handler tables of the broker and of the name",
        "server. Names are upstream's. A code that is not here is answered with 3,",
        "`REQUEST_CODE_NOT_SUPPORTED`, and the connection goes on.",
        "",
        f"## Broker: {len(broker)} codes",
        "",
        "Where a C file is named, it answers what needs no decision, and the Python file the rest.",
        "",
        *rows_of(broker, DIFFERS, hot),
        "",
        f"## Name server: {len(names)} codes",
        "",
        *rows_of(names, NAMES_DIFFER, {}),
        "",
        "## Sent by the broker",
        "",
        "| code | name | what |",
        "|---|---|---|",
    ]
    for code, what in sorted(_SENT.items()):
        if (
            code == RequestCode.CHECK_TRANSACTION_STATE
            and RequestCode.END_TRANSACTION not in broker
        ):
            continue
        lines.append(f"| {code} | `{RequestCode(code).name}` | {what} |")
    upstream = ONLY_4_9 | UPSTREAM_5_3 | SINCE_5_5
    absent = sorted(set(upstream) - set(map(int, broker)) - set(map(int, names)) - set(_SENT))
    lines += [
        "",
        f"## Not served: {len(absent)} of upstream's {len(upstream)} codes",
        "",
        "All that 5.3.3 and 4.9.7 name, and neither table above has.",
        "",
        "| code | name | what it belongs to |",
        "|---|---|---|",
    ]
    lines += [f"| {code} | `{upstream[code]}` | {family_of(code)} |" for code in absent]
    methods = methods_of_grpc()
    lines += [*grpc_lines(methods), *relay_lines()]
    lines += ["", "## Answers", "", *textwrap.wrap(f"{answers}.", 100), ""]
    lines += [*links_of(hot, broker, names, methods), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(generated.main({PAGE: page_text()}, __doc__, sys.argv[1:]))
