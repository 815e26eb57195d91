"""Naming rules of the contract and stored names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import names
from ledgermq.proto.status import Code, LedgerError

LEGAL = st.text("abcXYZ019_-%|", min_size=1, max_size=60)


@pytest.mark.parametrize(
    "name", ["flights", "a" * 127, "A-b_c%d|e", "%DLQ%" + "g" * 120, "%RETRY%" + "g" * 200]
)
def test_legal_topics(name: str) -> None:
    """Names inside the rules are their own stored name without a namespace."""
    assert names.topic_name("", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "a" * 128,
        "%DLQ%" + "g" * 251,
        "a.b",
        "a b",
        "a/b",
        "a@b",
        "ä",
        "a\n",
        "TBW102",
        "rmq_sys_x",
        names.RAFT_TOPIC,
    ],
)
def test_illegal_topics(name: str) -> None:
    """Checklist 5: blank, too long, a foreign character, a system name."""
    with pytest.raises(LedgerError) as caught:
        names.topic_name("", name)
    assert caught.value.code == Code.ILLEGAL_TOPIC and caught.value.message


@pytest.mark.parametrize("name", ["", " ", "g" * 121, "a b", "a.b", "g@h", "g$h"])
def test_illegal_groups(name: str) -> None:
    """Groups follow the same rules with their own length, also where the quorum's commands are
    carried out."""
    for check in (names.group_name, names.agreed_group_name):
        with pytest.raises(LedgerError) as caught:
            check("", name)
        assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("namespace", ["", "ns"])
@pytest.mark.parametrize("name", ["CID_RMQ_SYS_x", "rmq_sys_x", "%DLQ%zz", "%RETRY%zz", "%DLQ%"])
def test_reserved_groups(namespace: str, name: str) -> None:
    """Names in the form of system names are reserved; a group that got one earlier can still be
    shown and deleted."""
    with pytest.raises(LedgerError) as caught:
        names.group_name(namespace, name)
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP and "reserved" in caught.value.message


@pytest.mark.parametrize("name", ["rmq_sys", "RMQ_SYS_x", "DLQ%g", "a%DLQ%g", "%dlq%g", "%"])
def test_groups_that_only_resemble_reserved_ones(name: str) -> None:
    """A prefix counts from the first character on, in its own case."""
    assert names.group_name("", name) == name


@pytest.mark.parametrize("namespace", ["n" * 128, "a.b", "a@b", " ", "../x"])
def test_illegal_namespaces(namespace: str) -> None:
    """A namespace follows the same character rules; it becomes part of a directory's name."""
    with pytest.raises(LedgerError):
        names.topic_name(namespace, "t")
    with pytest.raises(LedgerError):
        names.group_name(namespace, "g")


def test_a_stored_name_fits_into_a_file_name() -> None:
    """Namespace and name may each be legal and together too long."""
    assert len(names.topic_name("n" * 127, "t" * 127)) == 255
    with pytest.raises(LedgerError):
        names.topic_name("n" * 127, "%DLQ%" + "g" * 130)


@given(LEGAL | st.just(""), LEGAL)
def test_stored_names_are_one_to_one(namespace: str, name: str) -> None:
    """(namespace, name) comes back from the stored name, and differs for different pairs."""
    assert names.parse_stored(names.stored_name(namespace, name)) == (namespace, name)


@pytest.mark.parametrize("stored", ["rmq_sys_anything", "ns@rmq_sys_x", "TBW102", "ns@TBW102"])
def test_system_topics(stored: str) -> None:
    """A namespace does not make a system topic an ordinary one."""
    assert names.is_system_topic(stored) and not names.is_system_topic("flights")


def test_control_characters() -> None:
    """C0, DEL and C1 are control characters; everything else in a text is data."""
    assert all(names.has_control_character(f"a{c}b") for c in "\x00\x01\x02\n\x1f\x7f\x85\x9f")
    assert not names.has_control_character("a b~ ä漢\U0001f600")


def test_reserved_keys() -> None:
    """The list of the contract is complete, and the two keys it allows are not on it."""
    assert len(names.RESERVED_KEYS) == 53
    assert names.RESERVED_KEYS.isdisjoint({"__SHARDINGKEY", "TRACE_CONTEXT"})
