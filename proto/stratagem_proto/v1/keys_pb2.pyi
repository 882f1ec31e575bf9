from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListKeysRequest(_message.Message):
    __slots__ = ("session_id", "table", "after", "limit", "snapshot")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    table: str
    after: int
    limit: int
    snapshot: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., table: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., snapshot: _Optional[bytes] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "more")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    more: bool
    def __init__(self, keys: _Optional[bytes] = ..., more: bool = ...) -> None: ...
