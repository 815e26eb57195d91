"""Which seal records count, and what they say of files, digests, notes and trees, in every small
case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.seals import (
    Seal,
    check_notes,
    check_records,
    check_seals,
    seal_in,
    seals_of,
)
from ledgermq.audit.rules import BIT_ROT, DIVERGENCE, Finding, Flaw
from tests.audit.log_writer import sealed

FIELDS: dict[str, Any] = {"base": 0, "first": 3, "last": 9, "end": 90, "sha256": "a"}
SEAL = Seal(3, 9, 90, "a")
TREE = {"root": "00", "entries": 7}
FILE = "g1/dledger-n1/data/00000000000000000000"


def replica(
    name: str,
    records: Sequence[tuple[int, object]] = (),
    *,
    intact: int = 20,
    snapshot: object = None,
    base: Path = Path("/none"),
) -> Replica:
    """A replica whose log has these records, those with odd places of the list in a first file."""
    bodies = [
        (index, body if isinstance(body, str) else json.dumps(body)) for index, body in records
    ]
    one = Replica(str(base / name), str(base / name / "g1"), "g1", name, "dledger-n1", log_id="log")
    one.reports = [
        LogReport(FILE, 0, 8, 1, 0, 9, seals=bodies[1::2]),
        LogReport(FILE, 200, 8, 1, 10, 20, seals=bodies[::2]),
    ]
    one.reports[1].last_intact_index = intact
    one.snapshot = snapshot  # type: ignore[assignment]
    return one


def group(*replicas: Replica, **fields: Any) -> GroupResult:
    return GroupResult("g1", list(replicas), **{"compared": 20, **fields})


def test_the_fields_of_a_seal() -> None:
    """Four numbers and a digest; a tree in a seal of version 2, or in a snapshot, which does not
    keep the version."""
    assert seal_in(FIELDS) == (0, SEAL) == seal_in({**FIELDS, "v": 1})
    for key in FIELDS:
        assert seal_in({name: value for name, value in FIELDS.items() if name != key}) is None
        assert seal_in({**FIELDS, key: 1.5}) is None
    whole, empty = (0, Seal(3, 9, 90, "a", "00", 7)), (0, Seal(3, 9, 90, "a", "", 0))
    for version in ({}, {"v": 1}, {"v": 2}):
        assert seal_in({**FIELDS, **version, "tree": TREE}) == whole
        for tree in (
            None,
            [],
            {},
            {"root": "00"},
            {"entries": 7},
            {"root": 0, "entries": 7},
            {"root": "00", "entries": "7"},
        ):
            assert seal_in({**FIELDS, **version, "tree": tree}) == empty, tree
    assert seal_in({**FIELDS, "v": 2}) == empty


def test_how_far_records_count() -> None:
    """Up to the compared index, of intact entries of the majority's history."""
    for index, compared, intact, divergent in product(
        (0, 1, 5), (None, 0, 4, 5), (0, 4, 5), ({}, {"n1": 5}, {"n1": 6}, {"n2": 0})
    ):
        counts = (
            compared is not None
            and index <= min(compared, intact)
            and index < divergent.get("n1", 9)
        )
        found = seals_of(
            group(
                replica("n1", [(index, FIELDS)], intact=intact),
                compared=compared,
                divergent=divergent,
            )
        )
        assert found == ({0: SEAL} if counts else {}), (index, compared, intact, divergent)


def test_the_version_of_most_replicas_counts() -> None:
    """Of a record in the log, and of a seal in a snapshot. None counts if two are equally
    frequent."""
    for told in product(("a", "b", None), repeat=3):
        ranked = Counter(each for each in told if each is not None).most_common()
        usual = (
            ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
        )
        expected = {} if usual is None else {0: Seal(3, 9, 90, usual)}
        values = [[] if each is None else [{**FIELDS, "sha256": each}] for each in told]
        in_log = [
            replica(f"n{number}", [(5, value) for value in found])
            for number, found in enumerate(values)
        ]
        assert seals_of(group(*in_log)) == expected
        kept = [
            replica(f"n{number}", snapshot={"applied_index": 5, "retained": {"seals": found}})
            for number, found in enumerate(values)
        ]
        assert seals_of(group(*kept)) == expected


def test_the_first_record_of_a_file_counts() -> None:
    """In the order of the log, and before those in snapshots. Only a tree may be added later."""
    other = {**FIELDS, "sha256": "b"}
    for first, second in ((5, 6), (6, 5), (9, 10), (10, 9)):
        assert seals_of(group(replica("n1", [(first, FIELDS), (second, other)]))) == {
            0: SEAL if first < second else Seal(3, 9, 90, "b")
        }
    kept = {"applied_index": 5, "retained": {"seals": [other, {**other, "base": 200}]}}
    assert seals_of(group(replica("n1", [(5, FIELDS)], snapshot=kept))) == {
        0: SEAL,
        200: Seal(3, 9, 90, "b"),
    }
    with_tree = {**FIELDS, "v": 2, "tree": TREE}
    assert seals_of(group(replica("n1", [(5, FIELDS), (6, with_tree)]))) == {
        0: Seal(3, 9, 90, "a", "00", 7)
    }
    assert seals_of(group(replica("n1", [(5, FIELDS), (6, {**with_tree, "sha256": "b"})]))) == {
        0: SEAL
    }
    again = {**with_tree, "tree": {"root": "01", "entries": 7}}
    assert seals_of(group(replica("n1", [(5, with_tree), (6, again)]))) == {
        0: Seal(3, 9, 90, "a", "00", 7)
    }


@pytest.mark.parametrize("record", ["x", "[]", "1", "{}"])
def test_unreadable_seal_record_does_not_hide_another(record: str) -> None:
    assert seals_of(group(replica("n1", [(5, record), (6, FIELDS)]))) == {0: SEAL}


def test_seals_in_snapshots() -> None:
    """Of those that are of a compared entry, and have a list of seals."""
    for applied, compared in product((4, 5, 6, None, "5"), (None, 5)):
        counts = isinstance(applied, int) and compared is not None and applied <= compared
        kept = {"applied_index": applied, "retained": {"seals": [1, FIELDS]}}
        assert seals_of(group(replica("n1", snapshot=kept), compared=compared)) == (
            {0: SEAL} if counts else {}
        )
    for retained in (None, [], {}, {"seals": None}, {"seals": {"base": 1}}):
        assert (
            seals_of(group(replica("n1", snapshot={"applied_index": 5, "retained": retained})))
            == {}
        )


def test_the_order_of_keys_in_a_snapshot_makes_no_version() -> None:
    values = [FIELDS, dict(reversed(FIELDS.items())), {**FIELDS, "sha256": "b"}]
    kept = [
        replica(f"n{number}", snapshot={"applied_index": 5, "retained": {"seals": [value]}})
        for number, value in enumerate(values)
    ]
    assert seals_of(group(*kept)) == {0: SEAL}


def filled(*, last: bool = False, damaged: Sequence[int] = (), **fields: int | None) -> Replica:
    """A replica with a file at 200 with entries 3 to 9 up to byte 90 of it, and one behind it
    unless this is its `last` one."""
    one = replica("n1")
    values: dict[str, Any] = {
        "first_index": 3,
        "last_index": 9,
        "end": 90,
        "first_size": 10,
        "last_at": 80,
        **fields,
    }
    one.reports = [
        LogReport(FILE, 200, 100, 7, damaged=list(damaged), **values),
        LogReport(FILE[:-1] + "1", 400, 100, 1, 10, 11),
    ]
    one.reports = one.reports[: 1 if last else 2]
    return one


def test_seal_that_differs_from_its_file_is_a_finding() -> None:
    """First and last entry and the end. A last file that ends before the sealed entry lags, and
    says nothing."""
    for last, (first, end_index, end) in product(
        (False, True), product((2, 3, 4), (8, 9, 10), (289, 290, 291))
    ):
        flaws = check_records(filled(last=last), {200: Seal(first, end_index, end, "a")})
        lags = last and end_index == 10
        if lags or (first, end_index, end) == (3, 9, 290):
            assert flaws == []
        else:
            (flaw,) = flaws
            assert (flaw.rule, flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
                "seal.record",
                FILE,
                3,
                0,
                90,
            )
            assert (
                flaw.proof
                == f"sealed with entries {first} to {end_index} up to position {end}; here 3 to 9"
                " up to 290"
            )
            assert flaw.measures == (() if end == 290 else ((FILE, 80, max(90, end - 200)),))
    assert [flaw.file for flaw in check_records(filled(), {400: SEAL})] == [FILE[:-1] + "1"], (
        "the file before it has no seal"
    )
    assert (
        check_records(filled(), {0: SEAL}) == []
        and check_records(filled(last_index=None), {200: SEAL}) == []
    )


@pytest.mark.parametrize(
    ("stale_from", "is_judged"), [(3, False), (9, False), (10, True), (None, True)]
)
def test_seal_says_nothing_of_uncommitted_entries_of_a_deposed_leader(
    tmp_path: Path, stale_from: int | None, is_judged: bool
) -> None:
    """The others sealed other entries with these indexes: no record, noted digest or byte of the
    file is held against it."""
    one = filled()
    one.stale_from = stale_from
    assert bool(check_records(one, {200: Seal(3, 8, 289, "a")})) == is_judged
    digest = noted(tmp_path, {"log_id": "log", "digests": {"0": "b"}, "roots": {"0": "b"}})
    digest.reports[0].last_index, digest.stale_from = 9, stale_from
    assert bool(check_notes(digest, {0: Seal(0, 9, 8, "a", "a")})) == is_judged
    found = judged({"n1": "s", "n2": "s", "n3": "x"}, stale={"n3": stale_from})
    assert bool(found) == is_judged


def test_damage_at_the_ends_of_a_file_explains_its_seal() -> None:
    for damaged in ((), (3,), (9,), (3, 9), (5,)):
        (flaw,) = check_records(filled(damaged=damaged), {200: Seal(3, 8, 290, "a")})
        assert flaw.measures == ((FILE, 0, 10),) * (3 in damaged) + ((FILE, 80, 90),) * (
            9 in damaged
        )


def noted(base: Path, value: dict[str, object] | None) -> Replica:
    one = replica("n1", base=base)
    folder = Path(one.root) / "state"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "digests").write_bytes(b"{}" if value is None else sealed(value))
    return one


def test_digests_that_a_node_noted(tmp_path: Path) -> None:
    """Of files of this log that are sealed."""
    own = {"log_id": "log", "digests": {"0": "b" * 20, "200": "c"}}
    (flaw,) = check_notes(
        noted(tmp_path, own), {0: Seal(3, 9, 90, "a" * 20), 200: Seal(3, 9, 90, "c")}
    )
    assert (flaw.rule, flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
        "seal.noted",
        FILE,
        0,
        0,
        8,
    )
    assert flaw.proof.startswith(
        "the node computed bbbbbbbbbbbbbbbb…, sealed was aaaaaaaaaaaaaaaa…;"
    )
    seals = {0: SEAL}
    for value in (
        None,
        {**own, "log_id": "other"},
        {"log_id": "log"},
        {**own, "digests": [1]},
        {**own, "digests": {}},
    ):
        assert check_notes(noted(tmp_path, value), seals) == []
    assert check_notes(noted(tmp_path, own), {}) == []


def test_roots_that_a_node_noted(tmp_path: Path) -> None:
    """Of files whose seal has a root; beside a digest that is right, and beside one that is
    wrong."""
    own = {"log_id": "log", "digests": {"0": "a"}, "roots": {"0": "b" * 20, "200": "c"}}
    (flaw,) = check_notes(
        noted(tmp_path, own),
        {0: Seal(3, 9, 90, "a", "d" * 20, 7), 200: Seal(3, 9, 90, "e", "c", 7)},
    )
    assert (flaw.rule, flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
        "seal.noted",
        FILE,
        0,
        0,
        8,
    )
    assert flaw.proof.startswith(
        "the node computed the root bbbbbbbbbbbbbbbb…, sealed was dddddddddddddddd…;"
    )
    for root in (None, ""):
        assert check_notes(noted(tmp_path, own), {0: Seal(3, 9, 90, "a", root)}) == []
    assert len(check_notes(noted(tmp_path, own), {0: Seal(3, 9, 90, "x", "y", 7)})) == 2
    for value in ({**own, "roots": [1]}, {**own, "roots": {}}, {**own, "log_id": "other"}):
        assert check_notes(noted(tmp_path, value), {0: Seal(3, 9, 90, "a", "d", 7)}) == []


def judged(
    digests: Mapping[str, str],
    seal: dict[str, Any] | None = None,
    stale: Mapping[str, int | None] | None = None,
    **fields: Any,
) -> list[Finding]:
    """The findings if these replicas have files with these digests, and a majority sealed the
    digest `s`. `stale`: from which index on a replica has entries that were never committed."""
    record = {**FIELDS, "first": 0, "end": 8, "sha256": "s" * 20, **(seal or {})}
    replicas = [replica(name, [(5, record)]) for name in digests]
    for one in replicas:
        first = one.reports[0]
        first.sha256, first.end, first.root, first.entries = digests[one.name] * 20, 8, "00" * 16, 7
        first.last_index = first.last_intact_index = 9
        one.stale_from = (stale or {}).get(one.name)
    result = group(*replicas, **{"voters": tuple(digests), **fields})
    before = [*result.findings]
    check_seals(result)
    return [found for found in result.findings if found not in before]


def test_files_with_other_bytes_than_the_sealed_ones() -> None:
    """Another history if a majority has the same ones; else rot. A file without a digest is not
    judged."""
    for told in product("sxy-", repeat=3):
        digests = {f"n{number}": "" if each == "-" else each for number, each in enumerate(told)}
        wrong = Counter(each for each in told if each in "xy")
        for voters in (3, 5):
            found = judged(digests, voters=tuple(f"n{number}" for number in range(voters)))
            rewritten = {each for each, count in wrong.items() if count >= (voters // 2 + 1)}
            expected = [
                (f"n{number}", DIVERGENCE if each in rewritten else BIT_ROT)
                for number, each in enumerate(told)
                if each in "xy"
            ]
            assert [(one.replica, one.klass) for one in found] == expected, (told, voters)
            for one, (name, _) in zip(found, expected, strict=True):
                flaw = one.flaw
                assert (flaw.rule, flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
                    "seal.digest",
                    FILE,
                    0,
                    0,
                    8,
                )
                assert flaw.proof.startswith(
                    f"SHA-256 {digests[name] * 16}…, a majority sealed ssssssssssssssss…"
                )
    for voters in (("n0",), ()):
        assert [one.klass for one in judged({"n0": "x"}, voters=voters)] == [BIT_ROT], (
            "one replica is no majority of a history"
        )


def test_known_damage_is_no_other_history() -> None:
    for replica_name, file, fails in product(
        ("n0", "n1", "n2"), (FILE, FILE[:-1] + "1"), (False, True)
    ):
        known = Finding(BIT_ROT, replica_name, "g1", Flaw("entry.body", file, 1, 0, 1, "p"), fails)
        found = judged({"n0": "x", "n1": "x"}, findings=[known])
        rotten = {replica_name} if file == FILE and fails else set()
        assert [one.klass for one in found] == [
            BIT_ROT if name in rotten else DIVERGENCE for name in ("n0", "n1")
        ]


def test_a_file_is_compared_with_one_that_has_the_sealed_bytes(tmp_path: Path) -> None:
    """Where the bytes are equal after all, nothing is told twice."""
    for theirs, told in (("s", 0), ("x", 2), ("", 1)):
        ones = [
            replica(name, [(5, {**FIELDS, "first": 0, "end": 8, "sha256": "s"})], base=tmp_path)
            for name in ("n1", "n2")
        ]
        for one, digest in zip(ones, ("x", theirs), strict=True):
            path = Path(one.log) / "data" / FILE.rpartition("/")[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(8))
            one.reports[0].sha256, one.reports[0].end = digest, 8
        result = group(*ones)
        check_seals(result)
        assert [one.flaw.rule for one in result.findings] == ["seal.digest"] * told


def test_the_root_in_a_seal_is_that_of_its_file() -> None:
    """Which is looked at only where the file has the sealed bytes."""
    for root, entries, digest in product(("00" * 16, "01" * 16, ""), (6, 7), ("s", "x", "")):
        told = judged({"n0": digest}, {"v": 2, "tree": {"root": root, "entries": entries}})
        found = [one for one in told if one.flaw.rule == "seal.tree"]
        assert len(found) == (digest == "s" and (root, entries) != ("00" * 16, 7))
        for one in found:
            flaw = one.flaw
            assert (flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (FILE, 0, 0, 8)
            wanted = f"{root[:16]}… of {entries}" if root else "no valid root"
            assert flaw.proof == f"the root of its 7 entries is {'0' * 16}…, sealed was {wanted}"
    assert judged({"n0": "s"}) == []
    assert [one.flaw.rule for one in judged({"n0": "s"}, {"v": 2})] == ["seal.tree"]


def test_a_wrong_record_is_a_finding_of_every_replica() -> None:
    found = judged({"n0": "s", "n1": "s"}, {"last": 8})
    assert [(one.replica, one.flaw.rule, one.klass) for one in found] == [
        (name, "seal.record", "wrong-derived") for name in ("n0", "n1")
    ]
