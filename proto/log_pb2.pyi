from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABLE: _ClassVar[Durability]
    MEMORY: _ClassVar[Durability]
    MASTER: _ClassVar[Durability]
DURABILITY_UNSPECIFIED: Durability
DURABLE: Durability
MEMORY: Durability
MASTER: Durability

class Problem(_message.Message):
    __slots__ = ("code", "message", "retryable", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retryable: bool
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Redirect(_message.Message):
    __slots__ = ("broker_group", "leader", "endpoint", "term")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    leader: str
    endpoint: str
    term: int
    def __init__(self, broker_group: _Optional[str] = ..., leader: _Optional[str] = ..., endpoint: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("namespace", "topic")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("problem", "cluster_id", "kind", "broker_groups")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    cluster_id: str
    kind: str
    broker_groups: _containers.RepeatedCompositeFieldContainer[BrokerGroup]
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kind: _Optional[str] = ..., broker_groups: _Optional[_Iterable[_Union[BrokerGroup, _Mapping]]] = ...) -> None: ...

class BrokerGroup(_message.Message):
    __slots__ = ("name", "queues", "leader", "log_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: _containers.RepeatedScalarFieldContainer[int]
    leader: Redirect
    log_id: str
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[_Iterable[int]] = ..., leader: _Optional[_Union[Redirect, _Mapping]] = ..., log_id: _Optional[str] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("open", "frame")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    open: OpenProducer
    frame: Frame
    def __init__(self, open: _Optional[_Union[OpenProducer, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class OpenProducer(_message.Message):
    __slots__ = ("broker_group", "name", "producer_id", "epoch", "client_id", "memory", "digest")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    name: str
    producer_id: int
    epoch: int
    client_id: str
    memory: bool
    digest: bool
    def __init__(self, broker_group: _Optional[str] = ..., name: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., memory: _Optional[bool] = ..., digest: _Optional[bool] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("namespace", "topic", "first_sequence", "sizes", "entries")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    first_sequence: int
    sizes: bytes
    entries: bytes
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ..., first_sequence: _Optional[int] = ..., sizes: _Optional[bytes] = ..., entries: _Optional[bytes] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("opened", "ack", "rejected", "redirect", "problem")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    opened: ProducerOpened
    ack: FrameAck
    rejected: FrameRejected
    redirect: Redirect
    problem: Problem
    def __init__(self, opened: _Optional[_Union[ProducerOpened, _Mapping]] = ..., ack: _Optional[_Union[FrameAck, _Mapping]] = ..., rejected: _Optional[_Union[FrameRejected, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class ProducerOpened(_message.Message):
    __slots__ = ("producer_id", "epoch", "next_sequence", "max_frame_bytes", "window_bytes", "window_frames", "cluster_id", "log_tag", "digest")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FRAMES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_TAG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    next_sequence: int
    max_frame_bytes: int
    window_bytes: int
    window_frames: int
    cluster_id: str
    log_tag: int
    digest: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., next_sequence: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., window_bytes: _Optional[int] = ..., window_frames: _Optional[int] = ..., cluster_id: _Optional[str] = ..., log_tag: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class FrameAck(_message.Message):
    __slots__ = ("first_sequence", "count", "duplicate", "receipt")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    count: int
    duplicate: bool
    receipt: Receipt
    def __init__(self, first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., duplicate: _Optional[bool] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class FrameRejected(_message.Message):
    __slots__ = ("first_sequence", "count", "problem", "position", "next_sequence")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    count: int
    problem: Problem
    position: int
    next_sequence: int
    def __init__(self, first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ..., position: _Optional[int] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class QueueRange(_message.Message):
    __slots__ = ("queue", "first_offset", "count")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    queue: int
    first_offset: int
    count: int
    def __init__(self, queue: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReplicaDurable(_message.Message):
    __slots__ = ("node", "durable_index")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    node: str
    durable_index: int
    def __init__(self, node: _Optional[str] = ..., durable_index: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("cluster_id", "broker_group", "log_id", "topic", "producer_id", "epoch", "first_sequence", "count", "term", "first_index", "ranges", "chain_crc", "store_ms", "durability", "replicas", "key_id", "mac")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_group: str
    log_id: str
    topic: str
    producer_id: int
    epoch: int
    first_sequence: int
    count: int
    term: int
    first_index: int
    ranges: _containers.RepeatedCompositeFieldContainer[QueueRange]
    chain_crc: int
    store_ms: int
    durability: Durability
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaDurable]
    key_id: str
    mac: bytes
    def __init__(self, cluster_id: _Optional[str] = ..., broker_group: _Optional[str] = ..., log_id: _Optional[str] = ..., topic: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., term: _Optional[int] = ..., first_index: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ..., chain_crc: _Optional[int] = ..., store_ms: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaDurable, _Mapping]]] = ..., key_id: _Optional[str] = ..., mac: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("open", "credit_bytes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: OpenFetch
    credit_bytes: int
    def __init__(self, open: _Optional[_Union[OpenFetch, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class OpenFetch(_message.Message):
    __slots__ = ("broker_group", "namespace", "topic", "from_index", "until_end", "max_response_bytes", "consumer_group", "credit_bytes", "any_replica", "max_age_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    UNTIL_END_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANY_REPLICA_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    namespace: str
    topic: str
    from_index: int
    until_end: bool
    max_response_bytes: int
    consumer_group: str
    credit_bytes: int
    any_replica: bool
    max_age_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., from_index: _Optional[int] = ..., until_end: _Optional[bool] = ..., max_response_bytes: _Optional[int] = ..., consumer_group: _Optional[str] = ..., credit_bytes: _Optional[int] = ..., any_replica: _Optional[bool] = ..., max_age_ms: _Optional[int] = ..., **kwargs) -> None: ...

class FetchFrom(_message.Message):
    __slots__ = ("queue", "offset", "store_ms", "earliest")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    store_ms: int
    earliest: bool
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., store_ms: _Optional[int] = ..., earliest: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("opened", "entries", "caught_up", "redirect", "problem")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    opened: FetchOpened
    entries: Entries
    caught_up: CaughtUp
    redirect: Redirect
    problem: Problem
    def __init__(self, opened: _Optional[_Union[FetchOpened, _Mapping]] = ..., entries: _Optional[_Union[Entries, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class FetchOpened(_message.Message):
    __slots__ = ("begins", "ends", "commit_index", "log_id", "replica", "role", "age_ms")
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    begins: _containers.RepeatedCompositeFieldContainer[QueueRange]
    ends: _containers.RepeatedCompositeFieldContainer[QueueRange]
    commit_index: int
    log_id: str
    replica: str
    role: str
    age_ms: int
    def __init__(self, begins: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ..., commit_index: _Optional[int] = ..., log_id: _Optional[str] = ..., replica: _Optional[str] = ..., role: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("queue", "first_offset", "sizes", "entries", "end_offset", "skipped")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    queue: int
    first_offset: int
    sizes: bytes
    entries: bytes
    end_offset: int
    skipped: int
    def __init__(self, queue: _Optional[int] = ..., first_offset: _Optional[int] = ..., sizes: _Optional[bytes] = ..., entries: _Optional[bytes] = ..., end_offset: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ("ends", "commit_index", "age_ms")
    ENDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[QueueRange]
    commit_index: int
    age_ms: int
    def __init__(self, ends: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ..., commit_index: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("broker_group", "namespace", "topic", "consumer_group", "offsets", "member", "generation")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    namespace: str
    topic: str
    consumer_group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    member: str
    generation: int
    def __init__(self, broker_group: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("queue", "offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("problem", "redirect")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    redirect: Redirect
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("broker_group", "namespace", "topic", "consumer_group")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    namespace: str
    topic: str
    consumer_group: str
    def __init__(self, broker_group: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., consumer_group: _Optional[str] = ...) -> None: ...

class OffsetsResponse(_message.Message):
    __slots__ = ("problem", "redirect", "queues")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    redirect: Redirect
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("queue", "committed", "begin", "end")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    queue: int
    committed: int
    begin: int
    end: int
    def __init__(self, queue: _Optional[int] = ..., committed: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("broker_group", "namespace", "topic", "consumer_group", "member", "generation", "queues")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    namespace: str
    topic: str
    consumer_group: str
    member: str
    generation: int
    queues: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_group: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., queues: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("assignment", "redirect", "problem")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    redirect: Redirect
    problem: Problem
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("generation", "queues", "members", "liveness_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    queues: _containers.RepeatedScalarFieldContainer[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    liveness_ms: int
    def __init__(self, generation: _Optional[int] = ..., queues: _Optional[_Iterable[int]] = ..., members: _Optional[_Iterable[str]] = ..., liveness_ms: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("problem", "verdicts")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    problem: Problem
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    def __init__(self, problem: _Optional[_Union[Problem, _Mapping]] = ..., verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("result", "reason")
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESULT_UNSPECIFIED: _ClassVar[Verdict.Result]
        TRUE: _ClassVar[Verdict.Result]
        FALSE: _ClassVar[Verdict.Result]
        UNVERIFIABLE: _ClassVar[Verdict.Result]
    RESULT_UNSPECIFIED: Verdict.Result
    TRUE: Verdict.Result
    FALSE: Verdict.Result
    UNVERIFIABLE: Verdict.Result
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    result: Verdict.Result
    reason: str
    def __init__(self, result: _Optional[_Union[Verdict.Result, str]] = ..., reason: _Optional[str] = ...) -> None: ...
