"""The command `why-kept`, which asks a cluster about its log files.

Only argument parsing and exit statuses live here. FILE names a file in a node's directory or of a
broker group; no local file is opened.
"""

from __future__ import annotations

from pathlib import PurePath

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import cluster_command, json_option
from ledgermq.client.errors import BadArgument

LOG_DIRECTORY = "dledger-"
DATA = "data"


@click.command("why-kept")
@click.argument("file")
@cluster_command
@json_option
def why_kept(connection: Connection, file: str, as_json: bool) -> None:
    """Explain why a log file is kept, or when and why it was removed. FILE is the path of a log
    file on a node, or GROUP/BASE.

    \b
    Examples:
      ledgermq why-kept ledgermq-data/n1/g1/dledger-n1/data/00000000000000000000
      ledgermq why-kept g1/67108864 --json

    Exit status: 0 answered; 4 there is no such broker group.
    """
    broker_group, base, node = parse_file(file)
    render.explanation(Admin(connection).why_kept(broker_group, base, node=node), as_json)


def parse_file(file: str) -> tuple[str, int, str | None]:
    """Parse FILE into the broker group, the base, and the node. Raises BadArgument."""
    parts = PurePath(file).parts
    name = parts[-1] if parts else ""
    if not (name.isascii() and name.isdigit()) or len(parts) < 2:
        raise BadArgument(
            f"{file!r} names no log file",
            "give the path of a file in a node's dledger-…/data, or GROUP/BASE",
        )
    if len(parts) >= 4 and parts[-2] == DATA and parts[-3].startswith(LOG_DIRECTORY):
        return parts[-4], int(name), parts[-3].removeprefix(LOG_DIRECTORY)
    if len(parts) == 2 and int(name) < 1 << 62:
        return parts[0], int(name), None
    raise BadArgument(
        f"{file!r} names no log file",
        "give the path of a file in a node's dledger-…/data, or GROUP/BASE",
    )
