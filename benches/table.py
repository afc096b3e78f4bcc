"""Every bench: what it measures, what it can be told, and how it is started with small numbers.

`python -m benches` lists them, `python -m benches NAME` runs one. A row's module, benches/NAME.py,
has `bench(given)`, which measures and returns rows; harness.py does all that is not measuring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BENCHES", "Bench"]


class Bench(NamedTuple):
    """A row. options: what it can be told, and what holds otherwise: a tuple is a list with commas
    between its parts, of `only` all that there are. quick: arguments with which it takes seconds.
    kind: of its results, where that is not its name. beside: the peers are columns of what it
    shows. slow: `make bench-start` has it, and not `make test`. java: it starts a Java virtual
    machine."""

    name: str
    measures: str
    options: Mapping[str, Any]
    quick: str
    kind: str = ""
    beside: bool = False
    slow: bool = False
    java: bool = False


BENCHES = (
    Bench(
        "audit", "what `verify` and `rebuild` cost a core", {"count": 1_000_000}, "--count 2000",
        slow=True,
    ),
    Bench(
        "broker", "our broker and Apache's 5.3.3 and 5.5.0, under the same official client",
        {"peers": ("ours", "5.3.3", "5.5.0"),
         "only": ("start", "idle", "send", "batch", "consume", "latency", "e2e", "quiet", "many",
                  "delayed", "tx", "pop"),
         "warm": 20, "measure": 15, "rounds": 1},
        "--peers ours --only start,send,pop --warm 1 --measure 1", beside=True, slow=True,
        java=True,
    ),
    Bench(
        "client", "our Python client beside the official Java client, on our broker: rates,"
        " processor time, send to receipt, start of a fixture",
        {"rounds": 3, "seconds": 5.0}, "--rounds 1 --seconds 0.3", slow=True, java=True,
    ),
    Bench(
        "clients", "our client and broker beside those of NATS, Redis, Kafka and RocketMQ 5, with"
        " servers that `peer_servers.py` fetches; `only`: parts of names",
        {"rounds": 3, "seconds": 5.0, "only": ()}, "--rounds 1 --seconds 0.3 --only rocketmq",
        slow=True,
    ),
    Bench(
        "cold", "sends beside 32 readers of what is not in memory, and how often network threads"
        " wait for the disk",
        {"rounds": 3, "readers": 32, "seconds": 8.0, "mb": 2000},
        "--rounds 1 --seconds 0.3 --mb 20", slow=True,
    ),
    Bench(
        "cold_reads", "pulls of messages that are in a cold tier alone, whose requests take 30 ms,"
        " and sends beside them",
        {"rounds": 3, "mb": 2000, "readers": 16, "seconds": 8.0, "looks": 200},
        "--rounds 1 --mb 20 --readers 4 --seconds 0.3 --looks 10", slow=True,
    ),
    Bench(
        "dedup", "what idempotent produce costs: a send with and without it, memory, a start",
        {"count": 1_000_000}, "--count 2000", slow=True,
    ),
    Bench(
        "failover", "pairs of ours under Apache's controller and under etcd, and Apache's: a master"
        " killed, a planned move, synchronous sends",
        {"only": ("sync", "kill", "move"), "groups": ("controller", "etcd", "5.3.3"), "rounds": 20,
         "seconds": 5.0, "client": "java", "poll": 100},
        "--groups etcd --rounds 1 --seconds 0.3", slow=True, java=True,
    ),
    Bench(
        "formats", "the same rows out of a store, Parquet and Spark's Kafka source, in turns;"
        " 20,000 short queues",
        {"only": ("queues", "rows"), "rounds": 3}, "--rounds 1 --only queues", slow=True,
        java=True,
    ),
    Bench(
        "grpc_idle", "2,000 gRPC clients held in ReceiveMessage, beside Apache's proxy: memory a"
        " client, processor time",
        {"clients": 2000, "seconds": 60.0, "peers": ("ours", "5.3.3")},
        "--clients 5 --seconds 1 --peers ours", slow=True,
    ),
    Bench(
        "grpc_work", "gRPC beside Apache's proxy in local mode, by the official Java client: sends,"
        " receives, transactions, memory, start; `synced`: both with SYNC_FLUSH",
        {"peers": ("ours", "5.3.3"), "rounds": 3, "only": ("send", "take", "tx", "real", "start"),
         "count": 100_000, "synced": False},
        "--peers ours --rounds 1 --count 300", kind="grpc", slow=True, java=True,
    ),
    Bench(
        "iceberg", "a topic of JSON bodies into an Iceberg table, beside Spark's own way from files"
        " of that JSON",
        {"rounds": 3, "count": 1_000_000, "peers": ("ours", "spark")},
        "--rounds 1 --count 2000 --peers ours", slow=True, java=True,
    ),
    Bench(
        "jobs", "Spark jobs beside their references: `archive`, `verify`, `rebuild`, one and two"
        " executors",
        {"only": ("archive", "audits", "batch"), "rounds": 3},
        "--rounds 1 --only archive,audits", slow=True, java=True,
    ),
    Bench(
        "lite", "lite topics beside Apache's 5.5.0 with files and with RocksDB: sends,"
        " subscriptions, delivery, memory, a restart, expiry",
        {"only": ("sends", "subscribe", "delivery", "memory", "restart", "takeover", "expiry"),
         "peers": ("ours",), "topics": 10_000, "clients": 1, "count": 10_000, "rounds": 3},
        "--rounds 1 --count 200 --topics 200 --only sends,subscribe,delivery,memory,restart",
        slow=True,
    ),
    Bench(
        "namesrv", "a name server with 100 brokers of 10,000 topics, and clients that ask for"
        " routes, beside Apache's",
        {"peers": ("ours", "5.3.3"), "brokers": 100, "topics": 10_000, "seconds": 30.0},
        "--peers ours --brokers 4 --topics 200 --seconds 0.3", slow=True,
    ),
    Bench(
        "peers", "the same work by Apache RocketMQ's own store, py-lmdb and SQLite, in turns",
        {"rounds": 5}, "--rounds 1", slow=True,
    ),
    Bench(
        "pops", "POP and gRPC as they are used, and Apache's POP beside it: filters, unusual texts,"
        " access control, a PROXY header, `SYNC_FLUSH`",
        {"count": 20_000, "rounds": 3, "ways": ("pop", "take", "send"), "peers": ("ours",),
         "only": ("plain", "tags", "sql", "lost", "chinese", "compressed", "ordered", "synced",
                  "guarded", "header", "together")},
        "--rounds 1 --count 400 --only plain,together", slow=True,
    ),
    Bench(
        "replication", "masters and slaves: what a slave costs, synchronous pairs of ours and"
        " Apache's, catching up beside `cp`, memory, start",
        {"only": ("async", "sync", "one", "catch-up", "start"), "rounds": 3, "seconds": 5.0,
         "gb": 2.0},
        "--only async,one,catch-up,start --rounds 1 --seconds 0.3 --gb 0.01", slow=True, java=True,
    ),
    Bench(
        "sends", "what a send costs when the tables of the core decide, when Python does, and after"
        " a PROXY header",
        {"rounds": 7, "count": 20_000,
         "only": ("tables", "timed", "hook", "no id", "single", "header")},
        "--rounds 1 --count 200", slow=True,
    ),
    Bench(
        "signed", "what access control costs: a send that is signed beside one that is not, in the"
        " core and over sockets",
        {"rounds": 3, "seconds": 4.0, "count": 300_000}, "--rounds 1 --seconds 0.3 --count 1000",
        slow=True,
    ),
    Bench(
        "spark", "the Spark source beside one that yields a prepared batch: columns, what a"
        " partition costs, planning",
        {"only": ("columns", "partition", "plan")}, "", slow=True, java=True,
    ),
    Bench(
        "store", "the store alone: puts, `SYNC_FLUSH`, reads, Arrow, SQL92, starts, memory, delay"
        " levels",
        {"only": ("append", "put", "sync", "read", "sql", "recovery", "queues", "memory",
                  "levels")},
        "", slow=True,
    ),
    Bench(
        "tier", "writing messages out to a cold tier in a folder, and sends beside it",
        {"rounds": 3, "mb": 2000, "turns": 8, "seconds": 2.0},
        "--rounds 1 --mb 20 --turns 2 --seconds 0.3", slow=True,
    ),
    Bench(
        "tier_peers", "our tier beside that of Apache's 5.5.0 in a folder: writing out, reading it"
        " all by one client",
        {"peers": ("ours", "5.5.0"), "rounds": 3, "mb": 100},
        "--peers ours --rounds 1 --mb 4", beside=True, slow=True, java=True,
    ),
    Bench(
        "tier_reads", "reading a cold tier in a folder, and at 30 ms a request, beside the local"
        " store: from the beginning, by key, an hour of a year, by Spark",
        {"only": ("scan", "key", "hour", "spark"), "rounds": 3, "mb": 1000, "objects": 1000,
         "hours": 8760},
        "--rounds 1 --mb 20 --objects 20 --hours 30", slow=True, java=True,
    ),
    Bench(
        "timers", "how late timers are, and how fast; `pending`, say ten million: start, memory and"
        " idle time with so many instead",
        {"rate": 5000, "seconds": 3, "together": 100_000, "pending": 0},
        "--rate 200 --seconds 1 --together 500", slow=True,
    ),
    Bench(
        "transactions", "transactions beside 5.3.3 and 5.5.0; rounds of checks over a million"
        " pending ones",
        {"count": 1_000_000, "peers": ("ours", "5.3.3", "5.5.0"), "warm": 20, "measure": 15,
         "rounds": 3},
        "--count 1000 --peers=",
    ),
)  # fmt: skip
