from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenLookupsRequest(_message.Message):
    __slots__ = ("asking",)
    ASKING_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ...) -> None: ...

class OpenLookupsResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: _session_pb2.OpenSessionResponse
    def __init__(self, session: _Optional[_Union[_session_pb2.OpenSessionResponse, _Mapping]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("session_id", "tables", "version", "min_version", "wait_seconds", "hold_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    tables: _containers.RepeatedCompositeFieldContainer[TableKeys]
    version: int
    min_version: int
    wait_seconds: float
    hold_seconds: float
    def __init__(self, session_id: _Optional[bytes] = ..., tables: _Optional[_Iterable[_Union[TableKeys, _Mapping]]] = ..., version: _Optional[int] = ..., min_version: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., hold_seconds: _Optional[float] = ...) -> None: ...

class TableKeys(_message.Message):
    __slots__ = ("table", "keys", "missing")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: bytes
    missing: bytes
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[bytes] = ..., missing: _Optional[bytes] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: LookupHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[LookupHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class LookupHeader(_message.Message):
    __slots__ = ("version", "age_ms", "held_seconds", "tensors")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    version: int
    age_ms: int
    held_seconds: float
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    def __init__(self, version: _Optional[int] = ..., age_ms: _Optional[int] = ..., held_seconds: _Optional[float] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ...) -> None: ...
