from stratagem_proto.v1 import access_pb2 as _access_pb2
from stratagem_proto.v1 import barrier_pb2 as _barrier_pb2
from stratagem_proto.v1 import closed_step_pb2 as _closed_step_pb2
from stratagem_proto.v1 import consistency_pb2 as _consistency_pb2
from stratagem_proto.v1 import keys_pb2 as _keys_pb2
from stratagem_proto.v1 import parameter_server_pb2 as _parameter_server_pb2
from stratagem_proto.v1 import session_pb2 as _session_pb2
from stratagem_proto.v1 import variable_requests_pb2 as _variable_requests_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
