"""Disks that fail under a running node (a preloaded library: bad_disk.c), fill up (a small tmpfs),
rot while it is down, or are gone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.node.process.local import Child
from ledgermq.proto.status import ExitCode
from tests.cluster import leader, wait_for
from tests.faults.faulty import TOPIC, FaultyCluster, faulty, judge, terms
from tests.faults.histories import History

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "bad_disk.c"
SMALL_DISK_BYTES = 96 << 20


@pytest.fixture(scope="session")
def bad_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library, made here."""
    library = built(tmp_path_factory.mktemp("bad-disk"))
    if library is None:
        pytest.skip("no C compiler: calls of a running process cannot be made to fail")
    return library


def built(place: Path) -> Path | None:
    """Compile the preloaded library; None without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = place / "bad_disk.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return library


class BadDisks(FaultyCluster):
    """Every node runs with the library and a directory of orders of its own."""

    library = Path()

    def start(self, node: str) -> Child:
        self.orders(node).mkdir(parents=True, exist_ok=True)
        self.own_environment[node] = {
            "LD_PRELOAD": str(self.library),
            "FAULT_ORDERS": str(self.orders(node)),
        }
        return super().start(node)

    def orders(self, node: str) -> Path:
        return self.directory.parent / f"orders-{node}"

    def set_clock(self, node: str, ahead_s: int) -> None:
        """The wall clock of a node is ahead by so many seconds from now on."""
        waiting = self.orders(node) / ".clock"
        waiting.write_text(str(ahead_s))
        waiting.rename(self.orders(node) / "clock")

    def order(self, node: str, what: str, part: str) -> Path:
        """The next such call on a file whose path contains `part` fails; the order is there until
        then."""
        waiting = self.orders(node) / f".{what}"
        waiting.write_text(part)
        return waiting.rename(self.orders(node) / what)


@pytest.fixture
def bad_disks(bad_disk: Path) -> type[BadDisks]:
    return type("BadDisksHere", (BadDisks,), {"library": bad_disk})


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.soak)])
def test_failed_sync_ends_the_node_and_keeps_acknowledged_messages(
    tmp_path: Path, bad_disks: type[BadDisks], role: str
) -> None:
    """The sync after it would have succeeded: it is never asked. The node ends with its own status,
    and comes back by log and peers."""
    with faulty(tmp_path, kind=bad_disks) as cluster:
        assert isinstance(cluster, BadDisks)
        with History(cluster, TOPIC) as history:
            leads = leader(cluster)
            victim = leads if role == "leader" else cluster.others(leads)[0]
            order = cluster.order(victim, "sync", f"/dledger-{victim}/data/")
            child = cluster.children[victim]
            wait_for(
                lambda: child.exit_code is not None, 30, "a node that ends after a failed sync"
            )
            assert child.exit_code == ExitCode.SYNC_FAILED and not order.exists()
            assert cluster.last_error(victim)
            history.progress()
            cluster.start(victim)
            cluster.wait_ready(nodes=[victim])
            history.progress()
        judge(cluster, history)


def test_an_unreadable_entry_ends_in_no_wrong_answer(
    tmp_path: Path, bad_disks: type[BadDisks]
) -> None:
    """EIO when the leader reads its log for a returning follower: no node gets wrong bytes, the
    leader reports the error, and after the disk works again everything is complete."""
    with faulty(tmp_path, kind=bad_disks) as cluster:
        assert isinstance(cluster, BadDisks)
        with History(cluster, TOPIC) as history:
            leads = leader(cluster)
            away = cluster.others(leads)[0]
            cluster.kill(away)
            history.progress()
            order = cluster.order(leads, "read", f"/dledger-{leads}/data/")
            cluster.start(away)
            wait_for(lambda: not order.exists(), 30, "a read of the leader's log")
            child = cluster.children[leads]
            wait_for(
                lambda: child.exit_code is not None or cluster.ready(leads),
                30,
                "what the leader makes of it",
            )
            history.progress()
            if child.exit_code is not None:
                assert child.exit_code == ExitCode.SYNC_FAILED
                cluster.start(leads)
            cluster.wait_ready()
            history.progress()
        judge(cluster, history)


class SmallDisks(FaultyCluster):
    """Every node's directory is a small file system in memory."""

    mounted: list[Path]

    def start(self, node: str) -> Child:
        data = self.data(node)
        if not data.is_mount():
            data.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(data)],
                capture_output=True,
            )
            if done.returncode:
                pytest.skip(
                    f"no file system of a given size can be mounted: {done.stderr.decode().strip()}"
                )
        return super().start(node)

    def fill(self, node: str, percent: float = 100) -> Path:
        """Write until so much of the disk is in use, or until it takes no more; the file that must
        go to make room."""
        filler = self.data(node) / "controller" / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while percent == 100 or self._in_use(node) < percent:
                    file.write(bytes(64 << 10))
            except OSError:
                pass
        return filler

    def _in_use(self, node: str) -> float:
        usage = shutil.disk_usage(self.data(node))
        return 100 * usage.used / usage.total


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[None]:
    """After the test, whatever became of it, no file system is left mounted under its directory."""
    yield
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if (mount := line.split(" ")[1]).startswith(str(tmp_path)):
            subprocess.run(["umount", mount], check=True)


@pytest.mark.verify
@pytest.mark.usefixtures("unmounted")
def test_full_disks_refuse_writes_and_take_them_again(tmp_path: Path) -> None:
    """A follower's full disk has no effect; for a leader's, another one leads. Those of all nodes
    stop writes, but not leadership or reads; with free space all continues by itself."""
    with faulty(tmp_path, kind=SmallDisks) as cluster:
        assert isinstance(cluster, SmallDisks)
        with History(cluster, TOPIC, body_bytes=2000) as history:
            leads = leader(cluster)
            follower = cluster.others(leads)[0]
            filler = cluster.fill(follower)
            history.progress(100)
            filler.unlink()
            filler = cluster.fill(leads)
            wait_for(lambda: leader(cluster) != leads, 60, "a leader with room")
            history.progress(100)
            filler.unlink()
            fillers = [cluster.fill(node) for node in cluster.nodes]
            refused = sum(
                send.offset is None for sender in history.senders for send in sender.sends
            )
            wait_for(
                lambda: (
                    sum(s.offset is None for x in history.senders for s in x.sends) > refused + 5
                ),
                30,
                "refused writes",
            )
            before, reads = max(terms(cluster).values()), len(history.readers[0].reads)
            wait_for(
                lambda: len(history.readers[0].reads) > reads + 5,
                30,
                "reads while the disks are full",
            )
            for filler in fillers:
                filler.unlink()
            history.progress(100)
            assert max(terms(cluster).values()) == before, "full disks cost an election"
        judge(cluster, history)
