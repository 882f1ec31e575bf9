from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import variable_pb2 as _variable_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientStep(_message.Message):
    __slots__ = ("client", "step")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    client: bytes
    step: int
    def __init__(self, client: _Optional[bytes] = ..., step: _Optional[int] = ...) -> None: ...

class HoldStepsRequest(_message.Message):
    __slots__ = ("session_id", "cut", "begun", "wait_seconds", "finished", "report")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    cut: bytes
    begun: _containers.RepeatedCompositeFieldContainer[ClientStep]
    wait_seconds: float
    finished: int
    report: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., cut: _Optional[bytes] = ..., begun: _Optional[_Iterable[_Union[ClientStep, _Mapping]]] = ..., wait_seconds: _Optional[float] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class ClientProgress(_message.Message):
    __slots__ = ("client", "label", "begun", "finished", "report")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    client: bytes
    label: str
    begun: int
    finished: int
    report: bytes
    def __init__(self, client: _Optional[bytes] = ..., label: _Optional[str] = ..., begun: _Optional[int] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class HoldStepsResponse(_message.Message):
    __slots__ = ("clients", "left", "published")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ClientProgress]
    left: _containers.RepeatedCompositeFieldContainer[ClientProgress]
    published: int
    def __init__(self, clients: _Optional[_Iterable[_Union[ClientProgress, _Mapping]]] = ..., left: _Optional[_Iterable[_Union[ClientProgress, _Mapping]]] = ..., published: _Optional[int] = ...) -> None: ...

class ReleaseStepsRequest(_message.Message):
    __slots__ = ("session_id", "cut")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    cut: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., cut: _Optional[bytes] = ...) -> None: ...

class ReleaseStepsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginSaveRequest(_message.Message):
    __slots__ = ("session_id", "cut", "folder", "base")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    cut: bytes
    folder: str
    base: str
    def __init__(self, session_id: _Optional[bytes] = ..., cut: _Optional[bytes] = ..., folder: _Optional[str] = ..., base: _Optional[str] = ...) -> None: ...

class BeginSaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSnapshotRequest(_message.Message):
    __slots__ = ("session_id", "cut")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    cut: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., cut: _Optional[bytes] = ...) -> None: ...

class OpenSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSnapshotRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class CloseSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishSaveRequest(_message.Message):
    __slots__ = ("session_id", "cut", "wait_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    cut: bytes
    wait_seconds: float
    def __init__(self, session_id: _Optional[bytes] = ..., cut: _Optional[bytes] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class FinishSaveResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: SavedPart
    def __init__(self, part: _Optional[_Union[SavedPart, _Mapping]] = ...) -> None: ...

class SavedPart(_message.Message):
    __slots__ = ("name", "nbytes", "blocks", "tensors", "state", "digests")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    nbytes: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    tensors: _containers.RepeatedCompositeFieldContainer[SavedTensor]
    state: str
    digests: bytes
    def __init__(self, name: _Optional[str] = ..., nbytes: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., tensors: _Optional[_Iterable[_Union[SavedTensor, _Mapping]]] = ..., state: _Optional[str] = ..., digests: _Optional[bytes] = ...) -> None: ...

class SavedTensor(_message.Message):
    __slots__ = ("spec", "begin", "version", "rows", "changed", "delta")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    spec: _variable_pb2.VariableSpec
    begin: int
    version: int
    rows: StoredRows
    changed: ChangedRows
    delta: ByteDelta
    def __init__(self, spec: _Optional[_Union[_variable_pb2.VariableSpec, _Mapping]] = ..., begin: _Optional[int] = ..., version: _Optional[int] = ..., rows: _Optional[_Union[StoredRows, _Mapping]] = ..., changed: _Optional[_Union[ChangedRows, _Mapping]] = ..., delta: _Optional[_Union[ByteDelta, _Mapping]] = ...) -> None: ...

class ByteDelta(_message.Message):
    __slots__ = ("nbytes", "base", "made")
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    base: int
    made: int
    def __init__(self, nbytes: _Optional[int] = ..., base: _Optional[int] = ..., made: _Optional[int] = ...) -> None: ...

class ChangedRows(_message.Message):
    __slots__ = ("count", "begin")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    count: int
    begin: int
    def __init__(self, count: _Optional[int] = ..., begin: _Optional[int] = ...) -> None: ...

class StoredRows(_message.Message):
    __slots__ = ("count", "history")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    count: int
    history: TableHistory
    def __init__(self, count: _Optional[int] = ..., history: _Optional[_Union[TableHistory, _Mapping]] = ...) -> None: ...

class TableHistory(_message.Message):
    __slots__ = ("writes", "swept", "evicted_rows", "dropped_gradients", "aged", "milliseconds", "moments")
    WRITES_FIELD_NUMBER: _ClassVar[int]
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    EVICTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    AGED_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    writes: int
    swept: int
    evicted_rows: int
    dropped_gradients: int
    aged: int
    milliseconds: int
    moments: _containers.RepeatedCompositeFieldContainer[TableMoment]
    def __init__(self, writes: _Optional[int] = ..., swept: _Optional[int] = ..., evicted_rows: _Optional[int] = ..., dropped_gradients: _Optional[int] = ..., aged: _Optional[int] = ..., milliseconds: _Optional[int] = ..., moments: _Optional[_Iterable[_Union[TableMoment, _Mapping]]] = ...) -> None: ...

class TableMoment(_message.Message):
    __slots__ = ("milliseconds", "writes")
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    milliseconds: int
    writes: int
    def __init__(self, milliseconds: _Optional[int] = ..., writes: _Optional[int] = ...) -> None: ...

class StageVariablesRequest(_message.Message):
    __slots__ = ("session_id", "restoration", "path", "variables", "data", "closures", "wait_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    restoration: bytes
    path: str
    variables: _containers.RepeatedScalarFieldContainer[str]
    data: bool
    closures: bool
    wait_seconds: float
    def __init__(self, session_id: _Optional[bytes] = ..., restoration: _Optional[bytes] = ..., path: _Optional[str] = ..., variables: _Optional[_Iterable[str]] = ..., data: bool = ..., closures: bool = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class StageVariablesResponse(_message.Message):
    __slots__ = ("is_reading",)
    IS_READING_FIELD_NUMBER: _ClassVar[int]
    is_reading: bool
    def __init__(self, is_reading: bool = ...) -> None: ...

class RestoreVariablesRequest(_message.Message):
    __slots__ = ("key", "identity", "restoration", "run", "positions", "begins_run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RESTORATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_RUN_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    identity: str
    restoration: bytes
    run: TrainingRun
    positions: _containers.RepeatedCompositeFieldContainer[TaskPosition]
    begins_run: bool
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., identity: _Optional[str] = ..., restoration: _Optional[bytes] = ..., run: _Optional[_Union[TrainingRun, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[TaskPosition, _Mapping]]] = ..., begins_run: bool = ...) -> None: ...

class TrainingRun(_message.Message):
    __slots__ = ("restoration", "path", "extra", "folder", "tasks", "ended")
    RESTORATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    restoration: bytes
    path: str
    extra: str
    folder: str
    tasks: int
    ended: bool
    def __init__(self, restoration: _Optional[bytes] = ..., path: _Optional[str] = ..., extra: _Optional[str] = ..., folder: _Optional[str] = ..., tasks: _Optional[int] = ..., ended: bool = ...) -> None: ...

class TaskPosition(_message.Message):
    __slots__ = ("task", "number", "report")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    task: str
    number: int
    report: bytes
    def __init__(self, task: _Optional[str] = ..., number: _Optional[int] = ..., report: _Optional[bytes] = ...) -> None: ...

class RestoreVariablesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRestoredRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class ListRestoredResponse(_message.Message):
    __slots__ = ("identities", "run", "positions", "uncounted", "trained")
    IDENTITIES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    identities: _containers.RepeatedScalarFieldContainer[str]
    run: TrainingRun
    positions: _containers.RepeatedCompositeFieldContainer[TaskPosition]
    uncounted: bool
    trained: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, identities: _Optional[_Iterable[str]] = ..., run: _Optional[_Union[TrainingRun, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[TaskPosition, _Mapping]]] = ..., uncounted: bool = ..., trained: _Optional[_Iterable[str]] = ...) -> None: ...
