"""Between the controller quorum and the replicas of HA groups on this node: appointments come in, wishes go out.

See docs/architecture.md, HA groups.

Whatever is agreed on of a group goes to its replica: at the start, with every change, and again when the replica wishes for something as
if it did not know, as one does that was opened again in this process. What a replica wishes is put to the quorum once, within a deadline,
and dropped if it is not granted: the core wishes again by its own timers, from what it knows then. So nothing is kept here, nothing waits
here, and the data path never does: without a quorum groups run on under the masters they have.
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
"""A wish older than this was wished for in another situation."""

log = get_logger()


class HaControl:
    """`groups`: those hosted here, which may come and go, of whichever rule; the log of each decides whether its appointment means anything
    to it. All methods belong to the loop's thread."""

    def __init__(self, engine: GroupCaller, controller: Controller, groups: Iterable[str]) -> None:
        self._engine = engine
        self._controller = controller
        self._groups = groups
        self._notified: dict[str, Appointment] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[None]] = {}
        """One of a kind at a time for each group."""
        self._reasons: dict[tuple[str, str], str] = {}
        """Why the last wish of a kind came to nothing: said once, however often it is repeated."""
        self._logged: dict[str, dict[str, object]] = {}
        """What was said of each group last. A master that hears nobody asks again and again whether the set is as it was."""

    def changed(self) -> None:
        """The controller's state is another one, or is there for the first time."""
        for group in list(self._groups):
            known, notified = self._controller.state.appointments.get(group), self._notified.get(group)
            if known is not None and (notified is None or notified.order < known.order):
                self._notify(group, known)

    def opened(self, group: str) -> None:
        """The group runs, maybe anew: this replica was told nothing yet."""
        self._notified.pop(group, None)
        self.changed()

    def wished(self, group: str, wishes: Sequence[HaRequest]) -> None:
        """What the group's replica wishes after a turn."""
        for wish in wishes:
            known = self._controller.state.appointments.get(group)
            if known is not None and _is_behind(wish, known):
                # It could not be granted. Told before this wish was made, the replica will find nothing new in it.
                self._notify(group, known)
                continue
            key = group, _kind(wish)
            under_way = self._asked.get(key)
            if under_way is None or under_way.done():
                self._asked[key] = asyncio.create_task(self._ask(group, wish), name=f"appoint-{group}")

    async def stop(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def _ask(self, group: str, wish: HaRequest) -> None:
        key = group, _kind(wish)
        try:
            granted = await self._controller.appoint(group, wish, WITHIN_S)
        except LedgerError as error:
            # Refused, or without a quorum: either way the core looks again, and wishes what it then thinks right.
            metrics.HA_WISHES.labels(group, key[1], "unanswered" if error.retryable else "refused").inc()
            if self._reasons.get(key) != error.message:
                self._reasons[key] = error.message
                log.warning("a wish of the replica came to nothing", group=group, kind=key[1], reason=error.message)
            self.opened(group)
            return
        metrics.HA_WISHES.labels(group, key[1], "granted").inc()
        self._reasons.pop(key, None)
        agreed: dict[str, object] = {"epoch": granted.epoch, "master": granted.master, "in_sync": sorted(granted.in_sync)}
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
    """Whether what is agreed on here is news to the one that wishes."""
    if wish.generation != known.generation:
        return wish.generation < known.generation
    return wish.epoch < known.epoch or (isinstance(wish, AlterIsr) and wish.version < known.version)

