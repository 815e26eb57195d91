"""The broker's kernels and the compiled decoder of the audit: two modules, so that an error in one
of them is found by the other.

Each case breaks one rule of docs/format.md in one entry, and makes all checksums that do not belong
to that rule fit. Then one decoder gets a planted error: it does not see that rule. The other
decoder has to find the entry alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledgermq.audit.reading.native import KERNEL
from ledgermq.audit.reading.walk import LogFile
from ledgermq.proto import kernels
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from tests.audit.both_scans import built, report_of
from tests.audit.log_writer import Writer
from tests.audit.test_audit_native import Blind, one_file, remade, varied

ROOT = Path(__file__).resolve().parents[2]
FIRST, ALTERED = 2, 5
"""Entries by index: the received range begins with the first, behind the membership and the
election; the other is altered."""
RULES = {
    "magic": (3, "chain"),
    "size": (7, "chain"),
    "index": (15, "chain"),
    "term": (23, "chain"),
    "position": (31, "chain"),
    "channel": (34, "chain"),
    "chain CRC": (38, ""),
    "body CRC": (42, "chain"),
    "body size": (47, "chain"),
    "record size": (51, "body chain"),
    "record magic": (55, "body chain"),
    "message CRC": (58, "body chain"),
    "place of the record": (82, "body chain"),
    "body of the message": (136, "body chain"),
}
"""Rule → the byte of the entry to alter, and the checksums to make fit afterwards."""
OF_THE_AUDIT_ALONE = ("message CRC", "body of the message")
"""A replica verifies a message by the CRC of the entry's body, which covers it, and leaves the CRC
in the record to readers."""


@pytest.fixture
def altered(rule: str, tmp_path: Path) -> tuple[Writer, LogFile, bytes]:
    """A log file with one broken rule, its writer, and its bytes before."""
    writer, task = one_file(tmp_path, varied(10))
    path, whole = Path(task.path), Path(task.path).read_bytes()
    assert not report_of(task, KERNEL, 4 << 20)["flaws"]
    data, (at, levels) = bytearray(whole), RULES[rule]
    data[writer.entries[ALTERED].pos + at] ^= 3
    remade(data, writer, levels.split(), writer.entries[ALTERED].pos + at)
    path.write_bytes(data)
    return writer, task, whole


def received(writer: Writer, data: bytes) -> tuple[bytes, tuple[int, int, int, int]]:
    """These bytes of the file as a follower receives them from a leader, and the place that the
    range must have."""
    first, before, last = (writer.entries[at] for at in (FIRST, FIRST - 1, -1))
    return data[first.pos : last.pos + last.size], (
        first.index,
        first.term,
        first.pos,
        before.chain,
    )


@built
@pytest.mark.parametrize("rule", RULES)
def test_audit_finds_an_entry_that_a_broken_broker_kernel_accepts(
    altered: tuple[Writer, LogFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower stores the range, because its kernel checked other bytes."""
    writer, task, whole = altered
    intact, _ = received(writer, whole)
    verify = kernels.entries.verify
    monkeypatch.setattr(
        kernels, "entries", SimpleNamespace(verify=lambda _, *place: verify(intact, *place))
    )
    data, place = received(writer, Path(task.path).read_bytes())
    assert data != intact and verify_range(data, *place).last_index == writer.entries[-1].index
    assert ALTERED in {flaw["index"] for flaw in report_of(task, KERNEL, 4 << 20)["flaws"]}


@built
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in OF_THE_AUDIT_ALONE])
def test_broker_finds_an_entry_that_a_broken_audit_decoder_accepts(
    altered: tuple[Writer, LogFile, bytes],
) -> None:
    writer, task, whole = altered
    assert not report_of(task, Blind(whole), 4 << 20)["flaws"]
    data, place = received(writer, Path(task.path).read_bytes())
    assert kernels.entries.verify(data, *place, 8) is None
    with pytest.raises(BadEntry) as found:
        verify_range(data, *place)
    assert found.value.index == ALTERED


def test_the_two_modules_share_no_code() -> None:
    """Neither names the other, and neither names anything of the package outside its own folder."""
    source = ROOT / "native/src"
    for own, other in (("audit_scan", "entries"), ("entries", "audit_scan")):
        files = [*(source / own).glob("*.rs"), *source.glob(f"{own}.rs")]
        assert len(files) > 3
        for file in files:
            code = "\n".join(
                line for line in file.read_text().splitlines() if not line.lstrip().startswith("//")
            )
            assert not re.search(rf"\bcrate::|super::super|\b{other}::|\bmod {other}\b", code), file
