"""A small API server of Kubernetes: it knows pods and lists them over HTTP."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_ALL = ["", "api", "v1", "pods"]


class ApiServer(ThreadingHTTPServer):
    """Answers `GET /api/v1/[namespaces/<namespace>/]pods?labelSelector=<selector>`.

    Attributes:
        pods: What it knows, as JSON objects of the API.
        token: What callers must show; "" for nothing.
    """

    daemon_threads = True

    def __init__(self, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods: list[dict[str, Any]] = []
        self.token = token

    def add(self, name: str, **traits: Any) -> None:
        """Let there be a pod, running with host 10.0.0.n and address 10.1.0.n.

        Args:
            name: Its name.
            **traits: `namespace`, `phase`, `subdomain` and `annotations`; all others
                are its labels, with "_" for "-".
        """
        number = len(self.pods) + 1
        namespace = traits.pop("namespace", "default")
        status = {
            "phase": traits.pop("phase", "Running"),
            "hostIP": f"10.0.0.{number}",
            "podIP": f"10.1.0.{number}",
        }
        spec = {"containers": [], "subdomain": traits.pop("subdomain", None)}
        annotations = traits.pop("annotations", None)
        labels = traits.pop("labels", {})
        labels |= {label.replace("_", "-"): value for label, value in traits.items()}
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        metadata["annotations"] = annotations
        spec["hostname"] = name if spec["subdomain"] else None
        self.pods.append({"metadata": metadata, "spec": spec, "status": status})

    def listed(self, namespace: str | None, selector: str) -> list[dict[str, Any]]:
        """Return the pods of a namespace, or of all, with one label."""
        label, _, value = selector.partition("=")
        return [
            pod
            for pod in self.pods
            if namespace in (None, pod["metadata"]["namespace"])
            and pod["metadata"]["labels"].get(label) == value
        ]


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = url.path.split("/")
        namespace = parts.pop(4) if parts[3] == "namespaces" else None
        parts = [part for part in parts if part != "namespaces"]
        allowed = self.headers["Authorization"] == self.server.token or None
        if self.server.token and not allowed:
            self._answer(403, {"kind": "Status", "reason": "Forbidden"})
        elif parts != _ALL:
            self._answer(404, {"kind": "Status", "reason": "NotFound"})
        else:
            (selector,) = parse_qs(url.query)["labelSelector"]
            items = self.server.listed(namespace, selector)
            self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": items})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def serving(token: str = "", security: ssl.SSLContext | None = None) -> Iterator[ApiServer]:
    """Serve while the block runs, by TLS if `security` is given."""
    with ApiServer(token) as server:
        if security is not None:
            server.socket = security.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
