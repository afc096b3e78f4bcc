"""What an audit finds: severities, what is common to all findings, the report.

Findings are data. What is said of one to people is made where it is shown (sentences.py)."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

__all__ = ["Audit", "Finding", "Kind", "Mend", "Severity", "Words"]


class Severity(enum.IntEnum):
    """How serious a finding is. ``ERROR``: messages are damaged, hidden or served wrongly.
    ``WARNING``: nothing is hidden, or the next open mends it. ``INFO``: worth knowing."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class Mend(enum.Enum):
    """Who mends a finding: ``pystore repair``; the next ``OPEN`` or start; the store ``ITSELF``
    while it runs or stops; an ``OPERATOR``, by what the fix says; ``NOTHING``."""

    REPAIR = enum.auto()
    OPEN = enum.auto()
    ITSELF = enum.auto()
    OPERATOR = enum.auto()
    NOTHING = enum.auto()


class Words:
    """A value of an enumeration of csrc/audit/findings.def: the core's number, and `words` for
    people."""

    _value_: Any
    words: str

    def __new__(cls, number: int, words: str) -> Self:
        made = object.__new__(cls)
        made._value_ = number
        made.words = words
        return made

    @classmethod
    def of(cls, number: int) -> Self:
        """Returns the value with this number. Raises: ValueError."""
        return cls(number)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Programs compare the `name`. `severity` holds unless the state of the store softens it. `where`
    says what ``start`` and ``end`` count ("log": bytes of the log, "queue": queue offsets, "index":
    entries, "file": bytes of the file, "": nothing). `mend` says who mends it. For people are
    `details`, the pattern of the sentence about one finding (sentences.py), `meaning`, what it
    means and what is lost, `java`, what Apache RocketMQ does with it, and `fix`, the command that
    mends it, in which ``STORE`` stands for the path."""

    name: str
    severity: Severity
    where: str
    mend: Mend
    details: str
    meaning: str
    java: str
    fix: str


_OF_ITS_KIND: Any = None  # a severity that was not given


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing; each kind is a class with fields of its own
    (kinds.py).

    `file` is relative to the store's root. `start` and `end` are the range concerned, counted as
    the kind says (:attr:`Kind.where`), or None when there is none. `count` says how many records,
    units, entries or keys are concerned, or None when nobody knows. `topic` and `queue` name the
    queue, or are None. `open_mends` says that the next open writes again what is wrong here."""

    about: ClassVar[Kind]
    #: Field, and of ps_finding the field and how it is converted.
    from_core: ClassVar[Mapping[str, tuple[str, Callable[[int], Any]]]] = {}

    file: str
    severity: Severity = _OF_ITS_KIND
    start: int | None = None
    end: int | None = None
    count: int | None = None
    topic: str | None = None
    queue: int | None = None
    open_mends: bool = False

    def __init_subclass__(cls) -> None:
        """Lets help() say what a finding of the kind means."""
        cls.__doc__ = f"{cls.about.meaning[0].upper()}{cls.about.meaning[1:]}."

    def __post_init__(self) -> None:
        """Takes the severity of its kind, where none was given."""
        if self.severity is _OF_ITS_KIND:
            object.__setattr__(self, "severity", self.about.severity)

    @property
    def kind(self) -> str:
        """Returns the name of its kind."""
        return self.about.name

    @property
    def meaning(self) -> str:
        """Returns what it means and what is lost."""
        return self.about.meaning

    @property
    def java(self) -> str:
        """Returns what Apache RocketMQ does with it."""
        return self.about.java

    @property
    def fix(self) -> str:
        """Returns the command that mends it."""
        return self.about.fix

    @property
    def details(self) -> dict[str, Any]:
        """Returns the fields that its kind alone has, ready for JSON."""
        own = [each.name for each in fields(self) if each.name not in _COMMON]
        return {name: _plain(getattr(self, name)) for name in own}

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        common = {name: _plain(getattr(self, name)) for name in _COMMON}
        about = {"meaning": self.meaning, "java": self.java, "fix": self.fix}
        return {"kind": self.kind, **common, "details": self.details, **about}


_COMMON = [each.name for each in fields(Finding)]


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) else value


@dataclass(slots=True)
class Audit:
    """What :func:`pystore.audit.verify` saw.

    `state` is "live", "closed" or "crashed". `bytes` are those of the log that were read, and
    `records` counts whole ones. `not_dispatched` and `not_indexed` count records and keys at the
    end of the log that queues and index do not hold yet, which is normal for a live store and
    mended by the next open of a crashed one; without records that no open puts into a queue, which
    are findings of their own. `dropped` counts findings beyond what is kept.
    `seconds` is wall time. `segment_keys` says how many of `keys` each segment holds."""

    path: str
    state: str
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    queues: int = 0
    index_files: int = 0
    bytes: int = 0
    records: int = 0
    units: int = 0
    keys: int = 0
    log_min: int = 0
    log_max: int = 0
    not_dispatched: int = 0
    not_indexed: int = 0
    dropped: int = 0
    seconds: float = 0.0
    segment_keys: list[int] = field(default_factory=list, repr=False)

    @property
    def errors(self) -> list[Finding]:
        """Returns the findings of severity ``ERROR``."""
        return [f for f in self.findings if f.severity is Severity.ERROR]

    @property
    def sound(self) -> bool:
        """Returns whether nothing is damaged, hidden or served wrongly."""
        return not self.errors

    @property
    def next_step(self) -> str:
        """Returns the one thing to do; it is empty when there is nothing to do."""
        if not self.errors:
            mends = any(f.open_mends or f.about.mend is Mend.OPEN for f in self.findings)
            return "nothing: the next open mends it" if mends else ""
        own = sorted({f.fix for f in self.errors if f.about.mend is not Mend.REPAIR})
        repair = any(f.about.mend is Mend.REPAIR for f in self.errors)
        return "; ".join([*own, *([f"pystore repair {self.path}"] if repair else [])])

    def counts(self) -> dict[str, int]:
        """Returns how many findings there are of each kind, by name."""
        return dict(Counter(f.kind for f in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        out = asdict(replace(self, findings=[], segment_keys=[]))
        del out["segment_keys"]
        return {**out, "sound": self.sound, "findings": [f.as_dict() for f in self.findings]}
