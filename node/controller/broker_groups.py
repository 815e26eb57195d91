"""What the controller quorum stores about broker groups besides their replicas: initial settings,
preferred leader, and moves.

Pure, like all of the metadata. Commands and exported values are plain JSON, and `metadata.py` has
these functions in its table. All of it is intent: the group's own log decides who its members are
and who leads. A replica that is named here opens its directory and waits until the log names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.proto.workers import node_of, together

Json = dict[str, Any]

GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
RESERVED = "controller"
SETTINGS_MAX = 64
"""Limit for the keys of a group's settings; a real section of the configuration has about a
dozen."""


class Refusal(Exception):
    """The command is refused; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a replica from one node to another."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One broker group. `settings` is the group's section of the node configuration
    (`config.BrokerGroup`) at its creation. Its `replicas` are the founders, who write the first
    entry of the log."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    preferred: str | None = None
    """The preferred leader as agreed; `preferred_leader` in the settings has precedence."""
    joined: tuple[str, ...] = ()
    """Nodes that were added later; they do not create a log."""
    left: tuple[str, ...] = ()
    """Nodes whose replica moved away; they do not open the files that are left there."""
    move: Move | None = None
    moved: Move | None = None
    """The last completed move, so that a repeated request for it is answered as done."""

    @property
    def founders(self) -> tuple[str, ...]:
        return tuple(self.settings.get("replicas", ()))

    @property
    def leader_wanted(self) -> str | None:
        """The preferred leader: from the settings, else as agreed; None if there is none."""
        return self.settings.get("preferred_leader") or self.preferred


def spec_settings(group: BrokerGroup) -> dict[str, Any]:
    """The initial settings of a configured broker group, in the quorum's form."""
    settings: dict[str, Any] = group.model_dump(mode="json", exclude={"name"}, exclude_none=True)
    return settings


Specs = Mapping[str, GroupSpec]
Replicas = Mapping[str, Sequence[str]]


def checked_settings(group: str, value: Any) -> Mapping[str, Any]:
    """Validate the settings of a new group. Only the node's configuration knows their meaning.
    Raises Refusal."""
    if not GROUP_NAME.fullmatch(group):
        raise Refusal(
            f"{group!r} is no name of a broker group: letters, digits, '_' and '-', at most 63"
        )
    if group == RESERVED:
        raise Refusal(
            f"no broker group can be called {group}: nodes keep something else under that name;"
            " choose another one"
        )
    if not isinstance(value, dict) or len(value) > SETTINGS_MAX:
        raise Refusal(f"the settings of broker group {group} are no names and values")
    founders = value.get("replicas")
    if (
        not isinstance(founders, list)
        or not founders
        or not all(isinstance(name, str) for name in founders)
    ):
        raise Refusal(f"broker group {group} has no replicas")
    if len(set(founders)) != len(founders):
        raise Refusal(
            f"broker group {group} is meant to have two replicas on one node: {', '.join(founders)}"
        )
    return MappingProxyType({**value, "replicas": tuple(founders)})


def announced(specs: Specs, told: Mapping[str, Any], replicas: Replicas) -> Specs:
    """Add the groups that configuration files describe and that have no spec yet. With two or more
    groups, each new one gets a preferred leader, so that the leaders are spread evenly. Raises
    Refusal."""
    known = dict(specs)
    fresh = sorted(group for group in told if group not in specs and group in replicas)
    for group in fresh:
        known[group] = GroupSpec(checked_settings(group, told[group]))
    if len(replicas) > 1:
        for group in fresh:
            known[group] = replace(
                known[group], preferred=preferred_of(group, replicas[group], known)
            )
    return sealed(known)


def preferred_of(group: str, replicas: Iterable[str], specs: Specs) -> str | None:
    """The replica that is preferred by the fewest other groups, by name among equals; None if the
    settings name a preferred leader."""
    spec = specs.get(group)
    if spec is not None and spec.settings.get("preferred_leader"):
        return None
    burden: dict[str, int] = dict.fromkeys(replicas, 0)
    for other, its in specs.items():
        if other != group and its.leader_wanted in burden:
            burden[str(its.leader_wanted)] += 1
    return min(burden, key=lambda node: (burden[node], node)) if burden else None


def added(
    specs: Specs,
    replicas: Replicas,
    nodes: Mapping[str, Mapping[str, str]],
    group: str,
    settings: Any,
) -> tuple[Specs, bool]:
    """Add a broker group. The flag is False if the group exists with the same settings. Raises
    Refusal."""
    wanted = checked_settings(group, settings)
    if group in replicas:
        known = specs.get(group)
        if known is not None and _same(known.settings, wanted):
            return specs, False
        raise Refusal(
            f"broker group {group} exists, begun with other settings; see: ledgermq broker-group"
            " list"
        )
    check_places(group, wanted["replicas"], nodes)
    known_specs = {**specs, group: GroupSpec(wanted)}
    known_specs[group] = replace(
        known_specs[group], preferred=preferred_of(group, wanted["replicas"], known_specs)
    )
    return sealed(known_specs), True


def check_places(
    group: str, replicas: Collection[str], nodes: Mapping[str, Mapping[str, str]]
) -> None:
    """Check that every replica is on another machine and at another address. Raises Refusal."""
    taken: dict[str, str] = {}
    if pair := together(replicas):
        what = (
            f"broker group {group} would have two replicas on one machine: {pair[0]} and {pair[1]}"
            " are workers of one node"
        )
        raise Refusal(f"{what}; name workers of different nodes")
    for node in replicas:
        if node not in nodes:
            known = ", ".join(sorted(nodes))
            raise Refusal(
                f"broker group {group} names the replica {node}, which is no node of this cluster;"
                f" known: {known}"
            )
        at = nodes[node].get("peer", node)
        if at in taken:
            what = f"nodes {taken[at]} and {node} have one address, {at}"
            raise Refusal(
                f"{what}: broker group {group} would have two replicas in one place; correct it:"
                " ledgermq member set-address"
            )
        taken[at] = node


def move_begun(
    specs: Specs, replicas: Replicas, nodes: Mapping[str, Mapping[str, str]], group: str, move: Move
) -> Specs:
    """Begin to move a replica. A repetition succeeds; a group has at most one move at a time.
    Raises Refusal."""
    spec = spec_of(specs, replicas, group)
    if spec.move == move:
        return specs
    if spec.move is not None:
        what = (
            f"broker group {group}: a replica is on its way from {spec.move.source} to"
            f" {spec.move.target} already"
        )
        command = f"ledgermq move-replica {group} --from {spec.move.source} --to {spec.move.target}"
        raise Refusal(f"{what}; finish that first: {command}, or give it up with --abort")
    if move.source == move.target:
        raise Refusal(
            f"broker group {group}: a replica moves to another node, not from {move.source} to"
            f" {move.source}"
        )
    others = [node for node in replicas[group] if node != move.source]
    check_places(group, tuple(dict.fromkeys((*others, move.target))), nodes)
    joined = tuple(sorted({*spec.joined, move.target}))
    left = tuple(node for node in spec.left if node != move.target)
    return sealed({**specs, group: replace(spec, move=move, joined=joined, left=left)})


def move_ended(
    specs: Specs, replicas: Replicas, group: str, move: Move, *, done: bool
) -> tuple[Specs, tuple[str, ...]]:
    """End a move: the replica has moved, or (`done` false) the move is aborted. Returns the specs
    and the group's intended replicas."""
    spec = spec_of(specs, replicas, group)
    now = tuple(replicas[group])
    if spec.move != move:
        return specs, now
    gone, stays = (move.source, move.target) if done else (move.target, move.source)
    after = tuple(sorted({*now, stays} - {gone}))
    preferred = stays if spec.preferred == gone else spec.preferred
    joined = tuple(node for node in spec.joined if node != gone)
    left, moved = tuple(sorted({*spec.left, gone})), move if done else spec.moved
    return (
        sealed(
            {
                **specs,
                group: replace(
                    spec, move=None, moved=moved, joined=joined, left=left, preferred=preferred
                ),
            }
        ),
        after,
    )


def preferring(specs: Specs, replicas: Replicas, group: str, node: str) -> Specs:
    """Set the preferred leader. Raises Refusal."""
    spec = spec_of(specs, replicas, group)
    if node not in replicas[group]:
        raise Refusal(
            f"node {node} has no replica of broker group {group}; its replicas are on"
            f" {', '.join(sorted(replicas[group]))}"
        )
    fixed = spec.settings.get("preferred_leader")
    if fixed and fixed != node:
        raise Refusal(
            f"the configuration says who leads broker group {group}: preferred_leader is {fixed}"
        )
    return sealed({**specs, group: replace(spec, preferred=node)})


def placed_again(specs: Specs, group: str, node: str) -> Specs:
    """Note that a node is to have a replica again: it opens the files that are there and does not
    create a log."""
    spec = specs.get(group)
    if spec is None or (node not in spec.left and (node in spec.joined or node in spec.founders)):
        return specs
    left = tuple(name for name in spec.left if name != node)
    return sealed(
        {**specs, group: replace(spec, left=left, joined=tuple(sorted({*spec.joined, node})))}
    )


def spec_of(specs: Specs, replicas: Replicas, group: str) -> GroupSpec:
    if group not in replicas:
        raise Refusal(f"broker group {group} does not exist; known: {', '.join(sorted(replicas))}")
    return specs.get(group, GroupSpec())


def fewest_replicas(replicas: Replicas, nodes: Iterable[str], count: int) -> tuple[str, ...]:
    """The `count` nodes with the fewest replicas, by name among equals, at most one worker per
    node. Sorted by name."""
    load = dict.fromkeys(sorted(nodes), 0)
    for placed in replicas.values():
        for node in placed:
            if node in load:
                load[node] += 1
    chosen: dict[str, str] = {}
    for node in sorted(load, key=lambda node: (load[node], node)):
        chosen.setdefault(node_of(node), node)
    return tuple(sorted(list(chosen.values())[:count]))


def sealed(specs: Mapping[str, GroupSpec]) -> Specs:
    return MappingProxyType(dict(sorted(specs.items())))


def export(specs: Specs) -> Json:
    return {group: export_spec(spec) for group, spec in sorted(specs.items())}


def export_spec(spec: GroupSpec) -> Json:
    return {
        "settings": {
            **spec.settings,
            **({"replicas": list(spec.founders)} if "replicas" in spec.settings else {}),
        },
        "preferred": spec.preferred,
        "joined": list(spec.joined),
        "left": list(spec.left),
        "move": None if spec.move is None else [spec.move.source, spec.move.target],
        "moved": None if spec.moved is None else [spec.moved.source, spec.moved.target],
    }


def restore(tree: Mapping[str, Any]) -> Specs:
    return sealed({group: restore_spec(value) for group, value in tree.items()})


def restore_spec(value: Mapping[str, Any]) -> GroupSpec:
    settings = dict(value["settings"])
    if "replicas" in settings:
        settings["replicas"] = tuple(settings["replicas"])
    return GroupSpec(
        settings=MappingProxyType(settings),
        preferred=value["preferred"],
        joined=tuple(value["joined"]),
        left=tuple(value["left"]),
        move=_restore_move(value["move"]),
        moved=_restore_move(value["moved"]),
    )


def _restore_move(pair: Sequence[str] | None) -> Move | None:
    if pair is None:
        return None
    source, target = pair
    return Move(source, target)


def _same(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two groups have the same settings, apart from the time of creation."""
    ignored = ("created_ms",)
    return {key: value for key, value in known.items() if key not in ignored} == {
        key: value for key, value in wanted.items() if key not in ignored
    }
