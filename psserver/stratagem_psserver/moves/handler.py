"""The service by which tasks are found and moved."""

from __future__ import annotations

import grpc

from stratagem_proto.serving.methods import handler_of, unary_method
from stratagem_proto.serving.rpc_boundary import RpcBoundary
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_psserver.moves.served_tasks import ServedTasks

_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"]


def servers_handler(served: ServedTasks, boundary: RpcBoundary) -> grpc.GenericRpcHandler:
    """Return the handler of the service; none of its calls needs a session.

    Args:
        served: What the calls are about.
        boundary: The boundary of the server that is called.
    """
    rpcs = ServersRpcs(served)
    methods = {
        "LocateTasks": unary_method(pb.LocateTasksRequest, rpcs.locate),
        "DescribeServer": unary_method(pb.DescribeServerRequest, rpcs.describe),
        "TakeTask": unary_method(pb.TakeTaskRequest, rpcs.take),
        "SetDraining": unary_method(pb.SetDrainingRequest, rpcs.set_draining),
    }
    return handler_of(boundary, _SERVICE, methods)


class ServersRpcs:
    """LocateTasks, DescribeServer, TakeTask and SetDraining."""

    def __init__(self, served: ServedTasks) -> None:
        self._served = served

    async def locate(self, request: pb.LocateTasksRequest) -> pb.LocateTasksResponse:
        locations = self._served.locations
        found = await (locations.of(request.tasks) if request.tasks else locations.all())
        views = [pb.TaskView(task=task, view=view) for task, view in found.items()]
        return pb.LocateTasksResponse(tasks=views)

    async def describe(self, request: pb.DescribeServerRequest) -> pb.DescribeServerResponse:
        return self._served.describe()

    async def take(self, request: pb.TakeTaskRequest) -> pb.TakeTaskResponse:
        pace = request.bytes_per_second
        view = await self._served.take(request.task, request.seconds, pace)
        return pb.TakeTaskResponse(view=view)

    async def set_draining(self, request: pb.SetDrainingRequest) -> pb.SetDrainingResponse:
        self._served.is_draining = request.draining
        return pb.SetDrainingResponse()
