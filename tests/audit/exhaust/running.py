"""The small cluster as running nodes: the same damage, read through real gRPC up to a marker in the
log."""

from __future__ import annotations

from dataclasses import dataclass

from bench.audit_scan import CLUSTER, NODES
from ledgermq.audit.run.jobs import Audit
from tests.audit.exhaust.field import Field
from tests.audit.exhaust.ground import Changes
from tests.audit.fuzz.anatomy import Anatomy, Entry
from tests.audit.running_nodes import FakeCluster, FakeNode

READ = (
    r"data: (header|record|blank) ?.*|index: index .*|consumequeue: queue (position|size|tags"
    r" code)|state/snapshot: (?!v$).*|syncedmark: .*"
)
"""What of a running node is looked at as closely as at rest: what lies up to the marker, and what
was made of it."""


@dataclass(frozen=True, slots=True)
class _Point:
    pos: int
    size: int
    term: int
    chain: int


@dataclass(frozen=True)
class _Written:
    """A replica's log: its id, and where its entries stand."""

    one: Anatomy

    @property
    def log_id(self) -> str:
        return str(self.one.identity["log_id"])

    @property
    def entries(self) -> dict[int, _Point]:
        return {
            entry.index: _Point(
                int(entry.path[-20:]) + entry.at, entry.size, entry.term, entry.chain
            )
            for entry in self.one.entries
        }


def serving(field: Field, group: str) -> FakeCluster:
    """The nodes of one broker group. Its last entry is the marker."""
    replicas = {name: field.atlas.replicas[f"{name}/{group}"] for name in NODES}
    last: Entry = replicas["n1"].entries[-1]
    nodes = {
        name: FakeNode(name, field.ground.base / name, _Written(one), last.index)
        for name, one in replicas.items()
    }
    return FakeCluster(nodes, last.index, group=group, cluster_id=CLUSTER)


def audit_of(cluster: FakeCluster, field: Field, changes: Changes) -> Audit:
    """What an audit over `--endpoints` says of a case."""
    with field.ground.damaged(changes):
        return cluster.audit()
