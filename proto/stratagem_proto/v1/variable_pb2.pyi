from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Synchronization(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNCHRONIZATION_UNSPECIFIED: _ClassVar[Synchronization]
    SYNCHRONIZATION_AUTO: _ClassVar[Synchronization]
    SYNCHRONIZATION_NONE: _ClassVar[Synchronization]
    SYNCHRONIZATION_ON_WRITE: _ClassVar[Synchronization]
    SYNCHRONIZATION_ON_READ: _ClassVar[Synchronization]

class Aggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_UNSPECIFIED: _ClassVar[Aggregation]
    AGGREGATION_NONE: _ClassVar[Aggregation]
    AGGREGATION_SUM: _ClassVar[Aggregation]
    AGGREGATION_MEAN: _ClassVar[Aggregation]
    AGGREGATION_ONLY_FIRST_REPLICA: _ClassVar[Aggregation]

class VariableKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VARIABLE_KIND_UNSPECIFIED: _ClassVar[VariableKind]
    VARIABLE_KIND_MODEL: _ClassVar[VariableKind]
    VARIABLE_KIND_SLOT: _ClassVar[VariableKind]
    VARIABLE_KIND_NON_SLOT: _ClassVar[VariableKind]

class EvictionOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICTION_ORDER_UNSPECIFIED: _ClassVar[EvictionOrder]
    EVICTION_ORDER_OLDEST: _ClassVar[EvictionOrder]
    EVICTION_ORDER_RAREST: _ClassVar[EvictionOrder]
SYNCHRONIZATION_UNSPECIFIED: Synchronization
SYNCHRONIZATION_AUTO: Synchronization
SYNCHRONIZATION_NONE: Synchronization
SYNCHRONIZATION_ON_WRITE: Synchronization
SYNCHRONIZATION_ON_READ: Synchronization
AGGREGATION_UNSPECIFIED: Aggregation
AGGREGATION_NONE: Aggregation
AGGREGATION_SUM: Aggregation
AGGREGATION_MEAN: Aggregation
AGGREGATION_ONLY_FIRST_REPLICA: Aggregation
VARIABLE_KIND_UNSPECIFIED: VariableKind
VARIABLE_KIND_MODEL: VariableKind
VARIABLE_KIND_SLOT: VariableKind
VARIABLE_KIND_NON_SLOT: VariableKind
EVICTION_ORDER_UNSPECIFIED: EvictionOrder
EVICTION_ORDER_OLDEST: EvictionOrder
EVICTION_ORDER_RAREST: EvictionOrder

class Partition(_message.Message):
    __slots__ = ("full_shape", "offset", "interleaved")
    FULL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVED_FIELD_NUMBER: _ClassVar[int]
    full_shape: _containers.RepeatedScalarFieldContainer[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    interleaved: Interleaved
    def __init__(self, full_shape: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ..., interleaved: _Optional[_Union[Interleaved, _Mapping]] = ...) -> None: ...

class Interleaved(_message.Message):
    __slots__ = ("part", "parts")
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    part: int
    parts: int
    def __init__(self, part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class Initializer(_message.Message):
    __slots__ = ("seed", "constant", "uniform", "normal", "truncated_normal", "zero_row")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    UNIFORM_FIELD_NUMBER: _ClassVar[int]
    NORMAL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_NORMAL_FIELD_NUMBER: _ClassVar[int]
    ZERO_ROW_FIELD_NUMBER: _ClassVar[int]
    seed: int
    constant: float
    uniform: UniformRange
    normal: NormalShape
    truncated_normal: TruncatedNormalShape
    zero_row: int
    def __init__(self, seed: _Optional[int] = ..., constant: _Optional[float] = ..., uniform: _Optional[_Union[UniformRange, _Mapping]] = ..., normal: _Optional[_Union[NormalShape, _Mapping]] = ..., truncated_normal: _Optional[_Union[TruncatedNormalShape, _Mapping]] = ..., zero_row: _Optional[int] = ...) -> None: ...

class UniformRange(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class NormalShape(_message.Message):
    __slots__ = ("mean", "std")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    mean: float
    std: float
    def __init__(self, mean: _Optional[float] = ..., std: _Optional[float] = ...) -> None: ...

class TruncatedNormalShape(_message.Message):
    __slots__ = ("mean", "std", "low", "high")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    mean: float
    std: float
    low: float
    high: float
    def __init__(self, mean: _Optional[float] = ..., std: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class TableSpec(_message.Message):
    __slots__ = ("dynamic", "row_dtype")
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    ROW_DTYPE_FIELD_NUMBER: _ClassVar[int]
    dynamic: DynamicKeys
    row_dtype: _tensor_pb2.DataType
    def __init__(self, dynamic: _Optional[_Union[DynamicKeys, _Mapping]] = ..., row_dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ...) -> None: ...

class DynamicKeys(_message.Message):
    __slots__ = ("admission_count", "evict_after_writes", "max_rows", "max_bytes", "part", "parts", "evict_after_milliseconds", "eviction_order")
    ADMISSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVICT_AFTER_WRITES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    EVICT_AFTER_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    EVICTION_ORDER_FIELD_NUMBER: _ClassVar[int]
    admission_count: int
    evict_after_writes: int
    max_rows: int
    max_bytes: int
    part: int
    parts: int
    evict_after_milliseconds: int
    eviction_order: EvictionOrder
    def __init__(self, admission_count: _Optional[int] = ..., evict_after_writes: _Optional[int] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., evict_after_milliseconds: _Optional[int] = ..., eviction_order: _Optional[_Union[EvictionOrder, str]] = ...) -> None: ...

class TableStatistics(_message.Message):
    __slots__ = ("rows", "bytes", "waiting_keys", "evicted_rows", "dropped_gradients")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_KEYS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    waiting_keys: int
    evicted_rows: int
    dropped_gradients: int
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ..., waiting_keys: _Optional[int] = ..., evicted_rows: _Optional[int] = ..., dropped_gradients: _Optional[int] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("wanted_name", "structure", "label", "batch", "phase")
    WANTED_NAME_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    wanted_name: str
    structure: str
    label: str
    batch: int
    phase: int
    def __init__(self, wanted_name: _Optional[str] = ..., structure: _Optional[str] = ..., label: _Optional[str] = ..., batch: _Optional[int] = ..., phase: _Optional[int] = ...) -> None: ...

class VariableSpec(_message.Message):
    __slots__ = ("name", "tensor", "trainable", "synchronization", "aggregation", "kind", "slot_of", "partition", "device", "ordinal", "module_path", "initializer", "table", "origin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZATION_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOT_OF_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    MODULE_PATH_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: _tensor_pb2.TensorSpec
    trainable: bool
    synchronization: Synchronization
    aggregation: Aggregation
    kind: VariableKind
    slot_of: str
    partition: Partition
    device: str
    ordinal: int
    module_path: str
    initializer: Initializer
    table: TableSpec
    origin: Origin
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., trainable: bool = ..., synchronization: _Optional[_Union[Synchronization, str]] = ..., aggregation: _Optional[_Union[Aggregation, str]] = ..., kind: _Optional[_Union[VariableKind, str]] = ..., slot_of: _Optional[str] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., device: _Optional[str] = ..., ordinal: _Optional[int] = ..., module_path: _Optional[str] = ..., initializer: _Optional[_Union[Initializer, _Mapping]] = ..., table: _Optional[_Union[TableSpec, _Mapping]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ...) -> None: ...

class VariableInfo(_message.Message):
    __slots__ = ("spec", "version", "table")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    spec: VariableSpec
    version: int
    table: TableStatistics
    def __init__(self, spec: _Optional[_Union[VariableSpec, _Mapping]] = ..., version: _Optional[int] = ..., table: _Optional[_Union[TableStatistics, _Mapping]] = ...) -> None: ...
