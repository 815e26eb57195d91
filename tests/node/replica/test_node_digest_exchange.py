"""The digest exchange over a hosted group with real files: a differing replica is reported at once
by each node that can detect it, and nothing is repaired."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.parts.retention.file_tree import leaf_of
from ledgermq.node.replica.background.digests import DIGESTS_FILE, Digests
from ledgermq.node.replica.background.pace import BUSY_REST_FACTOR, rest_s
from ledgermq.node.replica.maintenance import digest_exchange
from ledgermq.node.runtime import metrics
from ledgermq.proto import peer_pb2
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.file_digest import digest_and_root, file_digest
from ledgermq.storage.files.real_disk import RealDisk
from tests.audit.damage_cases import flip
from tests.node.replica.test_node_retention import Stage, stage

__all__ = ["stage"]

THREE = GroupMembers(0, ("n1", "n2", "n3"))
SIZE = 64 << 10


def metric(name: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, {"broker_group": "g1"})


def test_differing_digests_are_reported_without_a_majority(stage: Any) -> None:
    """Two of three differ and the third does not answer: it is unknown which is right, but the
    difference is reported."""
    one: Stage = stage(files=1)
    one.machine.members = THREE
    one.peers.digests = {"n2": {0: "ab" * 32}}
    one.check(2)
    assert one.digest_exchange.disputed("g1") == [0] and metric("ledgermq_disputed_log_files") == 1
    assert one.digest_exchange.differing("g1") == [] and not one.machine.seals
    one.peers.digests["n3"] = {0: one.digest_exchange._watches["g1"].digests.known[0]}
    one.check(2)
    assert one.machine.seals[0].replicas == ("n1", "n3")
    assert (
        one.digest_exchange.disputed("g1") == [] and metric("ledgermq_disputed_log_files") == 0
    ), "n2 tells of itself from now on"


def test_a_replica_that_differs_from_the_record_says_so_and_looks_at_the_file(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged once, shown in metric and status while it lasts, and the scrub is asked to read
    the file."""
    one: Stage = stage(files=2)
    one.machine.members = THREE
    asked: list[int] = []
    monkeypatch.setattr(one.driver.group.scrub, "soon", asked.append)
    one.peers.digests = {node: {SIZE: "ab" * 32} for node in ("n2", "n3")}
    one.check(4)
    assert one.machine.seals[SIZE].replicas == ("n2", "n3")
    assert (
        one.digest_exchange.differing("g1") == [SIZE] and metric("ledgermq_digest_mismatches") == 1
    )
    assert asked == [SIZE]
    assert one.driver.hosted.state == "running" and one.machine.begin_index == 0


def test_differing_digest_of_an_earlier_life_is_recomputed_first(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may have been repaired while the process was down, by a command: the note is a
    hint."""
    one: Stage = stage(files=1)
    one.seal_all()
    asyncio.run(one.digest_exchange.stop())
    path = f"{one.driver.group.store.state_directory}/{DIGESTS_FILE}"
    noted = sealed_json.read(RealDisk(), path)
    sealed_json.write(RealDisk(), path, {**noted, "digests": {"0": "cd" * 32}})
    one.digest_exchange._watches.clear()
    asked: list[int] = []
    monkeypatch.setattr(one.driver.group.scrub, "soon", asked.append)
    one.check(2)
    assert one.digest_exchange.differing("g1") == [] and asked == []
    assert one.digest_exchange._watches["g1"].digests.known[0] == one.machine.seals[0].sha256


def test_a_file_that_was_put_back_while_the_group_ran_is_read_again(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old digest is for other bytes, so the file is digested again and no longer reported as
    different."""
    one: Stage = stage(files=2)
    one.machine.members = THREE
    path = Path(f"{one.driver.group.store.log_directory}/data/{SIZE:020d}")
    right = file_digest(RealDisk(), str(path), lambda length: None)
    monkeypatch.setattr(one.driver.group.scrub, "soon", lambda base: None)
    # in place: the indexing thread reads the file meanwhile, and a file rewritten as a whole is
    # short for a moment
    flip(path, 3000)
    one.peers.digests = {node: {SIZE: right} for node in ("n2", "n3")}
    one.check(4)
    assert one.digest_exchange.differing("g1") == [SIZE]
    flip(path, 3000)
    one.driver.hosted._ranges.mended += 1
    one.check(3)
    assert one.digest_exchange.differing("g1") == [] and metric("ledgermq_digest_mismatches") == 0


def test_digest_computed_across_a_stop_is_discarded(stage: Any) -> None:
    """A check that runs while the file is replaced finishes with digests of the old file, which are
    discarded."""
    one: Stage = stage(files=1)
    digests = Digests(
        RealDisk(), one.driver.group.store, 1 << 40, lambda failure: None, ThreadPoolExecutor(1)
    )
    digests.want([0])
    assert digests._running is not None
    digests._running[1].result(20)
    digests.stop()
    digests.keep_from(0)
    assert list(digests.known) == [0]


def test_disputed_files_do_not_delay_other_digests(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request names a limited number of files; the next request continues after them."""
    one: Stage = stage(files=3)
    one.machine.members = THREE
    monkeypatch.setattr(digest_exchange, "ASKED_AT_ONCE", 1)
    one.check(2)
    known = one.digest_exchange._watches["g1"].digests.known
    one.peers.digests = {"n2": {SIZE: known[SIZE], 2 * SIZE: known[2 * SIZE]}}
    one.check(6)
    assert sorted(one.machine.seals) == [SIZE, 2 * SIZE]


def test_digest_answer_omits_unrequested_disk_sizes(stage: Any) -> None:
    """An older node asks for everything and gets it, digests too."""
    one: Stage = stage(files=2)
    one.seal_all()
    for only in (True, False):
        question = peer_pb2.StorageQuestion(
            broker_group="g1", bases=[0, SIZE, 1 << 40], digests_only=only
        )
        reply = peer_pb2.StorageReply.FromString(
            asyncio.run(one.retainer.answer(question.SerializeToString()))
        )
        assert {found.base: found.sha256 for found in reply.digests} == {
            base: seal.sha256 for base, seal in one.machine.seals.items()
        }
        assert bool(reply.disk_total_bytes) is not only


def test_a_check_looks_at_new_files_only(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose digests were already reported are not examined again at each check, however many
    there are."""
    one: Stage = stage(files=3)
    one.check()
    book = one.driver.group.files
    looked: list[int] = []
    real = book._look
    monkeypatch.setattr(book, "_look", lambda base, *rest: looked.append(base) or real(base, *rest))
    assert book.sealed_from(3 * SIZE) == [] and looked == []
    one.grow(1)
    assert [file.base for file in book.sealed_from(3 * SIZE)] == [3 * SIZE] and looked == [3 * SIZE]
    assert [file.base for file in book.sealed_from(0)] == [base * SIZE for base in range(4)]


def test_whoever_is_in_the_background_gives_way() -> None:
    """Alone it keeps to its budget; a piece that had to wait is followed by a long rest, and by no
    more than it takes."""
    mib = 1 << 20
    assert rest_s(mib, 0.001, 0.001, 100 * mib, 0) == pytest.approx(0.009)
    assert rest_s(mib, 0.02, 0.02, 100 * mib, 0) == 0
    assert rest_s(mib, 0.02, 0.02, 100 * mib, 9) == pytest.approx(0.18)
    assert rest_s(mib, 0.002, 0.001, 1000 * mib, 0) == pytest.approx(BUSY_REST_FACTOR * 0.001)
    assert rest_s(mib, 0.5, 0.0, 1000 * mib, 0) == 0


# -- roots


def rooted(stage: Any, files: int, members: GroupMembers = THREE) -> Stage:
    """A stage whose group has a log tree and three voters."""
    one: Stage = stage(files=files)
    one.machine.members = members
    one.machine.level = 2
    one.machine.retained.begin_tree()
    return one


def right(one: Stage, base: int) -> tuple[str, str]:
    """Digest and root of a file, computed from its bytes."""
    file = next(file for file in one.driver.group.files.sealed_from(0) if file.base == base)
    path = f"{one.driver.group.store.log_directory}/data/{base:020d}"
    return digest_and_root(RealDisk(), path, file.end_pos - base, lambda length: None)


def test_seal_needs_a_majority_of_equal_roots_without_the_leader(
    stage: Any,
) -> None:
    """Two followers suffice, and then the leader hashes no entry; one of them does not, and another
    root counts for nothing."""
    one = rooted(stage, 1)
    sha256, root = right(one, 0)
    one.peers.digests, one.peers.roots = (
        {"n2": {0: sha256}, "n3": {0: sha256}},
        {"n2": {0: root}, "n3": {0: "ab" * 32}},
    )
    one.check(3)
    digests = one.digest_exchange._watches["g1"].digests
    assert not one.machine.seals and digests.known == {0: sha256} and not digests.roots
    one.peers.roots["n3"] = {0: root}
    one.check(2)
    seal = one.machine.seals[0]
    assert (seal.sha256, seal.root, seal.replicas) == (
        sha256,
        root,
        ("n2", "n3"),
    ) and not digests.roots
    assert one.machine.retained.tree.hashes == [leaf_of(seal).hash()]


@pytest.mark.parametrize("late", [False, True], ids=["silent", "late"])
def test_the_leader_computes_a_root_where_the_others_are_no_majority(
    stage: Any, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """One does not answer, or both answer without a root for long."""
    one = rooted(stage, 1)
    sha256, root = right(one, 0)
    one.peers.digests, one.peers.roots = {"n2": {0: sha256}}, {"n2": {0: root}}
    if late:
        one.peers.digests["n3"] = {0: sha256}
        one.check(3)
        assert not one.machine.seals
        monkeypatch.setattr(digest_exchange, "LEADER_COMPUTES_AFTER_S", -1.0)
    one.check(3)
    assert one.machine.seals[0].replicas == ("n1", "n2") and one.machine.seals[0].root == root


def test_a_lone_voter_and_a_note_of_roots(stage: Any) -> None:
    """The leader of a group of one computes the root with the digest, and the note keeps both; a
    program that knows no roots reads it."""
    one = rooted(stage, 2, GroupMembers(0, ("n1",)))
    one.check(4)
    found = {base: right(one, base) for base in (0, SIZE)}
    assert {base: (seal.sha256, seal.root) for base, seal in one.machine.seals.items()} == found
    asyncio.run(one.digest_exchange.stop())
    noted = sealed_json.read(RealDisk(), f"{one.driver.group.store.state_directory}/{DIGESTS_FILE}")
    assert noted["v"] == 1 and noted["roots"] == {
        str(base): root for base, (_, root) in found.items()
    }
    again = Digests(
        RealDisk(), one.driver.group.store, 1 << 40, lambda failure: None, ThreadPoolExecutor(1)
    )
    assert again.roots == {base: root for base, (_, root) in found.items()}
    again.want([0], {0: 5})
    assert again._running is None
    again.stop()


def test_a_follower_reports_the_root_beside_the_digest(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rooted(stage, 1)
    monkeypatch.setattr(one.driver.group.group.leader, "serving", False)
    asyncio.run(one.digest_exchange.check("g1"))
    reply = asyncio.run(
        one.digest_exchange.answer(
            peer_pb2.StorageQuestion(broker_group="g1", bases=[0], digests_only=True)
        )
    )
    assert [(found.sha256, found.tree_root) for found in reply.digests] == [right(one, 0)]


def test_a_file_with_damaged_entries_has_a_digest_and_no_root(stage: Any) -> None:
    """It is computed once, not at every check."""
    one = rooted(stage, 1)
    file = one.driver.group.files.sealed_from(0)[0]
    path = Path(f"{one.driver.group.store.log_directory}/data/{0:020d}")
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(4) + data[8:])
    digests = Digests(
        RealDisk(), one.driver.group.store, 1 << 40, lambda failure: None, ThreadPoolExecutor(1)
    )
    for _ in range(2):
        digests.want([0], {0: file.end_pos})
        if digests._running is not None:
            digests._running[1].result(20)
    assert digests._running is None and digests.roots == {0: ""}
    assert digests.known == {0: file_digest(RealDisk(), str(path), lambda length: None)}
    digests.stop()
