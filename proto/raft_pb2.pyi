from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftPacket(_message.Message):
    __slots__ = ("message", "checksum", "shipping")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SHIPPING_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    checksum: int
    shipping: bytes
    def __init__(self, message: _Optional[bytes] = ..., checksum: _Optional[int] = ..., shipping: _Optional[bytes] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("sender", "to", "term", "vote_request", "vote_reply", "append", "append_reply", "timeout_now", "left_behind")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_REPLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    LEFT_BEHIND_FIELD_NUMBER: _ClassVar[int]
    sender: str
    to: str
    term: int
    vote_request: RaftVoteRequest
    vote_reply: RaftVoteReply
    append: RaftAppend
    append_reply: RaftAppendReply
    timeout_now: RaftTimeoutNow
    left_behind: RaftLeftBehind
    def __init__(self, sender: _Optional[str] = ..., to: _Optional[str] = ..., term: _Optional[int] = ..., vote_request: _Optional[_Union[RaftVoteRequest, _Mapping]] = ..., vote_reply: _Optional[_Union[RaftVoteReply, _Mapping]] = ..., append: _Optional[_Union[RaftAppend, _Mapping]] = ..., append_reply: _Optional[_Union[RaftAppendReply, _Mapping]] = ..., timeout_now: _Optional[_Union[RaftTimeoutNow, _Mapping]] = ..., left_behind: _Optional[_Union[RaftLeftBehind, _Mapping]] = ...) -> None: ...

class RaftVoteRequest(_message.Message):
    __slots__ = ("pre", "last_index", "last_term", "transfer", "incarnation")
    PRE_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    last_index: int
    last_term: int
    transfer: bool
    incarnation: str
    def __init__(self, pre: _Optional[bool] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., transfer: _Optional[bool] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RaftVoteReply(_message.Message):
    __slots__ = ("pre", "granted")
    PRE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    granted: bool
    def __init__(self, pre: _Optional[bool] = ..., granted: _Optional[bool] = ...) -> None: ...

class RaftAppend(_message.Message):
    __slots__ = ("round", "prev_index", "prev_term", "prev_chain", "commit_index", "range", "lazy", "early", "end_index")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    PREV_CHAIN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LAZY_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    round: int
    prev_index: int
    prev_term: int
    prev_chain: int
    commit_index: int
    range: RaftRange
    lazy: bool
    early: bool
    end_index: int
    def __init__(self, round: _Optional[int] = ..., prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., prev_chain: _Optional[int] = ..., commit_index: _Optional[int] = ..., range: _Optional[_Union[RaftRange, _Mapping]] = ..., lazy: _Optional[bool] = ..., early: _Optional[bool] = ..., end_index: _Optional[int] = ...) -> None: ...

class RaftRange(_message.Message):
    __slots__ = ("last_index", "term", "pos")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    term: int
    pos: int
    def __init__(self, last_index: _Optional[int] = ..., term: _Optional[int] = ..., pos: _Optional[int] = ...) -> None: ...

class RaftAppendReply(_message.Message):
    __slots__ = ("round", "boot_id", "rejected", "received", "durable", "hint_term", "leaving", "provisional", "fetch")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    HINT_TERM_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    round: int
    boot_id: int
    rejected: bool
    received: int
    durable: int
    hint_term: int
    leaving: bool
    provisional: bool
    fetch: bool
    def __init__(self, round: _Optional[int] = ..., boot_id: _Optional[int] = ..., rejected: _Optional[bool] = ..., received: _Optional[int] = ..., durable: _Optional[int] = ..., hint_term: _Optional[int] = ..., leaving: _Optional[bool] = ..., provisional: _Optional[bool] = ..., fetch: _Optional[bool] = ...) -> None: ...

class RaftLeftBehind(_message.Message):
    __slots__ = ("begin_index",)
    BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    begin_index: int
    def __init__(self, begin_index: _Optional[int] = ...) -> None: ...

class RaftTimeoutNow(_message.Message):
    __slots__ = ("last_index", "last_term", "cause")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    cause: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., cause: _Optional[int] = ...) -> None: ...

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
