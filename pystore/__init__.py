"""Apache RocketMQ's message store inside a Python process: the same bytes on disk, without a JVM.

with pystore.open("store") as store:
    put = store.put("orders", b"...", tags="paid", keys="order-17")
    for message in store.read("orders", put.queue, put.queue_offset):
        print(message.tags, bytes(message.body))

with pystore.Reader("store") as reader:     # a live broker's folder, or a crashed one's
    for message in reader.query("orders", "order-17"):
        print(message)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pystore import errors
from pystore.base.enums import PutStatus
from pystore.errors import *  # noqa: F403  every exception class of the error table
from pystore.metadata import Metadata, SubscriptionGroup, TopicConfig
from pystore.settings import Settings
from pystore.settings import load as load_settings
from pystore.store._arrow import COLUMNS, ArrowStream, survive_truncation
from pystore.store._batch import PutBatch
from pystore.store._messages import Batch, GetStatus, Message
from pystore.store._reading import Progress, Reader
from pystore.store._report import Action, RecoveryMode, RecoveryReport, ReportItem
from pystore.store._results import (
    CleanReport,
    DueDelivery,
    Info,
    PutManyResult,
    PutResult,
    QueueInfo,
)
from pystore.store._store import Store
from pystore.store.arguments import named_arguments as _named_arguments

__version__ = "0.1.0"

__all__ = [
    "COLUMNS",
    "Action",
    "ArrowStream",
    "Batch",
    "CleanReport",
    "DueDelivery",
    "GetStatus",
    "Info",
    "Message",
    "Metadata",
    "Progress",
    "PutBatch",
    "PutManyResult",
    "PutResult",
    "PutStatus",
    "QueueInfo",
    "Reader",
    "RecoveryMode",
    "RecoveryReport",
    "ReportItem",
    "Settings",
    "Store",
    "SubscriptionGroup",
    "TopicConfig",
    "load_settings",
    "open",
    "survive_truncation",
    *errors.__all__,
]


@_named_arguments
def open(
    path: str | os.PathLike[str],
    conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
    *,
    progress: Progress | None = None,
    **settings: object,
) -> Store:
    """Opens the store at `path` for writing: makes it when it is missing, recovers it when needed.

    path: storePathRootDir, the folder that holds ``commitlog``. conf: a ``broker.conf``, or a
    mapping. settings: upstream's names, e.g. ``mappedFileSizeCommitLog=4 << 20``; they win over
    `conf`; see docs/settings.md. Sizes that existing files tell are taken from them. progress:
    called a few times a second with (phase, bytes done, bytes in all) while a long recovery runs;
    Ctrl-C ends it and leaves the folder to the next open.

    ``paranoidRecovery=True`` reads the whole log first and mends what differs from it, as
    ``pystore repair --yes`` does; ``store.mended`` says what that was.

    Returns a Store, a context manager; ``store.report`` says what recovery kept and cut.

    Raises: StoreLocked (with ``pid``) when another process writes there, NotAStore, Forbidden,
    FileSizeMismatch, StrayFile, MissingSegment, NewerLayout, BadArgument for unknown settings.
    """
    if load_settings(conf, settings)["paranoidRecovery"]:
        from pystore.repair.paranoid import open_mended

        return open_mended(path, conf, progress, settings)
    return Store(path, conf, progress=progress, **settings)
