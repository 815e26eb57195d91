"""Runs work while the leader is repeatedly killed and restarted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests import cluster as real

EVERY_S = 5.0


def hand_over(cluster: LocalCluster, to: str) -> None:
    """Ask for a transfer of the leadership until it is begun. It is refused while the node that was
    just restarted catches up."""
    request = admin_pb2.TransferLeadershipRequest(broker_group="g1", to=to)
    real.wait_for(
        lambda: real.admin(cluster, to, "TransferLeadership", request).status.code == 20000,
        60,
        f"a transfer to {to}",
    )


def under_kills(
    cluster: LocalCluster,
    work: Callable[[Sequence[str]], None],
    spared: str,
    every_s: float = EVERY_S,
) -> list[str]:
    """Run `work` in a thread, and kill the leader of g1 every `every_s` seconds until it returns.

    Returns the killed nodes in order, and raises the error of `work`. `work` gets the same list
    while it grows, so it can continue until enough nodes were killed, independent of the speed of
    the machine.

    `spared` is the node that clients are connected to, and is never killed; if it leads, it
    transfers its leadership first. `work` runs in its own thread rather than the killing, because a
    node ends with the thread that started it.
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
            # One node at a time: two missing nodes would leave no majority.
            cluster.wait_ready()
