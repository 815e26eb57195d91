"""Authenticates callers and checks their permissions: one authority for each node, in front of
every service.

`authenticate` turns a call's metadata into the name of a user; `authorize` compares a need with the
user's grants. Both decide from the controller's state as this node knows it, and both refuse by
default. An unknown user may have just been created on another node: the node then catches up once,
at most every second for all unknown users together. A refused caller learns neither whether the
user exists nor how the secret differs. Verdicts are cached until any user changes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ledgermq.node.controller.grants import OPERATOR_GRANTS, Grant, Need, User, allows, effective
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.signature import (
    AUTHORIZATION,
    DATE_TIME,
    OPERATOR,
    Claim,
    Credentials,
    claim_of,
    proves,
)
from ledgermq.proto.status import Code, LedgerError, fail

CATCH_UP_EVERY_S = 1.0
SAY_EVERY_S = 10.0
VERDICTS_MAX = 16_384
_NOBODY = "no secret of anybody"

log = get_logger()


class Authority:
    """Belongs to the loop's thread. `users` returns the agreed users; it returns a new mapping
    after every change. `whence` turns gRPC's name of a peer into its address, for the log."""

    def __init__(
        self,
        users: Callable[[], Mapping[str, User]],
        catch_up: Callable[[], Awaitable[object]],
        sealer: Sealer,
        operator: Credentials,
        *,
        required: bool,
        common_names: Mapping[str, str] | None = None,
        whence: Callable[[str], str] = str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.required = required
        self._users = users
        self._catch_up = catch_up
        self._sealer = sealer
        self._operator = operator
        self._common_names = common_names or {}
        self._now = now
        self._known: Mapping[str, User] = {}
        self._secrets: dict[str, tuple[str, ...]] = {}
        self._grants: dict[str, frozenset[Grant]] = {}
        self._verdicts: dict[tuple[str, Need], bool] = {}
        self._next_catch_up = self._next_word = 0.0
        self._whence = whence

    @property
    def wants_certificates(self) -> bool:
        """Whether a certificate can replace a signature."""
        return bool(self._common_names)

    async def authenticate(
        self, metadata: Mapping[str, str], common_name: str = "", peer: Callable[[], str] = str
    ) -> str:
        """The name of the calling user. Raises UNAUTHORIZED. `common_name`: of the connection's
        verified certificate; `peer`: returns gRPC's name of the peer."""
        try:
            claim = (
                claim_of(metadata.get(AUTHORIZATION, "")) if metadata.get(AUTHORIZATION) else None
            )
        except ValueError as error:
            raise self._refused(
                "malformed", f"the header {AUTHORIZATION} is not understood: {error}", peer
            ) from error
        if claim is None:
            return self._by_certificate(common_name, peer)
        date_time = metadata.get(DATE_TIME, "")
        if self._proven(claim, date_time):
            return claim.access_key
        if (
            claim.access_key not in self._known
            and claim.access_key != OPERATOR
            and self._now() >= self._next_catch_up
        ):
            self._next_catch_up = self._now() + CATCH_UP_EVERY_S
            await self._catch_up()
            if self._proven(claim, date_time):
                return claim.access_key
        raise self._refused(
            "signature", "the access key is unknown or the signature does not match", peer
        )

    def authorize(self, user: str, needs: Sequence[Need]) -> None:
        """Raise FORBIDDEN unless the user meets at least one of the needs; an empty list of needs
        is always refused."""
        if not any(self._may(user, need) for need in needs):
            metrics.PERMISSIONS_DENIED.inc()
            wanted = " or ".join(map(str, needs)) or "a call that no permission covers"
            raise fail(
                Code.FORBIDDEN,
                f"user {user} has no permission for this call: {wanted}; see: ledgermq user"
                f" describe {user}",
            )

    def _may(self, user: str, need: Need) -> bool:
        self._refresh()
        verdict = self._verdicts.get((user, need))
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[user, need] = allows(self._granted(user), need)
        return verdict

    def _granted(self, user: str) -> frozenset[Grant]:
        if user == OPERATOR:
            return OPERATOR_GRANTS
        if user not in self._grants:
            known = self._known.get(user)
            self._grants[user] = frozenset() if known is None else effective(known, self._known)
        return self._grants[user]

    def _refresh(self) -> None:
        """Drop all cached results when the users have changed."""
        users = self._users()
        if users is not self._known:
            self._known = users
            self._secrets.clear()
            self._grants.clear()
            self._verdicts.clear()

    def _proven(self, claim: Claim, date_time: str) -> bool:
        self._refresh()
        secrets = self._secrets_of(claim.access_key) or (_NOBODY,)
        # Every secret is tried, and a dummy if there is none, so that the duration reveals nothing.
        matches = [proves(claim, secret, date_time) for secret in secrets]
        return any(matches) and secrets != (_NOBODY,)

    def _secrets_of(self, name: str) -> tuple[str, ...]:
        if name == OPERATOR:
            return (self._operator.secret_key,)
        user = self._known.get(name)
        if user is None:
            return ()
        if name not in self._secrets:
            opened = [self._sealer.open(name, sealed) for sealed in user.secrets]
            if None in opened:
                problem = (
                    "a secret of the user was sealed under another cluster secret; set"
                    " cluster.former_secret_file, or give it a new one"
                )
                log.error("secret not readable", user=name, reason=problem)
            self._secrets[name] = tuple(secret for secret in opened if secret is not None)
        return self._secrets[name]

    def _by_certificate(self, common_name: str, peer: Callable[[], str]) -> str:
        self._refresh()
        # A caller without a certificate, or with one without a name, has an empty common name: it
        # never stands for a user, whatever the configuration says.
        user = self._common_names.get(common_name) if common_name else None
        if user is not None and user in self._known:
            return user
        if common_name:
            problem = (
                f"the certificate of {common_name} stands for no user; see tls.users, or sign the"
                " call"
            )
            raise self._refused("certificate", problem, peer)
        raise self._refused(
            "missing",
            "the call carries no credentials; set the client's access key and secret key",
            peer,
        )

    def _refused(self, reason: str, detail: str, peer: Callable[[], str]) -> LedgerError:
        metrics.AUTHENTICATION_FAILURES.labels(reason).inc()
        if self._now() >= self._next_word:
            self._next_word = self._now() + SAY_EVERY_S
            log.warning("calls are not authenticated", reason=detail, caller=self._whence(peer()))
        return fail(Code.UNAUTHORIZED, detail)
