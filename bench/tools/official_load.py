"""The unmodified official Python client in its own process, which prints one JSON line.

    python -m bench.tools.official_load ENDPOINTS TOPIC SECONDS

`send_async` with a window of 64 and bodies of 100 bytes; a send that raises ends the measurement.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer

from bench.tools.report import percentile

WINDOW = 64
WARM_UP_S = 3.0


def main() -> None:
    endpoints, topic, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    producer = Producer(ClientConfiguration(endpoints, Credentials(), "", 10), (topic,))
    producer.startup()
    slots = threading.Semaphore(WINDOW)
    latencies: list[float] = []
    failures: list[BaseException] = []
    begin = time.monotonic() + WARM_UP_S
    end = begin + seconds
    total = 0

    def finished(done: Future[Any], started: float) -> None:
        nonlocal total
        error = done.exception()
        if error is not None:
            failures.append(error)
        else:
            total += 1
            now = time.monotonic()
            if begin <= now < end:
                latencies.append(now - started)
        slots.release()

    while time.monotonic() < end and not failures:
        slots.acquire()
        message = Message()
        message.topic, message.body = topic, b"x" * 100
        started = time.monotonic()
        producer.send_async(message).add_done_callback(
            lambda done, started=started: finished(done, started)
        )
    for _ in range(WINDOW):
        slots.acquire()
    producer.shutdown()
    if failures:
        raise failures[0]
    ordered = sorted(latencies)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "messages_per_s": round(len(ordered) / seconds, 1),
                "p50_ms": round(percentile(ordered, 0.5) * 1000, 3),
                "p99_ms": round(percentile(ordered, 0.99) * 1000, 3),
                "client_cpu_us_a_message": round((usage.ru_utime + usage.ru_stime) / total * 1e6),
            }
        )
    )


if __name__ == "__main__":
    main()
