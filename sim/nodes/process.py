"""One run of a simulated node's program: the product's `ReplicaHost`, with executors and a network
on virtual time.

`Jobs` and `Strand` stand in for threads: an executor whose jobs, and a worker whose steps are events
of the world. A job begins some time after it was submitted, or never if the process ends before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any, cast

from ledgermq.node.replica.background.ports import Steps, Worker
from ledgermq.node.replica.hosting.directory_opener import DirectoryOpener
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.ports import Broken, State
from ledgermq.node.replica.hosting.scheduler import Scheduler, Seat
from ledgermq.node.replica.hosting.shipping_jobs import ShippingJobs
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.machine.network import MS
from ledgermq.sim.nodes.node import Life, Medium
from ledgermq.sim.nodes.ports import ProcessLoop
from ledgermq.sim.nodes.upkeep import Upkeep

WRITE_NS = (MS, 20 * MS)
"""How long a snapshot or a checkpoint waits for the thread that writes it."""
STEP_NS = (0, MS)
"""The same for a step of a repair or an installation, a request of a peer, and for maintenance."""


class Jobs(Executor):
    """A thread of the process: runs one job after the other."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, partial(work, *given, **named)))
        if len(self._waiting) == 1:
            self._later(self._next)
        return future

    def _next(self) -> None:
        if self._waiting:
            self._run()
        if self._waiting:
            self._later(self._next)

    def _run(self) -> None:
        future, work = self._waiting[0]
        try:
            result = work()
        except AssertionError:
            # A broken invariant ends the run, not the job.
            raise
        except Exception as error:  # an executor hands every failure to whoever takes the result
            self._waiting.popleft()
            future.set_exception(error)
        else:
            self._waiting.popleft()
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run what was submitted, as a thread does before it ends."""
        while self._waiting:
            self._run()


class Strand:
    """The worker of a process: its steps are events of the world, and take no time."""

    stopping = False

    def __init__(self, process: ProcessLoop, name: str) -> None:
        self._process = process
        self._steps: Steps | None = None
        self._rests_until_woken = False
        self._woken = False
        self._number = 0
        """The number of the step that is ordered."""

    def start(self, steps: Steps) -> None:
        self._steps = steps
        self._order(0)

    def wake(self) -> None:
        self._woken = True
        if self._rests_until_woken:
            self._order(0)

    def stop(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def now_s(self) -> float:
        return self._process.now_ns() / 1e9

    def spent_s(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return self._process.now_ms()

    def _order(self, rest_s: float) -> None:
        self._number += 1
        self._rests_until_woken = False
        at_ns = self._process.now_ns() + round(rest_s * 1e9)
        self._process.at(at_ns, partial(self._step, self._number))

    def _step(self, number: int) -> None:
        if number != self._number or self._steps is None:
            return
        if self._rests_until_woken:
            self._woken = self._rests_until_woken = False
        rest = next(self._steps, None)
        if rest is None:
            self._steps = None
        elif rest.wakes and self._woken:
            self._woken = False
            self._order(0)
        else:
            if rest.limit_s is not None:
                self._order(rest.limit_s)
            self._rests_until_woken = rest.wakes


class Opener(DirectoryOpener):
    """Opens the directory of a medium. Only harm that was done to the medium explains damage."""

    def __init__(
        self,
        medium: Medium,
        live: Callable[[], Life],
        members: Iterable[str],
        chance: Random,
        clock_ns: Callable[[], int],
    ) -> None:
        super().__init__(
            medium.name,
            {*medium.settings.names, *members},
            medium.disk,
            medium.root,
            live,
            wanted=lambda: medium.identity,
            session=lambda: chance.randrange(1 << 62),
            clock_ns=clock_ns,
            now_ms=int,
        )
        self.install_type = medium.install_type
        self._medium = medium

    def _mend(self, failure: Exception) -> Broken:
        if not self._medium.harmed:
            raise Violation("I10", f"{self._medium.name} cannot read its group: {failure}")
        return super()._mend(failure)


class Process:
    """One run of a node's program: its hosted group, and what drives it."""

    def __init__(
        self,
        medium: Medium,
        live: Callable[[Callable[[], Executor], Callable[[str], Worker]], Life],
        members: Iterable[str],
        chance: Random,
        loop: ProcessLoop,
    ) -> None:
        """`live` opens the group, with executors and workers that it is given makers of; `members`:
        the nodes that its log named last."""
        group, name = medium.settings.group, medium.name
        self._group = group
        self._loop = loop
        opener = Opener(
            medium,
            lambda: live(partial(self._thread, WRITE_NS), partial(Strand, loop)),
            members,
            chance,
            loop.now_ns,
        )
        shipping = ShippingJobs(
            group,
            lambda: Shipper(group, name, medium.disk, medium.root),
            executor=self._thread(STEP_NS),
            clock_ns=loop.now_ns,
        )
        self.host = ReplicaHost(group, name, opener, shipping, self._thread(STEP_NS))
        self.scheduler = Scheduler(loop)
        self.upkeep = Upkeep(medium, self.host, loop, partial(self._thread, STEP_NS))
        self.state = State.JOINING
        """The state of the host when it was looked at last."""

    def _thread(self, wait_ns: tuple[int, int]) -> Jobs:
        return Jobs(partial(self._loop.later, wait_ns))

    def begin(self) -> None:
        """Open the group, before the first turn. Raises OSError, StorageError."""
        self.host.connect(partial(self.scheduler.want, self._group), self._loop.send)
        self.host.open_first(self._loop.now_ns())
        self.scheduler.add(self._group, self.host)
        self.scheduler.pass_soon()
        self.upkeep.begin()

    @property
    def seat(self) -> Seat | None:
        """The inputs for the next turn; None before the first opening has ended."""
        return self.scheduler.seats.get(self._group)

    @property
    def opened(self) -> Life | None:
        """The group while it is open."""
        return cast("Life", self.host.running) if self.host.is_open else None
