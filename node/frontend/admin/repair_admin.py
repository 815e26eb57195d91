"""The part of the admin service that puts entries of this node's own replicas back (`ledgermq repair` on a running cluster).

Thin: who is meant is checked here, what may be put back and with which proof is decided in `node/replica/shipping/range_repair.py`
and `node/replica/shipping/repair.py`.
Nothing is ever forwarded: a replica is mended by the node that has it.
"""

from __future__ import annotations

from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.replica.hosting.ports import State
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, fail


class RepairAdmin:
    """Works on the groups of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def repair_range(self, request: pb.RepairRangeRequest) -> pb.RepairRangeResponse:
        """Put a range back, or begin to mend the whole log where that is asked for and nothing less helps. Raises LedgerError."""
        group = request.broker_group
        if group not in self._engine.groups:
            raise fail(Code.BAD_REQUEST, f"this node has no replica of broker group {group!r}; ask a node that has one")
        if not 0 <= request.first_index <= request.last_index:
            raise fail(Code.BAD_REQUEST, f"entries {request.first_index} to {request.last_index} are no range")
        status = await self._engine.status(group)
        if status.state != State.RUNNING:
            reason = "" if status.rebuild is None else f": {status.rebuild.reason}"
            if status.state == State.REFUSED:
                raise fail(Code.PRECONDITION_FAILED, f"broker group {group} cannot be mended here{reason}")
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
        return pb.RepairRangeResponse(waits_for=f"{put.refused}; the whole log is verified and mended now")
