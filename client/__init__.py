"""The Python client and the client side of the command line.

Here lives what talks to a cluster from outside: connection and retries, administration, sending, receiving, and the commands built on
them. Nothing here opens a data directory, and nothing in a node imports it. What applications may use is what this module exports
(docs/client.md); the official clients are the first choice for sending and receiving.
"""

from ledgermq.client.admin import Admin, AsyncAdmin
from ledgermq.client.connection import AsyncConnection, Connection
from ledgermq.client.errors import BadArgument, ClusterError, ProducerFenced, Refused, SendFailed, Unreachable
from ledgermq.client.native.consumer import AsyncConsumer
from ledgermq.client.native.delivery_log import DeliveryLog
from ledgermq.client.native.outcomes import Acknowledged, BatchAcknowledged, BatchFailed
from ledgermq.client.native.producer import AsyncProducer
from ledgermq.client.native.receipt_log import ReceiptLog
from ledgermq.client.native.received import Batch
from ledgermq.client.native.statistics import ConsumerStatistics, QueueStatistics
from ledgermq.client.native.sync_consumer import Consumer
from ledgermq.client.native.sync_producer import Producer
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
