"""Where the hosts of a strategy find each other: a store that the first one serves."""

from __future__ import annotations

from torch._C._distributed_c10d import TCPStore

_open: dict[int, TCPStore] = {}


def open_meeting_point() -> int:
    """Serve a store on a free port of this host, and return the port.

    It is served until `take_meeting_point` and the end of what that returned.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    _open[store.port] = store
    return store.port


def take_meeting_point(address: str) -> TCPStore | None:
    """Return the store of this process that is served at an address, if there is one.

    Args:
        address: As "host:port".
    """
    port = address.rpartition(":")[2]
    return _open.pop(int(port), None) if port else None
