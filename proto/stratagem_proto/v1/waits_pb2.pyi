from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Waiter(_message.Message):
    __slots__ = ("client", "reason", "subject", "seconds", "awaited")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    client: str
    reason: str
    subject: str
    seconds: float
    awaited: _containers.RepeatedCompositeFieldContainer[Awaited]
    def __init__(self, client: _Optional[str] = ..., reason: _Optional[str] = ..., subject: _Optional[str] = ..., seconds: _Optional[float] = ..., awaited: _Optional[_Iterable[_Union[Awaited, _Mapping]]] = ...) -> None: ...

class Awaited(_message.Message):
    __slots__ = ("client", "missing", "seconds")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    client: str
    missing: str
    seconds: float
    def __init__(self, client: _Optional[str] = ..., missing: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
