"""The commands for users: `user create`, `list`, `describe`, `grant`, `revoke`, `rotate` and
`delete`.

Secrets come from the environment or a file, or are generated here; a secret is never an option, and
only a new one is printed, once. With `--cluster-secret` the caller signs as the operator: this is
how the first user is created, and the way back in when all keys are lost.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ledgermq.client import render, results
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    confirmed,
    file_bytes,
    json_option,
    operator_command,
    told_if_interrupted,
)
from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.proto import admin_pb2 as pb

SECRET_BYTES = 24
AUTHENTICATION_OFF = (
    "note: authentication is off on this cluster, so everyone may call without keys; set"
    " access.authentication: required on all nodes"
)

_OPTIONS = (
    (
        "--publish",
        "publish:topic",
        "TOPIC",
        "Send to topics of this name or pattern (orders, orders*, shop@orders*).",
    ),
    ("--subscribe", "subscribe:topic", "TOPIC", "Receive from topics of this name or pattern."),
    ("--group", "subscribe:group", "GROUP", "Consume as these consumer groups."),
    (
        "--admin-topic",
        "admin:topic",
        "TOPIC",
        "Create, change, inspect and delete these topics, and use them.",
    ),
    (
        "--admin-group",
        "admin:group",
        "GROUP",
        "Create, change, inspect and delete these consumer groups, and use them.",
    ),
)


def permission_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for permissions and roles, and pass them on as `grants` and `roles`."""

    @click.option("--admin", is_flag=True, help="Everything.")
    @click.option(
        "--role", "roles", multiple=True, metavar="ROLE", help="Everything that this role may do."
    )
    @wraps(command)
    def with_grants(*arguments: Any, admin: bool, roles: tuple[str, ...], **options: Any) -> Any:
        grants = [
            f"{prefix}:{pattern}"
            for name, prefix, _, _ in _OPTIONS
            for pattern in options.pop(_parameter(name))
        ]
        return command(
            *arguments,
            grants=[*grants, *(["admin:cluster:*"] if admin else [])],
            roles=list(roles),
            **options,
        )

    for name, _, metavar, text in reversed(_OPTIONS):
        with_grants = click.option(
            name, _parameter(name), multiple=True, metavar=metavar, help=text
        )(with_grants)
    return with_grants


def _parameter(option: str) -> str:
    return f"of_{option.strip('-').replace('-', '_')}"


def _secret(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(SECRET_BYTES)
    try:
        return file_bytes(file).decode().strip()
    except UnicodeDecodeError as error:
        raise BadArgument(
            f"the file {file} is not UTF-8 text", "a secret is 16 to 256 bytes of printable text"
        ) from error


_SECRET_OPTION = click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the secret. [default: generate one]",
)


@click.group()
def user() -> None:
    """Create, list, describe and delete users, and change their permissions.

    \b
    Examples:
      ledgermq user create root --admin --cluster-secret ledgermq-data/secret
      ledgermq user create billing --subscribe 'orders*' --group billing
      ledgermq user grant billing --publish invoices
    """


@user.command("create")
@click.argument("name")
@click.option(
    "--role-only", is_flag=True, help="Create a role: a named set of permissions for users."
)
@_SECRET_OPTION
@permission_options
@operator_command
@json_option
def create(
    connection: Connection,
    name: str,
    role_only: bool,
    secret_file: Path | None,
    grants: list[str],
    roles: list[str],
    as_json: bool,
) -> None:
    """Create a user. Its access key is NAME; a generated secret is printed once, and cannot be
    shown again.

    \b
    Examples:
      ledgermq user create root --admin --cluster-secret ledgermq-data/secret
      ledgermq user create readers --role-only --subscribe '*'
      ledgermq user create billing --role readers --group billing --secret-file billing.secret
    """
    if role_only and secret_file is not None:
        raise BadArgument("a role has no secret", "omit --secret-file or --role-only")
    if not role_only:
        connection.guard_secret()
    secret = "" if role_only else _secret(secret_file)
    made = {"secret_key": secret} if secret and secret_file is None else {}
    with told_if_interrupted(
        lambda: _may_be(name, "exist", made), f"see: ledgermq user describe {name}"
    ):
        request = pb.CreateUserRequest(name=name, secret_key=secret, grants=grants, roles=roles)
        answer = ask(connection, request, pb.CreateUserResponse)
        open_to_all = accepts_unsigned_calls(connection, name)
    if open_to_all:
        print(AUTHENTICATION_OFF, file=sys.stderr)
    if as_json:
        render.print_json(
            created=answer.created,
            **user_json(answer.user),
            **({"access_key": name} if secret else {}),
            **made,
        )
        return
    print(
        f"{'created' if answer.created else 'exists already, with these settings'}:"
        f" {'role' if role_only else 'user'} {name}"
    )
    if made:
        print(f"access key: {name}\nsecret key: {secret}")


def _may_be(name: str, what: str, made: Mapping[str, str]) -> str:
    """What an interrupted change may have left. A secret that was not printed is of no use to
    anyone."""
    unknown = (
        " with a secret that was not shown: ledgermq user rotate gives it another one"
        if made
        else ""
    )
    return f"the user {name} may {what}{unknown}"


def accepts_unsigned_calls(connection: Connection, name: str) -> bool:
    """Whether the cluster answers without credentials, so that users and permissions have no
    effect. A caller with a certificate of its own cannot tell, because the certificate may stand
    for a user."""
    if connection.options["certificate"] is not None:
        return False
    with Connection(
        timeout_s=connection.timeout_s, **{**connection.options, "credentials": None}
    ) as unsigned:
        try:
            ask(unsigned, pb.ListUsersRequest(name=name), pb.ListUsersResponse)
        except ClusterError:
            return False
    return True


@user.command("list")
@operator_command
@json_option
def list_users(connection: Connection, as_json: bool) -> None:
    """List all users and roles.

    \b
    Example: ledgermq user list
    """
    found = Admin(connection).users()
    if as_json:
        render.print_json(users=[user_json(one) for one in found])
        return
    rows = [
        [
            one.name,
            "role" if one.role else "user",
            ", ".join(one.roles) or "-",
            ", ".join(one.grants) or "-",
        ]
        for one in found
    ]
    render.print_table("users", ["name", "is a", "roles", "permissions"], rows)


@user.command("describe")
@click.argument("name")
@operator_command
@json_option
def describe(connection: Connection, name: str, as_json: bool) -> None:
    """Show one user, with the permissions of its own and of its roles.

    \b
    Example: ledgermq user describe billing
    """
    _show(Admin(connection).user(name), as_json)


@user.command("grant")
@click.argument("name")
@permission_options
@operator_command
@json_option
def grant(
    connection: Connection, name: str, grants: list[str], roles: list[str], as_json: bool
) -> None:
    """Grant permissions or roles to a user.

    \b
    Example: ledgermq user grant billing --publish invoices --group 'billing*'
    """
    _require_something(grants, roles)
    _show(Admin(connection).change_user(name, grant=grants, give_roles=roles), as_json)


@user.command("revoke")
@click.argument("name")
@permission_options
@operator_command
@json_option
def revoke(
    connection: Connection, name: str, grants: list[str], roles: list[str], as_json: bool
) -> None:
    """Revoke permissions, each written as it was granted.

    \b
    Example: ledgermq user revoke billing --publish invoices
    """
    _require_something(grants, roles)
    _show(Admin(connection).change_user(name, revoke=grants, take_roles=roles), as_json)


def _require_something(grants: list[str], roles: list[str]) -> None:
    if not (grants or roles):
        raise BadArgument(
            "there is nothing to change",
            "name a permission (--publish, --subscribe, --group, --admin, …) or a --role",
        )


@user.command("rotate")
@click.argument("name")
@_SECRET_OPTION
@click.option("--end", is_flag=True, help="End the former secret; do not create a new one.")
@operator_command
@json_option
def rotate(
    connection: Connection, name: str, secret_file: Path | None, end: bool, as_json: bool
) -> None:
    """Give a user a new secret. The former one stays valid until `--end`, so that clients can
    change one after the other.

    \b
    Examples:
      ledgermq user rotate billing
      ledgermq user rotate billing --end
    """
    if end and secret_file is not None:
        raise BadArgument("--end does not set a new secret", "omit --secret-file")
    if not end:
        connection.guard_secret()
    secret = "" if end else _secret(secret_file)
    made = {"secret_key": secret} if secret and secret_file is None else {}
    with told_if_interrupted(
        lambda: _may_be(name, "be changed", made), f"see: ledgermq user describe {name}"
    ):
        changed = Admin(connection).change_user(
            name, secret_key=secret or None, end_former_secret=end
        )
    if as_json:
        render.print_json(**user_json(changed), **made)
        return
    print(f"{name}: {changed.secrets} secret{'s are' if changed.secrets > 1 else ' is'} valid")
    if made:
        print(f"secret key: {secret}")


@user.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@operator_command
def delete(connection: Connection, name: str, yes: bool) -> None:
    """Delete a user or a role.

    \b
    Example: ledgermq user delete billing --yes
    """
    confirmed(f"deleting the user {name}", yes)
    Admin(connection).delete_user(name)
    print(f"deleted: {name}")


def user_json(one: pb.UserInfo | results.User) -> dict[str, Any]:
    """A user in `--json`."""
    names = {"name": one.name, "role": one.role, "secrets": one.secrets}
    return {
        **names,
        "roles": list(one.roles),
        "grants": list(one.grants),
        "grants_of_roles": list(one.grants_of_roles),
    }


def _show(one: results.User, as_json: bool) -> None:
    if as_json:
        render.print_json(**user_json(one))
        return
    print(
        f"{one.name}:"
        f" {'role' if one.role else f'user, {one.secrets} valid secret' + 's' * (one.secrets > 1)}"
    )
    for role in one.roles:
        print(f"  role {role}")
    for text in one.grants:
        print(f"  {text}")
    for text in one.grants_of_roles:
        print(f"  {text} (by a role)")
