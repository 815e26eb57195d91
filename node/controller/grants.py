"""Users and what they may do, as values: grants, patterns of names, and which grant covers which resource. Pure.

A pattern is `NAME`, `NAME*` (a prefix) or `*`, and belongs to the empty namespace unless it is written `NAMESPACE@NAME`, where the
namespace may end in `*` as well: `*@*` is every name there is. Nothing is allowed that no grant covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ledgermq.proto.names import parse_stored

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}").fullmatch
_PATTERN = re.compile(r"(?:[A-Za-z0-9_\-%|]{0,127}\*?@)?(?:[A-Za-z0-9_\-%|]{1,255}\*?|\*)").fullmatch


class Action(str, Enum):
    """What may be done. To administer a topic or group is to create, change, look into and delete it, and to use it."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ADMIN = "admin"


class Kind(str, Enum):
    """What it may be done to."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


USERS = "users"
"""The only resource of the kind `cluster` with a name: the users themselves."""
_POSSIBLE = frozenset(
    {
        *((Action.PUBLISH, Kind.TOPIC), (Action.SUBSCRIBE, Kind.TOPIC), (Action.SUBSCRIBE, Kind.GROUP)),
        *((Action.ADMIN, Kind.TOPIC), (Action.ADMIN, Kind.GROUP), (Action.ADMIN, Kind.CLUSTER)),
    }
)


@dataclass(frozen=True, slots=True)
class Need:
    """What a call needs to be allowed: an action on one thing, by its stored name."""

    action: Action
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.action.value} on {self.kind.value}{f' {self.name}' if self.name else ''}"


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission. Its text is `ACTION:KIND:PATTERN`."""

    action: Action
    kind: Kind
    pattern: str

    def __str__(self) -> str:
        return f"{self.action.value}:{self.kind.value}:{self.pattern}"

    def covers(self, need: Need) -> bool:
        if self.action is Action.ADMIN and self.kind is Kind.CLUSTER:
            return self.pattern == "*" or (need.kind is Kind.CLUSTER and need.name == self.pattern)
        if self.kind is not need.kind or self.action not in (need.action, Action.ADMIN):
            return False
        namespace, name = parse_stored(self.pattern)
        wanted_namespace, wanted_name = parse_stored(need.name)
        return _matches(namespace, wanted_namespace) and _matches(name, wanted_name)


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def grant_of(text: str) -> Grant:
    """The grant that a text describes; ValueError says what is wrong with it."""
    action, _, rest = text.partition(":")
    kind, _, pattern = rest.partition(":")
    try:
        grant = Grant(Action(action), Kind(kind), pattern)
    except ValueError:
        raise ValueError(f"{text!r} is no permission; write publish:topic:NAME, subscribe:topic:NAME, subscribe:group:NAME, …") from None
    if (grant.action, grant.kind) not in _POSSIBLE:
        raise ValueError(f"{text!r}: one cannot {grant.action.value} a {grant.kind.value}")
    if grant.kind is Kind.CLUSTER and pattern not in ("*", USERS):
        raise ValueError(f"{text!r}: the cluster as a whole is written admin:cluster:*, its users admin:cluster:{USERS}")
    if _PATTERN(pattern) is None:
        raise ValueError(f"{pattern!r} is no pattern of names; write NAME, NAME* or NAMESPACE@NAME*")
    return grant


OPERATOR_GRANTS = frozenset({Grant(Action.ADMIN, Kind.CLUSTER, USERS)})


@dataclass(frozen=True, slots=True)
class User:
    """Who may call, and as what. Without a secret it is a role: a set of permissions that others are given by its name."""

    name: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Sealed (`sealing.py`), the newest first; the second is the one before, until the change of secrets is ended."""
    grants: frozenset[Grant] = frozenset()
    roles: frozenset[str] = frozenset()


def is_user_name(text: str) -> bool:
    """Names are access keys: nothing in them may end a part of the authorization header."""
    return _USER(text) is not None


def effective(user: User, users: Mapping[str, User]) -> frozenset[Grant]:
    """The user's own permissions and those of its roles. A role's roles do not count: nobody should have to search for a permission."""
    of_roles = (users[role].grants for role in user.roles if role in users)
    return user.grants.union(*of_roles)


def allows(grants: Iterable[Grant], need: Need) -> bool:
    """Whether one of the grants covers the need."""
    return any(grant.covers(need) for grant in grants)
