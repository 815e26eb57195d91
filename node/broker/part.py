"""The interface of a capability of a broker group: what its state and its decisions have to do with
the rest.

A capability is a folder of `parts/` with two halves. Its `StatePart` is a function of the committed
log (invariant I8), on every replica: it owns some keys of the snapshot and takes some control
records. Its `LeaderPart` decides about some calls, on the leader. `machine.py` drives the first,
`leader.py` the second, both by tables of what each part takes; what two parts take, or none, fails
at import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ledgermq.node.broker.plan import NEVER_NS, Plan
from ledgermq.node.broker.queues import LiteKey, Touched
from ledgermq.proto.entries.layout import FEW_ENTRIES, HEADER_BYTES, Columns
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.types import GroupConfig, Range

_STORE_MS = slice(56, 64)
"""In a message record."""


Takers = Mapping[Any, Callable[..., Any]]
"""What a part takes → the method that takes it, as the class has it."""


@dataclass(slots=True)
class Effects:
    """What applying a range changed, for modules that keep something beside the derived state."""

    entries: Range
    """The part of the range that was applied."""
    columns: Columns
    """The columns of these entries."""
    topics: dict[str, None]
    """Client topics with new messages, a new configuration, or a consumer group that was reset."""
    touched: Touched
    """Rows of the delivery state that may have changed."""
    halves: list[int]
    """Half messages that were added, checked, or ended."""
    lite: list[tuple[LiteKey, list[str]]]
    """Lite sets that changed, and the names that are new in them."""
    vanished: list[str]
    """Stored lite topics that no longer exist."""
    time_epoch: bool = False
    """A time epoch began."""

    def store_ms(self, index: int) -> int:
        """Store time of an entry of the range."""
        return store_ms(self.entries, index - self.entries.first_index)


def store_ms(entries: Range, at: int) -> int:
    """Store time of the entry at this place of a range."""
    return int.from_bytes(record_of(entries, at)[_STORE_MS], "big", signed=True)


def last_store_ms(entries: Range) -> int:
    """Store time of the last entry of a range."""
    if entries.last_index - entries.first_index < FEW_ENTRIES:
        first = entries.edges[-2] + HEADER_BYTES + _STORE_MS.start
        return int.from_bytes(entries.data[first : first + 8], "big", signed=True)
    return store_ms(entries, len(entries) - 1)


class StatePart:
    """One capability's share of the derived state. A part overrides what it needs: the hooks do
    nothing by default.

    A method that `RECORDS` names for a type is called with the entry's index, the record, and the
    effects of the range. A record that names something that does not exist changes nothing.
    """

    KEY: ClassVar[str] = ""
    """The key of the snapshot under which the part is stored."""
    RECORDS: ClassVar[Takers] = {}
    """Type of a control record, or of what else an entry means → the method that applies it."""
    MARKS: ClassVar[Takers] = {}
    """Kind of a mark (`origins.py`) → the method that applies it: the effect of a message made from
    another one, beyond being stored."""

    def export(self) -> Any:
        """The state as JSON values (format §11)."""
        raise AssertionError(f"{type(self).__name__} is not stored")

    def restore(self, exported: Any) -> None:
        """Replace the state by what `export` returned; an empty dictionary, from a snapshot that is
        older than the part, gives an empty state."""
        raise AssertionError(f"{type(self).__name__} is not stored")

    def values(self) -> dict[str, Any]:
        """What the part adds to a snapshot."""
        return {self.KEY: self.export()}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the state by that of a snapshot."""
        self.restore(snapshot.get(self.KEY, {}))

    def topic_ended(self, topic: str, effects: Effects) -> None:
        """The topic was deleted, or starts another incarnation."""

    def group_changed(self, group: str, config: GroupConfig | None, effects: Effects) -> None:
        """The consumer group has this configuration now; None: it was deleted."""

    def trimmed(self, effects: Effects) -> None:
        """The queues begin at higher offsets. Idempotent, because a full disk may interrupt a
        trim."""

    def time_epoch_began(self, ms: int) -> None:
        """What the part knows a later store time of counts as stored now."""


class LeaderPart:
    """One capability's decisions, on the leader of a broker group; empty on a follower. A part
    overrides what it needs: the hooks do nothing by default."""

    CALLS: ClassVar[Takers] = {}
    """Type of a call → the method that decides it. It adds the call's work to the plan of the turn:
    drafts, answers, and marks in the uncommitted state for later decisions. It may not assume that
    the log will accept the plan."""
    ARRIVALS: ClassVar[Takers] = {}
    """Type of a call → the method that takes it when it comes, before anything is planned, on a
    leader: (call, now_ns) → answers."""
    pending: object = ()
    """True while the part may have something to plan without a call; otherwise it is not asked."""
    due_ns: int = NEVER_NS
    """When `expire` is to be called next."""
    unapplied_index: int = NEVER_NS
    """The first entry in the log for whose application the part waits: `applied` is called from
    then on."""

    def lead(self, now_ns: int) -> None:
        """The applied state covers every earlier term: from now on this node decides."""

    def resign(self) -> None:
        """Leadership is lost: forget everything."""

    def alive(self, clients: Sequence[str], at_ns: int) -> None:
        """Signs of life of these sessions."""

    def gone(self, client: str, at_ns: int) -> None:
        """The client has terminated."""

    def expire(self, now_ns: int) -> None:
        """Something is due."""

    def ready(self) -> bool:
        """Whether a part that is `pending` has something to plan now."""
        return True

    def begin_plan(self, plan: Plan) -> None:
        """Plan what comes before the calls, while `pending`."""

    def end_plan(self, plan: Plan) -> None:
        """Plan what comes behind the calls, while `pending`."""

    def withdrawn(self) -> None:
        """The log refused the plan; none of it takes effect."""

    def applied(self, index: int) -> None:
        """Every entry up to `index` is applied."""


def handlers(
    parts: Iterable[Any], table: str, known: Collection[Any] | None = None
) -> dict[Any, Callable[..., Any]]:
    """What the parts take according to their tables of this name → the bound method that takes it.
    Raises AssertionError for what two parts take and, with `known`, for what none takes or nobody
    sends."""
    found: dict[Any, Callable[..., Any]] = {}
    for part in parts:
        for taken, method in getattr(part, table).items():
            assert taken not in found, f"two parts take {taken}"
            # By name, so that a subclass may override it.
            found[taken] = getattr(part, method.__name__)
    assert known is None or found.keys() == set(known), (
        f"without a part, or unknown: {found.keys() ^ set(known)}"
    )
    return found
