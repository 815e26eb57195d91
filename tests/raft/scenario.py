"""A small command language for scenarios of bare cores, and its interpreter.

A scenario file contains prose (lines that begin with #) and blocks of commands. Under each block,
`----` introduces the expected trace. Commands:

  cluster N | NODE …     create members n1 … nN, or with these names; each log has only the membership entry
  logs NODE TERM …       NODE starts with a durable log of the membership entry and entries of these terms; its term is the last one
  term NODE TERM         NODE starts in this term, without a vote
  elect NODE             without a trace: NODE becomes leader and commits one entry of its term on all nodes it reaches
  quietly COMMAND …      run the command without its trace
  timeout NODE           advance the time to NODE's election timeout, and tick only NODE
  wait MS                advance the time without ticking any node
  tick [NODE …]          tick nodes (default: all)
  propose NODE COUNT     append entries on a leader; with `lazy`, entries that are acknowledged from memory and whose sync may wait
  sync [NODE …]          start and finish a sync
  begin-sync NODE        start a sync
  end-sync NODE          finish the running sync
  deliver [A->B …]       deliver messages in flight (on those links) in order, and the messages they cause, until none is left
  drop [A->B …]          lose messages in flight (on those links)
  keep A->B …            keep copies of the messages in flight on those links
  late                   send the kept copies again
  cut A B | A->B         from now on lose all messages between A and B, or in one direction
  partition A … | B …    the same between the members of the two sides
  heal                   end all cuts and partitions
  disk NODE full | free  whether NODE has room for a pushed range
  trim NODE INDEX        trim its log: it begins with INDEX from now on
  crash NODE, start NODE crash and lose unsynced writes; restart
  lose NODE INDEX        the disk of a crashed node loses the synced entries from INDEX on
  transfer A B           leader A transfers its leadership to B, within two seconds
  join NODE              create NODE with an empty log and a new directory
  change A KIND B        leader A proposes a change of member B: add, promote, demote, remove or return
  read NODE TOKEN        ask NODE for a read index that a majority confirms
  members                show the members according to each log
  status                 show one line per node, and on a leader one line per peer
  terms                  show the terms of every log, entry by entry
"""

from __future__ import annotations

from itertools import product
from random import Random

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, Timing
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import (
    NO_INDEX,
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import Disk, Member, Packet, chain

TIMING = Timing(
    window_bytes=600, window_first_bytes=600, window_ranges=4, range_bytes_max=300, news_ns=0
)


class CarefulMember(Member):
    """A member that loses all unsynced writes in a crash, and whose disk is never full.

    A reader waits at each member, so commit news travels at once.
    """

    disk_full_share = 0.0
    lazy = False

    def start(self, now_ns: int) -> None:
        super().start(now_ns)
        self.core.watch(True)

    def appended(self, extent: Extent) -> None:
        self.core.appended(extent, urgent=not self.lazy, early=self.lazy)

    def crash(self) -> None:
        del self.disk.written[self.disk.durable + 1 :]


def describe(message: Message) -> str:
    way = f"{message.sender}->{message.to} t{message.term}"
    if isinstance(message, VoteRequest):
        asks = (
            "pre-vote?" if message.pre else "vote for a transfer?" if message.transfer else "vote?"
        )
        return f"{way} {asks} last {message.last_index}/t{message.last_term}"
    if isinstance(message, TimeoutNow):
        return f"{way} campaign now, last {message.last_index}/t{message.last_term}"
    if isinstance(message, LeftBehind):
        return f"{way} left behind, the log begins with {message.begin_index}"
    if isinstance(message, VoteReply):
        return (
            f"{way} {'pre-' if message.pre else ''}vote"
            f" {'granted' if message.granted else 'refused'}"
        )
    if isinstance(message, AppendReply):
        verdict = (
            f"rejected, try {message.received}/t{message.hint_term}"
            if message.rejected
            else f"received {message.received}"
        )
        claim = "" if message.rejected else f" durable {message.durable}"
        return f"{way} {verdict}{claim}{' provisional' if message.provisional else ''}"
    assert isinstance(message, Append)
    push = (
        f" push {message.extent.first_index}..{message.extent.last_index}/t{message.extent.term}"
        if message.extent
        else ""
    )
    push += " (members)" if message.extent and message.extent.membership else ""
    push += "".join(
        f" {word}" for word in ("lazy", "early") if message.extent and getattr(message, word)
    )
    push += " quiet" if message.quiet else ""
    return (
        f"{way} append after {message.prev_index}/t{message.prev_term}{push} commit"
        f" {message.commit_index}"
    )


class Scenario:
    """The interpreter: `run` takes a block of commands and returns its trace."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.members: dict[str, CarefulMember] = {}
        self.down: set[str] = set()
        self.cuts: set[tuple[str, str]] = set()
        self.wire: list[Packet] = []
        self.kept: list[Packet] = []
        self.trace: list[str] = []
        self.shown: dict[str, str] = {}
        self.said: dict[int, Members] = {}

    def run(self, block: list[str]) -> str:
        self.trace = []
        for line in block:
            self.command(*line.split())
        return "\n".join(self.trace) or "ok"

    def command(self, name: str, *arguments: str) -> None:
        getattr(self, "do_" + name.replace("-", "_"))(*arguments)

    def do_quietly(self, name: str, *arguments: str) -> None:
        length = len(self.trace)
        self.command(name, *arguments)
        del self.trace[length:]

    def take(self, member: Member) -> None:
        """Carry out effects, and trace their visible changes."""
        effects, packets = member.take(self.now_ns)
        member.core.check_invariants()
        if effects.writes.hard_state is not None:
            self.trace.append(
                f"{member.name} stores term {effects.writes.hard_state.term} vote"
                f" {effects.writes.hard_state.vote}"
            )
        if effects.fence is not None:
            self.trace.append(f"{member.name} FENCED: {effects.fence}")
        state = f"{member.core.role.value} of term {member.core.term}, leader {member.core.leader}"
        if effects.role_changed:
            self.trace.append(f"{member.name} is {state}")
        for token, index in effects.reads:
            self.trace.append(
                f"{member.name} answers read {token}"
                f" {'not' if index is None else f'from entry {index}'}"
            )
        if effects.left_behind is not None:
            self.trace.append(f"{member.name} is left behind by {effects.left_behind[0]}")
        commit = f"{member.name} commits {effects.commit_index}"
        if self.shown.get(member.name, f"{member.name} commits 0") != commit:
            self.trace.append(commit)
        self.shown[member.name] = commit
        for packet in packets:
            lost = (
                packet.message.sender,
                packet.message.to,
            ) in self.cuts or packet.message.to in self.down
            self.trace.append(f"  {describe(packet.message)}{' (lost)' if lost else ''}")
            if not lost:
                self.wire.append(packet)

    def named(self, names: tuple[str, ...]) -> list[CarefulMember]:
        return (
            [self.members[n] for n in names]
            if names
            else [m for m in self.members.values() if m.name not in self.down]
        )

    def do_cluster(self, *names: str) -> None:
        if len(names) == 1:
            names = tuple(f"n{i + 1}" for i in range(int(names[0])))
        self.members = {name: CarefulMember(name, names, Random(name), TIMING) for name in names}
        for member in self.members.values():
            member.said = self.said

    def do_logs(self, name: str, *terms: str) -> None:
        """Logs with equal first terms share these entries."""
        member = self.members[name]
        for term in map(int, terms):
            member.disk.written.append((term, chain(member.disk.written[-1][1], term, 0)))
        member.disk.durable = len(terms)
        self.do_term(name, terms[-1])

    def do_term(self, name: str, term: str) -> None:
        self.members[name].disk.hard_state = HardState(int(term), None)
        self.members[name].start(self.now_ns)

    def do_elect(self, name: str) -> None:
        for line in (
            f"timeout {name}",
            "deliver",
            f"propose {name} 1",
            "deliver",
            "sync",
            "deliver",
        ):
            self.do_quietly(*line.split())

    def do_timeout(self, name: str) -> None:
        member = self.members[name]
        for _ in range(2):
            # A follower whose tick comes late waits for one more timeout.
            self.now_ns = max(self.now_ns, member.core.wake_at_ns(self.now_ns))
            member.core.tick(self.now_ns)
            if member.core.role is not Role.FOLLOWER:
                break
        self.take(member)

    def do_wait(self, ms: str) -> None:
        self.now_ns += int(ms) * MS

    def do_tick(self, *names: str) -> None:
        for member in self.named(names):
            member.core.tick(self.now_ns)
            self.take(member)

    def do_propose(self, name: str, count: str, how: str = "") -> None:
        self.members[name].lazy = how == "lazy"
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

    def do_keep(self, *links: str) -> None:
        self.kept += [p for p in self.wire if self.on_links(p, links)]

    def do_late(self) -> None:
        self.wire, self.kept = self.wire + self.kept, []

    def do_cut(self, one: str, other: str = "") -> None:
        if other:
            self.cuts |= {(one, other), (other, one)}
        else:
            sender, _, to = one.partition("->")
            self.cuts.add((sender, to))
        self.wire = [p for p in self.wire if (p.message.sender, p.message.to) not in self.cuts]

    def do_partition(self, *sides: str) -> None:
        groups = [side.split() for side in " ".join(sides).split("|")]
        for one in groups:
            for a, b in product(one, self.members):
                if b not in one:
                    self.do_cut(a, b)

    def do_disk(self, name: str, how: str) -> None:
        self.members[name].disk_full_share = float(how == "full")

    def do_trim(self, name: str, index: str) -> None:
        self.members[name].core.trimmed(int(index))
        self.take(self.members[name])

    def do_terms(self) -> None:
        for member in self.members.values():
            self.trace.append(
                f"{member.name}: {' '.join(str(term) for term, _ in member.disk.written[1:])}"
            )

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

    def do_transfer(self, leader: str, to: str) -> None:
        refusal = self.members[leader].core.transfer(to, Cause.OPERATOR, self.now_ns, 2000 * MS)
        if refusal is not None:
            self.trace.append(f"{leader} refuses: {refusal}")
        self.take(self.members[leader])

    def do_join(self, name: str) -> None:
        member = self.members[name] = CarefulMember(name, (), Random(name), TIMING)
        member.disk, member.said = Disk(written=[], durable=NO_INDEX), self.said
        member.directory, member.admitted = f"{name}/new", False
        member.start(self.now_ns)

    def do_change(self, leader: str, kind: str, node: str) -> None:
        directory = self.members[node].directory if kind in ("add", "return") else ""
        refusal = self.members[leader].change(
            MemberChange(Change(kind), node, directory), self.now_ns
        )
        if refusal is not None:
            self.trace.append(f"{leader} refuses: {refusal}")
        self.take(self.members[leader])

    def do_read(self, name: str, token: str) -> None:
        self.members[name].core.read(int(token), self.now_ns)
        self.take(self.members[name])

    def do_members(self) -> None:
        for member in self.members.values():
            known, index = member.core.members, member.core.configurations.latest_index
            learners = [
                f"{n} (returning)" if n in known.returning else n for n in sorted(known.learners)
            ]
            self.trace.append(
                f"{member.name}: {' '.join(known.voters)}; {' '.join(learners)}; since {index}".replace(
                    "; ;", ";"
                )
            )

    def do_status(self) -> None:
        for member in self.members.values():
            core = member.core
            begin = f" begin={core.log.begin_index}" if core.log.begin_index else ""
            held = (
                f" replicated={core.replicated_index}"
                if core.replicated_index > core.commit_index
                else ""
            )
            self.trace.append(f"{core!r}{begin}{held}{' DOWN' if member.name in self.down else ''}")
            self.trace += [
                f"  {peer!r}{' needs a snapshot' if peer.needs_snapshot else ''}"
                for peer in core.peers.values()
            ]


def parse(text: str) -> list[tuple[list[str], list[str], list[str]]]:
    """Blocks of (prose, commands, expected trace)."""
    blocks: list[tuple[list[str], list[str], list[str]]] = []
    for chunk in text.strip().split("\n\n"):
        above, _, below = chunk.partition("\n----\n")
        lines = above.removesuffix("\n----").splitlines()
        prose = [line for line in lines if line.startswith("#")]
        blocks.append(
            (
                prose,
                [line for line in lines if line and not line.startswith("#")],
                below.splitlines(),
            )
        )
    return blocks


def replay(text: str) -> str:
    """The scenario text with the trace that its commands produce now."""
    scenario, out = Scenario(), []
    for prose, commands, _ in parse(text):
        out.append(
            "\n".join([*prose, *commands, "----", scenario.run(commands)])
            if commands
            else "\n".join(prose)
        )
    return "\n\n".join(out) + "\n"
