from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListClosedStepsRequest(_message.Message):
    __slots__ = ("session_id", "group", "step", "wait_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    group: str
    step: int
    wait_seconds: float
    def __init__(self, session_id: _Optional[bytes] = ..., group: _Optional[str] = ..., step: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class ListClosedStepsResponse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[ClosedStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[ClosedStep, _Mapping]]] = ...) -> None: ...

class ClosedStep(_message.Message):
    __slots__ = ("step", "squares", "nonfinite_variable", "finished")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_VARIABLE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    step: int
    squares: float
    nonfinite_variable: str
    finished: bool
    def __init__(self, step: _Optional[int] = ..., squares: _Optional[float] = ..., nonfinite_variable: _Optional[str] = ..., finished: bool = ...) -> None: ...

class FinishStepRequest(_message.Message):
    __slots__ = ("key", "group", "step", "norm")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    group: str
    step: int
    norm: GlobalNorm
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., group: _Optional[str] = ..., step: _Optional[int] = ..., norm: _Optional[_Union[GlobalNorm, _Mapping]] = ...) -> None: ...

class GlobalNorm(_message.Message):
    __slots__ = ("value", "nonfinite_variable")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_VARIABLE_FIELD_NUMBER: _ClassVar[int]
    value: float
    nonfinite_variable: str
    def __init__(self, value: _Optional[float] = ..., nonfinite_variable: _Optional[str] = ...) -> None: ...

class FinishStepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
