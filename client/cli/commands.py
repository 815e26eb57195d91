"""What every command that talks to a cluster shares: common options, durations, progress on stderr,
and the confirmation of destructive changes.

The commands themselves are in the modules named `*_commands.py`. This module never writes to
stdout.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ledgermq.client.api.changes import Change, followed
from ledgermq.client.api.connection import DEFAULT_ENDPOINTS, Connection
from ledgermq.client.cli import contexts
from ledgermq.client.errors import BadArgument, Stopped
from ledgermq.proto import units
from ledgermq.proto.names import parse_stored
from ledgermq.proto.signature import Credentials, operator_of
from ledgermq.proto.status import ExitCode

ENDPOINTS_HELP = "Client ports of one or more nodes: 'host:port;host:port'."
PROGRESS_LINE_S = 5.0
PREFIX = "LEDGERMQ_"
VARIABLES = ("LEDGERMQ_ENDPOINTS", "LEDGERMQ_CONTEXT", "LEDGERMQ_ACCESS_KEY", "LEDGERMQ_SECRET_KEY")
"""The environment of the commands that talk to a cluster."""
LIKENESS = 0.75


class Duration(click.ParamType[float]):
    """`500ms`, `10s`, `2m`, `1h` as seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        milliseconds = units.duration_ms(str(value))
        if milliseconds is None:
            self.fail(f"{value!r} is not a duration; give {units.DURATION_FORM}", param, ctx)
        return milliseconds / 1000


class Size(click.ParamType[int]):
    """`64KiB`, `64MiB`, `1GiB` as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        parsed = units.size_bytes(str(value))
        if parsed is None:
            self.fail(f"{value!r} is not a size; give {units.SIZE_FORM}", param, ctx)
        return parsed


DURATION = Duration()
SIZE = Size()
_FILE = click.Path(path_type=Path)
Files = tuple[Path | None, Path | None, Path | None]
"""The PEM files of a connection: the CA, the client's certificate, and its key."""


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of contexts for the shell's completion, which has no place for an error."""
    with suppress(BadArgument):
        return [name for name in sorted(contexts.load().known) if name.startswith(incomplete)]
    return []


def cluster_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every cluster command takes, and pass an open Connection as the first
    argument."""

    @click.option(
        "--endpoints",
        envvar="LEDGERMQ_ENDPOINTS",
        show_envvar=True,
        default=None,
        show_default=DEFAULT_ENDPOINTS,
        help=ENDPOINTS_HELP,
    )
    @click.option(
        "--context",
        "context_name",
        envvar="LEDGERMQ_CONTEXT",
        show_envvar=True,
        shell_complete=context_names,
        help="Use the cluster of this name (ledgermq context).",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=DURATION,
        default="10s",
        show_default=True,
        help="Time limit of a call, retries included.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
    @click.option("--tls", is_flag=True, help="Connect with TLS.")
    @click.option(
        "--ca",
        type=_FILE,
        help="PEM file of the CA that signed the nodes' certificates. [default: the system's CAs]",
    )
    @click.option(
        "--certificate",
        type=_FILE,
        help="PEM file of the client certificate, if the nodes require one.",
    )
    @click.option("--certificate-key", type=_FILE, help="PEM file of the client certificate's key.")
    @wraps(command)
    def with_connection(
        endpoints: str | None,
        context_name: str | None,
        timeout_s: float,
        quiet: bool,
        tls: bool,
        ca: Path | None,
        certificate: Path | None,
        certificate_key: Path | None,
        **options: Any,
    ) -> Any:
        hint_at_variables(os.environ)
        files: Files = (ca, certificate, certificate_key)
        wire = wire_of(tls, *files)
        credentials = credentials_of_environment()
        if (context := chosen_context(endpoints, context_name)) is not None:
            endpoints = context.endpoints
            if not tls:
                files = files_of(context)
                wire = wire_of(context.tls, *files)
            if credentials is None and context.access_key:
                credentials = Credentials(context.access_key, context.secret_key)
        with Connection(
            endpoints or DEFAULT_ENDPOINTS, timeout_s=timeout_s, credentials=credentials, **wire
        ) as connection:
            click.get_current_context().ensure_object(dict).update(quiet=quiet, files=files)
            return command(connection, **options)

    return with_connection


def operator_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """A cluster command that may be signed with the cluster secret."""

    @click.option(
        "--cluster-secret", type=_FILE, help="The cluster's secret file: sign as its operator."
    )
    @cluster_command
    @wraps(command)
    def with_operator(connection: Connection, cluster_secret: Path | None, **options: Any) -> Any:
        if cluster_secret is not None:
            connection.credentials = operator_of(file_bytes(cluster_secret).strip())
        return command(connection, **options)

    return with_operator


def chosen_context(endpoints: str | None, name: str | None) -> contexts.Context | None:
    """The context of a command. Endpoints that are given exclude it: keys of one cluster must not
    be used for another. Raises BadArgument and Refused."""
    if endpoints is not None:
        source = click.get_current_context().get_parameter_source("context_name")
        if name is not None and source == click.core.ParameterSource.COMMANDLINE:
            raise BadArgument(
                "--context names a cluster, and --endpoints or LEDGERMQ_ENDPOINTS another one",
                "give one of them",
            )
        return None
    if name is not None:
        return contexts.load().get(name)
    found = contexts.load()
    return found.get(found.current) if found.current else None


def files_of(context: contexts.Context) -> Files:
    """The PEM files of a context."""
    ca, certificate, key = (
        Path(text) if text else None
        for text in (context.ca, context.certificate, context.certificate_key)
    )
    return ca, certificate, key


def credentials_of_environment() -> Credentials | None:
    """The credentials in the environment variables. They are not options, because every user of the
    machine can list command lines."""
    access_key, secret_key = (
        os.environ.get(f"LEDGERMQ_{name}_KEY", "") for name in ("ACCESS", "SECRET")
    )
    if bool(access_key) != bool(secret_key):
        raise BadArgument(
            "only one of LEDGERMQ_ACCESS_KEY and LEDGERMQ_SECRET_KEY is set", "set both, or neither"
        )
    return Credentials(access_key, secret_key) if access_key else None


def hint_at_variables(names: Iterable[str]) -> None:
    """Name environment variables that look like a misspelt one of these commands, which would be
    without effect in silence. Others belong to nodes, or to Kubernetes."""
    for name in names:
        known = {variable.removeprefix(PREFIX) for variable in VARIABLES}
        given = name.removeprefix(PREFIX)
        if (
            name.startswith(PREFIX)
            and given not in known
            and (near := difflib.get_close_matches(given, known, 1, LIKENESS))
        ):
            click.echo(
                f"warning: no command reads {name}; did you mean {PREFIX}{near[0]}?", err=True
            )


def wire_of(
    tls: bool, ca: Path | None, certificate: Path | None, key: Path | None
) -> dict[str, Any]:
    """The connection settings as `Connection` takes them."""
    for name, path in (("--ca", ca), ("--certificate", certificate), ("--certificate-key", key)):
        if path is not None and not tls:
            raise BadArgument(f"{name} has no meaning without --tls", "add --tls")
    if (certificate is None) != (key is None):
        raise BadArgument(
            "only one of --certificate and --certificate-key is given", "give both, or neither"
        )
    own = None if certificate is None or key is None else (file_bytes(key), file_bytes(certificate))
    return {"tls": tls, "ca": None if ca is None else file_bytes(ca), "certificate": own}


def file_bytes(path: Path) -> bytes:
    """The content of a file named on the command line. Raises BadArgument if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadArgument(
            f"the file {path} cannot be read ({error.strerror})",
            "give the path of a file that exists",
        ) from error


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")

exact_option = click.option(
    "--bytes",
    "exact",
    is_flag=True,
    help="Show exact bytes and milliseconds instead of rounded sizes and ages.",
)

NAMED = ("name", "topic_name", "group_name", "lite_topic")
"""The parameters of commands that hold the name of a topic or consumer group."""


def namespace_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --namespace, and accept NAMESPACE@NAME wherever the command takes the name of a topic or
    consumer group. Names of one command are in one namespace."""

    @click.option(
        "--namespace",
        default="",
        help="Namespace of the topic and consumer group; or write NAMESPACE@NAME. [default: none]",
    )
    @wraps(command)
    def with_namespace(*arguments: Any, namespace: str, **options: Any) -> Any:
        for key in NAMED:
            if isinstance(given := options.get(key), str) and "@" in given:
                found, options[key] = parse_stored(given)
                if namespace not in ("", found):
                    raise BadArgument(
                        f"{given!r} is not in the namespace {namespace!r}",
                        "name one namespace, once",
                    )
                namespace = found
        return command(*arguments, namespace=namespace, **options)

    return with_namespace


class Meter:
    """Progress on stderr: a bar on a terminal, a line every five seconds elsewhere, nothing when
    quiet or not `shown`: results that a terminal shows while they come are progress enough, and
    would stand behind the bar."""

    def __init__(self, what: str, total: int | None, *, shown: bool = True) -> None:
        self._quiet = not shown or bool(
            click.get_current_context().ensure_object(dict).get("quiet")
        )
        console = Console(stderr=True)
        columns = [
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        ]
        self._bar = Progress(
            *columns,
            console=console,
            disable=self._quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total)
        self._plain = not self._quiet and not console.is_terminal
        self._what, self._last = what, time.monotonic()
        self.done = 0
        """The number that was shown last."""
        self._total: int | None = None
        self._left = ""

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Releases 13 of rich print an empty line when a disabled bar stops.
        if not self._bar.disable:
            self._bar.stop()

    def expect(self, total: int | None, seconds_left: float | None) -> None:
        """Set the expected total and remaining time, when they become known."""
        self._total, self._left = (
            total,
            ""
            if seconds_left is None
            else f", about {units.duration_words(1000 * round(seconds_left))} left",
        )
        self._bar.update(self._task, total=total, description=f"{self._what}{self._left}")

    def show(self, done: int) -> None:
        self.done = done
        self._bar.update(self._task, completed=done)
        if self._plain and time.monotonic() - self._last >= PROGRESS_LINE_S:
            self._last = time.monotonic()
            of = "" if self._total is None else f" of {self._total}"
            print(f"{self._what}: {done}{of}{self._left}", file=sys.stderr, flush=True)


@contextmanager
def told_if_interrupted(what: Callable[[], str], remedy: str) -> Iterator[None]:
    """For a change that must not simply be made again: after Ctrl-C, `what` says what may have been
    done."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"interrupted: {what()}", remedy) from None


def confirmed(what: str, yes: bool) -> None:
    """Ask for confirmation on a terminal, before anything is changed; elsewhere require --yes.
    Raises BadArgument, and SystemExit for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadArgument(f"{what} cannot be undone", "confirm with --yes")
    if not click.confirm(f"{what}?", err=True):
        click.echo("nothing was changed", err=True)
        raise SystemExit(ExitCode.FAILED)


def carried_out(
    connection: Connection,
    request: Message,
    response: type[Change],
    subject: str,
    show: Callable[[Change], object],
    *,
    no_wait: bool = False,
) -> Change:
    """Take the steps of a change until it is done, or with `no_wait` the first one; `show` gets
    each answer that is not the last. Raises Refused without progress for the connection's
    timeout."""
    remedy = "remove the cause, then run the same command again: it continues the change"
    wait_s = 0 if no_wait else None
    return connection.carry_out(
        followed(connection, request, response, subject, remedy, heard=show, wait_s=wait_s)
    )
