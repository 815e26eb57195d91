"""Rows of data files: what is a message, what is not and in which line, and what becomes of them
through a native producer."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ledgermq.client.cli.message_commands import send
from ledgermq.client.errors import SendFailed
from ledgermq.client.messages.send_files import BadRow, FileSender, Row, kind_of, read_rows
from ledgermq.client.native.producers.outcomes import (
    BatchAcknowledged,
    BatchFailed,
    Failure,
    Statistics,
)
from ledgermq.proto.proofs.receipts import receipt_of
from tests.client.fake_cluster import fake_nodes
from tests.client.fake_log import FakeBrokerGroup, FakeLogNode, Trouble, endpoints, fake_log


def rows(kind: str, data: bytes) -> list[Row | BadRow]:
    return list(read_rows(kind, io.BytesIO(data)))


def test_the_kind_of_a_file_is_in_its_name() -> None:
    """Whatever the case; everything else is lines."""
    assert [kind_of(path) for path in ("a.jsonl", "b/C.CSV", "x.parquet")] == [
        ".jsonl",
        ".csv",
        ".parquet",
    ]
    assert [kind_of(path) for path in ("x.json", "-", "x")] == [None, None, None]


def test_json_lines_of_consume_are_readable_input() -> None:
    """The position fields are ignored; bad lines are reported, and empty lines are skipped."""
    lines = [
        b'{"v":1,"message_id":"01AB","topic":"t","queue":1,"offset":4,"body":"a","tag":"x","keys":["k"],"properties":{"p":"q"},"attempt":1}',
        b"",
        b'{"body_base64":"AP8=","message_group":"g"}',
        b"{nonsense",
        b"[1]",
        b'{"tag":"x"}',
        b'{"body":"a","colour":"red"}',
        b'{"body":"a","properties":{"n":1}}',
        b'{"body_base64":"?"}',
        b'{"body":""}',
    ]
    found = rows(".jsonl", b"\n".join(lines))
    assert found[0] == Row(1, b"a", "x", ("k",), {"p": "q"}, None)
    assert found[1] == Row(3, b"\x00\xff", None, (), {}, "g")
    assert [(type(row), row.line) for row in found[2:]] == [(BadRow, line) for line in range(4, 11)]


def test_csv_has_a_header_and_other_columns_are_properties() -> None:
    """Lines are those where a row begins, also behind a value of several lines; an empty cell is
    nothing."""
    data = (
        b'body,tag,keys,colour\n"two\nlines",x,k1 k2,red\nplain,,,\nshort,x\n,x,,\nlast,,,"a""b"\n'
    )
    assert rows(".csv", data) == [
        Row(2, b"two\nlines", "x", ("k1", "k2"), {"colour": "red"}),
        Row(4, b"plain"),
        BadRow(5, "2 cells, and the header names 4 columns"),
        BadRow(6, "the body is empty"),
        Row(7, b"last", None, (), {"colour": 'a"b'}),
    ]
    assert isinstance(rows(".csv", b'body\nok\n"never closed\n')[-1], BadRow)
    with pytest.raises(Exception, match="body"):
        rows(".csv", b"text\nx\n")


def test_parquet_rows() -> None:
    """Bytes or text; lists of keys, maps of properties, and other columns as text."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "body": pa.array([b"a", None, b"c"], pa.binary()),
            "keys": pa.array([["k1", "k 2"], [], None], pa.list_(pa.string())),
            "properties": pa.array([[("p", "q")], None, None], pa.map_(pa.string(), pa.string())),
            "distance": pa.array([1.5, 2.0, None], pa.float64()),
        }
    )
    file = io.BytesIO()
    parquet.write_table(table, file)
    assert rows(".parquet", file.getvalue()) == [
        Row(1, b"a", None, ("k1", "k 2"), {"distance": "1.5", "p": "q"}),
        BadRow(2, "a message has either a body or a body_base64"),
        Row(3, b"c"),
    ]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (".jsonl", b"[" * 200_000),
        (".jsonl", b'{"body":"a","keys":5}'),
        (".jsonl", b'{"body":"a","keys":true}'),
        (".jsonl", b'{"body":"a","keys":{"k":1}}'),
        (".jsonl", b'{"body":"a","tag":0}'),
        (".jsonl", b'{"body":"a","tag":"\\ud800"}'),
        (".jsonl", b'{"body":"a","message_group":false}'),
        (".jsonl", b'{"body":"\xff"}'),
        (".csv", b"body,properties\na," + b"[" * 200_000),
        (".csv", b"body,properties\na,5"),
    ],
)
def test_row_of_wrong_types_is_a_bad_row(kind: str, line: bytes) -> None:
    """No value of a file is dropped silently, and none ends the command."""
    found = rows(kind, line)
    assert [type(row) for row in found] == [BadRow]


def test_a_byte_order_mark_is_no_part_of_a_name() -> None:
    """As spreadsheets write it."""
    assert rows(".csv", b"\xef\xbb\xbfbody,tag\na,x\n") == [Row(2, b"a", "x")]
    assert rows(".jsonl", b'\xef\xbb\xbf{"body":"a"}\n') == [Row(1, b"a")]


def test_a_parquet_file_with_a_damaged_page_or_odd_columns_names_the_row() -> None:
    """What was read before it is sent."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    bodies = [b"%06d" % number for number in range(4000)]
    parquet.write_table(
        pa.table({"body": bodies}),
        file,
        row_group_size=2000,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(file.getvalue())
    at = data.index(b"002000") - 60
    data[at : at + 40] = bytes(range(200, 240))
    found = rows(".parquet", bytes(data))
    assert isinstance(found[-1], BadRow) and 0 < found[-1].line <= 2001
    assert [row.body for row in found[:-1] if isinstance(row, Row)] == bodies[: len(found) - 1]
    odd = io.BytesIO()
    parquet.write_table(pa.table({"body": ["a", "b"], "properties": [["x"], None]}), odd)
    assert [type(row) for row in rows(".parquet", odd.getvalue())] == [BadRow, Row]


def test_large_rows_are_not_kept_in_memory() -> None:
    """However many there are: what is read ahead and not settled is bounded by bytes too."""
    held: list[int] = []

    class Bodies:
        """A producer that acknowledges at once, and looks at what the sender keeps."""

        statistics = Statistics()

        def send_batch(self, bodies: list[bytes], **columns: Any) -> Future[BatchAcknowledged]:
            held.append(
                sum(len(row.body) for chunk, _, _ in sender._ahead for row in chunk)
                + sum(map(len, bodies))
            )
            future: Future[BatchAcknowledged] = Future()
            future.set_result(BatchAcknowledged(len(bodies), (), ()))
            return future

    producer: Any = Bodies()
    sender = FileSender(producer, lambda done: None)
    summary = sender.send_all(Row(number, bytes(100_000)) for number in range(1500))
    assert summary.sent == 1500 and max(held) < 20_000_000


@pytest.mark.parametrize("others", [0, 1])
def test_file_sending_stops_after_a_timeout_without_acknowledgements(others: int) -> None:
    """A chunk that was not stored in its time ends the file, unless something else was stored
    meanwhile: then it was one broker group."""

    class Failing:
        """A producer whose messages all run out of time."""

        statistics = Statistics()

        def send_batch(self, bodies: list[bytes], **columns: Any) -> Future[BatchAcknowledged]:
            future: Future[BatchAcknowledged] = Future()
            late = SendFailed(
                "broker group g1: could not be sent in time (it has no leader)",
                "wait",
                unknown=False,
            )
            future.set_exception(
                BatchFailed((Failure(range(len(bodies)), late),), BatchAcknowledged(0, (), ()))
            )
            self.statistics.acknowledged += others
            return future

    producer: Any = Failing()
    summary = FileSender(producer, lambda done: None).send_all(
        Row(number, b"x") for number in range(5_000)
    )
    assert (summary.sent, summary.failed, summary.given_up) == (
        (1_000, 1_000, True) if not others else (5_000, 5_000, False)
    )


def sending(
    arguments: list[str], before: Callable[[list[FakeLogNode]], None] = lambda nodes: None
) -> tuple[Result, FakeBrokerGroup]:
    """The command against a fake node."""

    async def main() -> tuple[Result, FakeBrokerGroup]:
        async with fake_log() as (nodes, groups):
            before(nodes)
            command = ["--endpoints", endpoints(nodes), "--topic", "t", *arguments]
            return await asyncio.to_thread(CliRunner().invoke, send, command), groups[0]

    return asyncio.run(main())


def test_a_file_is_sent_once_through_a_lost_stream_and_its_receipts_are_kept(
    tmp_path: Path,
) -> None:
    """The result is the JSON of every send; options are for rows that do not say otherwise."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path, receipts = tmp_path / "data.jsonl", tmp_path / "receipts.parquet"
    path.write_text(
        "".join(
            json.dumps({"body": f"{number}", **({"tag": "own"} if number == 7 else {})}) + "\n"
            for number in range(2500)
        )
    )

    def trouble(nodes: list[FakeLogNode]) -> None:
        nodes[0].troubles = [Trouble.DROP_AFTER, Trouble.NONE, Trouble.PART]

    result, group = sending(
        ["--file", str(path), "--tag", "t", "--receipts", str(receipts), "--json"], trouble
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["sent"], found["acknowledged"], found["failed"], found["durability"]) == (
        2500,
        2500,
        0,
        "durable",
    )
    assert sorted(int(message.body) for message in group.log) == list(range(2500))
    assert {int(m.body): m.properties["TAGS"] for m in group.log}[7] == "own" and group.log[
        0
    ].properties["TAGS"] == "t"
    assert sum(receipt_of(row).count for row in parquet.read_table(receipts).to_pylist()) == 2500


def test_bad_rows_are_named_by_their_line_and_the_others_are_sent(tmp_path: Path) -> None:
    """Exit status 1; message groups are for fifo topics."""
    path = tmp_path / "data.jsonl"
    path.write_text(
        '{"body":"a"}\nnonsense\n{"body":"b","message_group":"g"}\n{"body":"c","tag":"a|b"}\n{"body":"d"}\n'
    )
    result, group = sending(["--file", str(path), "--json"])
    assert result.exit_code == 1
    assert [message.body for message in group.log] == [b"a", b"d"]
    assert [line.split(":")[0] for line in result.stderr.splitlines()[:3]] == [
        "line 2",
        "line 3",
        "line 4",
    ]
    assert result.stderr.splitlines()[-1].startswith("error: 3 of 5 messages were not acknowledged")


def test_receipts_are_for_native_sends_only(tmp_path: Path) -> None:
    """--receipts also of --body; not of what a native stream does not carry."""
    pytest.importorskip("pyarrow")
    result, group = sending(["--body", "hello", "--receipts", str(tmp_path / "r.parquet")])
    assert result.exit_code == 0 and [message.body for message in group.log] == [b"hello"]
    for more in (["--delay", "1s"], ["--one-way"], ["--message-group", "g"], ["--priority", "3"]):
        result, group = sending(["--body", "x", "--receipts", str(tmp_path / "s.parquet"), *more])
        assert "receipts" in str(result.exception) and not group.log


def test_rows_for_topics_of_other_kinds_take_the_unary_path(tmp_path: Path) -> None:
    """With their message groups, in order."""
    path = tmp_path / "data.csv"
    path.write_text("body,message_group\na,g\nb,g\n,g\n")
    from ledgermq.proto import log_pb2, messaging_pb2
    from tests.client.fake_cluster import status

    with fake_nodes() as (node,):
        node.answers("Locate", log_pb2.LocateResponse(cluster_id="c", kind="fifo"))
        node.answers("SendMessage", messaging_pb2.SendMessageResponse(status=status()))
        result = CliRunner().invoke(
            send, ["--endpoints", node.endpoint, "--topic", "t", "--file", str(path), "--json"]
        )
        sent: list[Any] = node.requests["SendMessage"]
    assert result.exit_code == 1, result.output
    assert [(r.messages[0].body, r.messages[0].system_properties.message_group) for r in sent] == [
        (b"a", "g"),
        (b"b", "g"),
    ]
    assert json.loads(result.stdout)["failed"] == 1
