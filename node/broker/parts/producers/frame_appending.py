"""Appends native frames, one batch each, in the order of their producers' sequences, and answers
those that are not appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgermq.node.broker.calls.outcome import Done, Refused
from ledgermq.node.broker.calls.send_calls import FrameKnown, FrameProduced, ProduceFrame
from ledgermq.node.broker.flush import Durability, FlushPolicy, durability_of
from ledgermq.node.broker.in_sync import InSyncSet
from ledgermq.node.broker.leader import Leader
from ledgermq.node.broker.leader_log import LeaderLog
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.producers.frame_results import answer, answer_in_log, certified
from ledgermq.node.broker.parts.producers.producer_sequencing import Append, IfLeading, InLog, Later
from ledgermq.node.broker.parts.producers.producers import Stored
from ledgermq.node.broker.ports import Replicator
from ledgermq.node.broker.turn import Turn


class FrameAppending:
    """The frames of the plans of one leader. Used only by the group's turns."""

    def __init__(
        self,
        leader: Leader,
        log: LeaderLog,
        replicator: Replicator,
        machine: Machine,
        in_sync: InSyncSet,
        policy: FlushPolicy,
        assure: Callable[[Turn, Done], None],
    ) -> None:
        """`assure` gives an answer once it is known that this replica still led."""
        self._leader = leader
        self._log = log
        self._replicator = replicator
        self._machine = machine
        self._in_sync = in_sync
        self._policy = policy
        self._assure = assure

    def append(self, turn: Turn, calls: Sequence[ProduceFrame]) -> bool:
        """Judge frames in order, and append those that come next in their producer's sequence; True
        if one was appended."""
        appended = False
        for at, call in enumerate(calls):
            verdict = self._leader.producer_sequencing.judge(call.frame)
            if isinstance(verdict, Append):
                durability = self._durability_of(call)
                memory = durability is Durability.MEMORY
                found = self._log.append_batch(
                    turn, call.frame.batch, urgent=not memory, early=memory
                )
                if found is None:
                    self._no_room_for(turn, calls[at:])
                    break
                appended = True
                place, ranges = found
                self._leader.frame_appended(
                    call,
                    answer(
                        call.frame.batch, place.queue_offsets, place.store_ms, ranges, durability
                    ),
                )
                continue
            self._leader.frame_judged(verdict)
            if isinstance(verdict, Later):
                self._leader.await_entry(verdict.index, call.token, verdict.outcome)
            elif isinstance(verdict, IfLeading):
                self._assure(turn, Done(call.token, verdict.outcome))
            elif isinstance(verdict, InLog):
                turn.done += certified(
                    [Done(call.token, self._answer_in_log(verdict.frame))],
                    self._replicator.durable_indexes,
                )
            else:
                turn.done.append(Done(call.token, verdict.outcome))
        return appended

    def _durability_of(self, call: ProduceFrame) -> Durability:
        """`MEMORY` only if the producer asks for it as well. A master's lone acknowledgement is the
        group's setting, not the producer's."""
        topic = self._machine.topics[call.topic]
        found = durability_of(self._policy, topic.durability, -1, alone=self._in_sync.acks_alone)
        return Durability.DURABLE if found is Durability.MEMORY and not call.memory else found

    def _no_room_for(self, turn: Turn, calls: Sequence[ProduceFrame]) -> None:
        """The log took no frame. If it is full, refuse the frames; if leadership is being handed
        over, keep them for the next leader."""
        if self._replicator.accepting:
            turn.done += [Done(call.token, Refused("disk-full")) for call in calls]
        else:
            self._leader.put_back(calls)

    def _answer_in_log(self, stored: Stored) -> FrameProduced | FrameKnown:
        if stored.first_index < self._replicator.begin_index:
            return FrameKnown(stored.first_sequence + stored.count)
        return answer_in_log(self._replicator.read, stored)
