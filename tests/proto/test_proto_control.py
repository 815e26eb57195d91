"""Control records: exact bytes, round trips, and refusal of everything this version does not
know."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entries.layout import java_hash, tags_code
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.names import CONTROL_TOPICS
from ledgermq.proto.records import control
from ledgermq.proto.types import (
    Backoff,
    GroupConfig,
    Permission,
    TopicConfig,
    TopicDurability,
    TopicKind,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(0, 2**62)
NUMBERS = st.lists(NUMBER, max_size=3).map(tuple)
WAIT = st.integers(1, 12 * 3_600_000)
BACKOFF = st.one_of(
    st.none(),
    st.lists(WAIT, min_size=1, max_size=4).map(lambda steps: Backoff(tuple(steps))),
    st.builds(
        lambda a, b, by: Backoff((), min(a, b), max(a, b), by), WAIT, WAIT, st.floats(1, 100)
    ),
)
TOPIC_CONFIG = st.builds(
    TopicConfig,
    *(TEXT, TEXT, st.sampled_from(TopicKind), NUMBER, st.sampled_from(Permission), NUMBER),
    *(st.sampled_from(TopicDurability), NUMBER),
)
NODES = st.sets(TEXT.filter(bool), max_size=4).map(lambda nodes: tuple(sorted(nodes)))


def memberships(nodes: tuple[str, ...]) -> st.SearchStrategy[control.Membership]:
    """Any split of these nodes into voters and learners, with any facts about them."""

    def made(
        voters: int, named: dict[str, str], returning: int, reason: str, ruled: tuple[str, int, int]
    ) -> control.Membership:
        learners, (rule, since, minimum) = nodes[voters:], ruled
        return control.Membership(
            nodes[:voters],
            learners,
            named,
            learners[:returning],
            reason,
            rule,
            since=since,
            minimum=minimum,
        )

    ruled = st.one_of(
        st.tuples(st.just("majority"), st.just(0), st.just(0)),
        st.tuples(st.just("in-sync"), NUMBER, NUMBER),
    )
    named = st.dictionaries(st.sampled_from(nodes), TEXT)
    return st.builds(made, st.integers(1, len(nodes)), named, st.integers(0, 3), TEXT, ruled)


RECORDS = st.one_of(
    st.builds(control.RecallRecord, NUMBER, NUMBER, NUMBER, st.none() | TEXT),
    st.builds(control.LettersRecord, TEXT, st.just("purged"), NUMBERS, st.just(()), TEXT),
    st.lists(st.tuples(NUMBER, st.tuples(TEXT, TEXT, NUMBER, NUMBER)), max_size=3).map(
        lambda rows: control.LettersRecord(
            "%DLQ%g", "resent", tuple([row[0] for row in rows]), tuple([row[1] for row in rows])
        )
    ),
    st.builds(control.TimersRecord, NUMBER, NUMBER, NUMBER),
    NODES.filter(bool).flatmap(memberships),
    st.builds(control.TermStart, NUMBER, TEXT),
    st.builds(control.TopicRecord, TOPIC_CONFIG, NUMBER, st.booleans()),
    st.builds(
        control.GroupRecord,
        st.builds(GroupConfig, TEXT, TEXT, NUMBER, st.booleans(), BACKOFF, TEXT, st.booleans()),
        st.booleans(),
    ),
    st.builds(
        control.LeaseRecord,
        TEXT,
        TEXT,
        TEXT,
        st.none() | NUMBER,
        st.lists(st.tuples(NUMBER, NUMBERS, NUMBERS), max_size=2).map(tuple),
        st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=2).map(tuple),
        st.lists(st.tuples(NUMBER, NUMBERS), max_size=2).map(tuple),
    ),
    st.builds(
        control.AckRecord,
        st.lists(st.tuples(TEXT, TEXT, NUMBER, NUMBERS, NUMBERS), max_size=2).map(tuple),
    ),
    st.builds(control.SealRecord, NUMBER, NUMBER, NUMBER, NUMBER, TEXT, NODES),
    st.builds(control.AuditRecord, TEXT),
    st.builds(control.LevelRecord, NUMBER),
    st.builds(control.TimeEpochRecord, NUMBER, TEXT),
    st.builds(
        control.TrimRecord,
        *[NUMBER] * 5,
        st.lists(st.tuples(NUMBER, st.none() | TEXT), max_size=2).map(tuple),
        TEXT,
        st.booleans(),
    ),
    st.builds(
        control.ChangeRecord,
        st.lists(st.tuples(TEXT, TEXT, NUMBER, NUMBER, NUMBER, NUMBER, TEXT), max_size=2).map(
            tuple
        ),
    ),
    st.builds(
        control.ResetRecord, TEXT, TEXT, st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple)
    ),
    st.builds(
        control.TransactionRecord,
        st.lists(st.tuples(NUMBER, TEXT), max_size=2).map(tuple),
        st.lists(st.tuples(NUMBER, NUMBER), max_size=2).map(tuple),
    ),
    st.builds(
        control.LiteRecord,
        *[TEXT] * 3,
        NUMBER,
        st.booleans(),
        *[st.lists(TEXT, max_size=3).map(tuple)] * 2,
        st.lists(st.tuples(TEXT, NUMBER), max_size=2).map(tuple),
    ),
    st.builds(control.ProducerRecord, NUMBER, NUMBER, TEXT, NUMBER, NUMBERS),
    st.builds(
        control.OffsetRecord, st.lists(st.tuples(TEXT, TEXT, NUMBER, NUMBER), max_size=3).map(tuple)
    ),
)

EXACT: list[tuple[control.ControlRecord, str]] = [
    (control.AuditRecord("a1"), '{"v":1,"id":"a1"}'),
    (
        control.Membership(("n2", "n1", "n3")),
        '{"v":1,"voters":{"n1":{},"n2":{},"n3":{}},"learners":{}}',
    ),
    (control.TermStart(7, "n2"), '{"v":1,"term":7,"leader":"n2"}'),
    (
        control.TopicRecord(TopicConfig("ns", "t", TopicKind.FIFO, 8, Permission.READ_WRITE, 2), 8),
        '{"v":1,"ns":"ns","name":"t","kind":"fifo","queues":8,"first_queue":8,"perm":"rw","incarnation":2,"deleted":false}',
    ),
    (
        control.TopicRecord(
            TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ, 3, TopicDurability.HIGH)
        ),
        '{"v":1,"ns":"","name":"t","kind":"normal","queues":1,"first_queue":0,"perm":"r","incarnation":3,"deleted":false,"durability":"high"}',
    ),
    (
        control.GroupRecord(GroupConfig("", "g"), True),
        '{"v":1,"ns":"","name":"g","max_attempts":17,"fifo":false,"deleted":true}',
    ),
    (
        control.GroupRecord(GroupConfig("ns", "g", 3, True, Backoff((1000, 5000)), "L", True)),
        (
            '{"v":1,"ns":"ns","name":"g","max_attempts":3,"fifo":true,"backoff":{"steps_ms":[1000,5000]},"lite_topic":"L","broadcast":true,'
            '"deleted":false}'
        ),
    ),
    (
        control.LeaseRecord(
            "g", "ns@t", "c", None, ((0, (5, 6), (1, 2)),), ((1, 3, 9),), ((2, (4,)),)
        ),
        '{"v":1,"g":"g","t":"ns@t","c":"c","d":null,"q":[[0,[5,6],[1,2]]],"s":[[1,3,9]],"x":[[2,[4]]]}',
    ),
    (control.LevelRecord(2), '{"v":1,"level":2}'),
    (control.TimeEpochRecord(1700000000000, "ops"), '{"v":1,"before":1700000000000,"u":"ops"}'),
    (control.ForcedRecord(7, "n1", 41), '{"v":1,"epoch":7,"node":"n1","kept":41}'),
    (
        control.TransactionRecord(((4, "rollback"), (7, "age")), ((5, 2),)),
        '{"v":1,"e":[[4,"rollback"],[7,"age"]],"c":[[5,2]]}',
    ),
    (
        control.SealRecord(1024, 7, 9, 1900, "ab", ("n1", "n3")),
        '{"v":1,"base":1024,"first":7,"last":9,"end":1900,"sha256":"ab","replicas":["n1","n3"]}',
    ),
    (
        control.TrimRecord(10, 2048, 3, 77, 0, ((0, None), (1024, "ab")), "time"),
        '{"v":1,"begin":10,"pos":2048,"term":3,"chain":77,"from":0,"files":[[0,null],[1024,"ab"]],"reason":"time"}',
    ),
    (
        control.TrimRecord(10, 2048, 3, 77, 0, ((0, "ab"),), "size", stored=True),
        '{"v":2,"begin":10,"pos":2048,"term":3,"chain":77,"from":0,"files":[[0,"ab"]],"reason":"size","stored":true}',
    ),
    (control.AckRecord((("g", "t", 0, (5,), (41,)),)), '{"v":1,"a":[["g","t",0,[5],[41]]]}'),
    (control.ChangeRecord((("g", "t", 0, 5, 41, 0, "c"),)), '{"v":1,"a":[["g","t",0,5,41,0,"c"]]}'),
    (
        control.ResetRecord("g", "ns@t", ((0, 5), (2, 0))),
        '{"v":1,"g":"g","t":"ns@t","q":[[0,5],[2,0]]}',
    ),
    (
        control.LiteRecord("g", "ns@t", "c", 5, True, ("a", "b"), (), (("b", 7),)),
        '{"v":1,"g":"g","t":"ns@t","c":"c","n":5,"w":true,"a":["a","b"],"r":[],"p":[["b",7]]}',
    ),
    (
        control.OffsetRecord((("g", "ns@t", 2, 7), ("h", "t", 0, 0))),
        '{"v":1,"a":[["g","ns@t",2,7],["h","t",0,0]]}',
    ),
    (control.ProducerRecord(7, 0), '{"v":1,"p":7,"e":0}'),
    (control.ProducerRecord(7, 2, "w", 40, (3, 5)), '{"v":1,"p":7,"e":2,"n":"w","s":40,"x":[3,5]}'),
    (control.ProducerRecord(8, 0, owner="writer"), '{"v":1,"p":8,"e":0,"u":"writer"}'),
    (control.RecallRecord(17, 16, 7, ""), '{"v":1,"d":17,"f":16,"o":7,"u":""}'),
    (
        control.TransactionRecord(((4, "rollback"),), user="me"),
        '{"v":1,"e":[[4,"rollback"]],"c":[],"u":"me"}',
    ),
    (
        control.RecallRecord(1700000000000, 1699999999999, 7),
        '{"v":1,"d":1700000000000,"f":1699999999999,"o":7}',
    ),
    (
        control.LettersRecord("%DLQ%g", "purged", (3, 4)),
        '{"v":1,"t":"%DLQ%g","h":"purged","o":[3,4]}',
    ),
    (
        control.LettersRecord("ns@%DLQ%g", "resent", (3,), (("ns@g", "ns@t", 1, 7),), "me"),
        '{"v":1,"t":"ns@%DLQ%g","h":"resent","o":[3],"p":[["ns@g","ns@t",1,7]],"u":"me"}',
    ),
    (control.TimersRecord(1700000000000, -1, 2), '{"v":1,"f":1700000000000,"o":-1,"n":2}'),
]


@pytest.mark.parametrize(("record", "text"), EXACT, ids=[record.TAG for record, _ in EXACT])
def test_exact_bytes(record: control.ControlRecord, text: str) -> None:
    """The bytes of every kind are the format's, field by field in this order."""
    assert record.encode() == text.encode()
    assert set(control.KINDS) == {kind.TAG for kind, _ in EXACT}


@given(RECORDS)
def test_round_trip(record: control.ControlRecord) -> None:
    """Every record comes back equal, tuples included."""
    assert control.decode(record.TAG, record.encode()) == record


def test_membership_says_more_than_names_in_its_second_version() -> None:
    """It has directories, returning members and the reason; the first entry of a group keeps its
    format."""
    record = control.Membership(
        ("b", "a"), ("c",), {"b": "i2", "c": "i3"}, ("c",), "c lost its directory"
    )
    learner = '{"c":{"incarnation":"i3","returning":true}}'
    told = (
        f'{{"v":2,"voters":{{"a":{{}},"b":{{"incarnation":"i2"}}}},"learners":{learner},"reason":"c'
        ' lost its directory"}'
    )
    assert record.encode() == told.encode()
    assert control.decode("membership", told.encode()) == replace(record, voters=("a", "b"))


def test_membership_names_a_minimum_in_its_fourth_version() -> None:
    """Of HA groups only; without one the record keeps its third version."""
    record = control.Membership(("a", "b"), reason="why", rule="in-sync", since=7, minimum=1)
    told = '{"v":4,"voters":{"a":{},"b":{}},"learners":{},"rule":"in-sync","since":7,"min_in_sync":1,"reason":"why"}'
    assert (
        record.encode() == told.encode() and control.decode("membership", told.encode()) == record
    )
    assert replace(record, minimum=0).version == 3
    for wrong in (told.replace('"in-sync"', '"majority"', 1), told.replace(":1,", ":-1,", 1)):
        with pytest.raises(control.UnknownControlRecord, match="replicas in sync"):
            control.decode("membership", wrong.encode())


@pytest.mark.parametrize(
    "members",
    [
        '{}, "learners":{}',
        '{"a":{}}, "learners":{"a":{}}',
        '{"":{}}, "learners":{}',
        '[1], "learners":{}',
    ],
)
def test_members_no_group_can_have_are_refused(members: str) -> None:
    """No voter, a member in both roles, a member without a name, or no names at all."""
    with pytest.raises(control.UnknownControlRecord, match="cannot be read"):
        control.decode("membership", f'{{"v":2,"voters":{members},"reason":""}}'.encode())


def test_membership_is_sorted() -> None:
    """Every replica writes the first entry identically, whatever order its configuration has."""
    assert (
        control.Membership(("b", "a"), ("d", "c")).encode()
        == control.Membership(("a", "b"), ("c", "d")).encode()
    )


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("timer", b'{"v":1}'),
        ("timers", b'{"v":1,"f":1,"o":"x","n":0}'),
        ("recall", b'{"v":1,"d":1,"f":2}'),
        ("letters", b'{"v":1,"t":"d","h":"lost","o":[]}'),
        ("letters", b'{"v":1,"t":"d","h":"resent","o":[1]}'),
        ("letters", b'{"v":1,"t":"d","h":"purged","o":[1],"p":[["g","t",0,1]]}'),
        ("", b"{}"),
        ("ack", b'{"v":2,"a":[]}'),
        ("ack", b'{"a":[]}'),
        ("ack", b'{"v":1}'),
        ("ack", b'{"v":1,"a":[[1,2]]}'),
        ("ack", b"[]"),
        ("ack", b"not json"),
        ("ack", b"\xff"),
        ("seal", b'{"v":2,"base":0,"first":0,"last":1,"end":9,"sha256":"ab","replicas":[]}'),
        (
            "seal",
            b'{"v":1,"base":0,"first":0,"last":1,"end":9,"sha256":"ab","replicas":[],"tree":{"entries":2,"root":"%s"}}'
            % (b"ab" * 32),
        ),
        (
            "trim",
            b'{"v":2,"begin":1,"pos":9,"term":1,"chain":2,"from":0,"files":[],"reason":"time"}',
        ),
        (
            "trim",
            b'{"v":1,"begin":1,"pos":9,"term":1,"chain":2,"from":0,"files":[],"reason":"time","stored":true}',
        ),
        ("producer", b'{"v":1,"p":1,"e":1,"d":true}'),
        ("producer", b'{"v":2,"p":1,"e":1}'),
        (
            "topic",
            b'{"v":1,"ns":"","name":"t","kind":"odd","queues":1,"first_queue":0,"perm":"rw","incarnation":1,"deleted":false}',
        ),
    ],
)
def test_unknown_records_stop_the_replica(tag: str, body: bytes) -> None:
    """An unknown kind, version or form is refused with the exit code for a foreign version, before
    anything is applied."""
    with pytest.raises(control.UnknownControlRecord) as caught:
        control.decode(tag, body)
    assert caught.value.exit_code == 76 and "version" in str(caught.value)


@given(
    st.sampled_from(sorted(control.KINDS)),
    st.binary(max_size=40) | TEXT.map(lambda t: json.dumps({"v": 1, "a": t}).encode()),
)
def test_garbage_is_never_another_error(tag: str, body: bytes) -> None:
    """Whatever the body holds, the only outcome beside a record is the typed error."""
    with suppress(control.UnknownControlRecord):
        control.decode(tag, body)


@pytest.mark.parametrize("record", [record for record, _ in EXACT], ids=lambda record: record.TAG)
def test_drafts(record: control.ControlRecord) -> None:
    """A control record is a message on a system topic, queue 0, with its kind as tag; only
    membership uses channel 1."""
    draft = control.draft(record, 5, LEVEL_MAX)
    assert (
        draft.stored_topic in CONTROL_TOPICS
        and draft.queue == 0
        and draft.born_ms == 5
        and draft.body == record.encode()
    )
    assert draft.properties == f"TAGS\x01{record.TAG}\x02".encode()
    assert draft.tags_code == java_hash(record.TAG) == tags_code(draft.properties)
    assert draft.channel == int(record.TAG == "membership")
