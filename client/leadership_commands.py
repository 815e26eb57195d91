"""The commands about the leader of a broker group: transfer and why-leader-moved.

Only argument parsing, progress and exit statuses live here.
"""

from __future__ import annotations

import time

import click

from ledgermq.client import render
from ledgermq.client.admin_calls import AdminCalls
from ledgermq.client.commands import Meter, cluster_command, json_option
from ledgermq.client.connection import Connection
from ledgermq.client.errors import Refused
from ledgermq.proto.status import Code

LAST_MAX = 64


@click.command("transfer")
@click.argument("group")
@click.option("--to", required=True, help="The node that shall become leader.")
@cluster_command
@json_option
def transfer(connection: Connection, group: str, to: str, as_json: bool) -> None:
    """Transfer the leadership of GROUP to a node with a voting replica. No message is lost; calls wait for the new leader.

    \b
    Examples:
      ledgermq transfer g1 --to n2
      ledgermq transfer g1 --to n2 --timeout 2m --json

    Exit status: 0 it leads; 3 the group has no leader; 4 refused, with the reason, or not caught up within --timeout.
    """
    admin = AdminCalls(connection)
    end = time.monotonic() + connection.timeout_s
    answer = admin.transfer_leadership(group, to)
    behind = answer.lag_entries
    with Meter(f"entries that {to} has caught up with", behind or None) as meter:
        while not answer.done:
            if time.monotonic() >= end:
                what = f"{to} does not lead {group} yet: it lacks {answer.lag_entries} entries on its disk"
                raise Refused(Code.PRECONDITION_FAILED, what, "wait until it has caught up (ledgermq status), or use a longer --timeout")
            meter.show(max(0, behind - answer.lag_entries))
            answer = admin.transfer_leadership(group, to)
    if as_json:
        render.print_json(group=group, leader=to)
    else:
        print(f"{to} leads {group}")


@click.command("why-leader-moved")
@click.argument("group")
@click.option("--last", type=click.IntRange(1, LAST_MAX), default=10, show_default=True, help="Show at most N changes.")
@cluster_command
@json_option
def why_leader_moved(connection: Connection, group: str, last: int, as_json: bool) -> None:
    """Explain why the leader of the broker group GROUP changed: one sentence, then the recorded changes, the newest last.

    \b
    Examples:
      ledgermq why-leader-moved g1
      ledgermq why-leader-moved g1 --last 3 --json

    Exit status: 0 answered; 4 there is no such broker group.
    """
    answer = AdminCalls(connection).leadership_history(group, last)
    if as_json:
        render.print_json(answer=answer.answer, reason=answer.reason, evidence=list(answer.evidence))
        return
    print(answer.answer)
    for line in answer.evidence:
        print(f"  {line}")
