"""What a page is: its path, its place in the menu, the function that collects its values, and its
template.

A page has a part that updates itself (`NAME.html`) inside the frame (`frame.html`); a request of
htmx gets that part alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jinja2
from aiohttp import web

from ledgermq.client.console.sessions import Session, Sessions
from ledgermq.client.console.watching import OLDEST_S, Cell, Fetch

TEMPLATES = web.AppKey("templates", jinja2.Environment)
SESSIONS = web.AppKey("sessions", Sessions)
SESSION = web.RequestKey("session", Session)
MENU = (
    ("/", "Overview"),
    ("/nodes", "Nodes"),
    ("/broker-groups", "Broker groups"),
    ("/topics", "Topics"),
    ("/messages", "Messages"),
    ("/groups", "Consumer groups"),
    ("/dead-letters", "Dead letters"),
    ("/waiting", "Waiting"),
    ("/clients", "Clients"),
    ("/users", "Users"),
    ("/why", "Why"),
    ("/audit", "Audit"),
)


class View:
    """One request for a page: the session, the query, and the answers that the page uses. `still`:
    the page does not update itself."""

    def __init__(self, request: web.Request, *, still: bool) -> None:
        self.request = request
        self._still = still
        self.session: Session = request[SESSION]
        self.watch = self.session.watch
        self.query = request.query
        self.cells: list[Cell] = []

    def text(self, name: str) -> str:
        """A field of the query without the spaces around it; empty if it was not given."""
        return self.query.get(name, "").strip()

    async def status(self) -> Any:
        """The state of the cluster; None while it is unknown."""
        return self._used(await self.watch.status())

    async def receivers(self) -> Any:
        """The consumer groups and their lag; None while they are unknown."""
        return self._used(await self.watch.receivers())

    async def get(
        self,
        key: Hashable,
        what: str,
        fetch: Fetch,
        *,
        keep: Callable[[Any, float], None] | None = None,
    ) -> Any:
        """The answer of this key; None while there is none."""
        return self._used(
            await self.watch.get(
                key, what, fetch, keep=keep, oldest_s=0.0 if self._still else OLDEST_S
            )
        )

    def _used(self, cell: Cell) -> Any:
        self.cells.append(cell)
        return cell.value

    def missing(self) -> list[dict[str, Any]]:
        """What the page could not get, why, and how old the data is that it shows instead."""
        notices = []
        for cell in self.cells:
            if cell.error or cell.outdated or cell.at is None:
                why = cell.error or "the cluster has not answered yet"
                notices.append(
                    {
                        "what": cell.what,
                        "why": why,
                        "age_s": self.watch.age_s(cell) if cell.value is not None else None,
                    }
                )
        return notices

    def aged_s(self) -> float | None:
        """The age in seconds of the oldest answer on the page, if it is older than those of an open
        page; None otherwise."""
        return max(
            (age for cell in self.cells if (age := self.watch.aged_s(cell)) is not None),
            default=None,
        )


Prepare = Callable[[View], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `template`: the part that updates itself; `still`: it shows what was asked for once,
    and does not update itself."""

    title: str
    template: str
    prepare: Prepare
    still: bool = False


def render(
    request: web.Request, page: Page, view: View, values: dict[str, Any], *, status: int = 200
) -> web.Response:
    part = "HX-Request" in request.headers
    notices = [] if part else list(view.session.notices)
    if not part:
        view.session.notices.clear()
    heading = values.pop("heading", page.title)
    text = (
        request.app[TEMPLATES]
        .get_template("part.html" if part else "frame.html")
        .render(
            page=page,
            heading=heading,
            menu=MENU,
            here=request.path,
            url=request.path_qs,
            user=view.session.user,
            csrf=view.session.csrf,
            notices=notices,
            missing=view.missing(),
            aged_s=view.aged_s(),
            query=view.query,
            **values,
        )
    )
    return web.Response(text=text, content_type="text/html", status=status)
