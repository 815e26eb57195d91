"""Digest exchange: the replicas of this node's broker groups compare the digests of log files
seconds after each file was sealed.

Do not confuse this loop with the scrub. This loop checks that the replicas hold the *same* data: a
file is read once, when it is sealed, mostly from memory, and from then on its 32-byte digest stands
for it. The scrub checks that the medium still holds what was written, and reads everything again
(`scrubbing.py`). Every `agreement.check_ms`, per group, each replica computes the digests of newly
sealed files. The leader asks the other voters for theirs and records the value that a majority
reports. Every replica compares its own with the recorded ones. A difference is reported at once, in
the log, as metrics and in the status. The scrub then reads that file, and names the damaged entry
or says that there is none. This module repairs and cuts nothing.

In a group with a log tree the same pass computes the root of the tree over the file's entries, and
a seal needs a majority that reported the same digest and the same root. Hashing every entry costs
more than hashing the file, so the leader leaves it to the others: it computes a root only if they
cannot be a majority without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.operator_calls import Kept, Seal
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.replica.background.digests import Digests
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.ports import State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.maintenance.ports import GroupTurns, MaintenanceConfig
from ledgermq.node.replica.ports import STORAGE_METHOD, PeerCaller
from ledgermq.node.replica.retention.retention_rules import LogFile, agreed
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import peer_pb2
from ledgermq.proto.records.control import SealRecord
from ledgermq.proto.status import LedgerError
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk

PEER_WITHIN_S = 1.0
ASKED_AT_ONCE = 64
"""Maximum number of files in one query."""
LEADER_COMPUTES_AFTER_S = 10.0
"""How long the leader waits for the roots of a majority of others before it computes its own."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Look:
    """The facts about a group, collected between two turns."""

    leads: bool
    voters: tuple[str, ...]
    begin_pos: int
    seals: Mapping[int, SealRecord]
    """Replaced as a whole, never modified."""
    sealed: list[LogFile]
    """The sealed files from the requested position on, in order."""
    rooted: bool
    """Whether a seal needs a root."""

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class _Report:
    """What a node computed of a file: its digest and, if it computed that, the root of its entries
    tree."""

    sha256: str
    root: str = ""


@dataclass(slots=True)
class _Watch:
    """The state for one run of one group. A repair may have changed every file, so the next run of
    the group starts with a new state, and so does the group after a range was restored while it
    ran."""

    life: tuple[int, int]
    """How often the group was opened, and how often it was repaired while it ran."""
    digests: Digests
    next_base: int = 0
    """End of the last sealed file that was examined."""
    unknown: set[int] = field(default_factory=set)
    """Files sealed here whose digest this node has not computed."""
    unrecorded: dict[int, tuple[LogFile, float]] = field(default_factory=dict)
    """Files sealed here without a recorded digest, with the time when this was noticed."""
    asked_base: int = 0
    """Just behind the start of the last file that the other voters were asked about."""
    own_roots: set[int] = field(default_factory=set)
    """Files whose root this node computes although it leads."""
    differing: set[int] = field(default_factory=set)
    """Files whose digest here differs from the recorded one."""
    disputed: dict[int, dict[str, str]] = field(default_factory=dict)
    """Files without a recorded digest for which nodes report different values: node → digest."""
    seals: Mapping[int, SealRecord] | None = None
    """The seals that were compared last; referenced so that no other object can get their
    identity."""
    compared: tuple[int, int] = (0, 0)
    """The identity of the seals and the number of digests of the last comparison."""


class DigestExchange:
    """The digest exchange of all groups of one node. Methods belong to the loop's thread, and times
    are the loop's."""

    digests_type = Digests

    def __init__(
        self,
        config: MaintenanceConfig,
        disk: Disk,
        hosted: Mapping[str, ReplicaHost],
        engine: GroupTurns,
        forwarder: PeerCaller,
        executor: Callable[[str], Executor],
    ) -> None:
        """`executor` makes an executor of this name that runs one job at a time, beside the turns."""
        self._config = config
        self._disk = disk
        self._hosted = hosted
        self._engine = engine
        self._forwarder = forwarder
        self._executor = executor
        self._watches: dict[str, _Watch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        for group in self._hosted:
            self.take_in(group)

    def take_in(self, group: str) -> None:
        """Begin to check a hosted group."""
        self._tasks[group] = asyncio.create_task(self._work(group), name=f"digest-exchange-{group}")

    async def let_go(self, group: str) -> None:
        """Stop checking a group; on return nothing here uses its files any more."""
        task = self._tasks.pop(group)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        watch = self._watches.pop(group, None)
        if watch is not None:
            await asyncio.to_thread(watch.digests.stop)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for watch in self._watches.values():
            await asyncio.to_thread(watch.digests.stop)

    async def _work(self, group: str) -> None:
        while True:
            if self._hosted[group].state is State.RUNNING:
                try:
                    await self.check(group)
                except LedgerError:
                    # The group stopped running meanwhile.
                    pass
                # one failed check must not end all later ones; it decided nothing
                except Exception:
                    log.exception("digest exchange failed", group=group)
            await asyncio.sleep(self._config.agreement.check_ms / 1000)

    # -- status

    def differing(self, group: str) -> list[int]:
        """Positions of this node's sealed files whose digest differs from the recorded one."""
        watch = self._watches.get(group)
        return [] if watch is None else sorted(watch.differing)

    def disputed(self, group: str) -> list[int]:
        """Positions of sealed files for which replicas report different digests and no majority
        agrees; known on the leader's node."""
        watch = self._watches.get(group)
        return [] if watch is None else sorted(watch.disputed)

    async def digests(self, group: str) -> Mapping[int, str]:
        """This node's digests by position of the file, as far as computed. Raises LedgerError while
        the group does not run."""
        return (await self._watch(group)).digests.known

    def unverified_ms(self, group: str) -> int | None:
        """The time since the least recently verified (or written) byte was verified; None if
        unknown."""
        hosted = self._hosted[group]
        return hosted.running.scrub.unverified_ms() if hosted.state is State.RUNNING else None

    # -- one check

    async def check(self, group: str) -> None:
        """Compute digests, compare them, and, as leader, record what a majority agrees on. Raises
        LedgerError while the group does not run."""
        watch = await self._watch(group)
        look: _Look = await self._engine.run(group, _looking_from(watch.next_base))
        self._take(watch, look)
        await self._compute(watch, look)
        self._compare(group, watch, look)
        await self._settle(group, watch, look)
        metrics.DIGEST_MISMATCHES.labels(group).set(len(watch.differing))
        metrics.DISPUTED_FILES.labels(group).set(len(watch.disputed))

    async def _watch(self, group: str) -> _Watch:
        hosted = self._hosted[group]
        while (known := self._watches.get(group)) is None or known.life != (
            hosted.boots,
            hosted.mended,
        ):
            running = hosted.running
            if known is None:
                bytes_per_s = self._config.retention.digest_bytes_per_s
                executor = self._executor(f"digest-{group}")
                digests = self.digests_type(
                    self._disk, running.store, bytes_per_s, hosted.fail, executor
                )
                self._watches[group] = _Watch((hosted.boots, hosted.mended), digests)
            else:
                # Delete it before the wait, so that a concurrent caller creates the only new one.
                del self._watches[group]
                await asyncio.to_thread(known.digests.stop)
        return known

    @staticmethod
    def _take(watch: _Watch, look: _Look) -> None:
        """Add newly sealed files and drop trimmed ones."""
        now_s = _now_s()
        for file in look.sealed:
            watch.next_base = file.next_base
            watch.unknown.add(file.base)
            watch.unrecorded[file.base] = file, now_s
        watch.digests.keep_from(look.begin_pos)
        watch.unknown = {base for base in watch.unknown if base >= look.begin_pos}
        watch.unrecorded = {
            base: seen
            for base, seen in watch.unrecorded.items()
            if base >= look.begin_pos and base not in look.seals
        }
        watch.disputed = {
            base: values for base, values in watch.disputed.items() if base in watch.unrecorded
        }
        watch.own_roots &= watch.unrecorded.keys()

    @staticmethod
    def _root_ends(watch: _Watch, look: _Look) -> dict[int, int]:
        """The files whose root this node computes, each with the place where its last entry
        ends."""
        if not look.rooted:
            return {}
        left_to_others = look.leads and len(look.voters) > look.majority
        bases = watch.own_roots if left_to_others else watch.unrecorded.keys()
        return {base: watch.unrecorded[base][0].end_pos - base for base in bases}

    async def _compute(self, watch: _Watch, look: _Look) -> None:
        """Compute digests for the duration of one check; an unfinished one continues in the
        background."""
        ends = self._root_ends(watch, look)
        deadline = _now_s() + self._config.agreement.check_ms / 1000
        while True:
            watch.unknown.difference_update(watch.digests.known)
            watch.digests.want(sorted(watch.unknown | ends.keys()), ends)
            left_s = deadline - _now_s()
            if left_s <= 0 or not await watch.digests.settle(left_s):
                break

    def _compare(self, group: str, watch: _Watch, look: _Look) -> None:
        """Compare this node's digests with the recorded ones."""
        known = watch.digests.known
        if watch.compared == (id(look.seals), len(known)):
            return
        wrong = {
            base for base, seal in look.seals.items() if known.get(base, seal.sha256) != seal.sha256
        }
        doubted = {base for base in wrong if watch.digests.doubt(base)}
        watch.unknown |= doubted
        for base in sorted(wrong - doubted - watch.differing):
            self._report(group, base, look.seals[base], known[base])
        watch.differing = wrong - doubted
        watch.seals, watch.compared = look.seals, (id(look.seals), len(known))

    def _report(self, group: str, base: int, seal: SealRecord, found: str) -> None:
        running = self._hosted[group].running
        log.error(
            "log file differs from what a majority sealed",
            group=group,
            replica=self._config.node,
            file=f"{running.store.log_directory}/data/{file_name(base)}",
            entries=[seal.first_index, seal.last_index],
            sealed=seal.sha256,
            replicas=list(seal.replicas),
            found=found,
            remedy=(
                "do not delete anything: damaged entries are named and repaired; if none is found,"
                " run ledgermq audit on all replicas"
            ),
        )
        running.scrub.soon(base)

    async def _settle(self, group: str, watch: _Watch, look: _Look) -> None:
        """As leader, ask the other voters for their digests and record those that a majority
        reports."""
        # Ask about all files in rotation: on some files there may never be agreement, and they must
        # not hold up the others.
        bases = sorted(watch.unrecorded, key=lambda base: (base < watch.asked_base, base))[
            :ASKED_AT_ONCE
        ]
        if not look.leads or not bases:
            if not look.leads:
                watch.disputed.clear()
            return
        watch.asked_base = bases[-1] + 1
        reports = await self._ask_all(
            group, [node for node in look.voters if node != self._config.node], bases
        )
        waited_s = _now_s() - LEADER_COMPUTES_AFTER_S
        for base in bases:
            if len(reports) < look.majority or watch.unrecorded[base][1] < waited_s:
                watch.own_roots.add(base)
            told = {node: values[base] for node, values in reports.items() if base in values}
            if base in watch.digests.known:
                told[self._config.node] = _Report(
                    watch.digests.known[base], watch.digests.roots.get(base, "")
                )
            await self._decide(group, watch, look, base, told)

    async def _decide(
        self, group: str, watch: _Watch, look: _Look, base: int, reports: dict[str, _Report]
    ) -> None:
        file, seen_s = watch.unrecorded[base]
        told = {node: report.sha256 for node, report in reports.items()}
        roots = {node: report.root for node, report in reports.items() if report.root}
        if look.rooted:
            both = self._agreed(
                {node: f"{told[node]} {root}" for node, root in roots.items()}, look.voters
            )
            found, root = (
                (None, "") if both is None else ((both[0].split()[0], both[1]), both[0].split()[1])
            )
        else:
            found, root = self._agreed(told, look.voters), ""
        if len(set(told.values())) > 1 and watch.disputed.get(base) != told:
            watch.disputed[base] = told
            log.error(
                "replicas differ in a sealed log file",
                group=group,
                file=file_name(base),
                entries=[file.first_index, file.last_index],
                digests=dict(sorted(told.items())),
                majority=None if found is None else list(found[1]),
                remedy=(
                    "do not delete anything: run ledgermq audit over all replicas, it names the"
                    " first entry that differs"
                ),
            )
        if found is None:
            return
        sha256, replicas = found
        record = SealRecord(
            base=base,
            first_index=file.first_index,
            last_index=file.last_index,
            end_pos=file.end_pos,
            sha256=sha256,
            replicas=replicas,
            root=root,
        )
        outcome = await self._engine.call(group, Seal(self._engine.new_token(), record))
        if outcome == Kept():
            # The next check drops the file, unless the group got its log tree meanwhile: then the
            # seal has no effect, and needs a root.
            watch.disputed.pop(base, None)
            seconds = _now_s() - seen_s
            metrics.AGREEMENT_SECONDS.labels(group).observe(seconds)
            log.info(
                "log file sealed",
                group=group,
                base=base,
                sha256=sha256,
                replicas=list(replicas),
                seconds=round(seconds, 3),
            )

    def _agreed(
        self, told: dict[str, str], voters: Sequence[str]
    ) -> tuple[str, tuple[str, ...]] | None:
        """What a majority of the voters told, and those voters."""
        return agreed(told, voters)

    async def _ask_all(
        self, group: str, nodes: Sequence[str], bases: Sequence[int]
    ) -> dict[str, dict[int, _Report]]:
        request = peer_pb2.StorageQuestion(
            broker_group=group, bases=bases, digests_only=True
        ).SerializeToString()
        replies = await asyncio.gather(*(self._ask(node, request) for node in nodes))
        answered = [
            (node, reply) for node, reply in zip(nodes, replies, strict=True) if reply is not None
        ]
        return {
            node: {d.base: _Report(d.sha256, d.tree_root) for d in reply.digests}
            for node, reply in answered
        }

    async def _ask(self, node: str, request: bytes) -> peer_pb2.StorageReply | None:
        deadline = asyncio.get_running_loop().time() + PEER_WITHIN_S
        try:
            responses = await self._forwarder.ask(node, STORAGE_METHOD, request, deadline)
            return peer_pb2.StorageReply.FromString(responses[0])
        except (CallRefused, DecodeError, IndexError):
            # The node is unreachable or has another version: this check goes on without it.
            return None

    # -- queries

    async def answer(self, question: peer_pb2.StorageQuestion) -> peer_pb2.StorageReply:
        """Report the requested digests that this node has computed. Raises CallRefused while the
        group does not run here."""
        reply = peer_pb2.StorageReply()
        try:
            found = (await self._watch(question.broker_group)).digests
        except LedgerError as error:
            raise CallRefused(Refused("not-leader", detail=error.message)) from error
        for base in question.bases:
            if base in found.known:
                reply.digests.add(
                    base=base, sha256=found.known[base], tree_root=found.roots.get(base, "")
                )
        return reply


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _looking_from(base: int) -> Callable[[OpenReplica], _Look]:
    def look(running: OpenReplica) -> _Look:
        machine = running.machine
        voters = () if machine.members is None else machine.members.voters
        retained = machine.retained
        sealed = running.files.sealed_from(base)
        return _Look(
            leads=running.group.leader.serving,
            voters=voters,
            begin_pos=retained.begin_pos,
            seals=retained.seals,
            sealed=sealed,
            rooted=retained.tree is not None,
        )

    return look
