"""Dead letters of a real cluster: resent while leaders and the command itself are killed, with
exact counts; exported, and purged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.api.service import MESSAGING
from ledgermq.client.messages.receiving import Receiver
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import leader, log_events, running, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(600)]

TOTAL = 400
PURGED = 7


def give_up(endpoints: str, count: int) -> None:
    """Receive messages as the group `billing`, and forward each to the dead-letter topic."""
    with (
        Connection(endpoints, timeout_s=60) as connection,
        Receiver(connection, "orders", "billing") as receiver,
    ):
        while count:
            messages = receiver.receive(10)
            for message in messages:
                request = pb.ForwardMessageToDeadLetterQueueRequest(
                    topic=message.topic,
                    group=pb.Resource(name="billing"),
                    receipt_handle=message.system_properties.receipt_handle,
                    message_id=message.system_properties.message_id,
                    delivery_attempt=1,
                    max_delivery_attempts=1,
                )
                path = MESSAGING + "ForwardMessageToDeadLetterQueue"
                connection.ask(path, request, pb.ForwardMessageToDeadLetterQueueResponse)
            count -= len(messages)


def counts(cli: CommandLine) -> tuple[int, int, int]:
    (found,) = cli.ok("dlq", "list", "--json", "--timeout", "60s").json["groups"]
    assert found["group"] == "billing"
    return found["unsettled"], found["resent"], found["purged"]


def kill_leaders(cluster: LocalCluster, cli: CommandLine) -> None:
    """Kill the leader of each broker group once, while the job runs, and start it again."""
    for group in ("g1", "g2"):
        before = counts(cli)[1]
        wait_for(lambda before=before: counts(cli)[1] > before, 120, "progress of the job")  # type: ignore[misc]
        first = leader(cluster, group)
        cluster.kill(first)
        wait_for(
            lambda first=first, group=group: leader(cluster, group) != first, 60, "another leader"
        )  # type: ignore[misc]
        cluster.start(first)
        cli.ok("status", "--wait", "60s", "--strict", timeout_s=120)


def test_letters_are_resent_once_across_kills(tmp_path: Path) -> None:
    """Leaders of both broker groups die during the job, and then the job itself. Run again, it
    resends the rest: the group gets every message exactly once, another group nothing, and the
    counts are exact. A purged letter never comes."""
    with running(tmp_path, groups=("g1", "g2")) as cluster:
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", "orders", "--queues", "4")
        cli.ok("group", "create", "billing", "--max-attempts", "1")
        bodies = [f"m{number}" for number in range(TOTAL)]
        assert cli.send_lines("orders", bodies)["acknowledged"] == TOTAL
        assert sorted(cli.consume_all("orders", "lake")) == sorted(bodies)
        give_up(cluster.endpoints, TOTAL)
        assert counts(cli) == (TOTAL, 0, 0)

        letters = cli.ok("dlq", "list", "--group", "billing", "--max", "9999", "--json").lines
        assert len({(letter["broker_group"], letter["letter"]) for letter in letters}) == TOTAL
        assert {letter["broker_group"] for letter in letters} == {"g1", "g2"} and {
            letter["state"] for letter in letters
        } == {"waiting"}
        unwanted = [letter["message_id"] for letter in letters[:PURGED]]
        chosen = [part for name in unwanted for part in ("--id", name)]
        assert (
            cli.ok("dlq", "purge", "--group", "billing", *chosen, "--yes").out
            == f"billing: purged {PURGED} of {PURGED}\n"
        )
        export = tmp_path / "letters.jsonl"
        cli.ok("dlq", "export", "--group", "billing", "--to", export)
        exported = {
            row["message_id"]: row["body"]
            for row in map(json.loads, export.read_text().splitlines())
        }
        assert len(exported) == TOTAL - PURGED and not exported.keys() & set(unwanted)

        job = cli.start(
            "dlq", "resend", "--group", "billing", "--rate", "2", "--timeout", "60s", "--yes"
        )
        try:
            kill_leaders(cluster, cli)
            assert job.poll() is None, job.communicate()
        finally:
            job.kill()
            job.communicate()
        resent = counts(cli)[1]
        assert 0 < resent < TOTAL - PURGED
        first = leader(cluster)
        again = cli.start(
            "dlq", "resend", "--group", "billing", "--rate", "200", "--timeout", "60s", "--yes"
        )
        cluster.kill(first)
        out, err = again.communicate(timeout=180)
        assert again.returncode == 0, (out, err)
        cluster.start(first)
        # The job that was killed may have had a batch under way when its letters were counted.
        done = int(out.split()[2])
        assert (
            out.decode() == f"billing: resent {done} of {done}\n"
            and done <= TOTAL - PURGED - resent
        )
        assert counts(cli) == (0, TOTAL - PURGED, PURGED)

        assert sorted(cli.consume_all("orders", "billing")) == sorted(exported.values())
        assert (
            cli.consume_all("orders", "billing") == [] and cli.consume_all("orders", "lake") == []
        )
        some = next(iter(exported))
        trace = cli.ok("query", "--topic", "orders", "--id", some, "--trace", "--json").lines
        fate = [
            (event["event"], event["group"])
            for event in trace
            if event["group"] in (None, "billing")
        ]
        assert [event for event, _ in fate] == [
            "stored",
            "leased",
            "dead-lettered",
            "resent",
            "leased",
            "acknowledged",
        ]
        told = [
            event
            for node in cluster.nodes
            for event in log_events(cluster, node)
            if event["event"] == "dead letters purged"
        ]
        assert sum(event["letters"] for event in told) == PURGED
        cli.ok("status", "--wait", "60s", "--strict", timeout_s=120)
        # The snapshots of a stop hold what is settled; the audit derives it from the logs.
        assert set(cluster.stop().values()) == {0}
        audited = cli.ok(
            "audit",
            *[cluster.data(node) for node in cluster.nodes],
            "--engine",
            "local",
            timeout_s=300,
        )
        assert audited.out.splitlines()[-1] == "audit: PASS"


def test_cancelled_messages_never_come(tmp_path: Path) -> None:
    """A leader is killed while delayed messages are cancelled; the command run again finds none of
    them left, and only the others come."""
    with running(tmp_path, groups=("g1", "g2")) as cluster:
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", "reminders", "--kind", "delay", "--queues", "4")
        unwanted, wanted = ([f"{name}{number}" for number in range(150)] for name in ("u", "w"))
        cli.send_lines("reminders", unwanted, "--delay", "1h")
        found = cli.ok(
            "waiting", "list", "--topic", "reminders", "--kind", "delayed", "--max", "999", "--json"
        ).lines
        assert sorted(message["body"] for message in found) == sorted(unwanted)
        assert {message["broker_group"] for message in found} == {"g1", "g2"}
        first = leader(cluster)
        job = cli.start(
            "waiting",
            "cancel",
            "--topic",
            "reminders",
            "--kind",
            "delayed",
            "--all",
            "--timeout",
            "60s",
            "--yes",
        )
        cluster.kill(first)
        out, err = job.communicate(timeout=180)
        assert job.returncode == 0, (out, err)
        cluster.start(first)
        cli.ok("status", "--wait", "60s", "--strict", timeout_s=120)
        again = cli.ok(
            "waiting", "cancel", "--topic", "reminders", "--kind", "delayed", "--all", "--yes"
        ).out
        assert (out.decode(), again) == ("cancelled 150 of 150\n", "cancelled 0 of 0\n")
        cli.send_lines("reminders", wanted, "--delay", "1s")
        got: list[str] = []
        wait_for(
            lambda: len(got.extend(cli.consume_all("reminders", "g")) or got) >= len(wanted),
            120,
            "the other messages",
        )
        assert sorted(got) == sorted(wanted)
