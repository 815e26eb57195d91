"""The sizing of a cluster: what a load needs, computed from measured costs. `ledgermq doctor
--plan` prints it; docs/sizing.md explains it.

Law: pure arithmetic. Every measured constant is a `Figure` with the page and the text that state
it, and a test compares both, so neither can change alone. For equal options, a larger load never
needs fewer nodes, broker groups, cores in use, bytes of disk or of network in sum.

A broker group has one leader in one process, and a process uses one core. So the plan has one
broker group for each process, every process leads one group and follows in `replicas` − 1 others,
and the number of processes follows from the cost of a message on all replicas.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.proto.workers import WORKERS_MAX
from ledgermq.storage.files.thresholds import DISK_WARN_PERCENT

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
NATIVE, ROCKETMQ = "native", "rocketmq"
NODES_MAX = 1000
"""No plan has more nodes: every node holds a connection to every other one."""


class UnusablePlan(ValueError):
    """The text or an option cannot be planned for; the message names the reason and the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")


# -- what was measured


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement as (argument, value) points, most often one. `page` states it by `quotes`;
    `command` measures it."""

    what: str
    points: tuple[tuple[float, float], ...]
    page: str
    quotes: tuple[str, ...]
    command: str

    @property
    def value(self) -> float:
        return self.points[0][1]

    def at(self, argument: float) -> float:
        """The value at an argument: between two points by a straight line, below the first point
        its value, above the last one along the last line."""
        if argument <= self.points[0][0]:
            return self.value
        pairs = list(zip(self.points, self.points[1:], strict=False))
        (left, low), (right, high) = next(
            (pair for pair in pairs if argument <= pair[1][0]), pairs[-1]
        )
        return low + (high - low) * (argument - left) / (right - left)


PERFORMANCE, SIZING = "docs/performance.md", "docs/sizing.md"
SUITE, SIZES = "make bench", "python -m bench sizes"
BODY_BYTES = (100, 1_024, 10_240)


def _by_body(label: str, *values: float) -> Figure:
    quotes = [f"| a native message of {size:,} bytes |" for size in BODY_BYTES]
    return Figure(label, tuple(zip(BODY_BYTES, values, strict=True)), SIZING, tuple(quotes), SUITE)


def _one(label: str, value: float, page: str, quote: str, command: str) -> Figure:
    return Figure(label, ((0, value),), page, (quote,), command)


FIGURES: Mapping[str, Figure] = {
    "native_leader_us": _by_body("native message, leader, µs", 7.71, 19.4, 144),
    "native_follower_us": _by_body("native message, each follower, µs", 4.89, 12.4, 96.8),
    "native_written_per_byte": _by_body(
        "native message, written bytes for each byte of it", 11, 3.06, 2.7
    ),
    "native_read_us": Figure(
        "native message, read, µs",
        ((100, 0.934), (10_240, 25.1)),
        SIZING,
        ("| a native message of 100 bytes, read |", "| a native message of 10,240 bytes, read |"),
        SUITE,
    ),
    "queues_leader_us": Figure(
        "native message of 100 bytes, leader, µs, by queues",
        ((1, 8.03), (10, 8.31), (100, 8.74), (1_000, 14.2)),
        SIZING,
        tuple(
            f"| a native message of 100 bytes over {queues} |"
            for queues in ("1 queue", "10 queues", "100 queues", "1,000 queues")
        ),
        SUITE,
    ),
    "unary_sends_per_s": _one(
        "unary sends that fill the leader, a second",
        938,
        SIZING,
        "| unary sends, 64 in flight |",
        "python -m bench send",
    ),
    "unary_servers_us": _one(
        "unary send, all three nodes, µs",
        1_357.2,
        SIZING,
        "| a unary send, on all three nodes |",
        SUITE,
    ),
    "unary_written": _one(
        "bytes written for each byte of 10 messages of 100 bytes in one commit",
        424,
        SIZING,
        "| 10 messages of 100 bytes in one commit |",
        SUITE,
    ),
    "receives_per_s": _one(
        "messages received and acknowledged, 32 in a call, a second",
        4_432,
        SIZING,
        "| received and acknowledged, 32 in a call |",
        "python -m bench receive",
    ),
    "rest_percent": _one(
        "node with one broker group at rest, % of a core",
        2,
        PERFORMANCE,
        "| 2 / 1.5 % of a core |",
        "python -m bench idle",
    ),
    "group_rest_percent": _one(
        "one more broker group at rest, % of a core",
        1.18,
        PERFORMANCE,
        "**1.18 %** of a core, **0.8 MiB**",
        "python -m bench groups",
    ),
    "group_mib": _one(
        "one more broker group at rest, MiB",
        0.8,
        PERFORMANCE,
        "**1.18 %** of a core, **0.8 MiB**",
        "python -m bench groups",
    ),
    "process_mib": _one(
        "process under load for half an hour, MiB",
        164,
        PERFORMANCE,
        "137 / **164 MiB** at most",
        "make soak",
    ),
    "poll_mib": _one(
        "10,000 idle long polls, MiB",
        258,
        PERFORMANCE,
        "+ **258 MiB**, **4 %** of a core",
        "python -m bench polls",
    ),
    "poll_percent": _one(
        "10,000 idle long polls, % of a core",
        4,
        PERFORMANCE,
        "+ **258 MiB**, **4 %** of a core",
        "python -m bench polls",
    ),
    "native_message_bytes": _one(
        "native message of 1 KiB in the log, bytes",
        1_212,
        SIZING,
        "| a native message of 1 KiB in the log | 1,212 bytes |",
        SIZES,
    ),
    "unary_message_bytes": _one(
        "unary message of 1 KiB in the log, bytes",
        1_229,
        SIZING,
        "| a unary message of 1 KiB in the log | 1,229 bytes |",
        SIZES,
    ),
    "delivered_bytes": _one(
        "log records for a message received and acknowledged alone, bytes",
        30.9,
        SIZING,
        "| log records for a message received and acknowledged alone | 30.9 bytes |",
        SIZES,
    ),
    "topic_kib": _one(
        "topic with one queue, KiB", 3.29, SIZING, "| a topic with one queue | 3.29 KiB |", SIZES
    ),
    "queue_kib": _one(
        "queue, KiB", 2.07, SIZING, "| a queue that holds messages | 2.07 KiB |", SIZES
    ),
    "consumer_group_kib": _one(
        "consumer group, KiB", 2, SIZING, "| a consumer group | 2 KiB |", SIZES
    ),
    "connection_kib": _one(
        "idle connection, KiB", 23.46, SIZING, "| an idle connection | 23.46 KiB |", SIZES
    ),
}

MEASURED_BODY_BYTES = 1_024
"""The body of the messages whose bytes in the log were measured."""
INDEX_BYTES = 32 + 20
"""The units of the index file and of the consume queue (docs/format.md, 5 and 6)."""
KEY_BYTES = 4 * 5_000_000 / 20_000_000 + 20 + 12 / 8
"""A key: slots and unit of the key index, and its part of the filter (docs/format.md, 14)."""
KEYS_NATIVE, KEYS_UNARY = 1 / 1_024, 1
"""Keys of a message for its id. Keys that an application gives come on top."""
FILES_BEYOND = 3
"""Log files of a replica beyond what retention keeps: the oldest goes when its last message is too
old, the one being written has all its blocks, and the next one is created when a quarter of that is
used."""
PART_USED = 0.5
"""The part of a core and of the network that the planned load uses. At half of the measured
throughput latencies are low (docs/benchmarks.md, Latency), and a lost node leaves its load to the
others."""
MEMORY_HEADROOM = 2
"""Memory planned for each measured byte."""
CACHE_S = 60
"""Seconds of the log that the page cache holds, so that consumers that keep up read no disk."""
MEMORY_LIMIT = 2
"""The limit of a container's memory for each requested byte: the kernel counts page cache, and
frees it first."""


# -- what is asked


@dataclass(frozen=True, slots=True)
class Load:
    """`messages_per_s` of `body_bytes` each, kept for `retention_s`."""

    messages_per_s: float
    body_bytes: int
    retention_s: float


@dataclass(frozen=True, slots=True)
class Options:
    """The cluster that carries the load, and the hardware of one node."""

    replicas: int = 3
    nodes: int | None = None
    """None: as many as are needed."""
    clients: str = NATIVE
    consumer_groups: int = 1
    """Each reads every message."""
    topics: int = 1
    queues: int = 8
    """Of each topic."""
    connections: int = 100
    log_file_bytes: int = GIB
    cores: int = 4
    memory_bytes: int = 16 * GIB
    disk_bytes: int = 4 * TIB
    disk_bytes_per_s: float = 200 * MIB
    network_bytes_per_s: float = 125e6


RATE = re.compile(
    r"(\d+(?:[.,]\d+)*)\s*([kKM]?)\s*(?:msgs?|messages?|records?)?\s*/\s*s(?:ec(?:ond)?)?"
)
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|bytes?|KiB|KB|kB|MiB|MB)")
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|seconds?|min|minutes?|h|hours?|d|days?|w|weeks?)")
SIZES_BYTES = {"B": 1, "KiB": KIB, "KB": 1_000, "kB": 1_000, "MiB": MIB, "MB": 1_000_000}
SPANS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
FORM = "write it like '20k msg/s of 1 KiB, 3 days'"
BODY_BYTES_MAX = 4 * MIB
MESSAGES_PER_S_MAX = 1e9
RETENTION_S_MAX = 3_653 * 86_400


def parse(text: str) -> Load:
    """The load that a text such as `20k msg/s of 1 KiB, 3 days` states. Raises UnusablePlan."""
    match = re.fullmatch(r"\s*(.+?)\s+of\s+(.+?)\s*,\s*(?:kept\s+)?(?:for\s+)?(.+?)\s*", text)
    if match is None:
        raise UnusablePlan(f"the plan {text!r} is not a rate, a size and a duration", FORM)
    rate, size, span = RATE.fullmatch(match[1]), SIZE.fullmatch(match[2]), SPAN.fullmatch(match[3])
    if rate is None:
        raise UnusablePlan(f"{match[1]!r} is not a rate such as '500 msg/s' or '20k msg/s'", FORM)
    if size is None:
        raise UnusablePlan(f"{match[2]!r} is not a size such as '100 B', '1 KiB' or '1 MB'", FORM)
    if span is None:
        raise UnusablePlan(
            f"{match[3]!r} is not a duration such as '12 hours', '3 days' or '2 weeks'", FORM
        )
    if not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?|\d+(\.\d+)?", rate[1]):
        raise UnusablePlan(f"{rate[1]!r} is not a number", "write 20000, 20,000 or 20k")
    load = Load(
        float(rate[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6}[rate[2].replace("K", "k")],
        math.ceil(float(size[1]) * SIZES_BYTES.get(size[2], 1)),
        float(span[1]) * SPANS_S[span[2][0]],
    )
    if not 0 < load.messages_per_s <= MESSAGES_PER_S_MAX:
        raise UnusablePlan(
            f"a rate of {match[1]} cannot be planned for",
            "give more than 0 and at most 1,000 million messages a second",
        )
    if not 0 < load.body_bytes <= BODY_BYTES_MAX:
        raise UnusablePlan(
            f"messages of {match[2]} are not possible",
            "give a size from 1 B to 4 MiB (docs/limits.md)",
        )
    if not 0 < load.retention_s <= RETENTION_S_MAX:
        raise UnusablePlan(
            f"a retention of {match[3]} cannot be planned for",
            "give more than 0 and at most ten years",
        )
    return load


# -- what it needs


@dataclass(frozen=True, slots=True)
class Need:
    """What one node needs. `cores`: one for each worker and one for syncs, scrub and the system.
    `cores_used`: what the load is expected to use of them."""

    workers: int
    replicas: int
    cores: int
    cores_used: float
    memory_bytes: int
    page_cache_bytes: int
    """A part of `memory_bytes`."""
    disk_bytes: int
    disk_written_per_s: float
    network_in_per_s: float
    network_out_per_s: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer: `nodes` of `node` with `groups` broker groups in sum. `limit`: the resource that
    decides the number of nodes, or "replicas". `exceeded`: resources of which a node needs more
    than the hardware has; empty unless the number of nodes was given."""

    load: Load
    options: Options
    nodes: int
    groups: int
    node: Need
    log_bytes_a_message: float
    limit: str
    exceeded: tuple[str, ...] = field(default=())


def plan(load: Load, options: Options) -> Sizing:
    """The cluster for a load. Raises UnusablePlan."""
    _check(options)
    if options.nodes is not None:
        return _with(load, options, options.nodes)
    # What one node needs never grows with the number of nodes.
    possible = range(options.replicas, NODES_MAX + 1)
    place = bisect_left(possible, True, key=lambda nodes: not _with(load, options, nodes).exceeded)
    if place < len(possible):
        return _explained(_with(load, options, possible[place]))
    worst = ", ".join(_with(load, options, NODES_MAX).exceeded)
    remedy = "divide the load between several clusters, or give nodes with more of it"
    raise UnusablePlan(f"more than {NODES_MAX:,} nodes would be needed ({worst})", remedy)


def _check(options: Options) -> None:
    if options.nodes is not None and options.nodes < options.replicas:
        problem = (
            f"{options.replicas} replicas need {options.replicas} nodes, and --nodes is"
            f" {options.nodes}"
        )
        raise UnusablePlan(problem, "raise --nodes or lower --replicas")
    if options.nodes is None and options.cores < 2:
        raise UnusablePlan(
            "a node with one core has none left for syncs and the system",
            "give --cores 2 or more, or fix --nodes",
        )


def _explained(sizing: Sizing) -> Sizing:
    """With the resource that one node less would lack."""
    if sizing.nodes == sizing.options.replicas:
        return sizing
    fewer = _with(sizing.load, sizing.options, sizing.nodes - 1)
    return _with(sizing.load, sizing.options, sizing.nodes, fewer.exceeded[0])


def message_us(load: Load, options: Options) -> tuple[float, float, float]:
    """Processor time of one message in µs: leader, each follower, each consumer group."""
    queues = (
        _figure("queues_leader_us").at(min(options.topics * options.queues, 1_000))
        / _figure("queues_leader_us").value
    )
    if options.clients == ROCKETMQ:
        leader = 1e6 / _figure("unary_sends_per_s").value
        follower = (_figure("unary_servers_us").value - leader) / 2
        # A larger body costs as much more as in a native stream.
        more = [
            _figure(name).at(load.body_bytes) - _figure(name).value
            for name in ("native_leader_us", "native_follower_us")
        ]
        read = 1e6 / _figure("receives_per_s").value + _figure("native_read_us").at(load.body_bytes)
        return (leader + more[0]) * queues, follower + more[1], read
    names = ("native_leader_us", "native_follower_us", "native_read_us")
    leader, follower, read = (_figure(name).at(load.body_bytes) for name in names)
    return leader * queues, follower, read


def log_bytes(load: Load, options: Options) -> tuple[float, float]:
    """Bytes of one message in the log of one replica, with its deliveries, and bytes on the disk
    with indexes."""
    native = options.clients == NATIVE
    over = (
        _figure("native_message_bytes" if native else "unary_message_bytes").value
        - MEASURED_BODY_BYTES
    )
    delivered = 0.0 if native else options.consumer_groups * _figure("delivered_bytes").value
    entry = load.body_bytes + over + delivered
    return entry, entry + INDEX_BYTES + (KEYS_NATIVE if native else KEYS_UNARY) * KEY_BYTES


def _figure(name: str) -> Figure:
    return FIGURES[name]


def _written(load: Load, options: Options) -> float:
    """Bytes that one replica writes for one message, the zeros of new log files included."""
    points = tuple(
        (size, size * factor) for size, factor in _figure("native_written_per_byte").points
    )
    native = Figure("", points, "", (), "").at(load.body_bytes)
    if options.clients == NATIVE:
        return native
    return native - points[0][1] + points[0][0] * _figure("unary_written").value


def _with(load: Load, options: Options, nodes: int, limit: str = "replicas") -> Sizing:
    rate, replicas = load.messages_per_s, options.replicas
    leader, follower, read = message_us(load, options)
    polls = options.connections / 10_000 * _figure("poll_percent").value / 100
    busy = (
        rate * (leader + (replicas - 1) * follower + options.consumer_groups * read) / 1e6 + polls
    )
    rest = (
        _figure("rest_percent").value + (replicas - 1) * _figure("group_rest_percent").value
    ) / 100
    groups = max(math.ceil(busy / (PART_USED - rest)), nodes)
    workers, hosted = math.ceil(groups / nodes), math.ceil(groups * replicas / nodes)
    part = rate * replicas / nodes
    entry, stored = log_bytes(load, options)
    cache = part * entry * CACHE_S
    carried = rate / nodes * entry
    disk = part * stored * load.retention_s + hosted * FILES_BEYOND * options.log_file_bytes
    need = Need(
        workers=workers,
        replicas=hosted,
        cores=workers + 1,
        cores_used=busy / nodes + workers * rest,
        memory_bytes=math.ceil(_heap(options, nodes, workers, hosted) + cache),
        page_cache_bytes=math.ceil(cache),
        disk_bytes=math.ceil(disk * 100 / DISK_WARN_PERCENT),
        disk_written_per_s=part * _written(load, options),
        network_in_per_s=replicas * carried,
        network_out_per_s=(replicas - 1 + options.consumer_groups) * carried,
    )
    exceeded = tuple(name for name, has, needs in _against(options, need) if needs > has)
    return Sizing(
        load=load,
        options=options,
        nodes=nodes,
        groups=groups,
        node=need,
        log_bytes_a_message=entry,
        limit=limit,
        exceeded=exceeded,
    )


def _heap(options: Options, nodes: int, workers: int, hosted: int) -> float:
    """Memory of the processes of a node. Every worker knows all topics and consumer groups."""
    topic = _figure("topic_kib").value + (options.queues - 1) * _figure("queue_kib").value
    known = options.topics * topic + options.consumer_groups * _figure("consumer_group_kib").value
    process = _figure("process_mib").value * MIB + known * KIB
    call = _figure("poll_mib").value * MIB / 10_000 + _figure("connection_kib").value * KIB
    own = (
        workers * process
        + hosted * _figure("group_mib").value * MIB
        + options.connections / nodes * call
    )
    return MEMORY_HEADROOM * own


def _against(options: Options, need: Need) -> Iterator[tuple[str, float, float]]:
    """(Resource, what a node has, what it needs)."""
    yield "cores", min(options.cores, WORKERS_MAX + 1), need.cores
    yield "memory", options.memory_bytes, need.memory_bytes
    yield "disk", options.disk_bytes, need.disk_bytes
    yield "disk writes", options.disk_bytes_per_s, need.disk_written_per_s
    yield (
        "network",
        PART_USED * options.network_bytes_per_s,
        max(need.network_in_per_s, need.network_out_per_s),
    )


# -- the chart and the page


def _up(value: float, step: float) -> int:
    return math.ceil(value / step - 1e-9)


def chart_values(sizing: Sizing) -> dict[str, object]:
    """The values of the Helm chart for a plan (docs/kubernetes.md): processor rounded up to
    quarters, memory to 128 MiB, volume to GiB."""
    memory = _up(sizing.node.memory_bytes, 128 * MIB) * 128
    return {
        "replicas": sizing.nodes,
        "workers": sizing.node.workers,
        "storage": {"size": f"{_up(sizing.node.disk_bytes, GIB)}Gi"},
        "resources": {
            "requests": {
                "cpu": f"{_up(sizing.node.cores_used / PART_USED, 0.25) * 250}m",
                "memory": f"{memory}Mi",
            },
            "limits": {"memory": f"{memory * MEMORY_LIMIT}Mi"},
        },
    }


def figures_table() -> list[str]:
    """The table of the measured constants in docs/sizing.md, as lines."""
    rows = [
        f"| {figure.what} | {_points(figure.points)} |"
        f" {figure.page if figure.page != SIZING else 'below'} | `{figure.command}` |"
        for figure in FIGURES.values()
    ]
    return ["| figure | value | stated in | command |", "|---|---|---|---|", *rows]


def _points(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        return f"{points[0][1]:,g}"
    return ", ".join(f"{value:,g} at {argument:,g}" for argument, value in points)
