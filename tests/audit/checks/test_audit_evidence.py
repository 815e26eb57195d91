"""What synced marks, snapshots and consume queues claim about a log, held against the log: claims
that are right, and all that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks import evidence
from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.derived import QueueRun
from ledgermq.audit.checks.evidence import (
    Located,
    check_mark,
    check_point,
    check_snapshot,
    check_state,
    dispatched_too_far,
    entry,
    locate,
    same_snapshots,
)
from ledgermq.audit.checks.replica import Mark, Point, Replica
from ledgermq.audit.checks.scan import LogReport, scan
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.rules import Flaw
from ledgermq.audit.state.derive import StateReport
from tests.audit.damage_cases import NODES
from tests.audit.log_writer import Message, Writer, membership, sealed

FILE_BYTES = 1024
SLOTS = 8192
"""The bytes of a file of two slots."""
LOG = "g1/dledger-n1/data/"
MESSAGES = [
    membership(NODES),
    *(Message(f"t{at % 2}", b"x" * 20 * at, at % 3, term=at // 4) for at in range(9)),
]
Triple = tuple[int, int, int]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Of a log with three files."""
    found = Writer(
        tmp_path_factory.mktemp("log") / "n1",
        data_bytes=FILE_BYTES,
        index_bytes=128,
        queue_bytes=40,
    )
    for message in MESSAGES:
        found.append(message)
    return found.finish()


@pytest.fixture
def one(writer: Writer) -> Replica:
    """The replica of this log, with the reports of its files."""
    sizes = FILE_BYTES, 128, 40
    found = Replica(
        str(writer.node_dir),
        str(writer.root),
        "g1",
        "n1",
        "dledger-n1",
        log_id=writer.log_id,
        sizes=sizes,
    )
    found.reports = [scan(task) for task in found.tasks()]
    assert len(found.filled) == 3
    return found


def triple(writer: Writer, index: int) -> Triple:
    """Term, end and chain CRC of an entry; of some entry behind the end, if there is none."""
    if index >= len(writer.entries):
        return 9, len(writer.space) + 100 * index, 77
    placed = writer.entries[index]
    return placed.term, placed.pos + placed.size, placed.chain


def altered(right: Triple) -> Iterator[tuple[Triple, bool]]:
    """The right values, and others; whether they are right."""
    yield right, True
    for at in range(3):
        yield (*right[:at], right[at] + 1, *right[at + 1 :]), False  # type: ignore[misc]


def shown(value: Triple) -> str:
    return f"term {value[0]}, end {value[1]}, chain {value[2]:08x}"


def mark(writer: Writer, index: int, value: Triple, log_id: str | None = None) -> Mark:
    return Mark(value[0], index, *value[1:], log_id or writer.log_id)


# --------------------------------------------------------------------------------------------------------------- entries


def test_an_entry_is_found_by_its_unit_or_else_in_its_file(
    writer: Writer, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that leads to another file is not followed; an entry that is in no file is not there,
    and a damaged one says nothing."""
    real = evidence.header_at
    for how in ("units", "none", "before", "behind", "no sizes"):
        if how not in ("units", "no sizes"):
            away = {"before": -FILE_BYTES, "behind": FILE_BYTES}.get(how)

            def elsewhere(
                task: Any, index: int, by: int | None = away
            ) -> tuple[int, tuple[int, ...]] | None:
                found = real(task, index)
                if by is None or found is None:
                    return None
                base = found[0] - found[0] % FILE_BYTES
                return (base + by if by > 0 else base - 1), (*found[1][:3], 99, *found[1][4:])

            monkeypatch.setattr(evidence, "header_at", elsewhere)
        else:
            monkeypatch.setattr(evidence, "header_at", real)
        one.sizes = (0 if how == "no sizes" else FILE_BYTES), *one.sizes[1:]
        for placed in writer.entries:
            base = placed.pos - placed.pos % FILE_BYTES
            wanted = (
                None
                if how == "no sizes"
                else Located(base, placed.pos, placed.size, placed.term, placed.chain)
            )
            assert locate(one, placed.index) == wanted, how
            if how in ("units", "no sizes"):
                assert entry(one, placed.index) == (
                    None if wanted is None else triple(writer, placed.index)
                )
        assert locate(one, len(writer.entries)) is None and entry(one, -1) is None
    one.sizes = FILE_BYTES, *one.sizes[1:]
    one.reports[0].damaged.append(2)
    assert entry(one, 2) is None and locate(one, 2) is not None


def test_an_entry_that_its_file_lacks_is_missing(one: Replica) -> None:
    """Although others of the file are there."""
    assert one.filled[1].last_index is not None
    missing = one.filled[1].last_index
    Path(f"{one.log}/index").rename(f"{one.log}/index.away")
    try:
        one.filled[1].last_index += 50
        assert locate(one, missing + 50) is None and locate(one, missing) is not None
    finally:
        Path(f"{one.log}/index.away").rename(f"{one.log}/index")


# ----------------------------------------------------------------------------------------------------------- synced mark


def mark_flaw(proof: str, index: int | None = None, end: int = 0) -> Flaw:
    return Flaw("mark.log", "g1/dledger-n1/syncedmark", index, 0, end, proof)


def not_at_end(one: Replica, index: int) -> list[Flaw]:
    proof = (
        f"it names entry {index}, the log of a node that was stopped in good order ends with"
        f" {one.last_index}"
    )
    return [mark_flaw(proof, index, SLOTS)] if index < one.last_index else []


def test_a_mark_names_an_entry_as_the_log_has_it(writer: Writer, one: Replica) -> None:
    """Of a node that was stopped in good order, the last one. A damaged entry says nothing."""
    for damaged, index in product((False, True), range(len(writer.entries))):
        for value, right in altered(triple(writer, index)):
            one.flaws, one.mark = [], mark(writer, index, value)
            one.reports[0].damaged = [index] if damaged else []
            check_mark(one, [])
            proof = f"the log says {shown(triple(writer, index))}, the mark {shown(value)}"
            assert one.flaws == (
                not_at_end(one, index) if right or damaged else [mark_flaw(proof, index)]
            ), (index, value)


def test_mark_before_the_end_is_a_finding_only_of_a_clean_stopped_node(
    writer: Writer, one: Replica
) -> None:
    """Killed and running nodes, and a backup, which has the mark of its source."""
    for clean, running, backup in product((False, True), repeat=3):
        one.flaws, one.clean, one.name = [], clean, "n1" + SUFFIX * backup
        one.point = Point(0, 0, 0, 0) if running else None
        one.mark = mark(writer, 0, triple(writer, 0))
        check_mark(one, [])
        assert one.flaws == (not_at_end(one, 0) if clean and not running and not backup else [])


def test_replica_without_a_mark_has_no_mark_flaw(one: Replica) -> None:
    check_mark(one, [])
    assert one.flaws == []


def test_a_mark_that_names_no_entry(one: Replica) -> None:
    """It has no term, and ends where the log begins; the chain CRC is that of no entry."""
    for term, index, end in product((-1, 0), (-1, -2), (0, 1)):
        one.flaws, one.mark = [], Mark(term, index, end, 5, str(one.log_id))
        check_mark(one, [])
        right = (term, index, end) == (-1, -1, 0)
        assert one.flaws == (
            [] if right else [mark_flaw(f"it names no entry, but term {term} and end {end}")]
        )


def test_both_slots_belong_to_the_log(writer: Writer, one: Replica) -> None:
    """Unless nothing tells which log it is."""
    last = len(writer.entries) - 1
    for own, older, known in product((None, "other"), (None, "other", "none"), (True, False)):
        one.flaws, one.log_id = [], writer.log_id if known else None
        one.mark = mark(writer, last, triple(writer, last), own)
        one.older_mark = (
            None if older == "none" else mark(writer, last, triple(writer, last), older)
        )
        check_mark(one, [])
        wrong = [own, older].count("other") if known else 0
        assert (
            one.flaws
            == [mark_flaw(f"the mark belongs to log other, the replica to {writer.log_id}")] * wrong
        )


def test_the_older_slot_names_an_entry_as_the_log_has_it(writer: Writer, one: Replica) -> None:
    """Up to the newer one, and as far as the log reaches."""
    one.clean = False
    for newer, older, damaged in product((4, 9, 12), (-1, 0, 4, 5, 9, 10), (False, True)):
        for value, right in altered(triple(writer, max(older, 0))):
            one.flaws, one.mark, one.older_mark = (
                [],
                mark(writer, newer, triple(writer, newer)),
                mark(writer, older, value),
            )
            one.reports[0].damaged = [older] if damaged else []
            check_mark(one, [])
            told = not right and not damaged and 0 <= older <= min(newer, 9)
            proof = (
                f"the log says {shown(triple(writer, max(older, 0)))}, the older slot of the mark"
                f" {shown(value)}"
            )
            assert [flaw for flaw in one.flaws if flaw.rule == "mark.log"] == (
                [mark_flaw(proof, older)] if told else []
            )


def test_a_log_that_ends_before_its_mark_lost_entries(writer: Writer, one: Replica) -> None:
    """If no other replica has the entry of the mark, the mark may be wrong, too."""
    whole, last = one.reports, one.filled[-1]
    short = replace(
        one,
        flaws=[],
        reports=[
            *one.filled[:-1],
            replace(last, entries=1, last_index=last.first_index, end=last.first_size),
        ],
    )
    assert short.last_index < 9
    short.mark = mark(writer, 9, triple(writer, 9))
    proof = (
        "g1/dledger-n1/syncedmark says that entries up to 9 were on stable storage, the log ends"
        f" with {short.last_index}"
    )
    lost = Flaw(
        "mark.end",
        f"{LOG}{last.base:020d}",
        short.last_index + 1,
        last.first_size,
        triple(writer, 9)[1] - last.base,
        proof,
    )
    for value, right in altered(triple(writer, 9)):
        for others in ([], [one], [short], [short, one]):
            short.flaws, short.mark = [], replace(mark(writer, 9, value), end_pos=value[1])
            check_mark(short, others)
            told = [flaw for flaw in short.flaws if flaw.rule != "mark.end"]
            wrong = mark_flaw(
                f"it names entry 9, {shown(value)}: no replica has such an entry", 9, SLOTS
            )
            assert told == ([wrong] if others and (not right or one not in others) else []), (
                value,
                len(others),
            )
            assert short.flaws[0] == replace(lost, byte_to=value[1] - last.base)
    assert one.reports is whole


# ---------------------------------------------------------------------------------------------- what a running node says


def test_a_running_node_has_the_entry_that_it_describes(writer: Writer, one: Replica) -> None:
    check_point(one)
    assert one.flaws == []
    for index, damaged in product((-1, *range(12)), (False, True)):
        for value, right in altered(triple(writer, max(index, 0))):
            one.flaws, one.point = [], Point(index, value[1], value[0], value[2])
            one.reports[0].damaged = [index] if damaged else []
            check_point(one)
            if index > 9:
                proof = f"its node has applied entry {index}, the log ends with 9"
                last = one.filled[-1]
                end = min(value[1] - last.base, FILE_BYTES)
                assert one.flaws == [
                    Flaw("marker.held", f"{LOG}{last.base:020d}", 10, last.end, end, proof)
                ]
            elif index < 0 or right or damaged:
                assert one.flaws == [], (index, value)
            else:
                base = writer.entries[index].pos // FILE_BYTES * FILE_BYTES
                proof = f"the log says {shown(triple(writer, index))}, its node {shown(value)}"
                assert one.flaws == [
                    Flaw(
                        "marker.same",
                        f"{LOG}{base:020d}",
                        index,
                        0,
                        triple(writer, index)[1] - base,
                        proof,
                    )
                ]


# -------------------------------------------------------------------------------------------------------------- snapshot


def told(writer: Writer, index: int, value: Triple | None = None, **more: object) -> dict[str, Any]:
    """A snapshot after an entry, as the log has it or with other values."""
    term, end, chain = value or triple(writer, index)
    queues: dict[str, dict[str, int]] = {}
    for placed in writer.entries[: index + 1]:
        queues.setdefault(placed.message.topic, {})[str(placed.message.queue)] = (
            placed.queue_offset + 1
        )
    named = {
        "applied_index": index,
        "applied_term": term,
        "applied_end_pos": end,
        "chain_crc": chain,
    }
    return {"v": 6, "log_id": writer.log_id, "queues": queues, **named, **more}


def flaws_of(one: Replica, snapshot: dict[str, Any]) -> list[Flaw]:
    one.flaws, one.snapshot = [], snapshot
    check_snapshot(one)
    return one.flaws


def snapshot_flaw(proof: str, index: int | None = None, **more: Any) -> Flaw:
    return Flaw("snapshot.log", "g1/state/snapshot", index, 0, 0, proof, **more)


def test_a_snapshot_names_an_entry_as_the_log_has_it(writer: Writer, one: Replica) -> None:
    """A damaged entry says nothing."""
    check_snapshot(one)
    assert one.flaws == []
    for index in range(10):
        for value, right in altered(triple(writer, index)):
            proof = f"the log says {shown(triple(writer, index))}, the snapshot {shown(value)}"
            assert flaws_of(one, told(writer, index, value)) == (
                [] if right else [snapshot_flaw(proof, index)]
            )
    one.reports[0].damaged = [1]
    assert flaws_of(one, told(writer, 1, (5, 6, 7))) == []


def test_a_snapshot_says_which_entry_it_is_of(writer: Writer, one: Replica) -> None:
    keys = "applied_index", "applied_term", "applied_end_pos", "chain_crc"
    for key, value in product(keys, (None, "1")):
        flaws = flaws_of(one, told(writer, 3, None, **{key: value}))
        assert flaws == [
            snapshot_flaw(
                "one of applied_index, applied_term, applied_end_pos, chain_crc is not there"
            )
        ]


def test_a_snapshot_belongs_to_the_log(writer: Writer, one: Replica) -> None:
    assert flaws_of(one, told(writer, 3, None, log_id="x")) == [
        snapshot_flaw(f"the snapshot belongs to log x, the replica to {one.log_id}")
    ]
    one.log_id = None
    assert flaws_of(one, told(writer, 3, None, log_id="x")) == []


def test_a_snapshot_of_a_log_without_entries(writer: Writer, one: Replica) -> None:
    """It has no term, no end and no chain CRC. What is known to contradict the log is told once."""
    for values in product((-1, -5), (-1, 0), (0, 1), (0, 1)):
        index, rest = values[0], (values[1], values[2], values[3])
        right = values == (-1, -1, 0, 0)
        flaw = snapshot_flaw(f"it has no entry, but index {index}, {shown(rest)}")
        assert flaws_of(one, told(writer, index, rest)) == ([] if right else [flaw])
    one.flaws = known = [
        snapshot_flaw("state/snapshot has no entry, but its applied_index is that of one")
    ]
    one.snapshot = told(writer, -5, (0, 0, 0))
    check_snapshot(one)
    assert one.flaws is known and len(known) == 1
    for other in (
        replace(known[0], file="g1/state/snapshot.previous"),
        replace(known[0], rule="state.keys"),
    ):
        one.flaws = [other]
        check_snapshot(one)
        assert len(one.flaws) == 2


def test_a_snapshot_of_an_entry_behind_the_end(writer: Writer, one: Replica) -> None:
    """A crash may leave that. If the log is known to have reached the entry, what it lost explains
    the snapshot."""
    for index, known, running in product((10, 11), (None, 9, 10, 11), (False, True)):
        one.mark, one.point = None, None
        if known is not None and running:
            one.point, one.mark = Point(11, 4000, 0, 0), mark(writer, known, (0, 4000, 0))
        elif known is not None:
            one.mark = mark(writer, known, (0, 4000, 0))
        reach = 11 if one.point is not None else -1 if one.mark is None else known
        assert reach is not None
        lost = (one.lost_end,) if index <= reach else ()
        flaw = snapshot_flaw(
            f"index {index} is applied, the log ends with 9", torn=True, measures=lost
        )
        assert flaws_of(one, told(writer, index)) == [flaw]
        assert None not in lost


def offset_flaw(key: tuple[str, str], has: object, wants: int, index: int) -> Flaw:
    proof = f"the next offset of {key[0]}/{key[1]} is {has}, the log says {wants}"
    return Flaw("snapshot.queues", "g1/state/snapshot", index, 0, 0, proof)


def test_the_next_offsets_of_a_snapshot_count_the_messages_of_the_log(
    writer: Writer, one: Replica
) -> None:
    """After every entry. Of a queue without messages it may say 0; what is no table has no
    offsets."""
    for index in range(10):
        right = told(writer, index)["queues"]
        assert flaws_of(one, told(writer, index, None, queues={**right, "other": {"0": 0}})) == []
        for topic, queues in right.items() if index % 3 == 0 else ():
            for queue, offset in queues.items():
                changed = {**right, topic: {**queues, queue: offset - 1}}
                assert flaws_of(one, told(writer, index, None, queues=changed)) == [
                    offset_flaw((topic, queue), offset - 1, offset, index)
                ]
    for other in (None, "x", 3):
        changed = {**right, "rmq_sys_ledgermq_raft": {"0": other}}
        assert flaws_of(one, told(writer, 9, None, queues=changed)) == [
            offset_flaw(("rmq_sys_ledgermq_raft", "0"), other, 1, 9)
        ]
    keys = sorted((topic, queue) for topic, queues in right.items() for queue in queues)
    nothing = [offset_flaw(key, None, right[key[0]][key[1]], 9) for key in keys]
    for queues in (None, 5, [], dict.fromkeys(right, 5)):
        assert flaws_of(one, told(writer, 9, None, queues=queues)) == nothing
    assert flaws_of(one, told(writer, 9, None, queues={**right, "t": {"x": 3}})) == [
        offset_flaw(("t", "x"), 3, 0, 9)
    ]
    assert flaws_of(one, told(writer, 9, None, queues={**right, "L$x": {"0": 3}})) == [
        offset_flaw(("L$x", "0"), 3, 0, 9)
    ]


def test_when_next_offsets_are_not_counted(writer: Writer, one: Replica) -> None:
    """Where entries are lost, so that the log does not know them, and where the state was derived,
    which compares them."""
    wrong = told(writer, 9, None, queues={})
    assert flaws_of(one, wrong)
    one.state = StateReport("not derived")
    assert flaws_of(one, wrong)
    one.state = StateReport(compared=["state/snapshot"])
    assert flaws_of(one, wrong) == []
    one.state, one.reports[0].damaged = None, [0]
    assert flaws_of(one, wrong) == []


def test_a_lite_topic_may_vanish_with_its_offsets(writer: Writer, one: Replica) -> None:
    """While the log still has its messages; if it is there, its offsets are right."""
    for report in one.reports:
        for run in report.queues:
            run.topic = run.topic.replace("t1", "L$1")
    right = told(writer, 9)["queues"]
    lite = right.pop("t1")
    assert flaws_of(one, told(writer, 9, None, queues=right)) == []
    assert flaws_of(one, told(writer, 9, None, queues={**right, "t0": {}}))[0].proof.startswith(
        "the next offset of t0/"
    )
    wrong = {**right, "L$1": {**lite, "0": 77}}
    assert flaws_of(one, told(writer, 9, None, queues=wrong)) == [
        offset_flaw(("L$1", "0"), 77, lite["0"], 9)
    ]


def trimmed(writer: Writer, one: Replica) -> Replica:
    """Without its first file."""
    one.reports = one.reports[1:]
    first = one.reports[0].first_index
    assert first is not None
    one.begin = Begin(first, FILE_BYTES, 0, 0)
    return one


def test_offsets_of_trimmed_messages_are_those_of_the_minimum(writer: Writer, one: Replica) -> None:
    """The log goes on from there."""
    trimmed(writer, one)
    before = told(writer, one.begin.index - 1)["queues"]
    minimums = {
        topic: {queue: [offset, None] for queue, offset in queues.items()}
        for topic, queues in before.items()
    }
    assert flaws_of(one, told(writer, 9, None, minimums=minimums)) == []
    minimums["rmq_sys_ledgermq_raft"] = {"0": [7, None]}
    flaw = offset_flaw(("rmq_sys_ledgermq_raft", "0"), 1, 7, 9)
    assert flaws_of(one, told(writer, 9, None, minimums=minimums)) == [flaw]
    minimums["t"] = {"x": [7, None]}
    assert flaws_of(one, told(writer, 9, None, minimums=minimums)) == [flaw]


def test_the_last_unit_of_a_trimmed_queue_is_kept(writer: Writer, one: Replica) -> None:
    """As the snapshot repeats it; a backup has no consume queues."""
    trimmed(writer, one)
    one.reports = []
    folder = Path(one.root) / "consumequeue" / "t" / "1"
    folder.mkdir(parents=True)
    unit = (7).to_bytes(8, "big") + (8).to_bytes(4, "big") + (9).to_bytes(8, "big")
    for offset, data, backup in product(
        (4, 5), (unit, bytes(20), b"x" + unit[1:], None), (False, True)
    ):
        one.name = "n1" + SUFFIX * backup
        start = (offset - 1) * 20 % 40
        file = folder / f"{(offset - 1) * 20 - start:020d}"
        if data is not None:
            file.write_bytes(bytes([1]) * start + data + bytes([1]) * (20 - start))
        snapshot = told(
            writer, -1, (-1, 0, 0), minimums={"t": {"0": [3, None], "1": [offset, [7, 8, 9]]}}
        )
        has = "nothing" if data is None else data.hex()
        proof = (
            f"the snapshot has {unit.hex()} as the unit before the minimum {offset}, here is {has}"
        )
        rule = "queue.missing" if data in (None, bytes(20)) else "queue.unit"
        flaw = Flaw(rule, f"g1/consumequeue/t/1/{file.name}", None, start, start + 20, proof)
        assert flaws_of(one, snapshot) == ([] if data == unit or backup else [flaw])
        file.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------------- derived state


def state_flaw(index: int | None) -> Flaw:
    return Flaw("state.topics", "g1/state/snapshot", index, 0, 0, "p")


def test_derived_state_counts_as_far_as_the_log_is_intact(one: Replica) -> None:
    """Otherwise damage explains it: in whatever file up to the last damaged entry that it was
    derived from."""
    check_state(one)
    assert one.flaws == [] and one.state is None
    for last, at, damaged in product(
        (None, 3, 8), ((), (None,), (2,), (5, None)), ((), (3,), (5,), (0, 7), (8,), (9,))
    ):
        flaws = [state_flaw(index) for index in at]
        one.flaws, one.state = [], StateReport(last_index=last, flaws=flaws)
        one.reports[0].damaged = list(damaged)
        check_state(one)
        reach = max([-1 if last is None else last, *(index or 0 for index in at)])
        within = [index for index in damaged if index <= reach]
        if not within:
            assert one.flaws == flaws and one.state == StateReport(last_index=last, flaws=flaws)
            continue
        assert one.state == StateReport("the log is damaged")
        measures = tuple(
            (report.file, 0, FILE_BYTES)
            for report in one.reports
            if (report.first_index or 0) <= max(within)
        )
        expected = [
            replace(state_flaw(reach if index is None else index), measures=measures)
            for index in at
        ]
        assert one.flaws == expected, (last, at, damaged)


# -------------------------------------------------------------------------------------------------------- equal snapshots

NEWEST, OLDER = "state/snapshot", "state/snapshot.previous"


def holder(base: Path, name: str, **snapshots: dict[str, Any]) -> Replica:
    found = Replica(str(base / name), str(base / name / "g1"), "g1", name, f"dledger-{name}")
    found.snapshots = {
        {"newest": NEWEST, "older": OLDER}[key]: value for key, value in snapshots.items()
    }
    return found


def at(index: object, what: str = "", v: object = 6, **more: object) -> dict[str, Any]:
    return {"applied_index": index, "v": v, "topics": what, **more}


def differing(*replicas: Replica) -> list[tuple[str, str]]:
    same_snapshots(replicas)
    found = []
    for each in replicas:
        for flaw in each.flaws:
            if flaw.rule == "snapshot.same":
                value = each.snapshots[flaw.file.partition("/")[2]]
                proof = "another replica's snapshot at this index tells another state"
                assert flaw == Flaw(
                    "snapshot.same", flaw.file, value["applied_index"], 0, len(sealed(value)), proof
                )
                found.append((each.name, flaw.file.partition("/")[2]))
    return found


def test_snapshots_at_one_index_are_equal(tmp_path: Path) -> None:
    """Of one version; of three, that of two is the usual one. A version may be anything."""
    for version in (6, None, "x", [], {}):
        values = [at(5, "a", version), at(5, "b", version), at(5, "a", version)]
        one, two, three = (
            holder(tmp_path, name, newest=value) for name, value in zip(NODES, values, strict=True)
        )
        assert differing(one, two, three) == [("n2", NEWEST)]
    for other in (at(6, "b"), at(5, "b", 7), at("5", "b"), at(5, "a")):
        assert (
            differing(
                holder(tmp_path, "n1", newest=at(5, "a")), holder(tmp_path, "n2", newest=other)
            )
            == []
        )


def test_older_snapshots_are_compared_with_newer_ones(tmp_path: Path) -> None:
    one = holder(tmp_path, "n1", newest=at(9), older=at(5, "a"))
    two = holder(tmp_path, "n2", newest=at(5, "a"))
    three = holder(tmp_path, "n3", newest=at(7), older=at(5, "b"))
    assert differing(one, two, three) == [("n3", OLDER)]


def test_which_snapshots_are_not_compared(tmp_path: Path) -> None:
    """One that was verified with its log, one that its log refutes, and the newest of a node that
    has just been upgraded."""

    def pair() -> tuple[Replica, Replica]:
        return holder(tmp_path, "n1", newest=at(5, "a")), holder(tmp_path, "n2", newest=at(5, "b"))

    one, two = pair()
    two.state = StateReport(compared=[OLDER])
    two.flaws = [
        Flaw("snapshot.log", f"g1/{OLDER}", 5, 0, 0, ""),
        Flaw("state.topics", f"g1/{NEWEST}", 5, 0, 0, ""),
    ]
    assert differing(one, two) == [("n2", NEWEST)]
    one, two = pair()
    two.state = StateReport(compared=[NEWEST])
    assert differing(one, two) == []
    one, two = pair()
    two.flaws = [Flaw("snapshot.log", f"g1/{NEWEST}", 5, 0, 0, "")]
    assert differing(one, two) == []
    one, two = pair()
    two.upgraded = True
    assert differing(one, two) == []
    two.snapshots = {OLDER: two.snapshots[NEWEST]}
    assert differing(one, two) == [("n2", OLDER)]


def test_lapsed_leases_are_compared_if_they_are_remembered_since_one_moment(tmp_path: Path) -> None:
    """With an older snapshot among them, because how far back it remembers depends on the upgrade
    of its node."""
    for older, since, other in product((False, True), (1, 2), ("a", "b")):
        first = at(5, "", lapsed={"since": 1, "k": "a"})
        second = at(5, "", lapsed={"since": since, "k": other})
        one, two = (
            holder(tmp_path, "n1", newest=first),
            holder(tmp_path, "n2", **{"older" if older else "newest": second}),
        )
        told = first != second and not (older and since == 2)
        assert bool(differing(one, two)) is told, (older, since, other)
    one = holder(tmp_path, "n1", newest=at(5, "", lapsed={"since": 1}))
    assert differing(one, holder(tmp_path, "n2", older=at(5, "x", lapsed={"since": 2}))) == [
        ("n2", OLDER)
    ]
    assert differing(one, holder(tmp_path, "n3", older=at(5, "", lapsed=[]))) == []


# --------------------------------------------------------------------------------------------------------------- dispatch


def test_no_entry_is_dispatched_that_is_not_committed(one: Replica) -> None:
    """The flaw is at the unit of the last one, in the file of its queue."""
    for compared, index, offset in product((4, 5, 6), (None, 5), (0, 1, 2, 5)):
        run = QueueRun(
            "t",
            3,
            0,
            9,
            10,
            0,
            0,
            0,
            filed_index=index,
            filed_offset=None if index is None else offset,
        )
        one.flaws, one.reports = (
            [],
            [
                LogReport("f", 0, 0),
                LogReport("g", 0, 0, queues=[QueueRun("u", 0, 0, 0, 1, 0, 0, 0), run]),
            ],
        )
        dispatched_too_far([one], compared)
        start = offset * 20 % 40
        file = f"g1/consumequeue/t/3/{offset * 20 - start:020d}"
        flaw = Flaw(
            "queue.uncommitted",
            file,
            index,
            start,
            start + 20,
            f"entry 5 is dispatched, a majority agrees up to {compared}",
        )
        assert one.flaws == ([flaw] if index == 5 and compared == 4 else [])
