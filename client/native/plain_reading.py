"""Reading ranges of queues, one after the other: each offset once and in order, whoever leads. Nobody here remembers where a reader was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import grpc
import numpy as np

from ledgermq.client.errors import Refused
from ledgermq.client.native.connection import Located, broken
from ledgermq.client.native.plain import PATIENCE_S, Outgoing, PlainConnection, Way, aside
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import BadEntries, EntryColumns, read_entries
from ledgermq.proto.status import Code

CREDIT_BYTES = 16 << 20


class MessagesGone(Refused):
    """Retention took messages of a range before they were read."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic: ids are counted in each broker group for itself."""

    broker_group: str
    queue: int


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one queue in their order, `first_offset` being the first one's."""

    queue: Queue
    first_offset: int
    columns: EntryColumns


def find_offsets(
    connection: PlainConnection, located: Located, topic: str, namespace: str, place: Mapping[str, object], *, group: str = ""
) -> tuple[dict[Queue, int], dict[Queue, int]]:
    """Where each queue of a topic begins to be read, for one place such as {"earliest": True} or {"store_ms": 17…}; and where each ends."""
    begins: dict[Queue, int] = {}
    ends: dict[Queue, int] = {}
    for one in located.broker_groups:
        froms = [pb.FetchFrom(queue=queue, **place) for queue in one.queues]  # type: ignore[arg-type]
        opening = pb.OpenFetch(broker_group=one.name, namespace=namespace, topic=topic, until_end=True, consumer_group=group)
        getattr(opening, "from").extend(froms)
        with_opened = _opened(connection, opening)
        begins |= {Queue(one.name, found.queue): found.first_offset for found in with_opened.begins}
        ends |= {Queue(one.name, found.queue): found.first_offset for found in with_opened.ends}
    return begins, ends


def _opened(connection: PlainConnection, opening: pb.OpenFetch) -> pb.FetchOpened:
    way = Way(connection, opening.broker_group, PATIENCE_S)
    while True:
        address = way.next_address()
        outgoing = Outgoing(pb.FetchRequest(open=opening))
        call = connection.stream("Fetch", address, outgoing, pb.FetchResponse)
        try:
            for response in call:
                if response.HasField("opened"):
                    way.worked()
                    return cast(pb.FetchOpened, response.opened)
                aside(way, response)
                break
            else:
                way.failed(f"{address} ended the stream")
        except grpc.RpcError as error:
            way.failed(broken(address, error))
        finally:
            outgoing.close()
            call.cancel()


def read_range(
    connection: PlainConnection,
    topic: str,
    namespace: str,
    queue: Queue,
    first: int,
    end: int,
    *,
    group: str = "",
    fail_on_loss: bool = True,
) -> Iterator[Part]:
    """The messages `first` … `end`−1 of one queue, which must be committed. Raises MessagesGone if retention took some and `fail_on_loss`,
    Refused, Unreachable."""
    way = Way(connection, queue.broker_group, PATIENCE_S)
    at = first
    while at < end:
        opening = pb.OpenFetch(
            broker_group=queue.broker_group, namespace=namespace, topic=topic, until_end=True, consumer_group=group
        )
        opening.credit_bytes = CREDIT_BYTES
        getattr(opening, "from").append(pb.FetchFrom(queue=queue.queue, offset=at))
        address = way.next_address()
        outgoing = Outgoing(pb.FetchRequest(open=opening))
        call = connection.stream("Fetch", address, outgoing, pb.FetchResponse)
        try:
            for response in call:
                if not response.HasField("entries"):
                    if response.HasField("redirect") or response.HasField("problem"):
                        aside(way, response)
                        break
                    continue
                entries = response.entries
                _check_gap(queue, at, min(end, entries.first_offset), fail_on_loss)
                part = _part(queue, entries, end)
                way.worked()
                at = min(end, entries.first_offset + len(entries.sizes) // 4)
                if part is not None:
                    yield part
                if at >= end:
                    return
                outgoing.put(pb.FetchRequest(credit_bytes=len(entries.entries)))
            else:
                way.failed(f"{address} knows less of the queue than was committed")
        except grpc.RpcError as error:
            way.failed(broken(address, error))
        except BadEntries as error:
            way.failed(f"{address} sent what is not whole: {error}")
        finally:
            outgoing.close()
            call.cancel()


def _check_gap(queue: Queue, at: int, found: int, fail_on_loss: bool) -> None:
    if found > at and fail_on_loss:
        what = f"messages {at} to {found - 1} of queue {queue.queue} of broker group {queue.broker_group} are gone: retention took them"
        raise MessagesGone(Code.MESSAGE_NOT_FOUND, what, "read from a later place, or go on without them")


def _part(queue: Queue, entries: pb.Entries, end: int) -> Part | None:
    count = min(len(entries.sizes) // 4, end - entries.first_offset)
    if count <= 0:
        return None
    sizes = entries.sizes[: 4 * count]
    total = int(np.frombuffer(sizes, "<u4").sum())
    return Part(queue, entries.first_offset, read_entries(sizes, memoryview(entries.entries)[:total]))
