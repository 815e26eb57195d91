"""Names and directories of the wrong kind, for every command that takes one, against a real cluster
with an observer.

Law: one error line with a remedy and the documented exit status, no result, and everything as it
was. `check` prints its one line instead. Wrong usages that need no cluster are in
tests/cli/test_cli_bad_input.py and test_cli_bad_local.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import running
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_observer import observed

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(300)]

KINDS = ("normal", "fifo", "delay", "transaction", "priority", "lite")
ID = "01D6F5A2C8E042AB00C0FFEE0000000001"

# Exit status, and the command. In a path, OWN is the directory of the cluster, FOREIGN that of
# another one.
CASES = f"""
# a consumer group, a broker group, a node, a user where a topic is meant
4 topic describe billing
4 topic describe g1
4 topic update billing --queues 4
4 topic delete billing --yes
4 send --topic billing --body b
4 send --topic g1 --body b
4 send --topic %DLQ%billing --body b
4 send --topic %RETRY%billing --body b
4 send --topic billing --file rows.jsonl --receipts new.parquet
4 consume --topic billing --group billing --until-empty 1s
4 consume --topic alice --group billing --to new.jsonl --until-empty 1s
4 peek --topic n1
4 query --topic billing --key k
4 waiting list --topic billing --kind delayed
4 waiting cancel --topic billing --kind delayed --all --yes
4 sink parquet --topic billing --to new --until-empty 1s
4 bench send --topic billing --duration 1s
4 bench receive --topic billing --group billing --duration 1s
4 bench request --topic billing --duration 1s
4 group reset billing --topic billing --to earliest --yes
4 group skip billing --topic g1 --queue 0 --yes
4 group lag billing --topic billing
# a topic, a broker group, a user where a consumer group is meant
4 group describe normal
4 group describe alice
4 group lag g1
4 group update normal --max-attempts 3
4 group delete normal --yes
4 group reset normal --topic normal --to earliest --yes
4 group skip normal --topic normal --queue 0 --yes
4 group create new --lite-topic normal
4 group update billing --lite-topic normal
4 dlq list --group normal
4 dlq show {ID} --group normal
4 dlq resend --group normal --yes
4 dlq purge --group normal --yes
4 dlq export --group normal --to new.jsonl
4 why-not-delivered {ID} --group normal
3 check --group normal
# another kind of topic, and another kind of message
4 send --topic fifo --body b
4 send --topic delay --body b
4 send --topic transaction --body b
4 send --topic priority --body b
4 send --topic lite --body b
4 send --topic normal --body b --delay 5s
4 send --topic normal --body b --delay-level 3
4 send --topic normal --body b --priority 3
4 send --topic normal --body b --message-group m
4 send --topic fifo --body b --message-group m --delay 5s
4 send --topic transaction --body b --delay 5s
64 send --topic fifo --file rows.jsonl --receipts new.parquet
64 send --topic delay --file rows.jsonl --receipts new.parquet
64 send --topic transaction --file rows.jsonl --receipts new.parquet
64 send --topic priority --file rows.jsonl --receipts new.parquet
64 send --topic lite --file rows.jsonl --receipts new.parquet
4 consume --topic lite --group billing --until-empty 1s
4 consume --topic lite --group billing --to new.txt --until-empty 1s
4 consume --topic lite --group billing --to new.csv --until-empty 1s
4 consume --topic lite --group billing --to new.jsonl --until-empty 1s
64 consume --topic lite --group billing --to new.parquet --until-empty 1s
64 sink parquet --topic lite --to new --until-empty 1s
64 sink parquet --topic priority --to new --until-empty 1s
4 bench send --topic fifo --duration 1s
4 bench send --topic delay --duration 1s
4 bench send --topic transaction --duration 1s
4 bench send --topic priority --duration 1s
4 bench send --topic lite --duration 1s
4 bench request --topic fifo --duration 1s
4 bench receive --topic lite --group billing --duration 1s
4 topic create normal --kind fifo
# a topic, a consumer group where a broker group is meant; an observer, or nothing, where a voter is meant
64 why-kept g1
4 why-kept normal/0
4 why-leader-moved billing
4 transfer normal --to n1
4 transfer g1 --to n4
4 transfer g1 --to n9
4 elect normal --node n1
4 elect g1 --node n4 --unclean --yes
4 replication billing --to ha
4 broker-group add g2 --replicas n9
4 move-replica normal --from n1 --to n4
4 move-replica g1 --from n1 --to n4 --no-wait
4 move-replica g1 --from n4 --to n1
4 move-replica g1 --from n9 --to n4
4 topic update normal --add-group billing
4 member drain g1
4 member promote n4
4 member promote n1 --group normal
4 member remove normal --yes
4 member set-address g1 127.0.0.1:9
4 member add n4 --address 127.0.0.1:9
# a topic, a consumer group where a user is meant
4 user describe billing
4 user delete billing --yes
4 user rotate normal
4 user grant billing --publish normal
4 user revoke normal --publish normal
# files and directories of another kind, and of another cluster
64 send --topic normal --file own.parquet
64 send --topic normal --file rows.jsonl --receipts own.parquet
2 receipts verify foreign.parquet
1 receipts verify rows.jsonl
64 definitions import rows.jsonl --yes
64 definitions import own.parquet --yes
64 sink parquet --topic normal --to foreign-lake --until-empty 1s
64 sink parquet --topic normal --to own-backup --until-empty 1s
64 sink parquet --topic normal --to OWN --until-empty 1s
64 sink parquet --topic normal --to OWN/n1 --until-empty 1s
64 audit OWN/n1 FOREIGN/n1 --engine local
4 backup --data OWN --to new
4 backup --data own-lake --to new
4 restore --from foreign-backup --data OWN/n1 --node n1
4 restore --from own-lake --data new
4 restore --from OWN/n1 --data new
4 recover --force-new-cluster --data OWN/n1 --yes
4 recover --force-new-cluster --data own-backup --yes
4 recover --force-new-cluster --data own-lake --yes
4 promote-observer g1 --data OWN/n4 --yes
4 promote-observer g1 --data own-backup --yes
4 import --from OWN/n1 --data new --yes
4 import --from own-backup --data new --yes
64 repair --from-findings own-backup
4 up --data OWN/n1
4 up --data own-backup
64 context add own --endpoints OWN
"""
STATE = (
    ("topic", "list"),
    ("group", "list"),
    ("group", "lag", "billing"),
    ("user", "list"),
    ("broker-group", "list"),
    ("dlq", "list"),
)
"""The commands that show everything that a case could change."""


@dataclass
class World:
    """The cluster under test, and the files of a user of it and of another cluster."""

    cli: CommandLine
    work: Path
    own: LocalCluster
    foreign: LocalCluster

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.work)): path.read_bytes() if path.is_file() else b""
            for path in self.work.rglob("*")
        }

    def state(self) -> list[str]:
        """Without what time changes: the ages of messages."""
        return [self.cli.ok(*command, "--json").out.partition('"oldest')[0] for command in STATE]


@contextmanager
def world(place: Path) -> Iterator[World]:
    work = place / "work"
    work.mkdir()
    (work / "rows.jsonl").write_text('{"body": "b"}\n')
    (place / "own").mkdir()
    (place / "foreign").mkdir()
    with running(place / "own") as own, running(place / "foreign", nodes=1) as foreign:
        cli = CommandLine.of(own)
        observed(own, cli)
        for kind in KINDS:
            cli.ok("topic", "create", kind, "--kind", kind, "--queues", "2")
        cli.ok("group", "create", "billing")
        cli.ok("user", "create", "alice")
        CommandLine.of(foreign).ok("topic", "create", "normal", "--queues", "2")
        for name, cluster in (("own", own), ("foreign", foreign)):
            each = CommandLine.of(cluster)
            each.ok(
                "send",
                "--topic",
                "normal",
                "--file",
                work / "rows.jsonl",
                "--receipts",
                work / f"{name}.parquet",
            )
            each.ok(
                "sink",
                "parquet",
                "--topic",
                "normal",
                "--to",
                work / f"{name}-lake",
                "--until-empty",
                "1s",
            )
            each.ok("backup", "--data", cluster.data("n1"), "--to", work / f"{name}-backup")
        yield World(cli, work, own, foreign)


def test_wrong_kinds_are_refused_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, because most of the time goes into the clusters."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with world(tmp_path) as found:
        monkeypatch.chdir(found.work)
        files, state, wrong = found.files(), found.state(), []
        for case in CASES.strip().splitlines():
            if case.startswith("#"):
                continue
            wanted, *arguments = (
                word.replace("OWN", str(found.own.directory)) for word in case.split()
            )
            arguments = [
                word.replace("FOREIGN", str(found.foreign.directory)) for word in arguments
            ]
            outcome = found.cli.run(*arguments)
            line = (
                outcome.out.strip()
                if arguments[0] == "check"
                else outcome.err.strip().splitlines()[-1:]
            )
            told = (
                "; " in line
                if isinstance(line, str)
                else bool(line) and line[0].startswith("error: ") and "; " in line[0]
            )
            errors = sum(text.startswith("error: ") for text in outcome.err.splitlines())
            if (
                outcome.status != int(wanted)
                or not told
                or errors > 1
                or "Traceback" in outcome.out + outcome.err
            ):
                wrong.append((case, outcome))
            if found.files() != files:
                wrong.append((case, "files", sorted(found.files().keys() ^ files.keys())))
                files = found.files()
        assert wrong == []
        assert found.state() == state
        assert not [
            path
            for node in found.own.directory.glob("n*")
            for path in node.iterdir()
            if "lock" in path.name.lower()
        ]
