"""RocketMQ's own store classes open what we wrote, see every message, and leave the files as they
are (formats §12.1).

Needs a JDK and Maven, which fetches the official classes once; without them the tests are skipped
and say so.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.compat.conftest import Driver
from tests.compat.group_material import (
    BATCHES,
    DATA_BYTES,
    QUEUE_BYTES,
    QUEUES,
    SLOTS,
    TOPICS,
    UNITS,
    Writer,
)

pytestmark = [pytest.mark.slow, pytest.mark.verify]


def content(root: Path) -> dict[str, str]:
    """Digest by relative name of every file."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def ahead(root: Path, end_pos: int) -> set[str]:
    """Files made ahead of need: only zeros, which the official classes remove when they open a
    store."""
    data = {
        f"dledger-n1/data/{path.name}"
        for path in (root / "dledger-n1/data").iterdir()
        if int(path.name) >= end_pos
    }
    return data | {
        f"dledger-n1/index/{p.name}"
        for p in (root / "dledger-n1/index").iterdir()
        if not any(p.read_bytes())
    }


def entries_digest(root: Path) -> str:
    """SHA-256 over all entries as they stand in the files, blanks left out. The official store
    decodes and encodes each one."""
    digest = hashlib.sha256()
    for path in sorted((root / "dledger-n1/data").iterdir()):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw) and int.from_bytes(raw[at : at + 4], "big") == 1:
            size = int.from_bytes(raw[at + 4 : at + 8], "big")
            digest.update(raw[at : at + size])
            at += size
    return digest.hexdigest()


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_dledger_opens_our_log_and_leaves_it(
    tmp_path: Path, driver: Driver, clean: bool, trimmed: bool
) -> None:
    """Begin, end, term, committed index and every entry are ours; not one byte of log or index is
    rewritten."""
    writer = Writer(tmp_path / "g1", index_bytes=32 * 64)
    writer.fill()
    if trimmed:
        writer.trim()
    writer.close(clean=clean)
    log = writer.store.log
    before, spare = content(tmp_path / "g1"), ahead(tmp_path / "g1", log.end_pos)
    facts = driver("OpenStore", "dledger", tmp_path / "g1", "n1", DATA_BYTES, 32 * 64)
    assert (int(facts["begin"]), int(facts["end"]), int(facts["end_term"])) == (
        log.begin_index,
        log.end_index,
        3,
    )
    assert (int(facts["committed"]), int(facts["write_pos"])) == (log.end_index, log.end_pos)
    assert facts["entries_sha256"] == entries_digest(tmp_path / "g1")
    after = content(tmp_path / "g1")
    assert {name: digest for name, digest in before.items() if name not in spare} == {
        n: d for n, d in after.items() if n not in spare
    }


def test_dledger_rebuilds_exactly_our_index(tmp_path: Path, driver: Driver) -> None:
    """With our index files gone, the official recovery writes the very bytes that we had
    written."""
    writer = Writer(tmp_path / "g1", index_bytes=32 * 64)
    writer.fill()
    writer.close(clean=True)
    index = tmp_path / "g1/dledger-n1/index"
    before = {path.name: path.read_bytes() for path in index.iterdir() if any(path.read_bytes())}
    shutil.rmtree(index)
    driver("OpenStore", "dledger", tmp_path / "g1", "n1", DATA_BYTES, 32 * 64)
    assert {
        path.name: path.read_bytes() for path in index.iterdir() if any(path.read_bytes())
    } == before


@pytest.mark.parametrize("trimmed", [False, True])
def test_rocketmq_reads_every_message_and_key(
    tmp_path: Path, driver: Driver, trimmed: bool
) -> None:
    """The whole store of RocketMQ loads our directory: consume queues, bodies, key index and
    checkpoint say what we wrote, unchanged."""
    writer = Writer(tmp_path / "g1")
    writer.fill()
    if trimmed:
        writer.trim()
    writer.close(clean=True)
    before, spare = content(tmp_path / "g1"), ahead(tmp_path / "g1", writer.store.log.end_pos)
    queues = [f"{topic}/{queue}" for topic in TOPICS for queue in range(QUEUES)]
    keys = [(topic, key) for topic in TOPICS for key in ("shared", "k7", "U00070", "absent")]
    sizes = [DATA_BYTES, QUEUE_BYTES, SLOTS, UNITS]
    facts = driver(
        "OpenStore",
        "store",
        tmp_path / "g1",
        "n1",
        *sizes,
        *queues,
        *(part for pair in keys for part in ("--", *pair)),
    )
    assert facts["loaded"] == "true"
    assert facts["physic_ms"] == facts["logics_ms"] == facts["index_ms"] == str(writer.store_ms)
    for topic in TOPICS:
        for queue in range(QUEUES):
            bodies, name = writer.bodies[topic, queue], f"{topic}/{queue}"
            low = writer.store.queues.min_offset(topic, queue)
            assert (facts[f"min {name}"], facts[f"max {name}"], facts[f"wrong {name}"]) == (
                str(low),
                str(len(bodies)),
                "0",
            )
            assert (low > 0) == trimmed
            assert (
                facts[f"bodies_sha256 {name}"] == hashlib.sha256(b"".join(bodies[low:])).hexdigest()
            )
    for topic, key in keys:
        found = facts[f"query {topic} {key}"].split()
        told = [
            unit
            for unit in writer.messages
            if unit[0] == topic and key in unit[1] and unit[2] >= writer.store.log.begin_pos
        ]
        assert sorted(map(int, found)) == sorted(offset for _, _, offset in told)[-64:], (
            topic,
            key,
        )
    after = content(tmp_path / "g1")
    kept = {name: digest for name, digest in before.items() if name not in spare}
    assert kept == {
        name: digest for name, digest in after.items() if name not in spare and name != "lock"
    }
    assert BATCHES > 64, "more messages share a key than one query returns"
