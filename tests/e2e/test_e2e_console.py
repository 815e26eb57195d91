"""The console in a real browser: Chromium on the pages of three nodes with TLS and authentication.

Needs Debian's chromium and the package playwright; axe-core comes from npm. REWRITE=1 renews the
pictures of docs/console.md.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.streams.native_gauges import anonymous_mib
from bench.tools import report
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.service import MESSAGING
from ledgermq.client.messages.receiving import Receiver
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.signature import Credentials
from tests import cluster as real
from tests.e2e.command_line import LEDGERMQ, CommandLine, environment
from tests.soak.memory import medians_by_quarter

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(420)]

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is not installed (Debian package chromium)", allow_module_level=True)
pytest.importorskip("jinja2")
playwright = pytest.importorskip("playwright.sync_api")

ROOT = ("root", "the secret of the first administrator")
ALICE = ("alice", "the secret of alice, a producer")
SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
SETTINGS = {"delivery": {"min_invisible_ms": 100}, "access": {"authentication": "required"}}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
AXE = "axe-core@4.14.1"
PAGES = (
    *("/", "/nodes", "/node?name=n1", "/broker-groups", "/broker-group?name=g1", "/rebalance"),
    *("/topics", "/topic?name=orders", "/messages?topic=orders"),
    *(
        "/groups",
        "/group?name=billing",
        "/dead-letters",
        "/dead-letters?group=billing",
        "/waiting?topic=orders",
        "/clients",
        "/users",
    ),
    *(
        "/why",
        "/audit?group=g1",
        "/verdict?number=1",
        "/confirm/run-audit",
        "/form/create-topic",
        "/confirm/delete-topic?topic=orders",
    ),
    *("/form/move-replica?broker_group=g1&from=n1", "/confirm/rotate-user?user=alice"),
)
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images" / "console"
PICTURE_MAX_BYTES = 60_000
WAIT_MS = 60_000
BODY = 100_000
SOAK_S = float(os.environ.get("SOAK_SECONDS", "7200"))
KILL_EVERY_S = 600.0
LOOK_EVERY_S = 10.0
LOAD = ("--topic", "busy", "--rate", "100")
GROWTH_MIB = {"node": 20.0, "console": 5.0}
"""Between the second and the last quarter of the soak: far less than a leak of one kilobyte a
message, or an update of a page."""


@dataclass
class Surf:
    """A browser on a console.

    `pid`: the console's process. `requests`: every address that the browser asked. `complaints`:
    what it said on its own console.
    """

    url: str
    pid: int
    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def sign_in(self, keys: tuple[str, str]) -> None:
        self.go("/sign-in")
        self.page.fill("#access_key", keys[0])
        self.page.fill("#secret_key", keys[1])
        self.page.click("button")

    def sees(self, text: str) -> None:
        """Wait until the page shows the text, without being loaded again."""
        playwright.expect(self.page.locator("main")).to_contain_text(text, timeout=WAIT_MS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, two users, and a topic whose only message is a script that a consumer group has
    given up."""
    with real.running(tmp_path_factory.mktemp("console"), extra=SETTINGS, tls=True) as found:
        secret = found.directory / "root.secret"
        secret.write_text(ROOT[1])
        CommandLine.of(found).ok(
            "user",
            "create",
            ROOT[0],
            "--admin",
            "--secret-file",
            secret,
            "--cluster-secret",
            found.directory / "secret",
        )
        secret.write_text(ALICE[1])
        cli = of(found)
        cli.ok("user", "create", ALICE[0], "--secret-file", secret, "--publish", "orders")
        secret.unlink()
        cli.ok("topic", "create", "orders", "--queues", "4")
        cli.ok("group", "create", "billing", "--max-attempts", "1")
        cli.ok("send", "--topic", "orders", "--body", SCRIPT, "--key", "<b>key</b>", "--tag", "new")
        give_up(found)
        yield found


def of(cluster: LocalCluster) -> CommandLine:
    return CommandLine(cluster.endpoints, "--tls", "--ca", str(cluster.ca_file), keys=ROOT)


def give_up(cluster: LocalCluster) -> None:
    """Receive one message as the group `billing`, and forward it to the dead-letter topic."""
    assert cluster.ca_file is not None
    wire: dict[str, Any] = {
        "credentials": Credentials(*ROOT),
        "tls": True,
        "ca": cluster.ca_file.read_bytes(),
    }
    with (
        Connection(cluster.endpoints, timeout_s=60, **wire) as connection,
        Receiver(connection, "orders", "billing") as receiver,
    ):
        (message,) = real.wait_for(lambda: receiver.receive(1), 60, "the message")
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            topic=message.topic,
            group=pb.Resource(name="billing"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        connection.ask(
            MESSAGING + "ForwardMessageToDeadLetterQueue",
            request,
            pb.ForwardMessageToDeadLetterQueueResponse,
        )


@contextmanager
def console(cluster: LocalCluster, *more: str) -> Iterator[tuple[str, int]]:
    """The address and the process of a console of the cluster; it must end cleanly."""
    options = ["--listen", "127.0.0.1:0", "--tls", "--ca", str(cluster.ca_file), *more]
    child = subprocess.Popen(
        [*LEDGERMQ, "console", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(cluster.endpoints),
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        assert line.startswith("ready: console=http://127.0.0.1:"), (line, child.stderr)
        yield line.removeprefix("ready: console=").rstrip("/"), child.pid
        child.terminate()
        _, said = child.communicate(timeout=30)
        assert child.returncode == 0 and "Traceback" not in said, said
        assert ROOT[1] not in said
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()


@pytest.fixture
def surf(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Surf]:
    """A browser that looks at a console. Afterwards: no request left the address, and the policy
    had nothing to forbid."""
    with (
        console(cluster, *getattr(request, "param", ())) as (url, pid),
        playwright.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_context(viewport={"width": 1100, "height": 820}).new_page()
        found = Surf(url, pid, page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on(
            "console",
            lambda message: (
                found.complaints.append(message.text) if message.type == "error" else None
            ),
        )
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        yield found
        browser.close()
        assert found.requests and not [
            one for one in found.requests if not one.startswith(url + "/")
        ]
        assert not [
            one for one in found.complaints if "Content Security Policy" in one or "Error:" in one
        ]


def picture(surf: Surf, name: str) -> None:
    """With REWRITE, keep a picture of the page for the documentation."""
    content = surf.page.screenshot()
    if os.environ.get("REWRITE"):
        from PIL import Image

        PICTURES.mkdir(parents=True, exist_ok=True)
        small = io.BytesIO()
        Image.open(io.BytesIO(content)).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
            small, "PNG", optimize=True
        )
        assert len(small.getvalue()) <= PICTURE_MAX_BYTES
        (PICTURES / f"{name}.png").write_bytes(small.getvalue())


def test_a_leader_dies_while_the_page_is_open(surf: Surf, cluster: LocalCluster) -> None:
    """The overview keeps its data, says what is missing, and shows the new leader, all without
    being loaded again."""
    surf.sign_in(ROOT)
    surf.sees("3 of 3 nodes up")
    former = next(
        group["leader"]
        for group in of(cluster).ok("status", "--json").json["groups"]
        if group["group"] == "g1"
    )
    loads = surf.page.evaluate("performance.timeOrigin")
    try:
        cluster.kill(former)
        surf.sees(f"node {former} is down")
        row = surf.page.locator("tr", has=surf.page.get_by_role("link", name="g1", exact=True))
        others = "|".join(sorted(set(cluster.nodes) - {former}))
        playwright.expect(row).to_contain_text(re.compile(others), timeout=WAIT_MS)
        picture(surf, "overview")
        assert surf.page.evaluate("performance.timeOrigin") == loads
    finally:
        cluster.start(former)
        cluster.wait_ready()
    surf.sees("3 of 3 nodes up")


def test_a_script_stays_text_and_a_dead_letter_is_resent(surf: Surf, cluster: LocalCluster) -> None:
    """The body is shown as it is and runs nowhere; the letter is resent after a confirmation, and
    is delivered."""
    surf.sign_in(ROOT)
    surf.go("/messages?topic=orders")
    surf.sees("<script>document.title")
    surf.page.locator("td a code").first.click()
    surf.sees("Copies on the replicas")
    surf.sees("present")
    assert surf.page.locator("pre").inner_text() == SCRIPT and "taken" not in surf.page.title()
    picture(surf, "message")
    surf.go("/dead-letters?group=billing")
    surf.page.get_by_role("link", name="Resend", exact=False).last.click()
    surf.sees("delivered to billing again")
    picture(surf, "confirm")
    surf.page.get_by_role("button", name="Resend dead letters").click()
    surf.sees("billing: 1 resent")
    assert "taken" not in surf.page.title()
    assert (
        of(cluster)
        .ok("consume", "--topic", "orders", "--group", "billing", "--max", "1")
        .out.strip()
        == SCRIPT
    )


def test_a_forbidden_user_sees_the_refusal(surf: Surf) -> None:
    """A producer may neither look nor change; the cluster's words are shown. After signing out
    nothing is shown."""
    surf.sign_in(ALICE)
    surf.sees("the state of the cluster: not loaded.")
    surf.go("/confirm/delete-topic?topic=orders")
    surf.page.get_by_role("button", name="Delete topic").click()
    surf.sees("admin on topic orders")
    surf.page.get_by_role("button", name="Sign out").click()
    surf.go("/topics")
    assert surf.page.url.endswith("/sign-in")
    surf.sign_in((ROOT[0], "a guess"))
    surf.sees("signature")


def test_audit_map_shows_sealed_equal_files(surf: Surf, cluster: LocalCluster) -> None:
    """Once log files are full, the map says up to where the replicas are equal, and what was never
    compared."""
    # Other tests look at the first message of `orders`.
    of(cluster).ok("topic", "create", "filler")
    of(cluster).send_lines("filler", ["x" * BODY] * (3 * real.SMALL_LOG_FILE_BYTES // BODY))
    surf.sign_in(ROOT)
    surf.go("/audit?group=g1")
    surf.sees("all running replicas are equal to what a majority sealed, up to position")
    surf.sees("were never compared")
    assert surf.page.locator("svg.map rect.equal").count() >= len(cluster.nodes)
    assert surf.page.locator("svg.map rect.differs, svg.map rect.missing").count() == 0
    surf.page.locator("svg.map").last.scroll_into_view_if_needed()
    picture(surf, "audit")


def test_a_node_shows_its_process_its_log_and_its_configuration_without_secrets(
    surf: Surf, cluster: LocalCluster
) -> None:
    """Asked at another node than the one that is shown; the cluster secret is not on the page."""
    surf.sign_in(ROOT)
    for node in cluster.nodes:
        surf.go(f"/node?name={node}")
        surf.sees("Resident memory")
        surf.sees('"event": "serving"')
        surf.sees(f'"node": "{node}"')
        assert (cluster.directory / "secret").read_text().strip() not in surf.page.content()
    surf.go("/nodes")
    surf.sees("MiB")
    assert surf.page.locator("tbody tr", has_text="unknown").count() == 0


def test_a_new_secret_is_shown_once(surf: Surf) -> None:
    """The user signs in with it, and with the former one until that is ended."""
    surf.sign_in(ROOT)
    surf.go("/users")
    surf.page.click("text=New secret of alice")
    surf.page.click("main button")
    surf.sees("Secret key, shown only now: ")
    notice = surf.page.locator(".notices li", has_text="Secret key").inner_text()
    surf.go("/users")
    assert surf.page.locator(".notices").count() == 0
    for secret in (notice.rpartition(" ")[2], ALICE[1]):
        surf.sign_in((ALICE[0], secret))
        surf.page.wait_for_url(lambda url: not url.endswith("/sign-in"), timeout=WAIT_MS)


@pytest.mark.parametrize("surf", [("--idle", "3s")], indirect=True)
def test_an_ended_session_leads_to_the_sign_in(surf: Surf) -> None:
    """An open page does not keep its session alive, and does not show old data for ever."""
    surf.sign_in(ROOT)
    surf.sees("3 of 3 nodes up")
    surf.page.wait_for_url("**/sign-in", timeout=WAIT_MS)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program that looks for what people with other senses cannot use."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    directory = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        [npm, "pack", AXE, "--silent"], cwd=directory, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        pytest.skip(f"npm cannot fetch {AXE}: {done.stderr[-200:]}")
    with tarfile.open(next(directory.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def test_an_audit_is_run_and_its_report_is_read(surf: Surf, axe: str) -> None:
    """With the keyboard alone; the audit has the console's TLS settings and the keys of the
    user."""
    surf.sign_in(ROOT)
    surf.go("/audit?group=g1")
    surf.sees("No audit has ended since this console was started.")
    surf.page.get_by_role("link", name="Run an audit").press("Enter")
    surf.sees("an independent decoder reads every byte")
    surf.page.get_by_role("button", name="Run an audit").press("Enter")
    surf.sees("an audit was started")
    surf.sees("PASS")
    surf.go("/audit?group=g1")
    picture(surf, "verdicts")
    colour = surf.page.locator("strong.verdict").evaluate(
        "one => getComputedStyle(one).borderLeftColor"
    )
    assert colour == "rgb(46, 125, 50)"
    surf.page.get_by_role("link", name="Report 1").press("Enter")
    surf.sees("PASS 0 findings.")
    surf.sees("every byte, both CRCs and the chain")
    surf.page.evaluate(axe)
    assert not surf.page.evaluate("axe.run().then(result => result.violations)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_usable_by_all(surf: Surf, axe: str, scheme: str) -> None:
    """axe-core finds nothing, on light and dark pages, with pictures on them."""
    surf.page.emulate_media(color_scheme=scheme)
    found = {}
    for path in ("/sign-in", *PAGES):
        if path == PAGES[0]:
            surf.sign_in(ROOT)
            surf.page.wait_for_selector(".charts canvas", timeout=WAIT_MS)
        else:
            surf.go(path)
        surf.page.evaluate(axe)
        for finding in surf.page.evaluate("axe.run().then(result => result.violations)"):
            found[path, finding["id"]] = [node["html"][:200] for node in finding["nodes"]][:3]
        name = {"/group?name=billing": "group", "/broker-group?name=g1": "broker-group"}.get(path)
        if name and scheme == "light":
            picture(surf, name)
    assert not found, found


def test_console_is_usable_by_keyboard(surf: Surf) -> None:
    """The first stop leads past the menu, the focus stays on its link while the page updates, and
    updates can be paused."""
    surf.sign_in(ROOT)
    # The click does not wait for the page behind the sign-in, and a key on the page before it would
    # be lost.
    surf.sees("3 of 3 nodes up")
    surf.page.keyboard.press("Tab")
    assert surf.page.evaluate("document.activeElement.className") == "skip"
    link = surf.page.get_by_role("link", name="g1", exact=True)
    link.focus()
    with surf.page.expect_response(
        lambda response: response.request.headers.get("hx-request") == "true", timeout=WAIT_MS
    ):
        pass
    playwright.expect(link).to_be_focused()
    surf.page.get_by_role("button", name="Pause updates").press("Enter")
    playwright.expect(surf.page.get_by_role("button", name="Pause updates")).to_have_attribute(
        "aria-pressed", "true"
    )


def loads(cluster: LocalCluster, stack: ExitStack, seconds: float) -> None:
    """A producer and a consumer for this time. Both live through a change of the leader."""
    duration = f"{seconds:.0f}s"
    for arguments in (["send", *LOAD], ["receive", "--topic", "busy", "--group", "workers"]):
        load = of(cluster).start("bench", *arguments, "--duration", duration)
        stack.callback(load.communicate)
        stack.callback(load.kill)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1800)
@pytest.mark.parametrize("surf", [("--idle", "24h", "--session", "24h")], indirect=True)
def test_two_hours_on_a_busy_cluster(surf: Surf, cluster: LocalCluster) -> None:
    """Every ten minutes the leader is killed. The memory of the console and of the nodes stays
    flat, and a change of the leader makes no more requests than a page makes anyway. Open pages:
    overview, one topic, one consumer group."""
    of(cluster).ok("topic", "create", "busy", "--queues", "8")
    of(cluster).ok("group", "create", "workers")
    surf.sign_in(ROOT)
    for path in ("/topic?name=busy", "/group?name=workers"):
        other = surf.page.context.new_page()
        other.on("request", lambda request: surf.requests.append(request.url))
        other.goto(surf.url + path)
    surf.sees("3 of 3 nodes up")
    samples: dict[str, list[float]] = {name: [] for name in ("console", *cluster.nodes)}
    asked: list[int] = []
    kills = 0
    end = time.monotonic() + SOAK_S
    while time.monotonic() < end:
        with ExitStack() as stack:
            loads(cluster, stack, KILL_EVERY_S)
            for look in range(round(KILL_EVERY_S / LOOK_EVERY_S)):
                seen = len(surf.requests)
                surf.page.wait_for_timeout(LOOK_EVERY_S * 1000)
                asked.append(len(surf.requests) - seen)
                pids = {
                    "console": surf.pid,
                    **{
                        node: child.process.pid
                        for node, child in cluster.children.items()
                        if child.exit_code is None
                    },
                }
                for name, pid in pids.items():
                    samples[name].append(anonymous_mib(pid))
                if look == 20:
                    former = next(
                        group["leader"]
                        for group in of(cluster).ok("status", "--json").json["groups"]
                        if group["group"] == "g1"
                    )
                    cluster.kill(former)
                    kills += 1
                elif look == 30:
                    cluster.start(former)
            cluster.wait_ready()
            surf.sees("3 of 3 nodes up")
    usual = statistics.median(asked)
    report.say(
        f"{kills} leaders killed; requests of three pages in {LOOK_EVERY_S:g} s: median {usual:g},"
        f" most {max(asked)}"
    )
    for name, found in samples.items():
        quarters = medians_by_quarter(found)
        report.say(
            f"{name}: RssAnon at most {max(found):.0f} MiB, by quarter"
            f" {', '.join(f'{one:.1f}' for one in quarters)}"
        )
    assert kills and 0 < max(asked) <= 2 * usual
    for name, found in samples.items():
        second, last = medians_by_quarter(found)[1::2]
        assert last - second <= GROWTH_MIB.get(name, GROWTH_MIB["node"]), (name, second, last)
