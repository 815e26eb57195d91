"""QueryRoute and QueryAssignment: where a client finds a topic's queues (§2.1, §2.2). Pure
functions of the agreed topic.

Any node answers any call, so a route repeats the endpoints that the client used: the name or
address that brought it here works for it. A broker group appears as one broker with id 0 and the
group's name; its queues are numbered from 0.
"""

from __future__ import annotations

from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.rocketmq.wire.validation import ACCEPTED
from ledgermq.proto import host_port
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import Permission

PERMISSIONS = {
    Permission.READ_WRITE: pb.READ_WRITE,
    Permission.READ: pb.READ,
    Permission.WRITE: pb.WRITE,
    Permission.NONE: pb.NONE,
}
ANY_QUEUE = -1


def endpoints_of(given: pb.Endpoints, host: str, port: int) -> pb.Endpoints:
    """The endpoints for the client: its own, checked; this node's address if it gave none. Raises
    ILLEGAL_ACCESS_POINT."""
    if not given.addresses:
        return pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=port)])
    for address in given.addresses:
        if not address.host.strip() or not 0 < address.port < 65536:
            raise fail(
                Code.ILLEGAL_ACCESS_POINT,
                f"the endpoint {address.host!r} with port {address.port} is not an address",
            )
    if given.scheme == pb.ADDRESS_SCHEME_UNSPECIFIED:
        return pb.Endpoints(scheme=_scheme(given.addresses[0].host), addresses=given.addresses)
    if given.scheme == pb.DOMAIN_NAME and len(given.addresses) > 1:
        raise fail(
            Code.ILLEGAL_ACCESS_POINT, "endpoints with a domain name must hold exactly one address"
        )
    return given


def _scheme(host: str) -> pb.AddressScheme:
    """Clients may put an IPv6 address in brackets, as they were given it."""
    host = host.removeprefix("[").removesuffix("]")
    if not host_port.is_address(host):
        return pb.DOMAIN_NAME
    return pb.IPv6 if host_port.is_ipv6(host) else pb.IPv4


def _queue(topic: Topic, resource: pb.Resource, broker: pb.Broker, queue: int) -> pb.MessageQueue:
    return pb.MessageQueue(
        topic=resource,
        id=queue,
        permission=PERMISSIONS[topic.permission],
        broker=broker,
        accept_message_types=ACCEPTED[topic.kind],
    )


def route(topic: Topic, resource: pb.Resource, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
    """Every queue of the topic."""
    queues = []
    for broker_group, count in sorted(topic.placement.items()):
        broker = pb.Broker(name=broker_group, id=0, endpoints=endpoints)
        queues += [_queue(topic, resource, broker, queue) for queue in range(count)]
    return queues


def assignments(
    topic: Topic, resource: pb.Resource, endpoints: pb.Endpoints, *, fifo: bool
) -> list[pb.Assignment]:
    """One assignment for each broker, for all its queues, because consumers share queues by leases,
    not by exclusive ownership. Consumers of a FIFO group send one Receive for each queue, so they
    get one assignment for each queue."""
    if not topic.permission.readable:
        raise fail(Code.FORBIDDEN, f"topic {topic.name} has no readable queue")
    out = []
    for broker_group, count in sorted(topic.placement.items()):
        broker = pb.Broker(name=broker_group, id=0, endpoints=endpoints)
        queues = range(count) if fifo else (ANY_QUEUE,)
        out += [
            pb.Assignment(message_queue=_queue(topic, resource, broker, queue)) for queue in queues
        ]
    return out
