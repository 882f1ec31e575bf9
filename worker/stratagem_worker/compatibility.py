"""Which clients a worker understands."""

from __future__ import annotations

from stratagem._worker_client.runtime import this_runtime
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.worker_pb2 import Runtime


def check_runtime(client: Runtime, worker: str) -> None:
    """Refuses a client whose pickles may mean something else here.

    Args:
        client: What it runs in.
        worker: What errors call this worker.

    Raises:
        FailedPreconditionError: Naming both versions.
    """
    here = this_runtime()
    for field in Runtime.DESCRIPTOR.fields:
        theirs, ours = getattr(client, field.name), getattr(here, field.name)
        if theirs != ours:
            raise FailedPreconditionError(
                f"the client runs {field.name} {theirs or 'of no version'} and "
                f"{worker} {ours}, so that they would misread each other's functions; "
                f"install the same {field.name} on both",
                task=worker,
            )
