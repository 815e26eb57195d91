"""Adapts PySyncObj: the only module, with `wire`, that uses its private names. It requires the one
version that was reviewed line by line.

What is changed in the library, and why:

* `syncobj.createJournal` returns the journal it is given: 0.3.17 has no hook for a journal, and its
  own never syncs.
* `syncobj.pickle` and `tcp_connection.pickle` are a JSON codec: 0.3.17 unpickles what peers send
  (invariant I12).
* `Quorum._SyncObj__doApplyCommand` applies JSON commands only: the library would unpickle others.
* `Quorum._SyncObj__loadDumpFile` lets a failure stop the node: the library logs it and continues
  with half a state.
* The library runs no thread: `controller.py` calls the ticks, because the library's own loop logs
  any error and continues.
* `voters.py` decides who votes, and the library's hooks for that are replaced (`__changeCluster`,
  `__doChangeCluster`, `__deleteEntriesFrom`, `__generateRaftTimeout`): 0.3.17 forgets that a change
  is in progress, applies old changes again after a restart, and writes members into a snapshot that
  are newer than the snapshot.
* Nodes are identified by name (`wire.Member`), not by address: an address may change, the identity
  of a voter may not.
* A node without a vote may listen (`listening`). It connects to the voters as what the library
  calls a read-only node, receives every entry, is not counted, and forwards commands to the leader.
  `__onReadonlyNodeDisconnected` removes an entry that the library would keep.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pysyncobj.syncobj as library
import pysyncobj.tcp_connection as library_connection
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.version import VERSION

from ledgermq.node.controller import metadata, snapshot, voters
from ledgermq.node.controller.journal import Entry, Journal
from ledgermq.node.controller.resolving import Resolver
from ledgermq.node.controller.state import Json, Outcome, State, UnknownCommand, export, restore
from ledgermq.node.controller.wire import JsonCodec, Member, QuorumTransport
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files.errors import LogFenced, is_no_space
from ledgermq.storage.files.ports import Disk

logger = logging.getLogger(__name__)

LIBRARY_VERSION = "0.3.17"
COMMAND_TYPE = b"J"
"""First byte of this program's commands in the log; the library's own start with 0 to 3."""
NO_OP = b"\x01"
COMMAND_BYTES_MAX = 32 << 10
"""Less than the library's batch size, so that it never splits a command."""

SUCCESS = FAIL_REASON.SUCCESS
NOT_TAKEN = frozenset(
    {
        FAIL_REASON.MISSING_LEADER,
        FAIL_REASON.NOT_LEADER,
        FAIL_REASON.QUEUE_FULL,
        FAIL_REASON.REQUEST_DENIED,
    }
)
"""Failures that guarantee that this attempt put the command into no log."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods of the quorum in seconds. Metadata is not on the data path, so they are long."""

    tick_s: float = 0.1
    heartbeat_s: float = 0.2
    election_min_s: float = 0.8
    election_max_s: float = 1.6
    reconnect_s: float = 0.5
    silent_s: float = 3.0
    """Time limit for a connection without received bytes, for a connection attempt, and for a
    leader without a majority."""
    compact_entries: int = 1000
    """A longer journal is compacted into a snapshot."""
    compact_again_s: float = 10.0
    """Delay before the next compaction after one that failed (no space)."""

    def for_nodes(self, count: int) -> Timing:
        """A single node needs no time for messages, so it elects itself quickly."""
        return (
            self
            if count > 1
            else replace(self, heartbeat_s=0.01, election_min_s=0.05, election_max_s=0.1)
        )


def require_library() -> None:
    """Refuse any other version, because this package uses private names of the library."""
    if VERSION != LIBRARY_VERSION:
        what = f"PySyncObj {VERSION} is installed, {LIBRARY_VERSION} is needed"
        raise FatalError(ExitCode.WRONG_VERSION, what, "install the locked requirements")


def install() -> None:
    """Patch the library, once per process (see the module's docstring)."""
    require_library()
    library.createJournal = lambda journal: journal
    library.pickle = JsonCodec
    library_connection.pickle = JsonCodec


NEVER_S = 1e9
"""The election timeout of a node that is not a voter."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node's part of the quorum listens and stores its files, and its initial peers.

    `seeds`: the voters of a new quorum, the same on all its nodes, or the nodes that a joining node
    contacts. `joining`: this node is not among the first voters; a new journal waits until the
    quorum tells it who votes.
    """

    node: str
    seeds: tuple[str, ...]
    listen: str
    directory: str
    joining: bool = False


class Quorum(library.SyncObj):  # type: ignore[misc]  # the library has no types
    """One replica of the metadata. Not thread-safe, except for `submit…`, `wake`, `addresses`, and
    reading `state` and `voters`."""

    def __init__(
        self,
        place: Place,
        addresses: Mapping[str, Sequence[str]],
        secret: bytes,
        disk: Disk,
        timing: Timing,
        file_bytes: int,
    ) -> None:
        install()
        directory = place.directory
        disk.mkdirs(directory)
        for name in disk.listdir(directory):
            if name.endswith(".tmp"):
                disk.unlink(f"{directory}/{name}")
        self._disk = disk
        self._timing = timing
        self._lock = threading.Lock()
        self._open = True
        self._compacted_s: float | None = None
        self._failure: LogFenced | None = None
        self._loading: tuple[State, Entry, Entry] | None = None
        self._snapshot_path = f"{directory}/{snapshot.NAME}"
        self._place = place
        self.addresses: Mapping[str, Sequence[str]] = dict(addresses)
        """Node → the addresses of its controller (host:port), the most likely first; replaced as a
        whole when it changes."""
        self.resolver = Resolver()
        self.listening = False
        """Whether this node wants the entries while it has no vote. Set from any thread; the next
        `tick` applies it."""
        self.listens = False
        """The value of `listening` that is in force, as of the last tick; False while this node has
        a vote."""
        self.refusal = ""
        """Why this node, as leader, last refused a change of the voters."""
        self.state = State()
        self.journal = Journal(
            disk, directory, snapshot=self._covered_by_snapshot(), file_bytes=file_bytes
        )
        if len(self.journal) == 0:
            first = () if place.joining else tuple(sorted(place.seeds))
            self.journal.add(voters.encode(first), 1, 0)
        self._base = self._snapshot_voters()
        """The voters of the snapshot; None if there is no snapshot or it does not contain them."""
        self._applied_voters = self._base
        self.voters = self._decided()
        conf = SyncObjConf(
            password=secret,
            journalFile=self.journal,
            fullDumpFile=self._snapshot_path,
            serializer=self._write_snapshot,
            deserializer=self._read_snapshot,
            useFork=False,
            autoTick=False,
            appendEntriesUseBatch=False,
            commandsWaitLeader=False,
            dynamicMembershipChange=True,
            bindAddress=place.listen,
            appendEntriesPeriod=timing.heartbeat_s,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            connectionRetryTime=timing.reconnect_s,
            connectionTimeout=max(timing.silent_s, timing.election_max_s),
            leaderFallbackTimeout=timing.silent_s,
            # Only `tick` starts a compaction: the library would try again at every tick while the
            # disk is full.
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=1e15,
        )
        try:
            super().__init__(
                self._member(place.node), [self._member(name) for name in self._others()], conf,
                nodeClass=self._member, transportClass=QuorumTransport,
            )  # fmt: skip
        except BaseException:  # whatever it was, it is raised again
            # The next start must be able to open the journal's file.
            self.journal._destroy()
            raise
        received = self._SyncObj__serializer
        self._put_piece: Callable[[tuple[bytes, bool, bool] | None], bool] = (
            received.setTransmissionData
        )
        received.setTransmissionData = self._received

    def tick(self) -> None:
        """Wait at most one tick for work and do it. Raises an error that the controller cannot
        survive."""
        self._listen_or_not()
        self.doTick(self._timing.tick_s)
        now = time.monotonic()
        if len(self.journal) > self._timing.compact_entries and (
            self._compacted_s is None or now > self._compacted_s + self._timing.compact_again_s
        ):
            self._compacted_s = now
            self.forceLogCompaction()

    def _listen_or_not(self) -> None:
        """Connect again with the right greeting when this node gets or loses its vote, or
        `listening` changes."""
        listens = self.listening and self._place.node not in self.voters
        if listens != self.listens:
            self.listens = listens
            self._SyncObj__updateClusterConfiguration([])
            self._SyncObj__updateClusterConfiguration(
                [self._member(name) for name in self._others()]
            )
            logger.info(
                "controller: this node %s",
                "listens without a vote" if listens else "does not listen without a vote any more",
            )

    def make_durable(self) -> None:
        """Sync the journal. The transport calls this before it sends anything. Raises LogFenced."""
        if self._failure is not None:
            raise self._failure
        self.journal.flush()

    def submit(self, command: Json, answer: Callable[[Outcome | None, int], None]) -> None:
        """Submit a command to the log. `answer` is called on the quorum's thread with the outcome
        and SUCCESS, or with None and the failure; it is never called if, for instance, the leader
        dies. May be called from any thread. Raises ValueError for a command that is too long."""
        text = json.dumps(command, separators=(",", ":")).encode("ascii")
        if len(text) > COMMAND_BYTES_MAX:
            raise ValueError(f"the command has {len(text)} bytes; the limit is {COMMAND_BYTES_MAX}")
        with self._lock:
            if not self._open:
                answer(None, FAIL_REASON.MISSING_LEADER)
                return
            # The pipe is full only if a wake-up is pending.
            with suppress(BlockingIOError):
                self._applyCommand(COMMAND_TYPE + text, answer, None)

    def submit_voters(
        self, wanted: Iterable[str], answer: Callable[[Outcome | None, int], None]
    ) -> None:
        """Propose these nodes as the voters. The leader refuses a change of more than one node.
        Answers like `submit`. May be called from any thread."""
        with self._lock:
            if not self._open:
                answer(None, FAIL_REASON.MISSING_LEADER)
                return
            with suppress(BlockingIOError):
                self._applyCommand(voters.encode(tuple(sorted(wanted))), answer, None)

    def reached(self) -> frozenset[str]:
        """The nodes whose controllers this one is connected to, including this node."""
        return frozenset(
            node.id for node in self._SyncObj__connectedNodes if node in self._SyncObj__otherNodes
        ) | {self._place.node}

    def wake(self) -> None:
        """End the current wait of `tick`. May be called from any thread."""
        with self._lock, suppress(BlockingIOError):
            if self._open:
                self._SyncObj__pipeNotifier.notify()

    def destroy(self) -> None:
        """Close the connections, the port, the journal, and the library's wake-up pipe, which the
        library itself leaves open."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            super().destroy()
            notifier = self._SyncObj__pipeNotifier
            for descriptor in (notifier._PipeNotifier__pipeR, notifier._PipeNotifier__pipeW):
                os.close(descriptor)

    # -- called by the library
    # ----------------------------------------------------------------------------------------------------

    def _SyncObj__doApplyCommand(self, command: bytes) -> Outcome | None:
        if command == NO_OP:
            return None
        named = voters.decode(command)
        if named is not None:
            # These voters have been in force since the entry was appended; from now on snapshots
            # contain them.
            self._applied_voters = named
            return Outcome()
        if command[:1] != COMMAND_TYPE:
            raise UnknownCommand(f"controller command of type {command[:1]!r}")
        self.state, outcome = metadata.apply(self.state, json.loads(command[1:]))
        return outcome

    def _SyncObj__onMessageReceived(self, node: Any, message: dict[str, Any]) -> None:
        super()._SyncObj__onMessageReceived(node, self._behind_known(message))

    def _behind_known(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take from the leader's entries those that this journal has. The library would cut the
        journal before them, with everything behind them, and so give up entries that this node
        acknowledged. If the journal's last entry is of the leader's term, all of the journal is in
        the leader's log (Raft §5.3)."""
        previous = message.get("prevLogIdx")
        if (
            message["type"] != "append_entries"
            or previous is None
            or "transmission" in message
            or len(self.journal) == 0
        ):
            return message
        _, end, term = self.journal[-1]
        if term != message["term"] or previous >= end:
            return message
        entries = [entry for entry in message.get("entries", []) if entry[1] > end]
        return message | {"prevLogIdx": end, "prevLogTerm": term, "entries": entries}

    def _received(self, piece: tuple[bytes, bool, bool] | None) -> bool:
        """Take a piece of the leader's snapshot; called by the library. Returns whether the
        snapshot is complete and in its place.

        The leader may send one to a node that has these entries already, because it believed an
        older answer. The library would replace the node's own snapshot and give up every entry
        behind it. So it is dropped; the leader goes on behind it."""
        serializer = self._SyncObj__serializer
        file = serializer._Serializer__incomingTransmissionFile
        if piece is not None and piece[2] and file is not None:
            file.flush()
            received = f"{self._snapshot_path}.1.tmp"
            _, (_, index, term), _, _ = snapshot.read(self._disk, received)
            if self._has(index, term):
                logger.info("controller: a snapshot up to entry %d is not needed", index)
                file.close()
                serializer._Serializer__incomingTransmissionFile = None
                self._disk.unlink(received)
                return False
            # Its name must not become durable before its content.
            snapshot.adopt(self._disk, received)
        return self._put_piece(piece)

    def _has(self, index: int, term: int) -> bool:
        """Whether this node has the entry, in its journal or in its state."""
        place = index - self.journal[0][1] if len(self.journal) else -1
        return index <= self.raftLastApplied or (
            0 <= place < len(self.journal) and self.journal[place][2] == term
        )

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        snapshot.adopt(self._disk, self._snapshot_path)
        # A damaged file raises here; errors further inside would be hidden by the library.
        tree, last, previous, named = snapshot.read(self._disk, self._snapshot_path)
        self._loading = (restore(tree), last, previous)
        super()._SyncObj__loadDumpFile(clearJournal)
        self._loading = None
        self._base = self._applied_voters = named
        self._adopt(self._decided())

    def _SyncObj__changeCluster(self, request: list[Any]) -> bool:
        """The leader calls this before it appends: decides whether these may be the next voters. If
        so, they vote from now on."""
        if (
            len(request) != 2
            or request[0] != voters.VERB
            or not all(isinstance(name, str) for name in request[1])
        ):
            self.refusal = "the request has a form that this version does not know"
            return False
        wanted = tuple(request[1])
        newest = voters.newest(self.journal[:])
        reason = voters.objection(
            self._place.node,
            self.voters,
            wanted,
            self.reached(),
            settled=self.raftLastApplied >= self._SyncObj__noopIDx
            and (newest is None or newest[0] <= self.raftLastApplied),
        )
        if reason is not None:
            self.refusal = reason
            if self._place.node not in wanted:
                # A leader must not remove itself: it hands over, and the next leader takes the
                # repeated request.
                self.transferLeadership()
            return False
        self._adopt(wanted)
        return True

    def _SyncObj__doChangeCluster(self, request: list[Any], reverse: bool = False) -> bool:
        """Called for every appended entry, and with `reverse` for every entry about to be cut;
        `__deleteEntriesFrom` handles the latter."""
        if not reverse:
            self._adopt(tuple(request[1]))
        return True

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        super()._SyncObj__deleteEntriesFrom(index)
        self._adopt(self._decided())

    def _SyncObj__onReadonlyNodeDisconnected(self, node: Any) -> None:
        super()._SyncObj__onReadonlyNodeDisconnected(node)
        self._SyncObj__lastResponseTime.pop(node, None)

    def _SyncObj__generateRaftTimeout(self) -> float:
        """A node that is not a voter never stands for election."""
        drawn: float = super()._SyncObj__generateRaftTimeout()
        return drawn if self._place.node in self.voters else NEVER_S

    def _decided(self) -> tuple[str, ...]:
        """The voters at the journal's end: from the newest entry that names them, else from the
        snapshot, else from the configuration."""
        newest = voters.newest(self.journal[:])
        if newest is not None:
            return newest[1]
        return tuple(sorted(self._place.seeds)) if self._base is None else self._base

    def _others(self) -> list[str]:
        """The nodes that the library connects to. A joining node that does not know the voters yet
        connects to its seeds."""
        return sorted(set(self.voters or self._place.seeds) - {self._place.node})

    def _adopt(self, wanted: tuple[str, ...]) -> None:
        if wanted == self.voters:
            return
        was_voter, former = self._place.node in self.voters, set(self._others())
        self.voters = wanted
        logger.info("controller: the voters are %s", ", ".join(wanted) or "not known yet")
        self._SyncObj__updateClusterConfiguration([self._member(name) for name in self._others()])
        now = time.monotonic()
        for node in self._SyncObj__otherNodes:
            if node.id not in former:
                self._SyncObj__lastResponseTime[node] = now
        if was_voter != (self._place.node in wanted):
            self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()

    def _member(self, name: str) -> Member:
        return Member(name, self)

    def _write_snapshot(self, path: str, covered: tuple[Entry, Entry, Any]) -> None:
        last, previous, _ = covered
        try:
            snapshot.write(
                self._disk,
                path,
                state=export(self.state),
                last=last,
                previous=previous,
                voters=self._applied_or_seeds(),
            )
        except OSError as error:
            # The library hides this error. A full disk may have space again; any other failure is
            # final (I9).
            if not is_no_space(error):
                text = (
                    f"the controller snapshot {path} cannot be written ({error.strerror}): check"
                    " the disk, then start the node again"
                )
                self._failure = LogFenced(text, ExitCode.SYNC_FAILED)
            raise

    def _read_snapshot(self, path: str) -> tuple[Entry, Entry, list[Any]]:
        assert self._loading is not None and path == self._snapshot_path
        self.state, last, previous = self._loading
        return last, previous, [self._member(name) for name in self._others()]

    def _applied_or_seeds(self) -> tuple[str, ...]:
        """The voters as of the last applied entry. The journal's first entry names voters, but the
        library never applies it."""
        if self._applied_voters is not None:
            return self._applied_voters
        first = voters.decode(self.journal[0][0])
        return tuple(sorted(self._place.seeds)) if first is None else first

    def _snapshot_voters(self) -> tuple[str, ...] | None:
        return (
            snapshot.read(self._disk, self._snapshot_path)[3]
            if self._disk.exists(self._snapshot_path)
            else None
        )

    def _covered_by_snapshot(self) -> tuple[Entry, Entry] | None:
        if not self._disk.exists(self._snapshot_path):
            return None
        _, last, previous, _ = snapshot.read(self._disk, self._snapshot_path)
        return previous, last
