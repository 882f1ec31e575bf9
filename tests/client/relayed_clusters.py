"""Clusters in this process whose connections are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import GRPC, TCP
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.relays import Relay, UnixRelay


@dataclass
class RelayedCluster:
    """Servers, and what stands before them.

    Attributes:
        cluster: What clients know of them.
        relays: What stands in between.
        most: Bytes that pass between two cuts.
    """

    cluster: Cluster
    relays: Sequence[Relay]
    most: int

    @property
    def cuts(self) -> int:
        return sum(relay.cuts for relay in self.relays)

    def cut_at_random(self) -> None:
        for number, relay in enumerate(self.relays):
            relay.cut_at_random(random.Random(number), self.most)

    def let_pass(self) -> None:
        for relay in self.relays:
            relay.let_pass()


@contextmanager
def relayed(
    transport: str, num_servers: int, num_workers: int, most: int
) -> Iterator[RelayedCluster]:
    """A cluster that is reached through relays, which cut nothing yet.

    Args:
        transport: By which clients are to come; the environment has to say so, too.
        num_servers: How many servers there are.
        num_workers: How many workers there are.
        most: Bytes that pass between two cuts.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN)))
            for task in range(num_servers)
        ]
        relays = [stack.enter_context(_relay(one, transport)) for one in servers]
        addresses = [server.address for server in servers]
        if transport == GRPC:
            addresses = [f"127.0.0.1:{relay.port}" for relay in relays]
        yield RelayedCluster(Cluster(addresses, num_workers), relays, most)


def _relay(server: ParameterServer, transport: str) -> Relay:
    """What stands between a server and all of its clients that come later."""
    if transport == GRPC:
        return Relay(int(server.address.rpartition(":")[2]))
    assert server._state.frame_sockets is not None
    told = server._state.frame_sockets.described
    if transport == TCP:
        between = Relay(told.data_port)
        told.data_port = between.port
        return between
    named = UnixRelay(told.name)
    told.name = named.name
    return named
