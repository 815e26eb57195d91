"""Comparing the replicas of one broker group, and deciding what every flaw means
(docs/architecture.md, The audit).

The replicas are compared up to the highest index on which a majority of the voters agrees by
recomputed chain CRC, and at least up to the highest recorded commit. Every difference up to there
is a finding; entries behind it were never acknowledged to a client.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ledgermq.audit.checks.after_scan import check_log, check_queues
from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.confirmed import agree_by_record, check_leaders
from ledgermq.audit.checks.evidence import (
    check_mark,
    check_point,
    check_snapshot,
    check_state,
    dispatched_too_far,
    entry,
    same_snapshots,
)
from ledgermq.audit.checks.group import MAJORITY, GroupResult
from ledgermq.audit.checks.histories import agree_by_majority, entry_place
from ledgermq.audit.checks.replica import SIZE_KEYS, Replica
from ledgermq.audit.checks.verdicts import settle
from ledgermq.audit.reading.begin import decided
from ledgermq.audit.reading.decode import NOT_JSON
from ledgermq.audit.rules import Flaw


def compare(
    group: str, replicas: Sequence[Replica], lost: Mapping[str, str] | None = None
) -> GroupResult:
    """Judge one broker group whose log files and derived files were all scanned. `lost`: replicas
    that could not be read, and why."""
    result = GroupResult(group, list(replicas), lost=dict(lost or {}))
    trims = decided(
        [one.snapshot for one in replicas if one.snapshot is not None], list(_trims(replicas))
    )
    for one in replicas:
        check_log(one, trims)
        check_queues(one)
    check_identities(result)
    find_voters(result)
    if result.rule == MAJORITY:
        agree_by_majority(result)
        _commits(result)
    else:
        agree_by_record(result)
    check_leaders(result)
    for one in replicas:
        check_mark(one, [other for other in replicas if other is not one])
        check_point(one)
        check_state(one)
        check_snapshot(one)
        if one.state is not None and one.state.unknown:
            result.reasons.append(
                f"group {group}: the state of {one.name} was not derived: {one.state.reason}"
            )
    # Replicas with another history have another state.
    same_snapshots([one for one in replicas if one.name not in result.divergent])
    # With appointed masters, what a replica dispatched is itself the record of what is confirmed.
    whole = (
        result.rule == MAJORITY and not result.missing and not any(one.broken for one in replicas)
    )
    if result.compared is not None and whole:
        # What a running node has applied is committed, even if others are too slow to show it.
        dispatched_too_far(
            replicas,
            max([result.compared, *(one.point.index for one in replicas if one.point is not None)]),
        )
    settle(result)
    note_lag(result)
    _note_begins(result)
    result.findings.sort(
        key=lambda f: (not f.fails, f.replica, f.flaw.file, f.flaw.byte_from, f.flaw.rule)
    )
    return result


# ------------------------------------------------------------------------------------------------------------- who is there


def check_identities(result: GroupResult) -> None:
    """The directories of one group agree about cluster, log and file sizes; a replica has one
    directory; peers met each other's incarnation."""
    known = [one for one in result.replicas if one.identity is not None]
    for key in ("cluster_id", "log_id", *SIZE_KEYS):
        values = Counter(str(one.identity[key]) for one in known if one.identity)
        usual = values.most_common(1)[0][0] if values else ""
        for one in known:
            if one.identity and str(one.identity[key]) != usual:
                one.flaw(
                    "identity.agree",
                    "identity.json",
                    f"{key} is {one.identity[key]}, that of the other replicas is {usual}",
                )
    for one in known:
        if (
            one.identity
            and one.node is not None
            and one.node["cluster_id"] != one.identity["cluster_id"]
        ):
            shared = (
                sum(
                    other.identity["cluster_id"] == one.identity["cluster_id"]
                    for other in known
                    if other.identity
                )
                > 1
            )
            proof = (
                f"node.json says cluster {one.node['cluster_id']}, identity.json"
                f" {one.identity['cluster_id']}"
            )
            # An identity that a peer shares is right.
            file = "node.json" if shared else one.shown("identity.json")
            one.flaws.append(
                Flaw("identity.agree", file, index=None, byte_from=0, byte_to=0, proof=proof)
            )
    seen: dict[str, Replica] = {}
    for one in result.replicas:
        if one.name in seen:
            one.flaw(
                "identity.twice",
                "identity.json",
                f"{seen[one.name].directory} is the directory of replica {one.name} too",
            )
        seen.setdefault(one.name, one)
    named = _named_incarnations(result.replicas)
    for other in known:
        _incarnations(
            result,
            other,
            [one for one in known if other.name in one.peers and one is not other],
            named.get(other.name, set()),
        )


def _incarnations(
    result: GroupResult, other: Replica, witnesses: Sequence[Replica], named: set[str]
) -> None:
    """Find witnesses that contradict what a replica's directory says about itself: several
    witnesses against it are right, a single one is wrong. A directory that is not admitted yet
    accuses no other: its node lost its former directory, and the group must readmit it."""
    assert other.identity is not None
    own = other.identity["incarnation"]
    against = [one for one in witnesses if own not in {one.peers[other.name], *named}]
    if (
        against
        and other.vouched is not True
        and (other.vouched is not None or other.last_index <= 0)
    ):
        result.returned.add(other.name)
        reason = (
            f"its directory {own} is not the one its peers met, and no membership record names"
            " it yet"
        )
        result.reasons.append(
            f"group {result.group}: {other.name} has come back without its data: {reason}; start"
            " the"
            " cluster, let it catch up, audit again"
        )
        return
    if len(against) > 1 and len(against) == len(witnesses):
        met = " and ".join(f"{one.name} met {one.peers[other.name]}" for one in against)
        other.flaw("peers.incarnation", "identity.json", f"its directory is {own}, {met}")
        return
    for one in against:
        one.flaw(
            "peers.incarnation",
            "state/peers.json",
            f"{other.name} was met as {one.peers[other.name]}, its directory is another",
        )


def _named_incarnations(replicas: Iterable[Replica]) -> dict[str, set[str]]:
    """Directories that the log admitted after the one met first: of nodes that joined, or returned
    without their data."""
    incarnations: dict[str, set[str]] = {}
    for one in replicas:
        texts = [body for report in one.reports for _, body in report.memberships]
        values = [one.snapshot.get("members")] if one.snapshot is not None else []
        for text in texts:
            with contextlib.suppress(*NOT_JSON):
                values.append(json.loads(text))
        for value in values:
            for members in (
                (value.get("voters"), value.get("learners")) if isinstance(value, dict) else ()
            ):
                for node, facts in members.items() if isinstance(members, dict) else ():
                    if isinstance(facts, dict) and isinstance(facts.get("incarnation"), str):
                        incarnations.setdefault(node, set()).add(facts["incarnation"])
    return incarnations


def find_voters(result: GroupResult) -> None:
    """The members are those of the last membership record that most replicas hold; the first entry
    of every log is such a record."""
    votes: Counter[_Members] = Counter()
    backed: Counter[_Members] = Counter()
    for one in result.replicas:
        records = [
            record
            for report in one.reports
            for record in report.memberships
            if record[0] <= one.held
        ]
        members = (
            one.snapshot.get("members") if one.begin.index and one.snapshot is not None else None
        )
        if records:
            (backed if one.is_backup else votes)[_members_of(max(records)[1])] += 1
        elif members:
            # The record itself was trimmed.
            (backed if one.is_backup else votes)[_members_in(members)] += 1
        if (
            one.entries
            and not any(index == 0 for index, _ in records)
            and 0 not in one.broken
            and one.reports[0].first_index == 0
        ):
            proof = "the first entry is not a membership record"
            one.flaws.append(
                Flaw(
                    "membership.first",
                    one.reports[0].file,
                    index=0,
                    byte_from=0,
                    byte_to=one.reports[0].first_size,
                    proof=proof,
                )
            )
    # A backup may predate a membership change: it is used only if no replica has a record.
    votes = votes or backed
    if votes:
        present = _present(result, votes)
        result.former = _former(result, present)
        result.voters, result.learners, result.rule = present
        if not result.voters:
            result.reasons.append(f"group {result.group}: the membership record cannot be read")
    else:
        result.reasons.append(
            f"group {result.group}: no membership record tells which replicas exist"
        )
    result.missing = tuple(sorted(set(result.voters) - {one.name for one in result.replicas}))
    for name in result.missing:
        why = result.lost.get(name, "was not given; audit its directory together with the others")
        result.reasons.append(f"group {result.group}: replica {name} {why}")
    for name in sorted(result.lost.keys() - set(result.missing)):
        result.reasons.append(f"group {result.group}: replica {name} {result.lost[name]}")
    for name in (
        sorted({one.name for one in result.replicas} - set(result.voters)) if result.voters else ()
    ):
        if name.endswith(SUFFIX):
            result.learners = (*result.learners, name)
            result.excused.add(name)
            result.notes.append(
                f"group {result.group}: {name} is a backup: it was compared as far as it is, and"
                " counts for no majority"
            )
        elif name in result.learners:
            result.excused.add(name)
            result.notes.append(
                f"group {result.group}: {name} is a learner: it was compared as far as it is, and"
                " counts for no majority"
            )
        elif name in result.former:
            result.learners = (*result.learners, name)
            result.excused.add(name)
            reason = "was a member, and its replica was moved or removed"
            result.notes.append(
                f"group {result.group}: {name} {reason}: it was compared as far as it is, and"
                " counts"
                " for no majority"
            )
        else:
            result.reasons.append(
                f"group {result.group}: {name} is none of the voters {', '.join(result.voters)}; it"
                " was not compared"
            )


_Members = tuple[tuple[str, ...], tuple[str, ...], str]
"""Voters, learners (observers among them), and the rule."""


def _members_of(body: str) -> _Members:
    """The members in a membership record; empty if it cannot be read."""
    try:
        return _members_in(json.loads(body))
    except NOT_JSON:
        return (), (), MAJORITY


def _present(result: GroupResult, votes: Counter[_Members]) -> _Members:
    """What most replicas say; with appointed masters, the newest record that any replica holds,
    because a majority may lag."""
    ruled = [
        (index, _members_of(body)) for one in result.replicas for index, body in _records_of(one)
    ]
    newest = max(ruled)[1] if ruled else ((), (), MAJORITY)
    return newest if newest[2] != MAJORITY and newest[0] else votes.most_common(1)[0][0]


def _former(result: GroupResult, present: _Members) -> set[str]:
    """The members of older membership records: their replica was moved away, or their node
    removed."""
    records = [
        (index, _members_of(body)) for one in result.replicas for index, body in _records_of(one)
    ]
    in_force = max((index for index, members in records if members == present), default=0)
    return {
        name
        for index, members in records
        if index < in_force
        for name in (*members[0], *members[1])
    } - {*present[0], *present[1]}


def _records_of(one: Replica) -> Iterator[tuple[int, str]]:
    yield from (
        record for report in one.reports for record in report.memberships if record[0] <= one.held
    )
    members = one.snapshot.get("members") if one.snapshot is not None else None
    if isinstance(members, dict) and isinstance(members.get("index"), int):
        yield members["index"], json.dumps(members)


def _members_in(value: object) -> _Members:
    """The members in a membership record or a snapshot; before version 3 a snapshot had only a list
    of voters."""
    if isinstance(value, list):
        return tuple(sorted(str(node) for node in value)), (), MAJORITY
    if not isinstance(value, dict) or not isinstance(value.get("voters"), dict):
        return (), (), MAJORITY
    learners = value.get("learners")
    named = tuple(sorted(learners)) if isinstance(learners, dict) else ()
    return tuple(sorted(value["voters"])), named, str(value.get("rule", MAJORITY))


def _trims(replicas: Sequence[Replica]) -> Iterator[dict[str, object]]:
    for _, body in (trim for one in replicas for report in one.reports for trim in report.trims):
        try:
            record = json.loads(body)
        except NOT_JSON:
            continue
        if isinstance(record, dict):
            yield record


def _note_begins(result: GroupResult) -> None:
    """Note what was not checked because it was trimmed."""
    begins = sorted({one.begin.index for one in result.replicas})
    if not begins or begins[-1] == 0:
        return
    span = " and ".join(str(index) for index in begins)
    result.notes.append(
        f"group {result.group}: older entries were trimmed, and that is recorded; the logs begin"
        f" with entries {span}"
    )
    if any(one.begin.index and not one.lows_are_exact for one in result.replicas):
        reason = "a trim was decided that is not carried out everywhere yet"
        result.notes.append(
            f"group {result.group}: {reason}; where a queue begins was taken from the log there"
        )


def _commits(result: GroupResult) -> None:
    """Raise the compared index to the highest recorded commit; if no majority reaches it, committed
    entries are lost."""
    claims: list[int] = [one.point.index for one in result.replicas if one.point is not None]
    for one in result.replicas:
        # A record that the log or the mark of its own directory refutes is a finding there, and no
        # evidence here.
        claimed = [index for index in (one.commit, one.applied) if index is not None]
        claims += [index for index in claimed if not (one.ends_whole and index > one.last_index)]
    result.recorded = max((commit for commit in claims if commit >= 0), default=None)
    if result.recorded is None or result.missing or not result.voters:
        return
    if result.compared is not None and result.compared >= result.recorded:
        return
    agreed = -1 if result.compared is None else result.compared
    slow = {
        one.name
        for one in result.replicas
        if one.awaited is not None and not one.cut_short and one.last_index < result.recorded
    }
    if len(set(result.voters) - slow) < result.majority:
        # A replica that has not applied an entry yet may still hold it.
        return
    # If a majority had the entry, and some of it lost or damaged theirs, then neither the one that
    # still has it nor one that only lags is at fault. Nobody waits for learners and backups before
    # an entry is committed.
    recorded = result.recorded
    members = [one for one in result.replicas if one.name in result.voters]
    # A replica that lost its directory had the entry, too.
    had = [
        one
        for one in members
        if one.last_index >= recorded or one.cut_short or one.name in result.returned
    ]
    sound = [one for one in result.replicas if not one.broken and one.name not in result.divergent]
    whole = [one for one in sound if one.held >= recorded]
    accused = [
        one
        for one in members
        if one not in whole and (one in had or one not in sound or len(had) < result.majority)
    ]
    if len({entry(one, recorded) for one in whole}) > 1:
        # Those that have it hold different entries there, without a majority for any.
        accused = [*whole, *(one for one in members if one not in sound)]
    for one in accused:
        if one.name not in result.returned:
            file, start, end = entry_place(one, min(agreed, one.held) + 1)
            proof = (
                f"index {result.recorded} was recorded as committed, a majority agrees up to"
                f" {agreed} only, this replica holds {one.held}"
            )
            one.flaws.append(
                Flaw(
                    "commit.lost",
                    file,
                    index=min(agreed, one.held) + 1,
                    byte_from=start,
                    byte_to=end,
                    proof=proof,
                )
            )
    if result.compared is not None:
        result.compared = result.recorded


def note_lag(result: GroupResult) -> None:
    """A replica that ends before the compared index without having lost anything only lags. That is
    normal, but equality is not proven."""
    if result.compared is None:
        return
    ahead = [other for other in result.replicas if other.held >= result.compared]
    # Where entries are damaged, or of another history, there may have been messages.
    whole = [other for other in ahead if not other.broken and other.name not in result.divergent]
    for one in result.replicas:
        failed = any(finding.replica == one.name and finding.fails for finding in result.findings)
        if one.held >= result.compared and one.awaited is not None and not failed:
            reached = (
                f"had reached entry {one.last_index} when the marker, entry {one.awaited}, was"
                " waited for"
            )
            result.reasons.append(
                f"group {result.group}: {one.name} {reached}; audit again, or wait longer"
                " (--timeout)"
            )
        if one.held >= result.compared or failed or one.is_backup:
            continue
        count = result.compared - one.held
        lacking = (
            f"{count} {'entry' if count == 1 else 'entries'} before the compared index"
            f" {result.compared}"
        )
        if one.stale_from is not None and one.name not in result.given_up:
            lacking += f" and keeps {one.last_index - one.held} uncommitted of an older leader"
        if one.name in result.given_up:
            lacking += (
                f" and keeps {one.last_index - one.held} that were {result.given_up[one.name]}"
            )
        if whole and _only_elections(whole[0], one.held + 1):
            result.notes.append(
                f"group {result.group}: {one.name} ends {lacking}; they hold election records only,"
                " no message"
            )
            result.excused.add(one.name)
        elif one.name in result.former:
            result.notes.append(
                f"group {result.group}: {one.name} ends {lacking}, as what a member leaves behind"
                " does"
            )
        else:
            result.reasons.append(
                f"group {result.group}: {one.name} ends {lacking}; start the cluster, let it catch"
                " up, audit again"
            )


def _only_elections(ahead: Replica, first: int) -> bool:
    """Whether a replica has only term-start records from an entry on, as when the nodes of a
    cluster stop one after the other."""
    files = [
        report
        for report in ahead.filled
        if report.last_index is not None and report.last_index >= first
    ]
    return all(
        report.election_tail is not None
        and report.election_tail <= max(report.first_index or 0, first)
        for report in files
    )
