"""User commands of the admin service: encrypts their secrets and passes the commands to the
controller quorum.

A secret passes through this module once, in plain text, on its way in. It is never logged and never
part of an answer; the quorum stores only its encrypted form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.node.controller import users as user_commands
from ledgermq.node.controller.grants import Action, Grant, Kind, User, effective
from ledgermq.node.controller.state import Outcome
from ledgermq.node.frontend.admin.in_force import in_force
from ledgermq.node.frontend.ports import AdminCalls, Metadata
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.runtime.security_sections import objection_to_secret
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code, fail

TIMEOUT_S = 5.0


class UserAdmin:
    """Executes the user commands."""

    def __init__(self, controller: Metadata, sealer: Sealer) -> None:
        self._controller = controller
        self._sealer = sealer

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "CreateUser": self.create,
                "ChangeUser": self.change,
                "DeleteUser": self.delete,
                "ListUsers": self.list,
            }
        )

    async def create(self, request: admin_pb2.CreateUserRequest) -> admin_pb2.CreateUserResponse:
        settings = {
            "name": request.name,
            "grants": list(request.grants),
            "roles": list(request.roles),
        }
        if request.secret_key:
            settings["secret"] = self._sealed(request.name, request.secret_key)
        outcome = await self._controller.submit("create-user", settings, TIMEOUT_S)
        await in_force(lambda: request.name in self._users)
        return admin_pb2.CreateUserResponse(user=self._info(outcome), created=outcome.changed)

    async def bootstrap(self, name: str, secret: str) -> bool:
        """Create an administrator if the cluster has no user at all; returns whether this call did.
        Raises LedgerError without a quorum, or if another node was faster."""
        await self._controller.barrier()
        if self._users:
            return False
        everything = str(Grant(Action.ADMIN, Kind.CLUSTER, "*"))
        settings = {
            "name": name,
            "grants": [everything],
            "roles": [],
            "secret": self._sealed(name, secret),
        }
        return (await self._controller.submit("create-user", settings, TIMEOUT_S)).changed

    async def change(self, request: admin_pb2.ChangeUserRequest) -> admin_pb2.ChangeUserResponse:
        settings: dict[str, Any] = {
            "name": request.name,
            "grant": list(request.grant),
            "revoke": list(request.revoke),
        }
        settings.update(
            give_roles=list(request.give_roles),
            take_roles=list(request.take_roles),
            end_former=request.end_former_secret,
        )
        if request.secret_key:
            settings["secret"] = self._sealed(request.name, request.secret_key)
        return admin_pb2.ChangeUserResponse(
            user=self._info(await self._controller.submit("change-user", settings, TIMEOUT_S))
        )

    async def delete(self, request: admin_pb2.DeleteUserRequest) -> admin_pb2.DeleteUserResponse:
        await self._controller.submit("delete-user", {"name": request.name}, TIMEOUT_S)
        return admin_pb2.DeleteUserResponse()

    async def list(self, request: admin_pb2.ListUsersRequest) -> admin_pb2.ListUsersResponse:
        await self._controller.barrier()
        users = self._users
        if request.name and request.name not in users:
            raise fail(Code.NOT_FOUND, f"there is no user {request.name}; see: ledgermq user list")
        wanted = [request.name] if request.name else sorted(users)
        return admin_pb2.ListUsersResponse(
            users=[_info(user_commands.shown(users[name]), users) for name in wanted]
        )

    @property
    def _users(self) -> Mapping[str, User]:
        return self._controller.state.users

    def _sealed(self, name: str, secret: str) -> str:
        if (why := objection_to_secret(secret.encode())) is not None:
            raise fail(Code.BAD_REQUEST, why)
        return self._sealer.seal(name, secret)

    def _info(self, outcome: Outcome) -> admin_pb2.UserInfo:
        assert outcome.value is not None, "a successful command on a user names the result"
        return _info(outcome.value, self._users)


def _info(shown: Mapping[str, Any], users: Mapping[str, User]) -> admin_pb2.UserInfo:
    info = admin_pb2.UserInfo(**shown)
    user = users.get(info.name)
    if user is not None:
        info.grants_of_roles.extend(sorted(map(str, effective(user, users) - user.grants)))
    return info
