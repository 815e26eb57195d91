"""Connects the controller quorum with the replicas of HA groups on this node: it delivers
appointments and submits requests.

See docs/architecture.md, HA groups.

A replica gets the current appointment of its group when it opens, on every change, and again when
it sends a request that shows that it does not know the appointment (for instance after it was
reopened in this process). A request of a replica is submitted once, with a deadline, and dropped if
it is not granted: the core sends a new request by its own timers, from its current state. So this
module stores no requests, and the data path never waits for it. Without a quorum, groups continue
under their current masters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ledgermq.node.broker.calls.member_calls import Appointed
from ledgermq.node.controller.controller import Controller
from ledgermq.node.controller.ports import GroupCaller
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import LedgerError
from ledgermq.raft.ha_control import AlterIsr, Appointment, HaRequest

WITHIN_S = 2.0
"""Deadline of a submitted request. A later answer would belong to an outdated situation."""

log = get_logger()


class HaControl:
    """`groups`: the broker groups hosted here, of any quorum rule; the set may change. The log of
    each group decides whether an appointment applies to it. All methods run on the event loop's
    thread."""

    def __init__(self, engine: GroupCaller, controller: Controller, groups: Iterable[str]) -> None:
        self._engine = engine
        self._controller = controller
        self._groups = groups
        self._notified: dict[str, Appointment] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[None]] = {}
        """(group, kind of request) → the task in progress; at most one each."""
        self._reasons: dict[tuple[str, str], str] = {}
        """Why the last request of a kind failed. A repeated reason is logged once."""
        self._logged: dict[str, dict[str, object]] = {}
        """The appointment last logged for each group. A master that hears no replica repeats its
        request while nothing changes."""

    def changed(self) -> None:
        """Handle a new state of the controller, including the first one."""
        for group in list(self._groups):
            known, notified = (
                self._controller.state.appointments.get(group),
                self._notified.get(group),
            )
            if known is not None and (notified is None or notified.order < known.order):
                self._notify(group, known)

    def opened(self, group: str) -> None:
        """Handle the opening of a group: its replica has not received any appointment yet."""
        self._notified.pop(group, None)
        self.changed()

    def wished(self, group: str, wishes: Sequence[HaRequest]) -> None:
        """Submit the requests that the group's replica made in one turn."""
        for wish in wishes:
            known = self._controller.state.appointments.get(group)
            if known is not None and _is_behind(wish, known):
                # The controller would refuse this request. If the replica knows this appointment
                # already, it ignores the repetition.
                self._notify(group, known)
                continue
            key = group, _kind(wish)
            under_way = self._asked.get(key)
            if under_way is None or under_way.done():
                self._asked[key] = asyncio.create_task(
                    self._ask(group, wish), name=f"appoint-{group}"
                )

    async def stop(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def _ask(self, group: str, wish: HaRequest) -> None:
        key = group, _kind(wish)
        try:
            granted = await self._controller.appoint(group, wish, WITHIN_S)
        except LedgerError as error:
            # After a refusal or a timeout the core examines its state again and sends a new request
            # if it still needs one.
            metrics.HA_REQUESTS.labels(
                group, key[1], "unanswered" if error.retryable else "refused"
            ).inc()
            if self._reasons.get(key) != error.message:
                self._reasons[key] = error.message
                log.warning(
                    "the controller did not grant a request of the replica",
                    group=group,
                    kind=key[1],
                    reason=error.message,
                )
            self.opened(group)
            return
        metrics.HA_REQUESTS.labels(group, key[1], "granted").inc()
        self._reasons.pop(key, None)
        agreed: dict[str, object] = {
            "epoch": granted.epoch,
            "master": granted.master,
            "in_sync": sorted(granted.in_sync),
        }
        if self._logged.get(group) != agreed:
            self._logged[group] = agreed
            log.info("appointed", group=group, kind=key[1], **agreed)
        self._notify(group, granted)

    def _notify(self, group: str, appointment: Appointment) -> None:
        notified = self._notified.get(group)
        if notified is None or notified.order < appointment.order:
            self._notified[group] = appointment
        self._engine.notify_at_once(group, Appointed(appointment))


def _kind(wish: HaRequest) -> str:
    return "alter" if isinstance(wish, AlterIsr) else "elect"


def _is_behind(wish: HaRequest, known: Appointment) -> bool:
    """Whether the agreed appointment is newer than the one the request was based on."""
    if wish.generation != known.generation:
        return wish.generation < known.generation
    return wish.epoch < known.epoch or (isinstance(wish, AlterIsr) and wish.version < known.version)
