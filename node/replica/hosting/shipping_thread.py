"""The thread of one broker group that serves its files to peers, beside the turns: commits never wait for a request of bytes.

What is served, and to whom how much, is `node/replica/shipping/shipping.py`; here live the bounded queue in front of it and the pace.
The thread begins with
the first request: most groups never get one.
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
"""So many requests wait; more are dropped, and asked again by whoever needs them."""

log = get_logger()


class ShippingThread:
    """Hands requests to a shipper and its answers to `send`. `offer` and `close` belong to the engine's thread."""

    def __init__(self, group: str, make: Callable[[], Shipper]) -> None:
        """`make` is called on the thread, and again after a failure."""
        self.send: Callable[[Sequence[tuple[str, PeerPacket]]], None] = lambda packets: None
        """Takes packets for peers, from any thread."""
        self._make = make
        self._dropped = metrics.SHIPPING_DROPPED.labels(group)
        self._requests: queue.Queue[tuple[str, PeerPacket] | None] = queue.Queue(REQUESTS_MAX)
        self._thread = threading.Thread(target=self._work, name=f"ship-{group}", daemon=True)
        self._stopping = False

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Take a request, or drop it when too many wait."""
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._requests.put_nowait((sender, packet))
        except queue.Full:
            self._dropped.inc()

    def close(self) -> None:
        """Streams end where they are."""
        self._stopping = True
        if self._thread.ident is not None:
            with contextlib.suppress(queue.Full):
                # A full queue is taken without this, and then the flag counts.
                self._requests.put_nowait(None)
            self._thread.join()

    def _work(self) -> None:
        while not self._stopping:
            shipper = self._make()
            try:
                self._serve(shipper)
            except Exception:  # the group is untouched; who asked asks again, others find a shipper that knows nothing of it
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
            # Everything that was there is taken.
            pass
        return found
