"""`ledgermq waiting` against a scripted node: what it asks, what it prints, how it ends; and the
same calls of the Python client."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from ledgermq.client import Admin, Connection
from ledgermq.proto import admin_pb2
from tests.cli.conftest import Run
from tests.client.fake_cluster import FakeNode, admin_status

NOW = 1_700_000_000_000


@pytest.fixture
def run(ledgermq: Run) -> Run:
    """`ledgermq waiting …`."""
    return partial(ledgermq, "waiting")


def waits(offset: int, *, delayed: bool = True) -> admin_pb2.WaitingMessage:
    found = admin_pb2.WaitingMessage(checks=0 if delayed else 3)
    message = found.message
    message.message_id, message.topic.name, message.body, message.store_ms = (
        f"id-{offset}",
        "t",
        b"tea",
        NOW,
    )
    found.place.broker_group, found.place.offset, found.place.message_id = (
        "g1",
        offset,
        f"id-{offset}",
    )
    if delayed:
        message.delayed_until_ms = found.place.fire_ms = NOW + 60_000
    return found


def page(*found: admin_pb2.WaitingMessage, follow: bytes = b"") -> admin_pb2.ListWaitingResponse:
    return admin_pb2.ListWaitingResponse(status=admin_status(), messages=found, next=follow)


def cancelled(request: Any) -> admin_pb2.CancelWaitingResponse:
    return admin_pb2.CancelWaitingResponse(
        status=admin_status(), states=["cancelled"] * len(request.messages)
    )


def test_list_reads_page_by_page(node: FakeNode, run: Run) -> None:
    """Delayed messages with their time, half messages with their checks."""
    node.answers(
        "ListWaiting", page(waits(0), follow=b"x"), page(follow=b"y"), page(waits(1), waits(2))
    )
    code, out, _ = run(
        "list",
        "--topic",
        "ns@t",
        "--kind",
        "delayed",
        "--time-range",
        "1700000000000..",
        "--max",
        "2",
        "--json",
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["waits_at"] for line in lines] == [0, 1]
    assert (
        lines[0]["delayed_until_ms"] == NOW + 60_000
        and lines[0]["body"] == "tea"
        and "offset" not in lines[0]
    )
    asked = node.requests["ListWaiting"]
    assert [request.after for request in asked] == [b"", b"x", b"y"]
    assert (asked[0].topic.namespace, asked[0].kind, asked[0].begin_ms) == (
        "ns",
        "delayed",
        NOW,
    ) and not asked[0].HasField("end_ms")
    node.answers("ListWaiting", page(waits(7, delayed=False)))
    out = run("list", "--topic", "t", "--kind", "half")[1]
    assert "id-7" in out and "g1:7" in out and "│      3 │" in out
    node.answers("ListWaiting", page(waits(7)))
    assert "2023-11-14T22:14:20Z" in run("list", "--topic", "t", "--kind", "delayed")[1]


def test_cancel_counts_outcomes_of_the_cluster_in_batches(node: FakeNode, run: Run) -> None:
    """In batches of a hundred; a message that became visible first makes the exit status 1."""
    node.answers("ListWaiting", page(*[waits(at) for at in range(130)]))
    node.answers("CancelWaiting", cancelled)
    assert run("cancel", "--topic", "t", "--kind", "delayed", "--all", "--yes") == (
        0,
        "cancelled 130 of 130\n",
        "",
    )
    calls = node.requests["CancelWaiting"]
    assert [len(call.messages) for call in calls] == [100, 30] and calls[0].messages[3] == waits(
        3
    ).place
    node.answers(
        "CancelWaiting",
        admin_pb2.CancelWaitingResponse(status=admin_status(), states=["cancelled", "gone"]),
    )
    node.answers("ListWaiting", page(waits(0), waits(1)))
    assert run(
        "cancel", "--topic", "t", "--kind", "delayed", "--id", "id-0", "--id", "id-1", "--yes"
    )[:2] == (1, "cancelled 1 of 2\n")
    assert list(node.requests["ListWaiting"][-1].message_ids) == ["id-0", "id-1"]
    refused = admin_pb2.CancelWaitingResponse(status=admin_status(40300, "no permission"))
    node.answers("CancelWaiting", refused)
    code, out, err = run(
        "cancel", "--topic", "t", "--kind", "half", "--time-range", "..-1h", "--yes"
    )
    assert (code, out) == (4, "") and "cancelled so far: 0\n" in err


def test_a_dry_run_and_an_unknown_id(node: FakeNode, run: Run) -> None:
    """Nothing is cancelled."""
    node.answers("ListWaiting", page(waits(0), waits(1)))
    assert run("cancel", "--topic", "t", "--kind", "half", "--all", "--dry-run")[:2] == (
        0,
        "would be cancelled: 2\n",
    )
    said = json.loads(
        run("cancel", "--topic", "t", "--kind", "half", "--all", "--dry-run", "--json")[1]
    )
    assert said == {"v": 1, "dry_run": True, "messages": 2, "waiting": 2}
    node.answers("ListWaiting", page())
    assert run("cancel", "--topic", "t", "--kind", "half", "--id", "x", "--yes")[0] == 4
    assert not node.requests["CancelWaiting"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kind", "delayed", "--yes"),
        ("--kind", "delayed", "--all", "--id", "x", "--yes"),
        ("--kind", "delayed", "--all"),
        ("--kind", "late", "--all", "--yes"),
        ("--all", "--yes"),
    ],
)
def test_ambiguous_cancel_selection_is_refused(
    arguments: tuple[str, ...], node: FakeNode, run: Run
) -> None:
    """Nothing selected, everything and something, no confirmation, no kind."""
    assert run("cancel", "--topic", "t", *arguments)[0] == 64 and not node.requests


def test_the_python_client(node: FakeNode) -> None:
    """Several pages, and the states that a cancellation returns."""
    node.answers("ListWaiting", page(waits(0), follow=b"x"), page(waits(1)))
    node.answers("CancelWaiting", cancelled)
    with Connection(node.endpoint) as connection:
        admin = Admin(connection)
        found = admin.waiting("t", "delayed", message_ids=["a"])
        assert [one.place.offset for one in found] == [0, 1] and found[
            0
        ].message.delayed_until is not None
        assert admin.cancel_waiting("t", "delayed", found * 60) == ("cancelled",) * 120
    assert [len(call.messages) for call in node.requests["CancelWaiting"]] == [100, 20]
    assert node.requests["CancelWaiting"][0].messages[0] == waits(0).place
