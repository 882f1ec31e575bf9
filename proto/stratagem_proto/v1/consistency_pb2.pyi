from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConsistencyMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_MODE_UNSPECIFIED: _ClassVar[ConsistencyMode]
    CONSISTENCY_MODE_ASYNC: _ClassVar[ConsistencyMode]
    CONSISTENCY_MODE_BOUNDED: _ClassVar[ConsistencyMode]
    CONSISTENCY_MODE_SYNC: _ClassVar[ConsistencyMode]
CONSISTENCY_MODE_UNSPECIFIED: ConsistencyMode
CONSISTENCY_MODE_ASYNC: ConsistencyMode
CONSISTENCY_MODE_BOUNDED: ConsistencyMode
CONSISTENCY_MODE_SYNC: ConsistencyMode

class Consistency(_message.Message):
    __slots__ = ("mode", "bound", "replicas_to_aggregate")
    MODE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_TO_AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    mode: ConsistencyMode
    bound: int
    replicas_to_aggregate: int
    def __init__(self, mode: _Optional[_Union[ConsistencyMode, str]] = ..., bound: _Optional[int] = ..., replicas_to_aggregate: _Optional[int] = ...) -> None: ...

class BeginStepRequest(_message.Message):
    __slots__ = ("session_id", "steps", "wait_seconds", "inputs")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    steps: _containers.RepeatedCompositeFieldContainer[StepBegin]
    wait_seconds: float
    inputs: _containers.RepeatedCompositeFieldContainer[InputDigest]
    def __init__(self, session_id: _Optional[bytes] = ..., steps: _Optional[_Iterable[_Union[StepBegin, _Mapping]]] = ..., wait_seconds: _Optional[float] = ..., inputs: _Optional[_Iterable[_Union[InputDigest, _Mapping]]] = ...) -> None: ...

class InputDigest(_message.Message):
    __slots__ = ("dataset", "batch", "digest", "first")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    PASS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    dataset: int
    batch: int
    digest: int
    first: bool
    def __init__(self, dataset: _Optional[int] = ..., batch: _Optional[int] = ..., digest: _Optional[int] = ..., first: bool = ..., **kwargs) -> None: ...

class StepBegin(_message.Message):
    __slots__ = ("group", "worker", "num_workers", "finished", "declared", "optimizer")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    group: str
    worker: int
    num_workers: int
    finished: int
    declared: Consistency
    optimizer: DeclaredOptimizer
    def __init__(self, group: _Optional[str] = ..., worker: _Optional[int] = ..., num_workers: _Optional[int] = ..., finished: _Optional[int] = ..., declared: _Optional[_Union[Consistency, _Mapping]] = ..., optimizer: _Optional[_Union[DeclaredOptimizer, _Mapping]] = ...) -> None: ...

class DeclaredOptimizer(_message.Message):
    __slots__ = ("class_name", "trained", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    trained: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, class_name: _Optional[str] = ..., trained: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BeginStepResponse(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[StepGrant]
    def __init__(self, grants: _Optional[_Iterable[_Union[StepGrant, _Mapping]]] = ...) -> None: ...

class StepGrant(_message.Message):
    __slots__ = ("step", "consistency", "closed")
    STEP_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    step: int
    consistency: Consistency
    closed: int
    def __init__(self, step: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, _Mapping]] = ..., closed: _Optional[int] = ...) -> None: ...

class SetConsistencyRequest(_message.Message):
    __slots__ = ("key", "group", "consistency")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    group: str
    consistency: Consistency
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., group: _Optional[str] = ..., consistency: _Optional[_Union[Consistency, _Mapping]] = ...) -> None: ...

class SetConsistencyResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class DescribeConsistencyRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class DescribeConsistencyResponse(_message.Message):
    __slots__ = ("groups", "committed")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupConsistency]
    committed: _containers.RepeatedCompositeFieldContainer[CommittedStep]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupConsistency, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[CommittedStep, _Mapping]]] = ...) -> None: ...

class CommittedStep(_message.Message):
    __slots__ = ("group", "worker", "step")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    group: str
    worker: int
    step: int
    def __init__(self, group: _Optional[str] = ..., worker: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class GroupConsistency(_message.Message):
    __slots__ = ("group", "consistency", "since", "workers", "completed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    group: str
    consistency: Consistency
    since: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerClock]
    completed: int
    def __init__(self, group: _Optional[str] = ..., consistency: _Optional[_Union[Consistency, _Mapping]] = ..., since: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerClock, _Mapping]]] = ..., completed: _Optional[int] = ...) -> None: ...

class WorkerClock(_message.Message):
    __slots__ = ("worker", "task", "finished", "dropped", "staleness", "gone")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    task: str
    finished: int
    dropped: int
    staleness: _containers.RepeatedScalarFieldContainer[int]
    gone: str
    def __init__(self, worker: _Optional[int] = ..., task: _Optional[str] = ..., finished: _Optional[int] = ..., dropped: _Optional[int] = ..., staleness: _Optional[_Iterable[int]] = ..., gone: _Optional[str] = ...) -> None: ...
