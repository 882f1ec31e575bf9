from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import log_pb2 as _log_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STANDING_UNSPECIFIED: _ClassVar[Standing]
    STANDING_PRIMARY: _ClassVar[Standing]
    STANDING_BACKUP: _ClassVar[Standing]
    STANDING_CATCHING_UP: _ClassVar[Standing]
    STANDING_FENCED: _ClassVar[Standing]
STANDING_UNSPECIFIED: Standing
STANDING_PRIMARY: Standing
STANDING_BACKUP: Standing
STANDING_CATCHING_UP: Standing
STANDING_FENCED: Standing

class Replica(_message.Message):
    __slots__ = ("index", "instance", "address")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    instance: bytes
    address: str
    def __init__(self, index: _Optional[int] = ..., instance: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("epoch", "primary", "backup")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    primary: Replica
    backup: Replica
    def __init__(self, epoch: _Optional[int] = ..., primary: _Optional[_Union[Replica, _Mapping]] = ..., backup: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("introduction", "acknowledgement")
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    introduction: Introduction
    acknowledgement: Acknowledgement
    def __init__(self, introduction: _Optional[_Union[Introduction, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("asking", "replica", "kernels", "durability", "failover_seconds", "arbiter", "takes_over", "task", "bytes_per_second")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    FAILOVER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ARBITER_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    replica: Replica
    kernels: _log_pb2.Kernels
    durability: str
    failover_seconds: float
    arbiter: str
    takes_over: bool
    task: _session_pb2.Task
    bytes_per_second: int
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., replica: _Optional[_Union[Replica, _Mapping]] = ..., kernels: _Optional[_Union[_log_pb2.Kernels, _Mapping]] = ..., durability: _Optional[str] = ..., failover_seconds: _Optional[float] = ..., arbiter: _Optional[str] = ..., takes_over: bool = ..., task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("position", "beacon", "digest")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BEACON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    position: int
    beacon: int
    digest: StateDigest
    def __init__(self, position: _Optional[int] = ..., beacon: _Optional[int] = ..., digest: _Optional[_Union[StateDigest, _Mapping]] = ...) -> None: ...

class StateDigest(_message.Message):
    __slots__ = ("position", "parts")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    position: int
    parts: _containers.ScalarMap[str, bytes]
    def __init__(self, position: _Optional[int] = ..., parts: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("image", "piece", "batch", "beacon", "handed_over")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BEACON_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    image: ImageBegin
    piece: ImagePiece
    batch: BatchPiece
    beacon: Beacon
    handed_over: View
    def __init__(self, image: _Optional[_Union[ImageBegin, _Mapping]] = ..., piece: _Optional[_Union[ImagePiece, _Mapping]] = ..., batch: _Optional[_Union[BatchPiece, _Mapping]] = ..., beacon: _Optional[_Union[Beacon, _Mapping]] = ..., handed_over: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class ImageBegin(_message.Message):
    __slots__ = ("position", "nbytes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    position: int
    nbytes: int
    def __init__(self, position: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class ImagePiece(_message.Message):
    __slots__ = ("path", "data", "is_last")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    is_last: bool
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., is_last: bool = ...) -> None: ...

class BatchPiece(_message.Message):
    __slots__ = ("data", "is_last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    is_last: bool
    def __init__(self, data: _Optional[bytes] = ..., is_last: bool = ...) -> None: ...

class Beacon(_message.Message):
    __slots__ = ("number", "view")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    number: int
    view: View
    def __init__(self, number: _Optional[int] = ..., view: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class ReplicationStatus(_message.Message):
    __slots__ = ("standing", "replica", "view", "behind", "silent_seconds", "verified", "trouble", "is_movable")
    STANDING_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    IS_MOVABLE_FIELD_NUMBER: _ClassVar[int]
    standing: Standing
    replica: Replica
    view: View
    behind: int
    silent_seconds: float
    verified: int
    trouble: str
    is_movable: bool
    def __init__(self, standing: _Optional[_Union[Standing, str]] = ..., replica: _Optional[_Union[Replica, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., behind: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., verified: _Optional[int] = ..., trouble: _Optional[str] = ..., is_movable: bool = ...) -> None: ...
