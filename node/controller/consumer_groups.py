"""The commands of the controller quorum that create, change and delete consumer groups. Pure, like
`metadata.py`."""

from __future__ import annotations

from dataclasses import replace

from ledgermq.node.controller.command_fields import (
    Refused,
    existing,
    name_of,
    read_count,
    read_group_key,
    read_key,
    read_mapping,
    read_text,
)
from ledgermq.node.controller.state import (
    Json,
    Outcome,
    State,
    next_state,
    with_entry,
    without_entry,
)
from ledgermq.proto.names import topic_name
from ledgermq.proto.records.group_config import group_fields, group_words, read_backoff
from ledgermq.proto.status import Code
from ledgermq.proto.types import GroupConfig

MAX_ATTEMPTS = 1000


def create_group(state: State, command: Json) -> tuple[State, Outcome]:
    """Create a consumer group. Repeating the command with the same settings succeeds. Raises
    Refused."""
    key = read_group_key(command)
    read_count(command.get("max_attempts"), "max_attempts", MAX_ATTEMPTS)
    group = _with_settings(GroupConfig(*key), command)
    known = state.groups.get(key)
    if known is not None:
        if known == group:
            return state, Outcome(value=group_fields(known))
        detail = (
            f"consumer group {name_of(key)} exists with other settings ({group_words(known)});"
            " change them with: group update"
        )
        raise Refused(Code.PRECONDITION_FAILED, detail)
    deleted = without_entry(state.deleted_groups, key)
    return next_state(
        state, groups=with_entry(state.groups, key, group), deleted_groups=deleted
    ), Outcome(value=group_fields(group))


def update_group(state: State, command: Json) -> tuple[State, Outcome]:
    """Change settings. A null leaves a setting unchanged; a backoff without values restores the
    default."""
    key = read_group_key(command)
    known = existing(state.groups, key, Code.CONSUMER_GROUP_NOT_FOUND, "consumer group")
    group = _with_settings(known, command)
    return next_state(state, groups=with_entry(state.groups, key, group)), Outcome(
        value=group_fields(group)
    )


def _with_settings(group: GroupConfig, command: Json) -> GroupConfig:
    """The group with the settings that the command gives."""
    given: Json = {}
    if command.get("max_attempts") is not None:
        given["max_attempts"] = read_count(command["max_attempts"], "max_attempts", MAX_ATTEMPTS)
    for name in ("fifo", "broadcast"):
        if command.get(name) is not None:
            if not isinstance(command[name], bool):
                raise Refused(
                    Code.BAD_REQUEST, f"{name} must be true or false, not {command[name]!r}"
                )
            given[name] = command[name]
    if command.get("backoff") is not None:
        try:
            given["backoff"] = read_backoff(read_mapping(command["backoff"]))
        except ValueError as error:
            raise Refused(Code.BAD_REQUEST, str(error)) from error
        except KeyError as error:
            raise Refused(
                Code.BAD_REQUEST,
                f"a backoff has steps_ms, or initial_ms, max_ms and multiplier; {error} is missing",
            ) from error
    if command.get("lite_topic") is not None:
        given["lite_topic"] = read_text(command["lite_topic"])
        if given["lite_topic"]:
            read_key({"ns": group.namespace, "name": given["lite_topic"]}, topic_name)
    changed = replace(group, **given)
    if changed.broadcast and changed.lite_topic:
        raise Refused(
            Code.BAD_REQUEST,
            "a group either gives every message to every client or reads lite topics, not both",
        )
    return changed


def delete_group(state: State, command: Json) -> tuple[State, Outcome]:
    """Delete a consumer group and record the deletion, so that the logs delete it too. Raises
    Refused."""
    key = read_group_key(command)
    known = existing(state.groups, key, Code.CONSUMER_GROUP_NOT_FOUND, "consumer group")
    deleted = with_entry(state.deleted_groups, key, state.revision + 1)
    return next_state(
        state, groups=without_entry(state.groups, key), deleted_groups=deleted
    ), Outcome(value=group_fields(known))
