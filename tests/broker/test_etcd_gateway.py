"""How etcd is reached: several members, silent ones among them, TLS, a user with a password; and
the same of Apache's controller."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from etcd_server import PROGRAM, Etcd, etcd, etcd_of_three
from listening import listening
from waiting import until, until_async

from broker import Broker, NameServer
from broker.remoting.client import RemotingClient
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings
from broker.services.config import Config
from broker.services.controlled.apache import ApacheController
from broker.services.controlled.etcd import EtcdController, Gateway
from broker.wire import codec
from broker.wire.codes import RequestCode
from pystore.settings import load

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (etcd-server)")

#: What may stand in a password.
USER, PASSWORD = "broker", "p@ss:w,rd/1%"
QUOTED = "p%40ss%3Aw%2Crd%2F1%25"
#: As long as a member of a group has for one answer (controlled/member.py), with 3 s of life.
SHORT_S = 0.9


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[list[Etcd]]:
    with etcd_of_three(tmp_path) as made:
        yield made


def address_of(members: list[Etcd]) -> str:
    return "etcd://" + ",".join(each.client for each in members)


async def until_read(gateway: Gateway) -> None:
    """Asks again and again, and has little time for each answer."""
    controller = EtcdController(gateway, "c", "b", Path("none"), 0o644, 3000)
    for _ in range(300):
        try:
            await asyncio.wait_for(controller.look(), SHORT_S)
        except (OSError, TimeoutError):
            continue
        return
    raise AssertionError("no member was reached")


@needs_etcd
async def test_members_that_are_dead_or_silent_are_passed_over(trio: list[Etcd]) -> None:
    gateway = Gateway(address_of(trio), patience_s=0.3)
    await until_read(gateway)
    assert trio[0].process is not None
    trio[0].process.send_signal(signal.SIGSTOP)
    try:
        await until_read(Gateway(address_of(trio), patience_s=0.3))
        # Also when the caller waits for less than the member is given.
        await until_read(Gateway(address_of(trio), patience_s=60))
    finally:
        trio[0].process.send_signal(signal.SIGCONT)
    trio[1].kill()
    await until_read(gateway)


async def _add_user(address: str, tls: ssl.SSLContext | None = None) -> None:
    gateway = Gateway(address, tls)
    for name, password, role in (("root", "root", "root"), (USER, PASSWORD, "brokers")):
        await gateway.ask("auth/user/add", {"name": name, "password": password})
        await gateway.ask("auth/role/add", {"name": role})
        await gateway.ask("auth/user/grant", {"user": name, "role": role})
    # /rocketmq/ as base64, and what comes after all keys that begin with it.
    may = {"permType": "READWRITE", "key": "L3JvY2tldG1xLw==", "range_end": "L3JvY2tldG1xMA=="}
    await gateway.ask("auth/role/grant", {"name": "brokers", "perm": may})
    await gateway.ask("auth/enable", {})


@needs_etcd
def test_a_user_signs_in_and_again_when_etcd_has_forgotten_it(tmp_path: Path) -> None:
    async def scene(server: Etcd) -> None:
        await _add_user(server.address)
        with pytest.raises(OSError, match="user name is empty"):
            await Gateway(server.address).ask("kv/range", {"key": "L3JvY2tldG1xLw=="})
        with pytest.raises(OSError, match="authentication failed") as wrong:
            gateway = Gateway(f"etcd://{USER}:guessed@{server.client}")
            await gateway.ask("kv/range", {"key": "L3JvY2tldG1xLw=="})
        assert "guessed" not in str(wrong.value)
        gateway = Gateway(f"etcd://{USER}:{QUOTED}@{server.client}")
        controller = EtcdController(gateway, "c", "b", tmp_path / "identity", 0o644, 60_000)
        number = await controller.number("h:1")
        assert (await controller.elect(number)).master == number
        server.kill()
        server.start()
        await until_read(gateway)
        assert (await controller.look()).in_sync == {number}

    with etcd(tmp_path / "etcd") as server:
        asyncio.run(scene(server))


@needs_etcd
def test_a_broker_under_etcd_with_tls_and_a_user(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, text in zip(files, self_signed("etcd"), strict=True):
        file.write_text(text)
    tls = TlsSettings(mode="disabled", auth_server=True, client_trust_cert_path=str(files[0]))
    with (
        etcd(tmp_path / "etcd", files) as server,
        NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as names,
    ):
        asyncio.run(_add_user(server.address, tls.client_context(True)))
        with pytest.raises(OSError, match="certificate verify failed"):
            asyncio.run(Gateway(server.address).ask("kv/range", {"key": "YQ=="}))
        with Broker(
            tmp_path / "s", tls=tls, namesrvAddr=f"127.0.0.1:{names.port}", listenPort=0,
            bindAddress="127.0.0.1", enableControllerMode=True,
            controllerAddr=f"etcds://{USER}:{QUOTED}@{server.client}",
        ) as broker:  # fmt: skip
            # It is started anew in its role.
            until(lambda: broker._member is not None and broker._member.keeper, "the master")


def test_a_password_is_not_shown() -> None:
    for hosts in ("h:1", "h:1,[::1]:2"):
        for password in ("secret", "se@cret", "se:cret"):
            given = {"controllerAddr": f"etcds://user:{password}@{hosts}"}
            settings = load(None, given)
            shown = f"etcds://user:***@{hosts}"
            assert shown in repr(settings) and "cret" not in repr(settings)
            assert f"controllerAddr={shown}\n" in Config(settings).as_text(Path("/store"))
    plain = load(None, {"controllerAddr": "etcd://h:1,i:2"})
    assert "etcd://h:1,i:2" in repr(plain)


@asynccontextmanager
async def member(leader: str) -> AsyncIterator[str]:
    """Of a controller: says who leads; with an empty name it takes connections and is silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if leader:
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = codec.decode(size.to_bytes(4, "big") + await reader.readexactly(size))
            assert frame.code == RequestCode.CONTROLLER_GET_METADATA_INFO
            writer.write(codec.encode(frame.reply(ext={"controllerLeaderAddress": leader})))
        await asyncio.Event().wait()

    async with listening(serve) as address:
        yield address


async def test_a_silent_member_of_a_controller_hides_nobody() -> None:
    async with member("") as silent, member("leader:1") as other:
        client: Any = RemotingClient()
        controller = ApacheController(
            client,
            f"{silent};{other}",
            "c",
            "b",
            Path("none"),
            0o644,
            3000,
            lambda *_: None,
        )
        found: list[str] = []

        async def ask() -> None:
            found.append(await asyncio.wait_for(controller._find_leader(), SHORT_S))

        for _ in range(100):
            try:
                await ask()
            except TimeoutError:
                continue
            break
        assert found == ["leader:1"]
        await until_async(lambda: controller._leader, "the leader")
        await controller.leave()
