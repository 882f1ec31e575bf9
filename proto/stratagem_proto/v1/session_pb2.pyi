from stratagem_proto.v1 import waits_pb2 as _waits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
    ROLE_CHIEF: _ClassVar[Role]
    ROLE_EVALUATOR: _ClassVar[Role]
    ROLE_OPERATOR: _ClassVar[Role]
    ROLE_COORDINATOR: _ClassVar[Role]
    ROLE_OBSERVER: _ClassVar[Role]
    ROLE_SERVER: _ClassVar[Role]
    ROLE_READER: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_WORKER: Role
ROLE_CHIEF: Role
ROLE_EVALUATOR: Role
ROLE_OPERATOR: Role
ROLE_COORDINATOR: Role
ROLE_OBSERVER: Role
ROLE_SERVER: Role
ROLE_READER: Role

class Task(_message.Message):
    __slots__ = ("job", "index")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("nonce", "challenge", "mac")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    challenge: bytes
    mac: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class FilteredTask(_message.Message):
    __slots__ = ("task", "device_filters")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FILTERS_FIELD_NUMBER: _ClassVar[int]
    task: Task
    device_filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., device_filters: _Optional[_Iterable[str]] = ...) -> None: ...

class FilteredTasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[FilteredTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[FilteredTask, _Mapping]]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("protocol_version", "session_id", "role", "task", "client", "incarnation", "program", "process", "filtered", "ps_tasks", "proof", "reached", "oldest_protocol_version", "release")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    PS_TASKS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    session_id: bytes
    role: Role
    task: Task
    client: bytes
    incarnation: bytes
    program: bytes
    process: bytes
    filtered: FilteredTasks
    ps_tasks: int
    proof: Proof
    reached: bytes
    oldest_protocol_version: int
    release: str
    def __init__(self, protocol_version: _Optional[int] = ..., session_id: _Optional[bytes] = ..., role: _Optional[_Union[Role, str]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., client: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., program: _Optional[bytes] = ..., process: _Optional[bytes] = ..., filtered: _Optional[_Union[FilteredTasks, _Mapping]] = ..., ps_tasks: _Optional[int] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., reached: _Optional[bytes] = ..., oldest_protocol_version: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("reached",)
    REACHED_FIELD_NUMBER: _ClassVar[int]
    reached: bytes
    def __init__(self, reached: _Optional[bytes] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("protocol_version", "incarnation", "task", "lease_seconds", "max_chunk_bytes", "max_request_bytes", "last_sequence", "restored", "frame_sockets", "reconnect_seconds", "replicas", "oldest_protocol_version", "release")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    FRAME_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    incarnation: bytes
    task: Task
    lease_seconds: float
    max_chunk_bytes: int
    max_request_bytes: int
    last_sequence: int
    restored: bool
    frame_sockets: FrameSockets
    reconnect_seconds: float
    replicas: int
    oldest_protocol_version: int
    release: str
    def __init__(self, protocol_version: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., lease_seconds: _Optional[float] = ..., max_chunk_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., last_sequence: _Optional[int] = ..., restored: bool = ..., frame_sockets: _Optional[_Union[FrameSockets, _Mapping]] = ..., reconnect_seconds: _Optional[float] = ..., replicas: _Optional[int] = ..., oldest_protocol_version: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class FrameSockets(_message.Message):
    __slots__ = ("name", "port", "data_port", "secret", "session_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    port: int
    data_port: int
    secret: bytes
    session_id: bytes
    def __init__(self, name: _Optional[bytes] = ..., port: _Optional[int] = ..., data_port: _Optional[int] = ..., secret: _Optional[bytes] = ..., session_id: _Optional[bytes] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("session_id", "finished", "report", "doing", "awaited", "waits", "pace", "scalars")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    finished: int
    report: bytes
    doing: str
    awaited: _containers.RepeatedCompositeFieldContainer[AwaitedAnswer]
    waits: _containers.RepeatedCompositeFieldContainer[_waits_pb2.Waiter]
    pace: StepPace
    scalars: _containers.RepeatedCompositeFieldContainer[Scalar]
    def __init__(self, session_id: _Optional[bytes] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ..., doing: _Optional[str] = ..., awaited: _Optional[_Iterable[_Union[AwaitedAnswer, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[_waits_pb2.Waiter, _Mapping]]] = ..., pace: _Optional[_Union[StepPace, _Mapping]] = ..., scalars: _Optional[_Iterable[_Union[Scalar, _Mapping]]] = ...) -> None: ...

class Scalar(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class StepPace(_message.Message):
    __slots__ = ("steps", "own_seconds")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OWN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    own_seconds: float
    def __init__(self, steps: _Optional[int] = ..., own_seconds: _Optional[float] = ...) -> None: ...

class AwaitedAnswer(_message.Message):
    __slots__ = ("server", "method", "seconds")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    server: Task
    method: str
    seconds: float
    def __init__(self, server: _Optional[_Union[Task, _Mapping]] = ..., method: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    def __init__(self, incarnation: _Optional[bytes] = ...) -> None: ...

class AttendSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class AttendSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestKey(_message.Message):
    __slots__ = ("session_id", "sequence", "acknowledged", "step", "finished", "report", "trace_parent", "closure", "counted")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence: int
    acknowledged: int
    step: int
    finished: int
    report: bytes
    trace_parent: str
    closure: ClosureKey
    counted: CountedStep
    def __init__(self, session_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., acknowledged: _Optional[int] = ..., step: _Optional[int] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ..., trace_parent: _Optional[str] = ..., closure: _Optional[_Union[ClosureKey, _Mapping]] = ..., counted: _Optional[_Union[CountedStep, _Mapping]] = ...) -> None: ...

class CountedStep(_message.Message):
    __slots__ = ("number", "ordinal", "report")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    number: int
    ordinal: int
    report: bytes
    def __init__(self, number: _Optional[int] = ..., ordinal: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class ClosureKey(_message.Message):
    __slots__ = ("identity", "ordinal")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    identity: ClosureIdentity
    ordinal: int
    def __init__(self, identity: _Optional[_Union[ClosureIdentity, _Mapping]] = ..., ordinal: _Optional[int] = ...) -> None: ...

class ClosureIdentity(_message.Message):
    __slots__ = ("space", "number")
    SPACE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    space: bytes
    number: int
    def __init__(self, space: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[WorkerState]
    def __init__(self, states: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("content", "contributed")
    class ContributedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTED_FIELD_NUMBER: _ClassVar[int]
    content: str
    contributed: _containers.ScalarMap[str, int]
    def __init__(self, content: _Optional[str] = ..., contributed: _Optional[_Mapping[str, int]] = ...) -> None: ...
