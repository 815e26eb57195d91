"""A small command language for conversations between bare cores, and its interpreter.

A scenario file is prose (lines that begin with #), commands, and under each block of commands `----` with the trace they must leave.
Commands:

  cluster N              members n1 … nN, all with only the membership entry
  timeout NODE           let so much time pass that NODE's election timer runs out, and tick NODE alone
  wait MS                let time pass; nobody is told
  tick [NODE …]          tell nodes (default: all) the time
  propose NODE COUNT     append entries on a leader
  sync [NODE …]          begin and finish a sync
  begin-sync NODE        begin one
  end-sync NODE          finish the one under way
  deliver [A->B …]       deliver what is on the wire (on those links), in order, and what it causes there, until nothing is left
  drop [A->B …]          lose what is on the wire (on those links)
  cut A B, heal          from now on lose everything between A and B; lose nothing any more
  crash NODE, start NODE lose what was not synced; come back
  lose NODE INDEX        the disk of a crashed node forgets INDEX and what follows, although it had been synced
  status                 one line per node
"""

from __future__ import annotations

from random import Random

from ledgermq.raft.config import MS, Timing
from ledgermq.raft.messages import Append, AppendReply, Message, VoteReply, VoteRequest
from tests.raft.memory_cluster import Member, Packet

TIMING = Timing(window_bytes=600, window_ranges=4, range_bytes_max=300)


class CarefulMember(Member):
    """Loses everything unsynced in a crash; its disk is never full."""

    disk_full_share = 0.0

    def crash(self) -> None:
        del self.disk.written[self.disk.durable + 1 :]


def describe(message: Message) -> str:
    way = f"{message.sender}->{message.to} t{message.term}"
    if isinstance(message, VoteRequest):
        return f"{way} {'pre-' if message.pre else ''}vote? last {message.last_index}/t{message.last_term}"
    if isinstance(message, VoteReply):
        return f"{way} {'pre-' if message.pre else ''}vote {'granted' if message.granted else 'refused'}"
    if isinstance(message, AppendReply):
        verdict = f"rejected, try {message.received}/t{message.hint_term}" if message.rejected else f"received {message.received}"
        return f"{way} {verdict}" + ("" if message.rejected else f" durable {message.durable}")
    assert isinstance(message, Append)
    push = f" push {message.extent.first_index}..{message.extent.last_index}/t{message.extent.term}" if message.extent else ""
    return f"{way} append after {message.prev_index}/t{message.prev_term}{push} commit {message.commit_index}"


class Scenario:
    """The interpreter: `run` takes a block of commands and returns its trace."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.members: dict[str, Member] = {}
        self.down: set[str] = set()
        self.cuts: set[frozenset[str]] = set()
        self.wire: list[Packet] = []
        self.trace: list[str] = []
        self.shown: dict[str, str] = {}

    def run(self, block: list[str]) -> str:
        self.trace = []
        for line in block:
            name, *arguments = line.split()
            getattr(self, "do_" + name.replace("-", "_"))(*arguments)
        return "\n".join(self.trace) or "ok"

    def take(self, member: Member) -> None:
        """Carry out effects; trace what changed for the world."""
        effects, packets = member.take(self.now_ns)
        member.core.check_invariants()
        if effects.writes.hard_state is not None:
            self.trace.append(f"{member.name} stores term {effects.writes.hard_state.term} vote {effects.writes.hard_state.vote}")
        if effects.fence is not None:
            self.trace.append(f"{member.name} FENCED: {effects.fence}")
        state = f"{member.core.role.value} of term {member.core.term}, leader {member.core.leader}"
        if effects.role_changed:
            self.trace.append(f"{member.name} is {state}")
        commit = f"{member.name} commits {effects.commit_index}"
        if self.shown.get(member.name, f"{member.name} commits 0") != commit:
            self.trace.append(commit)
        self.shown[member.name] = commit
        for packet in packets:
            ends = frozenset((packet.message.sender, packet.message.to))
            lost = ends in self.cuts or packet.message.to in self.down
            self.trace.append(f"  {describe(packet.message)}{' (lost)' if lost else ''}")
            if not lost:
                self.wire.append(packet)

    def named(self, names: tuple[str, ...]) -> list[Member]:
        return [self.members[n] for n in names] if names else [m for m in self.members.values() if m.name not in self.down]

    def do_cluster(self, size: str) -> None:
        names = tuple(f"n{i + 1}" for i in range(int(size)))
        self.members = {name: CarefulMember(name, names, Random(name), TIMING) for name in names}

    def do_timeout(self, name: str) -> None:
        member = self.members[name]
        self.now_ns = max(self.now_ns, member.core.wake_at_ns(self.now_ns))
        member.core.tick(self.now_ns)
        self.take(member)

    def do_wait(self, ms: str) -> None:
        self.now_ns += int(ms) * MS

    def do_tick(self, *names: str) -> None:
        for member in self.named(names):
            member.core.tick(self.now_ns)
            self.take(member)

    def do_propose(self, name: str, count: str) -> None:
        self.members[name].propose(int(count))
        self.take(self.members[name])

    def do_sync(self, *names: str) -> None:
        for member in self.named(names):
            member.begin_sync()
            member.end_sync()
            self.take(member)

    def do_begin_sync(self, name: str) -> None:
        self.members[name].begin_sync()

    def do_end_sync(self, name: str) -> None:
        self.members[name].end_sync()
        self.take(self.members[name])

    def on_links(self, packet: Packet, links: tuple[str, ...]) -> bool:
        return not links or f"{packet.message.sender}->{packet.message.to}" in links

    def do_deliver(self, *links: str) -> None:
        while chosen := next((p for p in self.wire if self.on_links(p, links)), None):
            self.wire.remove(chosen)
            if chosen.message.to not in self.down:
                self.members[chosen.message.to].step(chosen, self.now_ns)
                self.take(self.members[chosen.message.to])

    def do_drop(self, *links: str) -> None:
        self.wire = [p for p in self.wire if not self.on_links(p, links)]

    def do_cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))
        self.wire = [p for p in self.wire if {p.message.sender, p.message.to} != {one, other}]

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_crash(self, name: str) -> None:
        self.members[name].crash()
        self.down.add(name)
        self.wire = [p for p in self.wire if name not in (p.message.sender, p.message.to)]

    def do_lose(self, name: str, index: str) -> None:
        disk = self.members[name].disk
        del disk.written[int(index) :]
        disk.durable = int(index) - 1

    def do_start(self, name: str) -> None:
        self.shown.pop(name, None)
        self.down.discard(name)
        self.members[name].start(self.now_ns)

    def do_status(self) -> None:
        for member in self.members.values():
            self.trace.append(repr(member.core) + (" DOWN" if member.name in self.down else ""))
            self.trace += [f"  {peer!r}" for peer in member.core.peers.values()]


def parse(text: str) -> list[tuple[list[str], list[str], list[str]]]:
    """Blocks of (prose, commands, expected trace)."""
    blocks: list[tuple[list[str], list[str], list[str]]] = []
    for chunk in text.strip().split("\n\n"):
        above, _, below = chunk.partition("\n----\n")
        lines = above.removesuffix("\n----").splitlines()
        prose = [line for line in lines if line.startswith("#")]
        blocks.append((prose, [line for line in lines if line and not line.startswith("#")], below.splitlines()))
    return blocks


def replay(text: str) -> str:
    """The scenario with the trace its commands leave now."""
    scenario, out = Scenario(), []
    for prose, commands, _ in parse(text):
        out.append("\n".join([*prose, *commands, "----", scenario.run(commands)]) if commands else "\n".join(prose))
    return "\n\n".join(out) + "\n"
