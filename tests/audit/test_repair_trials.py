"""Repairs of damage anywhere, each judged by an audit of its own, by the bytes, and by whether its
reasons are true."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tests.audit.damage_cases import NODES
from tests.audit.exhaust.__main__ import new_home
from tests.audit.exhaust.cluster import SEALED, build
from tests.audit.exhaust.ground import Changes, Place, image_of
from tests.audit.exhaust.repairing import HEADER_BYTES, Trial
from tests.audit.fuzz.anatomy import Anatomy, Entry
from tests.audit.fuzz.clusters import Cluster, Image, cut_off

SHARES = 8
DRAWN = 2
MANY = (range(DRAWN, 50), range(50, 100), range(100, 150))
FIELDS = (15, 23, 37, 41, 47)
"""Bytes of a header: index, term, chain CRC, bodyCrc, bodySize."""
PLACES = ("first", "inner", "last of a file", "first of a file", "last")


def small(base: Path, name: str, clean: Collection[str]) -> Cluster:
    """A Raft group and an HA group, one of them trimmed."""
    build(base, name, clean=clean)
    return Cluster(name, image_of(base), clean=bool(clean), complete=True)


CLUSTERS: dict[str, Callable[[Path], Cluster]] = {
    "stopped": lambda base: small(base, "one", NODES),
    "stopped, other": lambda base: small(base, "other", NODES),
    "killed": lambda base: small(base, "one", ()),
    "killed, other": lambda base: small(base, "other", ()),
    "lagging": lambda base: cut_off(20, "n3", from_ms=600, at_ms=900),
    "failed over": lambda base: cut_off(81, "leader", from_ms=700, at_ms=2200, maintained=False),
}
"""How the cluster ended whose directories are damaged."""


def made(name: str, home: Path) -> Trial:
    made, base = home / "made" / name, home / name
    made.mkdir(parents=True)
    base.mkdir()
    cluster = CLUSTERS[name](made)
    cluster.write(base)
    return Trial(Place(base, cluster.image))


def flipped(image: Image, path: str, at: int, mask: int = 0x10) -> dict[str, bytes | None]:
    data = bytearray(image[path])
    data[at] ^= mask
    return {path: bytes(data)}


def drawn(trial: Trial, rng: random.Random, nodes: int) -> dict[str, bytes | None]:
    """A flipped bit on this many nodes: all files are equally likely, and used bytes are more
    likely than others."""
    changes: dict[str, bytes | None] = {}
    for node in rng.sample(trial.place.nodes, nodes):
        path = rng.choice(
            [path for path, data in trial.image.items() if path.startswith(f"{node}/") and data]
        )
        data = trial.image[path]
        used = len(data.rstrip(b"\0"))
        at = rng.randrange(used) if used and rng.random() < 0.8 else rng.randrange(len(data))
        changes |= flipped(trial.image, path, at, 1 << rng.randrange(8))
    return changes


@pytest.fixture(scope="module")
def trials() -> Iterator[Callable[[str], Trial]]:
    """Each cluster is made once: an attempt restores what it changed. They are in memory, because a
    repair syncs many small files."""
    with new_home() as home:
        yield functools.cache(lambda name: made(name, Path(home)))


@pytest.fixture(params=CLUSTERS)
def trial(request: pytest.FixtureRequest, trials: Callable[[str], Trial]) -> Trial:
    return trials(request.param)


@pytest.fixture
def stopped(trials: Callable[[str], Trial]) -> Trial:
    return trials("stopped")


def judge(trial: Trial, changes: Changes, status: int | None = None) -> None:
    attempt = trial.attempt(changes)
    assert attempt is not None, "the audit found nothing"
    assert not trial.complaint(attempt), trial.complaint(attempt)
    assert status is None or attempt.status == status, attempt.told


def replicas(trial: Trial, group: str) -> list[Anatomy]:
    return [one for one in trial.replicas if one.root.endswith(f"/{group}")]


def places(one: Anatomy) -> dict[str, Entry]:
    """Entries at the edges of the files, and one between."""
    second = [entry for entry in one.entries if not entry.at][1]
    before = next(entry for entry in one.entries if entry.index == second.index - 1)
    return {
        "first": one.entries[0],
        "inner": one.entries[7],
        "last of a file": before,
        "first of a file": second,
        "last": one.entries[-1],
    }


def everywhere(trial: Trial, group: str, place: str, at: int = 60) -> dict[str, bytes | None]:
    """The same byte of an entry on all replicas."""
    entries = [places(one)[place] for one in replicas(trial, group)]
    return {
        path: data
        for entry in entries
        for path, data in flipped(trial.image, entry.path, entry.at + at).items()
    }


@pytest.mark.one_in(11)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("group", "at"), [*(("raft", at) for at in FIELDS), *(("ha", at) for at in FIELDS[2:])]
)
def test_a_flipped_byte_of_any_field_of_a_header_is_put_back(
    stopped: Trial, group: str, at: int, place: str
) -> None:
    """Two intact replicas stand beside it; the words that the chain does not cover are bytes like
    all others."""
    entry = places(replicas(stopped, group)[0])[place]
    judge(stopped, flipped(stopped.image, entry.path, entry.at + at), 0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("first", "second"), [(20, 9), (37, 41), (47, 9)])
def test_other_bytes_of_one_entry_on_two_replicas_are_put_back_from_the_third(
    stopped: Trial, first: int, second: int, place: str
) -> None:
    """The header is damaged in different fields on two replicas; one has it."""
    image = stopped.image
    one, two = (places(replica)[place] for replica in replicas(stopped, "raft")[:2])
    changes = flipped(image, one.path, one.at + first) | flipped(image, two.path, two.at + second)
    # No entry continues the last one of all: where its content is damaged on two, nothing tells
    # that it is the one that was committed.
    judge(stopped, changes, 2 if place == "last" and first == 20 else 0)


def test_the_last_entry_of_a_file_is_not_taken_for_a_blank_when_all_replicas_lost_it(
    stopped: Trial,
) -> None:
    """Whether the file is sealed or not, the next file shows that there was an entry: it is named,
    and no byte is changed."""
    one = replicas(stopped, "raft")[0]
    ends = [entry.index - 1 for entry in one.entries if not entry.at and entry.index]
    assert len(ends) > len(SEALED)
    for index in ends:
        changes: dict[str, bytes | None] = {}
        for replica in replicas(stopped, "raft"):
            changes |= flipped(
                stopped.image, replica.entries[index].path, replica.entries[index].at + 60
            )
        judge(stopped, changes, 2)


def test_a_damaged_first_index_does_not_tell_that_the_file_before_is_shorter(
    stopped: Trial,
) -> None:
    """The same flip on two replicas: they are a majority of the next files, and the entries in
    front of them contradict it."""
    image = stopped.image
    one, two = (places(replica)["first of a file"] for replica in replicas(stopped, "raft")[:2])
    before = places(replicas(stopped, "raft")[0])["last of a file"]
    bit = one.index & -one.index
    changes = flipped(image, one.path, one.at + 15, bit) | flipped(
        image, two.path, two.at + 15, bit
    )
    judge(stopped, changes | flipped(image, before.path, before.at + before.size + 9), 0)


def test_a_right_index_counts_although_the_one_beside_it_is_damaged(stopped: Trial) -> None:
    """In front of the last two entries nothing can be read, and the index of the last one is wrong:
    the audit counts back from it."""
    image, (lost, _, last) = stopped.image, replicas(stopped, "raft")[0].entries[-3:]
    assert lost.path == last.path and not lost.at
    data = bytearray(image[last.path])
    data[lost.at : lost.at + lost.size] = b"\1" * lost.size
    data[last.at + 13] ^= 1
    judge(stopped, {last.path: bytes(data)}, 0)


def test_the_end_of_the_log_is_not_cut_off_when_all_replicas_lost_it(stopped: Trial) -> None:
    changes = everywhere(stopped, "raft", "last")
    judge(stopped, changes, 2)
    # Without its mark, it is unknown what a replica synced.
    mark = "n1/raft/dledger-n1/syncedmark"
    attempt = stopped.attempt(changes | {mark: bytes(len(stopped.image[mark]))})
    assert attempt is not None and not stopped.complaint(attempt) and attempt.status == 1
    assert all(attempt.after[path] == changes[path] for path in changes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("file", [2, 1])
def test_damage_in_a_tail_of_a_former_leader_alone_is_undecidable(
    file: int, trials: Callable[[str], Trial]
) -> None:
    """Its log files have the names of the others' and begin and end with other entries: theirs are
    made whole without it, and it without them."""
    trial = trials("failed over")
    former = max(trial.replicas, key=lambda one: one.entries[-1].index)
    for one in trial.replicas:
        name = f"{file * one.data_bytes:020d}"
        inside = [entry for entry in one.entries if entry.path.endswith(name)]
        for entry in (inside[0], inside[len(inside) // 2], inside[-1]):
            judge(trial, flipped(trial.image, entry.path, entry.at + 37), 2 if one is former else 0)


def test_the_empty_file_behind_the_end_of_another_history_is_zero_again(
    trials: Callable[[str], Trial],
) -> None:
    """The other replicas have entries in the file of that name, with lower indexes than the former
    leader's synced mark names."""
    trial = trials("failed over")
    former = max(trial.replicas, key=lambda one: one.entries[-1].index)
    behind = f"{int(former.entries[-1].path[-20:]) + former.data_bytes:020d}"
    assert any(entry.path.endswith(behind) for one in trial.replicas for entry in one.entries)
    path = f"{former.log}/data/{behind}"
    assert not any(trial.image[path])
    judge(trial, flipped(trial.image, path, 3780), 0)


def test_derived_files_are_left_alone_beside_a_log_that_stays_damaged(stopped: Trial) -> None:
    """They could not be made again. Files of the log that can be mended are."""
    image, changes = stopped.image, everywhere(stopped, "raft", "inner", 5)
    judge(stopped, changes | flipped(image, "n1/raft/state/snapshot", 30), 1)
    entry = places(replicas(stopped, "raft")[0])["last"]
    judge(stopped, changes | flipped(image, entry.path, entry.at + 60), 2)


@pytest.mark.parametrize(("name", "at"), [("hardstate", 200), ("syncedmark", 8191)])
def test_bytes_outside_of_two_slots_are_zero_again(stopped: Trial, name: str, at: int) -> None:
    """No slot is touched, so the replica's word stays what it was."""
    path = f"n1/raft/dledger-n1/{name}"
    judge(stopped, flipped(stopped.image, path, at), 0)
    judge(stopped, {path: stopped.image[path] + b"more"}, 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["killed", "stopped"])
def test_the_key_index_is_whole_after_a_repair(name: str, trials: Callable[[str], Trial]) -> None:
    """Of a stopped node and of a killed one, whose index is ahead of its position: whatever of it
    was damaged, and whatever else was."""
    trial = trials(name)
    entry = replicas(trial, "raft")[0].entries[3]
    judge(trial, flipped(trial.image, entry.path, entry.at + 60), 0)
    position = "n1/raft/state/keyindex"
    judge(trial, flipped(trial.image, position, 30), 0)
    units = [spot for spot in replicas(trial, "raft")[0].spots["key unit"]]
    for spot in (units[0], units[len(units) // 2]):
        judge(trial, flipped(trial.image, spot.path, spot.start), 0)
        judge(trial, {spot.path: None}, 0)


def test_the_begin_of_a_trimmed_log_is_told_by_its_snapshot(stopped: Trial) -> None:
    """The first entry continues the chain CRC in the snapshot; without a snapshot it is
    unproven."""
    image, path = stopped.image, "n1/ha/dledger-n1/begin"
    judge(stopped, flipped(image, path, 20), 0)
    judge(stopped, {path: None}, 0)
    snapshots = [f"n1/ha/state/{name}" for name in ("snapshot", "snapshot.previous")]
    attempt = stopped.attempt(flipped(image, path, 20) | {name: b"nothing" for name in snapshots})
    assert attempt is not None and attempt.status and not stopped.complaint(attempt)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("nodes", [1, 2])
def test_flipped_bits_anywhere_are_put_back_or_refused_for_a_true_reason(
    trial: Trial, nodes: int
) -> None:
    """Any file of one replica, or of two."""
    for seed in range(DRAWN):
        attempt = trial.attempt(drawn(trial, random.Random(seed), nodes))
        assert attempt is None or not trial.complaint(attempt), (seed, trial.complaint(attempt))


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.in_turn(6)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", MANY, ids=lambda seeds: f"from {seeds[0]}")
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_many_flipped_bits_are_put_back_or_refused_for_a_true_reason(
    trial: Trial, nodes: int, seeds: range
) -> None:
    for seed in seeds:
        attempt = trial.attempt(drawn(trial, random.Random(seed), nodes))
        assert attempt is None or not trial.complaint(attempt), (seed, trial.complaint(attempt))


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.in_turn(SHARES)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_byte_of_every_header_is_put_back(stopped: Trial, share: int) -> None:
    for entry in replicas(stopped, "raft")[0].entries[share::SHARES]:
        for at in range(HEADER_BYTES):
            judge(stopped, flipped(stopped.image, entry.path, entry.at + at), 0)
