"""Has histories of clients checked by Porcupine, a published checker for linearizability, beside
our own checkers (`audit/history.py`).

`tests/faults/porcupine/` is a program in Go with the sequential models of a queue and of a consumer
group's committed offset. It reads one operation per JSON line, is built from Go's module proxy, and
shares no code with our own checkers.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.audit.history import NEVER, Read, Send

HERE = Path(__file__).parent / "porcupine"
BUILD_S, CHECK_S = 300, 120
LIMIT = "60s"
"""Time for each object. A check that needs longer has the result `Unknown`."""

Operation = dict[str, Any]


class Unavailable(Exception):
    """Porcupine cannot be built on this machine, with the reason."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A consumer group's offset was set. `returned` is NEVER if the outcome is unknown. Offsets are
    unique in a history."""

    offset: int
    invoked: float
    returned: float = NEVER


@dataclass(frozen=True, slots=True)
class Committed:
    """The consumer group's offset was read; −1 if the group had none."""

    offset: int
    invoked: float
    returned: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Porcupine's answer for one object: `Ok`, `Illegal` or `Unknown`. The longest legal order
    found has `ordered` operations; `stuck` describes the one that ends first among the others."""

    object: str
    result: str
    operations: int
    ordered: int
    stuck: str = ""


def queue_lines(
    name: str, sends: Iterable[Sequence[Send]], reads: Iterable[Sequence[Read]]
) -> Iterator[Operation]:
    """The operations on one queue, by client."""
    number = -1
    for number, ones in enumerate(sends):
        for send in ones:
            told = {} if send.offset is None else {"offset": send.offset}
            yield {
                "object": name,
                "client": number,
                "kind": "send",
                "value": send.value,
                **told,
                **_times(send.invoked, send.returned),
            }
    for client, seen in enumerate(reads, number + 1):
        for read in seen:
            told = {"first": read.first, "values": read.values, "end": read.end}
            yield {
                "object": name,
                "client": client,
                "kind": "read",
                **told,
                **_times(read.invoked, read.returned),
            }


def offset_lines(name: str, clients: Iterable[Sequence[Commit | Committed]]) -> Iterator[Operation]:
    """The operations on the committed offset of a consumer group in one queue, by client."""
    for client, ones in enumerate(clients):
        for one in ones:
            kind = "commit" if isinstance(one, Commit) else "committed"
            yield {
                "object": name,
                "client": client,
                "kind": kind,
                "offset": one.offset,
                **_times(one.invoked, one.returned),
            }


def _times(invoked: float, returned: float) -> Mapping[str, int]:
    """Nanoseconds; an unknown outcome has no `return`."""
    call = {"call": round(invoked * 1e9)}
    return call if returned == NEVER else {**call, "return": round(returned * 1e9)}


def check(operations: Iterable[Operation]) -> list[Verdict]:
    """Porcupine's verdicts, one per object. Raises Unavailable."""
    lines = "".join(json.dumps(operation) + "\n" for operation in operations)
    done = subprocess.run(
        [program(), "-limit", LIMIT],
        input=lines,
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Verdict(**json.loads(line)) for line in done.stdout.splitlines()]


@functools.cache
def program() -> Path:
    """The program, built once per process. Raises Unavailable where there is no go, or where
    Porcupine cannot be fetched."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("no go here")
    fetched = subprocess.run(
        [go, "mod", "download"],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if fetched.returncode:
        raise Unavailable(f"Porcupine could not be fetched: {fetched.stderr.strip()}")
    home = Path(tempfile.mkdtemp(prefix="porcupine-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    built = subprocess.run(
        [go, "build", "-mod=readonly", "-o", home / "histories", "."],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return home / "histories"
