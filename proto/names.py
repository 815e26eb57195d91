"""Naming rules of topics, consumer groups, namespaces and property keys, and the form of names
inside the log.

Pure functions over strings; a violated rule is a `LedgerError` with the contract's code. A *stored
name* is (namespace, name) as one string (docs/format.md §4.2); everything below the client surface
uses only stored names.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from ledgermq.proto.status import Code, LedgerError, fail

TOPIC_MAX = 127
DERIVED_TOPIC_MAX = 255
GROUP_MAX = 120
NAMESPACE_MAX = 127
STORED_MAX = 255
"""A stored name is a directory name and, in a V2 record, a topic; both are limited to 255 bytes."""

SEPARATOR = "@"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LITE_SEPARATOR = "$"
"""Separates a topic of kind lite from the name of one of its lite topics, in stored names only: no
name from a client contains it."""
LITE_MAX = 64
LITE_PARENT_MAX = STORED_MAX - len(LITE_SEPARATOR) - LITE_MAX
"""A topic with a longer stored name cannot be of kind lite."""
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
RESERVED_GROUP_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX)
"""Prefix of topics created by the system: a consumer group with such a name would be confused with
one of them."""

RAFT_TOPIC = "rmq_sys_ledgermq_raft"
CONFIG_TOPIC = "rmq_sys_ledgermq_config"
DELIVERY_TOPIC = "rmq_sys_ledgermq_delivery"
STORAGE_TOPIC = "rmq_sys_ledgermq_storage"
CONTROL_TOPICS = frozenset({RAFT_TOPIC, CONFIG_TOPIC, DELIVERY_TOPIC, STORAGE_TOPIC})
"""Topics whose entries are control records."""

TIMER_TOPIC = "rmq_sys_ledgermq_timer"
HALF_TOPIC = "rmq_sys_ledgermq_half"
WAITING_TOPICS = frozenset({TIMER_TOPIC, HALF_TOPIC})
"""Topics whose entries are clients' messages that are not visible yet; the property REAL_TOPIC
names their topic (format §4.4)."""

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

# Property keys reserved by RocketMQ; a client must not use them for its own properties (contract
# §4.7).
RESERVED_KEYS = frozenset(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK
    POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS
    TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32# _SYS_MSG_PRIORITY_ __LITE_TOPIC
    """.split()  # noqa: SIM905 - one name a line would hide the rest
)

_LITE_LEGAL = re.compile(r"[A-Za-z0-9_\-]+").fullmatch
_LEGAL = re.compile(r"[A-Za-z0-9_\-%|]+").fullmatch
# Control characters as in Java's Character.isISOControl: C0, DEL and C1. The property separators
# are two of them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]").search
_ALLOWED = "use only letters, digits, '_', '-', '%' and '|'"


def has_control_character(text: str) -> bool:
    """Whether `text` could break the property string or a terminal."""
    return _CONTROL(text) is not None


def is_system_topic(name: str) -> bool:
    """Whether clients must not use the topic: RocketMQ's system topics and ours. Takes a plain or a
    stored name."""
    name = name.rpartition(SEPARATOR)[2]
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_system_name(name: str) -> bool:
    """Whether a name of something that is no topic could be taken for a topic or a consumer group
    of the system."""
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


def is_dead_letter_topic(name: str) -> bool:
    """Whether it is the dead-letter topic of a consumer group. Takes a plain or a stored name."""
    return name.rpartition(SEPARATOR)[2].startswith(DLQ_PREFIX)


def _check_topic(name: str) -> None:
    if not name.strip():
        raise fail(Code.ILLEGAL_TOPIC, "the topic name is blank; give one")
    limit = DERIVED_TOPIC_MAX if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_MAX
    if len(name) > limit:
        raise fail(
            Code.ILLEGAL_TOPIC, f"the topic name has {len(name)} characters; the limit is {limit}"
        )
    if not _LEGAL(name):
        raise fail(
            Code.ILLEGAL_TOPIC, f"the topic name {name!r} has an illegal character; {_ALLOWED}"
        )
    if is_system_topic(name):
        raise fail(Code.ILLEGAL_TOPIC, f"the topic name {name!r} is reserved; choose another")


def _check_group(name: str) -> None:
    if not name.strip():
        raise fail(Code.ILLEGAL_CONSUMER_GROUP, "the consumer group name is blank; give one")
    if len(name) > GROUP_MAX:
        raise fail(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the consumer group name has {len(name)} characters; the limit is {GROUP_MAX}",
        )
    if not _LEGAL(name):
        raise fail(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the consumer group name {name!r} has an illegal character; {_ALLOWED}",
        )
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise _reserved_group(name)


def _check_namespace(namespace: str, code: Code) -> None:
    if not namespace:
        return
    if len(namespace) > NAMESPACE_MAX:
        raise fail(
            code, f"the namespace has {len(namespace)} characters; the limit is {NAMESPACE_MAX}"
        )
    if not _LEGAL(namespace):
        raise fail(code, f"the namespace {namespace!r} has an illegal character; {_ALLOWED}")


def stored_name(namespace: str, name: str) -> str:
    """(namespace, name) as one string. The caller has validated both, or created them itself."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def parse_stored(stored: str) -> tuple[str, str]:
    """The inverse of `stored_name`."""
    namespace, _, name = stored.rpartition(SEPARATOR)
    return namespace, name


def check_lite(lite: str) -> None:
    """Validate the name of a lite topic. Raises ILLEGAL_LITE_TOPIC."""
    if not lite.strip():
        raise fail(Code.ILLEGAL_LITE_TOPIC, "the name of the lite topic is blank; give one")
    if len(lite.encode()) > LITE_MAX:
        raise fail(
            Code.ILLEGAL_LITE_TOPIC,
            f"the name of the lite topic has {len(lite.encode())} bytes; the limit is {LITE_MAX}",
        )
    if not _LITE_LEGAL(lite):
        raise fail(
            Code.ILLEGAL_LITE_TOPIC,
            f"the lite topic {lite!r} has an illegal character; use only letters, digits, '_' and '-'",
        )


def lite_stored(parent: str, lite: str) -> str:
    """The stored name of a lite topic, from the stored name of its parent topic. The caller has
    validated both."""
    return f"{parent}{LITE_SEPARATOR}{lite}"


def parse_lite(stored: str) -> tuple[str, str]:
    """The inverse of `lite_stored`: (topic, lite topic); for any other stored name, the name itself
    and an empty text."""
    parent, _, lite = stored.partition(LITE_SEPARATOR)
    return parent, lite


def parent_of(stored: str) -> str:
    """The topic that clients know: for a lite topic its parent topic, otherwise the topic
    itself."""
    return stored.partition(LITE_SEPARATOR)[0]


MEMBER_SEPARATOR = "$"
_MEMBER_LEGAL = re.compile(r"[A-Za-z0-9_\-%|@.]{1,128}").fullmatch


def member_name(client: str) -> str:
    """A client id in the form used in names of members: itself, or a digest if it is long or has
    other characters."""
    if _MEMBER_LEGAL(client):
        return client
    return hashlib.sha256(client.encode("utf-8", "surrogateescape")).hexdigest()


def member_group(group: str, client: str) -> str:
    """The internal consumer group of one client of a broadcasting group, from the stored name of
    the group."""
    return f"{group}{MEMBER_SEPARATOR}{member_name(client)}"


def parse_member(group: str) -> tuple[str, str]:
    """The inverse of `member_group`: (group, client); for any other consumer group, itself and an
    empty text."""
    base, _, client = group.partition(MEMBER_SEPARATOR)
    return base, client


def base_group(group: str) -> str:
    """The consumer group that clients know: for a member its group, otherwise the group itself."""
    return group.partition(MEMBER_SEPARATOR)[0]


def _stored(namespace: str, name: str, code: Code) -> str:
    stored = stored_name(namespace, name)
    if len(stored) > STORED_MAX:
        raise fail(
            code,
            f"namespace and name together have {len(stored)} characters; the limit is {STORED_MAX}",
        )
    return stored


@lru_cache(maxsize=4096)
def topic_name(namespace: str, name: str) -> str:
    """Validate a topic named by a client and return its stored name. Raises ILLEGAL_TOPIC."""
    _check_topic(name)
    _check_namespace(namespace, Code.ILLEGAL_TOPIC)
    return _stored(namespace, name, Code.ILLEGAL_TOPIC)


@lru_cache(maxsize=4096)
def group_name(namespace: str, name: str) -> str:
    """Validate a consumer group named by a client and return its stored name. Raises
    ILLEGAL_CONSUMER_GROUP."""
    stored = agreed_group_name(namespace, name)
    if name.startswith(RESERVED_GROUP_PREFIXES):
        raise _reserved_group(name)
    return stored


def agreed_group_name(namespace: str, name: str) -> str:
    """The same, by the rules for commands of the controller quorum. These rules never become
    stricter, because a command in a journal must have the same outcome on every node. So a group
    whose name was reserved later can still be changed and deleted."""
    _check_group(name)
    _check_namespace(namespace, Code.ILLEGAL_CONSUMER_GROUP)
    return _stored(namespace, name, Code.ILLEGAL_CONSUMER_GROUP)


def _reserved_group(name: str) -> LedgerError:
    return fail(
        Code.ILLEGAL_CONSUMER_GROUP, f"the consumer group name {name!r} is reserved; choose another"
    )
