"""What the cold tier raises beside the errors of the store."""

from __future__ import annotations

from pystore.errors import NotAStore, RecordDamaged, StoreIOError, StoreLocked

__all__ = ["NotATier", "TierDamaged", "TierTaken", "TierUnreachable"]


class NotATier(NotAStore):
    """Nothing of a cold tier lies at the address."""

    next_step = "name the folder or prefix of one broker: pystore cold ls ADDRESS shows them"


class TierUnreachable(StoreIOError):
    """The object store did not answer, or refused the request."""

    next_step = "check the address, the credentials in the environment, and the service itself"


class TierDamaged(RecordDamaged):
    """An object of the tier is not what its manifest says."""

    next_step = "see what else is damaged: pystore cold verify ADDRESS"


class TierTaken(StoreLocked):
    """Another writer has written to the queue, or holds a later epoch."""

    next_step = "let one writer push at a time; run it again to go on after the other's segments"
