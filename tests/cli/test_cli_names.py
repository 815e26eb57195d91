"""Every command that takes the name of a topic or consumer group takes NAMESPACE@NAME, and then
asks the same as with --namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from google.protobuf.message import Message

from ledgermq import cli
from ledgermq.client.cli.commands import NAMED
from ledgermq.proto import admin_pb2, messaging_pb2
from tests.cli.test_cli_bad_input import FILES, ID, ROWS, answering
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes, route, status

OTHER_NAMES = ("broker-group", "context", "member", "user")
"""Commands whose names are neither of topics nor of consumer groups."""
MORE = {
    "group create --lite-topic": ("g", "--lite-topic", "t"),
    "group lag --topic": ("g", "--topic", "t"),
    "group update --lite-topic": ("g", "--lite-topic", "t"),
    "why-not-delivered --topic": (ID, "--group", "g", "--topic", "t"),
}
"""Rows with the options that the table of wrong usages does not need."""
NAMES = ("t", "g", "bench")


def with_names(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, set[str]]]:
    """The names of all commands that take the name of a topic or consumer group, and those
    parameters."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not path and name in OTHER_NAMES:
                continue
            yield from with_names(
                below, (*path, name), click.Context(below, info_name=name, parent=context)
            )
    elif found := {parameter.name or "" for parameter in command.params} & {*NAMED, "namespace"}:
        yield " ".join(path), found


def rows() -> dict[str, tuple[str, ...]]:
    """The rows of the commands that take --namespace."""
    taking = {command for command, _ in with_names(cli.cli, (), click.Context(cli.cli))}
    return {
        row: options
        for row, options in (ROWS | MORE).items()
        if row.split(" --")[0] in taking and set(NAMES) & set(options)
    }


def names_in(message: Message) -> Iterator[tuple[str, str]]:
    """(namespace, name) of every topic and consumer group in a request."""
    fields = {field.name: value for field, value in message.ListFields()}
    for kind in ("name", "topic", "consumer_group", "group"):
        if isinstance(text := fields.get(kind), str):
            namespace, _, name = text.rpartition("@")
            yield fields.get("namespace", fields.get("resource_namespace", namespace)), name
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for below in value if field.is_repeated else [value]:
                yield from names_in(below)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    """In a directory of its own. Every call is answered with no more than a status, a route with a
    queue."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with fake_nodes() as (node,):
        answering(node, 20000, "")
        node.answers("QueryRoute", routed)
        yield node


def routed(request: messaging_pb2.QueryRouteRequest) -> messaging_pb2.QueryRouteResponse:
    """One queue of the topic that was asked for."""
    answer = route(queues=1)
    answer.message_queues[0].topic.CopyFrom(request.topic)
    return answer


def asked(node: FakeNode, command: str, *options: str) -> set[tuple[str, str]]:
    """The names of topics and consumer groups in all that the command asked the cluster. Every
    command here ends with an answer, so that a slow machine changes nothing."""
    node.requests.clear()
    cli.run([*command.split(), *options, "--endpoints", node.endpoint, "--timeout", "60s"])
    for path in Path().glob("new*"):
        path.unlink()
    found = {
        name
        for requests in node.requests.values()
        for request in requests
        for name in names_in(request)
    }
    return {(namespace, name) for namespace, name in found if name in NAMES}


@pytest.mark.verify
def test_every_command_with_a_name_takes_a_namespace() -> None:
    """Loads all commands, which takes a second: not in the gate."""
    found = dict(with_names(cli.cli, (), click.Context(cli.cli)))
    assert {command for command, names in found.items() if "namespace" not in names} == set()
    assert {row.split(" --")[0] for row in rows()} == set(found)


def test_a_name_with_its_namespace_means_the_same(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the names has it, and whether or not the option repeats it."""
    pytest.importorskip("pyarrow")
    for row, options in rows().items():
        command = row.split(" --")[0]
        if command.startswith("bench"):
            # A refused message is not waited for.
            node.answers("SendMessage", messaging_pb2.SendMessageResponse(status=status(40002)))
            options = (*options[:-1], "100ms")
        if command == "consume":
            options = (*options, "--until-empty", "1ms")
        wanted = asked(node, command, *options, "--namespace", "ns")
        assert wanted and {namespace for namespace, _ in wanted} == {"ns"}, (
            row,
            wanted,
            capfd.readouterr(),
        )
        given = [at for at, text in enumerate(options) if text in NAMES]
        forms = [(f"ns@{text}" if text in NAMES else text for text in options)]
        for chosen in ([at] for at in given) if len(given) > 1 else [given]:
            forms.append(f"ns@{text}" if at in chosen else text for at, text in enumerate(options))
        if command == "jobs compare":
            # It may compare topics of two namespaces.
            del forms[1:]
        for number, form in enumerate(forms):
            found = asked(node, command, *form, *(() if number else ("--namespace", "ns")))
            if command.startswith("bench"):
                # Which calls a load makes in its time depends on the machine; their namespace does
                # not.
                assert found and {namespace for namespace, _ in found} == {"ns"}, row
            else:
                assert found == wanted, row


def test_two_namespaces_are_refused(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked of the cluster."""
    assert (
        asked(node, "consume", "--topic", "a@t", "--group", "b@g", "--until-empty", "1ms") == set()
    )
    assert (
        capfd.readouterr().err
        == "error: 'b@g' is not in the namespace 'a'; name one namespace, once\n"
    )


def test_commands_without_the_option_take_the_names_of_the_cluster(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """`check` asks for the consumer groups of several namespaces, and `client list` chooses among
    what the nodes answer."""
    assert asked(node, "check", "--group", "ns@g", "--group", "t") == {("ns", "g"), ("", "t")}
    client = admin_pb2.ClientInfo(client_id="c@1", node="n1", group="ns@g", topics=["ns@t"])
    node.answers(
        "ListClients", admin_pb2.ListClientsResponse(status=admin_status(), clients=[client])
    )
    capfd.readouterr()
    for options, shown in (
        (("--topic", "ns@t"), True),
        (("--group", "ns@g"), True),
        (("--topic", "t"), False),
        (("--group", "g"), False),
    ):
        assert cli.run(["client", "list", *options, "--endpoints", node.endpoint]) == 0
        assert ("c@1" in capfd.readouterr().out) == shown
