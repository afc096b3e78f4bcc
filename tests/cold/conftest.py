"""Tiers in each kind of object store, and a store to fill them from."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3_server import s3_server

import pystore

pytest.importorskip("obstore")
Address = Callable[[], str]
_number = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a bucket of a server of this process."""
    import boto3

    with s3_server():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.close()
        yield "s3://bucket"


@pytest.fixture(params=["folder", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty root of tiers, in each kind of object store."""
    if request.param == "folder":
        return str(tmp_path / "cold")
    if request.param == "memory":
        return f"memory:///{uuid.uuid4().hex}"
    return f"{request.getfixturevalue('s3')}/{next(_number)}"


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store: 900 messages over two topics of three queues, with tags, keys and properties."""
    path = tmp_path_factory.mktemp("cold") / "store"
    rng = random.Random(49)
    with pystore.open(path, mappedFileSizeCommitLog=1 << 20, enabledAppendPropCRC=True) as store:
        for number in range(900):
            store.put(
                ("orders", "payments")[number % 2],
                rng.randbytes(rng.randrange(400)),
                queue=number % 3,
                tags=rng.choice(["paid", "sent", "AaAa", "BBBB", None]),
                keys=f"order-{number} customer-{number % 7}",
                properties={"amount": str(number % 10)},
            )
    return path
