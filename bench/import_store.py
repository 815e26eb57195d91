"""The speed and memory of importing a RocketMQ store root: two sizes of one kind of store, with the
command as users run it.

The store is generated file by file. The whole command is measured, in its own process: two readings
of the source, the new log, its consume queues and state, reading it back, the copies, the audit.
Memory should not depend on the size of the store.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.tools import report

NAME, RUNS, DURABLE = "import-store", 1, True
FILE_BYTES = 64 << 20
BODY_BYTES = 1024
SIZES = (64 << 20, 384 << 20)
QUEUES = 8
SAMPLE_S = 0.1
BORN_MS = 1_700_000_000_000
_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")


def run(directory: Path) -> dict[str, Any]:
    return {
        "body_bytes": BODY_BYTES,
        "runs": [timed(directory, size, nodes) for size in SIZES for nodes in (1, 3)],
    }


def table(result: dict[str, Any]) -> str:
    """The result as text lines."""
    return "\n".join(
        f"{one['source_mib']} MiB to {one['nodes']} nodes: {one['seconds']} s, {one['mib_per_s']}"
        f" MiB/s, {one['messages_per_s']} messages/s, {one['cpu_s']} s of processor time, peak heap"
        f" {one['peak_heap_mib']} MiB"
        for one in result["runs"]
    )


def timed(directory: Path, size: int, nodes: int) -> dict[str, Any]:
    """One import, in its own process."""
    store, target = directory / "store", directory / "cluster"
    count = make_store(store, size)
    command = [
        sys.executable,
        "-m",
        "ledgermq",
        "import",
        "--from",
        str(store),
        "--data",
        str(target),
        "--nodes",
        str(nodes),
        "--json",
    ]
    began = time.monotonic()
    # Spawned here to get the usage of this child: `getrusage` only has the maximum over all
    # children.
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=quiet)
    heap = 0
    while not (ended := os.wait4(child, os.WNOHANG))[0]:
        # Maps of the log count as resident too, but belong to the page cache.
        heap = max(heap, _heap_kib(child))
        time.sleep(SAMPLE_S)
    _, status, usage = ended
    seconds = time.monotonic() - began
    assert status == 0, f"the import ended with {os.waitstatus_to_exitcode(status)}"
    for path in (store, target):
        shutil.rmtree(path)
    source_mib = size / (1 << 20)
    found = {
        "source_mib": round(source_mib),
        "nodes": nodes,
        "messages": count,
        "seconds": round(seconds, 1),
        "mib_per_s": round(source_mib / seconds, 1),
        "messages_per_s": round(count / seconds),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_heap_mib": heap >> 10,
        "peak_resident_mib": usage.ru_maxrss >> 10,
    }
    report.say(f"import: {found}")
    return found


def _heap_kib(process: int) -> int:
    """The memory of a process that is not backed by files."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def make_store(path: Path, size: int) -> int:
    """A plain commit log of about `size` bytes. Returns the number of messages."""
    (path / "commitlog").mkdir(parents=True)
    count, base = 0, 0
    for data, held in _files(size):
        (path / "commitlog" / f"{base:020d}").write_bytes(data)
        base, count = base + FILE_BYTES, count + held
    return count


def _files(size: int) -> Iterator[tuple[bytes, int]]:
    """File by file: its bytes, and its number of messages."""
    number = 0
    for base in range(0, size, FILE_BYTES):
        data, first = bytearray(), number
        while True:
            record = _record(number, base + len(data))
            if len(data) + len(record) + 8 > FILE_BYTES:
                break
            data += record
            number += 1
        data += struct.pack(">II", FILE_BYTES - len(data), 0xCBD43194)
        yield bytes(data) + bytes(FILE_BYTES - len(data)), number - first


def _record(number: int, position: int) -> bytes:
    body = (b"%016d" % number) * (BODY_BYTES // 16)
    properties = f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01tag{number % 5}\x02KEYS\x01k{number}\x02WAIT\x01true\x02".encode()
    tail = b"\x06orders" + len(properties).to_bytes(2, "big") + properties
    host = bytes([10, 1, 2, 3, 0, 0, 0x2A, 0x9F])
    total = _HEAD.size + len(body) + len(tail)
    place = number % QUEUES, 0, number // QUEUES, position
    head = _HEAD.pack(
        total, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, *place, 0, BORN_MS + number, host, BORN_MS + number, host, 0, 0, len(body)
    )  # fmt: skip
    return head + body + tail
