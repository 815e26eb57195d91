"""The settings in a store root: topics, consumer groups, their offsets, the progress of delayed
messages, and queue ends.

RocketMQ writes JSON whose numeric keys have no quotes; both forms are read. If a file is missing,
empty or not JSON, its copy with the suffix `.bak` is read, as RocketMQ does. A file that does not
exist has no content, and is listed as missing.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.files.mapped_files import parse_name
from ledgermq.storage.rocketmq.records import number_of

_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)')
_UNIT = struct.Struct(">qiq")
PRE_BLANK_SIZE = 0x7FFFFFFF
UNITS_A_READ = 4096


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """One row of `topics.json`."""

    name: str
    queues: int
    perm: int
    message_type: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """One row of `subscriptionGroup.json`. `backoff`: the retry policy as JSON, None for RocketMQ's
    default."""

    name: str
    retry_max: int = 16
    ordered: bool = False
    enabled: bool = True
    backoff: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """All settings. `offsets`: (consumer group, topic) → queue → the next offset to read;
    `delay_offsets`: delay level → the first offset of its queue that is not delivered yet;
    `timers_read_ms`: the timer wheel has delivered everything up to this time; `missing`: files
    that do not exist."""

    topics: Mapping[str, SourceTopic]
    groups: Mapping[str, SourceGroup]
    offsets: Mapping[tuple[str, str], Mapping[int, int]]
    delay_offsets: Mapping[int, int] | None
    timers_read_ms: int | None
    missing: tuple[str, ...]


def read_configuration(root: str) -> Configuration:
    """Raises Refused for a file that cannot be parsed, OSError."""
    missing: list[str] = []
    topics = _read(root, "topics.json", missing)
    groups = _read(root, "subscriptionGroup.json", missing)
    offsets = _read(root, "consumerOffset.json", missing)
    delays = _read(root, "delayOffset.json", missing)
    try:
        return Configuration(
            topics={
                name: _topic(name, row)
                for name, row in (topics or {}).get("topicConfigTable", {}).items()
            },
            groups={
                name: _group(name, row)
                for name, row in (groups or {}).get("subscriptionGroupTable", {}).items()
            },
            offsets=dict(_offsets((offsets or {}).get("offsetTable", {}))),
            delay_offsets=None
            if delays is None
            else {int(level): int(at) for level, at in delays.get("offsetTable", {}).items()},
            timers_read_ms=_timers_read(root),
            missing=tuple(missing),
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        problem = f"a file in {root}/config does not have RocketMQ's format ({error!r})"
        raise Refused(problem, "copy the directory again, then import the copy") from error


def parse_json(text: str) -> Any:
    """Parse JSON whose keys may be numbers without quotes. Raises ValueError."""
    return json.loads(_BARE_KEY.sub(lambda m: m[1] or f'{m[2]}"{m[3]}"{m[4]}', text))


def _read(root: str, name: str, missing: list[str]) -> dict[str, Any] | None:
    for path in (f"{root}/config/{name}", f"{root}/config/{name}.bak"):
        try:
            with open(path, encoding="utf-8") as file:
                value = parse_json(file.read())
        except (FileNotFoundError, ValueError):
            continue
        if isinstance(value, dict):
            return value
    if os.path.exists(f"{root}/config/{name}"):
        raise Refused(
            f"{root}/config/{name} is not JSON, and there is no valid file {name}.bak",
            "restore it, or move it away to ignore it",
        )
    missing.append(f"config/{name}")
    return None


def _topic(name: str, row: Mapping[str, Any]) -> SourceTopic:
    attributes = {
        str(key).lstrip("+"): str(value) for key, value in (row.get("attributes") or {}).items()
    }
    queues = max(int(row.get("readQueueNums", 16)), int(row.get("writeQueueNums", 16)))
    return SourceTopic(
        name, queues, int(row.get("perm", 6)), attributes.get("message.type", ""), attributes
    )


def _group(name: str, row: Mapping[str, Any]) -> SourceGroup:
    policy = row.get("groupRetryPolicy")
    return SourceGroup(
        name,
        int(row.get("retryMaxTimes", 16)),
        bool(row.get("consumeMessageOrderly", False)),
        bool(row.get("consumeEnable", True)),
        policy if isinstance(policy, dict) else None,
    )


def _offsets(
    table: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
    for key, rows in table.items():
        topic, separator, group = key.partition("@")
        if separator:
            yield (group, topic), {int(queue): int(offset) for queue, offset in rows.items()}


def _timers_read(root: str) -> int | None:
    """The first field of the timer wheel's checkpoint; None if there is none."""
    try:
        with open(f"{root}/config/timercheck", "rb") as file:
            raw = file.read(8)
    except FileNotFoundError:
        return None
    value = int.from_bytes(raw, "big", signed=True)
    return value if len(raw) == 8 and value > 0 else None


def queue_ends(root: str, log_end: int) -> dict[tuple[str, int], int]:
    """The next offset of every consume queue, according to its files: one past the last unit of a
    message before `log_end`. Needed only for queues without a message in the log. Raises
    OSError."""
    ends: dict[tuple[str, int], int] = {}
    top = f"{root}/consumequeue"
    for topic in sorted(os.listdir(top)) if os.path.isdir(top) else ():
        for queue in (
            sorted(os.listdir(f"{top}/{topic}")) if os.path.isdir(f"{top}/{topic}") else ()
        ):
            if number_of(queue) >= 0:
                end = _queue_end(f"{top}/{topic}/{queue}", log_end)
                if end:
                    ends[topic, int(queue)] = end
    return ends


def _queue_end(directory: str, log_end: int) -> int:
    names = sorted(name for name in os.listdir(directory) if parse_name(name) is not None)
    for name in reversed(names):
        base, path = int(name), f"{directory}/{name}"
        size = os.stat(path).st_size - os.stat(path).st_size % _UNIT.size
        fd = os.open(path, os.O_RDONLY)
        try:
            at = size
            while at > 0:
                start = max(0, at - UNITS_A_READ * _UNIT.size)
                data = os.pread(fd, at - start, start)
                for unit in range(len(data) // _UNIT.size - 1, -1, -1) if any(data) else ():
                    position, length, _ = _UNIT.unpack_from(data, unit * _UNIT.size)
                    if length > 0 and (length == PRE_BLANK_SIZE or position < log_end):
                        return (base + start) // _UNIT.size + unit + 1
                at = start
        finally:
            os.close(fd)
    return 0
