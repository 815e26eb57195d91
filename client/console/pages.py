"""The pages about the cluster as a whole: overview, nodes, topics, clients and users."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from ledgermq.client.api.admin import AsyncAdmin
from ledgermq.client.console.rendering import Chart, part
from ledgermq.client.console.views import Page, View
from ledgermq.client.console.watching import Judged, Receivers
from ledgermq.client.errors import Refused
from ledgermq.client.plans.health import Severity, worst
from ledgermq.client.results import NodeDetail

TOP = 10
"""Consumer groups in the list of those with most lag."""
DETAILED = 32
"""Nodes whose memory and connections the page of all nodes shows."""
LOG_LINES = 100


async def _overview(view: View) -> dict[str, Any]:
    judged: Judged | None
    receivers: Receivers | None
    judged, receivers = await asyncio.gather(view.status(), view.receivers())
    findings = (
        [] if judged is None else sorted(judged.findings, key=lambda finding: -finding.severity)
    )
    lags = (
        {}
        if receivers is None
        else {name: lag for name, lag in receivers.lags.items() if lag.messages}
    )
    top = sorted(lags.items(), key=lambda item: -(item[1].messages or 0))[:TOP]
    history = view.watch.history
    return {
        "judged": judged,
        "worst": worst(findings) if judged is not None else Severity.UNKNOWN,
        "findings": findings,
        "top": top,
        "asked": 0 if receivers is None else len(receivers.lags),
        "groups": None if receivers is None else len(receivers.groups),
        "charts": [
            Chart("Messages stored per second", ("messages/s",), history.rates("messages")),
            Chart("Messages that wait for all consumer groups", ("lag",), history.samples("lag")),
        ],
    }


async def _nodes(view: View) -> dict[str, Any]:
    judged: Judged | None = await view.status()
    members = await view.get("members", "the members", lambda admin: admin.members())
    names = (
        [] if judged is None else [node.node for node in judged.status.nodes if node.up][:DETAILED]
    )
    details = await view.get(
        ("nodes", *names),
        "memory and connections of the nodes",
        lambda admin: _details(admin, names),
    )
    return {
        "judged": judged,
        "members": {member.node: member for member in members or ()},
        "details": details or {},
    }


async def _details(admin: AsyncAdmin, names: list[str]) -> dict[str, NodeDetail]:
    """The nodes that answer; a node of an older version, or one that has just stopped, is left out.
    Raises Unreachable."""
    details = {}
    for name in names:
        with suppress(Refused):
            details[name] = await admin.node(name)
    return details


async def _node(view: View) -> dict[str, Any]:
    name = view.text("name")

    async def asked(admin: AsyncAdmin) -> tuple[NodeDetail, str]:
        detail = await admin.node(name, log_lines=LOG_LINES, configuration=True)
        return detail, json.dumps(json.loads(detail.configuration or "{}"), indent=2)

    described = await view.get(("node", name), f"node {name}", asked)
    return {"heading": f"Node {name}", "found": described}


async def _topics(view: View) -> dict[str, Any]:
    judged: Judged | None = await view.status()
    topics = () if judged is None else judged.status.topics
    return {"rows": part(topics, "name", view.query), "rates": view.watch.history.topic_rates}


async def _topic(view: View) -> dict[str, Any]:
    name = view.text("name")
    history = view.watch.history
    topic = await view.get(
        ("topic", name),
        f"topic {name}",
        lambda admin: admin.topic(name),
        keep=lambda topic_detail, _: history.add(("topic", name), topic_detail.messages),
    )
    chart = Chart("Messages stored per second", ("messages/s",), history.rates(("topic", name)))
    return {"heading": f"Topic {name}", "name": name, "topic": topic, "charts": [chart]}


async def _clients(view: View) -> dict[str, Any]:
    listing = await view.get("clients", "the clients", lambda admin: admin.clients())
    return {
        "rows": part(listing.clients if listing else (), "client_id", view.query),
        "unreachable": listing.unreachable if listing else (),
    }


async def _users(view: View) -> dict[str, Any]:
    users = await view.get("users", "the users", lambda admin: admin.users())
    return {"rows": part(users or (), "name", view.query)}


PAGES = {
    "/": Page("Overview", "overview.html", _overview),
    "/nodes": Page("Nodes", "nodes.html", _nodes),
    "/node": Page("Node", "node.html", _node),
    "/topics": Page("Topics", "topics.html", _topics),
    "/topic": Page("Topic", "topic.html", _topic),
    "/clients": Page("Clients", "clients.html", _clients),
    "/users": Page("Users", "users.html", _users),
}
