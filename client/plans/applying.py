"""Applying the steps of a plan of definitions (`definitions.py`) to a cluster.

Law: every call here succeeds again if it is repeated, so an import that was interrupted is
continued by the same import. A secret that is made here is handed over before the user exists: a
user whose secret nobody has would be of no use.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ledgermq.client.api.admin_calls import AdminCalls, name_of
from ledgermq.client.plans.definitions import (
    BrokerGroupDefinition,
    ConsumerGroupDefinition,
    Step,
    TopicDefinition,
    UserDefinition,
    names_of,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.records.group_config import backoff_fields, parse_backoff

SECRET_BYTES = 24


def apply(admin: AdminCalls, step: Step, keep_secret: Callable[[str, str], None]) -> None:
    """Apply one step that creates or changes. `keep_secret` stores the secret of a new user. Raises
    Unreachable or Refused."""
    wanted = step.wanted
    if isinstance(wanted, TopicDefinition):
        _topic(admin, step, wanted)
    elif isinstance(wanted, ConsumerGroupDefinition):
        _consumer_group(admin, step, wanted)
    elif isinstance(wanted, UserDefinition):
        _user(admin, step, wanted, keep_secret)
    else:
        _broker_group(admin, step, wanted)


def _topic(admin: AdminCalls, step: Step, wanted: TopicDefinition) -> None:
    name, namespace = names_of(wanted.name)
    durability = wanted.durability.removeprefix("group")
    dedup_ms = units.duration_ms(wanted.dedup)
    assert dedup_ms is not None
    if step.former is None:
        admin.create_topic(
            name,
            wanted.kind,
            wanted.queues,
            wanted.permission,
            namespace,
            durability=durability,
            dedup_ms=dedup_ms,
        )
        return
    admin.update_topic(
        name,
        queues=wanted.queues if "queues" in step.changed else None,
        permission=wanted.permission if "permission" in step.changed else None,
        namespace=namespace,
        durability=durability if "durability" in step.changed else None,
        dedup_ms=dedup_ms if "dedup" in step.changed else None,
    )


def _consumer_group(admin: AdminCalls, step: Step, wanted: ConsumerGroupDefinition) -> None:
    name, namespace = names_of(wanted.name)
    backoff = (
        None
        if wanted.backoff == "default"
        else pb.Backoff(**backoff_fields(parse_backoff(wanted.backoff)))
    )
    if step.former is None:
        admin.create_group(
            name,
            wanted.max_attempts,
            namespace,
            fifo=wanted.fifo,
            backoff=backoff,
            lite_topic=wanted.lite_topic,
            broadcast=wanted.broadcast,
        )
        return
    request = pb.UpdateGroupRequest(group=name_of(name, namespace))
    for key in step.changed - {"backoff"}:
        setattr(request, key, getattr(wanted, key))
    if "backoff" in step.changed:
        # A message without values stands for the default.
        request.backoff.CopyFrom(backoff or pb.Backoff())
    admin.update_group(request)


def _user(
    admin: AdminCalls, step: Step, wanted: UserDefinition, keep_secret: Callable[[str, str], None]
) -> None:
    if step.former is None:
        secret = "" if wanted.role else secrets.token_urlsafe(SECRET_BYTES)
        if secret:
            keep_secret(wanted.name, secret)
        admin.create_user(wanted.name, secret, wanted.grants, wanted.roles)
        return
    assert isinstance(step.former, UserDefinition)
    grants, former_grants = set(wanted.grants), set(step.former.grants)
    roles, former_roles = set(wanted.roles), set(step.former.roles)
    request = pb.ChangeUserRequest(
        name=wanted.name,
        grant=sorted(grants - former_grants),
        revoke=sorted(former_grants - grants),
    )
    request.give_roles.extend(sorted(roles - former_roles))
    request.take_roles.extend(sorted(former_roles - roles))
    admin.change_user(request)


def _broker_group(admin: AdminCalls, step: Step, wanted: BrokerGroupDefinition) -> None:
    if step.former is None:
        settings = {**wanted.settings, "replication": wanted.replication}
        admin.add_broker_group(
            pb.AddBrokerGroupRequest(name=wanted.name, replicas=wanted.replicas, settings=settings)
        )
    # An agreed preference: as a setting of the group, no later `rebalance` could change it.
    if wanted.preferred_leader:
        admin.prefer_leader(wanted.name, wanted.preferred_leader)
