"""The guards of the console: sessions, sign-in, CSRF, host names, headers, and the record of
changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web

pytest.importorskip("jinja2")

from ledgermq.client.console import application, rendering
from ledgermq.client.console.actions import ACTIONS
from ledgermq.client.console.application import COOKIE, PAGES
from ledgermq.client.console.sessions import (
    GUESSERS_MAX,
    TRIES,
    TRIES_S,
    Guesses,
    Limits,
    TooMany,
    _place,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status
from tests.console.console_client import Browser, browsing, cluster_status


@asynccontextmanager
async def signed_in(**options: Any) -> AsyncIterator[Browser]:
    """Root has signed in to a cluster with authentication."""
    async with browsing(**options) as browser:
        require_keys(browser)
        await browser.post("/sign-in", access_key="root", secret_key="the secret of root")
        yield browser


def require_keys(browser: Browser) -> None:
    """Only calls that root signed with the right secret are answered."""

    def answer(_: Any) -> pb.ClusterStatusResponse:
        keys = dict(browser.node.metadata)
        if "authorization" not in keys:
            return pb.ClusterStatusResponse(
                status=admin_status(int(Code.UNAUTHORIZED), "the call has no credentials")
            )
        if "root" not in keys["authorization"]:
            return pb.ClusterStatusResponse(
                status=admin_status(
                    int(Code.UNAUTHORIZED), "the access key is unknown or the signature is wrong"
                )
            )
        return cluster_status()

    browser.node.answers("ClusterStatus", answer)


async def test_pages_have_security_headers_and_no_inline_script() -> None:
    """No page has a script, a style or a handler of its own, and the policy forbids them and every
    other address."""
    async with browsing() as browser:
        for path in (*PAGES, *(f"/form/{name}" for name in ACTIONS), "/sign-in"):
            answer = await browser.answer(path)
            policy = answer.headers["Content-Security-Policy"]
            assert (
                policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
                and "unsafe" not in policy
            )
            assert (
                answer.headers["Cache-Control"] == "no-store"
                and answer.headers["X-Content-Type-Options"] == "nosniff"
            )
            text = await answer.text()
            assert answer.status == 200, (path, text)
            assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), path
            assert re.findall(r"<script([^>]*)>(.*?)</script>", text) == [
                (f' src="/assets/{name}" defer', "")
                for name in ("htmx.min.js", "uPlot.iife.min.js", "console.js")
            ]
            assert not re.findall(r'(?:href|src|action)="(?!/|\?|#)', text), path


def test_templates_escape_without_exceptions() -> None:
    """Autoescape is on in every template, and none has a way around it."""
    assert rendering.environment().autoescape is True
    for path in (Path(rendering.__file__).parent / "templates").iterdir():
        assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text()), path.name


async def test_foreign_host_name_is_refused_without_a_session() -> None:
    """A name of another site that resolves to this address is refused, before any session is
    made."""
    async with browsing() as browser:
        assert "no name 'evil.example'" in await browser.get("/", 421, Host="evil.example")
        assert not browser.sessions._known and browser.calls() == 0


async def test_sign_in_and_out() -> None:
    """Without keys every page leads to the sign-in; wrong keys are refused; the cookie is closed to
    scripts and other sites; after signing out nothing is left."""
    async with browsing() as browser:
        require_keys(browser)
        for _ in range(5):
            await browser.get("/topics", 303)
        assert browser.calls() == 1
        assert "unknown" in await browser.post(
            "/sign-in", 401, access_key="mallory", secret_key="a guess"
        )
        assert "signature" in await browser.post(
            "/sign-in", 401, access_key="mallory", secret_key="a guess"
        )
        await browser.post("/sign-in", access_key="root", secret_key="the secret of root")
        assert browser.cookie["httponly"] and browser.cookie["samesite"] == "Strict"
        page = await browser.get("/")
        assert "<span>root</span>" in page and "the secret of root" not in page
        await browser.post("/sign-out", csrf=await browser.token())
        await browser.get("/", 303)
        assert not browser.sessions._known
        assert "the secret of root" not in str(browser.records)
        assert [record["event"] for record in browser.records] == ["sign-in refused"] * 2 + [
            "sign-in",
            "sign-out",
        ]


async def test_a_user_without_permissions_may_sign_in() -> None:
    """The cluster knows the user; what it refuses is shown on the pages."""
    async with browsing() as browser:
        refused = pb.ClusterStatusResponse(
            status=admin_status(int(Code.FORBIDDEN), "user alice has no admin permission")
        )
        browser.node.answers("ClusterStatus", refused)
        await browser.post("/sign-in", access_key="alice", secret_key="the secret of alice")
        assert "not loaded. user alice has no admin permission" in await browser.get("/")


async def test_key_guessing_is_throttled_per_user_and_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After several failures within a minute no further keys of that user are tried for that
    address, and then one in six seconds; the user gets in from elsewhere, and another one from
    there."""
    where = ["192.0.2.1"]
    monkeypatch.setattr(web.Request, "remote", property(lambda _: where[0]))

    async with browsing() as browser:
        require_keys(browser)
        browser.sessions._clock = lambda: 1000.0
        for _ in range(TRIES):
            await browser.post("/sign-in", 401, access_key="admin", secret_key="a guess")
        before = browser.calls()
        assert "wait" in await browser.post(
            "/sign-in", 429, access_key="admin", secret_key="the secret of admin"
        )
        assert browser.calls() == before
        await browser.post("/sign-in", access_key="root", secret_key="the secret of root")
        where[0] = "192.0.2.2"
        await browser.post("/sign-in", 401, access_key="admin", secret_key="a guess")
        where[0] = "192.0.2.1"
        browser.sessions._clock = lambda: 1000.0 + TRIES_S / TRIES + 1
        await browser.post("/sign-in", 401, access_key="admin", secret_key="a guess")
        await browser.post("/sign-in", 429, access_key="admin", secret_key="a guess")


def test_guesses_at_once_are_no_way_around_the_limit() -> None:
    """A sign-in counts from its start; one that succeeds, or that nobody answers, is taken back
    with those before it."""
    guesses = Guesses()
    for _ in range(TRIES):
        guesses.begin("root", "192.0.2.1", 5.0)
    with pytest.raises(TooMany):
        guesses.begin("root", "192.0.2.1", 5.0)
    guesses.answered("root", "192.0.2.1")
    guesses.begin("root", "192.0.2.1", 5.0)


def test_guessers_are_counted_by_network_and_in_bounded_memory() -> None:
    """The addresses of one IPv6 subscriber are one place. The oldest are forgotten first."""
    guesses = Guesses()
    for number in range(TRIES):
        guesses.begin("root", f"2001:db8::{number:x}", 0.0)
    with pytest.raises(TooMany):
        guesses.begin("root", "2001:db8::ffff", 0.0)
    for elsewhere in ("2001:db8:0:1::1", "::ffff:192.0.2.1", "::ffff:192.0.2.2", "fe80::1%eth0"):
        guesses.begin("root", elsewhere, 0.0)
    assert _place("::ffff:192.0.2.1") == "192.0.2.1"
    for number in range(2 * GUESSERS_MAX):
        guesses.begin(f"u{number}", "192.0.2.1", 0.0)
        if not number % 100:
            with pytest.raises(TooMany):
                guesses.begin("root", "2001:db8::1", 0.0)
    assert len(guesses._left) == GUESSERS_MAX


FORM = "application/x-www-form-urlencoded"
HOSTILE = [
    *(
        (f"GET / HTTP/1.1\r\nHost: {host}\r\n", b"")
        for host in ("[", "[::1", "::1", "a b", "", "h:x", "h:99999", "[n1]", "user@127.0.0.1")
    ),
    *(
        (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n", body)
        for path in ("/sign-in", "/do/create-topic", "/sign-out")
        for kind, body in (
            (f"{FORM}; charset=utf-77", b"a=b"),
            (f"{FORM}; charset=utf-16", b"a"),
            (f"{FORM}; charset=idna", b"a=b"),
            (f"{FORM}; charset=", b"a=\xff"),
            (FORM, b"a=\xff\xfe"),
            ("multipart/form-data", b"x"),
            (
                "multipart/form-data; boundary=b",
                b"--b\r\nContent-Transfer-Encoding: x\r\n\r\nx\r\n--b--",
            ),
            (f"{FORM}\r\nContent-Encoding: gzip", b"no gzip"),
            (f"{FORM}\r\nContent-Encoding: deflate", b"\x00"),
            (f"{FORM}\r\nTransfer-Encoding: chunked", b"zz\r\n"),
            (f"{FORM}\r\nOrigin: http://[", b"a=b"),
            ("\x80", b"a=b"),
            ("", b"a=b"),
        )
    ),
    (
        "POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + FORM + "\r\n",
        b"secret_key=s&access_key=" + b"k" * 300,
    ),
]


@pytest.mark.parametrize(("head", "body"), HOSTILE)
async def test_malformed_requests_are_refused_without_a_traceback(
    head: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Before and after a sign-in: the log holds the record of changes, which nobody else may
    fill."""
    async with signed_in() as browser:
        for cookie in ("", f"Cookie: {COOKIE}={browser.session.id}\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", browser.client.port)
            size = "" if "chunked" in head else f"Content-Length: {len(body)}\r\n"
            writer.write(f"{head}{cookie}Connection: close\r\n{size}\r\n".encode("latin-1") + body)
            status = int((await reader.readline()).split()[1])
            writer.close()
            assert status in (400, 401, 403, 421), (status, head)
        assert not caplog.records


async def test_a_form_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who sends the head of a form holds a task and a connection."""
    monkeypatch.setattr(application, "FORM_WITHIN_S", 0.05)

    async with signed_in() as browser:
        reader, writer = await asyncio.open_connection("127.0.0.1", browser.client.port)
        writer.write(
            f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {FORM}\r\nContent-Length:"
            " 9\r\n\r\na".encode()
        )
        async with asyncio.timeout(20):
            assert (await reader.readline()).split()[1] == b"408"
        writer.close()


@pytest.mark.parametrize(
    ("limits", "passed"),
    [(Limits(10, 1000), 11.0), (Limits(1000, 10), 11.0)],
    ids=["idle", "absolute"],
)
async def test_sessions_end(limits: Limits, passed: float) -> None:
    """After either limit the session is gone, with its connection; what an open page asks for by
    itself does not keep it alive."""
    async with signed_in(limits=limits) as browser:
        now = browser.session.used
        browser.sessions._clock = lambda: now + passed / 2
        assert await browser.get("/", 200, **{"HX-Request": "true"})
        browser.sessions._clock = lambda: now + passed
        assert "ended" in await browser.get("/", 401, **{"HX-Request": "true"})
        assert "ended" in await browser.get("/events", 401)
        await browser.get("/", 303)
        assert not browser.sessions._known


async def test_use_keeps_a_session_alive() -> None:
    """A page that the user opened starts the idle time again."""
    async with signed_in(limits=Limits(10, 1000)) as browser:
        now = browser.session.used
        for step in (6, 12, 18):
            browser.sessions._clock = lambda step=step: now + step
            await browser.get("/")


async def test_csrf_is_refused() -> None:
    """A form without the token, with that of another session, or from another site changes
    nothing."""
    async with browsing() as browser:
        browser.node.answers("DeleteTopic", pb.DeleteTopicResponse(status=admin_status()))
        token = await browser.token()
        await browser.post("/do/delete-topic", 403, topic="orders")
        await browser.post("/do/delete-topic", 403, topic="orders", csrf="x" * len(token))
        await browser.post(
            "/do/delete-topic",
            403,
            topic="orders",
            csrf=token,
            headers={"Origin": "http://evil.example"},
        )
        await browser.get("/do/delete-topic?topic=orders", 405)
        assert "DeleteTopic" not in browser.node.requests
        await browser.post("/do/delete-topic", 303, topic="orders", csrf=token)
        assert [request.topic.name for request in browser.node.requests["DeleteTopic"]] == [
            "orders"
        ]
        assert "topic orders was deleted" in await browser.get("/topics")
        assert "topic orders was deleted" not in await browser.get("/topics")


async def test_a_forbidden_change_shows_the_refusal_and_is_recorded() -> None:
    """The cluster's own words reach the user, and the record says who tried what."""
    async with signed_in() as browser:
        refused = admin_status(
            int(Code.FORBIDDEN), "user root has no permission admin:topic:orders"
        )
        browser.node.answers("DeleteTopic", pb.DeleteTopicResponse(status=refused))
        page = await browser.post(
            "/do/delete-topic", 403, topic="orders", csrf=await browser.token()
        )
        assert "user root has no permission admin:topic:orders" in page
        last = browser.records[-1]
        assert (last["user"], last["change"], last["values"], last["outcome"]) == (
            "root",
            "delete-topic",
            {"topic": "orders"},
            "refused",
        )


async def test_no_secret_is_in_an_address_or_a_record() -> None:
    """The secret of a new user is asked for only where it is confirmed."""
    async with browsing() as browser:
        browser.node.answers(
            "CreateUser", pb.CreateUserResponse(status=admin_status(), user=pb.UserInfo(name="bob"))
        )
        assert 'type="password"' not in await browser.get("/form/create-user")
        assert 'type="password"' in await browser.get("/confirm/create-user?user=bob")
        await browser.post(
            "/do/create-user", user="bob", secret="the secret of bob", csrf=await browser.token()
        )
        (request,) = browser.node.requests["CreateUser"]
        assert request.secret_key == "the secret of bob" and "the secret of bob" not in str(
            browser.records
        )


@pytest.mark.parametrize("answered", [True, False])
async def test_a_new_secret_is_shown_once_and_never_recorded(answered: bool) -> None:
    """Made by the console and shown by the next page alone; also if the outcome is unknown, because
    it may be in force."""
    async with browsing() as browser:
        changed = pb.ChangeUserResponse(
            status=admin_status(), user=pb.UserInfo(name="bob", secrets=2)
        )
        browser.node.answers("ChangeUser", changed if answered else grpc.StatusCode.UNAVAILABLE)
        assert "The former one stays valid until it is ended." in await browser.get(
            "/confirm/rotate-user?user=bob"
        )
        await browser.post("/do/rotate-user", user="bob", csrf=await browser.token())
        secret = browser.node.requests["ChangeUser"][0].secret_key
        assert len(secret) >= 32 and not browser.node.requests["ChangeUser"][0].end_former_secret
        assert {request.secret_key for request in browser.node.requests["ChangeUser"]} == {secret}
        page = await browser.get("/users")
        assert f"Secret key, shown only now: {secret}" in page
        assert (
            "2 are valid until the former one is ended"
            if answered
            else "it is not known whether bob has the new secret"
        ) in page
        assert secret not in await browser.get("/users") and secret not in str(browser.records)
        assert browser.records[-1]["outcome"] == ("done" if answered else "unknown")


async def test_the_former_secret_ends_when_it_is_confirmed() -> None:
    """Only where there is one."""
    async with browsing() as browser:
        users = [
            pb.UserInfo(name="bob", secrets=2),
            pb.UserInfo(name="eve", secrets=1),
            pb.UserInfo(name="ops", role=True),
        ]
        browser.node.answers("ListUsers", pb.ListUsersResponse(status=admin_status(), users=users))
        browser.node.answers(
            "ChangeUser", pb.ChangeUserResponse(status=admin_status(), user=users[1])
        )
        page = await browser.get("/users")
        assert page.count("End former secret of") == 1 and page.count("New secret of") == 2
        await browser.post("/do/end-former-secret", user="bob", csrf=await browser.token())
        assert browser.node.requests["ChangeUser"] == [
            pb.ChangeUserRequest(name="bob", end_former_secret=True)
        ]


async def test_values_are_checked_before_they_are_sent() -> None:
    """A missing value and a wrong choice lead back to the form with the reason."""
    async with browsing() as browser:
        assert "a value is needed" in await browser.get("/confirm/delete-topic?topic=", 400)
        assert "not a choice" in await browser.get(
            "/confirm/create-topic?topic=t&kind=wrong&permission=rw", 400
        )
        page = await browser.post(
            "/do/skip",
            400,
            group="g",
            topic="t",
            queue="one",
            count="0",
            csrf=await browser.token(),
        )
        assert "is not a number" in page
