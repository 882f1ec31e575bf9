"""Reading all servers as they are at one moment, while others train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stratagem._parameter_server.checkpoints.cut import take_cut
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.requests.checkpoints import close_snapshot, open_snapshot
from stratagem_proto.errors import FailedPreconditionError, StratagemError


@contextmanager
def snapshot_of(store: RemoteStore) -> Iterator[None]:
    """Have all reads of a store be of one moment, until the context ends.

    Raises:
        FailedPreconditionError: They are already, or too many tasks read so.
        DeadlineExceededError: Clients were in the midst of a step all the time.
    """
    servers = store.servers
    if servers.snapshot:
        raise FailedPreconditionError(
            "this strategy reads from a snapshot already; leave it before you take the next one"
        )
    try:
        servers.snapshot = take_cut(servers, open_snapshot, store.peer_seconds).name
        yield
    finally:
        servers.snapshot = b""
        # Servers that cannot be told let go when the session ends.
        with suppress(StratagemError):
            servers.on_all(close_snapshot)
