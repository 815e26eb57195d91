"""The commands that run nodes: `up`, `serve`, `config` and `certificates`.

This module has only their options, texts and process supervision; the node itself begins in
`server.py`, which is imported when needed.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Self

import click
import yaml

from ledgermq.node.frontend.routing.worker_registry import worker_registry_of
from ledgermq.node.frontend.security import minting
from ledgermq.node.process.local import LocalCluster, make_secret
from ledgermq.node.process.store_access import store_of
from ledgermq.node.replica.peers import peer_wire
from ledgermq.node.runtime import certificates
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import load, masked
from ledgermq.node.runtime.config_types import NAME, parse_size_bytes
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.host_port import host_of
from ledgermq.proto.status import ExitCode

_CONFIG_OPTION = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="LEDGERMQ_CONFIG",
    show_envvar=True,
    help="YAML file.",
)
_SET_OPTION = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override one key; repeatable."
)

NEXT = """in another terminal:
  export LEDGERMQ_ENDPOINTS='{endpoints}'
  ledgermq topic create orders
  ledgermq send --topic orders --body hello"""
"""What `up` prints when the cluster is ready."""


class Size(click.ParamType[int]):
    """A size such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            parsed = parse_size_bytes(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        assert isinstance(parsed, int)
        return parsed


@click.command()
@_CONFIG_OPTION
@_SET_OPTION
def serve(config_file: Path | None, settings: tuple[str, ...]) -> None:
    """Run one node until SIGTERM. The log goes to stderr, one JSON object per line.

    \b
    Examples:
      ledgermq serve --config node.yaml
      ledgermq serve --config cluster.yaml --set node=n2 --set data=/var/lib/ledgermq
    """
    loaded = load(config_file, settings)
    if len(loaded.workers) > 1 and worker_registry_of(loaded) is None:
        from ledgermq.node.process import supervisor

        sys.exit(supervisor.run(loaded, config_file, settings))
    from ledgermq.node.process.serving import run

    sys.exit(run(loaded))


@click.group()
def config() -> None:
    """Check, show or explain a node's configuration.

    \b
    Examples:
      ledgermq config example > node.yaml
      ledgermq config secret ledgermq-data/secret
      ledgermq config check node.yaml
      ledgermq config show node.yaml --set log_level=debug
    """


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False, envvar="LEDGERMQ_CONFIG")
@_SET_OPTION
def check(file: Path | None, settings: tuple[str, ...]) -> None:
    """Check whether FILE and the environment make a valid configuration.

    \b
    Example:
      ledgermq config check node.yaml
    """
    loaded = load(file, settings)
    loaded.secret()
    loaded.bootstrap_user()
    loaded.check_exposure()
    store_of(loaded)
    certificates.of_clients(loaded.tls)
    peer_wire.peer_wire(loaded.peer_tls)
    groups = ", ".join(group.name for group in loaded.hosted_groups) or "none"
    click.echo(
        f"ok: node {loaded.node} of cluster {loaded.cluster_id}, broker groups here: {groups}"
    )


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False, envvar="LEDGERMQ_CONFIG")
@_SET_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(file: Path | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Print the whole configuration with defaults filled in and secrets masked.

    \b
    Example:
      ledgermq config show node.yaml
    """
    shown = masked(load(file, settings))
    click.echo(
        json.dumps({"v": 1, **shown})
        if as_json
        else yaml.safe_dump(shown, sort_keys=False).rstrip()
    )


@config.command()
def example() -> None:
    """Print a commented configuration to start from.

    \b
    Example:
      ledgermq config example > node.yaml
    """
    click.echo(EXAMPLE, nl=False)


@config.command("secret")
@click.argument("file", type=click.Path(path_type=Path))
def secret_file(file: Path) -> None:
    """Create FILE with a new cluster secret, which only its owner can read. Give every node of the
    cluster a copy.

    \b
    Example:
      ledgermq config secret ledgermq-data/secret

    Exit status: 0 created; 4 FILE exists, and is not changed.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        make_secret(file)
    except FileExistsError as error:
        # The directory may be a file.
        there = error.filename2 or error.filename
        raise FatalError(
            ExitCode.REFUSED, f"{there} exists", "use it, or give another file"
        ) from None
    except OSError as error:
        raise FatalError(
            ExitCode.REFUSED, f"{file} cannot be written ({error.strerror})", "give another file"
        ) from error
    click.echo(f"created: {file}")


@click.command("certificates")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("nodes", nargs=-1, required=True, metavar="NODE=HOST[,HOST]...")
def mint(directory: Path, nodes: tuple[str, ...]) -> None:
    """Create a certificate authority in DIRECTORY, and a certificate for each node with the hosts
    under which it is reached.

    Certificates that are valid for another month stay, so the command can be repeated at any time:
    before certificates expire, or for a new node. Give every node its own NODE.pem and NODE.key;
    give ca.pem to all nodes and clients; keep ca.key on no node.

    \b
    Examples:
      ledgermq certificates ./tls n1=mq1.example.com,10.0.0.1 n2=mq2.example.com,10.0.0.2
    """
    wanted: dict[str, tuple[str, ...]] = {}
    for text in nodes:
        name, equals, hosts = text.partition("=")
        try:
            known = tuple(map(host_of, hosts.split(",")))
        except ValueError:
            known = ()
        if not re.fullmatch(NAME, name) or not equals or not known:
            raise click.UsageError(
                f"{text!r} is not NODE=HOST[,HOST]...; for example: n1=mq1.example.com,10.0.0.1"
            )
        wanted[name] = known
    try:
        made = minting.ensure(directory, wanted)
    except OSError as error:
        raise FatalError(
            ExitCode.REFUSED,
            f"{directory} cannot be written ({error.strerror})",
            "choose another directory",
        ) from error
    for name in wanted:
        click.echo(f"{'made' if name in made else 'kept'}: {directory / name}.pem")


class _Stop:
    """Remembers whether SIGINT, SIGTERM or SIGHUP came. After the block, the former handlers apply
    again."""

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> Self:
        self._former = {
            number: signal.signal(number, self._seen)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _seen(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True


@click.command()
@click.option("--nodes", type=click.IntRange(1, 9), help="Number of nodes.  [default: 3]")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("ledgermq-data"),
    show_default="./ledgermq-data",
    help="Directory.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 62_000),
    default=8081,
    show_default=True,
    help="Client port of the first node.",
)
@click.option("--workers", type=click.IntRange(1, 9), help="Processes of each node.  [default: 1]")
@click.option("--log-file-size", type=Size(), help="Size of a log file.  [default: 64MiB]")
@click.option(
    "--tls",
    is_flag=True,
    help=(
        "Create certificates: TLS beside plaintext for clients, mutual TLS between nodes."
        " Permanent."
    ),
)
def up(
    nodes: int | None,
    data: Path,
    base_port: int,
    workers: int | None,
    log_file_size: int | None,
    tls: bool,
) -> None:
    """Start a cluster on this machine, in the foreground, until Ctrl-C.

    An existing directory is resumed. Node k listens for clients on port P+k-1, for peers on
    P+1000+k-1, for the controller on P+2000+k-1 and for HTTP (/healthz /readyz /metrics) on
    P+3000+k-1; its log is DATA/nK/node.log. With --workers, every node runs several processes
    behind its one client port, with one broker group for each process (docs/workers.md). With
    --tls, clients verify the nodes with DATA/tls/ca.pem.

    \b
    Examples:
      ledgermq up
      ledgermq up --nodes 1 --data /tmp/one --base-port 18081
    """
    with _Stop() as stop:
        cluster = LocalCluster.prepare(
            data,
            nodes=nodes,
            base_port=base_port,
            workers=workers,
            log_file_bytes=log_file_size,
            tls=tls,
        )
        try:
            cluster.start_all()
            ready = _wait_ready(cluster, stop)
            if ready:
                click.echo(f"ready: endpoints={cluster.endpoints}")
                click.echo(NEXT.format(endpoints=cluster.endpoints))
                sys.stdout.flush()
                _watch(cluster, stop)
        finally:
            codes = cluster.stop()
    # SIGTERM ended the node before it handled signals, so it has not opened anything yet: that is a
    # clean stop too.
    bad = {node: code for node, code in codes.items() if code not in (0, -signal.SIGTERM)}
    if bad:
        node, code = next(iter(bad.items()))
        raise FatalError(
            code if code > 0 else 1,
            f"node {node} did not stop cleanly: {cluster.last_error(node)}",
            "its log says more",
        )


def _wait_ready(cluster: LocalCluster, stop: _Stop) -> bool:
    """True if every node is ready, False if a stop was requested. Raises FatalError if a node ends
    before."""
    told = began = time.monotonic()
    waiting = dict.fromkeys(cluster.nodes)
    while waiting and not stop.wanted:
        for node in list(waiting):
            code = cluster.children[node].exit_code
            if code is not None:
                what, _, remedy = cluster.last_error(node).partition("; ")
                if code == ExitCode.PORT_TAKEN:
                    # The node's own remedy is about its configuration, which `up` writes.
                    remedy = "stop the process that uses it, or choose other ports with --base-port"
                raise FatalError(
                    code if code > 0 else 1,
                    f"node {node}: {what}",
                    remedy or f"see {cluster.log_file(node)}",
                )
            if cluster.ready(node):
                del waiting[node]
        if waiting and time.monotonic() - told >= 5:
            told = time.monotonic()
            click.echo(f"waiting for {', '.join(waiting)} ({told - began:.0f} s)", err=True)
        time.sleep(0.05)
    return not waiting


def _watch(cluster: LocalCluster, stop: _Stop) -> None:
    """Until a stop is requested, report nodes that end. They are not restarted, because a node that
    stops by itself has a reason."""
    reported: set[str] = set()
    while not stop.wanted:
        for node, child in cluster.children.items():
            if child.exit_code is not None and node not in reported:
                reported.add(node)
                click.echo(f"node {node} stopped: {cluster.last_error(node)}", err=True)
        if len(reported) == len(cluster.children):
            code = next(iter(cluster.children.values())).exit_code or 0
            raise FatalError(
                code if code > 0 else 1,
                "every node stopped",
                f"see the logs in {cluster.directory}",
            )
        time.sleep(0.1)
