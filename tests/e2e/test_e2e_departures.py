"""Real clients that disconnect while a node sends them an answer: this is no failure, so it is
counted and not logged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import create_topic, http, log_lines, running, target, wait_for
from tests.contract.backend import CLIENT_ID, SERVICE, UNLIMITED, message

pytestmark = pytest.mark.slow

BODY = 1 << 19
CUT_OFF = """
import os, signal, sys, time
import grpc
from ledgermq.client import Consumer
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import SERVICE, UNLIMITED, receive_request

target, how, group = sys.argv[1:]
if how == "fetch":
    with Consumer(target, "T") as consumer:
        for _ in consumer.batches():
            os.kill(os.getpid(), signal.SIGKILL)
channel = grpc.insecure_channel(target, UNLIMITED)
receive = channel.unary_stream(
    SERVICE + "ReceiveMessage", pb.ReceiveMessageRequest.SerializeToString, pb.ReceiveMessageResponse.FromString
)
call = receive(receive_request("T", group, batch=32, polling=5), metadata=(("x-mq-client-id", group),), timeout=60)
for response in call:
    if response.HasField("message"):
        if how == "cancel":
            call.cancel()
            break
        os.kill(os.getpid(), signal.SIGKILL)
channel.close()
"""


def left(cluster: LocalCluster) -> int:
    """How many calls the node could not answer to their end."""
    lines = http(cluster, "n1", "/metrics")[1].splitlines()
    return round(
        sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("ledgermq_calls_left_total ")
        )
    )


@pytest.mark.verify
def test_client_cut_off_amid_an_answer_is_counted_and_not_logged(
    tmp_path: Path,
) -> None:
    """Killed, or its call cancelled, behind the first of many large messages; in a Receive and in a
    native Fetch."""
    with running(tmp_path, nodes=1, log_file_bytes=64 << 20) as cluster:
        create_topic(cluster, "T", queues=1)
        where = target(cluster, "n1")
        with grpc.insecure_channel(where, UNLIMITED) as channel:
            path, read = SERVICE + "SendMessage", pb.SendMessageResponse.FromString
            send = channel.unary_unary(path, pb.SendMessageRequest.SerializeToString, read)
            for _ in range(40):
                answer = send(
                    pb.SendMessageRequest(messages=[message(bytes(BODY))]),
                    metadata=CLIENT_ID,
                    timeout=30,
                )
                assert answer.status.code == pb.OK, answer
        for number, how in enumerate(["kill", "cancel"] * 2, 1):
            subprocess.run(
                [sys.executable, "-c", CUT_OFF, where, how, f"g{number}"],
                check=how == "cancel",
                timeout=60,
            )
            wait_for(
                lambda number=number: left(cluster) == number or None,
                30,
                f"call {number} of a client that left",
            )  # type: ignore[misc]
        for _ in range(2):
            subprocess.run([sys.executable, "-c", CUT_OFF, where, "fetch", ""], timeout=60)
        lines = [json.loads(line) for line in log_lines(cluster, "n1")]
        # A warning about a slow disk is the node's own and says nothing about clients; what a
        # library logs names its logger.
        assert [line for line in lines if line["level"] == "error" or "logger" in line] == []
