"""`python -m bench.alone.stored_terabyte DIR`: every entry and digest of a terabyte in an object
store, verified on Spark.

Two log files lie in the store under the names of many broker groups, as links to the same bytes, so
that DIR needs a few GB; one object has an altered byte. Each is a task of its own, which fetches
its whole object through the S3 API. The groups are verified in portions, and DIR remembers those
that are done: the command continues where it was stopped. At the end exactly the altered object
must have been found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.stored_spark import (
    COLUMNS,
    PREFIX,
    alter,
    busy_s,
    cluster,
    fill,
    in_process,
    judged,
    linked,
    options_of,
)
from ledgermq.storage.tiered.s3 import S3ObjectStore

FILES = 2


def make(home: Path, place: Any, bucket: Path, total: int, file_bytes: int) -> dict[str, Any]:
    """The store with `total` bytes or a little more. Its description appears when it is
    complete."""
    about = home / "store.json"
    if about.exists():
        found: dict[str, Any] = json.loads(about.read_text())
        return found
    if bucket.joinpath(PREFIX).exists():
        sys.exit(f"the store in {home} is not complete: remove {home}")
    groups = -(-total // (FILES * file_bytes))
    stored = fill(
        store=S3ObjectStore(place),
        directory=home / "n1",
        files=FILES,
        groups=groups,
        file_bytes=file_bytes,
        repeat=linked(bucket / PREFIX),
    )
    shutil.rmtree(home / "n1")
    [altered] = (bucket / PREFIX / f"g{groups // 2}").glob(f"*/{file_bytes:020d}-*.log")
    alter(altered, file_bytes // 3, home / "altered")
    made = {
        **stored,
        "groups": groups,
        "bytes": stored["tasks"] * file_bytes,
        "altered": str(altered.relative_to(bucket / PREFIX)),
    }
    (home / "store.json.new").write_text(json.dumps(made))
    (home / "store.json.new").replace(about)
    return made


def verify(session: Any, options: dict[str, str], groups: Sequence[int]) -> dict[str, Any]:
    """One portion: all files of some groups."""
    names = ",".join(f"g{group}" for group in groups)
    began, busy = time.perf_counter(), busy_s()
    found = judged(
        session.read.format("ledgermq")
        .options(group=names, **options)
        .load()
        .select(*COLUMNS)
        .collect()
    )
    return {
        "groups": list(groups),
        **found,
        "seconds": round(time.perf_counter() - began, 1),
        "core_s": round(busy_s() - busy, 1),
    }


def verify_all(
    home: Path, options: dict[str, str], made: dict[str, Any], at_once: int, portions: int | None
) -> dict[str, Any]:
    """Verify the groups that no earlier call has verified: all of them, or with `portions` at most
    that many times `at_once` groups. Returns the sums over all groups that were verified so far, by
    this call or an earlier one."""
    from ledgermq.audit.spark.java import spark_session

    notes = home / "verified.jsonl"
    done = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    left = sorted(
        {*range(made["groups"])} - {group for portion in done for group in portion["groups"]}
    )
    with cluster(home / "cluster", 2) as master, notes.open("a") as out:
        session = spark_session(master)
        try:
            for start in range(0, len(left), at_once)[:portions]:
                done.append(verify(session, options, left[start : start + at_once]))
                out.write(json.dumps(done[-1]) + "\n")
                out.flush()
                told = {name: value for name, value in done[-1].items() if name != "groups"}
                say(
                    f"{sum(len(portion['groups']) for portion in done)} of {made['groups']} groups:"
                    f" {json.dumps(told)}"
                )
        finally:
            session.stop()
    sums = {
        name: round(sum(portion[name] for portion in done), 1)
        for name in ("tasks", "entries", "bytes", "seconds", "core_s")
    }
    return {**sums, "wrong": sorted(name for portion in done for name in portion["wrong"])}


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    from tests.tiered.s3_servers import program, serving

    parser = argparse.ArgumentParser(
        prog="python -m bench.alone.stored_terabyte", description=__doc__
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="on a disk with 8 GB free")
    parser.add_argument(
        "--bytes",
        type=float,
        default=1e12,
        help="size of the store when it is made (default: 1e12)",
    )
    parser.add_argument(
        "--file-mib", type=int, default=1024, help="size of its files (default: 1024)"
    )
    parser.add_argument("--at-once", type=int, default=16, help="groups in a portion (default: 16)")
    parser.add_argument(
        "--portions",
        type=int,
        help="how many portions to verify before the command ends (default: all that are left)",
    )
    given = parser.parse_args()
    home: Path = given.directory.absolute()
    home.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with serving(program(home), home) as server:
        place = server.place(PREFIX)
        made = make(home, place, server.directory, int(given.bytes), given.file_mib << 20)
        say(f"store: {json.dumps(made)}")
        say(f"planning: {json.dumps(in_process('plan', options_of(place)))}")
        found = verify_all(home, options_of(place), made, given.at_once, given.portions)
    say(f"verified: {json.dumps(found)}")
    whole = found["tasks"] == made["tasks"]
    right = [found[name] for name in ("entries", "bytes", "wrong")] == [
        made["entries"],
        made["bytes"],
        [made["altered"]],
    ]
    sys.exit(0 if not whole or right else "not what was stored")


if __name__ == "__main__":
    main()
