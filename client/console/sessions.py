"""Who looks at the console: sessions with an idle and an absolute limit, each with the view and the connection of its user.

Secrets stay in memory, in the connection of a signed-in session, and go with it. Without authentication all sessions share one view, so
that any number of open pages costs the cluster the calls of one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.client.admin import AsyncAdmin
from ledgermq.client.connection import AsyncConnection
from ledgermq.client.console.auditing import Audits
from ledgermq.client.console.watching import Watch
from ledgermq.client.errors import Refused
from ledgermq.proto.signature import Credentials
from ledgermq.proto.status import Code

SESSIONS_MAX = 64
TRIES = 10
"""Failed sign-ins within TRIES_S after which further ones are refused."""
TRIES_S = 60.0
ASKED_S = 5.0
"""For so long the console remembers that the cluster has authentication: requests without a session cost the cluster nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a session lasts, in seconds: without use, and at most."""

    idle_s: float = 1800.0
    absolute_s: float = 43200.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the console. `connect` opens a connection that signs its calls with the keys; `record` writes a line of the log.
    `audits`: those that its users run."""

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


class Sessions:
    """All sessions of the process."""

    def __init__(self, cluster: Cluster, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._limits = limits
        self._clock = clock
        self._known: dict[str, Session] = {}
        self._open: Watch | None = None
        self._opening = asyncio.Lock()
        self._closed_at = float("-inf")
        self._failed: deque[float] = deque(maxlen=TRIES)

    async def find(self, key: str, *, use: bool) -> Session | None:
        """The session of this cookie. `use`: the user did something, as opposed to a page that updates itself."""
        await self._end_old()
        session = self._known.get(key)
        if session is not None and use:
            session.used = self._clock()
        return session

    async def unsigned(self) -> Session | None:
        """A session without a user; None if the cluster has authentication. The first call asks the cluster."""
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

    async def sign_in(self, access_key: str, secret_key: str) -> Session:
        """Raises ClusterError if the cluster refuses the keys or does not answer, and TooMany."""
        now = self._clock()
        if len(self._failed) == TRIES and now - self._failed[0] < TRIES_S:
            raise TooMany("too many failed sign-ins; wait a minute")
        connection = self.cluster.connect(Credentials(access_key, secret_key))
        try:
            await AsyncAdmin(connection).status()
        except Refused as error:
            # A user who may not see the cluster is a user all the same.
            if error.code != Code.FORBIDDEN:
                self._failed.append(now)
                self.cluster.record({"event": "sign-in refused", "user": access_key})
                await connection.close()
                raise
        except BaseException:
            await connection.close()
            raise
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
