"""The registers in which arbiters keep views: files, Leases of Kubernetes, keys of etcd."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from stratagem_proto.errors import DataLossError, InvalidArgumentError, UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.persistence.folder import VOLATILE, file_system_of
from stratagem_psserver.replication.arbiter import (
    Arbiter,
    Deadline,
    Register,
    ThreadedArbiter,
    text_of,
    view_of,
)
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.kubernetes_api import api_client
from stratagem_rpc.serving.settings import check_address
from stratagem_storage.stores.local import sync_folder

# Here a lock may exclude the processes of one host only, or it is a matter of mount options.
_SHARED = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf", "wekafs"),
}
_FUSE = "fuse"
# A disk of this host, in a format that the kernel does not know.
_LOCAL_FUSE = "fuseblk"

_POLL_SECONDS = 0.002


class FileRegister:
    """A file with the view of one task, beside those of the other tasks of its cluster.

    ```
    arbiter/
    ├── ps-0.json       the view
    └── ps-0.lock       which process replaces it; kept, so that all lock the same file
    ```

    A file is replaced as a whole, by one process at a time, and is on disk before anybody acts on
    it: a power failure does not bring back a view that a replica has seen replaced.

    A folder in memory is gone when the machine restarts. If replicas keep nothing on disk, then
    their state is gone as well, and it is right that there is no view. If they keep a log it is
    not: without the view nobody knows which replica had acknowledged the last changes, and an old
    one could begin to serve. So such a folder is refused to replicas that keep something on disk.

    Args:
        address: The folder. It is made if it is missing, but not the folder that it is in.
        settings: Those of a replica of the task.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        if not address:
            raise InvalidArgumentError(
                "--arbiter file: has no folder; give one on a disk of this host, as in "
                "--arbiter file:/var/lib/stratagem/arbiter"
            )
        self._folder = Path(address).absolute()
        name = f"{quote(settings.job, safe='')}-{settings.task}"
        self._path = self._folder / f"{name}.json"
        self._lock = self._folder / f"{name}.lock"
        self.name = f"the arbiter of {settings.label} in {str(self._folder)!r}"
        try:
            self._folder.mkdir(exist_ok=True)
            sync_folder(self._folder.parent)
        except OSError as error:
            raise InvalidArgumentError(
                f"{self.name} cannot be used: {error.strerror}; make the folder that it is in, and "
                "let this user write there"
            ) from error
        _require_suitable(self._folder, is_durable=settings.durability != "none")

    def read(self, deadline: Deadline) -> View | None:
        view = self._read()
        with self._disk():
            # The process that has written it may have ended before it was on disk.
            sync_folder(self._folder)
        return view

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        with self._locked(deadline):
            if self._read() != present:
                return False
            self._write(following)
            return True

    def close(self) -> None:
        """Do nothing: each call closes what it has opened."""

    def _read(self) -> View | None:
        with self._disk():
            try:
                text = self._path.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None
        return view_of(text, repr(str(self._path)))

    def _write(self, view: View) -> None:
        fresh = self._path.with_suffix(".new")
        with self._disk():
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text_of(view) + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            sync_folder(self._folder)

    @contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        with self._disk():
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # A thread that waits for the lock itself could not be made to stop.
            while not _acquired(lock):
                if deadline.is_over:
                    holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
                    raise UnavailableError(
                        f"{self.name} is locked by {holder or 'another process'}, which is "
                        "suspended or has a slow disk; end that process, or let it go on"
                    )
                time.sleep(_POLL_SECONDS)
            with self._disk():
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} of {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"{self.name} cannot be used: {error.strerror}; see that its disk works and has "
                "room, and that this user may write there"
            ) from error


def _acquired(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_suitable(folder: Path, is_durable: bool) -> None:
    kind = file_system_of(folder)
    if kind in _SHARED or (kind.startswith(_FUSE) and kind != _LOCAL_FUSE):
        raise InvalidArgumentError(
            f"--arbiter file:{folder} is on {kind}, which other hosts may use and where a lock "
            "does not always exclude them. If all replicas are on this host, choose a folder on "
            "its own disk; else use --arbiter kubernetes:NAMESPACE/NAME or etcd:HOST:PORT/PREFIX"
        )
    if is_durable and kind in VOLATILE:
        raise InvalidArgumentError(
            f"--arbiter file:{folder} is in memory ({kind}), but the replicas keep their state on "
            "disk: after a restart of the machine nobody would know which of them served last. "
            "Choose a folder on a disk"
        )


# As the client of Kubernetes gives it; its classes have no types.
_LeaseObject: TypeAlias = Any

_ANNOTATION = "stratagem/view"
_LABELS = {"app.kubernetes.io/part-of": "stratagem"}

_NAMES = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 401, 403, 404, 409


class LeaseRegister:
    """A Lease with the view of one task in an annotation.

    `kubectl get lease` shows the address of the primary as the holder, and the Lease counts epochs
    as transitions. It has no time after which it expires: replicas watch each other. The API server
    refuses a Lease that another replica has replaced meanwhile, by its `resourceVersion`.

    The configuration is that of the pod's service account; outside of a pod it is the file that
    `kubectl` uses.

    Args:
        address: "NAMESPACE/NAME"; the Lease of task 0 of job "ps" is then NAME-ps-0.
        settings: Those of a replica of the task.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        namespace, _, name = address.partition("/")
        lease = f"{name}-{settings.job}-{settings.task}"
        if not (name and _NAMES.fullmatch(namespace) and _NAMES.fullmatch(lease)) or (
            len(lease) > _LONGEST_NAME
        ):
            raise InvalidArgumentError(
                f"--arbiter kubernetes:{address} names no Lease of {settings.label}; give "
                "kubernetes:NAMESPACE/NAME, with a job and names of small letters, digits and -"
            )
        self._namespace, self._lease = namespace, lease
        self.name = f"the Lease {lease!r} in namespace {namespace!r} of Kubernetes"
        connected = api_client("--arbiter kubernetes:")
        # Loaded only where they are used.
        from urllib3.exceptions import HTTPError

        from kubernetes import client

        self._client, self._failures = client, (client.ApiException, HTTPError)
        self._api = client.CoordinationV1Api(connected)

    def read(self, deadline: Deadline) -> View | None:
        lease = self._read(deadline)
        return self._view(lease) if lease is not None else None

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        lease = self._read(deadline)
        if lease is not None:
            if self._view(lease) != present:
                return False
            self._describe(lease, following)
            names = (self._lease, self._namespace)
            return self._write(self._api.replace_namespaced_lease, *names, lease, deadline=deadline)
        if present is not None:
            return False
        metadata = self._client.V1ObjectMeta(name=self._lease, labels=_LABELS)
        lease = self._client.V1Lease(
            api_version="coordination.k8s.io/v1", kind="Lease", metadata=metadata
        )
        self._describe(lease, following)
        return self._write(
            self._api.create_namespaced_lease, self._namespace, lease, deadline=deadline
        )

    def close(self) -> None:
        self._api.api_client.close()

    def _read(self, deadline: Deadline) -> _LeaseObject | None:
        try:
            return self._api.read_namespaced_lease(
                self._lease, self._namespace, _request_timeout=deadline.left
            )
        except self._failures as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise self._unavailable(error) from error

    def _view(self, lease: _LeaseObject) -> View:
        text = (lease.metadata.annotations or {}).get(_ANNOTATION)
        if text is None:
            raise DataLossError(
                f"{self.name} has no annotation {_ANNOTATION!r}: it is not a parameter server's. "
                "Give another NAME by --arbiter kubernetes:NAMESPACE/NAME"
            )
        return view_of(text, f"the annotation {_ANNOTATION!r} of {self.name}")

    def _describe(self, lease: _LeaseObject, view: View) -> None:
        annotations = lease.metadata.annotations or {}
        lease.metadata.annotations = {**annotations, _ANNOTATION: text_of(view)}
        lease.spec = self._client.V1LeaseSpec(
            # An API server refuses an empty holder.
            holder_identity=view.primary.address or None,
            lease_transitions=view.epoch,
        )

    def _write(self, call: Any, *arguments: Any, deadline: Deadline) -> bool:
        try:
            call(*arguments, _request_timeout=deadline.left)
        except self._failures as error:
            # A Lease that is to be replaced may have been removed; a namespace is never made.
            is_gone = _status(error) == _NOT_FOUND and call != self._api.create_namespaced_lease
            if _status(error) == _CONFLICT or is_gone:
                return False
            raise self._unavailable(error) from error
        return True

    def _unavailable(self, error: Exception) -> UnavailableError:
        status = _status(error)
        reason = f"{status} {getattr(error, 'reason', '')}" if status else str(error)
        advice = {
            _UNAUTHORIZED: "See that the service account exists and that its token is mounted",
            _FORBIDDEN: "The service account needs the verbs get, create and update for leases of "
            "coordination.k8s.io there",
            _NOT_FOUND: "See that the namespace exists",
        }
        return UnavailableError(
            f"{self.name} cannot be used: {reason}. "
            + advice.get(status, "See that the API server runs and that this host reaches it")
        )


def _status(error: Exception) -> int:
    return int(getattr(error, "status", 0) or 0)


# As etcd3gw gives it; so that it is loaded only where it is used.
Client: TypeAlias = Any

# That of etcd 3.4 and later; else the client would ask for it first.
_API_PATH = "/v3/"

_AUTHORITY, _CERTIFICATE, _KEY = "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"


class _EtcdClients:
    """Makes clients, which share their connections and can be used in several threads.

    With the variables of etcdctl they use TLS: ETCDCTL_CACERT, and ETCDCTL_CERT with ETCDCTL_KEY
    for members that want to know who asks. Passwords are not supported.

    Attributes:
        failures: The errors of their methods, whose text `_reason_of` returns.
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
        authority, certificate, key = map(_file_named_by, (_AUTHORITY, _CERTIFICATE, _KEY))
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
        self._session.close()


def _reason_of(error: Exception) -> str:
    # The library keeps the text beside the error.
    return getattr(error, "detail_text", "") or str(error) or type(error).__name__


def _file_named_by(variable: str) -> str:
    path = os.environ.get(variable, "")
    if path and not os.access(path, os.R_OK):
        raise InvalidArgumentError(
            f"{variable} names {path!r}, which is no file that this user can read; --arbiter etcd: "
            "needs it to reach etcd by TLS"
        )
    return path


@dataclass(frozen=True)
class _Found:
    """What a member of etcd has.

    Attributes:
        client: Asks this member.
        view: The view; None if there is no key.
        revision: The revision of the last change of the key; 0 if there is no key.
    """

    client: Client
    view: View | None
    revision: int


class EtcdRegister:
    """A key of etcd with the view of one task.

    Members are tried in turn, beginning with the one that has answered last, until one answers what
    the key has. Only that one is sent the change, once.

    Args:
        address: "HOST:PORT[,HOST:PORT…]/PREFIX"; the key of task 0 of job "ps" is PREFIX/ps-0.
        settings: Those of a replica of the task.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        members, _, prefix = address.partition("/")
        self._members = [_member(one, address) for one in members.split(",")]
        if not prefix.strip("/"):
            raise InvalidArgumentError(
                f"--arbiter etcd:{address} has no prefix, which keeps the keys of clusters apart; "
                "give etcd:HOST:PORT/PREFIX"
            )
        self._key = f"{prefix.strip('/')}/{settings.job}-{settings.task}"
        self.name = f"the key {self._key!r} of etcd at {members}"
        self._clients = _EtcdClients()

    def read(self, deadline: Deadline) -> View | None:
        return self._found(deadline).view

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        found = self._found(deadline)
        if found.view != present:
            return False
        key = _base64(self._key)
        condition = {
            "key": key,
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": found.revision,
        }
        change = {"request_put": {"key": key, "value": _base64(text_of(following))}}
        found.client.timeout = deadline.left
        try:
            answer = found.client.transaction(
                {"compare": [condition], "success": [change], "failure": []}
            )
        except self._clients.failures as error:
            raise self._unavailable([_reason_of(error)]) from error
        return bool(answer.get("succeeded"))

    def close(self) -> None:
        self._clients.close()

    def _found(self, deadline: Deadline) -> _Found:
        reasons = []
        members = list(self._members)
        for tried, (host, port) in enumerate(members):
            # A share of the time for each member that is left, and one for the change.
            seconds = deadline.left / (len(members) - tried + 1)
            client = self._clients.client(host, port, seconds)
            try:
                entries = client.get(self._key.encode(), metadata=True)
            except self._clients.failures as error:
                reasons.append(f"{host}:{port}: {_reason_of(error)}")
                continue
            self._members = members[tried:] + members[:tried]
            if not entries:
                return _Found(client, None, 0)
            ((value, facts),) = entries
            view = view_of(value.decode(errors="replace"), self.name)
            return _Found(client, view, int(facts["mod_revision"]))
        raise self._unavailable(reasons)

    def _unavailable(self, reasons: Sequence[str]) -> UnavailableError:
        return UnavailableError(
            f"{self.name} cannot be used: {'; '.join(reasons)}. See that most members of etcd run, "
            "and that this host reaches one of them"
        )


def _member(text: str, address: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        check_address(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"--arbiter etcd:{address} names {text!r} as a member of etcd; give "
            "etcd:HOST:PORT[,HOST:PORT...]/PREFIX"
        ) from error
    return host.strip("[]"), int(port)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_REGISTERS: Mapping[str, Callable[[str, ServerSettings], Register]] = {
    "file": FileRegister,
    "kubernetes": LeaseRegister,
    "etcd": EtcdRegister,
}


def arbiter_of(settings: ServerSettings, seconds: float = 1.0) -> Arbiter:
    """Return the arbiter of a task that `settings.arbiter` names.

    It blocks for a moment: for the start of a server.

    Args:
        settings: Those of a replica of the task.
        seconds: How long a call takes at most.

    Raises:
        InvalidArgumentError: It names none, or one that this host cannot use.
        FailedPreconditionError: Kubernetes is not configured here.
    """
    scheme, _, address = settings.arbiter.partition(":")
    if scheme not in _REGISTERS:
        raise InvalidArgumentError(
            f"--arbiter {settings.arbiter!r} is none; give file:PATH if all replicas are on this "
            "host, else kubernetes:NAMESPACE/NAME or etcd:HOST:PORT[,HOST:PORT...]/PREFIX"
        )
    return ThreadedArbiter(_REGISTERS[scheme](address, settings), seconds)
