"""The command `ledgermq repair`: combines the plan of `audit` with the work of `storage` on stopped
nodes and of running nodes themselves, audits again, and reports what is left. No decision about
bytes is made here.

Exit status: 0 repaired and audited again, 1 damage remains, 2 undecidable ranges remain, 4 refused.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click

from ledgermq.audit.cli.report import as_json, for_repair
from ledgermq.audit.reading.node_paths import NodeLost, is_remote, split
from ledgermq.audit.reading.remote import access, connection_to
from ledgermq.audit.repairs.plan import Moved, make_plan
from ledgermq.audit.repairs.told import NoFindings, Report, read_report, report_of
from ledgermq.audit.rules import UNDECIDABLE, Finding
from ledgermq.audit.run.jobs import Audit, audit, audit_running
from ledgermq.audit.run.running import RunningCluster
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.errors import ClusterError
from ledgermq.node.broker.rederiving import make_again
from ledgermq.proto import admin_pb2
from ledgermq.proto.records.control import UnknownControlRecord
from ledgermq.proto.records.repair_plan import DirectoryRepair, Left, Plan, RangeRepair
from ledgermq.proto.status import ExitCode
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.cli.backup_commands import allow_open_files
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk
from ledgermq.storage.repair.repair_log import note
from ledgermq.storage.repair.replacing import carry_out
from ledgermq.storage.state.identity import read_identity

WHOLE_LOG_WITHIN_S = 600.0
AGAIN_S = 0.5
ANSWER_WITHIN_S = 10.0


@click.command()
@click.option(
    "--from-findings",
    "findings",
    required=True,
    metavar="FILE",
    help="Output of `audit --findings DIR` or `audit --json`.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
@click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
def repair(findings: str, dry_run: bool, as_object: bool) -> None:
    """Repair what an audit found damaged, from intact replicas, and audit again.

    For stopped nodes, the audited directories are repaired: damaged log files are recreated beside
    the old ones, verified and exchanged; derived files are rebuilt from the log. Running nodes
    repair their own entries. Bytes without a majority's proof are never changed. Every step is
    recorded in state/repairs of the broker group's directory. Exit status: 0 repaired and audited
    again, 1 damage remains, 2 undecidable ranges remain, 4 refused.

    \b
    Examples:
      ledgermq audit ledgermq-data/n* --findings findings/
      ledgermq repair --from-findings findings/ --dry-run
      ledgermq repair --from-findings findings/
    """
    allow_open_files()
    report = _report(findings)
    with _locked(report.directories):
        plan = _planned(report)
        if dry_run:
            _end(plan, (), dry_run=True, as_object=as_object)
        _explain(plan)
        name = uuid.uuid4().hex[:12]
        failed = [*_mend_directories(plan.directories, name)]
        failed += [left for ranged in plan.ranges if (left := _mend_running(ranged)) is not None]
        results = _audited_again(report, failed)
        hidden = () if failed else _hidden(results, plan)
        if hidden:
            failed += _mend_directories(hidden, name)
            results = _audited_again(report, failed)
        _note_verdict(results, plan, name)
    still = _still(results, plan)
    undecided = [_left(one) for one in still if one.klass == UNDECIDABLE]
    plan = replace(
        plan, directories=(*plan.directories, *hidden), undecided=(*plan.undecided, *undecided)
    )
    _end(
        plan,
        [*failed, *(_left(one) for one in still if one.klass != UNDECIDABLE)],
        dry_run=False,
        as_object=as_object,
    )


def _planned(report: Report) -> Plan:
    try:
        return make_plan(report)
    except Moved as moved:
        raise Refused(str(moved), "audit again, then repair from those findings") from moved
    except NodeLost as lost:
        raise Refused(
            str(lost), "start the node, or audit the directories of stopped nodes"
        ) from lost
    except OSError as error:
        what = (
            f"{error.filename or 'a file of an audited directory'} cannot be read"
            f" ({error.strerror or error})"
        )
        raise Refused(
            what,
            "check the disk, or audit and repair without that directory if a majority of the voters"
            " is left",
        ) from error


def _hidden(results: Sequence[Audit], plan: Plan) -> tuple[DirectoryRepair, ...]:
    """Repairs for what the audit still finds on the repaired replicas. A file derived from damaged
    entries can be judged only after the entries are right."""
    mended = {(one.replica, one.group) for one in plan.directories if one.opens}
    if not any((one.replica, one.group) in mended for one in _still(results, plan)):
        return ()
    further = _planned(_told(results[0]))
    hidden = tuple(one for one in further.directories if (one.replica, one.group) in mended)
    _explain(Plan(hidden))
    return hidden


def _report(path: str) -> Report:
    try:
        found = read_report(path)
    except NoFindings as error:
        raise click.UsageError(
            f"{error}; give the directory of `audit --findings`, or the object of `audit --json`"
        ) from error
    except OSError as error:
        raise click.UsageError(
            f"{path} cannot be read ({error.strerror}); give the output of `ledgermq audit"
            " --findings DIR`"
        ) from error
    if isinstance(found, Report):
        return found
    print(
        f"repair: auditing {', '.join(found)} again: {path} lacks the data for a repair",
        file=sys.stderr,
        flush=True,
    )
    return _told(audit(found))


def _told(result: Audit) -> Report:
    return report_of({**as_json(result), "repair": for_repair(result)})


@contextlib.contextmanager
def _locked(directories: Sequence[str]) -> Iterator[None]:
    """Ensure that no node works on a directory that is read or written."""
    with contextlib.ExitStack() as stack:
        for directory in directories:
            if is_remote(directory):
                continue
            try:
                lock = DirectoryLock(directory)
            except BlockingIOError as error:
                raise Refused(
                    f"another process uses {directory}",
                    "stop the node first, or audit the running cluster",
                ) from error
            except OSError as error:
                raise Refused(
                    f"{directory} cannot be opened ({error.strerror})",
                    "audit again where the directories are",
                ) from error
            stack.callback(lock.close)
        yield


# ---------------------------------------------------------------------------------------------------------------------- doing


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _say(text: str) -> None:
    print(f"repair: {text}", file=sys.stderr, flush=True)


def _mend_directories(repairs: Sequence[DirectoryRepair], name: str) -> Iterator[Left]:
    """Carry out the plan for stopped nodes; a failed repair is reported, and the others continue.
    `name` is that of the repair."""
    disk = RealDisk()
    for one in repairs:
        try:
            carry_out(disk, one, name, _now_ms, _say)
            if not one.opens:
                continue
            found = read_identity(disk, one.root)
            assert found is not None, "its identity was compared a moment ago"
            index = make_again(disk, one.root, found)
            note(disk, one.root, name, _now_ms(), "derived", applied_index=index)
        except (StorageError, UnknownControlRecord) as error:
            yield Left(one.replica, one.group, one.group, str(error))
        except OSError as error:
            yield Left(
                one.replica,
                one.group,
                one.group,
                f"{error.filename or one.root}: {error.strerror or error}; run the repair again",
            )


def _mend_running(ranged: RangeRepair) -> Left | None:
    """Ask the node to repair a range until it has. None if it succeeded."""
    request = admin_pb2.RepairRangeRequest(
        broker_group=ranged.group,
        log_id=ranged.log_id,
        incarnation=ranged.incarnation,
        first_index=ranged.first_index,
        last_index=ranged.last_index,
        whole_log=True,
    )
    what = f"entries {ranged.first_index} to {ranged.last_index}"
    deadline, said = time.monotonic() + WHOLE_LOG_WITHIN_S, ""
    while True:
        try:
            answer = ask(connection_to(ranged.address), request, admin_pb2.RepairRangeResponse)
        except (ClusterError, NodeLost) as error:
            return Left(ranged.replica, ranged.group, ranged.group, f"{what}: {error}")
        if answer.done:
            _say(
                f"{ranged.replica} {ranged.group}:"
                f" {'; '.join(answer.repaired) or f'{what} are whole'}"
            )
            return None
        if time.monotonic() > deadline:
            return Left(
                ranged.replica,
                ranged.group,
                ranged.group,
                f"{what}: not done yet: {answer.waits_for}; run the repair again",
            )
        if answer.waits_for != said:
            said = answer.waits_for
            _say(f"{ranged.replica} {ranged.group}: {said}")
        time.sleep(AGAIN_S)


def _audited_again(report: Report, failed: list[Left]) -> list[Audit]:
    """Audit the same directories and nodes again. An audit that was not possible is added to
    `failed`."""
    _say("auditing again")
    local = [directory for directory in report.directories if not is_remote(directory)]
    nodes = [split(directory)[0] for directory in report.directories if is_remote(directory)]
    results = [audit(local)] if local else []
    try:
        results += [_audit_nodes(nodes)] if nodes else []
    except ClusterError as error:
        failed.append(Left("-", "-", "-", f"the cluster could not be audited again: {error}"))
    return results


def _found(results: Sequence[Audit]) -> list[Finding]:
    return [finding for result in results for finding in result.findings if finding.fails]


def _note_verdict(results: Sequence[Audit], plan: Plan, name: str) -> None:
    for one in plan.directories:
        here = [
            finding.text
            for finding in _found(results)
            if (finding.group, finding.replica) == (one.group, one.replica)
        ]
        note(
            RealDisk(),
            one.root,
            name,
            _now_ms(),
            "audited",
            verdict=results[0].verdict,
            findings=here,
        )


def _still(results: Sequence[Audit], plan: Plan) -> list[Finding]:
    """The audits' findings after the repair, in files that the plan does not report as left."""
    known = {(left.replica, left.file) for left in (*plan.undecided, *plan.remaining)}
    return [
        finding for finding in _found(results) if (finding.replica, finding.flaw.file) not in known
    ]


def _audit_nodes(addresses: Sequence[str]) -> Audit:
    with access().connect(";".join(addresses), ANSWER_WITHIN_S) as connection:
        return audit_running(RunningCluster(connection, ANSWER_WITHIN_S))


def _left(finding: Finding) -> Left:
    flaw = finding.flaw
    return Left(
        finding.replica,
        finding.group,
        flaw.file,
        f"still {finding.klass} (rule {flaw.rule}): {flaw.proof}",
    )


# --------------------------------------------------------------------------------------------------------------------- saying


def _explain(plan: Plan) -> None:
    for line in _explained(plan):
        print(line, file=sys.stderr, flush=True)


def _explained(plan: Plan) -> Iterator[str]:
    for one in plan.directories:
        for file in one.files:
            others = sorted(
                {
                    piece.source
                    for piece in file.pieces
                    if piece.source is not None and not piece.source.startswith(one.root)
                }
            )
            yield (
                f"{one.replica} {one.group}: log file {file.base:020d} is recreated from"
                f" {', '.join(others) or 'its own entries'}"
            )
            yield f"  wrong: {file.why}"
            yield f"  proof: {file.proof}"
        if one.end is not None:
            yield (
                f"{one.replica} {one.group}: its log ends with entry {one.end.index}; its former"
                " content is kept in state/replaced"
            )
        if one.mark_slots:
            yield (
                f"{one.replica} {one.group}: both slots of the synced mark are written, and the"
                " rest of the file is zero"
            )
        if one.hard_state_fill:
            yield (
                f"{one.replica} {one.group}: the slots of the hard state stay, and the rest of the"
                " file is zeroed"
            )
        if one.begin is not None:
            yield (
                f"{one.replica} {one.group}: the begin file says entry {one.begin.index} again,"
                " whose chain CRC continues what it tells"
            )
        if one.snapshot is not None:
            yield f"{one.replica} {one.group}: the snapshot is copied from {one.snapshot}"
        if one.derived:
            yield (
                f"{one.replica} {one.group}: dropped, to be rebuilt from the log:"
                f" {', '.join(one.derived)}"
            )
    for ranged in plan.ranges:
        yield (
            f"{ranged.replica} {ranged.group}: the node repairs entries {ranged.first_index} to"
            f" {ranged.last_index} ({ranged.why})"
        )
    for left in plan.undecided:
        yield f"undecidable: {left.text}"
    for left in plan.remaining:
        yield f"remains: {left.text}"


def _end(plan: Plan, failed: Sequence[Left], *, dry_run: bool, as_object: bool) -> None:
    left = [*plan.remaining, *failed]
    status = ExitCode.FAILED if left else ExitCode.INCOMPLETE if plan.undecided else ExitCode.OK
    words = {
        ExitCode.OK: "would be repaired" if dry_run else "repaired",
        ExitCode.FAILED: "damage remains",
        ExitCode.INCOMPLETE: "undecidable ranges remain",
    }
    if as_object:
        value = {
            "v": 1,
            "dry_run": dry_run,
            "outcome": words[status],
            "directories": [asdict(one) for one in plan.directories],
            "ranges": [asdict(one) for one in plan.ranges],
            "undecided": [asdict(one) for one in plan.undecided],
            "remaining": [asdict(one) for one in left],
        }
        print(json.dumps(value, ensure_ascii=False, default=lambda raw: raw.hex()), flush=True)
    else:
        if dry_run:
            print("\n".join(_explained(plan)) or "nothing is damaged", flush=True)
        for one in failed:
            print(f"remains: {one.text}", flush=True)
        print(f"repair: {words[status]}", flush=True)
    raise SystemExit(status)
