"""What is decided stays decided although records around it are damaged."""

from __future__ import annotations

import pystore
from pystore.format.names import HALF_TOPIC
from pystore.store.pending_log import find_pending
from tests.museum import damage

COMMIT = 8


def test_decisions_after_a_damaged_record_are_found(store_path, small):
    properties = {"PGROUP": "g", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    with pystore.open(store_path, **small) as store:
        halves = [
            store.put(HALF_TOPIC, b"%d" % i, queue=0, properties=properties).physical_offset
            for i in range(3)
        ]
        for i in range(3):
            store.put(
                "orders", b"%d" % i, queue=0, sys_flag=COMMIT,
                prepared_transaction_offset=halves[i],
            )  # fmt: skip
    second = [r for r in damage.records(store_path) if r.topic == "orders"][1]
    damage.flip(second.file, second.at + 6, 3)
    with pystore.Reader(store_path) as reader:
        opened = find_pending(reader)
    assert [row.physical for row in opened.rows.values()] == [halves[1]]
