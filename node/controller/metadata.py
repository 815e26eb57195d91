"""The state machine of the controller quorum: nodes, broker groups, topics, consumer groups and
users as intent, and the masters of HA groups, which only the quorum decides (`ha.py`). See
docs/architecture.md, The controller.

Pure and deterministic: `apply(state, command)` returns the next state and the answer to the caller,
and depends only on its arguments. States are immutable, so any thread may read one. Commands,
outcomes and the exported state are plain JSON values. The module uses no clock, no randomness, no
I/O, and nothing of the library that replicates the commands.

Every command has the id of its request. The state contains the outcomes of the last requests, so a
request that was submitted again because its answer was lost gets that outcome and is not executed
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ledgermq.node.controller import ha
from ledgermq.node.controller import users as user_commands
from ledgermq.node.controller.command_fields import Refused, read_count
from ledgermq.node.controller.consumer_groups import create_group, delete_group, update_group
from ledgermq.node.controller.grants import User
from ledgermq.node.controller.nodes import (
    add_broker_group,
    begin_move,
    end_move,
    place_replica,
    prefer_leader,
    remove_node,
    set_cluster,
    set_node,
)
from ledgermq.node.controller.signing_keys import with_checkpoint_key, with_receipt_key
from ledgermq.node.controller.state import (
    Json,
    Outcome,
    State,
    UnknownCommand,
    next_state,
    read_level,
)
from ledgermq.node.controller.topics import adopt_topic, create_topic, delete_topic, update_topic
from ledgermq.proto.levels import TREE_LEVEL
from ledgermq.proto.status import Code

REMEMBERED_REQUESTS = 512
LEVELS_MOST = 1 << 20


def apply(state: State, command: Json) -> tuple[State, Outcome]:
    """The only state transition. A refused command changes nothing but the stored outcomes. Raises
    UnknownCommand."""
    operation = _OPERATIONS.get(command.get("op", ""))
    if operation is None:
        raise UnknownCommand(
            f"controller command {command.get('op')!r} is unknown: start the program that submitted"
            " it, or a newer one"
        )
    request = command.get("id")
    if request is not None and request in state.answered:
        return state, state.answered[request]
    try:
        after, outcome = operation(state, command)
    except Refused as refused:
        after, outcome = state, refused.outcome
    else:
        outcome = replace(outcome, changed=after is not state)
    if request is not None:
        after = replace(after, answered=_remember(after.answered, request, outcome))
    return after, outcome


def barrier(state: State, _: Json) -> tuple[State, Outcome]:
    """Changes nothing: the caller only needs its position in the log."""
    return state, Outcome()


def _on_users(
    operation: Callable[[Mapping[str, User], Json], tuple[Mapping[str, User], Json]],
) -> Callable[[State, Json], tuple[State, Outcome]]:
    """Turn a command of `users.py` into one on the whole state."""

    def carry_out(state: State, command: Json) -> tuple[State, Outcome]:
        try:
            users, value = operation(state.users, command)
        except user_commands.Refusal as refusal:
            raise Refused(refusal.code, str(refusal)) from refusal
        return next_state(state, users=users), Outcome(value=value)

    return carry_out


def add_receipt_key(state: State, command: Json) -> tuple[State, Outcome]:
    """Add a key that signs receipts from now on, unless another key was added first."""
    try:
        keys, value = with_receipt_key(state.receipt_keys, command)
    except ValueError as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return next_state(state, receipt_keys=keys), Outcome(value=value)


def add_checkpoint_key(state: State, command: Json) -> tuple[State, Outcome]:
    """Add the public key with which a node signs checkpoints from now on. A command of feature
    level 2."""
    if state.level < TREE_LEVEL:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"the cluster has feature level {state.level}; finish the upgrade: ledgermq upgrade"
            " finish",
        )
    try:
        keys = with_checkpoint_key(state.checkpoint_keys, command)
    except ValueError as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return next_state(state, checkpoint_keys=keys), Outcome()


def raise_level(state: State, command: Json) -> tuple[State, Outcome]:
    """Raise the feature level of the cluster by one; no change if it has the level. The caller has
    asked all nodes, and has raised all broker groups. Raises UnknownCommand for a level that this
    program does not read."""
    level = read_level(read_count(command.get("level"), "level", LEVELS_MOST))
    if level > state.level + 1:
        raise Refused(
            Code.BAD_REQUEST,
            f"the cluster has feature level {state.level}, and levels are raised one by one, not to"
            f" {level}",
        )
    return next_state(state, level=max(level, state.level)), Outcome()


def _on_appointments(operation: str) -> Callable[[State, Json], tuple[State, Outcome]]:
    """Turn a command of `ha.py` into one on the whole state."""

    def carry_out(state: State, command: Json) -> tuple[State, Outcome]:
        try:
            appointments, value = ha.carry_out(operation, state.appointments, command)
        except user_commands.Refusal as refusal:
            raise Refused(refusal.code, str(refusal)) from refusal
        return next_state(state, appointments=appointments), Outcome(value=value)

    return carry_out


_OPERATIONS: dict[str, Callable[[State, Json], tuple[State, Outcome]]] = {
    "barrier": barrier,
    "set-cluster": set_cluster,
    "set-node": set_node,
    "remove-node": remove_node,
    "place-replica": place_replica,
    "add-broker-group": add_broker_group,
    "begin-move": begin_move,
    "end-move": end_move,
    "prefer-leader": prefer_leader,
    "adopt-topic": adopt_topic,
    "create-topic": create_topic,
    "update-topic": update_topic,
    "delete-topic": delete_topic,
    "create-group": create_group,
    "update-group": update_group,
    "delete-group": delete_group,
    "create-user": _on_users(user_commands.create),
    "change-user": _on_users(user_commands.change),
    "delete-user": _on_users(user_commands.delete),
    "add-receipt-key": add_receipt_key,
    "add-checkpoint-key": add_checkpoint_key,
    "raise-level": raise_level,
    **{operation: _on_appointments(operation) for operation in (ha.ELECT, ha.ALTER, ha.FORCE)},
}


def _remember(
    answered: Mapping[str, Outcome], request: str, outcome: Outcome
) -> Mapping[str, Outcome]:
    kept = list(answered.items())[-(REMEMBERED_REQUESTS - 1) :]
    return MappingProxyType({**dict(kept), request: outcome})
