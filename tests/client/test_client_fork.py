"""Clients and processes that are forked: whoever cannot work says so at once, and nobody dies or
hangs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ledgermq.proto import admin_pb2, log_pb2
from tests.client.fake_cluster import admin_status, fake_nodes

PROGRAM = """
import asyncio, json, os, signal, sys, threading, time
from ledgermq.client import *
from ledgermq.client.native.once.tasks import TaskConnection
EP, SOON_S = sys.argv[1], 30

def told(work):
    "What a forked process says of this work; how it died, if it did."
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(SOON_S)
        try:
            found = work()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    parts = []
    while part := os.read(reader, 65536):
        parts.append(part)
    status = os.waitpid(pid, 0)[1]
    return json.loads(b"".join(parts)) if parts else f"died by signal {status & 127}"

def loop(coroutine):
    return asyncio.run(coroutine)

async def ask():
    async with AsyncConnection(EP, timeout_s=5) as it: return len(await AsyncAdmin(it).topics())
async def produce():
    async with AsyncProducer(EP, "t", timeout_s=5) as it: await it.refresh()
async def consume():
    async with AsyncConsumer(EP, "t", timeout_s=5) as it: it.statistics()
def blocking(kind, call):
    def use():
        with kind(EP, *(["t"] if kind in (Producer, Consumer) else []), timeout_s=5) as it: call(it)
    return use
USES = {
    "Connection": blocking(Connection, lambda it: Admin(it).topics()),
    "Producer": blocking(Producer, lambda it: it.refresh()),
    "Consumer": blocking(Consumer, lambda it: it.statistics()),
    "TaskConnection": blocking(TaskConnection, lambda it: it.locate("t")),
    "AsyncConnection": lambda: loop(ask()),
    "AsyncProducer": lambda: loop(produce()),
    "AsyncConsumer": lambda: loop(consume()),
}

def unused():
    "A parent that has made clients, and opened none."
    connection, producer = Connection(EP, timeout_s=5), Producer(EP, "t", timeout_s=5)
    def inherited():
        Admin(connection).topics()
        with producer: producer.refresh()
        return [connection.client_id, producer._producer.connection.client_id]
    ids = [told(inherited) for _ in range(2)]
    return {"uses": {name: told(use) or "works" for name, use in USES.items()}, "ids": ids + [inherited()]}

def used(name):
    "A parent that has opened one client, and closed it."
    USES[name]()
    return {child: told(use) for child, use in USES.items()}

def held():
    "A parent with open clients, whose locks another thread holds."
    with Connection(EP, timeout_s=5) as connection, Producer(EP, "t", timeout_s=5) as producer, Consumer(EP, "t", timeout_s=5) as consumer:
        with TaskConnection(EP, timeout_s=5) as tasks:
            Admin(connection).topics()
            locks = [producer._room, connection._lock, *(it._life._changing for it in (connection, producer, consumer, tasks))]
            locks += [it._life._closing for it in (connection, producer, consumer, tasks)]
            ready, done = threading.Event(), threading.Event()
            def hold():
                for lock in locks: lock.acquire()
                ready.set()
                done.wait(SOON_S)
                for lock in locks: lock.release()
            holder = threading.Thread(target=hold)
            holder.start()
            ready.wait(SOON_S)
            calls = {
                "ask": lambda: Admin(connection).topics(), "send": lambda: producer.send(b"a"),
                "batch": lambda: producer.send_batch([b"a"]),
                "flush": lambda: producer.flush(), "next": lambda: consumer.next_batch(), "seek": lambda: consumer.seek(0, 0),
                "locate": lambda: tasks.locate("t"), "enter": lambda: producer.__enter__(),
            }
            found = {name: told(call) for name, call in calls.items()}
            ends = (None, None, None)
            closes = {
                "connection": connection.close, "producer": producer.close, "with": lambda: producer.__exit__(*ends),
                "consumer": lambda: consumer.__exit__(*ends), "tasks": lambda: tasks.__exit__(*ends),
            }
            closed = {name: told(close) for name, close in closes.items()}
            idle = [told(lambda: None) for _ in range(30)]
            done.set()
            holder.join()
            Admin(connection).topics()
            producer.refresh()
            return {"calls": found, "closes": closed, "idle": idle}

print(json.dumps({"unused": told(unused), "held": told(held), **{name: told(lambda name=name: used(name)) for name in USES}}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses more after a fork")
def test_a_fork_of_a_process_with_a_client_is_refused_and_one_of_any_other_works() -> None:
    """Whichever class the parent used, also when it closed it; and whichever class the child opens.
    What the child inherits is refused too, at once, also when another thread held the locks, and
    can be left. The parent goes on."""
    with fake_nodes() as (node,):
        node.answers("ListTopics", admin_pb2.ListTopicsResponse(status=admin_status()))
        located = log_pb2.LocateResponse(cluster_id="c", kind="normal")
        located.broker_groups.add(name="g1", queues=[0], log_id="l")
        node.answers("Locate", located)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, node.endpoint],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    unused, held = found.pop("unused"), found.pop("held")
    assert set(unused["uses"].values()) == {"works"}
    ids = [one for pair in unused["ids"] for one in pair]
    assert len(set(ids)) == len(ids) == 6, "no two processes share a client id"
    assert set(held["closes"].values()) == {None}
    assert set(held["idle"]) == {None}, "a child that uses no client lives"
    for case, outcomes in {**found, "held": held["calls"]}.items():
        for name, outcome in outcomes.items():
            assert "BadArgument: this process was forked" in str(outcome), (case, name, outcome)
            assert "spawn" in outcome and "after the fork" in outcome
