"""The folder with a process's certificates, which may be written anew at any time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import grpc

from stratagem_proto.certificates.contents import (
    AUTHORITY,
    CERTIFICATE,
    DENIED,
    KEY,
    Certificates,
    legibly_denied,
    read_certificates,
)
from stratagem_proto.errors import InvalidArgumentError

_Signature: TypeAlias = tuple[tuple[int, int, int], ...]


class CertificateFolder:
    """A folder with `tls.crt`, `tls.key` and `ca.crt`. Thread-safe.

    What is written there counts for the next handshake; connections that exist go on.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, warn: Callable[[str], object]) -> None:
        """Read it.

        Args:
            path: Where it is.
            warn: Is told, once, why what was written later cannot be used, and when it can be. What
                was there before stays in use until then, with the new denials beside the former
                ones: the files may be written one after the other.

        Raises:
            InvalidArgumentError: As for `read_certificates`.
        """
        self.path, self._warn = path, warn
        self._files = [str(path / name) for name in (CERTIFICATE, KEY, AUTHORITY, DENIED)]
        self._reading = threading.Lock()
        self._written = self._refused = self._signature()
        self._current = read_certificates(path)

    def current(self) -> Certificates:
        """Return what is in the folder now."""
        with self._reading:
            written = self._signature()
            if written != self._written or self._refused != self._written:
                self._renew(written)
            return self._current

    def _renew(self, written: _Signature) -> None:
        try:
            self._current = read_certificates(self.path)
        except InvalidArgumentError as error:
            # They are tried again: what was refused may be valid in a moment, by a clock or a mode.
            if written != self._refused:
                self._warn(
                    "of what was written among the certificates only new denials count, until this "
                    f"is mended: {error.message}"
                )
                self._deny(legibly_denied(self.path))
            self._refused = written
        else:
            if self._refused != self._written:
                self._warn(f"all that was written among the certificates in {self.path} counts now")
            self._written = self._refused = written

    def _deny(self, serials: frozenset[int]) -> None:
        if not serials <= self._current.denied:
            self._current = replace(self._current, denied=self._current.denied | serials)

    def _signature(self) -> _Signature:
        return tuple(map(_signature, self._files))

    def of_clients(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel that is opened now."""
        now = self.current()
        return grpc.ssl_channel_credentials(now.authorities, now.key, now.chain)

    def of_servers(self) -> grpc.ServerCredentials:
        """Return the credentials of a port, which are looked up for each handshake."""
        shown = self.current()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            now = self.current()
            if now is shown:
                return None
            shown = now
            return _configuration(now)

        # The stubs do not know that None keeps what is there.
        return grpc.dynamic_ssl_server_credentials(
            _configuration(shown),
            renewed,  # type: ignore[arg-type]
            require_client_authentication=True,
        )


def _signature(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _configuration(of: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(of.key, of.chain)], of.authorities)
