"""An etcd of one member, as a process of its own."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import eventually


@dataclass(frozen=True)
class Certificates:
    """Files in PEM.

    Attributes:
        authority: Has signed the others.
        certificate: Shows that its owner is 127.0.0.1.
        key: Its key.
    """

    authority: Path
    certificate: Path
    key: Path

    def arguments(self) -> list[str]:
        """The options by which etcd uses them, and asks clients for theirs."""
        return [
            "--client-cert-auth",
            f"--trusted-ca-file={self.authority}",
            f"--cert-file={self.certificate}",
            f"--key-file={self.key}",
        ]

    def wrapped(self, connection: socket.socket) -> socket.socket:
        """A connection by TLS."""
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context.wrap_socket(connection, server_hostname="127.0.0.1")


class Etcd:
    """A running member.

    Attributes:
        port: Where it answers clients.
    """

    def __init__(self, popen: subprocess.Popen[bytes], port: int) -> None:
        self._popen, self.port = popen, port

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Lets it do nothing while the block runs."""
        self._popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._popen.send_signal(signal.SIGCONT)


@contextmanager
def running(folder: Path, certificates: Certificates | None = None) -> Iterator[Etcd]:
    """Runs etcd until the end of the block; the test is skipped where there is none.

    Args:
        folder: Where it keeps its state.
        certificates: What it shows to clients by TLS, and clients have to show; None for neither.
    """
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("needs the program etcd: `apt-get install etcd-server`")
    if importlib.util.find_spec("etcd3gw") is None:
        pytest.skip("needs the package etcd3gw: `pip install 'stratagem[etcd]'`")
    port, peers = free_port(), free_port()
    arguments = _arguments(folder, peers, "https" if certificates else "http", port)
    arguments += certificates.arguments() if certificates else []
    with (folder / "etcd.log").open("wb") as log:
        popen = subprocess.Popen([program, *arguments], stdout=log, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: popen.poll() is not None or _answers(port, certificates))
        assert popen.poll() is None, (folder / "etcd.log").read_text()
        yield Etcd(popen, port)
    finally:
        popen.kill()
        popen.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _arguments(folder: Path, peers: int, protocol: str, port: int) -> list[str]:
    client, peer = f"{protocol}://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _answers(port: int, certificates: Certificates | None) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as plain:
            connection = certificates.wrapped(plain) if certificates else plain
            with connection, connection.makefile("rb") as answer:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"health":"true"' in answer.read()
    except OSError:
        return False
