"""The Spark options for a topic of a running cluster: its address, the credentials, and the range.

Only parsing; a wrong option raises a ValueError that names it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.client.errors import BadArgument
from ledgermq.client.moments import moment_ms
from ledgermq.client.native.consumers.positions import Place, Start
from ledgermq.client.native.log_connection import Located
from ledgermq.client.native.once.tasks import TIMEOUT_S, TaskConnection
from ledgermq.proto.names import stored_name
from ledgermq.proto.signature import Credentials

Places = dict[str, dict[str, int]]
"""Broker group → queue → offset, as in the offsets that users write and checkpoints hold."""


@dataclass(frozen=True)
class Target:
    """A topic of a cluster, and how to connect to it."""

    endpoints: str
    topic: str
    namespace: str = ""
    consumer_group: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    certificate_key_file: str = ""

    @property
    def stored_topic(self) -> str:
        """The topic with its namespace, as the log names it."""
        return stored_name(self.namespace, self.topic)

    @property
    def options(self) -> dict[str, str]:
        """The options that name it: the inverse of `target_of`."""
        given = {
            "endpoints": self.endpoints,
            "topic": self.topic,
            "namespace": self.namespace,
            "consumerGroup": self.consumer_group,
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "tls": "true" if self.tls else "",
            "caFile": self.ca_file,
            "certificateFile": self.certificate_file,
            "certificateKeyFile": self.certificate_key_file,
        }
        return {name: text for name, text in given.items() if text}

    def connect(self, timeout_s: float = TIMEOUT_S) -> TaskConnection:
        """A new connection; the caller closes it."""
        credentials = Credentials(self.access_key, self.secret_key) if self.access_key else None
        ca = Path(self.ca_file).read_bytes() if self.ca_file else None
        own = (self.certificate_key_file, self.certificate_file)
        certificate = (Path(own[0]).read_bytes(), Path(own[1]).read_bytes()) if all(own) else None
        wire = {"tls": self.tls, "ca": ca, "certificate": certificate}
        connection = TaskConnection(
            self.endpoints, timeout_s=timeout_s, credentials=credentials, **wire
        )
        if credentials is not None:
            connection.guard_secret()
        return connection


def option(options: Mapping[str, str], name: str, default: str = "") -> str:
    """One option by its name in any case: Spark may pass options in lower case."""
    return options.get(name, options.get(name.lower(), default))


def target_of(options: Mapping[str, str]) -> Target:
    """The target in the options."""
    if not option(options, "topic"):
        raise ValueError("option topic is missing: set it to the topic's name")
    return Target(
        endpoints=option(options, "endpoints"),
        topic=option(options, "topic"),
        namespace=option(options, "namespace"),
        consumer_group=option(options, "consumerGroup"),
        access_key=option(options, "accessKey"),
        secret_key=option(options, "secretKey"),
        tls=flag_of(options, "tls", False),
        ca_file=option(options, "caFile"),
        certificate_file=option(options, "certificateFile"),
        certificate_key_file=option(options, "certificateKeyFile"),
    )


def flag_of(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false."""
    text = option(options, name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name} is {text!r}; use true or false")
    return text == "true"


def count_of(options: Mapping[str, str], name: str) -> int | None:
    """An option that is a positive integer."""
    text = option(options, name)
    if not text:
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"option {name} is {text!r}; use a positive integer")
    return int(text)


def places_of(queues: Mapping[Place, int]) -> Places:
    """Offsets of queues in the written form."""
    places: Places = {}
    for queue in sorted(queues, key=lambda queue: (queue.broker_group, queue.queue)):
        places.setdefault(queue.broker_group, {})[str(queue.queue)] = int(queues[queue])
    return places


def queues_of(places: Places) -> dict[Place, int]:
    """The inverse of `places_of`."""
    return {
        Place(group, int(queue)): offset
        for group, queues in places.items()
        for queue, offset in queues.items()
    }


def bounds(
    connection: TaskConnection, target: Target, options: Mapping[str, str]
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Where to start and end in every queue, from the options startingOffsets or startingTime,
    endingOffsets or endingTime."""
    located = connection.locate(target.topic, target.namespace)
    begins = _places(connection, target, located, options, "starting", default="earliest")
    ends = _places(connection, target, located, options, "ending", default="latest")
    return begins, {queue: max(end, begins.get(queue, end)) for queue, end in ends.items()}


def _places(
    connection: TaskConnection,
    target: Target,
    located: Located,
    options: Mapping[str, str],
    which: str,
    default: str,
) -> dict[Place, int]:
    moment, offsets = option(options, f"{which}Time"), option(options, f"{which}Offsets", default)
    if moment:
        return offsets_at(connection, target, located, Start(store_ms=time_ms(moment)))
    if offsets in ("earliest", "latest"):
        return offsets_at(connection, target, located, Start(earliest=offsets == "earliest"))
    known = offsets_at(connection, target, located, Start(earliest=which == "starting"))
    try:
        given = queues_of(json.loads(offsets))
    except (ValueError, AttributeError, TypeError):
        accepted = '"earliest", "latest" or offsets such as {"g1": {"0": 17}}'
        raise ValueError(f"option {which}Offsets is {offsets!r}; use {accepted}") from None
    unknown = given.keys() - known.keys()
    if unknown:
        text = places_of(dict.fromkeys(unknown, 0))
        raise ValueError(
            f"option {which}Offsets names queues that topic {target.topic} does not have: {text}"
        )
    return known | given


def offsets_at(
    connection: TaskConnection, target: Target, located: Located, start: Start
) -> dict[Place, int]:
    """The offset of one place in every queue."""
    begins, _ = connection.find_offsets(
        located, target.topic, target.namespace, start, target.consumer_group
    )
    return begins


def time_ms(text: str) -> int:
    """Milliseconds since 1970, from a point in time as the command line takes it. Raises
    ValueError."""
    try:
        return moment_ms(text, time.time_ns() // 1_000_000)
    except BadArgument as error:
        raise ValueError(str(error)) from None
