"""A node that came back with another directory is no foreigner once the group's log has taken that
directory in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.group_comparison import check_identities

SAME = {
    "cluster_id": "c",
    "log_id": "l",
    "data_file_bytes": 4096,
    "index_file_bytes": 64,
    "consume_queue_file_bytes": 40,
}


def replica(
    name: str,
    incarnation: str,
    peers: dict[str, str],
    records: Sequence[Any] = (),
    members: Any = None,
    *,
    vouched: bool | None = True,
    last: int = 9,
) -> Any:
    """As much of a replica as identities need."""
    flaws: list[str] = []
    found = SimpleNamespace(
        name=name,
        directory=name,
        identity={**SAME, "incarnation": incarnation},
        peers=peers,
        flaws=flaws,
    )
    found.reports = [SimpleNamespace(memberships=[(7, json.dumps(record)) for record in records])]
    found.snapshot = None if members is None else {"members": members}
    found.node, found.vouched, found.last_index = None, vouched, last
    found.flaw = lambda rule, file, proof: flaws.append(rule)
    return found


@pytest.mark.parametrize("where", ["record", "snapshot", "nowhere"])
def test_a_directory_that_the_log_took_in_is_the_peers_own(where: str) -> None:
    """peers.json keeps the first incarnation of a peer; a membership record, or the snapshot that
    contains it, names the later ones."""
    named = {"voters": {"n1": {}}, "learners": {"n2": {"incarnation": "new", "returning": True}}}
    records, members = (
        ([named] if where == "record" else []),
        (named if where == "snapshot" else None),
    )
    one = replica("n1", "a", {"n2": "old"}, records, members)
    two = replica("n2", "new", {"n1": "a"})
    check_identities(GroupResult("g1", [one, two]))
    assert one.flaws == (["peers.incarnation"] if where == "nowhere" else []) and two.flaws == []


def test_unreadable_records_name_no_incarnation() -> None:
    """Shapes of no kind are passed over; the finding stays."""
    one = replica(
        "n1", "a", {"n2": "old"}, [[], {"voters": [], "learners": {"n2": "x"}}, 7], members=[]
    )
    two = replica("n2", "new", {})
    check_identities(GroupResult("g1", [one, two]))
    assert one.flaws == ["peers.incarnation"]


@pytest.mark.parametrize(
    ("vouched", "last", "fails"),
    [(False, 40, False), (None, 0, False), (None, 40, True), (True, 40, True)],
)
def test_returned_node_is_incomplete_without_findings_until_it_is_named(
    vouched: bool | None, last: int, fails: bool
) -> None:
    """Two peers met its former directory; the new one takes no part, which its own files say: no
    verdict, but no finding either."""
    peers = [replica(name, name, {"n2": "old"}) for name in ("n1", "n3")]
    two = replica("n2", "new", {}, vouched=vouched, last=last)
    result = GroupResult("g1", [*peers, two])
    check_identities(result)
    assert two.flaws == (["peers.incarnation"] if fails else [])
    assert result.returned == (set() if fails else {"n2"})
    assert fails or "n2 has come back without its data" in result.reasons[0]
