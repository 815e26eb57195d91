"""The node side of `ledgermq repair` on a running cluster: restores entries of this node's own replicas.

This module checks which replica is addressed; `node/replica/shipping/range_repair.py` and `node/replica/shipping/repair.py` decide what may
be restored and with which proof. Calls are never forwarded: a node repairs only its own replicas.
"""

from __future__ import annotations

from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.replica.hosting.ports import State
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, fail


class RepairAdmin:
    """Repairs the groups of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def repair_range(self, request: pb.RepairRangeRequest) -> pb.RepairRangeResponse:
        """Restore a range; if that is not possible and `whole_log` is set, begin to repair the whole log. Raises LedgerError."""
        group = request.broker_group
        if group not in self._engine.groups:
            raise fail(Code.BAD_REQUEST, f"this node has no replica of broker group {group!r}; ask a node that has one")
        if not 0 <= request.first_index <= request.last_index:
            raise fail(Code.BAD_REQUEST, f"entries {request.first_index} to {request.last_index} are not a valid range")
        status = await self._engine.status(group)
        if status.state != State.RUNNING:
            reason = "" if status.rebuild is None else f": {status.rebuild.reason}"
            if status.state == State.REFUSED:
                raise fail(Code.PRECONDITION_FAILED, f"broker group {group} cannot be repaired here{reason}")
            return pb.RepairRangeResponse(waits_for=f"broker group {group} is {status.state}{reason}")
        found = await self._engine.run(group, lambda running: running.store.identity)
        if (found.log_id, found.incarnation) != (request.log_id, request.incarnation):
            what = f"the replica of broker group {group} on node {found.replica} is not the one that was audited"
            raise fail(Code.PRECONDITION_FAILED, f"{what} (log {found.log_id}, directory {found.incarnation}); audit again")
        put = await self._engine.put_back(group, request.first_index, request.last_index)
        if put.refused is None:
            return pb.RepairRangeResponse(done=True, repaired=put.repaired, written_bytes=put.written_bytes, source=put.source)
        if not request.whole_log:
            raise fail(Code.PRECONDITION_FAILED, put.refused)
        await self._engine.mend_all(group, f"asked for by an operator: {put.refused}")
        return pb.RepairRangeResponse(waits_for=f"{put.refused}; the whole log is now verified and repaired")
