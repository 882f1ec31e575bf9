"""Calls of a server over sockets."""

from __future__ import annotations

import time

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.transports.call import Attempt, Call, Responses, Style
from stratagem._ps_client.transports.exchange import Exchange
from stratagem._ps_client.transports.links import Links
from stratagem._ps_client.transports.pipeline import Pipeline
from stratagem_proto.sockets.client import Endpoint


class SocketTransport:
    """Calls a server over sockets. Thread-safe.

    Each call has a connection for itself, which its thread writes and reads; only those that are
    pipelined share one. Large tensors go through shared memory, if it `shares` and there is any.
    """

    def __init__(self, endpoint: Endpoint, shares: bool = True) -> None:
        self._links = Links(endpoint, shares)
        self._pipeline: Pipeline | None = None
        # Those that are worn, while answers are to come.
        self._leaving: list[Pipeline] = []
        self._closed = False

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that it calls."""
        return self._links.endpoint

    def connect(self) -> None:
        """Open the first connection; raise OSError if nobody, or not the server, answers."""
        self._links.connect()

    def send(self, call: Call) -> Attempt:
        """Begin a call.

        Raises:
            OSError: The transport is closed, or the server does not answer there any more; nothing
                was sent.
            MalformedStreamError: Somebody else answers there; nothing was sent.
        """
        if self._closed:
            raise ConnectionAbortedError("the transport is closed")
        if call.style is Style.PIPELINED:
            return self._pipeline_for(call).send(call)
        exchange = Exchange(self._links, time.monotonic() + call.timeout)
        exchange.begin(call)
        return Attempt(Responses(exchange, exchange.segment), exchange)

    def _pipeline_for(self, call: Call) -> Pipeline:
        pipeline = self._pipeline
        if pipeline is not None and not pipeline.is_broken and pipeline.is_worn:
            self._leave(pipeline)
            pipeline = None
        if pipeline is None or pipeline.is_broken:
            with uninterrupted():
                pipeline = self._pipeline = Pipeline(self.endpoint, call.timeout)
        if self._closed:
            # Another thread has closed all that it knew of meanwhile.
            pipeline.break_off()
        return pipeline

    def _leave(self, pipeline: Pipeline) -> None:
        pipeline.leave()
        self._leaving = [each for each in (*self._leaving, pipeline) if not each.is_broken]

    def trim(self) -> None:
        """Give up memory that was not used lately; called now and then."""
        self._links.trim()

    def distrust(self) -> None:
        """Close all that is idle: where one connection broke, others will have."""
        self._links.distrust()

    def retire(self) -> None:
        """Let the calls under way be the last ones; those that are pipelined fail."""
        self._links.retire()
        for pipeline in (self._pipeline, *self._leaving):
            if pipeline is not None:
                pipeline.break_off()

    def close(self) -> None:
        """End all calls; none can be begun any more."""
        self._closed = True
        self.retire()
        self._links.close()
