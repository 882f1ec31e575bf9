"""Which of the errors of hosts the program sees."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._tpu.call import OUT_OF_STEP, HostAnswer
from stratagem._worker_client.remote_traceback import RemoteTraceback
from stratagem_proto.errors import UnavailableError


def raised_by(
    answers: Sequence[HostAnswer], tasks: Sequence[int]
) -> BaseException | None:
    """Return the error of a call, with where it was raised; None if there is none.

    It is the first one that is not about another host.

    Args:
        answers: How the call has ended on each host.
        tasks: The indices of the hosts.
    """
    failed = [
        (answer, task, answer.error)
        for answer, task in zip(answers, tasks, strict=True)
        if answer.error is not None
    ]
    if not failed:
        whole = all(answer.in_step for answer in answers)
        return None if whole else UnavailableError("a host has left the others")
    own = [one for one in failed if not isinstance(one[2], OUT_OF_STEP)]
    answer, task, error = (own or failed)[0]
    error.__cause__ = RemoteTraceback(f"host {task}", "a call", answer.traceback)
    return error
