"""The command `witness`: arguments, the cluster and the clock as the witness asks them, output and
exit statuses."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import DURATION, cluster_command
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.proofs.files import read_keys
from ledgermq.client.proofs.ports import Group
from ledgermq.client.proofs.proof_fetching import (
    checkpoint_of,
    consistency,
    each_alone,
    replicas_in,
)
from ledgermq.client.proofs.witness import UNPROVEN, Finding, Limits, Witness
from ledgermq.client.proofs.witness_files import GroupMemory, WitnessFiles
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import ExitCode

_FILE = click.Path(path_type=Path, dir_okay=False)


class RunningCluster:
    """The calls that a witness makes: to the cluster, and to each of its given endpoints alone."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connection, *self._each = connections

    def groups(self) -> Sequence[Group]:
        status = ask(self._connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
        return [
            Group(group.group, tuple(replicas_in(group)), group.commit_index)
            for group in status.groups
        ]

    def checkpoint(self, broker_group: str, node: str) -> str:
        return checkpoint_of(self._connection, broker_group, node)

    def paths(self, broker_group: str, old_size: int, new_size: int) -> Sequence[tuple[bytes, ...]]:
        found: list[tuple[bytes, ...]] = []
        wrong: Refused | Unreachable | None = None
        for one in self._each:
            try:
                found.append(consistency(one, broker_group, old_size, new_size))
            except (Refused, Unreachable) as error:
                wrong = error
        if not found and wrong is not None:
            raise wrong
        return found


class WallClock:
    """The clock of this machine."""

    def now(self) -> int:
        return int(time.time())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Reporter:
    """Prints what changed since the last round, keeps evidence, and knows the exit status of all
    that was found."""

    def __init__(self, files: WitnessFiles) -> None:
        self._files = files
        self._lines: dict[str, str] = {}
        self._told: set[tuple[str, str, str]] = set()
        self.status = ExitCode.OK

    def tell(self, memories: Sequence[GroupMemory], findings: Sequence[Finding]) -> None:
        for memory in memories:
            latest = memory.latest
            line = (
                f"{memory.group}: no sealed file yet"
                if latest is None
                else f"{latest.log}: {latest.size} sealed files, cosigned"
            )
            if self._lines.get(memory.group) != line:
                self._lines[memory.group] = line
                print(line, flush=True)
        told = set()
        for finding in findings:
            where = (
                self._files.keep_evidence(
                    finding.kind, finding.broker_group, finding.node, finding.evidence
                )
                if finding.evidence
                else None
            )
            self.status = (
                ExitCode.FAILED
                if finding.alarm
                else max(self.status, ExitCode.INCOMPLETE, key=_SEVERITY.index)
            )
            told.add((finding.kind, finding.broker_group, finding.node))
            if (finding.kind, finding.broker_group, finding.node) not in self._told:
                seen = "" if where is None else f"; evidence: {where}"
                print(
                    f"{finding.kind.upper()}: {finding.broker_group}: {finding.text}{seen}",
                    file=sys.stderr,
                    flush=True,
                )
        self._told = told


_SEVERITY = (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.FAILED)


@click.command()
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of this witness.",
)
@click.option(
    "--keys",
    type=_FILE,
    required=True,
    help="File of the nodes' verifier keys, one a line (ledgermq checkpoint keys).",
)
@click.option(
    "--name",
    "key_name",
    show_default="ledgermq-witness/HOST",
    help="Name of the key of this witness, when it is created.",
)
@click.option("--once", is_flag=True, help="One round, for cron.")
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Time between two rounds.",
)
@click.option(
    "--patience",
    "patience_s",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Time a restarted node may show less than before, or a node more than the others.",
)
@click.option(
    "--stale-after",
    "stale_s",
    type=DURATION,
    default="24h",
    show_default=True,
    help=(
        "Alarm if nothing new is shown for this long although messages are committed: longer than a"
        " log file takes to fill."
    ),
)
@cluster_command
def witness(
    connection: Connection,
    directory: Path,
    keys: Path,
    key_name: str | None,
    once: bool,
    every_s: float,
    patience_s: float,
    stale_s: float,
) -> None:
    """Follow the checkpoints of a cluster, cosign them, and report when its logs contradict what
    was seen before.

    Give the endpoints of all nodes: a node that lies is found by what the others say. A tree is
    accepted if a majority of the group's replicas in the key file has signed it; one that fewer
    sign for longer than --patience is reported. Run it on a machine that the cluster's operators do
    not control, and keep DIR. Every accepted checkpoint is a file there, cosigned; evidence of a
    contradiction is in DIR/evidence. The verifier key of the witness is in DIR/key.pub.

    \b
    Examples:
      ledgermq witness --dir witness --keys keys
      ledgermq witness --dir witness --keys keys --once

    Exit status, at the end of the round or after Ctrl-C: 0 nothing found; 1 a fork, a roll-back, a
    withheld tail or a replaced log; 2 some node did not show a checkpoint that counts, or too few
    have signed it; 3 no node answers; 64 wrong arguments; 65 a file is damaged.
    """
    trusted = read_keys(keys, None)
    clock = WallClock()
    with (
        WitnessFiles.open(
            directory, key_name or f"ledgermq-witness/{socket.gethostname()}"
        ) as files,
        each_alone(connection) as connections,
    ):
        follower = Witness(
            RunningCluster(connections), files, trusted, clock, Limits(patience_s, stale_s)
        )
        reporter = Reporter(files)
        if once:
            reporter.tell(*follower.round())
        else:
            with suppress(KeyboardInterrupt):
                while True:
                    try:
                        reporter.tell(*follower.round())
                    except Unreachable as error:
                        reporter.tell(
                            [], [Finding(UNPROVEN, "-", "all", f"no node answers: {error}")]
                        )
                    clock.sleep(every_s)
    raise SystemExit(reporter.status)
