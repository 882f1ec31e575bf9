"""The page that a server has by itself: of the server, and of its cluster while somebody looks."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratagem_deploy.dashboard.access import Access
from stratagem_deploy.dashboard.curves import EVERY_SECONDS
from stratagem_deploy.dashboard.site import Site
from stratagem_deploy.dashboard.watcher import Watched, Watcher
from stratagem_deploy.watching.asking import ServerAnswer, ask
from stratagem_deploy.watching.places import ServerPlace, places_of
from stratagem_proto.configuration.tf_config import read_tf_config
from stratagem_proto.errors import StratagemError
from stratagem_proto.server_log import LOG
from stratagem_proto.serving.pages import ShownServer

_INTERVAL_SECONDS = _PATIENCE_SECONDS = 2.0

# Other servers are asked while somebody looks, who waits for the slowest of them.
_TIMEOUT_SECONDS = 2.0


class ServerPage:
    """Looks at a server within its own process, and at the others of its `TF_CONFIG` over the wire.

    Nothing runs on the event loop of the server but the description of its status, as for a scrape.
    The others are asked only while somebody looks at the page, so that servers that all have one do
    not keep each other busy.

    Args:
        server: The server, which serves.

    Attributes:
        url: What signs a browser in.
    """

    def __init__(self, server: ShownServer) -> None:
        host, _, port = server.page_address.rpartition(":")
        self._server, self._others = server, _others(server.task)
        heading = f"the cluster of {server.task}" if self._others else server.task
        self._watcher = Watcher(
            Watched(
                self._look,
                lambda: self._look(with_variables=True),
                heading,
                _INTERVAL_SECONDS,
                _PATIENCE_SECONDS,
                EVERY_SECONDS,
            )
        )
        access = Access(int(port), server.is_encrypted)
        self._site = Site(self._watcher, access, host, "this server has logged")
        scheme = "https" if server.is_encrypted else "http"
        self.url = f"{scheme}://{server.page_address}/login?token={access.token}"
        self._watcher.start()

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        return self._site(environ, start_response)

    def stop(self) -> None:
        """Look no more; a look that has begun ends first."""
        self._watcher.stop()

    def _look(self, with_variables: bool = False) -> list[ServerAnswer]:
        own = self._own(with_variables)
        if not self._watcher.is_watched:
            return [own]
        moved = [ServerPlace(own.moved_to, own.task)] if own.moved_to else []
        places = [*moved, *self._others]
        asked = ask(places, self._server.token, _TIMEOUT_SECONDS, with_variables)
        others = [each for each in asked if not _are_one(each, own)]
        return sorted([*others] if moved else [own, *others], key=_order)

    def _own(self, with_variables: bool) -> ServerAnswer:
        place = ServerPlace(self._server.address, self._server.task)
        try:
            return ServerAnswer(place, self._server.ask(with_variables))
        except concurrent.futures.TimeoutError:
            return ServerAnswer(
                place, None, f"{place.label} is stuck: its event loop does not turn"
            )


def _others(task: str) -> Sequence[ServerPlace]:
    """Return the other servers of the cluster, and all replicas of this task.

    Which replica this one is shows in what they answer.
    """
    try:
        found = places_of(read_tf_config())
    except StratagemError as error:
        LOG.warning("the page shows this server alone", task=task, why=str(error))
        return ()
    tasks = {place.label for place in found}
    if task not in tasks:
        return ()
    return [place for place in found if place.label != task or place.replica is not None]


def _are_one(answer: ServerAnswer, own: ServerAnswer) -> bool:
    return bool(
        answer.status and own.status and answer.status.incarnation == own.status.incarnation
    )


def _order(answer: ServerAnswer) -> tuple[str, int]:
    job, _, index = answer.task.partition(":")
    return job, int(index or 0)
