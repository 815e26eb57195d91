"""One node in detail for an operator: its process, its connections, its configuration, and the last
lines of its log.

The node itself answers; any other node forwards the question. The configuration is masked
(`config_loading.py`), and so are the lines of the log (`logs.py`): a permission for the whole
cluster shows no secret.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sized

from google.protobuf.message import DecodeError

from ledgermq import __version__
from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.leader_calls import answering
from ledgermq.node.replica.ports import PeerLink
from ledgermq.node.runtime import logs, metrics
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_loading import masked
from ledgermq.node.runtime.deadlines import within
from ledgermq.proto import admin_pb2, kernels
from ledgermq.proto.status import Code, fail

METHOD = "ledgermq.v1.Admin/DescribeNode"
PEER_WITHIN_S = 3.0


class NodeDetails:
    """Describes this node, and asks the others."""

    def __init__(
        self,
        config: NodeConfig,
        forwarder: Forwarder,
        links: Mapping[str, PeerLink],
        connections: Callable[[], int | None],
        telemetry_streams: Sized,
        native_streams: Sized,
    ) -> None:
        """`links`: to the other nodes, by name. `connections`: those of clients, if they are
        counted. All are read again at every call."""
        self._config = config
        self._forwarder = forwarder
        self._links = links
        self._connections = connections
        self._telemetry_streams = telemetry_streams
        self._native_streams = native_streams

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {"DescribeNode": self.of},
            {METHOD: answering(admin_pb2.DescribeNodeRequest, self._answer)},
        )

    async def _answer(
        self, _: str, request: admin_pb2.DescribeNodeRequest
    ) -> admin_pb2.DescribeNodeResponse:
        return self.here(request)

    async def of(self, request: admin_pb2.DescribeNodeRequest) -> admin_pb2.DescribeNodeResponse:
        """The node that is asked for. Raises LedgerError if there is no such node, or if it does
        not answer."""
        node = request.node or self._config.node
        if node == self._config.node:
            return self.here(request)
        if node not in self._links:
            known = ", ".join(sorted((self._config.node, *self._links)))
            raise fail(Code.NOT_FOUND, f"there is no node {node!r}; known: {known}")
        deadline = asyncio.get_running_loop().time() + within(PEER_WITHIN_S)
        try:
            responses = await self._forwarder.ask(
                node, METHOD, request.SerializeToString(), deadline
            )
            return admin_pb2.DescribeNodeResponse.FromString(responses[0])
        except (CallRefused, DecodeError, IndexError) as error:
            # Clients repeat what timed out: whoever asks for a node that is down should learn so at
            # once.
            what = (
                f"node {node} does not answer {self._config.node}, or is an older version without"
                " this call"
            )
            raise fail(Code.PRECONDITION_FAILED, what) from error

    def here(self, request: admin_pb2.DescribeNodeRequest) -> admin_pb2.DescribeNodeResponse:
        """This node."""
        connections, peers = self._connections(), dict(self._links)
        found = admin_pb2.DescribeNodeResponse(
            node=self._config.node,
            version=__version__,
            native=kernels.VERSION,
            pid=os.getpid(),
            client_connections=connections,
            telemetry_streams=len(self._telemetry_streams),
            native_streams=len(self._native_streams),
            peers=sorted(peers),
            connected_peers=sorted(name for name, link in peers.items() if link.up),
            log=logs.last_lines(request.log_lines),
        )
        figures = {
            family.name: family.samples[0].value
            for family in metrics.PROCESS.collect()
            if family.samples
        }
        for name, field, factor in _FIGURES:
            # Outside of Linux there are none.
            if name in figures:
                setattr(found, field, round(figures[name] * factor))
        if request.configuration:
            found.configuration = json.dumps(masked(self._config))
        return found


_FIGURES = (
    ("process_resident_memory_bytes", "resident_bytes", 1),
    ("process_start_time_seconds", "started_ms", 1000),
    ("process_open_fds", "open_files", 1),
    ("process_max_fds", "open_files_max", 1),
)
