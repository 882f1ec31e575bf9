"""What a function that takes the coordinator along finds on a worker."""

from __future__ import annotations

from typing import NoReturn

from stratagem_proto.errors import FailedPreconditionError


class CoordinatorStub:
    """Stands for the coordinator, which is in the program alone.

    It may be there, as the attribute of an object whose method runs, and not be used.
    """

    def __getattr__(self, name: str) -> NoReturn:
        # Copying and pickling probe for dunders.
        if name.startswith("__"):
            raise AttributeError(name)
        raise FailedPreconditionError(
            f"a function on a worker has used ClusterCoordinator.{name}, but only the "
            "program schedules functions and waits for them; return a value, and let "
            "the program go on with it"
        )
