"""What concurrent senders saw while a leader was killed is the history of one log: linearizable, by
the checker the audit ships."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import pytest

from ledgermq.audit.history import Read, Send, check_queue
from ledgermq.client.api import service
from ledgermq.client.messages.sending import Outgoing, new_message_id
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import create_topic, leader, running, target, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

TOPIC = "history"
SENDERS, EACH = 4, 120
METADATA = (("x-mq-client-id", "history"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))


class Sender(threading.Thread):
    """Sends its messages one after the other, each once; what failed is of unknown outcome, and the
    next goes to the next node."""

    def __init__(self, cluster: LocalCluster, number: int) -> None:
        super().__init__(daemon=True)
        self.history: list[Send] = []
        self._nodes = [target(cluster, node) for node in cluster.nodes]
        self._number = number

    def run(self) -> None:
        at = self._number
        while len(self.history) < EACH:
            with grpc.insecure_channel(
                self._nodes[at % len(self._nodes)], options=[("grpc.enable_http_proxy", 0)]
            ) as channel:
                self._send_until_failure(channel)
            at += 1

    def _send_until_failure(self, channel: grpc.Channel) -> None:
        while len(self.history) < EACH:
            value = f"{self._number}-{len(self.history)}"
            message = Outgoing(TOPIC, value.encode()).to_proto(new_message_id())
            invoked = time.monotonic()
            try:
                answer = service.send_message(
                    channel, pb.SendMessageRequest(messages=[message]), METADATA, 2.0
                ).result()
            except grpc.RpcError:
                self.history.append(Send(value, invoked))
                return
            if answer.status.code != pb.Code.OK:
                self.history.append(Send(value, invoked))
                return
            self.history.append(Send(value, invoked, time.monotonic(), answer.entries[0].offset))


def test_senders_beside_a_killed_leader_see_one_log(tmp_path: Path) -> None:
    """Four senders through all nodes, SIGKILL of the leader in the middle: offsets and time agree,
    nothing acknowledged is lost."""
    with running(tmp_path) as cluster:
        create_topic(cluster, TOPIC, queues=1)
        senders = [Sender(cluster, number) for number in range(SENDERS)]
        for sender in senders:
            sender.start()
        wait_for(
            lambda: all(len(sender.history) > EACH // 4 for sender in senders),
            60,
            "the first messages",
        )
        killed = leader(cluster)
        cluster.kill(killed)
        for sender in senders:
            sender.join(120)
        cluster.start(killed)
        cli = CommandLine.of(cluster)
        assert cli.ok("status", "--wait", "60s", "--strict")
        invoked = time.monotonic()
        values = tuple(
            m["body"]
            for m in cli.ok(
                "peek", "--topic", TOPIC, "--queue", "0", "--max", "100000", "--json"
            ).lines
        )
        final = Read(invoked, time.monotonic(), 0, values, len(values))
        sends = [send for sender in senders for send in sender.history]
        assert sum(send.offset is not None for send in sends) > SENDERS * EACH // 2
        assert check_queue(sends, [final]) == []
