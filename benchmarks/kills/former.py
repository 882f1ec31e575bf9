"""The process in whose place another one of its task is."""

from __future__ import annotations

import time
from contextlib import ExitStack

import grpc

from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.wire.channel import open_channel
from stratagem_proto.wire.server_status import begin_status

RECONNECT = ("STRATAGEM_RECONNECT_SECONDS", "2")
"""How long servers keep the session of a process that was killed, so that others wait less."""

_PATIENCE_SECONDS, _ASK_SECONDS, _POLL_SECONDS = 120.0, 5.0, 0.05


def await_end_of_former(resolver: ClusterResolver) -> None:
    """Wait until no server has a session of this task.

    A process that was killed leaves a request on its way, which may be applied until its session
    ends: also after another process in its place has read what is there.

    Raises:
        TimeoutError: Some server has one still, or does not answer.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _is_gone(resolver):
        if time.monotonic() > deadline:
            raise TimeoutError(f"servers have sessions of {resolver.task_type} after minutes")
        time.sleep(_POLL_SECONDS)


def _is_gone(resolver: ClusterResolver) -> bool:
    task = resolver.task_type, resolver.task_id
    with ExitStack() as channels:
        calls = [
            begin_status(
                channels.enter_context(open_channel(str(address))),
                resolver.cluster_token or "",
                _ASK_SECONDS,
            )
            for address in resolver.cluster_spec().job_tasks("ps")
        ]
        try:
            statuses = [call.result() for call in calls]
        except grpc.RpcError:
            return False
    sessions = (session for status in statuses for session in status.sessions)
    return task not in {(session.task.job, session.task.index) for session in sessions}
