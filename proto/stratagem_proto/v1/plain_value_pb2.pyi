from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BufferKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUFFER_KIND_UNSPECIFIED: _ClassVar[BufferKind]
    BUFFER_KIND_TENSOR: _ClassVar[BufferKind]
    BUFFER_KIND_ARRAY: _ClassVar[BufferKind]
    BUFFER_KIND_SCALAR: _ClassVar[BufferKind]
    BUFFER_KIND_TEXT: _ClassVar[BufferKind]
    BUFFER_KIND_OCTETS: _ClassVar[BufferKind]
    BUFFER_KIND_NUMBERS: _ClassVar[BufferKind]

class NestKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEST_KIND_UNSPECIFIED: _ClassVar[NestKind]
    NEST_KIND_TUPLE: _ClassVar[NestKind]
    NEST_KIND_LIST: _ClassVar[NestKind]
    NEST_KIND_SET: _ClassVar[NestKind]
    NEST_KIND_FROZEN_SET: _ClassVar[NestKind]
    NEST_KIND_DICT: _ClassVar[NestKind]
    NEST_KIND_ORDERED_DICT: _ClassVar[NestKind]
    NEST_KIND_STATE_DICT: _ClassVar[NestKind]
    NEST_KIND_NAMED_TUPLE: _ClassVar[NestKind]
    NEST_KIND_STRUCTURE: _ClassVar[NestKind]
    NEST_KIND_SIZE: _ClassVar[NestKind]
    NEST_KIND_COMPLEX: _ClassVar[NestKind]
    NEST_KIND_SPARSE_COO: _ClassVar[NestKind]
    NEST_KIND_SPARSE_COMPRESSED: _ClassVar[NestKind]
    NEST_KIND_INDEXED_SLICES: _ClassVar[NestKind]
    NEST_KIND_PER_REPLICA: _ClassVar[NestKind]
    NEST_KIND_MIRRORED: _ClassVar[NestKind]
BUFFER_KIND_UNSPECIFIED: BufferKind
BUFFER_KIND_TENSOR: BufferKind
BUFFER_KIND_ARRAY: BufferKind
BUFFER_KIND_SCALAR: BufferKind
BUFFER_KIND_TEXT: BufferKind
BUFFER_KIND_OCTETS: BufferKind
BUFFER_KIND_NUMBERS: BufferKind
NEST_KIND_UNSPECIFIED: NestKind
NEST_KIND_TUPLE: NestKind
NEST_KIND_LIST: NestKind
NEST_KIND_SET: NestKind
NEST_KIND_FROZEN_SET: NestKind
NEST_KIND_DICT: NestKind
NEST_KIND_ORDERED_DICT: NestKind
NEST_KIND_STATE_DICT: NestKind
NEST_KIND_NAMED_TUPLE: NestKind
NEST_KIND_STRUCTURE: NestKind
NEST_KIND_SIZE: NestKind
NEST_KIND_COMPLEX: NestKind
NEST_KIND_SPARSE_COO: NestKind
NEST_KIND_SPARSE_COMPRESSED: NestKind
NEST_KIND_INDEXED_SLICES: NestKind
NEST_KIND_PER_REPLICA: NestKind
NEST_KIND_MIRRORED: NestKind

class PlainValue(_message.Message):
    __slots__ = ("none", "truth", "integer", "large_integer", "real", "text", "octets", "dtype", "device", "buffer", "nest")
    NONE_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    LARGE_INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OCTETS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    NEST_FIELD_NUMBER: _ClassVar[int]
    none: bool
    truth: bool
    integer: int
    large_integer: bytes
    real: float
    text: bytes
    octets: bytes
    dtype: str
    device: str
    buffer: Buffer
    nest: Nest
    def __init__(self, none: bool = ..., truth: bool = ..., integer: _Optional[int] = ..., large_integer: _Optional[bytes] = ..., real: _Optional[float] = ..., text: _Optional[bytes] = ..., octets: _Optional[bytes] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., buffer: _Optional[_Union[Buffer, _Mapping]] = ..., nest: _Optional[_Union[Nest, _Mapping]] = ...) -> None: ...

class Buffer(_message.Message):
    __slots__ = ("kind", "dtype", "shape")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    kind: BufferKind
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[BufferKind, str]] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Nest(_message.Message):
    __slots__ = ("kind", "items", "class_name", "numbers")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    kind: NestKind
    items: _containers.RepeatedCompositeFieldContainer[PlainValue]
    class_name: ClassName
    numbers: Buffer
    def __init__(self, kind: _Optional[_Union[NestKind, str]] = ..., items: _Optional[_Iterable[_Union[PlainValue, _Mapping]]] = ..., class_name: _Optional[_Union[ClassName, _Mapping]] = ..., numbers: _Optional[_Union[Buffer, _Mapping]] = ...) -> None: ...

class ClassName(_message.Message):
    __slots__ = ("module", "name", "identity")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    module: str
    name: str
    identity: str
    def __init__(self, module: _Optional[str] = ..., name: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...
