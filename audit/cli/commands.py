"""The command `ledgermq audit`: arguments, progress, output files, and the exit status. No check
lives here."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ledgermq.audit.cli.page import as_html
from ledgermq.audit.cli.report import as_json, as_text, write_findings
from ledgermq.audit.cli.running_commands import Target, running_options
from ledgermq.audit.clients.bad_file import BadFile
from ledgermq.audit.outputs import text, try_directory, try_file, write_file
from ledgermq.audit.run.jobs import (
    EXIT,
    Audit,
    ClientCheck,
    Engine,
    Progress,
    WitnessCheck,
    audit_running,
    local_engine,
)
from ledgermq.audit.run.jobs import audit as run_audit
from ledgermq.client.cli.commands import Duration, exact_option
from ledgermq.proto.units import size_words
from ledgermq.proto.workers import WORKER_NAME

if TYPE_CHECKING:
    from ledgermq.audit.clients.outcome import ClientFiles
    from ledgermq.audit.reading.objects import StoreAccess

LINE_EVERY_S = 5.0
BAR_EVERY_S = 0.1
BAR_CELLS = 30


class ProgressLine:
    """Progress of the audit on stderr: a bar on a terminal, otherwise a line every five seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.0 if self._terminal else LINE_EVERY_S)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (BAR_EVERY_S if self._terminal else LINE_EVERY_S)
        # a stored object may be longer than its log file
        share = min(done / total, 1.0) if total else 1.0
        text = f"audit: {share:4.0%} of {size_words(total)}"
        if self._terminal:
            filled = round(share * BAR_CELLS)
            text = f"\r[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {text} "
        print(text, file=sys.stderr, end="" if self._terminal else "\n", flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", file=sys.stderr, end="", flush=True)


@contextmanager
def engine_of(name: str, master: str) -> Iterator[Engine]:
    """The chosen engine; it is stopped at the end."""
    if name == "local":
        yield local_engine
        return
    from ledgermq.audit.spark.engine import SparkEngine
    from ledgermq.audit.spark.java import NoJava, spark_session

    print(f"audit: starting Spark on {master}", file=sys.stderr, flush=True)
    try:
        session = spark_session(master)
    except NoJava as error:
        raise NoJava(error.what, f"{error.remedy}, or use --engine local") from error
    try:
        yield SparkEngine(session)
    finally:
        session.stop()


def node_directories(root: str) -> list[str]:
    """Every node directory in or directly under the volumes' directory."""
    if not os.path.isdir(root):
        raise click.UsageError(
            f"there is no directory {root}; mount the volumes there, or set LEDGERMQ_VOLUMES"
        )
    places = [root, *sorted(entry.path for entry in os.scandir(root) if entry.is_dir())]
    places += [
        entry.path
        for place in places[1:]
        for entry in sorted(os.scandir(place), key=lambda e: e.name)
        if entry.is_dir()
    ]
    directories = [place for place in places if os.path.isfile(f"{place}/node.json")]
    if not directories:
        raise click.UsageError(
            f"there is no node directory under {root}; mount the volumes of the nodes there"
        )
    return directories


def with_workers(directory: str) -> list[str]:
    """A node directory and those of the node's further workers, which are node directories inside
    it under their own names. Directories without a broker group are left out, unless none has
    any."""
    inside = {name for name in os.listdir(directory) if os.path.isdir(f"{directory}/{name}")}
    workers = sorted(f"{directory}/{name}" for name in inside if WORKER_NAME(name))
    own = (
        [directory]
        if inside - {os.path.basename(worker) for worker in workers} - {"controller"} or not workers
        else []
    )
    return [
        *own,
        *(worker for worker in workers if set(os.listdir(worker)) - {"controller", "node.json"}),
    ] or [directory]


@click.command()
@click.argument(
    "directories",
    metavar="DIR...",
    nargs=-1,
    type=click.Path(exists=True, file_okay=False, readable=True),
)
@click.option(
    "--volumes",
    is_flag=True,
    help="Audit every node directory under $LEDGERMQ_VOLUMES (default /data).",
)
@running_options
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    default="spark",
    show_default=True,
    help="Where the checks run.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--deep",
    is_flag=True,
    help="Also compare the log files by SHA-256 and parse every property string.",
)
@click.option(
    "--agreement",
    is_flag=True,
    help="Only compare the replicas, by file edges and digests: fast, but does not detect bit rot.",
)
@click.option(
    "--receipts",
    multiple=True,
    type=click.Path(exists=True),
    help="Receipts of producers to compare with the log; repeatable.",
)
@click.option(
    "--acks",
    multiple=True,
    type=click.Path(exists=True),
    help="Deliveries of consumers to compare with the log; repeatable.",
)
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Directory of a witness to compare with the logs; repeatable.",
)
@click.option(
    "--store",
    help="Also compare the objects of tiered storage: the nodes' tiered.url, s3://bucket/prefix.",
)
@click.option(
    "--store-endpoint",
    default="",
    help="With --store: the server, if it is not AWS's, such as https://store.example.com:9000.",
)
@click.option(
    "--store-region", default="us-east-1", show_default=True, help="With --store: the region."
)
@click.option(
    "--store-credentials",
    default="",
    help="With --store: file of AWS's shared credentials.  [default: environment, role]",
)
@click.option(
    "--store-ca",
    type=click.File("r"),
    help=(
        "With --store: PEM file of the authority of the server's certificate, if it is not a public"
        " one."
    ),
)
@click.option(
    "--window",
    default="1m",
    show_default=True,
    type=Duration(),
    help="Width of the windows for counting clients' messages.",
)
@exact_option
@click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
@click.option("--html", type=click.Path(dir_okay=False), help="Write the report as one HTML file.")
@click.option(
    "--findings",
    type=click.Path(file_okay=False),
    help="Write findings as JSON lines and Parquet into this directory.",
)
def audit(
    target: Target | None,
    directories: tuple[str, ...],
    volumes: bool,
    engine: str,
    master: str,
    deep: bool,
    agreement: bool,
    receipts: tuple[str, ...],
    acks: tuple[str, ...],
    witnesses: tuple[str, ...],
    store: str | None,
    store_endpoint: str,
    store_region: str,
    store_credentials: str,
    store_ca: IO[str] | None,
    window: float,
    exact: bool,
    as_object: bool,
    html: str | None,
    findings: str | None,
) -> None:
    """Verify from the files alone that the replicas are intact and agree.

    DIR is a node directory. Stop the nodes first: if files change during the audit, the verdict is
    INCOMPLETE. With --endpoints the nodes keep running: their files are read through them, up to a
    marker in the log (needs the permission admin:cluster:*). Exit status: 0 PASS, 1 FAIL, 2
    INCOMPLETE.

    \b
    Examples:
      ledgermq audit ledgermq-data/n1 ledgermq-data/n2 ledgermq-data/n3
      ledgermq audit ledgermq-data/n* --engine local --html audit.html
      ledgermq audit --volumes
      ledgermq audit ledgermq-data/n* --agreement
      ledgermq audit --endpoints '127.0.0.1:8081;127.0.0.1:8082'
      ledgermq audit ledgermq-data/n* --receipts receipts.parquet --acks deliveries.parquet
      ledgermq audit ledgermq-data/n* --deep --witness witness
      ledgermq audit ledgermq-data/n* --store s3://bucket/prefix
    """
    if sum((volumes, bool(directories), target is not None)) != 1:
        raise click.UsageError(
            "give the node directories, such as ledgermq-data/n1, or use --volumes, or --endpoints"
            " of a running cluster"
        )
    if agreement and (deep or receipts or acks or witnesses or store):
        raise click.UsageError(
            "--agreement reads no messages; omit --deep, --receipts, --acks, --witness and --store,"
            " or --agreement"
        )
    if agreement and target is not None:
        raise click.UsageError(
            "--agreement is about directories; running nodes compare sealed files by themselves,"
            " see: ledgermq status"
        )
    named = (
        node_directories(os.environ.get("LEDGERMQ_VOLUMES", "/data")) if volumes else directories
    )
    chosen = list(dict.fromkeys(place for directory in named for place in with_workers(directory)))
    if html is not None:
        try_file(Path(html))
    if findings is not None:
        try_directory(Path(findings))
    kept = client_files(receipts, acks, window) if receipts or acks else None
    seen = witness_check(witnesses)
    access = store_access(
        store,
        store_endpoint,
        store_region,
        store_credentials,
        "" if store_ca is None else store_ca.read(),
    )
    progress = ProgressLine()
    with (
        nullcontext() if target is None else target.open() as cluster,
        engine_of(engine, master) as runner,
    ):
        clients = None if kept is None else client_check(runner, kept)
        if cluster is None:
            result = audit_with(
                directories=chosen,
                engine=runner,
                progress=progress,
                deep=deep,
                clients=clients,
                agreement=agreement,
                witnesses=seen,
                store=access,
            )
        else:
            result = audit_running(
                cluster,
                engine=runner,
                progress=progress,
                deep=deep,
                clients=clients,
                witnesses=seen,
                store=access,
            )
    progress.close()
    # Print first, because the files written next may find the disk full.
    print(
        (
            json.dumps(as_json(result), ensure_ascii=False)
            if as_object
            else as_text(result, exact=exact)
        ),
        flush=True,
    )
    if html is not None:
        write_file(Path(html), text(as_html(result)))
    if findings is not None:
        write_findings(result, findings)
    raise SystemExit(EXIT[result.verdict])


def client_files(receipts: tuple[str, ...], acks: tuple[str, ...], window_s: float) -> ClientFiles:
    """The clients' files that the user named; an invalid file is a usage error."""
    try:
        from ledgermq.audit.clients.outcome import ClientFiles
    except ImportError as error:
        raise click.UsageError(
            "--receipts and --acks need pyarrow; install ledgermq[audit]"
        ) from error
    try:
        return ClientFiles.find(receipts, acks, max(1, round(1000 * window_s)))
    except BadFile as error:
        raise click.UsageError(str(error)) from error


def witness_check(directories: tuple[str, ...]) -> WitnessCheck | None:
    """The check of what witnesses cosigned; a directory that cannot be used is a usage error."""
    if not directories:
        return None
    from ledgermq.audit.checks.witnesses import BadWitness, check_witnesses, read_witness

    try:
        return partial(
            check_witnesses, witnesses=[read_witness(directory) for directory in directories]
        )
    except BadWitness as error:
        raise click.UsageError(str(error)) from error


def store_access(
    url: str | None, endpoint: str, region: str, credentials: str, ca: str = ""
) -> StoreAccess | None:
    """The object store that the user named; one that cannot be used is a usage error. Spark's
    processes get to know it too."""
    if url is None:
        if endpoint or credentials or ca:
            raise click.UsageError(
                "--store-endpoint, --store-credentials and --store-ca are for --store"
            )
        return None
    from ledgermq.audit.reading.objects import BadStore, StoreAccess

    access = StoreAccess(
        url, endpoint, region, os.path.abspath(credentials) if credentials else "", ca=ca
    )
    try:
        access.open()
    except BadStore as error:
        raise click.UsageError(str(error)) from error
    access.announce()
    return access


def client_check(engine: Engine, kept: ClientFiles) -> ClientCheck:
    """The check of the clients' files, with joins where the engine runs."""
    from ledgermq.audit.clients.joining import join_here
    from ledgermq.audit.clients.outcome import check_clients

    join = getattr(engine, "join", join_here)
    return lambda groups: check_clients(groups, kept, join)


def audit_with(
    directories: list[str],
    engine: Engine,
    progress: Progress,
    deep: bool,
    clients: ClientCheck | None = None,
    agreement: bool = False,
    witnesses: WitnessCheck | None = None,
    store: StoreAccess | None = None,
) -> Audit:
    """Run the audit. An unreadable directory, or an invalid clients' file, is a usage error, not a
    verdict."""
    try:
        return run_audit(
            directories,
            engine,
            progress,
            deep,
            clients,
            agreement=agreement,
            witnesses=witnesses,
            store=store,
        )
    except PermissionError as error:
        raise click.UsageError(
            f"{error.filename} cannot be read; run the audit as a user who may read it"
        ) from error
    except BadFile as error:
        raise click.UsageError(str(error)) from error
