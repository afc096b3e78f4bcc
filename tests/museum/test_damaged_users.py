"""The database of users and policies, damaged in every way: whoever was told that he is a user is
one after the next start, and `verify` names the damage.

`make test` does some by chance (PS_SEED), `make museum` all."""

from __future__ import annotations

import asyncio
import os
import random
import shutil

import pytest
from damage import flip

import pystore
from broker.access.policies import PolicyRules, User
from broker.services.policy_access import PolicyAccess
from pystore.audit import verify
from pystore.errors import RecordDamaged
from pystore.repair import repair

MANY = int(os.environ.get("PS_MUSEUM", "3"))


def opened(root, **how):
    access = PolicyAccess(root / "access", lambda: None)
    access.open(PolicyRules(), **how)
    return access


def users(root):
    access = opened(root)
    access.close()
    return dict(access.rules.users)


@pytest.fixture
def root(tmp_path):
    """A store with two users; an earlier state of its database is beside it."""
    root = tmp_path / "store"
    pystore.open(root).close()
    access = opened(root)
    access.make_now(User("first", "password of the first", superuser=True))
    access.close()
    shutil.copy(root / "access" / "data.mdb", tmp_path / "earlier")
    access = opened(root)
    asyncio.run(access.create_user("second", {"password": "second's"}, User("first", "", True)))
    access.close()
    assert verify(root).findings == []
    return root


def unlinked(put):
    def damage(file):
        file.unlink()
        put(file)

    return damage


def flip_a_value(file):
    data = file.read_bytes()
    at = data.index(b"password of the first")
    while at >= 0:  # each page that ever had it
        flip(file, at)
        at = data.find(b"password of the first", at + 1)


DAMAGES = {
    "gone": lambda file: file.unlink(),
    "emptied": lambda file: os.truncate(file, 0),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "cut to a byte": lambda file: os.truncate(file, 1),
    "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "noise": lambda file: file.write_bytes(random.Random(49).randbytes(file.stat().st_size)),
    "a value flipped": flip_a_value,
    "an earlier one": lambda file: shutil.copy(file.parents[2] / "earlier", file),
    "pipe": unlinked(os.mkfifo),
    "device": unlinked(lambda file: file.symlink_to("/dev/zero")),
    "loop": unlinked(lambda file: file.symlink_to(file.name)),
    "folder": unlinked(lambda file: file.mkdir()),
}


def test_a_damaged_database_of_users_is_named_and_made_again(root, tmp_path, caplog, seed):
    """At the next start, with or without a repair before it."""
    before = users(root)
    assert set(before) == {"first", "second"}
    cases = [(what, mended) for what in DAMAGES for mended in (False, True)]
    for what, mended in random.Random(seed).sample(cases, min(len(cases), MANY)):
        damaged = shutil.copytree(root, tmp_path / "damaged")
        DAMAGES[what](damaged / "access" / "data.mdb")
        named = [(f.kind, f.file) for f in verify(damaged).findings]
        assert named == ([] if what == "gone" else [("access-db", "access/data.mdb")]), what
        if mended:
            repair(damaged)
        caplog.clear()
        assert users(damaged) == before, what
        assert "the users are damaged" in caplog.text, what
        assert verify(damaged).findings == [], what
        shutil.rmtree(damaged)


def test_a_damaged_copy_of_users_is_named_and_written_again(root, caplog):
    before = users(root)
    flip(root / "access" / "users.json", 40)
    assert [(f.kind, f.file) for f in verify(root).findings] == [
        ("config-bak", "access/users.json")
    ]
    assert users(root) == before
    assert "it is written again" in caplog.text
    assert verify(root).findings == []


def test_nobody_is_let_in_when_database_and_copy_are_damaged(root):
    """A start is refused by name, and a repair leaves both as they are."""
    os.truncate(root / "access" / "data.mdb", 5000)
    flip(root / "access" / "users.json", 40)
    repair(root)
    with pytest.raises(RecordDamaged, match="cut off"):
        opened(root)


def test_who_only_looks_changes_nothing(root):
    os.truncate(root / "access" / "data.mdb", 5000)
    with pytest.raises(RecordDamaged):
        opened(root, mend=False)
    assert not (root / "aside").exists()
