from stratagem_proto.v1 import error_pb2 as _error_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordedReply(_message.Message):
    __slots__ = ("sequence", "status", "response")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    status: _error_pb2.RecordedStatus
    response: bytes
    def __init__(self, sequence: _Optional[int] = ..., status: _Optional[_Union[_error_pb2.RecordedStatus, _Mapping]] = ..., response: _Optional[bytes] = ...) -> None: ...
