"""Writes `docs/metrics.md` from the declarations: `python -m ledgermq.node.runtime.metrics_page >
docs/metrics.md`.

A test compares the page with the declarations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ledgermq.node.runtime import mirrored
from ledgermq.node.runtime.metrics import DECLARED, Declared

_HEAD = """\
# Metrics

This page is generated from `node/runtime/metrics.py` and `node/runtime/mirrored.py`; do not edit it. Write it again with
`PYTHONPATH=src python -m ledgermq.node.runtime.metrics_page > docs/metrics.md`.

A node serves its metrics to Prometheus at `/metrics` of its HTTP port, and sends the same ones to an OpenTelemetry collector if
`metrics.otlp_endpoint` is set. Counters count since the process started; use `rate()` or `increase()`. A histogram has the samples
`_bucket`, `_sum` and `_count`. A node with several workers adds the label `worker` to every sample ([workers.md](workers.md)).
[monitoring.md](monitoring.md) sets up alerts and dashboards.
"""

_SECTIONS: tuple[tuple[str, str, Callable[[Declared], bool]], ...] = (
    (
        "Consumer groups",
        (
            "Exposed by each leader of a broker group that has queues of the topic; the counters"
            " also by former leaders. Add up over\n`broker_group` and nodes. At most"
            " `metrics.series_max` series of topics and consumer groups are exposed."
        ),
        lambda one: "consumer_group" in one.labels,
    ),
    (
        "Topics",
        (
            "Exposed by each leader of a broker group that has queues of the topic, and by its"
            " former leaders."
        ),
        lambda one: "topic" in one.labels,
    ),
    (
        "Broker groups",
        "Exposed by every node that has a replica of the broker group.",
        lambda one: "broker_group" in one.labels,
    ),
    ("Nodes", "Exposed by every node.", lambda one: True),
)


def page() -> str:
    """The whole page."""
    assert mirrored.STATISTICS, "importing the module declares its families"
    parts, left = [_HEAD], sorted(DECLARED, key=lambda one: one.name)
    for title, text, belongs in _SECTIONS:
        rows = [
            f"| `{one.name}` | {one.kind} | {_labels(one)} | {one.help} |"
            for one in left
            if belongs(one)
        ]
        left = [one for one in left if not belongs(one)]
        if rows:
            parts.append(
                "\n".join(
                    [
                        f"## {title}",
                        "",
                        text,
                        "",
                        "| metric | type | labels | meaning |",
                        "|---|---|---|---|",
                        *rows,
                    ]
                )
                + "\n"
            )
    return "\n".join(parts)


def _labels(one: Declared) -> str:
    return ", ".join(f"`{label}`" for label in one.labels)


if __name__ == "__main__":
    sys.stdout.write(page())
