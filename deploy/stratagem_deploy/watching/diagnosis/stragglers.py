"""Workers whose own work for a step takes much longer than that of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from stratagem_deploy.watching.amounts import span
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.clients import session_name
from stratagem_deploy.watching.diagnosis.finding import Finding

# A straggler takes so many times as long as the others. Of steps that differ by less than some
# milliseconds, the scheduler of the system may make the difference.
_SLOWER, _TELLING_SECONDS = 2.0, 0.005


def stragglers(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the workers that take much longer for their steps, not counting what they wait for."""
    paces = own_seconds(answers)
    for name, seconds in paces.items():
        others = [each for other, each in paces.items() if other != name]
        if others and _is_slow(seconds, median(others)):
            yield Finding(
                f"{name} takes {span(seconds)} for a step by itself, the others "
                f"{span(median(others))} (medians, without their waits)",
                "look at its machine's processors, at what else runs there, and how it reads its "
                "data; with synchronous steps the others wait for it",
                culprits=(name,),
            )


def _is_slow(seconds: float, usual: float) -> bool:
    return seconds > _SLOWER * usual and seconds - usual > _TELLING_SECONDS


def own_seconds(answers: Sequence[ServerAnswer]) -> Mapping[str, float]:
    """Return what each client takes for a step by itself, as far as that is known."""
    return {
        session_name(session): session.pace.own_seconds
        for _, status in statuses(answers)
        for session in status.sessions
        if session.HasField("pace")
    }
