"""The calls that servers get."""

from __future__ import annotations

from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, status_of


def calls(server: str, *methods: str) -> list[int]:
    """How often methods of a server were called."""
    with RawClient(server, TOKEN) as client:
        status = status_of(client)
    ended = {one.method: sum(one.ended.values()) for one in status.methods}
    return [ended.get(method, 0) for method in methods]
