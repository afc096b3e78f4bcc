"""A run from a seed, of each kind: a group of models, a group with the members' own code, a hundred
brokers under one name server."""

from __future__ import annotations

import random
from collections.abc import Sequence

from model_members import ModelMember, model_group
from real_members import on_virtual_time, real_group
from virtual_fleet import Fleet
from virtual_time import Events
from virtual_world import FAULTS, Group

from broker.services.controlled.in_sync import InSync

__all__ = ["KINDS", "run_fleet", "run_model", "run_real"]

#: Within so many seconds of peace a group heals: a controller may take ten to notice an end, and a
#: slave fifteen to be late.
HEALS_S = 60.0


def _mix(group: Group, seed: int) -> None:
    """A third of the groups has one or two members that are like Java's."""
    if seed // 3 % 3 == 0:
        group.make_like_java(1 + seed // 9 % 2)


def run_model(
    seed: int,
    seconds: float = 30.0,
    *,
    heals: bool | None = None,
    make: type[ModelMember] = ModelMember,
) -> list[Group]:
    """heals: whether peace follows; of a seed alone: after one in eight. Raises: Violation."""
    events = Events(random.Random(seed))
    group = model_group(events, members=2 + seed % 3, fault_s=2.5, make=make)
    _mix(group, seed)
    group.send_each(1.0)
    group.fail_now_and_then()
    events.run_until(seconds)
    if heals or (heals is None and seed % 8 == 0):
        group.heal()
        events.run_until(seconds + HEALS_S)
        group.check_healed()
    return [group]


def run_real(
    seed: int, seconds: float = 40.0, *, rules: type[InSync] = InSync,
    kinds: Sequence[str] = FAULTS, send_s: float = 1.0,
) -> list[Group]:  # fmt: skip
    """kinds: of faults; send_s: between two sends. Raises: Violation."""
    events = Events(random.Random(seed))
    group = real_group(events, members=2 + seed % 3, fault_s=3.0)
    _mix(group, seed)
    with on_virtual_time([group], rules):
        group.kinds = kinds
        group.send_each(send_s)
        group.fail_now_and_then()
        events.run_until(seconds)
        group.heal()
        events.run_until(seconds + HEALS_S)
    group.check_healed()
    return [group]


def run_fleet(seed: int, seconds: float = 86_400.0) -> list[Group]:
    """33 groups, a hundred brokers. Each group has a fault in ten minutes. Raises: Violation."""
    events = Events(random.Random(seed))
    groups = [
        model_group(events, f"broker-{at}", members=4 if at == 0 else 3, fault_s=600.0)
        for at in range(33)
    ]
    for each in groups[::3]:
        each.make_like_java(1)
    fleet = Fleet(events, groups, send_s=20.0)
    for each in groups:
        each.fail_now_and_then()
    events.run_until(seconds)
    for each in groups:
        each.heal()
    # A name server forgets after two minutes who does not register any more.
    events.run_until(seconds + 180.0)
    fleet.check_healed()
    return list(groups)


KINDS = {"model": run_model, "real": run_real, "fleet": run_fleet}
