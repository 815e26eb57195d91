from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftPacket(_message.Message):
    __slots__ = ("message", "checksum")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    checksum: int
    def __init__(self, message: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("sender", "to", "term", "vote_request", "vote_reply", "append", "append_reply", "timeout_now")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_REPLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    sender: str
    to: str
    term: int
    vote_request: RaftVoteRequest
    vote_reply: RaftVoteReply
    append: RaftAppend
    append_reply: RaftAppendReply
    timeout_now: RaftTimeoutNow
    def __init__(self, sender: _Optional[str] = ..., to: _Optional[str] = ..., term: _Optional[int] = ..., vote_request: _Optional[_Union[RaftVoteRequest, _Mapping]] = ..., vote_reply: _Optional[_Union[RaftVoteReply, _Mapping]] = ..., append: _Optional[_Union[RaftAppend, _Mapping]] = ..., append_reply: _Optional[_Union[RaftAppendReply, _Mapping]] = ..., timeout_now: _Optional[_Union[RaftTimeoutNow, _Mapping]] = ...) -> None: ...

class RaftVoteRequest(_message.Message):
    __slots__ = ("pre", "last_index", "last_term", "transfer")
    PRE_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    last_index: int
    last_term: int
    transfer: bool
    def __init__(self, pre: _Optional[bool] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., transfer: _Optional[bool] = ...) -> None: ...

class RaftVoteReply(_message.Message):
    __slots__ = ("pre", "granted")
    PRE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    granted: bool
    def __init__(self, pre: _Optional[bool] = ..., granted: _Optional[bool] = ...) -> None: ...

class RaftAppend(_message.Message):
    __slots__ = ("round", "prev_index", "prev_term", "prev_chain", "commit_index", "range", "lazy", "early")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    PREV_CHAIN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LAZY_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    round: int
    prev_index: int
    prev_term: int
    prev_chain: int
    commit_index: int
    range: RaftRange
    lazy: bool
    early: bool
    def __init__(self, round: _Optional[int] = ..., prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., prev_chain: _Optional[int] = ..., commit_index: _Optional[int] = ..., range: _Optional[_Union[RaftRange, _Mapping]] = ..., lazy: _Optional[bool] = ..., early: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("round", "boot_id", "rejected", "received", "durable", "hint_term", "leaving")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    HINT_TERM_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    round: int
    boot_id: int
    rejected: bool
    received: int
    durable: int
    hint_term: int
    leaving: bool
    def __init__(self, round: _Optional[int] = ..., boot_id: _Optional[int] = ..., rejected: _Optional[bool] = ..., received: _Optional[int] = ..., durable: _Optional[int] = ..., hint_term: _Optional[int] = ..., leaving: _Optional[bool] = ...) -> None: ...

class RaftTimeoutNow(_message.Message):
    __slots__ = ("last_index", "last_term", "cause")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    cause: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., cause: _Optional[int] = ...) -> None: ...
