"""The `ledgermq` command: lazy commands, exit statuses, and one error line."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest

from ledgermq import cli
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.errors import FatalError


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
    """`--version` prints name and version on stdout."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == "ledgermq 0.1.0\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["stauts"], "did you mean 'status'?"),
        (["nonsense-entirely"], "see: ledgermq --help"),
        (["--bogus"], "see: ledgermq --help"),
        (["up", "--nodes", "x"], "see: ledgermq up --help"),
        (["config", "shwo"], "see: ledgermq config --help"),
        ([], "choose one of the above"),
    ],
)
def test_wrong_usage_is_64_with_a_hint(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors name what is wrong and where help is."""
    assert cli.run(args) == 64
    assert said in last_error(capsys)


def test_every_command_of_the_table_exists_and_its_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview imports nothing; each command's module is there, and its help shows how to use it."""
    for name in ("up", "serve", "config"):
        assert cli.run([name, "--help"]) == 0
        assert "ledgermq " + name in capsys.readouterr().out.split("Example", 1)[1]


def test_status_command_does_not_import_other_packages() -> None:
    """Only the package of the command is loaded: no Spark, no node, for a question to a cluster. The table of exit statuses is."""
    code = (
        "import sys; from ledgermq import cli; cli.run(['--help']); "
        "print(*[m for m in sys.modules if m.startswith(('ledgermq.', 'pyspark', 'grpc', 'numpy'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.splitlines()[-1].split()) == {"ledgermq.cli", "ledgermq.proto", "ledgermq.proto.status"}


def test_bug_is_70_with_one_line_and_the_traceback_in_a_file(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_failures_end_with_their_exit_status(fake: Any, raised: BaseException, exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors that know their exit status keep it; Ctrl-C is 130."""

    def body() -> None:
        raise raised

    fake(body)
    assert cli.run(["fake"]) == exit_code
    last_error(capsys)


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


def test_config_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert cli.run(["config", "check", str(path), "--set", f"cluster.secret_file={tmp_path}/none"]) == 77
    assert "cannot be read" in last_error(capsys)


def test_closed_stdout_is_no_error(tmp_path: Path) -> None:
    """`ledgermq config example | head -1` says nothing on stderr."""
    command = f"{sys.executable} -m ledgermq config example | head -c 10"
    found = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert found.stderr == "" and found.returncode == 0
