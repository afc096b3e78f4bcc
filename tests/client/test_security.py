"""Hooks around requests, TLS, and the types that a user's checker sees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker import AsyncConsumer, AsyncProducer, Broker, Credentials, Message, Producer
from broker.access.signature import is_signed_by
from broker.client import HookFailed, Unreachable
from broker.client.credentials import SigningHook
from broker.client.inflight import Lane
from broker.client.routes import route_of_queues
from broker.client.sending import SendRules, prepare
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import TlsSettings, client_context
from broker.wire.codec import decode

ROOT = Path(__file__).resolve().parents[2]


class Recording:
    """Marks every request, and notes what passes."""

    def __init__(self):
        self.before, self.after = [], []

    def before_request(self, address, request):
        request.ext["AccessKey"] = "user"
        self.before.append(request.code)

    def after_response(self, address, request, response):
        if request.ext["AccessKey"] == "user":
            self.after.append((request.code, response.code))


async def test_hooks_see_every_request(server, name):
    topic, hook = name("topic"), Recording()
    options = {"hooks": [hook]}
    async with AsyncProducer("p", server.namesrv, **options) as producer:
        await producer.send(Message(topic, b"x"))
        await producer.send_oneway(Message(topic, b"y"))
        await producer.send_batch([Message(topic, b"z")])
    async with AsyncConsumer(
        "g-" + topic, topic, namesrv=server.namesrv, start="first", **options
    ) as consumer:
        await consumer.poll()
    assert {105, 34, 310, 320, 38, 14, 11, 15, 35} <= set(hook.before)
    assert {code for code, _ in hook.after} == set(hook.before)


class Refusing(Recording):
    def before_request(self, address, request):
        raise PermissionError("no key for this broker")


def test_an_exception_of_a_hook_ends_the_request(server, name):
    with (
        Producer("p", server.namesrv, hooks=[Refusing()]) as producer,
        pytest.raises(HookFailed, match="Refusing raised PermissionError: no key"),
    ):
        producer.send(Message(name("topic"), b"x"))


@pytest.mark.parametrize("secret", ["s", "ein Geheimnis: grün", "x" * 64, "y" * 200])
def test_a_send_signed_in_c_has_the_signature_that_python_makes(secret):
    signing = SigningHook(Credentials("user", secret, "token"))
    if signing.signer is None:
        pytest.skip("this interpreter does not show the functions of its cryptographic library")
    route = route_of_queues("orders", "broker-ä", "127.0.0.1:1", "c", 6, 1, 1)
    message = Message("orders", bytes(range(256)), tags="été", properties={"π": "3"})
    outgoing = prepare(message, SendRules("p"), sys_flag=8)
    lane = Lane(route, outgoing, signing)
    command = decode(lane.frame(lane.next(), outgoing, 7))
    assert command.ext.keys() == set("abcdefghijkmn") | {"AccessKey", "SecurityToken", "Signature"}
    assert is_signed_by(command, secret)
    assert not is_signed_by(command, secret + "!")


def test_tls_with_and_without_a_trusted_certificate(tmp_path, small):
    cert, key = self_signed("localhost")
    other, _ = self_signed("other")
    for file, text in (("cert", cert), ("key", key), ("other", other)):
        (tmp_path / file).write_text(text)
    tls = TlsSettings(
        mode="enforcing", cert_path=str(tmp_path / "cert"), key_path=str(tmp_path / "key")
    )
    with Broker(tmp_path / "store", listenPort=0, drain_s=0.0, tls=tls, **small) as broker:
        # Within the process nobody can listen: without TLS there is no socket, and it works.
        for good in (False, True, client_context(str(tmp_path / "cert"))):
            with broker.producer(tls=good) as producer:
                assert producer.send(Message("orders", b"x")).queue_offset >= 0
            with broker.consumer("g", "orders", tls=good, start="first") as consumer:
                assert consumer.poll()
        route = route_of_queues("orders", "b", broker.address, "c", 6, 1, 1)

        async def find(topic):
            return route

        through_sockets = (
            broker.producer(tls=client_context(str(tmp_path / "other")), retries=0),
            Producer("p", find_route=find, retries=0),
        )
        for bad in through_sockets:
            with bad as producer, pytest.raises(Exception) as no:
                producer.send(Message("orders", b"x"))
            assert re.search("connection|no TLS with", str(no.value)) or isinstance(
                no.value, Unreachable
            )


#: Read beside the installed wheel, too: make test-wheel.
SAMPLE = (Path(__file__).parent / "typed_sample.py").read_text()
#: The fixture that the documents show.
(FIXTURE,) = (
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/broker.md").read_text(), re.S)
    if "@pytest.fixture" in block
)


#: Modules, and what the checker says of each.
CHECKED = {
    "sample": (SAMPLE, ""),
    "argument": ('from broker import Producer\nProducer("g", retrys=1)\n', "retrys"),
    "body": ('from broker import Message\nMessage("t", "text")\n', 'expected "bytes"'),
    "fixture": (FIXTURE, ""),
    "setting": (
        FIXTURE.replace("maxMessageSize", "maxMesageSize"), 'Extra key "maxMesageSize"',
    ),
}  # fmt: skip


def test_a_strict_type_checker_reads_clients_and_brokers(tmp_path):
    names = [f"{name}.py" for name in CHECKED]
    for file, (text, _) in zip(names, CHECKED.values(), strict=True):
        (tmp_path / file).write_text(text)
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", *names]
    words += ["--cache-dir", str(ROOT / "build" / "mypy-sample")]
    words += ["--follow-imports", "silent"]
    env = {"MYPYPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("Found 3 errors in 3 files"), done.stdout + done.stderr
    for file, (_, said) in zip(names, CHECKED.values(), strict=True):
        of_it = [line for line in lines if line.startswith(f"{file}:")]
        assert any(said in line for line in of_it) == bool(of_it) == bool(said), of_it
