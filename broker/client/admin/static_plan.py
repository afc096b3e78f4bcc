"""What a change of a static topic brings to each broker (upstream TopicQueueMappingUtils). No
I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.client.errors import Misuse
from broker.wire.static_topics import Parts, QueuePart, TopicMapping
from pystore.meta.configfiles import TopicConfig

__all__ = ["StaticTopicFacts", "decided", "enlarged", "remapped", "rounded_up"]

#: Logical offsets of a new part are a multiple of this.
_BLOCK = 10_000
#: An epoch is so much higher than the one before, at least.
_EPOCH = 1000


@dataclass(frozen=True, slots=True)
class StaticTopicFacts:
    """A static topic as the brokers of a cluster have it, by their names. moved: of a change, the
    logical queues that get another broker, and which."""

    name: str
    configs: Mapping[str, TopicConfig]
    mappings: Mapping[str, TopicMapping]
    moved: Mapping[int, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return max((each.total for each in self.mappings.values()), default=0)

    @property
    def epoch(self) -> int:
        return max((each.epoch for each in self.mappings.values()), default=0)

    @property
    def queues(self) -> dict[int, Parts]:
        """The parts of each logical queue, as its leader has them."""
        return {
            queue: each.queues[queue] for each in self.mappings.values() for queue in each.led()
        }

    def followed(self) -> dict[int, QueuePart]:
        """Returns what the newest part of a logical queue follows, for each queue where that has no
        offset yet: a remapping did not end. Raises: Misuse."""
        found: dict[int, QueuePart] = {}
        for queue, (*before, newest) in sorted(self.queues.items()):
            if newest.is_decided:
                continue
            if not before:
                raise Misuse(f"the queue {queue} of {self.name} has one part, which has no offset")
            found[queue] = before[-1]
        return found

    def check(self) -> None:
        """Checks that the brokers agree. Raises: Misuse."""
        epochs = {name: each.epoch for name, each in self.mappings.items()}
        if len(set(epochs.values())) > 1 or len({m.total for m in self.mappings.values()}) > 1:
            raise Misuse(
                f"the brokers do not agree on the static topic {self.name}, a change may have ended"
                f" half way: their epochs are {epochs}. `remappingStaticTopic -mf` of mqadmin puts"
                " what it kept in a file"
            )
        missing = sorted(set(range(self.total)) - set(self.queues))
        if missing:
            raise Misuse(f"nobody leads the queues {missing} of {self.name}: is a broker down?")


def _next_epoch(facts: StaticTopicFacts, now_ms: int) -> int:
    return max(facts.epoch + _EPOCH, now_ms) if facts.mappings else now_ms


def _with_queue(config: TopicConfig) -> TopicConfig:
    count = config.write_queue_nums + 1
    return replace(
        config, write_queue_nums=count, read_queue_nums=max(count, config.read_queue_nums)
    )


def _put(
    facts: StaticTopicFacts, brokers: Sequence[str], queues: Mapping[str, Mapping[int, Parts]],
    configs: Mapping[str, TopicConfig], total: int, epoch: int, moved: Mapping[int, str],
) -> StaticTopicFacts:  # fmt: skip
    """Returns all brokers' mappings after a change; those that have no queue get an empty one."""
    empty = TopicMapping(facts.name, 0, "", 0)
    mappings = {}
    for name in sorted({*brokers, *facts.mappings}):
        old = facts.mappings.get(name, empty)
        mappings[name] = replace(
            old, broker=name, total=total, epoch=epoch,
            queues={**old.queues, **queues.get(name, {})},
        )  # fmt: skip
    none = TopicConfig(facts.name, 0, 0)
    return StaticTopicFacts(
        facts.name, {name: configs.get(name, none) for name in mappings}, mappings, dict(moved)
    )


def enlarged(
    facts: StaticTopicFacts, total: int, targets: Sequence[str], brokers: Sequence[str], now_ms: int
) -> StaticTopicFacts:
    """Returns a topic with more queues than before; it may be a new one. The new queues go to those
    of the targets that lead the fewest. brokers: of the cluster. Raises: Misuse."""
    facts.check()
    old = facts.queues
    if total <= len(old):
        raise Misuse(f"{facts.name} has {len(old)} queues: a static topic can only get more")
    configs = dict(facts.configs)
    load = Counter(dict.fromkeys(targets, 0))
    load.update(parts[-1].broker for parts in old.values() if parts[-1].broker in load)
    added: dict[str, dict[int, Parts]] = {}
    moved = {}
    for queue in range(len(old), total):
        broker = min(sorted(targets), key=lambda name: load[name])
        load[broker] += 1
        config = _with_queue(configs.get(broker, TopicConfig(facts.name, 0, 0)))
        configs[broker], moved[queue] = config, broker
        part = QueuePart(0, config.write_queue_nums - 1, broker, 0)
        added.setdefault(broker, {})[queue] = (part,)
    return _put(facts, brokers, added, configs, total, _next_epoch(facts, now_ms), moved)


def remapped(
    facts: StaticTopicFacts, targets: Sequence[str], brokers: Sequence[str], now_ms: int
) -> StaticTopicFacts:
    """Returns a topic whose queues are led by the targets, each by as many as the others; those
    that one of them leads already stay as far as that allows. Raises: Misuse."""
    facts.check()
    old = facts.queues
    load = Counter(parts[-1].broker for parts in old.values())
    share, more = divmod(len(old), len(targets))
    order = sorted(targets, key=lambda name: (-load[name], name))
    room = {name: share + (number < more) for number, name in enumerate(order)}
    waiting = []
    for queue, parts in sorted(old.items()):
        if room.get(parts[-1].broker, 0) > 0:
            room[parts[-1].broker] -= 1
        else:
            waiting.append(queue)
    free = [name for name in order for _ in range(room[name])]
    configs, moved = dict(facts.configs), dict[int, str]()
    changed: dict[str, dict[int, Parts]] = {}
    for queue, broker in zip(waiting, free, strict=True):
        parts = old[queue]
        config = _with_queue(configs.get(broker, TopicConfig(facts.name, 0, 0)))
        configs[broker], moved[queue] = config, broker
        new = QueuePart(parts[-1].generation + 1, config.write_queue_nums - 1, broker, -1)
        for name in (broker, parts[-1].broker):
            changed.setdefault(name, {})[queue] = (*parts, new)
    return _put(facts, brokers, changed, configs, facts.total, _next_epoch(facts, now_ms), moved)


def rounded_up(offset: int) -> int:
    """Returns the logical offset of the part that follows one which ends there
    (blockSeqRoundUp)."""
    blocks, rest = divmod(offset, _BLOCK)
    return (blocks + (1 if rest < _BLOCK // 2 else 2)) * _BLOCK


def decided(
    facts: StaticTopicFacts, ends: Mapping[tuple[str, int], int]
) -> Mapping[str, TopicMapping]:
    """Returns the mappings of the leaders whose newest parts get their offsets. ends: of the queues
    of brokers that these follow. Raises: Misuse."""
    made: dict[str, TopicMapping] = {}
    for queue, last in facts.followed().items():
        *before, newest = facts.queues[queue]
        end = ends.get((last.broker, last.queue))
        if end is None:
            raise Misuse(f"{last.broker} does not tell how far its queue {last.queue} goes")
        at = rounded_up(last.logical_of(end))
        mapping = made.get(newest.broker, facts.mappings[newest.broker])
        parts = (*before, newest._replace(logical=at))
        made[newest.broker] = mapping.with_queues({**mapping.queues, queue: parts})
    return made
