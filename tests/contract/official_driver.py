"""The unmodified official Python client in its own process. It reads commands as JSON lines from
stdin and answers on stdout.

`official.py` runs it with HOME in a temporary directory, because the client logs there. This module
imports nothing from LedgerMQ.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)


def make(spec: dict[str, Any]) -> Message:
    message = Message()
    message.topic = spec["topic"]
    message.body = bytes.fromhex(spec["body"])
    if "tag" in spec:
        message.tag = spec["tag"]
    if "keys" in spec:
        message.keys = spec["keys"]
    if "message_group" in spec:
        message.message_group = spec["message_group"]
    if "lite_topic" in spec:
        message.lite_topic = spec["lite_topic"]
    if "deliver_s" in spec:
        message.delivery_timestamp = spec["deliver_s"]
    for key, value in spec.get("properties", {}).items():
        message.add_property(key, value)
    return message


def shown(message: Any) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.hex(),
        "tag": message.tag,
        "keys": sorted(message.keys or ()),
        "properties": dict(message.properties or {}),
        "attempt": message.delivery_attempt,
        "handle": message.receipt_handle,
        "corrupted": bool(message.corrupted),
        "born_host": message.born_host,
        "born_ms": message.born_timestamp,
        "lite_topic": message.lite_topic,
        "deliver_at": message.delivery_timestamp,
        "priority": message.priority,
    }


class Listener(MessageListener):
    """A listener with configured behaviour: `fail` or `raise` in the first `bad_attempts` attempts,
    for all messages or only the body `bad_body`; each call works for `seconds`; otherwise it
    succeeds."""

    def __init__(self, behaviour: dict[str, Any]) -> None:
        self.behaviour = behaviour
        self.events: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        with self.lock:
            self.events.append({**shown(message), "at": time.time()})
        time.sleep(self.behaviour.get("seconds", 0))
        meant = self.behaviour.get("bad_body", message.body.hex()) == message.body.hex()
        if meant and message.delivery_attempt <= self.behaviour.get("bad_attempts", 0):
            if self.behaviour["mode"] == "raise":
                raise RuntimeError("the listener breaks")
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    """Answers the checks of each message from a list of `unknown`, `commit` and `rollback`; the
    last answer is repeated."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.calls: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def check(self, message: Any) -> Any:
        with self.lock:
            before = sum(call["id"] == message.message_id for call in self.calls)
            self.calls.append({**shown(message), "at": time.time()})
        answer = self.answers[min(before, len(self.answers) - 1)]
        undecided = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return {
            "commit": TransactionResolution.COMMIT,
            "rollback": TransactionResolution.ROLLBACK,
        }.get(answer, undecided)


class Driver:
    def __init__(self, endpoints: str) -> None:
        self.tls = os.environ.get("CLIENT_TLS") == "yes"
        keys = Credentials(
            os.environ.get("CLIENT_ACCESS_KEY", ""), os.environ.get("CLIENT_SECRET_KEY", "")
        )
        self.conf = ClientConfiguration(endpoints, keys, "")
        self.clients: dict[str, Any] = {}
        self.listeners: dict[str, Listener] = {}
        self.messages: dict[str, Any] = {}
        self.checkers: dict[str, Checker] = {}
        self.transactions: dict[str, Any] = {}

    def producer(self, name: str, topics: list[str]) -> None:
        self.clients[name] = Producer(self.conf, tuple(topics), tls_enable=self.tls)
        self.clients[name].startup()

    def checked_producer(self, name: str, topics: list[str], answers: list[str]) -> None:
        """Start a producer that answers transaction checks."""
        checker = self.checkers[name] = Checker(answers)
        self.clients[name] = Producer(self.conf, tuple(topics), checker, tls_enable=self.tls)
        self.clients[name].startup()

    def begin(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send a half message. Returns its receipt."""
        transaction = self.clients[name].begin_transaction()
        receipt = self.receipt(self.clients[name].send(make(message), transaction))
        self.transactions[receipt["id"]] = transaction
        return receipt

    def decide(self, id: str, how: str) -> None:
        """End a transaction with `commit` or `rollback`."""
        getattr(self.transactions[id], how)()

    def checks(self, name: str) -> list[dict[str, Any]]:
        with self.checkers[name].lock:
            return list(self.checkers[name].calls)

    def simple(self, name: str, group: str, subscription: dict[str, str], await_s: int) -> None:
        expressions = {topic: FilterExpression(text) for topic, text in subscription.items()}
        self.clients[name] = SimpleConsumer(
            self.conf, group, expressions, await_duration=await_s, tls_enable=self.tls
        )
        self.clients[name].startup()

    def lite_simple(self, name: str, group: str, topic: str, await_s: int) -> None:
        self.clients[name] = LiteSimpleConsumer(
            topic, self.conf, group, await_duration=await_s, tls_enable=self.tls
        )
        self.clients[name].startup()

    def lite_push(self, name: str, group: str, topic: str) -> None:
        listener = self.listeners[name] = Listener({})
        self.clients[name] = LitePushConsumer(
            self.conf, group, topic, listener, consumption_thread_count=4
        )
        self.clients[name].startup()

    def subscribe_lite(self, name: str, lite: str) -> None:
        """Subscribe as an application does. The client first sends the letters of the name (a
        client bug), then the complete set."""
        self.clients[name].subscribe_lite(lite)
        self.clients[name].subscribe_lite_all()

    def unsubscribe_lite(self, name: str, lite: str) -> None:
        self.clients[name].unsubscribe_lite(lite)

    def push(
        self, name: str, group: str, topic: str, behaviour: dict[str, Any], options: dict[str, Any]
    ) -> float:
        listener = self.listeners[name] = Listener(behaviour)
        self.clients[name] = PushConsumer(
            self.conf, group, listener, {topic: FilterExpression()}, **options
        )
        began = time.monotonic()
        self.clients[name].startup()
        return time.monotonic() - began

    def receipt(self, receipt: Any) -> dict[str, Any]:
        return {
            "id": receipt.message_id,
            "offset": receipt.offset,
            "transaction_id": receipt.transaction_id,
            "recall_handle": receipt.recall_handle,
        }

    def send(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        return self.receipt(self.clients[name].send(make(message)))

    def recall(self, name: str, topic: str, handle: str) -> str:
        return str(self.clients[name].recall_message(topic, handle))

    def send_many(self, name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        futures = [self.clients[name].send_async(make(message)) for message in messages]
        return [self.receipt(future.result(60)) for future in futures]

    def receive(self, name: str, batch: int, invisible_s: int) -> dict[str, Any]:
        began = time.monotonic()
        got = self.clients[name].receive(batch, invisible_s)
        took = time.monotonic() - began
        for message in got:
            self.messages[message.message_id] = self.messages[message.receipt_handle] = message
        return {"took": took, "messages": [shown(message) for message in got]}

    def ack(self, name: str, id: str) -> None:
        self.clients[name].ack(self.messages[id])

    def change(self, name: str, id: str, seconds: int) -> str:
        self.clients[name].change_invisible_duration(self.messages[id], seconds)
        return str(self.messages[id].receipt_handle)

    def events(self, name: str) -> list[dict[str, Any]]:
        with self.listeners[name].lock:
            return list(self.listeners[name].events)

    def shutdown(self, name: str) -> float:
        began = time.monotonic()
        self.clients.pop(name).shutdown()
        return time.monotonic() - began


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the client prints goes to stderr
    driver = Driver(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": getattr(driver, command.pop("do"))(**command)}
        except Exception as error:  # the test decides what an exception of the client means
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)


main()
