"""Brings the intent into force: the leader of each group on this node writes what the controller
agreed on into the group's log.

See docs/architecture.md, The controller.

Dead-letter topics go the other way: a log creates one when it needs it, and the reconciler tells
the controller where it is.

The feature level of the cluster is part of the intent: the log of a group that was created behind
`upgrade finish` begins with level 1, and its leader raises it at once. Configuration does not wait
for that.

Only a leader reconciles, with one `Configure` at a time per group. It leaves alone what the intent
does not know; only a recorded deletion deletes, so that a controller without its metadata cannot
empty a log. The intent must not be older than the log. Therefore the reconciler waits for a
controller barrier after each election; from then on the controller's state only gets newer. The
data path never waits for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.controller.controller import Controller
from ledgermq.node.controller.ports import GroupCaller
from ledgermq.node.controller.state import State
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.names import is_dead_letter_topic, parse_stored, stored_name

RETRY_S = 0.2
LEVEL_RETRY_S = 5.0
"""A member that cannot be asked for the level that it reads is down, usually for longer."""

log = get_logger()


def difference(
    view: GroupView, group: str, intent: State, token: Callable[[], Token]
) -> Configure | None:
    """The one call that makes the configuration in force equal to the intent; None if they are
    equal."""
    topics = {stored_name(topic.namespace, topic.name): topic for topic in intent.topics_of(group)}
    groups = {stored_name(*key): value for key, value in intent.groups.items()}
    new_topics = [topic for name, topic in sorted(topics.items()) if view.topics.get(name) != topic]
    new_groups = [value for name, value in sorted(groups.items()) if view.groups.get(name) != value]
    old_topics = sorted(
        view.topics.keys() & {stored_name(*key) for key in intent.gone_topics(group)}
    )
    old_groups = sorted(view.groups.keys() & {stored_name(*key) for key in intent.deleted_groups})
    if not (new_topics or new_groups or old_topics or old_groups):
        return None
    return Configure(token(), new_topics, new_groups, old_topics, old_groups)


def unknown_letters(view: GroupView, group: str, intent: State) -> list[tuple[str, str]]:
    """Dead-letter topics that the log of a broker group has and the controller does not know
    there."""
    names = [parse_stored(stored) for stored in sorted(view.topics) if is_dead_letter_topic(stored)]
    return [
        key
        for key in names
        if key not in intent.topics or group not in intent.topics[key].placement
    ]


class Reconciler:
    """One task per hosted broker group."""

    def __init__(
        self,
        node: str,
        engine: GroupCaller,
        controller: Controller,
        groups: Iterable[str],
        raise_level: Callable[[str, int], Awaitable[str]] | None = None,
    ) -> None:
        """`raise_level` raises a group that this node leads to a level; it returns why the group
        has not got the level yet, or ""."""
        self._node = node
        self._engine = engine
        self._controller = controller
        self._wake = {group: asyncio.Event() for group in groups}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._raise_level = raise_level

    def start(self) -> None:
        for group in self._wake:
            self._begin(group)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def take_in(self, group: str) -> None:
        """Begin to reconcile a broker group that this node opened."""
        self._wake[group] = asyncio.Event()
        self._begin(group)

    def let_go(self, group: str) -> None:
        """Stop reconciling a broker group that left this node."""
        self._tasks.pop(group).cancel()
        del self._wake[group]

    def _begin(self, group: str) -> None:
        self._tasks[group] = asyncio.create_task(self._work(group), name=f"reconcile-{group}")

    def changed(self) -> None:
        """Compare again, because the intent or the view of a group changed."""
        for event in self._wake.values():
            event.set()

    async def _work(self, group: str) -> None:
        current: int | None = None
        while True:
            await self._wake[group].wait()
            self._wake[group].clear()
            view = self._engine.views.get(group)
            if view is None or view.leader != self._node or not view.serving:
                current = None
                continue
            try:
                if current != view.term:
                    await self._controller.barrier()
                    current = view.term
                if not await self._once(group):
                    self._again(group)
                elif why := await self._below_level(group):
                    log.warning("level of the cluster not in force yet", group=group, reason=why)
                    self._again(group, LEVEL_RETRY_S)
            # the controller may be without a leader for any length of time: log it and retry
            except Exception as error:
                log.warning(
                    "intent not in force yet",
                    group=group,
                    reason=str(error) or type(error).__name__,
                )
                self._again(group)

    async def _once(self, group: str) -> bool:
        """One comparison and, if needed, one Configure. Returns True when there is nothing left to
        do."""
        for namespace, name in unknown_letters(
            self._engine.views[group], group, self._controller.state
        ):
            await self._controller.adopt_topic(namespace, name, group)
        call = difference(
            self._engine.views[group], group, self._controller.state, self._engine.new_token
        )
        if call is None:
            return True
        outcome = await self._engine.call(group, call)
        if isinstance(outcome, Refused):
            log.warning("configuration refused", group=group, reason=outcome.reason)
            return False
        log.info(
            "configuration in force",
            group=group,
            topics=[stored_name(topic.namespace, topic.name) for topic in call.topics],
            groups=[stored_name(value.namespace, value.name) for value in call.groups],
            deleted_topics=list(call.deleted_topics),
            deleted_groups=list(call.deleted_groups),
        )
        return True

    async def _below_level(self, group: str) -> str:
        """Raise the group to the level of the cluster. Returns why it has not got it; "" if it
        has."""
        level = self._controller.state.level
        if self._raise_level is None or self._engine.views[group].level >= level:
            return ""
        return await self._raise_level(group, level)

    def _again(self, group: str, after_s: float = RETRY_S) -> None:
        asyncio.get_running_loop().call_later(after_s, self._wake[group].set)
