"""`ledgermq context`, and which cluster a command reaches."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq import cli
from ledgermq.client.cli import contexts
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

SECRET = "a-secret-of-billing"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ENDPOINTS", "CONTEXT", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.delenv(f"LEDGERMQ_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "ledgermq"


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    with fake_nodes(2) as found:
        for number, node in enumerate(found):
            topic = pb.TopicInfo(topic=pb.Name(name=f"t{number}"))
            node.answers("ListTopics", pb.ListTopicsResponse(status=admin_status(), topics=[topic]))
        yield found


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.run(list(arguments))
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err and (
        status == 0 or err.splitlines()[-1].startswith("error: ")
    )
    assert SECRET not in out + err
    return status, out, err


def reached(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The topic of the cluster that a command reaches."""
    status, out, err = run(capsys, "topic", "list", "--json", *arguments)
    assert status == 0, err
    topics = json.loads(out)["topics"]
    return str(topics[0]["topic"])


def test_a_command_uses_the_named_the_chosen_or_no_context(
    capsys: pytest.CaptureFixture[str], nodes: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--context before LEDGERMQ_CONTEXT before the chosen one; endpoints exclude all of them."""
    for number, node in enumerate(nodes):
        assert run(capsys, "context", "add", f"c{number}", "--endpoints", node.endpoint)[0] == 0
    assert run(capsys, "context", "use", "c0")[:2] == (0, "chosen: c0\n")
    assert reached(capsys) == "t0" and reached(capsys, "--context", "c1") == "t1"
    monkeypatch.setenv("LEDGERMQ_CONTEXT", "c1")
    assert reached(capsys) == "t1" and reached(capsys, "--context", "c0") == "t0"
    assert reached(capsys, "--endpoints", nodes[0].endpoint) == "t0"
    assert (
        run(capsys, "topic", "list", "--endpoints", nodes[0].endpoint, "--context", "c1")[0] == 64
    )
    monkeypatch.delenv("LEDGERMQ_CONTEXT")
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", nodes[1].endpoint)
    assert reached(capsys) == "t1"


def test_keys_of_a_context_sign_its_calls_only(
    capsys: pytest.CaptureFixture[str],
    nodes: list[FakeNode],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A command with endpoints of its own is not signed with them; keys in the environment
    precede."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    arguments = (
        "--endpoints",
        nodes[0].endpoint,
        "--user",
        "billing",
        "--secret-file",
        str(tmp_path / "secret"),
        "--use",
    )
    assert run(capsys, "context", "add", "prod", *arguments)[0] == 0
    reached(capsys)
    assert "Credential=billing" in dict(nodes[0].metadata)["authorization"]
    reached(capsys, "--endpoints", nodes[1].endpoint)
    assert "authorization" not in dict(nodes[1].metadata)
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "other")
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "x")
    reached(capsys)
    assert "Credential=other" in dict(nodes[0].metadata)["authorization"]


def test_the_file_is_for_its_owner_only(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 0600 at every change, no secret in any output, and a file that others can read is
    refused."""
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", SECRET)
    assert (
        run(capsys, "context", "add", "prod", "--endpoints", "mq:8081", "--user", "billing")[0] == 0
    )
    path = home / "contexts.json"
    monkeypatch.delenv("LEDGERMQ_SECRET_KEY")
    assert run(capsys, "context", "use", "prod")[0] == 0
    assert path.stat().st_mode & 0o777 == 0o600 and SECRET in path.read_text()
    shown = run(capsys, "context", "list")[1]
    assert "*" in shown and "billing" in shown
    listed = json.loads(run(capsys, "context", "list", "--json")[1])["contexts"]
    assert [(each["name"], each["chosen"], each["access_key"], each["ca"]) for each in listed] == [
        ("prod", True, "billing", None)
    ]
    assert SECRET not in repr(contexts.load())
    path.chmod(0o644)
    status, _, err = run(capsys, "context", "list")
    assert status == 64 and "chmod 600" in err


def test_a_context_is_removed_with_its_secret(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen one too: then none is chosen. Without a terminal it needs --yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", SECRET)
    assert (
        run(capsys, "context", "add", "prod", "--endpoints", "mq:8081", "--user", "b", "--use")[0]
        == 0
    )
    assert run(capsys, "context", "remove", "prod")[0] == 64
    assert run(capsys, "context", "remove", "prod", "--yes")[:2] == (0, "removed: prod\n")
    assert (
        contexts.load() == contexts.Contexts()
        and SECRET not in (home / "contexts.json").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("add", "a", "--endpoints", "mq"), 64, "is not an endpoint"),
        (("add", "a/b", "--endpoints", "mq:1"), 64, "is not a name"),
        (("add", "a", "--endpoints", "mq:1", "--ca", "ca.pem"), 64, "without --tls"),
        (
            ("add", "a", "--endpoints", "mq:1", "--tls", "--ca", "/nowhere/ca.pem"),
            64,
            "cannot be read",
        ),
        (("add", "a", "--endpoints", "mq:1", "--user", "u"), 64, "no secret"),
        (("add", "a", "--endpoints", "mq:1", "--secret-file", "s"), 64, "without --user"),
        (
            ("add", "a", "--endpoints", "mq:1", "--user", "u", "--secret-file", "/nowhere/s"),
            64,
            "cannot be read",
        ),
        (("add", "there", "--endpoints", "mq:1"), 4, "exists"),
        (("use", "absent"), 4, "known are: there"),
        (("use",), 64, "one context is needed"),
        (("use", "there", "--none"), 64, "one context is needed"),
        (("remove", "absent", "--yes"), 4, "known are: there"),
    ],
)
def test_wrong_context_usage_leaves_the_file_unchanged(
    capsys: pytest.CaptureFixture[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    """The file has its former bytes, and nothing else is there."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(capsys, "context", "add", "there", "--endpoints", "mq:8081")[0] == 0
    before = (home / "contexts.json").read_bytes()
    found, _, err = run(capsys, "context", *arguments)
    assert (found, (home / "contexts.json").read_bytes()) == (status, before) and said in err
    assert sorted(each.name for each in home.iterdir()) == [".contexts.lock", "contexts.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"v": 2}',
        '{"v": 1, "current": "", "contexts": {"a": {"endpoints": 1}}}',
        '{"v": 1}',
    ],
)
def test_a_damaged_file_is_named_and_kept(
    capsys: pytest.CaptureFixture[str], home: Path, text: str
) -> None:
    """Neither a list nor an addition takes it for empty."""
    home.mkdir(parents=True)
    path = home / "contexts.json"
    path.touch(0o600)
    path.write_text(text)
    for arguments in (("list",), ("add", "a", "--endpoints", "mq:1")):
        status, _, err = run(capsys, "context", *arguments)
        assert status == 64 and "contexts.json" in err and path.read_text() == text


def test_an_interrupted_change_leaves_the_former_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new content gets the name when it is complete; what an earlier attempt left is no
    obstacle."""
    with contexts.changing() as held:
        held[0] = held[0].with_context("a", contexts.Context("mq:1"), use=False)
    before = contexts.load()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt), contexts.changing() as held:
            held[0] = contexts.Contexts()
    assert contexts.load() == before
    with contexts.changing() as held:
        held[0] = held[0].using("a")
    assert contexts.load().current == "a" and not (home / ".contexts.json.part").exists()


def test_changes_at_once_are_all_kept() -> None:
    """Each reads what the one before it wrote."""

    def add(number: int) -> None:
        with contexts.changing() as held:
            held[0] = held[0].with_context(f"c{number}", contexts.Context("mq:1"), use=False)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(contexts.load().known) == [f"c{number}" for number in range(8)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ledgermq stat", ["status"]),
        ("ledgermq topic cr", ["create"]),
        ("ledgermq status --contex", ["--context"]),
        ("ledgermq status --context p", ["prod"]),
        ("ledgermq context use ", ["local", "prod"]),
        ("ledgermq topic create t --kind pri", ["priority"]),
    ],
)
def test_the_shell_completes_commands_options_and_contexts(words: str, offered: list[str]) -> None:
    """As bash asks for it: in a process of its own, with nothing on stderr."""
    with contexts.changing() as held:
        for name in ("prod", "local"):
            held[0] = held[0].with_context(name, contexts.Context("mq:1"), use=False)
    environment = os.environ | {
        "_LEDGERMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    found = subprocess.run(
        [sys.executable, "-m", "ledgermq"], env=environment, capture_output=True, text=True
    )
    assert [
        line.partition(",")[2] for line in found.stdout.splitlines()
    ] == offered and found.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_three_shells(shell: str) -> None:
    """The script that the help tells the user to load."""
    environment = os.environ | {"_LEDGERMQ_COMPLETE": f"{shell}_source"}
    found = subprocess.run(
        [sys.executable, "-m", "ledgermq"], env=environment, capture_output=True, text=True
    )
    assert "_LEDGERMQ_COMPLETE" in found.stdout and "ledgermq" in found.stdout
