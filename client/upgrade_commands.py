"""The command `upgrade status`: which programs a cluster runs, and which feature levels they read.

Only argument parsing, comparison and output live here. A feature level stands for all records and snapshots that a release added
(docs/decisions/2026-11-23-negotiated-versions.md).
"""

from __future__ import annotations

import click

from ledgermq.client import render
from ledgermq.client.admin_calls import AdminCalls
from ledgermq.client.commands import cluster_command, json_option
from ledgermq.client.connection import Connection
from ledgermq.proto import admin_pb2
from ledgermq.proto.levels import FIRST_LEVEL


@click.group("upgrade")
def upgrade() -> None:
    """Show how far the nodes of a cluster are upgraded.

    While a broker group has the feature level of the former release, each of its nodes can be replaced by a program of that release.
    """


@upgrade.command("status")
@cluster_command
@json_option
def status(connection: Connection, as_json: bool) -> None:
    """Show the version of each node, the feature level that it reads, the levels of broker groups, and what is in the way of a higher one.

    \b
    Examples:
      ledgermq upgrade status
      ledgermq upgrade status --json

    Exit status: 0 answered; 3 no node answers.
    """
    found = AdminCalls(connection).cluster_status()
    nodes = [{"node": node.node, "up": node.up, "version": render.known(node, "version"), "level_max": reads(node)} for node in found.nodes]
    groups = [{"broker_group": group.group, "level": render.known(group, "level")} for group in found.groups]
    obstacles = in_the_way(found)
    if as_json:
        render.print_json(nodes=nodes, broker_groups=groups, in_the_way=obstacles)
        return
    rows = [[node["node"], "up" if node["up"] else "down", node["version"], node["level_max"]] for node in nodes]
    render.print_table("nodes", ["node", "state", "version", "reads level"], rows)
    render.print_table("broker groups", ["group", "level"], [list(group.values()) for group in groups])
    for obstacle in obstacles:
        print(f"in the way: {obstacle}")
    if not obstacles:
        print("nothing is in the way: all nodes read the same levels")


def reads(node: admin_pb2.NodeInfo) -> int | None:
    """The highest level that a node reads; None if it does not answer. A program that states none reads the first level."""
    return (node.level_max or FIRST_LEVEL) if node.up else None


def in_the_way(found: admin_pb2.ClusterStatusResponse) -> list[str]:
    """Why the cluster cannot go to the highest level that any of its nodes reads."""
    known = {node.node: reads(node) for node in found.nodes}
    highest = max((level for level in known.values() if level is not None), default=FIRST_LEVEL)
    return [
        f"node {node} does not answer, so the level that it reads is not known; start it"
        if level is None
        else f"node {node} reads up to level {level}, others up to {highest}; upgrade it"
        for node, level in known.items()
        if level != highest
    ]
