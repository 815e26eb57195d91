"""Opens or creates the directory of one broker group, and connects its store, replicator and
machine to an `OpenReplica`.

Opening may take long, because recovery reads the end of the log, so it runs on a thread of its own.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ledgermq.node.broker.flush import PAGE_BYTES, FlushPolicy, LazySync
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions.transaction_checks import (
    CHECK_RETRY_NS,
    TransactionRules,
)
from ledgermq.node.broker.restoring import restore
from ledgermq.node.controller.roster import Roster
from ledgermq.node.replica.background.scrubbing import Plan
from ledgermq.node.replica.background.step_thread import StepThread
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.node.replica.hosting.assembling import machine_of, replica_of
from ledgermq.node.replica.hosting.running import RESERVE_FILE, OpenReplica
from ledgermq.node.replica.retention.retention_rules import STORE, Pin
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.entries.entry_encoding import host_bytes
from ledgermq.proto.names import is_system_name
from ledgermq.proto.types import Identity
from ledgermq.raft.config import MS, HaRules, Members, RaftConfig, Rule, Timing
from ledgermq.storage.files.errors import explain
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.reserve import Reserve
from ledgermq.storage.group import store as stores
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.log.log_writer import AtOnceIfSlow, LogWriter, make_writer
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.state.identity import mint

log = get_logger()


def open_group(config: NodeConfig, group: BrokerGroup, disk: Disk) -> OpenReplica:
    """Open a broker group that this node keeps a replica of; a group that was never here is
    created. Raises Damaged, Unreadable or a LogFenced with exit code 75 for damage at or below the
    synced mark, FatalError and StorageError for everything else."""
    root = root_of(config, group.name)
    try:
        if not stores.exists(disk, root):
            if is_system_name(group.name) and not config.joins(group.name):
                raise ConfigError(
                    f"the broker group name {group.name!r} is reserved",
                    "choose another one for the new cluster",
                )
            GroupStore.create(disk, root, wanted_identity(config, group))
        _release_when_full(config, group, disk, root)
        began = time.monotonic()
        phases = Phases(time.monotonic_ns)
        store = _open_store(config, group, disk, root, phases)
        try:
            return _make_running(config, group, store, phases, began)
        except BaseException:
            # The files must be closed before a repair or the next attempt.
            store.abandon()
            raise
    except OSError as error:
        raise explain(root, error) from error


def root_of(config: NodeConfig, group: str) -> str:
    """The directory of a broker group on this node."""
    return str(config.data.absolute() / group)


def controller_directory(config: NodeConfig) -> str:
    """The directory of this node's part of the controller quorum and of its list of nodes."""
    return str(config.data.absolute() / "controller")


def wanted_identity(config: NodeConfig, group: BrokerGroup) -> Identity:
    """The identity that the group's directory must have; a new directory gets it."""
    return mint(
        config.cluster_id,
        group.name,
        config.node,
        str(uuid.uuid4()),
        config.begun_ms(group),
        data_file_bytes=group.data_file_bytes,
        index_file_bytes=group.index_file_bytes,
        consume_queue_file_bytes=group.consume_queue_file_bytes,
    )


def _open_store(
    config: NodeConfig, group: BrokerGroup, disk: Disk, root: str, phases: Phases
) -> GroupStore:
    files = ThreadPoolExecutor(1, thread_name_prefix=f"files-{group.name}")
    store = GroupStore.open(
        disk,
        root,
        wanted_identity(config, group),
        process=os.getpid(),
        submit=lambda work: _submitted(files, work),
        writer=_writer(config, group.name),
        phases=phases,
    )
    if store.log.fenced is not None:
        store.abandon()
        raise store.log.fenced
    return store


def _make_running(
    config: NodeConfig, group: BrokerGroup, store: GroupStore, phases: Phases, began: float
) -> OpenReplica:
    _check_sizes(config, group, store.identity)
    joins = config.joins(group.name)
    if not joins:
        bootstrap(store.log, group.replicas, config.begun_ms(group), _rule(group))
    machine = machine_of(store, Machine)
    lost = restore(store, machine, phases)
    if lost is not None:
        log.warning("consume queues were rebuilt from the log", group=group.name, reason=lost)
    admitted = store.read_vouched() or (not joins and _is_alone(config, group, store.disk))
    replica = replica_of(
        store,
        machine,
        RaftConfig(
            config.node,
            () if joins else tuple(group.replicas),
            random.SystemRandom().getrandbits(62) + 1,
            timing=_timing(config),
            incarnation=store.identity.incarnation,
            rule=Rule.MAJORITY if joins else _rule(group),
            ha=_ha_rules(group),
        ),
        random.Random(),
        time.monotonic_ns,
        store_host=host_bytes(config.address.host, config.address.client_port),
        admitted=admitted,
        lazy=_lazy(config),
    )
    _compare_members(config, group, replica.members)
    driven = Group(
        group.name, config.node, replica, machine, _settings(config, group, store.identity)
    )
    opened = OpenReplica(
        store,
        machine,
        driven,
        _key_index(group, store),
        executor=ThreadPoolExecutor(1, thread_name_prefix=f"keep-{group.name}"),
        clock_ns=time.monotonic_ns,
        worker=StepThread,
        reserve_bytes=config.retention.reserve_bytes,
        scrub=_scrub_plan(config),
    )
    opened.start()
    if config.tiered.url:
        # Nothing goes before the store was asked what it holds.
        opened.pins.store = Pin(STORE, 0, "the object store has not been asked yet")
    opened.expect_replay(phases, replica.commit_index)
    log.info(
        "broker group opened",
        group=group.name,
        clean=store.was_clean,
        end_index=store.log.end_index,
        commit_index=replica.commit_index,
        applied_index=machine.applied_index,
        admitted=admitted,
        row=store.log.report.row,
        seconds=round(time.monotonic() - began, 3),
        phases=phases.seconds,
    )
    return opened


def _is_alone(config: NodeConfig, group: BrokerGroup, disk: Disk) -> bool:
    """Whether this node is the only one of the cluster, as far as it knows, so that no other node
    can know more about the group."""
    roster = Roster(
        config.node, {name: {} for name in config.members}, disk, controller_directory(config)
    )
    roster.load()
    return {*roster.nodes, *group.replicas} == {config.node}


def _release_when_full(config: NodeConfig, group: BrokerGroup, disk: Disk, root: str) -> None:
    """Release the reserve if the disk is full: a start writes a few small files before anything can
    be cleaned up."""
    reserve = Reserve(disk, f"{root}/state/{RESERVE_FILE}", config.retention.reserve_bytes)
    if disk.free_bytes(root) < stores.START_BYTES and reserve.release():
        log.warning(
            "reserve released", group=group.name, reason="the disk is full while the node starts"
        )


def _key_index(group: BrokerGroup, store: GroupStore) -> KeyIndex:
    index = KeyIndex(
        store.disk,
        store.root,
        store.identity.log_id,
        slots=group.key_index_slots,
        units=group.key_index_units,
    )
    index.start(store.log.begin_index, store.log.end_index, store.log.chain_at)
    return index


def _writer(config: NodeConfig, group: str) -> LogWriter:
    """Create the writer that this node appends to the group's log with. Raises ConfigError."""
    storage = config.storage
    commits = ThreadPoolExecutor(1, thread_name_prefix=f"commit-{group}")
    try:
        return make_writer(
            storage.append,
            lock_memory=storage.lock_memory,
            refused=lambda reason: log.warning(
                "the configured memory settings are not in force", group=group, reason=reason
            ),
            buffers=storage.pool_buffers,
            buffer_bytes=storage.pool_buffer_bytes,
            submit=lambda work: _submitted(commits, work),
            together=AtOnceIfSlow(2, f"sync-{group}"),
        )
    except OSError as error:
        what = (
            f"there is no memory for {storage.pool_buffers} buffers of {storage.pool_buffer_bytes}"
            f" bytes ({error.strerror})"
        )
        raise ConfigError(
            what, "lower storage.pool_buffers or storage.pool_buffer_bytes"
        ) from error


def _submitted(executor: ThreadPoolExecutor, work: Any) -> None:
    executor.submit(work)


def _check_sizes(config: NodeConfig, group: BrokerGroup, found: Identity) -> None:
    if found.data_file_bytes != group.data_file_bytes:
        what = (
            f"broker group {group.name} in {config.data} has log files of {found.data_file_bytes}"
            f" bytes, not {group.data_file_bytes}"
        )
        raise ConfigError(
            what,
            f"set data_file_bytes to {found.data_file_bytes}: it is fixed when a group is created",
        )


def _compare_members(config: NodeConfig, group: BrokerGroup, members: Members) -> None:
    """Warn if the log and the configuration name different members or rules. The log decides; the
    configuration only says how the group began."""
    if members.voters and set(members.nodes) != set(group.replicas):
        log.warning(
            "the configuration names other replicas than the log; the log decides",
            group=group.name,
            configured=sorted(group.replicas),
            voters=sorted(members.voters),
            learners=sorted(members.learners),
            member=config.node in members.nodes,
        )

    if members.voters and members.rule is not Rule.ALL and members.rule is not _rule(group):
        log.warning(
            "the configuration names another kind of replication than the log; the log decides",
            group=group.name,
            configured=group.replication,
            rule=members.rule.value,
        )
    if members.minimum not in (0, _ha_rules(group).minimum):
        log.warning(
            "the configuration names another min_in_sync than the log; the log decides",
            group=group.name,
            configured=_ha_rules(group).minimum,
            recorded=members.minimum,
        )


def _rule(group: BrokerGroup) -> Rule:
    return Rule.IN_SYNC if group.replication == "ha" else Rule.MAJORITY


def _ha_rules(group: BrokerGroup) -> HaRules:
    """The rules that hold while the group is an HA group, also if it became one later."""
    default = HaRules()
    return HaRules(
        ack_async=group.ack_async,
        minimum=group.least_in_sync,
        lag_ns=default.lag_ns if group.in_sync_lag_ms is None else group.in_sync_lag_ms * MS,
        lag_bytes=default.lag_bytes if group.in_sync_lag_bytes is None else group.in_sync_lag_bytes,
        pull=group.transfer == "pull",
    )


def _timing(config: NodeConfig) -> Timing:
    raft = config.raft
    return Timing(
        heartbeat_ns=raft.heartbeat_ms * MS,
        election_min_ns=raft.election_min_ms * MS,
        election_max_ns=raft.election_max_ms * MS,
        window_bytes=raft.window_bytes,
        range_bytes_max=raft.push_bytes,
        observer_bytes_per_s=raft.observer_bytes_per_s,
    )


def _scrub_plan(config: NodeConfig) -> Plan:
    """The scrub plan of one group; the groups of a node share the node's byte budget."""
    return Plan(
        config.scrub.bytes_per_s / max(1, len(config.hosted_groups)),
        config.scrub.again_hours * 3600,
    )


def _lazy(config: NodeConfig) -> LazySync:
    flush = config.flush
    return LazySync(flush.interval_ms * MS, flush.least_pages * PAGE_BYTES, flush.thorough_ms * MS)


def _settings(config: NodeConfig, group: BrokerGroup, identity: Identity) -> LeaderSettings:
    delivery = config.delivery
    times = LeaseTimes(
        liveness_ns=delivery.liveness_ms * MS,
        cap_ns=delivery.auto_renew_max_ms * MS,
        gone_ns=delivery.gone_grace_ms * MS,
    )
    rules = TransactionRules(
        check_ns=delivery.transaction_check_ms * MS,
        interval_ns=delivery.transaction_interval_ms * MS,
        checks_max=delivery.transaction_checks,
        retry_ns=min(delivery.transaction_interval_ms * MS, CHECK_RETRY_NS),
        age_max_ms=delivery.transaction_keep_ms,
        undecided_max=delivery.transactions_max,
    )
    policy = FlushPolicy(config.flush.of(identity.group))
    room = identity.data_file_bytes - 8
    return LeaderSettings(
        times=times,
        entry_bytes_max=room,
        policy=policy,
        ha=_ha_rules(group),
        max_attempts=delivery.max_attempts,
        preferred=group.preferred_leader,
        transactions=rules,
        lite_topics_max=config.limits.max_lite_topics,
        budget=ANSWERS,
    )
