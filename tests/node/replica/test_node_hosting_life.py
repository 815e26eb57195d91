"""The life cycle of a hosted group over fakes: what a turn does in every state, and what outsiders
see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call, Done, Refused
from ledgermq.node.broker.calls.read_calls import Peek
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import Diverged, Fenced, PeerPacket, SyncTicket, Unreadable
from ledgermq.node.replica.hosting.hosting import OPEN_AGAIN_NS, PACKETS_MAX, ReplicaHost
from ledgermq.node.replica.hosting.ports import Broken, State
from ledgermq.node.replica.ports import RangePut
from ledgermq.node.replica.shipping.ports import Progress, RebuildOutput
from ledgermq.node.replica.shipping.shipping_wire import FactsWanted, SnapshotSent, encode
from ledgermq.node.runtime import metrics
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import ReplicaStatus, Role
from ledgermq.storage.files.errors import Damaged, LogFenced, NoSpace

FAR_NS = 1 << 62
VIEW = GroupView("n1", 3, True, {}, {}, {})
DAMAGE = Unreadable(Damaged("entry 7 is rotten"))
RAFT = PeerPacket(b"\x03")
REQUEST = encode("n2", "n1", "log", 1, FactsWanted())
ANSWER = encode(
    "n2",
    "n1",
    "log",
    1,
    SnapshotSent(offset=0, total_bytes=10, checksum=0, applied_index=5),
    b"0123456789",
)
NOT_LEADER, UNKNOWN = "not-leader", "unknown-outcome"


@dataclass
class FakeRunning:
    """An open group: every turn does what the test wrote down for it."""

    script: list[Callable[[], TurnOutput] | Exception] = field(default_factory=list)
    seen: list[tuple[list[Call], list[tuple[str, PeerPacket]], list[Any]]] = field(
        default_factory=list
    )
    left_behind: tuple[str, int] | None = None
    end_index: int = 9
    ended: str = ""
    failure: Fenced | None = None

    def turn(
        self, now_ns: int, now_ms: int, calls: Sequence[Call], packets: Any, synced: Any
    ) -> TurnOutput:
        self.seen.append((list(calls), list(packets), list(synced)))
        if self.failure is not None:
            raise self.failure
        step = self.script.pop(0) if self.script else turned
        if isinstance(step, Exception):
            raise step
        return step()

    @property
    def group(self) -> FakeRunning:
        return self

    @property
    def store(self) -> Any:
        return SimpleNamespace(log=SimpleNamespace(end_index=self.end_index, end_pos=900))

    def status(self) -> ReplicaStatus:
        return ReplicaStatus("g", "n1", Role.LEADER, 3, "n1", 0, self.end_index, 9, 9, 9)

    def fail(self, failure: Fenced) -> None:
        self.failure = failure

    def admit(self) -> None:
        self.ended = "admitted"

    def abandon(self) -> None:
        self.ended = "abandoned"

    def close(self) -> None:
        self.ended = "closed"


def turned(**changes: Any) -> TurnOutput:
    return replace(TurnOutput([], [], None, FAR_NS, None), **changes)


def step(
    *,
    finished: bool = False,
    refused: str | None = None,
    done: int = 0,
    total: int = 0,
    **more: Any,
) -> RebuildOutput:
    return RebuildOutput(
        more.pop("packets", ()),
        more.pop("wake_at_ns", 0),
        finished,
        refused,
        Progress(done, total, "n2"),
        **more,
    )


@dataclass
class FakeRebuild:
    steps: list[RebuildOutput | Exception]
    given: list[list[tuple[str, PeerPacket]]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    closed: bool = False

    def turn(self, now_ns: int, packets: Any) -> RebuildOutput:
        self.given.append(list(packets))
        self.threads.add(threading.current_thread().name)
        found = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeOpener:
    opens: list[Any]
    rebuild: Any = None
    asked: list[Any] = field(default_factory=list)
    range: Any = None

    def range_repair(self, first_index: int, last_index: int) -> Any:
        self.asked.append((first_index, last_index))
        return self.range

    def open(self) -> Any:
        found = self.opens.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def repair(self, damage: Exception) -> Broken:
        self.asked.append(damage)
        return Broken(State.REPAIRING, str(damage), self.rebuild, floor_pos=lambda: 700)

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        self.asked.append((source, floor_pos))
        return Broken(State.INSTALLING, reason, self.rebuild)


class FakeShippingHandler:
    def __init__(self) -> None:
        self.offered: list[tuple[str, PeerPacket]] = []
        self.closed = False
        self.send: Any = None

    def offer(self, sender: str, packet: PeerPacket) -> None:
        self.offered.append((sender, packet))

    def close(self) -> None:
        self.closed = True


class Life:
    """A hosted group, its fakes, and turns at times the test names."""

    def __init__(self, *opens: Any, rebuild: FakeRebuild | None = None) -> None:
        self.opener = FakeOpener(list(opens), rebuild)
        self.shipping_handler = FakeShippingHandler()
        executor = ThreadPoolExecutor(1, thread_name_prefix="life-g-life")
        self.group = ReplicaHost("g-life", "n1", self.opener, self.shipping_handler, executor)
        self.woken = threading.Event()
        self.group.connect(self.woken.set, lambda packets: None)
        self.now_ns = 1
        self.group.open_first(self.now_ns)

    def turn(self, *calls: Call, packets: Any = (), synced: Any = ()) -> TurnOutput:
        return self.group.turn(self.now_ns, 0, calls, packets, synced)

    def next_job(self) -> TurnOutput:
        """The turn after the running job has ended."""
        assert self.woken.wait(10), "no job is under way"
        self.woken.clear()
        return self.turn()

    def until(self, state: State) -> None:
        for _ in range(20):
            if self.group.state is state:
                return
            self.next_job()
        raise AssertionError(f"{self.group.state} instead of {state}")

    @property
    def gauge(self) -> str:
        values = {
            state: metrics.GROUP_STATE.labels("g-life", state.value)._value.get() for state in State
        }
        assert sum(values.values()) == 1
        return next(state.value for state, value in values.items() if value)


def peek(token: int) -> Peek:
    return Peek(token, "t", 0, 0, 1)


def test_a_group_that_opens_runs_and_its_turns_are_those_of_the_open_group() -> None:
    """The engine calls a running group directly."""
    running = FakeRunning([lambda: turned(done=[Done(1, Refused("x"))], view=VIEW)])
    life = Life(running)
    output = life.turn(peek(1), packets=[("n2", RAFT)])
    assert output.done == [Done(1, Refused("x"))] and output.view is VIEW and not output.hides_view
    assert running.seen == [([peek(1)], [("n2", RAFT)], [])]
    assert (
        life.group.state is State.RUNNING
        and life.gauge == "running"
        and life.group.running is running
    )
    assert life.group.status().state == "running" and life.group.status().rebuild is None
    life.group.close()
    assert running.ended == "closed" and life.shipping_handler.closed


def test_a_damaged_read_ends_the_run_and_a_repair_brings_it_back() -> None:
    """running → repairing → running: the store is let go of before the repair looks at it, and
    opened anew behind it."""
    rebuild = FakeRebuild(
        [
            step(done=10, total=40, packets=(("n2", REQUEST),)),
            step(done=40, total=40, finished=True),
        ]
    )
    before, after = FakeRunning([lambda: turned(view=VIEW), DAMAGE]), FakeRunning()
    life = Life(before, after, rebuild=rebuild)
    life.turn()
    bytes_before = metrics.REBUILT_BYTES.labels("g-life", "repair")._value.get()
    output = life.turn(peek(5))
    assert output.done[0].token == 5 and output.done[0].outcome.reason == UNKNOWN, (
        "who asked in the turn that broke is told so"
    )
    assert output.hides_view, "the last statements of this replica must not count"
    assert life.group.state is State.REPAIRING and life.gauge == "repairing"
    with pytest.raises(LedgerError, match="does not run"):
        _ = life.group.running
    assert life.turn(peek(6)).done[0].outcome.reason == NOT_LEADER
    life.next_job()
    assert before.ended == "abandoned" and life.opener.asked == [DAMAGE]
    sent = life.next_job()
    assert sent.packets == [("n2", REQUEST)]
    status = life.group.status()
    assert (status.role, status.leader, status.state, status.end_index) == (
        Role.LEARNER,
        None,
        "repairing",
        9,
    )
    assert status.rebuild is not None and (
        status.rebuild.source,
        status.rebuild.done_bytes,
        status.rebuild.total_bytes,
    ) == ("n2", 10, 40)
    life.until(State.RUNNING)
    assert life.group.running is after and rebuild.closed and life.group.boots == 2
    assert metrics.REBUILT_BYTES.labels("g-life", "repair")._value.get() - bytes_before == 40
    assert life.turn(packets=[("n2", RAFT)]).wake_at_ns == FAR_NS and after.seen[-1][1] == [
        ("n2", RAFT)
    ]
    assert all(name.startswith("life-g-life") for name in rebuild.threads), "no step runs in a turn"
    life.group.close()


def test_installation_counts_bytes_per_source_and_logs_a_store_failure() -> None:
    """Each byte once, whatever the steps; the reason once."""
    first = Progress(10, 90, "n2", peer_bytes=10, store_bytes=30)
    more = replace(first, store_bytes=60, store_problem="the store is away")
    outputs = [
        replace(step(), progress=first),
        replace(step(), progress=more),
        replace(step(finished=True), progress=more),
    ]
    life = Life(Broken(State.INSTALLING, "nothing is here", FakeRebuild(outputs)), FakeRunning())
    before = {
        source: metrics.INSTALLED_BYTES.labels("g-life", source)._value.get()
        for source in ("peers", "store")
    }
    with capture_logs() as logs:
        life.turn()
        life.until(State.RUNNING)
    given = {
        source: metrics.INSTALLED_BYTES.labels("g-life", source)._value.get() - before[source]
        for source in before
    }
    assert given == {"peers": 10, "store": 60}
    assert [entry["reason"] for entry in logs if "goes on from peers" in entry["event"]] == [
        "the store is away"
    ]
    life.group.close()


def test_the_store_is_not_let_go_of_while_a_sync_is_under_way() -> None:
    """Another thread works on its files; a sync that then fails ends the process as ever (invariant
    I9)."""
    ticket = SyncTicket(1, lambda: None)
    for error in (None, OSError(5, "EIO")):
        before = FakeRunning([lambda: turned(sync=ticket), DAMAGE])
        life = Life(before, FakeRunning(), rebuild=FakeRebuild([step(finished=True)]))
        assert life.turn().sync is ticket
        assert life.turn().wake_at_ns == FAR_NS and before.ended == ""
        assert life.turn().wake_at_ns == FAR_NS and before.ended == ""
        if error is not None:
            with pytest.raises(Fenced, match="could not be synced"):
                life.turn(synced=[(ticket, error)])
            continue
        life.turn(synced=[(ticket, None)])
        life.until(State.RUNNING)
        assert before.ended == "abandoned"


def test_a_sync_that_failed_is_not_hidden_by_a_damage_in_the_same_turn() -> None:
    """The scrub's finding ends a turn before it looks at what the sync said: the failure still ends
    the process (invariant I9)."""
    ticket = SyncTicket(1, lambda: None)
    life = Life(FakeRunning([lambda: turned(sync=ticket), DAMAGE]), rebuild=FakeRebuild([step()]))
    life.turn()
    with pytest.raises(Fenced, match="could not be synced"):
        life.turn(synced=[(ticket, OSError(5, "EIO"))])


def test_a_turn_that_fails_in_another_way_ends_the_process() -> None:
    """A failed sync, or any error other than damage of a committed range, ends the process."""
    for failure in (
        Fenced("a sync failed"),
        LogFenced("a write failed", 73),
        OSError(5, "EIO"),
        AssertionError("I4"),
    ):
        life = Life(FakeRunning([failure]))
        with pytest.raises(type(failure)):
            life.turn()


def test_a_log_that_differs_from_its_leaders_ends_this_group_alone() -> None:
    """The group is refused permanently with a remedy and not reopened; the process and its other
    groups continue."""
    before = FakeRunning(
        [turned, Diverged("n2 would replace entry 5, but entries up to 9 are committed")]
    )
    life = Life(before)
    life.turn(peek(1))
    assert [
        done.outcome.reason for done in life.turn().done if isinstance(done.outcome, Refused)
    ] == [UNKNOWN]
    life.next_job()
    assert (
        life.group.state is State.REFUSED
        and life.gauge == "refused"
        and before.ended == "abandoned"
    )
    told = life.group.status().rebuild.reason  # type: ignore[union-attr]
    assert "would replace entry 5" in told and "move the directory of this group away" in told
    life.now_ns += 3600 * OPEN_AGAIN_NS
    assert life.turn(peek(2)).wake_at_ns == FAR_NS and life.group.state is State.REFUSED
    life.group.close()


def test_calls_of_earlier_turns_are_answered_when_the_run_ends() -> None:
    """No caller waits forever: calls that the group accepted and did not answer get an unknown
    outcome."""
    life = Life(
        FakeRunning([turned, lambda: turned(done=[Done(1, Refused("x"))]), DAMAGE]),
        rebuild=FakeRebuild([step()]),
    )
    life.turn(peek(1), peek(2))
    life.turn(peek(3))
    answered = {
        done.token: done.outcome.reason
        for done in life.turn().done
        if isinstance(done.outcome, Refused)
    }
    assert answered == {2: UNKNOWN, 3: UNKNOWN}


def test_a_damage_no_peer_can_mend_is_refused_by_name_until_one_can() -> None:
    """repairing → refused → repairing → running; it never ends the process and never gives up."""
    rebuild = FakeRebuild(
        [step(refused="entries 5…7: n2 and n3 lack them too"), step(), step(finished=True)]
    )
    life = Life(Broken(State.REPAIRING, "entry 5 is rotten", rebuild), FakeRunning())
    assert life.group.state is State.REPAIRING
    life.turn()
    life.next_job()
    assert life.group.state is State.REFUSED and life.gauge == "refused"
    assert life.group.status().rebuild.reason == "entries 5…7: n2 and n3 lack them too"  # type: ignore[union-attr]
    life.until(State.REPAIRING)
    life.until(State.RUNNING)
    life.group.close()


def test_a_follower_left_behind_installs() -> None:
    """running → installing → running: from the leader that said so, and never less than what may
    have been acknowledged."""
    before = FakeRunning([lambda: turned(packets=[("n2", RAFT)])], left_behind=("n2", 50))
    life = Life(before, FakeRunning(), rebuild=FakeRebuild([step(finished=True)]))
    assert life.turn().packets == [("n2", RAFT)], "what the last turn left is still carried out"
    assert life.group.state is State.INSTALLING
    life.until(State.RUNNING)
    assert before.ended == "abandoned" and life.opener.asked == [("n2", 900)]


def test_left_behind_within_the_own_log_is_ignored() -> None:
    """A begin at or before the end of the own log is no reason to give the log up."""
    life = Life(FakeRunning(left_behind=("n2", 10)))
    life.turn()
    assert life.group.state is State.RUNNING


def test_repair_of_trimmed_entries_becomes_an_installation() -> None:
    """repairing → installing, with the floor that the repair knew."""
    rebuild = FakeRebuild([step(install_wanted=("n3", 80)), step(finished=True)])
    life = Life(
        Broken(State.REPAIRING, "rotten", rebuild, floor_pos=lambda: 640),
        FakeRunning(),
        rebuild=rebuild,
    )
    life.turn()
    life.until(State.INSTALLING)
    assert life.opener.asked == [("n3", 640)]
    life.until(State.RUNNING)


def test_a_directory_that_stays_broken_is_not_opened_in_a_loop() -> None:
    """A rebuild that ended well and helped nothing waits before the next one."""
    again = FakeRebuild([step(finished=True)])
    first = Broken(State.REPAIRING, "rotten", FakeRebuild([step(finished=True)]))
    life = Life(
        FakeRunning([DAMAGE]),
        Broken(State.REPAIRING, "still rotten", again),
        FakeRunning(),
        rebuild=first.rebuild,
    )
    life.turn()
    for _ in range(3):
        output = life.next_job()
    assert life.group.state is State.REPAIRING and again.given == []
    assert output.wake_at_ns == life.now_ns + OPEN_AGAIN_NS
    life.now_ns += OPEN_AGAIN_NS
    life.turn()
    life.until(State.RUNNING)


def test_failed_rebuild_ends_the_process_with_its_status() -> None:
    """The failure of a job is the engine's: it ends the process with the status of the failure."""
    life = Life(
        FakeRunning([DAMAGE]), Damaged("identity lost"), rebuild=FakeRebuild([step(finished=True)])
    )
    life.turn()
    with pytest.raises(Damaged, match="identity lost"):
        life.until(State.RUNNING)


def test_full_disk_delays_a_rebuild() -> None:
    """Other groups of the node continue; later the rebuild starts again with the current
    directory."""
    first, second = FakeRebuild([NoSpace("the disk is full")]), FakeRebuild([step(finished=True)])
    life = Life(
        FakeRunning([DAMAGE]),
        Broken(State.REPAIRING, "rotten", second),
        FakeRunning(),
        rebuild=first,
    )
    life.turn()
    life.next_job()
    output = life.next_job()
    assert (
        first.closed
        and life.group.state is State.REPAIRING
        and "waits for space" in life.group.status().rebuild.reason
    )  # type: ignore[union-attr]
    assert output.wake_at_ns == life.now_ns + OPEN_AGAIN_NS
    for _ in range(3):
        life.now_ns += OPEN_AGAIN_NS
        life.turn()
        if life.group.state is not State.RUNNING:
            life.next_job()
    life.until(State.RUNNING)


def test_an_installation_that_was_refused_goes_on_as_one() -> None:
    """installing → refused → installing: what people read, and what is counted, is what is done."""
    rebuild = FakeRebuild([step(refused="nobody has it"), step(), step(finished=True)])
    life = Life(FakeRunning(left_behind=("n2", 50)), FakeRunning(), rebuild=rebuild)
    life.turn()
    before = metrics.REBUILDS.labels("g-life", "install")._value.get()
    life.until(State.REFUSED)
    life.next_job()
    assert life.group.state is State.INSTALLING
    assert "begins with entry 50" in life.group.status().rebuild.reason  # type: ignore[union-attr]
    life.until(State.RUNNING)
    assert metrics.REBUILDS.labels("g-life", "install")._value.get() == before + 1


def test_packets_go_to_whoever_they_are_for() -> None:
    """Requests for bytes are answered beside the turns in every state; answers reach the rebuild;
    raft reaches an open group only."""
    rebuild = FakeRebuild([step(), step(wake_at_ns=FAR_NS)])
    running = FakeRunning([turned, DAMAGE])
    life = Life(running, rebuild=rebuild)
    life.turn(packets=[("n2", REQUEST), ("n2", RAFT), ("n2", ANSWER)])
    assert life.shipping_handler.offered == [("n2", REQUEST)] and running.seen[0][1] == [
        ("n2", RAFT)
    ]
    life.turn()
    life.next_job()
    life.next_job()
    life.turn(packets=[("n3", RAFT), ("n2", ANSWER), ("n3", REQUEST)])
    life.next_job()
    assert rebuild.given[-1] in ([], [("n2", ANSWER), ("n3", REQUEST)])
    life.next_job()
    assert [("n2", ANSWER), ("n3", REQUEST)] in rebuild.given
    assert life.shipping_handler.offered == [("n2", REQUEST), ("n3", REQUEST)]


def test_packets_for_a_busy_rebuild_are_bounded() -> None:
    """A flood of answers takes no memory: the oldest give way, and are asked for again."""
    rebuild = FakeRebuild([step(wake_at_ns=FAR_NS)])
    life = Life(Broken(State.REPAIRING, "rotten", rebuild))
    life.turn(packets=[("n2", ANSWER)] * (2 * PACKETS_MAX))
    life.next_job()
    assert [len(given) for given in rebuild.given] == [PACKETS_MAX]


class FakeRange(FakeRebuild):
    """A repair of a range: as a rebuild, and says what it did."""

    repaired = ("entries 3 to 4",)
    written_bytes = 77
    source = "n2"


def test_a_range_is_put_back_while_the_group_runs() -> None:
    """Its steps run on the group's thread between turns, its packets are sent with the turns, and
    only it receives its answers."""
    running = FakeRunning()
    life = Life(running)
    life.opener.range = FakeRange(
        [
            step(packets=(("n2", REQUEST),), wake_at_ns=FAR_NS),
            step(finished=True, wake_at_ns=FAR_NS),
        ]
    )
    put = life.group.put_back(3, 4)
    assert life.opener.asked == [(3, 4)] and not put.done()
    with pytest.raises(LedgerError, match="another range"):
        life.group.put_back(5, 6)
    life.turn()
    assert life.next_job().packets == [("n2", REQUEST)]
    assert life.turn(packets=[("n2", ANSWER), ("n2", RAFT)]).packets == []
    life.next_job()
    assert put.result(0) == RangePut(("entries 3 to 4",), 77, "n2")
    assert life.opener.range.given == [[], [("n2", ANSWER)]] and life.opener.range.closed
    assert all("life-g-life" in name for name in life.opener.range.threads)
    assert life.group.state is State.RUNNING and len(running.seen) == 4
    assert [packets for _, packets, _ in running.seen if packets] == [[("n2", RAFT)]]
    assert life.turn().wake_at_ns == FAR_NS


def test_a_range_that_cannot_be_put_back_is_said_and_the_next_one_may_begin() -> None:
    life = Life(FakeRunning())
    life.opener.range = FakeRange([step(refused="no majority", wake_at_ns=FAR_NS)])
    put = life.group.put_back(3, 4)
    life.turn()
    life.next_job()
    assert put.result(0).refused == "no majority" and life.opener.range.closed
    assert not life.group.put_back(3, 4).done()


def test_a_group_that_stops_meanwhile_lets_go_of_the_range() -> None:
    """Other damage was found: waiting callers get an error, nothing is written beside the repair of
    the whole log, and files are closed."""
    gate = threading.Event()

    class Slow(FakeRange):
        def turn(self, now_ns: int, packets: Any) -> RebuildOutput:
            assert gate.wait(10)
            return super().turn(now_ns, packets)

    running = FakeRunning([turned, DAMAGE])
    rebuild = FakeRebuild([step(wake_at_ns=FAR_NS)])
    life = Life(running, rebuild=rebuild)
    life.opener.range = Slow([step(wake_at_ns=FAR_NS)])
    put = life.group.put_back(3, 4)
    life.turn()
    life.turn()
    assert put.result(0).refused is not None and not life.opener.range.closed
    assert rebuild.given == []
    gate.set()
    life.next_job()
    for _ in range(3):
        if not rebuild.given:
            life.next_job()
    assert life.opener.range.closed and rebuild.given
    with pytest.raises(LedgerError, match="does not run"):
        life.group.put_back(3, 4)


def test_a_write_that_fails_while_a_range_is_put_back_ends_the_process() -> None:
    """The first failed sync is final, in a step beside the turns too, and at a stop (invariant
    I9)."""
    life = Life(FakeRunning())
    life.opener.range = FakeRange([OSError(5, "no sync")])
    life.group.put_back(3, 4)
    life.turn()
    assert life.woken.wait(10)
    with pytest.raises(OSError, match="no sync"):
        life.turn()
    stopping = Life(FakeRunning())
    stopping.opener.range = FakeRange([OSError(5, "no sync")])
    stopping.group.put_back(3, 4)
    stopping.turn()
    with pytest.raises(OSError, match="no sync"):
        stopping.group.close()


def test_an_operator_may_have_the_whole_log_mended() -> None:
    """The group stops like after a read that failed, and is repaired."""
    running = FakeRunning()
    life = Life(running, rebuild=FakeRebuild([step(wake_at_ns=FAR_NS)]))
    life.group.mend_all("asked for")
    life.turn()
    assert life.group.state is State.REPAIRING
    assert "asked for" in str(life.group.status().rebuild)


def test_an_empty_log_is_joining_and_a_directory_that_is_not_there_is_waited_for() -> None:
    """Only the peers know the contents; the node retries, and this is not an error."""
    life = Life(
        Broken(State.JOINING, "no peer has said yet which log this is", None),
        FakeRunning(end_index=-1),
    )
    assert (
        life.group.state is State.JOINING and life.turn().wake_at_ns == life.now_ns + OPEN_AGAIN_NS
    )
    life.now_ns += OPEN_AGAIN_NS
    life.turn()
    life.next_job()
    assert life.group.state is State.JOINING and life.group.running.store.log.end_index == -1
    assert life.group.status().state == "joining"


def test_a_stop_in_the_middle_of_a_rebuild_lets_go_of_its_files() -> None:
    """The next start continues; no state is written from a damaged log."""
    rebuild = FakeRebuild([step(wake_at_ns=FAR_NS)])
    running = FakeRunning([DAMAGE])
    life = Life(running, rebuild=rebuild)
    life.turn()
    life.group.close()
    assert running.ended == "abandoned" and rebuild.closed and life.shipping_handler.closed


def test_a_failure_beside_the_turns_reaches_the_open_group_only() -> None:
    """`fail` is for the store that was open; what is being rebuilt has another one."""
    running = FakeRunning()
    life = Life(running)
    life.group.fail(Fenced("the reserve could not be written"))
    with pytest.raises(Fenced, match="reserve"):
        life.turn()
    broken = Life(Broken(State.REPAIRING, "rotten", FakeRebuild([step()])))
    broken.group.fail(Fenced("x"))
    broken.turn()
