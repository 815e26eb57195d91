"""Fetch from one node: a cold reader of files in the page cache, one that follows a producer, and
the effect of a cold reader on that producer.

The node, the producer and the reader are three processes on the same machine. The reader decodes
the columns of entries (`proto/frames.read_entries`) or only counts entries; the node's processor
time per MiB is that of all its threads.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder, read_entries

NAME, RUNS, DURABLE = "fetch", 3, True
TOPIC = "bench-fetch"
QUEUES = 8
FRAME = 1000
BODY_BYTES = 100
BACKLOG = 2_000_000
SECONDS = 8.0
CREDIT = 16 << 20
SERVICE = "/ledgermq.v1.Log/"
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory, nodes=1) as cluster:
        cl.create_topic(cluster, TOPIC, QUEUES)
        (node,) = cluster.nodes
        at = cl.address(cluster, node)
        found: dict[str, Any] = {"backlog": BACKLOG, "body_bytes": BODY_BYTES, "queues": QUEUES}
        found["fill"] = measured(cluster, produced, at, BACKLOG // FRAME, None)
        for name, queues, columns in (
            ("cold_one_queue", 1, False),
            ("cold_all_queues", QUEUES, False),
            ("cold_columns", QUEUES, True),
        ):
            found[name] = measured(cluster, fetched, at, queues, columns, False, None)
        found["produce_alone"] = measured(cluster, produced, at, None, SECONDS)
        with beside(fetched, at, QUEUES, False, True, SECONDS) as tailing:
            found["produce_beside_a_tailing_reader"] = measured(
                cluster, produced, at, None, SECONDS
            )
        found["tailing"] = tailing[0]
        with beside(fetched, at, QUEUES, False, False, SECONDS) as cold:
            found["produce_beside_a_cold_reader"] = measured(cluster, produced, at, None, SECONDS)
        found["cold_beside_a_producer"] = cold[0]
        return {**found, "settings": cl.defaults(cluster)}


def measured(cluster: LocalCluster, work: Any, *arguments: Any) -> dict[str, Any]:
    """Run in its own process, and add the node's cost."""
    cpu = sum(cl.all_cpu_s(cluster).values())
    with beside(work, *arguments) as results:
        pass
    (found,) = results
    spent = sum(cl.all_cpu_s(cluster).values()) - cpu
    found["node_cpu_us_a_mib"] = round(spent / max(found["bytes"], 1) * 1e6 * (1 << 20))
    return dict(found)


@contextmanager
def beside(work: Any, *arguments: Any) -> Iterator[list[dict[str, Any]]]:
    """Run `work` in another process; its result is in the list at the end of the context."""
    context = multiprocessing.get_context("spawn")
    out: Any = context.Queue()
    process = context.Process(target=_in_process, args=(work, arguments, out))
    process.start()
    results: list[dict[str, Any]] = []
    yield results
    results.append(json.loads(out.get()))
    process.join()


def _in_process(work: Any, arguments: tuple[Any, ...], out: Any) -> None:
    out.put(json.dumps(asyncio.run(work(*arguments))))


async def produced(address: str, frames: int | None, seconds: float | None) -> dict[str, Any]:
    """Send frames to the queues in turn, with as many in flight as the node allows, up to a number
    of frames or a time."""
    bodies = [b"%08d".ljust(BODY_BYTES, b".") % number for number in range(FRAME)]
    sent: dict[int, float] = {}
    took: list[float] = []
    total = 0
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call: Any = channel.stream_stream(
            SERVICE + "Produce", response_deserializer=pb.ProduceResponse.FromString
        )()
        await call.write(
            pb.ProduceRequest(open=pb.OpenProducer(broker_group=cl.GROUP)).SerializeToString()
        )
        opened = (await call.read()).opened
        builder = FrameBuilder(TOPIC, opened.log_tag, opened.producer_id, opened.epoch)
        began, number, window = time.perf_counter(), 0, opened.window_frames or 5
        while sent or (
            number < frames if frames is not None else time.perf_counter() - began < (seconds or 0)
        ):
            more = (
                number < frames
                if frames is not None
                else time.perf_counter() - began < (seconds or 0)
            )
            if more and len(sent) < window:
                first = number * FRAME
                made = builder.encode(first, number % QUEUES, bodies, born_ms=1_700_000_000_000)
                frame = pb.Frame(
                    topic=TOPIC,
                    first_sequence=first,
                    sizes=bytes(made.sizes),
                    entries=bytes(made.entries),
                )
                sent[first] = time.perf_counter()
                await call.write(pb.ProduceRequest(frame=frame).SerializeToString())
                total += len(frame.entries)
                number += 1
                continue
            answer = await call.read()
            assert answer.HasField("ack"), answer
            took.append(time.perf_counter() - sent.pop(answer.ack.first_sequence))
        spent = time.perf_counter() - began
        await call.done_writing()
    percentiles = {f"p{q:g}_ms": round(float(np.percentile(took, q)) * 1000, 2) for q in (50, 99)}
    return {
        "messages_per_s": round(number * FRAME / spent),
        "mib_per_s": round(total / spent / (1 << 20)),
        "bytes": total,
        **percentiles,
    }


async def fetched(
    address: str, queues: int, columns: bool, tail: bool, seconds: float | None
) -> dict[str, Any]:
    """Read from the first message to the current end, or from the end on, for a time; unless
    `tail`, start again from the first."""
    began, cpu = time.perf_counter(), time.process_time()
    messages = total = answers = 0
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        while True:
            left = None if seconds is None else seconds - (time.perf_counter() - began)
            if left is not None and left <= 0:
                break
            async for data in _stream(channel, queues, tail, left):
                response = pb.FetchResponse.FromString(data)
                if response.HasField("caught_up") and not tail:
                    break
                if not response.HasField("entries"):
                    continue
                entries = response.entries
                messages += len(entries.sizes) // 4
                total += len(entries.entries)
                answers += 1
                if columns:
                    read_entries(entries.sizes, entries.entries, verify=False).joined_bodies()
            if seconds is None or tail:
                break
    spent = time.perf_counter() - began
    return {
        "messages_per_s": round(messages / spent),
        "mib_per_s": round(total / spent / (1 << 20)),
        "bytes": total,
        "kib_an_answer": round(total / max(answers, 1) / 1024),
        "reader_cpu_us_a_mib": round((time.process_time() - cpu) / max(total, 1) * 1e6 * (1 << 20)),
    }


async def _stream(
    channel: grpc.aio.Channel, queues: int, tail: bool, seconds: float | None
) -> AsyncIterator[bytes]:
    call: Any = channel.stream_stream(SERVICE + "Fetch")()
    opening = pb.OpenFetch(
        broker_group=cl.GROUP, topic=TOPIC, until_end=not tail, credit_bytes=CREDIT
    )
    getattr(opening, "from").extend(
        pb.FetchFrom(queue=queue, earliest=not tail) for queue in range(queues)
    )
    await call.write(pb.FetchRequest(open=opening).SerializeToString())
    owed, ends = 0, None if seconds is None else time.perf_counter() + seconds
    try:
        while ends is None or time.perf_counter() < ends:
            async with asyncio.timeout(
                None if ends is None else max(0.01, ends - time.perf_counter())
            ):
                data = await call.read()
            if not isinstance(data, bytes):
                return
            yield data
            owed += len(data)
            if owed > CREDIT // 4:
                await call.write(pb.FetchRequest(credit_bytes=owed).SerializeToString())
                owed = 0
    except TimeoutError:
        return
    finally:
        call.cancel()
