"""A Jupyter kernel in which tests run cells."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

_SECONDS = 100.0


@dataclass
class Ran:
    """What came of a cell.

    Attributes:
        output: What it has printed, to either stream.
        error: The name of the exception that ended it; empty if none did.
        message: What that exception says.
        traceback: What the notebook shows of it.
    """

    output: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""


class Kernel:
    """A kernel that runs one cell after the other.

    Args:
        manager: Its process.
        client: Connected to it.
    """

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager, self._client = manager, client

    def run(self, cell: str) -> str:
        """Run a cell that has to succeed; return what it printed."""
        ran = self.ran(self.begin(cell))
        assert not ran.error, f"{ran.traceback}\n{ran.output}"
        return ran.output

    def begin(self, cell: str) -> str:
        """Begin to run a cell; return what `ran` and `printed` take."""
        begun: str = self._client.execute(cell)
        return begun

    def printed(self, cell: str, text: str) -> None:
        """Wait until the cell prints a text."""
        for kind, content in self._messages(cell):
            if kind == "stream" and text in content["text"]:
                return
        raise AssertionError(f"the cell ended without printing {text!r}")

    def ran(self, cell: str) -> Ran:
        """Wait until a cell has ended."""
        ran = Ran()
        for kind, content in self._messages(cell):
            if kind == "stream":
                ran.output += content["text"]
            elif kind == "error":
                ran.error, ran.message = content["ename"], content["evalue"]
                ran.traceback = "\n".join(content["traceback"])
        return ran

    def interrupt(self) -> None:
        """Do what a click on the square button does."""
        self._manager.interrupt_kernel()

    def _messages(self, cell: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What the kernel says of a cell until it has ended."""
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=deadline - time.monotonic())
            except Empty:
                raise AssertionError(f"a cell has not ended after {_SECONDS:.0f} s") from None
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            yield kind, content


@contextmanager
def running(folder: str | os.PathLike[str]) -> Iterator[Kernel]:
    """Run a kernel whose working directory is a folder."""
    manager = KernelManager()
    manager.start_kernel(cwd=os.fspath(folder))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=_SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
