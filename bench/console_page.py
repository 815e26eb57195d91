"""The time of the console's overview of a large cluster on three real nodes: 1,000 topics with a
message in each of four queues, and 300 consumer groups.

The console is a process of its own, as users start it. A page is timed as a browser asks for it, on
a connection that is open: the first one, which waits for the cluster's answers; pages at once after
it, which the answers are kept for; and pages three seconds apart, each of which shows the last
answers with their age while the cluster is asked again. For those, `newer` is the time from the
request until the console has the new answers, which an open page then loads.
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

from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.client import Admin, Connection, Producer

NAME, RUNS, DURABLE = "console_page", 3, False
TOPICS, QUEUES, CONSUMER_GROUPS = 1_000, 4, 300
KEPT_PAGES, APART_PAGES = 100, 10
APART_S = 3.0
LOOK_S = 0.01


def run(
    directory: Path, topics: int = TOPICS, groups: int = CONSUMER_GROUPS, apart: int = APART_PAGES
) -> dict[str, Any]:
    with (
        cl.running(directory) as cluster,
        Connection(cluster.endpoints, timeout_s=60) as connection,
    ):
        admin = Admin(connection)
        for number in range(topics):
            admin.create_topic(f"t{number:04}", queues=QUEUES)
            with Producer(cluster.endpoints, f"t{number:04}") as producer:
                for sent in [producer.send(b"x", queue=queue) for queue in range(QUEUES)]:
                    sent.result()
        for number in range(groups):
            admin.create_group(f"c{number:03}")
        command = [
            sys.executable,
            "-m",
            "ledgermq",
            "console",
            "--listen",
            "127.0.0.1:0",
            "--endpoints",
            cluster.endpoints,
        ]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert console.stdout is not None
            url = console.stdout.readline().rpartition("console=")[2].strip()
            return {
                "topics": topics,
                "consumer_groups": groups,
                "apart_s": APART_S,
                **_timed(urlsplit(url).netloc, apart),
            }
        finally:
            console.terminate()
            console.communicate()


def _timed(where: str, apart: int) -> dict[str, Any]:
    browser = http.client.HTTPConnection(where, timeout=60)
    first, cookie = _page_ms(browser, {})
    headers = {"Cookie": cookie}
    kept = [_page_ms(browser, headers)[0] for _ in range(KEPT_PAGES)]
    aged, newer = [], []
    for _ in range(apart):
        time.sleep(APART_S)
        began = time.perf_counter()
        aged.append(_page_ms(browser, headers)[0])
        while _is_aged(browser, headers):
            time.sleep(LOOK_S)
        newer.append(round((time.perf_counter() - began) * 1000, 1))
    return {
        "first_ms": first,
        "kept_median_ms": round(statistics.median(kept), 1),
        "kept_most_ms": max(kept),
        "aged_median_ms": round(statistics.median(aged), 1),
        "aged_most_ms": max(aged),
        "newer_median_ms": round(statistics.median(newer), 1),
        "newer_most_ms": max(newer),
    }


def _is_aged(browser: http.client.HTTPConnection, headers: dict[str, str]) -> bool:
    """Whether the part of the page that updates itself still shows answers with their age."""
    browser.request("GET", "/", headers={**headers, "HX-Request": "true"})
    return 'class="aged"' in browser.getresponse().read().decode()


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
