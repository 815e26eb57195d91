"""The views without Spark: what they show of directories that the product wrote, and which files
they open for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema

from ledgermq.audit.reading import files
from ledgermq.audit.reading.ranges import Span
from ledgermq.audit.spark.source import VIEWS, LedgermqSource, PushingReader, ViewReader
from ledgermq.audit.spark.views.state import paths_of
from tests.audit.damage_cases import flip
from tests.audit.view_material import CREATED_MS, DATA_BYTES, STATE, Said, ViewLog, packed, write


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> ViewLog:
    return write(tmp_path_factory.mktemp("views"))


def schema_of(view: str, columns: str = "") -> Any:
    return LedgermqSource({"view": view, **({"columns": columns} if columns else {})}).schema()


def reader_of(path: Path, view: str, filters: Any = (), **options: str) -> ViewReader:
    source = LedgermqSource(
        {"view": view, "path": str(path), "pushdown": "true" if filters else "false", **options}
    )
    reader = source.reader(schema_of(view, options.get("columns", "")))
    assert isinstance(reader, ViewReader)
    if isinstance(reader, PushingReader):
        assert reader.pushFilters(filters) is filters
    return reader


def rows_of(path: Path, view: str, filters: Any = (), **options: str) -> list[dict[str, Any]]:
    reader = reader_of(path, view, filters, **options)
    wants = to_arrow_schema(schema_of(view, options.get("columns", "")), timezone="UTC")
    rows: list[dict[str, Any]] = []
    for share in reader.partitions():
        for batch in reader.read(share):
            assert batch.schema.equals(wants)
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def test_messages_are_as_their_producers_said_them(material: ViewLog) -> None:
    """Bodies unpacked, exact keys, user properties under their own names, native producers; control
    records are not among them."""
    rows = rows_of(material.node_dir, "messages")
    assert len(rows) == len(material.messages) > 100
    for row, said in zip(rows, material.messages, strict=True):
        shown = {**row, "properties": dict(row["properties"])}
        moment = datetime.fromtimestamp(said["store_ms"] / 1000, UTC)
        assert (row["replica"], row["broker_group"], row["store_time"]) == ("n1", "g1", moment)
        assert {key: shown[key] for key in said if key != "store_ms"} == {
            key: said[key] for key in said if key != "store_ms"
        }
    half = next(row for row in rows if row["topic"] == "rmq_sys_ledgermq_half")
    assert dict(half["system"])["REAL_TOPIC"] == "flights" and not half["properties"]


def test_records_are_control_records(material: ViewLog) -> None:
    """Topic, kind and JSON of every control record, and nothing else."""
    rows = rows_of(material.node_dir, "records")
    assert [(row["topic"], row["body"]) for row in rows] == material.records
    assert [row["kind"] for row in rows] == [
        "membership",
        "term-start",
        "term-start",
        "lease",
        "ack",
        "lease",
        "ack",
    ]
    assert rows_of(material.node_dir, "records", [EqualTo(("topic",), "flights")]) == []


def test_entries_view_has_a_row_for_each_entry(material: ViewLog) -> None:
    """A row for each entry, and those of the messages are where the messages are."""
    rows = rows_of(material.node_dir, "entries")
    assert [row["index"] for row in rows] == list(
        range(len(material.messages) + len(material.records))
    )
    assert all(row["intact"] for row in rows)
    for said in material.messages:
        row = rows[said["index"]]
        assert (row["pos"], row["topic"], row["queue"], row["queue_offset"]) == (
            said["pos"],
            said["topic"],
            said["queue"],
            said["offset"],
        )
        assert (row["term"], row["store_ms"]) == (said["term"], said["store_ms"])
    assert all(
        row["intact"] is None for row in rows_of(material.node_dir, "entries", verify="false")
    )


def test_unit_views_agree_with_the_log(material: ViewLog) -> None:
    """Index and consume queue units lead to the entries."""
    entries = rows_of(material.node_dir, "entries")
    units = rows_of(material.node_dir, "index")
    assert [(u["unit"], u["pos"], u["size"], u["index"], u["term"]) for u in units] == [
        (e["index"], e["pos"], e["size"], e["index"], e["term"]) for e in entries
    ]
    queues = rows_of(material.node_dir, "consumequeue")
    filed = {
        (u["topic"], u["queue"], u["queue_offset"]): (u["pos"], u["size"], u["tags_code"])
        for u in queues
    }
    assert filed == {
        (e["topic"], e["queue"], e["queue_offset"]): (e["pos"] + 48, e["size"] - 48, e["tags_code"])
        for e in entries
    }


def test_files_that_are_no_queue_have_no_rows(material: ViewLog, tmp_path: Path) -> None:
    """The view passes over a directory named by digits that are no number, a file beside the
    queues, and files that no queue has."""
    path = tmp_path / "n1"
    shutil.copytree(material.node_dir, path)
    expected = rows_of(path, "consumequeue")
    queues = path / "g1" / "consumequeue" / "flights"
    written = next(queues.glob("*/" + "0" * 20)).parent
    shutil.copytree(written, queues / "²")
    (queues / "77").write_bytes(b"")
    for name in ("²" * 20, "1" * 19, "0" * 20 + ".alloc"):
        shutil.copy(written / ("0" * 20), written / name)
    assert expected and rows_of(path, "consumequeue") == expected


def test_key_units_lead_to_their_messages(material: ViewLog) -> None:
    """Every unit of the key index that counts is a row, over several files."""
    rows = rows_of(material.node_dir, "keyindex")
    places = {said["pos"] + 48 for said in material.messages}
    assert len({row["file"] for row in rows}) > 2 and {row["pos"] for row in rows} <= places
    expected = sum(1 for said in material.messages if said["message_id"].startswith("id-p"))
    ids = {said["pos"] + 48 for said in material.messages if said["message_id"].startswith("id-p")}
    assert sum(row["pos"] in ids for row in rows) == expected


def test_state_has_a_row_for_each_value(material: ViewLog) -> None:
    """Objects are paths, lists are values, packed rows are taken apart."""
    rows = rows_of(material.node_dir, "state")
    assert {
        row["path"]: json.loads(row["value"]) for row in rows if row["path"] != "applied_end_pos"
    } == STATE
    assert all(row["path"] == "/".join(row["keys"]) and row["applied_index"] == 100 for row in rows)


@pytest.mark.parametrize(
    "odd", ["x", None, {"o": "???"}, {"o": packed([1], "<i8")}, [[1, 2]], {"o": 3, "terms": 4}]
)
def test_a_packed_value_that_cannot_be_taken_apart_is_shown_as_it_stands(odd: Any) -> None:
    """A value that is damaged despite a valid checksum, or from another version, still gives a
    row."""
    snapshot = {
        "delivery": {"g": {"t": {"0": [1, odd]}}},
        "lapsed": [odd],
        "transactions": {"halves": odd},
    }
    rows = {"/".join(keys): value for keys, value in paths_of(snapshot)}
    assert json.loads(rows["delivery/g/t/0/cursor"]) == 1
    assert json.loads(rows["lapsed"]) == [odd]
    assert json.loads(rows["delivery/g/t/0/rows"]) == json.loads(rows["transactions/halves"]) == odd


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files opened to be read, or for their first entries; not what leads to one entry, such as
    the chain word before a file."""
    seen: list[str] = []
    real = files.open_file

    def open_file(path: str) -> files.File:
        seen.append("/".join(path.split("/")[-2:]))
        return real(path)

    for name in ("audit.reading.entries", "audit.reading.ranges", "audit.spark.views.units"):
        monkeypatch.setattr(f"ledgermq.{name}.open_file", open_file)
    yield seen


def data_files(opened: list[str]) -> set[int]:
    return {int(path.split("/")[1]) // DATA_BYTES for path in opened if path.startswith("data/")}


def test_a_range_opens_only_the_files_it_needs(material: ViewLog, opened: list[str]) -> None:
    """By index, by time and by position: the tasks are those of the files concerned, and their
    reading opens no other log file."""
    entries = rows_of(material.node_dir, "entries")
    count = 1 + max(row["pos"] for row in entries) // DATA_BYTES
    assert count >= 8
    middle = [row for row in entries if row["pos"] // DATA_BYTES == count // 2]
    first, last = middle[2], middle[-2]
    for filters in (
        [
            GreaterThanOrEqual(("index",), first["index"]),
            LessThanOrEqual(("index",), last["index"]),
        ],
        [GreaterThan(("index",), first["index"] - 1), LessThan(("index",), last["index"] + 1)],
        [In(("index",), (first["index"], last["index"]))],
        [EqualTo(("pos",), first["pos"])],
    ):
        reader = reader_of(material.node_dir, "entries", filters)
        shares = reader.partitions()
        opened.clear()
        found = [
            row for share in shares for batch in reader.read(share) for row in batch.to_pylist()
        ]
        assert data_files(opened) == {count // 2}
        assert first["index"] in [row["index"] for row in found]
    # A millisecond may lie in two files: the one before may be looked at as well, no other.
    reader = reader_of(material.node_dir, "entries", [EqualTo(("store_ms",), first["store_ms"])])
    shares = reader.partitions()
    opened.clear()
    found = [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]
    assert [row["index"] for row in found] == [
        row["index"] for row in entries if row["store_ms"] == first["store_ms"]
    ]
    assert len(data_files(opened)) <= 3
    # Planning itself searches by halves.
    opened.clear()
    reader_of(material.node_dir, "entries", from_index="1", to_index="2").partitions()
    assert len(data_files(opened)) <= count.bit_length() * 2


@pytest.mark.parametrize("known", ["nothing", "what is before", "the epoch"])
def test_times_that_fall_hide_no_row(tmp_path: Path, known: str) -> None:
    """Store times are far ahead for a while, in one file or over several, and fall where a time
    epoch begins. Files are left out by time only before what a snapshot without an epoch covers."""
    log = ViewLog(tmp_path)
    times = [*range(10, 20), *[1000] * 3, *range(20, 30), *[2000] * 40, *range(30, 60)]
    for number, ms in enumerate(times):
        if number == 5:
            before = log.store.log.end_pos
        log.put([Said("t", b"x" * 200, 0, f"id-{number}", None)], CREATED_MS + ms)
    covered = {"nothing": {"applied_end_pos": 0}, "what is before": {"applied_end_pos": before}}
    log.finish(**covered.get(known, {"time_epochs": [[13, 1, 1]]}))
    for low, high in product(
        (0, 10, 15, 25, 45, 1000, 1500, 2000), (10, 15, 25, 45, 1000, 1500, 2000)
    ):
        bounds = {"from_ms": str(CREATED_MS + low), "to_ms": str(CREATED_MS + high)}
        assert len(rows_of(log.node_dir, "entries", **bounds)) == sum(
            low <= ms <= high for ms in times
        ), (low, high)


@pytest.mark.parametrize("view", ["entries", "messages", "records"])
def test_range_returns_exactly_the_rows_within_its_bounds(material: ViewLog, view: str) -> None:
    """Every pair of bounds, by index and by time: exactly the rows that lie within, whatever files
    were left out."""
    rows = rows_of(material.node_dir, view)
    top = max(row["index"] for row in rows)
    for low in range(0, top + 2, 17):
        for high in (max(low - 1, 0), low, low + 19, low + 70):
            within = [row for row in rows if low <= row["index"] <= high]
            assert (
                rows_of(material.node_dir, view, from_index=str(low), to_index=str(high)) == within
            )
    for low in range(CREATED_MS - 5, CREATED_MS + 1300, 197):
        for high in (low, low + 1, low + 111, low + 500):
            found = rows_of(material.node_dir, view, from_ms=str(low), to_ms=str(high))
            assert found == [row for row in rows if low <= ms_of(row) <= high]


def ms_of(row: dict[str, Any]) -> int:
    return (
        int(row["store_ms"]) if "store_ms" in row else round(row["store_time"].timestamp() * 1000)
    )


def test_moments_bound_times(material: ViewLog) -> None:
    """A timestamp in a filter leaves out files, never a row."""
    moment = datetime.fromtimestamp((CREATED_MS + 610) / 1000, UTC)
    rows = rows_of(material.node_dir, "messages")
    for one in (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo):
        found = rows_of(material.node_dir, "messages", [one(("store_time",), moment)])
        kept = {
            GreaterThan: lambda t: t > moment,
            GreaterThanOrEqual: lambda t: t >= moment,
            LessThan: lambda t: t < moment,
            LessThanOrEqual: lambda t: t <= moment,
            EqualTo: lambda t: t == moment,
        }[one]
        assert [row for row in found if kept(row["store_time"])] == [
            row for row in rows if kept(row["store_time"])
        ]
        assert len(found) < len(rows)


def test_topics_queues_and_replicas(material: ViewLog) -> None:
    """Options and filters by name; what is not a plain comparison is left to Spark."""
    path = material.node_dir
    orders = [said["index"] for said in material.messages if said["topic"] == "ns@orders"]
    assert [row["index"] for row in rows_of(path, "messages", topic="ns@orders")] == orders
    assert [
        row["index"] for row in rows_of(path, "messages", [In(("topic",), ("ns@orders", "no"))])
    ] == orders
    assert len(rows_of(path, "messages", [Not(EqualTo(("topic",), "ns@orders"))])) == len(
        material.messages
    )
    assert rows_of(path, "entries", replicas="n2,n3") == [] == rows_of(path, "entries", group="g2")
    assert {row["topic"] for row in rows_of(path, "consumequeue", topic="flights")} == {"flights"}
    offsets = rows_of(
        path,
        "consumequeue",
        [EqualTo(("topic",), "flights"), GreaterThanOrEqual(("queue_offset",), 15)],
    )
    assert {row["queue_offset"] for row in offsets} == set(range(15, 108))
    assert [row["unit"] for row in rows_of(path, "index", from_index="20", to_index="40")] == list(
        range(20, 41)
    )


def test_columns_are_chosen_by_option(material: ViewLog) -> None:
    """Only those, in that order."""
    rows = rows_of(material.node_dir, "messages", columns="offset, body")
    assert list(rows[0]) == ["offset", "body"] and rows[0]["body"] == material.messages[0]["body"]


def test_damage_is_a_row_of_entries_only(tmp_path: Path) -> None:
    """A flipped body: `intact` false, no topic, and no message; its neighbours are as they were. A
    wrong chain word spoils no entry."""
    log = write(tmp_path, 4)
    hurt, worded = log.messages[10], log.messages[20]
    for said, at in ((hurt, 140), (worded, 38)):
        flip(
            log.root / "dledger-n1" / "data" / f"{said['pos'] - said['pos'] % DATA_BYTES:020d}",
            said["pos"] % DATA_BYTES + at,
        )
    rows = rows_of(log.node_dir, "entries")
    assert [row["index"] for row in rows if not row["intact"]] == [hurt["index"]]
    assert rows[hurt["index"]]["topic"] is None
    shown = [row["index"] for row in rows_of(log.node_dir, "messages")]
    assert shown == [said["index"] for said in log.messages if said is not hurt]


def test_damaged_first_entries_hide_no_file(tmp_path: Path) -> None:
    """Where the header of a file's first entry is destroyed, ranges in it and behind it are still
    found."""
    log = write(tmp_path)
    entries = rows_of(log.node_dir, "entries")
    first = next(row for row in entries if row["pos"] // DATA_BYTES == 3)
    flip(log.root / "dledger-n1" / "data" / f"{3 * DATA_BYTES:020d}", 30)
    for wanted in range(first["index"] - 1, first["index"] + 3):
        for kind, value in (("index", wanted), ("ms", entries[wanted]["store_ms"])):
            found = rows_of(
                log.node_dir, "entries", **{f"from_{kind}": str(value), f"to_{kind}": str(value)}
            )
            assert wanted in [row["index"] for row in found], (kind, wanted)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "rows"}, "there is no view 'rows'"),
        ({"view": "messages", "columns": "body,colour"}, "there is no column 'colour'"),
        ({"view": "state", "from_index": "3"}, "it does not apply to view state"),
        ({"view": "keyindex", "topic": "t"}, "it does not apply to view keyindex"),
        ({"from_index": "-3"}, "use a log index"),
        ({"from_ms": "yesterday"}, "option from_ms"),
        ({"verify": "maybe"}, "use true or false"),
        ({"path": "/nowhere/n1"}, "there is no directory /nowhere/n1"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, str], text: str, tmp_path: Path) -> None:
    """Each names the option and what it takes."""
    source = LedgermqSource({"path": str(tmp_path), **options})
    with pytest.raises(ValueError, match=text):
        source.reader(source.schema()).partitions()


def test_every_view_has_the_bounds_it_names() -> None:
    """A column that bounds something is a column."""
    for name, view in VIEWS.items():
        assert view.bounds.keys() <= view.columns.keys(), name


def test_spans() -> None:
    """Both ends are included; a missing bound is unlimited."""
    assert not Span() and Span(0, None) and Span(None, 0)
    assert Span(3, None).within(Span(None, 5)) == Span(3, 5) and Span(3, 9).within(
        Span(4, 5)
    ) == Span(4, 5)
    assert Span(3, 5).meets(5, 9) and not Span(3, 5).meets(6, 9) and Span().meets(1, 1)
