"""The requests of the name server (docs/internals/wire.md#name-server): from commands to tables
and back."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.loop.turns import alone
from broker.namesrv.jsontext import compact, fastjson
from broker.namesrv.kv import ORDER_TOPICS, KvConfig, save
from broker.namesrv.registration import (
    BODY_MAX,
    RegistrationBody,
    data_version,
    is_packed,
    parse,
    route_rows,
)
from broker.namesrv.routes import (
    EXPIRY_MS,
    UNIT,
    UNIT_SUB,
    BrokerRegistration,
    MinIdChange,
    Routes,
)
from broker.namesrv.settings import NamesrvSettings
from broker.remoting.certificates import Certificates
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, Refused
from broker.wire.handlers import Handler, Peer
from pystore.errors import BadArgument
from pystore.files.javaproperties import parse_java_properties
from pystore.meta.configfiles import version_to_json

__all__ = ["Processor"]

_quiet = RateLimitedLogger(SafeLogger(__name__))

#: Longest registration that is read within a turn of the event loop.
_AT_ONCE = 8 << 10
#: Longest body of any other request.
_OTHER_MAX = 32 << 10
#: Topics whose rights change within a turn of the event loop.
_A_TURN = 1000

#: MQVersion.V4_9_4: callers from here on read JSON with quoted keys alone.
V4_9_4 = 401
_ABSENT = (
    "No topic route info in name server for the topic: {}"
    "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)


class Processor:
    """Serves requests over the tables. notify: is given the changes that brokers are to be told."""

    def __init__(
        self,
        settings: NamesrvSettings,
        routes: Routes,
        kv: KvConfig,
        notify: Callable[[list[MinIdChange]], None],
        certificates: Certificates,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._kv = kv
        self._notify = notify
        self._certificates = certificates
        self._saving = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._ready_s = time.monotonic() + settings.number("waitSecondsForService")
        self.apply_settings()

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.PUT_KV_CONFIG: self.put_kv,
            code.GET_KV_CONFIG: self.get_kv,
            code.DELETE_KV_CONFIG: self.delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self.list_kv,
            code.REGISTER_BROKER: self.register,
            code.UNREGISTER_BROKER: self.unregister,
            code.GET_ROUTEINFO_BY_TOPIC: self.route,
            code.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            code.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            code.GET_UNIT_TOPIC_LIST: self._of_unit(lambda flag: bool(flag & UNIT)),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self._of_unit(lambda flag: bool(flag & UNIT_SUB)),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._of_unit(
                lambda flag: flag & (UNIT | UNIT_SUB) == UNIT_SUB
            ),
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.GET_BROKER_MEMBER_GROUP: self.member_group,
            code.BROKER_HEARTBEAT: self.heartbeat,
        }

    def apply_settings(self) -> None:
        """Gives the tables the settings that they look at."""
        routes, flag = self._routes, self._settings.flag
        routes.switches.support_acting_master = flag("supportActingMaster")
        routes.switches.delete_topics = flag("deleteTopicWithBrokerRegistration")
        shown = flag("orderMessageEnable")
        routes.order_topics = self._kv.tables.get(ORDER_TOPICS, {}) if shown else {}
        routes.forget_all()

    # ---- routes ----

    def route(self, peer: Peer, command: Command) -> Command:
        topic = command.ext.get("topic", "")  # none is a name that nobody has, as upstream
        settings = self._settings
        if settings.flag("needWaitForService") and time.monotonic() < self._ready_s:
            raise Refused(ResponseCode.SYSTEM_ERROR, "name server not ready")
        quoted = command.version >= V4_9_4 or command.flag_of("acceptStandardJsonOnly")
        if command.flag_of("__ZONE_MODE") and command.ext.get("__ZONE_NAME", "").strip():
            body = self._route_of_zone(topic, command.ext["__ZONE_NAME"], quoted)
        else:
            body = self._routes.encoded_route(topic, quoted)
        if body is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, _ABSENT.format(topic))
        return command.reply(body=body)

    def _route_of_zone(self, topic: str, zone: str, quoted: bool) -> bytes | None:
        """Leaves out the brokers of other zones, unless their master is gone."""
        route = self._routes.route(topic)
        if route is None:
            return None
        away = [
            each
            for each in route["brokerDatas"]
            if 0 in each["brokerAddrs"] and each.get("zoneName", "").lower() != zone.lower()
        ]
        names = {each["brokerName"] for each in away}
        addresses = {address for each in away for address in each["brokerAddrs"].values()}
        for member in ("brokerDatas", "queueDatas"):
            route[member] = [each for each in route[member] if each["brokerName"] not in names]
        filters = route["filterServerTable"]
        route["filterServerTable"] = {a: of for a, of in filters.items() if a not in addresses}
        return compact(route) if quoted else fastjson(route)

    def cluster_info(self, peer: Peer, command: Command) -> Command:
        return command.reply(body=compact(self._routes.cluster_info()))

    def member_group(self, peer: Peer, command: Command) -> Command:
        group = self._routes.member_group(command.text("clusterName"), command.text("brokerName"))
        return command.reply(body=compact({"brokerMemberGroup": group}))

    # ---- brokers ----

    def register(self, peer: Peer, command: Command) -> Command | Coroutine[Any, Any, Command]:
        data = bytes(command.body)
        if len(data) > BODY_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"a registration has {BODY_MAX} bytes at most, not {len(data)}: set"
                " enableSplitRegistration=true at the broker",
            )
        crc = command.number("bodyCrc32", 0)
        if crc and crc != zlib.crc32(data) & 0x7FFFFFFF:
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        packed = is_packed(data, command.flag_of("compressed"))
        given = data, packed, command.version
        if len(data) <= _AT_ONCE and not packed:
            return self._registered(command, _registration(peer, command, _parsed(*given)))
        return self._register_later(peer, command, given)

    async def _register_later(
        self, peer: Peer, command: Command, given: tuple[bytes, bool, int]
    ) -> Command:
        """Reads a large body beside the event loop, one after the other."""
        async with self._reading:
            body = await asyncio.to_thread(_parsed, *given)
            registration = _registration(peer, command, body)
            answer = self._registered(command, registration)
            while self._routes.take_more(registration):
                await asyncio.sleep(0)
            if peer.closed:  # what was taken since goes, too
                self._notify(self._routes.peer_closed(peer))
                await self._drop_all()
        return answer

    async def _drop_all(self) -> None:
        while self._routes.drop_more():
            await asyncio.sleep(0)

    def _registered(self, command: Command, given: BrokerRegistration) -> Command:
        done = self._routes.register(given)
        if done is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if self._routes.is_full:
            _quiet.warning(
                "full",
                "The name server holds %d MB of registrations: it takes no more topics or brokers",
                self._routes.size >> 20,
            )
        if done.change is not None:
            self._notify([done.change])
        order = None
        if self._settings.flag("returnOrderTopicConfigToBroker"):
            order = self._kv.listed(ORDER_TOPICS)
        ext = {"haServerAddr": done.ha_address, "masterAddr": done.master_address}
        return command.reply(ext=ext, body=order or b"")

    async def unregister(self, peer: Peer, command: Command) -> Command:
        key = (
            command.text("clusterName"),
            command.text("brokerAddr"),
            command.text("brokerName"),
            _broker_id(command),
        )
        self._notify(self._routes.unregister([key]))
        await self._drop_all()
        return command.reply()

    def heartbeat(self, peer: Peer, command: Command) -> Command:
        self._routes.sign_of_life(
            command.text("clusterName"), command.text("brokerName"), command.text("brokerAddr")
        )
        return command.reply()

    def query_data_version(self, peer: Peer, command: Command) -> Command:
        who = command.text("clusterName"), command.text("brokerName"), command.text("brokerAddr")
        asked = None
        _check_size(command)
        if command.body:
            try:
                asked = data_version(bytes(command.body))
            except ValueError as bad:
                text = f"the data version cannot be read: {bad}"
                raise Refused(ResponseCode.SYSTEM_ERROR, text) from None
        changed = self._routes.is_changed(*who, asked)
        self._routes.sign_of_life(*who)
        known = self._routes.version_of(*who)
        body = compact(version_to_json(known)) if known is not None else b""
        return command.reply(ext={"changed": changed}, body=body)

    async def wipe_write_perm(self, peer: Peer, command: Command) -> Command:
        count = await self._change_write_perm(command.text("brokerName"), False)
        return command.reply(ext={"wipeTopicCount": count})

    async def add_write_perm(self, peer: Peer, command: Command) -> Command:
        count = await self._change_write_perm(command.text("brokerName"), True)
        return command.reply(ext={"addTopicCount": count})

    async def _change_write_perm(self, name: str, may_write: bool) -> int:
        """Changes the rights of a broker's topics; other requests have their turn in between."""
        count, topics = 0, self._routes.topics_of(name)
        for at in range(0, len(topics), _A_TURN):
            count += self._routes.change_write_perm(name, may_write, topics[at : at + _A_TURN])
            await asyncio.sleep(0)
        return count

    # ---- topics ----

    @alone
    async def _topic_list(
        self,
        command: Command,
        setting: str,
        chosen: Callable[[list[str]], list[str]] = lambda topics: topics,
    ) -> Command:
        """Answers with a list of topics. chosen: picks some of the topics. Other requests have
        their turn in between."""
        if not self._settings.flag(setting):
            raise Refused(ResponseCode.SYSTEM_ERROR, "disable")
        topics, parts = self._routes.topics(), []
        for at in range(0, len(topics), _A_TURN):
            parts.append(compact(chosen(topics[at : at + _A_TURN]))[1:-1])
            await asyncio.sleep(0)
        listed = b",".join(part for part in parts if part)
        return command.reply(body=b'{"topicList":[' + listed + b"]}")

    async def all_topics(self, peer: Peer, command: Command) -> Command:
        return await self._topic_list(command, "enableAllTopicList")

    async def topics_of_cluster(self, peer: Peer, command: Command) -> Command:
        of_cluster = partial(self._routes.of_cluster, command.text("cluster"))
        return await self._topic_list(command, "enableTopicList", of_cluster)

    def system_topics(self, peer: Peer, command: Command) -> Command:
        topics, address = self._routes.system_topics()
        made: dict[str, Any] = {"topicList": topics}
        if address is not None:
            made = {"brokerAddr": address, "topicList": topics}
        return command.reply(body=compact(made))

    def _of_unit(self, wanted: Callable[[int], bool]) -> Handler:
        async def answer(peer: Peer, command: Command) -> Command:
            flagged = partial(self._routes.flagged, wanted)
            return await self._topic_list(command, "enableTopicList", flagged)

        return answer

    def delete_topic(self, peer: Peer, command: Command) -> Command:
        self._routes.delete_topic(command.text("topic"), command.text("clusterName", ""))
        return command.reply()

    def register_topic(self, peer: Peer, command: Command) -> Command:
        topic = command.text("topic")
        _check_size(command)
        try:
            rows = route_rows(bytes(command.body)) if command.body else {}
        except ValueError as bad:
            text = f"the route of {topic} cannot be read: {bad}"
            raise Refused(ResponseCode.SYSTEM_ERROR, text) from None
        self._routes.register_topic(topic, rows)
        return command.reply()

    # ---- key-value configuration ----

    async def put_kv(self, peer: Peer, command: Command) -> Command:
        names = [command.ext.get(name) for name in ("namespace", "key", "value")]
        if not names[0] or not names[1] or names[2] is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        try:
            self._kv.put(names[0], names[1], names[2])
        except BadArgument as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, bad.text) from None
        await self._kv_changed(names[0])
        return command.reply()

    async def delete_kv(self, peer: Peer, command: Command) -> Command:
        namespace = command.text("namespace")
        self._kv.delete(namespace, command.text("key"))
        await self._kv_changed(namespace)
        return command.reply()

    async def _kv_changed(self, namespace: str) -> None:
        """Answers when the disk has the change: one that was acknowledged stays."""
        if namespace == ORDER_TOPICS:
            self.apply_settings()
        async with self._saving:
            if self._kv.path is not None:
                await asyncio.to_thread(save, self._kv.path, self._kv.dumped())

    def get_kv(self, peer: Peer, command: Command) -> Command:
        namespace, key = command.text("namespace"), command.text("key")
        value = self._kv.get(namespace, key)
        if value is None:
            text = f"No config item, Namespace: {namespace} Key: {key}"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, text)
        return command.reply(ext={"value": value})

    def list_kv(self, peer: Peer, command: Command) -> Command:
        namespace = command.text("namespace")
        body = self._kv.listed(namespace)
        if body is None:
            text = f"No config item, Namespace: {namespace}"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, text)
        return command.reply(body=body)

    # ---- the name server's own settings ----

    def get_config(self, peer: Peer, command: Command) -> Command:
        return command.reply(body=self._settings.dumped().encode())

    async def update_config(self, peer: Peer, command: Command) -> Command:
        _check_size(command)
        try:
            given = parse_java_properties(bytes(command.body).decode())
            changes = {name: text for name, (_, text) in given.items()}
            if not self._settings.black_list.isdisjoint(changes):
                raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            await self._certificates.change(changes)
            self._settings.update(changes)
        except BadArgument as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, bad.text) from None
        except ValueError as bad:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {bad}") from None
        self.apply_settings()
        path = self._settings.text("configStorePath")
        if path:
            async with self._saving:
                await asyncio.to_thread(save, Path(path), self._settings.dumped().encode())
        return command.reply()


def _check_size(command: Command) -> None:
    """Checks the size of a body that is not a registration. Raises: Refused."""
    if len(command.body) > _OTHER_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the body of request {command.code} has {len(command.body)} bytes,"
            f" {_OTHER_MAX} are allowed",
        )


def _parsed(data: bytes, compressed: bool, version: int) -> RegistrationBody:
    """Reads the body of a registration. Raises: Refused."""
    try:
        return parse(data, compressed, version)
    except ValueError as bad:
        text = f"the registration cannot be read: {bad}"
        raise Refused(ResponseCode.SYSTEM_ERROR, text) from None


def _broker_id(command: Command) -> int:
    number = command.number("brokerId")
    if number < 0:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"a broker's id is not negative: {number}")
    return number


def _registration(peer: Peer, command: Command, body: RegistrationBody) -> BrokerRegistration:
    acting = command.flag_of("enableActingMaster")
    return BrokerRegistration(
        cluster=command.text("clusterName"),
        name=command.text("brokerName"),
        address=command.text("brokerAddr"),
        broker_id=_broker_id(command),
        version=body.version,
        topics=body.topics,
        ha_address=command.text("haServerAddr", ""),
        zone=command.ext.get("__ZONE_NAME") or None,
        timeout_ms=command.number("heartbeatTimeoutMillis", EXPIRY_MS),
        acting_master=acting if command.ext.get("enableActingMaster") else None,
        mapping=body.mapping,
        filters=body.filters,
        peer=peer,
        body_size=len(command.body),
    )
