"""The cost of native frames in a broker group's core, without sync, network or sockets:
microseconds per message, leader and follower.

    python -m bench.tools.frames_core [--frame 1000] [--body 100] [--queues 8] [--frames 200]

The leader's figure is its whole turn (judge, sequence, seal, append with pwrite, commit of one
replica, read, apply, answer); the follower's is verifying the same ranges, appending and applying
them. Frames are built and checked before the clock starts.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import FrameProduced, OpenProducer, ProduceFrame
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto import kernels
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.entries.ranges import tail_of
from ledgermq.proto.frames import FrameBuilder
from ledgermq.proto.types import Frame, Permission, Range, TopicConfig, TopicKind, UnsealedBatch
from ledgermq.raft.config import RaftConfig
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state.identity import mint

CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
MS = 1_000_000
CREATED_MS = 1_700_000_000_000
FILE_BYTES = 64 << 20
TOPIC = "flights"


class Alone:
    """One broker group with one replica, in a directory; a sync completes when it is requested."""

    def __init__(self, base: Path) -> None:
        sizes = {
            "data_file_bytes": FILE_BYTES,
            "index_file_bytes": 32 << 18,
            "consume_queue_file_bytes": 20 * 300_000,
        }
        identity = mint(
            CLUSTER, "g", "n1", "00000000-0000-4000-8000-000000000001", CREATED_MS, **sizes
        )
        disk = RealDisk()
        GroupStore.create(disk, str(base / "g"), identity)
        self.store = GroupStore.open(disk, str(base / "g"), identity)
        bootstrap(self.store.log, ("n1",), CREATED_MS)
        log = self.store.log
        self.log_tag = chain_seed(identity.log_id)
        self.machine = Machine(self.store.queues, log.record_at, log.index_at)
        self.store.queues.start({}, 0)
        config = RaftConfig("n1", ("n1",), 1, incarnation=identity.incarnation)
        replica = RaftReplica(
            "g", config, log, self.store.hard_state, chance=Random(1), now_ns=0, store_host=bytes(8)
        )
        self.group = Group("g", "n1", replica, self.machine, LeaderSettings())
        self.now_ns = 0
        self.tokens = count(1)
        while not self.group.leader.serving:
            self.turn()

    def turn(self, *calls: object) -> list[object]:
        """One turn, and the turns that its sync requires."""
        self.now_ns += MS if self.group.leader.serving else 500 * MS
        output = self.group.turn(self.now_ns, CREATED_MS + self.now_ns // MS, calls)  # type: ignore[arg-type]
        done = list(output.done)
        if output.sync is not None:
            output = self.group.turn(
                self.now_ns, CREATED_MS + self.now_ns // MS, (), (), ((output.sync, None),)
            )
            done += output.done
        return [one.outcome for one in done]


def frames(alone: Alone, size: int, body: int, queues: int, number: int) -> list[Frame]:
    """Frames of one producer, as the server passes them on."""
    builder, bodies = (
        FrameBuilder(TOPIC, alone.log_tag, 1, 0),
        [bytes([at % 251]) * body for at in range(size)],
    )
    where = (np.arange(size) % queues).astype(np.int32)
    made = []
    for at in range(number):
        one = builder.encode(at * size, where, bodies, born_ms=CREATED_MS)
        sizes = np.frombuffer(one.sizes, "<u4").astype(np.int32)
        starts, none = np.cumsum(sizes, dtype=np.int64) - sizes, np.zeros(size, np.int32)
        batch = UnsealedBatch(
            data=bytearray(one.entries),
            starts=starts,
            sizes=sizes,
            topics=(TOPIC,),
            topic_of=none,
            queues=where,
        )
        made.append(Frame(1, 0, at * size, batch))
    return made


def follow(base: Path, ranges: list[Range]) -> tuple[float, float, Machine]:
    """Seconds, and seconds of processor time, to verify, append and apply the ranges."""
    sizes = {
        "data_file_bytes": FILE_BYTES,
        "index_file_bytes": 32 << 18,
        "consume_queue_file_bytes": 20 * 300_000,
    }
    identity = mint(CLUSTER, "g", "n2", "00000000-0000-4000-8000-000000000002", CREATED_MS, **sizes)
    GroupStore.create(RealDisk(), str(base / "g"), identity)
    store = GroupStore.open(RealDisk(), str(base / "g"), identity)
    bootstrap(store.log, ("n1",), CREATED_MS)
    machine = Machine(store.queues, store.log.record_at, store.log.index_at)
    store.queues.start({}, 0)
    machine.apply(store.log.read(0, 1 << 20))
    payloads = [(bytes(r.data), r.first_index, r.term, r.pos, r.prev_chain) for r in ranges]
    began, cpu = time.perf_counter(), time.process_time()
    for payload in payloads:
        entries = verify_range(*payload)
        store.log.append_range(entries)
        while machine.applied_index < entries.last_index:
            machine.apply(tail_of(entries, machine.applied_index + 1))
    return time.perf_counter() - began, time.process_time() - cpu, machine


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("frame", 1000), ("body", 100), ("queues", 8), ("frames", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as at:
        alone = Alone(Path(at) / "n1")
        alone.turn(
            Configure(
                next(alone.tokens),
                (
                    TopicConfig(
                        namespace="",
                        name=TOPIC,
                        kind=TopicKind.NORMAL,
                        queues=given.queues,
                        permission=Permission.READ_WRITE,
                        incarnation=1,
                    ),
                ),
            )
        )
        alone.turn(OpenProducer(next(alone.tokens)))
        calls = [
            ProduceFrame(next(alone.tokens), TOPIC, f)
            for f in frames(alone, given.frame, given.body, given.queues, given.frames)
        ]
        profile = cProfile.Profile()
        first = alone.store.log.end_index + 1
        if given.profile:
            profile.enable()
        began, cpu = time.perf_counter(), time.process_time()
        answered = sum(
            isinstance(outcome, FrameProduced) for call in calls for outcome in alone.turn(call)
        )
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu
        profile.disable()
        assert answered == given.frames, answered
        ranges, index = [], 1
        while index <= alone.store.log.end_index:
            ranges.append(alone.store.log.read(index, 1 << 20))
            index = ranges[-1].last_index + 1
        (Path(at) / "n2").mkdir()
        followed, followed_cpu, machine = follow(Path(at) / "n2", ranges)
        assert machine.producers.export() == alone.machine.producers.export() and first > 0
        messages = given.frame * given.frames
        told = {
            "messages": messages,
            "leader_us": spent / messages * 1e6,
            "leader_cpu_us": cpu / messages * 1e6,
        }
        told |= {
            "follower_us": followed / messages * 1e6,
            "follower_cpu_us": followed_cpu / messages * 1e6,
        }
        print(json.dumps({**vars(given), **told, "native": kernels.VERSION}))
        if given.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
