"""Having steps applied that wait for the norm of all servers' gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import describe
from stratagem._ps_client.requests.updates import closed_steps, finish_step
from stratagem_proto.v1.closed_step_pb2 import ClosedStep, GlobalNorm
from stratagem_proto.v1.parameter_server_pb2 import StepMark

_LAST = (1 << 64) - 1


def finish(servers: ServerGroup, mark: StepMark, wait: float = 0.0) -> None:
    """Finish the steps of a group, up to one, that all servers have closed.

    Each worker does so after it has committed its part. The last one to do so finds the step closed
    on all servers, whatever the order in which they closed it; should it end before it has told
    them, the others do it when they wait for the step, for so many seconds.

    Raises:
        NonFiniteGradientError: A gradient is not finite, and the limits want no such.
    """
    for step, norm in _unfinished(servers, mark, wait):
        servers.together({server: finish_step(step, norm) for server in servers.used})


def _unfinished(
    servers: ServerGroup, mark: StepMark, wait: float = 0.0
) -> Iterator[tuple[StepMark, GlobalNorm]]:
    """Yield the steps of a group, up to one, that all servers have closed, unless all are finished.

    The norm of each comes with it.
    """
    answers = servers.together({server: closed_steps(mark, wait) for server in servers.used})
    known = [answers[server] for server in sorted(answers)]
    numbers = {number for one in known for number, share in one.items() if not share.finished}
    for number in sorted(numbers):
        shares = [one[number] for one in known if number in one]
        if len(shares) < len(known):
            return
        yield StepMark(group=mark.group, step=number), _norm(shares)


def finish_all(servers: ServerGroup) -> None:
    """Finish all steps of all groups that all servers have closed.

    A worker that has ended may have told only some of the servers. A task that may not call all of
    them leaves that to others.
    """
    for mark in _groups(servers):
        finish(servers, mark)


def first_unfinished(servers: ServerGroup) -> StepMark | None:
    """Return a step that `finish_all` would finish; None if there is none."""
    steps = (step for mark in _groups(servers) for step, _ in _unfinished(servers, mark))
    return next(steps, None)


def _groups(servers: ServerGroup) -> Iterator[StepMark]:
    """Yield the last step of each group, if this task may call all servers."""
    if len(servers.called) == len(servers.used):
        for group in servers.call(servers.used[0], describe()):
            yield StepMark(group=group.group, step=_LAST)


def _norm(shares: Sequence[ClosedStep]) -> GlobalNorm:
    """Return the norm of a step, given what each server has of it, in their order."""
    spoilt = [each.nonfinite_variable for each in shares if each.nonfinite_variable]
    return GlobalNorm(
        value=math.sqrt(sum(each.squares for each in shares)),
        nonfinite_variable=spoilt[0] if spoilt else "",
    )
