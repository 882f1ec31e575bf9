from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenPassRequest(_message.Message):
    __slots__ = ("key", "ledger", "num_batches", "seed", "coordinator")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    ledger: str
    num_batches: int
    seed: int
    coordinator: bytes
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., ledger: _Optional[str] = ..., num_batches: _Optional[int] = ..., seed: _Optional[int] = ..., coordinator: _Optional[bytes] = ...) -> None: ...

class OpenPassResponse(_message.Message):
    __slots__ = ("number", "seed", "drawn", "earlier")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    number: int
    seed: int
    drawn: int
    earlier: _containers.RepeatedCompositeFieldContainer[EarlierCoordinator]
    def __init__(self, number: _Optional[int] = ..., seed: _Optional[int] = ..., drawn: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[EarlierCoordinator, _Mapping]]] = ...) -> None: ...

class EarlierCoordinator(_message.Message):
    __slots__ = ("space", "unfinished")
    SPACE_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    space: bytes
    unfinished: _containers.RepeatedCompositeFieldContainer[UnfinishedFunction]
    def __init__(self, space: _Optional[bytes] = ..., unfinished: _Optional[_Iterable[_Union[UnfinishedFunction, _Mapping]]] = ...) -> None: ...

class UnfinishedFunction(_message.Message):
    __slots__ = ("number", "batches")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    number: int
    batches: int
    def __init__(self, number: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class DrawBatchRequest(_message.Message):
    __slots__ = ("key", "ledger", "number", "num_batches", "order")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    key: _session_pb2.RequestKey
    ledger: str
    number: int
    num_batches: int
    order: int
    def __init__(self, key: _Optional[_Union[_session_pb2.RequestKey, _Mapping]] = ..., ledger: _Optional[str] = ..., number: _Optional[int] = ..., num_batches: _Optional[int] = ..., order: _Optional[int] = ...) -> None: ...

class DrawBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...
