"""Fills a store with one of everything; as a program it prints what is acknowledged."""

from __future__ import annotations

import json
import random
import struct
import sys
import zlib

import pystore

LONG_RETRY = "%RETRY%" + "g" * 121, "%RETRY%" + "retry-group_" * 20 + "end"
TAGS = ("TagA", "TagB", "标签", "AaAa", "BBBB", "polygenelubricants", "🚀tag", None)
BORN = 1_700_000_000_000
MIB = 1 << 20


def batch_payload(items):
    """The body of a client's batch: (body, properties) each."""
    out = b""
    for body, properties in items:
        rest = struct.pack(">ii", 0, len(body)) + body
        rest += struct.pack(">h", len(properties)) + properties
        out += struct.pack(">iii", 12 + len(rest), 0, 0) + rest
    return out


def compressed(text):
    """(sys_flag, bytes) of the kinds of compression that upstream writes."""
    import lz4.frame
    import zstandard

    return [
        (0x1, zlib.compress(text)),
        (0x301, zlib.compress(text, 9)),
        (0x101, lz4.frame.compress(text)),
        (0x201, zstandard.ZstdCompressor().compress(text)),
    ]


def uniq(n):
    return f"7F0000010001{n:020X}"


def fill(store, seed, rounds, told=lambda *facts: None, large=True):
    """Puts some of every kind; told(topic, put result, body) after each single one."""
    rng = random.Random(seed)

    def put(topic, body, **options):
        told(topic, store.put(topic, body, **options), body)

    for i in range(rounds):
        body = rng.randbytes(rng.randrange(600))
        put("plain", body, tags=rng.choice(TAGS))
        put(
            "keys",
            body,
            tags=rng.choice(TAGS),
            keys=[f"order-{i}", f"customer-{rng.randrange(7)}", f"键{rng.randrange(3)}"],
            properties={"UNIQ_KEY": uniq(i), "amount": str(i), "注": f"prop ü {i}"},
            flag=rng.randrange(-(1 << 31), 1 << 31),
        )
        if i % 10 == 0:
            host = rng.choice(
                ["10.0.0.1:40000", "[2001:db8::17]:50000", "[::1]:1", "1.2.3.4:65535"]
            )
            put("hosts", body, born_host=host, keys=f"h{i}", reconsume_times=i % 17)
            put(rng.choice(LONG_RETRY), body, keys=f"r{i}", queue=0)
            put("delayed", body, delay_level=1 + i % 18, tags="d", keys=f"d{i}")
            for flag, data in compressed(b"compress me %d " % i * 300):
                put(
                    "compressed",
                    data,
                    sys_flag=flag,
                    keys=f"c{i}",
                    born_timestamp=BORN + i,
                )
            put("%DLQ%group", b"", queue=0, properties={"ORIGIN_MESSAGE_ID": uniq(i)})
            put("t" * 127, body, queue=0)
        if i % 20 == 0:
            items = [
                (b"b%d-%d" % (i, k), f"KEYS\x01b{i}-{k}\x02TAGS\x01{TAGS[k]}\x02".encode())
                for k in range(1, 4)
            ]
            store.put_batch(
                "batch", batch_payload(items), queue=i % 4, properties={"UNIQ_KEY": uniq(10**6 + i)}
            )
            store.put_many(
                "many",
                [b"m%d" % k for k in range(30)],
                tags=["a", "", "标"] * 10,
                keys=[f"m{i}-{k}" for k in range(30)],
            )
        if large and i % max(1, rounds // 3) == 1:
            put("large", rng.randbytes(4 * MIB), keys=f"large{i}", queue=0)
    for sys_flag in (0x4, 0x8, 0xC):  # prepared, commit, rollback: as old brokers wrote them
        put("types", b"t", queue=0, sys_flag=sys_flag, prepared_transaction_offset=17, keys="type")


def main():
    """storewriter PATH SETTINGS SEED: fills round after round until it is killed."""
    path, settings, seed = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    out = sys.stdout

    def told(topic, put, body):
        data = body if isinstance(body, bytes) else body.encode()
        place = (topic, put.queue, put.queue_offset, put.physical_offset, zlib.crc32(data))
        out.write(json.dumps(place) + "\n")
        out.flush()

    store = pystore.open(path, **settings)
    for round_ in range(1000):
        fill(store, seed + round_, 60, told, large=False)


if __name__ == "__main__":
    main()
