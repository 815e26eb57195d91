"""Work that goes on while the leader is killed again and again, and started again at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests import cluster as real

EVERY_S = 5.0


def hand_over(cluster: LocalCluster, to: str) -> None:
    """Let another node lead."""
    answer = real.admin(cluster, to, "TransferLeadership", admin_pb2.TransferLeadershipRequest(broker_group="g1", to=to))
    assert answer.status.code == 20000, answer.status.message


def under_kills(cluster: LocalCluster, work: Callable[[Sequence[str]], None], spared: str, every_s: float = EVERY_S) -> list[str]:
    """Run `work` in a thread, and kill the leader of g1 every `every_s` seconds until it returns.

    Returns the nodes that were killed, in order, and raises what `work` raised. `work` gets the same list while it grows, so that it can
    go on until enough nodes were killed, however fast the machine is.

    `spared` is the node that clients are connected to: what its death does to a call is the client's business. When it leads, it hands
    over first. The work has a thread of its own, not the killing: a node ends with the thread that started it.
    """
    killed: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        doing = threads.submit(work, killed)
        while True:
            try:
                doing.result(every_s)
                return killed
            except NotYet:
                if doing.done():
                    raise
            victim = real.leader(cluster)
            if victim == spared:
                hand_over(cluster, next(node for node in cluster.nodes if node != spared))
                continue
            cluster.kill(victim)
            killed.append(victim)
            cluster.start(victim)
            # One at a time: with two nodes away nobody could be served.
            cluster.wait_ready()
