"""What the Raft paper claims (extended version, 2014; *D* is Ongaro's dissertation), claim by
claim, against the cores themselves.

`CLAIMS` is the list, with the test or the golden scenario that holds each; many live in
`test_raft_paper.py`, those that need a whole cluster, or all cases of something, live here. Where
LedgerMQ departs from the paper (docs/divergence.md) the test shows the departure.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations, product
from pathlib import Path
from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.election import Election
from ledgermq.raft.follower import chain_question
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, Extent, VoteReply, VoteRequest
from tests.raft.memory_cluster import Cluster, Entry, Member, Packet
from tests.raft.scenario import CarefulMember, Scenario
from tests.raft.test_raft_cluster import VotesForAnyone
from tests.raft.test_raft_paper import LATER, append, core, follow, leader

PAPER, CLUSTER, TRIMMED = "test_raft_paper", "test_raft_cluster", "test_raft_trimmed"
HERE = "test_raft_claims"
MEMBERS, MODEL, READS = "test_raft_members", "test_raft_members_model", "test_raft_reads"
CLAIMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "figure 3",
        "election safety",
        (
            f"{HERE}.test_the_five_properties_of_figure_3_hold",
            f"{HERE}.test_election_safety_in_every_order_of_requests",
        ),
    ),
    (
        "figure 3",
        "leader append-only",
        (
            f"{HERE}.test_the_five_properties_of_figure_3_hold",
            f"{HERE}.test_a_leader_never_cuts_its_own_log",
        ),
    ),
    (
        "figure 3",
        "log matching",
        (
            f"{HERE}.test_the_five_properties_of_figure_3_hold",
            f"{HERE}.test_log_matching_is_by_chain_too",
        ),
    ),
    (
        "figure 3",
        "leader completeness",
        (f"{HERE}.test_the_five_properties_of_figure_3_hold", f"{HERE}.test_5_4_1_in_all_cases"),
    ),
    (
        "figure 3",
        "state machine safety",
        (
            f"{HERE}.test_the_five_properties_of_figure_3_hold",
            f"{CLUSTER}.test_random_faults_break_no_invariant_and_healing_brings_progress",
        ),
    ),
    ("§5.1", "the larger term wins", (f"{PAPER}.test_5_1_a_higher_term_makes_a_leader_step_down",)),
    (
        "§5.1",
        "stale requests are rejected",
        (
            f"{PAPER}.test_5_1_requests_of_an_older_term_are_rejected_with_the_present_one",
            "stale_leader.txt",
        ),
    ),
    ("§5.1", "terms only rise", (f"{HERE}.test_the_five_properties_of_figure_3_hold",)),
    (
        "§5.2",
        "a timeout begins an election",
        (f"{PAPER}.test_5_2_a_follower_without_a_leader_starts_an_election", "election.txt"),
    ),
    ("§5.2", "a majority elects", (f"{PAPER}.test_5_2_a_majority_of_votes_makes_a_leader",)),
    (
        "§5.2",
        "one vote per term",
        (
            f"{PAPER}.test_5_2_one_vote_per_term_first_come_first_served",
            f"{PAPER}.test_5_2_a_vote_survives_a_restart",
        ),
    ),
    (
        "§5.2",
        "votes are durable first",
        (f"{PAPER}.test_5_2_the_vote_is_durable_before_the_answer",),
    ),
    (
        "§5.2",
        "a candidate yields to a leader",
        (f"{PAPER}.test_5_2_a_candidate_that_hears_the_leader_follows_it",),
    ),
    (
        "§5.2",
        "split votes resolve",
        (
            f"{HERE}.test_5_2_split_votes_resolve",
            f"{PAPER}.test_5_2_election_timeouts_are_spread",
            "split_vote.txt",
        ),
    ),
    (
        "§5.3",
        "consistency check",
        (f"{PAPER}.test_5_3_an_append_after_an_unknown_entry_is_rejected", "figure7.txt"),
    ),
    (
        "§5.3",
        "back-off",
        (
            f"{HERE}.test_5_3_any_two_logs_become_one",
            f"{PAPER}.test_5_3_backing_off_takes_one_round_per_term_not_per_entry",
        ),
    ),
    (
        "§5.3",
        "conflicts are cut",
        (f"{PAPER}.test_5_3_conflicting_entries_are_cut_and_replaced", "divergence.txt"),
    ),
    ("§5.3", "what is there stays", (f"{PAPER}.test_5_3_entries_already_there_are_kept",)),
    (
        "§5.3",
        "commit by majority",
        (f"{PAPER}.test_5_3_the_leader_pushes_at_once_and_commits_on_durable_copies",),
    ),
    (
        "§5.4.1",
        "up-to-date rule",
        (
            f"{HERE}.test_5_4_1_in_all_cases",
            f"{PAPER}.test_5_4_1_only_an_up_to_date_candidate_gets_a_vote",
        ),
    ),
    (
        "§5.4.2",
        "no counting of earlier terms",
        (f"{HERE}.test_5_4_2_figure_8", "figure8.txt", "figure8e.txt", "old_term.txt"),
    ),
    (
        "§5.5",
        "retries are idempotent",
        (
            f"{HERE}.test_5_5_replayed_conversation_leaves_the_state_unchanged",
            f"{PAPER}.test_5_5_repeated_messages_are_idempotent",
        ),
    ),
    (
        "§5.6",
        "timing",
        (
            f"{HERE}.test_5_6_late_heartbeats_keep_a_leader",
            f"{PAPER}.test_impossible_periods_are_refused",
        ),
    ),
    (
        "D §4.1",
        "one server at a time",
        (
            f"{MEMBERS}.test_4_1_a_change_moves_one_server",
            f"{MODEL}.test_changes_break_no_invariant_and_healing_brings_progress",
        ),
    ),
    (
        "D §4.1",
        "in effect when appended, undone when cut",
        (f"{MEMBERS}.test_4_1_a_follower_follows_the_configuration_of_its_log",),
    ),
    (
        "D §4.1",
        "the next waits for the commit",
        (f"{MEMBERS}.test_4_1_the_next_change_waits_for_the_commit_of_the_one_before",),
    ),
    (
        "D §4.1",
        "an entry of the own term first",
        (f"{MEMBERS}.test_4_1_no_change_before_an_entry_of_the_own_term_is_committed",),
    ),
    (
        "D §4.1",
        "requests of strangers",
        (f"{MEMBERS}.test_4_1_requests_are_heard_from_servers_that_the_own_configuration_lacks",),
    ),
    (
        "D §4.2.1",
        "catching up",
        (f"{MEMBERS}.test_4_2_1_a_learner_is_promoted_once_it_has_caught_up",),
    ),
    (
        "D §4.2.2",
        "removing the leader",
        (f"{MEMBERS}.test_4_2_2_removed_leader_leads_uncounted_until_the_commit",),
    ),
    ("D §4.2.3", "removed servers", (f"{MEMBERS}.test_4_2_3_removed_servers_cannot_disturb",)),
    (
        "D §6.4",
        "ReadIndex",
        (
            f"{READS}.test_6_4_a_read_waits_for_a_round_that_began_after_it",
            f"{READS}.test_6_4_no_read_is_stale_in_any_random_life",
        ),
    ),
    (
        "D §6.4.1",
        "no reads by a lease",
        (f"{READS}.test_6_4_1_leader_with_a_stopped_clock_answers_no_read_by_recent_contact",),
    ),
    ("§6", "membership entries", (f"{HERE}.test_6_membership_entries_begin_with_a_proposal",)),
    (
        "§7",
        "a trimmed log",
        (
            f"{TRIMMED}.test_follower_accepts_ranges_below_its_begin",
            "trimmed.txt",
            "left_behind.txt",
        ),
    ),
    (
        "§8",
        "a new leader learns what is committed",
        (f"{HERE}.test_8_new_leader_learns_the_commit_index_with_its_first_entry",),
    ),
    (
        "D §4.2.3",
        "disruptive servers",
        (
            f"{PAPER}.test_6_4_1_a_voter_that_hears_a_leader_refuses",
            "stickiness.txt",
            "one_way.txt",
        ),
    ),
    (
        "D §6.2",
        "check-quorum",
        (f"{PAPER}.test_6_2_a_leader_without_a_quorum_steps_down", "check_quorum.txt"),
    ),
    (
        "D §9.6",
        "pre-vote",
        (f"{PAPER}.test_9_6_pre_vote_leaves_term_vote_and_timer_unchanged", "partition.txt"),
    ),
    (
        "D §10.2.1",
        "writing beside sending",
        (f"{PAPER}.test_5_3_the_leaders_own_disk_is_not_needed_for_a_majority",),
    ),
)


@pytest.mark.parametrize(
    ("section", "claim", "held_by"),
    CLAIMS,
    ids=[f"{section} {claim}" for section, claim, _ in CLAIMS],
)
def test_every_claim_names_a_test_that_cites_its_section(
    section: str, claim: str, held_by: tuple[str, ...]
) -> None:
    """The list above names tests and scenarios that exist, and at least one of them cites the
    section (§)."""
    cited = section.removeprefix("D ")
    words = []
    for name in held_by:
        if name.endswith(".txt"):
            words.append((Path(__file__).parent / "scenarios" / name).read_text())
        else:
            module, _, test = name.partition(".")
            words.append(getattr(importlib.import_module(f"tests.raft.{module}"), test).__doc__)
    assert any(cited in text.lower() for text in words), (claim, cited)


class PaperCluster(Cluster):
    """The random cluster under the five properties of figure 3, each in the paper's words over
    whole logs, instead of its own checks."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.elected: dict[int, str] = {}
        self.leader_logs: dict[tuple[str, int], list[Entry]] = {}
        self.applied: dict[int, tuple[Entry, int]] = {}
        self.terms: dict[str, int] = {}

    def check(self, member: Member) -> None:
        member.core.check_invariants()
        log, term = member.disk.written, member.core.term
        assert self.terms.get(member.name, 0) <= term, "§5.1: a term fell"
        self.terms[member.name] = term
        if member.core.role is Role.LEADER:
            self.check_leader(member.name, log, term)
        self.check_matching(member)
        for index in range(member.core.commit_index + 1):
            entry, _ = self.applied.setdefault(index, (log[index], term))
            assert entry == log[index], (
                f"state machine safety: {member.name} applies another entry {index}"
            )

    def check_leader(self, name: str, log: list[Entry], term: int) -> None:
        assert self.elected.setdefault(term, name) == name, (
            f"election safety: two leaders of term {term}"
        )
        before = self.leader_logs.get((name, term), [])
        assert log[: len(before)] == before, (
            f"leader append-only: {name} changed its log in term {term}"
        )
        self.leader_logs[name, term] = list(log)
        for index, (entry, committed_in) in self.applied.items():
            if committed_in < term:
                assert index < len(log) and log[index] == entry, (
                    f"leader completeness: leader {name} of term {term} lacks {index}"
                )

    def check_matching(self, member: Member) -> None:
        mine = member.disk.written
        for other in self.members.values():
            both = min(len(mine), len(other.disk.written))
            same = next(
                (i for i in reversed(range(both)) if mine[i][0] == other.disk.written[i][0]), -1
            )
            assert mine[: same + 1] == other.disk.written[: same + 1], (
                f"log matching: {member.name} and {other.name} up to {same}"
            )


@pytest.mark.parametrize(("size", "seeds"), [(3, 40), (4, 10), (5, 20)])
def test_the_five_properties_of_figure_3_hold(size: int, seeds: int) -> None:
    """Figure 3 (and §5.1: terms only rise), after every event of random lives with losses, crashes
    and partitions."""
    applied = 0
    for seed in range(seeds):
        cluster = PaperCluster(size, seed)
        for _ in range(500):
            cluster.step()
        cluster.heal()
        applied += len(cluster.applied)
    assert applied > 6 * seeds


class VotesTwiceElection(Election):
    """Planted: a follower gives its vote to the last candidate that asks."""

    def on_vote_request(self, request: VoteRequest, now_ns: int) -> None:
        if self.role is Role.FOLLOWER:
            self.voted_for = None
        super().on_vote_request(request, now_ns)


class VotesTwice(Core):
    """It has that."""

    election_type = VotesTwiceElection


@pytest.mark.parametrize(
    ("planted", "property_"),
    [(VotesForAnyone, "leader completeness|state machine safety"), (VotesTwice, "election safety")],
)
def test_the_five_properties_notice_a_broken_rule(planted: type[Core], property_: str) -> None:
    """Figure 3: without the restriction of §5.4.1, or with two votes in one term (§5.2), a property
    falls."""
    member = type("BrokenMember", (Member,), {"core_type": planted, "keeps_votes": False})
    broken = type("BrokenCluster", (PaperCluster,), {"member_type": member})

    def lives() -> None:
        for seed in range(200):
            cluster = broken(3, seed)
            for _ in range(2000):
                cluster.step()
                cluster.fences.clear()

    with pytest.raises(AssertionError, match=property_):
        lives()


def test_election_safety_in_every_order_of_requests() -> None:
    """Figure 3, §5.2: two candidates of one term and three voters, each of which receives the
    requests in either order, or only one of them: the candidates never both get a majority of the
    five."""
    names = ("a", "b", "c", "d", "e")
    orders = [("a", "b"), ("b", "a"), ("a",), ("b",), ()]
    outcomes = set()
    for heard in product(orders, repeat=3):
        candidates = {
            name: Core(
                RaftConfig(name, names, 1), LogView([(0, 0)], 0), HardState(1), Random(1), 0, 0
            )
            for name in ("a", "b")
        }
        for raft in candidates.values():
            raft.tick(LATER)
            for voter in ("c", "d"):
                raft.step(
                    VoteReply(sender=voter, to=raft.config.node, term=2, pre=True, granted=True),
                    LATER,
                )
            raft.take(LATER)
            assert (raft.term, raft.voted_for) == (2, raft.config.node)
        for voter, order in zip(names[2:], heard, strict=True):
            raft = Core(
                RaftConfig(voter, names, 1), LogView([(0, 0)], 0), HardState(1), Random(1), 0, 0
            )
            for candidate in order:
                raft.step(
                    VoteRequest(
                        sender=candidate, to=voter, term=2, pre=False, last_index=0, last_term=0
                    ),
                    LATER,
                )
                for reply in raft.take(LATER).messages:
                    candidates[candidate].step(reply, LATER)
        outcomes.add(
            "".join(sorted(name for name, raft in candidates.items() if raft.role is Role.LEADER))
        )
    assert outcomes == {"", "a", "b"}


def test_a_leader_never_cuts_its_own_log() -> None:
    """Figure 3, leader append-only (§5.3). What contradicts a leader within its term is a fence (a
    departure: the paper knows no lying peers); in a later term it follows first, and then it may
    cut."""
    raft = leader([1, 1])
    raft.appended(Extent(3, 5, 2, 300))
    raft.step(append(1, 1, 1, term=2), LATER)
    effects = raft.take(LATER)
    assert effects.fence is not None and effects.writes.truncate_from is None
    raft = leader([1, 1])
    raft.appended(Extent(3, 5, 2, 300))
    raft.take(LATER)
    raft.step(append(2, 1, 1, term=3), LATER)
    assert raft.role is Role.FOLLOWER
    assert raft.take_writes().truncate_from == 3


def test_log_matching_is_by_chain_too() -> None:
    """Figure 3, log matching (§5.3). The departure: equal index and term with another chain CRC is
    not taken for a match, it fences."""
    for agree in (True, False):
        raft = core([1, 1])
        message = append(2, 1, 1)
        assert chain_question(raft.log, message) == 2
        raft.step(message, 0, chains_agree=agree)
        if raft.take_writes().append is not None:
            raft.append_written()
        assert (raft.take(0).fence is None, raft.log.end_index) == (
            (True, 3) if agree else (False, 2)
        )


def test_5_2_split_votes_resolve() -> None:
    """§5.2: members that start at the same time with 10 ms of latency elect a leader, nearly always
    among the first candidates, and never need many terms, because timers are randomised."""
    terms = []
    for seed in range(60):
        size = 3 + seed % 3
        chance = Random(seed)
        names = tuple(f"n{i}" for i in range(size))
        members = {
            name: CarefulMember(
                name, names, chance, Timing(election_min_ns=400 * MS, election_max_ns=500 * MS)
            )
            for name in names
        }
        wire: list[Packet] = []
        for now_ms in range(0, 20_000, 10):
            late, wire = wire, []
            for packet in late:
                members[packet.message.to].step(packet, now_ms * MS)
            for member in members.values():
                member.core.tick(now_ms * MS)
                wire += member.take(now_ms * MS)[1]
            if any(member.core.role is Role.LEADER for member in members.values()):
                break
        else:
            raise AssertionError(f"no leader with seed {seed}")
        terms.append(max(member.core.term for member in members.values()))
    assert max(terms) <= 4 and max(terms) > 1 and sum(term == 1 for term in terms) > 40, terms


def logs(longest: int, terms: int) -> list[tuple[int, ...]]:
    """Every log whose terms never fall."""
    return [
        log
        for length in range(longest + 1)
        for log in combinations_with_replacement(range(1, terms + 1), length)
    ]


def match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two logs can exist in one cluster: what is equal at an index is equal before it."""
    same = [i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a == b]
    return not same or one[: same[-1] + 1] == other[: same[-1] + 1]


def test_5_3_any_two_logs_become_one() -> None:
    """§5.3: from any two logs that can meet, the follower's becomes the leader's, entry by entry;
    the leader asks at most once per term that they do not share (a departure the paper only
    sketches), and the follower keeps everything in common."""
    pairs = [
        (mine, theirs) for mine, theirs in product(logs(3, 3), repeat=2) if match(mine, theirs)
    ]
    assert len(pairs) > 150
    for mine, theirs in pairs:
        play = Scenario()
        play.run(["cluster 3"])
        if mine:
            play.run([f"logs n1 {' '.join(map(str, mine))}"])
        if theirs:
            play.run([f"logs n2 {' '.join(map(str, theirs))}"])
        play.run(["term n1 3", "cut n2 n3", "timeout n1", "deliver"])
        if play.members["n1"].core.role is not Role.LEADER:
            play.run(["timeout n1", "deliver"])
        trace = play.run(
            [
                "propose n1 1",
                "deliver",
                "sync",
                "deliver",
                "wait 100",
                "tick n1",
                "deliver",
                "sync",
                "deliver",
            ]
        ).splitlines()
        one, other = play.members["n1"], play.members["n2"]
        assert one.core.role is Role.LEADER and one.core.term > 3
        assert other.disk.written == one.disk.written, (mine, theirs)
        assert one.core.commit_index == other.core.commit_index == len(mine) + 1, (mine, theirs)
        assert sum("n2->n1" in line and "rejected" in line for line in trace) <= len(
            set(theirs) ^ set(mine)
        ), (mine, theirs, trace)


def test_5_4_1_in_all_cases() -> None:
    """§5.4.1: every log of up to three entries against every end of a candidate's: the later last
    term, and among equals the longer log, is at least as up to date; the vote and the pre-vote
    (dissertation §9.6) look alike. Figure 3's leader completeness rests on it."""
    for ours, last_index, last_term, pre in product(logs(3, 3), range(5), range(5), (True, False)):
        raft = core(list(ours), term=4)
        raft.step(
            VoteRequest(
                sender="b", to="a", term=5, pre=pre, last_index=last_index, last_term=last_term
            ),
            LATER,
        )
        (reply,) = raft.take(LATER).messages
        assert isinstance(reply, VoteReply)
        our_term = ours[-1] if ours else 0
        expected = last_index >= len(ours) if last_term == our_term else last_term > our_term
        assert reply.granted is expected, (ours, last_index, last_term, pre)


def terms_of(play: Scenario) -> dict[str, str]:
    return dict(line.split(": ") for line in play.run(["terms"]).splitlines())


def test_5_4_2_figure_8() -> None:
    """§5.4.2, figure 8, step by step: (c) leaves an entry of term 2 durable on a majority and
    uncommitted, so that (d) may replace it; with an entry of its own term as in (e) it is
    committed, and s5 can win no election any more."""
    start = ["cluster s1 s2 s3 s4 s5", *(f"logs s{i} 1" for i in range(1, 6))]
    lead = ["timeout {0}", "deliver"]

    def elect(play: Scenario, name: str) -> None:
        play.run(["wait 900"])
        for _ in range(4):
            if play.members[name].core.role is not Role.LEADER:
                play.run([line.format(name) for line in lead])

    for own_entry in (False, True):
        play = Scenario()
        play.run(start)
        elect(play, "s1")
        play.run(["propose s1 1", "deliver s1->s2", "sync s1 s2", "drop"])  # (a)
        assert terms_of(play) == {"s1": "1 2", "s2": "1 2", "s3": "1", "s4": "1", "s5": "1"}
        play.run(["crash s1", "crash s2"])
        elect(play, "s5")
        play.run(["propose s5 1", "sync s5", "drop"])  # (b)
        assert (play.members["s5"].core.term, terms_of(play)["s5"]) == (3, "1 3")
        play.run(["crash s5", "crash s4", "start s1", "start s2"])
        elect(play, "s1")
        play.run(["deliver", "sync", "deliver", "wait 100", "tick s1", "deliver"])  # (c)
        s1 = play.members["s1"].core
        assert s1.term == 4 and terms_of(play) == {
            "s1": "1 2",
            "s2": "1 2",
            "s3": "1 2",
            "s4": "1",
            "s5": "1 3",
        }
        assert sorted(peer.durable for peer in s1.peers.values()) == [-1, -1, 2, 2] and (
            s1.durable_index,
            s1.commit_index,
        ) == (2, 0)
        if own_entry:  # (e)
            play.run(["propose s1 1", "deliver", "sync", "deliver"])
            assert s1.commit_index == 3
        play.run(["crash s1", "start s4", "start s5"])
        elect(play, "s5")
        if own_entry:
            assert play.members["s5"].core.role is not Role.LEADER
            assert terms_of(play)["s2"] == terms_of(play)["s3"] == "1 2 4"
        else:  # (d)
            play.run(["propose s5 1", "deliver", "sync", "deliver"])
            assert {terms_of(play)[name] for name in ("s2", "s3", "s4", "s5")} == {"1 3 5"}
            assert play.members["s5"].core.commit_index == 3


class Recorded(Scenario):
    """Remembers every packet that ever was on the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: list[Packet] = []

    def take(self, member: Member) -> None:
        before = len(self.wire)
        super().take(member)
        self.ever += self.wire[before:]

    def state(self) -> list[object]:
        members = self.members.values()
        return [
            (
                m.disk.written,
                m.disk.hard_state,
                m.core.role,
                m.core.term,
                m.core.leader,
                m.core.commit_index,
            )
            for m in members
        ]


@pytest.mark.parametrize("order", list(permutations(("n1", "n2", "n3"), 2)), ids="-".join)
def test_5_5_replayed_conversation_leaves_the_state_unchanged(order: tuple[str, str]) -> None:
    """§5.5: two elections, pushes, rejections and commits; then every packet that was ever sent
    arrives once more, in order and then in reverse, and no log, vote, term, role or commit is
    another."""
    first, second = order
    (third,) = {"n1", "n2", "n3"} - {*order}
    play = Recorded()
    play.run(["cluster 3", f"elect {first}", f"propose {first} 3", "deliver", "sync", "deliver"])
    play.run(
        [f"partition {first} | {second} {third}", f"propose {first} 2", f"sync {first}", "wait 900"]
    )
    play.run(
        [
            f"timeout {second}",
            "deliver",
            f"propose {second} 2",
            "deliver",
            "sync",
            "deliver",
            "heal",
        ]
    )
    play.run(
        [
            "wait 100",
            f"tick {second}",
            "deliver",
            "sync",
            "deliver",
            f"propose {second} 1",
            "deliver",
            "sync",
            "deliver",
        ]
    )
    assert play.members[second].core.commit_index == 7 and {
        m.core.commit_index for m in play.members.values()
    } == {7}
    before, packets = [*map(str, play.state())], list(play.ever)
    assert len(packets) > 40 and any(
        isinstance(p.message, Append) and p.message.extent is not None for p in packets
    )
    for packet in [*packets, *reversed(packets)]:
        play.wire.append(packet)
        play.run(["deliver"])
    assert [*map(str, play.state())] == before


def test_5_6_late_heartbeats_keep_a_leader() -> None:
    """§5.6: as long as messages take less than the shortest election timeout minus a heartbeat
    period, no member campaigns; the periods that `Timing` allows leave room for this."""
    timing = Timing()
    chance = Random(6)
    raft = core([1])
    latest = timing.election_min_ns - timing.heartbeat_ns - 1
    arrivals = sorted(beat * timing.heartbeat_ns + chance.randint(0, latest) for beat in range(200))
    for round_, now_ns in enumerate(arrivals, 1):
        raft.tick(now_ns)
        assert raft.role is Role.FOLLOWER
        follow(raft, append(1, 1, round_=round_), now_ns)
        assert raft.wake_at_ns(now_ns) >= now_ns + timing.election_min_ns
    due_ns = raft.wake_at_ns(arrivals[-1])
    raft.tick(due_ns)
    assert raft.role is Role.CANDIDATE and due_ns <= arrivals[
        -1
    ] + timing.election_max_ns + raft.timer.slack_ns(arrivals[-1])


def test_6_membership_entries_begin_with_a_proposal() -> None:
    """§6: the driver of a leader cannot append a membership entry that was not checked."""
    raft = leader()
    with pytest.raises(AssertionError, match="propose_members"):
        raft.appended(Extent(1, 1, 2, 100, membership=True))


def test_8_new_leader_learns_the_commit_index_with_its_first_entry() -> None:
    """§8: a new leader has every committed entry and does not know which they are, until one of its
    own term commits. The departure: the core opens no term with a blank entry; its driver appends a
    term-start record, a message like any other."""
    play = Scenario()
    play.run(
        [
            "cluster 3",
            "elect n1",
            "propose n1 3",
            "deliver",
            "sync",
            "drop n2->n1",
            "deliver",
            "drop",
            "crash n1",
            "wait 900",
        ]
    )
    play.run(["timeout n2", "deliver", "sync", "deliver", "wait 100", "tick n2", "deliver"])
    raft = play.members["n2"].core
    assert (raft.role, raft.term, raft.log.end_index, raft.commit_index) == (Role.LEADER, 2, 4, 1)
    assert terms_of(play)["n2"] == "1 1 1 1"
    play.run(["propose n2 1", "deliver", "sync", "deliver"])
    assert raft.commit_index == 5


def own_tests() -> Iterator[tuple[str, str]]:
    for name, value in globals().items():
        if name.startswith("test_") and value.__module__ == __name__:
            yield name, value.__doc__ or ""


def test_every_test_here_cites_the_paper() -> None:
    """A section (§) or a figure, in the docstring."""
    assert [name for name, doc in own_tests() if "§" not in doc and "igure" not in doc] == []
