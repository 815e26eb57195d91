"""`ledgermq member`: list, add, promote, drain and remove the nodes of a cluster, and change their
addresses.

Only argument parsing, progress and exit statuses live here. Each command repeats its request until
the change is complete. An interrupted change stays as it is, and the same command continues it.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.changes import ASK_AGAIN_S
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    Meter,
    carried_out,
    cluster_command,
    confirmed,
    json_option,
    operator_command,
)
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.plans import draining
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import host_port, units
from ledgermq.proto.status import Code
from ledgermq.proto.workers import WORKER_PORT_STEP, is_first, node_of, number_of

PORT_STEPS = {"client": 0, "peer": 1000, "controller": 2000, "http": 3000}
_FOUR_PORTS = re.compile(
    r"(?P<client>.+:\d+):(?P<peer>\d+):(?P<controller>\d+):(?P<http>\d+)", re.ASCII
)

Kind = pb.ChangeMemberRequest.Kind


class Address(click.ParamType[pb.NodeAddresses]):
    """Parse `HOST:PORT` (client port; peer, controller, HTTP at +1000, +2000, +3000) or
    `HOST:CLIENT:PEER:CONTROLLER:HTTP`."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> pb.NodeAddresses:
        if isinstance(value, pb.NodeAddresses):
            return value
        text = str(value)
        match = _FOUR_PORTS.fullmatch(text)
        try:
            host, port = host_port.split(text if match is None else match["client"])
        except ValueError:
            self.fail(
                f"{text!r} is not an address; give HOST:PORT or HOST:CLIENT:PEER:CONTROLLER:HTTP,"
                " IPv6 as [::1]:PORT",
                param,
                ctx,
            )
        derived = {kind: port + step for kind, step in PORT_STEPS.items()}
        ports = (
            derived
            if match is None
            else {**derived, **{kind: int(match[kind]) for kind in ("peer", "controller", "http")}}
        )
        if not all(0 < port < 65536 for port in ports.values()):
            self.fail(
                f"{text!r} has a port above 65535, or derives one; give all four:"
                " HOST:CLIENT:PEER:CONTROLLER:HTTP",
                param,
                ctx,
            )
        return pb.NodeAddresses(
            **{kind: host_port.joined(host, port) for kind, port in ports.items()}
        )


def of_member(
    node: str, address: pb.NodeAddresses | None, advertised: str | None
) -> pb.NodeAddresses | None:
    """The addresses of a member whose node has this address; clients are told `advertised`, if it
    is given. A further worker has its own peer and controller ports (docs/workers.md). Raises
    BadArgument."""
    if advertised is not None and address is None:
        raise BadArgument(
            "--advertised is the address for clients only",
            "give the address of the node too: --address HOST:PORT",
        )
    if address is None:
        return None
    found = pb.NodeAddresses(
        client=advertised or address.client,
        peer=address.peer,
        controller=address.controller,
        http=address.http,
    )
    if is_first(node):
        return found
    for kind in ("peer", "controller"):
        host, port = host_port.split(getattr(address, kind))
        if (above := port + WORKER_PORT_STEP * (number_of(node) - 1)) > 65535:
            raise BadArgument(
                f"{node} would have {kind} port {above}",
                "give its node lower ports, or run fewer workers",
            )
        setattr(found, kind, host_port.joined(host, above))
    return found


ADDRESS = Address()


def advertised_address(value: str) -> str:
    """HOST:PORT, unchanged. Raises click.BadParameter."""
    try:
        port = host_port.split(value)[1]
    except ValueError:
        port = 0
    if not port:
        raise click.BadParameter(
            f"{value!r} is not an address; give HOST:PORT, IPv6 as [::1]:PORT",
            param_hint="--advertised",
        )
    return value


_advertised_option = click.option(
    "--advertised",
    metavar="HOST:PORT",
    callback=lambda _, __, value: None if value is None else advertised_address(value),
    help=(
        "Where clients reach NODE, if elsewhere than its peers do (advertised_host,"
        " advertised_port). [default: as --address]"
    ),
)
_group_option = click.option(
    "--group",
    "groups",
    multiple=True,
    help="Only this broker group; repeatable. [default: all, and the controllers]",
)
_wait_option = click.option(
    "--no-wait",
    is_flag=True,
    help="Return when the change has started; the same command continues it.",
)


@click.group()
def member() -> None:
    """Show the nodes of the cluster, add and remove them, prepare their stop, and change their
    addresses.

    \b
    Examples:
      ledgermq member list
      ledgermq member show n1
      ledgermq member add n4 --address 10.0.0.4:8081
      ledgermq member promote n4
      ledgermq member drain n1
      ledgermq member remove n1
      ledgermq member scale mq --replicas 3
      ledgermq member set-address n2 10.0.0.9:8081
    """


@member.command("add")
@click.argument("node")
@click.option(
    "--address",
    type=ADDRESS,
    help="HOST:PORT or HOST:CLIENT:PEER:CONTROLLER:HTTP; required for a new node.",
)
@_advertised_option
@_group_option
@click.option(
    "--observer",
    is_flag=True,
    help="Add an observer: an asynchronous standby, for example at another site, that never votes.",
)
@_wait_option
@cluster_command
@json_option
def add(
    connection: Connection,
    node: str,
    address: pb.NodeAddresses | None,
    advertised: str | None,
    groups: tuple[str, ...],
    observer: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Add NODE: it becomes a learner of its broker groups and a voter of the controllers. It must
    run with `join: true`.

    \b
    Examples:
      ledgermq member add n4 --address 10.0.0.4:8081
      ledgermq member add n4 --address 10.0.0.4:8081:9081:10081:11081 --no-wait
      ledgermq member add dr1 --address 10.9.0.1:8081 --observer
      ledgermq member add n4.2 --address 10.0.0.4:8081

    A learner replicates everything but does not vote; make it a voter with: ledgermq member promote
    NODE. An observer never votes, and no commit waits for it. Add the workers of a node one by one,
    each with the address of its node.

    Exit status: 0 it has joined and caught up; 3 no leader; 4 refused, with the reason, or no
    progress for --timeout.
    """
    places = of_member(node, address, advertised)
    request = pb.ChangeMemberRequest(
        kind=Kind.ADD, node=node, addresses=places, broker_groups=groups, observer=observer
    )
    _carry_out(
        connection,
        request,
        "observes" if observer else "has joined",
        no_wait=no_wait,
        as_json=as_json,
    )


@member.command("promote")
@click.argument("node")
@_group_option
@click.option("--observer-too", is_flag=True, help="Also promote NODE where it is an observer.")
@_wait_option
@cluster_command
@json_option
def promote(
    connection: Connection,
    node: str,
    groups: tuple[str, ...],
    observer_too: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Make NODE a voter of its broker groups, once it has caught up.

    \b
    Examples:
      ledgermq member promote n4
      ledgermq member promote n4 --group g1

    Exit status: 0 it votes; 3 no leader; 4 refused, with the reason, or no progress for --timeout.
    """
    request = pb.ChangeMemberRequest(
        kind=Kind.PROMOTE, node=node, broker_groups=groups, observer=observer_too
    )
    _carry_out(connection, request, "votes", no_wait=no_wait, as_json=as_json)


@member.command("remove")
@click.argument("node")
@_group_option
@_wait_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
@json_option
def remove(
    connection: Connection,
    node: str,
    groups: tuple[str, ...],
    no_wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove NODE from its broker groups and from the controller quorum. Its data stays on its
    disk; stop its process afterwards.

    \b
    Examples:
      ledgermq member remove n1
      ledgermq member remove n1 --group g2 --yes

    To come back, the node needs an empty directory and `member add`.

    Exit status: 0 it is out; 3 no leader; 4 refused because a quorum would be lost, with the
    explanation.
    """
    confirmed(
        f"removing {node} from"
        f" {'broker group ' + ' and '.join(groups) if groups else 'the cluster'}",
        yes,
    )
    request = pb.ChangeMemberRequest(kind=Kind.REMOVE, node=node, broker_groups=groups)
    _carry_out(connection, request, "is removed", no_wait=no_wait, as_json=as_json)


@member.command("drain")
@click.argument("node")
@operator_command
@json_option
def drain(connection: Connection, node: str, as_json: bool) -> None:
    """Prepare the stop of NODE: wait until the cluster can do without it, then hand its leaderships
    over.

    \b
    Examples:
      ledgermq member drain n1 --timeout 1m && systemctl stop ledgermq
      ledgermq member drain n1 --endpoints 127.0.0.1:8081 --cluster-secret ledgermq-data/secret

    Every broker group, and the controller quorum, must keep a majority of members that are up and
    have caught up; an HA group must keep min_in_sync members of its in-sync set. What has too few
    other members to work without NODE is printed and not waited for. Stop NODE soon: a preferred
    leader gets its leadership back after a while.

    Exit status: 0 NODE can stop; 3 no node answers; 4 not within --timeout, with the reasons.
    """
    end = time.monotonic() + connection.timeout_s
    moved: dict[str, str] = {}
    with Meter(f"leaderships handed over by {node}", None) as meter:
        while (found := _drain_step(connection, node, moved)).waits or found.transfers:
            if time.monotonic() >= end:
                reasons = [
                    *found.waits,
                    *(f"{to} does not lead {group} yet" for group, to in found.transfers.items()),
                ]
                what = f"{node} cannot stop without a loss: {'; '.join(reasons)}"
                raise Refused(
                    Code.PRECONDITION_FAILED,
                    what,
                    "remove the cause (ledgermq status), or use a longer --timeout",
                )
            meter.show(len(moved))
            time.sleep(ASK_AGAIN_S)
    if as_json:
        transfers = [{"group": group, "leader": leader} for group, leader in sorted(moved.items())]
        render.print_json(node=node, transfers=transfers, losses=found.losses)
        return
    for group, leader in sorted(moved.items()):
        print(f"{leader} leads {group}")
    for loss in found.losses:
        print(loss)
    print(f"{node} can stop")


def _drain_step(connection: Connection, node: str, moved: dict[str, str]) -> draining.Drain:
    """Ask for every transfer that is possible now, and note those that are done. Raises Refused if
    there is no such node."""
    status = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    members = ask(connection, pb.ListMembersRequest(), pb.ListMembersResponse).members
    known = sorted({node_of(member.node) for member in members})
    if node not in known:
        raise Refused(Code.NOT_FOUND, f"there is no node {node}", f"name one of {', '.join(known)}")
    found = draining.plan(status, members, node)
    for group, to in found.transfers.items():
        try:
            request = pb.TransferLeadershipRequest(broker_group=group, to=to)
            if ask(connection, request, pb.TransferLeadershipResponse).done:
                moved[group] = to
        except Refused as refusal:
            found.waits.append(f"broker group {group}: {refusal.what}")
    return found


@member.command("set-address")
@click.argument("node")
@click.argument("address", type=ADDRESS)
@_advertised_option
@cluster_command
@json_option
def set_address(
    connection: Connection,
    node: str,
    address: pb.NodeAddresses,
    advertised: str | None,
    as_json: bool,
) -> None:
    """Set the address of NODE (for a worker, of its node) on all nodes. They also keep trying the
    former address.

    \b
    Examples:
      ledgermq member set-address n2 10.0.0.9:8081
      ledgermq member set-address n2 10.0.0.9:8081:9081:10081:11081

    Exit status: 0 known; 3 no leader; 4 refused, with the reason.
    """
    request = pb.ChangeMemberRequest(
        kind=Kind.SET_ADDRESS, node=node, addresses=of_member(node, address, advertised)
    )
    _carry_out(
        connection, request, f"is at {advertised or address.client}", no_wait=False, as_json=as_json
    )


@member.command("list")
@cluster_command
@json_option
def list_members(connection: Connection, as_json: bool) -> None:
    """List the nodes of the cluster with their addresses and their roles in each broker group.

    \b
    Examples:
      ledgermq member list
      ledgermq member list --json

    Exit status: 0 answered; 3 no node answers.
    """
    members = ask(connection, pb.ListMembersRequest(), pb.ListMembersResponse).members
    if as_json:
        render.print_json(members=[_as_json(found) for found in members])
        return
    for found in members:
        groups = " ".join(map(_in_group, found.groups)) or "-"
        votes = "controller" if found.controller else "-"
        print(
            f"{found.node} {found.addresses.client or '-'} {found.state}"
            f" {'up' if found.up else 'down'} {votes} {groups}"
        )


@member.command("show")
@click.argument("node")
@click.option(
    "--log",
    "log_lines",
    type=click.IntRange(0, 200),
    default=20,
    show_default=True,
    help="Last lines of the log of NODE.",
)
@click.option(
    "--configuration",
    is_flag=True,
    help="Also print the configuration in force, with the secrets masked.",
)
@cluster_command
@json_option
def show(
    connection: Connection, node: str, log_lines: int, configuration: bool, as_json: bool
) -> None:
    """Show the process of NODE: version, memory, connections, and the last lines of its log.

    \b
    Examples:
      ledgermq member show n1
      ledgermq member show n2 --log 200
      ledgermq member show n1 --log 0 --configuration --json

    NODE keeps the last 200 lines in memory, and cuts each after 2,000 characters; `node.log` has
    all of them.

    Exit status: 0 answered; 3 no node answers; 4 there is no such node, or it does not answer.
    """
    request = pb.DescribeNodeRequest(node=node, log_lines=log_lines, configuration=configuration)
    found = ask(connection, request, pb.DescribeNodeResponse)
    configured = json.loads(found.configuration) if found.HasField("configuration") else None
    known = {name: getattr(found, name) if found.HasField(name) else None for name in _OF_PROCESS}
    if as_json:
        render.print_json(
            node=found.node,
            pid=found.pid,
            **known,
            telemetry_streams=found.telemetry_streams,
            native_streams=found.native_streams,
            peers=list(found.peers),
            connected_peers=list(found.connected_peers),
            configuration=configured,
            log=list(found.log),
        )
        return
    resident, clients = known["resident_bytes"], known["client_connections"]
    print(
        f"node: {found.node}, version {known['version']}, native {known['native'] or 'none'}, pid"
        f" {found.pid}"
    )
    if found.HasField("started_ms"):
        print(f"started: {render.moment(found.started_ms)}")
    print(f"resident memory: {'unknown' if resident is None else units.size_words(resident)}")
    print(
        f"open files: {_or_unknown(known['open_files'])} of {_or_unknown(known['open_files_max'])}"
    )
    print(f"connections of clients: {'not counted' if clients is None else clients}")
    print(f"open streams: {found.telemetry_streams} telemetry, {found.native_streams} native")
    print(
        f"connected nodes: {' '.join(found.connected_peers) or 'none'} (of"
        f" {' '.join(found.peers) or 'none'})"
    )
    if configured is not None:
        print(f"configuration: {json.dumps(configured, indent=2)}")
    for line in found.log:
        print(line)


_OF_PROCESS = (
    "version",
    "native",
    "started_ms",
    "resident_bytes",
    "open_files",
    "open_files_max",
    "client_connections",
)


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _in_group(row: pb.MemberProgress) -> str:
    """The role of a node in a broker group, and how far an observer lags."""
    text = f"{row.broker_group}={row.role}"
    if row.role != "observer":
        return text
    entries = (
        f"{row.lag_entries} entries"
        if row.HasField("lag_entries")
        else "an unknown number of entries"
    )
    return (
        f"{text}({entries}{f', {units.duration_words(row.lag_ms)}' if row.HasField('lag_ms') else ''}"
        " behind)"
    )


def _as_json(found: pb.MemberInfo) -> dict[str, Any]:
    places = found.addresses
    addresses = {kind: getattr(places, kind) or None for kind in PORT_STEPS}
    return {
        "node": found.node,
        "addresses": addresses,
        "state": found.state,
        "up": found.up,
        "controller": found.controller,
        "groups": [_progress_json(row) for row in found.groups],
    }


def _progress_json(row: pb.MemberProgress) -> dict[str, Any]:
    lag = row.lag_entries if row.HasField("lag_entries") else None
    lag_ms = row.lag_ms if row.HasField("lag_ms") else None
    return {
        "group": row.broker_group,
        "role": row.role or None,
        "lag_entries": lag,
        "lag_ms": lag_ms,
    }


def _carry_out(
    connection: Connection,
    request: pb.ChangeMemberRequest,
    end: str,
    *,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Make the change, and say how far it is."""
    most = 0
    with Meter(f"entries that {request.node} has caught up with", None, shown=not no_wait) as meter:

        def show(answer: pb.ChangeMemberResponse) -> None:
            nonlocal most
            lag = sum(row.lag_entries for row in answer.groups)
            most = max(most, lag)
            left = [row.seconds_left for row in answer.groups if row.HasField("seconds_left")]
            meter.expect(most or None, max(left, default=None))
            meter.show(most - lag)

        answer = carried_out(
            connection, request, pb.ChangeMemberResponse, request.node, show, no_wait=no_wait
        )
    if as_json:
        waits = answer.waits_for or None
        render.print_json(
            node=request.node,
            done=answer.done,
            waits_for=waits,
            groups=[_progress_json(row) for row in answer.groups],
        )
    elif answer.done:
        print(f"{request.node} {end}")
    else:
        print(f"{request.node}: under way; waits for: {answer.waits_for}")
