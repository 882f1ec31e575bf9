from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import consistency_pb2 as _consistency_pb2
from stratagem_proto.v1 import replication_pb2 as _replication_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import succession_pb2 as _succession_pb2
from stratagem_proto.v1 import variable_pb2 as _variable_pb2
from stratagem_proto.v1 import waits_pb2 as _waits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ("asking", "with_variables")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    WITH_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    with_variables: bool
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., with_variables: bool = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("task", "incarnation", "protocol_version", "pid", "uptime_seconds", "sessions", "methods", "unix_seconds", "versions", "lost", "insecure", "parameter_server", "worker_server", "reader_server")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    INSECURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_FIELD_NUMBER: _ClassVar[int]
    WORKER_SERVER_FIELD_NUMBER: _ClassVar[int]
    READER_SERVER_FIELD_NUMBER: _ClassVar[int]
    task: _session_pb2.Task
    incarnation: bytes
    protocol_version: int
    pid: int
    uptime_seconds: float
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    methods: _containers.RepeatedCompositeFieldContainer[MethodStatus]
    unix_seconds: float
    versions: _containers.ScalarMap[str, str]
    lost: _containers.RepeatedCompositeFieldContainer[LostClient]
    insecure: bool
    parameter_server: ParameterServerStatus
    worker_server: WorkerServerStatus
    reader_server: ReaderServerStatus
    def __init__(self, task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., incarnation: _Optional[bytes] = ..., protocol_version: _Optional[int] = ..., pid: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ..., methods: _Optional[_Iterable[_Union[MethodStatus, _Mapping]]] = ..., unix_seconds: _Optional[float] = ..., versions: _Optional[_Mapping[str, str]] = ..., lost: _Optional[_Iterable[_Union[LostClient, _Mapping]]] = ..., insecure: bool = ..., parameter_server: _Optional[_Union[ParameterServerStatus, _Mapping]] = ..., worker_server: _Optional[_Union[WorkerServerStatus, _Mapping]] = ..., reader_server: _Optional[_Union[ReaderServerStatus, _Mapping]] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("role", "task", "silent_seconds", "idle_seconds", "doing", "awaited", "released_seconds", "waits", "pace", "digest", "received_bytes", "sent_bytes", "scalars", "release")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    role: _session_pb2.Role
    task: _session_pb2.Task
    silent_seconds: float
    idle_seconds: float
    doing: str
    awaited: _containers.RepeatedCompositeFieldContainer[_session_pb2.AwaitedAnswer]
    released_seconds: float
    waits: _containers.RepeatedCompositeFieldContainer[_waits_pb2.Waiter]
    pace: _session_pb2.StepPace
    digest: str
    received_bytes: int
    sent_bytes: int
    scalars: _containers.RepeatedCompositeFieldContainer[_session_pb2.Scalar]
    release: str
    def __init__(self, role: _Optional[_Union[_session_pb2.Role, str]] = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., silent_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., doing: _Optional[str] = ..., awaited: _Optional[_Iterable[_Union[_session_pb2.AwaitedAnswer, _Mapping]]] = ..., released_seconds: _Optional[float] = ..., waits: _Optional[_Iterable[_Union[_waits_pb2.Waiter, _Mapping]]] = ..., pace: _Optional[_Union[_session_pb2.StepPace, _Mapping]] = ..., digest: _Optional[str] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., scalars: _Optional[_Iterable[_Union[_session_pb2.Scalar, _Mapping]]] = ..., release: _Optional[str] = ...) -> None: ...

class LostClient(_message.Message):
    __slots__ = ("role", "task", "why", "seconds", "doing")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    role: _session_pb2.Role
    task: _session_pb2.Task
    why: str
    seconds: float
    doing: str
    def __init__(self, role: _Optional[_Union[_session_pb2.Role, str]] = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., why: _Optional[str] = ..., seconds: _Optional[float] = ..., doing: _Optional[str] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class MethodStatus(_message.Message):
    __slots__ = ("method", "in_progress", "ended", "seconds", "received_bytes", "sent_bytes")
    class EndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    method: str
    in_progress: int
    ended: _containers.ScalarMap[str, int]
    seconds: Histogram
    received_bytes: Histogram
    sent_bytes: Histogram
    def __init__(self, method: _Optional[str] = ..., in_progress: _Optional[int] = ..., ended: _Optional[_Mapping[str, int]] = ..., seconds: _Optional[_Union[Histogram, _Mapping]] = ..., received_bytes: _Optional[_Union[Histogram, _Mapping]] = ..., sent_bytes: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class ParameterServerStatus(_message.Message):
    __slots__ = ("totals", "variables", "staged", "room", "groups", "waits", "checkpoint", "recorded_closures", "recorded_closure_bytes", "waiters", "log", "replication", "incumbent", "publication", "table_files")
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RECORDED_CLOSURES_FIELD_NUMBER: _ClassVar[int]
    RECORDED_CLOSURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    INCUMBENT_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FILES_FIELD_NUMBER: _ClassVar[int]
    totals: _containers.RepeatedCompositeFieldContainer[VariableTotal]
    variables: _containers.RepeatedCompositeFieldContainer[VariableStatus]
    staged: Budget
    room: Budget
    groups: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.GroupConsistency]
    waits: _containers.RepeatedCompositeFieldContainer[WaitStatus]
    checkpoint: CheckpointStatus
    recorded_closures: int
    recorded_closure_bytes: int
    waiters: _containers.RepeatedCompositeFieldContainer[_waits_pb2.Waiter]
    log: LogStatus
    replication: _replication_pb2.ReplicationStatus
    incumbent: _succession_pb2.Incumbent
    publication: PublicationStatus
    table_files: TableFilesStatus
    def __init__(self, totals: _Optional[_Iterable[_Union[VariableTotal, _Mapping]]] = ..., variables: _Optional[_Iterable[_Union[VariableStatus, _Mapping]]] = ..., staged: _Optional[_Union[Budget, _Mapping]] = ..., room: _Optional[_Union[Budget, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_consistency_pb2.GroupConsistency, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[WaitStatus, _Mapping]]] = ..., checkpoint: _Optional[_Union[CheckpointStatus, _Mapping]] = ..., recorded_closures: _Optional[int] = ..., recorded_closure_bytes: _Optional[int] = ..., waiters: _Optional[_Iterable[_Union[_waits_pb2.Waiter, _Mapping]]] = ..., log: _Optional[_Union[LogStatus, _Mapping]] = ..., replication: _Optional[_Union[_replication_pb2.ReplicationStatus, _Mapping]] = ..., incumbent: _Optional[_Union[_succession_pb2.Incumbent, _Mapping]] = ..., publication: _Optional[_Union[PublicationStatus, _Mapping]] = ..., table_files: _Optional[_Union[TableFilesStatus, _Mapping]] = ...) -> None: ...

class TableFilesStatus(_message.Message):
    __slots__ = ("resident", "file_bytes", "found_rows", "missed_rows", "reads", "read_bytes", "evicted_bytes", "changed_bytes", "written_bytes", "lookups", "rows", "row_bytes", "read_seconds", "folder", "free_bytes", "failure")
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOUND_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSED_ROWS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    resident: Budget
    file_bytes: int
    found_rows: int
    missed_rows: int
    reads: int
    read_bytes: int
    evicted_bytes: int
    changed_bytes: int
    written_bytes: int
    lookups: int
    rows: int
    row_bytes: int
    read_seconds: float
    folder: str
    free_bytes: int
    failure: str
    def __init__(self, resident: _Optional[_Union[Budget, _Mapping]] = ..., file_bytes: _Optional[int] = ..., found_rows: _Optional[int] = ..., missed_rows: _Optional[int] = ..., reads: _Optional[int] = ..., read_bytes: _Optional[int] = ..., evicted_bytes: _Optional[int] = ..., changed_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., lookups: _Optional[int] = ..., rows: _Optional[int] = ..., row_bytes: _Optional[int] = ..., read_seconds: _Optional[float] = ..., folder: _Optional[str] = ..., free_bytes: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class PublicationStatus(_message.Message):
    __slots__ = ("version", "age_seconds", "increments", "kept", "streams")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCREMENTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    age_seconds: float
    increments: int
    kept: Budget
    streams: int
    def __init__(self, version: _Optional[int] = ..., age_seconds: _Optional[float] = ..., increments: _Optional[int] = ..., kept: _Optional[_Union[Budget, _Mapping]] = ..., streams: _Optional[int] = ...) -> None: ...

class LogStatus(_message.Message):
    __slots__ = ("position", "written", "seconds", "writing_seconds", "failure")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    position: int
    written: int
    seconds: Histogram
    writing_seconds: float
    failure: str
    def __init__(self, position: _Optional[int] = ..., written: _Optional[int] = ..., seconds: _Optional[_Union[Histogram, _Mapping]] = ..., writing_seconds: _Optional[float] = ..., failure: _Optional[str] = ...) -> None: ...

class VariableStatus(_message.Message):
    __slots__ = ("variable", "bytes")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    variable: _variable_pb2.VariableInfo
    bytes: int
    def __init__(self, variable: _Optional[_Union[_variable_pb2.VariableInfo, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...

class VariableTotal(_message.Message):
    __slots__ = ("kind", "count", "bytes", "tables", "table_rows")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    kind: _variable_pb2.VariableKind
    count: int
    bytes: int
    tables: int
    table_rows: int
    def __init__(self, kind: _Optional[_Union[_variable_pb2.VariableKind, str]] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., tables: _Optional[int] = ..., table_rows: _Optional[int] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("used", "limit", "refused", "refused_seconds")
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    used: int
    limit: int
    refused: int
    refused_seconds: float
    def __init__(self, used: _Optional[int] = ..., limit: _Optional[int] = ..., refused: _Optional[int] = ..., refused_seconds: _Optional[float] = ...) -> None: ...

class WaitStatus(_message.Message):
    __slots__ = ("reason", "waiting", "seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    waiting: int
    seconds: Histogram
    def __init__(self, reason: _Optional[str] = ..., waiting: _Optional[int] = ..., seconds: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class CheckpointStatus(_message.Message):
    __slots__ = ("restored_from", "saves", "failures", "folder", "age_seconds", "bytes", "seconds")
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    restored_from: str
    saves: int
    failures: int
    folder: str
    age_seconds: float
    bytes: int
    seconds: float
    def __init__(self, restored_from: _Optional[str] = ..., saves: _Optional[int] = ..., failures: _Optional[int] = ..., folder: _Optional[str] = ..., age_seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class WorkerServerStatus(_message.Message):
    __slots__ = ("running", "queued", "ended", "seconds", "staying_results", "staying_result_bytes", "gpus", "current")
    class EndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAYING_RESULTS_FIELD_NUMBER: _ClassVar[int]
    STAYING_RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    running: int
    queued: int
    ended: _containers.ScalarMap[str, int]
    seconds: Histogram
    staying_results: int
    staying_result_bytes: int
    gpus: int
    current: RunningFunction
    def __init__(self, running: _Optional[int] = ..., queued: _Optional[int] = ..., ended: _Optional[_Mapping[str, int]] = ..., seconds: _Optional[_Union[Histogram, _Mapping]] = ..., staying_results: _Optional[int] = ..., staying_result_bytes: _Optional[int] = ..., gpus: _Optional[int] = ..., current: _Optional[_Union[RunningFunction, _Mapping]] = ...) -> None: ...

class RunningFunction(_message.Message):
    __slots__ = ("number", "seconds", "doing")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    number: int
    seconds: float
    doing: str
    def __init__(self, number: _Optional[int] = ..., seconds: _Optional[float] = ..., doing: _Optional[str] = ...) -> None: ...

class ReaderServerStatus(_message.Message):
    __slots__ = ("source", "version", "age_seconds", "max_age_seconds", "source_problem", "variables", "table_rows", "bytes", "looked_up_rows", "versions", "wholes", "publication")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_ROWS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WHOLES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    source: str
    version: int
    age_seconds: float
    max_age_seconds: float
    source_problem: str
    variables: int
    table_rows: int
    bytes: int
    looked_up_rows: int
    versions: int
    wholes: int
    publication: PublicationStatus
    def __init__(self, source: _Optional[str] = ..., version: _Optional[int] = ..., age_seconds: _Optional[float] = ..., max_age_seconds: _Optional[float] = ..., source_problem: _Optional[str] = ..., variables: _Optional[int] = ..., table_rows: _Optional[int] = ..., bytes: _Optional[int] = ..., looked_up_rows: _Optional[int] = ..., versions: _Optional[int] = ..., wholes: _Optional[int] = ..., publication: _Optional[_Union[PublicationStatus, _Mapping]] = ...) -> None: ...
