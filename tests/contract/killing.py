"""Somebody who kills the leader again and again, and starts it again at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ledgermq.node.local import LocalCluster
from tests import cluster as real

EVERY_S = 5.0


@contextmanager
def killed_leaders(cluster: LocalCluster, every_s: float = EVERY_S) -> Iterator[list[str]]:
    """Inside, the leader of g1 is killed every `every_s` seconds; yields the names of those killed so far."""
    killed: list[str] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def go_on() -> None:
        try:
            while not over.wait(every_s):
                victim = real.leader(cluster)
                cluster.kill(victim)
                killed.append(victim)
                cluster.start(victim)
                # One at a time: with two nodes away nobody could be served.
                cluster.wait_ready()
        except BaseException as error:  # told to the test, in its own thread
            failed.append(error)

    thread = threading.Thread(target=go_on, name="killer")
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]
