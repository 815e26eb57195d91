from ledgermq.proto import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerMessage(_message.Message):
    __slots__ = ("challenge", "hello", "hello_reply", "forward_call", "forward_result", "forward_cancel", "client_signs", "client_gone", "node_status_request", "node_status_reply", "clock_request", "clock_reply")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HELLO_REPLY_FIELD_NUMBER: _ClassVar[int]
    FORWARD_CALL_FIELD_NUMBER: _ClassVar[int]
    FORWARD_RESULT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SIGNS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_GONE_FIELD_NUMBER: _ClassVar[int]
    NODE_STATUS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_STATUS_REPLY_FIELD_NUMBER: _ClassVar[int]
    CLOCK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CLOCK_REPLY_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    hello: Hello
    hello_reply: HelloReply
    forward_call: ForwardCall
    forward_result: ForwardResult
    forward_cancel: ForwardCancel
    client_signs: ClientSigns
    client_gone: ClientGone
    node_status_request: NodeStatusRequest
    node_status_reply: NodeStatusReply
    clock_request: ClockRequest
    clock_reply: ClockReply
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., hello_reply: _Optional[_Union[HelloReply, _Mapping]] = ..., forward_call: _Optional[_Union[ForwardCall, _Mapping]] = ..., forward_result: _Optional[_Union[ForwardResult, _Mapping]] = ..., forward_cancel: _Optional[_Union[ForwardCancel, _Mapping]] = ..., client_signs: _Optional[_Union[ClientSigns, _Mapping]] = ..., client_gone: _Optional[_Union[ClientGone, _Mapping]] = ..., node_status_request: _Optional[_Union[NodeStatusRequest, _Mapping]] = ..., node_status_reply: _Optional[_Union[NodeStatusReply, _Mapping]] = ..., clock_request: _Optional[_Union[ClockRequest, _Mapping]] = ..., clock_reply: _Optional[_Union[ClockReply, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster_id", "node", "boot_id", "mac", "groups", "nonce", "version", "format_max", "wire_version", "level_max")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_MAX_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node: str
    boot_id: str
    mac: bytes
    groups: _containers.RepeatedCompositeFieldContainer[GroupIdentity]
    nonce: bytes
    version: str
    format_max: int
    wire_version: int
    level_max: int
    def __init__(self, cluster_id: _Optional[str] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., mac: _Optional[bytes] = ..., groups: _Optional[_Iterable[_Union[GroupIdentity, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., version: _Optional[str] = ..., format_max: _Optional[int] = ..., wire_version: _Optional[int] = ..., level_max: _Optional[int] = ...) -> None: ...

class GroupIdentity(_message.Message):
    __slots__ = ("group", "log_id", "replica", "incarnation", "data_file_bytes", "format_version", "generation", "boots", "recorded_incarnation", "objection", "members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATA_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOOTS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OBJECTION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    log_id: str
    replica: str
    incarnation: str
    data_file_bytes: int
    format_version: int
    generation: int
    boots: _containers.RepeatedScalarFieldContainer[str]
    recorded_incarnation: str
    objection: str
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., log_id: _Optional[str] = ..., replica: _Optional[str] = ..., incarnation: _Optional[str] = ..., data_file_bytes: _Optional[int] = ..., format_version: _Optional[int] = ..., generation: _Optional[int] = ..., boots: _Optional[_Iterable[str]] = ..., recorded_incarnation: _Optional[str] = ..., objection: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("cluster_id", "node", "boot_id", "mac", "groups", "version", "refusal", "refusal_reason", "format_max", "wire_version", "level_max", "wall_ns")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    FORMAT_MAX_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node: str
    boot_id: str
    mac: bytes
    groups: _containers.RepeatedCompositeFieldContainer[GroupIdentity]
    version: str
    refusal: str
    refusal_reason: str
    format_max: int
    wire_version: int
    level_max: int
    wall_ns: int
    def __init__(self, cluster_id: _Optional[str] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., mac: _Optional[bytes] = ..., groups: _Optional[_Iterable[_Union[GroupIdentity, _Mapping]]] = ..., version: _Optional[str] = ..., refusal: _Optional[str] = ..., refusal_reason: _Optional[str] = ..., format_max: _Optional[int] = ..., wire_version: _Optional[int] = ..., level_max: _Optional[int] = ..., wall_ns: _Optional[int] = ...) -> None: ...

class ForwardCall(_message.Message):
    __slots__ = ("sequence", "group", "method", "metadata", "request", "deadline_ms")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    group: str
    method: str
    metadata: _containers.ScalarMap[str, str]
    request: bytes
    deadline_ms: int
    def __init__(self, sequence: _Optional[int] = ..., group: _Optional[str] = ..., method: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., request: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ForwardResult(_message.Message):
    __slots__ = ("sequence", "responses", "not_leader", "leader", "refusal", "grpc_code", "grpc_message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GRPC_CODE_FIELD_NUMBER: _ClassVar[int]
    GRPC_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    responses: _containers.RepeatedScalarFieldContainer[bytes]
    not_leader: bool
    leader: str
    refusal: str
    grpc_code: int
    grpc_message: str
    def __init__(self, sequence: _Optional[int] = ..., responses: _Optional[_Iterable[bytes]] = ..., not_leader: _Optional[bool] = ..., leader: _Optional[str] = ..., refusal: _Optional[str] = ..., grpc_code: _Optional[int] = ..., grpc_message: _Optional[str] = ...) -> None: ...

class ForwardCancel(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class ClientSigns(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[_Iterable[str]] = ...) -> None: ...

class ClientGone(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class ClientCommand(_message.Message):
    __slots__ = ("client_id", "topic", "command")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topic: str
    command: bytes
    def __init__(self, client_id: _Optional[str] = ..., topic: _Optional[str] = ..., command: _Optional[bytes] = ...) -> None: ...

class ClientCommandReply(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    def __init__(self, taken: _Optional[bool] = ...) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ("sequence", "without_queues")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_QUEUES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    without_queues: bool
    def __init__(self, sequence: _Optional[int] = ..., without_queues: _Optional[bool] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ("asked_ns",)
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    asked_ns: int
    def __init__(self, asked_ns: _Optional[int] = ...) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("asked_ns", "wall_ns", "objections")
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIONS_FIELD_NUMBER: _ClassVar[int]
    asked_ns: int
    wall_ns: int
    objections: Objections
    def __init__(self, asked_ns: _Optional[int] = ..., wall_ns: _Optional[int] = ..., objections: _Optional[_Union[Objections, _Mapping]] = ...) -> None: ...

class Objections(_message.Message):
    __slots__ = ("by_group",)
    class ByGroupEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BY_GROUP_FIELD_NUMBER: _ClassVar[int]
    by_group: _containers.ScalarMap[str, str]
    def __init__(self, by_group: _Optional[_Mapping[str, str]] = ...) -> None: ...

class NodeStatusReply(_message.Message):
    __slots__ = ("sequence", "node", "groups", "topics", "counts")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    node: _admin_pb2.NodeInfo
    groups: _containers.RepeatedCompositeFieldContainer[_admin_pb2.BrokerGroupInfo]
    topics: _containers.RepeatedCompositeFieldContainer[_admin_pb2.TopicInfo]
    counts: _containers.RepeatedCompositeFieldContainer[TopicCounts]
    def __init__(self, sequence: _Optional[int] = ..., node: _Optional[_Union[_admin_pb2.NodeInfo, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_admin_pb2.BrokerGroupInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[_admin_pb2.TopicInfo, _Mapping]]] = ..., counts: _Optional[_Iterable[_Union[TopicCounts, _Mapping]]] = ...) -> None: ...

class TopicCounts(_message.Message):
    __slots__ = ("broker_group", "topics", "queues", "messages")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedScalarFieldContainer[int]
    messages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[int]] = ..., messages: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupQuery(_message.Message):
    __slots__ = ("topic", "key", "message_id", "begin_ms", "end_ms", "max", "offsets", "skip")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    message_id: str
    begin_ms: int
    end_ms: int
    max: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    skip: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., message_id: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., skip: _Optional[int] = ...) -> None: ...

class GroupQueryReply(_message.Message):
    __slots__ = ("status", "messages", "more", "offsets", "lagging")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    messages: _containers.RepeatedCompositeFieldContainer[_admin_pb2.PeekedMessage]
    more: bool
    offsets: _containers.RepeatedScalarFieldContainer[int]
    lagging: _admin_pb2.IndexProgress
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_admin_pb2.PeekedMessage, _Mapping]]] = ..., more: _Optional[bool] = ..., offsets: _Optional[_Iterable[int]] = ..., lagging: _Optional[_Union[_admin_pb2.IndexProgress, _Mapping]] = ...) -> None: ...

class GroupMessage(_message.Message):
    __slots__ = ("topic", "queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GroupMessageReply(_message.Message):
    __slots__ = ("status", "index", "sha256", "consumption")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CONSUMPTION_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    index: int
    sha256: str
    consumption: _containers.RepeatedCompositeFieldContainer[_admin_pb2.ConsumptionState]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., index: _Optional[int] = ..., sha256: _Optional[str] = ..., consumption: _Optional[_Iterable[_Union[_admin_pb2.ConsumptionState, _Mapping]]] = ...) -> None: ...

class GroupTrace(_message.Message):
    __slots__ = ("topic", "message_id", "from_index")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    from_index: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., from_index: _Optional[int] = ...) -> None: ...

class GroupTraceReply(_message.Message):
    __slots__ = ("status", "events", "next_index", "found")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    events: _containers.RepeatedCompositeFieldContainer[_admin_pb2.TraceEvent]
    next_index: int
    found: bool
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., events: _Optional[_Iterable[_Union[_admin_pb2.TraceEvent, _Mapping]]] = ..., next_index: _Optional[int] = ..., found: _Optional[bool] = ...) -> None: ...

class GroupWhy(_message.Message):
    __slots__ = ("topic", "message_id", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class GroupWhyReply(_message.Message):
    __slots__ = ("status", "answer", "reason", "evidence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    answer: str
    reason: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., answer: _Optional[str] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ...) -> None: ...

class Locate(_message.Message):
    __slots__ = ("broker_group", "index")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    index: int
    def __init__(self, broker_group: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class LocateReply(_message.Message):
    __slots__ = ("status", "copy")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    copy: _admin_pb2.ReplicaCopy
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., copy: _Optional[_Union[_admin_pb2.ReplicaCopy, _Mapping]] = ...) -> None: ...

class GroupProgress(_message.Message):
    __slots__ = ("group", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupProgressReply(_message.Message):
    __slots__ = ("status", "topics")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    topics: _containers.RepeatedCompositeFieldContainer[_admin_pb2.TopicLag]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_admin_pb2.TopicLag, _Mapping]]] = ...) -> None: ...

class GroupReset(_message.Message):
    __slots__ = ("group", "topic", "queues", "earliest", "latest", "offset", "store_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queues: _containers.RepeatedScalarFieldContainer[int]
    earliest: bool
    latest: bool
    offset: int
    store_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queues: _Optional[_Iterable[int]] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., offset: _Optional[int] = ..., store_ms: _Optional[int] = ...) -> None: ...

class GroupResetReply(_message.Message):
    __slots__ = ("status", "queues")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    queues: _containers.RepeatedCompositeFieldContainer[_admin_pb2.QueueCursor]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_admin_pb2.QueueCursor, _Mapping]]] = ...) -> None: ...

class GroupLetters(_message.Message):
    __slots__ = ("topic", "message_ids", "begin_ms", "end_ms", "settled", "bodies", "max", "offset", "end")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    begin_ms: int
    end_ms: int
    settled: bool
    bodies: bool
    max: int
    offset: int
    end: int
    def __init__(self, topic: _Optional[str] = ..., message_ids: _Optional[_Iterable[str]] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., settled: _Optional[bool] = ..., bodies: _Optional[bool] = ..., max: _Optional[int] = ..., offset: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class GroupLettersReply(_message.Message):
    __slots__ = ("status", "letters", "next_offset", "lagging")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    letters: _containers.RepeatedCompositeFieldContainer[_admin_pb2.DeadLetter]
    next_offset: int
    lagging: _admin_pb2.IndexProgress
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., letters: _Optional[_Iterable[_Union[_admin_pb2.DeadLetter, _Mapping]]] = ..., next_offset: _Optional[int] = ..., lagging: _Optional[_Union[_admin_pb2.IndexProgress, _Mapping]] = ...) -> None: ...

class GroupLetterCounts(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupLetterCountsReply(_message.Message):
    __slots__ = ("status", "counts", "ends")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    counts: _containers.RepeatedCompositeFieldContainer[_admin_pb2.DeadLetterCount]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., counts: _Optional[_Iterable[_Union[_admin_pb2.DeadLetterCount, _Mapping]]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupSettle(_message.Message):
    __slots__ = ("topic", "how", "offsets", "user")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    how: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    user: str
    def __init__(self, topic: _Optional[str] = ..., how: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., user: _Optional[str] = ...) -> None: ...

class GroupSettleReply(_message.Message):
    __slots__ = ("status", "states")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupWaiting(_message.Message):
    __slots__ = ("topic", "kind", "message_ids", "begin_ms", "end_ms", "max", "epoch", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    kind: str
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    begin_ms: int
    end_ms: int
    max: int
    epoch: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., kind: _Optional[str] = ..., message_ids: _Optional[_Iterable[str]] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GroupWaitingReply(_message.Message):
    __slots__ = ("status", "messages", "more", "next_epoch", "next_offset")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    messages: _containers.RepeatedCompositeFieldContainer[_admin_pb2.WaitingMessage]
    more: bool
    next_epoch: int
    next_offset: int
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_admin_pb2.WaitingMessage, _Mapping]]] = ..., more: _Optional[bool] = ..., next_epoch: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class GroupCancel(_message.Message):
    __slots__ = ("topic", "kind", "places", "user")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    kind: str
    places: _containers.RepeatedCompositeFieldContainer[_admin_pb2.WaitingPlace]
    user: str
    def __init__(self, topic: _Optional[str] = ..., kind: _Optional[str] = ..., places: _Optional[_Iterable[_Union[_admin_pb2.WaitingPlace, _Mapping]]] = ..., user: _Optional[str] = ...) -> None: ...

class GroupCancelReply(_message.Message):
    __slots__ = ("status", "states")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class StorageQuestion(_message.Message):
    __slots__ = ("broker_group", "bases", "digests_only")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    bases: _containers.RepeatedScalarFieldContainer[int]
    digests_only: bool
    def __init__(self, broker_group: _Optional[str] = ..., bases: _Optional[_Iterable[int]] = ..., digests_only: _Optional[bool] = ...) -> None: ...

class StorageReply(_message.Message):
    __slots__ = ("digests", "disk_total_bytes", "disk_free_bytes", "begin_index", "decided_begin_index", "snapshot_index", "waits_for", "full", "wanted_bytes")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    WANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedCompositeFieldContainer[FileDigest]
    disk_total_bytes: int
    disk_free_bytes: int
    begin_index: int
    decided_begin_index: int
    snapshot_index: int
    waits_for: str
    full: bool
    wanted_bytes: int
    def __init__(self, digests: _Optional[_Iterable[_Union[FileDigest, _Mapping]]] = ..., disk_total_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., begin_index: _Optional[int] = ..., decided_begin_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., waits_for: _Optional[str] = ..., full: _Optional[bool] = ..., wanted_bytes: _Optional[int] = ...) -> None: ...

class FileDigest(_message.Message):
    __slots__ = ("base", "sha256", "tree_root")
    BASE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    TREE_ROOT_FIELD_NUMBER: _ClassVar[int]
    base: int
    sha256: str
    tree_root: str
    def __init__(self, base: _Optional[int] = ..., sha256: _Optional[str] = ..., tree_root: _Optional[str] = ...) -> None: ...

class GroupTimeEpoch(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class GroupSeal(_message.Message):
    __slots__ = ("through", "user")
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    through: int
    user: str
    def __init__(self, through: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class GroupRaise(_message.Message):
    __slots__ = ("level", "user")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    level: int
    user: str
    def __init__(self, level: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...
