"""The pages about replicas: broker groups and their leadership, the map of the audit, and
explanations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ledgermq.client.api.admin import AsyncAdmin
from ledgermq.client.console import digests
from ledgermq.client.console.actions import step_words
from ledgermq.client.console.auditing import Audits
from ledgermq.client.console.rendering import merged
from ledgermq.client.console.views import Page, View
from ledgermq.client.console.watching import Judged
from ledgermq.client.errors import BadArgument

CHANGES = 20
"""Changes of leadership on the page of a broker group."""


async def _groups(view: View) -> dict[str, Any]:
    judged: Judged | None = await view.status()
    return {"groups": () if judged is None else judged.status.groups}


async def _group(view: View) -> dict[str, Any]:
    name = view.text("name")
    judged: Judged | None = await view.status()
    group = (
        next((one for one in judged.status.groups if one.name == name), None)
        if judged is not None
        else None
    )
    why = await view.get(
        ("leadership", name),
        "the changes of leadership",
        lambda admin: admin.why_leader_moved(name, last=CHANGES),
    )
    charts = []
    if group is not None:
        history = view.watch.history
        positions = {
            replica.node: history.samples(("replica", name, replica.node))
            for replica in group.replicas
        }
        rates = {
            replica.node: history.rates(("replica", name, replica.node))
            for replica in group.replicas
        }
        charts = [
            merged("Last entry of each replica", positions),
            merged("Entries that each replica lacks", positions, 2),
            merged("Entries per second on each replica", rates),
            merged("Term", {"term": history.samples(("term", name))}),
        ]
    placed = await view.get(
        "placement", "where the replicas are meant to be", lambda admin: admin.broker_groups()
    )
    meant = next((one for one in placed or () if one.name == name), None)
    values = {
        "name": name,
        "group": group,
        "known": judged is not None,
        "meant": meant,
        "why": why,
        "charts": charts,
    }
    return {"heading": f"Broker group {name}", **values}


async def _rebalance(view: View) -> dict[str, Any]:
    plan = await view.get("plan", "the plan", lambda admin: admin.rebalance_plan())
    steps = [] if plan is None else [(step_words(step), step.reason) for step in plan.steps]
    return {"plan": plan, "steps": steps}


async def _audit(view: View) -> dict[str, Any]:
    judged: Judged | None = await view.status()
    groups = () if judged is None else judged.status.groups
    name = view.text("group") or (groups[0].name if groups else "")
    group = next((one for one in groups if one.name == name), None)
    drawn = None
    if group is not None:
        nodes = [replica.node for replica in group.replicas]

        async def asked(_: AsyncAdmin) -> digests.Map:
            digests_of = await digests.of_group(view.watch, name, nodes)
            return digests.Map(name, digests_of, datetime.now(UTC))

        drawn = await view.get(("digests", name), "the digests of the replicas", asked)
    return {
        "groups": groups,
        "name": name,
        "group": group,
        "map": drawn,
        "audits": await _audits(view),
    }


async def _audits(view: View) -> Audits | None:
    """The audits of the console, for those who may audit: the state of the cluster needs the same
    permission."""
    cell = await view.watch.status()
    return None if cell.value is None or cell.code else view.watch.audits


async def _verdict(view: View) -> dict[str, Any]:
    await view.status()
    audits = await _audits(view)
    number = view.text("number")
    return {
        "heading": f"Verdict {number}",
        "audits": audits,
        "run": None if audits is None else audits.find(number),
    }


async def _why(view: View) -> dict[str, Any]:
    """One explanation, if the form asks for one."""
    answer = None
    message_id, group, topic = view.text("message_id"), view.text("group"), view.text("topic")
    broker_group, base = view.text("broker_group"), view.text("base")
    if message_id and group:
        subject = f"why {message_id} was not delivered"
        key = ("why", message_id, group, topic)
        answer = await view.get(
            key,
            subject,
            lambda admin: admin.why_not_delivered(message_id, group, topic=topic or None),
        )
    elif broker_group and base:

        async def kept(admin: Any) -> Any:
            if not (base.isascii() and base.isdigit() and len(base) < 19):
                raise BadArgument(
                    f"{base!r} is not a position in a log",
                    "give the name of the file, which is a number",
                )
            return await admin.why_kept(broker_group, int(base))

        answer = await view.get(("why-kept", broker_group, base), f"why file {base} is kept", kept)
    elif broker_group:
        answer = await view.get(
            ("leadership", broker_group),
            "why the leader moved",
            lambda admin: admin.why_leader_moved(broker_group),
        )
    return {"answer": answer}


PAGES = {
    "/broker-groups": Page("Broker groups", "broker_groups.html", _groups),
    "/broker-group": Page("Broker group", "broker_group.html", _group),
    "/rebalance": Page("Balance", "rebalance.html", _rebalance, still=True),
    "/audit": Page("Audit", "audit.html", _audit),
    "/verdict": Page("Verdict", "verdict.html", _verdict, still=True),
    "/why": Page("Why", "why.html", _why, still=True),
}
