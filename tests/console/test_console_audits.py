"""Audits that are started from a page: as whom they run, one at a time, what is left of them, and
what the pages show of their verdicts.

The program that is run as an audit is a script; tests/e2e/test_e2e_console.py runs the real one.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")

from ledgermq.client.console import auditing
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status
from tests.console.console_client import SCRIPT, Browser, browsing, cluster_status
from tests.console.test_console_guards import signed_in

SECRET = "the secret of root"
ABOUT = """
import json, os, signal, sys
about = {"arguments": sys.argv, "environment": dict(os.environ), "pid": os.getpid(), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}
print("audit:  45% of 8.0 MiB", file=sys.stderr, flush=True)
"""
WAITS = ABOUT + "open(PIPE, 'w').write(json.dumps(about))\nsignal.pause()\n"
DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAITS
FINDING = {
    "class": SCRIPT,
    "replica": SCRIPT,
    "group": SCRIPT,
    "file": SCRIPT,
    "index": 7,
    "byte_from": 1,
    "byte_to": 9,
    "rule": SCRIPT,
}
JUDGES = """
print(SCRIPT)
sys.stdout.flush()
place = sys.argv[sys.argv.index("--findings") + 1]
os.mkdir(place)
reader = {"replica": SCRIPT, "group": "g1", "verdict": "FAIL", "entries": 5, "bytes": 99, "checked": [SCRIPT]}
report = {"verdict": VERDICT, "reasons": [SCRIPT], "compared_to_index": 4711, "replicas": [reader], "findings": [FINDING] * COUNT}
json.dump(report, open(place + "/verdict.json", "w"))
row = {**FINDING, "fails": True, "proof": SCRIPT, "meaning": SCRIPT, "next_step": SCRIPT}
open(place + "/findings.jsonl", "w").write((json.dumps(row) + "\\n") * COUNT)
open(ABOUT_FILE, "w").write(json.dumps(about))
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where audits make their directories."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def script(text: str, **names: Any) -> tuple[str, ...]:
    """A program with these names in it."""
    return (
        sys.executable,
        "-c",
        "".join(f"{name} = {value!r}\n" for name, value in names.items()) + text,
    )


def judging(place: Path, verdict: str = "FAIL", count: int = 1) -> tuple[str, ...]:
    return script(
        ABOUT + JUDGES,
        ABOUT_FILE=str(place / "about"),
        VERDICT=verdict,
        COUNT=count,
        SCRIPT=SCRIPT,
        FINDING=FINDING,
    )


async def run_one(browser: Browser) -> None:
    await browser.post("/do/run-audit", csrf=await browser.token())
    await browser.audit_ended()


async def its_word(pipe: Path) -> Any:
    """What the process says about itself, as soon as it runs."""
    return json.loads(await asyncio.to_thread(pipe.read_text))


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_console_audit_runs_as_its_user_and_leaves_only_its_verdict(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's keys are in its environment, and no other keys; the secret is nowhere else. What
    it wrote is text on the pages."""
    for name in ("SECRET_KEY", "ACCESS_KEY", "TLS_CA", "CONTEXT"):
        monkeypatch.setenv(f"LEDGERMQ_{name}", "of the console")

    async with signed_in(audit=judging(tmp_path)) as browser:
        assert "No audit has ended" in await browser.get("/audit")
        assert "The cluster keeps running." in await browser.get("/confirm/run-audit")
        assert browser.audits.running is None
        await run_one(browser)
        about = json.loads((tmp_path / "about").read_text())
        arguments = about["arguments"]
        assert arguments[1:3] == ["--endpoints", browser.node.endpoint] and SECRET not in str(
            arguments
        )
        own = {
            name: value
            for name, value in about["environment"].items()
            if name.startswith("LEDGERMQ_") and name != "LEDGERMQ_PURE"
        }
        assert own == {"LEDGERMQ_ACCESS_KEY": "root", "LEDGERMQ_SECRET_KEY": SECRET}
        assert not list(temporary.iterdir()) and gone(about["pid"])
        page = await browser.get("/audit")
        assert "an audit was started" in page and "4711" in page
        assert re.search(r'<td>root</td>.*<strong class="verdict CRITICAL">FAIL</strong>', page)
        report = await browser.get("/verdict?number=1")
        text = html.escape(SCRIPT).replace("&quot;", "&#34;")
        assert report.count(text) == 11 and SCRIPT not in report and "1 finding." in report
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", report)
        change, ended = browser.records[-2:]
        assert (change["event"], change["change"], change["user"], change["outcome"]) == (
            "change",
            "run-audit",
            "root",
            "done",
        )
        assert (ended["event"], ended["user"], ended["verdict"], ended["findings"]) == (
            "audit",
            "root",
            "FAIL",
            1,
        )
        assert SECRET not in str(browser.records) + page + report


async def test_one_audit_runs_at_a_time(pipe: Path) -> None:
    """A second request says who runs one, and since when. The process has a low priority, and its
    progress is shown."""
    async with signed_in(audit=script(WAITS, PIPE=str(pipe))) as browser:
        await browser.post("/do/run-audit", csrf=await browser.token())
        about = await its_word(pipe)
        page = await browser.get("/audit")
        assert (
            "An audit of root has been running since 20" in page
            and "audit:  45% of 8.0 MiB" in page
            and "Run an audit" not in page
        )
        refused = await browser.post("/do/run-audit", 409, csrf=await browser.token())
        assert re.search(
            r"an audit of root has been running since 20[-0-9]+ [:0-9]+ UTC; wait for its verdict",
            refused,
        )
        assert browser.records[-1]["outcome"] == "refused"
        assert os.getpriority(os.PRIO_PROCESS, about["pid"]) == min(
            19, os.getpriority(os.PRIO_PROCESS, 0) + auditing.NICENESS
        )
        os.kill(about["pid"], 9)
        await browser.audit_ended()
        page = await browser.get("/audit")
        assert "NO VERDICT" in page and "Run an audit" in page and "Report 1" not in page
        await browser.get("/verdict?number=1")


async def test_user_without_admin_rights_neither_audits_nor_sees_verdicts(tmp_path: Path) -> None:
    """The cluster decides; its refusal is shown and recorded. Verdicts of others are for those who
    could run an audit."""
    async with signed_in(audit=judging(tmp_path)) as browser:
        await run_one(browser)
        refused = admin_status(int(Code.FORBIDDEN), "user alice needs admin on cluster *")
        browser.node.answers("ClusterStatus", pb.ClusterStatusResponse(status=refused))
        await browser.post("/sign-in", access_key="alice", secret_key="the secret of alice")
        page = await browser.post("/do/run-audit", 403, csrf=await browser.token())
        assert "user alice needs admin on cluster *" in page and browser.audits.running is None
        assert (browser.records[-1]["outcome"], browser.records[-1]["user"]) == ("refused", "alice")
        for path in ("/audit", "/verdict?number=1"):
            page = await browser.get(path)
            assert "4711" not in page and "user alice needs admin" in page


async def test_a_right_that_is_taken_away_hides_the_verdicts(tmp_path: Path) -> None:
    """Also from one whose page still has the state of the cluster from before."""
    async with signed_in(audit=judging(tmp_path)) as browser:
        await run_one(browser)
        assert "4711" in await browser.get("/audit")
        browser.node.answers(
            "ClusterStatus",
            pb.ClusterStatusResponse(status=admin_status(int(Code.FORBIDDEN), "no longer")),
        )
        browser.session.watch.forget()
        assert "4711" not in await browser.get("/audit") and "4711" not in await browser.get(
            "/verdict?number=1"
        )
        browser.node.answers("ClusterStatus", cluster_status())
        browser.session.watch.forget()
        assert "4711" in await browser.get("/verdict?number=1")


@pytest.mark.parametrize("text", [WAITS, DEAF], ids=["interrupted", "killed"])
async def test_a_console_that_ends_leaves_no_process_and_no_directory(
    text: str, pipe: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that does not listen to the interrupt is killed."""
    monkeypatch.setattr(auditing, "ENDING_S", 60.0 if text == WAITS else 0.1)

    async with browsing(audit=script(text, PIPE=str(pipe))) as browser:
        await browser.post("/do/run-audit", csrf=await browser.token())
        pid = (await its_word(pipe))["pid"]
        assert list(temporary.iterdir())
        await browser.client.close()
        assert gone(pid) and not list(temporary.iterdir())
        assert [record["error"] for record in browser.records if record["event"] == "audit"] == [
            "ended with the console"
        ]


async def test_an_audit_that_takes_too_long_is_ended(temporary: Path) -> None:
    """It leaves nothing, and the page says why there is no verdict."""
    async with browsing(audit=script("import signal\nsignal.pause()"), longest_s=0.2) as browser:
        await run_one(browser)
        page = await browser.get("/audit")
        assert "NO VERDICT" in page and "it took longer than 200 ms and was ended" in page
        assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (
            script(
                "import sys\nsys.exit('a line\\nerror: this command needs pyarrow; pip install"
                " ledgermq[audit]')"
            ),
            '<td colspan="3">this command needs pyarrow; pip install ledgermq[audit]</td>',
        ),
        (("false",), "its process ended with status 1"),
        (("/no/such/program",), "the audit cannot run here ([Errno 2]"),
    ],
    ids=["extra", "silent", "program"],
)
async def test_an_audit_without_a_verdict_says_why(program: tuple[str, ...], shown: str) -> None:
    """Such as the extra that is missing. The record has the reason, too."""
    async with browsing(audit=program) as browser:
        await run_one(browser)
        page = await browser.get("/audit")
        assert '<strong class="verdict UNKNOWN">NO VERDICT</strong>' in page and shown in page
        assert browser.records[-1]["error"] in shown or browser.records[-1]["error"].startswith(
            shown
        )


@pytest.mark.parametrize(("verdict", "colour"), [*auditing.VERDICTS.items()])
async def test_a_verdict_is_a_word_and_a_colour(tmp_path: Path, verdict: str, colour: str) -> None:
    """And a report shows a bounded number of findings."""
    async with browsing(audit=judging(tmp_path, verdict, 201)) as browser:
        await run_one(browser)
        word = f'<strong class="verdict {colour}">{verdict}</strong>'
        assert word in await browser.get("/audit")
        report = await browser.get("/verdict?number=1")
        assert word in report and f"The first {auditing.FINDINGS_SHOWN} of 201." in report
        assert report.count("1 to 9") == auditing.FINDINGS_SHOWN


async def test_the_last_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, and a bounded number of them."""
    async with browsing(audit=("false",)) as browser:
        for _ in range(auditing.KEPT + 1):
            await run_one(browser)
        assert [run.number for run in browser.audits.ended] == list(range(auditing.KEPT + 1, 1, -1))
        page = await browser.get("/audit")
        assert (
            page.count("NO VERDICT") == auditing.KEPT
            and f"the last {auditing.KEPT} verdicts in memory" in page
        )
