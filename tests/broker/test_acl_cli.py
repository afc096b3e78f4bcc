"""`pystore acl` on files, on the users of a store and on running brokers."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest
from waiting import BOUND_S

from broker import Broker
from broker.client.credentials import credentials_of_file
from pystore import Store
from pystore.cli import main

RULES = """globalWhiteRemoteAddresses:
- 10.9.9.*
accounts:
- accessKey: orders-team
  secretKey: orders-secret
  whiteRemoteAddress: 10.1.1.1
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
  - payments=DENY
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""
AWAY = ("--from", "192.0.2.7")


@pytest.fixture
def acl(command, answer):
    return lambda *words, as_json=True: (answer if as_json else command)("acl", *words)


@pytest.fixture
def plain(tmp_path):
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(RULES)
    file.chmod(0o600)
    return file


@pytest.fixture
def store(tmp_path):
    Store(tmp_path / "store").close()
    return tmp_path / "store"


# ---- check ----


@pytest.mark.parametrize(
    ("user", "action", "resource", "source", "allowed", "rule"),
    [
        ("orders-team", "Pub", "Topic:orders", "192.0.2.7", True, "topicPerms orders=PUB|SUB"),
        ("orders-team", "pub", "Topic:payments", "192.0.2.7", False, "topicPerms payments=DENY"),
        ("orders-team", "Sub", "Topic:others", "192.0.2.7", False, "defaultTopicPerm=DENY"),
        ("orders-team", "Sub", "Group:app", "192.0.2.7", True, "defaultGroupPerm=SUB"),
        ("orders-team", "Sub", "Topic:%RETRY%app", "192.0.2.7", True, "defaultGroupPerm=SUB"),
        ("orders-team", "Create", "Topic:x", "192.0.2.7", False, "admin=false"),
        ("orders-team", "Create", "Topic:x", "10.1.1.1", True, "whiteRemoteAddress 10.1.1.1"),
        ("operator", "Create", "Topic:x", "192.0.2.7", True, "operator: admin=true"),
        ("nobody", "Pub", "Topic:orders", "192.0.2.7", False, "no such account"),
        ("nobody", "Pub", "Topic:orders", "10.9.9.4", True, "globalWhiteRemoteAddresses 10.9.9.*"),
    ],
)
def test_check_of_a_plain_list(acl, plain, user, action, resource, source, allowed, rule):
    """The verdict, and the rule that decides."""
    code, out, _ = acl("check", user, action, resource, "--from", source, "--rules", plain)
    assert (code, out["check"]["allowed"]) == (0 if allowed else 1, allowed)
    assert rule in out["check"]["rule"]


def test_check_names_file_and_line(acl, plain):
    _, out, _ = acl("check", "orders-team", "Pub", "Topic:orders", *AWAY, "--rules", plain.parent)
    assert out["check"]["rule"].startswith(f"{plain}:4: orders-team: ")


def test_check_of_policies(acl, store, tmp_path):
    """Closest entry, source address, super user."""
    at = ("--rules", store)
    given = ("--allow", "Topic:*=Sub", "--deny", "Topic:pay*", "--allow", "Topic:payslips=Pub")
    secret = ("--secret", tmp_path / "app.yml")
    assert acl("add", "app", *at, *secret, *given, "--from", "192.0.2.0/24")[0] == 0
    assert acl("add", "boss", *at, "--admin", "--secret", tmp_path / "boss.yml")[0] == 0
    seen = [
        acl("check", *words.split(), *at)[1]["check"]
        for words in (
            "app Sub Topic:orders --from 192.0.2.7",
            "app Sub Topic:orders --from 198.51.100.1",
            "app Sub Topic:payments --from 192.0.2.7",
            "app Pub Topic:payslips --from 192.0.2.7",
            "boss Delete Topic:orders --from 198.51.100.1",
            "nobody Sub Topic:orders --from 192.0.2.7",
        )
    ]
    assert [(each["allowed"], each["rule"]) for each in seen] == [
        (True, "Allow Sub on Topic:* from 192.0.2.0/24"),
        (False, "User:app has no policy for Sub on Topic:orders"),
        (False, "Deny All on Topic:pay* from 192.0.2.0/24"),
        (True, "Allow Pub on Topic:payslips from 192.0.2.0/24"),
        (True, "User:boss is Super"),
        (False, "no such user"),
    ]


# ---- files ----


def test_changes_of_a_plain_list(acl, plain, tmp_path):
    """A broker reads what was written; the secret is the file's."""
    at = ("--rules", plain)
    given = ("--allow", "Topic:orders=Pub,Sub", "--deny", "Topic:payments", "--allow",
             "Group:*=Sub")  # fmt: skip
    file = tmp_path / "shop-team.yml"
    assert acl("add", "shop-team", *at, *given, "--secret", file, "--dry-run")[0] == 0
    assert plain.read_text() == RULES and not file.exists()
    assert acl("add", "shop-team", *at, *given, "--secret", file)[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(plain.stat().st_mode) == 0o600
    assert credentials_of_file(file).secret_key in plain.read_text()
    rights = acl("list", *at, "--user", "shop-team")[1]["rights"]
    assert {(r["resource"], r["decision"], *r["actions"]) for r in rights} == {
        ("Topic:orders", "Allow", "Pub", "Sub"), ("Topic:payments", "Deny", "All"),
        ("Topic:*", "Deny", "All"), ("Group:*", "Allow", "Sub"),
    }  # fmt: skip
    assert acl("remove", "shop-team", *at, "--resource", "Topic:orders")[0] == 0
    assert acl("check", "shop-team", "Pub", "Topic:orders", *AWAY, *at)[0] == 1
    assert acl("remove", "shop-team", *at)[0] == 0
    assert acl("remove", "shop-team", *at)[0] == 1
    assert acl("list", *at, "--user", "shop-team")[0] == 1


def test_changes_of_a_store(acl, store, tmp_path):
    at, secret = ("--rules", store), ("--secret", tmp_path / "app.yml")
    assert acl("list", *at)[0] == 1
    assert not (store / "access").exists()
    assert acl("add", "app", *at, *secret, "--allow", "Topic:a=Pub", "--dry-run")[0] == 0
    assert not (store / "access").exists()
    assert acl("add", "app", *at, *secret, "--allow", "Topic:a=Pub")[0] == 0
    assert acl("add", "app", *at, "--allow", "Topic:b=Sub")[0] == 0
    shown = acl("list", "--rules", store / "access")[1]
    assert [(u["user"], u["administrator"]) for u in shown["users"]] == [("app", False)]
    assert [r["resource"] for r in shown["rights"]] == ["Topic:a", "Topic:b"]
    assert acl("remove", "app", *at, "--resource", "Topic:a")[0] == 0
    assert acl("remove", "app", *at, "--resource", "Topic:a")[0] == 1
    assert acl("remove", "app", *at)[0] == 0
    assert acl("list", *at)[0] == 1


def test_secrets_are_not_listed(acl, plain, store, tmp_path):
    acl("add", "app", "--rules", store, "--secret", tmp_path / "app.yml")
    secret = credentials_of_file(tmp_path / "app.yml").secret_key
    shown = [acl("list", "--rules", place, as_json=form)[1]
             for place in (plain, store) for form in (True, False)]  # fmt: skip
    assert "orders-team" in str(shown) and "app" in str(shown)
    assert "orders-secret" not in str(shown) and secret not in str(shown)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list"], 2, "say where the rules are"),
        (["list", "--rules", "PLAIN", "--broker", "h:1"], 2, "say where the rules are"),
        (["list", "--rules", "none"], 3, "does not exist"),
        (["list", "--rules", "EMPTY"], 3, "neither an access list nor a store"),
        (["list", "--broker", "nonsense"], 2, "is not host:port"),
        (["list", "--rules", "PLAIN", "--trust", "x"], 2, "without credentials"),
        (["add", "new-team", "--rules", "PLAIN"], 2, "needs a secret"),
        (["add", "orders-team", "--rules", "PLAIN", "--allow", "orders"], 2, "RESOURCE=ACTIONS"),
        (["add", "orders-team", "--rules", "PLAIN", "--allow", "Topic:a=Fly"], 2, "'Fly'"),
        (["add", "orders-team", "--rules", "PLAIN", "--allow", "Topic:a*=Pub"], 2, "Topic:a*"),
        (["add", "orders-team", "--rules", "PLAIN", "--allow", "Topic:a=Get"], 2, "Get"),
        (["add", "orders-team", "--rules", "PLAIN", "--white", "1.2.3.x"], 2, "--white"),
        (["add", "orders-team", "--rules", "PLAIN", "--allow", "Topic:a=Pub", "--from",
          "1.2.3.4"], 2, "from everywhere"),
        (["check", "a", "Pub", "Topic:x", "--from", "here", "--rules", "PLAIN"], 2, "'here'"),
        (["check", "a", "Pub", "Topic:*", *AWAY, "--rules", "PLAIN"], 2, "not one resource"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(acl, plain, tmp_path, arguments, code, text):
    (tmp_path / "empty").mkdir()
    places = {"PLAIN": plain, "EMPTY": tmp_path / "empty", "none": tmp_path / "none"}
    found, _, error = acl(*(places.get(each, each) for each in arguments))
    assert (found, text in error["text"]) == (code, True), error
    assert plain.read_text() == RULES


def test_a_broken_list_is_named(acl, plain):
    plain.write_text(RULES + "  groupPerms: 7\n  who: me\n")
    code, _, error = acl("list", "--rules", plain)
    assert code == 2
    assert f"{plain}:" in error["text"]


# ---- brokers ----


def test_at_a_broker_with_a_plain_list(acl, plain, tmp_path):
    """A change is made by the broker, which holds it from then on."""
    admin = tmp_path / "admin.yml"
    admin.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    with Broker(
        tmp_path / "conf" / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1"
    ) as broker:
        at = ("--broker", broker.address, "--credentials", admin)
        secret = ("--secret", tmp_path / "shop.yml")
        assert acl("add", "shop-team", *at, *secret, "--allow", "Topic:orders=Pub")[0] == 0
        assert acl("check", "shop-team", "Pub", "Topic:orders", *AWAY, *at)[0] == 0
        assert acl("add", "shop-team", *at, "--deny", "Topic:other")[0] == 0
        assert acl("remove", "shop-team", *at, "--resource", "Topic:orders")[0] == 0
        code, out, _ = acl("check", "shop-team", "Pub", "Topic:orders", *AWAY, *at)
        assert (code, "defaultTopicPerm=DENY" in out["check"]["rule"]) == (1, True)
        assert acl("remove", "shop-team", *at, "--resource", "Topic:other")[2]["exit"] == 2
        assert acl("remove", "shop-team", *at)[0] == 0
        assert acl("list", *at, "--user", "shop-team")[0] == 1
        code, _, error = acl("list", "--broker", broker.address)
        assert (code, "No accessKey is configured" in error["text"]) == (2, True)


def elsewhere(*arguments):
    """In another process: one process opens the users once."""
    program = "import sys; from pystore.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", program, "acl", *map(str, arguments)]
    return subprocess.run(words, timeout=BOUND_S, capture_output=True, check=False).returncode


def test_at_a_broker_with_users(acl, store, tmp_path):
    """Beside it, the files are not changed."""
    admin = tmp_path / "admin.yml"
    admin.write_text("accessKey: admin\nsecretKey: admin-secret\n")
    first = json.dumps({"username": "admin", "password": "admin-secret"})
    with Broker(
        store, authenticationEnabled=True, authorizationEnabled=True, initAuthenticationUser=first,
        listenPort=0, bindAddress="127.0.0.1",
    ) as broker:  # fmt: skip
        at = ("--broker", broker.address, "--credentials", admin)
        given = ("--secret", tmp_path / "app.yml", "--allow", "Topic:a=Pub", "--from", "192.0.2.7")
        assert acl("add", "app", *at, *given)[0] == 0
        assert acl("check", "app", "Pub", "Topic:a", *AWAY, *at)[0] == 0
        beside = ("--rules", store)
        assert elsewhere("check", "app", "Pub", "Topic:a", *AWAY, *beside) == 0
        assert elsewhere("remove", "app", *beside) == 4
        assert acl("remove", "app", *at, "--resource", "Topic:a")[0] == 0
        assert acl("check", "app", "Pub", "Topic:a", *AWAY, *at)[0] == 1
        assert acl("remove", "app", *at)[0] == 0
        assert [u["user"] for u in acl("list", *at)[1]["users"]] == ["admin"]


def test_the_verbs_sign(tmp_path, capsys):
    """With a file of credentials, as mqadmin's tools.yml; without it they are refused."""
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: orders-team\n  secretKey: orders-secret\n"
        "  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n"
    )
    team = tmp_path / "team.yml"
    team.write_text("accessKey: orders-team\nsecretKey: orders-secret\n")
    team.chmod(0o600)
    with Broker(
        tmp_path / "store", aclEnable=True, listenPort=0, bindAddress="127.0.0.1",
        with_namesrv=True,
    ) as broker:  # fmt: skip
        broker.create_topic("orders", 1)
        at = ["-n", broker.namesrv_address]
        assert main(["send", "orders", "hello", *at, "--credentials", str(team)]) == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROCKETMQ_ACCESS_KEY", "orders-team")
            patch.setenv("ROCKETMQ_SECRET_KEY", "orders-secret")
            assert main(["consume", "orders", *at, "--group", "g", "--count", "1"]) == 0
        assert "hello" in capsys.readouterr().out
        assert main(["send", "orders", "hello", *at]) != 0
        assert "No accessKey" in capsys.readouterr().err
