"""Snapshots that the product wrote beside a log on real files are derived again: no false alarm,
every wrong value is located, and underivable state is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.audit_scan import CLUSTER, CREATED_MS
from ledgermq.audit.cli.report import as_json, as_text
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import RULES
from ledgermq.audit.run.jobs import audit
from ledgermq.audit.run.works import Outcome
from ledgermq.audit.state.derive import KEYS, StateReport, check_state
from ledgermq.node.broker.machine import Machine
from ledgermq.proto.records.control import (
    GroupRecord,
    LiteRecord,
    Membership,
    OffsetRecord,
    ProducerRecord,
    ResetRecord,
    SealRecord,
    TopicRecord,
)
from ledgermq.proto.types import GroupConfig, TopicKind
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity
from tests.audit.state_story import FILE_BYTES, Story, message, topic
from tests.node_core.core_frames import frame

SEAL = SealRecord(0, 0, 20, 8000, "ab" * 32, ("n1", "n2"))


def full(directory: Path) -> Story:
    """Something under every key: two incarnations of a topic, committed offsets, ids, producers,
    lite topics, a seal."""
    story = Story(directory)
    story.record(
        TopicRecord(topic("t")),
        TopicRecord(topic("ids", dedup_ms=60_000)),
        TopicRecord(topic("l", kind="lite", queues=1)),
        GroupRecord(GroupConfig("", "g", 5, True)),
        Membership(
            ("n1", "n2", "n3"),
            ("n4",),
            {"n4": "00000000-0000-4000-8000-00000000000a"},
            ("n4",),
            "it came back",
        ),
        ProducerRecord(1, 0),
        ProducerRecord(2, 0, "named", 7, owner="alice"),
    )
    story.send(*[message("t", number, number % 2) for number in range(30)])
    story.record(TopicRecord(topic("was", dedup_ms=60_000)))
    story.send(message("ids", 99), message("was", 98))
    story.now_ms += 1
    story.send(message("ids", 90))
    story.now_ms += 59_999
    story.send(*[message("ids", 100 + number % 8) for number in range(10)])
    story.record(TopicRecord(topic("was")))
    story.put(frame(1, 0, 0, ["a", "b", "c"], "t", [0, 1, 0]).batch)
    story.put(frame(2, 0, 7, ["d"], "t").batch)
    story.put(frame(1, 0, 3, ["e"] * 4, "t").batch)
    story.send(message("l$one", 0), message("l$two", 1))
    story.record(OffsetRecord((("g", "t", 0, 5), ("g", "t", 7, 9))), SEAL)
    story.record(
        TopicRecord(topic("l", 2, kind="lite", queues=1)), TopicRecord(topic("t", 2, queues=3))
    )
    story.record(OffsetRecord((("g", "t", 1, 2), ("g", "t", 7, 9))))
    story.record(LiteRecord("g", "l", "c", 1, True, ("one",)))
    story.record(
        ResetRecord("g", "t", ((0, 3), (1, 4))),
        ProducerRecord(1, 1),
        ProducerRecord(3, 0, dropped=(2,)),
    )
    story.put(frame(1, 1, 7, ["f"] * 2, "t").batch)
    story.send(*[message("t", number, number % 3) for number in range(30, 50)])
    return story


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LogFile]:
    """The folder of a node with all of this, and the task."""
    directory = tmp_path_factory.mktemp("full") / "n1"
    return directory, full(directory).finish()


@pytest.fixture
def task(kept: tuple[Path, LogFile], tmp_path: Path) -> LogFile:
    """A copy to change."""
    shutil.copytree(kept[0], tmp_path / "n1")
    return replace(kept[1], root=str(tmp_path / "n1" / "g1"))


def few(directory: Path) -> Story:
    """One topic, one group that committed."""
    story = Story(directory)
    story.record(TopicRecord(topic("t")))
    story.send(*[message("t", number, number % 2) for number in range(8)])
    story.record(OffsetRecord((("g", "t", 1, 2),)))
    return story


def told(report: StateReport) -> list[tuple[str, str]]:
    return [(flaw.rule, flaw.proof) for flaw in report.flaws]


def change(
    task: LogFile, edit: Callable[[dict[str, Any]], object], file: str = "state/snapshot"
) -> dict[str, Any]:
    """A snapshot that says something else, with a checksum that is right."""
    path = Path(task.root) / file
    value: dict[str, Any] = json.loads(path.read_bytes())
    del value["crc32c"]
    edit(value)
    path.write_bytes(sealed_json.encode(value))
    return value


def test_a_whole_log_is_derived_from_its_first_entry(tmp_path: Path) -> None:
    """Both snapshots are looked at on the way, and nothing differs."""
    story = full(tmp_path / "n1")
    story.snapshot()
    story.send(message("t", 999))
    task = story.finish()
    report = check_state(task)
    assert (report.reason, told(report)) == ("", [])
    assert (report.first_index, report.last_index) == (0, story.machine.applied_index)
    assert report.compared == ["state/snapshot.previous", "state/snapshot"]
    assert Outcome.from_json(Outcome(state=report).to_json()).state == report


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "queues": (lambda v: v["queues"]["t"].update({"1": 1}), "queues/t/1 is 1, the log says 2"),
    "members": (
        lambda v: v["members"]["learners"]["n4"].pop("returning"),
        "members/learners/n4/returning is nothing, the log says true",
    ),
    "level": (lambda v: v.update(level=2), "level is 2, the log says null"),
    "topics": (
        lambda v: v["topics"]["t"]["begins"].__setitem__(0, 0),
        "topics/t/begins/0 is 0, the log says ",
    ),
    "groups": (
        lambda v: v["groups"]["g"].update(fifo=False),
        "groups/g/fifo is false, the log says true",
    ),
    "offsets": (lambda v: v["offsets"]["g"].pop("t"), "offsets/g/t is nothing, the log says {"),
    "ids": (lambda v: v["ids"]["ids"].reverse(), 'ids is "unreadable: '),
    "producers": (
        lambda v: v["producers"]["unnamed"][0].__setitem__(1, 9),
        "producers/unnamed/0/1 is 9, the log says ",
    ),
    "retained": (
        lambda v: v["retained"]["seals"].clear(),
        "retained/seals/0 is nothing, the log says {",
    ),
    "lite_floors": (
        lambda v: v["lite_floors"].update(l=300_000),
        "lite_floors/l is 300000, the log says nothing",
    ),
    "letters": (
        lambda v: v["letters"].update({"%DLQ%g": [[0, 1, "resent"]]}),
        "letters/%DLQ%g is [[0,1,",
    ),
    "minimums": (lambda v: v["minimums"].update(t={"0": [1, None]}), "minimums/t is {"),
    "lite": (
        lambda v: v["lite"]["g"]["l"]["c"][1].append("x"),
        'lite/g/l/c/1/1 is "x", the log says nothing',
    ),
    "store_ms": (lambda v: v.update(store_ms=v["store_ms"] + 1), "store_ms is "),
    "keys": (lambda v: v.update(surplus=0), "surplus is 0, the log says nothing"),
}
"""By rule: a wrong value, and how the finding begins."""


def test_the_version_of_a_snapshot_is_that_of_its_level(task: LogFile) -> None:
    """A group of level 1 has no snapshot of version 7, whatever the snapshot says."""
    change(task, lambda value: value.update(v=7))
    assert told(check_state(task)) == [("state.keys", "v is 7, the log says 6")]


def test_every_key_of_a_snapshot_has_a_rule() -> None:
    """A difference in a key without a rule would end the audit with an assertion instead of a
    finding."""
    assert {f"state.{key}" for key in KEYS} | {"state.keys"} == {
        rule for rule in RULES if rule.startswith("state.")
    }


@pytest.mark.parametrize("key", sorted(EDITS))
def test_a_wrong_value_is_found_at_its_place(task: LogFile, key: str) -> None:
    """One flaw, by the rule of the key, that names path, both values, and bytes of the file that
    hold it."""
    edit, text = EDITS[key]
    value = change(task, edit)
    (flaw,) = check_state(task).flaws
    assert (
        flaw.rule == f"state.{key}"
        and flaw.file == "g1/state/snapshot"
        and flaw.proof.startswith(text)
    ), flaw
    raw = (Path(task.root) / "state/snapshot").read_bytes()
    # Of a list that has one value more or less, everything behind it is moved.
    held, _ = json.JSONDecoder().raw_decode(raw[flaw.byte_from : flaw.byte_to].decode())
    inner: Any = value
    for step in flaw.proof.partition(" ")[0].split("/"):
        found = (
            dict(enumerate(inner)).get(int(step)) if isinstance(inner, list) else inner.get(step)
        )
        if found is None:
            break
        inner = found
    assert held == inner


def test_the_last_entry_that_touched_a_value_is_named(task: LogFile) -> None:
    """Of a queue its last message."""
    last = check_state(task).last_index
    assert last is not None
    change(task, lambda value: value["queues"]["t"].update({"1": 1}))
    (flaw,) = check_state(task).flaws
    assert (
        flaw.index is not None
        and last - 3 < flaw.index <= last
        and flaw.proof.endswith(f"entry {flaw.index} was the last to touch it")
    )


def trimmed(directory: Path, *, carried_out: bool) -> Story:
    """Queues of which all, some and nothing was trimmed, a lite topic that vanished and came again,
    and one whose topic began anew."""
    story = Story(directory)
    story.record(
        TopicRecord(topic("t")),
        TopicRecord(topic("gone")),
        TopicRecord(topic("l", kind="lite", queues=1)),
    )
    story.send(*[message("gone", number, tag=f"tag{number}") for number in range(3)])
    story.send(message("l$one", 0), message("l$two", 1))
    story.send(*[message("t", number, number % 2) for number in range(60)])
    story.send(message("l$two", 2), message("t", 61))
    story.record(TopicRecord(topic("l", 2, kind="lite", queues=1)))
    story.send(*[message("l$two", 3)])
    story.trim(2)
    if carried_out:
        story.carry_out()
    story.send(*[message("t", number, number % 2) for number in range(62, 120)])
    story.send(message("l$one", 4), message("l$three", 5))
    return story


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_trimmed_log_is_derived_from_the_older_snapshot(
    tmp_path: Path, carried_out: bool
) -> None:
    """Minimums, the units before them, and lite topics that begin above all that were: derived
    through another trim, files gone or not."""
    story = trimmed(tmp_path / "n1", carried_out=carried_out)
    story.snapshot()
    begin = story.machine.applied_index + 1
    story.send(message("gone", 50), message("t", 200), message("l$one", 6))
    story.trim(4)
    story.send(*[message("t", number) for number in range(201, 204)])
    task = story.finish()
    value = json.loads((Path(task.root) / "state/snapshot").read_bytes())
    assert (
        value["minimums"]["gone"]["0"][0] == 3
        and value["lite_floors"] == {"l": 300_000}
        and value["queues"]["l$one"] == {"0": 300_002}
    )
    report = check_state(task)
    assert (report.reason, told(report)) == ("", [])
    assert report.first_index == (begin if carried_out else 0)
    change(
        task,
        lambda value: value["minimums"]["t"]["0"].__setitem__(
            0, value["minimums"]["t"]["0"][0] - 1
        ),
    )
    assert [flaw.rule for flaw in check_state(task).flaws] == ["state.minimums"]


def test_a_trim_counts_before_its_own_message(tmp_path: Path) -> None:
    """It empties the queue of such records, so the unit before the minimum stays, although its own
    unit follows directly. Seals of removed files are dropped, later ones for them are ignored, and
    the first seal of a file counts."""
    story = Story(tmp_path / "n1")
    story.record(
        TopicRecord(topic("t")),
        SEAL,
        replace(SEAL, sha256="cd" * 32),
        replace(SEAL, base=5 * FILE_BYTES),
    )
    story.fill()
    story.trim(story.file)
    story.record(SEAL)
    before = story.file
    story.fill()
    story.trim(story.file)
    story.record(SEAL, replace(SEAL, base=5 * FILE_BYTES, sha256="ef" * 32))
    task = story.finish()
    value = json.loads((Path(task.root) / "state/snapshot").read_bytes())
    low, unit = value["minimums"]["rmq_sys_ledgermq_storage"]["0"]
    assert (low, value["queues"]["rmq_sys_ledgermq_storage"]["0"]) == (5, 8) and unit[
        0
    ] >= before * FILE_BYTES
    assert [seal["base"] for seal in value["retained"]["seals"]] == [5 * FILE_BYTES] and len(
        value["retained"]["trims"]
    ) == 2
    report = check_state(task)
    assert (report.reason, told(report)) == ("", [])


def test_a_trim_that_the_files_do_not_follow_yet(tmp_path: Path) -> None:
    """Files that are trimmed in a snapshot still exist: their entries do not count for any
    queue."""
    story = trimmed(tmp_path / "n1", carried_out=True)
    story.send(message("late", 1), message("late", 2))
    story.fill()
    story.trim(story.file)
    story.snapshot()
    story.fill()
    story.send(message("late", 3))
    story.trim(story.file)
    task = story.finish()
    value = json.loads((Path(task.root) / "state/snapshot").read_bytes())
    assert value["minimums"]["late"]["0"][0] == 2 and value["minimums"]["late"]["0"][1] is not None
    report = check_state(task)
    assert (report.reason, told(report)) == ("", []) and report.first_index != 0


def test_a_snapshot_amid_a_frame(tmp_path: Path) -> None:
    """A half-applied frame still counts as one frame."""
    story = few(tmp_path / "n1")
    story.record(ProducerRecord(1, 0))
    story.halve(frame(1, 0, 0, ["a"] * 6, "t").batch)
    task = story.finish()
    value = json.loads((Path(task.root) / "state/snapshot.previous").read_bytes())
    assert value["producers"]["unnamed"][0][2] == 3
    report = check_state(task)
    assert (report.compared, told(report)) == (["state/snapshot.previous", "state/snapshot"], [])


def test_a_queue_that_a_trim_empties_keeps_its_last_unit(tmp_path: Path) -> None:
    """The unit is only in the snapshot: position, size and tag hash are computed from the message
    before it is removed."""
    task = trimmed(tmp_path / "n1", carried_out=False).finish()
    value = json.loads((Path(task.root) / "state/snapshot").read_bytes())
    assert value["minimums"]["gone"]["0"][1] is not None
    change(task, lambda value: value["minimums"]["gone"]["0"][1].__setitem__(2, 0))
    (flaw,) = check_state(task).flaws
    assert flaw.proof.startswith("minimums/gone/0/1/2 is 0, the log says ")


def test_without_an_older_snapshot_a_trimmed_log_is_not_derived(tmp_path: Path) -> None:
    """This is reported but no finding; the verdict follows from the other checks."""
    story = trimmed(tmp_path / "n1", carried_out=True)
    task = story.finish()
    (Path(task.root) / "state/snapshot.previous").unlink()
    report = check_state(task)
    assert (report.derived, report.flaws, report.unknown) == (False, [], False)
    assert report.reason == "the log was trimmed, and no snapshot is older than the newest"


def test_underivable_state_is_reported_with_its_reason(task: LogFile) -> None:
    """No snapshot, another version, another log, a log that ends too early or is damaged on the
    way."""
    path = Path(task.root) / "state/snapshot"
    good = path.read_bytes()
    for edit, reason in (
        (
            lambda value: value.update(v=3),
            "state/snapshot has version 3, and only versions 6, 7, 8 are derived",
        ),
        (lambda value: value.pop("chain_crc"), "state/snapshot does not say which entry it is of"),
        (
            lambda value: value.update(applied_index=-2),
            "state/snapshot does not say which entry it is of",
        ),
        (
            lambda value: value.update(applied_index=-1),
            "state/snapshot has no entry, but its applied_term is that of one",
        ),
        (lambda value: value.update(chain_crc=1), "state/snapshot is of another log: its entry "),
        (lambda value: value.update(applied_index=10_000), "the log ends before entry 10000"),
    ):
        change(task, edit)
        report = check_state(task)
        assert report.reason.startswith(reason) and not report.derived, report
        rules = {
            "has version 3": ["state.keys"],
            "does not say": ["state.keys"],
            "has no entry": ["snapshot.log"],
        }
        assert [flaw.rule for flaw in report.flaws] == next(
            (rule for part, rule in rules.items() if part in reason), []
        )
        path.write_bytes(good)
    path.rename(path.with_suffix(".away"))
    assert check_state(task).reason == "there is no snapshot to compare with"
    path.with_suffix(".away").rename(path)
    log = Path(task.root) / task.log_folder / "data" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b'"name":"ids"', b'"name":"idz"'))
    assert check_state(task).reason.endswith(" is damaged")
    log.unlink()
    assert check_state(task).reason == "the log has no entry 0, but later ones"


@pytest.mark.parametrize("edit", [{"v": 3}, {"chain_crc": 1}, {"applied_term": None}])
def test_unusable_older_snapshot_still_compares_the_newest(
    tmp_path: Path, edit: dict[str, Any]
) -> None:
    """With an older snapshot of an old version, of another log, or without content, the newest
    snapshot of a complete log is still compared."""
    story = few(tmp_path / "n1")
    story.snapshot()
    story.send(message("t", 20))
    task = story.finish()
    change(task, lambda value: value.update(edit), "state/snapshot.previous")
    change(task, lambda value: value["offsets"]["g"]["t"].update({"1": 1}))
    report = check_state(task)
    assert report.derived and "state.offsets" in [flaw.rule for flaw in report.flaws]


def test_a_log_that_begins_right_behind_its_older_snapshot(tmp_path: Path) -> None:
    """There is no entry to hold that snapshot against: the begin file says which one it was."""
    story = trimmed(tmp_path / "n1", carried_out=False)
    story.fill()
    story.trim(story.file)
    begin = story.machine.begin_index
    story.snapshot()
    story.send(message("t", 20))
    task = story.finish()
    older = json.loads((Path(task.root) / "state/snapshot.previous").read_bytes())
    log = story.store.log
    kept = {
        "index": older["applied_index"] + 1,
        "term": older["applied_term"],
        "chain": older["chain_crc"],
    }
    assert kept["index"] > begin
    pos = log.pos_of(kept["index"])
    (Path(task.root) / task.log_folder / "begin").write_bytes(
        sealed_json.encode({"v": 1, "pos": pos, **kept})
    )
    data = Path(task.root) / task.log_folder / "data"
    for file in sorted(data.iterdir()):
        if int(file.name) <= pos:
            raw = file.read_bytes()[pos - int(file.name) :]
            file.unlink()
            if int(file.name) + FILE_BYTES > pos:
                (data / f"{pos:020d}").write_bytes(raw)
    report = check_state(task)
    assert (report.reason, told(report), report.first_index) == ("", [], kept["index"])
    change(task, lambda value: value.update(applied_term=9), "state/snapshot.previous")
    assert check_state(task).reason.startswith("state/snapshot.previous is of another log")


def test_entries_behind_the_snapshot_are_not_read(task: LogFile) -> None:
    """A node that runs may be writing there."""
    newest = check_state(task).last_index
    assert newest is not None
    path = Path(task.root) / "state/snapshot"
    path.rename(path.with_name("snapshot.previous"))
    log = Path(task.root) / task.log_folder / "data"
    last = max(base for base in log.iterdir() if any(base.read_bytes()))
    raw = bytearray(last.read_bytes())
    end = max(at for at, byte in enumerate(raw) if byte) + 1
    half = (
        (1).to_bytes(4, "big")
        + (300).to_bytes(4, "big")
        + (newest + 1).to_bytes(8, "big")
        + (1).to_bytes(8, "big")
    )
    half += (int(last.name) + end).to_bytes(8, "big") + bytes(12) + (252).to_bytes(4, "big")
    raw[end : end + len(half)] = half
    last.write_bytes(raw)
    report = check_state(task)
    assert (report.reason, report.compared, told(report)) == ("", ["state/snapshot.previous"], [])


def test_unreadable_control_record_is_a_finding(tmp_path: Path) -> None:
    """A body that lacks something is the writer's mistake, found in the log file; a version or kind
    from later is not."""
    draft = replace(message("rmq_sys_ledgermq_config", 0), properties=b"TAGS\x01group\x02")
    outcomes: list[tuple[bool, bool]] = []
    for body, tag in (
        (b'{"v":1}', b"group"),
        (b"[]", b"group"),
        (b'{"v":9}', b"group"),
        (b'{"v":1}', b"later"),
    ):
        story = few(tmp_path / f"n{len(outcomes)}")
        bad = replace(draft, body=body, properties=b"TAGS\x01" + tag + b"\x02")
        story.apply = lambda: None  # type: ignore[method-assign]
        story.send(bad)
        index, pos = story.store.log.end_index, story.store.log.pos_of(story.store.log.end_index)
        task = story.finish()
        end = story.store.log.end_pos
        chain, term = story.store.log.chain_at(index), 1
        change(
            task,
            lambda v, i=index, e=end, c=chain, t=term: v.update(
                applied_index=i, applied_end_pos=e, chain_crc=c, applied_term=t
            ),
        )
        report = check_state(replace(task, data_file_bytes=0))
        outcomes.append((bool(report.flaws), report.unknown))
        if report.flaws:
            (flaw,) = report.flaws
            assert (flaw.rule, flaw.index) == ("record.control", index)
            assert (
                flaw.file == f"g1/{task.log_folder}/data/{pos // FILE_BYTES * FILE_BYTES:020d}"
                and flaw.byte_from == pos % FILE_BYTES
            )
    assert outcomes == [(True, False), (True, False), (False, True), (False, True)]


def test_the_audit_judges_by_it(tmp_path: Path) -> None:
    """Three replicas with the same wrong snapshot agree with each other, and with nothing else."""
    directories = []
    for name in ("n1", "n2", "n3"):
        task = few(tmp_path / name).finish()
        change(task, lambda value: value["offsets"]["g"]["t"].update({"1": 1}))
        directories.append(str(tmp_path / name))
    result = audit(directories)
    found = [
        finding.text.rpartition(" bytes=")[0] + finding.text[finding.text.index(" rule=") :]
        for finding in result.findings
    ]
    touched = result.findings[0].flaw.index
    assert result.verdict == "FAIL"
    assert found == [
        f"wrong-derived {name} g1/state/snapshot entry={touched} rule=state.offsets"
        for name in ("n1", "n2", "n3")
    ]


def test_report_states_the_derived_range_or_the_reason(tmp_path: Path) -> None:
    """For people and for scripts, and why not where it was not."""
    for name in ("n1", "n2", "n3"):
        task = few(tmp_path / name).finish()
    (Path(task.root) / "state/snapshot").unlink()
    result = audit([str(tmp_path / name) for name in ("n1", "n2", "n3")])
    last = result.groups[0].replicas[0].last_index
    lines = [line.strip() for line in as_text(result).splitlines() if "state:" in line]
    assert lines == [f"state: derived from entries 0 to {last}"] * 2 + [
        "state: not derived (there is no snapshot to compare with)"
    ]
    replicas: Any = as_json(result)["replicas"]
    yes = {"derived": True, "first_index": 0, "last_index": last, "reason": None}
    no = {
        "derived": False,
        "first_index": None,
        "last_index": None,
        "reason": "there is no snapshot to compare with",
    }
    assert [one["state"] for one in replicas] == [yes, yes, no]


def test_damaged_log_is_the_only_finding_and_state_is_underived(tmp_path: Path) -> None:
    """The damage is one finding; the difference of the derived state is not another one."""
    directories = [str(tmp_path / name) for name in ("n1", "n2", "n3")]
    tasks = [few(Path(directory)).finish() for directory in directories]
    log = Path(tasks[1].root) / tasks[1].log_folder / "data" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"0003....") + 1] ^= 1
    log.write_bytes(raw)
    result = audit(directories)
    assert {(finding.replica, finding.flaw.rule) for finding in result.findings} == {
        ("n2", "entry.body")
    }
    states = [group.replicas[1].state for group in result.groups]
    assert states[0] is not None and states[0].reason == "the log is damaged"


def test_kinds_of_topics_are_those_of_the_format() -> None:
    """`lite` is the word that the audit looks for."""
    assert TopicKind.LITE.value == "lite"


def of_nothing(directory: Path, **other: Any) -> LogFile:
    """What a node keeps that was started with `join: true` and never added: a log without an entry,
    and its snapshot."""
    disk, name = RealDisk(), directory.name
    mine = identity.mint(
        CLUSTER,
        "g1",
        name,
        "00000000-0000-4000-8000-000000000004",
        CREATED_MS,
        data_file_bytes=FILE_BYTES,
    )
    disk.mkdirs(str(directory))
    GroupStore.create(disk, str(directory / "g1"), mine)
    store = GroupStore.open(disk, str(directory / "g1"), mine)
    store.queues.start({}, 0)
    machine = Machine(store.queues, lambda position, size: b"")
    store.write_snapshot({**machine.export(mine.log_id), **other})
    store.close()
    sizes = FILE_BYTES, mine.index_file_bytes, mine.consume_queue_file_bytes
    return LogFile(
        str(directory / "g1"), "g1", name, mine.log_id, f"dledger-{name}", f"{0:020d}", *sizes
    )


def test_snapshot_of_no_entry_is_compared_with_the_empty_state(tmp_path: Path) -> None:
    """A node that joins and was never added, stopped with the others: no finding; a value that no
    entry led to is one, as is a place."""
    report = check_state(of_nothing(tmp_path / "n4"))
    assert (report.flaws, report.reason, report.derived) == ([], "", True)
    found = [
        (flaw.rule, flaw.file)
        for number, other in enumerate(
            ({"topics": {"t": {}}}, {"applied_end_pos": 7}, {"chain_crc": 7}, {"applied_index": -2})
        )
        for flaw in check_state(of_nothing(tmp_path / f"n{number + 5}", **other)).flaws
    ]
    assert found == [
        (rule, "g1/state/snapshot")
        for rule in ("state.topics", "snapshot.log", "snapshot.log", "state.keys")
    ]
