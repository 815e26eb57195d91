"""State that control records contain directly: consumer groups, members, level, committed offsets,
and retention of the log itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import Entry, Unknown, parent_of, stored_name
from ledgermq.audit.state.topics import Topics

TRIMS_KEPT = 64
LEVEL_MAX = 3
"""The highest feature level in docs/format.md §11."""
TREE_LEVEL = 2
"""From this level on a group has a log tree."""
CONTENT_LEVEL = 3
"""From this level on a deduplication window compares contents."""
NODE_FACTS = ("incarnation", "returning", "observer")


class Groups(Part):
    """The key `groups`: consumer groups with a current record."""

    keys = ("groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Any]] = {}
        self._touched: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        if entry.kind != "group":
            return
        fields = entry.fields
        stored = stored_name(fields["ns"], fields["name"])
        self._touched[stored] = entry.index
        if fields["deleted"]:
            self._groups.pop(stored, None)
            return
        group = {name: fields[name] for name in ("ns", "name", "max_attempts", "fifo")}
        self._groups[stored] = group | {
            name: fields[name]
            for name in ("backoff", "lite_topic", "broadcast")
            if fields.get(name)
        }

    def values(self) -> dict[str, Any]:
        return {"groups": self._groups}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._groups = dict(snapshot["groups"])

    def touched(self, path: Path) -> int | None:
        return self._touched.get(path[1]) if len(path) > 1 else None


class Members(Part):
    """The key `members`: the nodes in the last membership record."""

    keys = ("members",)

    def __init__(self) -> None:
        self._members: dict[str, Any] | None = None
        self._touched: int | None = None

    def apply(self, entry: Entry) -> None:
        if entry.kind != "membership":
            return
        members: dict[str, Any] = {
            role: {
                node: {name: known[name] for name in NODE_FACTS if known.get(name)}
                for node, known in nodes.items()
            }
            for role, nodes in ((role, entry.fields[role]) for role in ("voters", "learners"))
        }
        # Present for groups with appointed masters, and for groups that are changing their
        # replication.
        names = "rule", "since", "towards", "min_in_sync"
        rule: dict[str, Any] = {name: entry.fields[name] for name in names if name in entry.fields}
        self._members, self._touched = {"index": entry.index, **members, **rule}, entry.index

    def values(self) -> dict[str, Any]:
        return {"members": self._members}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._members = snapshot["members"]

    def touched(self, path: Path) -> int | None:
        return self._touched


class Level(Part):
    """The key `level`: the feature level of the broker group, absent for level 1."""

    keys = ("level",)

    def __init__(self) -> None:
        self.now = 1
        self._touched: int | None = None

    def apply(self, entry: Entry) -> None:
        if entry.kind != "level":
            return
        wanted = _known(int(entry.fields["level"]), f"entry {entry.index}")
        if wanted == self.now + 1:
            self.now, self._touched = wanted, entry.index

    def values(self) -> dict[str, Any]:
        return {"level": self.now if self.now > 1 else None}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self.now = _known(int(snapshot.get("level", 1)), "the older snapshot")

    def touched(self, path: Path) -> int | None:
        return self._touched


def _known(level: int, where: str) -> int:
    if level > LEVEL_MAX:
        problem = (
            f"{where} gives the broker group level {level}, and this program knows levels up to"
            f" {LEVEL_MAX}"
        )
        raise Unknown(f"{problem}; audit with the version that wrote it")
    return level


class Offsets(Part):
    """The key `offsets`: the committed offsets of consumer groups that pull."""

    keys = ("offsets",)

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._pairs: dict[tuple[str, str], dict[int, int]] = {}
        """(stored group, stored topic) → queue → offset"""
        self._touched: dict[tuple[str, str], int] = {}

    def apply(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.kind == "offset":
            for group, topic, queue, offset in fields["a"]:
                if queue < self._topics.queues_of(topic):
                    self._pairs.setdefault((group, topic), {})[queue] = offset
                    self._touched[group, topic] = entry.index
        elif entry.kind == "reset" and (fields["g"], fields["t"]) in self._pairs:
            self._pairs[fields["g"], fields["t"]].update(
                {queue: offset for queue, offset in fields["q"]}
            )
            self._touched[fields["g"], fields["t"]] = entry.index
        elif entry.kind == "group" and fields["deleted"]:
            gone = stored_name(fields["ns"], fields["name"])
            self._pairs = {
                pair: rows
                for pair, rows in self._pairs.items()
                if gone not in (pair[0], parent_of(pair[0]))
            }

    def topic_ended(self, topic: str, entry: Entry) -> None:
        self._pairs = {
            pair: rows for pair, rows in self._pairs.items() if parent_of(pair[1]) != topic
        }

    def values(self) -> dict[str, Any]:
        groups: dict[str, dict[str, dict[str, int]]] = {}
        for (group, topic), rows in self._pairs.items():
            groups.setdefault(group, {})[topic] = {
                str(queue): offset for queue, offset in rows.items()
            }
        return {"offsets": groups}

    def canonical(self, key: str, stored: Any) -> Any:
        return stored or {}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        for group, topics in (snapshot.get("offsets") or {}).items():
            for topic, rows in topics.items():
                self._pairs[group, topic] = {int(queue): offset for queue, offset in rows.items()}

    def touched(self, path: Path) -> int | None:
        return self._touched.get((path[1], path[2])) if len(path) > 2 else None


class LogTree:
    """The log tree: the hashes of its leaves, which are the sealed files of the log in their order
    (docs/format.md §11)."""

    def __init__(self, first: int, end: int) -> None:
        self.value: dict[str, Any] = {"first": first, "base": None, "next": first, "end": end}
        self._leaves = b""

    def add_seals(self, seals: Iterable[Mapping[str, Any]]) -> None:
        """Add the sealed files that continue the tree."""
        waiting = {seal["first"]: seal for seal in seals if "tree" in seal}
        while (seal := waiting.pop(self.value["next"], None)) is not None:
            self._add(
                seal["base"], seal["last"] + 1, seal["end"], bytes.fromhex(seal["tree"]["root"])
            )

    def trim(self, fields: Mapping[str, Any]) -> None:
        """Add a leaf without a root for entries that went before they were in a leaf."""
        if fields["begin"] > self.value["next"]:
            gone = [base for base, _ in fields["files"] if base >= self.value["end"]]
            self._add(
                min(gone, default=self.value["end"]), fields["begin"], fields["pos"], bytes(32)
            )

    def _add(self, base: int, following: int, end: int, root: bytes) -> None:
        first = self.value["next"]
        leaf = b"".join(
            number.to_bytes(8, "big") for number in (base, first, following - first, end)
        )
        self._leaves += hashlib.sha256(b"\0LMQTREE1" + leaf + root).digest()
        begin = base if self.value["base"] is None else self.value["base"]
        self.value |= {"base": begin, "next": following, "end": end}

    def values(self) -> dict[str, Any]:
        return {**self.value, "leaves": base64.b64encode(self._leaves).decode()}

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> LogTree:
        tree = cls(stored["first"], stored["end"])
        tree.value = {name: stored[name] for name in tree.value}
        tree._leaves = base64.b64decode(stored["leaves"])
        return tree


class Retained(Part):
    """The key `retained`: the begin of the log, its sealed files, its trims, and the log tree."""

    keys = ("retained",)

    def __init__(self) -> None:
        self._tree: LogTree | None = None
        self._level = 1
        self._begin: dict[str, Any] = {
            "begin_index": 0,
            "begin_pos": 0,
            "begin_term": -1,
            "begin_chain": None,
        }
        self._seals: dict[int, dict[str, Any]] = {}
        self._trims: list[list[Any]] = []
        self._digest = ""
        self._touched: int | None = None
        self._sealed: dict[int, int] = {}

    def apply(self, entry: Entry) -> None:
        if entry.kind == "seal":
            self._seal(entry)
        elif entry.kind == "trim":
            self._trim(entry)
        elif entry.kind == "level" and entry.fields["level"] == self._level + 1:
            self._level += 1
            if self._level == TREE_LEVEL:
                # The tree begins behind the last file that was sealed before.
                last = max(self._seals.values(), key=lambda seal: seal["last"], default=None)
                begin = self._begin["begin_index"], self._begin["begin_pos"]
                self._tree = (
                    LogTree(*begin) if last is None else LogTree(last["last"] + 1, last["end"])
                )

    def _seal(self, entry: Entry) -> None:
        base = entry.fields["base"]
        if (
            base < self._begin["begin_pos"]
            or base in self._seals
            or (self._tree is not None and "tree" not in entry.fields)
        ):
            return
        names = ("base", "first", "last", "end", "sha256", "replicas", "tree")
        self._seals[base] = {name: entry.fields[name] for name in names if name in entry.fields}
        self._sealed[base] = entry.index
        if self._tree is not None:
            self._tree.add_seals(self._seals.values())

    def _trim(self, entry: Entry) -> None:
        fields = entry.fields
        if fields["begin"] <= self._begin["begin_index"]:
            return
        self._begin = dict(
            zip(
                self._begin,
                [fields[name] for name in ("begin", "pos", "term", "chain")],
                strict=True,
            )
        )
        self._seals = {base: seal for base, seal in self._seals.items() if base >= fields["pos"]}
        if self._tree is not None:
            self._tree.trim(fields)
            self._tree.add_seals(self._seals.values())
        trim = {
            name: fields[name]
            for name in ("begin", "pos", "term", "chain", "from", "files", "reason")
        }
        trim |= {"stored": True} if fields.get("stored") else {}
        self._trims = [*self._trims, [entry.index, entry.store_ms, trim]][-TRIMS_KEPT:]
        self._digest = hashlib.sha256(self._digest.encode() + entry.body).hexdigest()
        self._touched = entry.index

    def values(self) -> dict[str, Any]:
        seals = [self._seals[base] for base in sorted(self._seals)]
        tree = {} if self._tree is None else {"tree": self._tree.values()}
        return {
            "retained": {
                **self._begin,
                "seals": seals,
                "trims": self._trims,
                "trim_digest": self._digest,
                **tree,
            }
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        retained = snapshot["retained"]
        self._begin = {name: retained[name] for name in self._begin}
        self._seals = {seal["base"]: seal for seal in retained["seals"]}
        self._trims, self._digest = list(retained["trims"]), retained["trim_digest"]
        self._level = int(snapshot.get("level", 1))
        self._tree = LogTree.loaded(retained["tree"]) if self._level >= TREE_LEVEL else None

    def touched(self, path: Path) -> int | None:
        if path[1:2] != ("seals",):
            return self._touched
        bases = sorted(self._seals)
        at = int(path[2]) if len(path) > 2 and path[2].isdigit() else len(bases)
        return self._sealed.get(bases[at]) if at < len(bases) else None
