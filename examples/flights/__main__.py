"""`make demo`: publish, consume, kill the leader, audit, and say PASS or FAIL in the last line."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.cluster import LEDGERMQ, DemoFailure, Nodes, Traffic, undisturbed
from examples.flights.traffic import FIFO_MESSAGES, FIFO_TOPIC, NORMAL_TOPIC
from examples.flights.verdict import Ledger, order_violations

STALL_S = 60.0
QUEUES = 8
console = Console(stderr=True)


class Screen:
    """Progress: bars on a terminal, otherwise a line every five seconds."""

    def __init__(self, total: int) -> None:
        self._bars = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = total
        self._acknowledged = self._bars.add_task("acknowledged", total=total)
        self._consumed = self._bars.add_task("consumed", total=total)
        self._last_line = time.monotonic()

    def __enter__(self) -> Screen:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, acknowledged: int, consumed: int) -> None:
        self._bars.update(self._acknowledged, completed=acknowledged)
        self._bars.update(self._consumed, completed=min(consumed, self._total))
        if not console.is_terminal and time.monotonic() - self._last_line >= 5:
            self._last_line = time.monotonic()
            say(f"acknowledged {acknowledged}/{self._total}, consumed {consumed}")


def say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False)


class Story:
    """The demo, step by step."""

    def __init__(self, work: Path, messages: int, *, with_console: bool = False) -> None:
        """`with_console`: open the console, and keep the nodes running at the end until Ctrl-C."""
        self.work = work
        self.messages = messages
        self.with_console = with_console
        self.total = messages
        self.ledger = Ledger()
        self.nodes = Nodes(work)
        self.address = ""
        self._lock = threading.Lock()
        self._traffic: list[Traffic] = []

    def run(self) -> str:
        """Run all steps; returns the audit's verdict text for the table. Raises DemoFailure."""
        self.start()
        self.traffic()
        violations = self.check_order()
        self.stop()
        audit = self.audit()
        self.print_table(audit)
        if violations:
            raise DemoFailure("FIFO order broken: " + "; ".join(violations[:3]))
        if self.ledger.lost:
            raise DemoFailure(
                f"{len(self.ledger.lost)} acknowledged messages were never consumed, first"
                f" {self.ledger.lost[0][0]}"
            )
        if audit["verdict"] != "PASS":
            raise DemoFailure(
                f"audit verdict {audit['verdict']}:"
                f" {'; '.join(audit['reasons']) or 'see the findings'}"
            )
        if self.with_console:
            self.stay()
        return str(audit["verdict"])

    def start(self) -> None:
        say("starting three nodes on loopback")
        self.nodes.start(lambda: say(f"ready: {self.nodes.endpoints}"))
        if self.with_console:
            self.address = self.nodes.open_console()
            say(f"console: {self.address}")
        for topic, kind in ((NORMAL_TOPIC, "normal"), (FIFO_TOPIC, "fifo")):
            status, text = self.nodes.run(
                "topic", "create", topic, "--kind", kind, "--queues", str(QUEUES)
            )
            if status != 0:
                raise DemoFailure(f"topic create {topic}: {text.strip()}")

    def record(self, fact: dict[str, Any]) -> None:
        with self._lock:
            self.ledger.record(fact)

    def traffic(self) -> None:
        """Produce and consume; kill the leader at one third, restart it at two thirds, and wait
        until everything is consumed."""
        say(
            f"publishing {self.messages} flights with the official client, consuming at the same"
            " time"
        )
        self.total = self.messages + min(FIFO_MESSAGES, self.messages)
        for role in ("consume", "produce"):
            with undisturbed():
                self._traffic.append(
                    Traffic(role, self.nodes.endpoints, self.messages, self.work, self.record)
                )
        with Screen(self.total) as screen:
            self.wait_for(lambda: len(self.ledger.acknowledged) >= self.total // 3, screen)
            leader, group = self.nodes.leader()
            with self._lock:
                self.ledger.killed_at = time.monotonic()
            self.nodes.kill(leader, group)
            for traffic in self._traffic:
                traffic.tell("killed")
            say(f"killed the leader {leader} with SIGKILL")
            self.wait_for(lambda: self.ledger.first_ack_after_kill is not None, screen)
            self.wait_for(lambda: len(self.ledger.acknowledged) >= self.total * 2 // 3, screen)
            say(f"starting {leader} again")
            self.nodes.restart(leader)
            self.wait_for(lambda: self.ledger.producer_done, screen)
            self.wait_for(lambda: not self.ledger.lost, screen)
        status, text = self.nodes.run("status", "--wait", "20s", "--strict")
        if status != 0:
            raise DemoFailure(f"the cluster is not whole again: {text.strip()}")

    def wait_for(self, condition: Callable[[], bool], screen: Screen) -> None:
        """Wait until the condition holds; give up when there was no progress for a minute."""
        moved, before = time.monotonic(), (-1, -1)
        while True:
            with self._lock:
                now = (len(self.ledger.acknowledged), len(self.ledger.consumed))
                met = condition()
            screen.show(*now)
            if met:
                return
            if now != before:
                moved, before = time.monotonic(), now
            if time.monotonic() - moved > STALL_S:
                standstill = (
                    f"acknowledged {now[0]}, consumed {now[1]}, resends {self.ledger.resends}"
                )
                raise DemoFailure(f"no progress for {STALL_S:.0f} s: {standstill}")
            for traffic in self._traffic:
                if traffic.process.poll() not in (None, 0):
                    raise DemoFailure(
                        f"the official client's process ended with {traffic.process.returncode};"
                        " see *.log"
                    )
            time.sleep(0.1)

    def check_order(self) -> list[str]:
        """Check one queue and send order per tail number, read back from the log with `peek`."""
        say("checking queue and order of every tail number")
        status, text = self.nodes.run("peek", "--topic", FIFO_TOPIC, "--max", "100000", "--json")
        if status != 0:
            raise DemoFailure(f"peek {FIFO_TOPIC}: {text.strip()}")
        return order_violations(
            [json.loads(line) for line in text.splitlines()], self.ledger, FIFO_TOPIC
        )

    def stop(self) -> None:
        for traffic in self._traffic:
            traffic.stop()
        say("stopping the cluster")
        self.nodes.stop()

    def audit(self) -> dict[str, Any]:
        """The Spark audit over the three stopped data directories; its progress is passed on to
        stderr."""
        say("auditing the three replicas with Spark")
        directories = [str(self.nodes.data / f"n{k}") for k in (1, 2, 3)]
        done = subprocess.run(
            [*LEDGERMQ, "audit", *directories, "--json", "--html", str(self.work / "audit.html")],
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        if not done.stdout.strip():
            raise DemoFailure(f"the audit ended with status {done.returncode} and no verdict")
        verdict: dict[str, Any] = json.loads(done.stdout)
        return verdict

    def print_table(self, audit: dict[str, Any]) -> None:
        ledger = self.ledger
        table = Table(title="LedgerMQ demo")
        table.add_column("what")
        table.add_column("result", justify="right")
        gap = ledger.seconds_without_leader
        rows = [
            ("sent", str(self.total)),
            ("acknowledged", str(len(ledger.acknowledged))),
            ("consumed", str(len(ledger.consumed))),
            ("duplicates", str(ledger.duplicates)),
            ("lost", str(len(ledger.lost))),
            ("time without a leader", "unknown" if gap is None else f"{gap:.2f} s"),
        ]
        rows += [
            (f"audit {replica['replica']}", str(replica["verdict"]))
            for replica in audit["replicas"]
        ]
        for row in rows:
            table.add_row(*row)
        Console().print(table)

    def stay(self) -> None:
        """Run the nodes again, and look at them until Ctrl-C."""
        self.nodes.resume()
        say(f"console: {self.address} shows the nodes and their data until Ctrl-C")
        try:
            signal.pause()
        except KeyboardInterrupt:
            say("stopping the cluster")

    def abandon(self) -> None:
        """Leave no process running, whatever happened."""
        for traffic in self._traffic:
            if traffic.process.poll() is None:
                traffic.process.kill()
        self.nodes.close_console()
        self.nodes.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--messages", type=int, default=20000)
    parser.add_argument(
        "--console", action="store_true", help="Open the console, and stay until Ctrl-C."
    )
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="ledgermq-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reason = ""
    story = Story(work, options.messages, with_console=options.console)
    try:
        story.run()
    except DemoFailure as failure:
        reason = str(failure)
    except KeyboardInterrupt:
        reason = "interrupted"
    except subprocess.TimeoutExpired as late:
        reason = f"a command took too long: {late}"
    except Exception as bug:  # the outermost frame: the last line must say FAIL for any error
        console.print_exception()
        reason = f"bug in the demo: {type(bug).__name__}: {bug}"
    finally:
        # An interrupt during the shutdown must not leave a process running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        story.abandon()
    if reason:
        say(f"the data is kept in {work}")
        console.file.flush()
        print(f"demo: FAIL: {reason}", flush=True)
        return 130 if reason == "interrupted" else 1
    shutil.rmtree(work)
    print("demo: PASS", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
