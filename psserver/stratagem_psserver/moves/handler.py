"""The service by which tasks are found and moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from stratagem_proto.serving.handshake import check_handshake
from stratagem_proto.serving.methods import Make, Request, handler_of, unary_method
from stratagem_proto.serving.rpc_boundary import RpcBoundary
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_psserver.moves.served_tasks import ServedTasks
from stratagem_psserver.settings import ServerSettings

_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"]


def servers_handler(
    served: ServedTasks, settings: ServerSettings, boundary: RpcBoundary
) -> grpc.GenericRpcHandler:
    """Return the handler of the service; none of its calls needs a session.

    Args:
        served: What the calls are about.
        settings: Those of the server that is called.
        boundary: Where calls are counted and errors become statuses.
    """
    rpcs = ServersRpcs(served)

    def known(request_type: type[Request], method: Callable[[Request], Awaitable[Any]]) -> Make:
        async def answer(request: Any) -> Any:
            check_handshake(request.asking, settings)
            return await method(request)

        return unary_method(request_type, answer)

    methods = {
        "LocateTasks": known(pb.LocateTasksRequest, rpcs.locate),
        "DescribeServer": known(pb.DescribeServerRequest, rpcs.describe),
        "TakeTask": known(pb.TakeTaskRequest, rpcs.take),
        "SetDraining": known(pb.SetDrainingRequest, rpcs.set_draining),
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
        return pb.TakeTaskResponse(view=await self._served.take(request.task, request.seconds))

    async def set_draining(self, request: pb.SetDrainingRequest) -> pb.SetDrainingResponse:
        self._served.is_draining = request.draining
        return pb.SetDrainingResponse()
