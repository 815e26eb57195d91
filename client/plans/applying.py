"""Applying the steps of a plan of definitions (`definitions.py`) to a cluster.

Law: every call here succeeds again if it is repeated, so an import that was interrupted is
continued by the same import. A secret that is made here is handed over before the user exists: a
user whose secret nobody has would be of no use.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict

from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.plans.definitions import (
    BrokerGroupDefinition,
    ConsumerGroupDefinition,
    Step,
    TopicDefinition,
    UserDefinition,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.records.group_config import parse_backoff
from ledgermq.proto.types import Backoff

SECRET_BYTES = 24


def apply(admin: Admin, step: Step, keep_secret: Callable[[str, str], None]) -> None:
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


def _topic(admin: Admin, step: Step, wanted: TopicDefinition) -> None:
    settings = asdict(wanted)
    name = settings.pop("name")
    if step.former is not None:
        settings = {key: settings[key] for key in step.changed}
    if "dedup" in settings:
        settings["dedup_ms"] = units.duration_ms(settings.pop("dedup"))
    (admin.create_topic if step.former is None else admin.update_topic)(name, **settings)


def _consumer_group(admin: Admin, step: Step, wanted: ConsumerGroupDefinition) -> None:
    settings = asdict(wanted)
    name = settings.pop("name")
    if step.former is not None:
        settings = {key: settings[key] for key in step.changed}
    if settings.get("backoff") == "default":
        # A new group has the default; of another one, a backoff without values restores it.
        settings["backoff"] = None if step.former is None else Backoff()
    elif "backoff" in settings:
        settings["backoff"] = parse_backoff(wanted.backoff)
    (admin.create_group if step.former is None else admin.update_group)(name, **settings)


def _user(
    admin: Admin, step: Step, wanted: UserDefinition, keep_secret: Callable[[str, str], None]
) -> None:
    if step.former is None:
        secret = None if wanted.role else secrets.token_urlsafe(SECRET_BYTES)
        if secret is not None:
            keep_secret(wanted.name, secret)
        admin.create_user(wanted.name, secret, grants=wanted.grants, roles=wanted.roles)
        return
    assert isinstance(step.former, UserDefinition)
    grants, former_grants = set(wanted.grants), set(step.former.grants)
    roles, former_roles = set(wanted.roles), set(step.former.roles)
    admin.change_user(
        wanted.name,
        grant=sorted(grants - former_grants),
        revoke=sorted(former_grants - grants),
        give_roles=sorted(roles - former_roles),
        take_roles=sorted(former_roles - roles),
    )


def _broker_group(admin: Admin, step: Step, wanted: BrokerGroupDefinition) -> None:
    if step.former is None:
        settings = {**wanted.settings, "replication": wanted.replication}
        ask(
            admin.connection,
            pb.AddBrokerGroupRequest(name=wanted.name, replicas=wanted.replicas, settings=settings),
            pb.AddBrokerGroupResponse,
        )
    # An agreed preference: as a setting of the group, no later `rebalance` could change it.
    if wanted.preferred_leader:
        request = pb.PreferLeaderRequest(broker_group=wanted.name, node=wanted.preferred_leader)
        ask(admin.connection, request, pb.PreferLeaderResponse)
