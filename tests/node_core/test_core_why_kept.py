"""Every answer of why-kept: kept with its pins, removed with the reason, removed too long ago, and
never existing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.node.broker.parts.retention.retained import TRIMS_KEPT, Retained
from ledgermq.node.replica.retention.retention_rules import Facts, LogFile, Pin, Rules, decide
from ledgermq.node.replica.retention.why_kept import why
from ledgermq.proto.records.control import SealRecord, TrimRecord

SIZE = 1000
NOW = 1_700_000_000_000
RULES = Rules(max_age_ms=1000, max_bytes=0)
OLD, YOUNG = NOW - 5000, NOW
TRIM = TrimRecord(10, SIZE, 1, 7, 0, ((0, "aa"),), "time")


def retained() -> Retained:
    """The first file was trimmed, the second is sealed."""
    found = Retained()
    found.apply_trim(25, NOW, TRIM)
    found.apply_seal(SealRecord(SIZE, 10, 19, 1990, "bb", ("n1", "n3")))
    return found


def answer(
    base: int, *pins: Pin, store_ms: int = OLD, known: Retained | None = None
) -> tuple[str, str, str]:
    known = known or retained()
    files = [
        LogFile(SIZE, SIZE, 10, 19, 1990, 1, 7, store_ms),
        LogFile(2 * SIZE, SIZE, 20, 25, 2500, 1, 7, NOW, sealed=False),
    ]
    found = why(
        base, SIZE, known, decide(RULES, Facts(NOW, files, pins, 0, frozenset(known.seals))), RULES
    )
    return found.reason, found.answer, "\n".join(found.evidence)


@pytest.mark.parametrize(
    ("base", "pins", "store_ms", "reason", "said", "evidence"),
    [
        (-1000, (), OLD, "missing", "No file of this log", "1000 bytes each"),
        (1500, (), OLD, "missing", "No file of this log", "1000 bytes each"),
        (3 * SIZE, (), OLD, "missing", "does not exist and never did", "ends at position 2500"),
        (
            0,
            (),
            OLD,
            "trimmed",
            "was trimmed at 2023-11-14T22:13:20+00:00 because its last message is older",
            "digest of the file: aa",
        ),
        (
            SIZE,
            (),
            OLD,
            "due",
            "goes with the next check",
            "sealed with digest bb as reported by n1, n3",
        ),
        (
            SIZE,
            (),
            YOUNG,
            "young",
            "no configured limit requires its removal",
            "by age it goes after",
        ),
        (
            SIZE,
            (Pin("follower", 0, "n3 is far behind"),),
            OLD,
            "follower",
            "because n3 is far behind",
            "follower: n3 is far behind",
        ),
        (
            SIZE,
            (Pin("follower", 0, "n3 is far", "n3", "it was not heard"),),
            OLD,
            "due",
            "goes",
            "because it was not heard: n3 is far",
        ),
        (2 * SIZE, (), OLD, "active", "not complete yet", "entries 20 to 25"),
    ],
)
def test_answers(
    base: int, pins: tuple[Pin, ...], store_ms: int, reason: str, said: str, evidence: str
) -> None:
    """One sentence, one word, and what proves it."""
    found = answer(base, *pins, store_ms=store_ms)
    assert (
        found[0] == reason and said in found[1] and found[1].endswith(".") and evidence in found[2]
    )


def test_a_trim_out_of_memory_is_still_no_missing_file() -> None:
    """Below the begin of the log nothing is missing, however many trims ago."""
    known = Retained()
    for number in range(1, TRIMS_KEPT + 2):
        base = SIZE * (number - 1)
        known.apply_trim(
            number,
            NOW,
            replace(TRIM, begin_index=number, begin_pos=SIZE * number, files=((base, None),)),
        )
    found = answer(0, known=known)
    assert found[0] == "expired" and known.trim_digest in found[2]
    assert answer(SIZE, known=known)[0] == "trimmed" and "no digest" in answer(SIZE, known=known)[2]
