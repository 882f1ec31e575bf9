"""A session with a worker server on this host, over its Unix socket."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import chain

from stratagem._servers.traffic import TrafficMeter
from stratagem._servers.transports.local_error import broken, require_ok
from stratagem._servers.transports.local_link import LocalLink
from stratagem._worker_servers.wire import Instructions
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.local.frames import Kind
from stratagem_proto.payloads import batches
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import LocalSocket

_WORK = pb.DESCRIPTOR.services_by_name["WorkerService"].methods_by_name["Work"]
_PATH = f"/{_WORK.containing_service.full_name}/{_WORK.name}".encode()


class LocalWire:
    """A call of `Work`, which is written by whoever sends: no other thread is woken.

    Args:
        place: The worker's socket.
        opening: The handshake.
        meter: Counts what is sent.

    Raises:
        OSError: Nobody, or not the worker, answers there.
    """

    def __init__(
        self, place: LocalSocket, opening: pb.OpenWorkerSession, meter: TrafficMeter
    ) -> None:
        self._meter = meter
        self._waiting: deque[Instructions] = deque()
        self._sending = threading.Lock()
        self._reading = False
        self._link = LocalLink(place)
        self._link.allow(None)
        message = pb.WorkRequest(open=opening).SerializeToString()
        try:
            self._link.send(Kind.CALL, message, is_last=False, path=_PATH)
        except BaseException:
            self._link.close()
            raise

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        try:
            for frame in self._link.frames():
                if frame.kind == Kind.STATUS:
                    return require_ok(frame)
                response = pb.WorkResponse.FromString(bytes(frame.message))
                if response.HasField("opened"):
                    # Of one who does not read for so long nothing is heard either.
                    self._link.bound_sending(response.opened.session.lease_seconds)
                # What the end of functions leads to is sent together.
                self._reading = True
                yield response
                self._reading = False
                self._flush()
        except (OSError, MalformedStreamError) as error:
            raise broken(error) from error

    def send(self, instructions: Instructions) -> None:
        """Sends instructions, in order; waits while the worker does not read."""
        self._waiting.append(instructions)
        if not self._reading:
            self._flush()

    def _flush(self) -> None:
        # Who comes while another thread sends leaves it to that one.
        while self._waiting and self._sending.acquire(blocking=False):
            try:
                self._send_waiting()
            except OSError:
                # Who reads learns of it.
                self.cancel()
            finally:
                self._sending.release()

    def _send_waiting(self) -> None:
        count = range(len(self._waiting))
        taken = chain.from_iterable([self._waiting.popleft() for _ in count])
        for batch in batches(taken):
            message = pb.WorkRequest(instructions=batch).SerializeToString()
            self._meter.sent(len(message))
            self._link.send(Kind.MESSAGE, message, is_last=False)

    def cancel(self) -> None:
        """Ends the call, from any thread. May be called again."""
        self._link.close()

    def close(self) -> None:
        """Cancels."""
        self.cancel()
