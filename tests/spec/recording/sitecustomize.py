"""Makes every replica of a real node record its steps: Python imports this module at its start if
its folder is on PYTHONPATH.

`SPEC_RECORD` names the folder for the records, one file for each process. Lines carry the machine's
monotonic clock, which orders the events of all processes: whatever depends on a message was
recorded after what the message tells.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ledgermq.node.replica.consensus import raft_replica
from tests.spec.recorder import Event, recorded

_file = os.open(
    Path(os.environ["SPEC_RECORD"]) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND
)


def record(event: Event) -> None:
    os.write(_file, (json.dumps({"ns": time.monotonic_ns(), **event}) + "\n").encode())


class RecordedReplica(raft_replica.RaftReplica):
    """Also records the end of each turn, after which its messages leave."""

    core_type = recorded(raft_replica.RaftReplica.core_type, record)

    def take(self, now_ns: int) -> Any:
        output = super().take(now_ns)
        record({"do": "told", "node": self.config.node})
        return output


raft_replica.RaftReplica = RecordedReplica  # type: ignore[misc]
