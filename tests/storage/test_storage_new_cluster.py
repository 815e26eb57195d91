"""`ledgermq recover --force-new-cluster`: what survives, what is refused afterwards, what is
written down, and a crash at any point."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ledgermq import cli
from ledgermq.audit.run.jobs import audit
from ledgermq.node.process import observer_commands
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.entries.layout import HEADER_BYTES, record_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.names import RAFT_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.types import HardState, Identity
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.backups.backup import backup
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.backups.restore import restore
from ledgermq.storage.cli import recover_commands
from ledgermq.storage.cli.doctor import examine
from ledgermq.storage.cli.doctor_commands import as_text
from ledgermq.storage.cli.doctor_facts import look_at_node, read_facts
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import LogDamaged, Unusable
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk
from ledgermq.storage.group.new_cluster import begin_anew, survey
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.state.heard import HEARD_FILE, LastHeard, heard_value
from ledgermq.storage.state.identity import NodeIdentity, write_node
from ledgermq.storage.state.recovered import read_recovery
from tests.storage.kill_points import DIVISIBLE, KillDisk, after_power_cut
from tests.storage.log_material import CLUSTER, FILE_BYTES, HOST, make_batch, make_identity
from tests.terminal import Typed

ME = make_identity()
VOTERS = ("n1", "n2", "n3")
NEW = "11111111-2222-4333-8444-555555555555"
CREATED = 1_700_000_000_000
MESSAGES = 40


def filled(
    disk: Disk,
    root: str,
    me: Identity = ME,
    *,
    queued: bool = False,
    observers: tuple[str, ...] = (),
) -> None:
    """A cleanly stopped replica of a bootstrapped group with messages in several files."""
    disk.mkdirs(root.rpartition("/")[0])
    GroupStore.create(disk, root, me)
    store = GroupStore.open(disk, root, me)
    first = encode_entries([control.draft(control.Membership(VOTERS), CREATED)])
    store.log.append_leader(0, first, np.zeros(1, np.int64), CREATED, bytes(8), control=True)
    store.hard_state.save(HardState(3, "n2"))
    start = encode_entries([control.draft(control.TermStart(3, "n2"), CREATED)])
    store.log.append_leader(3, start, np.ones(1, np.int64), CREATED, HOST, control=True)
    if observers:
        changed = control.Membership(VOTERS, observers, reason="added", observers=observers)
        batch = encode_entries([control.draft(changed, CREATED)])
        store.log.append_leader(3, batch, np.full(1, 2), CREATED, HOST, control=True)
    store.log.append_leader(3, make_batch(MESSAGES), np.arange(MESSAGES), CREATED + 5, HOST)
    if queued:
        store.queues.start({}, 0)
        index = 0
        while index <= store.log.end_index:
            entries = store.log.read(index, 1 << 20)
            store.queues.append(record_columns(entries))
            index = entries.last_index + 1
    store.write_checkpoints(store.log.end_index - 4, StoreCheckpoint())
    store.close()


def recover(disk: Disk, root: str, log_id: str = NEW) -> dict[str, object]:
    loss, begun = survey(disk, root)
    return begin_anew(disk, root, loss, log_id=begun or log_id, now_ms=CREATED + 1000)


def check(disk: Disk, root: str, vote: str | None = "n1") -> None:
    """The whole log is there, and behind it one membership entry that names the survivor alone."""
    store = GroupStore.open(disk, root, ME)
    log = store.log
    assert log.fenced is None
    assert (store.identity.log_id, log.end_index, log.end_term) == (NEW, MESSAGES + 2, 4)
    assert log.chain_at(-1) == chain_seed(ME.log_id) != chain_seed(NEW)
    last = log.read(log.end_index, 1)
    record = decode_record(last.data[HEADER_BYTES:])
    assert (
        record.topic == RAFT_TOPIC
        and record.queue_offset == 2
        and record.store_ms == CREATED + 1000
    )
    members = control.decode(control.Membership.TAG, record.body)
    assert isinstance(members, control.Membership)
    assert (members.voters, members.learners, members.incarnations) == (
        ("n1",),
        (),
        {"n1": ME.incarnation},
    )
    for told in (
        ME.log_id,
        NEW,
        "n2, n3",
        f"entry {MESSAGES + 1} of term 3",
        "known committed up to 37",
    ):
        assert told in members.reason
    assert store.hard_state.value.term == 4 and store.hard_state.value.vote == vote
    store.close()
    note = read_recovery(disk, root)
    assert note is not None and (note["state"], note["log_id"], note["former"]) == (
        "done",
        NEW,
        [ME.log_id],
    )
    assert (
        note["loss"]["given_up"] == ["n2", "n3"] and note["loss"]["committed_index"] == MESSAGES - 3
    )


def test_the_log_goes_on_under_a_new_id_and_the_old_replicas_are_refused(tmp_path: Path) -> None:
    """The entries stay with their chain; the same configuration opens the log; replicas with the
    old log are refused."""
    disk, root = RealDisk(), str(tmp_path / "n1/g1")
    filled(disk, root)
    recover(disk, root)
    check(disk, root)
    other = str(tmp_path / "n2/g1")
    filled(disk, other, replace(ME, replica="n2"))
    found = identities.read_identity(disk, other)
    assert found is not None and found.log_id == ME.log_id
    with pytest.raises(Unusable, match="belongs to log"):
        GroupStore.open(disk, other, replace(ME, replica="n2", log_id=NEW))


def test_a_recovered_directory_passes_the_audit_on_its_own(tmp_path: Path) -> None:
    """There is one voter then, and no replica to compare it with. The chain begins where the record
    says; without the record, the audit cannot explain the beginning."""
    disk, directory = RealDisk(), str(tmp_path / "n1")
    filled(disk, f"{directory}/g1", queued=True)
    write_node(disk, directory, NodeIdentity(CLUSTER, "n1", CREATED))
    before = audit([directory])
    assert (before.verdict, before.findings) == ("INCOMPLETE", [])
    recover(disk, f"{directory}/g1")
    result = audit([directory], deep=True)
    assert (result.findings, set(result.replica_verdicts.values())) == ([], {"PASS"})
    assert (result.verdict, result.reasons) == ("PASS", [])
    assert (
        "group g1: its only replica was checked by itself, because there is no other to compare it"
        " with" in result.notes
    )
    (tmp_path / "n1/g1/recovery.json").unlink()
    assert [finding.flaw.rule for finding in audit([directory]).findings] == ["identity.agree"]


def test_a_recovered_group_is_backed_up_and_restored_with_its_record(tmp_path: Path) -> None:
    """The copy opens under the same configuration, with the chain that begins where the record
    says; the doctor says what happened."""
    disk, directory = RealDisk(), str(tmp_path / "n1")
    filled(disk, f"{directory}/g1")
    write_node(disk, directory, NodeIdentity(CLUSTER, "n1", CREATED))
    disk.mkdirs(f"{directory}/controller")
    recover(disk, f"{directory}/g1")
    store = GroupStore.open(disk, f"{directory}/g1", ME)
    store.write_checkpoints(store.log.end_index, StoreCheckpoint())
    store.close()
    ids = iter(f"{number}2345678-2222-4333-8444-555555555555" for number in range(1, 9))
    copied, restored = str(tmp_path / "backup"), str(tmp_path / "again")
    backup(
        disk,
        directory,
        copied,
        program="1",
        made_ms=1,
        mint=ids.__next__,
        progress=lambda done, total: None,
    )
    restore(disk, copied, restored, node=None, mint=ids.__next__, progress=lambda done, total: None)
    check(disk, f"{restored}/g1", vote=None)
    node = look_at_node(restored)
    assert (
        node is not None
        and node.groups[0].recovery
        == f"restarted behind entry 41 of log {ME.log_id}; abandoned: n2, n3"
    )
    assert "restarted behind" in as_text(restored, examine(read_facts(restored), None), node, None)


def test_it_can_happen_twice(tmp_path: Path) -> None:
    """The record remembers every log id that led here, so that the configuration still fits."""
    disk, root = RealDisk(), str(tmp_path / "n1/g1")
    filled(disk, root)
    recover(disk, root)
    note = recover(disk, root, "99999999-2222-4333-8444-555555555555")
    assert note["former"] == [ME.log_id, NEW]
    store = GroupStore.open(disk, root, ME)
    assert (store.log.end_index, store.log.end_term, store.identity.log_id) == (
        MESSAGES + 3,
        5,
        note["log_id"],
    )
    store.close()


def test_a_damaged_or_empty_log_is_no_survivor(tmp_path: Path) -> None:
    """No new cluster is created from an unverified log, and nothing is changed."""
    disk, root = RealDisk(), str(tmp_path / "n1/g1")
    filled(disk, root)
    (tmp_path / f"n1/g1/dledger-n1/data/{FILE_BYTES:020d}").unlink()
    with pytest.raises(LogDamaged, match="use another survivor"):
        survey(disk, root)
    empty = str(tmp_path / "n3/g1")
    disk.mkdirs(str(tmp_path / "n3"))
    GroupStore.create(disk, empty, ME)
    for directory in (empty, str(tmp_path / "nothing")):
        with pytest.raises(Refused):
            survey(disk, directory)


def test_a_crash_at_any_point_is_finished_by_the_same_command() -> None:
    """Before the intent is durable the old directory opens; then nothing does until the command is
    repeated; the entry is there once."""
    root = "/data/n1/g1"
    base = ForgetfulDisk()
    base.any_names = True
    filled(base, root)

    def attempt(at: int, half: bool) -> tuple[KillDisk, bool]:
        disk = KillDisk(copy.deepcopy(base), at, half=half)
        try:
            recover(disk, root)
        except Killed:
            return disk, False
        return disk, True

    whole, done = attempt(-1, False)
    assert done
    states = set()
    for at, (name, _) in enumerate(whole.operations):
        for half in (False, True) if name in DIVISIBLE else (False,):
            killed, done = attempt(at, half)
            assert not done
            for cut in (None, at):
                disk = killed.disk if cut is None else after_power_cut(killed.disk, at)
                disk = copy.deepcopy(disk)
                note = read_recovery(disk, root)
                states.add(None if note is None else note["state"])
                if note is not None and note["state"] != "done":
                    with pytest.raises(Unusable, match="run the same"):
                        GroupStore.open(disk, root, ME)
                if note is None or note["state"] != "done":
                    recover(disk, root)
                check(disk, root)
    assert states >= {None, "begun", "appended"}


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(["recover", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_command_explains_asks_and_tells(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --yes and without a terminal nothing happens, nor after a no; with --yes, the outcome
    is printed."""
    disk, directory = RealDisk(), str(tmp_path / "n1")
    filled(disk, f"{directory}/g1")
    write_node(disk, directory, NodeIdentity(CLUSTER, "n1", CREATED))
    code, _, err = command(capfd, "--data", directory)
    assert code == 64 and "--force-new-cluster" in err
    code, _, err = command(capfd, "--force-new-cluster", "--data", directory)
    assert (
        code == 4 and "Abandoned: n2, n3" in err and "entry 41 of term 3" in err and "--yes" in err
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Typed("n\n"))
        code, out, err = command(capfd, "--force-new-cluster", "--data", directory)
    assert (code, out) == (1, "") and err.splitlines()[-1].endswith(
        "nothing was changed; bring the other replicas back instead, if possible"
    )
    assert read_recovery(disk, f"{directory}/g1") is None
    lock = DirectoryLock(directory)
    code, _, err = command(capfd, "--force-new-cluster", "--yes", "--data", directory)
    lock.close()
    assert code == 4 and "stop the node first" in err
    code, _, err = command(
        capfd, "--force-new-cluster", "--yes", "--data", directory, "--group", "g9"
    )
    assert code == 4 and "g9" in err
    code, out, _ = command(capfd, "--force-new-cluster", "--yes", "--json", "--data", directory)
    told = json.loads(out)
    assert (
        code == 0
        and told["groups"]["g1"]["state"] == "done"
        and told["groups"]["g1"]["former"] == [ME.log_id]
    )
    assert read_recovery(disk, f"{directory}/g1") == told["groups"]["g1"]
    assert command(capfd, "--force-new-cluster", "--yes", "--data", str(tmp_path))[0] == 4


@pytest.mark.parametrize("observer", [False, True])
def test_recovery_report_states_the_known_commit(
    observer: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Up to an entry, or nothing: a replica that stopped before it noted a commit index."""
    disk, root = RealDisk(), str(tmp_path / "n4/g1")
    (observer_of if observer else filled)(disk, root)
    loss = survey(disk, root, observer=observer)[0]
    kept = "are kept, and count as committed from now on."
    sentences = {
        loss.committed_index: (
            f"Entries up to {loss.committed_index} are known to be committed; later ones {kept}"
        ),
        -1: f"No entry is known to be committed; all {kept}",
    }
    for known, sentence in sentences.items():
        one = replace(loss, committed_index=known)
        text = (
            observer_commands._explain(one, None, CREATED)
            if observer
            else recover_commands._explain(one, None)
        )
        assert sentence in " ".join(text.split())


# -- an observer goes on alone

OBSERVER = replace(ME, replica="n4")
HEARD = LastHeard("n2", 3, MESSAGES + 12, MESSAGES + 9, CREATED + 4_005)
"""The leader's log went ten entries further than the observer's, which ends with MESSAGES + 2;
seven of those were committed."""


def observer_of(disk: Disk, root: str, heard: LastHeard | None = HEARD) -> None:
    filled(disk, root, OBSERVER, observers=("n4",))
    if heard is not None:
        sealed_json.write(disk, f"{root}/state/{HEARD_FILE}", heard_value(OBSERVER.log_id, heard))


def test_recovered_observer_states_its_loss(tmp_path: Path) -> None:
    """In entries and in time, by the word of the leader it noted last; in the log and in
    recovery.json."""
    disk, root = RealDisk(), str(tmp_path / "n4/g1")
    observer_of(disk, root)
    loss, _ = survey(disk, root, observer=True)
    assert (loss.lost_entries, loss.lost_committed, loss.lost_ms) == (10, 7, 4_000)
    note = begin_anew(disk, root, loss, log_id=NEW, now_ms=CREATED + 9_000)
    assert note["loss"]["lost"] == {"entries": 10, "committed": 7, "ms": 4_000} and note["loss"][
        "given_up"
    ] == ["n1", "n2", "n3"]
    store = GroupStore.open(disk, root, replace(OBSERVER, log_id=NEW))
    record = decode_record(store.log.read(store.log.end_index, 1).data[HEADER_BYTES:])
    members = control.decode(control.Membership.TAG, record.body)
    assert isinstance(members, control.Membership) and (members.voters, members.observers) == (
        ("n4",),
        (),
    )
    assert (
        "promote-observer, lost for certain: 10 entries (7 of them committed) that leader n2 had at"
        in members.reason
    )
    store.close()
    with pytest.raises(Refused, match="is not an observer"):
        survey(disk, root, observer=True)


def test_loss_of_an_observer_without_a_note_is_unknown(tmp_path: Path) -> None:
    """No note, a damaged one, or one of another log: the loss is unknown, never zero. A leader that
    had no more: nothing is lost of it."""
    disk = RealDisk()
    for number, spoil in enumerate(("nothing", "damaged", "foreign")):
        root = str(tmp_path / f"{number}/g1")
        observer_of(disk, root, None)
        if spoil == "damaged":
            (tmp_path / f"{number}/g1/state/{HEARD_FILE}").write_bytes(b"{}")
        elif spoil == "foreign":
            sealed_json.write(disk, f"{root}/state/{HEARD_FILE}", heard_value("another", HEARD))
        loss, _ = survey(disk, root, observer=True)
        assert (loss.lost_entries, loss.lost_committed, loss.lost_ms) == (None, None, None), spoil
    root = str(tmp_path / "same/g1")
    observer_of(disk, root, replace(HEARD, end_index=MESSAGES + 2, commit_index=MESSAGES + 2))
    loss, _ = survey(disk, root, observer=True)
    assert (loss.lost_entries, loss.lost_committed, loss.lost_ms) == (0, 0, 0)


def test_voter_is_refused_as_an_observer(tmp_path: Path) -> None:
    """The refusal names the right command; nothing is changed."""
    disk, root = RealDisk(), str(tmp_path / "n1/g1")
    filled(disk, root)
    with pytest.raises(Refused, match="n1 is not an observer of broker group"):
        survey(disk, root, observer=True)
    assert read_recovery(disk, root) is None


def promote(directory: Path, *options: str) -> int:
    return cli.run(["promote-observer", *options, "--data", str(directory)])


def test_the_command_promotes_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command explains itself on stderr and prints one line per group on stdout, or one object
    with --json. Without a terminal it requires --yes."""
    disk, directory = RealDisk(), tmp_path / "n4"
    observer_of(disk, f"{directory}/g1")
    write_node(disk, str(directory), NodeIdentity(CLUSTER, "n4", CREATED))
    assert promote(directory, "--all") == 4
    said = capfd.readouterr()
    assert (
        "10 entries (7 of them committed)" in said.err
        and "unknown what the lost site stored" in said.err
        and "add --yes" in said.err
    )
    assert (
        promote(directory, "g2", "--yes") == 4
        and promote(directory, "g1", "--all") == 64
        and promote(directory) == 64
    )
    capfd.readouterr()
    assert promote(directory, "g1", "--yes", "--json") == 0
    told = json.loads(capfd.readouterr().out)
    assert (
        told["groups"]["g1"]["state"] == "done"
        and told["observed_still"] == []
        and told["metadata"] is False
    )
    assert promote(directory, "--all", "--yes") == 4
    assert "is not the directory of an observer" in capfd.readouterr().err
