"""Wrong usages of all commands that call a cluster, in one table: no cluster, no permission, a file
that exists, Ctrl-C.

Law: whatever goes wrong ends with one error line and the documented exit status, prints no result,
and leaves the directory as it was. Every command has a row, so a new command without one fails
here.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from ledgermq import cli
from ledgermq.client.api import service
from ledgermq.proto import admin_pb2, log_pb2
from tests.client.fake_cluster import MODULES, SERVICES, FakeNode, admin_status, fake_nodes, route

ID = "01D6F5A2C8E042AB00C0FFEE0000000001"
RECEIPT = '{"topic": "t"}\n'
DEFINITIONS = '{"v": 1, "users": [{"name": "a", "grants": []}]}\n'
FILES = {
    "lines.jsonl": '{"body": "b"}\n',
    "receipts.jsonl": RECEIPT,
    "cluster.json": DEFINITIONS,
    "old.parquet": "x",
    "old.txt": "x",
}

# Command, and options if it has several rows → the other arguments with which it calls a cluster.
# Files named `new` are written.
ROWS: dict[str, tuple[str, ...]] = {
    "status": (),
    "check": (),
    "topic create": ("t",),
    "topic delete": ("t", "--yes"),
    "topic describe": ("t",),
    "topic list": (),
    "topic update": ("t", "--queues", "4"),
    "group create": ("g",),
    "group delete": ("g", "--yes"),
    "group describe": ("g",),
    "group lag": ("g",),
    "group list": (),
    "group reset": ("g", "--topic", "t", "--to", "earliest", "--yes"),
    "group skip": ("g", "--topic", "t", "--queue", "0", "--yes"),
    "group update": ("g", "--max-attempts", "3"),
    "dlq list": (),
    "dlq list --group": ("--group", "g"),
    "dlq show": (ID, "--group", "g"),
    "dlq resend": ("--group", "g", "--yes"),
    "dlq purge": ("--group", "g", "--yes"),
    "dlq export": ("--group", "g", "--to", "new.jsonl"),
    "waiting list": ("--topic", "t", "--kind", "delayed"),
    "waiting cancel": ("--topic", "t", "--kind", "delayed", "--all", "--yes"),
    "client list": (),
    "user create": ("u",),
    "user delete": ("u", "--yes"),
    "user describe": ("u",),
    "user grant": ("u", "--publish", "t"),
    "user list": (),
    "user revoke": ("u", "--publish", "t"),
    "user rotate": ("u",),
    "send": ("--topic", "t", "--body", "b"),
    "send --file": ("--topic", "t", "--file", "lines.jsonl"),
    "send --receipts": ("--topic", "t", "--file", "lines.jsonl", "--receipts", "new.parquet"),
    "consume": ("--topic", "t", "--group", "g"),
    "consume --to": ("--topic", "t", "--group", "g", "--to", "new.txt"),
    "consume --to jsonl": ("--topic", "t", "--group", "g", "--to", "new.jsonl"),
    "consume --to parquet": ("--topic", "t", "--group", "g", "--to", "new.parquet"),
    "sink parquet": ("--topic", "t", "--to", "new", "--until-empty", "1ms"),
    "sink iceberg": ("--topic", "t", "--table", "lake.t", "--until-empty", "1ms"),
    "peek": ("--topic", "t"),
    "query": ("--topic", "t", "--key", "k"),
    "query --detail": ("--topic", "t", "--id", ID, "--detail"),
    "query --trace": ("--topic", "t", "--id", ID, "--trace"),
    "receipts rotate": (),
    "prove": ("--topic", "t", "--id", ID, "--to", "new.proof"),
    "checkpoint keys": (),
    "checkpoint show": ("--broker-group", "g1"),
    "why-kept": ("g1/0",),
    "upgrade status": (),
    "upgrade finish": ("--yes",),
    "transfer": ("g1", "--to", "n1"),
    "elect": ("g1", "--node", "n1"),
    "elect --unclean": ("g1", "--node", "n1", "--unclean", "--yes"),
    "replication": ("g1", "--to", "ha"),
    "broker-group add": ("g2",),
    "broker-group list": (),
    "move-replica": ("g1", "--from", "n1", "--to", "n4"),
    "rebalance": ("--yes",),
    "member add": ("n4", "--address", "127.0.0.1:8084"),
    "member drain": ("n1", "--timeout", "1s"),
    "member list": (),
    "member promote": ("n4",),
    "member remove": ("n4", "--yes"),
    "member scale": ("mq", "--replicas", "3", "--yes"),
    "member set-address": ("n4", "127.0.0.1:8084"),
    "member show": ("n1",),
    "definitions export": (),
    "definitions export --to": ("--to", "new.json"),
    "definitions import": ("cluster.json", "--yes", "--secrets", "new.secrets"),
    "jobs count": ("--topic", "t"),
    "jobs duplicates": ("--topic", "t"),
    "jobs gaps": ("--topic", "t", "--number", "offset"),
    "jobs compare": ("--with-endpoints", "127.0.0.1:1"),
    "jobs compare --topic": ("--topic", "t", "--with-topic", "t"),
    "jobs replay": ("--topic", "t", "--to-topic", "u", "--plan", "new.json"),
    "why-not-delivered": (ID, "--group", "g"),
    "begin-time-epoch": ("g1", "--yes"),
    "seal": ("g1",),
    "why-leader-moved": ("g1",),
    "bench receive": ("--topic", "t", "--group", "g", "--duration", "1m"),
    "bench request": ("--topic", "t", "--duration", "1m"),
    "bench send": ("--topic", "t", "--duration", "1m"),
}
OTHER_FILES = {"receipts verify", "audit", "console", "witness"}
"""Tested elsewhere: tests/cli/test_cli_receipts.py and test_cli_proofs.py,
tests/audit/test_audit_cluster_options.py, tests/console."""


def with_endpoints(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[str]:
    """The names of all commands below this one that take --endpoints."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from with_endpoints(
                below, (*path, name), click.Context(below, info_name=name, parent=context)
            )
    elif any(
        "--endpoints" in parameter.opts and not parameter.required for parameter in command.params
    ):
        yield " ".join(path)


def test_every_command_that_calls_a_cluster_has_a_row() -> None:
    """A new command is tried with its wrong usages."""
    pytest.importorskip("pyarrow")
    assert (
        set(with_endpoints(cli.cli, (), click.Context(cli.cli)))
        == {row.split(" --")[0] for row in ROWS} | OTHER_FILES
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeNode]:
    with fake_nodes() as (node,):
        yield node


@pytest.fixture
def node(shared: FakeNode) -> FakeNode:
    """Every call is answered, with no more than a status."""
    shared.requests.clear()
    answering(shared, 20000, "")
    return shared


def answering(node: FakeNode, code: int, text: str) -> None:
    """Every call is answered with this status."""
    for prefix, described in SERVICES.items():
        for method in described.methods:
            answer = getattr(MODULES[prefix], method.output_type.name)()
            if "status" in answer.DESCRIPTOR.fields_by_name:
                answer.status.code, answer.status.message = code, text
            elif code != 20000:
                answer.problem.code, answer.problem.message = code, text
            node.answers(method.name, [answer] if method.server_streaming else answer)


def ended(
    place: Path, capfd: pytest.CaptureFixture[str], row: str, endpoint: str, *more: str
) -> tuple[int, str, str]:
    """Exit status, stdout and the error line (for `check`, its only line) of a row's command, which
    must leave no file."""
    code = cli.run([*row.split(" --")[0].split(), *ROWS[row], "--endpoints", endpoint, *more])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert {path.name: path.read_text() for path in place.iterdir()} == FILES
    if row == "check" and out:
        return code, "", out
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code != 0) and all("; " in line for line in errors), err
    return code, out, "".join(errors)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("row", ROWS)
def test_no_cluster(place: Path, capfd: pytest.CaptureFixture[str], row: str) -> None:
    """The endpoint is named, and nothing is printed but the summary of `send`."""
    pytest.importorskip("pyarrow")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        code, out, error = ended(place, capfd, row, endpoint, "--timeout", "10ms")
    assert code == (2 if row == "check" else 3) and endpoint in error
    assert not out or row == "send"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("row", ROWS)
def test_no_permission(
    node: FakeNode, place: Path, capfd: pytest.CaptureFixture[str], row: str
) -> None:
    """The refusal and where to see the permissions; no call is repeated."""
    pytest.importorskip("pyarrow")
    answering(node, 40300, "user u may not do this")
    code, out, error = ended(place, capfd, row, node.endpoint)
    assert (
        code == (3 if row == "check" else 4)
        and "user u may not do this; see the permissions: ledgermq user describe NAME" in error
    )
    assert not out or row == "send"
    assert all(len(requests) == 1 for requests in node.requests.values())


TEXTS = [
    (row, at)
    for row in ROWS
    for at, word in enumerate(ROWS[row])
    if word[:2] != "--" and "." not in word and word != "new"
]
"""The place of every argument that is no path. `bench` counts refused calls, for its whole
duration."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("row", "at"), [place for place in TEXTS if not place[0].startswith("bench")]
)
def test_an_argument_that_is_no_utf_8(
    node: FakeNode, place: Path, capfd: pytest.CaptureFixture[str], row: str, at: int
) -> None:
    """As Python reads the byte ff from a command line: a mistake of the caller, or a name that
    nothing has. Only a path may have it."""
    pytest.importorskip("pyarrow")
    words = [word + "\udcff" * (number == at) for number, word in enumerate(ROWS[row])]
    code = cli.run([*row.split(" --")[0].split(), *words, "--endpoints", node.endpoint])
    out, err = capfd.readouterr()
    assert code in (4, 64) and not out and "Traceback" not in err and "internal error" not in err


class Interrupt:
    """The answer to a call during which Ctrl-C is pressed. It comes when the command has ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, request: Any) -> Any:
        # To the process, as the terminal does: a signal to this thread would not wake the main
        # thread.
        os.kill(os.getpid(), signal.SIGINT)
        self.over.wait(60)
        return admin_pb2.ClusterStatusResponse()


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    found = Interrupt()
    yield found
    found.over.set()


@pytest.mark.one_in(20)
@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("bench")])
def test_ctrl_c_in_the_first_call(
    node: FakeNode, interrupt: Interrupt, place: Path, capfd: pytest.CaptureFixture[str], row: str
) -> None:
    """130 and a line that says so; the commands that follow a topic end well. None waits for the
    answer. For `bench`, see its own tests."""
    pytest.importorskip("pyarrow")
    for method in node.scripts:
        node.answers(method, interrupt)
    code, out, error = ended(place, capfd, row, node.endpoint)
    if row in ("consume", "consume --to", "sink parquet", "sink iceberg"):
        assert (code, error) == (0, "")
    else:
        assert (code, out) == (130, "") and error.startswith(
            ("error: interrupted", "error: stopped")
        )
    [requests] = node.requests.values()
    # On a busy machine a client may try the same call again before the signal is handled.
    assert all(request == requests[0] for request in requests)


@pytest.mark.parametrize(
    ("row", "method", "said"),
    [
        (
            "send",
            "SendMessage",
            (
                "0 messages were acknowledged, and more may be stored; the same command would send"
                " all of them again"
            ),
        ),
        ("user create", "CreateUser", "the user u may exist with a secret that was not shown"),
        ("user create", "ListUsers", "the user u may exist with a secret that was not shown"),
        ("user rotate", "ChangeUser", "the user u may be changed with a secret that was not shown"),
        (
            "group skip",
            "ResetGroup",
            "the consumer group g may have moved to offset 7; see where it is",
        ),
    ],
)
def test_ctrl_c_in_a_change_that_must_not_be_repeated_unseen(
    node: FakeNode,
    interrupt: Interrupt,
    place: Path,
    capfd: pytest.CaptureFixture[str],
    row: str,
    method: str,
    said: str,
) -> None:
    """The line says what may have been done, instead of `run the command again`."""
    lag = admin_pb2.GroupLagResponse(status=admin_status())
    lag.topics.add().queues.add(queue=0, cursor=7)
    node.answers("GroupLag", lag)
    node.answers("QueryRoute", route(queues=1))
    node.answers(method, interrupt)
    code, _, error = ended(place, capfd, row, node.endpoint)
    assert code == 130 and error.startswith(f"error: interrupted: {said}")


def test_ctrl_c_keeps_the_secrets_that_an_import_may_have_set(
    node: FakeNode, interrupt: Interrupt, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user may exist, so its secret stays in the file, and the line says how to continue."""
    node.answers("CreateUser", interrupt)
    assert (
        cli.run(
            ["definitions", "import", *ROWS["definitions import"], "--endpoints", node.endpoint]
        )
        == 130
    )
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(
        "error: interrupted: 0 of 1 differences are applied; run the command again with another"
        " file for --secrets"
    )
    assert (place / "new.secrets").read_text().startswith("a ")


@pytest.mark.parametrize(
    ("row", "old"),
    [
        ("send --receipts", "old.parquet"),
        ("consume --to parquet", "old.parquet"),
        ("sink parquet", "old.txt"),
        ("definitions export --to", "old.txt"),
        ("definitions import", "old.txt"),
    ],
)
def test_a_file_that_exists_stays(
    node: FakeNode,
    place: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    row: str,
    old: str,
) -> None:
    """64 before anything is sent, received or changed."""
    pytest.importorskip("pyarrow")
    located = log_pb2.LocateResponse(cluster_id="c", kind="normal")
    node.answers("Locate", located)
    monkeypatch.setitem(
        ROWS, row, tuple(old if text.startswith("new") else text for text in ROWS[row])
    )
    code, _, error = ended(place, capfd, row, node.endpoint)
    assert code == 64 and old in error
    assert not {"Produce", "Fetch", "SendMessage", "ReceiveMessage", "CreateUser"} & {
        name for name, got in node.requests.items() if got
    }


def test_ctrl_c_waits_for_the_start_of_a_call() -> None:
    """A channel with a call that was half started would never close (track record). A handler of
    the application's own is not replaced."""
    reached = False
    with pytest.raises(KeyboardInterrupt), service.uninterrupted():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with service.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, former)
