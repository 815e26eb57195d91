"""The state of the whole cluster as one node sees it: its own view, merged with the answers of its
peers.

`own` returns this node's view; `gather` asks every peer; `merge` combines the answers. Values that
no node knows stay absent. The leader of a broker group is the replica that calls itself leader in
the highest term, because followers may still name a former leader.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ledgermq import __version__
from ledgermq.node.broker.calls.group_view import HaView
from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.controller.roster import Roster
from ledgermq.node.controller.state import OBSERVER
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.replica.ports import (
    ClockOpinion,
    Digests,
    Lost,
    NotSent,
    PeerLink,
    Retention,
    StoredFiles,
)
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, kernels, peer_pb2
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX
from ledgermq.proto.names import stored_name
from ledgermq.proto.records.time_epochs import AHEAD_MS
from ledgermq.proto.types import PeerProgress, ReplicaStatus, Role
from ledgermq.proto.workers import WORKER_NAME
from ledgermq.raft.config import Rule

ENGINE_ANSWERS_WITHIN_S = 1.0
PEER_ANSWERS_WITHIN_S = 1.5

Counts = dict[tuple[str, str], tuple[int, int]]
"""(Stored topic, broker group) → the number of its queues there, and the sum of their next
offsets."""

log = get_logger()


class Overview:
    """Collects the views of all nodes and merges them."""

    def __init__(
        self,
        config: NodeConfig,
        engine: Engine,
        links: Mapping[str, PeerLink],
        roster: Roster,
        replicas: Mapping[str, Sequence[str]] | None = None,
        *,
        clock: Callable[[], ClockOpinion] | None = None,
        unheard: Callable[[str], Sequence[str]] = lambda group: (),
        storage: Retention | None = None,
        digests: Digests | None = None,
        tiering: StoredFiles | None = None,
    ) -> None:
        """`replicas`: every broker group and its nodes; by default those of the configuration.
        `unheard`: why peers ignore what the replica of a group here sends. What the others know is
        not reported without them."""
        configured = {group.name: group.replicas for group in config.cluster.groups}
        self._replicas = configured if replicas is None else replicas
        self._config = config
        self._engine = engine
        self._links = links
        self._roster = roster
        self._clock = clock
        self._unheard = unheard
        self._storage = storage
        self._digests = digests
        self._tiering = tiering

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes of the cluster, whether they answer or not."""
        return self._roster.nodes

    async def own(self, *, queues: bool = False) -> peer_pb2.NodeStatusReply:
        """This node's own view, with the end of every queue or with the counts of every topic.
        Raises TimeoutError if its engine does not answer."""
        measured = (
            {}
            if self._storage is None
            else {group: sum(kinds.values()) for group, kinds in self._storage.disk_bytes.items()}
        )
        used, free = await asyncio.to_thread(_disk_usage, self._config.data, measured)
        node = admin_pb2.NodeInfo(
            node=self._config.node,
            endpoint=self._roster.address(self._config.node, "client"),
            up=True,
            version=__version__,
            native=kernels.VERSION,
            level_max=LEVEL_MAX,
            disk_used_bytes=used,
            disk_free_bytes=free,
        )
        if self._storage is not None:
            node.disk = self._storage.disk
        node.peer_failures.extend(
            link.refusal for _, link in sorted(self._links.items()) if link.refusal is not None
        )
        if self._clock is not None:
            standing = self._clock()
            node.clock, node.clock_offset_ms = str(standing.state), standing.offset_ms
        reply = peer_pb2.NodeStatusReply(node=node)
        async with asyncio.timeout(ENGINE_ANSWERS_WITHIN_S):
            statuses = await asyncio.gather(
                *(self._engine.status(group) for group in self._engine.groups)
            )
        reply.groups.extend(self._own_group(status) for status in statuses)
        for group, view in self._engine.views.items():
            if not queues:
                known = view.queue_ends.values()
                reply.counts.add(
                    broker_group=group,
                    topics=view.queue_ends,
                    queues=map(len, known),
                    messages=map(sum, known),
                )
                continue
            for stored, ends in view.queue_ends.items():
                reply.topics.add(topic=admin_pb2.Name(name=stored)).queue_list.extend(
                    admin_pb2.QueueInfo(broker_group=group, group_queue=queue, max_offset=end)
                    for queue, end in enumerate(ends)
                )
        return reply

    def _own_group(self, status: ReplicaStatus) -> admin_pb2.BrokerGroupInfo:
        info = _resting(status) if status.rebuild is not None else _group_of(status)
        replica = info.replicas[0]
        if replica.state == "running" and (unheard := self._unheard(status.group)):
            # Its copy of the log may be as long as the leader's, but its votes and acknowledgements
            # do not count.
            replica.state, replica.rebuild.reason = "waiting", "; ".join(unheard)
        view = self._engine.views.get(status.group)
        if view is not None:
            info.level = view.level
            # Against cluster time: a clock that is off is told as such, and not as a log that is
            # ahead.
            off_ms = 0 if self._clock is None else self._clock().offset_ms
            ahead_ms = view.store_ms - (time.time_ns() // 1_000_000 - off_ms)
            if view.serving and ahead_ms > AHEAD_MS:
                info.store_time_ahead_ms = ahead_ms
        if view is not None and view.members is not None:
            info.voters.extend(view.members.voters)
            info.learners.extend(sorted(view.members.learners))
            info.observers.extend(sorted(view.members.observers))
            info.replication = replication_of(view.members)
        if view is not None and view.ha is not None:
            info.ha.CopyFrom(_ha_of(view.ha, status, view.incarnations.get(status.node, "")))
        if self._storage is not None:
            replica.disk_bytes.update(self._storage.disk_bytes.get(status.group, {}))
            info.files_kept.update(self._storage.files_kept.get(status.group, {}))
        if self._digests is not None:
            replica.differing_files.extend(self._digests.differing(status.group))
            info.disputed_files.extend(self._digests.disputed(status.group))
            unverified_ms = self._digests.unverified_ms(status.group)
            if unverified_ms is not None:
                replica.unverified_ms = unverified_ms
        if self._tiering is not None and (tiered := self._tiering.state(status.group)) is not None:
            replica.tiered.CopyFrom(admin_pb2.TieredInfo(**asdict(tiered)))
        return info

    async def gather(self, *, queues: bool = False) -> dict[str, peer_pb2.NodeStatusReply | None]:
        """Every node's answer, as `own`; None for a node that did not answer in time."""
        names = list(self._links)
        replies = await asyncio.gather(
            self.own(queues=queues), *(self._ask(self._links[name], queues) for name in names)
        )
        return {self._config.node: replies[0], **dict(zip(names, replies[1:], strict=True))}

    async def _ask(self, link: PeerLink, queues: bool) -> peer_pb2.NodeStatusReply | None:
        if not link.up:
            return None
        try:
            async with asyncio.timeout(PEER_ANSWERS_WITHIN_S):
                return await link.status(queues=queues)
        except (NotSent, Lost, TimeoutError):
            # The overview reports unreachable nodes, so this is no error.
            return None

    def merge(
        self, replies: Mapping[str, peer_pb2.NodeStatusReply | None]
    ) -> admin_pb2.ClusterStatusResponse:
        """Nodes, broker groups and health. The caller adds the topics, from the controller's
        state."""
        response = admin_pb2.ClusterStatusResponse(cluster_id=self._config.cluster_id)
        for name in self._roster.nodes:
            reply = replies.get(name)
            if reply is not None:
                response.nodes.append(reply.node)
            else:
                response.nodes.add(
                    node=name, endpoint=self._roster.address(name, "client"), up=False
                )
        for group in sorted(self._replicas):
            response.groups.append(_merged_group(group, self._replicas[group], replies))
        response.health = _health(response)
        return response


def queue_ends(
    replies: Mapping[str, peer_pb2.NodeStatusReply | None],
) -> dict[tuple[str, str, int], int]:
    """The highest next offset that any node knows, for every queue."""
    ends: dict[tuple[str, str, int], int] = {}
    for reply in replies.values():
        for topic in reply.topics if reply is not None else ():
            for queue in topic.queue_list:
                key = (topic.topic.name, queue.broker_group, queue.group_queue)
                ends[key] = max(ends.get(key, 0), queue.max_offset)
    return ends


def topic_counts(replies: Mapping[str, peer_pb2.NodeStatusReply | None]) -> Counts:
    """What the furthest replica knows of every topic in every broker group. Replicas apply the same
    log, so the ends that it knows are the highest ones of all queues."""
    counts: Counts = {}
    for reply in replies.values():
        for found in _counts_of(reply) if reply is not None else ():
            for topic, queues, messages in zip(
                found.topics, found.queues, found.messages, strict=True
            ):
                key = (topic, found.broker_group)
                counts[key] = max(counts.get(key, (0, 0)), (queues, messages))
    return counts


def _counts_of(reply: peer_pb2.NodeStatusReply) -> Iterable[peer_pb2.TopicCounts]:
    if not reply.topics:
        return reply.counts
    # A node of version 0.2.0 lists the queues instead.
    return [
        peer_pb2.TopicCounts(
            broker_group=topic.queue_list[0].broker_group,
            topics=[topic.topic.name],
            queues=[len(topic.queue_list)],
            messages=[sum(queue.max_offset for queue in topic.queue_list)],
        )
        for topic in reply.topics
        if topic.queue_list
    ]


def topic_sums(topic: Any, counts: Counts) -> admin_pb2.TopicInfo:
    """A topic of the controller's state without its queues; `messages` only if every queue's end is
    known."""
    stored = stored_name(topic.namespace, topic.name)
    info = _settings_of(topic)
    found = [
        (queues, counts.get((stored, group), (0, 0))) for group, queues in topic.placement.items()
    ]
    if all(known >= queues for queues, (known, _) in found):
        info.messages = sum(messages for _, (_, messages) in found)
    return info


def topic_info(topic: Any, ends: Mapping[tuple[str, str, int], int]) -> admin_pb2.TopicInfo:
    """A topic of the controller's state with the known ends of its queues; `messages` only if every
    queue's end is known."""
    stored = stored_name(topic.namespace, topic.name)
    info = _settings_of(topic)
    for number, (group, queue) in enumerate(queues_of(topic)):
        info.queue_list.add(
            queue=number,
            broker_group=group,
            group_queue=queue,
            max_offset=ends.get((stored, group, queue)),
        )
    known = [ends.get((stored, group, queue)) for group, queue in queues_of(topic)]
    if None not in known:
        info.messages = sum(end for end in known if end is not None)
    return info


def _settings_of(topic: Any) -> admin_pb2.TopicInfo:
    return admin_pb2.TopicInfo(
        topic=admin_pb2.Name(namespace=topic.namespace, name=topic.name),
        kind=topic.kind.value,
        queues=topic.queues,
        permission=topic.permission.value,
        durability=topic.durability.value,
        dedup_ms=topic.dedup_ms,
    )


def queues_of(topic: Any) -> list[tuple[str, int]]:
    """(broker group, queue id there) of every queue of a topic, in the order of their numbers."""
    return [
        (group, queue) for group, count in sorted(topic.placement.items()) for queue in range(count)
    ]


def number_in(topic: Any, broker_group: str, queue: int) -> int | None:
    """The number of a queue over all broker groups of its topic, None if the topic, given as the
    metadata has it or None, is without it."""
    queues = [] if topic is None else queues_of(topic)
    return queues.index((broker_group, queue)) if (broker_group, queue) in queues else None


def _group_of(status: ReplicaStatus) -> admin_pb2.BrokerGroupInfo:
    """The replica's own report, first in `replicas`; a leader adds the catch-up progress of the
    others."""
    info = admin_pb2.BrokerGroupInfo(
        group=status.group, leader=status.leader, term=status.term, commit_index=status.commit_index
    )
    info.replicas.add(
        node=status.node,
        role=status.role.value,
        end_index=status.end_index,
        durable_index=status.durable_index,
        commit_index=status.commit_index,
        fenced=status.fenced,
        begin_index=status.begin_index,
        state="waiting"
        if status.state == "running" and not status.extra.get("admitted", 1)
        else status.state,
    )
    for peer in status.peers:
        info.replicas.add(node=peer.node, catch_up=_catch_up_of(peer))
    return info


def replication_of(members: GroupMembers) -> str:
    """The replication kind as the configuration names it, or both kinds while it changes."""
    kind = {Rule.MAJORITY: "raft", Rule.IN_SYNC: "ha"}
    if members.towards is None:
        return kind[Rule(members.rule)]
    goal = kind[Rule(members.towards)]
    return f"{'ha' if goal == 'raft' else 'raft'} to {goal}"


def _ha_of(view: HaView, status: ReplicaStatus, incarnation: str) -> admin_pb2.HaInfo:
    return admin_pb2.HaInfo(
        epoch=status.term,
        in_sync=view.in_sync or (),
        min_in_sync=view.minimum,
        ack="async" if view.ack_async else "in-sync",
        transfer="pull" if view.pull else "push",
        short=view.short or None,
        generation=view.generation,
        incarnation=incarnation,
        last_store_ms=view.last_store_ms,
    )


def _resting(status: ReplicaStatus) -> admin_pb2.BrokerGroupInfo:
    """A replica that is not running: it has no role, and what it last knew of others is not
    reported."""
    info = admin_pb2.BrokerGroupInfo(group=status.group)
    replica = info.replicas.add(node=status.node, state=status.state)
    if status.rebuild is not None:
        known = {name: value for name, value in asdict(status.rebuild).items() if value is not None}
        replica.rebuild.CopyFrom(admin_pb2.RebuildInfo(**known))
    return info


def _catch_up_of(peer: PeerProgress) -> admin_pb2.CatchUp:
    return admin_pb2.CatchUp(
        state=peer.state,
        behind_entries=peer.behind_entries,
        behind_bytes=peer.behind_bytes,
        entries_per_s=peer.entries_per_s,
        bytes_per_s=peer.bytes_per_s,
        seconds_left=peer.seconds_left,
        restarts=peer.restarts,
        silent_ms=peer.silent_ms,
        note=peer.note,
        lag_ms=peer.lag_ms,
    )


def _merged_group(
    group: str, configured: Iterable[str], replies: Mapping[str, peer_pb2.NodeStatusReply | None]
) -> admin_pb2.BrokerGroupInfo:
    reports = {
        info.replicas[0].node: info
        for reply in replies.values()
        if reply is not None
        for info in reply.groups
        if info.group == group and info.replicas
    }
    merged = admin_pb2.BrokerGroupInfo(group=group)
    leaders = [info for info in reports.values() if info.replicas[0].role == Role.LEADER.value]
    leading = max(leaders, key=lambda info: info.term, default=None)
    if leading is not None:
        merged.leader = leading.replicas[0].node
        merged.files_kept.update(leading.files_kept)
        merged.disputed_files.extend(leading.disputed_files)
        if leading.HasField("store_time_ahead_ms"):
            merged.store_time_ahead_ms = leading.store_time_ahead_ms
    if reports:
        newest = leading or max(reports.values(), key=lambda info: info.commit_index)
        merged.term = newest.term
        merged.commit_index = newest.commit_index
        # A program that knows no levels states none, and reads records of level 1 only.
        merged.level = max(info.level or FIRST_LEVEL for info in reports.values())
    # The group's log says which nodes replicate it; until a replica has applied that record, the
    # configuration does.
    told = max(
        (info for info in reports.values() if info.voters),
        key=lambda info: (info is leading, info.commit_index),
        default=None,
    )
    merged.voters.extend(configured if told is None else told.voters)
    if told is not None:
        merged.learners.extend(told.learners)
        merged.observers.extend(told.observers)
        if told.HasField("replication"):
            merged.replication = told.replication
    if leading is not None and leading.HasField("ha"):
        merged.ha.CopyFrom(leading.ha)
    elif told is not None and told.HasField("ha"):
        # There is no master: the in-sync set that the replicas last heard of is outdated.
        merged.ha.CopyFrom(told.ha)
        merged.ha.ClearField("in_sync")
        merged.ha.ClearField("epoch")
    for node in (*merged.voters, *merged.learners):
        replica = merged.replicas.add(node=node)
        if node in reports:
            replica.CopyFrom(reports[node].replicas[0])
            if leading is not None and replica.HasField("end_index"):
                replica.lag_entries = max(0, leading.replicas[0].end_index - replica.end_index)
            if node in merged.observers and replica.role == Role.LEARNER.value:
                replica.role = OBSERVER
        for seen in leading.replicas[1:] if leading is not None else ():
            if seen.node == node:
                replica.catch_up.CopyFrom(seen.catch_up)
    return merged


def _health(response: admin_pb2.ClusterStatusResponse) -> str:
    """ok, degraded or down, as admin.proto defines them."""
    for group in response.groups:
        present = sum(
            _takes_part(replica) for replica in group.replicas if replica.node in group.voters
        )
        if not group.HasField("leader") or (
            not group.HasField("ha") and present * 2 <= len(group.voters)
        ):
            return "down"
    replicas = [replica for group in response.groups for replica in group.replicas]
    present = all(node.up for node in response.nodes) and all(
        _takes_part(replica) for replica in replicas
    )
    agree = not any(group.disputed_files for group in response.groups) and not any(
        replica.differing_files for replica in replicas
    )
    in_sync = all(map(_in_sync, response.groups))
    return "ok" if present and agree and in_sync else "degraded"


def _in_sync(group: admin_pb2.BrokerGroupInfo) -> bool:
    """Whether all voters of an HA group are in sync and the set is large enough; always true for a
    raft group."""
    return not group.HasField("ha") or (
        not group.ha.HasField("short") and set(group.voters) <= set(group.ha.in_sync)
    )


def _takes_part(replica: admin_pb2.ReplicaInfo) -> bool:
    return (
        replica.HasField("role")
        and not replica.HasField("fenced")
        and replica.state in ("", "running")
    )


def _disk_usage(directory: Path, measured: Mapping[str, int]) -> tuple[int, int | None]:
    """Bytes of allocated blocks below a directory, and bytes free on its file system. Files may
    vanish meanwhile. `measured`: the bytes of broker groups as retention last found them; their
    directories, with a file for each queue, are not read again."""
    used = sum(measured.values())
    for parent, inside, files in os.walk(directory):
        # Another worker reports its own directory.
        inside[:] = [
            name
            for name in inside
            if not WORKER_NAME(name) and not (name in measured and parent == str(directory))
        ]
        for name in files:
            try:
                used += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    try:
        found = os.statvfs(directory)
    except OSError:
        return used, None
    return used, found.f_bavail * found.f_frsize
