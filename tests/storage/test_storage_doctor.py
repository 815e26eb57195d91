"""The doctor on a pretended medium with a pretended clock, and its command on the real one:
figures, thresholds, nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.cli import run
from ledgermq.proto import kernels
from ledgermq.storage.cli import doctor, doctor_commands, doctor_facts
from ledgermq.storage.cli.doctor import (
    GIB,
    KIB,
    MIB,
    QUICK,
    THOROUGH,
    Facts,
    Flush,
    Measured,
    Reading,
    about_files,
    examine,
    measure,
    probe_bytes,
    reading,
)
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.state.identity import NodeIdentity
from tests.storage.log_material import CLUSTER, append, content, make_identity


class PretendedDisk:
    """A probe on which every call takes as long as a rule says, on a clock of its own."""

    def __init__(self, write_s: float, rate: float, flush_s: Callable[[int], float]) -> None:
        self.now_ns = 0
        self.syncs = 0
        self.end = 0
        self._write_s, self._rate, self._flush_s = write_s, rate, flush_s
        self._waiting = 0

    def clock_ns(self) -> int:
        return self.now_ns

    def write(self, offset: int, data: bytes) -> None:
        self.now_ns += round(self._write_s * 1e9)
        self._waiting += len(data)
        self.end = max(self.end, offset + len(data))

    def sync(self) -> None:
        self.syncs += 1
        self.now_ns += round((self._flush_s(self.syncs) + self._waiting / self._rate) * 1e9)
        self._waiting = 0


def measured_on(disk: PretendedDisk, size: int = 64 * MIB) -> Measured:
    return measure(disk, size, THOROUGH, disk.clock_ns, lambda done, total: None)


FACTS = Facts("ext4", False, False, 90 * GIB, 100 * GIB, 65530, None, 20000)


def with_flush(p99_s: float) -> Measured:
    """What was measured on a disk of 100 MiB/s."""
    return Measured(
        100 * MIB,
        GIB,
        0.00001,
        tuple(Flush(size, 100, p99_s / 2, p99_s) for size in doctor.FLUSH_SIZES),
    )


def test_terms_of_the_cost_model_are_found() -> None:
    """On a disk that obeys the model, R, W and F come out as they were put in, and the model
    predicts what is measured."""
    found = measured_on(PretendedDisk(0.0001, 200 * MIB, lambda number: 0.004))
    per_pass = 64 / 200 + 64 * 0.0001 + 0.004
    assert found.rate == pytest.approx(64 * MIB / per_pass, rel=1e-6)
    assert found.write_s == pytest.approx(0.0001)
    assert [flush.p50_s for flush in found.flushes] == pytest.approx(
        [0.004 + size / (200 * MIB) for size in doctor.FLUSH_SIZES]
    )
    for flush in found.flushes:
        assert found.cost_s(flush.write_bytes) == pytest.approx(
            flush.p50_s + found.write_s, rel=0.05
        )
    assert found.half_bytes == pytest.approx(200 * MIB * 0.0041, rel=0.05)


def test_percentiles_tell_the_rare_slow_flush() -> None:
    """One flush in twenty takes long: the median does not show it, the p99 does."""
    found = measured_on(
        PretendedDisk(0.0, 1e12, lambda number: 0.08 if number % 20 == 0 else 0.001)
    )
    assert found.flushes[0].p50_s == pytest.approx(0.001, abs=1e-4)
    assert found.flushes[0].p99_s == pytest.approx(0.08, abs=1e-4)
    assert doctor.percentile([3.0, 1.0, 2.0], 0.5) == 2.0 and doctor.percentile([1.0], 0.99) == 1.0


@pytest.mark.parametrize("flush_s", [0.000001, 0.01, 0.3, 2.0])
def test_measuring_is_bounded(flush_s: float) -> None:
    """Measuring ends within twenty seconds plus the running flushes, and within the file, at any
    disk speed."""
    disk = PretendedDisk(0.0, 20 * MIB, lambda number: flush_s)
    measured_on(disk)
    assert disk.now_ns / 1e9 <= 20 + 8 * flush_s
    assert disk.end <= 64 * MIB
    fast = PretendedDisk(0.0, 1e13, lambda number: 1e-6)
    assert measured_on(fast).written_bytes <= THOROUGH.written_bytes_max


def test_little_room() -> None:
    """The probe takes a quarter of what is free; a disk without room is not measured and says
    so."""
    assert [probe_bytes(free) for free in (GIB, 100 * MIB, 16 * MIB, 16 * MIB - 1, 0)] == [
        64 * MIB,
        25 * MIB,
        4 * MIB,
        0,
        0,
    ]
    verdict = examine(Facts("ext4", False, None, 0, 100 * GIB, None, None, None), None)
    assert verdict.advice is None
    assert [warning.level for warning in verdict.warnings] == ["alarm", "alarm"]


@pytest.mark.parametrize(
    ("p99_s", "level", "policy"),
    [
        (0.05, None, "durable"),
        (0.0501, "warn", "hybrid"),
        (0.1, "warn", "hybrid"),
        (0.1001, "alarm", "memory"),
    ],
)
def test_flush_thresholds(p99_s: float, level: str | None, policy: str) -> None:
    """Above 50 ms a flush is a warning, above 100 ms an alarm, and the recommended policy
    follows."""
    verdict = examine(FACTS, with_flush(p99_s))
    assert [warning.level for warning in verdict.warnings] == ([] if level is None else [level])
    assert verdict.advice is not None and verdict.advice.flush_policy == policy


@pytest.mark.parametrize(
    ("used", "level"), [(80.0, None), (80.1, "warn"), (90.0, "warn"), (90.1, "alarm")]
)
def test_space_thresholds(used: float, level: str | None) -> None:
    """Above 80 % used is a warning, above 90 % an alarm."""
    total = 1000 * GIB
    facts = Facts(
        "ext4", False, False, round(total * (100 - used) / 100), total, 65530, None, 20000
    )
    assert [warning.level for warning in examine(facts, with_flush(0.001)).warnings] == (
        [] if level is None else [level]
    )


@pytest.mark.parametrize(
    ("own", "others"), [(None, False), (475 * GIB, False), (475 * GIB - 1, True), (0, True)]
)
def test_a_disk_that_others_fill_is_called_so(own: int | None, others: bool) -> None:
    """If the node has less than half of what is used, keeping messages for a shorter time is not
    the remedy."""
    facts = Facts("ext4", False, False, 50 * GIB, 1000 * GIB, 65530, None, 20000)
    (warning,) = examine(facts, with_flush(0.001), own).warnings
    assert (
        ("by other files than this node's" in warning.what)
        is ("other files" in warning.remedy)
        is others
    )


def test_memory_file_system_and_low_limits_are_called_so() -> None:
    """A medium that forgets is an alarm whatever its speed; low limits are warnings that name the
    setting."""
    verdict = examine(
        Facts("tmpfs", True, None, 9 * GIB, 10 * GIB, 1000, 65536, 256), with_flush(0.00001)
    )
    assert [warning.level for warning in verdict.warnings] == ["alarm", "warn", "warn"]
    assert "memory file system" in verdict.warnings[0].what
    assert (
        "ulimit -n" in verdict.warnings[1].remedy
        and "vm.max_map_count" in verdict.warnings[2].remedy
    )


@pytest.mark.parametrize(
    ("total", "rate", "size"),
    [
        (1000 * GIB, 500 * MIB, GIB),
        (30 * GIB, 500 * MIB, 256 * MIB),
        (1000 * GIB, 10 * MIB, 64 * MIB),
        (MIB, 1, 16 * MIB),
    ],
)
def test_log_file_size(total: int, rate: float, size: int) -> None:
    """Large files where the disk holds many of them and makes one quickly, small ones elsewhere."""
    assert doctor.log_file_bytes(total, rate) == size


def test_rotational_comes_from_the_disk_or_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of the device, else that of the disk above the partition; unknown is None, never
    false."""
    monkeypatch.setattr(doctor_facts, "BLOCK_DEVICES", str(tmp_path))
    (tmp_path / "8:0/queue").mkdir(parents=True)
    (tmp_path / "8:0/queue/rotational").write_text("1\n")
    (tmp_path / "sda/sda1").mkdir(parents=True)
    (tmp_path / "sda/queue").mkdir()
    (tmp_path / "sda/queue/rotational").write_text("0\n")
    (tmp_path / "8:1").symlink_to("sda/sda1")
    found = [doctor_facts.rotational(os.makedev(8, minor)) for minor in (0, 1, 2)]
    assert found == [True, False, None]


def test_file_system_of_the_longest_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost mount above the directory decides; a name that only begins alike does not."""
    place = os.path.realpath(tmp_path)
    table = tmp_path / "mounts"
    table.write_text(
        f"a / ext4 rw 0 0\nb {place}/data tmpfs rw 0 0\nc {place}/dat xfs rw 0 0\nd"
        f" {place}/sp\\040ace btrfs rw 0 0\n"
    )
    monkeypatch.setattr(doctor_facts, "MOUNTS", str(table))
    for name, kind in (
        ("data", "tmpfs"),
        ("database", "ext4"),
        ("dat", "xfs"),
        ("sp ace", "btrfs"),
    ):
        (tmp_path / name).mkdir()
        assert doctor_facts.file_system(str(tmp_path / name)) == kind


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures only as much as its wiring needs."""
    monkeypatch.setattr(doctor_commands, "QUICK", doctor.Effort(0.0, 0.0, 0.0, 2))
    monkeypatch.setattr(doctor_commands, "probe_bytes", lambda free: 4 * MIB)


def healthy(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Facts of a good machine, whatever this one is."""
    values = {name: getattr(FACTS, name) for name in Facts.__dataclass_fields__} | changes
    monkeypatch.setattr(doctor_commands, "read_facts", lambda directory: Facts(**values))


def test_doctor_reports_fine_and_leaves_the_directory_unchanged(
    tmp_path: Path, brief: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text with every measured term and exit 0; the directory is as it was."""
    healthy(monkeypatch)
    assert run(["doctor", str(tmp_path), "--quick"]) == 0
    text = capsys.readouterr().out
    for part in (
        "ext4, not rotational",
        "MiB/s",
        "   4 KiB: p50",
        "  64 KiB: p50",
        "1024 KiB: p50",
        "T = S/R + W + F",
        kernels.described(),
        "flush policy durable",
        "log files",
    ):
        assert part in text, part
    assert text.splitlines()[-1] == "doctor: fine"
    assert os.listdir(tmp_path) == []


def test_command_exits_with_1_above_a_threshold(
    tmp_path: Path, brief: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object whose unknowns are null."""
    healthy(monkeypatch, free_bytes=5 * GIB, rotational=None)
    assert run(["doctor", str(tmp_path), "--quick", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["native"] == kernels.VERSION
    assert (
        told["v"] == 1
        and told["rotational"] is None
        and told["node"] is None
        and told["used_percent"] == 95.0
    )
    assert [flush["write_bytes"] for flush in told["flushes"]] == [4 * KIB, 64 * KIB, MIB]
    assert [(warning["level"], "90 %" in warning["what"]) for warning in told["warnings"]] == [
        ("alarm", True)
    ]


def test_node_directory_is_described_and_not_changed(
    tmp_path: Path, brief: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Identity, sizes, what is synced and noted, clean or not; every byte stays as it was, of a
    running node's directory as well."""
    healthy(monkeypatch)
    disk = RealDisk()
    identities.write_node(disk, str(tmp_path), NodeIdentity(CLUSTER, "n1", 1))
    GroupStore.create(disk, str(tmp_path / "g1"), make_identity())
    store = GroupStore.open(disk, str(tmp_path / "g1"), make_identity())
    append(store.log, 100)
    store.log.flush_mark()
    store.write_checkpoints(90, StoreCheckpoint())
    for exact, unit in ((["--bytes"], " bytes"), ([], " MiB")):
        assert run(["doctor", str(tmp_path), "--quick", *exact]) == 0
        lines = {
            line.split()[0]: line
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("  ") and line[2] != " "
        }
        assert all(
            unit in lines[name]
            for name in ("space", "sequential", "cost", "log", "scrub", "node", "group")
        )
        assert (
            not exact
            or f"space        {FACTS.free_bytes} bytes free of {FACTS.total_bytes} bytes, "
            in lines["space"]
        )
    for clean in (False, True):
        if clean:
            store.close()
        before = content(tmp_path)
        assert run(["doctor", str(tmp_path), "--quick", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["node"]
        assert (told["node"], told["cluster_id"], told["problem"]) == ("n1", CLUSTER, None)
        (group,) = told["groups"]
        assert (
            group["group"],
            group["clean"],
            group["synced_index"],
            group["committed_index"],
        ) == ("g1", clean, 99, 90)
        assert group["log_bytes"] >= group["log_files"] * 4096 > 0
        assert content(tmp_path) == before
    (tmp_path / "g1/identity.json").write_bytes(b"{}")
    assert run(["doctor", str(tmp_path), "--quick"]) == 0
    assert "cannot be read further" in capsys.readouterr().out


def test_scratch_file_where_nameless_ones_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without O_TMPFILE the probe is unlinked as soon as it is open."""
    opened = os.open

    def open_named(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "not supported")
        return opened(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_named)
    probe = doctor_facts.ScratchFile(str(tmp_path))
    probe.write(0, b"x")
    probe.sync()
    assert os.listdir(tmp_path) == []
    probe.close()


def test_limits_of_this_process_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No limit is None; a number is the soft limit."""
    monkeypatch.setattr(
        resource,
        "getrlimit",
        lambda kind: (resource.RLIM_INFINITY if kind == resource.RLIMIT_MEMLOCK else 512, 4096),
    )
    facts = doctor_facts.read_facts(str(tmp_path))
    assert (facts.memory_lock_bytes, facts.open_files) == (None, 512)
    assert facts.total_bytes > facts.free_bytes > 0


@pytest.mark.slow
def test_interrupted_doctor_exits_with_130_and_leaves_no_file(tmp_path: Path) -> None:
    """Ctrl-C ends it with 130, one error line and an unchanged directory."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ledgermq", "doctor", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    needle = str(tmp_path)
    deadline = time.monotonic() + 30
    while not any(needle in _target(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()):
        assert process.poll() is None and time.monotonic() < deadline, (
            "the scratch file was never open"
        )
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors.decode().splitlines()[-1].startswith(
        "error: interrupted"
    )
    assert os.listdir(tmp_path) == []


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def test_efforts_are_bounded() -> None:
    """What the help says of the time is what the efforts add up to."""
    for effort, limit in ((QUICK, 4.0), (THOROUGH, 17.0)):
        assert (
            effort.allocate_s + effort.write_s + len(doctor.FLUSH_SIZES) * effort.flush_s <= limit
        )


def test_scrub_rate_fits_the_disk_and_a_week() -> None:
    """The default for most; more for many logs; never more than a twentieth of the disk, and then
    it says how long that takes."""
    default, week = 16 * MIB, 7 * 86_400
    assert reading(1000 * MIB, 0) == (Reading(default, 0.0, 0.016), [])
    found, warned = reading(100 * MIB, 1 << 30)
    assert (found.bytes_per_s, warned) == (5 * MIB, []), "a slow disk gets less"
    found, (warning,) = reading(1000 * MIB, 30 * MIB * week)
    assert (
        found.bytes_per_s == 30 * MIB and str(30 * MIB) in warning.remedy and found.pass_s == week
    )
    found, (warning,) = reading(200 * MIB, 20 * MIB * week)
    assert found.bytes_per_s == 10 * MIB and "14 days" in warning.remedy


def test_doctor_alarms_on_files_that_differ_from_their_seal(tmp_path: Path) -> None:
    """Files that differ from what a majority sealed are an alarm; notes of another log, or damaged
    ones, say nothing."""
    disk, root = RealDisk(), tmp_path / "g1"
    (root / "state").mkdir(parents=True)
    seals = [
        {"base": base, "sha256": digest} for base, digest in ((0, "aa"), (64, "bb"), (128, "cc"))
    ]
    sealed_json.write(
        disk,
        str(root / "state" / "snapshot"),
        {"v": 4, "log_id": "l", "retained": {"seals": seals}},
    )
    sealed_json.write(
        disk,
        str(root / "state" / "digests"),
        {"v": 1, "log_id": "l", "digests": {"0": "aa", "64": "xx"}},
    )
    sealed_json.write(
        disk,
        str(root / "state" / "scrub"),
        {"v": 1, "log_id": "l", "files": [[0, 7000], [64, 5000]]},
    )
    assert (
        doctor_facts._sealed(disk, str(root), "l") == (3, (64,))
        and doctor_facts._verified_ms(disk, str(root), "l") == 5000
    )
    assert (
        doctor_facts._sealed(disk, str(root), "other") == (0, ())
        and doctor_facts._verified_ms(disk, str(root), "other") is None
    )
    (root / "state" / "digests").write_bytes(b"{")
    assert doctor_facts._sealed(disk, str(root), "l") == (3, ())
    (warning,) = about_files("g1", (64,))
    assert warning.level == "alarm" and f"{64:020d}" in warning.what and about_files("g1", ()) == []


def test_doctor_warns_of_a_world_readable_message_directory(
    brief: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a node's directory and of a backup; not where a directory above is closed, and not of a
    directory without messages."""
    healthy(monkeypatch)
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        inner = Path(top, "n1")
        inner.mkdir(mode=0o755)

        def told() -> list[tuple[str, str]]:
            run(["doctor", str(inner), "--quick", "--json"])
            return [
                (warning["level"], warning["remedy"])
                for warning in json.loads(capsys.readouterr().out)["warnings"]
            ]

        assert told() == []
        identities.write_node(RealDisk(), str(inner), NodeIdentity(CLUSTER, "n1", 1))
        assert told() == [("warn", f"chmod o-rwx {inner}")]
        inner.chmod(0o750)
        assert told() == []
        inner.chmod(0o755)
        os.chmod(top, 0o750)
        assert told() == []
        os.chmod(top, 0o755)
        (inner / "node.json").unlink()
        (inner / "backup.json").write_text("{}")
        assert told() == [("warn", f"chmod o-rwx {inner}")]
