"""The Python client and the client side of the command line.

This package talks to a cluster from outside: connections and retries, administration, sending,
receiving, and the commands built on them. It never opens a data directory, and no node imports it.
Applications may use what this module exports (docs/client.md); for sending and receiving, the
official RocketMQ clients are the first choice. Each exported name is imported on first use, so that
a command that shows a status loads neither the producers nor numpy.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgermq.client.api.admin import Admin, AsyncAdmin
    from ledgermq.client.api.connection import AsyncConnection, Connection
    from ledgermq.client.errors import (
        BadArgument,
        ClusterError,
        ProducerFenced,
        Refused,
        SendFailed,
        Unreachable,
    )
    from ledgermq.client.native.consumers.consumer import AsyncConsumer
    from ledgermq.client.native.consumers.delivery_log import DeliveryLog
    from ledgermq.client.native.consumers.received import Batch
    from ledgermq.client.native.consumers.statistics import ConsumerStatistics, QueueStatistics
    from ledgermq.client.native.consumers.sync_consumer import Consumer
    from ledgermq.client.native.producers.outcomes import (
        Acknowledged,
        BatchAcknowledged,
        BatchFailed,
    )
    from ledgermq.client.native.producers.producer import AsyncProducer
    from ledgermq.client.native.producers.receipt_log import ReceiptLog
    from ledgermq.client.native.producers.sync_producer import Producer
    from ledgermq.client.results import Addresses
    from ledgermq.proto.signature import Credentials
    from ledgermq.proto.types import Backoff

__all__ = [
    "Acknowledged",
    "Addresses",
    "Admin",
    "AsyncAdmin",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncProducer",
    "Backoff",
    "BadArgument",
    "Batch",
    "BatchAcknowledged",
    "BatchFailed",
    "ClusterError",
    "Connection",
    "Consumer",
    "ConsumerStatistics",
    "Credentials",
    "DeliveryLog",
    "Producer",
    "ProducerFenced",
    "QueueStatistics",
    "ReceiptLog",
    "Refused",
    "SendFailed",
    "Unreachable",
]

if not TYPE_CHECKING:
    _FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
    _MODULES = {
        "Acknowledged": "ledgermq.client.native.producers.outcomes",
        "Addresses": "ledgermq.client.results",
        "Admin": "ledgermq.client.api.admin",
        "AsyncAdmin": "ledgermq.client.api.admin",
        "AsyncConnection": "ledgermq.client.api.connection",
        "AsyncConsumer": "ledgermq.client.native.consumers.consumer",
        "AsyncProducer": "ledgermq.client.native.producers.producer",
        "Backoff": "ledgermq.proto.types",
        "BadArgument": "ledgermq.client.errors",
        "Batch": "ledgermq.client.native.consumers.received",
        "BatchAcknowledged": "ledgermq.client.native.producers.outcomes",
        "BatchFailed": "ledgermq.client.native.producers.outcomes",
        "ClusterError": "ledgermq.client.errors",
        "Connection": "ledgermq.client.api.connection",
        "Consumer": "ledgermq.client.native.consumers.sync_consumer",
        "ConsumerStatistics": "ledgermq.client.native.consumers.statistics",
        "Credentials": "ledgermq.proto.signature",
        "DeliveryLog": "ledgermq.client.native.consumers.delivery_log",
        "Producer": "ledgermq.client.native.producers.sync_producer",
        "ProducerFenced": "ledgermq.client.errors",
        "QueueStatistics": "ledgermq.client.native.consumers.statistics",
        "ReceiptLog": "ledgermq.client.native.producers.receipt_log",
        "Refused": "ledgermq.client.errors",
        "SendFailed": "ledgermq.client.errors",
        "Unreachable": "ledgermq.client.errors",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _without_handlers_of_forks():
            return getattr(import_module(_MODULES[name]), name)

    @contextmanager
    def _without_handlers_of_forks() -> Iterator[None]:
        """Import gRPC without its handlers of forks, unless the program has imported it before, or
        asks for them. They do not fit its asynchronous half: of a process with an open native
        client, about every tenth child ended by signal 11 in them, before it did anything. The
        variable is read at the import; children get the environment as it was."""
        if "grpc" in sys.modules or _FORK_SUPPORT in os.environ:
            yield
            return
        os.environ[_FORK_SUPPORT] = "0"
        try:
            yield
        finally:
            del os.environ[_FORK_SUPPORT]
