"""The way of every change: a form, a page that says what will happen, and the confirmed change with
its record.

Law: nothing changes without a POST that carries the session's token. The cluster decides whether
the user may; its refusal is shown as it is. The record names the user, the change and its outcome,
and never a secret.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from ledgermq.client.console.actions import ACTIONS, Action, MadeSecret
from ledgermq.client.console.sessions import Session
from ledgermq.client.console.views import SESSION, SESSIONS, Page, View, render
from ledgermq.client.errors import BadArgument, ClusterError, Refused, Unreachable
from ledgermq.proto.status import Code


async def _nothing(_: View) -> dict[str, Any]:
    return {}


FORM = Page("Change", "form.html", _nothing, still=True)
CONFIRM = Page("Confirm", "confirm.html", _nothing, still=True)


def add_routes(application: web.Application) -> None:
    application.router.add_get("/form/{action}", _form)
    application.router.add_get("/confirm/{action}", _confirm)
    application.router.add_post("/do/{action}", _do)


def _action(request: web.Request) -> tuple[str, Action]:
    name = request.match_info["action"]
    if name not in ACTIONS:
        raise web.HTTPNotFound(text=f"there is no change {name!r}")
    return name, ACTIONS[name]


async def _form(request: web.Request) -> web.StreamResponse:
    return _shown(request, FORM, request.query)


async def _confirm(request: web.Request) -> web.StreamResponse:
    try:
        values = _checked(_action(request)[1], request.query, secrets=False)
    except BadArgument as error:
        return _shown(request, FORM, request.query, error=error, status=400)
    return _shown(request, CONFIRM, values)


def _shown(
    request: web.Request,
    page: Page,
    values: Any,
    *,
    error: ClusterError | None = None,
    status: int = 200,
) -> web.StreamResponse:
    name, action = _action(request)
    given = {field.name: values.get(field.name, field.default) for field in action.fields}
    sentence = action.says.format_map(given)
    more = {
        "heading": action.title,
        "name": name,
        "action": action,
        "values": given,
        "says": sentence,
        "error": error,
    }
    return render(request, page, View(request, still=page.still), more, status=status)


def _checked(action: Action, given: Any, *, secrets: bool = True) -> dict[str, str]:
    """The values of the fields. Raises BadArgument."""
    values = {}
    for field in action.fields:
        text = str(given.get(field.name, field.default))
        value = text if field.kind in ("area", "secret") else text.strip()
        if not value and field.required and (secrets or field.kind != "secret"):
            raise BadArgument(f"{field.label}: a value is needed", "fill in the field")
        if field.choices and value not in field.choices:
            raise BadArgument(
                f"{field.label}: {value!r} is not a choice",
                f"choose one of {', '.join(field.choices)}",
            )
        values[field.name] = value
    return values


async def _do(request: web.Request) -> web.StreamResponse:
    name, action = _action(request)
    session: Session = request[SESSION]
    form = await request.post()
    shown = {
        field.name: str(form.get(field.name, ""))
        for field in action.fields
        if field.kind != "secret"
    }
    # Bodies are contents of messages, which no log may hold.
    values = {
        field.name: shown[field.name]
        for field in action.fields
        if field.kind not in ("secret", "area")
    }
    record = {"event": "change", "user": session.user, "change": name, "values": values}
    recorded = request.app[SESSIONS].cluster.record
    try:
        outcome = await action.do(session.watch, _checked(action, form))
    except ClusterError as error:
        # It may have been made all the same, or in part.
        session.watch.forget(shown.get("group", ""))
        recorded(
            {
                **record,
                "outcome": "refused" if isinstance(error, (Refused, BadArgument)) else "unknown",
                "reason": str(error),
            }
        )
        return _shown(request, CONFIRM, shown, error=error, status=_status(error))
    text, how = (
        (outcome.text, outcome.outcome) if isinstance(outcome, MadeSecret) else (outcome, "done")
    )
    recorded({**record, "outcome": how, "result": text})
    session.notices.append(text)
    if isinstance(outcome, MadeSecret):
        session.notices.append(f"Secret key, shown only now: {outcome.secret}")
    session.watch.forget(shown.get("group", ""))
    again = (
        {"group": shown["group"]}
        if action.back == "/dead-letters"
        else {"topic": shown["topic"]}
        if action.back == "/waiting"
        else {}
    )
    raise web.HTTPSeeOther(f"{action.back}?{urlencode(again)}" if again else action.back)


def _status(error: ClusterError) -> int:
    if isinstance(error, Unreachable):
        return 503
    return (
        403
        if isinstance(error, Refused) and error.code in (Code.FORBIDDEN, Code.UNAUTHORIZED)
        else 400
        if isinstance(error, BadArgument)
        else 409
    )
