"""Tiered storage of the broker groups of one node: sealed files go to the object store, and stay
here until this node has read them there.

Per group one task looks for the first sealed file that this node has not verified in the store yet,
and has the worker thread carry it (`node/replica/background/file_carrier.py`). The position behind
the last verified file is the replica's pin `store`: retention and trimming respect it like any
other pin, and this module removes nothing. The leader uploads. A follower waits for it for a while
and then uploads itself, because every upload of a file has the same bytes and the same key.

The task also links the manifests in the store to the replica's log (`storage/tiered/catalogue.py`).
Readers use them through `reader`; no turn and no pin asks what the store holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ledgermq.node.replica.background.file_carrier import Duty, FileCarrier, OtherHistory, Stopped
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.replica.hosting.ports import State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.ports import TieredState
from ledgermq.node.replica.retention.retention_facts import file_at
from ledgermq.node.replica.retention.retention_rules import (
    HOUR_MS,
    STORE,
    Level,
    LogFile,
    Pin,
    Watermarks,
)
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.records.time_epochs import TimeEpochs
from ledgermq.proto.status import LedgerError
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import (
    Damaged,
    StorageError,
    UnknownFormat,
    is_no_space,
    lacks_descriptors,
)
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.state.recovered import read_recovery
from ledgermq.storage.state.snapshot import read_snapshots
from ledgermq.storage.tiered import catalogue, manifests
from ledgermq.storage.tiered.catalogue import Catalogue
from ledgermq.storage.tiered.controller_files import ControllerFiles, fingerprint, pack, read_files
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog, controller_key
from ledgermq.storage.tiered.ports import ObjectStore, StoreFailure
from ledgermq.storage.tiered.range_cache import RangeCache
from ledgermq.storage.tiered.stored_parts import AHEAD, Ranges
from ledgermq.storage.tiered.tier_reader import TierReader
from ledgermq.storage.tiered.total_retention import TotalLimits, TotalRetention, due
from ledgermq.storage.tiered.transfer import WrongObject

NOTE_FILE = "tiered"
NOTE_VERSION = 1
PATIENCE_RETRIES = 6
"""A follower uploads a file itself when it has waited for this many times `tiered.retry_ms`."""
CONTROLLER_EVERY_S = 10.0
TOTAL_EVERY_S = 60.0
"""How often the leader looks for files that total retention removes, if no other file was stored,
and how often every node asks where the log begins in the store."""
CACHE = "tiered-cache"
"""The folder of the node's directory with ranges of objects that readers need."""
NO_DIGEST = "a majority has not reported its digest yet"
NOT_UPLOADED = "the leader has not uploaded it yet"

T = TypeVar("T")
log = get_logger()


@dataclass(frozen=True, slots=True)
class _Look:
    """The facts about a replica, collected between two turns."""

    leads: bool
    begin: Begin
    """Where the log begins on this disk."""
    decided_begin: Begin
    """Where it begins by the trim records."""
    begins_stored: bool
    """Whether these say that the store has what was before."""
    waiting_bytes: int
    file: LogFile | None
    """The first file that is not verified, if it is sealed."""
    before: tuple[int, int] | None
    """Term and chain CRC of the entry before that file."""
    sha256: str | None
    keep_from: int
    """Total retention keeps what is from here on: the log by its records, and what readers pin."""
    time_epochs: TimeEpochs


@dataclass(slots=True)
class _Watch:
    """The state for one run of one group."""

    group: str
    life: int
    carrier: FileCarrier
    catalogue: Catalogue
    reader: TierReader
    total: TotalRetention
    look: _Look | None = None
    """The last look."""
    link_at_s: float = 0.0
    begin_at_s: float = 0.0
    total_at_s: float = 0.0
    """Until then total retention waits, if this node still leads and no other file was stored."""
    total_last: int = -1
    """The last stored entry when it looked last."""
    not_removed: str | None = None
    stored: StoredLog | None = None
    """What the store says of the log; None until it was asked."""
    verified_pos: int = 0
    has_snapshot: bool = False
    waits_for: str | None = "the object store has not been asked yet"
    waiting_bytes: int = 0
    waiting_since_s: float | None = None
    """Monotonic time since which the same file waits, for whatever reason."""
    unuploaded_since_s: float | None = None
    """Monotonic time since which this follower has been waiting for the leader's upload."""
    retry_at_s: float = 0.0


class Tiering:
    """Tiered storage of all groups of one node. Methods belong to the loop's thread."""

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        hosted: Mapping[str, ReplicaHost],
        engine: Engine,
        store: ObjectStore,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._disk = disk
        self._hosted = hosted
        self._engine = engine
        self._store = store
        self._now_ms = now_ms
        self._now_s = now_s
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tiered")
        self._ahead = ThreadPoolExecutor(AHEAD, thread_name_prefix="tiered-ahead")
        own = config.retention
        marks = Watermarks(
            own.warn_percent, own.delete_percent, own.refuse_percent, own.ample_bytes
        )
        data = str(config.data.absolute())

        def crowded() -> bool:
            return marks.level(disk.total_bytes(data), disk.free_bytes(data)) >= Level.WARN

        total = config.tiered.retention
        self._limits = TotalLimits(int(total.hours * HOUR_MS), total.max_bytes)
        self._ranges = Ranges(
            store,
            RangeCache(disk, f"{data}/{CACHE}", config.tiered.cache_bytes, crowded),
            self._ahead,
        )
        self._watches: dict[str, _Watch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._controller_sent = ""

    def start(self) -> None:
        self._tasks[""] = asyncio.create_task(self._work_controller(), name="tiered-controller")
        for group in self._hosted:
            self.take_in(group)

    def take_in(self, group: str) -> None:
        """Begin to carry the files of a hosted group."""
        self._tasks[group] = asyncio.create_task(self._work(group), name=f"tiered-{group}")

    async def let_go(self, group: str) -> None:
        """Stop carrying the files of a group."""
        watch = self._watches.get(group)
        if watch is not None:
            watch.carrier.stop()
        task = self._tasks.pop(group)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._watches.pop(group, None)

    async def stop(self) -> None:
        for watch in self._watches.values():
            watch.carrier.stop()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for pool in (self._worker, self._ahead):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def state(self, group: str) -> TieredState | None:
        """For the status; None while the group does not run here."""
        watch, hosted = self._watches.get(group), self._hosted.get(group)
        if watch is None or hosted is None or hosted.state is not State.RUNNING:
            return None
        size = hosted.running.store.identity.data_file_bytes
        files = watch.reader.files
        return TieredState(
            verified_pos=watch.verified_pos,
            waiting_files=watch.waiting_bytes // size,
            waiting_bytes=watch.waiting_bytes,
            waits_for=watch.waits_for,
            stored_files=len(files),
            stored_bytes=len(files) * size,
            stored_from_index=files[0].first if files else None,
            unreadable=watch.reader.problem or None,
            not_removed=watch.not_removed,
        )

    def reader(self, group: str) -> TierReader | None:
        """The reader of the stored files of a group; None while it does not run here."""
        watch, hosted = self._watches.get(group), self._hosted.get(group)
        running = (
            watch is not None
            and hosted is not None
            and hosted.state is State.RUNNING
            and hosted.boots == watch.life
        )
        return watch.reader if watch is not None and running else None

    async def _work(self, group: str) -> None:
        while True:
            if self._hosted[group].state is State.RUNNING:
                try:
                    await self.check(group)
                except LedgerError:
                    # The group stopped running meanwhile.
                    pass
                # one failed check must not end all later ones; it removed nothing
                except Exception:
                    log.exception("tiered storage check failed", group=group)
            await asyncio.sleep(self._config.tiered.check_ms / 1000)

    # -- one check

    async def check(self, group: str) -> None:
        """Carry files until none is left or one has to wait, and link what the store holds. Raises
        LedgerError while the group does not run."""
        watch = self._watch(group)
        if self._now_s() >= watch.retry_at_s:
            try:
                while await self._advance(group, watch):
                    pass
            except Stopped:
                return
            except FileNotFoundError:
                # Trimmed by a repair or an installation meanwhile; the next check looks again.
                return
            except (StorageError, OSError) as error:
                self._failed(group, watch, error)
        await self._retain(watch)
        await self._link(watch)
        await self._on_thread(self._ranges.cache.give_way)

    async def _link(self, watch: _Watch) -> None:
        """Link manifests, so that readers find what the store holds. No pin depends on it."""
        reader, look = watch.reader, watch.look
        if watch.stored is None or look is None:
            reader.problem = watch.waits_for or reader.problem
            return
        if self._now_s() < watch.link_at_s:
            return
        try:
            if self._limits.max_age_ms or self._limits.max_bytes:
                await self._renew_begin(watch, watch.stored, every_s=TOTAL_EVERY_S)
            begin = watch.stored.begin
            whole = await self._on_thread(
                lambda: watch.catalogue.link(look.begin, begin, watch.verified_pos)
            )
            reader.problem = "" if whole else "it is still reading the manifests"
        except (StorageError, OSError) as error:
            whole = False
            await self._not_linked(watch, watch.stored, error)
        reader.link_files(watch.catalogue.files, whole=whole)

    async def _renew_begin(self, watch: _Watch, stored: StoredLog, every_s: float) -> bool:
        """Ask where the log begins in the store. Returns whether it has moved. Raises StoreFailure,
        Damaged."""
        if self._now_s() < watch.begin_at_s:
            return False
        begin = await self._on_thread(lambda: watch.carrier.begin(stored.begin))
        watch.begin_at_s = self._now_s() + every_s
        watch.stored = replace(stored, begin=begin)
        return begin != stored.begin

    async def _not_linked(self, watch: _Watch, stored: StoredLog, error: Exception) -> None:
        try:
            watch.begin_at_s = 0.0
            if isinstance(error, WrongObject) and await self._renew_begin(
                watch, stored, every_s=0.0
            ):
                watch.reader.problem = "the leader has removed files meanwhile"
                return
        except (StorageError, OSError) as again:
            error = again
        watch.reader.problem = str(error)
        watch.link_at_s = self._now_s() + self._config.tiered.retry_ms / 1000
        metrics.TIERED_FAILURES.labels(watch.group, type(error).__name__).inc()
        if isinstance(error, WrongObject):
            metrics.TIERED_WRONG.labels(watch.group).inc()

    # -- total retention

    async def _retain(self, watch: _Watch) -> None:
        """As leader, remove from the store what is due there: only files before the begin of the
        log by its records, and none that a pin holds."""
        stored, files = watch.stored, watch.reader.files
        if (
            not (self._limits.max_age_ms or self._limits.max_bytes)
            or stored is None
            or not files
            or not watch.reader.whole
        ):
            return
        if self._now_s() < watch.total_at_s and files[-1].last == watch.total_last:
            return
        look: _Look = await self._engine.run(watch.group, _looking(watch.verified_pos))
        if not look.leads:
            watch.not_removed = None
            return
        begin, waits_for = (
            due(files, self._limits, self._now_ms(), look.keep_from, look.time_epochs),
            None,
        )
        watch.total_at_s = self._now_s() + TOTAL_EVERY_S
        try:
            if begin is None:
                await self._on_thread(lambda: watch.total.clean(stored.begin))
            else:
                waits_for = await self._on_thread(lambda: watch.total.remove(begin, files[-1].last))
                if waits_for is None:
                    watch.stored = replace(stored, begin=begin)
                    log.info(
                        "log files removed from the object store",
                        group=watch.group,
                        begins_with=begin.index,
                    )
        except (StorageError, OSError) as error:
            waits_for = str(error)
            watch.total_at_s = self._now_s() + self._config.tiered.retry_ms / 1000
            metrics.TIERED_FAILURES.labels(watch.group, type(error).__name__).inc()
            if watch.not_removed != waits_for:
                log.warning(
                    "nothing removed from the object store", group=watch.group, reason=waits_for
                )
        watch.total_last, watch.not_removed = files[-1].last, waits_for

    def _failed(self, group: str, watch: _Watch, error: Exception) -> None:
        kind = type(error).__name__
        metrics.TIERED_FAILURES.labels(group, kind).inc()
        if watch.waits_for != str(error):
            say = log.error if isinstance(error, OtherHistory) else log.warning
            say(
                "object store",
                group=group,
                reason=str(error),
                kept="local files stay until they are verified in the store",
            )
        watch.waits_for = str(error)
        watch.retry_at_s = self._now_s() + self._config.tiered.retry_ms / 1000
        watch.unuploaded_since_s = None
        self._pin(group, watch)

    def _watch(self, group: str) -> _Watch:
        hosted = self._hosted[group]
        known = self._watches.get(group)
        if known is None or known.life != hosted.boots:
            if known is not None:
                known.carrier.stop()
            store = hosted.running.store
            rate = self._config.tiered.bytes_per_s
            carrier = FileCarrier(self._store, self._disk, group, store.identity.log_id, rate)
            where = manifests.folder(group, store.identity.log_id)
            linked = Catalogue(
                self._disk,
                path=f"{store.state_directory}/{catalogue.FILE}",
                store=self._store,
                where=where,
                log_id=store.identity.log_id,
                file_bytes=store.identity.data_file_bytes,
            )
            reader = TierReader(self._ranges, where, store.identity.data_file_bytes, _Events(group))
            directory = store.state_directory
            snapshots = lambda: [value for _, value in read_snapshots(self._disk, directory)]  # noqa: E731
            total = TotalRetention(self._store, where, snapshots, carrier.put_and_compare)
            known = self._watches[group] = _Watch(
                group=group,
                life=hosted.boots,
                carrier=carrier,
                catalogue=linked,
                reader=reader,
                total=total,
            )
        return known

    async def _advance(self, group: str, watch: _Watch) -> bool:
        """Carry one file. Returns whether there may be another one."""
        look: _Look = await self._engine.run(group, _looking(watch.verified_pos))
        store = self._hosted[group].running.store
        watch.look, watch.waiting_bytes = look, look.waiting_bytes
        if look.file is not None and watch.waiting_since_s is None:
            watch.waiting_since_s = self._now_s()
        if look.begin.pos > watch.verified_pos:
            # Also when the log was replaced by a peer's: what lies before it must be in the store,
            # too.
            watch.stored = None
        if watch.stored is None and not await self._open(group, watch, look, store):
            return False
        assert watch.stored is not None
        if look.leads and not watch.has_snapshot and watch.stored.begin.index > 0:
            begin = watch.stored.begin.index
            watch.has_snapshot = await self._on_thread(
                lambda: watch.carrier.keep_snapshot(store.state_directory, begin)
            )
        if look.file is not None and look.file.base != watch.verified_pos:
            # Only now it is known which file is the first.
            return True
        if look.file is None or look.sha256 is None:
            return self._waits(group, watch, None if look.file is None else NO_DIGEST)
        manifest = _manifest(store.identity.log_id, look)
        path = f"{store.log_directory}/data/{file_name(look.file.base)}"
        duty = Duty(path, manifest, look.leads or self._out_of_patience(watch))
        if not await self._on_thread(lambda: watch.carrier.carry(duty)):
            return self._waits(group, watch, NOT_UPLOADED)
        watch.catalogue.add(manifest)
        watch.verified_pos, watch.waits_for = manifest.next_base, None
        watch.waiting_since_s = watch.unuploaded_since_s = None
        watch.waiting_bytes -= manifest.size
        log.info(
            "log file verified in the object store",
            group=group,
            base=manifest.base,
            sha256=manifest.sha256,
        )
        await self._on_thread(lambda: self._write_note(store, manifest.next_base))
        self._pin(group, watch)
        return True

    def _waits(self, group: str, watch: _Watch, reason: str | None) -> bool:
        if reason != NOT_UPLOADED:
            watch.unuploaded_since_s = None
        elif watch.unuploaded_since_s is None:
            watch.unuploaded_since_s = self._now_s()
        watch.waits_for = reason
        self._pin(group, watch)
        return False

    def _out_of_patience(self, watch: _Watch) -> bool:
        since_s = watch.unuploaded_since_s
        return (
            since_s is not None
            and self._now_s() >= since_s + PATIENCE_RETRIES * self._config.tiered.retry_ms / 1000
        )

    async def _open(self, group: str, watch: _Watch, look: _Look, store: GroupStore) -> bool:
        """Ask the store for its description of the log, and find the position from which this node
        has to verify."""
        recovery = await self._on_thread(lambda: read_recovery(self._disk, store.root))
        mine = StoredLog.of(store.identity, look.decided_begin, recovery)
        uploads = look.leads or self._out_of_patience(watch)
        stored = await self._on_thread(
            lambda: watch.carrier.open(mine, uploads=uploads, begins_stored=look.begins_stored)
        )
        if stored is None:
            return self._waits(group, watch, NOT_UPLOADED)
        noted = await self._on_thread(lambda: self._read_note(store))
        await self._on_thread(watch.catalogue.load)
        if noted < look.begin.pos > stored.begin.pos:
            await self._on_thread(
                lambda: watch.carrier.require_link(look.begin, stored.data_file_bytes)
            )
        watch.verified_pos = max(noted, look.begin.pos, stored.begin.pos)
        watch.stored, watch.waiting_since_s = stored, None
        self._pin(group, watch)
        return True

    def _pin(self, group: str, watch: _Watch) -> None:
        """Keep what is not verified, and publish how much that is."""
        hosted = self._hosted[group]
        if hosted.state is not State.RUNNING or hosted.boots != watch.life:
            return
        pos = watch.verified_pos if watch.stored is not None else 0
        why = watch.waits_for or "its turn"
        hosted.running.pins.store = Pin(
            STORE, pos, f"this node has not verified it in the object store; it waits for: {why}"
        )
        metrics.TIERED_WAITING_BYTES.labels(group).set(watch.waiting_bytes)
        waited_s = 0.0 if watch.waiting_since_s is None else self._now_s() - watch.waiting_since_s
        metrics.TIERED_WAITING_SECONDS.labels(group).set(waited_s)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    # -- notes

    def _read_note(self, store: GroupStore) -> int:
        """The position up to which an earlier run has verified; −1 if unknown, or for another place
        or log."""
        path = f"{store.state_directory}/{NOTE_FILE}"
        try:
            value: dict[str, Any] = (
                sealed_json.read(self._disk, path) if self._disk.exists(path) else {}
            )
        except (Damaged, UnknownFormat):
            # The files that are still here are verified again.
            return -1
        own = value.get("v"), value.get("log_id"), value.get("place")
        return (
            int(value["verified_pos"])
            if own == (NOTE_VERSION, store.identity.log_id, self._store.place)
            else -1
        )

    def _write_note(self, store: GroupStore, pos: int) -> None:
        value = {
            "v": NOTE_VERSION,
            "log_id": store.identity.log_id,
            "place": self._store.place,
            "verified_pos": pos,
        }
        try:
            sealed_json.write(self._disk, f"{store.state_directory}/{NOTE_FILE}", value)
        except OSError as error:
            if not is_no_space(error) and not lacks_descriptors(error):
                raise
            # The file is only a hint; after the next log file it is written again.
            log.warning(
                "progress of tiered storage not noted",
                group=store.identity.group,
                reason=str(error),
            )

    # -- the controller

    async def _work_controller(self) -> None:
        said = ""
        while True:
            try:
                await self._on_thread(partial(self.keep_controller, self._now_ms()))
                said = ""
            except (StoreFailure, OSError) as error:
                if str(error) != said:
                    log.warning("definitions not stored in the object store", reason=str(error))
                said = str(error)
            # one failed attempt must not end all later ones; it changed nothing on this disk
            except Exception:
                log.exception("definitions not stored in the object store")
            await asyncio.sleep(CONTROLLER_EVERY_S)

    def keep_controller(self, now_ms: int) -> None:
        """Store the controller's files of this node if they changed. Any thread. Raises
        StoreFailure, OSError."""
        directory, node = controller_directory(self._config), self._config.node
        files = read_files(self._disk, directory)
        if not files or files != read_files(self._disk, directory):
            # They change just now; the next time tells.
            return
        found = fingerprint(files)
        if found != self._controller_sent:
            self._store.put(
                controller_key(node),
                pack(ControllerFiles(self._config.cluster_id, node, now_ms, files)),
            )
            self._controller_sent = found


class _Events:
    """What readers of one group tell, from their threads."""

    def __init__(self, group: str) -> None:
        self._group = group

    def wrong(self, what: str) -> None:
        metrics.TIERED_WRONG.labels(self._group).inc()
        log.error(
            "the object store holds something wrong",
            group=self._group,
            reason=what,
            remedy="ledgermq restore --check names it",
        )

    def fetched(self, size: int) -> None:
        metrics.TIERED_BYTES.labels(self._group, "served").inc(size)

    def not_stored(self, error: StoreFailure) -> None:
        metrics.TIERED_FAILURES.labels(self._group, type(error).__name__).inc()
        log.warning("index part not stored", group=self._group, reason=str(error))


def _looking(verified_pos: int) -> Callable[[OpenReplica], _Look]:
    def look(running: OpenReplica) -> _Look:
        entries, retained = running.store.log, running.machine.retained
        size = running.store.identity.data_file_bytes
        pos = max(verified_pos, entries.begin_pos)
        settled = min(running.machine.applied_index, entries.durable_index)
        file = file_at(entries, pos, size, settled)
        sha256 = before = None
        if file is not None:
            before = entries.term_at(file.first_index - 1), entries.chain_at(file.first_index - 1)
            trim = retained.trim_of(pos)
            recorded = dict(trim.record.files) if trim is not None else {}
            sha256 = retained.seals[pos].sha256 if pos in retained.seals else recorded.get(pos)
        first = retained.begin_index
        return _Look(
            leads=running.group.leader.serving,
            begin=Begin(
                entries.begin_index, entries.begin_pos, entries.begin_term, entries.begin_chain
            ),
            decided_begin=Begin(
                first, retained.begin_pos, entries.term_at(first - 1), entries.chain_at(first - 1)
            ),
            begins_stored=retained.stored,
            waiting_bytes=max(0, entries.end_pos // size * size - pos),
            file=file,
            before=before,
            sha256=sha256,
            keep_from=min([retained.begin_pos, *running.pins.held()]),
            time_epochs=running.machine.time_epochs,
        )

    return look


def _manifest(log_id: str, look: _Look) -> FileManifest:
    file, before, sha256 = look.file, look.before, look.sha256
    assert file is not None and before is not None and sha256 is not None
    term, chain = before
    return FileManifest(
        log_id=log_id,
        base=file.base,
        size=file.size,
        first=file.first_index,
        last=file.last_index,
        end=file.end_pos,
        term=term,
        chain=chain,
        last_term=file.last_term,
        last_chain=file.last_chain,
        last_store_ms=file.last_store_ms,
        sha256=sha256,
    )
