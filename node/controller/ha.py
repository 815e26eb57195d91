"""The commands by which the controller quorum elects a master of an HA group, changes its in-sync
set, or forces a master. Pure, like `metadata.py`.

This module converts commands to values of `ledgermq.raft.ha_control` and back; only that module
decides whether a request is granted. A replica leads an epoch only after it has received the
appointment for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller.users import Refusal
from ledgermq.proto.status import Code
from ledgermq.raft.ha_control import (
    AlterIsr,
    Appointment,
    ElectionRequest,
    HaRequest,
    alter,
    elect,
    force,
    from_json,
    to_json,
)
from ledgermq.raft.transfer import Cause

Json = dict[str, Any]
Appointments = Mapping[str, Appointment]
"""Broker group → its current appointment; replaced as a whole on every change."""

ELECT, ALTER, FORCE = "ha-elect", "ha-alter", "ha-force"
MEMBERS_MAX = 64


def command_of(group: str, wish: HaRequest) -> tuple[str, Json]:
    """The operation and the arguments that submit a request of the Raft core to the controller."""
    if isinstance(wish, AlterIsr):
        numbers = {"generation": wish.generation, "epoch": wish.epoch, "version": wish.version}
        return ALTER, {"group": group, "node": wish.node, **numbers, "in_sync": dict(wish.in_sync)}
    told = {
        "group": group,
        "node": wish.node,
        "incarnation": wish.incarnation,
        "generation": wish.generation,
    }
    asked = {
        "epoch": wish.epoch,
        "term": wish.term,
        "voters": dict(wish.voters),
        "cause": int(wish.cause),
        "asked_by": wish.asked_by,
    }
    asked["begun"] = wish.begun
    return FORCE if wish.cause is Cause.FORCED else ELECT, {**told, **asked}


def carry_out(operation: str, known: Appointments, command: Json) -> tuple[Appointments, Json]:
    """The appointments after a command, and the new appointment of its group. Raises Refusal."""
    group = _text(command, "group")
    present = known.get(group)
    granted = _OPERATIONS[operation](present, command)
    if isinstance(granted, str):
        raise Refusal(Code.PRECONDITION_FAILED, f"broker group {group}: {granted}")
    return MappingProxyType(dict(sorted({**known, group: granted}.items()))), to_json(granted)


def _elect(present: Appointment | None, command: Json) -> Appointment | str:
    return elect(present, _asked(command))


def _force(present: Appointment | None, command: Json) -> Appointment | str:
    return force(present, _asked(command))


def _alter(present: Appointment | None, command: Json) -> Appointment | str:
    wanted = AlterIsr(
        node=_text(command, "node"),
        generation=_number(command, "generation"),
        epoch=_number(command, "epoch"),
        version=_number(command, "version"),
        in_sync=_directories(command, "in_sync"),
    )
    return alter(present, wanted)


def _asked(command: Json) -> ElectionRequest:
    try:
        cause = Cause(_number(command, "cause"))
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, str(error)) from error
    return ElectionRequest(
        node=_text(command, "node"),
        incarnation=_text(command, "incarnation"),
        generation=_number(command, "generation"),
        epoch=_number(command, "epoch"),
        term=_number(command, "term"),
        voters=_directories(command, "voters"),
        cause=cause,
        asked_by=_text(command, "asked_by"),
        begun=command.get("begun") is True,
    )


_OPERATIONS: dict[str, Callable[[Appointment | None, Json], Appointment | str]] = {
    ELECT: _elect,
    ALTER: _alter,
    FORCE: _force,
}


def export(appointments: Appointments) -> Json:
    """For the controller's snapshot; `restore` is the inverse."""
    return {group: to_json(appointment) for group, appointment in sorted(appointments.items())}


def restore(tree: Mapping[str, Json]) -> Appointments:
    return MappingProxyType({group: from_json(told) for group, told in sorted(tree.items())})


def _text(command: Json, name: str) -> str:
    value = command.get(name)
    if not isinstance(value, str):
        raise Refusal(Code.BAD_REQUEST, f"{name} is a text, not {value!r}")
    return value


def _number(command: Json, name: str) -> int:
    value = command.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise Refusal(Code.BAD_REQUEST, f"{name} is a whole number from 0 on, not {value!r}")
    return value


def _directories(command: Json, name: str) -> Mapping[str, str]:
    """Node → identity of the data directory of its replica."""
    value = command.get(name)
    if not isinstance(value, dict) or len(value) > MEMBERS_MAX:
        raise Refusal(
            Code.BAD_REQUEST,
            f"{name} names at most {MEMBERS_MAX} nodes and their directories, not {value!r}",
        )
    if not all(
        isinstance(node, str) and isinstance(directory, str) for node, directory in value.items()
    ):
        raise Refusal(
            Code.BAD_REQUEST, f"{name} names nodes and their directories as texts, not {value!r}"
        )
    return MappingProxyType(dict(sorted(value.items())))
