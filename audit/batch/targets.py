"""The clusters and topics that the commands `ledgermq jobs` name, as targets of the data source.

A cluster is a context, whether it was named or given by its endpoints.
"""

from __future__ import annotations

from ledgermq.audit.spark.cluster.cluster_options import Target
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli import contexts
from ledgermq.client.cli.commands import Files, files_of, wire_of
from ledgermq.client.errors import REMEDIES, BadArgument, Refused
from ledgermq.proto.names import parse_stored
from ledgermq.proto.signature import Credentials
from ledgermq.proto.status import Code


def this_cluster(connection: Connection, files: Files) -> contexts.Context:
    """The cluster of a command's connection, which has these PEM files."""
    keys = connection.credentials or Credentials("", "")
    ca, certificate, key = (str(path.absolute()) if path else "" for path in files)
    endpoints = ";".join(map(str, connection.addresses))
    return contexts.Context(
        endpoints=endpoints,
        tls=connection.tls,
        ca=ca,
        certificate=certificate,
        certificate_key=key,
        access_key=keys.access_key,
        secret_key=keys.secret_key,
    )


def other_cluster(name: str | None, endpoints: str | None) -> contexts.Context | None:
    """The second cluster of a command; None: it names none. The keys of the first cluster never
    sign calls to it."""
    if name is not None and endpoints is not None:
        raise BadArgument("a context and endpoints name two clusters", "give one of them")
    if name is not None:
        return contexts.load().get(name)
    return None if endpoints is None else contexts.Context(endpoints)


def target_in(cluster: contexts.Context, namespace: str, topic: str) -> Target:
    """A topic of a cluster."""
    return Target(
        endpoints=cluster.endpoints,
        topic=topic,
        namespace=namespace,
        access_key=cluster.access_key,
        secret_key=cluster.secret_key,
        tls=cluster.tls,
        ca_file=cluster.ca,
        certificate_file=cluster.certificate,
        certificate_key_file=cluster.certificate_key,
    )


def name_of(text: str, namespace: str) -> tuple[str, str]:
    """(namespace, topic) of a name that may hold its namespace."""
    return parse_stored(text) if "@" in text else (namespace, text)


def check_exists(target: Target, timeout_s: float) -> None:
    """Raises Unreachable or Refused."""
    with target.connect(timeout_s) as connection:
        if not connection.locate(target.topic, target.namespace).broker_groups:
            raise Refused(
                Code.TOPIC_NOT_FOUND,
                f"topic {target.stored_topic} has no queues",
                REMEDIES[Code.TOPIC_NOT_FOUND],
            )


def topic_pairs(
    connection: Connection,
    context: contexts.Context,
    topic: str | None,
    namespace: str,
    other_topic: str | None,
    other: contexts.Context | None,
) -> tuple[list[tuple[Target, Target]], list[tuple[str, str]]]:
    """The topics to compare, and the names of topics that only one cluster has, with the word for
    that cluster."""
    second_context = other or context
    if topic is not None:
        if other is None and other_topic is None:
            raise BadArgument(
                "there is nothing to compare the topic with",
                "give --with-topic, --with-context or --with-endpoints",
            )
        pair = (
            target_in(context, namespace, topic),
            target_in(second_context, *name_of(other_topic or topic, namespace)),
        )
        for target in pair:
            check_exists(target, connection.timeout_s)
        return [pair], []
    if other is None or other_topic is not None:
        raise BadArgument(
            "no topic is named",
            "give --topic, or name another cluster to compare all topics: --with-context",
        )
    credentials = Credentials(other.access_key, other.secret_key) if other.access_key else None
    wire = wire_of(other.tls, *files_of(other))
    with Connection(
        other.endpoints, timeout_s=connection.timeout_s, credentials=credentials, **wire
    ) as second:
        mine, theirs = (
            {listed.name for listed in Admin(one).topics()} for one in (connection, second)
        )
    both = [
        (target_in(context, *parse_stored(name)), target_in(second_context, *parse_stored(name)))
        for name in sorted(mine & theirs)
    ]
    return both, [(name, "this") for name in sorted(mine - theirs)] + [
        (name, "the other") for name in sorted(theirs - mine)
    ]
