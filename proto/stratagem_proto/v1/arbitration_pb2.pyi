from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import replication_pb2 as _replication_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArbitrateRequest(_message.Message):
    __slots__ = ("introduction", "inquiry", "admission", "delay", "answer")
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    INQUIRY_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    introduction: ChiefIntroduction
    inquiry: Inquiry
    admission: Admission
    delay: Delay
    answer: Answer
    def __init__(self, introduction: _Optional[_Union[ChiefIntroduction, _Mapping]] = ..., inquiry: _Optional[_Union[Inquiry, _Mapping]] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ..., delay: _Optional[_Union[Delay, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class ChiefIntroduction(_message.Message):
    __slots__ = ("asking", "chief", "server", "replicas")
    ASKING_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    asking: _session_pb2.OpenSessionRequest
    chief: bytes
    server: _session_pb2.Task
    replicas: int
    def __init__(self, asking: _Optional[_Union[_session_pb2.OpenSessionRequest, _Mapping]] = ..., chief: _Optional[bytes] = ..., server: _Optional[_Union[_session_pb2.Task, _Mapping]] = ..., replicas: _Optional[int] = ...) -> None: ...

class Inquiry(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class Delay(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("number", "replaced", "view")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    number: int
    replaced: bool
    view: _replication_pb2.View
    def __init__(self, number: _Optional[int] = ..., replaced: bool = ..., view: _Optional[_Union[_replication_pb2.View, _Mapping]] = ...) -> None: ...

class ArbitrateResponse(_message.Message):
    __slots__ = ("report", "question")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    report: Report
    question: Question
    def __init__(self, report: _Optional[_Union[Report, _Mapping]] = ..., question: _Optional[_Union[Question, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("inquiry", "replica", "known", "wanted", "term")
    INQUIRY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    inquiry: int
    replica: _replication_pb2.Replica
    known: _replication_pb2.View
    wanted: _containers.RepeatedCompositeFieldContainer[_replication_pb2.View]
    term: int
    def __init__(self, inquiry: _Optional[int] = ..., replica: _Optional[_Union[_replication_pb2.Replica, _Mapping]] = ..., known: _Optional[_Union[_replication_pb2.View, _Mapping]] = ..., wanted: _Optional[_Iterable[_Union[_replication_pb2.View, _Mapping]]] = ..., term: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("number", "present", "following")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    number: int
    present: _replication_pb2.View
    following: _replication_pb2.View
    def __init__(self, number: _Optional[int] = ..., present: _Optional[_Union[_replication_pb2.View, _Mapping]] = ..., following: _Optional[_Union[_replication_pb2.View, _Mapping]] = ...) -> None: ...
