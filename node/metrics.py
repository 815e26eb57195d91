"""The Prometheus metrics of a node, declared in one place with their meaning.

Histograms and counters are moved by whoever does the work; gauges that mirror the state of groups are collected when `/metrics` is read
(`http.py`). Names end in their unit.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

SYNC_SECONDS = Histogram("ledgermq_sync_seconds", "Duration of one group commit (fdatasync).", ["group"], buckets=_FAST, registry=REGISTRY)
TURN_SECONDS = Histogram("ledgermq_turn_seconds", "Duration of one turn of a broker group.", ["group"], buckets=_FAST, registry=REGISTRY)
FORWARDED_CALLS = Counter(
    "ledgermq_forwarded_calls_total", "Client calls this node sent to another leader, by result.", ["group", "result"], registry=REGISTRY
)
EXECUTED_CALLS = Counter(
    "ledgermq_executed_calls_total", "Client calls this node executed as leader for another node.", ["group"], registry=REGISTRY
)
PEER_PACKETS_DROPPED = Counter(
    "ledgermq_peer_packets_dropped_total", "Replication packets dropped because a peer's queue was full.", ["peer"], registry=REGISTRY
)
PEER_REFUSALS = Counter("ledgermq_peer_refusals_total", "Greetings refused on the peer port, by reason.", ["reason"], registry=REGISTRY)
PEER_CONNECTS = Counter("ledgermq_peer_connects_total", "Outgoing streams to a peer that were established.", ["peer"], registry=REGISTRY)
RECOVERY_SECONDS = Gauge(
    "ledgermq_recovery_seconds", "Duration of the last start of a broker group, by phase.", ["group", "phase"], registry=REGISTRY
)
