"""Restores ranges of entries that an operator names, while their group runs: one repair at a time,
one step after the other.

The steps run on the group's life thread, so that no step runs beside the opening, closing or repair
of the same directory. `node/replica/shipping/range_repair.py` verifies and writes the bytes.
Everything here belongs to the loop; only the future that `begin` returns leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ledgermq.node.broker.plan import NEVER_NS
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.ports import RangePut
from ledgermq.node.replica.shipping.ports import RebuildOutput
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.node.runtime.logs import get_logger

PACKETS_MAX = 256
"""At most this many packets wait for the next step. Older ones are dropped, and the repair requests
them again."""

log = get_logger()


Submit = Callable[[Callable[[], RebuildOutput]], Future[RebuildOutput]]


class RangeRepairs:
    """The range repairs of one group. `submit` runs a step on another thread; `wake` requests a
    turn, from any thread."""

    def __init__(self, group: str, submit: Submit, wake: Callable[[], None]) -> None:
        self._group = group
        self._submit = submit
        self._wake = wake
        self.mended = 0
        """Number of steps that wrote something."""
        self._written = 0
        """Bytes written by the current repair up to its last step."""
        self.repair: RangeRepair | None = None
        self._left: RangeRepair | None = None
        """The repair that was aborted while one of its steps ran."""
        self._answer: Future[RangePut] = Future()
        self.step: Future[RebuildOutput] | None = None
        self._step_at_ns = NEVER_NS
        self._packets: list[tuple[str, PeerPacket]] = []

    @property
    def busy(self) -> bool:
        return self.repair is not None or self.step is not None

    @property
    def wake_at_ns(self) -> int:
        return self._step_at_ns if self.repair is not None and self.step is None else NEVER_NS

    def begin(self, repair: RangeRepair, now_ns: int) -> Future[RangePut]:
        """Begin a repair. Only allowed while none is in progress (`busy`)."""
        assert not self.busy, "a range is being put back"
        self.repair, self._answer, self._step_at_ns = repair, Future(), now_ns
        self._packets.clear()
        self._written = 0
        return self._answer

    def offer(self, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        """Take received shipping packets; they are ignored while no repair is in progress."""
        if self.repair is not None:
            self._packets += packets
            del self._packets[:-PACKETS_MAX]

    def turn(self, now_ns: int) -> tuple[tuple[str, PeerPacket], ...]:
        """Take the result of a step and begin the next one; returns packets to send. Raises the
        error of a failed write or sync (I9)."""
        packets: tuple[tuple[str, PeerPacket], ...] = ()
        if self.step is not None and self.step.done():
            step, self.step = self.step, None
            output = step.result()
            repair = self.repair or self._left
            assert repair is not None, "a step without a repair"
            self.mended += repair.written_bytes > self._written
            self._written = repair.written_bytes
            if self._left is not None:
                self._left.close()
                self._left = None
            else:
                packets = self._take(output)
        if (
            self.repair is not None
            and self.step is None
            and (self._packets or now_ns >= self._step_at_ns)
        ):
            repair, given = self.repair, self._packets
            self._packets = []
            self.step = self._submit(lambda: repair.turn(now_ns, given))
            self.step.add_done_callback(lambda _: self._wake())
        return packets

    def end(self, reason: str) -> None:
        """Abort the repair because the group stops. A step in progress ends before any other job of
        the thread; `turn` takes its result."""
        if self.repair is None:
            return
        if self.step is None:
            self.repair.close()
        else:
            self._left = self.repair
        self._finish(RangePut(refused=reason))

    def _take(self, output: RebuildOutput) -> tuple[tuple[str, PeerPacket], ...]:
        repair = self.repair
        assert repair is not None, "a step without a repair"
        self._step_at_ns = output.wake_at_ns
        if output.finished or output.refused is not None:
            put = RangePut(
                tuple(repair.repaired), repair.written_bytes, repair.source, output.refused
            )
            for text in put.repaired:
                log.info("put back", group=self._group, what=text)
            repair.close()
            self._finish(put)
        return output.packets

    def _finish(self, put: RangePut) -> None:
        self.repair = None
        # The caller may have cancelled its wait.
        if self._answer.set_running_or_notify_cancel():
            self._answer.set_result(put)
