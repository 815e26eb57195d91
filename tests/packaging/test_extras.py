"""What `pip install ledgermq` brings, and what its extras add: each module of another project is
imported only where its requirement is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq import __version__, cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "prometheus-client": "prometheus_client",
    "protobuf": "google",
    "pyyaml": "yaml",
}
"""Distribution → the module it installs, where the names differ."""
CLIENT = (
    "client/",
    "proto/",
    "storage/",
    "src/ledgermq/cli.py",
    "src/ledgermq/__init__.py",
    "src/ledgermq/__main__.py",
)
"""What must work without an extra. `storage/` is here for `doctor`, `backup` and `restore`."""
CONSOLE = "client/console/"
"""It has an extra of its own; only its `commands.py` is imported without it, by `--help`."""
TIERED = "storage/tiered/s3.py"
"""It has an extra of its own, and is imported only for `s3://…`."""
OPTIONAL = {"pyarrow", "pyiceberg", "cryptography"}
"""Modules that the client imports only when it converts to or from their types, or signs and
verifies."""
BLOCK = """
import sys
sys.modules.update(dict.fromkeys({modules!r}))
from ledgermq.cli import run
sys.exit(run({args!r}))
"""


def modules_of(requirements: list[str]) -> set[str]:
    distributions = [re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in requirements]
    return {NAMES.get(name, name) for name in distributions}


def imported() -> Iterator[tuple[str, str, bool]]:
    """(file, foreign module, whether importing the file imports it) of the whole product."""
    folders = ("client", "proto", "storage", "raft", "node", "audit", "sim", "src/ledgermq")
    for path in [
        ROOT / "src/pyspark_ledgermq.py",
        *(path for folder in folders for path in (ROOT / folder).glob("**/*.py")),
    ]:
        tree = ast.parse(path.read_text())
        typing_only = {
            id(node)
            for test in ast.walk(tree)
            if isinstance(test, ast.If)
            and isinstance(test.test, ast.Name)
            and test.test.id == "TYPE_CHECKING"
            for node in ast.walk(test)
        }
        for node in ast.walk(tree):
            if id(node) in typing_only:
                continue
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                named = [str(node.module)]
            for name in named:
                root = name.split(".")[0]
                if root not in sys.stdlib_module_names and root not in (
                    "ledgermq",
                    "ledgermq_native",
                ):
                    yield str(path.relative_to(ROOT)), root, node.col_offset == 0


def of_the_client(file: str) -> bool:
    return file.startswith(CLIENT) and not file.startswith((CONSOLE, TIERED))


@pytest.mark.verify
def test_client_imports_only_required_packages_at_start() -> None:
    """No file of the client imports a module of an extra at its start, and only a few later."""
    core = modules_of(PROJECT["dependencies"])
    wrong = [
        f"{file} imports {module}"
        for file, module, at_once in imported()
        if of_the_client(file) and module not in core and (at_once or module not in OPTIONAL)
    ]
    assert not wrong, wrong
    assert core == {module for file, module, _ in imported() if of_the_client(file)} - OPTIONAL


@pytest.mark.verify
def test_every_other_module_belongs_to_an_extra() -> None:
    """The table by which the command line names the missing extra agrees with pyproject.toml and
    with the imports."""
    core = modules_of(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    foreign = {module for _, module, _ in imported()} - core
    assert foreign <= set(cli.EXTRAS), foreign - set(cli.EXTRAS)
    for module, extra in cli.EXTRAS.items():
        assert any(
            name == module or name.startswith(f"{module}-") for name in modules_of(extras[extra])
        ), (module, extra)


@pytest.mark.parametrize(
    "command", ["up", "serve --config x.yaml", "certificates --help", "sim --help"]
)
def test_a_command_of_a_missing_extra_names_it(command: str) -> None:
    """One line, and the exit status of a configuration error."""
    program = BLOCK.format(
        modules=[name for name, where in cli.EXTRAS.items() if where == "server"],
        args=command.split(),
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 64, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: this command needs ") and line.endswith(
        "pip install 'ledgermq[server]'"
    ), line


@pytest.mark.parametrize("command", ["", "status", "consume", "audit", "doctor"])
def test_the_client_runs_without_any_extra(command: str) -> None:
    """Also `audit`, whose local engine needs no extra."""
    program = BLOCK.format(modules=list(cli.EXTRAS), args=[*command.split(), "--help"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_console_names_its_extra() -> None:
    """Also where aiohttp is there for a node."""
    program = BLOCK.format(modules=["jinja2"], args=["console"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 64 and done.stderr.endswith("pip install 'ledgermq[console]'\n"), done


def test_the_description_stands_alone() -> None:
    """An index shows it without the repository, so no link in it is relative; and the version is
    stated once more, in the package."""
    text = (ROOT / PROJECT["readme"]).read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert not [link for link in links if "://" not in link]
    assert set(re.findall(r"ledgermq\[(\w+)\]", text)) == set(PROJECT["optional-dependencies"])
    assert PROJECT["version"] == __version__
