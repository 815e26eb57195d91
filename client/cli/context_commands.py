"""The commands `context add`, `use`, `list` and `remove`.

Only argument parsing and printing live here; `contexts.py` keeps the file. No command prints a
secret, and none contacts a cluster.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ledgermq.client import render
from ledgermq.client.api.connection import parse_endpoints
from ledgermq.client.cli import contexts
from ledgermq.client.cli.commands import (
    ENDPOINTS_HELP,
    confirmed,
    context_names,
    file_bytes,
    json_option,
    wire_of,
)
from ledgermq.client.cli.contexts import Context
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.proto.status import Code

_FILE = click.Path(path_type=Path)


@click.group()
def context() -> None:
    """Name clusters with their endpoints, TLS settings and user, and choose the one that commands
    use.

    \b
    Examples:
      ledgermq context add prod --endpoints 'mq1:8081;mq2:8081' --tls --ca ca.pem \\
        --user billing --use
      ledgermq context list
      ledgermq context use prod
      ledgermq status --context prod

    Commands use --context, LEDGERMQ_CONTEXT or the chosen context, in this order; a command with
    --endpoints or LEDGERMQ_ENDPOINTS uses no context at all. The contexts are in
    ~/.config/ledgermq/contexts.json ($XDG_CONFIG_HOME), which only you can read.
    """


@context.command("add")
@click.argument("name")
@click.option("--endpoints", required=True, help=ENDPOINTS_HELP)
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
@click.option(
    "--user",
    default="",
    help=(
        "The user's access key. Its secret comes from --secret-file, LEDGERMQ_SECRET_KEY or the"
        " terminal."
    ),
)
@click.option("--secret-file", type=_FILE, help="File with the user's secret.")
@click.option("--use", is_flag=True, help="Also choose this context.")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
def add(
    name: str,
    endpoints: str,
    tls: bool,
    ca: Path | None,
    certificate: Path | None,
    certificate_key: Path | None,
    user: str,
    secret_file: Path | None,
    use: bool,
    replace: bool,
) -> None:
    """Add a context. The files that it names are read at every use; the secret is stored.

    \b
    Examples:
      ledgermq context add local --endpoints 127.0.0.1:8081 --use
      ledgermq context add prod --endpoints mq1:8081 --tls --ca ca.pem --user billing \\
        --secret-file billing.secret

    Exit status: 0 added; 4 a context of this name exists; 64 a wrong value, and nothing was
    changed.
    """
    contexts.check_name(name)
    parse_endpoints(endpoints)
    wire_of(tls, ca, certificate, certificate_key)
    own, key = _absolute(certificate), _absolute(certificate_key)
    made = Context(
        endpoints=endpoints,
        tls=tls,
        ca=_absolute(ca),
        certificate=own,
        certificate_key=key,
        access_key=user,
        secret_key=_secret(user, secret_file),
    )
    with contexts.changing() as held:
        if name in held[0].known and not replace:
            raise Refused(
                Code.PRECONDITION_FAILED,
                f"the context {name!r} exists",
                "replace it with --replace, or choose another name",
            )
        held[0] = held[0].with_context(name, made, use=use)
    print(
        f"added: {name}{', chosen' if use else f' (choose it with: ledgermq context use {name})'}"
    )


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _secret(user: str, path: Path | None) -> str:
    if not user:
        if path is not None:
            raise BadArgument("--secret-file has no meaning without --user", "add --user NAME")
        return ""
    if path is not None:
        secret = file_bytes(path).decode(errors="replace").strip()
    elif secret := os.environ.get("LEDGERMQ_SECRET_KEY", ""):
        pass
    elif sys.stdin.isatty():
        secret = click.prompt(f"secret of {user}", hide_input=True, err=True)
    if not secret:
        raise BadArgument(
            f"there is no secret for the user {user}",
            "give --secret-file FILE, or set LEDGERMQ_SECRET_KEY",
        )
    return secret


@context.command("use")
@click.argument("name", required=False, default="", shell_complete=context_names)
@click.option(
    "--none", is_flag=True, help="Choose no context: commands use their own defaults again."
)
def use(name: str, none: bool) -> None:
    """Choose the context of all commands that name none.

    \b
    Examples:
      ledgermq context use prod
      ledgermq context use --none

    Exit status: 0 chosen; 4 there is no such context.
    """
    if bool(name) == none:
        raise BadArgument("one context is needed", "give its NAME, or --none")
    with contexts.changing() as held:
        held[0] = held[0].using(name)
    print(f"chosen: {name or 'no context'}")


@context.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the contexts; the chosen one has a star.

    \b
    Example: ledgermq context list
    """
    found = contexts.load()
    rows = [(name, one, name == found.current) for name, one in sorted(found.known.items())]
    if as_json:
        fields = ("endpoints", "tls", "ca", "certificate", "certificate_key", "access_key")
        render.print_json(
            contexts=[
                {"name": name, "chosen": chosen} | {key: _known(one, key) for key in fields}
                for name, one, chosen in rows
            ]
        )
        return
    shown = [
        [
            "*" if chosen else "",
            name,
            one.endpoints,
            "yes" if one.tls else "no",
            one.access_key or "-",
        ]
        for name, one, chosen in rows
    ]
    render.print_table("contexts", ["", "name", "endpoints", "TLS", "user"], shown)


def _known(one: Context, key: str) -> object:
    """A value for --json: unknown is null."""
    value = getattr(one, key)
    return None if value == "" else value


@context.command("remove")
@click.argument("name", shell_complete=context_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Remove a context with its secret. The cluster and its users are not changed.

    \b
    Example: ledgermq context remove prod --yes

    Exit status: 0 removed; 4 there is no such context.
    """
    contexts.load().get(name)
    confirmed(f"removing the context {name}", yes)
    with contexts.changing() as held:
        held[0] = held[0].without(name)
    print(f"removed: {name}")
