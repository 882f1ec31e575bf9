"""A service that answers over sockets, with a method of each shape."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.transport import Attempt, Call
from stratagem_rpc.certificates.folder import CertificateFolder, ShownCertificate
from stratagem_rpc.certificates.presented import presented
from stratagem_rpc.server_call import ServerCall
from stratagem_rpc.serving.process import LoopThread
from stratagem_rpc.socket_server.listener import SocketListener, listen
from stratagem_rpc.socket_server.memory import FrameMemory
from stratagem_rpc.sockets.client import endpoints

MEBIBYTE = bytes(1 << 20)

SESSION = b"the only session"

ENCRYPTED = "encrypted"
"""TCP sockets, between processes with certificates."""


class Echo:
    """A service with a method of each shape."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.released: asyncio.Future[None] | None = None
        self.cancelled = threading.Event()

    async def echo(self, message: bytes, context: ServerCall) -> bytes:
        return bytes(message)

    async def size(self, messages: AsyncIterator[bytes], context: ServerCall) -> bytes:
        return b"%d" % sum([len(message) async for message in messages])

    async def refuse(self, messages: AsyncIterator[bytes], context: ServerCall) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    async def fail(self, message: bytes, context: ServerCall) -> bytes:
        raise ZeroDivisionError("a secret of the server")

    async def repeat(self, message: bytes, context: ServerCall) -> AsyncIterator[bytes]:
        for _ in range(int(message)):
            yield MEBIBYTE

    async def tell(self, message: bytes, context: ServerCall) -> None:
        for number in range(int(message)):
            await context.write(b"%d" % number)

    async def begin(self, message: bytes, context: ServerCall) -> AsyncIterator[bytes]:
        self.released = asyncio.get_running_loop().create_future()
        yield b"begun"
        await self.released
        yield b"ended"

    async def give_up(self, message: bytes, context: ServerCall) -> AsyncIterator[bytes]:
        yield b"begun"
        await context.abort(grpc.StatusCode.ABORTED, "no more")

    async def wait(self, message: bytes, context: ServerCall) -> bytes:
        self.released = asyncio.get_running_loop().create_future()
        self.waiting.set()
        try:
            await self.released
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b"released"

    def service(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "echo.Echo",
            {
                "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
                "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
                "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
                "Size": grpc.stream_unary_rpc_method_handler(self.size),
                "Refuse": grpc.stream_unary_rpc_method_handler(self.refuse),
                "Repeat": grpc.unary_stream_rpc_method_handler(self.repeat),
                "Tell": grpc.unary_stream_rpc_method_handler(self.tell),
                "Begin": grpc.unary_stream_rpc_method_handler(self.begin),
                "GiveUp": grpc.unary_stream_rpc_method_handler(self.give_up),
            },
        )


def _shown() -> ShownCertificate:
    """What a client in this process shows."""
    folder = presented()
    assert folder is not None
    own = folder.current()
    return ShownCertificate(own.identity, own.leaf.serial_number, own.leaf.not_valid_after_utc)


class Served:
    """The service on a socket, and a transport to it, which is encrypted if there are certificates.

    The fixture shows those of the client.
    """

    def __init__(self, loop: LoopThread, way: str, certificates: Path | None = None) -> None:
        self.loop, self.echo = loop, Echo()
        self.is_encrypted = certificates is not None
        self.listener = loop.run(self._listener(way, certificates))
        self.told = self.listener.offered.to(SESSION, _shown() if certificates else None)
        (self.endpoint,) = endpoints(self.told, "127.0.0.1:1", way)
        self.transport = SocketTransport(self.endpoint)
        self.stopped = False

    async def _listener(self, way: str, certificates: Path | None) -> SocketListener:
        folder = CertificateFolder(certificates, print) if certificates else None
        free = SimpleNamespace(release=lambda: None)
        listening = listen("127.0.0.1:1", way)
        services = [self.echo.service()]
        memory = FrameMemory(0, lambda session_id: "the only client")
        return SocketListener(
            services, listening, memory, lambda nbytes, session_id: free, certificates=folder
        )

    def send(self, method: str, *messages: bytes, timeout: float = 20.0, room: int = 0) -> Attempt:
        path = f"/echo.Echo/{method}"
        return self.transport.send(Call(path, lambda _: iter(messages), timeout, room=room))

    def call(self, method: str, *messages: bytes, timeout: float = 20.0) -> list[bytes]:
        return list(self.send(method, *messages, timeout=timeout).responses)

    def refused(self, method: str, *messages: bytes) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, *messages, timeout=0.2)
        code: grpc.StatusCode = caught.value.code()
        return code

    def release(self) -> None:
        released = self.echo.released
        assert released is not None
        released.get_loop().call_soon_threadsafe(released.set_result, None)

    def stop(self, seconds: float = 0.0) -> None:
        self.stopped = True
        self.loop.run(self.listener.stop(seconds))
