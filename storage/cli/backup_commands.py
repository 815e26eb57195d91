"""The commands `ledgermq backup` and `ledgermq restore`: arguments, progress and exit status.
`backup.py` and `restore.py` do the work.

Exit status: 0 done and verified, 1 a copy or its source is damaged or could not be read, 4 refused
before anything was written.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from ledgermq import __version__
from ledgermq.proto.units import size_words
from ledgermq.proto.workers import number_of
from ledgermq.storage.backups.backup import backup as make_backup
from ledgermq.storage.backups.backup_manifest import BadCopy, Manifest, Refused
from ledgermq.storage.backups.restore import restore as make_restore
from ledgermq.storage.backups.tier_restore import HeldLog, check_store, restore_from_store
from ledgermq.storage.files.errors import StorageError, UnknownFormat, Unusable, is_no_space
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state.identity import NODE_FILE, workers_in
from ledgermq.storage.tiered.ports import ObjectStore, StoreFailure

LINE_EVERY_S = 5.0
BAR_EVERY_S = 0.1
BAR_CELLS = 30
DEFAULT_DATA = "ledgermq-data"

_JSON = click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
EXACT = click.option(
    "--bytes", "exact", is_flag=True, help="Show exact bytes instead of rounded sizes."
)


@dataclass(frozen=True, slots=True)
class Done:
    """One copied directory: its manifest (which names the source), its target, and the node it
    belongs to."""

    manifest: Manifest
    directory: str
    node: str


class ProgressLine:
    """Progress of a job on stderr: a bar on a terminal, otherwise a line every five seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.0 if self._terminal else LINE_EVERY_S)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (BAR_EVERY_S if self._terminal else LINE_EVERY_S)
        share = done / total if total else 1.0
        text = f"{self._what}: {share:4.0%}"
        if self._terminal:
            filled = round(share * BAR_CELLS)
            text = f"\r[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {text} "
        print(text, file=sys.stderr, end="" if self._terminal else "\n", flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", file=sys.stderr, end="", flush=True)


@click.command()
@click.option(
    "--data",
    help=(
        "The node directory.  [default: the directory in ./ledgermq-data, if there is exactly one]"
    ),
)
@click.option("--to", "target", required=True, help="Directory for the backup; new or empty.")
@EXACT
@_JSON
def backup(data: str | None, target: str, exact: bool, as_object: bool) -> None:
    """Back up one node directory at a consistent point, and verify the copy.

    The node may be running or stopped; its directory is only read. The backup point of each broker
    group is the last entry that this replica noted as committed, at most about three seconds ago.
    All replicas have identical logs, so one backup is enough for a cluster. The workers of a node
    are backed up one after the other, into directories of the same names inside the target. Exit
    status: 0 done and verified, 1 damaged or unreadable, 4 refused.

    \b
    Examples:
      ledgermq backup --data ledgermq-data/n1 --to /backup/monday
      ledgermq backup --data /var/lib/ledgermq --to /backup/monday --json
    """
    progress = ProgressLine("backup")
    source = _plain(only_node() if data is None else data)
    allow_open_files()
    made_ms = time.time_ns() // 1_000_000

    def one(worker: str) -> Done:
        place = f"{_plain(target)}{worker}"
        manifest = _carried_out(
            place,
            lambda: make_backup(
                RealDisk(),
                f"{source}{worker}",
                place,
                program=__version__,
                made_ms=made_ms,
                mint=_new_uuid,
                progress=progress,
            ),
        )
        return Done(manifest, f"{target}{worker}", manifest.node)

    with _nothing_if_interrupted(_plain(target)):
        done = [one(worker) for worker in _with_workers(source)]
    progress.close()
    _tell(done, "backed up", exact, as_object)


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    help="A directory of `ledgermq backup`, or the nodes' tiered.url, s3://bucket/prefix.",
)
@click.option(
    "--data", help="The node directory to create; new or empty. Required, but for --check."
)
@click.option(
    "--node",
    help=(
        "Restore as this node of the cluster; required with s3://.  [default: the node that was"
        " backed up]"
    ),
)
@click.option(
    "--endpoint",
    default="",
    help="With s3://: the server, if it is not AWS's, such as https://store.example.com:9000.",
)
@click.option("--region", default="us-east-1", show_default=True, help="With s3://: the region.")
@click.option(
    "--credentials",
    default="",
    help=(
        "With s3://: file in the format of AWS's shared credentials.  [default: environment, role]"
    ),
)
@click.option(
    "--ca",
    default="",
    help=(
        "With s3://: PEM file of the authority of the server's certificate, if it is not a public"
        " one."
    ),
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="With s3://: restore this broker group only; repeatable.  [default: all]",
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="With s3://: only verify what the store holds; create nothing.",
)
@EXACT
@_JSON
def restore(
    source: str,
    data: str | None,
    node: str | None,
    endpoint: str,
    region: str,
    credentials: str,
    ca: str,
    groups: tuple[str, ...],
    only_check: bool,
    exact: bool,
    as_object: bool,
) -> None:
    """Create a node directory from a backup or from an object store, and verify it.

    To restore a cluster, stop all nodes, restore the same backup for each of them (--node), then
    start them together. A restored replica takes part after every other replica of its group has
    contacted it. Peers that still have their own data refuse it. Exit status: 0 done and verified,
    1 damaged or unreadable, 4 refused.

    \b
    Examples:
      ledgermq restore --from /backup/monday --data ledgermq-data/n1
      ledgermq restore --from /backup/monday --data ledgermq-data/n2 --node n2
      ledgermq restore --from s3://bucket/prefix --data ledgermq-data/n1 --node n1
      ledgermq restore --from s3://bucket/prefix --check
    """
    if only_check:
        if data or not source.startswith("s3://"):
            raise click.UsageError("--check is for --from s3://…, and takes no --data")
        _check_store(_Place(source, endpoint, region, credentials, ca), groups, as_object)
        return
    if not data:
        raise click.UsageError("which directory is to be created? name it with --data")
    progress = ProgressLine("restore")
    if source.startswith("s3://"):
        if not node:
            raise click.UsageError(
                "--from s3://… needs --node: the store holds the log of all replicas, so name the"
                " one to create"
            )
        stored, held = _from_store(
            _Place(source, endpoint, region, credentials, ca), data, node, groups, progress
        )
        progress.close()
        left = [key for log in held for key in log.behind_gap]
        _tell([stored], "restored", exact, as_object, {"not_restored": left})
        if not as_object:
            _tell_loss(held)
        return
    if endpoint or credentials or ca or groups:
        raise click.UsageError(
            "--endpoint, --credentials, --ca and --group are for --from s3://… only"
        )

    def one(worker: str) -> Done:
        place = f"{_plain(data)}{worker}"
        as_node = f"{node}.{number_of(worker)}" if node and worker else node
        if worker and as_node:
            place = f"{_plain(data)}/{as_node}"
        manifest = _carried_out(
            place,
            lambda: make_restore(
                RealDisk(),
                f"{_plain(source)}{worker}",
                place,
                node=as_node,
                mint=_new_uuid,
                progress=progress,
            ),
        )
        return Done(manifest, place if worker else data, as_node or manifest.node)

    with _nothing_if_interrupted(_plain(data)):
        done = [one(worker) for worker in _with_workers(_plain(source))]
    progress.close()
    _tell(done, "restored", exact, as_object)


class _Place(NamedTuple):
    """A place in an object store, as the user named it."""

    url: str
    endpoint: str
    region: str
    credentials: str
    ca: str

    def open(self) -> ObjectStore:
        """Sends no request. Raises Unusable, StoreFailure."""
        from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place

        return S3ObjectStore(
            S3Place(self.url, self.endpoint, self.region, self.credentials, ca_file=self.ca)
        )


def _from_store(
    place: _Place, data: str, node: str, groups: Sequence[str], progress: ProgressLine
) -> tuple[Done, list[HeldLog]]:
    """Restore one node directory from an object store."""
    held: list[HeldLog] = []

    def job() -> Manifest:
        with _store_errors():
            manifest, logs = restore_from_store(
                RealDisk(),
                place.open(),
                _plain(data),
                node=node,
                groups=groups,
                mint=_new_uuid,
                program=__version__,
                progress=progress,
            )
        held.extend(logs)
        return manifest

    with _nothing_if_interrupted(_plain(data)):
        return Done(_carried_out(_plain(data), job), data, node), held


def _check_store(place: _Place, groups: Sequence[str], as_object: bool) -> None:
    """Verify what an object store holds, and print it."""
    progress = ProgressLine("check")
    with _store_errors():
        held = check_store(place.open(), groups, progress)
    progress.close()
    if as_object:
        checked = [
            {
                "group": log.stored.group,
                "files": len(log.files),
                "begin_index": log.files[0].first,
                "index": log.files[-1].last,
            }
            for log in held
        ]
        print(json.dumps({"v": 1, "verified": True, "groups": checked}), flush=True)
        return
    for log in held:
        entries = f"{log.files[0].first} to {log.files[-1].last}"
        print(
            f"{log.stored.group}: {len(log.files)} files with the entries {entries} are intact in"
            " the object store",
            flush=True,
        )


@contextmanager
def _store_errors() -> Iterator[None]:
    """Give errors of an object store the exit statuses of these commands."""
    try:
        yield
    except Unusable as error:
        problem, _, remedy = str(error).partition(": ")
        raise Refused(problem, remedy or "give a file of certificates in PEM") from error
    except UnknownFormat as error:
        problem, _, remedy = str(error).partition(": ")
        raise BadCopy(problem, remedy) from error
    except StoreFailure as error:
        raise BadCopy(
            str(error), "check the address, the credentials and the server, and try again"
        ) from error


def _tell_loss(held: Sequence[HeldLog]) -> None:
    """Name what the store does not hold."""
    for log in held:
        print(
            f"  lost: everything that {log.stored.group} had stored behind entry"
            f" {log.files[-1].last}"
        )
        if log.behind_gap:
            loss = (
                f"{len(log.behind_gap)} files that do not continue the log, the first is"
                f" {log.behind_gap[0]}"
            )
            print(f"  not restored: {loss}. Give the restored nodes another prefix as tiered.url")
    sys.stdout.flush()


def only_node() -> str:
    """The default node directory: the only one of a local cluster."""
    nodes = (
        sorted(
            entry.path
            for entry in os.scandir(DEFAULT_DATA)
            if os.path.isfile(f"{entry.path}/{NODE_FILE}")
        )
        if _is_there()
        else []
    )
    if len(nodes) == 1:
        return nodes[0]
    some = (
        f"there are {', '.join(nodes)}"
        if nodes
        else f"there is no node directory in ./{DEFAULT_DATA}"
    )
    raise click.UsageError(f"which node directory? {some}; name one with --data")


def _is_there() -> bool:
    return os.path.isdir(DEFAULT_DATA)


def allow_open_files() -> None:
    """Raise the limit of open files as far as the system allows: a backup holds every log file of
    the node open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _plain(path: str) -> str:
    return os.path.normpath(path)


def _new_uuid() -> str:
    return str(uuid.uuid4())


@contextmanager
def _nothing_if_interrupted(target: str) -> Iterator[None]:
    """After Ctrl-C, remove what the command wrote into a target that was missing or empty before:
    the next run would refuse it."""
    before = (
        os.listdir(target)
        if os.path.isdir(target)
        else ["a file"]
        if os.path.lexists(target)
        else None
    )
    try:
        yield
    except KeyboardInterrupt:
        if before is None:
            shutil.rmtree(target, ignore_errors=True)
        elif not before:
            for entry in os.scandir(target):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry)
                else:
                    os.unlink(entry)
        raise


def _carried_out(target: str, job: Any) -> Manifest:
    """Run the job and return the manifest. Errors get the exit statuses of these commands; those of
    a node that cannot start do not apply."""
    try:
        manifest: Manifest = job()
        return manifest
    except (BadCopy, Refused):
        raise
    except StorageError as error:
        problem, _, remedy = str(error).rpartition(": ")
        raise BadCopy(
            problem or remedy, remedy if problem else "look at the source with `ledgermq audit`"
        ) from error
    except OSError as error:
        where = error.filename or target
        remedy = (
            "free space, remove the target and try again"
            if is_no_space(error)
            else "correct this, remove the target and try again"
        )
        raise BadCopy(f"{where}: {error.strerror or error}", remedy) from error


def _with_workers(directory: str) -> list[str]:
    """The suffixes of a node directory: "" for the node, and one for each further worker."""
    return (
        ["", *(f"/{worker}" for worker in workers_in(RealDisk(), directory))]
        if os.path.isdir(directory)
        else [""]
    )


def _tell(
    done: Sequence[Done],
    action: str,
    exact: bool,
    as_object: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Print the result on stdout: for the node, and for its further workers. `more`: further keys
    of the object."""
    if as_object:
        first, *workers = [_object(each) for each in done]
        print(
            json.dumps({"v": 1, **first, **({"workers": workers} if workers else {}), **more}),
            flush=True,
        )
        return
    for each in done:
        manifest = each.manifest
        size = f"{manifest.used_bytes} bytes" if exact else size_words(manifest.used_bytes)
        print(
            f"{action} and verified: node {each.node} in {each.directory}, {len(manifest.files)}"
            f" files, {size}"
        )
        for name, point in sorted(manifest.groups.items()):
            stored = datetime.fromtimestamp(point.store_ms / 1000, UTC).isoformat(
                timespec="seconds"
            )
            print(
                f"  {name}: entries {point.begin_index} to {point.index}, the last of term"
                f" {point.term}, stored at {stored}"
            )
    sys.stdout.flush()


def _object(done: Done) -> dict[str, Any]:
    manifest = done.manifest
    groups = [
        {
            "group": name,
            "begin_index": point.begin_index,
            "index": point.index,
            "term": point.term,
            "store_ms": point.store_ms,
            "chain_crc": f"{point.chain_crc:08x}",
        }
        for name, point in sorted(manifest.groups.items())
    ]
    value = {
        "verified": True,
        "directory": done.directory,
        "cluster_id": manifest.cluster_id,
        "node": done.node,
    }
    return {
        **value,
        "made_ms": manifest.made_ms,
        "used_bytes": manifest.used_bytes,
        "groups": groups,
    }
