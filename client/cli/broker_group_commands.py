"""The commands about broker groups as a whole: broker-group, move-replica and rebalance.

Only argument parsing, progress and exit statuses live here; the nodes plan how to balance the
cluster. Each command repeats its request until the change is complete. An interrupted change stays
as it is, and the same command continues it.
"""

from __future__ import annotations

from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.changes import transferred
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    Meter,
    carried_out,
    cluster_command,
    confirmed,
    json_option,
)
from ledgermq.client.errors import BadArgument, ClusterError, Stopped
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import stored_name

MOVE_REPLICA, MOVE_LEADER = "move-replica", "move-leader"


@click.group("broker-group")
def broker_group() -> None:
    """Add broker groups to a running cluster, and list them.

    \b
    Examples:
      ledgermq broker-group list
      ledgermq broker-group add g4
      ledgermq broker-group add g5 --replicas n1,n2,n4 --replication ha
    """


@broker_group.command("add")
@click.argument("name")
@click.option(
    "--replicas",
    help="Nodes of the group, as n1,n2,n3. [default: the nodes with the fewest replicas]",
)
@click.option(
    "--count",
    type=click.IntRange(1, 64),
    help="Number of nodes, if --replicas is not given. [default: 3, or all if fewer]",
)
@click.option(
    "--replication", type=click.Choice(["raft", "ha"]), help="Replication mode. [default: raft]"
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another configuration key of a broker group; repeatable.",
)
@click.option("--no-wait", is_flag=True, help="Return when the creation has started.")
@cluster_command
@json_option
def add(
    connection: Connection,
    name: str,
    replicas: str | None,
    count: int | None,
    replication: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    as_json: bool,
) -> None:
    """Create the broker group NAME without restarting nodes. To give a topic queues in it: ledgermq
    topic update --add-group.

    \b
    Examples:
      ledgermq broker-group add g4
      ledgermq broker-group add g4 --count 5
      ledgermq broker-group add g5 --replicas n1,n2 --replication ha --set ack=in-sync \\
        --set min_in_sync=2

    Exit status: 0 it has a leader and all replicas; 3 no controller quorum; 4 refused, with the
    reason, or no progress for --timeout.
    """
    if replicas is not None and count is not None:
        raise BadArgument(
            "--replicas names the nodes, and --count says how many to choose", "give one of them"
        )
    given = dict(_setting(text) for text in settings)
    if replication is not None:
        given["replication"] = replication
    nodes = [node.strip() for node in (replicas or "").split(",") if node.strip()]
    if replicas is not None and not nodes:
        raise BadArgument(
            "--replicas names no node", "write for instance --replicas n1,n2,n3, or leave it out"
        )
    request = pb.AddBrokerGroupRequest(name=name, replicas=nodes, count=count or 0, settings=given)
    created = False
    with Meter(f"broker group {name} begins", None, shown=not no_wait) as meter:

        def show(found: pb.AddBrokerGroupResponse) -> None:
            nonlocal created
            created |= found.created
            meter.show(0)

        answer = carried_out(
            connection, request, pb.AddBrokerGroupResponse, name, show, no_wait=no_wait
        )
    created |= answer.created
    placed = sorted(answer.replicas)
    if as_json:
        waits = answer.waits_for or None
        preferred = answer.preferred or None
        render.print_json(
            group=name,
            created=created,
            done=answer.done,
            waits_for=waits,
            replicas=placed,
            preferred=preferred,
        )
    else:
        state = f"; waits for: {answer.waits_for}" if not answer.done else ""
        print(
            f"{'created' if created else 'exists already, with these settings'}: {name} on"
            f" {', '.join(placed)}{state}"
        )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadArgument(
            f"--set {text!r} is not KEY=VALUE", "write for instance --set data_file_bytes=256MiB"
        )
    return key, value


@broker_group.command("list")
@cluster_command
@json_option
def list_groups(connection: Connection, as_json: bool) -> None:
    """List the broker groups: replicas, current and preferred leader, queues, and moves under way.

    \b
    Examples:
      ledgermq broker-group list
      ledgermq broker-group list --json

    Exit status: 0 answered; 3 no node answers.
    """
    request = pb.ListBrokerGroupsRequest()
    groups = ask(connection, request, pb.ListBrokerGroupsResponse).groups
    if as_json:
        render.print_json(groups=[_group_json(found) for found in groups])
        return
    rows = [
        [
            found.broker_group,
            found.replication,
            found.leader or "none",
            found.preferred or "-",
            " ".join(_shown(member) for member in found.members) or " ".join(found.replicas),
            found.queues,
            f"{found.move.from_node} to {found.move.to_node}" if found.HasField("move") else "-",
        ]
        for found in groups
    ]
    render.print_table(
        "broker groups",
        ["group", "replication", "leader", "meant to lead", "replicas", "queues", "moves"],
        rows,
    )


def _shown(member: pb.MemberProgress) -> str:
    return member.node if member.role == "voter" else f"{member.node} ({member.role})"


def _group_json(found: pb.BrokerGroupEntry) -> dict[str, Any]:
    members = [
        {
            "node": row.node,
            "role": row.role or None,
            "lag_entries": row.lag_entries if row.HasField("lag_entries") else None,
        }
        for row in found.members
    ]
    move = (
        {"from": found.move.from_node, "to": found.move.to_node} if found.HasField("move") else None
    )
    return {
        "group": found.broker_group,
        "replication": found.replication,
        "replicas": list(found.replicas),
        "leader": found.leader or None,
        "preferred": found.preferred or None,
        "queues": found.queues,
        "move": move,
        "members": members,
    }


@click.command("move-replica")
@click.argument("group")
@click.option("--from", "source", required=True, help="The node that gives up its replica.")
@click.option("--to", "target", required=True, help="The node that receives it.")
@click.option("--abort", is_flag=True, help="Abort the move that is under way.")
@click.option(
    "--no-wait",
    is_flag=True,
    help="Return when the move has started; the same command continues it.",
)
@cluster_command
@json_option
def move_replica(
    connection: Connection,
    group: str,
    source: str,
    target: str,
    abort: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Move a replica of the broker group GROUP to another node: the new copy catches up and votes
    before the old one is removed.

    \b
    Examples:
      ledgermq move-replica g1 --from n1 --to n4
      ledgermq move-replica g1 --from n1 --to n4 --abort

    Producers and consumers continue. If interrupted, the same command continues the move. The old
    directory stays on its node.

    Exit status: 0 it has moved; 3 no leader; 4 refused, with the reason, or no progress for
    --timeout; 130 interrupted, the move stays as it is.
    """
    request = pb.MoveReplicaRequest(
        broker_group=group, from_node=source, to_node=target, abort=abort
    )
    try:
        answer = _moved(connection, request, no_wait=no_wait)
    except KeyboardInterrupt:
        what = f"stopped while the replica of {group} is on its way from {source} to {target}"
        on = f"continue: {_command(request)}"
        raise Stopped(
            what, on if abort else f"{on}, or abort: {_command(request)} --abort"
        ) from None
    if as_json:
        left = answer.left_directory or None
        render.print_json(
            group=group,
            **{"from": source, "to": target},
            done=answer.done,
            step=answer.step,
            waits_for=answer.waits_for or None,
            left=left,
        )
    elif not answer.done:
        print(f"{group}: under way ({answer.step}); waits for: {answer.waits_for}")
    elif abort:
        print(
            f"{group}: the replica stays on {source}; what was copied stays in"
            f" {answer.left_directory}"
        )
    else:
        print(
            f"{group}: the replica of {source} is on {target} now; its files stay in"
            f" {answer.left_directory}"
        )


def _command(request: pb.MoveReplicaRequest) -> str:
    abort = " --abort" if request.abort else ""
    return (
        f"ledgermq move-replica {request.broker_group} --from {request.from_node} --to"
        f" {request.to_node}{abort}"
    )


def _moved(
    connection: Connection, request: pb.MoveReplicaRequest, *, no_wait: bool = False
) -> pb.MoveReplicaResponse:
    most = 0
    what = f"entries of {request.broker_group} that {request.to_node} has caught up with"
    with Meter(what, None, shown=not no_wait) as meter:

        def show(found: pb.MoveReplicaResponse) -> None:
            nonlocal most
            if not found.HasField("progress") or not found.progress.HasField("lag_entries"):
                meter.show(0)
                return
            most = max(most, found.progress.lag_entries)
            meter.expect(most or None, render.known(found.progress, "seconds_left"))
            meter.show(most - found.progress.lag_entries)

        group = request.broker_group
        return carried_out(
            connection, request, pb.MoveReplicaResponse, group, show, no_wait=no_wait
        )


@click.command("rebalance")
@click.option("--dry-run", is_flag=True, help="Show the plan with its reasons; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
@json_option
def rebalance(connection: Connection, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Spread replicas, leaders and queues evenly. The whole plan is shown, with a reason for each
    step, before anything moves.

    \b
    Examples:
      ledgermq rebalance --dry-run
      ledgermq rebalance --yes

    The steps run one after the other. Ctrl-C stops: completed steps stay, the next rebalance
    continues the one under way, and a replica move can be aborted (move-replica --abort). Ordered
    topics, lite topics and topics with deduplication keep their queues where they are.

    Exit status: 0 balanced, or the plan was shown; 3 no leader; 4 a step was refused; 130
    interrupted, completed steps stay.
    """
    plan = ask(connection, pb.PlanRebalanceRequest(), pb.PlanRebalanceResponse)
    if not as_json:
        for number, step in enumerate(plan.steps, 1):
            print(f"{number}. {step_words(step)}: {step.reason}")
        for note in plan.notes:
            print(f"note: {note}")
    taken = 0
    if plan.steps and not dry_run:
        confirmed(f"moving this ({len(plan.steps)} steps)", yes)
        for step in plan.steps:
            try:
                take(connection, step)
            except KeyboardInterrupt:
                raise _stopped(plan, taken, step) from None
            except ClusterError as error:
                error.what = (
                    f"step {taken + 1} of {len(plan.steps)}, {step_words(step)}: {error.what}"
                )
                raise
            taken += 1
            if not as_json:
                print(f"done: {step_words(step)}")
    if as_json:
        render.print_json(
            steps=[_step_json(step) for step in plan.steps],
            notes=list(plan.notes),
            taken=taken,
            dry_run=dry_run,
        )
    elif not plan.steps:
        print("balanced: nothing to move")


def _stopped(plan: pb.PlanRebalanceResponse, taken: int, step: pb.RebalanceStep) -> Stopped:
    what = (
        f"stopped in step {taken + 1} of {len(plan.steps)}, {step_words(step)}: completed steps"
        " stay"
    )
    on = "continue: ledgermq rebalance"
    return Stopped(
        what,
        (
            f"{on}, or abort this move: {_command(_request(step))} --abort"
            if step.kind == MOVE_REPLICA
            else on
        ),
    )


def _request(step: pb.RebalanceStep) -> pb.MoveReplicaRequest:
    return pb.MoveReplicaRequest(
        broker_group=step.broker_group, from_node=step.from_node, to_node=step.to_node
    )


def take(connection: Connection, step: pb.RebalanceStep) -> None:
    """Carry a step of a rebalance out. Raises Refused without progress for the connection's
    timeout."""
    group, to = step.broker_group, step.to_node
    if step.kind == MOVE_REPLICA:
        _moved(connection, _request(step))
    elif step.kind == MOVE_LEADER:
        preference = pb.PreferLeaderRequest(broker_group=group, node=to)
        ask(connection, preference, pb.PreferLeaderResponse)
        remedy = "leadership moves once it has caught up; or run rebalance again later"
        connection.carry_out(transferred(connection, group, to, remedy))
    else:
        request = pb.UpdateTopicRequest(topic=step.topic, grow={group: step.queues})
        ask(connection, request, pb.UpdateTopicResponse)


def step_words(step: pb.RebalanceStep) -> str:
    """A step of a rebalance for people."""
    if step.kind == MOVE_REPLICA:
        return f"move the replica of {step.broker_group} from {step.from_node} to {step.to_node}"
    if step.kind == MOVE_LEADER:
        return f"let {step.to_node} lead {step.broker_group} instead of {step.from_node}"
    return (
        f"{step.queues} queues of topic {stored_name(step.topic.namespace, step.topic.name)} in"
        f" {step.broker_group}"
    )


def _step_json(step: pb.RebalanceStep) -> dict[str, Any]:
    topic = stored_name(step.topic.namespace, step.topic.name) if step.HasField("topic") else None
    places = {"from": step.from_node or None, "to": step.to_node or None}
    return {
        "kind": step.kind,
        "group": step.broker_group,
        **places,
        "topic": topic,
        "queues": step.queues or None,
        "reason": step.reason,
    }
