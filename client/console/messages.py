"""The pages about messages: peek, query and live tail of a topic, and one message with its copies
and its events."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from ledgermq.client.api.admin import AsyncAdmin
from ledgermq.client.console.views import Page, View
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.moments import time_range_ms
from ledgermq.client.results import Message
from ledgermq.proto.status import Code

SHOWN = 50
TAIL_S = 60.0
HOW = ("peek", "tail", "key", "id", "time")


def _number(text: str, name: str) -> int | None:
    """A number of the form; None if it was not given. Raises BadArgument."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadArgument(f"{text!r} is not a number", f"correct the {name}")
    return int(text)


async def _found(
    admin: AsyncAdmin, topic: str, how: str, value: str, queue_text: str
) -> tuple[tuple[Message, ...], tuple[Any, ...]]:
    """(messages, parts of the index that lag behind)."""
    if how in ("peek", "tail"):
        queue = _number(queue_text, "queue")
        if how == "tail":
            recent = await admin.peek(
                topic,
                queue=queue,
                start=datetime.fromtimestamp(time.time() - TAIL_S, UTC),
                limit=1000,
            )
            return tuple(
                sorted(
                    recent, key=lambda message: message.stored or datetime.min.replace(tzinfo=UTC)
                )[: -SHOWN - 1 : -1]
            ), ()
        offset = _number(value, "offset")
        if offset is not None and queue is None:
            raise BadArgument(
                "an offset means a different message in every queue", "give the queue as well"
            )
        return await admin.peek(
            topic, queue=queue, start="earliest" if offset is None else offset, limit=SHOWN
        ), ()
    if how == "time":
        begin, end = (
            None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
            for ms in time_range_ms(value, round(time.time() * 1000))
        )
        page = await admin.query(topic, since=begin, until=end, limit=SHOWN)
    elif how == "key":
        page = await admin.query(topic, key=value, limit=SHOWN)
    else:
        page = await admin.query(topic, message_id=value, limit=SHOWN)
    return page.messages, page.lagging


async def _messages(view: View) -> dict[str, Any]:
    topic, how, value, queue = (
        view.text("topic"),
        view.text("how") or "peek",
        view.text("value"),
        view.text("queue"),
    )
    page = None
    if topic:
        subject = f"messages of topic {topic}"
        page = await view.get(
            ("messages", topic, how, value, queue),
            subject,
            lambda admin: _found(admin, topic, how, value, queue),
        )
    return {"found": page, "how": how}


async def _detailed(
    admin: AsyncAdmin, topic: str, message_id: str
) -> tuple[Message, Any, tuple[Any, ...]]:
    """(message, copies and consumption, events)."""
    messages = (await admin.query(topic, message_id=message_id, limit=1)).messages
    if not messages:
        problem = f"topic {topic} has no message with the id {message_id}"
        raise Refused(
            Code.MESSAGE_NOT_FOUND,
            problem,
            "check the id and the topic; the newest messages are indexed within seconds",
        )
    detail = None if messages[0].delayed_until is not None else await admin.detail(messages[0])
    return messages[0], detail, await admin.trace(topic, message_id)


async def _message(view: View) -> dict[str, Any]:
    topic, message_id = view.text("topic"), view.text("id")
    detailed = await view.get(
        ("message", topic, message_id),
        f"message {message_id}",
        lambda admin: _detailed(admin, topic, message_id),
    )
    return {"heading": f"Message {message_id}", "found": detailed, "topic": topic}


PAGES = {
    "/messages": Page("Messages", "messages.html", _messages),
    "/message": Page("Message", "message.html", _message, still=True),
}
