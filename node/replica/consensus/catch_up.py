"""How the followers of a leader come on: what each still lacks, how fast it gets it, and when it will have it. Told to people and metrics;
nothing is decided by it.

Rates are those of the last `WINDOW_NS`, from one sample a second. What a follower lacks shrinks by what it receives and grows by what the
leader appends: the estimate is what it lacks over how fast that shrinks, and unknown while it does not. Time is monotonic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledgermq.proto.types import PeerProgress, Role

SECOND = 1_000_000_000
SAMPLE_NS = SECOND
WINDOW_NS = 10 * SECOND
PROBING, FLOWING, INSTALLING, RESTARTED = "probing", "flowing", "installing", "restarted-from-compare"
STATES = (PROBING, FLOWING, INSTALLING, RESTARTED)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int
    index: int
    pos: int
    behind: int


class CatchUp:
    """The followers of one replica that leads; empty elsewhere. `pos_after`: where the entry behind an index begins, or will begin;
    `lag_ms`: how long ago an entry was stored, or the first one that is kept."""

    def __init__(self, pos_after: Callable[[int], int], lag_ms: Callable[[int], int]) -> None:
        self._pos_after = pos_after
        self._lag_ms = lag_ms
        self._samples: dict[str, deque[_Sample]] = {}
        self._restarts: dict[str, tuple[int, int]] = {}
        """Node → restarts seen, and when the last one was."""
        self._next_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether a second has passed since the last look."""
        return now_ns >= self._next_ns

    def look(self, peers: Sequence[PeerProgress], end_pos: int, now_ns: int) -> list[str]:
        """Take a sample of every peer. The nodes whose comparison began anew since the last look."""
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
            # It forgot what it had: its former rate says nothing about what comes now.
            samples.clear()
        samples.append(_Sample(now_ns, peer.end_index, pos, max(0, end_pos - pos)))
        while samples[0].at_ns < now_ns - WINDOW_NS:
            samples.popleft()

    def _is_restarted(self, peer: PeerProgress, now_ns: int) -> bool:
        known, _ = self._restarts.get(peer.node, (0, 0))
        if peer.restarts > known:
            self._restarts[peer.node] = peer.restarts, now_ns
        return peer.restarts > known

    def annotated(self, peers: Sequence[PeerProgress], end_index: int, notes: Mapping[str, str], now_ns: int) -> tuple[PeerProgress, ...]:
        """The same peers with what was seen of them. `notes`: node → why it is not what it should be."""
        return tuple([self._annotated(peer, end_index, notes.get(peer.node, ""), now_ns) for peer in peers])

    def _annotated(self, peer: PeerProgress, end_index: int, note: str, now_ns: int) -> PeerProgress:
        state = self._state(peer, now_ns)
        samples = self._samples.get(peer.node)
        if peer.end_index is None or not samples:
            return replace(peer, state=state, note=note)
        first, last = samples[0], samples[-1]
        seconds = (last.at_ns - first.at_ns) / SECOND
        behind = max(0, end_index - peer.end_index)
        peer = replace(peer, state=state, note=note, behind_entries=behind, behind_bytes=last.behind)
        if peer.role is Role.LEARNER:
            # Whoever is not waited for may be far behind: people ask by how much time.
            peer = replace(peer, lag_ms=self._lag_ms(end_index - behind + 1) if behind else 0)
        if seconds == 0:
            return replace(peer, seconds_left=0.0 if last.behind == 0 else None)
        closing = (first.behind - last.behind) / seconds
        return replace(
            peer,
            entries_per_s=(last.index - first.index) / seconds,
            bytes_per_s=(last.pos - first.pos) / seconds,
            seconds_left=0.0 if last.behind == 0 else last.behind / closing if closing > 0 else None,
        )

    def _state(self, peer: PeerProgress, now_ns: int) -> str:
        if peer.left_behind:
            return INSTALLING
        if peer.end_index is not None:
            return FLOWING
        _, at_ns = self._restarts.get(peer.node, (0, now_ns - WINDOW_NS - 1))
        return RESTARTED if now_ns - at_ns <= WINDOW_NS else PROBING
