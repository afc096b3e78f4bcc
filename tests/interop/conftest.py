"""Brokers to be judged. PS_JUDGE=java (or java,ours) judges Apache's broker, to prove the judge."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch

JUDGED = os.environ.get("PS_JUDGE", "ours").split(",")


@pytest.fixture(scope="module", params=JUDGED)
def peer(
    request: pytest.FixtureRequest, reference: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[launch.Peer]:
    """A running broker with its name server, one a module and make."""
    with launch.running(request.param, tmp_path_factory.mktemp("peer")) as made:
        yield made
