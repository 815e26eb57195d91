"""EndTransaction: a producer, or the producer that was checked in its place, decides a half message
(§2.10).

A transaction id names the broker group, the half message and the message id, so any node forwards
the decision to the group of the half. The answer comes when the decision is committed. If no such
half is undecided, a decision that agrees with the outcome is OK, and any other is
INVALID_TRANSACTION_ID; a leader gives that answer only after it has confirmed its leadership.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls.read_calls import Confirm
from ledgermq.node.broker.calls.transaction_calls import Resolve, Resolved
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.opaque import Opaque
from ledgermq.node.frontend.rocketmq.wire.validation import Caller, topic_of
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail

METHOD = "EndTransaction"
_DECISIONS = {pb.COMMIT: True, pb.ROLLBACK: False}


@dataclass(frozen=True, slots=True)
class Transaction:
    """The contents of a transaction id."""

    broker_group: str
    topic: str
    offset: int
    """The half message's queue offset."""
    message_id: str


class TransactionIds:
    """Creates and reads the transaction ids of one cluster."""

    def __init__(self, secret: bytes) -> None:
        self._opaque = Opaque(secret, "transaction id", Code.INVALID_TRANSACTION_ID)

    def make(self, transaction: Transaction) -> str:
        """The id's text for the client."""
        t = transaction
        return self._opaque.make(f"{t.broker_group}\n{t.topic}\n{t.offset}\n{t.message_id}")

    def read(self, text: str) -> Transaction:
        """Read an id. Raises INVALID_TRANSACTION_ID if this cluster did not create it."""
        broker_group, topic, offset, message_id = self._opaque.read(text).split("\n", 3)
        return Transaction(broker_group, topic, int(offset), message_id)


class Transactor:
    """EndTransaction of one node."""

    def __init__(self, topics: Topics, groups: Groups, ids: TransactionIds) -> None:
        self._topics = topics
        self._groups = groups
        self._ids = ids

    async def route(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Decide the half message in its broker group."""
        transaction, commit = await self._check(data, caller)
        if commit is None:
            return _ok()
        return await self._groups.at_leader(
            transaction.broker_group,
            lambda: self._resolve(transaction, commit, deadline),
            method=METHOD,
            caller=caller,
            data=data,
            deadline=deadline,
        )

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        transaction, commit = await self._check(data, caller)
        if commit is None or transaction.broker_group != broker_group:
            raise _not_undecided()
        return [await self._resolve(transaction, commit, deadline)]

    async def _check(self, data: bytes, caller: Caller) -> tuple[Transaction, bool | None]:
        """The half message and the decision: True for commit; None if the resolution is
        unspecified."""
        request = pb.EndTransactionRequest.FromString(data)
        stored = topic_of(request.topic, caller)
        if not request.transaction_id.strip():
            raise fail(
                Code.INVALID_TRANSACTION_ID,
                "the transaction id is blank; send the id from the answer to the message's send",
            )
        transaction = self._ids.read(request.transaction_id)
        if transaction.topic != stored or request.message_id not in ("", transaction.message_id):
            raise fail(
                Code.INVALID_TRANSACTION_ID,
                "the transaction id belongs to another topic or message",
            )
        if self._topics.known(stored) is None:
            await self._topics.find(stored)
        return transaction, _DECISIONS.get(request.resolution)

    async def _resolve(self, transaction: Transaction, commit: bool, deadline: float) -> bytes:
        t = transaction
        for sure in (False, True):
            call = Resolve(self._groups.engine.new_token(), t.offset, t.topic, t.message_id, commit)
            resolved: Resolved = await self._groups.call(t.broker_group, call, t.topic, deadline)
            if resolved.ok:
                return _ok()
            if not sure:
                # A replaced leader may not know of the half message: confirm leadership, then try
                # again.
                await self._groups.call(
                    t.broker_group, Confirm(self._groups.engine.new_token()), t.topic, deadline
                )
        raise _not_undecided()


def _ok() -> bytes:
    return pb.EndTransactionResponse(status=statuses.OK).SerializeToString()


def _not_undecided() -> Exception:
    return fail(
        Code.INVALID_TRANSACTION_ID,
        "the transaction is not known, was dropped, or has ended the other way",
    )
