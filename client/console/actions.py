"""Every change that the console can make: what it asks for, how it is described before it is
confirmed, and the calls that make it.

All of them are calls of the public admin API, safe to repeat except a test send.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

from ledgermq.client.api.connection import AsyncConnection
from ledgermq.client.api.service import MESSAGING
from ledgermq.client.console.watching import Watch
from ledgermq.client.errors import BadArgument, Refused, Unreachable
from ledgermq.client.messages.sending import Outgoing, new_message_id
from ledgermq.client.moments import place
from ledgermq.client.results import RebalanceStep
from ledgermq.proto import messaging_pb2
from ledgermq.proto.names import parse_stored
from ledgermq.proto.status import Code

KINDS = ("normal", "fifo", "delay", "transaction", "mixed", "priority", "lite")
PERMISSIONS = ("rw", "r", "w", "none")
SETTLED_MAX = 1000
"""Dead letters that one change settles, and waiting messages that one change cancels."""
MOVE_WAIT_S = 20.0
"""How long a browser waits for the move of a replica. A longer move stays as it is and is continued
from the page."""
SECRET_BYTES = 32
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Field:
    """One value. `kind`: text, number, choice, area or secret; a secret is asked for only where it
    is confirmed, so it is in no address."""

    name: str
    label: str
    kind: str = "text"
    required: bool = True
    choices: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """`says`: what will happen, with the values in braces. `back`: the page to return to. `do`
    returns what happened."""

    title: str
    says: str
    back: str
    fields: tuple[Field, ...]
    do: Callable[[Watch, Values], Awaitable[str | MadeSecret]]


@dataclass(frozen=True, slots=True)
class MadeSecret:
    """What happened, a secret that was made (the next page shows it once, and no record has it),
    and the outcome in the record."""

    text: str
    secret: str = field(repr=False)
    outcome: str = "done"


def _number(values: Values, name: str) -> int:
    text = values[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadArgument(f"{text!r} is not a number", f"correct the field {name}")
    return int(text)


async def _transfer(watch: Watch, values: Values) -> str:
    await watch.admin.transfer(values["broker_group"], values["to"])
    return f"{values['to']} leads {values['broker_group']}"


async def _move_replica(watch: Watch, values: Values) -> str:
    group, source, to, abort = (
        values["broker_group"],
        values["from"],
        values["to"],
        values["what"] == "abort",
    )
    move = await watch.admin.move_replica(group, source, to, abort=abort, wait_s=MOVE_WAIT_S)
    if not move.done:
        return (
            f"{group}: under way ({move.step}), waits for: {move.waits_for or 'nothing'}."
            " Continue on the page of the broker group"
        )
    left = f"; what is left stays in {move.left_directory}" if move.left_directory else ""
    return (
        f"{group}: the replica stays on {source}{left}"
        if abort
        else f"{group}: the replica of {source} is on {to} now{left}"
    )


async def _rebalance(watch: Watch, values: Values) -> str:
    """Only a step that the cluster itself plans now is taken: what a form says may be old."""
    plan = await watch.admin.rebalance_plan()
    step = next((one for one in plan.steps if step_words(one) == values["step"]), None)
    if step is None:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"{values['step']!r} is not a step of the plan any more",
            "load the plan again",
        )
    done = await watch.admin.rebalance_step(step, wait_s=MOVE_WAIT_S)
    return f"{'done' if done else 'under way; take the step again to continue'}: {values['step']}"


def step_words(step: RebalanceStep) -> str:
    """A step of a plan as one sentence, which names it completely."""
    if step.kind == "move-replica":
        return f"move the replica of {step.broker_group} from {step.from_node} to {step.to_node}"
    if step.kind == "move-leader":
        return f"let {step.to_node} lead {step.broker_group} instead of {step.from_node}"
    return f"{step.queues} queues of topic {step.topic} in {step.broker_group}"


async def _create_topic(watch: Watch, values: Values) -> str:
    kind, permission = cast(Any, values["kind"]), cast(Any, values["permission"])
    await watch.admin.create_topic(
        values["topic"], kind=kind, queues=_number(values, "queues"), permission=permission
    )
    return f"topic {values['topic']} was created"


async def _update_topic(watch: Watch, values: Values) -> str:
    await watch.admin.update_topic(
        values["topic"],
        queues=_number(values, "queues"),
        permission=cast(Any, values["permission"]),
    )
    return f"topic {values['topic']} was changed"


async def _delete_topic(watch: Watch, values: Values) -> str:
    await watch.admin.delete_topic(values["topic"])
    return f"topic {values['topic']} was deleted"


async def _create_group(watch: Watch, values: Values) -> str:
    await watch.admin.create_group(
        values["group"],
        max_attempts=_number(values, "max_attempts"),
        fifo=values["order"] == "fifo",
    )
    return f"consumer group {values['group']} was created"


async def _delete_group(watch: Watch, values: Values) -> str:
    await watch.admin.delete_group(values["group"])
    return f"consumer group {values['group']} was deleted"


async def _reset(watch: Watch, values: Values) -> str:
    queue = _number(values, "queue") if values["queue"] else None
    kind, position = place(values["to"], time.time_ns() // 1_000_000)
    to: Any = (
        kind
        if position is True
        else datetime.fromtimestamp(position / 1000, UTC)
        if kind == "store_ms"
        else position
    )
    moved = await watch.admin.reset(values["group"], values["topic"], to, queue=queue)
    return (
        f"{values['group']} continues at a new position in {len(moved)} queues of {values['topic']}"
    )


async def _skip(watch: Watch, values: Values) -> str:
    await watch.admin.skip(
        values["group"], values["topic"], _number(values, "queue"), count=_number(values, "count")
    )
    return f"{values['group']} skipped messages in queue {values['queue']} of {values['topic']}"


async def _settle(watch: Watch, values: Values, how: Literal["resent", "purged"]) -> str:
    ids = tuple(values["id"].split())
    letters = [
        one
        for one in await watch.admin.dead_letters(
            values["group"], message_ids=ids, limit=SETTLED_MAX
        )
        if one.state != "orphaned"
    ]
    settle = watch.admin.resend_dead_letters if how == "resent" else watch.admin.purge_dead_letters
    states = await settle(values["group"], letters)
    if not states:
        raise Refused(
            Code.MESSAGE_NOT_FOUND,
            f"{values['group']} has no such dead letters",
            "load the list again",
        )
    return f"{values['group']}: " + ", ".join(
        f"{count} {state}" for state, count in sorted(Counter(states).items())
    )


async def _resend(watch: Watch, values: Values) -> str:
    return await _settle(watch, values, "resent")


async def _purge(watch: Watch, values: Values) -> str:
    return await _settle(watch, values, "purged")


async def _cancel(watch: Watch, values: Values) -> str:
    topic, kind, ids = values["topic"], cast(Any, values["kind"]), tuple(values["id"].split())
    states = await watch.admin.cancel_waiting(
        topic, kind, await watch.admin.waiting(topic, kind, message_ids=ids, limit=SETTLED_MAX)
    )
    if not states:
        raise Refused(
            Code.MESSAGE_NOT_FOUND, f"no such message waits in topic {topic}", "load the list again"
        )
    return f"{topic}: " + ", ".join(
        f"{count} {state}" for state, count in sorted(Counter(states).items())
    )


async def _create_user(watch: Watch, values: Values) -> str:
    await watch.admin.create_user(
        values["user"],
        values["secret"] or None,
        grants=values["grants"].split(),
        roles=values["roles"].split(),
    )
    return f"{'user' if values['secret'] else 'role'} {values['user']} was created"


async def _change_user(watch: Watch, values: Values) -> str:
    await watch.admin.change_user(
        values["user"], grant=values["grant"].split(), revoke=values["revoke"].split()
    )
    return f"the permissions of {values['user']} were changed"


async def _rotate_user(watch: Watch, values: Values) -> MadeSecret:
    secret = secrets.token_urlsafe(SECRET_BYTES)
    try:
        user = await watch.admin.change_user(values["user"], secret_key=secret)
    except Unreachable as error:
        # A second attempt would end the secret that clients use now, if the first one was carried
        # out.
        return MadeSecret(
            f"it is not known whether {values['user']} has the new secret, see the number of its"
            f" secrets: {error}",
            secret,
            "unknown",
        )
    return MadeSecret(
        f"{values['user']} has a new secret; {user.secrets} are valid until the former one is"
        " ended",
        secret,
    )


async def _end_former_secret(watch: Watch, values: Values) -> str:
    await watch.admin.change_user(values["user"], end_former_secret=True)
    return f"the former secret of {values['user']} is no longer valid"


async def _delete_user(watch: Watch, values: Values) -> str:
    await watch.admin.delete_user(values["user"])
    return f"user {values['user']} was deleted"


async def _run_audit(watch: Watch, _: Values) -> str:
    # Needs the same permission as the audit. The refusal is shown here and now, not as an audit
    # without a verdict.
    await watch.admin.status()
    watch.audits.start(watch.connection)
    return "an audit was started"


async def _send(watch: Watch, values: Values) -> str:
    namespace, topic = parse_stored(values["topic"])
    keys = values["keys"].split()
    group = values["message_group"] or None
    message = Outgoing(
        topic=topic,
        body=values["body"].encode(),
        tag=values["tag"] or None,
        keys=keys,
        properties={},
        message_group=group,
        namespace=namespace,
    ).to_proto(new_message_id())
    connection: AsyncConnection = watch.connection
    request = messaging_pb2.SendMessageRequest(messages=[message])
    await connection.carry_out(
        connection.asking(MESSAGING + "SendMessage", request, messaging_pb2.SendMessageResponse)
    )
    return f"sent {message.system_properties.message_id} to {values['topic']}"


TOPIC, GROUP, USER = (
    Field("topic", "Topic"),
    Field("group", "Consumer group"),
    Field("user", "Name"),
)
BROKER_GROUP = Field("broker_group", "Broker group")
QUEUES, PERMISSION = (
    Field("queues", "Queues", "number", default="8"),
    Field("permission", "Permission", "choice", choices=PERMISSIONS),
)
IDS = Field("id", "Message ids, separated by spaces; empty: all", required=False)
ACTIONS: dict[str, Action] = {
    "transfer": Action(
        *(
            "Transfer leadership",
            (
                "{to} becomes the leader of broker group {broker_group}. Calls wait for the new"
                " leader."
            ),
            "/broker-groups",
        ),
        (BROKER_GROUP, Field("to", "To node")),
        _transfer,
    ),
    "move-replica": Action(
        *(
            "Move a replica",
            (
                "The replica of broker group {broker_group} moves from {from} to {to} ({what}): the"
                " new copy catches up and votes before the old one is removed. Producers and"
                " consumers continue."
            ),
            "/broker-groups",
        ),
        (
            *(BROKER_GROUP, Field("from", "From node"), Field("to", "To node")),
            Field(
                "what",
                "What",
                "choice",
                choices=("start or continue", "abort"),
                default="start or continue",
            ),
        ),
        _move_replica,
    ),
    "rebalance": Action(
        *("Take a step of the plan", "One step: {step}.", "/rebalance"),
        (Field("step", "Step"),),
        _rebalance,
    ),
    "create-topic": Action(
        *("Create topic", "The topic {topic} of kind {kind} is created.", "/topics"),
        (TOPIC, Field("kind", "Kind", "choice", choices=KINDS), QUEUES, PERMISSION),
        _create_topic,
    ),
    "update-topic": Action(
        *(
            "Change topic",
            (
                "The topic {topic} gets {queues} queues and the permission {permission}. Queues are"
                " never removed."
            ),
            "/topics",
        ),
        (TOPIC, QUEUES, PERMISSION),
        _update_topic,
    ),
    "delete-topic": Action(
        "Delete topic",
        "The topic {topic} is deleted. Its messages are served no longer. This cannot be undone.",
        "/topics",
        (TOPIC,),
        _delete_topic,
    ),
    "create-group": Action(
        *("Create consumer group", "The consumer group {group} is created.", "/groups"),
        (
            GROUP,
            Field("max_attempts", "Attempts", "number", default="17"),
            Field("order", "Delivery", "choice", choices=("concurrent", "fifo")),
        ),
        _create_group,
    ),
    "delete-group": Action(
        *(
            "Delete consumer group",
            "The consumer group {group} and its progress are deleted. This cannot be undone.",
            "/groups",
        ),
        (GROUP,),
        _delete_group,
    ),
    "reset-group": Action(
        *(
            "Reset position",
            "{group} continues at {to} in topic {topic}: messages are delivered again, or skipped.",
            "/groups",
        ),
        (
            *(GROUP, TOPIC, Field("queue", "Queue; empty: all", "number", required=False)),
            Field(
                "to", "To: earliest, latest, a time, or an offset of one queue", default="earliest"
            ),
        ),
        _reset,
    ),
    "skip": Action(
        *(
            "Skip messages",
            (
                "{group} never gets the messages in flight and {count} more of queue {queue} of"
                " topic {topic}."
            ),
            "/groups",
        ),
        (
            GROUP,
            TOPIC,
            Field("queue", "Queue", "number"),
            Field("count", "Further messages", "number", default="0"),
        ),
        _skip,
    ),
    "resend-letters": Action(
        *(
            "Resend dead letters",
            f"The messages are delivered to {{group}} again, each once, at most {SETTLED_MAX}.",
            "/dead-letters",
        ),
        (GROUP, IDS),
        _resend,
    ),
    "purge-letters": Action(
        *(
            "Purge dead letters",
            f"The dead letters of {{group}} leave the list for good, at most {SETTLED_MAX}.",
            "/dead-letters",
        ),
        (GROUP, IDS),
        _purge,
    ),
    "cancel-waiting": Action(
        *(
            "Cancel waiting messages",
            f"The {{kind}} messages of {{topic}} are never delivered, at most {SETTLED_MAX}.",
            "/waiting",
        ),
        (TOPIC, Field("kind", "Kind", "choice", choices=("delayed", "half")), IDS),
        _cancel,
    ),
    "create-user": Action(
        *("Create user", "The user {user} is created. Without a secret it is a role.", "/users"),
        (
            *(
                USER,
                Field(
                    "grants", "Permissions ACTION:KIND:PATTERN, separated by spaces", required=False
                ),
            ),
            *(
                Field("roles", "Roles, separated by spaces", required=False),
                Field("secret", "Secret", "secret", required=False),
            ),
        ),
        _create_user,
    ),
    "change-user": Action(
        *("Change permissions", "The permissions of {user} change at once.", "/users"),
        (
            *(
                USER,
                Field("grant", "Grant ACTION:KIND:PATTERN, separated by spaces", required=False),
            ),
            Field("revoke", "Revoke, separated by spaces", required=False),
        ),
        _change_user,
    ),
    "rotate-user": Action(
        *(
            "New secret",
            (
                "{user} gets a new secret, which the next page shows once. The former one stays"
                " valid until it is ended."
            ),
            "/users",
        ),
        (USER,),
        _rotate_user,
    ),
    "end-former-secret": Action(
        *(
            "End the former secret",
            "Clients of {user} that use its former secret are refused from now on.",
            "/users",
        ),
        (USER,),
        _end_former_secret,
    ),
    "delete-user": Action(
        "Delete user",
        "The user or role {user} is deleted. This cannot be undone.",
        "/users",
        (USER,),
        _delete_user,
    ),
    "run-audit": Action(
        *(
            "Run an audit",
            (
                "The log of every broker group gets a marker, and an independent decoder reads"
                " every byte of every replica up to there, through the nodes. The cluster keeps"
                " running. The verdict appears on the page."
            ),
            "/audit",
        ),
        (),
        _run_audit,
    ),
    "send": Action(
        *(
            "Send a test message",
            "One message is stored in topic {topic} and delivered to its consumer groups.",
            "/messages",
        ),
        (
            *(TOPIC, Field("body", "Body", "area"), Field("tag", "Tag", required=False)),
            *(
                Field("keys", "Keys, separated by spaces", required=False),
                Field("message_group", "Message group", required=False),
            ),
        ),
        _send,
    ),
}
