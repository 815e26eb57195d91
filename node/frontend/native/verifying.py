"""Verify: checks receipts, first their MACs, on any node, then their entries in the log, at the
leader of each broker group.

The leader confirms that it leads and has applied everything acknowledged before, so an entry that
it does not have was never acknowledged. Entries are read between turns, a mebibyte at a time, and
checked on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import Confirm
from ledgermq.node.frontend.native.callers import Caller, Callers, publish, read
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.proofs import (
    PIECE_BYTES,
    Proof,
    at_the_edges,
    contradiction,
    false,
    unverifiable,
)
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import log_pb2
from ledgermq.proto.proofs.receipts import proven
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.types import Range

METHOD = "Verify"
RECEIPTS_MAX = 1000
"""The most receipts in one call."""
WITHIN_S = 30.0


class Verifier:
    """Verify of one node. `log_ids`: of the broker groups with a replica here; `known`: whether the
    cluster has a broker group."""

    def __init__(
        self,
        cluster_id: str,
        log_ids: Mapping[str, str],
        known: Callable[[str], Awaitable[bool]],
        engine: Engine,
        forwarder: Forwarder,
        callers: Callers,
        keys: ReceiptKeys,
        method: str,
    ) -> None:
        """`method`: the name under which every node's forwarder knows this service's `Verify`."""
        self._cluster_id = cluster_id
        self._log_ids = log_ids
        self._known = known
        self._engine = engine
        self._forwarder = forwarder
        self._callers = callers
        self._keys = keys
        self._method = method

    async def verify(
        self, request: log_pb2.VerifyRequest, caller: Caller
    ) -> log_pb2.VerifyResponse:
        """A verdict for each receipt. Raises FORBIDDEN for topics that the caller may neither read
        nor write, BAD_REQUEST for too many receipts."""
        receipts = request.receipts
        if len(receipts) > RECEIPTS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"{len(receipts)} receipts are too many for one call; the limit is {RECEIPTS_MAX}",
            )
        for topic in sorted({receipt.topic for receipt in receipts}):
            self._callers.allow(caller, publish(topic), read(topic))
        verdicts: dict[int, log_pb2.Verdict] = {}
        groups: dict[str, list[int]] = {}
        await self._keys.meet(
            {receipt.key_id for receipt in receipts if receipt.cluster_id == self._cluster_id}
        )
        for place, receipt in enumerate(receipts):
            if (verdict := self._by_mac(receipt)) is None:
                groups.setdefault(receipt.broker_group, []).append(place)
            else:
                verdicts[place] = verdict
        for group, places in groups.items():
            if await self._known(group):
                results = await self._by_log(group, [receipts[place] for place in places])
            else:
                results = [unverifiable(f"there is no broker group {group}")] * len(places)
            verdicts.update(zip(places, results, strict=True))
        return log_pb2.VerifyResponse(verdicts=[verdicts[place] for place in range(len(receipts))])

    def _by_mac(self, receipt: log_pb2.Receipt) -> log_pb2.Verdict | None:
        """The verdict from the MAC; None if the MAC is valid and the log must be checked."""
        if receipt.cluster_id != self._cluster_id:
            return unverifiable(f"it is of another cluster, {receipt.cluster_id!r}")
        key = self._keys.find(receipt.key_id)
        if key is None:
            return unverifiable(f"its key {receipt.key_id!r} is unknown or was removed")
        if not proven(key, receipt):
            return false(
                "the MAC is not that of these fields: it was altered, or not made by this cluster"
            )
        wrong = contradiction(receipt)
        return false(wrong) if wrong else None

    async def _by_log(
        self, group: str, receipts: Sequence[log_pb2.Receipt]
    ) -> Sequence[log_pb2.Verdict]:
        """The verdicts of the leader, on this node or another."""
        data = log_pb2.VerifyRequest(receipts=receipts).SerializeToString()
        deadline = asyncio.get_running_loop().time() + WITHIN_S
        try:
            answers = await self._forwarder.submit(
                group, self._method, {}, data, deadline, repeatable=True
            )
            response = log_pb2.VerifyResponse.FromString(answers[0])
        except (CallRefused, DecodeError, IndexError):
            return [
                unverifiable(f"broker group {group} has no leader that answers; try again")
            ] * len(receipts)
        if response.HasField("problem") or len(response.verdicts) != len(receipts):
            return [
                unverifiable(response.problem.message or "the leader's answer cannot be decoded")
            ] * len(receipts)
        return list(response.verdicts)

    async def execute(self, group: str, data: bytes) -> list[bytes]:
        """Check receipts with valid MACs against the log, as leader. Raises CallRefused if this
        node does not lead."""
        request = log_pb2.VerifyRequest.FromString(data)
        try:
            await self._confirm(group)
            verdicts = [await self._here(group, receipt) for receipt in request.receipts]
            await self._confirm(group)
        except LedgerError as error:
            verdicts = [unverifiable(error.message)] * len(request.receipts)
        return [log_pb2.VerifyResponse(verdicts=verdicts).SerializeToString()]

    async def _confirm(self, group: str) -> None:
        outcome = await self._engine.call(group, Confirm(self._engine.new_token()))
        if isinstance(outcome, Refused):
            raise CallRefused(outcome)

    async def _here(self, group: str, receipt: log_pb2.Receipt) -> log_pb2.Verdict:
        if self._log_ids.get(group) != receipt.log_id:
            return unverifiable(f"it is of another log of broker group {group}, {receipt.log_id!r}")
        proof = Proof(receipt)
        while True:
            index = proof.next_index

            def judge(hosted: RunningReplica, index: int = index) -> log_pb2.Verdict | Range:
                log = hosted.store.log
                verdict = at_the_edges(log, hosted.machine.applied_index, receipt)
                return verdict if verdict is not None else _kept(log.read(index, PIECE_BYTES))

            entries = await self._engine.run(group, judge)
            if not isinstance(entries, Range):
                return entries
            verdict = await asyncio.to_thread(proof.add, entries)
            if verdict is not None:
                return verdict


def _kept(entries: Range) -> Range:
    """A copy of the entries: mapped bytes may be truncated while another thread reads them."""
    return entries.copied()
