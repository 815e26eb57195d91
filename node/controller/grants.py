"""Users and their permissions as values: grants, name patterns, and the test whether a grant covers
a resource. Pure.

A pattern is `NAME`, `NAME*` (a prefix) or `*`. It applies to the empty namespace unless it is
written `NAMESPACE@NAME`; the namespace may end in `*` too, so `*@*` matches every name. A call is
allowed only if a grant covers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ledgermq.proto.names import parse_stored

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}").fullmatch
_PATTERN = re.compile(
    r"(?:[A-Za-z0-9_\-%|]{0,127}\*?@)?(?:[A-Za-z0-9_\-%|]{1,255}\*?|\*)"
).fullmatch


class Action(str, Enum):
    """What a user may do. The admin action on a topic or group includes creating, changing,
    inspecting, deleting and using it."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ADMIN = "admin"


class Kind(str, Enum):
    """The type of resource that a grant applies to."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


USERS = "users"
"""The only named resource of the kind `cluster`: the users."""
_POSSIBLE = frozenset(
    {
        *(
            (Action.PUBLISH, Kind.TOPIC),
            (Action.SUBSCRIBE, Kind.TOPIC),
            (Action.SUBSCRIBE, Kind.GROUP),
        ),
        *((Action.ADMIN, Kind.TOPIC), (Action.ADMIN, Kind.GROUP), (Action.ADMIN, Kind.CLUSTER)),
    }
)


@dataclass(frozen=True, slots=True)
class Need:
    """The permission that a call requires: an action on one resource, by its stored name."""

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
        """Whether this grant allows what is needed. `admin:cluster:*` allows everything; admin on a
        topic or group includes its use."""
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
    """Parse a grant. Raises ValueError with the reason if the text is invalid."""
    action, _, rest = text.partition(":")
    kind, _, pattern = rest.partition(":")
    try:
        grant = Grant(Action(action), Kind(kind), pattern)
    except ValueError:
        raise ValueError(
            f"{text!r} is no permission; write publish:topic:NAME, subscribe:topic:NAME,"
            " subscribe:group:NAME, …"
        ) from None
    if (grant.action, grant.kind) not in _POSSIBLE:
        raise ValueError(f"{text!r}: one cannot {grant.action.value} a {grant.kind.value}")
    if grant.kind is Kind.CLUSTER and pattern not in ("*", USERS):
        raise ValueError(
            f"{text!r}: the cluster as a whole is written admin:cluster:*, its users"
            f" admin:cluster:{USERS}"
        )
    if _PATTERN(pattern) is None:
        raise ValueError(
            f"{pattern!r} is no pattern of names; write NAME, NAME* or NAMESPACE@NAME*"
        )
    return grant


OPERATOR_GRANTS = frozenset({Grant(Action.ADMIN, Kind.CLUSTER, USERS)})


@dataclass(frozen=True, slots=True)
class User:
    """A user who may call. A user without a secret is a role: a named set of permissions that other
    users can be given."""

    name: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Sealed (`sealing.py`), the newest first. The second is the previous secret, which stays valid
    until it is ended."""
    grants: frozenset[Grant] = frozenset()
    roles: frozenset[str] = frozenset()


def is_user_name(text: str) -> bool:
    """Names are access keys, so they must not contain a delimiter of the authorization header."""
    return _USER(text) is not None


def effective(user: User, users: Mapping[str, User]) -> frozenset[Grant]:
    """The user's own permissions and those of its roles. Roles do not nest, so that a permission is
    easy to trace."""
    of_roles = (users[role].grants for role in user.roles if role in users)
    return user.grants.union(*of_roles)


def allows(grants: Iterable[Grant], need: Need) -> bool:
    """Whether one of the grants covers the need."""
    return any(grant.covers(need) for grant in grants)
