from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChallengeRequest(_message.Message):
    __slots__ = ("protocol_version", "nonce", "oldest_protocol_version", "release")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    nonce: bytes
    oldest_protocol_version: int
    release: str
    def __init__(self, protocol_version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., oldest_protocol_version: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class ChallengeResponse(_message.Message):
    __slots__ = ("task", "incarnation", "challenge", "proof")
    TASK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    task: _session_pb2.Task
    incarnation: bytes
    challenge: bytes
    proof: bytes
    def __init__(self, task: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., incarnation: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...
