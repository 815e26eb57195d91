"""The commands of the controller quorum that add, move and remove nodes and replicas. Pure, like
`metadata.py`.

`broker_groups.py` has the rules for the settings of a broker group and for moves.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller import broker_groups as group_specs
from ledgermq.node.controller.command_fields import (
    Refused,
    read_list,
    read_mapping,
    read_node_name,
    read_text,
)
from ledgermq.node.controller.state import (
    ADDRESS_KINDS,
    JOINING,
    NODE_STATE,
    OBSERVER,
    Json,
    Outcome,
    State,
    merged_with,
    next_state,
)
from ledgermq.proto.status import Code
from ledgermq.proto.workers import node_of


def set_cluster(state: State, command: Json) -> tuple[State, Outcome]:
    """Register the seeds of a configuration file. Unknown nodes and broker groups become known;
    known and removed ones stay as they are, because a file may be older than the cluster."""
    told = read_mapping(command.get("nodes"))
    nodes = {
        name: _read_addresses(addresses)
        for name, addresses in told.items()
        if name not in state.removed_nodes
    }
    groups = {
        name: tuple(read_text(r) for r in read_list(members))
        for name, members in read_mapping(command.get("broker_groups")).items()
    }
    new_groups = {
        name: replicas for name, replicas in groups.items() if name not in state.broker_groups
    }
    for name, replicas in new_groups.items():
        for replica in replicas:
            if replica not in nodes and replica not in state.nodes:
                raise Refused(
                    Code.BAD_REQUEST,
                    f"broker group {name} names the replica {replica}, which is no known node",
                )
    # An address of a kind that was not known before is added.
    merged = {
        name: MappingProxyType({**at, **state.nodes.get(name, {})}) for name, at in nodes.items()
    }
    after = merged_with(state.broker_groups, new_groups)
    specs = _by_specs(group_specs.announced, state.specs, read_mapping(command.get("specs")), after)
    return (
        next_state(state, nodes=merged_with(state.nodes, merged), broker_groups=after, specs=specs),
        Outcome(),
    )


def set_node(state: State, command: Json) -> tuple[State, Outcome]:
    """Add a node, or change its addresses. `state`: `joining`, `member`, `observer`, or null to
    leave it unchanged; it is required for a node that is unknown or was removed."""
    node = read_node_name(command)
    given = command.get("state")
    if given not in (None, JOINING, OBSERVER, "member"):
        raise Refused(Code.BAD_REQUEST, f"a node is joining, member or observer, not {given!r}")
    if node not in state.nodes and given is None:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"node {node} is not part of this cluster; add it: ledgermq member add {node}",
        )
    known = state.nodes.get(node, {})
    told = _read_addresses(command.get("addresses"))
    unknown = sorted(told.keys() - set(ADDRESS_KINDS))
    if unknown:
        raise Refused(
            Code.BAD_REQUEST,
            f"{unknown[0]!r} is no address of a node; known: {', '.join(ADDRESS_KINDS)}",
        )
    after = {**known, **told}
    if given is not None:
        after.pop(NODE_STATE, None)
        after.update({NODE_STATE: given} if given in (JOINING, OBSERVER) else {})
    removed = MappingProxyType(
        {name: revision for name, revision in state.removed_nodes.items() if name != node}
    )
    sealed = MappingProxyType(dict(sorted(after.items())))
    return (
        next_state(state, nodes=merged_with(state.nodes, {node: sealed}), removed_nodes=removed),
        Outcome(),
    )


def remove_node(state: State, command: Json) -> tuple[State, Outcome]:
    """Remove a node: the others stop talking to it. Removing a removed node succeeds."""
    node = read_node_name(command)
    if node in state.removed_nodes:
        return state, Outcome()
    if node not in state.nodes:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"node {node} is not part of this cluster; its nodes are"
            f" {', '.join(sorted(state.nodes))}",
        )
    holding = [group for group, replicas in sorted(state.broker_groups.items()) if node in replicas]
    if holding:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"node {node} still has a replica of broker group {', '.join(holding)}",
        )
    left = MappingProxyType({name: at for name, at in state.nodes.items() if name != node})
    removed = MappingProxyType({**state.removed_nodes, node: state.revision + 1})
    return next_state(state, nodes=left, removed_nodes=removed), Outcome()


def place_replica(state: State, command: Json) -> tuple[State, Outcome]:
    """Record whether a broker group is meant to have a replica on a node."""
    node, group = read_node_name(command), read_text(command.get("group"))
    present = command.get("present")
    if group not in state.broker_groups or not isinstance(present, bool):
        raise Refused(
            Code.BAD_REQUEST,
            f"broker group {group} does not exist; known: {', '.join(sorted(state.broker_groups))}",
        )
    if present and node not in state.nodes:
        raise Refused(Code.PRECONDITION_FAILED, f"node {node} is not part of this cluster")
    others = tuple(name for name in state.broker_groups[group] if name != node)
    if (
        present
        and (near := next((name for name in others if node_of(name) == node_of(node)), None))
        is not None
    ):
        what = (
            f"broker group {group} has a replica on {near}, which is a worker of the same node as"
            f" {node}: one failure would take both"
        )
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"{what}; choose a worker of another node, or remove {near} first",
        )
    replicas = tuple(sorted((*others, node))) if present else others
    specs = group_specs.placed_again(state.specs, group, node) if present else state.specs
    return (
        next_state(
            state, broker_groups=merged_with(state.broker_groups, {group: replicas}), specs=specs
        ),
        Outcome(),
    )


def add_broker_group(state: State, command: Json) -> tuple[State, Outcome]:
    """Add a broker group; its founders open it as soon as they learn of it. Repeating the command
    succeeds."""
    group = read_text(command.get("group"))
    specs, new = _by_specs(
        group_specs.added,
        state.specs,
        state.broker_groups,
        state.nodes,
        group,
        command.get("settings"),
    )
    value = group_specs.export_spec(specs[group])
    if not new:
        return state, Outcome(value=value)
    replicas = merged_with(state.broker_groups, {group: tuple(sorted(specs[group].founders))})
    return next_state(state, broker_groups=replicas, specs=specs), Outcome(value=value)


def begin_move(state: State, command: Json) -> tuple[State, Outcome]:
    """Begin to move a replica to another node, which opens it as soon as it learns of the move."""
    group, move = read_text(command.get("group")), _read_move(command)
    specs = _by_specs(
        group_specs.move_begun, state.specs, state.broker_groups, state.nodes, group, move
    )
    replicas = tuple(sorted({*state.broker_groups[group], move.target}))
    return (
        next_state(
            state, broker_groups=merged_with(state.broker_groups, {group: replicas}), specs=specs
        ),
        Outcome(),
    )


def end_move(state: State, command: Json) -> tuple[State, Outcome]:
    """End a move: the replica has moved (`done`), or the move is aborted. If that move is not in
    progress, nothing changes."""
    group, move, done = read_text(command.get("group")), _read_move(command), command.get("done")
    if not isinstance(done, bool):
        raise Refused(Code.BAD_REQUEST, f"a move is done or given up, not {done!r}")
    specs, replicas = _by_specs(
        group_specs.move_ended, state.specs, state.broker_groups, group, move, done=done
    )
    return (
        next_state(
            state, broker_groups=merged_with(state.broker_groups, {group: replicas}), specs=specs
        ),
        Outcome(),
    )


def prefer_leader(state: State, command: Json) -> tuple[State, Outcome]:
    """Set the preferred leader of a broker group."""
    group = read_text(command.get("group"))
    specs = _by_specs(
        group_specs.preferring, state.specs, state.broker_groups, group, read_node_name(command)
    )
    return next_state(state, specs=specs), Outcome()


def _by_specs(operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return operation(*arguments, **options)
    except group_specs.Refusal as refusal:
        raise Refused(Code.PRECONDITION_FAILED, str(refusal)) from refusal


def _read_move(command: Json) -> group_specs.Move:
    source, target = read_text(command.get("from")), read_text(command.get("to"))
    for name in (source, target):
        read_node_name({"node": name})
    return group_specs.Move(source, target)


def _read_addresses(value: Any) -> dict[str, str]:
    return {kind: read_text(at) for kind, at in sorted(read_mapping(value).items())}
