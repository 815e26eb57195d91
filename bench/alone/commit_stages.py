"""The processor time of a commit by stage, for commits of one entry to many, in one warm process
without syncs, network and turns.

    python -m bench.alone.commit_stages [--sizes 1,8,16,32,64,1000] [--body 100] [--queues 8]

Both replicas have real files. The leader encodes, assigns queue offsets, seals and appends, reads
back and applies; the follower verifies the same bytes, appends, reads back and applies. The figures
are lower quartiles in microseconds of processor time per commit; to compare two trees, run them
alternately and compare ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.sends.sequencer import Sequencer
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.types import Draft, Range
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.hot_tail import HotTail
from ledgermq.storage.state.identity import mint

CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
CREATED_MS = 1_700_000_000_000
STAGES = (
    "encode",
    "assign",
    "append",
    "read",
    "apply",
    "verify",
    "append there",
    "read there",
    "apply there",
)


class Replica:
    """The log and the derived state of one replica."""

    def __init__(self, base: Path, name: str, number: int) -> None:
        sizes = {
            "data_file_bytes": 24 << 20,
            "index_file_bytes": 32 << 18,
            "consume_queue_file_bytes": 20 * 300_000,
        }
        identity = mint(
            CLUSTER, "g", name, f"00000000-0000-4000-8000-{number:012d}", CREATED_MS, **sizes
        )
        disk, root = RealDisk(), str(base / name)
        GroupStore.create(disk, root, identity)
        self.store = GroupStore.open(disk, root, identity)
        self.log, self.tail = self.store.log, HotTail()
        bootstrap(self.log, ("n1",), CREATED_MS)
        self.machine = Machine(self.store.queues, self.log.record_at, self.log.index_at)
        self.store.queues.start({}, 0)
        self.machine.apply(self.log.read(0, 1 << 20))

    def read(self) -> Range:
        """The entries to apply."""
        first = self.machine.applied_index + 1
        return cut(
            self.tail.read(first, 1 << 20) or self.log.read(first, 1 << 20), self.log.end_index
        )


def drafts_of(first: int, count: int, body: bytes, queues: int) -> list[Draft]:
    made = []
    for number in range(first, first + count):
        tag = f"tag-{number % 5}"
        properties = f"UNIQ_KEY\x0101{number:032X}\x02TAGS\x01{tag}\x02".encode()
        made.append(
            Draft(
                stored_topic="flights",
                queue=number % queues,
                body=body,
                properties=properties,
                born_ms=CREATED_MS,
                tags_code=java_hash(tag),
            )
        )
    return made


def measure(base: Path, size: int, body: bytes, queues: int) -> dict[str, float]:
    """Lower quartiles by stage, after a fifth of the rounds as warm-up."""
    leader, follower = Replica(base, f"leader-{size}", 1), Replica(base, f"follower-{size}", 2)
    sequencer = Sequencer(leader.machine.end)
    sequencer.reset(leader.machine.store_ms)
    clock, rounds = time.process_time_ns, max(40, min(400, 6000 // size))
    idle = min(-(clock() - clock()) for _ in range(2000))
    spent: dict[str, list[int]] = {stage: [] for stage in STAGES}
    for number in range(rounds):
        drafts, at = drafts_of(number * size, size, body, queues), [clock()]
        batch = encode_entries(drafts)
        at.append(clock())
        place = sequencer.assign(batch, CREATED_MS)
        at.append(clock())
        (one,) = leader.log.append_leader(1, batch, place.queue_offsets, place.store_ms, bytes(8))
        leader.tail.appended(one)
        at.append(clock())
        sequencer.appended(place)
        own = leader.read()
        at.append(clock())
        leader.machine.apply(own)
        at.append(clock())
        payload = bytes(one.data)
        began = clock()
        arrived = verify_range(payload, one.first_index, one.term, one.pos, one.prev_chain)
        there = [began, clock()]
        follower.tail.appended(follower.log.append_range(arrived))
        there.append(clock())
        theirs = follower.read()
        there.append(clock())
        follower.machine.apply(theirs)
        there.append(clock())
        for replica in (leader, follower):
            replica.tail.end_turn(replica.log.end_index)
        took = [end - begin for times in (at, there) for begin, end in pairwise(times)]
        if number >= rounds // 5:
            for stage, ns in zip(STAGES, took, strict=True):
                spent[stage].append(ns - idle)
    found = {
        stage: round(sorted(times)[len(times) // 4] / 1000, 1) for stage, times in spent.items()
    }
    for replica in (leader, follower):
        replica.store.queues.close()
    return {
        **found,
        "leader": round(sum(list(found.values())[:5]), 1),
        "follower": round(sum(list(found.values())[5:]), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1,8,16,32,64,1000")
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--queues", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as at:
        for size in map(int, given.sizes.split(",")):
            print(
                json.dumps(
                    {"entries": size, **measure(Path(at), size, bytes(given.body), given.queues)}
                )
            )


if __name__ == "__main__":
    main()
