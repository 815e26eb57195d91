"""The suite of client records: false receipts and deliveries of a correct log, and true ones of a
log that lost messages.

Every false row must be reported with its number, and no other row. True rows are shuffled, spread
over files of both kinds, repeated, or lack optional fields; none of this may lead to a finding. The
replicas are compared once; a case is a join.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.clients.joining import join_here
from ledgermq.audit.clients.outcome import ClientFiles, check_clients
from ledgermq.audit.run.jobs import Audit, audit, judge
from ledgermq.client.native.consumers import delivery_log
from ledgermq.client.native.producers import receipt_log
from tests.audit.client_cases import FIFO, GROUP, Clients, write_clients
from tests.audit.fuzz.case import Case
from tests.audit.fuzz.damage import DERIVED, DIVERGENCE, EXTRA, MISSING, OPEN, REORDERED
from tests.audit.fuzz.scenario import (
    WHOLE,
    Expected,
    Experiment,
    MakeExperiment,
    Scenario,
    of_place,
)
from tests.audit.log_writer import sealed

Row = dict[str, Any]
RECEIPTS, ACKS = "receipts", "acks"
CLASSES = {
    "client.lost": MISSING,
    "client.twice": EXTRA,
    "client.order": REORDERED,
    "client.receipt": DIVERGENCE,
    "client.phantom": MISSING,
    "client.redelivered": DERIVED,
    "client.delivery": OPEN,
}


def _lie(**change: Callable[[Any], Any]) -> Callable[[Row], None]:
    def lie(row: Row) -> None:
        for key, turn in change.items():
            row[key] = turn(row[key])

    return lie


def _first_range(key: str, more: int) -> Callable[[Row], None]:
    def lie(row: Row) -> None:
        row["ranges"][0][key] += more

    return lie


LIES: dict[str, tuple[str, str, Callable[[Row], None]]] = {
    "receipt: index too high": (
        RECEIPTS,
        "client.receipt",
        _lie(first_index=lambda value: value + 1),
    ),
    "receipt: index too low": (
        RECEIPTS,
        "client.receipt",
        _lie(first_index=lambda value: value - 1),
    ),
    "receipt: other term": (RECEIPTS, "client.receipt", _lie(term=lambda value: value + 1)),
    "receipt: other store time": (
        RECEIPTS,
        "client.receipt",
        _lie(store_ms=lambda value: value + 1),
    ),
    "receipt: other topic": (RECEIPTS, "client.receipt", _lie(topic=lambda value: f"{value}x")),
    "receipt: other queue offset": (RECEIPTS, "client.receipt", _first_range("first_offset", 1)),
    "receipt: other queue": (RECEIPTS, "client.receipt", _first_range("queue", 7)),
    "receipt: more in a queue": (RECEIPTS, "client.receipt", _first_range("count", 1)),
    "receipt: other chain": (RECEIPTS, "client.receipt", _lie(chain_crc=lambda value: value ^ 1)),
    "receipt: without a queue": (RECEIPTS, "client.receipt", _lie(ranges=lambda value: value[1:])),
    "receipt: of nothing": (RECEIPTS, "client.receipt", _lie(count=lambda value: 0)),
    "receipt: unknown class": (RECEIPTS, "client.receipt", _lie(durability=lambda value: "always")),
    "receipt: without a group": (RECEIPTS, "client.receipt", _lie(broker_group=lambda value: None)),
    "receipt: never stored": (
        RECEIPTS,
        "client.lost",
        _lie(first_sequence=lambda value: value + 1_000_000),
    ),
    "receipt: of another producer": (
        RECEIPTS,
        "client.lost",
        _lie(producer_id=lambda value: value + 7),
    ),
    "receipt: of another epoch": (RECEIPTS, "client.lost", _lie(epoch=lambda value: value + 1)),
    "delivery: never stored": (
        ACKS,
        "client.phantom",
        _lie(message_id=lambda value: "nobody-sent-this"),
    ),
    "delivery: from another offset": (ACKS, "client.phantom", _lie(offset=lambda value: value + 1)),
    "delivery: from another queue": (ACKS, "client.phantom", _lie(queue=lambda value: value + 5)),
    "delivery: from another topic": (ACKS, "client.phantom", _lie(topic=lambda value: f"{value}x")),
    "delivery: without an id": (ACKS, "client.delivery", _lie(message_id=lambda value: None)),
    "delivery: without a topic": (ACKS, "client.delivery", _lie(topic=lambda value: None)),
    "delivery: without a time": (ACKS, "client.delivery", _lie(delivered_ms=lambda value: None)),
}
"""The file, the rule that must report the row, and the change of the row."""
CHANGED = {"leave_out": "client.lost", "twice": "client.twice", "swap": "client.order"}
"""Logs in which an acknowledged frame is missing, is stored twice, or is stored after the next
one."""


class Claims(Scenario):
    """A correct or incorrect log, and the files of its clients."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.true = write_clients(base / "true")
        for writer in self.true.writers:
            _make_fifo(writer.root)
        self.groups = audit(self.true.directories).groups
        self.changed: dict[tuple[str, int], tuple[Clients, list[GroupResult]]] = {}
        self.now = self.groups
        self.experiments = {
            **{name: (self._lies(*lie), (1, 2, 3)) for name, lie in LIES.items()},
            **{f"log: {how}": (self._log(how), (1,)) for how in CHANGED},
            "delivery: again after its acknowledgement": (self._again, (1, 2, 3)),
            "delivery: out of order": (self._order, (1,)),
        }
        self.sound = {
            name: partial(self._sound, change)
            for name, change in {
                "rows as they came": lambda rng, receipts, acks: None,
                "rows in any order": lambda rng, receipts, acks: (
                    rng.shuffle(receipts),
                    rng.shuffle(acks),
                ),
                "rows given twice": lambda rng, receipts, acks: (
                    receipts.append(rng.choice(receipts)),
                    acks.append(rng.choice(acks)),
                ),
                "some rows": lambda rng, receipts, acks: (_thin(rng, receipts), _thin(rng, acks)),
                "deliveries without a place": lambda rng, receipts, acks: [
                    row.update(_NOWHERE) for row in acks
                ],
                "deliveries not acknowledged": lambda rng, receipts, acks: [
                    row.update(acknowledged_ms=None) for row in acks
                ],
                "asked for again": _sought,
            }.items()
        }

    def audit(self) -> Audit:
        files = [
            sorted(str(path) for path in self.base.glob(f"{name}*")) for name in (RECEIPTS, ACKS)
        ]
        return judge(self.now, [], 0, check_clients(self.now, ClientFiles.find(*files), join_here))

    def _lies(self, where: str, rule: str, change: Callable[[Row], None]) -> MakeExperiment:
        def act(rng: random.Random, case: Case) -> Experiment:
            kept = {
                RECEIPTS: copy.deepcopy(self.true.receipts),
                ACKS: copy.deepcopy(self.true.deliveries),
            }
            rows = kept[where]
            first = rows.index(of_place(case.place, rows, rng))
            numbers = sorted({first, *rng.sample(range(len(rows)), case.replicas - 1)})
            for at in numbers:
                change(rows[at])
            return self._experiment(rng, kept, [self._expect(rule, at) for at in numbers])

        return act

    def _expect(self, rule: str, at: int) -> Expected:
        return Expected(
            "clients", rule.replace(".", r"\."), frozenset({CLASSES[rule]}), proof=f"row {at + 1}:"
        )

    def _log(self, how: str) -> MakeExperiment:
        """The records of the clients are true, and the log is wrong."""

        def act(rng: random.Random, case: Case) -> Experiment:
            number = of_place(case.place, range(4, 12), rng)
            if (how, number) not in self.changed:
                made = write_clients(self.base / f"{how}-{number}", **{how: number})
                self.changed[how, number] = made, audit(made.directories).groups
            made, groups = self.changed[how, number]
            # If two frames changed places, either may be reported.
            rows = rf"row ({number + 1}|{number + 3}):" if how == "swap" else f"row {number + 1}:"
            wanted = Expected(
                "clients",
                CHANGED[how].replace(".", r"\."),
                frozenset({CLASSES[CHANGED[how]]}),
                proof=rows,
            )
            experiment = self._experiment(
                rng,
                {RECEIPTS: copy.deepcopy(made.receipts), ACKS: copy.deepcopy(made.deliveries)},
                [wanted],
            )
            self.now = groups
            # All messages after the frame have other places than their receipts; and findings about
            # the log itself.
            return Experiment(
                experiment.image,
                experiment.expected,
                also=r"clients client\.(receipt|order|phantom)|n\d .*",
            )

        return act

    def _again(self, rng: random.Random, case: Case) -> Experiment:
        acks = copy.deepcopy(self.true.deliveries)
        count = len(acks)
        first = acks.index(of_place(case.place, acks, rng))
        for row in [
            acks[at] for at in sorted({first, *rng.sample(range(count), case.replicas - 1)})
        ]:
            acks.append(
                {
                    **row,
                    "delivered_ms": row["acknowledged_ms"] + rng.randrange(1, 5000),
                    "attempt": 2,
                }
            )
        expected = [self._expect("client.redelivered", at) for at in range(count, len(acks))]
        return self._experiment(
            rng, {RECEIPTS: copy.deepcopy(self.true.receipts), ACKS: acks}, expected, files=1
        )

    def _order(self, rng: random.Random, case: Case) -> Experiment:
        """A later message of a message group was delivered before an earlier one."""
        acks = copy.deepcopy(self.true.deliveries)
        customer = rng.choice(
            sorted({row["message_group"] for row in acks if row["topic"] == FIFO})
        )
        mine = [row for row in acks if row["message_group"] == customer]
        at = of_place(case.place, range(len(mine) - 1), rng)
        earlier, later = mine[at], mine[at + 1]
        earlier["delivered_ms"], later["delivered_ms"] = (
            later["delivered_ms"],
            earlier["delivered_ms"],
        )
        earlier["acknowledged_ms"] = earlier["delivered_ms"] + 10
        later["acknowledged_ms"] = later["delivered_ms"] + 10
        wanted = Expected("clients", r"client\.order", frozenset({REORDERED}), proof="row ")
        return self._experiment(
            rng, {RECEIPTS: copy.deepcopy(self.true.receipts), ACKS: acks}, [wanted], files=1
        )

    def _sound(
        self,
        change: Callable[[random.Random, list[Row], list[Row]], object],
        rng: random.Random,
        case: Case,
    ) -> Experiment:
        receipts, acks = copy.deepcopy(self.true.receipts), copy.deepcopy(self.true.deliveries)
        change(rng, receipts, acks)
        return self._experiment(rng, {RECEIPTS: receipts, ACKS: acks}, (), verdicts=WHOLE)

    def _experiment(
        self,
        rng: random.Random,
        kept: dict[str, list[Row]],
        expected: Sequence[Expected],
        *,
        files: int = 0,
        verdicts: frozenset[str] = frozenset({"FAIL"}),
    ) -> Experiment:
        """The files for the audit: one of each kind if rows are counted, otherwise any number;
        Parquet or JSON lines."""
        self.now = self.groups
        image = {}
        for name, rows in kept.items():
            parts = 1 if expected or files else rng.choice((1, 1, 2, 3))
            for part in range(parts):
                lines = rng.random() < 0.5
                own = rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]
                image[f"{name}-{part}.{'jsonl' if lines else 'parquet'}"] = _as_file(
                    name, own, lines=lines, group=rng.choice((3, 7, 100))
                )
        return Experiment(image, expected, verdicts=verdicts)


def _as_file(name: str, rows: list[Row], *, lines: bool, group: int) -> bytes:
    if lines:
        plain = [
            {key: part.hex() if isinstance(part, bytes) else part for key, part in row.items()}
            for row in rows
        ]
        return "".join(f"{json.dumps(row)}\n" for row in plain).encode()
    sink = pa.BufferOutputStream()
    schema = receipt_log.schema() if name == RECEIPTS else delivery_log.schema()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, row_group_size=group)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _make_fifo(root: Path) -> None:
    """Make the consumer group a FIFO group in the snapshot."""
    path = root / "state" / "snapshot"
    snapshot = json.loads(path.read_bytes())
    del snapshot["crc32c"]
    path.write_bytes(
        sealed(
            {
                **snapshot,
                "groups": {GROUP: {"ns": "", "name": GROUP, "max_attempts": 16, "fifo": True}},
            }
        )
    )


_NOWHERE = dict.fromkeys(
    ("broker_group", "queue", "offset", "consumer_group", "sought", "acknowledged_ms")
)


def _thin(rng: random.Random, rows: list[Row]) -> None:
    del rows[: rng.randrange(1, len(rows) - 1)]


def _sought(rng: random.Random, receipts: list[Row], acks: list[Row]) -> None:
    row = rng.choice(acks)
    acks.append(
        {
            **row,
            "delivered_ms": row["acknowledged_ms"] + rng.randrange(1, 5000),
            "attempt": 2,
            "sought": True,
        }
    )
