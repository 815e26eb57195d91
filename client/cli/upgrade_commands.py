"""The commands `upgrade status` and `upgrade finish`: which programs a cluster runs, which feature
levels they read, and the last step.

Only argument parsing, comparison and output live here. A feature level stands for all records and
snapshots that a release added (docs/decisions/2026-11-23-negotiated-versions.md).
"""

from __future__ import annotations

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import cluster_command, confirmed, json_option
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.levels import FIRST_LEVEL


@click.group("upgrade")
def upgrade() -> None:
    """Show how far the nodes of a cluster are upgraded, and finish the upgrade.

    While a broker group has the feature level of the former release, each of its nodes can be
    replaced by a program of that release.
    """


@upgrade.command("status")
@cluster_command
@json_option
def status(connection: Connection, as_json: bool) -> None:
    """Show the version of each node, the feature level that it reads, the levels of broker groups,
    and what is in the way of a higher one.

    \b
    Examples:
      ledgermq upgrade status
      ledgermq upgrade status --json

    Exit status: 0 answered; 3 no node answers.
    """
    found = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    nodes = [
        {
            "node": node.node,
            "up": node.up,
            "version": render.known(node, "version"),
            "level_max": reads(node),
        }
        for node in found.nodes
    ]
    groups = [
        {"broker_group": group.group, "level": render.known(group, "level")}
        for group in found.groups
    ]
    obstacles = in_the_way(found)
    if as_json:
        render.print_json(
            level=level_of(found), nodes=nodes, broker_groups=groups, in_the_way=obstacles
        )
        return
    rows = [
        [node["node"], "up" if node["up"] else "down", node["version"], node["level_max"]]
        for node in nodes
    ]
    render.print_table("nodes", ["node", "state", "version", "reads level"], rows)
    render.print_table(
        "broker groups", ["group", "level"], [list(group.values()) for group in groups]
    )
    for obstacle in obstacles:
        print(f"in the way: {obstacle}")
    if not obstacles:
        print("nothing is in the way: all nodes read the same levels")
        if to_raise(found):
            print(
                f"until ledgermq upgrade finish raises them to level {highest(found)}, nodes can go"
                " back to the former release"
            )


@upgrade.command("finish")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
@json_option
def finish(connection: Connection, yes: bool, as_json: bool) -> None:
    """Finish an upgrade: raise every broker group, one after the other, and then the cluster, to
    the highest level that all nodes read.

    From then on the nodes write what the new release added, and none of them can go back to an
    older release. Refused, with the names, while a node reads less than another one or does not
    answer. After an interruption, the same command continues.

    \b
    Examples:
      ledgermq upgrade finish
      ledgermq upgrade finish --yes --json

    Exit status: 0 done, or nothing to raise; 3 no node, or no controller quorum; 4 refused, with
    the reason, or no progress for --timeout.
    """
    found = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    if in_the_way(found) or to_raise(found):
        confirmed(
            f"raising the cluster to feature level {highest(found)}, from which no node goes back"
            " to an older release,",
            yes,
        )
    done = Admin(connection).finish_upgrade()
    if as_json:
        render.print_json(level=done.level, raised=list(done.raised), changed=done.changed)
    elif done.changed:
        print(f"finished: all broker groups and the cluster have feature level {done.level}")
    else:
        print(
            f"nothing to raise: all broker groups and the cluster have feature level {done.level},"
            " the highest that the nodes read"
        )


def level_of(found: pb.ClusterStatusResponse) -> int:
    """The level of the cluster. A program that states none reads the first level."""
    return found.level or FIRST_LEVEL


def highest(found: pb.ClusterStatusResponse) -> int:
    """The highest level that any node reads."""
    return max(
        (level for level in map(reads, found.nodes) if level is not None), default=FIRST_LEVEL
    )


def to_raise(found: pb.ClusterStatusResponse) -> bool:
    """Whether a broker group or the cluster may be below the highest level that a node reads."""
    return any((group.level or FIRST_LEVEL) < highest(found) for group in found.groups) or level_of(
        found
    ) < highest(found)


def reads(node: pb.NodeInfo) -> int | None:
    """The highest level that a node reads; None if it does not answer. A program that states none
    reads the first level."""
    return (node.level_max or FIRST_LEVEL) if node.up else None


def in_the_way(found: pb.ClusterStatusResponse) -> list[str]:
    """Why the cluster cannot go to the highest level that any of its nodes reads."""
    known = {node.node: reads(node) for node in found.nodes}
    most = highest(found)
    return [
        (
            f"node {node} does not answer, so the level that it reads is not known; start it"
            if level is None
            else f"node {node} reads up to level {level}, others up to {most}; upgrade it"
        )
        for node, level in known.items()
        if level != most
    ]
