"""The page for people that a server has beside its figures, made by whoever starts the server.

What servers share does not know how a page is made: the command that starts them offers a maker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from stratagem_proto.v1.status_pb2 import GetStatusResponse


@dataclass(frozen=True)
class ShownServer:
    """What a page is told of its server, which serves by then.

    Attributes:
        task: For instance "ps:0".
        address: The "host:port" of the data plane.
        page_address: The "host:port" where the page is.
        is_encrypted: Whether browsers reach the page encrypted.
        token: The secret of the cluster, or "".
        ask: Returns the status of the server, with its variables if the argument says so; called in
            threads of the page. It raises `TimeoutError` of `concurrent.futures` while the server
            is stuck.
    """

    task: str
    address: str
    page_address: str
    is_encrypted: bool
    token: str = field(repr=False)
    ask: Callable[[bool], GetStatusResponse] = field(repr=False)


class Page(Protocol):
    """A WSGI application with a life of its own.

    Attributes:
        url: What signs a browser in.
    """

    url: str

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        """Answer a request."""

    def stop(self) -> None:
        """Look at the server no more."""


PageMaker: TypeAlias = Callable[[ShownServer], Page]
"""Makes the page of a server, which answers at once."""


class _Offered:
    """What is offered for the time of a block."""

    maker: PageMaker | None = None


@contextmanager
def offering(maker: PageMaker) -> Iterator[None]:
    """Give a page to each server that is started within the block and serves figures."""
    before, _Offered.maker = _Offered.maker, maker
    try:
        yield
    finally:
        _Offered.maker = before


def offered() -> PageMaker | None:
    """Return what makes the pages of servers; None if they have none."""
    return _Offered.maker
