from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BarrierRequest(_message.Message):
    __slots__ = ("session_id", "name", "generation", "num_tasks", "wait_seconds", "finished", "report", "forming")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    FORMING_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    name: str
    generation: int
    num_tasks: int
    wait_seconds: float
    finished: int
    report: bytes
    forming: GroupForming
    def __init__(self, session_id: _Optional[bytes] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., num_tasks: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ..., forming: _Optional[_Union[GroupForming, _Mapping]] = ...) -> None: ...

class GroupForming(_message.Message):
    __slots__ = ("generation", "members", "note", "patience_seconds", "only_looks")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ONLY_LOOKS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    members: _containers.RepeatedScalarFieldContainer[str]
    note: bytes
    patience_seconds: float
    only_looks: bool
    def __init__(self, generation: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., note: _Optional[bytes] = ..., patience_seconds: _Optional[float] = ..., only_looks: bool = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("task", "note")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    task: str
    note: bytes
    def __init__(self, task: _Optional[str] = ..., note: _Optional[bytes] = ...) -> None: ...

class BarrierResponse(_message.Message):
    __slots__ = ("generation", "members", "is_awaited", "has_lost")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    IS_AWAITED_FIELD_NUMBER: _ClassVar[int]
    HAS_LOST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    is_awaited: bool
    has_lost: bool
    def __init__(self, generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., is_awaited: bool = ..., has_lost: bool = ...) -> None: ...
