"""The bounded groups that TLC explores, and the guards whose loss each of them notices
(docs/specification.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.spec import tlc

INVARIANTS = (
    "ElectionSafety",
    "LogMatching",
    "LeaderCompleteness",
    "StateMachineSafety",
    "Indexes",
    "OneChange",
    "InSyncHolds",
    "Epochs",
    "EarlySurvives",
    "AloneSurvives",
)
PROPERTIES = ("CommitIsDurable", "CommitNeverFalls", "Promises")
TRACE_INVARIANTS = tuple(
    name for name in INVARIANTS if name not in ("LogMatching", "EarlySurvives", "AloneSurvives")
)
"""Those that a trace needs: it has no early acknowledgements, and the checkers of the simulator
compare all logs by their chains."""

BOUNDS = {
    "TermMax": 1,
    "LengthMax": 2,
    "CrashesMax": 0,
    "WipesMax": 0,
    "ChangesMax": 0,
    "WishesMax": 0,
    "DecisionsMax": 5,
}


@dataclass(frozen=True)
class Model:
    """`founders` of `nodes` nodes begin the group; `bounds` are those of Replicas.tla."""

    nodes: int = 3
    founders: int = 3
    rule: str = "majority"
    minimum: int = 1
    early: bool = False
    late: bool = False
    rises: bool = False
    alternate: bool = False
    kinds: tuple[str, ...] = ("add", "promote", "demote", "remove", "return", "rule")
    bounds: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def without(self, *guards: str) -> Model:
        """The same with these guards left out."""
        return replace(self, dropped=guards)

    def config(self) -> str:
        names = [f"n{k}" for k in range(1, self.nodes + 1)]
        constants = {name: name for name in (*names, "None")}
        constants["Nodes"], constants["Founders"] = _set(names), _set(names[: self.founders])
        constants |= {"FirstRule": f'"{self.rule}"', "Minimum": str(self.minimum)}
        flags = {
            "Early": self.early,
            "Late": self.late,
            "Rises": self.rises,
            "Eager": True,
            "Alternate": self.alternate,
        }
        constants |= {name: str(value).upper() for name, value in flags.items()}
        constants["Kinds"] = _set(f'"{kind}"' for kind in self.kinds)
        constants["Dropped"] = _set(f'"{guard}"' for guard in self.dropped)
        constants |= {name: str(self.bounds.get(name, least)) for name, least in BOUNDS.items()}
        alike = () if self.alternate else ("SYMMETRY Alike",)
        return tlc.config(constants, "Spec", INVARIANTS, PROPERTIES, *alike, "VIEW View")


def _set(values: Iterable[str]) -> str:
    return "{" + ", ".join(values) + "}"


TWO = Model(
    nodes=2, founders=2, rule="in-sync", bounds={"TermMax": 1, "LengthMax": 3, "WishesMax": 1}
)
"""A master and one slave, in one epoch."""
RULES = Model(nodes=2, founders=2, rule="in-sync", kinds=("rule",))
"""Two nodes that change their rule."""

MODELS: dict[str, Model] = {
    "raft": Model(bounds={"TermMax": 2, "LengthMax": 2}),
    "raft-crashes": Model(bounds={"TermMax": 1, "LengthMax": 3, "CrashesMax": 2}),
    "raft-late": Model(
        late=True, rises=True, bounds={"TermMax": 1, "LengthMax": 2, "CrashesMax": 1}
    ),
    "raft-four": Model(nodes=4, founders=4, bounds={"TermMax": 1, "LengthMax": 2}),
    "memory": Model(early=True, bounds={"TermMax": 1, "LengthMax": 2, "CrashesMax": 1}),
    "members": Model(
        founders=2,
        kinds=("add", "promote", "demote"),
        bounds={"TermMax": 1, "LengthMax": 3, "ChangesMax": 1},
    ),
    "returns": Model(
        kinds=("return",), bounds={"TermMax": 1, "LengthMax": 3, "ChangesMax": 1, "WipesMax": 1}
    ),
    "ha": Model(
        rule="in-sync", bounds={"TermMax": 1, "LengthMax": 2, "WishesMax": 1, "DecisionsMax": 2}
    ),
    "ha-two": replace(
        TWO, bounds={"TermMax": 1, "LengthMax": 3, "WishesMax": 1, "DecisionsMax": 3}
    ),
    "ha-epochs": replace(
        TWO, bounds={"TermMax": 2, "LengthMax": 2, "WishesMax": 1, "DecisionsMax": 3}
    ),
    "ha-minimum": replace(
        TWO, minimum=2, bounds={"TermMax": 1, "LengthMax": 3, "WishesMax": 1, "DecisionsMax": 3}
    ),
    "ha-returns": replace(
        TWO,
        minimum=2,
        kinds=("return",),
        bounds={
            "TermMax": 1,
            "LengthMax": 3,
            "WishesMax": 1,
            "DecisionsMax": 2,
            "ChangesMax": 1,
            "WipesMax": 1,
        },
    ),
    "raft-to-ha": replace(
        RULES,
        rule="majority",
        bounds={"TermMax": 2, "LengthMax": 4, "ChangesMax": 2, "WishesMax": 1, "DecisionsMax": 1},
    ),
    "ha-to-raft": replace(
        RULES,
        bounds={"TermMax": 1, "LengthMax": 4, "ChangesMax": 2, "WishesMax": 1, "DecisionsMax": 1},
    ),
}

ONE_TERM = Model(bounds={"TermMax": 1, "LengthMax": 2})
TWO_TERMS = Model(bounds={"TermMax": 2, "LengthMax": 2})
HA = Model(rule="in-sync", bounds={"TermMax": 2, "LengthMax": 3, "WishesMax": 1})
PLANTED: dict[str, tuple[Model, str]] = {
    "one-vote": (ONE_TERM, "ElectionSafety"),
    "vote-durable": (Model(bounds={"TermMax": 1, "CrashesMax": 1}), "Promises"),
    "log-compared": (TWO_TERMS, "LeaderCompleteness"),
    "own-term": (
        Model(alternate=True, bounds={"TermMax": 4, "LengthMax": 2}),
        "LeaderCompleteness",
    ),
    "synced-first": (ONE_TERM, "CommitIsDurable"),
    "own-copy-synced": (ONE_TERM, "CommitIsDurable"),
    "verified-first": (TWO_TERMS, "StateMachineSafety"),
    "entry-before-compared": (Model(bounds={"TermMax": 2, "LengthMax": 3}), "LogMatching"),
    "directory-compared": (Model(bounds={"TermMax": 1, "WipesMax": 1}), "ElectionSafety"),
    "provisional": (Model(bounds={"TermMax": 1, "LengthMax": 2, "WipesMax": 1}), "CommitIsDurable"),
    "one-change": (
        Model(kinds=("demote",), bounds={"TermMax": 1, "LengthMax": 4, "ChangesMax": 2}),
        "OneChange",
    ),
    "own-term-first": (
        Model(kinds=("demote",), bounds={"TermMax": 1, "LengthMax": 2, "ChangesMax": 1}),
        "OneChange",
    ),
    "held-by-quorum": (replace(TWO_TERMS, early=True), "EarlySurvives"),
    "master-synced": (
        replace(HA, early=True, bounds={"TermMax": 1, "LengthMax": 3, "WishesMax": 1}),
        "AloneSurvives",
    ),
    "epoch-confirmed": (
        replace(HA, early=True, bounds={"TermMax": 1, "LengthMax": 3, "WishesMax": 1}),
        "AloneSurvives",
    ),
    "in-sync-all": (HA, "InSyncHolds"),
    "minimum": (replace(HA, minimum=2), "CommitIsDurable"),
    "joiner-counted": (TWO, "InSyncHolds"),
    "joins-complete": (TWO, "InSyncHolds"),
    "elected-from-set": (
        replace(TWO, bounds={"TermMax": 2, "LengthMax": 2, "WishesMax": 1}),
        "LeaderCompleteness",
    ),
    "epoch-compared": (replace(TWO, bounds={"TermMax": 2, "WishesMax": 2}), "Epochs"),
    "version-compared": (
        replace(TWO, bounds={"TermMax": 1, "LengthMax": 2, "WishesMax": 2, "DecisionsMax": 3}),
        "InSyncHolds",
    ),
    "epoch-once": (
        replace(HA, bounds={"TermMax": 1, "WishesMax": 1, "CrashesMax": 1}),
        "ElectionSafety",
    ),
}
"""Guard → the model that misses it, and the property that is violated then."""
SHOWN_BY_TRACES = ("through-all",)
"""Guards whose loss needs a longer story than a model of minutes has: a recorded run of a product
without them is rejected."""
