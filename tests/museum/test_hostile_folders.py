"""A pipe, a device, a link to itself or a folder in place of each file of a store: every verb ends,
with a result or with an error that has a name.

`make test` does it to some files by chance (PS_SEED), `make museum` to all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import pystore
from broker.access.policies import PolicyRules, User
from broker.services.policy_access import PolicyAccess
from pystore.audit import verify
from pystore.files.aside import copy_aside, free_folder
from pystore.repair import rebuild
from spark_ext.ledger import CommitEntry, Ledger

ROOT = Path(__file__).parents[2]
MANY = int(os.environ.get("PS_MUSEUM", "4"))
SIZES = {
    "mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 16, "maxIndexNum": 32,
}  # fmt: skip

#: Does each verb to a copy of the store, for each of some files; a hang ends at the parent's limit,
#: and the last line names what hung.
CHILD = """
import os, shutil, sys
from pathlib import Path
import pystore
from pystore.audit import verify
from pystore.repair import rebuild, repair, salvage, undo
from spark_ext.errors import SinkError
from spark_ext.ledger import Ledger

whole, work, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
PUT = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
}
VERBS = {
    "reader": lambda root: pystore.Reader(root).close(),
    "verify": verify,
    "salvage": lambda root: salvage(root / "commitlog", work / "salvaged"),
    "open": lambda root: pystore.open(root).close(),
    "rebuild": rebuild,
    "repair": repair,
    "undo": lambda root: [repair(root), undo(root)],
    "ledger": lambda root: list(Ledger(root).all()),
}
named = 0
for file in map(Path, sys.argv[4:]):
    for verb, do in VERBS.items():
        root = work / "store"
        shutil.copytree(whole, root)
        (root / file).unlink()
        PUT[what](root / file)
        print(file, verb, flush=True)
        try:
            do(root)
        except (pystore.StoreError, SinkError) as e:
            assert str(e), (file, verb)
            named += 1
        shutil.rmtree(root)
        shutil.rmtree(work / "salvaged", ignore_errors=True)
print("named", named)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole") / "store"
    with pystore.open(root, **SIZES) as store:
        for i in range(60):
            store.put("t", b"m%d" % i, keys=f"k{i}", queue=0)
        store.put("gone", b"x")
        store.delete_topic("gone")
        store.metadata.offsets.commit("g", "t", 0, 3)
    pieces = [(f"commitlog/{0:020d}", 0, 100)]
    copy_aside(root, pieces, "a test", 0o640, root / "part", free_folder(root))
    Ledger(root).put(CommitEntry("job", 1, True, 0, 1, ()))
    access = PolicyAccess(root / "access", lambda: None)
    access.open(PolicyRules())
    access.make_now(User("first", "password of the first", superuser=True))
    access.close()
    rebuild(root)
    assert [f.kind for f in verify(root).findings] == ["deleted-messages"]
    return root


@pytest.mark.parametrize("what", ["pipe", "device", "loop", "folder"])
def test_no_verb_hangs_or_dies_over_what_stands_there(whole, tmp_path, what, seed):
    files = sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())
    some = random.Random(seed).sample(files, min(len(files), MANY))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(whole), str(tmp_path), what, *some],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert done.stdout.splitlines()[-1].startswith("named ")
