"""RocketMQ's own tool and clients, which sign by AclClientRPCHook, under our access control."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from admin import Admin

from broker import Broker

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
