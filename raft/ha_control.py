"""Appointments: what the controller quorum agrees on for a group of the rule IN_SYNC, and the three
ways to change it (docs/architecture.md, HA groups).

Pure values and functions. The controller quorum, or its stand-in in the simulator, keeps the agreed
state and applies them in one order for all nodes. These functions decide who may be master of which
epoch and who is in sync; `isr.py`, `isr_review.py` and `policy.py` say how a replica acts on it.

These functions guarantee, whatever messages are lost, late or repeated:
  an epoch is given once, to one master, and is higher than every epoch before and than every term
  its master had; only a member of the in-sync set is elected; only the master of the current epoch
  changes the set, from the set it knew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.raft.transfer import Cause

NO_EPOCH = 0
"""Before the first election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appointment:
    """One agreed master and in-sync set. `generation`: the entry that made the rule IN_SYNC (0: the
    group was created with it); it distinguishes agreements from before a change of rules. `version`
    grows with every change. `in_sync`: node → the directory by which the log knows it, empty for
    the one at the group's creation. `cause`, `asked_by`: why this node is master, for the operator;
    FORCED: entries may be lost."""

    generation: int
    version: int
    epoch: int
    master: str
    in_sync: Mapping[str, str] = field(default_factory=dict)
    cause: Cause = Cause.STARTED
    asked_by: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: later appointments are greater, even from a quorum that lost its metadata and
        counts versions anew, because epochs never fall."""
        return self.generation, self.epoch, self.version

    @property
    def forced(self) -> bool:
        return self.cause is Cause.FORCED


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRequest:
    """`asked_by` asks that `node`, known by `incarnation`, become master. `epoch`: the latest one
    that `asked_by` knew. `term`: the highest it has seen. `voters`: the in-sync set if nothing has
    been agreed for this generation. `begun`: the log shows that an epoch of this generation has
    begun, so something was agreed."""

    node: str
    incarnation: str
    generation: int
    epoch: int
    term: int
    voters: Mapping[str, str]
    cause: Cause
    asked_by: str
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr:
    """The master of `epoch` asks to replace the in-sync set of `version` by another one."""

    node: str
    generation: int
    epoch: int
    version: int
    in_sync: Mapping[str, str]


HaRequest = ElectionRequest | AlterIsr


def elect(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
    """The appointment of an elected master, or the reason against it, as a text for the operator. A
    repeated request that was granted before is refused, because the epoch has changed."""
    if ask.begun and (known is None or ask.generation > known.generation):
        return (
            "the controller quorum does not remember who is in sync, although the group had a"
            " master: it lost its metadata. If you know which replica has everything, name it:"
            " ledgermq elect --unclean"
        )
    if known is None or ask.generation > known.generation:
        in_sync, epoch, version = (
            ask.voters,
            NO_EPOCH if known is None else known.epoch,
            0 if known is None else known.version,
        )
    elif ask.generation < known.generation:
        return (
            f"{ask.node} asks for the rule of entry {ask.generation}, but the group changed its"
            f" rule with entry {known.generation}"
        )
    elif ask.epoch != known.epoch:
        return (
            f"epoch {known.epoch} with the master {known.master} has begun since epoch {ask.epoch}"
        )
    else:
        in_sync, epoch, version = known.in_sync, known.epoch, known.version
    if in_sync.get(ask.node) != ask.incarnation:
        return (
            f"{ask.node} with this directory is not in the in-sync set"
            f" ({', '.join(sorted(in_sync))})"
        )
    return Appointment(
        generation=ask.generation,
        version=version + 1,
        epoch=max(epoch, ask.term) + 1,
        master=ask.node,
        in_sync=dict(in_sync),
        cause=ask.cause,
        asked_by=ask.asked_by,
    )


def alter(known: Appointment | None, ask: AlterIsr) -> Appointment | str:
    """The appointment with another in-sync set, or the reason against it, as a text for the
    operator."""
    if known is None or (ask.generation, ask.epoch, ask.node) != (
        known.generation,
        known.epoch,
        known.master,
    ):
        return f"{ask.node} is not the master of the present epoch"
    if ask.version != known.version:
        return f"the in-sync set has changed since version {ask.version}"
    if ask.node not in ask.in_sync:
        return f"the master {ask.node} is always in sync with itself"
    return replace(known, version=known.version + 1, in_sync=dict(ask.in_sync))


def force(known: Appointment | None, ask: ElectionRequest) -> Appointment | str:
    """The appointment of `ask.node` by an operator although others may be in sync: entries that
    only they hold are lost. The in-sync set is then this node alone. Or the reason against it, as a
    text for the operator."""
    if known is not None and ask.generation < known.generation:
        return (
            f"{ask.node} lacks entry {known.generation}, which set the present rule of the group;"
            " choose another node"
        )
    if known is not None and ask.epoch != known.epoch:
        return (
            f"epoch {known.epoch} with the master {known.master} has begun since epoch {ask.epoch};"
            " check the status, then try again"
        )
    epoch, version = (NO_EPOCH, 0) if known is None else (known.epoch, known.version)
    alone = {ask.node: ask.incarnation}
    return Appointment(
        generation=ask.generation,
        version=version + 1,
        epoch=max(epoch, ask.term) + 1,
        master=ask.node,
        in_sync=alone,
        cause=Cause.FORCED,
        asked_by=ask.asked_by,
    )


def to_json(appointment: Appointment) -> dict[str, Any]:
    """Plain JSON values; `from_json` is the inverse."""
    return {
        "generation": appointment.generation,
        "version": appointment.version,
        "epoch": appointment.epoch,
        "master": appointment.master,
        "in_sync": dict(sorted(appointment.in_sync.items())),
        "cause": int(appointment.cause),
        "asked_by": appointment.asked_by,
    }


def from_json(value: Mapping[str, Any]) -> Appointment:
    """Parse what `to_json` returned. Raises KeyError, TypeError, ValueError."""
    in_sync = {str(node): str(incarnation) for node, incarnation in value["in_sync"].items()}
    return Appointment(
        generation=int(value["generation"]),
        version=int(value["version"]),
        epoch=int(value["epoch"]),
        master=str(value["master"]),
        in_sync=in_sync,
        cause=Cause(value["cause"]),
        asked_by=str(value["asked_by"]),
    )
