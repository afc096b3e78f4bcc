"""Settings of the running broker, and housekeeping on demand: 25, 26, 27, 306, 316, 329."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from broker.access.authorizer import is_loopback
from broker.processors.bodies import check_size
from broker.services.context import Services
from broker.services.names import is_system_topic
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import StoreError
from pystore.files.javaproperties import parse_java_properties
from pystore.meta.configfiles import version_to_json
from pystore.settings import TABLE
from pystore.store import hosting

__all__ = ["ConfigProcessor"]

#: Bytes of a change of settings. Upstream's whole broker.conf has some thousand.
_BODY_MAX = 16 << 10


class ConfigProcessor:
    def __init__(self, s: Services) -> None:
        self.s = s

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
            RequestCode.GET_BROKER_CONFIG: self.get,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean,
            RequestCode.TRIGGER_DELETE_FILES: self.clean,
        }

    def update(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        check_size(command, _BODY_MAX)
        try:
            changes = {
                name: value
                for name, (_, value) in parse_java_properties(bytes(command.body).decode()).items()
            }
        except ValueError as bad:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the body is not a list of name=value lines: {bad}"
            ) from None
        if not changes:
            raise Refused(ResponseCode.SYSTEM_ERROR, "string2Properties error: the body is empty")
        named = [name for name in changes if name in self._black_list()]
        if named:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {named[0]}"
            )
        self._check_source(peer, changes)
        return self._updated(command, changes)

    def _check_source(self, peer: Peer, changes: Iterable[str]) -> None:
        """Checks who asks: without access control a client on another host may not take the broker
        over. Raises: Refused."""
        access = self.s.access
        if (access is not None and access.is_on) or is_loopback(peer):
            return
        named = [name for name in changes if name in TABLE and TABLE[name].by_request == "own host"]
        if named:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{named[0]} can be changed from the broker's own host only, while access control"
                " is off: see docs/access.md",
            )

    def _black_list(self) -> set[str]:
        """Returns the black list, on which configBlackList stands whatever it says: who may change
        it may change everything."""
        never = {row.name for row in TABLE.values() if row.by_request == "nobody"}
        return never | set(str(self.s.settings["configBlackList"]).split(";"))

    async def _updated(self, command: Command, changes: dict[str, str]) -> Command:
        try:
            if self.s.certificates is not None:
                await self.s.certificates.change(changes)
            if changes:
                await self.s.settings.update_and_keep(changes)
        except StoreError as failed:
            raise Refused(ResponseCode.SYSTEM_ERROR, failed.text) from None
        return command.reply()

    def get(self, peer: Peer, command: Command) -> Command:
        version = mqjson.dumps(version_to_json(self.s.settings.version)).decode()
        text = self.s.settings.as_text(Path(self.s.store.path))
        return command.reply(ext={"version": version}, body=text.encode())

    async def clean_queues(self, peer: Peer, command: Command) -> Command:
        """Takes parts of logical queues away that are empty. Queue files are deleted by retention,
        together with log files."""
        if self.s.static is not None:
            await self.s.static.clean()
        return command.reply()

    def clean_topics(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        """Deletes the queues that no longer belong to a topic."""

        async def run() -> Command:
            found = await asyncio.to_thread(self.s.store.topics)
            for name in found:
                # Looked up at its turn: a send may have made it meanwhile.
                if name not in self.s.topics and not is_system_topic(name):
                    await asyncio.to_thread(hosting.delete_queues, self.s.store, name)
            return command.reply()

        return run()

    def clean(self, peer: Peer, command: Command) -> Coroutine[Any, Any, Command]:
        async def run() -> Command:
            await asyncio.to_thread(self.s.store.clean)
            return command.reply()

        return run()
