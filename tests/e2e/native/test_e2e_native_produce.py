"""Native frames on real processes while the leader is killed: nothing lost, nothing twice, and
every receipt proves itself afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder
from ledgermq.proto.proofs.receipts import row_of
from tests.cluster import admin, create_topic, leader, running, target, wait_for
from tests.e2e.command_line import CommandLine, counted

pytestmark = pytest.mark.slow

FRAMES, MESSAGES = 60, 50
SERVICE = "/ledgermq.v1.Log/"
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))


class Producer:
    """As short as a producer can be that survives a leader: what is not acknowledged is sent again,
    in order, after resuming."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._id = self._epoch = 0
        self.made = 0
        """The number of frames begun."""
        self._enough: Callable[[], bool] = lambda: True
        self.unanswered: list[tuple[int, list[bytes]]] = []
        self.receipts: list[pb.Receipt] = []
        self.streams = self.broken = 0

    async def run(
        self, frames: int, halfway: Callable[[], Any], enough: Callable[[], bool] | None = None
    ) -> None:
        """Send frames; half way something happens to the cluster. Further frames follow until there
        are `enough`."""
        self._enough = enough or self._enough
        for _ in range(frames):
            self._begin_frame()
        until = time.monotonic() + 60
        while self.unanswered and time.monotonic() < until:
            for node, child in self._cluster.children.items():
                if self.unanswered and child.exit_code is None:
                    async with grpc.aio.insecure_channel(
                        target(self._cluster, node), options=OPTIONS
                    ) as channel:
                        try:
                            await self._stream(channel, frames // 2, halfway)
                        except (grpc.RpcError, asyncio.InvalidStateError):
                            self.broken += 1
                            await asyncio.sleep(0.05)
        assert not self.unanswered, "a leader came back within a minute"

    def _begin_frame(self) -> None:
        first = self.made * MESSAGES
        self.unanswered.append((first, [b"%d" % (first + i) for i in range(MESSAGES)]))
        self.made += 1

    async def _stream(
        self, channel: grpc.aio.Channel, half: int, halfway: Callable[[], Any]
    ) -> None:
        call: Any = channel.stream_stream(
            SERVICE + "Produce", response_deserializer=pb.ProduceResponse.FromString
        )()
        opening = pb.OpenProducer(broker_group="g1", producer_id=self._id, epoch=self._epoch)
        await call.write(pb.ProduceRequest(open=opening).SerializeToString())
        answer = await call.read()
        if answer is grpc.aio.EOF or not answer.HasField("opened"):
            return
        self.streams += 1
        self._id, self._epoch = answer.opened.producer_id, answer.opened.epoch
        builder = FrameBuilder("T", answer.opened.log_tag, self._id, self._epoch)
        under_way = 0
        while self.unanswered:
            while under_way < min(answer.opened.window_frames or 5, len(self.unanswered)):
                first, bodies = self.unanswered[under_way]
                made = builder.encode(
                    first, first // MESSAGES % 4, bodies, born_ms=time.time_ns() // 1_000_000
                )
                frame = pb.Frame(
                    topic="T",
                    first_sequence=first,
                    sizes=bytes(made.sizes),
                    entries=bytes(made.entries),
                )
                await call.write(pb.ProduceRequest(frame=frame).SerializeToString())
                under_way += 1
            said = await call.read()
            if said is grpc.aio.EOF or said.WhichOneof("response") in ("redirect", "problem"):
                return
            assert said.HasField("ack"), said
            assert said.ack.HasField("receipt"), (
                "no more than five frames are unanswered: their receipts are kept"
            )
            self.receipts.append(said.ack.receipt)
            del self.unanswered[0]
            under_way -= 1
            if not self.unanswered[under_way:] and not self._enough():
                self._begin_frame()
            if len(self.receipts) == half:
                halfway()


def test_a_killed_leader_costs_no_message_and_no_receipt(tmp_path: Path) -> None:
    """The producer continues in its epoch at the next leader. Every receipt is true, also under a
    former key; an altered one is false."""
    with running(tmp_path) as cluster:
        create_topic(cluster, "T")
        cli = CommandLine.of(cluster)
        first = leader(cluster)
        producer = Producer(cluster)
        asyncio.run(producer.run(FRAMES, lambda: cluster.kill(first)))
        cluster.start(first)
        assert producer.streams >= 2 and len(producer.receipts) == FRAMES
        assert {receipt.term for receipt in producer.receipts} != {producer.receipts[0].term}

        stored = cli.ok("peek", "--topic", "T", "--max", "1000", "--json").lines
        assert counted(cli, "T", FRAMES * MESSAGES) == FRAMES * MESSAGES, (
            "nothing is lost and nothing is there twice"
        )
        assert len({message["message_id"] for message in stored}) == len(stored)

        good = tmp_path / "receipts.jsonl"
        rows = [{**row_of(receipt), "mac": receipt.mac.hex()} for receipt in producer.receipts]
        good.write_text("".join(json.dumps(row) + "\n" for row in rows))
        before = cli.ok("receipts", "verify", str(good), "--json").json
        assert (before["true"], before["false"], before["unverifiable"]) == (FRAMES, 0, 0)
        assert cli.ok("receipts", "rotate", "--json").json["keys"] == 2
        assert cli.ok("receipts", "verify", str(good), "--json").json == before

        altered = tmp_path / "altered.jsonl"
        altered.write_text(
            "".join(
                json.dumps({**row, "store_ms": row["store_ms"] + 1}) + "\n"
                for row in rows[:1] + rows[-1:]
            )
        )
        ended = cli.run("receipts", "verify", str(altered), "--json")
        assert (ended.status, ended.json["false"]) == (1, 2)


def test_a_planned_change_of_leaders_is_told_on_the_stream(tmp_path: Path) -> None:
    """The producer is redirected in the middle of its frames, and never meets a broken stream."""
    with running(tmp_path) as cluster:
        create_topic(cluster, "T")
        first = leader(cluster)
        to = next(node for node in cluster.nodes if node != first)
        request = admin_pb2.TransferLeadershipRequest(broker_group="g1", to=to)
        producer = Producer(cluster)
        transfers: list[asyncio.Future[Any]] = []

        def transfer() -> None:
            """Transfer the leadership while the producer continues."""
            transfers.append(asyncio.get_running_loop().run_in_executor(None, transferred))

        def transferred() -> None:
            wait_for(
                lambda: admin(cluster, first, "TransferLeadership", request).done,
                60,
                f"{to} to lead",
            )

        def next_leader_answers() -> bool:
            for done in filter(asyncio.Future.done, transfers):
                done.result()
            return len({receipt.term for receipt in producer.receipts}) >= 2

        asyncio.run(producer.run(FRAMES, transfer, next_leader_answers))
        assert (
            producer.streams >= 2
            and len(producer.receipts) == producer.made
            and not producer.broken
        )
        assert (
            counted(CommandLine.of(cluster), "T", producer.made * MESSAGES)
            == producer.made * MESSAGES
        )
