"""The command's outside: exit status, last line, the JSON object, finding lines, the files it
writes, refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from ledgermq.audit.cli.commands import ProgressLine
from ledgermq.cli import run
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import Writer

FINDING = re.compile(
    r"^(?P<klass>[a-z-]+) (?P<replica>\S+) (?P<file>\S+) entry=(\d+|-) bytes=(\d+)-(\d+)"
    r" rule=(\S+)$"
)


@pytest.fixture
def cluster(tmp_path: Path) -> list[Writer]:
    return write_cluster(tmp_path, history(8))


def damage(writer: Writer) -> tuple[str, int]:
    entry = writer.entries[33]
    name = f"{entry.pos - entry.pos % 8192:020d}"
    flip(writer.log / "data" / name, entry.pos % 8192 + 50)
    return f"g1/dledger-{writer.node}/data/{name}", entry.pos % 8192 + 50


def command(tmp_path: Path, *options: str) -> int:
    return run(["audit", *(str(tmp_path / name) for name in NODES), "--engine", "local", *options])


def test_pass_says_so_last(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """PASS is exit status 0 and the last line."""
    assert command(tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "audit: PASS"


def test_fail_names_the_place(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """FAIL is exit status 1 and a finding line of the agreed form, with a path under the node
    directory."""
    file, offset = damage(cluster[1])
    assert command(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "audit: FAIL"
    assert f"bit-rot n2 {file} entry=33 bytes={offset}-{offset + 1} rule=entry.body" in lines
    assert any(line.startswith("next step for bit-rot:") for line in lines)
    assert (tmp_path / "n2" / file).is_file()


def test_incomplete_gives_the_reason(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """INCOMPLETE is exit status 2."""
    assert run(["audit", str(tmp_path / "n1"), "--engine", "local"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "audit: INCOMPLETE" and any(
        "replica n2 was not given" in line for line in lines
    )


def test_json_object(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """One object with the agreed keys; unknown values are null."""
    file, offset = damage(cluster[0])
    (cluster[2].log / "checkpoint").unlink()
    assert command(tmp_path, "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert list(value) == [
        "v",
        "verdict",
        "reasons",
        "compared_to_index",
        "replicas",
        "findings",
        "scanned_by",
    ]
    assert (value["v"], value["verdict"], value["compared_to_index"]) == (1, "FAIL", 62)
    assert [set(row) for row in value["replicas"]] == [
        {
            "replica",
            "group",
            "dir",
            "verdict",
            "entries",
            "bytes",
            "commit_index",
            "coverage_ratio",
            "state",
            "checked",
        }
    ] * 3
    assert [row["verdict"] for row in value["replicas"]] == ["FAIL", "PASS", "PASS"]
    assert (
        value["replicas"][2]["commit_index"] is None
        and value["replicas"][1]["coverage_ratio"] == 1.0
    )
    assert value["replicas"][0]["coverage_ratio"] == 62 / 63
    (finding,) = value["findings"]
    assert list(finding) == [
        "class",
        "replica",
        "group",
        "file",
        "index",
        "byte_from",
        "byte_to",
        "rule",
        "proof",
    ]
    assert (finding["file"], finding["index"], finding["byte_from"], finding["byte_to"]) == (
        file,
        33,
        offset,
        offset + 1,
    )


def test_page_and_findings(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """The page shows the verdict first and loads no external resources; the findings are JSON lines
    and Parquet."""
    damage(cluster[0])
    page, folder = tmp_path / "audit.html", tmp_path / "findings"
    assert command(tmp_path, "--html", str(page), "--findings", str(folder)) == 1
    text = page.read_text()
    assert 0 < text.index("FAIL") < text.index("Log files") < text.index("Next steps")
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|https?://", text)
    assert (
        text.count("class=bar>") == sum(1 for _ in tmp_path.glob("n*/g1/dledger-*/data/*"))
        and text.count("class=hurt") == 1
    )
    (row,) = [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]
    assert row["rule"] == "entry.body" and row["fails"] is True
    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        parquet.read_table(folder / "findings.parquet").to_pylist()[0]["byte_from"]
        == row["byte_from"]
    )


def test_page_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory name is text, not markup."""
    base = tmp_path / "<b>x"
    write_cluster(base, history(8))
    page = tmp_path / "audit.html"
    assert command(base, "--html", str(page)) == 0
    assert "<b>x" not in page.read_text()


def test_volumes(
    tmp_path: Path,
    cluster: list[Writer],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--volumes finds every node directory under $LEDGERMQ_VOLUMES, also one folder deeper."""
    (tmp_path / "deep").mkdir()
    shutil.move(tmp_path / "n3", tmp_path / "deep" / "n3")
    monkeypatch.setenv("LEDGERMQ_VOLUMES", str(tmp_path))
    assert run(["audit", "--volumes", "--engine", "local"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/nowhere/at/all"],
        ["--endpoints", "nowhere"],
        ["--engine", "duckdb", "."],
        ["--volumes", "."],
        ["--volumes"],
    ],
)
def test_usage_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong arguments are exit status 64 with one last line that says what to do."""
    monkeypatch.setenv("LEDGERMQ_VOLUMES", "/nowhere/at/all")
    assert run(["audit", *arguments]) == 64
    assert re.fullmatch(r"error: .+; .+", capsys.readouterr().err.splitlines()[-1])


def test_every_finding_line_has_the_form(
    tmp_path: Path, cluster: list[Writer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Findings of every part of a directory keep the form of the line."""
    root = cluster[0].root
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        flip(path, path.stat().st_size // 2)
    command(tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if " rule=" in line]
    assert len(lines) > 10 and all(FINDING.match(line) for line in lines)


def test_progress_bar_has_its_length_for_odd_totals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An object may be longer than the log file it stores, and a log may be empty."""
    monkeypatch.setattr("ledgermq.audit.cli.commands.BAR_EVERY_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line = ProgressLine()
    for told in ((0, 3000), (1500, 3000), (4000, 3000), (0, 0)):
        line(*told)
    bars = capsys.readouterr().err.split("\r")[1:]
    full = "[" + "#" * 30 + "]"
    assert bars == [
        "[" + "." * 30 + "] audit:   0% of 2.93 KiB ",
        "[" + "#" * 15 + "." * 15 + "] audit:  50% of 2.93 KiB ",
        f"{full} audit: 100% of 2.93 KiB ",
        f"{full} audit: 100% of 0 B ",
    ]
