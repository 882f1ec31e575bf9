"""A small API server of Kubernetes that keeps Leases, with conflicts as the real one has."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from tests.deploy.manifests.kubernetes import OLDEST

Lease: TypeAlias = dict[str, Any]

_PREFIX = ["", "apis", "coordination.k8s.io", "v1", "namespaces"]


class LeaseServer(ThreadingHTTPServer):
    """Answers `GET`, `POST` and `PUT` of Leases in one namespace.

    Attributes:
        namespace: The namespace.
        leases: The Leases by name.
        methods: Those of all requests so far.
        refusal: The status of each answer; 0 to do what is asked.
        answering: Requests wait until this is set.
        is_cutting: Whether it ends the connection when it has changed a Lease, without an answer.
        token: What callers must show; "" for nothing.
        rivals: So many of the next changes come after one by somebody else.
    """

    daemon_threads = True

    def __init__(
        self,
        token: str = "",
        namespace: str = "training",
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        super().__init__(address, _Handler)
        self.token, self.namespace = token, namespace
        self.leases: dict[str, Lease] = {}
        self.methods: list[str] = []
        self.refusal, self.rivals = 0, 0
        self.is_cutting = False
        self.answering = threading.Event()
        self.answering.set()
        self._lock = threading.Lock()
        self._version = 0

    def get(self, name: str) -> tuple[int, Lease | str]:
        with self._lock:
            found = self.leases.get(name)
        return (200, found) if found is not None else (404, "NotFound")

    def create(self, lease: Lease) -> tuple[int, Lease | str]:
        with self._lock:
            name = lease["metadata"]["name"]
            if name in self.leases:
                return 409, "AlreadyExists"
            return 201, self._keep(name, lease)

    def replace(self, name: str, lease: Lease) -> tuple[int, Lease | str]:
        with self._lock:
            if name not in self.leases:
                return 404, "NotFound"
            if self.rivals:
                self.rivals -= 1
                self._keep(name, self.leases[name])
            present = self.leases[name]["metadata"]["resourceVersion"]
            # A Lease without a version would replace any.
            if lease["metadata"].get("resourceVersion", present) != present:
                return 409, "Conflict"
            return 200, self._keep(name, lease)

    def _keep(self, name: str, lease: Lease) -> Lease:
        # Loaded late, since all that load tests would wait for it.
        import kubernetes_validate

        kubernetes_validate.validate(lease, OLDEST, strict=True)
        assert lease["spec"].get("holderIdentity") != "", "an API server refuses that"
        self._version += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self._version)}
        self.leases[name] = {**lease, "metadata": metadata}
        return self.leases[name]


class _Handler(BaseHTTPRequestHandler):
    server: LeaseServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._do(lambda names: self.server.get(names[0]))

    def do_POST(self) -> None:
        lease = self._content()
        self._do(lambda names: self.server.create(lease))

    def do_PUT(self) -> None:
        lease = self._content()
        self._do(lambda names: self.server.replace(names[0], lease))

    def _content(self) -> Lease:
        lease: Lease = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return lease

    def _do(self, action: Callable[[list[str]], tuple[int, Lease | str]]) -> None:
        self.server.methods.append(self.command)
        self.server.answering.wait()
        namespace, kind, *names = self.path.split("/")[len(_PREFIX) :]
        assert (self.path.split("/")[: len(_PREFIX)], kind) == (_PREFIX, "leases")
        if self.server.refusal:
            self._answer(self.server.refusal, "Refused")
        elif self.server.token not in ("", self.headers["Authorization"]):
            self._answer(401, "Unauthorized")
        elif namespace != self.server.namespace:
            self._answer(404, "NotFound")
        else:
            self._answer(*action(names))

    def _answer(self, code: int, content: Lease | str) -> None:
        if self.server.is_cutting and self.command != "GET":
            self.close_connection = True
            return
        if isinstance(content, str):
            content = {"kind": "Status", "reason": content, "code": code}
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def serving(token: str = "", security: ssl.SSLContext | None = None) -> Iterator[LeaseServer]:
    """Serves while the block runs, by TLS if `security` is given."""
    with LeaseServer(token) as server:
        if security is not None:
            server.socket = security.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.answering.set()
            server.shutdown()
            thread.join()


def kubeconfig(server: LeaseServer) -> str:
    """The file by which `kubectl` would find the server."""
    return kubeconfig_for(f"http://127.0.0.1:{server.server_port}")


def kubeconfig_for(url: str) -> str:
    """The file by which `kubectl` would find an API server that asks for nothing."""
    settings = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    return json.dumps(settings)
