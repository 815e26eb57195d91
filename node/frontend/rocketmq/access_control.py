"""Access control for client calls: authentication, permissions and quotas.

It applies `node/frontend/security` to the requests of the contract. Without an authority and
without quotas it is `open`: the service then bypasses it, so that calls cost nothing more. A call
that a peer forwards has already passed the access control of the peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgermq.node.controller.grants import Kind, Need
from ledgermq.node.frontend.ports import ServerCall
from ledgermq.node.frontend.rocketmq.wire.needs import RULES, needs_of_settings
from ledgermq.node.frontend.rocketmq.wire.validation import Caller
from ledgermq.node.frontend.routing.worker_proxy import common_name
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Hold, Quotas, Scope, TooMuch
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail

RETRY_AFTER = "retry-after-ms"
"""Trailing metadata of a call over its quota: the time in ms after which to retry."""
SEND, RECEIVE, PULL = "SendMessage", "ReceiveMessage", "PullMessage"


class AccessControl:
    """The access control of one node; it is open without an authority and without quotas."""

    def __init__(self, authority: Authority | None = None, quotas: Quotas | None = None) -> None:
        self._authority = authority if authority is not None and authority.required else None
        self._quotas = quotas if quotas is not None and quotas.limit_calls else None

    @property
    def open(self) -> bool:
        return self._authority is None and self._quotas is None

    async def user(self, metadata: Mapping[str, str], context: ServerCall) -> str:
        """The name of the calling user; empty without an authority. Raises UNAUTHORIZED."""
        if self._authority is None:
            return ""
        name = common_name_of(context) if self._authority.wants_certificates else ""
        return await self._authority.authenticate(metadata, name, context.peer)

    def admitted(self, method: str, data: bytes, caller: Caller) -> Hold | None:
        """Admit the call; it counts against its quotas until the hold ends. Raises FORBIDDEN,
        TooMuch, or LedgerError for invalid names in the request."""
        rule = RULES.get(method)
        if rule is None:
            raise fail(Code.FORBIDDEN, f"no permission covers the method {method}")
        request = rule.request.FromString(data)
        needs = rule.needs(request, caller)
        self._authorize(caller, needs)
        if self._quotas is None:
            return None
        messages = len(request.messages) if method == SEND else 0
        size = len(data) if method == SEND else 0
        return self._quotas.enter(
            _scopes(method, caller, needs),
            receive=method in (RECEIVE, PULL),
            messages=messages,
            size=size,
        )

    def admit_settings(self, settings: pb.Settings, caller: Caller) -> None:
        """Check that the client may do what its Settings announce. Raises FORBIDDEN."""
        if self._authority is not None:
            self._authorize(caller, needs_of_settings(settings, caller))

    def _authorize(self, caller: Caller, needs: Sequence[tuple[Need, ...]]) -> None:
        if self._authority is not None:
            for alternatives in needs:
                self._authority.authorize(caller.user, alternatives)


def _scopes(method: str, caller: Caller, needs: Sequence[tuple[Need, ...]]) -> list[Scope]:
    """The scopes whose quotas a call counts against. A read counts for the consumer group, any
    other call for the topics."""
    scopes: list[Scope] = [("client", caller.client_id)]
    if caller.user:
        scopes.append(("user", caller.user))
    kind = Kind.GROUP if method in (RECEIVE, PULL) else Kind.TOPIC
    named = {need.name for alternatives in needs for need in alternatives if need.kind is kind}
    return scopes + [(kind.value, name) for name in sorted(named)]


def common_name_of(context: ServerCall) -> str:
    """The common name of the client's certificate, which gRPC has verified, on this worker or on
    the one that passed the call on."""
    names = context.auth_context().get("x509_common_name", ())
    return names[0].decode("utf-8", "replace") if names else common_name(context)


def retry_after(error: Exception) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of a failure; empty without a retry hint."""
    return ((RETRY_AFTER, str(error.retry_after_ms)),) if isinstance(error, TooMuch) else ()
