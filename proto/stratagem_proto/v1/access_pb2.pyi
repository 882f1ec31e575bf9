from google.protobuf import descriptor_pb2 as _descriptor_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_READ: _ClassVar[Action]
    ACTION_UPDATE: _ClassVar[Action]
    ACTION_ASSIGN: _ClassVar[Action]
    ACTION_CREATE: _ClassVar[Action]
    ACTION_DELETE: _ClassVar[Action]
    ACTION_RESTORE: _ClassVar[Action]
    ACTION_SAVE: _ClassVar[Action]
    ACTION_CONFIGURE: _ClassVar[Action]
    ACTION_MOVE: _ClassVar[Action]
    ACTION_PUBLISH: _ClassVar[Action]
ACTION_UNSPECIFIED: Action
ACTION_READ: Action
ACTION_UPDATE: Action
ACTION_ASSIGN: Action
ACTION_CREATE: Action
ACTION_DELETE: Action
ACTION_RESTORE: Action
ACTION_SAVE: Action
ACTION_CONFIGURE: Action
ACTION_MOVE: Action
ACTION_PUBLISH: Action
ACCESS_FIELD_NUMBER: _ClassVar[int]
access: _descriptor.FieldDescriptor

class Access(_message.Message):
    __slots__ = ("roles", "told", "anyone", "needs", "by_role_alone")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    ANYONE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    BY_ROLE_ALONE_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[_session_pb2.Role]
    told: _containers.RepeatedScalarFieldContainer[str]
    anyone: bool
    needs: _containers.RepeatedCompositeFieldContainer[Need]
    by_role_alone: bool
    def __init__(self, roles: _Optional[_Iterable[_Union[_session_pb2.Role, str]]] = ..., told: _Optional[_Iterable[str]] = ..., anyone: bool = ..., needs: _Optional[_Iterable[_Union[Need, _Mapping]]] = ..., by_role_alone: bool = ...) -> None: ...

class Need(_message.Message):
    __slots__ = ("action", "variables", "given")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    action: Action
    variables: _containers.RepeatedScalarFieldContainer[str]
    given: str
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., variables: _Optional[_Iterable[str]] = ..., given: _Optional[str] = ...) -> None: ...
