"""The output of the commands: JSON objects, and tables for people.

Only formatting lives here. A value that the cluster does not know is null in JSON and `?` in a
table, never 0 or -1.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.table import Table

from ledgermq.client import results
from ledgermq.proto import admin_pb2, messaging_pb2, units
from ledgermq.proto.entries.properties import MESSAGE_GROUP, TRANSACTION_ID
from ledgermq.proto.names import parse_stored
from ledgermq.proto.records.group_config import backoff_words
from ledgermq.proto.workers import node_of, number_of

VERSION = 1
NARROWEST = 8
"""Characters that a column of text keeps on a narrow terminal."""
FILES_SHOWN = 5


_NUMBER = re.compile(r"-?\d+|\d+(\.\d+)? [KMGT]?i?B")
_MESSAGE_ID = re.compile(r"[0-9A-F]{34}")


def known(message: Message, field: str) -> Any:
    """The value of an optional field, or None when it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def json_line(**fields: Any) -> str:
    return json.dumps({"v": VERSION, **fields}, ensure_ascii=False, separators=(",", ":"))


def print_json(**fields: Any) -> None:
    """One object on stdout."""
    print(json_line(**fields), flush=True)


def explanation(found: results.Explanation, as_json: bool) -> None:
    """The answer of a question why, on stdout."""
    if as_json:
        print_json(answer=found.answer, reason=found.reason, evidence=list(found.evidence))
        return
    print(found.answer)
    for line in found.evidence:
        print(f"  {line}")


def print_table(title: str, columns: list[str], rows: Iterable[list[Any]]) -> None:
    """A table on stdout; numbers are right-aligned. On a terminal that is too narrow, its lines go
    first, then text continues below itself, and if that is not enough, every cell has a line;
    nothing is cut."""
    table = Table(title=title, title_justify="left")
    cells = [["?" if cell is None else str(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        numeric = bool(cells) and all(
            _NUMBER.fullmatch(row[number]) or row[number] == "?" for row in cells
        )
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    console = Console()
    given, console.width = console.width, 10_000
    # A pipe has no width: do not truncate output that a program reads.
    if console.is_terminal and console.measure(table).maximum > given:
        table.box, table.padding, table.show_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
        width = 0
        for number, shown in enumerate(table.columns):
            longest = max(len(text) for text in (columns[number], *(row[number] for row in cells)))
            # Half a number would be read as another one, and pieces of a message id cannot be
            # copied into the next command.
            shown.no_wrap = shown.justify == "right" or any(
                _MESSAGE_ID.fullmatch(row[number]) for row in cells
            )
            shown.min_width, shown.overflow = (
                longest if shown.no_wrap else min(longest, NARROWEST),
                "fold",
            )
            width += shown.min_width + 2
        if width - 1 > given:
            _print_rows(title, columns, cells)
            return
        console.width = max(given, width)
    console.print(table)


def _print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(title)
    for row in rows:
        (name, first), *others = zip(columns, row, strict=True)
        print(f"{name}: {first}", *(f"  {name}: {text}" for name, text in others), sep="\n")


def topic_json(topic: admin_pb2.TopicInfo) -> dict[str, Any]:
    return {
        "namespace": topic.topic.namespace,
        "topic": topic.topic.name,
        "kind": topic.kind,
        "queues": topic.queues,
        "messages": known(topic, "messages"),
    }


def topic_detail_json(topic: admin_pb2.TopicInfo) -> dict[str, Any]:
    queues = [
        {
            "queue": q.queue,
            "broker_group": q.broker_group,
            "group_queue": q.group_queue,
            "min_offset": known(q, "min_offset"),
            "max_offset": known(q, "max_offset"),
            "stored_offset": known(q, "stored_offset"),
        }
        for q in topic.queue_list
    ]
    durability = topic.durability or "group"
    settings = {
        "permission": topic.permission,
        "durability": durability,
        "dedup_ms": topic.dedup_ms,
    }
    return {**topic_json(topic), **settings, "queue_list": queues}


def rebuild_json(rebuild: admin_pb2.RebuildInfo) -> dict[str, Any]:
    """Why a replica does not run, and the progress of its repair."""
    numbers = {
        name: known(rebuild, name)
        for name in ("source", "done_bytes", "total_bytes", "remaining_ms")
    }
    return {"reason": rebuild.reason, **numbers}


def tiered_json(tiered: admin_pb2.TieredInfo) -> dict[str, Any]:
    """What a node has not verified in the object store yet, and what it can read there."""
    numbers = {
        "verified_pos": tiered.verified_pos,
        "waiting_files": tiered.waiting_files,
        "waiting_bytes": tiered.waiting_bytes,
    }
    stored = {"stored_files": tiered.stored_files, "stored_bytes": tiered.stored_bytes}
    optional = {
        name: known(tiered, name)
        for name in ("waits_for", "stored_from_index", "unreadable", "not_removed")
    }
    return {**numbers, **stored, **optional}


def status_json(status: admin_pb2.ClusterStatusResponse) -> dict[str, Any]:
    """The object of `status --json` (command line, section Cluster)."""
    groups = [
        {
            "group": group.group,
            "leader": known(group, "leader"),
            "term": known(group, "term"),
            "commit_index": known(group, "commit_index"),
            "replicas": [
                {
                    "node": r.node,
                    **{
                        name: known(r, name)
                        for name in (
                            "role",
                            "end_index",
                            "durable_index",
                            "commit_index",
                            "lag_entries",
                            "state",
                        )
                    },
                    "rebuild": rebuild_json(r.rebuild) if r.HasField("rebuild") else None,
                    "catch_up": catch_up_json(r.catch_up) if r.HasField("catch_up") else None,
                    "differing_files": list(r.differing_files),
                    "unverified_ms": known(r, "unverified_ms"),
                    "tiered": tiered_json(r.tiered) if r.HasField("tiered") else None,
                }
                for r in group.replicas
            ],
            "disputed_files": list(group.disputed_files),
            "replication": known(group, "replication"),
            "ha": ha_json(group.ha) if group.HasField("ha") else None,
        }
        for group in status.groups
    ]
    nodes = [_node_json(workers) for workers in _by_node(status)]
    return {
        "cluster_id": known(status, "cluster_id"),
        "health": status.health,
        "nodes": nodes,
        "groups": groups,
        "topics": [topic_json(t) for t in status.topics],
    }


def ha_json(ha: admin_pb2.HaInfo) -> dict[str, Any]:
    """The additional fields of an HA group; `short` says why nothing can be committed, null while
    it can."""
    in_sync = list(ha.in_sync) or None
    return {
        "epoch": known(ha, "epoch"),
        "in_sync": in_sync,
        "min_in_sync": ha.min_in_sync,
        "ack": ha.ack,
        "transfer": ha.transfer,
        "short": known(ha, "short"),
    }


def _by_node(status: admin_pb2.ClusterStatusResponse) -> list[list[admin_pb2.NodeInfo]]:
    """The members of the cluster grouped by node, the first worker first."""
    found: dict[str, list[admin_pb2.NodeInfo]] = {}
    for member in sorted(status.nodes, key=lambda member: number_of(member.node)):
        found.setdefault(node_of(member.node), []).append(member)
    return [found[node] for node in dict.fromkeys(node_of(member.node) for member in status.nodes)]


DISKS = ("fine", "warn", "delete", "full")


def _node_json(workers: Sequence[admin_pb2.NodeInfo]) -> dict[str, Any]:
    """A node is up when all of its workers are up; a field that one worker does not report is
    unknown for the node."""
    used = [known(worker, "disk_used_bytes") for worker in workers]
    node = {
        "node": node_of(workers[0].node),
        "endpoint": known(workers[0], "endpoint"),
        "up": all(worker.up for worker in workers),
        "version": known(workers[0], "version"),
        "native": known(workers[0], "native"),
        "disk_used_bytes": None if None in used else sum(used),
        "clock": known(workers[0], "clock"),
        "clock_offset_ms": known(workers[0], "clock_offset_ms"),
        # A word that a newer node says may be worse than all that are known here.
        "disk": max(
            (worker.disk for worker in workers if worker.disk),
            key=lambda word: DISKS.index(word) if word in DISKS else len(DISKS),
            default=None,
        ),
        "peer_failures": [failure for worker in workers for failure in worker.peer_failures],
    }
    return (
        node
        if len(workers) == 1
        else {**node, "workers": [{"worker": worker.node, "up": worker.up} for worker in workers]}
    )


def _node_row(workers: Sequence[admin_pb2.NodeInfo], exact: bool) -> list[Any]:
    node = _node_json(workers)
    down = [worker.node for worker in workers if not worker.up]
    state = "down" if len(down) == len(workers) else f"{', '.join(down)} down" if down else "up"
    if len(workers) > 1 and not down:
        state = f"up, {len(workers)} workers"
    if node["clock"] in ("off", "divided"):
        state += f", clock {units.offset_words(node['clock_offset_ms'] or 0)}"
    if node["disk"] == "full":
        state += ", disk full"
    native = node["native"] or ("none" if node["up"] else None)
    return [
        node["node"],
        node["endpoint"],
        state,
        node["version"],
        native,
        size(node["disk_used_bytes"], exact),
    ]


def _how_far(rebuild: admin_pb2.RebuildInfo, exact: bool) -> str:
    """The progress of a rebuild, as the end of a sentence."""
    if not rebuild.total_bytes:
        return ""
    source = f" from {rebuild.source}" if rebuild.source else ""
    left = (
        f", about {units.duration_words(rebuild.remaining_ms)} left"
        if rebuild.HasField("remaining_ms")
        else ""
    )
    done, total = size(rebuild.done_bytes, exact), size(rebuild.total_bytes, exact)
    return f" ({done} of {total}{' bytes' if exact else ''}{source}{left})"


def catch_up_json(found: admin_pb2.CatchUp) -> dict[str, Any]:
    """The catch-up progress of a follower; null is unknown."""
    names = (
        "behind_entries",
        "behind_bytes",
        "entries_per_s",
        "bytes_per_s",
        "seconds_left",
        "silent_ms",
        "lag_ms",
    )
    return {
        "state": found.state,
        **{name: known(found, name) for name in names},
        "restarts": found.restarts,
        "note": found.note or None,
    }


def size(count: int | None, exact: bool) -> int | str | None:
    """A number of bytes for a table."""
    return count if exact or count is None else units.size_words(count)


def age(milliseconds: int | None, exact: bool) -> int | str | None:
    """A duration for a table."""
    return milliseconds if exact or milliseconds is None else units.duration_words(milliseconds)


def moment(milliseconds: int, timespec: str = "seconds") -> str:
    """A time in milliseconds since 1970 as text, in UTC."""
    return (
        datetime.fromtimestamp(milliseconds / 1000, UTC)
        .isoformat(timespec=timespec)
        .replace("+00:00", "Z")
    )


def status_text(status: admin_pb2.ClusterStatusResponse, exact: bool) -> None:
    """The tables of `status`. `exact`: bytes as numbers; otherwise rounded, with a unit."""
    print(f"cluster {known(status, 'cluster_id') or '?'}: {status.health}")
    node_rows = [_node_row(workers, exact) for workers in _by_node(status)]
    columns = [
        "node",
        "endpoint",
        "state",
        "version",
        "native",
        "disk used bytes" if exact else "disk used",
    ]
    print_table("nodes", columns, node_rows)
    replica_rows = [
        [
            g.group,
            r.node,
            _role(g, r),
            known(g, "term"),
            *(
                known(r, c)
                for c in (
                    "begin_index",
                    "end_index",
                    "durable_index",
                    "commit_index",
                    "lag_entries",
                )
            ),
        ]
        for g in status.groups
        for r in g.replicas
    ]
    print_table(
        "replicas",
        ["group", "node", "role", "term", "begin", "end", "durable", "commit", "lag"],
        replica_rows,
    )
    if any(g.HasField("ha") for g in status.groups):
        ha_rows = [
            [
                g.group,
                known(g, "leader"),
                known(g.ha, "epoch"),
                " ".join(g.ha.in_sync) or None,
                g.ha.min_in_sync,
                g.ha.ack,
                g.ha.transfer,
            ]
            for g in status.groups
            if g.HasField("ha")
        ]
        print_table(
            "HA groups",
            ["group", "master", "epoch", "in sync", "needs", "ack", "transfer"],
            ha_rows,
        )
    if behind := _behind(status, exact):
        names = ["bytes", "bytes/s"] if exact else ["size", "per second"]
        print_table(
            "behind",
            [
                "group",
                "node",
                "state",
                "entries",
                *names,
                "seconds left" if exact else "left",
                "note",
            ],
            behind,
        )
    kinds = sorted({kind for g in status.groups for r in g.replicas for kind in r.disk_bytes})
    if kinds:
        disk_rows = [
            [g.group, r.node, *(size(r.disk_bytes.get(kind), exact) for kind in kinds)]
            for g in status.groups
            for r in g.replicas
        ]
        print_table(
            "disk, bytes by kind" if exact else "disk, by kind",
            ["group", "node", *kinds],
            disk_rows,
        )
    for g in status.groups:
        if g.HasField("ha") and (lacks := _not_in_sync(g)):
            print(lacks)
        if " to " in g.replication:
            print(f"{g.group} is changing its replication: {g.replication}")
        for r in g.replicas:
            if r.HasField("rebuild"):
                print(
                    f"{g.group} on {r.node} is {r.state}:"
                    f" {r.rebuild.reason}{_how_far(r.rebuild, exact)}"
                )
            if r.HasField("tiered"):
                print(f"{g.group} on {r.node}: {_tiered(r.tiered, exact)}")
            if r.differing_files:
                print(
                    f"{g.group} on {r.node} DIFFERS from what a majority sealed:"
                    f" {_files(r.differing_files)}"
                )
        if g.disputed_files:
            print(
                f"the replicas of {g.group} DIFFER, and no majority agrees:"
                f" {_files(g.disputed_files)}"
            )
        if g.files_kept:
            kept = ", ".join(
                f"{count} by {reason}" for reason, count in sorted(g.files_kept.items())
            )
            print(f"log files of {g.group} kept though due: {kept} (see: ledgermq why-kept)")
    print_topics(status.topics)


def _tiered(tiered: admin_pb2.TieredInfo, exact: bool) -> str:
    if not tiered.waiting_files and not tiered.HasField("waits_for"):
        verified = "every sealed log file is verified in the object store"
    else:
        files = f"{tiered.waiting_files} sealed log files ({size(tiered.waiting_bytes, exact)})"
        verified = (
            f"{files} are not verified in the object store yet; the first waits for:"
            f" {tiered.waits_for or 'its turn'}"
        )
    if tiered.HasField("stored_from_index"):
        verified += (
            f"; it holds {size(tiered.stored_bytes, exact)} from entry"
            f" {tiered.stored_from_index} on"
        )
    if tiered.HasField("unreadable"):
        verified += f"; older entries cannot be read through this node: {tiered.unreadable}"
    if tiered.HasField("not_removed"):
        verified += f"; old files are not removed from it, waiting for: {tiered.not_removed}"
    return verified


def _role(group: admin_pb2.BrokerGroupInfo, replica: admin_pb2.ReplicaInfo) -> str | None:
    """The role for the table; the JSON output says leader and follower for every group."""
    role: str | None = known(replica, "role")
    return (
        {"leader": "master", "follower": "slave"}.get(role or "", role)
        if group.HasField("ha")
        else role
    )


def _not_in_sync(group: admin_pb2.BrokerGroupInfo) -> str:
    if group.ha.HasField("short"):
        return group.ha.short
    missing = sorted(set(group.voters) - set(group.ha.in_sync)) if group.ha.in_sync else []
    return f"{group.group}: {', '.join(missing)} not in sync with the master" if missing else ""


def _files(bases: Sequence[int]) -> str:
    """Names of log files for the table, by the position that names them."""
    shown = ", ".join(f"{base:020d}" for base in bases[:FILES_SHOWN])
    return (
        f"log file{'s' if len(bases) > 1 else ''}"
        f" {shown}{' and more' if len(bases) > FILES_SHOWN else ''} (run: ledgermq audit)"
    )


def _behind(status: admin_pb2.ClusterStatusResponse, exact: bool) -> list[list[Any]]:
    """The replicas that lag, or are not in their proper state."""
    rows: list[list[Any]] = []
    for group in status.groups:
        for replica in group.replicas:
            found = replica.catch_up
            if replica.HasField("catch_up") and (
                found.state != "flowing" or found.behind_bytes or found.note
            ):
                rate, left = (
                    None if not found.HasField(name) else round(getattr(found, name))
                    for name in ("bytes_per_s", "seconds_left")
                )
                rates = [
                    size(rate, exact),
                    left if exact or left is None else units.duration_words(1000 * left),
                ]
                lacks = [known(found, "behind_entries"), size(known(found, "behind_bytes"), exact)]
                rows.append(
                    [group.group, replica.node, found.state, *lacks, *rates, found.note or "-"]
                )
    return rows


def print_topics(topics: Iterable[admin_pb2.TopicInfo]) -> None:
    rows = [
        [
            *(
                t.topic.namespace or "-",
                t.topic.name,
                t.kind,
                t.queues,
                t.permission,
                t.durability or "group",
            ),
            *(units.duration_text(t.dedup_ms) if t.dedup_ms else "-", known(t, "messages")),
        ]
        for t in topics
    ]
    print_table(
        "topics",
        ["namespace", "topic", "kind", "queues", "permission", "durability", "dedup", "messages"],
        rows,
    )


def group_words(group: results.ConsumerGroup) -> str:
    """The settings of a consumer group, without those that have the default value."""
    words = [
        f"max attempts {group.max_attempts}",
        *(["fifo"] if group.fifo else []),
        *(["broadcast"] if group.broadcast else []),
        *([f"lite topic {group.lite_topic}"] if group.lite_topic else []),
        *([f"backoff {backoff_words(group.backoff)}"] if group.backoff else []),
    ]
    return ", ".join(words)


def group_json(group: results.ConsumerGroup) -> dict[str, Any]:
    namespace, name = parse_stored(group.name)
    return {
        "namespace": namespace,
        "group": name,
        "max_attempts": group.max_attempts,
        "fifo": group.fifo,
        "backoff": None if group.backoff is None else backoff_words(group.backoff),
        "lite_topic": group.lite_topic,
        "broadcast": group.broadcast,
        "configured": group.configured,
        "clients": group.clients,
        "queues": [
            {
                "topic": parse_stored(q.topic)[1],
                "broker_group": q.broker_group,
                "group_queue": q.group_queue,
                "queue": q.queue,
                "cursor": q.cursor,
                "leased": q.leased,
                "lag": q.lag,
                "max_offset": q.max_offset,
            }
            for q in group.queues
        ],
    }


def body_fields(body: bytes) -> dict[str, str]:
    """`body` if it is text, otherwise `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def peeked_json(message: admin_pb2.PeekedMessage) -> dict[str, Any]:
    """One line of `peek --json`."""
    return {
        "message_id": known(message, "message_id"),
        "topic": message.topic.name,
        "queue": message.queue,
        "offset": message.offset,
        "tag": known(message, "tag"),
        "keys": list(message.keys),
        "message_group": known(message, "message_group"),
        "properties": dict(message.properties),
        **body_fields(message.body),
        "attempt": known(message, "attempt"),
        "born_ms": known(message, "born_ms"),
        "store_ms": known(message, "store_ms"),
        **(
            {"delayed_until_ms": message.delayed_until_ms}
            if message.HasField("delayed_until_ms")
            else {}
        ),
    }


def received_json(message: messaging_pb2.Message) -> dict[str, Any]:
    """One line of `consume --json`. Its properties are those that the sender set, so that `send
    --file` takes it."""
    system = message.system_properties
    repeated = ((MESSAGE_GROUP, system.message_group), (TRANSACTION_ID, system.message_id))
    return {
        "message_id": system.message_id,
        "topic": message.topic.name,
        "queue": system.queue_id,
        "offset": known(system, "queue_offset"),
        "tag": known(system, "tag"),
        "keys": list(system.keys),
        "message_group": known(system, "message_group"),
        "properties": {
            name: value
            for name, value in message.user_properties.items()
            if (name, value) not in repeated
        },
        **body_fields(message.body),
        "attempt": known(system, "delivery_attempt"),
        "born_ms": (
            system.born_timestamp.ToMilliseconds() if system.HasField("born_timestamp") else None
        ),
        "store_ms": (
            system.store_timestamp.ToMilliseconds() if system.HasField("store_timestamp") else None
        ),
    }


def detail_json(
    message: admin_pb2.PeekedMessage, detail: admin_pb2.MessageDetailResponse
) -> dict[str, Any]:
    """One line of `query --detail --json`."""
    fields = ("state", "file", "position", "size", "index", "term", "chain_crc", "sha256", "reason")
    return {
        **peeked_json(message),
        "broker_group": message.broker_group,
        "group_queue": message.group_queue,
        "replicas": [
            {"node": copy.node, **{name: known(copy, name) for name in fields}}
            for copy in detail.copies
        ],
        "consumption": [
            {
                "namespace": state.group.namespace,
                "group": state.group.name,
                **{name: known(state, name) for name in ("state", "attempt", "client")},
            }
            for state in detail.consumption
        ],
    }


def message_text(message: admin_pb2.PeekedMessage) -> None:
    """One line of `peek` and `query`."""
    place = f"{message.queue}:{message.offset}"
    if message.HasField("delayed_until_ms"):
        place = (
            "delayed until"
            f" {datetime.fromtimestamp(message.delayed_until_ms / 1000, UTC).isoformat(timespec='milliseconds')}"
        )
    print(f"{place} {known(message, 'tag') or '-'} {message.body.decode(errors='replace')}")


def detail_text(
    message: admin_pb2.PeekedMessage, detail: admin_pb2.MessageDetailResponse, exact: bool
) -> None:
    """Print a message with everything known about it. `exact`: its size in bytes; otherwise
    rounded, with a unit."""
    message_text(message)
    fields = peeked_json(message)
    for name in ("message_id", "keys", "message_group", "properties"):
        value = fields[name]
        if isinstance(value, dict):
            value = " ".join(f"{key}={item}" for key, item in sorted(value.items()))
        elif isinstance(value, list):
            value = " ".join(value)
        print(f"  {name}: {'-' if value in (None, '') else value}")
    times_text(message)
    rows = [
        [
            *(
                copy.node,
                known(copy, "state"),
                known(copy, "file"),
                known(copy, "position"),
                size(known(copy, "size"), exact),
            ),
            *(
                known(copy, "index"),
                known(copy, "term"),
                known(copy, "chain_crc"),
                known(copy, "reason") or "-",
            ),
        ]
        for copy in detail.copies
    ]
    print_table(
        "replicas",
        ["node", "state", "file", "position", "size", "index", "term", "chain CRC", "why"],
        rows,
    )
    states = [
        [state.group.namespace or "-", state.group.name, known(state, "state"), *_lease(state)]
        for state in detail.consumption
    ]
    print_table("consumer groups", ["namespace", "group", "state", "attempt", "client"], states)


def times_text(message: admin_pb2.PeekedMessage, stored: str = "stored") -> None:
    """When a message was made and stored, as further lines below it. `stored`: what it was stored
    for."""
    for name, field in (("born", "born_ms"), (stored, "store_ms")):
        print(
            f"  {name}:"
            f" {moment(getattr(message, field), 'milliseconds') if message.HasField(field) else '-'}"
        )


def _lease(state: admin_pb2.ConsumptionState) -> list[Any]:
    """Attempt and client are known only while a message is in flight."""
    return [known(state, name) if state.HasField(name) else "-" for name in ("attempt", "client")]


LAG_FIELDS = ("cursor", "end", "lag", "leased", "oldest_age_ms")


def lag_json(name: str, namespace: str, lag: admin_pb2.GroupLagResponse) -> dict[str, Any]:
    """The object of `group lag --json`."""
    return {
        "namespace": namespace,
        "group": name,
        "topics": [
            {
                "namespace": topic.topic.namespace,
                "topic": topic.topic.name,
                **{field: known(topic, field) for field in ("lag", "leased", "oldest_age_ms")},
                "queues": [
                    {
                        "queue": queue.queue,
                        "broker_group": queue.broker_group,
                        "group_queue": queue.group_queue,
                        **{field: known(queue, field) for field in LAG_FIELDS},
                    }
                    for queue in topic.queues
                ],
                "parts": [
                    {
                        "client": part.client or None,
                        "lite_topic": part.lite_topic or None,
                        "lag": part.lag,
                        "leased": part.leased,
                    }
                    | {"oldest_age_ms": known(part, "oldest_age_ms")}
                    for part in topic.parts
                ],
            }
            for topic in lag.topics
        ],
    }


def lag_text(lag: admin_pb2.GroupLagResponse, exact: bool) -> None:
    """The tables of `group lag`. `exact`: ages in milliseconds."""
    column = "oldest age ms" if exact else "oldest age"
    rows: list[list[Any]] = []
    parts: list[list[Any]] = []
    for topic in lag.topics:
        name = (
            f"{topic.topic.namespace}@{topic.topic.name}"
            if topic.topic.namespace
            else topic.topic.name
        )
        for queue in topic.queues:
            oldest = (
                "-"
                if not known(queue, "lag") and queue.HasField("lag")
                else age(known(queue, "oldest_age_ms"), exact)
            )
            numbers = [known(queue, field) for field in LAG_FIELDS[:-1]]
            rows.append([name, queue.queue, queue.broker_group, *numbers, oldest])
        oldest = (
            "-"
            if not known(topic, "lag") and topic.HasField("lag")
            else age(known(topic, "oldest_age_ms"), exact)
        )
        rows.append([name, "all", "", "", "", known(topic, "lag"), known(topic, "leased"), oldest])
        parts += [
            [
                name,
                part.client or part.lite_topic,
                part.lag,
                part.leased,
                age(known(part, "oldest_age_ms"), exact) if part.lag else "-",
            ]
            for part in topic.parts
        ]
    print_table(
        "lag", ["topic", "queue", "broker group", "cursor", "end", "lag", "leased", column], rows
    )
    if parts:
        print_table(
            "clients of a broadcasting group, or lite topics",
            ["topic", "which", "lag", "leased", column],
            parts,
        )
