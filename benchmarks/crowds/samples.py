"""What servers say of a crowd now and then, and how equal its workers were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from matplotlib import figure

from benchmarks.endurance.samples import MEMORY, Samples, growth
from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_proto.v1.session_pb2 import ROLE_OBSERVER


@dataclass
class Sessions:
    """The sessions of workers with all servers, over time.

    Attributes:
        open: How many a server had that had the fewest of those that answered.
        silent: The longest time that a server had not heard of one of them, in seconds.
        lost: Clients that servers took for dead, by server and task, and why.
        unanswered: How often a server did not say.
    """

    open: list[int] = field(default_factory=list)
    silent: list[float] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0

    @property
    def fewest(self) -> int:
        """The fewest that a server had at any time."""
        return min(self.open, default=0)

    def take(self, answers: Sequence[ServerAnswer]) -> None:
        """Note what servers say now."""
        statuses = [each.status for each in answers if each.status]
        self.unanswered += len(answers) - len(statuses)
        of_workers = [
            [each for each in status.sessions if each.role != ROLE_OBSERVER] for status in statuses
        ]
        self.open += [min(map(len, of_workers))] if of_workers else []
        silent = (each.silent_seconds for found in of_workers for each in found)
        self.silent.append(max(silent, default=0.0))
        for answer in answers:
            for client in answer.status.lost if answer.status else ():
                self.lost[f"{answer.label}, {client.task.job}:{client.task.index}"] = client.why


def fairness(steps: Sequence[int]) -> float:
    """Return the steps of the slowest worker over those of the fastest."""
    return min(steps) / max(steps) if any(steps) else 0.0


def memory(samples: Samples) -> Iterator[tuple[str, float, float, bool]]:
    """Yield each server, its memory after the warm-up and at the end, in MB, and if it is flat."""
    for name, values in samples.values[MEMORY].items():
        found = growth(MEMORY, values)
        yield name, found.early, found.late, found.is_flat


def drawn(samples: Samples, sessions: Sessions, steps: Sequence[int]) -> figure.Figure:
    """Return a picture of memory, of silence, and of the steps of each worker."""
    picture = figure.Figure(figsize=(14, 3.5), layout="constrained")
    first, second, third = picture.subplots(1, 3)
    minutes = [(each - samples.seconds[0]) / 60.0 for each in samples.seconds]
    for name, values in samples.values[MEMORY].items():
        first.plot(minutes, values, label=name)
    first.set(title="MB of memory", xlabel="minutes", ylim=(0, None))
    first.legend()
    second.plot(minutes, sessions.silent)
    second.set(title="longest silence of a worker, s", xlabel="minutes", ylim=(0, None))
    third.plot(sorted(steps))
    third.set(title="steps of each worker, sorted", xlabel="workers", ylim=(0, None))
    return picture
