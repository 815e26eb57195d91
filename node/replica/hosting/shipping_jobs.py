"""Serves a broker group's files to peers, beside the turns: commits never wait for a request for
bytes.

`node/replica/shipping/shipping.py` decides what is served and at which rate; this module has the
bounded queue in front of it. The shipper belongs to the jobs of an executor of its own, which runs
one at a time; a node's has a thread from the first request on, and most groups never get one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger

REQUESTS_MAX = 256
"""At most this many requests wait. Further ones are dropped, and the peer repeats them."""

log = get_logger()


class ShippingJobs:
    """Passes requests to a shipper and its answers to `send`. `offer` and `close` belong to the
    loop."""

    def __init__(
        self,
        group: str,
        make: Callable[[], Shipper],
        *,
        executor: Executor,
        clock_ns: Callable[[], int],
    ) -> None:
        """`make` is called by a job, and again after a failure."""
        self.send: Callable[[Sequence[tuple[str, PeerPacket]]], None] = lambda packets: None
        """Sends packets to peers; may be called from any thread."""
        self._make = make
        self._executor = executor
        self._clock_ns = clock_ns
        self._dropped = metrics.SHIPPING_DROPPED.labels(group)
        self._requests: deque[tuple[str, PeerPacket]] = deque()
        self._shipper: Shipper | None = None
        self._continues = False
        """Whether a job is submitted for the streams in progress."""
        self._stopping = False

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Queue a request, or drop it if the queue is full."""
        if len(self._requests) >= REQUESTS_MAX:
            self._dropped.inc()
            return
        self._requests.append((sender, packet))
        # A job takes all requests, so the next jobs may find none.
        self._executor.submit(self._serve)

    def close(self) -> None:
        """End the jobs; streams in progress stop where they are."""
        self._stopping = True
        self._executor.shutdown(cancel_futures=True)
        if self._shipper is not None:
            self._shipper.close()

    # -- in jobs of the executor

    def _continue(self) -> None:
        self._continues = False
        self._serve()

    def _serve(self) -> None:
        requests = []
        with contextlib.suppress(IndexError):  # the loop only adds to the queue
            while True:
                requests.append(self._requests.popleft())
        try:
            self._shipper = self._shipper or self._make()
            output = self._shipper.turn(self._clock_ns(), requests)
        except Exception:  # the group is not affected; peers repeat their requests to a new shipper
            log.exception("serving files to peers failed")
            if self._shipper is not None:
                self._shipper.close()
                self._shipper = None
            return
        if output.packets:
            self.send(output.packets)
        if output.wake_at_ns >= 0 and not self._continues and not self._stopping:
            self._continues = True
            with contextlib.suppress(RuntimeError):  # the executor was shut down meanwhile
                self._executor.submit(self._continue)
