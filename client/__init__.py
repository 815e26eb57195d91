"""The Python client and the client side of the command line.

Here lives what talks to a cluster from outside: connection and retries, administration, sending, receiving, and the commands built on
them. Nothing here opens a data directory, and nothing in a node imports it. What applications may use is what this module exports
(docs/client.md); the official clients are the first choice for sending and receiving.
"""

from ledgermq.client.admin import Admin, AsyncAdmin
from ledgermq.client.connection import AsyncConnection, Connection
from ledgermq.client.errors import BadArgument, ClusterError, Refused, Unreachable
from ledgermq.client.results import Addresses
from ledgermq.proto.signature import Credentials
from ledgermq.proto.types import Backoff

__all__ = [
    "Addresses",
    "Admin",
    "AsyncAdmin",
    "AsyncConnection",
    "Backoff",
    "BadArgument",
    "ClusterError",
    "Connection",
    "Credentials",
    "Refused",
    "Unreachable",
]
