"""The commands that create, change and delete users. Pure, like `metadata.py`.

Secrets arrive sealed (`security/sealing.py`). They are never part of an answer, because answers are
stored, displayed and logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller.grants import Grant, User, grant_of, is_user_name
from ledgermq.proto.status import Code

Json = dict[str, Any]
Users = Mapping[str, User]

MAX_USERS = 10_000
MAX_GRANTS = 256
"""Limit for one user, roles included."""
SECRETS_KEPT = 2


class Refusal(Exception):
    """The command is refused; the code is one of the contract's."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def create(users: Users, command: Json) -> tuple[Users, Json]:
    """Create a user, or, without a secret, a role. Repeating the command with the same settings
    succeeds. Raises Refusal."""
    name, sealed = _name(command), command.get("secret", "")
    if not isinstance(sealed, str):
        raise Refusal(Code.BAD_REQUEST, "a sealed secret is a text")
    grants, roles = (
        _grants(command.get("grants", [])),
        _roles(users, name, command.get("roles", [])),
    )
    user = _bounded(User(name, (sealed,) if sealed else (), grants, roles))
    known = users.get(name)
    if known is not None:
        if known != user:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"user {name} exists, with another secret or other permissions",
            )
        return users, shown(known)
    if len(users) >= MAX_USERS:
        raise Refusal(Code.PRECONDITION_FAILED, f"there are {MAX_USERS} users; delete one first")
    return _with(users, user), shown(user)


def change(users: Users, command: Json) -> tuple[Users, Json]:
    """Grant and revoke permissions and roles; granting a present one or revoking an absent one
    succeeds. `secret` sets a new secret; the previous one stays valid until `end_former`. Raises
    Refusal."""
    user = _existing(users, _name(command))
    given, taken = _grants(command.get("grant", [])), _grants(command.get("revoke", []))
    roles = (user.roles | _roles(users, user.name, command.get("give_roles", []))) - frozenset(
        _texts(command.get("take_roles", []))
    )
    secrets, sealed = user.secrets, command.get("secret", "")
    if sealed:
        if not secrets:
            raise Refusal(Code.PRECONDITION_FAILED, f"{user.name} is a role: it has no secret")
        if not isinstance(sealed, str):
            raise Refusal(Code.BAD_REQUEST, "a sealed secret is a text")
        secrets = secrets if sealed == secrets[0] else (sealed, *secrets)[:SECRETS_KEPT]
    if command.get("end_former"):
        secrets = secrets[:1]
    changed = _bounded(
        replace(user, secrets=secrets, grants=(user.grants | given) - taken, roles=roles)
    )
    return (users if changed == user else _with(users, changed)), shown(changed)


def delete(users: Users, command: Json) -> tuple[Users, Json]:
    """Delete a user, or a role that no user has. Raises Refusal."""
    user = _existing(users, _name(command))
    if holders := sorted(other.name for other in users.values() if user.name in other.roles):
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"the role {user.name} belongs to {', '.join(holders[:5])}; revoke it there first",
        )
    return MappingProxyType(
        {name: other for name, other in users.items() if name != user.name}
    ), shown(user)


def shown(user: User) -> Json:
    """The public view of a user, without secrets."""
    return {
        "name": user.name,
        "role": not user.secrets,
        "grants": sorted(map(str, user.grants)),
        "roles": sorted(user.roles),
        "secrets": len(user.secrets),
    }


def export(users: Users) -> list[Json]:
    """All users with their sealed secrets, for the controller's snapshot; `restore` is the
    inverse."""
    return [
        {
            "name": user.name,
            "secrets": list(user.secrets),
            "grants": sorted(map(str, user.grants)),
            "roles": sorted(user.roles),
        }
        for _, user in sorted(users.items())
    ]


def restore(tree: Iterable[Json]) -> Users:
    found = (
        User(
            u["name"],
            tuple(u["secrets"]),
            frozenset(map(grant_of, u["grants"])),
            frozenset(u["roles"]),
        )
        for u in tree
    )
    return MappingProxyType({user.name: user for user in found})


def _with(users: Users, user: User) -> Users:
    return MappingProxyType(dict(sorted({**users, user.name: user}.items())))


def _existing(users: Users, name: str) -> User:
    if name not in users:
        raise Refusal(Code.NOT_FOUND, f"there is no user {name}")
    return users[name]


def _name(command: Json) -> str:
    name = command.get("name")
    if not isinstance(name, str) or not is_user_name(name):
        raise Refusal(
            Code.BAD_REQUEST,
            f"{name!r} is no name of a user: letters, digits, '_', '-' and '.', at most 63",
        )
    return name


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refusal(Code.BAD_REQUEST, f"expected a list of texts, not {value!r}")
    return value


def _grants(value: Any) -> frozenset[Grant]:
    try:
        return frozenset(map(grant_of, _texts(value)))
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, str(error)) from error


def _roles(users: Users, name: str, value: Any) -> frozenset[str]:
    roles = frozenset(_texts(value))
    for role in sorted(roles):
        if role not in users or users[role].secrets or role == name:
            raise Refusal(
                Code.BAD_REQUEST,
                f"there is no role {role}; a role is a user without a secret (user create {role}"
                " --role-only)",
            )
    return roles


def _bounded(user: User) -> User:
    if len(user.grants) + len(user.roles) > MAX_GRANTS:
        raise Refusal(
            Code.BAD_REQUEST,
            f"a user has at most {MAX_GRANTS} permissions and roles; use patterns such as orders*",
        )
    return user
