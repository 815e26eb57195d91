"""`query`, `group lag` and `group reset` against a scripted node: what they ask, what they print,
how they end."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledgermq import cli
from ledgermq.client.errors import BadArgument
from ledgermq.client.moments import moment_ms, time_range_ms
from ledgermq.proto import admin_pb2
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

Run = Callable[..., tuple[int, str, str]]
NOW = 1_700_000_000_000


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_nodes() as (one,):
        yield one


@pytest.fixture
def run(node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`ledgermq …` in this process against the fake: exit status, stdout, stderr."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = cli.run(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return command


def message(offset: int, store_ms: int = NOW) -> admin_pb2.PeekedMessage:
    found = admin_pb2.PeekedMessage(
        topic=admin_pb2.Name(name="t"),
        message_id=f"id-{offset}",
        offset=offset,
        body=b"b",
        keys=["k"],
    )
    found.store_ms, found.broker_group, found.group_queue, found.queue = store_ms, "g1", 1, 3
    return found


def page(*offsets: int, follow: bytes = b"", lagging: bool = False) -> admin_pb2.QueryResponse:
    answer = admin_pb2.QueryResponse(
        status=admin_status(), messages=[message(offset) for offset in offsets], next=follow
    )
    if lagging:
        answer.lagging.add(broker_group="g1", indexed_to=7, applied_to=9)
    return answer


def detail() -> admin_pb2.MessageDetailResponse:
    answer = admin_pb2.MessageDetailResponse(status=admin_status())
    answer.copies.add(
        node="n1",
        state="present",
        file="g1/dledger-n1/data/00",
        position=0,
        size=200,
        index=4,
        term=1,
        chain_crc=7,
    )
    answer.copies.add(node="n2", reason="node n2 is not reached")
    answer.consumption.add(
        group=admin_pb2.Name(name="billing"), state="leased", attempt=2, client="c"
    )
    return answer


# -- query


def test_query_by_key_reads_pages_and_prints_peek_fields(node: FakeNode, run: Run) -> None:
    """Every page until enough came; the same fields as peek; what was asked reaches the node."""
    node.answers("Query", page(5, 4, follow=b"x"), page(3, follow=b"y"), page(2, 1))
    code, out, err = run("query", "--topic", "t", "--key", "k", "--max", "4", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "") and [line["offset"] for line in lines] == [5, 4, 3, 2, 1]
    assert lines[0] == {
        "v": 1, "message_id": "id-5", "topic": "t", "queue": 3, "offset": 5, "tag": None, "keys": ["k"], "message_group": None,
        "properties": {}, "body": "b", "attempt": None, "born_ms": None, "store_ms": NOW,
    }  # fmt: skip
    requests = node.requests["Query"]
    assert [(r.key, r.max, r.after) for r in requests] == [
        ("k", 4, b""),
        ("k", 2, b"x"),
        ("k", 1, b"y"),
    ]
    assert (
        not requests[0].HasField("message_id")
        and not requests[0].HasField("begin_ms")
        and not node.requests["MessageDetail"]
    )


def test_query_without_matches_is_empty_and_an_unknown_id_exits_with_4(
    node: FakeNode, run: Run
) -> None:
    """By key and by time that is an answer; an id that does not exist is 4."""
    node.answers("Query", page())
    assert run("query", "--topic", "t", "--key", "k") == (0, "", "")
    assert run("query", "--topic", "t", "--time-range", "-1m..") == (0, "", "")
    code, out, err = run("query", "--topic", "t", "--id", "nope")
    assert (code, out) == (4, "") and "error: topic t has no message with the id nope; " in err


def test_absence_is_not_claimed_before_the_index_knows(node: FakeNode, run: Run) -> None:
    """A lagging index is 2, with what was found, whether by key or by id."""
    node.answers("Query", page(5, lagging=True))
    code, out, err = run("query", "--topic", "t", "--key", "k")
    assert (
        code == 2
        and out == "3:5 - b\n"
        and "error: INCOMPLETE: " in err
        and "g1 to entry 7 of 9" in err
    )
    node.answers("Query", page(lagging=True))
    assert run("query", "--topic", "t", "--id", "i")[0] == 2


def test_query_by_id_prints_the_message_detail(node: FakeNode, run: Run) -> None:
    """Detail is on with --id and off with --no-detail; unknown is null; the place of the message is
    what is asked about."""
    node.answers("Query", page(5))
    node.answers("MessageDetail", detail())
    code, out, _ = run("query", "--topic", "t", "--id", "id-5", "--json")
    found = json.loads(out)
    assert code == 0 and found["message_id"] == "id-5" and found["broker_group"] == "g1"
    first, second = found["replicas"]
    assert (
        first["state"] == "present"
        and first["file"] == "g1/dledger-n1/data/00"
        and first["sha256"] is None
    )
    assert second == {
        "node": "n2",
        **dict.fromkeys(first.keys() - {"node"}),
        "reason": "node n2 is not reached",
    }
    assert found["consumption"] == [
        {"namespace": "", "group": "billing", "state": "leased", "attempt": 2, "client": "c"}
    ]
    (request,) = node.requests["MessageDetail"]
    assert (request.topic.name, request.broker_group, request.group_queue, request.offset) == (
        "t",
        "g1",
        1,
        5,
    )
    code, out, _ = run("query", "--topic", "t", "--id", "id-5")
    assert code == 0 and "leased" in out and "not reached" in out and "?" in out
    assert run("query", "--topic", "t", "--id", "id-5", "--no-detail")[1] == "3:5 - b\n"
    assert len(node.requests["MessageDetail"]) == 2
    assert "present" in run("query", "--topic", "t", "--key", "k", "--detail")[1]


def test_query_by_time_sends_the_limits(node: FakeNode, run: Run) -> None:
    """From A on, before B; an open side is absent; together with --key it narrows."""
    node.answers("Query", page())
    run("query", "--topic", "t", "--time-range", "1700000000000..2023-11-14T22:13:21Z")
    run("query", "--topic", "t", "--time-range", "..1700000000000ms", "--key", "k")
    first, second = node.requests["Query"]
    assert (first.begin_ms, first.end_ms) == (NOW, NOW + 1000) and not first.HasField("key")
    assert not second.HasField("begin_ms") and second.end_ms == NOW and second.key == "k"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-10m", NOW - 600_000),
        ("-1.5h", NOW - 5_400_000),
        ("1699999999999", NOW - 1),
        ("1699999999999ms", NOW - 1),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20.250+01:00", NOW + 250),
        ("2023-11-14 22:13:20", NOW),
        ("2023-11-14", NOW - 80_000_000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    """ISO 8601 in any offset and UTC without one, milliseconds, now, and before now."""
    assert moment_ms(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "then", "-10", "10m", "-", "1969-12-31", "17000000000000000", "2023-13-01"]
)
def test_no_moments(text: str) -> None:
    """Nothing is guessed at; the message names the forms."""
    with pytest.raises(BadArgument, match="or now"):
        moment_ms(text, NOW)


def test_ranges() -> None:
    """Either side may be open, not both; the end comes after the begin."""
    assert time_range_ms("-1m..now", NOW) == (NOW - 60_000, NOW)
    assert time_range_ms("-1m..", NOW) == (NOW - 60_000, None)
    assert time_range_ms(".. now", NOW) == (None, NOW)
    for text in ("..", "now", "now..now", "now..-1m"):
        with pytest.raises(BadArgument):
            time_range_ms(text, NOW)


# -- group lag


def lag(*, known: bool = True, waiting: bool = True) -> admin_pb2.GroupLagResponse:
    answer = admin_pb2.GroupLagResponse(status=admin_status())
    topic = answer.topics.add(topic=admin_pb2.Name(name="t"))
    topic.queues.add(queue=0, broker_group="g1", group_queue=0, cursor=4, end=4, lag=0, leased=2)
    queue = topic.queues.add(queue=1, broker_group="g2", group_queue=0)
    if known:
        queue.cursor, queue.end, queue.lag, queue.leased = (
            4,
            9 if waiting else 4,
            5 if waiting else 0,
            0,
        )
        topic.lag, topic.leased = queue.lag, 2
        if waiting:
            queue.oldest_age_ms = topic.oldest_age_ms = 1500
    return answer


def test_lag_prints_sums_and_marks_unknown_queues(node: FakeNode, run: Run) -> None:
    """Sums per topic; nothing waiting and unknown are both null, and only unknown ends with 2."""
    node.answers("GroupLag", lag())
    code, out, _ = run("group", "lag", "g", "--topic", "t", "--json")
    (topic,) = json.loads(out)["topics"]
    assert code == 0 and (topic["lag"], topic["leased"], topic["oldest_age_ms"]) == (5, 2, 1500)
    assert topic["queues"][0] == {
        "queue": 0, "broker_group": "g1", "group_queue": 0, "cursor": 4, "end": 4, "lag": 0, "leased": 2, "oldest_age_ms": None,
    }  # fmt: skip
    (request,) = node.requests["GroupLag"]
    assert (request.group.name, request.topic.name) == ("g", "t")
    node.answers("GroupLag", lag(known=False))
    code, out, err = run("group", "lag", "g", "--json")
    (topic,) = json.loads(out)["topics"]
    assert code == 2 and topic["lag"] is None and topic["queues"][1]["cursor"] is None
    assert (
        "INCOMPLETE" in err and "g2" in err and not node.requests["GroupLag"][1].HasField("topic")
    )


def test_lag_as_a_table(node: FakeNode, run: Run) -> None:
    """A question mark for unknown values, a dash where no message waits."""
    node.answers("GroupLag", lag(waiting=False))
    code, out, _ = run("group", "lag", "g")
    assert code == 0 and "?" not in out and "-" in out and "all" in out
    node.answers("GroupLag", lag(known=False))
    assert "?" in run("group", "lag", "g")[1]


# -- group reset


@pytest.mark.parametrize(
    ("to", "which", "value"),
    [
        (("earliest",), "earliest", True),
        (("latest", "--queue", "3"), "latest", True),
        (("12", "--queue", "0"), "offset", 12),
        (("1700000000000ms",), "store_ms", NOW),
        (("2023-11-14T22:13:20Z",), "store_ms", NOW),
    ],
)
def test_reset_says_where(
    node: FakeNode, run: Run, to: tuple[str, ...], which: str, value: Any
) -> None:
    """The place reaches the node as it was meant; the new offsets are printed."""
    answer = admin_pb2.ResetGroupResponse(status=admin_status())
    answer.queues.add(queue=3, broker_group="g1", group_queue=1, cursor=7)
    node.answers("ResetGroup", answer)
    code, out, _ = run("group", "reset", "g", "--topic", "t", "--to", *to, "--yes", "--json")
    assert code == 0
    assert json.loads(out) == {
        "v": 1, "group": "g", "topic": "t", "queues": [{"queue": 3, "broker_group": "g1", "group_queue": 1, "cursor": 7}],
    }  # fmt: skip
    (request,) = node.requests["ResetGroup"]
    assert request.WhichOneof("to") == which and getattr(request, which) == value
    assert request.HasField("queue") == ("--queue" in to)


def test_reset_insists_off_a_terminal(node: FakeNode, run: Run) -> None:
    """Without --yes nothing is asked of the cluster."""
    code, _, err = run("group", "reset", "g", "--topic", "t", "--to", "latest")
    assert code == 64 and "--yes" in err and not node.requests


# -- group skip


@pytest.mark.parametrize(("count", "offset"), [((), 7), (("--count", "3"), 10)])
def test_skip_moves_behind_messages_in_flight(
    node: FakeNode, run: Run, count: tuple[str, ...], offset: int
) -> None:
    """From the cursor of the queue, or a number of messages behind it."""
    lag = admin_pb2.GroupLagResponse(status=admin_status())
    topic = lag.topics.add(topic=admin_pb2.Name(name="t"))
    topic.queues.add(queue=2, broker_group="g1", group_queue=0, cursor=1, end=9)
    topic.queues.add(queue=3, broker_group="g1", group_queue=1, cursor=7, end=20)
    node.answers("GroupLag", lag)
    answer = admin_pb2.ResetGroupResponse(status=admin_status())
    answer.queues.add(queue=3, broker_group="g1", group_queue=1, cursor=offset)
    node.answers("ResetGroup", answer)
    code, out, _ = run(
        "group", "skip", "g", "--topic", "t", "--queue", "3", *count, "--yes", "--json"
    )
    assert code == 0 and json.loads(out)["queues"][0]["cursor"] == offset
    (request,) = node.requests["ResetGroup"]
    assert (request.queue, request.offset) == (3, offset)


def test_skip_needs_to_know_where_the_group_is(node: FakeNode, run: Run) -> None:
    """Of a queue that nothing is known of nothing is skipped."""
    lag = admin_pb2.GroupLagResponse(status=admin_status())
    lag.topics.add(topic=admin_pb2.Name(name="t")).queues.add(
        queue=3, broker_group="g1", group_queue=1
    )
    node.answers("GroupLag", lag)
    code, _, err = run("group", "skip", "g", "--topic", "t", "--queue", "3", "--yes")
    assert code == 64 and "queue 3" in err and "ResetGroup" not in node.requests
