"""The unmodified official Python client: `python official.py send ENDPOINTS TOPIC SENDERS` or `…
consume ENDPOINTS TOPIC GROUP`.

`send`: one thread per sender; each sender has its own message group and sends one message at a
time. `consume`: a SimpleConsumer whose threads acknowledge what they get. The program prints facts
as JSON lines on stdout, with times of CLOCK_MONOTONIC. It judges nothing and imports nothing from
LedgerMQ. A line on stdin, or its end, ends the program.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

PACE_S = 0.3
INVISIBLE_S = 10
AWAIT_S = 2
BATCH = 16
CONSUMERS = 4
REQUEST_S = 3
ended = threading.Event()
facts = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever the client prints goes to stderr
whole_lines = threading.Lock()


def emit(**fact: object) -> None:
    with whole_lines:
        print(json.dumps(fact), file=facts, flush=True)


def send(producer: Producer, topic: str, sender: int) -> None:
    for number in itertools.count():
        if ended.is_set():
            return
        message = Message()
        message.topic, message.body, message.message_group = (
            topic,
            f"official{sender}-{number}".encode(),
            f"sender-{sender}",
        )
        fact = {"fact": "send", "value": f"official{sender}-{number}", "invoked": time.monotonic()}
        try:
            receipt = producer.send(message)
        # the client raises many kinds of errors; after any of them the outcome is unknown
        except Exception as error:
            emit(**fact, unknown=True, error=f"{type(error).__name__}: {error}")
        else:
            emit(**fact, returned=time.monotonic(), offset=receipt.offset)
        ended.wait(PACE_S)


def consume(consumer: SimpleConsumer) -> None:
    while not ended.is_set():
        try:
            for message in consumer.receive(BATCH, INVISIBLE_S):
                emit(
                    fact="delivery",
                    value=message.body.decode(),
                    attempt=message.delivery_attempt,
                    at=time.monotonic(),
                )
                consumer.ack(message)
        except Exception as error:  # unacknowledged messages are delivered again
            emit(fact="consumer failed", error=f"{type(error).__name__}: {error}")
            ended.wait(0.2)


def main(role: str, endpoints: str, topic: str, more: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(), "", REQUEST_S)
    if role == "send":
        producer = Producer(configuration, (topic,))
        producer.startup()
        threads = [
            threading.Thread(target=send, args=(producer, topic, sender), daemon=True)
            for sender in range(int(more))
        ]
    else:
        consumer = SimpleConsumer(
            configuration, more, {topic: FilterExpression()}, await_duration=AWAIT_S
        )
        consumer.startup()
        threads = [
            threading.Thread(target=consume, args=(consumer,), daemon=True)
            for _ in range(CONSUMERS)
        ]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    ended.set()
    for thread in threads:
        thread.join()
    emit(fact=f"{role} ended")
    os._exit(0)


main(*sys.argv[1:])
