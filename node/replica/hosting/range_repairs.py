"""Ranges that an operator has put back while their group runs: who waits, and the pace.

One at a time, in steps on the thread of the group's life, so that no step runs beside the opening, letting go or repair of the same
directory. What is proven and written is `node/replica/shipping/range_repair.py`. Only `begin` hands anything out; everything here
belongs to the engine's
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.ports import RebuildOutput
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.node.runtime.logs import get_logger

PACKETS_MAX = 256
"""So many packets wait for the next step; older ones give way, and are asked for again."""
_NEVER_NS = 1 << 62

log = get_logger()


@dataclass(frozen=True, slots=True)
class RangePut:
    """What came of it. `refused`: it cannot be put back alone, for people; then nothing was changed but what is named in `repaired`."""

    repaired: tuple[str, ...] = ()
    written_bytes: int = 0
    source: str = ""
    refused: str | None = None


Submit = Callable[[Callable[[], RebuildOutput]], Future[RebuildOutput]]


class RangeRepairs:
    """Of one group. `submit` runs a step elsewhere; `wake` asks for a turn, from any thread."""

    def __init__(self, group: str, submit: Submit, wake: Callable[[], None]) -> None:
        self._group = group
        self._submit = submit
        self._wake = wake
        self.mended = 0
        """How many steps wrote something."""
        self._written = 0
        """By the repair at hand, as of its last step."""
        self._repair: RangeRepair | None = None
        self._left: RangeRepair | None = None
        """What was given up while a step of it was under way."""
        self._answer: Future[RangePut] = Future()
        self._step: Future[RebuildOutput] | None = None
        self._step_at_ns = _NEVER_NS
        self._packets: list[tuple[str, PeerPacket]] = []

    @property
    def busy(self) -> bool:
        return self._repair is not None or self._step is not None

    @property
    def wake_at_ns(self) -> int:
        return self._step_at_ns if self._repair is not None and self._step is None else _NEVER_NS

    def begin(self, repair: RangeRepair, now_ns: int) -> Future[RangePut]:
        """Not while another one is under way (`busy`)."""
        assert not self.busy, "a range is being put back"
        self._repair, self._answer, self._step_at_ns = repair, Future(), now_ns
        self._packets.clear()
        self._written = 0
        return self._answer

    def offer(self, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        """Packets of shipping that came in; they are nobody's while no range is being put back."""
        if self._repair is not None:
            self._packets += packets
            del self._packets[:-PACKETS_MAX]

    def turn(self, now_ns: int) -> tuple[tuple[str, PeerPacket], ...]:
        """Take the result of a step, begin the next one; returns what is to be sent. Raises what a write or a sync raised (I9)."""
        packets: tuple[tuple[str, PeerPacket], ...] = ()
        if self._step is not None and self._step.done():
            step, self._step = self._step, None
            output = step.result()
            repair = self._repair or self._left
            assert repair is not None, "a step of nothing"
            self.mended += repair.written_bytes > self._written
            self._written = repair.written_bytes
            if self._left is not None:
                self._left.close()
                self._left = None
            else:
                packets = self._take(output)
        if self._repair is not None and self._step is None and (self._packets or now_ns >= self._step_at_ns):
            repair, given = self._repair, self._packets
            self._packets = []
            self._step = self._submit(lambda: repair.turn(now_ns, given))
            self._step.add_done_callback(lambda _: self._wake())
        return packets

    def end(self, reason: str) -> None:
        """The group does not run any more. A step under way ends before anything else has the thread; `turn` takes its result."""
        if self._repair is None:
            return
        if self._step is None:
            self._repair.close()
        else:
            self._left = self._repair
        self._finish(RangePut(refused=reason))

    def _take(self, output: RebuildOutput) -> tuple[tuple[str, PeerPacket], ...]:
        repair = self._repair
        assert repair is not None, "a step of nothing"
        self._step_at_ns = output.wake_at_ns
        if output.finished or output.refused is not None:
            put = RangePut(tuple(repair.repaired), repair.written_bytes, repair.source, output.refused)
            for text in put.repaired:
                log.info("put back", group=self._group, what=text)
            repair.close()
            self._finish(put)
        return output.packets

    def _finish(self, put: RangePut) -> None:
        self._repair = None
        # Nobody may wait any more.
        if self._answer.set_running_or_notify_cancel():
            self._answer.set_result(put)
