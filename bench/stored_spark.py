"""Spark over an object store, with one worker, two and four: tasks, bytes of each, the work of
tasks, and what scheduling adds.

A log of a few files lies in the store under the names of many broker groups, which stands for a
large one. Each worker is a process of a standalone cluster, and a control group gives it and its
children the same share of a core, so that four of them, the store and the driver fit a machine with
two cores. The table `segments` verifies every stored file in a task of its own. Times of tasks are
Spark's own, from its event log.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.audit_scan import BATCH, CREATED_MS, StoredReplica, batch_of, most_memory, term_start
from ledgermq.storage.files.file_digest import file_digest, read_chunks
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog
from ledgermq.storage.tiered.ports import ObjectStore
from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place

NAME, RUNS, DURABLE = "stored_spark", 3, False
SHORT = {"files": 2, "groups": 3, "file_mib": 1, "workers": (1, 2)}
PREFIX = "bench"
PERIOD_US = 100_000
"""The period of a limit of processor time that the kernel presets."""
COLUMNS = ("file", "bytes", "entries", "flaws", "report")


def run(
    directory: Path,
    files: int = 2,
    groups: int = 20,
    file_mib: int = 64,
    workers: tuple[int, ...] = (1, 2, 4),
    share: float | None = 0.35,
) -> dict[str, Any]:
    """`share` is the part of a core that each worker gets. Workers are not limited if it is None or
    if this machine cannot limit them."""
    from tests.tiered.s3_servers import program, serving

    home = directory / "server"
    home.mkdir()
    with serving(program(home), home) as server:
        place = server.place(PREFIX)
        stored = fill(
            store=S3ObjectStore(place),
            directory=directory / "n1",
            files=files,
            groups=groups,
            file_bytes=file_mib << 20,
            repeat=linked(server.directory / PREFIX),
        )
        found: dict[str, Any] = {
            **stored,
            "bytes_per_task": file_mib << 20,
            "planning": in_process("plan", options_of(place)),
        }
        if share is not None and (reason := why_unlimited()):
            share, found["unlimited"] = None, reason
        found["share"] = share
        first = 0.0
        for count in workers:
            told = with_workers(directory / str(count), count, share, options_of(place), found)
            first = first or told["seconds"] * count
            found[f"workers_{count}"] = {
                **told,
                "of_perfect": round(first / count / told["seconds"], 3),
            }
        return found


# ------------------------------------------------------------------------------------------------------------- the store


def fill(
    store: ObjectStore,
    directory: Path,
    files: int,
    groups: int,
    file_bytes: int,
    repeat: Callable[[str, str], None],
) -> dict[str, int]:
    """Write a log of some files, and store it under the name of each group. `repeat(key, of)`
    stores the same bytes again. Returns the number of stored files and of their entries."""
    replica = StoredReplica(directory, file_bytes, 1 << 22)
    log, number = replica.store.log, 0
    replica.append(1, term_start(1), CREATED_MS)
    while log.end_pos <= files * file_bytes:
        replica.append(1, batch_of(number, BATCH, 512), CREATED_MS + number)
        number += BATCH
    replica.sync()
    disk, own = RealDisk(), replica.store.identity
    chain, first, keys = log.begin_chain, 0, []
    for base in range(0, files * file_bytes, file_bytes):
        last = next(
            index
            for index in range(first, log.end_index)
            if log.pos_of(index + 1) >= base + file_bytes
        )
        path = f"{replica.store.log_directory}/data/{file_name(base)}"
        sha256, end = file_digest(disk, path, lambda length: None), log.read(last, 1).end_pos
        term = log.term_at(first - 1) if first else -1
        numbers = (
            base,
            file_bytes,
            first,
            last,
            end,
            term,
            chain,
            log.term_at(last),
            log.chain_at(last),
        )
        keys += [manifests.object_key("", base, sha256), manifests.manifest_key("", base)]
        where = manifests.folder("g0", own.log_id)
        store.put_parts(where + keys[-2], read_chunks(disk, path))
        store.put(
            where + keys[-1],
            manifests.encode(FileManifest(own.log_id, *numbers, CREATED_MS + number, sha256)),
        )
        chain, first = log.chain_at(last), last + 1
    about = StoredLog.of(own, Begin(0, 0, -1, log.begin_chain), None)
    for group in range(groups):
        folder = manifests.folder(f"g{group}", own.log_id)
        store.put(
            f"{folder}/{manifests.LOG_FILE}", manifests.encode(replace(about, group=f"g{group}"))
        )
        for key in keys if group else ():
            repeat(folder + key, where + key)
    replica.stop(clean=False)
    return {"tasks": files * groups, "entries": first * groups}


def linked(place: Path) -> Callable[[str, str], None]:
    """Store the same bytes again as a link to the same file of the server, below whose folder
    `place` the objects lie: any number of objects needs the disk of one."""
    return lambda key, of: os.link(place / of, place / key)


def alter(path: Path, at: int, beside: Path) -> None:
    """Give one object of several with the same bytes a file of its own, made as `beside`, in which
    one byte differs."""
    shutil.copy2(path, beside)
    with beside.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    beside.replace(path)


def options_of(place: S3Place) -> dict[str, str]:
    return {
        "view": "segments",
        "store": place.url,
        "storeEndpoint": place.endpoint,
        "storeCredentials": place.credentials_file,
    }


# ------------------------------------------------------------------------------------------------------------- the query


def with_workers(
    directory: Path,
    count: int,
    share: float | None,
    options: dict[str, str],
    wanted: dict[str, int],
) -> dict[str, Any]:
    """One query on a cluster of so many workers, after a first one that starts everything."""
    events = directory / "events"
    (directory / "conf").mkdir(parents=True)
    events.mkdir()
    settings = {
        "enabled": "true",
        "dir": f"file:{events}",
        "rolling.enabled": "false",
        "compress": "false",
    }
    lines = [f"spark.eventLog.{name} {value}" for name, value in settings.items()]
    # The first query waits for all workers, so that it starts every one.
    lines += [f"spark.cores.max {count}", "spark.scheduler.minRegisteredResourcesRatio 1.0"]
    lines += ["spark.scheduler.maxRegisteredResourcesWaitingTime 300s"]
    (directory / "conf/spark-defaults.conf").write_text("\n".join(lines))
    with cluster(directory, count, share) as master:
        told = in_process("query", options, master, SPARK_CONF_DIR=str(directory / "conf"))
    assert (told["tasks"], told["entries"], told["wrong"]) == (
        wanted["tasks"],
        wanted["entries"],
        [],
    ), told
    assert told["bytes"] == wanted["tasks"] * wanted["bytes_per_task"], told
    return {
        "seconds": told["seconds"],
        "cores_of_machine": told["cores_of_machine"],
        **tasks_in(next(events.iterdir()), wanted["tasks"]),
    }


def in_process(
    role: str, options: dict[str, str], master: str = "", **environment: str
) -> dict[str, Any]:
    """`query` or `plan` in a process of its own."""
    command = [sys.executable, "-m", "bench.stored_spark", role, json.dumps(options), master]
    given = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    done = subprocess.run(
        command, env=given, stdout=subprocess.PIPE, text=True, check=True, timeout=1200
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def plan(options: dict[str, str]) -> dict[str, Any]:
    """Plan a query over everything, as the driver does: the listing and all manifests."""
    from ledgermq.audit.spark.source import LedgermqSource

    source = LedgermqSource(options)
    before, began, used = most_memory("self"), time.perf_counter(), time.process_time()
    tasks = len(source.reader(source.schema()).partitions())
    seconds, cpu_s = round(time.perf_counter() - began, 2), round(time.process_time() - used, 2)
    return {
        "tasks": tasks,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "mib": most_memory("self"),
        "mib_before": before,
    }


def query(options: dict[str, str], master: str) -> dict[str, Any]:
    """Verify everything in the store twice, and tell of the second time."""
    from ledgermq.audit.spark.java import spark_session

    session = spark_session(master)
    try:
        table = session.read.format("ledgermq").options(**options).load().select(*COLUMNS)
        table.collect()
        began, busy = time.perf_counter(), busy_s()
        rows = table.collect()
        seconds, busy = time.perf_counter() - began, busy_s() - busy
    finally:
        session.stop()
    return {
        "seconds": round(seconds, 2),
        "cores_of_machine": round(busy / seconds, 2),
        **judged(rows),
    }


def judged(rows: Sequence[Any]) -> dict[str, Any]:
    """Sums over the rows of the table, and the names of the objects that have a flaw, or another
    digest than the one in their name. Raises RuntimeError if a file could not be read: such a row
    has no log."""
    wrong = []
    for row in rows:
        report = json.loads(row["report"])
        if report["log"] is None:
            raise RuntimeError(report["lost"])
        if row["flaws"] or not row["file"].endswith(f"-{report['log']['sha256']}.log"):
            wrong.append(row["file"])
    return {
        "tasks": len(rows),
        **{name: sum(row[name] for row in rows) for name in ("bytes", "entries")},
        "wrong": sorted(wrong),
    }


def busy_s() -> float:
    """Processor time of everything on this machine since it started, without programs of low
    priority, in seconds."""
    user, _nice, system, _idle, _wait, *others = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def tasks_in(log: Path, count: int) -> dict[str, Any]:
    """The tasks of the measured query: the last ones of that number in Spark's event log."""
    ends = [
        event
        for line in log.read_text().splitlines()
        if (event := json.loads(line))["Event"] == "SparkListenerTaskEnd"
    ]
    stages = Counter(event["Stage ID"] for event in ends)
    stage = max(number for number, tasks in stages.items() if tasks == count)
    tasks = [event for event in ends if event["Stage ID"] == stage]
    work, added = [], []
    for event in tasks:
        info, measured = event["Task Info"], event["Task Metrics"]
        took, ran = info["Finish Time"] - info["Launch Time"], measured["Executor Run Time"]
        work.append(ran)
        added.append(took - ran)
    spread = Counter(event["Task Info"]["Executor ID"] for event in tasks)
    first, last = (
        min(event["Task Info"]["Launch Time"] for event in tasks),
        max(event["Task Info"]["Finish Time"] for event in tasks),
    )
    return {
        "tasks": len(tasks),
        "executors": len(spread),
        "fewest_of_an_executor": min(spread.values()),
        "work_ms_per_task": round(statistics.median(work), 1),
        "added_ms_per_task": round(statistics.median(added), 1),
        "stage_s": round((last - first) / 1000, 2),
    }


# ----------------------------------------------------------------------------------------------------------- the cluster


@contextmanager
def cluster(directory: Path, workers: int, share: float | None = None) -> Iterator[str]:
    """A standalone master and workers of one core each, on loopback; yields the master's address.
    `share`: the part of a core that a worker gets with all processes that it starts; None: no
    limit."""
    from ledgermq.node.process.local import free_ports

    port = str(free_ports(1)[0].client_port)
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as parts:
        parts.enter_context(
            part(
                "master",
                "I have been elected leader",
                "--host",
                "127.0.0.1",
                "--port",
                port,
                "--webui-port",
                "0",
            )
        )
        for number in range(workers):
            own = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0")
            place = ("--work-dir", str(directory / f"w{number}"))
            group = parts.enter_context(limited(f"w{number}", share)) if share is not None else None
            parts.enter_context(
                part("worker", "Successfully registered", master, *own, *place, group=group)
            )
        yield master


@contextmanager
def part(role: str, until: str, *arguments: str, group: Path | None = None) -> Iterator[None]:
    """Start a part of the cluster, in a control group if one is given; yields once its output has a
    line with `until`."""
    command = [sys.executable, "-m", "ledgermq.audit.spark.standalone", role, *arguments]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        assert any(until in line for line in process.stdout), f"{role} ended"
        yield
    finally:
        process.kill()
        process.communicate()


@contextmanager
def limited(name: str, share: float) -> Iterator[Path]:
    """A control group whose processes together get this share of a core; they end with the block.
    Raises OSError if this process cannot make one: with version 2 the group of this process must
    hand the controller `cpu` down, which only the root and groups without processes may."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controllers, own = next(
        ((names, path) for _, names, path in groups if "cpu" in names.split(",")),
        ("", groups[-1][2]),
    )
    group = Path(
        "/sys/fs/cgroup", controllers, own.lstrip("/"), f"ledgermq-bench-{os.getpid()}-{name}"
    )
    group.mkdir()
    try:
        limits = [
            group / limit for limit in ("cpu.cfs_quota_us", "cpu.max") if (group / limit).exists()
        ]
        if not limits:
            raise OSError(errno.ENOTSUP, "no limit of processor time", str(group))
        limits[0].write_text(str(round(share * PERIOD_US)))
        yield group
    finally:
        end(group)
        group.rmdir()


def end(group: Path) -> None:
    """End the processes of a control group, and wait for that."""
    while found := (group / "cgroup.procs").read_text().split():
        for process in found:
            with suppress(ProcessLookupError), open(os.pidfd_open(int(process)), "rb") as handle:
                signal.pidfd_send_signal(handle.fileno(), signal.SIGKILL)
                ended = select.poll()
                ended.register(handle, select.POLLIN)
                ended.poll()


def why_unlimited() -> str:
    """Why this machine cannot limit the processor time of a worker; empty if it can."""
    try:
        with limited("try", 1.0):
            return ""
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    role, options, master = sys.argv[1:]
    print(
        json.dumps(
            plan(json.loads(options)) if role == "plan" else query(json.loads(options), master)
        ),
        flush=True,
    )
