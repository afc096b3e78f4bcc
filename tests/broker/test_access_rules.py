"""The rules of access control beside slow ones that are written another way."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access import plain_file, yaml_tree
from broker.access.addresses import address_of, parse_pattern
from broker.access.needs import AccessAction, AccessRequest, Need, ResourceKind
from broker.access.plain import DENY, PUB, SUB
from broker.access.policies import Acl, PolicyEntry, parse_entry, parse_resource
from broker.access.signature import Credentials, is_signed_by, sign
from broker.processors import all_handlers
from broker.processors.needs import NeedsOfPlain, NeedsOfPolicies
from broker.wire import codec
from broker.wire.command import BINARY, JSON, Command
from pystore.errors import BadArgument
from pystore.settings import load

# ---- addresses ----

byte = st.integers(0, 255)
near = st.sampled_from([0, 1, 9, 10, 11, 19, 20, 21, 254, 255])
address = st.tuples(near, near, near, near).map(lambda parts: ".".join(map(str, parts)))


@st.composite
def ranges(draw):
    low = draw(near)
    return draw(st.sampled_from(["*", f"{low}-{max(1, low, draw(near))}"]))


@st.composite
def patterns(draw):
    """Whatever a white list may hold for IPv4."""
    parts = [str(draw(near)) for _ in range(4)]
    kind = draw(st.sampled_from(["one", "list", "set", "range", "all", "none"]))
    if kind == "list":
        return ",".join(draw(st.lists(address, min_size=2, max_size=3)))
    if kind == "set":
        chosen = draw(st.lists(near, min_size=1, max_size=3))
        return ".".join(parts[:3]) + ".{" + ",".join(map(str, chosen)) + "}"
    if kind == "range":
        at = draw(st.integers(1, 3))
        rest = [draw(st.one_of(ranges(), near.map(str))) for _ in parts[at + 1 :]]
        return ".".join([*parts[:at], draw(ranges()), *rest])
    return {"one": ".".join(parts), "all": "*", "none": " "}[kind]


def slow_match(pattern, host):
    """By the texts of the parts, as upstream looks at them."""
    if pattern in ("*", "*.*.*.*"):
        return True
    if pattern.endswith("}"):
        head, _, tail = pattern.partition("{")
        return host in [head + part for part in tail[:-1].split(",")]
    if "," in pattern:
        return host in pattern.split(",")
    if "*" not in pattern and "-" not in pattern:
        return host == pattern
    parts, own = pattern.split("."), host.split(".")
    at = next(i for i in (1, 2, 3) if "*" in parts[i] or "-" in parts[i])
    low, high = (0, 255) if parts[at] == "*" else map(int, parts[at].split("-"))
    return own[:at] == parts[:at] and low <= int(own[at]) <= high


@settings(max_examples=150, deadline=None)
@given(patterns(), address)
def test_patterns_match_as_their_texts_do(pattern, host):
    assert parse_pattern(pattern).matches(address_of(host)) == slow_match(pattern, host)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("fe80::1", "fe80:0:0::1%eth0", "fe80::2"),
        ("fe80:1:*", "fe80:1::9", "fe80:2::9"),
        ("fe80:1-4:*", "fe80:3::9", "fe80:5::9"),
        ("1:2:3:4:5:6:7:a-f", "1:2:3:4:5:6:7:b", "1:2:3:4:5:6:7:10"),
        ("1:2:3:4:5:6:7:{8,9}", "1:2:3:4:5:6:7:9", "1:2:3:4:5:6:7:a"),
        ("10.1.2.3", "::ffff:10.1.2.3", "::ffff:10.1.2.4"),
    ],
)
def test_ipv6_patterns(pattern, inside, outside):
    found = parse_pattern(pattern)
    assert found.matches(address_of(inside))
    assert not found.matches(address_of(outside))


@pytest.mark.parametrize(
    "text",
    ["1.2.3", "1.2.3.256", "10.*-5.1.1", "1.2.3.5-4", "1.2.3.-5", "1.2.3.4-0", "*.1.1.1", "a.b.*",
     "1.2.3.4, 5.6.7.8", "1.{2,3}.4.5", "1.2.3.{a}", "1.2.3.4-999", "::*-3", "x"],
)  # fmt: skip
def test_a_pattern_that_matches_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_pattern(text)


# ---- policies ----

names = st.sampled_from(["a", "ab", "abc", "b", ""])
actions = st.lists(st.sampled_from(["Pub", "Sub", "Get", "All"]), min_size=1, max_size=3)


@st.composite
def entries(draw):
    name = draw(names)
    resource = draw(
        st.sampled_from(["*", "Topic:*", "group:*", f"topic:{name or 'x'}", f"TOPIC:{name}*"])
    )
    made = {"resource": resource, "actions": draw(actions),
            "decision": draw(st.sampled_from(["Allow", "Deny", "deny"]))}  # fmt: skip
    sources = draw(st.sampled_from([[], ["10.0.0.0/8"], ["10.1.1.1", "192.168.0.0/16"]]))
    return made | ({"sourceIps": sources} if sources else {})


def slow_decision(entries, need, host):
    """The last entry standing when each is compared with the best so far, rule by rule."""
    best = None
    for one in entries:
        kind, _, name = one["resource"].partition(":")
        every = one["resource"] == "*"
        if not every and kind.lower() != str(need.kind).lower():
            continue
        begin, star, _ = name.partition("*")
        if not every and not (need.name.startswith(begin) if star else need.name == name):
            continue
        if "All" not in one["actions"] and not any(a in one["actions"] for a in need.actions):
            continue
        sources = one.get("sourceIps", [])
        if sources and not any(
            ipaddress.ip_address(host) in ipaddress.ip_network(each) for each in sources
        ):
            continue
        rank = 0 if every else 1 if star and not begin else 2 if star else 3
        mine = (rank, len(begin) if rank == 2 else 0, one["decision"].lower() == "deny")
        if best is None or mine > best:
            best = mine
    return None if best is None else not best[2]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(entries(), max_size=6),
    st.lists(entries(), max_size=4),
    names,
    st.sampled_from([(AccessAction.PUB,), (AccessAction.SUB, AccessAction.GET)]),
    st.sampled_from(["10.1.1.1", "192.168.3.4", "172.16.0.1"]),
)
def test_the_closest_entry_decides(custom, default, name, wanted, host):
    """Of Custom if any fits there, else of Default; entries of one resource may repeat here."""
    acl = Acl(tuple(map(parse_entry, custom)), tuple(map(parse_entry, default)))
    need = Need(ResourceKind.TOPIC, name, wanted)
    found = acl.deciding(need, host)
    expected = slow_decision(custom, need, host)
    if expected is None:
        expected = slow_decision(default, need, host)
    assert (None if found is None else found.allow) == expected


@pytest.mark.parametrize("text", ["Topic:a", "Topic:a*", "Group:*", "Cluster:c", "*"])
def test_a_resource_is_written_as_it_was_given(text):
    assert str(parse_resource(text)) == text


def test_entries_of_one_resource_replace_each_other():
    """In place: the others keep theirs."""
    first, second = (
        PolicyEntry(parse_resource(f"Topic:{name}"), (AccessAction.PUB,), True)
        for name in ("a", "b")
    )
    other = PolicyEntry(first.resource, (AccessAction.SUB,), False)
    acl = Acl().merged("Custom", [first, second]).merged("Custom", [other])
    assert acl.custom == (other, second)
    assert acl.without("Custom", first.resource).custom == (second,)


# ---- signatures ----

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(words.filter(bool), words.filter(bool), max_size=6),
    st.binary(max_size=40),
    st.sampled_from([JSON, BINARY]),
    st.data(),
)
def test_a_signed_frame_with_any_byte_changed_is_refused(ext, body, serialize, data):
    """Of what is signed: the values of the fields, and the body. The frame goes through the
    codec."""
    for name in ("Signature", "AccessKey", "_UNIQUE_KEY_QUERY"):
        ext.pop(name, None)
    command = Command(10, ext, body, serialize=serialize)
    sign(command, Credentials("key", "secret-of-key"))
    read = codec.decode(codec.encode(command))
    assert is_signed_by(read, "secret-of-key")
    assert not is_signed_by(read, "secret-of-kez")
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        changed = body[:at] + bytes([body[at] ^ bit]) + body[at + 1 :]
        assert not is_signed_by(Command(10, dict(read.ext), changed), "secret-of-key")
    name = data.draw(st.sampled_from(sorted(read.ext)))
    text = read.ext[name]
    at = data.draw(st.integers(0, len(text) - 1))
    other = text[:at] + chr(ord(text[at]) % 50 + 60) + text[at + 1 :]
    if other != text:
        assert not is_signed_by(Command(10, {**read.ext, name: other}, read.body), "secret-of-key")


# ---- files ----


@pytest.fixture(params=["with libyaml", "without"])
def reader(request, monkeypatch):
    """PyYAML has libyaml in its wheels, and need not where it was built."""
    loader = yaml.SafeLoader if request.param == "without" else getattr(yaml, "CSafeLoader", None)
    if loader is None:
        pytest.skip("this PyYAML is without libyaml")
    library = yaml, loader, yaml.SafeDumper
    monkeypatch.setattr(yaml_tree, "_library", lambda: library)


GOOD = """accounts:
- accessKey: orders-team
  secretKey: 0123456789
  topicPerms:
  - a=PUB|SUB
  - b=DENY
- accessKey: operator
  secretKey: 1e5longer
  admin: true
"""
PUBLISHED = """globalWhiteRemoteAddresses:
- 13.21.33.*
- 192.168.0.*
accounts:
- accessKey: OrderTeam
secretKey: 123456
whiteRemoteAddress:
admin: false
defaultTopicPerm: DENY
defaultGroupPerm: SUB
topicPerms:
- CreateOrderInformTopic=PUB|SUB
- PaySuccessInformTopic=PUB|SUB
groupPerms:
- groupA=DENY
- groupB=PUB|SUB
- groupC=SUB
- accessKey: ProductTeam
secretKey: 12345678
whiteRemoteAddress: 192.168.1.*
admin: true
"""


@pytest.mark.usefixtures("reader")
def test_scalars_are_their_text():
    file = plain_file.parse(Path("f.yml"), GOOD)
    assert [account.secret for account in file.accounts] == ["0123456789", "1e5longer"]
    assert file.accounts[0].topics == {"a": PUB | SUB, "b": DENY}


@pytest.mark.usefixtures("reader")
def test_the_published_example_is_understood():
    """Its accounts are not indented, and one secret has six characters."""
    file = plain_file.parse(Path("f.yml"), PUBLISHED)
    first, second = file.accounts
    assert (first.key, first.secret, first.groups["groupC"]) == ("OrderTeam", "123456", SUB)
    assert (second.key, second.admin, second.white.text) == ("ProductTeam", True, "192.168.1.*")
    assert len(file.warnings) == 2


@pytest.mark.usefixtures("reader")
def test_what_is_written_reads_the_same():
    """Twice over: fields, rights, white lists."""
    file = plain_file.parse(Path("f.yml"), PUBLISHED)
    again = plain_file.parse(Path("f.yml"), plain_file.written(file))
    for one, other in zip(file.accounts, again.accounts, strict=True):
        assert (one.key, one.secret, one.topics, one.groups, one.white, one.admin) == (
            other.key, other.secret, other.topics, other.groups, other.white, other.admin
        )  # fmt: skip
    assert again.white == file.white


@pytest.mark.usefixtures("reader")
def test_anchors_are_followed():
    text = GOOD.replace("secretKey: 0", "secretKey: &s 0").replace("1e5longer", "*s")
    text = text.replace("topicPerms:", "topicPerms: &p").replace("admin: true", "groupPerms: *p")
    first, second = plain_file.parse(Path("f.yml"), text).accounts
    assert (second.secret, second.groups) == (first.secret, first.topics) == ("0123456789", {
        "a": PUB | SUB, "b": DENY,
    })  # fmt: skip


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("text", ["", "~", "null", "!!null x"])
def test_null_is_nothing(text):
    given = GOOD.replace("admin: true", f"whiteRemoteAddress: {text}")
    assert plain_file.parse(Path("f.yml"), given).accounts[1].white.text == ""


@pytest.mark.usefixtures("reader")
def test_null_in_quotes_is_a_text():
    with pytest.raises(BadArgument, match="'null' is not an address"):
        plain_file.parse(Path("f.yml"), GOOD.replace("admin: true", "whiteRemoteAddress: 'null'"))


BROKEN = {
    "not YAML": ("accounts: [", "f.yml:1"),
    "a tab": ("accounts:\n\t- x\n", "f.yml:2"),
    "a list": ("- a\n", "f.yml:1"),
    "unknown field": ("acounts: []\n", "f.yml:1: acounts"),
    "unknown field of an account": (GOOD.replace("admin", "adnim"), "f.yml:9: account operator"),
    "twice": (GOOD.replace("  admin: true", "  secretKey: another-one"), "f.yml:9: account operat"),
    "the same account": (GOOD.replace("operator", "orders-team"), "f.yml:7: the account orders"),
    "short secret": (GOOD.replace("1e5longer", "12345"), "f.yml:8: account operator: secretKey"),
    "no secret": (GOOD.replace("  secretKey: 1e5longer\n", ""), "f.yml:7: account operator"),
    "malformed right": (GOOD.replace("b=DENY", "b"), "f.yml:6: account orders-team: topicPerms"),
    "bad white list": (GOOD + "  whiteRemoteAddress: 1.2.3\n", "f.yml:10: account operator"),
    "bad global": ("globalWhiteRemoteAddresses:\n- x.*\n", "f.yml:2: globalWhite"),
    "a NUL": ("accounts:\n\0", "f.yml:2"),
    "half a pair": ('accounts:\n- accessKey: "\\ud800abcdef"\n', "f.yml:2"),
    # More levels than we read, or than newer versions of libyaml do.
    "deep": ("accounts: " + "[" * 100_000, "f.yml:1: the access list is not YAML: "),
    "deep lists": ("- " * 100_000, "f.yml:1: the access list is not YAML: "),
    "deep mappings": ("{a: " * 100_000, "f.yml:1: the access list is not YAML: "),
    "deep keys": ("? " * 100_000, "f.yml:1: the access list is not YAML: "),
    "an alias of nothing": ("accounts: *x\n", "f.yml:1: the access list is not YAML: the anchor x"),
    "two documents": ("accounts:\n---\n", "f.yml:2: the access list is not YAML: a second"),
}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("name", BROKEN)
def test_an_error_names_file_line_and_account_but_no_secret(name):
    text, begin = BROKEN[name]
    with pytest.raises(BadArgument) as caught:
        plain_file.parse(Path("f.yml"), text)
    where, _, rest = begin.partition(": ")
    assert str(caught.value.where).startswith(where)
    assert rest in caught.value.text
    for secret in ("0123456789", "1e5longer", "12345"):
        assert secret not in str(caught.value)


def test_an_administrator_with_rights_is_held_to_them():
    """Its admin requests pass."""
    text = GOOD + "  topicPerms:\n  - a=PUB\n"
    rules, _ = plain_file.joined([plain_file.parse(Path("f.yml"), text)])
    account = rules.accounts["operator"]
    need = Need(ResourceKind.TOPIC, "b", (AccessAction.PUB,))
    assert not rules.authorize(account, AccessRequest(310, (need,))).allowed
    assert rules.authorize(account, AccessRequest(17, (), admin=True)).allowed


# ---- what requests need ----


@pytest.mark.parametrize("kind", [NeedsOfPlain, NeedsOfPolicies])
def test_every_code_that_is_served_says_what_it_needs(kind):
    """A new one that stands in no table would be open to whoever signs, or to nobody."""
    needs = kind("cluster", lambda place, half: None)
    services = SimpleNamespace(settings=load(None, {}))
    assert [code for code in all_handlers(services) if code not in needs] == []


@pytest.mark.parametrize("kind", [NeedsOfPlain, NeedsOfPolicies])
@pytest.mark.parametrize(("code", "topic"), [(324, "topic"), (325, "b")])
def test_a_reply_needs_the_right_on_the_reply_topic(kind, code, topic):
    """Whatever topic it is sent to: it reaches any client that it names."""
    needs = kind("C", lambda place, half: None)
    found = needs(Command(code, {topic: "mine"})).needs
    assert {str(need) for need in found} == {"Pub on Topic:mine", "Pub on Topic:C_REPLY_TOPIC"}
