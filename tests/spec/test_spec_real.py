"""Whether a real cluster under kills behaves as the specification says: each node records its
steps, and TLC checks the merged record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import pytest

from ledgermq.node.process.local import Child
from tests.cluster import leader
from tests.faults import histories
from tests.faults.faulty import TOPIC, FaultyCluster, faulty, judge
from tests.faults.histories import History, Sender
from tests.spec import traces
from tests.spec.recorder import Event
from tests.spec.test_spec_traces import accepted

pytestmark = [pytest.mark.slow, pytest.mark.verify]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACE_S = 0.1


class Paced(Sender):
    """Sends few messages, because TLC follows each of their steps."""

    def once(self, channel: grpc.Channel) -> bool:
        sent = super().once(channel)
        self.ended.wait(PACE_S)
        return sent


class RecordedCluster(FaultyCluster):
    """Nodes that record their steps (`recording/sitecustomize.py`)."""

    def start(self, node: str) -> Child:
        folder = self.directory / "records"
        folder.mkdir(exist_ok=True)
        paths = os.pathsep.join([str(HERE / "recording"), str(ROOT)])
        self.own_environment[node] = {"PYTHONPATH": paths, "SPEC_RECORD": str(folder)}
        return super().start(node)

    def events(self) -> list[Event]:
        """The events of all processes in the order of the machine's clock. A killed process may
        leave half a line."""
        events: list[dict[str, Any]] = []
        for path in sorted((self.directory / "records").iterdir()):
            events += [
                json.loads(line)
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ]
        events.sort(key=lambda event: event["ns"])
        return events


def test_a_real_cluster_under_kills_follows_the_specification(tmp_path: Path) -> None:
    """The leader, a follower and then all nodes are killed under load; every step that any of them
    took was allowed."""
    with faulty(tmp_path, kind=RecordedCluster) as cluster:
        assert isinstance(cluster, RecordedCluster)
        with (
            patch.object(histories, "Sender", Paced),
            History(cluster, TOPIC, senders=1) as history,
        ):
            for victims in (
                [leader(cluster)],
                [cluster.others(leader(cluster))[0]],
                list(cluster.nodes),
            ):
                for node in victims:
                    cluster.kill(node)
                if len(victims) == 1:
                    history.progress(10)
                for node in victims:
                    cluster.start(node)
                cluster.wait_ready()
                history.progress(10)
        judge(cluster, history)
    events = traces.without_heartbeats(traces.finished_turns(cluster.events()))
    assert (
        sum(event["do"] == "start" for event in events) >= 8
        and sum(event["do"] == "win" for event in events) >= 2
    )
    accepted(traces.observed(events, tuple(cluster.nodes), "majority"))
