"""Who looks at a cluster again and again, whether or not anybody looks at the page."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any, TypeAlias

from stratagem_deploy.dashboard.view import Measures, measures, view
from stratagem_deploy.watching.asking import ServerAnswer, amount, of_clients, span, statuses
from stratagem_deploy.watching.clients import Finding, clients
from stratagem_deploy.watching.doctor import findings
from stratagem_deploy.watching.looks import Look
from stratagem_deploy.watching.tables import in_words, variables_of
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.status_pb2 import GetStatusResponse, LostClient

HOUR_SECONDS = 3600.0

EVERY_SECONDS = 5.0
"""The least time between two points."""

# Charts come from here, but for those of a program's own scalars.
_MOST_CHARTS, _MOST_SERIES = 40, 16


class Curves:
    """The points of the last hour.

    Args:
        every: Seconds between two points.
    """

    def __init__(self, every: float) -> None:
        length = max(2, math.ceil(HOUR_SECONDS / every))
        self._points: deque[tuple[int, float, Measures]] = deque(maxlen=length)
        self._number = 0

    def add(self, time: float, measures: Measures) -> None:
        """Add a point at a time in seconds since 1970; what is above all bounds is left out."""
        self._number += 1
        kept = {
            chart: dict(list(series.items())[:_MOST_SERIES])
            for chart, series in list(measures.items())[:_MOST_CHARTS]
        }
        self._points.append((self._number, time, kept))

    def since(self, number: int) -> dict[str, Any]:
        """Return the points after the one of a number, as JSON has them.

        Args:
            number: That of the last point that is known; 0 for all points.

        Returns:
            "number" of the last point; "first" that of the oldest one kept; "times"; and "charts":
            for each series a value for each time, None where it has none.
        """
        points = [point for point in self._points if point[0] > number]
        times = [round(time, 1) for _, time, _ in points]
        names = {
            chart: dict.fromkeys(
                name for _, _, measures in points for name in measures.get(chart, ())
            )
            for chart in dict.fromkeys(chart for _, _, measures in points for chart in measures)
        }
        charts = {
            chart: {
                name: [_short(measures.get(chart, {}).get(name)) for _, _, measures in points]
                for name in series
            }
            for chart, series in names.items()
        }
        first = self._points[0][0] if self._points else 0
        return {"number": self._number, "first": first, "times": times, "charts": charts}


def _short(value: float | None) -> float | None:
    """Return a value with the digits that can be seen; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


# More clients than these, coming or going at once, are told by their number.
_MOST_NAMES = 4


KINDS = ("problem", "change", "note")


@dataclass(frozen=True)
class Event:
    """Something that has happened, of one of the KINDS."""

    kind: str
    what: str


def events(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Event]:
    """Yield what is different from an earlier look."""
    before = {each.label: each for each in earlier}
    for answer in answers:
        if (known := before.get(answer.label)) is not None:
            yield from _of_server(answer, known)
    yield from _of_clients(answers, earlier)


def _of_server(answer: ServerAnswer, known: ServerAnswer) -> Iterator[Event]:
    name, now, then = answer.label, answer.status, known.status
    if now is None:
        if then is not None:
            yield Event("problem", f"{name} does not answer: {answer.problem}")
    elif then is None:
        yield Event("change", f"{name} answers, for {span(now.uptime_seconds)} by now")
    elif now.pid != then.pid and answer.place.address != known.place.address:
        yield Event("change", f"{name} is at {answer.place.address} now")
    elif now.incarnation != then.incarnation:
        yield Event("problem", f"{name} was started again {span(now.uptime_seconds)} ago")
    else:
        yield from _failed_calls(name, now, then)
        yield from _checkpoints(name, now, then)


def _failed_calls(name: str, now: GetStatusResponse, then: GetStatusResponse) -> Iterator[Event]:
    before = {one.method: one.ended for one in then.methods}
    for one in now.methods:
        for code, count in one.ended.items():
            more = count - (before[one.method].get(code, 0) if one.method in before else 0)
            if code != "OK" and more > 0:
                calls = f"{more} calls" if more > 1 else "a call"
                yield Event("problem", f"{name}: {calls} of {one.method} ended with {code}")


def _checkpoints(name: str, now: GetStatusResponse, then: GetStatusResponse) -> Iterator[Event]:
    mine, before = now.parameter_server.checkpoint, then.parameter_server.checkpoint
    if mine.failures > before.failures:
        yield Event("problem", f"{name} could not write its part of a checkpoint")
    if mine.saves > before.saves:
        written = f"{amount(mine.bytes)} in {span(mine.seconds)}"
        yield Event("note", f"{name} wrote its part of a checkpoint to {mine.folder}: {written}")


def _of_clients(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]
) -> Iterator[Event]:
    now, then = clients(of_clients(answers)), clients(of_clients(earlier))
    lost, known = _lost(answers), _lost(earlier)
    for name, loss in lost.items():
        if name not in known or known[name].seconds > loss.seconds:
            yield Event("problem", f"{name} is gone: {loss.why}")
    # A server that does not answer says nothing of its clients.
    if all(each.status for each in answers if not each.place.optional):
        yield from _named("came", now.keys() - then.keys())
        yield from _named("left", then.keys() - now.keys() - lost.keys())


def _named(verb: str, names: Collection[str]) -> Iterator[Event]:
    if names:
        few = len(names) <= _MOST_NAMES
        yield Event(
            "note", f"{', '.join(sorted(names)) if few else f'{len(names)} clients'} {verb}"
        )


def _lost(answers: Sequence[ServerAnswer]) -> Mapping[str, LostClient]:
    return {
        f"{loss.task.job}:{loss.task.index}": loss
        for _, status in statuses(answers)
        for loss in sorted(status.lost, key=lambda each: -each.seconds)
    }


def stalls(found: Sequence[Finding], before: Sequence[Finding]) -> Iterator[Event]:
    """Yield who began to hold others up, and who ended to."""
    now, then = (
        {tuple(each.culprits): each.what for each in look if each.stalls}
        for look in (found, before)
    )
    for culprits, what in now.items():
        if culprits not in then:
            yield Event("problem", f"stalled: {what}")
    for culprits in then:
        if culprits not in now:
            yield Event("change", f"{', '.join(culprits)}: holds nobody up any more")


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
    """Looks at a cluster from a thread of its own, and keeps what the page shows."""

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
            while not self._stopping.is_set():
                self._look()
                self._pause()
        except BaseException as error:
            # Nobody may take the last look for the present.
            self._note_problem(f"the dashboard has failed, start it again: {error!r}")
            raise

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

    def _note_problem(self, problem: str) -> None:
        with self._changing:
            self._problem = problem

    def _look(self) -> None:
        try:
            with self._asking:
                answers = self._watched.look()
        except (StratagemError, OSError) as error:
            self._note_problem(str(error))
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
        """Return what the page shows that has the points of curves up to this number."""
        self._asked_at = time.monotonic()
        self._asked_for.set()
        with self._changing:
            happened = [*merge(*self._happened.values(), key=itemgetter(0))]
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
                    for when, event in reversed(happened)
                ],
            }

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
