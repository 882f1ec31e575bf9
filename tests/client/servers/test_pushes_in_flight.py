"""Pushes that nobody waits for, begun by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratagem._parameter_server.hosting.pusher import PushInFlight
from stratagem._ps_client.checkpoint_steps import CheckpointSteps

_GRACE_SECONDS = 0.2
"""In which a push would be begun that did not wait for the one before."""


def test_of_pushes_that_are_begun_at_once_each_is_settled() -> None:
    flight: PushInFlight[str] = PushInFlight(CheckpointSteps())
    arrived: list[str] = []

    def begin_the_other() -> None:
        flight.begin(lambda: lambda: "other", arrived.append)

    other = threading.Thread(target=begin_the_other)

    def send() -> Callable[[], str]:
        other.start()
        other.join(_GRACE_SECONDS)
        return lambda: "first"

    flight.begin(send, arrived.append)
    other.join()
    flight.finish()
    assert arrived == ["first", "other"]
