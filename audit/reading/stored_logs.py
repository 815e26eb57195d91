"""The logs in an object store: their descriptions and manifests (docs/format.md §21), and the files
that these name, as files to read.

Decoded independently of the nodes. A damaged description is named and left out. Nothing is judged
here, and no log file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.audit.reading.decode import sealed_json
from ledgermq.audit.reading.node_paths import STORE
from ledgermq.audit.reading.objects import StoreLost, access, listing, read_object
from ledgermq.audit.reading.walk import LogFile

NAME = "store"
"""What reports and tables call the copy of a log in the store, where they name a replica."""
SIZES = ("data_file_bytes", "index_file_bytes", "consume_queue_file_bytes")
NUMBERS = (
    "base",
    "size",
    "first",
    "last",
    "end",
    "term",
    "chain",
    "last_term",
    "last_chain",
    "last_store_ms",
)
LISTINGS = 5
"""How often a store that changes meanwhile is listed again."""
AT_ONCE = 16
"""Requests for descriptions under way."""
_FILE = re.compile(r"(\d{20})(?:-([0-9a-f]{64}))?\.(json|log|former)")
_MOVED = re.compile(r"(begins|snapshots)/(\d{20})")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the store says of one log file. `term`, `chain`: those of the entry before it; `end`:
    the position behind its last entry."""

    key: str
    object: str
    """The key of the file."""
    log_id: str
    base: int
    size: int
    first: int
    last: int
    end: int
    term: int
    chain: int
    last_term: int
    last_chain: int
    last_store_ms: int
    sha256: str

    @property
    def next_base(self) -> int:
        return self.base + self.size


@dataclass(slots=True)
class StoredLog:
    """One log in the store."""

    group: str
    log_id: str
    """As its folder says."""
    objects: Mapping[str, int]
    """Key and size of everything in its folder."""
    about: dict[str, Any] | None = None
    """The content of `log.json`; None if it is missing or damaged."""
    moved: dict[str, Any] | None = None
    """The begin that counts instead of the description's, because total retention has removed what
    was before it."""
    files: list[Manifest] = field(default_factory=list)
    """From the begin on, in order of position."""
    damaged: list[str] = field(default_factory=list)
    """Keys of descriptions and manifests without their checksum or their fields."""

    @property
    def folder(self) -> str:
        return f"{self.group}/{self.log_id}"

    @property
    def begin(self) -> int:
        """The position where the stored log begins."""
        return self._begin("pos", "base")

    @property
    def begin_index(self) -> int:
        """The entry with which it begins."""
        return self._begin("index", "first")

    def _begin(self, key: str, listed: str) -> int:
        """Total retention tells it; before total retention the log's description; without that, the
        first manifest."""
        if self.moved is not None:
            return int(self.moved[key])
        if self.about is not None:
            return int(self.about["begin"][key])
        return int(getattr(self.files[0], listed)) if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].next_base if self.files else self.begin

    def gap(self, end: int) -> tuple[int, int] | None:
        """The first range of positions before `end` that no manifest describes."""
        at = self.begin
        for file in self.files:
            if file.base > at:
                break
            at = file.next_base
        return (
            (at, min(end, next((file.base for file in self.files if file.base > at), end)))
            if at < end
            else None
        )

    def former(self, base: int) -> set[str]:
        """The digests of files that were replaced at this position."""
        return {sha256 for ending, at, sha256 in self.names() if ending == "former" and at == base}

    def names(self) -> Iterator[tuple[str, int, str]]:
        """(ending, base, digest or "") of every object named like a log file."""
        for key in self.objects:
            match = _FILE.fullmatch(key.rpartition("/")[2])
            if match is not None:
                yield match[3], int(match[1]), match[2] or ""

    def moves(self, kind: str) -> list[int]:
        """The numbers of the objects that total retention wrote, ascending: positions of `begins`,
        or entries of `snapshots`."""
        named = (_MOVED.fullmatch(key.removeprefix(f"{self.folder}/")) for key in self.objects)
        return sorted(int(name[2]) for name in named if name is not None and name[1] == kind)

    def has_snapshot(self) -> bool:
        """Whether a snapshot is there that covers what was before the begin, as far as its name
        says."""
        if self.moved is None:
            return f"{self.folder}/snapshot" in self.objects
        last = self.files[-1].last if self.files else self.moved["index"]
        return any(self.moved["index"] - 1 <= at <= last for at in self.moves("snapshots"))

    def task(self, file: Manifest) -> LogFile:
        """The file to read. Its first entry must continue the chain that the manifest names."""
        index, queue = (
            (1, 1) if self.about is None else (int(self.about[name]) for name in SIZES[1:])
        )
        root, name = f"{STORE}{self.group}", f"{file.base:020d}"
        own = LogFile(
            root=root,
            group=self.group,
            replica=NAME,
            log_id=self.log_id,
            log_folder=self.log_id,
            name=name,
            data_file_bytes=file.size,
            index_file_bytes=index,
            queue_file_bytes=queue,
        )
        return replace(own, seed=file.chain, begin_pos=file.base, key=file.object)


def find_logs() -> list[StoredLog]:
    """Every log of the store that this process uses, with its descriptions. Raises StoreLost."""
    for _ in range(LISTINGS):
        try:
            return _listed()
        except FileNotFoundError:
            # Total retention, or a new begin, removed an object that was listed: the next listing
            # tells what took its place.
            continue
    raise StoreLost(f"{access().place} changed whenever it was listed; audit again")


def forget_removed(logs: Sequence[StoredLog]) -> None:
    """Leave out of logs that were listed before what has been removed since, as the store tells it
    now: by total retention, which notes the begin first, or otherwise. What has been added does not
    count. Raises StoreLost."""
    present = {(log.group, log.log_id): log for log in find_logs()}
    for log in logs:
        now = present.get((log.group, log.log_id), StoredLog(log.group, log.log_id, {}))
        moves = {
            key: size
            for key, size in now.objects.items()
            if _MOVED.fullmatch(key.removeprefix(f"{log.folder}/"))
        }
        log.objects = {key: size for key, size in log.objects.items() if key in now.objects} | moves
        log.moved = now.moved
        log.files = [file for file in log.files if log.moved is None or file.base >= log.begin]


def _listed() -> list[StoredLog]:
    """Raises FileNotFoundError, StoreLost."""
    folders: dict[tuple[str, str], dict[str, int]] = {}
    for key, size in sorted(listing().items()):
        parts = key.split("/")
        if len(parts) == 3 or _MOVED.fullmatch("/".join(parts[2:])):
            folders.setdefault((parts[0], parts[1]), {})[key] = size
    logs = []
    # A large log has a manifest for each GiB, and a request takes some milliseconds.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (group, log_id), objects in folders.items():
            log = StoredLog(group, log_id, objects)
            if any(True for _ in log.names()) or f"{log.folder}/log.json" in objects:
                _read(log, pool)
                logs.append(log)
    return logs


def _read(log: StoredLog, pool: ThreadPoolExecutor) -> None:
    key = f"{log.folder}/log.json"
    if key in log.objects:
        log.about = _described(read_object(key))
        log.damaged += [] if log.about is not None else [key]
    _read_begins(log)
    # What lies before the begin is being removed, and counts for nothing.
    bases = [
        base
        for ending, base, sha256 in log.names()
        if ending == "json" and not sha256 and (log.moved is None or base >= log.begin)
    ]
    keys = [f"{log.folder}/{base:020d}.json" for base in bases]
    for base, key, raw in zip(bases, keys, pool.map(read_object, keys), strict=True):
        file = _manifest(raw, key, log.folder)
        if file is None or file.base != base:
            log.damaged.append(key)
        else:
            log.files.append(file)
    log.files.sort(key=lambda file: file.base)


def _read_begins(log: StoredLog) -> None:
    for pos in log.moves("begins")[-1:]:
        key = f"{log.folder}/begins/{pos:020d}"
        value = sealed_json(read_object(key))
        whole = (
            value is not None
            and value.get("v") == 1
            and all(_is_number(value.get(name)) for name in ("index", "pos", "term", "chain"))
        )
        if value is None or not whole or value["pos"] != pos:
            log.damaged.append(key)
        elif log.about is None or pos > log.about["begin"]["pos"]:
            log.moved = value


def _described(raw: bytes) -> dict[str, Any] | None:
    value = sealed_json(raw)
    if (
        value is None
        or value.get("v") != 1
        or not all(_is_number(value.get(name)) and value[name] > 0 for name in SIZES)
    ):
        return None
    begin = value.get("begin")
    names = (
        isinstance(value.get("cluster_id"), str)
        and isinstance(value.get("group"), str)
        and isinstance(value.get("log_id"), str)
    )
    return (
        value
        if names
        and isinstance(begin, dict)
        and all(_is_number(begin.get(name)) for name in ("index", "pos", "chain"))
        else None
    )


def _manifest(raw: bytes, key: str, folder: str) -> Manifest | None:
    """Keys that this version does not know are ignored."""
    value = sealed_json(raw)
    if (
        value is None
        or value.get("v") != 1
        or not all(_is_number(value.get(name)) for name in NUMBERS)
    ):
        return None
    sha256, log_id = value.get("sha256"), value.get("log_id")
    if (
        not isinstance(log_id, str)
        or not isinstance(sha256, str)
        or re.fullmatch("[0-9a-f]{64}", sha256) is None
    ):
        return None
    if not (
        value["size"] > 0
        and value["base"] >= 0
        and value["base"] < value["end"] <= value["base"] + value["size"]
    ):
        return None
    stored = f"{folder}/{value['base']:020d}-{sha256}.log"
    numbers = {name: int(value[name]) for name in NUMBERS}
    return Manifest(key=key, object=stored, log_id=log_id, sha256=sha256, **numbers)


def _is_number(value: object) -> bool:
    return type(value) is int and -1 <= value < 1 << 63
