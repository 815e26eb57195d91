"""Wrong usages of the commands that work on files, or read a file before they call a cluster: a
file where a directory is wanted, or the reverse, what is missing, what is something else, and what
exists.

Law: as in test_cli_bad_input.py. One error line, no result, and every file as it was.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ledgermq import cli
from tests.audit.damage_cases import history, write_cluster

CASES = """
64 audit
64 audit missing
64 audit file
64 audit nodes/n1 --engine local --html folder
64 audit nodes/n1 --engine local --findings file
64 audit nodes/n1 --engine local --receipts missing
64 audit nodes/n1 --engine local --receipts junk.parquet
64 repair
64 repair --from-findings missing
64 repair --from-findings empty
64 repair --from-findings folder
64 repair --from-findings file
64 repair --from-findings other.json
4 backup --data missing --to new
4 backup --data file --to new
4 backup --data empty --to new
4 backup --data nodes --to new
4 backup --data nodes/n1 --to file
4 backup --data nodes/n1 --to folder
4 backup --data nodes/n1 --to nodes/n1
4 backup --data nodes/n1 --to nodes/n1/inside
4 restore --from missing --data new
4 restore --from file --data new
4 restore --from empty --data new
4 restore --from nodes/n1 --data new
4 restore --from folder --data folder
64 restore --from s3://bucket/x --data new
64 restore --from nodes/n1 --data new --group g1
4 restore --from s3:// --data new --node n1
4 import --from missing --data new --yes
4 import --from file --data new --yes
4 import --from empty --data new --yes
64 import --from folder --data new --config junk.yaml --yes
64 recover
4 recover --force-new-cluster --data missing --yes
4 recover --force-new-cluster --data file --yes
4 recover --force-new-cluster --data nodes --yes
4 recover --force-new-cluster --data nodes/n1 --group g9 --yes
64 promote-observer --data nodes/n1 --yes
4 promote-observer g1 --data missing --yes
4 promote-observer g1 --data file --yes
4 promote-observer g9 --data nodes/n1 --yes
64 doctor missing --quick
64 doctor file --quick
64 doctor
64 doctor --quick
64 doctor --cores 4
64 doctor --plan 20k
64 doctor --plan "20k msg of 1 KiB, 3 days"
64 doctor --plan "2,00 msg/s of 1 KiB, 3 days"
64 doctor --plan "0 msg/s of 1 KiB, 3 days"
64 doctor --plan "1 msg/s of 1 KiB"
64 doctor --plan "1 msg/s of 5 MiB, 1 d"
64 doctor --plan "1 msg/s of one, 1 d"
64 doctor --plan "1 msg/s of 1 KiB, 3"
64 doctor --plan "1 msg/s of 1 KiB, 11 years"
64 doctor --plan "1 msg/s of 1 KiB, 600 weeks"
64 doctor --plan "1M msg/s of 4 MiB, 500 weeks"
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --nodes 2
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --cores 1
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --disk 5
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --memory 0GiB
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --clients kafka
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --replicas 0
64 doctor folder --plan "1 msg/s of 1 KiB, 1 d"
64 doctor --plan "1 msg/s of 1 KiB, 1 d" --quick
4 certificates file n1=h
4 certificates file/tls n1=h
64 certificates tls n1=h
64 certificates new n1
64 certificates new ../n1=h
64 sim --plan missing
64 sim --plan folder
64 sim --plan file
64 sim --plan other.json
64 sim --config folder
64 sim --config junk.yaml
64 sim --seed 1 --save folder
64 sim --seed 1 --save missing/run.json
64 config check missing
64 config check folder
64 config check junk.yaml
64 config show junk.yaml
4 config secret file
4 config secret folder
4 config secret file/secret
64 serve --config missing
64 serve --config folder
64 serve --config junk.yaml
71 up --data file
71 up --data file/data
4 up --data nodes/n1
64 context add a --endpoints h:1 --secret-file missing --user u
64 context add a --endpoints h:1 --tls --ca folder
64 definitions import missing --dry-run
64 definitions import folder --dry-run
64 definitions import file --dry-run
64 definitions import other.json --dry-run
64 definitions export --to folder
64 send --topic t --file missing
64 send --topic t --file folder
64 consume --topic t --group g --to folder
64 dlq export --group g --to folder
64 dlq export --group g --to new.zip
64 receipts verify missing
64 receipts verify folder
64 status --tls --ca missing
4 status --context nobody
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Node directories of a stopped cluster, and files and directories that are nothing that a
    command wants."""
    write_cluster(tmp_path / "nodes", history(3))
    for name in ("empty", "folder", "tls"):
        (tmp_path / name).mkdir()
    for name in ("file", "folder/stray", "junk.parquet", "tls/ca.pem", "tls/ca.key"):
        (tmp_path / name).write_text("x")
    (tmp_path / "other.json").write_text('{"a": 1}\n')
    (tmp_path / "junk.yaml").write_text("a: [")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path


def files(place: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


def test_wrong_usage_is_reported_and_leaves_files_unchanged(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one test, because most of the time goes into the directories. A cluster that would be
    called does not answer."""
    pytest.importorskip("pyarrow")
    before, wrong = files(place), []
    for case in CASES.strip().splitlines():
        wanted, *arguments = shlex.split(case)
        if arguments[0] in ("consume", "definitions", "dlq", "receipts", "send"):
            arguments += ["--endpoints", "127.0.0.1:9", "--timeout", "10ms"]
        code = cli.run(arguments)
        out, err = capfd.readouterr()
        lines = err.splitlines()
        if (int(code), out, len(lines)) != (int(wanted), "", 1) or not (
            lines[0].startswith("error: ") and "; " in lines[0]
        ):
            wrong.append((case, int(code), out, err))
        if changed := files(place).items() ^ before.items():
            wrong.append((case, "changed", sorted({name for name, _ in changed})))
            break
    assert wrong == []


def test_a_taken_directory_is_named_instead_of_the_file(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The secret does not exist: what is in its way is a file where a directory must be."""
    assert cli.run(["config", "secret", "file/secret"]) == 4
    assert capfd.readouterr().err == "error: file exists; use it, or give another file\n"
