"""Spark over an object store, with one worker, two and four: tasks, bytes of each, the work of tasks, and what scheduling adds.

A log of a few files lies in the store under the names of many broker groups, which stands for a large one. Each worker is a process of a
standalone cluster with one core. The table `segments` verifies every stored file in a task of its own. Times of tasks are Spark's own, from
its event log: so the work of a task is told from the waiting for a core that this machine does not have.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.audit_scan import BATCH, CREATED_MS, StoredReplica, batch_of, term_start
from ledgermq.storage.begin import Begin
from ledgermq.storage.file_digest import file_digest
from ledgermq.storage.mapped_files import file_name
from ledgermq.storage.real_disk import RealDisk
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog
from ledgermq.storage.tiered.s3 import S3ObjectStore

NAME, RUNS, DURABLE = "stored_spark", 3, False
SHORT = {"files": 2, "groups": 3, "file_mib": 1, "workers": (1, 2)}
PREFIX = "bench"


def run(directory: Path, files: int = 4, groups: int = 12, file_mib: int = 8, workers: tuple[int, ...] = (1, 2, 4)) -> dict[str, Any]:
    from tests.tiered.s3_servers import program, serving

    home = directory / "server"
    home.mkdir()
    with serving(program(home), home) as server:
        place = server.place(PREFIX)
        stored = fill(S3ObjectStore(place), directory / "n1", files, groups, file_mib << 20)
        found = {"tasks": stored["tasks"], "bytes_per_task": file_mib << 20, "entries": stored["entries"]}
        options = {"store": place.url, "storeEndpoint": place.endpoint, "storeCredentials": place.credentials_file}
        return {**found, **{f"workers_{count}": with_workers(directory / str(count), count, options, found) for count in workers}}


def fill(store: S3ObjectStore, directory: Path, files: int, groups: int, file_bytes: int) -> dict[str, int]:
    """Write a log of some files, and store it under the name of each group. Returns the number of stored files and of their entries."""
    replica = StoredReplica(directory, file_bytes, 1 << 22)
    log, number = replica.store.log, 0
    replica.append(1, term_start(1), CREATED_MS)
    while log.end_pos <= files * file_bytes:
        replica.append(1, batch_of(number, BATCH, 512), CREATED_MS + number)
        number += BATCH
    replica.sync()
    disk, own = RealDisk(), replica.store.identity
    chain, first, described = replica.store.log.begin_chain, 0, []
    for base in range(0, files * file_bytes, file_bytes):
        last = next(index for index in range(first, log.end_index) if log.pos_of(index + 1) >= base + file_bytes)
        path = f"{replica.store.log_directory}/data/{file_name(base)}"
        sha256, end = file_digest(disk, path, lambda length: None), log.read(last, 1).end_pos
        term = log.term_at(first - 1) if first else -1
        numbers = (base, file_bytes, first, last, end, term, chain, log.term_at(last), log.chain_at(last))
        described.append((path, FileManifest(own.log_id, *numbers, CREATED_MS + number, sha256)))
        chain, first = log.chain_at(last), last + 1
    about = StoredLog.of(own, Begin(0, 0, -1, replica.store.log.begin_chain), None)
    for group in range(groups):
        where = manifests.folder(f"g{group}", own.log_id)
        store.put(f"{where}/{manifests.LOG_FILE}", manifests.encode(replace(about, group=f"g{group}")))
        for path, file in described:
            store.put_parts(manifests.object_key(where, file.base, file.sha256), iter([Path(path).read_bytes()]))
            store.put(manifests.manifest_key(where, file.base), manifests.encode(file))
    replica.stop(clean=False)
    return {"tasks": files * groups, "entries": first * groups}


def with_workers(directory: Path, count: int, options: dict[str, str], wanted: dict[str, int]) -> dict[str, Any]:
    """One query on a cluster of so many workers, after a first one that starts everything."""
    events = directory / "events"
    (directory / "conf").mkdir(parents=True)
    events.mkdir()
    settings = {"enabled": "true", "dir": f"file:{events}", "rolling.enabled": "false", "compress": "false"}
    (directory / "conf/spark-defaults.conf").write_text("".join(f"spark.eventLog.{name} {value}\n" for name, value in settings.items()))
    with cluster(directory, count) as master:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(directory / "conf")}
        command = [sys.executable, "-m", "bench.stored_spark", master, json.dumps(options)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["tasks"], told["entries"], told["flaws"]) == (wanted["tasks"], wanted["entries"], 0), told
    assert told["bytes"] == wanted["tasks"] * wanted["bytes_per_task"], told
    return {"seconds": told["seconds"], **tasks_in(next(events.iterdir()), wanted["tasks"])}


def tasks_in(log: Path, count: int) -> dict[str, Any]:
    """The tasks of the measured query: the last ones of that number in Spark's event log."""
    ends = [event for line in log.read_text().splitlines() if (event := json.loads(line))["Event"] == "SparkListenerTaskEnd"]
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
    first, last = min(event["Task Info"]["Launch Time"] for event in tasks), max(event["Task Info"]["Finish Time"] for event in tasks)
    return {
        "tasks": len(tasks),
        "executors": len(spread),
        "fewest_of_an_executor": min(spread.values()),
        "work_ms_per_task": round(statistics.median(work), 1),
        "work_s_in_all": round(sum(work) / 1000, 2),
        "added_ms_per_task": round(statistics.median(added), 1),
        "stage_s": round((last - first) / 1000, 2),
        "cores_in_use": round(sum(work) / max(1, last - first), 2),
    }


@contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """A standalone master and workers of one core each, on loopback; yields the master's address."""
    from ledgermq.node.process.local import free_ports

    port = str(free_ports(1)[0].client_port)
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as parts:
        parts.enter_context(part("master", "I have been elected leader", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"))
        for number in range(workers):
            own = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0")
            parts.enter_context(part("worker", "Successfully registered", master, *own, "--work-dir", str(directory / f"w{number}")))
        yield master


@contextmanager
def part(role: str, until: str, *arguments: str) -> Iterator[None]:
    """A part of the cluster, once it has said `until`."""
    command = [sys.executable, "-m", "ledgermq.audit.spark.standalone", role, *arguments]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        assert any(until in line for line in process.stdout), f"{role} ended"
        yield
    finally:
        process.kill()
        process.communicate()


def query(master: str, options: dict[str, str]) -> dict[str, Any]:
    """Verify everything in the store twice, and tell of the second time."""
    from ledgermq.audit.spark.java import spark_session

    session = spark_session(master)
    try:
        table = session.read.format("ledgermq").options(view="segments", **options).load().select("bytes", "entries", "flaws")
        table.collect()
        began = time.perf_counter()
        rows = table.collect()
        seconds = round(time.perf_counter() - began, 2)
    finally:
        session.stop()
    sums = {name: sum(row[name] for row in rows) for name in ("bytes", "entries", "flaws")}
    return {"seconds": seconds, "tasks": len(rows), **sums}


if __name__ == "__main__":
    print(json.dumps(query(sys.argv[1], json.loads(sys.argv[2]))), flush=True)
