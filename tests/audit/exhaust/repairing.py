"""Damage, repaired: `ledgermq repair` in this process from the findings of an audit, and what is
wrong with what came of it.

A repair that ends with 0 has to leave directories that a separate audit passes, with the log that
was there before the damage. Any other repair has to give reasons that can be checked here against
the bytes, and may change nothing that it does not mend. A case of the exhaustive run damages one
replica and leaves two intact: whatever these two hold as well has to come back.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ledgermq.audit.cli.report import write_findings
from ledgermq.audit.run.jobs import FAIL, PASS, Audit, audit
from ledgermq.cli import run as command
from tests.audit.exhaust.cases import Case
from tests.audit.exhaust.ground import Changes, Place, image_of
from tests.audit.fuzz.anatomy import Anatomy, Entry, anatomies
from tests.audit.fuzz.clusters import Image

HEADER_BYTES = 48
OWN_WORD = r".*/(hardstate|syncedmark|begin|identity\.json|node\.json|peers\.json|boots\.json)"
"""What only one replica knows: a repair may leave it as it is, and says so."""


@dataclass(frozen=True)
class Attempt:
    """One repair: the audit and all files before it, its exit status, JSON object and messages, the
    audit and all files after it."""

    found: Audit
    status: int
    told: dict[str, Any]
    said: str
    again: Audit
    before: Image
    after: Image


class Trial:
    """A cluster on disk that is damaged, repaired, and put back, case by case."""

    def __init__(self, place: Place) -> None:
        self.place, self.image = place, place.image
        self.replicas = anatomies(place.image)
        self.verdict = audit(place.directories, deep=True).verdict
        """Of the audit before any damage: a cluster with a replica that lags is not PASS."""
        assert self.verdict != FAIL

    def attempt(self, changes: Changes) -> Attempt | None:
        """None where the audit finds nothing to repair."""
        place = self.place
        findings = place.base.parent / f"{place.base.name}-findings"
        with place.restored():
            place.write(changes)
            found, before = audit(place.directories), image_of(place.base)
            if found.verdict != FAIL:
                return None
            write_findings(found, str(findings))
            told, said = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
                status = command(["repair", "--json", "--from-findings", str(findings)])
            again = audit(place.directories, deep=True)
            return Attempt(
                found,
                status,
                json.loads(told.getvalue()),
                said.getvalue(),
                again,
                before,
                image_of(place.base),
            )

    # What is wrong

    def complaint(self, attempt: Attempt) -> str:
        """Nothing if the repair did what it has to do."""
        fails = [finding for finding in attempt.again.findings if finding.fails]
        if attempt.status == 0:
            # A repair may put right as well why the audit was incomplete before the damage.
            if attempt.again.verdict not in (self.verdict, PASS) or fails:
                return (
                    f"0, and an audit says {attempt.again.verdict}:"
                    f" {[f'{one.text}: {one.flaw.proof}' for one in fails]}"
                )
            wrong = [entry for _one, entry, replaced in self._lost(attempt.after) if not replaced]
            if wrong:
                return f"0, and entry {wrong[0].index} is another one in {wrong[0].path}"
        elif attempt.again.verdict != FAIL:
            return f"{attempt.status}, and an audit says {attempt.again.verdict}"
        reasons = [*attempt.told["undecided"], *attempt.told["remaining"]]
        if attempt.status and not reasons:
            return f"{attempt.status}, and no reason"
        return next(
            filter(None, (self._untrue(attempt, left) for left in reasons)), ""
        ) or self._touched(attempt)

    def group(self, path: str) -> list[Anatomy]:
        """The replicas of the broker group that a path belongs to."""
        return [one for one in self.replicas if one.root.rpartition("/")[2] == path.split("/")[1]]

    def held(self, image: Image, path: str, index: int) -> Iterator[tuple[Entry, list[str]]]:
        """The entries at an index of a path's group, one for each history, and who has each of them
        as it was before the damage."""
        group = self.group(path)
        for entry in {
            entry.chain: entry for one in group for entry in one.entries if entry.index == index
        }.values():
            yield entry, [one.node for one in group if self.holds(image, one, entry)]

    def holds(self, image: Image, one: Anatomy, entry: Entry) -> bool:
        """Whether a replica has an entry as it was before the damage."""
        path, span = f"{one.log}/data/{entry.path[-20:]}", slice(entry.at, entry.at + entry.size)
        return image.get(path, b"")[span] == self.image[entry.path][span]

    def _lost(self, after: Image) -> list[tuple[Anatomy, Entry, bool]]:
        """The entries that a replica does not have as before the damage, and whether each rightly
        gave way to another history."""
        lost = [
            (one, entry)
            for one in self.replicas
            for entry in one.entries
            if not self.holds(after, one, entry)
        ]
        return [(one, entry, self._gave_way(after, one, entry)) for one, entry in lost]

    def _gave_way(self, after: Image, one: Anatomy, entry: Entry) -> bool:
        """Whether an entry of a history that a majority contradicts was replaced, and its file is
        kept beside the log."""
        chains = [
            {each.index: each.chain for each in other.entries} for other in self.group(entry.path)
        ]
        own = {each.index: each.chain for each in one.entries}

        def contradicted(index: int) -> bool:
            votes = Counter(chain[index] for chain in chains if index in chain)
            return any(
                chain != own[index] and count > len(chains) // 2 for chain, count in votes.items()
            )

        copy, span = (
            f"{one.root}/state/replaced/{entry.path[-20:]}.",
            slice(entry.at, entry.at + entry.size),
        )
        kept = any(
            path.startswith(copy) and data[span] == self.image[entry.path][span]
            for path, data in after.items()
        )
        return kept and any(contradicted(index) for index in own if index <= entry.index)

    def decides(self, image: Image, path: str, nodes: Collection[str]) -> bool:
        """Whether these replicas are enough to say what a group's log is: a majority, or, in an HA
        group, any of them."""
        group = self.group(path)
        return len(nodes) > (0 if IN_SYNC in image[group[0].entries[0].path] else len(group) // 2)

    def _untrue(self, attempt: Attempt, left: dict[str, str]) -> str:
        """A reason that nothing bears out."""
        path, reason = f"{left['replica']}/{left['file']}", left["reason"]
        for pattern, bears_out in REASONS.items():
            match = re.search(pattern, reason)
            if match is not None:
                return (
                    ""
                    if bears_out(self, attempt, path, *match.groups())
                    else f"not true of {path}: {reason}"
                )
        return f"a reason that nothing checks, of {path}: {reason}"

    def _touched(self, attempt: Attempt) -> str:
        """Files that changed without being mended. A history of a later term takes the term of the
        hard state with it."""
        later = {
            f"{one.log}/hardstate"
            for one, _entry, replaced in self._lost(attempt.after)
            if replaced
        }
        hurt = {finding.replica for finding in attempt.found.findings if finding.fails}
        planned = {one["replica"] for one in attempt.told["directories"]}
        for path in sorted(attempt.before.keys() | attempt.after.keys()):
            was, now = attempt.before.get(path), attempt.after.get(path)
            node, _, name = path.partition("/")
            if was == now or path in later:
                continue
            if node not in planned or node not in hurt:
                return f"{path} changed, and nothing was to be mended there"
            if now != self.image.get(path) and not re.fullmatch(MADE_AGAIN, name):
                return f"{path} changed, and is not what it was before the damage"
        return ""


IN_SYNC = b'"rule":"in-sync"'
MADE_AGAIN = (
    r"(g1|raft|ha)/(abort|checkpoint|consumequeue/.*|index/.*|state/(snapshot|snapshot\.previous|keyindex|bloom/.*|repairs|replaced/.*|digests|scrub)"
    r"|dledger-n\d/(checkpoint|syncedmark|index/.*|data/\d{20}))"
)
"""Files that a repair may leave otherwise than they were: derived ones, and what follows the end of
the log. Entries are looked at one by one."""


def _held_by_nobody(trial: Trial, attempt: Attempt, path: str, index: str) -> bool:
    return not any(nodes for _, nodes in trial.held(attempt.before, path, int(index)))


def _held_by_few(trial: Trial, attempt: Attempt, path: str, index: str) -> bool:
    """Too few have the entry, or any one behind it in this file."""
    later = [
        e.index
        for one in trial.group(path)
        for e in one.entries
        if e.path[-20:] == path[-20:] and e.index >= int(index)
    ]
    return not any(
        trial.decides(attempt.before, path, nodes)
        for at in {*later}
        for _, nodes in trial.held(attempt.before, path, at)
    )


def _is_damaged(trial: Trial, attempt: Attempt, path: str) -> bool:
    return attempt.before.get(path) != trial.image.get(path)


def _is_strange(trial: Trial, attempt: Attempt, path: str) -> bool:
    return path in attempt.before and path not in trial.image


def _file_held_by_nobody(trial: Trial, attempt: Attempt, path: str, base: str) -> bool:
    inside = {
        entry.index
        for one in trial.group(path)
        for entry in one.entries
        if entry.path.endswith(f"/data/{base}")
    }
    return all(_held_by_nobody(trial, attempt, path, str(index)) for index in inside)


def _begins_nowhere(trial: Trial, attempt: Attempt, path: str, base: str) -> bool:
    firsts = {
        entry.index
        for one in trial.group(path)
        for entry in one.entries
        if entry.path.endswith(f"/data/{base}") and not entry.at
    }
    return all(_held_by_nobody(trial, attempt, path, str(index)) for index in firsts)


def _own(trial: Trial, path: str, index: str, node: str) -> Entry:
    return next(
        e
        for one in trial.group(path)
        if one.node == node
        for e in one.entries
        if e.index == int(index)
    )


def _own_and_lost(trial: Trial, attempt: Attempt, path: str, index: str) -> bool:
    """An entry that a minority held, and nobody does any more."""
    lost = _own(trial, path, index, path.partition("/")[0])
    held = {entry.chain: nodes for entry, nodes in trial.held(trial.image, path, int(index))}
    now = {entry.chain: nodes for entry, nodes in trial.held(attempt.before, path, int(index))}
    return not now[lost.chain] and not trial.decides(attempt.before, path, held[lost.chain])


def _ends_unknown(trial: Trial, attempt: Attempt, path: str, base: str) -> bool:
    """The next file begins on too few replicas as it did."""
    group = trial.group(path)
    names = {one.node: f"{one.log}/data/{int(base) + one.data_bytes:020d}" for one in group}
    heads = {node: trial.image.get(name, b"")[:HEADER_BYTES] for node, name in names.items()}
    nodes = [
        node
        for node, name in names.items()
        if any(heads[node]) and attempt.before.get(name, b"")[:HEADER_BYTES] == heads[node]
    ]
    return not trial.decides(attempt.before, path, nodes)


def _parts(trial: Trial, attempt: Attempt, path: str, index: str, node: str) -> bool:
    """A replica follows a history of its own at this entry."""
    own = _own(trial, path, index, node)
    return any(
        entry.chain == own.chain and len(nodes) == 1
        for entry, nodes in trial.held(trial.image, path, int(index))
    )


def _is_unmarked(trial: Trial, attempt: Attempt, path: str) -> bool:
    log = path.partition("/data/")[0]
    return attempt.before.get(f"{log}/syncedmark") != trial.image[f"{log}/syncedmark"]


def _something_stays(trial: Trial, attempt: Attempt, path: str) -> bool:
    """Something else of this replica is left as it is."""
    root = "/".join(path.split("/")[:2])
    left = [*attempt.told["undecided"], *attempt.told["remaining"]]
    others = [one for one in left if not re.search(CONSEQUENCES, one["reason"])]
    return any(f"{one['replica']}/{one['file']}".startswith(root) for one in others)


CONSEQUENCES = r"after the rest of this replica is repaired|^still "
"""Reasons that say of a file that something else is left; what an audit goes on to find, too."""
REASONS: dict[str, Callable[..., bool]] = {
    r"no replica holds a proven first entry of the log file (\d+)": _begins_nowhere,
    r"no majority tells the last entry of the log file (\d+)": _ends_unknown,
    r"entry (\d+) of (n\d) does not continue the entry before it": _parts,
    CONSEQUENCES: _something_stays,
    r"entry (\d+) is not held by a majority, and no other replica can supply it": _own_and_lost,
    r"no replica holds a proven entry of the log file (\d+)": _file_held_by_nobody,
    r"the synced mark names entry \d+, and no replica holds entry (\d+)": _held_by_nobody,
    r"no replica holds entry (\d+) as the chain of a majority proves it": _held_by_nobody,
    r"no majority holds entry (\d+) or one behind it in this file": _held_by_few,
    r"only this replica knows|no other directory has a copy of": _is_damaged,
    r"no intact file here tells where its log begins": _is_damaged,
    r"the log has no file of this name": _is_strange,
    r"without a synced mark it is unknown where this log ends": _is_unmarked,
}
"""What a repair may give as a reason, and what bears it out."""


# ------------------------------------------------------------------------------------------------------------------------ one replica


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of a case. `status` is −1 where the audit found nothing to repair."""

    status: int
    complaint: str = ""
    told: str = ""


def repair(trial: Trial, case: Case, changes: Changes) -> Repair:
    """Audit, repair, audit again; the cluster is as before afterwards."""
    attempt = trial.attempt(changes)
    if attempt is None:
        return Repair(-1)
    return Repair(attempt.status, _complaint(trial, case, attempt), attempt.said)


def _complaint(trial: Trial, case: Case, attempt: Attempt) -> str:
    own = [
        path
        for path in sorted(trial.image)
        if path.startswith(f"{case.node}/") and re.fullmatch(r".*/data/\d{20}", path)
    ]
    others = [
        path
        for path in own
        if any(trial.image[path]) and attempt.after.get(path) != trial.image[path]
    ]
    if attempt.status == 0 and others:
        return f"exit 0, and other bytes in {', '.join(others)}"
    if attempt.status and not re.fullmatch(OWN_WORD, case.path):
        reasons = [
            left["reason"] for left in (*attempt.told["undecided"], *attempt.told["remaining"])
        ]
        return f"exit {attempt.status} although two replicas are intact: {reasons[:3]}"
    strange = [
        path
        for path, data in attempt.after.items()
        if not path.startswith(f"{case.node}/") and attempt.before.get(path) != data
    ]
    return f"changes {', '.join(strange)} of other nodes" if strange else trial.complaint(attempt)
