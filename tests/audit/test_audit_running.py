"""Auditing nodes while they run: up to the marker everything counts, behind it nothing does, and
what moves is never PASS."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.cli.report import as_json, as_text
from ledgermq.audit.reading import remote, walk
from ledgermq.audit.reading.entries import read_entries
from ledgermq.audit.rules import BIT_ROT, MISSING
from ledgermq.audit.run.jobs import audit
from ledgermq.cli import run
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import Writer, sealed
from tests.audit.running_nodes import FakeCluster

LATER = 12
"""So many entries stand behind the marker."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)


def running(base: Path, seed: int = 3, count: int = 60) -> tuple[FakeCluster, list[Writer]]:
    """Three running nodes: the log continues differently on each behind the marker, and no file was
    closed."""
    messages = history(seed, count)
    writers = write_cluster(
        base, messages, committed=len(messages) - LATER, clean=False, snapshot=False
    )
    marker = len(messages) - LATER
    chance = random.Random(seed)
    for writer in writers:
        end = writer.entries[marker].pos + writer.entries[marker].size
        file = writer.log / "data" / f"{end - end % writer.data_bytes:020d}"
        with file.open("r+b") as log:
            # The node is writing this file.
            place = end % writer.data_bytes + chance.randrange(60)
            log.seek(place)
            log.write(chance.randbytes(50)[: max(writer.data_bytes - place, 0)])
    return FakeCluster.of(writers, marker), writers


@pytest.mark.parametrize("seed", range(4))
def test_entries_behind_the_marker_are_no_finding(tmp_path: Path, seed: int) -> None:
    """A growing log with anything at its end, nodes that did not stop, one that has written more
    than another: PASS up to the marker."""
    cluster, _ = running(tmp_path, seed)
    result = cluster.audit(deep=seed % 2 == 0)
    assert (result.verdict, result.reasons, result.findings) == ("PASS", [], []), as_text(result)
    assert result.compared == cluster.marker and set(result.replica_verdicts.values()) == {"PASS"}
    told = as_json(result)
    assert [row["coverage_ratio"] for row in told["replicas"]] == [1.0] * 3  # type: ignore[attr-defined]
    assert all(node.taken == 1 and not node.pins for node in cluster.nodes.values()), (
        "a pin each, given back"
    )


def test_the_same_directories_at_rest_are_another_matter(tmp_path: Path) -> None:
    """Without the marker the same bytes are torn tails at best: the marker is what makes the
    difference."""
    running(tmp_path)
    assert audit([str(tmp_path / name) for name in NODES]).findings


Damage = Callable[[Writer, int], tuple[str, str, int | None]]


def in_a_body(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    entry = writer.entries[20]
    flip(
        writer.log / "data" / f"{entry.pos - entry.pos % writer.data_bytes:020d}",
        entry.pos % writer.data_bytes + 140,
    )
    return BIT_ROT, "entry.body", 20


def in_the_marker(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    entry = writer.entries[marker]
    flip(
        writer.log / "data" / f"{entry.pos - entry.pos % writer.data_bytes:020d}",
        entry.pos % writer.data_bytes + 60,
    )
    return BIT_ROT, "entry.body", marker


def in_an_index_unit(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    flip(writer.log / "index" / f"{0:020d}", 5 * 32 + 11)
    return "wrong-derived", "index.unit", 5


def a_unit_missing(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    entry = writer.entries[marker]
    place = entry.queue_offset * 20
    folder = writer.root / "consumequeue" / entry.message.topic / str(entry.message.queue)
    with (folder / f"{place - place % writer.queue_bytes:020d}").open("r+b") as units:
        units.seek(place % writer.queue_bytes)
        units.write(bytes(20))
    return "wrong-derived", "queue.missing", marker


def a_log_file_missing(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    (writer.log / "data" / f"{writer.data_bytes:020d}").unlink()
    return MISSING, "file.missing", None


def the_end_missing(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    entry = writer.entries[marker]
    base = entry.pos - entry.pos % writer.data_bytes
    with (writer.log / "data" / f"{base:020d}").open("r+b") as log:
        log.seek(entry.pos % writer.data_bytes)
        log.write(bytes(writer.data_bytes - entry.pos % writer.data_bytes))
    return MISSING, "marker.held", marker


def a_bad_identity(writer: Writer, marker: int) -> tuple[str, str, int | None]:
    flip(writer.root / "identity.json", 20)
    return BIT_ROT, "identity.json", None


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "damage",
    [
        in_a_body,
        in_the_marker,
        in_an_index_unit,
        a_unit_missing,
        a_log_file_missing,
        the_end_missing,
        a_bad_identity,
    ],
)
def test_damage_up_to_the_marker_is_found_where_it_is(tmp_path: Path, damage: Damage) -> None:
    """On the node that has it, by class, rule and entry, through the wire, even though nothing was
    stopped cleanly."""
    cluster, writers = running(tmp_path)
    klass, rule, index = damage(writers[1], cluster.marker)
    result = cluster.audit()
    assert result.verdict == "FAIL" and {finding.replica for finding in result.findings} == {
        "n2"
    }, as_text(result)
    assert (klass, rule, index) in {
        (f.klass, f.flaw.rule, f.flaw.index) for f in result.findings
    }, as_text(result)
    assert all(finding.fails for finding in result.findings)


def test_another_history_is_a_divergence(tmp_path: Path) -> None:
    """A node whose own chain is whole, and that says what it has, still holds another entry than
    the majority."""
    messages = history(4)
    marker = len(messages) - LATER
    writers = write_cluster(tmp_path, messages, snapshot=False)
    other = Writer(tmp_path / "n3")
    for number, message in enumerate(messages):
        other.append(
            message
            if number != 30
            else type(message)(
                message.topic, b"another", message.queue, term=message.term, time=message.time
            )
        )
    writers[2] = other.finish(snapshot=False)
    result = FakeCluster.of(writers, marker).audit()
    assert result.verdict == "FAIL"
    told = [
        (f.klass, f.replica, f.flaw.index)
        for f in result.findings
        if f.flaw.rule == "replica.divergence"
    ]
    assert told == [("divergence", "n3", 30)]


def test_running_node_that_contradicts_its_log_is_divergent(tmp_path: Path) -> None:
    """Its files hold another entry at the marker than its process has applied."""
    cluster, writers = running(tmp_path)
    cluster.nodes["n1"].writer = Writer(tmp_path / "elsewhere" / "n1", seed_text="another")
    for entry in writers[0].entries:
        cluster.nodes["n1"].writer.append(entry.message)
    result = cluster.audit("n2")
    assert ("divergence", "n1", "marker.same", cluster.marker) in {
        (f.klass, f.replica, f.flaw.rule, f.flaw.index) for f in result.findings
    }


def test_a_snapshot_from_behind_the_marker_is_no_finding(tmp_path: Path) -> None:
    """The snapshot, synced mark and checkpoints of a running node may be newer than everything that
    the audit reads."""
    cluster, writers = running(tmp_path)
    last = len(writers[0].entries) - 1

    def write() -> None:
        writers[0].write_snapshot(last)
        (writers[1].log / "checkpoint").write_bytes(
            f"endIndex={last}\ncommittedIndex={last}\n".encode()
        )
        (writers[2].root / "checkpoint").write_bytes(
            (1 << 50).to_bytes(8, "big") * 3 + bytes(4096 - 24)
        )

    cluster.when_marked = write
    result = cluster.audit()
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)


def test_derived_files_that_are_made_behind_the_marker_are_no_finding(tmp_path: Path) -> None:
    """A node creates a file and then gives it its length, and a listing may miss one before it. One
    that covers what is checked must have its length."""
    cluster, writers = running(tmp_path)
    queue = next(
        path for path in sorted((writers[0].root / "consumequeue").glob("*/*")) if path.is_dir()
    )
    for folder, file_bytes in (
        (queue, writers[0].queue_bytes),
        (writers[0].log / "index", writers[0].index_bytes),
    ):
        for number, length in ((100, 0), (101, file_bytes), (103, 7)):
            (folder / f"{number * file_bytes:020d}").write_bytes(bytes(length))
    result = cluster.audit()
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)
    first = min(queue.iterdir())
    first.write_bytes(first.read_bytes() + bytes(1))
    assert {(f.flaw.rule, f.flaw.file.rpartition("/")[2]) for f in cluster.audit().findings} == {
        ("file.length", first.name)
    }


@pytest.mark.parametrize("kernel", [True, False], ids=["compiled", "python"])
def test_no_entry_is_read_from_behind_the_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    """Whatever place a derived file names: there is nothing to read at the marker and behind it."""
    if not kernel:
        monkeypatch.setattr(walk, "KERNEL", None)
    cluster, writers = running(tmp_path)
    entries = writers[0].entries
    (replica,) = find_replicas(str(writers[0].node_dir))
    last = entries[cluster.marker]
    base = last.pos - last.pos % writers[0].data_bytes
    task = replace(replica.task(f"{base:020d}"), end_pos=last.pos + last.size)
    inside = [entry for entry in entries[: cluster.marker + 1] if entry.pos >= base]
    assert [index for found in read_entries(task) for index in found.index.tolist()] == [
        entry.index for entry in inside
    ]
    for start in (
        last.pos + last.size - base,
        last.pos + last.size - base + 1,
        writers[0].data_bytes,
    ):
        assert list(read_entries(task, start)) == []


def test_a_wrong_snapshot_from_before_the_marker_is_one(tmp_path: Path) -> None:
    """Small files count as far as they speak of what is looked at."""
    cluster, writers = running(tmp_path)
    writers[0].write_snapshot(cluster.marker - 3)
    path = writers[0].root / "state" / "snapshot"
    path.write_bytes(path.read_bytes().replace(b'"applied_term":', b'"applied_term":1'))
    assert {f.flaw.rule for f in cluster.audit().findings} == {"snapshot.json"}


def test_a_slot_that_is_being_written_is_looked_at_again(tmp_path: Path) -> None:
    """A node writes its synced mark while it is read; only a slot that stays damaged is damaged."""
    cluster, writers = running(tmp_path)
    path, looks = writers[1].log / "syncedmark", [0]
    whole = path.read_bytes()
    path.write_bytes(whole[:4140] + b"?" * 20 + whole[4160:])

    def settle(read: str) -> None:
        if read.endswith("syncedmark"):
            looks[0] += 1
            if looks[0] == 3:
                path.write_bytes(whole)

    cluster.nodes["n2"].before_read = settle
    assert cluster.audit().verdict == "PASS" and looks[0] == 3
    path.write_bytes(whole[:4140] + b"?" * 20 + whole[4160:])
    cluster.nodes["n2"].before_read = lambda read: None
    assert {f.flaw.rule for f in cluster.audit().findings} == {"mark.slot"}


def test_small_files_may_vanish_and_come_again(tmp_path: Path) -> None:
    """A snapshot is replaced by renames, so it may be missing for a moment. This is no finding and
    no error."""
    cluster, writers = running(tmp_path)
    writers[0].write_snapshot(cluster.marker)
    path = writers[0].root / "state" / "snapshot"

    def vanish(read: str) -> None:
        if read.endswith("state/snapshot"):
            path.unlink(missing_ok=True)

    cluster.nodes["n1"].before_read = vanish
    assert cluster.audit().verdict == "PASS"


# ------------------------------------------------------------------------------------------------- what could not be looked at


def incomplete(
    cluster: FakeCluster,
    *words: str,
    between: Callable[[], None] = lambda: None,
    through: str = "n1",
) -> None:
    result = cluster.audit(through, between=between)
    assert result.verdict == "INCOMPLETE" and not result.findings, as_text(result)
    told = [reason for reason in result.reasons if all(word in reason for word in words)]
    assert len(told) == 1, (words, result.reasons)


def test_a_node_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """The others are compared; the verdict says which replica was not, and is never PASS."""
    cluster, _ = running(tmp_path)
    cluster.nodes["n3"].up = False
    incomplete(cluster, "replica n3 could not be read", "does not answer (UNAVAILABLE)", "start it")


def test_damage_is_told_although_a_node_is_missing(tmp_path: Path) -> None:
    """What is known to be bad is FAIL whatever else could not be done."""
    cluster, writers = running(tmp_path)
    cluster.nodes["n3"].up = False
    in_a_body(writers[1], cluster.marker)
    result = cluster.audit()
    assert result.verdict == "FAIL" and [(f.replica, f.flaw.index) for f in result.findings] == [
        ("n2", 20)
    ]
    assert any("replica n3 could not be read" in reason for reason in result.reasons)


def test_a_node_that_is_lost_half_way_is_named(tmp_path: Path) -> None:
    """While files are read, and while they are compared: its replica is left out, and nothing of it
    is a finding."""
    cluster, _ = running(tmp_path)

    def fall(read: str) -> None:
        if read.endswith(f"data/{8192:020d}"):
            cluster.nodes["n2"].up = False

    cluster.nodes["n2"].before_read = fall
    incomplete(cluster, "replica n2 was lost while it was audited")


def test_a_node_that_is_lost_before_the_verdict_is_named(tmp_path: Path) -> None:
    """Everything was read; whether it is still so cannot be asked any more."""
    cluster, _ = running(tmp_path)

    def fall() -> None:
        cluster.nodes["n2"].up = False

    incomplete(cluster, "n2 was lost while it was audited", between=fall)


def test_a_lost_node_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    """Replicas differ, so files are looked at again for the comparison, and in that moment a node
    goes."""
    cluster, writers = running(tmp_path)
    in_a_body(writers[1], cluster.marker)

    def fall() -> None:
        cluster.nodes["n3"].up = False

    result = cluster.audit(between=fall)
    assert result.verdict == "FAIL" and {f.replica for f in result.findings} == {"n2"}
    assert any("replica n3 was lost while it was audited" in reason for reason in result.reasons)


def test_a_replica_that_was_started_again_does_not_count(tmp_path: Path) -> None:
    """A restart, a repair or an installation may have changed every byte: its findings are not
    reported as damage."""
    cluster, writers = running(tmp_path)
    in_a_body(writers[1], cluster.marker)

    def restart() -> None:
        cluster.nodes["n2"].life = "b-1"

    incomplete(
        cluster, "n2 was started again, repaired or installed while it was audited", between=restart
    )


def test_a_node_that_was_restarted_before_the_marker_is_named(tmp_path: Path) -> None:
    """What was read of it before is of another life."""
    cluster, _ = running(tmp_path)

    def restart() -> None:
        cluster.nodes["n2"].life = "b-1"

    cluster.when_marked = restart
    incomplete(cluster, "n2 was started again, repaired or installed while it was audited")


def test_a_node_that_begins_a_repair_before_the_marker_is_named(tmp_path: Path) -> None:
    cluster, _ = running(tmp_path)

    def repair() -> None:
        cluster.nodes["n2"].state = "repairing"

    cluster.when_marked = repair
    incomplete(
        cluster, "n2 was started again, repaired or installed while it was audited (now repairing)"
    )


def test_peer_is_not_blamed_for_a_directory_replaced_during_the_audit(
    tmp_path: Path,
) -> None:
    """A node gets a new directory after it was read, and a peer, read later, has met that. The peer
    is not blamed for it."""
    cluster, writers = running(tmp_path)
    (writers[2].root / "state").mkdir(exist_ok=True)
    (writers[2].root / "state" / "peers.json").write_bytes(sealed({"peers": {"n2": "another"}}))
    assert {(f.replica, f.flaw.rule) for f in cluster.audit().findings} == {
        ("n3", "peers.incarnation")
    }

    def replace_directory() -> None:
        cluster.nodes["n2"].life = "b-1"

    incomplete(cluster, "n2 was started again", between=replace_directory)


def test_a_replica_that_does_not_run_is_named(tmp_path: Path) -> None:
    """Its node answers, and says what it does instead."""
    cluster, _ = running(tmp_path)
    cluster.nodes["n2"].state = "repairing"
    incomplete(cluster, "replica n2 is not running on its node (repairing: entry 5 is damaged)")


def test_a_replica_that_lags_is_compared_as_far_as_it_is(tmp_path: Path) -> None:
    """Lag is no finding; the report says that the replica does not reach the marker."""
    cluster, writers = running(tmp_path)
    cluster.nodes["n3"].applied = cluster.marker - 10
    incomplete(cluster, "n3 ends 10 entries before the compared index")
    in_a_body(writers[2], cluster.marker)
    assert [(f.replica, f.flaw.index) for f in cluster.audit().findings] == [("n3", 20)]


def test_a_replica_that_catches_up_while_it_is_described_is_read_up_to_the_marker(
    tmp_path: Path,
) -> None:
    """When the marker was waited for in vain, the node is asked for what it has; by then that may
    be more than the marker, which the other replicas are not read up to."""
    cluster, _ = running(tmp_path)
    node, wanted = cluster.nodes["n3"], cluster.nodes["n3"].applied
    node.applied = cluster.marker - 10
    asked: list[int | None] = []
    real = type(node).do_Describe

    def told(self: object, request: Any) -> object:
        answer = real(self, request)  # type: ignore[arg-type]
        asked.append(request.index if request.HasField("index") else None)
        if asked[-1] == cluster.marker:
            node.applied = wanted
        return answer

    node.do_Describe = told.__get__(node)  # type: ignore[method-assign]
    result = cluster.audit()
    assert (result.verdict, result.compared, result.reasons) == (
        "PASS",
        cluster.marker,
        [],
    ), as_text(result)
    assert asked == [None, cluster.marker, None, cluster.marker, None]


def test_replicas_that_lag_are_no_loss(tmp_path: Path) -> None:
    """The leader has applied the marker, both others are too slow to do so in time: that is no
    proof of a lost commit."""
    cluster, _ = running(tmp_path)
    cluster.nodes["n2"].applied = cluster.nodes["n3"].applied = cluster.marker - 10
    incomplete(cluster, "reached entry", "n2")


def test_unreached_marker_is_incomplete(tmp_path: Path) -> None:
    """Agreement of lagging replicas does not prove the entries up to the marker."""
    cluster, _ = running(tmp_path)
    for node in cluster.nodes.values():
        node.applied = cluster.marker - 10
    incomplete(cluster, "reached entry", "n2")


def test_a_node_that_answers_for_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """If an address leads to another node, as behind a load balancer, no replica is audited twice:
    this is reported, and not as damage."""
    cluster, _ = running(tmp_path)
    real = type(cluster.nodes["n1"]).do_ClusterStatus

    def told(self: object, request: object) -> object:
        answer = real(self, request)  # type: ignore[arg-type]
        answer.nodes[2].endpoint = cluster.nodes["n2"].address
        return answer

    for node in cluster.nodes.values():
        node.do_ClusterStatus = told.__get__(node)  # type: ignore[method-assign]
    incomplete(cluster, "replica n3", "is node n2")


def test_bytes_of_a_replica_that_was_mended_meanwhile_are_no_finding(tmp_path: Path) -> None:
    """`--deep`: the last file is read once more for its digest."""
    cluster, writers = running(tmp_path)

    def restart() -> None:
        in_the_marker(writers[1], cluster.marker)
        cluster.nodes["n2"].life = "b-1"

    result = cluster.audit(deep=True, between=restart)
    assert result.verdict == "INCOMPLETE" and not result.findings, as_text(result)


def test_pins_are_renewed_and_a_lost_one_is_told(tmp_path: Path) -> None:
    """An audit that takes longer than a pin lasts keeps it; where it could not, files may have
    gone."""
    cluster, _ = running(tmp_path)
    renewed: list[int] = []

    def later(read: str) -> None:
        cluster.now_s += 700.0
        renewed.append(sum(cluster.nodes["n1"].pins.values()))

    cluster.nodes["n1"].before_read = later
    assert cluster.audit().verdict == "PASS" and max(renewed) > 1
    cluster.nodes["n1"].forgets_pins = True
    incomplete(cluster, "n1 was trimmed while it was audited")


def test_endpoints_that_were_named_count_more_than_those_the_cluster_tells(tmp_path: Path) -> None:
    """Nodes in containers report addresses that are unreachable from outside: a caller can give the
    endpoints of all nodes instead."""
    cluster, _ = running(tmp_path)
    with cluster.serving():
        addresses = {name: node.address for name, node in cluster.nodes.items()}
    real = type(cluster.nodes["n1"]).do_ClusterStatus

    def told(self: object, request: object) -> object:
        answer = real(self, request)  # type: ignore[arg-type]
        for node in answer.nodes:
            node.endpoint = "127.0.0.1:1"
        return answer

    for node in cluster.nodes.values():
        node.do_ClusterStatus = told.__get__(node)  # type: ignore[method-assign]
    assert addresses and cluster.audit(*NODES).verdict == "PASS"
    assert cluster.audit("n1").verdict == "INCOMPLETE"


def test_an_identity_that_does_not_fit_is_told_once(tmp_path: Path) -> None:
    """Two nodes that show one replica."""
    cluster, writers = running(tmp_path)
    identity = (writers[1].root / "identity.json").read_bytes()
    assert sealed({"a": 1}) != identity
    cluster.nodes["n3"].directory = cluster.nodes["n2"].directory
    rules = {f.flaw.rule for f in cluster.audit().findings}
    assert "identity.twice" in rules


# -------------------------------------------------------------------------------------------------------------------- the command


def command(*options: str) -> int:
    return run(["audit", "--engine", "local", "--timeout", "1s", *options])


def test_the_command_audits_a_running_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the verdicts, statuses and finding lines of an offline audit; nodes take the place of
    directories."""
    cluster, writers = running(tmp_path)
    with cluster.serving():
        endpoint = cluster.nodes["n2"].address
        assert command("--endpoints", endpoint) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "audit: PASS"
        in_a_body(writers[1], cluster.marker)
        assert command("--endpoints", endpoint) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "audit: FAIL" and any(
            line.startswith("bit-rot n2 g1/dledger-n2/data/") for line in lines
        )
        assert any(f"dir=node://{endpoint}" in line for line in lines)
        cluster.nodes["n3"].up = False
        in_a_body(writers[1], cluster.marker)
        assert command("--endpoints", endpoint) == 2


def test_the_command_without_a_cluster_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    """No node answers: status 3 and one error line, as in every command."""
    assert command("--endpoints", "127.0.0.1:1") == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error.startswith("error: no usable answer from 127.0.0.1:1")
        and "check the endpoints" in error
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--endpoints", "127.0.0.1:1", "--volumes"), "or --endpoints of a running cluster"),
        (("--endpoints", "nowhere"), "'nowhere' is not an endpoint"),
        (
            ("--endpoints", "127.0.0.1:1", "--tls", "--ca", "/no/such/file"),
            "/no/such/file cannot be read",
        ),
        (
            ("--endpoints", "127.0.0.1:1", "--ca", "/no/such/file"),
            "--ca has no meaning without --tls",
        ),
        (("--volumes", "--tls"), "give --endpoints"),
    ],
)
def test_options_that_make_no_sense(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, status 64, no traceback."""
    assert command(*options) == 64
    assert words in capsys.readouterr().err


def test_only_one_credential_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anybody is asked anything."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "auditor")
    monkeypatch.delenv("LEDGERMQ_SECRET_KEY", raising=False)
    assert command("--endpoints", "127.0.0.1:1") == 64
    assert "set both, or neither" in capsys.readouterr().err
