"""Who looks at the console: sessions with an idle and an absolute limit, each with the view and the
connection of its user.

Secrets stay in memory, in the connection of a signed-in session, and go with it. Without
authentication all sessions share one view, so that any number of open pages costs the cluster the
calls of one.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.client.api.admin import AsyncAdmin
from ledgermq.client.api.connection import AsyncConnection
from ledgermq.client.console.auditing import Audits
from ledgermq.client.console.watching import Watch
from ledgermq.client.errors import Refused
from ledgermq.proto.host_port import is_ipv6
from ledgermq.proto.signature import Credentials
from ledgermq.proto.status import Code
from ledgermq.proto.token_bucket import TokenBucket

SESSIONS_MAX = 64
TRIES = 10
"""Failed sign-ins of one user from one place, within TRIES_S, after which further ones are
refused."""
TRIES_S = 60.0
GUESSERS_MAX = 4096
PLACE_BITS_IPV6 = 64
"""One subscriber has at least so many addresses, so they count as one place."""
ASKED_S = 5.0
"""For so long the console remembers that the cluster has authentication: requests without a session
cost the cluster nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a session lasts, in seconds: without use, and at most."""

    idle_s: float = 1800.0
    absolute_s: float = 43200.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the console. `connect` opens a connection that signs its calls with the keys;
    `record` writes a line of the log. `audits`: those that its users run."""

    connect: Callable[[Credentials | None], AsyncConnection]
    record: Callable[[Mapping[str, Any]], None]
    audits: Audits


@dataclass(slots=True)
class Session:
    """One browser. `user`: empty without authentication."""

    id: str
    user: str
    watch: Watch
    began: float
    used: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    """Outcomes of changes that no page has shown yet."""

    def allows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class TooMany(Exception):
    """The console refuses for its own safety: too many sessions or failed sign-ins."""


class Guesses:
    """Failed sign-ins, counted by user and by place together: neither does a stranger who guesses
    keep a user out who is elsewhere, nor does one user keep out another who comes through the same
    proxy.

    Only the latest `GUESSERS_MAX` are known. Who makes that many to be forgotten has used as many
    sign-ins as for ten guesses."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()

    def begin(self, user: str, address: str, now: float) -> None:
        """Count a sign-in as failed, from its start on: many at once are no way around the limit.
        Raises TooMany."""
        who = (_place(address), user)
        left = self._left.setdefault(who, TokenBucket(TRIES / TRIES_S, TRIES))
        self._left.move_to_end(who)
        if len(self._left) > GUESSERS_MAX:
            self._left.popitem(last=False)
        if left.available(now) < 1:
            raise TooMany("too many failed sign-ins of this user from this address; wait a minute")
        left.take(1, now)

    def answered(self, user: str, address: str) -> None:
        """The sign-in was none that failed for its keys."""
        self._left.pop((_place(address), user), None)


def _place(address: str) -> str:
    if not is_ipv6(address):
        return address
    six = ipaddress.IPv6Address(address.partition("%")[0])
    # A socket for both families shows IPv4 addresses in this form.
    return str(six.ipv4_mapped or ipaddress.IPv6Network((six, PLACE_BITS_IPV6), strict=False))


class Sessions:
    """All sessions of the process."""

    def __init__(
        self, cluster: Cluster, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster = cluster
        self._limits = limits
        self._clock = clock
        self._known: dict[str, Session] = {}
        self._open: Watch | None = None
        self._opening = asyncio.Lock()
        self._closed_at = float("-inf")
        self._guesses = Guesses()

    async def find(self, key: str, *, use: bool) -> Session | None:
        """The session of this cookie. `use`: the user did something, as opposed to a page that
        updates itself."""
        await self._end_old()
        session = self._known.get(key)
        if session is not None and use:
            session.used = self._clock()
        return session

    async def unsigned(self) -> Session | None:
        """A session without a user; None if the cluster has authentication. The first call asks the
        cluster."""
        async with self._opening:
            if self._open is None:
                if self._clock() - self._closed_at < ASKED_S:
                    return None
                watch = Watch(self.cluster.connect(None), self.cluster.audits)
                cell = await watch.status()
                if cell.code == Code.UNAUTHORIZED:
                    self._closed_at = self._clock()
                    await watch.close()
                    return None
                if cell.value is None:
                    # Nothing is known yet: the page says what failed, and the next one asks again.
                    return await self._add("", watch)
                self._open = watch
        return await self._add("", self._open)

    async def sign_in(self, access_key: str, secret_key: str, address: str) -> Session:
        """`address`: where the browser is. Raises ClusterError if the cluster refuses the keys or
        does not answer, and TooMany."""
        self._guesses.begin(access_key, address, self._clock())
        connection = self.cluster.connect(Credentials(access_key, secret_key))
        try:
            await AsyncAdmin(connection).status()
        except Refused as error:
            # A user who may not see the cluster is a user all the same.
            if error.code != Code.FORBIDDEN:
                self.cluster.record({"event": "sign-in refused", "user": access_key})
                await connection.close()
                raise
        except BaseException:
            # The cluster did not answer, so nothing was guessed.
            self._guesses.answered(access_key, address)
            await connection.close()
            raise
        self._guesses.answered(access_key, address)
        self.cluster.record({"event": "sign-in", "user": access_key})
        return await self._add(access_key, Watch(connection, self.cluster.audits))

    async def end(self, session: Session, event: str = "session ended") -> None:
        self._known.pop(session.id, None)
        if session.user:
            self.cluster.record({"event": event, "user": session.user})
        if session.watch is not self._open:
            await session.watch.close()

    async def close(self) -> None:
        for session in list(self._known.values()):
            await self.end(session)
        if self._open is not None:
            await self._open.close()

    async def _add(self, user: str, watch: Watch) -> Session:
        await self._end_old()
        if len(self._known) >= SESSIONS_MAX:
            oldest = min(self._known.values(), key=lambda session: session.used)
            if oldest.user and not user:
                raise TooMany("too many sessions; sign out somewhere, or wait")
            await self.end(oldest)
        now = self._clock()
        session = Session(secrets.token_urlsafe(32), user, watch, now, now)
        self._known[session.id] = session
        return session

    async def _end_old(self) -> None:
        now, limits = self._clock(), self._limits
        for session in list(self._known.values()):
            if now - session.used > limits.idle_s or now - session.began > limits.absolute_s:
                await self.end(session)
