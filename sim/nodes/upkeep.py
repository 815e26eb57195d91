"""What a simulated process does beside the turns of its group: the product's digest exchange and
retention, with the engine and the calls between nodes on virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar

from ledgermq.node.broker.calls.outcome import Call, CallRefused, Refused, Result
from ledgermq.node.replica.background.disk_watch import KINDS, kind_of
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.maintenance.retention_loop import Retainer, Survey
from ledgermq.node.replica.retention.retention_rules import Verdict
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.sim.nodes.node import Medium
from ledgermq.sim.nodes.ports import ProcessLoop
from ledgermq.sim.nodes.virtual_loop import VirtualLoop

T = TypeVar("T")


class Gaps:
    """The group of a process, from beside its turns."""

    def __init__(self, loop: VirtualLoop, process: ProcessLoop, host: ReplicaHost) -> None:
        self._loop = loop
        self._process = process
        self._host = host
        self.new_token = process.new_token
        self.now_ns = process.now_ns

    def run(self, group: str, work: Callable[[Any], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def settle() -> None:
            if future.done():
                return
            try:
                future.set_result(work(self._host.running))
            except AssertionError:
                # A broken invariant ends the run.
                raise
            except Exception as error:  # a failed query goes to the caller
                future.set_exception(error)

        self._process.soon(lambda: self._loop.enter(settle))
        return future

    def call(self, group: str, call: Call) -> Awaitable[Result | Refused]:
        future: asyncio.Future[Result | Refused] = self._loop.create_future()
        self._process.call(call, future.set_result)
        return future

    def wake(self, group: str) -> None:
        self._process.turn_soon()


class Callers:
    """Calls to the same part of other nodes, which may be lost."""

    def __init__(self, process: ProcessLoop) -> None:
        self._process = process

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def answered(told: bytes | None) -> None:
            if not reply.done():
                reply.set_result(told)

        self._process.ask(node, request, answered)
        try:
            async with asyncio.timeout_at(deadline):
                told = await reply
        except TimeoutError:
            told = None
        if told is None:
            raise CallRefused(Refused("unknown-outcome"))
        return [told]

    def submit(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]:
        raise AssertionError("no query is forwarded to a leader")


class WatchedRetainer(Retainer):
    """Retention that tells for whom a trim waited."""

    process: ProcessLoop

    async def _trim(self, group: str, survey: Survey, verdicts: Sequence[Verdict]) -> None:
        if verdicts[0].goes and not survey.stored:
            self.process.trims(survey.keys)
        await super()._trim(group, survey, verdicts)


class Upkeep:
    """The maintenance of one process."""

    def __init__(
        self,
        medium: Medium,
        host: ReplicaHost,
        process: ProcessLoop,
        thread: Callable[[], Executor],
    ) -> None:
        """`thread` makes executors."""
        self._process = process
        # What these coroutines do not use is missing.
        self._loop = VirtualLoop(process.now_ns, process.at, thread())  # type: ignore[abstract]
        hosted = {medium.settings.group: host}
        gaps, callers = Gaps(self._loop, process, host), Callers(process)
        self.digest_exchange = medium.exchange_type(
            medium.sections, medium.disk, hosted, gaps, callers, executor=lambda name: thread()
        )
        retainer_type = type("Watched", (WatchedRetainer, medium.retainer_type), {})
        self.retainer: WatchedRetainer = retainer_type(
            medium.sections,
            medium.disk,
            hosted=hosted,
            engine=gaps,
            forwarder=callers,
            digest_exchange=self.digest_exchange,
            now_ms=process.now_ms,
            used=partial(_used, medium.disk),
        )
        self.retainer.process = process

    def begin(self) -> None:
        """Begin with the loops of maintenance."""
        self._loop.call_soon(self.digest_exchange.start)
        self._loop.call_soon(self.retainer.start)

    def hurry(self) -> None:
        """Check retention at once: limits have changed, or the leader."""
        self._loop.call_soon(self.retainer.hurry)

    def answer(self, request: bytes, told: Callable[[bytes | None], None]) -> None:
        """Answer a query of another node; None: it was refused."""
        self._loop.call_soon(lambda: self._loop.create_task(self._answer(request, told)))

    async def _answer(self, request: bytes, told: Callable[[bytes | None], None]) -> None:
        try:
            told(await self.retainer.answer(request))
        except CallRefused:
            told(None)


def _used(disk: ForgetfulDisk, root: str) -> dict[str, int]:
    """The bytes below a directory by kind."""
    used = Counter(dict.fromkeys(KINDS, 0))
    for path in disk.files():
        if path.startswith(f"{root}/"):
            used[kind_of(PurePath(path).relative_to(root).parts[:-1])] += disk.file_size(path)
    return dict(used)
