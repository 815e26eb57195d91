"""The pages of the console: what they show, that nothing in them is markup, what they cost, and
what they show while nobody answers."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import threading
from typing import Any

import grpc
import pytest

pytest.importorskip("jinja2")

from ledgermq.client.console import actions, watching
from ledgermq.client.console.application import PAGES
from ledgermq.client.console.assets import FOLDER, TYPES
from ledgermq.client.console.digests import DIFFERS, EQUAL, MISSING, NEVER, Described, Map
from ledgermq.client.console.history import History
from ledgermq.client.console.rendering import ROWS
from ledgermq.client.console.watching import LAGS_AT_ONCE, LISTENERS_MAX, Watch
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import audit_pb2
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status
from tests.console.console_client import SCRIPT, browsing, cluster_status

ASSETS_MAX_BYTES = 250_000


def test_assets_are_the_ones_that_were_chosen() -> None:
    """Copies of other projects match their hashes, have their licences beside them, and all of them
    together are small."""
    known = json.loads((FOLDER / "assets.json").read_text())
    own = {"console.js", "console.css", "icon.svg"}
    served = {path.name for path in FOLDER.iterdir() if path.suffix in TYPES}
    assert served == own | set(known)
    for name, row in known.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == row["sha256"], name
        assert (FOLDER / row["licence_file"]).stat().st_size > 500
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= ASSETS_MAX_BYTES
    for path in (FOLDER / "console.js", FOLDER / "console.css"):
        assert "://" not in path.read_text()


async def test_assets_are_served_with_their_types_and_kept() -> None:
    """Each has its type, and is not sent again to a browser that has it."""
    async with browsing() as browser:
        for name in ("htmx.min.js", "console.css", "icon.svg"):
            answer = await browser.answer(f"/assets/{name}")
            assert answer.status == 200 and answer.content_type == TYPES[name[name.rindex(".") :]]
            assert (
                await browser.get(
                    f"/assets/{name}", 304, **{"If-None-Match": answer.headers["ETag"]}
                )
                == ""
            )


def peeked() -> pb.PeekedMessage:
    found = pb.PeekedMessage(
        message_id="id-1",
        topic=pb.Name(name=SCRIPT),
        body=SCRIPT.encode(),
        tag=SCRIPT,
        keys=[SCRIPT],
        broker_group="g1",
    )
    found.properties[SCRIPT] = SCRIPT
    return found


async def test_script_in_data_stays_text() -> None:
    """Bodies, keys, topics, tags, properties, clients, and errors that contain a script; in pages,
    forms and notices."""
    answer = cluster_status()
    answer.topics.add(topic=pb.Name(name=SCRIPT), kind="normal")
    answer.nodes.add(node=SCRIPT, up=False)
    answer.groups.add(group=SCRIPT)

    async with browsing() as browser:
        node = browser.node
        node.answers("ClusterStatus", answer)
        node.answers("Peek", pb.PeekResponse(status=admin_status(), messages=[peeked()]))
        node.answers("Query", pb.QueryResponse(status=admin_status(), messages=[peeked()]))
        event = pb.TraceEvent(kind=SCRIPT, detail=SCRIPT)
        node.answers("TraceMessage", pb.TraceMessageResponse(status=admin_status(), events=[event]))
        copy = pb.ReplicaCopy(node=SCRIPT, reason=SCRIPT)
        node.answers(
            "MessageDetail", pb.MessageDetailResponse(status=admin_status(), copies=[copy])
        )
        client = pb.ClientInfo(client_id=SCRIPT, hostname=SCRIPT, topics=[SCRIPT])
        node.answers("ListClients", pb.ListClientsResponse(status=admin_status(), clients=[client]))
        refused = admin_status(int(Code.TOPIC_NOT_FOUND), SCRIPT)
        node.answers("DescribeTopic", pb.DescribeTopicResponse(status=refused))
        letter = pb.DeadLetter(message=peeked(), state="waiting")
        node.answers(
            "ListDeadLetters", pb.ListDeadLettersResponse(status=admin_status(), letters=[letter])
        )
        text = html.escape(SCRIPT).replace("&quot;", "&#34;")
        for path in (
            "/",
            "/nodes",
            "/topics",
            "/broker-groups",
            "/clients",
            "/messages?topic=t",
            "/message?topic=t&id=id-1",
        ):
            page = await browser.get(path)
            assert text in page and SCRIPT not in page and "not loaded" not in page, path
        for path in (
            "/topic?name=",
            "/dead-letters?group=",
            "/form/send?topic=",
            "/confirm/delete-topic?topic=",
            "/topics?search=",
        ):
            page = await browser.get(path + SCRIPT)
            assert text in page and SCRIPT not in page, path


async def test_a_big_cluster_costs_few_calls_and_rows() -> None:
    """1,000 topics and 300 consumer groups: a page asks for the state, the groups and the lag of a
    few, and shows a bounded part."""
    async with browsing(topics=1000, groups=300) as browser:
        page = await browser.get("/")
        assert browser.calls() == 2 + LAGS_AT_ONCE and f"Asked {LAGS_AT_ONCE} of 300" in page
        page = await browser.get("/topics")
        assert browser.calls() == 2 + LAGS_AT_ONCE
        assert page.count("<tr>") == ROWS + 1 and "1000 topics, 1 to 100 shown" in page
        assert "901 to 1000 shown" in await browser.get("/topics?start=900")
        assert (await browser.get("/topics?search=t0999")).count("<tr>") == 2
        assert (await browser.get("/groups?start=200")).count("<tr>") == ROWS + 1


async def test_the_nodes_show_their_processes_and_one_that_does_not_answer() -> None:
    """Memory and connections of each node, unknown where a node does not answer; of one node also
    its log and configuration."""

    def described(request: pb.DescribeNodeRequest) -> pb.DescribeNodeResponse:
        if request.node == "n2":
            return pb.DescribeNodeResponse(
                status=admin_status(int(Code.PRECONDITION_FAILED), "no answer")
            )
        line = f'{{"event": "{SCRIPT}"}}'
        configuration = '{"cluster": {"secret": "********"}}' if request.configuration else None
        found = pb.DescribeNodeResponse(
            status=admin_status(),
            node=request.node,
            resident_bytes=64 << 20,
            configuration=configuration,
        )
        found.log.extend([line] if request.log_lines else [])
        return found

    async with browsing() as browser:
        browser.node.answers("DescribeNode", described)
        page = await browser.get("/nodes")
        assert page.count("64.0 MiB") == 2 and "not counted" in page
        assert [request.log_lines for request in browser.node.requests["DescribeNode"]] == [0] * 3
        page = await browser.get("/node?name=n1")
        assert "64.0 MiB" in page and "&#34;secret&#34;: &#34;********&#34;" in page
        assert SCRIPT not in page and html.escape(SCRIPT) in page


async def test_open_pages_share_the_calls() -> None:
    """However many pages are open, a round asks for each answer once; lags go around; without a
    page nothing is asked."""
    async with browsing(groups=300) as browser:
        await asyncio.gather(*(browser.get("/") for _ in range(10)))
        first = browser.calls()
        watch: Watch = browser.session_watch
        await watch.refresh()
        assert browser.calls() == first + 2 + LAGS_AT_ONCE
        watch._clock = lambda: 1e9
        await watch.refresh()
        assert browser.calls() == first + 2 + LAGS_AT_ONCE
        (cell,) = [cell for key, cell in watch._cells.items() if key == "receivers"]
        assert len(cell.value.lags) == 2 * LAGS_AT_ONCE


async def test_a_page_opened_again_is_new_although_others_are_open() -> None:
    """What no page used for a while is asked for at once; what failed while it is asked for again
    is not waited for."""
    async with browsing() as browser:
        await browser.get("/users")
        watch: Watch = browser.session_watch
        now = watch._clock()
        with watch.listening():
            watch._clock = lambda: now + 5
            await browser.get("/users")
            assert len(browser.node.requests["ListUsers"]) == 1
            watch._clock = lambda: now + 3600
            await browser.get("/users")
            assert len(browser.node.requests["ListUsers"]) == 2
            watch._cells["users"].error = "no answer"
            watch.forget()
            await browser.get("/users")
            assert len(browser.node.requests["ListUsers"]) == 2


async def test_a_page_shows_the_last_answers_and_asks_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers that are not too old are shown with their age while the cluster is asked again; the
    open page learns of the newer ones."""
    monkeypatch.setattr(watching, "WAIT_S", 60.0)
    held = threading.Event()

    def later(_: pb.ClusterStatusRequest) -> pb.ClusterStatusResponse:
        assert held.wait(60)
        return cluster_status(topics=7)

    async with browsing() as browser:
        await browser.get("/")
        watch: Watch = browser.session_watch
        now = watch._clock()
        watch._clock = lambda: now + watching.OLDEST_S - 1
        browser.node.answers("ClusterStatus", later)
        page = await browser.get("/")
        assert "2 topics" in page and "As of 29 s ago" in page
        event = asyncio.Event()
        watch._listeners.add(event)
        held.set()
        await asyncio.gather(*(cell.task for cell in watch._cells.values()))
        await event.wait()
        page = await browser.get("/")
        assert "7 topics" in page and "As of" not in page


async def test_outdated_answers_are_refreshed_before_display() -> None:
    """An answer older than the bound is not shown while the cluster answers; a page that stays as
    it is shows only what is new."""
    async with browsing() as browser:
        await browser.get("/")
        await browser.get("/rebalance")
        watch: Watch = browser.session_watch
        now = watch._clock()
        watch._clock = lambda: now + watching.OLDEST_S + 1
        browser.node.answers("ClusterStatus", cluster_status(topics=7))
        page = await browser.get("/")
        assert "7 topics" in page and "As of" not in page
        watch._clock = lambda: now + watching.OLDEST_S + 1 + watching.EVERY_S
        await browser.get("/rebalance")
        assert len(browser.node.requests["PlanRebalance"]) == 2


async def test_lags_of_a_round_are_asked_for_together_and_the_oldest_first() -> None:
    """No lag waits for another one of its round; after a change the lag of its consumer group is
    asked for in the next round."""
    async with browsing(groups=3 * LAGS_AT_ONCE) as browser:
        await browser.get("/")
        watch: Watch = browser.session_watch
        together, asked = asyncio.Barrier(LAGS_AT_ONCE), []

        async def lag(group: str) -> tuple[Any, ...]:
            asked.append(group)
            await together.wait()
            return ()

        watch.admin.lag = lag
        await watch.refresh()
        assert asked == [f"c{number:03}" for number in range(LAGS_AT_ONCE, 2 * LAGS_AT_ONCE)]
        asked.clear()
        watch.forget("c009")
        await watch.refresh()
        assert asked == [
            "c009",
            *(f"c{number:03}" for number in range(2 * LAGS_AT_ONCE, 3 * LAGS_AT_ONCE - 1)),
        ]


async def test_an_answer_from_before_a_change_is_not_shown_after_it() -> None:
    """Neither one that is kept nor one that was under way, whether the change was confirmed or its
    outcome is unknown."""
    async with browsing() as browser:
        node = browser.node
        token = await browser.token()
        await browser.get("/topics")
        watch: Watch = browser.session_watch
        node.answers("CreateTopic", pb.CreateTopicResponse(status=admin_status(), created=True))
        node.answers("ClusterStatus", cluster_status(topics=3))
        await browser.post(
            "/do/create-topic",
            topic="t0002",
            kind="normal",
            queues="8",
            permission="rw",
            csrf=token,
        )
        assert "t0002" in await browser.get("/topics")
        node.answers(
            "CreateTopic",
            pb.CreateTopicResponse(status=admin_status(int(Code.PRECONDITION_FAILED), "no")),
        )
        node.answers("ClusterStatus", cluster_status(topics=4))
        await browser.post(
            "/do/create-topic",
            409,
            topic="t0003",
            kind="normal",
            queues="8",
            permission="rw",
            csrf=token,
        )
        assert "t0003" in await browser.get("/topics")

        answers = ["before the change", "after the change"]
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def fetch(_: Any) -> str:
            begun.set()
            await goes_on.wait()
            return answers.pop(0)

        page = asyncio.create_task(watch.get("key", "what", fetch))
        await begun.wait()
        watch.forget()
        goes_on.set()
        assert (await page).value == "after the change"


async def test_listeners_start_and_end_the_polling_and_are_bounded() -> None:
    """The first open page starts the one task; a user has at most so many open pages."""
    async with browsing() as browser:
        await browser.get("/")
        watch: Watch = browser.session_watch
        with watch.listening():
            task = watch._poller
            with watch.listening():
                assert watch._poller is task is not None
        for _ in range(LISTENERS_MAX):
            watch._listeners.add(asyncio.Event())
        assert "too many open pages" in await browser.get("/events", 503)


async def test_events_announce_newer_answers() -> None:
    """The stream begins with one event, and has another one after each round."""
    async with browsing() as browser:
        await browser.get("/")
        async with browser.client.get("/events") as stream:
            assert stream.content_type == "text/event-stream"
            assert await stream.content.readuntil(b"\n\n") == b"event: newer\ndata:\n\n"
            await browser.session_watch.refresh()
            assert await stream.content.readuntil(b"\n\n") == b"event: newer\ndata:\n\n"


def test_a_page_that_is_left_ends_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    """Leaving a page is no error, and its place is free again."""

    async def use() -> None:
        async with browsing() as browser:
            await browser.get("/")
            watch: Watch = browser.session_watch
            async with browser.client.get("/events") as stream:
                await stream.content.readuntil(b"\n\n")
                stream.close()
            while watch._listeners:
                await watch.refresh()
                await asyncio.sleep(0)

    asyncio.run(use())
    assert not caplog.records


async def test_last_data_stays_with_its_age_while_nodes_are_silent() -> None:
    """A page keeps what it had, says how old it is and why; without data it says what is missing.
    Other parts are not affected."""
    async with browsing() as browser:
        await browser.get("/")
        browser.node.answers("ClusterStatus", grpc.StatusCode.UNAVAILABLE)
        watch: Watch = browser.session_watch
        cell = watch._cells["status"]
        await watch._ask(cell)
        page = await browser.get("/")
        assert (
            "the state of the cluster: shown as it was" in page
            and "no usable answer" in page
            and "Nothing." in page
        )
        assert "t0001" in await browser.get("/topics")
        browser.node.answers(
            "ListUsers",
            pb.ListUsersResponse(status=admin_status(int(Code.FORBIDDEN), "you may not")),
        )
        page = await browser.get("/users")
        assert "the users: not loaded." in page and "you may not" in page
        browser.node.answers("ClusterStatus", cluster_status())
        await watch._ask(cell)
        assert "shown as it was" not in await browser.get("/")


async def test_a_part_is_all_that_an_update_gets() -> None:
    """A request of an open page gets the part that changes, without the frame."""
    async with browsing() as browser:
        await browser.get("/")
        for path in PAGES:
            part = await browser.get(path, **{"HX-Request": "true"})
            assert "<html" not in part and "<nav" not in part


async def test_letters_are_settled_by_id_and_the_state_is_shown() -> None:
    """A resend names the letters of the group that were chosen, and shows what became of them."""
    async with browsing() as browser:
        letter = pb.DeadLetter(message=peeked(), state="waiting")
        browser.node.answers(
            "ListDeadLetters", pb.ListDeadLettersResponse(status=admin_status(), letters=[letter])
        )
        browser.node.answers(
            "SettleDeadLetters",
            pb.SettleDeadLettersResponse(status=admin_status(), states=["resent"]),
        )
        await browser.post(
            "/do/resend-letters", group="billing", id="id-1", csrf=await browser.token()
        )
        (request,) = browser.node.requests["SettleDeadLetters"]
        assert (
            request.how == "resent"
            and request.group.name == "billing"
            and len(request.letters) == 1
        )
        assert list(browser.node.requests["ListDeadLetters"][0].message_ids) == ["id-1"]
        assert "billing: 1 resent" in await browser.get("/dead-letters?group=billing")
        lines = (await browser.get("/dead-letters/export?group=billing")).splitlines()
        assert [json.loads(line)["message"]["message_id"] for line in lines] == ["id-1"]


async def test_a_move_is_continued_and_aborted_from_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What takes longer than a browser waits stays under way; the page of the broker group
    continues or aborts it; the record has it."""
    monkeypatch.setattr(actions, "MOVE_WAIT_S", 0.0)
    entry = pb.BrokerGroupEntry(broker_group="g1", replicas=["n1", "n2", "n3"], preferred="n2")

    async with browsing() as browser:
        node = browser.node
        listed = pb.ListBrokerGroupsResponse(status=admin_status(), groups=[entry])
        node.answers("ListBrokerGroups", listed)
        page = await browser.get("/broker-group?name=g1")
        assert (
            page.count("Move from") == 3
            and "Meant to lead: n2." in page
            and "Continue the move" not in page
        )
        node.answers(
            "MoveReplica",
            pb.MoveReplicaResponse(status=admin_status(), step="catch-up", waits_for="n4 lacks 5"),
        )
        values = {"broker_group": "g1", "from": "n1", "to": "n4", "csrf": await browser.token()}
        await browser.post("/do/move-replica", **values)
        assert "g1: under way (catch-up), waits for: n4 lacks 5." in await browser.get(
            "/broker-groups"
        )
        listed.groups[0].move.from_node, listed.groups[0].move.to_node = "n1", "n4"
        page = await browser.get("/broker-group?name=g1")
        assert "Continue the move" in page and "Abort the move" in page and "Move from" not in page
        assert "(abort)" in await browser.get(
            "/confirm/move-replica?broker_group=g1&from=n1&to=n4&what=abort"
        )
        node.answers(
            "MoveReplica",
            pb.MoveReplicaResponse(
                status=admin_status(), done=True, step="done", left_directory="/data/n4/g1"
            ),
        )
        await browser.post("/do/move-replica", what="abort", **values)
        assert "the replica stays on n1; what is left stays in /data/n4/g1" in await browser.get(
            "/broker-groups"
        )
        assert [request.abort for request in node.requests["MoveReplica"]] == [False, True]
        assert browser.records[-1]["values"] == {
            "broker_group": "g1",
            "from": "n1",
            "to": "n4",
            "what": "abort",
        }


async def test_the_plan_is_taken_step_by_step() -> None:
    """The first step of what the cluster plans now; a step of an older plan is refused, and nothing
    is changed."""
    leader = pb.RebalanceStep(
        kind="move-leader", broker_group="g1", from_node="n1", to_node="n2", reason=SCRIPT
    )
    queues = pb.RebalanceStep(
        kind="add-queues", broker_group="g2", topic=pb.Name(name="orders"), queues=8, reason="few"
    )

    async with browsing() as browser:
        node = browser.node
        node.answers(
            "PlanRebalance",
            pb.PlanRebalanceResponse(status=admin_status(), steps=[leader, queues], notes=["kept"]),
        )
        page = await browser.get("/rebalance")
        assert (
            page.count("Take step") == 1
            and "8 queues of topic orders in g2" in page
            and "kept" in page
            and SCRIPT not in page
        )
        node.answers("PreferLeader", pb.PreferLeaderResponse(status=admin_status()))
        node.answers(
            "TransferLeadership", pb.TransferLeadershipResponse(status=admin_status(), done=True)
        )
        token, step = await browser.token(), "let n2 lead g1 instead of n1"
        await browser.post("/do/rebalance", step=step, csrf=token)
        assert node.requests["PreferLeader"] == [
            pb.PreferLeaderRequest(broker_group="g1", node="n2")
        ]
        assert node.requests["TransferLeadership"] == [
            pb.TransferLeadershipRequest(broker_group="g1", to="n2")
        ]
        assert f"done: {step}" in await browser.get("/rebalance")
        page = await browser.post(
            "/do/rebalance", 409, step="let n3 lead g1 instead of n1", csrf=token
        )
        assert "not a step of the plan any more" in page and len(node.requests["PreferLeader"]) == 1


def described(node: str, end: int, *files: tuple[int, str, str], begin: int = 0) -> Described:
    answer = audit_pb2.DescribeReplicaResponse(node=node, state="running")
    answer.begin.end_pos, answer.end.end_pos = begin, end
    for base, own, agreed in files:
        answer.sealed.add(
            base=base, end_pos=base + 100, sha256=own or None, sealed_sha256=agreed or None
        )
    return Described(node, answer)


def test_the_map_shows_damage_where_it_is() -> None:
    """A differing file and a missing one are named; everything before them is equal; the open file
    was never compared."""
    found = Map(
        "g1",
        [
            described("n1", 350, (0, "a", "a"), (100, "b", "b"), (200, "c", "c")),
            described("n2", 350, (0, "a", "a"), (100, "x", "b"), (200, "c", "c")),
            described("n3", 350, (0, "a", "a"), (200, "c", "c")),
            Described("n4", None, "no answer"),
        ],
    )
    states = {node: [block.state for block in blocks] for node, blocks in found.rows}
    assert states == {
        "n1": [EQUAL] * 3 + [NEVER],
        "n2": [EQUAL, DIFFERS, EQUAL, NEVER],
        "n3": [EQUAL, MISSING, EQUAL, NEVER],
    }
    assert [(node, block.base) for node, block in found.bad] == [("n2", 100), ("n3", 100)]
    assert found.equal_to == 100 and found.never_bytes == 50
    assert [
        (node, [(block.base, block.end) for block in blocks]) for node, blocks in found.never
    ] == [(node, [(300, 350)]) for node in ("n1", "n2", "n3")]
    assert [one.node for one in found.silent] == ["n4"]
    places = found.shown(found.rows[0][1])
    assert [(left, width) for left, width, _ in places] == [
        (0.0, 284.7),
        (285.7, 284.7),
        (571.4, 284.7),
        (857.1, 141.9),
    ]


def test_rates_come_from_counters_that_grow() -> None:
    """A counter that falls, or was unknown, gives no rate."""
    now = iter(range(100))
    history = History(lambda: float(next(now)))
    for value in (10, 30, None, 20, 5):
        history.add("x", value)
    assert [values[0] for _, values in history.rates("x")] == [20.0, None, None, None]


@pytest.mark.parametrize(
    "arguments", [["--listen", "0.0.0.0:8090"], ["--serve-key", "x"], ["--listen", "nonsense"]]
)
def test_unsafe_and_wrong_options_are_refused(arguments: list[str], capsys: Any) -> None:
    """Secrets never travel in plain text over a network without being asked to."""
    from ledgermq.cli import run

    assert run(["console", *arguments]) == 64
    assert "error: " in capsys.readouterr().err
