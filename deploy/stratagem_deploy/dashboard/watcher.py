"""Who looks at a cluster again and again, whether or not anybody looks at the page."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any, TypeAlias

from stratagem_deploy.dashboard.curves import EVERY_SECONDS, Curves
from stratagem_deploy.dashboard.events import KINDS, Event, events, stalls
from stratagem_deploy.dashboard.measures import measures
from stratagem_deploy.dashboard.view import view
from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_deploy.watching.diagnosis.doctor import findings
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.listing import in_words, variables_of
from stratagem_deploy.watching.looks import Look
from stratagem_proto.errors import StratagemError

# Of each kind, so that many notes leave problems in place.
_MOST_EVENTS = 100

Happened: TypeAlias = tuple[float, Event]
"""When, in seconds since 1970, and what."""

# Servers may have many variables to list.
_VARIABLES_SECONDS = 5.0

# Rates take two looks.
_FIRST_SECONDS = 1.0

# A browser that shows the page asks more often than this.
_WATCHED_SECONDS = 30.0


@dataclass(frozen=True)
class Watched:
    """A cluster, and how it is watched.

    Attributes:
        look: Asks its servers.
        look_closely: Asks them for their variables, too.
        heading: Which cluster it is; "" where it was told.
        interval: Seconds between two looks.
        patience: Waits of fewer seconds are usual.
        rest: Seconds between two looks while nobody looks at the page; None for the interval.
    """

    look: Look
    look_closely: Look
    heading: str
    interval: float
    patience: float
    rest: float | None = None


class Watcher:
    """Looks at a cluster from a thread of its own, and keeps what the page shows.

    Args:
        watched: The cluster.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._asking, self._changing = threading.Lock(), threading.Lock()
        self._stopping, self._asked_for = threading.Event(), threading.Event()
        self._asked_at = -math.inf
        self._curves = Curves(max(EVERY_SECONDS, watched.interval))
        self._happened = {kind: deque[Happened](maxlen=_MOST_EVENTS) for kind in KINDS}
        self._last: Sequence[ServerAnswer] = ()
        self._marked: tuple[float, Sequence[ServerAnswer]] = (0.0, ())
        self._found: Sequence[Finding] = ()
        self._shown: dict[str, Any] = {}
        self._number, self._problem, self._looked = 0, "", 0.0
        self._variables: tuple[float, dict[str, Any]] | None = None
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at the page."""
        return time.monotonic() - self._asked_at < _WATCHED_SECONDS

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._asked_for.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            self._look_again_and_again()
        except BaseException as error:
            # Nobody may take the last look for the present.
            self._tell(f"the dashboard has failed, start it again: {error!r}")
            raise

    def _look_again_and_again(self) -> None:
        while not self._stopping.is_set():
            self._look()
            self._pause()

    def _pause(self) -> None:
        interval, rest = self._watched.interval, self._watched.rest
        if not self._shown:
            self._stopping.wait(min(interval, _FIRST_SECONDS))
        elif rest is None or self.is_watched:
            self._stopping.wait(interval)
        else:
            self._asked_for.clear()
            # Whoever has come meanwhile has set it before.
            if self.is_watched or self._stopping.is_set() or self._asked_for.wait(rest):
                self._stopping.wait(_FIRST_SECONDS)

    def _tell(self, problem: str) -> None:
        with self._changing:
            self._problem = problem

    def _look(self) -> None:
        try:
            with self._asking:
                answers = self._watched.look()
        except (StratagemError, OSError) as error:
            self._tell(str(error))
            return
        with self._changing:
            self._note(answers, time.time())

    def _note(self, answers: Sequence[ServerAnswer], now: float) -> None:
        earlier, self._last, self._problem, self._looked = self._last, answers, "", now
        marked, then = self._marked
        # Where more or fewer servers are asked than before, their clients have not come or left.
        if not earlier or len(earlier) != len(answers):
            self._marked = (now, answers)
            return
        found = findings(answers, self._watched.patience)
        happened = [*events(answers, earlier), *stalls(found, self._found)]
        for each in happened:
            self._happened[each.kind].append((now, each))
        self._found, self._number = found, self._number + 1
        self._shown = view(answers, earlier, found)
        if now - marked >= EVERY_SECONDS:
            self._curves.add(now, measures(answers, then))
            self._marked = (now, answers)

    def facts(self, after: int) -> dict[str, Any]:
        """Return what the page shows.

        Args:
            after: Number of the last point of curves that the page has; 0 for none.
        """
        self._asked_at = time.monotonic()
        self._asked_for.set()
        with self._changing:
            return {
                "cluster": self._watched.heading,
                "interval": self._watched.interval,
                "number": self._number,
                "looked": round(self._looked, 3),
                "now": round(time.time(), 3),
                "problem": self._problem,
                "view": self._shown,
                "curves": self._curves.since(after),
                "events": [
                    {"time": round(when, 1), "kind": event.kind, "what": event.what}
                    for when, event in self._latest_events()
                ],
            }

    def _latest_events(self) -> Iterator[Happened]:
        """Yield what has happened, the last first."""
        every = merge(*self._happened.values(), key=itemgetter(0))
        return reversed([*every])

    def variables(self) -> dict[str, Any]:
        """Return all variables, as they were at most some seconds ago.

        Raises:
            StratagemError: Nobody can be asked.
            OSError: Likewise.
        """
        with self._asking:
            if self._variables is None or time.monotonic() > self._variables[0]:
                found = variables_of(self._watched.look_closely())
                listed = {"variables": [facts | {"shown": in_words(facts)} for facts in found]}
                self._variables = (time.monotonic() + _VARIABLES_SECONDS, listed)
            return self._variables[1]
