"""Where a function on a worker raised."""

from __future__ import annotations


class RemoteTraceback(Exception):
    """Where a function on a worker raised; printed above the error itself."""

    def __init__(self, worker: str, closure: str, traceback: str) -> None:
        super().__init__(f"\n\n{closure} on {worker}:\n\n{traceback}")
