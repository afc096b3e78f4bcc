"""The exceptions follow from csrc/base/errors.def and behave as the builtins they derive from."""

from __future__ import annotations

import errno
import importlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pystore import errors
from pystore.base import store_error

ROOT = Path(__file__).resolve().parents[2]
CLASSES = list(store_error.by_code.values())


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("gen_errors")


def test_the_table_is_whole(generator):
    entries = generator.parse((ROOT / "csrc" / "base" / "errors.def").read_text(encoding="utf-8"))
    assert {entry.code: entry.cls for entry in entries} == {
        code: cls.__name__ for code, cls in store_error.by_code.items()
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_can_be_made_raised_and_pickled(cls):
    with pytest.raises(errors.StoreError) as caught:
        raise cls("it broke", where="/store/commitlog", offset=42, pid=7, errno=errno.ENOSPC)
    made = caught.value
    assert type(made) is cls
    assert made.text == "it broke"
    assert (made.where, made.offset, made.pid, made.errno) == (
        "/store/commitlog",
        42,
        7,
        errno.ENOSPC,
    )
    assert str(made) == f"it broke: /store/commitlog (at offset 42) — {cls.next_step}"
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is cls
    assert str(again) == str(made)
    assert vars(again) == vars(made)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_says_what_it_means_and_what_to_do(cls):
    doc = " ".join((cls.__doc__ or "").split())
    assert cls.meaning.lower() in doc.lower()
    assert cls.next_step in doc
    bare = cls()
    assert str(bare) == f"{cls.meaning} — {cls.next_step}"
    assert str(pickle.loads(pickle.dumps(bare))) == str(bare)
    assert bare.where is None and bare.offset is None and bare.pid is None


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.MessageIllegal, ValueError),
        (errors.TopicIllegal, errors.MessageIllegal),
        (errors.NotAStore, FileNotFoundError),
        (errors.StoreLocked, BlockingIOError),
        (errors.Forbidden, PermissionError),
        (errors.FlushFailed, OSError),
        (errors.OutOfMemory, MemoryError),
        (errors.NotFound, LookupError),
    ],
)
def test_the_builtin_that_a_caller_expects_catches_it(cls, builtin):
    assert issubclass(cls, builtin)
    assert issubclass(cls, errors.StoreError)


def test_os_errors_carry_errno_strerror_and_filename():
    made = store_error.make(errors.StoreIOError.code, "cannot sync", "/store/x", -1, 0, errno.EIO)
    assert isinstance(made, OSError)
    assert (made.errno, made.filename) == (errno.EIO, "/store/x")
    assert made.strerror == f"cannot sync ({os.strerror(errno.EIO)})"


def test_os_errors_have_the_errno_of_their_builtin_without_a_system_call():
    assert errors.NotAStore().errno == errno.ENOENT
    assert errors.StoreLocked().errno == errno.EAGAIN
    assert errors.Forbidden().errno == errno.EACCES
    assert errors.DiskFull().errno == errno.ENOSPC
    assert errors.MessageIllegal().errno is None


def test_make_takes_the_empty_values_of_the_core_for_none():
    made = store_error.make(errors.StoreClosed.code)
    assert type(made) is errors.StoreClosed
    assert (made.where, made.offset, made.pid, made.errno) == (None, None, None, None)
    assert made.text == errors.StoreClosed.meaning


def test_make_keeps_offset_zero():
    assert store_error.make(errors.RecordDamaged.code, "bad magic", offset=0).offset == 0


def test_an_unknown_code_is_a_plain_store_error_that_keeps_the_code():
    made = store_error.make(-9999, "something new")
    assert type(made) is errors.StoreError
    assert made.code == -9999
    assert pickle.loads(pickle.dumps(made)).code == -9999


def test_every_class_is_public():
    assert {cls.__name__ for cls in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ('PS_ERROR(A, -1, A, "Nowhere", "", "m", "n")', "Nowhere"),
        ('PS_ERROR(A, -1, A, "ValueError", "", "m")', "fields"),
        ('PS_ERROR(A, 1, A, "ValueError", "", "m", "n")', "negative"),
        ('PS_ERROR(A, -1, A, "", "", "m", "n") PS_ERROR(B, -1, B, "", "", "m", "n")', "twice"),
        ('OTHER(A, -1, A, "", "", "m", "n")', "PS_ERROR"),
        ("PS_ERROR(A, -1, A, $", "cannot read"),
    ],
)
def test_a_wrong_table_is_refused_with_its_fault(generator, table, complaint):
    with pytest.raises(ValueError, match=complaint):
        generator.parse(table)


def test_a_class_without_a_place_in_the_tree_hangs_under_the_root(generator):
    (entry,) = generator.parse('PS_ERROR(A, -1, A, "ValueError", "", "one " "two", "n")')
    assert entry.bases == ("StoreError", "ValueError")
    assert entry.meaning == "one two"
