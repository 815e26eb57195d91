"""A published checker reads the histories too: Porcupine refuses planted violations, agrees with
our own checker on small histories, and finds the history of a real cluster linearizable, including
a consumer group's committed offset, which our own checker does not read.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.audit.history import NEVER, Read, Send, check_queue
from tests.audit.test_history import histories
from tests.cluster import create_group, leader, target, wait_for
from tests.example_counts import examples
from tests.faults.faulty import TOPIC, faulty, judge, whole
from tests.faults.histories import OPTIONS, Committer, History, Sender
from tests.faults.linearizability import (
    Commit,
    Committed,
    Unavailable,
    Verdict,
    check,
    offset_lines,
    program,
    queue_lines,
)
from tests.faults.test_faults_kill import back

GROUP = "committers"
LONG_S = 30.0
LISTS = 25
"""Small histories in one run of the program."""


@pytest.fixture(scope="module", autouse=True)
def porcupine() -> None:
    try:
        program()
    except Unavailable as reason:
        pytest.skip(str(reason))


def queue_verdict(sends: list[Send], reads: list[Read]) -> Verdict:
    [verdict] = check(queue_lines("q", [sends], [reads]))
    return verdict


def offset_verdict(*seen: Commit | Committed) -> Verdict:
    [verdict] = check(offset_lines("g", [seen]))
    return verdict


GOOD = [Send("a", 0, 2, 0), Send("b", 1, 3, 1), Send("c", 4, 6, 2), Send("d", 5)]
SOUND = [Read(1, 5, 0, ("a",), 1), Read(5, 6, 0, ("a", "b"), 2), Read(7, 8, 0, ("a", "b", "c"), 3)]


def test_a_sound_history_is_accepted() -> None:
    """With sends of unknown outcome: one happened long after its call, one never did."""
    assert queue_verdict(GOOD, SOUND) == Verdict("q", "Ok", 6, 6)
    assert queue_verdict(GOOD, [*SOUND, Read(50, 51, 3, ("d",), 4)]) == Verdict("q", "Ok", 8, 8)


PLANTED = {
    "a lost acknowledged message": (GOOD, [Read(7, 8, 0, ("a", "c"), 2)], "the end 2"),
    "a lost last message": (GOOD, [*SOUND[:2], Read(7, 8, 0, ("a", "b"), 2)], "the end 2"),
    "a duplicate offset": ([*GOOD, Send("e", 5, 6, 2)], SOUND, "offset 2"),
    "a message at two offsets": (GOOD, [Read(7, 8, 0, ("a", "b", "c", "a"), 4)], "client 1 read"),
    "a stale read": (GOOD, [*SOUND, Read(9, 10, 0, ("a", "b"), 2)], "the end 2"),
    "reordered offsets": (
        [Send("a", 0, 1, 1), Send("b", 2, 3, 0)],
        [Read(4, 5, 0, ("b", "a"), 2)],
        '"a" to offset 1',
    ),
    "a message that no client sent": (GOOD, [*SOUND, Read(9, 10, 3, ("x",), 4)], "the end 4"),
    "a message before its send": (GOOD, [Read(1, 3, 0, ("a", "b", "c"), 3)], "the end 3"),
    "a hole": ([Send("a", 0, 1, 0), Send("b", 2, 3, 2)], [], "offset 2"),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_planted_violations_of_a_queue_are_refused(plant: str) -> None:
    sends, reads, stuck = PLANTED[plant]
    verdict = queue_verdict(sends, reads)
    assert verdict.result == "Illegal"
    assert verdict.ordered < verdict.operations and stuck in verdict.stuck, verdict


def test_a_sound_history_of_a_committed_offset_is_accepted() -> None:
    """Also backwards, and with commits of unknown outcome: one happened late, one never did."""
    seen = [
        Committed(-1, 0, 1),
        Commit(9, 1, 2),
        Commit(4, 3, 4),
        Committed(4, 5, 6),
        Commit(7, 5),
        Commit(8, 5),
        Committed(7, 50, 51),
    ]
    assert offset_verdict(*seen) == Verdict("g", "Ok", 6, 6)


PLANTED_OFFSETS = {
    "lost": [Commit(3, 0, 1), Committed(-1, 2, 3)],
    "stale": [Commit(3, 0, 1), Commit(4, 2, 3), Committed(3, 4, 5)],
    "executed twice": [
        Commit(3, 0, 9),
        Committed(3, 1, 2),
        Commit(4, 3, 4),
        Committed(4, 5, 6),
        Committed(3, 7, 8),
    ],
    "late, and executed twice": [
        Commit(3, 0),
        Committed(3, 1, 2),
        Commit(4, 3, 4),
        Committed(4, 5, 6),
        Committed(3, 7, 8),
    ],
    "before its commit": [Committed(3, 0, 1), Commit(3, 2)],
    "never committed": [Commit(3, 0, 1), Committed(5, 0, 1)],
}


@pytest.mark.parametrize("plant", PLANTED_OFFSETS)
def test_planted_violations_of_a_committed_offset_are_refused(plant: str) -> None:
    assert offset_verdict(*PLANTED_OFFSETS[plant]).result == "Illegal"


@settings(max_examples=examples(12))
@given(st.lists(histories(), min_size=LISTS, max_size=LISTS))
def test_agrees_with_our_own_checker(many: list[tuple[list[Send], list[Read]]]) -> None:
    """On small random histories, about as often right as wrong; several in one run of the program,
    each as an object of its own."""
    lines = [
        line
        for number, (sends, reads) in enumerate(many)
        for line in queue_lines(str(number), [sends], [reads])
    ]
    found = {int(verdict.object): verdict.result for verdict in check(lines)}
    assert found == {
        number: "Illegal" if check_queue(*history) else "Ok" for number, history in enumerate(many)
    }


BAD = {
    "a value sent twice": list(queue_lines("q", [[Send("a", 0, 1, 0), Send("a", 2, 3, 1)]], [])),
    "an offset committed twice": list(offset_lines("g", [[Commit(1, 0, 1), Commit(1, 2, 3)]])),
    "an end before the begin": list(queue_lines("q", [[Send("a", 5, 1, 0)]], [])),
    "an answer without an offset": [
        {"object": "q", "kind": "send", "value": "a", "call": 1, "return": 2}
    ],
    "two kinds of objects": [
        *queue_lines("q", [[Send("a", 0, 1, 0)]], []),
        *offset_lines("q", [[Commit(1, 0, 1)]]),
    ],
    "an unknown kind": [{"object": "q", "kind": "ack", "offset": 1, "call": 1, "return": 2}],
    "an unknown field": [{"object": "q", "kind": "commit", "offset": 1, "call": 1, "returned": 2}],
}


@pytest.mark.parametrize("bad", BAD)
def test_a_history_that_cannot_be_checked_has_no_verdict(bad: str) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in BAD[bad])
    done = subprocess.run(
        [program()], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("histories: ")


@pytest.mark.slow
@pytest.mark.verify
def test_killed_and_isolated_leaders(tmp_path: Path) -> None:
    """Senders and readers of a queue, and committers of a consumer group, through all nodes;
    `judge` asks both checkers."""
    with faulty(tmp_path) as cluster:
        create_group(cluster, f"{TOPIC}-committers")
        with History(cluster, TOPIC, readers=2, committers=3) as history:
            for _ in range(3):
                first = leader(cluster)
                cluster.kill(first)
                history.progress()
                back(cluster, first)
                cluster.network.isolate(leader(cluster))
                history.progress()
                cluster.network.heal()
                history.progress()
        seen = [one for committer in history.committers for one in committer.seen]
        assert (
            sum(isinstance(one, Commit) for one in seen)
            > 100
            < sum(isinstance(one, Committed) for one in seen)
        )
        judge(cluster, history)


@pytest.mark.slow
def test_commit_with_a_lost_answer_is_not_repeated(tmp_path: Path) -> None:
    """The node that forwarded it cannot know whether the next commit is there already: it would
    take the committed offset back."""
    with faulty(tmp_path) as cluster:
        create_group(cluster, GROUP)
        leads = leader(cluster)
        forwards = cluster.others(leads)[0]
        direct, forwarded = (Committer(cluster, TOPIC, number, GROUP) for number in range(2))
        with (
            grpc.insecure_channel(target(cluster, leads), options=OPTIONS) as near,
            grpc.insecure_channel(target(cluster, forwards), options=OPTIONS) as far,
        ):
            sender = Sender(cluster, TOPIC, 0)
            assert all(sender.once(near) for _ in range(4)) and forwarded.commit(far, 1)
            cluster.network.block([(leads, forwards)])
            commit = threading.Thread(target=forwarded.commit, args=(far, 3, LONG_S))
            commit.start()
            wait_for(
                lambda: direct.read(near) and direct.seen[-1].offset == 3,
                LONG_S,
                "the commit at the leader",
            )
            assert direct.commit(near, 4) and direct.read(near)
            cluster.network.reset()
            cluster.network.heal()
            commit.join(2 * LONG_S)
            assert not commit.is_alive()
            whole(cluster)
            assert direct.read(near)
        [verdict] = check(offset_lines("committed offset", [direct.seen, forwarded.seen]))
        assert verdict.result == "Ok", (verdict, direct.seen[-3:], forwarded.seen)
        assert forwarded.seen[-1].returned == NEVER, "the call claims to know its outcome"
