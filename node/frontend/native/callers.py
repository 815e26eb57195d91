"""Identifies the caller of a method of the Log service, and checks permissions and quotas.

The same authority and the same quotas protect the client contract (`access_control.py`): a user has
one set of permissions and one budget for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ledgermq.node.controller.grants import Action, Kind, Need
from ledgermq.node.frontend.ports import ServerCall
from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.rocketmq.wire.validation import CLIENT_ID, NAMESPACE
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Hold, Quotas, Scope
from ledgermq.proto.names import group_name, topic_name

CLIENT_ID_MAX = 255


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, from the call's metadata. A signed call has a user. The client chooses its client
    id; in signed calls the user's name is put in front, so that a client cannot take another user's
    client id."""

    user: str = ""
    client_id: str = ""
    namespace: str = ""
    namespaces: bool = True
    """Whether namespaces count (configuration, access.ignore_namespaces)."""

    def called(self, client_id: str) -> Caller:
        """The same caller with a client id given later; an id in the call's metadata takes
        precedence."""
        if self.client_id or not client_id:
            return self
        return replace(self, client_id=_client_id(self.user, client_id))

    def topic(self, namespace: str, name: str) -> str:
        """The stored name of a topic. Raises ILLEGAL_TOPIC."""
        return topic_name(self._namespace(namespace), name)

    def group(self, namespace: str, name: str) -> str:
        """The stored name of a consumer group. Raises ILLEGAL_CONSUMER_GROUP."""
        return group_name(self._namespace(namespace), name)

    def _namespace(self, namespace: str) -> str:
        return (namespace or self.namespace) if self.namespaces else ""


def _client_id(user: str, given: str) -> str:
    given = given[:CLIENT_ID_MAX]
    return f"{user}@{given}" if user and given else given


def publish(stored: str) -> Need:
    return Need(Action.PUBLISH, Kind.TOPIC, stored)


def read(stored: str) -> Need:
    return Need(Action.SUBSCRIBE, Kind.TOPIC, stored)


def as_group(stored: str) -> Need:
    return Need(Action.SUBSCRIBE, Kind.GROUP, stored)


ADMINISTRATOR = Need(Action.ADMIN, Kind.CLUSTER)


class Callers:
    """Identifies and admits the callers of one node. Belongs to the loop's thread."""

    def __init__(
        self,
        authority: Authority | None = None,
        quotas: Quotas | None = None,
        *,
        namespaces: bool = True,
    ) -> None:
        self._authority = authority if authority is not None and authority.required else None
        self._quotas = quotas if quotas is not None and quotas.limit_calls else None
        self._namespaces = namespaces

    async def of(self, context: ServerCall) -> Caller:
        """The caller. Raises UNAUTHORIZED."""
        metadata = dict(context.invocation_metadata())
        user = ""
        if self._authority is not None:
            name = common_name_of(context) if self._authority.wants_certificates else ""
            user = await self._authority.authenticate(metadata, name, context.peer)
        return Caller(
            user,
            _client_id(user, metadata.get(CLIENT_ID, "")),
            metadata.get(NAMESPACE, ""),
            self._namespaces,
        )

    def allow(self, caller: Caller, *alternatives: Need) -> None:
        """Raise FORBIDDEN unless the caller meets at least one of these needs now. Verdicts are
        cached until users change, so a stream can ask again for every frame."""
        if self._authority is not None:
            self._authority.authorize(caller.user, alternatives)

    def enter(
        self,
        caller: Caller,
        kind: Kind,
        names: Sequence[str],
        *,
        receive: bool,
        messages: int,
        size: int,
    ) -> Hold | None:
        """Admit a call; it counts against its quotas until the hold ends. None if nothing is
        limited. Raises TooMuch."""
        if self._quotas is None:
            return None
        scopes: list[Scope] = [("client", caller.client_id)] if caller.client_id else []
        if caller.user:
            scopes.append(("user", caller.user))
        scopes += [(kind.value, name) for name in names]
        return self._quotas.enter(scopes, receive=receive, messages=messages, size=size)
