from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Name(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatusResponse(_message.Message):
    __slots__ = ("status", "cluster_id", "health", "nodes", "groups", "topics", "level")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    status: Status
    cluster_id: str
    health: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    groups: _containers.RepeatedCompositeFieldContainer[BrokerGroupInfo]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    level: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., cluster_id: _Optional[str] = ..., health: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[BrokerGroupInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., level: _Optional[int] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node", "endpoint", "up", "version", "disk_used_bytes", "disk_free_bytes", "native", "level_max", "clock", "clock_offset_ms", "disk", "peer_failures")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    PEER_FAILURES_FIELD_NUMBER: _ClassVar[int]
    node: str
    endpoint: str
    up: bool
    version: str
    disk_used_bytes: int
    disk_free_bytes: int
    native: str
    level_max: int
    clock: str
    clock_offset_ms: int
    disk: str
    peer_failures: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., endpoint: _Optional[str] = ..., up: _Optional[bool] = ..., version: _Optional[str] = ..., disk_used_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., native: _Optional[str] = ..., level_max: _Optional[int] = ..., clock: _Optional[str] = ..., clock_offset_ms: _Optional[int] = ..., disk: _Optional[str] = ..., peer_failures: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeNodeRequest(_message.Message):
    __slots__ = ("node", "log_lines", "configuration")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    log_lines: int
    configuration: bool
    def __init__(self, node: _Optional[str] = ..., log_lines: _Optional[int] = ..., configuration: _Optional[bool] = ...) -> None: ...

class DescribeNodeResponse(_message.Message):
    __slots__ = ("status", "node", "version", "native", "pid", "started_ms", "resident_bytes", "open_files", "open_files_max", "client_connections", "telemetry_streams", "native_streams", "peers", "connected_peers", "configuration", "log")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_MAX_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_STREAMS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_STREAMS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_PEERS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    status: Status
    node: str
    version: str
    native: str
    pid: int
    started_ms: int
    resident_bytes: int
    open_files: int
    open_files_max: int
    client_connections: int
    telemetry_streams: int
    native_streams: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    connected_peers: _containers.RepeatedScalarFieldContainer[str]
    configuration: str
    log: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., native: _Optional[str] = ..., pid: _Optional[int] = ..., started_ms: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., open_files: _Optional[int] = ..., open_files_max: _Optional[int] = ..., client_connections: _Optional[int] = ..., telemetry_streams: _Optional[int] = ..., native_streams: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ..., connected_peers: _Optional[_Iterable[str]] = ..., configuration: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ...) -> None: ...

class BrokerGroupInfo(_message.Message):
    __slots__ = ("group", "leader", "term", "commit_index", "replicas", "files_kept", "voters", "learners", "disputed_files", "observers", "replication", "ha", "level", "store_time_ahead_ms")
    class FilesKeptEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    FILES_KEPT_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FILES_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    HA_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    leader: str
    term: int
    commit_index: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    files_kept: _containers.ScalarMap[str, int]
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    disputed_files: _containers.RepeatedScalarFieldContainer[int]
    observers: _containers.RepeatedScalarFieldContainer[str]
    replication: str
    ha: HaInfo
    level: int
    store_time_ahead_ms: int
    def __init__(self, group: _Optional[str] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ..., files_kept: _Optional[_Mapping[str, int]] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., disputed_files: _Optional[_Iterable[int]] = ..., observers: _Optional[_Iterable[str]] = ..., replication: _Optional[str] = ..., ha: _Optional[_Union[HaInfo, _Mapping]] = ..., level: _Optional[int] = ..., store_time_ahead_ms: _Optional[int] = ...) -> None: ...

class HaInfo(_message.Message):
    __slots__ = ("epoch", "in_sync", "min_in_sync", "ack", "transfer", "short", "generation", "incarnation", "last_store_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    MIN_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    min_in_sync: int
    ack: str
    transfer: str
    short: str
    generation: int
    incarnation: str
    last_store_ms: int
    def __init__(self, epoch: _Optional[int] = ..., in_sync: _Optional[_Iterable[str]] = ..., min_in_sync: _Optional[int] = ..., ack: _Optional[str] = ..., transfer: _Optional[str] = ..., short: _Optional[str] = ..., generation: _Optional[int] = ..., incarnation: _Optional[str] = ..., last_store_ms: _Optional[int] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("node", "role", "end_index", "durable_index", "commit_index", "lag_entries", "fenced", "begin_index", "disk_bytes", "state", "rebuild", "catch_up", "differing_files", "unverified_ms", "tiered")
    class DiskBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FILES_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    TIERED_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    end_index: int
    durable_index: int
    commit_index: int
    lag_entries: int
    fenced: str
    begin_index: int
    disk_bytes: _containers.ScalarMap[str, int]
    state: str
    rebuild: RebuildInfo
    catch_up: CatchUp
    differing_files: _containers.RepeatedScalarFieldContainer[int]
    unverified_ms: int
    tiered: TieredInfo
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., end_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., lag_entries: _Optional[int] = ..., fenced: _Optional[str] = ..., begin_index: _Optional[int] = ..., disk_bytes: _Optional[_Mapping[str, int]] = ..., state: _Optional[str] = ..., rebuild: _Optional[_Union[RebuildInfo, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, _Mapping]] = ..., differing_files: _Optional[_Iterable[int]] = ..., unverified_ms: _Optional[int] = ..., tiered: _Optional[_Union[TieredInfo, _Mapping]] = ...) -> None: ...

class TieredInfo(_message.Message):
    __slots__ = ("verified_pos", "waiting_files", "waiting_bytes", "waits_for", "stored_files", "stored_bytes", "stored_from_index", "unreadable", "not_removed")
    VERIFIED_POS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FILES_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    STORED_FILES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    NOT_REMOVED_FIELD_NUMBER: _ClassVar[int]
    verified_pos: int
    waiting_files: int
    waiting_bytes: int
    waits_for: str
    stored_files: int
    stored_bytes: int
    stored_from_index: int
    unreadable: str
    not_removed: str
    def __init__(self, verified_pos: _Optional[int] = ..., waiting_files: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., waits_for: _Optional[str] = ..., stored_files: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., stored_from_index: _Optional[int] = ..., unreadable: _Optional[str] = ..., not_removed: _Optional[str] = ...) -> None: ...

class RebuildInfo(_message.Message):
    __slots__ = ("reason", "source", "done_bytes", "total_bytes", "remaining_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    source: str
    done_bytes: int
    total_bytes: int
    remaining_ms: int
    def __init__(self, reason: _Optional[str] = ..., source: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class CatchUp(_message.Message):
    __slots__ = ("state", "behind_entries", "behind_bytes", "entries_per_s", "bytes_per_s", "seconds_left", "restarts", "silent_ms", "note", "lag_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    state: str
    behind_entries: int
    behind_bytes: int
    entries_per_s: float
    bytes_per_s: float
    seconds_left: float
    restarts: int
    silent_ms: int
    note: str
    lag_ms: int
    def __init__(self, state: _Optional[str] = ..., behind_entries: _Optional[int] = ..., behind_bytes: _Optional[int] = ..., entries_per_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., seconds_left: _Optional[float] = ..., restarts: _Optional[int] = ..., silent_ms: _Optional[int] = ..., note: _Optional[str] = ..., lag_ms: _Optional[int] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("topic", "kind", "queues", "permission", "messages", "queue_list", "durability", "dedup_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIST_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    kind: str
    queues: int
    permission: str
    messages: int
    queue_list: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    durability: str
    dedup_ms: int
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., kind: _Optional[str] = ..., queues: _Optional[int] = ..., permission: _Optional[str] = ..., messages: _Optional[int] = ..., queue_list: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., durability: _Optional[str] = ..., dedup_ms: _Optional[int] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("queue", "broker_group", "group_queue", "min_offset", "max_offset", "stored_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    broker_group: str
    group_queue: int
    min_offset: int
    max_offset: int
    stored_offset: int
    def __init__(self, queue: _Optional[int] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., stored_offset: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "kind", "queues", "permission", "durability", "dedup_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    kind: str
    queues: int
    permission: str
    durability: str
    dedup_ms: int
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., kind: _Optional[str] = ..., queues: _Optional[int] = ..., permission: _Optional[str] = ..., durability: _Optional[str] = ..., dedup_ms: _Optional[int] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("status", "topic", "created")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    topic: TopicInfo
    created: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("topic", "queues", "permission", "durability", "dedup_ms", "add_group", "grow")
    class GrowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MS_FIELD_NUMBER: _ClassVar[int]
    ADD_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROW_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    queues: int
    permission: str
    durability: str
    dedup_ms: int
    add_group: str
    grow: _containers.ScalarMap[str, int]
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., queues: _Optional[int] = ..., permission: _Optional[str] = ..., durability: _Optional[str] = ..., dedup_ms: _Optional[int] = ..., add_group: _Optional[str] = ..., grow: _Optional[_Mapping[str, int]] = ...) -> None: ...

class UpdateTopicResponse(_message.Message):
    __slots__ = ("status", "topic")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    status: Status
    topic: TopicInfo
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("status", "topics")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("status", "topic")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    status: Status
    topic: TopicInfo
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class ConsumerGroupInfo(_message.Message):
    __slots__ = ("group", "max_attempts", "fifo", "configured", "clients", "queues", "backoff", "lite_topic", "broadcast")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    group: Name
    max_attempts: int
    fifo: bool
    configured: bool
    clients: int
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueueInfo]
    backoff: Backoff
    lite_topic: str
    broadcast: bool
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., max_attempts: _Optional[int] = ..., fifo: _Optional[bool] = ..., configured: _Optional[bool] = ..., clients: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[GroupQueueInfo, _Mapping]]] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., lite_topic: _Optional[str] = ..., broadcast: _Optional[bool] = ...) -> None: ...

class Backoff(_message.Message):
    __slots__ = ("steps_ms", "initial_ms", "max_ms", "multiplier")
    STEPS_MS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    steps_ms: _containers.RepeatedScalarFieldContainer[int]
    initial_ms: int
    max_ms: int
    multiplier: float
    def __init__(self, steps_ms: _Optional[_Iterable[int]] = ..., initial_ms: _Optional[int] = ..., max_ms: _Optional[int] = ..., multiplier: _Optional[float] = ...) -> None: ...

class GroupQueueInfo(_message.Message):
    __slots__ = ("topic", "broker_group", "group_queue", "cursor", "leased", "lag", "max_offset", "queue")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    broker_group: str
    group_queue: int
    cursor: int
    leased: int
    lag: int
    max_offset: int
    queue: int
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., cursor: _Optional[int] = ..., leased: _Optional[int] = ..., lag: _Optional[int] = ..., max_offset: _Optional[int] = ..., queue: _Optional[int] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group", "max_attempts", "fifo", "backoff", "lite_topic", "broadcast")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    group: Name
    max_attempts: int
    fifo: bool
    backoff: Backoff
    lite_topic: str
    broadcast: bool
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., max_attempts: _Optional[int] = ..., fifo: _Optional[bool] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., lite_topic: _Optional[str] = ..., broadcast: _Optional[bool] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("status", "group", "created")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    group: ConsumerGroupInfo
    created: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., group: _Optional[_Union[ConsumerGroupInfo, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("group", "max_attempts", "fifo", "backoff", "lite_topic", "broadcast")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    group: Name
    max_attempts: int
    fifo: bool
    backoff: Backoff
    lite_topic: str
    broadcast: bool
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., max_attempts: _Optional[int] = ..., fifo: _Optional[bool] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., lite_topic: _Optional[str] = ..., broadcast: _Optional[bool] = ...) -> None: ...

class UpdateGroupResponse(_message.Message):
    __slots__ = ("status", "group")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    status: Status
    group: ConsumerGroupInfo
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., group: _Optional[_Union[ConsumerGroupInfo, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("status", "groups")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroupInfo]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[ConsumerGroupInfo, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Name
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("status", "group")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    status: Status
    group: ConsumerGroupInfo
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., group: _Optional[_Union[ConsumerGroupInfo, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Name
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("topic", "queue", "offset", "store_ms", "earliest", "latest", "max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    queue: int
    offset: int
    store_ms: int
    earliest: bool
    latest: bool
    max: int
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., store_ms: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., max: _Optional[int] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("status", "messages")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ...) -> None: ...

class PeekedMessage(_message.Message):
    __slots__ = ("message_id", "topic", "queue", "offset", "tag", "keys", "message_group", "properties", "body", "attempt", "born_ms", "store_ms", "broker_group", "group_queue", "body_encoding", "delayed_until_ms")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BORN_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    BODY_ENCODING_FIELD_NUMBER: _ClassVar[int]
    DELAYED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: Name
    queue: int
    offset: int
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    message_group: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    attempt: int
    born_ms: int
    store_ms: int
    broker_group: str
    group_queue: int
    body_encoding: str
    delayed_until_ms: int
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[_Union[Name, _Mapping]] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., message_group: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., attempt: _Optional[int] = ..., born_ms: _Optional[int] = ..., store_ms: _Optional[int] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., body_encoding: _Optional[str] = ..., delayed_until_ms: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("topic", "key", "message_id", "begin_ms", "end_ms", "max", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    key: str
    message_id: str
    begin_ms: int
    end_ms: int
    max: int
    after: bytes
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., key: _Optional[str] = ..., message_id: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("status", "messages", "next", "lagging")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    status: Status
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    next: bytes
    lagging: _containers.RepeatedCompositeFieldContainer[IndexProgress]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ..., next: _Optional[bytes] = ..., lagging: _Optional[_Iterable[_Union[IndexProgress, _Mapping]]] = ...) -> None: ...

class IndexProgress(_message.Message):
    __slots__ = ("broker_group", "indexed_to", "applied_to")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEXED_TO_FIELD_NUMBER: _ClassVar[int]
    APPLIED_TO_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    indexed_to: int
    applied_to: int
    def __init__(self, broker_group: _Optional[str] = ..., indexed_to: _Optional[int] = ..., applied_to: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "message_ids", "begin_ms", "end_ms", "settled", "bodies", "max", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: Name
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    begin_ms: int
    end_ms: int
    settled: bool
    bodies: bool
    max: int
    after: bytes
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., message_ids: _Optional[_Iterable[str]] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., settled: _Optional[bool] = ..., bodies: _Optional[bool] = ..., max: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("status", "letters", "next", "lagging")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    status: Status
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next: bytes
    lagging: _containers.RepeatedCompositeFieldContainer[IndexProgress]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next: _Optional[bytes] = ..., lagging: _Optional[_Iterable[_Union[IndexProgress, _Mapping]]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("message", "state", "topic", "group_queue", "offset", "client", "body_bytes", "tries", "queue")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    message: PeekedMessage
    state: str
    topic: Name
    group_queue: int
    offset: int
    client: str
    body_bytes: int
    tries: int
    queue: int
    def __init__(self, message: _Optional[_Union[PeekedMessage, _Mapping]] = ..., state: _Optional[str] = ..., topic: _Optional[_Union[Name, _Mapping]] = ..., group_queue: _Optional[int] = ..., offset: _Optional[int] = ..., client: _Optional[str] = ..., body_bytes: _Optional[int] = ..., tries: _Optional[int] = ..., queue: _Optional[int] = ...) -> None: ...

class CountDeadLettersRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Name
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class CountDeadLettersResponse(_message.Message):
    __slots__ = ("status", "groups")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    groups: _containers.RepeatedCompositeFieldContainer[DeadLetterCount]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[DeadLetterCount, _Mapping]]] = ...) -> None: ...

class DeadLetterCount(_message.Message):
    __slots__ = ("group", "unsettled", "resent", "purged", "oldest_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    group: Name
    unsettled: int
    resent: int
    purged: int
    oldest_ms: int
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., unsettled: _Optional[int] = ..., resent: _Optional[int] = ..., purged: _Optional[int] = ..., oldest_ms: _Optional[int] = ...) -> None: ...

class SettleDeadLettersRequest(_message.Message):
    __slots__ = ("group", "how", "letters")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    group: Name
    how: str
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetterPlace]
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., how: _Optional[str] = ..., letters: _Optional[_Iterable[_Union[DeadLetterPlace, _Mapping]]] = ...) -> None: ...

class DeadLetterPlace(_message.Message):
    __slots__ = ("broker_group", "offset")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    offset: int
    def __init__(self, broker_group: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class SettleDeadLettersResponse(_message.Message):
    __slots__ = ("status", "states")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListWaitingRequest(_message.Message):
    __slots__ = ("topic", "kind", "message_ids", "begin_ms", "end_ms", "max", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    kind: str
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    begin_ms: int
    end_ms: int
    max: int
    after: bytes
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., kind: _Optional[str] = ..., message_ids: _Optional[_Iterable[str]] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class ListWaitingResponse(_message.Message):
    __slots__ = ("status", "messages", "next")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    status: Status
    messages: _containers.RepeatedCompositeFieldContainer[WaitingMessage]
    next: bytes
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[WaitingMessage, _Mapping]]] = ..., next: _Optional[bytes] = ...) -> None: ...

class WaitingMessage(_message.Message):
    __slots__ = ("message", "place", "checks")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    message: PeekedMessage
    place: WaitingPlace
    checks: int
    def __init__(self, message: _Optional[_Union[PeekedMessage, _Mapping]] = ..., place: _Optional[_Union[WaitingPlace, _Mapping]] = ..., checks: _Optional[int] = ...) -> None: ...

class WaitingPlace(_message.Message):
    __slots__ = ("broker_group", "fire_ms", "offset", "message_id")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRE_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    fire_ms: int
    offset: int
    message_id: str
    def __init__(self, broker_group: _Optional[str] = ..., fire_ms: _Optional[int] = ..., offset: _Optional[int] = ..., message_id: _Optional[str] = ...) -> None: ...

class CancelWaitingRequest(_message.Message):
    __slots__ = ("topic", "kind", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    kind: str
    messages: _containers.RepeatedCompositeFieldContainer[WaitingPlace]
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., kind: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[WaitingPlace, _Mapping]]] = ...) -> None: ...

class CancelWaitingResponse(_message.Message):
    __slots__ = ("status", "states")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class MessageDetailRequest(_message.Message):
    __slots__ = ("topic", "broker_group", "group_queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    broker_group: str
    group_queue: int
    offset: int
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class MessageDetailResponse(_message.Message):
    __slots__ = ("status", "copies", "consumption")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    CONSUMPTION_FIELD_NUMBER: _ClassVar[int]
    status: Status
    copies: _containers.RepeatedCompositeFieldContainer[ReplicaCopy]
    consumption: _containers.RepeatedCompositeFieldContainer[ConsumptionState]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., copies: _Optional[_Iterable[_Union[ReplicaCopy, _Mapping]]] = ..., consumption: _Optional[_Iterable[_Union[ConsumptionState, _Mapping]]] = ...) -> None: ...

class ReplicaCopy(_message.Message):
    __slots__ = ("node", "state", "file", "position", "size", "index", "term", "chain_crc", "sha256", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    state: str
    file: str
    position: int
    size: int
    index: int
    term: int
    chain_crc: int
    sha256: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., state: _Optional[str] = ..., file: _Optional[str] = ..., position: _Optional[int] = ..., size: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., chain_crc: _Optional[int] = ..., sha256: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ConsumptionState(_message.Message):
    __slots__ = ("group", "state", "attempt", "client")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    group: Name
    state: str
    attempt: int
    client: str
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class TraceMessageRequest(_message.Message):
    __slots__ = ("topic", "message_id", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    message_id: str
    after: bytes
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., message_id: _Optional[str] = ..., after: _Optional[bytes] = ...) -> None: ...

class TraceMessageResponse(_message.Message):
    __slots__ = ("status", "events", "next")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    status: Status
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    next: bytes
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., next: _Optional[bytes] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("broker_group", "index", "store_ms", "kind", "group", "attempt", "client", "duration_ms", "detail")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    index: int
    store_ms: int
    kind: str
    group: Name
    attempt: int
    client: str
    duration_ms: int
    detail: str
    def __init__(self, broker_group: _Optional[str] = ..., index: _Optional[int] = ..., store_ms: _Optional[int] = ..., kind: _Optional[str] = ..., group: _Optional[_Union[Name, _Mapping]] = ..., attempt: _Optional[int] = ..., client: _Optional[str] = ..., duration_ms: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class WhyNotDeliveredRequest(_message.Message):
    __slots__ = ("message_id", "group", "topic")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    group: Name
    topic: Name
    def __init__(self, message_id: _Optional[str] = ..., group: _Optional[_Union[Name, _Mapping]] = ..., topic: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class WhyNotDeliveredResponse(_message.Message):
    __slots__ = ("status", "answer", "reason", "evidence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    answer: str
    reason: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., answer: _Optional[str] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupLagRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: Name
    topic: Name
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., topic: _Optional[_Union[Name, _Mapping]] = ...) -> None: ...

class GroupLagResponse(_message.Message):
    __slots__ = ("status", "topics")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    topics: _containers.RepeatedCompositeFieldContainer[TopicLag]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicLag, _Mapping]]] = ...) -> None: ...

class TopicLag(_message.Message):
    __slots__ = ("topic", "lag", "leased", "oldest_age_ms", "queues", "parts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    topic: Name
    lag: int
    leased: int
    oldest_age_ms: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueLag]
    parts: _containers.RepeatedCompositeFieldContainer[PartLag]
    def __init__(self, topic: _Optional[_Union[Name, _Mapping]] = ..., lag: _Optional[int] = ..., leased: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueLag, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartLag, _Mapping]]] = ...) -> None: ...

class PartLag(_message.Message):
    __slots__ = ("client", "lite_topic", "lag", "leased", "oldest_age_ms")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    client: str
    lite_topic: str
    lag: int
    leased: int
    oldest_age_ms: int
    def __init__(self, client: _Optional[str] = ..., lite_topic: _Optional[str] = ..., lag: _Optional[int] = ..., leased: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ...) -> None: ...

class QueueLag(_message.Message):
    __slots__ = ("queue", "broker_group", "group_queue", "cursor", "end", "lag", "leased", "oldest_age_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    queue: int
    broker_group: str
    group_queue: int
    cursor: int
    end: int
    lag: int
    leased: int
    oldest_age_ms: int
    def __init__(self, queue: _Optional[int] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., cursor: _Optional[int] = ..., end: _Optional[int] = ..., lag: _Optional[int] = ..., leased: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "topic", "queue", "earliest", "latest", "offset", "store_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    group: Name
    topic: Name
    queue: int
    earliest: bool
    latest: bool
    offset: int
    store_ms: int
    def __init__(self, group: _Optional[_Union[Name, _Mapping]] = ..., topic: _Optional[_Union[Name, _Mapping]] = ..., queue: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., offset: _Optional[int] = ..., store_ms: _Optional[int] = ...) -> None: ...

class ResetGroupResponse(_message.Message):
    __slots__ = ("status", "queues")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    queues: _containers.RepeatedCompositeFieldContainer[QueueCursor]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueCursor, _Mapping]]] = ...) -> None: ...

class QueueCursor(_message.Message):
    __slots__ = ("queue", "broker_group", "group_queue", "cursor")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    queue: int
    broker_group: str
    group_queue: int
    cursor: int
    def __init__(self, queue: _Optional[int] = ..., broker_group: _Optional[str] = ..., group_queue: _Optional[int] = ..., cursor: _Optional[int] = ...) -> None: ...

class WhyKeptRequest(_message.Message):
    __slots__ = ("broker_group", "base", "node")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    base: int
    node: str
    def __init__(self, broker_group: _Optional[str] = ..., base: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class WhyKeptResponse(_message.Message):
    __slots__ = ("status", "answer", "reason", "evidence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    answer: str
    reason: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., answer: _Optional[str] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ...) -> None: ...

class TakePinRequest(_message.Message):
    __slots__ = ("broker_group", "pos", "reason", "ttl_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    pos: int
    reason: str
    ttl_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., pos: _Optional[int] = ..., reason: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class TakePinResponse(_message.Message):
    __slots__ = ("status", "pin", "begin_index", "begin_pos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEGIN_POS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    pin: str
    begin_index: int
    begin_pos: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., pin: _Optional[str] = ..., begin_index: _Optional[int] = ..., begin_pos: _Optional[int] = ...) -> None: ...

class RenewPinRequest(_message.Message):
    __slots__ = ("broker_group", "pin", "ttl_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    pin: str
    ttl_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., pin: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewPinResponse(_message.Message):
    __slots__ = ("status", "held")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    status: Status
    held: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., held: _Optional[bool] = ...) -> None: ...

class DropPinRequest(_message.Message):
    __slots__ = ("broker_group", "pin")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    pin: str
    def __init__(self, broker_group: _Optional[str] = ..., pin: _Optional[str] = ...) -> None: ...

class DropPinResponse(_message.Message):
    __slots__ = ("status", "held")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    status: Status
    held: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., held: _Optional[bool] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("broker_group", "to")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    to: str
    def __init__(self, broker_group: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("status", "done", "lag_entries")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    lag_entries: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., lag_entries: _Optional[int] = ...) -> None: ...

class LeadershipHistoryRequest(_message.Message):
    __slots__ = ("broker_group", "last")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    last: int
    def __init__(self, broker_group: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class LeadershipHistoryResponse(_message.Message):
    __slots__ = ("status", "answer", "reason", "evidence", "events")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    answer: str
    reason: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[LeadershipEvent]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., answer: _Optional[str] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[LeadershipEvent, _Mapping]]] = ...) -> None: ...

class LeadershipEvent(_message.Message):
    __slots__ = ("at_ms", "term", "former", "leader", "cause", "peer", "silent_ms")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    term: int
    former: str
    leader: str
    cause: int
    peer: str
    silent_ms: int
    def __init__(self, at_ms: _Optional[int] = ..., term: _Optional[int] = ..., former: _Optional[str] = ..., leader: _Optional[str] = ..., cause: _Optional[int] = ..., peer: _Optional[str] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class ChangeMemberRequest(_message.Message):
    __slots__ = ("kind", "node", "addresses", "broker_groups", "observer")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[ChangeMemberRequest.Kind]
        ADD: _ClassVar[ChangeMemberRequest.Kind]
        PROMOTE: _ClassVar[ChangeMemberRequest.Kind]
        REMOVE: _ClassVar[ChangeMemberRequest.Kind]
        SET_ADDRESS: _ClassVar[ChangeMemberRequest.Kind]
    UNKNOWN: ChangeMemberRequest.Kind
    ADD: ChangeMemberRequest.Kind
    PROMOTE: ChangeMemberRequest.Kind
    REMOVE: ChangeMemberRequest.Kind
    SET_ADDRESS: ChangeMemberRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OBSERVER_FIELD_NUMBER: _ClassVar[int]
    kind: ChangeMemberRequest.Kind
    node: str
    addresses: NodeAddresses
    broker_groups: _containers.RepeatedScalarFieldContainer[str]
    observer: bool
    def __init__(self, kind: _Optional[_Union[ChangeMemberRequest.Kind, str]] = ..., node: _Optional[str] = ..., addresses: _Optional[_Union[NodeAddresses, _Mapping]] = ..., broker_groups: _Optional[_Iterable[str]] = ..., observer: _Optional[bool] = ...) -> None: ...

class NodeAddresses(_message.Message):
    __slots__ = ("client", "peer", "controller", "http")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    client: str
    peer: str
    controller: str
    http: str
    def __init__(self, client: _Optional[str] = ..., peer: _Optional[str] = ..., controller: _Optional[str] = ..., http: _Optional[str] = ...) -> None: ...

class ChangeMemberResponse(_message.Message):
    __slots__ = ("status", "done", "waits_for", "groups", "replication")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    waits_for: str
    groups: _containers.RepeatedCompositeFieldContainer[MemberProgress]
    replication: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., waits_for: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[MemberProgress, _Mapping]]] = ..., replication: _Optional[str] = ...) -> None: ...

class MemberProgress(_message.Message):
    __slots__ = ("broker_group", "role", "lag_entries", "seconds_left", "node", "lag_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    role: str
    lag_entries: int
    seconds_left: float
    node: str
    lag_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., role: _Optional[str] = ..., lag_entries: _Optional[int] = ..., seconds_left: _Optional[float] = ..., node: _Optional[str] = ..., lag_ms: _Optional[int] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("status", "members")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("node", "addresses", "state", "up", "controller", "groups")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    node: str
    addresses: NodeAddresses
    state: str
    up: bool
    controller: bool
    groups: _containers.RepeatedCompositeFieldContainer[MemberProgress]
    def __init__(self, node: _Optional[str] = ..., addresses: _Optional[_Union[NodeAddresses, _Mapping]] = ..., state: _Optional[str] = ..., up: _Optional[bool] = ..., controller: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[MemberProgress, _Mapping]]] = ...) -> None: ...

class UserInfo(_message.Message):
    __slots__ = ("name", "role", "grants", "roles", "secrets", "grants_of_roles")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    GRANTS_OF_ROLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: bool
    grants: _containers.RepeatedScalarFieldContainer[str]
    roles: _containers.RepeatedScalarFieldContainer[str]
    secrets: int
    grants_of_roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[bool] = ..., grants: _Optional[_Iterable[str]] = ..., roles: _Optional[_Iterable[str]] = ..., secrets: _Optional[int] = ..., grants_of_roles: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "secret_key", "grants", "roles")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_KEY_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    secret_key: str
    grants: _containers.RepeatedScalarFieldContainer[str]
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., secret_key: _Optional[str] = ..., grants: _Optional[_Iterable[str]] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateUserResponse(_message.Message):
    __slots__ = ("status", "user", "created")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    user: UserInfo
    created: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., user: _Optional[_Union[UserInfo, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class ChangeUserRequest(_message.Message):
    __slots__ = ("name", "grant", "revoke", "give_roles", "take_roles", "secret_key", "end_former_secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    GIVE_ROLES_FIELD_NUMBER: _ClassVar[int]
    TAKE_ROLES_FIELD_NUMBER: _ClassVar[int]
    SECRET_KEY_FIELD_NUMBER: _ClassVar[int]
    END_FORMER_SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    grant: _containers.RepeatedScalarFieldContainer[str]
    revoke: _containers.RepeatedScalarFieldContainer[str]
    give_roles: _containers.RepeatedScalarFieldContainer[str]
    take_roles: _containers.RepeatedScalarFieldContainer[str]
    secret_key: str
    end_former_secret: bool
    def __init__(self, name: _Optional[str] = ..., grant: _Optional[_Iterable[str]] = ..., revoke: _Optional[_Iterable[str]] = ..., give_roles: _Optional[_Iterable[str]] = ..., take_roles: _Optional[_Iterable[str]] = ..., secret_key: _Optional[str] = ..., end_former_secret: _Optional[bool] = ...) -> None: ...

class ChangeUserResponse(_message.Message):
    __slots__ = ("status", "user")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    status: Status
    user: UserInfo
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., user: _Optional[_Union[UserInfo, _Mapping]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("status", "users")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    users: _containers.RepeatedCompositeFieldContainer[UserInfo]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., users: _Optional[_Iterable[_Union[UserInfo, _Mapping]]] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("status", "clients", "unreachable")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    unreachable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., unreachable: _Optional[_Iterable[str]] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("client_id", "node", "connected", "type", "group", "topics", "language", "version", "hostname", "silent_ms", "shared")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    node: str
    connected: bool
    type: str
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    language: str
    version: str
    hostname: str
    silent_ms: int
    shared: bool
    def __init__(self, client_id: _Optional[str] = ..., node: _Optional[str] = ..., connected: _Optional[bool] = ..., type: _Optional[str] = ..., group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., hostname: _Optional[str] = ..., silent_ms: _Optional[int] = ..., shared: _Optional[bool] = ...) -> None: ...

class RotateReceiptKeyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateReceiptKeyResponse(_message.Message):
    __slots__ = ("status", "key_id", "keys")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    key_id: str
    keys: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., key_id: _Optional[str] = ..., keys: _Optional[int] = ...) -> None: ...

class RepairRangeRequest(_message.Message):
    __slots__ = ("broker_group", "log_id", "incarnation", "first_index", "last_index", "whole_log")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    WHOLE_LOG_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    log_id: str
    incarnation: str
    first_index: int
    last_index: int
    whole_log: bool
    def __init__(self, broker_group: _Optional[str] = ..., log_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., whole_log: _Optional[bool] = ...) -> None: ...

class RepairRangeResponse(_message.Message):
    __slots__ = ("status", "done", "repaired", "written_bytes", "source", "waits_for")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    repaired: _containers.RepeatedScalarFieldContainer[str]
    written_bytes: int
    source: str
    waits_for: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., repaired: _Optional[_Iterable[str]] = ..., written_bytes: _Optional[int] = ..., source: _Optional[str] = ..., waits_for: _Optional[str] = ...) -> None: ...

class ElectMasterRequest(_message.Message):
    __slots__ = ("broker_group", "node", "unclean", "preview")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node: str
    unclean: bool
    preview: bool
    def __init__(self, broker_group: _Optional[str] = ..., node: _Optional[str] = ..., unclean: _Optional[bool] = ..., preview: _Optional[bool] = ...) -> None: ...

class ElectMasterResponse(_message.Message):
    __slots__ = ("status", "epoch", "loss", "lost_entries", "lost_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LOST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOST_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    epoch: int
    loss: str
    lost_entries: int
    lost_ms: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., epoch: _Optional[int] = ..., loss: _Optional[str] = ..., lost_entries: _Optional[int] = ..., lost_ms: _Optional[int] = ...) -> None: ...

class ChangeReplicationRequest(_message.Message):
    __slots__ = ("broker_group", "to", "min_in_sync")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    MIN_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    to: str
    min_in_sync: int
    def __init__(self, broker_group: _Optional[str] = ..., to: _Optional[str] = ..., min_in_sync: _Optional[int] = ...) -> None: ...

class ChangeReplicationResponse(_message.Message):
    __slots__ = ("status", "done", "waits_for", "replication", "min_in_sync")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MIN_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    waits_for: str
    replication: str
    min_in_sync: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., waits_for: _Optional[str] = ..., replication: _Optional[str] = ..., min_in_sync: _Optional[int] = ...) -> None: ...

class AddBrokerGroupRequest(_message.Message):
    __slots__ = ("name", "replicas", "count", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    count: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AddBrokerGroupResponse(_message.Message):
    __slots__ = ("status", "done", "waits_for", "replicas", "created", "preferred")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    waits_for: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    created: bool
    preferred: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., waits_for: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., created: _Optional[bool] = ..., preferred: _Optional[str] = ...) -> None: ...

class ListBrokerGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBrokerGroupsResponse(_message.Message):
    __slots__ = ("status", "groups")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    groups: _containers.RepeatedCompositeFieldContainer[BrokerGroupEntry]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[BrokerGroupEntry, _Mapping]]] = ...) -> None: ...

class BrokerGroupEntry(_message.Message):
    __slots__ = ("broker_group", "replicas", "leader", "preferred", "replication", "queues", "move", "members", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    preferred: str
    replication: str
    queues: int
    move: ReplicaMove
    members: _containers.RepeatedCompositeFieldContainer[MemberProgress]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, broker_group: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., preferred: _Optional[str] = ..., replication: _Optional[str] = ..., queues: _Optional[int] = ..., move: _Optional[_Union[ReplicaMove, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberProgress, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplicaMove(_message.Message):
    __slots__ = ("from_node", "to_node")
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    from_node: str
    to_node: str
    def __init__(self, from_node: _Optional[str] = ..., to_node: _Optional[str] = ...) -> None: ...

class MoveReplicaRequest(_message.Message):
    __slots__ = ("broker_group", "from_node", "to_node", "abort")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    from_node: str
    to_node: str
    abort: bool
    def __init__(self, broker_group: _Optional[str] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ..., abort: _Optional[bool] = ...) -> None: ...

class MoveReplicaResponse(_message.Message):
    __slots__ = ("status", "done", "waits_for", "step", "progress", "left_directory")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LEFT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    waits_for: str
    step: str
    progress: MemberProgress
    left_directory: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., waits_for: _Optional[str] = ..., step: _Optional[str] = ..., progress: _Optional[_Union[MemberProgress, _Mapping]] = ..., left_directory: _Optional[str] = ...) -> None: ...

class PreferLeaderRequest(_message.Message):
    __slots__ = ("broker_group", "node")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node: str
    def __init__(self, broker_group: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class PreferLeaderResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class PlanRebalanceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlanRebalanceResponse(_message.Message):
    __slots__ = ("status", "steps", "notes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    steps: _containers.RepeatedCompositeFieldContainer[RebalanceStep]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[RebalanceStep, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class RebalanceStep(_message.Message):
    __slots__ = ("kind", "broker_group", "from_node", "to_node", "topic", "queues", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    broker_group: str
    from_node: str
    to_node: str
    topic: Name
    queues: int
    reason: str
    def __init__(self, kind: _Optional[str] = ..., broker_group: _Optional[str] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ..., topic: _Optional[_Union[Name, _Mapping]] = ..., queues: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class BeginTimeEpochRequest(_message.Message):
    __slots__ = ("broker_group",)
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    def __init__(self, broker_group: _Optional[str] = ...) -> None: ...

class BeginTimeEpochResponse(_message.Message):
    __slots__ = ("status", "before_ms", "ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    before_ms: int
    ms: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., before_ms: _Optional[int] = ..., ms: _Optional[int] = ...) -> None: ...

class FinishUpgradeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishUpgradeResponse(_message.Message):
    __slots__ = ("status", "done", "waits_for", "level", "raised", "changed")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    done: bool
    waits_for: str
    level: int
    raised: _containers.RepeatedScalarFieldContainer[str]
    changed: bool
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., done: _Optional[bool] = ..., waits_for: _Optional[str] = ..., level: _Optional[int] = ..., raised: _Optional[_Iterable[str]] = ..., changed: _Optional[bool] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("broker_group", "node")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node: str
    def __init__(self, broker_group: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("status", "note")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    note: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class SealNowRequest(_message.Message):
    __slots__ = ("broker_group", "through")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    through: int
    def __init__(self, broker_group: _Optional[str] = ..., through: _Optional[int] = ...) -> None: ...

class SealNowResponse(_message.Message):
    __slots__ = ("status", "through", "done", "size", "next_index", "waits_for")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    status: Status
    through: int
    done: bool
    size: int
    next_index: int
    waits_for: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., through: _Optional[int] = ..., done: _Optional[bool] = ..., size: _Optional[int] = ..., next_index: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class ProveEntryRequest(_message.Message):
    __slots__ = ("broker_group", "index", "size")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    index: int
    size: int
    def __init__(self, broker_group: _Optional[str] = ..., index: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ProveEntryResponse(_message.Message):
    __slots__ = ("status", "leaf", "entry", "entry_path", "file_number", "log_path", "note")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_PATH_FIELD_NUMBER: _ClassVar[int]
    FILE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    leaf: SealedFileLeaf
    entry: bytes
    entry_path: _containers.RepeatedScalarFieldContainer[bytes]
    file_number: int
    log_path: _containers.RepeatedScalarFieldContainer[bytes]
    note: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., leaf: _Optional[_Union[SealedFileLeaf, _Mapping]] = ..., entry: _Optional[bytes] = ..., entry_path: _Optional[_Iterable[bytes]] = ..., file_number: _Optional[int] = ..., log_path: _Optional[_Iterable[bytes]] = ..., note: _Optional[str] = ...) -> None: ...

class SealedFileLeaf(_message.Message):
    __slots__ = ("base", "first_index", "entries", "end_pos", "entries_root")
    BASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    END_POS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_ROOT_FIELD_NUMBER: _ClassVar[int]
    base: int
    first_index: int
    entries: int
    end_pos: int
    entries_root: bytes
    def __init__(self, base: _Optional[int] = ..., first_index: _Optional[int] = ..., entries: _Optional[int] = ..., end_pos: _Optional[int] = ..., entries_root: _Optional[bytes] = ...) -> None: ...

class ProveConsistencyRequest(_message.Message):
    __slots__ = ("broker_group", "old_size", "new_size")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NEW_SIZE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    old_size: int
    new_size: int
    def __init__(self, broker_group: _Optional[str] = ..., old_size: _Optional[int] = ..., new_size: _Optional[int] = ...) -> None: ...

class ProveConsistencyResponse(_message.Message):
    __slots__ = ("status", "path")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    status: Status
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListCheckpointKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCheckpointKeysResponse(_message.Message):
    __slots__ = ("status", "keys")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    keys: _containers.RepeatedCompositeFieldContainer[CheckpointKey]
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., keys: _Optional[_Iterable[_Union[CheckpointKey, _Mapping]]] = ...) -> None: ...

class CheckpointKey(_message.Message):
    __slots__ = ("node", "verifier_key", "created_ms", "retired")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_KEY_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    node: str
    verifier_key: str
    created_ms: int
    retired: bool
    def __init__(self, node: _Optional[str] = ..., verifier_key: _Optional[str] = ..., created_ms: _Optional[int] = ..., retired: _Optional[bool] = ...) -> None: ...
