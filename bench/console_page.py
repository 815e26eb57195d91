"""The time of the console's overview of a large cluster: 1,000 topics and 300 consumer groups on three real nodes.

The console is a process of its own, as users start it. A page is timed as a browser asks for it, on a connection that is open: the first
one, which waits for the cluster's answers; pages at once after it, which the answers are kept for; and pages three seconds apart, longer
than answers are kept while no page is open, each of which asks the cluster again.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import cluster as cl
from bench import report
from ledgermq.client import Admin, Connection

NAME, RUNS, DURABLE = "console_page", 3, False
TOPICS, CONSUMER_GROUPS = 1_000, 300
KEPT_PAGES, ASKED_PAGES = 100, 10
APART_S = 3.0


def run(directory: Path, topics: int = TOPICS, groups: int = CONSUMER_GROUPS, asked: int = ASKED_PAGES) -> dict[str, Any]:
    with cl.running(directory) as cluster, Connection(cluster.endpoints, timeout_s=60) as connection:
        admin = Admin(connection)
        for number in range(topics):
            admin.create_topic(f"t{number:04}", queues=4)
        for number in range(groups):
            admin.create_group(f"c{number:03}")
        command = [sys.executable, "-m", "ledgermq", "console", "--listen", "127.0.0.1:0", "--endpoints", cluster.endpoints]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert console.stdout is not None
            url = console.stdout.readline().rpartition("console=")[2].strip()
            return {"topics": topics, "consumer_groups": groups, "apart_s": APART_S, **_timed(urlsplit(url).netloc, asked)}
        finally:
            console.terminate()
            console.communicate()


def _timed(where: str, asked: int) -> dict[str, Any]:
    browser = http.client.HTTPConnection(where, timeout=60)
    first, cookie = _page_ms(browser, {})
    headers = {"Cookie": cookie}
    kept = [_page_ms(browser, headers)[0] for _ in range(KEPT_PAGES)]
    again = []
    for _ in range(asked):
        time.sleep(APART_S)
        again.append(_page_ms(browser, headers)[0])
    return {
        "first_ms": first,
        "kept_median_ms": round(statistics.median(kept), 1),
        "kept_most_ms": max(kept),
        "asked_median_ms": round(statistics.median(again), 1),
        "asked_most_ms": max(again),
    }


def _page_ms(browser: http.client.HTTPConnection, headers: dict[str, str]) -> tuple[float, str]:
    """How long the whole overview took, and the cookie of the session that it began."""
    began = time.perf_counter()
    browser.request("GET", "/", headers=headers)
    answer = browser.getresponse()
    page = answer.read().decode()
    took_ms = round((time.perf_counter() - began) * 1000, 1)
    assert answer.status == 200 and "not loaded" not in page, (answer.status, page)
    return took_ms, (answer.getheader("Set-Cookie") or "").partition(";")[0]


def main() -> None:
    """`python -m bench.console_page DIR TOPICS GROUPS`: one manual run."""
    directory, topics, groups = sys.argv[1:]
    report.say(json.dumps(run(Path(directory), int(topics), int(groups)), indent=1))


if __name__ == "__main__":
    main()
