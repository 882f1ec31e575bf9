from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from stratagem_proto.v1 import variable_pb2 as _variable_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AssignMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSIGN_MODE_UNSPECIFIED: _ClassVar[AssignMode]
    ASSIGN_MODE_SET: _ClassVar[AssignMode]
    ASSIGN_MODE_ADD: _ClassVar[AssignMode]
    ASSIGN_MODE_SUBTRACT: _ClassVar[AssignMode]
    ASSIGN_MODE_MULTIPLY: _ClassVar[AssignMode]
    ASSIGN_MODE_DIVIDE: _ClassVar[AssignMode]
    ASSIGN_MODE_MINIMUM: _ClassVar[AssignMode]
    ASSIGN_MODE_MAXIMUM: _ClassVar[AssignMode]
ASSIGN_MODE_UNSPECIFIED: AssignMode
ASSIGN_MODE_SET: AssignMode
ASSIGN_MODE_ADD: AssignMode
ASSIGN_MODE_SUBTRACT: AssignMode
ASSIGN_MODE_MULTIPLY: AssignMode
ASSIGN_MODE_DIVIDE: AssignMode
ASSIGN_MODE_MINIMUM: AssignMode
ASSIGN_MODE_MAXIMUM: AssignMode

class CreateVariablesRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: CreateVariablesHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[CreateVariablesHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class CreateVariablesHeader(_message.Message):
    __slots__ = ("key", "variables", "training")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    variables: _containers.RepeatedCompositeFieldContainer[_variable_pb2.VariableSpec]
    training: bytes
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., variables: _Optional[_Iterable[_Union[_variable_pb2.VariableSpec, _Mapping]]] = ..., training: _Optional[bytes] = ...) -> None: ...

class CreateVariablesResponse(_message.Message):
    __slots__ = ("variables",)
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedCompositeFieldContainer[_variable_pb2.VariableInfo]
    def __init__(self, variables: _Optional[_Iterable[_Union[_variable_pb2.VariableInfo, _Mapping]]] = ...) -> None: ...

class DescribeVariablesRequest(_message.Message):
    __slots__ = ("session_id", "names")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[bytes] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeVariablesResponse(_message.Message):
    __slots__ = ("variables",)
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedCompositeFieldContainer[_variable_pb2.VariableInfo]
    def __init__(self, variables: _Optional[_Iterable[_Union[_variable_pb2.VariableInfo, _Mapping]]] = ...) -> None: ...

class ListVariablesRequest(_message.Message):
    __slots__ = ("session_id", "kinds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    kinds: _containers.RepeatedScalarFieldContainer[_variable_pb2.VariableKind]
    def __init__(self, session_id: _Optional[bytes] = ..., kinds: _Optional[_Iterable[_Union[_variable_pb2.VariableKind, str]]] = ...) -> None: ...

class ListVariablesResponse(_message.Message):
    __slots__ = ("variables", "training")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedCompositeFieldContainer[_variable_pb2.VariableInfo]
    training: bytes
    def __init__(self, variables: _Optional[_Iterable[_Union[_variable_pb2.VariableInfo, _Mapping]]] = ..., training: _Optional[bytes] = ...) -> None: ...

class DeleteVariablesRequest(_message.Message):
    __slots__ = ("key", "names")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteVariablesResponse(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: AssignHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[AssignHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class AssignHeader(_message.Message):
    __slots__ = ("key", "assignments", "tensors")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("variable", "mode", "value", "rows")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    variable: str
    mode: AssignMode
    value: int
    rows: int
    def __init__(self, variable: _Optional[str] = ..., mode: _Optional[_Union[AssignMode, str]] = ..., value: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class AssignResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, versions: _Optional[_Iterable[int]] = ...) -> None: ...
