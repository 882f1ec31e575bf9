from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BarrierRequest(_message.Message):
    __slots__ = ("session_id", "name", "generation", "num_tasks", "wait_seconds", "finished", "report")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    name: str
    generation: int
    num_tasks: int
    wait_seconds: float
    finished: int
    report: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., num_tasks: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class BarrierResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
