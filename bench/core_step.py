"""The cost of the consensus core on a busy leader: `step` for an append acknowledgement, without
bytes, disks or network."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

from ledgermq.proto.types import HardState
from ledgermq.raft.config import RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteReply

NAME, RUNS, DURABLE = "core_step", 5, False
ROUNDS = 10_000
ENTRIES = 100
START_NS = 1 << 40


def leader(voters: tuple[str, ...]) -> Core:
    """A new leader of term 2 that every voter has answered."""
    core = Core(
        config=RaftConfig("a", voters, 1),
        log=LogView([(0, 0)], 0),
        hard_state=HardState(1),
        chance=Random(1),
        now_ns=0,
        commit_index=0,
    )
    core.tick(START_NS)
    for pre in (True, False):
        for voter in voters[1:]:
            core.step(VoteReply(sender=voter, to="a", term=2, pre=pre, granted=True), START_NS)
    core.take(START_NS)
    for voter in voters[1:]:
        core.step(
            AppendReply(
                sender=voter,
                to="a",
                term=2,
                round=len(voters),
                boot_id=7,
                rejected=False,
                received=0,
                durable=0,
            ),
            START_NS,
        )
    return core


def turn(core: Core, now_ns: int) -> list[Append]:
    """One range of entries is appended, synced here and sent to every peer."""
    first = core.log.end_index + 1
    extent = Extent(first, first + ENTRIES - 1, core.term, 100 * ENTRIES)
    core.appended(extent)
    core.synced(*core.sync_begins())
    return [core.pushed(push.to, extent) for push in core.take(now_ns).pushes]


def median_us(voters: tuple[str, ...]) -> float:
    """For each range every peer first reports it as received, then as stored; the second answer
    commits."""
    core, now_ns, times = leader(voters), START_NS, []
    for number in range(ROUNDS):
        now_ns += 100_000
        messages = turn(core, now_ns)
        replies = [
            AppendReply(
                sender=m.to,
                to="a",
                term=2,
                round=m.round,
                boot_id=7,
                rejected=False,
                received=m.last_index,
                durable=m.prev_index,
            )
            for m in messages
        ]
        replies += [
            AppendReply(
                sender=m.to,
                to="a",
                term=2,
                round=m.round,
                boot_id=7,
                rejected=False,
                received=m.last_index,
                durable=m.last_index,
            )
            for m in messages
        ]
        began = time.perf_counter_ns()
        for reply in replies:
            core.step(reply, now_ns)
        if number >= ROUNDS // 10:
            times.append((time.perf_counter_ns() - began) / len(replies))
    assert core.commit_index == core.log.end_index == ROUNDS * ENTRIES, core
    return round(statistics.median(times) / 1000, 2)


def run(_: Path) -> dict[str, Any]:
    return {
        "rounds": ROUNDS,
        "us_a_step": {str(n): median_us(tuple("abcdefg"[:n])) for n in (3, 5, 7)},
    }
