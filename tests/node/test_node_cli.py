"""The `ledgermq` command: lazy commands, exit statuses, and one error line."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest

from ledgermq import cli
from ledgermq.node.process import commands
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto import kernels


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines and lines[-1].startswith("error: ") and "; " in lines[-1]
    assert "Traceback" not in captured.err + captured.out
    assert sum(line.startswith("error: ") for line in lines) == 1
    return lines[-1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a command `fake` whose body is the given function."""

    def install(body: Any, name: str = "fake") -> None:
        module = types.ModuleType("fake_commands")
        module.__dict__["command"] = click.Command(name, callback=body)
        monkeypatch.setitem(sys.modules, "fake_commands", module)
        monkeypatch.setitem(cli.COMMANDS, name, ("fake_commands:command", "A fake."))

    return install


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints name and version on stdout, and whether compiled kernels are used."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"ledgermq {cli.__version__} ({kernels.described()})\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["stauts"], "did you mean 'status'?"),
        (["nonsense-entirely"], "see: ledgermq --help"),
        (["--bogus"], "see: ledgermq --help"),
        (["up", "--nodes", "x"], "see: ledgermq up --help"),
        (["config", "shwo"], "; did you mean 'show'?"),
        (["config", "nonsense"], "see: ledgermq config --help"),
        (["topic", "create", "t", "--kin", "fifo"], "; did you mean '--kind'?"),
        ([], "choose one of the above"),
    ],
)
def test_wrong_usage_is_64_with_a_hint(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage errors name what is wrong and where help is."""
    assert cli.run(args) == 64
    assert said in last_error(capsys)


def test_every_command_of_the_table_exists_and_its_help_has_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The overview imports nothing; each command's module is there, and its help shows how to use
    it."""
    for name in ("up", "serve", "config"):
        assert cli.run([name, "--help"]) == 0
        assert "ledgermq " + name in capsys.readouterr().out.split("Example", 1)[1]


def test_status_command_does_not_import_other_packages() -> None:
    """Only the package of the command is loaded: no Spark, no node, for a question to a cluster.
    The table of exit statuses is."""
    code = (
        "import sys; from ledgermq import cli; cli.run(['--help']); print(*[m for m in sys.modules"
        " if m.startswith(('ledgermq.', 'pyspark', 'grpc', 'numpy'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.splitlines()[-1].split()) == {
        "ledgermq.cli",
        "ledgermq.proto",
        "ledgermq.proto.carried",
        "ledgermq.proto.status",
    }


def test_bug_is_70_with_one_line_and_the_traceback_in_a_file(
    fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback never reaches the terminal; the file named in the message has it."""

    def body() -> None:
        raise KeyError("deep\ninside")

    fake(body)
    assert cli.run(["fake"]) == 70
    line = last_error(capsys)
    assert "KeyError" in line
    report = Path(line.rsplit(" ", 1)[1])
    assert "Traceback" in report.read_text()
    report.unlink()


@pytest.mark.parametrize(
    ("raised", "exit_code"),
    [
        (FatalError(72, "port 1 is taken", "use another"), 72),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.ClickException("no; do it"), 64),
        (click.FileError("f", "gone; check"), 64),
    ],
)
def test_failures_end_with_their_exit_status(
    fake: Any, raised: BaseException, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors that know their exit status keep it; Ctrl-C is 130."""

    def body() -> None:
        raise raised

    fake(body)
    assert cli.run(["fake"]) == exit_code
    last_error(capsys)


@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
def test_the_error_of_a_question_without_an_answer_has_a_line_of_its_own(
    fake: Any,
    end: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C and Ctrl-D at the question leave the cursor behind it."""

    def answer(_: str) -> str:
        raise end

    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    fake(lambda: click.confirm("deleting the topic orders?", err=True))
    assert cli.run(["fake"]) == 130
    assert capsys.readouterr().err == "\nerror: interrupted; run the command again\n"


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (None, 0)])
def test_commands_choose_their_own_exit_status(fake: Any, code: int | None, expected: int) -> None:
    """sys.exit and click's Exit are the status."""

    def body() -> None:
        sys.exit(code)

    fake(body)
    assert cli.run(["fake"]) == expected

    def by_click() -> None:
        raise click.exceptions.Exit(code or 0)

    fake(by_click)
    assert cli.run(["fake"]) == expected


def test_config_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`example` can be checked and shown; a fault is 64 with the key; the secret is not shown."""
    monkeypatch.delenv("LEDGERMQ_CONFIG", raising=False)
    assert cli.run(["config", "example"]) == 0
    text = capsys.readouterr().out
    assert text == EXAMPLE
    path = tmp_path / "node.yaml"
    path.write_text(text)
    secret = ["--set", "cluster.secret=0123456789abcdef", "--set", "cluster.secret_file=null"]
    assert cli.run(["config", "check", str(path), *secret]) == 0
    assert capsys.readouterr().out.startswith("ok: node n1 of cluster ")
    assert cli.run(["config", "show", str(path), "--json", *secret]) == 0
    shown = capsys.readouterr().out
    assert '"v": 1' in shown and "********" in shown and "0123456789abcdef" not in shown
    assert cli.run(["config", "check", str(path), "--set", "log_level=loud"]) == 64
    assert "log_level = 'loud'" in last_error(capsys)
    assert (
        cli.run(["config", "check", str(path), "--set", f"cluster.secret_file={tmp_path}/none"])
        == 77
    )
    assert "does not exist; create it with" in last_error(capsys)


def test_closed_stdout_is_no_error(tmp_path: Path) -> None:
    """`ledgermq config example | head -1` says nothing on stderr."""
    command = f"{sys.executable} -m ledgermq config example | head -c 10"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert found.stderr == "" and found.returncode == 0
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(
        command.split(" | ")[0].split(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert found.stderr == "" and found.returncode == 0
    os.close(write)


def test_the_documented_way_to_a_configuration_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples of `config --help`, in their order: every one ends with 0, from an empty
    directory."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["config", "--help"]) == 0
    lines = [
        line.strip() for line in capsys.readouterr().out.partition("Examples:")[2].splitlines()
    ]
    examples = [line.removeprefix("ledgermq ") for line in lines if line.startswith("ledgermq ")]
    assert len(examples) == 4
    for example in examples:
        arguments, _, target = example.partition(" > ")
        assert cli.run(arguments.split()) == 0, arguments
        if target:
            Path(target).write_text(capsys.readouterr().out)
    assert (tmp_path / "ledgermq-data" / "secret").stat().st_mode & 0o777 == 0o600


def test_a_secret_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A secret in use is never replaced, a missing one is explained, and nothing else is left
    behind."""
    path = tmp_path / "secret"
    assert cli.run(["config", "secret", str(path)]) == 0
    text = path.read_text()
    assert len(text.strip()) == 64
    assert cli.run(["config", "secret", str(path)]) == 4 and path.read_text() == text
    assert "exists" in last_error(capsys)
    assert cli.run(["config", "secret", "/proc/no/secret"]) == 4
    assert "cannot be written" in last_error(capsys)
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    (tmp_path / "node.yaml").write_text(EXAMPLE)
    assert (
        cli.run(
            [
                "config",
                "check",
                str(tmp_path / "node.yaml"),
                "--set",
                f"cluster.secret_file={tmp_path}/absent",
            ]
        )
        == 77
    )
    assert "ledgermq config secret" in last_error(capsys)


def groups() -> list[str]:
    """The commands that have commands of their own."""
    root = click.Context(cli.cli)
    return [
        name for name in cli.COMMANDS if isinstance(cli.cli.get_command(root, name), click.Group)
    ]


@pytest.mark.parametrize("name", groups())
def test_an_overview_has_a_whole_sentence_for_each_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A help text cut in mid-sentence says nothing about its end."""
    assert cli.run([name, "--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:\n", 1)[1]
    entries = re.split(r"^  (?=\S)", listed, flags=re.MULTILINE)[1:]
    assert entries and all(
        entry.rstrip().endswith(".") and not entry.rstrip().endswith("...") for entry in entries
    ), listed


def test_help_names_the_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The overview, which 80 columns show whole, names those of endpoints and credentials, a
    command that of its option."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["--help"]) == 0
    overview = capsys.readouterr().out
    assert max(map(len, overview.splitlines())) <= 80
    assert all(f"LEDGERMQ_{name}" in overview for name in ("ENDPOINTS", "ACCESS_KEY", "SECRET_KEY"))
    for command, variable in (("status", "LEDGERMQ_ENDPOINTS"), ("serve", "LEDGERMQ_CONFIG")):
        assert cli.run([command, "--help"]) == 0
        assert variable in capsys.readouterr().out


def test_every_command_is_in_one_section_of_the_overview(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the overview shows it with its sentence."""
    assert sorted(name for names in cli.SECTIONS.values() for name in names) == sorted(cli.COMMANDS)
    assert cli.run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, (_, line) in cli.COMMANDS.items():
        assert line.endswith(".") and f" {name} {line}" in shown
    assert [title for title in cli.SECTIONS if f" {title}: " not in shown] == []


def every_command() -> dict[str, click.Command]:
    """Every command and command below a group, by its words."""
    root = click.Context(cli.cli)
    found: dict[str, click.Command] = {}
    for name in cli.COMMANDS:
        command = cli.cli.get_command(root, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {below}": each for below, each in command.commands.items()}
    return found


@pytest.mark.parametrize("words", every_command())
def test_every_option_has_a_help_text(words: str) -> None:
    """And the command one that begins with a sentence."""
    command = every_command()[words]
    assert cli.first_sentence(command.help or "").endswith((".", ":"))
    assert [
        option.opts
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ] == []


def test_up_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first line is for programs; below it are the export line, which a shell reads back whole,
    and two commands that exist."""

    class Cluster:
        endpoints = "127.0.0.1:8081;127.0.0.1:8082"
        nodes = children = types.MappingProxyType({})
        prepare = classmethod(lambda cls, *_, **__: cls())

        def start_all(self) -> None:
            """Starts nothing."""

        def stop(self) -> dict[str, int]:
            return {}

    monkeypatch.setattr(commands, "LocalCluster", Cluster)
    monkeypatch.setattr(commands, "_watch", lambda *_: None)
    assert cli.run(["up", "--data", str(tmp_path)]) == 0
    ready, _, export, *following = capsys.readouterr().out.splitlines()
    assert ready == f"ready: endpoints={Cluster.endpoints}"
    shell = subprocess.run(
        ["sh", "-c", f'{export}; printf %s "$LEDGERMQ_ENDPOINTS"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout == Cluster.endpoints and len(following) == 2
    for line in following:
        assert cli.run([*line.split()[1:], "--help"]) == 0


def test_up_names_the_nodes_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every five seconds those that are not ready, and nothing once all are, whenever that is."""
    clock = itertools.count(0.0, 3.0)
    ready_at = {"n1": 2, "n2": 4}
    asked = dict.fromkeys(ready_at, 0)

    def ready(node: str) -> bool:
        asked[node] += 1
        return asked[node] >= ready_at[node]

    cluster: Any = types.SimpleNamespace(
        nodes=ready_at,
        children={node: types.SimpleNamespace(exit_code=None) for node in ready_at},
        ready=ready,
    )
    monkeypatch.setattr(
        commands, "time", types.SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    )
    assert commands._wait_ready(cluster, types.SimpleNamespace(wanted=False))  # type: ignore[arg-type]
    told = capsys.readouterr().err.splitlines()
    assert told == ["waiting for n2 (9 s)"], told
