"""Small files with valid checksums and wrong contents: marks, hard states, identities, begins,
snapshots, checkpoints.

Each row has the file, the change, and the allowed classes of the finding. The finding must be about
the forged file, even if it contradicts other files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from tests.audit.fuzz.anatomy import MARK_BYTES, Anatomy
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import DERIVED, DIVERGENCE, MISSING, OPEN, ROT, Changes, Mutation
from tests.audit.fuzz.rewriting import sealed, slot

Forge = Callable[[Image, Anatomy], tuple[str, bytes] | None]
OTHER = "00000000-0000-4000-8000-00000000dead"


def _json(pattern: str, change: Callable[[dict[str, Any], Anatomy], None]) -> Forge:
    def forge(image: Image, one: Anatomy) -> tuple[str, bytes] | None:
        path = pattern.format(root=one.root, log=one.log, node=one.node)
        if path not in image:
            return None
        value = json.loads(image[path])
        if value.get("applied_index", 1) < 1:
            # An almost empty snapshot: another number may be equally valid.
            return None
        change(value, one)
        return path, sealed(value)

    return forge


def _add(key: str, more: int) -> Callable[[dict[str, Any], Anatomy], None]:
    def change(value: dict[str, Any], one: Anatomy) -> None:
        value[key] += more

    return change


def _set(key: str, new: Any) -> Callable[[dict[str, Any], Anatomy], None]:
    def change(value: dict[str, Any], one: Anatomy) -> None:
        value[key] = new

    return change


def _next_offset(value: dict[str, Any], one: Anatomy) -> None:
    topic = max(value["queues"])
    queue = max(value["queues"][topic])
    value["queues"][topic][queue] += 1


def _lost_queue(value: dict[str, Any], one: Anatomy) -> None:
    del value["queues"][max(value["queues"])]


def _other_peer(value: dict[str, Any], one: Anatomy) -> None:
    value["peers"][max(value["peers"])] = OTHER


def _nudged(value: Any) -> Any:
    """A different value of the same type, as close as possible."""
    if isinstance(value, dict):
        if not value:
            return {"other": 1}
        key = max(value)
        return {**value, key: _nudged(value[key])}
    if isinstance(value, list):
        return [*value[:-1], _nudged(value[-1])] if value else [1]
    if isinstance(value, bool) or value is None:
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


def _state(key: str) -> Forge:
    """Change a part of the derived state. In a trimmed log, this state is derived from the previous
    snapshot."""

    def forge(image: Image, one: Anatomy) -> tuple[str, bytes] | None:
        path = f"{one.root}/state/snapshot"
        value = json.loads(image.get(path, b"{}"))
        if value.get("applied_index", 0) < 1 or key not in value or one.entries[0].index:
            return None
        value[key] = _nudged(value[key])
        return path, sealed(value)

    return forge


STATE = (
    *(
        "store_ms",
        "queues",
        "minimums",
        "members",
        "topics",
        "groups",
        "delivery",
        "lapsed",
        "transactions",
    ),
    *("timers", "ids", "offsets", "lite", "lite_floors", "producers", "retained"),
)


def _mark(**more: int) -> Forge:
    def forge(image: Image, one: Anatomy) -> tuple[str, bytes]:
        path = f"{one.log}/syncedmark"
        names = ("term", "index", "end", "chain")
        slots = [image[path][at : at + MARK_BYTES] for at in (0, 4096)]
        newest = max(
            (raw for raw in slots if any(raw)), key=lambda raw: int.from_bytes(raw[8:16], "big")
        )
        fields = dict(zip(names, struct.unpack_from(">qqqI", newest, 56), strict=True))
        values = [fields[name] + more.get(name, 0) for name in names[:3]] + [
            fields["chain"] ^ more.get("chain", 0)
        ]
        log_id = OTHER.encode() if "log" in more else newest[16:52]
        return path, slot(b"LMSM", log_id + struct.pack(">iqqqI", 0, *values))

    return forge


def _hard_state(image: Image, one: Anatomy) -> tuple[str, bytes] | None:
    term = one.entries[-1].term - 1
    return (
        (f"{one.log}/hardstate", slot(b"LMHS", struct.pack(">qi64s", term, 2, b"n1")))
        if term >= 0
        else None
    )


def _checkpoint(text: str) -> Forge:
    return lambda image, one: (
        f"{one.log}/checkpoint",
        text.format(end=one.entries[-1].index, far=one.entries[-1].index + 7).encode(),
    )


def _stamp(image: Image, one: Anatomy) -> tuple[str, bytes]:
    return f"{one.root}/checkpoint", struct.pack(">qqq", 1 << 50, 0, 0).ljust(4096, b"\0")


LAST = [DIVERGENCE, MISSING]
FORGERIES: dict[str, tuple[Forge, list[str]]] = {
    "mark: index too high": (_mark(index=1), LAST),
    "mark: index too low": (_mark(index=-1), LAST),
    "mark: other term": (_mark(term=1), LAST),
    "mark: other end": (_mark(end=8), LAST),
    "mark: other chain": (_mark(chain=1), LAST),
    "mark: other log": (_mark(log=1), LAST),
    "hard state: below the log": (_hard_state, [DIVERGENCE]),
    "identity: other cluster": (
        _json("{root}/identity.json", _set("cluster_id", OTHER)),
        [DIVERGENCE],
    ),
    "identity: other log": (_json("{root}/identity.json", _set("log_id", OTHER)), [DIVERGENCE]),
    "identity: other group": (_json("{root}/identity.json", _set("group", "other")), [DIVERGENCE]),
    "identity: other replica": (_json("{root}/identity.json", _set("replica", "n9")), [DIVERGENCE]),
    "identity: other incarnation": (
        _json("{root}/identity.json", _set("incarnation", OTHER)),
        [DIVERGENCE],
    ),
    "identity: other sizes": (
        _json("{root}/identity.json", _add("data_file_bytes", 4096)),
        [DIVERGENCE, ROT],
    ),
    "node: other cluster": (_json("{node}/node.json", _set("cluster_id", OTHER)), [DIVERGENCE]),
    "node: other node": (_json("{node}/node.json", _set("node", "n9")), [DIVERGENCE]),
    "peers: other incarnation": (_json("{root}/state/peers.json", _other_peer), [DIVERGENCE]),
    "begin: other chain": (_json("{log}/begin", _add("chain", 1)), [ROT, DIVERGENCE]),
    "begin: other index": (_json("{log}/begin", _add("index", 1)), [ROT, DIVERGENCE, MISSING]),
    "begin: other term": (_json("{log}/begin", _add("term", 1000)), [ROT, DIVERGENCE]),
    "begin: other position": (_json("{log}/begin", _add("pos", 8192)), [ROT, DIVERGENCE, MISSING]),
    "begin: other log": (_json("{log}/begin", _set("log_id", OTHER)), [DIVERGENCE]),
    "snapshot: index too high": (
        _json("{root}/state/snapshot", _add("applied_index", 1)),
        [DERIVED],
    ),
    "snapshot: index too low": (
        _json("{root}/state/snapshot", _add("applied_index", -1)),
        [DERIVED],
    ),
    "snapshot: other term": (_json("{root}/state/snapshot", _add("applied_term", 1)), [DERIVED]),
    "snapshot: other end": (_json("{root}/state/snapshot", _add("applied_end_pos", 1)), [DERIVED]),
    "snapshot: other chain": (_json("{root}/state/snapshot", _add("chain_crc", 1)), [DERIVED]),
    "snapshot: other log": (_json("{root}/state/snapshot", _set("log_id", OTHER)), [DERIVED]),
    "snapshot: other next offset": (_json("{root}/state/snapshot", _next_offset), [DERIVED]),
    "snapshot: queue left out": (_json("{root}/state/snapshot", _lost_queue), [DERIVED]),
    "log checkpoint: committed behind the end": (
        _checkpoint("endIndex={end}\ncommittedIndex={far}\n"),
        [ROT],
    ),
    "log checkpoint: commit that nobody holds": (
        _checkpoint("endIndex={far}\ncommittedIndex={far}\n"),
        [ROT, OPEN],
    ),
    "log checkpoint: lines exchanged": (
        _checkpoint("committedIndex={end}\nendIndex={end}\n"),
        [ROT],
    ),
    "store checkpoint: later than the log": (_stamp, [ROT]),
}


FORGERIES |= {f"state: {key}": (_state(key), [DERIVED]) for key in STATE}
TOLD_ELSEWHERE: dict[str, str] = {
    "mark": r"mark\.end",
    "begin": r"chain\.seed|entry\.gap|begin\..*|file\.missing",
    "identity": r"identity\.agree|peers\.incarnation|chain\.seed|mark\.log|file\..*",
    "peers": r"peers\.incarnation",
    "log checkpoint": r"commit\.lost",
}
"""Further rules that may report a forgery: two files of the directory contradict each other, and
either may be wrong."""


def forge(image: Image, one: Anatomy, name: str) -> tuple[Changes, list[Mutation]] | None:
    """Returns None if the replica has no such file."""
    make, classes = FORGERIES[name]
    found = make(image, one)
    if found is None or image.get(found[0]) == found[1]:
        return None
    path, data = found
    rules = TOLD_ELSEWHERE.get(name.partition(":")[0], "")
    return {path: data}, [Mutation(one.node, path, 0, len(data), frozenset(classes), rules=rules)]
