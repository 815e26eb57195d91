"""The page of results: docs/soak.md from the records of all pieces. It computes nothing that the
records do not say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

HOURS = 24
INTRODUCTION = """\
# Soak

Real nodes under load and faults for hours. `python -m tests.soak --report` writes this page from `tests/soak/pieces.jsonl`, and a test
compares the two.

A piece is a fresh cluster of three nodes. Each node has an ext4 file system of its own, and the peers are connected through a proxy. The
clients are a native producer and a native consumer, `ledgermq sink parquet`, and a producer and a push consumer of the official Python
client. They make at most 5 native and 2 official messages a second: few, because each is a commit of its own, and a load that leaves the
processor free lets several pieces run at the same time. Faults are drawn from the seed of the piece: each kind once in random order, then
all kinds again (`tests/soak/faults.py`). After every fault the cluster must become whole by itself, and both producers must get 7 more
acknowledgements. At the end every acknowledged message is counted at each of the three receivers, the running cluster is audited, all nodes
must stop cleanly, and the audit of the three directories must pass. A piece that is interrupted counts nothing; one that fails is listed
with its reason.

A power cut stops the file systems at once, without their journals and dirty pages (`EXT4_IOC_SHUTDOWN`), before the processes end: what
was written and not synced is gone. An upgrade is a rolling restart with a build that reads one feature level more, or the way back. Nodes
of that build are started as `ledgermq serve`; the others are forks of a process that has already imported the program. Steps of the clock
are not tried, because all processes share the clock of the machine.
"""
MEANING = """\
Native messages must arrive exactly once, at the consumer and in the files. The official client is at least once: a message comes again
when the leader that leased it died before the acknowledgement, or when its lease ended while no leader could be reached. A send of the
official client without an answer may be stored, so more messages can arrive than were acknowledged.
"""
AGAIN = """\
## Start it

```bash
python -m tests.soak --hours 24    # until the record has 24 hours; Ctrl-C at any time, and the same command goes on
python -m tests.soak --report      # write this page
```

This needs Linux, root (to mount file systems), `mkfs.ext4`, a C compiler, and the environment of the tests. A piece takes 30 minutes. The
directory of a piece that fails stays in `.soak/`. Several commands may run at the same time, each with pieces, ports and file systems of
its own:

```bash
for _ in 1 2 3 4 5; do python -m tests.soak --hours 24 & done; wait
```
"""


def render(pieces: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    passed = [piece for piece in pieces if "failed" not in piece]
    failed = [piece for piece in pieces if "failed" in piece]
    parts = [INTRODUCTION, _summary(passed, failed)]
    if passed:
        parts += [_messages(passed), MEANING, _faults(passed), _memory(passed)]
    if failed:
        parts.append(_failed(failed))
    return "\n".join([*parts, AGAIN])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(
        f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in line)} |\n"
        for line in lines
    )


def _summary(passed: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]]) -> str:
    hours = sum(piece["seconds"] for piece in passed) / 3600
    text = (
        f"{hours:.1f} of {HOURS} hours under load, in {len(passed)} pieces that passed;"
        f" {len(failed)} failed."
    )
    if passed:
        days = [
            time.strftime("%Y-%m-%d", time.gmtime(piece["began_ms"] / 1000)) for piece in passed
        ]
        loads = [piece["load"] for piece in passed]
        text += (
            f" From {min(days)} to {max(days)}; commits"
            f" {', '.join(sorted({piece['commit'] for piece in passed}))}."
        )
        text += (
            f" The load average of the machine was between {min(loads)} and {max(loads)} in the"
            " mean of a piece."
        )
        text += (
            f" Audits of the running clusters and of their directories: {len(passed)} of"
            f" {len(passed)} PASS."
        )
    return f"## Results\n\n{text}\n"


def _messages(passed: Sequence[dict[str, Any]]) -> str:
    columns = ("sent", "acknowledged", "received", "lost", "duplicates")
    ways = {
        "native": "native consumer",
        "sink": "Parquet files of the sink",
        "official": "official Python client",
    }
    rows = [
        [name, *(sum(piece["messages"][way][column] for piece in passed) for column in columns)]
        for way, name in ways.items()
    ]
    return _table(["receiver", *columns], rows)


def _faults(passed: Sequence[dict[str, Any]]) -> str:
    counted: Counter[str] = Counter()
    for piece in passed:
        counted.update(piece["faults"])
    rows = [
        [
            kind,
            counted[kind],
            max((piece["longest_gap_s"].get(kind, 0.0) for piece in passed), default=0.0),
        ]
        for kind in sorted(counted)
    ]
    intro = (
        "The longest gap is the longest time in which no native message was acknowledged, from the"
        " beginning of a fault until the cluster\nwas whole again. If a fault takes away a"
        " majority, all nodes or all disks, the gap includes the fault itself.\n"
    )
    return f"## Faults\n\n{intro}\n" + _table(
        ["fault", "times", "longest gap in s"], [*rows, ["all", counted.total(), ""]]
    )


def _memory(passed: Sequence[dict[str, Any]]) -> str:
    quarters = [
        max(found[number] for piece in passed for found in piece["memory_mib"].values())
        for number in range(4)
    ]
    text = (
        "Anonymous memory of a node in MiB, the median of each quarter of a piece, at most: "
        + ", ".join(map(str, quarters))
    )
    return f"## Memory\n\n{text}. Faults restart nodes, so a process is younger than its piece.\n"


def _failed(failed: Sequence[dict[str, Any]]) -> str:
    rows = [
        [piece["seed"], piece["commit"], piece["failed"].replace("|", "/").replace("\n", " ")[:300]]
        for piece in failed
    ]
    return "## Failed pieces\n\n" + _table(["seed", "commit", "reason"], rows)
