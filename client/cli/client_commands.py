"""`ledgermq client`: which client programs use the cluster, and to which nodes they are connected.

Only argument parsing and exit statuses live here.
"""

from __future__ import annotations

from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import cluster_command, exact_option, json_option
from ledgermq.client.errors import Incomplete
from ledgermq.proto import admin_pb2 as pb


@click.group()
def client() -> None:
    """Show the producers and consumers that use the cluster.

    \b
    Examples:
      ledgermq client list
      ledgermq client list --topic orders
    """


@client.command("list")
@click.option(
    "--topic",
    default="",
    help="Only clients that publish or subscribe to this topic (namespace@topic).",
)
@click.option("--group", default="", help="Only consumers of this group (namespace@group).")
@cluster_command
@exact_option
@json_option
def list_clients(
    connection: Connection, topic: str, group: str, exact: bool, as_json: bool
) -> None:
    """List the clients that contacted the nodes within the last minutes: type, group, topics,
    language, and whether their stream is open.

    Several nodes may know the same client. Settings and transaction checks reach it through the
    node it is connected to. "shared id": the node has met several processes with this client id;
    give each a host name of its own.

    \b
    Examples:
      ledgermq client list
      ledgermq client list --group billing --json

    Exit status: 0 answered; 2 some nodes did not answer; 3 no node answers.
    """
    answer = ask(connection, pb.ListClientsRequest(), pb.ListClientsResponse)
    wanted = [
        c
        for c in answer.clients
        if (not topic or topic in c.topics) and (not group or group == c.group)
    ]
    if as_json:
        render.print_json(
            clients=[_as_json(found) for found in wanted], unreachable=list(answer.unreachable)
        )
    else:
        rows = [_row(found, exact) for found in wanted]
        silent = "silent ms" if exact else "silent"
        render.print_table(
            "clients",
            ["client", "node", "stream", "type", "group", "topics", "language", "host", silent],
            rows,
        )
    if answer.unreachable:
        what = f"INCOMPLETE: the clients of {', '.join(answer.unreachable)} are unknown: no answer"
        raise Incomplete(what, "see: ledgermq status")


def _row(found: pb.ClientInfo, exact: bool) -> list[Any]:
    stream = ("open" if found.connected else "-") + (", shared id" if found.shared else "")
    language = f"{found.language} {found.version}".strip() or "-"
    named = [
        found.client_id,
        found.node,
        stream,
        found.type or "-",
        found.group or "-",
        " ".join(found.topics) or "-",
    ]
    return [*named, language, found.hostname or "-", render.age(found.silent_ms, exact)]


def _as_json(found: pb.ClientInfo) -> dict[str, Any]:
    return {
        "client": found.client_id,
        "node": found.node,
        "connected": found.connected,
        "type": found.type or None,
        "group": found.group or None,
        "topics": list(found.topics),
        "language": found.language or None,
        "version": found.version or None,
        "hostname": found.hostname or None,
        "silent_ms": found.silent_ms,
        "shared": found.shared,
    }
