"""A witness on virtual time against nodes that lie: what it accepts and reports, with which
evidence, and that an interruption loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ledgermq.client.aside import part_of
from ledgermq.client.errors import BadArgument, Refused, Unreachable
from ledgermq.client.proofs import ed25519, witness_files
from ledgermq.client.proofs.keys import TrustedKeys
from ledgermq.client.proofs.ports import Group
from ledgermq.client.proofs.proof import Unreadable
from ledgermq.client.proofs.witness import (
    FORK,
    REPLACED,
    ROLLED_BACK,
    UNPROVEN,
    WITHHELD,
    Finding,
    Limits,
    Witness,
)
from ledgermq.client.proofs.witness_files import (
    LastShown,
    Newest,
    WitnessFiles,
    accepted_of,
    groups_in,
)
from ledgermq.proto.proofs.log_tree import consistency_path
from ledgermq.proto.proofs.signed_notes import (
    Checkpoint,
    LogName,
    Note,
    cosign,
    format_note,
    parse_note,
    verify,
)
from tests.client.fake_log_tree import (
    LOG,
    NODES,
    FakeLog,
    FakeReplica,
    key_file,
    key_of,
    log_of,
    private_key,
    signed,
)
from tests.client.fake_log_tree import sign as sign_note

HONEST = log_of(9)
KEYS = TrustedKeys.parse(key_file())


@dataclass
class FakeClock:
    """Time that passes only while somebody sleeps, and what happens then."""

    seconds: int = 1_800_000_000
    meanwhile: Callable[[], None] = lambda: None

    def now(self) -> int:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += max(1, int(seconds))
        self.meanwhile()


@dataclass
class FakeCluster:
    """What each node shows; the paths come from all nodes that have a tree as large."""

    replicas: dict[str, FakeReplica] = field(
        default_factory=lambda: {name: FakeReplica(HONEST, 3) for name in NODES}
    )
    commit_index: int = 100
    signers: dict[str, str] = field(default_factory=dict)
    log: LogName = LOG
    paths_given: bool = True

    def groups(self) -> list[Group]:
        return [Group("g1", NODES, self.commit_index)]

    def checkpoint(self, broker_group: str, node: str) -> str:
        replica = self.replicas.get(node)
        if replica is None:
            raise Unreachable(f"node {node} does not answer", "start it")
        if not replica.shown():
            raise Refused(40400, "no file is sealed yet")
        found = replace(replica.log.checkpoint(replica.shown()), log=self.log)
        return format_note(signed(found, self.signers.get(node, node)))

    def paths(self, broker_group: str, old_size: int, new_size: int) -> list[tuple[bytes, ...]]:
        if not self.paths_given:
            raise Refused(42800, "not now")
        logs = [
            replica.log for replica in self.replicas.values() if len(replica.log.leaves) >= new_size
        ]
        return [tuple(consistency_path(log.hashes(new_size), old_size)) for log in logs]


@dataclass
class Watching:
    """A witness, its cluster, its clock and its directory."""

    files: WitnessFiles
    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: FakeClock = field(default_factory=FakeClock)
    limits: Limits = field(default_factory=lambda: Limits(patience_s=30, stale_after_s=600))

    def round(self) -> list[Finding]:
        return Witness(self.cluster, self.files, KEYS, self.clock, self.limits).round()[1]

    def kinds(self) -> list[tuple[str, str]]:
        return [(finding.kind, finding.node) for finding in self.round()]

    def show(self, size: int, *nodes: str) -> None:
        for node in nodes or NODES:
            self.cluster.replicas[node].size = size

    def lie(self, log: FakeLog, size: int, *nodes: str) -> None:
        for node in nodes:
            self.cluster.replicas[node] = FakeReplica(log, size)

    def accepted(self) -> dict[int, Note]:
        return accepted_of(self.files.directory, "g1")


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    with WitnessFiles.open(tmp_path / "w", "witness.example/w") as files:
        yield Watching(files)


def test_witness_cosigns_a_growing_tree(watching: Watching) -> None:
    """With the signatures of all nodes that showed it, and a cosignature of the time of the
    round."""
    for size in (3, 4, 7):
        watching.show(size)
        assert watching.kinds() == []
        watching.clock.seconds += 60
    accepted = watching.accepted()
    assert sorted(accepted) == [3, 4, 7] and groups_in(watching.files.directory) == ["g1"]
    found = verify(accepted[7], [*KEYS.keys, watching.files.key], ed25519.verified)
    assert [(each.key.name, each.seconds) for each in found] == [
        *((f"{node}.{LOG.cluster_id}", None) for node in NODES),
        ("witness.example/w", 1_800_000_120),
    ]


def test_a_node_that_lags_is_no_finding_until_it_is_stale(watching: Watching) -> None:
    watching.show(5)
    watching.show(4, "n3")
    assert watching.kinds() == []
    watching.clock.seconds += 599
    assert watching.kinds() == []
    watching.clock.seconds += 1
    assert watching.kinds() == [(WITHHELD, "n3")]
    watching.show(5, "n3")
    assert watching.kinds() == []


def test_a_cosignature_is_made_for_the_largest_tree_only(watching: Watching) -> None:
    """A smaller tree that is shown later is kept, and the witness does not say that it is the
    largest."""
    watching.show(5)
    watching.round()
    watching.show(4, "n3")
    watching.limits = Limits(patience_s=0, stale_after_s=600)
    assert watching.kinds() == [(ROLLED_BACK, "n3")]
    names = [each.name for each in watching.accepted()[4].signatures]
    assert names == [f"n3.{LOG.cluster_id}"]


def test_a_smaller_tree_that_a_quorum_shows_later_is_not_cosigned_either(
    watching: Watching,
) -> None:
    """Two of three nodes roll back, by one file that the witness has not seen as the last one."""
    watching.show(5)
    watching.round()
    watching.show(4, "n2", "n3")
    watching.limits = Limits(patience_s=0, stale_after_s=600)
    assert watching.kinds() == [(ROLLED_BACK, "n2"), (ROLLED_BACK, "n3")]
    assert [each.name.split(".")[0] for each in watching.accepted()[4].signatures] == ["n2", "n3"]


def test_each_round_cosigns_the_largest_tree_anew(watching: Watching) -> None:
    """The time of a cosignature says when nothing larger was known, so it goes on while the log
    stands still."""
    for _ in range(3):
        assert watching.kinds() == []
        found = verify(watching.accepted()[3], [watching.files.key], ed25519.verified)
        assert [each.seconds for each in found] == [watching.clock.now()]
        watching.clock.seconds += 60


def test_every_tree_that_a_node_shows_within_a_round_is_judged(watching: Watching) -> None:
    """A thief shows an invented file for a moment, until the others are as far; or lags behind at
    first, and then shows it."""
    forged = log_of(9, changed=(3,))

    def honest() -> None:
        watching.lie(HONEST, 4, *NODES)

    watching.lie(forged, 4, "n1")
    watching.clock.meanwhile = honest
    assert watching.kinds() == [(FORK, "n1")]
    assert watching.kinds() == []
    watching.show(3, "n1")
    watching.clock.meanwhile = lambda: watching.lie(forged, 4, "n1")
    assert watching.kinds() == [(FORK, "n1")]


def test_log_without_sealed_files_leaves_no_witness_files(watching: Watching) -> None:
    watching.show(0)
    assert watching.kinds() == [] and groups_in(watching.files.directory) == []


@pytest.mark.parametrize("changed", range(5))
@pytest.mark.parametrize("size", [3, 5, 6, 9])
def test_a_fork_is_found_at_every_size(watching: Watching, changed: int, size: int) -> None:
    """A rewritten message in an accepted file: shown with the same number of files, fewer or
    more."""
    watching.show(6)
    watching.show(5, "n1")
    watching.round()
    watching.lie(log_of(9, changed=(changed,)), size, "n1")
    found = watching.round()
    if size <= changed:
        # the same files so far
        assert [(one.kind, one.node) for one in found] == [(ROLLED_BACK, "n1")]
        return
    assert (found[0].kind, found[0].node) == (FORK, "n1")
    assert len(found) == 1 and {"shown.checkpoint", "accepted.checkpoint"} <= set(found[0].evidence)
    roots = {Checkpoint.parse(note.text).root for note in watching.accepted().values()}
    assert log_of(9, changed=(changed,)).checkpoint(size).root not in roots


def test_evidence_of_a_fork_is_two_signed_trees_of_one_size(watching: Watching) -> None:
    """Anybody can check it with the keys alone."""
    watching.show(5)
    watching.round()
    watching.lie(log_of(9, changed=(1,)), 5, "n2")
    (finding,) = watching.round()
    place = watching.files.keep_evidence(
        finding.kind, finding.broker_group, finding.node, finding.evidence
    )
    notes = [
        parse_note((place / name).read_text())
        for name in ("shown.checkpoint", "accepted.checkpoint")
    ]
    sizes = {Checkpoint.parse(note.text).size for note in notes}
    assert sizes == {5} and len({note.text for note in notes}) == 2
    assert all(verify(note, KEYS.keys, ed25519.verified) for note in notes)


def test_fork_of_all_nodes_is_found_against_the_kept_checkpoint(watching: Watching) -> None:
    watching.show(5)
    watching.round()
    watching.lie(log_of(9, changed=(4,)), 9, *NODES)
    assert watching.kinds() == [(FORK, node) for node in NODES]
    assert sorted(watching.accepted()) == [5]


def test_a_roll_back_is_reported_after_the_patience(watching: Watching) -> None:
    """A node that restarts shows less for a moment; one that stays there was rolled back, also if
    it shows nothing any more."""
    watching.show(5)
    watching.round()
    watching.show(3, "n2")
    watching.clock.meanwhile = lambda: (
        watching.show(5, "n2") if watching.clock.seconds % 20 == 0 else None
    )
    assert watching.kinds() == []
    watching.clock.meanwhile = lambda: None
    for size in (3, 0):
        watching.show(size, "n2")
        for _ in range(2):
            assert watching.kinds() == [(ROLLED_BACK, "n2")]
    watching.show(6)
    assert watching.kinds() == []


def test_a_withheld_tail_is_reported(watching: Watching) -> None:
    """Messages are committed, and the checkpoint stands still; a log without new messages may stand
    still."""
    watching.round()
    watching.clock.seconds += 10_000
    assert watching.kinds() == []
    watching.cluster.commit_index += 1
    assert watching.kinds() == [(WITHHELD, "all")]
    watching.show(4)
    assert watching.kinds() == []


def test_a_log_that_was_replaced_is_reported(watching: Watching) -> None:
    watching.round()
    for log in (replace(LOG, log_id="another"), replace(LOG, cluster_id="another")):
        watching.cluster.log = log
        kind = UNPROVEN if log.cluster_id == "another" else REPLACED
        assert watching.kinds() == [(kind, node) for node in NODES]
    assert sorted(watching.accepted()) == [3]


def test_checkpoints_without_known_signatures_or_path_are_not_accepted(watching: Watching) -> None:
    """A key of another node or of nobody known, a node that does not answer, a path that nobody
    gives."""
    watching.cluster.signers = {"n1": "n2", "n2": "n9"}
    del watching.cluster.replicas["n3"]
    assert watching.kinds() == [(UNPROVEN, node) for node in NODES]
    assert watching.accepted() == {}
    watching.cluster.signers = {}
    assert watching.kinds() == [(UNPROVEN, "n3")]
    watching.cluster.signers = {"n1": "n2"}
    found = {finding.node: finding.text for finding in watching.round()}
    assert found.keys() == {"n1", "n3"} and found["n1"].endswith(
        "no trusted key of n1 has signed it"
    )
    watching.cluster.signers = {}
    watching.cluster.paths_given = False
    watching.show(4, "n1")
    assert watching.kinds() == [(UNPROVEN, "n1"), (UNPROVEN, "n3")]
    assert sorted(watching.accepted()) == [3]


def test_a_stolen_key_signs_a_fork_of_its_node_only(watching: Watching) -> None:
    """The thief speaks for one node: the witness holds it against that node, and accepts nothing of
    it."""
    watching.round()
    watching.lie(log_of(9, changed=(1,)), 9, "n2")
    assert watching.kinds() == [(FORK, "n2")]
    assert sorted(watching.accepted()) == [3]


def test_tree_of_a_minority_is_reported_without_effect(
    watching: Watching,
) -> None:
    """A thief has one key and shows a file more, invented. What the honest nodes show later is
    accepted as if he had shown nothing."""
    watching.show(4)
    watching.round()
    watching.lie(log_of(5, changed=(4,)), 5, "n1")
    (finding,) = watching.round()
    assert (finding.kind, finding.node) == (
        UNPROVEN,
        "n1",
    ) and "signed by n1 alone, and 2 replicas must have" in finding.text
    assert sorted(watching.accepted()) == [4]
    memory = watching.files.load("g1")
    assert {
        Checkpoint.parse(parse_note(last.note).text).size for last in memory.nodes.values()
    } == {4}
    watching.lie(HONEST, 5, "n1")
    for size in (5, 6):
        watching.show(size)
        assert watching.kinds() == []
    assert sorted(watching.accepted()) == [4, 5, 6]


def test_the_first_round_wants_a_quorum_too(watching: Watching) -> None:
    """What one node shows binds nobody, and contradicts what the others have signed."""
    watching.lie(log_of(9, changed=(0,)), 9, "n1")
    assert watching.kinds() == [(FORK, "n1")]
    assert sorted(watching.accepted()) == [3]


def test_a_node_that_is_ahead_for_a_moment_is_no_finding(watching: Watching) -> None:
    """The others follow within the patience, and it goes on meanwhile, so that no two nodes ever
    show the same size at once."""
    sizes = {"n1": 5, "n2": 4, "n3": 3}

    def further() -> None:
        for node in NODES:
            sizes[node] = min(9, sizes[node] + 1)
            watching.show(sizes[node], node)

    further()
    watching.clock.meanwhile = further
    assert watching.kinds() == []
    found = verify(watching.accepted()[6], [*KEYS.keys, watching.files.key], ed25519.verified)
    assert [each.key.name.split(".")[0] for each in found] == ["n1", "n2", "witness"]


def accepted_before_quorums(watching: Watching, log: FakeLog, size: int, node: str) -> None:
    """What an earlier version left: a tree that one node signed, cosigned, and remembered as what
    this node showed."""
    note = signed(log.checkpoint(size), node)
    cosigned = cosign(note.text, watching.files.key, watching.clock.now(), watching.files.sign)
    memory = watching.files.load("g1")
    watching.files.accept(memory, Note(note.text, (*note.signatures, cosigned)))
    memory.nodes[node], memory.newest = (
        LastShown(format_note(note)),
        Newest(size, watching.clock.now(), 100),
    )
    watching.files.remember(memory)


@pytest.mark.parametrize("size", [5, 9])
def test_a_directory_that_was_poisoned_before_has_a_way_back(watching: Watching, size: int) -> None:
    """The finding names the file to remove; then the witness goes on from what a quorum has
    signed."""
    watching.show(4)
    watching.round()
    accepted_before_quorums(watching, log_of(9, changed=(4,)), size, "n1")
    watching.show(5)
    findings = watching.round()
    assert {(each.kind, each.node) for each in findings} >= {
        (FORK, "n2"),
        (FORK, "n3"),
        (UNPROVEN, "all"),
    }
    (weak,) = (each for each in findings if each.node == "all")
    path = watching.files.directory / f"groups/g1/{size:020d}.checkpoint"
    assert weak.text.endswith(
        f"signed by n1 alone; if it is false (a stolen key), stop the witness and remove {path}"
    )
    path.unlink()
    assert watching.kinds() == []
    assert sorted(watching.accepted()) == [4, 5]


def test_an_accepted_tree_of_one_node_is_confirmed_by_the_others(watching: Watching) -> None:
    """An honest directory of an earlier version, in which one node was asked before the others were
    as far."""
    watching.show(4)
    watching.round()
    accepted_before_quorums(watching, HONEST, 5, "n1")
    watching.show(5, "n1")
    before = watching.accepted()[5]
    assert watching.kinds() == [(UNPROVEN, "n1"), (UNPROVEN, "all")]
    assert watching.accepted()[5] == before, "what a minority signed is not cosigned anew"
    watching.show(5)
    assert watching.kinds() == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 200])
def test_names_of_the_cluster_are_no_paths(
    watching: Watching, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for group in (Group(name, NODES, 1), Group("g1", (name,), 1)):
        monkeypatch.setattr(watching.cluster, "groups", lambda group=group: [group])
        assert watching.kinds() == [(UNPROVEN, "all")]


@pytest.mark.verify
def test_interrupted_anywhere_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before or after every single write, in any of three rounds: the next round ends as an
    undisturbed witness does."""

    def story(directory: Path, cut: int) -> tuple[bool, dict[int, str]]:
        writes = 0

        def write(path: Path, content: bytes, mode: int = 0o640) -> None:
            nonlocal writes
            writes += 1
            if writes == cut:
                raise KeyboardInterrupt
            real(path, content, mode)
            if -writes == cut:
                raise KeyboardInterrupt

        real, sizes, done, cut_short = witness_files._write, [3, 5, 8], 0, False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(witness_files, "_write", write)
            clock = FakeClock()
            while done < len(sizes):
                try:
                    with WitnessFiles.open(directory, "w") as files:
                        watching = Watching(files, clock=clock)
                        watching.show(sizes[done])
                        assert watching.kinds() == []
                        done += 1
                except KeyboardInterrupt:
                    cut_short = True
        with WitnessFiles.open(directory, "w") as files:
            memory = files.load("g1")
            assert set(memory.nodes) == set(NODES)
            return cut_short, {size: note.text for size, note in memory.accepted.items()}

    undisturbed = story(tmp_path / "0", 0)[1]
    assert sorted(undisturbed) == [3, 5, 8]
    for sign in (1, -1):
        cut = 1
        while True:
            cut_short, found = story(tmp_path / f"{sign * cut}", sign * cut)
            if not cut_short:
                break
            assert found == undisturbed
            cut += 1
        assert cut > 8


def test_one_process_uses_a_directory(watching: Watching) -> None:
    with (
        pytest.raises(BadArgument, match="another process uses"),
        WitnessFiles.open(watching.files.directory, "w"),
    ):
        pass


def test_the_key_stays_and_is_secret(tmp_path: Path) -> None:
    """Made once, with its first name, readable by its owner alone."""
    with WitnessFiles.open(tmp_path / "w", "first") as files:
        key = files.key
    with WitnessFiles.open(tmp_path / "w", "second") as files:
        assert files.key == key and key.name == "first"
    assert (tmp_path / "w/key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "w/key.pub").read_text() == f"{key}\n"
    with (
        pytest.raises(BadArgument, match="the name of a key"),
        WitnessFiles.open(tmp_path / "x", "a name"),
    ):
        pass


@pytest.mark.parametrize("damage", ["key", "checkpoint", "size", "nodes", "digit", "log"])
def test_a_damaged_directory_is_refused(tmp_path: Path, damage: str) -> None:
    """It is the memory of the witness: it does not go on without it."""
    with WitnessFiles.open(tmp_path, "w") as files:
        Watching(files).round()
    place = tmp_path / "groups/g1"
    (checkpoint,) = place.glob("*.checkpoint")
    if damage == "key":
        (tmp_path / "key").write_text("PRIVATE+KEY+w+00000000+AAAA\n")
    elif damage == "checkpoint":
        checkpoint.write_text("x")
    elif damage == "size":
        checkpoint.rename(place / f"{4:020d}.checkpoint")
    elif damage == "nodes":
        (place / "nodes.json").write_text("[]")
    elif damage == "digit":
        kept = json.loads((place / "nodes.json").read_text())
        kept["newest"]["commit_index"] ^= 1
        (place / "nodes.json").write_text(json.dumps(kept))
    else:
        other = replace(HONEST.checkpoint(4), log=replace(LOG, log_id="x"))
        (place / f"{4:020d}.checkpoint").write_text(format_note(signed(other)))
    with pytest.raises(Unreadable, match="is damaged"), WitnessFiles.open(tmp_path, "w") as files:
        Watching(files).round()


def test_a_false_signature_does_not_count(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(broker_group: str, node: str) -> str:
        text = HONEST.checkpoint(3).text()
        return format_note(Note(text, (sign_note(text, key_of(node), private_key("thief").sign),)))

    monkeypatch.setattr(watching.cluster, "checkpoint", forged)
    assert watching.kinds() == [(UNPROVEN, node) for node in NODES]


def test_witness_file_states_the_checkpoints_of_nodes(watching: Watching) -> None:
    watching.round()
    value = json.loads((watching.files.directory / "groups/g1/nodes.json").read_text())
    assert value["newest"] == {"size": 3, "since": 1_800_000_000, "commit_index": 100}


def test_a_file_is_durable_before_its_name_and_the_name_before_the_next_step(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sync of the content, the name, sync of the directory: for every file of a round, one after
    the other."""
    events: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(path: Path, target: Path) -> None:
        events.append(("name", str(target)))
        rename(path, target)

    watching.round()  # makes the directories
    watching.show(5)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    watching.round()
    names = [at for at, (what, _) in enumerate(events) if what == "name"]
    # the checkpoint as three nodes show it, and nodes.json
    assert len(names) == 2 and len(events) == 3 * len(names)
    for at in names:
        path = Path(events[at][1])
        assert events[at - 1 : at + 2 : 2] == [
            ("sync", str(part_of(path))),
            ("sync", str(path.parent)),
        ]
