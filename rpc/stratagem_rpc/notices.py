"""Notices that a process is to end soon: where they stand, and who looks for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_rpc.kubernetes_api import api_client

_POD_SECONDS = 1.0
_NOT_FOUND = 404


class PodDeletion:
    """The time of deletion in the description of a pod, which is there while the pod still runs.

    In a pod the configuration is that of its service account, which has to be allowed to `get` the
    pod; outside it is the file that `kubectl` uses.

    Args:
        address: "NAMESPACE/POD".

    Raises:
        InvalidArgumentError: That is no such address, or the package `kubernetes` is missing.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """

    def __init__(self, address: str) -> None:
        self._namespace, _, self._pod = address.partition("/")
        if not self._namespace or not self._pod:
            raise InvalidArgumentError(
                f"kubernetes:{address} names no pod; give kubernetes:NAMESPACE/POD"
            )
        self.name = f"the deletion of the pod {address}"
        connected = api_client("a notice of Kubernetes")
        from kubernetes.client import CoreV1Api

        self._api: Any = CoreV1Api(connected)

    def is_given(self) -> bool:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            found = self._api.read_namespaced_pod(
                self._pod, self._namespace, _request_timeout=_POD_SECONDS
            )
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return True
            raise self._unknown(error.reason) from error
        except HTTPError as error:
            raise self._unknown(error) from error
        return found.metadata.deletion_timestamp is not None

    def _unknown(self, why: object) -> UnavailableError:
        return UnavailableError(
            f"the API server does not say whether the pod {self._namespace}/{self._pod} is to be "
            f"deleted: {why}. Let its service account get pods of that namespace"
        )


ENVIRONMENT = "STRATAGEM_NOTICE"
"""The environment variable that says where a notice is looked for, as `notice_at` takes it."""


class Notice(Protocol):
    """Something that says that this process is to end.

    Attributes:
        name: What people call it.
    """

    name: str

    def is_given(self) -> bool:
        """Look once whether it says so; it may take a second.

        Raises:
            UnavailableError: That cannot be found out now.
        """


class NoticeFile:
    """A file: once it is there, the process is to end.

    Any program can write it that knows of the end, for instance one that asks the machine's
    provider.

    Args:
        path: Where it will be.
    """

    def __init__(self, path: str) -> None:
        if not path:
            raise InvalidArgumentError("a notice in a file needs its path, as in file:/run/notice")
        self._path = Path(path)
        self.name = f"the file {path!r}"

    def is_given(self) -> bool:
        return self._path.exists()


_KINDS: Mapping[str, Callable[[str], Notice]] = {"file": NoticeFile, "kubernetes": PodDeletion}


def notice_at(address: str) -> Notice:
    """Return the notice of an address: "file:PATH", or "kubernetes:NAMESPACE/POD".

    Raises:
        InvalidArgumentError: There is no such kind of notice, or it needs something else.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """
    kind, _, rest = address.partition(":")
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f"a notice is file:PATH or kubernetes:NAMESPACE/POD, not {address!r}"
        )
    return _KINDS[kind](rest)


_LOG = logging.getLogger("stratagem")

_LOOK_SECONDS = 0.5


Warn = Callable[[str], object]
"""Logs a warning."""


@contextmanager
def watched(
    notice: Notice | None, tell: Callable[[], object], warn: Warn = _LOG.warning
) -> Iterator[None]:
    """Return a context in which a function is called, once, when a notice is given.

    Args:
        notice: The notice; None for none.
        tell: Called in another thread.
        warn: Called in that thread, too, with what people should know.
    """
    if notice is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_look, args=(notice, tell, warn, over), name="stratagem-notice", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()


def _look(notice: Notice, tell: Callable[[], object], warn: Warn, over: threading.Event) -> None:
    is_told = False
    while not over.wait(_LOOK_SECONDS):
        try:
            if notice.is_given():
                warn(f"{notice.name} says that this process is to end")
                tell()
                return
            is_told = False
        except UnavailableError as error:
            if not is_told:
                warn(str(error))
            is_told = True
