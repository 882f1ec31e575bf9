"""What a process can find out about where the server of a task is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import grpc

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.connections.primary_search import PrimaryAddress
from stratagem._ps_client.connections.session import Identity, handshake
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.wire.asking import Answer, Question
from stratagem_proto.wire.channel import ANY_PARAMETER_SERVER, open_channel

_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name
_PATH = f"/{_SERVICE}/LocateTasks"

# A server that does not say so sooner is busy, stopped or cut off, and asked again.
_SECONDS = 0.5


class TaskDirectory:
    """Says where the server of a task is, as the program or other servers know it. Thread-safe.

    Args:
        task: The index of the task in the job ps.
        identity: Who asks.
        locate: Returns the address that the program knows of, "" if it knows of none.
        servers: Returns the addresses of servers that may know where the task has moved.
    """

    def __init__(
        self,
        task: int,
        identity: Identity,
        locate: Callable[[], str] = str,
        servers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._task, self._servers = task, servers
        self._token, self._asking = identity.token, handshake(identity, identifier=b"")
        self.located = locate

    def find(self, epoch: int) -> PrimaryAddress | None:
        """Return the server that serves the task, by the word of any server; None if none says so.

        Args:
            epoch: What is older is not believed.
        """
        with ExitStack() as channels:
            opened = [
                channels.enter_context(open_channel(address, expected=ANY_PARAMETER_SERVER))
                for address in sorted({*self._servers()})
            ]
            calls = [self._asked(channel) for channel in opened]
            try:
                found = [*filter(None, map(_primary, calls))]
            finally:
                with uninterrupted():
                    for call in calls:
                        call.cancel()
        latest = max(found, key=lambda each: each.epoch, default=None)
        return latest if latest is not None and latest.epoch >= epoch else None

    def _asked(self, channel: grpc.Channel) -> Answer[pb.LocateTasksResponse]:
        request = pb.LocateTasksRequest(asking=self._asking, tasks=[self._task])
        question = Question(_PATH, request, pb.LocateTasksResponse)
        return Answer(channel, question, self._token, _SECONDS)


def _primary(call: Answer[pb.LocateTasksResponse]) -> PrimaryAddress | None:
    """Return what a server says of the task; None if it knows of no tasks that move."""
    try:
        found = call.result().tasks
    except grpc.RpcError:
        return None
    view = found[0].view if found else None
    if view is None or not view.HasField("primary"):
        return None
    return PrimaryAddress(view.primary.address, view.epoch, instance=view.primary.instance)
