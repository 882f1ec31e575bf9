from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDUCTION_UNSPECIFIED: _ClassVar[Reduction]
    REDUCTION_SUM: _ClassVar[Reduction]
    REDUCTION_MEAN: _ClassVar[Reduction]

class NonfiniteAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONFINITE_ACTION_UNSPECIFIED: _ClassVar[NonfiniteAction]
    NONFINITE_ACTION_REJECT: _ClassVar[NonfiniteAction]
    NONFINITE_ACTION_ZERO: _ClassVar[NonfiniteAction]
    NONFINITE_ACTION_RAISE: _ClassVar[NonfiniteAction]
REDUCTION_UNSPECIFIED: Reduction
REDUCTION_SUM: Reduction
REDUCTION_MEAN: Reduction
NONFINITE_ACTION_UNSPECIFIED: NonfiniteAction
NONFINITE_ACTION_REJECT: NonfiniteAction
NONFINITE_ACTION_ZERO: NonfiniteAction
NONFINITE_ACTION_RAISE: NonfiniteAction

class UpdateProgram(_message.Message):
    __slots__ = ("optimizer", "graph")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    optimizer: OptimizerProgram
    graph: GraphProgram
    def __init__(self, optimizer: _Optional[_Union[OptimizerProgram, _Mapping]] = ..., graph: _Optional[_Union[GraphProgram, _Mapping]] = ...) -> None: ...

class OptimizerProgram(_message.Message):
    __slots__ = ("name", "class_name", "groups", "rules")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    name: str
    class_name: str
    groups: _containers.RepeatedCompositeFieldContainer[HyperparameterGroup]
    rules: _containers.RepeatedCompositeFieldContainer[TracedRule]
    def __init__(self, name: _Optional[str] = ..., class_name: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[HyperparameterGroup, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[TracedRule, _Mapping]]] = ...) -> None: ...

class TracedRule(_message.Message):
    __slots__ = ("first", "later", "state")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    first: TracedStep
    later: TracedStep
    state: _containers.RepeatedCompositeFieldContainer[TracedState]
    def __init__(self, first: _Optional[_Union[TracedStep, _Mapping]] = ..., later: _Optional[_Union[TracedStep, _Mapping]] = ..., state: _Optional[_Iterable[_Union[TracedState, _Mapping]]] = ...) -> None: ...

class TracedState(_message.Message):
    __slots__ = ("key", "dtype", "is_scalar", "is_number")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    IS_SCALAR_FIELD_NUMBER: _ClassVar[int]
    IS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    key: str
    dtype: _tensor_pb2.DataType
    is_scalar: bool
    is_number: bool
    def __init__(self, key: _Optional[str] = ..., dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., is_scalar: bool = ..., is_number: bool = ...) -> None: ...

class TracedStep(_message.Message):
    __slots__ = ("graph", "inputs", "results")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    graph: GraphProgram
    inputs: _containers.RepeatedCompositeFieldContainer[TracedInput]
    results: _containers.RepeatedCompositeFieldContainer[TracedResult]
    def __init__(self, graph: _Optional[_Union[GraphProgram, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TracedInput, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[TracedResult, _Mapping]]] = ...) -> None: ...

class TracedInput(_message.Message):
    __slots__ = ("variable", "gradient", "state", "hyperparameter")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETER_FIELD_NUMBER: _ClassVar[int]
    variable: bool
    gradient: bool
    state: str
    hyperparameter: str
    def __init__(self, variable: bool = ..., gradient: bool = ..., state: _Optional[str] = ..., hyperparameter: _Optional[str] = ...) -> None: ...

class TracedResult(_message.Message):
    __slots__ = ("output", "constant")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    output: int
    constant: Hyperparameter
    def __init__(self, output: _Optional[int] = ..., constant: _Optional[_Union[Hyperparameter, _Mapping]] = ...) -> None: ...

class BackwardPass(_message.Message):
    __slots__ = ("optimizer", "number", "keep")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    optimizer: str
    number: int
    keep: bool
    def __init__(self, optimizer: _Optional[str] = ..., number: _Optional[int] = ..., keep: bool = ...) -> None: ...

class GradientLimits(_message.Message):
    __slots__ = ("on_nonfinite", "clip_value", "clip_norm")
    ON_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    CLIP_VALUE_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    on_nonfinite: NonfiniteAction
    clip_value: float
    clip_norm: float
    def __init__(self, on_nonfinite: _Optional[_Union[NonfiniteAction, str]] = ..., clip_value: _Optional[float] = ..., clip_norm: _Optional[float] = ...) -> None: ...

class HyperparameterGroup(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Hyperparameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Hyperparameter, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.MessageMap[str, Hyperparameter]
    def __init__(self, values: _Optional[_Mapping[str, Hyperparameter]] = ...) -> None: ...

class Hyperparameter(_message.Message):
    __slots__ = ("flag", "integer", "number", "numbers", "typed")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TYPED_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    integer: int
    number: float
    numbers: NumberList
    typed: TypedNumber
    def __init__(self, flag: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., numbers: _Optional[_Union[NumberList, _Mapping]] = ..., typed: _Optional[_Union[TypedNumber, _Mapping]] = ...) -> None: ...

class TypedNumber(_message.Message):
    __slots__ = ("number", "dtype", "is_tensor")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    IS_TENSOR_FIELD_NUMBER: _ClassVar[int]
    number: float
    dtype: _tensor_pb2.DataType
    is_tensor: bool
    def __init__(self, number: _Optional[float] = ..., dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., is_tensor: bool = ...) -> None: ...

class NumberList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class GraphProgram(_message.Message):
    __slots__ = ("inputs", "nodes", "outputs")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[GraphInput]
    nodes: _containers.RepeatedCompositeFieldContainer[GraphNode]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, inputs: _Optional[_Iterable[_Union[GraphInput, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[GraphNode, _Mapping]]] = ..., outputs: _Optional[_Iterable[int]] = ...) -> None: ...

class GraphOutput(_message.Message):
    __slots__ = ("spec", "data")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    spec: _tensor_pb2.TensorSpec
    data: bytes
    def __init__(self, spec: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GraphInput(_message.Message):
    __slots__ = ("kind", "dtype", "label")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[GraphInput.Kind]
        KIND_READ: _ClassVar[GraphInput.Kind]
        KIND_WRITE: _ClassVar[GraphInput.Kind]
        KIND_TENSOR: _ClassVar[GraphInput.Kind]
        KIND_NUMBER: _ClassVar[GraphInput.Kind]
    KIND_UNSPECIFIED: GraphInput.Kind
    KIND_READ: GraphInput.Kind
    KIND_WRITE: GraphInput.Kind
    KIND_TENSOR: GraphInput.Kind
    KIND_NUMBER: GraphInput.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    kind: GraphInput.Kind
    dtype: _tensor_pb2.DataType
    label: str
    def __init__(self, kind: _Optional[_Union[GraphInput.Kind, str]] = ..., dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., label: _Optional[str] = ...) -> None: ...

class GraphNode(_message.Message):
    __slots__ = ("operation", "arguments", "keywords", "location")
    class KeywordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GraphArgument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GraphArgument, _Mapping]] = ...) -> None: ...
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    KEYWORDS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    operation: str
    arguments: _containers.RepeatedCompositeFieldContainer[GraphArgument]
    keywords: _containers.MessageMap[str, GraphArgument]
    location: str
    def __init__(self, operation: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[GraphArgument, _Mapping]]] = ..., keywords: _Optional[_Mapping[str, GraphArgument]] = ..., location: _Optional[str] = ...) -> None: ...

class GraphArgument(_message.Message):
    __slots__ = ("value", "flag", "integer", "number", "dtype", "list", "text")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    value: int
    flag: bool
    integer: int
    number: float
    dtype: _tensor_pb2.DataType
    list: GraphArgumentList
    text: str
    def __init__(self, value: _Optional[int] = ..., flag: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., list: _Optional[_Union[GraphArgumentList, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class GraphArgumentList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GraphArgument]
    def __init__(self, items: _Optional[_Iterable[_Union[GraphArgument, _Mapping]]] = ...) -> None: ...

class InputBinding(_message.Message):
    __slots__ = ("variable", "tensor", "flag", "integer", "number")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    variable: str
    tensor: int
    flag: bool
    integer: int
    number: float
    def __init__(self, variable: _Optional[str] = ..., tensor: _Optional[int] = ..., flag: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ...) -> None: ...
