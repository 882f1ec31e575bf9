"""Programs that answer in the place of a server, and know nothing of its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc

from stratagem_proto.v1.handshake_pb2 import ChallengeResponse
from stratagem_rpc.serving.settings import bound


class Impostor(grpc.GenericRpcHandler):
    """Answers challenges without the token, and keeps all that it is sent.

    Attributes:
        received: The path and the first message of each call.
        address: Where it listens, while it does.
    """

    def __init__(self, proof: bytes = bytes(32)) -> None:
        self._proof = proof
        self.received: list[tuple[str, bytes]] = []
        self.address = ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def answer(data: bytes, _: object) -> bytes:
            self.received.append((str(details.method), data))
            told = ChallengeResponse(challenge=bytes(56), proof=self._proof)
            told.task.job = "ps"
            return told.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    @contextmanager
    def listening(self, bind: str = "127.0.0.1:0") -> Iterator[None]:
        """Answers at an address, which somebody may have had before."""
        server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[self])
        self.address = bound(server, bind)
        server.start()
        try:
            yield
        finally:
            server.stop(None)
