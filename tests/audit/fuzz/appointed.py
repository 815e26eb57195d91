"""The suite of HA groups, whose masters a controller appoints: confirmed entries that are damaged,
discarded, or contradictory.

A confirmed entry may be on one replica only, and a tail that no replica recorded as confirmed may
be lost, so a majority decides nothing. The files come from the fuzzer's own writer of
docs/format.md; `clusters.py` uses the product's core.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES
from tests.audit.fuzz.case import Case
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import DIVERGENCE, EXTRA, MISSING, OPEN, REORDERED, ROT
from tests.audit.fuzz.scenario import (
    SOUND,
    WHOLE,
    Expected,
    Experiment,
    Scenario,
    image_of,
    of_place,
    span,
)
from tests.audit.log_writer import CREATED, RAFT, Message, Placed, Writer, election

FILE_BYTES = 8192
HISTORIES = r"replica\.(divergence|missing|extra|reordered)"
APART = frozenset({DIVERGENCE, MISSING, EXTRA, REORDERED})


def members(rule: str = "in-sync", *, since: int = 0, term: int = 0, observer: str = "") -> Message:
    """A membership record."""
    learners = {observer: {"incarnation": "x", "observer": True}} if observer else {}
    body: dict[str, object] = {
        "v": 3,
        "voters": {name: {} for name in NODES},
        "learners": learners,
        "reason": "",
        "rule": rule,
    }
    body |= {"since": since} | ({"towards": "in-sync"} if rule == "all" else {})
    return Message(
        RAFT, json.dumps(body).encode(), tag="membership", channel=1, term=term, time=CREATED
    )


def forced(epoch: int, node: str, kept: int) -> Message:
    """The record of an unclean election that an operator forced."""
    body = json.dumps({"v": 1, "epoch": epoch, "node": node, "kept": kept}).encode()
    return Message(RAFT, body, tag="forced", term=epoch, time=CREATED)


def messages(epoch: int, count: int, salt: str = "") -> list[Message]:
    """`count` messages of one epoch."""
    bodies = [f"{epoch}-{number}{salt} ".encode() * (9 + number % 7) for number in range(count)]
    return [
        Message("flights", body, number % 3, key=f"k{epoch}-{number}", term=epoch, time=CREATED)
        for number, body in enumerate(bodies)
    ]


@dataclass(frozen=True, slots=True)
class Held:
    """The entries of a replica, and how many of them it knows to be confirmed."""

    told: Sequence[Message]
    confirmed: int
    clean: bool = True


def image(held: Mapping[str, Held]) -> Image:
    """The files of the replicas."""

    def make(base: Path) -> None:
        for name, one in held.items():
            placed(base / name, one.told).finish(committed=one.confirmed - 1, clean=one.clean)

    return image_of(make)


def placed(node: Path, told: Sequence[Message]) -> Writer:
    """A replica with these messages."""
    writer = Writer(node)
    for message in told:
        writer.append(message)
    return writer


class Appointed(Scenario):
    """Three replicas of an HA group. All have the entries of the first master; only `n1` may have
    confirmed more."""

    def __init__(self, base: Path, count: int = 70, more: int = 24) -> None:
        super().__init__(base)
        self.common = [members(), election(1, "n1"), *messages(1, count)]
        self.more = messages(1, more, "more")
        self.experiments = {
            "ha: byte that peers hold": (self._rot, (1, 2, 3)),
            "ha: byte that the master alone holds": (self._lone_rot, (1,)),
            "ha: two masters of one epoch": (self._two_masters, (1,)),
            "ha: one epoch begins twice": (self._begins_twice, (1,)),
            "ha: given up without a word": (self._given_up, (1,)),
            "ha: another confirmed entry": (self._other_entry, (1,)),
            "ha: file removed": (self._file, (1, 2)),
            "ha: end of what is confirmed lost": (self._end_lost, (1,)),
        }
        self.sound = {
            "equal": lambda rng, case: Experiment(
                image(self._all(self.common, len(self.common))), verdicts=WHOLE
            ),
            "with an observer": self._observed,
            "slaves outside the set lag": lambda rng, case: Experiment(
                image(self._alone(rng)), verdicts=SOUND
            ),
            "tail of a former master": lambda rng, case: self._tails(rng, ["n1"]),
            "same tail on two": lambda rng, case: self._tails(rng, ["n2", "n3"]),
            "unclean election": self._unclean,
            "changed over and back": self._changed_over,
        }

    def audit(self) -> Audit:
        names = sorted({path.partition("/")[0] for path in self.image})
        return audit([str(self.base / name) for name in names], deep=True)

    def _all(self, told: Sequence[Message], confirmed: int) -> dict[str, Held]:
        return {name: Held(told, confirmed) for name in NODES}

    def _alone(self, rng: random.Random) -> dict[str, Held]:
        """`n1` confirmed entries that no other replica has."""
        lag = rng.randrange(len(self.more) + 1)
        behind = [*self.common, *self.more[:lag]]
        own = [*self.common, *self.more]
        return {
            "n1": Held(own, len(own)),
            "n2": Held(behind, len(self.common)),
            "n3": Held(self.common, len(self.common)),
        }

    # Healthy variants

    def _observed(self, rng: random.Random, case: Case) -> Experiment:
        told = [members(observer="n4"), *self.common[1:]]
        short = told[: rng.randrange(5, len(told) + 1)]
        return Experiment(
            image({**self._all(told, len(told)), "n4": Held(short, len(short))}), verdicts=SOUND
        )

    def _tails(self, rng: random.Random, names: Sequence[str]) -> Experiment:
        """Tails that only one master wrote and that were never confirmed."""
        later = [
            *self.common,
            election(2, "n2" if "n2" not in names else "n1"),
            *messages(2, rng.randrange(1, 20)),
        ]
        held = self._all(later, len(later))
        tail = [*self.common, *messages(1, rng.randrange(1, 9), "tail")]
        held |= {name: Held(tail, len(self.common), clean=rng.random() < 0.5) for name in names}
        return Experiment(image(held), verdicts=SOUND)

    def _unclean(self, rng: random.Random, case: Case) -> Experiment:
        """An operator forced another master: confirmed entries are discarded, and the log records
        this."""
        kept = len(self.common) - 1
        later = [
            *self.common,
            election(2, "n2"),
            forced(2, "n2", kept),
            *messages(2, rng.randrange(1, 9)),
        ]
        return Experiment(
            image({**self._all(later, len(later)), "n1": self._alone(rng)["n1"]}), verdicts=SOUND
        )

    def _changed_over(self, rng: random.Random, case: Case) -> Experiment:
        count = rng.randrange(1, 30)
        first = [
            members("majority"),
            election(1, "n1"),
            *messages(1, count),
            members("all", term=1),
        ]
        there = [
            *first,
            members(since=len(first) - 1, term=1),
            election(4, "n2"),
            *messages(4, count),
        ]
        back = [
            *there,
            members("all", since=len(first) - 1, term=4),
            members("majority", term=4),
            election(5, "n3"),
            *messages(5, count),
        ]
        told = {"first": first[:-1], "middle": there, "last": back}[case.place]
        return Experiment(image(self._all(told, len(told))), verdicts=WHOLE)

    # Damage

    def _entry(
        self, case: Case, rng: random.Random, told: Sequence[Message], low: int, high: int
    ) -> Placed:
        """An entry between the indexes `low` and `high` of the log of these messages."""
        return of_place(case.place, placed(Path("/probe/n1"), told).entries[low:high], rng)

    def _flip(self, files: Image, name: str, entry: Placed, at: int) -> None:
        path = f"{name}/g1/dledger-{name}/{span(entry, FILE_BYTES)[0]}"
        files[path] = files[path][:at] + bytes([files[path][at] ^ 8]) + files[path][at + 1 :]

    def _rot(self, rng: random.Random, case: Case) -> Experiment:
        """The same byte of a message on several replicas."""
        files, entry = (
            image(self._alone(rng)),
            self._entry(case, rng, self.common, 2, len(self.common) - 2),
        )
        where, start, _ = span(entry, FILE_BYTES)
        at = start + 48 + rng.randrange(entry.size - 48)
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            self._flip(files, name, entry, at)
        classes = frozenset({OPEN} if case.replicas == 3 else {ROT})
        return Experiment(
            files,
            [
                Expected(name, r"entry\..*", classes, where, entry.index, at, at + 1)
                for name in names
            ],
        )

    def _lone_rot(self, rng: random.Random, case: Case) -> Experiment:
        held = self._alone(rng)
        if len(held["n2"].told) == len(held["n1"].told):
            return Experiment(image(held), verdicts=SOUND)
        entry = self._entry(case, rng, held["n1"].told, len(held["n2"].told), len(held["n1"].told))
        files = image(held)
        where, start, _ = span(entry, FILE_BYTES)
        at = start + 48 + rng.randrange(entry.size - 48)
        self._flip(files, "n1", entry, at)
        return Experiment(
            files,
            [Expected("n1", r"entry\..*", frozenset({OPEN, ROT}), where, entry.index, at, at + 1)],
            also=r"n1 commit\.lost",
        )

    def _two_masters(self, rng: random.Random, case: Case) -> Experiment:
        odd = rng.choice(NODES)
        masters = {name: "n2" if name != odd else "n3" for name in NODES}
        held = {
            name: Held([*self.common, election(2, masters[name])], len(self.common))
            for name in NODES
        }
        wanted = Expected(odd, r"term\.leader", frozenset({DIVERGENCE}), index=len(self.common))
        return Experiment(image(held), [wanted], also=rf"{odd} .*")

    def _begins_twice(self, rng: random.Random, case: Case) -> Experiment:
        """The same master began its epoch at another place on one replica."""
        odd = rng.choice(NODES)
        tail = messages(1, rng.randrange(1, 5), "tail")
        held = self._all([*self.common, election(2, "n2")], len(self.common))
        held[odd] = Held([*self.common, *tail, election(2, "n2")], len(self.common))
        wanted = Expected(
            odd, r"term\.leader", frozenset({DIVERGENCE}), index=len(self.common) + len(tail)
        )
        return Experiment(image(held), [wanted], also=rf"{odd} .*")

    def _given_up(self, rng: random.Random, case: Case) -> Experiment:
        """The result of an unclean election, without its record."""
        later = [*self.common, election(2, "n2"), *messages(2, rng.randrange(2, 9))]
        held = {**self._all(later, len(later)), "n1": self._alone(rng)["n1"]}
        entry = placed(Path("/probe/n1"), held["n1"].told).entries[len(self.common)]
        where, start, stop = span(entry, FILE_BYTES)
        return Experiment(
            image(held),
            [Expected("n1", HISTORIES, APART, where, entry.index, start, stop)],
            also=r"n1 .*",
        )

    def _other_entry(self, rng: random.Random, case: Case) -> Experiment:
        """One replica recorded a different confirmed entry than the two others."""
        odd, entry = rng.choice(NODES), self._entry(case, rng, self.common, 2, len(self.common))
        told = list(self.common)
        body = bytes([entry.message.body[0] ^ 1]) + entry.message.body[1:]
        told[entry.index] = Message(
            "flights", body, entry.message.queue, key=entry.message.key, term=1, time=CREATED
        )
        held = self._all(self.common, len(self.common)) | {odd: Held(told, len(told))}
        where, start, stop = span(entry, FILE_BYTES)
        return Experiment(
            image(held),
            [Expected(odd, HISTORIES, APART, where, entry.index, start, stop)],
            also=rf"{odd} .*",
        )

    def _file(self, rng: random.Random, case: Case) -> Experiment:
        files = image(self._alone(rng))
        bases = sorted(
            {
                entry.pos - entry.pos % FILE_BYTES
                for entry in placed(Path("/probe/n1"), self.common).entries
            }
        )
        base = of_place(case.place, bases, rng)
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            # The preallocated rest of the last file is removed too.
            gone = [
                p
                for p in files
                if p.startswith(f"{name}/g1/dledger-{name}/data/")
                and int(p[-20:]) >= base
                and base == bases[-1]
            ]
            for path in gone or [f"{name}/g1/dledger-{name}/data/{base:020d}"]:
                del files[path]
        expected = [
            Expected(name, r"file\.missing|mark\.end", frozenset({MISSING})) for name in names
        ]
        return Experiment(files, expected, also=rf"({'|'.join(names)}) .*")

    def _end_lost(self, rng: random.Random, case: Case) -> Experiment:
        """The only replica with the newest confirmed entries reads them as zeros."""
        held = self._alone(rng)
        files = image(held)
        entry = self._entry(case, rng, held["n1"].told, len(held["n2"].told), len(held["n1"].told))
        if len(held["n2"].told) == len(held["n1"].told):
            return Experiment(files, verdicts=SOUND)
        for path in [path for path in files if path.startswith("n1/g1/dledger-n1/data/")]:
            keep = min(max(entry.pos - int(path[-20:]), 0), FILE_BYTES)
            files[path] = files[path][:keep].ljust(FILE_BYTES, b"\0")
        return Experiment(
            files,
            [Expected("n1", r"mark\.end", frozenset({MISSING}), index=entry.index)],
            also=r"n1 .*",
        )
