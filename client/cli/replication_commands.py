"""The commands about the replication of a broker group: elect and replication.

Only argument parsing, questions, progress and exit statuses live here.
"""

from __future__ import annotations

import time

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.changes import ASK_AGAIN_S, until_done
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import Meter, cluster_command, confirmed, json_option
from ledgermq.client.errors import Refused
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code


@click.command("elect")
@click.argument("group")
@click.option("--node", required=True, help="The node that shall become master.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Elect a node that is not in sync; entries that only other nodes hold are lost.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
@json_option
def elect(
    connection: Connection, group: str, node: str, unclean: bool, yes: bool, as_json: bool
) -> None:
    """Make a node master of the HA group GROUP, when no master can be elected automatically.

    Refused while there is a master (use ledgermq transfer), while members of the in-sync set are
    available, and for a node that is not in sync. --unclean overrides these checks, first shows the
    known loss, and records it in the group's log.

    \b
    Examples:
      ledgermq elect g1 --node n2
      ledgermq elect g1 --node n2 --unclean --yes

    Exit status: 0 it is master; 3 no controller quorum; 4 refused, with the reason, or it does not
    serve within --timeout.
    """
    request = pb.ElectMasterRequest(broker_group=group, node=node, unclean=unclean, preview=unclean)
    if unclean:
        loss = ask(connection, request, pb.ElectMasterResponse).loss
        confirmed(f"{loss}. Make {node} master of {group}?", yes)
        request.preview = False
    answer = ask(connection, request, pb.ElectMasterResponse)
    _wait_for_master(connection, group, node, answer.epoch)
    if as_json:
        lost = {
            "lost_entries": render.known(answer, "lost_entries"),
            "lost_ms": render.known(answer, "lost_ms"),
        }
        render.print_json(group=group, master=node, epoch=answer.epoch, loss=answer.loss, **lost)
    else:
        print(f"{node} is master of {group} in epoch {answer.epoch}: {answer.loss}")


def _wait_for_master(connection: Connection, group: str, node: str, epoch: int) -> None:
    end = time.monotonic() + connection.timeout_s
    while True:
        found = _group_now(connection, group)
        if found is not None and found.term >= epoch and found.HasField("leader"):
            return
        if time.monotonic() > end:
            what = (
                f"{node} was made master of {group} in epoch {epoch} and does not lead after"
                f" {connection.timeout_s:g} s"
            )
            raise Refused(Code.PRECONDITION_FAILED, what, "see ledgermq status and the node's log")
        time.sleep(ASK_AGAIN_S)


@click.command("replication")
@click.argument("group")
@click.option(
    "--to",
    type=click.Choice(["raft", "ha"]),
    help="raft: elections and majorities; ha: an appointed master.",
)
@click.option(
    "--min-in-sync",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replicas of an HA group that must have an entry before it is acknowledged, from now on.",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Return when the change has started; the same command continues it.",
)
@click.option("--yes", is_flag=True, help="Do not ask before a smaller --min-in-sync.")
@cluster_command
@json_option
def replication(
    connection: Connection,
    group: str,
    to: str | None,
    min_in_sync: int | None,
    no_wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the replication mode of the broker group GROUP while it is in use (--to), or how many
    replicas of an HA group must be in sync (--min-in-sync).

    For --to every voting replica must be up. --min-in-sync N is recorded in the group's log and
    counts from then on, whatever the nodes' configurations say. A smaller N lets a group go on
    whose other replicas are gone for good; with 1, the loss of one more disk may lose acknowledged
    messages.

    \b
    Examples:
      ledgermq replication g1 --to ha
      ledgermq replication g1 --to raft --no-wait
      ledgermq replication g1 --min-in-sync 1 --yes

    Afterwards set `replication` of the group, and its HA settings, in the configuration of every
    node (docs/ha.md).

    Exit status: 0 done; 2 usage; 3 no leader; 4 refused, with the reason, or no progress for
    --timeout.
    """
    if (to is None) is (min_in_sync is None):
        raise click.UsageError("give either --to or --min-in-sync")
    found = None if min_in_sync is None else _group_now(connection, group)
    # A group that is no HA group has none; the cluster refuses the change with the reason.
    former = 0 if found is None else found.ha.min_in_sync
    if min_in_sync is not None and former > min_in_sync:
        confirmed(
            f"acknowledging what only {min_in_sync} of the replicas of {group} have, instead of"
            f" {former},",
            yes,
        )
    towards = to or f"min_in_sync {min_in_sync}"
    waited: list[str] = []
    with Meter(f"{group}: steps towards {towards}", None, shown=not no_wait) as meter:

        def show(answer: pb.ChangeReplicationResponse) -> None:
            if answer.waits_for not in waited[-1:]:
                waited.append(answer.waits_for)
                meter.show(len(waited))

        answer = connection.carry_out(
            until_done(
                connection,
                pb.ChangeReplicationRequest(broker_group=group, to=to, min_in_sync=min_in_sync),
                pb.ChangeReplicationResponse,
                lambda answer: (
                    f"{group}: no progress for {connection.timeout_s:g} s; it waits until"
                    f" {answer.waits_for}"
                ),
                "bring all voters back (ledgermq status), then run the same command again",
                news=lambda answer: answer.waits_for,
                heard=show,
                wait_s=0 if no_wait else None,
            )
        )
    if as_json:
        told = {
            "replication": answer.replication or None,
            "min_in_sync": render.known(answer, "min_in_sync"),
        }
        render.print_json(group=group, **told, done=answer.done, waits_for=answer.waits_for or None)
    elif answer.done:
        print(f"{group} goes by {towards}")
    else:
        print(f"{group}: under way; waits until {answer.waits_for}")


def _group_now(connection: Connection, group: str) -> pb.BrokerGroupInfo | None:
    """A broker group as the cluster shows it."""
    status = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    return next((item for item in status.groups if item.group == group), None)
