"""The commands about the leader of a broker group: transfer, why-leader-moved and begin-time-epoch.

Only argument parsing, progress and exit statuses live here.
"""

from __future__ import annotations

from contextlib import ExitStack

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.changes import transferred
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import Meter, cluster_command, confirmed, json_option
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units

LAST_MAX = 64


@click.command("transfer")
@click.argument("group")
@click.option("--to", required=True, help="The node that shall become leader.")
@cluster_command
@json_option
def transfer(connection: Connection, group: str, to: str, as_json: bool) -> None:
    """Transfer the leadership of GROUP to a node with a voting replica. No message is lost; calls
    wait for the new leader.

    \b
    Examples:
      ledgermq transfer g1 --to n2
      ledgermq transfer g1 --to n2 --timeout 2m --json

    Exit status: 0 it leads; 3 the group has no leader; 4 refused, with the reason, or not caught up
    within --timeout.
    """
    remedy = "wait until it has caught up (ledgermq status), or use a longer --timeout"
    behind = 0
    meter: Meter | None = None
    with ExitStack() as stack:

        def show(answer: pb.TransferLeadershipResponse) -> None:
            nonlocal behind, meter
            if meter is None:
                behind = answer.lag_entries
                progress = Meter(f"entries that {to} has caught up with", behind or None)
                meter = stack.enter_context(progress)
            meter.show(max(0, behind - answer.lag_entries))

        connection.carry_out(transferred(connection, group, to, remedy, heard=show))
    if as_json:
        render.print_json(group=group, leader=to)
    else:
        print(f"{to} leads {group}")


@click.command("begin-time-epoch")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
@json_option
def begin_time_epoch(connection: Connection, group: str, yes: bool, as_json: bool) -> None:
    """Let store times of GROUP go on from its leader's clock, after the clocks of all nodes were
    ahead.

    Store times never fall, so retention by age, deduplication windows and delayed messages stand
    still until the clock reaches the newest store time. Behind this command, what was stored before
    counts as stored now: it goes by age within the retention time, and delayed messages that wait
    come at their time. What was delivered early stays delivered. Set the clocks right first.

    \b
    Examples:
      ledgermq begin-time-epoch g1
      ledgermq begin-time-epoch g1 --yes --json

    Exit status: 0 begun; 3 the group has no leader; 4 refused, with the reason: store times are not
    ahead, or the feature level is too low.
    """
    groups = Admin(connection).status().groups
    found = next((one for one in groups if one.name == group), None)
    if found is not None and found.store_time_ahead_ms is not None:
        by = units.duration_words(found.store_time_ahead_ms)
        confirmed(
            f"The newest store time of {group} is {by} ahead of its leader's clock. Begin a time"
            " epoch",
            yes,
        )
    request = pb.BeginTimeEpochRequest(broker_group=group)
    answer = ask(connection, request, pb.BeginTimeEpochResponse)
    if as_json:
        render.print_json(group=group, before_ms=answer.before_ms, ms=answer.ms)
    else:
        before, began = render.moment(answer.before_ms), render.moment(answer.ms)
        print(
            f"a time epoch of {group} began at {began}; the newest store time before was {before}"
        )


@click.command("why-leader-moved")
@click.argument("group")
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    default=10,
    show_default=True,
    help="Show at most N changes.",
)
@cluster_command
@json_option
def why_leader_moved(connection: Connection, group: str, last: int, as_json: bool) -> None:
    """Explain why the leader of the broker group GROUP changed: one sentence, then the recorded
    changes, the newest last.

    \b
    Examples:
      ledgermq why-leader-moved g1
      ledgermq why-leader-moved g1 --last 3 --json

    Exit status: 0 answered; 4 there is no such broker group.
    """
    render.explanation(Admin(connection).why_leader_moved(group, last=last), as_json)
