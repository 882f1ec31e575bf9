"""Who reads the page over HTTP, without a browser."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

from stratagem_deploy.dashboard.pages import PageServer
from stratagem_deploy.dashboard.watcher import Watched, Watcher
from stratagem_deploy.watching.asking import ServerPlace, ask
from tests.conftest import TOKEN
from tests.waiting import eventually

SECONDS = 30.0


class Place(Protocol):
    """Where a page is, and what signs in to it."""

    @property
    def url(self) -> str: ...

    @property
    def address(self) -> str: ...


class Reader:
    """Reads a page, with the cookie that it got.

    Args:
        page: The page.
    """

    def __init__(self, page: Place) -> None:
        self.url, self.address = urlsplit(page.url), page.address
        self.cookie = ""

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Asks for a path; returns the status, the headers and the body of the answer."""
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        shown = {"Cookie": self.cookie} if self.cookie else {}
        try:
            connection.request(method, path, headers=shown | dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def sign_in(self) -> str:
        """Opens the address that was printed; returns the header with the cookie."""
        status, headers, _ = self.get(f"{self.url.path}?{self.url.query}")
        assert status == 200
        header = str(headers["Set-Cookie"])
        self.cookie = header.partition(";")[0]
        return header

    def facts(self, path: str = "/look?after=0") -> dict[str, Any]:
        """Reads JSON."""
        status, _, body = self.get(path)
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def look(self) -> dict[str, Any]:
        """Waits until there is something to show, and returns it."""
        eventually(lambda: self.facts()["number"] > 0)
        return self.facts()


@contextmanager
def served(*addresses: str, timeout: float = 5.0) -> Iterator[tuple[Reader, PageServer]]:
    """Serves a page of these servers, which looks often."""
    places = [ServerPlace(address) for address in addresses]

    def look(with_variables: bool = False) -> Any:
        return ask(places, TOKEN, timeout, with_variables)

    watcher = Watcher(Watched(look, lambda: look(True), "the cluster of a test", 0.1, 0.0))
    page = PageServer(watcher, "127.0.0.1:0")
    watcher.start()
    try:
        yield Reader(page), page
    finally:
        page.stop()
        watcher.stop()
