from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShippingMessage(_message.Message):
    __slots__ = ("sender", "to", "log_id", "session", "fetch", "fetched")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    sender: str
    to: str
    log_id: str
    session: int
    fetch: Fetch
    fetched: Fetched
    def __init__(self, sender: _Optional[str] = ..., to: _Optional[str] = ..., log_id: _Optional[str] = ..., session: _Optional[int] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("facts", "entries", "snapshot")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    facts: FetchFacts
    entries: FetchEntries
    snapshot: FetchSnapshot
    def __init__(self, facts: _Optional[_Union[FetchFacts, _Mapping]] = ..., entries: _Optional[_Union[FetchEntries, _Mapping]] = ..., snapshot: _Optional[_Union[FetchSnapshot, _Mapping]] = ...) -> None: ...

class FetchFacts(_message.Message):
    __slots__ = ("places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[EntryPlace]
    def __init__(self, places: _Optional[_Iterable[_Union[EntryPlace, _Mapping]]] = ...) -> None: ...

class EntryPlace(_message.Message):
    __slots__ = ("index", "pos")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    index: int
    pos: int
    def __init__(self, index: _Optional[int] = ..., pos: _Optional[int] = ...) -> None: ...

class FetchEntries(_message.Message):
    __slots__ = ("index", "pos", "prev_term", "prev_chain", "end_pos", "allowed_pos")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    PREV_CHAIN_FIELD_NUMBER: _ClassVar[int]
    END_POS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_POS_FIELD_NUMBER: _ClassVar[int]
    index: int
    pos: int
    prev_term: int
    prev_chain: int
    end_pos: int
    allowed_pos: int
    def __init__(self, index: _Optional[int] = ..., pos: _Optional[int] = ..., prev_term: _Optional[int] = ..., prev_chain: _Optional[int] = ..., end_pos: _Optional[int] = ..., allowed_pos: _Optional[int] = ...) -> None: ...

class FetchSnapshot(_message.Message):
    __slots__ = ("offset", "allowed_offset")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    allowed_offset: int
    def __init__(self, offset: _Optional[int] = ..., allowed_offset: _Optional[int] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("facts", "entries", "snapshot", "refused")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    facts: FetchedFacts
    entries: FetchedEntries
    snapshot: FetchedSnapshot
    refused: FetchRefused
    def __init__(self, facts: _Optional[_Union[FetchedFacts, _Mapping]] = ..., entries: _Optional[_Union[FetchedEntries, _Mapping]] = ..., snapshot: _Optional[_Union[FetchedSnapshot, _Mapping]] = ..., refused: _Optional[_Union[FetchRefused, _Mapping]] = ...) -> None: ...

class LogPoint(_message.Message):
    __slots__ = ("index", "pos", "term", "chain")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    index: int
    pos: int
    term: int
    chain: int
    def __init__(self, index: _Optional[int] = ..., pos: _Optional[int] = ..., term: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class FetchedFacts(_message.Message):
    __slots__ = ("data_file_bytes", "index_file_bytes", "begin", "synced", "committed_index", "snapshot_index", "snapshot_bytes", "points", "committed_pos", "committed_term")
    DATA_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_POS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TERM_FIELD_NUMBER: _ClassVar[int]
    data_file_bytes: int
    index_file_bytes: int
    begin: LogPoint
    synced: LogPoint
    committed_index: int
    snapshot_index: int
    snapshot_bytes: int
    points: _containers.RepeatedCompositeFieldContainer[LogPoint]
    committed_pos: int
    committed_term: int
    def __init__(self, data_file_bytes: _Optional[int] = ..., index_file_bytes: _Optional[int] = ..., begin: _Optional[_Union[LogPoint, _Mapping]] = ..., synced: _Optional[_Union[LogPoint, _Mapping]] = ..., committed_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., points: _Optional[_Iterable[_Union[LogPoint, _Mapping]]] = ..., committed_pos: _Optional[int] = ..., committed_term: _Optional[int] = ...) -> None: ...

class FetchedEntries(_message.Message):
    __slots__ = ("index", "last_index", "term", "pos")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    index: int
    last_index: int
    term: int
    pos: int
    def __init__(self, index: _Optional[int] = ..., last_index: _Optional[int] = ..., term: _Optional[int] = ..., pos: _Optional[int] = ...) -> None: ...

class FetchedSnapshot(_message.Message):
    __slots__ = ("offset", "total_bytes", "checksum", "applied_index")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    offset: int
    total_bytes: int
    checksum: int
    applied_index: int
    def __init__(self, offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., applied_index: _Optional[int] = ...) -> None: ...

class FetchRefused(_message.Message):
    __slots__ = ("reason", "index", "pos", "text")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[FetchRefused.Reason]
        DAMAGED: _ClassVar[FetchRefused.Reason]
        DIFFERS: _ClassVar[FetchRefused.Reason]
        TRIMMED: _ClassVar[FetchRefused.Reason]
        BEYOND: _ClassVar[FetchRefused.Reason]
        OTHER_LOG: _ClassVar[FetchRefused.Reason]
        NO_SNAPSHOT: _ClassVar[FetchRefused.Reason]
    UNKNOWN: FetchRefused.Reason
    DAMAGED: FetchRefused.Reason
    DIFFERS: FetchRefused.Reason
    TRIMMED: FetchRefused.Reason
    BEYOND: FetchRefused.Reason
    OTHER_LOG: FetchRefused.Reason
    NO_SNAPSHOT: FetchRefused.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: FetchRefused.Reason
    index: int
    pos: int
    text: str
    def __init__(self, reason: _Optional[_Union[FetchRefused.Reason, str]] = ..., index: _Optional[int] = ..., pos: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
