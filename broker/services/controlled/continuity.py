"""Whether this broker still has all that it acknowledged in its lives so far. With ASYNC_FLUSH an
acknowledged message may be in the memory of the host alone, which a process that is killed leaves
behind, and a host that loses its power does not.

``brokerBoot``, beside ``brokerIdentity``: the boot of the host that this broker ran in last,
whether its disk had all that it acknowledged, and whether it may lack some."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from broker.loop.safe_log import SafeLogger
from pystore import RecoveryMode
from pystore.files import write_whole

__all__ = ["Continuity"]

log = SafeLogger("broker.controlled")

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_of_host() -> str:
    """Returns the boot id, another one after each start of the host; empty: not known, which is
    never the same."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class Continuity:
    """The continuity of one broker. is_sure: nothing that it acknowledged is missing in its log."""

    def __init__(self, path: Path, mode: int, is_new: bool) -> None:
        """Takes the file. path: ``brokerBoot``, and mode of the file. is_new: this broker had no
        number so far, and has acknowledged nothing."""
        self._path, self._mode, self._is_new = path, mode, is_new
        self._synced, self.is_sure = False, False

    async def begin(self, found: RecoveryMode, synced: bool) -> None:
        """Begins a life of the broker. found: how the store was opened. synced: SYNC_FLUSH, so that
        the disk has what will be acknowledged. Raises: OSError."""
        self._synced = synced
        await asyncio.to_thread(self._begin, found)

    def _begin(self, found: RecoveryMode) -> None:
        former, boot = self._read(), boot_of_host()
        is_same_boot = boot != "" and former.get("boot") == boot
        survived = found is RecoveryMode.NORMAL or (
            found is RecoveryMode.ABNORMAL and (is_same_boot or former.get("synced") is True)
        )
        # An earlier life may have ended before it had made up for what it lacked.
        self.is_sure = self._is_new or (survived and former.get("sure", True) is True)
        if not self.is_sure:
            log.warning("The end of this broker's log may be missing, since its host or its store"
                        " has changed: other members of the in-sync set are preferred")  # fmt: skip
        self._write()

    async def settle(self) -> None:
        """Ends the doubt: this broker has caught up with a master, or is the one that others catch
        up with. Raises: OSError."""
        self.is_sure = True
        try:
            await asyncio.to_thread(self._write)
        except OSError:
            self.is_sure = False
            raise

    def _read(self) -> dict[str, object]:
        """Reads the file of the life before; empty: there was none. Raises: OSError."""
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"sure": False}

    def _write(self) -> None:
        kept = {"boot": boot_of_host(), "synced": self._synced, "sure": self.is_sure}
        write_whole(self._path, json.dumps(kept).encode(), mode=self._mode)
