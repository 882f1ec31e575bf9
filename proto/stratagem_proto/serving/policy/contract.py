"""What roles may do by the contract, which no policy can add to."""

from __future__ import annotations

from functools import cache

from stratagem_proto.serving.access import Access
from stratagem_proto.v1 import checkpoint_pb2, parameter_server_service_pb2, servers_pb2
from stratagem_proto.v1.access_pb2 import Action
from stratagem_proto.v1.session_pb2 import Role

_SERVICES = (
    parameter_server_service_pb2.DESCRIPTOR.services_by_name["ParameterServerService"],
    checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"],
    servers_pb2.DESCRIPTOR.services_by_name["ServersService"],
)


@cache
def actions_of(role: Role) -> frozenset[Action]:
    """Return what a role may do, as far as policies are about it."""
    calls = [Access(method) for service in _SERVICES for method in service.methods]
    allowed = [call.needs for call in calls if role in call.roles]
    # What calls do only if something is given is said of another RPC that always does it.
    return frozenset(need.action for needs in allowed for need in needs if not need.given)
