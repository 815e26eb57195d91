"""Changes of a cluster that take several steps: a request takes one step, and is repeated until its
answer is `done`.

The loop is written once, as a talk, for programs (`admin.py`) and for commands, which name their
own remedies and show progress: `heard` gets each answer that is not the last. A change that was
interrupted, or given up here, stays as far as it is; the same request continues it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.client.api.admin_requests import asking
from ledgermq.client.api.connection import Endpoints
from ledgermq.client.api.talks import Pause, Talk
from ledgermq.client.errors import Refused
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code

Change = TypeVar(
    "Change",
    pb.TransferLeadershipResponse,
    pb.SealNowResponse,
    pb.ChangeMemberResponse,
    pb.FinishUpgradeResponse,
    pb.AddBrokerGroupResponse,
    pb.MoveReplicaResponse,
    pb.ChangeReplicationResponse,
)
ASK_AGAIN_S = 0.3


def _ignored(answer: Any) -> None:
    """For callers that show no progress."""


def until_done(
    connection: Endpoints[Any],
    request: Message,
    response: type[Change],
    stuck: Callable[[Change], str],
    remedy: str,
    *,
    news: Callable[[Change], object],
    heard: Callable[[Change], object] = _ignored,
    wait_s: float | None = None,
    pause_s: float | None = None,
) -> Talk[Change]:
    """Repeat a request until its answer is `done`, and return the answer. With `wait_s`, return
    after that time at the latest.

    Raises Refused, with what is `stuck`, when `news` of the answers stayed the same for the
    connection's timeout.
    """
    began = moved = time.monotonic()
    former: object = None
    while not (answer := (yield from asking(connection, request, response))).done:
        now = time.monotonic()
        if wait_s is not None and now - began >= wait_s:
            break
        heard(answer)
        if (state := news(answer)) != former:
            moved, former = now, state
        elif now - moved > connection.timeout_s:
            raise Refused(Code.PRECONDITION_FAILED, stuck(answer), remedy)
        yield Pause(ASK_AGAIN_S if pause_s is None else pause_s)
    return answer


def followed(
    connection: Endpoints[Any],
    request: Message,
    response: type[Change],
    subject: str,
    remedy: str,
    *,
    news: Callable[[Change], object] = attrgetter("waits_for"),
    heard: Callable[[Change], object] = _ignored,
    wait_s: float | None = None,
) -> Talk[Change]:
    """A change that may take as long as it needs while it makes progress: while what it waits for
    changes. Otherwise like `until_done`."""

    def stuck(answer: Any) -> str:
        return (
            f"{subject}: no progress for {connection.timeout_s:g} s; it waits for:"
            f" {answer.waits_for}"
        )

    return until_done(
        connection, request, response, stuck, remedy, news=news, heard=heard, wait_s=wait_s
    )


def transferred(
    connection: Endpoints[Any],
    broker_group: str,
    to: str,
    remedy: str,
    *,
    heard: Callable[[pb.TransferLeadershipResponse], object] = _ignored,
) -> Talk[pb.TransferLeadershipResponse]:
    """The transfer of a leadership, which must be done within the timeout. The node itself waits
    before it answers that the transfer is not done."""
    return until_done(
        connection,
        pb.TransferLeadershipRequest(broker_group=broker_group, to=to),
        pb.TransferLeadershipResponse,
        lambda answer: (
            f"{to} does not lead {broker_group} yet: it lacks {answer.lag_entries} entries on its"
            " disk"
        ),
        remedy,
        news=_ignored,
        heard=heard,
        pause_s=0.0,
    )


def sealed(
    connection: Endpoints[Any],
    broker_group: str,
    remedy: str,
    *,
    heard: Callable[[pb.SealNowResponse], object] = _ignored,
) -> Talk[pb.SealNowResponse]:
    """The seal of everything in a log, which must be done within the timeout."""
    request = pb.SealNowRequest(broker_group=broker_group)

    def mark(answer: pb.SealNowResponse) -> None:
        # A repeated request means the same entries: without them it could end a second file.
        request.through = answer.through
        heard(answer)

    return until_done(
        connection,
        request,
        pb.SealNowResponse,
        lambda answer: (
            f"the log of {broker_group} is not sealed yet: it waits for {answer.waits_for}"
        ),
        remedy,
        news=_ignored,
        heard=mark,
    )
