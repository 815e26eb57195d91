"""The pages about consumption: consumer groups with their lag, dead letters, and messages that
wait."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from aiohttp import web

from ledgermq.client.console.rendering import Chart, part
from ledgermq.client.console.views import SESSION, Page, View
from ledgermq.client.console.watching import Lag, Receivers
from ledgermq.client.errors import ClusterError, Unreachable

LETTERS = 100
EXPORTED = 10_000
"""Letters in one file; `ledgermq dlq export` has no limit."""


async def _groups(view: View) -> dict[str, Any]:
    receivers: Receivers | None = await view.receivers()
    rows = part(() if receivers is None else receivers.groups, "name", view.query)
    return {"rows": rows, "lags": {} if receivers is None else receivers.lags}


async def _group(view: View) -> dict[str, Any]:
    name = view.text("name")
    group = await view.get(
        ("group", name), f"consumer group {name}", lambda admin: admin.group(name)
    )
    lag: Lag | None = await view.get(
        ("lag", name), f"the lag of {name}", lambda admin: view.watch.lag_of(name)
    )
    clients = await view.get("clients", "the clients", lambda admin: admin.clients())
    own = [client for client in clients.clients if client.group == name] if clients else []
    chart = Chart("Messages that wait", ("lag",), view.watch.history.samples(("lag", name)))
    return {
        "heading": f"Consumer group {name}",
        "name": name,
        "group": group,
        "lag": lag,
        "clients": own,
        "charts": [chart],
    }


async def _dead_letters(view: View) -> dict[str, Any]:
    name, settled = view.text("group"), view.text("settled") == "1"
    letters, counts = None, None
    if name:
        letters = await view.get(
            ("letters", name, settled),
            f"the dead letters of {name}",
            lambda admin: admin.dead_letters(name, settled=settled, bodies=True, limit=LETTERS),
        )
    else:
        counts = await view.get(
            "letters", "the numbers of dead letters", lambda admin: admin.dead_letter_counts()
        )
    return {"name": name, "letters": letters, "counts": counts, "limit": LETTERS}


async def _waiting(view: View) -> dict[str, Any]:
    topic = view.text("topic")
    kind: Literal["delayed", "half"] = "half" if view.text("kind") == "half" else "delayed"
    waiting = None
    if topic:
        waiting = await view.get(
            ("waiting", topic, kind),
            f"what waits in topic {topic}",
            lambda admin: admin.waiting(topic, kind, limit=LETTERS),
        )
    return {"topic": topic, "kind": kind, "found": waiting, "limit": LETTERS}


async def export(request: web.Request) -> web.StreamResponse:
    """The dead letters of a consumer group as a file of JSON lines."""
    group = request.query.get("group", "")
    try:
        letters = await request[SESSION].watch.admin.dead_letters(
            group, bodies=True, limit=EXPORTED
        )
    except ClusterError as error:
        failure = (
            web.HTTPServiceUnavailable if isinstance(error, Unreachable) else web.HTTPForbidden
        )
        raise failure(text=str(error)) from error
    text = "".join(json.dumps(asdict(letter), default=_plain) + "\n" for letter in letters)
    headers = {"Content-Disposition": "attachment; filename=dead-letters.jsonl"}
    return web.Response(text=text, content_type="application/x-ndjson", headers=headers)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else dict(value)


PAGES = {
    "/groups": Page("Consumer groups", "groups.html", _groups),
    "/group": Page("Consumer group", "group.html", _group),
    "/dead-letters": Page("Dead letters", "dead_letters.html", _dead_letters),
    "/waiting": Page("Waiting", "waiting.html", _waiting),
}
