"""Clients of the members of an etcd, over HTTP."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from stratagem_proto.errors import InvalidArgumentError

# As etcd3gw gives it; so that it is loaded only where it is used.
Client: TypeAlias = Any

# That of etcd 3.4 and later; else the client would ask for it first.
_API_PATH = "/v3/"

_AUTHORITY, _CERTIFICATE, _KEY = "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"


class EtcdClients:
    """Makes clients, which share their connections and can be used in several threads.

    With the variables of etcdctl they use TLS: ETCDCTL_CACERT, and ETCDCTL_CERT with ETCDCTL_KEY
    for members that want to know who asks. Passwords are not supported.

    Attributes:
        failures: The errors of their methods, whose text `reason_of` returns.

    Raises:
        InvalidArgumentError: The package `etcd3gw` is missing, or a variable names no file.
    """

    def __init__(self) -> None:
        try:
            from etcd3gw.client import Etcd3Client
            from etcd3gw.exceptions import Etcd3Exception
            from requests import RequestException, Session
        except ImportError as error:
            raise InvalidArgumentError(
                "--arbiter etcd: needs the package etcd3gw; run `pip install 'stratagem[etcd]'`, "
                "or use another arbiter"
            ) from error
        self.failures: tuple[type[Exception], ...] = (Etcd3Exception, RequestException)
        self._make, self._session = Etcd3Client, Session()
        # Members are asked themselves, without the proxies and authorities that others use here.
        self._session.trust_env = False
        self._protocol = "http"
        self._secure()

    def _secure(self) -> None:
        authority, certificate, key = (_file(name) for name in (_AUTHORITY, _CERTIFICATE, _KEY))
        if bool(certificate) != bool(key):
            raise InvalidArgumentError(
                f"one of {_CERTIFICATE} and {_KEY} is set; etcd is shown both or none, so set the "
                "other"
            )
        if authority:
            self._protocol, self._session.verify = "https", authority
        if certificate:
            self._session.cert = certificate, key

    def client(self, host: str, port: int, seconds: float) -> Client:
        """Return a client of one member, which waits so long for each answer."""
        return self._make(
            host,
            port,
            protocol=self._protocol,
            timeout=seconds,
            api_path=_API_PATH,
            session=self._session,
        )

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def reason_of(error: Exception) -> str:
    """Return the text of an error, which the library keeps beside it."""
    return getattr(error, "detail_text", "") or str(error) or type(error).__name__


def _file(variable: str) -> str:
    path = os.environ.get(variable, "")
    if path and not os.access(path, os.R_OK):
        raise InvalidArgumentError(
            f"{variable} names {path!r}, which is no file that this user can read; --arbiter etcd: "
            "needs it to reach etcd by TLS"
        )
    return path
