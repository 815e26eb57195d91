"""The command `ledgermq promote-observer`: its explanation, question and output.

`storage/group/new_cluster.py` changes a group, `controller/beginning_anew.py` the metadata. The
metadata comes first: after an interrupted run the groups are still found as not promoted.

Exit status: 0 done, 1 damaged or unreadable, or the question was answered with no, 4 refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from ledgermq.node.controller import beginning_anew
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.cli.backup_commands import allow_open_files
from ledgermq.storage.cli.recover_commands import ask, begin_groups, groups_in, stopped_node
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.new_cluster import Loss, iso, kept_words, lost_words, survey
from ledgermq.storage.state.identity import read_node


@click.command("promote-observer")
@click.argument("group", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Every broker group of which this node is an observer."
)
@click.option("--data", required=True, help="The node directory of the stopped observer.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--json", "as_object", is_flag=True, help="Print one JSON object on stdout instead of text."
)
def promote_observer(group: str | None, every: bool, data: str, yes: bool, as_object: bool) -> None:
    """Let an observer continue alone, after the site of its broker group GROUP was lost for good.

    The node must be stopped. Its log continues under a new log id with this node as the only voter.
    Entries that the leader had when the observer last heard from it, and that this log lacks, are
    lost; the command reports them in entries and in time. It is unknown what the leader stored
    after that. Both are recorded in the log and in recovery.json. From then on, replicas of the
    lost site are refused by their log id. Once this directory has no group left that is only
    observed, this node also decides the cluster's metadata alone. Repeat an interrupted run. Exit
    status: 0 done, 1 damaged or unreadable, or the question was answered with no, 4 refused.

    \b
    Examples:
      ledgermq promote-observer --all --data /var/lib/ledgermq
      ledgermq promote-observer g1 --data /var/lib/ledgermq --yes --json
    """
    if every == (group is not None):
        raise click.UsageError("give either a broker group GROUP or --all")
    allow_open_files()
    directory = os.path.abspath(data)
    with stopped_node(directory) as disk:
        found = read_node(disk, directory)
        assert found is not None
        surveys = _surveys(disk, directory, group)
        left = _observed_still(disk, directory, set(surveys))
        given_up = None if left else _lost_voters(disk, directory, found.node)
        now_ms = time.time_ns() // 1_000_000
        for loss, begun in surveys.values():
            print(_explain(loss, begun, now_ms), file=sys.stderr, flush=True)
        if given_up is not None:
            gone = ", ".join(given_up) or "none"
            print(
                f"cluster metadata: decided by {found.node} alone from now on; given up: {gone}",
                file=sys.stderr,
                flush=True,
            )
        ask(yes=yes)
        if given_up is not None:
            beginning_anew.begin_alone(disk, f"{directory}/controller", found.node)
        notes = begin_groups(disk, directory, surveys)
    _report(directory, notes, given_up is not None, left, as_object)


def _surveys(
    disk: RealDisk, directory: str, only: str | None
) -> dict[str, tuple[Loss, str | None]]:
    """The survey of the given group, or of every group that this node only observes. Raises Refused
    if there are none."""
    groups = groups_in(disk, directory)
    if only is not None:
        if only not in groups:
            raise Refused(
                f"{directory} holds no replica of broker group {only}",
                f"it holds {', '.join(groups) or 'none'}; check --data",
            )
        return {only: survey(disk, f"{directory}/{only}", observer=True)}
    found = {}
    for name in groups:
        try:
            found[name] = survey(disk, f"{directory}/{name}", observer=True)
        except Refused:
            # The node votes in this group, so it is not meant.
            continue
    if not found:
        raise Refused(
            f"{directory} is not the directory of an observer",
            "to begin anew from a voting replica, use: ledgermq recover",
        )
    return found


def _observed_still(disk: RealDisk, directory: str, chosen: set[str]) -> list[str]:
    """The groups of this directory that the run does not change and that this node only
    observes."""
    left = []
    for name in groups_in(disk, directory):
        if name not in chosen:
            try:
                survey(disk, f"{directory}/{name}", observer=True)
            except Refused:
                continue
            left.append(name)
    return left


def _lost_voters(disk: RealDisk, directory: str, node: str) -> tuple[str, ...] | None:
    """The former controller voters, if this node is to decide the metadata alone; None if it votes
    with others, or has no metadata."""
    voters = beginning_anew.votes_of(disk, f"{directory}/controller")
    if voters is None or (node in voters and voters != (node,)):
        return None
    return tuple(name for name in voters if name != node)


def _explain(loss: Loss, begun: str | None, now_ms: int) -> str:
    again = "" if begun is None else "  An interrupted promotion is finished.\n"
    stored = "" if loss.last_store_ms is None else f", stored {iso(loss.last_store_ms)}"
    unknown = (
        "It is unknown what the lost site stored after that,"
        f" {max(0, now_ms - int(loss.heard['heard_ms'])) / 1000:.1f} s ago."
        if loss.heard is not None
        else "It is unknown what the lost site stored that is not here."
    )
    lost = lost_words(loss)
    return (
        f"broker group {loss.group}, from observer {loss.node}:\n{again}  The log continues behind"
        f" entry {loss.index} of term {loss.term} (chain {loss.chain_crc:08x}){stored}.\n "
        f" {kept_words(loss)}\n  {lost[:1].upper()}{lost[1:]}.\n  {unknown}\n  Given up:"
        f" {', '.join(loss.given_up) or 'none'}.\n  Log {loss.former_log_id} ends here; replicas"
        " that still have it are refused permanently."
    )


def _report(
    directory: str,
    notes: dict[str, dict[str, Any]],
    metadata: bool,
    left: list[str],
    as_object: bool,
) -> None:
    if as_object:
        print(
            json.dumps(
                {
                    "v": 1,
                    "directory": directory,
                    "groups": notes,
                    "metadata": metadata,
                    "observed_still": left,
                }
            ),
            flush=True,
        )
        return
    for name, note in notes.items():
        end, lost = note["end"], note["loss"]["lost"]
        known = f"{lost['entries']} entries, {lost['committed']} of them committed, {lost['ms']} ms"
        known = "unknown" if lost["entries"] is None else known
        print(
            f"promoted: broker group {name}, log {note['log_id']}, from entry {end['index']} of"
            f" term {end['term']} on; lost: {known}"
        )
    if left:
        print(f"still observed: {', '.join(left)}")
    print(
        "next: keep the lost site from coming back to clients, start this node, then add further"
        " members (docs/observers.md)",
        flush=True,
    )
