"""The parameters of a simulated cluster: nodes, timing, flush policy and file sizes, by default or
from a node's configuration.

This module holds the value and reads a configuration file (the YAML of `ledgermq serve`). It reads
only keys that affect a simulated node, with the same names, units and meaning; the node's own
checks (`ledgermq config check`) are not repeated. Log files larger than `FILE_BYTES_MAX` are
simulated with that size: it matters that files are completed and removed, not how much they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ledgermq.node.broker.flush import PAGE_BYTES, FlushPolicy, LazySync
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.node.runtime.config_sections import Agreement, Retention, Tiered
from ledgermq.proto import units
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.raft.config import MIB, MS, HaRules, Rule, Timing

FILE_BYTES = 64 << 10
FILE_BYTES_MAX = 256 << 10
SMALL_FILE_BYTES = 8 << 10
"""For runs in which many log files are created and removed."""
NEXT_LEVEL = LEVEL_MAX + 1
"""The feature level that programs of the next release read."""
APPEND_MODES = ("pwrite", "map", "pool")
HA = HaRules(lag_ns=900 * MS, lag_bytes=96 << 10)
"""Lag limits that slaves exceed within a run, and meet again."""
LAZY = LazySync(interval_ns=100 * MS, least_bytes=PAGE_BYTES, thorough_ns=600 * MS)
"""Long enough for crashes in between, short enough to end within a run."""
TIMES = LeaseTimes(liveness_ns=3_000 * MS)
TRANSACTIONS = TransactionRules(
    check_ns=800 * MS, interval_ns=1_000 * MS, checks_max=3, retry_ns=400 * MS
)


RETENTION = Retention(hours=0, follower_hours=0, reserve_bytes=0, check_ms=1000)
"""Nothing goes before an operator says so, and no follower is left behind; more checks than on a
node, as a run takes seconds."""


@dataclass(slots=True)
class Sections:
    """The configuration of a node's maintenance. Operators change it while the node runs, which
    spares a restart."""

    node: str
    data: Path
    retention: Retention = RETENTION
    tiered: Tiered = field(default_factory=Tiered)
    agreement: Agreement = Agreement()  # noqa: RUF009  a frozen value


class SettingsError(ValueError):
    """A configuration that cannot be simulated: `key`, and the remedy."""

    def __init__(self, key: str, what: str, remedy: str) -> None:
        super().__init__(f"{key}: {what}; {remedy}")
        self.key, self.what, self.remedy = key, what, remedy


@dataclass(frozen=True, slots=True)
class Settings:
    """One simulated broker group."""

    names: tuple[str, ...] = ("n1", "n2", "n3")
    group: str = "g1"
    timing: Timing = field(default_factory=Timing)
    policy: FlushPolicy = FlushPolicy.DURABLE
    lazy: LazySync = LAZY
    times: LeaseTimes = TIMES
    transactions: TransactionRules = TRANSACTIONS
    file_bytes: int = FILE_BYTES
    append: str | None = None
    """The append mode of every node; None: each node uses another one."""
    preferred: str | None = None
    rule: Rule = Rule.MAJORITY
    """The group's initial rule: MAJORITY for `replication: raft`, IN_SYNC for `ha`."""
    ha: HaRules = HA

    @staticmethod
    def of_nodes(count: int) -> Settings:
        """The defaults, with this many nodes."""
        return Settings(tuple(f"n{k}" for k in range(1, count + 1)))

    @staticmethod
    def of_ha(
        count: int = 3, *, ack_async: bool = False, minimum: int = 1, pull: bool = False
    ) -> Settings:
        """An HA group with the defaults, with this many nodes."""
        return replace(
            Settings.of_nodes(count),
            rule=Rule.IN_SYNC,
            ha=replace(HA, ack_async=ack_async, minimum=minimum, pull=pull),
        )


def read(text: str, group: str | None = None) -> Settings:
    """The settings of one broker group (by default the first) in a node's configuration. Raises
    SettingsError."""
    try:
        whole = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(
            "configuration",
            f"this is not YAML ({' '.join(str(error).split())})",
            "see: ledgermq config check",
        ) from error
    keys = _Keys("", whole)
    chosen = _group(keys, group)
    flush, raft = keys.section("flush"), keys.section("raft")
    name = chosen.text("name", "g1")
    names = tuple(str(node) for node in chosen.items("replicas"))
    if not 1 <= len(names) <= 9 or len(set(names)) != len(names):
        raise SettingsError(
            "cluster.groups.replicas",
            "one to nine different nodes can be simulated",
            "name each replica once",
        )
    preferred = chosen.text("preferred_leader", "")
    append = keys.section("storage").text("append", "pwrite")
    if append not in APPEND_MODES:
        raise SettingsError(
            "storage.append",
            f"there is no append mode {append!r}",
            f"known: {', '.join(APPEND_MODES)}",
        )
    policy = flush.section("groups").text(name, flush.text("policy", FlushPolicy.DURABLE.value))
    try:
        chosen_policy = FlushPolicy(policy)
    except ValueError:
        known = ", ".join(p.value for p in FlushPolicy)
        raise SettingsError(
            "flush.policy", f"there is no flush policy {policy!r}", f"known: {known}"
        ) from None
    return Settings(
        names,
        name,
        _timing(raft),
        chosen_policy,
        LazySync(
            flush.duration_ns("interval_ms", 500 * MS),
            flush.size("least_pages", 4) * PAGE_BYTES,
            flush.duration_ns("thorough_ms", 10_000 * MS),
        ),
        replace(
            TIMES, liveness_ns=keys.section("delivery").duration_ns("liveness_ms", 65_000 * MS)
        ),
        TRANSACTIONS,
        min(FILE_BYTES_MAX, max(FILE_BYTES, chosen.size("data_file_bytes", 1 << 30))),
        append,
        preferred or None,
        *_replication(chosen, len(names)),
    )


def _replication(group: _Keys, nodes: int) -> tuple[Rule, HaRules]:
    """The rule with which a group begins, and the rules of its masters."""
    kind, ack = (
        _one_of(group, "replication", ("raft", "ha")),
        _one_of(group, "ack", ("in-sync", "async")),
    )
    transfer = _one_of(group, "transfer", ("push", "pull"))
    if kind == "raft":
        return Rule.MAJORITY, HA
    least = 1 if ack == "async" else group.size("min_in_sync", min(2, nodes))
    if not 1 <= least <= nodes:
        what = f"{nodes} replicas can never have {least} members in sync"
        raise SettingsError("cluster.groups.min_in_sync", what, "ask for no more than there are")
    lag_ns, lag_bytes = (
        group.duration_ns("in_sync_lag_ms", 10_000 * MS),
        group.size("in_sync_lag_bytes", 64 * MIB),
    )
    if not lag_ns or not lag_bytes:
        remedy = "give in_sync_lag_ms and in_sync_lag_bytes above 0"
        raise SettingsError(
            "cluster.groups", "a slave that may not lag at all can never be in sync", remedy
        )
    return Rule.IN_SYNC, HaRules(ack == "async", least, lag_ns, lag_bytes, transfer == "pull")


def _one_of(group: _Keys, key: str, known: tuple[str, ...]) -> str:
    """One of these words; by default the first."""
    found = group.text(key, known[0])
    if found not in known:
        raise SettingsError(
            f"cluster.groups.{key}", f"there is no {key} {found!r}", f"known: {', '.join(known)}"
        )
    return found


def _group(keys: _Keys, wanted: str | None) -> _Keys:
    groups = [_Keys("cluster.groups.", group) for group in keys.section("cluster").items("groups")]
    for group in groups:
        if wanted is None or group.text("name", "") == wanted:
            return group
    known = ", ".join(group.text("name", "") for group in groups) or "none"
    raise SettingsError(
        "cluster.groups",
        f"there is no broker group {wanted or ''!r}",
        f"known: {known}; see: ledgermq config example",
    )


def _timing(raft: _Keys) -> Timing:
    push, window = raft.size("push_bytes", 1 << 20), raft.size("window_bytes", 8 << 20)
    heartbeat = raft.duration_ns("heartbeat_ms", 100 * MS)
    election = (
        raft.duration_ns("election_min_ms", 400 * MS),
        raft.duration_ns("election_max_ms", 800 * MS),
    )
    try:
        return Timing(heartbeat, *election, window_bytes=window, range_bytes_max=min(push, window))
    except ValueError as error:
        raise SettingsError("raft", str(error), "see: ledgermq config check") from error


class _Keys:
    """One section of a configuration, and its path."""

    def __init__(self, where: str, given: Any) -> None:
        self._where = where
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise SettingsError(
                where.rstrip(".") or "configuration",
                "keys and values are expected here",
                "see: ledgermq config example",
            )
        self._given = given

    def section(self, key: str) -> _Keys:
        return _Keys(f"{self._where}{key}.", self._given.get(key))

    def items(self, key: str) -> list[Any]:
        found = self._given.get(key, [])
        if not isinstance(found, list):
            raise self._wrong(key, "a list")
        return found

    def text(self, key: str, default: str) -> str:
        found = self._given.get(key, default)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self._wrong(key, "a text")
        return found

    def size(self, key: str, default: int) -> int:
        """Bytes or a count: a number, or a text as `64KiB`."""
        found = self._given.get(key, default)
        value = int(found) if isinstance(found, str) and found.strip().isdigit() else found
        value = units.size_bytes(value) if isinstance(value, str) else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, f"a size such as {units.SIZE_FORM}, or a number")
        return value

    def duration_ns(self, key: str, default_ns: int) -> int:
        """A number of milliseconds, or a text as `500ms`."""
        if key not in self._given:
            return default_ns
        found = self._given[key]
        value = int(found) if isinstance(found, str) and found.strip().isdigit() else found
        value = units.duration_ms(value) if isinstance(value, str) else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(
                key, f"a duration such as {units.DURATION_FORM}, or a number of milliseconds"
            )
        return value * MS

    def _wrong(self, key: str, expected: str) -> SettingsError:
        return SettingsError(
            f"{self._where}{key}",
            f"expected {expected}, not {self._given.get(key)!r}",
            "see: ledgermq config check",
        )
