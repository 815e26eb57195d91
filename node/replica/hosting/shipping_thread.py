"""The thread of one broker group that serves its files to peers, beside the turns: commits never wait for a request for bytes.

`node/replica/shipping/shipping.py` decides what is served and at which rate; this module has the bounded queue in front of it and the
timing. The thread starts with the first request: most groups never get one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger

REQUESTS_MAX = 256
"""At most this many requests wait. Further ones are dropped, and the peer repeats them."""

log = get_logger()


class ShippingThread:
    """Passes requests to a shipper and its answers to `send`. `offer` and `close` belong to the loop."""

    def __init__(self, group: str, make: Callable[[], Shipper]) -> None:
        """`make` is called on the thread, and again after a failure."""
        self.send: Callable[[Sequence[tuple[str, PeerPacket]]], None] = lambda packets: None
        """Sends packets to peers; may be called from any thread."""
        self._make = make
        self._dropped = metrics.SHIPPING_DROPPED.labels(group)
        self._requests: queue.Queue[tuple[str, PeerPacket] | None] = queue.Queue(REQUESTS_MAX)
        self._thread = threading.Thread(target=self._work, name=f"ship-{group}", daemon=True)
        self._stopping = False

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Queue a request, or drop it if the queue is full."""
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._requests.put_nowait((sender, packet))
        except queue.Full:
            self._dropped.inc()

    def close(self) -> None:
        """End the thread; streams in progress stop where they are."""
        self._stopping = True
        if self._thread.ident is not None:
            with contextlib.suppress(queue.Full):
                # The thread empties a full queue without this wake-up, and then sees the flag.
                self._requests.put_nowait(None)
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping:
            shipper = self._make()
            try:
                self._serve(shipper)
            except Exception:  # the group is not affected; peers repeat their requests to a new shipper
                log.exception("serving files to peers failed")
            finally:
                shipper.close()

    def _serve(self, shipper: Shipper) -> None:
        wake_at_ns = -1
        while not self._stopping:
            output = shipper.turn(time.monotonic_ns(), self._waiting(block=wake_at_ns < 0))
            wake_at_ns = output.wake_at_ns
            if output.packets:
                self.send(output.packets)

    def _waiting(self, *, block: bool) -> list[tuple[str, PeerPacket]]:
        found: list[tuple[str, PeerPacket]] = []
        try:
            item = self._requests.get(block=block)
            while item is not None:
                found.append(item)
                item = self._requests.get_nowait()
        except queue.Empty:
            # The queue is empty.
            pass
        return found
