"""RocketMQ's own tool and clients, which sign by AclClientRPCHook, under our access control."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from admin import Admin

from broker import Broker, Credentials, Message
from broker.client import MessageQueue, SendFailed

pytestmark = [pytest.mark.java]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rocketmq-reference"
BOSS = '{"username":"boss","password":"boss-secret"}'
INNER = '{"accessKey":"boss","secretKey":"boss-secret"}'
RULES = """accounts:
- accessKey: boss-of-4x
  secretKey: boss-secret
  admin: true
- accessKey: limited
  secretKey: limited-secret
  topicPerms:
  - orders=PUB
"""


@pytest.fixture
def tool(reference, tmp_path, monkeypatch):
    """mqadmin with credentials of its own: tools.yml lies in its home."""
    made = []

    def start(namesrv, key, secret):
        home = tmp_path / key / "5.3.3"
        home.mkdir(parents=True)
        for path in (Path(os.environ.get("RMQ_HOME", CACHE)) / "5.3.3").iterdir():
            if path.name != "conf":
                (home / path.name).symlink_to(path)
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: {secret}\n")
        with monkeypatch.context() as patch:
            patch.setenv("RMQ_HOME", str(home.parent))
            made.append(Admin(namesrv, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_users_and_policies_with_the_official_tool(tool, tmp_path):
    """Made, listed and obeyed: the producer and the consumer inside the tool sign, too.

    What the tool sends and consumes is asked again: it gives up after three seconds.
    """
    with Broker(
        tmp_path / "store", with_namesrv=True, listenPort=0, authenticationEnabled=True,
        authorizationEnabled=True, initAuthenticationUser=BOSS,
        innerClientAuthenticationCredentials=INNER,
    ) as broker:  # fmt: skip
        boss = tool(broker.namesrv_address, "boss", "boss-secret")
        at = ("-b", broker.address)
        boss("updateTopic", *at, "-t", "orders")
        assert "success" in boss("createUser", *at, "-u", "limited", "-p", "limited-secret")
        assert "limited" in boss("listUser", *at)
        said = boss("createAcl", *at, "-s", "User:limited", "-r", "Topic:orders", "-a", "Pub",
                    "-d", "Allow")  # fmt: skip
        assert "success" in said
        assert "Topic:orders" in boss("listAcl", *at)
        boss.until(lambda said: "SEND_OK" in said, "sendMessage", "-t", "orders", "-p", "hello")
        boss.until(lambda said: "hello" in said, "consumeMessage", "-t", "orders")
        limited = tool(broker.namesrv_address, "limited", "limited-secret")
        limited.until(lambda said: "SEND_OK" in said, "sendMessage", "-t", "orders", "-p", "again")
        assert "no matched policies" in limited("updateTopic", *at, "-t", "another")


def test_the_plain_list_with_the_official_tool(tool, tmp_path):
    (tmp_path / "plain_acl.yml").write_text(RULES)
    with Broker(tmp_path / "store", with_namesrv=True, listenPort=0, aclEnable=True) as broker:
        boss = tool(broker.namesrv_address, "boss-of-4x", "boss-secret")
        at = ("-b", broker.address)
        assert "success" in boss("updateTopic", *at, "-t", "orders")
        limited = tool(broker.namesrv_address, "limited", "limited-secret")
        limited.until(lambda said: "SEND_OK" in said, "sendMessage", "-t", "orders", "-p", "hello")
        assert "Need admin permission" in limited("updateTopic", *at, "-t", "another")
        boss.until(lambda said: "hello" in said, "consumeMessage", "-t", "orders")


def test_policies_are_copied_from_broker_to_broker_with_the_official_tool(tool, tmp_path):
    """copyAcl: those of one subject, then all; the user, who has a password, is made by hand."""
    rules = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": BOSS, "innerClientAuthenticationCredentials": INNER,
        "listenPort": 0,
    }  # fmt: skip
    with (
        Broker(tmp_path / "from", with_namesrv=True, brokerName="from", **rules) as old,
        Broker(tmp_path / "to", namesrvAddr=old.namesrv_address, brokerName="to", **rules) as new,
    ):
        boss = tool(old.namesrv_address, "boss", "boss-secret")
        for at, users in ((old, ("one", "two")), (new, ("one", "two"))):
            boss("updateTopic", "-b", at.address, "-t", "orders")
            for user in users:
                made = boss("createUser", "-b", at.address, "-u", user, "-p", f"{user}-secret")
                assert "success" in made
        for user, action in (("one", "Pub"), ("two", "Sub")):
            said = boss("createAcl", "-b", old.address, "-s", f"User:{user}", "-r", "Topic:orders",
                        "-a", action, "-d", "Allow", "-i", "127.0.0.1")  # fmt: skip
            assert "success" in said
        listed = boss("listAcl", "-b", old.address)
        assert "orders" not in boss("listAcl", "-b", new.address)
        boss("copyAcl", "-f", old.address, "-t", new.address, "-s", "User:one")
        assert "User:two" not in boss("listAcl", "-b", new.address)
        boss("copyAcl", "-f", old.address, "-t", new.address)
        copied = boss("listAcl", "-b", new.address)
        assert sorted(copied.splitlines()) == sorted(listed.splitlines())
        assert "Topic:orders" in copied
        there = MessageQueue("orders", "to", 0)
        with new.producer(credentials=Credentials("one", "one-secret")) as producer:
            producer.send(Message("orders", b"x"), queue=there)
        with (
            new.producer(credentials=Credentials("two", "two-secret")) as producer,
            pytest.raises(SendFailed, match="no matched policies"),
        ):
            producer.send(Message("orders", b"x"), queue=there)
        assert new.store.range("orders", 0) == (0, 1)
