"""Namespaces of Linux, which are gone when whoever has made them is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import IO

NEEDED = ("unshare", "nsenter", "ip", "ss", "tc", "ebtables", "mount", "chroot")


def missing(needed: Sequence[str] = NEEDED) -> str:
    """Return why there can be no namespaces here, with these commands; "" if there can be."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    absent = [command for command in needed if shutil.which(command) is None]
    if absent:
        return f"these commands are missing: {', '.join(absent)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
    )
    return tried.stderr.strip()


class Namespace:
    """A network, mounts and processes apart from those of the machine.

    They last as long as a process that reads from this one. It ends with it, even by SIGKILL; since
    it is the first process of its namespace, so do all others in it, and with the last one
    everything else that was made there.
    """

    def __init__(self) -> None:
        """Make them, with a loopback interface."""
        kinds = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child")
        self.holder = subprocess.Popen(
            ["unshare", *kinds, "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        self.enter("ip", "link", "set", "lo", "up")

    @property
    def network(self) -> str:
        """By what others know its network."""
        return f"/proc/{self.holder.pid}/ns/net"

    def enter(self, *command: str) -> str:
        """Run a command to its end, and return what it prints."""
        return subprocess.run(
            [*self._door, *command], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def start(self, *command: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            [*self._door, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        """End all that runs in it."""
        self.holder.kill()
        self.holder.communicate()

    @property
    def _door(self) -> list[str]:
        kinds = {"net": "net", "mount": "mnt", "uts": "uts", "pid": "pid_for_children"}
        own = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", *(f"--{kind}={own}/{kinds[kind]}" for kind in kinds)]
