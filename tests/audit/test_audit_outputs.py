"""The output of the command is complete and from a single audit, whenever it is killed; if it
cannot write, it prints one error line."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit import outputs
from ledgermq.audit.cli.report import write_findings
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.cli import run
from tests.audit.damage_cases import NODES, flip, history, write_cluster


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


@pytest.fixture
def audits(tmp_path: Path) -> tuple[Audit, Audit]:
    """One without and one with a finding."""
    writers = write_cluster(tmp_path, history(8))
    names = [str(tmp_path / name) for name in NODES]
    first = audit(names)
    entry = writers[0].entries[33]
    flip(writers[0].log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 50)
    return first, audit(names)


OPERATIONS: tuple[tuple[Any, str], ...] = (
    (os, "replace"),
    (os, "fsync"),
    (Path, "unlink"),
    (Path, "write_text"),
)


def killed_at(
    step: int,
    patch: pytest.MonkeyPatch,
    ended: type[BaseException] = Killed,
    among: tuple[tuple[Any, str], ...] = OPERATIONS,
) -> Callable[[], None]:
    """End the process before its n-th disk operation. Returns a function that asserts that this
    operation was reached."""
    done = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done > step:
                raise ended
            return real(*args, **options)

        return call

    for owner, name in among:
        patch.setattr(owner, name, counted(getattr(owner, name)))

    def reached() -> None:
        assert done > step

    return reached


def test_killed_job_leaves_one_complete_audit_or_none(
    tmp_path: Path, audits: tuple[Audit, Audit]
) -> None:
    """Wherever it is killed: if there is a verdict, the findings are of the same audit, and the
    next audit works normally."""
    clean, hurt = audits
    steps = 0
    while True:
        folder = tmp_path / f"findings-{steps}"
        write_findings(clean, str(folder))
        with pytest.MonkeyPatch.context() as patch:
            reached = killed_at(steps, patch)
            try:
                write_findings(hurt, str(folder))
            except Killed:
                reached()
            else:
                break
        for file in folder.glob("[!.]*.json*"):
            [
                json.loads(line)
                for line in (
                    [file.read_text()]
                    if file.name == "verdict.json"
                    else file.read_text().splitlines()
                )
            ]
        if (folder / "verdict.json").exists():
            rows = [
                json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()
            ]
            assert json.loads((folder / "verdict.json").read_text())["findings"] == [
                {key: row[key] for key in row if key not in ("fails", "meaning", "next_step")}
                for row in rows
            ]
        write_findings(hurt, str(folder))
        assert json.loads((folder / "verdict.json").read_text())["verdict"] == "FAIL"
        assert [file.name for file in folder.iterdir() if "unfinished" in file.name] == []
        steps += 1
    assert steps >= 8


def test_ctrl_c_leaves_the_former_findings_unchanged(
    tmp_path: Path, audits: tuple[Audit, Audit]
) -> None:
    """Wherever the files are being written: none of the new ones stays beside the old ones."""
    clean, hurt = audits
    write_findings(clean, str(tmp_path / "findings"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "findings").iterdir()}
    for steps in range(4):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            killed_at(steps, patch, KeyboardInterrupt, ((os, "fsync"), (Path, "write_text")))
            write_findings(hurt, str(tmp_path / "findings"))
        assert {
            file.name: file.read_bytes() for file in (tmp_path / "findings").iterdir()
        } == before


def test_findings_without_clients_remove_former_client_counts(
    tmp_path: Path, audits: tuple[Audit, Audit]
) -> None:
    """The counts of an audit with clients' files do not stay beside a verdict without."""
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "clients.jsonl").write_text("{}")
    write_findings(audits[0], str(tmp_path / "findings"))
    assert not (tmp_path / "findings" / "clients.jsonl").exists()


def test_a_page_is_exchanged_whole(tmp_path: Path) -> None:
    """A page that is there stays until the new one is whole."""
    page = tmp_path / "page.html"
    page.write_text("old")

    def half(path: Path) -> None:
        path.write_text("ne")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(outputs.CannotWrite):
        outputs.write_file(page, half)
    assert page.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["page.html"]
    (tmp_path / "link").symlink_to(page)
    outputs.write_file(tmp_path / "link", outputs.text("new"))
    assert page.read_text() == "new" and (tmp_path / "link").is_symlink()


def command(tmp_path: Path, *options: str) -> int:
    return run(["audit", *(str(tmp_path / name) for name in NODES), "--engine", "local", *options])


def refused(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The contents of stdout, and the error line on stderr."""
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert re.fullmatch(r"error: [^;]+; .+", line) and "Traceback" not in told.out
    return told.out, line


@pytest.mark.parametrize(
    "options",
    [
        ("--html", "no/page.html"),
        ("--html", "file/page.html"),
        ("--html", "folder"),
        ("--findings", "file/findings"),
        ("--findings", "file"),
    ],
)
def test_unwritable_findings_folder_is_refused_before_the_audit(
    tmp_path: Path, options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is reported before the audit starts."""
    write_cluster(tmp_path, history(8))
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    assert command(tmp_path, options[0], str(tmp_path / options[1])) == 64
    out, line = refused(capsys)
    assert out == "" and options[1].partition("/")[0] in line


@pytest.mark.parametrize("option", ["--html", "--findings"])
@pytest.mark.parametrize("step", ["write_text", "fsync"])
def test_a_full_disk(
    tmp_path: Path,
    option: str,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The verdict is still printed, with an error about the file."""
    write_cluster(tmp_path, history(8))

    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((Path, step) if step == "write_text" else (os, step)), full)
    target = tmp_path / "told"
    assert command(tmp_path, option, str(target)) == 64
    out, line = refused(capsys)
    assert (
        out.splitlines()[-1] == "audit: PASS"
        and "No space left on device" in line
        and "free disk space" in line
        and str(target) in line
    )
    assert (
        not target.is_file()
        and not any(tmp_path.rglob("*.unfinished"))
        and not any(tmp_path.rglob("verdict.json"))
    )


def test_a_device_is_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is never exchanged for a file."""
    write_cluster(tmp_path, history(8))
    assert command(tmp_path, "--html", "/dev/full") == 64
    assert "free disk space" in refused(capsys)[1]
    assert Path("/dev/full").is_char_device()
