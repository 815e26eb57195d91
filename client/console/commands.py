"""`ledgermq console`: only argument parsing and the start of the server live here."""

from __future__ import annotations

from pathlib import Path

import click

from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import DURATION, cluster_command
from ledgermq.client.errors import BadArgument
from ledgermq.proto import host_port

_FILE = click.Path(path_type=Path)


@click.command("console")
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    help="Address of the pages: host:port; port 0: any free one.",
)
@click.option("--serve-certificate", type=_FILE, help="PEM file of the certificate for HTTPS.")
@click.option("--serve-key", type=_FILE, help="PEM file of that certificate's key.")
@click.option(
    "--plain-http",
    is_flag=True,
    help="Allow HTTP on an address that is not loopback: in a container, or behind a proxy.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name by which browsers reach the console; repeatable.",
)
@click.option(
    "--idle",
    "idle_s",
    type=DURATION,
    default="30m",
    show_default=True,
    help="End a session that was not used for so long.",
)
@click.option(
    "--session",
    "absolute_s",
    type=DURATION,
    default="12h",
    show_default=True,
    help="End every session after this time.",
)
@cluster_command
def console(
    connection: Connection,
    listen: str,
    serve_certificate: Path | None,
    serve_key: Path | None,
    plain_http: bool,
    hosts: tuple[str, ...],
    idle_s: float,
    absolute_s: float,
) -> None:
    """Serve pages to look at the cluster and to change it, in the foreground.

    The console keeps nothing on disk. If the cluster has authentication, users sign in with their
    access key and secret, and the permissions of each user apply. The keys of the environment and
    of a context are not used.

    \b
    Examples:
      ledgermq console
      ledgermq console --listen 127.0.0.1:8090 --endpoints '10.0.0.1:8081;10.0.0.2:8081' --tls \\
        --ca ca.pem

    Prints `ready: console=URL` when the pages are served. Each change, and the end of each
    audit, is one line of JSON on stderr: who, what, and the outcome.

    Exit status: 0 after Ctrl-C or SIGTERM; 64 usage, or the address cannot be used.
    """
    from ledgermq.client.console import serving

    try:
        host, port = host_port.split(listen)
        names = (host, *map(host_port.host_of, hosts))
    except ValueError as error:
        raise BadArgument(str(error), "correct --listen or --host") from error
    if (serve_certificate is None) != (serve_key is None):
        raise BadArgument(
            "only one of --serve-certificate and --serve-key is given", "give both, or neither"
        )
    if not (host_port.is_loopback(host) or plain_http or serve_certificate):
        problem = f"{host} is not a loopback address: secrets would travel unencrypted"
        raise BadArgument(
            problem, "give --serve-certificate and --serve-key, or --plain-http behind a proxy"
        )
    place = serving.Place(host, port, serve_certificate, serve_key, names)
    files = click.get_current_context().obj["files"]
    wire = ["--tls"] if connection.tls else []
    for option, path in zip(("--ca", "--certificate", "--certificate-key"), files, strict=True):
        wire += [] if path is None else [option, str(path)]
    serving.serve(connection, place, wire, idle_s=idle_s, absolute_s=absolute_s)
