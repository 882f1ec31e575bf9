"""A parameter server: its data plane, its health server and their life."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

import grpc
import torch

from stratagem_proto.channel import SERVER_OPTIONS
from stratagem_proto.errors import UnavailableError
from stratagem_psserver.addresses import bound
from stratagem_psserver.continuation import resume
from stratagem_psserver.health import HealthServer
from stratagem_psserver.log import LOG
from stratagem_psserver.loop import LoopThread
from stratagem_psserver.saving import Saves
from stratagem_psserver.servicer import checkpoint_handler, service_handler
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState

# Leases are looked at this often within one lease.
_LEASE_CHECKS = 4


class ParameterServer:
    """One server, in this process.

    It serves from `start` until `stop`, which may be called from any thread but the
    server's own. A stopped server stays stopped.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.address = ""
        self.health_address = ""
        self._log = LOG.bind(task=settings.label)
        self._stopping = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Binds both ports and serves; returns once calls are answered.

        Raises:
            UnavailableError: An address cannot be bound.
        DataLossError: The checkpoint to begin with is damaged.
        """
        self._health = HealthServer(self.settings.health_bind)
        self._state = ServerState(self.settings)
        self._saves = Saves(self._state)
        if self.settings.restore:
            self._resume(self.settings.restore)
        self._loop = LoopThread.acquire()
        try:
            self._loop.run(self._serve())
        except BaseException:
            self._health.stop()
            self._loop.release()
            raise
        self._health.start()
        self.health_address = self._health.address
        self._log.info("serving", address=self.address, health=self.health_address)

    def _resume(self, path: str) -> None:
        self._state.resumed = resume(self._state, path)
        what = "restored" if self._state.resumed else "no checkpoint there yet"
        self._log.info(what, path=path)

    async def _serve(self) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            (
                service_handler(self._state),
                checkpoint_handler(self._state, self._saves),
            )
        )
        self.address = bound(self._server, self.settings.bind)
        await self._server.start()
        self._leases = asyncio.create_task(self._end_leases())
        # The first optimizer of a process loads modules for a second.
        self._warm_up = asyncio.create_task(self._state.compute.run(_load, 1 << 30))

    async def _end_leases(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lease_seconds / _LEASE_CHECKS)
            for session in self._state.end_leases():
                self._log.warning("lease ended", peer=session.label)

    def stop(self, grace: float | None = None) -> None:
        """Refuses new calls, lets running ones end, and stops; again does nothing.

        Args:
            grace: Seconds for running calls; `drain_seconds` of the settings if not
                given.
        """
        with self._stopping:
            if self._stopped.is_set():
                return
            self._health.announce_drain()
            seconds = self.settings.drain_seconds if grace is None else grace
            self._loop.run(self._drain(seconds))
            self._loop.release()
            self._health.stop()
            self._stopped.set()
            self._log.info("stopped")

    async def _drain(self, seconds: float) -> None:
        self._state.waits.close(
            UnavailableError(f"{self.settings.label} is shutting down; repeat the call")
        )
        await self._server.stop(seconds)
        self._leases.cancel()
        await asyncio.wait([self._leases, self._warm_up])
        await self._saves.close()
        self._state.compute.close()

    def join(self) -> None:
        """Waits until the server has stopped."""
        self._stopped.wait()

    def __enter__(self) -> ParameterServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _load() -> None:
    torch.optim.SGD([torch.empty(0)])
