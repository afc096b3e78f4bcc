"""A whole copy of a running broker's store: a slave without ports follows the master until it has
all, takes over what tools have made there, and ends (docs/replication.md#a-copy-of-a-store)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.access.signature import Credentials
from broker.loop.reasons import NEEDS_RIGHTS, NOT_A_BROKER
from broker.remoting.client import RemotingClient, parse_address
from broker.services.broker_asker import BrokerAsker
from broker.services.config import served
from broker.services.context import Services
from broker.services.replication.slave import Diverged, HaSlave
from broker.startup import Options, open_ground, open_services
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import address_text
from pystore import Reader
from pystore.errors import BadArgument, DiskFull, NotAStore, StoreError
from pystore.files import FILE_MODE, make_folders, read_file, replace_file
from pystore.files.javaproperties import parse_java_properties
from pystore.native import lib
from pystore.settings import TABLE, load

__all__ = ["Clone", "CloneReport", "ForeignLog", "MasterFacts", "NotServed"]

#: Settings of the master that a copy of its files depends on.
_ALIKE = (
    "brokerClusterName", "brokerName", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "maxHashSlotNum", "maxIndexNum", "messageDelayLevel", "timerPrecisionMs",
)  # fmt: skip
_NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
#: Stands in a folder that a clone made, and names its master. Neither make of broker reads it.
MARK = "clone.json"
#: A connection that ends before it brought anything is tried again so often.
_TRIES = 3
_RETRY_S = 0.5
#: How long the master has for an answer.
_ASK_S = 3.0
_LOOK_S = 0.2
#: Queues and index beside the log, and what is put meanwhile: a twentieth of it.
_BESIDE = 20


class ForeignLog(BadArgument):
    """The folder holds a log that is not the master's, has another layout, or was not made by a
    clone."""


class NotServed(ConnectionError):
    """The master's port for slaves cannot be reached, or ends the connection."""


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """address, ha: ``host:port`` of its main port and of that for slaves. begin, end: of its log.
    settings: those that a copy must have, too."""

    address: str
    ha: str
    begin: int
    end: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CloneReport:
    """What a finished copy has. problems: what the master did not answer."""

    begin: int
    end: int
    topics: int
    groups: int
    problems: tuple[str, ...]


class Clone:
    """One run. given: settings over the master's. ha: of the port for slaves, when it is not the
    one that the master names on its host. existing: whether the folder may hold a store that no
    clone made, such as a slave's."""

    def __init__(
        self, master: str, folder: Path, given: Mapping[str, object], *, ha: str = "",
        credentials: Credentials | None = None, tls: ssl.SSLContext | None = None,
        existing: bool = False,
    ) -> None:  # fmt: skip
        self._master, self._folder, self._given, self._ha = master, folder, dict(given), ha
        self._existing = existing
        self._credentials, self._tls = credentials, tls

    async def facts(self) -> MasterFacts:
        """Asks the master for what a clone has to know. Raises: BadArgument when it is a slave or
        refuses, OSError, TimeoutError, ValueError."""
        async with RemotingClient(tls=self._tls) as client:
            text = await self._ask(client, RequestCode.GET_BROKER_CONFIG)
            runtime = await self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
        given = parse_java_properties(text.decode(errors="replace"))
        found = {name: value for name, (_, value) in given.items()}
        if found.get("brokerRole") == "SLAVE":
            raise BadArgument(f"{self._master} is a slave; copy its master")
        table = mqjson.loads(runtime)["table"]
        host, port = parse_address(self._master)
        ha_port = int(found.get("haListenPort") or 0) or port + 1
        return MasterFacts(
            self._master,
            self._ha or address_text((host, ha_port)),
            int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]),
            {name: found[name] for name in _ALIKE if name in found and name in TABLE},
        )  # fmt: skip

    async def _ask(self, client: RemotingClient, code: int) -> bytes:
        asker = BrokerAsker(client, self._credentials, trusted="*")
        answer = await asker.request(self._master, Command(code), _ASK_S)
        if answer.code != ResponseCode.SUCCESS:
            error = BadArgument(f"{self._master} refused request {code}: {answer.remark}")
            is_broker = answer.code != _NOT_SUPPORTED
            error.next_step = NEEDS_RIGHTS if is_broker else NOT_A_BROKER
            raise error
        return bytes(answer.body)

    # ---- the folder ----

    def check_folder(self, facts: MasterFacts) -> int:
        """Returns how many bytes are still to come; changes nothing.

        Raises: NotAStore for a folder that holds something else, ForeignLog, DiskFull, StoreError
        (a store that cannot be read).
        """
        folder, have = self._folder, 0
        if folder.exists() and not folder.is_dir():
            raise NotAStore("not a directory", str(folder))
        log = folder / "commitlog"
        if log.is_dir():
            self._check_log(facts)
            have = sum(each.stat().st_blocks * 512 for each in log.iterdir())
        elif folder.is_dir() and any(folder.iterdir()):
            error = NotAStore("this directory is not empty and holds no store", str(folder))
            error.next_step = "name a new directory, or one that an earlier clone began"
            raise error
        left = max(0, facts.end - facts.begin - have)
        exists = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        free, need = shutil.disk_usage(exists).free, left + left // _BESIDE
        if need > free:
            raise DiskFull(
                f"the copy takes another {need} bytes, and the disk has {free} left", str(folder)
            )
        return left

    def _check_log(self, facts: MasterFacts) -> None:
        """Looks at the log in the folder before anything there is opened for writing, which would
        recover it. Raises: ForeignLog, StoreError."""
        with Reader(self._folder) as reader:
            end = reader.info().log_max
        if end > facts.end:
            raise self._foreign(f"its log ends at {end}, the master's at {facts.end}")
        if end == 0 or self._existing:
            return
        made = self._mark()
        name = facts.settings.get("brokerName", "")
        if made is None:
            error = self._foreign("it holds a store that no clone made")
            error.next_step = (
                "name a new directory; --existing goes on with a store that follows this master"
            )
            raise error
        if made != name:
            raise self._foreign(f"it is a clone of {made!r}, and the master is {name!r}")

    def _foreign(self, why: str) -> ForeignLog:
        error = ForeignLog(
            f"the directory is not a copy of {self._master}: {why}", str(self._folder)
        )
        error.next_step = "name a new directory, or keep this store aside"
        return error

    def _mark(self) -> str | None:
        """Returns the broker name in the mark; None when the folder has no valid mark."""
        data = read_file(self._folder / MARK)
        try:
            return str(json.loads(data)["brokerName"]) if data is not None else None
        except (ValueError, KeyError, TypeError):
            return None

    def _set_mark(self, facts: MasterFacts) -> None:
        make_folders(self._folder, FILE_MODE)
        made = {"brokerName": facts.settings.get("brokerName", ""), "master": self._master}
        replace_file(self._folder / MARK, json.dumps(made).encode(), keep_old=False)

    def _options(self, facts: MasterFacts) -> Options:
        own: dict[str, object] = {
            "brokerRole": "SLAVE", "brokerId": "1", "listenPort": "0", "namesrvAddr": None,
            "bindAddress": "127.0.0.1", "haMasterAddress": None, "aclEnable": "false",
            "authenticationEnabled": "false", "authorizationEnabled": "false",
            # Whoever copies has named the master.
            "trustedBrokers": "*",
        }  # fmt: skip
        if self._credentials is not None:
            own["innerClientAuthenticationCredentials"] = mqjson.dumps(
                {"accessKey": self._credentials.access_key,
                 "secretKey": self._credentials.secret_key}
            ).decode()  # fmt: skip
        given = {**facts.settings, **self._given, **own}
        given["mappedFileSizeCommitLog"] = facts.settings["mappedFileSizeCommitLog"]
        return Options(
            path=self._folder, conf=None, given=given, settings=served(load(None, given)), tls=None,
            client_tls=self._tls, now_ms=None, drain_s=0.0, grpc_port=None, proxy_conf=None,
        )  # fmt: skip

    # ---- copying ----

    async def run(self, facts: MasterFacts, progress: Callable[[int, int], None]) -> CloneReport:
        """Copies until the end that the master has by then. progress: told how many bytes of how
        many are there. Raises: ForeignLog, NotServed, OSError, StoreError."""
        async with contextlib.AsyncExitStack() as undo:
            options = self._options(facts)
            ground = await open_ground(options, undo)
            self._set_mark(facts)
            services = await open_services(options, ground, "127.0.0.1:0", None, undo)
            replication = services.replication
            assert replication is not None and replication.slave is not None
            replication.use_master(facts.address, facts.ha)
            try:
                async with self._following(replication.slave, facts) as follower:
                    begin, end = await self._copy(services, follower, progress)
                    # Offsets are not taken beyond the queues' ends.
                    await asyncio.to_thread(lib.ps_last_record, services.store.c_handle())
                    problems = await replication.take_all()
            except Diverged as other:
                raise self._foreign(str(other)) from None
            return CloneReport(
                begin, end, len(services.topics.all()), len(services.groups.all()),
                tuple(problems),
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _following(
        self, slave: HaSlave, facts: MasterFacts
    ) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.get_running_loop().create_task(self._follow(slave, facts))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _follow(self, slave: HaSlave, facts: MasterFacts) -> None:
        """Follows, again after a connection that broke, as long as each brings something."""
        fruitless = 0
        while True:
            before = slave.state()[0]
            try:
                await slave.follow_once()
            except TimeoutError as failed:
                why: Exception = failed
            except OSError as failed:
                if isinstance(failed, StoreError):
                    raise
                why = failed
            fruitless = 0 if slave.state()[0] > before else fruitless + 1
            if fruitless == _TRIES:
                raise NotServed(
                    f"{facts.ha} sends nothing: {why or type(why).__name__}. It is the port for"
                    " slaves (haListenPort); is this host among its trustedSlaves?"
                ) from None
            await asyncio.sleep(_RETRY_S)

    async def _copy(
        self, services: Services, follower: asyncio.Task[None], progress: Callable[[int, int], None]
    ) -> tuple[int, int]:
        """Returns where the log begins and ends. Raises: what ended the follower."""
        replication, store = services.replication, services.store
        assert replication is not None and replication.slave is not None
        looks = 2
        while looks > 1:  # the master's end was reached at once: what it puts comes as it puts it
            _, end = await replication.slave.master_range()
            looks = 0
            while (info := store.info()).log_max < end:
                progress(max(0, info.log_max - info.log_min), end - info.log_min)
                await asyncio.wait({follower}, timeout=_LOOK_S)
                if follower.done():
                    follower.result()
                looks += 1
        return info.log_min, info.log_max
