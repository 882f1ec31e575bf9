from stratagem_proto.v1 import barrier_pb2 as _barrier_pb2
from stratagem_proto.v1 import closure_pb2 as _closure_pb2
from stratagem_proto.v1 import consistency_pb2 as _consistency_pb2
from stratagem_proto.v1 import recorded_reply_pb2 as _recorded_reply_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentHead(_message.Message):
    __slots__ = ("format", "incarnation", "task", "first", "kernels", "unix_seconds", "run", "run_after", "release")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUN_AFTER_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    format: int
    incarnation: bytes
    task: _session_pb2.Task
    first: int
    kernels: Kernels
    unix_seconds: float
    run: bytes
    run_after: int
    release: str
    def __init__(self, format: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., first: _Optional[int] = ..., kernels: _Optional[_Union[Kernels, _Mapping]] = ..., unix_seconds: _Optional[float] = ..., run: _Optional[bytes] = ..., run_after: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class Kernels(_message.Message):
    __slots__ = ("torch", "threads", "capability")
    TORCH_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    torch: str
    threads: int
    capability: str
    def __init__(self, torch: _Optional[str] = ..., threads: _Optional[int] = ..., capability: _Optional[str] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("unix_seconds", "mutation", "opened", "ended", "finished", "barrier", "arrival", "permit", "closures", "reclaimed", "leap", "mark", "gave_up", "passed")
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MUTATION_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    PERMIT_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    RECLAIMED_FIELD_NUMBER: _ClassVar[int]
    LEAP_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    GAVE_UP_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    unix_seconds: float
    mutation: LoggedMutation
    opened: OpenedSession
    ended: EndedSession
    finished: FinishedSteps
    barrier: _barrier_pb2.BarrierRequest
    arrival: StepArrival
    permit: StepPermit
    closures: _closure_pb2.EndClosuresRequest
    reclaimed: bool
    leap: bool
    mark: bool
    gave_up: GivenUpWorkers
    passed: TablePassage
    def __init__(self, unix_seconds: _Optional[float] = ..., mutation: _Optional[_Union[LoggedMutation, _Mapping]] = ..., opened: _Optional[_Union[OpenedSession, _Mapping]] = ..., ended: _Optional[_Union[EndedSession, _Mapping]] = ..., finished: _Optional[_Union[FinishedSteps, _Mapping]] = ..., barrier: _Optional[_Union[_barrier_pb2.BarrierRequest, _Mapping]] = ..., arrival: _Optional[_Union[StepArrival, _Mapping]] = ..., permit: _Optional[_Union[StepPermit, _Mapping]] = ..., closures: _Optional[_Union[_closure_pb2.EndClosuresRequest, _Mapping]] = ..., reclaimed: bool = ..., leap: bool = ..., mark: bool = ..., gave_up: _Optional[_Union[GivenUpWorkers, _Mapping]] = ..., passed: _Optional[_Union[TablePassage, _Mapping]] = ...) -> None: ...

class TablePassage(_message.Message):
    __slots__ = ("variable", "milliseconds")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    variable: str
    milliseconds: int
    def __init__(self, variable: _Optional[str] = ..., milliseconds: _Optional[int] = ...) -> None: ...

class LoggedMutation(_message.Message):
    __slots__ = ("method", "request", "reply", "applied")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    reply: _recorded_reply_pb2.RecordedReply
    applied: bool
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., reply: _Optional[_Union[_recorded_reply_pb2.RecordedReply, _Mapping]] = ..., applied: bool = ...) -> None: ...

class OpenedSession(_message.Message):
    __slots__ = ("session_id", "role", "task", "client", "program", "process", "filtered", "ps_tasks")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    PS_TASKS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    role: _session_pb2.Role
    task: _session_pb2.Task
    client: bytes
    program: bytes
    process: bytes
    filtered: _session_pb2.FilteredTasks
    ps_tasks: int
    def __init__(self, session_id: _Optional[bytes] = ..., role: _Optional[_Union[_session_pb2.Role, str]] = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., client: _Optional[bytes] = ..., program: _Optional[bytes] = ..., process: _Optional[bytes] = ..., filtered: _Optional[_Union[_session_pb2.FilteredTasks, _Mapping]] = ..., ps_tasks: _Optional[int] = ...) -> None: ...

class EndedSession(_message.Message):
    __slots__ = ("session_id", "why", "left")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    why: str
    left: bool
    def __init__(self, session_id: _Optional[bytes] = ..., why: _Optional[str] = ..., left: bool = ...) -> None: ...

class GivenUpWorkers(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tasks: _Optional[_Iterable[str]] = ...) -> None: ...

class FinishedSteps(_message.Message):
    __slots__ = ("session_id", "finished", "report")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    finished: int
    report: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class StepArrival(_message.Message):
    __slots__ = ("session_id", "begin", "closed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    begin: _consistency_pb2.StepBegin
    closed: int
    def __init__(self, session_id: _Optional[bytes] = ..., begin: _Optional[_Union[_consistency_pb2.StepBegin, _Mapping]] = ..., closed: _Optional[int] = ...) -> None: ...

class StepPermit(_message.Message):
    __slots__ = ("group", "worker", "closed", "step")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    group: str
    worker: int
    closed: int
    step: int
    def __init__(self, group: _Optional[str] = ..., worker: _Optional[int] = ..., closed: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...
