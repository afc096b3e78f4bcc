"""kill -9 at any moment: nothing acknowledged is lost, and queues and index agree with the log."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import storeview
from waiting import until

import pystore

sys.path.insert(0, str(Path(__file__).parent))
import audit

ROUNDS = int(os.environ.get("PS_CRASH_ROUNDS", "5"))
WRITER = Path(__file__).with_name("writer.py")


def some_settings(rng: random.Random) -> dict:
    """Small files, and each mode by chance."""
    return {
        "mappedFileSizeCommitLog": rng.choice((64 << 10, 256 << 10, 1 << 20)),
        "mappedFileSizeConsumeQueue": rng.choice((400, 6000)),
        "maxHashSlotNum": 64,
        "maxIndexNum": rng.choice((100, 1024)),
        "flushDiskType": rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
        "enabledAppendPropCRC": rng.random() < 0.3,
        "flushIntervalCommitLog": rng.choice((10, 500)),
        "flushIntervalConsumeQueue": rng.choice((10, 1000)),
    }


def run_and_kill(path, settings, ledger, rng, threads=4, early=False):
    """Starts a writer and kills it once it acknowledges, or with `early` at any time."""
    args = [WRITER, path, json.dumps(settings), ledger, rng.randrange(1 << 30), threads]
    size = ledger.stat().st_size if ledger.exists() else 0
    writer = subprocess.Popen([sys.executable, *map(str, args)], stderr=subprocess.PIPE, text=True)
    try:

        def acknowledges():
            assert writer.poll() is None, writer.stderr.read()
            return ledger.exists() and ledger.stat().st_size > size

        if not early:
            until(acknowledges, "a put that is acknowledged")
        time.sleep(rng.random() * (0.5 if early else 0.6))
        assert writer.poll() is None, writer.stderr.read()
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_killed_writer_loses_nothing(store_path, tmp_path, seed, round_):
    """After a kill under load every acknowledged message is there, in order, with queue and key."""
    rng = random.Random(seed + round_)
    settings = some_settings(rng)
    print(settings)
    ledger_path = tmp_path / "ledger"
    run_and_kill(store_path, settings, ledger_path, rng)
    ledger = audit.ledger_of(ledger_path)
    assert ledger
    with pystore.open(store_path) as store:
        assert store.report.mode is pystore.RecoveryMode.ABNORMAL
        count = audit.check_queues(store)
        assert count >= len(ledger)
        audit.check_acknowledged(store, ledger)
        audit.check_goes_on(store)
        before = audit.fingerprint(store)
    with pystore.open(store_path) as store:
        assert store.report.mode is pystore.RecoveryMode.NORMAL
        assert audit.fingerprint(store) == before
        audit.check_acknowledged(store, ledger)


@pytest.mark.parametrize("round_", range(max(1, ROUNDS // 10)))
def test_killed_again_and_again(store_path, tmp_path, seed, round_):
    """Kill after kill on one folder, during recovery too: what was ever acknowledged stays."""
    rng = random.Random(seed + round_)
    settings = some_settings(rng)
    print(settings)
    ledger_path = tmp_path / "ledger"
    for kill in range(5):
        run_and_kill(store_path, settings, ledger_path, rng, threads=2, early=kill % 2 == 1)
        settings["flushDiskType"] = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
    ledger = audit.ledger_of(ledger_path)
    with pystore.open(store_path) as store:
        audit.check_queues(store)
        audit.check_acknowledged(store, ledger)
        audit.check_goes_on(store)


def test_reader_between_kill_and_recovery(store_path, tmp_path, seed):
    """A Reader shows a killed store as recovery will leave it, and writes nothing."""
    rng = random.Random(seed)
    settings = some_settings(rng)
    print(settings)
    ledger_path = tmp_path / "ledger"
    run_and_kill(store_path, settings, ledger_path, rng)
    ledger = audit.ledger_of(ledger_path)
    before = storeview.folder_hash(store_path)
    with pystore.Reader(store_path) as reader:
        audit.check_queues(reader)
        audit.check_acknowledged(reader, ledger)
        seen = audit.fingerprint(reader)
    assert storeview.folder_hash(store_path) == before
    with pystore.open(store_path) as store:
        assert audit.fingerprint(store) == seen


def test_interrupted_recovery(store_path, tmp_path, seed):
    """A recovery that is interrupted leaves the folder to the next open, which finishes it."""
    rng = random.Random(seed)
    settings = some_settings(rng)
    ledger_path = tmp_path / "ledger"
    run_and_kill(store_path, settings, ledger_path, rng)

    def interrupt(*_):
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            pystore.open(store_path, progress=interrupt)
    with pystore.open(store_path) as store:
        audit.check_queues(store)
        audit.check_acknowledged(store, audit.ledger_of(ledger_path))
