"""The progress of a leader's followers: what each one lacks, at which rate it receives entries, and
when it will have caught up. The result is for status output and metrics only; no decision depends
on it.

Rates cover the last `WINDOW_NS`, with one sample a second. What a follower lacks shrinks by what it
receives and grows by what the leader appends. The estimated time is the lack divided by the rate at
which it shrinks, and unknown while it does not shrink. Time is monotonic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledgermq.proto.types import PeerProgress, Role

SECOND = 1_000_000_000
SAMPLE_NS = SECOND
WINDOW_NS = 10 * SECOND
PROBING, FLOWING, INSTALLING, RESTARTED = (
    "probing",
    "flowing",
    "installing",
    "restarted-from-compare",
)
STATES = (PROBING, FLOWING, INSTALLING, RESTARTED)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int
    index: int
    pos: int
    behind: int


class CatchUp:
    """The followers of one leading replica; empty on other replicas. `pos_after`: index → position
    at which the next entry begins or will begin. `lag_ms`: index → age of that entry, or of the
    first one that the log still has."""

    def __init__(self, pos_after: Callable[[int], int], lag_ms: Callable[[int], int]) -> None:
        self._pos_after = pos_after
        self._lag_ms = lag_ms
        self._samples: dict[str, deque[_Sample]] = {}
        self._restarts: dict[str, tuple[int, int]] = {}
        """Node → the number of restarts seen, and the time of the last one."""
        self._next_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether a second has passed since the last sample."""
        return now_ns >= self._next_ns

    def look(self, peers: Sequence[PeerProgress], end_pos: int, now_ns: int) -> list[str]:
        """Sample every peer; returns the nodes whose log comparison was restarted since the last
        sample."""
        self._next_ns = now_ns + SAMPLE_NS
        names = {peer.node for peer in peers}
        self._samples = {node: samples for node, samples in self._samples.items() if node in names}
        self._restarts = {node: known for node, known in self._restarts.items() if node in names}
        for peer in peers:
            self._sample(peer, end_pos, now_ns)
        return [peer.node for peer in peers if self._is_restarted(peer, now_ns)]

    def _sample(self, peer: PeerProgress, end_pos: int, now_ns: int) -> None:
        samples = self._samples.setdefault(peer.node, deque())
        if peer.end_index is None:
            return
        pos = self._pos_after(peer.end_index)
        if samples and peer.end_index < samples[-1].index:
            # The peer lost entries, so its former rate says nothing about the future.
            samples.clear()
        samples.append(_Sample(now_ns, peer.end_index, pos, max(0, end_pos - pos)))
        while samples[0].at_ns < now_ns - WINDOW_NS:
            samples.popleft()

    def _is_restarted(self, peer: PeerProgress, now_ns: int) -> bool:
        known, _ = self._restarts.get(peer.node, (0, 0))
        if peer.restarts > known:
            self._restarts[peer.node] = peer.restarts, now_ns
        return peer.restarts > known

    def annotated(
        self, peers: Sequence[PeerProgress], end_index: int, notes: Mapping[str, str], now_ns: int
    ) -> tuple[PeerProgress, ...]:
        """The peers with the measured progress added. `notes`: node → the reason why it is not in
        its regular role."""
        return tuple(
            [self._annotated(peer, end_index, notes.get(peer.node, ""), now_ns) for peer in peers]
        )

    def _annotated(
        self, peer: PeerProgress, end_index: int, note: str, now_ns: int
    ) -> PeerProgress:
        state = self._state(peer, now_ns)
        samples = self._samples.get(peer.node)
        if peer.end_index is None or not samples:
            return replace(peer, state=state, note=note)
        first, last = samples[0], samples[-1]
        seconds = (last.at_ns - first.at_ns) / SECOND
        behind = max(0, end_index - peer.end_index)
        peer = replace(
            peer, state=state, note=note, behind_entries=behind, behind_bytes=last.behind
        )
        if peer.role is Role.LEARNER:
            # Nothing waits for a learner, so it may be far behind; its lag is also shown as a time.
            peer = replace(peer, lag_ms=self._lag_ms(end_index - behind + 1) if behind else 0)
        if seconds == 0:
            return replace(peer, seconds_left=0.0 if last.behind == 0 else None)
        closing = (first.behind - last.behind) / seconds
        return replace(
            peer,
            entries_per_s=(last.index - first.index) / seconds,
            bytes_per_s=(last.pos - first.pos) / seconds,
            seconds_left=0.0
            if last.behind == 0
            else last.behind / closing
            if closing > 0
            else None,
        )

    def _state(self, peer: PeerProgress, now_ns: int) -> str:
        if peer.left_behind:
            return INSTALLING
        if peer.end_index is not None:
            return FLOWING
        _, at_ns = self._restarts.get(peer.node, (0, now_ns - WINDOW_NS - 1))
        return RESTARTED if now_ns - at_ns <= WINDOW_NS else PROBING
