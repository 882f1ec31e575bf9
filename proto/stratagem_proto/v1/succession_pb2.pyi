from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Incumbent(_message.Message):
    __slots__ = ("number", "program", "name", "finished")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    number: int
    program: bytes
    name: str
    finished: bool
    def __init__(self, number: _Optional[int] = ..., program: _Optional[bytes] = ..., name: _Optional[str] = ..., finished: bool = ...) -> None: ...

class AwaitVacancyRequest(_message.Message):
    __slots__ = ("session_id", "program", "wait_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    program: bytes
    wait_seconds: float
    def __init__(self, session_id: _Optional[bytes] = ..., program: _Optional[bytes] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class AwaitVacancyResponse(_message.Message):
    __slots__ = ("incumbent", "vacant", "waits_for")
    INCUMBENT_FIELD_NUMBER: _ClassVar[int]
    VACANT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    incumbent: Incumbent
    vacant: bool
    waits_for: str
    def __init__(self, incumbent: _Optional[_Union[Incumbent, _Mapping]] = ..., vacant: bool = ..., waits_for: _Optional[str] = ...) -> None: ...

class SucceedRequest(_message.Message):
    __slots__ = ("key", "incumbent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INCUMBENT_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    incumbent: Incumbent
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., incumbent: _Optional[_Union[Incumbent, _Mapping]] = ...) -> None: ...

class SucceedResponse(_message.Message):
    __slots__ = ("incumbent",)
    INCUMBENT_FIELD_NUMBER: _ClassVar[int]
    incumbent: Incumbent
    def __init__(self, incumbent: _Optional[_Union[Incumbent, _Mapping]] = ...) -> None: ...
