"""A session that somebody has recorded, and sends again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import torch
from google.protobuf.message import Message

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import open_channel
from tests.conftest import TOKEN
from tests.psserver.wire import SECONDS, SERVICE, RawClient, sgd

Response = TypeVar("Response", bound=Message)

# What it answers that is asked in the name of a session without changing anything.
ASKS = {"Challenge", "ListVariables", "Heartbeat"}


@dataclass(frozen=True)
class Recorded:
    """A call, as it went over the wire."""

    path: str
    messages: tuple[bytes, ...]

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]

    def again(self, address: str) -> str:
        """How a server answers it."""
        with open_channel(address) as channel:
            begin: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(self.path)
            try:
                _ = list(begin(iter(self.messages), timeout=SECONDS))
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
        return "OK"


class RecordedClient(RawClient):
    """A client, to all of whose calls somebody listens."""

    def __init__(self, address: str) -> None:
        super().__init__(address, TOKEN)
        self.calls: list[Recorded] = []

    def __enter__(self) -> RecordedClient:
        return self

    def unary(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        seconds: float = SECONDS,
        service: str = SERVICE,
    ) -> Response:
        self.calls.append(Recorded(f"/{service}/{method}", (request.SerializeToString(),)))
        return super().unary(method, request, response_type, seconds, service)

    def upload(
        self,
        method: str,
        messages: Iterable[bytes],
        response_type: type[Response],
        seconds: float = SECONDS,
    ) -> Response:
        self.calls.append(Recorded(f"/{SERVICE}/{method}", kept := tuple(messages)))
        return super().upload(method, kept, response_type, seconds)


def trained(client: RawClient) -> None:
    client.open()
    client.create(w=torch.zeros(3), v=torch.ones(2))
    for _ in range(3):
        client.update(sgd(), {"w": torch.ones(3)})
    client.assign("v", torch.full((2,), 7.0))
    client.listing()


Start = Callable[[], ParameterServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server that has all that the one before had."""
    settings = ServerSettings(token=TOKEN, durability="log", durability_folder=str(tmp_path))
    yield lambda: ParameterServer(settings)


def replayed(calls: list[Recorded], address: str) -> dict[str, set[str]]:
    """How a server answers all calls that change something."""
    answers: dict[str, set[str]] = {}
    for call in calls:
        answers.setdefault(call.method, set()).add(call.again(address).partition(":")[0])
    return {method: answers[method] for method in answers.keys() - ASKS}


REFUSED = {"FAILED_PRECONDITION"}
# The reply to the last request is not acknowledged, so that it is given again.
SEEN = {"CreateVariables": REFUSED, "Update": REFUSED, "Assign": {"OK"}}


def test_a_session_that_is_replayed_changes_nothing(start: Start) -> None:
    with (
        start() as server,
        RecordedClient(server.address) as client,
        RawClient(server.address, TOKEN) as other,
    ):
        trained(client)
        other.open()
        before = other.everything()
        assert replayed(client.calls, server.address) == {
            **SEEN,
            "OpenSession": {"UNAUTHENTICATED"},
        }
        assert other.everything() == before
        client.update(sgd(), {"w": torch.ones(3)})
        assert other.read("w")[0].tolist() == [-4] * 3


def test_a_session_that_is_replayed_to_the_next_run_of_the_server_changes_nothing(
    start: Start,
) -> None:
    with start() as server, RecordedClient(server.address) as client:
        trained(client)
        before = client.everything()
    with start() as server, RawClient(server.address, TOKEN) as other:
        # No challenge of the run before counts.
        assert replayed(client.calls, server.address) == {**SEEN, "OpenSession": {"UNAVAILABLE"}}
        other.open()
        assert other.everything() == before


def test_a_session_that_is_replayed_to_a_server_that_has_forgotten_it_is_refused() -> None:
    settings = ServerSettings(token=TOKEN)
    with ParameterServer(settings) as server, RecordedClient(server.address) as client:
        trained(client)
    with ParameterServer(settings) as server, RawClient(server.address, TOKEN) as other:
        answers = replayed(client.calls, server.address)
        assert answers == {**dict.fromkeys(SEEN, REFUSED), "OpenSession": {"UNAVAILABLE"}}
        other.open()
        assert other.listing() == {}
