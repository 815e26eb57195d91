"""Native producers on one broker group: frames stored once and in order, and answers that stay
true."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    Produce,
    ProduceFrame,
    ProducerOpened,
    ResumeProducer,
)
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.producers.producers import NAMED_MS, UNNAMED_MS
from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.native_ids import content_digest, native_id
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Frame, Permission, TopicConfig, TopicDurability, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, MS, Bench, Outcome
from tests.node_core.core_frames import LOG_TAG, check_sequences, frame, numbered


class Producing(Bench):
    """A bench with a topic of three queues."""

    def __init__(self, **settings: object) -> None:
        super().__init__(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), **settings))  # type: ignore[arg-type]
        self.lead()
        self.configure("t", 3)

    def open(self, name: str = "", *, digest: bool = False) -> ProducerOpened:
        outcome = self.ask(OpenProducer(next(self.tokens), name, digest=digest))
        assert isinstance(outcome, ProducerOpened), outcome
        return outcome

    def resume(self, producer_id: int, epoch: int) -> Outcome | None:
        return self.ask(ResumeProducer(next(self.tokens), producer_id, epoch))

    def put(self, frame: Frame, topic: str = "t", memory: bool = False) -> Outcome | None:
        return self.ask(ProduceFrame(next(self.tokens), topic, frame, memory))

    def later(self, frame: Frame) -> int:
        """Put it; the token of an answer that is not there yet."""
        call = ProduceFrame(next(self.tokens), "t", frame)
        assert self.ask(call) is None
        return call.token


def produced(outcome: Outcome | None) -> FrameProduced:
    assert isinstance(outcome, FrameProduced), outcome
    return outcome


def refused(outcome: Outcome | None) -> tuple[str, int | None]:
    assert isinstance(outcome, Refused), outcome
    return outcome.reason, outcome.next_sequence


def test_a_frame_is_stored_as_it_came_and_the_answer_says_where() -> None:
    """Index, term, queue ranges, chain CRC and store time of the answer are those of the
    entries."""
    b = Producing()
    p = b.open()
    assert p == ProducerOpened(1, 0, 0)
    b.send("before", queue=1)
    answer = produced(
        b.put(frame(1, 0, 0, ["a", "b", "c", "d"], queues=[1, 0, 1, 1], tags=["x", "", "y", "x"]))
    )
    entries = b.log.ranges[-1]
    assert (answer.first_index, answer.term, answer.count, answer.last_index) == (
        entries.first_index,
        1,
        4,
        entries.last_index,
    )
    assert answer.ranges == ((0, 0, 1), (1, 1, 3))
    assert (
        answer.chain_crc
        == chain_crc_at(entries.data, int(entries.starts[-1]))
        == entries.last_chain
    )
    record = decode_record(entries.data[48 : int(entries.sizes[0])])
    assert (record.body, record.store_ms, record.queue, record.queue_offset) == (
        b"a",
        answer.store_ms,
        1,
        1,
    )
    assert (answer.durability, answer.duplicate) == ("durable", False)
    assert record_columns(entries).flags.tolist() == [1, 2, 3, 4]


def test_the_answer_names_the_replicas_that_have_all_of_it() -> None:
    """A replica counts when its durable index, at that moment, covers the last entry."""
    b = Producing()
    b.open()
    answer = produced(b.put(numbered(1, 0, 0, 3)))
    assert answer.durable == (("n1", answer.last_index),), "n2 lacks the last entry"


def test_a_frame_that_comes_again_is_answered_as_the_first_time() -> None:
    """A duplicate appends nothing; its answer is read from the log, also when other replicas have
    more of it by then."""
    b = Producing()
    b.open()
    first = produced(b.put(numbered(1, 0, 0, 7, queues=3)))
    b.put(numbered(1, 0, 7, 2))
    end = b.log.end_index
    again = produced(b.put(numbered(1, 0, 0, 7, queues=3)))
    assert again.durable == (("n1", end), ("n2", end - 1))
    assert (
        replace(again, duplicate=False, durable=()) == replace(first, durable=())
        and again.duplicate
    )
    assert b.log.end_index == end and b.group.leader.counters["frame_duplicates"] == 1


def test_repeated_frame_under_another_topic_is_answered_with_the_stored_one() -> None:
    """The receipt is signed: it must not say that the messages are where they are not, committed or
    not."""
    b = Producing()
    b.configure("u", 3)
    b.open()
    assert produced(b.put(numbered(1, 0, 0, 2))).topic == "t"
    again = produced(b.put(numbered(1, 0, 0, 2, "u"), "u"))
    assert again.duplicate and again.topic == "t"
    b.replicator.commit_at_once = False
    first = ProduceFrame(next(b.tokens), "t", numbered(1, 0, 2, 2))
    second = ProduceFrame(next(b.tokens), "u", numbered(1, 0, 2, 2, "u"))
    b.turn(first, second)
    b.replicator.commit_at_once = True
    b.turn()
    assert [produced(b.done[call.token]).topic for call in (first, second)] == ["t", "t"]


def test_of_the_frames_before_the_last_five_it_is_only_known_that_they_are_stored() -> None:
    """Bounded memory: an old duplicate is stored, and that is all there is to say; so is one that
    is cut otherwise."""
    b = Producing()
    b.open()
    for first in range(0, 14, 2):
        b.put(numbered(1, 0, first, 2))
    assert b.put(numbered(1, 0, 2, 2)) == FrameKnown(14)
    assert produced(b.put(numbered(1, 0, 4, 2))).duplicate
    assert b.put(numbered(1, 0, 4, 3)) == FrameKnown(14)
    assert b.put(numbered(1, 0, 13, 1)) == FrameKnown(14)


def test_frame_with_gap_or_unknown_producer_is_refused_with_next_sequence() -> None:
    """Nothing is appended, and the answer has the next expected sequence number."""
    b = Producing()
    b.open()
    b.put(numbered(1, 0, 0, 4))
    end = b.log.end_index
    assert refused(b.put(numbered(1, 0, 5, 1))) == ("sequence-gap", 4)
    assert refused(b.put(numbered(1, 0, 2, 4))) == ("partial-frame", 4)
    assert refused(b.put(numbered(2, 0, 0, 1))) == ("unknown-producer", None)
    assert refused(b.put(numbered(1, 1, 4, 1))) == ("unknown-producer", None), (
        "no epoch of this log"
    )
    assert refused(b.resume(7, 0)) == ("unknown-producer", None)
    assert b.log.end_index == end
    assert b.group.leader.counters["frames_refused"] == 4


@pytest.mark.parametrize(
    ("topic", "queue", "reason"),
    [
        ("u", 0, "unknown-topic"),
        ("t", 3, "unknown-topic"),
        ("t", -1, "unknown-topic"),
        ("fifo", 0, "wrong-kind"),
    ],
)
def test_frame_for_an_unsuitable_topic_or_queue_is_refused(
    topic: str, queue: int, reason: str
) -> None:
    """The topic must be in force, take plain messages, and have every queue that is named."""
    b = Producing()
    b.open()
    b.ask(
        Configure(
            next(b.tokens),
            topics=(TopicConfig("", "fifo", TopicKind.FIFO, 1, Permission.READ_WRITE, 1),),
        )
    )
    assert refused(b.put(frame(1, 0, 0, ["a", "b"], topic, [0, queue]), topic))[0] == reason


@pytest.mark.parametrize("change", ["deleted", "made again"])
def test_a_frame_stands_before_a_change_of_its_topic_that_came_after_it(change: str) -> None:
    """Frames stand behind the drafts of their turn: one that was judged by the topic of before must
    not get behind what ends it."""
    b = Producing()
    b.open()
    sent = ProduceFrame(next(b.tokens), "t", numbered(1, 0, 0, 2))
    fifo = TopicConfig("", "t", TopicKind.FIFO, 1, Permission.READ_WRITE, 2)
    change_it = (
        Configure(next(b.tokens), deleted_topics=("t",))
        if change == "deleted"
        else Configure(next(b.tokens), topics=(fifo,))
    )
    b.turn(sent, change_it)
    answer = produced(b.done[sent.token])
    assert b.done[change_it.token] == Configured()
    assert answer.last_index == b.log.end_index - 1, "the change is the last entry"
    if change == "made again":
        assert b.machine.begin("t", 0) == b.machine.end("t", 0), (
            "the former topic's messages are not the new one's"
        )


def test_frame_larger_than_a_log_file_is_refused() -> None:
    """Like any other message."""
    b = Producing(entry_bytes_max=400)
    b.open()
    assert refused(b.put(frame(1, 0, 0, ["a", "b" * 300])))[0] == "too-large"
    assert produced(b.put(frame(1, 0, 0, ["a", "b" * 100])))


def test_producer_is_resumed_only_by_the_user_who_opened_it() -> None:
    """Another sender would use up its sequence numbers, and its own messages would then count as
    duplicates. A snapshot contains the user too."""
    b = Producing()
    for number, name in ((1, ""), (2, "w@shop")):
        assert b.ask(OpenProducer(next(b.tokens), name, "w")) == ProducerOpened(number, 0, 0)
        for _ in range(2):
            end = b.log.end_index
            for owner in ("", "v"):
                assert refused(b.ask(ResumeProducer(next(b.tokens), number, 0, owner))) == (
                    "unknown-producer",
                    None,
                )
            assert b.log.end_index == end
            assert b.ask(ResumeProducer(next(b.tokens), number, 0, "w")) == ProducerOpened(
                number, 0, 0
            )
            exported = json.loads(json.dumps(b.machine.producers.export()))
            b.machine.producers.restore(exported)
            assert b.machine.producers.export() == exported
    assert b.ask(OpenProducer(next(b.tokens))) == ProducerOpened(3, 0, 0)
    assert refused(b.ask(ResumeProducer(next(b.tokens), 3, 0, "w"))) == ("unknown-producer", None)
    calls = [
        OpenProducer(next(b.tokens), "", "w"),
        ResumeProducer(next(b.tokens), 4, 0, "v"),
        ResumeProducer(next(b.tokens), 4, 0, "w"),
    ]
    b.turn(*calls)
    assert [b.done[call.token] for call in calls] == [
        ProducerOpened(4, 0, 0),
        Refused(
            "unknown-producer",
            detail="producer 4 is not known here, or was silent for too long; open another one",
        ),
        ProducerOpened(4, 0, 0),
    ]


def test_reopened_producer_name_raises_the_epoch_and_fences_the_former() -> None:
    """Each opening starts the next epoch; the sequence continues; frames of older epochs are
    refused, even stored ones."""
    b = Producing()
    assert b.open("writer") == ProducerOpened(1, 0, 0)
    assert b.open() == ProducerOpened(2, 0, 0)
    b.put(numbered(1, 0, 0, 3))
    assert b.open("writer") == ProducerOpened(1, 1, 3)
    assert refused(b.put(numbered(1, 0, 3, 1))) == ("stale-epoch", None)
    assert refused(b.put(numbered(1, 0, 0, 3))) == ("stale-epoch", None)
    assert refused(b.resume(1, 0)) == ("stale-epoch", None)
    assert produced(b.put(numbered(1, 1, 3, 2)))
    assert b.resume(1, 1) == ProducerOpened(1, 1, 5)
    assert produced(b.put(numbered(1, 1, 0, 3))).duplicate, (
        "the same messages under the later epoch"
    )
    check_sequences(b.log.ranges, b.machine.producers)


def test_exhausted_epochs_continue_under_a_new_producer_id() -> None:
    """The sequence continues, and the former id is removed."""
    b = Producing()
    b.open("writer")
    b.put(numbered(1, 0, 0, 3))
    producer = b.machine.producers.get(1)
    assert producer is not None
    producer.epoch = 0xFFFF
    assert b.open("writer") == ProducerOpened(2, 0, 3)
    assert refused(b.put(numbered(1, 0xFFFF, 3, 1)))[0] == "unknown-producer"
    assert produced(b.put(numbered(2, 0, 3, 1))) and b.open("writer") == ProducerOpened(2, 1, 4)


def test_frames_of_one_turn_follow_each_other() -> None:
    """Five frames in flight at once, and one duplicate: each is judged against the frames before
    it."""
    b = Producing()
    b.open()
    calls = [
        ProduceFrame(next(b.tokens), "t", numbered(1, 0, first, 2)) for first in (0, 2, 4, 2, 6, 8)
    ]
    b.turn(*calls)
    answers = [produced(b.done[call.token]) for call in calls]
    assert [answer.duplicate for answer in answers] == [False, False, False, True, False, False]
    assert replace(answers[3], duplicate=False) == answers[1]
    check_sequences(b.log.ranges, b.machine.producers)


def test_duplicate_of_an_uncommitted_frame_waits_for_its_commit() -> None:
    """So does everything else that rests on it: a gap, a part, an older epoch, an old frame that is
    cut otherwise."""
    b = Producing()
    b.open("writer")
    b.replicator.commit_at_once = False
    first = b.later(numbered(1, 0, 0, 4))
    waiting = [
        b.later(numbered(1, 0, 0, 4)),
        b.later(numbered(1, 0, 9, 1)),
        b.later(numbered(1, 0, 2, 4)),
        b.later(numbered(1, 0, 1, 2)),
    ]
    call = OpenProducer(next(b.tokens), "writer")
    b.turn(call)
    stale = b.later(numbered(1, 0, 4, 1))
    b.replicator.commit_at_once = True
    b.turn()
    assert replace(produced(b.done[waiting[0]]), duplicate=False) == produced(b.done[first])
    assert refused(b.done[waiting[1]]) == ("sequence-gap", 4)
    assert refused(b.done[waiting[2]]) == ("partial-frame", 4)
    assert b.done[waiting[3]] == FrameKnown(4)
    assert b.done[call.token] == ProducerOpened(1, 1, 4)
    assert refused(b.done[stale]) == ("stale-epoch", None)


def test_inherited_uncommitted_frame_is_stored_once_the_term_began() -> None:
    """An uncommitted frame of a former term counts once the new leader's term has begun, and only
    then is anything judged."""
    b = Producing()
    b.open()
    b.replicator.commit_at_once = False
    b.later(numbered(1, 0, 0, 2))
    b.replicator.follow(2, "n2")
    b.turn()
    b.lead(3)
    again, next_ = b.later(numbered(1, 0, 0, 2)), b.later(numbered(1, 0, 2, 2))
    b.replicator.commit_at_once = True
    b.turn()
    assert produced(b.done[again]).duplicate and not produced(b.done[next_]).duplicate
    assert produced(b.done[again]).term == 1


def test_deposed_leader_answers_unknown_producer_with_not_leader() -> None:
    """A replica that was deposed without knowing might not have the producer, or the message
    before."""
    b = Producing()
    b.open()
    b.replicator.confirms = False
    gap, stranger = b.later(numbered(1, 0, 4, 1)), b.later(numbered(9, 0, 0, 1))
    call = ResumeProducer(next(b.tokens), 9, 0)
    assert b.ask(call) is None
    b.replicator.reads = [(question, None) for question in b.replicator.questions]
    b.replicator.follow(2, "n2")
    b.turn()
    assert [refused(b.done[token])[0] for token in (gap, stranger, call.token)] == [
        "not-leader"
    ] * 3


def test_frames_behind_one_that_must_wait_do_the_same() -> None:
    """A topic that is being configured holds its frames, and with them what its producer sends
    elsewhere."""
    b = Producing()
    b.configure("u", 1)
    b.open()
    b.replicator.commit_at_once = False
    b.configure("t", 4, 2)
    waiting, behind = (
        b.later(numbered(1, 0, 0, 2)),
        ProduceFrame(next(b.tokens), "u", numbered(1, 0, 2, 2, "u")),
    )
    b.turn(behind)
    assert b.log.ranges[-1].last_index == b.log.end_index and not any(
        record_columns(r).flags.any() for r in b.log.ranges
    )
    b.replicator.commit_at_once = True
    b.turn()
    assert produced(b.done[waiting]) and produced(b.done[behind.token])


def test_frame_refused_by_a_full_disk_leaves_no_trace() -> None:
    """Neither in the log nor in what is known of the producer; those behind it in the turn are
    refused, too."""
    b = Producing()
    b.open()
    b.replicator.full = True
    calls = [ProduceFrame(next(b.tokens), "t", numbered(1, 0, first, 2)) for first in (0, 2)]
    opening, resuming = OpenProducer(next(b.tokens), "x"), ResumeProducer(next(b.tokens), 1, 0)
    b.turn(*calls)
    assert [refused(b.done[call.token])[0] for call in calls] == ["disk-full"] * 2
    b.turn(opening, resuming)
    assert [refused(b.done[call.token])[0] for call in (opening, resuming)] == ["disk-full"] * 2
    b.replicator.full = False
    assert not produced(b.put(numbered(1, 0, 0, 2))).duplicate
    assert b.open("x") == ProducerOpened(2, 0, 0)


def test_memory_acknowledgement_needs_request_and_topic() -> None:
    """A send of class memory is answered when it is replicated; a send without this request, or to
    a durable topic, waits."""
    b = Producing()
    memory = TopicConfig(
        "", "m", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1, durability=TopicDurability.MEMORY
    )
    b.ask(Configure(next(b.tokens), topics=(memory,)))
    b.open()
    b.replicator.commit_at_once = False
    b.replicator.replicated = b.log.end_index + 100
    early = produced(b.put(numbered(1, 0, 0, 2, "m"), "m", memory=True))
    assert (early.durability, early.durable) == ("memory", ())
    durable = b.later(numbered(1, 0, 2, 2))
    asked = ProduceFrame(next(b.tokens), "t", numbered(1, 0, 4, 2), memory=True)
    again = ProduceFrame(next(b.tokens), "m", numbered(1, 0, 0, 2, "m"), memory=True)
    b.turn(asked, again)
    assert asked.token not in b.done and again.token not in b.done
    b.replicator.commit_at_once = True
    b.turn()
    assert [
        produced(b.done[token]).durability for token in (durable, asked.token, again.token)
    ] == ["durable"] * 3
    assert b.replicator.urgencies[-3:] == [(False, True), (True, False), (True, False)]


def test_silent_producers_make_room_and_active_ones_stay() -> None:
    """The unnamed are dropped after a day, the named after a week, beyond the limit the longest
    silent; each with a record of another."""
    b = Producing(producers_max=3)
    b.open("named")
    b.open()
    b.pass_time(UNNAMED_MS * MS)
    b.open()
    assert [
        refused(b.resume(number, 0)) if number == 2 else b.resume(number, 0) for number in (1, 2, 3)
    ] == [
        ProducerOpened(1, 0, 0),
        ("unknown-producer", None),
        ProducerOpened(3, 0, 0),
    ]
    b.put(numbered(1, 0, 0, 1))
    b.open()
    b.open()
    assert refused(b.put(numbered(3, 0, 0, 1)))[0] == "unknown-producer", (
        "the longest silent of four"
    )
    assert produced(b.put(numbered(1, 0, 1, 1)))
    b.pass_time(NAMED_MS * MS)
    assert b.open("named") == ProducerOpened(1, 1, 2), "no other producer opened the name meanwhile"
    b.pass_time(NAMED_MS * MS)
    b.open()
    assert len(b.machine.producers) == 1 and b.open("named") == ProducerOpened(7, 0, 0)


def test_producer_with_a_frame_under_way_is_not_dropped() -> None:
    """Or a frame that was accepted would be applied to nothing."""
    b = Producing(producers_max=2)
    b.open()
    b.open()
    b.replicator.commit_at_once = False
    frame_ = b.later(numbered(1, 0, 0, 1))
    calls = [OpenProducer(next(b.tokens)) for _ in range(3)]
    b.turn(*calls)
    gone = b.later(numbered(2, 0, 0, 1))
    b.replicator.commit_at_once = True
    b.turn()
    assert produced(b.done[frame_]) and refused(b.done[gone])[0] == "unknown-producer"
    assert all(isinstance(b.done[call.token], ProducerOpened) for call in calls)
    assert b.machine.producers.astray == 0 and b.machine.producers.get(1) is not None


def test_producer_with_a_frame_in_the_same_turn_is_not_dropped() -> None:
    """It is judged behind the drafts of its turn, the record that makes room for another one among
    them."""
    b = Producing(producers_max=2)
    b.open()
    b.open()
    sent, opening = (
        ProduceFrame(next(b.tokens), "t", numbered(1, 0, 0, 2)),
        OpenProducer(next(b.tokens)),
    )
    b.turn(sent, opening)
    assert produced(b.done[sent.token]) and b.done[opening.token] == ProducerOpened(3, 0, 0)
    assert b.machine.producers.get(2) is None and len(b.machine.producers) == 2


@pytest.mark.parametrize("kept", range(12))
def test_a_frame_cut_at_any_place_goes_on_where_it_ends(kept: int) -> None:
    """Another leader's entries stand in place of what was cut off, with the same indexes; then the
    first one leads again."""
    b = Producing()
    b.open()
    first_index = b.log.end_index + 1
    b.replicator.commit_at_once = False
    lost = [b.later(numbered(1, 0, first, 4, queues=3)) for first in (0, 4, 8)]
    b.replicator.follow(2, "n2")
    b.turn()
    assert [refused(b.done[token])[0] for token in lost] == ["unknown-outcome"] * 3
    b.log.cut(first_index - 1 + kept)
    b.lead(3)
    b.send("another entry")
    b.replicator.commit_at_once = True
    b.turn()
    assert b.resume(1, 0) == ProducerOpened(1, 0, kept)
    for first in (0, 4, 8):
        answer = b.put(numbered(1, 0, first, 4, queues=3))
        if first + 4 <= kept:
            again = produced(answer)
            assert again.duplicate and again.first_index == first_index + first
        elif first < kept:
            assert refused(answer) == ("partial-frame", kept)
            assert not produced(b.put(numbered(1, 0, kept, first + 4 - kept, queues=3))).duplicate
            part = produced(b.put(numbered(1, 0, first, kept - first, queues=3)))
            assert part.duplicate and part.first_index == first_index + first
        else:
            assert not produced(answer).duplicate
    check_sequences(b.log.ranges, b.machine.producers)


def test_ids_of_native_messages_are_no_business_of_a_deduplication_window() -> None:
    """And an id that only looks native, in a message that came another way, is of no producer."""
    b = Producing()
    b.ask(
        Configure(
            next(b.tokens),
            topics=(
                TopicConfig(
                    "", "d", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1, dedup_ms=60_000
                ),
            ),
        )
    )
    b.open()
    b.put(numbered(1, 0, 0, 3, "d"), "d")
    assert b.machine.ids.count == 0
    looks = Fields(message_id=native_id(LOG_TAG, 1, 0, 3))
    b.ask(Produce(next(b.tokens), [Draft("t", 0, b"x", encode(looks), EPOCH_MS)]))
    known = b.machine.producers.get(1)
    assert known is not None and known.next_sequence == 3 and not b.machine.producers.astray


# -- digests of messages


def content(*bodies: str, tags: list[str] | None = None) -> int:
    """The digest of messages with these bodies, however they are numbered and cut."""
    batch = frame(7, 3, 100, bodies, tags=tags).batch
    return content_digest(batch, 0, len(bodies), 0)


def test_a_producer_with_a_digest_is_opened_with_that_of_its_messages() -> None:
    """It covers messages of all epochs, stays with a producer that is opened without asking for
    one, and begins with the first message: a producer with messages gets none any more. Others have
    none."""
    bench = Producing()
    bench.raise_level()
    assert bench.open("plain").digest is None
    first = bench.open("w", digest=True)
    assert (first.next_sequence, first.digest) == (0, 0)
    bench.put(frame(first.producer_id, 0, 0, ["a", "b", "c"]))
    bench.put(frame(first.producer_id, 0, 3, ["d"]))
    assert (bench.open("w", digest=True).digest, bench.open("w").digest) == (
        content("a", "b", "c", "d"),
    ) * 2
    bench.put(frame(first.producer_id, 2, 4, ["e", "f"], tags=["x", "y"]))
    tags = ["", "", "", "", "x", "y"]
    again = bench.open("w")
    assert again.digest not in (
        None,
        content("a", "b", "c", "d", "e", "f"),
        content("a", "b", "c", "d", "e", "g", tags=tags),
    )
    plain = bench.open("plain", digest=True)
    bench.put(frame(plain.producer_id, plain.epoch, 0, ["a"]))
    assert bench.open("plain").digest == content("a")
    late = bench.open("late")
    bench.put(frame(late.producer_id, 0, 0, ["a"]))
    assert bench.open("late", digest=True).digest is None


def test_below_its_level_no_producer_has_a_digest() -> None:
    """The record is the former one, and a producer whose messages began there has none
    afterwards."""
    bench = Producing()
    opened = bench.open("w", digest=True)
    assert opened.digest is None
    bench.put(frame(opened.producer_id, 0, 0, ["a"]))
    records = [
        json.loads(decode_record(one.data[48:]).body)
        for one in bench.log.ranges
        if b'"n":"w"' in bytes(one.data)
    ]
    assert records == [{"v": 1, "p": opened.producer_id, "e": 0, "n": "w"}]
    bench.raise_level()
    assert bench.open("w", digest=True).digest is None
    assert bench.open("new", digest=True).digest == 0


@given(
    st.lists(st.text("ab", max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), max_size=12),
)
def test_a_digest_does_not_depend_on_cuts_and_differs_for_other_messages(
    bodies: list[str], sizes: list[int]
) -> None:
    """Frames, epochs and ranges may end anywhere; a message moved to its neighbour, or one byte
    moved to the next message, is noticed."""
    digest, at = 0, 0
    for size in [*sizes, len(bodies)]:
        part = bodies[at : at + size]
        digest = (
            content_digest(frame(9, 1, at, part).batch, 0, len(part), digest) if part else digest
        )
        at += size
    assert digest == content(*bodies)
    for n, (one, other) in enumerate(pairwise(bodies)):
        swapped = [*bodies[:n], other, one, *bodies[n + 2 :]]
        assert (content(*swapped) == digest) == (one == other)
        if one:
            moved = [*bodies[:n], one[:-1], one[-1] + other, *bodies[n + 2 :]]
            assert content(*moved) != digest
