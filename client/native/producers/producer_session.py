"""What a producer sends to one broker group, and how it reacts to the answers. No I/O, no clock:
`stream.py` carries it out.

The law: whatever nodes and streams do, each message accepted here is stored at most once; the
acknowledged messages of a queue are stored in the order in which they were accepted; and each
message gets exactly one outcome, acknowledged (it is stored) or failed (with `unknown` if it may be
stored).

Sequence numbers enforce that law. A frame whose stream broke before it was answered may be in the
log, or a copy of it may still arrive at a node: its outcome is *in doubt*. From this follows:

* A frame in doubt is sent again with the same numbers and contents until it is answered, even when
  its messages are past their deadline. Once it is stored, further copies are duplicates.
* A rejected frame that is not in doubt is not stored and never will be. The messages behind it get
  new numbers, but only when every frame of the stream is answered, because until then a later frame
  could still be appended with its old numbers.
* If a later frame is then in doubt, its number must not be given to another message. Everything
  behind the rejected frame is sent by another producer (a new id, or the next epoch of the name),
  after the old producer's earlier frames are answered. The frames in doubt then have a gap before
  them that is never filled, so no node can append them.
* A frame in doubt that is refused for good may be stored all the same, and so may the frames in
  doubt behind it: they fail as unknown.

A batch is always in one of the lists here, or has its outcome, whatever the application's values
raise when they are encoded: what is in no list would never get an outcome, and `flush` and `close`
would wait for it for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from ledgermq.client.errors import BadArgument, ClusterError, ProducerFenced, SendFailed, refusal
from ledgermq.client.native.log_connection import Latencies, problem_of
from ledgermq.client.native.producers.batches import Batch, Gathering
from ledgermq.client.native.producers.columns import Packing
from ledgermq.client.native.producers.outcomes import FrameAcknowledged, Statistics
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder
from ledgermq.proto.status import Code, LedgerError

IN_FLIGHT_MAX = 5
"""Frames without an answer: a broker group remembers the receipts of this many."""
PAUSE_S = 0.05
"""The pause after a temporary rejection, if the node suggests none."""
TOO_LATE_REMEDY = "check that the broker group has a leader (ledgermq status)"
STALE_EPOCH = Code.PRECONDITION_FAILED
"""Fatal unless the Problem is retryable; a retryable one means that frames arrived in another order
than their numbers."""
UNKNOWN_PRODUCER = Code.NOT_FOUND


class Dropped(Enum):
    """Whether messages of a rejected frame were given up, and whether a copy of them is in
    doubt."""

    NOTHING = auto()
    CERTAIN = auto()
    IN_DOUBT = auto()


@dataclass(slots=True)
class _Rejected:
    """A rejected frame, by its first sequence number, and the batches of it that are still to be
    sent."""

    sequence: int
    parts: list[Batch]
    dropped: Dropped = Dropped.NOTHING


class BadAnswer(Exception):
    """The node sent an answer that does not match any request. The stream cannot be used any
    further."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of one producer. `topic` is the stored name; `batch_bytes` bounds a batch,
    `window_bytes` the bytes in flight of a stream."""

    topic: str
    name: str = ""
    batch_bytes: int = 256 << 10
    window_bytes: int = 8 << 20
    linger_s: float = 0.0
    packing: Packing = field(default_factory=Packing)


class ProducerSession:
    """A producer's messages for one broker group, and their sequence numbers. All times are seconds
    of one monotonic clock."""

    def __init__(
        self,
        broker_group: str,
        settings: ProducerSettings,
        gathering: Gathering,
        statistics: Statistics,
        numbers: dict[tuple[str, int], int],
        latencies: Latencies,
        released: Callable[[], None] = lambda: None,
        receipts: Callable[[pb.Receipt], None] = lambda receipt: None,
    ) -> None:
        """`released` is called when messages have an outcome, `receipts` with each receipt;
        `numbers`: see FrameAcknowledged."""
        self.broker_group = broker_group
        self.gathering = gathering
        self.flushing = 0
        """The number of callers that want gathered messages to be sent without waiting for more."""
        self.obstacle = ""
        """Why there is no stream to the leader, as far as known: the reason given to messages that
        pass their deadline."""
        self.fenced: ProducerFenced | None = None
        self._settings = settings
        self._statistics = statistics
        self._numbers = numbers
        self._latencies = latencies
        self._released = released
        self._receipts = receipts
        self._waiting: deque[Batch] = deque()
        self._in_flight: list[Batch] = []
        self._in_flight_bytes = 0
        self._identity: tuple[int, int] | None = None
        self._log_tag = 0
        self._builder: FrameBuilder | None = None
        self._next_sequence = 0
        """The next sequence number to assign."""
        self._rejected: list[_Rejected] = []
        """Answered frames of this stream, kept while others are unanswered."""
        self._stored_to = 0
        """While `_rejected`: the next sequence number that the node expects."""
        self._renew = False
        """Batches without sequence numbers are for another producer."""
        self._forgotten = False
        """A rejection said that the node does not know the producer."""
        self._acknowledged_to = 0
        """The end of the furthest acknowledged frame; when a frame in doubt arrived late, it may be
        behind a rejected frame."""
        self._not_before_s = 0.0
        self._frame_bytes_max = 0
        self._window_frames = IN_FLIGHT_MAX
        self._window_bytes = settings.window_bytes

    # What is to be sent

    def add(self, batch: Batch) -> None:
        """Append a batch behind everything accepted before."""
        self.seal()
        self._waiting.append(batch)

    def seal(self) -> None:
        """Close the batch that is being gathered."""
        if self.gathering.messages:
            self._waiting.append(self.gathering.seal())

    @property
    def idle(self) -> bool:
        """Whether every message here has an answer."""
        return not (self._waiting or self._in_flight or self._rejected or self.gathering.messages)

    @property
    def identity(self) -> tuple[int, int] | None:
        """Producer id and epoch, once opened."""
        return self._identity

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next new message, once opened."""
        return self._next_sequence

    @property
    def oldest_on_wire_s(self) -> float | None:
        """The send time of the oldest unanswered frame of this stream."""
        return self._in_flight[0].on_wire_s if self._in_flight else None

    # The stream

    def hello(self) -> pb.OpenProducer:
        """The first message of a stream."""
        hello = pb.OpenProducer(broker_group=self.broker_group)
        if self._identity is None:
            hello.name = self._settings.name
        else:
            hello.producer_id, hello.epoch = self._identity
        return hello

    def opened(self, answer: pb.ProducerOpened) -> None:
        """The node has opened the producer. Afterwards `reopen_due` may be true at once."""
        self._frame_bytes_max = answer.max_frame_bytes
        self._window_frames = max(1, min(IN_FLIGHT_MAX, answer.window_frames or IN_FLIGHT_MAX))
        self._window_bytes = min(
            self._settings.window_bytes, answer.window_bytes or self._settings.window_bytes
        )
        identity = (answer.producer_id, answer.epoch)
        if self._identity is None:
            assert all(batch.first_sequence is None for batch in self._waiting)
            self._identity, self._log_tag, self._next_sequence, self._renew = (
                identity,
                answer.log_tag,
                answer.next_sequence,
                False,
            )
            self._acknowledged_to = answer.next_sequence
            self._builder = FrameBuilder(self._settings.topic, answer.log_tag, *identity)
            return
        if identity != self._identity:
            raise BadAnswer(f"the node opened producer {identity}, not {self._identity}")
        numbered = self._waiting[0].first_sequence if self._waiting else None
        if answer.next_sequence < (self._next_sequence if numbered is None else numbered):
            # Messages acknowledged from memory were lost with their leader; this producer cannot
            # store what comes after them any more.
            self._move_to_new_producer(self._waiting)

    @property
    def reopen_due(self) -> bool:
        """Whether the stream must end because the next batch is for another producer."""
        return not self._in_flight and self._renew_next()

    def _renew_next(self) -> bool:
        return self._renew and not (self._waiting and self._waiting[0].first_sequence is not None)

    def broken(self) -> None:
        """The stream has ended, in whatever way: no frame sent on it will be answered on it."""
        for batch in self._in_flight:
            batch.in_doubt = True
        unanswered = [_Rejected(_sequence(batch), [batch]) for batch in self._in_flight]
        self._in_flight, self._in_flight_bytes = [], 0
        if self._rejected:
            self._settle([*self._rejected, *unanswered])
        else:
            self._waiting.extendleft(batch for one in reversed(unanswered) for batch in one.parts)
        if self._renew_next():
            self._identity = None

    def unknown_producer(self) -> None:
        """The broker group has forgotten the producer, so it cannot tell frames in flight from new
        ones."""
        remedy = "see whether it is there before sending it again"
        for batch in list(self._waiting):
            if batch.first_sequence is not None:
                self._waiting.remove(batch)
                problem = (
                    "the broker group does not know the producer any more; the message may be"
                    " stored"
                )
                self._fail(batch, SendFailed(problem, remedy, unknown=True))
        self._identity = None

    # Frames out

    def next_frame(self, now: float) -> Batch | None:
        """The batch to send now as a frame, or None. `wake_at` tells when to ask again if no answer
        comes in between."""
        if now < self._not_before_s or self._identity is None:
            return None
        while (
            not self._rejected
            and len(self._in_flight) < self._window_frames
            and not self._renew_next()
        ):
            if not self._waiting:
                if not self._ripe(now):
                    return None
                self.seal()
            batch = self._waiting[0]
            if self._in_flight and self._in_flight_bytes + batch.size > self._window_bytes:
                return None
            if self._encoded(batch):
                self._waiting.popleft()
                batch.sent_s = batch.sent_s or now
                batch.on_wire_s = now
                self._in_flight.append(batch)
                self._in_flight_bytes += batch.size
                return batch
        return None

    def wake_at(self, now: float) -> float | None:
        """When a batch becomes ready to send by time alone."""
        if self._not_before_s > now:
            return self._not_before_s
        if (
            self.gathering.messages
            and not self._waiting
            and len(self._in_flight) < self._window_frames
        ):
            return self.gathering.since_s + self._settings.linger_s
        return None

    def _ripe(self, now: float) -> bool:
        gathering = self.gathering
        if not gathering.messages:
            return False
        full = gathering.size >= self._settings.batch_bytes
        return full or self.flushing > 0 or now >= gathering.since_s + self._settings.linger_s

    def _encoded(self, batch: Batch) -> bool:
        """Whether the batch at the head of the queue is encoded as a frame. If not, it was split
        into two there, or it has failed."""
        again = batch.first_sequence is not None
        sequence = self._next_sequence if batch.first_sequence is None else batch.first_sequence
        if batch.frame is None or batch.frame.first_sequence != sequence:
            assert self._builder is not None
            try:
                batch.frame = batch.columns.encode(self._builder, sequence, self._settings.packing)
            except LedgerError as error:
                self._cut_or_fail(batch, refusal(error.code, error.message))
                return False
            except Exception as error:
                # Whatever: the values are the application's, and so is their code.
                problem = f"the message cannot be encoded ({error or type(error).__name__})"
                self._cut_or_fail(
                    batch,
                    BadArgument(
                        problem, "give bytes as body, and text as tag, keys and properties"
                    ),
                )
                return False
            if (
                not again
                and self._frame_bytes_max
                and len(batch.frame.entries) > self._frame_bytes_max
            ):
                size = len(batch.frame.entries)
                problem = (
                    f"the message has {size} bytes with its properties; the limit of a frame is"
                    f" {self._frame_bytes_max}"
                )
                self._cut_or_fail(
                    batch, refusal(Code.MESSAGE_BODY_TOO_LARGE, f"{problem}; send less at once")
                )
                return False
        if not again:
            batch.first_sequence = sequence
            self._next_sequence = sequence + len(batch)
        statistics = self._statistics
        statistics.frames += 1
        statistics.frames_again += bool(batch.sent_s)
        statistics.bytes_sent += len(batch.frame.entries)
        return True

    def _cut_or_fail(self, batch: Batch, error: ClusterError) -> None:
        """Split the batch at the head of the queue; halving finds the one message that is wrong,
        and the others are sent."""
        self._waiting.popleft()
        if batch.first_sequence is not None:
            # It has numbers that a node may have stored, and cannot be repeated: as if it were
            # refused while in doubt.
            self._fail(
                batch,
                SendFailed(
                    f"{error.what}; an earlier try may have stored it", error.remedy, unknown=True
                ),
            )
            self._rejected.append(_Rejected(batch.first_sequence, [], Dropped.IN_DOUBT))
            self._stored_to = batch.first_sequence
            self._settle_if_all_answered()
        elif len(batch) == 1:
            self._fail(batch, error)
        else:
            self._waiting.extendleft(reversed(batch.split(len(batch) // 2)))

    # Answers in

    def acknowledged(self, ack: pb.FrameAck, now: float) -> None:
        """A frame is stored. Raises BadAnswer."""
        batch = self._answered(ack.first_sequence, ack.count)
        receipt = ack.receipt if ack.HasField("receipt") else None
        assert self._identity is not None and batch.first_sequence is not None
        place = (
            self._log_tag,
            *self._identity,
            batch.first_sequence,
            len(batch),
            batch.columns.queues,
        )
        frame = FrameAcknowledged(self.broker_group, receipt, ack.duplicate, *place, self._numbers)
        self._acknowledged_to = max(self._acknowledged_to, batch.first_sequence + len(batch))
        statistics, late = self._statistics, batch.reported
        statistics.late += late
        statistics.acknowledged += len(batch) - late
        statistics.duplicates += len(batch) - late if ack.duplicate else 0
        statistics.latency_ms = (now - batch.sent_s) * 1000
        self._latencies.took(self.broker_group, statistics.latency_ms)
        self._gone(batch)
        # Behind the accounts: callbacks of the application see them, and the room that this frame
        # gave back.
        batch.sink.acknowledged(batch.row, frame)
        if receipt is not None:
            self._receipts(receipt)
        self._settle_if_all_answered()

    def rejected(self, answer: pb.FrameRejected, now: float) -> None:
        """A frame is not stored, or only in part. Raises BadAnswer, or ProducerFenced when
        everything has failed."""
        sequence, problem, stored = (
            answer.first_sequence,
            answer.problem,
            answer.next_sequence - answer.first_sequence,
        )
        batch = self._answered(sequence, answer.count)
        if is_stale(problem):
            # A copy of a frame in doubt may have been stored before the name was opened elsewhere.
            self._fail(batch, self._fenced(batch.in_doubt))
            raise self.fence()
        refused_batch = _Rejected(sequence, [batch])
        if stored >= answer.count and not problem.retryable:
            # An earlier try stored the frame, and the messages refused now get that as their
            # outcome.
            self._acknowledged_to = max(self._acknowledged_to, sequence + answer.count)
            self._fail(
                batch,
                SendFailed(
                    f"{problem.message}; an earlier try may have stored it",
                    "see whether it is there",
                    unknown=True,
                ),
            )
            return self._settle_if_all_answered()
        if 0 < stored < answer.count:
            self._statistics.frames_cut += 1
            head, rest = batch.split(stored)
            head.first_sequence, head.in_doubt, rest.first_sequence = (
                sequence,
                True,
                answer.next_sequence,
            )
            refused_batch.parts = [head, rest]
        elif problem.code == UNKNOWN_PRODUCER or stored < 0:
            # Something before this frame is missing. Another answer may tell what; otherwise it
            # cannot be known.
            self._forgotten |= problem.code == UNKNOWN_PRODUCER
        elif problem.retryable:
            self._not_before_s = max(
                self._not_before_s, now + max(PAUSE_S, problem.retry_after_ms / 1000)
            )
        else:
            refused_batch = self._refused(batch, sequence, answer.position, problem_of(problem))
        self._rejected.append(refused_batch)
        self._stored_to = answer.next_sequence
        self._settle_if_all_answered()

    def _refused(
        self, batch: Batch, sequence: int, position: int, error: ClusterError
    ) -> _Rejected:
        """A frame that no node will accept, or one message of it."""
        if batch.in_doubt:
            self._fail(
                batch,
                SendFailed(
                    f"{error.what}; an earlier try may have stored it", error.remedy, unknown=True
                ),
            )
            return _Rejected(sequence, [], Dropped.IN_DOUBT)
        return _Rejected(sequence, self._without_bad(batch, position, error), Dropped.CERTAIN)

    def _without_bad(self, batch: Batch, position: int, error: ClusterError) -> list[Batch]:
        """The remaining batches of a frame that is refused for good."""
        if not 0 <= position < len(batch) or len(batch) == 1:
            self._fail(batch, error)
            return []
        before, others = batch.split(position) if position else (None, batch)
        bad, after = others.split(1) if len(others) > 1 else (others, None)
        self._fail(bad, error)
        return [part for part in (before, after) if part is not None]

    def _settle_if_all_answered(self) -> None:
        if self._rejected and not self._in_flight:
            self._settle(self._rejected)

    def _settle(self, frames: list[_Rejected]) -> None:
        """Decide on new numbers for every unanswered or rejected batch; these batches then wait at
        the head of the queue."""
        while self._waiting and self._waiting[0].first_sequence is not None:
            # A batch of an earlier stream that was not sent again yet.
            frames.append(_Rejected(self._waiting[0].first_sequence, [self._waiting.popleft()]))
        frames.sort(key=lambda frame: frame.sequence)
        self._rejected = []
        drop = next(
            (place for place, frame in enumerate(frames) if frame.dropped is not Dropped.NOTHING),
            len(frames),
        )
        before = [batch for frame in frames[:drop] for batch in frame.parts]
        after = [batch for frame in frames[drop:] for batch in frame.parts]
        if self._stored_to < frames[0].sequence or self._forgotten:
            # The node lacks messages that were acknowledged before, or does not know the producer.
            before, after = [], [*before, *after]
            self._move_to_new_producer(self._fail_in_doubt(after) if self._forgotten else after)
        elif drop < len(frames) and frames[drop].dropped is Dropped.IN_DOUBT:
            after = self._fail_in_doubt(after)
            self._move_to_new_producer(after)
        elif drop < len(frames) and any(batch.in_doubt for batch in after):
            self._move_to_new_producer(after)
        else:
            # No frame in doubt follows these batches, so their numbers may be reused.
            while before and not before[-1].in_doubt:
                after.insert(0, before.pop())
            self._next_sequence = max(
                self._acknowledged_to,
                _sequence(before[-1]) + len(before[-1]) if before else self._stored_to,
            )
            _without_numbers(after)
        self._forgotten = False
        for batch in after:
            if batch.reported == len(batch):
                self._gone(batch)
        self._waiting.extendleft(
            reversed([*before, *(batch for batch in after if batch.reported < len(batch))])
        )

    def _fail_in_doubt(self, batches: list[Batch]) -> list[Batch]:
        """Fail the batches in doubt as unknown. Returns the others."""
        for batch in batches:
            if batch.in_doubt:
                remedy = "see whether it is there before sending it again"
                self._fail(
                    batch,
                    SendFailed(
                        "a frame before it was refused; an earlier try may have stored it",
                        remedy,
                        unknown=True,
                    ),
                )
        return [batch for batch in batches if not batch.in_doubt]

    def _move_to_new_producer(self, batches: Iterable[Batch]) -> None:
        """Leave these batches, and later ones, to another producer id or epoch."""
        _without_numbers(batches)
        self._renew = True

    def _answered(self, first_sequence: int, count: int) -> Batch:
        for place, batch in enumerate(self._in_flight):
            if batch.first_sequence == first_sequence and len(batch) == count:
                del self._in_flight[place]
                self._in_flight_bytes -= batch.size
                return batch
        raise BadAnswer(
            f"an answer to a frame of {count} messages from {first_sequence} on, which is not in"
            " flight"
        )

    # Ends

    def expire(self, now: float) -> float | None:
        """Give up messages past their deadline; frames that a node may have are sent again all the
        same. Returns when to call next."""
        if self.gathering.messages and self.gathering.messages[0].deadline <= now:
            self.seal()
        kept: deque[Batch] = deque()
        rejected = [part for frame in self._rejected for part in frame.parts]
        for batch in rejected:
            # The batch may be sent again before this is called next.
            self._expire_batch(batch, now, True)
        for batch in (*self._in_flight, *self._waiting):
            self._expire_batch(batch, now, batch.first_sequence is not None)
            if batch.first_sequence is None and batch.reported:
                gone, rest = (
                    batch.split(batch.reported) if batch.reported < len(batch) else (batch, None)
                )
                self._gone(gone)
                kept.extend([] if rest is None else [rest])
            else:
                kept.append(batch)
        for _ in self._in_flight:
            kept.popleft()
        self._waiting = kept
        deadlines = [
            batch.next_deadline() for batch in (*self._in_flight, *rejected, *self._waiting)
        ]
        deadlines += [message.deadline for message in self.gathering.messages[:1]]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _expire_batch(self, batch: Batch, now: float, unknown: bool) -> None:
        count = batch.expired(now) - batch.reported
        if count > 0:
            why = f" ({self.obstacle})" if self.obstacle else ""
            problem = (
                f"not acknowledged in time{why}; it may be stored"
                if unknown
                else f"could not be sent in time{why}"
            )
            problem = f"broker group {self.broker_group}: {problem}"
            self._count_failed(count, unknown)
            row, batch.reported = batch.row + batch.reported, batch.reported + count
            batch.sink.failed(row, count, SendFailed(problem, TOO_LATE_REMEDY, unknown=unknown))

    def give_up(self, error: ClusterError) -> None:
        """Fail everything: messages that a node may have as unknown, the others with this error."""
        self.seal()
        parts = [part for frame in self._rejected for part in frame.parts]
        batches = [*self._in_flight, *parts, *self._waiting]
        sent = any(batch.first_sequence is not None for batch in batches)
        self._in_flight, self._in_flight_bytes, self._rejected = [], 0, []
        self._waiting.clear()
        for batch in batches:
            unknown = batch.first_sequence is not None
            if not unknown or error.unknown:
                self._fail(batch, error)
            else:
                kind = type(error) if isinstance(error, SendFailed) else SendFailed
                self._fail(
                    batch, kind(f"{error.what}; it may be stored", error.remedy, unknown=True)
                )
        if sent:
            # Frames in flight may still arrive, so their numbers must not be reused.
            self._identity = None

    def fence(self) -> ProducerFenced:
        """The name was opened elsewhere, which ends this producer."""
        self.fenced = self._fenced(False)
        self.give_up(self.fenced)
        return self.fenced

    def _fenced(self, unknown: bool) -> ProducerFenced:
        problem = (
            f"another producer has opened the name {self._settings.name!r} on broker group"
            f" {self.broker_group}"
        )
        return ProducerFenced(problem, "let only one process use a name at a time", unknown=unknown)

    def _fail(self, batch: Batch, error: ClusterError) -> None:
        count = len(batch) - batch.reported
        self._gone(batch)
        if count:
            self._count_failed(count, error.unknown)
            batch.sink.failed(batch.row + batch.reported, count, error)

    def _count_failed(self, count: int, unknown: bool) -> None:
        self._statistics.failed += count
        self._statistics.unknown += count if unknown else 0

    def _gone(self, batch: Batch) -> None:
        self._statistics.waiting_bytes -= batch.size
        self._released()


def _sequence(batch: Batch) -> int:
    """The first sequence number of a batch that has one."""
    assert batch.first_sequence is not None
    return batch.first_sequence


def _without_numbers(batches: Iterable[Batch]) -> None:
    for batch in batches:
        batch.first_sequence, batch.frame, batch.in_doubt = None, None, False


def is_stale(problem: pb.Problem) -> bool:
    """Whether the Problem says that the producer's name was opened again elsewhere."""
    return problem.code == STALE_EPOCH and not problem.retryable
