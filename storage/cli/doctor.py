"""The measurements of `ledgermq doctor`: measures a medium through a port and an injected clock,
and evaluates the figures.

Pure except for the port: facts about the machine come from `doctor_facts.py`; output and exit
status belong to `doctor_commands.py`.

Cost model. A batch of S bytes is on stable storage after T = S/R + W + F: R is the rate of long
sequential writes, W the cost of one write call, F the cost of a flush of almost no data. F is
shared by all batches that arrive while the previous flush runs (group commit), so a slow F costs
latency first, and throughput only while batches stay small. At S = R × (W + F) half of T is
transfer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgermq.proto import units
from ledgermq.storage.cli.ports import Probe
from ledgermq.storage.files.thresholds import (
    DISK_ALARM_PERCENT,
    DISK_WARN_PERCENT,
    SCRUB_BYTES_PER_S,
    SCRUB_PART_OF_DISK,
    SCRUB_PASS_S,
    SYNC_ALARM_S,
    SYNC_WARN_S,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NS_A_SECOND = 1_000_000_000
FLUSH_SIZES = (4 * KIB, 64 * KIB, 1 * MIB)
WRITE_BYTES = 1 * MIB
"""The size of one sequential write; one flush ends each pass over the file."""
PROBE_BYTES = 64 * MIB
PROBE_BYTES_MIN = 4 * MIB
PROBE_PART_OF_FREE = 4
"""The probe uses at most this part of the free space."""
LOG_FILE_SIZES = (GIB, 512 * MIB, 256 * MIB, 128 * MIB, 64 * MIB, 32 * MIB, 16 * MIB)
FILE_ALLOCATION_S = 10.0
"""Creating a log file should take less than this time …"""
FILES_A_DISK = 64
"""… and a disk should hold at least this many, because retention removes whole files."""
OPEN_FILES_MIN = 1024
MAP_COUNT_MIN = 8192
WARN, ALARM = "warn", "alarm"
FILES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Effort:
    """The time budget of the measurements. A single call is never interrupted, so one very slow
    flush can exceed the budget."""

    allocate_s: float = 3.0
    write_s: float = 4.0
    flush_s: float = 3.0
    flushes_max: int = 400
    written_bytes_max: int = 2 * GIB
    """Limit on written bytes: a fast disk must not be worn for a more exact figure."""


QUICK = Effort(
    allocate_s=1.0, write_s=0.7, flush_s=0.5, flushes_max=60, written_bytes_max=512 * MIB
)
THOROUGH = Effort()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the operating system reports about the medium and this process's limits; None if
    unknown. For limits, None means no limit."""

    file_system: str
    in_memory: bool
    rotational: bool | None
    free_bytes: int
    total_bytes: int
    max_map_count: int | None
    memory_lock_bytes: int | None
    open_files: int | None

    @property
    def used_percent(self) -> float:
        """As `df` computes it: space reserved for the system counts neither as used nor as free."""
        return 100 * (1 - self.free_bytes / self.total_bytes) if self.total_bytes else 100.0


@dataclass(frozen=True, slots=True)
class Flush:
    """Durations of flushes after single writes of one size."""

    write_bytes: int
    samples: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured terms: `rate` (R) in bytes per second, `write_s` (W), `flushes` by size; F is
    the p50 of the smallest size."""

    rate: float
    written_bytes: int
    write_s: float
    flushes: tuple[Flush, ...]

    @property
    def flush_s(self) -> float:
        return self.flushes[0].p50_s

    @property
    def half_bytes(self) -> int:
        """The batch size at which half of the time is transfer."""
        return round(self.rate * (self.write_s + self.flush_s))

    def cost_s(self, size: int) -> float:
        """T of the model for a batch of `size` bytes."""
        return size / self.rate + self.write_s + self.flush_s


@dataclass(frozen=True, slots=True)
class Warning_:
    """One crossed threshold, and its remedy."""

    level: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended configuration."""

    flush_policy: str
    why: str
    log_file_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Rereading a node's logs on this disk (scrub): a suitable rate, and how long a pass takes at
    that rate."""

    bytes_per_s: int
    pass_s: float
    part_of_disk: float
    """Part of the measured sequential rate."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The doctor's findings. `measured` is None if there was no room to measure."""

    facts: Facts
    measured: Measured | None
    advice: Advice | None
    warnings: tuple[Warning_, ...]


def probe_bytes(free: int) -> int:
    """The size of the scratch file; 0 if a useful one would take too much of the free space."""
    size = min(PROBE_BYTES, free // PROBE_PART_OF_FREE // MIB * MIB)
    return size if size >= PROBE_BYTES_MIN else 0


def measure(
    probe: Probe,
    size: int,
    effort: Effort,
    clock_ns: Callable[[], int],
    progress: Callable[[int, int], None],
) -> Measured:
    """Measure a medium with a scratch file of up to `size` bytes. Raises OSError."""
    stages = 2 + len(FLUSH_SIZES)
    size = _allocate(probe, size, effort.allocate_s, clock_ns)
    progress(1, stages)
    rate, written = _sequential(probe, size, effort, clock_ns)
    progress(2, stages)
    flushes, writes = [], []
    for stage, chunk in enumerate(FLUSH_SIZES):
        times, handed = _flushes(probe, size, chunk, effort, clock_ns)
        flushes.append(Flush(chunk, len(times), percentile(times, 0.5), percentile(times, 0.99)))
        if stage == 0:
            writes = handed
        progress(3 + stage, stages)
    return Measured(rate, written, percentile(writes, 0.5), tuple(flushes))


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _allocate(probe: Probe, size: int, limit_s: float, clock_ns: Callable[[], int]) -> int:
    """Allocate blocks, as the log does ahead of need, within the time limit. Returns the number of
    bytes."""
    zeros = bytes(WRITE_BYTES)
    end_ns = clock_ns() + int(limit_s * NS_A_SECOND)
    done = 0
    while done < size and (done < PROBE_BYTES_MIN or clock_ns() < end_ns):
        probe.write(done, zeros)
        done += WRITE_BYTES
        if done % PROBE_BYTES_MIN == 0:
            probe.sync()
    probe.sync()
    return done


def _sequential(
    probe: Probe, size: int, effort: Effort, clock_ns: Callable[[], int]
) -> tuple[float, int]:
    """Bytes per second over whole passes of the file, each ended by a flush; and the number of
    bytes written."""
    data = bytes(range(256)) * (WRITE_BYTES // 256)
    began = clock_ns()
    written = 0
    while True:
        for offset in range(0, size, WRITE_BYTES):
            probe.write(offset, data)
        probe.sync()
        written += size
        passed = max(1, clock_ns() - began)
        if passed >= effort.write_s * NS_A_SECOND or written >= effort.written_bytes_max:
            return written * NS_A_SECOND / passed, written


def _flushes(
    probe: Probe, size: int, chunk: int, effort: Effort, clock_ns: Callable[[], int]
) -> tuple[list[float], list[float]]:
    """Seconds of every flush after one write of `chunk` bytes, and of every write before a
    flush."""
    data = b"\xa5" * chunk
    end_ns = clock_ns() + int(effort.flush_s * NS_A_SECOND)
    offset = 0
    flushes: list[float] = []
    writes: list[float] = []
    while len(flushes) < effort.flushes_max:
        began = clock_ns()
        probe.write(offset, data)
        handed = clock_ns()
        probe.sync()
        ended = clock_ns()
        writes.append((handed - began) / NS_A_SECOND)
        flushes.append((ended - handed) / NS_A_SECOND)
        offset = (offset + chunk) % (size - size % chunk)
        if ended >= end_ns:
            break
    return flushes, writes


def examine(facts: Facts, measured: Measured | None, own_bytes: int | None = None) -> Verdict:
    """Evaluate the figures. `own_bytes`: what the node in the directory takes of the file system,
    if there is one."""
    warnings = [
        *_about_medium(facts, measured),
        *_about_space(facts, own_bytes),
        *_about_limits(facts),
    ]
    return Verdict(
        facts, measured, None if measured is None else advise(facts, measured), tuple(warnings)
    )


def advise(facts: Facts, measured: Measured) -> Advice:
    """Recommend flush policy and log file size. The policy decides only when a send is
    acknowledged: a commit is durable on a majority."""
    slowest = max(flush.p99_s for flush in measured.flushes)
    if facts.in_memory:
        policy, why = "durable", "flushes are free on a memory file system: only for trials"
    elif slowest <= SYNC_WARN_S:
        policy, why = "durable", f"99 of 100 flushes finish within {slowest * 1000:.1f} ms"
    elif slowest <= SYNC_ALARM_S:
        policy, why = (
            "hybrid",
            (
                f"flushes of up to {slowest * 1000:.0f} ms: let only messages that need it wait for"
                " them"
            ),
        )
    else:
        policy, why = (
            "memory",
            (
                f"flushes of up to {slowest * 1000:.0f} ms would delay every acknowledgement; a"
                " faster disk is better"
            ),
        )
    return Advice(policy, why, log_file_bytes(facts.total_bytes, measured.rate))


def reading(rate: float, log_bytes: int) -> tuple[Reading, list[Warning_]]:
    """The default rate; more if a pass would take longer than a week, but never more than a
    twentieth of the disk's rate. `rate` in bytes per second; `log_bytes` of all broker groups of
    the node."""
    most = rate * SCRUB_PART_OF_DISK
    wanted = max(SCRUB_BYTES_PER_S, log_bytes / SCRUB_PASS_S)
    chosen = max(1, round(min(wanted, most)))
    chosen_reading = Reading(chosen, log_bytes / chosen, chosen / rate)
    if log_bytes <= SCRUB_BYTES_PER_S * SCRUB_PASS_S:
        return chosen_reading, []
    problem = (
        f"at the default of {SCRUB_BYTES_PER_S // MIB} MiB/s reading {log_bytes / GIB:,.0f} GiB of"
        " logs again takes longer than a week"
    )
    remedy = f"set scrub.bytes_per_s to {chosen}"
    if chosen_reading.pass_s > SCRUB_PASS_S:
        remedy += (
            f", a twentieth of this disk: {chosen_reading.pass_s / 86_400:.0f} days; or keep fewer"
            " messages,"
            " or use more nodes"
        )
    return chosen_reading, [Warning_(WARN, problem, remedy)]


def about_files(group: str, differing: Sequence[int]) -> list[Warning_]:
    """Sealed log files, by position, whose digest on this node differs from the one that a majority
    recorded."""
    if not differing:
        return []
    names = ", ".join(f"{base:020d}" for base in differing[:FILES_NAMED]) + (
        " and more" if len(differing) > FILES_NAMED else ""
    )
    problem = (
        f"{len(differing)} sealed log file{'s' if len(differing) > 1 else ''} of {group} differ"
        f" from what a majority sealed: {names}"
    )
    return [
        Warning_(
            ALARM,
            problem,
            "delete nothing; run ledgermq audit over all replicas, it names the damaged bytes",
        )
    ]


def about_access(directory: str) -> Warning_:
    """A directory with messages that every user of the machine can enter."""
    problem = f"every user of this machine can enter {directory}, which holds messages"
    return Warning_(WARN, problem, f"chmod o-rwx {directory}")


def log_file_bytes(total_bytes: int, rate: float) -> int:
    """The largest usual size of which the disk holds enough files, and which is created fast
    enough."""
    for size in LOG_FILE_SIZES:
        if size * FILES_A_DISK <= total_bytes and size / rate <= FILE_ALLOCATION_S:
            return size
    return LOG_FILE_SIZES[-1]


def _about_medium(facts: Facts, measured: Measured | None) -> list[Warning_]:
    if facts.in_memory:
        problem = (
            f"{facts.file_system} is a memory file system: nothing on it survives a restart of the"
            " machine"
        )
        return [Warning_(ALARM, problem, "put the data on a disk")]
    if measured is None:
        return [
            Warning_(
                ALARM,
                f"{facts.free_bytes:,} bytes free are too few to measure the medium",
                "free space, then try again",
            )
        ]
    slow = max(measured.flushes, key=lambda flush: flush.p99_s)
    problem = (
        f"a flush of {slow.write_bytes // KIB} KiB takes {slow.p99_s * 1000:.0f} ms (p99), above"
        " {} ms"
    )
    if slow.p99_s > SYNC_ALARM_S:
        return [
            Warning_(
                ALARM,
                problem.format(round(SYNC_ALARM_S * 1000)),
                "use another disk, or find what else writes to this one",
            )
        ]
    if slow.p99_s > SYNC_WARN_S:
        return [
            Warning_(
                WARN,
                problem.format(round(SYNC_WARN_S * 1000)),
                "find what else writes to this disk; durable sends wait that long",
            )
        ]
    return []


def _about_space(facts: Facts, own_bytes: int | None) -> list[Warning_]:
    used, used_bytes = facts.used_percent, facts.total_bytes - facts.free_bytes
    for level, limit in ((ALARM, DISK_ALARM_PERCENT), (WARN, DISK_WARN_PERCENT)):
        if used > limit:
            problem, remedy = (
                f"{used:.1f} % of the file system are used, above {limit} %",
                "free or add space, or keep messages shorter",
            )
            if own_bytes is not None and 2 * own_bytes < used_bytes:
                problem += (
                    f"; {units.size_words(used_bytes - own_bytes)} of that by other files than this"
                    " node's"
                )
                remedy = "make room among the other files, or give the node a disk of its own"
            return [Warning_(level, problem, remedy)]
    return []


def _about_limits(facts: Facts) -> list[Warning_]:
    warnings = []
    if facts.open_files is not None and facts.open_files < OPEN_FILES_MIN:
        problem = f"this process may open {facts.open_files} files, a node wants {OPEN_FILES_MIN}"
        warnings.append(
            Warning_(WARN, problem, "raise the limit: ulimit -n, or LimitNOFILE of the service")
        )
    if facts.max_map_count is not None and facts.max_map_count < MAP_COUNT_MIN:
        problem = (
            f"a process may have {facts.max_map_count} memory maps, a node wants {MAP_COUNT_MIN}"
        )
        warnings.append(Warning_(WARN, problem, "raise it: sysctl vm.max_map_count=65530"))
    return warnings
