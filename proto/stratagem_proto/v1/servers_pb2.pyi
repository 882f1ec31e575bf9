from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import replication_pb2 as _replication_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LocateTasksRequest(_message.Message):
    __slots__ = ("asking", "tasks")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class LocateTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskView]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskView, _Mapping]]] = ...) -> None: ...

class TaskView(_message.Message):
    __slots__ = ("task", "view")
    TASK_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    task: int
    view: _replication_pb2.View
    def __init__(self, task: _Optional[int] = ..., view: _Optional[_Union[_replication_pb2.View, _Mapping]] = ...) -> None: ...

class DescribeServerRequest(_message.Message):
    __slots__ = ("asking",)
    ASKING_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ...) -> None: ...

class DescribeServerResponse(_message.Message):
    __slots__ = ("server", "is_draining", "taking", "tasks", "process", "address")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    TAKING_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    server: int
    is_draining: bool
    taking: int
    tasks: _containers.RepeatedCompositeFieldContainer[ServedTask]
    process: bytes
    address: str
    def __init__(self, server: _Optional[int] = ..., is_draining: bool = ..., taking: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[ServedTask, _Mapping]]] = ..., process: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class ServedTask(_message.Message):
    __slots__ = ("task", "bytes", "calls", "seconds", "unheard", "obstacle")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNHEARD_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    task: int
    bytes: int
    calls: int
    seconds: float
    unheard: int
    obstacle: str
    def __init__(self, task: _Optional[int] = ..., bytes: _Optional[int] = ..., calls: _Optional[int] = ..., seconds: _Optional[float] = ..., unheard: _Optional[int] = ..., obstacle: _Optional[str] = ...) -> None: ...

class TakeTaskRequest(_message.Message):
    __slots__ = ("asking", "task", "seconds", "bytes_per_second")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    task: int
    seconds: float
    bytes_per_second: int
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., task: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class TakeTaskResponse(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: _replication_pb2.View
    def __init__(self, view: _Optional[_Union[_replication_pb2.View, _Mapping]] = ...) -> None: ...

class SetDrainingRequest(_message.Message):
    __slots__ = ("asking", "draining")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    draining: bool
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., draining: bool = ...) -> None: ...

class SetDrainingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
