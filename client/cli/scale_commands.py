"""`ledgermq member scale`: lets the members of a cluster follow the wanted number of nodes.

Only argument parsing, progress and exit statuses live here; `scaling.py` plans. The command plans
anew after every answer, so it can be ended and run again at any time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.broker_group_commands import MOVE_LEADER, MOVE_REPLICA, step_words, take
from ledgermq.client.cli.commands import Meter, confirmed, json_option, operator_command
from ledgermq.client.cli.member_commands import ADDRESS, advertised_address, member, of_member
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.plans import scaling
from ledgermq.client.plans.scaling import Step
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from ledgermq.proto.workers import WORKERS_MAX, node_of

ASK_AGAIN_S = 0.5
AGAIN = "remove the cause, then run the same command again: it continues"

Kind = pb.ChangeMemberRequest.Kind
_KINDS = {"add": Kind.ADD, "promote": Kind.PROMOTE, "remove": Kind.REMOVE}


@member.command("scale")
@click.argument("name")
@click.option(
    "--replicas",
    "count",
    type=click.IntRange(1, 99),
    required=True,
    help="How many nodes: NAME-0, NAME-1 and so on.",
)
@click.option(
    "--address",
    "template",
    metavar="ADDRESS",
    help=(
        "Also add nodes. As for `member add`; {node} stands for the node's name, {ordinal} for its"
        " number."
    ),
)
@click.option(
    "--advertised",
    "advertised",
    metavar="HOST:PORT",
    multiple=True,
    help="As for `member add`, once for each node in turn.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Workers of each node that is added.",
)
@click.option("--dry-run", is_flag=True, help="Show the steps; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before nodes are removed.")
@operator_command
@json_option
def scale(
    connection: Connection,
    name: str,
    count: int,
    template: str | None,
    advertised: tuple[str, ...],
    workers: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make NAME-0, NAME-1 … the members, as many as --replicas says: add nodes, spread the
    replicas, move replicas away, remove nodes.

    \b
    Examples:
      ledgermq member scale mq --replicas 5 --address '{node}.mq-nodes:8081'
      ledgermq member scale mq --replicas 3 --yes
      ledgermq member scale mq --replicas 3 --dry-run

    Without --address nodes are only removed: run this before the processes stop. Nodes with other
    names stay as they are. A plan that would cost a broker group or the controller quorum its
    majority, or a broker group a replica, is refused before its first step. If interrupted, the
    same command continues.

    Exit status: 0 the members are as wanted; 3 no leader; 4 refused, with the reason, or no
    progress for --timeout.
    """
    if advertised and (template is None or len(advertised) < count):
        raise BadArgument(
            f"--advertised is given {len(advertised)} times",
            f"give --address, and --advertised for each of the {count} nodes",
        )
    scaling_run = _Scaling(
        connection, name, count, template, advertised, workers=workers, quiet=as_json
    )
    plan = scaling_run.planned()
    if plan.refused:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"{count} nodes: {plan.refused}",
            "nothing was changed; remove the cause or keep more nodes",
        )
    if not as_json:
        for number, step in enumerate(plan.steps, 1):
            print(f"{number}. {step}", flush=True)
    if not dry_run:
        if leaving := [step.node for step in plan.steps if step.kind == "remove"]:
            confirmed(f"removing {', '.join(leaving)} from the cluster", yes)
        scaling_run.carry_out()
        if template is not None:
            scaling_run.balance()
    if as_json:
        render.print_json(
            name=name,
            replicas=count,
            steps=[str(step) for step in plan.steps],
            taken=scaling_run.taken,
            dry_run=dry_run,
        )
    elif not dry_run:
        print(
            f"the members of {name} are {count} nodes"
            if template is not None
            else f"no member of {name} is beyond {count} nodes"
        )


class _Scaling:
    """One run. Its memory serves progress and time limits only."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        count: int,
        template: str | None,
        advertised: tuple[str, ...],
        workers: int,
        *,
        quiet: bool,
    ) -> None:
        self._connection = connection
        self._name, self._count, self._workers = name, count, workers
        self._template, self._advertised = template, advertised
        self._quiet = quiet
        self._addresses("x-0", 0)
        self.taken: list[str] = []

    def planned(self) -> scaling.Plan:
        status = ask(self._connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
        members = self._members()
        found = self._plan(scaling.facts(status, members))
        if not found.steps:
            # A node of an older release lists the broker groups only for users: ask only if there
            # is something to do.
            return found
        groups = ask(self._connection, pb.ListBrokerGroupsRequest(), pb.ListBrokerGroupsResponse)
        return self._plan(scaling.facts(status, members, groups.groups))

    def _members(self) -> Iterable[pb.MemberInfo]:
        return ask(self._connection, pb.ListMembersRequest(), pb.ListMembersResponse).members

    def _plan(self, cluster: scaling.Cluster) -> scaling.Plan:
        return scaling.plan(
            cluster, self._name, self._count, workers=self._workers, adds=self._template is not None
        )

    def carry_out(self) -> None:
        """Take the first step of the plan until there is none. A refusal may pass once steps were
        taken: a node restarts."""
        since, former = time.monotonic(), ""
        with Meter(f"changes of the members of {self._name}", None) as meter:
            while (plan := self.planned()).steps or plan.refused:
                waits = plan.refused or self._asked(plan.steps[0])
                meter.show(len(self.taken))
                if waits != former:
                    since, former = time.monotonic(), waits
                elif waits and time.monotonic() - since > self._connection.timeout_s:
                    raise Refused(
                        Code.PRECONDITION_FAILED,
                        f"no progress for {self._connection.timeout_s:g} s: {waits}",
                        AGAIN,
                    )
                if waits:
                    time.sleep(ASK_AGAIN_S)

    def _asked(self, step: Step) -> str:
        """Ask for a step; what it waits for, empty once it is done."""
        if step.kind in ("move", "abort"):
            request = pb.MoveReplicaRequest(
                broker_group=step.group,
                from_node=step.node,
                to_node=step.target,
                abort=step.kind == "abort",
            )
            moved = ask(self._connection, request, pb.MoveReplicaResponse)
            done, waits = moved.done, moved.waits_for
        else:
            change = pb.ChangeMemberRequest(
                kind=_KINDS[step.kind], node=step.node, addresses=self._of(step)
            )
            changed = ask(self._connection, change, pb.ChangeMemberResponse)
            done, waits = changed.done, changed.waits_for
        if done:
            self._told(str(step))
        return "" if done else f"{step}: {waits}"

    def _told(self, what: str) -> None:
        self.taken.append(what)
        if not self._quiet:
            print(f"done: {what}", flush=True)

    def _of(self, step: Step) -> pb.NodeAddresses | None:
        number = scaling.ordinal(step.node, self._name)
        return (
            self._addresses(step.node, number)
            if step.kind == "add" and number is not None
            else None
        )

    def _addresses(self, node: str, number: int) -> pb.NodeAddresses | None:
        """Raises click.BadParameter for a template that gives no address."""
        if self._template is None:
            return None
        address = ADDRESS.convert(
            self._template.replace("{node}", node_of(node)).replace("{ordinal}", str(number)),
            None,
            None,
        )
        return of_member(
            node,
            address,
            advertised_address(self._advertised[number]) if self._advertised else None,
        )

    def balance(self) -> None:
        """Spread replicas and leaders over the members, while all of them are up. Queues of topics
        are left to `ledgermq rebalance`."""
        end = time.monotonic() + self._connection.timeout_s
        while down := sorted(info.node for info in self._members() if not info.up):
            if time.monotonic() >= end:
                raise Refused(
                    Code.PRECONDITION_FAILED,
                    f"replicas are not spread while nodes are down: {', '.join(down)}",
                    AGAIN,
                )
            time.sleep(ASK_AGAIN_S)
        request, kinds = pb.PlanRebalanceRequest(), (MOVE_REPLICA, MOVE_LEADER)
        while steps := [
            step
            for step in ask(self._connection, request, pb.PlanRebalanceResponse).steps
            if step.kind in kinds
        ]:
            step = steps[0]
            take(self._connection, step)
            self._told(step_words(step))
