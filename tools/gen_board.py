"""Makes the Grafana board of a cluster: broker/metrics/board.json.

python tools/gen_board.py           writes it
python tools/gen_board.py --check   changes nothing, exits 1 when it is stale
"""

from __future__ import annotations

import json
import sys
from typing import Any

import generated

BOARD = generated.ROOT / "broker" / "metrics" / "board.json"

#: Rows of panels: title; then of each panel its title, unit, and queries with their legends. $of is
#: replaced by the labels that the board's variables choose.
ROWS: tuple[tuple[str, tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]], ...] = (
    ("Brokers", (
        ("Up and ready", "none", (
            ("pystore_ready$of", "{{node_id}} ready"),
            ("pystore_healthy$of", "{{node_id}} healthy"))),
        ("Messages in a second", "ops", (
            ("sum by (node_id) (rate(rocketmq_messages_in_total$of[$__rate_interval]))",
             "{{node_id}}"),)),
        ("Messages out a second", "ops", (
            ("sum by (node_id) (rate(rocketmq_messages_out_total$of[$__rate_interval]))",
             "{{node_id}}"),)),
        ("Bytes in and out a second", "Bps", (
            ("sum by (node_id) (rate(rocketmq_throughput_in_total$of[$__rate_interval]))",
             "{{node_id}} in"),
            ("sum by (node_id) (rate(rocketmq_throughput_out_total$of[$__rate_interval]))",
             "{{node_id}} out"))),
        ("99 % of sends take less than", "ms", (
            ("histogram_quantile(0.99, sum by (node_id, le) (rate("
             "rocketmq_rpc_latency_milliseconds_bucket"
             "$of_and{request_code=~\"send.*\"}[$__rate_interval])))", "{{node_id}}"),)),
        ("Requests a second", "ops", (
            ("sum by (request_code) (rate(rocketmq_rpc_latency_milliseconds_count"
             "$of[$__rate_interval]))", "{{request_code}}"),)),
    )),
    ("Topics and groups", (
        ("Messages in a second, by topic", "ops", (
            ("topk(10, sum by (topic) (rate(rocketmq_messages_in_total"
             "$of_and{is_system=\"false\"}[$__rate_interval])))", "{{topic}}"),)),
        ("Lag in messages", "none", (
            ("topk(10, sum by (consumer_group, topic) (rocketmq_consumer_lag_messages$of))",
             "{{consumer_group}} {{topic}}"),)),
        ("Age of the first message not consumed", "ms", (
            ("topk(10, max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds"
             "$of))", "{{consumer_group}} {{topic}}"),)),
        ("Dead letters in an hour", "none", (
            ("sum by (consumer_group, topic) (increase(rocketmq_send_to_dlq_messages_total"
             "$of[1h]))", "{{consumer_group}} {{topic}}"),)),
        ("Returned for a retry, a second", "ops", (
            ("sum by (consumer_group, topic) (rate(pystore_sent_back_total"
             "$of[$__rate_interval]))", "{{consumer_group}} {{topic}}"),)),
        ("Open transactions and timers", "none", (
            ("sum by (node_id) (rocketmq_half_messages$of)", "{{node_id}} transactions"),
            ("rocketmq_timer_pending$of", "{{node_id}} timers"))),
    )),
    ("Lite topics", (
        ("Lite topics and subscriptions", "none", (
            ("pystore_lite_topics$of", "{{node_id}} lite topics"),
            ("pystore_lite_subscriptions$of", "{{node_id}} subscriptions"))),
        ("Lite topics with something to read", "none", (
            ("topk(10, sum by (consumer_group, topic) (pystore_lite_topics_behind$of))",
             "{{consumer_group}} {{topic}}"),)),
        ("Lite topics whose client has not popped yet", "none", (
            ("pystore_lite_events$of", "{{node_id}}"),)),
    )),
    ("Store", (
        ("Behind: disk and queues", "bytes", (
            ("rocketmq_storage_flush_behind_bytes$of", "{{node_id}} disk"),
            ("rocketmq_storage_dispatch_behind_bytes$of", "{{node_id}} queues"))),
        ("99 % of puts take less than", "s", (
            ("histogram_quantile(0.99, sum by (node_id, le) (rate(pystore_store_put_seconds_bucket"
             "$of[$__rate_interval])))", "{{node_id}}"),)),
        ("A sync takes", "s", (
            ("rate(pystore_store_sync_seconds_total$of[$__rate_interval])"
             " / rate(pystore_store_syncs_total$of[$__rate_interval])", "{{node_id}}"),)),
        ("Free disk", "bytes", (
            ("pystore_store_disk_bytes$of_and{of=\"free\"}", "{{node_id}} {{folder}}"),)),
        ("Commit log in memory", "bytes", (
            ("pystore_store_page_bytes$of_and{state=\"resident\"}", "{{node_id}}"),)),
        ("Age of the oldest message", "ms", (
            ("rocketmq_storage_message_reserve_time_milliseconds$of", "{{node_id}}"),)),
        ("Slaves are behind", "bytes", (
            ("pystore_ha_slave_lag_bytes$of", "{{node_id}} {{slave}}"),)),
    )),
    ("The process", (
        ("Connections", "none", (
            ("pystore_connections$of", "{{node_id}} {{listener}}"),)),
        ("The event loop is late by", "s", (
            ("pystore_loop_delay_seconds$of", "{{node_id}}"),)),
        ("Held pulls", "none", (("pystore_held_pulls$of", "{{node_id}}"),)),
        ("99 % of gRPC calls take less than", "s", (
            ("histogram_quantile(0.99, sum by (method, le) (rate(pystore_grpc_call_seconds_bucket"
             "$of[$__rate_interval])))", "{{method}}"),)),
        ("gRPC calls a second", "ops", (
            ("sum by (method) (rate(pystore_grpc_call_seconds_count$of[$__rate_interval]))",
             "{{method}}"),)),
    )),
)  # fmt: skip

_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3
_OF = '{cluster=~"$cluster",node_id=~"$broker"}'


def query_text(query: str) -> str:
    """Returns a query with the choices of the board's variables."""
    merged = query.replace("$of_and{", _OF.removesuffix("}") + ",")
    return merged.replace("$of", _OF)


def _panel(number: int, x: int, y: int, title: str, unit: str, queries: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + n), "expr": query_text(query), "legendFormat": legend}
            for n, (query, legend) in enumerate(queries)
        ],
    }


def panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "gridPos": place, "panels": []}
        )
        y += 1
        for n, panel in enumerate(row):
            x = n % _ACROSS * _WIDTH
            made.append(_panel(len(made) + 1, x, y + n // _ACROSS * _HEIGHT, *panel))
        y += -(-len(row) // _ACROSS) * _HEIGHT
    return made


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def board_text() -> str:
    board = {
        "title": "RocketMQ brokers",
        "uid": "rocketmq-pystore",
        "tags": ["rocketmq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "Cluster", "label_values(rocketmq_topic_number, cluster)"),
                _variable(
                    "broker", "Broker",
                    'label_values(rocketmq_topic_number{cluster=~"$cluster"}, node_id)',
                ),
            ]
        },
        "panels": panels(),
    }  # fmt: skip
    return json.dumps(board, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(generated.main({BOARD: board_text()}, __doc__, sys.argv[1:]))
