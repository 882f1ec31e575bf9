from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import error_pb2 as _error_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResultUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESULT_USE_UNSPECIFIED: _ClassVar[ResultUse]
    RESULT_USE_LARGE_STAYS: _ClassVar[ResultUse]
    RESULT_USE_NONE: _ClassVar[ResultUse]

class OutputStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_STREAM_UNSPECIFIED: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDOUT: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDERR: _ClassVar[OutputStream]
    OUTPUT_STREAM_LOG: _ClassVar[OutputStream]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_FUNCTION: _ClassVar[FailureKind]
    FAILURE_KIND_INPUT: _ClassVar[FailureKind]
    FAILURE_KIND_CANCELLED: _ClassVar[FailureKind]
RESULT_USE_UNSPECIFIED: ResultUse
RESULT_USE_LARGE_STAYS: ResultUse
RESULT_USE_NONE: ResultUse
OUTPUT_STREAM_UNSPECIFIED: OutputStream
OUTPUT_STREAM_STDOUT: OutputStream
OUTPUT_STREAM_STDERR: OutputStream
OUTPUT_STREAM_LOG: OutputStream
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_FUNCTION: FailureKind
FAILURE_KIND_INPUT: FailureKind
FAILURE_KIND_CANCELLED: FailureKind

class WorkRequest(_message.Message):
    __slots__ = ("open", "instructions")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    open: OpenWorkerSession
    instructions: _containers.RepeatedCompositeFieldContainer[Instruction]
    def __init__(self, open: _Optional[_Union[OpenWorkerSession, _Mapping]] = ..., instructions: _Optional[_Iterable[_Union[Instruction, _Mapping]]] = ...) -> None: ...

class WorkResponse(_message.Message):
    __slots__ = ("opened", "events")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    opened: WorkerSessionOpened
    events: _containers.RepeatedCompositeFieldContainer[WorkEvent]
    def __init__(self, opened: _Optional[_Union[WorkerSessionOpened, _Mapping]] = ..., events: _Optional[_Iterable[_Union[WorkEvent, _Mapping]]] = ...) -> None: ...

class OpenWorkerSession(_message.Message):
    __slots__ = ("session", "runtime", "address", "trusts_worker")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRUSTS_WORKER_FIELD_NUMBER: _ClassVar[int]
    session: _session_pb2.OpenSessionRequest
    runtime: Runtime
    address: str
    trusts_worker: bool
    def __init__(self, session: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., runtime: _Optional[_Union[Runtime, _Mapping]] = ..., address: _Optional[str] = ..., trusts_worker: bool = ...) -> None: ...

class WorkerSessionOpened(_message.Message):
    __slots__ = ("session", "gpus")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    session: _session_pb2.OpenSessionResponse
    gpus: int
    def __init__(self, session: _Optional[_Union[_session_pb2.OpenSessionResponse, _Mapping]] = ..., gpus: _Optional[int] = ...) -> None: ...

class Runtime(_message.Message):
    __slots__ = ("python", "torch", "cloudpickle", "stratagem")
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    CLOUDPICKLE_FIELD_NUMBER: _ClassVar[int]
    STRATAGEM_FIELD_NUMBER: _ClassVar[int]
    python: str
    torch: str
    cloudpickle: str
    stratagem: str
    def __init__(self, python: _Optional[str] = ..., torch: _Optional[str] = ..., cloudpickle: _Optional[str] = ..., stratagem: _Optional[str] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("piece", "define", "run", "cancel", "release", "beat", "take", "send_back")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    DEFINE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    SEND_BACK_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    define: Define
    run: Run
    cancel: Cancel
    release: Release
    beat: Beat
    take: Take
    send_back: SendBack
    def __init__(self, piece: _Optional[bytes] = ..., define: _Optional[_Union[Define, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., take: _Optional[_Union[Take, _Mapping]] = ..., send_back: _Optional[_Union[SendBack, _Mapping]] = ...) -> None: ...

class Define(_message.Message):
    __slots__ = ("handle", "payload")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    handle: int
    payload: bytes
    def __init__(self, handle: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("closure", "payload", "keep_as", "identity", "use")
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEEP_AS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    closure: int
    payload: bytes
    keep_as: int
    identity: _session_pb2.ClosureIdentity
    use: ResultUse
    def __init__(self, closure: _Optional[int] = ..., payload: _Optional[bytes] = ..., keep_as: _Optional[int] = ..., identity: _Optional[_Union[_session_pb2.ClosureIdentity, _Mapping]] = ..., use: _Optional[_Union[ResultUse, str]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("closure", "interrupt")
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    closure: int
    interrupt: bool
    def __init__(self, closure: _Optional[int] = ..., interrupt: bool = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("handles", "results")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    results: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[int]] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("handle", "place")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    place: ResultPlace
    def __init__(self, handle: _Optional[int] = ..., place: _Optional[_Union[ResultPlace, _Mapping]] = ...) -> None: ...

class ResultPlace(_message.Message):
    __slots__ = ("address", "session_id", "closure")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    address: str
    session_id: bytes
    closure: int
    def __init__(self, address: _Optional[str] = ..., session_id: _Optional[bytes] = ..., closure: _Optional[int] = ...) -> None: ...

class SendBack(_message.Message):
    __slots__ = ("closure",)
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    closure: int
    def __init__(self, closure: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkEvent(_message.Message):
    __slots__ = ("piece", "started", "output", "finished", "beat", "sent_back", "leaving")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    SENT_BACK_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    started: Started
    output: Output
    finished: Finished
    beat: Beat
    sent_back: SentBack
    leaving: Leaving
    def __init__(self, piece: _Optional[bytes] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., sent_back: _Optional[_Union[SentBack, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Started(_message.Message):
    __slots__ = ("closure",)
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    closure: int
    def __init__(self, closure: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("closure", "stream", "level", "text")
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    closure: int
    stream: OutputStream
    level: int
    text: str
    def __init__(self, closure: _Optional[int] = ..., stream: _Optional[_Union[OutputStream, str]] = ..., level: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("closure", "payload", "failure", "staying_bytes", "reached")
    class ReachedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STAYING_BYTES_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    closure: int
    payload: bytes
    failure: Failure
    staying_bytes: int
    reached: _containers.ScalarMap[int, bytes]
    def __init__(self, closure: _Optional[int] = ..., payload: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., staying_bytes: _Optional[int] = ..., reached: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class SentBack(_message.Message):
    __slots__ = ("closure", "payload")
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    closure: int
    payload: bytes
    def __init__(self, closure: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "exception", "class_name", "message", "traceback", "pickling_error", "told")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    PICKLING_ERROR_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    exception: bytes
    class_name: str
    message: str
    traceback: str
    pickling_error: str
    told: ToldException
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., exception: _Optional[bytes] = ..., class_name: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., pickling_error: _Optional[str] = ..., told: _Optional[_Union[ToldException, _Mapping]] = ...) -> None: ...

class ToldException(_message.Message):
    __slots__ = ("status", "builtin", "original")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BUILTIN_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_FIELD_NUMBER: _ClassVar[int]
    status: _error_pb2.RecordedStatus
    builtin: BuiltinException
    original: ToldException
    def __init__(self, status: _Optional[_Union[_error_pb2.RecordedStatus, _Mapping]] = ..., builtin: _Optional[_Union[BuiltinException, _Mapping]] = ..., original: _Optional[_Union[ToldException, _Mapping]] = ...) -> None: ...

class BuiltinException(_message.Message):
    __slots__ = ("name", "args")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    args: bytes
    def __init__(self, name: _Optional[str] = ..., args: _Optional[bytes] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("asking", "closure")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    closure: int
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., closure: _Optional[int] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("piece",)
    PIECE_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    def __init__(self, piece: _Optional[bytes] = ...) -> None: ...
