"""`ledgermq dlq` against a scripted node: what it asks, what it prints, how it ends; and the same
calls of the Python client."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import Admin, Connection
from ledgermq.client.api import letters
from ledgermq.client.messages.send_files import Row, read_rows
from ledgermq.proto import admin_pb2
from tests.cli.conftest import Run
from tests.client.fake_cluster import FakeNode, admin_status

NOW = 1_700_000_000_000


@pytest.fixture
def run(ledgermq: Run) -> Run:
    """`ledgermq dlq …`."""
    return partial(ledgermq, "dlq")


def letter(
    offset: int, state: str = "waiting", *, body: bytes = b"", sent: bool = False
) -> admin_pb2.DeadLetter:
    found = admin_pb2.DeadLetter(state=state, body_bytes=3)
    message = found.message
    message.message_id, message.topic.name, message.offset, message.body = (
        f"id-{offset}",
        "%DLQ%billing",
        offset,
        body,
    )
    message.store_ms, message.born_ms, message.broker_group, message.tag = (
        NOW + offset,
        NOW - 1,
        "g1",
        "new",
    )
    message.keys.append("k")
    message.properties["region"] = "eu"
    if not sent:
        found.topic.name, found.group_queue, found.queue, found.offset = (
            "orders",
            0,
            2,
            offset + 100,
        )
    return found


def page(
    *found: admin_pb2.DeadLetter, follow: bytes = b"", lagging: bool = False
) -> admin_pb2.ListDeadLettersResponse:
    answer = admin_pb2.ListDeadLettersResponse(status=admin_status(), letters=found, next=follow)
    if lagging:
        answer.lagging.add(broker_group="g1")
    return answer


def settled(*states: str) -> admin_pb2.SettleDeadLettersResponse:
    return admin_pb2.SettleDeadLettersResponse(status=admin_status(), states=states)


def as_asked(request: Any) -> admin_pb2.SettleDeadLettersResponse:
    return settled(*[request.how] * len(request.letters))


def counts(*groups: str) -> admin_pb2.CountDeadLettersResponse:
    answer = admin_pb2.CountDeadLettersResponse(status=admin_status())
    for name in groups:
        answer.groups.add(
            group=admin_pb2.Name(name=name), unsettled=4, resent=2, purged=1, oldest_ms=NOW
        )
    return answer


def test_list_counts_all_groups(node: FakeNode, run: Run) -> None:
    """One row for each; conditions need a group."""
    node.answers("CountDeadLetters", counts("billing", "lake"))
    code, out, err = run("list")
    assert (
        (code, err) == (0, "")
        and "billing" in out
        and "lake" in out
        and "2023-11-14T22:13:20Z" in out
    )
    found = json.loads(run("list", "--json")[1])["groups"]
    assert found[0] == {
        "group": "billing",
        "unsettled": 4,
        "resent": 2,
        "purged": 1,
        "oldest_ms": NOW,
    }
    assert not node.requests["CountDeadLetters"][0].HasField("group")
    assert run("list", "--settled")[0] == 64 and run("list", "--time-range", "-1h..")[0] == 64


def test_list_of_a_group_reads_page_by_page(node: FakeNode, run: Run) -> None:
    """As many pages as it shows; what was asked reaches the node; a letter that a client sent has
    no original."""
    node.answers(
        "ListDeadLetters",
        page(letter(0), letter(1, "orphaned", sent=True), follow=b"x"),
        page(follow=b"y"),
        page(letter(2)),
    )
    code, out, _ = run(
        "list",
        "--group",
        "ns@billing",
        "--time-range",
        "1700000000000..1700000000009",
        "--settled",
        "--max",
        "3",
        "--json",
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["letter"] for line in lines] == [0, 1, 2]
    assert lines[0] == {
        "v": 1, "message_id": "id-0", "state": "waiting", "given_up_ms": NOW, "topic": "orders", "queue": 2, "offset": 100,
        "client": None, "broker_group": "g1", "letter": 0, "tries": 0, "bytes": 3,
    }  # fmt: skip
    assert (lines[1]["topic"], lines[1]["queue"], lines[1]["offset"]) == (None, None, None)
    asked = node.requests["ListDeadLetters"]
    assert [request.after for request in asked] == [b"", b"x", b"y"]
    first = asked[0]
    assert (
        first.group.namespace,
        first.group.name,
        first.begin_ms,
        first.end_ms,
        first.settled,
    ) == ("ns", "billing", NOW, NOW + 9, True)
    node.answers("ListDeadLetters", page(letter(0)))
    assert (
        "id-0" in run("list", "--group", "billing")[1]
        and not node.requests["ListDeadLetters"][-1].bodies
    )


def test_show_prints_the_letters_of_an_id(node: FakeNode, run: Run) -> None:
    """Settled or not; an id that is not there is 4, and 2 while the index lags."""
    node.answers("ListDeadLetters", page(letter(0, "resent", body=b"hey")))
    code, out, _ = run("show", "id-0", "--group", "billing")
    assert code == 0 and "hey" in out and "state: resent" in out and "topic: orders" in out
    found = json.loads(run("show", "id-0", "--group", "billing", "--json")[1])
    assert found["message"]["body"] == "hey" and found["message"]["properties"] == {"region": "eu"}
    request = node.requests["ListDeadLetters"][0]
    assert (list(request.message_ids), request.settled, request.bodies) == (["id-0"], True, True)
    node.answers("ListDeadLetters", page())
    assert run("show", "id-9", "--group", "billing")[0] == 4
    node.answers("ListDeadLetters", page(lagging=True))
    assert run("show", "id-9", "--group", "billing")[0] == 2


def test_resend_settles_in_batches_and_counts_outcomes(node: FakeNode, run: Run) -> None:
    """At most a hundred in one call; a letter that is not resent makes the exit status 1."""
    found = [letter(at) for at in range(230)]
    node.answers("ListDeadLetters", page(*found[:150], follow=b"x"), page(*found[150:]))
    node.answers("SettleDeadLetters", as_asked)
    code, out, err = run("resend", "--group", "billing", "--yes")
    assert (code, out, err) == (0, "billing: resent 230 of 230\n", "")
    calls = node.requests["SettleDeadLetters"]
    assert [len(call.letters) for call in calls] == [100, 100, 30] and {
        call.how for call in calls
    } == {"resent"}
    assert [place.offset for call in calls for place in call.letters] == list(range(230))
    node.answers("ListDeadLetters", page(*found[:4]))
    node.answers("SettleDeadLetters", settled("resent", "orphaned", "purged", "resent"))
    code, out, _ = run("resend", "--group", "billing", "--yes")
    assert (code, out) == (1, "billing: resent 2 of 4, 1 orphaned, 1 purged\n")
    node.answers("SettleDeadLetters", settled("resent", "orphaned", "gone", "resent"))
    said = json.loads(run("resend", "--group", "billing", "--yes", "--json")[1])
    assert said == {
        "v": 1,
        "dry_run": False,
        "groups": [{"group": "billing", "letters": 4, "resent": 2, "orphaned": 1, "gone": 1}],
    }


def test_an_interrupted_resend_says_how_far_it_came(node: FakeNode, run: Run) -> None:
    """The exit status is that of the failure."""
    node.answers("ListDeadLetters", page(*[letter(at) for at in range(150)]))
    refused = admin_pb2.SettleDeadLettersResponse(status=admin_status(40300, "no permission"))
    node.answers("SettleDeadLetters", settled(*["resent"] * 100), refused)
    code, out, err = run("resend", "--group", "billing", "--yes")
    assert (
        (code, out) == (4, "") and "resent so far: 100\n" in err and "error: no permission" in err
    )


class Ledger:
    """The letters of a consumer group, as a cluster keeps them: a list without what is settled, and
    a delivery for each letter that is."""

    PAGE = 70

    def __init__(self, count: int) -> None:
        self.delivered = [0] * count
        self.left = -1
        """Places that the process still passes; -1: it is not ended."""

    def _place(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def answer(self, request: Any) -> Any:
        listing = isinstance(request, admin_pb2.ListDeadLettersRequest)
        return self.listed(request) if listing else self.settle(request)

    def listed(
        self, request: admin_pb2.ListDeadLettersRequest
    ) -> admin_pb2.ListDeadLettersResponse:
        self._place()
        begin = int(request.after or b"0")
        end = min(begin + self.PAGE, len(self.delivered))
        waiting = [letter(at) for at in range(begin, end) if not self.delivered[at]]
        self._place()
        return page(*waiting, follow=str(end).encode() if end < len(self.delivered) else b"")

    def settle(
        self, request: admin_pb2.SettleDeadLettersRequest
    ) -> admin_pb2.SettleDeadLettersResponse:
        self._place()
        for place in request.letters:
            self.delivered[place.offset] += 1
        self._place()
        return as_asked(request)


def test_a_resend_is_ended_at_every_place_and_every_letter_is_delivered_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each call, and behind it, when the cluster has done it and the process does not know:
    two processes in turn, and a third that is left alone. None asks for a letter that is settled
    already."""
    ended: set[tuple[bool, bool]] = set()
    for first in range(1, 30):
        for second in range(1, 30):
            ledger = Ledger(230)
            monkeypatch.setattr(
                Connection, "_do", lambda _, call, ledger=ledger: ledger.answer(call.request)
            )
            codes = []
            for ledger.left in (first, second):
                code, _, err = run("resend", "--group", "billing", "--yes")
                assert code == 0 or (code == 130 and "resent so far: " in err), (code, err)
                codes.append(code == 130)
            ledger.left = -1
            assert run("resend", "--group", "billing", "--yes")[0] == 0
            assert set(ledger.delivered) == {1}, (first, second)
            ended.add((codes[0], codes[1]))
            if not codes[1]:
                break
        if not codes[0]:
            break
    assert ended == {(True, True), (True, False), (False, True), (False, False)}


def test_purge_dry_run_counts_without_settling(node: FakeNode, run: Run) -> None:
    """It needs no confirmation, and counts what could be done."""
    node.answers("ListDeadLetters", page(letter(0), letter(1), letter(2, "orphaned")))
    assert run("resend", "--group", "billing", "--dry-run")[:2] == (
        1,
        "billing: would be resent 2 of 3, 1 orphaned\n",
    )
    assert run("purge", "--group", "billing", "--dry-run")[:2] == (
        0,
        "billing: would be purged 3 of 3\n",
    )
    assert not node.requests["SettleDeadLetters"]


def test_purge_and_every_group(node: FakeNode, run: Run) -> None:
    """--all goes from group to group."""
    node.answers("CountDeadLetters", counts("billing", "lake"))
    node.answers("ListDeadLetters", page(letter(0), letter(1)))
    node.answers("SettleDeadLetters", as_asked)
    assert run("purge", "--all", "--yes")[:2] == (
        0,
        "billing: purged 2 of 2\nlake: purged 2 of 2\n",
    )
    assert [(call.group.name, call.how) for call in node.requests["SettleDeadLetters"]] == [
        ("billing", "purged"),
        ("lake", "purged"),
    ]
    node.answers("CountDeadLetters", counts())
    assert run("purge", "--all", "--yes")[:2] == (0, "no consumer group has dead letters\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("resend", "--yes"),
        ("resend", "--group", "g"),
        ("resend", "--all", "--group", "g", "--yes"),
        ("resend", "--all", "--id", "x", "--yes"),
        ("resend", "--group", "g", "--rate", "0", "--yes"),
        ("purge", "--group", "g"),
        ("export", "--group", "g", "--to", "letters.txt"),
        ("export", "--to", "letters.csv"),
    ],
)
def test_ambiguous_letter_selection_is_refused(
    arguments: tuple[str, ...], node: FakeNode, run: Run
) -> None:
    """Nothing selected, everything and something, no confirmation, no rate, no data file."""
    assert run(*arguments)[0] == 64 and not node.requests


def test_an_id_that_no_letter_has_is_an_error(node: FakeNode, run: Run) -> None:
    """Also across all groups, and 2 while the index lags."""
    node.answers("CountDeadLetters", counts("billing"))
    node.answers("ListDeadLetters", page())
    assert run("resend", "--id", "x", "--yes")[0] == 4
    node.answers("ListDeadLetters", page(lagging=True))
    assert run("resend", "--id", "x", "--yes")[0] == 2


def test_the_rate_bounds_the_batches() -> None:
    """Each batch waits until its letters fit the rate."""

    now, sizes = 0.0, list[int]()

    class Calls:
        def resend_dead_letters(self, group: str, letters: Any) -> tuple[str, ...]:
            sizes.append(len(letters))
            return ("resent",) * len(letters)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    found = letters.Letters(Calls(), "g")  # type: ignore[arg-type]
    done = found.settled(
        (letter(at) for at in range(35)), "resent", 10, sleep=sleep, now=lambda: now
    )
    assert [(each["resent"], round(now, 6)) for each in done] == [
        (10, 0),
        (10, 1),
        (10, 2),
        (5, 2.5),
    ]
    assert sizes == [10, 10, 10, 5]
    begin = now
    done = found.settled(
        (letter(at) for at in range(3)), "resent", 0.5, sleep=sleep, now=lambda: now
    )
    assert [round(now - begin, 6) for _ in done] == [0, 2, 4]


def test_an_export_can_be_sent_again(node: FakeNode, run: Run, tmp_path: Path) -> None:
    """In every format: the rows of `consume`, with the place of the original."""
    found = [
        letter(0, body=b"hey"),
        letter(1, body=b"\xff\x00"),
        letter(2, "orphaned", body=b"x", sent=True),
    ]
    node.answers("ListDeadLetters", page(*found[:2], follow=b"x"), page(found[2]), page(*found))
    for suffix in (".jsonl", ".csv", ".parquet"):
        path = tmp_path / f"letters{suffix}"
        assert run("export", "--group", "billing", "--to", str(path))[:2] == (
            0,
            f"exported 3 dead letters to {path}\n",
        )
        with path.open("rb") as file:
            rows = list(read_rows(suffix, file))
        assert [row.body for row in rows if isinstance(row, Row)] == [
            b"hey",
            b"\xff\x00",
            b"x",
        ], suffix
        assert rows[0] == Row(rows[0].line, b"hey", "new", ("k",), {"region": "eu"})
        assert run("export", "--group", "billing", "--to", str(path))[0] == 64, "it exists"
    assert json.loads((tmp_path / "letters.jsonl").read_text().splitlines()[0])["topic"] == "orders"
    with (tmp_path / "letters.csv").open() as text:
        assert [(row["topic"], row["queue"], row["offset"]) for row in csv.DictReader(text)][1] == (
            "orders",
            "2",
            "101",
        )
    assert all(request.bodies for request in node.requests["ListDeadLetters"])


def test_an_export_that_fails_leaves_no_file(node: FakeNode, run: Run, tmp_path: Path) -> None:
    """Nor does one without letters."""
    refused = admin_pb2.ListDeadLettersResponse(status=admin_status(40300, "no permission"))
    for suffix in (".jsonl", ".csv", ".parquet"):
        node.answers("ListDeadLetters", page(letter(0), follow=b"x"), refused)
        assert (
            run("export", "--group", "billing", "--to", str(tmp_path / f"letters{suffix}"))[0] == 4
        )
        node.answers("ListDeadLetters", page())
        assert run("export", "--group", "billing", "--to", str(tmp_path / f"letters{suffix}"))[
            :2
        ] == (0, "exported 0 dead letters\n")
    assert list(tmp_path.iterdir()) == []


def test_the_python_client(node: FakeNode) -> None:
    """Counts, letters of several pages, and the states that a settlement returns."""
    node.answers("CountDeadLetters", counts("billing"))
    node.answers(
        "ListDeadLetters", page(letter(0), letter(1), follow=b"x"), page(letter(2, sent=True))
    )
    node.answers("SettleDeadLetters", as_asked)
    with Connection(node.endpoint) as connection:
        admin = Admin(connection)
        (count,) = admin.dead_letter_counts("billing")
        assert (count.group, count.unsettled, count.resent, count.purged) == ("billing", 4, 2, 1)
        since = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        found = admin.dead_letters("billing", since=since)
        assert count.oldest == since and [one.message.offset for one in found] == [0, 1, 2]
        assert (found[0].topic, found[0].offset, found[2].topic, found[0].client) == (
            "orders",
            100,
            None,
            None,
        )
        assert admin.resend_dead_letters("billing", found) == ("resent",) * 3
        assert admin.purge_dead_letters("billing", found * 40) == ("purged",) * 120
    assert node.requests["ListDeadLetters"][0].begin_ms == NOW
    assert [len(call.letters) for call in node.requests["SettleDeadLetters"]] == [3, 100, 20]
