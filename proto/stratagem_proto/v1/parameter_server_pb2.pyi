from stratagem_proto.v1 import consistency_pb2 as _consistency_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import tensor_pb2 as _tensor_pb2
from stratagem_proto.v1 import update_program_pb2 as _update_program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("session_id", "selections", "after", "wait_seconds", "snapshot", "into_segment", "begins", "inputs", "joint_rows", "finished", "report", "trace_parent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INTO_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    JOINT_ROWS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    after: StepMark
    wait_seconds: float
    snapshot: bytes
    into_segment: bool
    begins: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.StepBegin]
    inputs: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.InputDigest]
    joint_rows: _containers.RepeatedCompositeFieldContainer[JointRows]
    finished: int
    report: bytes
    trace_parent: str
    def __init__(self, session_id: _Optional[bytes] = ..., selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ..., after: _Optional[_Union[StepMark, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., snapshot: _Optional[bytes] = ..., into_segment: bool = ..., begins: _Optional[_Iterable[_Union[_consistency_pb2.StepBegin, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[_consistency_pb2.InputDigest, _Mapping]]] = ..., joint_rows: _Optional[_Iterable[_Union[JointRows, _Mapping]]] = ..., finished: _Optional[int] = ..., report: _Optional[bytes] = ..., trace_parent: _Optional[str] = ...) -> None: ...

class StepMark(_message.Message):
    __slots__ = ("group", "step")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    group: str
    step: int
    def __init__(self, group: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("variable", "newer_than", "slice", "rows", "narrowed_to")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NARROWED_TO_FIELD_NUMBER: _ClassVar[int]
    variable: str
    newer_than: int
    slice: Slice
    rows: Rows
    narrowed_to: _tensor_pb2.DataType
    def __init__(self, variable: _Optional[str] = ..., newer_than: _Optional[int] = ..., slice: _Optional[_Union[Slice, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., narrowed_to: _Optional[_Union[_tensor_pb2.DataType, str]] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("start", "size")
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("indices",)
    INDICES_FIELD_NUMBER: _ClassVar[int]
    indices: bytes
    def __init__(self, indices: _Optional[bytes] = ...) -> None: ...

class JointRows(_message.Message):
    __slots__ = ("variables", "sizes", "indices", "narrowed_to")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    NARROWED_TO_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedScalarFieldContainer[str]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    indices: bytes
    narrowed_to: _tensor_pb2.DataType
    def __init__(self, variables: _Optional[_Iterable[str]] = ..., sizes: _Optional[_Iterable[int]] = ..., indices: _Optional[bytes] = ..., narrowed_to: _Optional[_Union[_tensor_pb2.DataType, str]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: ReadHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[ReadHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class ReadHeader(_message.Message):
    __slots__ = ("versions", "contents", "grants", "rejected_steps", "has_rows_on_disk", "reached")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    HAS_ROWS_ON_DISK_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    contents: bytes
    grants: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.StepGrant]
    rejected_steps: int
    has_rows_on_disk: bool
    reached: bytes
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., contents: _Optional[bytes] = ..., grants: _Optional[_Iterable[_Union[_consistency_pb2.StepGrant, _Mapping]]] = ..., rejected_steps: _Optional[int] = ..., has_rows_on_disk: bool = ..., reached: _Optional[bytes] = ...) -> None: ...

class ReadContents(_message.Message):
    __slots__ = ("values", "tensors")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[ReadValue]
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    def __init__(self, values: _Optional[_Iterable[_Union[ReadValue, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ...) -> None: ...

class ReadValue(_message.Message):
    __slots__ = ("tensor", "encoding")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    encoding: _tensor_pb2.Encoding
    def __init__(self, tensor: _Optional[int] = ..., encoding: _Optional[_Union[_tensor_pb2.Encoding, _Mapping]] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("key", "program", "gradients", "bindings", "tensors", "contribution", "limits", "nonfinite_variable", "backward", "then", "splits")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_VARIABLE_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    program: _update_program_pb2.UpdateProgram
    gradients: _containers.RepeatedCompositeFieldContainer[GradientRef]
    bindings: _containers.RepeatedCompositeFieldContainer[_update_program_pb2.InputBinding]
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    contribution: Contribution
    limits: _update_program_pb2.GradientLimits
    nonfinite_variable: str
    backward: _update_program_pb2.BackwardPass
    then: FollowingRead
    splits: _containers.RepeatedCompositeFieldContainer[TensorSplit]
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., program: _Optional[_Union[_update_program_pb2.UpdateProgram, _Mapping]] = ..., gradients: _Optional[_Iterable[_Union[GradientRef, _Mapping]]] = ..., bindings: _Optional[_Iterable[_Union[_update_program_pb2.InputBinding, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., contribution: _Optional[_Union[Contribution, _Mapping]] = ..., limits: _Optional[_Union[_update_program_pb2.GradientLimits, _Mapping]] = ..., nonfinite_variable: _Optional[str] = ..., backward: _Optional[_Union[_update_program_pb2.BackwardPass, _Mapping]] = ..., then: _Optional[_Union[FollowingRead, _Mapping]] = ..., splits: _Optional[_Iterable[_Union[TensorSplit, _Mapping]]] = ...) -> None: ...

class TensorSplit(_message.Message):
    __slots__ = ("tensor", "sizes")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class FollowingRead(_message.Message):
    __slots__ = ("selections", "begins", "joint_rows", "announced_rows")
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    JOINT_ROWS_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_ROWS_FIELD_NUMBER: _ClassVar[int]
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    begins: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.StepBegin]
    joint_rows: _containers.RepeatedCompositeFieldContainer[JointRows]
    announced_rows: _containers.RepeatedCompositeFieldContainer[JointRows]
    def __init__(self, selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ..., begins: _Optional[_Iterable[_Union[_consistency_pb2.StepBegin, _Mapping]]] = ..., joint_rows: _Optional[_Iterable[_Union[JointRows, _Mapping]]] = ..., announced_rows: _Optional[_Iterable[_Union[JointRows, _Mapping]]] = ...) -> None: ...

class UpdateAndReadRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class UpdateAndReadResponse(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: UpdateAndReadHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[UpdateAndReadHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class UpdateAndReadHeader(_message.Message):
    __slots__ = ("update", "values", "grants")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    update: UpdateResponse
    values: ReadHeader
    grants: _containers.RepeatedCompositeFieldContainer[_consistency_pb2.StepGrant]
    def __init__(self, update: _Optional[_Union[UpdateResponse, _Mapping]] = ..., values: _Optional[_Union[ReadHeader, _Mapping]] = ..., grants: _Optional[_Iterable[_Union[_consistency_pb2.StepGrant, _Mapping]]] = ...) -> None: ...

class GradientRef(_message.Message):
    __slots__ = ("variable", "tensor", "group", "rows", "encoding")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    variable: str
    tensor: int
    group: int
    rows: int
    encoding: _tensor_pb2.Encoding
    def __init__(self, variable: _Optional[str] = ..., tensor: _Optional[int] = ..., group: _Optional[int] = ..., rows: _Optional[int] = ..., encoding: _Optional[_Union[_tensor_pb2.Encoding, _Mapping]] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("step", "worker", "num_workers", "replicas", "reduction", "replicas_to_aggregate", "global_norm")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_TO_AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_NORM_FIELD_NUMBER: _ClassVar[int]
    step: StepMark
    worker: int
    num_workers: int
    replicas: int
    reduction: _update_program_pb2.Reduction
    replicas_to_aggregate: int
    global_norm: bool
    def __init__(self, step: _Optional[_Union[StepMark, _Mapping]] = ..., worker: _Optional[int] = ..., num_workers: _Optional[int] = ..., replicas: _Optional[int] = ..., reduction: _Optional[_Union[_update_program_pb2.Reduction, str]] = ..., replicas_to_aggregate: _Optional[int] = ..., global_norm: bool = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("versions", "outputs", "rejected")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_update_program_pb2.GraphOutput]
    rejected: bool
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[_Union[_update_program_pb2.GraphOutput, _Mapping]]] = ..., rejected: bool = ...) -> None: ...

class UpdateNonSlotRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    chunks: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Chunk]
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_tensor_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class UpdateNonSlotResponse(_message.Message):
    __slots__ = ("versions", "outputs")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_update_program_pb2.GraphOutput]
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[_Union[_update_program_pb2.GraphOutput, _Mapping]]] = ...) -> None: ...

class CommitContributionRequest(_message.Message):
    __slots__ = ("key", "step", "wait_seconds", "predecessors")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREDECESSORS_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    step: StepMark
    wait_seconds: float
    predecessors: bool
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., step: _Optional[_Union[StepMark, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., predecessors: bool = ...) -> None: ...

class CommitContributionResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: bool
    def __init__(self, dropped: bool = ...) -> None: ...
