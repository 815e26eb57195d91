"""One of three PySyncObj nodes, run by the interpreter that has the package: the leader generates
the load and prints one JSON line.

`pysyncobj_node.py OWN OTHERS JOURNAL BODY_BYTES WINDOW SECONDS WARM_UP_S`; JOURNAL `-` means none.
Ends on a signal.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from pysyncobj import SyncObj, SyncObjConf, replicated


class Log(SyncObj):
    """The replicated object: stores the last body and the number of bodies."""

    def __init__(self, own: str, others: list[str], journal: str | None) -> None:
        super().__init__(own, others, SyncObjConf(journalFile=journal, commandsWaitLeader=True))
        self.count, self.last = 0, b""

    @replicated
    def append(self, body: bytes) -> None:
        self.count += 1
        self.last = body


def make_load(
    log: Log, body: bytes, window: int, seconds: float, warm_up_s: float
) -> dict[str, float]:
    room, times, totals = threading.Semaphore(window), [], [0]
    begin = time.monotonic() + warm_up_s
    end = begin + seconds

    def acknowledged(started: float, error: int) -> None:
        now = time.monotonic()
        room.release()
        if error:
            raise SystemExit(f"a command failed with {error}")
        totals[0] += 1
        if begin <= now < end:
            times.append(now - started)

    while time.monotonic() < end:
        room.acquire()
        started = time.monotonic()
        log.append(body, callback=lambda _, error, started=started: acknowledged(started, error))
    for _ in range(window):
        room.acquire()
    ordered = sorted(times)
    parts = {f"p{part}_ms": ordered[int(len(ordered) * part / 100)] * 1000 for part in (50, 99)}
    return {"messages_per_s": len(ordered) / seconds, "total": totals[0], **parts}


def main() -> None:
    own, others, journal, body_bytes, window, seconds, warm_up_s = sys.argv[1:]
    log = Log(own, others.split(","), None if journal == "-" else journal)
    while not log.isReady() or log._getLeader() is None:
        time.sleep(0.05)
    if str(log._getLeader()) == own:
        result = make_load(
            log, b"x" * int(body_bytes), int(window), float(seconds), float(warm_up_s)
        )
        print(json.dumps(result), flush=True)
    else:
        print(flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
