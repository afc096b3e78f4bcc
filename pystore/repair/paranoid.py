"""An open that believes nothing: queues and index are compared with the whole log first.

``paranoidRecovery`` asks for it, of ``pystore.open`` and of a broker. What it finds is mended by
:func:`pystore.repair.repair`, then the store is opened as ever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pystore.errors import NotAStore
from pystore.repair import Repair, repair
from pystore.store._reading import Progress
from pystore.store._store import Store

__all__ = ["open_mended"]

_log = logging.getLogger("pystore")


def open_mended(
    path: str | os.PathLike[str],
    conf: str | os.PathLike[str] | Mapping[str, object] | None,
    progress: Progress | None,
    settings: Mapping[str, object],
) -> Store:
    """Repairs the store as `pystore repair --yes` does, and opens it; ``mended`` says what was
    done. Raises: as pystore.repair.repair and pystore.open."""
    return Store(path, conf, progress=progress, mended=_mend(path, conf, progress, settings),
                 **settings)  # fmt: skip


def _mend(
    path: str | os.PathLike[str],
    conf: str | os.PathLike[str] | Mapping[str, object] | None,
    progress: Progress | None,
    settings: Mapping[str, object],
) -> Repair:
    file = None if isinstance(conf, Mapping) else conf
    given: dict[str, Any] = {**(conf if isinstance(conf, Mapping) else {}), **settings}
    try:
        done = repair(path, file, progress=progress, **given)
    except NotAStore:
        if Path(path).is_dir() and any(Path(path).iterdir()):
            raise
        return Repair(os.fspath(path), [])  # it is made now
    for action in done.actions:
        _log.warning("%s/%s: %s: %s", path, action.file, action.do, action.what)
    for finding in done.after.errors if done.after is not None else ():
        _log.error("%s/%s: cannot be repaired: %s", path, finding.file, finding.meaning)
    return done
