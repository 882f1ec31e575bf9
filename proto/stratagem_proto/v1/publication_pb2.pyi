from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from stratagem_proto.v1 import variable_pb2 as _variable_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("key", "cut", "version", "values", "published_at")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    cut: bytes
    version: int
    values: _containers.RepeatedCompositeFieldContainer[_variable_pb2.VariableSpec]
    published_at: int
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., cut: _Optional[bytes] = ..., version: _Optional[int] = ..., values: _Optional[_Iterable[_Union[_variable_pb2.VariableSpec, _Mapping]]] = ..., published_at: _Optional[int] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VersionLink(_message.Message):
    __slots__ = ("version", "previous", "cut", "nbytes", "published_at", "previous_cut")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CUT_FIELD_NUMBER: _ClassVar[int]
    version: int
    previous: int
    cut: bytes
    nbytes: int
    published_at: int
    previous_cut: bytes
    def __init__(self, version: _Optional[int] = ..., previous: _Optional[int] = ..., cut: _Optional[bytes] = ..., nbytes: _Optional[int] = ..., published_at: _Optional[int] = ..., previous_cut: _Optional[bytes] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("asking", "after", "wait_seconds", "takes_deltas")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKES_DELTAS_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    after: int
    wait_seconds: float
    takes_deltas: bool
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., after: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., takes_deltas: bool = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("training", "servers", "task", "latest", "links", "now")
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    training: bytes
    servers: int
    task: _session_pb2.Task
    latest: int
    links: _containers.RepeatedCompositeFieldContainer[VersionLink]
    now: int
    def __init__(self, training: _Optional[bytes] = ..., servers: _Optional[int] = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., latest: _Optional[int] = ..., links: _Optional[_Iterable[_Union[VersionLink, _Mapping]]] = ..., now: _Optional[int] = ...) -> None: ...

class ReadVersionRequest(_message.Message):
    __slots__ = ("asking", "version", "previous", "cut", "without_rows")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_ROWS_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    version: int
    previous: int
    cut: bytes
    without_rows: bool
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., version: _Optional[int] = ..., previous: _Optional[int] = ..., cut: _Optional[bytes] = ..., without_rows: bool = ...) -> None: ...

class ReadVersionResponse(_message.Message):
    __slots__ = ("part", "data", "end")
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    part: VersionPart
    data: bytes
    end: VersionEnd
    def __init__(self, part: _Optional[_Union[VersionPart, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[VersionEnd, _Mapping]] = ...) -> None: ...

class VersionPart(_message.Message):
    __slots__ = ("link", "format", "file")
    LINK_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    link: VersionLink
    format: int
    file: _checkpoint_pb2.SavedPart
    def __init__(self, link: _Optional[_Union[VersionLink, _Mapping]] = ..., format: _Optional[int] = ..., file: _Optional[_Union[_checkpoint_pb2.SavedPart, _Mapping]] = ...) -> None: ...

class VersionEnd(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, blocks: _Optional[_Iterable[int]] = ...) -> None: ...
