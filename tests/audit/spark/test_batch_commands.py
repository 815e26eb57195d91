"""`ledgermq jobs` against running clusters: what the commands find and print, and replays that stop
anywhere and are repeated."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq import cli
from ledgermq.audit.batch import replay as replays
from ledgermq.audit.spark import java
from ledgermq.audit.spark.cluster.cluster_options import Target
from ledgermq.node.process.local import LocalCluster
from tests.audit.spark_session import running_spark
from tests.cluster import running
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(900)]

Jobs = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        yield spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("jobs"), groups=["g1", "g2"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("other"), nodes=1) as cluster:
        yield cluster


class Kept:
    """The session of the module, which a command uses and does not stop."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        """It serves the next command."""


@pytest.fixture
def jobs(
    session: Any,
    cluster: LocalCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Jobs:
    """`ledgermq jobs …` in this process: exit status, stdout, the error line."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", cluster.endpoints)
    monkeypatch.setattr(java, "spark_session", lambda master, app, level: Kept(session))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.run(["jobs", *map(str, arguments)])
        out, err = capfd.readouterr()
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "java.lang" not in err and "apache.spark" not in err
        assert len(errors) == (code not in (0, 1)) and all("; " in line for line in errors), (
            code,
            out,
            err,
        )
        return code, out, "".join(errors)

    return run


def create(cluster: LocalCluster, name: str, queues: int = 3) -> dict[str, str]:
    """A new topic, as options of the data source."""
    CommandLine.of(cluster).ok("topic", "create", name, "--queues", str(queues))
    return {"endpoints": cluster.endpoints, "topic": name}


def save(frame: Any, options: dict[str, str]) -> None:
    frame.write.format("ledgermq").options(**options).mode("append").save()


def numbered(session: Any, count: int, without: int = -1) -> Any:
    """Messages 0 … `count`−1, each with its number in body, key and properties."""
    columns = [
        "concat('body ', id) AS body",
        "concat('T', id % 3) AS tag",
        "array(concat('k', id)) AS keys",
    ]
    return (
        session.range(0, count, 1, 2)
        .where(f"id <> {without}")
        .selectExpr(*columns, "map('n', cast(id AS string)) AS properties")
    )


def stored(session: Any, options: dict[str, str]) -> list[Any]:
    """The messages of a topic, in the order of their queues."""
    frame = (
        session.read.format("ledgermq")
        .options(**options, columns="broker_group,queue,offset,body,tag,keys,properties,born_time")
        .load()
    )
    return sorted(
        frame.collect(), key=lambda row: (row["broker_group"], row["queue"], row["offset"])
    )


def test_batch_commands_report_counts_duplicates_and_gaps(
    session: Any, cluster: LocalCluster, jobs: Jobs
) -> None:
    """Counts, duplicates and gaps, as an object and as a table, with their exit statuses."""
    options = create(cluster, "found")
    save(numbered(session, 60, without=41), options)
    code, out, _ = jobs("count", "--topic", "found", "--key", "tag", "--json")
    rows = json.loads(out)["rows"]
    tags = Counter({row["key"]: 0 for row in rows})
    for row in rows:
        tags[row["key"]] += row["messages"]
        assert row["hour"].endswith(":00:00.000Z")
    assert code == 0 and tags == {"T0": 20, "T1": 20, "T2": 19}
    assert jobs("duplicates", "--topic", "found", "--json")[0] == 0
    assert (
        jobs("duplicates", "--topic", "found", "--key", "tag", "--time-range", "..2000-01-01")[0]
        == 0
    )
    code, out, _ = jobs("duplicates", "--topic", "found", "--key", "tag", "--limit", "1", "--json")
    told = json.loads(out)
    assert (code, told["job"], told["topic"], told["total"]) == (1, "duplicates", "found", 3)
    assert [(row["key"], row["messages"], row["bodies"]) for row in told["rows"]] == [
        ("T0", 20, 20)
    ]
    code, out, _ = jobs("duplicates", "--topic", "found", "--key", "tag")
    assert code == 1 and "duplicates of found: 3 rows" in out and "/0/" in out
    gaps = ("gaps", "--topic", "found", "--number", "properties['n']")
    code, out, _ = jobs(*gaps, "--json")
    assert (code, json.loads(out)["rows"]) == (
        1,
        [{"series": None, "first": 41, "last": 41, "missing": 1}],
    )
    code, out, _ = jobs(*gaps, "--series", "cast(properties['n'] AS int) div 41")
    assert (code, out.strip()) == (0, "gaps of found: 0 rows")


def test_a_replay_that_stopped_anywhere_stores_the_rest(
    session: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Every prefix of the queues as what a run had stored before it died: repeated runs complete
    it, add nothing, and keep each order."""
    source = create(cluster, "first")
    save(numbered(session, 31), source)
    origin = Target(cluster.endpoints, "first")
    for step, copied in enumerate((1, 2, 10)):
        options = create(cluster, f"again-{step}", 4)
        goal = Target(cluster.endpoints, f"again-{step}")
        with origin.connect() as reading, goal.connect() as writing:
            sides = replays.Opened(origin, reading), replays.Opened(goal, writing)
            plan = replays.make_plan(f"{time.time_ns()}", *sides, {}, "", 0)
            assert plan.messages == 31 and len(plan.to_broker_groups) == 2
            ends = {
                group: {queue: min(end, copied) for queue, end in queues.items()}
                for group, queues in plan.ends.items()
            }
            for part in (replace(plan, ends=ends), plan, plan):
                ranges = replays.range_options(part, sides[0])
                done, messages = replays.replay(
                    session, part, origin.options | ranges, goal.options
                )
                assert done.done and messages == part.messages
                assert len(stored(session, options)) == part.messages
        check_copies(stored(session, source), stored(session, options))


def check_copies(sources: list[Any], copies: list[Any]) -> None:
    """The same messages, and those of a source queue in one queue, in their order."""
    same = ("tag", "keys", "properties", "born_time")
    came_from = {row["body"]: row for row in sources}
    assert sorted(row["body"] for row in copies) == sorted(came_from)
    assert all(row[name] == came_from[row["body"]][name] for row in copies for name in same)
    places: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in copies:
        origin = came_from[row["body"]]
        places.setdefault((origin["broker_group"], origin["queue"]), []).append(
            (origin["offset"], row["broker_group"], row["queue"])
        )
    for place, found in places.items():
        assert [offset for offset, *_ in found] == sorted(offset for offset, *_ in found), place
        assert len({tuple(target) for _, *target in found}) == 1, place


def test_a_replay_command_that_is_interrupted_and_repeated(
    session: Any, cluster: LocalCluster, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between the plan and the first message, then between the last message and the mark;
    repeated, it stores what is missing."""
    source, target = create(cluster, "long"), create(cluster, "copy")
    save(numbered(session, 200), source)
    wanted = [row for row in stored(session, source) if row["offset"] % 2 == 0]
    plan = tmp_path / "plan.json"
    words = (
        "replay",
        "--topic",
        "long",
        "--to-topic",
        "copy",
        "--plan",
        plan,
        "--where",
        "offset % 2 = 0",
    )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for place, copied in (("replay", 0), ("write_done", len(wanted))):
        with monkeypatch.context() as broken:
            broken.setattr(replays, place, interrupted)
            assert jobs(*words)[0] == 130
        assert json.loads(plan.read_text())["done"] is False
        assert len(stored(session, target)) == copied
    save(numbered(session, 50), source)
    code, out, _ = jobs(*words, "--json")
    told = json.loads(out)
    assert (code, told["read"], told["messages"], told["to_topic"]) == (0, 200, len(wanted), "copy")
    assert jobs(*words)[1].startswith("replayed before")
    check_copies(wanted, stored(session, target))


def test_two_clusters_are_compared(
    session: Any, cluster: LocalCluster, other: LocalCluster, jobs: Jobs, tmp_path: Path
) -> None:
    """A topic that was copied is equal; a message more, and topics that one side has alone, are
    differences."""
    options = create(cluster, "pair")
    save(numbered(session, 100), options)
    create(other, "pair", 2)
    words = ("compare", "--topic", "pair", "--with-endpoints", other.endpoints)
    assert jobs(*words)[0] == 1
    replay = (
        "replay",
        "--topic",
        "pair",
        "--to-topic",
        "pair",
        "--to-endpoints",
        other.endpoints,
        "--plan",
        tmp_path / "p.json",
    )
    assert jobs(*replay)[:2] == (0, "replayed: 100 of 100 messages from pair are in pair\n")
    assert jobs(*words)[0] == 0
    before = int(time.time() * 1000)
    save(
        session.sql("SELECT 'extra' AS body, array('k7') AS keys"),
        {"endpoints": other.endpoints, "topic": "pair"},
    )
    code, out, _ = jobs(*words, "--key", "keys[0]", "--json")
    (row,) = json.loads(out)["rows"]
    assert (code, row["key"], row["left"], row["right"], row["first_left"]) == (1, "k7", 0, 1, None)
    assert jobs(*words, "--time-range", f"..{before}")[0] == 0
    assert jobs(*words, "--time-range", f"{before}..")[0] == 1
    create(other, "alone", 1)
    code, out, _ = jobs("compare", "--with-endpoints", other.endpoints)
    assert (
        code == 1
        and "topic alone: only the other cluster has it" in out
        and "topic pair" not in out
        and "compare of pair and pair: 1 rows" in out
    )


def test_wrong_usages(session: Any, cluster: LocalCluster, jobs: Jobs, tmp_path: Path) -> None:
    """Each ends with one line that says what is wrong, before Spark does any work, and a new plan
    is not written."""
    create(cluster, "wrong")
    create(cluster, "wrong-to")
    junk, plan = tmp_path / "junk.json", tmp_path / "new.json"
    junk.write_text("[]")
    replay = ("replay", "--topic", "wrong", "--to-topic", "wrong-to", "--plan")
    for words, status, said in (
        (("count", "--topic", "none"), 4, "none"),
        (("count", "--topic", "wrong", "--key", "colour"), 64, "--key is not an expression"),
        (("count", "--topic", "wrong", "--key", "tag ="), 64, "--key is not an expression"),
        (("count", "--topic", "wrong", "--key", "*"), 64, "--key gives 2 columns"),
        (("count", "--topic", "wrong", "--time-range", "soon"), 64, "range of time"),
        (
            ("gaps", "--topic", "wrong", "--number", "no_such(tag)"),
            64,
            "--number is not an expression",
        ),
        (
            ("gaps", "--topic", "wrong", "--number", "keys"),
            64,
            "--number is of type array, which is no number; give a number or a text",
        ),
        (("gaps", "--topic", "wrong", "--number", "body"), 64, "--number is of type binary"),
        (("compare",), 64, "no topic is named"),
        (("compare", "--topic", "wrong"), 64, "nothing to compare"),
        (
            ("compare", "--topic", "wrong", "--with-context", "a", "--with-endpoints", "h:1"),
            64,
            "two clusters",
        ),
        (("compare", "--topic", "wrong", "--with-context", "nobody"), 4, "no context 'nobody'"),
        ((*replay, junk), 64, "is not a plan"),
        ((*replay, tmp_path / "no" / "plan.json"), 64, "cannot be written"),
        ((*replay, plan, "--where", "tag"), 64, "--where"),
        ((*replay, plan, "--where", "colour = 1"), 64, "--where"),
    ):
        code, out, error = jobs(*words)
        assert (code, out) == (status, "") and said in error, (words, code, error)
        assert not plan.exists()
    assert jobs(*replay, plan)[0] == 0
    for change, words, status, said in (
        ({}, (*replay, plan, "--where", "true"), 64, "was made for another range or filter"),
        ({"crc32c": 1}, (*replay, plan), 64, "checksum"),
        ({"v": 2}, (*replay, plan), 64, "version 2"),
        ({"topic": "found"}, (*replay, plan), 4, "names another one"),
        ({"to_cluster": "x"}, (*replay, plan), 4, "names another one"),
        ({"done": False, "created_ms": 1}, (*replay, plan), 4, "six days"),
    ):
        kept = plan.read_text()
        former = {key: value for key, value in json.loads(kept).items() if key != "crc32c"}
        plan.write_text(json.dumps({**former, **change}))
        code, out, error = jobs(*words)
        assert (code, out) == (status, "") and said in error, (change, code, error)
        plan.write_text(kept)
    ranged = (*replay, tmp_path / "ranged.json", "--time-range=-1h..", "--where", "offset >= 0")
    assert [jobs(*ranged)[0] for _ in range(2)] == [0, 0], (
        "the same command again, whatever -1h means by then"
    )
    assert jobs(*ranged[:-3], "--time-range=-2h..")[0] == 64


def test_an_error_in_a_task_is_told_in_one_line(
    session: Any, cluster: LocalCluster, jobs: Jobs
) -> None:
    """An expression that fails for a message."""
    save(numbered(session, 3), create(cluster, "failing"))
    code, out, error = jobs("count", "--topic", "failing", "--key", "raise_error('told to fail')")
    assert (code, out) == (4, "") and "Spark failed: " in error and "told to fail" in error
    code, out, error = jobs("gaps", "--topic", "failing", "--number", "cast('x' AS int)")
    assert (code, out) == (4, "") and "Spark failed: [CAST_INVALID_INPUT] " in error, (
        "and no trace of Java"
    )
