"""Log files of the replicas of this node for an operator: what keeps them, pins on them, and the
repair of a range of entries."""

from __future__ import annotations

from ledgermq.node.frontend.ports import AdminCalls, Engine, Metadata
from ledgermq.node.frontend.routing.known_groups import of_broker_group, of_hosted_group
from ledgermq.node.frontend.routing.leader_calls import answering
from ledgermq.node.replica.ports import STORAGE_METHOD, WHY_METHOD, Retention
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, fail


class LogFiles:
    """Executes the commands on log files."""

    def __init__(self, engine: Engine, controller: Metadata, retention: Retention) -> None:
        self._engine = engine
        self._controller = controller
        self._retention = retention

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        engine, retention = self._engine, self._retention
        return AdminCalls(
            {
                "WhyKept": of_broker_group(engine, self._controller, retention.ask_leader),
                "TakePin": of_hosted_group(engine, retention.take_pin),
                "RenewPin": of_hosted_group(engine, retention.renew_pin),
                "DropPin": of_hosted_group(engine, retention.drop_pin),
                "RepairRange": of_hosted_group(engine, self.repair_range),
            },
            {
                STORAGE_METHOD: lambda _, request: retention.answer(request),
                WHY_METHOD: answering(
                    pb.WhyKeptRequest, lambda _, request: retention.why_kept(request)
                ),
            },
        )

    async def repair_range(self, request: pb.RepairRangeRequest) -> pb.RepairRangeResponse:
        """Restore entries of the replica here from its peers. Never forwarded: a node repairs only
        its own replicas. What may be restored is decided in `replica/shipping/`. Raises
        LedgerError."""
        group = request.broker_group
        if not 0 <= request.first_index <= request.last_index:
            raise fail(
                Code.BAD_REQUEST,
                f"entries {request.first_index} to {request.last_index} are not a valid range",
            )
        status = await self._engine.status(group)
        if status.state != "running":
            reason = "" if status.rebuild is None else f": {status.rebuild.reason}"
            if status.state == "refused":
                raise fail(
                    Code.PRECONDITION_FAILED,
                    f"broker group {group} cannot be repaired here{reason}",
                )
            return pb.RepairRangeResponse(
                waits_for=f"broker group {group} is {status.state}{reason}"
            )
        found = await self._engine.run(group, lambda hosted: hosted.store.identity)
        if (found.log_id, found.incarnation) != (request.log_id, request.incarnation):
            what = (
                f"the replica of broker group {group} on node {found.replica} is not the one that"
                " was audited"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what} (log {found.log_id}, directory {found.incarnation}); audit again",
            )
        put = await self._engine.put_back(group, request.first_index, request.last_index)
        if put.refused is None:
            return pb.RepairRangeResponse(
                done=True, repaired=put.repaired, written_bytes=put.written_bytes, source=put.source
            )
        if not request.whole_log:
            raise fail(Code.PRECONDITION_FAILED, put.refused)
        await self._engine.mend_all(group, f"asked for by an operator: {put.refused}")
        return pb.RepairRangeResponse(
            waits_for=f"{put.refused}; the whole log is now verified and repaired"
        )
