"""Counts what a commit costs on the engine's thread: three hosted replicas on real files, in one
thread and on virtual time.

Every count is exact and repeats from run to run: the network and the syncs take fixed times, no
other thread runs, and no clock is read. Python calls, constructed objects and system calls are
counted in some commits, memory in others, because a profile allocates memory itself. `python -m
tests.replica.turn_costs` prints the costs and the most frequent functions; with `--write` it also
stores them in `turn_costs.json`, the table of the bounds in `test_turn_costs.py`. To keep that
table small, it has the calls of each module, not of each function. With `--json` it prints all
costs for `measured_alone`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from unittest import mock

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.group import Group, TurnOutput
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.background.step_thread import StepThread
from ledgermq.node.replica.consensus.raft_replica import CHECK_EVERY_NS, RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from ledgermq.raft.config import MS, RaftConfig
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.state.identity import mint
from tests.node_core.core_fakes import draft

TABLE = Path(__file__).with_suffix(".json")
CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
CREATED_MS = 1_700_000_000_000
NAMES = ("n1", "n2", "n3")
TOPIC = "flights"
PACKET_NS = 100_000
SYNC_NS = {"n1": 200_000, "n2": 250_000, "n3": 300_000}
GAP_NS = 7 * MS
"""The time between two commits; the last packets of the first have been answered by then."""
COMMITS = 20
SENDS = (1, 64)
SLACK = 20
"""How many Python calls a commit may cost beyond the table, so that not every small change has to
rewrite it."""
OBJECTS_SLACK = 5
MEMORY_SLACK = 1.1
"""By which factor a commit may need more memory than the table says."""
NAMED = 15
"""How many modules a message names, …"""
NAMED_OF_MODULE = 4
"""… and how many functions of each."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Memory is compared only under the interpreter that wrote the table."""
_DATACLASS_METHOD = "__create_fn__.<locals>."
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Calls in Python 3.11, but not in later versions."""


class _AtOnce(Executor):
    """Runs background work in the thread that submits it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **named))
        return done


@dataclass(slots=True)
class Cost:
    """What `COMMITS` commits cost one node.

    functions       Python calls by function
    module_changes  how many of these calls come from a function of another module
    system_calls    calls of the operating system by name, of the turns and of the syncs that they start
    kept_blocks     blocks of memory that the turns leave allocated, their output included
    peak_bytes      the most memory that each turn allocates at a time, added up
    """

    functions: Counter[str] = field(default_factory=Counter)
    module_changes: int = 0
    system_calls: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    packets: int = 0
    syncs: int = 0
    views: int = 0
    kept_blocks: int = 0
    peak_bytes: int = 0

    @property
    def calls(self) -> int:
        return sum(self.functions.values())

    @property
    def objects(self) -> int:
        """Objects of classes with a constructor in Python."""
        return sum(times for name, times in self.functions.items() if name.endswith("__init__"))

    @property
    def modules(self) -> Counter[str]:
        """Python calls by module."""
        found: Counter[str] = Counter()
        for name, times in self.functions.items():
            found[name.partition(":")[0]] += times
        return found


class Node:
    """One hosted replica and what its turns cost."""

    def __init__(self, name: str, base: Path) -> None:
        self.name = name
        self.wake = 0
        """The number of the timer in force."""
        self.cost = Cost()
        self.weighs = False
        """Whether memory is measured, or calls."""
        self._opened: OpenReplica
        self._base = base
        self.host = ReplicaHost("g", name, self, mock.Mock(), _AtOnce())  # type: ignore[arg-type]
        self.host.open_first(0)

    def open(self) -> OpenReplica:
        """Open the group as a node does, without its background threads."""
        sizes = {
            "data_file_bytes": 16 << 20,
            "index_file_bytes": 32 << 16,
            "consume_queue_file_bytes": 20 * 50_000,
        }
        incarnation = f"00000000-0000-4000-8000-00000000000{self.name[-1]}"
        identity = mint(CLUSTER, "g", self.name, incarnation, CREATED_MS, **sizes)
        disk, root = RealDisk(), str(self._base / self.name)
        GroupStore.create(disk, root, identity)
        store = GroupStore.open(disk, root, identity)
        bootstrap(store.log, NAMES, CREATED_MS)
        machine = Machine(store.queues, store.log.whole_record_at, store.log.index_at)
        store.queues.start({}, 0)
        config = RaftConfig(self.name, NAMES, 1, incarnation=identity.incarnation)
        start = (config, store.log, store.hard_state, Random(self.name), 0)
        replica = RaftReplica("g", *start, store_host=bytes(8))
        group = Group("g", self.name, replica, machine, LeaderSettings())
        index = KeyIndex(disk, root, identity.log_id, slots=1000, units=1000)
        index.start(store.log.begin_index, store.log.end_index, store.log.chain_at)
        self._opened = OpenReplica(
            store, machine, group, index, executor=_AtOnce(), clock_ns=int, worker=StepThread
        )
        return self._opened

    @property
    def group(self) -> Group:
        return self._opened.group

    def close(self) -> None:
        self._opened.abandon()

    def turn(
        self,
        now_ns: int,
        calls: Sequence[Call],
        packets: Sequence[tuple[str, PeerPacket]],
        synced: Sequence[tuple[SyncTicket, None]],
    ) -> TurnOutput:
        if self.weighs:
            output = self._weighed(now_ns, calls, packets, synced)
        else:
            sys.setprofile(counting(self.cost))
            try:
                output = self.host.turn(now_ns, CREATED_MS + now_ns // MS, calls, packets, synced)
            finally:
                sys.setprofile(None)
        self.cost.turns += 1
        self.cost.packets += len(output.packets)
        self.cost.syncs += output.sync is not None
        self.cost.views += output.view is not None
        return output

    def _weighed(self, *given: Any) -> TurnOutput:
        now_ns, *inputs = given
        tracemalloc.reset_peak()
        bytes_before, blocks_before = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
        output = self.host.turn(now_ns, CREATED_MS + now_ns // MS, *inputs)
        self.cost.kept_blocks += sys.getallocatedblocks() - blocks_before
        self.cost.peak_bytes += tracemalloc.get_traced_memory()[1] - bytes_before
        return output

    def sync(self, ticket: SyncTicket) -> None:
        """Run a group commit, as its thread does, and count its system calls only."""
        cost = Cost() if self.weighs else Cost(system_calls=self.cost.system_calls)
        sys.setprofile(counting(cost))
        try:
            ticket.run()
        finally:
            sys.setprofile(None)


def counting(cost: Cost) -> Callable[[FrameType, str, Any], None]:
    """A profile function that counts the Python calls of a thread by function, those from one
    module into another, and its system calls by name."""

    def noted(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            if (code := frame.f_code).co_name not in _COMPREHENSIONS:
                module = frame.f_globals
                cost.functions[
                    f"{module.get('__name__', '')}:{_name_of(frame, code.co_qualname)}"
                ] += 1
                caller = frame.f_back
                cost.module_changes += caller is not None and caller.f_globals is not module
        elif event == "c_call" and called.__module__ == "posix" and called is not os.fspath:
            cost.system_calls[called.__name__] += 1

    return noted


def _name_of(frame: FrameType, name: str) -> str:
    """The name of a function; of a method that `dataclass` made, the name of the class too."""
    if not name.startswith(_DATACLASS_METHOD):
        return name
    return f"{type(frame.f_locals['self']).__qualname__}.{name.removeprefix(_DATACLASS_METHOD)}"


class Trio:
    """Three nodes; packets and syncs take fixed times."""

    def __init__(self, base: Path) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, str, Node, Any]] = []
        self._order = count()
        self._tokens = count(1)
        self.outcomes: dict[int, Result | Refused] = {}
        self.nodes = {name: Node(name, base) for name in NAMES}
        for node in self.nodes.values():
            self._turn(node)
        while not self.leaders():
            self.run(100 * MS)
        self.leader = self.leaders()[0]
        self.followers = [node for node in self.nodes.values() if node is not self.leader]

    def configure(self) -> None:
        """Create the topic of `send`."""
        self.call(
            Configure(
                self.token(),
                (TopicConfig("", TOPIC, TopicKind.NORMAL, 4, Permission.READ_WRITE, 1),),
            )
        )
        self.run(100 * MS)

    def token(self) -> int:
        return next(self._tokens)

    def call(self, *calls: Call) -> None:
        """Give the leader these calls."""
        self._turn(self.leader, calls=calls)

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.group.leader.serving]

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    def send(self, sends: int) -> None:
        """Commit this many sends of one message as one batch, and let everything that follows from
        them happen."""
        calls = [Produce(self.token(), [draft(f"{at:064}", TOPIC, at % 4)]) for at in range(sends)]
        self.call(*calls)
        self.run(GAP_NS)
        for call in calls:
            outcome = self.outcomes.pop(call.token)
            assert isinstance(outcome, Produced), outcome

    def counted(self) -> dict[str, Cost]:
        """The costs of each node since the last call."""
        counted = {name: node.cost for name, node in self.nodes.items()}
        for node in self.nodes.values():
            node.cost = Cost()
        return counted

    def weigh(self, memory: bool) -> None:
        """Measure memory from now on, or calls."""
        if memory:
            tracemalloc.start()
        else:
            tracemalloc.stop()
        for node in self.nodes.values():
            node.weighs = memory

    def run(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, number, what, node, value = heappop(self._events)
            if what == "packet":
                self._turn(node, packets=[value])
            elif what == "sync":
                node.sync(value)
                self._turn(node, synced=[(value, None)])
            elif number == node.wake:
                self._turn(node)
        self.now_ns = until_ns

    def _later(self, at_ns: int, what: str, node: Node, value: Any) -> int:
        number = next(self._order)
        heappush(self._events, (max(at_ns, self.now_ns), number, what, node, value))
        return number

    def _turn(
        self,
        node: Node,
        *,
        calls: Sequence[Call] = (),
        packets: Sequence[tuple[str, PeerPacket]] = (),
        synced: Sequence[tuple[SyncTicket, None]] = (),
    ) -> None:
        output = node.turn(self.now_ns, calls, packets, synced)
        for to, packet in output.packets:
            sent = PeerPacket(packet.header, bytes(packet.payload))
            self._later(self.now_ns + PACKET_NS, "packet", self.nodes[to], (node.name, sent))
        if output.sync is not None:
            self._later(self.now_ns + SYNC_NS[node.name], "sync", node, output.sync)
        for done in output.done:
            self.outcomes[done.token] = done.outcome
        node.wake = self._later(output.wake_at_ns, "wake", node, None)
        self.noted(node, output)

    def noted(self, node: Node, output: TurnOutput) -> None:
        """Hook for tests that look at every turn."""


def measured(base: Path) -> dict[str, Cost]:
    """The costs of `COMMITS` commits on the leader and on one follower, for batches of `SENDS`
    messages."""
    found: dict[str, Cost] = {}
    was_on = gc.isenabled()
    gc.disable()
    trio = Trio(base)
    trio.configure()
    try:
        # Tests check all invariants in every turn; a node does not.
        with mock.patch.object(RaftReplica, "check_every_ns", CHECK_EVERY_NS):
            for sends in SENDS:
                for _ in range(COMMITS):
                    trio.send(sends)
                trio.counted()
                for _ in range(COMMITS):
                    trio.send(sends)
                counted = trio.counted()
                trio.weigh(True)
                for _ in range(COMMITS):
                    trio.send(sends)
                weighed = trio.counted()
                trio.weigh(False)
                for node, name in (
                    (trio.leader, f"leader-{sends}"),
                    (trio.followers[0], f"follower-{sends}"),
                ):
                    found[name] = counted[node.name]
                    found[name].kept_blocks = weighed[node.name].kept_blocks
                    found[name].peak_bytes = weighed[node.name].peak_bytes
    finally:
        trio.close()
        if was_on:
            gc.enable()
    return found


def measured_alone() -> dict[str, Cost]:
    """`measured` in a process of its own, because memory depends on what a process did before and
    on what its other threads do. Without ledgermq-native, which does in one call what costs Python
    many: the bounds have to hold where it is not installed."""
    asked = [sys.executable, "-m", "tests.replica.turn_costs", "--json"]
    chosen = os.environ | {"PYTHONHASHSEED": "0", "LEDGERMQ_PURE": "1"}
    printed = subprocess.run(
        asked, env=chosen, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = {name: Cost(**cost) for name, cost in json.loads(printed.splitlines()[-1]).items()}
    for cost in found.values():
        cost.functions, cost.system_calls = Counter(cost.functions), Counter(cost.system_calls)
    return found


def table(found: dict[str, Cost]) -> dict[str, Any]:
    """What `turn_costs.json` holds: for each scenario, numbers for all `COMMITS` commits."""
    return {"python": PYTHON, **{name: _row(cost) for name, cost in found.items()}}


def _row(cost: Cost) -> dict[str, Any]:
    return {
        "calls": cost.calls,
        "module_changes": cost.module_changes,
        **_counts(cost),
        **_memory(cost),
        "modules": dict(sorted(cost.modules.items())),
    }


def _counts(cost: Cost) -> dict[str, Any]:
    """What may not exceed the table at all."""
    events = {
        "turns": cost.turns,
        "packets": cost.packets,
        "syncs": cost.syncs,
        "views": cost.views,
    }
    return {**events, "system_calls": dict(sorted(cost.system_calls.items()))}


def _memory(cost: Cost) -> dict[str, int]:
    return {"objects": cost.objects, "kept_blocks": cost.kept_blocks, "peak_bytes": cost.peak_bytes}


def excess(cost: Cost, known: dict[str, Any], *, memory: bool) -> str:
    """What a scenario costs beyond the table, and the modules and functions with the most
    additional calls; empty if it costs no more. `memory`: compare the memory too."""
    before = known | known["system_calls"]
    now = {
        name: number for name, number in _counts(cost).items() if name != "system_calls"
    } | cost.system_calls
    more = [
        f"{number} {name}, not {before.get(name, 0)}"
        for name, number in now.items()
        if number > before.get(name, 0)
    ]
    more += _beyond("Python calls", cost.calls, known["calls"], known["calls"] + SLACK * COMMITS)
    more += _beyond(
        "changes of module",
        cost.module_changes,
        known["module_changes"],
        known["module_changes"] + SLACK * COMMITS,
    )
    more += _beyond(
        "objects", cost.objects, known["objects"], known["objects"] + OBJECTS_SLACK * COMMITS
    )
    if memory:
        more += _beyond(
            "blocks kept",
            cost.kept_blocks,
            known["kept_blocks"],
            known["kept_blocks"] * MEMORY_SLACK,
        )
        more += _beyond(
            "bytes at the peak",
            cost.peak_bytes,
            known["peak_bytes"],
            known["peak_bytes"] * MEMORY_SLACK,
        )
    return "\n".join([", ".join(more), *_grown(cost, known["modules"])]) if more else ""


def _beyond(what: str, now: int, before: int, most: float) -> list[str]:
    return (
        [f"{now / COMMITS:.0f} {what} a commit, not {before / COMMITS:.0f}"] if now > most else []
    )


def _grown(cost: Cost, known: dict[str, int]) -> list[str]:
    """The modules with the most additional calls, and their most frequent functions."""
    grown = sorted(
        ((times - known.get(module, 0), module) for module, times in cost.modules.items()),
        key=lambda row: (-row[0], row[1]),
    )
    rows = []
    for by, module in grown[:NAMED]:
        if by > 0:
            own = Counter(
                {
                    name: times
                    for name, times in cost.functions.items()
                    if name.startswith(f"{module}:")
                }
            )
            names = [
                f"{name.partition(':')[2]} {times / COMMITS:.2f}"
                for name, times in own.most_common(NAMED_OF_MODULE)
            ]
            rows.append(f"  {by / COMMITS:+.2f} a commit  {module}: {', '.join(names)}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="store the costs as the new bounds")
    parser.add_argument("--json", action="store_true", help="print all costs as one line of JSON")
    parser.add_argument("--top", type=int, default=25)
    given = parser.parse_args()
    if given.json:
        with tempfile.TemporaryDirectory() as base:
            found = measured(Path(base))
        print(
            json.dumps(
                {
                    name: {each.name: getattr(cost, each.name) for each in fields(cost)}
                    for name, cost in found.items()
                }
            )
        )
        return
    found = measured_alone()
    for name, cost in found.items():
        print(
            f"{name}: {cost.calls / COMMITS:.1f} Python calls a commit,"
            f" {cost.module_changes / COMMITS:.1f} of them into another module; in all"
            f" {_counts(cost) | _memory(cost)}"
        )
        for function, times in cost.functions.most_common(given.top):
            print(f"  {times / COMMITS:8.2f}  {function}")
    if given.write:
        TABLE.write_text(json.dumps(table(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
