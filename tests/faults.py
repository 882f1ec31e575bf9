"""A TCP proxy between a client and a server that loses connections on demand.

It knows HTTP/2 frames, so that a test can cut at each boundary between messages, count them, or cut
anywhere between two bytes; and it can delay what passes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER_BYTES = 9
_DATA, _HEADERS = 0, 1


class Direction(Enum):
    """Which way bytes pass."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


@dataclass(frozen=True)
class Passing:
    """One HTTP/2 frame that is about to pass.

    Attributes:
        direction: Which way.
        kind: HTTP/2 frame type; 0 is DATA, 1 is HEADERS.
        data: All its bytes, header included.
    """

    direction: Direction
    kind: int
    data: bytes

    @property
    def carries_message(self) -> bool:
        """Whether it belongs to a call, and not to the connection's upkeep."""
        return self.kind in (_DATA, _HEADERS)


class Verdict(Enum):
    """What becomes of a frame."""

    PASS = "pass"
    CUT_BEFORE = "cut before"
    CUT_AFTER = "cut after"
    CUT_WITHIN = "cut within"


Judge = Callable[[Passing], Verdict]


def pass_all(passing: Passing) -> Verdict:
    """The judge that lets everything pass."""
    return Verdict.PASS


@dataclass
class CutAt:
    """Judges that the n-th frame of calls, counted from 0, is where to cut; once.

    Attributes:
        number: Which frame.
        verdict: How to cut there.
        seen: How many frames of calls have passed.
    """

    number: int
    verdict: Verdict = Verdict.CUT_BEFORE
    seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, passing: Passing) -> Verdict:
        if not passing.carries_message:
            return Verdict.PASS
        with self._lock:
            self.seen += 1
            return self.verdict if self.seen - 1 == self.number else Verdict.PASS


class FaultyProxy:
    """Forwards TCP connections to one server, as its judge says.

    Attributes:
        address: "host:port" for clients.
        judge: Decides about each frame; may be replaced at any time.
        delay: Seconds by which each frame of a call is delayed.
        frames: Number of frames of calls that have passed.
        cuts: Number of connections that were cut.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.judge: Judge = pass_all
        self.delay: Callable[[], float] = float
        self.frames = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cuts all connections and accepts no more."""
        self.refuse()
        self.cut()

    def refuse(self) -> None:
        """Accepts no more connections; those that are open stay."""
        if self._thread.is_alive():
            # Closing alone does not wake a thread that is in accept.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._thread.join()

    def cut(self) -> None:
        """Cuts all connections that are open now."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.cut()
        self.cuts += len(links)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        link = _Link(self, client, server)
        with self._lock:
            self._links.add(link)
        link.start()

    def _judged(self, passing: Passing) -> Verdict:
        verdict = self.judge(passing)
        if passing.carries_message:
            self.frames += 1
            if pause := self.delay():
                time.sleep(pause)
        return verdict

    def _drop(self, link: _Link) -> None:
        with self._lock:
            known = link in self._links
            self._links.discard(link)
        self.cuts += known
        link.cut()


class _Link:
    """A client's connection and the proxy's own to the server."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server

    def start(self) -> None:
        """Forwards both ways, in threads."""
        for direction in Direction:
            threading.Thread(target=self._forward, args=(direction,), daemon=True).start()

    def cut(self) -> None:
        """Resets both connections, without a farewell of HTTP/2."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward(self, direction: Direction) -> None:
        source, sink = self._client, self._server
        if direction is Direction.TO_CLIENT:
            source, sink = sink, source
        try:
            with source.makefile("rb") as stream:
                if direction is Direction.TO_SERVER:
                    sink.sendall(stream.read(len(_PREFACE)))
                while passing := _next_frame(stream.read, direction):
                    if not self._pass(passing, sink):
                        break
        except (OSError, ValueError):
            pass  # the other direction has closed the sockets
        self.cut()

    def _pass(self, passing: Passing, sink: socket.socket) -> bool:
        verdict = self._proxy._judged(passing)
        if verdict is Verdict.CUT_WITHIN:
            sink.sendall(passing.data[: len(passing.data) // 2])
        elif verdict is not Verdict.CUT_BEFORE:
            sink.sendall(passing.data)
        if verdict is not Verdict.PASS:
            self._proxy._drop(self)
        return verdict is Verdict.PASS


def _next_frame(read: Callable[[int], bytes], direction: Direction) -> Passing | None:
    header = read(_FRAME_HEADER_BYTES)
    if len(header) < _FRAME_HEADER_BYTES:
        return None
    payload = read(int.from_bytes(header[:3], "big"))
    return Passing(direction, header[3], header + payload)
