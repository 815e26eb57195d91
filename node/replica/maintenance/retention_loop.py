"""Retention of the broker groups of one node: collects facts, lets
`node/replica/retention/retention_rules.py` decide, and has the leader propose trim records.

Every `check_ms` it collects for each group what this replica knows of its files (in small steps
between turns), how full the disk is (on a thread), and what the other replicas report (a query to
each node). Only the leader proposes. A new leader continues from the last trim record, since
nothing else is remembered. `digest_exchange.py` handles digests and `trimming.py` removes files;
this module touches no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.group_view import Why
from ledgermq.node.broker.calls.operator_calls import Trim
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.parts.retention.retained import Retained
from ledgermq.node.broker.ports import Fenced
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.background.disk_watch import DiskWatch, used_by_kind
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.ports import State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.ports import GroupTurns, MaintenanceConfig
from ledgermq.node.replica.ports import STORAGE_METHOD, WHY_METHOD, PeerCaller
from ledgermq.node.replica.retention.pins import TooManyPins
from ledgermq.node.replica.retention.retention_facts import (
    consumed_queues,
    consumer_pins,
    follower_pins,
    half_pin,
    observer_pins,
    snapshot_pin,
    timer_pin,
)
from ledgermq.node.replica.retention.retention_rules import (
    HOUR_MS,
    Facts,
    Level,
    LogFile,
    Need,
    Pin,
    Rules,
    Space,
    Verdict,
    Watermarks,
    common_excess,
    decide,
    lowest,
    need_of,
    refuses,
    trim_of,
)
from ledgermq.node.replica.retention.why_kept import why
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, audit_pb2, peer_pb2
from ledgermq.proto.levels import STORED_TRIM_LEVEL
from ledgermq.proto.status import Code, LedgerError, fail, refused
from ledgermq.storage.files.errors import lacks_descriptors
from ledgermq.storage.files.ports import Disk

LEADER_WITHIN_S = 5.0
PEER_WITHIN_S = 2.0
KEYS_A_STEP = 256
"""Number of consumer groups' queues that are examined between two turns."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts about a group, collected between two turns."""

    leads: bool
    voters: tuple[str, ...]
    """The voters as of the applied index."""
    needed: int
    """How many of them must store an entry before it counts."""
    lacks_room: bool
    """The log here was refused room, and has none yet."""
    retained: Retained
    """A copy."""
    files: list[LogFile]
    pins: list[Pin]
    keys: list[QueueKey]
    """The queues whose unread messages consumer groups keep on the disks."""
    stored: bool
    """Whether what a trim removes stays readable in the object store. The pin `store` keeps what is
    not there yet."""
    disk_begin: int
    snapshot_index: int
    waits_for: str | None


class Retainer:
    """Retention of all groups of one node. Methods belong to the loop's thread."""

    def __init__(
        self,
        config: MaintenanceConfig,
        disk: Disk,
        hosted: Mapping[str, ReplicaHost],
        engine: GroupTurns,
        forwarder: PeerCaller,
        digest_exchange: DigestExchange,
        now_ms: Callable[[], int],
        used: Callable[[str], dict[str, int]] = used_by_kind,
    ) -> None:
        """`now_ms` is cluster time; `used` measures a broker group's directory, on a thread."""
        self._config = config
        self._hosted = hosted
        self._engine = engine
        self._forwarder = forwarder
        self._digest_exchange = digest_exchange
        self._now_ms = now_ms
        self._used = used
        own = config.retention
        self._marks = Watermarks(
            own.warn_percent, own.delete_percent, own.refuse_percent, own.ample_bytes
        )
        self._watch = DiskWatch(config.node, disk, str(config.data.absolute()), self._marks)
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._level = Level.FINE
        self._full: dict[str, bool] = {}
        """Broker group → whether this node said at the last check that its disk takes no
        messages."""
        self.disk_bytes: dict[str, dict[str, int]] = {}
        """Broker group → bytes on this disk by kind, as of the last check."""
        self.files_kept: dict[str, dict[str, int]] = {}
        """Broker group led here → number of due files by what keeps them, as of the last check."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="retention")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def hurry(self) -> None:
        """Check all groups at once: one has a new leader here, which has to learn whose disks are
        full before it hands leadership on."""
        self._hurry.set()

    @property
    def disk(self) -> str:
        """The state of this node's disk as of the last check: fine, warn, delete or full."""
        return (
            "full"
            if self._level is Level.REFUSE or any(self._full.get(group) for group in self._hosted)
            else self._level.name.lower()
        )

    async def _work(self) -> None:
        while True:
            for group, hosted in list(self._hosted.items()):
                if group not in self._hosted:
                    # The group left this node meanwhile.
                    continue
                if hosted.state is not State.RUNNING:
                    self._publish(group, [])
                    continue
                try:
                    await self.check(group)
                except LedgerError as error:
                    # The group stopped running meanwhile, for a repair or to leave. The check
                    # decided nothing; the next one follows.
                    log.info("retention check ended early", group=group, reason=str(error))
                # one failed check must not end all later ones; it decided nothing
                except Exception:
                    log.exception("retention check failed", group=group)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.retention.check_ms / 1000):
                    await self._hurry.wait()
            self._hurry.clear()

    # -- one check

    async def check(self, group: str) -> None:
        """Check one group; its leader also proposes a trim of the files that may go. Raises
        LedgerError."""
        survey = await self._survey(group)
        space = await asyncio.to_thread(self._watch.space)
        self._level = self._watch.warn(space, asyncio.get_running_loop().time())
        await self._measure(group, space)
        replies = await self._ask_all(group, survey) if survey.leads else {}
        needs = self._needs(group, survey, space, replies)
        self._full[group] = needs[self._config.node].full
        await self._tell(group, survey, needs)
        if not survey.leads:
            self._publish(group, [])
            return
        verdicts = await self._verdicts(
            group, survey, 0 if _pending(survey, replies) else _excess(survey, needs)
        )
        self._publish(group, verdicts)
        await self._trim(group, survey, verdicts)

    async def _tell(self, group: str, survey: Survey, needs: Mapping[str, Need]) -> None:
        """Tell the group which disks are full."""
        full = frozenset(node for node, need in needs.items() if need.full)
        others = [need for node, need in needs.items() if node != self._config.node]
        refused = refuses(
            needs[self._config.node], others, max(1, len(survey.voters)), survey.needed
        )
        if not await self._engine.run(
            group, lambda hosted: hosted.take_disks(full, refused=refused)
        ):
            return
        # Calls that are held behind a batch that no majority can store are refused in a turn.
        self._engine.wake(group)
        if full:
            what = (
                "sends are refused here"
                if refused and survey.leads
                else "sends go on, and none of these nodes is to lead"
            )
            log.warning(
                "disks take no messages",
                group=group,
                nodes=sorted(full),
                consequence=what,
                remedy="free space on these nodes",
            )
        else:
            log.info("all disks take messages again", group=group)

    def _needs(
        self, group: str, survey: Survey, space: Space, replies: Mapping[str, peer_pb2.StorageReply]
    ) -> dict[str, Need]:
        """What this node and those that answered say about their disks."""
        own = {self._config.node: self._own_need(group, survey, space)}
        return own | {node: self._need_told(node, reply) for node, reply in replies.items()}

    def _own_need(self, group: str, survey: Survey, space: Space) -> Need:
        sizes = {name: sum(self.disk_bytes.get(name, {}).values()) for name in self._hosted}
        running = [name for name, hosted in self._hosted.items() if hosted.state is State.RUNNING]
        # Until all were measured once, no group's share is known.
        own_bytes = sum(sizes.values()) if all(name in self.disk_bytes for name in running) else 0
        return need_of(self._marks, space, sizes[group], own_bytes, lacks_room=survey.lacks_room)

    def _need_told(self, node: str, reply: peer_pb2.StorageReply) -> Need:
        """A program that says nothing of its own leaves the judgement to the leader, by the
        leader's watermarks."""
        if reply.HasField("full"):
            return Need(reply.full, reply.wanted_bytes)
        space = Space(node, reply.disk_total_bytes, reply.disk_free_bytes)
        level = self._marks.level(space.total, space.free)
        return Need(level is Level.REFUSE, self._marks.excess(space.total, space.free))

    async def _survey(self, group: str) -> Survey:
        node, limits = self._config.node, self._config.retention
        patience_ms = int(limits.follower_hours * HOUR_MS)

        def look(hosted: OpenReplica) -> Survey:
            status, now_ns = hosted.status(), self._engine.now_ns()
            members = hosted.machine.members
            nodes, voters = ((), ()) if members is None else (members.nodes, members.voters)
            observers = frozenset() if members is None else members.observers
            snapshot_index = hosted.store.durable_snapshot_index
            waited_for = set(nodes) - observers
            pins = list(
                follower_pins(
                    book=hosted.files,
                    members=waited_for,
                    own=node,
                    peers=status.peers,
                    end_index=status.end_index,
                    patience_ms=patience_ms,
                )
            )
            pins += observer_pins(
                book=hosted.files,
                observers=observers,
                own=node,
                peers=status.peers,
                patience_ms=patience_ms,
                bytes_max=limits.observer_bytes,
            )
            pins += [
                snapshot_pin(hosted.files, node, snapshot_index),
                *half_pin(hosted.machine),
                *timer_pin(hosted.machine),
            ]
            pins += hosted.pins.pins(now_ns)
            stored = bool(self._config.tiered.url) and hosted.machine.level >= STORED_TRIM_LEVEL
            return Survey(
                leads=hosted.group.leader.serving,
                voters=voters,
                needed=hosted.group.in_sync.copies_needed(max(1, len(voters))),
                lacks_room=hosted.lacks_room(status),
                retained=copy.copy(hosted.machine.retained),
                files=hosted.files.files(),
                pins=pins,
                keys=[] if stored else consumed_queues(hosted.machine),
                stored=stored,
                disk_begin=hosted.store.log.begin_index,
                snapshot_index=snapshot_index,
                waits_for=hosted.trimming.obstacle(snapshot_index, now_ns),
            )

        while not await self._engine.run(group, lambda hosted: hosted.files.advance()):
            # After a start, every file of the log must be examined once.
            continue
        found: Survey = await self._engine.run(group, look)
        return found

    async def _measure(self, group: str, space: Space) -> None:
        hosted, running = self._hosted[group], self._hosted[group].running
        used = self.disk_bytes[group] = await asyncio.to_thread(self._used, running.store.root)
        for kind, size in used.items():
            metrics.DISK_BYTES.labels(group, kind).set(size)
        own = sum(
            sum(kinds.values()) for name, kinds in self.disk_bytes.items() if name in self._hosted
        )
        metrics.DISK_OTHER_BYTES.set(max(0, space.total - space.free - own))
        if self._marks.excess(space.total, space.free) == 0:
            try:
                await asyncio.to_thread(running.reserve.fill)
            except OSError as error:
                if not lacks_descriptors(error):
                    hosted.fail(Fenced(f"the reserve could not be written: {error}"))
                raise

    async def _ask_all(self, group: str, survey: Survey) -> dict[str, peer_pb2.StorageReply]:
        """The replies of the other voters; a voter that does not answer in time is missing."""
        others = [node for node in survey.voters if node != self._config.node]
        request = peer_pb2.StorageQuestion(broker_group=group)
        replies = await asyncio.gather(*(self._ask(node, request) for node in others))
        return {
            node: reply for node, reply in zip(others, replies, strict=True) if reply is not None
        }

    async def _ask(
        self, node: str, request: peer_pb2.StorageQuestion
    ) -> peer_pb2.StorageReply | None:
        deadline = asyncio.get_running_loop().time() + PEER_WITHIN_S
        try:
            responses = await self._forwarder.ask(
                node, STORAGE_METHOD, request.SerializeToString(), deadline
            )
            return peer_pb2.StorageReply.FromString(responses[0])
        except (CallRefused, DecodeError, IndexError):
            # The node is unreachable or has another version: this check goes on without it, and the
            # node pins files as a follower.
            return None

    async def _verdicts(self, group: str, survey: Survey, excess: int) -> list[Verdict]:
        pins = list(survey.pins)
        if not self._config.retention.of(group).ignore_groups:
            for at in range(0, len(survey.keys), KEYS_A_STEP):
                pins += await self._engine.run(group, _pins_of(survey.keys[at : at + KEYS_A_STEP]))
        facts = Facts(
            self._now_ms(), survey.files, lowest(pins), excess, frozenset(survey.retained.seals)
        )
        return decide(self._rules(group), facts)

    async def _trim(self, group: str, survey: Survey, verdicts: Sequence[Verdict]) -> None:
        digests = {base: seal.sha256 for base, seal in survey.retained.seals.items()}
        record = trim_of(verdicts, digests, stored=survey.stored)
        if record is None:
            if any(
                verdict.due and {pin.kind for pin in verdict.pins} == {"snapshot"}
                for verdict in verdicts
            ):
                await self._engine.run(group, lambda hosted: hosted.snapshot_soon())
            return
        outcome = await self._engine.call(group, Trim(self._engine.new_token(), record))
        if isinstance(outcome, Refused):
            log.warning(
                "trim not recorded", group=group, reason=outcome.reason, detail=outcome.detail
            )
        else:
            bases = [base for base, _ in record.files]
            log.info(
                "log files trimmed",
                group=group,
                reason=record.reason,
                begin_index=record.begin_index,
                files=bases,
            )

    def _rules(self, group: str) -> Rules:
        limits = self._config.retention.of(group)
        assert limits.hours is not None and limits.max_bytes is not None
        return Rules(int(limits.hours * HOUR_MS), limits.max_bytes)

    def _publish(self, group: str, verdicts: Sequence[Verdict]) -> None:
        counts = Counter(
            kind
            for verdict in verdicts
            if verdict.due
            for kind in {pin.kind for pin in verdict.pins}
        )
        for reason in {*self.files_kept.get(group, {}), *counts}:
            metrics.FILES_KEPT.labels(group, reason).set(counts[reason])
        self.files_kept[group] = dict(counts)

    # -- queries

    async def answer(self, request: bytes) -> bytes:
        """Answer a StorageQuestion of the node that leads a group. Raises CallRefused while the
        group does not run here."""
        question = peer_pb2.StorageQuestion.FromString(request)
        reply = await self._digest_exchange.answer(question)
        if not question.digests_only:
            try:
                survey = await self._survey(question.broker_group)
            except LedgerError as error:
                raise CallRefused(Refused("not-leader", detail=error.message)) from error
            space = await asyncio.to_thread(self._watch.space)
            reply.disk_total_bytes, reply.disk_free_bytes = space.total, space.free
            need = self._own_need(question.broker_group, survey, space)
            reply.full, reply.wanted_bytes = need.full, need.wanted
            reply.begin_index, reply.decided_begin_index = (
                survey.disk_begin,
                survey.retained.begin_index,
            )
            reply.snapshot_index = survey.snapshot_index
            if survey.waits_for is not None:
                reply.waits_for = survey.waits_for
        return reply.SerializeToString()

    async def sealed_files(
        self, group: str, bases: Sequence[int] | None
    ) -> list[audit_pb2.SealedFile]:
        """Files that take no more entries, each with this node's own digest and the digest that a
        majority sealed, if known (a digest is known seconds after sealing). `bases` None: all
        files. Raises LedgerError if the group does not run."""
        survey = await self._survey(group)
        known = await self._digest_exchange.digests(group)
        seals = survey.retained.seals
        return [
            audit_pb2.SealedFile(
                base=file.base,
                first_index=file.first_index,
                last_index=file.last_index,
                end_pos=file.end_pos,
                sha256=known.get(file.base),
                sealed_sha256=seals[file.base].sha256 if file.base in seals else None,
            )
            for file in survey.files
            if file.sealed and (bases is None or file.base in bases)
        ]

    async def take_pin(self, request: admin_pb2.TakePinRequest) -> admin_pb2.TakePinResponse:
        """Pin the files of this replica. Raises LedgerError."""
        name = str(uuid.uuid4())

        def take(hosted: OpenReplica) -> tuple[int, int]:
            begin_pos = hosted.store.log.begin_pos
            pos = max(request.pos, begin_pos) if request.HasField("pos") else begin_pos
            hosted.pins.take(name, pos, request.reason, request.ttl_ms, self._engine.now_ns())
            return hosted.store.log.begin_index, begin_pos

        try:
            begin_index, begin_pos = await self._engine.run(request.broker_group, take)
        except TooManyPins as error:
            raise fail(Code.TOO_MANY_REQUESTS, str(error)) from error
        return admin_pb2.TakePinResponse(pin=name, begin_index=begin_index, begin_pos=begin_pos)

    async def renew_pin(self, request: admin_pb2.RenewPinRequest) -> admin_pb2.RenewPinResponse:
        def renew(hosted: OpenReplica) -> bool:
            return hosted.pins.renew(request.pin, request.ttl_ms, self._engine.now_ns())

        return admin_pb2.RenewPinResponse(held=await self._engine.run(request.broker_group, renew))

    async def drop_pin(self, request: admin_pb2.DropPinRequest) -> admin_pb2.DropPinResponse:
        held = await self._engine.run(
            request.broker_group, lambda hosted: hosted.pins.drop(request.pin)
        )
        return admin_pb2.DropPinResponse(held=held)

    async def ask_leader(self, request: admin_pb2.WhyKeptRequest) -> admin_pb2.WhyKeptResponse:
        """Forward the query to the group's leader, from any node. Raises LedgerError."""
        deadline = asyncio.get_running_loop().time() + LEADER_WITHIN_S
        try:
            responses = await self._forwarder.submit(
                request.broker_group, WHY_METHOD, {}, request.SerializeToString(), deadline
            )
        except CallRefused as refusal:
            raise refused(refusal.refused.reason, refusal.refused.detail) from refusal
        return admin_pb2.WhyKeptResponse.FromString(responses[0])

    async def why_kept(self, request: admin_pb2.WhyKeptRequest) -> admin_pb2.WhyKeptResponse:
        """Answer the query on the node that leads the group. Raises LedgerError."""
        group = request.broker_group
        survey = await self._survey(group)
        space, replies = (
            await asyncio.to_thread(self._watch.space),
            await self._ask_all(group, survey),
        )
        needs = self._needs(group, survey, space, replies)
        short = (
            []
            if (excess := _excess(survey, needs))
            else sorted(node for node, need in needs.items() if need.wanted)
        )
        verdicts, rules = await self._verdicts(group, survey, excess), self._rules(group)
        file_bytes = self._hosted[group].running.store.identity.data_file_bytes
        found = why(request.base, file_bytes, survey.retained, verdicts, rules, short=short)
        if request.HasField("node") and found.reason == "trimmed":
            found = await self._still_there(group, request.node, survey.retained, found)
        return admin_pb2.WhyKeptResponse(
            answer=found.answer, reason=found.reason, evidence=found.evidence
        )

    async def _still_there(self, group: str, node: str, retained: Retained, found: Why) -> Why:
        """Add whether the named replica has removed its copy of a trimmed file."""
        reply = await self._ask(node, peer_pb2.StorageQuestion(broker_group=group))
        if reply is None:
            more = f"replica {node} does not answer: whether it has removed its copy is not known"
        elif reply.begin_index < retained.begin_index:
            more = (
                f"replica {node} has not removed its copy yet; it waits for"
                f" {reply.waits_for or 'the trim record'}"
            )
        else:
            more = f"replica {node} has removed its copy"
        return replace(found, evidence=(*found.evidence, more))


def _pins_of(keys: Sequence[QueueKey]) -> Callable[[OpenReplica], list[Pin]]:
    return lambda hosted: list(consumer_pins(hosted.machine, keys))


def _excess(survey: Survey, needs: Mapping[str, Need]) -> int:
    return common_excess(list(needs.values()), max(1, len(survey.voters)))


def _pending(survey: Survey, replies: Mapping[str, peer_pb2.StorageReply]) -> bool:
    """Whether some replica still has trimmed files on its disk: the space that they will free is
    not known yet."""
    begin = survey.retained.begin_index
    return survey.disk_begin < begin or any(reply.begin_index < begin for reply in replies.values())
