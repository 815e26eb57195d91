"""The command `ledgermq recover`: explanation, confirmation and output. `new_cluster.py` does the
work.

Exit status: 0 done, 1 damaged or unreadable, or the question was answered with no, 4 refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from ledgermq.proto.status import ExitCode
from ledgermq.storage.backups.backup_manifest import BadCopy, Refused, is_backup
from ledgermq.storage.cli.backup_commands import allow_open_files, only_node
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk
from ledgermq.storage.group.new_cluster import Loss, begin_anew, kept_words, survey
from ledgermq.storage.state.identity import IDENTITY_FILE, read_node


@click.command()
@click.option(
    "--force-new-cluster",
    is_flag=True,
    help="Required: confirms that the majority is lost and its data is abandoned.",
)
@click.option(
    "--data",
    help=(
        "The survivor's node directory.  [default: the directory in ./ledgermq-data, if there is"
        " exactly one]"
    ),
)
@click.option("--group", "only", help="Only this broker group.  [default: all in the directory]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
def recover(
    force_new_cluster: bool, data: str | None, only: str | None, yes: bool, as_object: bool
) -> None:
    """Restart a broker group from one surviving replica, after its majority was lost permanently.

    The node must be stopped. Its log continues under a new log id with this node as the only voter;
    the loss is recorded in the log and in recovery.json. Abandoned replicas are refused by log id
    from then on: erase them and add them again. Acknowledged messages that this survivor does not
    have are lost: choose the survivor with the highest committed entry. To finish an interrupted
    run, run it again. Exit status: 0 done, 1 damaged or unreadable, or the question was answered
    with no, 4 refused.

    \b
    Examples:
      ledgermq recover --force-new-cluster --data ledgermq-data/n1
      ledgermq recover --force-new-cluster --data /var/lib/ledgermq --yes --json
    """
    if not force_new_cluster:
        raise click.UsageError("this gives up data; confirm with --force-new-cluster")
    allow_open_files()
    directory = os.path.abspath(only_node() if data is None else data)
    with stopped_node(directory) as disk:
        _recover(disk, directory, only, yes=yes, as_object=as_object)


@contextmanager
def stopped_node(directory: str) -> Iterator[RealDisk]:
    """The disk, while no other process uses this node directory; errors inside get the exit
    statuses of this command."""
    disk = RealDisk()
    if read_node(disk, directory) is None:
        raise Refused(
            f"{directory} is not a node directory", "give the node directory of the survivor"
        )
    if is_backup(disk, directory):
        raise Refused(
            f"{directory} is a backup",
            f"restore it, and use the new directory: ledgermq restore --from {directory}"
            " --data DIR",
        )
    try:
        lock = DirectoryLock(directory)
    except BlockingIOError as error:
        raise Refused(f"another process uses {directory}", "stop the node first") from error
    try:
        yield disk
    except (Refused, BadCopy):
        raise
    except StorageError as error:
        raise BadCopy(
            str(error), "no group can be recovered from this directory as it is"
        ) from error
    except OSError as error:
        raise BadCopy(
            f"{error.filename or directory}: {error.strerror or error}",
            "correct this, then run the command again",
        ) from error
    finally:
        lock.close()


def _recover(
    disk: RealDisk, directory: str, only: str | None, *, yes: bool, as_object: bool
) -> None:
    groups = [name for name in groups_in(disk, directory) if only in (None, name)]
    if not groups:
        raise Refused(
            f"{directory} holds no replica{'' if only is None else f' of broker group {only}'}",
            "check --data and --group",
        )
    surveys = {name: survey(disk, f"{directory}/{name}") for name in groups}
    for loss, begun in surveys.values():
        print(_explain(loss, begun), file=sys.stderr, flush=True)
    ask(yes=yes)
    _tell(directory, begin_groups(disk, directory, surveys), as_object)


def groups_in(disk: RealDisk, directory: str) -> list[str]:
    """The broker groups that have a replica in a node directory."""
    return [
        name
        for name in disk.listdir(directory)
        if disk.exists(f"{directory}/{name}/{IDENTITY_FILE}")
    ]


def ask(*, yes: bool) -> None:
    """Ask for confirmation. Raises Refused if there is no terminal to ask on, and SystemExit for a
    no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(
            "there is no terminal to ask on, and nothing was changed",
            "add --yes if the majority is lost permanently",
        )
    if not click.confirm(
        "Abandon these replicas and restart the group from this node?", default=False, err=True
    ):
        click.echo(
            "nothing was changed; bring the other replicas back instead, if possible", err=True
        )
        raise SystemExit(ExitCode.FAILED)


def begin_groups(
    disk: RealDisk, directory: str, surveys: Mapping[str, tuple[Loss, str | None]]
) -> dict[str, dict[str, Any]]:
    """Recover each of these groups; returns the content of each `recovery.json`."""
    notes = {}
    for name, (loss, begun) in surveys.items():
        log_id = str(uuid.uuid4()) if begun is None else begun
        notes[name] = begin_anew(
            disk, f"{directory}/{name}", loss, log_id=log_id, now_ms=time.time_ns() // 1_000_000
        )
    return notes


def _explain(loss: Loss, begun: str | None) -> str:
    again = "" if begun is None else "  Finishes an interrupted recovery.\n"
    return (
        f"broker group {loss.group}, from node {loss.node}:\n{again}  The log continues behind"
        f" entry {loss.index} of term {loss.term} (chain {loss.chain_crc:08x}).\n "
        f" {kept_words(loss)}\n  Abandoned: {', '.join(loss.given_up) or 'none'}. Acknowledged"
        f" messages that only they have are lost.\n  Log {loss.former_log_id} ends here; replicas"
        " that still have it are refused permanently."
    )


def _tell(directory: str, notes: dict[str, dict[str, Any]], as_object: bool) -> None:
    if as_object:
        print(json.dumps({"v": 1, "directory": directory, "groups": notes}), flush=True)
        return
    for name, note in notes.items():
        end = note["end"]
        print(
            f"recovered: broker group {name}, log {note['log_id']}, entry {end['index']} of term"
            f" {end['term']} names node alone"
        )
    print(
        "next: start this node, then erase the others and add them as members (docs/recovery.md)",
        flush=True,
    )
