"""The log against what its clients kept: what is true passes, and every kind of lie, of the log or
of the client, is found where it is."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks import opening
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.cli import run
from ledgermq.client.native.consumers import delivery_log
from ledgermq.client.native.producers import receipt_log
from tests.audit import client_cases
from tests.audit.client_cases import CREATED, FIFO, GROUP, TOPIC, Clients, write_clients
from tests.audit.damage_cases import flip
from tests.audit.log_writer import Message, sealed
from tests.audit.running_nodes import FakeCluster

pytest.importorskip("pyarrow")
from ledgermq.audit.clients.outcome import COUNTS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Clients, list[GroupResult]]:
    """Three replicas that are intact, with the groups as they were compared."""
    clients = write_clients(tmp_path_factory.mktemp("clients"))
    return clients, audit(clients.directories).groups


@pytest.fixture
def true(cluster: tuple[Clients, list[GroupResult]], tmp_path: Path) -> Clients:
    """What the clients of this cluster kept, all of it true, to be changed."""
    clients, groups = cluster
    copied = copy.deepcopy((clients.receipts, clients.deliveries))
    return Clients(tmp_path, clients.writers, *copied, clients.frames, groups)


def said(clients: Clients, *more: str, **options: Any) -> Audit:
    """What the audit of these clients gives; the replicas are looked at only if that was not done
    before."""
    from ledgermq.audit.clients.joining import join_here
    from ledgermq.audit.clients.outcome import ClientFiles, check_clients
    from ledgermq.audit.run.jobs import judge

    groups = clients.groups if clients.groups is not None else audit(clients.directories).groups
    receipts, acks = clients.write(options.pop("lines", False))
    found = check_clients(groups, ClientFiles.find([receipts], [acks, *more], **options), join_here)
    return judge(groups, [], 0, found)


def rules(told: Audit) -> Counter[str]:
    return Counter(finding.flaw.rule for finding in told.findings)


def count(told: Audit, what: str) -> int:
    assert told.clients is not None
    return told.clients.total(what)


def everything(told: Audit) -> dict[str, Any]:
    """What was found, but for the names of files."""
    from ledgermq.audit.cli.report import as_json

    value: dict[str, Any] = as_json(told)
    value["clients"].pop("files")
    for finding in value["findings"]:
        finding.pop("file")
    return value


@pytest.mark.parametrize("lines", [False, True])
def test_true_receipts_and_deliveries_pass(true: Clients, lines: bool) -> None:
    """Every receipt and every delivery agrees with the log; each message is counted once, in its
    window."""
    told = said(true, window_ms=1000, lines=lines)
    assert (told.verdict, told.findings, told.reasons) == ("PASS", [], [])
    natives = sum(len(placed) for placed in true.frames)
    assert (count(told, "stored"), count(told, "acknowledged")) == (natives + 16, natives)
    assert (count(told, "delivered"), count(told, "consumed")) == (natives + 16, natives + 16)
    assert (
        told.clients is not None
        and sum(told.clients.total(what) for what in COUNTS) == 3 * (natives + 16) + natives
    )
    windows = {(row["topic"], row["window_ms"]): row for row in told.clients.windows}
    assert windows[FIFO, CREATED]["stored"] == 10 and windows[FIFO, CREATED + 1000]["stored"] == 6
    assert windows[TOPIC, CREATED]["acknowledged"] == sum(
        len(placed) for placed in true.frames[:10]
    )


def test_topics_of_a_namespace_that_is_named_like_a_system_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the clients' own: their messages count."""
    monkeypatch.setattr(client_cases, "TOPIC", "rmq_sys_team@flights")
    told = said(write_clients(tmp_path))
    assert (told.verdict, told.findings) == ("PASS", [])


def test_an_acknowledged_frame_that_is_gone(tmp_path: Path) -> None:
    """Its receipt is the one that is named, with its first entry and the number of its messages."""
    clients = write_clients(tmp_path, leave_out=15)
    told = said(clients)
    placed = clients.frames[15]
    assert (
        told.verdict == "FAIL"
        and rules(told) == {"client.lost": 1}
        and count(told, "lost") == len(placed)
    )
    (lost,) = told.findings
    assert (lost.flaw.index, lost.klass, lost.replica, lost.group) == (
        placed[0].index,
        "missing",
        "clients",
        "g1",
    )
    assert lost.flaw.file == str(tmp_path / "receipts0.parquet") and lost.flaw.proof.startswith(
        "row 16: producer 2"
    )


def test_the_end_of_the_log_that_is_gone(
    true: Clients, cluster: tuple[Clients, list[GroupResult]]
) -> None:
    """An acknowledgement behind the end of every voter's log is a loss, even though nothing else
    knows of it; while a voter is not at hand it is only not known."""
    ahead = {
        **true.receipts[-1],
        "first_index": true.writers[0].entries[-1].index + 1,
        "first_sequence": 70_000,
    }
    true.receipts.append(ahead)
    told = said(true)
    assert rules(told) == {"client.lost": 1} and told.findings[0].flaw.index == ahead["first_index"]
    true.groups = audit(cluster[0].directories[:2]).groups
    told = said(true)
    assert (
        told.verdict == "INCOMPLETE"
        and not told.findings
        and count(told, "beyond") == ahead["count"]
    )
    assert any("behind the compared index" in reason for reason in told.reasons)


def test_a_frame_that_is_stored_twice(tmp_path: Path) -> None:
    """Named by its receipt, and by nothing else of the client's side: the first copy is the
    acknowledged one."""
    clients = write_clients(tmp_path, twice=4)
    told = said(clients)
    assert {rule for rule in rules(told) if rule.startswith("client.")} == {"client.twice"}
    assert count(told, "twice") == len(clients.frames[4])


def test_frames_that_changed_places(tmp_path: Path) -> None:
    """A frame stored after the next one of its producer is out of order, and its receipt has
    another index."""
    told = said(write_clients(tmp_path, swap=6))
    assert (
        rules(told)["client.order"] >= 1
        and rules(told)["client.receipt"] >= 2
        and "client.lost" not in rules(told)
    )


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "index": lambda row: row.update(first_index=row["first_index"] + 1),
    "term": lambda row: row.update(term=row["term"] + 1),
    "store time": lambda row: row.update(store_ms=row["store_ms"] + 1),
    "topic": lambda row: row.update(topic="others"),
    "queue offset": (
        lambda row: row["ranges"][0].update(first_offset=row["ranges"][0]["first_offset"] + 1)
    ),
    "chain CRC": lambda row: row.update(chain_crc=row["chain_crc"] ^ 1),
    "queue ranges": lambda row: row["ranges"].pop(),
    "numbers": lambda row: row.update(count=0),
    "durability": lambda row: row.update(durability="always"),
    "broker_group": lambda row: row.update(broker_group=None),
}


def test_receipts_that_lie(true: Clients) -> None:
    """In any of their fields: exactly these receipts are named, and what differs."""
    for at, lie in enumerate(LIES):
        LIES[lie](true.receipts[at])
    told = said(true)
    assert told.verdict == "FAIL" and rules(told) == {"client.receipt": len(LIES)}
    proofs = {finding.flaw.proof.partition(":")[0]: finding.flaw.proof for finding in told.findings}
    for at, lie in enumerate(LIES):
        assert lie in proofs[f"row {at + 1}"], lie


def test_receipts_of_another_log_are_foreign_and_incomplete(true: Clients) -> None:
    """Receipts of another log or broker group cannot be checked: the audit is incomplete, without a
    finding."""
    true.receipts[3] |= {"broker_group": "g2"}
    true.receipts[4] |= {"log_id": "7d444840-9dc0-11d1-b245-5ffdce74fad3"}
    true.deliveries[5] |= {"broker_group": "g2", "message_id": "order-99"}
    told = said(true)
    assert told.verdict == "INCOMPLETE" and not told.findings
    assert count(told, "foreign") == len(true.frames[3]) + len(true.frames[4]) + 1


@pytest.mark.parametrize(("class_", "other"), [("memory", "master"), ("master", "memory")])
def test_messages_acknowledged_before_they_were_committed_may_be_gone(
    tmp_path: Path, class_: str, other: str
) -> None:
    """From memory, or on the master of an HA group alone: that is what the class means. Counted,
    each by itself, and no finding."""
    clients = write_clients(tmp_path, leave_out=15)
    clients.receipts[15]["durability"] = class_
    told = said(clients)
    assert (
        told.verdict == "PASS"
        and count(told, class_) == len(clients.frames[15])
        and count(told, other) == 0
    )


def test_delivery_of_an_unstored_message_is_a_phantom(true: Clients) -> None:
    """Deliveries with an id that is not in the log, or from the position of another message."""
    true.deliveries[5]["message_id"] = "order-99"
    true.deliveries[7]["offset"] += 1
    true.deliveries[9]["message_id"] = None
    told = said(true)
    assert (
        rules(told) == {"client.phantom": 2, "client.delivery": 1} and count(told, "phantom") == 2
    )
    proofs = sorted(finding.flaw.proof for finding in told.findings)
    assert proofs[0] == "row 10: the row has no message_id"
    assert proofs[1].startswith("row 6: delivered, and no message") and proofs[2].startswith(
        "row 8: delivered from queue"
    )


def test_deliveries_without_a_place(true: Clients) -> None:
    """Clients that know topic and message id only are held against the log as well."""
    for row in true.deliveries:
        row |= dict.fromkeys(
            ("broker_group", "queue", "offset", "consumer_group", "sought", "acknowledged_ms")
        )
    assert said(true).verdict == "PASS"
    true.deliveries[2]["topic"] = "others"
    assert rules(said(true)) == {"client.phantom": 1}


def test_a_delivery_after_the_acknowledgement(true: Clients) -> None:
    """It is redelivered; not if it comes before, is another group's, was asked for, or comes from a
    clock that may be a little wrong."""
    row = true.deliveries[5]
    true.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    told = said(true)
    assert rules(told) == {"client.redelivered": 1} and count(told, "redelivered") == 1
    assert GROUP in told.findings[0].flaw.proof
    for change in (
        {"delivered_ms": row["acknowledged_ms"]},
        {"consumer_group": "other"},
        {"sought": True},
        {"consumer_group": None},
    ):
        true.deliveries[-1] = {**row, "delivered_ms": row["acknowledged_ms"] + 1, **change}
        assert said(true).verdict == "PASS", change
    true.deliveries.pop()
    again = Clients(
        true.base,
        true.writers,
        deliveries=[{**row, "delivered_ms": row["acknowledged_ms"] + 1_500}],
    )
    assert said(true, again.write()[1]).verdict == "PASS"
    again.deliveries[0]["delivered_ms"] += 1_000
    assert rules(said(true, again.write()[1])) == {"client.redelivered": 1}


def test_reset_of_a_group_permits_redelivery_in_that_topic(tmp_path: Path) -> None:
    """A reset in the log gives a consumer group again what it had acknowledged, in that topic."""
    for topic, verdict in ((FIFO, "PASS"), (TOPIC, "FAIL")):
        body = json.dumps(
            {"g": GROUP, "t": topic, "q": [[0, 0]], "v": 1}, sort_keys=True, separators=(",", ":")
        )
        reset = Message(
            "rmq_sys_ledgermq_delivery", body.encode(), tag="reset", time=CREATED + 9000
        )
        clients = write_clients(tmp_path / topic, more=[reset])
        row = next(row for row in clients.deliveries if row["topic"] == FIFO)
        clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
        assert said(clients).verdict == verdict


def test_message_groups_keep_their_order(
    true: Clients, cluster: tuple[Clients, list[GroupResult]]
) -> None:
    """A FIFO consumer group that gets a later message of a message group first; any other consumer
    group may."""
    mine = [row for row in true.deliveries if row["message_group"] == "customer 1"]
    mine[2]["delivered_ms"], mine[3]["delivered_ms"] = (
        mine[3]["delivered_ms"],
        mine[2]["delivered_ms"],
    )
    mine[2]["acknowledged_ms"] = mine[3]["acknowledged_ms"]
    assert said(true).verdict == "PASS"
    know_the_fifo_group(cluster[0])
    true.groups = audit(cluster[0].directories).groups
    told = said(true)
    assert rules(told) == {"client.order": 1} and "customer 1" in told.findings[0].flaw.proof


def test_deliveries_of_which_no_order_is_known(
    true: Clients, cluster: tuple[Clients, list[GroupResult]]
) -> None:
    """Even with a FIFO consumer group in the log, files without groups and positions in their rows
    are checked."""
    know_the_fifo_group(cluster[0])
    true.groups = audit(cluster[0].directories).groups
    for row in true.deliveries:
        row |= dict.fromkeys(("consumer_group", "queue", "offset"))
    assert said(true).verdict == "PASS"
    assert said(true, lines=True).verdict == "PASS"


def know_the_fifo_group(clients: Clients) -> None:
    """The snapshots say of the consumer group that it keeps the order."""
    for one in clients.writers:
        path = one.root / "state" / "snapshot"
        snapshot = json.loads(path.read_bytes())
        del snapshot["crc32c"]
        path.write_bytes(
            sealed(
                {
                    **snapshot,
                    "groups": {GROUP: {"ns": "", "name": GROUP, "max_attempts": 16, "fifo": True}},
                }
            )
        )


def test_trimmed_messages_are_counted(tmp_path: Path) -> None:
    """What retention took is no loss: neither of a receipt nor of a delivery, with a place or
    without."""
    clients = write_clients(tmp_path)
    for writer in clients.writers:
        writer.decide(1)
        begin = writer.trim(1)
        writer.trim_queues(1)
    del clients.deliveries[0]["offset"]
    told = said(clients)
    below = [entry for entry in clients.writers[0].entries[: begin.index] if entry.message.key]
    natives = sum(entry.message.flag > 0 for entry in below)
    assert (told.verdict, told.findings) == ("PASS", []), told.reasons
    assert begin.index > 5 and count(told, "trimmed") == len(below) + natives


def test_delivery_from_a_queue_younger_than_the_trim_is_a_phantom(tmp_path: Path) -> None:
    """A delivery of what was never in it is a phantom, in whichever file the queue's messages
    lie."""
    clients = write_clients(
        tmp_path,
        more=[
            Message("late", bytes(4000), 0, "", f"late-{at}", 0, CREATED + 9000) for at in range(3)
        ],
    )
    for writer in clients.writers:
        writer.decide(1)
        writer.trim(1)
        writer.trim_queues(1)
    next(row for row in clients.deliveries if row["topic"] == "late")["message_id"] = "never"
    assert rules(said(clients)) == {"client.phantom": 1}


def test_a_running_cluster_is_held_to_its_marker(
    true: Clients, cluster: tuple[Clients, list[GroupResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after the marker are not checked yet; messages missing before it are findings; a lost
    node makes the audit incomplete."""
    from ledgermq.audit.clients.joining import join_here
    from ledgermq.audit.clients.outcome import ClientFiles, check_clients

    def told(gone: bool) -> Audit:
        receipts, acks = true.write()
        given = ClientFiles.find([receipts], [acks])
        if gone:
            return nodes.audit(clients=lambda groups: check_clients(groups, given, lost))
        return nodes.audit(clients=lambda groups: check_clients(groups, given, join_here))

    def lost(*_: object) -> Any:
        raise NodeLost("127.0.0.1:1", "the node at 127.0.0.1:1 could not be reached")

    nodes = FakeCluster.of(cluster[0].writers, true.frames[12][0].index - 1)
    # The snapshots of these directories are of later entries; before the marker there is none.
    monkeypatch.setattr(opening, "SNAPSHOTS_AS_READ", ())
    behind = [entry for entry in true.writers[0].entries[nodes.marker + 1 :] if entry.message.key]
    result = told(False)
    assert (result.verdict, result.findings) == ("INCOMPLETE", []), result.reasons
    assert count(result, "beyond") == len(behind) + sum(entry.message.flag > 0 for entry in behind)
    true.receipts[3]["first_sequence"] += 1_000_000
    assert rules(told(False)) == {"client.lost": 1}
    result = told(True)
    assert (
        result.verdict == "INCOMPLETE"
        and not result.findings
        and "127.0.0.1:1 could not be reached" in result.reasons[-1]
    )


def test_damage_is_not_taken_for_a_loss(tmp_path: Path) -> None:
    """An entry that no replica holds intact is unreadable; one that a peer still has is read
    there."""
    clients = write_clients(tmp_path)
    entry = clients.frames[2][1]
    name = f"{entry.pos - entry.pos % 8192:020d}"
    for number, writer in enumerate(clients.writers, 1):
        flip(writer.log / "data" / name, entry.pos % 8192 + 150)
        told = said(clients)
        assert told.verdict == "FAIL" and not [
            rule for rule in rules(told) if rule.startswith("client.")
        ]
        assert count(told, "unreadable") == (2 if number == 3 else 0)


@pytest.mark.parametrize("rows", [400, 30, 5])
def test_number_of_buckets_leaves_findings_and_counts_equal(
    true: Clients, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """However many buckets there are, the same findings and the same counts come out."""
    for at, lie in enumerate(LIES):
        LIES[lie](true.receipts[at])
    true.deliveries[5]["message_id"] = "order-99"
    true.receipts[12]["first_sequence"] += 1_000_000
    whole = everything(said(true))
    monkeypatch.setattr("ledgermq.audit.clients.outcome.BUCKET_ROWS", rows)
    assert everything(said(true)) == whole and whole["clients"]["messages"]["lost"] == len(
        true.frames[12]
    )


@pytest.mark.parametrize("sequence", [4090, 4095, 4096])
def test_frames_lie_in_any_bucket(sequence: int) -> None:
    """A receipt is cut exactly where its messages change buckets."""
    import numpy as np

    from ledgermq.audit.clients.logged_messages import buckets_of, native_ids_of

    numbers = np.arange(sequence, sequence + 9)
    same = np.ones(9, np.int64)
    buckets = buckets_of(
        native_ids_of(77 * same, 5 * same, same, numbers.astype(np.uint64)), 1 << 30
    )
    for part in {int(number) // 4096 for number in numbers}:
        assert len(set(buckets[numbers // 4096 == part].tolist())) == 1


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("no.parquet", "PAR1 and no more", "cannot be read as receipts"),
        ("no.jsonl", '{"topic": "t"}\n', "has no column"),
        ("list.jsonl", "[1]\n", "line 1, is not a JSON object"),
        (
            "types.jsonl",
            json.dumps(dict.fromkeys(receipt_log.COLUMNS, "x")) + "\n",
            "is not a file of receipts",
        ),
        ("empty", "", "holds no file of receipts"),
    ],
)
def test_unusable_client_file_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, told: str
) -> None:
    """One sentence and the exit status of wrong usage, whatever is in them, before anything is
    looked at."""
    path = tmp_path / name
    if text:
        path.write_text(text)
    else:
        path.mkdir()
    assert run(["audit", str(tmp_path), "--engine", "local", "--receipts", str(path)]) == 64
    assert told in capsys.readouterr().err


def test_the_command(
    cluster: tuple[Clients, list[GroupResult]], true: Clients, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sums in the text, a step to take, an object, and the counts per window beside the findings,
    as Parquet and as JSON lines."""
    import pyarrow.parquet as pq

    LIES["term"](true.receipts[3])
    folder = true.base / "findings"
    receipts, acks = true.write()
    options = ["--engine", "local", "--receipts", receipts, "--acks", acks, "--window", "1s"]
    assert (
        run(
            [
                "audit",
                *cluster[0].directories,
                *options,
                "--findings",
                str(folder),
                "--html",
                str(true.base / "page.html"),
            ]
        )
        == 1
    )
    out = capsys.readouterr().out
    assert (
        "clients: 2 files; messages: " in out
        and "next step for client.receipt: Check the receipts" in out
    )
    assert (
        f"divergence clients {receipts} entry={true.frames[3][0].index} bytes=0-0"
        " rule=client.receipt" in out
    )
    rows = pq.read_table(folder / "clients.parquet").to_pylist()
    assert rows == [
        json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()
    ]
    assert sum(row["receipt"] for row in rows) == len(true.frames[3])
    assert run(["audit", *cluster[0].directories, *options, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["clients"]["windows"] == rows


def test_the_columns_are_those_that_clients_write() -> None:
    """What a receipt log and a delivery log hold is what the audit reads."""
    from ledgermq.audit.clients.client_files import DELIVERIES, KINDS, RECEIPTS

    assert set(KINDS[RECEIPTS]) == {*receipt_log.COLUMNS} - {"replicas", "mac"}
    assert set(KINDS[DELIVERIES]) == {*delivery_log.COLUMNS} - {"attempt"}
