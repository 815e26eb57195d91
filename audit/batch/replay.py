"""Replaying a range of a topic to another topic, each message at most once, however often the
replay is interrupted and repeated.

A plan fixes what decides a message's producer and sequence number: the range of every source queue,
the filter, and the broker groups of the target. It is a file that is written before the first
message. Each source queue is a partition, which is written by a producer of its own, whose name
contains the plan's id (docs/spark.md, Write). So a repeated run numbers every message as the run
before did, and the cluster stores only those that are missing. The plan also names the last message
of each range (`positions.EntryName`): a source that was restored from an older state has other
messages there, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ledgermq.audit.outputs import text, write_file
from ledgermq.audit.spark.cluster.cluster_options import (
    Places,
    Target,
    bounds,
    offsets_at,
    places_of,
    queues_of,
)
from ledgermq.client.aside import Aside
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.native.consumers.positions import EntryName, Place, Start
from ledgermq.client.native.log_connection import Located
from ledgermq.client.native.once.tasks import TaskConnection
from ledgermq.proto.json_checksum import BadChecksum, opened, sealed
from ledgermq.proto.status import Code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
REMEMBERED_MS = 6 * 86_400_000
"""A broker group forgets a named producer after 7 silent days; a plan ends a day earlier."""
SENT = ("body", "tag", "keys", "properties", "born_time")
"""The columns of a message that its copy has."""


@dataclass(frozen=True)
class Plan:
    """What a replay copies. Topics are written NAMESPACE@TOPIC, or TOPIC."""

    id: str
    cluster: str
    topic: str
    starts: Places
    ends: Places
    where: str
    """A condition in SQL; empty: all messages."""
    to_cluster: str
    to_topic: str
    to_broker_groups: list[str]
    """In the order in which the partitions use them."""
    created_ms: int
    done: bool = False
    last: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """By broker group and queue, the name of the last message of the range; former versions wrote
    none."""
    time_range: str = ""
    """As it was given to the command that made the plan; the offsets above are what it meant
    then."""

    @property
    def messages(self) -> int:
        """The number of messages in the ranges, before the filter."""
        begins = queues_of(self.starts)
        return sum(end - begins[queue] for queue, end in queues_of(self.ends).items())


@dataclass(frozen=True)
class Opened:
    """A topic, and a connection to its cluster."""

    target: Target
    connection: TaskConnection

    def locate(self) -> Located:
        """Raises Unreachable or Refused."""
        return self.connection.locate(self.target.topic, self.target.namespace)

    def name_before(self, place: Place, end: int) -> EntryName:
        """The name of the message in front of an offset. Raises MessagesGone, Unreachable or
        Refused."""
        return self.connection.name_before(
            self.target.topic, self.target.namespace, place, end, self.target.consumer_group
        )


def make_plan(
    plan_id: str,
    source: Opened,
    goal: Opened,
    limits: Mapping[str, str],
    where: str,
    now_ms: int,
    time_range: str = "",
) -> Plan:
    """A new plan. `limits`: options of the data source that limit the range. Raises Unreachable or
    Refused."""
    begins, ends = bounds(source.connection, source.target, limits)
    last: dict[str, dict[str, list[int]]] = {}
    for place, end in ends.items():
        if end > begins.get(place, 0):
            last.setdefault(place.broker_group, {})[str(place.queue)] = list(
                source.name_before(place, end)
            )
    located = goal.locate()
    return Plan(
        id=plan_id,
        cluster=source.locate().cluster_id,
        topic=source.target.stored_topic,
        starts=places_of({queue: begins.get(queue, 0) for queue in ends}),
        ends=places_of(ends),
        where=where,
        to_cluster=located.cluster_id,
        to_topic=goal.target.stored_topic,
        to_broker_groups=[group.name for group in located.broker_groups if group.queues],
        created_ms=now_ms,
        last=last,
        time_range=time_range,
    )


def write_new(plan: Plan, path: Path) -> None:
    """Write the file of a new plan, durable with its name on return. Raises BadArgument if the file
    exists or cannot be written: of two commands that make a plan, one goes on."""
    try:
        aside = Aside(path)
    except (FileExistsError, BlockingIOError):
        raise BadArgument(
            f"another command has created the plan {path}",
            "see whether it still runs, then repeat this command",
        ) from None
    try:
        aside.file.write(_text(plan).encode())
        aside.close()
    except OSError as error:
        aside.abandon()
        raise BadArgument(
            f"the plan {path} cannot be written ({error.strerror})",
            "give another path, or make room",
        ) from None


def write_done(plan: Plan, path: Path) -> None:
    """Replace the file by that of the plan as done. Raises CannotWrite."""
    write_file(path, text(_text(plan)))


def _text(plan: Plan) -> str:
    return json.dumps(sealed({"v": VERSION, **asdict(plan)}), ensure_ascii=False, indent=1) + "\n"


def read_plan(path: Path) -> Plan:
    """Raises BadArgument."""
    try:
        fields = opened(json.loads(path.read_text(encoding="utf-8")), required=False)
        version = fields.pop("v")
        if version == VERSION:
            return Plan(**fields)
    except BadChecksum as error:
        # A digit that flipped would leave messages out, or store them twice.
        raise BadArgument(
            f"the plan {path} is damaged: {error}",
            "compare the topics, and make a new plan for the rest",
        ) from error
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise BadArgument(
            f"{path} is not a plan of a replay",
            "give the file of a plan, or a path where no file exists",
        ) from error
    raise BadArgument(
        f"the plan {path} has version {version}, not {VERSION}",
        "run it with the program that wrote it",
    )


def check_plan(plan: Plan, source: Opened, goal: Opened, now_ms: int) -> None:
    """Refuse a plan that is about other topics, or that could store messages twice. Raises
    Unreachable or Refused."""
    for does, topic, cluster, side in (
        ("reads", plan.topic, plan.cluster, source),
        ("writes", plan.to_topic, plan.to_cluster, goal),
    ):
        if (topic, cluster) != (side.target.stored_topic, side.locate().cluster_id):
            problem = (
                f"the plan {does} topic {topic} of cluster {cluster}, and the command names"
                " another one"
            )
            raise Refused(
                Code.PRECONDITION_FAILED,
                problem,
                "name the same topics and clusters, or make a new plan",
            )
    if not plan.done and now_ms - plan.created_ms > REMEMBERED_MS:
        problem = (
            "the plan is more than six days old: the cluster may have forgotten which of its"
            " messages are stored"
        )
        raise Refused(
            Code.PRECONDITION_FAILED,
            problem,
            "compare the topics (ledgermq jobs compare), and make a new plan for the rest",
        )
    if not plan.done:
        _check_source(plan, source)


def _check_source(plan: Plan, source: Opened) -> None:
    """Refuse a range whose last messages the log does not have. Raises Unreachable or Refused."""
    ends = (
        offsets_at(source.connection, source.target, source.locate(), Start(earliest=False))
        if plan.last
        else {}
    )
    for place, wanted in queues_of(plan.ends).items():
        name = plan.last.get(place.broker_group, {}).get(str(place.queue))
        if name is None or place not in ends:
            # Of a former version, or a queue that is gone, which ends the plan when it is read.
            continue
        names = list(source.name_before(place, wanted)) if wanted <= ends[place] else None
        if names != name:
            where = f"queue {place.queue} of broker group {place.broker_group}"
            problem = (
                f"the plan ends {where} with a message that topic {plan.topic} does not have: it"
                " was restored from an older state"
            )
            remedy = "compare the topics (ledgermq jobs compare), and make a new plan for the rest"
            raise Refused(Code.PRECONDITION_FAILED, problem, remedy)


def range_options(plan: Plan, source: Opened) -> dict[str, str]:
    """The range of the plan as options of the data source. Queues that the topic got since the plan
    was made have an empty range."""
    nothing = {Place(*queue): 0 for queue in source.locate().queues}
    ranges = {"startingOffsets": plan.starts, "endingOffsets": plan.ends}
    return {
        name: json.dumps(places_of(nothing | queues_of(places))) for name, places in ranges.items()
    }


def replay(
    session: SparkSession, plan: Plan, source: Mapping[str, str], goal: Mapping[str, str]
) -> tuple[Plan, int]:
    """Copy what is missing; each source queue keeps its order. `source` and `goal`: options of the
    data source, with the plan's range. Returns the plan as done, and the number of messages that
    the target has of it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    frame = session.read.format("ledgermq").options(**source).load()
    if plan.where:
        frame = frame.where(plan.where)
    seen = Observation()
    rows = frame.observe(seen, F.count(F.lit(1)).alias("n")).select(
        *SENT, F.concat_ws("/", "broker_group", "queue").alias("queue_key")
    )
    fixed = {"writeId": f"replay {plan.id}", "brokerGroups": ",".join(plan.to_broker_groups)}
    rows.write.format("ledgermq").options(**goal, **fixed).mode("append").save()
    return replace(plan, done=True), int(seen.get["n"])
