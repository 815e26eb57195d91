"""An audit of a running cluster says the same at whatever moment the cluster goes on: before each
of its calls, and before all of them.

The moments are those of one simulated cluster, whose log grows, begins new files, is trimmed and
sealed and changes its leader, while snapshots, checkpoints, marks and the key index follow. The
audit is given the state of one moment before a call, and of a later one from that call on
(docs/audit.md, Running nodes).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from ledgermq.audit.checks import scan
from ledgermq.audit.reading import walk
from ledgermq.audit.run.jobs import Audit, audit_running
from ledgermq.audit.run.running import RunningCluster
from ledgermq.proto.types import Role
from ledgermq.raft.config import MS
from ledgermq.sim.actors.clients import Habits
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.node import Life
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World
from tests.audit.served import Frozen, Here, Image, Point, connected
from tests.sim.audited import Auditing, SimulatedNode, pass_time, reasons

FILE_BYTES = 16 << 10
FEW = Habits(round_ns=(400 * MS, 800 * MS), messages_a_send=(2, 10))
MOMENTS_BEHIND = 6
SHARE = 8
"""The calls are tried in so many parts, each a test."""
SEED = 9
ADDRESSES = [f"127.0.0.1:{9000 + number}" for number in range(3)]


@dataclass
class Story:
    """The moments of a cluster: some before the marker, then the one at which the marker is
    applied, then later ones."""

    nodes: list[SimulatedNode]
    moments: list[dict[str, Image]] = field(default_factory=list)
    marked: int = 0
    """The number of the first moment with the marker."""
    marker: Point = (-1, 0, -1, 0)

    def take(self) -> None:
        self.moments.append({node.name: Image.of(node) for node in self.nodes})


class Teller:
    """Makes the story within a run of a simulated cluster."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.auditing = Auditing(world, chance, 0)
        self.story = Story(
            [SimulatedNode(name, world.settings.group, world) for name in world.names]
        )

    def tell(self) -> None:
        story = self.story
        # Delayed messages hold the log.
        self.world.delayer.wind_down()
        # The log is trimmed; then the pins of the audit keep what is left. Key files that only the
        # trimmed entries need are removed behind the marker, by an indexing thread that is late.
        for life in self.lives():
            life.indexer.trim = lambda begin_pos: None  # type: ignore[method-assign]
        self.until(
            lambda: all(self.needs_fewer_key_files(life) for life in self.lives()),
            "trimmed",
            lambda: self.world.trim(2, stored=True),
        )
        for node in story.nodes:
            node.take_pin()
        story.take()
        self.go_on()
        story.take()
        story.marker = self.auditing._mark("audit-1")
        self.until(
            lambda: all(node.applied >= story.marker[0] for node in story.nodes), "at the marker"
        )
        story.marked = len(story.moments)
        story.take()
        for life in self.lives():
            del life.indexer.trim
            life.indexer.trim(life.log.begin_pos)
        for _ in range(MOMENTS_BEHIND - 1):
            self.world.trim(1, stored=True)
            self.change_leader()
            self.go_on()
            story.take()

    def needs_fewer_key_files(self, life: Life) -> bool:
        """Whether the log begins behind the end of a key file."""
        files = life.indexer.index._notes()
        return len(files) > 1 and files[0].end_pos < life.log.begin_pos

    def lives(self) -> list[Life]:
        return [node._life for node in self.story.nodes]

    def until(
        self, enough: Callable[[], bool], what: str, again: Callable[[], None] = lambda: None
    ) -> None:
        """Let time pass until something is so."""
        for _ in range(60):
            if enough():
                return
            again()
            pass_time(self.world, enough, self.world.now + SECOND)
        raise AssertionError(f"never {what}")

    def go_on(self) -> None:
        """Until every node has replaced its snapshot, and its log has begun a new file."""
        ends = {
            node.name: (
                node._life.store.durable_snapshot_index,
                node._life.log.end_pos + FILE_BYTES,
            )
            for node in self.story.nodes
        }
        found = [(node, *ends[node.name]) for node in self.story.nodes]
        self.until(
            lambda: all(
                n._life.store.durable_snapshot_index > index and n._life.log.end_pos > end
                for n, index, end in found
            ),
            "a snapshot and a file later",
        )

    def change_leader(self) -> None:
        nodes = self.story.nodes
        term = max(node._life.term for node in nodes)
        follower = next(node.name for node in nodes if node._life.role is not Role.LEADER)
        self.until(
            lambda: any(n._life.term > term for n in nodes),
            "led by another",
            lambda: self.world.transfer(follower),
        )


class _Told(Exception):
    """Ends the run of the simulated cluster."""


@pytest.fixture(scope="module")
def story() -> Story:
    world = World(SEED, settings=replace(Settings(), file_bytes=FILE_BYTES), clients=2, habits=FEW)
    teller = Teller(world, random.Random(SEED))

    def tell() -> None:
        teller.tell()
        raise _Told

    with pytest.raises(_Told):
        world.run(1 << 40, lambda world: world.after(SECOND, tell))
    return teller.story


def audit_of(story: Story, moment: Callable[[int, bool], int]) -> tuple[Audit, Here]:
    """Audit the nodes as they were at the moment that is told for the number of each call, and
    whether the marker was asked for."""
    at = 0
    marked = False

    def before(number: int, method: str) -> None:
        nonlocal at, marked
        marked = marked or method == "Mark"
        at = moment(number, marked)
        assert (at >= story.marked) is marked

    nodes = [
        Frozen(node.name, node.group, [one[node.name] for one in story.moments], lambda: at)
        for node in story.nodes
    ]
    here = Here(
        dict(zip(ADDRESSES, nodes, strict=True)), nodes[0].group, lambda _: story.marker, before
    )
    with connected(here) as connection:
        return audit_running(RunningCluster(connection, 1.0, lambda: 0.0), deep=True), here  # type: ignore[arg-type]


def passes(result: Audit, marker: int, what: object) -> None:
    assert (result.verdict, result.compared) == ("PASS", marker), f"{what}: {reasons(result)}"


@pytest.fixture(params=["compiled", "python"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both scans."""
    if request.param == "python":
        monkeypatch.setattr(scan, "KERNEL", None)
        monkeypatch.setattr(walk, "KERNEL", None)


def test_story_passes_its_marker_before_the_late_reads(story: Story) -> None:
    """Between the first moment with the marker and the last one everything that an audit reads late
    has passed the marker."""
    assert len(story.moments) == story.marked + MOMENTS_BEHIND
    for node in story.nodes:
        first, last = story.moments[story.marked][node.name], story.moments[-1][node.name]
        assert first.begin == last.begin == story.moments[0][node.name].begin and first.begin[0] > 0
        assert max(first.points) >= story.marker[0] and {
            one[node.name].life for one in story.moments
        } == {first.life}
        key_files = [
            {name for name in one.files if name.startswith("g1/index/")} for one in (first, last)
        ]
        assert key_files[1] - key_files[0] and key_files[0] - key_files[1], (
            "key files were made, and removed"
        )
        for name in ("g1/state/snapshot", "g1/state/snapshot.previous", "g1/state/keyindex"):
            assert first.files[name] != last.files[name]


def check_changes(story: Story, chosen: Callable[[int, str], bool]) -> None:
    """For every chosen call: before it the cluster is as it was, from it on as it was later. What
    happens behind the marker happens at once."""
    early, late, last = story.marked - 1, story.marked, len(story.moments) - 1
    result, here = audit_of(story, lambda number, marked: late if marked else 0)
    passes(result, story.marker[0], "no change")
    for k, (address, method) in enumerate(here.calls):
        if not chosen(k, address):
            continue

        def moment(number: int, marked: bool, k: int = k) -> int:
            return (last if marked else early) if number >= k else (late if marked else 0)

        result, _ = audit_of(story, moment)
        passes(result, story.marker[0], (k, address, method))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("part", range(SHARE))
def test_a_change_before_any_call_to_a_node_is_no_finding(story: Story, part: int) -> None:
    """The first node is asked for all that is asked of any; the others change at the same
    moments."""
    check_changes(story, lambda number, address: address == ADDRESSES[0] and number % SHARE == part)


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kernel")
def test_a_change_before_any_call_is_no_finding(story: Story) -> None:
    check_changes(story, lambda number, address: True)


@pytest.mark.usefixtures("kernel")
def test_changes_at_several_calls_are_no_finding(story: Story) -> None:
    """Each moment follows at another random call."""
    _, here = audit_of(story, lambda number, marked: story.marked if marked else 0)
    for seed in range(20):
        chance = random.Random(seed)
        turns = sorted(chance.randrange(len(here.calls)) for _ in range(MOMENTS_BEHIND - 1))
        result, _ = audit_of(
            story,
            lambda number, marked, turns=turns: (
                story.marked + sum(number >= turn for turn in turns) if marked else 0
            ),  # type: ignore[misc]
        )
        passes(result, story.marker[0], turns)
