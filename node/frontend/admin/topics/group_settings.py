"""Converts a consumer group's settings between messages of the Admin service and commands of the
controller. Pure."""

from __future__ import annotations

from typing import Any

from ledgermq.proto import admin_pb2
from ledgermq.proto.records.group_config import backoff_fields
from ledgermq.proto.types import GroupConfig


def settings_of(request: admin_pb2.CreateGroupRequest) -> dict[str, Any]:
    """The settings of a creation except the attempts; settings that are not given get their
    defaults."""
    backoff = _backoff(request.backoff) if request.HasField("backoff") else None
    return {
        "fifo": request.fifo,
        "backoff": backoff,
        "lite_topic": request.lite_topic,
        "broadcast": request.broadcast,
    }


def given_of(request: admin_pb2.UpdateGroupRequest) -> dict[str, Any]:
    """The settings of a change except the attempts; None leaves a setting unchanged."""
    given: dict[str, Any] = {
        name: getattr(request, name) if request.HasField(name) else None
        for name in ("fifo", "lite_topic", "broadcast")
    }
    given["backoff"] = _backoff(request.backoff) if request.HasField("backoff") else None
    return given


def _backoff(backoff: admin_pb2.Backoff) -> dict[str, Any]:
    if backoff.steps_ms:
        return {"steps_ms": list(backoff.steps_ms)}
    if not backoff.initial_ms and not backoff.max_ms and not backoff.multiplier:
        return {}
    return {
        "initial_ms": backoff.initial_ms,
        "max_ms": backoff.max_ms,
        "multiplier": backoff.multiplier,
    }


def group_info(group: GroupConfig, configured: bool) -> admin_pb2.ConsumerGroupInfo:
    """The group in the form of the admin service, without its progress."""
    info = admin_pb2.ConsumerGroupInfo(
        group=admin_pb2.Name(namespace=group.namespace, name=group.name),
        max_attempts=group.max_attempts,
        fifo=group.fifo,
        configured=configured,
        lite_topic=group.lite_topic,
        broadcast=group.broadcast,
    )
    if group.backoff is not None:
        info.backoff.CopyFrom(admin_pb2.Backoff(**backoff_fields(group.backoff)))
    return info
