"""Asking a run for one more server, from another process of its user.

Whoever connects to a Unix socket in the private directory of the run asks for a server. The answer
is an object of JSON: the `address` at which the server serves, or the `problem` why there is none.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_proto.errors import FailedPreconditionError, StratagemError, UnavailableError

# Longer than the run itself waits for a server to start.
_ANSWER_SECONDS = 90.0
_MOST_BYTES = 1 << 16


class Addition:
    """Somebody who waits for one more server.

    Args:
        connection: The way to them, which this closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def grant(self, server: RestartableServer, address: str, seconds: float) -> None:
        """Answer, in another thread, once a server that was started serves, or has not in time."""

        def answer() -> None:
            try:
                server.await_serving(seconds)
            except StratagemError as error:
                self._answer(problem=error.message)
            else:
                self._answer(address=address)

        threading.Thread(target=answer, name="addition", daemon=True).start()

    def _answer(self, **facts: str) -> None:
        # Who has asked may be gone.
        with self._connection, suppress(OSError):
            self._connection.sendall(json.dumps(facts).encode())


@contextmanager
def asked_at(path: Path, on_ask: Callable[[Addition], None]) -> Iterator[None]:
    """Let others ask for servers until the end of the block.

    Args:
        path: Of the socket, in a folder of this user alone.
        on_ask: Called from another thread with each who asks.
    """
    with socket.socket(socket.AF_UNIX) as listening:
        with _named(path) as name:
            listening.bind(name)
        listening.listen()

        def listen() -> None:
            # Until it is shut down.
            with suppress(OSError):
                while True:
                    on_ask(Addition(listening.accept()[0]))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def _named(path: Path) -> Iterator[str]:
    """Yield a name for the path of a socket, which the kernel takes up to 107 bytes long only."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def one_more_server(path: Path) -> str:
    """Ask a run at its socket for one more server, and return its address once it serves.

    Raises:
        UnavailableError: The run has ended, or does not answer.
        FailedPreconditionError: It starts no server; the message says why.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            with _named(path) as name:
                connection.connect(name)
            text = b""
            while data := connection.recv(_MOST_BYTES):
                text += data
    except OSError as error:
        raise UnavailableError(
            f"the run cannot be asked for a server at {str(path)!r}: {error}; see whether it still "
            "runs, as `stratagem status` tells"
        ) from error
    if not text:
        raise UnavailableError("the run has ended before the server that it was to start served")
    answer: dict[str, str] = json.loads(text)
    if "problem" in answer:
        raise FailedPreconditionError(f"the run starts no server: {answer['problem']}")
    return answer["address"]
