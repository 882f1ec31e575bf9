from stratagem_proto.v1 import access_pb2 as _access_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EndClosuresRequest(_message.Message):
    __slots__ = ("session_id", "space", "through", "unended")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    UNENDED_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    space: bytes
    through: int
    unended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., space: _Optional[bytes] = ..., through: _Optional[int] = ..., unended: _Optional[_Iterable[int]] = ...) -> None: ...

class EndClosuresResponse(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ended: _Optional[_Iterable[int]] = ...) -> None: ...
