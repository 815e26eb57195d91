"""`ledgermq sim`: what it prints is a pure function of its arguments; a failure is explained, kept
and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.sim.cli.commands import sim


def run(*arguments: str) -> Result:
    return CliRunner().invoke(sim, list(arguments))


def test_it_prints_a_pure_function_of_its_arguments() -> None:
    """PASS with seed, steps and digest in the last line, coverage before it, twice the same."""
    runs = [run("--seed", "3", "--steps", "200") for _ in range(2)]
    assert runs[0].output == runs[1].output
    assert runs[0].exit_code == 0
    lines = runs[0].output.splitlines()
    assert lines[-1].startswith("sim: PASS seed=3 steps=")
    assert any(line.startswith("covered: ") for line in lines)


def test_verdict_counts_batches_lost_from_memory() -> None:
    """With another policy the verdict counts both classes; what is lost from memory breaks no
    invariant."""
    result = run(
        "--seed",
        "3",
        "--steps",
        "1500",
        "--policy",
        "memory",
        "--faults",
        "power-cut-all",
        "--json",
    )
    told = json.loads(result.stdout)
    assert (result.exit_code, told["verdict"], told["batches_acknowledged_durable"]) == (
        0,
        "PASS",
        0,
    )
    assert 0 <= told["batches_lost_from_memory"] < told["batches_acknowledged_memory"]
    assert told["faults"]["power_cut_all"] > 0


def test_a_failure_is_explained_kept_and_replayed(tmp_path: Path) -> None:
    """One screen: the rule, a column for each node, the command that replays; the file replays the
    same failure."""
    file = tmp_path / "run.json"
    arguments = (
        "--seeds",
        "1..40",
        "--steps",
        "800",
        "--faults",
        "power-cut-all,kill",
        "--bug",
        "vote-not-synced",
    )
    result = run(*arguments, "--save", str(file))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("broken: ")
    assert len(lines) < 60
    assert [line for line in lines if "n1" in line and "n2" in line and "n3" in line]
    replay = (
        next(line for line in lines if line.startswith("replay: "))
        .removeprefix("replay: ledgermq sim ")
        .split()
    )
    again, from_file = run(*replay), run("--plan", str(file))
    assert again.exit_code == from_file.exit_code == 1
    assert again.stdout.splitlines()[-1] == from_file.stdout.splitlines()[-1] == lines[-1]
    assert lines[-1].startswith("sim: FAIL seed=")


def test_it_runs_on_a_users_own_configuration(tmp_path: Path) -> None:
    """Nodes and timing come from the file that the nodes are started with."""
    file = tmp_path / "node.yaml"
    file.write_text(EXAMPLE)
    assert run("--config", str(file), "--steps", "300").exit_code == 0
    file.write_text(EXAMPLE.replace("heartbeat_ms: 100ms", "heartbeat_ms: 390ms"))
    result = run("--config", str(file), "--steps", "300")
    assert result.exit_code == 64
    assert "heartbeat" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--faults", "earthquake"], "power-cut"),
        (["--seeds", "5..1"], "1..100"),
        (["--seed", "1", "--seeds", "1..2"], "only one of --seed and --seeds"),
        (["--group", "g1"], "--config"),
        (["--plan", __file__], "not a run to replay"),
        (["--plan", __file__, "--seed", "1"], "--plan defines the whole run"),
        (["--config", __file__, "--nodes", "3"], "--nodes"),
        (["--config", __file__], "cannot be simulated"),
    ],
)
def test_wrong_simulator_usage_lists_known_values(arguments: list[str], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (2, 64)
    assert told in " ".join(result.output.split())
