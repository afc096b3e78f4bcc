"""YAML as a tree of texts: no tag is looked at but that of null, nothing is converted.

By libyaml where PyYAML has it, as in its wheels. Their composer calls itself for each level, so
that a hostile file would end the process; here the levels are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

__all__ = ["Mapping", "Node", "NotYaml", "Scalar", "Sequence", "compose", "write"]

#: Levels of lists and mappings. Access lists have five.
DEPTH_MAX = 32
_NULL = "tag:yaml.org,2002:null"
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


class NotYaml(Exception):
    """line: counted from 1; None where the reader does not say."""

    def __init__(self, why: str, line: int | None) -> None:
        super().__init__(why)
        self.line = line


@dataclass(slots=True)
class Node:
    """line: counted from 1."""

    line: int


@dataclass(slots=True)
class Scalar(Node):
    """text: as written; None for null."""

    text: str | None


@dataclass(slots=True)
class Sequence(Node):
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping(Node):
    pairs: list[tuple[Node, Node]] = field(default_factory=list)


@cache
def _library() -> tuple[Any, Any, Any]:
    """Returns PyYAML, its loader and its dumper: the import takes some 20 ms, which a start without
    such a file need not take."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml, loader, getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def compose(text: str) -> Node | None:
    """Reads the one document of a text; returns None for an empty one. Raises: NotYaml."""
    yaml, loader, _ = _library()
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise NotYaml("special characters are not allowed", line)
    made = _Composer()
    try:
        for event in yaml.parse(text, Loader=loader):
            made.take(event)
    except yaml.MarkedYAMLError as bad:
        mark = bad.problem_mark or bad.context_mark
        # The end of a file is a line of its own for libyaml.
        line = min(mark.line, text.count("\n")) + 1 if mark is not None else 1
        raise NotYaml(bad.problem or str(bad), line) from None
    except (yaml.YAMLError, ValueError) as bad:
        raise NotYaml(str(bad), None) from None
    return made.root


def write(value: Any) -> str:
    """Writes lists, dictionaries and scalars as YAML."""
    yaml, _, dumper = _library()
    text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return str(text)


class _Composer:
    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Sequence | Mapping] = []
        #: Of each open mapping that waits for a value: its key.
        self._keys: list[Node | None] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: yaml.Event) -> None:
        yaml, _, _ = _library()
        if isinstance(event, yaml.ScalarEvent):
            null = event.value in _NULLS if event.implicit[0] else event.tag == _NULL
            self._add(event, Scalar(_line(event), None if null else event.value))
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) == DEPTH_MAX:
                raise NotYaml(f"more than {DEPTH_MAX} levels", _line(event))
            is_list = isinstance(event, yaml.SequenceStartEvent)
            made = Sequence(_line(event)) if is_list else Mapping(_line(event))
            self._add(event, made)
            self._open.append(made)
            self._keys.append(None)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                raise NotYaml(f"the anchor {event.anchor} is not defined before", _line(event))
            self._put(known)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise NotYaml("a second document", _line(event))

    def _add(self, event: yaml.NodeEvent, node: Node) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._put(node)

    def _put(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif (key := self._keys[-1]) is None:
            self._keys[-1] = node
        else:
            self._keys[-1] = None
            parent.pairs.append((key, node))


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark is not None else 1
