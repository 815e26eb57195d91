"""The web application: every request passes its guards here, before a page or a change sees it.

The guards: the name of the host (another site that resolves to this address gets nothing), the
session, the CSRF token of each POST, and the headers that allow a page nothing but this console's
own files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.typedefs import Middleware

from ledgermq.client.console import changing, messages, pages, receivers, replicas
from ledgermq.client.console.assets import add_assets
from ledgermq.client.console.rendering import environment
from ledgermq.client.console.sessions import Cluster, Limits, Session, Sessions, TooMany
from ledgermq.client.console.views import SESSION, SESSIONS, TEMPLATES, Page, View, render
from ledgermq.client.errors import ClusterError
from ledgermq.proto import host_port

COOKIE = "ledgermq_console"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ACCESS_KEY_MAX = 255
FORM_WITHIN_S = 30.0
"""A browser sends a form at once; who has not sent it by then gets an error."""
FORM_MAX_BYTES = 256 << 10
FORM_TYPE = "application/x-www-form-urlencoded"
IDLE_S = 20.0
_LOG = logging.getLogger(__name__)
_LOG.addFilter(
    lambda record: (
        not record.exc_info
        or not isinstance(record.exc_info[1], (BadHttpMessage, web.RequestPayloadError))
    )
)
"""Without what is only the sender's fault, and answered: nobody else may fill the stream that has
the record of changes."""
SERVED: dict[str, Any] = {
    "access_log": None,
    "logger": _LOG,
    "keepalive_timeout": IDLE_S,
    "auto_decompress": False,
}
"""How the application is served. A connection is closed when it has been without a complete request
for so long. No browser compresses a form, so a compressed one is not expanded, and is none."""
ALIVE_S = 15.0
"""A stream of events without an event sends a comment after so long, so that a dead connection is
found."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGES: dict[str, Page] = {**pages.PAGES, **replicas.PAGES, **messages.PAGES, **receivers.PAGES}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(
    cluster: Cluster, limits: Limits, names: tuple[str, ...], *, secure: bool
) -> web.Application:
    """`names`: the hosts under which browsers reach the console. `secure`: it is served by
    HTTPS."""
    allowed = frozenset(name.lower() for name in (*LOOPBACK, *names))
    application = web.Application(
        middlewares=[_guard(allowed, secure)], client_max_size=FORM_MAX_BYTES
    )
    application[TEMPLATES] = environment()
    application[SESSIONS] = Sessions(cluster, limits)
    application.on_cleanup.append(_close)
    add_assets(application)
    for path, page in PAGES.items():
        application.router.add_get(path, _shown(page))
    application.router.add_get("/events", _events)
    application.router.add_get("/sign-in", _sign_in_page)
    application.router.add_post("/sign-in", _sign_in)
    application.router.add_post("/sign-out", _sign_out)
    application.router.add_get("/dead-letters/export", receivers.export)
    changing.add_routes(application)
    return application


async def _close(application: web.Application) -> None:
    await application[SESSIONS].cluster.audits.close()
    await application[SESSIONS].close()


def _guard(allowed: frozenset[str], secure: bool) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = await _guarded(request, handler, allowed, secure)
        except web.HTTPException as error:
            answer = error
        if not answer.prepared:
            answer.headers.update(HEADERS)
            answer.headers.setdefault("Cache-Control", "no-store")
        if isinstance(answer, web.HTTPException):
            raise answer
        return answer

    return guard


async def _guarded(
    request: web.Request, handler: Handler, allowed: frozenset[str], secure: bool
) -> web.StreamResponse:
    try:
        host = host_port.split(request.host, 0)[0]
    except ValueError as error:
        raise web.HTTPBadRequest(text="the header Host names no host") from error
    if host.lower() not in allowed:
        raise web.HTTPMisdirectedRequest(
            text=f"this console has no name {host!r}; start it with --host {host}"
        )
    if request.path.startswith("/assets/"):
        return await handler(request)
    origin = request.headers.get("Origin")
    if (
        request.method == "POST"
        and origin is not None
        and origin.partition("://")[2] != request.host
    ):
        raise web.HTTPForbidden(text="the form comes from another site")
    sessions = request.app[SESSIONS]
    background = "HX-Request" in request.headers or request.path == "/events"
    session = await sessions.find(request.cookies.get(COOKIE, ""), use=not background)
    if session is None and request.path != "/sign-in":
        if background or request.method == "POST":
            raise web.HTTPUnauthorized(
                text="the session has ended; load the page again", headers={"HX-Refresh": "true"}
            )
        try:
            session = await sessions.unsigned()
        except TooMany as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error
        if session is None:
            raise web.HTTPSeeOther("/sign-in")
        return _with_cookie(await _answered(request, handler, session), session, secure)
    return await _answered(request, handler, session)


async def _answered(
    request: web.Request, handler: Handler, session: Session | None
) -> web.StreamResponse:
    if session is not None:
        request[SESSION] = session
        if request.method == "POST" and request.path != "/sign-in":
            form = await _form(request)
            if not session.allows(str(form.get("csrf", ""))):
                raise web.HTTPForbidden(
                    text=(
                        "the form does not come from this session; go back, load the page again,"
                        " and repeat"
                    )
                )
    return await handler(request)


async def _form(request: web.Request) -> Mapping[str, Any]:
    """The fields of a form, as the pages of this console send them. Raises HTTPBadRequest for
    anything else, and HTTPRequestTimeout."""
    if request.content_type != FORM_TYPE or (request.charset or "utf-8").lower() != "utf-8":
        raise web.HTTPBadRequest(text=f"a form is {FORM_TYPE} in UTF-8")
    try:
        async with asyncio.timeout(FORM_WITHIN_S):
            return await request.post()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="the form did not come in time") from error
    except (ValueError, web.RequestPayloadError) as error:
        raise web.HTTPBadRequest(text="the form cannot be read") from error


def _with_cookie(answer: web.StreamResponse, session: Session, secure: bool) -> web.StreamResponse:
    answer.set_cookie(COOKIE, session.id, httponly=True, samesite="Strict", secure=secure, path="/")
    return answer


def _shown(page: Page) -> Handler:
    async def show(request: web.Request) -> web.StreamResponse:
        view = View(request, still=page.still)
        values = await page.prepare(view)
        return render(request, page, view, values)

    return show


async def _events(request: web.Request) -> web.StreamResponse:
    """Events without content: newer answers may be there, and an open page asks for its part. Ends
    with the session."""
    session = request[SESSION]
    answer = web.StreamResponse(
        headers={**HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    try:
        with session.watch.listening() as event:
            await answer.prepare(request)
            while await request.app[SESSIONS].find(session.id, use=False) is session:
                event.clear()
                await answer.write(b"event: newer\ndata:\n\n")
                try:
                    await asyncio.wait_for(event.wait(), ALIVE_S)
                except TimeoutError:
                    await answer.write(b":\n\n")
    except OverflowError as error:
        raise web.HTTPServiceUnavailable(text=str(error), headers={"Retry-After": "30"}) from error
    except ConnectionResetError:
        pass  # The browser has left the page, which is how most streams end.
    return answer


async def _sign_in_page(
    request: web.Request, error: str = "", status: int = 200
) -> web.StreamResponse:
    text = request.app[TEMPLATES].get_template("sign_in.html").render(error=error, title="Sign in")
    return web.Response(text=text, content_type="text/html", status=status)


async def _sign_in(request: web.Request) -> web.StreamResponse:
    form = await _form(request)
    access_key, secret_key = str(form.get("access_key", "")), str(form.get("secret_key", ""))
    if not access_key or not secret_key:
        return await _sign_in_page(request, "give both the access key and the secret", 400)
    if len(access_key) > ACCESS_KEY_MAX:
        return await _sign_in_page(
            request, f"no access key has more than {ACCESS_KEY_MAX} characters", 400
        )
    sessions = request.app[SESSIONS]
    try:
        session = await sessions.sign_in(access_key, secret_key, request.remote or "")
    except TooMany as error:
        return await _sign_in_page(request, str(error), 429)
    except ClusterError as error:
        return await _sign_in_page(request, error.what, 401 if not error.retryable else 503)
    if (former := request.get(SESSION)) is not None:
        await sessions.end(former)
    return _with_cookie(web.HTTPSeeOther("/"), session, request.secure)


async def _sign_out(request: web.Request) -> web.StreamResponse:
    await request.app[SESSIONS].end(request[SESSION], "sign-out")
    answer = web.HTTPSeeOther("/sign-in")
    answer.del_cookie(COOKIE, path="/")
    return answer
