"""The unmodified official RocketMQ Python client in its own process: `python -m
examples.flights.traffic ROLE …`.

Every event is printed to stdout as one JSON line, and judged elsewhere; this module decides
nothing. Times are CLOCK_MONOTONIC seconds, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

from examples.flights.data import Flight, flights

NORMAL_TOPIC = "flights"
FIFO_TOPIC = "flights-by-plane"
WINDOW = 64
FIFO_MESSAGES = 1000
RESERVE = 10
INVISIBLE_S = 15
RECEIVE_THREADS = 4
# The client's ack_async drops the future, and with it its errors; threads keep them.
ACK_THREADS = 32
_out = threading.Lock()


def emit(**fact: Any) -> None:
    """Print one JSON line on stdout; the lines of different threads never mix."""
    line = json.dumps(fact, separators=(",", ":")) + "\n"
    with _out:
        sys.stdout.write(line)
        sys.stdout.flush()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def configuration(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials(), "", 3)


class Sender:
    """Keeps at most WINDOW sends in flight. A failed send is repeated, so only `OrderedSends` keeps
    an order."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._slots = threading.Semaphore(WINDOW)
        self._open = 0
        self._idle = threading.Condition()

    def submit(self, flight: Flight, topic: str, then: Callable[[], None] = lambda: None) -> None:
        """Send one flight; `then` runs after its acknowledgement. Blocks while the window is
        full."""
        with self._idle:
            self._open += 1
        self._slots.acquire()
        self._attempt(flight, topic, then)

    def _attempt(self, flight: Flight, topic: str, then: Callable[[], None]) -> None:
        message = Message()
        message.topic, message.body, message.tag = topic, flight.body, flight.carrier
        message.keys = flight.origin
        message.keys = flight.destination
        message.add_property("flight", str(flight.number))
        if topic == FIFO_TOPIC:
            message.message_group = flight.tail_number
        started = time.monotonic()
        try:
            future = self._producer.send_async(message)
        # the client raises plain Exception if it has no route; the demo sends again
        except Exception as error:
            self._again(flight, topic, then, error)
            return
        future.add_done_callback(lambda done: self._finished(done, flight, topic, then, started))

    def _finished(
        self,
        done: Future[Any],
        flight: Flight,
        topic: str,
        then: Callable[[], None],
        started: float,
    ) -> None:
        error = done.exception()
        if error is not None:
            self._again(flight, topic, then, error)
            return
        receipt = done.result()
        emit(
            fact="ack",
            id=receipt.message_id,
            digest=digest(flight.body),
            number=flight.number,
            topic=topic,
            group=flight.tail_number if topic == FIFO_TOPIC else None,
            started=started,
            acked=time.monotonic(),
        )
        self._slots.release()
        then()
        with self._idle:
            self._open -= 1
            self._idle.notify_all()

    def _again(
        self, flight: Flight, topic: str, then: Callable[[], None], error: BaseException
    ) -> None:
        emit(
            fact="resend",
            number=flight.number,
            topic=topic,
            error=f"{type(error).__name__}: {error}"[:200],
        )
        threading.Timer(0.1, self._attempt, (flight, topic, then)).start()

    def wait(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)


class OrderedSends:
    """Sends the flights of each tail number one at a time, so that their send order is well
    defined."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: dict[str, deque[Flight]] = {}
        self._lock = threading.Lock()

    def add(self, flight: Flight) -> None:
        assert flight.tail_number is not None
        with self._lock:
            waiting = self._waiting.setdefault(flight.tail_number, deque())
            waiting.append(flight)
            first = len(waiting) == 1
        if first:
            self._send(flight)

    def _send(self, flight: Flight) -> None:
        self._sender.submit(flight, FIFO_TOPIC, lambda: self._sent(flight))

    def _sent(self, flight: Flight) -> None:
        assert flight.tail_number is not None
        with self._lock:
            waiting = self._waiting[flight.tail_number]
            waiting.popleft()
            following = waiting[0] if waiting else None
        if following is not None:
            # The callback runs on the client's own loop, where waiting for a free slot would stop
            # the client.
            threading.Thread(target=self._send, args=(following,), daemon=True).start()

    def wait(self) -> None:
        """Wait until no flight waits; queued flights count as open."""
        while True:
            self._sender.wait()
            with self._lock:
                if not any(self._waiting.values()):
                    return
            time.sleep(0.01)


def produce(endpoints: str, count: int) -> None:
    """Send all flights to the normal topic, and the first ones with a tail number also to the FIFO
    topic."""
    producer = Producer(configuration(endpoints), (NORMAL_TOPIC, FIFO_TOPIC))
    producer.startup()
    sender = Sender(producer)
    ordered = OrderedSends(sender)
    fifo_left = FIFO_MESSAGES
    for flight in flights(count):
        if flight.number == count - count // RESERVE:
            # Even in a short run some sends must begin after the leader's death. The parent sends
            # this line then; in a long run, long ago.
            sys.stdin.readline()
        sender.submit(flight, NORMAL_TOPIC)
        if flight.tail_number is not None and fifo_left:
            fifo_left -= 1
            ordered.add(flight)
    ordered.wait()
    emit(fact="sent-all")
    producer.shutdown()


def consume(endpoints: str) -> None:
    """Receive and acknowledge both topics until stdin closes."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(ACK_THREADS)
    workers = []
    for topic, threads in ((NORMAL_TOPIC, RECEIVE_THREADS), (FIFO_TOPIC, 1)):
        consumer = SimpleConsumer(
            configuration(endpoints), f"demo-{topic}", {topic: FilterExpression()}, await_duration=2
        )
        consumer.startup()
        workers += [
            threading.Thread(target=receive_loop, args=(consumer, topic, pool, stop), daemon=True)
            for _ in range(threads)
        ]
    for worker in workers:
        worker.start()
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join(timeout=10)


def acknowledge(consumer: SimpleConsumer, message: Message) -> None:
    try:
        consumer.ack(message)
    # the lease expires and the message is delivered again: a duplicate, never a loss
    except Exception as error:
        emit(fact="ack-error", error=f"{type(error).__name__}: {error}"[:200])


def receive_loop(
    consumer: SimpleConsumer, topic: str, pool: ThreadPoolExecutor, stop: threading.Event
) -> None:
    """Receive a batch, report it, acknowledge its messages concurrently, and wait for them, so that
    no backlog forms."""
    while not stop.is_set():
        try:
            messages = consumer.receive(32, INVISIBLE_S)
        # after any error while a node is down, the next receive tries again
        except Exception as error:
            emit(fact="receive-error", error=f"{type(error).__name__}: {error}"[:200])
            stop.wait(0.2)
            continue
        for message in messages or ():
            emit(
                fact="got",
                id=message.message_id,
                digest=digest(message.body),
                topic=topic,
                group=message.message_group,
                attempt=message.delivery_attempt,
                number=int(message.properties["flight"]),
            )
        wait([pool.submit(acknowledge, consumer, message) for message in messages or ()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--messages", type=int, default=20000)
    options = parser.parse_args()
    if options.role == "produce":
        produce(options.endpoints, options.messages)
    else:
        consume(options.endpoints)


if __name__ == "__main__":
    main()
