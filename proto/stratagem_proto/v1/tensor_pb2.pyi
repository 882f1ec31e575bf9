from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_INT16: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_BOOL: _ClassVar[DataType]
    DATA_TYPE_COMPLEX64: _ClassVar[DataType]
    DATA_TYPE_COMPLEX128: _ClassVar[DataType]
    DATA_TYPE_UINT16: _ClassVar[DataType]
    DATA_TYPE_UINT32: _ClassVar[DataType]
    DATA_TYPE_UINT64: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E4M3FN: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E5M2: _ClassVar[DataType]

class EncodingKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_KIND_UNSPECIFIED: _ClassVar[EncodingKind]
    ENCODING_KIND_NARROWED: _ClassVar[EncodingKind]
    ENCODING_KIND_QUANTIZED: _ClassVar[EncodingKind]
    ENCODING_KIND_SELECTED: _ClassVar[EncodingKind]
    ENCODING_KIND_PACKED: _ClassVar[EncodingKind]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT64: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_INT16: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_BOOL: DataType
DATA_TYPE_COMPLEX64: DataType
DATA_TYPE_COMPLEX128: DataType
DATA_TYPE_UINT16: DataType
DATA_TYPE_UINT32: DataType
DATA_TYPE_UINT64: DataType
DATA_TYPE_FLOAT8_E4M3FN: DataType
DATA_TYPE_FLOAT8_E5M2: DataType
ENCODING_KIND_UNSPECIFIED: EncodingKind
ENCODING_KIND_NARROWED: EncodingKind
ENCODING_KIND_QUANTIZED: EncodingKind
ENCODING_KIND_SELECTED: EncodingKind
ENCODING_KIND_PACKED: EncodingKind

class TensorSpec(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("decoded", "kind", "companion")
    DECODED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPANION_FIELD_NUMBER: _ClassVar[int]
    decoded: TensorSpec
    kind: EncodingKind
    companion: int
    def __init__(self, decoded: _Optional[_Union[TensorSpec, _Mapping]] = ..., kind: _Optional[_Union[EncodingKind, str]] = ..., companion: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("tensor", "offset", "data", "place")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    offset: int
    data: bytes
    place: Place
    def __init__(self, tensor: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("start", "nbytes")
    START_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    start: int
    nbytes: int
    def __init__(self, start: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, header: _Optional[bytes] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...
