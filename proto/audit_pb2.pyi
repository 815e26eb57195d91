from ledgermq.proto import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryPoint(_message.Message):
    __slots__ = ("index", "end_pos", "term", "chain")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    END_POS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    index: int
    end_pos: int
    term: int
    chain: int
    def __init__(self, index: _Optional[int] = ..., end_pos: _Optional[int] = ..., term: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class MarkRequest(_message.Message):
    __slots__ = ("broker_group", "id", "within_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    id: str
    within_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., id: _Optional[str] = ..., within_ms: _Optional[int] = ...) -> None: ...

class MarkResponse(_message.Message):
    __slots__ = ("status", "point")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    point: EntryPoint
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., point: _Optional[_Union[EntryPoint, _Mapping]] = ...) -> None: ...

class DescribeReplicaRequest(_message.Message):
    __slots__ = ("broker_group", "index", "within_ms")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    index: int
    within_ms: int
    def __init__(self, broker_group: _Optional[str] = ..., index: _Optional[int] = ..., within_ms: _Optional[int] = ...) -> None: ...

class DescribeReplicaResponse(_message.Message):
    __slots__ = ("status", "node", "cluster_id", "broker_group", "log_id", "incarnation", "life", "state", "reason", "format_version", "data_file_bytes", "index_file_bytes", "consume_queue_file_bytes", "begin", "end", "commit_index", "applied_index", "voters", "learners", "sealed")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSUME_QUEUE_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    node: str
    cluster_id: str
    broker_group: str
    log_id: str
    incarnation: str
    life: str
    state: str
    reason: str
    format_version: int
    data_file_bytes: int
    index_file_bytes: int
    consume_queue_file_bytes: int
    begin: EntryPoint
    end: EntryPoint
    commit_index: int
    applied_index: int
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    sealed: _containers.RepeatedCompositeFieldContainer[SealedFile]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., node: _Optional[str] = ..., cluster_id: _Optional[str] = ..., broker_group: _Optional[str] = ..., log_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., life: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., format_version: _Optional[int] = ..., data_file_bytes: _Optional[int] = ..., index_file_bytes: _Optional[int] = ..., consume_queue_file_bytes: _Optional[int] = ..., begin: _Optional[_Union[EntryPoint, _Mapping]] = ..., end: _Optional[_Union[EntryPoint, _Mapping]] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., sealed: _Optional[_Iterable[_Union[SealedFile, _Mapping]]] = ...) -> None: ...

class SealedFile(_message.Message):
    __slots__ = ("base", "first_index", "last_index", "end_pos", "sha256", "sealed_sha256")
    BASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_POS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SEALED_SHA256_FIELD_NUMBER: _ClassVar[int]
    base: int
    first_index: int
    last_index: int
    end_pos: int
    sha256: str
    sealed_sha256: str
    def __init__(self, base: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., end_pos: _Optional[int] = ..., sha256: _Optional[str] = ..., sealed_sha256: _Optional[str] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("broker_group", "directory", "recursive", "itself")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    ITSELF_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    directory: str
    recursive: bool
    itself: bool
    def __init__(self, broker_group: _Optional[str] = ..., directory: _Optional[str] = ..., recursive: _Optional[bool] = ..., itself: _Optional[bool] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("status", "entries")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    entries: _containers.RepeatedCompositeFieldContainer[FileEntry]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "directory", "size", "mtime_ns", "inode")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    path: str
    directory: bool
    size: int
    mtime_ns: int
    inode: int
    def __init__(self, path: _Optional[str] = ..., directory: _Optional[bool] = ..., size: _Optional[int] = ..., mtime_ns: _Optional[int] = ..., inode: _Optional[int] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("broker_group", "path", "offset", "length", "places_only")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PLACES_ONLY_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    path: str
    offset: int
    length: int
    places_only: bool
    def __init__(self, broker_group: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., places_only: _Optional[bool] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("status", "size", "offset", "length", "data")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    size: int
    offset: int
    length: int
    data: bytes
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class FileDigestsRequest(_message.Message):
    __slots__ = ("broker_group", "bases")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    bases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_group: _Optional[str] = ..., bases: _Optional[_Iterable[int]] = ...) -> None: ...

class FileDigestsResponse(_message.Message):
    __slots__ = ("status", "files")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    status: _admin_pb2.Status
    files: _containers.RepeatedCompositeFieldContainer[SealedFile]
    def __init__(self, status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., files: _Optional[_Iterable[_Union[SealedFile, _Mapping]]] = ...) -> None: ...
