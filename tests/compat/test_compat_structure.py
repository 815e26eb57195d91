"""A checker that knows only the layouts of RocketMQ and DLedger finds nothing wrong with what we
write, and finds what is broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import create_topic, running
from tests.compat.group_material import DATA_BYTES, QUEUE_BYTES, SLOTS, UNITS, Writer
from tests.compat.rocketmq_structure import Group, check_group, check_key_index
from tests.e2e.command_line import CommandLine

INDEX_BYTES = 32 * 64


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written and closed group, for looking only."""
    root = tmp_path_factory.mktemp("material") / "g1"
    writer = Writer(root, index_bytes=INDEX_BYTES)
    writer.fill()
    writer.close(clean=True)
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(written, tmp_path / "g1"))


def check(root: Path) -> Group:
    group = check_group(root, "n1", DATA_BYTES, INDEX_BYTES, QUEUE_BYTES)
    check_key_index(group, root / "index", SLOTS, UNITS)
    return group


def test_written_files_have_the_official_structure(root: Path) -> None:
    """Entries, blanks, records, index units, consume queues, key index and checkpoints, over
    several files of each kind."""
    group = check(root)
    assert group.problems == []
    assert len(group.records) == 479
    for kind in ("dledger-n1/data", "dledger-n1/index", "index"):
        assert len(list((root / kind).iterdir())) > 1, f"{kind}: one file shows no roll"


def test_a_trimmed_group_has_the_official_structure(tmp_path: Path) -> None:
    """Files before the begin are gone, consume queues begin with the first kept message, the rest
    is as it was."""
    writer = Writer(tmp_path / "g1", index_bytes=INDEX_BYTES)
    writer.fill()
    writer.trim()
    writer.close(clean=True)
    group = check(tmp_path / "g1")
    assert group.problems == []
    assert group.records[0].index == writer.store.log.begin_index > 0


def _first(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[0]


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x41
    path.write_bytes(raw)


BREAKS: dict[str, Callable[[Path], None]] = {
    "magic of an entry": lambda root: _flip(_first(root, "dledger-n1/data/*"), 3),
    "position of an entry": lambda root: _flip(_first(root, "dledger-n1/data/*"), 31),
    "index of an entry": lambda root: _flip(_first(root, "dledger-n1/data/*"), 15),
    "body": lambda root: _flip(_first(root, "dledger-n1/data/*"), 136),
    "physical offset": lambda root: _flip(_first(root, "dledger-n1/data/*"), 83),
    "size of the blank": lambda root: _flip(_first(root, "dledger-n1/data/*"), DATA_BYTES - 1),
    "length of a log file": lambda root: (
        _first(root, "dledger-n1/data/*").open("ab").write(b"x") and None
    ),
    "a missing log file": lambda root: sorted(root.glob("dledger-n1/data/*"))[1].unlink(),
    "index unit": lambda root: _flip(_first(root, "dledger-n1/index/*"), 40),
    "consume queue unit": lambda root: _flip(_first(root, "consumequeue/orders/0/*"), 27),
    "tags code": lambda root: _flip(_first(root, "consumequeue/orders/0/*"), 39),
    "hash slot": lambda root: _flip(_first(root, "index/*"), 40 + 3),
    "key index count": lambda root: _flip(_first(root, "index/*"), 39),
    "key index unit": lambda root: _flip(_first(root, "index/*"), 40 + 4 * SLOTS + 20 + 3),
    "checkpoint": lambda root: _flip(root / "checkpoint", 0),
    "checkpoint tail": lambda root: _flip(root / "checkpoint", 4095),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_structure_is_found(root: Path, name: str) -> None:
    """The checker reports one wrong byte or file, of every kind."""
    BREAKS[name](root)
    assert check(root).problems != []


@pytest.mark.parametrize("committed", [False, True])
def test_only_uncommitted_entries_may_lack_their_queue_unit(root: Path, committed: bool) -> None:
    """As a leader's directory is after it wrote an entry that its peers, already stopping, never
    took."""
    records = check(root).records
    last = max(records, key=lambda record: record.index)
    queue = _first(root, f"consumequeue/{last.topic}/{last.queue}/*")
    raw = bytearray(queue.read_bytes())
    at = last.queue_offset * 20 - int(queue.name)
    raw[at : at + 20] = bytes(20)
    queue.write_bytes(raw)
    checkpoint = _first(root, "dledger-n1/checkpoint")
    checkpoint.write_text(f"endIndex={last.index}\ncommittedIndex={last.index - (not committed)}\n")
    assert bool(check(root).problems) == committed


@pytest.mark.verify
@pytest.mark.slow
def test_the_directories_of_a_real_cluster_have_the_official_structure(tmp_path: Path) -> None:
    """Three nodes, messages sent and consumed, a clean stop: every node's group is a RocketMQ
    store."""
    with running(tmp_path, log_file_bytes=256 << 10) as cluster:
        create_topic(cluster, "orders")
        cli = CommandLine.of(cluster)
        bodies = [f"order {number} ".ljust(300, ".") for number in range(3000)]
        assert cli.send_lines("orders", bodies)["acknowledged"] == len(bodies)
        assert len(cli.consume_all("orders", "g")) >= len(bodies)
        assert cli.ok("status", "--wait", "20s", "--strict")
    for node in cluster.nodes:
        group = check_group(
            cluster.data(node) / "g1", node, 256 << 10, 5 * 1024 * 1024 * 32, 6_000_000
        )
        assert group.problems == []
        assert sum(record.topic == "orders" for record in group.records) >= len(bodies)
