"""The property string and the client's fields, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.properties import (
    PROPERTIES_MAX,
    Fields,
    decode,
    edited,
    encode,
    encode_message,
    fill_message,
    parse,
    priority_of,
)
from ledgermq.proto.names import RESERVED_KEYS
from ledgermq.proto.status import Code, LedgerError

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
FILLED = TEXT.filter(bool)
SPECIAL = st.sampled_from(
    [
        "UNIQ_KEY",
        "KEYS",
        "TRACE_CONTEXT",
        "__SHARDINGKEY",
        "__LMQ.U.x",
        "__LMQ.ENC",
        "__LMQ.",
        "WAIT",
        "PRIORITY",
    ]
)
FIELDS = st.builds(
    Fields,
    message_id=FILLED,
    tag=st.none() | FILLED,
    keys=st.lists(TEXT | st.just("a b"), max_size=4).map(tuple),
    message_group=st.none() | FILLED,
    trace_context=st.none() | TEXT,
    born_host=st.none() | FILLED,
    gzip=st.booleans(),
    user=st.dictionaries(TEXT | SPECIAL, TEXT, max_size=5),
    priority=st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    transaction=st.booleans(),
    deliver_ms=st.none() | st.integers(0, 253_402_300_799_999),
)


@given(FIELDS)
def test_round_trip(fields: Fields) -> None:
    """Whatever a client may send comes back field by field, property names of ours included."""
    assert decode(encode(fields)) == fields


@given(FIELDS)
def test_round_trip_through_the_contract(fields: Fields) -> None:
    """A message written from stored properties has the same properties again, and its type."""
    message = pb.Message()
    data = encode(fields)
    assert fill_message(data, message) == fields
    for name in {"__SHARDINGKEY", "__transactionId__"} - fields.user.keys():
        message.user_properties.pop(name, None)
    assert encode_message(message) == data
    system = message.system_properties
    assert system.HasField("tag") == (fields.tag is not None) and list(system.keys) == list(
        fields.keys
    )
    carried = {
        pb.TRANSACTION: fields.transaction,
        pb.DELAY: fields.deliver_ms is not None,
        pb.FIFO: fields.message_group is not None,
        pb.PRIORITY: fields.priority is not None,
        pb.NORMAL: True,
    }
    assert system.message_type == next(kind for kind, is_so in carried.items() if is_so)
    assert system.HasField("delivery_timestamp") == (fields.deliver_ms is not None)
    assert system.body_encoding == (pb.GZIP if fields.gzip else pb.IDENTITY)


def test_order_and_bytes() -> None:
    """The order is the table's, then user properties by key; everything ends in 0x02."""
    fields = Fields(
        "ID", "T", ("a b", "c"), "G", "tc", "h", True, {"z": "1", "b": "", "WAIT": "x"}, 7
    )
    assert (
        encode(fields) == b'UNIQ_KEY\x01ID\x02TAGS\x01T\x02KEYS\x01a b c\x02__LMQ.KEYS\x01["a'
        b' b","c"]\x02__SHARDINGKEY\x01G\x02TRACE_CONTEXT\x01tc\x02'
        b"__BORNHOST\x01h\x02__LMQ.ENC\x01GZIP\x02PRIORITY\x017\x02__LMQ.U.WAIT\x01x\x02b\x01\x02z\x011\x02"
    )


def test_delivered_properties_include_those_rocketmq_adds() -> None:
    """The message group, and the id of a transactional message, under the names that consumers of
    RocketMQ read. A sender's own properties of these names stay its own, and nothing of it is
    stored."""

    def delivered(**fields: Any) -> dict[str, str]:
        message = pb.Message()
        fill_message(encode(Fields("ID", **fields)), message)
        return dict(message.user_properties)

    assert delivered() == {}
    assert delivered(message_group="G", user={"a": "1"}) == {"__SHARDINGKEY": "G", "a": "1"}
    assert delivered(transaction=True) == {"__transactionId__": "ID"}
    own = {"__SHARDINGKEY": "mine", "__transactionId__": "mine too"}
    assert delivered(message_group="G", transaction=True, user=own) == own


def test_the_priority_of_a_message() -> None:
    """The client's field; without it a user property of that name, so that clients without the
    field can say it; else none."""
    message = pb.Message(user_properties={"PRIORITY": "5"})
    assert priority_of(message) == 5
    for text in ("", "high", "4.5", "٤", "99999999999", "--4"):
        message.user_properties["PRIORITY"] = text
        assert priority_of(message) == -1
    message.system_properties.priority = 0
    message.user_properties["PRIORITY"] = "5"
    assert priority_of(message) == 0
    assert encode_message(message) == b"UNIQ_KEY\x01\x02PRIORITY\x010\x02__LMQ.U.PRIORITY\x015\x02"


def test_exact_keys_are_written_only_if_joining_is_ambiguous() -> None:
    """The exact list is written for a key with a space or an empty one, and only then."""
    assert encode(Fields(keys=("a", "b"))) == b"KEYS\x01a b\x02"
    assert encode(Fields(keys=("",))) == b'KEYS\x01\x02__LMQ.KEYS\x01[""]\x02'
    assert encode(Fields(keys=("a b",))) == b'KEYS\x01a b\x02__LMQ.KEYS\x01["a b"]\x02'


def test_absent_fields_encode_as_an_empty_string() -> None:
    """No property at all is an empty string; an empty tag or group counts as not sent."""
    assert encode(Fields()) == b"" and decode(b"") == Fields()
    assert encode(Fields(tag="", message_group="", born_host="")) == b""


@pytest.mark.parametrize("name", sorted(RESERVED_KEYS | {"__LMQ.KEYS", "__SHARDINGKEY"}))
def test_a_user_property_never_becomes_a_system_property(name: str) -> None:
    """A user property with a reserved name is stored under another one, and comes back under its
    own."""
    data = encode(Fields(message_id="ID", user={name: "v"}))
    assert parse(data) == {"UNIQ_KEY": "ID", f"__LMQ.U.{name}": "v"} and decode(data).user == {
        name: "v"
    }


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize(
    "place",
    ["message_id", "tag", "keys", "message_group", "trace_context", "born_host", "key", "value"],
)
def test_separators_cannot_forge_a_property(place: str, separator: str) -> None:
    """A separator in any name or value is refused, whatever the door let through."""
    bad = f"a{separator}b"
    values: dict[str, object] = {place: (bad,) if place == "keys" else bad}
    if place in ("key", "value"):
        values = {"user": {bad: "v"} if place == "key" else {"k": bad}}
    with pytest.raises(LedgerError) as caught:
        encode(Fields(**values))  # type: ignore[arg-type]
    assert caught.value.code == Code.BAD_REQUEST


def test_the_length_field_is_respected() -> None:
    """A string of exactly the maximum is accepted, one byte more refused."""
    room = PROPERTIES_MAX - len("UNIQ_KEY\x01\x02")
    assert len(encode(Fields(message_id="i" * room))) == PROPERTIES_MAX
    with pytest.raises(LedgerError) as caught:
        encode(Fields(message_id="i" * (room + 1)))
    assert caught.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE


def test_properties_of_other_writers_are_tolerated() -> None:
    """A missing final 0x02 and pieces without a name separator are tolerated; RocketMQ's own
    properties are not shown as the user's."""
    assert decode(b"TAGS\x01T\x02k\x01v") == Fields(tag="T", user={"k": "v"})
    assert parse(b"\x02x\x02k\x01v\x02") == {"k": "v"}
    assert decode(b"CLUSTER\x01c\x02WAIT\x01true\x02k\x01v\x02").user == {"k": "v"}


@given(st.dictionaries(st.sampled_from("abcdef"), TEXT), st.sets(st.sampled_from("abcdef")))
def test_edited_properties_keep_unnamed_ones_in_order(
    stored: dict[str, str], named: set[str]
) -> None:
    """Names that are put stand at the end with their new value, dropped ones are gone, all others
    keep value and order."""
    data = "".join(f"{name}\x01{value}\x02" for name, value in stored.items()).encode()
    put, drop = dict.fromkeys(sorted(named)[::2], "new"), sorted(named)[1::2]
    kept = {name: value for name, value in stored.items() if name not in named}
    assert list(parse(edited(data, put, drop)).items()) == [*kept.items(), *put.items()]
