"""Reading the results of an audit: the object of `--json`, `verdict.json`, or the directory of
`--findings`.

Only the format is checked here; `plan.py` checks whether the directories are still those that were
audited.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TORN_TAIL = "torn-tail"
VERDICT_FILE = "verdict.json"


class NoFindings(Exception):
    """The file was not written by an audit; the text says what to give instead."""


@dataclass(frozen=True, slots=True)
class Told:
    """One finding. `file` is a path under the node directory."""

    klass: str
    replica: str
    group: str
    file: str
    index: int | None
    byte_from: int
    byte_to: int
    rule: str


@dataclass(frozen=True, slots=True)
class Audited:
    """One replica of one broker group, as the audit found it."""

    replica: str
    group: str
    directory: str
    log_id: str | None
    incarnation: str | None
    """None for a replica that lost its identity."""


@dataclass(frozen=True, slots=True)
class Report:
    """The part of an audit's result that a repair needs."""

    replicas: tuple[Audited, ...]
    voters: Mapping[str, tuple[str, ...]]
    """Group → names of the replicas of which a majority proves what is right: the voters; with
    appointed masters, the one replica that holds the confirmed history."""
    compared: Mapping[str, int]
    """Group → index up to which a majority agrees."""
    findings: tuple[Told, ...]
    """Findings, without those that an ordinary start removes."""

    @property
    def directories(self) -> list[str]:
        return list(dict.fromkeys(one.directory for one in self.replicas))


def read_report(path: str) -> Report | list[str]:
    """Read what an audit wrote for a repair. If an object lacks that (`--json`), return only its
    directories, which must be audited again. Raises NoFindings, OSError."""
    if os.path.isdir(path):
        path = os.path.join(path, VERDICT_FILE)
    elif path.endswith(".jsonl"):
        path = os.path.join(os.path.dirname(path), VERDICT_FILE)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        value = json.loads(text)
        if value["v"] != 1:
            raise ValueError(f"version {value['v']}")
        return (
            report_of(value)
            if "repair" in value
            else list(dict.fromkeys(str(row["dir"]) for row in value["replicas"]))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NoFindings(
            f"{path} is not what an audit of this version writes ({error!r})"
        ) from error


def report_of(value: Mapping[str, Any]) -> Report:
    """The report in the object that an audit writes for a repair. Raises KeyError, TypeError,
    ValueError for any other object."""
    known = value["repair"]
    replicas = [
        Audited(
            str(row["replica"]),
            str(row["group"]),
            str(row["path"]),
            row["log_id"],
            row["incarnation"],
        )
        for row in known["replicas"]
    ]
    findings = [
        Told(
            klass=str(row["class"]),
            replica=str(row["replica"]),
            group=str(row["group"]),
            file=str(row["file"]),
            index=None if row["index"] is None else int(row["index"]),
            byte_from=int(row["byte_from"]),
            byte_to=int(row["byte_to"]),
            rule=str(row["rule"]),
        )
        for row in value["findings"]
        if row["class"] != TORN_TAIL
    ]
    return Report(
        tuple(replicas),
        {
            str(row["group"]): tuple(str(name) for name in row.get("proven_by", row["voters"]))
            for row in known["groups"]
        },
        {
            str(row["group"]): int(row["compared_to_index"])
            for row in known["groups"]
            if row["compared_to_index"] is not None
        },
        tuple(findings),
    )
